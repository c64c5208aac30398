"""Compile accumulators whose classes have no annotations: types are inferred from a new accumulator.

The states stay pickles of the accumulators, as without a compiler. Compiled code works on records, from which objects
are created when states are written. It may only store values of the types that the new accumulator has.
"""

from __future__ import annotations

import inspect
import typing
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.ext.compiler.arena import Contents, Element
from foldflight.ext.compiler.records import RecordField, RecordLayout
from foldflight.fold.mode import Unsupported
from foldflight.functions.author.spec import Function
from foldflight.functions.types.serializer import may_be_none

_TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "byte": pa.uint8(), "text": pa.string(),
}  # fmt: skip
_NUMBERS: Final[dict[Any, str]] = {int: "int", float: "float", bool: "bool"}
_CLASSES: Final[dict[str, type]] = {**{kind: cls for cls, kind in _NUMBERS.items()}, "text": str, "byte": int}
CONTAINERS: Final = (Counter, defaultdict, deque, bytearray)
"""Python's containers that are compiled, in addition to list, dict and set."""
_SHAPES: Final[dict[Any, str]] = {list: "list", deque: "list", dict: "dict", Counter: "dict", defaultdict: "dict"}
_ITEMS_MAX: Final = 64  # items of a list: compiled code copies the whole record at each row
_BYTES_MAX: Final = 1 << 12  # bytes of a bytearray, for the same reason
_PICKLED_BY: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__new__")
_HEAP_TYPE: Final = 1 << 9  # the flag of classes that are defined in Python


@dataclass(frozen=True)
class UntypedAccumulators:
    """The types of an accumulator.

    Args:
        cls: The class of the accumulator; None if it is a single value, the field `value`, or a tuple.
        fields: Its attributes or members, in the order in which they are set.
        guess: What is said before the reason why code cannot be compiled if the types in a container are a guess.
    """

    cls: type | None
    fields: tuple[RecordField, ...]
    guess: str = ""

    @property
    def _is_value(self) -> bool:
        return self.cls is None and self.fields[0].name == "value"

    @property
    def arrow(self) -> pa.DataType:
        """The type of accumulators as a column."""
        fields = [pa.field(each.name, _arrow(each)) for each in self.fields]
        return fields[0].type if self._is_value else pa.struct(fields)

    @property
    def layout(self) -> RecordLayout:
        """The layout of accumulators in memory."""
        return RecordLayout(self.fields, exact=True)

    def column(self, accumulators: Sequence[Any]) -> pa.Array | None:
        """Return n accumulators as a column; None if one has other attributes or types, or too large an int."""
        rows = [self._members(each) for each in accumulators]
        names = [each.name for each in self.fields]
        if any(list(row) != names or not all(_fits(each, row[each.name]) for each in self.fields) for row in rows):
            return None
        try:
            columns = [pa.array([_items(each, row[each.name]) for row in rows], _arrow(each)) for each in self.fields]
        except (OverflowError, ValueError):  # an int of more than 64 bits, or a str that is not valid UTF-8
            return None
        return columns[0] if self._is_value else pa.StructArray.from_arrays(columns, fields=list(self.arrow))

    def _members(self, accumulator: Any) -> dict[str, Any]:
        if self.cls is not None:
            return vars(accumulator) if type(accumulator) is self.cls else {}
        if self._is_value:
            return {"value": accumulator}
        return {f"f{index}": each for index, each in enumerate(accumulator)} if type(accumulator) is tuple else {}

    def accumulators(self, column: pa.Array) -> list[Any]:
        """Convert a column to n accumulators with the types that the author's code creates."""
        columns = [column] if self._is_value else column.flatten()
        members = [
            [_value_from_arrow(field, value) for value in each.to_pylist()]
            for field, each in zip(self.fields, columns, strict=True)
        ]
        if self.cls is None:
            return members[0] if self._is_value else list(zip(*members, strict=True))
        accumulators = []
        for values in zip(*members, strict=True):
            accumulator: Any = object.__new__(self.cls)
            for field, value in zip(self.fields, values, strict=True):
                setattr(accumulator, field.name, value)
            accumulators.append(accumulator)
        return accumulators


def _arrow(field: RecordField) -> pa.DataType:
    """Return the type of a field as a column."""
    if field.contents is None:
        return pa.list_(_TYPES[field.kind]) if field.length else _TYPES[field.kind]
    key = _TYPES[field.contents.key.kinds[0]]
    return pa.list_(key) if field.contents.value is None else pa.map_(key, _TYPES[field.contents.value.kinds[0]])


