"""Refuses statements that would take the changes of rows with kinds for rows.

The rows of a changelog retract others, so only an aggregate of foldflight with the option `row_kind` counts them right.
Whatever else counts, compares or looks for rows is refused: aggregates of Spark, DISTINCT, GROUP BY, UNION, INTERSECT,
EXCEPT, PIVOT, queries in conditions, joins and MERGE, which look for rows or for their absence, window functions, and
what keeps a part of the rows: LIMIT, OFFSET and TABLESAMPLE, unless the statement shows their rows. So is a SELECT that
leaves the kinds out and whose rows a table or view keeps. One that names the column of the kinds says itself what they
mean. What maps, filters or joins each change by itself is a changelog again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.functions import Registry
from foldflight.spark.columns import quote_name
from foldflight.spark.rowkinds import kinds_in, unset_kinds_message
from foldflight.spark.scans.predicate import NO_COLUMNS
from foldflight.sql.analysis import PLANNING_ERRORS, Analysis, KindsBelow
from foldflight.sql.blocks import SETS, Block, ParsedQuery, insert_in
from foldflight.sql.calls import AGGREGATES, ParsedCall, call_at, calls_in
from foldflight.sql.text import Edits, Span

ALL_COLUMNS: Final = "foldflight all columns"
"""A column with all columns of the rows of a block, for their types."""

_WRITE_AGGREGATE: Final = (
    "write an aggregate of foldflight in its place, which retracts with the option row_kind='{name}'; or use {name} in "
    "the SELECT, to say what the kinds mean; or give sql the option row_kind=None, to aggregate the changes themselves"
)
_SELECT_KINDS: Final = (
    "select {name} there, too, so that aggregates of foldflight over it retract with the option row_kind='{name}'; or "
    "use it in the WHERE, to say which changes count; or give sql the option row_kind=None, to aggregate the changes "
    "themselves"
)
_WRITE_SELECT: Final = (
    "only SELECT retracts, not PIVOT or |>; write SELECT ... FROM ... GROUP BY with aggregates of foldflight and the "
    "option row_kind='{name}' (for PIVOT, f(v) FILTER (WHERE k = 'a') for each of its columns); or use {name} there, "
    "to say what the kinds mean; or give sql the option row_kind=None, to aggregate the changes themselves"
)
_READ_LIVE_ROWS: Final = (
    "read the rows that are left in their place: (SELECT k, f(v) FROM ... GROUP BY k), where f is an aggregate of "
    "foldflight, with the option row_kind='{name}'; or use {name} there, to say which changes count; or give sql the "
    "option row_kind=None, to take the changes themselves"
)
_MERGE_LIVE_ROWS: Final = (
    "merge the rows that are left, from a view: CREATE TEMPORARY VIEW v AS SELECT k, f(v) FROM ... GROUP BY k, where f "
    "is an aggregate of foldflight, with the option row_kind='{name}'; or use {name} in WHEN, to say what each kind "
    "does; or give sql the option row_kind=None, to take the changes themselves"
)
_WRITE_WINDOW_LATER: Final = (
    "write the window over the rows that are left: SELECT ..., rank() OVER (...) FROM (SELECT k, f(v) FROM ... GROUP "
    "BY k), where f is an aggregate of foldflight, with the option row_kind='{name}'. The last row of each key needs "
    "no row_number(): the changes of upserts and of from_debezium(keys=...) take the old row back themselves. Or use "
    "{name} in the window or in WHERE, to say which changes count; or give sql the option row_kind=None, to take the "
    "changes themselves"
)
_WRITE_LIMIT_LATER: Final = (
    "a change may be left without the one that takes it back. Write it over the rows that are left: (SELECT k, f(v) "
    "FROM ... GROUP BY k), where f is an aggregate of foldflight, with the option row_kind='{name}'; or use {name} in "
    "WHERE, to say which changes count; or give sql the option row_kind=None, to take the changes themselves"
)
_KEEP_KINDS: Final = (
    "select {name} there, too, so that the kinds are kept; or keep the rows that are left: SELECT k, f(v) FROM ... "
    "GROUP BY k, where f is an aggregate of foldflight, with the option row_kind='{name}'; or use {name} in the SELECT "
    "or in WHERE, to say which changes count; or give sql the option row_kind=None, to keep the changes themselves"
)
_COLUMNS_BELOW: Final = "foldflight columns below"
_ALIAS_MAX: Final = 3  # tokens from the parenthesis behind a query to the end of its alias: `) AS t`
_LIMITS: Final = ("LIMIT", "OFFSET", "TABLESAMPLE")
_LEAVES_OUT: Final = "the SELECT, which leaves it out,"
_WORD: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIDES: Final = frozenset(["INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "NATURAL"])
_AFTER_RELATIONS: Final = _SIDES | {"JOIN", "ON", "USING", ",", "PIVOT", "UNPIVOT"}


@dataclass(frozen=True)
class _Consumer:
    """A part of a statement that would count each change as a row.

    Args:
        what: Its name in the error.
        at: Its tokens.
        remedy: What to write in its place, with `{name}` for the column of the kinds.
        kind_spans: The parts of the SELECT, besides WHERE, in which the column of the kinds may be named, so that the
            user has decided what they mean. None: all of it.
    """

    what: str
    at: Span
    remedy: str
    kind_spans: tuple[Span, ...] | None = None


def read_checked_rows(
    analysis: Analysis,
    block: Block,
    options: Mapping[str, Any],
    read_rows: Callable[[str], DataFrame],
    edits: Edits | None = None,
    items: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a block, and all its columns, which Spark analyses in the same step.

    These are in `ALL_COLUMNS`. With `items` they stand beside the items if no two have one name, without the items
    that would be such a column again: Spark takes a third less for this.

    Args:
        analysis: The statement.
        block: The block.
        options: The options of the statement.
        read_rows: Returns the rows, given the text of a further item; with `items`, given all of them.
        edits: The edits with which they are read. They get an item for the kinds of the block below
            (`Analysis.kinds_below`), if they are given.
        items: The texts of the items by their names.

    Raises:
        SqlError: If the rows have kinds, and no option `row_kind` says what these mean; or if they have kinds of
            several changelogs, which a join has made.
    """
    if ("row_kind" in options and options["row_kind"] is None) or "FROM" not in block.clauses:
        return read_rows("" if items is None else _listed(items))
    below = None if edits is None else analysis.kinds_below.get(block.span)
    if edits is not None and below is not None:
        edits.insert(below.items_end, f", struct(*) AS {quote_name(_COLUMNS_BELOW)}")
    rows, columns = _rows_and_columns(read_rows, items)
    if below is not None:
        below.check(_kinds_among(_fields_of(columns, _COLUMNS_BELOW)))
        del analysis.kinds_below[block.span]  # only now: if Spark refuses the rows, it is asked for the kinds alone
    kinds_by_name = _kinds_among(columns)
    if "row_kind" not in options:
        remedy = (
            "give sql the option row_kind='{name}', so that they retract, or row_kind=None to aggregate the changes "
            "themselves"
        )
        for name, kinds in kinds_by_name:
            raise analysis.text.error(unset_kinds_message(name, kinds, "the SELECT", remedy), block.clause("FROM"))
    elif len(kinds_by_name) > 1:
        where_names = _names(analysis, block.clause("WHERE"), block.inner)
        others = [
            name for name, _ in kinds_by_name if name.casefold() not in {*where_names, options["row_kind"].casefold()}
        ]
        if others:
            raise analysis.text.error(
                f"the rows have the kinds {options['row_kind']} and {others[0]} of two changelogs, and a join of their "
                "changes is no join of their rows; read the rows that are left of one in its place: (SELECT k, f(v) "
                "FROM ... GROUP BY k), where f is an aggregate of foldflight, as a view",
                block.clause("FROM"),
            )
    return rows


