"""The client: transports to functions, embedded or over Flight, with one interface.

The names of `client.flight_transport` are imported when they are first used. It needs pyarrow.flight and protobuf, and
embedded use does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foldflight.client.connect import connect
from foldflight.client.embedded_transport import EmbeddedTransport
from foldflight.client.exchange import OpenExchange, Transport
from foldflight.client.functions import Aggregate, FunctionHandle, Functions, Use, UseMember, uses_in

if TYPE_CHECKING:
    from foldflight.client.flight_transport import FlightTransport, close_connections

__all__ = [
    "Aggregate",
    "EmbeddedTransport",
    "FlightTransport",
    "FunctionHandle",
    "Functions",
    "OpenExchange",
    "Transport",
    "Use",
    "UseMember",
    "close_connections",
    "connect",
    "uses_in",
]

_OF_FLIGHT = ("FlightTransport", "close_connections")


def __getattr__(name: str) -> Any:
    """Return a name of `foldflight.client.flight_transport`."""
    if name not in _OF_FLIGHT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from foldflight.client import flight_transport

    return getattr(flight_transport, name)
