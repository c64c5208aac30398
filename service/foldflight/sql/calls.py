"""Calls of functions in a statement."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from foldflight.sql.blocks import ParsedQuery
from foldflight.sql.text import Span, Text

AGGREGATES: Final = frozenset(
    """any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate approx_top_k_combine
    array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list
    collect_set corr count count_if count_min_sketch covar_pop covar_samp every first first_value grouping grouping_id
    histogram_numeric hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value listagg max max_by mean
    measure median min min_by mode percentile percentile_approx percentile_cont percentile_disc product regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy schema_of_json_agg
    schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum theta_intersection_agg
    theta_sketch_agg theta_union_agg try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp
    variance vector_avg vector_sum""".split()  # noqa: SIM905 - a list of a hundred names in quotes is hard to read
)
"""Names of Spark's aggregates. A plan is right without this list; with it, more blocks are folded and reasons are
clearer."""

GRAMMAR: Final = frozenset(
    """aggregate all and as between both by case cast char character check columns cube cumulate dateadd datediff
    date_add date_diff dec decimal default distinct div else elseif end except exists extend extract filter for from
    group having hop identifier ilike in intersect interval join json_table key lateral leading like limit
    match_condition minus not null numeric offset on options or over overlay partition partitioned pivot placing
    position properties qualify regexp return rlike rollup rows select session setminus sets struct substr substring
    table tablesample tblproperties then timediff timestampadd timestampdiff trailing trim try_cast tumble union
    unique unpivot until using values varchar watermark when where while with""".split()  # noqa: SIM905 - as above
)
"""Words behind which a parenthesis begins something else than the arguments of a function. As the name of a function
such a word needs backquotes."""


@dataclass(frozen=True)
class SortItem:
    """One expression of ORDER BY in a call.

    Args:
        span: Its tokens; none if the expression is missing.
        descending: Whether larger values come first.
        nulls_first: Whether NULL comes first.
    """

    span: Span
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class ParsedCall:
    """One call: `f(DISTINCT a, b ORDER BY c) WITHIN GROUP (ORDER BY d) FILTER (WHERE e) OVER (...)`.

    Args:
        name: The function's name, in lower case.
        span: All tokens, with FILTER and OVER.
        closing: The place of the parenthesis that ends the arguments.
        arguments: The tokens of each argument.
        distinct: Whether DISTINCT is written.
        order: The expressions of ORDER BY.
        condition: The tokens of the FILTER condition.
        is_within: Whether the order is written as WITHIN GROUP.
        is_over: Whether OVER is written.
        nulls_at: The place of RESPECT NULLS or IGNORE NULLS.
    """

    name: str
    span: Span
    closing: int
    arguments: tuple[Span, ...]
    distinct: bool = False
    order: tuple[SortItem, ...] = ()
    condition: Span | None = None
    is_within: bool = False
    is_over: bool = False
    nulls_at: int | None = None

    @property
    def head(self) -> Span:
        """The tokens of the name and the arguments."""
        return Span(self.span.start, self.closing + 1)

    @property
    def parts(self) -> list[Span]:
        """The tokens of the arguments, the keys of the order, and the condition."""
        return [*self.arguments, *(each.span for each in self.order), *([self.condition] if self.condition else [])]


def call_at(text: Text, index: int) -> ParsedCall | None:
    """Return the call that begins at an index, or None."""
    if index not in text.calls:
        text.calls[index] = _parse_call(text, index)
    return text.calls[index]


def _parse_call(text: Text, index: int) -> ParsedCall | None:
    if index + 1 >= len(text) or not text.tokens[index].is_name or text.says(index - 1, "."):
        return None
    if not text.says(index + 1, "(") or text.upper(index).lower() in GRAMMAR:
        return None
    if text.upper(index) in ("ANY", "SOME") and text.upper(index - 1) in ("LIKE", "ILIKE"):
        return None
    closing = text.partner[index + 1]
    begin = index + 2
    distinct = False
    if text.upper(begin) in ("DISTINCT", "ALL") and begin + 1 < closing and not text.says(begin + 1, ","):
        distinct = text.says(begin, "DISTINCT")
        begin += 1
    ordered_at = next((at for at in text.flat(Span(begin, closing)) if text.says(at, "ORDER", "BY")), closing)
    arguments = tuple(text.split(Span(begin, ordered_at)))
    order = orderings(text, Span(ordered_at + 2, closing)) if ordered_at < closing else ()
    stop, is_within, condition = closing + 1, False, None
    if text.says(stop, "WITHIN", "GROUP", "(") and text.says(stop + 3, "ORDER", "BY"):
        end = text.partner[stop + 2]
        order, is_within, stop = orderings(text, Span(stop + 5, end)), True, end + 1
    if text.says(stop, "FILTER", "(", "WHERE"):
        end = text.partner[stop + 1]
        condition, stop = Span(stop + 3, end), end + 1
    nulls_at = None
    if text.upper(stop) in ("RESPECT", "IGNORE") and text.says(stop + 1, "NULLS"):
        nulls_at, stop = stop, stop + 2
    is_over = text.says(stop, "OVER")
    if is_over:
        stop = text.partner[stop + 1] + 1 if text.says(stop + 1, "(") else stop + 2
    return ParsedCall(
        text.tokens[index].name.lower(),
        Span(index, stop),
        closing,
        arguments,
        distinct,
        order,
        condition,
        is_within,
        is_over,
        nulls_at,
    )


def orderings(text: Text, span: Span) -> tuple[SortItem, ...]:
    """Return the expressions of an ORDER BY. One that is missing is an empty range."""
    return tuple(_ordering(text, each) for each in text.split(span) or [span])


def _ordering(text: Text, span: Span) -> SortItem:
    """Read `expression [ASC | DESC] [NULLS FIRST | NULLS LAST]`. NULLs come first in ascending order, as in Spark."""
    stop, nulls_first = span.stop, None
    if text.says(stop - 2, "NULLS") and text.upper(stop - 1) in ("FIRST", "LAST"):
        nulls_first = text.says(stop - 1, "FIRST")
        stop -= 2
    descending = text.says(stop - 1, "DESC")
    if text.upper(stop - 1) in ("ASC", "DESC"):
        stop -= 1
    return SortItem(Span(span.start, stop), descending, not descending if nulls_first is None else nulls_first)


def calls_in(
    text: Text, span: Span, names: Collection[str], *, skip: Collection[ParsedQuery] = (), nested: bool = False
) -> Iterator[ParsedCall]:
    """Yield the calls of functions in a range, in the order of the text.

    Args:
        text: The statement.
        span: The range.
        names: The names of the functions, in lower case.
        skip: Queries that are not looked into.
        nested: Whether calls within other calls are yielded, too.
    """
    inside = [query.span for query in skip if query.span.start >= span.start]
    resume = span.start
    for index in text.heads:
        if not resume <= index < span.stop or text.tokens[index].name.lower() not in names:
            continue
        if any(each.start <= index < each.stop for each in inside):
            continue
        call = call_at(text, index)
        if call is not None:
            yield call
            resume = index + 1 if nested else call.span.stop
