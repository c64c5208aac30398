#!/usr/bin/env bash
# Spark: `vector_sum` of 20 million vectors of one 1.0 is 16777216, and a vector with one NULL is left out whole.
#
# Guess: an aggregate of ARRAY<FLOAT> adds as SUM of FLOAT does, in DOUBLE, and rounds once; a NULL element is left out of its position,
# as SUM leaves out a NULL, or makes that position NULL.
# Seen with pyspark 4.3.0: `vector_sum` adds in FLOAT, so it stays at 2^24 and a million times 0.1 is 100958.34; `vector_avg` over the same
# rows is right, and so is that of 3e38 twice, where the sum is infinite. Both skip each vector that has a NULL anywhere: the sum of [1, 2]
# and [3, NULL] is [1, 2], so the 3 is missing, too. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 TZ=UTC
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


def expect(query, *expected):
    (row,) = spark.sql(query).collect()
    print(query, "->", *row)
    assert tuple(row) == expected


expect("SELECT vector_sum(x), vector_avg(x) FROM (SELECT array(1F) AS x FROM range(20000000))", [16777216.0], [1.0])
expect("SELECT sum(1F) FROM range(20000000)", 20000000.0)
expect("SELECT round(vector_sum(array(0.1F))[0], 2)::DECIMAL(9, 2)::STRING FROM range(1000000)", "100958.34")
expect("SELECT vector_sum(x), vector_avg(x)[0] > 2.9e38F FROM VALUES (array(3e38F)), (array(3e38F)) AS t(x)", [float("inf")], True)
expect("SELECT vector_sum(x), vector_avg(x) FROM VALUES (array(1F, 2F)), (array(3F, NULL)) AS t(x)", [1.0, 2.0], [1.0, 2.0])
spark.stop()
PYTHON
