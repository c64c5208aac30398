#!/usr/bin/env bash
# DuckDB: 'infinity' is a finite time once Python has fetched it, and a condition with the fetched value does not find its row.
#
# Guess: a TIMESTAMP or DATE that Python's datetime cannot hold is an error, or another type, as the year 10000 is, which comes out as a
# text. A value that was fetched, and is given back as a parameter, is equal to itself. All ways to fetch agree.
# Seen with duckdb 2.0.1: `fetchall` returns datetime.max and date.max, and given back these are 9999-12-31, which is not infinite and not equal to the
# row's value. So with the usual "valid to infinity", reading a row and updating it by its values changes nothing. Arrow has the largest
# integer, from which DuckDB reads 'infinity' again, but whose `to_pylist` raises. `df()` has a TIMESTAMP in the year 294247, and raises for a DATE.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 pyarrow==26.0.1 pandas==3.1.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime as dt

import duckdb

connection = duckdb.connect()
connection.execute("CREATE TABLE v AS SELECT TIMESTAMP 'infinity' AS t, DATE 'infinity' AS d")
connection.execute("CREATE TABLE w AS SELECT DATE '10000-01-01' AS d")
((t, d),) = connection.execute("SELECT t, d FROM v").fetchall()
print("fetchall", t, d, "year 10000:", connection.execute("SELECT d FROM w").fetchall())
assert (t, d) == (dt.datetime.max, dt.date.max)
assert connection.execute("SELECT d FROM w").fetchall() == [("10000-01-01",)]
for name, value in (("t", t), ("d", d)):
    found = connection.execute(f"SELECT count(*) FROM v WHERE {name} = ?", [value]).fetchall()[0][0]
    print(f"rows where {name} is the fetched value:", found)
    assert found == 0
table = connection.sql("SELECT t, d FROM v").to_arrow_table()
connection.register("from_arrow", table)
again = connection.execute("SELECT isinf(t), isinf(d) FROM from_arrow").fetchall()
print("from Arrow:", again)
assert again == [(True, True)]
try:
    table.to_pylist()
except OverflowError as error:
    print("to_pylist:", error)
else:
    raise SystemExit("to_pylist does not raise any more")
frame = connection.sql("SELECT t FROM v").df()
print("df:", frame["t"][0])
assert str(frame["t"][0]).startswith("294247-")
try:
    connection.sql("SELECT d FROM v").df()
except duckdb.ConversionException as error:
    print("df:", error)
else:
    raise SystemExit("df() of DATE does not raise any more")
PYTHON
