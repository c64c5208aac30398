#!/usr/bin/env bash
# Snowpark: in local testing, 0.1 + 0.2 of DECIMAL is 0.300000000000000044, 2.5 as INT is 2, and 1 / 0 is infinite.
#
# Guess: numbers are Snowflake's: decimals are exact, a cast rounds half away from zero, a division by zero is an error and NaN is a value
# that is counted.
# Seen with snowflake-snowpark-python 1.56.0: sums and averages go through floats, and the sum of two BIGINT loses its last digits; -7 % 3
# is 2, as in Python; `count` and `avg` leave NaN out, while `sum` of it is NaN. So sums of money in a test differ from those of the
# warehouse, and a test that compares them exactly fails.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "snowflake-snowpark-python[localtest]==1.56.0"
"$folder/venv/bin/python" - <<'PYTHON'
import logging
import math
from decimal import Decimal

logging.disable(logging.CRITICAL)
from snowflake.snowpark import Session
from snowflake.snowpark import functions as F
from snowflake.snowpark.types import IntegerType

session = Session.builder.config("local_testing", True).create()


def ask(rows, *columns):
    (row,) = session.create_dataframe(rows, schema=["a", "b"][: len(rows[0])]).select(*columns).collect()
    return list(row)


(total,) = ask([[Decimal("0.1")], [Decimal("0.2")]], F.sum("a"))
(large,) = ask([[2**63 - 1], [2**63 - 1]], F.sum("a"))
(whole,) = ask([[2.5]], F.col("a").cast(IntegerType()))
quotient, rest = ask([[1, 0]], F.col("a") / F.col("b"))[0], ask([[-7, 3]], F.col("a") % F.col("b"))[0]
nan = ask([[1.0], [math.nan]], F.count("a"), F.avg("a"), F.sum("a"))
print("0.1 + 0.2:", total, "large sum:", large, "2.5:", whole, "1 / 0:", quotient, "-7 % 3:", rest, "NaN: count, avg, sum", *nan)
assert total != Decimal("0.3") and abs(total - Decimal("0.3")) < Decimal("1e-15")
assert int(large) == 2**64 and whole == 2 and math.isinf(quotient) and rest == 2
assert nan[:2] == [1, 1] and math.isnan(nan[2])
PYTHON
