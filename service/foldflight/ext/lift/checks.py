"""Check that a `Lift` from a server fits its call.

Its expressions become SQL in the user's session. So each must have the types of the call, and may contain only known
operations: a server that is damaged, hostile or of another version cannot inject anything else.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from foldflight.ext.lift.tree import Expr, Field, Lift, Outcome, arg, const, is_decimal, kind_of, scale_of
from foldflight.fold.mode import Unsupported
from foldflight.functions.types.exact import EXACT

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
    computed = [part.when for part in outcome.parts] + [each.when for each in outcome.failures]
    computed += [part.value for part in outcome.parts if part.value.op != "field"]
    used = {each.parts[0] for expr in computed for each in expr.walk() if each.op == "field"}
    if any(each.adds_decimals and each.name in used for each in fields):
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
    finished: dict[Any, Expr] = {}
    for one in lift.fields:
        kind = kind_of(members[one.name])
        if one.monoid != "keep" and kind is not None:
            finished[one.name] = Expr("field", (one.name,), *kind)
    for part in lift.outcome.parts:
        _check_condition(part.when, finished)
        _kind(part.value, finished)
    for failure in lift.outcome.failures:
        _check_condition(failure.when, finished)
    try:
        check_outcome(lift.outcome, lift.fields, result)
    except Unsupported as unsupported:
        raise ValueError(str(unsupported)) from None


def _check_field(one: Field, kinds: Sequence[str], type_: pa.DataType) -> None:
    """Check the expressions and the start of a field. Raises ValueError."""
    known = kind_of(type_)
    if known is None or not _is_start(one.start, known[0], type_):
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
            is_right = is_decimal(known[0]) and scales == {type_.scale} and type(one.start) is int and one.start == 0
        case "set":
            put = values[0] if values else const(None)
            is_right = kinds[:1] == [known[0]] and put.is_const and set(values) == {put} and fits(put.value, type_)
        case "min" | "max":
            is_right = set(kinds) == {known[0]}
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
