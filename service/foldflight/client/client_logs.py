"""Logging of clients: with the configuration of the application, or to standard error if there is none."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foldflight.functions.author.context import LogRecord
from foldflight.shipping.secrets import masked_text

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


def set_up_logger(name: str, level: int) -> logging.Logger:
    """Return the logger of this name. If logging is not configured, it writes to standard error from `level` on.

    Spark stores the standard error of its Python workers with the executor's.
    """
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
    return logger


def log_event(logger: logging.Logger, level: int, event: str, fields: Mapping[str, Any]) -> None:
    """Log an event with its fields, as `key=value` in the text and as attributes of the record."""
    text = " ".join([event, *(f"{key}={_display_text(value)}" for key, value in fields.items())])
    logger.log(level, "%s", text, extra={"event": event, **fields})


def log_records(records: Sequence[LogRecord], group_of: Callable[[int], Mapping[str, Any]] | None = None) -> None:
    """Log the lines of functions under `foldflight.functions.<function>`, with the keys of their groups.

    Args:
        records: Lines logged by functions.
        group_of: Returns the keys of a slot. None: there are no groups.
    """
    if not records:
        return  # so that nothing is set up
    parent = set_up_logger("foldflight.functions", logging.INFO)
    for record in records:
        fields = dict(record.fields)
        if record.slot is not None and group_of is not None:
            fields |= {key: repr(value) for key, value in group_of(record.slot).items()}
        text = masked_text(" ".join([record.message, *(f"{key}={value}" for key, value in fields.items())]))
        logger = parent.getChild(record.function) if record.function else parent
        logger.log(_LEVELS.get(record.level, logging.INFO), "%s", text)


def _display_text(value: object) -> str:
    text = str(value)
    return text if text and not set(text) & set(' "=\n') else json.dumps(text, ensure_ascii=False)
