#!/usr/bin/env bash
# pyiceberg: `delete("x != 5")` deletes rows with NULL or keeps them, as the rows happen to lie in files.
#
# Guess: a NULL is either kept, as in SQL, or deleted, as Iceberg's `not_equal` means (it is true for NULL). In any case, the rows that
# `delete(f)` removes are the rows that `scan(f)` returns.
# Seen with pyiceberg 0.12.0: the scan never returns the NULL. The delete keeps it if its file has rows that must stay, because that file
# is filtered and rewritten by SQL's rules. But a file in which all rows match by Iceberg's rules is dropped as a whole, and then the
# NULL is gone. So one compaction changes what the next delete does.
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
SCHEMA = pa.schema([("x", pa.int64()), ("name", pa.string())])
ROWS = [{"x": None, "name": "null"}, {"x": 1, "name": "one"}, {"x": 5, "name": "five"}]


def run(name, files, condition):
    table = catalog.create_table(f"n.{name}", schema=SCHEMA)
    for rows in files:
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    found = set(table.scan(row_filter=condition).to_arrow()["name"].to_pylist())
    table.delete(condition)
    return found, {"null", "one", "five"} - set(table.scan().to_arrow()["name"].to_pylist())


for number, condition in enumerate(("x != 5", "x not in (5)", "not x = 5")):
    one_file = run(f"one{number}", [ROWS], condition)
    three_files = run(f"three{number}", [[row] for row in ROWS], condition)
    print(f"{condition}: one file: scan {one_file[0]}, delete {one_file[1]}; three files: scan {three_files[0]}, delete {three_files[1]}")
    assert one_file == ({"one"}, {"one"})
    assert three_files == ({"one"}, {"one", "null"})
PYTHON
