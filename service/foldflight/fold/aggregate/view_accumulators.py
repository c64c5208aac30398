"""Accumulators with views, of which an engine may keep the entries.

Without such an engine (`ask` is None), views are in memory and complete, and states have all their entries. With one, a
view knows the entries that were sent or asked for, and the entries that rows have changed since states were last
returned. It asks for others when a method reads them. After states have been returned, all entries are forgotten,
because the engine has them.

`CachedMap` and `CachedList` are such views: they know some of their entries, and ask for others when these are read.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.aggregate.groups_accumulator import CachedView
from foldflight.fold.aggregate.interpreter import EMPTY, InterpretedAccumulators, cannot_merge
from foldflight.fold.aggregate.state_codecs import StateOrigin, unreadable
from foldflight.fold.failures import Failures
from foldflight.fold.pickles import StateSigner
from foldflight.fold.rows import Slots
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.serializer import Attributes, ViewSerializer, views_in
from foldflight.functions.types.values import CastError
from foldflight.functions.types.views import MISSING, ListView, MapView, PlainMap, ViewPart

UNREADABLE: Final = (ValueError, TypeError, OverflowError, KeyError, pa.ArrowException)
"""What reading states or entries that were damaged or forged raises."""


class AskView(Protocol):
    """Asks the engine for entries of a view."""

    def __call__(
        self, slot: int, view: str, question: pa.Array, read: Callable[[pa.Array], Any], *, are_retained: bool
    ) -> Any:
        """Ask one question, and return what `read` makes of its n answers, both in the type of the view.

        Args:
            slot: The slot.
            view: The name of the view.
            question: The question.
            read: Takes the answers.
            are_retained: Whether the entries of the answers stay in memory until states are returned.

        Raises:
            Unanswered: There is no answer, or `read` raised an error.
        """


class Source:
    """The entries of one view of one slot, which the engine keeps.

    Args:
        ask: Asks the engine.
        name: The name of the view.
        serializer: Its layout.
        slot: The slot.
        cached_slots: The slots whose views know entries; the slot is added when entries are read or changed.
    """

    __slots__ = ("_ask", "_cached_slots", "_name", "_serializer", "_slot")

    def __init__(self, ask: AskView, name: str, serializer: ViewSerializer, slot: int, cached_slots: set[int]) -> None:
        self._ask = ask
        self._name = name
        self._serializer = serializer
        self._slot = slot
        self._cached_slots = cached_slots

    def find(self, key: Any) -> Any:
        """Return the value of a key, or MISSING. Raises TypeError for a key that does not fit the type of the keys."""

        def read(answers: pa.Array) -> Any:
            entries = self._join(answers)
            if entries.keys != [key]:
                raise self._bad(f"was asked for one key and answered with {len(entries.keys)} keys, or another one")
            return entries.values[0] if entries.present[0] else MISSING

        question = self._question([key], complete=False)
        if self._join(question).keys != [key]:
            raise TypeError(
                f"the key {key!r} is not exact in {self._serializer.key.arrow}, the type of keys of {self._name}"
            )
        return self._ask(self._slot, self._name, question, read, are_retained=True)

    def pages(self, *, are_retained: bool) -> Iterator[ViewPart]:
        """Iterate over all entries, in parts, which the caller holds or not."""
        last: list[Any] = []
        count = 0

        def read(answers: pa.Array) -> ViewPart:
            page = self._join(answers)
            if not page.keys and not page.complete:
                raise self._bad("answered with no entries, although others follow")
            if not all(page.present):
                raise self._bad("answered with entries that do not exist to a question for all")
            if self._serializer.is_list and page.keys != list(range(count, count + len(page.keys))):
                raise self._bad("answered with items that are out of order")
            return page

        while True:
            question = self._question(last, complete=True)
            page = self._ask(self._slot, self._name, question, read, are_retained=are_retained)
            yield page
            if page.complete:
                return
            last, count = page.keys[-1:], count + len(page.keys)

    def mark_cached(self) -> None:
        """Note that the view knows entries."""
        self._cached_slots.add(self._slot)

    def is_of(self, slot: int, name: str) -> bool:
        """Return whether these are the entries of this view of this slot."""
        return self._slot == slot and self._name == name

    def _question(self, keys: list[Any], *, complete: bool) -> pa.Array:
        part = ViewPart(complete, False, keys, [None] * len(keys), [False] * len(keys))
        try:
            return self._serializer.parts_to_arrow([part])
        except CastError as error:
            raise TypeError(f"a key does not fit the view {self._name}: {error}") from None

    def _join(self, answers: pa.Array) -> ViewPart:
        try:
            parts = [part for part in self._serializer.parts_of(answers) if part is not None]
        except UNREADABLE as error:
            raise self._bad(f"answered with entries that cannot be read: {error}") from error
        return ViewPart(
            complete=any(part.complete for part in parts),
            cleared=False,
            keys=[key for part in parts for key in part.keys],
            values=[value for part in parts for value in part.values],
            present=[present for part in parts for present in part.present],
        )

    def _bad(self, wrong: str) -> RejectedError:
        return RejectedError("BAD_FRAME", f"the engine {wrong}, of the view {self._name}")


class CachedMap(MapView[Any, Any]):
    """A map whose entries the engine keeps.

    `_entries` has the entries that are known, `_absent` the keys that are known not to exist, and `_changed` the keys
    that were put or removed since states were last returned. If it is whole, all entries are in `_entries`.
    """

    _is_cleared = False
    _readers = 0  # iterations under way
    _resize_count = 0  # how often a key was added or removed
    _is_whole = False

    def __init__(self, source: Source) -> None:
        self.source = source
        self._entries = {}
        self._absent: set[Any] = set()
        self._changed_keys: dict[Any, None] = {}

    def learn(self, part: ViewPart) -> None:
        """Take entries from the engine, except entries that are in memory already."""
        if self._is_whole:
            return
        for key, value, present in zip(part.keys, part.values, part.present, strict=True):
            if key in self._entries or key in self._absent:
                continue
            if present:
                self._entries[key] = value
            elif not part.complete:
                self._absent.add(key)
        self._is_whole = part.complete
        self.source.mark_cached()

    def store(self, part: ViewPart) -> None:
        """Take the entries of `part()` as its state gives them: a key or a value may come back with another type."""
        if self._is_whole:
            self._entries = dict(zip(part.keys, part.values, strict=True))
            return
        for key, value, present in zip(part.keys, part.values, part.present, strict=True):
            if present:
                del self._entries[key]  # an equal key
                self._entries[key] = value
        self._changed_keys = dict.fromkeys(part.keys)

    def forget(self) -> None:
        """Forget all entries, because the engine has them."""
        self._entries, self._absent, self._changed_keys = {}, set(), {}
        self._is_whole = self._is_cleared = False
        self._resize_count += 1

    def part(self) -> ViewPart:
        if self._is_whole:
            part = super().part()
            return dataclasses.replace(part, cleared=True) if self._is_cleared else part
        keys, entries = list(self._changed_keys), self._entries
        return ViewPart(
            complete=False,
            cleared=False,
            keys=keys,
            values=[entries.get(key) for key in keys],
            present=[key in entries for key in keys],
        )

    def _find(self, key: Any) -> Any:
        value = self._entries.get(key, MISSING)
        if value is not MISSING or self._is_whole or key in self._absent:
            return value
        value = self.source.find(key)
        if value is MISSING:
            self._absent.add(key)
        else:
            self._entries[key] = value
        self.source.mark_cached()
        return value

    def _put(self, key: Any, value: Any) -> None:
        # Whether the map grows matters only to iterations, so only they pay for finding out.
        if self._readers and self._find(key) is MISSING:
            self._resize_count += 1
        self._entries[key] = value
        self._changed_keys[key] = None
        self._absent.discard(key)
        self.source.mark_cached()

    def _remove(self, key: Any) -> None:
        self._resize_count += 1
        del self._entries[key]
        self._changed_keys[key] = None
        self._absent.add(key)
        self.source.mark_cached()

    def clear(self) -> None:
        self.forget()
        self._is_whole = self._is_cleared = True
        self.source.mark_cached()

    def is_empty(self) -> bool:
        if self._is_whole or any(key in self._entries for key in self._changed_keys):
            return not self._entries
        return super().is_empty()

    def _pairs(self, *, are_retained: bool = False) -> Iterator[tuple[Any, Any]]:
        resize_count = self._resize_count
        self._readers += 1
        try:
            for pair in self._entries.items() if self._is_whole else self._stored_pairs(are_retained=are_retained):
                yield pair
                if self._resize_count != resize_count:
                    raise RuntimeError("a MapView changed its size during an iteration")
        finally:
            self._readers -= 1

    def _stored_pairs(self, *, are_retained: bool) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries at the engine, as rows have changed them, then over entries that rows have added."""
        changed_keys, seen_keys = list(self._changed_keys), set()
        for page in self.source.pages(are_retained=are_retained):
            for key, value in zip(page.keys, page.values, strict=True):
                if key in self._absent:
                    continue
                if key in self._changed_keys:
                    seen_keys.add(key)
                yield key, self._entries.get(key, value)
        # An entry that changes meanwhile is at the engine already, because adding keys ends the iteration.
        for key in changed_keys:
            if key in self._entries and key not in seen_keys:
                yield key, self._entries[key]

    def __copy__(self) -> MapView[Any, Any]:
        return MapView(self._pairs(are_retained=True))

    def __repr__(self) -> str:
        return "MapView(...)"


