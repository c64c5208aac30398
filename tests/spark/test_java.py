"""Streams on Spark with functions in Java."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import group_by
from tests.java_classes import WEIGHTED_AVG, InPython, jar
from tests.spark.test_migration import orders
from tests.spark.test_stream import Stream


@pytest.mark.slow
def test_a_checkpoint_changes_its_language(classic: SparkSession, tmp_path: Path) -> None:
    """A query goes on from Python to Java and back with the same checkpoint."""
    java = connect("embedded:", java=[f"{jar(tmp_path, WEIGHTED_AVG)}::com.acme.WeightedAvg"])
    python = connect(InPython)

    def query(functions: Any) -> Any:
        return lambda df: group_by(df, "customer", row_kind="op", buckets=2).agg(
            avg=functions["weighted_avg"]("amount", "qty")
        )

    stream = Stream(classic, tmp_path, query(python))
    stream.write(orders("ann", "bob", amount=10))
    stream.run()
    for functions, amount, expected in ((java, 30, 20), (python, 50, 30)):
        stream.query = query(functions)
        stream.write(orders("bob", amount=amount))
        (changes,) = stream.run()
        assert {row["customer"]: row["avg"] for row in changes} == {"bob": expected}