def refuse_changes_as_rows(
    analysis: Analysis, query: ParsedQuery, edits: Edits, *, asks_with_rows: bool = False
) -> None:
    """Refuse what would take the changes of rows with kinds for rows.

    A block that names the column says itself what the kinds mean, and for those that read it, if its WHERE does.

    Args:
        analysis: The statement.
        query: The whole query.
        edits: The edits of the text.
        asks_with_rows: Whether a block that only one fold reads may be checked with the rows of the fold, of which
            Spark is asked in any case (`Analysis.kinds_below`).

    Raises:
        SqlError: At what would take changes for rows.
    """
    _Search(analysis, edits, asks_with_rows).run(query)


@dataclass
class _Search:
    """One search through a statement.

    Attributes:
        safe_queries: Queries, inner ones first, whose rows have no kinds, or whose WHERE names the kinds and so says
            which rows count.
        join_targets: Queries in whose rows a join looks for a match, directly or through other queries.
        is_kept: Whether a table or view keeps the rows of the statement for other statements.
    """

    analysis: Analysis
    edits: Edits
    asks_with_rows: bool
    safe_queries: set[int] = field(default_factory=set)
    join_targets: set[int] = field(default_factory=set)
    is_kept: bool = field(init=False)

    def __post_init__(self) -> None:
        text = self.analysis.text
        is_made = text.upper(0) in ("CREATE", "CACHE", "REPLACE")
        self.is_kept = is_made or insert_in(text, Span(0, len(text))) is not None

    def run(self, query: ParsedQuery) -> None:
        """Search all queries of a statement, inner ones first. Raises SqlError."""
        queries = list(query.walk())
        blocks = [(each, block) for each in queries for block in _blocks_with_rows(each)]
        consumers = {id(block): self._consumer(each, block) for each, block in blocks}
        has_calls = any(next(self._own_calls(block), None) for _, block in blocks)
        # A condition only looks for rows of a query in it. Rows of other queries are counted or compared where they are
        # read.
        counts = has_calls or self.is_kept or any(self._counts(each, consumers) for each in queries)
        looks = any(self._value_word(each) for each in queries)
        for each, block in blocks:
            for span, _ in self._consumed_relations(block, block.clause("FROM")):
                self._note_join_targets(each, block, span)
        merge = self._merge(query)
        if merge is not None:
            self._note_join_targets(query, merge, merge.clause("FROM"))
        for each in queries:
            for block in _blocks_with_rows(each):
                self._refuse_in_source(each, block)
                if next(self._own_calls(block), None) is not None:
                    continue
                is_join_target = id(each) in self.join_targets or (looks and self._may_be_looked_for(each))
                is_read = self.is_kept or (each.is_inner and (counts or is_join_target))
                if consumers[id(block)] is None and not is_read and not (counts and each.operators):
                    continue
                is_safe = self._reads_only(each, block.clause("FROM"), block.inner)
                reader = None if is_safe or consumers[id(block)] else self._reader_of(each, block)
                if reader is not None:
                    check = partial(self._refuse_block, each, block, None)
                    self.analysis.kinds_below[reader.span] = KindsBelow(block.clause("SELECT").stop, check)
                elif not is_safe:
                    is_safe = self._refuse_block(each, block, consumers[id(block)])
                if is_safe and each.is_sole(block) and not each.opaque:
                    self.safe_queries.add(id(each))
            self._refuse_limit(each)
            if each.operators:
                self._refuse_operators(each, is_read=counts or id(each) in self.join_targets)
            elif not each.blocks:
                self._refuse_table(each)
        if merge is not None:
            using = merge.clause("FROM").start - 1
            consumer = _Consumer("MERGE", Span(using, using + 1), _MERGE_LIVE_ROWS)
            self._refuse_relation(query, merge, merge.clause("FROM"), consumer)

    def _merge(self, query: ParsedQuery) -> Block | None:
        """Return MERGE as a block: FROM is its source, for whose rows it looks, and the rest may name the kinds."""
        text = self.analysis.text
        if "MERGE" not in text.words:
            return None
        begin = query.tables[-1].span.stop if query.tables else query.span.start
        body = Span(begin, query.span.stop)
        using = next((at for at in text.flat(body) if text.says(at, "USING")), None)
        if using is None or not text.says(begin, "MERGE"):
            return None
        on = next((at for at in text.flat(Span(using, body.stop)) if text.says(at, "ON")), body.stop)
        return Block(Span(on, body.stop), {"FROM": Span(using + 1, on)}, inner=query.inner)

    def _counts(self, query: ParsedQuery, consumers: Mapping[int, _Consumer | None]) -> bool:
        """Return whether a query counts or compares the rows of those that it reads."""
        if self._set_word(query) is not None or any(self._of_operator(each, query) for each in query.operators):
            return True
        for block in _blocks_with_rows(query):
            consumer = consumers[id(block)]
            words = {self.analysis.text.upper(index) for index in self.analysis.text.flat(block.clause("FROM"))}
            if words & {"SEMI", "ANTI", "PIVOT"} or (consumer and consumer.at != self._value_word(query)):
                return True
        return False

    def _may_be_looked_for(self, query: ParsedQuery) -> bool:
        """Return whether a query stands in a condition, or in a common table expression, which one may read."""
        each: ParsedQuery | None = query
        while each is not None:
            around = each.parent
            if self._value_word(each) or (around and any(table.query is each for table in around.tables)):
                return True
            each = around
        return False

    def _consumer(self, query: ParsedQuery, block: Block) -> _Consumer | None:
        """Return what takes the rows of a block for rows: in its items, or where the block stands."""
        text = self.analysis.text
        call = self._first_aggregate(self._calls(block, AGGREGATES))
        if call is not None:
            return _Consumer(self._of(call), call.head, _remedy_for(call))
        if block.quantifier == "DISTINCT":
            return _Consumer(
                "DISTINCT", Span(block.clause("SELECT").start - 1, block.clause("SELECT").start), _READ_LIVE_ROWS
            )
        if "GROUP BY" in block.clauses:
            start = block.clause("GROUP BY").start
            return _Consumer("GROUP BY", Span(start - 2, start), _READ_LIVE_ROWS)
        clauses = [block.clause(name) for name in ("SELECT", "QUALIFY")]
        window = next((call for each in clauses for call in self._windows(each, block.inner)), None)
        if window is not None:
            window_clauses = [query.tails["WINDOW"]] if "WINDOW" in query.tails else []
            return _Consumer(
                self._of(window),
                window.span,
                _WRITE_WINDOW_LATER,
                (window.span, block.clause("QUALIFY"), *window_clauses),
            )
        at = self._set_word(query) or self._value_word(query)
        if at is None:
            return None
        word = text.upper(at.start)
        is_scalar = word not in SETS and word not in ("IN", "EXISTS")
        return _Consumer("the query in an expression" if is_scalar else word, at, _READ_LIVE_ROWS)

    def _first_aggregate(self, calls: Iterator[ParsedCall]) -> ParsedCall | None:
        """Return the first call that aggregates rows. Spark's aggregates with OVER are windows."""
        own = self.analysis.catalog.names
        return next((each for each in calls if not each.is_over or each.name in own), None)

    def _windows(self, span: Span, skip: Collection[ParsedQuery]) -> Iterator[ParsedCall]:
        """Yield the calls with OVER of a range, without calls of foldflight's functions."""
        inside = {index for each in skip for index in each.span.indexes}
        for index in span.indexes:
            call = None if index in inside else call_at(self.analysis.text, index)
            if call is not None and call.is_over and call.name not in self.analysis.catalog.names:
                yield call

    def _is_final_result(self, query: ParsedQuery) -> bool:
        """Return whether the rows of a query are the result of the statement, which no view and no table keeps."""
        while query.parent is not None and query.is_part and not query.parent.is_union:
            query = query.parent
        return query.parent is None and not self.is_kept

    def _of(self, call: ParsedCall) -> str:
        return call.name if call.name in self.analysis.catalog.names else f"{call.name} of Spark"

    def _set_word(self, query: ParsedQuery) -> Span | None:
        """Return the word that compares the rows of a query's operands, if it is not UNION ALL."""
        text = self.analysis.text
        for index in text.flat(query.span) if query.is_union else ():
            if text.upper(index) in SETS and not text.says(index, "UNION", "ALL") and not text.says(index - 1, "."):
                return Span(index, index + 1)
        return self._set_word(query.parent) if query.parent is not None and query.is_part else None

    def _value_word(self, query: ParsedQuery) -> Span | None:
        """Return IN or EXISTS before a query, or its parenthesis if it is a value; None for a relation."""
        text, index, around = self.analysis.text, query.span.start - 1, query.parent
        if around is None or any(table.query is query for table in around.tables):
            return None
        if query.is_part:
            return self._value_word(around)
        while text.says(index - 1, "("):
            index -= 1
        before = text.upper(index - 1)
        if before in ("IN", "EXISTS"):
            return Span(index - 1, index)
        block = next((each for each in _blocks_with_rows(around) if query in each.inner), None)
        is_relation = block is not None and block.clause("FROM").holds(query.span)
        if block is None or is_relation:
            is_operator = index > 0 and text.tokens[index - 1].kind == "op" and before not in ("(", ",", "|>")
            is_value = is_operator or before in ("AND", "OR", "NOT", "ON", "WHERE", "SELECT", "EXTEND", "BETWEEN")
            return Span(index, index + 1) if is_value else None
        return Span(index, index + 1)

    def _own_calls(self, block: Block) -> Iterator[ParsedCall]:
        return self._calls(block, self.analysis.catalog.names)

    def _calls(self, block: Block, names: Collection[str]) -> Iterator[ParsedCall]:
        for name in ("SELECT", "HAVING", "QUALIFY"):
            yield from calls_in(self.analysis.text, block.clause(name), names, skip=block.inner, nested=True)

    def _kinds(self, query: ParsedQuery, sql: str) -> list[tuple[str, str]]:
        """Return the columns of kinds of the rows behind FROM. Raises what Spark refuses."""
        rows = f"SELECT * FROM {sql}"
        return _kinds_among(self.analysis.df(self.analysis.seeing(query, query.span.stop, rows, self.edits)).schema)

    def _reader_of(self, query: ParsedQuery, block: Block) -> Block | None:
        """Return the block with aggregates of foldflight that reads the rows of this one as they are, and no others."""
        around, text = query.parent, self.analysis.text
        if not self.asks_with_rows or around is None or query.tables or query.tails or not query.is_sole(block):
            return None
        for each in around.blocks:
            source = each.clause("FROM")
            is_alone = source.start == query.span.start - 1 and source.stop - text.partner[source.start] <= _ALIAS_MAX
            if is_alone and next(self._own_calls(each), None) is not None:
                return each
        return None

    def _refuse_block(
        self,
        query: ParsedQuery,
        block: Block,
        consumer: _Consumer | None,
        kinds_by_name: list[tuple[str, str]] | None = None,
    ) -> bool:
        """Refuse a block that leaves kinds out, and return whether its rows have none, or its WHERE names them."""
        try:
            if kinds_by_name is None:
                kinds_by_name = self._kinds(query, self.edits.render(block.clause("FROM")))
        except PLANNING_ERRORS:
            return False
        if not kinds_by_name:
            return True
        if consumer is None and self._keeps_kinds(query, block):
            return self._where_names_kinds(block, kinds_by_name)
        consumer = consumer or _Consumer(
            _LEAVES_OUT, block.clause("SELECT"), _KEEP_KINDS if self.is_kept else _SELECT_KINDS
        )
        kind_spans = (block.span,) if consumer.kind_spans is None else (block.clause("WHERE"), *consumer.kind_spans)
        named_columns = set[str]().union(*(_names(self.analysis, each, block.inner) for each in kind_spans))
        self._refuse(kinds_by_name, named_columns, consumer)
        return self._where_names_kinds(block, kinds_by_name)

    def _keeps_kinds(self, query: ParsedQuery, block: Block) -> bool:
        """Return whether the rows of a block have kinds. Its WHERE may refer to a query around it."""
        sql = f"SELECT {self.edits.render(block.clause('SELECT'))} FROM {self.edits.render(block.clause('FROM'))}"
        try:
            alone = self.analysis.df(self.analysis.seeing(query, block.span.start, sql, self.edits))
        except PLANNING_ERRORS:
            return False
        return bool(kinds_in(alone.schema))

    def _where_names_kinds(self, block: Block, kinds_by_name: Collection[tuple[str, str]]) -> bool:
        in_where = _names(self.analysis, block.clause("WHERE"), block.inner)
        return all(name.casefold() in in_where for name, _ in kinds_by_name)

    def _refuse(
        self, kinds_by_name: Collection[tuple[str, str]], named_columns: Collection[str], consumer: _Consumer
    ) -> None:
        for name, kinds in kinds_by_name:
            if name.casefold() not in named_columns:
                raise self.analysis.text.error(
                    unset_kinds_message(name, kinds, consumer.what, consumer.remedy), consumer.at
                )

    def _refuse_in_source(self, query: ParsedQuery, block: Block) -> None:
        """Refuse PIVOT and samples over changes, and joins that look for changes, or for their absence."""
        for span, consumer in self._consumed_relations(block, block.clause("FROM")):
            self._refuse_relation(query, block, span, consumer)
        if not self._is_final_result(query) or next(self._own_calls(block), None) is not None:
            self._refuse_samples(query, block)

    def _refuse_samples(self, query: ParsedQuery, block: Block) -> None:
        """Refuse TABLESAMPLE that leaves a part of the changes to what reads them."""
        text, source = self.analysis.text, block.clause("FROM")
        inside = {index for each in block.inner for index in each.span.indexes}
        for index in source.indexes:
            if index in inside or not text.says(index, "TABLESAMPLE", "(") or text.upper(index - 1) in ("AS", "."):
                continue
            begin = index
            while begin > source.start and text.upper(begin - 1) not in (",", "JOIN", "("):
                begin = text.partner[begin - 1] if text.says(begin - 1, ")") else begin - 1
            if begin < index:
                sample = _Consumer("TABLESAMPLE", Span(index, index + 1), _WRITE_LIMIT_LATER, ())
                self._refuse_relation(query, block, Span(begin, index), sample)

    def _consumed_relations(self, block: Block, source: Span) -> Iterator[tuple[Span, _Consumer]]:
        """Yield the relations of FROM that PIVOT takes for rows, or for which joins look, with what takes them."""
        text = self.analysis.text
        for index in text.flat(source):
            if text.says(index, "("):
                inner = Span(index + 1, text.partner[index])
                if all(each.span.start != inner.start for each in block.inner):  # joins in parentheses
                    yield from self._consumed_relations(block, inner)
            if text.says(index, "PIVOT", "("):
                yield Span(source.start, index), _Consumer("PIVOT", Span(index, index + 1), _WRITE_SELECT)
            if not text.says(index, "JOIN"):
                continue
            first = index
            while text.upper(first - 1) in _SIDES:
                first -= 1
            words = {text.upper(at) for at in range(first, index)}
            consumer = _Consumer(text.slice(Span(first, index + 1)).upper(), Span(first, index + 1), _READ_LIVE_ROWS)
            if words & {"SEMI", "ANTI", "LEFT", "FULL"}:
                after = (at for at in text.flat(Span(index + 1, source.stop)) if text.upper(at) in _AFTER_RELATIONS)
                yield Span(index + 1, next(after, source.stop)), consumer
            if words & {"RIGHT", "FULL"}:
                yield Span(source.start, first), consumer

    def _note_join_targets(self, query: ParsedQuery, block: Block, span: Span) -> None:
        """Note the queries that a part of FROM reads, in parentheses or by the names of common table expressions."""
        text = self.analysis.text
        inner_queries = [each for each in block.inner if span.holds(each.span)]
        for index in span.indexes:
            is_relation = index == span.start or text.upper(index - 1) in ("(", ",", "JOIN")
            table = self._table_named(query, index) if is_relation and text.tokens[index].is_name else None
            inner_queries += [table] if table is not None else []
        for each in inner_queries:
            if id(each) in self.join_targets:
                continue
            for inner in each.walk():
                self.join_targets.add(id(inner))
                for inner_block in _blocks_with_rows(inner):
                    self._note_join_targets(inner, inner_block, inner_block.clause("FROM"))

    def _refuse_relation(self, query: ParsedQuery, block: Block, span: Span, consumer: _Consumer) -> None:
        if self._reads_only(query, span, block.inner):
            return
        try:
            kinds_by_name = self._kinds(query, self.edits.render(span))
        except PLANNING_ERRORS:
            return
        kind_spans = block.span if consumer.kind_spans is None else block.clause("WHERE")
        self._refuse(kinds_by_name, _names(self.analysis, kind_spans, block.inner), consumer)

    def _refuse_limit(self, query: ParsedQuery) -> None:
        """Refuse LIMIT and OFFSET that leave a part of the changes to what reads them."""
        text = self.analysis.text
        name = next((each for each in _LIMITS if each in query.tails), None)
        if name is None or self._is_final_result(query) or text.says(query.tails[name].start, "ALL"):
            return
        block = query.blocks[0] if query.blocks and query.is_sole(query.blocks[0]) else None
        in_where = set[str]()
        try:
            if block is None:
                first, span = min(query.tails.items(), key=lambda tail: tail[1].start)
                kinds_by_name = self._kinds_of_query(query, span.start - len(first.split()))
            else:
                calls = self._calls(block, AGGREGATES | self.analysis.catalog.names)
                has_groups = "GROUP BY" in block.clauses or any(not call.is_over for call in calls)
                if has_groups or "FROM" not in block.clauses:
                    return  # of the groups
                kinds_by_name = self._kinds(query, self.edits.render(block.clause("FROM")))
                in_where = _names(self.analysis, block.clause("WHERE"), block.inner)
        except PLANNING_ERRORS:
            return
        at = query.tails[name].start - 1
        self._refuse(kinds_by_name, in_where, _Consumer(name, Span(at, at + 1), _WRITE_LIMIT_LATER))

    def _of_operator(self, span: Span, query: ParsedQuery) -> _Consumer | None:
        """Return what takes the rows before an operator of `|>` for rows."""
        text, word, at = self.analysis.text, self.analysis.text.upper(span.start), Span(span.start, span.start + 1)
        names = AGGREGATES | self.analysis.catalog.names
        call = self._first_aggregate(calls_in(text, span, names, skip=query.inner, nested=True))
        if call is not None:
            return _Consumer(self._of(call), call.head, _WRITE_SELECT)
        window = next(self._windows(span, query.inner), None)
        if window is not None:
            return _Consumer(self._of(window), window.span, _WRITE_WINDOW_LATER, (window.span,))
        if word in _LIMITS and not self._is_final_result(query):
            return _Consumer(word, at, _WRITE_LIMIT_LATER, ())
        is_set = word in SETS and not text.says(span.start, "UNION", "ALL")
        if word in ("AGGREGATE", "PIVOT") or is_set or text.says(span.start, "SELECT", "DISTINCT"):
            return _Consumer(word, at, _WRITE_SELECT)
        return None

    def _refuse_operators(self, query: ParsedQuery, *, is_read: bool) -> None:
        """Refuse operators behind `|>` that take changes for rows. What stands before each of them is a query."""
        text = self.analysis.text
        value = self._value_word(query) or self._set_word(query)
        for span in query.operators:
            consumer = self._of_operator(span, query)
            if consumer is None and value is not None and span == query.operators[0]:
                consumer = _Consumer(text.upper(value.start), value, _READ_LIVE_ROWS)
            drops = text.upper(span.start) == "SELECT" and is_read
            if consumer is None and not drops:
                continue
            try:
                kinds_by_name = self._kinds_of_query(query, span.start - 1)
                if consumer is None and self._kinds_of_query(query, span.stop):
                    continue
            except PLANNING_ERRORS:
                return
            named_columns = set[str]()
            for each in query.operators:
                is_before = each.stop <= span.start and text.upper(each.start) == "WHERE"
                is_anywhere = consumer is None or consumer.kind_spans is None
                if is_before or (is_anywhere and (each == span or value is not None)):
                    named_columns |= _names(self.analysis, each, query.inner)
            for kind_spans in consumer.kind_spans or () if consumer else ():
                named_columns |= _names(self.analysis, kind_spans, query.inner)
            remedy = _KEEP_KINDS if self.is_kept else _WRITE_SELECT
            self._refuse(kinds_by_name, named_columns, consumer or _Consumer(_LEAVES_OUT, span, remedy))

    def _kinds_of_query(self, query: ParsedQuery, stop: int) -> list[tuple[str, str]]:
        """Return the kinds of a query up to an index."""
        sql = self.edits.render(Span(query.span.start, stop))
        sql = sql if query.parent is None else self.analysis.seeing(query.parent, query.span.start, sql, self.edits)
        return list(kinds_in(self.analysis.df(sql).schema).items())

    def _refuse_table(self, query: ParsedQuery) -> None:
        """Refuse `TABLE t` where its rows are looked for or compared."""
        at = self._value_word(query) or self._set_word(query)
        if at is None or not self.analysis.text.says(query.span.start, "TABLE"):
            return
        try:
            kinds_by_name = self._kinds_of_query(query, query.span.stop)
        except PLANNING_ERRORS:
            return
        self._refuse(kinds_by_name, (), _Consumer(self.analysis.text.upper(at.start), at, _READ_LIVE_ROWS))

    def _reads_only(self, query: ParsedQuery, source: Span, queries: Collection[ParsedQuery]) -> bool:
        """Return whether all relations of FROM are safe queries, in parentheses or as common table expressions.

        Without this Spark would analyse a chain of common table expressions whole for each of its links.
        """
        text = self.analysis.text
        inner = {each.span.start - 1: each for each in queries if source.holds(each.span)}  # by their parenthesis
        for index in text.flat(source):
            if index != source.start and not text.says(index - 1, ",") and not text.says(index - 1, "JOIN"):
                continue
            inner_query = inner.get(index)
            if inner_query is None and not (text.says(index + 1, ".") or text.says(index + 1, "(")):
                inner_query = self._table_named(query, index)
            if inner_query is None or id(inner_query) not in self.safe_queries:
                return False
        return True

    def _table_named(self, query: ParsedQuery, index: int) -> ParsedQuery | None:
        """Return the query of the common table expression that a name stands for; None if this is not certain."""
        tokens = self.analysis.text.tokens
        name = tokens[index].name
        tables_named: list[ParsedQuery | None] = []
        each: ParsedQuery | None = query
        while each is not None:
            tables = [table.query for table in each.tables if tokens[table.span.start].name == name]
            tables_named += [None] * len(tables) if each.is_recursive else tables
            each = each.parent
        return (
            tables_named[0]
            if len(tables_named) == 1 and tables_named[0] is not None and tables_named[0].span.stop < index
            else None
        )


