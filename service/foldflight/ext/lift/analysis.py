"""Analyse the methods of a class, and return a `Lift`, if each field changes by a commutative operation of its own.

The runs of `accumulate` (and `retract`) are grouped by their conditions on the row. For the rows of one group, a case,
each field must change in the same way for every accumulator: a number is added, it becomes a constant, or it becomes
the minimum or maximum of values. To find a minimum or maximum, the conditions that compare the row with the field are
evaluated for each possible order of the two. Everything else is unsupported, because the order of rows could matter.

`check_lift` checks that a `Lift` from a server fits its call. Its expressions become SQL in the user's session. So each
must have the types of the call, and may contain only known operations: a server that is damaged, hostile or of another
version cannot inject anything else.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa

from foldflight.ext.lift.execution import KnownObject, RaisingRun, Record, Run, Tuple, runs
from foldflight.ext.lift.tree import (
    NONE,
    TRUE,
    Case,
    Expr,
    Failure,
    Field,
    Lift,
    Monoid,
    Outcome,
    add,
    all_of,
    arg,
    compare,
    const,
    evaluate,
    field,
    is_decimal,
    kind_of,
    not_,
    null,
    same_sum,
    scale_of,
)
from foldflight.fold.mode import Unsupported
from foldflight.functions.author.spec import AccumulatorForm, BoundFunction, ClassForm, Methods
from foldflight.functions.types.exact import EXACT
from foldflight.functions.types.serializer import Nullable, views_in

_ONE_VALUE: Final = ""


def member_types(state: pa.DataType) -> dict[str, pa.DataType]:
    """Return the type of each member of a state; a state that is one value has the name ""."""
    if pa.types.is_struct(state) and state != EXACT:
        return {each.name: each.type for each in state}
    return {_ONE_VALUE: state}


def holds_whole(type_: pa.DataType) -> bool:
    """Return whether a type contains integers only."""
    return pa.types.is_signed_integer(type_) or (pa.types.is_decimal128(type_) and type_.scale == 0)


def fits(value: Any, type_: pa.DataType) -> bool:
    """Return whether a constant is in the range of a type."""
    try:
        pa.scalar(decimal.Decimal(value) if pa.types.is_decimal(type_) and value is not None else value, type_)
    except (pa.ArrowException, ArithmeticError):
        return False
    return True


def check_outcome(outcome: Outcome, fields: Sequence[Field], type_: pa.DataType) -> None:
    """Raise Unsupported for values that an engine may compute, or convert to the result type, otherwise than Python."""
    expressions = [part.when for part in outcome.parts] + [each.when for each in outcome.failures]
    expressions += [part.value for part in outcome.parts if part.value.op != "field"]
    used_names = {each.parts[0] for expr in expressions for each in expr.walk() if each.op == "field"}
    if any(each.adds_decimals and each.name in used_names for each in fields):
        raise Unsupported("get_value computes with a sum of DECIMALs, which Python may round")
    kinds = {part.value.kind for part in outcome.parts} - {"none"}
    if len(kinds) != 1:
        raise Unsupported(f"get_value returns {' and '.join(sorted(kinds)) or 'nothing'}")
    (kind,) = kinds
    is_number = pa.types.is_signed_integer(type_) or type_ == pa.float64()
    if kind in ("int", "float") and is_number:
        return
    if is_decimal(kind) and pa.types.is_decimal128(type_) and scale_of(kind) == type_.scale:
        return
    is_plain = type_ in (pa.bool_(), pa.string(), pa.binary())
    if not is_plain or kind_of(type_) != (kind, 0, 0):
        raise Unsupported(f"get_value returns a {kind} for a result of the type {type_}")


def check_lift(lift: Lift, inputs: Sequence[pa.DataType], state: pa.DataType, result: pa.DataType) -> None:
    """Check that a lift fits a call.

    Args:
        lift: The lift.
        inputs: The types of the arguments.
        state: The type of the state.
        result: The type of the result.

    Raises:
        ValueError: It does not fit, with the reason.
    """
    members = member_types(state)
    names = [each.name for each in lift.fields]
    if names != list(members):
        raise ValueError(f"it has the fields {names}, and the state has {list(members)}")
    arguments = {index: arg(index, type_) for index, type_ in enumerate(inputs)}
    for one in lift.fields:
        for part in one.parts:
            _check_condition(part.when, arguments)
        _check_field(one, [_kind(part.value, arguments) for part in one.parts], members[one.name])
    for failure in lift.failures:
        _check_condition(failure.when, arguments)
    if lift.outcome.reason:
        return
    final_fields: dict[Any, Expr] = {}
    for one in lift.fields:
        kind = kind_of(members[one.name])
        if one.monoid != "keep" and kind is not None:
            final_fields[one.name] = Expr("field", (one.name,), *kind)
    for part in lift.outcome.parts:
        _check_condition(part.when, final_fields)
        _kind(part.value, final_fields)
    for failure in lift.outcome.failures:
        _check_condition(failure.when, final_fields)
    try:
        check_outcome(lift.outcome, lift.fields, result)
    except Unsupported as error:
        raise ValueError(str(error)) from None


def _check_field(one: Field, kinds: Sequence[str], type_: pa.DataType) -> None:
    """Check the expressions and the start of a field. Raises ValueError."""
    field_kind = kind_of(type_)
    if field_kind is None or not _is_start(one.start, field_kind[0], type_):
        raise ValueError(f"the field {one.name!r} starts as {one.start!r}, and its type is {type_}")
    values = [part.value for part in one.parts]
    is_right = False  # an unknown monoid
    match one.monoid:
        case "keep":
            is_right = not values
        case "sum" if set(kinds) == {"int"}:
            is_right = holds_whole(type_) and type(one.start) is int
        case "sum":
            scales = {scale_of(kind) if is_decimal(kind) else None for kind in kinds}
            is_right = (
                is_decimal(field_kind[0]) and scales == {type_.scale} and type(one.start) is int and one.start == 0
            )
        case "set":
            new_value = values[0] if values else const(None)
            is_right = (
                kinds[:1] == [field_kind[0]]
                and new_value.is_const
                and set(values) == {new_value}
                and fits(new_value.value, type_)
            )
        case "min" | "max":
            is_right = set(kinds) == {field_kind[0]}
    if not is_right:
        raise ValueError(f"the field {one.name!r} of the type {type_} is a {one.monoid} of {sorted(set(kinds))}")


def _is_start(start: Any, kind: str, type_: pa.DataType) -> bool:
    if start is None:
        return True
    if type(start) not in (bool, int, float, str) or not fits(start, type_):
        return False
    start_kind = const(start).kind
    is_whole = start_kind == "int" and (holds_whole(type_) or (is_decimal(kind) and start == 0))
    return start_kind == kind or is_whole


def _check_condition(one: Any, leaves: Mapping[Any, Expr]) -> None:
    kind = _kind(one, leaves)
    if kind != "bool":
        raise ValueError(f"a condition is a {kind}")


def _kind(one: Any, leaves: Mapping[Any, Expr]) -> str:
    """Return the kind of an expression. Its operations were checked when it was parsed. Raises ValueError.

    Args:
        one: The expression.
        leaves: The arguments by their numbers, or the fields by their names.
    """
    if not isinstance(one, Expr):
        raise ValueError(f"{one!r} is not an expression")  # noqa: TRY004 - it is one of the mistakes of the data
    for each in one.walk():
        if each.op in ("arg", "field") and leaves.get(each.parts[0]) != each:
            raise ValueError(f"{each.to_data()} is not of this call")
        if each.op == "const" and isinstance(each.value, str):
            each.value.encode()  # UnicodeEncodeError, a ValueError, if it is not Unicode
    return one.kind


def lift_of(bound: BoundFunction) -> Lift:
    """Return what a function does for one row.

    Args:
        bound: The function, with the types and direct arguments of a call.

    Raises:
        Unsupported: The function cannot be lifted, with the reason.
    """
    methods = _methods(bound)
    subject = _Subject(bound, methods)
    base = subject.lift(retracts=False)
    base = replace(base, outcome=subject.outcome(base.fields))
    if methods.retract is None:
        return replace(base, no_retract_reason="it has no retract")
    try:
        both = subject.lift(retracts=True)
    except Unsupported as error:
        return replace(base, no_retract_reason=str(error))
    if {each.when for each in both.failures} != {each.when for each in base.failures}:
        return replace(base, no_retract_reason="retract raises for other rows than accumulate")
    return base


def _methods(bound: BoundFunction) -> Methods:
    """Return the methods of a new instance. Raises Unsupported for forms of functions that cannot be lifted."""
    function = bound.function
    capabilities = function.capabilities
    if function.language == "java":
        raise Unsupported("its class is written in Java")
    if function.adapter:
        raise Unsupported(f"its class is adapted from {function.adapter}")
    if not isinstance(function.instantiate, (ClassForm, AccumulatorForm)):
        raise Unsupported("it has fold_bundle in the place of accumulate")
    if views_in(bound.serializer):
        raise Unsupported("its accumulator has views")
    if capabilities.codec != "typed":
        raise Unsupported(f"its states are not typed: {capabilities.codec_reason}")
    if not capabilities.deterministic:
        raise Unsupported("it is declared deterministic=False")
    if getattr(function.cls, "open", None) is not None:
        raise Unsupported("it has open, which may depend on the context")
    try:
        return bound.instantiate()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the interpreter raises it again, as an error of the function
        raise Unsupported(f"__init__ raises {type(error).__name__}") from None


@dataclass(frozen=True)
class _Effect:
    """The effect of one run.

    Args:
        facts: The conditions that it evaluated, and their results.
        values: The value of each field afterwards; None if the method raises.
        error: The error, if the method raises.
        by_null: Whether it raises because an argument is NULL.
    """

    facts: Mapping[Expr, bool]
    values: Mapping[str, Expr] | None
    error: str = ""
    by_null: bool = False

    def meets(self, facts: Mapping[Expr, bool]) -> bool:
        """Return whether its facts do not contradict other facts."""
        return all(self.facts.get(fact, holds) is holds for fact, holds in facts.items())


@dataclass(frozen=True)
class _Case:
    """The rows for which the same facts hold, with the runs for these rows.

    Args:
        facts: Conditions on the row, and their results.
        effects: The runs. They differ in their conditions on the accumulator.
    """

    facts: Mapping[Expr, bool]
    effects: tuple[_Effect, ...]

    @property
    def sound(self) -> tuple[_Effect, ...]:
        """The runs that do not raise."""
        return tuple(each for each in self.effects if each.values is not None)

    @property
    def when(self) -> Expr:
        """The condition that a row belongs to this case."""
        return all_of([each if holds else not_(each) for each, holds in self.facts.items()])


class _Subject:
    """The analysis of one call of a function."""

    def __init__(self, bound: BoundFunction, methods: Methods) -> None:
        self.bound = bound
        self.methods = methods
        self.types = member_types(bound.state_type)
        for name, type_ in self.types.items():
            if type_ == EXACT:
                raise Unsupported(
                    f"{_label(name)} is an exact sum of floats, and the engine's sums of floats are rounded"
                )
            if kind_of(type_) is None or type_ == pa.float32():
                raise Unsupported(
                    f"{_label(name)} is {type_}, and only numbers, texts, truth values and times are lifted"
                )
        self.arguments = [arg(index, type_) for index, type_ in enumerate(bound.input_types)]
        self.decimals: set[str] = set()  # fields that start as Decimals
        self.starts = self._starts()
        self.fields = {name: self._field(name) for name in self.types}
        self.flags: set[str] = set()

    # --- execution ------------------------------------------------------------------------------------------------

    def _nullable(self, value: Expr) -> bool:
        if value.op == "arg":
            return not self.bound.function.skip_nulls
        return value.op == "field" and self.starts[value.parts[0]] is None

    def _starts(self) -> dict[str, Any]:
        """Return the fields of a new accumulator, which must be constants."""
        outcomes = list(runs(lambda run: self._values(run, self._create(run)), lambda _: False))
        if len(outcomes) != 1 or isinstance(outcomes[0][1], RaisingRun):
            raise Unsupported("create_accumulator raises, or depends on something")
        starts: dict[str, Any] = {}
        for name, value in outcomes[0][1].items():
            if isinstance(value, KnownObject):
                starts[name] = self._zero(name, value.of)
                continue
            if not isinstance(value, Expr) or not value.is_const:
                raise Unsupported(f"{_label(name)} of a new accumulator is not a constant")
            kinds = kind_of(self.types[name])
            kind = None if kinds is None else kinds[0]
            is_whole = value.kind == "int" and (holds_whole(self.types[name]) or self._adds_decimals(name, value.value))
            if value != NONE and value.kind != kind and not is_whole:
                raise Unsupported(
                    f"{_label(name)} starts as {value.value!r}, which is not of its type {self.types[name]}"
                )
            if not fits(value.value, self.types[name]):
                raise Unsupported(f"{_label(name)} starts as {_repr(value)}, which does not fit {self.types[name]}")
            starts[name] = value.value
        return starts

    def _zero(self, name: str, start: Any) -> int:
        """Return 0 for a sum of DECIMALs that starts as a Decimal. Raises Unsupported for other Decimals."""
        is_zero = isinstance(start, decimal.Decimal) and start.is_zero() and not start.is_signed()
        if (
            not is_zero
            or not self._adds_decimals(name, 0)
            or -start.as_tuple().exponent > scale_of(str(self.types[name]))
        ):
            raise Unsupported(f"{_label(name)} starts as {start!r}; a Decimal may only be the 0 of a sum of its scale")
        self.decimals.add(name)
        return 0

    def _create(self, run: Run) -> Any:
        form = self.bound.function.instantiate
        if isinstance(form, AccumulatorForm):
            return run.create(form.cls, self.bound.literals)
        return run.call(self.methods.create_accumulator, [])

    def _adds_decimals(self, name: str, start: Any) -> bool:
        """Return whether a field may be a sum of DECIMALs: it starts as 0, and an argument has its scale."""
        kind = str(self.types[name])
        if type(start) is not int or start != 0 or not is_decimal(kind):
            return False
        return any(is_decimal(each.kind) and scale_of(each.kind) == scale_of(kind) for each in self.arguments)

    def _field(self, name: str) -> Expr:
        if self._adds_decimals(name, self.starts[name]):
            return field(name, str(self.types[name]))
        if isinstance(self.starts[name], int) and not isinstance(self.starts[name], bool):
            return field(name, "int")
        kinds = kind_of(self.types[name])
        assert kinds is not None
        return field(name, kinds[0])

    def _accumulator(self, run: Run, fields: Mapping[str, Expr]) -> Any:
        """Return an accumulator of the author's class whose fields are symbols."""
        accumulator = self._create(run)
        if isinstance(accumulator, Record):
            accumulator.attributes.update(fields)
        elif isinstance(accumulator, Tuple):
            accumulator = replace(accumulator, items=tuple(fields.values()))
        else:
            (accumulator,) = fields.values()
        return accumulator

    def _values(self, run: Run, accumulator: Any) -> dict[str, Any]:
        """Return the fields of an accumulator by name."""
        names = list(self.types)
        if isinstance(accumulator, Record):
            missing_names = [name for name in names if name not in accumulator.attributes]
            values = {name: run.attribute_of(accumulator, name) for name in missing_names} | accumulator.attributes
            if set(values) != set(names):
                raise Unsupported("its accumulator has attributes that are not annotated, or has no plain attributes")
            return {name: values[name] for name in names}
        if isinstance(accumulator, Tuple) and len(accumulator.items) == len(names):
            return dict(zip(names, accumulator.items, strict=True))
        is_one_value = isinstance(self.bound.serializer, Nullable) or not pa.types.is_struct(self.bound.state_type)
        if isinstance(accumulator, Expr) and len(names) == 1 and is_one_value:
            return {names[0]: accumulator}
        raise Unsupported("its accumulator is neither a value, nor an object or tuple of values")

    def _after(self, run: Run, method: Any) -> dict[str, Expr]:
        """Return the fields after a call of a method for a row."""
        accumulator = self._accumulator(run, self.fields)
        result = run.call(method, [accumulator, *self.arguments])
        if result != NONE or self.bound.function.returns != "may":
            accumulator = result
        if accumulator == NONE and self.bound.function.returns != "always":
            raise RaisingRun("the method returns None in the place of the accumulator")
        values = self._values(run, accumulator)
        return {name: self._resolve(run, name, value) for name, value in values.items()}

    def _resolve(self, run: Run, name: str, value: Any) -> Expr:
        """Return the value of a field, in which each condition is replaced by its result in this run."""
        if not isinstance(value, Expr):
            raise Unsupported(f"{_label(name)} becomes an object")
        if value == self.fields[name]:
            return const(run.facts[value]) if value in run.facts else value
        if value.op in ("arg", "field") and run.decide(null(value)):
            return NONE
        return const(run.decide(value)) if value.kind == "bool" else value

    def _effects(self, *, retracts: bool) -> list[_Effect]:
        def execute(run: Run) -> dict[str, Expr]:
            values = self._after(run, self.methods.accumulate)
            if retracts:
                values |= {f"-{name}": value for name, value in self._after(run, self.methods.retract).items()}
            return values

        effects = []
        for run, result in runs(execute, self._nullable):
            if isinstance(result, RaisingRun):
                effects.append(_Effect(run.facts, None, str(result), result.by_null))
            else:
                effects.append(_Effect(run.facts, result))
        return effects

    # --- get_value ------------------------------------------------------------------------------------------------

    def outcome(self, fields: Sequence[Field]) -> Outcome:
        """Return the result of `get_value` for final accumulators, as expressions over their fields."""
        try:
            symbols = {each.name: self._final_field(each) for each in fields}
            return self._outcome(symbols, fields)
        except Unsupported as error:
            return Outcome(reason=str(error))

    def _final_field(self, one: Field) -> Expr:
        """Return a field of a final accumulator, whose value is in the range of its type."""
        if one.monoid == "keep":
            return const(one.start)
        type_ = self.types[one.name]
        field_kind = kind_of(type_)
        assert field_kind is not None
        kind, low, high = field_kind
        if self.fields[one.name].kind != kind and not one.adds_decimals:
            raise Unsupported(f"{_label(one.name)} is a {self.fields[one.name].kind} in a field of the type {type_}")
        return Expr("field", (one.name,), kind, low, high)

    def _outcome(self, symbols: Mapping[str, Expr], fields: Sequence[Field]) -> Outcome:
        def execute(run: Run) -> Expr:
            value = run.call(self.methods.get_value, [self._accumulator(run, symbols)])
            if not isinstance(value, Expr):
                raise Unsupported("get_value returns an object")
            return NONE if run.is_null(value) else value

        parts: list[Case] = []
        failures: list[Failure] = []
        for run, value in runs(execute, self._nullable, divides=True):
            when = _Case(run.facts, ()).when
            if isinstance(value, RaisingRun):
                failures.append(Failure(when, str(value)))
            else:
                parts.append(Case(when, value))
        outcome = Outcome(tuple(parts), tuple(failures))
        check_outcome(outcome, fields, self.bound.result_type)
        return outcome

    # --- classification -------------------------------------------------------------------------------------------

    def lift(self, *, retracts: bool) -> Lift:
        """Return the lift of `accumulate`. With `retracts`, check that `retract` is its inverse as well."""
        effects = self._effects(retracts=retracts)
        everything = list(_cases({}, effects))
        failed_effects = [each for each in effects if each.values is None]
        cases = [_Case(each.facts, each.sound) for each in everything if each.sound]
        fields, extrema = self._classify(cases)
        if retracts:
            self._check_inverse(fields, cases, failed_effects)
        # If all runs of a case raise, they tell nothing about the fields.
        hopeless = [each.facts for each in everything if not each.sound]
        failures = tuple(
            self._failure(each)
            for each in failed_effects
            if any(each.meets(facts) for facts in hopeless) or not any(one.excludes(each) for one in extrema.values())
        )
        present = [not_(null(each)) for each in self.arguments if self.bound.function.skip_nulls]
        changes = []
        for name, one in fields.items():
            parts = tuple(replace(part, when=all_of([*present, part.when])) for part in one.parts)
            changes.append(replace(one, name=name, parts=parts))
        return Lift(tuple(changes), failures)

    def _classify(self, cases: Sequence[_Case]) -> tuple[dict[str, Field], dict[str, _Extremum]]:
        """Return the lift of each field, and the analyses of minima and maxima."""
        fields = {name: self._plain(name, cases) for name in self.types}
        extrema: dict[str, _Extremum] = {}
        for name, one in fields.items():
            if one is None:
                if self._adds_decimals(name, self.starts[name]):
                    raise Unsupported(f"{_label(name)} starts as 0 and is not a sum of DECIMALs")
                try:
                    extrema[name], fields[name] = self._extremum(name, cases, fields)
                except Unsupported:
                    for case in cases if self.fields[name].kind == "bool" else ():
                        self._flag_after(name, case)  # raises the reason for bool fields
                    raise
        return {name: one for name, one in fields.items() if one is not None}, extrema

    def _extremum(
        self, name: str, cases: Sequence[_Case], others: Mapping[str, Field | None]
    ) -> tuple[_Extremum, Field]:
        """Return a field with which values of rows are compared: a minimum or maximum."""
        first = _Extremum(self, name, cases, others, is_guarded=self.starts[name] is None)
        try:
            return first, first.field()
        except Unsupported:
            with_guard = _Extremum(self, name, cases, others, is_guarded=True)
            if first.guarded or not with_guard.guards:
                raise
        return with_guard, with_guard.field()

    def _plain(self, name: str, cases: Sequence[_Case]) -> Field | None:
        """Return a field that is a sum, is set or never changes; None if rows are compared with it."""
        before = self.fields[name]
        added_cases: list[Case] = []
        assignments: list[Case] = []
        for case in cases:
            values = [each.values[name] for each in case.effects if each.values is not None]
            if before.kind == "bool":
                try:
                    outcome = self._flag_after(name, case)
                except Unsupported:
                    return None
                if outcome is not None:
                    assignments.append(Case(case.when, const(outcome)))
                continue
            amounts = [_amount(before, value) for value in values]
            if None not in amounts and all(same_sum(each, amounts[0], case.facts) for each in amounts):
                amount = amounts[0]
                assert amount is not None
                if amount != const(0):
                    added_cases.append(Case(case.when, amount))
            elif all(value == values[0] and value.is_const for value in values):
                assignments.append(Case(case.when, values[0]))
            else:
                return None
        if added_cases and assignments:
            raise Unsupported(f"{_label(name)} is both added to and set, so it depends on the order of rows")
        if added_cases:
            self._check_sum(name, added_cases)
            return Field(name, "sum", self.starts[name], tuple(added_cases))
        if not assignments:
            if name in self.decimals:
                raise Unsupported(f"{_label(name)} is a Decimal that no row changes")
            return Field(name, "keep", self.starts[name])
        if any(part.value != assignments[0].value for part in assignments):
            raise Unsupported(f"{_label(name)} is set to different values, so it depends on the order of rows")
        self._check_constant(name, assignments[0].value)
        return Field(name, "set", self.starts[name], tuple(assignments))

    def _check_constant(self, name: str, value: Expr) -> None:
        """Raise Unsupported for a constant that the type of the state would change."""
        expected = kind_of(self.types[name])
        if expected is None or value.kind != expected[0] or not fits(value.value, self.types[name]):
            raise Unsupported(f"{_label(name)} is set to {_repr(value)}, which is not of its type {self.types[name]}")

    def _check_sum(self, name: str, parts: Sequence[Case]) -> None:
        start = self.starts[name]
        if all(is_decimal(part.value.kind) for part in parts) and self._adds_decimals(name, start):
            if any(each.op == "add" for part in parts for each in part.value.walk()):
                raise Unsupported(f"{_label(name)} grows by several DECIMALs at once, whose sum an engine may round")
            return
        if any(part.value.kind != "int" for part in parts) or type(start) is not int:
            raise Unsupported(f"{_label(name)} is a sum of floats, which depends on the order of rows")
        if not holds_whole(self.types[name]):
            raise Unsupported(f"{_label(name)} is a sum of integers in a field of the type {self.types[name]}")

    def _flag_after(self, name: str, case: _Case) -> bool | None:
        """Return the value of a bool field after a row of a case; None if it does not change."""
        before = self.fields[name]
        results: dict[bool, set[bool]] = {True: set(), False: set()}
        for effect in case.effects:
            assert effect.values is not None
            after = effect.values[name]
            for extrema in (True, False):
                if effect.facts.get(before, extrema) is extrema:
                    if after != before and not after.is_const:
                        raise Unsupported(f"{_label(name)} depends on other fields")
                    if after.kind != "bool":
                        raise Unsupported(f"{_label(name)} is a truth value and becomes {_repr(after)}")
                    results[extrema].add(extrema if after == before else bool(after.value))
        if results == {True: {True}, False: {False}}:
            return None
        if results[True] == results[False] and len(results[True]) == 1:
            return next(iter(results[True]))
        raise Unsupported(f"{_label(name)} changes by what other fields hold, so it depends on the order of rows")

    def _check_inverse(self, fields: Mapping[str, Field], cases: Sequence[_Case], failures: Sequence[_Effect]) -> None:
        """Raise Unsupported if `retract` is not the exact inverse of `accumulate`."""
        for name, one in fields.items():
            if one.monoid not in ("sum", "keep"):
                raise Unsupported(f"{_label(name)} is {_MONOIDS[one.monoid]}, which cannot be retracted")
            before = self.fields[name]
            for case in cases:
                for effect in case.effects:
                    assert effect.values is not None
                    there, back = (_amount(before, effect.values[key]) for key in (name, f"-{name}"))
                    if there is None or back is None or not same_sum(add(there, back), const(0), case.facts):
                        raise Unsupported(f"retract is not the inverse of accumulate for {_label(name)}")
        for each in failures:
            if any(fact.uses("field") for fact in each.facts):
                raise Unsupported("retract raises for some accumulators")

    def _failure(self, effect: _Effect) -> Failure:
        """Return the rows for which a run raises. Raises Unsupported if this depends on the accumulator."""
        for fact in effect.facts:
            if fact.uses("field"):
                fields = {each.parts[0] or "the accumulator" for each in fact.walk() if each.op == "field"}
                names = ", ".join(sorted(fields))
                raise Unsupported(f"it raises, depending on {names}: {effect.error}")
        nonnull_conditions = [not_(null(each)) for each in self.arguments if self.bound.function.skip_nulls]
        return Failure(all_of([*nonnull_conditions, _Case(effect.facts, ()).when]), effect.error, effect.by_null)


