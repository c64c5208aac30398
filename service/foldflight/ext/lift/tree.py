"""The lift of a function as data: expressions and conditions over one row, and a monoid for each field.

Nothing here knows an engine or an author's class. A server sends a `Lift` to an engine as JSON. Expressions have
Python's semantics (`evaluate`): integers are exact, and comparisons with NaN are false.

Expressions are evaluated as an engine does: an integer that exceeds 64 bits is an error. To compare expressions that
authors wrote in different ways, sums and products are made polynomials over the arguments.
"""

from __future__ import annotations

import decimal
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError

Monoid: TypeAlias = Literal["sum", "min", "max", "set", "keep"]

_FORMAT: Final = 1
# Format version for DECIMAL sums; clients of version 1 would read them as integers.
_DECIMAL_FORMAT: Final = 2
# Stands for unbounded in the range of an integer field: nothing computed with it fits 64 bits.
_ENDLESS: Final = 1 << 1000


@dataclass(frozen=True)
class Expr:
    """An expression over the arguments of one row.

    Args:
        op: `arg` (number of an argument), `const`, `field` (of the accumulator before the row; only while a class is
            analysed, and in an `Outcome`), `add`, `neg`, `mul`, `div`, `quotient` (of two integers, rounded once to a
            float), `float` (an integer as a float), `int` (a truth value as 0 or 1),
            `low` (the lowest n bits), `high` (the others, shifted right by n), `sign` (see SIGN), `lt`, `le`, `eq`,
            `not`, `and`, `null`.
        parts: The operands, or the number, value or name.
        kind: `int`, `float`, `bool`, `none`, or the Arrow type, as text, of values that are only compared.
        low: The least value, if it is an integer.
        high: The greatest value, if it is an integer.
    """

    op: str
    parts: tuple[Any, ...]
    kind: str
    low: int = 0
    high: int = 0

    @property
    def is_const(self) -> bool:
        """Whether it is a constant."""
        return self.op == "const"

    @property
    def value(self) -> Any:
        """The value of a constant."""
        return self.parts[0]

    def walk(self) -> Iterator[Expr]:
        """Yield this expression and all expressions in it."""
        yield self
        for part in self.parts:
            if isinstance(part, Expr):
                yield from part.walk()

    @property
    def depth(self) -> int:
        """The number of nested expressions."""
        return 1 + max((part.depth for part in self.parts if isinstance(part, Expr)), default=0)

    def uses(self, op: str) -> bool:
        """Return whether an operation occurs in it."""
        return any(each.op == op for each in self.walk())

    def to_data(self) -> list[Any]:
        """Return it as nested lists of plain values, which `from_data` reads."""
        if self.op in ("arg", "field"):
            return [self.op, self.parts[0], self.kind, self.low, self.high]
        if self.op == "const":
            return ["const", self.value]
        return [self.op, *(part.to_data() if isinstance(part, Expr) else part for part in self.parts)]


def const(value: Any) -> Expr:
    """Return a constant: None, a bool, an int, a float or a str."""
    match value:
        case None:
            return Expr("const", (None,), "none")
        case bool():
            return Expr("const", (value,), "bool")
        case int():
            return Expr("const", (value,), "int", value, value)
        case float():
            return Expr("const", (value, repr(value)), "float")  # 0.0 and -0.0 are equal, but must stay distinct
        case str():
            return Expr("const", (value,), str(pa.string()))
        case _:
            raise TypeError(value)


NONE: Final = const(None)
TRUE: Final = const(True)
FALSE: Final = const(False)


SIGN: Final = Expr("sign", (), "int", -1, 1)
"""1 for a row that is added, -1 for one that is retracted."""


def kind_of(type_: pa.DataType) -> tuple[str, int, int] | None:
    """Return the kind of the values of an Arrow type with the bounds of integers; None if they cannot be compared."""
    kinds = pa.types
    if kinds.is_boolean(type_):
        return "bool", 0, 0
    if kinds.is_integer(type_):
        is_signed = kinds.is_signed_integer(type_)
        bits = type_.bit_width - is_signed
        return "int", -(1 << bits) if is_signed else 0, (1 << bits) - 1
    if type_ in (pa.float32(), pa.float64()):
        return "float", 0, 0
    is_plain = kinds.is_decimal(type_) or type_ in (pa.string(), pa.binary(), pa.date32())
    if is_plain or (kinds.is_timestamp(type_) and type_.unit == "us"):
        return str(type_), 0, 0
    return None


