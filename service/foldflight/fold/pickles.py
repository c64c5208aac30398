"""Pickles of accumulators that refer to the classes of shipped functions by name.

A function is shipped to other processes with its classes as code. In these processes the classes are not members of an
imported module, so plain pickle, which stores a class as a module and a name, refuses their instances. Therefore a
function has a mapping of the names that were shipped with it (`Function.own`), and its pickles refer to these names. A
reader looks up names in its own function first, so it finds its current version of a class (edited or imported). Other
names are imported, as plain pickle does.

Pickled states are signed: a fleet unpickles only states that it has signed itself.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import io
import pickle
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, Final

from foldflight.errors import RejectedError

_PROTOCOL: Final = 5
# Modules of earlier releases, to which pickled states and shipped code refer, and where their classes are now.
_MOVED: Final = {
    "foldflight.adapters.beam": "foldflight.ext.dialects.beam",
    "foldflight.adapters.java.bridge": "foldflight.ext.java.bridge",
    "foldflight.adapters.java.classes": "foldflight.ext.java.classes",
    "foldflight.adapters.java.machine": "foldflight.ext.java.jvm",
    "foldflight.adapters.java.values": "foldflight.ext.java.bridge",
    "foldflight.adapters.pyflink": "foldflight.ext.dialects.pyflink",
    "foldflight.adapters.snowflake": "foldflight.ext.dialects.snowflake",
    "foldflight.adapters.spark_aggregator": "foldflight.ext.dialects.spark_aggregator",
    "foldflight.client.embedded": "foldflight.client.embedded_transport",
    "foldflight.client.flight": "foldflight.client.flight_transport",
    "foldflight.client.transport": "foldflight.client.exchange",
    "foldflight.client.uses": "foldflight.client.functions",
    "foldflight.ext.java.machine": "foldflight.ext.java.jvm",
    "foldflight.ext.java.values": "foldflight.ext.java.bridge",
    "foldflight.functions.author.bounds": "foldflight.functions.author.spec",
    "foldflight.functions.author.bundled": "foldflight.functions.author.segments",
    "foldflight.functions.author.java": "foldflight.functions.registry",
    "foldflight.functions.author.scalar": "foldflight.functions.author.spec",
    "foldflight.functions.builtin.numeric": "foldflight.functions.builtin",
    "foldflight.functions.builtin.picked": "foldflight.functions.builtin",
    "foldflight.functions.builtin.variance": "foldflight.functions.builtin",
    "foldflight.functions.bundled": "foldflight.functions.author.segments",
    "foldflight.functions.dialects": "foldflight.ext.dialects.snowflake",
    "foldflight.functions.exact": "foldflight.functions.types.exact",
    "foldflight.functions.lists": "foldflight.functions.types.lists",
    "foldflight.functions.query.rowkind": "foldflight.functions.query.call",
    "foldflight.functions.query.step": "foldflight.functions.query.call",
    "foldflight.functions.rowkind": "foldflight.functions.query.call",
    "foldflight.functions.types.columns": "foldflight.functions.types.lists",
    "foldflight.functions.types.ranking": "foldflight.functions.types.sql",
    "foldflight.functions.views": "foldflight.functions.types.views",
    "foldflight.server.run.program": "foldflight.server.run.server",
    "foldflight.server.run.program_server": "foldflight.server.run.server",
    "foldflight.spark.stored": "foldflight.spark.state_reader",
    "foldflight.testing.overstream": "foldflight.testing.over",
}


def current_module(module: str) -> str:
    """Return the module that has what an earlier release had in `module`."""
    return _MOVED.get(module, module)


class UnknownName(pickle.UnpicklingError):
    """A pickle refers to a class or function that no longer exists."""


def named(module: str, name: str) -> Any:
    """Return the object of a module with a qualified name.

    Pickles contain a reference to this function for each class or function that was shipped with the function that
    wrote them. Checkpoints therefore contain the name `foldflight.fold.pickles.named`, so it must not be renamed.
    `Pickles` replaces it while reading.
    """
    return reduce(getattr, name.split("."), importlib.import_module(module))


class Pickles:
    """Writes and reads the pickles of one function.

    Args:
        own: Classes and functions that were shipped with the function, by module and qualified name.
    """

    def __init__(self, own: Mapping[tuple[str, str], Any]) -> None:
        self._own = own
        self._names = {id(target): name for name, target in own.items()}
        self._alone: dict[str, Any] = {}
        twice = set()
        for (_, name), target in own.items():
            if name in self._alone:
                twice.add(name)
            self._alone[name] = target
        for name in twice:
            del self._alone[name]

    def dumps(self, accumulator: Any) -> bytes:
        """Return an accumulator as bytes. Raises the exceptions of pickle and of the author's code."""
        if not self._names:
            return pickle.dumps(accumulator, _PROTOCOL)
        file = io.BytesIO()
        _Pickler(file, self._names).dump(accumulator)
        return file.getvalue()

    def loads(self, pickle_bytes: bytes) -> Any:
        """Return the unpickled object. Unpickling executes the bytes, so they must be trusted.

        Raises:
            UnknownName: A class or function in the pickle no longer exists.
        """
        return _Unpickler(io.BytesIO(pickle_bytes), self).load()

    def own(self, module: str, name: str) -> Any:
        """Return the object that was shipped under this name, or None."""
        return self._own.get((module, name))

    def find_moved(self, name: str) -> Any:
        """Return the shipped object with this qualified name from any module, or None unless there is exactly one."""
        return self._alone.get(name)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[int, tuple[str, str]]) -> None:
        super().__init__(file, _PROTOCOL)
        self._names = names

    def reducer_override(self, value: Any) -> Any:
        """Write shipped objects by name, and all others as pickle does."""
        name = self._names.get(id(value))
        return NotImplemented if name is None else (named, name)


