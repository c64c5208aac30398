"""Translate exceptions of Flight to errors of foldflight, on the client."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.messages import decode_error

__all__ = ["translated"]

_LOST = (fl.FlightUnavailableError, fl.FlightCancelledError, fl.FlightInternalError, pa.ArrowCancelled)
_TEXT_MAX = 300
# What gRPC says when a message is far beyond message_bytes_max, so that the server takes no more of it.
_TOO_LARGE = "Received message larger than max"


def translated(error: BaseException, *, url: str, deadline_s: float, expired: bool = False) -> BaseException:
    """Return the error to raise instead of `error`.

    Args:
        error: The exception of a Flight call.
        url: The server that was called.
        deadline_s: The deadline of the call, for the message.
        expired: Whether the watchdog of this client cancelled the call.

    Returns:
        BaseException: The error of the server if it sent one; UNREACHABLE if the server is gone (connection refused,
        stream reset, or cancelled by the other side); DEADLINE if the call took too long; `error` itself if it does not
        come from Flight.
    """
    if isinstance(error, FoldflightError):
        return error
    sent = decode_error(error.extra_info) if isinstance(error, fl.FlightError) and error.extra_info else None
    if sent is not None:
        return sent
    if expired or isinstance(error, fl.FlightTimedOutError):
        return RetryableError("DEADLINE", f"{url} did not answer within {deadline_s:g} s")
    reason = _first_line(error)
    if isinstance(error, (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError)):
        return RejectedError("UNAUTHENTICATED", f"{url} does not accept the token of this client: {reason}")
    if _TOO_LARGE in reason:
        return RejectedError(
            "LIMIT", f"{url} does not accept a message of this size: {reason}", limit="message_bytes_max"
        )
    if isinstance(error, _LOST) or (isinstance(error, OSError) and not isinstance(error, fl.FlightError)):
        return RetryableError("UNREACHABLE", f"{url} is not reachable or was lost: {reason}")
    if isinstance(error, (fl.FlightError, pa.ArrowException)):
        return RejectedError("BAD_FRAME", f"{url} does not answer like a foldflight server: {reason}")
    return error


def _first_line(error: BaseException) -> str:
    text = str(error).split(". gRPC client debug context", 1)[0]
    return (text.splitlines() or [type(error).__name__])[0][:_TEXT_MAX]
