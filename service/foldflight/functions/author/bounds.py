"""The bounds of functions that wait for something outside: how many calls at once, for how long, how often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from foldflight.errors import RejectedError

_CONCURRENCY_MAX = 4096
_BATCH_MAX = 65536


@dataclass(frozen=True)
class CallBounds:
    """The bounds of an `async def` function. They hold for a process, over all of its exchanges.

    Args:
        concurrency: The number of calls that are open at once.
        batch: The number of rows, or of groups, of a call, at most; its arguments are lists. None: a call has one row.
        batch_wait_s: The time for which a call waits for further rows if it has fewer, in seconds.
        timeout_s: The time after which a call is cancelled, in seconds.
        retries: How often a call is repeated after an error that may pass.
        rate: The number of calls that begin within a second. None: no bound.
    """

    concurrency: int = 64
    batch: int | None = None
    batch_wait_s: float = 0.005
    timeout_s: float = 30.0
    retries: int = 3
    rate: float | None = None

    @property
    def rows_at_once(self) -> int:
        """The number of rows that a process evaluates at once."""
        return self.concurrency * (self.batch or 1)


def bounds_of(function: str, is_async: bool, **given: Any) -> CallBounds | None:
    """Return the bounds of a function; None for one that is not async.

    Args:
        function: Its name, for errors.
        is_async: Whether it is `async def`.
        given: The fields of `CallBounds` as the author gave them; None stands for the default.

    Raises:
        RejectedError: SIGNATURE, for a bound out of its range, and for any bound of a function that is not async.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if not is_async:
        if chosen:
            name, value = next(iter(chosen.items()))
            raise RejectedError(
                "SIGNATURE",
                f"{function} is declared {name}={value!r} and is no async def, so none of its calls waits; write async "
                f"def, or drop {name}",
                function=function,
            )
        return None
    for name, value in chosen.items():
        expected = _misfit(name, value)
        if expected:
            raise RejectedError(
                "SIGNATURE", f"{function} is declared {name}={value!r}; give {expected}", function=function
            )
    return CallBounds(**chosen)


def _misfit(name: str, value: Any) -> str:
    """Return a sentence about what a bound must be; empty if the value is fine."""
    most = {"concurrency": _CONCURRENCY_MAX, "batch": _BATCH_MAX, "retries": 100}.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if most is not None:
        least = 0 if name == "retries" else 1
        fits = is_number and isinstance(value, int) and least <= value <= most
        return "" if fits else f"a whole number from {least} to {most}"
    least_s = "0 or more" if name == "batch_wait_s" else "more than 0"
    fits = is_number and math.isfinite(value) and (value > 0 or (value == 0 and name == "batch_wait_s"))
    return "" if fits else f"a number, {least_s}"
