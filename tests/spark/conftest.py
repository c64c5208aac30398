"""Embedded and remote functions. The Spark sessions come from tests/spark_sessions.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foldflight import connect
from foldflight.client import Functions, close_connections
from foldflight.errors import RetryableError
from tests.spark import spark_functions
from tests.spark_sessions import PARTITIONS, PROVIDER, leave_to_ci, let_pass
from tests.wire.kit import eventually

__all__ = ["PARTITIONS", "PROVIDER", "answers"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of PySpark itself, and leave out most tests that combine Spark Connect with a remote server.

    A Connect session and a remote server have nothing to do with each other; one test of both together is enough.
    """
    items[:] = [
        item for item in items if getattr(item, "originalname", "") == "test_random_rows" or not _is_corner(item)
    ]
    for item in items:
        if Path(__file__).parent in item.path.parents:
            let_pass(item)
            leave_to_ci(item)


def _is_corner(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    parameters = {} if callspec is None else callspec.params
    return (parameters.get("spark"), parameters.get("functions")) == ("connect", "remote")


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A Flight server with the functions of these tests, outside the processes of Spark's workers."""
    from foldflight.server.run.lifecycle import serving

    with serving(spark_functions, state_keys="a key for the spark tests") as server:
        # A machine that starts a JVM beside may be too busy for the first connection.
        assert eventually(lambda: answers(server.url), timeout_s=60)
        yield server.url
    close_connections()


def answers(url: str) -> bool:
    """Return whether a server can be asked."""
    try:
        connect(url)
    except RetryableError:
        return False
    return True


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
