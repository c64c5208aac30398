"""Views whose entries an engine keeps: they know some of their entries, and ask for others when these are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.fold.request import CachedView
from foldflight.functions.types.serializer import ViewSerializer
from foldflight.functions.types.values import CastError
from foldflight.functions.types.views import MISSING, ListView, MapView, ViewPart

UNREADABLE: Final = (ValueError, TypeError, OverflowError, KeyError, pa.ArrowException)
"""What reading states or entries that were damaged or forged raises."""


class AskView(Protocol):
    """Asks the engine for entries of a view."""

    def __call__(
        self, slot: int, view: str, question: pa.Array, read: Callable[[pa.Array], Any], *, are_held: bool
    ) -> Any:
        """Ask one question, and return what `read` makes of its n answers, both in the type of the view.

        Args:
            slot: The slot.
            view: The name of the view.
            question: The question.
            read: Takes the answers.
            are_held: Whether the entries of the answers stay in memory until states are returned.

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
        cached: The slots whose views know entries; the slot is added when entries are read or changed.
    """

    __slots__ = ("_ask", "_cached", "_name", "_serializer", "_slot")

    def __init__(self, ask: AskView, name: str, serializer: ViewSerializer, slot: int, cached: set[int]) -> None:
        self._ask = ask
        self._name = name
        self._serializer = serializer
        self._slot = slot
        self._cached = cached

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
        return self._ask(self._slot, self._name, question, read, are_held=True)

    def pages(self, *, are_held: bool) -> Iterator[ViewPart]:
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
            page = self._ask(self._slot, self._name, question, read, are_held=are_held)
            yield page
            if page.complete:
                return
            last, count = page.keys[-1:], count + len(page.keys)

    def mark_cached(self) -> None:
        """Note that the view knows entries."""
        self._cached.add(self._slot)

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
    _resized = 0  # how often a key was added or removed
    _is_whole = False

    def __init__(self, source: Source) -> None:
        self.source = source
        self._entries = {}
        self._absent: set[Any] = set()
        self._changed: dict[Any, None] = {}

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
        self._changed = dict.fromkeys(part.keys)

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
            self._resized += 1
        self._entries[key] = value
        self._changed[key] = None
        self._absent.discard(key)
        self.source.mark_cached()

    def _remove(self, key: Any) -> None:
        self._resized += 1
        del self._entries[key]
        self._changed[key] = None
        self._absent.add(key)
        self.source.mark_cached()

    def clear(self) -> None:
        self.forget()
        self._is_whole = self._is_cleared = True
        self.source.mark_cached()

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
        """Iterate over the entries at the engine, as rows have changed them, then over entries that rows have added."""
        changed, met = list(self._changed), set()
        for page in self.source.pages(are_held=are_held):
            for key, value in zip(page.keys, page.values, strict=True):
                if key in self._absent:
                    continue
                if key in self._changed:
                    met.add(key)
                yield key, self._entries.get(key, value)
        # An entry that changes meanwhile is at the engine already, because adding keys ends the iteration.
        for key in changed:
            if key in self._entries and key not in met:
                yield key, self._entries[key]

    def __copy__(self) -> MapView[Any, Any]:
        return MapView(self._pairs(are_held=True))

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

    def __init__(self, source: Source, stored: int) -> None:
        self.source = source
        self._items = []
        self._stored_count = stored

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
        return self._read(are_held=False)

    def _read(self, *, are_held: bool) -> Iterator[Any]:
        clears = self._clears
        if self._stored_count:
            yield from self._stored_items(clears, are_held=are_held)
        index = 0
        while index < len(self._items) and self._clears == clears:
            yield self._items[index]
            index += 1

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


def largest_of(held: Iterable[CachedView]) -> CachedView | None:
    """Return the view with the most entries in memory; None if no view has any."""
    largest = max(held, default=None)
    return largest if largest is not None and largest.entries else None
