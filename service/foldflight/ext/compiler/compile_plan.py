"""Make the description from which a function is compiled: its methods, and the memory layout of its accumulators."""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import dis
import enum
import functools
import inspect
import math
import operator
import typing
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numba.core import ir

from foldflight.ext.compiler.arena import Contents, Element
from foldflight.ext.compiler.columns import Items, Kind, Members
from foldflight.ext.compiler.datetimes import number_of
from foldflight.ext.compiler.decimals import constant_of
from foldflight.ext.compiler.kernels import CompilePlan
from foldflight.ext.compiler.records import RecordField, RecordLayout, is_named_tuple
from foldflight.ext.compiler.strings import address_of
from foldflight.ext.compiler.untyped_accumulators import (
    CONTAINERS,
    NOT_NESTED,
    NOT_OBJECTS,
    NOT_REPLACED,
    UntypedAccumulators,
    accumulator_class,
    check_nested,
    hints_of,
    inferred_types,
    is_object,
    optional_tuple,
    untyped_reason,
)
from foldflight.ext.compiler.uses import find_uses
from foldflight.ext.compiler.value_types import ENCODED, KINDS
from foldflight.fold.machine_values import DECIMALS, decimal_of, moment_of, scale_of, text_of, words_of
from foldflight.fold.mode import Unsupported, at_line_of
from foldflight.functions.author.spec import BoundFunction, BoundScalar, Methods, ScalarMethods
from foldflight.functions.types.serializer import Nullable, may_be_none
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import CastError
from foldflight.functions.types.vectors import is_vector

_METHODS: Final = ("accumulate", "retract", "merge", "get_value")
_CHANGING: Final = ("accumulate", "retract")  # the methods that tell what accumulators hold
_KINDS: Final[dict[str, type]] = {"int": int, "float": float, "bool": bool, "byte": int}
_LENGTH_MAX: Final = 1 << 14  # items of a list of fixed length: the record of each group has all of them
_COPIED_MAX: Final = 64  # items of a list: compiled code copies the whole record at each row
_HEAP_TYPE: Final = 1 << 9  # the flag of classes that are defined in Python
_MOMENTS: Final = ("date", "datetime", "time", "timedelta", "timezone", "UTC")
_HARMLESS: Final = (
    *(None, int, float, bool, str, bytes, list, dict, set, super, object, math, datetime, decimal, collections),
    *(abs, len, max, min, range, round, sum, tuple),
    *(decimal.Decimal, np, *CONTAINERS),
    *(getattr(datetime, name) for name in _MOMENTS),
)
_ARRAY_MAKERS: Final = ("zeros", "ones", "full")  # functions of NumPy that make an array and change nothing
_MAKERS: Final = ("__init__", "__new__", "__post_init__")
_HOOKS: Final = ("__getattr__", "__getattribute__", "__setattr__")
# Attributes of classes that the plan depends on, in addition to the names that occur in their code.
LOOKED_AT: Final = ("create_accumulator", "eval", *_METHODS, *_MAKERS, *_HOOKS)


class Start(typing.NamedTuple):
    """A new accumulator, and the attributes of the author's instance, as records of uint8.

    `untyped_accumulators` has the types of accumulators that are pickled; None if states are typed. `initial` is a
    column of one new accumulator if a container of it holds something; else None.
    """

    fresh: Any
    instance: Any
    untyped_accumulators: UntypedAccumulators | None = None
    initial: pa.Array | None = None


