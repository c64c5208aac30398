#!/usr/bin/env bash
# Polars: whether NaN is the maximum depends on which maximum is asked for.
#
# Guess: NaN is either the largest number or ignored; `rolling_max`, `cum_max`, `sort` and `top_k` agree with `max`.
# Seen with polars 2.1.0: `max`, `arg_max`, `cum_max` and the `max` of a group ignore NaN. `rolling_max` over a window as long as the column
# returns it, and `sort` and `top_k(1)` have it as the largest. So the last rolling maximum is not the maximum.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import math

import polars as pl

x = pl.Series("x", [1.0, math.nan, 2.0])
seen = {
    "max": x.max(),
    "arg_max": x.arg_max(),
    "cum_max": x.cum_max()[-1],
    "max of a group": pl.DataFrame({"k": [1, 1, 1], "x": x}).group_by("k").agg(pl.max("x"))["x"][0],
    "rolling_max(3)": x.rolling_max(3)[-1],
    "first of sort(descending)": x.sort(descending=True)[0],
    "top_k(1)": x.top_k(1)[0],
}
print(seen)
assert list(seen.values())[:4] == [2.0, 2, 2.0, 2.0]
assert all(math.isnan(value) for value in list(seen.values())[4:])
PYTHON
