"""The connection of an exchange to one server: it writes frames, splits large ones, and reads complete answers.

A message is sent only after all answers to earlier messages have been read. Otherwise the server could block on writing
an answer while the engine blocks on writing a chunk. So the answer to at most one message is due.
"""

from __future__ import annotations

import abc
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.client.client_logs import set_up_logger
from foldflight.errors import RejectedError, RetryableError
from foldflight.exchange.frames import (
    SLOT_BYTES,
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Folded,
    Forget,
    Frame,
    Log,
    Mapped,
    Open,
    Opened,
    Results,
    SavedStates,
    States,
    Wanted,
)
from foldflight.exchange.ipc import arrays_in
from foldflight.exchange.transitions import Answer, EngineExchange, Role
from foldflight.exchange.view_columns import split_entries
from foldflight.fold.mode import Mode
from foldflight.fold.rows import ROW
from foldflight.functions.author.context import LogRecord
from foldflight.functions.types.arrow import concat_batches

Resolve: TypeAlias = "Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]"
"""Answers a question for entries of views: `slot` and the states with keys, to states with the entries."""

# Bytes of a message beside the data of its columns: offsets, validity, headers.
_OVERHEAD_BYTES = 16 * 1024
# Size of a slot in Forget: a number of 31 bits as a varint.
_FORGOTTEN_BYTES = 5
_ENGINE = Role.ENGINE


def check_resolve(open_request: Open, resolve: Resolve | None) -> None:
    """Raise RejectedError SIGNATURE unless there is a `resolve` exactly if the engine keeps views."""
    if open_request.keeps_views != (resolve is not None):
        raise RejectedError(
            "SIGNATURE", "`resolve` is needed if Open has keeps_views, and only then; give both or none"
        )


