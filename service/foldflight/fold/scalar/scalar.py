"""Scalar functions: called row by row, or with whole columns."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.failures import user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import Instance, Scalar, cast
from foldflight.functions.types.arrow import in_microseconds, is_nested
from foldflight.functions.types.columns import number_format
from foldflight.functions.types.sql import can_widen, sql_name
from foldflight.functions.types.values import cast_arguments, to_python
from foldflight.functions.types.vectors import ignore_float_errors, is_vector, masked_matrix_of, rows_of_matrix

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
            returned = self._call_author(rows)
        except FunctionError as error:
            return self._halves(rows, error)
        self._check_length(rows, returned)
        try:
            return self._cast(rows, returned)
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
            returned = self.methods.eval(*columns)
            if is_vector(self.bound.result_type) and getattr(returned, "ndim", 1) == 2:
                returned = rows_of_matrix(returned)
            return returned.combine_chunks() if isinstance(returned, pa.ChunkedArray) else returned
        except (Exception, SystemExit) as error:
            raise user_failure(self.name, self.method_name, error) from error

    def _check_length(self, rows: Rows, returned: Any) -> None:
        length = _length(returned)
        if length is None:
            kind = "None" if returned is None else f"a {type(returned).__name__}"
            raise self._wrong(f"returned {kind}; return a column with one value for each row")
        if length != len(rows):
            raise self._wrong(f"returned {length} values for {len(rows)} rows; return one for each row")

    def _wrong(self, message: str) -> FunctionError:
        return FunctionError("RESULT_TYPE", f"{self.method_name} {message}", function=self.name)

    def _cast(self, rows: Rows, returned: Any) -> pa.Array:
        """Return the results in the declared type. A cast that may change values checks each value."""
        type_ = self.bound.result_type
        try:
            array = _array(returned)
            if array is not None and can_widen(array.type, type_):
                converted, misfits = cast_arguments(array, type_)
                if misfits is None:
                    return converted
            if array is None:
                values = _objects(returned)
            elif is_nested(array.type) != is_nested(type_):
                raise self._wrong(f"returned values of {sql_name(array.type)}, which do not fit {sql_name(type_)}")
            else:
                values = to_python(array)
        except FunctionError:
            raise
        except Exception as error:  # values without an Arrow type, or without a Python value
            type_text = getattr(returned, "type", getattr(returned, "dtype", type(returned).__name__))
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
    filled = array.fill_null(_zero(array.type))
    return np.ma.MaskedArray(filled.to_numpy(zero_copy_only=False), mask=~valid)


@cache
def _nullable_integers() -> dict[pa.DataType, Any]:
    """Return pandas' types for integers with NULLs. Without them a Series with a NULL holds rounded floats."""
    import pandas as pd

    signed = {pa.int8(): pd.Int8Dtype(), pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype()}
    unsigned = {pa.uint8(): pd.UInt8Dtype(), pa.uint16(): pd.UInt16Dtype(), pa.uint32(): pd.UInt32Dtype()}
    return {**signed, **unsigned, pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}


def _objects(returned: Any) -> list[Any]:
    """Return n results as a list of Python values. pandas has several objects for a missing value in a Series."""
    if not hasattr(returned, "isna"):
        return list(returned)
    return [None if is_missing else value for value, is_missing in zip(returned, returned.isna(), strict=True)]


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Return the value that a masked array has in place of NULL."""
    if pa.types.is_boolean(type_):
        return pa.scalar(False)
    return pa.scalar(0, pa.int32() if type_ == pa.date32() else pa.int64()).cast(type_)


def _length(returned: Any) -> int | None:
    """Return the number of values of a column; None for any other value."""
    if isinstance(returned, _NO_COLUMN) or getattr(returned, "ndim", 1) != 1:
        return None
    try:
        return len(returned)
    except Exception:  # noqa: BLE001 - an object of the author
        return None


def _array(returned: Any) -> pa.Array | None:
    """Return n results as an Arrow array of their own type; None for a sequence of Python values."""
    if isinstance(returned, pa.Array):
        return returned
    if isinstance(returned, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(returned)
        return pa.array(returned.filled(), mask=mask) if returned.dtype != object else None
    if isinstance(returned, np.ndarray):
        return pa.array(returned) if returned.dtype != object and returned.ndim == 1 else None
    dtype = getattr(returned, "dtype", None)  # of a Series; a Series of objects holds Python values
    return None if dtype is None or str(dtype) == "object" else pa.Array.from_pandas(returned)
