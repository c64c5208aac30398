#!/usr/bin/env bash
# pandas: in a window, infinity is missing for the sum and the maximum, and counted.
#
# Guess: infinity is a value: `rolling(2).sum()` of inf, 2 is inf, as `sum` is, and `rolling(2).max()` is inf.
# Seen with pandas 3.1.1: `rolling` and `expanding` replace infinities by NaN before anything else but `count`, so with min_periods=1 the
# sum and the maximum of inf, 2 are 2, and the count is 2. `ewm` skips infinities. `sum`, `max`, `cumsum` and `groupby(...).sum()` have inf,
# `groupby(...).cumsum()` has inf and then NaN.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import math

import pandas as pd

x = pd.Series([math.inf, 2.0, 3.0])
window, whole = x.rolling(2, min_periods=1), x.expanding()
seen = {name: getattr(window, name)().tolist() for name in ("sum", "max", "count")}
print("rolling", seen, "expanding", whole.max().tolist(), "ewm", x.ewm(alpha=0.5).mean().tolist())
assert [values[1:] for values in seen.values()] == [[2, 5], [2, 3], [2, 2]]
assert x.rolling(2).sum().isna().tolist() == [True, True, False] and whole.max().iloc[2] == 3
assert x.ewm(alpha=0.5).mean().iloc[1] == 2
assert x.sum() == x.max() == x.cumsum().iloc[2] == x.groupby([1] * 3).sum().item() == math.inf
assert x.groupby([1] * 3).cumsum().isna().tolist() == [False, True, True]
PYTHON
