#!/usr/bin/env bash
# Polars: the product of the decimals 0.1 and 0.1 is 0.0, and 0.5 * 0.5 is 0.2.
#
# Guess: the scales of the factors are added, as in SQL, pyarrow, DuckDB and Python, so 0.1 * 0.1 is 0.01.
# Seen with polars 2.1.0: the product has the greater of the two scales and is rounded to it, half to even; 1 / 3 of scale 0 is 0. So a
# price in cents times a rate in percent has cents, each row rounded, and the sum of a thousand products of 0.05 and 0.05 is 0 instead of
# 2.50. A cast of one factor to a greater scale before helps.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb
import polars as pl


def column(text, scale, rows=1):
    return pl.Series([Decimal(text)] * rows, dtype=pl.Decimal(10, scale))


for left, right, scale, seen in (("0.1", "0.1", 1, "0.0"), ("0.5", "0.5", 1, "0.2"), ("0.05", "0.05", 2, "0.00")):
    product = (column(left, scale) * column(right, scale))[0]
    ((exact,),) = duckdb.sql(f"select {left} * {right}").fetchall()
    print(left, "*", right, "is", product, "in DuckDB", exact)
    assert str(product) == seen and exact == Decimal(left) * Decimal(right)
assert (column("0.05", 2, 1000) * column("0.05", 2, 1000)).sum() == 0
assert (column("1", 0) / column("3", 0))[0] == 0
assert (column("0.05", 2).cast(pl.Decimal(38, 4)) * column("0.05", 2))[0] == Decimal("0.0025")
PYTHON
