#!/usr/bin/env bash
# Vaex: the mean of four times 2^62 is 0, the variance of two times in milliseconds is 0, and the correlation of a line is infinite.
#
# Guess: statistics are computed in float64 by a stable algorithm, as in pandas; a correlation is between -1 and 1, and a kurtosis at least
# -3.
# Seen with vaex-core 4.19.0: the mean divides a sum that has wrapped around, and variance, correlation and kurtosis subtract sums of
# powers. With an offset of 10^9 the correlation of three points on a line is inf, and with one of 10^6 the kurtosis is below -10^9. The
# covariance is right. No warning is given.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet vaex-core==4.19.0 numpy==2.4.6 pandas==2.3.3
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

warnings.simplefilter("ignore")
import numpy as np
import pandas as pd
import vaex

large, times = np.array([2**62] * 4), np.array([1700000000000, 1700000000010])
line = pd.DataFrame({"x": [1e9 + 1, 1e9 + 2, 1e9 + 3], "y": [1.0, 2.0, 3.0]})
frame = vaex.from_pandas(line)
seen = {
    "mean": float(vaex.from_arrays(x=large).mean("x")),
    "mean by group": vaex.from_arrays(k=[1] * 4, x=large).groupby("k", agg={"m": vaex.agg.mean("x")})["m"].tolist()[0],
    "variance": float(vaex.from_arrays(x=times).var("x")),
    "correlation": float(frame.correlation("x", "y")),
    "kurtosis": float(vaex.from_arrays(x=np.array([1e6 + 1, 1e6 + 2, 1e6 + 3])).kurtosis("x")),
}
print(seen, "pandas", pd.Series(large).mean(), pd.Series(times).var(ddof=0), line["x"].corr(line["y"]))
assert seen["mean"] == seen["mean by group"] == seen["variance"] == 0
assert not -1 <= seen["correlation"] <= 1 and seen["kurtosis"] < -3
assert abs(frame.cov("x", "y")[0, 1] - 2 / 3) < 1e-3
PYTHON
