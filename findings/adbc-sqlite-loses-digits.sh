#!/usr/bin/env bash
# ADBC for SQLite: integers beside a float and floats beside a text lose digits, or are an error from row 1025 on.
#
# Guess: a column of SQLite with values of several types becomes an Arrow type that holds all of them, or is an error; and a float as text
# has the digits that make it the same float, as in SQLite itself.
# Seen with adbc-driver-sqlite 1.13.0: the first 1024 rows choose the type. Among them, integers beside a float become doubles, so 2^53 + 1 is 2^53,
# and floats beside a text become texts of seven digits. If the other type comes after them, the same values are an error.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet adbc-driver-sqlite==1.13.0 adbc-driver-manager==1.13.0 pyarrow==25.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import sqlite3

from adbc_driver_sqlite import dbapi


def read(first, rows, last):
    """Return the Arrow column of a number of equal rows and one of another type."""
    query = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) SELECT {first} AS x FROM n UNION ALL SELECT {last}"
    with dbapi.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetch_arrow_table()["x"]


integers = read(2**53 + 1, 1023, 0.5)
floats = read(0.123456789, 1023, "'unknown'")
text = sqlite3.connect(":memory:").execute("SELECT CAST(0.123456789 AS TEXT)").fetchone()[0]
print("2^53 + 1 beside 0.5:", integers.type, integers.to_pylist()[-2:])
print("0.123456789 beside a text:", floats.type, floats.to_pylist()[-2:], "- in SQLite:", text)
assert integers.to_pylist() == [2.0**53] * 1023 + [0.5]
assert floats.to_pylist() == ["1.234568e-01"] * 1023 + ["unknown"] and text == "0.123456789"
for first, last in ((2**53 + 1, 0.5), (0.123456789, "'unknown'")):
    try:
        read(first, 1024, last)
    except OSError as error:
        print(f"{last} after 1024 rows of {first}:", error)
        assert "Type mismatch" in str(error)
    else:
        raise AssertionError("The types of later rows are accepted now.")
PYTHON
