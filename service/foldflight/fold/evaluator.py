"""The interface of evaluators, which the server's side of an exchange drives.

A `Request` is bound to functions and columns, which gives a `BoundRequest`; it has the content of `Opened`. Opening
that gives an `Evaluator`, which takes rows and states.

A new kind of evaluator is a folder next to `aggregate/` and `scalar/`, and an entry in `evaluators.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Protocol

import pyarrow as pa

from foldflight.fold.accelerator import INTERPRETER, Accelerator
from foldflight.fold.mode import Mode
from foldflight.fold.signing import StateSigner
from foldflight.functions.author.context import LogRecord, MetricSink
from foldflight.functions.query.call import Call
from foldflight.functions.query.step import Step
from foldflight.functions.types.views import ViewSpec

__all__ = [
    "Asking",
    "BoundRequest",
    "CachedView",
    "CallFacts",
    "Evaluator",
    "Options",
    "Request",
    "Resources",
    "Stateless",
    "Unanswered",
]


class Unanswered(BaseException):
    """The engine did not answer a question for entries, so the function that needs them cannot go on.

    It is no Exception, so that functions do not catch it by accident.
    """


class CachedView(NamedTuple):
    """The entries of a view that are in memory.

    Args:
        entries: Their number.
        slot: The slot.
        function: The name of the function.
        view: The name of the view.
    """

    entries: int
    slot: int
    function: str
    view: str


class Asking(Protocol):
    """Asks the engine for entries of views while a function is being called."""

    def __call__(
        self, asked: pa.RecordBatch, read: Callable[[Sequence[pa.RecordBatch]], Any], *, are_held: bool
    ) -> Any:
        """Send a batch with keys, in the schema of the request, and return what `read` makes of the answers.

        Args:
            asked: The batch.
            read: Takes the answers.
            are_held: Whether the entries of the answers stay in memory until states are returned.

        Raises:
            Unanswered: There is no answer, or `read` raised an error.
        """


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the calls or steps of an exchange are evaluated.

    Args:
        row_outputs: Whether the answer to each chunk has the outputs after each of its rows.
        emits: Whether chunks have a column `emit`, bool without NULLs: outputs are only computed and returned after the
            rows where it is true. It needs `row_outputs`.
        isolate_errors: Whether a function that raises fails only its slot. Results then have a column `error`.
        job_parameters: Parameters that functions read from their context.
        keeps_views: Whether the engine keeps the entries of views apart from states. Chunks are then answered.
    """

    row_outputs: bool = False
    emits: bool = False
    isolate_errors: bool = False
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    keeps_views: bool = False


