"""One exchange whose slots stand for groups.

A driver (a task of a batch query, an epoch of a stream, the test kit) has rows and keys, and a server has dense slots.
This module connects the two: the keys of the slots in use, chunks and states with their slots, the names of groups in
errors and logs, and the rows that may become dead letters.

The groups of an exchange can be replaced: `turn` drops the accumulators of the previous groups. Therefore all buckets
of a task share one exchange. Opening an exchange costs more than folding the few rows that a bucket has in most epochs:
it binds functions, and on a fleet it also needs a round trip, a thread and a decision of the load balancer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.client.client_logs import log_records
from foldflight.client.exchange import OpenExchange, Transport
from foldflight.engine.keys.hashes import Hashes, key_hashes
from foldflight.engine.keys.index import KeyIndex
from foldflight.engine.keys.row_buffers import BufferedRows
from foldflight.engine.query.layout import EMIT, QueryLayout
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Open, Opened
from foldflight.fold.mode import Mode
from foldflight.functions.types.arrow import with_column

Clock = Callable[[], float]


class SlotNames(Protocol):
    """The slots in use and the keys of their groups."""

    def __len__(self) -> int:
        """Return the number of slots in use. Slots are numbered from 0."""

    def name(self, slot: int) -> dict[str, Any]:
        """Return the key of a slot's group, by the user's names."""


class Groups:
    """Groups by slot, in the order of their first appearance.

    Args:
        layout: The columns of the query. Without keys there is one group.
    """

    def __init__(self, layout: QueryLayout) -> None:
        self.layout = layout
        self._index = KeyIndex(layout.keys) if len(layout.keys) else None
        self._hashes: Hashes = np.zeros(0, np.uint64)

    def __len__(self) -> int:
        return 1 if self._index is None else len(self._index)

    def slots(self, block: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the slots of n rows. A new key gets the next slot."""
        if self._index is None:
            return np.zeros(block.num_rows, np.int32)
        return self._index.slots([block.column(name) for name in self.layout.keys.names]).to_numpy()

    def keys(self, slots: npt.NDArray[np.int32]) -> pa.RecordBatch:
        """Return the keys of n slots as n rows."""
        if self._index is None:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(slots), pa.struct([])))
        return self._index.keys(pa.array(slots, pa.int32()))

    def stored_hashes(self, slots: npt.NDArray[np.int32]) -> Hashes:
        """Return the stored hashes of the keys of n slots, for state tables. Each is computed once."""
        known_count = len(self._hashes)
        if known_count < len(self):
            fresh = self.keys(np.arange(known_count, len(self), dtype=np.int32))
            self._hashes = np.concatenate([self._hashes, key_hashes(fresh, are_distinct=True)])
        return self._hashes[slots]

    def name(self, slot: int) -> dict[str, Any]:
        """Return the key of a slot's group, by the user's names."""
        return self.layout.group(self.keys(np.array([slot], np.int32)))


