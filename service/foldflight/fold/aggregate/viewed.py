"""Accumulators with views, of which an engine may keep the entries.

Without such an engine (`ask` is None), views are in memory and complete, and states have all their entries. With one, a
view knows the entries that were sent or asked for, and the entries that rows have changed since states were last
returned. It asks for others when a method reads them. After states have been returned, all entries are forgotten,
because the engine has them.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.aggregate.cached import AskView, CachedList, CachedMap, Source, entries_of, largest_of, no_state
from foldflight.fold.aggregate.interpreted import EMPTY, Interpreted, cannot_merge
from foldflight.fold.aggregate.migration import StateOrigin
from foldflight.fold.aggregate.states import unreadable
from foldflight.fold.failures import Failures
from foldflight.fold.request import CachedView
from foldflight.fold.rows import Slots
from foldflight.fold.signing import StateSigner
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.serializer import Attributes, views_in
from foldflight.functions.types.views import ListView, MapView, PlainMap, ViewPart


class Viewed(Interpreted):
    """Accumulators with views, as Python objects.

    Args:
        bound: The function.
        context: The argument of the function's `open`.
        signer: Signs pickled states.
        failures: Records errors of single slots. Default: errors are raised.
        ask: Asks the engine that keeps the entries of views. None: there is no such engine.
    """

    def __init__(
        self,
        bound: BoundFunction,
        *,
        context: FunctionContext,
        signer: StateSigner | None,
        failures: Failures | None = None,
        ask: AskView | None = None,
    ) -> None:
        super().__init__(bound, context=context, signer=signer, failures=failures)
        self._ask = ask
        self._views = views_in(bound.serializer)
        self._attributes = Attributes(bound.serializer)
        self._cached: set[int] = set()  # the slots with views of which entries are in memory
        self._cold: set[int] = set()  # the slots that may have `ViewPart`s, until a row uses the slot
        create = self.methods.create_accumulator
        self.methods = dataclasses.replace(self.methods, create_accumulator=lambda: self._in_memory(create()))

    def merge(self, slots: Slots, states: pa.Array) -> None:
        for name in self._views:
            if pc.any(pc.and_(states.is_valid(), states.field(name).is_null()), min_count=0).as_py():
                raise unreadable(self.name, f"its view {name} is NULL")
        if self._ask is not None:
            self._grow(slots)
            twice = self._present[slots].any() or len(np.unique(slots)) < len(slots)
            if twice:
                raise cannot_merge(self.name)
        else:
            self._check_complete(states)
        super().merge(slots, states)
        if self._ask is not None:
            self._cached.update(slots.tolist())
            # Complete views stay as they are: they are faster, and their states are complete again.
            for name in self._views:
                complete = states.field(name).field("complete").fill_null(True).to_numpy(zero_copy_only=False)
                self._keep(slots[~complete].tolist())

    def migrate(self, slots: Slots, states: pa.Array, written: StateOrigin) -> None:
        if self._ask is not None:
            raise RejectedError(
                "STATE_MISMATCH",
                f"states of {self.name} version {written.version} have views whose entries the engine keeps, and such "
                "states cannot be migrated; run the version that wrote them, or start from empty state",
                function=self.name,
            )
        super().migrate(slots, states, written)

    def take_entries(self, slots: Slots, states: pa.Array) -> None:
        """Take entries of views from the engine, n states with views only. Those that are known are not replaced.

        Raises:
            RejectedError: BAD_FRAME, for a slot without an accumulator, and for entries that cannot be read.
        """
        self._grow(slots)
        members = dict(zip((field.name for field in states.type), states.flatten(), strict=True))
        for name, serializer in self._views.items():
            for slot, part in zip(slots.tolist(), entries_of(name, serializer, members[name]), strict=True):
                if part is None or slot in self.failures:
                    continue
                if not self._present[slot]:
                    raise no_state(self.name, name, slot)
                if part.complete and self._value_of(self._accumulators[slot], name) is _FORGOTTEN:
                    self._attributes.set(self._accumulators[slot], name, serializer.make_view(part))
                    self._cached.add(slot)
                    continue
                # A view in memory, and what a method has set instead of one, needs no entries.
                view = self._cached_view(slot, name)
                if view is not None and view.source.is_of(slot, name):
                    view.learn(part)

    def forget_entries(self) -> None:
        """Forget all entries of all views, because the engine has them now."""
        accumulators, put = self._accumulators, self._attributes.set
        for slot in self._cached:
            accumulator = accumulators[slot]
            for name in self._views if accumulator is not EMPTY else ():
                view = self._value_of(accumulator, name)
                if type(view) is PlainMap:  # most are
                    put(accumulator, name, _FORGOTTEN)
                elif isinstance(view, (CachedMap, CachedList)):
                    view.forget()
                elif isinstance(view, (MapView, dict)):
                    put(accumulator, name, _FORGOTTEN)
                elif isinstance(view, (ListView, list)):
                    put(accumulator, name, _forgotten_list(_count(view)))
        self._cold |= self._cached
        self._cached.clear()

    def forget(self, slots: Slots) -> None:
        super().forget(slots)
        gone = slots.tolist()
        self._cached.difference_update(gone)
        self._cold.difference_update(gone)

    def close(self) -> None:
        self._cached.clear()
        self._cold.clear()
        super().close()

    @property
    def largest_view(self) -> CachedView | None:
        """The view with the most entries in memory. Another thread may ask."""
        return largest_of(
            CachedView(_count(self._value_of(accumulator, name)), slot, self.name, name)
            for slot, accumulator in enumerate(list(self._accumulators))
            for name in (self._views if accumulator is not EMPTY else ())
        )

    def _create(self, slots: Slots) -> None:
        fresh = self.absent(slots)
        super()._create(slots)
        if self._ask is not None:
            self._cached.update(fresh.tolist())
            self._thaw(slots)

    def _states(self, slots: Slots) -> pa.Array:
        if self._ask is not None and len(self._views) > 1:
            self._create(slots)
            self._read_moved(slots)
        states = super()._states(slots)
        # A method may have replaced a view, or the accumulator.
        self._cached.update(slots.tolist() if self._ask is not None else ())
        return states

    def _stored_otherwise(self, slots: Slots) -> dict[int, Any]:
        # An engine that keeps entries asks for states with the values, and making states writes the entries of views.
        return {} if self._ask is not None else super()._stored_otherwise(slots)

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        if self._ask is None:
            return super().evaluate_states(slots, states)
        if self.codec.keeps(self.accumulators_of(slots)):
            return self.evaluate(slots)
        present = states.is_valid()  # an accumulator without a state has failed
        given = slots[present.to_numpy(zero_copy_only=False)]
        stored = self.decode(given, states.filter(present))
        for slot, accumulator in stored.items():
            for name in self._views:
                self._attributes.set(accumulator, name, self._as_stored(slot, name, accumulator))
        return self.values_of(slots, stored)

    def _as_stored(self, slot: int, name: str, accumulator: Any) -> Any:
        """Return a view of a slot with its entries as they are in its state, from which `accumulator` was made.

        The state of a view whose entries the engine keeps has only those that have changed, and the value may need
        others. All entries are forgotten after the states have been returned.
        """
        view, stored = self._value_of(self._accumulators[slot], name), self._value_of(accumulator, name)
        if isinstance(view, (CachedMap, CachedList)):
            view.store(stored if isinstance(stored, ViewPart) else stored.part())
            return view
        return stored

    def _readable(self, accumulator: Any) -> Any:
        return super()._readable(accumulator) if self._ask is None else accumulator

    def _outputs(self, slots: Slots) -> pa.Array:
        self._thaw(slots)
        return super()._outputs(slots)

    def _value(self, slot: int) -> Any:
        value = super()._value(slot)
        # Maps that are known as a whole are dicts, and would be refused only when they have become large.
        if isinstance(value, _COLLECTIONS) and _has_view(value):
            message = (
                "get_value returned a MapView or ListView; return dict(view.items()) or list(view), which read all "
                "entries"
            )
            raise FunctionError("RESULT_TYPE", message, function=self.name, slot=slot)
        return value

    def _thaw(self, slots: Slots) -> None:
        """Make views of the `ViewPart`s of n slots, because a method will use them."""
        if self._cold:
            thawed = self._cold.intersection(slots.tolist())
            self._keep(thawed)
            self._cold -= thawed

    def _in_memory(self, accumulator: Any) -> Any:
        """Make views of the dicts and lists that `create_accumulator` may have given instead.

        Raises:
            TypeError: For a view that it has not given.
        """
        for name, serializer in self._views.items():
            given = self._value_of(accumulator, name)
            view = serializer.in_memory(given)
            if view is None:
                kind = "ListView" if serializer.is_list else "MapView"
                wrong = "not set" if given is None else f"of type {type(given).__name__}"
                raise TypeError(
                    f"{name} of a new accumulator is {wrong}, and it is declared as a {kind}; set it to {kind}() where "
                    "the accumulator is made"
                )
            if view is not given:
                self._attributes.set(accumulator, name, view)
        return accumulator

    def _value_of(self, accumulator: Any, name: str) -> Any:
        """Return what an accumulator has as a view; None for an accumulator without it."""
        try:
            return self._attributes.get(accumulator, name)
        except (AttributeError, TypeError, LookupError):
            return None

    def _read_moved(self, slots: Slots) -> None:
        """Read all entries of views that a method has set as another view (`acc.before = acc.now`).

        The engine keeps these entries for the view that they were read from.
        """
        for slot in slots.tolist():
            accumulator = self._accumulators[slot]
            for name in self._views if accumulator is not EMPTY else ():
                view = self._value_of(accumulator, name)
                if isinstance(view, (CachedMap, CachedList)) and not view.source.is_of(slot, name):
                    self._attributes.set(accumulator, name, copy.copy(view))

    def _keep(self, slots: Iterable[int]) -> None:
        """Replace the `ViewPart`s of n slots by views whose entries the engine keeps."""
        for slot in slots:
            for name in self._views if self._accumulators[slot] is not EMPTY else ():
                self._cached_view(slot, name)

    def _cached_view(self, slot: int, name: str) -> CachedMap | CachedList | None:
        """Return a view whose entries the engine keeps; None for a view in memory, and for any other value."""
        view = self._value_of(self._accumulators[slot], name)
        if isinstance(view, ViewPart):
            view = self._make_view(slot, name, view)
            self._attributes.set(self._accumulators[slot], name, view)
        return view if isinstance(view, (CachedMap, CachedList)) else None

    def _make_view(self, slot: int, name: str, part: ViewPart) -> CachedMap | CachedList:
        assert self._ask is not None
        serializer = self._views[name]
        source = Source(self._ask, name, serializer, slot, self._cached)
        if serializer.is_list:
            if len(part.keys) != 1 or part.present[0]:
                raise unreadable(self.name, f"the ListView {name} is not complete and has no number of items")
            return CachedList(source, part.keys[0])
        cached = CachedMap(source)
        cached.learn(part)
        return cached

    def _check_complete(self, states: pa.Array) -> None:
        """Refuse states with parts of views where no engine keeps the rest."""
        for name in self._views:
            if not pc.all(states.field(name).field("complete"), min_count=0).as_py():
                raise unreadable(
                    self.name,
                    f"its view {name} has only some of its entries, and the engine that keeps the others must say so "
                    "in Open (keeps_views)",
                )


def _count(view: Any) -> int:
    """Return the number of entries of a view in memory. A method may have set something else."""
    match view:
        case MapView() | ListView():
            return view.loaded_count
        case dict() | list():
            return len(view)
    return 0


_COLLECTIONS: Final = (dict, list, tuple, MapView, ListView)


def _has_view(value: Any) -> bool:
    """Return whether a value is a view, or has one in it."""
    if isinstance(value, (MapView, ListView)):
        return True
    members = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return any(isinstance(each, _COLLECTIONS) and _has_view(each) for each in members)


_FORGOTTEN: Final = ViewPart(complete=False, cleared=False, keys=[], values=[], present=[])
"""Takes the place of a map whose entries are forgotten."""


def _forgotten_list(count: int) -> ViewPart:
    """Return what takes the place of a list of so many items that are forgotten."""
    return ViewPart(complete=False, cleared=False, keys=[count], values=[None], present=[False])