def plan_of(bound: BoundFunction, methods: Methods) -> tuple[CompilePlan, Start]:
    """Return the plan of an aggregate function, its new accumulator and its instance. Raises Unsupported."""
    function = bound.function
    untyped_text = _untyped_text(bound)
    separate = hasattr(function.cls, "create_accumulator")
    functions, with_self = _functions(function.cls, separate=separate)
    parameters, instance = _attributes(methods, function.cls, functions)
    has_members = (
        bound.serializer is not None
        and pa.types.is_struct(bound.serializer.arrow)
        and not isinstance(bound.serializer, Nullable)
    )
    cls = function.accumulator_class if has_members else None
    if untyped_text:
        maker = inspect.getattr_static(function.cls, "create_accumulator", None)
        cls = accumulator_class(function, getattr(maker, "__func__", maker))
    _check_hooks(function.cls)
    named_tuple = cls if is_named_tuple(cls) else None
    cls = None if named_tuple is not None else cls
    if cls is not None:
        _check_hooks(cls)
    makers = _makers(function.cls, cls, separate=separate)
    for what, maker in makers.items():
        try:
            _check_pure(what, maker, {function.cls, cls, named_tuple})
        except Unsupported as error:
            error.reason = "; ".join(filter(None, (untyped_text, error.reason)))
            raise
    arguments = [_argument_kind(*each) for each in zip(_names(bound), bound.input_types, strict=True)]
    accumulator_types = None
    with at_line_of(next(iter(makers.values()), None)):
        accumulators = _fresh(methods, cls)
        if cls is None and has_members and type(accumulators[0]) is not (named_tuple or tuple):
            raise Unsupported("its accumulator is neither a tuple nor an object with annotated attributes")
        if untyped_text:
            kinds = [kind if isinstance(kind, str) else None for _, kind in arguments]
            changing_methods = [(each, int(name in with_self)) for name, each in functions.items() if name in _CHANGING]
            uses_of = functools.partial(find_uses, cls=function.cls, functions=changing_methods, kinds=kinds)
            expected = cls or named_tuple
            accumulator_types = inferred_types(
                expected, accumulators[0], untyped_text, function.accumulator_hints, uses_of
            )
            cls, named_tuple = accumulator_types.cls, accumulator_types.named_tuple
        layout = _layout(bound, cls, accumulators[0]) if accumulator_types is None else accumulator_types.layout
        makers.update(_makers_of_parts(layout, function.cls))
        fresh = _fresh_record(layout, cls, accumulator_types, accumulators)
        initial = _initial(layout, cls, accumulators[0], bound if accumulator_types is None else accumulator_types)
    try:
        (kind, bits), unresolved_reason = _result_kind(bound.result_type), ""
    except Unsupported as error:  # only get_value is interpreted; the other methods are compiled
        kind, bits, unresolved_reason = "", 0, error.reason
    plan = CompilePlan(
        functions=tuple(functions.items()),
        makers=tuple(makers.items()),
        with_self=with_self,
        cls=function.cls,
        instance=parameters,
        accumulator_class=cls,
        named_tuple=named_tuple,
        accumulator=layout,
        arguments=tuple(dtype for dtype, _ in arguments),
        kinds=tuple(kind for _, kind in arguments),
        result=kind,
        result_bits=bits,
        unresolved=unresolved_reason,
        guess="" if accumulator_types is None else accumulator_types.guess,
    )
    return plan, Start(fresh, instance, accumulator_types, initial)


def _untyped_text(bound: BoundFunction) -> str:
    """Return why states have no types, or "" if they have. Raises Unsupported for a form that is not compiled."""
    function = bound.function
    if function.adapter:
        raise Unsupported(f"its class is adapted from {function.adapter}")
    if function.bundled:
        raise Unsupported("its fold_bundle gets the rows of many groups at once; it is called once for each chunk")
    untyped_text = "" if bound.serializer is not None else untyped_reason(function)
    if untyped_text and function.capabilities.codec != "pickle":
        raise Unsupported(untyped_text)
    return untyped_text


def _makers_of_parts(layout: RecordLayout, cls: type) -> dict[str, Any]:
    """Return the functions that make the objects within accumulators, by name. Raises Unsupported if one is unsuitable.

    They have been called to find the objects, as the interpreter calls them.
    """
    makers = {}
    for inner in {part for _, part in layout.parts if part not in (dict, list)}:
        _check_hooks(inner)
        for what, maker in _makers_of(inner):
            _check_pure(what, maker, {cls, inner})
            makers[what] = maker
    return makers


def own_attributes(methods: Methods | ScalarMethods) -> dict[str, Any]:
    """Return the instance attributes. Functions, and classes that are their own accumulator, have none."""
    method = methods.get_value if isinstance(methods, Methods) else methods.eval
    return getattr(getattr(method, "__self__", None), "__dict__", {})


class _Function:
    """Takes the place of the author's class in the plan of a function that is not a method."""


