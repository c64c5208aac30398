"""Classes of other engines in Spark: a batch, and a stream over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import group_by
from tests.engines.adapted import ADAPTED
from tests.spark.test_pickles import Values

# Typed and pickled states, of each engine.
NAMES = ("distinct_sum", "average_fn", "spark_mean", "python_sum", "python_avg", "latest")
EXPECTED = {"distinct_sum": 3, "average_fn": 1.5, "spark_mean": 1.5, "python_sum": 3, "python_avg": 1.5, "latest": 2}


@pytest.mark.slow
def test_a_restarted_stream_has_the_results_of_a_batch(classic: SparkSession, tmp_path: Path) -> None:
    """The stream is started again with new connections, and continues with its states; a batch has the same result."""
    stream = Values(classic, tmp_path, lambda df: df)
    latest = {}
    for value in (1, 2):
        functions = connect([ADAPTED[name].function for name in NAMES])
        calls = {name: functions[name]("x") for name in NAMES}
        stream.query = lambda df, calls=calls: group_by(df.selectExpr("k", "CAST(v AS INT) AS x"), "k", buckets=2).agg(
            **calls
        )
        stream.values(a=value)
        for epoch in stream.run():
            latest |= {row["k"]: row for row in epoch}
    assert latest == {"a": {"k": "a", **EXPECTED}}
    df = classic.range(1, 3, 1, 1).selectExpr("'a' AS k", "CAST(id AS INT) AS x")
    (row,) = group_by(df, "k").agg(**calls).collect()
    assert row.asDict() == {"k": "a", **EXPECTED}