def _remedy_for(call: ParsedCall) -> str:
    """Return what to write for an aggregate of Spark, and how foldflight's own of this name is called."""
    if call.name not in Registry():
        return _WRITE_AGGREGATE
    return (
        f'{_WRITE_AGGREGATE}. register(spark, functions, {{{{"{call.name}": "my_{call.name}"}}}}) makes my_{call.name} '
        f"the {call.name} of foldflight"
    )


def _blocks_with_rows(query: ParsedQuery) -> list[Block]:
    return [block for block in query.blocks if "FROM" in block.clauses]


def _names(analysis: Analysis, span: Span, inner: Collection[ParsedQuery]) -> set[str]:
    """Return the words of a range, but not of queries in it, and not the columns that `* EXCEPT` drops."""
    text = analysis.text
    skip = {index for each in inner for index in each.span.indexes}
    for index in span.indexes:
        if text.says(index, "*", "EXCEPT", "("):
            skip.update(range(index + 3, text.partner[index + 2]))
    return {text.tokens[index].name.casefold() for index in span.indexes if index not in skip}


def _rows_and_columns(
    read_rows: Callable[[str], DataFrame], items: Mapping[str, str] | None
) -> tuple[DataFrame, list[st.StructField]]:
    """Return the rows of `read_checked_rows`, and all columns of the block."""
    if items is not None:
        computed_items = {name: text for name, text in items.items() if not _is_column(text, name)}
        rows = read_rows(_listed({**computed_items, "*": "*"}))
        names = rows.columns
        folded_names = [name.casefold() for name in names]
        # Another name may be ambiguous, or name a column which `*` leaves out: Spark is asked for its column.
        is_clear = all(name in names and folded_names.count(name.casefold()) == 1 for name in items)
        # `group_by` refuses rows with the kinds of several changelogs, of which the items may have one.
        if is_clear and len(_kinds_among(rows.schema)) <= 1:
            return rows, list(rows.schema)[len(computed_items) :]
    in_struct = f", struct(*) AS {quote_name(ALL_COLUMNS)}"
    rows = read_rows(in_struct if items is None else _listed(items) + in_struct)
    return rows, _fields_of([rows.schema[ALL_COLUMNS]], ALL_COLUMNS)


def _is_column(text: str, name: str) -> bool:
    """Return whether an item is a column that keeps its name, and no constant and no call without parentheses."""
    is_word = _WORD.fullmatch(text) is not None and text.lower() not in NO_COLUMNS
    return text == quote_name(name) or (text == name and is_word)


def _listed(items: Mapping[str, str]) -> str:
    """Return items of a SELECT, given their texts by their names."""
    return ", ".join(text if text == "*" else f"{text} AS {quote_name(name)}" for name, text in items.items())


def _fields_of(columns: Iterable[st.StructField], name: str) -> list[st.StructField]:
    """Return the members of the structs among columns with a name."""
    types = [each.dataType for each in columns if each.name == name]
    return [member for each in types if isinstance(each, st.StructType) for member in each]


def _kinds_among(columns: Iterable[st.StructField]) -> list[tuple[str, str]]:
    return [(name, kinds) for each in columns for name, kinds in kinds_in([each]).items()]
