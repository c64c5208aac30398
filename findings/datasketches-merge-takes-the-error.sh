#!/usr/bin/env bash
# DataSketches: a KLL sketch of k 400 that takes in one of k 8 and 9 values says k 400 and has the error of k 8, 30 %.
#
# Guess: a merged sketch is about as exact as its parts by their weight, so nine values among ten thousand do not matter, and `k` tells.
# Seen with datasketches 5.2.0 for Python: the rank error of a KLL sketch goes from 0.7 % to 30 % for good, however many values follow, once
# the other one has more than 8 values and so has dropped some; `k` stays 400, and the ranks themselves stay good. A quantiles sketch of k
# 128 becomes one of k 16 when it takes in one of k 16 with 32 values, and with 31 values it does not.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasketches==5.2.0
"$folder/venv/bin/python" - <<'PYTHON'
from datasketches import kll_doubles_sketch, quantiles_doubles_sketch


def sketch(kind, k, count):
    made = kind(k)
    for value in range(count):
        made.update(float(value))
    return made


def merge(kind, k, other, count):
    merged = sketch(kind, k, 10000)
    merged.merge(sketch(kind, other, count))
    error = round(100 * merged.normalized_rank_error(False), 1)
    print(f"{kind.__name__} of k {k} with one of k {other} and {count} values: k {merged.k}, error {error} %")
    return merged.k, error, merged


assert merge(kll_doubles_sketch, 400, 8, 8)[:2] == (400, 0.7)
k, error, merged = merge(kll_doubles_sketch, 400, 8, 9)
assert (k, error) == (400, 30.4)
for value in range(100_000):
    merged.update(float(value % 10000))
rank = merged.get_rank(5000.0)
print(f"with 100,000 values more: error {100 * merged.normalized_rank_error(False):.1f} %, rank of 5000: {rank:.3f}")
assert round(100 * merged.normalized_rank_error(False), 1) == 30.4 and abs(rank - 0.5) < 0.02
assert merge(quantiles_doubles_sketch, 128, 16, 31)[:2] == (128, 1.4)
assert merge(quantiles_doubles_sketch, 128, 16, 32)[:2] == (16, 10.6)
PYTHON
