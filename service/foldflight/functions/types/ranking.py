"""The order of values of all types, as in Spark SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from foldflight.functions.types.arrow import is_json


def is_nan(value: Any) -> bool:
    """Return whether a value is the float NaN, which is greater than all other numbers."""
    return isinstance(value, float) and value != value  # noqa: PLR0124 - only NaN differs from itself


def rank(value: Any) -> Any:
    """Return a value of a struct or an array as a key that Python orders as Spark does; other values are returned.

    Members are compared one after the other. NULL is less than any value, NaN is greater than any other number, and an
    array is less than a longer one that begins with it.
    """
    if isinstance(value, dict):
        return tuple(map(_member, value.values()))
    if isinstance(value, list):
        return tuple(map(_member, value))
    return value


def _member(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    return (1, True, 0) if is_nan(value) else (1, False, rank(value))


def is_ordered(type_: pa.DataType) -> bool:
    """Return whether values of a type have an order. Maps and JSON, and what has them inside, have none."""
    if isinstance(type_, pa.BaseExtensionType):
        return not is_json(type_) and is_ordered(type_.storage_type)
    if pa.types.is_map(type_):
        return False
    return all(is_ordered(type_.field(index).type) for index in range(type_.num_fields))
