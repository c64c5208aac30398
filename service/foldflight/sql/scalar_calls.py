"""Scalar and table functions in a statement.

Spark knows these functions under their names, so most statements reach it unchanged. Three uses are rewritten: direct
arguments, `scale(x, factor => 2)`, table functions in LATERAL VIEW, for which Spark needs a generator of its own, and
functions with `datetime` over timestamps with a zone, since a UDF of Spark has one type.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from foldflight.engine.query.blocks import without_nullability
from foldflight.errors import RejectedError
from foldflight.functions import can_widen, parse_type
from foldflight.functions.query.call import check_names
from foldflight.spark.columns import spark_name
from foldflight.spark.versions.facts import PLAIN_TABLES
from foldflight.spark.versions.types import arrow_type
from foldflight.sql.analysis import PLANNING_ERRORS, Analysis
from foldflight.sql.blocks import ParsedQuery
from foldflight.sql.calls import ParsedCall, calls_in
from foldflight.sql.catalog import ScalarEntry
from foldflight.sql.list_plan import given_arguments, is_expression
from foldflight.sql.text import Span, Text

_EXPRESSIONS: Final = ("SELECT", "WHERE", "GROUP BY", "HAVING")
_OUTER_JOINS: Final = ("LEFT", "RIGHT", "FULL", "SEMI", "ANTI")
_BEFORE_TABLES: Final = ("FROM", "JOIN", "LATERAL", ",")


def rewrite_scalar(analysis: Analysis) -> bool:
    """Check the calls of scalar and table functions, and return whether some of them had to be rewritten.

    Raises:
        SqlError: For a wrong number of arguments, or direct arguments that the function does not have.
    """
    text, is_rewritten = analysis.text, False
    for call in calls_in(text, Span(0, len(text)), analysis.catalog.mapped, nested=True):
        entry = analysis.catalog.mapped[call.name]
        is_view = text.says(call.span.start - 2, "LATERAL", "VIEW") or text.says(
            call.span.start - 3, "LATERAL", "VIEW", "OUTER"
        )
        if not (is_view or _is_call(text, call, entry)):
            continue
        columns, literals = given_arguments(analysis, call, entry.handle.info)
        try:
            check_names(entry.handle.info, literals)
        except RejectedError as error:
            raise text.error(error.message, call.head, code=error.code) from None
        if (
            is_view
            or (entry.is_table and not PLAIN_TABLES.has())
            or len(columns) < len(entry.types)
            or literals
            or any(text.says(each.start + 1, "=>") for each in call.arguments)
        ):
            is_rewritten = True
            _rewrite(analysis, call, entry, columns, literals)
    return is_rewritten


def check_types(analysis: Analysis, query: ParsedQuery) -> bool:
    """Refuse arguments of scalar functions that do not fit, where Spark can tell their types.

    It is asked once for each SELECT, and again after calls over timestamps with a zone were rewritten: their results
    have a zone, too. Elsewhere, and for arguments that it refuses where they stand, the function itself refuses them
    when it gets rows.

    Returns:
        Whether calls were rewritten.

    Raises:
        SqlError: SCHEMA_MISMATCH, at the argument.
    """
    text, catalog = analysis.text, analysis.catalog
    for each in query.walk():
        for block in each.blocks:
            calls = [
                call
                for name in _EXPRESSIONS
                for call in calls_in(text, block.clause(name), catalog.mapped, skip=block.inner, nested=True)
                if not catalog.mapped[call.name].is_table and is_expression(text, call)
            ]
            if not calls:
                continue
            rows = partial(analysis.below, each, block, edits=analysis.edits, is_filtered=False)
            try:
                arguments_by_call = _arguments_of(analysis, calls, rows)
                while any(list(itertools.starmap(partial(_with_zone, analysis), arguments_by_call.items()))):
                    arguments_by_call = _arguments_of(analysis, calls, rows)
            except (*PLANNING_ERRORS, RejectedError):
                continue
            for call, arguments in arguments_by_call.items():
                _check_arguments(analysis, catalog.mapped[call.name], arguments)
    return bool(analysis.zoned)


def _arguments_of(
    analysis: Analysis, calls: Sequence[ParsedCall], rows: Callable[[str], str]
) -> dict[ParsedCall, list[tuple[Span, pa.DataType]]]:
    """Return the arguments of each call and their types. Raises Spark's refusals."""
    mapped_entries = analysis.catalog.mapped
    columns = {call: given_arguments(analysis, call, mapped_entries[call.name].handle.info)[0] for call in calls}
    spans = [span for each in columns.values() for span in each]
    fields = analysis.types(rows, [analysis.edits.render(span) for span in spans])
    types = iter([without_nullability(arrow_type(field.dataType)) for field in fields])
    return {call: [(span, next(types)) for span in each] for call, each in columns.items()}


