#!/usr/bin/env bash
# DuckDB: a sum of integers loses digits on its way to pandas or NumPy, and only there.
#
# Guess: SUM(BIGINT), an integer in SQL, comes out exact everywhere: as int64 where it fits, as an object of Python where not.
# Seen with duckdb 2.0.1: the sum is a HUGEINT. `fetchall`, Arrow and Polars have 9007199254740993. `df()` and `fetchnumpy()` make it a float64, also
# for a sum as small as 3, so above 2^53 the last digits are wrong and keys that were summed up no longer match. COUNT stays an integer.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.1 pandas==2.3.3 numpy==2.4.6 pyarrow==26.0.1 polars==2.1.0
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

exact = 2**53 + 1
query = f"SELECT SUM(x) AS s, COUNT(*) AS n FROM (VALUES ({exact}::BIGINT), (0)) t(x)"
found = {
    "fetchall": duckdb.sql(query).fetchall()[0][0],
    "Arrow": duckdb.sql(query).to_arrow_table()["s"][0].as_py(),
    "Polars": duckdb.sql(query).pl()["s"][0],
    "pandas": duckdb.sql(query).df()["s"][0],
    "NumPy": duckdb.sql(query).fetchnumpy()["s"][0],
}
for way, value in found.items():
    print(f"{way}: {int(value)}, {type(value).__name__}")
assert {way for way, value in found.items() if int(value) != exact} == {"pandas", "NumPy"}
assert str(duckdb.sql(query).df().dtypes["n"]) == "int64"
assert str(duckdb.sql("SELECT SUM(x) AS s FROM (VALUES (1), (2)) t(x)").df().dtypes["s"]) == "float64"
PYTHON
