"""One JVM for all tests with Spark, reached the classic way and through Spark Connect."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[1]
PARTITIONS = 2
SPARK = tuple(map(int, metadata.version("pyspark").split(".")[:2]))
_PACKAGE = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if SPARK >= (4, 1) else "")
FILE_MANAGER = f"{_PACKAGE}.FileSystemBasedCheckpointFileManager"
# For the JVM of every Spark that tests start, also in processes of their own. Queries are many and small: optimised
# machine code, code that Spark generates for stages, and checks of its classes cost more time than they save.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Djdk.lang.Process.launchMechanism=VFORK",
    "-Dspark.ui.enabled=false",
    "-Dspark.sql.codegen.wholeStage=false",
    # Spark's default runs the command `readlink` four times for each file that it renames.
    f"-Dspark.sql.streaming.checkpointFileManagerClass={FILE_MANAGER}",
)
# Classes that a JVM maps instead of reading them; `tests.java_archive` makes it.
ARCHIVE = ROOT / "build" / "spark.jsa"
NO_ARCHIVE_LOG = "-Xlog:cds*=off"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def java_options() -> str:
    """Return the options of a JVM on this machine, for SPARK_SUBMIT_OPTS."""
    # If the file that is named does not exist, a JVM uses no archive at all, not even the one that comes with Java.
    archive = (NO_ARCHIVE_LOG, f'"-XX:SharedArchiveFile={ARCHIVE}"') if ARCHIVE.exists() else ()
    return " ".join((*JAVA_OPTIONS, *archive))


def lend(monkeypatch: pytest.MonkeyPatch, command: ModuleType, session: Callable[[], Any]) -> None:
    """Let a command use a session of the tests: stopping one of its own would stop theirs."""

    @contextmanager
    def lend_session(*_arguments: Any, **_options: Any) -> Iterator[Any]:
        yield session()

    monkeypatch.setattr(command, "local_spark", lend_session)


def local_builder(folder: Path) -> Any:
    """Return the builder of a session on this machine, whose files are in a folder."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", str(PARTITIONS))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
    )


# Spark waits ten seconds, which no setting changes, until a Python process that it starts connects. This is before any
# code of ours runs, and a busy machine may need longer.
NOT_CONNECTED = "Python worker failed to connect back"

# A cancelled task's worker may be closed when another task has it already, as in SPARK-54217: the messages of Spark
# 3.5, of which the second one comes from a read that waits, and of later ones. A worker that died has other messages.
_CLOSED = (
    "java.net.SocketException: Socket is closed",
    "java.net.SocketException: Socket closed",
    "java.nio.channels.CancelledKeyException",
    "java.nio.channels.ClosedChannelException",
)


def let_pass(item: pytest.Item) -> None:
    """Ignore warnings of PySpark itself about sockets and pandas, and repeat a test whose worker it gave up."""
    item.add_marker(pytest.mark.flaky(reruns=5, reruns_delay=2, only_rerun=[NOT_CONNECTED, *_CLOSED]))
    item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
    item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))
    item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"))
    item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


def since_spark(version: str, what: str) -> pytest.MarkDecorator:
    """Skip a test of what Spark itself has only since a version, where an older one is installed."""
    return pytest.mark.skipif(tuple(map(int, version.split("."))) > SPARK, reason=f"{what} is new in Spark {version}")


def leave_to_ci(item: pytest.Item) -> None:
    """Mark a test as slow that repeats another one through Connect or on a server, unless it is marked `every_way`.

    What differs there is the way to Spark and to the functions, and a few tests go all ways of these.
    """
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    is_another_way = parameters.get("spark") == "connect" or parameters.get("functions") == "remote"
    if is_another_way and item.get_closest_marker("every_way") is None:
        item.add_marker(pytest.mark.slow)


def has_spark() -> bool:
    """Return whether PySpark brings Spark's own engine, and not only the client of Connect."""
    import pyspark

    return (Path(pyspark.__file__).parent / "jars").is_dir()


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A classic session, and the address of a Connect server in the same JVM, with the sessions of it that were closed.

    Their state store holds state tables.
    """
    if not has_spark():
        from pysail.spark import SparkConnectServer
        from pyspark.sql import SparkSession

        server = SparkConnectServer("127.0.0.1", 0)
        server.start()
        session = SparkSession.builder.remote("sc://{}:{}".format(*server.listening_address)).getOrCreate()
        yield {"classic": session}
        session.stop()
        server.stop()
        return
    folder = tmp_path_factory.mktemp("spark")
    port = free_port()
    # The workers find foldflight and what is on the path of these tests, and not the tests: what they need of those
    # must travel with the plan.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "service"), *([before] if before else [])])
    builder = (
        local_builder(folder)
        .appName("foldflight tests")
        .config(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    )
    if SPARK < (4, 0):
        builder = builder.config("spark.sql.ansi.enabled", "true")  # the default of later versions
    else:  # the package of 3.5 has no Connect server
        builder = (
            builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", str(port))
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    server = {"connect": f"sc://127.0.0.1:{port}", "closed": []} if SPARK >= (4, 0) else {}
    yield {"classic": spark, **server}
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
    if "connect" not in sessions:
        pytest.skip("Spark Connect needs Spark 4.0; sessions of Sail are of one kind")
    from pyspark.sql.connect.session import SparkSession

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # as a process that only knows Connect has it
    session = SparkSession.builder.remote(sessions["connect"]).create()
    yield session
    session.client.close()
    # In PySpark 4.0 a session takes a lock when it is garbage collected. If this happens in a thread that the holder of
    # the lock has just started, both wait for ever. A closed session is therefore referenced until the process ends.
    sessions["closed"].append(session)


@pytest.fixture
def rows_of() -> Callable[[Any], list[tuple[Any, ...]]]:
    """Collect a DataFrame as sorted tuples."""

    def collect(df: Any) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in df.collect()), key=repr)

    return collect
