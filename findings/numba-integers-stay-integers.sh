#!/usr/bin/env bash
# numba: compiled, 2 ** -1 is 0, and the median of equal large integers is negative.
#
# Guess: what has fractions is a float, as in Python: `2 ** -1` is 0.5 (or an error, as in NumPy), and a median of integers is NumPy's.
# Seen with numba 0.68.1: `a ** b` of two integers is an integer, and negative powers are 0, without a word. `numpy.median` of an even number
# of integers adds the two in the middle as integers, so four times 2^62 have the median -2^62; `numpy.mean` of them is right. int(nan) and
# int(1e300) are -2^63, where Python raises.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit

power = njit(lambda a, b: a**b)
print("2 ** -1 is", power(2, -1), "compiled, and", 2**-1, "in Python")
assert power(2, -1) == 0 and isinstance(power(2, -1), int)
assert power(2.0, -1) == 0.5
large = np.array([2**62] * 4)
median = njit(lambda x: np.median(x))(large)
mean = njit(lambda x: np.mean(x))(large)
print("four times 2^62: median", median, "mean", mean, "compiled; median", np.median(large), "in NumPy")
assert median == -(2.0**62) and mean == np.median(large) == 2.0**62
truncated = njit(lambda x: int(x))
print("int(nan) and int(1e300):", truncated(float("nan")), truncated(1e300))
assert truncated(float("nan")) == truncated(1e300) == -(2**63)
PYTHON
