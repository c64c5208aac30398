"""Compile accumulators whose classes have no annotations: types are inferred from a new accumulator.

The states stay pickles of the accumulators, as without a compiler. Compiled code works on records, from which objects
are created when states are written. It may only store values of the types that the new accumulator has.
"""

from __future__ import annotations

import datetime
import inspect
import itertools
import typing
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.ext.compiler.arena import Contents, Element, containers_within
from foldflight.ext.compiler.datetimes import number_of
from foldflight.ext.compiler.records import RecordField, RecordLayout, is_named_tuple
from foldflight.ext.compiler.uses import Uses
from foldflight.fold.mode import Unsupported
from foldflight.functions.author.spec import Function
from foldflight.functions.types.serializer import may_be_none
from foldflight.functions.types.values import to_python

_TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "byte": pa.uint8(), "text": pa.string(),
    "bytes": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us"), "instant": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"), "duration": pa.duration("us"),
}  # fmt: skip
_CLASSES: Final[dict[str, type]] = {
    "int": int, "float": float, "bool": bool, "text": str, "byte": int, "bytes": bytes, "date": datetime.date,
    "timestamp": datetime.datetime, "instant": datetime.datetime, "time": datetime.time,
    "duration": datetime.timedelta,
}  # fmt: skip
_NUMBERS: Final[dict[Any, str]] = {int: "int", float: "float", bool: "bool"}
# The kinds that an annotation tells. Whether a datetime has a zone is known from the values only.
_ANNOTATED: Final[dict[Any, str]] = {
    **_NUMBERS, str: "text", bytes: "bytes", datetime.date: "date", datetime.timedelta: "duration",
}  # fmt: skip
CONTAINERS: Final = (Counter, OrderedDict, defaultdict, deque, bytearray)
"""Python's containers that are compiled, in addition to list, dict and set."""
_SHAPES: Final[dict[Any, str]] = {
    list: "list", deque: "list", dict: "dict", Counter: "dict", OrderedDict: "dict", defaultdict: "dict", set: "set",
}  # fmt: skip
_CLASSES_OF_SHAPES: Final[dict[str, type]] = {"list": list, "dict": dict, "set": set}
_UTC: Final = pa.scalar(0, pa.timestamp("us", "UTC")).as_py().tzinfo  # the zone of the arguments
_ITEMS_MAX: Final = 64  # items of a list: compiled code copies the whole record at each row
_BYTES_MAX: Final = 1 << 12  # bytes of a bytearray, for the same reason
_PICKLED_BY: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__new__")
_HEAP_TYPE: Final = 1 << 9  # the flag of classes that are defined in Python


@dataclass(frozen=True)
class Part:
    """An object within an accumulator, or the accumulator itself, whose members have fields of the record.

    Args:
        path: What stands before the names of its fields: empty for the accumulator, `x.` for its attribute `x`.
        cls: Its class: an author's, a tuple, `dict` with fixed names as keys, or `list` with items of several types.
        members: Its attributes, values by key, or items, in their order.
        optional: Whether it is a tuple that may be None.
    """

    path: str
    cls: type
    members: tuple[RecordField | Part, ...]
    optional: bool = False

    @property
    def fields(self) -> tuple[RecordField, ...]:
        """The fields of all members, also of objects within them."""
        own = [each.fields if isinstance(each, Part) else (each,) for each in self.members]
        return tuple(field for fields in own for field in fields)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The objects within it, and within these."""
        inner = [each for each in self.members if isinstance(each, Part)]
        return (*inner, *(part for each in inner for part in each.parts))

    @property
    def names(self) -> list[str]:
        """The names of its members."""
        return [_name_of(each) for each in self.members]

    def values(self, instance: Any) -> dict[str, Any] | None:
        """Return the members of an object by name; None if it has another class or other members."""
        if self.optional and instance is None:
            return dict.fromkeys(self.names)
        if type(instance) is not self.cls:
            return None
        if isinstance(instance, (list, tuple)):
            if self.optional and any(each is None for each in instance):
                return None
            return dict(zip(self.names, instance, strict=True)) if len(instance) == len(self.members) else None
        values: dict[str, Any] = instance if isinstance(instance, dict) else vars(instance)
        return values if list(values) == self.names else None

    def make(self, values: dict[str, Any]) -> Any:
        """Return an object with the values of fields by name, as the author's code makes it."""
        if self.optional and values[self.fields[0].name] is None:
            return None
        members = {
            _name_of(each): each.make(values) if isinstance(each, Part) else values[each.name] for each in self.members
        }
        if self.cls is dict:
            return members
        if self.cls is list:
            return [*members.values()]
        if issubclass(self.cls, tuple):
            return self.cls(members.values()) if self.cls is tuple else self.cls(*members.values())
        instance: Any = object.__new__(self.cls)
        instance.__dict__.update(members)
        return instance


