"""What the engine keeps of one exchange, so that any server can take it over: states, and the frames since.

The states are those of the last barrier or checkpoint, one for each slot; only slots that changed come back, so they
are merged with what was there. The frames are the ones sent after it, in order. A server that loads the states and then
handles the frames holds the same accumulators as the one that was lost.

Where barriers return no states, frames stay until a checkpoint brings them, or until every slot is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.exchange.frames import SLOT_BYTES, Barrier, Checkpoint, Chunk, EngineFrame, Forget, States
from foldflight.exchange.slots import Slots, SlotSet, slots_of
from foldflight.fold import ERROR

__all__ = ["Entry", "Journal", "KeptStates"]

# Stale rows that are tolerated beside as many live ones before all are copied together.
_STALE_ROWS_MIN: Final = 1024


@dataclass(eq=False)
class Entry:
    """One frame of the engine.

    Args:
        frame: The frame.
        asks: Whether a server answers it.
        sent: Whether it has been sent to any server.
        answered: Whether the answer has reached the engine: if it comes again, from another server, it is dropped.
        changed: Of a barrier, the slots that its results are about.
    """

    frame: EngineFrame
    asks: bool
    sent: bool = False
    answered: bool = False
    changed: Slots = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def bytes(self) -> int:
        """What keeping it costs."""
        match self.frame:
            case States() | Chunk():
                return max(int(self.frame.batch.nbytes), self.frame.batch.num_rows * SLOT_BYTES)
            case Forget():
                return int(self.frame.slots.nbytes)
            case _:
                return 0

    @property
    def rows(self) -> int:
        """Rows that a server folds for it."""
        return int(self.frame.batch.num_rows) if isinstance(self.frame, Chunk) else 0


class Journal:
    """States and frames of one exchange.

    Args:
        returns_states: Whether the results of barriers carry states.
    """

    def __init__(self, *, returns_states: bool) -> None:
        self.kept = KeptStates()
        self.frame_bytes = 0
        self._returns_states = returns_states
        self._entries: list[Entry] = []
        self._live = SlotSet()  # slots that hold an accumulator, whichever server it is on
        self._changed = SlotSet()  # slots of the next results

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Note a frame."""
        match entry.frame:
            case States() | Chunk():
                slots = slots_of(entry.frame.batch)
                self._live.add(slots)
                self._changed.add(slots)
            case Forget():
                slots = entry.frame.slots.to_numpy(zero_copy_only=False)
                self._live.discard(slots)
                self._changed.discard(slots)
            case Barrier():
                entry.changed = self._changed.to_numpy()
                self._changed.clear()
            case _:
                pass
        self._entries.append(entry)
        self.frame_bytes += entry.bytes

    def is_idle(self) -> bool:
        """Tell whether no slot holds anything and no answer is due: then there is nothing to take over."""
        return not self._live and all(entry.answered or not entry.asks for entry in self._entries)

    def clear(self) -> None:
        """Forget everything but the frames whose answer is due."""
        self.kept = KeptStates()
        self._keep([entry for entry in self._entries if entry.asks and not entry.answered])

    def drop_questions(self) -> None:
        """Take out what asked one server whether it wants to be left: for any other it is another question."""
        self._entries = [each for each in self._entries if each.frame != Checkpoint(if_reopen=True)]

    def commit(self, entry: Entry, states: pa.Table) -> None:
        """Note the answer to a barrier or checkpoint: where it has states, what led to them is forgotten."""
        place = self._entries.index(entry) + 1
        failed = _failed(states) if isinstance(entry.frame, Barrier) else np.zeros(0, np.int32)
        if isinstance(entry.frame, Barrier) and not self._returns_states:
            # Also where a function that is not deterministic does not raise again, its slot begins empty.
            if len(failed):
                forgetting = Entry(Forget(pa.array(failed, pa.int32())), asks=False)
                self._keep([*self._entries[:place], forgetting, *self._entries[place:]])
            return
        for past in self._entries[:place]:
            if isinstance(past.frame, Forget):
                self.kept.forget(past.frame.slots.to_numpy(zero_copy_only=False))
        self.kept.update(states)
        self.kept.forget(failed)
        self._keep(self._entries[place:])

    def _keep(self, entries: list[Entry]) -> None:
        self._entries = entries
        self.frame_bytes = sum(entry.bytes for entry in entries)


class KeptStates:
    """The newest state of each slot.

    Results are kept as they came, and a slot knows which row is its own; when most rows are stale they are copied
    together. So each state is copied a bounded number of times, however many barriers there are.

    Attributes:
        nbytes: Bytes that are held, stale rows among them.
    """

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        # Where the state of a slot stands in the batches, one after another; -1: it has none.
        self._places: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._rows = 0
        self.nbytes = 0

    def update(self, states: pa.Table) -> None:
        """Put n states in, each in place of its slot's older one.

        Args:
            states: n rows: `slot`, ascending, and `state_i` among other columns.
        """
        wanted = [name for name in states.column_names if not name.startswith("output_")]
        for batch in states.select(wanted).to_batches():
            slots = slots_of(batch)
            needed = int(slots.max(initial=-1)) + 1
            if needed > len(self._places):
                more = np.full(max(needed, 2 * len(self._places)) - len(self._places), -1, np.int64)
                self._places = np.concatenate([self._places, more])
            self._places[slots] = self._rows + np.arange(batch.num_rows)
            self._batches.append(batch)
            self.nbytes += int(batch.nbytes)
            self._rows += batch.num_rows
        if self._rows > 2 * int((self._places >= 0).sum()) + _STALE_ROWS_MIN:
            self._compact()

    def forget(self, slots: Slots) -> None:
        """Take the states of n slots out."""
        self._places[slots[slots < len(self._places)]] = -1
        if not (self._places >= 0).any():
            self._batches, self._rows, self.nbytes = [], 0, 0

    def to_batch(self) -> pa.RecordBatch | None:
        """Return all states as one batch, slots ascending; None if there are none."""
        if not self._batches:
            return None
        self._compact()
        return self._batches[0]

    def _compact(self) -> None:
        places = self._places[self._places >= 0]
        table = pa.Table.from_batches(self._batches).take(pa.array(places)).combine_chunks()
        self._batches = [pa.RecordBatch.from_arrays([_one(column) for column in table.columns], schema=table.schema)]
        self._rows, self.nbytes = len(places), int(self._batches[0].nbytes)
        self._places[self._places >= 0] = np.arange(len(places))


def _failed(results: pa.Table) -> Slots:
    """Return the slots that have failed in an epoch: they are empty after it."""
    if ERROR not in results.column_names:
        return np.zeros(0, np.int32)
    slots: Slots = results.filter(results[ERROR].is_valid())["slot"].to_numpy()
    return slots


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
