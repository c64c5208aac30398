"""Signatures of pickled states: a fleet unpickles only states that it has signed itself."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from foldflight.errors import RejectedError

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

    def verify(self, signed: bytes) -> bytes:
        """Return the payload of signed bytes.

        Raises:
            RejectedError: STATE_MISMATCH, if none of the keys has signed exactly these bytes.
        """
        signature, payload = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        genuine = [hmac.compare_digest(hmac.digest(key, payload, hashlib.sha256), signature) for key in self._keys]
        if not any(genuine):
            raise RejectedError(
                "STATE_MISMATCH",
                "a pickled state is unsigned, damaged, or signed with another key; it was not unpickled. "
                "Give every server of the fleet the same state keys; for embedded functions, give "
                "connect(..., state_key=...) the key that the states were written with",
            )
        return payload
