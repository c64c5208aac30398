"""Decide whether the host of the engine, such as Spark, can aggregate the rows of a batch without Python, and how."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from foldflight.engine.query.query import Query, QueryLift
from foldflight.errors import RejectedError
from foldflight.ext.lift.analysis import check_lift
from foldflight.ext.lift.descriptions import lifted_of
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.tree import Expr, Lift
from foldflight.fold.mode import Unsupported
from foldflight.functions import Call
from foldflight.functions.types.sql import has_floats


def plan_lift(query: Query) -> QueryLift:
    """Return how a batch can be lifted. Raises RejectedError BAD_FRAME for a damaged description."""
    layout = query.layout
    types = dict(zip(layout.display_names, layout.columns.types, strict=True))
    # Many calls of a query are of the same functions over columns of the same types.
    plans_by_use: dict[tuple[object, ...], LiftPlan] = {}
    plans = []
    for index, (call, opened_call) in enumerate(zip(query.open_request.calls, query.opened_calls, strict=True)):
        argument_types = [types[name] for name in call.arguments]
        is_counted = call.distinct or call.materialize or bool(call.order)
        outcome = (layout.states.types[index], layout.outputs.types[index], opened_call.input_types)
        use = (opened_call.lift, is_counted, opened_call.is_invertible, *outcome, *argument_types)
        if use in plans_by_use:
            plans.append(plans_by_use[use])
            continue
        try:
            _check_counted(call)
            try:
                _checked_lift(opened_call.lift, *outcome)
            except ValueError as error:
                raise _damaged_error(call, error) from None
            _check_casts(argument_types, opened_call.input_types)
            if layout.has_kinds and not (len(layout.keys) or opened_call.is_invertible):
                raise Unsupported("it is not invertible, and without keys a retraction may come without its row")
            plan = _plan_of(opened_call.lift, *outcome, tuple(argument_types), has_kinds=layout.has_kinds)
            if query.lifts_integers_only:
                _check_integers(plan, layout.keys)
            plans_by_use[use] = plan
            plans.append(plan)
        except Unsupported as lift_error:
            return QueryLift((), f"{call.function} is not lifted: {lift_error}")
    return QueryLift(tuple(plans))


def _check_integers(plan: LiftPlan, keys: pa.Schema) -> None:
    """Refuse a plan with more than integers, for a host of which only the integers are known to equal Spark's."""
    if any(has_floats(field.type) for field in keys):
        raise Unsupported("a key has floats, and this host groups -0.0 and NaNs by their bits")
    cases = [case for aggregate in plan.aggregates for case in aggregate.cases]
    parts = [part for case in cases for part in (case.when, case.value)]
    if any(map(_has_floats, [*parts, *(each.when for each in plan.lift.failures)])):
        raise Unsupported("it computes with floats, for whose NaNs and -0.0 this host has other rules")
    for case in cases:
        if case.value.kind not in {"int", "bool"}:
            raise Unsupported("it keeps values that are no integers, which this host may compare otherwise")


def _has_floats(one: Expr) -> bool:
    """Return whether the value of an expression depends on a float, and not only on whether one is NULL."""
    if one.op == "null":
        return False
    return one.kind == "float" or any(_has_floats(part) for part in one.parts if isinstance(part, Expr))


def _check_counted(call: Call) -> None:
    option = "DISTINCT" if call.distinct else "ORDER BY" if call.order else "materialize" if call.materialize else ""
    if option:
        raise Unsupported(f"with {option} the rows of a group are folded together")


# The next two are cached: they depend on their arguments only, and most queries repeat functions and types.
@lru_cache(maxsize=1024)
def _checked_lift(text: str, state: pa.DataType, output: pa.DataType, inputs: tuple[pa.DataType, ...]) -> Lift:
    """Return the lift that a text describes. Raises ValueError if it describes no function with these types."""
    lift, reason = lifted_of(text)
    if lift is None:
        raise Unsupported(reason)
    check_lift(lift, inputs, state, output)
    return lift


@lru_cache(maxsize=1024)
def _plan_of(
    text: str,
    state: pa.DataType,
    output: pa.DataType,
    inputs: tuple[pa.DataType, ...],
    arguments: tuple[pa.DataType, ...],
    *,
    has_kinds: bool,
) -> LiftPlan:
    return LiftPlan.of(_checked_lift(text, state, output, inputs).narrow_types(arguments), has_kinds=has_kinds)


def _damaged_error(call: Call, error: ValueError) -> RejectedError:
    return RejectedError(
        "BAD_FRAME",
        f"the server describes how {call.function} is lifted by something that is not of this call: {error}. It may "
        "have another version; plan='fold' does without the description",
        function=call.function,
    )


def _check_casts(argument_types: Sequence[pa.DataType], declared_types: Sequence[pa.DataType]) -> None:
    """Refuse arguments that need a cast whose results may differ between hosts and Arrow."""
    for one, other in zip(argument_types, declared_types, strict=True):
        integers = pa.types.is_signed_integer(one) and pa.types.is_signed_integer(other)
        if one != other and not integers and (one, other) != (pa.float32(), pa.float64()):
            raise Unsupported(f"an argument of the type {one} is cast to {other}")
