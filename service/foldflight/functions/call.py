"""One use of a function in a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call"]


@dataclass(frozen=True)
class Call:
    """One use of a function over the columns of a chunk.

    Args:
        function: Name of the function.
        arguments: Names of the chunk's columns, in the order of the function's arguments.
        filter: Name of a boolean column; only rows where it is true count (NULL is not true).
        distinct: Whether equal argument rows count once.
        materialize: Whether groups keep their rows of arguments and fold them anew for each value: so an append-only
            function takes rows back.
        literals: Direct arguments: fixed for the call, given to the class's `__init__` by name.
        fingerprint: The fingerprint that the engine expects; the empty text accepts any.
    """

    function: str
    arguments: tuple[str, ...] = ()
    filter: str | None = None
    distinct: bool = False
    materialize: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
