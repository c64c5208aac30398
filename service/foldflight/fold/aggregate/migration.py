"""States that another version of a function has left: decoded as they were written, for the function's `migrate`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.fold.aggregate.states import custom_payload, pickled_object, unreadable
from foldflight.fold.pickles import Pickles
from foldflight.fold.signing import StateSigner
from foldflight.functions.spec import Function

__all__ = ["Written"]


@dataclass(frozen=True)
class Written:
    """By what a column of states was written.

    Args:
        version: The function's version.
        fingerprint: What the states depended on, 16 hexadecimal digits.
        codec: How they are encoded: typed, custom, pickle or rows.
    """

    version: str
    fingerprint: str
    codec: str

    def values(self, function: Function, states: pa.Array, signer: StateSigner | None) -> list[Any]:
        """Return n states, none of them NULL, as what they were: values, what `serialize` returned, or objects.

        Raises:
            RejectedError: STATE_MISMATCH, for what is no such state; SETTINGS, for pickles without a key.
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
                raise unreadable(name, f"it has the codec {self.codec!r}, which is none")

    def _fingerprint(self, function: str) -> bytes:
        if re.fullmatch("[0-9a-f]{16}", self.fingerprint) is None:
            raise unreadable(function, f"its fingerprint {self.fingerprint!r} is none")
        return bytes.fromhex(self.fingerprint)


def _python_values(function: str, states: pa.Array) -> list[Any]:
    try:
        return states.to_pylist(maps_as_pydicts="strict")
    except (ValueError, TypeError, ArithmeticError, KeyError, pa.ArrowException) as error:
        raise unreadable(function, f"{type(error).__name__}: {error}") from error
