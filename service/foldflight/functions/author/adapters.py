"""Adapters: the methods by which another system calls an aggregate class, and how they become a function of foldflight.

An adapter lists the methods that its system calls, by foldflight's name, and binds them for an instance. The author's
class is not changed. `retract` and `migrate` may be added to a class of any system, for example in a subclass;
`retract` takes a row as the method that adds one does.

The classes of a system are recognised by the system's base class, by its module and name, so the system is not
imported. A class without it is recognised by its methods. This module knows no system: the extension `dialects`
provides those that there are.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, Literal

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.extensions import Extension
from foldflight.functions.author.spec import Methods
from foldflight.functions.types.serializer import StateSerializer, record_of, serializer_of_type
from foldflight.functions.types.sql import parse_type

# How a method takes the arguments of a row: each as a parameter, all as one tuple, or one argument as itself and
# several as one tuple.
RowForm = Literal["each", "tuple", "element"]
_ROWS: Final[dict[RowForm | None, str]] = {None: "", "each": "*arguments", "tuple": "value", "element": "element"}


@dataclass(frozen=True)
class Method:
    """A method that a system calls.

    Args:
        name: Its name.
        before: Names of its parameters after `self` and before the values of a row.
        row: How it takes the arguments of a row; None if it takes none.
        required: Whether a class must define it.
        is_property: Whether it is a property.
    """

    name: str
    before: tuple[str, ...] = ()
    row: RowForm | None = None
    required: bool = False
    is_property: bool = False

    def usage(self) -> str:
        """Return the method as an author writes it."""
        parameters = ", ".join(filter(None, ("self", *self.before, _ROWS[self.row])))
        return f"{'@property ' if self.is_property else ''}{self.name}({parameters})"


@dataclass(frozen=True)
class Adapter(ABC):
    """The conventions of another system for aggregate classes.

    Args:
        name: Its name in `udaf(adapt=...)`.
        what: What the system calls such a class, for messages.
        methods: The methods that the system calls, by foldflight's name.
        marks: Names of attributes that neither foldflight's own classes nor classes of other systems have.
        returns_accumulator: Whether the system uses what the methods that change an accumulator return.
        base: Module and name of the system's base class; None if it has none.
        replaced: What shipped code has in place of the system's classes, by their module and name.
        declaring: Attributes of a class that tell its system about types. They are removed from shipped code.
        result: Name of the attribute with the type of the result; None if a class does not declare it.
        state: Name of the attribute with the type of the state; None if a class does not declare it.
        asks_determinism: Whether the system calls `is_deterministic` of a class.
    """

    name: str
    what: str
    methods: Mapping[str, Method]
    marks: tuple[str, ...]
    returns_accumulator: bool
    base: tuple[str, str] | None = None
    replaced: Mapping[tuple[str, str], type] = field(default_factory=dict)
    declaring: tuple[str, ...] = ()
    result: str | None = None
    state: str | None = None
    asks_determinism: bool = False

    @abstractmethod
    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:
        """Return foldflight's methods, made of an instance's.

        Args:
            author_methods: The methods of an instance, by foldflight's name; None where the class has none.
            instance: Creates another instance, with the same direct arguments.
        """

    def migrate(self, method: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
        """Return foldflight's `migrate`, made of an instance's."""
        return method

    def type_of(self, declared_type: Any) -> Any:
        """Return a declared type of an argument or of the result in place of one that only the system has."""
        return declared_type

    def serializer_of(self, declared_type: Any) -> StateSerializer:
        """Return the serializer of accumulators of a declared type."""
        arrow = parse_type(declared_type)
        if self.returns_accumulator and pa.types.is_struct(arrow):
            return record_of([(each.name, serializer_of_type(each.type)) for each in arrow], tuple, immutable=True)
        return self.serializer(serializer_of_type(arrow), is_annotated=False)

    def serializer(self, state: StateSerializer, *, is_annotated: bool) -> StateSerializer:  # noqa: ARG002 - for subclasses
        """Return the serializer of accumulators, made of the states' serializer."""
        return state

    def system_part(self, cls: type) -> tuple[type, ...]:
        """Return the classes from which a class inherits what belongs to the system: its base class and those above."""
        stand_in = None if self.base is None else self.replaced.get(self.base)
        for index, each in enumerate(cls.__mro__):
            if each is stand_in or (each.__module__, each.__qualname__) == self.base:
                return cls.__mro__[index:]
        return ()

    def method(self, cls: type, method_name: str) -> Any:
        """Return the author's method of one of foldflight's names; None if it has none, or only its base's."""
        method = self.methods.get(method_name)
        if method is None or getattr(cls, method.name, None) is None:
            return None
        owner = next(each for each in cls.__mro__ if method.name in vars(each))
        return None if owner in self.system_part(cls) else getattr(cls, method.name)

    def missing(self, cls: type) -> list[Method]:
        """Return the required methods that a class does not define."""
        return [
            method
            for method_name, method in self.methods.items()
            if method.required and self.method(cls, method_name) is None
        ]

    def score(self, cls: type) -> int:
        """Return how many of the system's methods a class defines; 0 if it has no mark of the system."""
        if not any(getattr(cls, mark, None) is not None for mark in self.marks):
            return 0
        return sum(self.method(cls, method_name) is not None for method_name in self.methods)


