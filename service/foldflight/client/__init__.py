"""The client: transports to functions, embedded or over Flight, with one interface."""

from __future__ import annotations

from foldflight.client.connect import connect
from foldflight.client.embedded import EmbeddedTransport
from foldflight.client.exchange import OpenExchange
from foldflight.client.flight import FlightTransport, close_connections
from foldflight.client.functions import Aggregate, FunctionHandle, Functions
from foldflight.client.transport import Transport
from foldflight.client.uses import Use, UseMember, uses_in

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
