#!/usr/bin/env bash
# Snowpark: in local testing, NULL joins NULL, and `x != 1` finds it.
#
# Guess: the emulator follows the SQL of Snowflake, where a comparison with NULL is NULL, so neither a filter nor a join finds it.
# Seen with snowflake-snowpark-python 1.56.0: comparisons are those of pandas, so `x == 1` of a NULL is False, `x != 1` True, and a join by
# keys has the product of the NULLs. `not (x in (1, NULL))` finds rows, where SQL finds none. A program that loses its rows of NULL in
# Snowflake passes its tests.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "snowflake-snowpark-python[localtest]==1.56.0"
"$folder/venv/bin/python" - <<'PYTHON'
import logging

logging.disable(logging.CRITICAL)
from snowflake.snowpark import Session
from snowflake.snowpark import functions as F

session = Session.builder.config("local_testing", True).create()
frame = session.create_dataframe([[1, 1.0], [2, 2.0], [None, 4.0]], schema=["a", "b"])
other = session.create_dataframe([[None, 1], [2, 2]], schema=["c", "d"])
seen = {
    "a != 1": frame.filter(F.col("a") != 1).count(),
    "not in (1, NULL)": frame.filter(~F.col("a").in_([1, None])).count(),
    "join": frame.join(other, F.col("a") == F.col("c")).count(),
    "NULL == 1": frame.filter(F.col("b") == 4.0).select(F.col("a") == 1).collect()[0][0],
}
print(seen)
assert seen == {"a != 1": 2, "not in (1, NULL)": 1, "join": 2, "NULL == 1": False}
PYTHON
