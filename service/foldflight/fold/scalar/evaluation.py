"""The evaluations of steps: scalar functions row by row or with whole columns, and table functions.

`Instance` has what they share: an instance of the author's class, and errors with their row.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import compress, islice, repeat, starmap
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.failures import Failures, call_if_written, user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Mask, Rows, Slots
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundScalar
from foldflight.functions.types.arrow import in_microseconds, is_nested
from foldflight.functions.types.lists import number_format
from foldflight.functions.types.sql import can_widen, sql_name
from foldflight.functions.types.values import CastError, cast_arguments, cast_results, to_python
from foldflight.functions.types.vectors import ignore_float_errors, is_vector, masked_matrix_of, rows_of_matrix

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
        step.take(rows, index, FunctionError(error.code, error.of_result(step.method_name), function=step.name))
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


# They may have a length, and are not a column.
_NO_COLUMN: Final = (str, bytes, Mapping, AbstractSet, pa.Scalar)


class InterpretedScalar(Instance, Scalar):
    """Calls the author's code for each row."""

    @property
    def mode(self) -> Mode:
        return Mode.INTERPRETED

    def values(self, rows: Rows) -> pa.Array:
        with ignore_float_errors((*self.bound.input_types, self.bound.result_type)):
            return self.values_of_called_rows(rows, self._values)

    def _values(self, rows: Rows) -> pa.Array:
        results: list[Any] = []
        calls = self.calls(rows)
        while len(results) < len(rows):
            try:
                results.extend(calls)  # if a call raises, the results before it are kept
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
                self.fail_row(rows, len(results), error)
                results.append(None)
            else:
                if len(results) < len(rows):  # a call raised StopIteration, which ends the iteration
                    self.fail_row(rows, len(results), StopIteration())
                    results.append(None)
        return cast(self, rows, results, self.bound.result_type)


class VectorisedScalar(Instance, Scalar):
    """Calls the author's code with whole columns."""

    @property
    def mode(self) -> Mode:
        return Mode.VECTORISED

    def values(self, rows: Rows) -> pa.Array:
        return self.values_of_called_rows(rows, self._isolate)

    def _isolate(self, rows: Rows) -> pa.Array:
        """Return the results of n rows. Rows that raise are found by bisection: an exception does not name its row.

        Another number of results than rows is a mistake of the function and not of a row. It is not isolated, because
        single rows could then have wrong results, such as each row its own sum.
        """
        if not len(rows):
            return pa.nulls(0, self.bound.result_type)
        try:
            results = self._call_author(rows)
        except FunctionError as error:
            return self._halves(rows, error)
        self._check_length(rows, results)
        try:
            return self._cast(rows, results)
        except FunctionError as error:
            return self._halves(rows, error)

    def _halves(self, rows: Rows, error: FunctionError) -> pa.Array:
        """Return the results of the two halves of rows of which one raises, or raise the error."""
        if not self.failures.isolates or error.limit is not None:
            raise error
        if len(rows) == 1:
            self.take(rows, 0, error)
            return pa.nulls(1, self.bound.result_type)
        half = np.arange(len(rows)) < len(rows) // 2
        return pa.concat_arrays([self._isolate(rows.filter(half)), self._isolate(rows.filter(~half))])

    def _call_author(self, rows: Rows) -> Any:
        """Return what the author's code returns for n rows."""
        columns = [_argument_column(each, self.bound.function.vectorised) for each in rows.arguments]
        try:
            results = self.methods.eval(*columns)
            if is_vector(self.bound.result_type) and getattr(results, "ndim", 1) == 2:
                results = rows_of_matrix(results)
            return results.combine_chunks() if isinstance(results, pa.ChunkedArray) else results
        except (Exception, SystemExit) as error:
            raise user_failure(self.name, self.method_name, error) from error

    def _check_length(self, rows: Rows, results: Any) -> None:
        length = _length(results)
        if length is None:
            kind = "None" if results is None else f"a {type(results).__name__}"
            raise self._wrong(f"returned {kind}; return a column with one value for each row")
        if length != len(rows):
            raise self._wrong(f"returned {length} values for {len(rows)} rows; return one for each row")

    def _wrong(self, message: str) -> FunctionError:
        return FunctionError("RESULT_TYPE", f"{self.method_name} {message}", function=self.name)

    def _cast(self, rows: Rows, results: Any) -> pa.Array:
        """Return the results in the declared type. A cast that may change values checks each value."""
        type_ = self.bound.result_type
        try:
            array = _array(results)
            if array is not None and can_widen(array.type, type_):
                cast_array, misfits = cast_arguments(array, type_)
                if misfits is None:
                    return cast_array
            if array is None:
                values = _objects(results)
            elif is_nested(array.type) != is_nested(type_):
                raise self._wrong(f"returned values of {sql_name(array.type)}, which do not fit {sql_name(type_)}")
            else:
                values = to_python(array)
        except FunctionError:
            raise
        except Exception as error:  # values without an Arrow type, or without a Python value
            type_text = getattr(results, "type", getattr(results, "dtype", type(results).__name__))
            raise self._wrong(
                f"returned {type_text}, which cannot be read as {sql_name(type_)}: {type(error).__name__}: {error}"
            ) from error
        return cast(self, rows, values, type_)


