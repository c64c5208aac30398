"""The rows and argument columns that are passed to accumulators, and their order.

`sort` orders rows by several columns and finds equal rows, without Python code for each row. The values of a column
become whole numbers that ascend as the values do, and are equal exactly where the values are: all NaN are equal and the
greatest number, -0.0 equals 0.0, texts are compared by their code points. The numbers of a row, and after them its
position, are packed into one number of 64 bits, so that one sort of numbers sorts the rows. Where they do not fit, the
numbers so far are replaced by their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FunctionError, RejectedError
from foldflight.functions.query.call import Order
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import cast_arguments, to_python
from foldflight.functions.types.vectors import is_vector, list_misfit

# The exceptions of Arrow and of the JSON parser for values without a Python object; RecursionError for deep JSON.
_NO_VALUE: Final = (ValueError, TypeError, OverflowError, KeyError, RecursionError, pa.ArrowException)

# The most slots by which a table grows at once: a large one must not double its memory.
_GROWTH_MAX: Final = 1 << 20

ROW: Final = "row"
"""The column of answers with the number of the row of the chunk. Answers have it if a step is a table function."""

Slots = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Column:
    """One argument of n rows: an Arrow array, which is converted to Python values on demand.

    Args:
        name: Name of the argument's column.
        array: The values.
        values: The same values as Python objects, if they are known already.
        misfits: The values that did not fit the argument's type, and are NULL in `array`; NULL elsewhere.
    """

    def __init__(
        self,
        name: str,
        array: pa.Array | None,
        values: list[Any] | None = None,
        misfits: pa.Array | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.misfits = misfits
        if values is not None:
            self.values = values

    @classmethod
    def cast(cls, name: str, array: pa.Array, type_: pa.DataType) -> Column:
        """Return a column of the declared type. Raises RejectedError SCHEMA_MISMATCH as `cast_arguments` does."""
        values, misfits = cast_arguments(array, type_)
        if misfits is None:
            return cls(name, values)
        return cls(name, values, misfits=pc.if_else(pa.array(misfits), array, pa.scalar(None, array.type)))

    @cached_property
    def values(self) -> list[Any]:
        """The n values as Python objects; NULL is None.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a value without a Python object: invalid JSON, a year after 9999, a map
                with a duplicate key.
        """
        try:
            return to_python(self.array)
        except _NO_VALUE as error:
            raise RejectedError("SCHEMA_MISMATCH", _conversion_problem(self.name, self.array, error)) from None

    def filter(self, mask: Mask) -> Column:
        """Return the rows where the mask is true."""
        if self.array is None:
            return Column(self.name, None, [value for value, keep in zip(self.values, mask, strict=True) if keep])
        return Column(self.name, self.array.filter(pa.array(mask)))

    def part(self, start: int, stop: int) -> Column:
        """Return the rows from `start` to before `stop`."""
        if self.array is None:
            return Column(self.name, None, self.values[start:stop])
        return Column(self.name, self.array.slice(start, stop - start))


def _conversion_problem(name: str, array: pa.Array, error: Exception) -> str:
    """Return the text of the error, with the first row that has no Python value."""
    column = f"the argument {name} ({sql_name(array.type)})"
    for index in range(len(array)):
        try:
            to_python(array.slice(index, 1))
        except _NO_VALUE as first:
            return f"{column} has no Python value in row {index} of the {len(array)} rows of the call: {first}"
    return f"{column} has no Python values: {error}"


@dataclass(frozen=True)
class Rows:
    """The rows of one chunk for one call.

    Args:
        slots: int32, shape (n,): the slot of each row.
        retracts: bool, shape (n,): which rows are retractions; None if there are none.
        arguments: The argument columns, n rows each.
    """

    slots: Slots
    retracts: Mask | None
    arguments: Sequence[Column]

    def __len__(self) -> int:
        return len(self.slots)

    def filter(self, mask: Mask) -> Rows:
        """Return the rows where the mask is true."""
        if mask.all():
            return self
        retracts = None if self.retracts is None else self.retracts[mask]
        return Rows(
            slots=self.slots[mask],
            retracts=retracts if retracts is not None and retracts.any() else None,
            arguments=[column.filter(mask) for column in self.arguments],
        )

    def part(self, start: int, stop: int | None = None) -> Rows:
        """Return the rows from `start` to before `stop`, or to the end."""
        stop = len(self) if stop is None else stop
        if start == 0 and stop == len(self):
            return self
        retracts = None if self.retracts is None else self.retracts[start:stop]
        return Rows(
            slots=self.slots[start:stop],
            retracts=retracts if retracts is not None and retracts.any() else None,
            arguments=[column.part(start, stop) for column in self.arguments],
        )

    def misfits(self, function: str, mask: Mask | None) -> Iterator[tuple[int, FunctionError]]:
        """Yield the rows of `mask` (None: all) with an argument that does not fit its type, each with an error.

        Args:
            function: The function, for the error.
            mask: bool, shape (n,).
        """
        for column in self.arguments:
            if column.misfits is None or column.array is None:
                continue
            misfit_mask = column.misfits.is_valid().to_numpy(zero_copy_only=False)
            type_ = sql_name(column.array.type)
            for index in np.flatnonzero(misfit_mask if mask is None else misfit_mask & mask).tolist():
                value = column.misfits[index]
                if is_vector(column.array.type):
                    reason, remedy = list_misfit(value, column.array.type), "correct it or leave it out in the query"
                    message = f"the argument {column.name} has a list that is no {type_}: {reason}; {remedy}"
                else:
                    message = (
                        f"the argument {column.name} is {value}, which does not fit {type_}; round it or "
                        "leave it out in the query, or declare a wider type"
                    )
                yield index, FunctionError("OVERFLOW", message, function=function, row=self.describe(index))

    @staticmethod
    def without_nulls(columns: Iterable[Column], mask: Mask | None = None) -> Mask | None:
        """Return which rows of `mask` (None: all) have a value in each of these columns; None for all rows."""
        for column in columns:
            if column.array is not None and column.array.null_count:
                valid = column.array.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
        return mask

    def describe(self, index: int) -> str:
        """Return the row at `index` as text for an error: its values."""
        texts = []
        for column in self.arguments:
            misfit = None if column.misfits is None else column.misfits[index].as_py()
            # A method may have changed the lists and dicts that it was given.
            text = _text(column, index) if misfit is None else str(misfit)
            texts.append(f"{column.name}={text if len(text) <= 200 else text[:200] + '...'}")
        # Readers know the values of their rows. How rows came into chunks is the engine's matter.
        return ", ".join(texts) or "without arguments"


def _text(column: Column, index: int) -> str:
    if column.array is None:
        return repr(column.values[index])
    try:
        value = to_python(column.array.slice(index, 1))[0]
        return repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except _NO_VALUE:
        return str(column.array.slice(index, 1))


def hashable_key(value: Any) -> Any:
    """Return a hashable key that is equal for equal values. NaN equals NaN, and JSON's true does not equal 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - only NaN differs from itself
        return math.nan
    if isinstance(value, (tuple, list)):
        return tuple(hashable_key(each) for each in value)
    if isinstance(value, np.ndarray):  # a vector
        return tuple(map(hashable_key, value.tolist()))
    if isinstance(value, dict):
        return frozenset((hashable_key(key), hashable_key(each)) for key, each in value.items())
    return value


