#!/usr/bin/env bash
# Spark: in a declarative pipeline, a view that is made by withColumn or drop does not wait for the view that it reads.
#
# Guess: `df.withColumn("b", ...)`, `df.drop("b")` and a `select` with the same columns are the same query, so materialized views that are
# defined by them are computed after the materialized view that they read, with its new rows, in every run.
# Seen with pyspark 4.3.0 (Connect, as pipelines are): with withColumn or drop, Spark looks for the table while it defines the view. Before the
# table exists, withColumn waits for it, and drop is TABLE_OR_VIEW_NOT_FOUND. Once a run has made it, both views start beside their
# source, and read the table as it is in that moment: emptied, with the rows of the last run, or with the new ones. The run completes
# without an error or a warning. `select` and `selectExpr("*", ...)` wait for the source in every run. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "pyspark[pipelines]==4.3.0" pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" PATH="$folder/venv/bin:$PATH" SPARK_LOCAL_IP=127.0.0.1 ROWS="$folder/rows"
cd "$folder"
mkdir rows
cat >spark-pipeline.yml <<YAML
name: shop
storage: file://$folder/storage
libraries: [{glob: {include: views.py}}]
YAML
cat >views.py <<'PYTHON'
import os
import time

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()


@sf.udf("bigint")
def slowly(value):
    time.sleep(5)  # the source takes a while, as real ones do
    return value


@dp.materialized_view
def orders():
    return spark.read.schema("a BIGINT").json(os.environ["ROWS"]).select(slowly("a").alias("a"))


@dp.materialized_view
def by_select():
    return spark.read.table("orders").select("a", sf.lit(1).alias("b"))


@dp.materialized_view
def by_select_expr():
    return spark.read.table("orders").selectExpr("*", "1 AS b")


@dp.materialized_view
def by_with_column():
    return spark.read.table("orders").withColumn("b", sf.lit(1))


if os.environ["RUN"] == "2":

    @dp.materialized_view
    def by_drop():
        return spark.read.table("orders").drop("b")
PYTHON

run() { # the rows of each view, and the order in which the flows start
  export RUN=$1
  spark-pipelines --conf spark.sql.catalogImplementation=hive run --spec spark-pipeline.yml >"log$1" 2>&1 || { tail -20 "log$1"; exit 1; }
  "$PYSPARK_PYTHON" - "$1" <<'PYTHON'
import re
import sys
from glob import glob

import pyarrow.parquet as pq

run = sys.argv[1]
log = open(f"log{run}", errors="replace").read()
events = re.findall(r"Flow spark_catalog\.default\.(\w+) (is RUNNING|has COMPLETED)", log)
done = events.index(("orders", "has COMPLETED"))
waits = {}
for view in sorted({view for view, _ in events} - {"orders"}):
    rows = sorted(row["a"] for path in glob(f"spark-warehouse/{view}/part-*") for row in pq.read_table(path).to_pylist())
    waits[view] = events.index((view, "is RUNNING")) > done
    print(f"run {run}, {view}: {'waits for' if waits[view] else 'starts beside'} orders, rows {rows}")
    assert rows == [1, 2][: int(run)] or not waits[view], (view, rows)
by_select = {"by_select": True, "by_select_expr": True}
assert waits == by_select | ({"by_with_column": True} if run == "1" else {"by_with_column": False, "by_drop": False}), waits
PYTHON
}

echo '{"a": 1}' >rows/1.json
run 1
echo '{"a": 2}' >rows/2.json
run 2
