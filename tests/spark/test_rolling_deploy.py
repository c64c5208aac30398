"""A stream over a fleet whose servers are replaced, one after the other, by servers with other code."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.client import close_connections
from foldflight.server.run.lifecycle import serving
from foldflight.spark import group_by
from tests.ports import free_port
from tests.spark.conftest import answers
from tests.spark.test_stream import Stream
from tests.wire.kit import eventually, sum_with_factor

ROWS = 40


class Fleet:
    """Servers on fixed ports, each of which is replaced by one with other code."""

    def __init__(self, size: int) -> None:
        self.ports = [free_port() for _ in range(size)]
        self._servers = [ExitStack() for _ in self.ports]

    @property
    def url(self) -> str:
        return ",".join(f"grpc://127.0.0.1:{port}" for port in self.ports)

    def deploy(self, place: int, factor: int) -> None:
        """Stop the server at a place, and start one with the code of a factor on its port."""
        self._servers[place].close()
        server_context = serving(sum_with_factor(factor), port=self.ports[place], state_keys="one key of the fleet")
        server = self._servers[place].enter_context(server_context)
        assert eventually(lambda: answers(server.url), timeout_s=60)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        close_connections()


@pytest.mark.slow
def test_a_stream_goes_through_a_rolling_deployment(classic: SparkSession, tmp_path: Path) -> None:
    """Each epoch is folded by one code: by the old one before the deployment, by the new one after it."""
    fleet = Fleet(2)
    try:
        for place in range(2):
            fleet.deploy(place, 1)
        total = connect(fleet.url)["summing"]("amount")
        stream = Stream(classic, tmp_path, lambda df: group_by(df, "customer", buckets=1).agg(total=total))
        before = {"ann": 0, "bob": 0}
        factors = []

        def run(epochs: int) -> None:
            for _ in range(epochs):
                row: dict[str, Any] = {"op": None, "qty": None, "x": None, "amount": 1}
                stream.write([{**row, "customer": name} for name in before for _ in range(ROWS)])
            for changes in stream.run():
                result = {change["customer"]: change["total"] for change in changes}
                added_factors = {(result[name] - before[name]) / ROWS for name in before}
                assert len(added_factors) == 1, "one epoch was folded by two codes"
                factors.append(added_factors.pop())
                before.update(result)

        run(2)
        assert factors == [1, 1]
        fleet.deploy(0, 2)
        run(4)
        assert set(factors[2:]) <= {1, 2}
        fleet.deploy(1, 2)
        run(2)
        assert factors[6:] == [2, 2]
    finally:
        fleet.close()
