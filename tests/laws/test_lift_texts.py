"""What a server tells of a lifted function is checked: nothing in it becomes SQL but what belongs to the call."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pyarrow as pa
import pytest

from foldflight.errors import RejectedError
from foldflight.ext.lift.analysis import check_lift
from foldflight.ext.lift.descriptions import lift_text, lifted_of
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.spark import expression
from foldflight.fold.mode import Unsupported
from foldflight.functions import Function, function_of
from foldflight.functions.author.spec import BoundFunction
from tests.laws.lifted_functions import LIFTED
from tests.laws.lifted_programs import Program

INJECTED = "decimal128(38, 0)) + (SELECT max(secret) FROM t) + CAST(0 AS DECIMAL(38, 2)"
ODD: list[Any] = [
    *(None, True, -1, 0, 7, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x", "\ud800", [], {}, [1], ["const"]),
    *(["const", 0], ["const", 1.0], ["const", "x"], ["const", None], ["arg", 0, "int", -5, 5], ["arg", 9, "int", 0, 1]),
    *(["arg", 0, INJECTED, 0, 0], ["arg", -1, "float", 0, 0], ["field", "", "int", 0, 9], ["sign"], ["shell", "ls"]),
    *(["div", ["const", 1.0], ["const", 0.0]], ["mul", ["const", 2**62], ["const", 2**62]], ["low", ["const", 1], 3]),
    *("sum", "min", "max", "set", "keep", "add", "mul", "neg", "null", "and", "not", "lt", "le", "eq", "quotient"),
]


def bound_of(cls: type) -> BoundFunction:
    """Return a call of a class with its own types."""
    function = function_of(cls)
    assert isinstance(function, Function)
    return function.bind(function.input_types or (), {})


def check(text: str, bound: BoundFunction) -> LiftPlan | None:
    """Do with a text what a query does, until it makes SQL of it; None if it is unsupported."""
    try:
        lift, _ = lifted_of(text)
        if lift is None:
            return None
        check_lift(lift, bound.input_types, bound.state_type, bound.result_type)
        plan = LiftPlan.of(lift.narrow_types(bound.input_types))
    except (RejectedError, Unsupported, ValueError):
        return None
    for aggregate in plan.aggregates:
        for case in aggregate.cases:
            for one in (case.when, case.value):
                expression_text = expression(one, lambda leaf: f"column_{leaf.parts[0]}", {})
                assert "SELECT" not in expression_text
                assert "column_9" not in expression_text
    assert plan.outcome_reason is not None
    return plan


@pytest.mark.parametrize("cls", LIFTED, ids=lambda cls: cls.__name__)
def test_a_damaged_text_is_refused_or_belongs_to_the_call(cls: type) -> None:
    """Values, kinds, operations and operands are replaced at random: never another error, or a name of the server."""
    bound = bound_of(cls)
    text = lift_text(bound)
    assert check(text, bound) is not None
    chance = random.Random(cls.__name__)
    for _ in range(60):
        data = json.loads(text)
        for _ in range(chance.choice((1, 1, 2, 5))):
            _damage(data, chance)
        check(json.dumps(data), bound)


def _damage(data: Any, chance: random.Random) -> None:
    """Change one value, at random."""
    places = list(_places(data))
    node, key = chance.choice(places)
    kind = chance.randrange(4)
    if kind == 0:
        other, at = chance.choice(places)
        node[key] = copy.deepcopy(other[at])
    elif kind == 1 and isinstance(node, list):
        del node[key]
    else:
        node[key] = copy.deepcopy(chance.choice(ODD))


def _places(data: Any) -> Any:
    keys = range(len(data)) if isinstance(data, list) else data
    for key in keys:
        yield data, key
        if isinstance(data[key], list | dict):
            yield from _places(data[key])


def amounts(value: Any, **members: Any) -> str:
    """Return the description of a class with one sum, of this amount."""
    field = {"name": "total", "monoid": "sum", "start": 0, "competes": True, "parts": [[["const", True], value]]}
    data = {"lift": 1, "fields": [field], "fails": [], "unretractable": "", "outcome": OUTCOME}
    return json.dumps(data | members)


OUTCOME = {"parts": [], "fails": [], "reason": "Python makes it"}
X: list[Any] = ["arg", 0, "int", -(2**63), 2**63 - 1]


def nest(levels: int) -> Any:
    """Return a sum of sums."""
    result = X
    for _ in range(levels - 1):
        result = ["add", result, ["const", 1]]
    return result


def wide(bits: int) -> Any:
    """Return a sum of 2**bits arguments, of few levels."""
    return X if bits == 0 else ["add", wide(bits - 1), wide(bits - 1)]


def plan_of(text: str) -> LiftPlan:
    """Return the plan of a text for one BIGINT argument."""
    lift, _ = lifted_of(text)
    assert lift is not None
    check_lift(lift, [pa.int64()], pa.struct([pa.field("total", pa.int64())]), pa.int64())
    return LiftPlan.of(lift.narrow_types([pa.int64()]))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 200_000, "cannot be read"),
        ("{", "cannot be read"),
        (amounts(nest(101)), "more than 100 levels"),
        (amounts(X) + " " * 1_000_000, "letters"),
        (amounts(["div", ["const", 1.0], ["const", 0.0]]), "division by zero"),
        (amounts(["shell", X]), "shell"),
        (amounts(["arg", 0, INJECTED, 0, 0], lift=2), "is not of this call"),
        (amounts(["arg", 1, "int", 0, 1]), "is not of this call"),
        (amounts(["arg", 0, "int", 0, 1]), "is not of this call"),  # it would need fewer sums
        (amounts(["field", "total", "int", 0, 1]), "is not of this call"),
        (amounts(["const", 1.5]), "is a sum of"),
        (amounts(["add", X, ["const", 1.5]]), "not an operation"),
        (amounts(["null", X]), "is a sum of"),
        (amounts(X, fails=[[X, "text", True]]), "a condition is a int"),
        (amounts(X, fields=[]), "it has the fields"),
        (amounts(X, outcome={"parts": [[["const", True], ["const", "x"]]], "fails": [], "reason": ""}), "get_value"),
        (amounts(["mul", wide(7), wide(7)]), "too many integers"),
    ],
    ids=lambda one: one[:40] if isinstance(one, str) else str(one),
)
def test_a_text_that_does_not_fit_the_call_is_refused(text: str, why: str) -> None:
    """The types, places, names, bounds and depths of a text are checked."""
    with pytest.raises((RejectedError, ValueError, Unsupported), match=why):
        plan_of(text)


def test_a_text_of_the_largest_depth_is_read() -> None:
    """Its sum is computed like any other sum."""
    assert plan_of(amounts(nest(100))).aggregates


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 300), marks=pytest.mark.slow)], ids=str)
def test_random_programs_pass_their_own_check(tmp_path: Any, seeds: range) -> None:
    """What the analysis makes is of the call for which it was made."""
    check_count = 0
    for seed in seeds:
        function = Program(seed).function(tmp_path)
        bound = function.bind(function.input_types or (), {})
        lift, _ = lifted_of(lift_text(bound))
        if lift is not None:
            check_count += 1
            check_lift(lift, bound.input_types, bound.state_type, bound.result_type)
    assert check_count > len(seeds) // 5
