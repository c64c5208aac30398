#!/usr/bin/env bash
# Spark: how many distinct values a column has depends on which aggregate is asked.
#
# Guess: Spark normalises -0.0 in grouping and DISTINCT, so every aggregate that groups its values has one zero; and a sketch of distinct
# values of a short list is exact.
# Seen with pyspark 4.3.0: COUNT(DISTINCT x), collect_set, approx_count_distinct and theta_sketch_agg have one zero. LISTAGG(DISTINCT x) and
# approx_top_k have two: the first casts to text before it looks for duplicates. For texts, hll_sketch_agg and theta_sketch_agg do not count
# the empty one, though approx_count_distinct, which is HyperLogLog as well, does; likewise for empty BINARY. (Needs java.)
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
zeros = spark.sql("""
    SELECT count(DISTINCT x) AS count_distinct, size(collect_set(x)) AS collect_set, approx_count_distinct(x) AS approx_count_distinct,
           theta_sketch_estimate(theta_sketch_agg(x)) AS theta_sketch_agg, listagg(DISTINCT x, ' ') AS listagg,
           size(approx_top_k(x, 5)) AS approx_top_k
    FROM VALUES (0.0D), (-0.0D) AS t(x)
""").first().asDict()
print("0.0 and -0.0:", zeros)
assert zeros.pop("listagg").split() == ["0.0", "-0.0"]
assert zeros == {"count_distinct": 1, "collect_set": 1, "approx_count_distinct": 1, "theta_sketch_agg": 1, "approx_top_k": 2}

for kind, rows in (("texts", "(''), ('a')"), ("BINARY", "(X''), (X'01')")):
    counts = spark.sql(f"""
        SELECT count(DISTINCT x) AS exact, approx_count_distinct(x) AS approximate, hll_sketch_estimate(hll_sketch_agg(x)) AS hll,
               theta_sketch_estimate(theta_sketch_agg(x)) AS theta
        FROM VALUES {rows} AS t(x)
    """).first()
    print(f"{kind}, one of them empty:", counts.asDict())
    assert tuple(counts) == (2, 2, 1, 1)
spark.stop()
PYTHON
