"""What differs between versions of Arrow, from the oldest that platforms ship (15) to the newest.

The functions here do what methods of newer versions do, in the same way on each version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

# Arrow 19 and newer. Older ones have no type for JSON, so its names are refused there.
JSON: Final[pa.DataType | None] = pa.json_() if hasattr(pa, "json_") else None

# In newer versions; for many small batches several times as fast as to concatenate each column.
_CONCAT: Final[Callable[..., pa.RecordBatch] | None] = getattr(pa, "concat_batches", None)

# Whether `to_pylist` makes texts, and rows of numbers and texts, without a scalar for each value.
NESTS_QUICKLY: Final = int(pa.__version__.partition(".")[0]) >= 26


def _test(name: str) -> Callable[[pa.DataType], bool]:
    """Return a test of `pyarrow.types`; where it is missing, no type passes it."""
    return getattr(pa.types, name, lambda _: False)


# Arrow 16 and newer
is_string_view: Final = _test("is_string_view")
is_binary_view: Final = _test("is_binary_view")
is_list_view: Final = _test("is_list_view")
is_large_list_view: Final = _test("is_large_list_view")


def is_json(type_: Any) -> bool:
    """Return whether a type is Arrow's JSON."""
    return JSON is not None and isinstance(type_, pa.JsonType)


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of one or more batches with the same schema as one batch."""
    first = batches[0]
    if _CONCAT is not None and all(batch.schema == first.schema for batch in batches):
        return _CONCAT(batches)
    if not first.num_columns:  # then only these have the number of rows
        rows = sum(batch.num_rows for batch in batches)
        return pa.record_batch([pa.nulls(rows)], names=[""]).select([])
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(first.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=first.schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of a column as one array, as `combine_chunks` does not for all types.

    It fails for a struct with JSON that has no chunks, and older versions of it leave the chunks of JSON apart.
    """
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


# What concat_arrays, take and cast say; of numbers Arrow says only "overflow".
_OFFSET_OVERFLOWS: Final = (
    "overflow while concatenating",
    "overflow when concatenating",
    "overflowed binary array",
    "input array too large",
)


def is_overflow(error: Exception) -> bool:
    """Return whether an operation failed because an array would have more than 2 GiB.

    Arrow's arrays of texts, bytes and lists have offsets of 32 bits. Beyond them some operations raise an error that
    says so, and others return several chunks, which are refused where an array is expected. The overflow of a number,
    which checked arithmetic raises as the same class, is another error.
    """
    if isinstance(error, pa.ArrowCapacityError):
        return True
    if isinstance(error, TypeError):
        return "ChunkedArray" in str(error)
    return isinstance(error, pa.ArrowInvalid) and any(sign in str(error) for sign in _OFFSET_OVERFLOWS)


