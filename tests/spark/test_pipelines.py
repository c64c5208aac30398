"""Declarative pipelines: queries in flows, whose input cannot be analysed while they are defined."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.errors import RejectedError
from foldflight.spark import from_debezium, group_by, over, tumble, upserts, with_columns, with_schema
from foldflight.spark.errors import error_of
from tests import scalar_functions
from tests.maven import MISSING, client, jars
from tests.spark import spark_functions
from tests.spark_sessions import since_spark

ROOT = Path(__file__).parents[2]
FIRST = [
    ("ann", "2024-01-01 00:00:10", 10, 1, False),
    ("bob", "2024-01-01 00:00:20", 20, 1, False),
    ("ann", "2024-01-01 00:01:30", 40, 2, False),
]
# The late row of `bob` deletes what the first run has shown; the last row closes the windows before it.
SECOND = [
    ("bob", "2024-01-01 00:02:00", 20, 2, True),
    ("cid", "2024-01-01 00:03:00", 7, 1, False),
    ("ann", "2024-01-01 00:09:00", 1, 1, False),
]
NAMES = ("customer", "at", "price", "version", "gone")
SCHEMA = "customer STRING, at TIMESTAMP, price BIGINT, version BIGINT, gone BOOLEAN"


def write_rows(path: Path, rows: list[tuple[Any, ...]]) -> None:
    path.write_text("".join(json.dumps(dict(zip(NAMES, row, strict=True))) + "\n" for row in rows), encoding="utf-8")


def run_pipeline(
    folder: Path, flows: str = "flows.py", jars: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> None:
    """Run a pipeline of tests/spark/pipeline by Spark's command, with the catalogues that settings name."""
    spec = {
        "name": "shop",
        "storage": (folder / "storage").as_uri(),
        "libraries": [{"glob": {"include": flows}}],
        "configuration": {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
            "RocksDBStateStoreProvider",
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            **(settings or {}),
        },
    }
    shutil.copy(ROOT / "tests/spark/pipeline" / flows, folder)
    (folder / "spark-pipeline.yml").write_text(json.dumps(spec), encoding="utf-8")
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    # The second run finds the tables of the first one in a catalogue of files.
    hive = ("--conf", "spark.sql.catalogImplementation=hive")
    own = ("--jars", ",".join(map(str, jars))) if jars else ()
    command = [program, *own, *hive, "run", "--spec", "spark-pipeline.yml"]
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PIPELINE_ROWS": str(folder / "rows"),
    }
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-6000:]


