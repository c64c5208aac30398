"""The plan of a SELECT block whose calls have OVER: `over(...).agg(...)` between two queries of Spark.

    SELECT items, arguments, keys, orders FROM ... WHERE ...     Spark
    over(keys, order_by=orders).agg(...)                         foldflight, once for each partition and order
    SELECT items FROM result WHERE qualify                       Spark

Items without calls of foldflight are computed below, also Spark's own functions with OVER. Of an item with such a call,
the references to columns are computed below, too, and stand in it as columns of the result. Spark resolves all of them
where they were written. A name wrongly taken for a reference, or the other way round, does not resolve.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame

from foldflight.client import Aggregate
from foldflight.client.functions import OrderKey
from foldflight.engine.query.layout import ROW_KIND
from foldflight.errors import FoldflightError
from foldflight.functions.query.frame import FrameBound, WindowFrame, interval_of
from foldflight.spark.columns import quote_name
from foldflight.spark.over import over
from foldflight.spark.versions.sessions import same_plan
from foldflight.sql.analysis import (
    KEYWORDS,
    SPARK_ERRORS,
    Analysis,
    Item,
    UnsupportedError,
    has_calls,
    item_names,
    spark_message,
    star_of,
    strip_alias,
    written_items,
)
from foldflight.sql.blocks import Block, ParsedQuery
from foldflight.sql.calls import AGGREGATES, ParsedCall, call_at, calls_in, orderings
from foldflight.sql.changes import ALL_COLUMNS, read_checked_rows
from foldflight.sql.list_plan import guard_calls
from foldflight.sql.text import Edits, Span, Text
from foldflight.sql.windows import in_units


class _Window(NamedTuple):
    """A partition and an order, as names of columns."""

    keys: tuple[str, ...]
    order: tuple[OrderKey, ...]


class _Item(NamedTuple):
    """A column of the block: its name, the column below that it is, and its item; no column if it has a call."""

    name: str
    column: str
    body: Span


@dataclass(frozen=True)
class BlockPlan:
    """A block over the result of its fold.

    Args:
        sql: The block as a query over the result.
        tails: The clauses behind the block over the result, by keyword.
        plan: The plan.
        why: The call, as text for users.
        is_streaming: Whether it is a stream.
        has_kinds: Whether its rows have kinds.
        result: The block, if it is the result of the fold as it is.
    """

    sql: str
    tails: Mapping[str, str]
    plan: Literal["fold", "over"]
    why: str
    is_streaming: bool
    has_kinds: bool = False
    result: DataFrame | None = None


@dataclass
class BlockOver:
    """Plans a block.

    Args:
        analysis: The statement.
        query: The query of the block.
        block: The block.
        edits: The edits of the `group_by` plan so far: queries inside of this block have been planned.
        new_name: Returns a new name of a column for a text.
        aggregate: Returns the use of a function that a call is, given what names the columns of expressions.
        fitted: Returns items of SELECT with arguments in the types that calls declare, and the uses over these.
        options: Further options of `over`, for streams.
        of_statement: All options of the statement.
    """

    analysis: Analysis
    query: ParsedQuery
    block: Block
    edits: Edits
    new_name: Callable[[str], str]
    aggregate: Callable[[ParsedCall, Callable[[Span], str]], Aggregate]
    fitted: Callable[[DataFrame, Mapping[str, tuple[ParsedCall, Aggregate]]], tuple[list[str], dict[str, Aggregate]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    of_statement: Mapping[str, Any] = field(default_factory=dict)
    _select: list[str] = field(default_factory=list)
    _columns: list[str] = field(default_factory=list)
    _column_of_sql: dict[str, str] = field(default_factory=dict)
    _repeats: dict[str, bool] = field(default_factory=dict)
    _rows_have: set[str] | None = None

    def plan_block(self, calls: Sequence[ParsedCall], list_plan_df: Callable[[], DataFrame]) -> BlockPlan:
        """Return the plan.

        Args:
            calls: The calls of our functions.
            list_plan_df: Returns the `collect_list` plan of the block. Spark is asked for it unless the block is plain:
                columns and constants, with operators and nothing that may be an aggregate or make several rows.

        Raises:
            UnsupportedError: If the block cannot be planned so.
        """
        self._check(calls)
        items = written_items(self.analysis, self.block) if self._is_plain(calls) else None
        if items is None:
            columns = self._columns_of(list_plan_df(), calls)
        else:
            columns = [each for item in items for each in self._item(item, calls)]
        shown_edits = self.edits.copy()
        windows: dict[_Window, dict[str, tuple[ParsedCall, Aggregate]]] = {}
        for call in calls:
            window, use = self._use(call)
            uses = windows.setdefault(window, {})
            # Equal texts may be different calls: of rand(), or over windows whose names differ in case.
            known_outputs = (
                name for name, (_, other) in uses.items() if other == use and other.transport is use.transport
            )
            output = next(known_outputs, None) or self.new_name(self.analysis.text.slice(call.span))
            uses[output] = call, use
            shown_edits.replace(call.span, quote_name(output))
        inside = {index for call in calls for index in call.span.indexes}
        above = [each.column or self._above(each.body, shown_edits, inside) for each in columns]
        named_items = [f"{item} AS {quote_name(each.name)}" for item, each in zip(above, columns, strict=True)]
        by_name = {
            self.analysis.text.normal_name(each.name): (each.body, item)
            for each, item in zip(columns, above, strict=True)
        }
        predicate = self._qualify(shown_edits, calls, by_name)
        tails = dict(self._tails(shown_edits, inside, by_name))
        result = self._result(windows)
        sql = f"SELECT {self.block.quantifier} {', '.join(named_items)} FROM {self.analysis.add_view(result)}"
        if predicate:
            sql += f" WHERE CAST({predicate} AS BOOLEAN)"
        return BlockPlan(sql, tails, "over", _describe_windows(windows), result.isStreaming)

    def _is_plain(self, calls: Sequence[ParsedCall]) -> bool:
        text = self.analysis.text
        heads = {call.span.start for call in calls}
        windows = [self.query.tails["WINDOW"]] if "WINDOW" in self.query.tails else []
        return not any(has_calls(text, span, heads) for span in (*self._spans(), *windows))

    def _check(self, own: Sequence[ParsedCall]) -> None:
        """Refuse blocks with groups, whose windows are over the groups, and forms that `over` does not have."""
        text = self.analysis.text
        if "GROUP BY" in self.block.clauses or "HAVING" in self.block.clauses:
            raise UnsupportedError("OVER beside GROUP BY or HAVING")
        names = self.analysis.catalog.names | AGGREGATES
        for span in self._spans():
            for call in calls_in(text, span, names, skip=[*self.block.inner, *self.query.inner], nested=True):
                if not call.is_over:
                    raise UnsupportedError(f"OVER beside {call.name} over all rows")
        for call in own:
            if any(text.upper(index) in ("RESPECT", "IGNORE") for index in range(call.closing, call.span.stop)):
                raise UnsupportedError("RESPECT or IGNORE NULLS")
            if any(call.span.holds(inner.span) for inner in self.block.inner):
                raise UnsupportedError("a subquery in a call with OVER")

    def _spans(self) -> list[Span]:
        spans = [self.block.clause(name) for name in ("SELECT", "QUALIFY")]
        return spans + (list(self.query.tails.values()) if self.query.is_sole(self.block) else [])

    def _column(self, span: Span) -> str:
        """Return the column of an expression, which is computed below: once, unless it differs each time as rand()."""
        return self._computed_column(self.edits.render(span), self.analysis.text.slice(span))

    def _argument(self, call: ParsedCall, span: Span) -> str:
        """Return the column of an expression in a call, evaluated only where the FILTER of the call holds.

        A condition that differs each time, as rand() > 0.5, cannot guard it: the filter evaluates it again.
        """
        if call.condition in (None, span) or len(span.indexes) == 1 or self.analysis.text.path(span):
            return self._column(span)
        condition = self.edits.render(call.condition)
        if not self._is_same(condition, condition):
            return self._column(span)
        holds = f"CAST(({condition}) AS BOOLEAN)"
        value = f"CASE WHEN {holds} THEN {guard_calls(self.analysis, self.edits, span, holds)} END"
        return self._computed_column(value, self.analysis.text.slice(span))

    def _computed_column(self, sql: str, text: str) -> str:
        if sql not in self._column_of_sql:
            self._column_of_sql[sql] = self._add(sql, text)
        elif "(" in sql:
            if sql not in self._repeats:
                self._repeats[sql] = self._is_same(sql, sql)
            if not self._repeats[sql]:
                return self._add(sql, text)
        return self._column_of_sql[sql]

    def _is_same(self, one: str, other: str) -> bool:
        """Return whether Spark resolves two expressions among the rows, and to the same value."""
        try:
            first, second = (self.analysis.df(self._below(each)) for each in (one, other))
        except SPARK_ERRORS:
            return False
        return same_plan(first, second)

    def _add(self, sql: str, text: str) -> str:
        self._select.append(sql)
        self._columns.append(self.new_name(text))
        return self._columns[-1]

    def _columns_of(self, list_plan_df: DataFrame, calls: Sequence[ParsedCall]) -> list[_Item]:
        """Return the columns of the block, given the `collect_list` plan."""
        text, columns = self.analysis.text, list[_Item]()
        names = item_names(self.analysis, self.block, list_plan_df.columns)
        plain: list[str] = []
        for item in text.split(self.block.clause("SELECT")):
            if star_of(text, item) is not None and not any(item.holds(call.span) for call in calls):
                columns += self._item(Item(item, ""), calls)
            elif len(columns) < len(names):
                body = strip_alias(self.analysis, item, names[len(columns)])
                columns += self._item(Item(body, names[len(columns)]), calls)
                plain += [self.edits.render(body)] if columns[-1].column else []
        if len(columns) != len(names):
            raise UnsupportedError("an item that makes several columns")
        # Spark allows no generator within an expression.
        within = ", ".join(f"isnull({item})" for item in plain)
        if plain and not self.analysis.resolves(self._below(within)):
            raise UnsupportedError("an item that makes several rows")
        return [each._replace(name=name) for each, name in zip(columns, names, strict=True)]

    def _item(self, item: Item, calls: Sequence[ParsedCall]) -> list[_Item]:
        """Return the columns of an item."""
        text, body = self.analysis.text, item.body
        if any(body.holds(call.span) for call in calls):
            return [_Item(item.name, "", body)]
        sql = self.edits.render(body)
        if star_of(text, body) is not None:
            self._select.append(sql)
            item_names = self._df(sql).columns
            # No word of an item can be one of these names, so that none is taken for another column.
            columns = [self.new_name(f"{name} of {text.slice(body)}") for name in item_names]
            self._columns += columns
            return [_Item(name, quote_name(column), body) for name, column in zip(item_names, columns, strict=True)]
        # A column is computed once. Another expression may differ each time, as rand() does.
        column = self._column(body) if text.path(body) else self._add(sql, text.slice(body))
        return [_Item(item.name, quote_name(column), body)]

    def _rows(self, select: str) -> DataFrame:
        rows = read_checked_rows(self.analysis, self.block, self.of_statement, lambda more: self._df(select + more))
        return rows.drop(ALL_COLUMNS)

    def _df(self, select: str) -> DataFrame:
        try:
            return self.analysis.df(self._below(select))
        except SPARK_ERRORS as error:
            raise UnsupportedError(f"Spark refuses its rows: {spark_message(error)}") from None

    def _below(self, select: str) -> str:
        """Return a SELECT over the rows of the block, with its named windows."""
        sql = self.analysis.rows_of(self.block, select, self.edits)
        if "WINDOW" in self.query.tails and self.query.is_sole(self.block):
            sql += f"\nWINDOW {self.edits.render(self.query.tails['WINDOW'])}"
        return self.analysis.seeing(self.query, self.block.span.start, sql, self.edits)

    def _use(self, call: ParsedCall) -> tuple[_Window, Aggregate]:
        """Return the window of a call, and the use of its function with its window frame."""
        text = self.analysis.text
        at = next(index for index in text.flat(Span(call.closing + 1, call.span.stop)) if text.says(index, "OVER"))
        clauses = _clauses(text, self._definition(Span(at + 1, call.span.stop)))
        keys = tuple(map(self._column, text.split(clauses.keys)))
        order_keys = () if clauses.order.is_empty else orderings(text, clauses.order)
        order = tuple(OrderKey(self._column(each.span), each.descending, each.nulls_first) for each in order_keys)
        use = self.aggregate(call, partial(self._argument, call))
        if not clauses.window_frame.is_empty:
            use = replace(use, frame=self._window_frame(clauses.window_frame))
        return _Window(keys, order), use

    def _definition(self, span: Span) -> Span:
        """Return what stands in the parentheses of a window: behind OVER, or in the clause WINDOW."""
        text = self.analysis.text
        if text.says(span.start, "("):
            inner = Span(span.start + 1, span.stop - 1)
            if len(inner.indexes) != 1:
                return inner
            span = inner
        name = text.tokens[span.start].name
        definitions = self.query.tails.get("WINDOW", Span(0, 0)) if self.query.is_sole(self.block) else Span(0, 0)
        for each in text.split(definitions):
            if text.tokens[each.start].name == name:  # Spark tells u from U here
                opening = next((at for at in text.flat(each) if text.says(at, "(")), None)
                if opening is not None:
                    return self._definition(Span(opening, text.partner[opening] + 1))
        raise UnsupportedError(f"the window {name}, which is not defined behind this SELECT")

    def _window_frame(self, span: Span) -> WindowFrame:
        text = self.analysis.text
        is_range, index = text.says(span.start, "RANGE"), span.start + 1
        ends = [Span(index, span.stop)]
        if text.says(index, "BETWEEN"):
            middle = next(at for at in text.flat(Span(index, span.stop)) if text.says(at, "AND"))
            ends = [Span(index + 1, middle), Span(middle + 1, span.stop)]
        low, *high = (self._bound(each, is_range=is_range) for each in ends)
        try:
            return WindowFrame(low, high[0] if high else 0, is_range=is_range)
        except FoldflightError as error:
            raise UnsupportedError(error.message) from None

    def _bound(self, span: Span, *, is_range: bool) -> FrameBound:
        """Return one end of a window frame."""
        text = self.analysis.text
        if text.says(span.start, "CURRENT", "ROW"):
            return 0
        if text.says(span.start, "UNBOUNDED"):
            return None
        sign = -1 if text.says(span.stop - 1, "PRECEDING") else 1
        value_span = Span(span.start, span.stop - 1)
        if is_range and text.says(value_span.start, "INTERVAL"):
            return _interval(text, Span(value_span.start + 1, value_span.stop), sign)
        token = text.tokens[value_span.start]
        if len(value_span.indexes) == 1 and token.text.isdigit():
            return sign * int(token.text)
        try:
            value = self.analysis.df(f"SELECT {self.edits.render(value_span)}").collect()[0][0]
        except SPARK_ERRORS:
            value = None
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise UnsupportedError(f"the end {text.slice(span)} of its frame")
        return sign * value

    def _above(self, span: Span, shown_edits: Edits, inside: set[int]) -> str:
        """Return an expression over the result: what it takes from the rows is replaced by columns."""
        if any(span.holds(inner.span) for inner in (*self.block.inner, *self.query.inner)):
            raise UnsupportedError("a subquery beside OVER")
        edits = shown_edits.copy()
        for part in self._parts(span, inside):
            edits.replace(part, quote_name(self._column(part)))
        return f"({edits.render(span)})"

    def _parts(self, span: Span, inside: set[int]) -> Iterator[Span]:
        """Yield the references to columns of a range, and Spark's functions with OVER."""
        text, index = self.analysis.text, span.start
        while index < span.stop:
            token = text.tokens[index]
            if text.says(index, "->"):
                raise UnsupportedError("a lambda beside OVER")
            # Behind a dot stands a field, behind a colon a parameter or a field, and behind two a type.
            is_free = index not in inside and token.is_name and text.upper(index - 1) not in (".", ":", "::")
            call = call_at(text, index) if is_free else None
            if call is not None and call.is_over:
                if inside & set(call.span.indexes):
                    raise UnsupportedError("a function with OVER in another one")
                yield call.span
                index = call.span.stop
                continue
            end = text.path_end(index, span.stop) if is_free else index + 1
            if is_free and not text.says(end, "(") and not self._is_word(index):
                yield Span(index, end)
            index = end

    def _is_word(self, index: int) -> bool:
        """Return whether a word names no column: a keyword, a type behind AS, a unit, or the name of an argument."""
        text = self.analysis.text
        if text.upper(index) in KEYWORDS:
            if text.tokens[index].name.lower() in self._names_of_rows():
                raise UnsupportedError(f"the column {text.tokens[index].text}, whose name is a keyword")
            return True
        if text.says(index - 1, "AS") or text.says(index + 1, "=>"):
            return True
        is_literal = index + 1 < len(text) and text.tokens[index + 1].kind == "string"
        return is_literal or text.says(index - 2, "INTERVAL")

    def _names_of_rows(self) -> Collection[str]:
        """Return the names of the columns that the rows of the block have, in lower case."""
        if self._rows_have is None:
            has_rows = "FROM" in self.block.clauses
            self._rows_have = {name.lower() for name in self._df("*").columns} if has_rows else set()
        return self._rows_have

    def _qualify(self, shown_edits: Edits, calls: Sequence[ParsedCall], items: Mapping[str, tuple[Span, str]]) -> str:
        """Return QUALIFY over the result, with the names of items replaced by the items."""
        span, text, edits = self.block.clause("QUALIFY"), self.analysis.text, shown_edits.copy()
        if span.is_empty:
            return ""
        inside = {index for call in calls for index in call.span.indexes}
        for call in calls:
            if span.holds(call.span):
                self._check_names(call, items)
        for part in self._parts(span, inside):
            call_of_spark = call_at(text, part.start)
            if call_of_spark is not None:
                self._check_names(call_of_spark, items)
                continue
            name = Span(part.start, part.start + 1)
            body, item = items.get(text.normal_name(text.tokens[part.start].name), (None, ""))
            if body is None:
                continue
            is_item = part == name and self._is_item(body, part)
            if not is_item and self.analysis.resolves(self._below(text.slice(part))):
                raise UnsupportedError(f"{text.slice(part)} is both a column and the name of another item")
            edits.replace(name, item)
            inside |= set(part.indexes)
        return self._above(span, edits, inside)

    def _check_names(self, call: ParsedCall, items: Mapping[str, tuple[Span, str]]) -> None:
        """Refuse a call in QUALIFY in which a name stands for an item, and among the rows for something else."""
        text = self.analysis.text
        spans = [Span(call.span.start + 1, call.span.stop)]
        spans += [self.query.tails["WINDOW"]] if "WINDOW" in self.query.tails else []
        for part in (part for span in spans for part in self._parts(span, set())):
            body, _ = items.get(text.normal_name(text.tokens[part.start].name), (None, ""))
            if body is not None and not self._is_item(body, part):
                raise UnsupportedError(f"{text.slice(part)} in QUALIFY is the name of another item")

    def _is_item(self, body: Span, part: Span) -> bool:
        """Return whether a reference to a column among the rows is an item, or one of the columns of a star."""
        text, star = self.analysis.text, star_of(self.analysis.text, body)
        if star is not None:  # of all relations, of one, or of a struct
            return star == body.start or not self.analysis.resolves(self._below(text.slice(Span(body.start, star - 1))))
        return text.normal(body) == text.normal(part) or self._is_same(self.edits.render(body), text.slice(part))

    def _tails(self, shown_edits: Edits, inside: set[int], items: Collection[str]) -> Iterator[tuple[str, str]]:
        """Yield the clauses behind the block. Names of items stay: Spark prefers them there."""
        if not self.query.is_sole(self.block):
            return
        for name, span in self.query.tails.items():
            if name == "WINDOW":
                yield name, f"{quote_name(self.new_name('no window'))} AS (ORDER BY 1)"
            elif name not in ("LIMIT", "OFFSET"):
                edits = shown_edits.copy()
                order_spans = [each.span for each in orderings(self.analysis.text, span)]
                for part in (part for each in order_spans for part in self._parts(each, inside)):
                    word = self.analysis.text.tokens[part.start].name
                    if self.analysis.text.normal_name(word) not in items:
                        edits.replace(part, quote_name(self._column(part)))
                if any(span.holds(inner.span) for inner in self.query.inner):
                    raise UnsupportedError("a subquery behind OVER")
                yield name, edits.render(span)

    def _result(self, windows: Mapping[_Window, Mapping[str, tuple[ParsedCall, Aggregate]]]) -> DataFrame:
        if len(self._select) < len(self._columns):  # of a star
            rows = self._rows(", ".join(self._select)).toDF(*self._columns)
        else:
            items_and_names = zip(self._select, self._columns, strict=True)
            rows = self._rows(", ".join(f"{sql} AS {quote_name(name)}" for sql, name in items_and_names))
        if rows.isStreaming and ROW_KIND in self._names_of_rows():
            raise UnsupportedError(f"OVER over a stream with a column {ROW_KIND}, which is one of changes, not of rows")
        try:
            for window, uses in windows.items():
                if rows.isStreaming and not window.order:
                    raise UnsupportedError("OVER without ORDER BY the column under the watermark of the stream")
                order = [_order_key(key) for key in window.order]
                casts, fitted_uses = self.fitted(rows, uses)
                rows = rows.selectExpr("*", *casts) if casts else rows
                rows = over(rows, list(window.keys), order_by=order, **self.options).agg(**fitted_uses)
        except FoldflightError as error:
            raise UnsupportedError(str(error).split("\n", maxsplit=1)[0]) from None
        return rows


