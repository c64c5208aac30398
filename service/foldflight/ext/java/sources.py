"""Functions of jars by name: `functions.jar::com.acme.WeightedAvg`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from foldflight.errors import RejectedError
from foldflight.ext.java.classes import function_in, function_name
from foldflight.ext.java.machine import Jar, limit_heap
from foldflight.functions.author.spec import Function

__all__ = ["function_name", "java_functions", "limit_heap"]

_SEPARATOR: Final = "::"


def java_functions(named: Iterable[str], jar: str | None = None) -> list[Function]:
    """Return the functions of classes in jars.

    Args:
        named: `"functions.jar::com.acme.WeightedAvg"`, or `"com.acme.WeightedAvg"` for a class of `jar`.
        jar: The path of the jar of classes that are named without one.

    Raises:
        RejectedError: MODULE, if a jar cannot be read, a class is not in it or cannot be loaded, or Java is missing;
            SIGNATURE, for a class that is not a function.
    """
    functions = []
    for name in named:
        path, separator, class_name = name.rpartition(_SEPARATOR)
        where = path if separator else jar
        if where is None:
            raise RejectedError(
                "MODULE", f"the Java class {name!r} has no jar; write it as functions.jar{_SEPARATOR}{name}"
            )
        functions.append(function_in(_jar(where), class_name))
    return functions


def _jar(path: str) -> Jar:
    file = Path(path)
    try:
        status = file.stat()
        return _read(file.resolve(), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise RejectedError("MODULE", f"the jar {path} cannot be read: {error.strerror}") from None


@functools.lru_cache(maxsize=16)
def _read(file: Path, modified_ns: int, size: int) -> Jar:  # noqa: ARG001 - a jar that has changed is another one
    return Jar(file.name, file.read_bytes())
