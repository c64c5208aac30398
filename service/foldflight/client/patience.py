"""Tell a user who waits for servers why, and for how much longer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from foldflight.client.logs import set_up
from foldflight.errors import RetryableError

_LOGGER: Final = "foldflight.client"
_FIRST_S: Final = 3.0  # most waits are shorter, and need no word
_NEXT_S: Final = 10.0


class Clock(Protocol):
    """A monotonic clock."""

    def now_s(self) -> float:
        """Return the current time, in seconds."""

    def rest_until(self, until_s: float) -> None:
        """Sleep until this time."""


class Patience:
    """Waits for servers, and logs a warning from the third second on, so that a notebook does not seem to hang.

    Args:
        urls: The servers that are waited for.
        patience_s: Longest wait, from now on.
        clock: Tells the time, and sleeps.
    """

    def __init__(self, urls: Sequence[str], patience_s: float, clock: Clock) -> None:
        self._urls = urls
        self._clock = clock
        self._patience_s = patience_s
        self._ends_s = clock.now_s() + patience_s
        self._told_next_s = clock.now_s() + _FIRST_S

    def lasts_until(self, until_s: float) -> bool:
        """Return whether the wait may go on until this time."""
        return until_s < self._ends_s

    def rest_until(self, until_s: float, problem: RetryableError) -> None:
        """Sleep until this time. A warning tells the error every ten seconds.

        Args:
            until_s: When servers are asked again, in seconds of the clock.
            problem: The last error.
        """
        while (now_s := self._clock.now_s()) < until_s:
            if now_s >= self._told_next_s:
                self._told_next_s = now_s + _NEXT_S
                set_up(_LOGGER, logging.WARNING).warning(
                    "waiting for %s, %.0f s left (patience_s=%g): %s: %s",
                    ", ".join(self._urls),
                    self._ends_s - now_s,
                    self._patience_s,
                    problem.code,
                    problem.message,
                )
            self._clock.rest_until(min(until_s, self._told_next_s))
