"""Records in memory that compiled code uses as objects: accumulators, and the author's instance."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_untracked
from numba.core.typing import signature
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, lower_setattr_generic, register_model

from foldflight.ext.compiler.arena import FORMATS, HEADER, Contents
from foldflight.ext.compiler.containers import ContainerType
from foldflight.ext.compiler.generated import llvm_function
from foldflight.ext.compiler.value_types import (
    KINDS,
    IteratorType,
    class_of,
    describe_type,
    exactly,
    inner_kind,
    lower_iterators,
)
from foldflight.ext.compiler.vectors import VectorType
from foldflight.fold.aggregate.record_layout import record_dtype
from foldflight.fold.machine_values import TEXTS
from foldflight.fold.mode import Unsupported

_number: Final = itertools.count()


@dataclass(frozen=True)
class RecordField:
    """One attribute: its name and kind, and whether it may be None.

    Args:
        name: Its name.
        kind: The kind of its value, or of the items of a list of fixed length.
        optional: Whether it may be None.
        length: The length of a list of fixed length; else 0.
        contents: The types in a growing list, a dict or a set, whose `kind` is `list`, `dict` or `set`; else None.
        vector: The NumPy format of the items of a vector, which has `length` items; else empty.
    """

    name: str
    kind: str
    optional: bool = False
    length: int = 0
    contents: Contents | None = None
    vector: str = ""

    @property
    def is_container(self) -> bool:
        """Whether it is a list, dict, set or bytearray, which other objects may share."""
        return self.length > 0 or self.contents is not None

    @property
    def refers_to_texts(self) -> bool:
        """Whether it refers to str or bytes, whose content is in the buffers of the rows."""
        return self.kind in TEXTS if self.contents is None else self.contents.has_texts

    @property
    def format(self) -> str | tuple[str, int]:
        """The NumPy format of the attribute in a record."""
        if self.contents is not None:
            return "i8", HEADER
        return (self.vector or FORMATS[self.kind], self.length) if self.length else FORMATS[self.kind]

    @property
    def valid(self) -> str:
        """The name of the member that is true if the value is not None."""
        return f"{self.name}?"


@dataclass(frozen=True)
class RecordLayout:
    """The members of a record, in order of decreasing size.

    Args:
        fields: The attributes.
        exact: Whether storing an int in a float member is an error, because states would differ.
        parts: The objects within the object, as pairs: what stands before the names of their fields, and their class.
        tuples: The tuples within it, in the same form. Each may be None, and then all its fields are.
    """

    fields: tuple[RecordField, ...]
    exact: bool = False
    parts: tuple[tuple[str, type], ...] = ()
    tuples: tuple[tuple[str, type], ...] = ()

    @property
    def tuple_classes(self) -> tuple[Any, ...]:
        """The classes of the NamedTuples that attributes are or hold."""
        held = (cls for each in self.fields if each.contents is not None for cls in each.contents.tuple_classes)
        return (*(cls for _, cls in self.tuples if cls is not tuple), *held)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the record. Its size is a multiple of eight bytes."""
        return record_dtype(self.fields)

    def offset(self, member: str) -> int:
        """Return the offset of a member in the record, in bytes."""
        members = self.dtype.fields
        assert members is not None
        return members[member][1]

    def within(self, path: str) -> list[RecordField]:
        """Return the fields whose names begin with a path, in their order."""
        return [field for field in self.fields if field.name.startswith(path)]

    def value_of(self, accumulator: Any, field: RecordField) -> Any:
        """Return the value of a field of an object. It is None for the members of a tuple that is None."""
        path = field.name[: field.name.rfind(".") + 1]
        if path not in dict(self.tuples):
            return operator.attrgetter(field.name)(accumulator)
        held = operator.attrgetter(path[:-1])(accumulator)
        return None if held is None else held[self.within(path).index(field)]