def _name_of(member: RecordField | Part) -> str:
    return (member.path[:-1] if isinstance(member, Part) else member.name).rpartition(".")[2]


@dataclass(frozen=True)
class UntypedAccumulators:
    """The types of an accumulator.

    Args:
        root: The accumulator: an object, or the field `value` if it is a number or a container.
        guess: A text for the end of the reason why code cannot be compiled, if the types in a container are a guess.
    """

    root: RecordField | Part
    guess: str = ""

    @property
    def fields(self) -> tuple[RecordField, ...]:
        """The fields of the record."""
        return self.root.fields if isinstance(self.root, Part) else (self.root,)

    @property
    def cls(self) -> type | None:
        """The class of the accumulator if it is an object or a dict with fixed keys."""
        root = self.root
        return root.cls if isinstance(root, Part) and not issubclass(root.cls, tuple) else None

    @property
    def named_tuple(self) -> type | None:
        """The class of the accumulator if it is a NamedTuple."""
        is_tuple = isinstance(self.root, Part) and not self.root.optional and is_named_tuple(self.root.cls)
        return self.root.cls if isinstance(self.root, Part) and is_tuple else None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The objects within the accumulator, and itself if it is a tuple or None."""
        if not isinstance(self.root, Part):
            return ()
        return (self.root,) if self.root.optional else self.root.parts

    @property
    def arrow(self) -> pa.DataType:
        """The type of accumulators as a column: a struct of all fields, whatever objects have them."""
        if not isinstance(self.root, Part):
            return _arrow(self.root)
        return pa.struct([pa.field(each.name, _arrow(each)) for each in self.fields])

    @property
    def layout(self) -> RecordLayout:
        """The layout of accumulators in memory."""
        tuples = tuple((each.path, each.cls) for each in self.parts if each.optional)
        objects = tuple((each.path, each.cls) for each in self.parts if not each.optional)
        return RecordLayout(self.fields, exact=True, parts=objects, tuples=tuples)

    def column(self, accumulators: Sequence[Any]) -> pa.Array | None:
        """Return n accumulators as a column; None if one has other attributes or types, or too large an int.

        Also None if two members are one list or object, which pickle keeps: a column would make two of it.
        """
        rows = [self.members(each) for each in accumulators]
        if not all(row and all(_fits(each, row[each.name]) for each in self.fields) for row in rows):
            return None
        objects = [each for accumulator in accumulators for each in self.objects(accumulator)]
        if len({*map(id, objects)}) < len(objects):
            return None
        try:
            columns = [
                pa.array([_value_for_arrow(each, (row or {})[each.name]) for row in rows], _arrow(each))
                for each in self.fields
            ]
        except (OverflowError, ValueError):  # an int of more than 64 bits, or a str that is not valid UTF-8
            return None
        if not isinstance(self.root, Part):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow))

    def members(self, accumulator: Any) -> dict[str, Any] | None:
        """Return the values of the fields by name; None if an object has another class or other members."""
        values: dict[str, Any] = {}
        waiting: list[tuple[RecordField | Part, Any]] = [(self.root, accumulator)]
        while waiting:
            each, value = waiting.pop()
            if isinstance(each, RecordField):
                values[each.name] = value
                continue
            own = each.values(value)
            if own is None:
                return None
            waiting += zip(each.members, own.values(), strict=True)
        return values

    def objects(self, accumulator: Any) -> list[Any]:
        """Return the objects and containers within an accumulator, and itself if it is one: all that may be shared."""
        objects_within: list[Any] = []
        waiting: list[tuple[RecordField | Part, Any]] = [(self.root, accumulator)]
        while waiting:
            each, value = waiting.pop()
            is_object = isinstance(each, Part) and not issubclass(each.cls, tuple)
            if is_object or (isinstance(each, RecordField) and each.is_container):
                objects_within.append(value)
            if isinstance(each, RecordField) and each.contents is not None:
                objects_within += containers_within(each.contents, value)
            own = each.values(value) if isinstance(each, Part) else None
            waiting += () if own is None or not isinstance(each, Part) else zip(each.members, own.values(), strict=True)
        return objects_within

    def accumulators(self, column: pa.Array) -> list[Any]:
        """Convert a column to n accumulators with the types that the author's code creates."""
        columns = [column] if not isinstance(self.root, Part) else column.flatten()
        values = [_values_from_arrow(field, each) for field, each in zip(self.fields, columns, strict=True)]
        if not isinstance(self.root, Part):
            return values[0]
        names = [each.name for each in self.fields]
        return [self.root.make(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)]


