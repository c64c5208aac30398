"""Connections with spans: `exchange` for the first one of an exchange, `reopen` for later ones, and long `barrier`s."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from foldflight.client.connection import Connection
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, Open
from foldflight.exchange.transitions import Answer
from foldflight.functions.author.context import LogRecord
from foldflight.tracing import SHORT_S, Attributes, TraceContext, Tracer, ids_of, tracer_of

Dial: TypeAlias = Callable[[str, Open], Connection]


def traced_dial(dial: Dial, endpoint: str, versions: Sequence[str] = ()) -> Dial:
    """Return a function that opens the connections of one exchange as `dial`, each with its span.

    `versions` has the version of the function of each call or step, if it is known here.
    """
    tracer = tracer_of(endpoint)
    attributes = {"foldflight.versions": list(versions)} if versions else {}
    before: TraceContext = {}  # of the last connection that was open

    def connect_traced(url: str, open_request: Open) -> Connection:
        nonlocal before
        name, links = ("reopen", tracer.link_to(before)) if before else ("exchange", [])
        parent, context = tracer.child_context(open_request.trace_context)
        began_ns = time.time_ns()

        def end(facts: Attributes, error: BaseException | None = None) -> None:
            about = {"server.address": url, "foldflight.functions": open_request.functions, **attributes, **facts}
            ended_ns = time.time_ns()
            tracer.record(
                name, parent, about, began_ns, ended_ns, context=context, kind="CLIENT", links=links, error=error
            )

        try:
            connection = dial(url, replace(open_request, trace_context=context))
        except BaseException as error:
            end({}, error)
            raise
        if not ids_of(context):  # it is not sampled
            return connection
        before = context
        return cast("Connection", _TracedConnection(connection, tracer, context, end))

    return connect_traced


class _TracedConnection:
    """A connection that records what passes through it. An epoch may take 100 us, so it does little for each frame."""

    def __init__(self, connection: Connection, tracer: Tracer, context: TraceContext, end: Callable[..., None]) -> None:
        self._connection = connection
        self._send, self._answer = connection.send, connection.answer
        self._tracer = tracer
        self._context = context
        self._tell: Callable[..., None] | None = end
        self._rows = self._chunks = self._groups = self._barriers = 0
        self._busy_s = 0.0
        self._due: Barrier | None = None  # the barrier whose answer is due
        self._due_ns = 0  # when it was sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, frame: EngineFrame) -> bool:
        """Send a frame, as `Connection.send`."""
        began_s = time.perf_counter()
        if type(frame) is Chunk:
            self._chunks += 1
            self._rows += frame.batch.num_rows
        elif type(frame) is Barrier:
            self._due, self._due_ns = frame, time.time_ns()
        try:
            has_answer = self._send(frame)
        except BaseException as error:
            self._end(error)
            raise
        self._busy_s += time.perf_counter() - began_s
        return has_answer

    def answer(self) -> Answer:
        """Wait for an answer, as `Connection.answer`."""
        began_s = time.perf_counter()
        try:
            answer: Any = self._answer()
        except BaseException as error:
            self._end(error)
            raise
        self._busy_s += time.perf_counter() - began_s
        if self._due is not None:
            barrier, self._due = self._due, None
            self._barriers += 1
            self._groups += answer.num_rows
            ended_ns = time.time_ns()
            if ended_ns - self._due_ns >= SHORT_S * 1e9:
                facts = {"foldflight.epoch": barrier.epoch, "foldflight.groups": answer.num_rows}
                self._tracer.record("barrier", self._context, facts, self._due_ns, ended_ns)
        return answer

    def take_logs(self) -> list[LogRecord]:
        """Return the log records since the last call, with the ids of the trace and of this span."""
        records = self._connection.take_logs()
        if not records:
            return records
        ids = ids_of(self._context)
        return [replace(record, fields={**record.fields, **ids}) for record in records]

    def close(self) -> None:
        """End the exchange, as `Connection.close`. An embedded fold tells its modes until it is closed."""
        facts = self._facts()
        try:
            self._connection.close()
        except BaseException as error:
            self._end(error, facts)
            raise
        self._end(None, facts)

    def cut(self) -> None:
        """End the exchange at once, as `Connection.cut`."""
        self._end(None)
        self._connection.cut()

    def _end(self, error: BaseException | None, facts: Attributes | None = None) -> None:
        """Record the span, once."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self._facts() if facts is None else facts, error)

    def _facts(self) -> Attributes:
        """Return what passed through the connection."""
        return {
            "foldflight.server_id": self._connection.open_reply.server_id,
            "foldflight.modes": [str(mode) for mode in self._connection.modes if mode is not None],
            "foldflight.rows": self._rows,
            "foldflight.chunks": self._chunks,
            "foldflight.barriers": self._barriers,
            "foldflight.groups": self._groups,
            "foldflight.seconds": self._busy_s,
        }
