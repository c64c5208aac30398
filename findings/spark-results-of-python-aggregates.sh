#!/usr/bin/env bash
# Spark: a NaN that a pandas aggregate returns is NULL, and NaN from an Arrow aggregate; 2.7 in an ARRAY<INT> is 2 or an error.
#
# Guess: what a Python aggregate returns becomes the declared type by one set of rules, whether its values come as pandas or as Arrow, and
# the elements of an array are converted as a value of their type is.
# Seen with pyspark 4.3.0: pandas_udf makes a NaN NULL, and arrow_udf keeps it. 2.7 as BIGINT is an error by both; [1, 2.7] as ARRAY<INT>
# is [1, 2] by pandas_udf only. Decimal("1.239") as DECIMAL(5, 2) is an error, and the float 1.239 is 1.24. 3 as STRING is an error by
# pandas_udf, and '3' by arrow_udf. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from decimal import Decimal

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import ArrowUDFType, PandasUDFType, arrow_udf, pandas_udf

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
row = spark.sql("SELECT 1L AS x")


def result(function):
    try:
        return str(row.select(function("x")).first()[0])
    except PySparkException:
        return "error"


def expect(kind, value, *expected):
    pandas = result(pandas_udf(lambda x: value, kind, PandasUDFType.GROUPED_AGG))
    arrow = result(arrow_udf(lambda x: value, kind, ArrowUDFType.GROUPED_AGG))
    print(f"{value!r} as {kind}: pandas {pandas}, Arrow {arrow}")
    assert (pandas, arrow) == expected


expect("DOUBLE", float("nan"), "None", "nan")
expect("BIGINT", 2.7, "error", "error")
expect("ARRAY<INT>", [1, 2.7], "[1, 2]", "error")
expect("DECIMAL(5, 2)", Decimal("1.239"), "error", "error")
expect("DECIMAL(5, 2)", 1.239, "1.24", "1.24")
expect("STRING", 3, "error", "3")
spark.stop()
PYTHON
