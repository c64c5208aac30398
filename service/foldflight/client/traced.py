"""Connections with spans: `exchange` for the first one of an exchange, `reopen` for later ones, and `barrier`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from foldflight.client.connection import Connection
from foldflight.exchange.answers import Answer
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, Open
from foldflight.functions.author.context import LogRecord
from foldflight.tracing import SHORT_S, TraceContext, ids_of, tracer_of

if TYPE_CHECKING:
    from foldflight.tracing.spans import Span, Tracer


Dial: TypeAlias = Callable[[str, Open], Connection]


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
            links=tracer.link_to(before) if before else (),
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


_SHORT_NS: Final = int(SHORT_S * 1e9)


class _TracedConnection:
    """A connection that records what passes through it. An epoch may take 100 us, so it does little for each frame."""

    def __init__(self, connection: Connection, span: Span, tracer: Tracer) -> None:
        self._connection = connection
        self._send, self._answer, self._take_logs = connection.send, connection.answer, connection.take_logs
        self._span = span
        self._tracer = tracer
        self._rows = self._chunks = self._groups = self._barriers = self._busy_ns = 0
        self._due: Barrier | None = None  # the barrier whose answer is due
        self._due_ns = 0  # when it was sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, frame: EngineFrame) -> bool:
        """Send a frame, as `Connection.send`."""
        began_ns = time.time_ns()
        if isinstance(frame, Chunk):
            self._chunks += 1
            self._rows += frame.batch.num_rows
        elif isinstance(frame, Barrier):
            self._due, self._due_ns = frame, began_ns
        try:
            has_answer = self._send(frame)
        except BaseException as error:
            self._fail(error)
            raise
        self._busy_ns += time.time_ns() - began_ns
        return has_answer

    def answer(self) -> Answer:
        """Wait for an answer, as `Connection.answer`."""
        began_ns = time.time_ns()
        try:
            answer: Any = self._answer()
        except BaseException as error:
            self._fail(error)
            raise
        ended_ns = time.time_ns()
        self._busy_ns += ended_ns - began_ns
        if self._due is not None:
            barrier, self._due = self._due, None
            self._barriers += 1
            self._groups += answer.num_rows
            if self._barriers == 1 or ended_ns - self._due_ns >= _SHORT_NS:
                facts = {"foldflight.epoch": barrier.epoch, "foldflight.groups": answer.num_rows}
                self._tracer.past("barrier", self._span.context, facts, self._due_ns, ended_ns)
        return answer

    def take_logs(self) -> list[LogRecord]:
        """Return the log records since the last call, with the ids of the trace and of this span."""
        records = self._take_logs()
        if not records:
            return records
        ids = ids_of(self._span.context)
        return [replace(record, fields={**record.fields, **ids}) for record in records]

    def close(self) -> None:
        """End the exchange, as `Connection.close`."""
        self._count()
        try:
            self._connection.close()
        except BaseException as error:
            self._fail(error)
            raise
        self._span.end()

    def cut(self) -> None:
        """End the exchange at once, as `Connection.cut`."""
        self._count()
        self._span.end()
        self._connection.cut()

    def _fail(self, error: BaseException) -> None:
        """End the span with an error."""
        if self._span.is_recording:
            self._span.fail(error)
            self._count()
            self._span.end()

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
