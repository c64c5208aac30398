#!/usr/bin/env bash
# t-digests: the 10th percentile of 90 zeros and 10 ones is -0.7, and the share of zeros is 0 or 0.45.
#
# Guess: a t-digest of two values is exact at its ends, no quantile is outside of the values, and `cdf(x)` is the share of values up to x.
# Seen with tdigest 0.5.2.2: all zeros are one centroid, whose width is taken from the distance to its neighbour, so percentiles fall far below the
# minimum. (The 0th is right.) With crick 0.0.8 and fastdigest 0.12.0 the quantiles are within the values. The cdf at the minimum, which 90% of the values
# have, is 0 with these two, and 0.45 with tdigest. Counts, flags and rounded prices are such data.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tdigest==0.5.2.2 crick==0.0.8 fastdigest==0.12.0 numpy==2.4.6
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import crick
import fastdigest
import numpy as np
import tdigest

values = [0.0] * 90 + [1.0] * 10
python = tdigest.TDigest()
python.batch_update(values)
c = crick.TDigest()
c.update(np.array(values))
rust = fastdigest.TDigest.from_values(values)
seen = {
    "tdigest": ([python.percentile(p) for p in (0, 10, 50)], python.cdf(0)),
    "crick": ([float(c.quantile(q)) for q in (0, 0.1, 0.5)], float(c.cdf(0))),
    "fastdigest": ([rust.quantile(q) for q in (0, 0.1, 0.5)], rust.cdf(0)),
}
for name, (quantiles, share) in seen.items():
    print(f"{name}: minimum, 10th percentile and median {[round(x, 3) for x in quantiles]}, share of values up to 0: {round(share, 3)}")
minimum, tenth, median = seen["tdigest"][0]
assert minimum == 0 and round(tenth, 3) == -0.7 and round(median, 3) == 0.1
assert round(seen["tdigest"][1], 3) == 0.45
assert seen["crick"] == seen["fastdigest"] == ([0, 0, 0], 0)
PYTHON
