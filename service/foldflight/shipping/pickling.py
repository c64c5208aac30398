"""Authors' functions as bytes: their classes, and what those refer to in their packages, by value."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import cloudpickle

from foldflight.errors import RejectedError
from foldflight.shipping.bundles import Bundle, made_here, seal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from foldflight.functions.spec import Function

__all__ = ["bundle_of", "pickled"]

# What cloudpickle takes by value is one set for the process: who is done first would take it from who is not. The same
# thread may come again, where a class refers to a transport.
_pickling = threading.RLock()


def bundle_of(functions: Sequence[Function], key: str) -> bytes:
    """Return functions as a signed bundle, for servers that trust the key.

    Raises:
        RejectedError: SIGNATURE, when they refer to something that cannot be pickled.
    """
    names = tuple(function.name for function in functions)
    try:
        code = pickled(functions)
    except Exception as error:
        raise RejectedError(
            "SIGNATURE",
            f"{', '.join(names)} cannot be shipped: {type(error).__name__}: {error}; a class must not refer to open "
            "files, locks or connections: make them in open(self, context)",
            function=names[0],
        ) from error
    return seal(Bundle(names, made_here(), code), key.encode())


def pickled(functions: Sequence[Function]) -> bytes:
    """Return functions, pickled by value: who reads them needs foldflight and what their packages import, no more."""
    with _pickling:
        registered = [module for module in _packages_of(functions) if module.__name__ not in _by_value()]
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps(tuple(functions))
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


def _packages_of(functions: Iterable[Function]) -> list[ModuleType]:
    """Return the outermost packages that the functions come from; foldflight itself is installed everywhere."""
    names = {function.cls.__module__.partition(".")[0] for function in functions} - {"foldflight", "__main__"}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]


def _by_value() -> set[str]:
    return set(cloudpickle.list_registry_pickle_by_value())
