"""Recorded lookups: the names that code refers to, and the objects that they referred to.

Checking that each name still refers to the same object is faster than following all names and digesting them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import FunctionType, MemberDescriptorType, WrapperDescriptorType
from typing import Any, Final

MISSING: Final = object()
PLAIN: Final = (int, float, bool, str, bytes, type(None), date, datetime, time, timedelta, timezone, Decimal)
# Descriptors whose results are looked up as well. The results of other descriptors are unknown.
_KNOWN: Final = (FunctionType, staticmethod, classmethod, property, MemberDescriptorType, WrapperDescriptorType)
_STEPS_MAX: Final = 10_000


class Lookups:
    """Looks up attributes and items, and records the results."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._items: list[tuple[Any, str, Any]] = []
        self._is_invalid = False
        self.places = ""  # the file and first line of each function that is reached

    def attribute(self, holder: Any, name: str) -> Any:
        """Return `holder.name`, or MISSING if it does not exist or raises."""
        return self._record(self._attributes, holder, name, _attribute(holder, name))

    def item(self, holder: Mapping[str, Any], name: str) -> Any:
        """Return `holder[name]`, or MISSING if it does not exist."""
        return self._record(self._items, holder, name, holder.get(name, MISSING))

    def _record(self, lookups: list[tuple[Any, str, Any]], holder: Any, name: str, value: Any) -> Any:
        lookups.append((holder, name, value))
        if len(lookups) > _STEPS_MAX or _may_change(value):
            self.invalidate()
        return value

    def class_entries(self, cls: type, names: Iterable[str]) -> None:
        """Look up the entries of these names in a class and its base classes, without invoking descriptors."""
        above = self.attribute(cls, "__mro__")
        for name in names:
            for each in above[:-1]:
                entry = self.item(vars(each), name)
                if hasattr(type(entry), "__get__") and not isinstance(entry, _KNOWN):
                    self.invalidate()

    def invalidate(self) -> None:
        """Make `holds` always return False: the results depend on more than the lookups, or there are too many."""
        self._is_invalid = True
        self._attributes, self._items = [], []

    def holds(self) -> bool:
        """Return whether all lookups still have the same results. False if this is unknown."""
        return (
            not self._is_invalid
            and all(is_same(_attribute(holder, name), value) for holder, name, value in self._attributes)
            and all(is_same(holder.get(name, MISSING), value) for holder, name, value in self._items)
        )


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same object, or identical plain values."""
    return one is other or (type(one) is type(other) and type(one) in PLAIN and repr(one) == repr(other))


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except Exception:  # noqa: BLE001 - the access raises again where the attribute is used, and is unsupported there
        return MISSING


def _may_change(value: Any) -> bool:
    """Return whether an object has contents that may change without a lookup, such as the items of a list."""
    return isinstance(value, (list, dict, set)) or (isinstance(value, tuple) and any(map(_may_change, value)))
