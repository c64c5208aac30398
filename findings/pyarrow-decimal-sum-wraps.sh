#!/usr/bin/env bash
# pyarrow: sum and mean of DECIMAL(38) beyond 38 digits wrap around at 2^127, without an error.
#
# Guess: an error or NULL as in SQL engines, since the result has the type decimal128(38, 0), and 39 digits do not fit it.
# Seen with pyarrow 26.0.1: two times 10^38 - 1 give a negative sum of 39 digits, which no decimal128(38, 0) can have, and a negative mean
# of two equal positive numbers, in `sum`, `mean` and `group_by` alike. A sum of four values even comes back as a plausible positive one.
# `pyarrow.compute.add` of the same values raises, and so does DuckDB's SUM.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

nines = Decimal("9" * 38)
for count in (2, 4):
    values = pa.array([nines] * count, pa.decimal128(38, 0))
    rows = pa.table({"k": [1] * count, "v": values})
    total, mean = pc.sum(values), pc.mean(values)
    grouped = rows.group_by("k").aggregate([("v", "sum"), ("v", "mean")]).to_pylist()
    right = int(nines) * count
    wrapped = (right + 2**127) % 2**128 - 2**127
    print(f"{count} values: sum {total} as {total.type}, mean {mean}; right: {right}")
    assert total.as_py() == wrapped != right
    assert grouped[0]["v_sum"] == wrapped
    assert mean.as_py() == grouped[0]["v_mean"] != nines

try:
    pc.add(pa.scalar(nines), pa.scalar(nines)).validate(full=True)
except pa.ArrowInvalid as error:
    print("add:", error)
else:
    raise SystemExit("add does not raise any more")
try:
    duckdb.sql("SELECT SUM(v) FROM rows").fetchall()
except duckdb.Error as error:
    print("DuckDB:", error)
else:
    raise SystemExit("DuckDB does not raise any more")
PYTHON
