"""DISTINCT where an engine keeps views: the different rows of a group are a view, beside the function's accumulator.

The view has the times of each row: how often it was added and not retracted. The accumulator gets a row that appears,
and retracts a row that disappears. So a value needs only the rows of the epoch, and only their entries are
read and written.

`RowMultiset` has the same results for engines that keep no views. Its states, which have all rows, are converted by
`migrate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.fold.aggregate.groups_accumulator import CachedView, GroupsAccumulator
from foldflight.fold.aggregate.interpreter import cannot_merge
from foldflight.fold.aggregate.state_codecs import StateOrigin, unreadable
from foldflight.fold.aggregate.view_accumulators import (
    UNREADABLE,
    AskView,
    CachedMap,
    Source,
    entries_of,
    largest_of,
    no_state,
)
from foldflight.fold.failures import Failures
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Mask, Rows, Slots
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.serializer import StateSerializer, ViewSerializer, record_of, serializer_of_type
from foldflight.functions.types.values import CastError
from foldflight.functions.types.views import MISSING, ViewPart, normal_key

ROWS: Final = "rows"
"""The name of the view of the rows."""
STATE: Final = "state"
"""The name of the member with the state of the function."""

_NO_ROWS: Final = ViewPart(complete=True, cleared=False, keys=[], values=[], present=[])


def key_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type of keys of views for values of an argument; None if they cannot be keys."""
    kinds = pa.types
    if isinstance(type_, pa.BaseExtensionType):
        return None
    if kinds.is_float32(type_):
        return pa.float64()
    if kinds.is_timestamp(type_):
        # Datetimes of Python in other zones are equal in the hour that is repeated when daylight saving time ends.
        return None if type_.unit != "us" else pa.timestamp("us", None if type_.tz is None else "UTC")
    if kinds.is_time(type_) or kinds.is_duration(type_):
        return type_ if type_.unit == "us" else None
    is_number = kinds.is_integer(type_) or kinds.is_float64(type_) or kinds.is_boolean(type_)
    is_decimal = kinds.is_decimal128(type_) or kinds.is_decimal256(type_)
    is_text = kinds.is_string(type_) or kinds.is_binary(type_)
    return type_ if is_number or is_decimal or is_text or kinds.is_date32(type_) else None


class RowsSerializer(ViewSerializer):
    """The layout of a view of rows with their times. The key is the argument, or a tuple of several arguments.

    Args:
        arguments: The types of the arguments; at least one.

    Raises:
        TypeError: Values of an argument cannot be keys.
    """

    def __init__(self, arguments: Sequence[pa.DataType]) -> None:
        keys = [key_type(type_) for type_ in arguments]
        if None in keys or not keys:
            raise TypeError(f"rows of {', '.join(map(str, arguments)) or 'nothing'} cannot be keys of a view")
        self.arguments = tuple(arguments)
        serializers: list[StateSerializer] = [serializer_of_type(each) for each in keys]
        fields = [(f"f{index}", serializer) for index, serializer in enumerate(serializers)]
        key = serializers[0] if len(serializers) == 1 else record_of(fields, lambda members: members, immutable=True)
        super().__init__(key, serializer_of_type(pa.int64()))
        self._types = [serializer.arrow for serializer in serializers]
        self._has_floats = any(map(pa.types.is_floating, self._types))

    def parts_of(self, array: pa.Array) -> list[ViewPart | None]:
        _, times, present = array.field(2).values.flatten()
        if pc.any(pc.and_(present, times.is_null()), min_count=0).as_py():
            raise ValueError("the times of a row are NULL")
        return super().parts_of(array)

    def keys_of(self, arguments: Sequence[Column]) -> list[Any]:
        """Return n rows as keys."""
        columns = [self._values(column, type_) for column, type_ in zip(arguments, self._types, strict=True)]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return list(map(normal_key, keys)) if self._has_floats else keys

    def rows_in(self, views: pa.Array) -> tuple[list[pa.Array], pa.Array]:
        """Return the rows of n views, as a column for each argument, and their times.

        Raises:
            ValueError: A view is NULL, or does not have all of its rows.
        """
        keys, times, present = views.field(2).flatten().flatten()
        flags = (views.is_valid(), views.field(0), present)
        if not all(pc.all(each, min_count=0, skip_nulls=False).as_py() for each in flags):
            raise ValueError("it does not have all of its rows")
        columns = [keys] if len(self.arguments) == 1 else keys.flatten()
        return [column.cast(type_) for column, type_ in zip(columns, self.arguments, strict=True)], times

    @staticmethod
    def _values(column: Column, type_: pa.DataType) -> list[Any]:
        array = column.array
        if array is None or array.type == type_:
            return column.values
        return Column(column.name, array.cast(type_)).values


