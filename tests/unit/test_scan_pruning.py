"""Row groups are left out only if no row of them passes, by the bounds that several writers tell."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import types as st

from foldflight.spark.scans.footers import ReadRequest, footers
from foldflight.spark.scans.predicate import Comparison, Either, Predicate, parse
from foldflight.spark.scans.scan import _places_of_logs
from tests.spark.scan_tables import table_of

TYPES = {
    "int": st.IntegerType(),
    "bigint": st.LongType(),
    "string": st.StringType(),
    "date": st.DateType(),
    "decimal(5,2)": st.DecimalType(5, 2),
    "decimal(18,0)": st.DecimalType(18, 0),
    "decimal(38,10)": st.DecimalType(38, 10),
    "boolean": st.BooleanType(),
    "timestamp_us": st.TimestampType(),
    "timestamp_ntz_ms": st.TimestampNTZType(),
}
OPERATORS = (
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "in",
    "not_in",
    "is_null",
    "is_valid",
)


def _arrow(table: pa.Table, folder: Path, **options: Any) -> None:
    pq.write_table(table, folder / "a.parquet", row_group_size=4, **options)


def _arrow_whole(table: pa.Table, folder: Path) -> None:
    _arrow(table, folder, store_decimal_as_integer=True)


def _duckdb(table: pa.Table, folder: Path) -> None:
    for at in range(0, table.num_rows, 4):
        with duckdb.connect() as connection:
            connection.register("t", table.slice(at, 4))
            connection.sql(f"COPY t TO '{folder}/{at}.parquet'")


def _delta(table: pa.Table, folder: Path) -> None:
    properties = deltalake.WriterProperties(max_row_group_size=4)
    deltalake.write_deltalake(str(folder), table, writer_properties=properties)


def _predicate(table: pa.Table, rng: random.Random, depth: int = 2) -> Predicate:
    """Return a random predicate, whose constants are values of the table or of another one like it."""
    terms: list[Comparison | Either] = []
    for _ in range(rng.randint(1, 2)):
        if depth and rng.random() < 0.4:
            terms.append(Either(tuple(_predicate(table, rng, depth - 1) for _ in range(2))))
            continue
        name, operator = rng.choice(list(TYPES)), rng.choice(OPERATORS)
        column = table[name].cast(pa.int64()) if "time" in name else table[name]
        known_values = [value for value in column.to_pylist() if value is not None]
        count = 0 if operator.startswith("is_") else rng.randint(1, 3) if "in" in operator.split("_") else 1
        terms.append(
            Comparison(name, operator, tuple(rng.choices(known_values, k=count)), table.schema.field(name).type)
        )
    return Predicate(tuple(terms))


def _groups(path: str, schema: pa.Schema) -> list[pa.RecordBatch]:
    with pq.ParquetFile(path) as read:
        groups = [read.read_row_group(index) for index in range(read.num_row_groups)]
    return [group.cast(schema).combine_chunks().to_batches()[0] for group in groups]


@pytest.mark.parametrize(("write", "decimals"), [(_arrow, 0), (_arrow_whole, 1), (_duckdb, 1), (_delta, 1)])
def test_no_row_group_with_a_row_that_passes_is_left_out(
    write: Callable[[pa.Table, Path], None], decimals: int, tmp_path: Path
) -> None:
    """Of random predicates over random rows, no row group with a row that passes is left out."""
    left_out = dict.fromkeys(TYPES, 0)
    for seed in range(12):
        rng = random.Random(seed)
        table = table_of(" ".join(TYPES), 40, rng, null_share=0.3).sort_by(rng.choice(list(TYPES)))
        folder = tmp_path / str(seed)
        folder.mkdir()
        write(table, folder)
        at = table.column_names.index("timestamp_ntz_ms")
        table = table.set_column(at, "timestamp_ntz_ms", table["timestamp_ntz_ms"].cast(pa.timestamp("us")))  # as Spark
        paths = sorted(map(str, folder.glob("*.parquet")))
        groups = {(path, index): batch for path in paths for index, batch in enumerate(_groups(path, table.schema))}
        for _ in range(30):
            predicate = _predicate(table, rng)
            request = ReadRequest(TYPES, (), predicate, "CORRECTED", is_case_sensitive=True)
            result = footers(paths, fs.LocalFileSystem, request)
            kept_groups = {(each.path, group.index) for each in result for group in each.groups}
            for key in groups.keys() - kept_groups:
                batch = groups[key]
                passing_rows = predicate.mask({name: batch.column(name) for name in predicate.columns})
                assert passing_rows.true_count == 0, (seed, predicate)
                for name in predicate.columns:
                    left_out[name] += predicate.columns == (name,)
    bounded_types = {"int", "bigint", "string", "date", "timestamp_us", "timestamp_ntz_ms"}
    bounded_types |= {"decimal(5,2)", "decimal(18,0)"} if decimals else set()
    assert {name for name, count in left_out.items() if count} == bounded_types


def test_bounds_that_python_does_not_have_keep_the_row_group(tmp_path: Path) -> None:
    """A row group with a day after the year 9999 is read, because its bounds are not known."""
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"date": pa.array([0, 4_000_000], pa.date32())}), path)
    predicate = Predicate((Comparison("date", "less", (datetime.date(1970, 1, 2),), pa.date32()),))
    request = ReadRequest({"date": st.DateType()}, (), predicate, "CORRECTED", is_case_sensitive=True)
    (result,) = footers([path], fs.LocalFileSystem, request)
    assert (result.refusal, [group.rows for group in result.groups]) == ("", [2])


def test_places_of_logs_are_few() -> None:
    """Partitions and files of one folder are alike, and folders side by side are not."""
    days = [f"s3://b/t/day={day}/n={n}" for day in range(3) for n in range(3)]
    assert list(_places_of_logs([*days, "s3://b/t"])) == [days[0], "s3://b/t/day=0", "s3://b/t"]
    assert list(_places_of_logs([f"/t/{each}.parquet" for each in "abc"])) == ["/t/a.parquet"]
    assert list(_places_of_logs(["/t/a", "/t/b/", "/t"])) == ["/t/a", "/t/b", "/t"]


def test_spark_reads_all_timestamps_of_a_condition_at_once() -> None:
    """A query for each of them took about 30 ms, so a long list delayed the plan by seconds."""
    requests: list[Sequence[str]] = []

    def evaluate(literals: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        requests.append(literals)
        return {literal: ("timestamp", number) for number, literal in enumerate(literals)}

    schema = st.StructType([st.StructField("at", st.TimestampType()), st.StructField("n", st.LongType())])
    days = [f"TIMESTAMP'2026-01-0{day}'" for day in (1, 2, 3)]
    predicate = parse(f"at IN ({days[0]}, {days[1]}) AND at >= {days[2]} AND at < {days[0]}", schema, evaluate)
    assert requests == [tuple(days)]
    assert [term.values for term in predicate.terms if isinstance(term, Comparison)] == [(0, 1), (2,), (0,)]
    parse("n = 1", schema, evaluate)
    assert len(requests) == 1
