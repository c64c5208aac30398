#!/usr/bin/env bash
# numba: the compiled mean of 20 million float32 ones is 0.84.
#
# Guess: compiled `numpy.sum` and `numpy.mean` are NumPy's, which adds in pairs and is right to some digits for any length.
# Seen with numba 0.68.1: they add one number after the other to a sum of the array's type. A float32 sum of ones stops at 2^24, because
# 2^24 + 1 is rounded to 2^24, and the mean is 2^24 / 20,000,000. The variance of equal numbers is not 0. `nanmean`, compiled, is right,
# since it adds in float64, while `nansum` stops as well. No warning is given; an array of float64 loses its last digits only.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit

ones = np.ones(20_000_000, np.float32)
found = {}
for name in ("sum", "mean", "var", "nansum", "nanmean"):
    function = getattr(np, name)
    compiled = njit(lambda x, function=function: function(x))
    found[name] = float(compiled(ones)), float(function(ones))
    print(f"{name} of 20,000,000 ones in float32: compiled {found[name][0]}, NumPy {found[name][1]}")
assert found["sum"] == found["nansum"] == (2.0**24, 2e7)
assert 0.83 < found["mean"][0] < 0.84 and found["mean"][1] == 1.0
assert found["var"][0] > 0.02 and found["var"][1] == 0.0
assert found["nanmean"] == (1.0, 1.0)
PYTHON
