"""Where the code of a function is, and which code it is."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foldflight.functions.author.scalar import AnyFunction

__all__ = ["digest_of", "module_of", "place_of"]


def module_of(function: AnyFunction) -> str:
    """Return the place of the author's code as `module:name`."""
    return f"{function.source.__module__}:{function.source.__qualname__}"


def place_of(function: AnyFunction) -> str:
    """Return the place of the author's code as `replay --function` takes it.

    `__main__` is another program there, so of a class of a script the file is given instead of the module. Workers of
    an engine, which have the class by value, know it from the code of its methods.
    """
    module, _, name = module_of(function).partition(":")
    if module != "__main__":
        return f"{module}:{name}"
    codes = [getattr(each, "__code__", None) for each in (function.source, *vars(function.source).values())]
    files = [Path(code.co_filename) for code in codes if code is not None]
    script = next((each.absolute() for each in files if each.suffix == ".py" and each.is_file()), "MODULE")
    return f"{script}:{name}"


def digest_of(function: AnyFunction) -> str:
    """Return the SHA-256 of the source of the author's code, hexadecimal; empty if there is no source."""
    try:
        text = inspect.getsource(function.source)
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