def _argument_column(column: Column, form: str | None) -> Any:
    """Return n arguments as a column. Raises RejectedError SCHEMA_MISMATCH for a value without a Python object."""
    try:
        return _column(column.array, form)
    except (ValueError, OverflowError, TypeError, pa.ArrowException):
        column.values  # noqa: B018 - its error names the value
        raise


def _column(array: pa.Array | None, form: str | None) -> Any:
    """Return n arguments as a column for a vectorised function."""
    assert array is not None
    if form == "arrow":
        return array
    if pa.types.is_time(array.type) or is_nested(array.type):
        array = in_microseconds(array)  # Python's values have no finer unit
    if form == "pandas":
        return array.to_pandas(types_mapper=_nullable_integers().get)
    if is_vector(array.type):
        return masked_matrix_of(array)
    if number_format(array.type) is None or pa.types.is_decimal(array.type):
        return array.to_numpy(zero_copy_only=False)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    if valid is None:
        return array.to_numpy(zero_copy_only=False)
    filled_array = array.fill_null(_zero(array.type))
    return np.ma.MaskedArray(filled_array.to_numpy(zero_copy_only=False), mask=~valid)


@cache
def _nullable_integers() -> dict[pa.DataType, Any]:
    """Return pandas' types for integers with NULLs. Without them a Series with a NULL holds rounded floats."""
    import pandas as pd

    signed_types = {pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}
    unsigned_types = {pa.uint8(): pd.UInt8Dtype(), pa.uint16(): pd.UInt16Dtype(), pa.uint32(): pd.UInt32Dtype()}
    return {**signed_types, **unsigned_types, pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}


