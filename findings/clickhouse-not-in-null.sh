#!/usr/bin/env bash
# ClickHouse: 2 is NOT IN (1, NULL), though 2 != NULL is NULL.
#
# Guess: a NULL in the list makes NOT IN find nothing, as in the SQL standard, PostgreSQL, Spark and DuckDB, where it is `x != 1 AND x !=
# NULL`.
# Seen with chdb 4.4.0 (ClickHouse 26.9): the NULL is left out of the list, also of that of a subquery, so a query that is moved from or to
# another engine has other rows. The two comparisons written out find nothing. With transform_null_in = 1 a NULL is a value, which IN finds.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import chdb
import duckdb

rows = "values('x Nullable(Int32)', 1, 2, NULL)"


def count(condition, tail=""):
    return int(str(chdb.query(f"SELECT count() FROM {rows} WHERE {condition} {tail}", "TSV")))


seen = {condition: count(condition) for condition in ("x NOT IN (1, NULL)", "x NOT IN (SELECT arrayJoin([1, NULL]))", "x != 1 AND x != NULL")}
((duck,),) = duckdb.sql("select count(*) from (values (1), (2), (null)) t(x) where x not in (1, null)").fetchall()
print(seen, "DuckDB", duck, "IN with the setting", count("x IN (1, NULL)", "SETTINGS transform_null_in = 1"))
assert list(seen.values()) == [1, 1, 0] and duck == 0
assert count("x IN (1, NULL)") == 1 and count("x IN (1, NULL)", "SETTINGS transform_null_in = 1") == 2
PYTHON
