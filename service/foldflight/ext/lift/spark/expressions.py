"""Expressions of lifted functions as SQL of Spark.

Only old functions of Spark SQL are used. Their differences from Python are written out: a comparison with NaN is false,
a divisor is never zero, and a quotient of large integers is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foldflight.ext.lift.tree import Expr
from foldflight.spark.expressions import SIGN, text

__all__ = ["Quotient", "alias_of", "constant", "expression", "quotient_key"]


def expression(expr: Expr, leaf: Callable[[Expr], str], computed: Mapping[str, str]) -> str:
    """Return an expression as SQL.

    Args:
        expr: The expression.
        leaf: Returns the SQL of an argument or a field.
        computed: Columns with values that have been computed, by the SQL of the value, or by `quotient_key`.
    """
    rendered = _render(expr, leaf, computed)
    return computed.get(rendered, rendered)


def _render(expr: Expr, leaf: Callable[[Expr], str], computed: Mapping[str, str]) -> str:
    if expr.op in ("arg", "field"):
        return leaf(expr)
    if expr.op == "const":
        return constant(expr.value)
    if expr.op in ("low", "high"):
        one, bits = expr.parts
        inner = expression(one, leaf, computed)
        return f"({inner} & {(1 << bits) - 1}L)" if expr.op == "low" else f"shiftright({inner}, {bits})"
    operands = [expression(each, leaf, computed) for each in expr.parts]
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
    compared = f"{one} {_COMPARISONS[expr.op]} {other}"
    if expr.parts[0].kind != "float":
        return f"({compared})"
    if expr.parts[0] == expr.parts[1]:  # only NaN differs from itself, and nothing is less than itself
        return f"(NOT isnan({one}))" if expr.op != "lt" else "false"
    # In Spark NaN equals itself and is greater than all numbers.
    numbers = [f"NOT isnan({operand})" for operand, part in zip(operands, expr.parts, strict=True) if not part.is_const]
    return f"({' AND '.join([compared, *numbers])})"


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
    quoted = name.replace("`", "``")
    return f"{expr} AS `{quoted}`"
