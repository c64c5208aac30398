"""A stream through Spark Connect: the client has no JVM, and the server gets only the plan."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foldflight import RejectedError, connect
from foldflight.spark import group_by, state_table, tumble, upgrade_checkpoint
from tests.spark import spark_functions
from tests.spark.conftest import PROVIDER
from tests.spark.test_stream import DDL, SCHEMA, Model, aggregates, apply, model


@pytest.fixture
def remote_spark(sessions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A Connect session that supports streams."""
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = SparkSession.builder.remote(sessions["connect"]).create()
    yield session
    session.client.close()


@pytest.mark.slow
def test_a_changelog_through_connect_leads_to_the_batch_result(remote_spark: Any, tmp_path: Path) -> None:
    """Each epoch's changelog leads to the batch result, also after a restart; the progress has the metrics."""
    functions = connect(spark_functions)
    source = tmp_path / "input"
    source.mkdir()
    output = str(tmp_path / "output")
    rows = Model(seed=11, retracts=True)
    table: dict[Any, dict[str, Any]] = {}
    for turn in range(2):
        pq.write_table(pa.Table.from_pylist(rows.epoch(15), schema=SCHEMA), source / f"{turn}.parquet")
        frame = remote_spark.readStream.schema(DDL).parquet(str(source))
        changes = group_by(frame, "customer", row_kind="op", emit="changelog", buckets=4).agg(**aggregates(functions))
        query = (
            changes.writeStream.outputMode("update")
            .foreachBatch(lambda batch, number: batch.write.mode("overwrite").parquet(f"{output}/{number}"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(600)
        epoch = remote_spark.read.parquet(f"{output}/{turn}")
        collected_rows = [row.asDict() for row in epoch.coalesce(1).collect()]
        apply(table, collected_rows, update_before=True)
        assert table == {
            key: {"customer": key, **model(rows_of_key)} for key, rows_of_key in rows.present.items() if rows_of_key
        }
        metrics = query.lastProgress["observedMetrics"]
        assert [name for name in metrics if name.startswith("foldflight customer > price")]
    # What the query holds is read through Connect as well, and is as it gave it out.
    stored_rows = state_table(remote_spark, str(tmp_path / "checkpoint"))
    assert stored_rows.columns == ["customer", "live_rows", *aggregates(functions)]
    result = {row["customer"]: (row["live_rows"], row["n"], row["large"]) for row in stored_rows.collect()}
    assert result == {
        key: (len(rows_of_key), len(rows_of_key), table[key]["large"])
        for key, rows_of_key in rows.present.items()
        if rows_of_key
    }
    with pytest.raises(RejectedError, match="the operator 5 of the query has no state table"):
        state_table(remote_spark, str(tmp_path / "checkpoint"), operator=5)
    with pytest.raises(RejectedError, match="checkpointLocation"):
        state_table(remote_spark, str(tmp_path))
    restored_folder = (tmp_path / "checkpoint").rename(tmp_path / "restored")
    with pytest.raises(RejectedError, match=r"the checkpoint was moved.*upgrade_checkpoint"):
        state_table(remote_spark, str(restored_folder))
    upgrade_checkpoint(str(restored_folder))
    assert state_table(remote_spark, str(restored_folder)).count() == len(result)


def test_mistakes_show_through_connect(remote_spark: Any, tmp_path: Path) -> None:
    """Settings, watermarks and columns are checked when the query is built, as in a classic session."""
    functions = connect(spark_functions)
    frame = remote_spark.readStream.schema("at timestamp, page string").parquet(str(tmp_path))
    window_options = {"window": tumble("at", "1 hour"), "emit": "append"}
    with pytest.raises(RejectedError, match="withWatermark"):
        group_by(frame, "page", **window_options)
    assert (
        group_by(frame.withWatermark("at", "1 minute"), "page", **window_options)
        .agg(n=functions["count"]())
        .isStreaming
    )
    remote_spark.conf.unset(PROVIDER)
    with pytest.raises(RejectedError, match="RocksDBStateStoreProvider"):
        group_by(frame, "page").agg(n=functions["count"]())
