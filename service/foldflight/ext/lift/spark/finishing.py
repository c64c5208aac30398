"""States and results of a lifted batch as expressions of Spark, so that no Python runs at all.

    aggregates > states > (powers of quotients) > values of get_value > results

Each is a projection of its own, because its expressions use those before several times; if `get_value` returns the
state, there is only one. Sums of limbs are put together in 64 bits, or in DECIMALs, which hold them exactly. A state or
a result that does not fit its type is an error, as in Python; a result is never computed from a part of the fields
only: Spark would leave out the checks of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.engine.query.layout import LIVE, QueryLayout
from foldflight.engine.query.query import Query
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.spark.expressions import Quotient, alias_of, constant, expression, quotient_key
from foldflight.ext.lift.tasks import OVERFLOWED, ROWS, LiftedFold, aggregate_name
from foldflight.ext.lift.tree import TRUE, Expr, Field, digits_of, is_decimal, scale_of
from foldflight.functions import sql_name
from foldflight.spark.expressions import Text, error_text, text

_HIGH_MAX: Final = 1 << 60
_MOST: Final = {8: 2.0**7, 16: 2.0**15, 32: 2.0**31, 64: 2.0**63}


_Rows = TypeVar("_Rows", DataFrame, Text)


def finish(
    task: LiftedFold, grouped: _Rows, outputs: Sequence[st.DataType], names: Sequence[str] | None = None
) -> _Rows:
    """Return the result of a batch whose rows have been aggregated.

    Args:
        task: What Python would do with them.
        grouped: Keys and aggregates.
        outputs: Spark's types of the outputs.
        names: The names of keys and outputs. Default: the query's.
    """
    query: Query = task.query
    layout: QueryLayout = task.layout
    keys = list(layout.keys.names)
    chosen: Sequence[str] = names or [*layout.names, *layout.outputs.names]
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
        grouped = grouped.where(f"{LIVE} > 0")
    if all(call.is_state for call in calls):
        stated = [state for call in calls for state in call.states().values()]
        return _named(grouped, keys, stated, outputs, chosen)
    states = grouped.selectExpr(
        *keys, *(f"{state} AS {name}" for call in calls for name, state in call.states().items())
    )
    computed: dict[str, str] = {}
    quotients: list[Quotient] = []
    for call in calls:
        for one, other in call.quotients():
            key = quotient_key(one, other)
            if key not in computed:
                quotients.append(Quotient(one, other, len(quotients)))
                computed[key] = f"({quotients[-1].result})"
    if quotients:
        states = states.selectExpr("*", *(each.power for each in quotients))
    values = states.selectExpr(*keys, *(call.value(computed) for call in calls))
    return _named(values, keys, [call.result_text() for call in calls], outputs, chosen)


def _named(
    rows: _Rows, keys: Sequence[str], values: Sequence[str], outputs: Sequence[st.DataType], names: Sequence[str]
) -> _Rows:
    """Return keys and results with their names."""
    items = [*keys]
    items += [f"CAST({value} AS {type_.simpleString()})" for value, type_ in zip(values, outputs, strict=True)]
    if isinstance(rows, DataFrame) and any("${" in name for name in names):
        # In a text Spark would put a setting's value there.
        return rows.selectExpr(*items).toDF(*names)
    return rows.selectExpr(*map(alias_of, items, names))


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
    """

    number: int
    plan: LiftPlan
    state: pa.DataType
    function: str
    keys: Mapping[str, str]
    result: pa.DataType

    @property
    def is_state(self) -> bool:
        """Whether `get_value` returns the whole state as it is."""
        outcome, fields = self.plan.lift.outcome, self.plan.lift.fields
        if outcome.failures or len(outcome.parts) != 1 or len(fields) != 1 or fields[0].monoid == "keep":
            return False
        (part,) = outcome.parts
        return part.when == TRUE and part.value.op == "field" and self._type_of(fields[0]) == self.result

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
        used = [each.when for each in outcome.failures]
        used += [each for part in outcome.parts for each in (part.when, part.value)]
        for each in used:
            for expr in each.walk():
                if expr.op == "quotient":
                    one, other = (self._text(operand, {}) for operand in expr.parts)
                    yield one, other

    def value(self, computed: Mapping[str, str]) -> str:
        """Return the column of what `get_value` returns, with the quotients that are known, as SQL."""
        outcome = self.plan.lift.outcome
        cases = [
            f"WHEN {self._text(each.when, computed)} THEN raise_error({self._error('USER_CODE', text(each.text))})"
            for each in outcome.failures
        ]
        cases += [
            f"WHEN {self._text(part.when, computed)} THEN {self._text(part.value, computed)}" for part in outcome.parts
        ]
        # Reading all fields that may not fit makes Spark compute, and so check, them all.
        read = [self._reads(field) for field in self.plan.lift.fields]
        value = f"CASE {' '.join(cases)} END"
        if any(read):
            value = f"CASE WHEN {' AND '.join(filter(None, read))} THEN {value} END"
        return f"{value} AS {self._value}"

    def result_text(self) -> str:
        """Return the result as SQL, or an error if it does not fit its type."""
        value = self._value
        kind = next(part.value.kind for part in self.plan.lift.outcome.parts if part.value.kind != "none")
        if is_decimal(kind):
            error = text(f", a Decimal, which does not fit {sql_name(self.result)}")
            message = f"concat({text('get_value returned ')}, CAST({value} AS STRING), {error})"
            return self._as_decimal(value, pa.decimal128(digits_of(kind), scale_of(kind)), self.result, message)
        if not pa.types.is_integer(self.result):
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

    def _reads(self, field: Field) -> str:
        """Return a condition that holds if the field fits its type, and that no optimizer knows; else empty."""
        column = self._column(field.name)
        if field.monoid == "sum":  # never NULL
            return f"{column} IS NOT NULL"
        is_checked = field.monoid in ("min", "max") and self._is_narrow(self._type_of(field))
        return f"coalesce({column}, 0L) < {1 << 32}L" if is_checked else ""

    def _type_of(self, field: Field) -> pa.DataType:
        return self.state.field(field.name).type if field.name else self.state

    @staticmethod
    def _is_narrow(type_: pa.DataType) -> bool:
        return bool(pa.types.is_integer(type_) and type_ != pa.int64())

    @property
    def _value(self) -> str:
        return f"value_{self.number}"

    def _column(self, name: str) -> str:
        index = [each.name for each in self.plan.lift.fields].index(name)
        return f"state_{self.number}_{index}"

    def _text(self, expr: Expr, computed: Mapping[str, str]) -> str:
        return expression(expr, lambda field: self._column(field.parts[0]), computed)

    def _error(self, code: str, message: str) -> str:
        """Return the text of an error of a group, as SQL."""
        return error_text(code, message, self.function, self.keys, group=list(self.keys))

    def _state(self, index: int, field: Field) -> str:
        """Return a field of the state, as SQL."""
        limbs = self.plan.limbs[index]
        type_ = self._type_of(field)
        names = [aggregate_name(self.number, limb.index) for limb in limbs]
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
        # Without keys there may be no row, and then no sum.
        limbs = names if self.keys else [f"CASE WHEN {ROWS} = 0 THEN 0L ELSE {name} END" for name in names]
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
        missing = " OR ".join(f"({each}) IS NULL" for each in limbs)
        overflow = f"WHEN {missing} THEN raise_error({self._error('OVERFLOW', text(OVERFLOWED))})"
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
            total = f"CASE WHEN {ROWS} = 0 THEN 0BD ELSE {total} END"
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
        return f"CAST({value} AS DECIMAL({type_.precision}, {type_.scale}))"

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
