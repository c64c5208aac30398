"""Accumulators folded by the author's `fold_bundle`: one call for all groups of a chunk.

Each group is a segment: its accumulator, if it has one, and its rows. The answer has the new accumulator and its value.
Where a value is asked for on its own, or states are merged, segments have no rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators, cannot_merge, cannot_retract
from foldflight.fold.aggregate.state_codecs import UnconvertibleState
from foldflight.fold.failures import user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots
from foldflight.functions.author.segments import Applied, Segment
from foldflight.functions.types.values import exact_types


class BundleAccumulators(InterpretedAccumulators):
    """Accumulators as Python objects, each with its value if that is known. It has the arguments of its base class."""

    _value_method = "fold_bundle"

    @cached_property
    def _values(self) -> dict[int, Any]:
        return {}

    @cached_property
    def _defaults(self) -> tuple[Any, ...]:
        left_out = self.bound.function.input_names[len(self.bound.input_types) :]
        return tuple(self.bound.function.defaults[name] for name in left_out)

    @property
    def mode(self) -> Mode:
        return Mode.BUNDLED

    def _fold(self, rows: Rows, arguments: Iterator[Any]) -> None:
        self._check_retracts(rows.retracts)
        self._grow(rows.slots)
        bundle = _Bundle(rows, arguments, self._defaults)
        self._keep(bundle.slots, self._apply(bundle.slots, self._segments(bundle)))

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        masked_rows = rows.filter(mask)
        self._check_retracts(masked_rows.retracts)
        self._grow(rows.slots)
        is_requested = np.ones(len(rows), np.bool_) if requested is None else requested
        # The number of rows of its slot that are folded up to each row.
        order = np.argsort(rows.slots, kind="stable")
        counts = np.empty(len(rows), np.int64)
        counts[order] = np.cumsum(mask[order])
        first = np.searchsorted(rows.slots[order], rows.slots)
        counts -= (np.cumsum(mask[order]) - mask[order])[first] if len(rows) else 0
        # A value may change with its accumulator, so values from before the chunk become Arrow values now.
        before = is_requested & (counts == 0)
        unchanged_values = self.evaluate(rows.slots[before])
        columns = [column.values for column in masked_rows.arguments]
        bundle = _Bundle(
            masked_rows, zip(*columns, strict=True) if columns else iter([()] * len(masked_rows)), self._defaults
        )
        outcomes = self._apply(bundle.slots, self._segments(bundle, wants_each=True))
        self._keep(bundle.slots, outcomes)
        after = is_requested & (counts > 0)
        each = {
            slot: outcome.values for slot, outcome in zip(bundle.slots, outcomes, strict=True) if outcome is not None
        }
        slots = rows.slots[after]
        values = [each[slot][count - 1] for slot, count in zip(slots.tolist(), counts[after].tolist(), strict=True)]
        indexes = np.where(after, np.cumsum(after) - 1, len(values) + np.cumsum(before) - 1)[is_requested]
        return pa.concat_arrays([self._cast(values, slots), unchanged_values]).take(pa.array(indexes))

    def _check_retracts(self, retracts: Mask | None) -> None:
        if retracts is not None and self._retract is None:
            raise cannot_retract(self.bound.function)

    def _segments(self, bundle: _Bundle, *, wants_each: bool = False) -> list[Segment[Any]]:
        return [
            Segment(self._accumulator_of(slot), rows, signs, wants_each)
            for slot, rows, signs in zip(bundle.slots, bundle.rows, bundle.signs, strict=True)
        ]

    def _accumulator_of(self, slot: int) -> list[Any]:
        if slot in self._lent_accumulators:
            return [self._lent_accumulators[slot]]
        return [self._accumulators[slot]] if slot < len(self._accumulators) and self._present[slot] else []

    def load(self, slots: Slots, accumulators: Sequence[Any]) -> None:
        self._grow(slots)
        accumulators_by_slot: dict[int, list[Any]] = {}
        for slot, accumulator in zip(slots.tolist(), accumulators, strict=True):
            if slot not in self.failures:
                accumulators_by_slot.setdefault(slot, self._accumulator_of(slot)).append(accumulator)
        slots_to_merge = [slot for slot, several in accumulators_by_slot.items() if len(several) > 1]
        if slots_to_merge and self._merge is None:
            raise cannot_merge(self.name)
        for slot in accumulators_by_slot.keys() - slots_to_merge:
            self._accumulators[slot], self._present[slot] = accumulators_by_slot[slot][0], True
            self._values.pop(slot, None)
        self._keep(
            slots_to_merge,
            self._apply(slots_to_merge, [Segment(accumulators_by_slot[slot], [], []) for slot in slots_to_merge]),
        )

    def _create(self, slots: Slots) -> None:
        self._grow(slots)
        fresh: list[int] = np.unique(slots[~self._present[slots]]).tolist()
        self._keep(fresh, self._apply(fresh, [Segment([], [], []) for _ in fresh]))

    def _keep(self, slots: Sequence[int], outcomes: Sequence[Applied[Any, Any] | None]) -> None:
        for slot, outcome in zip(slots, outcomes, strict=True):
            if outcome is not None:
                self._accumulators[slot], self._present[slot] = outcome.accumulator, True
                self._values[slot] = outcome.value

    def _outputs(self, slots: Slots) -> pa.Array:
        # An empty slot has the value of a new accumulator, and stays empty.
        uncached_slots = [slot for slot in dict.fromkeys(slots.tolist()) if slot not in self._values]
        outcomes = self._apply(
            uncached_slots,
            [Segment(list(map(self._copy_of, self._accumulator_of(slot))), [], []) for slot in uncached_slots],
        )
        values = {
            slot: outcome.value for slot, outcome in zip(uncached_slots, outcomes, strict=True) if outcome is not None
        }
        return self._cast([self._values.get(slot, values.get(slot)) for slot in slots.tolist()], slots)

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        cached_values, self._values = self._values, {}
        try:
            return super().evaluate_states(slots, states)
        finally:
            self._values = cached_values

    def forget(self, slots: Slots) -> None:
        super().forget(slots)
        for slot in slots.tolist():
            self._values.pop(slot, None)

    def close(self) -> None:
        self._values.clear()
        super().close()

    def _apply(self, slots: Sequence[int], segments: list[Segment[Any]]) -> Sequence[Applied[Any, Any] | None]:
        """Ask for n segments of n slots. With isolation, None stands for a slot that fails.

        A bundle that raises is then asked again segment by segment, with copies of what the first call may have
        changed. Accumulators that cannot be copied are asked segment by segment at once.
        """
        if not segments:
            return []
        if not self.failures.isolates:
            return self._call_bundle(slots, segments)
        copies = self._copy(segments) if len(segments) > 1 else None
        if copies is not None:
            try:
                return self._call_bundle(slots, segments)
            except FunctionError as error:
                if error.limit is not None:
                    raise
            segments = self._restore(copies)
        return [self._alone(slot, segment) for slot, segment in zip(slots, segments, strict=True)]

    def _alone(self, slot: int, segment: Segment[Any]) -> Applied[Any, Any] | None:
        try:
            return self._call_bundle([slot], [segment])[0]
        except FunctionError as error:
            if not self.failures.take(error):
                raise
        return None

    def _copy(self, segments: Sequence[Segment[Any]]) -> tuple[pa.Array, list[Segment[Any]]] | None:
        """Return the accumulators of some segments as states, and the segments without them."""
        try:
            states = self.codec.encode([each for segment in segments for each in segment.accumulators])
        except UnconvertibleState:
            return None
        changeable = any(exact_types(type_) is None for type_ in self.bound.input_types)
        return states, [
            Segment(
                [None] * len(segment.accumulators),
                copy.deepcopy(segment.rows) if changeable else list(segment.rows),
                list(segment.signs),
                segment.wants_each,
            )
            for segment in segments
        ]

    def _restore(self, copies: tuple[pa.Array, list[Segment[Any]]]) -> list[Segment[Any]]:
        states, segments = copies
        accumulators = iter(self.codec.decode(states))
        for segment in segments:
            segment.accumulators = [next(accumulators) for _ in segment.accumulators]
        return segments

    def _call_bundle(self, slots: Sequence[int], segments: list[Segment[Any]]) -> Sequence[Applied[Any, Any]]:
        """Call `fold_bundle`. Raises FunctionError USER_CODE or RESULT_TYPE, with the slot if it is known."""
        assert self.methods.fold_bundle is not None
        counts = [len(segment.rows) for segment in segments]
        each = [segment.wants_each for segment in segments]
        self._at_work = slots[0] if len(slots) == 1 else None
        try:
            results = self.methods.fold_bundle(segments)
        except (Exception, SystemExit) as error:
            failure = user_failure(self.name, "fold_bundle", error)
            failure.slot = self._at_work
            if len(slots) > 1:
                failure.row = f"one of the {sum(counts)} rows of {len(slots)} groups in a bundle"
            raise failure from error
        finally:
            self._at_work = None
        if not isinstance(results, (list, tuple)) or len(results) != len(slots):
            was = f"{len(results)} items" if isinstance(results, (list, tuple)) else type(results).__name__
            raise self._type_error(f"{was} for {len(slots)} segments; return a list with one Applied for each segment")
        for slot, count, wants, one in zip(slots, counts, each, results, strict=True):
            if not isinstance(one, Applied):
                wrong = f"{type(one).__name__} for a segment; return foldflight.Applied(accumulator, value)"
                raise self._type_error(wrong, slot)
            values: Any = one.values
            if wants and not isinstance(values, (Sequence, np.ndarray)):
                wrong = f"{type(values).__name__} as the values after each row; return a list of them"
                raise self._type_error(wrong, slot)
            if wants and len(values) != count:
                wrong = f"{len(values)} values for a segment of {count} rows that wants the value after each row"
                raise self._type_error(f"{wrong}; return Applied(accumulator, value, values)", slot)
        return results

    def _type_error(self, wrong: str, slot: int | None = None) -> FunctionError:
        return FunctionError("RESULT_TYPE", f"fold_bundle returned {wrong}", function=self.name, slot=slot)


class _Bundle:
    """The rows of a chunk by slot, each slot with its rows in order.

    Args:
        rows: The rows.
        arguments: Their arguments as Python values; there may be more.
        defaults: The values of the arguments that the call leaves out.

    Attributes:
        slots: The slots, ascending.
        rows: The arguments of the rows of each slot.
        signs: For each of these 1, or -1 for a row that is retracted.
    """

    def __init__(self, rows: Rows, arguments: Iterator[Any], defaults: tuple[Any, ...]) -> None:
        argument_rows = [(*each, *defaults) for _, each in zip(range(len(rows)), arguments, strict=False)]
        order = np.argsort(rows.slots, kind="stable")
        sorted_slots = rows.slots[order]
        starts = np.flatnonzero(np.diff(sorted_slots, prepend=-1))
        ends = [*starts.tolist(), len(sorted_slots)]
        sorted_rows = [argument_rows[index] for index in order.tolist()]
        signs = np.ones(len(rows), np.int64) if rows.retracts is None else 1 - 2 * rows.retracts[order].astype(np.int64)
        sorted_signs = signs.tolist()
        self.slots: list[int] = sorted_slots[starts].tolist()
        self.rows = [sorted_rows[start:end] for start, end in pairwise(ends)]
        self.signs: list[list[int]] = [sorted_signs[start:end] for start, end in pairwise(ends)]