def _objects(results: Any) -> list[Any]:
    """Return n results as a list of Python values. pandas has several objects for a missing value in a Series."""
    if not hasattr(results, "isna"):
        return list(results)
    return [None if is_missing else value for value, is_missing in zip(results, results.isna(), strict=True)]


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Return the value that a masked array has in place of NULL."""
    if pa.types.is_boolean(type_):
        return pa.scalar(False)
    return pa.scalar(0, pa.int32() if type_ == pa.date32() else pa.int64()).cast(type_)


def _length(results: Any) -> int | None:
    """Return the number of values of a column; None for any other value."""
    if isinstance(results, _NO_COLUMN) or getattr(results, "ndim", 1) != 1:
        return None
    try:
        return len(results)
    except Exception:  # noqa: BLE001 - an object of the author
        return None


def _array(results: Any) -> pa.Array | None:
    """Return n results as an Arrow array of their own type; None for a sequence of Python values."""
    if isinstance(results, pa.Array):
        return results
    if isinstance(results, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(results)
        return pa.array(results.filled(), mask=mask) if results.dtype != object else None
    if isinstance(results, np.ndarray):
        return pa.array(results) if results.dtype != object and results.ndim == 1 else None
    dtype = getattr(results, "dtype", None)  # of a Series; a Series of objects holds Python values
    return None if dtype is None or str(dtype) == "object" else pa.Array.from_pandas(results)


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
        masked_rows = rows if mask is None else rows.filter(mask)
        slots = masked_rows.slots.tolist()
        columns = [column.values for column in masked_rows.arguments]  # noqa: PD011 - of a Column
        calls = zip(*columns, strict=True) if columns else repeat(())
        start, size, slot_began = 0, 0, 0
        counts = np.zeros(len(rows), np.int64)
        results: list[tuple[Any, ...]] = []
        for index, (position, arguments) in enumerate(zip(positions, calls, strict=False)):
            if index and slots[index] != slots[index - 1]:
                if len(results) >= _PART_ROWS or size >= _PART_BYTES:
                    yield self._part(rows, start, position, counts, results)
                    start, size, results = position, 0, []
                slot_began = len(results)
            if slots[index] in self.failures:
                continue
            before = len(results)
            self._call(masked_rows, index, arguments, results, ROWS_MAX - (before - slot_began))
            counts[position] = len(results) - before
            if counts[position]:
                size += int(counts[position]) * _size(results[-1])
        yield self._part(rows, start, len(rows), counts, results)

    def _call(self, rows: Rows, index: int, arguments: Sequence[Any], results: list[Any], rows_max: int) -> None:
        """Append the function's rows for one row to `results`; nothing if it fails."""
        before = len(results)
        try:
            result = self.methods.eval(*arguments)
            problem = None if result is None else self._take(self._iterable(result), results, rows_max)
            if problem is None:
                return
            message = f"{self.method_name} returned more than {problem} for one row; check that it ends"
            failure = FunctionError("USER_CODE", message, function=self.name)
        except _RowError as error:
            failure = FunctionError("RESULT_TYPE", f"{self.method_name} {error}", function=self.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code
            del results[before:]
            self.fail_row(rows, index, error)
            return
        del results[before:]
        self.take(rows, index, failure)

    def _take(self, yielded_rows: Iterable[Any], results: list[Any], rows_max: int) -> str | None:
        """Append the function's rows for one row to `results`. Return the limit that they exceed, or None."""
        rows = map(self._split, yielded_rows)
        rows_left, size, row_count = rows_max + 1, 0, _GROUP_ROWS
        while True:
            count = len(results)
            results.extend(islice(rows, min(row_count, rows_left)))
            count = len(results) - count
            rows_left -= count
            if rows_left <= 0:
                return f"{ROWS_MAX} rows"
            if count < row_count:
                return None
            size += count * _size(results[-1])
            if size > _BYTES_MAX:
                return f"{_BYTES_MAX >> 20} MiB"
            row_count = min(2 * row_count, _GROUP_ROWS_MAX)

    def _part(self, rows: Rows, start: int, stop: int, every: Any, results: list[tuple[Any, ...]]) -> Part:
        """Return rows as columns, without the results of rows for which a value does not fit."""
        counts = every[start:stop]
        while True:
            indexes = np.repeat(np.arange(start, stop, dtype=np.int32), counts)
            wrong, columns = self._cast(rows, indexes, results)
            if not wrong:
                break
            right_rows = ~np.isin(indexes, wrong)
            results = list(compress(results, right_rows.tolist()))
            counts[np.array(wrong) - start] = 0
        struct = pa.StructArray.from_arrays(columns, fields=list(self.bound.result_type))
        if not self._outer:
            return Part(stop, indexes, struct)
        failed_mask = self.failures.among(rows.slots[start:stop])
        empty = (np.flatnonzero((counts == 0) & ~failed_mask) + start).astype(np.int32)
        if not len(empty):
            return Part(stop, indexes, struct)
        all_indexes = np.concatenate([indexes, empty])
        order = np.argsort(all_indexes, kind="stable")
        none = (np.arange(len(all_indexes)) >= len(indexes))[order]
        return Part(stop, all_indexes[order], struct.take(pa.array(np.where(none, 0, order), mask=none)))

    def _cast(self, rows: Rows, positions: Slots, results: list[tuple[Any, ...]]) -> tuple[list[int], list[pa.Array]]:
        """Return the indexes of rows with a value that does not fit, and the columns if there are none."""
        wrong: list[int] = []
        columns = []
        split = list(zip(*results, strict=True)) if results else [()] * len(self._names)
        for values, field in zip(split, self.bound.result_type, strict=True):

            def refuse(index: int, error: CastError, name: str = field.name) -> int:
                position = int(positions[index])
                message = f"{self.method_name} returned a row whose column {name} is wrong: {error}"
                self.take(rows, position, FunctionError(error.code, message, function=self.name))
                wrong.append(position)
                return int(np.searchsorted(positions, position, side="right"))

            columns.append(cast_around(values, field.type, refuse))
        return wrong, columns

    def _iterable(self, result: Any) -> Iterable[Any]:
        if isinstance(result, (str, bytes, dict)) or not hasattr(result, "__iter__"):
            raise _RowError(f"returned {type(result).__name__}; yield rows or return a list of rows")
        iterable: Iterable[Any] = result
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
