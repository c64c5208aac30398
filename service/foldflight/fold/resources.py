"""What the evaluators of aggregates and of expressions take beside a request: the resources of the process.

`exchange.server_exchange.bind` binds a `Request` to functions and columns, which gives the content of `Opened`. Opening
that gives a `Fold` or an `OpenExpressions`, which takes rows and, if it has states, states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import pyarrow as pa

from foldflight.fold.accelerator import INTERPRETER, Accelerator
from foldflight.fold.coroutines import Check, Coroutines, go_on
from foldflight.fold.pickles import StateSigner
from foldflight.functions.author.context import LogRecord, MetricSink


class UnansweredQuestion(BaseException):
    """The engine did not answer a question for entries, so the function that needs them cannot go on.

    It is no Exception, so that functions do not catch it by accident.
    """


class AskEngine(Protocol):
    """Asks the engine for entries of views while a function is being called."""

    def __call__(
        self, question: pa.RecordBatch, read: Callable[[Sequence[pa.RecordBatch]], Any], *, are_retained: bool
    ) -> Any:
        """Send a batch with keys, in the schema of the request, and return what `read` makes of the answers.

        Args:
            question: The batch.
            read: Takes the answers.
            are_retained: Whether the entries of the answers stay in memory until states are returned.

        Raises:
            Unanswered: There is no answer, or `read` raised an error.
        """


@dataclass(frozen=True)
class Resources:
    """The resources that a process passes to its evaluators.

    Args:
        signer: Signs and checks pickled states; None if there are no keys.
        metrics: Receives the metrics of functions.
        log: Receives each line that a function logs.
        accelerator: Evaluates calls faster than the interpreter, unless it is the interpreter itself.
        ask: Asks the engine for entries of views; used if the options have `keeps_views`.
        coroutines: Runs the coroutines of async functions; None where they are refused.
        check: Raises if the engine has left, so that no call goes on for it.
        call_scope: `Open.call_scope`.
    """

    signer: StateSigner | None = None
    metrics: MetricSink | None = None
    log: Callable[[LogRecord], None] | None = None
    accelerator: Accelerator = INTERPRETER
    ask: AskEngine | None = None
    coroutines: Coroutines | None = None
    check: Check = go_on
    call_scope: str = ""


class Stateless:
    """The part of a `Fold` that concerns states, for expressions, which have none.

    The state machine of an exchange accepts no frame that leads here.
    """

    slot_count = 0
    state_bytes = 0
    is_saved = True
    largest_view = None

    def merge_states(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - as in `Fold`
        """Fail: there are no states."""
        self._fail("states")

    def take_entries(self, batch: pa.RecordBatch) -> None:  # noqa: ARG002 - as in `Fold`
        """Fail: there are no states."""
        self._fail("states")

    def outputs(self, slots: pa.Array) -> pa.RecordBatch:  # noqa: ARG002 - as in `Fold`
        """Fail: there are no slots."""
        self._fail("slots")

    def collect(self, *, states: bool, outputs: bool) -> pa.RecordBatch:  # noqa: ARG002 - as in `Fold`
        """Fail: there are no epochs."""
        self._fail("epochs")

    def changed_states(self) -> pa.RecordBatch:
        """Fail: there are no states."""
        self._fail("states")

    def forget(self, slots: pa.Array) -> None:  # noqa: ARG002 - as in `Fold`
        """Fail: there are no slots."""
        self._fail("slots")

    def _fail(self, what: str) -> NoReturn:
        raise AssertionError(f"{type(self).__name__} has no {what}")
