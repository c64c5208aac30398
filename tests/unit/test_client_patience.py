"""A user who waits for servers is told why, and for how much longer."""

from __future__ import annotations

import logging

import pytest

from foldflight.client.failover import Patience
from foldflight.errors import RetryableError

PROBLEM = RetryableError("UNREACHABLE", "grpc://a:1 is not reachable or was lost: refused")


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def rest_until(self, until_s: float) -> None:
        self.time_s = until_s


def test_a_long_wait_is_told_from_the_third_second_on(caplog: pytest.LogCaptureFixture) -> None:
    """One rest of 25 seconds logs a warning after 3, 13 and 23 seconds, with the servers, the rest and the reason."""
    clock = Clock()
    patience = Patience(["grpc://a:1", "grpc://b:1"], 60, clock)
    with caplog.at_level(logging.WARNING, "foldflight.client"):
        patience.rest_until(125, PROBLEM)
    assert [record.getMessage() for record in caplog.records] == [
        f"waiting for grpc://a:1, grpc://b:1, {left} s left (patience_s=60): UNREACHABLE: {PROBLEM.message}"
        for left in (57, 47, 37)
    ]
    assert clock.time_s == 125


def test_a_short_wait_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Rests that end within three seconds log nothing, and patience ends when it was said to."""
    clock = Clock()
    patience = Patience(["grpc://a:1"], 60, clock)
    with caplog.at_level(logging.WARNING, "foldflight.client"):
        for until_s in (101, 102.5, 103):
            patience.rest_until(until_s, PROBLEM)
    assert not caplog.records
    assert patience.lasts_until(159.9)
    assert not patience.lasts_until(160)
