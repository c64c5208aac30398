#!/usr/bin/env bash
# Spark: an aggregate over TIME works in SQL, and is refused when the same query is written with DataFrames.
#
# Guess: `spark.sql("SELECT t, count(*) FROM x GROUP BY t")` and `df.groupBy("t").count()` make the same plan, so both run or neither does.
# Seen with pyspark 4.3.0: while spark.sql.timeType.enabled has its default, SQL groups, joins and sorts by TIME, and takes its max.
# groupBy(...).count(), agg(max("t")) and cube of DataFrames raise UNSUPPORTED_TIME_TYPE, which does not name the setting, though
# distinct, join and orderBy of DataFrames work. With the setting, both agree. (Needs java.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.3.0
export PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1
cd "$folder"
"$folder/venv/bin/python" -W ignore - 2>log <<'PYTHON' || { tail -20 log; exit 1; }
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
df = spark.sql("SELECT TIME '01:02:03' AS t, 1 AS v")
df.createOrReplaceTempView("x")


def outcome(query):
    try:
        query().collect()
        return "rows"
    except Exception as error:
        return error.getCondition()


queries = {
    "SQL: GROUP BY t": lambda: spark.sql("SELECT t, count(*) FROM x GROUP BY t"),
    "SQL: max(t)": lambda: spark.sql("SELECT max(t) FROM x"),
    "SQL: CUBE (t)": lambda: spark.sql("SELECT t, count(*) FROM x GROUP BY CUBE (t)"),
    "DataFrame: distinct": lambda: df.distinct(),
    "DataFrame: orderBy": lambda: df.orderBy("t"),
    "DataFrame: groupBy": lambda: df.groupBy("t").count(),
    "DataFrame: max(t)": lambda: df.agg(sf.max("t")),
    "DataFrame: cube": lambda: df.cube("t").count(),
}
for setting in ("false", "true"):
    assert setting == "true" or spark.conf.get("spark.sql.timeType.enabled") == setting
    spark.conf.set("spark.sql.timeType.enabled", setting)
    for name, query in queries.items():
        seen = outcome(query)
        print(f"timeType.enabled={setting}, {name}: {seen}")
        refused = setting == "false" and name in ("DataFrame: groupBy", "DataFrame: max(t)", "DataFrame: cube")
        assert seen == ("UNSUPPORTED_TIME_TYPE" if refused else "rows")
spark.stop()
PYTHON
