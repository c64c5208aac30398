"""The `group_by` plan of one SELECT block: `group_by(...).agg(...)` between two queries of Spark.

    SELECT keys, arguments, conditions FROM ... WHERE ...     Spark
    group_by(keys).agg(...)                                   foldflight
    SELECT items FROM result WHERE having                     Spark

Names are never resolved here. Keys, arguments and conditions are evaluated by Spark where they stand. Where an item
contains a key, the key is replaced by a column of the result, and Spark is asked whether the item with the key put back
is the same expression (`same_plan`). Whatever cannot be proven raises `UnsupportedError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client import Aggregate, FunctionHandle
from foldflight.client.functions import OrderKey
from foldflight.errors import FoldflightError, RejectedError
from foldflight.spark.batch import Text as SqlText
from foldflight.spark.columns import quote_name
from foldflight.spark.grouping import PlannedQuery, group_by
from foldflight.spark.scans.predicate import NO_COLUMNS
from foldflight.spark.scans.scan import Scan, view_of
from foldflight.spark.versions.sessions import condition_of, same_plan
from foldflight.spark.windows import WATERMARK, WINDOW_END, WINDOW_START, Window
from foldflight.sql.analysis import (
    KEYWORDS,
    SPARK_ERRORS,
    Analysis,
    Item,
    UnsupportedError,
    correlation_error,
    has_calls,
    item_names,
    named_items,
    spark_message,
    star_of,
    written_items,
)
from foldflight.sql.blocks import Block, ParsedQuery
from foldflight.sql.calls import AGGREGATES, ParsedCall, calls_in, orderings
from foldflight.sql.catalog import type_ddl
from foldflight.sql.changes import read_checked_rows
from foldflight.sql.list_plan import (
    arguments_of,
    calls_of_block,
    declared_types,
    guard_calls,
    names_of,
    nondeterministic_cte_read_twice,
)
from foldflight.sql.over import BlockOver, BlockPlan
from foldflight.sql.text import Edits, Span, Text, Token, names_in
from foldflight.sql.windows import TIME, WindowedTable, window_of_call

EQUIVALENT_BUILTINS: Final = {
    "any": "bool_or",
    "avg": "avg",
    "bool_and": "bool_and",
    "bool_or": "bool_or",
    "count": "count",
    "every": "bool_and",
    "max": "max",
    "mean": "avg",
    "min": "min",
    "some": "bool_or",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "stddev_pop": "stddev_pop",
    "stddev_samp": "stddev_samp",
    "sum": "sum",
    "var_pop": "var_pop",
    "var_samp": "var_samp",
    "variance": "var_samp",
}
"""Spark's aggregates that foldflight has, too, with the same results and types."""

# Over these types the twins are known to have Spark's types; twins for numbers take nothing else.
_SURE_TYPES: Final = (
    st.NumericType,
    st.StringType,
    st.BooleanType,
    st.DateType,
    st.TimestampType,
    st.TimestampNTZType,
    st.BinaryType,
)
_OF_ANY_TYPE: Final = ("count", "max", "min", "bool_and", "bool_or")
_WINDOW_CALLS: Final = ("window", "session_window")
_WINDOW_PATHS: Final = tuple((name,) for name in _WINDOW_CALLS)
_OWN_NAMES: Final = (WINDOW_START, WINDOW_END, "row_kind", "dead_letter", TIME)
_WATERMARK_REMEDY: Final = (
    "write FROM t WATERMARK time DELAY OF INTERVAL '10' SECONDS, or set it where the stream is read: "
    "df.withWatermark('time', '10 seconds')"
)
_ITEM_CLAUSES: Final = ("SELECT", "HAVING", "QUALIFY")
# An item that is a column, with the name of the column of the rows.
_PLAIN_ITEM: Final = re.compile(r"(?:([A-Za-z_]\w*)|`([^`]+)`) AS `((?:[^`]|``)+)`", re.ASCII)
_LIMIT: Final = re.compile(r"\d{1,9}", re.ASCII)
_COMPARISONS: Final = frozenset(["=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="])
_QUALIFIED: Final = 2  # the names of a column with that of its table
_PREDICATES: Final = (("HAVING", "WHERE"), ("QUALIFY", "QUALIFY"))


@dataclass(frozen=True)
class _Key:
    """One key of GROUP BY.

    Args:
        span: Its tokens.
        tokens: The same in a comparable form.
        path: The names of a reference to a column; empty for another expression.
        sql: Its text, with the edits of inner queries.
        name: The name of its column in the rows.
        result_sql: The expression that stands for it over the result.
        window: The windows that it stands for, in a stream.
    """

    span: Span
    tokens: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    sql: str
    name: str
    result_sql: str
    window: Window | None = None


class _Names:
    """Names for columns, unique without regard to case: texts of users, so that errors show what they wrote."""

    def __init__(self) -> None:
        self._used_names = {name.casefold() for name in _OWN_NAMES}

    def new(self, text: str) -> str:
        text = re.sub(r"\s+", " ", text)
        name, number = text, 2
        while name.casefold() in self._used_names:
            name, number = f"{text} ({number})", number + 1
        self._used_names.add(name.casefold())
        return name


