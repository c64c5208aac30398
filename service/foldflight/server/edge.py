"""The server's error edge: every handler's error leaves as a Flight error that carries the taxonomy.

Only Flight's own error classes carry details to a client; any other exception would send it the server's traceback. The
truth is the encoded error in `extra_info`; the gRPC status is a hint for proxies.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow.flight as fl

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RetryableError
from foldflight.exchange.messages import encode_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from foldflight.server.ops.logs import Logger
    from foldflight.server.ops.metrics import Metrics

__all__ = ["ERROR_BYTES_MAX", "count", "edge", "to_flight_error"]

# gRPC sends the details twice, base64-encoded, next to the message, and clients start to drop trailers above 8 KiB.
ERROR_BYTES_MAX = 2400
_MESSAGE_CHARS_MAX = 700
_STATUS_CHARS_MAX = 200

P = ParamSpec("P")
R = TypeVar("R")


class _HasEdge(Protocol):
    metrics: Metrics
    logger: Logger


S = TypeVar("S", bound=_HasEdge)


def edge(handler: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a Flight handler so that only Flight errors with details leave it."""

    @functools.wraps(handler)
    def wrapped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return handler(self, *args, **kwargs)
        except FoldflightError as error:
            count(self.metrics, error)
            raise to_flight_error(error) from None
        except fl.FlightError:
            raise
        except Exception as error:
            error_id = uuid.uuid4().hex[:12]
            self.logger.exception("internal error", error_id=error_id, handler=handler.__name__)
            self.metrics.errors.labels("INVARIANT").inc()
            raise to_flight_error(internal_error(error, error_id)) from None

    return wrapped


def count(metrics: Metrics, error: FoldflightError) -> None:
    """Count an error that an engine is told."""
    metrics.errors.labels(error.code).inc()
    if error.limit is not None:
        metrics.limit_errors.labels(error.limit).inc()
    if isinstance(error, FunctionError) and error.function is not None:
        metrics.function_errors.labels(metrics.named(error.function), error.code).inc()


def internal_error(error: Exception, error_id: str) -> CorruptError:
    """Return what a client may know of a bug of ours: its kind, and the id under which the log has the rest."""
    return CorruptError(
        "INVARIANT",
        f"the server failed on its own account ({type(error).__name__}); its log has the traceback under error id "
        f"{error_id}",
    )


def to_flight_error(error: FoldflightError) -> fl.FlightError:
    """Return the Flight error for an error of the taxonomy, small enough for any gRPC client's trailers."""
    status = f"{error.code}: {error.message}"[:_STATUS_CHARS_MAX].encode("ascii", "replace").decode()
    return _status_class(error)(status, _encoded(error))


def _status_class(error: FoldflightError) -> Any:
    if error.code == "UNAUTHENTICATED":
        return fl.FlightUnauthenticatedError
    if error.code == "DEADLINE":
        return fl.FlightTimedOutError
    if isinstance(error, RetryableError):
        return fl.FlightUnavailableError
    if isinstance(error, CorruptError):
        return fl.FlightInternalError
    return fl.FlightServerError


@dataclasses.dataclass(frozen=True)
class _Budget:
    trace: int
    row: int
    steps: int
    message: int


_BUDGETS = (_Budget(1200, 400, 8, _MESSAGE_CHARS_MAX), _Budget(500, 200, 4, 400), _Budget(150, 60, 1, 120))


def _encoded(error: FoldflightError) -> bytes:
    """Encode the error, cutting its longest parts until it fits; the end of a trace says most, so that stays."""
    encoded = encode_error(error)
    for budget in _BUDGETS:
        if len(encoded) <= ERROR_BYTES_MAX:
            break
        encoded = encode_error(
            type(error)(
                error.code,
                _head(error.message, budget.message),
                function=_head(error.function, 100),
                slot=error.slot,
                row=_head(error.row, budget.row),
                trace=_tail(error.trace, budget.trace),
                story=tuple(step[:60] for step in error.story[-budget.steps :]),
            )
        )
    return encoded


def _head(text: Any, size: int) -> Any:
    return text if text is None or len(text) <= size else text[: size - 3] + "..."


def _tail(text: str | None, size: int) -> str | None:
    if text is None or len(text) <= size:
        return text
    tail = text[-size:]
    return "...\n" + tail.split("\n", 1)[-1] if "\n" in tail else "..." + tail
