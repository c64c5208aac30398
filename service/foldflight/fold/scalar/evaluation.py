"""The base classes of all evaluations of steps: an instance of the author's class, and errors with their row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, starmap
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.failures import Failures, call_if_written, user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.scalar import BoundScalar
from foldflight.functions.types.values import CastError, cast_results

_WINDOW: Final = 256


class Scalar(ABC):
    """Evaluates a step that is a scalar function: one value for each row."""

    bound: BoundScalar

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """Its current mode."""

    @abstractmethod
    def close(self) -> None:
        """Close the function. Raises FunctionError USER_CODE."""

    @abstractmethod
    def values(self, rows: Rows) -> pa.Array:
        """Return the results of n rows as an array of the result type. Rows that fail here or failed before are NULL.

        Raises:
            FunctionError: With the row, if errors are not isolated.
        """


class Instance:
    """An opened instance of the author's class, or the author's function.

    Args:
        bound: The function.
        context: The argument of the function's `open`.
        failures: Records errors of single rows.

    Raises:
        FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
        RejectedError: Of the code that instantiates the class, if it cannot run here.
    """

    def __init__(self, bound: BoundScalar, context: FunctionContext, failures: Failures) -> None:
        self.bound = bound
        self.name = bound.function.name
        self.failures = failures
        try:
            self.methods = bound.instantiate()
        except RejectedError:  # it cannot run here at all
            raise
        except (Exception, SystemExit) as error:
            raise user_failure(self.name, "__init__", error) from error
        call_if_written(self.name, "open", self.methods.open, context)

    def close(self) -> None:
        call_if_written(self.name, "close", self.methods.close)

    @property
    def method_name(self) -> str:
        """The name of the author's code that is called for each row, for error messages."""
        return "eval" if isinstance(self.bound.function.target, type) else self.bound.function.target.__name__

    def calls(self, rows: Rows) -> Iterator[Any]:
        """Return an iterator over the results of n rows. After an exception it continues with the next row."""
        columns = [column.values for column in rows.arguments]
        return map(self.methods.eval, *columns) if columns else starmap(self.methods.eval, repeat((), len(rows)))

    def take(self, rows: Rows, index: int, failure: FunctionError) -> None:
        """Record the error of a row, or raise it if errors are not isolated."""
        failure.row = rows.describe(index)
        failure.slot = int(rows.slots[index])
        if not self.failures.take(failure):
            failure.slot = None
            raise failure

    def fail_row(self, rows: Rows, index: int, error: BaseException) -> None:
        """Record the exception of a row, or raise it as an error with the row."""
        if isinstance(error, StopIteration):
            error = RuntimeError("it raised StopIteration")
        try:
            self.take(rows, index, user_failure(self.name, self.method_name, error))
        except FunctionError as failure:
            raise failure from error

    def evaluated_rows(self, rows: Rows) -> Mask | None:
        """Return a mask of the rows (of n) for which the function is called; None for all."""
        mask = ~self.failures.among(rows.slots) if self.failures else None
        if self.bound.function.skip_nulls:
            mask = rows.without_nulls(rows.arguments, mask)
        return None if mask is None or mask.all() else mask

    def values_of_called_rows(self, rows: Rows, evaluate: Callable[[Rows], pa.Array]) -> pa.Array:
        """Return what `evaluate` returns for the rows (of n) that the function is called for, and NULL for others."""
        mask = self.evaluated_rows(rows)
        return evaluate(rows) if mask is None else null_rows(evaluate(rows.filter(mask)), mask)


def cast(step: Instance, rows: Rows, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return n results as an array of `type_`, NULL where a result does not fit and errors are isolated.

    Raises:
        FunctionError: RESULT_TYPE or OVERFLOW, with the row, if errors are not isolated.
    """

    def refuse(index: int, error: CastError) -> int:
        step.take(rows, index, FunctionError(error.code, f"{step.method_name} returned {error}", function=step.name))
        return index + 1

    return cast_around(values, type_, refuse)


def cast_around(values: Sequence[Any], type_: pa.DataType, refuse: Callable[[int, CastError], int]) -> pa.Array:
    """Return n values as an array of `type_`, NULL where values do not fit.

    The values are cast at once. After the first that does not fit they are cast in windows, so that each further one
    costs a window and not all values that remain.

    Args:
        values: The values.
        type_: The type.
        refuse: Called with the index of a value that does not fit, and the error. It returns the index from which to
            continue.
    """
    parts: list[pa.Array] = []
    start, stop = 0, len(values)
    while True:
        window = values[start:stop] if start or stop < len(values) else values
        try:
            parts.append(cast_results(window, type_))
        except CastError as error:
            index = start + error.index
            following = refuse(index, error)
            parts += [cast_results(values[start:index], type_), pa.nulls(following - index, type_)]
            start = following
        else:
            start = stop
            if start >= len(values):
                return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        stop = min(start + _WINDOW, len(values))


def null_rows(values: pa.Array, mask: Mask) -> pa.Array:
    """Return an array with the values at the rows of `mask` (bool, n of them) and NULL at the others."""
    return values.take(pa.array(np.cumsum(mask) - 1, mask=~mask))
