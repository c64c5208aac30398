#!/usr/bin/env bash
# narwhals: the median of 3 and 4 is 3.5, but 3 by group in a pyarrow table, and other aggregates differ by what frame is inside.
#
# Guess: one expression of narwhals has one result for each kind of frame that it wraps; that is what it is for.
# Seen with narwhals 2.29.0: by group of a pyarrow table the median is an approximation that takes one of the two middle values. `n_unique` of 0.0
# and -0.0 is 2 in pyarrow. `round` takes 2.5 and 4.5 to 2 and 4 in pandas and Polars, to 3 and 5 in pyarrow and DuckDB. With a NaN, the median of 1,
# NaN, 4 is 4 in Polars and DuckDB, for which NaN is the greatest value, but the maximum is NaN in DuckDB only.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet narwhals==2.29.0 pandas==3.1.1 polars==2.1.0 pyarrow==26.0.1 duckdb==2.0.1
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import math

import duckdb
import narwhals as nw
import pandas as pd
import polars as pl
import pyarrow as pa

nan = math.nan
data = {"key": [1, 1], "pair": [3, 4], "half": [2.5, 4.5], "zeros": [0.0, -0.0]}
three = {"x": [1.0, nan, 4.0]}
table, other = pa.table(data), pa.table(three)
frames = {
    "pandas": (pd.DataFrame(data), pd.DataFrame(three)),
    "Polars": (pl.DataFrame(data), pl.DataFrame(three)),
    "pyarrow": (table, other),
    "DuckDB": (duckdb.sql("FROM \"table\""), duckdb.sql("FROM other")),
}


def values_of(frame):
    native = nw.to_native(frame)
    rows = native.fetchall() if isinstance(native, duckdb.DuckDBPyRelation) else nw.from_native(native).rows()
    return [row[-1] for row in rows]


seen = {}
for name, (pairs, values) in frames.items():
    pairs, values = nw.from_native(pairs), nw.from_native(values)
    seen[name] = [
        *values_of(pairs.select(nw.col("pair").median())),
        *values_of(pairs.group_by("key").agg(nw.col("pair").median())),
        *values_of(pairs.select(nw.col("zeros").n_unique())),
        *values_of(pairs.select(nw.col("half").round())),
        *values_of(values.select(nw.col("x").median())),
        str(*values_of(values.select(nw.col("x").max()))),
    ]
    print("{}: median {}, by group {}; n_unique {}; round {} {}; with NaN median {}, max {}".format(name, *seen[name]))
assert seen == {
    "pandas": [3.5, 3.5, 1, 2, 4, 2.5, "4.0"],
    "Polars": [3.5, 3.5, 1, 2, 4, 4, "4.0"],
    "pyarrow": [3.5, 3.0, 2, 3, 5, 2.5, "4.0"],
    "DuckDB": [3.5, 3.5, 1, 3, 5, 4, "nan"],
}
PYTHON
