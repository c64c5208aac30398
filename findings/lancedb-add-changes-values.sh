#!/usr/bin/env bash
# LanceDB: `add` puts 1.7 into an integer column as 1, and 1e300 into a float32 column as infinity.
#
# Guess: a frame whose columns have other types is an error, as for texts and for integers that are too large, or only what fits is cast.
# Seen with lancedb 0.40.0: floats are cut off to integers, by `update` as well, an integer of 2^53 + 1 loses its last digit in a double,
# float64 is narrowed to float32 even if it becomes infinite, and microseconds are cut off to seconds. A text is refused, and so is 300 for
# int8.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet lancedb==0.40.0 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime
import math
import tempfile

import lancedb
import pyarrow as pa

with tempfile.TemporaryDirectory() as folder:
    database = lancedb.connect(folder)

    def added(kind, value):
        table = database.create_table("t", schema=pa.schema([("x", kind)]), mode="overwrite")
        table.add(pa.table({"x": [value]}))
        return table.to_arrow()["x"][0].as_py()

    half = datetime.datetime(2024, 1, 1, 0, 0, 0, 500000)
    for kind, value, seen in (
        (pa.int64(), 1.7, 1),
        (pa.float64(), 2**53 + 1, 2.0**53),
        (pa.float32(), 1e300, math.inf),
        (pa.timestamp("s"), half, half.replace(microsecond=0)),
    ):
        back = added(kind, value)
        print(kind, value, "is", back)
        assert back == seen
    for kind, value in ((pa.int64(), "x"), (pa.int8(), 300)):
        try:
            added(kind, value)
        except Exception as error:
            print(kind, value, "raises", type(error).__name__)
        else:
            raise AssertionError((kind, value))
PYTHON
