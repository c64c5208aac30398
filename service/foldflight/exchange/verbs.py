"""The verbs of an engine: what it may say in an exchange, each as one frame."""

from __future__ import annotations

import abc
from typing import Generic, TypeVar

import pyarrow as pa

from foldflight.exchange.frames import Barrier, Checkpoint, Chunk, Forget, States

__all__ = ["Verbs"]

Given_co = TypeVar("Given_co", covariant=True)


class Verbs(abc.ABC, Generic[Given_co]):
    """An engine's verbs. What becomes of the frame of a verb is a subclass's to say."""

    @abc.abstractmethod
    def _give(self, frame: States | Chunk | Forget | Barrier | Checkpoint) -> Given_co:
        """Take the frame of a verb."""

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> Given_co:
        """Merge states into slots: columns `slot` int32 and one `state_i` for each call.

        Args:
            batch: n rows; a slot may appear many times, and one without accumulator is loaded.
            unanswered: Whether no initial outputs are wanted for these slots, though Open asks for them.
        """
        return self._give(States(batch, unanswered=unanswered))

    def chunk(self, batch: pa.RecordBatch) -> Given_co:
        """Fold rows: a batch of the columns that Open announced."""
        return self._give(Chunk(batch))

    def forget(self, slots: pa.Int32Array) -> Given_co:
        """Drop the accumulators of these slots."""
        return self._give(Forget(slots))

    def barrier(self, epoch: int) -> Given_co:
        """End an epoch; its results are the answer. The first epoch is free, each later one is one more."""
        return self._give(Barrier(epoch))
