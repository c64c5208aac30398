#!/usr/bin/env bash
# river: the exponentially weighted variance of values near 10^9 is -128, and a rolling one of equal values is 192.
#
# Guess: the running variances are of Welford's kind, so an offset does no harm, and no variance is negative.
# Seen with river 0.26.1: `EWVar` subtracts the square of a mean from a mean of squares, and has rounding errors of the size of the squares.
# `Var` in `utils.Rolling` removes what leaves the window exactly in theory only: after 10^9 has left, three ones have the variance 192. The
# mean of the same window is right. Deviations by its square root are an error, or a threshold of 14 where there is no deviation.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet river==0.26.1
"$folder/venv/bin/python" - <<'PYTHON'
from river import stats, utils

moving = stats.EWVar(0.5)
for x in (1e9 + 0.1, 1e9 + 0.2, 1e9 + 0.3):
    moving.update(x)
small = stats.EWVar(0.5)
for x in (0.1, 0.2, 0.3):
    small.update(x)
print("EWVar", moving.get(), "without 1e9", small.get())
assert moving.get() < -1 and 0 < small.get() < 0.01
variance, mean = utils.Rolling(stats.Var, window_size=3), utils.Rolling(stats.Mean, window_size=3)
for x in (1e9 + 1, 1e9 + 2, 1e9 + 3, 1.0, 1.0, 1.0, 1.0):
    variance.update(x)
    mean.update(x)
print("variance of three ones", variance.get(), "mean", mean.get())
assert variance.get() > 100 and abs(mean.get() - 1) < 0.001
PYTHON
