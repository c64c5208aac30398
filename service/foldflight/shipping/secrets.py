"""The secrets of this process, and asterisks in their place: in recordings, in logs, and in log lines for engines."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote

# Names of variables of the environment whose values are secrets, if they are not short. Values that only say where a
# secret is are not, since errors about missing files are useless without the path.
_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR)$", re.IGNORECASE)
_CHARS_MIN: Final = 12
MASK_MIN: Final = b"*" * _CHARS_MIN
"""What the mask of each secret has."""


def secrets_of_environment() -> Iterator[tuple[str, str]]:
    """Yield the variables of the environment that are named like a secret and are not short: name and value.

    The values have no space around them, which files of secrets often end with, and which clients remove.
    """
    for name in os.environ:
        if _is_secret(name) and len(value := os.environ.get(name, "").strip()) >= _CHARS_MIN:
            yield name, value


def mask_of_environment() -> Callable[[bytes], bytes]:
    """Return a function that replaces secrets of the environment by asterisks, also as JSON and URLs have them.

    There are as many asterisks as bytes, so that the offsets of texts in batches and messages hold.
    """
    secrets = [each.encode(errors="surrogateescape") for each in _spellings()]

    def mask(data: bytes) -> bytes:
        for secret in secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data

    return mask


def mask_of_texts() -> Callable[[str], str]:
    """Return `mask_of_environment` for texts, which may have lone surrogates."""
    secrets = _spellings()

    def mask(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "*" * len(secret))
        return text

    return mask


def masked_text(text: str) -> str:
    """Return a text with asterisks in the place of secrets of the environment."""
    return mask_of_texts()(text)


@functools.lru_cache(maxsize=4096)  # each line of a log asks for all names
def _is_secret(name: str) -> bool:
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def _spellings() -> list[str]:
    """Return the secrets of the environment as texts, JSON and URLs have them, the longest first."""
    values = {value for _, value in secrets_of_environment()}
    in_json = {json.dumps(value)[1:-1] for value in values}
    in_urls = {quote(value, safe="", errors="surrogateescape") for value in values}
    return sorted(values | in_json | in_urls, key=len, reverse=True)
