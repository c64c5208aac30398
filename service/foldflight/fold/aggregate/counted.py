"""DISTINCT, ORDER BY and materialised input: a group keeps its distinct rows with their counts.

The rows are folded when the group's value is requested: each row once for DISTINCT, otherwise as often as its count.
They are folded in the order of the call or, if it has none, of their first appearance. Therefore such calls support
merge and retract whatever the class defines. A row consists of the arguments of the call and the keys of its order.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Any, Final

import pyarrow as pa

from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreted import Interpreted
from foldflight.fold.aggregate.migration import StateOrigin
from foldflight.fold.aggregate.states import typed_values, unreadable
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots, frozen
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.query.call import Order
from foldflight.functions.types.serializer import StateSerializer, list_of_tuples
from foldflight.functions.types.values import CastError, exact_types

_COUNT: Final = "times"


def counted_serializer(bound: BoundFunction, keys: Sequence[pa.DataType] = ()) -> StateSerializer:
    """Return the layout of the states: a list of (argument 0, ..., argument n - 1, key 0, ..., times).

    Args:
        bound: The function.
        keys: The types of the keys of the call's order.
    """
    fields = [(f"argument_{index}", type_) for index, type_ in enumerate(bound.input_types)]
    fields += [(f"key_{index}", type_) for index, type_ in enumerate(keys)]
    return list_of_tuples([*fields, (_COUNT, pa.int64())])


class Counted(GroupsAccumulator):
    """Distinct rows with their counts, by slot.

    Args:
        inner: Folds the rows of one group when its value is requested.
        each_once: Whether equal rows are folded once (DISTINCT) or as often as they occur.
        order: The order of the call.
        keys: The types of the keys of the order.
    """

    def __init__(
        self, inner: Interpreted, *, each_once: bool, order: Sequence[Order] = (), keys: Sequence[pa.DataType] = ()
    ) -> None:
        self.inner = inner
        self.each_once = each_once
        self.order = order
        self.serializer = counted_serializer(inner.bound, keys)
        self._arguments = len(inner.bound.input_types)
        self._changeable = any(exact_types(type_) is None for type_ in inner.bound.input_types)
        # slot -> frozen arguments -> [arguments, times]. Rows that are retracted before insertion have negative counts.
        self._seen: dict[int, dict[Any, list[Any]]] = {}

    @property
    def mode(self) -> Mode:
        return Mode.COUNTED

    def update(self, rows: Rows) -> None:
        columns = [column.values for column in rows.arguments]
        arguments = list(zip(*columns, strict=True)) if columns else [()] * len(rows)
        signs = [1] * len(rows) if rows.retracts is None else [-1 if back else 1 for back in rows.retracts.tolist()]
        for slot, row, sign in zip(rows.slots.tolist(), arguments, signs, strict=True):
            self._count(slot, row, sign)

    def _count(self, slot: int, row: tuple[Any, ...], times: int) -> None:
        seen = self._seen.setdefault(slot, {})
        key = frozen(row)
        entry = seen.get(key)
        if entry is None:
            seen[key] = [row, times]
            return
        entry[1] += times
        if entry[1] == 0:
            del seen[key]

    def running_values(self, rows: Rows, mask: Mask, asked: Mask | None = None) -> pa.Array:
        columns = [column.values for column in rows.arguments]
        outputs = []
        for index in range(len(rows)):
            if mask[index]:
                retracting = rows.retracts is not None and bool(rows.retracts[index])
                self._count(int(rows.slots[index]), tuple(column[index] for column in columns), -1 if retracting else 1)
            if asked is None or asked[index]:
                outputs.append(self.evaluate(rows.slots[index : index + 1]))
        return pa.concat_arrays(outputs) if outputs else pa.array([], self.inner.bound.result_type)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        for slot, state in zip(slots.tolist(), typed_values(self.inner.name, self.serializer, states), strict=True):
            self._seen.setdefault(slot, {})
            for entry in state:
                if entry is None or entry[-1] is None:
                    raise unreadable(self.inner.name, "a row or its count is NULL")
                self._count(slot, tuple(entry[:-1]), entry[-1])

    def migrate(self, slots: Slots, states: pa.Array, written: StateOrigin) -> None:  # noqa: ARG002 - rows are rows
        self.merge(slots, states)

    def state(self, slots: Slots) -> pa.Array:
        rows = [[(*row, times) for row, times in self._seen.get(slot, {}).values()] for slot in slots.tolist()]
        try:
            return self.serializer.to_arrow(rows)
        except CastError as error:  # only a forged state has so many
            raise unreadable(self.inner.name, f"a row was added too often: {error}") from error

    def evaluate(self, slots: Slots) -> pa.Array:
        # The rows of all slots are folded as one chunk, into temporary accumulators.
        live = [
            (slot, row[: self._arguments])
            for slot in dict.fromkeys(slots.tolist())  # a slot may be requested twice, and is folded once
            for row, times in self._order(self._seen.get(slot, {}).values())
            for _ in range(min(times, 1) if self.each_once else times)
        ]
        # The function may change its arguments, so it gets copies of the rows.
        rows = [copy.deepcopy(row) if self._changeable else row for _, row in live]
        self.inner.fold_rows([slot for slot, _ in live], rows)
        outputs = self.inner.evaluate(slots)
        self.inner.forget(slots)
        return outputs

    def _order(self, entries: Collection[list[Any]]) -> Collection[list[Any]]:
        """Return the rows and counts of a group in the order of the call; rows with equal keys keep their order."""
        if not self.order:
            return entries
        ordered = list(entries)
        for index, order in reversed(list(enumerate(self.order, self._arguments))):

            def key(entry: list[Any], index: int = index, order: Order = order) -> tuple[bool, bool, Any]:
                return order.sort_key(entry[0][index])

            ordered.sort(key=key, reverse=order.descending)
        return ordered

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:  # noqa: ARG002 - states are the rows themselves
        return self.evaluate(slots)

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._seen.pop(slot, None)

    def close(self) -> None:
        self._seen = {}
        self.inner.close()
