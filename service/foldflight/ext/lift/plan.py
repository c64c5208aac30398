"""From a `Lift` to sums, counts, minima and maxima of 64-bit expressions, and from their results to states.

Integers are exact at any size: an amount is cut into *limbs*, numbers of which each has its own sum. `value * weight`
of a BIGINT and an INT is `low + high * 2**32`, where `low` has 32 bits and `high` 62. Sums of 32-bit limbs hold 2**31
rows of a group. Only the highest limb may be wider: its sum holds totals below 2**95, more than a BIGINT state. A
sum that overflows is NULL or an error of the engine, and never a wrong state.
"""

from __future__ import annotations

import contextlib
import decimal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.ext.lift.tree import (
    SIGN,
    TRUE,
    Case,
    Expr,
    Field,
    Lift,
    add,
    all_of,
    compare,
    const,
    evaluate,
    high_bits,
    low_bits,
    multiply,
    negate,
    not_,
    scale_of,
)
from foldflight.fold.mode import Unsupported
from foldflight.functions.types.values import as_decimals

_LIMB: Final = 32
_END: Final = 1 << 63
# Limit of amounts; states have no larger ones. Expressions of products grow fast: BIGINT**3 takes about two thousand
# operations, and BIGINT**4 too many for an engine.
_AMOUNT_END: Final = 1 << 192
# Distinct facts for which `_cover` tries all combinations: each one doubles the time.
_FACTS_MAX: Final = 8
# Maximum number of products when two sums are multiplied; BIGINT**3 needs about 40.
_PAIRS_MAX: Final = 4_096
# Digits of the engine's sums of DECIMALs, and of their states.
_DIGITS_MAX: Final = 38
_EXACT: Final = decimal.Context(prec=76)
# Totals are computed in int64 if their float estimate is below this. The error of the estimate is far below 2**61, so
# such totals stay below 2**62.
_FAST_MAX: Final = float(1 << 61)


class SumOverflow(Exception):  # noqa: N818 - the caller knows the group, and raises its error
    """The sum of a limb exceeds 64 bits.

    Args:
        index: The position of the group.
    """

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class FieldOverflow(Exception):  # noqa: N818 - as above
    """The value of a field does not fit its type.

    Args:
        index: The position of the group.
        text: The field, the value and the type.
    """

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


@dataclass(frozen=True)
class Aggregate:
    """One aggregation of an engine.

    Args:
        kind: `sum`: of 32-bit integers; an error or NULL if it overflows, which takes 2**31 rows. `wide sum`: of 64-bit
            integers; NULL if it overflows. `decimal sum`: of DECIMALs of one scale; NULL or an error beyond 38 digits.
            `count`: of the rows of all cases. `min`, `max`: NULL if there is no such row; NaN is greater than all
            numbers.
        cases: Conditions and values; at most one condition holds for a row. A row of no case changes nothing.
    """

    kind: Literal["sum", "wide sum", "decimal sum", "count", "min", "max"]
    cases: tuple[Case, ...]

    @property
    def sums(self) -> bool:
        """Whether it is a sum."""
        return self.kind in ("sum", "wide sum", "decimal sum")

    @property
    def scale(self) -> int:
        """The digits after the point of a sum of DECIMALs."""
        return scale_of(self.cases[0].value.kind)

    def of_rows(self, rows: Sequence[Sequence[Any]], signs: Sequence[int]) -> Any:
        """Return the aggregate of rows as an engine computes it. Raises OverflowError if a value wraps around."""
        values = []
        for row, sign in zip(rows, signs, strict=True):
            for each in self.cases:
                if evaluate(each.when, row, sign):
                    values.append(evaluate(each.value, row, sign))
                    break
        if self.kind == "count":
            return len(values)
        if self.kind == "decimal sum":
            with decimal.localcontext(_EXACT):
                amount = sum(values, decimal.Decimal(0))
                return amount if abs(amount).scaleb(self.scale) < 10**_DIGITS_MAX else None
        if self.sums:
            total = sum(values)
            return total if -_END <= total < _END else None
        best_value = None
        for index, value in enumerate(values):
            if index == 0 or _replaces(self.kind, value, best_value):
                best_value = value
        return best_value