def is_decimal(kind: str) -> bool:
    """Return whether values of a kind are DECIMALs."""
    return kind.startswith("decimal128(")


def digits_of(kind: str) -> int:
    """Return the digits of a kind of DECIMALs."""
    return int(kind.removeprefix("decimal128(").partition(",")[0])


def scale_of(kind: str) -> int:
    """Return the digits after the point of a kind of DECIMALs."""
    return int(kind.removesuffix(")").rpartition(", ")[2])


def arg(index: int, type_: pa.DataType) -> Expr:
    """Return an argument by its number. A value that cannot be compared may still be tested for NULL."""
    kind, low, high = kind_of(type_) or ("other", 0, 0)
    return Expr("arg", (index,), kind, low, high)


def field(name: str, kind: str) -> Expr:
    """Return the value of a field before the row."""
    return Expr("field", (name,), kind, -_ENDLESS, _ENDLESS) if kind == "int" else Expr("field", (name,), kind)


def add(one: Expr, other: Expr) -> Expr:
    """Return the sum of two integers, two floats, or two DECIMALs of one scale."""
    if one.is_const and other.is_const:
        return const(one.value + other.value)
    if one.kind == "int":
        if one.is_const and one.value == 0:
            return other
        if other.is_const and other.value == 0:
            return one
    return Expr("add", (one, other), one.kind, one.low + other.low, one.high + other.high)


def negate(one: Expr) -> Expr:
    """Return a number with the other sign."""
    if one.is_const:
        return const(-one.value)
    if one.op == "neg" and isinstance(one.parts[0], Expr):
        return one.parts[0]
    return Expr("neg", (one,), one.kind, -one.high, -one.low)


def multiply(one: Expr, other: Expr) -> Expr:
    """Return the product of two integers or two floats."""
    if one.is_const and other.is_const:
        return const(one.value * other.value)
    if one.kind == "int":
        for factor, rest in ((one, other), (other, one)):
            if factor.is_const and factor.value in (0, 1):
                return rest if factor.value else const(0)
    corners = [a * b for a in (one.low, one.high) for b in (other.low, other.high)]
    return Expr("mul", (one, other), one.kind, min(corners), max(corners))


def divide(one: Expr, other: Expr) -> Expr:
    """Return the quotient of two floats. The divisor is not zero where the expression is evaluated."""
    return const(one.value / other.value) if one.is_const and other.is_const else Expr("div", (one, other), "float")


def quotient(one: Expr, other: Expr) -> Expr:
    """Return the quotient of two 64-bit integers, rounded once. The divisor is not zero where it is evaluated."""
    is_known = one.is_const and other.is_const
    return const(one.value / other.value) if is_known else Expr("quotient", (one, other), "float")


def as_float(one: Expr) -> Expr:
    """Return a 64-bit integer as the nearest float."""
    return const(float(one.value)) if one.is_const else Expr("float", (one,), "float")


def as_int(one: Expr) -> Expr:
    """Return a truth value as 0 or 1."""
    return const(int(one.value)) if one.is_const else Expr("int", (one,), "int", 0, 1)


def low_bits(one: Expr, bits: int) -> Expr:
    """Return the lowest bits of a 64-bit integer, as a number that is not negative."""
    if one.is_const:
        return const(one.value & ((1 << bits) - 1))
    return Expr("low", (one, bits), "int", 0, (1 << bits) - 1)


def high_bits(one: Expr, bits: int) -> Expr:
    """Return a 64-bit integer without its lowest bits, shifted right by their number."""
    if one.is_const:
        return const(one.value >> bits)
    return Expr("high", (one, bits), "int", one.low >> bits, one.high >> bits)


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "eq": lambda one, other: one == other,
}


def compare(op: str, one: Expr, other: Expr) -> Expr:
    """Return a comparison: less (`lt`), less or equal (`le`), or equal (`eq`)."""
    if one.is_const and other.is_const:
        return const(_COMPARISONS[op](one.value, other.value))
    if any(each.is_const and each.kind == "float" and math.isnan(each.value) for each in (one, other)):
        return FALSE  # a NaN that was computed from constants
    if op == "le" and one.kind != "float":  # as `not (other < one)`, so that a decision on one also decides the other
        return not_(compare("lt", other, one))
    if one.kind == "int" and op == "lt" and (one.high < other.low or one.low >= other.high):
        return const(one.high < other.low)
    return Expr(op, (one, other), "bool")


