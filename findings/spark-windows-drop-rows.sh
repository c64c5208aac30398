#!/usr/bin/env bash
# Spark: GROUP BY window(t, ...) leaves out rows whose time is NULL, and GROUP BY time_bucket(..., t) has a group of them.
#
# Guess: GROUP BY keeps every row, and NULLs are a group of their own, by `window` and `session_window` as by any other expression.
# Seen with pyspark 4.3.0: `window` and `session_window` filter, too. Rows with a NULL time are in no group, nor are those whose gap is
# zero or negative, so the counts do not add up to COUNT(*). A row exactly at the end of a session, which is exclusive, continues it.
# (Needs java.)
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



times = "(SELECT timestamp_seconds(s) AS t, gap FROM VALUES (0, '1 second'), (20, '0 seconds'), (NULL, '1 second') AS v(s, gap))"
expect(f"SELECT count(*), count(t) FROM {times}", 3, 2)
expect(f"SELECT sum(n), count(*) FROM (SELECT count(*) AS n FROM {times} GROUP BY window(t, '1 minute'))", 2, 1)
expect(f"SELECT sum(n), count(*) FROM (SELECT count(*) AS n FROM {times} GROUP BY time_bucket(INTERVAL '1' MINUTE, t))", 3, 2)
expect(f"SELECT sum(n), count(*) FROM (SELECT count(*) AS n FROM {times} GROUP BY session_window(t, gap))", 1, 1)
touching = "(SELECT timestamp_seconds(s) AS t FROM VALUES (0), (60) AS v(s))"
session = f"(SELECT session_window AS w, count(*) AS n FROM {touching} GROUP BY session_window(t, '1 minute'))"
expect(f"SELECT n, unix_seconds(w.end) FROM {session}", 2, 120)
spark.stop()
PYTHON
