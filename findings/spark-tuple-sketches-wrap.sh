#!/usr/bin/env bash
# Spark: `tuple_sketch_summary_integer` of the values 2147483647 and 1 is -2147483648 for one key, and 2147483648 for two.
#
# Guess: the summary of a tuple sketch is the sum of its values; it is a BIGINT, so it is exact here, and it does not matter which keys
# the values have.
# Seen with pyspark 4.3.0: the values of one key are added as 32-bit integers, which wrap around in ANSI mode, too, and the sums of the keys
# are added as a BIGINT. SUM over the same INT column is right. A key whose value is NULL is not counted, nor is an empty text as a key.
# The sketch of doubles has the sum. (Needs java.)
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



summary = "tuple_sketch_summary_integer(tuple_sketch_agg_integer(k, v))"
estimate = "tuple_sketch_estimate_integer(tuple_sketch_agg_integer(k, v))"
expect(f"SELECT {summary}, typeof({summary}), sum(v) FROM VALUES (1, 2147483647), (1, 1) AS t(k, v)", -2147483648, "bigint", 2147483648)
expect(f"SELECT {summary}, sum(v) FROM VALUES (1, 2147483647), (2, 1) AS t(k, v)", 2147483648, 2147483648)
expect(f"SELECT {estimate}, count(DISTINCT k) FROM VALUES (1, 5), (2, NULL) AS t(k, v)", 1.0, 2)
expect(f"SELECT {estimate}, count(DISTINCT k) FROM VALUES ('', 1), ('a', 1) AS t(k, v)", 1.0, 2)
expect("SELECT tuple_sketch_summary_double(tuple_sketch_agg_double(k, v)) FROM VALUES (1, 2147483647D), (1, 1D) AS t(k, v)", 2147483648.0)
spark.stop()
PYTHON
