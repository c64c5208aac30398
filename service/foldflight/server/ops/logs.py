"""The log of a server: one JSON object (or one console line) per event, with bound ids.

There is no global configuration. A logger is passed as a value, so two servers in one process have two logs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any, TextIO

import structlog

from foldflight.shipping.secrets import masked_text

Logger = structlog.typing.FilteringBoundLogger

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRET_WORDS = ("token", "secret", "password", "authorization", "state_key", "bundle_key")


def make_logger(stream: TextIO, *, log_format: str = "json", log_level: str = "info") -> Logger:
    """Make the logger of one server.

    Args:
        stream: The stream of the log. Each event is one line, which is flushed.
        log_format: `json` or `console`.
        log_level: Lowest level that is written: debug, info, warning or error.

    Returns:
        Logger: Bind ids to it: `logger.bind(exchange="...")`.
    """
    renderer: Any = (
        structlog.processors.JSONRenderer(default=str)
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    exceptions: list[Any] = [structlog.processors.format_exc_info] if log_format == "json" else []
    logger: Logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_secrets,
            *exceptions,
            renderer,
            _mask_secrets,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[log_level]),
        cache_logger_on_first_use=False,
    ).bind()
    return logger


@contextlib.contextmanager
def capture_python_logging(logger: Logger) -> Iterator[None]:
    """Write records of Python's logging, such as the compiler's, to the log of a server while the block runs.

    Use it only in a process that is a server, because Python's logging is global to the process.
    """
    root = logging.getLogger("foldflight")
    before = root.level, root.propagate
    handler = _Handler(logger)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.level, root.propagate = before


class _Handler(logging.Handler):
    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        self._logger.log(record.levelno, record.getMessage())


def _without_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the values of fields that are named like a secret, whatever their values are, except counts of tokens."""
    for key, value in event.items():
        is_count = key.lower().endswith("tokens") and str(value).isdecimal()  # the tokens of a model's answer
        if not is_count and any(word in key.lower() for word in _SECRET_WORDS):
            event[key] = "(not logged)"
    return event


def _mask_secrets(_logger: object, _method: str, line: Any) -> str:  # structlog has other types for what it passes
    """Replace the values of secrets wherever they stand, since clients of models put keys into their errors."""
    return masked_text(line)