class Views(Protocol):
    """The entries of views that the engine keeps, of the groups in use."""

    def entries_for(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the entries that a server should have before n rows."""

    def resolve(self, question: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the entries that a server asks for."""


class GroupedExchange:
    """One exchange, which is opened when it is first used.

    After an error within `turn`, or within the exchange as a context manager, the exchange is aborted.

    Args:
        transport: The connection to the functions.
        open_request: The Open command of the exchange.
        layout: The columns of the query.
        clock: Returns the time in seconds, to measure the time in the exchange. Default: it is not measured.

    Attributes:
        elapsed_s: Seconds spent in the exchange so far.
        buffered_rows: The rows of the current turn, if errors are isolated.
    """

    def __init__(
        self, transport: Transport, open_request: Open, layout: QueryLayout, *, clock: Clock | None = None
    ) -> None:
        self.elapsed_s = 0.0
        self.buffered_rows: BufferedRows | None = None
        self._transport = transport
        self._open_request = open_request
        self._layout = layout
        self._clock = clock
        self._exchange: OpenExchange | None = None
        self._groups: SlotNames | None = None
        self._views: Views | None = None
        self._is_used = False
        self._epoch = 0

    @property
    def open_reply(self) -> Opened:
        """The server's answer to the Open command."""
        with self.use_exchange() as exchange:
            return exchange.open_reply

    @property
    def modes(self) -> Sequence[Mode | None]:
        """How each call is folded (`OpenExchange.modes`); None where that is not known, as before the first use."""
        return [None] * len(self._open_request.calls) if self._exchange is None else self._exchange.modes

    @contextmanager
    def turn(self, groups: SlotNames, views: Views | None = None) -> Iterator[None]:
        """Use the slots of `groups` within the context, and abort the exchange if an error leaves it.

        Args:
            groups: The groups.
            views: Their views, if the engine keeps the entries of views (`Open.keeps_views`).
        """
        try:
            self.begin(groups, views)
            yield
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def begin(self, groups: SlotNames, views: Views | None = None) -> None:
        """Drop the accumulators of the previous groups, and use the slots of `groups`."""
        if self._is_used and self._groups is not None:
            self.forget(np.arange(len(self._groups)))
        self._is_used = False
        self._groups = groups
        self._views = views
        self.buffered_rows = BufferedRows(self._layout.rows) if self._layout.isolates else None

    def chunk(self, slots: npt.NDArray[np.int32], block: pa.RecordBatch) -> None:
        """Fold n rows of `QueryLayout.rows` into n slots."""
        if self.buffered_rows is not None:
            self.buffered_rows.add(slots, block)
        batch = self._layout.chunk_of(slots, block)
        self._is_used = True
        with self.use_exchange() as exchange:
            if self._views is not None:
                for entries in self._views.entries_for(slots, block):
                    exchange.entries(entries)
            exchange.chunk(batch)

    def save(self) -> pa.Table | None:
        """Return the states that changed, in the schema of `open_reply`, or None if no checkpoint is due.

        Only an engine that keeps the entries of views takes checkpoints itself, because it must commit the entries
        before it continues. None, too, if a state cannot be returned now; the barrier then raises the error.
        """
        with self.use_exchange() as exchange:
            if not exchange.wants_checkpoint:
                return None
            exchange.checkpoint()
            saved_states = exchange.saved_states()
            return None if saved_states.problem else saved_states.states

    def running_outputs(
        self, slots: npt.NDArray[np.int32], block: pa.RecordBatch, emit: npt.NDArray[np.bool_]
    ) -> pa.RecordBatch:
        """Fold n rows like `chunk`, and return the outputs after each row where `emit` is true (`Open.emits`)."""
        chunk = self._layout.chunk_of(slots, block)
        self._is_used = True
        with self.use_exchange() as exchange:
            exchange.chunk(with_column(chunk, EMIT, pa.array(emit)))
            return exchange.row_outputs()

    def states(self, slots: npt.NDArray[np.int32], states: Sequence[pa.Array], errors: pa.Array | None = None) -> None:
        """Merge n states of each call into n slots, without computing outputs.

        Args:
            slots: int32, shape (n,).
            states: One array of n states for each call.
            errors: The errors of n states, if errors are isolated and some of the slots have failed.
        """
        batch = self._layout.states_of(slots, states, errors)
        self._is_used = True
        with self.use_exchange() as exchange:
            exchange.states(batch, unanswered=True)

    def outputs_of(
        self, slots: npt.NDArray[np.int32], states: Sequence[pa.Array], errors: pa.Array | None = None
    ) -> pa.RecordBatch:
        """Merge n states of each call into n slots, like `states`, and return the resulting outputs of these slots."""
        batch = self._layout.states_of(slots, states, errors)
        self._is_used = True
        with self.use_exchange() as exchange:
            exchange.states(batch)
            return exchange.initial_outputs()

    def forget(self, slots: npt.ArrayLike) -> None:
        """Drop the accumulators of n slots."""
        with self.use_exchange() as exchange:
            exchange.forget(pa.array(slots, pa.int32()))

    def barrier(self) -> None:
        """End the epoch; `results` returns the changed slots."""
        with self.use_exchange() as exchange:
            exchange.barrier(self._epoch + 1)
            self._epoch += 1

    def results(self) -> pa.Table:
        """Wait for the results of the last barrier: the slots that changed, in the schema of `open_reply`."""
        with self.use_exchange() as exchange:
            return exchange.results(self._epoch)

    def close(self) -> None:
        """End the exchange, if it is open."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exception_type: type[BaseException] | None, *exception: object) -> None:
        exchange, self._exchange, self._is_used = self._exchange, None, False
        buffered_rows, self.buffered_rows = self.buffered_rows, None
        if buffered_rows is not None:
            buffered_rows.close()
        if exchange is not None:
            exchange.__exit__(exception_type, *exception)

    @contextmanager
    def use_exchange(self) -> Iterator[OpenExchange]:
        """Yield the open exchange, and add the keys of groups, which servers do not know, to errors and logs."""
        start_s = 0.0 if self._clock is None else self._clock()
        try:
            if self._exchange is None:
                answers = {"resolve": self._resolve} if self._open_request.keeps_views else {}
                self._exchange = self._transport.open(self._open_request, **answers)
                self._exchange.group_of = self._name
            yield self._exchange
            if logs := self._exchange.take_logs():
                log_records(logs, self._name)
        except FoldflightError as error:  # a function has failed, or a state exceeds a bound of the server
            if error.slot is None or error.group is not None:
                raise
            raise error.with_group(self._name(error.slot)) from None
        finally:
            if self._clock is not None:
                self.elapsed_s += self._clock() - start_s

    def _resolve(self, question: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if self._views is None:
            raise RejectedError(
                "BAD_FRAME", "the server asks for entries of views, and the engine has given it whole states or none"
            )
        return self._views.resolve(question)

    def _name(self, slot: int) -> dict[str, Any]:
        return {} if self._groups is None else self._groups.name(slot)
