"""Adding of group keys, which the server does not know, to the logs and errors of functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from foldflight.client.logs import set_up
from foldflight.errors import FunctionError
from foldflight.functions.author.context import LogRecord

__all__ = ["forward", "naming_group"]

_LEVELS = {
    "debug": 10,
    "info": 20,
    "warning": 30,
    "warn": 30,
    "error": 40,
    "exception": 40,
    "critical": 50,
    "fatal": 50,
}


@contextmanager
def naming_group(group_of: Callable[[int], dict[str, Any]]) -> Iterator[None]:
    """Add the group's keys to errors of functions.

    Args:
        group_of: Returns the keys of a slot.
    """
    try:
        yield
    except FunctionError as error:
        if error.slot is None or error.group is not None:
            raise
        raise error.with_group(group_of(error.slot)) from None


def forward(records: Sequence[LogRecord], group_of: Callable[[int], dict[str, Any]]) -> None:
    """Log records under `foldflight.functions.<function>`, with the keys of their groups.

    Args:
        records: Lines logged by functions.
        group_of: Returns the keys of a slot.
    """
    if not records:
        return
    ours = set_up("foldflight.functions", logging.INFO)
    for record in records:
        fields = dict(record.fields)
        if record.slot is not None:
            fields |= {key: repr(value) for key, value in group_of(record.slot).items()}
        text = " ".join([record.message, *(f"{key}={value}" for key, value in fields.items())])
        logger = ours.getChild(record.function) if record.function else ours
        logger.log(_LEVELS.get(record.level, logging.INFO), "%s", text)
