"""The types of a table in the database, in Spark, and one text for equal values of both."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Final

Canonical = Callable[[str], str]

_EXACT: Final = Context(prec=100)

_INT, _TEXT, _DECIMAL = "INT", "STRING", "DECIMAL(10,2)"
TYPES: Final[dict[str, str]] = {
    "c_serial": _INT, "c_small": "SMALLINT", "c_int": _INT, "c_big": "BIGINT", "c_num": _DECIMAL,
    "c_num38": "DECIMAL(38,10)", "c_numint": "DECIMAL(12,0)", "c_numfree": "DECIMAL(38,3)", "c_real": "FLOAT",
    "c_double": "DOUBLE", "c_money": _DECIMAL, "c_bool": "BOOLEAN", "c_text": _TEXT, "c_varchar": "VARCHAR(20)",
    "c_char": _TEXT, "c_bytea": "BINARY", "c_date": "DATE", "c_time": "TIME(6)", "c_time3": "TIME(6)",
    "c_timetz": _TEXT, "c_ts": "TIMESTAMP_NTZ", "c_ts0": "TIMESTAMP_NTZ", "c_ts3": "TIMESTAMP_NTZ",
    "c_tstz": "TIMESTAMP", "c_interval": _TEXT, "c_uuid": _TEXT, "c_json": _TEXT, "c_jsonb": _TEXT,
    "c_ints": "ARRAY<INT>", "c_texts": "ARRAY<STRING>", "c_nums": "ARRAY<DECIMAL(10,2)>",
    "c_tss": "ARRAY<TIMESTAMP_NTZ>", "c_dates": "ARRAY<DATE>", "c_enum": _TEXT, "c_hstore": "MAP<STRING,STRING>",
    "c_inet": _TEXT, "c_cidr": _TEXT, "c_mac": _TEXT, "c_range": _TEXT, "c_tsrange": _TEXT, "c_daterange": _TEXT,
    "c_bit1": "BOOLEAN", "c_bit8": "BINARY", "c_varbit": "BINARY", "c_xml": _TEXT, "c_point": _TEXT,
    "c_citext": _TEXT, "c_ltree": _TEXT, "c_oid": "BIGINT", "c_tsv": _TEXT,
}  # fmt: skip
# Where ::text of the database is not the whole value, or writes it in a way of its own.
_IN_DATABASE: Final = {
    **{name: f"('bits ' || {name}::text)" for name in ("c_bit8", "c_varbit")},
    "c_money": "c_money::numeric::text",
    "c_char": "rpad(c_char, 6)",
    "c_bytea": "encode(c_bytea, 'hex')",
    "c_timetz": "(c_timetz AT TIME ZONE 'UTC')::text",
    "c_inet": "CASE WHEN c_inet IS NOT NULL THEN format('%s', c_inet) END",  # ::text adds the length of the mask
    "c_bit1": "c_bit1::int::boolean::text",
    "c_hstore": "hstore_to_json(c_hstore)::text",
    **{name: f"array_to_json({name})::text" for name, type_ in TYPES.items() if type_.startswith("ARRAY")},
}


def in_database(column: str) -> str:
    """Return the text of a column as an expression of PostgreSQL."""
    return _IN_DATABASE.get(column, f"{column}::text")


def in_spark(column: str, type_: str) -> str:
    """Return the text of a column as an expression of Spark."""
    if type_ == "BINARY":
        return f"lower(hex({column}))"
    if type_.startswith("ARRAY"):
        return f"to_json(CAST({column} AS ARRAY<STRING>))"
    return f"to_json({column})" if type_.startswith("MAP") else f"CAST({column} AS STRING)"


def canonical(column: str, text: str | None) -> str | None:
    """Return one text for all ways to write a value of a column."""
    if text is None:
        return None
    if column in ("c_json", "c_jsonb", "c_hstore"):
        return json.dumps(json.loads(text), sort_keys=True)
    if TYPES[column].startswith("ARRAY"):
        read = json.loads(text, parse_float=str, parse_int=str)
        return json.dumps([None if each is None else _plain(TYPES[column][6:-1], str(each)) for each in read])
    return _BY_COLUMN.get(column, lambda text: _plain(TYPES[column], text))(text)


def _plain(type_: str, text: str) -> str:
    if type_.startswith("DECIMAL"):
        return format(Decimal(text).normalize(_EXACT), "f")
    if type_ in ("FLOAT", "DOUBLE"):
        return repr(float(text))
    if type_.startswith("TIM"):
        return re.sub(r"(\.\d*?)0+$", r"\1", re.sub(r"\+00$", "", text.replace("T", " "))).rstrip(".")
    return text


def _bits(text: str) -> str:
    """Return the number of bits: the database writes them, and Debezium sends bytes, the lowest first."""
    return str(int(f"0{text[5:]}", 2) if text.startswith("bits ") else int.from_bytes(bytes.fromhex(text), "little"))


def _interval(text: str) -> str:
    """Return the parts of an ISO interval that are not zero; a number counts microseconds, and stays."""
    if not text.startswith("P"):
        return text
    parts = [part for part in re.findall(r"T|-?[\d.]+[A-Z]", text) if not re.fullmatch(r"-?[0.]+[A-Z]", part)]
    return " ".join(parts).removesuffix("T").rstrip()


def _utc(text: str) -> str:
    return re.sub(r"(Z|\+00)$", "", text)


_BY_COLUMN: Final[dict[str, Canonical]] = {
    "c_bit8": _bits,
    "c_varbit": _bits,
    "c_interval": _interval,
    "c_timetz": _utc,
}
