"""The plan of a lifted batch: the trees of its calls as expressions of Spark SQL, aggregated by Spark.

    rows > parts of large products > groupBy(keys).agg(limbs) > finished states and results

Parts are columns of their own, because Spark would compute them again in each aggregation that uses them. The result
needs no shuffle of its own: Spark's aggregation has put each group into one partition. States and results are made by
expressions (`finish`) if `get_value` of each call is lifted, otherwise by Python (`LiftedFold`).

A sum of integers beyond 64 bits is an error of Spark in ANSI mode. Otherwise, and for DECIMALs, it is NULL, and then an
error of ours.

Spark analyses each step when it is made, in a time that grows with the text. So there are few steps, a text with the
whole error of a row stands in one aggregation, and a step is given as texts, which need one call of Java each. In SQL
the whole plan is a text (`lifted_text`), of which Spark makes all steps at once.

Where states and results are expressions of Spark, no Python runs at all:

    aggregates > states > (powers of quotients) > values of get_value > results

Each is a projection of its own, because its expressions use those before several times. So values are none of their own
if results are these values as they are; and if `get_value` returns the state, there is only one. Sums of limbs are put
together in 64 bits, or in DECIMALs, which hold them exactly. A state or a result that does not fit its type is an
error, as in Python; a result is never computed from a part of the fields only: Spark would leave out the checks of the
others.

Only old functions of Spark SQL are used. Their differences from Python are written out: a comparison with NaN is false,
a divisor is never zero, and a quotient of large integers is rounded once.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any, Final, TypeVar, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.batch.tasks import BatchFold, FinalFold
from foldflight.engine.query.blocks import gather
from foldflight.engine.query.layout import LIVE, QueryLayout
from foldflight.engine.query.query import Query
from foldflight.errors import FunctionError
from foldflight.ext.lift.plan import Aggregate, FieldOverflow, LiftPlan, SumOverflow
from foldflight.ext.lift.tree import TRUE, Expr, Field, digits_of, is_decimal, scale_of
from foldflight.functions import sql_name
from foldflight.spark.arrow import arrow_function, spark_schema, step_of
from foldflight.spark.batch import SIGN, Text, error_text, text
from foldflight.spark.types import is_collated
from foldflight.spark.versions.sessions import exact_sums, is_spark

__all__ = ["Quotient", "alias_of", "constant", "expression", "quotient_key"]


def expression(expr: Expr, leaf: Callable[[Expr], str], columns_by_text: Mapping[str, str]) -> str:
    """Return an expression as SQL.

    Args:
        expr: The expression.
        leaf: Returns the SQL of an argument or a field.
        columns_by_text: Columns with values that have been computed, by the SQL of the value, or by `quotient_key`.
    """
    sql_text = _render(expr, leaf, columns_by_text)
    return columns_by_text.get(sql_text, sql_text)


def _render(expr: Expr, leaf: Callable[[Expr], str], columns_by_text: Mapping[str, str]) -> str:
    if expr.op in ("arg", "field"):
        return leaf(expr)
    if expr.op == "const":
        return constant(expr.value)
    if expr.op in ("low", "high"):
        one, bits = expr.parts
        inner = expression(one, leaf, columns_by_text)
        return f"({inner} & {(1 << bits) - 1}L)" if expr.op == "low" else f"shiftright({inner}, {bits})"
    operands = [expression(each, leaf, columns_by_text) for each in expr.parts]
    if expr.op in _COMPARISONS:
        return _comparison(expr, operands)
    if expr.op == "and":
        return f"({' AND '.join(operands)})"
    if expr.op == "quotient":
        return quotient_key(*operands)
    return _OPERATIONS[expr.op].format(*operands)


def quotient_key(one: str, other: str) -> str:
    """Return the text by which the quotient of two integers is known."""
    return f"quotient of {one} by {other}"


def _comparison(expr: Expr, operands: Sequence[str]) -> str:
    one, other = operands
    comparison = f"{one} {_COMPARISONS[expr.op]} {other}"
    if expr.parts[0].kind != "float":
        return f"({comparison})"
    if expr.parts[0] == expr.parts[1]:  # only NaN differs from itself, and nothing is less than itself
        return f"(NOT isnan({one}))" if expr.op != "lt" else "false"
    # In Spark NaN equals itself and is greater than all numbers.
    numbers = [f"NOT isnan({operand})" for operand, part in zip(operands, expr.parts, strict=True) if not part.is_const]
    return f"({' AND '.join([comparison, *numbers])})"


@dataclass(frozen=True)
class Quotient:
    """The quotient of two 64-bit integers as the nearest float.

    Integers below 2**53 are floats, of which a division is rounded once. For others, more than 55 bits of the quotient
    are computed as an integer, whose last bit tells whether there is a remainder; so it is rounded to 53 bits as the
    exact quotient would be. The dividend is multiplied by a power of two first, which changes no digit of the result.
    The power is a column of its own, because the expression uses it several times.

    Args:
        one: The dividend, as SQL.
        other: The divisor.
        number: The number of the quotient, for the names of its columns.
    """

    one: str
    other: str
    number: int

    @property
    def power(self) -> str:
        """The power of two by which the dividend is multiplied; NULL if floats are divided. As SQL with its name."""
        operands = (f"abs(CAST({each} AS DOUBLE))" for each in (self.one, self.other))
        small = " AND ".join(f"{each} < {_WHOLE_END!r}D" for each in operands)
        rate = f"abs(CAST({self.one} AS DOUBLE) / CAST({self.other} AS DOUBLE))"
        # The logarithm may be wrong by one: the product is between 2**57 and 2**60, or, if it is not multiplied, below
        # 2**62, because the divisor is at least 2.
        power = f"greatest(58 - CAST(floor(log2({rate})) AS INT), 0)"
        plain = f"({small}) OR {self.one} = 0 OR {self.other} BETWEEN -1 AND 1"
        return f"CASE WHEN {plain} THEN NULL ELSE {power} END AS {self._power}"

    @property
    def result(self) -> str:
        """The quotient, as SQL."""
        one, other = self.one, self.other
        # A divisor is not zero where its quotient is used, but Spark may compute it before the condition that says so.
        small = f"CAST({one} AS DOUBLE) / nullif(CAST({other} AS DOUBLE), 0.0D)"
        dividend = f"(abs(CAST({one} AS DECIMAL(19, 0))) * {_power_of_two(self._power)})"
        divisor = f"nullif(abs(CAST({other} AS DECIMAL(19, 0))), 0)"
        rest = f"CASE WHEN {dividend} % {divisor} = 0 THEN 0L ELSE 1L END"
        sign = f"CASE WHEN ({one} < 0) = ({other} < 0) THEN 1.0D ELSE -1.0D END"
        wide = f"CAST(({dividend} div {divisor}) | {rest} AS DOUBLE)"
        exact = f"({sign}) * {wide} * power(2.0D, -{self._power})"
        return f"CASE WHEN {self._power} IS NULL THEN {small} ELSE {exact} END"

    @property
    def _power(self) -> str:
        return f"power_{self.number}"


_WHOLE_END: Final = 2.0**53


def _power_of_two(bits: str) -> str:
    """Return two to the power of a number between 0 and 122 as a whole DECIMAL."""
    low, high = f"shiftleft(1L, least({bits}, 61))", f"shiftleft(1L, greatest({bits} - 61, 0))"
    return f"CAST({low} AS DECIMAL(19, 0)) * CAST({high} AS DECIMAL(19, 0))"


_OPERATIONS: Final = {
    "sign": f"({SIGN})",
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


def constant(value: Any) -> str:
    """Return a constant as SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}L" if abs(value) < 1 << 62 else f"CAST('{value}' AS BIGINT)"
        case float():
            return f"CAST('{value!r}' AS DOUBLE)"
        case str():
            return text(value)
        case _:
            raise TypeError(value)