class Distinct(GroupsAccumulator):
    """The accumulators of a function that gets equal rows once, with the different rows in a view.

    Args:
        inner: The accumulators.
        bound: The function. It can retract, or no row is a retraction.
        serializer: The layout of the view.
        failures: The slots that have failed.
        ask: Asks the engine for entries of the view.
    """

    def __init__(
        self,
        inner: GroupsAccumulator,
        bound: BoundFunction,
        serializer: RowsSerializer,
        *,
        failures: Failures,
        ask: AskView,
    ) -> None:
        self._inner = inner
        self._name = bound.function.name
        self._names = bound.function.input_names
        self._serializer = serializer
        self._type = self.state_type(bound, serializer)
        self._failures = failures
        self._ask = ask
        self._rows: dict[int, CachedMap] = {}
        self._cached_slots: set[int] = set()

    @staticmethod
    def state_type(bound: BoundFunction, serializer: RowsSerializer) -> pa.StructType:
        """Return the type of the states: the view of the rows, and the state of the function."""
        return pa.struct([pa.field(ROWS, serializer.arrow), pa.field(STATE, bound.state_type)])

    @property
    def mode(self) -> Mode:
        return Mode.COUNTED

    def update(self, rows: Rows) -> None:
        weights = [1] * len(rows) if rows.retracts is None else np.where(rows.retracts, -1, 1).tolist()
        self._fold(rows, weights)

    def _fold(self, rows: Rows, weights: Sequence[int]) -> None:
        """Add n numbers to the times of n rows, and tell the function which rows appear or disappear."""
        for slot in np.unique(rows.slots).tolist():
            self._of(slot)
        views, changed_rows = self._rows, []
        steps = zip(rows.slots.tolist(), self._serializer.keys_of(rows.arguments), weights, strict=True)
        for index, (slot, key, weight) in enumerate(steps):
            view = views[slot]
            stored_times = view._find(key)  # noqa: SLF001 - the keys are normal
            times = 0 if stored_times is MISSING else stored_times
            after = times + weight
            # Rows that are retracted before insertion have negative times.
            if after:
                view._put(key, after)  # noqa: SLF001
            elif stored_times is not MISSING:
                view._remove(key)  # noqa: SLF001
            if (times > 0) != (after > 0):
                changed_rows.append(index)
        if changed_rows:
            mask = np.zeros(len(rows), np.bool_)
            mask[changed_rows] = True
            self._inner.update(rows.filter(mask))

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:  # noqa: ARG002 - never called
        raise AssertionError("an engine that keeps views gets no outputs after each row (Open.row_outputs)")

    def merge(self, slots: Slots, states: pa.Array) -> None:
        if len(np.unique(slots)) < len(slots) or any(slot in self._rows for slot in slots.tolist()):
            raise cannot_merge(self._name)
        rows, inner = states.field(ROWS), states.field(STATE)
        if rows.null_count or inner.null_count:
            raise unreadable(self._name, "its rows, or its state without them, are NULL")
        try:
            parts = [part for part in self._serializer.parts_of(rows) if part is not None]
        except UNREADABLE as error:
            raise unreadable(self._name, f"{type(error).__name__}: {error}") from error
        self._inner.merge(slots, inner)
        for slot, part in zip(slots.tolist(), parts, strict=True):
            self._rows[slot] = self._learn(slot, part)

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:  # noqa: ARG002 - rows are rows
        """Take states of `RowMultiset`, or complete states of another version, and fold their rows anew."""
        try:
            rows, times = self._rows_in(slots, states)
        except RejectedError as error:
            raise unreadable(self._name, error.message) from error
        except UNREADABLE as error:
            raise unreadable(self._name, f"{type(error).__name__}: {error}") from error
        for slot in slots.tolist():
            self._of(slot)
        self._fold(rows, times)

    def _rows_in(self, slots: Slots, states: pa.Array) -> tuple[Rows, list[int]]:
        """Return the rows of n states, and their times. Raises one of `UNREADABLE`, or RejectedError."""
        if pa.types.is_list(states.type):
            *columns, times = states.flatten().flatten()
            counts = states.value_lengths()
        else:
            columns, times = self._serializer.rows_in(states.field(ROWS))
            counts = states.field(ROWS).field(2).value_lengths()
        if times.null_count:
            raise ValueError("a row or its times are NULL")
        weights = times.to_numpy()
        retracts = weights < 0
        names = [*self._names, *map(str, range(len(self._names), len(columns)))]
        rows = Rows(
            slots=np.repeat(slots, counts.to_numpy(zero_copy_only=False)),
            retracts=retracts if retracts.any() else None,
            arguments=[Column(name, column) for name, column in zip(names, columns, strict=False)],
        )
        self._serializer.keys_of(rows.arguments)  # values that Python does not have are errors of the state
        return rows, weights.tolist()

    def take_entries(self, slots: Slots, states: pa.Array) -> None:
        """Take entries of the view from the engine. Those that are known are not replaced.

        Raises:
            RejectedError: BAD_FRAME, for a slot without a state, and for entries that cannot be read.
        """
        parts = entries_of(ROWS, self._serializer, states.flatten()[states.type.get_field_index(ROWS)])
        for slot, part in zip(slots.tolist(), parts, strict=True):
            if part is None or slot in self._failures:
                continue
            if slot not in self._rows:
                raise no_state(self._name, ROWS, slot)
            self._rows[slot].learn(part)

    def forget_entries(self) -> None:
        """Forget all entries, because the engine has them now."""
        for slot in self._cached_slots:
            if slot in self._rows:
                self._rows[slot].forget()
        self._cached_slots.clear()

    @property
    def largest_view(self) -> CachedView | None:
        """The view with the most entries in memory. Another thread may ask."""
        return largest_of(
            CachedView(view.loaded_count, slot, self._name, ROWS) for slot, view in list(self._rows.items())
        )

    def state(self, slots: Slots) -> pa.Array:
        try:
            rows = self._serializer.to_arrow([self._of(slot) for slot in slots.tolist()])
        except CastError as error:  # only a forged state has so many
            raise unreadable(self._name, f"a row was added too often: {error}") from error
        return pa.StructArray.from_arrays([rows, self._inner.state(slots)], fields=list(self._type))

    def evaluate(self, slots: Slots) -> pa.Array:
        return self._inner.evaluate(slots)

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        return self._inner.evaluate_states(slots, states.field(STATE))

    def forget(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._rows.pop(slot, None)
        self._cached_slots.difference_update(slots.tolist())
        self._inner.forget(slots)

    def close(self) -> None:
        self._rows = {}
        self._cached_slots.clear()
        self._inner.close()

    def _of(self, slot: int) -> CachedMap:
        """Return the rows of a slot; none for a new one."""
        view = self._rows.get(slot)
        if view is None:
            view = self._rows[slot] = self._learn(slot, _NO_ROWS)
        return view

    def _learn(self, slot: int, part: ViewPart) -> CachedMap:
        view = CachedMap(Source(self._ask, ROWS, self._serializer, slot, self._cached_slots))
        view.learn(part)
        return view