def scalar_plan_of(bound: BoundScalar, methods: ScalarMethods) -> tuple[CompilePlan, Any]:
    """Return the plan of a scalar function and the attributes of its instance. Raises Unsupported with the reason."""
    target = bound.function.target
    cls = target if isinstance(target, type) else _Function
    method = inspect.getattr_static(target, "eval") if isinstance(target, type) else target
    parameters, instance = _attributes(methods, cls, ("eval",))
    _check_hooks(cls)
    function = method.__func__ if isinstance(method, staticmethod) else method
    if not isinstance(function, FunctionType):
        raise Unsupported("eval is not a plain method")
    if not bound.input_types:
        raise Unsupported("it has no arguments")
    kinds = [_argument_kind(*each) for each in zip(bound.function.input_names, bound.input_types, strict=False)]
    result, bits = _result_kind(bound.result_type)
    plan = CompilePlan(
        functions=(("eval", function),),
        makers=(),
        with_self=frozenset({"eval"} if isinstance(target, type) and function is method else ()),
        cls=cls,
        instance=parameters,
        accumulator_class=None,
        named_tuple=None,
        accumulator=RecordLayout(()),
        arguments=tuple(dtype for dtype, _ in kinds),
        kinds=tuple(kind for _, kind in kinds),
        result=result,
        result_bits=bits,
    )
    return plan, instance


def _attributes(methods: Methods | ScalarMethods, cls: type, functions: Collection[str]) -> tuple[RecordLayout, Any]:
    """Return the instance attributes that compiled code can read, as a layout and a record (uint8)."""
    own = own_attributes(methods)
    plain = {name: value for name, value in own.items() if plain_kind(value) is not None}
    # Compiled code reads such a name from the class, where Python reads it from the instance.
    hiding_names = [name for name in own if name in functions or (name not in plain and hasattr(cls, name))]
    if hiding_names:
        raise Unsupported(f"its instance attribute {hiding_names[0]} hides the class attribute of that name")
    layout = RecordLayout(tuple(RecordField(name, str(plain_kind(value))) for name, value in plain.items()))
    return layout, _record(layout, plain)


def _check_hooks(cls: type) -> None:
    if issubclass(cls, tuple):  # which has hooks of its own
        raise Unsupported(f"{cls.__name__} is a tuple with methods; use a NamedTuple or a dataclass")
    hooks = [name for name in _HOOKS if getattr(cls, name, None) not in (None, getattr(object, name, None))]
    if hooks:
        raise Unsupported(f"{cls.__name__} has {hooks[0]}")


def _functions(cls: type, *, separate: bool) -> tuple[dict[str, Any], frozenset[str]]:
    functions, with_self = {}, set()
    for method_name in _METHODS:
        if getattr(cls, method_name, None) is None:
            continue
        method = inspect.getattr_static(cls, method_name)
        if separate and isinstance(method, staticmethod):
            method = method.__func__
        elif separate:
            with_self.add(method_name)
        if not isinstance(method, FunctionType):
            with at_line_of(method):
                raise Unsupported(f"{method_name} is not a plain method")
        functions[method_name] = method
    return functions, frozenset(with_self)


def _names(bound: BoundFunction) -> list[str]:
    names = bound.function.input_names
    return [names[index] if index < len(names) else str(index + 1) for index in range(len(bound.input_types))]


def _argument_kind(name: str, type_: pa.DataType) -> tuple[np.dtype[Any], Kind]:
    """Return the NumPy type of an argument's column or words, and the kind of its values. Raises Unsupported."""
    moment = moment_of(type_)
    if moment is not None:
        return np.dtype(np.int64), moment
    if pa.types.is_boolean(type_):
        return np.dtype(np.bool_), "bool"
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return np.dtype(type_.to_pandas_dtype()), "int"
    if type_ in (pa.float32(), pa.float64()):
        return np.dtype(type_.to_pandas_dtype()), "float"
    kind = text_of(type_) or decimal_of(type_)
    if kind is not None:
        return np.dtype(np.int64), kind
    if is_vector(type_):
        vector = _items_of(type_)
        return np.dtype(vector.format), vector
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        actual = [type_.value_type] if pa.types.is_list(type_) else [type_.key_type, type_.item_type]
        items = [str(_argument_kind(name, each)[1]) for each in actual]
        if all(each in KINDS and each not in DECIMALS for each in items):
            key, *value = (Element((each,)) for each in items)
            return np.dtype(np.int64), Contents("dict" if value else "list", key, value[0] if value else None)
    names = [field.name for field in type_] if pa.types.is_struct(type_) else []
    fields = [_argument_kind(f"{name}.{field.name}", field.type) for field in type_] if names else []
    if names and len(set(names)) == len(names) and all(isinstance(kind, str) for _, kind in fields):
        kinds = tuple(str(kind) for _, kind in fields)
        return np.dtype(np.bool_), Members(tuple(names), tuple(dtype for dtype, _ in fields), kinds)
    raise Unsupported(f"its argument {name} has the type {sql_name(type_)}")