def _fits(field: RecordField, value: Any) -> bool:
    """Return whether a value survives the conversion to a record and back unchanged."""
    if field.contents is None and not field.length:
        return type(value) is _CLASSES[field.kind] or (field.optional and value is None)
    if field.contents is None:
        accumulators: Any = bytearray if field.kind == "byte" else list
        return (
            type(value) is accumulators and len(value) == field.length and {*map(type, value)} == {_CLASSES[field.kind]}
        )
    contents = field.contents
    cls: Any = contents.cls or {"list": list, "dict": dict}[contents.shape]
    if type(value) is not cls or getattr(value, "__dict__", None) or getattr(value, "maxlen", None) != contents.limit:
        return False
    if contents.value is None:
        return {*map(type, value)} <= {_CLASSES[contents.key.kinds[0]]}
    made_by = _CLASSES[contents.value.kinds[0]]
    if contents.cls is defaultdict and value.default_factory is not made_by:
        return False
    return {*map(type, value)} <= {_CLASSES[contents.key.kinds[0]]} and {*map(type, value.values())} <= {made_by}


def _items(field: RecordField, value: Any) -> Any:
    """Convert the value of a field for Arrow."""
    if field.contents is not None and field.contents.value is not None:
        return list(value.items())
    return value if value is None or type(value) in _NUMBERS else list(value)


def _value_from_arrow(field: RecordField, value: Any) -> Any:
    """Convert a value from Arrow to the value of a field."""
    if field.contents is None:
        return bytearray(value) if field.kind == "byte" else value
    if field.contents.cls is deque:
        return deque(value, field.contents.limit)
    if field.contents.cls is Counter:
        return Counter(dict(value))
    if field.contents.cls is defaultdict:
        assert field.contents.value is not None
        return defaultdict(_CLASSES[field.contents.value.kinds[0]], value)
    return value if field.contents.value is None else dict(value)


def untyped_reason(function: Function) -> str:
    """Return the reason why the states of a function have no types, as a clause about it."""
    return f"its states are not typed: {function.capabilities.codec_reason}"


def accumulator_class(function: Function, create_accumulator: Any) -> type | None:
    """Return the class of accumulators, if it is known without creating one; else None.

    Raises:
        Unsupported: The class is not defined in Python.
    """
    cls = function.cls if create_accumulator is None else function.accumulator_class
    if cls is None and "value" in function.accumulator_hints:
        return None  # a container
    if cls is None and isinstance(create_accumulator, FunctionType):
        known = create_accumulator.__globals__
        named = [known[name] for name in create_accumulator.__code__.co_names if isinstance(known.get(name), type)]
        cls = named[0] if len(named) == 1 else None
    if cls in CONTAINERS:
        return None
    if cls is not None and not all(each.__flags__ & _HEAP_TYPE for each in cls.__mro__[:-1]):
        raise Unsupported(untyped_reason(function))
    return cls


def inferred_types(
    cls: type | None, fresh: Any, untyped: str, hints: typing.Mapping[str, Any], keys: Collection[str] = ()
) -> UntypedAccumulators:
    """Return the types of a new accumulator.

    Args:
        cls: The expected class; None for a number, a tuple or a container.
        fresh: The new accumulator.
        untyped: The reason of `untyped_reason`.
        hints: The annotations of its attributes, or a container's annotation as `value`.
        keys: The kinds of the function's arguments. If one of them alone can be a key, a Counter or defaultdict without
            annotation has such keys, and if all are numbers of one kind, a list or deque has such items: compiling
            refuses code that puts another one in.

    Raises:
        Unsupported: One of the types is not certain.
    """
    guess = ""
    if cls is None:
        is_tuple = type(fresh) is tuple and len(fresh) > 0
        members = {f"f{index}": each for index, each in enumerate(fresh)} if is_tuple else {"value": fresh}
        if is_tuple and not all(type(each) in _NUMBERS for each in fresh):
            raise Unsupported(untyped)
        if "value" not in hints and (hint := _hint_of(fresh, keys)) is not None:
            hints = {"value": hint}
            guess = "" if fresh else _guess("it", fresh, hint)
        return UntypedAccumulators(
            None, tuple(_field(name, each, hints.get(name), "it", untyped) for name, each in members.items()), guess
        )
    if type(fresh) is not cls or any("__slots__" in vars(each) for each in cls.__mro__[:-1]):
        raise Unsupported(untyped)
    if any(getattr(cls, name, None) is not getattr(object, name, None) for name in _PICKLED_BY):
        raise Unsupported(f"{untyped}; {cls.__name__} defines how it is pickled")
    annotated = {} if hints else _hints(cls)
    hints = hints or annotated
    guesses = {
        name: hint
        for name, each in vars(fresh).items()
        if hints.get(name) is None and (hint := _hint_of(each, keys)) is not None
    }
    guess = "".join(
        _guess(f"{cls.__name__}.{name}", vars(fresh)[name], hint)
        for name, hint in guesses.items()
        if not vars(fresh)[name]
    )
    hints = {**hints, **guesses}
    for name in vars(fresh):
        if inspect.isdatadescriptor(inspect.getattr_static(cls, name, None)):
            raise Unsupported(f"{untyped}; {cls.__name__}.{name} is a property")
    fields = []
    for name, each in vars(fresh).items():
        try:
            fields.append(
                _optional(name, each, hints.get(name))
                or _field(name, each, hints.get(name), f"{cls.__name__}.{name}", untyped)
            )
        except Unsupported:
            if name not in annotated:
                raise
            raise Unsupported(f"{untyped}; {cls.__name__} has types, so write -> {cls.__name__} there") from None
    # pickle writes a string once that two objects of an accumulator share, and records do not know which are shared.
    # The keys of one dict are different strings.
    if sum(each.refers_to_texts for each in fields) > 1:
        raise Unsupported(f"{untyped}; keys of two attributes that are texts are compiled only where states are typed")
    for name, each in vars(fresh).items():
        if isinstance(each, dict) and not vars(fresh).keys().isdisjoint(each):
            raise Unsupported(f"{untyped}; {cls.__name__}.{name} has a key that is the name of an attribute")
    return UntypedAccumulators(cls, tuple(fields), guess)


