#!/usr/bin/env bash
# DataFusion: SUM of BIGINT wraps around to a negative number, and SUM of DECIMAL(38) to one of 39 digits, while AVG is right or raises.
#
# Guess: an error, as in Spark (ANSI), PostgreSQL and DuckDB's arithmetic, or a wider type, as in DuckDB's SUM.
# Seen with datafusion 55.0.0: the sum of 2^63 - 1 and 1 is -2^63, as is the sum by `+`. AVG adds in DOUBLE and is right, so a query shows a
# negative sum beside a positive average. AVG of DECIMAL(38) raises where its SUM wraps. A TRY or checked form of SUM does not exist.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datafusion==55.0.0 duckdb==2.0.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datafusion
import duckdb

context = datafusion.SessionContext()


def row(query):
    return tuple(context.sql(query).collect()[0].to_pylist()[0].values())


large = f"(VALUES ({2**63 - 1}), (1)) t(x)"
total, average = row(f"SELECT SUM(x), AVG(x) FROM {large}")
print("SUM", total, "AVG", average)
assert total == -(2**63) and average == 2.0**62
added = row(f"SELECT x + 1 FROM (VALUES ({2**63 - 1})) t(x)")
print("+", *added)
assert added == (-(2**63),)
nines = f"(VALUES (CAST('{'9' * 38}' AS DECIMAL(38, 0))), (CAST('{'9' * 38}' AS DECIMAL(38, 0)))) t(x)"
(decimal,) = row(f"SELECT SUM(x) FROM {nines}")
print("SUM of DECIMAL(38)", decimal)
assert int(decimal) == 2 * (10**38 - 1) - 2**128
try:
    row(f"SELECT AVG(x) FROM {nines}")
except Exception as error:
    print("AVG of DECIMAL(38):", error)
    assert "Overflow" in str(error)
else:
    raise SystemExit("AVG does not raise any more")
wider = duckdb.sql(f"SELECT SUM(x) FROM {large}").fetchall()[0]
print("DuckDB:", *wider)
assert wider == (2**63,)
PYTHON
