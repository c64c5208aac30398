"""The secrets of this process, and asterisks in their place: in recordings, in logs, and in log lines for engines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Final

# Names of variables of the environment whose values are secrets, if they are not short.
_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_CHARS_MIN: Final = 12
MASK_MIN: Final = b"*" * _CHARS_MIN
"""What the mask of each secret has."""


def secrets_of_environment() -> Iterator[tuple[str, bytes]]:
    """Yield the variables of the environment that are named like a secret and are not short: name and value."""
    for name, value in os.environ.items():
        if _NAME.search(name) and len(value) >= _CHARS_MIN:
            yield name, value.encode(errors="surrogateescape")


def mask_of_environment() -> Callable[[bytes], bytes]:
    """Return a function that replaces secrets of the environment, also as JSON has them, by asterisks.

    There are as many asterisks as bytes, so that the offsets of texts in batches and messages hold.
    """
    secrets: set[bytes] = set()
    for _, value in secrets_of_environment():
        in_json = json.dumps(value.decode(errors="surrogateescape"))[1:-1].encode(errors="surrogateescape")
        secrets |= {value, in_json}
    longest_first = sorted(secrets, key=len, reverse=True)

    def mask(data: bytes) -> bytes:
        for secret in longest_first:
            data = data.replace(secret, b"*" * len(secret))
        return data

    return mask


def masked_text(text: str) -> str:
    """Return a text with asterisks in the place of secrets of the environment."""
    return mask_of_texts()(text)


def mask_of_texts() -> Callable[[str], str]:
    """Return `mask_of_environment` for texts."""
    mask = mask_of_environment()
    return lambda text: mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")
