"""Accumulators with views, of which an engine may keep the entries.

Without such an engine (`ask` is None), views are in memory and complete, and states have all their entries. With one, a
view knows the entries that were sent or asked for, and those that rows have changed since states were last returned. It
asks for others when a method reads them. After states have been returned, all entries are forgotten, because the engine
has them.
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
from foldflight.fold.aggregate.interpreted import EMPTY, Interpreted, cannot_merge
from foldflight.fold.aggregate.migration import StateOrigin
from foldflight.fold.aggregate.states import unreadable
from foldflight.fold.evaluator import HeldView
from foldflight.fold.failures import Failures
from foldflight.fold.rows import Slots
from foldflight.fold.signing import StateSigner
from foldflight.functions.context import FunctionContext
from foldflight.functions.shape import Attributes, ViewShape, views_in
from foldflight.functions.spec import BoundFunction
from foldflight.functions.values import CastError
from foldflight.functions.views import MISSING, ListView, MapView, PlainMap, ViewPart

__all__ = ["AskView", "Viewed"]

_UNREADABLE: Final = (ValueError, TypeError, OverflowError, KeyError, pa.ArrowException)


class AskView(Protocol):
    """Asks the engine for entries of a view."""

    def __call__(
        self, slot: int, view: str, asked: pa.Array, read: Callable[[pa.Array], Any], *, are_held: bool
    ) -> Any:
        """Ask one question, and return what `read` makes of its n answers, both in the type of the view.

        Args:
            slot: The slot.
            view: The name of the view.
            asked: The question.
            read: Takes the answers.
            are_held: Whether the entries of the answers stay in memory until states are returned.

        Raises:
            Unanswered: There is no answer, or `read` raised an error.
        """


class _Source:
    """The entries of one view of one slot, which the engine keeps.

    Args:
        ask: Asks the engine.
        name: The name of the view.
        shape: Its layout.
        slot: The slot.
        warm: The slots whose views know entries; the slot is added when entries are read or changed.
    """

    __slots__ = ("_ask", "_name", "_shape", "_slot", "_warm")

    def __init__(self, ask: AskView, name: str, shape: ViewShape, slot: int, warm: set[int]) -> None:
        self._ask = ask
        self._name = name
        self._shape = shape
        self._slot = slot
        self._warm = warm

    def find(self, key: Any) -> Any:
        """Return the value of a key, or MISSING. Raises TypeError for a key that does not fit the type of the keys."""

        def read(answers: pa.Array) -> Any:
            found = self._joined(answers)
            if found.keys != [key]:
                raise self._bad(f"was asked for one key and answered with {len(found.keys)} keys, or another one")
            return found.values[0] if found.present[0] else MISSING

        question = self._question([key], complete=False)
        if self._joined(question).keys != [key]:
            raise TypeError(
                f"the key {key!r} is not exact in {self._shape.key.arrow}, the type of keys of {self._name}"
            )
        return self._ask(self._slot, self._name, question, read, are_held=True)

    def pages(self, *, are_held: bool) -> Iterator[ViewPart]:
        """Iterate over all entries, in parts, which the caller holds or not."""
        last: list[Any] = []
        count = 0

        def read(answers: pa.Array) -> ViewPart:
            page = self._joined(answers)
            if not page.keys and not page.complete:
                raise self._bad("answered with no entries, although others follow")
            if not all(page.present):
                raise self._bad("answered with entries that do not exist to a question for all")
            if self._shape.is_list and page.keys != list(range(count, count + len(page.keys))):
                raise self._bad("answered with items that are out of order")
            return page

        while True:
            question = self._question(last, complete=True)
            page = self._ask(self._slot, self._name, question, read, are_held=are_held)
            yield page
            if page.complete:
                return
            last, count = page.keys[-1:], count + len(page.keys)

    def warm(self) -> None:
        """Note that the view knows entries."""
        self._warm.add(self._slot)

    def is_of(self, slot: int, name: str) -> bool:
        """Return whether these are the entries of this view of this slot."""
        return self._slot == slot and self._name == name

    def _question(self, keys: list[Any], *, complete: bool) -> pa.Array:
        part = ViewPart(complete, False, keys, [None] * len(keys), [False] * len(keys))
        try:
            return self._shape.parts_to_arrow([part])
        except CastError as error:
            raise TypeError(f"a key does not fit the view {self._name}: {error}") from None

    def _joined(self, answers: pa.Array) -> ViewPart:
        try:
            parts = [part for part in self._shape.parts_of(answers) if part is not None]
        except _UNREADABLE as error:
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


class _KeptMap(MapView[Any, Any]):
    """A map whose entries the engine keeps.

    `_entries` has the entries that are known, `_absent` the keys that are known not to exist, and `_changed` the keys
    that were put or removed since states were last returned. If it is whole, all entries are in `_entries`.
    """

    _is_cleared = False
    _readers = 0  # iterations under way
    _resized = 0  # how often a key was added or removed
    _is_whole = False

    def __init__(self, source: _Source) -> None:
        self.source = source
        self._entries = {}
        self._absent: set[Any] = set()
        self._changed: dict[Any, None] = {}

    def learn(self, part: ViewPart) -> None:
        """Take entries from the engine, except those that are known already."""
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
        self.source.warm()

    def forget(self) -> None:
        """Forget all entries, because the engine has them."""
        self._entries, self._absent, self._changed = {}, set(), {}
        self._is_whole = self._is_cleared = False
        self._resized += 1

    def part(self) -> ViewPart:
        if self._is_whole:
            part = super().part()
            return dataclasses.replace(part, cleared=True) if self._is_cleared else part
        keys, entries = list(self._changed), self._entries
        return ViewPart(
            complete=False,
            cleared=False,
            keys=keys,
            values=[entries.get(key) for key in keys],
            present=[key in entries for key in keys],
        )

    def _find(self, key: Any) -> Any:
        found = self._entries.get(key, MISSING)
        if found is not MISSING or self._is_whole or key in self._absent:
            return found
        found = self.source.find(key)
        if found is MISSING:
            self._absent.add(key)
        else:
            self._entries[key] = found
        self.source.warm()
        return found

    def _put(self, key: Any, value: Any) -> None:
        # Whether the map grows matters only to iterations, so only they pay for finding out.
        if self._readers and self._find(key) is MISSING:
            self._resized += 1
        self._entries[key] = value
        self._changed[key] = None
        self._absent.discard(key)
        self.source.warm()

    def _remove(self, key: Any) -> None:
        self._resized += 1
        del self._entries[key]
        self._changed[key] = None
        self._absent.add(key)
        self.source.warm()

    def clear(self) -> None:
        self.forget()
        self._is_whole = self._is_cleared = True
        self.source.warm()

    def is_empty(self) -> bool:
        if self._is_whole or any(key in self._entries for key in self._changed):
            return not self._entries
        return super().is_empty()

    def _pairs(self, *, are_held: bool = False) -> Iterator[tuple[Any, Any]]:
        resized = self._resized
        self._readers += 1
        try:
            for pair in self._entries.items() if self._is_whole else self._stored_pairs(are_held=are_held):
                yield pair
                if self._resized != resized:
                    raise RuntimeError("a MapView changed its size during an iteration")
        finally:
            self._readers -= 1

    def _stored_pairs(self, *, are_held: bool) -> Iterator[tuple[Any, Any]]:
        """Iterate over the entries at the engine, as rows have changed them, then over those that rows have added."""
        changed, met = list(self._changed), set()
        for page in self.source.pages(are_held=are_held):
            for key, value in zip(page.keys, page.values, strict=True):
                if key in self._absent:
                    continue
                if key in self._changed:
                    met.add(key)
                yield key, self._entries.get(key, value)
        # What is changed meanwhile has an entry at the engine, because adding keys ends the iteration.
        for key in changed:
            if key in self._entries and key not in met:
                yield key, self._entries[key]

    def __copy__(self) -> MapView[Any, Any]:
        return MapView(self._pairs(are_held=True))

    def __repr__(self) -> str:
        return "MapView(...)"


class _KeptList(ListView[Any]):
    """A list whose items the engine keeps.

    `_items` has the items that were appended since states were last returned, and `_kept` is the number of the items
    before them, which the engine has. If it is whole, all items are in `_items`.
    """

    _is_cleared = False
    _is_whole = False
    _clears = 0

    def __init__(self, source: _Source, kept: int) -> None:
        self.source = source
        self._items = []
        self._kept = kept

    def learn(self, part: ViewPart) -> None:
        """Take all items from the engine. Some of the items are of no use."""
        if part.complete and not self._is_whole:
            items = [value for value, present in zip(part.values, part.present, strict=True) if present]
            self._items, self._is_whole, self._kept = items + self._items, True, 0
            self.source.warm()

    def forget(self) -> None:
        """Forget all items, because the engine has them."""
        self._kept += len(self._items)
        self._items = []
        self._is_whole = self._is_cleared = False

    def part(self) -> ViewPart:
        if self._is_whole:
            part = super().part()
            return dataclasses.replace(part, cleared=True) if self._is_cleared else part
        count = self._kept + len(self._items)
        return ViewPart(
            complete=False,
            cleared=False,
            keys=list(range(self._kept, count + 1)),
            values=[*self._items, None],
            present=[True] * len(self._items) + [False],
        )

    def add(self, value: Any) -> None:
        self._items.append(value)
        self.source.warm()

    append = add

    def clear(self) -> None:
        self._items, self._kept = [], 0
        self._is_whole = self._is_cleared = True
        self._clears += 1
        self.source.warm()

    def is_empty(self) -> bool:
        return not self._kept and not self._items

    def __iter__(self) -> Iterator[Any]:
        return self._read(are_held=False)

    def _read(self, *, are_held: bool) -> Iterator[Any]:
        clears = self._clears
        if self._kept:
            yield from self._stored_items(clears, are_held=are_held)
        place = 0
        while place < len(self._items) and self._clears == clears:
            yield self._items[place]
            place += 1

    def _stored_items(self, clears: int, *, are_held: bool) -> Iterator[Any]:
        for page in self.source.pages(are_held=are_held):
            for value in page.values:
                yield value
                if self._clears != clears:
                    return

    def __copy__(self) -> ListView[Any]:
        return ListView(self._read(are_held=True))

    def __repr__(self) -> str:
        return "ListView(...)"


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
        self._views = views_in(bound.shape)
        self._attributes = Attributes(bound.shape)
        self._warm: set[int] = set()  # the slots with views of which entries are in memory
        self._cold: set[int] = set()  # the slots that may have `ViewPart`s, until a row uses the slot
        create = self.verbs.create_accumulator
        self.verbs = dataclasses.replace(self.verbs, create_accumulator=lambda: self._in_memory(create()))

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
            self._warm.update(slots.tolist())
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
        for name, shape in self._views.items():
            try:
                parts = shape.parts_of(members[name])
            except _UNREADABLE as error:
                raise RejectedError("BAD_FRAME", f"entries of the view {name} cannot be read: {error}") from error
            for slot, part in zip(slots.tolist(), parts, strict=True):
                if part is None or slot in self.failures:
                    continue
                if not self._present[slot]:
                    raise RejectedError(
                        "BAD_FRAME",
                        f"there are entries of the view {name} of {self.name} for slot {slot}, which has no state; "
                        "send its state first",
                        function=self.name,
                    )
                if part.complete and self._found(self._held[slot], name) is _FORGOTTEN:
                    self._attributes.set(self._held[slot], name, shape.made(part))
                    self._warm.add(slot)
                    continue
                # A view in memory, and what a method has set instead of one, needs no entries.
                view = self._kept(slot, name)
                if view is not None and view.source.is_of(slot, name):
                    view.learn(part)

    def forget_entries(self) -> None:
        """Forget all entries of all views, because the engine has them now."""
        held, put = self._held, self._attributes.set
        for slot in self._warm:
            accumulator = held[slot]
            for name in self._views if accumulator is not EMPTY else ():
                found = self._found(accumulator, name)
                if type(found) is PlainMap:  # most are
                    put(accumulator, name, _FORGOTTEN)
                elif isinstance(found, (_KeptMap, _KeptList)):
                    found.forget()
                elif isinstance(found, (MapView, dict)):
                    put(accumulator, name, _FORGOTTEN)
                elif isinstance(found, (ListView, list)):
                    put(accumulator, name, _forgotten_list(_count(found)))
        self._cold |= self._warm
        self._warm.clear()

    def forget(self, slots: Slots) -> None:
        super().forget(slots)
        gone = slots.tolist()
        self._warm.difference_update(gone)
        self._cold.difference_update(gone)

    def close(self) -> None:
        self._warm.clear()
        self._cold.clear()
        super().close()

    @property
    def largest_view(self) -> HeldView | None:
        """The view with the most entries in memory. Another thread may ask."""
        held = [
            HeldView(_count(self._found(accumulator, name)), slot, self.name, name)
            for slot, accumulator in enumerate(list(self._held))
            for name in (self._views if accumulator is not EMPTY else ())
        ]
        largest = max(held, default=None)
        return largest if largest is not None and largest.entries else None

    def _create(self, slots: Slots) -> None:
        fresh = self.absent(slots)
        super()._create(slots)
        if self._ask is not None:
            self._warm.update(fresh.tolist())
            self._thaw(slots)

    def _states(self, slots: Slots) -> pa.Array:
        if self._ask is not None and len(self._views) > 1:
            self._create(slots)
            self._read_moved(slots)
        states = super()._states(slots)
        # A method may have replaced a view, or the accumulator.
        self._warm.update(slots.tolist() if self._ask is not None else ())
        return states

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
        for name, shape in self._views.items():
            found = self._found(accumulator, name)
            view = shape.in_memory(found)
            if view is None:
                kind = "ListView" if shape.is_list else "MapView"
                wrong = "not set" if found is None else f"of type {type(found).__name__}"
                raise TypeError(
                    f"{name} of a new accumulator is {wrong}, and it is declared as a {kind}; set it to {kind}() where "
                    "the accumulator is made"
                )
            if view is not found:
                self._attributes.set(accumulator, name, view)
        return accumulator

    def _found(self, accumulator: Any, name: str) -> Any:
        """Return what an accumulator has as a view; None for an accumulator without it."""
        try:
            return self._attributes.get(accumulator, name)
        except (AttributeError, TypeError, LookupError):
            return None

    def _read_moved(self, slots: Slots) -> None:
        """Read all entries of views that a method has set as another view (`acc.before = acc.now`).

        The engine keeps these entries as those of the view that they were read from.
        """
        for slot in slots.tolist():
            accumulator = self._held[slot]
            for name in self._views if accumulator is not EMPTY else ():
                found = self._found(accumulator, name)
                if isinstance(found, (_KeptMap, _KeptList)) and not found.source.is_of(slot, name):
                    self._attributes.set(accumulator, name, copy.copy(found))

    def _keep(self, slots: Iterable[int]) -> None:
        """Replace the `ViewPart`s of n slots by views whose entries the engine keeps."""
        for slot in slots:
            for name in self._views if self._held[slot] is not EMPTY else ():
                self._kept(slot, name)

    def _kept(self, slot: int, name: str) -> _KeptMap | _KeptList | None:
        """Return a view whose entries the engine keeps; None for one in memory, and for what is no view."""
        found = self._found(self._held[slot], name)
        if isinstance(found, ViewPart):
            found = self._made(slot, name, found)
            self._attributes.set(self._held[slot], name, found)
        return found if isinstance(found, (_KeptMap, _KeptList)) else None

    def _made(self, slot: int, name: str, part: ViewPart) -> _KeptMap | _KeptList:
        assert self._ask is not None
        shape = self._views[name]
        source = _Source(self._ask, name, shape, slot, self._warm)
        if shape.is_list:
            if len(part.keys) != 1 or part.present[0]:
                raise unreadable(self.name, f"the ListView {name} is not complete and has no number of items")
            return _KeptList(source, part.keys[0])
        kept = _KeptMap(source)
        kept.learn(part)
        return kept

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
            return view.held
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
