#!/usr/bin/env bash
# pyiceberg rounds a fraction that is compared with an integer column: `x = 1.5` finds 2, and `x > 1.5` does not.
#
# Guess: `x = 1.5` finds no integer, `x > 1.5` finds 2 and 3, as in SQL; or the literal is refused, as one that does not fit a date or
# a decimal column is.
# Seen with pyiceberg 0.12.0: the literal becomes the nearest integer, ties to even, whatever the comparison is. `x > 1.5` is `x > 2`.
# `delete` uses the same conversion, so `delete("x = 1.5")` deletes the row with 2.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'pyiceberg[sql-sqlite,pyarrow]==0.12.0' pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

catalog = SqlCatalog("c", uri=f"sqlite:///{Path.cwd()}/c.db", warehouse=f"file://{Path.cwd()}")
catalog.create_namespace("n")
rows = pa.table({"x": pa.array([1, 2, 3], pa.int32())})
table = catalog.create_table("n.t", schema=rows.schema)
table.append(rows)

seen = {}
for condition in ("x = 1.5", "x = 2.5", "x > 1.5", "x >= 1.5", "x < 2.5", "x != 1.5"):
    seen[condition] = table.scan(row_filter=condition).to_arrow()["x"].to_pylist()
    print(condition, "finds", seen[condition])
table.delete("x = 1.5")
left = table.scan().to_arrow()["x"].to_pylist()
print("after delete('x = 1.5'):", left)

assert seen == {"x = 1.5": [2], "x = 2.5": [2], "x > 1.5": [3], "x >= 1.5": [2, 3], "x < 2.5": [1], "x != 1.5": [1, 3]}
assert left == [1, 3]
PYTHON