def capacity_for(capacity_min: int, capacity: int) -> int:
    """Return the new capacity in slots, given the present one, with a reserve so that slow growth causes few copies."""
    return max(capacity_min, min(2 * capacity, capacity + _GROWTH_MAX))


Positions = npt.NDArray[np.int64]

_WIDTH_MAX: Final = 63  # bits of a packed number, which is signed
_LARGEST: Final = np.int64(0x7FFF_FFFF_FFFF_FFFF)


class Codes(NamedTuple):
    """The values of one column as whole numbers.

    Args:
        numbers: int64, shape (n,), from 0 to less than `2**width`.
        width: The bits of a number.
    """

    numbers: Positions
    width: int

    def take(self, rows: Positions) -> Codes:
        """Return the numbers of these rows."""
        return Codes(self.numbers[rows], self.width)


def codes_of(column: Column, order: Order | None = None) -> Codes:
    """Return the values of a column as numbers.

    Args:
        column: n values.
        order: How they are ordered. Without it, only equal values have equal numbers.

    Raises:
        RejectedError: SCHEMA_MISMATCH, for a value of a nested type without a Python object.
    """
    array = column.array
    assert array is not None
    numbers = _numbers(array)
    if numbers is None:
        numbers = _numbers_of_objects(column, order)
    elif order is not None and order.descending:
        numbers = ~numbers
    if not array.null_count:
        return _narrow(numbers)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    valid_numbers, width = _narrow(numbers[valid])
    is_first = order is None or order.nulls_first
    codes = np.full(len(array), 0 if is_first else valid_numbers.max(initial=0) + 1, np.int64)
    codes[valid] = valid_numbers + is_first
    return Codes(codes, width + 1)


