"""Views: maps and lists in accumulators whose entries an engine can keep outside of the state.

An accumulator declares them by annotations, `seen: MapView[str, int]`. In a unit test and in a batch they are ordinary
maps and lists in memory. In a stream only the entries that rows use are read and written.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeVar, overload

import numpy as np
import pyarrow as pa

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

MISSING: Final = object()
"""Takes the place of the value of a key that a map does not have."""
LIST_KEY: Final = pa.int64()
"""The type of the keys of lists: the numbers of their items."""


@dataclass(frozen=True)
class ViewSpec:
    """One view of the accumulators of a call.

    Args:
        name: The name of the attribute.
        key: The type of the keys; of a list, int64.
        value: The type of the values or items.
        prefetch: The numbers of the arguments that make up the key of the entry that a row will use; empty if unknown.
        is_list: Whether it is a list. Its keys are the numbers of its items.
    """

    name: str
    key: pa.DataType
    value: pa.DataType
    prefetch: tuple[int, ...] = ()
    is_list: bool = False

    @property
    def arrow(self) -> pa.DataType:
        """The type of the view in a state."""
        return view_type(self.key, self.value)


def view_type(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return the type of a view in a state, whose keys and values have these types."""
    entry = pa.struct([pa.field("key", key), pa.field("value", value), pa.field("present", pa.bool_())])
    return pa.struct(
        [pa.field("complete", pa.bool_()), pa.field("cleared", pa.bool_()), pa.field("entries", pa.list_(entry))]
    )


@dataclass(frozen=True)
class ViewPart:
    """Some of the entries of a view, as they are in a state.

    Args:
        complete: Whether these are all entries.
        cleared: Whether all older entries are removed.
        keys: The keys.
        values: The value of each key; None for one that is not present.
        present: Whether each key is present; otherwise it is removed, or does not exist.
    """

    complete: bool
    cleared: bool
    keys: list[Any]
    values: list[Any]
    present: list[bool]


def normal_key(key: Any) -> Any:
    """Return a key as maps keep it: NaN is equal to itself, and -0.0 is 0.0."""
    if isinstance(key, np.generic):
        key = key.item()
    if isinstance(key, float):
        return math.nan if key != key else key + 0.0  # noqa: PLR0124 - only NaN differs from itself
    if isinstance(key, tuple):
        normal = map(normal_key, key)
        return key._make(normal) if hasattr(key, "_make") else tuple(normal)
    return key


class _MapIterable(Generic[T]):
    """The keys, values or entries of a map, read each time anew."""

    def __init__(self, read: Callable[[], Iterator[T]], contains: Callable[[Any], bool] | None = None) -> None:
        self._read = read
        self._contains = contains

    def __iter__(self) -> Iterator[T]:
        return self._read()

    def __contains__(self, item: object) -> bool:
        return any(item == each for each in self._read()) if self._contains is None else self._contains(item)

    def __bool__(self) -> bool:
        return next(iter(self), MISSING) is not MISSING

    def __len__(self) -> int:
        raise _no_len("view")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