@dataclass
class BlockFold:
    """Plans the fold of one block.

    Args:
        analysis: The statement.
        query: The query of the block.
        block: The block.
        edits: The edits of the `group_by` plan so far: queries inside of this block have been planned.
        tables: The windowing table functions of the statement.
        options: Further options of `group_by`.
        functions: A function whose connection the twins of built-in aggregates use, for a block without calls of ours.
    """

    analysis: Analysis
    query: ParsedQuery
    block: Block
    edits: Edits
    tables: Sequence[WindowedTable]
    options: Mapping[str, Any] = field(default_factory=dict)
    functions: FunctionHandle | None = None
    _names: _Names = field(default_factory=_Names)
    _is_streaming: bool | None = None
    _analysed_rows: DataFrame | None = None
    _is_filtered: bool = True  # whether the analysed rows have passed WHERE
    _scan: Scan | None = None

    def plan_block(self, list_plan_df: Callable[[], DataFrame], *, is_last: bool) -> BlockPlan:
        """Return the folded block.

        A plain block needs no more than the types of its rows. For another one Spark is asked for the names and types
        of its columns, and whether it accepts the block at all: what the `collect_list` plan of it is.

        Args:
            list_plan_df: Returns the `collect_list` plan of the block.
            is_last: Whether no block that is folded later may read it.

        Raises:
            UnsupportedError: If the block cannot be folded with this plan, or it is not proven to mean the same.
            FoldflightError: For a stream that cannot be folded.
        """
        if self.query.opaque:
            raise UnsupportedError(f"it is a query with {self.query.opaque}")
        ranges = {**self.block.clauses, **self.query.tails}
        empty = next((name for name, span in ranges.items() if span.is_empty), None)
        if empty is not None:
            raise UnsupportedError(f"{empty}, read as a keyword, has nothing behind it")
        cte_name = nondeterministic_cte_read_twice(self.analysis, self.edits, self.query, self.block)
        if cte_name:
            raise UnsupportedError(
                f"it reads {cte_name}, whose rows differ each time, and which is read elsewhere, too"
            )
        if self._is_correlated():
            raise correlation_error()
        own = calls_of_block(self.analysis, self.query, self.block)
        if any(call.is_over for call in own):
            return self._over(own, list_plan_df)
        block_items = written_items(self.analysis, self.block)
        above = None if block_items is None else self._above(block_items, own)
        is_plain = above is not None and above.is_plain
        if above is None or not is_plain:
            self._names = _Names()
            above = self._above(self._listed_items(list_plan_df()), own)
        source, rows, aggregates = self._rows(above.keys, above.uses)
        is_plain = is_plain and self._has_sure_types(rows, above.uses, aggregates)
        group_plan, result = self._group(source, rows, above.keys, aggregates, is_last=is_last)
        above.prove(group_plan.types)
        columns = list(group_plan.types) if result is None else result.columns
        items = above.items_of(columns)
        if result is None and items is not None and is_plain:
            sql = group_plan.text(source, items)
        else:
            relation = f"({group_plan.text(source)})" if result is None else self.analysis.add_view(result)
            sql = (
                above.sql(relation, columns)
                if is_plain
                else above.checked_sql(relation, columns, list_plan_df().schema)
            )
        choice, is_whole = group_plan.query.lift_choice, self.query.is_whole(self.block)
        lift_text = "" if self.is_streaming else f"; rows are {'' if choice.holds else 'not '}lifted: {choice.why}"
        if group_plan.reader:
            lift_text += f"; reader: {group_plan.read_by}"
        return BlockPlan(
            sql,
            above.tails,
            "fold",
            f"group by {', '.join(key.name for key in above.keys) or 'nothing (one group)'}; "
            f"aggregates: {', '.join(aggregates)}{lift_text}",
            self.is_streaming,
            "row_kind" in columns,
            None if result is None or items is None or not is_whole else above.steps(result, items),
        )

    def _is_correlated(self) -> bool:
        """Return whether WHERE is known to compare columns of the block around.

        Otherwise Spark tells with the rows, by an error, which takes it longer. It is asked here if the block around
        reads something that this one does not. What is a column of neither may be a variable of the session.
        """
        text, query, below = self.analysis.text, self.query, partial(self.analysis.below, is_filtered=False)
        around = next((each for each in query.parent.blocks if query in each.inner), None) if query.parent else None
        if query.parent is None or around is None or not query.may_be_correlated(text):
            return False
        references = list(dict.fromkeys(_compared_columns(text, self.block.clause("WHERE"))))
        if not references or names_of(text, around.clause("FROM")) <= names_of(text, self.block.clause("FROM")):
            return False
        try:
            outer = self.analysis.outer_references(partial(below, query, self.block, edits=self.edits), references)
            columns = self.analysis.df(below(query.parent, around, "*", self.edits)).columns if outer else ()
        except SPARK_ERRORS:
            return False
        names = {name.strip("`").casefold() for _, name in outer}
        return not names.isdisjoint(each.casefold() for each in columns)

    def _listed_items(self, list_plan_df: DataFrame) -> list[Item]:
        """Return the items, given the `collect_list` plan."""
        items = self.analysis.text.split(self.block.clause("SELECT"))
        names = item_names(self.analysis, self.block, list_plan_df.columns)
        if len(names) != len(items):
            raise UnsupportedError("an item that makes several columns")
        return named_items(self.analysis, items, names)

    def _above(self, items: Sequence[Item], own: Sequence[ParsedCall]) -> _OuterSelect:
        if any(star_of(self.analysis.text, item.body) is not None for item in items):
            raise UnsupportedError("an item that makes several columns")
        self._check_correlation()
        keys = self._keys([item.body for item in items], [item.name for item in items])
        return _OuterSelect(self, items, keys, self._uses(own))

    def _over(self, own: Sequence[ParsedCall], list_plan_df: Callable[[], DataFrame]) -> BlockPlan:
        """Return the block with its calls with OVER computed. Raises UnsupportedError."""
        table = self._table()
        if self.options.get("row_kind"):
            raise UnsupportedError(
                "OVER over rows with kinds",
                "aggregate in an inner SELECT, and write OVER over its result: SELECT *, rank() OVER (ORDER BY s) FROM "
                "(SELECT k, f(v) AS s FROM changes GROUP BY k)",
            )
        if self.options.get("plan") == "lifted":
            raise UnsupportedError("OVER is not lifted")
        options = {name: value for name, value in self.options.items() if name not in ("emit", "plan", "groups")}
        options = options if options and self.is_streaming else {}
        others = [name for name in options if name not in ("buckets", "idle")]
        if others:
            raise UnsupportedError(f"the option {others[0]}, which a stream with OVER does not have")
        if table is not None and not table.has_equivalent:
            raise table.misuse_error(self.analysis.text)
        block_over = BlockOver(
            self.analysis,
            self.query,
            self.block,
            self.edits,
            self._names.new,
            self._aggregate,
            self._cast_items,
            options,
            self.options,
        )
        return block_over.plan_block(own, list_plan_df)

    def _check_correlation(self) -> None:
        """Refuse queries among the items that refer to the rows of the block: their names mean other columns above."""
        for name in ("SELECT", "HAVING", "QUALIFY"):
            for inner in self.block.inner:
                if not self.block.clause(name).holds(inner.span):
                    continue
                alone = self.analysis.seeing(
                    self.query, self.block.span.start, f"SELECT * FROM ({self.edits.render(inner.span)})", self.edits
                )
                if not self.analysis.resolves(alone):
                    raise UnsupportedError("a correlated subquery among the items")

    def _keys(self, bodies: Sequence[Span], names: Sequence[str]) -> list[_Key]:
        keys: list[_Key] = []
        for span in self._key_spans(bodies, names):
            tokens = self.analysis.text.normal(span)
            if not any(key.tokens == tokens for key in keys):
                keys.append(self._key(span, tokens))
        return keys

    def _key_spans(self, bodies: Sequence[Span], names: Sequence[str]) -> Iterator[Span]:
        """Yield the expressions of GROUP BY, with ordinals and aliases replaced by the items that they mean."""
        text, clause = self.analysis.text, self.block.clause("GROUP BY")
        if {text.upper(index) for index in text.flat(clause)} & {"ROLLUP", "CUBE", "SETS"}:
            raise UnsupportedError(
                "GROUPING SETS, ROLLUP or CUBE: a row is in several groups",
                "write a SELECT ... GROUP BY for each of the grouping sets, with UNION ALL between them",
            )
        if len(clause.indexes) == 1 and text.says(clause.start, "ALL") and not self._columns_among(["`all`"]):
            yield from (span for span in bodies if not self._aggregates(span))
            return
        aliases = {name.lower(): body for name, body in zip(names, bodies, strict=True)}
        spans = text.split(clause)
        words = {text.tokens[span.start] for span in spans if len(span.indexes) == 1}
        unclear = [word.text for word in words if word.is_name and self._is_other(word, aliases)]
        columns = self._columns_among(unclear)
        for span in spans:
            token = text.tokens[span.start]
            if len(span.indexes) > 1:
                yield span
            elif token.kind == "number" and token.text.isdigit():
                self._refuse_unless("spark.sql.groupByOrdinal")
                if not 1 <= int(token.text) <= len(bodies):
                    raise UnsupportedError(f"the position {token.text} in GROUP BY")
                yield bodies[int(token.text) - 1]
            elif token.text in unclear and token.text not in columns:
                self._refuse_unless("spark.sql.groupByAliases")
                yield aliases[token.name.lower()]
            else:
                yield span

    def _refuse_unless(self, setting: str) -> None:
        """Refuse what means a number or a column in a session without this setting."""
        if self.analysis.spark.conf.get(setting) == "false":
            raise UnsupportedError(f"GROUP BY without {setting}")

    def _is_other(self, word: Token, aliases: Mapping[str, Span]) -> bool:
        """Return whether a word is the alias of an item that is not the same word: it may mean this, or a column."""
        body = aliases.get(word.name.lower())
        return body is not None and self.analysis.text.slice(body) != word.text

    def _columns_among(self, names: Sequence[str]) -> Sequence[str]:
        """Return which of these names are columns of the block's rows."""
        below = partial(self.analysis.below, self.query, self.block, edits=self.edits)
        if not names:
            return names
        try:
            others = self.analysis.outer_references(partial(below, is_filtered=False), [("", name) for name in names])
        except SPARK_ERRORS:
            return [name for name in names if self.analysis.resolves(below(name))]
        return [name for name in names if ("", name) not in others]

    def _aggregates(self, span: Span) -> bool:
        names = self.analysis.catalog.names | AGGREGATES
        calls = calls_in(self.analysis.text, span, names, skip=self.block.inner, nested=True)
        return any(not call.is_over for call in calls)

    def _key(self, span: Span, tokens: tuple[tuple[str, str], ...]) -> _Key:
        text = self.analysis.text
        path, sql, table = text.path(span), self.edits.render(span), self._table()
        if path[-1:] in ((WINDOW_START,), (WINDOW_END,)) and table is not None and self._groups_by(table):
            return _Key(span, tokens, path, sql, path[-1], path[-1], table.window)
        calls = list(calls_in(text, Span(span.start, span.start + 1), _WINDOW_CALLS))
        if calls and calls[0].span.stop == span.stop:
            if self.is_streaming:
                window = window_of_call(text, calls[0])
                result_sql = f"named_struct('start', {WINDOW_START}, 'end', {WINDOW_END})"
                return _Key(span, tokens, (calls[0].name,), sql, calls[0].name, result_sql, window)
            path = (calls[0].name,)
        name = self._names.new(path[-1] if path else text.slice(span))
        return _Key(span, tokens, path, sql, name, quote_name(name))

    def _table(self) -> WindowedTable | None:
        start = self.block.clause("FROM").start
        return next((table for table in self.tables if table.span.start == start), None)

    def _groups_by(self, table: WindowedTable) -> bool:
        """Return whether `group_by` makes the windows: in streams, and where Spark has no such windows."""
        return not table.has_equivalent or self.is_streaming

    @property
    def is_streaming(self) -> bool:
        """Whether the block reads a stream."""
        if self._is_streaming is None and self._analysed_rows is not None:
            self._is_streaming = self._analysed_rows.isStreaming
        elif self._is_streaming is None:
            table = self._table()
            if table is None:
                sql = self.analysis.below(self.query, self.block, "1", self.edits)
            else:
                rows = f"SELECT 1 FROM {self.edits.render(table.relation)}"
                sql = self.analysis.seeing(self.query, self.block.span.start, rows, self.edits)
            try:
                self._is_streaming = self.analysis.df(sql).isStreaming
            except SPARK_ERRORS as error:
                raise UnsupportedError(f"Spark refuses its rows: {spark_message(error)}") from None
        return self._is_streaming

    def _uses(self, own: Sequence[ParsedCall]) -> dict[ParsedCall, str]:
        """Return the aggregates with the names of their outputs: ours, and Spark's that have twins."""
        analysis = self.analysis
        spans = [self.block.clause(name) for name in ("SELECT", "HAVING", "QUALIFY")]
        spans += list(self.query.tails.values()) if self.query.is_sole(self.block) else []
        inside = {index for call in own for index in call.span.indexes}
        calls = list(own)
        skip = [*self.block.inner, *self.query.inner]
        for span in spans:
            for call in calls_in(analysis.text, span, AGGREGATES - analysis.catalog.names, skip=skip, nested=True):
                if call.span.start in inside or call.is_over:
                    continue
                if call.name not in EQUIVALENT_BUILTINS or call.is_within or call.order or len(call.arguments) != 1:
                    raise _of_spark(call)
                if any(other.span.holds(call.span) for other in calls):
                    raise UnsupportedError("an aggregate in an aggregate")
                calls.append(call)
        outputs: dict[Any, str] = {}
        uses: dict[ParsedCall, str] = {}
        for call in calls:
            tokens = analysis.text.normal(call.span)
            if tokens not in outputs:
                outputs[tokens] = self._names.new(analysis.text.slice(call.span))
            uses[call] = outputs[tokens]
        return uses

    def _rows(
        self, keys: Sequence[_Key], uses: Mapping[ParsedCall, str]
    ) -> tuple[SqlText, DataFrame, dict[str, Aggregate]]:
        """Return the input of the fold, as a query and analysed, and the aggregates by output.

        The analysed query is without WHERE if `_is_filtered` is false: then it has only the types of the rows.
        """
        analysis, text = self.analysis, self.analysis.text
        edits = self.edits
        select = {key.name: key.sql for key in keys if key.window is None}
        table = self._table()
        bounds = {key.path[-1] for key in keys if key.window is not None}
        if table is not None and not table.has_equivalent and bounds != {WINDOW_START, WINDOW_END}:
            raise table.misuse_error(self.analysis.text)
        if bounds:
            if table is not None:
                edits = edits.copy()
                edits.replace(table.span, edits.render(table.relation))
                select[TIME] = text.slice(table.time)
            else:
                select[TIME] = edits.render(self._time(keys))
        if row_kind := self.options.get("row_kind"):
            select["row_kind"] = quote_name(row_kind)
        arguments = _Arguments(self.analysis, edits, self._names)
        aggregates: dict[str, Aggregate] = {}
        for call, output in uses.items():
            if output not in aggregates:
                aggregates[output] = self._aggregate(call, partial(arguments.column, call))
        select |= arguments.select()
        if len({id(each.transport) for each in aggregates.values()}) > 1:
            raise UnsupportedError("its functions come from several connections")
        select = select or {"one": "1"}
        items = [f"{sql} AS {quote_name(name)}" for name, sql in select.items()]
        source = SqlText(
            analysis.rows_of(self.block, ", ".join(items), edits),
            analysis.source_of(self.block, edits),
            {} if bounds or self.block.hints else self._expressions(keys, arguments),
        )
        self._is_filtered = bool(bounds) or not self._may_be_text(aggregates.values())
        before = ", ".join(items) if bounds else ""  # windows get columns of their own, with names of any others
        try:
            of_types = edits.copy()
            rows = read_checked_rows(
                analysis,
                self.block,
                self.options,
                lambda more: self.df_of(
                    analysis.rows_of(self.block, before + more, of_types, filtered=self._is_filtered)
                ),
                of_types,
                None if bounds else select,
            )
        except SPARK_ERRORS as error:
            self._refuse_row_kind()
            raise UnsupportedError(f"Spark refuses its rows: {spark_message(error)}") from None
        self._analysed_rows = rows
        self._check_compared(rows, uses, aggregates)
        calls = {output: call for call, output in uses.items()}
        casts, fitted_aggregates = self._cast_items(
            rows, {output: (calls[output], use) for output, use in aggregates.items()}
        )
        if not casts:
            self._scan = self._scan_of(source.sql, rows, items)
            return source, rows, fitted_aggregates
        return source.selectExpr("*", *casts), rows.selectExpr("*", *casts), fitted_aggregates

    def _expressions(self, keys: Sequence[_Key], arguments: _Arguments) -> dict[str, str]:
        """Return the columns of the rows as expressions over FROM; none if some can only be evaluated there.

        An aggregation over FROM names keys several times, so they are columns, and no words that Spark reads as values.
        """
        texts = arguments.expressions()
        if texts is None or any(not key.path or NO_COLUMNS & {*key.path} for key in keys):
            return {}
        return {quote_name(name): sql for name, sql in [*((key.name, key.sql) for key in keys), *texts.items()]}

    def _may_be_text(self, aggregates: Collection[Aggregate]) -> bool:
        """Return whether Spark probably aggregates the rows, so that only their types are needed before.

        Spark tells these without WHERE, whose analysis takes as long as the rest. A query in an expression is left out:
        its WHERE may refer to a query around it, and then the block is not folded.
        """
        source, text = self.block.clause("FROM"), self.analysis.text
        if self.options.get("row_kind") or self.options.get("plan") == "fold" or "WHERE" not in self.block.clauses:
            return False
        if any(use.is_distinct or use.order for use in aggregates) or source.is_empty:
            return False
        if view_of(self.analysis.spark, text.tokens[source.start].name) is not None:
            return False
        names = frozenset(use.function.name for use in aggregates)
        return names not in self.analysis.catalog.folded_together and not self.query.may_be_correlated(text)

    def _scan_of(self, source: str, rows: DataFrame, items: Sequence[str]) -> Scan | None:
        """Return the scan with the rows of the block, if it reads only columns of the view of one."""
        span = self.block.clauses.get("FROM")
        if span is None or len(span.indexes) != 1 or self.block.hints:
            return None
        view = view_of(rows.sparkSession, self.analysis.text.tokens[span.start].name)
        if view is None or self.is_streaming:
            return None
        if self.analysis.seeing(self.query, self.block.span.start, source, self.edits) != source:
            return None  # a common table expression has the name
        names = {}
        for item in map(_PLAIN_ITEM.fullmatch, items):
            if item is None or (item[1] or item[2]) not in view.columns or (item[1] or "").lower() in NO_COLUMNS:
                return None
            names[item[3].replace("``", "`")] = item[1] or item[2]
        where = self.block.clauses.get("WHERE")
        return view.narrow(rows, names, None if where is None else self.edits.render(where))

    def df_of(self, sql: str) -> DataFrame:
        """Have Spark analyse a query that stands in the place of the block. Raises Spark's errors."""
        return self.analysis.df(self.analysis.seeing(self.query, self.block.span.start, sql, self.edits))

    def _cast_items(
        self, rows: DataFrame, uses: Mapping[str, tuple[ParsedCall, Aggregate]]
    ) -> tuple[list[str], dict[str, Aggregate]]:
        """Return items with the arguments in the types that CREATE AGGREGATE declares, and the uses over these.

        Raises:
            SqlError: For an argument that does not fit.
            UnsupportedError: For a type that is not passed to Python.
        """
        casts: dict[str, str] = {}
        fitted_aggregates = {}
        for output, (call, use) in uses.items():
            entry = self.analysis.catalog.entries.get(call.name)
            types = entry.types if entry is not None and entry.is_declared else None
            names = [str(each) for each in use.columns]
            argument_types = [rows.schema[name].dataType for name in names] if types else []
            renamed_columns = {}
            if entry is not None and types and names:
                wanted_types = declared_types(self.analysis, entry, call, argument_types)
                for name, type_ in zip(names, wanted_types, strict=True):
                    if type_ is not None:
                        renamed_columns[name] = f"{name} as {type_.simpleString()}"
                        casts[renamed_columns[name]] = f"CAST({quote_name(name)} AS {type_ddl(type_)})"
            order = tuple(replace(key, column=renamed_columns.get(str(key.column), key.column)) for key in use.order)
            fitted_aggregates[output] = replace(
                use, columns=tuple(renamed_columns.get(name, name) for name in names), order=order
            )
        return [f"{cast} AS {quote_name(name)}" for name, cast in casts.items()], fitted_aggregates

    def _has_sure_types(
        self, rows: DataFrame, uses: Mapping[ParsedCall, str], aggregates: Mapping[str, Aggregate]
    ) -> bool:
        """Return whether Spark's aggregates are over types for which their twins are known to give the same types."""
        for call, output in uses.items():
            if call.name in self.analysis.catalog.entries:
                continue
            sure = _SURE_TYPES if EQUIVALENT_BUILTINS[call.name] in _OF_ANY_TYPE else st.NumericType
            if not all(isinstance(rows.schema[str(name)].dataType, sure) for name in aggregates[output].columns):
                return False
        return True

    def _refuse_row_kind(self) -> None:
        """Refuse the option `row_kind` if Spark cannot resolve it over the rows."""
        row_kind = self.options.get("row_kind")
        if not row_kind:
            return
        below = partial(self.analysis.below, self.query, self.block, quote_name(row_kind), self.edits)
        try:
            self.analysis.df(below())
        except SPARK_ERRORS as error:
            source, condition = self.block.clause("FROM"), condition_of(error) or ""
            if condition.startswith("AMBIGUOUS"):
                raise self.analysis.text.error(
                    f"row_kind={row_kind!r} names columns of several relations here: {spark_message(error)} A join of "
                    "the changes of two changelogs is no join of their rows; read the rows that are left of one in its "
                    "place: JOIN (SELECT k, f(v) FROM changes GROUP BY k) USING (k), where f is an aggregate of "
                    "foldflight, as a view",
                    source,
                ) from None
            if condition.startswith("UNRESOLVED_COLUMN") and self.analysis.resolves(below(is_filtered=False)):
                if self.query.parent is not None:
                    raise correlation_error() from None  # if it is no column that there is not, which Spark tells
                return
            raise self.analysis.text.error(
                f"row_kind={row_kind!r} names no column of these rows: {spark_message(error)}", source
            ) from None

    def _check_compared(
        self, rows: DataFrame, uses: Mapping[ParsedCall, str], aggregates: Mapping[str, Aggregate]
    ) -> None:
        """Refuse Spark's aggregates that compare collated texts, which a fold compares by bytes, or nested values."""
        for call, output in uses.items():
            is_compared = call.distinct or call.name in ("min", "max")
            if call.name in self.analysis.catalog.entries or not is_compared:
                continue
            types = [rows.schema[str(name)].dataType for name in aggregates[output].columns]
            if any(" collate " in each.simpleString() for each in types):
                raise UnsupportedError(f"Spark's {call.name} compares texts by their collation")
            if any(isinstance(each, (st.StructType, st.ArrayType)) for each in types):
                raise UnsupportedError(f"Spark's {call.name} compares structs or arrays")

    def _aggregate(self, call: ParsedCall, column: Any) -> Aggregate:
        """Return the use of a function that a call is."""
        entry = self.analysis.catalog.entries.get(call.name)
        if entry is not None:
            arguments, literals = arguments_of(self.analysis, call)
            try:
                use = entry.handle(*map(column, arguments), **literals)
            except RejectedError as error:
                raise self.analysis.text.error(error.message, call.head, code=error.code) from None
        else:
            beside = next(iter(calls_of_block(self.analysis, self.query, self.block)), None)
            handle = self.functions if beside is None else self.analysis.catalog.entries[beside.name].handle
            twin = handle and self.analysis.catalog.twin(EQUIVALENT_BUILTINS[call.name], handle)
            if not twin:
                raise _of_spark(call)
            is_all = self.analysis.text.slice(call.arguments[0]) == "*"
            if is_all and call.distinct:
                raise UnsupportedError("Spark's count(DISTINCT *), whose arguments are all columns")
            use = twin() if is_all else twin(column(call.arguments[0]))
        if call.condition is not None:
            use = use.where(column(call.condition))
        order = tuple(OrderKey(column(each.span), each.descending, each.nulls_first) for each in call.order)
        use = replace(use, order=order)
        return use.distinct() if call.distinct else use

    def _group(
        self,
        source: SqlText,
        rows: DataFrame,
        keys: Sequence[_Key],
        aggregates: Mapping[str, Aggregate],
        *,
        is_last: bool,
    ) -> tuple[PlannedQuery, DataFrame | None]:
        """Return the plan of the fold, and its result; None if it is a part of the text of the statement.

        Spark analyses a text in a time that grows with the square of its depth, so what other folds read is none,
        unless it is short: the view of a result takes Spark twice as long as analysing such a text again.
        """
        options = dict(self.options)
        options.pop("idle", None)  # is for the OVER of the statement
        window = next((key.window for key in keys if key.window is not None), None)
        if window is not None:
            options["window"] = window
        # `group_by` asks Spark whether rows are a stream. Here it is only asked where that decides something before.
        if "emit" in options and not self.is_streaming:
            options.pop("emit")
        elif options.get("plan") == "fold" and self.is_streaming:
            options.pop("plan")
        if options.get("row_kind"):
            options["row_kind"] = "row_kind"
        if options.get("emit") == "append" and self.is_streaming:
            self._check_closing(rows, keys)
        if "HAVING" in self.block.clauses and options.get("emit", "update") == "update" and self.is_streaming:
            raise self.analysis.text.error(
                "HAVING over a stream of updates would leave groups in the sink that no longer pass; write EMIT "
                "CHANGES, EMIT ON WINDOW CLOSE, or filter where the result is read",
                self.block.clause("HAVING"),
            )
        names = [key.name for key in keys if key.window is None]
        index = self.block.span if window is None else self._window_span(keys)
        try:
            grouped_frame = group_by(self._scan or rows, names, **options)
            self._is_streaming = grouped_frame.stream is not None
            index = self.block.span
            group_plan = grouped_frame.plan_query(**aggregates)
            if not self._is_filtered and (not group_plan.is_of_spark or group_plan.query.groups is not None):
                names_together = frozenset(use.function.name for use in aggregates.values())
                self.analysis.catalog.folded_together.add(names_together)
                self._is_filtered = True
                return self._group(source, self.df_of(source.sql), keys, aggregates, is_last=is_last)
            if window is not None or not group_plan.has_plain_rows:
                return group_plan, group_plan.result()
            if not group_plan.is_text:
                return group_plan, group_plan.result(lambda: self.df_of(group_plan.text(source)))
            text = group_plan.text(source)
            return group_plan, None if is_last or self._is_short(text, source.sql) else self.df_of(text)
        except FoldflightError as error:
            if self.is_streaming or window is not None:
                raise self._locate_error(error, index) from None
            raise UnsupportedError(str(error).split("\n", maxsplit=1)[0]) from None
        except SPARK_ERRORS as error:
            raise UnsupportedError(f"Spark refuses its result: {spark_message(error)}") from None

    def _is_short(self, text: str, rows: str) -> bool:
        """Return whether the text of the fold is not much longer than that of its rows, which are those of tables."""
        around = self.analysis.seeing(self.query, self.block.span.start, text, self.edits)
        return len(text) < 3 * len(rows) and not self.block.inner and around == text

    def _window_span(self, keys: Sequence[_Key]) -> Span:
        """Return the tokens that define the windows: the table function, or the call of `window`."""
        table = self._table()
        return table.span if table is not None else next(key.span for key in keys if key.window is not None)

    def _time(self, keys: Sequence[_Key]) -> Span:
        """Return the tokens of the time of the windows."""
        table = self._table()
        if table is not None:
            return table.time
        call = next(c for key in keys if key.window for c in calls_in(self.analysis.text, key.span, _WINDOW_CALLS))
        return call.arguments[0]

    def _check_closing(self, rows: DataFrame, keys: Sequence[_Key]) -> None:
        """Refuse EMIT ON WINDOW CLOSE without windows, or without a watermark on their time."""
        text = self.analysis.text
        if all(key.window is None for key in keys):
            raise text.error(
                "EMIT ON WINDOW CLOSE needs windows; write GROUP BY window(time, '10 minutes'), or FROM "
                "TUMBLE(TABLE t, DESCRIPTOR(time), '10 minutes') with GROUP BY window_start, window_end",
                self.block.clauses.get("GROUP BY", self.block.span),
            )
        if WATERMARK not in rows.schema[TIME].metadata:
            time = self._time(keys)
            raise text.error(
                f"EMIT ON WINDOW CLOSE needs a watermark on {text.slice(time)}, which tells when a window is complete; "
                f"{_WATERMARK_REMEDY}",
                time,
            )

    def _locate_error(self, error: FoldflightError, index: Span) -> FoldflightError:
        """Return an error of `group_by` with the place of the function that it names, or with another one."""
        if not isinstance(error, RejectedError):
            return error
        own = calls_of_block(self.analysis, self.query, self.block)
        heads = (call.head for call in own if self.analysis.catalog.entries[call.name].handle.name == error.function)
        message = error.message
        if (table := self._table()) is not None:
            message = message.replace(f"column {TIME} ", f"column {self.analysis.text.slice(table.time)} ")
        if row_kind := self.options.get("row_kind"):
            message = message.replace("the row kind 'row_kind'", f"the row kind {row_kind!r}")
        return self.analysis.text.error(message, next(heads, index), code=error.code)


