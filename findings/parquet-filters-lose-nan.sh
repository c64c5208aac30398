#!/usr/bin/env bash
# Parquet: whether a filter finds a NaN in a file depends on the numbers that lie beside it, in pyarrow, DuckDB and DataFusion.
#
# Guess: a filter over a file returns the rows that it returns over the same table in memory; statistics only save time.
# Seen with pyarrow 26.0.1, duckdb 2.0.1 and datafusion 55.0.0: the minimum and the maximum of a row group leave NaN out, as the format says, and a
# row group whose range cannot match is skipped with its NaN. For 1.0 and NaN, `x <> 1` finds NaN in memory and nothing in the file, in all
# three. DuckDB and DataFusion, for which NaN is the largest number, do not find it by `x > 1` or by `x = NaN` either, unless the row group
# has a larger number, too. polars 2.1.0 finds it in each case.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1 datafusion==55.0.0 polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

NAN = float("nan")
FILTERS = {
    "x <> 1": (pc.field("x") != 1, pl.col("x") != 1),
    "x > 1": (pc.field("x") > 1, pl.col("x") > 1),
    "x = CAST('NaN' AS DOUBLE)": (None, pl.col("x") == NAN),
}


def of_datafusion(source, condition):
    context = datafusion.SessionContext()
    if isinstance(source, str):
        context.register_parquet("t", source)
    else:
        context.from_arrow(source, "t")
    return sum(batch.num_rows for batch in context.sql(f"SELECT x FROM t WHERE {condition}").collect())


lost = {}
for beside in (1.0, 2.0):
    memory = pa.table({"x": [beside, NAN]})
    pq.write_table(memory, "x.parquet")
    duckdb.sql("CREATE OR REPLACE TABLE t AS SELECT x FROM memory")
    for condition, (of_arrow, of_polars) in FILTERS.items():
        found = {
            "DuckDB": [len(duckdb.sql(f"SELECT x FROM {each} WHERE {condition}").fetchall()) for each in ("t", "'x.parquet'")],
            "DataFusion": [of_datafusion(each, condition) for each in (memory, "x.parquet")],
            "Polars": [len(each.lazy().filter(of_polars).collect()) for each in (pl.from_arrow(memory), pl.scan_parquet("x.parquet"))],
        }
        if of_arrow is not None:
            found["pyarrow"] = [memory.filter(of_arrow).num_rows, pq.read_table("x.parquet", filters=of_arrow).num_rows]
        print(f"{beside} and NaN, {condition}: rows in memory and in the file:", found)
        lost[beside, condition] = {engine for engine, (first, second) in found.items() if first != second}
other = "x = CAST('NaN' AS DOUBLE)"
assert lost == {
    (1.0, "x <> 1"): {"pyarrow", "DuckDB", "DataFusion"},
    (1.0, "x > 1"): {"DuckDB", "DataFusion"},
    (1.0, other): {"DuckDB", "DataFusion"},
    (2.0, "x <> 1"): set(),
    (2.0, "x > 1"): set(),
    (2.0, other): {"DuckDB", "DataFusion"},
}, lost
PYTHON