def not_(one: Expr) -> Expr:
    """Return whether a truth value is false."""
    if one.is_const:
        return const(not one.value)
    if one.op == "not" and isinstance(one.parts[0], Expr):
        return one.parts[0]
    return Expr("not", (one,), "bool")


def null(one: Expr) -> Expr:
    """Return whether an argument or field is NULL. All other expressions never are."""
    if one.is_const:
        return const(one.value is None)
    return Expr("null", (one,), "bool") if one.op in ("arg", "field") else FALSE


def all_of(conditions: list[Expr]) -> Expr:
    """Return whether all conditions hold."""
    open_conditions = [each for each in conditions if each != TRUE]
    if FALSE in open_conditions:
        return FALSE
    return (
        TRUE
        if not open_conditions
        else open_conditions[0]
        if len(open_conditions) == 1
        else Expr("and", tuple(open_conditions), "bool")
    )


_BUILD: Final[dict[str, Callable[..., Expr]]] = {
    "const": const,
    "add": add,
    "neg": negate,
    "mul": multiply,
    "div": divide,
    "quotient": quotient,
    "float": as_float,
    "int": as_int,
    "lt": lambda one, other: compare("lt", one, other),
    "le": lambda one, other: compare("le", one, other),
    "eq": lambda one, other: compare("eq", one, other),
    "not": not_,
    "null": null,
    "and": lambda *all_: all_of(list(all_)),
}


# Characters of the JSON text of a lift. The largest of randomly generated classes have 5 % of it.
TEXT_MAX: Final = 1_000_000
# Nested expressions: the recursive parser of an engine must not overflow its stack.
DEPTH_MAX: Final = 100


def _expr(data: Any, depth: int = 0) -> Expr:
    if depth >= DEPTH_MAX:
        raise ValueError(f"an expression has more than {DEPTH_MAX} levels")
    op, *parts = data
    if op in ("arg", "field"):
        which, kind, low, high = parts
        return Expr(op, (int(which) if op == "arg" else str(which),), str(kind), int(low), int(high))
    if op == "const":
        return const(*parts)
    operands = [_expr(each, depth + 1) for each in parts]
    kinds = {each.kind for each in operands}
    if len(kinds) != 1 or not _takes(op, *kinds):
        raise ValueError(f"{op} is not an operation on {sorted(kinds)}")
    return _BUILD[op](*operands)


_NUMBERS: Final = ("int", "float")
_OPERANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "add": _NUMBERS,
    "mul": _NUMBERS,
    "div": ("float",),
    "quotient": ("int",),
    "float": ("int",),
    "int": ("bool",),
    "not": ("bool",),
    "and": ("bool",),
}


def _takes(op: str, kind: str) -> bool:
    """Return whether an operation has a meaning for operands of a kind."""
    if op in _COMPARISONS:
        return kind not in ("bool", "none", "other")
    return op == "null" or kind in _OPERANDS.get(op, ()) or (op == "neg" and (kind in _NUMBERS or is_decimal(kind)))


@dataclass(frozen=True)
class Case:
    """The effect of some rows on a field.

    Args:
        when: The condition for these rows. For other rows it is false, never NULL.
        value: The value that such a row adds, or that is compared; for `set`, a constant.
    """

    when: Expr
    value: Expr


@dataclass(frozen=True)
class Field:
    """How rows change one field of the accumulator.

    Args:
        name: The name of the member of the state; empty if the state is this one value.
        monoid: `sum`: the field starts with `start` and grows by the values of the rows. `min`, `max`: it becomes the
            least or greatest value; NaN is greater than all numbers. `set`: it becomes the one constant if there is
            such a row. `keep`: it never changes.
        start: Its value in a new accumulator.
        parts: The rows that change it. At most one part applies to a row.
        competes: For `min` and `max`: whether `start` is one of the values. Otherwise the first value replaces it.
    """

    name: str
    monoid: Monoid
    start: Any
    parts: tuple[Case, ...] = ()
    competes: bool = True

    @property
    def adds_decimals(self) -> bool:
        """Whether it is a sum of DECIMALs, each an argument or an argument with the other sign."""
        return self.monoid == "sum" and any(is_decimal(each.value.kind) for each in self.parts)


@dataclass(frozen=True)
class Failure:
    """Rows for which the author's method raises.

    Args:
        when: Which rows.
        text: The error, for users.
        by_null: Whether it raises because an argument is NULL, and not by a statement of the author.
    """

    when: Expr
    text: str
    by_null: bool = False


