"""The plan of a lifted batch: the trees of its calls as expressions of Spark SQL, aggregated by Spark.

    rows > parts of large products > groupBy(keys).agg(limbs) > finished states and results

Parts are columns of their own, because Spark would compute them again in each aggregation that uses them. The result
needs no shuffle of its own: Spark's aggregation has put each group into one partition. States and results are made by
expressions (`finishing.py`) if `get_value` of each call is lifted, otherwise by Python (`LiftedFold`).

A sum of integers beyond 64 bits is an error of Spark in ANSI mode. Otherwise, and for DECIMALs, it is NULL, and then an
error of ours.

Spark analyses each step when it is made, in a time that grows with the text. So there are few steps, a text with the
whole error of a row stands in one aggregation, and a step is given as texts, which need one call of Java each. In SQL
the whole plan is a text (`lifted_text`), of which Spark makes all steps at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import LIVE
from foldflight.engine.query.query import Query
from foldflight.ext.lift.plan import Aggregate, LiftPlan
from foldflight.ext.lift.spark.expressions import expression
from foldflight.ext.lift.spark.finishing import finish
from foldflight.ext.lift.tasks import AGGREGATES, ROWS, LiftedFold, aggregate_name
from foldflight.ext.lift.tree import TRUE, Expr
from foldflight.spark.arrow import arrow_function, spark_schema, step_of
from foldflight.spark.expressions import SIGN, Text, error_text, text
from foldflight.spark.types import is_collated
from foldflight.spark.versions.sessions import exact_sum, exact_wide_sum, is_spark

_Rows = TypeVar("_Rows", DataFrame, Text)


def lifted_result(query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
    """Return the result of a batch query that is lifted; see `SparkPlanner.result`."""
    columns = {name: name for name in rows.columns}
    task, grouped = _aggregate_groups(query, _by_bytes(rows), columns, rows.sparkSession)
    if not query.finished_by_host.holds:
        return finished_by_python(query, grouped, rows.schema, outputs)
    if is_spark(rows.sparkSession):
        grouped = grouped.selectExpr(*query.layout.keys.names, f"{AGGREGATES}.*")
    return finish(task, grouped, outputs)


def finished_by_python(
    query: Query, grouped: DataFrame, rows: st.StructType, outputs: Sequence[st.DataType]
) -> DataFrame:
    """Return the result of finished groups, whose states Python makes; see `SparkPlanner.finished_by_python`."""
    task = LiftedFold(query, merges=True, plans=cast("tuple[LiftPlan, ...]", query.lifting.plans))
    schema = spark_schema(query, rows, query.layout.results, outputs)
    return grouped.mapInArrow(arrow_function(task, step_of(query, "lifted"), query.traced), schema)


def lifted_text(
    query: Query,
    rows: Text,
    columns: Mapping[str, str],
    outputs: Sequence[st.DataType],
    session: SparkSession,
    names: Sequence[str] | None = None,
) -> Text:
    """Return the result of a batch query as SQL, or the aggregates of its groups; see `SparkPlanner.text`."""
    task, grouped = _aggregate_groups(query, rows, columns, session)
    if query.finished_by_host.holds:
        return finish(task, grouped, outputs, names)
    if not is_spark(session):
        return grouped.selectExpr(*task.input.names)
    keys = query.layout.keys.names
    return grouped.selectExpr(*keys, f"struct({', '.join(task.input.names[len(keys) :])}) AS {AGGREGATES}")


def _aggregate_groups(
    query: Query, rows: _Rows, columns: Mapping[str, str], session: SparkSession
) -> tuple[LiftedFold, _Rows]:
    """Return keys and aggregates, and the task that makes states and results of them in Python.

    The aggregates of a DataFrame of Spark are the members of one column, `AGGREGATES`.
    """
    plans = cast("tuple[LiftPlan, ...]", query.lifting.plans)  # `lifting_of` has made them
    layout = query.layout
    keys = [columns[name] for name in layout.keys.names]
    sent = [columns[name] for name in layout.columns.names]
    input_columns = dict(zip(layout.display_names, sent, strict=True))
    types = dict(zip(sent, layout.columns.types, strict=True))
    names = {column: name for name, column in input_columns.items()} | dict(zip(keys, layout.names, strict=True))
    calls = [
        _Call(
            plan=plan,
            arguments=[input_columns[name] for name in call.arguments],
            filter=None if call.filter is None else input_columns[call.filter],
            function=call.function,
            keys=keys,
            types=types,
            names=names,
        )
        for plan, call in zip(plans, query.open_request.calls, strict=True)
    ]
    # The input may have further columns, of any names.
    inputs = list(dict.fromkeys(columns.values()))
    parts = _parts(calls, inputs)
    skips_null = not is_spark(session)
    aggregations = {**_AGGREGATIONS, "sum": exact_sum(session), "wide sum": exact_wide_sum(session)}
    # Spark's own error of a checked `sum` would advise to turn off ANSI mode.
    aggregations["decimal sum"] = "try_sum({0})" if is_spark(session) else aggregations["wide sum"]
    with_parts = rows.selectExpr(*inputs, *(f"{part} AS {name}" for part, name in parts.items())) if parts else rows
    aggregates: list[str] = []
    if layout.has_kinds:
        aggregates.append(f"sum({SIGN}) AS {LIVE}")
    task = LiftedFold(query, merges=True, plans=plans)
    if task.counts_rows:
        aggregates.append(f"count(1) AS {ROWS}")
    for number, call in enumerate(calls):
        raising = call.raising
        for index, aggregate in enumerate(call.plan.aggregates):
            raises = index == raising and bool(call.plan.lift.failures)
            limb = call.limb(aggregate, parts, raises=raises, skips_null=skips_null)
            aggregated = aggregations[aggregate.kind].format(limb, rows=call.rows(aggregate))
            if aggregate.kind == "decimal sum":
                aggregated = f"CAST({aggregated} AS DECIMAL(38, {aggregate.scale}))"
            aggregates.append(f"{aggregated} AS {aggregate_name(number, index)}")
    return task, _aggregate(with_parts, dict(zip(layout.keys.names, keys, strict=True)), aggregates)


def _aggregate(rows: _Rows, keys: Mapping[str, str], aggregates: Sequence[str]) -> _Rows:
    if isinstance(rows, Text):
        grouped = rows.selectExpr(*(f"{key} AS {name}" for name, key in keys.items()), *aggregates)
        return Text(f"{grouped.sql} GROUP BY {', '.join(keys.values())}") if keys else grouped
    if is_spark(rows.sparkSession):
        return rows.groupBy(*keys).agg(sf.expr(f"struct({', '.join(aggregates)})").alias(AGGREGATES))
    return rows.groupBy(*keys).agg(*map(sf.expr, aggregates))


def _by_bytes(rows: DataFrame) -> DataFrame:
    """Return rows whose texts Spark compares by their bytes, as Python does, and not by a collation."""
    texts = (field for field in rows.schema if isinstance(field.dataType, st.StringType))
    collated = {
        field.name: sf.expr(f"{field.name} COLLATE UTF8_BINARY") for field in texts if is_collated(field.dataType)
    }
    return rows.withColumns(collated) if collated else rows


_AGGREGATIONS: Final = {
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

    plan: LiftPlan
    arguments: Sequence[str]
    filter: str | None
    function: str
    keys: Sequence[str]
    types: Mapping[str, pa.DataType]
    names: Mapping[str, str]

    @property
    def raising(self) -> int:
        """The aggregate that raises the errors of the author's method: a sum, which no plan leaves out."""
        sums = (index for index, each in enumerate(self.plan.aggregates) if each.sums)
        return next(sums, 0)

    def rows(self, aggregate: Aggregate) -> str:
        """Return the number of rows that a sum adds, or a greater one, as SQL: the call may have that count already."""
        for each in self.plan.aggregates:
            if each.kind == "count" and [case.when for case in each.cases] == [case.when for case in aggregate.cases]:
                return f"count({self.limb(each, {}, raises=False)})"
        return "count(1)"

    def limb(self, aggregate: Aggregate, parts: Mapping[str, str], *, raises: bool, skips_null: bool = False) -> str:
        """Return the operand of an aggregate, as SQL over the columns of a row.

        Args:
            aggregate: The aggregate.
            parts: The columns that are computed before, by their texts.
            raises: Whether this column raises the errors of the author's method, if it has any.
            skips_null: Whether the engine's exact sums skip NULLs.
        """
        zero = f"CAST(0 AS {_sql_of(aggregate.cases[0].value.kind)})" if aggregate.kind == "decimal sum" else "0L"
        rest = zero if aggregate.sums else ""
        if not raises and self.filter is None and (plain := _of_present(aggregate)) is not None:
            value = self.text(plain, parts)
            return f"coalesce({value}, {zero})" if aggregate.sums and not skips_null else value
        cases = []
        if raises:
            fails = " OR ".join(self._when(each, parts) for each in self.plan.raising)
            cases.append(f"WHEN {fails} THEN raise_error({self._error(parts)})")
        for part in aggregate.cases:
            value = self.text(part.value, parts)
            if part.when == TRUE and self.filter is None:
                rest = value
            else:
                cases.append(f"WHEN {self._when(part.when, parts)} THEN {value}")
        return f"CASE {' '.join(cases)}{rest and f' ELSE {rest}'} END" if cases else rest

    def _error(self, parts: Mapping[str, str]) -> str:
        """Return the text of the error for a row, as SQL."""
        conditions: dict[str, list[str]] = {}
        for each in self.plan.lift.failures:
            remedy = "; skip_nulls=True or FILTER leaves out rows with NULL" if each.by_null else ""
            conditions.setdefault(f"{each.text}{remedy}", []).append(self.text(each.when, parts))
        *others, last = conditions
        message = text(last)
        if others:
            cases = [f"WHEN {' OR '.join(conditions[each])} THEN {text(each)}" for each in others]
            message = f"CASE {' '.join(cases)} ELSE {message} END"
        return error_text("USER_CODE", message, self.function, self.names, group=self.keys, row=self.arguments)

    def _when(self, condition: Expr, parts: Mapping[str, str]) -> str:
        if self.filter is None:
            return self.text(condition, parts)
        chosen = f"coalesce({self.filter}, false)"
        return chosen if condition == TRUE else f"({chosen} AND {self.text(condition, parts)})"

    def text(self, expr: Expr, parts: Mapping[str, str]) -> str:
        """Return an expression as SQL."""
        return expression(expr, self._argument, parts)

    def _argument(self, expr: Expr) -> str:
        name = self.arguments[expr.parts[0]]
        if expr.kind == "int" and self.types[name] != pa.int64():
            return f"CAST({name} AS BIGINT)"
        if expr.kind == "float" and self.types[name] != pa.float64():
            return f"CAST({name} AS DOUBLE)"
        return name