def _with_zone(analysis: Analysis, call: ParsedCall, typed_arguments: Sequence[tuple[Span, pa.DataType]]) -> bool:
    """Call the function's form for timestamps with a zone, if its result has one and the call is not of this form.

    Returns:
        Whether the call was rewritten.
    """
    entry = analysis.catalog.mapped[call.name]
    if call.span.start in analysis.zoned or not entry.has_own_types or entry.zoned_form.returns == entry.returns:
        return False
    if (
        entry.handle.info.for_types([type_ for _, type_ in typed_arguments]).input_types
        == entry.handle.info.input_types
    ):
        return False
    analysis.zoned.add(call.span.start)
    _, literals = given_arguments(analysis, call, entry.handle.info)
    _rewrite(analysis, call, entry.zoned_form, tuple(span for span, _ in typed_arguments), literals)
    return True


def check_joins(analysis: Analysis, query: ParsedQuery) -> None:
    """Refuse scalar functions over columns of both sides in ON of an outer join, which Spark refuses when it runs.

    Only Spark knows whose columns they are, so it is asked for its plan.

    Raises:
        SqlError: SIGNATURE, at the first of these functions.
    """
    text, mapped_entries = analysis.text, analysis.catalog.mapped
    for each in query.walk():
        for block in each.blocks:
            source = block.clause("FROM")
            joins = [at for at in text.flat(source) if text.upper(at) in _OUTER_JOINS]
            calls = [] if not joins else list(calls_in(text, source, mapped_entries, skip=block.inner, nested=True))
            call = next((call for call in calls if call.span.start > joins[0] and is_expression(text, call)), None)
            if call is None:
                continue
            try:
                rows = analysis.below(each, block, "1", analysis.edits, is_filtered=False)
                plan = "\n".join(row[0] for row in analysis.df(f"EXPLAIN {rows}").collect())
            except PLANNING_ERRORS:
                continue  # it is correlated, or Spark refuses the statement in its own words
            if "PYTHON_UDF_IN_ON_CLAUSE" in plan:
                raise text.error(
                    f"Spark does not run {call.name} over columns of both sides in ON of an outer join; join the pairs "
                    f"in a subquery first, FROM a JOIN b ON {call.name}(...), and join them to a by its key",
                    call.head,
                    code="SIGNATURE",
                )


def _check_arguments(
    analysis: Analysis, entry: ScalarEntry, typed_arguments: Sequence[tuple[Span, pa.DataType]]
) -> None:
    info = entry.handle.info
    input_texts = info.for_types([type_ for _, type_ in typed_arguments]).input_types
    wanted_types = (
        tuple(map(parse_type, input_texts)) if entry.has_own_types and input_texts is not None else entry.types
    )
    for index, ((span, type_), other) in enumerate(zip(typed_arguments, wanted_types, strict=False)):
        if not can_widen(type_, other):
            name = spark_name(other)
            raise analysis.text.error(
                f"{entry.name} takes {name} for its argument {entry.arguments[index].name}, and this is "
                f"{spark_name(type_)}; write CAST({analysis.text.slice(span)} AS {name})",
                span,
                code="SCHEMA_MISMATCH",
            )


def _is_call(text: Text, call: ParsedCall, entry: ScalarEntry) -> bool:
    """Return whether a call is one, rather than the name of a relation with its columns."""
    if entry.is_table:
        return text.upper(call.span.start - 1) in _BEFORE_TABLES
    return is_expression(text, call)


def _rewrite(
    analysis: Analysis, call: ParsedCall, entry: ScalarEntry, columns: tuple[Span, ...], literals: Mapping[str, Any]
) -> None:
    """Write `udf(x)` for `scale(factor => 2, value => x)`, and `inline(udf(x))` for a table function.

    The columns come in the order of the function's arguments. They stay ranges of their own, because they may have
    calls that are rewritten, too.
    """
    udf = analysis.catalog.scalar_udf(analysis.spark, entry, literals)
    begin, end = (f"inline({udf}(", "))") if entry.is_table else (f"{udf}(", ")")
    commas = [part for column in columns for part in (", ", column)]
    analysis.edits.arrange(Span(call.span.start, call.closing + 1), [begin, *commas[1:], end])
