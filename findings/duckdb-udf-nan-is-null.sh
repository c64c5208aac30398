#!/usr/bin/env bash
# DuckDB: a NaN that a Python function returns is NULL, unless the function takes Arrow.
#
# Guess: a function that returns its argument returns a NaN as NaN, which DuckDB has as the largest number; or it is refused, as None is: "The
# returned result contained NULL values, but the 'null_handling' was set to DEFAULT".
# Seen with duckdb 2.0.1: NaN becomes NULL without this error, for DOUBLE and FLOAT, and within lists and structs. So COUNT, MAX and SUM of the result
# leave it out. An infinity stays. A function of type="arrow" keeps NaN, and so does a parameter of a statement.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 numpy==2.4.6 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import math

import duckdb

connection = duckdb.connect()
connection.create_function("scalar", lambda x: x, ["DOUBLE"], "DOUBLE")
connection.create_function("arrow", lambda x: x, ["DOUBLE"], "DOUBLE", type="arrow")
connection.create_function("list_", lambda x: x, ["DOUBLE[]"], "DOUBLE[]")
connection.create_function("gives_none", lambda x: None, ["DOUBLE"], "DOUBLE")


def rows(query, *parameters):
    return connection.execute(query, list(parameters)).fetchall()


values = "(VALUES (1.0::DOUBLE), ('nan'), ('inf')) t(x)"
scalar = rows(f"SELECT scalar(x) FROM {values}")
print("scalar", scalar, "list", rows(f"SELECT list_([x]) FROM {values}"), "arrow", rows(f"SELECT arrow(x) FROM {values}"))
assert scalar == [(1.0,), (None,), (math.inf,)]
assert rows(f"SELECT list_([x]) FROM {values}") == [([1.0],), ([None],), ([math.inf],)]
assert math.isnan(rows(f"SELECT arrow(x) FROM {values}")[1][0])
assert math.isnan(rows("SELECT ?", math.nan)[0][0])
counts = rows(f"SELECT count(x), count(scalar(x)), max(x), max(scalar(x)) FROM {values} WHERE x < 'inf' OR isnan(x)")[0]
print("count and max:", counts)
assert counts[:2] == (2, 1) and math.isnan(counts[2]) and counts[3] == 1.0
try:
    rows(f"SELECT gives_none(x) FROM {values}")
except duckdb.InvalidInputException as error:
    print("None:", error)
    assert "null_handling" in str(error)
else:
    raise SystemExit("None is not refused any more")
PYTHON