def _items_of(type_: pa.DataType) -> Items:
    return Items(type_.list_size, f"f{type_.value_type.bit_width // 8}")


def _result_kind(type_: pa.DataType) -> tuple[str | Items, int]:
    """Return the kind of a result, and the width of a whole number or the digits of a decimal. Raises Unsupported."""
    if is_vector(type_):
        return _items_of(type_), 0
    kind = _stored_kind(type_)
    if kind is None:
        raise Unsupported(f"its result has the type {sql_name(type_)}")
    return kind, type_.precision if kind in DECIMALS else type_.bit_width if kind == "int" else 64


def _stored_kind(type_: pa.DataType) -> str | None:
    """Return the kind of a result or a state; None for types that are not compiled."""
    if pa.types.is_signed_integer(type_):
        return "int"
    if type_ == pa.float64():
        return "float"
    if pa.types.is_boolean(type_):
        return "bool"
    return _stored_moment(type_) or text_of(type_) or decimal_of(type_)


def _kind(name: str, type_: pa.DataType) -> str:
    kind = _stored_kind(type_)
    if kind is not None:
        return kind
    remedy = ""
    if pa.types.is_list(type_):
        remedy = f"; lists are compiled if create_accumulator makes them with up to {_COPIED_MAX} items, whose number "
        remedy += "does not change, or if they are Annotated[list[...], n]"
    elif pa.types.is_struct(type_) and name:
        remedy = f"; {NOT_REPLACED}"
    raise Unsupported(f"its state has the type {sql_name(type_)}" + (f" in {name}" if name else "") + remedy)


def _stored_moment(type_: pa.DataType) -> str | None:
    """Return the kind of a date or time in states and results; None if its unit would round microseconds."""
    return None if pa.types.is_timestamp(type_) and type_.unit != "us" else moment_of(type_)


def _is_plain_number(value: Any) -> bool:
    """Return whether a value is a bool, a float, or an int of at most 64 bits."""
    return type(value) in (float, bool) or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def _encode(value: Any) -> tuple[str, int] | None:
    """Return the kind and the integer form of a date, time, str or bytes; None for other values."""
    if type(value) in (str, bytes):
        address = address_of(value)
        return None if address is None else ("text" if type(value) is str else "bytes", address)
    return number_of(value)


def plain_kind(value: Any) -> str | None:
    """Return the kind of a value of the author's instance; None if compiled code cannot represent it."""
    kind_and_value = _encode(value) or constant_of(value)
    if kind_and_value is not None:
        return kind_and_value[0]
    return type(value).__name__ if _is_plain_number(value) else None


def _layout(bound: BoundFunction, cls: type | None, fresh: Any) -> RecordLayout:
    assert bound.serializer is not None
    arrow = bound.serializer.arrow
    try:
        bound.serializer.to_arrow([fresh])
    except CastError as error:
        raise Unsupported(f"its state: {error}") from None
    hints = bound.function.accumulator_hints
    if cls is None and isinstance(fresh, tuple):
        if not pa.types.is_struct(arrow):
            raise Unsupported("its tuple has any length; write a type for each item, as tuple[int, int]")
        optional = [may_be_none(hints.get(f.name)) or each is None for f, each in zip(arrow, fresh, strict=True)]
        return RecordLayout(
            tuple(RecordField(f.name, _kind(f.name, f.type), each) for f, each in zip(arrow, optional, strict=True))
        )
    if cls is None:
        type_ = arrow.field(0).type if pa.types.is_struct(arrow) else arrow
        hint = hints.get("value")
        tuple_class = optional_tuple(hint) if isinstance(bound.serializer, Nullable) else None
        if tuple_class is not None:
            return RecordLayout(tuple(_tuple_fields("value", "", type_)), tuples=(("value.", tuple_class),))
        return RecordLayout((_field("value", "", type_, hint, fresh, isinstance(bound.serializer, Nullable)),))
    fields, parts, tuples = _members_of("", arrow, cls, fresh, hints)
    return RecordLayout(tuple(fields), parts=tuple(parts), tuples=tuple(tuples))


