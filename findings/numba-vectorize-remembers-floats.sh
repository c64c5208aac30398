#!/usr/bin/env bash
# numba: a `vectorize` function that was called with floats once computes with floats for integers from then on.
#
# Guess: without declared types it is compiled for the types of each call, as `njit` is, so integers are added as integers, whatever was
# called before.
# Seen with numba 0.68.1: a compiled loop that the arguments can be cast to is taken, and integers can be cast to floats. So 2^53 + 1 is
# 2^53 in a process that has had floats first, with the type float64, and exact in one that has not. In a worker the result depends on the
# tasks before.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numba import njit, vectorize


def add(a, b):
    return a + b


large, one = np.int64(2**53), np.int64(1)
fresh, used, compiled = vectorize(add), vectorize(add), njit(add)
used(1.5, 1.0)
compiled(1.5, 1.0)
seen = {"fresh": fresh(large, one), "after floats": used(large, one), "njit after floats": compiled(2**53, 1)}
print({name: (type(value).__name__, int(value) - 2**53) for name, value in seen.items()})
assert int(seen["fresh"]) == int(seen["njit after floats"]) == 2**53 + 1
assert isinstance(seen["after floats"], np.float64) and int(seen["after floats"]) == 2**53
PYTHON
