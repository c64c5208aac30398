#!/usr/bin/env bash
# DataSketches: a union of HLL sketches of 100,000 values, of 50 in a small one and of 500 others estimates 499.
#
# Guess: a union only grows; a sketch of a smaller lg_k makes it less exact at most.
# Seen with datasketches 5.2.0 (C++ and Python): a small sketch that is more than a short list makes the union as small as itself, which is
# as documented; but the next sketch of a greater lg_k then replaces all that was there. In another order nothing is lost, and in Java
# neither. So what a merge of partitions with sketches of two sizes counts depends on their order, without a word.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasketches==5.2.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from datasketches import hll_sketch, hll_union


def sketch(lg_k, values):
    made = hll_sketch(lg_k)
    for value in values:
        made.update(value)
    return made


def union(*sketches):
    united = hll_union(12)
    for part in sketches:
        united.update(part)
    result = united.get_result()
    return result.lg_config_k, round(result.get_estimate())


large, small, others = sketch(12, range(100_000)), sketch(4, range(50)), sketch(12, range(500_000, 500_500))
seen = {
    "large, others": union(large, others),
    "large, small": union(large, small),
    "small, large, others": union(small, large, others),
    "large, small, others": union(large, small, others),
    "large, small of one value, others": union(large, sketch(4, range(1)), others),
}
for label, result in seen.items():
    print(f"{label}: lg_k and estimate {result}")
assert [k for k, _ in seen.values()] == [12, 4, 4, 12, 12]
assert all(estimate > 80_000 for label, (_, estimate) in seen.items() if label != "large, small, others")
assert seen["large, small, others"] == (12, 499)
PYTHON
