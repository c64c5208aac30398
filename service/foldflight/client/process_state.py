"""The state that all transports of this process share: compiled functions, and the number and scope of the task."""

from __future__ import annotations

import uuid
from typing import Final

from foldflight.fold.accelerator import Accelerator, accelerator_of

PROGRAMS: Final[Accelerator] = accelerator_of("user")
"""Compiled functions."""
PROGRAMS_AT_ONCE: Final[Accelerator] = accelerator_of("user", hot_rows=0)
"""Compiles at the first row, for checks of compiled code."""

_first_turns: Final[list[int]] = []


_scopes: Final[list[str]] = [""]


def begin_task(number: int, scope: str = "") -> None:
    """Choose servers by the number of a task, from its next exchange on.

    The tasks of an engine begin together, in processes that do not know of each other. By successive numbers they
    spread over all servers; by random ones, two tasks would share one of two servers half the time.

    Args:
        number: The number.
        scope: `Open.call_scope` of the exchanges of the task.
    """
    _first_turns[:] = [number]
    _scopes[:] = [scope]


def call_scope() -> str:
    """Return the scope of the task that runs, or else a new one: equal calls of two exchanges are not the same call."""
    return _scopes[0] or uuid.uuid4().hex


def take_first_turn() -> int | None:
    """Return the number of the task that has begun, once; None if it is known already or there is no task."""
    return _first_turns.pop() if _first_turns else None
