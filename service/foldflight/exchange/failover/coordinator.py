"""Keeps one exchange going while servers come and go: events in, instructions out, no IO and no clock.

The shell that owns sockets and clocks tells what happened (`handle`), carries out what comes back, and tells what came
of it. At most one instruction that waits for a server is out at a time, and it is the last of its list.

The rules:

- One link at a time. What a lost link had answered in part is gone with it, so an answer never comes from two servers.
- Whatever a lost server held is in the journal: on a new link its states are loaded, and its frames sent again.
- An answer that the engine has is dropped when it comes again. So outputs are delivered once, and what was delivered is
  the only truth, for functions that are not deterministic, too.
- A frame goes out when every answer to earlier frames is in: a server that blocks on its answers while the engine
  blocks on its chunks would wait for ever.
- Within an epoch the server is asked now and then, before a frame is sent, whether it wants to be left: then its states
  come along, and no row is folded again elsewhere.
- A server that is not the first must be like the first: the same fingerprints, or it is passed over.
- Patience ends: after `losses_max` losses without an answer, or `patience_s` without a server.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.engine import Saved, check_chunk
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.journal import Entry, Journal
from foldflight.exchange.failover.steps import (
    AnswerCame,
    AnswerWanted,
    AwaitAnswer,
    Bounds,
    CutLink,
    Deliver,
    Event,
    FrameGiven,
    FrameSent,
    GiveUp,
    Instruction,
    LeaveLink,
    LinkLost,
    LinkOpened,
    OpenLink,
    Report,
    Rest,
    Rested,
    SendFrame,
    Started,
    Stats,
)
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Forget,
    InitialOutputs,
    Open,
    Opened,
    Results,
    RowOutputs,
    States,
)
from foldflight.exchange.machine import Exchange, Role
from foldflight.exchange.slots import Slots, check_slots, check_states

__all__ = ["Coordinator"]

_STORY_STEPS: Final = 30


@dataclass
class _Link:
    """One server's turn at the exchange."""

    url: str
    is_open: bool = False
    is_restored: bool = False  # it was given states, so its first results are about more slots than those that changed
    is_leaving: bool = False
    is_kept: bool = False  # it wanted to be left and could not give its states, so it is kept until its next barrier
    asked_at_s: float = 0.0  # when it last said whether it wants to be left
    has_everything: bool = False
    unsent: deque[Entry] = field(default_factory=deque)
    owed: deque[Entry] = field(default_factory=deque)


