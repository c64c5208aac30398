"""The items of a SELECT: their names, and what can be told of them without asking Spark.

Most statements are plain: names of columns, aliases, calls over columns, and operators between them. Whatever is not,
such as a call of another function, which may be an aggregate or make several rows, is a question to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from foldflight.sql.analysis import Analysis
from foldflight.sql.blocks import Block, ParsedQuery, queries_in
from foldflight.sql.calls import AGGREGATES, GRAMMAR, ParsedCall, call_at, calls_in
from foldflight.sql.text import Span, Text

KEYWORDS: Final = frozenset(
    """ALL AND AS BETWEEN BY CASE CAST DISTINCT DIV ELSE END ESCAPE FALSE FROM ILIKE IN INTERVAL IS LIKE NOT NULL OR
    REGEXP RLIKE THEN TRUE WHEN""".split()  # noqa: SIM905 - as in a dictionary
)
"""Words that an expression may have between names, calls and constants."""

# Functions that are called without parentheses.
_FUNCTION: Final = re.compile(r"CURRENT_\w+|(SESSION_)?USER|LOCALTIME(STAMP)?|GROUPING__ID")


class Item(NamedTuple):
    """One item without its alias, and the name of its column."""

    body: Span
    name: str


def written_items(analysis: Analysis, block: Block) -> list[Item] | None:
    """Return the items of a block if the text tells their names; None if Spark is to be asked."""
    items = [_source_text(analysis, each) for each in analysis.text.split(block.clause("SELECT"))]
    known_items = [each for each in items if each is not None]
    return known_items if len(known_items) == len(items) else None


def _source_text(analysis: Analysis, item: Span) -> Item | None:
    text = analysis.text
    if star_of(text, item) is not None:
        return Item(item, "")
    alias = text.tokens[item.stop - 1]
    if len(item.indexes) > 2 and alias.is_name and text.says(item.stop - 2, "AS"):
        return Item(Span(item.start, item.stop - 2), alias.name)
    if len(item.indexes) > 1 and alias.is_name and _is_behind_operand(text, item):
        return Item(Span(item.start, item.stop - 1), alias.name)
    call = call_at(text, item.start)
    if call is not None and call.name not in analysis.catalog.names | AGGREGATES:
        return None
    end = _end_of_column(text, item) if call is None else call.span.stop
    if item.start < end == item.stop - 1 and alias.is_name:
        return Item(Span(item.start, end), alias.name)
    own = analysis.catalog.names
    if any(each.span.stop == item.stop and _has_its_text(text, each) for each in calls_in(text, item, own)):
        return Item(item, _in_line(text, item))
    if end != item.stop or (call is not None and call.name not in own):
        return None
    name = alias.name if call is None else _name_of_call(text, call)
    return Item(item, name) if name else None


def _is_behind_operand(text: Text, item: Span) -> bool:
    """Return whether the last word of an item stands behind the end of an expression, so that it is an alias."""
    before = text.tokens[item.stop - 2]
    is_end = before.kind in ("number", "string") or before.upper in (")", "]", "END")
    is_unit = any(text.says(index, "INTERVAL") for index in item.indexes)
    return is_end and not is_unit and text.upper(item.stop - 1) not in KEYWORDS


def _end_of_column(text: Text, item: Span) -> int:
    """Return the index behind the reference to a column with which an item begins; its start if it begins otherwise."""
    index = item.start
    while index < item.stop and text.tokens[index].is_name and not _is_other_word(text, index):
        index += 1
        if index + 1 >= item.stop or not text.says(index, "."):
            return index
        index += 1
    return item.start


def _is_other_word(text: Text, index: int) -> bool:
    """Return whether a word is a keyword, or a function without parentheses, rather than a column."""
    return text.upper(index) in KEYWORDS or _FUNCTION.fullmatch(text.upper(index)) is not None


def _name_of_call(text: Text, call: ParsedCall) -> str | None:
    """Return Spark's name of a call whose arguments are single words; None for another one."""
    arguments = [text.slice(each) for each in call.arguments]
    are_words = all(
        len(each.indexes) == 1 and (text.says(each.start, "*") or re.fullmatch(r"[A-Za-z_]\w*", argument_text))
        for each, argument_text in zip(call.arguments, arguments, strict=True)
    )
    if not are_words or call.order or any(_is_other_word(text, each.start) for each in call.arguments):
        return None
    return f"{call.name}({'DISTINCT ' * call.distinct}{', '.join(arguments) or '*'})"


