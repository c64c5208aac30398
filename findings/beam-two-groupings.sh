#!/usr/bin/env bash
# Beam: CombinePerKey unites the keys 1, 1.0 and True, GroupByKey does not.
#
# Guess: CombinePerKey(f) is GroupByKey and f for each group, made faster by combining before the shuffle.
# Seen with apache-beam 2.77.0: GroupByKey compares the encoded keys, so there are three groups. The combining before the shuffle keeps
# its accumulators in a dict of Python, where the keys are equal, so one group comes out, named by the key that was first. 0.0 and -0.0
# are united likewise, while two NaNs, which a dict keeps apart, are one group in both.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-beam==2.77.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import math

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to


def total(key, values):
    return repr(key), sum(values)


def check(rows, combined, grouped):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        source = pipeline | beam.Create(rows)
        one = source | beam.CombinePerKey(sum) | beam.MapTuple(lambda key, value: (repr(key), value))
        other = source | beam.GroupByKey() | beam.MapTuple(total)
        assert_that(one, equal_to(combined), label="combined")
        assert_that(other, equal_to(grouped), label="grouped")
    print(f"{rows}: CombinePerKey {combined}, GroupByKey {grouped}")


check([(1, 1), (1.0, 2), (True, 4)], [("1", 7)], [("1", 1), ("1.0", 2), ("True", 4)])
check([(0.0, 1), (-0.0, 2)], [("0.0", 3)], [("0.0", 1), ("-0.0", 2)])
check([(math.nan, 1), (float("nan"), 2)], [("nan", 3)], [("nan", 3)])
PYTHON