class _Arguments:
    """The columns of a block's rows that are arguments, conditions and orders of its calls.

    An argument of calls with FILTER is evaluated where one of the filters holds, as in Spark: 1 / x fails for no row
    that is left out. A filter is evaluated once for a row, so that rand() > 0.5 is the same for all that it guards.
    """

    def __init__(self, analysis: Analysis, edits: Edits, names: _Names) -> None:
        self._analysis, self._text, self._edits, self._new_name = analysis, analysis.text, edits, names.new
        self._columns: dict[str, str] = {}
        self._spans: dict[str, Span] = {}
        self._guards: dict[str, set[str]] = {}  # the conditions with which each is used; none: it is always evaluated

    def column(self, call: ParsedCall, span: Span) -> str:
        """Return the name of the column of an expression in a call."""
        sql = self._edits.render(span)
        if sql not in self._columns:
            self._columns[sql] = self._new_name(self._text.slice(span))
            self._spans[sql] = span
        can_fail = len(span.indexes) > 1 and not self._text.path(span)
        if call.condition in (None, span) or not can_fail:
            self._guards[sql] = set()
        elif self._guards.get(sql, True):
            self._guards.setdefault(sql, set()).add(self._edits.render(call.condition))
        return self._columns[sql]

    def expressions(self) -> dict[str, str] | None:
        """Return the expressions by the names of their columns; None if one of them has a call or stands for others."""
        if any(self._guards.values()) or any(has_calls(self._text, span) for span in self._spans.values()):
            return None
        columns = self._columns.items()
        return {name: sql if self._text.path(self._spans[sql]) else f"({sql})" for sql, name in columns}

    def select(self) -> dict[str, str]:
        """Return the items of SELECT by their names."""
        guard_columns = dict.fromkeys(each for guards in self._guards.values() for each in sorted(guards))
        # A column of the rows would come before an item of its name.
        taken_names = names_in(self._text.text) if guard_columns else ()
        names = (name for number in count() if (name := f"foldflight condition {number}") not in taken_names)
        items = dict(zip(names, guard_columns, strict=False))
        conditions = {sql: quote_name(name) for name, sql in items.items()}
        for sql, name in self._columns.items():
            holds = " OR ".join(f"CAST({conditions[each]} AS BOOLEAN)" for each in sorted(self._guards[sql]))
            value = conditions.get(sql, sql)
            if holds:
                within = guard_calls(self._analysis, self._edits, self._spans[sql], f"({holds})")
                value = f"CASE WHEN {holds} THEN {within} END"
            items[name] = value
        return items


