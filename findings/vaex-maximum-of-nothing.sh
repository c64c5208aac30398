#!/usr/bin/env bash
# Vaex: the maximum of nothing, or of NaNs, is -inf, and the minimum inf.
#
# Guess: it is NaN or missing, as `mean` of the same rows is, in a column, by group and for a selection that selects nothing.
# Seen with vaex-core 4.19.0: -inf for floats, by group, too, and for integers the smallest number of their type. So the range of an empty
# group is -inf, and the greatest of the groups' minima is infinite.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vaex-core==4.19.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import math
import warnings

warnings.simplefilter("ignore")
import numpy as np
import vaex

frame = vaex.from_arrays(k=np.array([1, 1]), x=np.array([math.nan, math.nan]), i=np.array([5, 7]))
seen = {
    "column": (float(frame.max("x")), float(frame.min("x"))),
    "group": tuple(frame.groupby("k", agg={"a": vaex.agg.max("x"), "b": vaex.agg.min("x")}).to_pandas_df().loc[0, ["a", "b"]]),
    "selection": (float(frame.max("x", selection="i > 100")), float(frame.min("x", selection="i > 100"))),
}
mean, integer = float(frame.mean("x")), int(frame.max("i", selection="i > 100"))
print(seen, "mean", mean, "maximum of no integers", integer)
assert all(pair == (-math.inf, math.inf) for pair in seen.values()) and math.isnan(mean)
assert integer == -(2**63)
PYTHON
