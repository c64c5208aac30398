#!/usr/bin/env bash
# DDSketch: with weights that sum to 1, each quantile of positive values is the smallest of them, or negative.
#
# Guess: `add(value, weight)` scales, so the quantiles of the weights 0.2, 0.3, 0.5 are those of the weights 2, 3, 5.
# Seen with ddsketch 3.0.1: the rank is q * (count - 1), where count is the sum of the weights. At a sum of 1 the rank is 0 for each q, so all
# quantiles are the minimum. Below 1, which ten times 0.1 is already, the rank is negative and so is the answer: the smallest value with a minus
# sign, which was never added. At a sum of 1.5 the maximum of ten values is the fourth.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ddsketch==3.0.1
"$folder/venv/bin/python" - <<'PYTHON'
from ddsketch import DDSketch


def quantiles(weights):
    sketch = DDSketch(relative_accuracy=0.001)
    for value, weight in enumerate(weights, start=1):
        sketch.add(value, weight=weight)
    return [round(sketch.get_quantile_value(q), 1) for q in (0, 0.5, 0.9, 1)]


seen = {
    "1 to 10, weights 1": quantiles([1] * 10),
    "1 to 10, weights 0.15": quantiles([0.15] * 10),
    "1 to 10, weights 0.1": quantiles([0.1] * 10),
    "1 to 3, weights 0.25, 0.25, 0.5": quantiles([0.25, 0.25, 0.5]),
}
for label, values in seen.items():
    print(f"{label}: minimum, median, 90th percentile and maximum {values}")
assert list(seen.values()) == [[1, 5, 9, 10], [1, 2, 3, 4], [1, -1, -1, -1], [1, 1, 1, 1]]
PYTHON
