"""The interface of transports, which is the same embedded and over Flight."""

from __future__ import annotations

from typing import Protocol

from foldflight.client.connection import Resolve
from foldflight.client.exchange import OpenExchange
from foldflight.exchange.frames import FunctionInfo, Open, Opened


class Transport(Protocol):
    """A connection to functions. It can be pickled, so that the workers of an engine can use it.

    Attributes:
        otlp_endpoint: The collector to which spans are sent; None: there are no spans.
    """

    otlp_endpoint: str | None

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return the descriptions of all functions, sorted by name.

        Args:
            look: Whether to determine how each function is folded. This creates an instance of each class and inspects
                its code. Servers did so at their start, and always report it.
        """

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened of an exchange without opening it."""

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002
        """Open an exchange.

        Args:
            open: The frame that opens it.
            resolve: For `Open.keeps_views`: answers questions for entries of views, within any operation of the
                exchange. Its errors are raised by that operation.
        """
