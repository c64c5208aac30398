"""The two forms of an author's class: with a separate accumulator, or with instances as accumulators."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from foldflight.functions.author.spec import Methods

__all__ = ["METHODS", "AccumulatorForm", "ClassForm"]

# Method -> number of parameters after `self` in the class form; accumulate and retract add the arguments.
METHODS: Final = {
    "create_accumulator": 0,
    "accumulate": 1,
    "retract": 1,
    "merge": 2,
    "get_value": 1,
    "serialize": 1,
    "deserialize": 1,
    "migrate": 2,
    "open": 1,
    "close": 0,
    "fold_many": 3,
    "merge_many": 3,
    "get_values": 1,
    "running_many": 3,
    "fold_bundle": 1,
}


class ClassForm:
    """Creates the methods of instances of a class that take the accumulator as a parameter."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        instance = self.cls(**literals)
        return Methods(**{method_name: getattr(instance, method_name, None) for method_name in METHODS})  # type: ignore[arg-type]


class AccumulatorForm:
    """Creates the methods of a class whose instances are the accumulators."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        cls: Any = self.cls

        def maker(method_name: str) -> Any:
            """Return a method that creates an accumulator. A plain method fills a fresh instance or returns another."""
            plain = getattr(cls, method_name, None)
            if plain is None or isinstance(inspect.getattr_static(cls, method_name), (staticmethod, classmethod)):
                return plain

            def make(*arguments: Any) -> Any:
                made = cls(**literals)
                returned = plain(made, *arguments)
                return made if returned is None else returned

            return make

        return Methods(
            create_accumulator=lambda: cls(**literals),
            accumulate=cls.accumulate,
            get_value=cls.get_value,
            retract=getattr(cls, "retract", None),
            merge=getattr(cls, "merge", None),
            serialize=getattr(cls, "serialize", None),
            deserialize=maker("deserialize"),
            migrate=maker("migrate"),
        )