class Reference(types.Type):
    """The numba type of a pointer to a record, which represents an object.

    Args:
        cls: The class of the object, with its methods.
        layout: The attributes.
        changeable: Whether code may assign them.
        path: What stands before the names of its fields if it is an object within another one; the pointer is the same.
        lent: Whether it is another accumulator in merge, which is not used afterwards.

    Attributes:
        fields: The attributes that are values.
        parts: The attributes that are objects.
        tuples: The types of the attributes that are tuples or None, and their fields.
    """

    def __init__(
        self, cls: type, layout: RecordLayout, *, changeable: bool, path: str = "", lent: bool = False
    ) -> None:
        self.cls = cls
        self.layout = layout
        self.changeable = changeable
        self.lent = lent
        names = {field.name.removeprefix(path): field for field in layout.fields if field.name.startswith(path)}
        self.fields = {name: field for name, field in names.items() if "." not in name}
        inner = {each.removeprefix(path)[:-1]: own for each, own in layout.parts if each.startswith(path)}
        self.parts = {
            name: Reference(own, layout, changeable=changeable, path=f"{path}{name}.", lent=lent)
            for name, own in inner.items()
            if name and "." not in name
        }
        tuples = {each.removeprefix(path)[:-1]: (each, own) for each, own in layout.tuples if each.startswith(path)}
        self.tuples = {
            name: (types.Optional(_tuple_type(layout.within(each), own)), layout.within(each))
            for name, (each, own) in tuples.items()
            if "." not in name
        }
        super().__init__(name=f"Reference({cls.__qualname__}, {next(_number)})")

    @property
    def count(self) -> int:
        """The number of its members."""
        return len(self.fields) + len(self.parts) + len(self.tuples)

    @property
    def is_plain(self) -> bool:
        """Whether the object is a dict or a list, whose members have keys or indexes instead of names."""
        return self.cls in (dict, list)

    def name_of(self, index: Any) -> str | None:
        """Return the name of the member with a constant key or index of a dict or list; None if it is none."""
        if self.cls is dict:
            return index if type(index) is str else None
        is_known = type(index) is int and -self.count <= index < self.count
        return f"f{index % self.count}" if is_known else None

    def static(self, attribute: str) -> Any:
        """Return the attribute of the class, unbound. Raises Unsupported if it does not exist."""
        try:
            return inspect.getattr_static(self.cls, attribute)
        except AttributeError:
            raise Unsupported(f"it uses {self.cls.__name__}.{attribute}, which is not a number or a method") from None

    def type_of(self, attribute: str) -> types.Type | None:
        """Return the type of an attribute in the record; None if the record does not have it."""
        if attribute in self.tuples:
            return self.tuples[attribute][0]
        field = self.fields.get(attribute)
        if field is None:
            return self.parts.get(attribute)
        if field.contents is not None:
            return ContainerType(field.contents, changeable=self.changeable, lent=self.lent)
        if field.vector:
            return VectorType(field.length, field.vector, changeable=self.changeable)
        if field.length:
            return Items(field.kind, field.length, changeable=self.changeable)
        return types.Optional(KINDS[field.kind]) if field.optional else KINDS[field.kind]

    @property
    def tuple_class(self) -> type | None:
        """The class of the object if it is a NamedTuple."""
        return self.cls if is_named_tuple(self.cls) else None

    @property
    def as_tuple(self) -> types.BaseTuple:
        """The type of the record as a tuple."""
        return types.BaseTuple.from_types([self.type_of(name) for name in self.fields], self.tuple_class)


def _tuple_type(fields: Sequence[RecordField], cls: type) -> types.BaseTuple:
    """Return the numba type of a tuple with the values of fields."""
    return types.BaseTuple.from_types([KINDS[each.kind] for each in fields], cls if is_named_tuple(cls) else None)


def is_named_tuple(cls: Any) -> bool:
    """Return whether a class is a NamedTuple or a namedtuple, which behaves as a tuple.

    Its construction cannot be overridden, but it may define how it is compared, or whether it is true.
    """
    if not (isinstance(cls, type) and cls.__bases__ == (tuple,) and hasattr(cls, "_field_defaults")):
        return False
    return not any(_is_special(name) and callable(each) for name, each in vars(cls).items())


GENERATED: Final = frozenset(vars(NamedTuple("_Empty", [])))
"""The attributes that each NamedTuple has."""


def _is_special(name: str) -> bool:
    """Return whether Python calls the attribute of a NamedTuple of this name, and the author has defined it."""
    return name.startswith("__") and name not in GENERATED and not name.startswith("__annot")


class Items(types.IterableType):
    """The numba type of a pointer to the items of a list of fixed length in a record.

    Args:
        kind: The kind of the items; `byte` for the items of a bytearray, which are ints.
        length: The number of items.
        changeable: Whether code may assign them.
    """

    def __init__(self, kind: str, length: int, *, changeable: bool) -> None:
        self.kind = kind
        self.item = types.int64 if kind == "byte" else KINDS[kind]
        self.length = length
        self.changeable = changeable
        super().__init__(name=f"Items({kind}, {length}, {changeable})")

    @property
    def iterator_type(self) -> types.Type:
        return IteratorType(self, self.item)


register_model(Reference)(models.OpaqueModel)
register_model(Items)(models.OpaqueModel)


