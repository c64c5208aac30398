"""The plan of a lifted batch: the trees of its calls as expressions of Spark SQL, aggregated by Spark.

    rows > parts of large products > limbs > groupBy(keys).agg(...) > mapInArrow(LiftedFold)

Parts are columns of their own, because Spark would compute them again in each aggregation that uses them. The result
needs no shuffle of its own: Spark's aggregation has put each group into one partition.

Only old functions of Spark SQL are used. Their differences from Python are written out: a comparison with NaN is false,
and a sum beyond 64 bits is NULL (`try_sum`), in ANSI mode too, so that `LiftedFold` makes an error of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from foldflight.engine.batch.lifted import ROWS, LiftedFold, aggregate_name
from foldflight.engine.query.layout import KIND, LIVE, RETRACTING
from foldflight.engine.query.query import Query
from foldflight.lift import Aggregate, Expr, Failure, Plan
from foldflight.spark.steps import arrow_function, spark_schema, step_of

__all__ = ["lifted_result"]

_SIGN: Final = f"CASE WHEN {KIND} IN ({', '.join(map(str, RETRACTING))}) THEN -1L ELSE 1L END"


def lifted_result(query: Query, rows: DataFrame) -> DataFrame:
    """Return the result of a batch query that is lifted.

    Args:
        query: The query, whose calls all have plans.
        rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
    """
    plans = query.lifting.plans
    layout = query.layout
    keys = list(layout.keys.names)
    own = dict(zip(layout.shown, layout.columns.names, strict=True))
    types = dict(zip(layout.columns.names, layout.columns.types, strict=True))
    names = {column: name for name, column in own.items()} | dict(zip(keys, layout.names, strict=True))
    calls = [
        _Call(
            plan=plan,
            arguments=[own[name] for name in call.arguments],
            filter=None if call.filter is None else own[call.filter],
            function=call.function,
            keys=keys,
            types=types,
            names=names,
        )
        for plan, call in zip(plans, query.opening.calls, strict=True)
    ]
    parts = _parts(calls)
    kept = [*keys, *([KIND] if layout.has_kinds else []), *layout.columns.names]
    with_parts = rows.select(*kept, *(sf.expr(text).alias(name) for text, name in parts.items())) if parts else rows
    limbs: dict[str, Column] = {}
    aggregates: list[Column] = []
    if layout.has_kinds:
        limbs[LIVE] = sf.expr(_SIGN)
        aggregates.append(sf.sum(LIVE).alias(LIVE))
    task = LiftedFold(query, merges=True, plans=plans)
    if task.counts_rows:
        aggregates.append(sf.count(sf.lit(1)).alias(ROWS))
    for number, call in enumerate(calls):
        for place, aggregate in enumerate(call.plan.aggregates):
            name = aggregate_name(number, place)
            limbs[name] = sf.expr(call.limb(aggregate, parts, raises=place == 0))
            aggregates.append(sf.expr(_AGGREGATIONS[aggregate.kind].format(name)).alias(name))
    arguments = with_parts.select(*keys, *(column.alias(name) for name, column in limbs.items()))
    grouped = arguments.groupBy(*keys).agg(*aggregates)
    ordered = grouped.select(*task.input.names)
    return ordered.mapInArrow(
        arrow_function(task, step_of(query, "lifted"), query.traced), spark_schema(query, rows, layout.results)
    )


_AGGREGATIONS: Final = {
    "sum": "sum({})",
    "wide sum": "try_sum({})",
    "count": "count({})",
    "min": "min({})",
    "max": "max({})",
}


@dataclass(frozen=True)
class _Call:
    """One call of the query.

    Args:
        plan: Its plan.
        arguments: The columns of its arguments.
        filter: The column of its FILTER.
        function: The name of the function.
        keys: The columns of the keys.
        types: The types of columns.
        names: The user's names of columns.
    """

    plan: Plan
    arguments: Sequence[str]
    filter: str | None
    function: str
    keys: Sequence[str]
    types: Mapping[str, pa.DataType]
    names: Mapping[str, str]

    def limb(self, aggregate: Aggregate, parts: Mapping[str, str], *, raises: bool) -> str:
        """Return what is aggregated of each row, as SQL.

        Args:
            aggregate: The aggregate.
            parts: The columns that are computed before, by their texts.
            raises: Whether this column raises the errors of the author's method.
        """
        failures = self.plan.lift.failures if raises else ()
        cases = [f"WHEN {self._when(each.when, parts)} THEN raise_error({self._error(each)})" for each in failures]
        for part in aggregate.cases:
            value = self.text(part.value, parts)
            cases.append(f"WHEN {self._when(part.when, parts)} THEN {value}")
        return f"CASE {' '.join(cases)}{' ELSE 0L' if aggregate.kind.endswith('sum') else ''} END"

    def _error(self, failure: Failure) -> str:
        """Return the text of the error for a row, as SQL."""
        remedy = "; skip_nulls=True or FILTER leaves out rows with NULL" if failure.by_null else ""
        texts = [_text(f"foldflight: USER_CODE: {failure.text}{remedy}\n  function: {self.function}")]
        for title, columns in (("group", self.keys), ("row", self.arguments)):
            for place, column in enumerate(columns):
                begin = f"\n  {title}: " if place == 0 else ", "
                name = self.names.get(column, column)
                texts += [_text(f"{begin}{name}="), f"coalesce(CAST({column} AS STRING), 'NULL')"]
        return f"concat({', '.join(texts)})"

    def _when(self, condition: Expr, parts: Mapping[str, str]) -> str:
        text = self.text(condition, parts)
        return text if self.filter is None else f"(coalesce({self.filter}, false) AND {text})"

    def text(self, expr: Expr, parts: Mapping[str, str]) -> str:
        """Return an expression as SQL."""
        text = self._text(expr, parts)
        return parts.get(text, text)

    def _text(self, expr: Expr, parts: Mapping[str, str]) -> str:
        if expr.op == "arg":
            return self._argument(expr)
        if expr.op == "const":
            return _constant(expr.value)
        if expr.op in ("low", "high"):
            one, bits = expr.parts
            inner = self.text(one, parts)
            return f"({inner} & {(1 << bits) - 1}L)" if expr.op == "low" else f"shiftright({inner}, {bits})"
        operands = [self.text(each, parts) for each in expr.parts]
        if expr.op in _COMPARISONS:
            return self._comparison(expr, operands)
        if expr.op == "and":
            return f"({' AND '.join(operands)})"
        return _OPERATIONS[expr.op].format(*operands)

    def _comparison(self, expr: Expr, operands: Sequence[str]) -> str:
        one, other = operands
        compared = f"{one} {_COMPARISONS[expr.op]} {other}"
        if expr.parts[0].kind != "float":
            return f"({compared})"
        if expr.parts[0] == expr.parts[1]:  # only NaN differs from itself, and is less than nothing
            return f"(NOT isnan({one}))" if expr.op != "lt" else "false"
        # In Spark NaN equals itself and is greater than all numbers.
        numbers = [f"NOT isnan({text})" for text, part in zip(operands, expr.parts, strict=True) if not part.is_const]
        return f"({' AND '.join([compared, *numbers])})"

    def _argument(self, expr: Expr) -> str:
        name = self.arguments[expr.parts[0]]
        if expr.kind == "int" and self.types[name] != pa.int64():
            return f"CAST({name} AS BIGINT)"
        if expr.kind == "float" and self.types[name] != pa.float64():
            return f"CAST({name} AS DOUBLE)"
        return name


_OPERATIONS: Final = {
    "sign": f"({_SIGN})",
    "add": "({} + {})",
    "neg": "(-{})",
    "mul": "({} * {})",
    # A divisor is not zero where its quotient is used, but Spark may compute it before the condition that says so.
    "div": "({} / nullif({}, 0.0D))",
    "float": "CAST({} AS DOUBLE)",
    "int": "CAST({} AS BIGINT)",
    "not": "(NOT {})",
    "null": "({} IS NULL)",
}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "="}


def _parts(calls: Sequence[_Call]) -> dict[str, str]:
    """Return the expressions that are cut into several limbs, with names for their columns."""
    cut: Counter[str] = Counter()
    for call in calls:
        for aggregate in call.plan.aggregates:
            found = {
                call.text(each.parts[0], {})
                for case in aggregate.cases
                for each in case.value.walk()
                if each.op in ("low", "high") and each.parts[0].op in ("mul", "add")
            }
            cut.update(found)
    repeated = [text for text, times in cut.items() if times > 1]
    return {text: f"part_{number}" for number, text in enumerate(repeated)}


def _constant(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}L" if abs(value) < 1 << 62 else f"CAST('{value}' AS BIGINT)"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case str():
            return _text(value)
        case _:
            raise TypeError(value)


def _text(value: str) -> str:
    """Return a text as SQL, whatever letters it has and however the session reads backslashes."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"
