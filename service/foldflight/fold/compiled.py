"""Accumulators folded by machine code, compiled from the author's methods.

*Compiled code is only ever an accelerator.* Where it cannot say what Python would (an exception, a number that leaves
64 bits), it leaves off before that row, and from there on the interpreter does everything, with the same accumulators:
so errors, rows and results are the interpreter's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from foldflight.fold.accumulators import Accumulators
from foldflight.fold.interpreted import Interpreted, cannot_merge, cannot_retract
from foldflight.fold.rows import Mask, Rows, Slots

if TYPE_CHECKING:
    from foldflight.fold.compiler.kernels import Kernels, Plan

__all__ = ["Compiled"]

# What compiled code raises; the interpreter meets the same again, or does without.
_RAISED: Final = (ArithmeticError, ValueError, TypeError)
_NOTHING: Final = np.zeros(0, np.bool_)


class Compiled(Accumulators):
    """Accumulators as records of a table.

    Args:
        inner: The interpreter, without any accumulator; it takes over where compiled code leaves off.
        kernels: The compiled loops of the function.
        fresh: A new accumulator, uint8, shape (bytes of a record,).
        instance: The attributes of the author's instance, uint8.
    """

    def __init__(self, inner: Interpreted, kernels: Kernels, fresh: Any, instance: Any) -> None:
        self.inner = inner
        self.kernels = kernels
        self.layout = kernels.plan.accumulator
        self.dtype = self.layout.dtype
        self._fresh = fresh
        self._instance = instance
        self._table = np.zeros(0, np.uint8)
        self._present = np.zeros(0, np.bool_)
        self._spare = np.zeros_like(fresh)
        self._progress = np.zeros(1, np.int64)
        self._is_left = False

    def fold(self, rows: Rows) -> None:
        if self._is_left:
            self.inner.fold(rows)
            return
        if rows.retracts is not None and "retract" not in self.kernels.plan.functions:
            raise cannot_retract(self.inner.name)
        self._grow(rows.slots)
        columns, valid = _columns(rows, self.kernels.plan)
        kernel = self.kernels.fold(nulls=bool(valid))
        retracts = _NOTHING if rows.retracts is None else rows.retracts
        try:
            kernel(*self._places(), rows.slots, retracts, columns, valid)
        except _RAISED:
            done = self._undo(rows.slots)
            self._leave()
            self.inner.fold(rows.kept(np.arange(len(rows)) >= done))

    def fold_each(self, rows: Rows, kept: Mask) -> pa.Array:
        self._leave()
        return self.inner.fold_each(rows, kept)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        records = None if self._is_left else self._records(states)
        if records is None:
            self._leave()
            self.inner.merge(slots, states)
            return
        self._grow(slots)
        if "merge" not in self.kernels.plan.functions:
            if self._present[slots].any() or len(np.unique(slots)) < len(slots):
                raise cannot_merge(self.inner.name)
            self._rows[slots] = records
            self._present[slots] = True
            return
        try:
            self.kernels.merge()(*self._places(), slots, records.view(np.uint8))
        except _RAISED:
            done = self._undo(slots)
            self._leave()
            self.inner.merge(slots[done:], states.slice(done))

    def states(self, slots: Slots) -> pa.Array:
        if not self._is_left:
            self._grow(slots)
            self._present[slots] = True
            found = self._column_states(slots, narrow=True)
            if found is not None:
                return found
            self._leave()
        return self.inner.states(slots)

    def outputs(self, slots: Slots) -> pa.Array:
        if not self._is_left:
            plan = self.kernels.plan
            values = np.zeros(len(slots), {"int": np.int64, "float": np.float64, "bool": np.bool_}[plan.result])
            valid = np.zeros(len(slots), np.bool_)
            try:
                self.kernels.values()(
                    self._table, self._present, self._instance, self._fresh, slots, values, valid
                )
            except _RAISED:  # get_value changes nothing, so there is nothing to undo
                self._leave()
            else:
                mask = None if valid.all() else ~valid
                return pa.array(values, mask=mask).cast(self.inner.bound.result_type)
        return self.inner.outputs(slots)

    def forget(self, slots: Slots) -> None:
        if self._is_left:
            self.inner.forget(slots)
            return
        known = slots[slots < len(self._present)]
        self._present[known] = False
        self._rows[known] = self._fresh.view(self.dtype)[0]

    def close(self) -> None:
        self._table, self._present = np.zeros(0, np.uint8), np.zeros(0, np.bool_)
        self.inner.close()

    @property
    def _rows(self) -> Any:
        return self._table.view(self.dtype)

    def _places(self) -> tuple[Any, ...]:
        return self._table, self._present, self._instance, self._spare, self._progress

    def _grow(self, slots: Slots) -> None:
        needed, held = int(slots.max(initial=-1)) + 1, len(self._present)
        if needed > held:
            size = max(needed, min(2 * held, held + (1 << 20)))
            self._present = np.concatenate([self._present, np.zeros(size - held, np.bool_)])
            self._table = np.concatenate([self._table, np.tile(self._fresh, size - held)])

    def _undo(self, slots: Slots) -> int:
        """Put the record of the row that failed back to what it was, and return the number of rows that were done."""
        done = int(self._progress[0])
        self._rows[int(slots[done])] = self._spare.view(self.dtype)[0]
        return done

    def _leave(self) -> None:
        """Hand all accumulators to the interpreter, for good."""
        if self._is_left:
            return
        self._is_left = True
        slots = np.flatnonzero(self._present).astype(np.int32)
        if len(slots):
            states = self._column_states(slots, narrow=False)
            assert states is not None
            self.inner.merge(slots, states)
        self._table, self._present = np.zeros(0, np.uint8), np.zeros(0, np.bool_)

    def _column_states(self, slots: Slots, *, narrow: bool) -> pa.Array | None:
        """Return the states of n slots; None where one does not fit its type. Without `narrow`, as wide as here."""
        records = self._rows[slots]
        columns = []
        type_ = self.inner.codec.arrow
        for place, field in enumerate(self.layout.fields):
            wanted = type_.field(place).type if pa.types.is_struct(type_) else type_
            mask = ~records[field.valid] if field.optional else None
            column = pa.array(np.ascontiguousarray(records[field.name]), mask=mask)
            if narrow:
                try:
                    column = column.cast(wanted)
                except pa.ArrowInvalid:
                    return None
            columns.append(column)
        if not pa.types.is_struct(type_):
            return columns[0]
        if narrow:
            return pa.StructArray.from_arrays(columns, fields=list(type_))
        return pa.StructArray.from_arrays(columns, names=[field.name for field in type_])

    def _records(self, states: pa.Array) -> Any | None:
        """Return n states as n records; None where one holds a NULL that a fold does not write."""
        records = np.zeros(len(states), self.dtype)
        for place, field in enumerate(self.layout.fields):
            column = states.field(place) if pa.types.is_struct(states.type) else states
            if field.optional:
                records[field.valid] = column.is_valid().to_numpy(zero_copy_only=False)
            elif column.null_count:
                return None
            if column.null_count:
                column = column.fill_null(False if field.kind == "bool" else 0)
            records[field.name] = column.to_numpy(zero_copy_only=False)
        return records


def _columns(rows: Rows, plan: Plan) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the argument columns as arrays of n values, and n flags each; no flags where there is no NULL."""
    arrays = [column.array for column in rows.arguments]
    nulls = any(array.null_count for array in arrays)
    values, valid = [], []
    for array, dtype in zip(arrays, plan.arguments, strict=True):
        filled = array.fill_null(False if dtype == np.bool_ else 0) if array.null_count else array
        values.append(np.require(filled.to_numpy(zero_copy_only=False), dtype, "CA"))
        if nulls:
            valid.append(array.is_valid().to_numpy(zero_copy_only=False))
    return tuple(values), tuple(valid)
