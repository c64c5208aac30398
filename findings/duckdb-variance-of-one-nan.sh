#!/usr/bin/env bash
# DuckDB: the average of a NaN is NaN, and its variance is 0; so is that of an infinity.
#
# Guess: `var_pop` and `stddev_pop` of NaN are NaN or an error, as they are with a second value beside it.
# Seen with duckdb 2.0.1: one value has the variance 0, whatever it is. Polars' streaming engine has 0 by group, too, where its engine in
# memory and its own variance of the column are NaN. So a filter for groups that do not vary finds those with one broken value.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import math

import duckdb
import polars as pl

for value in ("nan", "inf"):
    rows = duckdb.sql(
        f"select var_pop(x), stddev_pop(x), avg(x) from (values ('{value}'::double)) t(x)"
        f" union all select var_pop(x), stddev_pop(x), avg(x) from (values ('{value}'::double), (1)) t(x)"
    ).fetchall()
    print(value, "alone", rows[0], "beside 1", rows[1])
    assert rows[0][:2] == (0, 0) and not math.isfinite(rows[0][2])
    assert math.isnan(rows[1][0]) and math.isnan(rows[1][1])
    groups = pl.LazyFrame({"k": [1], "x": [float(value)]}).group_by("k").agg(pl.var("x", ddof=0))
    memory, stream = (groups.collect(engine=engine)["x"].item() for engine in ("in-memory", "streaming"))
    print("polars by group: in memory", memory, "streaming", stream)
    assert math.isnan(memory) and stream == 0
    assert math.isnan(pl.LazyFrame({"x": [float(value)]}).select(pl.var("x", ddof=0)).collect(engine="streaming").item())
PYTHON