def _members_of(
    path: str, type_: pa.DataType, cls: type, instance: Any, hints: Mapping[str, Any]
) -> tuple[list[RecordField], list[tuple[str, type]], list[tuple[str, type]]]:
    """Return the fields of an object with annotations, and the objects and the tuples within it.

    `path` stands before their names.
    """
    fields: list[RecordField] = []
    parts: list[tuple[str, type]] = []
    tuples: list[tuple[str, type]] = []
    for member in type_:
        if inspect.isdatadescriptor(getattr(cls, member.name, None)) and not hasattr(cls, "__slots__"):
            raise Unsupported(f"{cls.__name__}.{member.name} is a property")
        hint, value = hints.get(member.name), getattr(instance, member.name)
        name = f"{path}{member.name}"
        if pa.types.is_struct(member.type) and is_object(value) and hint is type(value):
            inner = type(value)
            own_fields, own_parts, own_tuples = _members_of(f"{name}.", member.type, inner, value, hints_of(inner))
            fields += own_fields
            parts += [(f"{name}.", inner), *own_parts]
            tuples += own_tuples
        elif pa.types.is_struct(member.type) and (tuple_class := optional_tuple(hint)) is not None:
            fields += _tuple_fields(name, name, member.type)
            tuples.append((f"{name}.", tuple_class))
        else:
            fields.append(_field(name, name, member.type, hint, value, may_be_none(hint) or value is None))
    return fields, parts, tuples


def _tuple_fields(name: str, label: str, type_: pa.DataType) -> list[RecordField]:
    """Return the fields of a tuple that may be None. Reasons call it `label`."""
    return [RecordField(f"{name}.{each.name}", _item_kind(label, each.type), optional=True) for each in type_]


def _field(name: str, label: str, type_: pa.DataType, hint: Any, value: Any, may_be_null: bool) -> RecordField:
    """Return the record field of a member of the accumulator, or of the accumulator itself. Reasons call it `label`."""
    if is_vector(type_) and not may_be_null and type_.list_size <= _LENGTH_MAX:
        return RecordField(name, "float", length=type_.list_size, vector=_items_of(type_).format)
    contents = None if may_be_null else _container_types(label or "its accumulator", type_, hint, value)
    if contents is not None:
        return RecordField(name, contents.shape, contents=contents)
    length = 0 if may_be_null and label else _length(hint) or _initial_length(value)
    is_list = length > 0 and pa.types.is_list(type_)
    kind = _item_kind(label, type_.value_type) if is_list else _kind(label, type_)
    return RecordField(name, kind, may_be_null, length)


def _container_types(what: str, type_: pa.DataType, hint: Any, fresh: Any) -> Contents | None:
    """Return the types in an empty list, dict or set, from the type of its states; None for other values."""
    if type(fresh) not in (list, dict, set) or (type(fresh) is list and fresh):
        return None
    return _contents(what, type_, hint, type(fresh).__name__)


def _contents(what: str, type_: pa.DataType, hint: Any, shape: str) -> Contents | None:
    """Return the types in a container of a shape, from the type of its states and its annotation."""
    first, inner = (*typing.get_args(hint), None, None)[:2]
    if pa.types.is_map(type_) and shape == "dict":
        key, shape = _element(what, type_.key_type, first), getattr(typing.get_origin(inner), "__name__", "")
        nested = _contents(what, type_.item_type, inner, shape) if shape in ("list", "dict", "set") else None
        if nested is None or type(None) in typing.get_args(inner):
            return Contents("dict", key, _element(what, type_.item_type, inner))
        check_nested(nested)
        return Contents("dict", key, Element((shape,), nested=nested))
    if pa.types.is_list(type_) and shape != "dict":
        return Contents(shape, _element(what, type_.value_type, first))
    return None


