"""Pickles of accumulators in which the function's own classes go by name, wherever the function has travelled.

A function travels to other processes with its classes as code. There such a class is in no module (or the module has
another object of that name), and pickle, which writes a class as the module to import it from, refuses its instances.
So a function carries the names of what travelled with it (`Function.own`), and its pickles refer to these by name. Who
reads a pickle finds the name in its own function first, whatever object is behind it there: a class that was edited, or
that the process imported. Other names are imported, as pickle does by itself.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Mapping
from functools import reduce
from typing import Any, Final

__all__ = ["Pickles", "UnknownName", "named"]

_PROTOCOL: Final = 5


class UnknownName(pickle.UnpicklingError):
    """A pickle names a class or function that is not there any more."""


def named(module: str, name: str) -> Any:
    """Return what a module has under a qualified name.

    Pickles contain this function by its module and name, for each class or function that travelled with the function
    that wrote them. So checkpoints hold the name `foldflight.fold.pickles.named`: it stays what it is. `Pickles`
    replaces it while it reads.
    """
    return reduce(getattr, name.split("."), importlib.import_module(module))


class Pickles:
    """Writes and reads the pickles of one function.

    Args:
        own: Classes and functions that travelled with the function, by module and qualified name.
    """

    def __init__(self, own: Mapping[tuple[str, str], Any]) -> None:
        self._own = own
        self._names = {id(found): name for name, found in own.items()}
        self._alone: dict[str, Any] = {}
        twice = set()
        for (_, name), found in own.items():
            if name in self._alone:
                twice.add(name)
            self._alone[name] = found
        for name in twice:
            del self._alone[name]

    def dumps(self, accumulator: Any) -> bytes:
        """Return an accumulator as bytes. Raises whatever pickle and the author's code raise."""
        if not self._names:
            return pickle.dumps(accumulator, _PROTOCOL)
        file = io.BytesIO()
        _Pickler(file, self._names).dump(accumulator)
        return file.getvalue()

    def loads(self, pickled: bytes) -> Any:
        """Return what was pickled, by running it: whoever calls this trusts the bytes.

        Raises:
            UnknownName: A class or function that the pickle names is not there any more.
        """
        return _Unpickler(io.BytesIO(pickled), self).load()

    def own(self, module: str, name: str) -> Any:
        """Return what travelled under this name; None if nothing did."""
        return self._own.get((module, name))

    def moved(self, name: str) -> Any:
        """Return the only thing of this qualified name that travelled, from whatever module; None if there is none."""
        return self._alone.get(name)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, tuple[str, str]]) -> None:
        super().__init__(file, _PROTOCOL)
        self._names = names

    def reducer_override(self, value: Any) -> Any:
        """Write what travelled with the function by name; everything else as pickle does."""
        name = self._names.get(id(value))
        return NotImplemented if name is None else (named, name)


class _Unpickler(pickle.Unpickler):  # noqa: S301 - the caller of `loads` trusts the bytes
    def __init__(self, file: io.BytesIO, pickles: Pickles) -> None:
        super().__init__(file)
        self._pickles = pickles

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name in a pickle stands for."""
        if module == __name__ and name == named.__name__:
            return self.find_class
        found = self._pickles.own(module, name)
        if found is not None:
            return found
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            found = self._pickles.moved(name)
            if found is None:
                raise UnknownName(f"{module}.{name}") from error
            return found
