#!/usr/bin/env bash
# Spark: mapInArrow over a DataFrame without columns gets batches of zero rows; in the other direction the rows are counted.
#
# Guess: `df.select().mapInArrow(f, ...)` gets batches with `num_rows` set and no columns, as Arrow allows, so f can count rows.
# Seen with pyspark 4.3.0: Spark cuts 25,000 rows into three batches, as it would with columns, but each says `num_rows` 0. A function that
# returns batches without columns loses nothing: Spark counts all their rows. (Needs java.)
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


def sizes(batches):
    import pyarrow as pa

    for batch in batches:
        yield pa.record_batch({"rows": [batch.num_rows]})


rows = spark.range(0, 25_000, 1, 1)
with_column = [row.rows for row in rows.mapInArrow(sizes, "rows BIGINT").collect()]
without = [row.rows for row in rows.select().mapInArrow(sizes, "rows BIGINT").collect()]
returned = rows.mapInArrow(lambda batches: (batch.select([]) for batch in batches), "").count()
print("batches with a column:", with_column, "without:", without, "returned without columns:", returned)
assert with_column == [10_000, 10_000, 5_000]
assert without == [0, 0, 0]
assert returned == 25_000
spark.stop()
PYTHON
