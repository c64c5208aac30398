"""What a fold asks of the accumulators of one call, whoever folds them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from foldflight.fold.aggregate.migration import Written
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots

__all__ = ["Accumulators"]


class Accumulators(ABC):
    """The accumulators of one call, by slot.

    A slot without an accumulator is empty: folding into it creates one, merging into it loads the state, and its value
    is that of a fresh accumulator. After an error the accumulators are undefined, and the exchange is over.
    """

    @property
    @abstractmethod
    def kind(self) -> Mode:
        """How they are folded now: INTERPRETED, COMPILED, VECTORISED or COUNTED."""

    @abstractmethod
    def fold(self, rows: Rows) -> None:
        """Apply n rows, in order.

        Raises:
            FunctionError: USER_CODE or RESULT_TYPE, with slot and row.
            RejectedError: CANNOT_RETRACT, for retracting rows of an append-only function.
        """

    @abstractmethod
    def fold_each(self, rows: Rows, kept: Mask) -> pa.Array:
        """Apply those of n rows that the mask keeps, in order, and return the value after each of the n rows."""

    @abstractmethod
    def merge(self, slots: Slots, states: pa.Array) -> None:
        """Merge n states, none of them NULL, into n slots, in order; a slot may appear several times.

        Raises:
            RejectedError: CANNOT_MERGE, when a slot already has an accumulator and the function has no merge;
                STATE_MISMATCH, for a foreign state.
            CorruptError: STATE_CHECKSUM, for a damaged one.
        """

    @abstractmethod
    def migrate(self, slots: Slots, states: pa.Array, written: Written) -> None:
        """Merge n states that another version has left, none of them NULL, as `merge` does with its own.

        Raises:
            FunctionError: USER_CODE, when `migrate` raises, with slot; and what `merge` raises.
        """

    @abstractmethod
    def states(self, slots: Slots) -> pa.Array:
        """Return the states of n slots. Raises FunctionError OVERFLOW or RESULT_TYPE, with slot."""

    @abstractmethod
    def outputs(self, slots: Slots) -> pa.Array:
        """Return the values of n slots, cast to the result type. Raises FunctionError, with slot."""

    @abstractmethod
    def forget(self, slots: Slots) -> None:
        """Make n slots empty."""

    @abstractmethod
    def close(self) -> None:
        """Let the function release what it holds."""
