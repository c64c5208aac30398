#!/usr/bin/env bash
# Polars: a sum of decimals beyond 38 digits raises for a column, and wraps around to a negative number in group_by.
#
# Guess: `df.group_by(k).agg(pl.sum("x"))` with one group is `df["x"].sum()`.
# Seen with polars 2.1.0: the sum of the column raises "overflow in decimal addition". The sum of the group is negative. Sums of
# integers wrap in groups, too: Int32 stays Int32, while Int8 is widened to Int64, so the narrower column has the right sum.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import polars as pl

rows = pl.DataFrame({"k": [1, 1], "x": pl.Series([Decimal("9" * 38)] * 2, dtype=pl.Decimal(38, 0))})
try:
    total = rows["x"].sum()
except pl.exceptions.ComputeError as error:
    total = f"ComputeError: {error}"
grouped = rows.group_by("k").agg(pl.sum("x"))["x"]
print("column:", total, "group:", grouped[0], "as", grouped.dtype)
assert str(total).startswith("ComputeError: overflow")
assert grouped[0] < 0

narrow = pl.DataFrame({"k": [1, 1], "x": pl.Series([127, 127], dtype=pl.Int8)}).group_by("k").agg(pl.sum("x"))["x"]
wide = pl.DataFrame({"k": [1, 1], "x": pl.Series([2**31 - 1] * 2, dtype=pl.Int32)}).group_by("k").agg(pl.sum("x"))["x"]
print("Int8:", narrow[0], narrow.dtype, "Int32:", wide[0], wide.dtype)
assert (narrow[0], narrow.dtype) == (254, pl.Int64)
assert (wide[0], wide.dtype) == (-2, pl.Int32)
PYTHON
