"""Expressions of lifted functions as SQL of Spark.

Only old functions of Spark SQL are used. Their differences from Python are written out: a comparison with NaN is false,
a divisor is never zero, and a quotient of large integers is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as sf

from foldflight.engine.query.layout import KIND, RETRACTING
from foldflight.lift import Expr

__all__ = ["SIGN", "Quotient", "constant", "expression", "quotient_key", "text"]

SIGN: Final = f"CASE WHEN {KIND} IN ({', '.join(map(str, RETRACTING))}) THEN -1L ELSE 1L END"
"""The sign of a row: -1 if it is retracted."""


def expression(expr: Expr, leaf: Callable[[Expr], str], known: Mapping[str, str]) -> str:
    """Return an expression as SQL.

    Args:
        expr: The expression.
        leaf: Returns the SQL of an argument or a field.
        known: What has been computed, by its text: columns, and the results of `Quotient`s by `quotient_key`.
    """
    written = _written(expr, leaf, known)
    return known.get(written, written)


def _written(expr: Expr, leaf: Callable[[Expr], str], known: Mapping[str, str]) -> str:
    if expr.op in ("arg", "field"):
        return leaf(expr)
    if expr.op == "const":
        return constant(expr.value)
    if expr.op in ("low", "high"):
        one, bits = expr.parts
        inner = expression(one, leaf, known)
        return f"({inner} & {(1 << bits) - 1}L)" if expr.op == "low" else f"shiftright({inner}, {bits})"
    operands = [expression(each, leaf, known) for each in expr.parts]
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
    if expr.parts[0] == expr.parts[1]:  # only NaN differs from itself, and is less than nothing
        return f"(NOT isnan({one}))" if expr.op != "lt" else "false"
    # In Spark NaN equals itself and is greater than all numbers.
    numbers = [f"NOT isnan({operand})" for operand, part in zip(operands, expr.parts, strict=True) if not part.is_const]
    return f"({' AND '.join([compared, *numbers])})"


@dataclass(frozen=True)
class Quotient:
    """The quotient of two 64-bit integers as the nearest float.

    Integers below 2**53 are floats, of which a division is rounded once. For others, more than 55 bits of the quotient
    are computed as an integer, of which the last one tells whether there is a remainder; so it is rounded to 53 bits as
    the exact quotient would be. A power of two changes no digit. Three columns hold what is needed several times.

    Args:
        one: The dividend, as SQL.
        other: The divisor.
        number: The number of the quotient, for the names of its columns.
    """

    one: str
    other: str
    number: int

    def power(self) -> Column:
        """Return the power of two by which the quotient is multiplied; NULL if floats are divided."""
        operands = (f"abs(CAST({each} AS DOUBLE))" for each in (self.one, self.other))
        small = " AND ".join(f"{each} < {_WHOLE_END!r}D" for each in operands)
        rate = f"abs(CAST({self.one} AS DOUBLE) / nullif(CAST({self.other} AS DOUBLE), 0.0D))"
        # The product is between 2**57 and 2**60: the logarithm may be wrong by one.
        power = f"58 - CAST(floor(log2({rate})) AS INT)"
        text_ = f"CASE WHEN ({small}) OR {self.one} = 0 OR {self.other} = 0 THEN NULL ELSE {power} END"
        return sf.expr(text_).alias(self._power)

    def operands(self) -> list[Column]:
        """Return dividend and divisor, one of them multiplied, as whole DECIMALs without signs."""
        power = self._power
        return [
            sf.expr(
                f"CASE WHEN {power} IS NOT NULL THEN abs(CAST({each} AS DECIMAL(20, 0))) * {_power_of_two(bits)} END"
            ).alias(name)
            for each, bits, name in (
                (self.one, power, self._dividend),
                (self.other, f"(-{power})", self._divisor),
            )
        ]

    @property
    def result(self) -> str:
        """The quotient, as SQL."""
        one, other, dividend, divisor = self.one, self.other, self._dividend, self._divisor
        small = f"CAST({one} AS DOUBLE) / nullif(CAST({other} AS DOUBLE), 0.0D)"
        rest = f"CASE WHEN {dividend} % nullif({divisor}, 0) = 0 THEN 0L ELSE 1L END"
        sign = f"CASE WHEN ({one} < 0) = ({other} < 0) THEN 1.0D ELSE -1.0D END"
        wide = f"CAST(({dividend} div nullif({divisor}, 0)) | {rest} AS DOUBLE)"
        exact = f"({sign}) * {wide} * power(2.0D, -{self._power})"
        return f"CASE WHEN {self._power} IS NULL THEN {small} ELSE {exact} END"

    @property
    def _power(self) -> str:
        return f"power_{self.number}"

    @property
    def _dividend(self) -> str:
        return f"dividend_{self.number}"

    @property
    def _divisor(self) -> str:
        return f"divisor_{self.number}"


_WHOLE_END: Final = 2.0**53


def _power_of_two(bits: str) -> str:
    """Return two to the power of a number up to 122 as a whole DECIMAL; 1 for a negative number."""
    low, high = f"shiftleft(1L, least(greatest({bits}, 0), 61))", f"shiftleft(1L, greatest({bits} - 61, 0))"
    return f"CAST(CAST({low} AS DECIMAL(19, 0)) * CAST({high} AS DECIMAL(19, 0)) AS DECIMAL(38, 0))"


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


def text(value: str) -> str:
    """Return a text as SQL, whatever letters it has and however the session reads backslashes."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"
