"""Sums and products as polynomials over arguments, to compare expressions that authors wrote in different ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from foldflight.ext.lift.tree import Expr, is_decimal

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