def _arrow(field: RecordField) -> pa.DataType:
    """Return the type of a field as a column."""
    if field.contents is None:
        return pa.list_(_TYPES[field.kind]) if field.length else _TYPES[field.kind]
    return _arrow_of_contents(field.contents)


def _arrow_of_contents(contents: Contents) -> pa.DataType:
    key = _arrow_of(contents.key)
    return pa.list_(key) if contents.value is None else pa.map_(key, _arrow_of(contents.value))


def _arrow_of(part: Element) -> pa.DataType:
    if part.nested is not None:
        return _arrow_of_contents(part.nested)
    if not part.is_tuple:
        return _TYPES[part.kinds[0]]
    return pa.struct([(f"f{index}", _TYPES[kind]) for index, kind in enumerate(part.kinds)])


def _fits(field: RecordField, value: Any) -> bool:
    """Return whether a value survives the conversion to a record and back unchanged."""
    if field.contents is None and not field.length:
        return (field.optional and value is None) or _are_of(field.kind, (value,))
    if field.contents is None:
        made_by: Any = bytearray if field.kind == "byte" else list
        return type(value) is made_by and len(value) == field.length and _are_of(field.kind, value)
    return _holds(field.contents, value)


def _holds(contents: Contents, value: Any) -> bool:
    """Return whether a value is a container of a type, and has only what the type keeps."""
    cls: Any = contents.cls or _CLASSES_OF_SHAPES[contents.shape]
    if type(value) is not cls or getattr(value, "__dict__", None) or getattr(value, "maxlen", None) != contents.limit:
        return False
    if contents.value is None:
        return _are_elements(contents.key, value)
    if contents.cls is defaultdict and value.default_factory is not _factory_of(contents.value):
        return False
    return _are_elements(contents.key, value) and _are_elements(contents.value, value.values())


def _factory_of(part: Element) -> Any:
    """Return the class whose call makes the first value of a key in a defaultdict; None for values that have none."""
    if part.nested is not None:
        return part.nested.cls or _CLASSES_OF_SHAPES[part.nested.shape]
    return None if part.is_tuple else _CLASSES[part.kinds[0]]


