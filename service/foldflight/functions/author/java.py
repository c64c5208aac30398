"""Functions in Java, as the core knows them: the extension `java` reads them from jars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from foldflight.extensions import Extension
from foldflight.functions.author.spec import Function


class JavaReader(Protocol):
    """What the extension provides."""

    def java_functions(self, named: Iterable[str], jar: str | None = None) -> list[Function]:
        """Return the functions of classes in jars."""

    def function_name(self, class_name: str) -> str:
        """Return the name of the function of a Java class: `com.acme.WeightedAvg` is `weighted_avg`."""

    def limit_heap(self, heap_bytes: int) -> None:
        """Limit the heap of the virtual machine, before it starts."""


JAVA: Final = Extension[JavaReader]("java")


def java_functions(named: Iterable[str], jar: str | None = None) -> list[Function]:
    """Return the functions of classes in jars.

    Args:
        named: `"functions.jar::com.acme.WeightedAvg"`, or `"com.acme.WeightedAvg"` for a class of `jar`.
        jar: The path of the jar of classes that are named without one.

    Raises:
        RejectedError: MODULE, if a jar cannot be read, a class is not in it or cannot be loaded, or Java or the
            extension is missing; SIGNATURE, for a class that is not a function.
    """
    names = list(named)
    return JAVA.load().java_functions(names, jar) if names else []
