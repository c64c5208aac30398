"""Table functions: each row gives any number of rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.failures import Failures
from foldflight.fold.mapping.mapper import Instance
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Rows, Slots
from foldflight.functions.context import FunctionContext
from foldflight.functions.mapping import BoundMap
from foldflight.functions.values import CastError, cast_results

__all__ = ["ROWS_MAX", "Table"]

ROWS_MAX: Final = 1 << 20
"""The largest number of rows for one row. It stops endless generators before they use up the memory."""


class Table(Instance):
    """Calls a table function for each row, and collects the rows that it returns.

    Args:
        bound: The function.
        context: The argument of the function's `open`.
        failures: Records errors of single rows.
        outer: Whether a row without results becomes one row of NULLs.
    """

    def __init__(self, bound: BoundMap, context: FunctionContext, failures: Failures, *, outer: bool) -> None:
        super().__init__(bound, context, failures)
        self._outer = outer
        self._names = [field.name for field in bound.result_type]
        self._split = _splitter(self._names)

    @property
    def kind(self) -> Mode:
        return Mode.INTERPRETED

    def rows(self, rows: Rows) -> tuple[Slots, pa.Array]:
        """Return the function's rows for n rows, in their order.

        Returns:
            For each of m rows the number of the given row (0 to n - 1), int32, shape (m,), ascending; and m values of
            the struct of columns. A given row that fails here or has failed before has no rows.

        Raises:
            FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with the row, if errors are not isolated.
        """
        mask = self.asked(rows)
        asked = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
        given = rows if mask is None else rows.kept(mask)
        counts = np.zeros(len(rows), np.int64)
        found: list[tuple[Any, ...]] = []
        calls = self.calls(given)
        for index, place in enumerate(asked.tolist()):
            start = len(found)
            try:
                returned = next(calls)
                if returned is not None:
                    found.extend(map(self._split, islice(self._iterable(returned), ROWS_MAX + 1)))
                if len(found) - start > ROWS_MAX:
                    raise _TooManyError
            except _RowError as error:
                del found[start:]
                self.take(given, index, FunctionError("RESULT_TYPE", f"{self.verb} {error}", function=self.name))
            except _TooManyError:
                del found[start:]
                message = f"{self.verb} returned more than {ROWS_MAX} rows for one row; check that it ends"
                self.take(given, index, FunctionError("USER_CODE", message, function=self.name))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
                del found[start:]
                self.failed(given, index, error)
            counts[place] = len(found) - start
        return self._columns(rows, counts, found)

    def _columns(self, rows: Rows, counts: Any, found: list[tuple[Any, ...]]) -> tuple[Slots, pa.Array]:
        """Return rows as columns, without the results of rows for which a value does not fit."""
        while True:
            places = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
            try:
                columns = self._cast(found)
            except _CastColumnError as error:
                place = int(places[error.index])
                message = f"{self.verb} returned a row whose column {error.column} is wrong: {error.message}"
                self.take(rows, place, FunctionError(error.code, message, function=self.name))
                start = int(counts[:place].sum())
                del found[start : start + int(counts[place])]
                counts[place] = 0
            else:
                break
        struct = pa.StructArray.from_arrays(columns, fields=list(self.bound.result_type))
        if not self._outer:
            return places, struct
        failed = self.failures.among(rows.slots)
        empty = np.flatnonzero((counts == 0) & ~failed).astype(np.int32)
        if not len(empty):
            return places, struct
        every = np.concatenate([places, empty])
        order = np.argsort(every, kind="stable")
        none = (np.arange(len(every)) >= len(places))[order]
        return every[order], struct.take(pa.array(np.where(none, 0, order), mask=none))

    def _cast(self, found: list[tuple[Any, ...]]) -> list[pa.Array]:
        columns = []
        split = list(zip(*found, strict=True)) if found else [()] * len(self._names)
        for values, field in zip(split, self.bound.result_type, strict=True):
            try:
                columns.append(cast_results(values, field.type))
            except CastError as error:
                raise _CastColumnError(error, field.name) from None
        return columns

    def _iterable(self, returned: Any) -> Iterable[Any]:
        if isinstance(returned, (str, bytes, dict)) or not hasattr(returned, "__iter__"):
            raise _RowError(f"returned {type(returned).__name__}; yield rows or return a list of rows")
        iterable: Iterable[Any] = returned
        return iterable


class _RowError(Exception):
    """A function returned something other than rows with the declared columns."""


class _TooManyError(Exception):
    """A function returned too many rows for one row."""


class _CastColumnError(Exception):
    def __init__(self, error: CastError, column: str) -> None:
        super().__init__(str(error))
        self.index, self.code, self.message, self.column = error.index, error.code, str(error), column


def _splitter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of a row in the order of the columns."""
    count = len(names)
    by_name = [operator.attrgetter(name) for name in names]

    def shown(row: Any) -> str:
        return repr(row)[:200]

    def wrong(row: Any, values: int) -> _RowError:
        plural = "" if values == 1 else "s"
        return _RowError(
            f"returned a row of {values} value{plural}, {shown(row)}, but {count} are declared: {', '.join(names)}"
        )

    def split(row: Any) -> tuple[Any, ...]:
        if type(row) is tuple:
            if len(row) != count:
                raise wrong(row, len(row))
            return row
        if isinstance(row, tuple):  # a named tuple
            return split(tuple(row))
        if isinstance(row, dict) and row.keys() == set(names):
            return tuple(row[name] for name in names)
        if count == 1:
            return (row,)
        if isinstance(row, list):
            return split(tuple(row))
        if isinstance(row, dict):
            raise _RowError(
                f"returned a row with {', '.join(map(str, row)) or 'no columns'}; declared are {', '.join(names)}"
            )
        if all(hasattr(row, name) for name in names):
            return tuple(get(row) for get in by_name)
        raise wrong(row, 1)

    return split