# Operations whose result is NULL if an operand is NULL.
_STRICT: Final = frozenset({"arg", "const", "sign", "add", "neg", "mul", "low", "high"})


def _of_present(aggregate: Aggregate) -> Expr | None:
    """Return the operand of an aggregate if it is NULL for exactly the rows that the aggregate skips; else None."""
    if len(aggregate.cases) > 1:
        return None
    (case,) = aggregate.cases
    conditions = case.when.parts if case.when.op == "and" else (case.when,)
    present = {each.parts[0].parts[0] for each in conditions if each.op == "not" and each.parts[0].op == "null"}
    if len(present) < len(conditions):
        return None
    if aggregate.kind == "count":
        return present.pop() if len(present) == 1 else None
    is_strict = all(each.op in _STRICT for each in case.value.walk())
    return case.value if is_strict and present <= set(case.value.walk()) else None


def _sql_of(kind: str) -> str:
    """Return the type of a kind of DECIMALs as SQL."""
    return kind.replace("decimal128", "DECIMAL")


def _parts(calls: Sequence[_Call], inputs: Sequence[str]) -> dict[str, str]:
    """Return the expressions that are cut into several limbs, with names for their columns, unlike those given."""
    cut: Counter[str] = Counter()
    for call in calls:
        for aggregate in call.plan.aggregates:
            parts = {
                call.text(each.parts[0], {})
                for case in aggregate.cases
                for each in case.value.walk()
                if each.op in ("low", "high") and each.parts[0].op in ("mul", "add")
            }
            cut.update(parts)
    repeated = [text for text, times in cut.items() if times > 1]
    used = {name.strip("`").casefold() for name in inputs}
    names = (name for number in count() if (name := f"foldflight_part_{number}") not in used)
    return dict(zip(repeated, names, strict=False))
