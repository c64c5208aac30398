"""One use of a scalar or table function in an expression."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foldflight.functions.query.literals import as_sent


@dataclass(frozen=True)
class StepArgument:
    """One argument of a step: a column of the chunk, or the result of an earlier step.

    Args:
        column: The name of a column of the chunk; None for the result of a step.
        step: The number of an earlier step; None for a column.
        member: The member of that result, which is a struct; None for the whole result.
    """

    column: str | None = None
    step: int | None = None
    member: str | None = None


@dataclass(frozen=True)
class Step:
    """One use of a function over the columns of a chunk and the results of earlier steps.

    Args:
        function: Name of the function.
        arguments: The arguments, in the order of the function's arguments.
        literals: Direct arguments. They are fixed for the step and are passed to the class's `__init__` by name.
            Arrays of NumPy become lists, as they are on servers.
        fingerprint: The fingerprint that the engine expects. An empty string accepts any.
        outer: For a table function: whether a row without results becomes one row of NULLs.
    """

    function: str
    arguments: tuple[StepArgument, ...] = ()
    literals: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    outer: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "literals", as_sent(self.literals))
