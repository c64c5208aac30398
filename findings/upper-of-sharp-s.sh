#!/usr/bin/env bash
# pyarrow and DuckDB: the upper case of one letter is one letter, so that of "ß" is "ẞ", while Polars and DataFusion have "SS".
#
# Guess: `upper` is Unicode's, as in Python, Java and so Spark: "STRASSE" for "straße". Engines differ in collations, not in this.
# Seen with pyarrow 26.0.1 and duckdb 2.0.1: letters are mapped one by one, so "straße" is "STRAẞE", and the ligature "ﬁ" and "ŉ" stay as they are.
# "ΑΣ" in lower case is "ασ" in both, without the final sigma, and the lower case of "İ" is "i". polars 2.1.0 and datafusion 55.0.0
# agree with Python. A key in upper case that two of these engines compute matches for English only.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 datafusion==55.0.0
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

UPPER, LOWER = ["straße", "ﬁ", "ŉ"], ["ΑΣ", "İ"]


def query():
    calls = [f"upper('{each}')" for each in UPPER] + [f"lower('{each}')" for each in LOWER]
    return "SELECT " + ", ".join(f"{call} AS c{place}" for place, call in enumerate(calls))


found = {
    "Python": [*map(str.upper, UPPER), *map(str.lower, LOWER)],
    "pyarrow": [*pc.utf8_upper(pa.array(UPPER)).to_pylist(), *pc.utf8_lower(pa.array(LOWER)).to_pylist()],
    "DuckDB": list(duckdb.sql(query()).fetchall()[0]),
    "Polars": [*pl.Series(UPPER).str.to_uppercase(), *pl.Series(LOWER).str.to_lowercase()],
    "DataFusion": list(datafusion.SessionContext().sql(query()).collect()[0].to_pylist()[0].values()),
}
for engine, values in found.items():
    print(engine, values)
letter_by_letter = ["STRAẞE", "ﬁ", "ŉ", "ασ", "i"]
assert found["pyarrow"] == found["DuckDB"] == letter_by_letter
assert found["Polars"] == found["DataFusion"] == found["Python"] == ["STRASSE", "FI", "ʼN", "ας", "i̇"]
PYTHON
