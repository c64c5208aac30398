"""What a transport offers: the same interface embedded and over Flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from foldflight.client.exchange import OpenExchange
    from foldflight.exchange.frames import FunctionInfo, Open, Opened

__all__ = ["Transport"]


class Transport(Protocol):
    """A way to reach functions; picklable, so that an engine's workers can carry it."""

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return what is served, by name.

        Args:
            look: Whether to find out how each function is folded, which makes an instance of its class and looks at
                its code. Servers have done so when they started, and tell in any case.
        """

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return what an exchange would be opened with, without opening it."""

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        """Open an exchange."""