class CachedList(ListView[Any]):
    """A list whose items the engine keeps.

    `_items` has the items that were appended since states were last returned, and `_stored_count` is the number of the
    items before them, which the engine has. If it is whole, all items are in `_items`.
    """

    _is_cleared = False
    _is_whole = False
    _clears = 0

    def __init__(self, source: Source, stored_count: int) -> None:
        self.source = source
        self._items = []
        self._stored_count = stored_count

    def learn(self, part: ViewPart) -> None:
        """Take all items from the engine. Some of the items are of no use."""
        if part.complete and not self._is_whole:
            items = [value for value, present in zip(part.values, part.present, strict=True) if present]
            self._items, self._is_whole, self._stored_count = items + self._items, True, 0
            self.source.mark_cached()

    def store(self, part: ViewPart) -> None:
        """Take the items of `part()` as its state gives them."""
        self._items = [value for value, present in zip(part.values, part.present, strict=True) if present]

    def forget(self) -> None:
        """Forget all items, because the engine has them."""
        self._stored_count += len(self._items)
        self._items = []
        self._is_whole = self._is_cleared = False

    def part(self) -> ViewPart:
        if self._is_whole:
            part = super().part()
            return dataclasses.replace(part, cleared=True) if self._is_cleared else part
        count = self._stored_count + len(self._items)
        return ViewPart(
            complete=False,
            cleared=False,
            keys=list(range(self._stored_count, count + 1)),
            values=[*self._items, None],
            present=[True] * len(self._items) + [False],
        )

    def add(self, value: Any) -> None:
        self._items.append(value)
        self.source.mark_cached()

    append = add

    def clear(self) -> None:
        self._items, self._stored_count = [], 0
        self._is_whole = self._is_cleared = True
        self._clears += 1
        self.source.mark_cached()

    def is_empty(self) -> bool:
        return not self._stored_count and not self._items

    def __iter__(self) -> Iterator[Any]:
        return self._read(are_retained=False)

    def _read(self, *, are_retained: bool) -> Iterator[Any]:
        clears = self._clears
        if self._stored_count:
            yield from self._stored_items(clears, are_retained=are_retained)
        index = 0
        while index < len(self._items) and self._clears == clears:
            yield self._items[index]
            index += 1

    def _stored_items(self, clears: int, *, are_retained: bool) -> Iterator[Any]:
        for page in self.source.pages(are_retained=are_retained):
            for value in page.values:
                yield value
                if self._clears != clears:
                    return

    def __copy__(self) -> ListView[Any]:
        return ListView(self._read(are_retained=True))

    def __repr__(self) -> str:
        return "ListView(...)"


