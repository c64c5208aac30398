"""One JVM for all Spark tests, with a classic session and Spark Connect, embedded and remote functions."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foldflight import connect
from foldflight.client import Functions, close_connections
from tests.spark import spark_functions

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote "
    "-Djdk.lang.Process.launchMechanism=VFORK"
)
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of PySpark itself, and leave out most tests that combine Spark Connect with a remote server.

    A Connect session and a remote server have nothing to do with each other; one test of both together is enough.
    """
    items[:] = [
        item for item in items if getattr(item, "originalname", "") == "test_random_rows" or not _is_corner(item)
    ]
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def _is_corner(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    chosen = {} if callspec is None else callspec.params
    return (chosen.get("spark"), chosen.get("functions")) == ("connect", "remote")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A classic session, and the address of a Connect server in the same JVM, with a state store for state tables."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    port = _free_port()
    # The workers find foldflight, and not the tests: what they need of those must travel with the plan.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT / "service")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("foldflight tests")
        # Queries are many and small here: optimised machine code and code for each plan cost more time than they save.
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        # The other manager runs `readlink` four times for each file that it renames: half the time of an epoch.
        .config("spark.sql.streaming.checkpointFileManagerClass", FILE_MANAGER)
        .config(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", str(port))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    yield {"classic": spark, "connect": f"sc://127.0.0.1:{port}"}
    spark.stop()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def classic(sessions: dict[str, Any]) -> Any:
    """The classic session."""
    return sessions["classic"]


@pytest.fixture(params=["classic", "connect"])
def spark(request: pytest.FixtureRequest, sessions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A session of each kind, in turn."""
    if request.param == "classic":
        yield sessions["classic"]
        return
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as a process that only knows Connect has it
    session = SparkSession.builder.remote(sessions["connect"]).create()
    yield session
    session.client.close()


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A Flight server with the functions of these tests, outside the processes of Spark's workers."""
    from foldflight.server.run.lifecycle import serving

    with serving(spark_functions, state_keys="a key for the spark tests") as server:
        yield server.url
    close_connections()


@pytest.fixture(scope="session")
def embedded() -> Functions:
    """The functions of these tests, folded in Spark's workers."""
    return connect(spark_functions)


@pytest.fixture(params=["embedded", "remote"])
def functions(request: pytest.FixtureRequest, embedded: Functions) -> Functions:
    """The same functions, embedded and remote in turn."""
    if request.param == "embedded":
        return embedded
    return connect(request.getfixturevalue("server_url"))


@pytest.fixture
def rows_of() -> Callable[[Any], list[tuple[Any, ...]]]:
    """Collect a DataFrame as sorted tuples."""

    def collect(df: Any) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in df.collect()), key=repr)

    return collect
