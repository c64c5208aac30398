"""The contribution of one exchange to the metrics of the server."""

from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pyarrow as pa

from foldflight.errors import FoldflightError
from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Entries, Forget, Frame, Open, States, Wanted
from foldflight.exchange.serving import ServerExchange
from foldflight.fold.mode import Mode
from foldflight.functions.query.call import RowKind
from foldflight.functions.types.arrow import is_bounded
from foldflight.server.ops.metrics import Metrics
from foldflight.server.spans import FoldSpans
from foldflight.tracing import SHORT_S, ids_of


class Account:
    """Counts one exchange on the metrics of the server.

    Args:
        metrics: The metrics.
        open_request: The Open frame of the exchange.
        exchange: The exchange.
        spans: Those of the exchange; None if it is not traced.

    Attributes:
        rows: The rows so far.
        began_s: When the last frame arrived, by the monotonic clock.
        waited_s: How long functions have waited for the engine since the last frame was counted.
    """

    def __init__(
        self, metrics: Metrics, open_request: Open, exchange: ServerExchange, spans: FoldSpans | None = None
    ) -> None:
        self.rows = 0
        self.began_s = time.monotonic()
        self.waited_s = 0.0
        self._spans = spans
        if spans is not None:
            spans.exchange = exchange
        # Prometheus shows it in the format OpenMetrics.
        # An exemplar costs as much as a short fold, so frames have one as they have spans: the first, and long ones.
        self._exemplar = ids_of(open_request.trace_context) or None
        self._exemplified: set[type[Frame]] = set()
        self._metrics = metrics
        self._exchange = exchange
        self._functions = [metrics.named(name) for name in open_request.functions]
        self._has_kinds = not open_request.maps and "kind" in open_request.columns.names
        # For each kind of rows, in their order, the counters of the functions.
        self._rows_folded = [
            [metrics.rows_folded.labels(function, kind.short) for function in self._functions] for kind in RowKind
        ]
        self._groups = self._state_bytes = self._bytes_since = self._saves = 0
        self._returns_states = open_request.returns.states
        self._is_scalar = open_request.maps
        # States that consist of numbers have a fixed size.
        states = (field.type for field in exchange.open_reply.schema if field.name.startswith("state_"))
        self._grows = not all(map(is_bounded, states))
        self._isolated: Counter[str] = Counter()
        self._folds: tuple[Mode, ...] = ()
        self._asking: set[str] = set()  # the functions with questions for entries of views
        self._lock = threading.Lock()  # an idle exchange is ended by another thread than its own
        self._ended = False

    def begin(self) -> None:
        """Count the exchange as admitted."""
        self._metrics.opened.inc()
        self._metrics.open.inc()
        for function, fold in zip(self._functions, self._exchange.folds, strict=True):
            self._metrics.calls_opened.labels(function, fold).inc()
        self._show_folds()

    def count(self, message: Message, frame: Frame, seconds: float) -> None:
        """Count a frame that was answered within `seconds`."""
        with self._lock:
            if not self._ended:
                self._count(message, frame, seconds)
                if self._spans is not None:
                    self._spans.count(message, frame, seconds - self.waited_s)
                self.waited_s = 0.0

    def count_question(self, wanted: Wanted) -> str | None:
        """Count a question for entries of views. Return the function for its first question, otherwise None."""
        index = next(
            index
            for index in range(len(self._functions))
            if wanted.batch.column(f"state_{index}").is_valid()[0].as_py()
        )
        function = self._functions[index]
        self._metrics.view_questions.labels(function).inc()
        is_first = function not in self._asking
        self._asking.add(function)
        return function if is_first else None

    @property
    def weight(self) -> tuple[int, int, int]:
        """An estimate of the size of the exchange, to find the largest one: bytes, then groups, then rows.

        The bytes are those of the states that it returned last, plus, if its states can grow, those received since. A
        checkpoint returns what has become of them, and Forget may drop it.
        """
        grown = self._bytes_since if self._grows else 0
        return self._state_bytes + grown, self._groups, self.rows

    def _count(self, message: Message, frame: Frame, seconds: float) -> None:
        exemplar = None
        if self._exemplar is not None and (seconds >= SHORT_S or type(frame) not in self._exemplified):
            exemplar = self._exemplar
            self._exemplified.add(type(frame))
        match frame:
            case States() | Entries():
                self._bytes_since += frame.batch.nbytes
            case Chunk():
                self._bytes_since += message.batch_bytes
                self._metrics.fold_seconds.observe(seconds, exemplar)
                self._metrics.chunk_bytes.observe(message.batch_bytes + len(message.metadata), exemplar)
                self._count_rows(frame.batch)
                if self._is_scalar:
                    self._count_isolated()
                    self._show_folds()
            case Barrier():
                self._metrics.barrier_seconds.observe(seconds, exemplar)
                state_bytes = self._exchange.stats.state_bytes
                self._metrics.state_bytes.inc(state_bytes - self._state_bytes)
                self._state_bytes = state_bytes
                if self._returns_states:
                    self._bytes_since = 0
                self._count_isolated()
                self._show_folds()
            case Checkpoint() | Forget() if self._exchange.stats.saves > self._saves:
                self._saves, self._bytes_since = self._exchange.stats.saves, self._exchange.stats.saved_bytes
        groups = self._exchange.groups
        if groups != self._groups:
            self._metrics.groups.inc(groups - self._groups)
            self._groups = groups

    def _count_isolated(self) -> None:
        for function, count in self._exchange.stats.isolated.items():
            self._metrics.isolated.labels(self._metrics.named(function)).inc(count - self._isolated[function])
            self._isolated[function] = count

    def _show_folds(self) -> None:
        folds = self._exchange.folds
        if folds != self._folds:
            self._folds = folds
            for function, fold in zip(self._functions, folds, strict=True):
                if fold in (Mode.COMPILED, Mode.INTERPRETED):
                    self._metrics.compiled.labels(function).set(fold is Mode.COMPILED)

    def end(self, outcome: str, error: FoldflightError | None = None) -> None:
        """Count the end of the exchange, perhaps with an error, and subtract its contribution to gauges."""
        with self._lock:
            self._ended = True
            if self._spans is not None:
                self._spans.end(outcome, error, time.monotonic() - self.began_s)
        self._metrics.groups.dec(self._groups)
        self._metrics.state_bytes.dec(self._state_bytes)
        self._metrics.ended.labels(outcome).inc()
        self._metrics.open.dec()  # last: at 0 open exchanges, everything is counted

    def _count_rows(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._metrics.rows.inc(batch.num_rows)
        counts = [batch.num_rows]  # inserts, the first kind
        if self._has_kinds:
            counts = np.bincount(batch.column("kind").to_numpy(zero_copy_only=False)).tolist()
        for number, rows_folded in zip(counts, self._rows_folded, strict=False):
            if number:
                for folded in rows_folded:
                    folded.inc(number)