def _are_of(kind: str, values: Iterable[Any]) -> bool:
    """Return whether values have the class of a kind, and nothing that the kind does not keep."""
    if not {*map(type, values)} <= {_CLASSES[kind]}:
        return False
    zone = _UTC if kind == "instant" else None
    return kind not in ("timestamp", "instant", "time") or all(each.tzinfo is zone and not each.fold for each in values)


def _are_elements(part: Element, values: Collection[Any]) -> bool:
    if part.nested is not None:
        return all(_holds(part.nested, each) for each in values)
    if not part.is_tuple:
        return _are_of(part.kinds[0], values)
    if not all(type(each) is (part.cls or tuple) and len(each) == len(part.kinds) for each in values):
        return False
    return all(_are_of(kind, [each[index] for each in values]) for index, kind in enumerate(part.kinds))


def _value_for_arrow(field: RecordField, value: Any) -> Any:
    """Convert the value of a field for Arrow."""
    if field.contents is None:
        return list(value) if field.length else value
    return _contents_for_arrow(field.contents, value)


def _contents_for_arrow(contents: Contents, value: Any) -> list[Any]:
    if contents.value is None:
        return [_element_for_arrow(contents.key, each) for each in value]
    parts = contents.key, contents.value
    return [tuple(map(_element_for_arrow, parts, item)) for item in value.items()]


def _element_for_arrow(part: Element, value: Any) -> Any:
    if part.nested is not None:
        return _contents_for_arrow(part.nested, value)
    return {f"f{index}": each for index, each in enumerate(value)} if part.is_tuple else value


def _values_from_arrow(field: RecordField, column: pa.Array) -> list[Any]:
    """Convert a column to n values of a field."""
    if field.contents is None:
        values = to_python(column)
        return [bytearray(value) for value in values] if field.kind == "byte" else values
    return _containers_from_arrow(field.contents, column)


def _containers_from_arrow(contents: Contents, column: pa.Array) -> list[Any]:
    """Convert a column to n containers."""
    ends = column.offsets.to_pylist()
    is_map = contents.value is not None
    keys = _elements_from_arrow(contents.key, column.keys if is_map else column.values)
    rows = [keys[first:end] for first, end in itertools.pairwise(ends)]
    if contents.value is None:
        if contents.cls is deque:
            return [deque(row, contents.limit) for row in rows]
        return [set(row) for row in rows] if contents.shape == "set" else rows
    items = _elements_from_arrow(contents.value, column.items)
    dicts = [
        dict(zip(row, items[first:end], strict=True))
        for row, (first, end) in zip(rows, itertools.pairwise(ends), strict=True)
    ]
    if contents.cls is defaultdict:
        return [defaultdict(_factory_of(contents.value), each) for each in dicts]
    return dicts if contents.cls is None else [contents.cls(each) for each in dicts]


def _elements_from_arrow(part: Element, values: pa.Array) -> list[Any]:
    if part.nested is not None:
        return _containers_from_arrow(part.nested, values)
    if not part.is_tuple:
        return to_python(values)
    rows = zip(*(to_python(values.field(index)) for index in range(len(part.kinds))), strict=True)
    return list(rows) if part.cls is None else list(itertools.starmap(part.cls, rows))


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
        module_names = create_accumulator.__globals__
        candidate_classes = [
            module_names[name]
            for name in create_accumulator.__code__.co_names
            if isinstance(module_names.get(name), type)
        ]
        candidate_classes = [
            each for each in candidate_classes if each not in CONTAINERS and each.__flags__ & _HEAP_TYPE
        ]
        cls = candidate_classes[0] if len(candidate_classes) == 1 else None
    if cls in CONTAINERS:
        return None
    is_own = cls is None or is_named_tuple(cls) or all(each.__flags__ & _HEAP_TYPE for each in cls.__mro__[:-1])
    if not is_own:
        raise Unsupported(untyped_reason(function))
    return cls


