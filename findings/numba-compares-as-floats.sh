#!/usr/bin/env bash
# numba: compiled, uint64 2^53 + 1 equals int64 2^53, and 2^53 + 1 equals the float 2^53.
#
# Guess: integers are compared exactly, whatever their signs are, as NumPy 2 does for uint64 with int64, and an integer with a float as
# Python does.
# Seen with numba 0.68.1: a comparison of uint64 with int64 goes through float64, so hashes and identifiers that differ in their last bits
# are equal, if one comes from an unsigned column. Their sum goes through int64: 2^63 + 1 is negative. A cast to one type makes it exact.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit


@njit
def equal(a, b):
    return a == b


@njit
def add(a, b):
    return a + b


unsigned, signed = np.uint64(2**53 + 1), np.int64(2**53)
seen = {
    "uint64, int64": (equal(unsigned, signed), bool(unsigned == signed)),
    "int, float": (equal(2**53 + 1, float(2**53)), 2**53 + 1 == float(2**53)),
    "uint64, uint64": (equal(unsigned, np.uint64(signed)), False),
}
print("compiled, not compiled:", seen, "2^63 + 1:", add(np.uint64(2**63), np.int64(1)))
assert seen == {"uint64, int64": (True, False), "int, float": (True, False), "uint64, uint64": (False, False)}
assert add(np.uint64(2**63), np.int64(1)) < 0
PYTHON
