"""Translate exceptions of Flight to errors of foldflight, on the client."""

from __future__ import annotations

from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange.encoding import decode_error

_LOST = (fl.FlightUnavailableError, fl.FlightCancelledError, fl.FlightInternalError, pa.ArrowCancelled)
_TEXT_MAX = 300
_TLS = "grpc+tls://"
_PREAMBLE = "Flight returned unavailable error, with message: "
# What gRPC says when a message is far beyond message_bytes_max, so that the server takes no more of it.
_TOO_LARGE = "Received message larger than max"
# gRPC does not say which setting is wrong: what it says, for which scheme, and what to change.
_REMEDIES = (
    (
        "certificate verify failed",
        _TLS,
        (
            "this client does not trust the authority that signed the server's certificate; name the authority's "
            "certificates with tls_ca=... (--tls-ca in commands)"
        ),
    ),
    (
        "is not in peer certificate",
        _TLS,
        (
            "the server's certificate is for other names; connect to one of them, or give the server a certificate "
            "with this name"
        ),
    ),
    ("wrong version number", _TLS, "the server seems to have no TLS; if that is intended, write grpc://"),
    (
        "Socket closed",
        _TLS,
        (
            "if the server demands certificates of clients, give tls_cert=... and tls_key=... (--tls-cert, --tls-key "
            "in commands), signed by an authority that it trusts"
        ),
    ),
    (
        "Connection refused",
        "grpc",
        (
            "nothing listens there; a server that starts does so after it has loaded its functions: wait until it logs "
            "`ready`, or until /readyz of its HTTP port answers 200"
        ),
    ),
    (
        "Socket closed",
        "grpc://",
        (
            "the server ended, or it uses TLS: then write grpc+tls:// and name its authority with tls_ca=... (--tls-ca "
            "in commands)"
        ),
    ),
    (
        "Method not found",
        "grpc",
        (
            "another gRPC service listens there, such as a server's health service (setting health_port, 8816 by "
            "default); clients call its port of Arrow Flight (setting port, 8815 by default)"
        ),
    ),
)


def translate_error(error: BaseException, *, url: str, deadline_s: float, is_expired: bool = False) -> BaseException:
    """Return the error to raise instead of `error`.

    Args:
        error: The exception of a Flight call.
        url: The server that was called.
        deadline_s: The deadline of the call, for the message.
        is_expired: Whether the watchdog of this client cancelled the call.

    Returns:
        BaseException: The error of the server if it sent one; UNREACHABLE if the server is gone (connection refused,
        stream reset, or cancelled by the other side); DEADLINE if the call took too long; `error` itself if it does not
        come from Flight.
    """
    if isinstance(error, FoldflightError):
        return error
    server_error = decode_error(error.extra_info) if isinstance(error, fl.FlightError) and error.extra_info else None
    if server_error is not None:
        return server_error
    if is_expired or isinstance(error, fl.FlightTimedOutError):
        return RetryableError("DEADLINE", f"{url} did not answer within {deadline_s:g} s")
    reason = _first_line(error)
    if isinstance(error, (fl.FlightUnauthenticatedError, fl.FlightUnauthorizedError)):
        return RejectedError(
            "UNAUTHENTICATED",
            f"{url} does not accept the token of this client: {reason}; pass token=... (--token in commands)",
        )
    if _TOO_LARGE in reason:
        return RejectedError(
            "LIMIT", f"{url} does not accept a message of this size: {reason}", limit="message_bytes_max"
        )
    if isinstance(error, _LOST) or (isinstance(error, OSError) and not isinstance(error, fl.FlightError)):
        return RetryableError("UNREACHABLE", f"{url} is not reachable or was lost: {reason}{_remedy(reason, url)}")
    if isinstance(error, (fl.FlightError, pa.ArrowException)):
        return RejectedError(
            "BAD_FRAME", f"{url} does not answer like a foldflight server: {reason}{_remedy(reason, url)}"
        )
    return error


def _remedy(reason: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "grpc" and parts.port is None:
        return f"; the URL has no port, so gRPC takes 443; the default of a server is 8815: {url}:8815"
    for phrase, scheme, remedy in _REMEDIES:
        if phrase in reason and url.startswith(scheme):
            return f"; {remedy}"
    return ""


def _first_line(error: BaseException) -> str:
    text = str(error).split(". gRPC client debug context", 1)[0].removeprefix(_PREAMBLE)
    return (text.splitlines() or [type(error).__name__])[0][:_TEXT_MAX]