class _Clauses(NamedTuple):
    """The clauses of a window, without their keywords."""

    keys: Span
    order: Span
    window_frame: Span


def _clauses(text: Text, span: Span) -> _Clauses:
    """Read `[PARTITION BY ...] [ORDER BY ...] [ROWS | RANGE ...]`."""
    clauses = {"KEYS": Span(0, 0), "ORDER": Span(0, 0), "FRAME": Span(0, 0)}
    current, begin = "", span.start
    for index in text.flat(span):
        if text.upper(index) in ("PARTITION", "DISTRIBUTE", "ORDER", "SORT") and text.says(index + 1, "BY"):
            name, skipped_words = ("KEYS" if text.upper(index) in ("PARTITION", "DISTRIBUTE") else "ORDER"), 2
        elif (
            text.upper(index) in ("ROWS", "RANGE") and (index > begin or not current) and not text.says(index - 1, ",")
        ):
            name, skipped_words = "FRAME", 0
        elif index == span.start:
            raise UnsupportedError(f"the window {text.slice(span)}")
        else:
            continue
        if current == "FRAME":
            break
        if current:
            clauses[current] = Span(begin, index)
        current, begin = name, index + skipped_words
    if current:
        clauses[current] = Span(begin, span.stop)
    return _Clauses(clauses["KEYS"], clauses["ORDER"], clauses["FRAME"])


