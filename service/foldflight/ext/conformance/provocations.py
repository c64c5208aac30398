"""Provocations: the faults that a strict server injects, one for each run of an engine's query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Frame, Log, Results
from foldflight.ext.conformance.strict import LIMITS, LostError, Provocation
from foldflight.ext.conformance.watching import Observed, Record
from foldflight.functions import LogRecord

# Field 1000, a varint: stands for a field of a later version of the protocol.
_UNKNOWN: Final = b"\xc0\x3e\x07"


class Refusing(Provocation):
    """Refuses the first exchanges with an error."""

    def __init__(self, error: FoldflightError | LostError, times: int) -> None:
        self._error = error
        self._times = times

    def opening(self, record: Record) -> None:
        if record.provoked < self._times:
            record.provoke()
            raise self._error


class Reopening(Provocation):
    """Sets `reopen` in all results."""

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observed.record.provoke()
            yield replace(reply, reopen=True)
        else:
            yield reply

    def before(self, frame: Frame, observed: Observed) -> None:
        # The engine may have sent the first barrier before it read the results.
        if isinstance(frame, Barrier) and (observed.barriers_after_reopen or 0) > 1:
            observed.record.breach("reopen", "the engine sent two more barriers after results with `reopen`")


class LosingChunk(Provocation):
    """Ends the connection after the first chunk with rows."""

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Chunk) and frame.batch.num_rows and observed.record.provoke_once():
            raise LostError


class LosingBarrier(Provocation):
    """Ends the connection at the second barrier of the run, when the engine has states to load again."""

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier) and observed.record.seen["Barrier"] > 1 and observed.record.provoke_once():
            raise LostError


class Parts(Provocation):
    """Sends results in parts of one row. With `loses` it ends the connection after the first part."""

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
    """Adds an unknown field to every message."""

    def metadata(self, metadata: bytes, record: Record) -> bytes:
        record.provoke()
        return metadata + _UNKNOWN


class Logging(Provocation):
    """Sends more log records before results than the buffers of the connection hold."""

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:
        if isinstance(reply, Results) and reply.last:
            observed.record.provoke()
            yield Log(tuple(LogRecord("info", "", "x" * 2048, {"line": str(line)}) for line in range(1000)))
        yield reply


class Small(Provocation):
    """Announces a message_bytes_max that is smaller than the engine's largest message so far."""

    def __init__(self, bound: int) -> None:
        self.limits = replace(LIMITS, message_bytes_max=bound)

    def opening(self, record: Record) -> None:
        record.provoke()


class Silent(Provocation):
    """Does not answer one barrier until the engine has opened another exchange."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier) and observed.record.provoke_once():
            if not observed.record.await_open(self._silence_s):
                observed.record.breach("silence", f"the engine was still waiting after {self._silence_s:g} s")
            raise LostError


class Failing(Provocation):
    """Answers every barrier with an error that is not retryable."""

    def __init__(self, error: RejectedError | FunctionError) -> None:
        self._error = error

    def after(self, frame: Frame, observed: Observed) -> None:
        if isinstance(frame, Barrier):
            observed.record.provoke()
            observed.record.refusing()
            raise self._error
