"""The argument columns of rows as NumPy arrays for compiled code.

A number, moment or text is one number. An array is the words of its items, which are Arrow's where these have 64 bits,
between two offsets; so nothing is copied for a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from foldflight.compiler.heap import Holding
from foldflight.fold.aggregate.records import filled
from foldflight.fold.decimals import DECIMALS, to_words
from foldflight.fold.moments import MOMENTS, to_numbers
from foldflight.fold.rows import Mask, Rows
from foldflight.fold.texts import TEXTS, to_addresses, too_long

__all__ = ["Kind", "columns_of"]

Kind: TypeAlias = str | Holding
"""The kind of an argument's values, or what the containers in it hold."""
_WORDS: Final = {"float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}


def columns_of(
    rows: Rows, arguments: Sequence[tuple[Any, Kind]]
) -> tuple[tuple[Any, ...] | None, tuple[Any, ...], Mask | None]:
    """Return the argument columns as arrays of n values, and n flags each; no flags where there is no NULL.

    The last value tells which rows compiled code does not take, for a text that is too long, or a NULL within an array;
    None if there are none. There are no columns where one holds a date or timestamp that Python does not have, or a
    decimal of 39 digits. Decimals are arrays of shape (n, 2). A column of arrays is a pair: n + 1 offsets and the words
    of all items, both int64.

    Args:
        rows: The rows.
        arguments: The NumPy type and the kind of each argument.
    """
    arrays: list[Any] = [column.array for column in rows.arguments]
    nulls = any(array.null_count for array in arrays)
    values, valid, unfit = [], [], None
    for array, (dtype, kind) in zip(arrays, arguments, strict=True):
        if nulls:
            valid.append(array.is_valid().to_numpy(zero_copy_only=False))
        found, misfits = _containers(array, kind) if isinstance(kind, Holding) else _numbers(array, dtype, kind)
        if found is None:
            return None, (), None
        if misfits is not None:
            unfit = misfits if unfit is None else unfit | misfits
        values.append(found)
    return tuple(values), tuple(valid), unfit


def _numbers(array: pa.Array, dtype: Any, kind: str) -> tuple[Any | None, Mask | None]:
    """Return n values as numbers, anything for NULL, and which of them are texts that are too long, if there are any.

    There are no numbers if Python, or compiled code, does not have one of the values.
    """
    unfit = None
    if kind in TEXTS:
        numbers = to_addresses(array)
        if numbers is None and (unfit := too_long(array)) is not None:
            numbers = to_addresses(array, unfit)
    elif kind in DECIMALS:
        numbers = to_words(array)
    elif kind in MOMENTS:
        numbers = to_numbers(array, kind)
    else:
        numbers = (filled(array) if array.null_count else array).to_numpy(zero_copy_only=False)
        if numbers.dtype == dtype and numbers.flags.aligned and numbers.flags.c_contiguous:
            return numbers, None
    return None if numbers is None else np.require(numbers, dtype, ["C", "A"]), unfit


def _containers(array: pa.Array, holding: Holding) -> tuple[Any | None, Mask | None]:
    """Return the offsets and words of n arrays, and which of them have an item that compiled code does not take."""
    offsets = np.asarray(array.offsets.to_numpy(), np.int64)
    first, last = offsets[[0, -1]].tolist()
    offsets = offsets - first
    items = array.values.slice(first, last - first)
    kind = holding.key.kinds[0]
    words, misfits = _numbers(items, _WORDS.get(kind, np.dtype(np.int64)), kind)
    if words is None:
        return None, None
    words = words.astype(np.int64) if kind == "bool" else words.view(np.int64)
    if items.null_count:
        nulls = items.is_null().to_numpy(zero_copy_only=False)
        misfits = nulls if misfits is None else misfits | nulls
    unfit = None
    if misfits is not None:
        unfit = np.zeros(len(array), np.bool_)
        unfit[np.searchsorted(offsets, np.flatnonzero(misfits), "right") - 1] = True
    return (offsets, words), unfit
