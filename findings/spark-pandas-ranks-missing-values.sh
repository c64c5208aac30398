#!/usr/bin/env bash
# Spark: in its pandas API, `rank` ranks a missing value first, and `round` of 2.5 is 3.
#
# Guess: the API "behaves as pandas", so a missing value has no rank, and the median of a group is as exact as a median.
# Seen with pyspark 4.3.0: a missing value is the least, so the ranks of 1, missing, 1 are 2.5, 1, 2.5, and all others are one too large.
# Halves are rounded up, where pandas rounds to even. A group of missing values has the sum missing, where pandas has 0. The median of the
# integers 1 and 2 is 1 by group. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 PYARROW_IGNORE_TIMEZONE=1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import pandas
from pyspark import pandas as spark_pandas
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
nan = float("nan")


def values(module):
    groups = module.DataFrame({"k": ["a", "a", "b"], "x": [1, 2, 3], "y": [nan, nan, 3.0]}).groupby("k")
    return {
        "ranks of 1, NaN, 1": module.Series([1, nan, 1]).rank().sort_index().tolist(),
        "rounded 0.5, 1.5, 2.5": module.Series([0.5, 1.5, 2.5]).round().sort_index().tolist(),
        "sums of NaN, NaN and of 3": groups.y.sum().sort_index().tolist(),
        "medians of 1, 2 and of 3": groups.x.median().sort_index().tolist(),
    }


of_spark, of_pandas = values(spark_pandas), values(pandas)
for label in of_spark:
    print(f"{label}: Spark {of_spark[label]}, pandas {of_pandas[label]}")
assert str(list(of_spark.values())) == "[[2.5, 1.0, 2.5], [1.0, 2.0, 3.0], [nan, 3.0], [1, 3]]"
assert str(list(of_pandas.values())) == "[[1.5, nan, 1.5], [0.0, 2.0, 2.0], [0.0, 3.0], [1.5, 3.0]]"
spark.stop()
PYTHON
