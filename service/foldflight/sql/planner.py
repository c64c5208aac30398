"""The plan of a query with functions of foldflight: `collect_list` defines the result, and `group_by` is faster.

Each SELECT block with functions is folded by `group_by` if it is plain, or Spark proves that it means the same as its
`collect_list` plan. If a block is not folded, or Spark refuses the query over the results, the whole query is analysed
as the `collect_list` plan: it raises Spark's refusal of the query as it was written, and the result must have its
columns. A stream needs the `group_by` plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Final, Literal

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.client import FunctionHandle
from foldflight.errors import RejectedError
from foldflight.spark.versions.sessions import check_workers, is_case_sensitive
from foldflight.sql.analysis import (
    PLANNING_ERRORS,
    SPARK_ERRORS,
    Analysis,
    UnsupportedError,
    correlation_error,
    item_names,
    spark_message,
)
from foldflight.sql.blocks import SETS, Block, ParsedQuery
from foldflight.sql.calls import AGGREGATES, calls_in
from foldflight.sql.changes import read_checked_rows, refuse_changes_as_rows
from foldflight.sql.group_by_plan import BlockFold
from foldflight.sql.list_plan import (
    block_alone,
    calls_of_block,
    name_items,
    refuse_misplaced,
    rewrite_all,
    rewrite_block,
    rewrite_rest,
    rewrite_source,
    uses_functions,
)
from foldflight.sql.text import Edits, Span, names_in
from foldflight.sql.windows import as_plain_tables, windowed_tables

_PLAIN: Final = (
    "write SELECT keys, aggregates of foldflight FROM changes WHERE ... GROUP BY keys, and the rest over its result"
)
Plan = Literal["auto", "fold", "lifted", "lists"]


@dataclass(frozen=True)
class Decision:
    """How one block is computed.

    Args:
        line: The line of the statement in which it begins.
        block: Its text.
        plan: `fold`, `over` or `lists`.
        why: The reason.
        remedy: What to write so that the block retracts rows, if it has lists.
    """

    line: int
    block: str
    plan: Literal["fold", "over", "lists"]
    why: str
    remedy: str = ""


@dataclass
class Planner:
    """Plans one query.

    Args:
        analysis: The statement.
        plan: `auto`; or one plan for all blocks, to compare them.
        options: Further options of `group_by`.
        functions: A function whose connection folds built-in aggregates of blocks without functions of foldflight.

    Attributes:
        decisions: How each block is computed.
    """

    analysis: Analysis
    plan: Plan = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    functions: FunctionHandle | None = None
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Tell the text how names are compared, and write windowing table functions as queries that Spark knows."""
        text = self.analysis.text
        text.reads_case = partial(is_case_sensitive, self.analysis.spark)
        self._tables = windowed_tables(text)
        self._lists = self.analysis.edits.copy()
        as_plain_tables(text, self._tables, self._lists)
        self._folds = self._lists.copy()
        self._of_streams: list[Span] = []  # the blocks over streams that are folded
        self._folded_blocks: list[Block] = []
        self._whole: DataFrame | None = None  # the result of the query, if that is the result of one fold
        self._has_row_kinds = False  # whether the results of some of them have row kinds
        self._windows = [table for table in self._tables if not table.has_equivalent]  # that no block has folded
        self._has_unfolded_stream = False
        self._has_stream_with_over = False

    def result(self, query: ParsedQuery) -> DataFrame:
        """Return the result of a query.

        Raises:
            SqlError: For whatever Spark refuses, at its position in the text.
            RejectedError: For a stream that cannot be folded.
        """
        for each in query.walk():
            for block in each.blocks:
                refuse_misplaced(self.analysis, each, block)
        if not self.options.get("emit") and self.options.get("row_kind", "") is not None:
            asks_with_rows = "row_kind" not in self.options  # this option is an error for rows without the column
            refuse_changes_as_rows(self.analysis, query, self._lists, asks_with_rows=asks_with_rows)
        list_plan_df = cache(partial(self._list_plan, query))
        if self.options.get("emit"):
            list_plan_df()
        folded_df = None if self.plan == "lists" else self._group_by_plan(query, list_plan_df)
        for unasked in self.analysis.kinds_below.values():  # below blocks that are not folded
            unasked.check()
        if folded_df is not None:
            self._check_idle(query)
            return folded_df
        uses = uses_functions(self.analysis.text, self.analysis.catalog.names)
        if list_plan_df().isStreaming and (uses or self.options.get("emit")):
            raise self._refused_stream(query, uses=uses)
        if self.plan == "lists":
            for each in query.walk():
                for block in each.blocks:
                    if calls_of_block(self.analysis, each, block):
                        self._refuse_unsaid(each, block, self._lists)
            self._decide_all(query)
        if uses and not self.decisions:
            where = f"it is a query with {query.opaque}" if query.opaque else "its functions stand in PIVOT"
            self._decide(Block(query.span), "lists", where)
        self._check_lists(query)
        self._check_idle(query)
        return self._with_user_names(list_plan_df(), query)

    def _list_plan(self, query: ParsedQuery) -> DataFrame:
        """Return the `collect_list` plan of the query. Raises SqlError for refusals of Spark and EMIT over a batch."""
        self.analysis.type_errors.clear()
        rewrite_all(self.analysis, self._lists, query)
        list_plan_df = self.analysis.analyse_edited(self._lists, query.span)
        if self.analysis.type_errors:
            raise self.analysis.type_errors[0]
        if self.options.get("emit") and not list_plan_df.isStreaming:
            raise self.analysis.text.error(
                "EMIT is for streams, and this query reads none; leave it out, or read a streaming view",
                Span(query.span.stop, query.span.stop + 1),
            )
        return list_plan_df

    def _check_idle(self, query: ParsedQuery) -> None:
        if self.options.get("idle") is not None and not self._has_stream_with_over:
            raise self.analysis.text.error(
                "idle bounds the state of calls with OVER in a stream, and this query has none; leave it out",
                Span(query.span.start, query.span.start + 1),
            )

    def _group_by_plan(self, query: ParsedQuery, list_plan_df: Callable[[], DataFrame]) -> DataFrame | None:
        """Return the result with all provable blocks folded; None if no block is, or the whole is not the same.

        Args:
            query: The query.
            list_plan_df: Returns the `collect_list` plan, which raises what Spark refuses. It is needed if not all
                calls are folded.
        """
        has_lists = False
        blocks = [(each, block) for each in query.walk() for block in each.blocks]
        last = next((each for each, block in reversed(blocks) if calls_of_block(self.analysis, each, block)), None)
        for each, block in blocks:
            self._refuse_changes(each, block)
            has_lists |= rewrite_source(self.analysis, self._folds, each, block)
            if calls_of_block(self.analysis, each, block) or self._is_stream_of_built_ins(each, block, list_plan_df):
                has_lists |= not self._fold_block(each, block, list_plan_df, is_last=each is last)
        self._refuse_around(query)
        has_lists |= rewrite_rest(self.analysis, self._folds, query)
        if self._has_unfolded_stream or not any(decision.plan != "lists" for decision in self.decisions):
            return None
        is_compared = has_lists and not list_plan_df().isStreaming
        if is_compared:
            self._check_lists(query)
        if self._windows:
            raise self._windows[0].misuse_error(self.analysis.text)
        try:
            result = self.analysis.df(self._render(query)) if self._whole is None else self._whole
        except SPARK_ERRORS as error:
            list_plan_df()  # raises Spark's refusal of the query as it was written
            self._reject_folds(f"Spark refuses the query over its results: {spark_message(error)}")
            return None
        if is_compared:
            result = self._with_user_names(result, query)
            list_shape, folded_shape = (
                _shape(self._with_user_names(list_plan_df(), query).schema),
                _shape(result.schema),
            )
            if folded_shape != list_shape:
                self._reject_folds(
                    f"its result would be {_column_list(folded_shape, list_shape)} instead of "
                    f"{_column_list(list_shape, folded_shape)}"
                )
                return None
        if self._has_row_kinds and "row_kind" not in result.columns:
            raise self.analysis.text.error(
                "the result has changes without their kinds, so that old values cannot be told from new ones; write "
                "SELECT * over the inner SELECT, which keeps its column row_kind, or leave the outer SELECT out",
                query.span,
            )
        return result

    def _render(self, query: ParsedQuery) -> str:
        """Return a query with its folds, without common table expressions that were folded and are not used any more.

        Each of them has the plans of those before it, so Spark would analyse a chain of them again for each of its
        links.
        """
        sql = self._folds.render(Span(query.tables[-1].span.stop, query.span.stop)) if query.tables else ""
        if not query.tables or query.is_recursive:
            return self._folds.render(query.span)
        words, tables = names_in(sql), list[str]()
        names = [self.analysis.text.tokens[table.span.start].name.casefold() for table in query.tables]
        for name, table in zip(reversed(names), reversed(query.tables), strict=True):
            # Spark refuses two expressions of one name, so both are kept.
            is_used = {name, "identifier"} & words or names.count(name) > 1
            if is_used or not any(table.query.is_sole(block) for block in self._folded_blocks):
                tables.insert(0, self._folds.render(table.span))
                words |= names_in(tables[0])
        return f"WITH {', '.join(tables)} {sql}" if tables else sql

    def _check_lists(self, query: ParsedQuery) -> None:
        """Refuse a batch whose lists would mean something else: without row kinds, or without windows."""
        reasons = [each.why for each in self.decisions if each.plan == "lists"]
        if self.options.get("row_kind") and (reasons or not self.decisions):
            why = "; ".join(dict.fromkeys(reasons)) or "it uses no aggregate of foldflight"
            remedies = dict.fromkeys(each.remedy or _PLAIN for each in self.decisions if each.plan == "lists")
            raise self.analysis.text.error(
                f"row_kind={self.options['row_kind']!r} cannot retract rows in this statement: {why}; "
                f"{'; '.join(remedies) or _PLAIN}",
                Span(query.span.start, query.span.start + 1),
            )
        if self._windows:
            raise self._windows[0].misuse_error(self.analysis.text)

    def _fold_block(
        self, query: ParsedQuery, block: Block, list_plan_df: Callable[[], DataFrame], *, is_last: bool
    ) -> bool:
        """Fold a block, or use lists for it; return whether it is folded. The last one is read by no other fold."""
        fold = BlockFold(
            self.analysis, query, block, self._folds, self._tables, options=self.options, functions=self.functions
        )
        try:
            alone = cache(partial(self._listed_alone, query, block))
            block_plan = fold.plan_block(list_plan_df if query.is_whole(block) else alone, is_last=is_last)
        except UnsupportedError as error:
            may_stream = list_plan_df().isStreaming  # raises Spark's refusal of the query as it was written
            self._refuse_unsaid(query, block, self._folds)
            self._decide(block, "lists", str(error), error.remedy)
            self._has_unfolded_stream |= may_stream and _is_stream(fold)
            rewrite_block(self.analysis, self._folds, query, block)
            name_items(self.analysis, self._folds, query, block)
            return False
        for name, sql in block_plan.tails.items():
            self._folds.replace(query.tails[name], sql)
        if query.is_bare_part(self.analysis.text):  # its ORDER BY and LIMIT would belong to the union
            self._folds.replace(block.span, f"({block_plan.sql}")
            self._folds.insert(query.span.stop, ")")
        else:
            self._folds.replace(block.span, block_plan.sql)
        self._folded_blocks.append(block)
        if query.is_whole(block):
            self._whole = block_plan.result
        self._decide(block, block_plan.plan, block_plan.why)
        start = block.clause("FROM").start
        self._windows = [table for table in self._windows if table.span.start != start]
        if block_plan.is_streaming and block_plan.plan == "over":
            self._has_stream_with_over = True
            self._check_over(query, block)
        elif block_plan.is_streaming:
            self._refuse_items(block)
            self._of_streams.append(block.span)
            self._has_row_kinds |= block_plan.has_kinds
        return True

    def _refuse_unsaid(self, query: ParsedQuery, block: Block, edits: Edits) -> None:
        """Refuse rows with kinds in the `collect_list` plan, unless an option says what these mean. Raises SqlError."""
        try:
            read_checked_rows(
                self.analysis,
                block,
                self.options,
                # The WHERE may refer to a query around the block.
                lambda more: self.analysis.df(self.analysis.below(query, block, f"1{more}", edits, is_filtered=False)),
            )
        except PLANNING_ERRORS:
            return

    def _refuse_changes(self, query: ParsedQuery, block: Block) -> None:
        """Refuse what takes each change of a folded stream for a row: aggregates count it, filters and joins lose it.

        The rows of EMIT ON WINDOW CLOSE are final, but they have no watermark. Over these Spark decides which
        aggregates of its own a stream can have.
        """
        if not self._reads_changes(query, block):
            return
        if self.options.get("emit") == "append":
            if calls_of_block(self.analysis, query, block):
                raise self.analysis.text.error(
                    "aggregates over closed windows need two statements. Write CREATE TEMPORARY VIEW v AS SELECT ... "
                    "EMIT ON WINDOW CLOSE for the inner SELECT, and then SELECT ... FROM v GROUP BY ... EMIT CHANGES",
                    block.span,
                )
            return
        items = [block.clause(name) for name in ("SELECT", "HAVING", "QUALIFY")]
        names = AGGREGATES | self.analysis.catalog.names
        calls = (call for span in items for call in calls_in(self.analysis.text, span, names, skip=block.inner))
        if next(calls, None) is not None or "GROUP BY" in block.clauses or block.quantifier == "DISTINCT":
            raise self.analysis.text.error(
                "aggregates over aggregates of a stream: the inner SELECT gives changes of its groups, not rows. Write "
                "CREATE TEMPORARY VIEW v AS SELECT ... GROUP BY ... EMIT CHANGES for the inner one, and then "
                "sql(spark, 'SELECT ... FROM v GROUP BY ...', row_kind='row_kind')",
                block.span,
            )
        if self.options.get("emit") == "changelog":
            return  # an old value passes a filter or a join again when it is taken back
        text = self.analysis.text
        joins = (at for at in text.flat(block.clause("FROM")) if text.upper(at) in ("JOIN", ","))
        lossy_clause = block.clauses.get("WHERE") or next((Span(at, at + 1) for at in joins), None)
        if lossy_clause is not None:
            raise text.error(
                "WHERE or JOIN over a stream of updates would leave rows in the sink that no longer pass; write EMIT "
                "CHANGES, EMIT ON WINDOW CLOSE, or filter and join where the result is read",
                lossy_clause,
            )

    def _check_over(self, query: ParsedQuery, block: Block) -> None:
        """Refuse what the rows of a stream with OVER cannot have: changes, an order of all, and Spark's own OVER."""
        own = {index for call in calls_of_block(self.analysis, query, block) for index in call.span.indexes}
        for name in ("SELECT", "QUALIFY"):
            self._refuse_over(block, block.clause(name), own)
        if self.options.get("emit") == "changelog":
            raise self.analysis.text.error(
                "each row with OVER comes out once, when the watermark has reached its time, so there are no changes; "
                "leave EMIT CHANGES out",
                Span(query.span.stop, query.span.stop + 1),
            )
        self._refuse_order(query)

    def _refuse_over(self, block: Block, span: Span, own: Collection[int]) -> None:
        """Refuse OVER in a clause of a stream, except at these indexes."""
        text = self.analysis.text
        inside = {index for query in block.inner for index in query.span.indexes}
        for index in span.indexes:
            if index not in inside and index not in own and text.says(index - 1, ")") and text.says(index, "OVER"):
                remedy = "leave it out" if own else "leave it out, or write it where the result is read"
                raise text.error(
                    "OVER of Spark's functions, or over groups, needs all rows of its partition, and a stream has no "
                    f"end; {remedy}",
                    Span(index, index + 1),
                )

    def _refuse_items(self, block: Block) -> None:
        """Refuse OVER, which groups of a stream do not have, and DISTINCT, which would drop changes that are equal."""
        text = self.analysis.text
        self._refuse_over(block, block.clause("SELECT"), ())
        if block.quantifier == "DISTINCT" and self.options.get("emit") != "append":
            raise text.error(
                "DISTINCT would drop changes of a stream that are equal to earlier ones; leave it out, or write EMIT "
                "ON WINDOW CLOSE",
                Span(block.clause("SELECT").start - 1, block.clause("SELECT").start),
            )

    def _refuse_around(self, query: ParsedQuery) -> None:
        """Refuse clauses around a folded stream: sorting it, and counting or comparing its changes as rows."""
        for each in query.walk():
            if not any(each.span.holds(span) for span in self._of_streams):
                continue
            self._refuse_order(each)
            if self.options.get("emit") != "append":
                self._refuse_rows(each)

    def _refuse_order(self, query: ParsedQuery) -> None:
        order = query.tails.get("ORDER BY") or query.tails.get("SORT BY")
        if order is not None:
            raise self.analysis.text.error(
                "a stream has no end, so its rows cannot be sorted; leave the order out, or sort where the result is "
                "read",
                order,
            )

    def _refuse_rows(self, query: ParsedQuery) -> None:
        """Refuse LIMIT and OFFSET, which count rows, and UNION, INTERSECT and EXCEPT, which compare them."""
        text = self.analysis.text
        limit = query.tails.get("LIMIT") or query.tails.get("OFFSET")
        if limit is not None:
            raise text.error(
                "LIMIT and OFFSET would count the changes of a stream, not its rows; leave them out, or write EMIT "
                "ON WINDOW CLOSE",
                limit,
            )
        for index in text.flat(query.span) if query.is_union else ():
            if text.upper(index) in SETS and not text.says(index, "UNION", "ALL") and not text.says(index - 1, "."):
                raise text.error(
                    f"{text.upper(index)} would compare the changes of a stream, not its rows; write UNION ALL, or "
                    "EMIT ON WINDOW CLOSE",
                    Span(index, index + 1),
                )

    def _reads_changes(self, query: ParsedQuery, block: Block) -> bool:
        """Return whether a block reads a folded stream: a subquery, or a common table expression by its name."""
        source, tokens = block.clause("FROM"), self.analysis.text.tokens
        if any(source.holds(span) for span in self._of_streams):
            return True
        names = {tokens[index].name.lower() for index in source.indexes if tokens[index].is_name}
        each: ParsedQuery | None = query
        while each is not None:
            for table in each.tables:
                is_before = table.span.stop <= block.span.start
                if is_before and tokens[table.span.start].name.lower() in names and self._has_changes(table.query):
                    return True
            each = each.parent
        return False

    def _has_changes(self, query: ParsedQuery) -> bool:
        if any(query.span.holds(span) for span in self._of_streams):
            return True
        return any(self._reads_changes(each, block) for each in query.walk() for block in each.blocks)

    def _listed_alone(self, query: ParsedQuery, block: Block) -> DataFrame:
        """Return the `collect_list` plan of a block, over the queries in it as they are planned."""
        edits = self._folds.copy()
        rewrite_block(self.analysis, edits, query, block)
        try:
            return block_alone(self.analysis, edits, query, block)
        except SPARK_ERRORS as error:
            if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
                raise correlation_error() from None
            raise UnsupportedError(f"Spark cannot analyse it alone: {spark_message(error)}") from None

    def _is_stream_of_built_ins(self, query: ParsedQuery, block: Block, list_plan_df: Callable[[], DataFrame]) -> bool:
        """Return whether a block has built-in aggregates only, which are to be folded because EMIT is written."""
        if not (self.options.get("emit") and list_plan_df().isStreaming):
            return False
        items = calls_in(self.analysis.text, block.clause("SELECT"), AGGREGATES, skip=block.inner, nested=True)
        if "GROUP BY" not in block.clauses and all(call.is_over for call in items):
            return False
        return BlockFold(self.analysis, query, block, self._folds, self._tables).is_streaming

    def _decide(self, block: Block, plan: Literal["fold", "over", "lists"], why: str, remedy: str = "") -> None:
        if plan == "lists":
            check_workers(self.analysis.spark)
        start = self.analysis.text.tokens[block.span.start].start
        line = self.analysis.text.text.count("\n", 0, start) + 1
        text = " ".join(self.analysis.text.slice(block.span).split())
        self.decisions.append(Decision(line, text, plan, why, remedy))

    def _decide_all(self, query: ParsedQuery) -> None:
        for each in query.walk():
            for block in each.blocks:
                if calls_of_block(self.analysis, each, block):
                    self._decide(block, "lists", "it was asked for", "leave plan='lists' out")

    def _reject_folds(self, why: str) -> None:
        """Use lists for the whole query."""
        self._windows = [table for table in self._tables if not table.has_equivalent]
        self.decisions = [
            replace(each, plan="lists", why=why if each.plan != "lists" else each.why) for each in self.decisions
        ]

    def _refused_stream(self, query: ParsedQuery, *, uses: bool) -> RejectedError:
        reasons = dict.fromkeys(each.why for each in self.decisions if each.plan == "lists")
        if not (reasons or uses):
            return self.analysis.text.error(
                "EMIT is for aggregates over a stream, and this query has none; leave it out",
                Span(query.span.stop, query.span.stop + 1),
            )
        return self._refuse(query, "; ".join(reasons) or "its functions stand in no SELECT")

    def _refuse(self, query: ParsedQuery, why: str) -> RejectedError:
        return self.analysis.text.error(
            f"a stream cannot run this query: {why}. Over a stream write SELECT keys, aggregates FROM stream WHERE ... "
            "GROUP BY keys, and put the rest into a query over its result",
            Span(query.span.start, query.span.start + 1),
        )

    def _with_user_names(self, df: DataFrame, query: ParsedQuery) -> DataFrame:
        """Return a result of the `collect_list` plan with the names of columns as users expect them."""
        names = [self.analysis.catalog.as_written(name) for name in df.columns]
        if query.blocks and query.is_sole(query.blocks[0]):
            names = item_names(self.analysis, query.blocks[0], df.columns)
        return df if names == df.columns else df.toDF(*names)


def _is_stream(fold: BlockFold) -> bool:
    try:
        return fold.is_streaming
    except UnsupportedError:
        return False


def _shape(schema: st.StructType) -> list[tuple[str, str]]:
    return [(each.name, each.dataType.simpleString()) for each in schema]


def _column_list(columns: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]) -> str:
    """Return the columns that differ from others, as text."""
    different = [each for each in columns if each not in others]
    return ", ".join(f"{name} {type_}" for name, type_ in different) or f"{len(columns)} columns"
