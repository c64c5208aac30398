"""PostgreSQL with its changes, a broker, and Spark with Kafka's jars: one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.change_data.broker import private_broker
from tests.change_data.modes import MODES, WAYS
from tests.change_data.source import SERVER, Source
from tests.change_data.workload import BEFORE
from tests.maven import MISSING, client
from tests.postgres import MISSING as NO_POSTGRES
from tests.postgres import private_postgres, programs
from tests.spark_process import SparkProcess, spark_process

HERE = Path(__file__).parent
SETTINGS = {"spark.sql.timeType.enabled": "true"}  # for aggregates of Spark over TIME, as keys= needs them
ENGINES = {name: mode.engine for name, mode in MODES.items()} | WAYS


@pytest.fixture(scope="session")
def parts() -> None:
    """Skip tests without the programs they need; `test_the_programs_that_no_package_brings_are_installed` fails."""
    if client() is None:
        pytest.skip(MISSING)
    if programs() is None:
        pytest.skip(NO_POSTGRES)


@pytest.fixture(scope="session")
def source(parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    """A database whose connectors have sent its snapshot."""
    folder = tmp_path_factory.mktemp("source")
    with (
        private_postgres(**SERVER) as url,
        private_broker() as broker,
        closing(Source(url, folder, broker, ENGINES)) as source,
    ):
        source.run([(HERE / "schema.sql").read_text(), *BEFORE])
        with source.connected():
            yield source


@pytest.fixture(scope="session")
def spark(parts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkProcess]:
    """A driver of Spark."""
    with spark_process(tmp_path_factory.mktemp("spark"), HERE / "jars-spark.txt", SETTINGS) as process:
        yield process
