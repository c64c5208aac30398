#!/usr/bin/env bash
# Spark: a row of a Parquet file in milliseconds that passes `t < ...` is not returned, if the constant has microseconds.
#
# Guess: the filters that Spark pushes to Parquet only leave out what cannot pass, so that a query has the same rows without them.
# Seen with pyspark 4.3.0: over a column of TIMESTAMP_MILLIS, which Spark itself writes and other engines often do, the constant of the
# pushed filter is rounded down to milliseconds: `t < 12:00:00.0005` leaves out row groups in which all times are 12:00:00 or later, and
# `t <> 12:00:00.0005` those in which all are 12:00:00. Without pushdown, or in microseconds, the rows are there. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for unit in ("MILLIS", "MICROS"):
    spark.conf.set("spark.sql.parquet.outputTimestampType", f"TIMESTAMP_{unit}")
    spark.sql("SELECT TIMESTAMP'2026-01-01 12:00:00' AS t").write.parquet(unit)
seen = {}
for condition in ("t < ", "t <> ", "t <= "):
    condition += "TIMESTAMP'2026-01-01 12:00:00.0005'"
    for unit in ("MILLIS", "MICROS"):
        for pushdown in ("true", "false"):
            spark.conf.set("spark.sql.parquet.filterPushdown", pushdown)
            seen[condition[:4].strip(), unit, pushdown] = rows = spark.read.parquet(unit).where(condition).count()
            print(f"{condition} in {unit}, pushdown {pushdown}: {rows} rows")
lost = {case for case, rows in seen.items() if rows == 0}
assert lost == {("t <", "MILLIS", "true"), ("t <>", "MILLIS", "true")}, lost
spark.stop()
PYTHON
