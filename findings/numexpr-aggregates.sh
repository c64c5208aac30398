#!/usr/bin/env bash
# numexpr: the maximum of 1 and NaN is 1, that of nothing is no number but an array, and the sum of the int32 2147483647 and 1 negative.
#
# Guess: `sum`, `max` and `min` in an expression are NumPy's, as its functions are.
# Seen with numexpr 2.14.2: integers are added in their type and float32 in theirs, so a sum of ones stands still at 2^24. A NaN is skipped
# by `max` and `min`, and counts for `sum`. uint64 is computed as int64: 2^63 + 1 is negative.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet numexpr==2.14.2 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numexpr
import numpy as np


def both(expression, values):
    fast = numexpr.evaluate(expression, {"a": values})
    return fast.tolist(), eval(expression, {"a": values, "sum": np.sum, "max": np.max}).tolist()


seen = {
    "sum of int32": both("sum(a)", np.array([2**31 - 1, 1], np.int32)),
    "sum of float32": both("sum(a)", np.ones(2**25, np.float32)),
    "maximum of NaN and 1": [str(x) for x in both("max(a)", np.array([np.nan, 1.0]))],
    "2^63 + 1 as uint64": both("a + 1", np.array([2**63], np.uint64)),
    "maximum of nothing": numexpr.evaluate("max(a)", {"a": np.array([], float)}).tolist(),
}
for label, value in seen.items():
    print(label, value)
assert list(seen.values()) == [(-(2**31), 2**31), (2.0**24, 2.0**25), ["1.0", "nan"], ([1 - 2**63], [2**63 + 1]), []]
PYTHON
