#!/usr/bin/env bash
# DataSketches: HLL and theta sketches in Python take integers from 2^63 on as floats, so a thousand hashes count as one.
#
# Guess: an unsigned 64-bit integer is hashed by its 64 bits, as in the C++ library below, or is refused.
# Seen with datasketches 5.2.0: `update` has overloads for int64, float and str, and an int that does not fit the first one silently falls
# into the second. Neighbours of 2^63 have the same float. Half of all 64-bit hashes are that large. A CPC sketch counts them all.
# The empty text is not counted at all, though 0 and NaN are, and 1 and 1.0 are two values.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasketches==5.2.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import datasketches

CONSTRUCTORS = {
    "HLL": lambda: datasketches.hll_sketch(12),
    "theta": datasketches.update_theta_sketch,
    "CPC": lambda: datasketches.cpc_sketch(11),
}


def estimate(make, values):
    sketch = make()
    for value in values:
        sketch.update(value)
    return round(sketch.get_estimate())


for name, make in CONSTRUCTORS.items():
    below = estimate(make, range(2**63 - 1000, 2**63))
    above = estimate(make, range(2**63, 2**63 + 1000))
    empty, others, one = (estimate(make, values) for values in ([""], [0, float("nan"), "a"], [1, 1.0]))
    print(f"{name}: 1000 integers below 2^63: {below}, above: {above}; '': {empty}; 0, NaN and 'a': {others}; 1 and 1.0: {one}")
    assert 950 < below < 1050
    assert 950 < above < 1050 if name == "CPC" else above == 1
    assert (empty, others, one) == (0, 3, 2)
PYTHON
