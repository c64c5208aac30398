"""The way to all that code reaches: what was looked up, and what was found there.

To follow names anew, and to digest what they lead to, takes longer than to see that each still leads to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FunctionType, MemberDescriptorType, WrapperDescriptorType
from typing import Any, Final

__all__ = ["MISSING", "PLAIN", "Trail", "is_same"]

MISSING: Final = object()
PLAIN: Final = (int, float, bool, str, bytes, type(None))
# What instances find on their class, and what comes of it is looked up, too; of others nobody knows.
_KNOWN: Final = (FunctionType, staticmethod, classmethod, property, MemberDescriptorType, WrapperDescriptorType)
_STEPS_MAX: Final = 10_000


class Trail:
    """Looks things up, and remembers it."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._items: list[tuple[Mapping[str, Any], str, Any]] = []
        self._is_lost = False

    def attribute(self, holder: Any, name: str) -> Any:
        """Return `holder.name`; MISSING where there is none, or it raises."""
        found = _attribute(holder, name)
        self._attributes.append((holder, name, found))
        if len(self._attributes) > _STEPS_MAX or _may_change(found):
            self.lose()
        return found

    def item(self, holder: Mapping[str, Any], name: str) -> Any:
        """Return `holder[name]`; MISSING where there is none."""
        found = holder.get(name, MISSING)
        self._items.append((holder, name, found))
        if len(self._items) > _STEPS_MAX or _may_change(found):
            self.lose()
        return found

    def own(self, cls: type, names: Iterable[str]) -> None:
        """Look up what a class and those above it have by these names, as it stands there."""
        above = self.attribute(cls, "__mro__")
        for name in names:
            for each in above[:-1]:
                found = self.item(vars(each), name)
                if hasattr(type(found), "__get__") and not isinstance(found, _KNOWN):
                    self.lose()

    def lose(self) -> None:
        """Never hold: what was looked up depends on more than that, or is too much to remember."""
        self._is_lost = True
        self._attributes, self._items = [], []

    def holds(self) -> bool:
        """Tell whether all that was looked up is the same now; False also where that cannot be told."""
        return (
            not self._is_lost
            and all(is_same(_attribute(holder, name), found) for holder, name, found in self._attributes)
            and all(is_same(holder.get(name, MISSING), found) for holder, name, found in self._items)
        )


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two are one object, or plain values that nothing tells apart."""
    return one is other or (type(one) is type(other) and type(one) in PLAIN and repr(one) == repr(other))


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except Exception:  # noqa: BLE001 - what raises here raises again, and is refused, where it is used
        return MISSING


def _may_change(found: Any) -> bool:
    """Tell whether an object may hold something else later that is not looked up: the items of a list."""
    return isinstance(found, list) or (isinstance(found, tuple) and any(map(_may_change, found)))
