"""An open exchange for an engine: its operations, and the one place where the answers to them wait.

The interface of transports, which open exchanges, is the same embedded and over Flight. All transports of a process
share its compiled functions, and the number and scope of the task that runs.
"""

from __future__ import annotations

import abc
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from foldflight.client.connection import Connection, Resolve
from foldflight.errors import RejectedError
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Forget,
    FunctionInfo,
    Open,
    Opened,
    States,
)
from foldflight.exchange.transitions import Answer, CheckpointAnswer
from foldflight.fold.accelerator import Accelerator, accelerator_of
from foldflight.fold.mode import Mode
from foldflight.functions.author.context import LogRecord


class OpenExchange(abc.ABC):
    """One open exchange, for an engine. It is a context manager that closes the exchange.

    Every method may raise any error of foldflight. After an error only `close` may be called.

    It has two forms: a `SingleServerExchange` has one connection, and a `FailoverExchange` moves from connection to
    connection.

    Args:
        open_request: The Open frame of the exchange.

    Attributes:
        open_reply: The Opened frame of the current server.
        is_over: Whether the exchange has ended.
        group_of: Returns the keys of a slot, for recordings. An engine that has keys sets it.
    """

    open_reply: Opened

    def __init__(self, open_request: Open) -> None:
        self._open_request = open_request
        # The answers that have arrived and have not been taken, oldest first, with the frames that they answer.
        self._arrived_answers: list[tuple[EngineFrame, Answer]] = []
        self._logs: list[LogRecord] = []
        self._connection: Connection | None = None
        self.is_over = False
        self.group_of: Callable[[int], Mapping[str, Any]] | None = None

    @property
    def opened(self) -> Opened:
        """Return `open_reply`, by its old name."""
        warnings.warn("OpenExchange.opened is now called open_reply", DeprecationWarning, stacklevel=2)
        return self.open_reply

    # -- implemented by subclasses -----------------------------------------------------------------------------------

    @abc.abstractmethod
    def send(self, frame: EngineFrame) -> None:
        """Send the frame of an operation. Answers to earlier ones may arrive meanwhile."""

    @abc.abstractmethod
    def _await_answer(self) -> bool:
        """Wait until another answer has arrived. Return False if none is due."""

    # -- operations --------------------------------------------------------------------------------------------------

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Merge states into slots: columns `slot` int32 and one `state_i` for each call.

        Args:
            batch: n rows. A slot may appear many times. A state for an empty slot is loaded.
            unanswered: Whether the server omits the initial outputs of these slots although Open requests them.
        """
        self.send(States(batch, unanswered=unanswered))

    def entries(self, batch: pa.RecordBatch) -> None:
        """Give entries of views, as of the last barrier or checkpoint, before the rows that use them.

        Args:
            batch: n rows: `slot` int32 and `state_i` for calls with views.
        """
        self.send(Entries(batch))

    def chunk(self, batch: pa.RecordBatch) -> None:
        """Fold the rows of a batch. Its schema is `Open.columns`."""
        self.send(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> None:
        """Drop the accumulators of these slots."""
        self.send(Forget(slots))

    def barrier(self, epoch: int) -> None:
        """End an epoch; the answer is its results. The first epoch has any number, each later one the next number."""
        self.send(Barrier(epoch))

    def checkpoint(self) -> None:
        """Request the states that changed since states were last returned; `saved_states` returns them.

        Only an engine that keeps views needs it: it must commit the entries before it sends another frame.
        """
        if not self._open_request.keeps_views:
            raise RejectedError(
                "BAD_FRAME", "only an engine that keeps views (Open.keeps_views) takes checkpoints itself"
            )
        self.send(Checkpoint())

    # -- answers -----------------------------------------------------------------------------------------------------

    def results(self, epoch: int) -> pa.Table:
        """Wait for the results of an epoch, in the schema `open_reply.schema`.

        They have one row for each slot that has got rows or states since the last barrier, ascending.
        """
        return self._take(Barrier, f"no results of epoch {epoch} are due: no barrier {epoch} was sent", epoch=epoch)

    def initial_outputs(self) -> pa.RecordBatch:
        """Return the outputs of the oldest `states` whose answer has not been taken."""
        return self._take(States, "no initial_outputs are due: Open does not request them, or no states were sent")

    def row_outputs(self) -> pa.RecordBatch:
        """Return the outputs after each row of the oldest `chunk` whose answer has not been taken."""
        return self._take(Chunk, "no row_outputs are due: Open does not request them, or no chunk was sent")

    def step_outputs(self) -> pa.Table:
        """Return the outputs of the oldest `chunk` of an exchange of steps whose answer has not been taken."""
        return self._take(Chunk, "no outputs are due: Open has no steps, or no chunk was sent")

    def saved_states(self) -> CheckpointAnswer:
        """Wait for the answer to the oldest `checkpoint` whose answer has not been taken."""
        return self._take(Checkpoint, "no states are due: no checkpoint was requested")

    def mapped(self) -> pa.Table:
        """Return `step_outputs()`, by its old name."""
        warnings.warn("OpenExchange.mapped is now called step_outputs", DeprecationWarning, stacklevel=2)
        return self.step_outputs()

    def saved(self) -> CheckpointAnswer:
        """Return `saved_states()`, by its old name."""
        warnings.warn("OpenExchange.saved is now called saved_states", DeprecationWarning, stacklevel=2)
        return self.saved_states()

    def _take(self, kind: type[EngineFrame], message: str, *, epoch: int | None = None) -> Any:
        """Return the answer to the oldest frame of a kind. Those that arrive before it stay."""
        while True:
            for index, (frame, answer) in enumerate(self._arrived_answers):
                if type(frame) is kind and (epoch is None or (isinstance(frame, Barrier) and frame.epoch == epoch)):
                    del self._arrived_answers[index]
                    return answer
            if not self._await_answer():
                raise RejectedError("BAD_FRAME", message)

    # -- what else an engine asks ------------------------------------------------------------------------------------

    @property
    def modes(self) -> Sequence[Mode | None]:
        """The mode of each call: the current one if embedded, else as the server last reported it, or None."""
        return self.open_reply.modes if self._connection is None else self._connection.modes

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many frames are kept for another server that a checkpoint should replace them."""
        return False

    def take_logs(self) -> Sequence[LogRecord]:
        """Return the log records of functions since the last call."""
        logs, self._logs = self._logs, []
        return logs

    def close(self) -> None:
        """End the exchange and release its resources. It is safe to call this twice and after an error."""
        self.is_over = True
        self._leave(is_cut=False)

    def cut(self) -> None:
        """End the exchange at once, even if answers are due."""
        self.is_over = True
        self._leave(is_cut=True)

    def _leave(self, *, is_cut: bool) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and is_cut:
            connection.cut()
        elif connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.cut()  # after an error the remaining answers are not needed


