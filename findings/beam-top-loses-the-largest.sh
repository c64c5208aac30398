#!/usr/bin/env bash
# Beam: the two largest of NaN, 3, 5, 1 are 3 and NaN.
#
# Guess: `Top.Largest` skips a NaN or has it as the largest, as `sorted` with a key or SQL does, and the 5 is among the two largest in any case.
# Seen with apache-beam 2.77.0: the elements are in a heap, in which a NaN is neither less nor greater, so the 5 is compared with the NaN and
# dropped. In another order of the same elements it is kept. `CombineGlobally(max)` depends on the order likewise.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-beam==2.77.0
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import apache_beam as beam
from apache_beam.testing.util import assert_that
from apache_beam.transforms.combiners import Top

nan = float("nan")


def expect(text):
    def check(rows):
        assert str(rows) == text, rows

    return check


for values, largest, greatest in (
    ([nan, 3.0, 5.0, 1.0], "[[3.0, nan]]", "[nan]"),
    ([3.0, nan, 5.0, 1.0], "[[5.0, nan]]", "[5.0]"),
    ([3.0, 5.0, 1.0, nan], "[[5.0, 3.0]]", "[5.0]"),
):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        source = pipeline | beam.Create(values, reshuffle=False)
        assert_that(source | Top.Largest(2), expect(largest), label="largest")
        assert_that(source | beam.CombineGlobally(max), expect(greatest), label="max")
    print(f"{values}: the two largest {largest}, max {greatest}")
PYTHON