def _replaces(kind: str, value: Any, extrema: Any) -> bool:
    """Return whether a value replaces the current minimum or maximum. NaN is greater than all numbers."""
    value_is_nan, held_is_nan = value != value, extrema != extrema  # noqa: PLR0124 - only NaN differs from itself
    if value_is_nan or held_is_nan:
        return value_is_nan is not held_is_nan and value_is_nan is (kind == "max")
    return bool(value < extrema if kind == "min" else value > extrema)


@dataclass(frozen=True)
class _Limb:
    """One summand of a field: the result of an aggregate, times a factor, shifted left."""

    index: int
    shift: int = 0
    factor: int = 1


@dataclass(frozen=True)
class LiftPlan:
    """The aggregations with which an engine computes the states of one call.

    Args:
        lift: What the function does.
        aggregates: What the engine computes for each group.
        limbs: For each field, the summands that it consists of.
    """

    lift: Lift
    aggregates: tuple[Aggregate, ...]
    limbs: tuple[tuple[_Limb, ...], ...]

    @property
    def raises(self) -> bool:
        """Whether a statement of the author raises for some rows, and not only NULL does."""
        return not all(each.by_null for each in self.lift.failures)

    @cached_property
    def outcome_reason(self) -> str:
        """The reason why Python must compute results from the aggregates; empty if expressions of an engine can."""
        if self.lift.outcome.reason:
            return self.lift.outcome.reason
        if any(each.shift > 2 * _LIMB or abs(each.factor) >> _LIMB for limbs in self.limbs for each in limbs):
            return "a sum may exceed 38 digits"
        if self.lift.failures and not any(each.sums for each in self.aggregates):
            return "it raises for some rows, and has no sum"
        outcome = self.lift.outcome
        try:
            for failure in outcome.failures:
                _check(failure.when)
            for part in outcome.parts:
                _check(part.when)
                _check(part.value)
        except Unsupported:
            return "get_value computes integers that may exceed 64 bits"
        expressions = [each.when for each in outcome.failures]
        expressions += [each for part in outcome.parts for each in (part.when, part.value)]
        quotients = [each for expr in expressions for each in expr.walk() if each.op == "quotient"]
        if any(part.uses("quotient") for each in quotients for part in each.parts):
            return "get_value divides integers that depend on a quotient of integers"
        return ""

    @classmethod
    def of(cls, lift: Lift, *, has_kinds: bool = False) -> LiftPlan:
        """Return the plan.

        Args:
            lift: What the function does.
            has_kinds: Whether rows may be retracted.

        Raises:
            Unsupported: An expression could exceed 64 bits, and cannot be split.
        """
        if has_kinds and lift.no_retract_reason:
            raise Unsupported(lift.no_retract_reason)
        aggregates: dict[Aggregate, int] = {}
        limbs = []
        for each in lift.fields:
            of_field = []
            for aggregate, shift, factor in _aggregates(each, has_kinds=has_kinds):
                for part in aggregate.cases:
                    _check(part.when)
                    _check(part.value)
                of_field.append(_Limb(aggregates.setdefault(aggregate, len(aggregates)), shift, factor))
            limbs.append(tuple(of_field))
        for failure in lift.failures:
            _check(failure.when)
        if not aggregates:
            raise Unsupported("no row changes its accumulator")
        failure_conditions = [each.when for each in lift.failures]
        return cls(lift, tuple(_with_rest(each, failure_conditions) for each in aggregates), tuple(limbs))

    @property
    def failure_conditions(self) -> tuple[Expr, ...]:
        """Conditions for rows that fail: one of them holds. They are shorter than the conditions of `failures`."""
        failure_conditions: list[Expr] = []
        for each in self.lift.failures:
            conditions = each.when.parts if each.when.op == "and" else (each.when,)
            failure_conditions.append(all_of([one for one in conditions if not_(one) not in failure_conditions]))
        return tuple(failure_conditions)

    def type_of(self, index: int, inputs: Sequence[pa.DataType]) -> pa.DataType:
        """Return the type of the results of an aggregate, for arguments of these types."""
        aggregate = self.aggregates[index]
        if aggregate.kind == "decimal sum":
            return pa.decimal128(_DIGITS_MAX, aggregate.scale)
        if aggregate.sums or aggregate.kind == "count":
            return pa.int64()
        value = aggregate.cases[0].value
        if value.kind in ("int", "float", "bool"):
            return {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}[value.kind]
        # A string may be a constant of the author, so there may be no argument of its type.
        return next((type_ for type_ in inputs if str(type_) == value.kind), pa.string())

    def states(self, results: Sequence[pa.Array], type_: pa.DataType, count: int) -> pa.Array:
        """Return n states.

        Args:
            results: For each aggregate, its results for n groups.
            type_: The type of the states.
            count: The number n.

        Raises:
            SumOverflow: A sum is NULL.
            FieldOverflow: A number does not fit its field.
        """
        names = [each.name for each in self.lift.fields]
        if names == [""]:
            return self._field(0, results, type_, count)
        columns = [self._field(index, results, type_.field(name).type, count) for index, name in enumerate(names)]
        return pa.StructArray.from_arrays(columns, fields=[type_.field(name) for name in names])

    def _field(self, index: int, results: Sequence[pa.Array], type_: pa.DataType, count: int) -> pa.Array:
        field, limbs = self.lift.fields[index], self.limbs[index]
        columns = [results[each.index] for each in limbs]
        if field.monoid == "keep":
            return _repeat(field.start, count, type_)
        if field.adds_decimals:
            return _decimals(field.name, columns[0], type_)
        if field.monoid == "sum":
            return _whole(field.name, _totals(field.start, limbs, columns), type_)
        (column,) = columns
        if field.start is not None and field.competes and field.monoid != "set":
            values = [
                value if value is not None and _replaces(field.monoid, value, field.start) else field.start
                for value in column.to_pylist()
            ]
            return _whole(field.name, values, type_) if pa.types.is_integer(type_) else pa.array(values, type_)
        if field.monoid == "set":
            new_value = pa.scalar(field.parts[0].value.value, type_)
            return pc.if_else(pc.greater(column, 0), new_value, pa.scalar(field.start, type_))
        if column.type != type_ and pa.types.is_integer(type_):
            column = _whole(field.name, column.cast(pa.int64()), type_)
        if column.type != type_:
            column = column.cast(type_)
        return column if field.start is None else pc.fill_null(column, pa.scalar(field.start, type_))


