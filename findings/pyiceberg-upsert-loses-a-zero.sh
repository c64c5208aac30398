#!/usr/bin/env bash
# pyiceberg: `upsert` of the key -0.0 into a table with 0.0 loses the row, or inserts it, by what else is upserted.
#
# Guess: the zeros are one key, so the row is updated, or two, so it is inserted. An upsert never drops a row of its source.
# Seen with pyiceberg 0.12.0: alone, the row is in neither part, and the result is `rows_updated=0, rows_inserted=0`, without an error. With another
# key beside it, it is inserted. The join that looks for updates has two zeros; the filter that leaves existing keys out of the inserts has
# one if it is `=`, and two if it is `in`, which it becomes with the second key.
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
SCHEMA = pa.schema([("k", pa.float64()), ("v", pa.string())])


def rows(*pairs):
    return pa.Table.from_pylist([{"k": k, "v": v} for k, v in pairs], schema=SCHEMA)


def run(name, source):
    table = catalog.create_table(f"n.{name}", schema=SCHEMA)
    table.append(rows((0.0, "old"), (5.0, "old")))
    result = table.upsert(source, join_cols=["k"])
    after = sorted((str(row["k"]), row["v"]) for row in table.scan().to_arrow().to_pylist())
    print(result, after)
    return (result.rows_updated, result.rows_inserted), after


assert run("alone", rows((-0.0, "new"))) == ((0, 0), [("0.0", "old"), ("5.0", "old")])
beside = run("beside", rows((-0.0, "new"), (5.0, "new")))
assert beside == ((1, 1), [("-0.0", "new"), ("0.0", "old"), ("5.0", "new")])
PYTHON
