"""Logging of clients: with the configuration of the application, or to standard error if there is none."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["log_event", "set_up"]


def set_up(name: str, level: int) -> logging.Logger:
    """Return the logger of this name. If logging is not configured, it writes to standard error from `level` on.

    Spark stores the standard error of its Python workers with that of the executor.
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
    text = " ".join([event, *(f"{key}={_shown(value)}" for key, value in fields.items())])
    logger.log(level, "%s", text, extra={"event": event, **fields})


def _shown(value: object) -> str:
    text = str(value)
    return text if text and not set(text) & set(' "=\n') else json.dumps(text, ensure_ascii=False)
