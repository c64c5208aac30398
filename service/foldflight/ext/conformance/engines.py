"""Check an engine: run its query against a strict server, first undisturbed and then with each provocation.

The answer must be the same each time. All frames that the engine sends are checked against the rules for frames.

A provocation is a fault that a strict server injects, one for each run of an engine's query.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foldflight.errors import FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange.frames import Barrier, Chunk, Frame, Log, Results
from foldflight.ext.conformance.raw import BrokenError, NotTriedError, Outcome, Rule
from foldflight.ext.conformance.strict import (
    ENGINE_FRAME_RULES,
    LIMITS,
    LostError,
    ObservedExchange,
    Provocation,
    Record,
    StrictServer,
)
from foldflight.fold.pickles import StateSigner
from foldflight.functions import LogRecord, Registry

# Field 1000, a varint: stands for a field of a later version of the protocol.
_UNKNOWN: Final = b"\xc0\x3e\x07"


class RefusedOpening(Provocation):
    """Refuses the first exchanges with an error."""

    def __init__(self, error: FoldflightError | LostError, times: int) -> None:
        self._error = error
        self._times = times

    def opening(self, record: Record) -> None:
        if record.provoked < self._times:
            record.provoke()
            raise self._error


class RequestedReopen(Provocation):
    """Sets `reopen` in all results."""

    def answers(self, reply: Frame, observation: ObservedExchange) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observation.record.provoke()
            yield replace(reply, reopen=True)
        else:
            yield reply

    def before(self, frame: Frame, observation: ObservedExchange) -> None:
        # The engine may have sent the first barrier before it read the results.
        if isinstance(frame, Barrier) and (observation.barriers_after_reopen or 0) > 1:
            observation.record.breach("reopen", "the engine sent two more barriers after results with `reopen`")


class LossAtChunk(Provocation):
    """Ends the connection after the first chunk with rows."""

    def after(self, frame: Frame, observation: ObservedExchange) -> None:
        if isinstance(frame, Chunk) and frame.batch.num_rows and observation.record.provoke_once():
            raise LostError


class LossAtBarrier(Provocation):
    """Ends the connection at the second barrier of the run, when the engine has states to load again."""

    def after(self, frame: Frame, observation: ObservedExchange) -> None:
        if isinstance(frame, Barrier) and observation.record.seen["Barrier"] > 1 and observation.record.provoke_once():
            raise LostError


class SplitResults(Provocation):
    """Sends results in parts of one row. With `loses` it ends the connection after the first part."""

    def __init__(self, *, loses: bool) -> None:
        self._loses = loses

    def answers(self, reply: Frame, observation: ObservedExchange) -> Iterator[Frame]:
        if not isinstance(reply, Results) or reply.batch.num_rows < 2:
            yield reply
            return
        is_first = observation.record.provoke_once()
        rows = reply.batch.num_rows
        for row in range(rows):
            is_last = reply.last and row == rows - 1
            yield replace(reply, batch=reply.batch.slice(row, 1), last=is_last, reopen=reply.reopen and is_last)
            if is_first and self._loses:
                raise LostError


class UnknownField(Provocation):
    """Adds an unknown field to every message."""

    def metadata(self, metadata: bytes, record: Record) -> bytes:
        record.provoke()
        return metadata + _UNKNOWN


class LogFlood(Provocation):
    """Sends more log records before results than the buffers of the connection hold."""

    def answers(self, reply: Frame, observation: ObservedExchange) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observation.record.provoke()
            yield Log(tuple(LogRecord("info", "", "x" * 2048, {"line": str(line)}) for line in range(1000)))
        yield reply


class SmallMessages(Provocation):
    """Announces a message_bytes_max that is smaller than the engine's largest message so far."""

    def __init__(self, bound: int) -> None:
        self.limits = replace(LIMITS, message_bytes_max=bound)

    def opening(self, record: Record) -> None:
        record.provoke()