def _repeat(value: Any, count: int, type_: pa.DataType) -> pa.Array:
    return pa.array([value] * count, type_) if value is None else pa.repeat(pa.scalar(value, type_), count)


def _totals(start: int, limbs: Sequence[_Limb], columns: Sequence[pa.Array]) -> Any:
    """Return n sums: an int64 array if they fit, otherwise a list of integers."""
    for column in columns:
        if column.null_count:
            raise SumOverflow(column.is_null().to_pylist().index(True))
    arrays = [column.to_numpy() for column in columns]
    factors = [each.factor << each.shift for each in limbs]
    bound = np.abs(float(start)) + sum(
        np.abs(array.astype(np.float64)) * abs(float(factor)) for array, factor in zip(arrays, factors, strict=True)
    )
    if np.max(bound, initial=0.0) < _FAST_MAX:
        total = np.full(len(columns[0]), start, np.int64)
        for array, factor in zip(arrays, factors, strict=True):
            # If a factor exceeds 64 bits, all values of the limb are 0.
            total += array * np.int64(factor) if abs(factor) < _END else 0
        return pa.array(total)
    lists = [array.tolist() for array in arrays]
    return [
        start + sum(number * factor for number, factor in zip(numbers, factors, strict=True))
        for numbers in zip(*lists, strict=True)
    ]


