#!/usr/bin/env bash
# Spark: a decimal in a VARIANT has trailing zeros in Python, and none in SQL.
#
# Guess: `parse_json('1.10')` keeps the number as written or normalises it, once, when it is parsed. Everybody who reads it sees the same.
# Seen with pyspark 4.3.0: it is kept as written, and PySpark shows Decimal('1.10') and the JSON text 1.10. SQL's to_json, CAST AS STRING
# and schema_of_variant normalise when they read: 1.1, of DECIMAL(2,1). So a Python function and an SQL expression that make text or JSON
# of one column make different ones, and 1.0 is DECIMAL(1,0) while 1 is BIGINT. The sign of -0.0 is lost. (Needs java.)
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
seen = {}
for text in ("1.10", "1.0", "1", "-0.0"):
    row = spark.sql(f"""
        SELECT v, to_json(v) AS json, CAST(v AS STRING) AS string, schema_of_variant(v) AS type
        FROM (SELECT parse_json('{text}') AS v)
    """).first()
    seen[text] = (row.json, row.string, row.type, row.v.toJson(), repr(row.v.toPython()))
    print(f"{text}: to_json {row.json}, CAST {row.string}, type {row.type}; in Python {row.v.toJson()}, {row.v.toPython()!r}")
assert seen == {
    "1.10": ("1.1", "1.1", "DECIMAL(2,1)", "1.10", "Decimal('1.10')"),
    "1.0": ("1", "1", "DECIMAL(1,0)", "1.0", "Decimal('1.0')"),
    "1": ("1", "1", "BIGINT", "1", "1"),
    "-0.0": ("0", "0", "DECIMAL(1,0)", "0.0", "Decimal('0.0')"),
}
spark.stop()
PYTHON