class _OuterSelect:
    """The block over the result of its fold.

    Attributes:
        keys: The keys of the fold.
        uses: The aggregates, with the names of their outputs.
        tails: The clauses behind the block, by keyword.
        is_plain: Whether the block has nothing but keys, aggregates and constants, with operators between them. Another
            word may be an aggregate, make several rows, or not be allowed beside groups.
    """

    def __init__(
        self, fold: BlockFold, items: Sequence[Item], keys: Sequence[_Key], uses: Mapping[ParsedCall, str]
    ) -> None:
        self._fold, self._items, self.keys, self.uses = fold, items, keys, uses
        self._text = fold.analysis.text
        self._aliases = {item.name.lower(): index for index, item in enumerate(items)}
        self._skip = {index for call in uses for index in call.span.indexes}
        for inner in (*fold.block.inner, *fold.query.inner):
            self._skip |= set(inner.span.indexes)
        self._clauses = [fold.block.clause(name) for name, _ in _PREDICATES]
        spans = (*(item.body for item in items), *self._clauses)
        self._keys_at = [match for span in spans for match in self._keys_in(span)]
        self._items_at = dict(self._aliases_at())
        outputs = {call: quote_name(output) for call, output in uses.items()}
        self._result_edits = self._edited_text(outputs, lambda _, key: key.result_sql)
        self.tails = dict(self._tails())
        self.is_plain = self._is_plain()

    def sql(self, relation: str, columns: Sequence[str]) -> str:
        """Return the block as a query over the result, which has these columns."""
        fold = self._fold
        has_kinds = "row_kind" in columns
        if has_kinds and "row_kind" in self._aliases:
            raise self._text.error(
                "the result has a column row_kind, which tells the kind of each change; give this item another name",
                self._items[self._aliases["row_kind"]].body,
            )
        items = [*self._list_plan_of(self._result_edits), *(["row_kind"] if has_kinds else [])]
        sql = f"SELECT {fold.block.quantifier} {', '.join(items)} FROM {relation}"
        for (_, word), span in zip(_PREDICATES, self._clauses, strict=True):
            if not span.is_empty:
                sql += f" {word} CAST(({self._result_edits.render(span)}) AS BOOLEAN)"
        return sql

    def checked_sql(self, relation: str, names: Sequence[str], list_schema: st.StructType) -> str:
        """Return the block as `sql` does, after Spark has confirmed that it has these columns, one for each group.

        Raises:
            UnsupportedError: If it has not.
        """
        # Over the result there are no aggregates. One that is left would be an aggregate of all groups.
        probe = ", ".join([*self._list_plan_of(self._result_edits), "1"])
        fold = self._fold
        output = quote_name(next(name for name in names if name != "row_kind"))
        predicates = "".join(f", {self._result_edits.render(span)}" for span in self._clauses if not span.is_empty)
        try:
            probe_df = fold.df_of(f"SELECT {probe}{predicates}, {output} AS foldflight_probe FROM {relation}")
        except SPARK_ERRORS as error:
            raise UnsupportedError(f"an item that is not made of keys and aggregates: {spark_message(error)}") from None
        columns = zip(self._items, probe_df.schema, list_schema, strict=False)
        types = [(item.name, *(each.dataType.simpleString() for each in fields)) for item, *fields in columns]
        for name, folded_type, list_type in types if not fold.is_streaming else ():
            if folded_type != list_type:
                raise UnsupportedError(f"its column {name} would be {folded_type} instead of {list_type}")
        return self.sql(relation, names)

    def items_of(self, columns: Sequence[str]) -> list[tuple[str, str]] | None:
        """Return the columns of the result that the items are, with the names of these.

        Then the block needs no SELECT over the result. None: it does. What sorts the block may only be names of items.
        """
        fold, text = self._fold, self._text
        if fold.block.quantifier or any(not span.is_empty for span in self._clauses) or "row_kind" in columns:
            return None
        if len(self._aliases) < len(self._items) or not {*self.tails} <= {"ORDER BY"}:
            return None
        for each in orderings(text, fold.query.tails["ORDER BY"]) if self.tails else ():
            is_name = len(each.span.indexes) == 1 and text.tokens[each.span.start].name.lower() in self._aliases
            if not is_name or self._result_edits.changes(each.span.start):
                return None
        column_by_text = {quote_name(column): column for column in columns}
        bodies = [self._result_edits.render(item.body) for item in self._items]
        if not column_by_text.keys() >= set(bodies):
            return None
        return [(column_by_text[body], item.name) for body, item in zip(bodies, self._items, strict=True)]

    def steps(self, result: DataFrame, items: Sequence[tuple[str, str]]) -> DataFrame | None:
        """Return the whole block as steps over the result; None if it has to be a text, or Spark refuses a step.

        A text would need a view of the result, for which Spark takes longer than for these steps.
        """
        fold, text = self._fold, self._text
        tails = {name: span for name, span in fold.query.tails.items() if fold.query.is_sole(fold.block)}
        order = orderings(text, tails["ORDER BY"]) if "ORDER BY" in tails else ()
        limit = text.slice(tails["LIMIT"]) if "LIMIT" in tails else ""
        if not tails.keys() <= {"ORDER BY", "LIMIT"} or (limit and not _LIMIT.fullmatch(limit)):
            return None
        if (tails and fold.is_streaming) or any(each.nulls_first is each.descending for each in order):
            return None
        try:
            renamed_items = [f"{quote_name(column)} AS {quote_name(name)}" for column, name in items]
            is_renamed = [column for column, _ in items] == result.columns
            result = result.toDF(*(name for _, name in items)) if is_renamed else result.selectExpr(*renamed_items)
            if order:
                # PySpark makes a Column of a text by a third of the calls of Java that one of a name takes.
                by = [sf.expr(quote_name(text.tokens[each.span.start].name)) for each in order]
                result = result.orderBy(*by, ascending=[not each.descending for each in order])
            result = result.limit(int(limit)) if limit else result
            return fold.analysis.analysed(result)
        except SPARK_ERRORS:
            return None

    def _list_plan_of(self, edits: Edits) -> list[str]:
        return [f"{edits.render(item.body)} AS {quote_name(item.name)}" for item in self._items]

    def _is_plain(self) -> bool:
        fold, text = self._fold, self._text
        if any(fold.block.clause(name).holds(inner.span) for name in _ITEM_CLAUSES for inner in fold.block.inner):
            return False
        if any(has_calls(text, key.span) for key in self.keys if key.window is None):
            return False
        for call in self.uses:
            spans = [
                *call.arguments,
                *(each.span for each in call.order),
                *([call.condition] if call.condition else []),
            ]
            if any(has_calls(text, span) for span in spans):
                return False
        order_spans = [each.span for name in self.tails for each in orderings(text, fold.query.tails[name])]
        sort_calls = [call for call in self.uses if any(span.holds(call.span) for span in order_spans)]
        words = {
            text.tokens[index].name.lower() for call in sort_calls for part in call.parts for index in part.indexes
        }
        if sort_calls and ("HAVING" in fold.block.clauses or not words.isdisjoint(self._aliases)):
            return False  # Spark refuses some of these
        return all(self._is_made_of(each.body) for each in self._items) and all(
            self._is_made_of(span, self._aliases) for span in (*self._clauses, *order_spans)
        )

    def _is_made_of(self, span: Span, aliases: Collection[str] = ()) -> bool:
        """Return whether a range has nothing but keys, aggregates, constants and operators, and these names."""
        text = self._text
        for index in span.indexes:
            token = text.tokens[index]
            if self._result_edits.changes(index) or (token.kind == "word" and token.upper in KEYWORDS):
                continue
            is_alias = token.name.lower() in aliases and not text.says(index - 1, ".") and not text.says(index + 1, ".")
            if text.says(index, "->") or (token.is_name and (not is_alias or text.says(index + 1, "("))):
                return False
        return True

    def _edited_text(self, uses: Mapping[ParsedCall, str], key: Callable[[Span, _Key], str | None]) -> Edits:
        """Return the text with aggregates and keys replaced, and with items in place of their names in HAVING."""
        edits = self._fold.edits.copy()
        for call, use in uses.items():
            edits.replace(call.span, use)
        for span, key_match in self._keys_at:
            replacement = key(span, key_match)
            if replacement is not None:
                edits.replace(span, replacement)
        for span, item in self._items_at.items():
            edits.replace(span, f"({edits.render(self._items[item].body)})")
        return edits

    def _aliases_at(self) -> Iterator[tuple[Span, int]]:
        """Yield where names of items stand in HAVING and QUALIFY for the items, and which they are."""
        for clause in self._clauses:
            for index in clause.indexes:
                token = self._text.tokens[index]
                item = self._aliases.get(token.name.lower()) if token.is_name and index not in self._skip else None
                if item is None or self._text.says(index - 1, ".") or self._text.says(index + 1, "("):
                    continue
                path, body = (token.name.lower(),), self._items[item].body
                is_same = self._text.normal(body)[-1:] == self._text.normal(Span(index, index + 1))
                if any(_common(path, key) for key in self.keys):
                    if not is_same:
                        raise UnsupportedError(f"{token.name} is both a key and the name of another item")
                elif self._text.path(body) != path:
                    yield Span(index, index + 1), item

    def _tails(self) -> Iterator[tuple[str, str]]:
        if not self._fold.query.is_sole(self._fold.block):
            return
        for name, span in self._fold.query.tails.items():
            if name in ("LIMIT", "OFFSET"):
                continue
            for index, key in self._keys_in(span):
                path = self._text.path(index)
                if len(path) == 1 and path[0] in self._aliases:
                    body = self._items[self._aliases[path[0]]].body
                    if self._text.normal(body)[-1:] != key.tokens[-1:]:
                        raise UnsupportedError(f"{path[0]} is both a key and the name of another item")
                    continue
                self._result_edits.replace(index, key.result_sql)
            yield name, self._result_edits.render(span)

    def prove(self, types: Mapping[str, st.DataType]) -> None:
        """Have Spark compare the items as written with the items with keys put back. Raises UnsupportedError."""
        # The aggregates of both are a value of the same type.
        uses = {
            call: f"element_at(CAST(NULL AS array<{types[output].simpleString()}>), {number + 1})"
            for number, (call, output) in enumerate(self.uses.items())
        }

        def before(_: Span, key: _Key) -> str | None:
            return f"({key.sql})" if _is_window(key) else None

        def after(span: Span, key: _Key) -> str | None:
            if not _is_window(key) and (key.path or self._is_whole(span, key)):
                return key.sql
            return f"({key.sql})"

        texts = []
        for edits in (self._edited_text(uses, before), self._edited_text(uses, after)):
            clauses = [f"({edits.render(span)})" for span in self._clauses if not span.is_empty]
            texts.append(", ".join([*self._list_plan_of(edits), *clauses]))
        if texts[0] == texts[1]:
            return
        fold, analysis = self._fold, self._fold.analysis
        try:
            one, other = (analysis.df(analysis.below(fold.query, fold.block, text, fold.edits)) for text in texts)
        except SPARK_ERRORS as error:
            raise UnsupportedError(f"an item that is not made of keys and aggregates: {spark_message(error)}") from None
        if not same_plan(one, other):
            raise UnsupportedError("an item that looks like a key and is another expression")

    def _is_whole(self, span: Span, key: _Key) -> bool:
        """Return whether a key is an item or a whole argument, so that no operator around it reaches into it."""
        bodies = {item.body for item in self._items}
        is_apart = self._text.upper(span.start - 1) in ("(", ",") and self._text.upper(span.stop) in (")", ",")
        return (span in bodies or is_apart) and not has_calls(self._text, key.span)

    def _keys_in(self, span: Span) -> Iterator[tuple[Span, _Key]]:
        """Yield where keys stand in a range."""
        expressions = sorted((key for key in self.keys if self._is_expression(key)), key=lambda key: -len(key.tokens))
        index = span.start
        while index < span.stop:
            match = None if index in self._skip else self._expression_at(index, span.stop, expressions)
            if match is None and index not in self._skip:
                match = self._column_at(index, span.stop)
                if match is None:
                    index = self._text.path_end(index, span.stop)
                    continue
            if match is None:
                index += 1
                continue
            yield match
            index = match[0].stop

    @staticmethod
    def _is_expression(key: _Key) -> bool:
        return not key.path or (key.path[0] in _WINDOW_CALLS and len(key.tokens) > 1)

    def _expression_at(self, index: int, stop: int, keys: Sequence[_Key]) -> tuple[Span, _Key] | None:
        for key in keys:
            span = Span(index, index + len(key.tokens))
            is_free = span.stop <= stop and not self._skip & set(span.indexes)
            if is_free and self._text.normal(span) == key.tokens:
                return span, key
        return None

    def _column_at(self, index: int, stop: int) -> tuple[Span, _Key] | None:
        """Return the key that a reference to a column means. `t.k` and `k` may be one; Spark proves it."""
        if not self._text.tokens[index].is_name or self._text.says(index - 1, "."):
            return None
        end = self._text.path_end(index, stop)
        if self._text.says(end, "("):
            return None
        path = self._text.path(Span(index, end))
        matches = [(len(_common(path, key)), key) for key in self.keys if key.path and _common(path, key)]
        if not matches:
            return None
        size = max(size for size, _ in matches)
        best = [key for length, key in matches if length == size]
        exact = [key for key in best if key.path == path[:size]]
        if len(best) > 1 and len(exact) != 1:
            raise UnsupportedError(f"{'.'.join(path)} may be several keys")
        return Span(index, index + 2 * size - 1), (exact or best)[0]


