#!/usr/bin/env bash
# Sail: a sum of DECIMAL(38) may have 39 digits, and its text is then a tenth of it.
#
# Guess: Sail answers as Spark does, which by default raises ARITHMETIC_OVERFLOW where a sum does not fit its type; or it wraps around.
# Seen with Sail 0.7.2 and its client 4.2.0: the sum of 10^38 - 1 and 1 has the type DECIMAL(38,0) and the value 10^38, which that type does
# not have; cast to STRING it is 10^37, without a word. try_sum is NULL, and avg raises. A sum of BIGINT wraps around.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pysail==0.7.2 pyspark-client==4.2.0
cd "$folder"
"$folder/venv/bin/python" - 2>/dev/null <<'PYTHON'
from decimal import Decimal

from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession

server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()


def row(text):
    (found,) = spark.sql(text).collect()
    print(text, tuple(found), sep="\n    ")
    return tuple(found)


decimals = f"VALUES (CAST({'9' * 38} AS DECIMAL(38,0))), (CAST(1 AS DECIMAL(38,0))) AS t(x)"
query = f"SELECT typeof(sum(x)), sum(x), CAST(sum(x) AS STRING), try_sum(x) FROM {decimals}"
assert row(query) == ("decimal(38,0)", Decimal(10) ** 38, str(10**37), None)
try:
    row(f"SELECT avg(x) FROM VALUES (CAST({'9' * 38} AS DECIMAL(38,0))), (CAST({'9' * 38} AS DECIMAL(38,0))) AS t(x)")
    raise SystemExit("avg has a value")
except Exception as error:
    assert "Overflow" in str(error), error
assert row("SELECT sum(x) FROM VALUES (9223372036854775807L), (1L) AS t(x)") == (-(2**63),)
spark.stop()
server.stop()
PYTHON
