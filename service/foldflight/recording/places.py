"""Where the code of a function is, and which code it is."""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foldflight.functions.author.scalar import AnyFunction

__all__ = ["digest_of", "module_of"]


def module_of(function: AnyFunction) -> str:
    """Return the place of the author's code as `module:name`."""
    return f"{function.source.__module__}:{function.source.__qualname__}"


def digest_of(function: AnyFunction) -> str:
    """Return the SHA-256 of the source of the author's code, hexadecimal; empty if there is no source."""
    try:
        text = inspect.getsource(function.source)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
