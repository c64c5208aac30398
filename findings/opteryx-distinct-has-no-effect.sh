#!/usr/bin/env bash
# Opteryx: SUM(DISTINCT x) of 1, 1, 2 is 4, and the decimals 1.10 and 2.25 are 3.
#
# Guess: an aggregate with DISTINCT ignores duplicates or is refused; decimals are added as decimals; -7 is (-7 DIV 2) * 2 + (-7 % 2).
# Seen with Opteryx 0.26.8: DISTINCT has no effect in SUM and AVG. The sum of two DECIMAL columns is the integer 3, and SUM over a column of
# them is 3.35. DIV cuts towards zero and % is that of Python, so -7 DIV 2 is -3 and -7 % 2 is 1. AVG divides a sum that wraps around:
# that of 2^63 - 1 twice is -1. VARIANCE and STDDEV are those of a population, so 0 for one row.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet opteryx==0.26.8
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
from decimal import Decimal

import opteryx


def expect(query, *expected):
    (row,) = opteryx.query(query).fetchall()
    print(query, "->", *row)
    assert tuple(row) == expected


def table(*values):
    return "(VALUES " + ", ".join(f"({value})" for value in values) + ") AS t(x)"


expect(f"SELECT SUM(DISTINCT x) FROM {table(1, 1, 2)}", 4)
expect(f"SELECT AVG(DISTINCT x) FROM {table(1, 1, 4)}", 2)
expect("SELECT CAST(a AS DECIMAL(5,2)) + CAST(b AS DECIMAL(5,2)) FROM (VALUES ('1.10', '2.25')) AS t(a, b)", 3)
expect(f"SELECT SUM(CAST(x AS DECIMAL(5,2))) FROM {table(repr('1.10'), repr('2.25'))}", Decimal("3.35"))
expect(f"SELECT x DIV 2, x % 2 FROM {table(-7)}", -3, 1)
expect(f"SELECT SUM(x), AVG(x) FROM {table(2**63 - 1, 2**63 - 1)}", -2, -1)
expect(f"SELECT VARIANCE(x), STDDEV(x) FROM {table(5)}", 0, 0)
expect(f"SELECT VARIANCE(x) FROM {table(1, 3)}", 1)
PYTHON
