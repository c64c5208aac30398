"""States that another version of a function has left: decoded as they were written, for the function's `migrate`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.fold.signing import StateSigner
from foldflight.fold.states import custom_payload, pickled_object

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

    def values(self, function: str, states: pa.Array, signer: StateSigner | None) -> list[Any]:
        """Return n states, none of them NULL, as what they were: values, what `serialize` returned, or objects.

        Raises:
            RejectedError: STATE_MISMATCH, for what is no such state; SETTINGS, for pickles without a key.
            CorruptError: STATE_CHECKSUM, for damaged bytes.
        """
        read: Callable[[bytes], Any]
        match self.codec:
            case "custom":
                read = lambda state: custom_payload(function, self.version, self.fingerprint, state)  # noqa: E731
            case "pickle":
                read = lambda state: pickled_object(function, self.version, self.fingerprint, state, signer)  # noqa: E731
            case _:
                return states.to_pylist(maps_as_pydicts="strict")
        return [read(state) for state in states.to_pylist()]