class SingleServerExchange(OpenExchange):
    """An exchange with one server, whose loss is an error.

    Args:
        open_request: The Open frame of the exchange.
        connection: The open connection to the server.
    """

    def __init__(self, open_request: Open, connection: Connection) -> None:
        super().__init__(open_request)
        self.open_reply = connection.open_reply
        self._connection: Connection | None = connection
        self._awaited_frame: EngineFrame | None = None  # the last frame, if its answer is due

    def send(self, frame: EngineFrame) -> None:
        """Send the frame of an operation, after the answer to an earlier one has arrived."""
        if self._awaited_frame is not None:
            self._await_answer()
        if self._connection is None:
            raise closed_error()
        try:
            if self._connection.send(frame):
                self._awaited_frame = frame
        except BaseException:
            self.cut()
            raise

    def _await_answer(self) -> bool:
        """Wait for the answer to the last frame. Return False if none is due."""
        connection, frame, self._awaited_frame = self._connection, self._awaited_frame, None
        if connection is None:
            raise closed_error()
        if frame is None:
            return False
        try:
            self._arrived_answers.append((frame, connection.answer()))
        except BaseException:
            self.cut()
            raise
        self._logs += connection.take_logs()
        return True


def closed_error() -> RejectedError:
    """Return the error for the use of an exchange that has ended."""
    return RejectedError("BAD_FRAME", "the exchange is closed")


class Transport(Protocol):
    """A connection to functions. It can be pickled, so that the workers of an engine can use it.

    Attributes:
        otlp_endpoint: The collector to which spans are sent; None: there are no spans.
    """

    otlp_endpoint: str | None

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return the descriptions of all functions, sorted by name.

        Args:
            look: Whether to determine how each function is folded. This creates an instance of each class and inspects
                its code. Servers did so at their start, and always report it.
        """

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened of an exchange without opening it."""

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002
        """Open an exchange.

        Args:
            open: The frame that opens it.
            resolve: For `Open.keeps_views`: answers questions for entries of views, within any operation of the
                exchange. Its errors are raised by that operation.
        """


PROGRAMS: Final[Accelerator] = accelerator_of("user")
"""Compiled functions."""
PROGRAMS_AT_ONCE: Final[Accelerator] = accelerator_of("user", hot_rows=0)
"""Compiles at the first row, for checks of compiled code."""

_first_turns: Final[list[int]] = []
_scopes: Final[list[str]] = [""]


def begin_task(number: int, scope: str = "") -> None:
    """Choose servers by the number of a task, from its next exchange on.

    The tasks of an engine begin together, in processes that do not know of each other. By successive numbers they
    spread over all servers; by random ones, two tasks would share one of two servers half the time.

    Args:
        number: The number.
        scope: `Open.call_scope` of the exchanges of the task.
    """
    _first_turns[:] = [number]
    _scopes[:] = [scope]


def call_scope() -> str:
    """Return the scope of the task that runs, or else a new one: equal calls of two exchanges are not the same call."""
    return _scopes[0] or uuid.uuid4().hex


def take_first_turn() -> int | None:
    """Return the number of the task that has begun, once; None if it is known already or there is no task."""
    return _first_turns.pop() if _first_turns else None
