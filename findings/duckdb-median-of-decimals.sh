#!/usr/bin/env bash
# DuckDB: the median of two equal decimals is another decimal.
#
# Guess: MEDIAN of DECIMAL(18,2) is a DECIMAL(18,2), computed in decimals; of two equal values it is that value.
# Seen with duckdb 2.0.1: the type is DECIMAL(18,2), and the value has passed a DOUBLE: twice 9007199254740993.00 has the median
# 9007199254740993.28, which the type shows as if its cents were exact. One value alone is exact, as are MIN, MAX and quantile_disc. AVG of
# decimals is a DOUBLE, which at least says so.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb

value = Decimal("9007199254740993.00")
for count in (1, 2):
    rows = ", ".join([f"({value}::DECIMAL(18,2))"] * count)
    query = f"SELECT MEDIAN(x), typeof(MEDIAN(x)), quantile_disc(x, 0.5), MAX(x), typeof(AVG(x)) FROM (VALUES {rows}) t(x)"
    ((median, type_, discrete, largest, of_average),) = duckdb.sql(query).fetchall()
    print(f"{count} times {value}: median {median} as {type_}, quantile_disc {discrete}, max {largest}; avg is {of_average}")
    assert (type_, discrete, largest, of_average) == ("DECIMAL(18,2)", value, value, "DOUBLE")
    assert (median == value) == (count == 1)
assert median == Decimal("9007199254740993.28")
PYTHON