@dataclass(frozen=True)
class Outcome:
    """What `get_value` returns, as expressions over the fields of the accumulator.

    Args:
        parts: Values and when they are returned; one part applies to each accumulator that does not fail.
        failures: Accumulators for which it raises.
        reason: The reason why it is unknown, so that Python must call `get_value`; empty if it is known.
    """

    parts: tuple[Case, ...] = ()
    failures: tuple[Failure, ...] = ()
    reason: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "parts": [[part.when.to_data(), part.value.to_data()] for part in self.parts],
            "fails": [[each.when.to_data(), each.text] for each in self.failures],
            "reason": self.reason,
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Outcome:
        """Return the outcome of `to_data`."""
        return cls(
            tuple(Case(_expr(when), _expr(value)) for when, value in data["parts"]),
            tuple(Failure(_expr(when), str(text)) for when, text in data["fails"]),
            str(data["reason"]),
        )


_UNKNOWN_OUTCOME: Final = Outcome(reason="the server does not tell; it is of an older version")
_DECIMAL_OUTCOME: Final = Outcome(reason="its result is a DECIMAL, and this client is of an older version")
_OUTCOMES: Final = ("outcome_of_decimals", "outcome")  # in the JSON of a lift, the one that tells most first


@dataclass(frozen=True)
class Lift:
    """What a function does for one row of a call with certain types and direct arguments.

    Args:
        fields: The fields of the accumulator, in the order of the state's members.
        failures: Rows for which it raises.
        no_retract_reason: Why a retraction cannot be computed by the same fields with the other sign; empty if it can:
            `retract` is the exact inverse of `accumulate`.
        outcome: What `get_value` returns.
    """

    fields: tuple[Field, ...]
    failures: tuple[Failure, ...] = ()
    no_retract_reason: str = ""
    outcome: Outcome = _UNKNOWN_OUTCOME

    @property
    def depth(self) -> int:
        """The greatest depth of an expression that is written to JSON."""
        parts = [*self.outcome.parts, *(part for each in self.fields for part in each.parts)]
        exprs = [expr for part in parts for expr in (part.when, part.value)]
        exprs += [each.when for each in (*self.failures, *self.outcome.failures)]
        return max((each.depth for each in exprs), default=0)

    def narrow_types(self, types: Sequence[pa.DataType]) -> Lift:
        """Return the lift for columns of these types, which may be narrower than the types of the arguments."""
        bounds = {index: kind_of(type_) for index, type_ in enumerate(types)}

        def narrow(expr: Expr) -> Expr:
            if expr.op == "arg":
                bound = bounds.get(expr.parts[0])
                if expr.kind != "int" or bound is None or bound[0] != "int":
                    return expr
                return replace(expr, low=max(expr.low, bound[1]), high=min(expr.high, bound[2]))
            if expr.op == "const":
                return expr
            return _BUILD[expr.op](*map(narrow, expr.parts))

        return Lift(
            tuple(
                replace(each, parts=tuple(Case(narrow(part.when), narrow(part.value)) for part in each.parts))
                for each in self.fields
            ),
            tuple(replace(each, when=narrow(each.when)) for each in self.failures),
            self.no_retract_reason,
            self.outcome,
        )

    def to_json(self) -> str:
        """Return it as JSON."""
        fields = [
            {
                "name": each.name,
                "monoid": each.monoid,
                "start": each.start,
                "competes": each.competes,
                "parts": [[part.when.to_data(), part.value.to_data()] for part in each.parts],
            }
            for each in self.fields
        ]
        failures = [[each.when.to_data(), each.text, each.by_null] for each in self.failures]
        outcomes = {"outcome": self.outcome.to_data()}
        if any(is_decimal(part.value.kind) for part in self.outcome.parts):
            # Clients that know no such results still lift the rows.
            outcomes = {"outcome": _DECIMAL_OUTCOME.to_data(), "outcome_of_decimals": self.outcome.to_data()}
        return json.dumps(
            {
                "lift": _DECIMAL_FORMAT if any(each.adds_decimals for each in self.fields) else _FORMAT,
                "fields": fields,
                "fails": failures,
                "unretractable": self.no_retract_reason,
                **outcomes,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Lift | None:
        """Return the lift of `to_json`, or None for the text of a later version, which may have another meaning.

        Raises:
            RejectedError: BAD_FRAME, if the text is damaged.
        """
        try:
            if len(text) > TEXT_MAX:
                raise ValueError(f"it has {len(text):,} letters, and {TEXT_MAX:,} are the most")
            data = json.loads(text)
            if data["lift"] not in (_FORMAT, _DECIMAL_FORMAT):
                return None
            return cls(
                tuple(
                    Field(
                        each["name"],
                        each["monoid"],
                        each["start"],
                        tuple(Case(_expr(when), _expr(value)) for when, value in each["parts"]),
                        bool(each["competes"]),
                    )
                    for each in data["fields"]
                ),
                tuple(Failure(_expr(when), str(error), bool(by_null)) for when, error, by_null in data["fails"]),
                str(data["unretractable"]),
                next((Outcome.of_data(data[name]) for name in _OUTCOMES if name in data), _UNKNOWN_OUTCOME),
            )
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise RejectedError("BAD_FRAME", f"the description of a lifted function cannot be read: {error}") from None


_END = 1 << 63


def evaluate(expr: Expr, row: Sequence[Any] | Mapping[str, Any], sign: int = 1) -> Any:
    """Return the value of an expression for one row, or for one accumulator.

    Args:
        expr: The expression.
        row: The arguments, or the fields of the accumulator by name; None is NULL.
        sign: The value of `SIGN`.

    Raises:
        OverflowError: An integer does not fit 64 bits.
    """
    match expr.op:
        case "arg" | "field":
            return row[expr.parts[0]]
        case "const":
            return expr.value
        case "sign":
            return sign
        case "and":
            return all(evaluate(each, row, sign) for each in expr.parts)
        case "quotient":
            one, other = (evaluate(each, row, sign) for each in expr.parts)
            return one / other
        case _:
            values = [evaluate(each, row, sign) if isinstance(each, Expr) else each for each in expr.parts]
            value = _apply(expr, values)
    if type(value) is int and not -_END <= value < _END:
        raise OverflowError(f"{expr} is {value}")
    return value


def _apply(expr: Expr, values: Sequence[Any]) -> Any:
    match expr.op, *values:
        case "add", one, other:
            return one + other
        case "neg", one:
            # `-` would round a DECIMAL to the digits of the context.
            return one.copy_negate() if isinstance(one, decimal.Decimal) else -one
        case "mul", one, other:
            return one * other
        case "div", one, other:
            return one / other
        case "float", one:
            return float(one)
        case "int", one:
            return int(one)
        case "low", one, bits:
            return one & ((1 << bits) - 1)
        case "high", one, bits:
            return one >> bits
        case "lt", one, other:
            return one < other
        case "le", one, other:
            return one <= other
        case "eq", one, other:
            return one == other
        case "not", one:
            return not one
        case "null", one:
            return one is None
        case _:
            raise TypeError(expr.op)


# The coefficient of each monomial, which is the sorted texts of its factors.
_Polynomial: TypeAlias = Counter[tuple[str, ...]]


def same_sum(one: Expr | None, other: Expr | None, facts: Mapping[Expr, bool]) -> bool:
    """Return whether two amounts are proven equal for all rows for which the facts hold."""
    if one is None or other is None:
        return False
    if one == other:
        return True
    is_exact = all(each.kind == "int" or is_decimal(each.kind) for each in (one, other))
    return is_exact and _polynomial(one, facts) == _polynomial(other, facts)


def _polynomial(one: Expr, facts: Mapping[Expr, bool]) -> dict[tuple[str, ...], int]:
    return {monomial: factor for monomial, factor in _terms(one, facts).items() if factor}


def _terms(one: Expr, facts: Mapping[Expr, bool]) -> _Polynomial:
    terms: _Polynomial = Counter()
    match one.op:
        case "const":
            terms[()] = one.value
        case "add":
            for part in one.parts:
                for monomial, factor in _terms(part, facts).items():
                    terms[monomial] += factor
        case "neg":
            for monomial, factor in _terms(one.parts[0], facts).items():
                terms[monomial] -= factor
        case "mul":
            left, right = (_terms(part, facts) for part in one.parts)
            for monomial, factor in left.items():
                for other, by in right.items():
                    terms[tuple(sorted(monomial + other))] += factor * by
        case "int" if one.parts[0] in facts:
            terms[()] = int(facts[one.parts[0]])
        case _:
            terms[(repr(one),)] = 1
    return terms
