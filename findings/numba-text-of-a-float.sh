#!/usr/bin/env bash
# numba: compiled, the text of 0.1 and of 2.5 is the same: "<object type:float64>".
#
# Guess: `str(x)` is Python's, or is not supported and does not compile; `str` of an integer is Python's.
# Seen with numba 0.68.1: the text of a float names its type only, in f-strings, too. So a key that is made of floats is one key for all of
# them, and an aggregate that counts texts has one group.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
from numba import njit


@njit
def text(x):
    return str(x)


@njit
def key(name, x):
    return f"{name}:{x}"


@njit
def count(values):
    seen = set()
    for value in values:
        seen.add(str(value))
    return len(seen)


print("str(0.1)", text(0.1), "str(7)", text(7), key("a", 0.1), "texts of three floats:", count((0.1, 2.5, 3.0)))
assert text(0.1) == text(2.5) == "<object type:float64>" and text(7) == "7"
assert key("a", 0.1) == key("a", 2.5) and count((0.1, 2.5, 3.0)) == 1
PYTHON
