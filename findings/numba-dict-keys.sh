#!/usr/bin/env bash
# numba: a dict keeps 0.0 and -0.0 as two keys, a set keeps one of them.
#
# Guess: numba supports dict and set as Python has them: equal keys are one key, so both have one zero, and `d[0.0] = 5` is found by
# `d[-0.0]`.
# Seen with numba 0.68.1: the zeros are equal and have the same hash, and a set has one of them. A dict compares the bytes of its keys
# instead, also inside tuples, so it has two, and a lookup by the other zero finds nothing. A NaN is never found again, and added each
# time, in both. (In Python a NaN is found if it is the same object.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numba==0.68.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from numba import njit


def keys_of_dict(a, b):
    counts = {1.0: 0}
    counts[a] = 1
    counts[b] = 2
    return len(counts) - 1


def keys_of_tuples(a, b):
    counts = {(1.0, 1): 0}
    counts[a, 1] = 1
    counts[b, 1] = 2
    return len(counts) - 1


def keys_of_set(a, b):
    members = {a}
    members.add(b)
    return len(members)


def found(a, b):
    counts = {1.0: 0}
    counts[a] = 1
    return b in counts


nan = float("nan")
seen = {}
for function in (keys_of_dict, keys_of_tuples, keys_of_set, found):
    compiled = njit(function)
    seen[function.__name__] = (function(0.0, -0.0), compiled(0.0, -0.0), function(nan, nan), compiled(nan, nan))
    print("{}: zeros in Python {}, compiled {}; NaN in Python {}, compiled {}".format(function.__name__, *seen[function.__name__]))
with_equal_hashes = njit(lambda a, b: a == b and hash(a) == hash(b))(0.0, -0.0)
print("the zeros are equal and have the same hash, compiled:", with_equal_hashes)
assert with_equal_hashes
assert seen == {
    "keys_of_dict": (1, 2, 1, 2),
    "keys_of_tuples": (1, 2, 1, 2),
    "keys_of_set": (1, 1, 1, 2),
    "found": (True, False, True, False),
}
PYTHON