def entries_of(view: str, serializer: ViewSerializer, array: pa.Array) -> list[ViewPart | None]:
    """Return n parts of a view that the engine sent.

    Raises:
        RejectedError: BAD_FRAME, if they cannot be read.
    """
    try:
        return serializer.parts_of(array)
    except UNREADABLE as error:
        raise RejectedError("BAD_FRAME", f"entries of the view {view} cannot be read: {error}") from error


def no_state(function: str, view: str, slot: int) -> RejectedError:
    """Return the error of an engine that sends entries for a slot without a state."""
    return RejectedError(
        "BAD_FRAME",
        f"there are entries of the view {view} of {function} for slot {slot}, which has no state; send its state first",
        function=function,
    )


def largest_of(views: Iterable[CachedView]) -> CachedView | None:
    """Return the view with the most entries in memory; None if no view has any."""
    largest = max(views, default=None)
    return largest if largest is not None and largest.entries else None


class ViewAccumulators(InterpretedAccumulators):
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
        self._cached_slots: set[int] = set()  # the slots with views of which entries are in memory
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
            self._cached_slots.update(slots.tolist())
            # Complete views stay as they are: they are faster, and their states are complete again.
            for name in self._views:
                complete = states.field(name).field("complete").fill_null(True).to_numpy(zero_copy_only=False)
                self._keep(slots[~complete].tolist())

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        if self._ask is not None:
            raise RejectedError(
                "STATE_MISMATCH",
                f"states of {self.name} version {origin.version} have views whose entries the engine keeps, and such "
                "states cannot be migrated; run the version that wrote them, or start from empty state",
                function=self.name,
            )
        super().migrate(slots, states, origin)

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
                    self._cached_slots.add(slot)
                    continue
                # A view in memory, and what a method has set instead of one, needs no entries.
                view = self._cached_view(slot, name)
                if view is not None and view.source.is_of(slot, name):
                    view.learn(part)

    def forget_entries(self) -> None:
        """Forget all entries of all views, because the engine has them now."""
        accumulators, put = self._accumulators, self._attributes.set
        for slot in self._cached_slots:
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
        self._cold |= self._cached_slots
        self._cached_slots.clear()

    def forget(self, slots: Slots) -> None:
        super().forget(slots)
        slot_numbers = slots.tolist()
        self._cached_slots.difference_update(slot_numbers)
        self._cold.difference_update(slot_numbers)

    def close(self) -> None:
        self._cached_slots.clear()
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
            self._cached_slots.update(fresh.tolist())
            self._thaw(slots)

    def _states(self, slots: Slots) -> pa.Array:
        if self._ask is not None and len(self._views) > 1:
            self._create(slots)
            self._read_moved(slots)
        states = super()._states(slots)
        # A method may have replaced a view, or the accumulator.
        self._cached_slots.update(slots.tolist() if self._ask is not None else ())
        return states

    def stored_otherwise(self, slots: Slots) -> dict[int, Any]:
        # An engine that keeps entries asks for states with the values, and making states writes the entries of views.
        return {} if self._ask is not None else super().stored_otherwise(slots)

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        if self._ask is None:
            return super().evaluate_states(slots, states)
        if self.codec.keeps(self.accumulators_of(slots)):
            return self.evaluate(slots)
        present = states.is_valid()  # an accumulator without a state has failed
        present_slots = slots[present.to_numpy(zero_copy_only=False)]
        stored_accumulators = self.decode(present_slots, states.filter(present))
        for slot, accumulator in stored_accumulators.items():
            for name in self._views:
                self._attributes.set(accumulator, name, self._as_stored(slot, name, accumulator))
        return self.values_of(slots, stored_accumulators)

    def _as_stored(self, slot: int, name: str, accumulator: Any) -> Any:
        """Return a view of a slot with its entries as they are in its state, from which `accumulator` was made.

        The state of a view whose entries the engine keeps has only those that have changed, and the value may need
        others. All entries are forgotten after the states have been returned.
        """
        view, stored_view = self._value_of(self._accumulators[slot], name), self._value_of(accumulator, name)
        if isinstance(view, (CachedMap, CachedList)):
            view.store(stored_view if isinstance(stored_view, ViewPart) else stored_view.part())
            return view
        return stored_view

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
            thawed_slots = self._cold.intersection(slots.tolist())
            self._keep(thawed_slots)
            self._cold -= thawed_slots

    def _in_memory(self, accumulator: Any) -> Any:
        """Make views of the dicts and lists that `create_accumulator` may have given instead.

        Raises:
            TypeError: For a view that it has not given.
        """
        for name, serializer in self._views.items():
            attribute_value = self._value_of(accumulator, name)
            view = serializer.in_memory(attribute_value)
            if view is None:
                kind = "ListView" if serializer.is_list else "MapView"
                wrong = "not set" if attribute_value is None else f"of type {type(attribute_value).__name__}"
                raise TypeError(
                    f"{name} of a new accumulator is {wrong}, and it is declared as a {kind}; set it to {kind}() where "
                    "the accumulator is made"
                )
            if view is not attribute_value:
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
        source = Source(self._ask, name, serializer, slot, self._cached_slots)
        if serializer.is_list:
            if len(part.keys) != 1 or part.present[0]:
                raise unreadable(self.name, f"the ListView {name} is not complete and has no number of items")
            return CachedList(source, part.keys[0])
        cached_map = CachedMap(source)
        cached_map.learn(part)
        return cached_map

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