def _item_address(context: Any, builder: Any, items: Items, pointer: Any, index: Any) -> Any:
    width = llvm.IntType(8) if items.kind == "byte" else context.get_data_type(items.item)
    size = llvm.Constant(llvm.IntType(64), np.dtype(FORMATS[items.kind]).itemsize)
    return builder.bitcast(builder.gep(pointer, [builder.mul(index, size)]), width.as_pointer())


@intrinsic
def load_item(typing: Any, items: Any, index: Any) -> Any:
    """Return the item at an index, which must be in range."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        data = builder.load(_item_address(context, builder, items, *arguments))
        if items.kind == "byte":
            return builder.zext(data, llvm.IntType(64))
        return context.data_model_manager[items.item].from_data(builder, data)

    return signature(items.item, items, types.int64), generate


def _steps(items: Items) -> tuple[Any, Any]:
    length = items.length
    return lambda items, cast, last: last + 1 if last + 1 < length else -1, lambda items, index: load_item(items, index)


lower_iterators(Items, _steps)


@intrinsic
def store_item(typing: Any, items: Any, index: Any, value: Any) -> Any:
    """Store a value of the items' kind at an index, which must be in range."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        if items.kind == "byte":
            data = builder.trunc(arguments[2], llvm.IntType(8))
        else:
            data = context.data_model_manager[items.item].as_data(builder, arguments[2])
        builder.store(data, _item_address(context, builder, items, *arguments[:2]))
        return context.get_dummy_value()

    return signature(types.void, items, types.int64, items.item), generate


@infer_getattr
class _Attributes(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Reference, attribute: str) -> types.Type | None:
        return reference.type_of(attribute)


def _member_address(builder: Any, pointer: Any, layout: RecordLayout, member: str, width: Any) -> Any:
    address = builder.gep(pointer, [llvm.Constant(llvm.IntType(64), layout.offset(member))])
    return builder.bitcast(address, width.as_pointer())


@lower_getattr_generic(Reference)
def _load(context: Any, builder: Any, reference: Reference, pointer: Any, attribute: str) -> Any:
    if attribute in reference.parts:
        return pointer
    if attribute in reference.tuples:
        return _load_tuple(context, builder, reference, pointer, *reference.tuples[attribute])
    field = reference.fields[attribute]
    if field.length or field.contents is not None:
        return _member_address(builder, pointer, reference.layout, field.name, llvm.IntType(8))
    width = context.get_data_type(KINDS[field.kind])
    value = context.data_model_manager[KINDS[field.kind]].from_data(
        builder, builder.load(_member_address(builder, pointer, reference.layout, field.name, width))
    )
    result = reference.type_of(attribute)
    if field.optional:
        byte = llvm.IntType(8)
        valid = builder.load(_member_address(builder, pointer, reference.layout, field.valid, byte))
        helper = context.make_helper(builder, result)
        helper.data = value
        helper.valid = builder.icmp_unsigned("!=", valid, byte(0))
        value = helper._getvalue()
    return impl_ret_untracked(context, builder, result, value)


def _load_tuple(
    context: Any, builder: Any, reference: Reference, pointer: Any, type_: types.Optional, fields: Sequence[RecordField]
) -> Any:
    """Return the tuple that the values of fields are, or None."""
    values = []
    for field in fields:
        model, width = context.data_model_manager[KINDS[field.kind]], context.get_data_type(KINDS[field.kind])
        data = builder.load(_member_address(builder, pointer, reference.layout, field.name, width))
        values.append(model.from_data(builder, data))
    byte = llvm.IntType(8)
    valid = builder.load(_member_address(builder, pointer, reference.layout, fields[0].valid, byte))
    helper = context.make_helper(builder, type_)
    helper.data = context.make_tuple(builder, type_.type, values)
    helper.valid = builder.icmp_unsigned("!=", valid, byte(0))
    return helper._getvalue()


