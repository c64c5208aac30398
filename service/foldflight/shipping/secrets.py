"""The secrets of this process, and asterisks in their place: in recordings, in logs, and in log lines for engines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import AnyStr, Final
from urllib.parse import quote, quote_plus

# Names of variables of the environment whose values are secrets, if they are not short. Values that only say where a
# secret is are not, since errors about missing files are useless without the path.
_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR)$", re.IGNORECASE)
# Shorter values are often words, such as `postgres`, which would be masked in every text.
_CHARS_MIN: Final = 12
MASK_MIN: Final = b"*" * _CHARS_MIN
"""The mask of the shortest secret. Each mask contains it, so it tells whether bytes have a mask."""


def secrets_of_environment() -> Iterator[tuple[str, str]]:
    """Yield the variables of the environment that are named like a secret and are not short: name and value.

    The values have no space around them, which files of secrets often end with, and which clients remove.
    """
    for name in os.environ:
        if _is_secret(name) and len(value := os.environ.get(name, "").strip()) >= _CHARS_MIN:
            yield name, value


def mask_of_environment() -> Callable[[bytes], bytes]:
    """Return a function that replaces secrets of the environment by asterisks, also as JSON and URLs have them.

    There are as many asterisks as bytes, so that the offsets of texts in batches and messages stay valid.
    """
    return partial(_mask, [each.encode(errors="surrogateescape") for each in _spellings()], b"*")


def mask_of_texts() -> Callable[[str], str]:
    """Return a function that masks texts, which may have lone surrogates, with an asterisk for each character."""
    return partial(_mask, _spellings(), "*")


def masked_text(text: str) -> str:
    """Return a text with asterisks in the place of secrets of the environment."""
    return mask_of_texts()(text)


def _mask(secrets: Sequence[AnyStr], asterisk: AnyStr, data: AnyStr) -> AnyStr:
    for secret in secrets:
        data = data.replace(secret, asterisk * len(secret))
    return data


@lru_cache(maxsize=4096)  # each line of a log asks for all names
def _is_secret(name: str) -> bool:
    return bool(_NAME.search(name)) and not _PLACE.search(name)


def _spellings() -> list[str]:
    """Return the secrets of the environment as texts, JSON and URLs have them, the longest first.

    JSON may have letters that are not ASCII as they are or as escapes. A URL may keep slashes, and have + for a space.
    """
    values = {value for _, value in secrets_of_environment()}
    in_json = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for value in values for ascii_only in (False, True)}
    in_urls = {
        encode(value, safe=safe, errors="surrogateescape")
        for value in values
        for encode in (quote, quote_plus)
        for safe in ("", "/")
    }
    return sorted(values | in_json | in_urls, key=len, reverse=True)