class _Unpickler(pickle.Unpickler):  # noqa: S301 - the caller of `loads` trusts the bytes
    def __init__(self, file: io.BytesIO, pickles: Pickles) -> None:
        super().__init__(file)
        self._pickles = pickles

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of a name in a pickle."""
        if module == __name__ and name == named.__name__:
            return self.find_class
        target = self._pickles.own(module, name)
        if target is not None:
            return target
        module = current_module(module)
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError) as error:
            target = self._pickles.find_moved(name)
            if target is None:
                raise UnknownName(f"{module}.{name}") from error
            return target


STATE_KEY_BYTES_MIN = 16
_SIGNATURE_BYTES = 32


class StateSigner:
    """Signs states with HMAC-SHA256, and checks them.

    Args:
        keys: Secret keys of at least 16 bytes. The first key signs. All keys verify, so that keys can be rotated.

    Raises:
        RejectedError: SETTINGS, if a key is too short or there is none.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or any(len(key) < STATE_KEY_BYTES_MIN for key in keys):
            raise RejectedError(
                "SETTINGS", f"a state key is missing or too short; set one of at least {STATE_KEY_BYTES_MIN} bytes"
            )
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        return f"StateSigner({len(self._keys)} keys)"

    def sign(self, payload: bytes) -> bytes:
        """Return the payload with its signature in front."""
        return hmac.digest(self._keys[0], payload, hashlib.sha256) + payload

    def verify(self, signed_state: bytes) -> bytes:
        """Return the payload of signed bytes.

        Raises:
            RejectedError: STATE_MISMATCH, if none of the keys has signed exactly these bytes.
        """
        signature, payload = signed_state[:_SIGNATURE_BYTES], signed_state[_SIGNATURE_BYTES:]
        genuine = [hmac.compare_digest(hmac.digest(key, payload, hashlib.sha256), signature) for key in self._keys]
        if not any(genuine):
            raise RejectedError(
                "STATE_MISMATCH",
                "a pickled state is unsigned, damaged, or signed with another key; it was not unpickled. "
                "Give every server of the fleet the same state keys; for embedded functions, give "
                "connect(..., state_key=...) the key that the states were written with",
            )
        return payload