class Coordinator:
    """One exchange over many servers.

    Args:
        opening: What it is opened with.
        urls: The servers.
        circuits: Which of them are worth asking.
        bounds: What failover may cost.

    Attributes:
        opened: What the newest server said; None before the first.
        stats: What failover has cost.
    """

    def __init__(self, opening: Open, urls: Sequence[str], circuits: Circuits, *, bounds: Bounds) -> None:
        self.opened: Opened | None = None
        self.stats = Stats()
        self._opening = opening
        self._urls = tuple(urls)
        self._circuits = circuits
        self._bounds = bounds
        self._machine = Exchange(Role.ENGINE)
        self._machine.send(opening)
        self._journal = Journal(returns_states=opening.returns.states)
        self._link: _Link | None = None
        self._is_wanted = False  # the engine waits for an answer
        self._is_needed = False  # there is something to do on a link
        self._is_saving = False  # an answer with states is due, so no checkpoint is needed
        self._bare = ""  # why a loss could not be made good
        self._losses = 0  # in a row
        self._trouble_since_s: float | None = None
        self._tried: set[str] = set()
        self._error: FoldflightError | None = None
        self._lost_at_s: float | None = None  # since then the engine goes without a server
        self._refolded = 0  # rows that the operator has been told of
        self._began_s: float | None = None
        self._story: deque[str] = deque(maxlen=_STORY_STEPS)

    def story(self) -> tuple[str, ...]:
        """Return what happened to links, oldest first, in seconds since the exchange began."""
        return tuple(self._story)

    @property
    def held_bytes(self) -> int:
        """Bytes of the states and frames that are kept."""
        return self._journal.kept.nbytes + self._journal.frame_bytes

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take what happened, and return what to do.

        Raises:
            RejectedError: BAD_FRAME, SCHEMA_MISMATCH, LIMIT, for a frame that the engine may not send.
        """
        if self._began_s is None:
            self._began_s = now_s
        done: list[Instruction] = []
        match event:
            case Started():
                self._is_needed = True
            case FrameGiven():
                self._given(event.frame, now_s)
            case AnswerWanted():
                self._is_wanted = self._is_needed = True
            case LinkOpened():
                refusal = self._refusal(event.opened)
                if refusal is not None:
                    return self._lost(refusal, now_s)
                self._begin(event.opened, now_s)
            case FrameSent():
                link = self._open_link()
                entry = link.unsent.popleft()
                entry.sent = True
                if entry.asks:
                    link.owed.append(entry)
            case AnswerCame():
                done += self._answered(event, now_s)
            case LinkLost():
                return self._lost(event.error, now_s)
            case Rested():
                pass
        return [*done, *self._next(now_s)]

    # -- the engine's frames -----------------------------------------------------------------------------------------

    def _given(self, frame: States | Chunk | Forget | Barrier, now_s: float) -> None:
        self._check(frame)
        self._machine.send(frame)
        if isinstance(frame, (States, Chunk)) and self._should_ask(now_s):
            self._add(Entry(Checkpoint(if_reopen=True), asks=True))
        self._add(Entry(frame, asks=self._opening.asks(frame)))
        self._is_needed |= not isinstance(frame, Forget)
        self._is_saving |= isinstance(frame, Barrier) and self._opening.returns.states
        if self._journal.is_idle():
            self._journal.clear()
            self._bare = ""
        elif self._bare:
            self._journal.clear()
        elif self._journal.frame_bytes > self._bounds.replay_bytes_max and not self._is_saving:
            self._is_saving = True
            self._add(Entry(Checkpoint(), asks=True))

    def _should_ask(self, now_s: float) -> bool:
        """Tell whether it is time to ask the server if it wants to be left."""
        link = self._link
        if link is None or self.opened is None or not self.opened.knows_if_reopen:
            return False
        if link.is_leaving or link.is_kept or self._bare or now_s - link.asked_at_s < self._bounds.ask_s:
            return False
        # What a barrier or checkpoint brings says so, too.
        return not any(isinstance(each.frame, (Barrier, Checkpoint)) for each in (*link.owed, *link.unsent))

    def _check(self, frame: EngineFrame) -> None:
        """Refuse what every server would refuse, before it is kept."""
        if self.opened is None:
            raise RejectedError("BAD_FRAME", "the exchange is not open")
        slots_max = self.opened.limits.slots_max
        match frame:
            case States():
                check_states(frame.batch, slots_max)
            case Chunk():
                check_chunk(frame.batch, self._opening)
                if "slot" in frame.batch.schema.names:
                    check_slots(frame.batch.column("slot"), slots_max)
            case Forget():
                check_slots(frame.slots, slots_max)
            case _:
                pass

    def _add(self, entry: Entry) -> None:
        self._journal.add(entry)
        if self._link is not None:
            self._link.unsent.append(entry)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, event: AnswerCame, now_s: float) -> list[Instruction]:
        link = self._open_link()
        entry = link.owed.popleft()
        answer = event.answer
        if isinstance(entry.frame, (Barrier, Checkpoint)):
            link.asked_at_s = now_s
            link.is_kept = event.reopen and isinstance(answer, Saved) and bool(answer.problem)
            link.is_leaving |= event.reopen and not link.is_kept
        if isinstance(entry.frame, Barrier) and link.is_restored:
            link.is_restored = False
            answer = _only(answer, entry.changed)
        if entry.answered:
            return []
        entry.answered = True
        self._losses = 0
        if isinstance(entry.frame, Checkpoint):
            if entry.frame.if_reopen and not link.is_leaving:
                self._journal.drop_questions()
                return []
            self._is_saving &= entry.frame.if_reopen
            self._saved(entry, answer)
            return [Deliver(entry.frame, None, event.logs)] if event.logs else []
        match entry.frame:
            case Barrier():
                self._is_saving = False
                self._machine.receive(Results(entry.frame.epoch, answer))
                if not self._bare:
                    self._journal.commit(entry, answer)
                    self._bound_kept()
            case States():
                self._machine.receive(InitialOutputs(answer))
            case _:
                self._machine.receive(RowOutputs(answer))
        self._is_wanted = False
        return [Deliver(entry.frame, answer, event.logs)]

    def _saved(self, entry: Entry, saved: Saved) -> None:
        if saved.problem:
            self._go_bare(f"the server could not save its states: {saved.problem}")
            return
        self.stats.checkpoints += 1
        self._journal.commit(entry, saved.states)
        self._bound_kept()

    def _bound_kept(self) -> None:
        kept = self._journal.kept.nbytes
        if kept > self._bounds.kept_bytes_max:
            self._go_bare(f"its states have {kept} bytes, more than the {self._bounds.kept_bytes_max} that are kept")

    def _go_bare(self, why: str) -> None:
        self._bare = why
        self._journal.clear()

    # -- links -------------------------------------------------------------------------------------------------------

    def _next(self, now_s: float) -> list[Instruction]:
        """Return the next step on the link, or towards one."""
        link = self._link
        if link is None:
            return self._connect(now_s) if self._is_needed else []
        if link.is_leaving and not link.owed and not self._bare:
            self._note(now_s, f"left {link.url}, which asked for it")
            self._link = None
            self._is_needed = any(not isinstance(entry.frame, Forget) for entry in link.unsent)
            return [LeaveLink(), *self._next(now_s)]
        if not link.unsent and not link.has_everything:
            link.has_everything = True
            self._trouble_since_s = None
            self._tried.clear()
            self._circuits.worked(link.url)
        if link.owed and (link.unsent or self._is_wanted):
            return [AwaitAnswer(link.owed[0].frame)]
        if link.unsent:
            return [SendFrame(link.unsent[0].frame)]
        return self._settled(link, now_s)

    def _connect(self, now_s: float) -> list[Instruction]:
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        until_s = self._trouble_since_s + self._bounds.patience_s
        url = self._circuits.choose(self._urls, now_s) if now_s <= until_s else None
        if url is None:
            rested_at_s = max(self._circuits.rested_at_s(self._urls), now_s)
            if rested_at_s <= until_s:
                return [Rest(rested_at_s)]
            # Patience is over, but each server is asked once, even one that rests for what it did to others.
            url = next((url for url in self._circuits.turn(self._urls, now_s) if url not in self._tried), None)
            if url is None:
                return [self._give_up(f"no server took the exchange within {self._bounds.patience_s:g} s")]
        self._tried.add(url)
        self._link = _Link(url)
        return [OpenLink(url, self._opening)]

    def _refusal(self, opened: Opened) -> RejectedError | None:
        """Return why a server cannot take over what another began."""
        first = self.opened
        if first is None or (opened.fingerprints == first.fingerprints and opened.schema.equals(first.schema)):
            return None
        return RejectedError(
            "STATE_MISMATCH",
            f"server {opened.server_id} serves other versions of the functions than {first.server_id}, which began",
        )

    def _begin(self, opened: Opened, now_s: float) -> None:
        link = self._open_link()
        link.is_open = True
        link.asked_at_s = now_s
        if self.opened is None:
            self._machine.receive(opened)
            # From now on only a server with the same functions will do, and it says so itself.
            calls = zip(self._opening.calls, opened.calls, strict=True)
            self._opening = dataclasses.replace(
                self._opening,
                calls=tuple(dataclasses.replace(call, fingerprint=told.fingerprint) for call, told in calls),
            )
        else:
            self.stats.replays += 1
            self.stats.rows_refolded += sum(entry.rows for entry in self._journal if entry.sent)
            states = self._journal.kept.to_batch()
            if states is not None:
                link.is_restored = True
                # They may be of the middle of an epoch, where nobody has asked for outputs, and a function may raise.
                link.unsent.append(Entry(States(states, unanswered=True), asks=False))
            link.unsent.extend(self._journal)
        self._note(now_s, f"opened {link.url} ({opened.server_id}), to send {len(link.unsent)} frames")
        self.opened = opened

    def _settled(self, link: _Link, now_s: float) -> list[Instruction]:
        """Tell the operator once the engine has what it waited for, from another server than it began with."""
        if self._lost_at_s is None or self._error is None:
            return []
        stall_s, self._lost_at_s = now_s - self._lost_at_s, None
        self.stats.stall_s_max = max(self.stats.stall_s_max, stall_s)
        again, self._refolded = self.stats.rows_refolded - self._refolded, self.stats.rows_refolded
        fields: dict[str, str | int | float] = {
            "server": link.url,
            "server_id": "" if self.opened is None else self.opened.server_id,
            "stall_s": round(stall_s, 3),
            "rows_sent_again": again,
            "losses": self.stats.losses,
            "code": self._error.code,
            "problem": self._error.message,
        }
        return [Report("an exchange goes on at another server", fields)]

    def _lost(self, error: FoldflightError, now_s: float) -> list[Instruction]:
        link = self._link
        if link is None:
            raise AssertionError("a link was lost that nobody opened")
        self._link = None
        self._is_needed = True
        self._journal.drop_questions()
        if not self._is_another_servers_turn(error, link):
            return [CutLink(), GiveUp(error)]
        self._circuits.failed(link.url, now_s)
        self._tried.add(link.url)
        self._note(now_s, f"{'lost' if link.is_open else 'refused by'} {link.url}: {_told(error)}")
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
        if self._lost_at_s is None:
            self._lost_at_s = now_s
        if link.is_open:
            self._losses += 1
            self.stats.losses += 1
        self._error = error
        if self.opened is not None and self._bare:
            return [CutLink(), self._give_up(f"the exchange could not move, for {self._bare}")]
        if self._losses > self._bounds.losses_max:
            return [CutLink(), self._give_up(f"{self._losses} servers were lost in a row without an answer")]
        return [CutLink(), *self._connect(now_s)]

    def _is_another_servers_turn(self, error: FoldflightError, link: _Link) -> bool:
        """Tell whether another server may do better, or the job itself must change."""
        if isinstance(error, RetryableError):
            return True
        if not isinstance(error, RejectedError):
            return False
        if not link.is_open:
            # Fingerprints come from a server: what this one refuses, that one has agreed to. A token that nobody has
            # accepted yet is the job's.
            is_agreed = all(call.fingerprint for call in self._opening.calls)
            return is_agreed and (error.code != "UNAUTHENTICATED" or self.opened is not None)
        # The engine's own table lets no wrong frame out: BAD_FRAME is damage on the way. And what this server cannot
        # load, another has saved.
        return error.code == "BAD_FRAME" or (error.code == "STATE_MISMATCH" and link.is_restored)

    def _give_up(self, why: str) -> GiveUp:
        error = self._error
        if error is None:
            raise AssertionError("nothing is given up without an error")
        return GiveUp(type(error)(error.code, f"{error.message}; {why}", story=self.story()))

    def _open_link(self) -> _Link:
        if self._link is None:
            raise AssertionError("there is no link")
        return self._link

    def _note(self, now_s: float, what: str) -> None:
        self._story.append(f"{now_s - (self._began_s or 0.0):.1f}s {what}"[:200])


def _told(error: FoldflightError) -> str:
    return f"{error.code}: {error.message}"


def _only(results: pa.Table, slots: Slots) -> pa.Table:
    """Return the rows of these slots."""
    kept = pc.is_in(results.column("slot"), pa.array(slots, pa.int32()))
    return results.filter(kept)