def inferred_types(
    cls: type | None,
    fresh: Any,
    untyped_text: str,
    hints: Mapping[str, Any],
    uses_of: Callable[[Part | RecordField, Mapping[str, type]], Uses],
) -> UntypedAccumulators:
    """Return the types of a new accumulator.

    Args:
        cls: The expected class; None for a number, a tuple, a dict or a container.
        fresh: The new accumulator.
        untyped_text: The reason of `untyped_reason`.
        hints: The annotations of its attributes, or a container's annotation as `value`.
        uses_of: Returns what the author's code stores in the fields of an accumulator of which not all types are known,
            and of which defaultdicts make containers of known classes: the types are then guesses, and compiling
            refuses code that stores something else.

    Raises:
        Unsupported: One of the types is not certain.
    """
    if cls is not None and type(fresh) is not cls:
        raise Unsupported(untyped_text)
    inference = _Inference(untyped_text, hints)
    root = inference.member("value", fresh)
    for _ in range(_ROUNDS_MAX if inference.missing else 0):
        before = set(inference.missing)
        inference = _Inference(untyped_text, hints, uses_of(root, inference.made))
        root = inference.member("value", fresh)
        if set(inference.missing) == before:
            break
    if inference.missing:
        raise next(iter(inference.missing.values()))
    return UntypedAccumulators(root, "".join(inference.guesses))


_ROUNDS_MAX: Final = 3
_NESTING: Final = ("container", "list", "set", "dict", "Counter", "defaultdict", "deque", "OrderedDict")
NOT_NESTED: Final = "containers in containers are compiled as values of dicts only; use a dict with tuples as keys"
"""The rest of the reason for a container in a container that is no dict."""
NOT_CERTAIN: Final = "what that holds is not certain; annotate it, as in dict[str, list[float]]"
"""The rest of the reason for a dict of containers."""
NOT_REPLACED: Final = "objects that are replaced are not compiled; have its members as attributes that may be None"
"""The rest of the reason for an object that is None at first."""
NOT_OBJECTS: Final = "objects in containers are not compiled; put plain tuples into it"
"""The rest of the reason for objects in a container."""
_AS_IN: Final[dict[Any, str]] = {
    list: ", as in list[float]",
    dict: ", as in dict[str, int]",
    set: ", as in set[str]",
    **dict.fromkeys(CONTAINERS, ", as in Counter[str], defaultdict[str, int] or deque[float]"),
}