def with_column(batch: pa.RecordBatch, field: pa.Field | str, column: pa.Array) -> pa.RecordBatch:
    """Return a batch of n rows with a column of n values in the place of the one of its name, or after the last one.

    Args:
        batch: The other columns.
        field: The field of the column, or its name.
        column: The values.
    """
    field = pa.field(field, column.type) if isinstance(field, str) else field
    index = batch.schema.get_field_index(field.name)
    if index < 0:
        return pa.RecordBatch.from_arrays([*batch.columns, column], schema=batch.schema.append(field))
    columns = [column if each == index else batch.column(each) for each in range(batch.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.set(index, field))


def with_members(array: pa.Array, change: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return n structs, lists or maps whose members, items or entries are changed.

    Args:
        array: The values. Their items include those behind NULL and outside of a slice.
        change: Returns as many members of the same type.
    """
    type_ = array.type
    if pa.types.is_struct(type_):
        children = [change(member) for member in array.flatten()]  # behind a NULL may be anything
        # A mask without NULLs says the same as none, and not all versions of Arrow take one everywhere.
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=nulls)
    own = 1 if pa.types.is_fixed_size_list(type_) else 2  # validity and, except for a fixed size, offsets
    buffers = array.buffers()[:own]
    return pa.Array.from_buffers(type_, len(array), buffers, offset=array.offset, children=[change(array.values)])


def is_nested(type_: pa.DataType) -> bool:
    """Return whether the values of a type have members. The test of Arrow 15 leaves out lists of a fixed size."""
    return bool(pa.types.is_nested(type_) or pa.types.is_fixed_size_list(type_))  # noqa: TID251 - this is the replacement


def is_bounded(type_: pa.DataType) -> bool:
    """Return whether the values of a type have a bounded size."""
    return width_of(type_) is not None


def width_of(type_: pa.DataType) -> int | None:
    """Return the bits of each value of a type, without those that tell NULLs; None if values differ in size."""
    if pa.types.is_struct(type_):
        members = [width_of(field.type) for field in type_]
        return None if None in members else sum(width for width in members if width is not None)
    if pa.types.is_fixed_size_list(type_):
        item = width_of(type_.value_type)
        return None if item is None else type_.list_size * item
    if pa.types.is_null(type_):
        return 0
    try:
        return int(type_.bit_width)
    except ValueError:
        return None


def _knows_dicts() -> bool:
    try:
        pa.nulls(0).to_pylist(maps_as_pydicts="strict")
    except TypeError:
        return False
    return True


_KNOWS_DICTS: Final = _knows_dicts()


def to_pylist(values: pa.Array | pa.RecordBatch) -> list[Any]:
    """Return n Python values, or the n rows of a batch as dicts. Maps are dicts.

    Raises:
        KeyError: if a map has a key twice.
        ValueError: if a time has nanoseconds.
    """
    values = in_microseconds(values)
    if _KNOWS_DICTS:
        return values.to_pylist(maps_as_pydicts="strict")
    if isinstance(values, pa.RecordBatch):
        return to_pylist(values.to_struct_array())
    return [_with_dicts(value, values.type) for value in values.to_pylist()]


def rows_to_display(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the n rows of a batch to be shown. Of a key that a map has twice they have the last entry."""
    if _KNOWS_DICTS:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="lossy")
        return rows
    types = {field.name: field.type for field in batch.schema}
    return [
        {name: _with_dicts(value, types[name], strict=False) for name, value in row.items()}
        for row in batch.to_pylist()
    ]


def in_microseconds(values: Any) -> Any:
    """Return an array or a batch whose times, timestamps and durations at any depth are in no smaller unit.

    Python's types have microseconds. Arrow would cut off nanoseconds, or return pandas' types if it finds pandas.

    Raises:
        ValueError: if one has nanoseconds, or its microseconds do not fit the type.
    """
    if isinstance(values, pa.RecordBatch):
        columns = [in_microseconds(column) for column in values.columns]
        return pa.RecordBatch.from_arrays(columns, names=values.schema.names)
    type_ = _in_microseconds(values.type)
    if type_ == values.type:
        return values
    if is_nested(type_):  # Arrow would cast the items outside of a slice, too
        values = values.take(pa.array(range(len(values)), pa.int64()))
    try:
        return values.cast(type_)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"it has nanoseconds, and Python's types have microseconds ({error}); cast it in the query, a TIME to "
            "TIME(6)"
        ) from None


@lru_cache(maxsize=1024)
def _in_microseconds(type_: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if kinds.is_timestamp(type_) and type_.unit == "ns":
        return pa.timestamp("us", type_.tz)
    if type_ in (pa.time64("ns"), pa.duration("ns")):
        return pa.time64("us") if kinds.is_time(type_) else pa.duration("us")
    if kinds.is_struct(type_):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in type_])
    if kinds.is_map(type_):
        key, item = (field.with_type(_in_microseconds(field.type)) for field in (type_.key_field, type_.item_field))
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if not (kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_)):
        return type_
    value = type_.value_field.with_type(_in_microseconds(type_.value_type))
    if kinds.is_fixed_size_list(type_):
        return pa.list_(value, type_.list_size)
    return pa.large_list(value) if kinds.is_large_list(type_) else pa.list_(value)


def _with_dicts(value: Any, type_: pa.DataType, *, strict: bool = True) -> Any:
    """Return a value with dicts in place of the lists of pairs that Arrow makes of maps. Strictly, equal keys fail."""
    kinds = pa.types
    if value is None or not is_nested(type_):
        return value
    if kinds.is_map(type_):
        pairs = {key: _with_dicts(item, type_.item_type, strict=strict) for key, item in value}
        if strict and len(pairs) < len(value):
            raise KeyError("a map has a key twice, so it cannot be a dict")
        return pairs
    if kinds.is_struct(type_):
        return {field.name: _with_dicts(value[field.name], field.type, strict=strict) for field in type_}
    return [_with_dicts(item, type_.value_type, strict=strict) for item in value]
