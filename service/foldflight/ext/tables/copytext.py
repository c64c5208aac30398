r"""Arrow tables in the text format of PostgreSQL's COPY: a line for each row, tabs between columns, `\N` for NULL."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from foldflight.functions.types.arrow import is_nested

ZERO: Final = "\x00"
"""The one character that a text in PostgreSQL cannot have."""

_ESCAPED: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_LARGE: Final = pa.large_string()
# PostgreSQL's names of types without parameters, those that are created first.
_NAMES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "text": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
    "interval": pa.duration("us"),
    "character varying": pa.string(),
    "character": pa.string(),
    "numeric": pa.decimal256(76, 38),
}


def postgres_type(type_: pa.DataType) -> str | None:
    """Return the type of a column that holds an Arrow type; None if PostgreSQL has none."""
    if types.is_decimal(type_):
        return f"numeric({type_.precision},{type_.scale})"
    if types.is_list(type_) or types.is_large_list(type_):
        inner = None if is_nested(type_.value_type) else postgres_type(type_.value_type)
        return None if inner is None else f"{inner}[]"
    if types.is_int8(type_):
        return "smallint"
    if types.is_timestamp(type_):
        return "timestamp with time zone" if type_.tz else "timestamp without time zone"
    plain = {types.is_large_string: pa.string(), types.is_large_binary: pa.binary()}
    small_type = next((small for is_large, small in plain.items() if is_large(type_)), type_)
    return next((name for name, arrow_type in _NAMES.items() if arrow_type == small_type), None)


def type_of(name: str) -> pa.DataType | str:
    """Return the Arrow type that a column of PostgreSQL holds, by the name in `format_type`; the name if none."""
    if name.endswith("[]"):
        inner = type_of(name.removesuffix("[]"))
        return name if isinstance(inner, str) else pa.list_(inner)
    if is_pgvector(name):
        return pa.list_(pa.float32())  # the database checks the length
    base, _, parameters = name.partition("(")
    if base == "numeric" and parameters:
        precision, scale = map(int, parameters.rstrip(")").split(","))
        return pa.decimal256(precision, scale) if 0 <= scale <= precision <= 76 else name
    # A bounded varchar is taken as a text: a value that is too long is an error with its key.
    return name if parameters and base != "character varying" else _NAMES.get(base, name)


def is_pgvector(name: str) -> bool:
    """Return whether a type, by its name in `format_type`, is the vector of pgvector."""
    return name.partition("(")[0].rpartition(".")[2] == "vector"


def copy_text(rows: pa.Table, vectors: Collection[str] = ()) -> memoryview | bytes:
    """Return rows as text for `COPY ... FROM STDIN`. A row is one line.

    Args:
        rows: The rows.
        vectors: The columns that are vectors of pgvector, whose text is JSON and not an array's.
    """
    if not rows.num_rows:
        return b""
    columns = [
        _each(column, _vector_text) if name in vectors else _texts(pc.cast(column, column.type))
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    ]
    lines = pc.binary_join_element_wise(
        *columns, pa.scalar("\t", _LARGE), null_handling="replace", null_replacement="\\N"
    )
    text_lines = pc.binary_join_element_wise(lines, pa.scalar("", _LARGE), pa.scalar("\n", _LARGE))
    text = pa.concat_arrays(text_lines.chunks) if isinstance(text_lines, pa.ChunkedArray) else text_lines
    data = text.buffers()[2]
    return b"" if data is None else memoryview(data)


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = column.type
    if types.is_string(type_) or types.is_large_string(type_):
        return _escape(column.cast(_LARGE))
    if types.is_binary(type_) or types.is_large_binary(type_):
        return _each(column, _binary_text)
    if types.is_list(type_) or types.is_large_list(type_):
        return _escape(_each(column, _array_text))
    if types.is_duration(type_):
        amounts = column.cast(pa.duration("us")).cast(pa.int64()).cast(_LARGE)
        return pc.binary_join_element_wise(amounts, pa.scalar("us", _LARGE), pa.scalar("", _LARGE))
    return column.cast(_LARGE)


def _escape(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    for character, replacement in _ESCAPED.items():
        texts = pc.replace_substring(texts, character, replacement)
    return texts


def _each(column: pa.ChunkedArray, to_text: Callable[[Any], str]) -> pa.ChunkedArray:
    texts = [None if value is None else to_text(value) for value in column.to_pylist()]
    return pa.chunked_array([pa.array(texts, _LARGE)])


def _binary_text(value: bytes) -> str:
    return f"\\\\x{value.hex()}"


def _array_text(values: list[Any]) -> str:
    return "{" + ",".join("NULL" if value is None else _element(value) for value in values) + "}"


def _vector_text(values: list[Any]) -> str:
    return "[" + ",".join("NULL" if value is None else repr(value) for value in values) + "]"


def _element(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
