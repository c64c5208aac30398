#!/usr/bin/env bash
# pandas: a NaN that is read from Parquet is a value, and missing after `x + 0`; `clip` makes it the upper bound.
#
# Guess: a NaN in a column of Arrow's type is either a value all the way or missing all the way, and `clip` leaves it as it is.
# Seen with pandas 3.1.1: double[pyarrow] read from a file counts the NaN, `fillna` leaves it, and the mean is NaN. Arithmetic and NumPy's functions
# turn it into NA, so the mean of `x + 0` is a number. `-x`, `abs` and `round` do not. `clip(0, 10)` makes it 10. The sum of its group is NA, not
# NaN, and so `pivot_table` leaves the group out.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - "$folder/file" <<'PYTHON'
import math
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

parquet.write_table(pa.table({"key": ["a", "a", "b"], "x": [1.0, math.nan, 4.0]}), sys.argv[1])
frame = pd.read_parquet(sys.argv[1], dtype_backend="pyarrow")
x = frame["x"]
values = {
    "x": x,
    "x.fillna(0)": x.fillna(0),
    "-x": -x,
    "x.abs()": x.abs(),
    "x.round()": x.round(),
    "x + 0": x + 0,
    "numpy.sqrt(x)": np.sqrt(x),
    "x.clip(0, 10)": x.clip(0, 10),
}
for name, column in values.items():
    assert str(column.dtype) == "double[pyarrow]"
    print(f"{name}: {column.tolist()}, count {column.count()}, mean {column.mean()}")
for name in ("x", "x.fillna(0)", "-x", "x.abs()", "x.round()"):
    assert values[name].count() == 3 and math.isnan(values[name].mean())
assert (x + 0).count() == np.sqrt(x).count() == 2 and (x + 0).mean() == 2.5
assert x.clip(0, 10).tolist() == [1, 10, 4]
sums = frame.groupby("key")["x"].sum()
pivot = frame.pivot_table(index="key", values="x", aggfunc="sum")
print("sums:", sums.to_dict(), "pivot_table:", pivot["x"].to_dict())
assert sums["a"] is pd.NA and sums["b"] == 4 and pivot["x"].to_dict() == {"b": 4}
assert math.isnan(x.sum())
PYTHON
