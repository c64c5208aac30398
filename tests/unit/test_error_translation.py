"""Every error of Flight becomes an error whose class tells the caller what to do next."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from foldflight import connect
from foldflight.client.flight_errors import translate_error
from foldflight.client.flight_transport import Guard
from foldflight.errors import FunctionError, RejectedError, RetryableError
from foldflight.exchange.encoding import encode_error
from foldflight.server.error_translation import ERROR_BYTES_MAX, to_flight_error

URL = "grpc://127.0.0.1:1"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (fl.FlightUnavailableError("refused"), RetryableError, "UNREACHABLE"),
        (fl.FlightCancelledError("RST_STREAM"), RetryableError, "UNREACHABLE"),
        (fl.FlightInternalError("Received RST_STREAM with error code 2"), RetryableError, "UNREACHABLE"),
        (OSError("bare"), RetryableError, "UNREACHABLE"),
        (fl.FlightTimedOutError("deadline"), RetryableError, "DEADLINE"),
        (fl.FlightUnauthenticatedError("no"), RejectedError, "UNAUTHENTICATED"),
        (fl.FlightUnauthorizedError("no"), RejectedError, "UNAUTHENTICATED"),
        (fl.FlightServerError("something else"), RejectedError, "BAD_FRAME"),
        (pa.ArrowNotImplementedError("no such method"), RejectedError, "BAD_FRAME"),
        (pa.ArrowInvalid("not IPC"), RejectedError, "BAD_FRAME"),
        (pa.ArrowInvalid("SERVER: Received message larger than max (9 vs. 4)"), RejectedError, "LIMIT"),
    ],
)
def test_flight_errors_are_sorted(error: Exception, kind: type[Exception], code: str) -> None:
    """Each error of the transport is classified as retryable or not, and names the server."""
    translated_error = translate_error(error, url=URL, deadline_s=5)
    assert isinstance(translated_error, kind)
    assert translated_error.code == code  # type: ignore[attr-defined]
    assert URL in str(translated_error)


@pytest.mark.parametrize(
    ("url", "message", "remedy"),
    [
        ("grpc://h:1", "UNAVAILABLE: ipv4:1.2.3.4:1: Socket closed", "--tls-ca"),
        ("grpc+tls://h:1", "UNAVAILABLE: ipv4:1.2.3.4:1: Socket closed", "--tls-cert"),
        ("grpc://h:1", "Failed to connect to remote host: Connection refused", "/readyz"),
        ("grpc://h", "Failed to connect to remote host: Connection refused", "grpc://h:8815"),
        ("grpc+tls://h:1", "Failed to connect to remote host: Connection refused", "logs `ready`"),
        ("grpc+tls://h:1", "SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed", "--tls-ca"),
        ("grpc+tls://h:1", "Peer name h is not in peer certificate", "other names"),
        ("grpc+tls://h:1", "SSL_ERROR_SSL: error:0A00010B:SSL routines::wrong version number", "grpc://"),
    ],
)
def test_a_failed_connection_is_an_error_that_says_what_to_do(url: str, message: str, remedy: str) -> None:
    """A failed handshake says which option to change, a refused connection what to wait for."""
    error = fl.FlightUnavailableError(f"Flight returned unavailable error, with message: {message}")
    translated_error = translate_error(error, url=url, deadline_s=1)
    assert isinstance(translated_error, RetryableError)
    assert remedy in translated_error.message.partition("; ")[2]
    assert "Flight returned" not in translated_error.message


def test_another_service_of_grpc_is_told_from_a_server() -> None:
    """Who took the health port, or any port of gRPC, is told so, and which port to call. The server has no methods."""
    other = grpc.server(ThreadPoolExecutor(1))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    try:
        with pytest.raises(RejectedError, match=r"BAD_FRAME.*Method not found.*health_port.*8815"):
            connect(f"grpc://127.0.0.1:{port}")["total"]
    finally:
        other.stop(None).wait()


def test_our_own_cancellation_is_a_deadline() -> None:
    """A cancellation by the watchdog is a deadline, not a lost server."""
    error = translate_error(fl.FlightCancelledError("cancelled"), url=URL, deadline_s=2.5, is_expired=True)
    assert isinstance(error, RetryableError)
    assert error.code == "DEADLINE"
    assert "2.5 s" in error.message


def test_errors_that_are_not_of_flight_stay() -> None:
    """Bugs and interrupts are not converted to transport errors."""
    error = KeyError("bug")
    assert translate_error(error, url=URL, deadline_s=1) is error


def test_the_servers_error_comes_through() -> None:
    """The server's own error takes precedence over the gRPC status."""
    error_sent = FunctionError("USER_CODE", "boom", function="f", slot=3, row="x=1", trace="line 1")
    for carrier in (fl.FlightServerError, fl.FlightInternalError, fl.FlightUnavailableError):
        error = translate_error(carrier("status", encode_error(error_sent)), url=URL, deadline_s=1)
        assert isinstance(error, FunctionError)
        assert (error.code, error.function, error.slot, error.row) == ("USER_CODE", "f", 3, "x=1")


def test_large_errors_are_cut_to_fit_and_keep_the_essence() -> None:
    """Code, function, slot and the end of the trace are kept; the whole fits into the trailers."""
    trace = "\n".join(f"  File f.py, line {line}, in deep" for line in range(5000))
    error_sent = FunctionError(
        "USER_CODE", "m" * 50_000, function="f", slot=3, row="r" * 50_000, trace=trace, story=("s",) * 500
    )
    carrier = to_flight_error(error_sent)
    assert len(carrier.extra_info) <= ERROR_BYTES_MAX
    assert len(str(carrier)) < 1000
    error = translate_error(carrier, url=URL, deadline_s=1)
    assert isinstance(error, FunctionError)
    assert (error.code, error.function, error.slot) == ("USER_CODE", "f", 3)
    assert error.trace is not None
    assert error.trace.endswith("line 4999, in deep")


def test_large_errors_in_any_script_fit() -> None:
    """Text of several bytes a character is cut by bytes, not by characters."""
    error_sent = FunctionError("USER_CODE", "漢" * 5000, function="字" * 5000, row="🦜" * 5000, trace="é" * 5000)
    assert len(to_flight_error(error_sent).extra_info) <= ERROR_BYTES_MAX


def test_guard_cancels_an_overdue_step_once() -> None:
    """A step that exceeds its deadline is cancelled once; other steps and pauses between steps are not."""
    cancellations: list[bool] = []
    guard = Guard(1000.0, lambda: cancellations.append(True))
    try:
        guard.look(time.monotonic() + 5000)
        assert not guard.expired
        with guard:
            guard.look(time.monotonic() + 900)
            assert not cancellations
            guard.look(time.monotonic() + 1001)
            guard.look(time.monotonic() + 1002)
        assert (guard.expired, cancellations) == (True, [True])
    finally:
        guard.close()