def alias_of(expr: str, name: str) -> str:
    """Return an expression with the name of its column, as SQL."""
    quoted_name = name.replace("`", "``")
    return f"{expr} AS `{quoted_name}`"


ROWS: Final = "rows"
"""The number of rows of the one group of a query without keys, which may have none."""

AGGREGATES: Final = "aggregates"
"""A column with all aggregates: PySpark makes each column of a step, and of mapInArrow, by several calls of Java."""

OVERFLOWED: Final = (
    "a sum of the lifted plan does not hold its total: the group has 2**31 rows or more, a total beyond 2**95, or a "
    "total of DECIMALs beyond 38 digits; plan='fold' holds more"
)


def aggregate_name(call: int, index: int) -> str:
    """Return the name of the column with an aggregate of a call."""
    return f"aggregate_{call}_{index}"


@dataclass(frozen=True)
class LiftedFold(FinalFold):
    """The task over the aggregates of finished groups. Each group comes once.

    Args:
        plans: The plan of each call.
    """

    plans: tuple[LiftPlan, ...] = ()

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows is needed."""
        return not len(self.layout.keys)

    @property
    def input(self) -> pa.Schema:
        """Keys, live rows (if rows have kinds), the number of rows (if `counts_rows`), the aggregates of each call."""
        layout, query = self.layout, self.query
        fields = [*layout.keys]
        if layout.has_kinds:
            fields.append(pa.field(LIVE, pa.int64()))
        if self.counts_rows:
            fields.append(pa.field(ROWS, pa.int64()))
        for call, (plan, opened_call) in enumerate(zip(self.plans, query.opened_calls, strict=True)):
            fields += [
                pa.field(aggregate_name(call, index), plan.type_of(index, opened_call.input_types))
                for index in range(len(plan.aggregates))
            ]
        return pa.schema(fields)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Finish the groups of one partition."""
        with BatchFold(self.query, states=False, outputs=True) as batch_fold:
            for block in gather(map(self._unpack, batches), self.input, self.query.bounds):
                yield from self._take_results(batch_fold)
                self._load(batch_fold, block)
                batch_fold.barrier()
            yield from self._take_results(batch_fold)

    def _unpack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of `input`, whose aggregates may be in one column."""
        if AGGREGATES not in batch.schema.names:
            return batch
        columns = [*(batch.column(name) for name in self.layout.keys.names), *batch.column(AGGREGATES).flatten()]
        return pa.RecordBatch.from_arrays(columns, names=self.input.names)

    def _load(self, batch_fold: BatchFold, block: pa.RecordBatch) -> None:
        slots = batch_fold.groups.slots(block)
        if self.layout.has_kinds:
            batch_fold.groups.live[slots] = block.column(LIVE).fill_null(0).to_numpy()
        states = []
        for index, plan in enumerate(self.plans):
            try:
                states.append(self._states(index, plan, block))
            except (SumOverflow, FieldOverflow) as error:
                function = self.query.open_request.calls[index].function
                group = batch_fold.groups.name(int(slots[error.index]))
                raise _overflow(function, error, group) from None
        batch_fold.exchange.states(slots, states)

    def _states(self, index: int, plan: LiftPlan, block: pa.RecordBatch) -> pa.Array:
        type_ = self.layout.states.field(index).type
        if self.counts_rows and not block.column(ROWS)[0].as_py():
            return pa.nulls(1, type_)  # a new accumulator
        results = [block.column(aggregate_name(index, number)) for number in range(len(plan.aggregates))]
        return plan.states(results, type_, block.num_rows)


def _overflow(function: str, error: SumOverflow | FieldOverflow, group: dict[str, Any]) -> FunctionError:
    text = f"its accumulator does not fit its state: {error}" if isinstance(error, FieldOverflow) else OVERFLOWED
    return FunctionError("OVERFLOW", text, function=function, group=group)


_HIGH_MAX: Final = 1 << 60
_MOST: Final = {8: 2.0**7, 16: 2.0**15, 32: 2.0**31, 64: 2.0**63}


_Rows = TypeVar("_Rows", DataFrame, Text)
_WORD: Final = re.compile(r"\w+")
_USES_MAX: Final = 2  # how often an argument may be computed; mostly Spark finds that a sum and a count have the same
_MARK: Final = "\0"  # in the place of a value, to count how often a text uses it


@dataclass(frozen=True)
class _Aggregation:
    """An aggregation as SQL, whose items are still to be chosen.

    Args:
        rows: Its input.
        keys: The columns of the input by the names of the keys.
        aggregates: The aggregates by their names.
    """

    rows: Text
    keys: Mapping[str, str]
    aggregates: Mapping[str, str]

    def selectExpr(self, *items: str) -> Text:  # noqa: N802 - as PySpark names it
        """Return items that are made of columns of keys and of aggregates, for each group."""
        groups = self.rows.selectExpr(*items)
        return Text(f"{groups.sql} GROUP BY {', '.join(self.keys.values())}") if self.keys else groups

    @property
    def groups(self) -> Text:
        """Keys and aggregates with their names."""
        items = {**self.keys, **self.aggregates}
        return self.selectExpr(*(f"{item} AS {name}" for name, item in items.items()))


def finish(
    task: LiftedFold,
    groups: _Rows,
    outputs: Sequence[st.DataType],
    items: Sequence[tuple[str, str]] | None = None,
    aggregation: _Aggregation | None = None,
) -> _Rows:
    """Return the result of a batch whose rows have been aggregated.

    Args:
        task: What Python would do with them.
        groups: Keys and aggregates.
        outputs: Spark's types of the outputs.
        items: The columns of the result, each with the name that it is given. Default: all, with the query's names.
        aggregation: What has made the groups, if it is SQL. States are made by it if that repeats no aggregate, since
            Spark takes as long for a level of a text as for the items of one.
    """
    query: Query = task.query
    layout: QueryLayout = task.layout
    keys = list(layout.keys.names)
    key_names = dict(zip(keys, layout.names, strict=True))
    calls = [
        _Finish(
            number=number,
            plan=plan,
            state=layout.states.field(number).type,
            function=call.function,
            keys=key_names,
            result=layout.outputs.types[number],
        )
        for number, (plan, call) in enumerate(zip(task.plans, query.open_request.calls, strict=True))
    ]
    if layout.has_kinds and keys:
        groups, aggregation = groups.where(f"{LIVE} > 0"), None
    source: Any = groups
    rows: Any
    key_columns: list[str] = keys
    state_calls: list[_Finish] = calls
    if aggregation is not None and all(call.reads_each_once for call in calls):
        source, key_columns = aggregation, [aggregation.keys[key] for key in keys]
        names_by_column = dict(zip(key_columns, layout.names, strict=True))
        state_calls = [replace(call, keys=names_by_column, aggregates=aggregation.aggregates) for call in calls]
    state_texts: dict[str, str] = dict(item for call in state_calls for item in call.states.items())
    if all(call.is_state for call in calls):
        rows, values = source, [*state_texts.values()]
    elif source is aggregation and all(values := [call.result_of_states for call in state_calls]):
        rows = source
    else:
        state_items = {**dict(zip(keys, key_columns, strict=True)), **state_texts}
        rows = source.selectExpr(*(f"{item} AS {name}" for name, item in state_items.items()))
        rows, values = _values(calls, keys, rows)
        key_columns = keys
    columns: dict[str, str] = dict(zip(layout.names, key_columns, strict=True))
    for name, call, value, type_ in zip(layout.outputs.names, calls, values, outputs, strict=True):
        type_text = type_.simpleString()
        columns[name] = value if type_text == call.type_of_sums else f"CAST({value} AS {type_text})"
    texts = [columns[column] for column, _ in items] if items else [*columns.values()]
    names = [name for _, name in items] if items else [*columns]
    # In a text Spark would put a setting's value in the place of a variable.
    has_variables = isinstance(groups, DataFrame) and any("${" in name for name in names)
    result: _Rows = (
        rows.selectExpr(*texts).toDF(*names) if has_variables else rows.selectExpr(*map(alias_of, texts, names))
    )
    return result


def _values(calls: Sequence[_Finish], keys: Sequence[str], states: Any) -> tuple[Any, list[str]]:
    """Return the results of calls as SQL, and the rows over which they are evaluated, given keys and states."""
    columns_by_text: dict[str, str] = {}
    quotients: list[Quotient] = []
    for call in calls:
        for one, other in call.quotients():
            key = quotient_key(one, other)
            if key not in columns_by_text:
                quotients.append(Quotient(one, other, len(quotients)))
                columns_by_text[key] = f"({quotients[-1].result})"
    if quotients:
        states = states.selectExpr("*", *(each.power for each in quotients))
    values = {call.value_name: call.value(columns_by_text) for call in calls}
    if all(call.result_text(_MARK).count(_MARK) == 1 for call in calls):
        return states, [call.result_text(values[call.value_name]) for call in calls]
    rows = states.selectExpr(*keys, *(f"{value} AS {name}" for name, value in values.items()))
    return rows, [call.result_text(call.value_name) for call in calls]


@dataclass(frozen=True)
class _Finish:
    """The end of one call.

    Args:
        number: The number of the call.
        plan: Its plan.
        state: The type of its states.
        function: The name of its function.
        keys: The user's names of the keys by their columns.
        result: The type of its results.
        aggregates: The aggregates by their names, where these are no columns.
        state_texts: The fields of the state by the names of their columns, where these are no columns.
    """

    number: int
    plan: LiftPlan
    state: pa.DataType
    function: str
    keys: Mapping[str, str]
    result: pa.DataType
    aggregates: Mapping[str, str] = field(default_factory=dict)
    state_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads_each_once(self) -> bool:
        """Whether no state uses an aggregate twice. Spark computes the number of rows once wherever it stands."""
        names = [aggregate_name(self.number, index) for index in range(len(self.plan.aggregates))]
        words = [_WORD.findall(state) for state in self.states.values()]
        return all(each.count(name) <= 1 for each in words for name in names)

    @property
    def result_of_states(self) -> str:
        """The result as SQL in which the states are no columns; empty if it uses one twice, which may be an error."""
        words = _WORD.findall(self.value({}))
        states = self.states
        is_repeated = any(words.count(name) > 1 for name in states) or self.result_text(_MARK).count(_MARK) > 1
        if is_repeated or next(self.quotients(), None) is not None:
            return ""
        return self.result_text(replace(self, state_texts=states).value({}))

    @property
    def is_state(self) -> bool:
        """Whether `get_value` returns the whole state as it is."""
        outcome, fields = self.plan.lift.outcome, self.plan.lift.fields
        if outcome.failures or len(outcome.parts) != 1 or len(fields) != 1 or fields[0].monoid == "keep":
            return False
        (part,) = outcome.parts
        return part.when == TRUE and part.value.op == "field" and self._type_of(fields[0]) == self.result

    @cached_property
    def states(self) -> dict[str, str]:
        """Return each field that changes, as SQL, by the name of its column."""
        return {
            self._column(field.name): self._state(index, field)
            for index, field in enumerate(self.plan.lift.fields)
            if field.monoid != "keep"
        }

    def quotients(self) -> Iterator[tuple[str, str]]:
        """Yield the operands of each quotient of integers, as SQL."""
        outcome = self.plan.lift.outcome
        expressions = [each.when for each in outcome.failures]
        expressions += [each for part in outcome.parts for each in (part.when, part.value)]
        for each in expressions:
            for expr in each.walk():
                if expr.op == "quotient":
                    one, other = (self._text(operand, {}) for operand in expr.parts)
                    yield one, other

    def value(self, columns_by_text: Mapping[str, str]) -> str:
        """Return what `get_value` returns, with the quotients that are known, as SQL."""
        outcome = self.plan.lift.outcome
        cases = [
            f"WHEN {self._text(each.when, columns_by_text)} THEN "
            f"raise_error({self._error('USER_CODE', text(each.text))})"
            for each in outcome.failures
        ]
        *others, last = outcome.parts  # exactly one applies to each accumulator that does not fail
        cases += [
            f"WHEN {self._text(part.when, columns_by_text)} THEN {self._text(part.value, columns_by_text)}"
            for part in others
        ]
        value = self._text(last.value, columns_by_text)
        value = f"CASE {' '.join(cases)} ELSE {value} END" if cases else value
        # Reading all fields that may not fit makes Spark compute, and so check, them all.
        read_conditions = [self._reads(field) for field in self.plan.lift.fields if not self._is_read(field)]
        if any(read_conditions):
            value = f"CASE WHEN {' AND '.join(filter(None, read_conditions))} THEN {value} END"
        return value

    def _is_read(self, field: Field) -> bool:
        """Return whether each result that is no error is made of a field, or leaves it out because it fits."""
        outcome = self.plan.lift.outcome
        if field.name in self._counts or outcome.failures:
            return field.name in self._counts
        return all(
            any(each.op == "field" and each.parts[0] == field.name for each in part.value.walk())
            or self._is_empty(field, part.when)
            for part in outcome.parts
        )

    def _is_empty(self, field: Field, when: Expr) -> bool:
        """Return whether a condition says that a sum has added no row: the number of these rows is zero."""
        if field.monoid != "sum" or field.start != 0 or when.op != "eq":
            return False
        one, other = when.parts
        count = self._counts.get(one.parts[0]) if one.op == "field" else None
        if count is None or not (other.is_const and other.value == 0):
            return False
        rows = [case.when for case in count.cases]
        limbs = self.plan.limbs[self.plan.lift.fields.index(field)]
        return all([case.when for case in self.plan.aggregates[each.index].cases] == rows for each in limbs)

    def result_text(self, value: str) -> str:
        """Return the result for a value as SQL, or an error if it does not fit its type."""
        kind = next(part.value.kind for part in self.plan.lift.outcome.parts if part.value.kind != "none")
        if is_decimal(kind):
            error = text(f", a Decimal, which does not fit {sql_name(self.result)}")
            message = f"concat({text('get_value returned ')}, CAST({value} AS STRING), {error})"
            return self._as_decimal(value, pa.decimal128(digits_of(kind), scale_of(kind)), self.result, message)
        if not pa.types.is_integer(self.result) or self._returns_bigints:
            return value
        end = _MOST[self.result.bit_width]
        if kind == "float":
            # Python cuts off the fraction first.
            low = f"{value} >= {-end!r}D" if self.result.bit_width == 64 else f"{value} > {-end - 1!r}D"
            fits = f"({low} AND {value} < {end!r}D AND NOT isnan({value}))"
        else:
            fits = f"({value} BETWEEN {constant(-int(end))} AND {constant(int(end) - 1)})"
        message = f"concat({text('get_value returned ')}, CAST({value} AS STRING), "
        message += f"{text(f' ({kind}), which does not fit {sql_name(self.result)}')})"
        return (
            f"CASE WHEN {value} IS NULL OR {fits} THEN {value} ELSE raise_error({self._error('OVERFLOW', message)}) END"
        )

    @property
    def _returns_bigints(self) -> bool:
        """Whether results are fields of 64 bits as they are, which fit a BIGINT."""
        fields = {each.name for each in self.plan.lift.fields if self._type_of(each) == pa.int64()}
        values = [part.value for part in self.plan.lift.outcome.parts if part.value.kind != "none"]
        return self.result == pa.int64() and all(each.op == "field" and each.parts[0] in fields for each in values)

    @property
    def type_of_sums(self) -> str:
        """The type in Spark of results that are sums as they are, or NULL; empty for others, which need a cast."""
        sums = {
            each.name for each in self.plan.lift.fields if each.monoid == "sum" and self._type_of(each) == self.result
        }
        values = [part.value for part in self.plan.lift.outcome.parts if part.value.kind != "none"]
        if not values or not all(each.op == "field" and each.parts[0] in sums for each in values):
            return ""
        if pa.types.is_decimal(self.result):
            return f"decimal({self.result.precision},{self.result.scale})"
        return "bigint" if self.result == pa.int64() else ""

    def _reads(self, field: Field) -> str:
        """Return a condition that holds if the field fits its type, and that no optimizer knows; else empty."""
        column = self._column(field.name)
        if field.monoid == "sum":  # never NULL
            return f"{column} IS NOT NULL"
        is_checked = field.monoid in ("min", "max") and self._is_narrow(self._type_of(field))
        return f"coalesce({column}, 0L) < {1 << 32}L" if is_checked else ""

    @cached_property
    def _counts(self) -> dict[str, Aggregate]:
        """The fields that are numbers of rows as Spark counts them, which are never NULL and fit, by their names."""
        counts: dict[str, Aggregate] = {}
        for each, limbs in zip(self.plan.lift.fields, self.plan.limbs, strict=True):
            is_whole = each.monoid == "sum" and each.start == 0 and self._type_of(each) == pa.int64()
            if is_whole and [limb.factor << limb.shift for limb in limbs] == [1]:
                aggregate = self.plan.aggregates[limbs[0].index]
                counts |= {each.name: aggregate} if aggregate.kind == "count" else {}
        return counts

    def _type_of(self, field: Field) -> pa.DataType:
        return self.state.field(field.name).type if field.name else self.state

    @staticmethod
    def _is_narrow(type_: pa.DataType) -> bool:
        return bool(pa.types.is_integer(type_) and type_ != pa.int64())

    @property
    def value_name(self) -> str:
        """The name of the column with what `get_value` returns."""
        return f"value_{self.number}"

    def _column(self, name: str) -> str:
        index = [each.name for each in self.plan.lift.fields].index(name)
        return f"state_{self.number}_{index}"

    def _text(self, expr: Expr, columns_by_text: Mapping[str, str]) -> str:
        return expression(expr, self._field, columns_by_text)

    def _field(self, expr: Expr) -> str:
        column = self._column(expr.parts[0])
        return self.state_texts.get(column, column)

    def _error(self, code: str, message: str) -> str:
        """Return the text of an error of a group, as SQL."""
        return error_text(code, message, self.function, self.keys, group=list(self.keys))

    def _aggregate(self, name: str) -> str:
        return self.aggregates.get(name, name)

    def _state(self, index: int, field: Field) -> str:
        """Return a field of the state, as SQL."""
        limbs = self.plan.limbs[index]
        type_ = self._type_of(field)
        names = [self._aggregate(aggregate_name(self.number, limb.index)) for limb in limbs]
        if field.monoid == "sum":
            factors = [limb.factor << limb.shift for limb in limbs]
            return (
                self._decimal_sum(field, type_, *names)
                if field.adds_decimals
                else self._sum(field, type_, names, factors)
            )
        (name,) = names
        start = constant(field.start)
        if field.monoid == "set":
            return f"CASE WHEN {name} > 0 THEN {constant(field.parts[0].value.value)} ELSE {start} END"
        if field.start is not None and field.competes:
            sign = "<" if field.monoid == "min" else ">"
            name = f"CASE WHEN {name} {sign} {start} THEN {name} ELSE {start} END"
        elif field.start is not None:
            name = f"coalesce({name}, {start})"
        return self._as_bigint(field, name, type_) if self._is_narrow(type_) else name

    def _sum(self, field: Field, type_: pa.DataType, names: Sequence[str], factors: Sequence[int]) -> str:
        if field.name in self._counts:
            return names[0]
        # Without keys there may be no row, and then no sum.
        has_none = f"{self._aggregate(ROWS)} = 0"
        limbs = names if self.keys else [f"CASE WHEN {has_none} THEN 0L ELSE {name} END" for name in names]
        if field.start == 0 and list(factors) == [1] and type_ == pa.int64():
            return f"coalesce({limbs[0]}, raise_error({self._error('OVERFLOW', text(OVERFLOWED))}))"
        terms = [f"CAST({each} AS DECIMAL(19, 0)) * {factor}BD" for each, factor in zip(limbs, factors, strict=True)]
        total = f"({' + '.join([*terms, f'{field.start}BD'])})"
        if field.start == 0 and list(factors) == [1, 1 << 32] and type_ == pa.int64():
            low, high = limbs
            upper = f"({high} + shiftright({low}, 32))"
            # The first condition is for the addition, which could leave 64 bits.
            fits = f"{high} BETWEEN {-1 << 32}L AND {1 << 32}L AND {upper} BETWEEN {-1 << 31}L AND {(1 << 31) - 1}L"
            error = self._error("OVERFLOW", f"coalesce({self._misfit_text(field, total, type_)}, {text(OVERFLOWED)})")
            whole = f"(shiftleft({upper}, 32) | ({low} & {(1 << 32) - 1}L))"
            return f"CASE WHEN {fits} THEN {whole} ELSE raise_error({error}) END"
        is_null_text = " OR ".join(f"({each}) IS NULL" for each in limbs)
        overflow = f"WHEN {is_null_text} THEN raise_error({self._error('OVERFLOW', text(OVERFLOWED))})"
        # So that the total has less than 38 digits.
        large = " OR ".join(
            f"{each} NOT BETWEEN {-_HIGH_MAX}L AND {_HIGH_MAX}L"
            for each, factor in zip(limbs, factors, strict=True)
            if factor > _HIGH_MAX
        )
        if large:
            message = text(f"{self._misfit(field)}a number beyond 2**120 (int) does not fit {type_}")
            overflow += f" WHEN {large} THEN raise_error({self._error('OVERFLOW', message)})"
        return f"CASE {overflow} ELSE {self._as_bigint(field, total, type_)} END"

    def _decimal_sum(self, field: Field, type_: pa.DataType, total: str) -> str:
        overflow = f"raise_error({self._error('OVERFLOW', text(OVERFLOWED))})"
        total = f"coalesce({total}, {overflow})"
        if not self.keys:  # there may be no row, and then no sum
            # A zero of another type would take digits of a fraction that has all of them.
            total = f"CASE WHEN {self._aggregate(ROWS)} = 0 THEN CAST(0 AS DECIMAL(38, {type_.scale})) ELSE {total} END"
        wide = pa.decimal128(38, type_.scale)
        message = (
            f"concat({text(self._misfit(field))}, CAST({total} AS STRING), {text(f' (Decimal) does not fit {type_}')})"
        )
        return self._as_decimal(total, wide, type_, message)

    def _as_decimal(self, value: str, actual: pa.DataType, type_: pa.DataType, message: str) -> str:
        """Return a DECIMAL of the actual type as one of another precision, or an error with this message."""
        if type_.precision < actual.precision:
            end = 10 ** (type_.precision - type_.scale)
            error = f"raise_error({self._error('OVERFLOW', message)})"
            value = f"CASE WHEN abs({value}) >= {end}BD THEN {error} ELSE {value} END"
        return value if type_ == actual else f"CAST({value} AS DECIMAL({type_.precision}, {type_.scale}))"

    @staticmethod
    def _misfit(field: Field) -> str:
        return f"its accumulator does not fit its state: {f'{field.name}: ' if field.name else ''}"

    def _as_bigint(self, field: Field, total: str, type_: pa.DataType) -> str:
        """Return an integer as BIGINT, or an error if the field's type does not hold it."""
        end = 1 << (type_.bit_width - 1)
        misfits = f"{total} NOT BETWEEN {-end}BD AND {end - 1}BD"
        error = self._error("OVERFLOW", self._misfit_text(field, total, type_))
        return f"CASE WHEN {misfits} THEN raise_error({error}) ELSE CAST({total} AS BIGINT) END"

    def _misfit_text(self, field: Field, total: str, type_: pa.DataType) -> str:
        """Return the text about an integer that its field's type does not hold, as SQL."""
        return f"concat({text(self._misfit(field))}, CAST({total} AS STRING), {text(f' (int) does not fit {type_}')})"


