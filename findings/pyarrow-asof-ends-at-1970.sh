#!/usr/bin/env bash
# pyarrow: `join_asof` does not look across 1970, or across 0.
#
# Guess: a row two seconds before is within a tolerance of two seconds, wherever on the axis both are.
# Seen with pyarrow 26.0.1: -1 and -3 match, 3 and 1 match, 1 and -1 do not, with any tolerance, backward and forward, for integers, dates
# and timestamps. Times relative to an event, which are on both sides of 0, lose the rows around it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import pyarrow as pa


def found(left, right, tolerance, kind):
    events = pa.table({"t": pa.array([left], kind), "k": [1]})
    prices = pa.table({"t": pa.array([right], kind), "k": [1], "v": ["found"]})
    return events.join_asof(prices, on="t", by="k", tolerance=tolerance)["v"][0].is_valid


second = datetime.timedelta(seconds=1)
epoch = datetime.datetime(1970, 1, 1)
for left, right, tolerance, kind, seen in (
    (-1, -3, -2, pa.int64(), True),
    (3, 1, -2, pa.int64(), True),
    (1, -1, -2, pa.int64(), False),
    (0, -1, -1000, pa.int64(), False),
    (-1, 1, 2, pa.int64(), False),
    (epoch + second, epoch - second, -2, pa.timestamp("s"), False),
    (datetime.date(1970, 1, 2), datetime.date(1969, 12, 31), -5, pa.date32(), False),
):
    print(kind, left, "finds", right, "within", tolerance, found(left, right, tolerance, kind))
    assert found(left, right, tolerance, kind) is seen
PYTHON
