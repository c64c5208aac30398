#!/usr/bin/env bash
# DuckDB: 2.5 as INT is 3 if it is a decimal and 2 if it is a DOUBLE, for which `round` says 3.
#
# Guess: CAST rounds half away from zero, as `round` does and as PostgreSQL's NUMERIC does, for every type; or it cuts, as Spark does.
# Seen with duckdb 2.0.1: DECIMAL and text round half away from zero, DOUBLE and FLOAT half to even. A literal 2.5 is a DECIMAL, so trying
# a CAST on a literal shows what a DOUBLE column does not do, and CAST(AVG(x) AS INT) differs from round(AVG(x)).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

forms = {
    "CAST(2.5 AS INT)": 3,
    "CAST('2.5' AS INT)": 3,
    "CAST(2.5::DOUBLE AS INT)": 2,
    "CAST(2.5::FLOAT AS INT)": 2,
    "CAST(3.5::DOUBLE AS INT)": 4,
    "round(2.5::DOUBLE)": 3,
}
found = dict(zip(forms, duckdb.sql(f"SELECT {', '.join(forms)}").fetchall()[0]))
for form, value in found.items():
    print(form, "is", value)
assert found == forms
average = duckdb.sql("SELECT CAST(AVG(x) AS INT), round(AVG(x)) FROM (VALUES (2), (3)) t(x)").fetchall()[0]
print("of AVG:", average)
assert average == (2, 3)
PYTHON