def codes_of_numbers(numbers: npt.NDArray[Any]) -> Codes:
    """Return whole numbers as codes."""
    return _narrow(numbers.astype(np.int64, copy=False))


def sort(columns: Sequence[Codes]) -> tuple[Positions, Mask]:
    """Sort n rows by one or more columns, the first one first; equal rows keep their order.

    Returns:
        The rows in their order, int64, shape (n,); and which of them differ from the row before, bool, shape (n,).
    """
    count = len(columns[0].numbers)
    if not count:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    position_bits = (count - 1).bit_length()
    keys, width = columns[0]
    for each in columns[1:]:
        numbers, bits = each
        if width + bits > _WIDTH_MAX:
            keys, width = _ranks(keys), position_bits
        if width + bits > _WIDTH_MAX:
            numbers, bits = _ranks(numbers), position_bits
        keys, width = keys << bits | numbers, width + bits
    if width + position_bits > _WIDTH_MAX:
        keys = _ranks(keys)
    sorted_keys = np.sort(keys << position_bits | np.arange(count))
    differs = np.ones(count, np.bool_)
    values = sorted_keys >> position_bits
    differs[1:] = values[1:] != values[:-1]
    return sorted_keys & ((1 << position_bits) - 1), differs


def _ranks(numbers: Positions) -> Positions:
    ranks: Positions = np.unique(numbers, return_inverse=True)[1]
    return ranks


def _narrow(numbers: Positions) -> Codes:
    """Return numbers in the same order that begin at 0."""
    if not len(numbers):
        return Codes(numbers, 0)
    low, high = int(numbers.min()), int(numbers.max())
    width = (high - low).bit_length()
    if width >= _WIDTH_MAX:  # one bit is for NULL
        return Codes(_ranks(numbers), (len(numbers) - 1).bit_length())
    return Codes(numbers - low, width)


def _numbers(array: pa.Array) -> Positions | None:
    """Return n values as numbers (any number for NULL); None for values that only Python compares."""
    type_, kinds = array.type, pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return None
    if kinds.is_floating(type_):
        # Adding 0 removes the sign of -0.0.
        values = array.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        bits = values.view(np.int64)
        return np.where(bits < 0, bits ^ _LARGEST, bits)
    if kinds.is_boolean(type_):
        return array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)
    if kinds.is_integer(type_) or (kinds.is_temporal(type_) and not kinds.is_interval(type_)):
        whole = array if kinds.is_integer(type_) else array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
        numbers = whole.fill_null(0).to_numpy(zero_copy_only=False)
        if numbers.dtype == np.uint64:
            return (numbers ^ np.uint64(1 << 63)).view(np.int64)
        return numbers.astype(np.int64, copy=False)
    is_text = kinds.is_string(type_) or kinds.is_large_string(type_)
    if is_text or kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_decimal(type_):
        return _ranks_by_dictionary(array, is_text=is_text)
    return None


def _ranks_by_dictionary(array: pa.Array, *, is_text: bool) -> Positions:
    """Return n texts, bytes or decimals as the ranks of their distinct values."""
    if pa.types.is_decimal(array.type) and array.type.byte_width < 16:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    if is_text:  # a text of Spark need not be UTF-8
        values = values.cast(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
    ranks = np.empty(len(values), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    if not len(ranks):
        return np.zeros(len(array), np.int64)
    return ranks[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]


def _numbers_of_objects(column: Column, order: Order | None) -> Positions:
    """Return n values as numbers by their Python objects."""
    code_by_key: dict[Any, int] = {}
    ids = [code_by_key.setdefault(key, len(code_by_key)) for key in map(hashable_key, column.values)]
    if order is None:
        return np.array(ids, np.int64)
    first: dict[int, Any] = {}
    for each, value in zip(ids, column.values, strict=True):
        first.setdefault(each, value)
    ranks = np.empty(len(first), np.int64)
    sorted_indexes = sorted(first, key=lambda each: order.sort_key(first[each]), reverse=order.descending)
    ranks[sorted_indexes] = np.arange(len(first))
    return ranks[ids]
