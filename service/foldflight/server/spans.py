"""The spans of one exchange on a server: `wait`, until the first frame of an epoch arrives, and `fold`, from there on.

There is no span for a frame. A `fold` tells how long frames were folded within it; the rest is waiting for the engine.
"""

from __future__ import annotations

import time
from typing import Any

from foldflight.errors import FoldflightError
from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import Barrier, Chunk, Frame, Open, States
from foldflight.exchange.serving import ServerExchange
from foldflight.tracing import SHORT_S, Tracer


class FoldSpans:
    """The spans of one exchange, below that of the engine.

    Attributes:
        exchange: The exchange, once there is one.
        versions: The version of the function of each call or step.
    """

    def __init__(self, tracer: Tracer, open_request: Open, *, server_id: str) -> None:
        self._tracer = tracer
        self._opening = open_request
        self._server_id = server_id
        self.exchange: ServerExchange | None = None
        self.versions: list[str] = []
        self._is_first = True
        self._begin(time.time_ns())

    def _begin(self, since_ns: int) -> None:
        """Begin an epoch, at the end of the one before."""
        self._since_ns = since_ns
        self._began_ns = 0  # its first frame; 0: none has arrived
        self._rows = self._bytes = self._chunks = 0
        self._seconds = 0.0

    def count(self, message: Message, frame: Frame, seconds: float) -> None:
        """Count a frame whose answer took `seconds`, until now."""
        ended_ns = time.time_ns()
        if not self._began_ns:
            self._began_ns = ended_ns - int(seconds * 1e9)
        self._seconds += seconds
        if isinstance(frame, Chunk):
            self._rows += frame.batch.num_rows
            self._chunks += 1
        if isinstance(frame, (Chunk, States)):
            self._bytes += message.batch_bytes
        if isinstance(frame, Barrier):
            self._finish(ended_ns, None, {"foldflight.epoch": frame.epoch})
            self._begin(ended_ns)

    def end(self, outcome: str, error: FoldflightError | None, seconds: float) -> None:
        """End the exchange; with an error, `seconds` after the arrival of the frame that failed."""
        ended_ns = time.time_ns()
        if error is not None and not self._began_ns:
            self._began_ns = ended_ns - int(seconds * 1e9)
        if self._began_ns:
            self._finish(ended_ns, error, {"foldflight.outcome": outcome})
        self._tracer.send()

    def _finish(self, ended_ns: int, error: FoldflightError | None, facts: dict[str, Any]) -> None:
        """Record the spans of an epoch: the first one, those that took long, and one that failed."""
        is_told, self._is_first = self._is_first or error is not None, False
        parent, began_ns, short_ns = self._opening.trace_context, self._began_ns, SHORT_S * 1e9
        if is_told or began_ns - self._since_ns >= short_ns:
            self._tracer.record("wait", parent, {"foldflight.server_id": self._server_id}, self._since_ns, began_ns)
        if not is_told and ended_ns - began_ns < short_ns:
            return
        facts |= {
            "foldflight.server_id": self._server_id,
            "foldflight.functions": list(self._opening.functions),
            "foldflight.rows": self._rows,
            "foldflight.bytes": self._bytes,
            "foldflight.chunks": self._chunks,
            "foldflight.fold_seconds": self._seconds,
            "foldflight.wait_seconds": max((ended_ns - began_ns) / 1e9 - self._seconds, 0.0),
        }
        if self.exchange is not None:
            facts |= {
                "foldflight.versions": self.versions,
                "foldflight.modes": [str(mode) for mode in self.exchange.folds],
                "foldflight.groups": self.exchange.groups,
                "foldflight.groups_isolated": self.exchange.stats.isolated.total(),
            }
        self._tracer.record("fold", parent, facts, began_ns, ended_ns, kind="SERVER", error=error)
