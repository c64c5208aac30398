"""Accumulators in a table, folded by the author's vectorised methods with whole chunks.

The scalar methods define the function. If a vectorised method returns `NotImplemented`, or a value does not fit into
the table, the interpreter continues with the same accumulators.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators, cannot_merge, cannot_retract
from foldflight.fold.aggregate.record_layout import (
    Table,
    fill_nulls,
    fresh_table,
)
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.failures import user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots, capacity_for
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.lists import number_format
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import CastError, cast_results, narrow_floats, to_python
from foldflight.functions.types.vectors import is_vector, masked_matrix_of

_logger: Final = logging.getLogger(__name__)
_NO_SLOTS: Final = np.zeros(0, np.intp)


def vectorised_accumulators(inner: InterpretedAccumulators) -> VectorisedAccumulators | None:
    """Return accumulators for the function's vectorised methods; None if its accumulators fit no table.

    Args:
        inner: The interpreter, without any accumulator, of a function that has these methods.
    """
    fresh = fresh_table(inner.bound, inner.methods)
    if isinstance(fresh, str):
        _log_once(inner.name, fresh)
        return None
    return VectorisedAccumulators(inner, fresh)


@functools.lru_cache(maxsize=256)
def _log_once(name: str, reason: str) -> None:
    _logger.info("the vectorised methods of %s are not used: %s", name, reason)


class VectorisedAccumulators(GroupsAccumulator):
    """Accumulators in a table.

    Args:
        inner: The interpreter, without any accumulator.
        fresh: A table of one new accumulator.
    """

    def __init__(self, inner: InterpretedAccumulators, fresh: Table) -> None:
        self.inner = inner
        self._name = inner.name
        self._fresh = fresh
        self._table = fresh.take(_NO_SLOTS)
        self._present = np.zeros(0, np.bool_)
        # All slots below this one have an accumulator.
        self._full = 0
        self._is_left = False
        self._is_decimal = pa.types.is_decimal(inner.bound.result_type)

    @property
    def mode(self) -> Mode:
        return self.inner.mode if self._is_left else Mode.VECTORISED

    def update(self, rows: Rows) -> None:
        if self._is_left:
            self.inner.update(rows)
            return
        if rows.retracts is not None and not self.inner.bound.function.capabilities.retract:
            raise cannot_retract(self.inner.bound.function)
        top = self._grow(rows.slots)
        slots = rows.slots.astype(np.intp)
        signs = 1 if rows.retracts is None else 1 - 2 * rows.retracts.astype(np.int64)
        columns = [_vector(column.array) for column in rows.arguments]
        if not self._call("fold_many", slots, signs, *columns):
            self._leave()
            self.inner.update(rows)
        elif top > self._full:
            self._occupy(slots, top)

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        if self._is_left or not len(rows):
            return self.inner.running_values(rows, mask, requested)
        can_retract = self.inner.bound.function.capabilities.retract
        if rows.retracts is not None and not can_retract and (rows.retracts & mask).any():
            raise cannot_retract(self.inner.bound.function)
        values = self._running_values(rows, mask, requested)
        if values is None:
            return self._fold_each_scalar(rows, mask, requested)
        if mask.any():
            self.update(rows.filter(mask))
        return values

    def _running_values(self, rows: Rows, mask: Mask, requested: Mask | None) -> pa.Array | None:
        """Return the value after each requested row without a change; None if the vectorised methods cannot."""
        method = self.inner.methods.running_many
        if method is None:
            return None
        self._grow(rows.slots)
        signs = mask.astype(np.int64)
        if rows.retracts is not None:
            signs[rows.retracts] *= -1
        columns = [_vector(column.array) for column in rows.arguments]
        try:
            with np.errstate(all="ignore"):
                running_accumulators = method(self._table.for_authors, rows.slots.astype(np.intp), signs, *columns)
        except (Exception, SystemExit) as error:
            raise user_failure(self._name, "running_many", error) from error
        if running_accumulators is NotImplemented:
            return None
        if requested is None:
            return self._vectorised_values(running_accumulators, rows.slots)
        if isinstance(running_accumulators, dict) and all(
            isinstance(column, np.ndarray) for column in running_accumulators.values()
        ):
            return self._vectorised_values(
                {name: column[requested] for name, column in running_accumulators.items()}, rows.slots[requested]
            )
        if isinstance(running_accumulators, np.ndarray):
            return self._vectorised_values(running_accumulators[requested], rows.slots[requested])
        values = self._vectorised_values(running_accumulators, rows.slots)
        return None if values is None else values.filter(pa.array(requested))

    def _fold_each_scalar(self, rows: Rows, mask: Mask, requested: Mask | None) -> pa.Array:
        """Fold rows by the scalar methods, and take the accumulators back if the table can hold them."""
        top = self._grow(rows.slots)
        lent_slots = np.unique(rows.slots)
        occupied_slots = lent_slots[self._present[lent_slots]]
        self.inner.merge(occupied_slots, self._wide_states(occupied_slots))
        values = self.inner.running_values(rows, mask, requested)
        returned_slots = self.inner.occupied_slots()
        try:
            others = self._table.from_states(self.inner.state(returned_slots))
        except FunctionError:  # a number exceeds its type; later rows may bring it back into range
            others = None
        if others is None:
            self._present[lent_slots] = False
            self._leave()
        else:
            self._table.put(returned_slots.astype(np.intp), others)
            self._occupy(returned_slots, top)
            self.inner.forget(returned_slots)
        return values

    def merge(self, slots: Slots, states: pa.Array) -> None:
        if self._is_left or not len(slots):
            self.inner.merge(slots, states)
            return
        others = self._table.from_states(states)
        if others is None:
            self._leave()
            self.inner.merge(slots, states)
            return
        top = self._grow(slots)
        wide = slots.astype(np.intp)
        # The first state of an empty slot becomes its accumulator. Later states are merged.
        indexes, earliest = np.arange(len(wide)), np.empty(top, np.intp)
        earliest[wide[::-1]] = indexes[::-1]
        first = (earliest[wide] == indexes) & ~self._present[wide]
        rest = ~first
        if rest.any() and not self.inner.bound.function.capabilities.merge:
            raise cannot_merge(self._name)
        self._table.put(wide[first], others.take(np.flatnonzero(first)) if rest.any() else others)
        self._occupy(wide[first], top)
        if rest.any() and not self._call("merge_many", wide[rest], others.take(np.flatnonzero(rest)).for_authors):
            self._leave()
            self.inner.merge(slots[rest], states.filter(pa.array(rest)))

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        converted_states = None if self._is_left else self.inner.convert_states(slots, states, origin)
        if converted_states is None:
            self._leave()
            self.inner.migrate(slots, states, origin)
        else:
            self.merge(*converted_states)

    def state(self, slots: Slots) -> pa.Array:
        if not self._is_left:
            self._occupy(slots, self._grow(slots))
            states = self._table.take(slots).states(self.inner.codec.arrow, narrow=True)
            if states is not None:
                return states
            self._leave()
        return self.inner.state(slots)

    def evaluate(self, slots: Slots) -> pa.Array:
        if self._is_left:
            return self.inner.evaluate(slots)
        self._grow(slots)
        values = self._sound_values(self._table.take(slots), slots)
        if values is None:
            self._leave()
            return self.inner.evaluate(slots)
        return values

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        table = None if self._is_left or states.null_count else self._table.from_states(states)
        values = None if table is None else self._sound_values(table, slots)
        return self.inner.evaluate_states(slots, states) if values is None else values

    def _sound_values(self, table: Table, slots: Slots) -> pa.Array | None:
        """Return the values of the n accumulators of a table; None if the scalar methods must compute them."""
        try:
            return self._vectorised_values(table.for_authors, slots)
        except FunctionError as error:
            if not self.inner.failures.isolates or error.limit is not None:
                raise
            return None  # the interpreter calls get_value for each slot, so only the failing slots fail

    def _vectorised_values(self, accumulators: Any, slots: Slots) -> pa.Array | None:
        """Return the values of the accumulators of n slots; None if the scalar methods must compute them."""
        method = self.inner.methods.get_values
        assert method is not None
        try:
            with np.errstate(all="ignore"):
                values = method(accumulators)
        except (Exception, SystemExit) as error:
            raise user_failure(self._name, "get_values", error) from error
        if self._is_decimal and isinstance(values, np.ndarray) and values.dtype.kind == "f":
            return None  # floats have fewer digits than decimals
        try:
            return _results(values, len(slots), self.inner.bound)
        except CastError as error:
            raise FunctionError(
                error.code, error.of_result("get_values"), function=self._name, slot=int(slots[error.index])
            ) from None

    def forget(self, slots: Slots) -> None:
        self.inner.forget(slots)
        slots_in_range = slots[slots < len(self._present)]
        if len(slots_in_range):
            self._present[slots_in_range] = False
            self._table.clear(slots_in_range, self._fresh)
            self._full = min(self._full, int(slots_in_range.min()))

    def close(self) -> None:
        self._table, self._present, self._full = self._fresh.take(_NO_SLOTS), self._present[:0], 0
        self.inner.close()

    def _call(self, method_name: str, slots: Any, *arguments: Any) -> bool:
        """Call a vectorised method. Return False if the scalar methods must do its work."""
        method: Callable[..., Any] = getattr(self.inner.methods, method_name)
        changed_slots = np.unique(slots) if self.inner.failures.isolates else None
        before = None if changed_slots is None else self._table.save(changed_slots)
        try:
            with np.errstate(all="ignore"):
                result = method(self._table.for_authors, slots, *arguments)
        except (Exception, SystemExit) as error:
            failure = user_failure(self._name, method_name, error)
            if before is None or failure.limit is not None:
                raise failure from error
            # The slot that made it raise is not known. With the scalar methods only that slot fails.
            self._table.restore(changed_slots, before)
            return False
        if result is not None and result is not NotImplemented:
            message = (
                f"{method_name} returned {type(result).__name__}; change the accumulators in place and "
                "return None, or return NotImplemented before any change"
            )
            raise FunctionError("RESULT_TYPE", message, function=self._name)
        return result is None

    def _leave(self) -> None:
        """Move all accumulators to the interpreter, and stop using the vectorised methods."""
        if self._is_left:
            return
        self._is_left = True
        slots = np.flatnonzero(self._present).astype(np.int32)
        if len(slots):
            self.inner.merge(slots, self._wide_states(slots))
        self._table, self._present, self._full = self._fresh.take(_NO_SLOTS), self._present[:0], 0

    def _wide_states(self, slots: Slots) -> pa.Array:
        """Return the states of n slots for the interpreter, with integers that may exceed their types."""
        table, type_ = self._table.take(slots), self.inner.codec.arrow
        # For a DECIMAL result the interpreter needs Python's decimals, not its integers.
        states = table.states(type_, narrow=True) if self._is_decimal else None
        if states is None:
            states = table.states(type_, narrow=False)
        assert states is not None
        return states

    def _grow(self, slots: Slots) -> int:
        """Reserve memory for the slots, and return the highest plus one."""
        slot_count, capacity = int(slots.max(initial=-1)) + 1, len(self._present)
        if slot_count > capacity:
            more = capacity_for(slot_count, capacity) - capacity
            self._present = np.concatenate([self._present, np.zeros(more, np.bool_)])
            self._table.grow(capacity + more, self._fresh)
        return slot_count

    def _occupy(self, slots: Any, top: int) -> None:
        """Mark slots, all below `top`, as having an accumulator."""
        self._present[slots] = True
        if top > self._full and self._present[self._full : top].all():
            self._full = top


def _vector(array: pa.Array) -> Any:
    """Return an argument column as vectorised methods get it."""
    if is_vector(array.type):
        return masked_matrix_of(array)
    if number_format(array.type) is None or pa.types.is_decimal(array.type):
        return array
    if not array.null_count:
        return array.to_numpy(zero_copy_only=False)
    return np.ma.MaskedArray(
        fill_nulls(array).to_numpy(zero_copy_only=False), mask=array.is_null().to_numpy(zero_copy_only=False)
    )


def _results(values: Any, count: int, bound: BoundFunction) -> pa.Array:
    """Cast the return value of `get_values` to `count` results. Raises CastError, and FunctionError RESULT_TYPE."""
    if isinstance(values, (pa.Array, pa.ChunkedArray)) and len(values) == count:
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    elif isinstance(values, np.ndarray) and values.shape == (count,):
        data = np.ma.getdata(values)
        mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
        if data.dtype.kind not in "?biufM":
            return cast_results(values.tolist(), bound.result_type)
        array = pa.array(np.ascontiguousarray(data), mask=mask)
    else:
        was = f"{values.dtype} of shape {values.shape}" if isinstance(values, np.ndarray) else type(values).__name__
        message = f"get_values returned {was} for {count} accumulators; return an array of {count} values, one for each"
        raise FunctionError("RESULT_TYPE", message, function=bound.function.name)
    if array.type == bound.result_type:
        return array
    if pa.types.is_integer(array.type) and pa.types.is_integer(bound.result_type):
        try:
            return array.cast(bound.result_type)
        except pa.ArrowInvalid:
            pass  # cast_results finds the value that does not fit
    if pa.types.is_floating(array.type) and pa.types.is_floating(bound.result_type):
        narrow = narrow_floats(array, bound.result_type)
        if narrow is not None:
            return narrow
    try:
        plain = to_python(array)
    except (ValueError, OverflowError) as error:
        message = f"get_values returned {array.type}, which cannot be read as {sql_name(bound.result_type)}: {error}"
        raise FunctionError("RESULT_TYPE", message, function=bound.function.name) from None
    return cast_results(plain, bound.result_type)