def _hint_of(value: Any, keys: Collection[str]) -> Any:
    """Return the annotation of a container without one: from what it holds, or from the kinds of arguments."""
    known = [type_ for type_, kind in (*_NUMBERS.items(), (str, "text")) if kind in keys]
    if isinstance(value, (list, deque)):
        return None if value or len(keys) > 1 or known in ([], [str]) else type(value)[known[0]]  # type: ignore[index]
    if type(value) not in _SHAPES:
        return None
    key_types = {*map(type, value)} or {each for each in known if each is not float}
    value_types: set[Any] = {*map(type, value.values())} or {getattr(value, "default_factory", None)}
    if len(key_types) != 1:
        return None
    if type(value) is Counter:
        return Counter[key_types.pop()]  # type: ignore[misc]
    return (
        type(value)[key_types.pop(), value_types.pop()]
        if len(value_types) == 1 and value_types <= {*_NUMBERS}
        else None
    )


def _guess(label: str, value: Any, hint: Any) -> str:
    """Return what is said before a reason that the guess of an annotation may have caused."""
    names = ", ".join(each.__name__ for each in typing.get_args(hint))
    name = type(value).__name__
    return f"{label} is a {name} at first, and compiled as {name}[{names}] unless you annotate it; "


_AS_IN: Final[dict[type, str]] = {
    list: ", as in list[float]",
    dict: ", as in dict[str, int]",
    set: ", as in set[str]",
}


def _hints(cls: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(cls)
    except (NameError, AttributeError):  # a class that is nested in another one may be defined after its use
        return {}


def _optional(name: str, value: Any, hint: Any) -> RecordField | None:
    """Return the field of an attribute that is a number or None by its annotation; None for others."""
    kinds = (
        [_NUMBERS.get(each) for each in typing.get_args(hint) if each is not type(None)] if may_be_none(hint) else []
    )
    if len(kinds) != 1 or kinds[0] is None or not (value is None or type(value) is _CLASSES[kinds[0]]):
        return None
    return RecordField(name, kinds[0], optional=True)


def _field(name: str, value: Any, hint: Any, label: str, untyped: str) -> RecordField:
    """Return the field of a member of a new accumulator. Raises Unsupported if its type is unknown."""
    if type(value) in _NUMBERS:
        return RecordField(name, _NUMBERS[type(value)])
    if type(value) is bytearray and 0 < len(value) <= _BYTES_MAX:
        return RecordField(name, "byte", length=len(value))
    kinds = {_NUMBERS.get(type(each)) for each in value} if type(value) is list else set()
    if len(kinds) == 1 and None not in kinds and len(value) <= _ITEMS_MAX:
        return RecordField(name, str(kinds.pop()), length=len(value))
    is_list = isinstance(value, (list, deque))
    contents = None if type(value) not in _SHAPES or (is_list and value) else _holding(value, hint)
    if contents is None:
        remedy = f"{label} is a {type(value).__name__} at first; annotate it"
        remedy += ", as in Counter[str], defaultdict[str, int] or deque[float]" if type(value) in CONTAINERS else ""
        remedy += _AS_IN.get(type(value), "")
        if type(value) is list and len({*map(type, value)}) > 1:
            remedy = (
                f"{label} is a list of several types at first; make it a class with an annotated attribute for each"
            )
        raise Unsupported(f"{untyped}; {remedy}" if value is not None or label != "it" else untyped)
    return RecordField(name, contents.shape, contents=contents)


def _holding(value: Any, hint: Any) -> Contents | None:
    """Return the types in a container from its annotation; None if it has no suitable one."""
    kinds: list[str | None] = [{**_NUMBERS, str: "text"}.get(each) for each in typing.get_args(hint)]
    accumulators: Any = type(value)
    is_list = _SHAPES[accumulators] == "list"
    if typing.get_origin(hint) is not accumulators or None in kinds or (is_list and kinds == ["text"]):
        return None
    kinds += ["int"] if accumulators is Counter else []
    if len(kinds) != (1 if is_list else 2) or kinds[-1] == "text":
        return None
    if accumulators is defaultdict and value.default_factory is not _CLASSES[str(kinds[1])]:
        return None
    parts = [Element((str(each),)) for each in kinds]
    special = accumulators if accumulators in CONTAINERS else None
    return Contents(
        _SHAPES[accumulators], parts[0], None if is_list else parts[1], special, getattr(value, "maxlen", None)
    )