class MapView(Generic[K, V]):
    """A map in an accumulator that may become larger than a message.

    It has the methods of `dict`, but not `len`, `copy` and `popitem`, which need all entries, and the methods of
    PyFlink's `MapView`. Keys are numbers, texts, bytes, dates, times, or tuples of these. None is a key like others,
    NaN is equal to itself. The order of the entries is undefined.

    A value that is changed in place must be put again: only values that are put are stored.

    Args:
        items: The first entries: a mapping, or pairs.

    >>> from foldflight import MapView
    >>> counts = MapView({"a": 1})
    >>> counts["a"] += 1
    >>> counts.get("a"), counts.get("b", 0), "b" in counts
    (2, 0, False)
    """

    def __init__(self, items: Mapping[K, V] | MapView[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._entries: dict[Any, Any] = {}
        # Whether a view is empty may be a question to the engine.
        if isinstance(items, MapView) or items:
            self.update(items)

    @classmethod
    def of(cls, entries: dict[Any, Any]) -> Self:
        """Return a map of these entries, whose keys are normal. The dict becomes a part of it."""
        map_view = cls()
        map_view._entries = entries
        return map_view

    # -- what a subclass that keeps its entries elsewhere overrides; keys are normal -----------------------------------

    def _key(self, key: Any) -> Any:
        """Return the key under which an entry is kept."""
        kind = key.__class__
        return key if kind is str or kind is int else normal_key(key)

    def _find(self, key: Any) -> Any:
        """Return the value of a key, or MISSING."""
        return self._entries.get(key, MISSING)

    def _put(self, key: Any, value: Any) -> None:
        """Set the value of a key."""
        self._entries[key] = value

    def _remove(self, key: Any) -> None:
        """Remove a key that the map has."""
        del self._entries[key]

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over all entries. Raises RuntimeError if keys are added or removed meanwhile."""
        return iter(dict.items(self._entries))

    def clear(self) -> None:
        """Remove all entries."""
        dict.clear(self._entries)

    # -- reading -------------------------------------------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or the default."""
        value = self._find(self._key(key))
        return default if value is MISSING else value

    def contains(self, key: K) -> bool:
        """Return whether there is an entry with this key."""
        return self._find(self._key(key)) is not MISSING

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        return next(iter(self._pairs()), MISSING) is MISSING

    def items(self) -> Iterable[tuple[K, V]]:
        """Return all entries, as pairs."""
        return _MapIterable(self._pairs)

    def keys(self) -> Iterable[K]:
        """Return all keys."""
        return _MapIterable(self.__iter__, self.__contains__)

    def values(self) -> Iterable[V]:
        """Return all values."""
        return _MapIterable(lambda: (value for _, value in self._pairs()))

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._put(self._key(key), value)

    def put_all(self, items: Mapping[K, V] | MapView[K, V] | Iterable[tuple[K, V]]) -> None:
        """Set the values of these keys."""
        pairs = items.items() if isinstance(items, (Mapping, MapView)) else items
        for key, value in pairs:
            self._put(self._key(key), value)

    def update(self, items: Mapping[K, V] | MapView[K, V] | Iterable[tuple[K, V]] = (), **named: V) -> None:
        """Set the values of these keys."""
        self.put_all(items)
        for name, value in named.items():
            self._put(name, value)

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; if there is none, set the default first."""
        key = self._key(key)
        value = self._find(key)
        if value is MISSING:
            self._put(key, default)
            return default
        return value

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a key and return its value. Without the key, return the default, or raise KeyError."""
        if len(default) > 1:
            raise TypeError(f"pop takes a key and at most one default, and was given {1 + len(default)} arguments")
        normal = self._key(key)
        value = self._find(normal)
        if value is not MISSING:
            self._remove(normal)
            return value
        if default:
            return default[0]
        raise KeyError(key)

    def remove(self, key: K) -> None:
        """Remove a key. Raises KeyError if there is none."""
        self.pop(key)

    # -- operators -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        stored_value: Any = self._find(self._key(key))
        if stored_value is MISSING:
            raise KeyError(key)
        value: V = stored_value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._put(self._key(key), value)

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def __contains__(self, key: Any) -> bool:
        return self._find(self._key(key)) is not MISSING

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._pairs())

    def __bool__(self) -> bool:
        return not self.is_empty()

    def __len__(self) -> int:
        raise _no_len("MapView")

    def __ior__(self, other: Mapping[K, V] | MapView[K, V] | Iterable[tuple[K, V]]) -> Self:
        self.put_all(other)
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (MapView, dict)):
            return NotImplemented
        return dict(self.items()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __copy__(self) -> MapView[K, V]:
        return MapView(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> MapView[K, V]:
        return MapView(copy.deepcopy(dict(self.items()), memo))

    def __repr__(self) -> str:
        return f"MapView({dict.__repr__(self._entries)})"

    def part(self) -> ViewPart:
        """Return the entries as they are written to a state."""
        entries = self._entries
        return ViewPart(
            complete=True,
            cleared=False,
            keys=list(entries),
            values=list(dict.values(entries)),
            present=[True] * self.loaded_count,
        )

    @property
    def loaded_count(self) -> int:
        """The number of entries in memory."""
        return dict.__len__(self._entries)


class _MissingMethod:
    """Takes the place of a method of `dict` that maps in accumulators do not have."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        raise AttributeError(f"a MapView has no {self._name}, which would read all entries")


_dict: Any = dict
_nothing: Any = None


class PlainMap(MapView[Any, Any], dict[Any, Any]):  # type: ignore[misc]  # the methods of MapView come first
    """A map with all its entries in memory, whose methods for single entries run without Python code.

    It is for keys that need no normal form: integers, booleans, texts, bytes, and tuples of these. NumPy's numbers and
    texts are equal to Python's as such keys. In everything else it is a `MapView`.

    Args:
        items: The first entries: a mapping, or pairs.
    """

    __slots__ = ()

    __init__ = _dict.__init__
    __getitem__ = _dict.__getitem__
    __setitem__ = put = _dict.__setitem__
    __delitem__ = _dict.__delitem__
    __contains__ = contains = _dict.__contains__
    __iter__ = _dict.__iter__
    get = _dict.get
    setdefault = _dict.setdefault
    pop = _dict.pop
    clear = _dict.clear
    update = put_all = _dict.update
    __or__ = __ror__ = __reversed__ = _nothing
    copy, fromkeys, popitem = _MissingMethod(), _MissingMethod(), _MissingMethod()

    @property
    def _entries(self) -> dict[Any, Any]:  # type: ignore[override]  # it is the map itself
        return self

    def is_empty(self) -> bool:
        return not dict.__len__(self)

    def keys(self) -> Any:
        return _MapIterable(lambda: dict.__iter__(self), self.__contains__)

    def values(self) -> Any:
        return _MapIterable(lambda: iter(dict.values(self)))


class ListView(Generic[T]):
    """A list in an accumulator that may become larger than a message.

    Items are appended and read in order. It has these methods of `list`, and the methods of PyFlink's `ListView`. An
    item that is changed in place is not stored: read all, `clear` and add them again.

    Args:
        items: The first items.

    >>> from foldflight import ListView
    >>> seen = ListView(["a"])
    >>> seen.append("b")
    >>> list(seen)
    ['a', 'b']
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)

    @classmethod
    def of(cls, items: list[T]) -> Self:
        """Return a list of these items. The list becomes a part of it."""
        list_view = cls()
        list_view._items = items
        return list_view

    def get(self) -> Iterable[T]:
        """Return all items, in order."""
        return _MapIterable(self.__iter__)

    def add(self, value: T) -> None:
        """Append an item."""
        self._items.append(value)

    def add_all(self, values: Iterable[T]) -> None:
        """Append these items."""
        for value in values:
            self.add(value)

    append = add
    extend = add_all

    def clear(self) -> None:
        """Remove all items."""
        self._items.clear()

    def is_empty(self) -> bool:
        """Return whether there is no item."""
        return not self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __iadd__(self, values: Iterable[T]) -> Self:
        self.add_all(values)
        return self

    def __contains__(self, item: object) -> bool:
        return any(item == each for each in self)

    def __bool__(self) -> bool:
        return not self.is_empty()

    def __len__(self) -> int:
        raise _no_len("ListView")

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (ListView, list)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __copy__(self) -> ListView[T]:
        return ListView(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> ListView[T]:
        return ListView(copy.deepcopy(list(self), memo))

    def __repr__(self) -> str:
        return f"ListView({self._items!r})"

    def part(self) -> ViewPart:
        """Return the items as they are written to a state."""
        count = len(self._items)
        return ViewPart(
            complete=True, cleared=False, keys=list(range(count)), values=list(self._items), present=[True] * count
        )

    @property
    def loaded_count(self) -> int:
        """The number of items in memory."""
        return len(self._items)


def _no_len(kind: str) -> TypeError:
    return TypeError(f"a {kind} has no len(), which would read all entries; keep a count in the accumulator")
