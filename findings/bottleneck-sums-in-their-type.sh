#!/usr/bin/env bash
# Bottleneck: the sum of the int32 2147483647 and 1 is negative, the median of 2^62 twice too, and the mean of 33 million float32 ones 0.5.
#
# Guess: the functions are those of NumPy, only faster, as their names and the README say.
# Seen with bottleneck 1.6.0: `nansum` adds int32 in int32, where NumPy adds in int64. Its mean of them is right. `median` adds the two
# integers in the middle before it halves. A sum of float32 stands still at 2^24; NumPy's adds in pairs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet bottleneck==1.6.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import bottleneck as bn
import numpy as np

integers, large, ones = np.array([2**31 - 1, 1], np.int32), np.array([2**62 + 1, 2**62 + 1]), np.ones(2**25, np.float32)
seen = {
    "sum of int32": (int(bn.nansum(integers)), int(np.nansum(integers))),
    "mean of int32": (float(bn.nanmean(integers)), float(np.nanmean(integers))),
    "squares of int32": (int(bn.ss(np.array([2**16], np.int32))), 2**32),
    "median of 2^62 + 1": (float(bn.median(large)), float(np.median(large.astype(float)))),
    "sum of ones": (float(bn.nansum(ones)), float(np.nansum(ones))),
    "mean of ones": (float(bn.nanmean(ones)), float(np.nanmean(ones))),
}
for label, (fast, exact) in seen.items():
    print(f"{label}: bottleneck {fast}, NumPy {exact}")
assert list(seen.values()) == [
    (-(2**31), 2**31),
    (2.0**30, 2.0**30),
    (0, 2**32),
    (-(2.0**62), 2.0**62),
    (2.0**24, 2.0**25),
    (0.5, 1.0),
]
PYTHON
