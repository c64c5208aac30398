#!/usr/bin/env bash
# Spark: an aggregate function in Python over an empty table gives no row, one row, or a row of NULL, by what is done with the result.
#
# Guess: `SELECT f(x) FROM empty` is one row, as for any aggregate without GROUP BY; the function is called with an empty array.
# Seen with pyspark 4.3.0, for pandas_udf, arrow_udf and the arrow_udf that takes an iterator: `collect()` has no row, yet `count()` of
# the same DataFrame is 1. The union of two such results has two rows of NULL.
# (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.functions import arrow_udf, pandas_udf

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()


@pandas_udf("BIGINT")
def in_pandas(x: pd.Series) -> int:
    return len(x)


@arrow_udf("BIGINT")
def in_arrow(x: pa.Array) -> int:
    return len(x)


@arrow_udf("BIGINT")
def in_batches(batches: Iterator[pa.Array]) -> int:
    return sum(len(batch) for batch in batches)


empty = spark.range(0)
for name, call in (
    ("count", F.count("id")),
    ("pandas_udf", in_pandas("id")),
    ("arrow_udf", in_arrow("id")),
    ("arrow_udf of an iterator", in_batches("id")),
):
    result = empty.agg(call.alias("n"))
    rows, of_union = [tuple(row) for row in result.collect()], [tuple(row) for row in result.union(result).collect()]
    seen = (rows, result.count(), of_union)
    print("{}: collect {}, count {}, collect of the union with itself {}".format(name, *seen))
    assert seen == (([(0,)], 1, [(0,), (0,)]) if name == "count" else ([], 1, [(None,), (None,)]))
spark.stop()
PYTHON
