"""One exchange for all buckets of a task: they take turns, and what one has folded is forgotten before the next.

Spark calls a task once for each of its buckets, one after another. To open an exchange costs more than to fold the few
rows that a bucket has in most epochs: functions are bound here, and on a fleet there is a round trip, a thread, and a
choice of a balancer as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.client import OpenExchange, Transport
from foldflight.engine.layout import SLOT
from foldflight.exchange.frames import FunctionInfo, Open, Opened
from foldflight.functions.context import LogRecord

__all__ = ["Turns"]


class Turns:
    """A transport that keeps an exchange open for whoever opens the same next.

    Args:
        transport: The way to the functions.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kept: _Turn | None = None

    def infos(self) -> list[FunctionInfo]:
        """Return what is served, by name."""
        return self._transport.infos()

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return what an exchange would be opened with, without opening it."""
        return self._transport.describe(open)

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        """Return a turn in the exchange that is kept, if it was opened with this very object, or in another one."""
        kept, self._kept = self._kept, None
        if kept is not None and kept.opening is open:
            return kept.following()
        if kept is not None:
            kept.exchange.close()
        return _Turn(self, open, self._transport.open(open), 0)

    def keep(self, turn: _Turn) -> None:
        """Keep the exchange of a turn that is over."""
        self._kept = turn

    def close(self) -> None:
        """Close the exchange that is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.exchange.close()


class _Turn:
    """An exchange as one bucket sees it, from its opening to its end; all answers are read before the end."""

    def __init__(self, turns: Turns, opening: Open, exchange: OpenExchange, before: int) -> None:
        self._turns = turns
        self.opening = opening
        self.exchange = exchange
        self._before = self._epoch = before
        self._slots = 0
        self._is_over = False

    @property
    def opened(self) -> Opened:
        return self.exchange.opened

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        self._use(batch)
        self.exchange.states(batch, unanswered=unanswered)

    def chunk(self, batch: pa.RecordBatch) -> None:
        self._use(batch)
        self.exchange.chunk(batch)

    def forget(self, slots: pa.Int32Array) -> None:
        self.exchange.forget(slots)

    def barrier(self, epoch: int) -> None:
        self._epoch = self._before + epoch
        self.exchange.barrier(self._epoch)

    def results(self, epoch: int) -> pa.Table:
        return self.exchange.results(self._before + epoch)

    def initial_outputs(self) -> pa.RecordBatch:
        return self.exchange.initial_outputs()

    def row_outputs(self) -> pa.RecordBatch:
        return self.exchange.row_outputs()

    def take_logs(self) -> Sequence[LogRecord]:
        return self.exchange.take_logs()

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._turns.keep(self)

    def following(self) -> _Turn:
        """Return the next turn in the same exchange, in which nothing is left of this one."""
        if self._slots:
            try:
                self.exchange.forget(pa.array(np.arange(self._slots, dtype=np.int32)))
            except BaseException as error:
                self.exchange.__exit__(type(error), error, None)
                raise
        return _Turn(self._turns, self.opening, self.exchange, self._epoch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *rest: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self._is_over = True
            self.exchange.__exit__(exception_type, *rest)

    def _use(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._slots = max(self._slots, pc.max(batch.column(SLOT)).as_py() + 1)
