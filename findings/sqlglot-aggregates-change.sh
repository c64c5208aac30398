#!/usr/bin/env bash
# sqlglot: of Spark's percentile, max_by, kurtosis, skewness and dayofweek, DuckDB gets other functions, without a warning.
#
# Guess: what sqlglot transpiles without a warning has the same result, and a function that it does not know raises or is missing in DuckDB.
# Seen with sqlglot 30.30.0, pyspark 4.3.0 and duckdb 2.0.1: percentile(x, 0.5) becomes QUANTILE, which is discrete, so the median of 1 and 2 is 1.
# max_by becomes ARG_MAX, which skips rows whose result is NULL. kurtosis and skewness keep their names, and are those of the population in Spark and
# of a sample in DuckDB. dayofweek is 1 for Sunday in Spark and 0 in DuckDB. CAST(3.5 AS INT) becomes TRY_CAST, which rounds. Likewise, from
# ClickHouse median(x) becomes QUANTILE(x, 0.5), which has no mean of the two middle values in DuckDB. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet sqlglot==30.30.0 duckdb==2.0.1 pyspark==4.3.0 pandas==2.3.3 pyarrow==26.0.1
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
import duckdb
import sqlglot
from pyspark.sql import SparkSession
from sqlglot import ErrorLevel

EXPECTED = {
    "percentile(x, 0.5) FROM VALUES (1.0D), (2.0D) AS t(x)": (1.5, 1.0),
    "max_by(x, y) FROM VALUES ('old', 1), (NULL, 2) AS t(x, y)": (None, "old"),
    "round(kurtosis(x), 3) FROM VALUES (1.0D), (2.0D), (3.0D), (9.0D) AS t(x)": (-0.798, 3.014),
    "round(skewness(x), 3) FROM VALUES (1.0D), (2.0D), (3.0D), (9.0D) AS t(x)": (0.979, 1.696),
    "dayofweek(x) FROM VALUES (DATE '2024-01-07') AS t(x)": (1, 0),
    "CAST(x AS INT) FROM VALUES (2.5D), (3.5D) AS t(x) ORDER BY x DESC": (3, 4),
}
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for query, expected in EXPECTED.items():
    source = f"SELECT {query}"
    target = sqlglot.transpile(source, read="spark", write="duckdb", unsupported_level=ErrorLevel.RAISE)[0]
    seen = spark.sql(source).first()[0], duckdb.execute(target).fetchone()[0]
    print(f"{source}\n  {target}\n  Spark {seen[0]}, DuckDB {seen[1]}")
    assert seen == expected, seen
spark.stop()
median = sqlglot.transpile("SELECT median(x) FROM t", read="clickhouse", write="duckdb")[0]
print("ClickHouse's median:", median)
assert median == "SELECT QUANTILE(x, 0.5) FROM t"
PYTHON
