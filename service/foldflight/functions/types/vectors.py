"""Vectors: lists of a fixed number of floats, which are NumPy arrays in authors' code.

`VECTOR(n)` has 32-bit floats, `VECTOR(n, DOUBLE)` 64-bit ones. In Arrow it is a FixedSizeList whose items cannot be
NULL. This tells it from `pa.list_(pa.float32(), n)`, whose values are lists in Python.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ITEMS_MAX: Final = 1 << 16
"""Maximum number of items: NULL takes as much memory as any other vector."""


def vector_type(size: int, item: pa.DataType) -> pa.DataType:
    """Return the type of vectors of `size` floats of the type `item`."""
    return pa.list_(pa.field("item", item, nullable=False), size)


def _reduce(type_: pa.FixedSizeListType) -> tuple[Any, tuple[pa.Field, int]]:
    return pa.list_, (type_.value_field, type_.list_size)


# Arrow's own pickles of these types omit that the items cannot be NULL (findings/pyarrow-fixed-size-list-pickle.sh).
copyreg.pickle(pa.FixedSizeListType, _reduce)


def is_vector(type_: pa.DataType) -> bool:
    """Return whether a type is a VECTOR."""
    kinds = pa.types
    return bool(
        kinds.is_fixed_size_list(type_)
        and not type_.value_field.nullable
        and (kinds.is_float32(type_.value_type) or kinds.is_float64(type_.value_type))
    )


class Vector:
    """The annotation of vectors: `Vector[384]` is VECTOR(384), `Vector[384, np.float64]` is VECTOR(384, DOUBLE).

    Arguments are read-only NumPy arrays of shape (384,), float32 or float64. Attributes of accumulators have exactly
    the annotated type. A sum should have 64 bits: `total: Vector[384, np.float64]`. Type checkers do not take numbers
    there; for them, name the type as an alias of `Annotated`, which means the same:

        Embedding: TypeAlias = Annotated[NDArray[np.float32], "VECTOR(384)"]
        Total: TypeAlias = Annotated[NDArray[np.float64], "VECTOR(384, DOUBLE)"]

    >>> from foldflight import Vector
    >>> import numpy as np
    >>> Vector[3, np.float64]
    typing.Annotated[numpy.ndarray, 'VECTOR(3, DOUBLE)']
    """

    def __class_getitem__(cls, parameters: Any) -> Any:
        size, item = parameters if isinstance(parameters, tuple) else (parameters, np.float32)
        names = {np.dtype(np.float32): "", np.dtype(np.float64): ", DOUBLE"}
        return Annotated[np.ndarray, f"VECTOR({size}{names.get(np.dtype(item), f', {item}')})"]


def has_vectors(type_: pa.DataType) -> bool:
    """Return whether a type is a VECTOR, or has one inside."""
    return is_vector(type_) or any(has_vectors(type_.field(index).type) for index in range(type_.num_fields))


def ignore_float_errors(types: Iterable[pa.DataType]) -> AbstractContextManager[object]:
    """Return a context for authors' code over values of these types.

    Where there are vectors, NumPy makes infinities and NaN in it without a warning, as compiled code does.
    """
    return np.errstate(all="ignore") if any(map(has_vectors, types)) else nullcontext()


def matrix_of(array: pa.Array) -> npt.NDArray[np.floating[Any]]:
    """Return n vectors of k items as a read-only array of shape (n, k) without a copy; what NULL has is arbitrary.

    Raises:
        ValueError: A vector has a NULL item, which Arrow does not prevent.
    """
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if items.null_count:
        hidden_mask = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
        bare = np.flatnonzero(items.is_null().to_numpy(zero_copy_only=False) & ~hidden_mask)
        if len(bare):
            raise ValueError(f"item {bare[0] % size} of a vector of {size} items is NULL")
        items = items.fill_null(0.0)
    matrix: npt.NDArray[np.floating[Any]] = items.to_numpy().reshape(len(array), size)
    return matrix


def masked_matrix_of(array: pa.Array) -> npt.NDArray[np.floating[Any]]:
    """Return n vectors of k items as an array of shape (n, k); where there is a NULL, a masked array."""
    matrix = matrix_of(array)
    if not array.null_count:
        return matrix
    null = np.repeat(array.is_null().to_numpy(zero_copy_only=False)[:, None], matrix.shape[1], axis=1)
    return np.ma.MaskedArray(matrix, mask=null)


def rows_of_matrix(matrix: npt.NDArray[Any]) -> list[Any]:
    """Return the rows of an array of shape (n, k); None for rows that are masked as a whole."""
    if not isinstance(matrix, np.ma.MaskedArray):
        return list(matrix)
    masks = np.ma.getmaskarray(matrix)
    return [None if mask.all() else row for row, mask in zip(matrix, masks, strict=True)]


def vectors_of(array: pa.Array) -> list[Any]:
    """Return n vectors as NumPy arrays, read-only and not copied; None for NULL."""
    vectors: list[Any] = list(matrix_of(array))
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            vectors[index] = None
    return vectors


def from_matrix(matrix: npt.NDArray[Any], type_: pa.DataType, missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return the rows of an array of shape (n, k), of the items' type, as n vectors; NULL where `missing` is true."""
    items = pa.array(np.ascontiguousarray(matrix).reshape(-1), type_.value_type)
    mask = None if missing is None or not missing.any() else pa.array(missing)
    return pa.FixedSizeListArray.from_arrays(items, type=type_, mask=mask)


