"""Events of Debezium parsed by msgspec, which makes objects of the needed members only.

It reads the same JSON as `json` and converts the needed members to the same values; the other members are checked, but
not made. It raises where `json` has no value of JSON, and also at some events that `json` reads, such as a row that
lacks a column; these are then read by `json`. Three things differ, of which the caller checks the first two: it does
not see that other members are not UTF-8, nor that an object has a name twice, of which it takes the last value; and it
takes numbers in other members that `decimal` does not hold.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# An optional package: without it events are read more slowly.
_MSGSPEC: Final[Any] = importlib.import_module("msgspec") if importlib.util.find_spec("msgspec") else None

_END_BYTES: Final = 2  # the last letter of a name and its quote
_BLOCK_BYTES: Final = 1 << 18  # of texts that are read together, so that they stay in the cache

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


def sum_names(texts: pa.Array) -> Iterator[npt.NDArray[np.uint16]]:
    """Yield numbers for texts of JSON, one for each. It is the same for two with the same objects and names in them.

    It is the count of names, and the sum of their last letters and of the count of closing braces, by which an update
    differs from an insert whose row has the members of the old row twice. So it differs for a text that has a name
    twice, unless it also lacks a name that ends with such a letter. A text in a value may count as a name if it begins
    with a colon, or has one behind a space; so do braces in it.

    Args:
        texts: An array of BINARY. The number of NULL is any.
    """
    count = max(len(texts) * _BLOCK_BYTES // max(texts.nbytes, 1), 1)
    for start in range(0, len(texts), count):
        yield _sum_names(texts.slice(start, count))


def _sum_names(texts: pa.Array) -> npt.NDArray[np.uint16]:
    _, offsets, data = texts.buffers()
    width = np.int64 if pa.types.is_large_binary(texts.type) else np.int32
    ends = np.frombuffer(offsets, width)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(ends[0]), int(ends[-1])
    sums = np.zeros(len(texts), np.uint16)
    if last - first <= _END_BYTES:
        return sums
    text = np.frombuffer(data, np.uint8)[first:last]
    is_end = text[_END_BYTES:] == ord(":")
    is_end &= text[1:-1] <= ord('"')  # or space, which may be behind the quote
    is_end &= text[:-2] != ord("\\")  # a text in a text has a backslash before its quotes
    names = is_end.view(np.uint8)
    filled_count = int(np.searchsorted(ends, last))  # the texts behind these are empty
    starts = np.maximum(ends[:filled_count] - first - _END_BYTES, 0)
    sums[:filled_count] = np.add.reduceat(names, starts, dtype=np.uint8)
    letters = -names
    letters &= text[:-2]
    np.equal(text[_END_BYTES:], ord("}"), out=is_end)  # in the memory of names
    letters += names
    sums[:filled_count] *= np.uint16(256)
    sums[:filled_count] += np.add.reduceat(letters, starts, dtype=np.uint8)
    return sums


def event_members(event: Any) -> Mapping[str, Any]:
    """Return the members of a parsed event as a dict, with its source as a dict, and rows as structs."""
    source = event.source
    members = {"op": event.op, "before": event.before, "after": event.after}
    return {**members, "source": None if source is None else _MSGSPEC.structs.asdict(source)}


def row_values(row: Any) -> tuple[Any, ...]:
    """Return the values of a row of a parsed event. Raises TypeError for another object."""
    if _MSGSPEC is None:
        raise TypeError("without msgspec no events are parsed to rows")
    values: tuple[Any, ...] = _MSGSPEC.structs.astuple(row)
    return values


def column_values(rows: Sequence[Any], place: int) -> list[Any]:
    """Return the values of a column of rows of parsed events, given the place of the column."""
    return [*map(attrgetter(f"f{place}"), rows)]
