#!/usr/bin/env bash
# datatable: the sum of 2^62 and 2^62 is missing, and the row sum of 2147483647 and 1 is negative beside a mean that is right.
#
# Guess: a sum of 64-bit integers raises or wraps around; a sum across columns has the type that a sum of a column has, int64.
# Seen with datatable 1.1.0: the smallest integer of a type is the missing value. A sum that wraps around to -2^63 is therefore None, one
# of three times 2^62 is negative, and -128 in an int8 array of NumPy comes back as None. `rowsum` of int32 columns is an int32 and
# wraps around to -2147483648, which prints as a number; `sum` of the same values is right. The deviation of 1, infinity, 3 is None, and so
# is the sum of the two infinities. 0.0 and -0.0 are two groups.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datatable==1.1.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import math

import datatable
import numpy as np
from datatable import by, count, f, mean, rowmean, rowsum, sd, sum

inf, large = math.inf, 2**62


def expect(what, frame, *expected):
    values = [column[0] for column in frame.to_list()]
    print(what, values)
    assert values == list(expected)


expect("sum, mean of 2^62 twice", datatable.Frame(x=[large] * 2)[:, [sum(f.x), mean(f.x)]], None, 2.0**62)
expect("sum of 2^62 three times", datatable.Frame(x=[large] * 3)[:, sum(f.x)], -large)
for kind in (np.int8, np.int32, np.int64):
    expect(f"the smallest {kind.__name__}", datatable.Frame(np.array([np.iinfo(kind).min, 5], kind)), None)
rows = datatable.Frame(a=[2**31 - 1], b=[1])
expect("row sum, row mean", rows[:, [rowsum(f[:]), rowmean(f[:])]], -(2**31), 2.0**30)
expect("sum of the same", datatable.Frame(x=[2**31 - 1, 1])[:, sum(f.x)], 2**31)
expect("mean, deviation of 1, inf, 3", datatable.Frame(x=[1, inf, 3])[:, [mean(f.x), sd(f.x)]], inf, None)
expect("sum of inf, -inf", datatable.Frame(x=[inf, -inf])[:, sum(f.x)], None)
groups = datatable.Frame(x=[0.0, -0.0])[:, count(), by(f.x)]
print("groups of 0.0, -0.0:", groups.to_list())
assert groups.nrows == 2
PYTHON
