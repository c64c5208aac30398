#!/usr/bin/env bash
# Spark: `percentile_approx` of one BIGINT, 2^53 + 1, is 2^53, and PERCENTILE_DISC of a decimal is a DOUBLE.
#
# Guess: `percentile_approx` gives "the smallest value in the ordered col values", so a value of the column, in its type; PERCENTILE_DISC
# picks a value of the column, too. Only what lies between values is computed.
# Seen with pyspark 4.3.0: all of them go through DOUBLE. Over one row each: BIGINT 2^53 + 1 is 2^53, the decimal 12345678901234567890.12 is
# 12345678901234567000.00, and the TIMESTAMP 2255-06-06 00:00:00.000001 has lost its microsecond; the type is the column's, so nothing
# tells. PERCENTILE_DISC of each of the numbers is a DOUBLE; MODE of the BIGINT is 2^53 + 1. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 TZ=UTC
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from decimal import Decimal

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def expect(query, *expected):
    (row,) = spark.sql(query).collect()
    print(query, "->", *row)
    assert tuple(row) == expected



expect("SELECT percentile_approx(x, 0.5), typeof(percentile_approx(x, 0.5)), mode(x) FROM VALUES (9007199254740993L) AS t(x)",
       9007199254740992, "bigint", 9007199254740993)
expect("SELECT percentile_approx(x, 0.5), max(x) FROM VALUES (12345678901234567890.12BD) AS t(x)",
       Decimal("12345678901234567000.00"), Decimal("12345678901234567890.12"))
expect("SELECT percentile_approx(x, 0.5)::STRING, max(x)::STRING FROM VALUES (TIMESTAMP '2255-06-06 00:00:00.000001') AS t(x)",
       "2255-06-06 00:00:00", "2255-06-06 00:00:00.000001")
disc = "percentile_disc(0.5) WITHIN GROUP (ORDER BY x)"
expect(f"SELECT {disc}, typeof({disc}), median(x) FROM VALUES (9007199254740993L) AS t(x)", 2.0**53, "double", 2.0**53)
expect(f"SELECT {disc}, typeof({disc}) FROM VALUES (12345678901234567890.12BD) AS t(x)", 12345678901234567890.12, "double")
spark.stop()
PYTHON
