#!/usr/bin/env bash
# ClickHouse: the average of a thousand 64-bit hashes is 600 times too small, as AVG wraps around before it divides.
#
# Guess: SUM of 64-bit integers wraps around, as ClickHouse documents; AVG is a Float64 and adds in floating point, as DataFusion and Polars do.
# Seen with chdb 4.4.0 (ClickHouse 26.9): AVG divides the wrapped sum, also over a window. Two times 2^63 - 1 have the average -1, the unsigned ones
# a plausible one of half their size. AVG of DECIMAL(38) is likewise negative for two positive numbers. `avg(toFloat64(x))` is right;
# `avgWeighted(x, 1)` of unsigned integers is not.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0
"$folder/venv/bin/python" - <<'PYTHON'
import chdb


def row(query):
    return [float(x) for x in str(chdb.query(query, "TabSeparated")).split()]


signed = row(f"SELECT avg(x), avgWeighted(x, 1), avg(toFloat64(x)) FROM (SELECT toInt64({2**63 - 1}) AS x FROM numbers(2))")
unsigned = row(f"SELECT avg(x), avgWeighted(x, 1) FROM (SELECT toUInt64({2**64 - 1}) AS x FROM numbers(2))")
window = row(f"SELECT avg(x) OVER () FROM (SELECT toInt64({5 * 10**18}) AS x FROM numbers(4))")
nines = row(f"SELECT avg(x) FROM (SELECT toDecimal128('{'9' * 38}', 0) AS x FROM numbers(2))")
hashes = row("SELECT avg(x), avg(toFloat64(x)) FROM (SELECT cityHash64(number) AS x FROM numbers(1000))")
print("signed", signed, "unsigned", unsigned, "window", window, "DECIMAL(38)", nines, "hashes", hashes)
assert signed == [-1.0, 2.0**63, 2.0**63]
assert unsigned == [2.0**63, 2.0**63]
assert all(x < 10**18 for x in window) and len(window) == 4
assert nines[0] < 0
assert hashes[0] < hashes[1] / 600
PYTHON