def table_of(folder: Path, name: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table of the pipeline, sorted."""
    table: pa.Table = pq.read_table(folder / "spark-warehouse" / name)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.slow
@since_spark("4.1", "declarative pipelines")
def test_a_second_run_of_a_pipeline_continues_the_first(tmp_path: Path) -> None:
    """Flows over a table of their own pipeline have the rows of plain Spark, also after new rows and a second run."""
    (tmp_path / "rows").mkdir()
    write_rows(tmp_path / "rows" / "1.json", FIRST)
    run_pipeline(tmp_path)
    assert table_of(tmp_path, "lifted_totals") == [("ANN", 52), ("BOB", 21)]
    assert table_of(tmp_path, "folded_totals") == [("ann", 50, 10), ("bob", 20, 20)]
    assert table_of(tmp_path, "newest_rows") == [("ann", 40), ("bob", 20)]
    assert [row[-1] for row in table_of(tmp_path, "running_totals")] == [10, 50, 20]
    assert table_of(tmp_path, "closed_windows") == []
    assert table_of(tmp_path, "changes") == [("+I", "ann", 50), ("+I", "bob", 20)]
    write_rows(tmp_path / "rows" / "2.json", SECOND)
    run_pipeline(tmp_path)
    assert table_of(tmp_path, "folded_totals") == [("ann", 51, 10), ("bob", 40, 20), ("cid", 7, 7)]
    assert table_of(tmp_path, "newest_rows") == [("ann", 40), ("cid", 7)]
    assert table_of(tmp_path, "lifted_totals") == [("ANN", 54), ("BOB", 42), ("CID", 8)]
    assert [row[-1] for row in table_of(tmp_path, "closed_windows")] == [30, 40, 20, 7]


def late_events(seed: int) -> list[list[dict[str, Any]]]:
    """Return the events of some keys in four parts, whose sequences come in any order, deletions among them."""
    random = Random(seed)
    versions = random.sample(range(1000), 80)
    events = [
        {
            "shop": random.randrange(2),
            "id": random.choice("abcdef"),
            "price": random.choice([None, random.randrange(100)]),
            "version": version,
            "gone": random.random() < 0.4,
        }
        for version in versions
    ]
    # A row that comes after a newer deletion of its key, and a deletion that comes after a newer row.
    events[:2] = [{"shop": 9, "id": key, "price": 1, "version": 5, "gone": key == "gone"} for key in ("gone", "kept")]
    events[-2:] = [{"shop": 9, "id": key, "price": 2, "version": 4, "gone": key == "kept"} for key in ("gone", "kept")]
    return [events[begin : begin + 20] for begin in range(0, len(events), 20)]


@pytest.mark.slow
@since_spark("4.3", "AUTO CDC in Python")
def test_upserts_keep_the_rows_of_auto_cdc(tmp_path: Path) -> None:
    """In a batch and in a stream, after events that come late, deletions among them."""
    assert client() is not None, MISSING
    (tmp_path / "rows").mkdir()
    parts = late_events(seed=1)
    for place, part in enumerate(parts):
        path = tmp_path / "rows" / f"{place}.json"
        path.write_text("".join(json.dumps(event) + "\n" for event in part), encoding="utf-8")
        os.utime(path, (place + 1, place + 1))
    catalog_class = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
    lock = Path(__file__).with_name("jars-auto-cdc.txt")
    run_pipeline(tmp_path, "auto_cdc.py", jars(lock), {"spark.sql.catalog.merged": catalog_class})
    newest = {}
    for event in sorted((event for part in parts for event in part), key=lambda event: event["version"]):
        newest[event["shop"], event["id"]] = event
    expected = sorted(
        ((*key, event["price"], event["version"]) for key, event in newest.items() if not event["gone"]), key=repr
    )
    assert (9, "kept", 1, 5) in expected
    assert 4 < len(expected) < len(newest)
    assert table_of(tmp_path, "rows_of_auto_cdc") == expected
    assert table_of(tmp_path, "rows_of_upserts") == expected
    changes = Counter[tuple[Any, ...]]()
    for kind, *row in table_of(tmp_path, "changes_of_upserts"):
        changes[tuple(row)] += 1 if kind[0] == "+" else -1
    assert {row: times for row, times in changes.items() if times} == dict.fromkeys(expected, 1)


@contextmanager
def flow(spark: Any) -> Iterator[None]:
    """Let this session refuse analysis, as in the function of a flow."""
    from pyspark.pipelines.add_pipeline_analysis_context import add_pipeline_analysis_context
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    graph = create_dataflow_graph(spark, default_catalog=None, default_database=None, sql_conf={})
    with add_pipeline_analysis_context(spark, graph, flow_name="a_flow"):
        yield


@pytest.fixture
def orders(spark: Any) -> Any:
    """A function that reads the table `orders`, which Spark does not analyse in a flow."""
    rows = [(*row[:1], datetime.fromisoformat(row[1]), *row[2:]) for row in FIRST]
    spark.createDataFrame(rows, SCHEMA).createOrReplaceTempView("orders_of_a_pipeline")
    return lambda: spark.table("orders_of_a_pipeline")


in_connect = pytest.mark.parametrize("spark", ["connect"], indirect=True)


@pytest.mark.every_turn
@in_connect
@pytest.mark.every_way
@since_spark("4.1", "declarative pipelines")
def test_operations_plan_in_a_flow_without_analysis(spark: Any, orders: Any, rows_of: Any) -> None:
    """In a flow, all operations plan over a declared schema; the results equal plain Spark's."""
    functions = connect([spark_functions, scalar_functions])
    with flow(spark):
        declared_df = with_schema(orders(), SCHEMA, streaming=False)
        lifted_df = group_by(declared_df, "upper(customer) AS c").agg(total=functions.sum("price + 1"))
        fold_df = group_by(declared_df, "customer", plan="fold").agg(n=functions.count(), total=functions.sum("price"))
        windows = group_by(declared_df, "customer", window=tumble("at", "1 minute")).agg(total=functions.sum("price"))
        over_df = over(declared_df, "customer", order_by="at").agg(total=functions.sum("price"))
        mapped_df = with_columns(declared_df, text=functions.multiply("price", "version"))
        newest = upserts(declared_df, keys=["customer"], sequence_by="version", deleted="gone")
        totals = group_by(newest, "customer", row_kind="row_kind").agg(total=functions.sum("price"))
    by_customer = orders().groupBy("customer")
    assert rows_of(lifted_df) == [("ANN", 52), ("BOB", 21)]
    assert rows_of(fold_df) == rows_of(by_customer.agg(sf.count("*"), sf.sum("price")))
    assert [row[-1] for row in rows_of(windows)] == [10, 40, 20]
    assert [row[-1] for row in rows_of(over_df)] == [10, 50, 20]
    assert rows_of(mapped_df.select("customer", "text")) == rows_of(
        with_columns(orders(), text=functions.multiply("price", "version")).select("customer", "text")
    )
    assert rows_of(totals) == [("ann", 40), ("bob", 20)]


@in_connect
@pytest.mark.every_way
@since_spark("4.1", "declarative pipelines")
def test_mistakes_in_a_flow_are_refused_with_the_remedy(spark: Any, orders: Any) -> None:
    """Each operation names `with_schema` in a flow; no action sees the empty DataFrame; a wrong type is named."""
    functions = connect([spark_functions, scalar_functions])
    uses = {
        "group_by": lambda df: group_by(df, "customer"),
        "over": lambda df: over(df, "customer", order_by="at"),
        "with_columns": lambda df: with_columns(df, text=functions.multiply("price", "version")),
        "upserts": lambda df: upserts(df, keys=["customer"], sequence_by="version"),
        "from_debezium": lambda df: from_debezium(df, "id BIGINT"),
    }
    for name, use in uses.items():
        with flow(spark), pytest.raises(RejectedError, match=f"{name} must know .* with_schema") as excinfo:
            use(orders())
        assert excinfo.value.code == "SIGNATURE"
    with flow(spark):
        declared_df = with_schema(orders(), "customer STRING, price INT", streaming=False)
        assert declared_df.columns == ["customer", "price"]
        assert not declared_df.isStreaming
        with pytest.raises(AnalysisException, match="ATTEMPT_ANALYSIS_IN_PIPELINE"):
            declared_df.count()
        totals = group_by(declared_df, "customer").agg(total=functions.sum("price"))
        with pytest.raises(RejectedError, match="the column id twice"):
            with_schema(orders(), "id INT, ID INT", streaming=False)
        with pytest.raises(RejectedError, match="SCHEMA_MISMATCH: Spark cannot read the schema 'id TEXTS'"):
            with_schema(orders(), "id TEXTS", streaming=False)
    stream = spark.readStream.format("rate").load().select("value")
    with pytest.raises(RejectedError, match="SIGNATURE: the DataFrame is a stream"):
        with_schema(stream, "value BIGINT", streaming=False)
    with flow(spark), pytest.raises(RejectedError, match="SIGNATURE: the DataFrame is a stream"):
        with_schema(stream, "value BIGINT", streaming=False)
    with pytest.raises(PySparkException) as wrong:
        totals.collect()
    error = error_of(wrong.value)
    assert error is not None
    assert error.code == "SCHEMA_MISMATCH"
    assert "price is declared as int in with_schema, and is bigint" in str(error)


def test_a_column_that_is_not_there_is_named(classic: Any) -> None:
    """Outside of a flow Spark tells at once which column of the schema the rows lack."""
    with pytest.raises(
        RejectedError, match=r"the schema 'id BIGINT, nothing INT' does not fit the rows.*nothing"
    ) as excinfo:
        with_schema(classic.range(1), "id BIGINT, nothing INT", streaming=False)
    assert excinfo.value.code == "SCHEMA_MISMATCH"
