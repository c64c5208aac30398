"""Compare the lifted form of a call with the interpreter, for the law of lifted functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from foldflight.errors import FoldflightError
from foldflight.ext.lift.descriptions import lift_text, lifted_of
from foldflight.ext.lift.plan import FieldOverflow, LiftPlan, SumOverflow
from foldflight.ext.lift.tree import Lift, evaluate
from foldflight.functions.author.spec import BoundFunction
from foldflight.functions.types.values import CastError, cast_results
from foldflight.testing.laws import Interpreter
from foldflight.testing.scalarlaws import Rows


def form_of(bound: BoundFunction, types: Sequence[pa.DataType]) -> tuple[LiftedForm | None, str]:
    """Return the lifted form of a call; or None and the reason."""
    lift, reason = lifted_of(lift_text(bound))
    return (None if lift is None else LiftedForm(lift, bound, types)), reason


@dataclass(frozen=True)
class LiftedForm:
    """The lifted form of a call, computed as an engine does.

    Args:
        lift: The form.
        bound: The call.
        types: The types of its arguments.
    """

    lift: Lift
    bound: BoundFunction
    types: Sequence[pa.DataType]

    def difference(self, interpreter: Interpreter, rows: Rows, seed: int) -> str | None:
        """Fold rows in both ways, and return how states or outputs differ; None if they are equal.

        The bits of `seed` choose which rows are retracted.
        """
        retracts = not self.lift.no_retract_reason
        signs = [-1 if retracts and seed >> (index % 16) & 1 else 1 for index in range(len(rows))]
        plan = LiftPlan.of(self.lift, has_kinds=retracts)
        difference, is_error = self._of_rows(interpreter, plan, rows, signs)
        if difference is None and is_error:
            # An error, as of a NULL or a large total, hides the state of all rows. Most rows have a state on their own.
            alone = (self._of_rows(interpreter, plan, [row], [sign])[0] for row, sign in zip(rows, signs, strict=True))
            difference = next((each for each in alone if each is not None), None)
        return difference

    def _of_rows(
        self, interpreter: Interpreter, plan: LiftPlan, rows: Rows, signs: list[int]
    ) -> tuple[str | None, bool]:
        """Return what differs for these rows, or None; and whether both ways raised, so that no state was compared."""
        try:
            expected = interpreter.state_of(rows, signs)
        except FoldflightError as error:
            expected = error
        try:
            failure_texts = [each.text for row in rows for each in self.lift.failures if evaluate(each.when, row)]
            results = [] if failure_texts else [each.of_rows(rows, signs) for each in plan.aggregates]
        except (ArithmeticError, TypeError) as error:  # the engine would return NULL or a wrong number
            return f"the lifted form cannot be computed: {type(error).__name__}: {error}", False
        if failure_texts:
            if isinstance(expected, FoldflightError):
                return None, True
            return f"the lifted form raises {failure_texts[0]}, and accumulate and retract do not", False
        columns = [pa.array([result], plan.type_of(index, self.types)) for index, result in enumerate(results)]
        try:
            state = plan.states(columns, self.bound.state_type, 1)[0].as_py()
        except SumOverflow:
            return None, True  # the engine raises an error that recommends a fold, so no state is wrong
        except FieldOverflow as unfit:
            if isinstance(expected, FoldflightError) and expected.code == "OVERFLOW":
                return None, True
            return f"the lifted form overflows: {unfit}, and the interpreter has {expected!r}", False
        if isinstance(expected, FoldflightError):
            return f"accumulate or retract raises {expected}, and the lifted form has {state!r}", False
        if _identical(expected, state):
            return self._of_state(plan, state, lambda: interpreter.output_of(rows, signs)), False
        states = f"the interpreter's state is {expected!r}, and the lifted form's is {state!r}"
        return f"signs of the rows {signs}: {states}", False

    def _of_state(self, plan: LiftPlan, state: Any, output: Callable[[], Any]) -> str | None:
        """Compare the interpreter's output with what the lifted form makes of the state."""
        outcome = self.lift.outcome
        if outcome.reason:
            return None
        fields = {"": state} if [each.name for each in self.lift.fields] == [""] else state
        try:
            expected = output()
        except FoldflightError as error:
            expected = error
        actual: Any
        try:
            error_texts = [each.text for each in outcome.failures if evaluate(each.when, fields)]
            values = [evaluate(each.value, fields) for each in outcome.parts if evaluate(each.when, fields)]
        except OverflowError as error:
            return None if plan.outcome_reason else f"the lifted get_value overflows for the state {state!r}: {error}"
        if len(error_texts) + len(values) != 1:
            return f"the lifted get_value has {values} and raises {error_texts} for the state {state!r}"
        try:
            actual = error_texts[0] if error_texts else cast_results(values, self.bound.result_type)[0].as_py()
            fails = bool(error_texts)
        except CastError as error:
            actual, fails = str(error), True
        if fails and isinstance(expected, FoldflightError):
            return None
        if not fails and not isinstance(expected, FoldflightError) and _identical(expected, actual):
            return None
        return f"for the state {state!r} get_value has {expected!r}, and its lifted form {actual!r}"


def _identical(one: Any, two: Any) -> bool:
    """Return whether two states are the same. NaN equals itself; of 0.0 and -0.0 either may be the least value."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_identical(one[key], two[key]) for key in one)
    both_nan = one != one and two != two  # noqa: PLR0124 - only NaN differs from itself
    return type(one) is type(two) and (both_nan or bool(one == two))
