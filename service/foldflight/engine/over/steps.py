"""A step of an OVER stream, and what folds the calls of one window frame in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.engine.keys.grouped import Groups
from foldflight.engine.over.positions import Positions
from foldflight.engine.over.stream import distance_us
from foldflight.engine.query.layout import REAL, QueryLayout
from foldflight.engine.state.manifest import TableLayout
from foldflight.engine.state.table import Conversion, StateTable
from foldflight.engine.state.timelog import TIME, TimeLog
from foldflight.functions.query.frame import WindowFrame

Slots = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Step(NamedTuple):
    """Due rows, sorted by group and then by the order.

    Args:
        rows: n rows.
        groups: The groups.
        slots: int32, shape (n,): the group of each row.
        times: int64, shape (n,).
        peers: int64, shape (n,): a number that is equal exactly for adjacent rows with equal key and order.
        anew: bool, shape (n,): whether the group of a row starts with empty state at this row, because it was idle.
        until: All rows up to this time are here or were in an earlier step.
    """

    rows: pa.RecordBatch
    groups: Groups
    slots: Slots
    times: Positions
    peers: Positions
    anew: Mask
    until: int

    def of_groups(self, begin: int, count: int) -> Step:
        """Return the rows from the position `begin` on of at most `count` groups. A group has adjacent rows."""
        firsts = np.flatnonzero(np.diff(self.slots[begin:], prepend=-1)) + begin
        end = int(firsts[count]) if count < len(firsts) else len(self.slots)
        chosen = slice(begin, end)
        return self._replace(
            rows=self.rows.slice(begin, end - begin),
            slots=self.slots[chosen],
            times=self.times[chosen],
            peers=self.peers[chosen],
            anew=self.anew[chosen],
        )


class WindowFrameStores(NamedTuple):
    """What a bucket stores for a window frame: groups, and rows that leave later."""

    table: StateTable | None
    log: TimeLog | None


class CallsFold(ExitStack, ABC):
    """Folds the calls of one window frame, for all buckets of a task; a context manager that closes its exchanges."""

    def __init__(self, window_frame: WindowFrame, layout: QueryLayout, buckets: int) -> None:
        super().__init__()
        self.window_frame = window_frame
        self.layout = layout
        self._buckets = buckets

    @property
    @abstractmethod
    def states(self) -> pa.Schema:
        """The columns that the state table has for each group; none if groups keep nothing."""

    @property
    def conversion(self) -> Conversion | None:
        """Converts the states of other versions of functions; None if groups keep no states of functions."""
        return None

    @property
    def table(self) -> TableLayout | None:
        """The layout of the state table."""
        if not len(self.states):
            return None
        names = (*self.layout.names, *self.layout.outputs.names)
        return TableLayout(
            self.layout.keys, self.states, self._buckets, window=f"over {self.window_frame}", names=names
        )

    @property
    def log(self) -> pa.Schema | None:
        """The rows that leave window frames later: their time, keys and arguments."""
        if distance_us(self.window_frame) is None:
            return None
        return pa.schema([pa.field(TIME, pa.int64()), *self.layout.keys, *self.layout.columns])

    @abstractmethod
    def outputs(self, step: Step, stores: WindowFrameStores) -> list[pa.Array]:
        """Fold the due rows, store the rows that later window frames need, and return the n outputs of each call.

        Raises:
            FunctionError: With function and group.
        """


def columns_of(rows: pa.RecordBatch, names: list[str]) -> pa.RecordBatch:
    """Return argument columns; a column of NULLs if there are none, because a batch needs one to have rows."""
    if names:
        return rows.select(names)
    return pa.RecordBatch.from_arrays([pa.nulls(rows.num_rows, pa.bool_())], names=[REAL])
