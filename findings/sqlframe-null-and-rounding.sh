#!/usr/bin/env bash
# sqlframe: with PySpark's functions on DuckDB, `collect_list` has NULLs, 2.7 as INT is 3, and `row_number` puts NULL last.
#
# Guess: a library that replaces PySpark's DataFrame API translates the functions whose meaning differs, as it does with `orderBy`, which
# has NULL first, and `percentile_approx`.
# Seen with sqlframe 4.10.0 and duckdb 2.0.1: `collect_list` and `collect_set` keep NULL, a cast rounds, the `orderBy` of a window is that
# of DuckDB, `max_by` skips NULL, `count_if` of no rows is NULL, and `dropna` and `fillna` do not see NaN. PySpark: no NULL, 2, row number
# 1, NULL, 0, and both see it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "sqlframe[duckdb]==4.10.0" duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import math

logging.disable(logging.CRITICAL)
from sqlframe.duckdb import DuckDBSession, Window
from sqlframe.duckdb import functions as F

session = DuckDBSession()
rows = session.createDataFrame([(1,), (None,), (2,)], ["a"])


def ask(frame, column):
    return frame.select(column.alias("x")).collect()[0][0]


numbers = session.createDataFrame([(2.7,)], ["a"])
pairs = session.createDataFrame([(1, 1), (None, 2)], ["a", "b"])
ranks = rows.select(F.row_number().over(Window.orderBy("a")).alias("n"), "a").collect()
seen = {
    "collect_list": sorted(ask(rows, F.collect_list("a")), key=str),
    "cast": ask(numbers, F.col("a").cast("int")),
    "row_number of NULL": next(row[0] for row in ranks if row[1] is None),
    "orderBy": [row[0] for row in rows.orderBy("a").collect()],
    "max_by": ask(pairs, F.max_by("a", "b")),
    "count_if": ask(rows.filter("a > 5"), F.count_if(F.col("a") > 1)),
    "dropna": session.createDataFrame([(math.nan,)], ["a"]).dropna().count(),
}
print(seen)
assert seen == {
    "collect_list": [1, 2, None],
    "cast": 3,
    "row_number of NULL": 3,
    "orderBy": [None, 1, 2],
    "max_by": 1,
    "count_if": None,
    "dropna": 1,
}
PYTHON
