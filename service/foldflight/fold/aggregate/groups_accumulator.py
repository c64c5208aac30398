"""The interface of the accumulators of one call, which each mode of evaluation implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots

if TYPE_CHECKING:
    from foldflight.fold.aggregate.state_codecs import StateOrigin


class CachedView(NamedTuple):
    """The entries of a view that are in memory.

    Args:
        entries: Their number.
        slot: The slot.
        function: The name of the function.
        view: The name of the view.
    """

    entries: int
    slot: int
    function: str
    view: str


class GroupsAccumulator(ABC):
    """The accumulators of one call for all groups of an exchange, by slot, the index of the group.

        rows ──update──▶ accumulators ──evaluate──▶ values
        states ──merge──▶     │  ──state──▶ states

    All methods take whole chunks: row i belongs to slot `slots[i]`. The slots of a chunk are in any order, and a slot
    may appear several times. The methods have the names of DataFusion's trait `GroupsAccumulator`.

    A slot without an accumulator is empty: folding into it creates one, merging into it loads the state, and its value
    is the value of a new accumulator. After an error the accumulators are undefined, and the exchange must be closed.
    """

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """The current mode: INTERPRETED, COMPILED, VECTORISED or COUNTED."""

    @abstractmethod
    def update(self, rows: Rows) -> None:
        """Apply n rows, in order.

        Raises:
            FunctionError: USER_CODE or RESULT_TYPE, with slot and row.
            RejectedError: CANNOT_RETRACT, for retracting rows of an append-only function.
        """

    @abstractmethod
    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        """Apply the rows selected by `mask`, in order, and return the value after each of the n rows.

        Args:
            rows: n rows.
            mask: bool, shape (n,): which rows are applied.
            requested: bool, shape (n,): the rows after which the value is computed and returned. None: all.
        """

    @abstractmethod
    def merge(self, slots: Slots, states: pa.Array) -> None:
        """Merge n states, none of them NULL, into n slots, in order; a slot may appear several times.

        Raises:
            RejectedError: CANNOT_MERGE, if a slot already has an accumulator and the function has no merge;
                STATE_MISMATCH, for a foreign state.
            CorruptError: STATE_CHECKSUM, for a damaged state.
        """

    @abstractmethod
    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        """Convert n states of another version, none of them NULL, and merge them like `merge`.

        Raises:
            FunctionError: USER_CODE, with slot, if `migrate` raises; and the errors of `merge`.
        """

    @abstractmethod
    def state(self, slots: Slots) -> pa.Array:
        """Return the states of n slots. Raises FunctionError OVERFLOW or RESULT_TYPE, with slot."""

    @abstractmethod
    def evaluate(self, slots: Slots) -> pa.Array:
        """Return the values of n slots, cast to the result type; accumulators stay as they are.

        Raises:
            FunctionError: With slot.
        """

    @abstractmethod
    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        """Return the values of n slots whose states have just been returned, as anybody computes them from the states.

        A state may have less than its accumulator: an int in a field of floats is rounded. The next epoch begins with
        the state, so the value that it takes back must be the value of the state.
        """

    @abstractmethod
    def forget(self, slots: Slots) -> None:
        """Empty n slots."""

    @abstractmethod
    def close(self) -> None:
        """Close the function."""
