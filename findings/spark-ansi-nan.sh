#!/usr/bin/env bash
# Spark: in ANSI mode, NaN is refused by CAST AS INT, but is NULL by CAST AS DECIMAL and 0 by FLOOR.
#
# Guess: ANSI mode, the default since Spark 4.0, raises for each number that its target type cannot hold; that is what it is for.
# Seen with pyspark 4.3.0: NaN and the infinities as INT raise CAST_OVERFLOW. As DECIMAL they are NULL, though 1e30 as DECIMAL(10,2) raises.
# FLOOR and CEIL of NaN are 0, a plausible value, though those of an infinity raise. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def value(expression, number):
    try:
        return spark.sql(f"SELECT {expression} FROM VALUES (DOUBLE('{number}')) AS t(x)").first()[0]
    except Exception as error:
        return error.getCondition()


seen = {}
for expression in ("CAST(x AS INT)", "CAST(x AS DECIMAL(10,2))", "FLOOR(x)", "CEIL(x)"):
    seen[expression] = [value(expression, number) for number in ("NaN", "Infinity", "1e30")]
    print(f"{expression} of NaN, Infinity, 1e30:", seen[expression])
assert seen["CAST(x AS INT)"] == ["CAST_OVERFLOW"] * 3
assert seen["CAST(x AS DECIMAL(10,2))"] == [None, None, "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION"]
assert seen["FLOOR(x)"][0] == seen["CEIL(x)"][0] == 0
assert seen["FLOOR(x)"][1:] == seen["CEIL(x)"][1:] == ["ARITHMETIC_OVERFLOW"] * 2
spark.stop()
PYTHON
