"""One use of a function in a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foldflight.functions.query.literals import as_sent
from foldflight.functions.types.ranking import is_nan, rank


@dataclass(frozen=True)
class Order:
    """One key of the order in which a call folds the rows of a group.

    Args:
        column: Name of the chunk's column.
        descending: Whether larger values come first.
        nulls_first: Whether NULL comes before all values.
    """

    column: str
    descending: bool = False
    nulls_first: bool = True

    def sort_key(self, value: Any) -> tuple[bool, bool, Any]:
        """Return the key of a value for a sort with `reverse=descending`. NaN is the greatest number, as in Spark."""
        if value is None:
            return (self.nulls_first == self.descending, False, 0)
        nan = is_nan(value)
        return (self.nulls_first != self.descending, nan, 0 if nan else rank(value))


@dataclass(frozen=True)
class Call:
    """One use of a function over the columns of a chunk.

    Args:
        function: Name of the function.
        arguments: Names of the chunk's columns, in the order of the function's arguments.
        filter: Name of a boolean column. Only rows where it is true are folded (NULL is not true).
        distinct: Whether rows with equal arguments are folded once.
        materialize: Whether each group keeps its argument rows and folds all of them again for each value. With this
            option, a function without `retract` supports retractions.
        literals: Direct arguments. They are fixed for the call and are passed to the class's `__init__` by name.
            Arrays of NumPy become lists, as they are on servers.
        fingerprint: The fingerprint that the engine expects. An empty string accepts any.
        order: The order in which the rows of a group are folded. With an order, each group keeps its rows and folds all
            of them again for each value, as with `materialize`.
    """

    function: str
    arguments: tuple[str, ...] = ()
    filter: str | None = None
    distinct: bool = False
    materialize: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    order: tuple[Order, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "literals", as_sent(self.literals))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of one row of the call: its arguments, then the keys of its order."""
        return (*self.arguments, *(each.column for each in self.order))
