"""A transport that tells a test what an engine does with its exchanges, for claims about costs and bounds."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from foldflight.client import Aggregate, OpenExchange, Transport
from foldflight.exchange.frames import Open, Opened

__all__ = ["Watched", "watch_calls"]

Seen = Callable[[str, Any, Any], object]

GIVING = ("states", "entries", "chunk", "forget")
ANSWERING = ("row_outputs", "initial_outputs", "results")
ENDING = ("close", "cut")

_transports: weakref.WeakValueDictionary[int, Watched] = weakref.WeakValueDictionary()


class Watched:
    """Passes everything on to another transport. Its pickle stands for this object, in this process.

    Args:
        transport: The transport.
        observe: Called after each operation of an exchange with its name, its argument (or its result, if it has one)
            and the exchange. Also called before `describe`, with the Open and None, and, as `wanted`, when the server
            requests entries of views.
        limits: Limits that are smaller than the server's, by name.
    """

    otlp_endpoint = None

    def __init__(self, transport: Transport, observe: Seen = lambda *_: None, **limits: int) -> None:
        self._transport, self._observe, self._limits = transport, observe, limits
        _transports[id(self)] = self

    def infos(self, *, look: bool = False) -> Any:
        return self._transport.infos(look=look)

    def describe(self, open: Open) -> Opened:  # noqa: A002 (the frame's name)
        self._observe("describe", open, None)
        return self._with_limits(self._transport.describe(open))

    def open(self, open: Open, **options: Any) -> OpenExchange:  # noqa: A002 (the frame's name)
        if options.get("resolve") is not None:
            options["resolve"] = self._observe_request(options["resolve"])
        exchange: Any = self._transport.open(open, **options)
        self._observe("open", open, exchange)
        exchange.open_reply = self._with_limits(exchange.open_reply)
        for name in GIVING:
            setattr(exchange, name, self._observe_operation(exchange, name))
        for name in ENDING:
            setattr(exchange, name, self._observe_end(exchange, name))
        for name in ANSWERING:
            setattr(exchange, name, self._observe_answer(exchange, name))
        return exchange

    def _with_limits(self, open_reply: Opened) -> Opened:
        return dataclasses.replace(open_reply, limits=dataclasses.replace(open_reply.limits, **self._limits))

    def _observe_operation(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def give(argument: Any, **options: Any) -> None:
            operation(argument, **options)
            self._observe(name, argument, exchange)

        return give

    def _observe_answer(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def answer(*arguments: Any) -> Any:
            result = operation(*arguments)
            self._observe(name, result, exchange)
            return result

        return answer

    def _observe_end(self, exchange: Any, name: str) -> Any:
        operation = getattr(exchange, name)

        def end() -> None:
            operation()
            self._observe(name, None, exchange)

        return end

    def _observe_request(self, resolve: Any) -> Any:
        def ask(request: Any) -> Any:
            self._observe("wanted", request, None)
            return resolve(request)

        return ask

    def __reduce__(self) -> Any:
        return _of, (id(self),)


def _of(number: int) -> Watched:
    return _transports[number]


def watch_calls(calls: Mapping[str, Aggregate], observe: Seen = lambda *_: None, **limits: int) -> dict[str, Aggregate]:
    """Return calls of one transport over a watched one."""
    (transport,) = {each.transport for each in calls.values()}
    through = Watched(transport, observe, **limits)
    return {name: dataclasses.replace(each, transport=through) for name, each in calls.items()}
