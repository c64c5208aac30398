#!/usr/bin/env bash
# Vaex: a histogram between the minimum and the maximum of a column does not count the maximum.
#
# Guess: the last bin includes its upper limit, as in NumPy, pandas and Spark, so the counts add up to the number of rows.
# Seen with vaex-core 4.19.0: the upper limit belongs to no bin, so 0, 1, 2 in two bins are counted 1 and 1, with limits=[0, 2] and with
# limits="minmax", which Vaex finds itself. The share of each bin is too small.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vaex-core==4.19.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import numpy as np
import vaex

x = np.array([0.0, 1.0, 2.0])
frame = vaex.from_arrays(x=x)
given = frame.count(binby="x", limits=[0, 2], shape=2).tolist()
minmax = frame.count(binby="x", limits="minmax", shape=2).tolist()
print("given limits", given, "minmax", minmax, "NumPy", np.histogram(x, bins=2, range=(0, 2))[0].tolist())
assert given == minmax == [1, 1] and np.histogram(x, bins=2, range=(0, 2))[0].tolist() == [1, 2]
PYTHON
