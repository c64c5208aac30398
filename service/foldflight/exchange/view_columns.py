"""Views in columns of states: their form without entries, and the division of long ones over messages."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.functions.types.arrow import with_column
from foldflight.functions.types.views import ViewSpec


def question_states(states: pa.Array, views: Sequence[ViewSpec]) -> pa.Array:
    """Return n states whose views have no entries, so that a server asks for the entries that it needs.

    A list has one entry, which does not exist and whose key is the number of its items. Other members are unchanged.
    """
    return _with_views(states, views, _asking_view) if views else states


def without_entries(results: pa.Table, views: Sequence[Sequence[ViewSpec]]) -> pa.Table:
    """Return results of which only the states are needed, without the entries of views.

    A slot whose entries came in several rows has one row: its first, with the numbers of items of its last.

    Args:
        results: n rows with `slot`, ascending, and `state_i`.
        views: The views of each call.
    """
    if not results.num_rows or not any(views):
        return results
    batch = results.combine_chunks().to_batches()[0]
    slots = batch.column("slot").to_numpy()
    is_first = np.append(True, slots[1:] != slots[:-1])
    firsts = np.flatnonzero(is_first)
    for call, specs in enumerate(views):
        if not specs:
            continue
        index = batch.schema.get_field_index(f"state_{call}")
        states = question_states(batch.column(index), specs)
        if len(firsts) < len(slots):
            states = _with_last_numbers(states, specs, firsts, len(slots))
        batch = with_column(batch, batch.schema.field(index), states)
    return pa.Table.from_batches([batch.take(pa.array(firsts))])


def _with_last_numbers(
    states: pa.StructArray, views: Sequence[ViewSpec], firsts: npt.NDArray[np.int64], count: int
) -> pa.StructArray:
    """Return states without entries, in which each list of a first row has the largest number of items of its slot."""
    owners = np.cumsum(np.isin(np.arange(count), firsts)) - 1

    def with_last_number(column: pa.StructArray, view: ViewSpec) -> pa.StructArray:
        if not view.is_list:
            return column
        numbers = np.zeros(len(firsts), np.int64)
        np.maximum.at(numbers, owners, column.field("entries").flatten().field("key").to_numpy())
        return _asking_view(column, view, numbers[owners].tolist())

    return _with_views(states, views, with_last_number)


def _with_views(
    states: pa.StructArray,
    views: Sequence[ViewSpec],
    with_last_number: Callable[[pa.StructArray, ViewSpec], pa.StructArray],
) -> pa.StructArray:
    """Return n states with other views."""
    specs = {view.name: view for view in views}
    members = [
        with_last_number(states.field(index), specs[field.name]) if field.name in specs else states.field(index)
        for index, field in enumerate(states.type)
    ]
    mask = states.is_null() if states.null_count else None
    return pa.StructArray.from_arrays(members, fields=list(states.type), mask=mask)


def _asking_view(column: pa.StructArray, view: ViewSpec, numbers: Sequence[int] | None = None) -> pa.StructArray:
    count = len(column)
    no = pa.repeat(pa.scalar(value=False), count)
    type_ = column.type.field("entries").type
    if view.is_list:
        key = pa.array(_numbers_of_items(column) if numbers is None else numbers, view.key)
        lasts = pa.StructArray.from_arrays([key, pa.nulls(count, view.value), no], fields=list(type_.value_type))
        offsets: Iterable[int] = range(count + 1)
    else:
        lasts, offsets = pa.nulls(0, type_.value_type), itertools.repeat(0, count + 1)
    entries = pa.ListArray.from_arrays(pa.array(list(offsets), pa.int32()), lasts).cast(type_)
    mask = column.is_null() if column.null_count else None
    return pa.StructArray.from_arrays([no, no, entries], fields=list(column.type), mask=mask)


def _numbers_of_items(column: pa.StructArray) -> list[int]:
    """Return the number of items of n lists: the length of a complete list, or the key of the last entry."""
    entries = column.field("entries")
    keys, offsets = entries.values.field("key"), entries.offsets.to_pylist()
    present = entries.values.field("present")
    numbers = []
    for start, end in itertools.pairwise(offsets):
        last = end - 1
        numbers.append(0 if end == start else keys[last].as_py() + bool(present[last].as_py()))
    return numbers


def split_entries(
    batch: pa.RecordBatch, views: Sequence[Sequence[ViewSpec]], bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield a row with states in parts of about `bytes_max` bytes: the first has all but the entries that do not fit.

    Each later part has the slot, and states in which only views have values: entries that follow, not complete. Several
    rows are yielded as they are, because they have been split already.

    Args:
        batch: Rows with `slot`, `state_i`, and other columns.
        views: The views of each call.
        bytes_max: The bound.
    """
    if batch.num_rows != 1 or batch.nbytes <= bytes_max:
        yield batch
        return
    counts = [
        len(batch.column(f"state_{call}").field(view.name).field("entries").flatten())
        for call, specs in enumerate(views)
        for view in specs
        if batch.column(f"state_{call}").is_valid()[0].as_py()
    ]
    total = sum(counts)
    if total <= 1:
        yield batch
        return
    size = max(total * bytes_max // (2 * batch.nbytes), 1)
    yield from _parts(batch, views, range(0, max(counts), size), bytes_max)


def _parts(
    batch: pa.RecordBatch, views: Sequence[Sequence[ViewSpec]], starts: range, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the parts of a row that begin at these entries; smaller ones where entries of unequal size need it."""
    for start in starts:
        end = min(start + starts.step, starts.stop)
        part = _part(batch, views, start, end - start)
        if part.nbytes > bytes_max and end - start > 1:
            yield from _parts(batch, views, range(start, end, -(-(end - start) // 2)), bytes_max)
        else:
            yield part


def _part(batch: pa.RecordBatch, views: Sequence[Sequence[ViewSpec]], start: int, size: int) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    names = {f"state_{call}": specs for call, specs in enumerate(views)}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name in names and column.is_valid()[0].as_py() and names[field.name]:
            columns.append(_state_part(column, names[field.name], start, size))
        elif start == 0 or field.name == "slot":
            columns.append(column)
        else:
            columns.append(pa.nulls(1, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _state_part(state: pa.StructArray, views: Sequence[ViewSpec], start: int, size: int) -> pa.StructArray:
    def cut(column: pa.StructArray, _: ViewSpec) -> pa.StructArray:
        lists = column.field("entries")
        entries = lists.flatten()
        # A copy, because `nbytes` of a list of slices of structs counts other members than the list has.
        entries = entries.take(pa.array(np.arange(start, min(start + size, len(entries)))))
        short_lists = pa.ListArray.from_arrays(pa.array([0, len(entries)], pa.int32()), entries).cast(lists.type)
        no = pa.array([False])
        flags = [no, no] if start else [column.field("complete"), column.field("cleared")]
        return pa.StructArray.from_arrays([*flags, short_lists], fields=list(column.type))

    whole = _with_views(state, views, cut)
    if start == 0:
        return whole
    names = {view.name for view in views}
    members = [
        whole.field(index) if field.name in names else pa.nulls(1, field.type) for index, field in enumerate(state.type)
    ]
    return pa.StructArray.from_arrays(members, fields=list(state.type))
