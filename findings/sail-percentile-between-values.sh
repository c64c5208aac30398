#!/usr/bin/env bash
# Sail: percentile_approx is a value that no row has.
#
# Guess: as in Spark, `percentile_approx(x, 0.5)` is one of the values of x, of its type, and works for dates.
# Seen with Sail 0.7.2 and its client 4.2.0: over the integers 1 to 4 it is 2.5, a DOUBLE (Spark 4.3: 2, an INT), and there is none for dates,
# nor for an array of percentages.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pysail==0.7.2 pyspark-client==4.2.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
integers = "VALUES (1), (2), (3), (4) AS t(x)"
(found,) = spark.sql(f"SELECT percentile_approx(x, 0.5), typeof(percentile_approx(x, 0.5)) FROM {integers}").collect()
print("percentile_approx of 1 to 4:", tuple(found))
assert tuple(found) == (2.5, "double")
dates = "VALUES (DATE'2020-01-01'), (DATE'2020-01-04') AS t(x)"
for query in (
    f"SELECT percentile_approx(x, 0.5) FROM {dates}",
    f"SELECT percentile_approx(x, array(0.25, 0.5)) FROM {integers}",
):
    try:
        spark.sql(query).collect()
    except Exception as error:
        print(query, "fails:", str(error).splitlines()[0][:120])
    else:
        raise SystemExit(f"{query} has a result")
spark.stop()
server.stop()
PYTHON
