"""The `collect_list` plan: each call of a function is replaced, in place, by a function over the list of its rows.

This plan defines the meaning of a statement. It works wherever Spark accepts an aggregate: beside built-in aggregates,
in HAVING, with FILTER and OVER, in PIVOT and GROUPING SETS.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions import can_widen
from foldflight.functions.query.call import check_known
from foldflight.functions.types.arrow import is_nested
from foldflight.spark.columns import quote_name, spark_name, zone_remedy
from foldflight.spark.months import interval_text, is_months, months_text
from foldflight.spark.storage_types import result_storage_type
from foldflight.spark.types import arrow_fields, check_compared
from foldflight.spark.versions.types import spark_type
from foldflight.sql.analysis import (
    PLANNING_ERRORS,
    SPARK_ERRORS,
    Analysis,
    UnsupportedError,
    has_calls,
    item_names,
    named_by_text,
    spark_message,
    strip_alias,
)
from foldflight.sql.blocks import Block, ParsedQuery, queries_in
from foldflight.sql.calls import ParsedCall, calls_in
from foldflight.sql.catalog import Entry
from foldflight.sql.text import Edits, Span, Text

_STAND_IN: Final = "size"  # a function over lists, for a call that cannot be described
_ITEMS: Final = ("SELECT", "HAVING", "QUALIFY")
_WITH_FROM: Final = ("EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "OVERLAY")
_WITH_ITEMS: Final = ("AGGREGATE", "EXTEND", "SELECT")  # behind |>
# What gives other values each time that it is computed; as TABLESAMPLE it stands before a parenthesis.
_DRAWS: Final = frozenset(
    """JAVA_METHOD MONOTONICALLY_INCREASING_ID RAND RANDN RANDOM RANDSTR REFLECT SHUFFLE SPARK_PARTITION_ID TABLESAMPLE
    TRY_REFLECT UNIFORM UUID""".casefold().split()
)
_ONCE: Final = 2  # the name of a table expression where it is defined, and where it is read
_JOINS: Final = frozenset(["LATERAL", ",", "JOIN", "INNER", "CROSS", "LEFT", "OUTER", "NATURAL"])
# A call behind one of these words is not a call: it is a relation with the names of its columns.
_NAMING: Final = ("AS", "WITH", "RECURSIVE", "FROM", "JOIN", "VIEW", "TABLE", "INTO")
_BEFORE_EXPRESSIONS: Final = frozenset(
    """AGGREGATE ALL AND ANY BETWEEN BOTH BY CASE DISTINCT DIV ELSE EXTEND FOR HAVING ILIKE IN IS LEADING LIKE LIMIT NOT
    OFFSET ON OR PLACING QUALIFY REGEXP RETURN RLIKE SELECT SET THEN TRAILING WHEN WHERE
    """.split()  # noqa: SIM905 - as in a dictionary
)


def calls_of_block(analysis: Analysis, query: ParsedQuery, block: Block) -> list[ParsedCall]:
    """Return the calls of functions that belong to a block, not to a query in it."""
    names, text = analysis.catalog.names, analysis.text
    calls = [call for name in _ITEMS for call in calls_in(text, block.clause(name), names, skip=block.inner)]
    if query.is_sole(block):
        for tail in query.tails.values():
            calls += calls_in(text, tail, names, skip=query.inner)
    return calls


def nondeterministic_cte_read_twice(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> str:
    """Return a common table expression that differs each time and is read by a block and elsewhere; empty if none is.

    Spark computes such an expression once for all that read it, and the rows of a fold are a query of their own.

    Args:
        analysis: The statement.
        edits: The edits of the text.
        query: The query of the block.
        block: The block.
    """
    text = analysis.text
    draws = _DRAWS | {each.name for each in analysis.catalog.mapped.values() if not each.handle.info.deterministic}
    tables: list[tuple[str, frozenset[str]]] = []
    differing: set[str] = set()
    for around in _lineage(query):
        for table in around.tables:
            if table.span.stop > block.span.start:
                break
            name, words = text.tokens[table.span.start].name.casefold(), names_of(text, table.span)
            is_drawn = any(text.tokens[at].name.casefold() in draws for at in _calls_at(text, table.span))
            if is_drawn or words & differing:
                differing.add(name)
            tables.append((name, words))
    read_names = set(names_of(text, block.span)) if tables else set()
    tables_read: set[str] = set()
    for name, words in reversed(tables):
        if {name, "identifier"} & read_names:
            read_names |= words | {name}
            tables_read.add(name)
    indexes = [at for at in range(len(text.tokens)) if text.tokens[at].is_name and not text.says(at + 1, ".")]
    for name in sorted(tables_read):
        if sum(text.tokens[at].name.casefold() in (name, "identifier") for at in indexes) > _ONCE and (
            name in differing or _differs(analysis, edits, query, block, name)
        ):
            return name
    return ""


def _differs(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block, name: str) -> bool:
    """Return whether Spark finds that a common table expression has other rows each time that it is computed.

    Only Spark knows it of views and of the functions that users have registered.
    """
    return not analysis.is_repeatable(
        analysis.seeing(query, block.span.start, f"SELECT * FROM {quote_name(name)}", edits)
    )


def _lineage(query: ParsedQuery) -> list[ParsedQuery]:
    """Return a query and those around it, outer ones first."""
    around = [] if query.parent is None else _lineage(query.parent)
    return [*around, query]


def _calls_at(text: Text, span: Span) -> list[int]:
    return [at for at in span.indexes if text.tokens[at].is_name and text.says(at + 1, "(")]


def names_of(text: Text, span: Span) -> frozenset[str]:
    """Return the names in a range, without regard to case."""
    return frozenset(text.tokens[at].name.casefold() for at in span.indexes if text.tokens[at].is_name)


def name_items(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> None:
    """Give the items of an inner block that have calls, and no alias, the names that the `group_by` plan gives them.

    Without it outer blocks would see the names of functions over lists.

    Args:
        analysis: The statement.
        edits: The edits, in which the block's calls are replaced.
        query: The query of the block.
        block: The block.
    """
    text, names = analysis.text, analysis.catalog.names
    items = [] if query.is_whole(block) or _is_value(query) else text.split(block.clause("SELECT"))
    having = [item for item in items if next(calls_in(text, item, names, skip=block.inner, nested=True), None)]
    if not any(_may_lack_alias(text, item) for item in having):
        return
    try:
        columns = block_alone(analysis, edits, query, block).columns
    except PLANNING_ERRORS:  # it is correlated; where Spark refuses the whole, the error tells why
        return
    if len(columns) == len(items):
        for item, name in zip(items, item_names(analysis, block, columns), strict=True):
            if item in having and strip_alias(analysis, item, name) == item:
                edits.insert(item.stop, f" AS {quote_name(name)}")


def block_alone(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> DataFrame:
    """Return a block without the queries around it. Raises Spark's refusals."""
    sql = edits.render(block.span)
    if "WINDOW" in query.tails and query.is_sole(block):
        sql += f"\nWINDOW {edits.render(query.tails['WINDOW'])}"
    return analysis.df(analysis.seeing(query, block.span.start, sql, edits))


