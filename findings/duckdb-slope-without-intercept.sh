#!/usr/bin/env bash
# DuckDB: over one row, `regr_slope` and `corr` are NaN, `regr_intercept`, `regr_r2` and `covar_samp` are NULL.
#
# Guess: where there is no line, each function of the regression is NULL, as the standard has it and as PostgreSQL and Spark do.
# Seen with duckdb 2.0.1: slope and correlation divide by zero. The NaN is greater than each number, so the "steepest" group of ORDER BY ...
# DESC is one of a single row; COALESCE does not see it; and an average over the groups is NaN.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import math

import duckdb

names = ("regr_slope", "corr", "regr_intercept", "regr_r2", "covar_samp")
((*row,),) = duckdb.sql(f"select {', '.join(f'{name}(y, x)' for name in names)} from (values (1, 1)) t(x, y)").fetchall()
print(dict(zip(names, row, strict=True)))
assert [value is None for value in row] == [False, False, True, True, True]
assert math.isnan(row[0]) and math.isnan(row[1])
sql = """select k, regr_slope(y, x) slope from (values ('one', 1, 1), ('steep', 1, 1), ('steep', 2, 900)) t(k, x, y)
group by k order by slope desc limit 1"""
((key, slope),) = duckdb.sql(sql).fetchall()
print("steepest", key, slope)
assert key == "one"
PYTHON
