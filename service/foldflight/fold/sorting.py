"""Sorts rows by several columns and finds equal rows, without Python code for each row.

The values of a column become whole numbers that ascend as the values do, and are equal exactly where the values are:
all NaN are equal and the greatest number, -0.0 equals 0.0, texts are compared by their code points. The numbers of a
row, and after them its position, are packed into one number of 64 bits, so that one sort of numbers sorts the rows.
Where they do not fit, the numbers so far are replaced by their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.fold.rows import Column, Mask, frozen
from foldflight.functions.query.call import Order

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
    known, width = _narrow(numbers[valid])
    is_first = order is None or order.nulls_first
    placed = np.full(len(array), 0 if is_first else known.max(initial=0) + 1, np.int64)
    placed[valid] = known + is_first
    return Codes(placed, width + 1)


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
    place = (count - 1).bit_length()
    packed, width = columns[0]
    for each in columns[1:]:
        numbers, more = each
        if width + more > _WIDTH_MAX:
            packed, width = _ranks(packed), place
        if width + more > _WIDTH_MAX:
            numbers, more = _ranks(numbers), place
        packed, width = packed << more | numbers, width + more
    if width + place > _WIDTH_MAX:
        packed = _ranks(packed)
    placed = np.sort(packed << place | np.arange(count))
    differs = np.ones(count, np.bool_)
    heads = placed >> place
    differs[1:] = heads[1:] != heads[:-1]
    return placed & ((1 << place) - 1), differs


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
        return _numbers_of_few(array, is_text=is_text)
    return None


def _numbers_of_few(array: pa.Array, *, is_text: bool) -> Positions:
    """Return n texts, bytes or decimals as the ranks of the different ones."""
    if pa.types.is_decimal(array.type) and array.type.byte_width < 16:
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    different = array.dictionary_encode()
    values = different.dictionary
    if is_text:  # a text of Spark need not be UTF-8
        values = values.cast(pa.large_binary() if pa.types.is_large_string(values.type) else pa.binary())
    ranks = np.empty(len(values), np.int64)
    ranks[pc.sort_indices(values).to_numpy()] = np.arange(len(values))
    if not len(ranks):
        return np.zeros(len(array), np.int64)
    return ranks[different.indices.fill_null(0).to_numpy(zero_copy_only=False)]


def _numbers_of_objects(column: Column, order: Order | None) -> Positions:
    """Return n values as numbers by their Python objects."""
    known: dict[Any, int] = {}
    ids = [known.setdefault(key, len(known)) for key in map(frozen, column.values)]
    if order is None:
        return np.array(ids, np.int64)
    first: dict[int, Any] = {}
    for each, value in zip(ids, column.values, strict=True):
        first.setdefault(each, value)
    ranks = np.empty(len(first), np.int64)
    ascending = sorted(first, key=lambda each: order.sort_key(first[each]), reverse=order.descending)
    ranks[ascending] = np.arange(len(first))
    return ranks[ids]
