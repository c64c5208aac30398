"""What the server's end of an exchange drives, whatever its calls are: aggregates today.

    Request > bound to functions and columns: BoundRequest (what Opened says) > opened: Evaluator (rows and states)

A new evaluator is a folder beside `aggregate/` and an entry in `evaluators.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from foldflight.fold.accelerator import Accelerator
from foldflight.fold.mode import Mode
from foldflight.fold.signing import StateSigner
from foldflight.functions.call import Call
from foldflight.functions.context import LogRecord, MetricSink

__all__ = ["BoundRequest", "CallFacts", "Evaluator", "Request", "Resources"]


@dataclass(frozen=True)
class Request:
    """What an exchange asks to be evaluated.

    Args:
        calls: The calls.
        columns: The schema of the chunks.
        row_outputs: Whether each chunk is answered with the outputs after each of its rows.
        isolates: Whether a function that raises fails its slot alone.
        job_parameters: What functions read from their context.
        where: Where the functions are, for messages: the servers of a fleet may differ.
    """

    calls: tuple[Call, ...]
    columns: pa.Schema
    row_outputs: bool = False
    isolates: bool = False
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    where: str = "here"


@dataclass(frozen=True)
class Resources:
    """What the process that opens an evaluator hands in.

    Args:
        signer: Signs and checks pickled states; None where there are no keys.
        metrics: Where the functions' metrics go.
        log: Takes each line that a function logs.
        accelerator: Evaluates calls faster than the interpreter; None: there is none.
    """

    signer: StateSigner | None = None
    metrics: MetricSink | None = None
    log: Callable[[LogRecord], None] | None = None
    accelerator: Accelerator | None = None


class CallFacts(Protocol):
    """What an engine is told of one call."""

    @property
    def fingerprint(self) -> str:
        """What its states depend on, as 16 hexadecimal digits."""

    @property
    def input_types(self) -> tuple[pa.DataType, ...]:
        """The types that its arguments are cast to."""

    @property
    def can_retract(self) -> bool:
        """Whether it takes rows back."""

    @property
    def can_merge(self) -> bool:
        """Whether it merges states."""

    @property
    def can_migrate(self) -> bool:
        """Whether it takes states of its other versions."""

    @property
    def is_invertible(self) -> bool:
        """Whether a row may be taken back before it has come."""


class BoundRequest(Protocol):
    """A request bound to functions and columns: what is known before any row."""

    @property
    def calls(self) -> Sequence[CallFacts]:
        """The calls, in the order of the request."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch that the evaluator returns: `slot` first, in all evaluators."""

    def check(self, accelerator: Accelerator | None) -> None:
        """Find what `open` would refuse, as far as that shows without calling a function's `open`.

        Raises:
            RejectedError: SIGNATURE, for direct arguments that a function does not take, and for a function that is
                declared `compile=True` and is not compiled.
            FunctionError: USER_CODE, when `__init__` raises without a direct argument.
        """

    def open(self, resources: Resources) -> Evaluator:
        """Return an evaluator without rows or states.

        Raises:
            FunctionError: USER_CODE, when a class cannot be made or its `open` raises.
            RejectedError: SETTINGS, when states would be pickled and there is no signer; and what `check` raises.
        """


class Evaluator(Protocol):
    """Evaluates the calls of one exchange. After an error it is undefined: close it."""

    @property
    def kinds(self) -> tuple[Mode, ...]:
        """How each call is evaluated now."""

    @property
    def isolated(self) -> Counter[str]:
        """How many slots have failed while the others went on, by function; it counts on as they fail."""

    @property
    def slot_count(self) -> int:
        """The highest slot seen so far, plus one."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the states that `collect` returned last."""

    def merge_states(self, batch: pa.RecordBatch) -> None:
        """Merge states into slots: n rows of `slot` and one column `state_i` for each call i."""

    def outputs(self, slots: pa.Array) -> pa.RecordBatch:
        """Return the outputs of n slots, with NULL states."""

    def chunk(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take n rows, in the schema of the request; return what answers them, None where nothing does."""

    def collect(self, *, states: bool, outputs: bool) -> pa.RecordBatch:
        """Return what changed since the last time, one row for each slot, ascending, and make all slots clean."""

    def unsaved(self) -> pa.RecordBatch:
        """Return the states that changed since states were last returned; slots stay as they are for `collect`."""

    def forget(self, slots: pa.Array) -> None:
        """Make n slots empty and clean."""

    def close(self) -> None:
        """Let the functions release what they hold.

        Raises:
            FunctionError: USER_CODE, the first error of a function's `close`, once all are closed.
        """
