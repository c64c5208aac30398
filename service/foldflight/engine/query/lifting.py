"""Whether the rows of a batch can be lifted: aggregated by the engine's host, without Python. The extension decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

from foldflight.extensions import Extension
from foldflight.lift import MISSING

if TYPE_CHECKING:
    from foldflight.engine.query.query import Query


BatchPlan: TypeAlias = Literal["auto", "fold", "lifted"]
"""How a batch is computed: rows are folded in Python, or lifted; `auto` decides."""

GROUPS_MANY: Final = 500_000
"""From about this many groups on, the host's aggregation is slower than a fold."""


@dataclass(frozen=True)
class Groups:
    """What is known of the number of groups.

    Args:
        count: The number.
        how: From where it is known, as text for users.
    """

    count: int
    how: str


class CallPlan(Protocol):
    """How a host aggregates the rows of one call. The rest of it is known to the extension only."""

    @property
    def raises(self) -> bool:
        """Whether a statement of the author raises for some rows."""

    @property
    def outcome_reason(self) -> str:
        """The reason why Python must compute results from the aggregates; empty if expressions of the host can."""


@dataclass(frozen=True)
class Lifting:
    """How a query can be lifted.

    Args:
        plans: The plan of each call; none if the query cannot be lifted.
        why_not: Why it cannot; empty if it can.
    """

    plans: tuple[CallPlan, ...]
    why_not: str = ""

    @classmethod
    def of(cls, query: Query) -> Lifting:
        """Return how a query can be lifted. Raises RejectedError BAD_FRAME, if a description is damaged."""
        if query.stream is not None:
            return cls((), "a stream keeps states, and the host has none of its own for them")
        if query.layout.isolates:
            return cls((), "errors are isolated, and the host does not know which rows a failed group has")
        if query.unliftable:
            return cls((), query.unliftable)
        planner = _LIFT.find()
        return cls((), MISSING) if planner is None else planner.lifting(query)


class Planner(Protocol):
    """What the extension `lift` provides for queries."""

    def lifting(self, query: Query) -> Lifting:
        """Return how a batch can be lifted whose host aggregates rows.

        Raises:
            RejectedError: BAD_FRAME, if a description is damaged.
        """


_LIFT: Final = Extension[Planner]("lift")