def _decimals(name: str, totals: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return n sums of DECIMALs in the type of their field. Raises SumOverflow, FieldOverflow."""
    if totals.null_count:
        raise SumOverflow(totals.is_null().to_pylist().index(True))
    values, misfits = as_decimals(totals, type_)
    if misfits is None or not misfits.any():
        return values
    end = decimal.Decimal(10) ** (type_.precision - type_.scale)
    for index, value in enumerate(totals.to_pylist()):
        if abs(value) >= end:
            raise FieldOverflow(index, f"{f'{name}: ' if name else ''}{value} (Decimal) does not fit {type_}")
    raise FieldOverflow(0, f"{name}: the values do not fit {type_} together")


def _whole(name: str, totals: Any, type_: pa.DataType) -> pa.Array:
    """Return n integers in the type of their field. Raises FieldOverflow."""
    if isinstance(totals, pa.Array):
        if pa.types.is_decimal(type_):
            in_type, misfits = as_decimals(totals, type_)
            if misfits is None or not misfits.any():
                return in_type
        else:
            with contextlib.suppress(pa.ArrowException):
                return totals.cast(type_)
        totals = totals.to_pylist()
    values = [decimal.Decimal(each) for each in totals] if pa.types.is_decimal(type_) else totals
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError):
        pass
    for index, value in enumerate(values):
        try:
            pa.array([value], type_)
        except (pa.ArrowException, OverflowError):
            raise FieldOverflow(
                index, f"{f'{name}: ' if name else ''}{totals[index]} (int) does not fit {type_}"
            ) from None
    raise FieldOverflow(0, f"{name}: the values do not fit {type_} together")


def _aggregates(field: Field, *, has_kinds: bool) -> list[tuple[Aggregate, int, int]]:
    """Return the aggregates of a field, each with its shift and factor."""
    match field.monoid:
        case "keep":
            return []
        case "set":
            return [(Aggregate("count", tuple(Case(each.when, const(1)) for each in field.parts)), 0, 1)]
        case "min" | "max":
            return [(Aggregate(field.monoid, field.parts), 0, 1)]
    if field.adds_decimals:
        signed_parts = tuple(_with_sign(field.parts)) if has_kinds else field.parts
        return [(Aggregate("decimal sum", signed_parts), 0, 1)]
    amounts = {each.value for each in field.parts}
    if any(max(-each.low, each.high) >= _AMOUNT_END for each in amounts):
        raise Unsupported("it adds integers that may exceed 192 bits")
    if not has_kinds and len(amounts) == 1 and (amount := next(iter(amounts))).is_const:
        return [(Aggregate("count", tuple(Case(each.when, const(1)) for each in field.parts)), 0, amount.value)]
    cases: dict[int, list[Case]] = {}
    for part in field.parts:
        for shift, limb in _limbs(multiply(SIGN, part.value) if has_kinds else part.value).items():
            cases.setdefault(shift, []).append(Case(part.when, limb))
    aggregates = []
    for shift, parts in sorted(cases.items()):
        is_narrow = all(_is_limb(part.value) for part in parts)
        aggregates.append((Aggregate("sum" if is_narrow else "wide sum", tuple(parts)), shift, 1))
    return aggregates


def _with_rest(one: Aggregate, failure_conditions: Sequence[Expr]) -> Aggregate:
    """Return an aggregate whose last case has no condition, if it applies to all other rows that do not fail.

    A row that fails is an error, so its value does not matter.
    """
    *others, last = one.cases
    if last.when != TRUE and _hold_always([*(each.when for each in one.cases), *failure_conditions]):
        return replace(one, cases=(*others, Case(TRUE, last.value)))
    return one


def _hold_always(conditions: Sequence[Expr]) -> bool:
    """Return whether it is proven that one of the conditions holds for each row."""
    literals = [each.parts if each.op == "and" else () if each == TRUE else (each,) for each in conditions]
    facts = {_fact(literal) for each in literals for literal in each}
    return len(facts) <= _FACTS_MAX and _cover([frozenset(each) for each in literals])


def _fact(literal: Expr) -> Expr:
    return not_(literal) if literal.op == "not" else literal


def _cover(conditions: Sequence[frozenset[Expr]]) -> bool:
    """Return whether one of the conditions holds for every combination of their facts."""
    if not all(conditions):
        return True
    if not conditions:
        return False
    fact = min(map(_fact, conditions[0]), key=repr)
    sides = ([each - {holds} for each in conditions if not_(holds) not in each] for holds in (fact, not_(fact)))
    return all(map(_cover, sides))


def _with_sign(parts: Sequence[Case]) -> Iterator[Case]:
    """Yield the cases for rows that are added and for rows that are retracted, which have the negated value."""
    retracts = compare("lt", SIGN, const(0))
    for part in parts:
        yield Case(all_of([part.when, not_(retracts)]), part.value)
        yield Case(all_of([part.when, retracts]), negate(part.value))


def _fits(one: Expr) -> bool:
    return one.low >= -_END and one.high < _END


def _check(one: Expr) -> None:
    """Raise Unsupported for an expression that could exceed 64 bits."""
    if not all(_fits(each) for each in one.walk() if each.kind == "int"):
        raise Unsupported("it compares integers that may exceed 64 bits")


def _is_limb(one: Expr) -> bool:
    """Return whether 2**31 such numbers can be added in 64 bits."""
    return one.low >= -(1 << (_LIMB - 1)) and one.high < 1 << _LIMB


def _limbs(amount: Expr) -> dict[int, Expr]:
    """Split an amount into 64-bit integers by their left shift."""
    pending: dict[int, list[Expr]] = {}
    for shift, term in _terms(amount):
        pending.setdefault(shift, []).append(term)
    limbs: dict[int, Expr] = {}
    while pending:
        shift = min(pending)
        terms = pending.pop(shift)
        total = _sum(terms)
        if total is None:
            for term in terms:
                pending.setdefault(shift, []).append(low_bits(term, _LIMB))
                pending.setdefault(shift + _LIMB, []).append(high_bits(term, _LIMB))
        elif _is_limb(total) or (not pending and shift >= _LIMB):
            limbs[shift] = total
        else:
            limbs[shift] = low_bits(total, _LIMB)
            pending.setdefault(shift + _LIMB, []).append(high_bits(total, _LIMB))
    return limbs


def _sum(terms: Sequence[Expr]) -> Expr | None:
    """Return the sum of integers; None if a step could exceed 64 bits."""
    total = terms[0]
    for each in terms[1:]:
        total = add(total, each)
        if not _fits(total):
            return None
    return total


def _terms(one: Expr) -> list[tuple[int, Expr]]:
    """Return 64-bit integers with left shifts, whose sum is the expression."""
    if all(_fits(each) for each in one.walk() if each.kind == "int"):
        return [(0, one)]
    match one.op, *one.parts:
        case "const", _:
            low, high = low_bits(one, _LIMB), high_bits(one, _LIMB)
            return [(0, low), *((shift + _LIMB, term) for shift, term in _terms(high))]
        case "add", left, right:
            return _terms(left) + _terms(right)
        case "neg", inner:
            return [part for shift, term in _terms(inner) for part in _negate_term(shift, term)]
        case "mul", left, right:
            pairs = [(one_, other) for one_ in _terms(left) for other in _terms(right)]
            if len(pairs) > _PAIRS_MAX:
                raise Unsupported("it multiplies sums of too many integers")
            return [product for one_, other in pairs for product in _product([one_], [other])]
        case _:
            raise Unsupported("it adds integers that may exceed 64 bits and cannot be cut")


def _negate_term(shift: int, term: Expr) -> list[tuple[int, Expr]]:
    negative = negate(term)
    if _fits(negative):
        return [(shift, negative)]
    return [(shift + by, negate(part)) for by, part in _halves(term)]


def _product(left: list[tuple[int, Expr]], right: list[tuple[int, Expr]]) -> list[tuple[int, Expr]]:
    """Return the products of all pairs of summands. Factors are split until each product fits 64 bits."""
    products = []
    for one_shift, one in left:
        for other_shift, other in right:
            product = multiply(one, other)
            if _fits(product):
                products.append((one_shift + other_shift, product))
                continue
            wider, other_ = ((one_shift, one), (other_shift, other))
            if _bits(other) > _bits(one):
                wider, other_ = other_, wider
            halves = [(wider[0] + by, part) for by, part in _halves(wider[1])]
            products += _product(halves, [other_])
    return products


def _bits(one: Expr) -> int:
    return max(abs(one.low), abs(one.high)).bit_length()


def _halves(one: Expr) -> list[tuple[int, Expr]]:
    """Return the lower and the upper part of an integer."""
    low = _LIMB if _bits(one) > _LIMB else (_bits(one) + 1) // 2
    return [(0, low_bits(one, low)), (low, high_bits(one, low))]