def _element(what: str, type_: pa.DataType, hint: Any) -> Element:
    """Return the kinds of the keys, values or items of a container, from the type of their states and their annotation.

    A struct with fields f0, f1, ... is a tuple.
    """
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        raise Unsupported(f"{what} holds {sql_name(type_)}; {NOT_NESTED}")
    if not pa.types.is_struct(type_):
        return Element((_item_kind(what, type_),))
    cls = hint if is_named_tuple(hint) else None
    has_names = [each.name for each in type_] != [f"f{index}" for index in range(type_.num_fields)]
    if cls is None and (has_names or (isinstance(hint, type) and hint is not tuple)):
        raise Unsupported(f"{what or 'its accumulator'} holds objects; {NOT_OBJECTS}")
    return Element(tuple(_item_kind(what, field.type) for field in type_), is_tuple=True, cls=cls)


def _item_kind(what: str, type_: pa.DataType) -> str:
    """Return the kind of one member of a container. Raises Unsupported."""
    kind = _kind(what, type_)
    if kind in DECIMALS:
        remedy = "attributes that are decimals are compiled, and containers of whole numbers"
        raise Unsupported(f"{what or 'its accumulator'} holds decimals; {remedy}")
    return kind


def _length(hint: Any) -> int:
    """Return the declared length of a list: 16 for `Annotated[list[int], 16]`, and 0 if it has none."""
    if typing.get_origin(hint) is not typing.Annotated or typing.get_origin(hint.__origin__) is not list:
        return 0
    lengths = [each for each in hint.__metadata__ if type(each) is int]
    return lengths[0] if len(lengths) == 1 and 0 < lengths[0] <= _LENGTH_MAX else 0


def _initial_length(value: Any) -> int:
    """Return the length of a new list; 0 if it is so long that copying it at each row costs more than interpreting."""
    return len(value) if isinstance(value, list) and len(value) <= _COPIED_MAX else 0


def _objects(layout: RecordLayout, cls: type | None, accumulator: Any) -> list[Any]:
    """Return the objects and containers within an accumulator with annotations, which may be shared."""
    members = _members(layout, cls, accumulator, None)
    inner = [operator.attrgetter(path[:-1])(accumulator) for path, _ in layout.parts]
    return [*(members[field.name] for field in layout.fields if field.is_container), *inner]


def _members(
    layout: RecordLayout, cls: type | None, accumulator: Any, accumulator_types: UntypedAccumulators | None
) -> dict[str, Any]:
    """Return the members of a new accumulator by the names of their fields. Raises Unsupported if it has others."""
    if accumulator_types is not None:
        members = accumulator_types.members(accumulator)
        if members is None:
            raise Unsupported("create_accumulator does not always return equal accumulators")
        return members
    names = [field.name for field in layout.fields]
    if cls is not None:
        return {field.name: layout.value_of(accumulator, field) for field in layout.fields}
    if accumulator is None and layout.tuples:
        return dict.fromkeys(names)
    return dict(zip(names, accumulator if isinstance(accumulator, tuple) else (accumulator,), strict=True))


def _record(layout: RecordLayout, members: dict[str, Any]) -> Any:
    """Return the members of an accumulator, or the attributes of an instance, as a record (uint8)."""
    record = np.zeros(1, layout.dtype)
    for field in layout.fields:
        member = members[field.name]
        if field.optional:
            record[field.valid] = member is not None
            if member is None:
                continue
        if field.contents is not None:
            continue
        if field.length:
            record[field.name] = member if field.vector else _items(field, member)
            continue
        if field.kind in DECIMALS and constant_of(member) is not None:
            words = words_of(member, scale_of(field.kind))
            if words is None:
                raise Unsupported(f"the initial value of {field.name} is {member!r}, which its type cannot hold")
            record[field.name] = words.view("V16")[0]
            continue
        if field.kind in ENCODED:
            kind_and_value = _encode(member)
            if kind_and_value is None or kind_and_value[0] != field.kind:
                raise Unsupported(f"the initial value of {field.name} is {member!r}, not a {field.kind}")
            record[field.name] = kind_and_value[1]
            continue
        if type(member) is not _KINDS.get(field.kind) or not _is_plain_number(member):
            what = "its accumulator" if field.name == "value" else field.name
            remedy = f"; write {float(member)}" if type(member) is int and field.kind == "float" else ""
            remedy = f"; write Decimal({member})" if type(member) is int and field.kind in DECIMALS else remedy
            raise Unsupported(f"the initial value of {what} is {member!r}, but its annotation is {field.kind}{remedy}")
        record[field.name] = member
    return record.view(np.uint8)