def _compared_columns(text: Text, where: Span) -> Iterator[tuple[str, str]]:
    """Yield the qualifier and name of what can only be a column: it stands between operators, one of which compares."""
    for index in text.flat(where):
        end = text.path_end(index, where.stop)
        path = [text.tokens[at].text for at in range(index, end, 2)]
        if not text.tokens[index].is_name or text.says(index - 1, ".") or len(path) > _QUALIFIED:
            continue
        around = {text.upper(index - 1), "AND" if end == where.stop else text.upper(end)}
        if around & _COMPARISONS and around <= _COMPARISONS | {"WHERE", "AND", "OR"}:
            yield (path[0] if len(path) == _QUALIFIED else "", path[-1])


def _is_window(key: _Key) -> bool:
    return key.window is not None or key.path in _WINDOW_PATHS


def _common(path: tuple[str, ...], key: _Key) -> tuple[str, ...]:
    """Return how much of a path is the key, as far as names tell."""
    for size in range(len(path), 0, -1):
        head = path[:size]
        if head == key.path or head[-len(key.path) :] == key.path or key.path[-len(head) :] == head:
            return head
    return ()


def _of_spark(call: ParsedCall) -> UnsupportedError:
    """Return why a block with an aggregate of Spark cannot be folded."""
    return UnsupportedError(
        f"Spark's {call.name} beside functions of foldflight",
        f"Spark's {call.name} cannot take a row back: write an aggregate of foldflight with a retract in its place",
    )