_DIALECTS: Final = Extension[Mapping[str, Adapter]]("dialects")


def adapter_named(name: str) -> Adapter:
    """Return the adapter of this name. Raises RejectedError MODULE, if this installation has no adapters."""
    return _DIALECTS.load()[name]


class AdaptedForm:
    """Binds the methods of a class of another system.

    Args:
        cls: The author's class.
        adapter: The name of the adapter.
    """

    def __init__(self, cls: type, adapter: str) -> None:
        self.cls = cls
        self.adapter = adapter

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        adapter = adapter_named(self.adapter)
        defined_names = {
            method_name for method_name in adapter.methods if adapter.method(self.cls, method_name) is not None
        }
        instance = self.cls(**literals)
        author_methods = {
            method_name: None
            if method_name not in defined_names or method.is_property
            else getattr(instance, method.name)
            for method_name, method in adapter.methods.items()
        }
        bound_methods = adapter.bound_methods(SimpleNamespace(**author_methods), lambda: self.cls(**literals))
        method_names = defined_names | {"create_accumulator", "accumulate", "get_value"}
        migrate = getattr(instance, "migrate", None)
        return Methods(
            migrate=migrate and adapter.migrate(migrate),
            **{method_name: call for method_name, call in bound_methods.items() if method_name in method_names},
        )


def in_place(call: Callable[..., Any]) -> Callable[..., None]:
    """Return a call whose result is ignored, as the system ignores it."""

    def change(accumulator: Any, *values: Any) -> None:
        call(accumulator, *values)

    return change


_OWN_METHODS: Final = ("create_accumulator", "accumulate", "retract", "merge", "get_value")


def systems() -> frozenset[str]:
    """Return the packages of other systems. They are never shipped."""
    adapters = _DIALECTS.find() or {}
    return frozenset(each.base[0].partition(".")[0] for each in adapters.values() if each.base is not None)


def adapter_of(cls: type, dialect: str | None) -> Adapter | None:
    """Return the adapter of a class: the named one, or the one that recognises it; None for foldflight's own form.

    Raises:
        RejectedError: SIGNATURE, for an unknown name, and for a class that may be of two; MODULE, for a class that may
            be of another system, if this installation has no adapters.
    """
    if dialect is None and not _has_foreign_base(cls) and _DIALECTS.find() is None:
        return None
    adapters = _DIALECTS.load()
    if dialect is not None:
        if dialect not in adapters:
            names = ", ".join(map(repr, adapters))
            raise RejectedError("SIGNATURE", f"{cls.__name__}: there is no engine {dialect!r}; adapt takes {names}")
        return adapters[dialect]
    for adapter in adapters.values():
        if adapter.system_part(cls):
            return adapter
    own = sum(getattr(cls, method_name, None) is not None for method_name in _OWN_METHODS)
    if all(getattr(cls, method_name, None) is not None for method_name in ("accumulate", "get_value")):
        return None
    scores = {name: score for name, adapter in adapters.items() if (score := adapter.score(cls)) > own}
    best = [name for name, score in scores.items() if score == max(scores.values())]
    if len(best) > 1:
        engines = " and ".join(best)
        raise RejectedError(
            "SIGNATURE", f"{cls.__name__} has methods of {engines}; say which it is, as in @udaf(adapt={best[0]!r})"
        )
    return adapters[best[0]] if best else None


def _has_foreign_base(cls: type) -> bool:
    """Return whether a class inherits from a class of another package, which may be a system's."""
    own = {cls.__module__.partition(".")[0], "foldflight", *sys.stdlib_module_names}
    return any(each.__module__.partition(".")[0] not in own for each in cls.__mro__)


def written_by_author(cls: type, adapter: str) -> tuple[type, ...]:
    """Return a class of another system and its bases, without the bases that are the system's own."""
    own = adapter_named(adapter).system_part(cls)
    return tuple(each for each in cls.__mro__ if each not in own and each is not object)


class Shipped:
    """Stands in for other systems' classes in shipped code, so that servers need no packages of these systems.

    Args:
        classes: The adapted classes by the name of their adapter.
    """

    def __init__(self, classes: Mapping[type, str]) -> None:
        self._replaced_classes: dict[tuple[str, str], type] = {}
        self._declaring_names: dict[type, tuple[str, ...]] = {}
        for cls, name in classes.items():
            adapter = adapter_named(name)
            self._replaced_classes.update(adapter.replaced)
            self._declaring_names.update(dict.fromkeys(written_by_author(cls, name), adapter.declaring))

    def replacement(self, value: Any) -> type | None:
        """Return the class that replaces a system's class; None for all other objects."""
        if not inspect.isclass(value):
            return None
        return self._replaced_classes.get((value.__module__, value.__qualname__))

    def removed_attributes(self, cls: type) -> tuple[str, ...]:
        """Return the names of the attributes that shipped code of a class does not have."""
        return self._declaring_names.get(cls, ())
