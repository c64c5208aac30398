"""DISTINCT, ORDER BY and materialised input: a group keeps its distinct rows with their counts.

The rows are folded when the group's value is requested: each row once for DISTINCT, otherwise as often as its count.
They are folded in the order of the call or, if it has none, of their first appearance. Therefore such calls support
merge and retract whatever the class defines. A row consists of the arguments of the call and the keys of its order.

The rows of all groups are columns of Arrow, in the order in which they came. Equal rows are counted where it matters:
for states, for DISTINCT, after retractions, and when there are several times as many rows as before. Otherwise
only the ties of an order are searched for equal rows, because these are folded next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.state_codecs import StateOrigin, unreadable
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Codes, Column, Mask, Positions, Rows, Slots, codes_of, codes_of_numbers, sort
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.query.call import Order
from foldflight.functions.types.lists import indexes_of_ranges
from foldflight.functions.types.serializer import StateSerializer, list_of_tuples

_COUNT: Final = "times"
_COUNTED_ROWS_MIN: Final = 1 << 18  # rows up to which equal ones are not counted to save memory
_PART_ROWS: Final = 1 << 17  # rows that are folded at once
_TIMES_MAX: Final = 1 << 62

Times = npt.NDArray[np.int64]


def counted_serializer(bound: BoundFunction, keys: Sequence[pa.DataType] = ()) -> StateSerializer:
    """Return the layout of the states: a list of (argument 0, ..., argument n - 1, key 0, ..., times).

    Args:
        bound: The function.
        keys: The types of the keys of the call's order.
    """
    fields = [(f"argument_{index}", type_) for index, type_ in enumerate(bound.input_types)]
    fields += [(f"key_{index}", type_) for index, type_ in enumerate(keys)]
    return list_of_tuples([*fields, (_COUNT, pa.int64())])


class _Table(NamedTuple):
    """n rows of all groups, in the order in which they came. Rows retracted before insertion have negative times."""

    slots: Slots
    columns: list[pa.Array]
    times: Times

    def take(self, rows: Positions) -> _Table:
        return _Table(self.slots[rows], _take(self.columns, rows), self.times[rows])

    def copy(self) -> _Table:
        """Copy the rows. The memory of a message has all its columns, and is freed as a whole."""
        columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in self.columns]
        return _Table(self.slots.copy(), columns, self.times.copy())


class _Runs(NamedTuple):
    """n rows, sorted so that equal rows of a slot are next to each other (a run), in the order in which they came.

    Args:
        rows: Their positions.
        starts: bool: which of them begin a run.
        counts: How often the row is there after each of them.
        first_rows: The position of the row since which there is at least one of them; its own, if there is none.
    """

    rows: Positions
    starts: Mask
    counts: Times
    first_rows: Positions


class RowMultiset(GroupsAccumulator):
    """Distinct rows with their counts, by slot.

    Args:
        inner: Folds the rows of groups when their values are requested, and has no accumulators in between.
        bound: The function.
        failures: The slots that have failed.
        context: The function's context, which tells the slots of its log.
        each_once: Whether equal rows are folded once (DISTINCT) or as often as they occur.
        order: The order of the call.
        keys: The types of the keys of the order.
    """

    def __init__(
        self,
        inner: GroupsAccumulator,
        *,
        bound: BoundFunction,
        failures: Failures,
        context: FunctionContext,
        each_once: bool,
        order: Sequence[Order] = (),
        keys: Sequence[pa.DataType] = (),
    ) -> None:
        self._inner = inner
        self._name = bound.function.name
        self._failures = failures
        self._context = context
        self._each_once = each_once
        self._order = order
        self._state_type = counted_serializer(bound, keys).arrow
        self._types = [*bound.input_types, *keys]
        self._result_type = bound.result_type
        self._arguments = len(bound.input_types)
        names = bound.function.input_names
        self._names = [names[index] if index < len(names) else str(index) for index in range(self._arguments)]
        self._names += [each.column for each in order]
        self._parts: list[_Table] = []
        self._are_counted = True  # whether no two rows of a slot are equal
        self._rows, self._rows_max = 0, _COUNTED_ROWS_MIN

    @property
    def mode(self) -> Mode:
        return Mode.COUNTED

    def update(self, rows: Rows) -> None:
        self._add(_table_of(rows))

    def _add(self, part: _Table) -> None:
        if not len(part.slots):
            return
        self._parts.append(part.copy())
        self._are_counted = False
        self._rows += len(part.slots)
        if self._rows > self._rows_max:
            before = self._rows
            self._count_equal()
            # Where few rows were equal, few will be.
            factor = 2 if 2 * self._rows < before else 4
            self._rows_max = max(factor * self._rows, _COUNTED_ROWS_MIN)

    def _gather(self) -> _Table:
        """Return all rows as one table."""
        if len(self._parts) != 1:
            self._parts = [_concatenate(self._parts, self._types)]
        return self._parts[0]

    def _count_equal(self) -> _Table:
        """Return all rows, with equal ones of a slot as one row with its count, where the first of them came."""
        table = self._gather()
        if self._are_counted:
            return table
        runs = self._sort_into_runs(table)
        remains = np.append(runs.starts[1:], True) & (runs.counts != 0) if len(runs.rows) else runs.starts
        if not remains.all():
            first_rows, counts = runs.first_rows[remains], runs.counts[remains]
            order = np.argsort(first_rows)
            table = table.take(first_rows[order])._replace(times=counts[order])
            self._parts, self._rows = [table], len(table.slots)
        self._are_counted = True
        return table

    def _sort_into_runs(self, table: _Table) -> _Runs:
        """Sort equal rows into runs, and count them. Raises RejectedError STATE_MISMATCH for impossible counts."""
        rows, starts = sort([codes_of_numbers(table.slots), *self._codes(table.columns)])
        times = table.times[rows]
        if np.abs(times.astype(np.float64)).sum() >= _TIMES_MAX:
            raise unreadable(self._name, "a row was added too often")
        places, first, sums = np.arange(len(rows)), _latest(starts), np.cumsum(times)
        counts = sums - (sums - times)[first]
        # A row that was gone and comes again comes after the rows that came in between.
        removal_places = np.maximum.accumulate(np.where(counts == 0, places, -1))
        first_places = np.where(counts == 0, places, np.maximum(removal_places + 1, first))
        return _Runs(rows, starts, counts, rows[first_places])

    def _codes(self, columns: Sequence[pa.Array]) -> Iterator[Codes]:
        for name, array in zip(self._names, columns, strict=True):
            yield codes_of(Column(name, array))

    def _codes_of_order(self, columns: Sequence[pa.Array]) -> Iterator[Codes]:
        for order, array in zip(self._order, columns[self._arguments :], strict=True):
            yield codes_of(Column(order.column, array), order)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        rows = states.flatten()
        *columns, times = rows.flatten()
        if rows.null_count or times.null_count:
            raise unreadable(self._name, "a row or its count is NULL")
        counts = states.value_lengths().to_numpy(zero_copy_only=False)
        self._add(_Table(np.repeat(slots, counts), columns, times.to_numpy(zero_copy_only=False)))

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:  # noqa: ARG002 - rows are rows
        self.merge(slots, states)

    def state(self, slots: Slots) -> pa.Array:
        table = self._count_equal()
        order, _ = sort([codes_of_numbers(table.slots)])
        of_slots = table.slots[order]
        starts = np.searchsorted(of_slots, slots)
        counts = np.searchsorted(of_slots, slots, side="right") - starts
        rows = order[indexes_of_ranges(starts, counts)]
        columns = [*_narrow(_take(table.columns, rows), self._types), pa.array(table.times[rows])]
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
        members = pa.StructArray.from_arrays(columns, fields=list(self._state_type.value_type))
        return pa.ListArray.from_arrays(offsets, members, type=self._state_type)

    def evaluate(self, slots: Slots) -> pa.Array:
        is_plain = self._order and not self._each_once and all((part.times > 0).all() for part in self._parts)
        table = self._gather() if is_plain else self._count_equal()
        rows, times = self._in_order(table, np.flatnonzero(np.isin(table.slots, slots)))
        self._fold(table.slots[rows], table.columns, rows, times)
        outputs = self._inner.evaluate(slots)
        self._inner.forget(slots)
        return outputs

    def _in_order(self, table: _Table, rows: Positions) -> tuple[Positions, Times]:
        """Return rows by slot, in the order in which they are folded, and their times."""
        are_all = len(rows) == len(table.slots)
        columns = table.columns if are_all else _take(table.columns, rows)
        order, differs = sort([codes_of_numbers(table.slots[rows]), *self._codes_of_order(columns)])
        rows = rows[order]
        times = table.times[rows]
        ties = np.flatnonzero(~(differs & np.append(differs[1:], True))) if len(rows) else rows
        if self._are_counted or not len(ties):
            return rows, times
        # Equal rows are folded next to each other, where the first of them is, and as it is.
        tied_rows = rows[ties]
        codes = self._codes(_take(table.columns, tied_rows))
        equal, starts = sort([codes_of_numbers(np.cumsum(differs)[ties]), *codes])
        first = np.empty(len(ties), np.int64)
        first[equal] = equal[_latest(starts)]
        together, _ = sort([codes_of_numbers(first)])
        rows[ties], times[ties] = tied_rows[first[together]], table.times[tied_rows[together]]
        return rows, times

    def _fold(self, slots: Slots, columns: Sequence[pa.Array], rows: Positions, times: Times) -> None:
        """Fold the rows at n positions of columns into n slots, each as often as it occurs."""
        times = np.clip(times, 0, 1 if self._each_once else None)
        ends = np.cumsum(times)
        count = int(ends[-1]) if len(ends) else 0
        are_single = bool((times == 1).all())
        for start in range(0, count, _PART_ROWS):
            stop = min(start + _PART_ROWS, count)
            part = slice(start, stop) if are_single else np.searchsorted(ends, np.arange(start, stop), side="right")
            into, row_positions = slots[part], rows[part]
            if self._failures:
                sound = ~self._failures.among(into)
                into, row_positions = into[sound], row_positions[sound]
            if not len(into):
                continue
            arrays = _narrow(_take(columns[: self._arguments], row_positions), self._types)
            arguments = [Column(name, array) for name, array in zip(self._names, arrays, strict=False)]
            self._inner.update(Rows(into, None, arguments))

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        positions = np.arange(len(rows)) if requested is None else np.flatnonzero(requested)
        positions = positions[np.argsort(rows.slots[positions], kind="stable")]
        before = self._count_equal()
        earlier_table = before.take(np.flatnonzero(np.isin(before.slots, rows.slots)))
        new_table = _table_of(rows.filter(mask))
        table = _concatenate([earlier_table, new_table], self._types)
        versions = self._versions(
            table, np.concatenate([np.full(len(earlier_table.slots), -1), np.flatnonzero(mask)]), rows
        )
        outputs = []
        for part, numbers, current in versions.after(rows.slots, positions, _PART_ROWS):
            into, times = numbers.astype(np.int32), versions.times[current]
            with self._slot_numbers(rows.slots[positions[part]]) as each:
                self._fold(into, table.columns, versions.rows[current], times)
                outputs.append(self._inner.evaluate(each))
                self._inner.forget(each)
        self._add(new_table)
        if not outputs:
            return pa.array([], self._result_type)
        return pa.concat_arrays(outputs).take(pa.array(np.argsort(positions)))

    def _versions(self, table: _Table, at: Positions, chunk: Rows) -> _Versions:
        """Return the versions of rows during a chunk, given with which of its rows each row comes; -1 is before it."""
        runs = self._sort_into_runs(table)
        since = at[runs.rows]
        until = np.where(np.append(runs.starts[1:], True), len(chunk), np.append(since[1:], len(chunk)))
        present = np.flatnonzero((runs.counts > 0) & (since < until))
        present = present[np.argsort(runs.first_rows[present], kind="stable")]
        rows = runs.first_rows[present]
        codes = self._codes_of_order(_take(table.columns, rows) if self._order else table.columns)
        order, _ = sort([codes_of_numbers(table.slots[rows]), *codes])
        present, rows = present[order], rows[order]
        return _Versions(table.slots[rows], rows, runs.counts[present], since[present], until[present], len(chunk))

    @contextmanager
    def _slot_numbers(self, slots: Slots) -> Iterator[Slots]:
        """Yield numbers to be used as slots in the place of n slots, which errors and logs have as they are."""
        of_context = self._context.slot_at_work

        def slot_at_work() -> int | None:
            number = of_context()
            return None if number is None else int(slots[number])

        self._context.slot_at_work = slot_at_work
        try:
            yield np.arange(len(slots), dtype=np.int32)
        except FunctionError as error:
            if error.slot is not None:
                error.slot = int(slots[error.slot])
            raise
        finally:
            self._context.slot_at_work = of_context

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:  # noqa: ARG002 - states are the rows themselves
        return self.evaluate(slots)

    def forget(self, slots: Slots) -> None:
        if not self._rows:
            return
        table = self._gather()
        remains = ~np.isin(table.slots, slots)
        if remains.all():
            return
        self._rows = int(remains.sum())
        self._parts = [table.take(np.flatnonzero(remains))] if self._rows else []
        self._rows_max = max(2 * self._rows, _COUNTED_ROWS_MIN)

    def close(self) -> None:
        self._parts, self._rows = [], 0
        self._inner.close()


@dataclass(frozen=True)
class _Versions:
    """The counts that rows have during a chunk, each from one row of the chunk to another one.

    They are sorted by slot, and within a slot as they are folded.

    Args:
        slots: The slots of n versions.
        rows: The positions of the rows that are folded.
        times: How often each is folded.
        since: The row of the chunk with which a version begins; -1 before the chunk.
        until: The row of the chunk with which it ends.
        length: The rows of the chunk.
    """

    slots: Slots
    rows: Positions
    times: Times
    since: Positions
    until: Positions
    length: int

    def after(self, slots: Slots, positions: Positions, rows_max: int) -> Iterator[tuple[slice, Positions, Positions]]:
        """Yield parts of rows of the chunk, with the versions that are there after each of them.

        Args:
            slots: The slots of the chunk.
            positions: The rows, sorted by slot.
            rows_max: The most versions in a part of several rows.

        Yields:
            A part of `positions`; the number of a row in the part, and a version, for each version after each row.
        """
        span = self.length + 1
        keys = slots[positions].astype(np.int64) * span + positions
        slot_keys = self.slots.astype(np.int64) * span
        low = np.searchsorted(keys, slot_keys + np.maximum(self.since, 0))
        high = np.searchsorted(keys, slot_keys + self.until)
        changes = np.bincount(low, minlength=len(positions) + 1) - np.bincount(high, minlength=len(positions) + 1)
        ends = np.cumsum(np.cumsum(changes)[:-1])
        start = 0
        while start < len(positions):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + rows_max, side="right")), start + 1)
            first, last = np.clip(low, start, stop), np.clip(high, start, stop)
            numbers = indexes_of_ranges(first - start, last - first)
            versions = np.repeat(np.arange(len(low)), last - first)
            order, _ = sort([codes_of_numbers(numbers), codes_of_numbers(versions)])
            yield slice(start, stop), numbers[order], versions[order]
            start = stop


def _table_of(rows: Rows) -> _Table:
    times = np.ones(len(rows), np.int64)
    if rows.retracts is not None:
        times[rows.retracts] = -1
    return _Table(rows.slots, [column.array for column in rows.arguments], times)


def _latest(starts: Mask) -> Positions:
    """Return for each of n places the last one up to it at which something starts."""
    return np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))


def _take(columns: Sequence[pa.Array], rows: Positions) -> list[pa.Array]:
    indexes = pa.array(rows)
    return [column.take(indexes) for column in columns]


def _concatenate(tables: Sequence[_Table], types: Sequence[pa.DataType]) -> _Table:
    return _Table(
        np.concatenate([np.zeros(0, np.int32), *(table.slots for table in tables)]),
        [_join([table.columns[index] for table in tables], type_) for index, type_ in enumerate(types)],
        np.concatenate([np.zeros(0, np.int64), *(table.times for table in tables)]),
    )


_LARGE: Final = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def _join(arrays: Sequence[pa.Array], type_: pa.DataType) -> pa.Array:
    """Return arrays of a type as one; of the type with large offsets, if its offsets cannot count so many bytes."""
    large = _LARGE.get(type_)
    if large is not None and (
        any(array.type == large for array in arrays) or sum(array.nbytes for array in arrays) >> 31
    ):
        return pa.concat_arrays([array.cast(large) for array in arrays])
    return pa.concat_arrays(arrays) if arrays else pa.array([], type_)


def _narrow(arrays: Sequence[pa.Array], types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return a few values of joined arrays in their types."""
    return [array if array.type == type_ else array.cast(type_) for array, type_ in zip(arrays, types, strict=False)]
