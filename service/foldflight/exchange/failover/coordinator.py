"""Keep one exchange running while servers fail or drain. Takes events and returns instructions; no I/O and no clock.

The shell, which owns sockets and clocks, reports each event with `handle` and carries out the returned instructions. At
most one instruction that waits for a server is pending at a time, and it is the last of its list.

The rules:

- There is one link at a time. A partial answer of a lost link is discarded, so an answer never mixes two servers.
- The journal has everything that a lost server had: a new link gets its states, and then its frames again.
- An answer that the engine already has is dropped when it arrives again. So each output is delivered once, even if the
  function is not deterministic.
- A frame is sent only after all answers to earlier frames have arrived. Otherwise the server could block on writing an
  answer while the engine blocks on writing a chunk.
- Within an epoch the coordinator asks the server at intervals, before it sends a frame, whether the exchange should
  move. The answer then has the states, so that no row is folded again on the next server.
- Every later server must report the same fingerprints as the first one. Otherwise it is skipped.
- The coordinator gives up after `losses_max` losses without an answer, or after `patience_s` without a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.engine import Saved, check_chunk
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.journal import Journal, JournalEntry
from foldflight.exchange.failover.steps import (
    AnswerCame,
    AnswerWanted,
    AwaitAnswer,
    CutLink,
    Deliver,
    Event,
    FailoverBounds,
    FailoverStats,
    FrameGiven,
    FrameSent,
    GiveUp,
    Instruction,
    LeaveLink,
    LinkLost,
    LinkOpened,
    LogEvent,
    OpenLink,
    Rest,
    Rested,
    SendFrame,
    Started,
)
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Forget,
    Open,
    Opened,
    States,
)
from foldflight.exchange.machine import check_epoch, check_given
from foldflight.exchange.slots import Slots, check_slots, check_states
from foldflight.exchange.views import kept_states

__all__ = ["Coordinator"]

_STORY_STEPS: Final = 30


@dataclass
class _Link:
    """The connection of the exchange to one server."""

    url: str
    is_open: bool = False
    is_restored: bool = False  # states were loaded, so its first results also contain slots that did not change
    is_leaving: bool = False  # the server requested that the exchange reopen elsewhere
    must_stay: bool = False  # as is_leaving, but the server could not return its states: stay until the next barrier
    asked_at_s: float = 0.0  # when the server last reported whether the exchange should reopen elsewhere
    is_caught_up: bool = False
    unsent: deque[JournalEntry] = field(default_factory=deque)
    awaited: deque[JournalEntry] = field(default_factory=deque)


class Coordinator:
    """One exchange over many servers.

    Args:
        opening: The Open frame of the exchange.
        urls: The servers.
        circuits: The circuit breakers of the servers.
        bounds: Limits on the cost of failover.

    Attributes:
        opened: The Opened frame of the newest server; None before the first.
        stats: The cost of failover so far.
    """

    def __init__(self, opening: Open, urls: Sequence[str], circuits: Circuits, *, bounds: FailoverBounds) -> None:
        self.opened: Opened | None = None
        self.stats = FailoverStats()
        self._opening = opening
        self._slot_place = -1 if opening.maps else opening.columns.get_field_index("slot")
        self._urls = tuple(urls)
        self._circuits = circuits
        self._bounds = bounds
        self._epoch: int | None = None  # of the last barrier
        self._due = 0  # answers that the engine does not have
        self._journal = Journal(returns_states=opening.returns.states, holds_slots=not opening.maps)
        self._link: _Link | None = None
        self._is_wanted = False  # the engine waits for an answer
        self._is_needed = False  # the exchange needs a link
        self._is_saving = False  # an answer with states is due, so no checkpoint is needed
        self._no_failover_reason = ""  # why the exchange cannot move to another server; empty if it can
        self._losses = 0  # consecutive losses without an answer
        self._unserved_since_s: float | None = None
        self._tried_urls: set[str] = set()
        self._error: FoldflightError | None = None
        self._lost_at_s: float | None = None  # start of the current interruption
        self._reported_refolds = 0  # value of stats.rows_refolded in the last report
        self._started_at_s: float | None = None
        self._story: deque[str] = deque(maxlen=_STORY_STEPS)

    def story(self) -> tuple[str, ...]:
        """Return the events of all links, oldest first, with seconds since the start of the exchange."""
        return tuple(self._story)

    @property
    def held_bytes(self) -> int:
        """Bytes of the states and frames in the journal."""
        return self._journal.kept.nbytes + self._journal.frame_bytes

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Process an event and return the instructions that follow from it.

        Raises:
            RejectedError: BAD_FRAME, SCHEMA_MISMATCH, LIMIT for a frame that the engine may not send.
        """
        if self._started_at_s is None:
            self._started_at_s = now_s
        done: list[Instruction] = []
        match event:
            case Started():
                self._is_needed = True
            case FrameGiven():
                self._accept(event.frame, now_s)
            case AnswerWanted():
                self._is_wanted = self._is_needed = True
            case LinkOpened():
                refusal = self._refusal(event.opened)
                if refusal is not None:
                    return self._lost(refusal, now_s)
                self._start_link(event.opened, now_s)
            case FrameSent():
                link = self._open_link()
                entry = link.unsent.popleft()
                entry.sent = True
                if entry.expects_answer:
                    link.awaited.append(entry)
            case AnswerCame():
                done += self._answered(event, now_s)
            case LinkLost():
                return self._lost(event.error, now_s)
            case Rested():
                pass
        return [*done, *self._next(now_s)]

    # -- the engine's frames -----------------------------------------------------------------------------------------

    def _accept(self, frame: EngineFrame, now_s: float) -> None:
        self._check(frame)
        expects_answer = self._opening.is_delivered(frame)
        self._due += expects_answer
        if isinstance(frame, (States, Chunk)) and self._should_ask(now_s):
            self._append(JournalEntry(Checkpoint(if_reopen=True), expects_answer=True))
        self._append(JournalEntry(frame, expects_answer=expects_answer))
        self._is_needed |= not isinstance(frame, Forget)
        self._is_saving |= isinstance(frame, Checkpoint) or (
            isinstance(frame, Barrier) and self._opening.returns.states
        )
        if self._journal.is_idle():
            self._journal.clear()
            self._no_failover_reason = ""
        elif self._no_failover_reason:
            self._journal.clear()
        elif self._opening.maps:
            pass  # an answered chunk is forgotten, so there is nothing that a checkpoint could replace
        elif self._journal.frame_bytes > self._bounds.replay_bytes_max and not (
            self._is_saving or self._opening.keeps_views
        ):
            self._is_saving = True
            self._append(JournalEntry(Checkpoint(), expects_answer=True))

    def _should_ask(self, now_s: float) -> bool:
        """Return whether it is time to ask the server if the exchange should reopen elsewhere."""
        link = self._link
        if link is None or self.opened is None or not self.opened.knows_if_reopen or self._opening.maps:
            return False
        if self._opening.keeps_views:  # only the engine can commit the entries that a checkpoint returns
            return False
        if (
            link.is_leaving
            or link.must_stay
            or self._no_failover_reason
            or now_s - link.asked_at_s < self._bounds.ask_s
        ):
            return False
        # The answer to a barrier or checkpoint reports it, too.
        return not any(isinstance(each.frame, (Barrier, Checkpoint)) for each in (*link.awaited, *link.unsent))

    def _check(self, frame: EngineFrame) -> None:
        """Refuse, before it is recorded, a frame that every server would refuse."""
        if self.opened is None:
            raise RejectedError("BAD_FRAME", "the exchange is not open; start it before frames are sent")
        check_given(frame, self._opening, is_due=self._due > 0)
        slots_max = self.opened.limits.slots_max
        match frame:
            case Barrier():
                check_epoch(frame.epoch, self._epoch)
                self._epoch = frame.epoch
            case States() | Entries():
                check_states(frame.batch, slots_max)
            case Checkpoint() if not self._opening.keeps_views:
                raise RejectedError("BAD_FRAME", "checkpoints are taken here, unless Open has keeps_views")
            case Chunk():
                check_chunk(frame.batch, self._opening)
                if self._slot_place >= 0:
                    check_slots(frame.batch.column(self._slot_place), slots_max)
            case Forget():
                check_slots(frame.slots, slots_max)
            case _:
                pass

    def _append(self, entry: JournalEntry) -> None:
        self._journal.add(entry)
        if self._link is not None:
            self._link.unsent.append(entry)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, event: AnswerCame, now_s: float) -> list[Instruction]:
        link = self._open_link()
        entry = link.awaited.popleft()
        answer = event.answer
        if self._opening.maps:
            link.is_leaving |= event.reopen
        elif isinstance(entry.frame, (Barrier, Checkpoint)):
            link.asked_at_s = now_s
            link.must_stay = event.reopen and isinstance(answer, Saved) and bool(answer.problem)
            link.is_leaving |= event.reopen and not link.must_stay
        if isinstance(entry.frame, Barrier) and link.is_restored:
            link.is_restored = False
            answer = _select_slots(answer, entry.changed)
        if entry.answered:
            return []
        entry.answered = True
        self._losses = 0
        if isinstance(entry.frame, Checkpoint):
            if entry.frame.if_reopen and not link.is_leaving:
                self._journal.drop_questions()
                return []
            self._is_saving &= entry.frame.if_reopen
            self._checkpoint_answered(entry, answer)
            if self._opening.keeps_views:
                if answer.problem:
                    # Another server might save the states, and forget entries that the engine does not have.
                    self._journal.forget_answered(entry)
                self._due -= 1
                self._is_wanted = False
                return [Deliver(entry.frame, answer, event.logs)]
            return [Deliver(entry.frame, None, event.logs)] if event.logs else []
        if isinstance(entry.frame, Barrier):
            self._is_saving &= not self._opening.returns.states  # a checkpoint may be due behind the barrier
            if not self._no_failover_reason:
                self._journal.commit(entry, self._without_entries(answer))
                self._check_kept_bytes()
        elif self._opening.maps:
            self._journal.forget_answered(entry)
        self._due -= 1
        self._is_wanted = False
        return [Deliver(entry.frame, answer, event.logs)]

    def _checkpoint_answered(self, entry: JournalEntry, saved: Saved) -> None:
        if saved.problem and self._opening.keeps_views:
            return  # the frames are kept
        if saved.problem:
            self._disable_failover(f"the server could not save its states: {saved.problem}")
            return
        self.stats.checkpoints += 1
        self._journal.commit(entry, self._without_entries(saved.states))
        self._check_kept_bytes()

    def _without_entries(self, states: pa.Table) -> pa.Table:
        """Return states without the entries of views, which an engine that keeps them has committed by itself."""
        if not self._opening.keeps_views or self.opened is None:
            return states
        return kept_states(states, [call.views for call in self.opened.calls])

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept that the engine, which keeps views, should take a checkpoint."""
        is_over = self._journal.frame_bytes > self._bounds.replay_bytes_max
        return self._opening.keeps_views and is_over and not self._is_saving

    def _check_kept_bytes(self) -> None:
        kept = self._journal.kept.nbytes
        if kept > self._bounds.kept_bytes_max:
            self._disable_failover(
                f"its states have {kept} bytes, and the client keeps at most {self._bounds.kept_bytes_max}"
            )

    def _disable_failover(self, why: str) -> None:
        self._no_failover_reason = why
        self._journal.clear()

    # -- links -------------------------------------------------------------------------------------------------------

    def _next(self, now_s: float) -> list[Instruction]:
        """Return the next instructions: for the link, or to open one."""
        link = self._link
        if link is None:
            return self._connect(now_s) if self._is_needed else []
        if link.is_leaving and not link.awaited and not self._no_failover_reason:
            self._record(now_s, f"left {link.url} at its request")
            self._link = None
            self._is_needed = any(not isinstance(entry.frame, Forget) for entry in link.unsent)
            return [LeaveLink(), *self._next(now_s)]
        if not link.unsent and not link.is_caught_up:
            link.is_caught_up = True
            self._unserved_since_s = None
            self._tried_urls.clear()
            self._circuits.worked(link.url)
        if link.awaited and (link.unsent or self._is_wanted):
            return [AwaitAnswer(link.awaited[0].frame)]
        if link.unsent:
            return [SendFrame(link.unsent[0].frame)]
        return [] if self._lost_at_s is None else self._report_recovery(link, now_s)

    def _connect(self, now_s: float) -> list[Instruction]:
        if self._unserved_since_s is None:
            self._unserved_since_s = now_s
        until_s = self._unserved_since_s + self._bounds.patience_s
        url = self._circuits.choose(self._urls, now_s) if now_s <= until_s else None
        if url is None:
            rested_at_s = max(self._circuits.rested_at_s(self._urls), now_s)
            if rested_at_s <= until_s:
                return [Rest(rested_at_s)]
            # patience_s is over, but each server is tried once, even if other exchanges made it rest.
            url = next((url for url in self._circuits.turn(self._urls, now_s) if url not in self._tried_urls), None)
            if url is None:
                return [self._give_up(f"no server took the exchange within {self._bounds.patience_s:g} s")]
        self._tried_urls.add(url)
        self._link = _Link(url)
        return [OpenLink(url, self._opening)]

    def _refusal(self, opened: Opened) -> RejectedError | None:
        """Return the reason why a server cannot take over the exchange; None if it can."""
        first = self.opened
        if first is None or (opened.fingerprints == first.fingerprints and opened.schema.equals(first.schema)):
            return None
        return RejectedError(
            "STATE_MISMATCH",
            f"server {opened.server_id} serves other versions of the functions than {first.server_id}, on which the "
            "exchange began; deploy the same versions on all servers",
        )

    def _start_link(self, opened: Opened, now_s: float) -> None:
        link = self._open_link()
        link.is_open = True
        link.asked_at_s = now_s
        if self.opened is None:
            # Every later server must have the same fingerprints. Open has them, so the server itself refuses others.
            self._opening = self._opening.pinned(opened.fingerprints)
        else:
            self.stats.replays += 1
            self.stats.rows_refolded += sum(entry.rows for entry in self._journal if entry.sent)
            states = self._journal.kept.to_batch()
            if states is not None:
                link.is_restored = True
                # Outputs in the middle of an epoch are not needed, and computing them may raise.
                link.unsent.append(JournalEntry(States(states, unanswered=True), expects_answer=False))
            link.unsent.extend(self._journal)
        self._record(now_s, f"opened {link.url} ({opened.server_id}), to send {len(link.unsent)} frames")
        self.opened = opened

    def _report_recovery(self, link: _Link, now_s: float) -> list[Instruction]:
        """Report to the operator, once after each interruption, that another server has taken over."""
        if self._lost_at_s is None or self._error is None:
            return []
        stall_s, self._lost_at_s = now_s - self._lost_at_s, None
        self.stats.stall_s_max = max(self.stats.stall_s_max, stall_s)
        again, self._reported_refolds = self.stats.rows_refolded - self._reported_refolds, self.stats.rows_refolded
        fields: dict[str, str | int | float] = {
            "server": link.url,
            "server_id": "" if self.opened is None else self.opened.server_id,
            "stall_s": round(stall_s, 3),
            "rows_sent_again": again,
            "losses": self.stats.losses,
            "code": self._error.code,
            "problem": self._error.message,
        }
        return [LogEvent("an exchange goes on at another server", fields)]

    def _lost(self, error: FoldflightError, now_s: float) -> list[Instruction]:
        link = self._link
        if link is None:
            raise AssertionError("LinkLost was reported without a link")
        self._link = None
        self._is_needed = True
        self._journal.drop_questions()
        if not self._may_succeed_elsewhere(error, link):
            return [CutLink(), GiveUp(error)]
        self._circuits.failed(link.url, now_s)
        self._tried_urls.add(link.url)
        self._record(now_s, f"{'lost' if link.is_open else 'refused by'} {link.url}: {_summary(error)}")
        if self._unserved_since_s is None:
            self._unserved_since_s = now_s
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        if link.is_open:
            self._losses += 1
            self.stats.losses += 1
        self._error = error
        if self.opened is not None and self._no_failover_reason:
            return [
                CutLink(),
                self._give_up(f"the exchange could not move to another server: {self._no_failover_reason}"),
            ]
        if self._losses > self._bounds.losses_max:
            return [CutLink(), self._give_up(f"{self._losses} servers were lost in a row without an answer")]
        return [CutLink(), *self._connect(now_s)]

    def _may_succeed_elsewhere(self, error: FoldflightError, link: _Link) -> bool:
        """Return whether another server may succeed. If not, the job itself must change."""
        if isinstance(error, RetryableError):
            return True
        if not isinstance(error, RejectedError):
            return False
        if not link.is_open:
            # Fingerprints in all calls mean that some server accepted the same Open before. If no server has accepted
            # the token yet, the token itself is wrong.
            is_agreed = all(self._opening.fingerprints)
            return is_agreed and (error.code != "UNAUTHENTICATED" or self.opened is not None)
        # The engine checks its own frames, so BAD_FRAME means that a frame was damaged in transit. States that this
        # server cannot load were saved by another server.
        return error.code == "BAD_FRAME" or (error.code == "STATE_MISMATCH" and link.is_restored)

    def _give_up(self, why: str) -> GiveUp:
        error = self._error
        if error is None:
            raise AssertionError("the coordinator gives up only after an error")
        return GiveUp(type(error)(error.code, f"{error.message}; {why}", story=self.story()))

    def _open_link(self) -> _Link:
        if self._link is None:
            raise AssertionError("there is no link")
        return self._link

    def _record(self, now_s: float, what: str) -> None:
        self._story.append(f"{now_s - (self._started_at_s or 0.0):.1f}s {what}"[:200])


def _summary(error: FoldflightError) -> str:
    return f"{error.code}: {error.message}"


def _select_slots(results: pa.Table, slots: Slots) -> pa.Table:
    """Return the rows of these slots."""
    kept = pc.is_in(results.column("slot"), pa.array(slots, pa.int32()))
    return results.filter(kept)