class Connection(abc.ABC):
    """The connection of an exchange to one server. A subclass transports the frames.

    After an error the connection is unusable: `cut` it.

    Args:
        open_request: The Open frame of the exchange.
        resolve: Answers the questions of the server for entries of views; needed if Open has `keeps_views`.

    Attributes:
        open_reply: The Opened frame of the server.
        unresolved: The error that `resolve` raised, if it did. It is the engine's own, not one of the server.
        reopen: Whether the server requests that the engine reopen the exchange elsewhere.
    """

    open_reply: Opened

    def __init__(self, open_request: Open, resolve: Resolve | None = None) -> None:
        self.unresolved: BaseException | None = None
        self.reopen = False
        self._resolve = resolve
        self._engine = EngineExchange(open_request)
        self._functions = open_request.functions
        self._modes: Sequence[Mode | None] = ()
        self._row_bytes = open_request.row_bytes
        self._arrays = arrays_in(open_request.columns)
        self._has_slots = not open_request.maps
        self._has_failed = False  # an error occurred, so the exchange is cancelled and not ended in the regular way
        self._is_closed = False
        self._part_bytes_max: int
        self._parts: list[EngineFrame] = []  # the messages of the frame whose answer is due
        self._answers: list[Answer] = []  # the answers to these messages, so far
        self._logs: list[LogRecord] = []

    # -- implemented by subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def _write(self, frame: Frame) -> None:
        """Send a frame, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _read(self) -> Frame | None:
        """Return the next frame, None at the end of the stream, or raise an error of the taxonomy."""

    @abc.abstractmethod
    def _end(self) -> None:
        """Release the resources of the connection. `_has_failed` tells whether the exchange ended with an error."""

    # -- the exchange ------------------------------------------------------------------------------------------------

    def send(self, frame: EngineFrame) -> bool:
        """Send a frame, split into messages within the bound of the server.

        Returns:
            Whether the frame has an answer with content, which `answer` returns. Take it before the next frame.

        Raises:
            FoldflightError: The frame may not be sent now, or the server failed.
        """
        has_answer = False
        for part in (frame,) if self._is_small(frame) else self._split(frame):
            if self._engine.due:
                self._read_due()
            kind = self._engine.step(_ENGINE, part)
            self._write(part)
            if kind is not None and kind is not Folded:
                self._parts.append(part)
                has_answer = True
        return has_answer

    def answer(self) -> Answer:
        """Wait for the answer to the last frame, which must have one. Raises FoldflightError if the server failed."""
        self._read_due()
        parts, self._parts = self._parts, []
        answers, self._answers = self._answers, []
        return answers[0] if len(answers) == 1 else _join_answers(answers, parts)

    def _read_due(self) -> None:
        while self._engine.due:
            self._pull()

    @property
    def modes(self) -> Sequence[Mode | None]:
        """The mode of each call, as the server has last told it."""
        return self._modes

    def take_logs(self) -> list[LogRecord]:
        """Return the log records of functions since the last call."""
        logs, self._logs = self._logs, []
        return logs

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""
        if not self._is_closed:
            self._is_closed = True
            self._end()

    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""
        self._has_failed = True
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Read Opened, the first frame."""
        frame = self._next()[0]
        if not isinstance(frame, Opened):
            raise RejectedError("BAD_FRAME", f"the first reply was {type(frame).__name__}, not Opened")
        self.open_reply, self._modes = frame, frame.modes
        # Bytes of a batch in a message within the bound of the server.
        self._part_bytes_max = max(frame.limits.message_bytes_max - _OVERHEAD_BYTES, 1)

    def _pull(self) -> None:
        frame, answer = self._next()
        if isinstance(frame, Log):
            self._logs.extend(frame.records)
        elif isinstance(frame, (Results, SavedStates, Mapped)):
            self.reopen = self.reopen or frame.reopen
            if isinstance(frame, Results) and len(frame.modes) == len(self._modes):
                self._change_modes(frame.modes)
        elif isinstance(frame, Wanted):
            for entries in self._entries_for(frame):
                self._write(entries)
        if answer is not None:
            self._answers.append(answer)

    def _change_modes(self, modes: Sequence[Mode | None]) -> None:
        """Remember how calls are folded from now on, and log which of them have become slower."""
        for function, old, new in zip(self._functions, self._modes, modes, strict=True):
            if old in (Mode.COMPILED, Mode.VECTORISED) and new is Mode.INTERPRETED:
                _tell_left(function, old)
        self._modes = modes

    def _entries_for(self, question: Wanted) -> Iterator[Entries]:
        """Yield the answer to a question of the server, in messages within its bound.

        Raises:
            RejectedError: BAD_FRAME, if the engine cannot be asked.
            Exception: The error of `resolve`, which is kept in `unresolved`.
        """
        if self._resolve is None:
            raise RejectedError("BAD_FRAME", "the server asks for entries of views, and this engine keeps none")
        names = [name for name in question.batch.schema.names if name == "slot" or name.startswith("state_")]
        try:
            batches = list(self._resolve(question.batch.select(names)))
        except BaseException as error:
            self.unresolved = error
            raise
        parts = [part for batch in batches for part in self._split_entries(batch)]
        parts = parts or [question.batch.select(names).slice(0, 0)]
        for number, part in enumerate(parts, 1):
            frame = Entries(part, last=number == len(parts))
            self._engine.step(_ENGINE, frame)
            yield frame

    def _next(self) -> tuple[Frame, Answer | None]:
        frame = self._read()
        if frame is None:
            raise RetryableError("UNREACHABLE", "the server ended the exchange before it sent all answers")
        return frame, self._engine.receive(frame)

    def _split_entries(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield entries in parts within the bound of the server, also the entries of one slot."""
        names = batch.schema.names
        views = [call.views if f"state_{index}" in names else () for index, call in enumerate(self.open_reply.calls)]
        for part in _slices(batch, self._part_bytes_max):
            yield from split_entries(part, views, self._part_bytes_max)

    def _split(self, frame: EngineFrame) -> Iterator[EngineFrame]:
        """Yield a frame in parts within the bound of the server. Splitting a chunk does not change the result."""
        part_bytes_max = self._part_bytes_max
        match frame:
            case States():
                for batch in self._fitting_parts(_slices(frame.batch, part_bytes_max)):
                    yield States(batch, unanswered=frame.unanswered)
            case Entries():
                # The first part of a view may say that these are all entries, so it comes last.
                for batch in reversed(list(self._split_entries(frame.batch))):
                    yield Entries(batch, last=frame.last)
            case Chunk():
                yield from map(Chunk, self._fitting_parts(_slices(frame.batch, part_bytes_max)))
            case Forget():
                size = max(part_bytes_max // _FORGOTTEN_BYTES, 1)
                for start in range(0, len(frame.slots), size):
                    yield Forget(frame.slots.slice(start, size))
            case _:
                raise AssertionError(f"{type(frame).__name__} is not sent to an open exchange")

    def _fitting_parts(self, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield parts that fit into a message. Raises an error with the slot of a row that does not fit."""
        bytes_max = self.open_reply.limits.message_bytes_max
        for part in parts:
            if part.num_rows == 1 and part.nbytes > bytes_max:
                raise RejectedError(
                    "LIMIT",
                    f"one row of arguments or state has {part.nbytes} bytes, and message_bytes_max is {bytes_max}; "
                    "shorten its values, leave them out by a FILTER, or raise the setting of the servers",
                    slot=part.column("slot")[0].as_py() if self._has_slots else None,
                    limit="message_bytes_max",
                )
            yield part

    def _is_small(self, frame: EngineFrame) -> bool:
        """Return whether a frame certainly fits into a message. This check is cheaper than to measure its parts."""
        if type(frame) is not Chunk:
            return isinstance(frame, (Barrier, Checkpoint))
        batch, bytes_max = frame.batch, self._part_bytes_max
        if self._row_bytes is not None:
            return batch.num_rows * max(self._row_bytes, SLOT_BYTES) <= bytes_max
        # Arrays may share a buffer, and a message contains one copy of it for each array.
        return self._arrays * batch.get_total_buffer_size() <= bytes_max and batch.num_rows * SLOT_BYTES <= bytes_max


@functools.cache
def _tell_left(function: str, mode: Mode) -> None:
    """Log, once in a process, that a function left compiled code and has become slower."""
    set_up_logger("foldflight.client", logging.WARNING).warning(
        "%s is interpreted now and no longer %s, because of values such as a sum beyond 64 bits: it is slower, and the "
        "results are the same",
        function,
        mode,
    )


def _join_answers(answers: Sequence[Any], parts: Sequence[EngineFrame]) -> Answer:
    """Return the answers to the parts of one frame as the answer to the frame."""
    if isinstance(answers[0], pa.RecordBatch):
        return concat_batches(answers)
    if ROW not in answers[0].column_names:
        return pa.concat_tables(answers)
    shifted_answers, start = [], 0
    for answer, part in zip(answers, parts, strict=True):
        rows = pc.add(answer.column(ROW), pa.scalar(start, pa.int32()))
        shifted_answers.append(answer.set_column(0, answer.schema.field(ROW), rows))
        start += part.batch.num_rows if isinstance(part, Chunk) else 0
    return pa.concat_tables(shifted_answers)


def _slices(batch: pa.RecordBatch, part_bytes_max: int) -> Iterator[pa.RecordBatch]:
    # A row without columns also needs memory on the server, for its slot.
    pieces = -(-max(batch.nbytes, batch.num_rows * SLOT_BYTES) // part_bytes_max)
    if pieces <= 1 or batch.num_rows <= 1:
        yield batch
        return
    size = max(batch.num_rows // (pieces + 1), 1)
    for start in range(0, batch.num_rows, size):
        part = batch.slice(start, size)
        if part.nbytes > part_bytes_max and part.num_rows > 1:  # rows of unequal size
            yield from _slices(part, part_bytes_max)
        else:
            yield part
