#!/usr/bin/env bash
# SciPy: the median of a label that no pixel has is the value of another label, and its maximum is 0.
#
# Guess: an aggregate by label of `scipy.ndimage` is NaN for a label without pixels, or an error, as `mean` is.
# Seen with SciPy 1.17.1: `median` looks up a place among the sorted values of all labels and takes what is there, `maximum` and `minimum`
# are 0, also if all values are negative, and `sum_labels` is 0. `sum_labels` of integers goes through floats: 2^53 + 1 is 2^53.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import numpy as np
from scipy import ndimage

values, labels = np.array([-5.0, -6.0, -7.0]), np.array([1, 1, 3])
seen = {f.__name__: f(values, labels, [1, 2, 3]).tolist() for f in (ndimage.median, ndimage.maximum, ndimage.minimum, ndimage.mean)}
for name, result in seen.items():
    print(name, "of the labels 1, 2 (without pixels) and 3:", result)
assert str(seen) == (
    "{'median': [-5.5, -6.0, -7.0], 'maximum': [-5.0, 0.0, -7.0], 'minimum': [-6.0, 0.0, -7.0], 'mean': [-5.5, nan, -7.0]}"
), seen
total = ndimage.sum_labels(np.array([2**53 + 1]), np.array([1]), [1])
print("sum of 2^53 + 1:", int(total[0]))
assert int(total[0]) == 2**53
PYTHON
