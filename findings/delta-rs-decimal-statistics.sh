#!/usr/bin/env bash
# delta-rs cannot find, update or delete a DECIMAL that a 64-bit float cannot hold.
#
# Guess: DELETE, UPDATE and SELECT with `k = CAST('...' AS DECIMAL(18,2))` act on the row that has this k. Statistics of a file
# only skip files that cannot match, so they change the speed, never the result.
# Seen with deltalake 1.6.6: the statistics of a DECIMAL are JSON numbers with the digits of a float (and at most 2^63 - 1). The one
# row lies outside of its own file's minimum and maximum, so the file is skipped: no row is selected, updated or deleted, and nothing
# is raised. MERGE on the same key does update the row. DECIMAL(10,2) is not affected.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

seen = []
for precision, scale, text in ((18, 2, "1234567890123456.78"), (20, 0, "12345678901234567890"), (10, 2, "12345678.91")):
    uri = f"table{precision}"
    rows = pa.table({"k": pa.array([Decimal(text)], pa.decimal128(precision, scale)), "v": [1]})
    write_deltalake(uri, rows)
    actions = map(json.loads, Path(uri, "_delta_log", "00000000000000000000.json").read_text().splitlines())
    minimum = next(json.loads(action["add"]["stats"])["minValues"]["k"] for action in actions if "add" in action)

    table, where = DeltaTable(uri), f"k = CAST('{text}' AS DECIMAL({precision},{scale}))"
    batches = QueryBuilder().register("t", table).execute(f"SELECT v FROM t WHERE {where}")
    selected = sum(pa.record_batch(batch).num_rows for batch in batches)
    updated = table.update(predicate=where, updates={"v": "2"})["num_updated_rows"]
    merge = table.merge(rows, "t.k = s.k", source_alias="s", target_alias="t").when_matched_update_all().execute()
    deleted = table.delete(where)["num_deleted_rows"]
    seen.append((text, minimum, selected, updated, merge["num_target_rows_updated"], deleted))
    print("value {}, minimum {}: selected {}, updated {}, merged {}, deleted {}".format(*seen[-1]))

assert seen == [
    ("1234567890123456.78", 1234567890123456.8, 0, 0, 1, 0),
    ("12345678901234567890", 9223372036854775807, 0, 0, 1, 0),
    ("12345678.91", 12345678.91, 1, 1, 1, 1),
]
PYTHON
