"""Uses of functions in a query: a `Call` of an aggregate, a `Step` of an expression, and the kinds of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from foldflight.errors import RejectedError
from foldflight.functions.query.literals import as_sent
from foldflight.functions.types.sql import is_nan, rank


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


class RowKind(IntEnum):
    """The kind of a row. The values are those of Flink's `RowKind`.

    `INSERT` and `UPDATE_AFTER` accumulate; `UPDATE_BEFORE` and `DELETE` retract.

    >>> from foldflight import RowKind
    >>> RowKind.parse("-D"), RowKind.DELETE.short
    (<RowKind.DELETE: 3>, '-D')
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """The two-character notation: `+I`, `-U`, `+U`, `-D`."""
        return ("+I", "-U", "+U", "-D")[self]

    @property
    def retracts(self) -> bool:
        """Whether a row of this kind retracts an earlier row."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @classmethod
    def parse(cls, text: str | RowKind) -> RowKind:
        """Return the row kind for its short name (`+I`) or full name (`INSERT`); a row kind is returned unchanged.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if `text` is not the name of a kind.
        """
        for kind in cls:
            if text is kind or text in (kind.short, kind.name):
                return kind
        raise RejectedError(
            "SCHEMA_MISMATCH", f"{text!r} is no row kind; the kinds are {', '.join(kind.short for kind in cls)}"
        )
