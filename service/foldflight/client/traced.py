"""Connections with spans: `exchange` for the first one of an exchange, `reopen` for later ones, and `barrier`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from foldflight.exchange.frames import Barrier, Chunk
from foldflight.tracing import SHORT_S, ids_of, tracer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from foldflight.client.connection import Connection
    from foldflight.exchange.answers import Answer
    from foldflight.exchange.frames import EngineFrame, Open
    from foldflight.functions.author.context import LogRecord
    from foldflight.tracing import TraceContext
    from foldflight.tracing.spans import Span, Tracer

    Dial: TypeAlias = Callable[[str, Open], Connection]

__all__ = ["traced_dial"]


def traced_dial(dial: Dial, endpoint: str, versions: Sequence[str] = ()) -> Dial:
    """Return a function that opens the connections of one exchange, each with its span.

    Args:
        dial: Opens a connection.
        endpoint: The collector.
        versions: The version of the function of each call or step, if they are known here.
    """
    tracer = tracer_of(endpoint)
    known = {"foldflight.versions": list(versions)} if versions else {}
    before: TraceContext = {}  # that of the last connection that was open

    def traced(url: str, opening: Open) -> Connection:
        nonlocal before
        span = tracer.span(
            "reopen" if before else "exchange",
            opening.trace_context,
            {"server.address": url, "foldflight.functions": list(opening.functions), **known},
            kind="CLIENT",
            links=tracer.link_to(before),
        )
        try:
            connection = dial(url, replace(opening, trace_context=span.context))
        except BaseException as error:
            span.fail(error)
            span.end()
            raise
        if not span.is_recording:
            return connection
        before = span.context
        return cast("Connection", _TracedConnection(connection, span, tracer))

    return traced


T = TypeVar("T")


class _TracedConnection:
    """A connection that records what passes through it."""

    def __init__(self, connection: Connection, span: Span, tracer: Tracer) -> None:
        self._connection = connection
        self._span = span
        self._tracer = tracer
        self._rows = self._chunks = self._groups = self._barriers = self._busy_ns = 0
        self._due: tuple[Barrier, int] | None = None  # the barrier whose answer is due, and when it was sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, frame: EngineFrame) -> bool:
        """Send a frame, as `Connection.send`."""
        if isinstance(frame, Chunk):
            self._chunks += 1
            self._rows += frame.batch.num_rows
        elif isinstance(frame, Barrier):
            self._due = frame, time.time_ns()
        return self._passed(self._connection.send, frame)

    def answer(self) -> Answer:
        """Wait for an answer, as `Connection.answer`."""
        answer: Any = self._passed(self._connection.answer)
        if self._due is not None:
            (barrier, began_ns), self._due = self._due, None
            ended_ns = time.time_ns()
            self._barriers += 1
            self._groups += answer.num_rows
            if self._barriers == 1 or ended_ns - began_ns >= SHORT_S * 1e9:
                facts = {"foldflight.epoch": barrier.epoch, "foldflight.groups": answer.num_rows}
                self._tracer.past("barrier", self._span.context, facts, began_ns, ended_ns)
        return answer

    def take_logs(self) -> list[LogRecord]:
        """Return the log records since the last call, with the ids of the trace and of this span."""
        records = self._connection.take_logs()
        ids = ids_of(self._span.context) if records else {}
        return [replace(record, fields={**record.fields, **ids}) for record in records]

    def close(self) -> None:
        """End the exchange, as `Connection.close`."""
        self._count()
        self._passed(self._connection.close)
        self._span.end()

    def cut(self) -> None:
        """End the exchange at once, as `Connection.cut`."""
        self._count()
        self._span.end()
        self._connection.cut()

    def _passed(self, method: Callable[..., T], *given: Any) -> T:
        """Call a method of the connection. Add the time that it takes, and record the error that it raises."""
        began_ns = time.time_ns()
        try:
            return method(*given)
        except BaseException as error:
            if self._span.is_recording:
                self._span.fail(error)
                self._count()
                self._span.end()
            raise
        finally:
            self._busy_ns += time.time_ns() - began_ns

    def _count(self) -> None:
        """Set what passed through the connection. An embedded fold tells its modes until it is closed."""
        if self._span.is_recording:
            opened = self._connection.opened
            self._span.set(
                {
                    "foldflight.server_id": opened.server_id,
                    "foldflight.modes": [str(mode) for mode in self._connection.modes if mode is not None],
                    "foldflight.rows": self._rows,
                    "foldflight.chunks": self._chunks,
                    "foldflight.barriers": self._barriers,
                    "foldflight.groups": self._groups,
                    "foldflight.seconds": self._busy_ns / 1e9,
                }
            )
