"""Files of many types by many writers, for `scan`, and the list of those that its tasks must read themselves."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NAN = float("nan")
INF = float("inf")
UTC = dt.UTC

# What each writer's file has: a maker of a value, and the type in which Arrow gives it to the writer.
_TEXTS = ("", "a", "ä", "\0", "a\0", "b" * 300, "\U0001f600", " a", "a ")


def _int(bits: int, *, is_signed: bool = True) -> Callable[[random.Random], int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    return lambda r: r.choice([low, high, 0, 1, r.randint(low, high)])


def _float(r: random.Random) -> float:
    return r.choice([NAN, -NAN, INF, -INF, 0.0, -0.0, 1.5, r.uniform(-1e6, 1e6)])


def _moment(r: random.Random) -> dt.datetime:
    years = r.choice([(1, 1582), (1583, 1899), (1900, 2100), (1970, 2030), (9990, 9999)])
    return dt.datetime(r.randint(*years), r.randint(1, 12), r.randint(1, 28), r.randint(0, 23)) + dt.timedelta(
        microseconds=r.randint(0, 3_599_999_999)
    )


def _in_int96(r: random.Random) -> dt.datetime:
    """Return a moment that Arrow's nanoseconds hold, of which it writes INT96."""
    return dt.datetime(1700, 1, 1) + dt.timedelta(microseconds=r.randint(0, 500 * 365 * 86_400 * 1_000_000))


def _whole_ms(r: random.Random) -> dt.datetime:
    moment = _moment(r)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _decimal(precision: int, scale: int) -> Callable[[random.Random], decimal.Decimal]:
    largest = 10**precision - 1
    return lambda r: decimal.Decimal(r.choice([0, largest, -largest, r.randint(-largest, largest)])).scaleb(
        -scale, decimal.Context(prec=60)
    )


def _in_utc(make: Callable[[random.Random], dt.datetime]) -> Callable[[random.Random], dt.datetime]:
    return lambda r: make(r).replace(tzinfo=UTC)


VALUES: Mapping[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "tinyint": (pa.int8(), _int(8)),
    "smallint": (pa.int16(), _int(16)),
    "int": (pa.int32(), _int(32)),
    "bigint": (pa.int64(), _int(64)),
    "uint8": (pa.uint8(), _int(8, is_signed=False)),
    "uint16": (pa.uint16(), _int(16, is_signed=False)),
    "uint32": (pa.uint32(), _int(32, is_signed=False)),
    "uint64": (pa.uint64(), _int(64, is_signed=False)),
    "float": (pa.float32(), _float),
    "double": (pa.float64(), _float),
    "string": (pa.string(), lambda r: r.choice(_TEXTS)),
    "large_string": (pa.large_string(), lambda r: r.choice(_TEXTS)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda r: r.choice(_TEXTS)),
    "binary": (pa.binary(), lambda r: r.choice([b"", b"\0", b"\xff\xfe", r.randbytes(20)])),
    "large_binary": (pa.large_binary(), lambda r: r.randbytes(3)),
    "date": (pa.date32(), lambda r: _moment(r).date()),
    "date64": (pa.date64(), lambda r: _moment(r).date()),
    "timestamp_us": (pa.timestamp("us", "UTC"), _in_utc(_moment)),
    "timestamp_ms": (pa.timestamp("ms", "UTC"), _in_utc(_whole_ms)),
    "timestamp_zone": (pa.timestamp("us", "America/New_York"), _in_utc(_moment)),
    "timestamp_ntz": (pa.timestamp("us"), _moment),
    "timestamp_ntz_ms": (pa.timestamp("ms"), _whole_ms),
    "timestamp_int96": (pa.timestamp("us", "UTC"), _in_utc(_in_int96)),
    "decimal(5,2)": (pa.decimal128(5, 2), _decimal(5, 2)),
    "decimal(18,0)": (pa.decimal128(18, 0), _decimal(18, 0)),
    "decimal(38,10)": (pa.decimal128(38, 10), _decimal(38, 10)),
    "decimal256": (pa.decimal256(20, 3), _decimal(20, 3)),
    "duration": (pa.duration("us"), lambda r: dt.timedelta(microseconds=r.randint(-1000, 1000))),
    "array<float>": (pa.list_(pa.float32()), lambda r: [r.choice([None, _float(r)]) for _ in range(r.randint(0, 5))]),
    "array<double>": (pa.list_(pa.float64()), lambda r: [_float(r)] * r.randint(0, 5)),
    "fixed_list": (pa.list_(pa.float32(), 3), lambda r: [_float(r)] * 3),
    "list": (pa.list_(pa.int32()), lambda r: [r.randint(0, 9)] * r.randint(0, 3)),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), lambda r: {"a": r.randint(0, 9), "b": None}),
    "map": (pa.map_(pa.string(), pa.int64()), lambda r: [("k", r.randint(0, 9))]),
}

