"""Convert the argument columns of rows to NumPy arrays for compiled code.

A number, date, time, str or bytes is one number. An array is a range of words between two offsets; items of 64 bits
stay in Arrow's buffers, so nothing is copied for a row. A vector is a row of a matrix in these buffers. A struct is
replaced by its fields, each as a column of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.ext.compiler.arena import FORMATS, Contents
from foldflight.fold.aggregate.record_layout import fill_nulls
from foldflight.fold.machine_values import DECIMALS, MOMENTS, TEXTS, to_addresses, to_numbers, to_words, too_long
from foldflight.fold.rows import Mask, Rows
from foldflight.functions.types.vectors import matrix_of


@dataclass(frozen=True)
class Members:
    """The fields of an argument that is a struct: their names, the NumPy types of their columns, and their kinds."""

    names: tuple[str, ...]
    types: tuple[np.dtype[Any], ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Items:
    """The items of an argument that is a vector: their number and their NumPy format, `f4` or `f8`."""

    size: int
    format: str


Kind: TypeAlias = str | Contents | Members | Items
"""The kind of an argument's values, or what the containers in it hold, or the fields of the structs in it."""
_ENTRIES_MAX: Final = 64  # entries of a map in a column: its keys are searched one by one


def columns_of(
    rows: Rows, arguments: Sequence[tuple[Any, Kind]]
) -> tuple[tuple[Any, ...] | None, tuple[Any, ...], Mask | None]:
    """Return the argument columns as arrays of n values, and n flags each; no flags where there is no NULL.

    The last value is a mask of the rows that compiled code does not accept, because of a string that is too long, a
    NULL inside an array or map, or a map of many entries; None if it accepts all rows. The columns are None if one has
    a date, timestamp or map that Python cannot represent, or a decimal of 39 digits. Decimals have shape (n, 2). A
    column of arrays or maps is a pair, both int64: n + 1 offsets and the words of all items. Vectors of k items have
    shape (n, k). `leaves_of` lists the columns.

    Args:
        rows: The rows.
        arguments: The NumPy type and the kind of each argument.
    """
    arrays: list[Any] = []
    for column, (_, kind) in zip(rows.arguments, arguments, strict=True):
        array: Any = column.array
        if isinstance(kind, Members):
            arrays.append(pc.if_else(array.is_valid(), True, pa.scalar(None, pa.bool_())))
        arrays += array.flatten() if isinstance(kind, Members) else [array]
    nulls = any(array.null_count for array in arrays)
    values, valid, unfit = [], [], None
    for array, (dtype, kind) in zip(arrays, leaves_of(arguments), strict=True):
        if nulls:
            valid.append(array.is_valid().to_numpy(zero_copy_only=False))
        converted_column: Any | None
        misfits: Mask | None = None
        if isinstance(kind, Items):
            converted_column = matrix_of(array)
        elif isinstance(kind, Contents):
            converted_column, misfits = _containers(array, kind)
        else:
            converted_column, misfits = _numbers(array, dtype, kind)
        if converted_column is None:
            return None, (), None
        if misfits is not None:
            unfit = misfits if unfit is None else unfit | misfits
        values.append(converted_column)
    return tuple(values), tuple(valid), unfit


def leaves_of(arguments: Sequence[tuple[Any, Kind]]) -> list[tuple[Any, str | Contents | Items]]:
    """Return the types and kinds of the columns. A struct is a column of flags, for its own NULLs, and its fields."""
    leaves: list[tuple[Any, str | Contents | Items]] = []
    for dtype, kind in arguments:
        if isinstance(kind, Members):
            leaves += [(np.dtype(np.bool_), "bool"), *zip(kind.types, kind.kinds, strict=True)]
        else:
            leaves.append((dtype, kind))
    return leaves


def _numbers(array: pa.Array, dtype: Any, kind: str) -> tuple[Any | None, Mask | None]:
    """Return n values as numbers (arbitrary for NULL), and a mask of the strings that are too long, if any.

    The numbers are None if Python or compiled code cannot represent one of the values.
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
        numbers = (fill_nulls(array) if array.null_count else array).to_numpy(zero_copy_only=False)
        if numbers.dtype == dtype and numbers.flags.aligned and numbers.flags.c_contiguous:
            return numbers, None
    return None if numbers is None else np.require(numbers, dtype, ["C", "A"]), unfit


def _containers(array: pa.Array, contents: Contents) -> tuple[Any | None, Mask | None]:
    """Return the offsets and words of n arrays or maps, and a mask of values that compiled code does not accept."""
    offsets = np.asarray(array.offsets.to_numpy(), np.int64)
    first, last = offsets[[0, -1]].tolist()
    offsets = offsets - first
    columns, unfit = [], np.zeros(len(array), np.bool_)
    if contents.value is None:
        parts = [(contents.key, array.values)]
    else:
        parts = [(contents.key, array.keys), (contents.value, array.items)]
        unfit = np.diff(offsets) > _ENTRIES_MAX
        if _is_twice(array.keys.slice(first, last - first), offsets):
            return None, None
    for part, whole in parts:
        items, kind = whole.slice(first, last - first), part.kinds[0]
        words, misfits = _numbers(items, np.dtype(FORMATS[kind]), kind)
        if words is None:
            return None, None
        columns.append(words.astype(np.int64) if kind == "bool" else words.view(np.int64))
        for each in (misfits, items.is_null().to_numpy(zero_copy_only=False) if items.null_count else None):
            if each is not None:
                unfit[np.searchsorted(offsets, np.flatnonzero(each), "right") - 1] = True
    words = columns[0] if len(columns) == 1 else np.column_stack(columns).reshape(-1)
    return (offsets, words), unfit if unfit.any() else None


def _is_twice(keys: pa.Array, offsets: Any) -> bool:
    """Return whether a map may contain a key twice, which is an error of the whole chunk."""
    counts = np.diff(offsets)
    if counts.max(initial=0) < 2:
        return False
    keys = pc.add(keys, 0.0) if pa.types.is_floating(keys.type) else keys  # -0.0 is 0.0
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    pairs = np.sort(np.repeat(np.arange(len(counts)), counts) * len(keys) + codes)
    return bool((pairs[1:] == pairs[:-1]).any())
