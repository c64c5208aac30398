"""Events of Debezium parsed by msgspec, which makes objects of the needed members only.

It reads the same JSON as `json` and converts the needed members to the same values; the other members are checked, but
not made. It raises where `json` has no value of JSON, and also at some events that `json` reads, such as a row that
lacks a column; these are then read by `json`. Only two things differ: it does not check that other members are UTF-8,
which the caller does, and takes numbers there that `decimal` does not hold.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, TypedDict

# An optional package: without it events are read more slowly.
_MSGSPEC: Final[Any] = importlib.import_module("msgspec") if importlib.util.find_spec("msgspec") else None
_ENVELOPE: Final = (
    "op",
    "__op",
    "__deleted",
    "schema",
)  # the members of an event that are read beside its rows and its source

ParseEvent = Callable[[bytes], Any]
"""Returns an event as a dict of its members, with rows as structs, or None for null; raises an error of `UNPARSED`."""

UNPARSED: Final[tuple[type[Exception], ...]] = (
    *(ArithmeticError, RecursionError, ValueError),
    *((_MSGSPEC.MsgspecError,) if _MSGSPEC else ()),
)


def event_parser(columns: Sequence[str], source: Sequence[str]) -> ParseEvent | None:
    """Return what parses events whose rows have all of these columns; None without msgspec.

    Args:
        columns: The columns, in the order of `row_values`.
        source: The members of `source` that are read.
    """
    if _MSGSPEC is None:
        return None
    names = {f"f{place}": name for place, name in enumerate(columns)}
    try:
        row = _MSGSPEC.defstruct("Row", [(name, Any) for name in names], rename=names, gc=False)
    except ValueError:  # a name with a quote or a backslash
        return None
    members = {**dict.fromkeys(_ENVELOPE, Any), **dict.fromkeys(("before", "after"), row | None)}
    typed_dict: Any = TypedDict  # mypy takes literals only
    if source:
        members["source"] = typed_dict("Source", dict.fromkeys(source, Any), total=False) | None
    event = typed_dict("Event", members, total=False)
    parse: ParseEvent = _MSGSPEC.json.Decoder(event | None, float_hook=Decimal).decode
    return parse


def row_values(row: Any) -> tuple[Any, ...]:
    """Return the values of a row of a parsed event. Raises TypeError for what is no such row."""
    if _MSGSPEC is None:
        raise TypeError("without msgspec no events are parsed to rows")
    values: tuple[Any, ...] = _MSGSPEC.structs.astuple(row)
    return values
