"""Check an engine: run its query against a strict server, first in peace and then under each provocation.

The answer must be the same each time. What the engine sends on the way is held against the rules for frames.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from foldflight.errors import FunctionError, RejectedError, RetryableError
from foldflight.fold import StateSigner
from foldflight.functions import Registry
from foldflight.testing.conformance.provocations import (
    Failing,
    Logging,
    LosingBarrier,
    LosingChunk,
    Parts,
    Refusing,
    Reopening,
    Silent,
    Small,
    Unknown,
)
from foldflight.testing.conformance.rules import BrokenError, NotTriedError, Outcome, Rule
from foldflight.testing.conformance.strict import LostError, Provocation, StrictServer
from foldflight.testing.conformance.watching import ENGINE_FRAME_RULES, Record

__all__ = ["ENGINE_RULES", "check_engine"]

_MARK: Final = "refused on purpose by the conformance kit"
_SIGNER: Final = StateSigner([b"the key of the conformance kit only"])
# Below this a bound on messages says nothing about an engine: headers alone need some of it.
_MESSAGE_BYTES_MIN: Final = 16 * 1024
_EPOCHS_MIN: Final = 3


@dataclass(frozen=True)
class _Run:
    """One run of the query.

    Args:
        record: What the server saw.
        answer: What the query returned; None where it failed.
        failure: Why it failed; empty where it did not.
    """

    record: Record
    answer: object = None
    failure: str = ""


def _small(calm: Record, _silence_s: float) -> Provocation:
    bound = calm.message_bytes // 2
    if bound < _MESSAGE_BYTES_MIN:
        raise NotTriedError(
            f"the largest message of the query has {calm.message_bytes} bytes; one of {2 * _MESSAGE_BYTES_MIN} is "
            "needed"
        )
    return Small(bound)


def _reopening(calm: Record, _silence_s: float) -> Provocation:
    if calm.seen["Barrier"] < _EPOCHS_MIN * calm.seen["Open"]:
        raise NotTriedError(f"the query has fewer than {_EPOCHS_MIN} epochs for each exchange")
    return Reopening()


@dataclass(frozen=True)
class _Trial:
    """One run under a provocation, and the rule that it tries.

    Args:
        rule: The rule.
        make: Makes the provocation from what was seen in peace and the longest silence, or raises NotTriedError.
        is_final: Whether the query must fail, at once.
    """

    rule: Rule
    make: Callable[[Record, float], Provocation]
    is_final: bool = False


_ELSEWHERE: Final = f"{_MARK}: open the exchange again, here or elsewhere"
_TRIALS: Final = (
    _Trial(
        Rule(
            "overloaded",
            "An exchange that is refused with RetryableError OVERLOADED is opened again, elsewhere or a little later.",
            "Treat the class RetryableError, not single codes, as: another server, or later.",
        ),
        lambda *_: Refusing(RetryableError("OVERLOADED", _ELSEWHERE), 2),
    ),
    _Trial(
        Rule(
            "draining",
            "The same for DRAINING.",
            "Treat the class RetryableError, not single codes, as: another server, or later.",
        ),
        lambda *_: Refusing(RetryableError("DRAINING", _ELSEWHERE), 1),
    ),
    _Trial(
        Rule(
            "lost-at-open",
            "A connection that is lost before Opened (gRPC's UNAVAILABLE, without an Error) is as OVERLOADED.",
            "Treat a Flight error without extra_info whose status is UNAVAILABLE, CANCELLED or INTERNAL as a lost "
            "server.",
        ),
        lambda *_: Refusing(LostError(), 1),
    ),
    _Trial(
        Rule(
            "lost-within-epoch",
            "After a loss the engine opens another exchange, loads the states of the last barrier, sends the "
            "frames since once more, and goes on: no row is lost, none counts twice.",
            "Keep the frames since the last barrier until its results, or a checkpoint's states, are in.",
        ),
        lambda *_: LosingChunk(),
    ),
    _Trial(
        Rule(
            "lost-before-results",
            "The same for a loss after a barrier: the states are those of the barrier before, and the barrier is "
            "sent again.",
            "Keep the states that Results brought, one for each slot that is still in use.",
        ),
        lambda *_: LosingBarrier(),
    ),
    _Trial(
        Rule(
            "lost-within-results",
            "Results of which only some parts have come are dropped with the connection.",
            "Take the states of an epoch over when its last part is in, all at once.",
        ),
        lambda *_: Parts(loses=True),
    ),
    _Trial(
        Rule(
            "results-in-parts",
            "Results are complete with the part that says `last`.",
            "Gather the parts of an epoch.",
        ),
        lambda *_: Parts(loses=False),
    ),
    _Trial(
        Rule(
            "reopen",
            "After results that say `reopen` the engine ends the exchange politely, and goes on in another with "
            "the states that it has.",
            "Half-close after the last part, open again, and send States before the next chunk.",
        ),
        _reopening,
    ),
    _Trial(
        Rule(
            "small-messages",
            "The bounds of Opened hold for each exchange anew: messages stay within message_bytes_max, however small.",
            "Cut chunks and states after Opened has come.",
        ),
        _small,
    ),
    _Trial(
        Rule(
            "unknown-fields",
            "Fields that the engine does not know are ignored.",
            "Use a protobuf parser that skips what it does not know.",
        ),
        lambda *_: Unknown(),
    ),
    _Trial(
        Rule(
            "logs",
            "Log frames may come before any answer; an engine that has no use for them reads and drops them.",
            "Skip Log wherever an answer is awaited.",
        ),
        lambda *_: Logging(),
    ),
    _Trial(
        Rule(
            "silence",
            "A server that does not answer is left: the engine has a deadline for each answer, then it is a loss.",
            "Watch every read and write, and cancel the stream when the deadline has passed.",
        ),
        lambda _, silence_s: Silent(silence_s),
    ),
    _Trial(
        Rule(
            "rejected",
            "A RejectedError ends the query at once, with its message: it is tried nowhere else.",
            "Retry RetryableError only, and show code and message of the others.",
        ),
        lambda *_: Failing(RejectedError("LIMIT", _MARK)),
        is_final=True,
    ),
    _Trial(
        Rule(
            "function-error",
            "A FunctionError ends the query at once, with its message: it is tried nowhere else.",
            "Retry RetryableError only, and show code, function, message and trace of the others.",
        ),
        lambda *_: Failing(FunctionError("USER_CODE", _MARK)),
        is_final=True,
    ),
)
_CALM: Final = Rule(
    "peace",
    "The query runs, and gives the same answer twice, on a server that does nothing odd.",
    "Run the query against `foldflight serve` first, and sort what it prints.",
)
# Whether a rule for frames was tried: by what was seen in any run.
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
    """Run an engine's query against strict servers, and tell which rules it keeps.

    Args:
        query: Runs the query against the server at a URL, and returns its answer: something that can be compared, in an
            order that is always the same; raises where the query fails. It is run in a thread. A query of three epochs
            or more over a few groups, to which each epoch adds rows, tries most.
        modules: Modules with functions, beside the built-in ones.
        timeout_s: Longest time for one run.
        silence_s: How long a server stays silent, where a deadline is tried; more than the engine's own deadline.

    Yields:
        The outcome of each rule, in the order of `ENGINE_RULES`.
    """
    registry = Registry.load(modules) if modules else Registry()
    broken: dict[str, str] = {}
    seen: Counter[str] = Counter()

    def run(provocation: Provocation) -> _Run:
        done = _run(query, registry, provocation, timeout_s)
        if done.failure:  # who fails may hang up
            done.record.broken.pop("polite-end", None)
        seen.update(done.record.seen)
        for name, detail in done.record.broken.items():
            if name in ENGINE_FRAME_RULES:
                broken.setdefault(name, detail)
        return done

    calm = run(Provocation())
    again = calm if calm.failure else run(Provocation())
    outcome = _outcome(_CALM, lambda: _judge_calm(calm, again))
    yield outcome
    for trial in _TRIALS:
        if outcome.passed:
            yield _outcome(trial.rule, lambda trial=trial: _judge(trial, calm, run(trial.make(calm.record, silence_s))))  # type: ignore[misc]
        else:
            yield Outcome(trial.rule, None, "the query does not run in peace")
    for name, rule in ENGINE_FRAME_RULES.items():
        if name in broken:
            yield Outcome(rule, False, broken[name])
        elif not seen[_NEEDED[name]]:
            yield Outcome(rule, None, f"the engine sent no {_NEEDED[name]}")
        else:
            yield Outcome(rule, True)


def _run(query: Callable[[str], object], registry: Registry, provocation: Provocation, timeout_s: float) -> _Run:
    answers: list[object] = []
    failures: list[str] = []

    def ask(url: str) -> None:
        try:
            answers.append(query(url))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is how the query failed
            failures.append(f"{type(error).__name__}: {error}")

    with StrictServer(registry, provocation, signer=_SIGNER) as server:
        asking = threading.Thread(target=ask, args=(server.url,), name="foldflight-conformance-query", daemon=True)
        asking.start()
        asking.join(timeout_s)
        server.record.settle()
        if asking.is_alive():
            return _Run(server.record, failure=f"it did not end within {timeout_s:g} s")
    if failures:
        return _Run(server.record, failure=failures[0])
    return _Run(server.record, answers[0])


def _outcome(rule: Rule, judge: Callable[[], None]) -> Outcome:
    try:
        judge()
    except NotTriedError as reason:
        return Outcome(rule, None, str(reason))
    except BrokenError as broken:
        return Outcome(rule, False, str(broken))
    return Outcome(rule, True)


def _judge_calm(calm: _Run, again: _Run) -> None:
    for each in (calm, again):
        _judge_run(each)
        if not each.record.seen["Barrier"]:
            raise BrokenError("the query sent no barrier to the server that it was given")
    if calm.answer != again.answer:
        raise BrokenError(f"two answers: {_shown(calm.answer)} and {_shown(again.answer)}")


def _judge(trial: _Trial, calm: _Run, run: _Run) -> None:
    if not run.record.provoked:
        raise NotTriedError("it did not come to it in this query")
    if trial.rule.name in run.record.broken:
        raise BrokenError(run.record.broken[trial.rule.name])
    if trial.is_final:
        _judge_final(calm, run)
        return
    _judge_run(run)
    if run.answer != calm.answer:
        raise BrokenError(f"another answer than in peace: {_shown(run.answer)} instead of {_shown(calm.answer)}")


def _judge_run(run: _Run) -> None:
    """Raise for a query that failed; a rule for frames that it broke is told by itself."""
    broken = [name for name in run.record.broken if name in ENGINE_FRAME_RULES]
    if run.failure and broken:
        raise NotTriedError(f"the query failed, and it broke {', '.join(broken)}")
    if run.failure:
        raise BrokenError(f"the query failed: {run.failure}")


def _judge_final(calm: _Run, run: _Run) -> None:
    if not run.failure:
        raise BrokenError(f"the query did not fail; it answered {_shown(run.answer)}")
    if _MARK not in run.failure:
        raise BrokenError(f"the failure does not show the message of the error ({_MARK}): {run.failure[:300]}")
    # What runs beside the exchange that failed may have been about to open.
    if run.record.opens_after_error >= max(calm.record.seen["at once"], 1):
        raise BrokenError(f"{run.record.opens_after_error} exchanges were opened after the error")


def _shown(answer: object) -> str:
    text = repr(answer)
    return text if len(text) <= 200 else text[:200] + "..."
