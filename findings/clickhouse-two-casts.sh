#!/usr/bin/env bash
# ClickHouse: CAST(1.15 AS DECIMAL(9, 2)) is 1.14, and 1.15::DECIMAL(9, 2) is 1.15.
#
# Guess: `x::T` is another way to write CAST(x AS T), and a constant with a point is a decimal or is rounded to the nearest one.
# Seen with chdb 4.4.0 (ClickHouse 26.9): CAST takes the constant as a float and cuts off its digits, as do toDecimal32, the table function `values`
# and a cast of a Float64 column; `::` reads the text of a constant. So 69 of the first 1000 prices in cents lose one on their way through Float64,
# and a sum of them is too small. INSERT ... VALUES (1.15) stores 1.15, and INSERT ... SELECT 1.15 stores 1.14.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet chdb==4.4.0 chdb-core==26.9.0
cd "$folder"
"$folder/venv/bin/python" - <<'PYTHON'
from chdb.session import Session

session = Session()


def row(query):
    return str(session.query(query, "TabSeparated")).split()


casts = row("SELECT CAST(1.15 AS Decimal(9, 2)), toDecimal32(1.15, 2), 1.15::Decimal(9, 2), toDecimal32('1.15', 2)")
total = row("SELECT sum(x) FROM values('x Decimal(9, 2)', 1.15, 1.15, 1.15)")
session.query("CREATE TABLE prices (x Decimal(9, 2)) ENGINE = Memory")
session.query("INSERT INTO prices VALUES (1.15)")
session.query("INSERT INTO prices SELECT 1.15")
stored = row("SELECT x FROM prices ORDER BY x")
lost = row("SELECT countIf(toDecimal32(number / 100, 2) != toDecimal32(number, 2) / 100) FROM numbers(1000)")
print("CAST, toDecimal32, :: and toDecimal32 of the text:", casts, "sum of three 1.15:", total)
print("stored by SELECT and by VALUES:", stored, "cents lost in 0.00 to 9.99:", lost)
assert casts == ["1.14", "1.14", "1.15", "1.15"] and total == ["3.42"]
assert stored == ["1.14", "1.15"] and lost == ["69"]
PYTHON
