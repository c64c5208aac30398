"""A script that maps a DataFrame in Spark's Arrow cache: prints the plan, and the columns of the result.

The cache's format is fixed when a JVM starts, so this session is one of its own.

python -m tests.spark.cached_query FOLDER
"""

import json
import sys
from pathlib import Path

from foldflight import connect
from foldflight.spark import with_columns
from tests import scalar_functions
from tests.spark_sessions import local_builder

ROWS = 2500


def main() -> None:
    spark = (
        local_builder(Path(sys.argv[1]))
        .config("spark.sql.cache.serializer", "org.apache.spark.sql.execution.columnar.ArrowCachedBatchSerializer")
        .config("spark.sql.execution.arrow.pythonUDF.columnarInput.enabled", "true")
        .getOrCreate()
    )
    functions = connect(scalar_functions)
    cached_df = spark.range(0, ROWS, 1, 1).selectExpr("id AS a", "id + 1 AS b").cache()
    mapped_df = with_columns(cached_df, m=functions["multiply"]("a", "b"), n=functions["multiply"]("b", "b"))
    one = with_columns(cached_df.where("a % 3 = 0"), m=functions["multiply"]("a", "b"))
    plan = mapped_df._jdf.queryExecution().executedPlan().toString()
    print(json.dumps([plan, sorted(mapped_df.collect()), sorted(one.collect())]))
    spark.stop()


if __name__ == "__main__":
    main()