def _cases(known_facts: Mapping[Expr, bool], effects: Sequence[_Effect]) -> Iterator[_Case]:
    """Group runs by their conditions on the row."""
    for effect in effects:
        for fact in effect.facts:
            if fact not in known_facts and not fact.uses("field"):
                for holds in (True, False):
                    remaining_effects = [each for each in effects if each.meets({fact: holds})]
                    if remaining_effects:
                        yield from _cases({**known_facts, fact: holds}, remaining_effects)
                return
    yield _Case(known_facts, tuple(effects))


def _amount(before: Expr, after: Expr) -> Expr | None:
    """Return the number that was added to a field; None if something else was done."""
    if after == before:
        return const(0)
    if before.kind not in ("int", "float") and not is_decimal(before.kind):
        return None
    amount = _without(before, after)
    return None if amount is None or amount.uses("field") else amount


def _without(before: Expr, after: Expr) -> Expr | None:
    """Return a sum without one of its summands."""
    if after == before:
        return const(0)
    if after.op != "add":
        return None
    one, other = after.parts
    for within, rest in ((one, other), (other, one)):
        amount = _without(before, within)
        if amount is not None:
            return rest if amount == const(0) else add(amount, rest)
    return None


Relation = Literal["empty", "less", "equal", "greater", "value is NaN", "held is NaN", "both are NaN"]
_PLAIN: Final[tuple[Relation, ...]] = ("less", "equal", "greater")
_MONOIDS: Final = {"min": "the least value", "max": "the greatest value", "set": "set", "sum": "a sum", "keep": "kept"}
# The results of `value < held`, `held < value` and `value == held`, by the relation of the two.
_ANSWERS: Final[dict[Relation, tuple[bool, bool, bool]]] = {
    "less": (True, False, False),
    "equal": (False, False, True),
    "greater": (False, True, False),
    "value is NaN": (False, False, False),
    "held is NaN": (False, False, False),
    "both are NaN": (False, False, False),
}


