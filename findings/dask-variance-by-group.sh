#!/usr/bin/env bash
# Dask: by group, the variance of times in milliseconds is 9 * 10^18 instead of 50, and that of small integers 0.
#
# Guess: `groupby("key")["x"].var()` is the column's `var()`, taken for each group, and that of pandas up to rounding.
# Seen with dask 2026.8.0: by group, squares are added in the type of the column, where they wrap around. For two times in milliseconds that
# differ by 10 the variance is 2^63; for two integers of 5 * 10^9 it is 0, and with `agg` -2^63, of which the standard deviation is NaN. Integers of
# 8 bits have the variance 0 from values as small as 100 on, float32 from 10,000 on, and floats of 10^8 have one that is 60% too large. The
# variance of the column is right for each of them.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "dask[dataframe]==2026.8.0" pandas==2.3.3 pyarrow==25.0.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import dask.dataframe
import numpy as np
import pandas as pd

columns = {
    "milliseconds": np.array([1_700_000_000_000, 1_700_000_000_010]),
    "5 * 10^9": np.array([5_000_000_000, 5_000_000_010]),
    "int8": np.array([100, 101, 102, 103], "int8"),
    "int32": np.array([50_000, 50_000, 50_001, 50_001], "int32"),
    "float32": np.array([10_000.1, 10_000.2, 10_000.3, 10_000.4], "float32"),
    "float64": np.array([1e8 + 1, 1e8 + 2, 1e8 + 3, 1e8 + 4]),
}
seen = {}
for name, values in columns.items():
    frame = pd.DataFrame({"key": 0, "x": values})
    distributed = dask.dataframe.from_pandas(frame, npartitions=1)
    grouped = distributed.groupby("key")["x"]
    aggregated = grouped.agg(["var", "std"]).compute()
    seen[name] = grouped.var().compute()[0], aggregated["var"][0], aggregated["std"][0]
    right = frame.groupby("key")["x"].var()[0]
    column = distributed["x"].var().compute()
    print(f"{name}: by group {seen[name][0]:g}, with agg {seen[name][1]:g} (std {seen[name][2]:g}); column {column:g}; pandas {right:g}")
    assert np.isclose(column, right, rtol=0.01)
assert seen["milliseconds"][0] == 2.0**63
assert seen["5 * 10^9"][1] == -(2.0**63) and np.isnan(seen["5 * 10^9"][2])
assert seen["int8"][0] == seen["int32"][0] == seen["float32"][0] == 0
assert seen["float64"][0] > 2.5
PYTHON
