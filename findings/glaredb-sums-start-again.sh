#!/usr/bin/env bash
# GlareDB: the SUM of the BIGINTs 2^63 - 1, 1, 5 is 5, and SUM(x) FILTER (WHERE x > 1) of 1, 2 is 3.
#
# Guess: a SUM that leaves BIGINT is an error, wraps around, or has a larger type; a clause that the engine does not know is refused.
# Seen with GlareDB 25.6.3: a SUM that overflows is 0 and goes on from there, so later rows hide it; `+` wraps around, and AVG of the same
# rows is right. FILTER is parsed and has no effect, for COUNT(*) and for WHERE false, too. `approx_quantile` of 0.5 is 2.5 over 1, 2, 3 and
# 3 over 1, 2, 3, 4. 0.0 and -0.0 are equal in WHERE over a cross join, do not join by ON, and are two values for DISTINCT.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet glaredb==25.6.3
"$folder/venv/bin/python" - <<'PYTHON'
import glaredb

connection = glaredb.connect()


def expect(query, *expected):
    lines = str(connection.sql(query)).splitlines()
    values = [cell.strip() for cell in lines[4].strip("│").split("│")]
    print(query, "->", *values)
    assert values == list(expected)


def table(kind, *values):
    return "(VALUES " + ", ".join(f"({value}::{kind})" for value in values) + ") AS t(x)"


largest = 2**63 - 1
expect(f"SELECT sum(x), count(*) FROM {table('BIGINT', largest, 1, 5)}", "5", "3")
expect(f"SELECT sum(x), round(avg(x) / 1000000000000000000) FROM {table('BIGINT', 2**62, 2**62)}", "0", "5")
expect(f"SELECT {largest} + 1", str(-(2**63)))
expect(f"SELECT sum(x) FILTER (WHERE x > 1), count(*) FILTER (WHERE false) FROM {table('INT', 1, 2)}", "3", "2")
expect(f"SELECT approx_quantile(x, 0.5) FROM {table('DOUBLE', 1, 2, 3)}", "2.5")
expect(f"SELECT approx_quantile(x, 0.5) FROM {table('DOUBLE', 1, 2, 3, 4)}", "3")
zero, minus = table("DOUBLE", "0.0"), table("DOUBLE", "-0.0").replace("t(x)", "u(y)")
expect(f"SELECT count(*) FROM {zero} CROSS JOIN {minus} WHERE (x = y) IS TRUE", "1")
expect(f"SELECT count(*) FROM {zero} JOIN {minus} ON x = y", "0")
expect(f"SELECT count(DISTINCT x) FROM {table('DOUBLE', '0.0', '-0.0')}", "2")
PYTHON