class _Extremum:
    """The analysis of a field that keeps the minimum or maximum of the values with which it is compared.

    Args:
        subject: The call.
        name: The field.
        cases: The cases of rows.
        others: The fields that are not compared. One of them may show whether there is a value yet.
        is_guarded: Whether there may be no value yet, which is shown by None or by another field.
    """

    def __init__(
        self,
        subject: _Subject,
        name: str,
        cases: Sequence[_Case],
        others: Mapping[str, Field | None],
        *,
        is_guarded: bool,
    ) -> None:
        self.subject = subject
        self.guarded = is_guarded
        self.name = name
        self.cases = cases
        self.before = subject.fields[name]
        self.start = subject.starts[name]
        self.values = {index: self._candidate(case) for index, case in enumerate(cases)}
        self.guards = [key for key, one in others.items() if is_guarded and one is not None and self._guards(one)]
        self.has_nan = any(
            value is not None and self._may_be_nan(cases[index], value) is not False
            for index, value in self.values.items()
        )

    def _order_dependent(self, why: str) -> Unsupported:
        return Unsupported(f"{_label(self.name)} {why}, so it depends on the order of rows")

    def _candidate(self, case: _Case) -> Expr | None:
        """Return the value that rows of a case may store in the field."""
        candidates = {self._stored_value(each) for each in case.effects if each.values is not None} - {self.before}
        if not candidates:
            return None
        if len(candidates) > 1 or next(iter(candidates)).uses("field") or NONE in candidates:
            raise self._order_dependent("is computed from itself or other fields, or set to several values")
        return next(iter(candidates))

    def _stored_value(self, effect: _Effect) -> Expr:
        """Return the value that a run stores in the field. An unchanged bool is its known previous value."""
        assert effect.values is not None
        value = effect.values[self.name]
        extrema = effect.facts.get(self.before)
        return self.before if extrema is not None and value == const(extrema) else value

    def _guards(self, one: Field) -> bool:
        """Return whether another field differs from its start exactly when this one has a value."""
        if one.monoid == "set" and isinstance(one.start, bool) and one.parts[0].value == const(not one.start):
            pass
        elif not (one.monoid == "sum" and all(each.value.is_const and each.value.value > 0 for each in one.parts)):
            return False
        conditions = {part.when for part in one.parts}
        value_conditions = {case.when for index, case in enumerate(self.cases) if self.values[index] is not None}
        return conditions == value_conditions

    def _may_be_nan(self, case: _Case, value: Expr) -> bool | None:
        """Return whether the value of a case is NaN; None if it is unknown."""
        if value.kind != "float":
            return False
        same = compare("eq", value, value)
        if same in case.facts:
            return not case.facts[same]
        for fact, holds in case.facts.items():
            if holds and fact.op in ("lt", "le", "eq") and value in fact.parts:
                return False
        return None

    def relations(self, case: _Case, value: Expr) -> list[Relation]:
        """Return the possible relations of a row's value to the field."""
        possible: list[Relation] = ["empty"] if self.guarded else []
        if self.before.kind == "bool":
            return [*possible, "equal", "greater" if value == TRUE else "less"]
        nan = self._may_be_nan(case, value)
        if nan is not True:
            possible += _PLAIN
            possible += ["held is NaN"] if self.has_nan else []
        if nan is not False:
            possible += ["value is NaN", "both are NaN"]
        return possible

    def answer(self, case: _Case, fact: Expr, relation: Relation, value: Expr) -> bool | None:
        """Return whether a fact about the accumulator holds; None if it is not about this field."""
        names = {each.parts[0] for each in fact.walk() if each.op == "field"}
        if names <= set(self.guards):
            if len(names) > 1:
                raise self._order_dependent("depends on other fields")
            (name,) = names
            return self._of_guard(fact, name, relation)
        if names != {self.name}:
            return None
        if fact.op == "null":
            return relation == "empty" and self.start is None
        if fact == compare("eq", self.before, self.before):
            return relation not in ("held is NaN", "both are NaN")
        if relation == "empty":
            return None
        if self.before.kind == "bool":
            extrema = value.value if relation == "equal" else not value.value
            return bool(self._of_truth(fact, {**case.facts, self.before: extrema}))
        less, greater, equal = _ANSWERS[relation]
        if fact.op in ("lt", "le", "eq") and set(fact.parts) == {self.before, value}:
            if fact.op == "eq":
                return equal
            first = less if fact.parts[0] == value else greater
            return first or (equal and fact.op == "le")
        raise self._order_dependent("is compared with something other than the value that it takes")

    def _of_truth(self, one: Expr, known_facts: Mapping[Expr, bool]) -> int:
        """Return the value of an expression over bools whose values are known."""
        if one in known_facts:
            return known_facts[one]
        if one.is_const:
            return int(one.value)
        if one.op in ("int", "not", "lt", "le", "eq"):
            values = [self._of_truth(each, known_facts) for each in one.parts]
            return evaluate(replace(one, parts=tuple(map(const, values))), ())
        raise self._order_dependent("is compared with something other than the value that it takes")

    def _of_guard(self, fact: Expr, name: str, relation: Relation) -> bool | None:
        """Return the result of a condition on a field that differs from its start after the first value."""
        guard, start = self.subject.fields[name], self.subject.starts[name]
        if fact == guard:  # a bool field
            return bool(start) if relation == "empty" else not start
        first = const(start)
        is_empty = relation == "empty"
        # A count never decreases.
        known_relations = {
            compare("eq", guard, first): is_empty,
            compare("eq", first, guard): is_empty,
            compare("lt", first, guard): not is_empty,
            compare("le", guard, first): is_empty,
        }
        if fact in known_relations:
            return known_relations[fact]
        raise self._order_dependent(f"depends on {_label(name)}")

    def takes(self, case: _Case, value: Expr, relation: Relation) -> bool:
        """Return whether a row's value replaces the held one."""
        outcomes = set()
        for effect in case.effects:
            answers = {fact: self.answer(case, fact, relation, value) for fact in effect.facts if fact.uses("field")}
            if all(answer is None or answer is effect.facts[fact] for fact, answer in answers.items()):
                outcomes.add(self._stored_value(effect) == value)
        if len(outcomes) != 1:
            raise self._order_dependent("is chosen by more than a comparison with it")
        return outcomes.pop()

    def field(self) -> Field:
        """Return the lift of the field: a minimum or maximum. Raises Unsupported if it is neither."""
        monoids: set[Monoid] = set()
        parts: list[Case] = []
        for index, case in enumerate(self.cases):
            value = self.values[index]
            if value is None:
                continue
            monoid = self._monoid(case, value)
            if monoid is not None:
                monoids.add(monoid)
            parts.append(Case(case.when, value))
        if len(monoids) != 1:
            raise self._order_dependent("is the least and the greatest value at once, or any of them")
        (monoid,) = monoids
        self._check_types(parts)
        return Field(self.name, monoid, self.start, tuple(parts), competes=not self.guarded)

    def _monoid(self, case: _Case, value: Expr) -> Monoid | None:
        """Return whether the rows of a case form a minimum or a maximum; None if both fit."""
        takes = {relation: self.takes(case, value, relation) for relation in self.relations(case, value)}
        if not self.guarded and self.start == 0.0 and value.kind == "float" and takes.get("equal"):
            raise self._order_dependent(f"starts as {self.start} and takes an equal value, 0.0 or -0.0")
        if takes.get("empty") is False:
            raise self._order_dependent("does not take the first value")
        fitting_monoids: list[Monoid] = []
        for monoid, expected in (
            ("min", {"less": True, "greater": False, "value is NaN": False, "held is NaN": True}),
            ("max", {"less": False, "greater": True, "value is NaN": True, "held is NaN": False}),
        ):
            if all(takes.get(relation, is_taken) is is_taken for relation, is_taken in expected.items()):  # type: ignore[call-overload]
                fitting_monoids.append(monoid)  # type: ignore[arg-type]
        if not fitting_monoids and value.kind == "float":
            raise self._order_dependent(
                "may hold NaN, with which no comparison is true; leave NaN out (`if value == value`), or treat it as "
                "the greatest number"
            )
        if not fitting_monoids:
            raise self._order_dependent("is neither the least nor the greatest value")
        return fitting_monoids[0] if len(fitting_monoids) == 1 else None

    def _check_types(self, parts: Sequence[Case]) -> None:
        expected = kind_of(self.subject.types[self.name])
        assert expected is not None
        for part in parts:
            value_kind = part.value.kind
            if value_kind != expected[0] or (part.value.is_const and part.value.value is None):
                raise Unsupported(
                    f"{_label(self.name)} is of the type {self.subject.types[self.name]} and takes a {value_kind}"
                )

    def excludes(self, effect: _Effect) -> bool:
        """Return whether a run cannot occur for any value of this field."""
        for index, case in enumerate(self.cases):
            value = self.values[index]
            if not effect.meets(case.facts):
                continue
            if value is None:
                return False
            for relation in self.relations(case, value):
                answers = [
                    (self.answer(case, fact, relation, value), holds)
                    for fact, holds in effect.facts.items()
                    if fact.uses("field")
                ]
                if all(answer is None or answer is holds for answer, holds in answers):
                    return False
        return True


def _repr(value: Expr) -> str:
    return repr(value.value) if value.is_const else f"a {value.kind}"


def _label(name: str) -> str:
    return f"the field {name}" if name else "the accumulator"
