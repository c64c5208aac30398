#!/usr/bin/env bash
# Polars: `ewm_mean_by` ignores each value at the same time as the one before.
#
# Guess: values at one time have equal weight, or the last one counts; in any case the value is in the mean.
# Seen with polars 2.1.0: the weight of a new value is 1 - 2^(-dt / half_life), which is 0 for dt = 0, so of 1, 0, 5 at one time the mean is
# 1, and of 5, 1, 0 it is 5. Ticks in whole seconds lose all but the first, and which is first is the order of the rows. `ewm(times=...)` of
# pandas has their average, 2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import pandas as pd
import polars as pl

time = datetime.datetime(2020, 1, 1)
for values in ([1.0, 0.0, 5.0], [5.0, 1.0, 0.0]):
    frame = pl.DataFrame({"t": [time] * 3, "x": values})
    means = frame.select(pl.col("x").ewm_mean_by("t", half_life="1d"))["x"].to_list()
    other = pd.Series(values).ewm(halflife="1D", times=pd.to_datetime([time] * 3)).mean().tolist()
    print(values, "Polars", means, "pandas", other)
    assert means == [values[0]] * 3 and other[-1] == 2
PYTHON
