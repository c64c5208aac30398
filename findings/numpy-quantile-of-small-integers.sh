#!/usr/bin/env bash
# NumPy: the median of -100 and 100 as int8 is 128 by `quantile`, 0 by `median`; pandas' `describe` shows the 128.
#
# Guess: a quantile of integers is a float64 between the two integers beside it, whatever their width is.
# Seen with numpy 2.4.6 and pandas 3.1.1: the difference of the two neighbours is taken in their own type, where it wraps around, so the
# quantiles 0.25, 0.5 and 0.75 are -114, 128 and 114: beyond the maximum, and not even in order. int16 and int64 are affected likewise,
# unsigned integers are not, for their differences fit. `describe`, `quantile` and the nullable Int8 of pandas have these numbers, while
# `groupby` and Arrow's int8 are right.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import pandas as pd

shares = [0.25, 0.5, 0.75]
for kind, wrong in (("int8", [-114.0, 128.0, 114.0]), ("int16", None), ("int64", None)):
    top = {"int8": 100, "int16": 30_000, "int64": 2**62 + 2**61}[kind]
    x = np.array([-top, top], kind)
    seen = np.quantile(x, shares).tolist()
    print(kind, "quantiles", seen, "median", np.median(x))
    assert np.median(x) == 0 and seen[1] > top
    assert wrong is None or seen == wrong
x = np.array([-100, 100], "int8")
print(pd.Series(x).describe())
assert pd.Series(x).describe()["50%"] == 128 and pd.Series(x).quantile(0.75) == pd.Series(x, dtype="Int8").quantile(0.75) == 114
assert pd.Series(x, dtype="int8[pyarrow]").quantile(0.75) == 50
assert pd.DataFrame({"k": 1, "x": x}).groupby("k")["x"].quantile(0.75).item() == 50
assert np.quantile(np.array([10, 200], "uint8"), shares).tolist() == [57.5, 105.0, 152.5]
PYTHON
