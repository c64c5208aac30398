"""Which errors of calls may pass, and how long to wait before the next call."""

from __future__ import annotations

import datetime
import email.utils
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

# Errors of code: the same call would raise them again.
_LASTING: Final = (
    *(TypeError, ValueError, LookupError, AttributeError, NameError, ImportError, ArithmeticError, AssertionError),
    *(NotImplementedError, SyntaxError, RecursionError),
)
_PASSING_STATUSES: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500
_STATUSES: Final = range(400, 600)
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 10.0


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of an exception, as the common clients keep it; None if it has none."""
    for source in (error, getattr(error, "response", None)):
        for name in ("status_code", "status", "code"):
            status = getattr(source, name, None)
            if isinstance(status, int) and status in _STATUSES:
                return status
    return None


def may_pass(error: BaseException) -> bool:
    """Return whether a call that raised this error may succeed if it is repeated."""
    if retry_after_s(error) is not None:
        return True
    status = status_of(error)
    if status is not None:
        return status >= _SERVER_ERROR or status in _PASSING_STATUSES
    return isinstance(error, Exception) and not isinstance(error, _LASTING)


def retry_after_s(error: BaseException, now: Callable[[], datetime.datetime] | None = None) -> float | None:
    """Return the seconds for which an error asks to wait: its `retry_after`, or a header Retry-After of its response.

    Args:
        error: The error.
        now: Returns the time in UTC, for headers with a date.
    """
    asked = getattr(error, "retry_after", None)
    if asked is None:
        for source in (error, getattr(error, "response", None)):
            asked = asked or _header(getattr(source, "headers", None))
    if isinstance(asked, (int, float)) and not isinstance(asked, bool):
        return max(float(asked), 0.0) if math.isfinite(asked) else None
    if not isinstance(asked, str):
        return None
    try:
        return _seconds(float(asked))
    except ValueError:
        pass
    try:
        at = email.utils.parsedate_to_datetime(asked)
    except ValueError:
        return None
    current = datetime.datetime.now(datetime.UTC) if now is None else now()
    return max((at.astimezone(datetime.UTC) - current).total_seconds(), 0.0)


def _seconds(asked: float) -> float | None:
    return max(asked, 0.0) if math.isfinite(asked) else None


def _header(headers: Any) -> Any:
    """Return the header Retry-After of any kind of headers; None if there is none."""
    if isinstance(headers, Mapping):
        return next((value for name, value in headers.items() if str(name).lower() == "retry-after"), None)
    get = getattr(headers, "get", None)
    return get("Retry-After") if callable(get) else None


def pause_s(attempts: int) -> float:
    """Return the time before the next call after this number of calls: it doubles, and varies by half.

    Rows that failed together should not come back together.
    """
    longest = min(_PAUSE_S * 2 ** (attempts - 1), _PAUSE_S_MAX)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