@dataclass(frozen=True)
class Request(Options):
    """The request of an exchange, and its options.

    Args:
        calls: The calls; call i has the columns `state_i` and `output_i` in the results.
        columns: The schema of the chunks: optionally `slot` int32 and `kind` int8, then argument and filter columns.
        steps: Expressions of scalar and table functions, instead of calls.
        outputs: The numbers of the steps whose results are outputs.
    """

    calls: tuple[Call, ...]
    columns: pa.Schema
    steps: tuple[Step, ...] = field(default=(), kw_only=True)
    outputs: tuple[int, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Resources:
    """The resources that a process passes to its evaluators.

    Args:
        signer: Signs and checks pickled states; None if there are no keys.
        metrics: Receives the metrics of functions.
        log: Receives each line that a function logs.
        accelerator: Evaluates calls faster than the interpreter, unless it is the interpreter itself.
        ask: Asks the engine for entries of views; used if the options have `keeps_views`.
    """

    signer: StateSigner | None = None
    metrics: MetricSink | None = None
    log: Callable[[LogRecord], None] | None = None
    accelerator: Accelerator = INTERPRETER
    ask: Asking | None = None


class CallFacts(Protocol):
    """The description of one call for the engine."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its states, as 16 hexadecimal digits."""

    @property
    def input_types(self) -> tuple[pa.DataType, ...]:
        """The types to which its arguments are cast."""

    @property
    def can_retract(self) -> bool:
        """Whether it retracts rows."""

    @property
    def can_merge(self) -> bool:
        """Whether it merges states."""

    @property
    def can_migrate(self) -> bool:
        """Whether it converts states of its other versions."""

    @property
    def is_invertible(self) -> bool:
        """Whether a row may be retracted before it has been accumulated."""

    @property
    def views(self) -> tuple[ViewSpec, ...]:
        """The views of its states."""


class BoundRequest(Protocol):
    """A request bound to functions and columns, before any row."""

    @property
    def calls(self) -> Sequence[CallFacts]:
        """The calls, in the order of the request."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch that the evaluator returns; for calls, `slot` is first."""

    def check(self, accelerator: Accelerator) -> None:
        """Raise the errors of `open` that can be found without calling a function's `open`.

        Raises:
            RejectedError: SIGNATURE, for direct arguments that a function does not accept, and for a function that is
                declared `compile=True` and cannot be compiled.
            FunctionError: USER_CODE, if `__init__` raises without a direct argument.
        """

    def open(self, resources: Resources) -> Evaluator:
        """Return an evaluator without rows or states.

        Raises:
            FunctionError: USER_CODE, if a class cannot be instantiated or its `open` raises.
            RejectedError: SETTINGS, if states would be pickled and there is no signer; and the errors of `check`.
        """


class Evaluator(Protocol):
    """Evaluates the calls of one exchange. After an error it is undefined: close it."""

    @property
    def kinds(self) -> tuple[Mode, ...]:
        """The current mode of each call."""

    @property
    def isolated(self) -> Counter[str]:
        """The number of slots that have failed in isolation, by function; it is updated as slots fail."""

    @property
    def slot_count(self) -> int:
        """The highest slot seen so far, plus one."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the states in the last result of `collect`."""

    @property
    def is_saved(self) -> bool:
        """Whether every slot that has changed since its state was last returned has been emptied."""

    @property
    def largest_view(self) -> CachedView | None:
        """The view with the most entries in memory; None if there are no views. Another thread may ask."""

    def merge_states(self, batch: pa.RecordBatch) -> None:
        """Merge n states into slots. The batch has `slot` and one column `state_i` for each call i."""

    def take_entries(self, batch: pa.RecordBatch) -> None:
        """Take entries of views, which do not replace what is known of them. The batch has `slot` and `state_i`."""

    def outputs(self, slots: pa.Array) -> pa.RecordBatch:
        """Return the outputs of n slots, with NULL states."""

    def chunk(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Evaluate n rows in the schema of the request; return the parts of the answer, none if there is no answer.

        A part may be evaluated only when it is asked for.
        """

    def collect(self, *, states: bool, outputs: bool) -> pa.RecordBatch:
        """Return the slots changed since the last call, ascending, one row each, and mark all slots as clean."""

    def unsaved(self) -> pa.RecordBatch:
        """Return the states changed since states were last returned. `collect` is not affected."""

    def forget(self, slots: pa.Array) -> None:
        """Empty n slots and mark them as clean."""

    def close(self) -> None:
        """Close all functions.

        Raises:
            FunctionError: USER_CODE, the first error of a function's `close`, after all have been closed.
        """


class Stateless:
    """The part of an `Evaluator` that concerns states, for evaluators without any.

    The state machine of an exchange accepts no frame that leads here.
    """

    slot_count = 0
    state_bytes = 0
    is_saved = True
    largest_view = None

    def merge_states(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - as in `Evaluator`
        """Fail: there are no states."""
        self._fail("states")

    def take_entries(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - as in `Evaluator`
        """Fail: there are no states."""
        self._fail("states")

    def outputs(self, slots: pa.Array) -> pa.RecordBatch:  # noqa: ARG002 - as in `Evaluator`
        """Fail: there are no slots."""
        self._fail("slots")

    def collect(self, *, states: bool, outputs: bool) -> pa.RecordBatch:  # noqa: ARG002 - as in `Evaluator`
        """Fail: there are no epochs."""
        self._fail("epochs")

    def unsaved(self) -> pa.RecordBatch:
        """Fail: there are no states."""
        self._fail("states")

    def forget(self, slots: pa.Array) -> None:  # noqa: ARG002 - as in `Evaluator`
        """Fail: there are no slots."""
        self._fail("slots")

    def _fail(self, what: str) -> NoReturn:
        raise AssertionError(f"{type(self).__name__} has no {what}")
