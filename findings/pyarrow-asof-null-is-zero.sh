#!/usr/bin/env bash
# pyarrow: `join_asof` finds the row of the key 0 for a NULL, and that of NULL for 0.
#
# Guess: a NULL matches nothing in `by`, as in `join` and in SQL, or it matches NULL, as in pandas.
# Seen with pyarrow 26.0.1: a NULL has the value that lies in its place, so it matches NULL, 0 and 1970-01-01, also as one of two keys.
# Texts are hashed, so NULL is not the empty text, but NULL matches NULL. An event without a customer takes the last price of customer 0.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import pyarrow as pa


def found(left, right, kind):
    events = pa.table({"t": [5], "k": pa.array([left], kind), "j": [1]})
    prices = pa.table({"t": [3], "k": pa.array([right], kind), "j": [1], "v": ["found"]})
    one = events.drop_columns("j").join_asof(prices.drop_columns("j"), on="t", by="k", tolerance=-9)
    two = events.join_asof(prices, on="t", by=["k", "j"], tolerance=-9)
    assert one["v"].to_pylist() == two["v"].to_pylist()
    return one["v"][0].is_valid


for left, right, kind, seen in (
    (None, 0, pa.int64(), True),
    (0, None, pa.int64(), True),
    (None, 1, pa.int64(), False),
    (None, datetime.date(1970, 1, 1), pa.date32(), True),
    (None, None, pa.string(), True),
    (None, "", pa.string(), False),
):
    print(kind, left, "finds", right, found(left, right, kind))
    assert found(left, right, kind) is seen
keys = pa.table({"k": pa.array([None], pa.int64())})
assert keys.join(pa.table({"k": pa.array([None, 0], pa.int64()), "v": [1, 2]}), "k")["v"].to_pylist() == [None]
PYTHON
