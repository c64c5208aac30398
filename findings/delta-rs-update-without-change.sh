#!/usr/bin/env bash
# delta-rs: an UPDATE that changes no value appears in the change feed as a delete and an insert of every row of the file.
#
# Guess: the feed has one update_preimage and one update_postimage for the row that the predicate selects, or nothing.
# Seen with deltalake 1.6.6: if the update changes at least one row, the feed has the changed rows only (an updated row that stays as it
# was is left out). If it changes none, no change file is written, and the feed is made from the added and the removed file: rows that
# the predicate never selected are inserted and deleted. All have one version, and whether the inserts or the deletes come first
# differs from run to run, so a reader that keeps the last change of each key may end with an empty table. MERGE writes the pre- and
# postimage in the same case.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet deltalake==1.6.6 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

ROWS = pa.table({"k": [1, 2, 3], "v": [10, 20, 30]})


def changes(uri, change):
    write_deltalake(uri, ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    table = DeltaTable(uri)
    change(table)
    feed = pa.table(table.load_cdf(starting_version=1)).to_pylist()
    return [(row["_change_type"], row["k"], row["v"]) for row in feed]


def merge(table):
    source = pa.table({"k": [3], "v": [30]})
    table.merge(source, "t.k = s.k", source_alias="s", target_alias="t").when_matched_update_all().execute()


one_of_two = changes("one", lambda table: table.update(predicate="k >= 2", updates={"v": "30"}))
none = changes("none", lambda table: table.update(predicate="k = 3", updates={"v": "30"}))
merged = changes("merged", merge)
print("one of two updated rows changes:", one_of_two)
print("none changes:", none)
print("none changes, by MERGE:", merged)

assert sorted(one_of_two) == [("update_postimage", 2, 30), ("update_preimage", 2, 20)]
everything = [(1, 10), (2, 20), (3, 30)]
assert sorted(none) == [(kind, *row) for kind in ("delete", "insert") for row in everything]
assert sorted(merged) == [("update_postimage", 3, 30), ("update_preimage", 3, 30)]
PYTHON