class _Inference:
    """Finds the types of the members of a new accumulator.

    Attributes:
        missing: By path, why a type is unknown.
        guesses: Texts for the end of a reason that a guess may have caused.
        made: By path, the class of the containers that a defaultdict makes.
    """

    def __init__(self, untyped_text: str, hints: Mapping[str, Any], uses: Uses | None = None) -> None:
        self.untyped = untyped_text
        self.hints = hints
        self.uses = Uses() if uses is None else uses
        self.missing: dict[str, Unsupported] = {}
        self.made: dict[str, type] = {}
        self.guesses: list[str] = []

    def member(self, path: str, value: Any, hint: Any = None, label: str = "it") -> RecordField | Part:
        """Return the field or the part of one member; `path` is `value` for the accumulator itself."""
        is_root = path == "value" and label == "it"
        before = "" if is_root else f"{path}."
        hint = self.hints.get("value") if is_root else hint
        if _is_record(value):
            return self._part(before, dict, value, {})
        if type(value) is list and len({*map(type, value)}) > 1:
            return self._part(before, list, {f"f{index}": each for index, each in enumerate(value)}, {})
        if isinstance(value, tuple) and value and is_root and (type(value) is tuple or is_named_tuple(type(value))):
            names = getattr(value, "_fields", [f"f{index}" for index in range(len(value))])
            return self._part(before, type(value), dict(zip(names, value, strict=True)), self.hints)
        cls = type(value)
        if value is None:
            annotated = None if optional_tuple(hint) is None else _element_of_annotation(_without_none(hint))
            element = annotated or self.uses.tuple_of(path)
            if element is not None:
                names = getattr(element.cls, "_fields", [f"f{index}" for index in range(len(element.kinds))])
                members = [
                    RecordField(f"{path}.{name}", kind, optional=True)
                    for name, kind in zip(names, element.kinds, strict=True)
                ]
                return Part(f"{path}.", element.cls or tuple, tuple(members), optional=True)
        if is_object(value):
            self._check_object(cls, value)
            member_hints = self.hints if is_root and self.hints else hints_of(cls)
            return self._part(before, cls, vars(value), member_hints)
        return self._field(path, value, hint, label)

    def _check_object(self, cls: type, value: Any) -> None:
        if any("__slots__" in vars(each) for each in cls.__mro__[:-1]) or not all(
            each.__flags__ & _HEAP_TYPE for each in cls.__mro__[:-1]
        ):
            raise Unsupported(self.untyped)
        if any(getattr(cls, name, None) is not getattr(object, name, None) for name in _PICKLED_BY):
            raise Unsupported(f"{self.untyped}; {cls.__name__} defines how it is pickled")
        for name in vars(value):
            if inspect.isdatadescriptor(inspect.getattr_static(cls, name, None)):
                raise Unsupported(f"{self.untyped}; {cls.__name__}.{name} is a property")

    def _part(self, before: str, cls: type, values: Mapping[str, Any], hints: Mapping[str, Any]) -> Part:
        is_named = cls is dict or (issubclass(cls, (list, tuple)) and not is_named_tuple(cls))
        members = [
            self.member(
                f"{before}{name}",
                each,
                hints.get(name),
                f"the value of {name.removeprefix('f' * (cls is not dict))}" if is_named else f"{cls.__name__}.{name}",
            )
            for name, each in values.items()
        ]
        return Part(before, cls, tuple(members))

    def _field(self, path: str, value: Any, hint: Any, label: str) -> RecordField:
        """Return the field of a member of a new accumulator."""
        own, cls = _plain_kind(value), type(value)
        if own is not None:
            return RecordField(path, own, optional=may_be_none(hint) and _annotated_kind(hint) == own)
        if value is None and label != "it":
            kind = _annotated_kind(hint) or self.uses.kind(path)
            if kind is not None:
                return RecordField(path, kind, optional=True)
        if type(value) is bytearray and 0 < len(value) <= _BYTES_MAX:
            return RecordField(path, "byte", length=len(value))
        kinds = {_NUMBERS.get(type(each)) for each in value} if type(value) is list else set()
        if len(kinds) == 1 and None not in kinds and len(value) <= _ITEMS_MAX:
            return RecordField(path, str(kinds.pop()), length=len(value))
        contents = self._contents(path, value, hint, label)
        if contents is not None:
            return RecordField(path, contents.shape, contents=contents)
        remedy = f"{label} is a {type(value).__name__} at first; annotate it{_AS_IN.get(cls, '')}"
        if value is None:
            remedy = f"{label} is None at first; annotate it, as in float | None"
        if label.startswith("the value of "):
            what = "None" if value is None else f"a {cls.__name__}"
            remedy = f"{label} is {what} at first; make the accumulator a class with annotated attributes"
        if label == "it" and value is None:
            remedy = "it is None at first; return an accumulator whose members are None instead"
        held, made_by = self.uses.objects.get(path, ""), getattr(value, "default_factory", None)
        if cls is defaultdict and made_by not in _NUMBERS:
            held = getattr(made_by, "__name__", "").replace("<lambda>", "") or "container"
        if value is None and held:
            remedy = f"{label} is None at first, and then a {held}; {NOT_REPLACED}"
        elif held in _NESTING and cls in _SHAPES:
            what = f"a {held} for each key; {NOT_CERTAIN}" if _SHAPES[cls] == "dict" else f"a {held}; {NOT_NESTED}"
            remedy = f"{label} is a {cls.__name__} that holds {what}"
        elif held and cls in _SHAPES:
            remedy = f"{label} is a {cls.__name__} that holds a {held}; {NOT_OBJECTS}"
        why = f"{self.untyped}; {remedy}"
        self.missing[path] = Unsupported(why)
        return RecordField(path, _SHAPES.get(cls, ""), optional=value is None)

    def _contents(self, path: str, value: Any, hint: Any, label: str) -> Contents | None:
        """Return the types in a container: by its annotation, its items, or the values that code puts into it."""
        cls: Any = type(value)
        shape = _SHAPES.get(cls)
        if shape is None or (shape == "list" and value):
            return None
        annotated_elements = _parts_of(cls, hint)
        put_elements = self.uses.elements(path, shape == "dict")
        found_elements = [_element_of(value)] if shape != "dict" else [_element_of(value), _element_of(value.values())]
        if cls is Counter:
            found_elements[1:] = [Element(("int",))]
        if cls is defaultdict and (made_by := _NUMBERS.get(value.default_factory)) is not None:
            found_elements[1:] = [Element((made_by,))]
        if cls is defaultdict and value.default_factory in _SHAPES:
            self.made[path] = value.default_factory
        if value and cls is dict and hint is None and None not in found_elements:
            annotated_elements = found_elements
        merged_elements = [
            one or two or three
            for one, two, three in zip(annotated_elements, found_elements, put_elements, strict=True)
        ]
        parts = [each for each in merged_elements if each is not None]
        if len(parts) < len(merged_elements):
            return None
        if cls is defaultdict and value.default_factory is not _factory_of(parts[1]):
            return None
        if parts[-1].nested is not None:
            check_nested(parts[-1].nested)
        if None in annotated_elements and not value:
            names = ", ".join(map(_name_of_element, parts[: 1 if cls is Counter else 2]))
            name = cls.__name__
            self.guesses.append(f"; {label} is a {name} at first, and taken for {name}[{names}] unless you annotate it")
        special = cls if cls in CONTAINERS else None
        return Contents(shape, parts[0], parts[1] if shape == "dict" else None, special, getattr(value, "maxlen", None))


