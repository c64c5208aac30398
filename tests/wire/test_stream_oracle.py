"""The streams of tests/laws/test_stream_oracle.py, folded on a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given

from examples import weighted_avg
from foldflight.client import FlightTransport, close_connections
from foldflight.server.run.lifecycle import serving
from tests.effort import examples
from tests.laws.test_stream_oracle import Case, cases, check
from tests.wire.kit import DEADLINE_S


@pytest.fixture(scope="module")
def remote() -> Iterator[FlightTransport]:
    """A transport to a server with the functions of the streams."""
    with serving(weighted_avg, http_port=0) as server:
        yield FlightTransport([server.url], deadline_s=DEADLINE_S)
    close_connections()


@examples(40)
@given(case=cases())
def test_every_epoch_of_a_random_stream_equals_the_model_remotely(remote: FlightTransport, case: Case) -> None:
    """Every epoch on a server equals the model."""
    check(remote, case)
