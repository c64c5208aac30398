#!/usr/bin/env bash
# numba: compiled `round(x, 2)` is NumPy's, not Python's: it differs for two in five of the numbers that end in 5.
#
# Guess: `round` of a float is one of the operations on plain floats that a compiler cannot change, so the result is Python's.
# Seen with numba 0.68.1: Python rounds the exact binary value (2.675 is less than 2.675, so 2.67). The compiled code multiplies by
# 100, rounds, and divides, as `numpy.round` does, and the product is exactly 267.5. So amounts of money change by a cent when an
# author's function is compiled. `round(x)` without digits is the same.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit

digits = njit(lambda x: round(x, 2))
whole = njit(lambda x: round(x))
numbers = [thousandths / 1000 for thousandths in range(5, 100_000, 10)]
different = [x for x in numbers if round(x, 2) != digits(x)]
print(f"round(2.675, 2): Python {round(2.675, 2)}, compiled {digits(2.675)}")
print(f"{len(different)} of {len(numbers)} differ from Python, {sum(np.round(x, 2) != digits(x) for x in numbers)} from NumPy")
assert (round(2.675, 2), digits(2.675)) == (2.67, 2.68)
assert 0.4 < len(different) / len(numbers) < 0.45
assert all(np.round(x, 2) == digits(x) for x in numbers)
assert all(round(x) == whole(x) for x in numbers)
PYTHON
