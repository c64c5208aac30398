"""What a strict server does on purpose: one provocation for each run of an engine's query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Frame, Log, Results
from foldflight.functions import LogRecord
from foldflight.testing.conformance.strict import LIMITS, LostError, Provocation
from foldflight.testing.conformance.watching import Observed, Record

__all__ = [
    "Failing",
    "Logging",
    "LosingBarrier",
    "LosingChunk",
    "Parts",
    "Refusing",
    "Reopening",
    "Silent",
    "Small",
    "Unknown",
]

# Field 1000, a varint: what a later version of a message may have.
_UNKNOWN: Final = b"\xc0\x3e\x07"


class Refusing(Provocation):
    """Takes none of the first exchanges."""

    def __init__(self, error: FoldflightError | LostError, times: int) -> None:
        self._error = error
        self._times = times

    def opening(self, record: Record) -> None:
        if record.provoked < self._times:
            record.provoke()
            raise self._error


class Reopening(Provocation):
    """Asks with all results to go elsewhere."""

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observed.record.provoke()
            yield replace(reply, reopen=True)
        else:
            yield reply

    def before(self, frame: Frame, observed: Observed) -> None:
        # The first barrier may have been on its way when the results were.
        if isinstance(frame, Barrier) and (observed.barriers_after_reopen or 0) > 1:
            observed.record.breach("reopen", "two more barriers came after results that said `reopen`")


class LosingChunk(Provocation):
    """Loses the connection once rows were folded."""

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Chunk) and frame.batch.num_rows and observed.record.provoke_once():
            raise LostError


class LosingBarrier(Provocation):
    """Loses the connection at a later barrier of the run, when there are states to load again."""

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier) and observed.record.seen["Barrier"] > 1 and observed.record.provoke_once():
            raise LostError


class Parts(Provocation):
    """Sends results row by row; loses the connection after the first of them, if told."""

    def __init__(self, *, loses: bool) -> None:
        self._loses = loses

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:
        if not isinstance(reply, Results) or reply.batch.num_rows < 2:
            yield reply
            return
        is_first = observed.record.provoke_once()
        rows = reply.batch.num_rows
        for row in range(rows):
            is_last = reply.last and row == rows - 1
            yield replace(reply, batch=reply.batch.slice(row, 1), last=is_last, reopen=reply.reopen and is_last)
            if is_first and self._loses:
                raise LostError


class Unknown(Provocation):
    """Adds a field of a later version to every message."""

    def metadata(self, metadata: bytes, record: Record) -> bytes:
        record.provoke()
        return metadata + _UNKNOWN


class Logging(Provocation):
    """Sends more before results than the buffers on the way hold."""

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observed.record.provoke()
            yield Log(tuple(LogRecord("info", "", "x" * 2048, {"line": str(line)}) for line in range(1000)))
        yield reply


class Small(Provocation):
    """Announces a bound that the engine's largest message does not keep."""

    def __init__(self, bound: int) -> None:
        self.limits = replace(LIMITS, message_bytes_max=bound)

    def opening(self, record: Record) -> None:
        record.provoke()


class Silent(Provocation):
    """Answers one barrier with nothing, until the engine has gone elsewhere."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier) and observed.record.provoke_once():
            if not observed.record.await_open(self._silence_s):
                observed.record.breach("silence", f"the engine still waited after {self._silence_s:g} s")
            raise LostError


class Failing(Provocation):
    """Answers every barrier with an error that no other server would mend."""

    def __init__(self, error: RejectedError | FunctionError) -> None:
        self._error = error

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier):
            observed.record.provoke()
            observed.record.refusing()
            raise self._error
