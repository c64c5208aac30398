#!/usr/bin/env bash
# numba: compiled `numpy.median` drops to an ordinary number where NumPy's is NaN; its quantile, mean and max do not.
#
# Guess: a NaN makes the median NaN, as in NumPy and as in numba's own `numpy.quantile(x, 0.5)`, which is the same number by definition.
# Seen with numba 0.68.1: the compiled median treats NaN as the largest number: of 1, 2, 3 and NaN it is 2.5, whatever their order is.
# `numpy.floor_divide` has its own result, too: 10.0 for 1.0 and 0.1, where NumPy and `//` in the same compiled function have 9.0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import math

import numpy as np
from numba import njit


def measures(x):
    return np.median(x), np.quantile(x, 0.5), np.mean(x), np.max(x)


def divisions(a, b):
    return np.floor_divide(a, b), a // b


for order in ([1.0, 2.0, 3.0, math.nan], [math.nan, 3.0, 2.0, 1.0]):
    plain, compiled = measures(np.array(order)), njit(measures)(np.array(order))
    print(f"{order}: median, quantile, mean, max in NumPy", *plain, "compiled", *compiled)
    assert all(math.isnan(value) for value in plain)
    assert compiled[0] == 2.5
    assert all(math.isnan(value) for value in compiled[1:])
print("floor_divide(1.0, 0.1) and 1.0 // 0.1 in NumPy", *divisions(1.0, 0.1), "compiled", *njit(divisions)(1.0, 0.1))
assert divisions(1.0, 0.1) == (9.0, 9.0)
assert njit(divisions)(1.0, 0.1) == (10.0, 9.0)
PYTHON