def is_object(value: Any) -> bool:
    """Return whether a value is an object of an author's class, with attributes in a dict."""
    return (
        bool(type(value).__flags__ & _HEAP_TYPE)
        and type(value) not in CONTAINERS
        and hasattr(value, "__dict__")
        and not isinstance(value, tuple)
    )


def _is_record(value: Any) -> bool:
    """Return whether a dict has the names of values of several types, as an object has attributes."""
    if type(value) is not dict or not value or not all(type(key) is str and key.isidentifier() for key in value):
        return False
    return len({*map(type, value.values())}) > 1 or type(next(iter(value.values()))) not in _NUMBERS


def _plain_kind(value: Any) -> str | None:
    """Return the kind of a number, text, date or time."""
    own: Any = type(value)
    kind = _NUMBERS.get(own) or {str: "text", bytes: "bytes"}.get(own)
    moment = number_of(value) if kind is None else None
    return kind if moment is None else moment[0]


def _annotated_kind(hint: Any) -> str | None:
    """Return the kind of an annotation, also with None."""
    actual = _without_none(hint)
    return _ANNOTATED.get(actual) if isinstance(actual, type) else None


def _parts_of(cls: type, hint: Any) -> list[Element | None]:
    """Return the elements of a container by its annotation, each None if it is unknown."""
    own = typing.get_origin(hint)
    actual = [*typing.get_args(hint)] if own is cls or (own in (dict, list, set) and issubclass(cls, own)) else []
    actual += [int] if cls is Counter and actual else []
    parts: list[Element | None] = []
    for place, each in enumerate(actual):
        inner: Any = typing.get_origin(each)
        if place == 1 and inner in _SHAPES and inner is not OrderedDict:
            parts.append(nested_element(inner, _parts_of(inner, each)))
            continue
        parts.append(_element_of_annotation(each))
    count = 2 if _SHAPES[cls] == "dict" else 1
    return parts if len(parts) == count else [None] * count


