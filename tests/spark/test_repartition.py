"""Spark's offline repartitioning of states: it moves the buckets of a stream to another number of partitions."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import group_by, state_table
from tests.spark import spark_functions
from tests.spark.test_stream import Model, Stream, aggregates, apply
from tests.spark_sessions import since_spark


@pytest.mark.slow
@since_spark("4.2", "offline repartitioning")
@pytest.mark.parametrize("partitions", [pytest.param(3, marks=pytest.mark.surface), 1])
def test_a_stream_goes_on_with_other_partitions(classic: SparkSession, tmp_path: Path, partitions: int) -> None:
    """With more or fewer partitions, states, rows of DISTINCT (a view) and live rows are where they are looked for."""
    functions = connect(spark_functions)
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", emit="changelog", buckets=5).agg(**aggregates(functions)),
    )
    rows = Model(seed=7, retracts=True)
    table: dict[Any, dict[str, Any]] = {}
    checkpoint = tmp_path / "checkpoint"

    def fold(size: int) -> None:
        stream.write(rows.epoch(size))
        (changes,) = stream.run()
        apply(table, changes, update_before=True)
        assert table == rows.table()

    fold(30)
    assert len(list((checkpoint / "state" / "0").glob("[0-9]*"))) == 2
    classic._streamingCheckpointManager.repartition(str(checkpoint), partitions)  # type: ignore[attr-defined]
    live = {row["customer"]: row["live_rows"] for row in state_table(classic, str(checkpoint)).collect()}
    assert live == {key: row["n"] for key, row in table.items()}
    fold(20)
    assert stream.progress[-1]["buckets"]
    fold(12)
    offsets = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert f'"spark.sql.shuffle.partitions":"{partitions}"' in offsets[-1].read_text()
