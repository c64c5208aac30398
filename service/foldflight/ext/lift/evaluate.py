"""Evaluate expressions in Python as an engine does: an integer that exceeds 64 bits is an error."""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any

from foldflight.ext.lift.tree import Expr

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
