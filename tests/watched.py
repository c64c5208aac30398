"""A transport that tells a test what an engine does with its exchanges, for claims about costs and bounds."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from foldflight.client import Aggregate, OpenExchange, Transport
from foldflight.exchange.frames import Open, Opened

__all__ = ["Watched", "watched"]

Seen = Callable[[str, Any, Any], object]

GIVING = ("states", "entries", "chunk", "forget")
ANSWERING = ("row_outputs", "initial_outputs", "results")
ENDING = ("close", "cut")

_transports: weakref.WeakValueDictionary[int, Watched] = weakref.WeakValueDictionary()


class Watched:
    """Passes everything on to another transport. Its pickle stands for this object, in this process.

    Args:
        transport: The transport.
        seen: Called after each operation of an exchange with its name, with what the engine gives or, if the operation
            returns something, gets, and with the exchange. Also called before `describe`, with the Open and None, and
            for `wanted`, the entries of views that the server asks for.
        limits: Limits that are smaller than those of the server, by name.
    """

    otlp_endpoint = None

    def __init__(self, transport: Transport, seen: Seen = lambda *_: None, **limits: int) -> None:
        self._transport, self._seen, self._limits = transport, seen, limits
        _transports[id(self)] = self

    def infos(self, *, look: bool = False) -> Any:
        return self._transport.infos(look=look)

    def describe(self, open: Open) -> Opened:  # noqa: A002 (the frame's name)
        self._seen("describe", open, None)
        return self._limited(self._transport.describe(open))

    def open(self, open: Open, **options: Any) -> OpenExchange:  # noqa: A002 (the frame's name)
        if options.get("resolve") is not None:
            options["resolve"] = self._asking(options["resolve"])
        exchange: Any = self._transport.open(open, **options)
        self._seen("open", open, exchange)
        exchange.open_reply = self._limited(exchange.open_reply)
        for name in GIVING:
            setattr(exchange, name, self._giving(exchange, name))
        for name in ENDING:
            setattr(exchange, name, self._ending(exchange, name))
        for name in ANSWERING:
            setattr(exchange, name, self._answering(exchange, name))
        return exchange

    def _limited(self, open_reply: Opened) -> Opened:
        return dataclasses.replace(open_reply, limits=dataclasses.replace(open_reply.limits, **self._limits))

    def _giving(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def giving(given: Any, **options: Any) -> None:
            operation(given, **options)
            self._seen(name, given, exchange)

        return giving

    def _answering(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def answering(*given: Any) -> Any:
            answer = operation(*given)
            self._seen(name, answer, exchange)
            return answer

        return answering

    def _ending(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def ending() -> None:
            operation()
            self._seen(name, None, exchange)

        return ending

    def _asking(self, resolve: Any) -> Any:
        def asking(wanted: Any) -> Any:
            self._seen("wanted", wanted, None)
            return resolve(wanted)

        return asking

    def __reduce__(self) -> Any:
        return _of, (id(self),)


def _of(number: int) -> Watched:
    return _transports[number]


def watched(calls: Mapping[str, Aggregate], seen: Seen = lambda *_: None, **limits: int) -> dict[str, Aggregate]:
    """Return calls of one transport over a watched one."""
    (transport,) = {each.transport for each in calls.values()}
    through = Watched(transport, seen, **limits)
    return {name: dataclasses.replace(each, transport=through) for name, each in calls.items()}
