"""Table functions: each row gives any number of rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Rows, Slots
from foldflight.fold.scalar.evaluation import Instance, cast_around
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.scalar import BoundScalar
from foldflight.functions.types.values import CastError

ROWS_MAX: Final = 1 << 20
"""The largest number of rows for one row of a chunk. It stops endless generators before they use up the memory."""
_BYTES_MAX: Final = 1 << 30
"""About the largest size of the rows for one row of a chunk. The last row of each group that is taken is measured."""
_GROUP_ROWS: Final = 1 << 4
_GROUP_ROWS_MAX: Final = 1 << 12
# A part of an answer ends after as many rows, or about as many bytes.
_PART_ROWS: Final = 1 << 16
_PART_BYTES: Final = 32 << 20
_VALUE_BYTES: Final = 32


class Part(NamedTuple):
    """The rows of a table function for some of n rows.

    Args:
        stop: The number of the row after the last one of this part. The first one is the last part's `stop`, or 0.
        indexes: For each of m rows the number of the given row (0 to n - 1); int32, shape (m,), ascending. A given row
            that fails here or has failed before has no rows.
        values: m values of the struct of columns.
    """

    stop: int
    indexes: Slots
    values: pa.Array


class TableInstance(Instance):
    """Calls a table function for each row, and collects the rows that it returns.

    Args:
        bound: The function.
        context: The argument of the function's `open`.
        failures: Records errors of single rows.
        outer: Whether a row without results becomes one row of NULLs.
    """

    def __init__(self, bound: BoundScalar, context: FunctionContext, failures: Failures, *, outer: bool) -> None:
        super().__init__(bound, context, failures)
        self._outer = outer
        self._names = [field.name for field in bound.result_type]
        self._split = _splitter(self._names)

    @property
    def mode(self) -> Mode:
        return Mode.INTERPRETED

    def parts(self, rows: Rows) -> Iterator[Part]:
        """Yield the function's rows for n rows, in their order and in parts; at least one part.

        A part has all rows that come from one row of the chunk, and ends after enough rows or bytes, so that an answer
        need not fit into memory.

        Raises:
            FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with the row, if errors are not isolated.
        """
        mask = self.evaluated_rows(rows)
        positions = (np.arange(len(rows)) if mask is None else np.flatnonzero(mask)).tolist()
        given = rows if mask is None else rows.filter(mask)
        slots = given.slots.tolist()
        calls = zip(*(column.values for column in given.arguments), strict=True) if given.arguments else repeat(())
        start, size, slot_began = 0, 0, 0
        counts = np.zeros(len(rows), np.int64)
        produced: list[tuple[Any, ...]] = []
        for index, (position, arguments) in enumerate(zip(positions, calls, strict=False)):
            if index and slots[index] != slots[index - 1]:
                if len(produced) >= _PART_ROWS or size >= _PART_BYTES:
                    yield self._part(rows, start, position, counts, produced)
                    start, size, produced = position, 0, []
                slot_began = len(produced)
            if slots[index] in self.failures:
                continue
            before = len(produced)
            self._call(given, index, arguments, produced, ROWS_MAX - (before - slot_began))
            counts[position] = len(produced) - before
            if counts[position]:
                size += int(counts[position]) * _size(produced[-1])
        yield self._part(rows, start, len(rows), counts, produced)

    def _call(self, given: Rows, index: int, arguments: Sequence[Any], produced: list[Any], rows_max: int) -> None:
        """Append the function's rows for one row to `found`; nothing if it fails."""
        before = len(produced)
        try:
            returned = self.methods.eval(*arguments)
            problem = None if returned is None else self._take(self._iterable(returned), produced, rows_max)
            if problem is None:
                return
            message = f"{self.method_name} returned more than {problem} for one row; check that it ends"
            failure = FunctionError("USER_CODE", message, function=self.name)
        except _RowError as error:
            failure = FunctionError("RESULT_TYPE", f"{self.method_name} {error}", function=self.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
            del produced[before:]
            self.fail_row(given, index, error)
            return
        del produced[before:]
        self.take(given, index, failure)

    def _take(self, returned: Iterable[Any], produced: list[Any], rows_max: int) -> str | None:
        """Append the function's rows for one row to `found`. Return the limit that they exceed, or None."""
        rows = map(self._split, returned)
        left, size, wanted = rows_max + 1, 0, _GROUP_ROWS
        while True:
            count = len(produced)
            produced.extend(islice(rows, min(wanted, left)))
            count = len(produced) - count
            left -= count
            if left <= 0:
                return f"{ROWS_MAX} rows"
            if count < wanted:
                return None
            size += count * _size(produced[-1])
            if size > _BYTES_MAX:
                return f"{_BYTES_MAX >> 20} MiB"
            wanted = min(2 * wanted, _GROUP_ROWS_MAX)

    def _part(self, rows: Rows, start: int, stop: int, every: Any, produced: list[tuple[Any, ...]]) -> Part:
        """Return rows as columns, without the results of rows for which a value does not fit."""
        counts = every[start:stop]
        while True:
            indexes = np.repeat(np.arange(start, stop, dtype=np.int32), counts)
            wrong, columns = self._cast(rows, indexes, produced)
            if not wrong:
                break
            remaining = ~np.isin(indexes, wrong)
            produced = list(compress(produced, remaining.tolist()))
            counts[np.array(wrong) - start] = 0
        struct = pa.StructArray.from_arrays(columns, fields=list(self.bound.result_type))
        if not self._outer:
            return Part(stop, indexes, struct)
        failed = self.failures.among(rows.slots[start:stop])
        empty = (np.flatnonzero((counts == 0) & ~failed) + start).astype(np.int32)
        if not len(empty):
            return Part(stop, indexes, struct)
        all_indexes = np.concatenate([indexes, empty])
        order = np.argsort(all_indexes, kind="stable")
        none = (np.arange(len(all_indexes)) >= len(indexes))[order]
        return Part(stop, all_indexes[order], struct.take(pa.array(np.where(none, 0, order), mask=none)))

    def _cast(self, rows: Rows, positions: Slots, produced: list[tuple[Any, ...]]) -> tuple[list[int], list[pa.Array]]:
        """Return the indexes of rows with a value that does not fit, and the columns if there are none."""
        wrong: list[int] = []
        columns = []
        split = list(zip(*produced, strict=True)) if produced else [()] * len(self._names)
        for values, field in zip(split, self.bound.result_type, strict=True):

            def refuse(index: int, error: CastError, name: str = field.name) -> int:
                position = int(positions[index])
                message = f"{self.method_name} returned a row whose column {name} is wrong: {error}"
                self.take(rows, position, FunctionError(error.code, message, function=self.name))
                wrong.append(position)
                return int(np.searchsorted(positions, position, side="right"))

            columns.append(cast_around(values, field.type, refuse))
        return wrong, columns

    def _iterable(self, returned: Any) -> Iterable[Any]:
        if isinstance(returned, (str, bytes, dict)) or not hasattr(returned, "__iter__"):
            raise _RowError(f"returned {type(returned).__name__}; yield rows or return a list of rows")
        iterable: Iterable[Any] = returned
        return iterable


class _RowError(Exception):
    """A function returned something other than rows with the declared columns."""


def _size(row: tuple[Any, ...]) -> int:
    """Return about the bytes of a row."""
    return sum(_VALUE_BYTES + len(each) if hasattr(each, "__len__") else _VALUE_BYTES for each in row)


def _has_own(row: Any, name: str) -> bool:
    """Return whether an object has an attribute of its own, not one that all objects of its class have."""
    return name in getattr(row, "__dict__", ()) or name in getattr(row, "__dataclass_fields__", ())


def _splitter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of a row in the order of the columns."""
    count = len(names)
    by_name = [operator.attrgetter(name) for name in names]

    def excerpt(row: Any) -> str:
        return repr(row)[:200]

    def wrong(row: Any, values: int) -> _RowError:
        plural, are = "" if values == 1 else "s", "is" if count == 1 else "are"
        return _RowError(
            f"returned a row of {values} value{plural}, {excerpt(row)}, but {count} {are} declared: {', '.join(names)}"
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
            return (by_name[0](row) if _has_own(row, names[0]) else row,)
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