def _order_key(key: OrderKey) -> str:
    """Return a key of an order as `over` takes it."""
    direction = "DESC" if key.descending else "ASC"
    return f"{quote_name(str(key.column))} {direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"


def _interval(text: Text, span: Span, sign: int) -> str:
    """Return `'1' HOUR`, `'1:30' HOUR TO MINUTE`, `1 HOUR` or `'1 hour 30 minutes'` as `over` takes it."""
    first = text.tokens[span.start]
    length_text = first.value if first.kind == "string" else first.text
    unit = "".join(f" {text.tokens[index].text}" for index in range(span.start + 1, span.stop))
    interval = interval_of(in_units(length_text + unit))
    if interval is None:
        raise UnsupportedError(f"the interval {text.slice(span)} as the end of its frame")
    parts = [(sign * number, name) for number, name in zip(interval, interval._fields, strict=True) if number]
    return " ".join(f"{number} {name}" for number, name in parts) or "0 days"


def _describe_windows(windows: Mapping[_Window, Collection[str]]) -> str:
    """Return the windows and calls as text for users."""
    texts = []
    for window, uses in windows.items():
        keys, order = ", ".join(window.keys) or "nothing", ", ".join(str(each)[1:-1] for each in window.order)
        texts.append(f"over: partition by {keys}; order by {order or 'nothing'}; calls: {', '.join(uses)}")
    return "; ".join(texts)
