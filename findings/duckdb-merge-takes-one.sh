#!/usr/bin/env bash
# DuckDB: MERGE with two source rows for one target row updates it with one of them, without an error.
#
# Guess: an error, as the SQL standard, PostgreSQL, Spark and Delta have it: which of the rows should win is not defined.
# Seen with duckdb 2.0.1: one of the rows is applied, so an older version of a row may win over the newer. Of two rows it was the last, and with two
# new keys beside them the first. Source rows that match nothing are all inserted, so a key that the MERGE was to keep unique is there
# twice, and the next MERGE updates both. delta-rs (deltalake 1.6.6) refuses the update.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 deltalake==1.6.6 pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

MERGE = """MERGE INTO target USING source ON target.k = source.k
WHEN MATCHED THEN UPDATE SET v = source.v WHEN NOT MATCHED THEN INSERT VALUES (source.k, source.v)"""


def merged(*sources):
    duckdb.sql("CREATE OR REPLACE TABLE target AS SELECT * FROM (VALUES (1, 10), (2, 20)) t(k, v)")
    for rows in sources:
        duckdb.sql(f"CREATE OR REPLACE TABLE source AS SELECT * FROM (VALUES {rows}) t(k, v)")
        duckdb.sql(MERGE)
    return duckdb.sql("SELECT k, v FROM target ORDER BY ALL").fetchall()


twice = merged("(1, 11), (1, 12)")
beside = merged("(1, 11), (1, 12), (3, 31), (3, 32)")
new = merged("(3, 31), (3, 32)", "(3, 33)")
print("two rows for the key 1:", twice, "and with two for a new key:", beside)
print("two rows for a new key, then one:", new)
assert twice in ([(1, 11), (2, 20)], [(1, 12), (2, 20)])
assert beside[0] in {(1, 11), (1, 12)} and beside[1:] == [(2, 20), (3, 31), (3, 32)]
assert new == [(1, 10), (2, 20), (3, 33), (3, 33)]
write_deltalake("target", pa.table({"k": [1, 2], "v": [10, 20]}))
source = pa.table({"k": [1, 1], "v": [11, 12]})
try:
    DeltaTable("target").merge(source, "t.k = s.k", "s", "t").when_matched_update_all().execute()
except Exception as error:
    print("delta-rs:", str(error)[:160])
    assert "multiple source rows" in str(error)
else:
    raise SystemExit("delta-rs does not refuse it any more")
PYTHON
