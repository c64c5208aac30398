"""Events of Debezium parsed by msgspec, which makes objects of the needed members only.

It reads the same JSON as `json` and converts the needed members to the same values; the other members are checked, but
not made. It raises where `json` has no value of JSON, and also at some events that `json` reads, such as a row that
lacks a column; these are then read by `json`. Only two things differ: it does not check that other members are UTF-8,
which the caller does, and takes numbers there that `decimal` does not hold.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Final

# An optional package: without it events are read more slowly.
_MSGSPEC: Final[Any] = importlib.import_module("msgspec") if importlib.util.find_spec("msgspec") else None

ParseEvent = Callable[[bytes], Any]
"""Returns an event as a struct with `op`, `before`, `after` and `source`, which are None if it lacks them.

Rows and the source are structs, too. It returns None for null, and raises an error of `UNPARSED`, also for an event
with a member that it may not have.
"""

UNPARSED: Final[tuple[type[Exception], ...]] = (
    *(ArithmeticError, RecursionError, ValueError),
    *((_MSGSPEC.MsgspecError,) if _MSGSPEC else ()),
)


def event_parser(columns: Sequence[str], source: Sequence[str], without: Sequence[str]) -> ParseEvent | None:
    """Return what parses events whose rows have all of these columns; None without msgspec.

    Args:
        columns: The columns, in the order of `row_values`.
        source: The members of `source` that are read.
        without: Members that an event may not have.
    """
    if _MSGSPEC is None:
        return None
    names = {f"f{place}": name for place, name in enumerate(columns)}
    try:
        row = _MSGSPEC.defstruct("Row", [(name, Any) for name in names], rename=names, gc=False)
    except ValueError:  # a name with a quote or a backslash
        return None
    place = _MSGSPEC.defstruct("Source", [(name, Any, None) for name in source], gc=False)
    # No value is of this type, so an event that has such a member is not parsed.
    nothing = Annotated[int, _MSGSPEC.Meta(gt=0, lt=0)]
    absent = {f"absent_{at}": name for at, name in enumerate(without)}
    members = {"op": Any, "before": row | None, "after": row | None, "source": place | None}
    members |= dict.fromkeys(absent, nothing)
    event = _MSGSPEC.defstruct(
        "Event", [(name, type_, None) for name, type_ in members.items()], rename=absent, gc=False
    )
    parse: ParseEvent = _MSGSPEC.json.Decoder(event | None, float_hook=Decimal).decode
    return parse


def event_members(event: Any) -> Mapping[str, Any]:
    """Return the members of a parsed event as a dict, with its source as a dict, and rows as structs."""
    source = event.source
    members = {"op": event.op, "before": event.before, "after": event.after}
    return {**members, "source": None if source is None else _MSGSPEC.structs.asdict(source)}


def row_values(row: Any) -> tuple[Any, ...]:
    """Return the values of a row of a parsed event. Raises TypeError for what is no such row."""
    if _MSGSPEC is None:
        raise TypeError("without msgspec no events are parsed to rows")
    values: tuple[Any, ...] = _MSGSPEC.structs.astuple(row)
    return values


def column_values(rows: Sequence[Any], place: int) -> list[Any]:
    """Return the values of a column of rows of parsed events, given the place of the column."""
    return [*map(attrgetter(f"f{place}"), rows)]
