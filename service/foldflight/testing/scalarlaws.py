"""The laws of scalar and table functions, checked on generated data.

A function that obeys them returns the same results however an engine splits, orders and repeats its input. An exception
for a row counts as its result and must be the same each time. If every row raises one, the check fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from foldflight.client.exchange import PROGRAMS_AT_ONCE
from foldflight.errors import RejectedError
from foldflight.exchange.server_exchange import bind
from foldflight.fold.accelerator import INTERPRETER, Accelerator
from foldflight.fold.failures import ERROR
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources
from foldflight.fold.rows import ROW
from foldflight.functions import AnyFunction, Registry, ScalarFunction, Step, StepArgument
from foldflight.functions.query.call import Request
from foldflight.shipping.pickling import unpickled_copy

Rows = list[tuple[Any, ...]]
Drawn = tuple[Rows, int]
"""One input of a law: rows, and a number from which it derives where to split them."""
_S = TypeVar("_S")


class _Error(str):
    """The text of the error of a row."""

    __slots__ = ()


class ScalarSubject:
    """One use of a scalar or table function, which evaluates rows.

    Args:
        function: The function. It is pickled and unpickled, as for Spark's workers.
        literals: Direct arguments.

    Raises:
        RejectedError: SIGNATURE for wrong direct arguments, or SCHEMA_MISMATCH if no argument types are found.
    """

    def __init__(self, function: ScalarFunction, literals: Mapping[str, Any]) -> None:
        (there,) = unpickled_copy([function])
        assert isinstance(there, ScalarFunction)
        self.function = there
        self.types = argument_types(there, literals)
        names = [f"argument_{index}" for index in range(len(self.types))]
        self._schema = pa.schema(list(zip(names, self.types, strict=True)) or [("nothing", pa.bool_())])
        step = Step(there.name, tuple(StepArgument(name) for name in names), literals=literals)
        request = Request((), self._schema, isolate_errors=True, steps=(step,), outputs=(0,))
        self._bound = bind(request, Registry([there]))
        self._bound.check(PROGRAMS_AT_ONCE)

    def results(self, *parts: Rows, accelerator: Accelerator = INTERPRETER) -> list[list[Any]]:
        """Evaluate rows in these parts. Return for each row its results or its error, as text."""
        open_reply = self._bound.open(Resources(accelerator=accelerator))
        try:
            by_row: list[list[Any]] = []
            for rows in parts:
                by_row += self._of(open_reply.chunk(self._chunk(rows)), len(rows))
            return by_row
        finally:
            open_reply.close()

    def mode(self) -> Mode:
        """Return how the function is evaluated if it is compiled at once where possible."""
        open_reply = self._bound.open(Resources(accelerator=PROGRAMS_AT_ONCE))
        try:
            return open_reply.modes[0]
        finally:
            open_reply.close()

    def _chunk(self, rows: Rows) -> pa.RecordBatch:
        if not self.types:
            return pa.RecordBatch.from_arrays([pa.array([True] * len(rows), pa.bool_())], schema=self._schema)
        columns = [pa.array([row[index] for row in rows], type_) for index, type_ in enumerate(self.types)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    @staticmethod
    def _of(answer: Iterable[pa.RecordBatch], count: int) -> list[list[Any]]:
        by_row: list[list[Any]] = [[] for _ in range(count)]
        for part in answer:
            indexes = part.column(ROW).to_pylist() if ROW in part.schema.names else range(count)
            for index, value, error in zip(
                indexes, part.column("output_0").to_pylist(), part.column(ERROR).to_pylist(), strict=True
            ):
                # The error's row is left out, because it contains the position in the chunk.
                by_row[index].append(repr(value) if error is None else _Error(f"{error['code']}: {error['message']}"))
        return by_row


def argument_types(function: AnyFunction, literals: Mapping[str, Any]) -> list[pa.DataType]:
    """Return the declared types of the arguments, or else the first candidate types that the function accepts.

    Raises:
        RejectedError: SIGNATURE for wrong direct arguments, or SCHEMA_MISMATCH if no types are found.
    """
    function.check_literals(literals)
    if function.input_types is not None:
        return list(function.input_types)
    refusal: RejectedError | None = None
    for type_ in (pa.int64(), pa.float64(), pa.string()):
        for count in (len(function.input_names), 0):
            try:
                return list(function.bind([type_] * count, literals).input_types)
            except RejectedError as error:
                refusal = error
    assert refusal is not None
    raise refusal


def _difference(one: Sequence[Any], other: Sequence[Any], what: str) -> str | None:
    """Return the first row whose results differ, as text; None if all are equal."""
    for index, (left, right) in enumerate(zip(one, other, strict=True)):
        if left != right:
            return f"row {index}: {left} and {what} {right}"
    return None


def _compare_again(subject: ScalarSubject, rows: Rows, _: int) -> str | None:
    return _difference(subject.results(rows), subject.results(rows), "when called again")


def _compare_split(subject: ScalarSubject, rows: Rows, seed: int) -> str | None:
    at = seed % (len(rows) + 1)
    return _difference(subject.results(rows), subject.results(rows[:at], rows[at:]), f"when split at {at}")


def _compare_reversed(subject: ScalarSubject, rows: Rows, _: int) -> str | None:
    return _difference(subject.results(rows), subject.results(rows[::-1])[::-1], "in the opposite order")


def _compare_compiled(subject: ScalarSubject, rows: Rows, _: int) -> str | None:
    return _difference(subject.results(rows), subject.results(rows, accelerator=PROGRAMS_AT_ONCE), "when compiled")


def _has_results(subject: ScalarSubject, inputs: Sequence[Drawn]) -> str | None:
    rows = [row for rows, _ in inputs for row in rows]
    errors = []
    for row, results in zip(rows, subject.results(rows), strict=True):
        error = next((each for each in results if isinstance(each, _Error)), None)
        if error is not None:
            errors.append(error)
        elif None not in row or results not in ([], [repr(None)]):  # NULL may have no result without a call
            return None
    if not errors:
        return None
    remedy = "if the function takes only some values, give them in examples"
    return f"every generated row is an error, as {errors[0]}; {remedy}"


def _needs_deterministic(subject: ScalarSubject) -> str | None:
    return None if subject.function.deterministic else "it is not deterministic"


def _needs_compiled(subject: ScalarSubject) -> str | None:
    if subject.mode() is Mode.COMPILED:
        return None
    return "it is vectorised" if subject.function.vectorised else "it is not compiled"


@dataclass(frozen=True)
class Law(Generic[_S]):
    """One law of functions of a kind.

    Args:
        name: Its name.
        holds: Called with a function and inputs. Returns None if the law holds for each, or a description of the first
            difference.
        needs: Returns why the law does not apply to a function, or None if it applies.
        hostile: Whether it is tried on `hostile_rows`.
        tells: Returns what is said of a function for which the law holds; mostly empty.
    """

    name: str
    holds: Callable[[_S, Sequence[Drawn]], str | None]
    needs: Callable[[_S], str | None] = lambda _: None
    hostile: bool = False
    tells: Callable[[_S], str] = lambda _: ""


def one_by_one(
    holds: Callable[[_S, Rows, int], str | None],
) -> Callable[[_S, Sequence[Drawn]], str | None]:
    """Return a law that tries each input alone."""

    def holds_for_each(subject: _S, inputs: Sequence[Drawn]) -> str | None:
        return next((difference for example in inputs if (difference := holds(subject, *example)) is not None), None)

    return holds_for_each


SCALAR_LAWS = (
    Law("some rows have results", _has_results),
    Law("repeated calls agree", one_by_one(_compare_again), _needs_deterministic),
    Law("any split of the rows", one_by_one(_compare_split), _needs_deterministic),
    Law("rows in any order", one_by_one(_compare_reversed), _needs_deterministic),
    Law("compiled code agrees", one_by_one(_compare_compiled), _needs_compiled),
)
