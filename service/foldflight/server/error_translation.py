"""Translate exceptions of handlers to Flight errors, on the server.

Only the error classes of Flight can carry details; any other exception would send the traceback of the server. The
encoded error in `extra_info` is authoritative. The gRPC status is a hint for proxies.

Log lines and errors of functions have asterisks in the place of the server's secrets. The clients of models put keys
into their exceptions, and an engine keeps these in its own logs and tables.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import uuid
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RetryableError
from foldflight.exchange.encoding import encode_error
from foldflight.exchange.frames import Frame, Log
from foldflight.fold.failures import ERROR
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import Metrics
from foldflight.shipping.secrets import mask_of_texts


def without_secrets(reply: Frame) -> Frame:
    """Return an answer whose log lines, or errors of single rows or groups, have asterisks for secrets."""
    if isinstance(reply, Log):
        return _mask_log(reply, mask_of_texts())
    batch = getattr(reply, "batch", None)
    if batch is None or ERROR not in batch.schema.names:
        return reply
    index = batch.schema.get_field_index(ERROR)
    errors = batch.column(index)
    if errors.null_count == len(errors):
        return reply
    mask = mask_of_texts()
    masked_errors = [
        each and {name: None if text is None else mask(text) for name, text in each.items()}
        for each in errors.to_pylist()
    ]
    columns = batch.columns  # Arrow 15 cannot replace a column of a batch
    columns[index] = pa.array(masked_errors, errors.type)
    return dataclasses.replace(reply, batch=pa.record_batch(columns, schema=batch.schema))


def error_without_secrets(error: FunctionError) -> FunctionError:
    """Return the error of a function that ends an exchange, with asterisks for secrets."""
    mask = mask_of_texts()
    masked_error = copy.copy(error)
    masked_error.message, masked_error.args = mask(error.message), (mask(error.message),)
    masked_error.row, masked_error.trace = (text and mask(text) for text in (error.row, error.trace))
    masked_error.story = tuple(map(mask, error.story))
    return masked_error


def _mask_log(log: Log, mask: Callable[[str], str]) -> Log:
    records = [
        dataclasses.replace(
            each, message=mask(each.message), fields={name: mask(value) for name, value in each.fields.items()}
        )
        for each in log.records
    ]
    return Log(tuple(records))


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


def with_flight_errors(handler: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a Flight handler so that it raises only Flight errors with details."""

    @functools.wraps(handler)
    def translate_errors(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
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

    return translate_errors


def count(metrics: Metrics, error: FoldflightError) -> None:
    """Count an error that is sent to an engine."""
    metrics.errors.labels(error.code).inc()
    if error.limit is not None:
        metrics.limit_errors.labels(error.limit).inc()
    if isinstance(error, FunctionError) and error.function is not None:
        metrics.function_errors.labels(metrics.function_label(error.function), error.code).inc()


def internal_error(error: Exception, error_id: str) -> CorruptError:
    """Return the error for a client after an internal error: its class, and the id of its entry in the log."""
    return CorruptError(
        "INVARIANT",
        f"internal error of the server ({type(error).__name__}); its log has the traceback under error id {error_id}",
    )


def to_flight_error(error: FoldflightError) -> fl.FlightError:
    """Return the Flight error for an error of foldflight, small enough for the trailers of any gRPC client."""
    if isinstance(error, FunctionError):
        error = error_without_secrets(error)  # before it is shortened, which could leave a part of a secret
    status = f"{error.code}: {error.message}"[:_STATUS_CHARS_MAX].encode("ascii", "replace").decode()
    return _status_class(error)(status, _encode(error))


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


def _encode(error: FoldflightError) -> bytes:
    """Encode the error, and shorten its longest parts until it fits. The end of the trace is kept."""
    details = encode_error(error)
    for budget in _BUDGETS:
        if len(details) <= ERROR_BYTES_MAX:
            break
        details = encode_error(
            type(error)(
                error.code,
                _head(error.message, budget.message),
                function=_head(error.function, 100),
                slot=error.slot,
                row=_head(error.row, budget.row),
                trace=_tail(error.trace, budget.trace),
                story=tuple(step[:60] for step in error.story[-budget.steps :]),
                recorded=error.recorded,
            )
        )
    return details


def _head(text: Any, size: int) -> Any:
    return text if text is None or len(text) <= size else text[: size - 3] + "..."


def _tail(text: str | None, size: int) -> str | None:
    if text is None or len(text) <= size:
        return text
    tail = text[-size:]
    return "...\n" + tail.split("\n", 1)[-1] if "\n" in tail else "..." + tail