@intrinsic(prefer_literal=True)
def put_tuple(typing: Any, record: Any, name: Any, value: Any) -> Any:
    """Store a tuple or None in the attribute of a constant name."""
    if not isinstance(name, types.StringLiteral):
        return None
    type_, fields = record.tuples[name.literal_value]
    inner = value.type if isinstance(value, types.Optional) else value
    is_tuple = isinstance(inner, types.BaseTuple) and class_of(inner) is class_of(type_.type)
    if inner != types.none and not (is_tuple and [*map(inner_kind, inner)] == [each.kind for each in fields]):
        expected = ", ".join(each.kind for each in fields)
        raise Unsupported(f"it assigns {describe_type(inner)} to {name.literal_value}, a tuple of {expected} or None")

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer, _, actual = arguments
        byte, valid = llvm.IntType(8), llvm.IntType(1)(inner != types.none)
        if isinstance(value, types.Optional):
            optional = context.make_helper(builder, value, value=actual)
            actual, valid = optional.data, optional.valid
        for field in fields:
            address = _member_address(builder, pointer, record.layout, field.valid, byte)
            builder.store(builder.zext(valid, byte), address)
        with builder.if_then(valid):
            for index, field in enumerate(fields if inner != types.none else ()):
                kind, item = KINDS[field.kind], builder.extract_value(actual, index)
                data = context.data_model_manager[kind].as_data(
                    builder, context.cast(builder, item, inner[index], kind)
                )
                address = _member_address(builder, pointer, record.layout, field.name, context.get_data_type(kind))
                builder.store(data, address)
        return context.get_dummy_value()

    return signature(types.void, record, name, value), generate


@lower_setattr_generic(Reference)
def _write(context: Any, builder: Any, sig: Any, arguments: Any, attribute: str) -> None:
    reference, value_type = sig.args
    pointer, value = arguments
    field = reference.fields[attribute]
    result = reference.type_of(attribute)
    value = context.cast(builder, value, value_type, result)
    if field.optional:
        optional = context.make_helper(builder, result, value=value)
        valid = builder.zext(optional.valid, llvm.IntType(8))
        builder.store(valid, _member_address(builder, pointer, reference.layout, field.valid, llvm.IntType(8)))
        value = optional.data
    width = context.get_data_type(KINDS[field.kind])
    data = context.data_model_manager[KINDS[field.kind]].as_data(builder, value)
    builder.store(data, _member_address(builder, pointer, reference.layout, field.name, width))


@intrinsic
def load_members(typing: Any, record: Any) -> Any:
    """Return the members of a record as a tuple, in the order of its layout."""
    names = list(record.fields)
    result = record.as_tuple

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        values = [_load(context, builder, record, arguments[0], name) for name in names]
        return context.make_tuple(builder, result, values)

    return signature(result, record), generate


@intrinsic
def store_members(typing: Any, record: Any, values: Any) -> Any:
    """Store a tuple with a value for each member of a record, in the order of its layout."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        pointer, actual = arguments
        for index, name in enumerate(record.fields):
            value = builder.extract_value(actual, index)
            _write(context, builder, signature(types.void, record, values[index]), (pointer, value), name)
        return context.get_dummy_value()

    return signature(types.void, record, values), generate


@intrinsic
def copy(typing: Any, into: Any, source: Any) -> Any:
    """Overwrite the items of a list, or the record of an object, with another's of the same type."""
    is_record = isinstance(into, Reference)
    size = into.layout.dtype.itemsize if is_record else np.dtype(FORMATS[into.kind]).itemsize * into.length
    move = cgutils.raw_memcpy if is_record else cgutils.raw_memmove  # source and target may be the same list

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        move(builder, arguments[0], arguments[1], llvm.Constant(llvm.IntType(64), size), 1)
        return context.get_dummy_value()

    return signature(types.void, into, source), generate


def reference_at(reference: Reference) -> Callable[..., Any]:
    """Return `at(table, index)`, which returns a reference to a record. The table is uint8, shape (n * bytes,)."""

    @intrinsic
    def at(typing: Any, table: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            array = context.make_array(sig.args[0])(context, builder, arguments[0])
            where = context.cast(builder, arguments[1], sig.args[1], types.int64)
            size = llvm.Constant(llvm.IntType(64), reference.layout.dtype.itemsize)
            data = builder.bitcast(array.data, cgutils.voidptr_t)
            return builder.gep(data, [builder.mul(where, size)])

        return signature(reference, table, index), generate

    return at


def local_record(reference: Reference) -> Callable[..., Any]:
    """Return a function that allocates a record on the caller's stack; LLVM keeps it in registers."""

    @llvm_function(reference)
    def local(context: Any, builder: Any) -> Any:
        words = llvm.ArrayType(llvm.IntType(64), reference.layout.dtype.itemsize // 8)
        return builder.bitcast(cgutils.alloca_once(builder, words), cgutils.voidptr_t)

    return local


EXACTLY: Final = {
    kind: exactly(kind, "it assigns {actual} to an attribute without annotation that is {kind} at first")
    for kind in ("int", "float", "bool")
}


def cast_to(reference: Reference) -> Callable[..., Any]:
    """Return a function that casts a reference to another type of reference, to the same record."""

    @intrinsic
    def cast(typing: Any, record: Any) -> Any:
        return signature(reference, record), lambda context, builder, sig, arguments: arguments[0]

    return cast
