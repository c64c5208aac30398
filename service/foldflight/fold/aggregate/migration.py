"""Decoding of states of other versions of a function, for the function's `migrate`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.fold.aggregate.states import custom_payload, pickled_object, unreadable
from foldflight.fold.pickles import Pickles
from foldflight.fold.signing import StateSigner
from foldflight.functions.author.spec import Function
from foldflight.functions.types.values import to_python


@dataclass(frozen=True)
class StateOrigin:
    """The origin of a column of states: the function version that wrote it.

    Args:
        version: The function's version.
        fingerprint: The fingerprint of the call that wrote the states, 16 hexadecimal digits.
        codec: The codec of the states: typed, custom, pickle or rows.
    """

    version: str
    fingerprint: str
    codec: str

    def values(self, function: Function, states: pa.Array, signer: StateSigner | None) -> list[Any]:
        """Decode n states that are not NULL to values, return values of `serialize`, or unpickled objects.

        Raises:
            RejectedError: STATE_MISMATCH, if a state has another form; SETTINGS, for pickles without a key.
            CorruptError: STATE_CHECKSUM, for damaged bytes.
        """
        name = function.name
        if self.codec in ("custom", "pickle") and states.type != pa.binary():
            raise unreadable(name, f"its codec is {self.codec}, and its type {states.type}")
        match self.codec:
            case "custom":
                fingerprint = self._fingerprint(name)
                return [custom_payload(name, self.version, fingerprint, state) for state in states.to_pylist()]
            case "pickle":
                fingerprint = self._fingerprint(name)
                pickles = Pickles(function.own)
                return [
                    pickled_object(name, self.version, fingerprint, state, signer, pickles)
                    for state in states.to_pylist()
                ]
            case "typed":
                return _python_values(name, states)
            case _:
                raise unreadable(name, f"its codec {self.codec!r} is unknown")

    def _fingerprint(self, function: str) -> bytes:
        if re.fullmatch("[0-9a-f]{16}", self.fingerprint) is None:
            raise unreadable(function, f"its fingerprint {self.fingerprint!r} is malformed")
        return bytes.fromhex(self.fingerprint)


def _python_values(function: str, states: pa.Array) -> list[Any]:
    try:
        return to_python(states)
    except (ValueError, TypeError, ArithmeticError, KeyError, pa.ArrowException) as error:
        raise unreadable(function, f"{type(error).__name__}: {error}") from error
