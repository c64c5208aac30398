"""The changelog of one epoch: the change of each group's output row, as rows with kinds.

At each barrier a group emits `+I new` if it is new, `-U old` (only on request) and `+U new` if its value has changed,
and `-D old` if its last row has been retracted. It emits nothing if its value is unchanged, or if the group appeared
and disappeared within the epoch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.functions.query.call import RowKind
from foldflight.functions.types.arrow import concat_batches, is_nested

Mask = npt.NDArray[np.bool_]


def changelog(
    before: pa.RecordBatch, after: pa.RecordBatch, existed: Mask, exists: Mask, *, update_before: bool
) -> tuple[pa.Array, pa.RecordBatch]:
    """Return the changelog of n groups.

    Args:
        before: n rows, one for each group: keys and outputs before the epoch. Rows of new groups are not used.
        after: n rows of the same groups in the same order and schema: keys and outputs at the barrier.
        existed: bool, shape (n,): whether the group had live rows before the epoch.
        exists: bool, shape (n,): whether the group has live rows at the barrier.
        update_before: Whether to emit `-U old` before `+U new`.

    Returns:
        The row kinds (int8) and the same number of rows. The changes of a group are adjacent, and groups keep their
        order.
    """
    differs = ~(existed & exists & equal_rows(before, after))
    updated_mask = existed & exists & differs
    removed_mask = existed & ~exists
    came = ~existed & exists
    retraction_mask = removed_mask | (updated_mask if update_before else np.zeros(len(updated_mask), np.bool_))
    insertion_mask = came | updated_mask
    old, new = np.flatnonzero(retraction_mask), np.flatnonzero(insertion_mask)
    kinds_new = np.where(came[new], RowKind.INSERT, RowKind.UPDATE_AFTER).astype(np.int8)
    if not len(old):
        return pa.array(kinds_new), after if len(new) == after.num_rows else after.take(pa.array(new))
    kinds_old = np.where(removed_mask[old], RowKind.DELETE, RowKind.UPDATE_BEFORE).astype(np.int8)
    kinds = np.concatenate([kinds_old, kinds_new])
    # A stable sort by group keeps each old row before its new one.
    order = np.argsort(np.concatenate([old, new]), kind="stable")
    indexes = np.concatenate([old, before.num_rows + new])[order]
    return pa.array(kinds[order]), concat_batches([before, after]).take(pa.array(indexes))


def equal_rows(before: pa.RecordBatch, after: pa.RecordBatch) -> Mask:
    """Return which rows are equal. NULL equals NULL, and NaN equals NaN."""
    equal = np.ones(before.num_rows, np.bool_)
    for old, new in zip(before.columns, after.columns, strict=True):
        equal &= _equal_column(old, new)
    return equal


def _equal_column(old: pa.Array, new: pa.Array) -> Mask:
    if isinstance(old, pa.ExtensionArray):
        old, new = old.storage, new.storage
    if pa.types.is_null(old.type):
        return np.ones(len(old), np.bool_)
    if is_nested(old.type) or pa.types.is_interval(old.type):
        # Arrow cannot compare nested arrays. Scalars are compared by value, with NaN unequal to itself.
        return np.fromiter(map(_same, old, new), np.bool_, len(old))
    if pa.types.is_float16(old.type):  # Arrow does not compare these
        old, new = old.cast(pa.float32()), new.cast(pa.float32())
    same = pc.equal(old, new)
    result: Mask
    if same.null_count:
        both_null = pc.and_(pc.is_null(old), pc.is_null(new)).to_numpy(zero_copy_only=False)
        result = pc.fill_null(same, False).to_numpy(zero_copy_only=False) | both_null
    else:
        result = same.to_numpy(zero_copy_only=False)
    if pa.types.is_floating(old.type):
        result |= pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False).to_numpy(zero_copy_only=False)
    return result


def _same(old: pa.Scalar, new: pa.Scalar) -> bool:
    """Return whether two values are equal. NaN within them is equal to NaN."""
    if old.equals(new):
        return True
    if not (old.is_valid and new.is_valid):
        return False
    if pa.types.is_floating(old.type):
        return math.isnan(old.as_py()) and math.isnan(new.as_py())
    if isinstance(old, pa.StructScalar):
        return all(_same(old[index], new[index]) for index in range(old.type.num_fields))
    if isinstance(old, pa.ListScalar):  # of any kind, maps too
        return len(old) == len(new) and all(map(_same, old.values, new.values))
    return False


def live_rows(
    slots: npt.NDArray[np.int32], retracts: Mask, live: npt.NDArray[np.int64]
) -> tuple[Mask, npt.NDArray[np.int64]]:
    """Count the live rows of groups, and find retractions from groups that have no row left.

    Args:
        slots: int32, shape (n,): the slot of each row, in order.
        retracts: bool, shape (n,): which rows retract.
        live: int64, shape (slots,): the live rows of each slot before these rows.

    Returns:
        Which of the n rows count (bool, shape (n,)), and the live rows of each slot after them. A retraction from a
        group without live rows does not count, even if the row is inserted later.
    """
    order = np.argsort(slots, kind="stable")
    sorted_slots = slots[order]
    steps = np.where(retracts[order], -1, 1).astype(np.int64)
    if not len(slots):
        return np.zeros(0, np.bool_), live.copy()
    starts = np.flatnonzero(np.r_[True, sorted_slots[1:] != sorted_slots[:-1]])
    lengths = np.diff(np.r_[starts, len(slots)])
    live_counts = np.cumsum(steps)
    live_counts -= np.repeat(live_counts[starts] - steps[starts], lengths)
    depth = live_counts + np.repeat(live[sorted_slots[starts]], lengths)
    # A count that is limited to zero ignores a decrement exactly if the unlimited count reaches a new minimum below 0.
    lowest = _running_minimum(depth, starts, lengths)
    before = np.r_[0, lowest[:-1]]
    before[starts] = 0
    ignored_mask = (steps < 0) & (lowest < np.minimum(before, 0))
    counted_mask = np.ones(len(slots), np.bool_)
    counted_mask[order] = ~ignored_mask
    after = live.copy()
    np.add.at(after, sorted_slots[~ignored_mask], steps[~ignored_mask])
    return counted_mask, after


def _running_minimum(
    values: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the running minimum within each segment; segments begin at `starts` and have `lengths`."""
    # Each segment is shifted below all values of the previous one, so a single running minimum suffices.
    span = int(values.max() - values.min()) + 1
    lift = np.repeat(np.arange(len(starts), dtype=np.int64) * span, lengths)
    result: npt.NDArray[np.int64] = np.minimum.accumulate(values - lift) + lift
    return result