class SilentBarrier(Provocation):
    """Does not answer one barrier until the engine has opened another exchange."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s

    def after(self, frame: Frame, observation: ObservedExchange) -> None:
        if isinstance(frame, Barrier) and observation.record.provoke_once():
            if not observation.record.await_open(self._silence_s):
                observation.record.breach("silence", f"the engine was still waiting after {self._silence_s:g} s")
            raise LostError


class FailedBarriers(Provocation):
    """Answers every barrier with an error that is not retryable."""

    def __init__(self, error: RejectedError | FunctionError) -> None:
        self._error = error

    def after(self, frame: Frame, observation: ObservedExchange) -> None:
        if isinstance(frame, Barrier):
            observation.record.provoke()
            observation.record.note_refusal()
            raise self._error


_MARK: Final = "deliberately refused by the conformance kit"
_SIGNER: Final = StateSigner([b"the key of the conformance kit only"])
# A smaller bound on messages cannot be tested, because headers alone need some of it.
_MESSAGE_BYTES_MIN: Final = 16 * 1024
_EPOCHS_MIN: Final = 3


@dataclass(frozen=True)
class _Run:
    """One run of the query.

    Args:
        record: What the server recorded.
        answer: The return value of the query; None if it failed.
        failure: Why the query failed; empty if it succeeded.
    """

    record: Record
    answer: object = None
    failure: str = ""


def _small(calm: Record, _silence_s: float) -> Provocation:
    bound = calm.message_bytes // 2
    if bound < _MESSAGE_BYTES_MIN:
        raise NotTriedError(
            f"the largest message of the query has {calm.message_bytes} bytes; this rule needs one of "
            f"{2 * _MESSAGE_BYTES_MIN} bytes"
        )
    return SmallMessages(bound)


def _check_reopening(calm: Record, _silence_s: float) -> Provocation:
    if calm.seen["Barrier"] < _EPOCHS_MIN * calm.seen["Open"]:
        raise NotTriedError(f"the query has fewer than {_EPOCHS_MIN} epochs in an exchange")
    return RequestedReopen()


@dataclass(frozen=True)
class _Trial:
    """A rule, and the provocation that tests it.

    Args:
        rule: The rule.
        make: Returns the provocation, given the record of the undisturbed run and the longest silence in seconds, or
            raises NotTriedError.
        is_final: Whether the query must fail without another attempt.
    """

    rule: Rule
    make: Callable[[Record, float], Provocation]
    is_final: bool = False


_ELSEWHERE: Final = f"{_MARK}: open the exchange again, here or elsewhere"
_TRIALS: Final = (
    _Trial(
        Rule(
            "overloaded",
            "If an exchange is refused with RetryableError OVERLOADED, the engine opens it on another server, or "
            "later.",
            "Decide by the class RetryableError, not by codes: try another server, or wait.",
        ),
        lambda *_: RefusedOpening(RetryableError("OVERLOADED", _ELSEWHERE), 2),
    ),
    _Trial(
        Rule(
            "draining",
            "If an exchange is refused with RetryableError DRAINING, the engine opens it on another server, or later.",
            "Decide by the class RetryableError, not by codes: try another server, or wait.",
        ),
        lambda *_: RefusedOpening(RetryableError("DRAINING", _ELSEWHERE), 1),
    ),
    _Trial(
        Rule(
            "lost-at-open",
            "If the connection is lost before Opened (gRPC's UNAVAILABLE, without an Error), the engine opens the "
            "exchange on another server, or later.",
            "Treat a Flight error without extra_info as a lost server if its status is UNAVAILABLE, CANCELLED or "
            "INTERNAL.",
        ),
        lambda *_: RefusedOpening(LostError(), 1),
    ),
    _Trial(
        Rule(
            "lost-within-epoch",
            "If the connection is lost within an epoch, the engine opens another exchange, loads the states of the "
            "last barrier, sends the later frames again, and continues. No row is lost or counted twice.",
            "Keep the frames of an epoch until its results, or the states of a checkpoint, have arrived.",
        ),
        lambda *_: LossAtChunk(),
    ),
    _Trial(
        Rule(
            "lost-before-results",
            "If the connection is lost after a barrier and before its results, the engine loads the states of the "
            "barrier before, and sends the epoch with its barrier again.",
            "Keep the last state from Results for each slot in use.",
        ),
        lambda *_: LossAtBarrier(),
    ),
    _Trial(
        Rule(
            "lost-within-results",
            "If the connection is lost before the last part of the results, the engine drops the parts that it has.",
            "Store the states of an epoch when its last part has arrived, all at once.",
        ),
        lambda *_: SplitResults(loses=True),
    ),
    _Trial(
        Rule(
            "results-in-parts",
            "Results may come in several parts. They are complete with the part that has `last` set.",
            "Collect the parts of an epoch until `last`.",
        ),
        lambda *_: SplitResults(loses=False),
    ),
    _Trial(
        Rule(
            "reopen",
            "After results with `reopen` the engine closes its direction of the stream, and continues in another "
            "exchange with the states that it has.",
            "Half-close after the last part, open another exchange, and send States before the next chunk.",
        ),
        _check_reopening,
    ),
    _Trial(
        Rule(
            "small-messages",
            "The bounds of Opened apply to that exchange: no message exceeds its message_bytes_max, even if it is "
            "small.",
            "Split chunks and states after Opened has arrived.",
        ),
        _small,
    ),
    _Trial(
        Rule(
            "unknown-fields",
            "The engine ignores unknown fields.",
            "Use a protobuf parser that skips unknown fields.",
        ),
        lambda *_: UnknownField(),
    ),
    _Trial(
        Rule(
            "logs",
            "Log frames may come before any answer. An engine that does not use them ignores them.",
            "Skip Log frames wherever an answer is awaited.",
        ),
        lambda *_: LogFlood(),
    ),
    _Trial(
        Rule(
            "silence",
            "The engine has a deadline for each answer. When it expires, the engine treats the server as lost.",
            "Set a deadline for each read and write, and cancel the stream when it expires.",
        ),
        lambda _, silence_s: SilentBarrier(silence_s),
    ),
    _Trial(
        Rule(
            "rejected",
            "A RejectedError ends the query with its message, without another attempt.",
            "Retry only RetryableError. Show code and message of other errors.",
        ),
        lambda *_: FailedBarriers(RejectedError("LIMIT", _MARK)),
        is_final=True,
    ),
    _Trial(
        Rule(
            "function-error",
            "A FunctionError ends the query with its message, without another attempt.",
            "Retry only RetryableError. Show code, function, message and trace of other errors.",
        ),
        lambda *_: FailedBarriers(FunctionError("USER_CODE", _MARK)),
        is_final=True,
    ),
)
_CALM: Final = Rule(
    "baseline",
    "The query succeeds on a server without faults, and returns the same answer when it is run again.",
    "Run the query against `foldflight serve` first, and sort its output.",
)
# The frame that must have been seen in any run for a rule to count as tested.
_NEEDED: Final = {
    "open": "Open",
    "frames": "Chunk",
    "polite-end": "Open",
    "epochs": "Barrier",
    "slots": "Chunk",
    "kinds": "Chunk",
    "state-identity": "States",
    "message-size": "Chunk",
    "reads-answers": "Barrier",
}
ENGINE_RULES: Final = (_CALM, *(trial.rule for trial in _TRIALS), *ENGINE_FRAME_RULES.values())


def check_engine(
    query: Callable[[str], object],
    modules: Sequence[str] = (),
    *,
    timeout_s: float = 120.0,
    silence_s: float = 60.0,
) -> Iterator[Outcome]:
    """Run an engine's query against strict servers, and report which rules it keeps.

    Args:
        query: Runs the query against the server at a URL and returns its answer, a value that supports `==` and has a
            fixed order. It raises if the query fails. It is called in a thread. A query with at least three epochs over
            a few groups, each of which gets rows in every epoch, tests most rules.
        modules: Modules with functions, in addition to the built-in ones.
        timeout_s: Longest time for one run.
        silence_s: How long the server does not answer when the engine's deadline is tested. It must be longer than
            that deadline.

    Yields:
        The outcome of each rule, in the order of `ENGINE_RULES`.

    Raises:
        RejectedError: MODULE, if a module cannot be imported or has no function; SIGNATURE, if two functions have the
            same name.
    """
    registry = Registry.load(modules) if modules else Registry()
    detail_by_rule: dict[str, str] = {}
    messages: Counter[str] = Counter()

    def run(provocation: Provocation) -> _Run:
        result = _run(query, registry, provocation, timeout_s)
        if result.failure:  # an engine that fails may cancel its stream
            result.record.broken.pop("polite-end", None)
        messages.update(result.record.seen)
        for name, detail in result.record.broken.items():
            if name in ENGINE_FRAME_RULES:
                detail_by_rule.setdefault(name, detail)
        return result

    calm = run(Provocation())
    again = calm if calm.failure else run(Provocation())
    outcome = _outcome(_CALM, lambda: _judge_calm(calm, again))
    yield outcome
    for trial in _TRIALS:
        if outcome.passed:
            yield _outcome(trial.rule, lambda trial=trial: _judge(trial, calm, run(trial.make(calm.record, silence_s))))  # type: ignore[misc]
        else:
            yield Outcome(trial.rule, None, "the query fails without any provocation")
    for name, rule in ENGINE_FRAME_RULES.items():
        if name in detail_by_rule:
            yield Outcome(rule, False, detail_by_rule[name])
        elif not messages[_NEEDED[name]]:
            yield Outcome(rule, None, f"the engine sent no {_NEEDED[name]}")
        else:
            yield Outcome(rule, True)


def _run(query: Callable[[str], object], registry: Registry, provocation: Provocation, timeout_s: float) -> _Run:
    answers: list[object] = []
    failures: list[str] = []

    def ask(url: str) -> None:
        try:
            answers.append(query(url))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a query may fail with any exception
            failures.append(f"{type(error).__name__}: {error}")

    with StrictServer(registry, provocation, signer=_SIGNER) as server:
        query_thread = threading.Thread(
            target=ask, args=(server.url,), name="foldflight-conformance-query", daemon=True
        )
        query_thread.start()
        query_thread.join(timeout_s)
        server.record.settle()
        if query_thread.is_alive():
            return _Run(server.record, failure=f"it did not end within {timeout_s:g} s")
    if failures:
        return _Run(server.record, failure=failures[0])
    return _Run(server.record, answers[0])


def _outcome(rule: Rule, judge: Callable[[], None]) -> Outcome:
    try:
        judge()
    except NotTriedError as reason:
        return Outcome(rule, None, str(reason))
    except BrokenError as error:
        return Outcome(rule, False, str(error))
    return Outcome(rule, True)


def _judge_calm(calm: _Run, again: _Run) -> None:
    for each in (calm, again):
        _judge_run(each)
        if not each.record.seen["Barrier"]:
            raise BrokenError("the query sent no barrier to the server at the given URL")
    if calm.answer != again.answer:
        raise BrokenError(f"two runs gave different answers: {_text_of(calm.answer)} and {_text_of(again.answer)}")


def _judge(trial: _Trial, calm: _Run, run: _Run) -> None:
    if not run.record.provoked:
        raise NotTriedError("this query did not reach the point of the provocation")
    if trial.rule.name in run.record.broken:
        raise BrokenError(run.record.broken[trial.rule.name])
    if trial.is_final:
        _judge_final(calm, run)
        return
    _judge_run(run)
    if run.answer != calm.answer:
        raise BrokenError(f"the answer is {_text_of(run.answer)}, and without the provocation {_text_of(calm.answer)}")


def _judge_run(run: _Run) -> None:
    """Raise BrokenError if the query failed, or NotTriedError if it also broke a rule for frames."""
    broken_rules = [name for name in run.record.broken if name in ENGINE_FRAME_RULES]
    if run.failure and broken_rules:
        raise NotTriedError(f"the query failed, and it broke the rules {', '.join(broken_rules)}")
    if run.failure:
        raise BrokenError(f"the query failed: {run.failure}")


def _judge_final(calm: _Run, run: _Run) -> None:
    if not run.failure:
        raise BrokenError(f"the query did not fail; it answered {_text_of(run.answer)}")
    if _MARK not in run.failure:
        raise BrokenError(f"the failure does not show the message of the error ({_MARK}): {run.failure[:300]}")
    # Exchanges that run at the same time may have been about to open.
    if run.record.opens_after_error >= max(calm.record.seen["at once"], 1):
        raise BrokenError(f"{run.record.opens_after_error} exchanges were opened after the error")


def _text_of(answer: object) -> str:
    text = repr(answer)
    return text if len(text) <= 200 else text[:200] + "..."