def _element_of_annotation(hint: Any) -> Element | None:
    """Return the element that an annotation describes; None if its kinds are not known."""
    cls = hint if is_named_tuple(hint) else None
    is_tuple = cls is not None or typing.get_origin(hint) is tuple
    members = [*hints_of(cls).values()] if cls is not None else typing.get_args(hint) if is_tuple else [hint]
    kinds = [_ANNOTATED.get(member) for member in members]
    if None in kinds or not kinds or (cls is not None and len(kinds) < len(getattr(cls, "_fields", ()))):
        return None
    return Element(tuple(map(str, kinds)), is_tuple=is_tuple, cls=cls)


def _element_of(values: Iterable[Any]) -> Element | None:
    """Return the element of which all values are; None if there is none, or none that is certain."""
    elements = set()
    for value in values:
        cls: Any = type(value) if is_named_tuple(type(value)) else None
        is_tuple = cls is not None or type(value) is tuple
        members: Any = value if is_tuple else (value,)
        kinds = tuple(_plain_kind(each) or "" for each in members)
        elements.add(Element(kinds, is_tuple=is_tuple, cls=cls) if all(kinds) else None)
    return elements.pop() if len(elements) == 1 else None


def nested_element(cls: Any, parts: Sequence[Element | None]) -> Element | None:
    """Return the element of dicts that hold containers of a class with these parts; None if one is unknown."""
    known_parts = [each for each in parts if each is not None]
    if len(known_parts) < len(parts):
        return None
    shape, special = _SHAPES[cls], cls if cls in CONTAINERS else None
    return Element((shape,), nested=Contents(shape, known_parts[0], (*known_parts, None)[1], special))


def check_nested(contents: Contents) -> None:
    """Raise Unsupported for a container within a dict that is found by floats, one of which may be NaN."""
    if contents.shape != "list" and "float" in contents.key.kinds:
        raise Unsupported(
            f"it holds containers of the type {contents}, whose keys may be NaN; use whole numbers or texts"
        )
    if contents.nested is not None:
        check_nested(contents.nested)


def _name_of_element(part: Element) -> str:
    if part.nested is not None:
        own = part.nested
        inner = (own.key,) if own.value is None or own.cls is Counter else (own.key, own.value)
        return f"{own.name}[{', '.join(map(_name_of_element, inner))}]"
    if part.cls is not None:
        return part.cls.__name__
    names = ", ".join("str" if kind == "text" else kind for kind in part.kinds)
    return f"tuple[{names}]" if part.is_tuple else names


def optional_tuple(hint: Any) -> type | None:
    """Return the class of the tuple in an annotation such as `tuple[int, str] | None`, or None for any other.

    A tuple of any length is another annotation, as is one whose members may be None.
    """
    actual = _without_none(hint)
    is_named = is_named_tuple(actual)
    if not may_be_none(hint) or not (is_named or typing.get_origin(actual) is tuple):
        return None
    members = hints_of(actual).values() if is_named else typing.get_args(actual)
    if not members or Ellipsis in members or any(map(may_be_none, members)):
        return None
    return actual if is_named else tuple


def _without_none(hint: Any) -> Any:
    """Return `X` of an annotation `X | None`; None if it has several types, and any other annotation as it is."""
    if not may_be_none(hint):
        return hint
    actual = [each for each in typing.get_args(hint) if each is not type(None)]
    return actual[0] if len(actual) == 1 else None


def hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; empty if they cannot be resolved."""
    try:
        return typing.get_type_hints(cls)
    except (NameError, AttributeError):  # a class that is nested in another one may be defined after its use
        return {}
