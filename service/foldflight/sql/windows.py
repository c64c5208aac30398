"""Time windows in statements: `window(...)` of Spark, and the table functions TUMBLE, HOP, CUMULATE and SESSION."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from foldflight.spark.windows import Window, cumulate, hop, session, tumble
from foldflight.sql.analysis import UnsupportedError
from foldflight.sql.calls import ParsedCall
from foldflight.sql.text import Edits, Span, SqlError, Text

TIME: Final = "foldflight time"
"""The name of the time column in the rows that are grouped by windows."""

SYNTAX: Final = {
    "TUMBLE": "TUMBLE(TABLE t, DESCRIPTOR(time), INTERVAL '5' MINUTES)",
    "HOP": "HOP(TABLE t, DESCRIPTOR(time), slide, size)",
    "CUMULATE": "CUMULATE(TABLE t, DESCRIPTOR(time), step, size)",
    "SESSION": "SESSION(TABLE t, DESCRIPTOR(time), gap)",
}
# Units of SQL's intervals; the separator before each, as in `1:30 HOUR TO MINUTE`; the largest number of each.
_UNITS: Final = ("year", "month", "day", "hour", "minute", "second")
_SEPARATORS: Final = {"month": "-", "day": "", "hour": " ", "minute": ":", "second": ":"}
_MOST: Final = {"month": 11, "hour": 23, "minute": 59, "second": 59}
_RANGE: Final = re.compile(
    r"\s*([-+]?)(\d+(?:[ :-]\d+)+)(?:\.(\d{1,6}))?\s+"
    r"(YEAR(?=\s+TO\s+MONTH)|DAY|HOUR|MINUTE)\s+TO\s+(MONTH|HOUR|MINUTE|SECOND)\s*",
    re.IGNORECASE,
)
_LENGTHS: Final = {"TUMBLE": 1, "HOP": 2, "CUMULATE": 2, "SESSION": 1}


@dataclass(frozen=True)
class WindowedTable:
    """A windowing table function: `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), ...))`, or `TUMBLE(t, ts, ...)`.

    Args:
        span: Its tokens.
        relation: The tokens of the table, or of the query in parentheses.
        time: The tokens of the time column.
        window: The windows over a column `TIME`.
        kind: TUMBLE, HOP, CUMULATE or SESSION.
    """

    span: Span
    relation: Span
    time: Span
    window: Window
    kind: str

    @property
    def has_equivalent(self) -> bool:
        """Whether Spark has such windows."""
        return self.kind in ("TUMBLE", "HOP")

    def misuse_error(self, text: Text) -> SqlError:
        """Return the error for CUMULATE and SESSION in a block that `group_by` does not aggregate by their windows."""
        return text.error(
            f"{self.kind} needs GROUP BY window_start, window_end: its windows exist for groups only. It "
            "stands first behind FROM in the SELECT with this GROUP BY, which has an aggregate of foldflight",
            self.span,
        )


def windowed_tables(text: Text) -> list[WindowedTable]:
    """Return the windowing table functions of a statement. Raises SqlError for wrong arguments."""
    tables = []
    for index in range(len(text)):
        kind = text.upper(index)
        if kind not in SYNTAX or not text.says(index + 1, "("):
            continue
        span = Span(index, text.partner[index + 1] + 1)
        if text.says(index - 2, "TABLE", "(") and text.says(span.stop, ")"):
            span = Span(index - 2, span.stop + 1)
        if text.upper(span.start - 1) in ("FROM", "JOIN", ","):
            tables.append(_windowed_table(text, kind, span, Span(index + 2, text.partner[index + 1])))
    return tables


def _windowed_table(text: Text, kind: str, span: Span, arguments: Span) -> WindowedTable:
    relation, *rest = text.split(arguments)
    if len(rest) != 1 + _LENGTHS[kind]:
        raise text.error(f"{kind} is written {SYNTAX[kind]}", span)
    if text.says(relation.start, "TABLE"):
        relation = Span(relation.start + 1, relation.stop)
    time = rest[0]
    if text.says(time.start, "DESCRIPTOR", "("):
        time = Span(time.start + 2, time.stop - 1)
    lengths = [_length(text, each) for each in rest[1:]]
    window = {
        "TUMBLE": lambda: tumble(TIME, lengths[0]),
        "HOP": lambda: hop(TIME, lengths[0], lengths[1]),
        "CUMULATE": lambda: cumulate(TIME, lengths[0], lengths[1]),
        "SESSION": lambda: session(TIME, lengths[0]),
    }[kind]()
    return WindowedTable(span, relation, time, window, kind)


def as_plain_tables(text: Text, tables: list[WindowedTable], edits: Edits) -> None:
    """Replace windowing table functions by queries that Spark knows.

    TUMBLE and HOP become Spark's `window`. CUMULATE and SESSION have no equivalent that keeps the rows; a query without
    windows stands for them, so that Spark can check the rest of the statement.
    """
    for table in tables:
        time, window = text.slice(table.time), table.window
        if table.has_equivalent:
            lengths = ", ".join(f"'{each}'" for each in (window.size, window.slide) if each)
            ends = ", ".join(f"window({time}, {lengths}).{end} AS window_{end}" for end in ("start", "end"))
            head, tail = f"(SELECT *, {ends} FROM ", ")"
        else:
            head, tail = f"(SELECT *, {time} AS window_start, {time} AS window_end FROM ", ")"
        # The relation is not part of the replaced text: it may be a query whose calls other edits replace.
        edits.replace(Span(table.span.start, table.relation.start), head)
        edits.replace(Span(table.relation.stop, table.span.stop), tail)


def window_of_call(text: Text, call: ParsedCall) -> Window:
    """Return the windows of `window(time, size[, slide])` or `session_window(time, gap)`.

    Raises:
        UnsupportedError: For windows that foldflight does not have.
    """
    lengths = [_length(text, each) for each in call.arguments[1:]]
    if call.name == "session_window":
        return session(TIME, lengths[0])
    if len(lengths) > 2:
        raise UnsupportedError("its windows have a start time")
    return tumble(TIME, lengths[0]) if len(lengths) == 1 else hop(TIME, lengths[1], lengths[0])


def _length(text: Text, span: Span) -> str:
    """Return the length of a window as `group_by` takes it: `INTERVAL '5' MINUTES` and '5 minutes' are `5 MINUTES`.

    `INTERVAL '1:30' HOUR TO MINUTE` is `1 hour 30 minute`.
    """
    first = text.tokens[span.start]
    if len(span.indexes) == 1 and first.kind == "string":
        return first.value
    if not text.says(span.start, "INTERVAL"):
        raise text.error("the length of a window is expected here: INTERVAL '5' MINUTES, or '5 minutes'", span)
    length_text = re.sub(r"(?i)^interval\s+|['\"]", "", text.slice(span))
    return in_units(length_text)


def in_units(interval: str) -> str:
    """Return an interval of several units, as `1:30 HOUR TO MINUTE`, with its units; other texts as they are.

    >>> in_units("1:30 HOUR TO MINUTE")
    '1 hour 30 minute'
    >>> in_units("-1 02:00:00.5 DAY TO SECOND")
    '-1 day -02 hour -00 minute -00 second -500000 microsecond'
    """
    match = _RANGE.fullmatch(interval)
    if match is None:
        return interval
    sign, digits, fraction, first, last = match.groups()
    units = _UNITS[_UNITS.index(first.lower()) : _UNITS.index(last.lower()) + 1]
    numbers = re.split("[ :-]", digits)
    separators = "".join(_SEPARATORS[unit] for unit in units[1:])
    if re.sub(r"\d", "", digits) != separators or (fraction and units[-1] != "second"):
        return interval
    if any(int(number) > _MOST[unit] for number, unit in zip(numbers[1:], units[1:], strict=True)):
        return interval
    terms = [f"{sign}{number} {unit}" for number, unit in zip(numbers, units, strict=True)]
    return " ".join([*terms, *([f"{sign}{fraction:0<6} microsecond"] if fraction else [])])
