#!/usr/bin/env bash
# amazon.ion: the null that is read is not None, true is no bool, and of two fields `a` len counts both and items() repeats one.
#
# Guess: Python's simple API reads Ion null as None, true as True, and a struct as a dict.
# Seen with amazon.ion 0.15.0: each value is of a class of its own that keeps Ion's type. Null is neither None nor equal to it, so `x is
# None` and pandas' isna take it for a value. True is an int subclass, and a struct is a mapping but no dict, which json refuses. A field
# that is there twice counts twice in `len`, and once among the keys.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet amazon.ion==0.15.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from amazon.ion import simpleion

row = simpleion.loads("{a: null, b: true, c: 1}")
twice = simpleion.loads("{a: 1, a: 2}")
seen = {
    "null is None": row["a"] is None,
    "null == None": row["a"] == None,  # noqa: E711
    "true == True": row["b"] == True,  # noqa: E712
    "true is a bool": isinstance(row["b"], bool),
    "a struct is a dict": isinstance(row, dict),
    "length and keys of {a: 1, a: 2}": (len(twice), list(twice)),
}
print(seen)
assert list(seen.values()) == [False, False, True, False, False, (2, ["a"])]
PYTHON
