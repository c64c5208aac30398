#!/usr/bin/env bash
# pyiceberg: over a FLOAT column, a row can be in `x >= 0.1`, and neither in `x = 0.1` nor in `x > 0.1`; and whether it is depends on other rows.
#
# Guess: 0.1 is rounded to the column's 32 bits, and `x = 0.1` finds it; or it is compared as a DOUBLE, and then `x > 0.1` finds it.
# `delete(f)` removes what `scan(f)` returns.
# Seen with pyiceberg 0.12.0: files are selected by a comparison in 64 bits, and their rows by one in 32. So 0.1 is found by `x = 0.1` if its file has
# a smaller number, too. If not, its file seems to have only larger ones. It is never found by `x != 0.1`, but `delete("x != 0.1")` then drops
# its whole file, as all of it seems to differ, and with it the row that the scan does not return.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'pyiceberg[sql-sqlite,pyarrow]==0.12.0' pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

catalog = SqlCatalog("c", uri=f"sqlite:///{Path.cwd()}/c.db", warehouse=f"file://{Path.cwd()}")
catalog.create_namespace("n")


def left(table, condition="true"):
    rows = table.scan(row_filter=condition).to_arrow() if condition != "true" else table.scan().to_arrow()
    return sorted(round(x, 6) for x in rows["x"].to_pylist())


def run(name, numbers):
    table = catalog.create_table(f"n.{name}", schema=pa.schema([("x", pa.float32())]))
    table.append(pa.table({"x": pa.array(numbers, pa.float32())}))
    seen = {condition: left(table, condition) for condition in ("x = 0.1", "x != 0.1", "x > 0.1", "x >= 0.1", "x <= 0.1")}
    table.delete("x != 0.1")
    seen["after delete"] = left(table)
    print(numbers, seen)
    return list(seen.values())


assert run("larger", [0.1, 0.2]) == [[], [0.2], [0.2], [0.1, 0.2], [], []]
assert run("smaller", [0.05, 0.1, 0.2]) == [[0.1], [0.05, 0.2], [0.2], [0.1, 0.2], [0.05, 0.1], [0.1]]
PYTHON
