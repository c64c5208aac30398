#!/usr/bin/env bash
# ClickHouse: the variance of the milliseconds of a tenth of a second is 343,597,383 instead of 833.
#
# Guess: varPop, stddevPop and covarPop use a stable algorithm, as DuckDB's do; over integers they are exact to some digits.
# Seen with chdb 4.4.0 (ClickHouse 26.9): they subtract two large sums, in floating point. Over seconds since 1970 the variance is 655 instead
# of 833; over milliseconds it is a large number, over 1e9 + 1, + 2, + 3 it is 0, and a column with one value has a variance of 662. Nothing warns.
# varPopStable is right, which one must know of.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0 duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import chdb
import duckdb


def row(query):
    return [float(x) for x in str(chdb.query(query, "TabSeparated")).split()]


def near(seen, wanted):
    return abs(seen - wanted) <= 1e-3 * abs(wanted)


for name, first in (("seconds", 1_700_000_000), ("milliseconds", 1_700_000_000_000)):
    fast, stable = row(f"SELECT varPop(x), varPopStable(x) FROM (SELECT toInt64({first} + number) AS x FROM numbers(100))")
    (other,) = duckdb.sql(f"SELECT var_pop({first} + range) FROM range(100)").fetchall()[0]
    print(f"{name}: varPop {fast}, varPopStable {stable}, DuckDB {other}")
    assert stable == 833.25 and near(other, 833.25) and not near(fast, 833.25)
three = row("SELECT varPop(x), varPopStable(x) FROM (SELECT toInt64(1000000000 + number) AS x FROM numbers(3))")
one = row("SELECT varSamp(x), varSampStable(x) FROM (SELECT 1700000000.25 AS x FROM numbers(100))")
print("three numbers:", three, "one value:", one)
assert three[0] == 0 and near(three[1], 2 / 3)
assert one[0] > 600 and one[1] == 0
PYTHON