def _items(field: RecordField, value: Any) -> list[Any]:
    kind = _KINDS.get(field.kind)
    if len(value) != field.length or not all(type(each) is kind and _is_plain_number(each) for each in value):
        raise Unsupported(
            f"the initial value of {field.name} is not a list of {field.length} items of type {field.kind}"
        )
    return list(value)


def _makers(cls: type, accumulator_class: type | None, *, separate: bool) -> dict[str, Any]:
    """Return the functions that create an accumulator, by name."""
    makers: dict[str, Any] = {}
    if separate:
        method = inspect.getattr_static(cls, "create_accumulator")
        makers["create_accumulator"] = getattr(method, "__func__", method)
    return makers if accumulator_class is None else {**makers, **dict(_makers_of(accumulator_class))}


def _makers_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the names and functions with which objects of a class are made."""
    for name in _MAKERS:
        for each in cls.__mro__:
            method = vars(each).get(name)
            maker = getattr(method, "__func__", method)
            if isinstance(maker, FunctionType):
                yield f"{each.__name__}.{name}", maker
                if name not in maker.__code__.co_names:
                    break  # it does not call `super().__init__`


def _fresh(methods: Methods, accumulator_class: type | None) -> tuple[Any, Any]:
    """Return two new accumulators, so that objects which both refer to are found."""
    try:
        one, other = methods.create_accumulator(), methods.create_accumulator()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the interpreter raises it again, with its slot
        raise Unsupported(f"create_accumulator raises {type(error).__name__}") from None
    if one is other and accumulator_class is not None:
        raise Unsupported("create_accumulator returns the same object each time")
    return one, other


def _fresh_record(
    layout: RecordLayout, cls: type | None, accumulator_types: UntypedAccumulators | None, accumulators: tuple[Any, Any]
) -> Any:
    """Return the record of a new accumulator. Raises Unsupported if the two differ, or share objects."""
    one, other = (_members(layout, cls, each, accumulator_types) for each in accumulators)
    mine, others = (
        _objects(layout, cls, each) if accumulator_types is None else accumulator_types.objects(each)
        for each in accumulators
    )
    record = _record(layout, one)
    for each, counterpart in zip(mine, others, strict=True):
        if each is counterpart:
            name = next((f" {name}" for name, member in one.items() if member is each), "")
            raise Unsupported(f"all its accumulators share the {type(each).__name__}{name}")
    if len({*map(id, mine)}) < len(mine):
        raise Unsupported("two attributes of its accumulator are the same object")
    container_names = [field.name for field in layout.fields if field.contents is not None]
    differ = any(_entries(one[name]) != _entries(other[name]) for name in container_names)
    if differ or record.tobytes() != _record(layout, other).tobytes():
        raise Unsupported("create_accumulator does not always return equal accumulators")
    return record


def _initial(layout: RecordLayout, cls: type | None, fresh: Any, source: BoundFunction | UntypedAccumulators) -> Any:
    """Return a column of one new accumulator if a container of it holds something, else None. Raises Unsupported."""
    members = _members(layout, cls, fresh, source if isinstance(source, UntypedAccumulators) else None)
    holds = False
    for field in layout.fields:
        contents, value = field.contents, members[field.name]
        if contents is None or not value:
            continue
        holds = True
        if contents.nested is not None:
            raise Unsupported(f"{'its accumulator' if field.name == 'value' else field.name} holds containers at first")
        keys = [member for key in value for member in (key if type(key) is tuple else (key,))]
        # Python finds a NaN by its identity, which a copy does not have.
        if contents.shape != "list" and any(key != key for key in keys):  # noqa: PLR0124
            raise Unsupported(f"{'its accumulator' if field.name == 'value' else field.name} has the key NaN at first")
        parts = (
            [(contents.key, value)]
            if contents.value is None
            else [(contents.key, value), (contents.value, value.values())]
        )
        for part, values in parts:
            for each in values:
                actual: Any = each if part.is_tuple and type(each) is (part.cls or tuple) else (each,)
                if tuple(map(_entry_kind, actual)) != part.kinds:
                    what = "its accumulator" if field.name == "value" else field.name
                    remedy = f"; write {float(each)}" if type(each) is int and part.kinds == ("float",) else ""
                    raise Unsupported(
                        f"the initial value of {what} holds {each!r}, but its annotation is {part}{remedy}"
                    )
    if not holds:
        return None
    if isinstance(source, UntypedAccumulators):
        return source.column([fresh])
    assert source.serializer is not None
    return source.serializer.to_arrow([fresh])


def _entries(container: Any) -> list[Any]:
    """Return the items of a container, or pairs of a dict."""
    return list(container.items() if isinstance(container, dict) else container)


def _entry_kind(value: Any) -> str | None:
    return "text" if type(value) is str else "bytes" if type(value) is bytes else plain_kind(value)


def _check_pure(what: str, function: Any, classes: set[Any]) -> None:
    """Raise Unsupported for code that may have side effects: a compiled fold calls it once for all groups."""
    if not isinstance(function, FunctionType):
        raise Unsupported(f"{what} is not a plain method")
    for effect, name, line in _effects(inspect.unwrap(function).__code__):
        refusal = ""
        if effect == "uses":
            value = function.__globals__.get(name, getattr(builtins, name, None))
            is_plain = plain_kind(value) is not None or (
                isinstance(value, enum.EnumType) and value.__module__ != "enum"
            )
            if isinstance(value, (list, tuple)):
                is_plain = all(plain_kind(each) is not None for each in value)
            is_plain = is_plain or any(value is each for each in (*classes, *_HARMLESS))
            if isinstance(value, type) and value.__flags__ & _HEAP_TYPE and not is_plain:
                try:
                    for inner, maker in _makers_of(value):
                        _check_pure(inner, maker, {*classes, value})
                except Unsupported as error:
                    raise Unsupported(f"{what} uses {name}: {error.reason}").at(line) from None
                is_plain = True
            if not is_plain:
                refusal = f"{what} uses {name}"
        elif effect == "makes":
            module, _, maker = name.partition(".")
            if function.__globals__.get(module) is not np:
                refusal = f"{what} calls or changes {maker}"
        elif effect == "calls or changes" or what == "create_accumulator":
            refusal = f"{what} {effect} {name}"
        if refusal:
            raise Unsupported(refusal).at(line)


@functools.lru_cache(maxsize=1024)
def _effects(code: CodeType) -> tuple[tuple[str, str, ir.Loc], ...]:
    """Return `uses`, `calls` or `changes` (of an attribute of the first parameter), a name and a line, of each."""
    first = code.co_varnames[0] if code.co_argcount else ""
    effects, loaded_name, module = [], None, ""
    for step in dis.get_instructions(code):
        name, line = step.argval, step.positions.lineno if step.positions is not None else None
        at = ir.Loc(code.co_filename, line or code.co_firstlineno)
        is_method = step.opname == "LOAD_METHOD" or "NULL|self" in step.argrepr  # Python 3.11; then 3.12 and later
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            effects.append(("uses", str(name), at))
        elif is_method and module and name in _ARRAY_MAKERS:
            effects.append(("makes", f"{module}.{name}", at))
        elif step.opname in ("STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "CALL_FUNCTION_EX") or (
            is_method and name != "__init__"
        ):
            effects.append(("calls or changes", str(name), at))
        elif step.opname == "STORE_ATTR" and loaded_name == first:
            effects.append(("changes", f"{first}.{name}", at))
        module = str(name) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ""
        loaded_name = None
        if "LOAD_FAST" in step.opname:  # from Python 3.13 on, a step may load two variables
            loaded_name = name[-1] if isinstance(name, tuple) else name
    return tuple(effects)