def lifted_result(query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
    """Return the result of a batch query that is lifted; see `SparkPlanner.result`."""
    columns = {name: name for name in rows.columns}
    task, with_parts, aggregates = _aggregates_of(query, _by_bytes(rows), columns, rows.sparkSession)
    grouped_rows = with_parts.groupBy(*_keys_of(query, columns).values())
    items = [f"{aggregate} AS {name}" for name, aggregate in aggregates.items()]
    if is_spark(rows.sparkSession):
        # The aggregates are the members of one column.
        groups = grouped_rows.agg(sf.expr(f"struct({', '.join(items)})").alias(AGGREGATES))
    else:
        groups = grouped_rows.agg(*map(sf.expr, items))
    if not query.finished_by_host.holds:
        return finished_by_python(query, groups, rows.schema, outputs)
    if is_spark(rows.sparkSession):
        groups = groups.selectExpr(*query.layout.keys.names, f"{AGGREGATES}.*")
    return finish(task, groups, outputs)


def finished_by_python(
    query: Query, groups: DataFrame, rows: st.StructType, outputs: Sequence[st.DataType]
) -> DataFrame:
    """Return the result of finished groups, whose states Python makes; see `SparkPlanner.finished_by_python`."""
    task = LiftedFold(query, merges=True, plans=cast("tuple[LiftPlan, ...]", query.query_lift.plans))
    schema = spark_schema(query, rows, query.layout.results, outputs)
    return groups.mapInArrow(arrow_function(task, step_of(query, "lifted"), query.trace), schema)


def lifted_text(
    query: Query,
    rows: Text,
    columns: Mapping[str, str],
    outputs: Sequence[st.DataType],
    session: SparkSession,
    items: Sequence[tuple[str, str]] | None = None,
) -> Text:
    """Return the result of a batch query as SQL, or the aggregates of its groups; see `SparkPlanner.text`."""
    aggregation, task = _aggregation_of(query, rows, columns, session)
    groups = aggregation.groups
    if query.finished_by_host.holds:
        return finish(task, groups, outputs, items, aggregation)
    if not is_spark(session):
        return groups.selectExpr(*task.input.names)
    keys = query.layout.keys.names
    return groups.selectExpr(*keys, f"struct({', '.join(task.input.names[len(keys) :])}) AS {AGGREGATES}")


def _aggregation_of(
    query: Query, rows: Text, columns: Mapping[str, str], session: SparkSession
) -> tuple[_Aggregation, LiftedFold]:
    """Return the aggregation of a query as SQL, and the task that makes states and results in Python.

    It is over the source of the rows, if their expressions can stand there and not many times.
    """
    if rows.expressions.keys() >= {*columns.values()}:
        below = {name: rows.expressions[column] for name, column in columns.items()}
        task, with_parts, aggregates = _aggregates_of(query, source := rows.below, below, session)
        aggregate_texts = " ".join(aggregates.values())
        computed = [each for each in below.values() if each.startswith("(")]
        if with_parts is source and all(aggregate_texts.count(each) <= _USES_MAX for each in computed):
            return _Aggregation(source, _keys_of(query, below), aggregates), task
    task, with_parts, aggregates = _aggregates_of(query, rows, columns, session)
    return _Aggregation(with_parts, _keys_of(query, columns), aggregates), task


def _keys_of(query: Query, columns: Mapping[str, str]) -> dict[str, str]:
    return {name: columns[name] for name in query.layout.keys.names}


def _aggregates_of(
    query: Query, rows: _Rows, columns: Mapping[str, str], session: SparkSession
) -> tuple[LiftedFold, _Rows, dict[str, str]]:
    """Return the task that makes states and results in Python, and the rows and aggregates of which it makes them."""
    plans = cast("tuple[LiftPlan, ...]", query.query_lift.plans)  # `plan_lift` has made them
    layout = query.layout
    keys = [*_keys_of(query, columns).values()]
    sent_names = [columns[name] for name in layout.columns.names]
    input_columns = dict(zip(layout.display_names, sent_names, strict=True))
    types = dict(zip(sent_names, layout.columns.types, strict=True))
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
    kinds = {aggregate.kind for plan in plans for aggregate in plan.aggregates}
    aggregations = {**_AGGREGATIONS, **exact_sums(session, kinds)}
    with_parts = rows.selectExpr(*inputs, *(f"{part} AS {name}" for part, name in parts.items())) if parts else rows
    aggregates: dict[str, str] = {}
    if layout.has_kinds:
        aggregates[LIVE] = f"sum({SIGN})"
    task = LiftedFold(query, merges=True, plans=plans)
    if task.counts_rows:
        aggregates[ROWS] = "count(1)"
    for number, call in enumerate(calls):
        failure_count = call.raising_aggregate
        for index, aggregate in enumerate(call.plan.aggregates):
            raises = index == failure_count and bool(call.plan.lift.failures)
            limb = call.limb(aggregate, parts, raises=raises, skips_null=skips_null)
            aggregate_sql = aggregations[aggregate.kind].format(limb, rows=call.rows(aggregate))
            if aggregate.kind == "decimal sum":
                aggregate_sql = f"CAST({aggregate_sql} AS DECIMAL(38, {aggregate.scale}))"
            aggregates[aggregate_name(number, index)] = aggregate_sql
    return task, with_parts, aggregates


def _by_bytes(rows: DataFrame) -> DataFrame:
    """Return rows whose texts Spark compares by their bytes, as Python does, and not by a collation."""
    texts = (field for field in rows.schema if isinstance(field.dataType, st.StringType))
    byte_columns = {
        field.name: sf.expr(f"{field.name} COLLATE UTF8_BINARY") for field in texts if is_collated(field.dataType)
    }
    return rows.withColumns(byte_columns) if byte_columns else rows


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
    def raising_aggregate(self) -> int:
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
            fails = " OR ".join(self._when(each, parts) for each in self.plan.failure_conditions)
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
        filter_text = f"coalesce({self.filter}, false)"
        return filter_text if condition == TRUE else f"({filter_text} AND {self.text(condition, parts)})"

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
    part_counts: Counter[str] = Counter()
    for call in calls:
        for aggregate in call.plan.aggregates:
            parts = {
                call.text(each.parts[0], {})
                for case in aggregate.cases
                for each in case.value.walk()
                if each.op in ("low", "high") and each.parts[0].op in ("mul", "add")
            }
            part_counts.update(parts)
    repeated_texts = [text for text, times in part_counts.items() if times > 1]
    used_names = {name.strip("`").casefold() for name in inputs}
    names = (name for number in count() if (name := f"foldflight_part_{number}") not in used_names)
    return dict(zip(repeated_texts, names, strict=False))