def _is_value(query: ParsedQuery) -> bool:
    """Return whether a query is a value or a condition, so that nothing sees the names of its columns."""
    around = next((each for each in query.parent.blocks if query in each.inner), None) if query.parent else None
    return around is not None and not around.clause("FROM").holds(query.span)


def _may_lack_alias(text: Text, item: Span) -> bool:
    has_name = len(item.indexes) > 1 and text.tokens[item.stop - 1].is_name
    return not has_name or text.upper(item.stop - 2) in (".", "OVER")


def rewrite_all(analysis: Analysis, edits: Edits, query: ParsedQuery) -> None:
    """Replace all calls of a query. Raises SqlError for a call where an aggregate cannot stand."""
    for each in query.walk():
        for block in each.blocks:
            rewrite_source(analysis, edits, each, block)
            rewrite_block(analysis, edits, each, block)
            name_items(analysis, edits, each, block)
    rewrite_rest(analysis, edits, query)


def rewrite_block(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> None:
    """Replace the calls that belong to a block. Raises SqlError for arguments that do not fit."""
    calls = calls_of_block(analysis, query, block)
    _foresee_types(analysis, edits, calls, query, block)
    for call in calls:
        _rewrite_call(analysis, edits, call, query, block)


def rewrite_source(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> bool:
    """Replace the calls in PIVOT, so that Spark can analyse the rows of a block, and return whether there are any.

    Raises:
        SqlError: For another call behind FROM, which is in the condition of a join.
    """
    text, source = analysis.text, block.clause("FROM")
    is_rewritten = False
    pivots = [Span(at, text.partner[at + 1]) for at in text.flat(source) if text.says(at, "PIVOT", "(")]
    for call in calls_in(text, source, analysis.catalog.names, skip=block.inner):
        if edits.changes(call.span.start) or not is_expression(text, call):
            continue
        if not any(pivot.holds(call.span) for pivot in pivots):
            raise text.error(
                f"{call.name} is an aggregate, which cannot stand in FROM; aggregate in a subquery of FROM",
                call.head,
            )
        _rewrite_call(analysis, edits, call, query, None)
        is_rewritten = True
    return is_rewritten


def rewrite_rest(analysis: Analysis, edits: Edits, query: ParsedQuery) -> bool:
    """Replace the calls outside of blocks, behind FROM and `|>`, and return whether there are any."""
    calls = [
        call
        for call in calls_in(analysis.text, query.span, analysis.catalog.names, nested=True)
        if not edits.changes(call.span.start) and is_expression(analysis.text, call)
    ]
    steps = list(_steps(analysis.text, query)) if calls else []
    for call in calls:
        while steps and steps[0][1].stop <= call.span.start:
            _name_step(analysis, edits, *steps.pop(0))  # so that the steps behind it see its names
        _rewrite_call(analysis, edits, call, query, None)
    for step in steps:
        _name_step(analysis, edits, *step)
    return bool(calls)


def _steps(text: Text, query: ParsedQuery) -> Iterator[tuple[ParsedQuery, Span]]:
    """Yield the operators behind `|>` that have items, with their query, in the order of the text."""
    steps = []
    for each in query.walk():
        pipes = [at for at in text.flat(each.span) if text.says(at, "|>")]
        steps += [(each, Span(at + 1, end)) for at, end in itertools.pairwise([*pipes, each.span.stop])]
    for each, step in sorted(steps, key=lambda each: each[1].stop):
        if text.upper(step.start) in _WITH_ITEMS:
            yield each, step


def _is_window(text: Text, index: int) -> bool:
    return text.says(index, "WINDOW") and text.says(index + 2, "AS", "(")


def _name_step(analysis: Analysis, edits: Edits, query: ParsedQuery, step: Span) -> None:
    """Name the items of an operator that have calls and no alias, as `name_items` does for the items of SELECT."""
    text, names = analysis.text, analysis.catalog.names
    ends = [at for at in text.flat(step) if text.says(at, "GROUP", "BY") or _is_window(text, at)]
    end = ends[0] if ends else step.stop
    first = step.start + (2 if text.says(step.start + 1, "DISTINCT") else 1)
    items = text.split(Span(first, end))
    having = [item for item in items if next(calls_in(text, item, names, skip=query.inner, nested=True), None)]
    if not any(_may_lack_alias(text, item) for item in having):
        return
    try:
        sql = edits.render(Span(query.span.start, step.stop))
        columns = analysis.df(analysis.seeing(query, query.span.start, sql, edits)).columns
    except SPARK_ERRORS:  # it is correlated; where Spark refuses the whole, the error tells why
        return
    if text.says(step.start, "SELECT") and len(columns) != len(items):  # it has a star
        return
    for item, name in zip(items, named_by_text(analysis, query, items, columns[-len(items) :]), strict=True):
        if item in having and strip_alias(analysis, item, name) == item:
            edits.insert(item.stop, f" AS {quote_name(name)}")


def refuse_misplaced(analysis: Analysis, query: ParsedQuery, block: Block) -> None:
    """Refuse aggregates in WHERE and GROUP BY. Raises SqlError."""
    for name in ("WHERE", "GROUP BY"):
        for call in calls_in(analysis.text, block.clause(name), analysis.catalog.names, skip=block.inner):
            if name == "WHERE" and query.parent is not None:
                continue  # it may belong to an outer query
            remedy = "group by a column of a subquery"
            if name == "WHERE":
                remedy = "filter its rows with QUALIFY" if call.is_over else "filter groups with HAVING"
            raise analysis.text.error(f"{call.name} is an aggregate, which cannot stand in {name}; {remedy}", call.head)


def uses_functions(text: Text, names: Collection[str]) -> bool:
    """Return whether a statement has a call of one of these functions."""
    return any(is_expression(text, call) for call in calls_in(text, Span(0, len(text)), names, nested=True))


def is_expression(text: Text, call: ParsedCall) -> bool:
    """Return whether a call is one, rather than the name of a relation with its columns."""
    before = call.span.start - 1
    if text.says(before, "FROM"):
        return text.says(before - 1, "DISTINCT") or _is_in_function(text, before)
    if before < 0 or text.upper(before) in _NAMING:
        return False
    return not text.tokens[before].is_name or text.upper(before) in _BEFORE_EXPRESSIONS


def _is_in_function(text: Text, index: int) -> bool:
    """Return whether a FROM belongs to `extract(YEAR FROM x)`, `trim(x FROM y)` or a similar function."""
    while index > 0 and text.upper(index) not in ("(", "SELECT"):
        index = text.partner[index] if text.upper(index) in (")", "]") else index
        index -= 1
    return text.says(index, "(") and text.upper(index - 1) in _WITH_FROM


def arguments_of(analysis: Analysis, call: ParsedCall) -> tuple[tuple[Span, ...], dict[str, Any]]:
    """Return the arguments of an aggregate that are columns, and the direct arguments: `fraction => 0.9`.

    Raises:
        SqlError: For a wrong number of columns, a direct argument that is not constant, or an aggregate in a column.
    """
    columns, literals = given_arguments(analysis, call, analysis.catalog.entries[call.name].handle.info)
    _refuse_forms(analysis, call)
    nested_call = next((n for each in columns for n in _nested_calls(analysis, each)), None)
    if nested_call is not None and not call.is_over:  # over a window, an aggregate of aggregates is a sum over groups
        raise analysis.text.error(
            f"{nested_call.name} is an aggregate in the arguments of the aggregate {call.name}; aggregate in two "
            "steps, the inner one in a subquery",
            nested_call.head,
        )
    return columns, literals


def _refuse_forms(analysis: Analysis, call: ParsedCall) -> None:
    """Refuse what Spark would ignore or misread in a call over lists."""
    text = analysis.text
    if call.nulls_at is not None:
        nulls = Span(call.nulls_at, call.nulls_at + 2)
        own = any(each.name == "ignore_nulls" for each in analysis.catalog.entries[call.name].handle.info.parameters)
        remedy = f"{call.name}(x, ignore_nulls => true)" if own else "FILTER (WHERE x IS NOT NULL)"
        raise text.error(
            f"{call.name} decides itself what it does with NULL; leave {text.slice(nulls)} out, or write {remedy}",
            nulls,
        )
    literal = next((order.span for order in call.order if text.says(order.span.start + 1, "=>")), None)
    if literal is not None:
        raise text.error("direct arguments stand before ORDER BY; write f(x, name => value ORDER BY key)", literal)
    in_filter = [] if call.condition is None or call.is_over else _nested_calls(analysis, call.condition)
    if in_filter:
        raise text.error(
            f"{in_filter[0].name} is an aggregate, which cannot stand in FILTER; compute it in a subquery",
            in_filter[0].head,
        )
    empty = next((order.span for order in call.order if order.span.is_empty), None)
    if empty is not None:
        raise text.error("a key is expected here: ORDER BY key", Span(empty.start, empty.start + 1))


def _nested_calls(analysis: Analysis, span: Span) -> list[ParsedCall]:
    """Return the aggregates in an argument. Aggregates of a subquery in it are over the subquery's own rows."""
    text = analysis.text
    return list(calls_in(text, span, analysis.catalog.names, skip=queries_in(text, span)))


def given_arguments(
    analysis: Analysis, call: ParsedCall, info: FunctionInfo
) -> tuple[tuple[Span, ...], dict[str, Any]]:
    """Return the arguments of a call that are columns, in the function's order, and the direct ones: `fraction => 0.9`.

    Raises:
        SqlError: For a wrong number of columns, or a direct argument that is not constant.
    """
    at: dict[int, Span] = {}
    literals: dict[str, Any] = {}
    direct = [parameter.name for parameter in info.parameters]
    behind, most = list(direct), len(info.input_names)  # direct arguments may stand behind all columns
    for each in call.arguments:
        if each.is_empty:
            raise analysis.text.error("an argument is expected here", Span(call.closing, call.closing + 1))
        if analysis.text.says(each.start + 1, "=>"):
            name, value = analysis.text.tokens[each.start].name, Span(each.start + 2, each.stop)
        elif analysis.text.says(each.stop - 2, ".", "*"):
            raise analysis.text.error(
                f"{analysis.text.slice(each)} stands for several arguments, and {call.name} takes columns one by one; "
                f"write {call.name}(*) for all rows, or name the columns",
                each,
            )
        elif analysis.text.slice(each) == "*":
            continue
        elif len(at) < most or not behind:
            at[next(index for index in itertools.count() if index not in at)] = each
            continue
        else:
            name, value = behind.pop(0), each
        is_column = name in info.input_names and name not in direct
        index = info.input_names.index(name) if is_column else most
        if name in literals or index in at:
            raise analysis.text.error(f"{info.signature} is given {name} twice; leave one out", each)
        if is_column:
            at[index] = value
        else:
            literals[name] = _constant(analysis, value)
    try:
        check_known(info, literals)
    except RejectedError as error:
        raise analysis.text.error(error.message, call.head, code=error.code) from None
    missing_name = next(
        (name for index, name in enumerate(info.input_names[: max(at, default=0)]) if index not in at), None
    )
    if missing_name is not None:
        raise analysis.text.error(
            f"{info.signature} is given {info.input_names[max(at)]} without {missing_name}, which comes before it; "
            f"give {missing_name}, too: only the last arguments may be left out",
            call.head,
        )
    columns = [at[index] for index in sorted(at)]
    if call.is_within and len(columns) < info.inputs_min:  # an ordered-set aggregate: it folds what it is ordered by
        columns += [order.span for order in call.order][: info.inputs_min - len(columns)]
    if not info.inputs_min <= len(columns) <= most:
        given_count = len(columns) + len(direct) - len(behind)
        expected = str(most) if info.inputs_min == most else f"{info.inputs_min} to {most}"
        raise analysis.text.error(
            f"{info.signature} takes {expected} argument{'' if expected == '1' else 's'}, and {given_count} "
            f"{'is' if given_count == 1 else 'are'} given",
            call.head,
            code="SCHEMA_MISMATCH",
        )
    return tuple(columns), literals


def guard_calls(analysis: Analysis, edits: Edits, span: Span, holds: str) -> str:
    """Return the text of an expression in which scalar functions get only the rows where a condition holds.

    Spark evaluates a Python UDF and its arguments for all rows, whatever stands around it. A function that is not
    deterministic stays as it is.
    """
    within, mapped_entries = edits.copy(), analysis.catalog.mapped
    for call in calls_in(analysis.text, span, mapped_entries, skip=queries_in(analysis.text, span), nested=True):
        entry = mapped_entries[call.name]
        if entry.is_table or not entry.handle.info.deterministic or not is_expression(analysis.text, call):
            continue
        columns, literals = given_arguments(analysis, call, entry.handle.info)
        form = entry.zoned_form if call.span.start in analysis.zoned else entry
        udf = analysis.catalog.scalar_udf(analysis.spark, form, literals, is_guarded=True)
        arguments = [part for column in columns for part in (f", CASE WHEN {holds} THEN ", column, " END")]
        within.arrange(Span(call.span.start, call.closing + 1), [f"{udf}({holds}", *arguments, ")"])
    return within.render(span)


def _constant(analysis: Analysis, span: Span) -> Any:
    """Return the value of a direct argument, which Spark computes."""
    token = analysis.text.tokens[span.start]
    if len(span.indexes) == 1 and token.kind == "string" and "\\" not in token.text:
        return token.value
    if len(span.indexes) == 1 and re.fullmatch(r"\d+|\d*\.\d+", token.text):
        return float(token.text) if "." in token.text else int(token.text)
    try:
        value = analysis.df(f"SELECT {analysis.edits.render(span)}").collect()[0][0]
    except SPARK_ERRORS:
        raise analysis.text.error("a direct argument is a constant; give a number or a text", span) from None
    return float(value) if isinstance(value, Decimal) else value


def _rewrite_call(analysis: Analysis, edits: Edits, call: ParsedCall, query: ParsedQuery, block: Block | None) -> None:
    """Replace a call by a function over the list of its rows.

    Raises:
        SqlError: For arguments that do not fit the function.
    """
    columns, literals = arguments_of(analysis, call)
    entry = analysis.catalog.entries[call.name]
    fields, indexes = _fields(analysis, call, columns)
    for each in fields:
        for nested_call in _nested_calls(analysis, each):
            _rewrite_call(analysis, edits, nested_call, query, block)
    try:
        spark_types = _types(analysis, edits, call, fields, query, block)
    except SPARK_ERRORS as error:
        # Spark refuses the whole statement, too, and then tells the position.
        analysis.type_errors.append(analysis.text.error(analysis.catalog.as_written(spark_message(error)), call.head))
        _replace(analysis, edits, call, _STAND_IN, fields, None)
        return
    actual = None if spark_types is None else _arrow_types(analysis, call, fields, spark_types)
    values = _values(analysis, edits, call, fields, spark_types)
    types = _argument_types(analysis, entry, call, columns, actual)
    _check_keys(analysis, call, indexes, actual)
    _check_compared(analysis, call, fields[: len(columns)], indexes, spark_types)
    try:
        udf, result, spark_result = analysis.catalog.udf(
            analysis.spark,
            entry,
            types,
            distinct=call.distinct,
            order=[
                (index, order.descending, order.nulls_first) for index, order in zip(indexes, call.order, strict=True)
            ],
            literals=literals,
            given=(spark_types or ())[: len(columns)],
            is_over=call.is_over,
        )
    except RejectedError as error:
        message = error.message
        if error.code == "SCHEMA_MISMATCH":
            message += f"; the types of the arguments here are ({', '.join(map(spark_name, types))})"
        raise analysis.text.error(message, call.head, code=error.code) from None
    _replace(analysis, edits, call, udf, fields, values)
    if result != spark_result:
        call_text = edits.render(call.span)
        edits.replace(call.span, interval_text(call_text, spark_result, result))


def _check_keys(
    analysis: Analysis, call: ParsedCall, indexes: Sequence[int], actual: Sequence[pa.DataType] | None
) -> None:
    """Refuse keys of ORDER BY that have no order."""
    for index, order in zip(indexes, call.order, strict=True):
        if actual is not None and is_nested(actual[index]):
            raise analysis.text.error(
                f"{call.name} cannot be ordered by {analysis.text.slice(order.span)}, which is "
                f"{spark_name(actual[index])}; order by numbers, texts, bytes, dates or times",
                order.span,
                code="SCHEMA_MISMATCH",
            )


def _check_compared(
    analysis: Analysis,
    call: ParsedCall,
    columns: Sequence[Span],
    indexes: Sequence[int],
    spark_types: Sequence[st.DataType] | None,
) -> None:
    """Refuse a call that compares values which Spark compares in another way, or cannot compare."""
    if spark_types is None:
        return
    slice_, name = analysis.text.slice, analysis.catalog.entries[call.name].handle.name
    arguments = [(slice_(span), type_) for span, type_ in zip(columns, spark_types, strict=False)]
    order = [(slice_(each.span), spark_types[index]) for index, each in zip(indexes, call.order, strict=True)]
    try:
        check_compared(name, arguments, order, is_distinct=call.distinct, user_name=call.name)
    except RejectedError as error:
        raise analysis.text.error(error.message, call.head, code=error.code) from None


def _foresee_types(
    analysis: Analysis, edits: Edits, calls: Sequence[ParsedCall], query: ParsedQuery, block: Block
) -> None:
    """Ask Spark once for the types of all arguments in a block. If it refuses them, each call asks for its own."""
    spans = [
        span
        for call in calls
        for span in (*call.arguments, *(each.span for each in call.order))
        if not (span.is_empty or analysis.text.slice(span) == "*" or analysis.text.says(span.start + 1, "=>"))
        and not _nested_calls(analysis, span)  # those are not rewritten yet
    ]
    if len(calls) > 1:
        with suppress(*PLANNING_ERRORS):
            analysis.types(_rows_of(analysis, edits, query, block), [edits.render(span) for span in spans])


def _rows_of(analysis: Analysis, edits: Edits, query: ParsedQuery, block: Block) -> Callable[[str], str]:
    return lambda select: analysis.below(query, block, select, edits, is_filtered=False)


def _fields(analysis: Analysis, call: ParsedCall, columns: Sequence[Span]) -> tuple[list[Span], list[int]]:
    """Return the fields of a list's structs, and which of them are the keys of the order; no field is repeated."""
    fields, indexes = list(columns), []
    for order in call.order:
        key = analysis.text.normal(order.span)
        known_indexes = [index for index, span in enumerate(fields) if analysis.text.normal(span) == key]
        if not known_indexes:
            fields.append(order.span)
        indexes.append(known_indexes[0] if known_indexes else len(fields) - 1)
    return fields, indexes


def _types(
    analysis: Analysis, edits: Edits, call: ParsedCall, fields: Sequence[Span], query: ParsedQuery, block: Block | None
) -> list[st.DataType] | None:
    """Return Spark's types of the columns of a call, or None where Spark cannot tell them for a part of the statement.

    Raises Spark's refusal of the arguments, if the types of the function depend on them.
    """
    if not fields:
        return []
    rows: Callable[[str], str] | None
    if block is None:
        query = next(each for each in query.walk() if each.span.holds(call.span))
        rows = _rows_outside(analysis, edits, call, query)
    else:
        rows = _rows_of(analysis, edits, query, block)
    if rows is None:
        return None
    expressions = [edits.render(each) for each in fields]
    try:
        return [field.dataType for field in _types_over(analysis, edits, rows, query, expressions)]
    except UnsupportedError as error:
        if analysis.catalog.entries[call.name].types is None:
            raise analysis.text.error(
                f"the types of the arguments of {call.name} cannot be told: {error}. Spark allows no aggregates of the "
                "rows of a recursion in the recursion itself; aggregate in the query that reads its result",
                call.head,
            ) from None
        return None  # Spark refuses the whole statement, with the place
    except SPARK_ERRORS:
        if analysis.catalog.entries[call.name].types is None:
            raise
        return None  # Spark refuses the whole statement, with the position


def _arrow_types(
    analysis: Analysis, call: ParsedCall, fields: Sequence[Span], spark_types: Sequence[st.DataType]
) -> list[pa.DataType]:
    """Return the types in which the columns of a call are passed to Python. Raises SqlError for one that is not."""
    roles = [f"the argument {analysis.text.slice(each)!r} of {call.name}" for each in fields]
    counts = analysis.catalog.entries[call.name].handle.info.name == "count" and not call.distinct  # without Python
    if analysis.catalog.entries[call.name].types is None:  # the built-in functions get months
        spark_types = [st.IntegerType() if is_months(type_) else type_ for type_ in spark_types]
    schema = st.StructType([st.StructField(str(index), type_) for index, type_ in enumerate(spark_types)])
    try:
        return [field.type for field in arrow_fields(schema, roles, are_passed=not counts)]
    except RejectedError as error:
        raise analysis.text.error(error.message, call.head, code=error.code) from None


def declared_types(
    analysis: Analysis, entry: Entry, call: ParsedCall, spark_types: Sequence[st.DataType]
) -> list[st.DataType | None]:
    """Return Spark's types for the arguments of a call as its function declares them; None for one that stays.

    Raises:
        SqlError: For an argument that does not fit.
    """
    columns, _ = arguments_of(analysis, call)
    actual = _arrow_types(analysis, call, columns, spark_types[: len(columns)])
    types = _argument_types(analysis, entry, call, columns, actual)
    storages = [
        None if wanted_type == known_type else result_storage_type(wanted_type)
        for wanted_type, known_type in zip(types, actual, strict=True)
    ]
    return [None if storage is None else spark_type(storage) for storage in storages]


def _types_over(
    analysis: Analysis, edits: Edits, rows: Callable[[str], str], query: ParsedQuery, expressions: Sequence[str]
) -> list[st.StructField]:
    """Return the types of expressions over rows, which may be made of a row of a SELECT around them.

    Raises Spark's refusal of the rows by themselves.
    """
    try:
        return analysis.types(rows, expressions)
    except SPARK_ERRORS:
        inner = query
        while (outer := inner.parent) is not None:
            block = next((each for each in outer.blocks if each.span.holds(inner.span)), None)
            tables = Span(0, 0) if block is None else _tables_before(analysis.text, block.clause("FROM"), inner.span)
            if not tables.is_empty:
                beside = partial(_beside, analysis, edits, rows, outer, tables)
                with suppress(*SPARK_ERRORS):
                    return analysis.types(beside, expressions)
            pipes = _pipes_before(analysis.text, outer, inner.span.start) if block is None else []
            if pipes:
                behind = partial(_behind, analysis, edits, rows, outer, pipes[-1])
                with suppress(*SPARK_ERRORS):
                    return analysis.types(behind, expressions)
            inner = outer
        raise


def _tables_before(text: Text, source: Span, inner: Span) -> Span:
    """Return the tables behind FROM to whose columns a query may refer: all, or those before it if it is one."""
    if not source.holds(inner):
        return source
    stop = inner.start - 1  # the parenthesis of the query
    while stop > source.start and text.upper(stop - 1) in _JOINS:
        stop -= 1
    return Span(source.start, stop)


def _beside(
    analysis: Analysis, edits: Edits, rows: Callable[[str], str], outer: ParsedQuery, tables: Span, select: str
) -> str:
    """Return how to select from rows that are made of a row of some tables."""
    sql = f"SELECT `rows`.* FROM {edits.render(tables)}, LATERAL ({rows(select)}) AS `rows`"
    return analysis.seeing(outer, tables.start, sql, edits)


def _behind(
    analysis: Analysis, edits: Edits, rows: Callable[[str], str], outer: ParsedQuery, pipe: int, select: str
) -> str:
    """Return how to select from rows that are made of a row before a pipe."""
    before = edits.render(Span(outer.span.start, pipe))
    sql = f"{before} |> CROSS JOIN LATERAL ({rows(select)}) AS `rows` |> SELECT `rows`.*"
    return analysis.seeing(outer, outer.span.start, sql, edits)


def _pipes_before(text: Text, query: ParsedQuery, index: int) -> list[int]:
    return [at for at in text.flat(query.span) if text.says(at, "|>") and at < index]


def _rows_outside(
    analysis: Analysis, edits: Edits, call: ParsedCall, around: ParsedQuery
) -> Callable[[str], str] | None:
    """Return how to select from the rows of a call in PIVOT or behind `|>`; None elsewhere."""
    text = analysis.text
    pipes = _pipes_before(text, around, call.span.start)
    if pipes:
        # A subquery of FROM would hide the tables by whose names an operator may qualify columns.
        rows = edits.render(Span(around.span.start, pipes[-1]))
        return lambda select: analysis.seeing(around, around.span.start, f"{rows} |> SELECT {select}", edits)
    for block in around.blocks:
        source = block.clause("FROM")
        for at in text.flat(source):
            if text.says(at, "PIVOT", "(") and at < call.span.start < text.partner[at + 1]:
                rows, start = edits.render(Span(source.start, at)), block.span.start
                return lambda select: analysis.seeing(around, start, f"SELECT {select} FROM {rows}", edits)
    return None


def _argument_types(
    analysis: Analysis, entry: Entry, call: ParsedCall, columns: Sequence[Span], actual: Sequence[pa.DataType] | None
) -> Sequence[pa.DataType]:
    """Return the types with which a function is described: the declared ones, if there are any."""
    if entry.types is None:
        if actual is None:
            if not columns:
                return []
            # Spark refuses the statement, or will not tell types here: its message about the arguments is the best one.
            raise analysis.text.error(
                f"the types of the arguments of {call.name} cannot be told here, and it is registered without types; "
                "aggregate in a subquery of FROM, or give it a name with types: CREATE AGGREGATE "
                f"typed_{entry.handle.name}(type) RETURNS type AS '{entry.handle.name}'",
                call.head,
            )
        return actual[: len(columns)]
    types = entry.types_for(actual or ())
    for span, actual_type, wanted_type, name in zip(
        columns, actual or (), types, entry.handle.info.input_names, strict=False
    ):
        if not can_widen(actual_type, wanted_type):
            raise analysis.text.error(
                f"{entry.name} takes {spark_name(wanted_type)} for its argument {name}, and this is "
                f"{spark_name(actual_type)}; {zone_remedy(actual_type, wanted_type)}write "
                f"CAST({analysis.text.slice(span)} AS "
                f"{spark_name(wanted_type)})",
                span,
                code="SCHEMA_MISMATCH",
            )
    return types[: len(columns)]


def _values(
    analysis: Analysis,
    edits: Edits,
    call: ParsedCall,
    fields: Sequence[Span],
    spark_types: Sequence[st.DataType] | None,
) -> list[str] | None:
    """Return the fields of a call if they are not the columns as they are written, otherwise None.

    In a call with FILTER scalar functions are guarded, unless the condition has calls: it may differ each time, as
    rand() > 0.5. Of intervals of years and months the months are passed.
    """
    field_texts = list(map(edits.render, fields))
    values = field_texts
    if call.condition is not None and not has_calls(analysis.text, call.condition):
        holds = f"CAST(({edits.render(call.condition)}) AS BOOLEAN)"
        values = [guard_calls(analysis, edits, each, holds) for each in fields]
    if spark_types is not None:
        values = [months_text(sql) if is_months(type_) else sql for sql, type_ in zip(values, spark_types, strict=True)]
        entry = analysis.catalog.entries[call.name]
        # The types of its results depend on the types of its columns.
        if entry.is_declared and entry.handle.info.input_types is None:
            for index, declared_type in enumerate(declared_types(analysis, entry, call, spark_types)):
                if isinstance(declared_type, st.DecimalType) and isinstance(spark_types[index], st.IntegralType):
                    values[index] = f"CAST({values[index]} AS {declared_type.simpleString()})"
    return None if values == field_texts else values


def _replace(
    analysis: Analysis, edits: Edits, call: ParsedCall, udf: str, fields: Sequence[Span], values: Sequence[str] | None
) -> None:
    """Write `udf(collect_list(named_struct('0', a)) FILTER (WHERE c))` for `f(a) FILTER (WHERE c)`.

    Each argument stays a range of its own between replacements, so that Spark's errors in it have their
    position, unless other texts are given for the fields.
    """
    stop = call.span.stop
    text = analysis.text
    # Spark evaluates the arguments of a call with OVER for all rows, also where FILTER does not hold.
    guard = edits.render(call.condition) if call.condition is not None and call.is_over else None
    opening, ending = (f"CASE WHEN {guard} THEN ", " END") if guard else ("", "")  # collect_list leaves NULL out
    words = ("OVER",) if guard else ("FILTER", "OVER")
    end = next((at for at in text.flat(Span(call.closing + 1, stop)) if text.upper(at) in words), stop)
    is_plain = end == stop
    close = ")" if is_plain else " "
    written_spans = [*call.arguments, *(order.span for order in call.order)]
    if not fields:
        edits.replace(Span(call.span.start, end), f"{udf}(collect_list({opening}true{ending}){close}")
    elif values is None and list(fields) == written_spans and not call.is_within:
        start = Span(call.span.start, fields[0].start)
        edits.replace(start, f"{udf}(collect_list({opening}named_struct('0', ")
        for number, (before, after) in enumerate(itertools.pairwise(fields), 1):
            edits.replace(Span(before.stop, after.start), f", '{number}', ")
        edits.replace(Span(fields[-1].stop, end), f"){ending}){close}")
    else:
        values = values or list(map(edits.render, fields))
        struct_items = ", ".join(f"'{number}', {each}" for number, each in enumerate(values))
        edits.replace(
            Span(call.span.start, end), f"{udf}(collect_list({opening}named_struct({struct_items}){ending}){close}"
        )
    if not is_plain:
        edits.replace(Span(stop - 1, stop), f"{text.tokens[stop - 1].text})")
