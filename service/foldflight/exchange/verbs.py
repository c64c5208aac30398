"""The verbs of an engine. Each verb corresponds to one frame."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

import pyarrow as pa

from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Entries, Forget, States

__all__ = ["ExchangeVerbs"]

Given_co = TypeVar("Given_co", covariant=True)


class ExchangeVerbs(abc.ABC, Generic[Given_co]):
    """The verbs of an engine. A subclass decides what happens to the frame of a verb."""

    @abc.abstractmethod
    def _give(self, frame: States | Entries | Chunk | Forget | Barrier | Checkpoint) -> Given_co:
        """Process the frame of a verb."""

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> Given_co:
        """Merge states into slots: columns `slot` int32 and one `state_i` for each call.

        Args:
            batch: n rows. A slot may appear many times. A state for an empty slot is loaded.
            unanswered: Whether the server omits the initial outputs of these slots although Open requests them.
        """
        return self._give(States(batch, unanswered=unanswered))

    def entries(self, batch: pa.RecordBatch, *, last: bool = False) -> Given_co:
        """Give entries of views, as of the last barrier or checkpoint, before the rows that use them.

        Args:
            batch: n rows: `slot` int32 and `state_i` for calls with views.
            last: In the answer to `Wanted`: whether this is its last part.
        """
        return self._give(Entries(batch, last=last))

    def chunk(self, batch: pa.RecordBatch) -> Given_co:
        """Fold the rows of a batch. Its schema is `Open.columns`."""
        return self._give(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> Given_co:
        """Drop the accumulators of these slots."""
        return self._give(Forget(slots))

    def barrier(self, epoch: int) -> Given_co:
        """End an epoch; the answer is its results. The first epoch has any number, each later one the next number."""
        return self._give(Barrier(epoch))
