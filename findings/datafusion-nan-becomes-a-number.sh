#!/usr/bin/env bash
# DataFusion: a NaN in a Parquet file is read as another number of its column.
#
# Guess: without a filter, a scan returns what was written. Statistics can make it skip rows, they cannot change a value.
# Seen with datafusion 55.0.0: if the minimum and the maximum of a column are equal and it has no NULL, the column is taken for a constant and
# not read. But these statistics leave NaN out, as Parquet says they should, so 0.5, NaN, NaN comes back as 0.5 three times; SUM is 1.5 and
# COUNT(DISTINCT) is 1. A NULL or a second number in the file brings the NaN back. pyarrow, DuckDB and Polars read the same file right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

NAN = float("nan")


def rows(name, values, query="SELECT x FROM t"):
    pq.write_table(pa.table({"x": values}), name)
    context = datafusion.SessionContext()
    context.register_parquet("t", name)
    return [tuple(row.values()) for batch in context.sql(query).collect() for row in batch.to_pylist()]


constant = rows("constant.parquet", [0.5, NAN, NAN])
print("0.5, NaN, NaN is read as", constant)
assert constant == [(0.5,)] * 3
summary = rows("constant.parquet", [0.5, NAN, NAN], "SELECT SUM(x), MAX(x), COUNT(DISTINCT x) FROM t")
print("SUM, MAX, COUNT(DISTINCT):", summary)
assert summary == [(1.5, 0.5, 1)]
for values in ([0.5, NAN, None], [0.5, NAN, 0.25]):
    read = rows("varies.parquet", values)
    print(values, "is read as", read)
    assert str(read) == str([(each,) for each in values])
others = {
    "pyarrow": pq.read_table("constant.parquet")["x"].to_pylist(),
    "DuckDB": [x for (x,) in duckdb.sql("SELECT x FROM 'constant.parquet'").fetchall()],
    "Polars": pl.read_parquet("constant.parquet")["x"].to_list(),
}
print(others)
assert all(str(each) == "[0.5, nan, nan]" for each in others.values())
PYTHON