def vector_misfit(value: Any, type_: pa.DataType) -> str | None:
    """Return why a Python value is no vector of a type; None if it is one, after its items are rounded to the type.

    Lists and tuples of ints and floats, and NumPy arrays of integers and floats, are vectors if their length is right.
    """
    size = type_.list_size
    if isinstance(value, np.ndarray):
        if value.shape != (size,):
            return f"it has the shape {value.shape}"
        if value.dtype.kind not in "fiuO":
            return f"its items are {value.dtype}"
        if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
            return f"its item {int(np.ma.getmaskarray(value).argmax())} is masked"
    elif not isinstance(value, (list, tuple)):
        return "it is neither an array nor a list"
    elif len(value) != size:
        return f"it has {len(value)} items"
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return None
    kinds = (int, float, np.floating, np.integer)
    wrong = next((at for at, each in enumerate(value) if not isinstance(each, kinds) or isinstance(each, bool)), None)
    return None if wrong is None else f"its item {wrong} is {value[wrong]!r}"


def first_beyond(wide: npt.NDArray[Any], narrow: npt.NDArray[Any]) -> int | None:
    """Return the first row of two arrays of shape (n, k) in which a finite number of `wide` is infinite in `narrow`."""
    rows = (np.isinf(narrow) & np.isfinite(wide)).any(axis=1)
    return int(rows.argmax()) if rows.any() else None


def as_vectors(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Return n lists of floats, of any or a fixed length, as vectors of k items, and which of them are none.

    A list of another length, or with a NULL item, is no vector, and is NULL in the result. The items of `array` have
    the type of the vectors' items, or a narrower one.

    Returns:
        The vectors, and which lists are none; bool, shape (n,), or None if all are vectors.
    """
    size = type_.list_size
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_), None
    if array.type == type_ and not array.values.null_count:
        return array, None
    null = array.is_null().to_numpy(zero_copy_only=False)
    if pa.types.is_fixed_size_list(array.type):
        starts, lengths = np.arange(len(array)) * array.type.list_size, np.full(len(array), array.type.list_size)
        items = array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
        items = array.values[offsets[0] : offsets[-1]]
    wrong = ~null & (lengths != size)
    if items.null_count:
        before = np.concatenate([[0], np.cumsum(items.is_null().to_numpy(zero_copy_only=False))])
        wrong |= ~null & (before[starts + lengths] > before[starts])
        items = items.fill_null(0.0)
    numbers = items.to_numpy().astype(type_.value_type.to_pandas_dtype(), copy=False)
    missing = null | wrong
    is_regular = len(numbers) == len(array) * size and (starts == np.arange(len(array)) * size).all()
    if is_regular and (lengths == size).all():
        matrix = numbers.reshape(len(array), size)
    else:
        matrix = np.zeros((len(array), size), numbers.dtype)
        matrix[~missing] = numbers[starts[~missing][:, None] + np.arange(size)]
    return from_matrix(matrix, type_, missing), wrong if wrong.any() else None


def list_misfit(value: pa.Scalar, type_: pa.DataType) -> str:
    """Return why a list, one that `as_vectors` refuses, is no vector."""
    if len(value) != type_.list_size:
        return f"it has {len(value)} items"
    return f"its item {pc.index(pc.is_null(value.values), True).as_py()} is NULL"
