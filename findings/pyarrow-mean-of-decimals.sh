#!/usr/bin/env bash
# pyarrow: the mean of the decimals 1 and 2 is 2, their median is 1 or 1.5.
#
# Guess: the mean of decimals is a double or has some more digits than they, as in DataFusion, DuckDB, Spark and Polars.
# Seen with pyarrow 26.0.1: the mean has the type of the column and is rounded away from zero to its scale, of a column, by group, and in
# pandas with Arrow's types. The mean of prices in cents is in cents, so means of groups that are added again, or compared, are wrong.
# `approximate_median` takes one of the two middle values, `quantile` is 1.5.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 pandas==3.1.1 duckdb==2.0.1 datafusion==55.0.0 polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import datafusion
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

column = pa.array([Decimal(1), Decimal(2)], pa.decimal128(10, 0))
table = pa.table({"k": [1, 1], "x": column})
frame = table.to_pandas(types_mapper=pd.ArrowDtype)
session = datafusion.SessionContext()
session.from_arrow(table, "t")
seen = {
    "pyarrow": pc.mean(column).as_py(),
    "pyarrow by group": table.group_by("k").aggregate([("x", "mean")])["x_mean"][0].as_py(),
    "pandas": frame["x"].mean(),
    "pandas by group": frame.groupby("k")["x"].mean().item(),
    "duckdb": duckdb.sql("select avg(x) from \"table\"").fetchall()[0][0],
    "datafusion": session.sql("select avg(x) a from t").to_pydict()["a"][0],
    "polars": pl.from_arrow(table)["x"].mean(),
}
print(seen)
assert [float(value) for value in seen.values()] == [2, 2, 2, 2, 1.5, 1.5, 1.5]
cents = pa.array([Decimal("-0.01"), Decimal("-0.02")], pa.decimal128(10, 2))
assert pc.mean(cents).as_py() == Decimal("-0.02")
assert pc.approximate_median(column).as_py() == 1 and pc.quantile(column).to_pylist() == [1.5]
PYTHON
