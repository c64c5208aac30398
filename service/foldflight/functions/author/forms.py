"""The two forms of an author's class: with a separate accumulator, or with instances as accumulators."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

from foldflight.functions.author.spec import Verbs

__all__ = ["VERBS", "AccumulatorForm", "ClassForm"]

# Verb -> number of parameters after `self` in the class form; accumulate and retract add the arguments.
VERBS: Final = {
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
    """Creates the verbs of a class whose methods take the accumulator as a parameter."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Verbs:
        instance = self.cls(**literals)
        return Verbs(**{verb: getattr(instance, verb, None) for verb in VERBS})  # type: ignore[arg-type]


class AccumulatorForm:
    """Creates the verbs of a class whose instances are the accumulators."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Verbs:
        cls: Any = self.cls

        def maker(verb: str) -> Any:
            """Return a verb that creates an accumulator. A plain method fills a fresh instance or returns another."""
            plain = getattr(cls, verb, None)
            if plain is None or isinstance(inspect.getattr_static(cls, verb), (staticmethod, classmethod)):
                return plain

            def make(*arguments: Any) -> Any:
                made = cls(**literals)
                returned = plain(made, *arguments)
                return made if returned is None else returned

            return make

        return Verbs(
            create_accumulator=lambda: cls(**literals),
            accumulate=cls.accumulate,
            get_value=cls.get_value,
            retract=getattr(cls, "retract", None),
            merge=getattr(cls, "merge", None),
            serialize=getattr(cls, "serialize", None),
            deserialize=maker("deserialize"),
            migrate=maker("migrate"),
        )
