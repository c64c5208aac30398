"""The replay log of one exchange: the states and frames that another server needs to take it over.

There is one state for each slot, from the last barrier or checkpoint. The answer to a barrier or checkpoint has
only the slots that changed, so it is merged into the older states. The frames of the log were sent after that barrier
or checkpoint, in order. A server that loads the states and then processes the frames has the same accumulators as the
lost one.

If barriers return no states, frames are kept until a checkpoint returns the states or until every slot is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.exchange.frames import (
    NO_SLOTS,
    SLOT_BYTES,
    Barrier,
    Checkpoint,
    Chunk,
    EngineFrame,
    Entries,
    Forget,
    Slots,
    SlotSet,
    States,
)
from foldflight.fold.failures import ERROR

# The batches are compacted when they have more stale rows than live rows and this number together.
_STALE_ROWS_MIN: Final = 1024
# Bytes that the replay log needs for a frame besides its data, and for each column of a batch. Many small chunks, or
# epochs without rows, must not fill the memory.
_ENTRY_BYTES: Final = 512
_COLUMN_BYTES: Final = 1024


@dataclass(eq=False, slots=True)
class ReplayEntry:
    """One frame of the engine.

    Args:
        frame: The frame.
        has_answer: Whether a server answers it, with content.
        was_sent: Whether it has been sent to any server.
        has_arrived: Whether the engine has the answer. The same answer from another server is then dropped.
        result_slots: The slots of the results of a barrier; None for other frames.
        bytes: Bytes that the replay log needs for the frame.
    """

    frame: EngineFrame
    has_answer: bool
    was_sent: bool = False
    has_arrived: bool = False
    result_slots: Slots | None = None
    bytes: int = _ENTRY_BYTES

    @property
    def rows(self) -> int:
        """Number of rows that a server folds for this frame."""
        return int(self.frame.batch.num_rows) if isinstance(self.frame, Chunk) else 0


class ReplayLog:
    """States and frames of one exchange.

    Args:
        returns_states: Whether the results of barriers carry states.
        bytes_of: Returns the bytes of the rows of a chunk.
    """

    def __init__(self, *, returns_states: bool, bytes_of: Callable[[pa.RecordBatch], int]) -> None:
        self._bytes_of = bytes_of
        self.states = ReplayStates()
        self.frame_bytes = 0
        self._returns_states = returns_states
        self._entries: list[ReplayEntry] = []
        self._changed_slots = SlotSet()  # slots of the next results
        self._live = SlotSet()  # other slots that may have an accumulator, on whichever server

    def __iter__(self) -> Iterator[ReplayEntry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: ReplayEntry, slots: Slots = NO_SLOTS) -> None:
        """Append a frame with its slots."""
        match entry.frame:
            case (States() | Entries() | Chunk()) as frame:
                batch = frame.batch
                entry.bytes += batch.num_columns * _COLUMN_BYTES
                size = self._bytes_of(batch) if isinstance(frame, Chunk) else int(batch.nbytes)
                entry.bytes += max(size, batch.num_rows * SLOT_BYTES)
                if len(slots) and not isinstance(frame, Entries):
                    self._changed_slots.add(slots, int(np.maximum.reduce(slots)) + 1)
            case Forget():
                entry.bytes += int(slots.nbytes)
                self._live.discard(slots)
                self._changed_slots.discard(slots)
            case Barrier():
                entry.result_slots = self._changed_slots.to_numpy()
                if len(entry.result_slots):
                    self._live.add(entry.result_slots, int(entry.result_slots[-1]) + 1)
                    self._changed_slots.clear()
            case _:
                pass
        self._entries.append(entry)
        self.frame_bytes += entry.bytes

    def is_idle(self) -> bool:
        """Return whether every slot is empty and no answer is due, so that a new server needs nothing."""
        # An answer that is due is one of the newest.
        if self._live or self._changed_slots:
            return False
        return all(each.has_arrived or not each.has_answer for each in reversed(self._entries))

    def clear(self) -> None:
        """Drop everything except frames whose answer is due."""
        self.states = ReplayStates()
        self._replace_entries([entry for entry in self._entries if entry.has_answer and not entry.has_arrived])

    def drop_questions(self) -> None:
        """Remove checkpoints with `if_reopen`. They ask one server whether to leave it, so another one needs none."""
        self._replace_entries([each for each in self._entries if each.frame != Checkpoint(if_reopen=True)])

    def forget_answered(self, entry: ReplayEntry) -> None:
        """Remove an answered frame that another server does not need."""
        self._entries.remove(entry)
        self.frame_bytes -= entry.bytes

    def commit(self, entry: ReplayEntry, states: pa.Table) -> None:
        """Record the answer to a barrier or checkpoint. If it has states, drop the frames that they cover."""
        index = self._index_of(entry) + 1
        failed_slots = _failed_slots(states) if isinstance(entry.frame, Barrier) else NO_SLOTS
        if isinstance(entry.frame, Barrier) and not self._returns_states:
            # A failed slot must be empty on a new server, even if the function does not raise there again.
            if len(failed_slots):
                forget_entry = ReplayEntry(Forget(pa.array(failed_slots, pa.int32())), has_answer=False)
                self._replace_entries([*self._entries[:index], forget_entry, *self._entries[index:]])
            return
        for past in self._entries[:index]:
            if isinstance(past.frame, Forget):
                self.states.forget(past.frame.slots.to_numpy(zero_copy_only=False))
        self.states.update(states)
        self.states.forget(failed_slots)
        self._replace_entries(self._entries[index:])

    def _index_of(self, entry: ReplayEntry) -> int:
        """Return the index of an entry, searched from the end: there may be many, and the newest wait for answers."""
        for index in reversed(range(len(self._entries))):
            if self._entries[index] is entry:
                return index
        raise AssertionError("the answer is not for an entry of this replay log")

    def _replace_entries(self, entries: list[ReplayEntry]) -> None:
        self._entries = entries
        self.frame_bytes = sum(entry.bytes for entry in entries)


class ReplayStates:
    """The newest state of each slot.

    Batches of results are kept unchanged, with an index from slot to row. When most rows are stale, the live ones are
    copied into one batch. So the number of copies of each state is bounded, however many barriers there are.

    Attributes:
        nbytes: Bytes of all rows, including stale ones.
    """

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        # Row number of the state of each slot, counted over all batches; -1 if the slot has none.
        self._row_by_slot: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._rows = 0
        self.nbytes = 0

    def update(self, states: pa.Table) -> None:
        """Add n states. Each replaces the older state of its slot.

        Args:
            states: n rows: `slot`, ascending, and `state_i` among other columns.
        """
        if not states.num_rows:
            return
        state_names = [name for name in states.column_names if not name.startswith("output_")]
        for batch in states.select(state_names).to_batches():
            slots = batch.column("slot").to_numpy()
            slot_count = int(slots.max(initial=-1)) + 1
            if slot_count > len(self._row_by_slot):
                more = np.full(max(slot_count, 2 * len(self._row_by_slot)) - len(self._row_by_slot), -1, np.int64)
                self._row_by_slot = np.concatenate([self._row_by_slot, more])
            self._row_by_slot[slots] = self._rows + np.arange(batch.num_rows)
            self._batches.append(batch)
            self.nbytes += int(batch.nbytes)
            self._rows += batch.num_rows
        if self._rows > 2 * int((self._row_by_slot >= 0).sum()) + _STALE_ROWS_MIN:
            self.compact()

    def forget(self, slots: Slots) -> None:
        """Remove the states of n slots."""
        if not len(slots):
            return
        self._row_by_slot[slots[slots < len(self._row_by_slot)]] = -1
        if not (self._row_by_slot >= 0).any():
            self._batches, self._rows, self.nbytes = [], 0, 0

    def to_batch(self) -> pa.RecordBatch | None:
        """Return all states as one batch, with ascending slots; None if there are none."""
        if not self._batches:
            return None
        self.compact()
        return self._batches[0]

    def compact(self) -> None:
        """Remove stale rows."""
        indexes = self._row_by_slot[self._row_by_slot >= 0]
        table = pa.Table.from_batches(self._batches).take(pa.array(indexes)).combine_chunks()
        self._batches = [
            pa.RecordBatch.from_arrays([_merge_chunks(column) for column in table.columns], schema=table.schema)
        ]
        self._rows, self.nbytes = len(indexes), int(self._batches[0].nbytes)
        self._row_by_slot[self._row_by_slot >= 0] = np.arange(len(indexes))


def _failed_slots(results: pa.Table) -> Slots:
    """Return the slots that failed in an epoch. They are empty after it."""
    if results.schema.get_field_index(ERROR) < 0:
        return NO_SLOTS
    slots: Slots = results.filter(results[ERROR].is_valid())["slot"].to_numpy()
    return slots


def _merge_chunks(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