def _has_its_text(text: Text, call: ParsedCall) -> bool:
    """Return whether an item with a call is named by its text.

    Spark leaves FILTER and OVER out of names, and shows lambdas in the arguments by its own names of their variables.
    """
    return call.condition is not None or call.is_over or any(text.says(index, "->") for index in call.span.indexes)


def _in_line(text: Text, span: Span) -> str:
    return re.sub(r"\s+", " ", text.slice(span))


def named_items(analysis: Analysis, items: Sequence[Span], names: Sequence[str]) -> list[Item]:
    """Return items without their aliases, given the names that Spark gives them."""
    return [Item(strip_alias(analysis, item, name), name) for item, name in zip(items, names, strict=True)]


def strip_alias(analysis: Analysis, item: Span, name: str) -> Span:
    """Return an item of SELECT without its alias, given the name that Spark gives the item."""
    last = analysis.text.tokens[item.stop - 1]
    if not last.is_name or last.name.lower() != name.lower():
        return item
    if len(item.indexes) > 2 and analysis.text.says(item.stop - 2, "AS"):
        return Span(item.start, item.stop - 2)
    if len(item.indexes) > 1 and not analysis.text.says(item.stop - 2, "."):
        return Span(item.start, item.stop - 1)
    return item


def item_names(analysis: Analysis, block: Block, columns: Sequence[str]) -> list[str]:
    """Return the names of a block's items, given those that Spark gives them in the `collect_list` plan.

    Spark's names are kept, with calls as users write them. It leaves FILTER and OVER out of names, and renames the
    variables of lambdas, so an item with such a call is named by its text.
    """
    items = analysis.text.split(block.clause("SELECT"))
    if len(items) != len(columns):
        return [analysis.catalog.as_written(name) for name in columns]
    return named_by_text(analysis, block, items, columns)


def named_by_text(
    analysis: Analysis, around: Block | ParsedQuery, items: Sequence[Span], columns: Sequence[str]
) -> list[str]:
    """Return the names of items as `item_names` does; `around` has the subqueries, whose calls are none of them."""
    names = [analysis.catalog.as_written(name) for name in columns]
    for index, item in enumerate(items):
        calls = calls_in(analysis.text, item, analysis.catalog.names, skip=around.inner)
        if (
            any(_has_its_text(analysis.text, call) for call in calls)
            and strip_alias(analysis, item, names[index]) == item
        ):
            names[index] = _in_line(analysis.text, item)
    return names


def star_of(text: Text, item: Span) -> int | None:
    """Return where an item has a star that stands for columns, not for a product."""
    stars = (index for index in text.flat(item) if text.says(index, "*"))
    return next((index for index in stars if index == item.start or text.says(index - 1, ".")), None)


def has_calls(text: Text, span: Span, without: Collection[int] = ()) -> bool:
    """Return whether a function is called in a range, or a query stands in it, besides at these indexes."""
    for index in span.indexes:
        if index in without:
            continue
        is_word = text.upper(index).lower() in GRAMMAR or text.upper(index - 1) in ("AS", "::")  # a type behind these
        if text.says(index, "->") or _FUNCTION.fullmatch(text.upper(index)):
            return True
        if text.tokens[index].is_name and text.says(index + 1, "(") and not is_word:
            return True
    return any(not set(query.span.indexes) <= set(without) for query in queries_in(text, span))
