#!/usr/bin/env bash
# Polars: the mean of 100 and 100 is -28, if they are in two columns.
#
# Guess: `mean_horizontal` of columns is what `mean` is of rows: computed in Float64, or at least in Int64 as `sum` of Int8 is.
# Seen with polars 2.1.0: `mean_horizontal` divides `sum_horizontal`, which keeps the type of its columns and wraps around, and makes a Float64 of
# the quotient. For Int8, Int32 and Int64 the mean is negative, while `mean` and, for Int8, `sum` of the same numbers in one column are right.
# A Float64 column among them makes it right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import polars as pl

for kind, value, mean, total in ((pl.Int8, 100, -28.0, -56), (pl.Int32, 2**31 - 1, -1.0, -2), (pl.Int64, 2**63 - 1, -1.0, -2)):
    columns = pl.DataFrame({"a": [value], "b": [value]}, schema={"a": kind, "b": kind})
    ((seen_mean, seen_total),) = columns.select(m=pl.mean_horizontal("a", "b"), s=pl.sum_horizontal("a", "b")).rows()
    rows = pl.Series([value, value], dtype=kind)
    print(kind, "of columns: mean", seen_mean, "sum", seen_total, "of rows: mean", rows.mean())
    assert (seen_mean, seen_total) == (mean, total)
    assert rows.mean() == float(value)
    mixed = columns.with_columns(c=pl.lit(float(value))).select(pl.mean_horizontal("a", "b", "c")).item()
    assert abs(mixed / value - 1) < 1e-9
assert pl.Series([100, 100], dtype=pl.Int8).sum() == 200
PYTHON
