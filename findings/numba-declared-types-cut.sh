#!/usr/bin/env bash
# numba: a function declared as int64(int64, int64) takes 1.7 for 1, and one of int32 takes 2^40 for 0.
#
# Guess: an argument that does not fit the declared type is a TypeError, as for numba's own `vectorize` with declared types and for C
# functions of Python.
# Seen with numba 0.68.1: scalars are cast as in C: fractions are cut off, high bits are dropped, 2 is True for a boolean, and 2^53 + 1 as a
# float is 2^53. Without a declared type each call has its own, and is right. An aggregate that is declared for integers so adds whole
# parts, without an error.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from numba import njit, vectorize


def add(a, b):
    return a + b


for signature, arguments, seen in (
    ("int64(int64, int64)", (1.7, 1.6), 2),
    ("int32(int32, int32)", (2**40, 1), 1),
    ("int32(int32, int32)", (2**31, 0), -(2**31)),
    ("int64(boolean, int64)", (2, 0), 1),
):
    value = njit([signature])(add)(*arguments)
    print(signature, arguments, "is", value)
    assert value == seen
assert njit(add)(1.7, 1.6) == 1.7 + 1.6 and njit(add)(2**40, 1) == 2**40 + 1
try:
    vectorize(["int64(int64, int64)"])(add)(1.7, 1.6)
except TypeError as error:
    print("vectorize:", str(error)[:70])
else:
    raise AssertionError("vectorize takes 1.7, too")
PYTHON