_FLAT = "boolean tinyint smallint int bigint float double string binary date array<float> array<double>"
_ALL = (
    f"{_FLAT} uint8 uint16 uint32 large_string dictionary large_binary date64 timestamp_us timestamp_ms timestamp_zone "
    "timestamp_ntz timestamp_ntz_ms decimal(5,2) decimal(18,0) decimal(38,10) decimal256 duration fixed_list"
)
_SPARK = f"{_FLAT} timestamp_us timestamp_ntz decimal(5,2) decimal(18,0) decimal(38,10)"


def _arrow(**options: Any) -> Callable[[Any, pa.Table, Path], None]:
    def write(_spark: Any, table: pa.Table, folder: Path) -> None:
        folder.mkdir()
        pq.write_table(table, folder / "a.parquet", **options)

    return write


def _spark(**settings: str) -> Callable[[Any, pa.Table, Path], None]:
    def write(spark: Any, table: pa.Table, folder: Path) -> None:
        before = {name: spark.conf.get(f"spark.sql.parquet.{name}") for name in settings}
        try:
            for name, value in settings.items():
                spark.conf.set(f"spark.sql.parquet.{name}", value)
            spark.createDataFrame(table).coalesce(1).write.parquet(str(folder))
        finally:
            for name, value in before.items():
                spark.conf.set(f"spark.sql.parquet.{name}", value)

    return write


def _duckdb(_spark: Any, table: pa.Table, folder: Path) -> None:
    import duckdb

    folder.mkdir()
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.sql(f"COPY t TO '{folder}/a.parquet' (ROW_GROUP_SIZE 2048)")


def _delta(_spark: Any, table: pa.Table, folder: Path) -> None:
    import deltalake

    deltalake.write_deltalake(str(folder), table)


# For each writer: how it writes, the types that it is given, and those that the tasks of a scan must read themselves.
WRITERS: Mapping[str, tuple[Callable[[Any, pa.Table, Path], None], str, str]] = {
    "arrow": (_arrow(row_group_size=70), f"{_ALL} uint64 list struct map", _ALL.replace(" duration", "")),
    "arrow, plain": (
        _arrow(use_dictionary=False, compression="none", write_statistics=False, data_page_version="2.0"),
        _ALL,
        _ALL.replace(" duration", ""),
    ),
    "arrow, no schema": (_arrow(store_schema=False, compression="zstd", data_page_size=64), _ALL, _ALL),
    "arrow, version 1.0": (_arrow(version="1.0", compression="gzip"), _FLAT, _FLAT),
    "arrow, deltas": (
        _arrow(use_dictionary=False, column_encoding={"int": "DELTA_BINARY_PACKED", "string": "DELTA_BYTE_ARRAY"}),
        "int string",
        "int string",
    ),
    "arrow, INT96": (_arrow(use_deprecated_int96_timestamps=True), "int timestamp_int96", "int"),
    "spark": (_spark(), f"{_SPARK} list struct map", _SPARK),
    "spark, micros": (_spark(outputTimestampType="TIMESTAMP_MICROS"), _SPARK, _SPARK),
    "spark, legacy": (
        _spark(writeLegacyFormat="true", outputTimestampType="TIMESTAMP_MILLIS"),
        _SPARK,
        _SPARK.replace(" array<float> array<double>", ""),
    ),
    "spark, LEGACY days": (
        _spark(datetimeRebaseModeInWrite="LEGACY", int96RebaseModeInWrite="LEGACY"),
        _SPARK,
        _SPARK.replace(" date", "").replace(" timestamp_us", "").replace(" timestamp_ntz", ""),
    ),
    "duckdb": (_duckdb, f"{_SPARK} uint8 uint32", f"{_SPARK} uint8 uint32"),
    "delta-rs": (_delta, _SPARK, _SPARK),
}


def table_of(types: str, rows: int, rng: random.Random, *, null_share: float = 0.2) -> pa.Table:
    """Return random rows with a column of each type, named by it, and a column of which all values are NULL."""
    columns = {}
    for name in types.split():
        type_, make = VALUES[name]
        values = [None if rng.random() < null_share else make(rng) for _ in range(rows)]
        columns[name] = pa.array(values, type_)
    return pa.table(columns)
