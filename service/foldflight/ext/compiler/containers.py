"""Lists, dicts and sets that grow in compiled code: their numba types, and the implementations of their operations."""

from __future__ import annotations

import functools
import heapq
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Final

import numba
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.typeconv import Conversion
from numba.core.typing import signature
from numba.extending import intrinsic, lower_cast, register_model

from foldflight.ext.compiler import memory
from foldflight.ext.compiler.arena import HEADER, Contents, Element
from foldflight.ext.compiler.arithmetic import add_int, bound_of, index_of, steps_of, sub_int
from foldflight.ext.compiler.control_block import load, store
from foldflight.ext.compiler.generated import llvm_function, register_jitable
from foldflight.ext.compiler.memory import dict_operations, word_at
from foldflight.ext.compiler.strings import COMPARISONS, includes, size_of
from foldflight.ext.compiler.value_types import (
    KINDS,
    IteratorType,
    as_number,
    class_of,
    decode_kind,
    describe_type,
    implementation,
    inner_kind,
    kind_of,
    lower_iterators,
    number_type,
    require_value,
)
from foldflight.fold.machine_values import MOMENTS, TEXTS
from foldflight.fold.mode import Unsupported


class ContainerType(types.IterableType):
    """The numba type of a pointer to the header of a container.

    Args:
        contents: The types of its entries.
        changeable: Whether code may change it. Views and sorted copies are read-only.
        view: `keys`, `values` or `items` for the views of a dict; `entries` to iterate in any order; else empty.
        temporary: Whether compiled code created it, so that it is not part of an accumulator.
        inner: Whether a dict may hold it, or code created it: then its header is in the arena.
        lent: Whether it is of another accumulator in merge, which is not used afterwards.
        changes_inner: Whether code may change the containers within it; by default, whether it may change itself.
    """

    def __init__(
        self,
        contents: Contents,
        *,
        changeable: bool,
        view: str = "",
        temporary: bool = False,
        inner: bool = False,
        lent: bool = False,
        changes_inner: bool | None = None,
    ) -> None:
        self.contents = contents
        self.changeable = changeable
        self.view = view
        self.is_new = (temporary or not changeable) and not inner
        self.is_inner = inner
        self.is_lent = lent
        self.changes_inner = changeable if changes_inner is None else changes_inner
        kept = {
            "temporary": temporary,
            "inner": inner,
            "lent": lent,
            "changes inner": self.changes_inner and not changeable,
        }
        words = "".join(f", {word}" for word, holds in kept.items() if holds)
        super().__init__(name=f"ContainerType({contents}, {changeable}, {view}{words})")

    def can_convert_to(self, typing: Any, other: types.Type) -> Any:
        """Return that a new container may take the place of one that a dict holds: code asks which when it runs."""
        is_alike = isinstance(other, ContainerType) and other.is_inner and other.contents == self.contents
        return Conversion.safe if is_alike and self.is_new and self.changeable and not self.view else None

    @property
    def iterator_type(self) -> types.Type:
        if self.contents.shape == "set" and self.view != "entries":
            raise Unsupported(
                "it iterates over a set, whose order only Python knows; use update, |=, sorted, min or max"
            )
        return IteratorType(self, self.item_type)

    @property
    def item_type(self) -> types.Type:
        """The numba type of the items of a loop."""
        key = _type_of(self.contents.key)
        if self.view in ("values", "items"):
            value = self.value_type
            return value if self.view == "values" else types.Tuple([key, value])
        return key

    @property
    def value_type(self) -> types.Type:
        """The numba type of the values of a dict."""
        assert self.contents.value is not None
        nested = self.contents.nested
        if nested is None:
            return _type_of(self.contents.value)
        return ContainerType(nested, changeable=self.changes_inner, inner=True, lent=self.is_lent)

    def as_view(self, view: str) -> ContainerType:
        """Return the type of a view of the container, whose values are those of the container."""
        return ContainerType(
            self.contents, changeable=False, view=view, lent=self.is_lent, changes_inner=self.changes_inner
        )

    @property
    def part(self) -> Element | None:
        """The elements that a loop yields, and that `sum` or `sorted` take; None for the items of a dict."""
        return {"items": None, "values": self.contents.value}.get(self.view, self.contents.key)


register_model(ContainerType)(models.OpaqueModel)


@lower_cast(ContainerType, ContainerType)
def _same_pointer(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    return value


def _type_of(part: Element) -> types.Type:
    """Return the numba type of a key, value or item."""
    if not part.is_tuple:
        return KINDS[part.kinds[0]]
    return types.BaseTuple.from_types([KINDS[kind] for kind in part.kinds], part.cls)


def is_tuple_of(type_: types.Type, part: Element) -> bool:
    """Return whether a type is a tuple of the class of an element that is a tuple."""
    return isinstance(type_, types.BaseTuple) and class_of(type_) is part.cls


# --- values and words -------------------------------------------------------------------------------------------------


@intrinsic
def header_of(typing: Any, container: Any) -> Any:
    """Return the address of a container's header."""

    def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], llvm.IntType(64))

    return signature(types.int64, container), generate


def container_at(type_: ContainerType) -> Any:
    """Return a function that converts the address of a header to its container."""
    return llvm_function(type_, types.int64)(
        lambda context, builder, address: builder.inttoptr(address, cgutils.voidptr_t)
    )


def _word(builder: Any, type_: types.Type, value: Any) -> Any:
    if type_ == types.float64:
        return builder.bitcast(value, llvm.IntType(64))
    return builder.zext(value, llvm.IntType(64)) if type_ == types.boolean else value


def _value(builder: Any, type_: types.Type, word: Any) -> Any:
    if type_ == types.float64:
        return builder.bitcast(word, llvm.DoubleType())
    return builder.trunc(word, llvm.IntType(1)) if type_ == types.boolean else word


@functools.cache
def _words_of(part: Element, what: str) -> Any:
    """Return a function that encodes a value as a tuple of words. It raises for None.

    Compiling it for a value of another kind raises Unsupported.
    """
    if part.nested is not None:
        return _reference_to(part.nested, what)
    members = [KINDS[kind] for kind in part.kinds]

    @intrinsic
    def words(typing: Any, value: Any) -> Any:
        actual = list(value) if part.is_tuple and isinstance(value, types.BaseTuple) else [value]
        kinds = tuple(inner_kind(each) for each in actual)
        if kinds == part.kinds and part.is_tuple and not is_tuple_of(value, part):
            raise Unsupported(f"{what} is {describe_type(value)}, and {part} is expected")
        if kinds != part.kinds or part.is_tuple != isinstance(value, types.BaseTuple):
            remedy = "; write 0.0" if kinds == ("int",) and part.kinds == ("float",) else ""
            label = " and ".join(
                str(each) if kind == "None" else kind for each, kind in zip(actual, kinds, strict=True)
            )
            raise Unsupported(f"{what} is {label}, and {' and '.join(part.kinds)} is annotated{remedy}")

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            actual = [arguments[0]]
            sources = [sig.args[0]]
            if part.is_tuple:
                actual = cgutils.unpack_tuple(builder, arguments[0], len(members))
                sources = list(sig.args[0])
            converted_words = [
                _word(builder, member, context.cast(builder, each, source, member))
                for each, source, member in zip(actual, sources, members, strict=True)
            ]
            return context.make_tuple(builder, sig.return_type, converted_words)

        return signature(types.UniTuple(types.int64, len(members)), types.unliteral(value)), generate

    return words


@functools.cache
def _reference_to(nested: Contents, what: str) -> Any:
    """Return a function that encodes a container as the word of a dict's value, and records that a dict holds it.

    It raises for a container that a dict of this accumulator holds: in Python both would hold one object.
    """

    @implementation
    def words(value: Any) -> Any:
        if not isinstance(value, ContainerType) or value.view or value.contents != nested:
            raise Unsupported(f"{what} is {describe_type(value)}, and {nested} is expected")
        if value.changeable and not (value.is_new or value.is_inner):
            raise Unsupported(f"{what} is a container of the accumulator, which would hold it twice")
        if value.is_lent:

            def move(value: Any) -> Any:
                header = header_of(value)
                if load(header + memory.OWNED) == _MOVED:
                    raise ValueError
                memory.change(load(header), header + memory.OWNED, _MOVED)
                return (header,)

            return move
        is_copy, stride = not value.changeable, nested.stride
        if is_copy and nested.shape != "list":
            raise Unsupported(f"{what} is {describe_type(value)} that cannot be changed")

        def put(value: Any) -> Any:
            header = header_of(value)
            if load(header + memory.OWNED) != 0:
                raise ValueError
            store(header + memory.OWNED, _HELD)
            if is_copy:
                header, source = memory.new_header(header), header
                store(header + memory.OWNED, _HELD)
                memory.extend(header, source, 0, load(source + memory.USED), stride)
            return (header,)

        return put

    return words


@register_jitable
def _release(value: Any) -> None:
    """Record that no dict holds a container, so that another key may get it."""
    header = header_of(value)
    memory.change(load(header), header + memory.OWNED, 0)


_HELD: Final = 1  # by a dict of this accumulator, or of another one in merge
_MOVED: Final = 2  # from another accumulator to this one


@functools.cache
def _container_at(type_: ContainerType) -> Any:
    """Return a function that returns the container to which the word at an address refers."""
    as_container, may_change = container_at(type_), type_.changeable

    @register_jitable
    def value(address):
        header = load(address)
        if may_change:
            memory.keep_header(header)
        return as_container(header)

    return value


@functools.cache
def _value_at(part: Element, type_: types.Type | None = None) -> Any:
    """Return a function that decodes the value at an address; `type_` is its type if it is a container."""
    if part.nested is not None:
        assert type_ is not None
        return _container_at(type_)
    result = _type_of(part)

    @llvm_function(result, types.int64)
    def value(context: Any, builder: Any, address: Any) -> Any:
        words = [word_at(builder, address, index) for index in range(len(part.kinds))]
        values = [_value(builder, KINDS[kind], word) for kind, word in zip(part.kinds, words, strict=True)]
        return context.make_tuple(builder, result, values) if part.is_tuple else values[0]

    return value


# --- loops ------------------------------------------------------------------------------------------------------------


@register_jitable
def _snapshot(me: Any) -> tuple[int, int, int]:
    header = header_of(me)
    return load(header + memory.LIVE), load(header + memory.USED), load(header + memory.OFFSET)


def _steps(container: ContainerType) -> tuple[Any, Any]:
    """Return two functions for a loop: one finds the entry after another one, the other reads an entry's value."""
    contents = container.contents
    is_list, may_change, snapshot = (
        contents.shape == "list",
        contents.shape == "list" and contents.cls is not deque,
        _snapshot,
    )
    stride, ahead = contents.stride, len(contents.key.kinds)

    def next_entry(me: Any, before: Any, last: int) -> int:
        if not may_change and snapshot(me) != before:
            # Python raises RuntimeError, unless there were as many insertions as deletions: then its order is
            # undefined.
            raise ValueError  # in a deque, `LIVE` counts changes
        if is_list:
            return last + 1 if last + 1 < load(header_of(me) + memory.USED) else -1
        return memory.next_entry(header_of(me), last + 1, stride)

    key = _value_at(contents.key)
    value = key if contents.value is None else _value_at(contents.value, container.value_type)
    takes_key, takes_value = container.view != "values", container.view in ("values", "items")

    def entry(me: Any, position: int) -> Any:
        header = header_of(me)
        if not takes_value:
            return key(memory.address_of(header, position * stride))
        entry_value = value(memory.address_of(header, position * stride + ahead))
        return (key(memory.address_of(header, position * stride)), entry_value) if takes_key else entry_value

    return next_entry, entry


lower_iterators(ContainerType, _steps, _snapshot)


@implementation
def _entries(me: Any) -> Any:
    """Return the container in a form that a loop visits in any order, for results that do not depend on it."""
    as_container = container_at(me.as_view(me.view or "entries"))
    return lambda me: as_container(header_of(me))


# --- checks and helpers -----------------------------------------------------------------------------------------------


# The compiled operations of containers other than list, dict and set.
_LIKE_DICTS: Final = ("[]", "[] =", "clear", "del", "get", "in", "items", "keys", "pop", "setdefault", "values")
_DONE_WITH: Final[dict[type, tuple[str, ...]]] = {
    Counter: (*_LIKE_DICTS, "+=", "extend or update", "subtract"),
    defaultdict: (*_LIKE_DICTS, "extend or update"),
    OrderedDict: (*_LIKE_DICTS, "extend or update", "move_to_end", "popitem"),
    deque: ("[]", "[] =", "append", "appendleft", "clear", "extend or update", "pop", "popleft"),
}


def _of(me: Any, shape: str, what: str, *, changes: bool = False) -> Any:
    """Return the hash table operations of a dict or set, None of a list. Raises Unsupported if it lacks `what`."""
    if not isinstance(me, ContainerType) or me.contents.shape not in shape.split() or me.view:
        raise Unsupported(f"it uses {what} of {describe_type(me)}")
    if me.contents.cls is not None and what not in _DONE_WITH[me.contents.cls]:
        raise Unsupported(f"it uses {what} of a {me.contents.name}")
    if changes and not me.changeable:
        raise Unsupported(f"it changes a container by {what}, which is not the accumulator's, or in get_value")
    return None if me.contents.shape == "list" else dict_operations(me.contents.key.kinds, me.contents.stride)


def _is_given(argument: Any) -> bool:
    return not (argument is None or isinstance(argument, (types.Omitted, types.NoneType)))


def _whole(what: str, *actual: Any) -> None:
    """Raise Unsupported for an index that is no int."""
    for each in actual:
        if str(kind_of(each)) not in ("int", "bool"):
            raise Unsupported(f"{what} of {each}")


# --- methods ----------------------------------------------------------------------------------------------------------


@functools.cache
def _after_change(contents: Contents, *, at_begin: bool = False) -> Any:
    """Return what to call after a change of a list: for a deque it drops items beyond `maxlen` and counts changes."""
    if contents.cls is not deque:
        return register_jitable(lambda header: None)
    limit, stride = -1 if contents.limit is None else contents.limit, contents.stride
    start = limit if at_begin else 0

    @register_jitable
    def after_change(header):
        if 0 <= limit < load(header + memory.USED):
            memory.remove_items(header, start, start + 1, stride)
        store(header + memory.LIVE, load(header + memory.LIVE) + 1)

    return after_change


@implementation
def _append(me: Any, item: Any) -> Any:
    """Implement `list.append`."""
    _of(me, "list", "append", changes=True)
    words, after_change = _words_of(me.contents.key, "the item of append"), _after_change(me.contents)

    def at_end(me: Any, item: Any) -> None:
        memory.append(header_of(me), words(item))
        after_change(header_of(me))

    return at_end


def _insertion(name: str, *, at_begin: bool) -> Any:
    """Return the implementation of `list.insert`, or of `deque.appendleft`."""

    @implementation
    def choose(me: Any, index: Any, item: Any) -> Any:
        _of(me, "list", name, changes=True)
        _whole(name, index)
        words = _words_of(me.contents.key, f"the item of {name}")
        after_change = _after_change(me.contents, at_begin=at_begin)

        def put(me: Any, index: Any, item: Any) -> None:
            memory.insert(header_of(me), bound_of(index, load(header_of(me) + memory.USED)), words(item))
            after_change(header_of(me))

        return put

    return choose


_insert: Final = _insertion("insert", at_begin=False)
_insert_first: Final = _insertion("appendleft", at_begin=True)


@implementation
def _append_left(me: Any, item: Any) -> Any:
    """Implement `deque.appendleft`."""
    return lambda me, item: _insert_first(me, 0, item)


@functools.cache
def _remove_item(contents: Contents) -> Any:
    """Return a function that removes an item of a list and returns it."""
    value, stride, after_change = _value_at(contents.key), contents.stride, _after_change(contents)

    @register_jitable
    def remove_item(header, index):
        position = index_of(index, load(header + memory.USED))
        item = value(memory.address_of(header, position * stride))
        memory.remove_items(header, position, position + 1, stride)
        after_change(header)
        return item

    return remove_item


@implementation
def _pop_left(me: Any) -> Any:
    """Implement `deque.popleft`."""
    _of(me, "list", "popleft", changes=True)
    remove_item = _remove_item(me.contents)
    return lambda me: remove_item(header_of(me), 0)


@implementation
def _remove(me: Any, item: Any) -> Any:
    """Implement `remove` of a list or a set."""
    _of(me, "list set", "remove", changes=True)
    if me.contents.shape == "set":
        return lambda me, item: _remove_from_set(me, item)
    part, stride = me.contents.key, me.contents.stride
    if "float" in part.kinds:
        raise Unsupported(
            "it removes a float from a list, where Python finds the object of a NaN; use a dict of counts"
        )
    words, search = _words_of(part, "the item of remove"), memory.search_of(part.kinds)

    def remove(me: Any, item: Any) -> None:
        position = search(header_of(me), words(item))
        if position < 0:
            raise ValueError  # as in Python
        memory.remove_items(header_of(me), position, position + 1, stride)

    return remove


@implementation
def _add(me: Any, key: Any) -> Any:
    """Implement `set.add`."""
    operations = _of(me, "set", "add", changes=True)
    words, find, add_entry = _words_of(me.contents.key, "the item of add"), operations.find, operations.add_entry

    def add_once(me: Any, key: Any) -> None:
        if find(header_of(me), words(key)) < 0:
            add_entry(header_of(me), words(key))

    return add_once


def _deletion(name: str, shape: str, *, must_exist: bool) -> Any:
    """Return the implementation of an operation that deletes an entry. A Counter ignores an entry that is missing."""

    @implementation
    def choose(me: Any, key: Any) -> Any:
        operations = _of(me, shape, name, changes=True)
        words = _words_of(me.contents.key, f"the {'key' if shape == 'dict' else 'item'} of {name}")
        find, stride = operations.find, me.contents.stride
        may_lack = not must_exist or me.contents.cls is Counter

        def delete(me: Any, key: Any) -> None:
            entry = find(header_of(me), words(key))
            if entry >= 0:
                memory.delete_entry(header_of(me), entry, stride)
            elif not may_lack:
                raise ValueError  # the interpreter raises KeyError

        return delete

    return choose


_delete_key: Final = _deletion("del", "dict", must_exist=True)


@implementation
def _clear(me: Any) -> Any:
    """Implement `clear`."""
    _of(me, "list dict set", "clear", changes=True)
    is_deque = me.contents.cls is deque

    def clear(me: Any) -> None:
        changes = load(header_of(me) + memory.LIVE)
        memory.clear(header_of(me))
        if is_deque:
            store(header_of(me) + memory.LIVE, changes + 1)

    return clear


def _default_of(me: ContainerType, default: Any, what: str) -> Any:
    """Return a function that evaluates the `default` argument of a method."""
    if not _is_given(default):
        return register_jitable(lambda default: None)
    return _same_as(me.contents.value, what) if me.contents.nested is None else _as_inner(me.value_type, what)


@functools.cache
def _as_inner(type_: ContainerType, what: str) -> Any:
    """Return a function that returns a new container as one that a dict may hold. Others raise Unsupported."""
    as_container = container_at(type_)

    @implementation
    def choose(value: Any) -> Any:
        if not isinstance(value, ContainerType) or value.can_convert_to(None, type_) is None:
            raise Unsupported(f"{what} is {describe_type(value)}, and a new {type_.contents} is expected")
        return lambda value: as_container(header_of(value))

    return choose


@implementation
def _get(me: Any, key: Any, default: Any = None) -> Any:
    """Implement `dict.get`."""
    operations = _of(me, "dict", "get")
    words, find, value = _words_of(me.contents.key, "the key of get"), operations.find, _value_of(me)
    otherwise = _default_of(me, default, "the default of get")

    def got(me: Any, key: Any, default: Any = None) -> Any:
        entry = find(header_of(me), words(key))
        return otherwise(default) if entry < 0 else value(header_of(me), entry)

    return got


@implementation
def get_number(me: Any, key: Any, default: Any) -> Any:
    """Implement `dict.get` with an int as default, whose result is used only where the float of the int is the same."""
    _of(me, "dict", "get")
    if me.contents.value == Element(("float",)) and kind_of(default) == "int":
        return lambda me, key, default: _get(me, key, float(default))
    return lambda me, key, default: _get(me, key, default)


@functools.cache
def _value_of(me: ContainerType) -> Any:
    """Return a function that reads the value of an entry of a dict."""
    contents = me.contents
    assert contents.value is not None
    value, stride, ahead = _value_at(contents.value, me.value_type), contents.stride, len(contents.key.kinds)
    return register_jitable(lambda header, entry: value(memory.address_of(header, entry * stride + ahead)))


@functools.cache
def _same_as(part: Element, what: str) -> Any:
    """Return the identity for values of an element's type. Compiling it for other types raises Unsupported."""
    words, result = _words_of(part, what), _type_of(part)

    @intrinsic
    def same(typing: Any, value: Any) -> Any:
        typing.resolve_function_type(words, (value,), {})  # raises Unsupported

        def generate(context: Any, builder: Any, sig: Any, arguments: Any) -> Any:
            return context.cast(builder, arguments[0], sig.args[0], result)

        return signature(result, types.unliteral(value)), generate

    return same


@implementation
def _set_default(me: Any, key: Any, default: Any) -> Any:
    """Implement `dict.setdefault`."""
    operations = _of(me, "dict", "setdefault", changes=True)
    words, find, add_entry, value = (
        _words_of(me.contents.key, "the key"),
        operations.find,
        operations.add_entry,
        _value_of(me),
    )
    actual = _words_of(me.contents.value, "the default of setdefault")

    def get_or_add(me: Any, key: Any, default: Any) -> Any:
        entry = find(header_of(me), words(key))
        if entry < 0:
            entry = add_entry(header_of(me), words(key) + actual(default))
        return value(header_of(me), entry)

    return get_or_add


@implementation
def _pop(me: Any, key: Any = None, default: Any = None) -> Any:
    """Implement `list.pop` and `dict.pop`."""
    operations = _of(me, "list dict", "pop", changes=True)
    if me.contents.shape == "list":
        remove_item, is_last = _remove_item(me.contents), not _is_given(key)
        if not is_last:
            _whole("pop", key)
        if not is_last and me.contents.cls is deque:
            raise Unsupported("it uses pop of a deque with an argument")
        return lambda me, key=None, default=None: remove_item(header_of(me), -1 if is_last else key)
    words, find, stride = _words_of(me.contents.key, "the key of pop"), operations.find, me.contents.stride
    value, otherwise = _value_of(me), _default_of(me, default, "the default of pop")

    is_required = not _is_given(default) and not isinstance(default, types.NoneType)  # None may be passed
    release = _release if me.contents.nested is not None else register_jitable(lambda removed_value: None)

    def pop(me: Any, key: Any = None, default: Any = None) -> Any:
        entry = find(header_of(me), words(key))
        if entry < 0:
            if is_required:
                raise ValueError  # the interpreter raises KeyError
            return otherwise(default)
        removed_value = value(header_of(me), entry)
        memory.delete_entry(header_of(me), entry, stride)
        release(removed_value)
        return removed_value

    return pop


@implementation
def _move_to_end(me: Any, key: Any, last: Any = True) -> Any:
    """Implement `OrderedDict.move_to_end`. The interpreter moves to the front."""
    operations = _of(me, "dict", "move_to_end", changes=True)
    if me.contents.cls is not OrderedDict:
        raise Unsupported(f"it uses move_to_end of a {me.contents.name}")
    stride = me.contents.stride
    words, find, add_entry = _words_of(me.contents.key, "the key of move_to_end"), operations.find, operations.add_entry
    whole = memory.words_tuple(stride)

    def move(me: Any, key: Any, last: Any = True) -> None:
        header = header_of(me)
        entry = find(header, words(key))
        if entry < 0 or not last:
            raise ValueError
        entry_words = whole(memory.address_of(header, entry * stride))
        memory.delete_entry(header, entry, stride)
        add_entry(header, entry_words)

    return move


@implementation
def _pop_item(me: Any, last: Any = True) -> Any:
    """Implement `OrderedDict.popitem`."""
    _of(me, "dict", "popitem", changes=True)
    if me.contents.cls is not OrderedDict:
        raise Unsupported(f"it uses popitem of a {me.contents.name}")
    key, value, stride = _value_at(me.contents.key), _value_of(me), me.contents.stride

    def pop(me: Any, last: Any = True) -> Any:
        header = header_of(me)
        entry = memory.last_entry(header, stride) if last else memory.next_entry(header, 0, stride)
        if entry < 0:
            raise ValueError  # the interpreter raises KeyError
        item = key(memory.address_of(header, entry * stride)), value(header, entry)
        memory.delete_entry(header, entry, stride)
        return item

    return pop


def _puts_each(me: ContainerType, other: Any, amount: int = 1) -> Any:
    """Return the implementation of `update` of a Counter or set with the items of a list or text; None for others.

    `amount` is what is added to a count for each item.
    """
    is_text, part = inner_kind(other) == "text", getattr(other, "part", None)
    is_ordered = isinstance(other, ContainerType) and other.contents.shape == "list"
    if (me.contents.shape != "set" and me.contents.cls is not Counter) or not (is_text or is_ordered):
        return None
    if me.contents.key != (Element(("text",)) if is_text else part):
        return None
    operations, stride = dict_operations(me.contents.key.kinds, me.contents.stride), me.contents.stride
    words, find, add_entry = _words_of(me.contents.key, "an item"), operations.find, operations.add_entry
    counts, one = me.contents.cls is Counter, (amount,) if me.contents.cls is Counter else ()

    def put_each(me: Any, other: Any) -> None:
        header = header_of(me)
        for item in other:
            key = words(item)
            entry = find(header, key)
            if entry < 0:
                add_entry(header, key + one)
            elif counts:
                address = memory.address_of(header, (entry + 1) * stride - 1)
                memory.change(load(header), address, add_int(load(address), amount))

    return put_each


def _check_same(me: ContainerType, other: Any) -> None:
    if not isinstance(other, ContainerType) or other.contents != me.contents or other.view:
        raise Unsupported(f"it extends a {me.contents.name} by {describe_type(other)}")
    if me.contents.nested is not None:
        raise Unsupported(f"it extends a {me.contents.name} of containers at once; extend them one by one in a loop")


def _append_all(stride: int) -> Any:
    """Return a function that appends all items of a list to another list."""

    def append_all(me: Any, other: Any) -> None:
        memory.extend(header_of(me), header_of(other), 0, load(header_of(other) + memory.USED), stride)

    return append_all


@implementation
def _extend(me: Any, other: Any) -> Any:
    """Implement `list.extend`, and `set.update` and `dict.update` with another of the same type, or with items."""
    _of(me, "list set dict", "extend or update", changes=True)
    put_each = _puts_each(me, other)
    if put_each is not None:
        return put_each
    _check_same(me, other)
    if me.contents.cls is deque:

        def each(me: Any, other: Any) -> None:
            for item in other:  # raises if both are the same container
                _append(me, item)

        return each
    if me.contents.shape == "list":
        return _append_all(me.contents.stride)
    merge = _merge_entries(me.contents, add_int if me.contents.cls is Counter else _last)
    return lambda me, other: merge(header_of(me), header_of(other))


@implementation
def _subtract(me: Any, other: Any) -> Any:
    """Implement `Counter.subtract`."""
    _of(me, "dict", "subtract", changes=True)
    put_each = _puts_each(me, other, -1)
    if put_each is not None:
        return put_each
    _check_same(me, other)
    merge = _merge_entries(me.contents, sub_int)
    return lambda me, other: merge(header_of(me), header_of(other))


@implementation
def _add_counts(me: Any, other: Any) -> Any:
    """Implement `+=` of two Counters, which keeps positive counts only."""
    _of(me, "dict", "+=", changes=True)
    _check_same(me, other)
    merge, count, stride = _merge_entries(me.contents, add_int), _value_of(me), me.contents.stride

    def add(me: Any, other: Any) -> Any:
        header = header_of(me)
        merge(header, header_of(other))
        entry = memory.next_entry(header, 0, stride)
        while entry >= 0:
            if count(header, entry) <= 0:
                memory.delete_entry(header, entry, stride)
            entry = memory.next_entry(header, entry + 1, stride)
        return me

    return add


_last: Final = register_jitable(lambda old, new: new)


@functools.cache
def _merge_entries(contents: Contents, plus: Any) -> Any:
    """Return `merge(header, other)`, which adds the entries of another dict or set of the same type.

    `plus` combines two values of one key, as words: the first container's (0 if the key is new) and the other's.
    """
    keys, stride = len(contents.key.kinds), contents.stride
    operations, whole, key_of = (
        dict_operations(contents.key.kinds, stride),
        memory.words_tuple(stride),
        memory.words_tuple(keys),
    )
    find, add_entry = operations.find, operations.add_entry

    @register_jitable
    def merge(header, other):
        entry = memory.next_entry(other, 0, stride)
        while entry >= 0:
            address = memory.address_of(other, entry * stride)
            mine = find(header, key_of(address))
            is_new = mine < 0
            if is_new:
                mine = add_entry(header, whole(address))
            for index in range(keys, stride):
                into = memory.address_of(header, mine * stride + index)
                memory.change(load(header), into, plus(0 if is_new else load(into), load(address + 8 * index)))
            entry = memory.next_entry(other, entry + 1, stride)

    return merge


def _view(name: str) -> Any:
    @implementation
    def view(me: Any) -> Any:
        _of(me, "dict", name)
        as_container = container_at(me.as_view(name))
        return lambda me: as_container(header_of(me))

    return view


@implementation
def _sort(me: Any, reverse: Any = False) -> Any:
    """Implement `list.sort`. Python reverses before and after, so equal items keep their order."""
    _of(me, "list", "sort", changes=True)
    if _is_given(reverse) and reverse is not False and kind_of(reverse) != "bool":
        raise Unsupported(f"it calls sort with reverse={reverse}; write True or False")
    sorted_copy, turned, stride = _sorted_of(me), register_jitable(_backwards(me.contents)), me.contents.stride
    whole = memory.words_tuple(stride)

    def sort(me: Any, reverse: Any = False) -> None:
        source = header_of(turned(_ordered_list(turned(me)))) if reverse else sorted_copy(me)
        for position in range(load(source + memory.USED)):
            memory.replace_item(header_of(me), position, whole(memory.address_of(source, position * stride)))

    return sort


def _sorted_of(me: ContainerType) -> Any:
    """Return a function that copies a list, keys or values to a sorted temporary list, and returns its header."""
    part = me.part
    assert part is not None
    _check_order(part)
    sorter, words = memory.make_sort(part.kinds), _words_of(part, "an item")
    stride, size_of = len(part.kinds), register_jitable(make_count(me))

    @register_jitable
    def sorted_copy(me):
        header, scratch = memory.new_header(header_of(me)), memory.new_header(header_of(me))
        memory.reallocate(header, size_of(me), stride)
        memory.reallocate(scratch, size_of(me), stride)
        for item in _entries(me):
            memory.append(header, words(item))
        sorter(header, scratch)
        return header

    return sorted_copy


def _check_order(part: Element) -> None:
    unordered_kinds = set(part.kinds) - _ORDERED
    if unordered_kinds:
        raise Unsupported(f"it orders values of the kind {unordered_kinds.pop()}")


_ORDERED: Final = {"int", "float", "bool", *MOMENTS, *TEXTS}

_remove_from_set: Final = _deletion("remove", "set", must_exist=True)
METHODS: Final[dict[str, Any]] = {
    "append": _append,
    "appendleft": _append_left,
    "add": _add,
    "clear": _clear,
    "discard": _deletion("discard", "set", must_exist=False),
    "extend": _extend,
    "get": _get,
    "insert": _insert,
    "items": _view("items"),
    "keys": _view("keys"),
    "move_to_end": _move_to_end,
    "pop": _pop,
    "popitem": _pop_item,
    "popleft": _pop_left,
    "remove": _remove,
    "setdefault": _set_default,
    "sort": _sort,
    "subtract": _subtract,
    "update": _extend,
    "values": _view("values"),
}


@implementation
def require_container(me: Any) -> Any:
    """Return a container without Optional in its type, and any other value unchanged. Raises for None."""
    if isinstance(me, types.Optional) and isinstance(me.type, ContainerType):
        return lambda me: require_value(me)
    return lambda me: me


@functools.cache
def empty_of(contents: Contents) -> Any:
    """Return a function that creates an empty container."""
    as_container = container_at(ContainerType(contents, changeable=True, temporary=True))
    create_empty = numba.njit(nogil=True)(lambda: as_container(memory.fresh_header()))
    EMPTIES.add(create_empty)
    return create_empty


EMPTIES: Final[set[Any]] = set()
"""The functions that `empty_of` has returned."""


# --- operators --------------------------------------------------------------------------------------------------------


@implementation
def contains(me: Any, key: Any) -> Any:
    """Implement `key in me`."""
    if inner_kind(me) in TEXTS:
        return lambda me, key: includes(me, key)
    if isinstance(me, types.Optional) and isinstance(me.type, ContainerType):
        return lambda me, key: contains(require_value(me), key)
    operations = _of(me, "list dict set", "in")
    words = _words_of(me.contents.key, "the key of in")
    if me.contents.shape == "list":
        search = memory.search_of(me.contents.key.kinds)
        return lambda me, key: search(header_of(me), words(key)) >= 0
    find = operations.find
    return lambda me, key: find(header_of(me), words(key)) >= 0


def get_item(me: ContainerType, index: Any) -> Any:
    """Return the implementation of `me[index]`."""
    operations = _of(me, "list dict", "[]")
    if me.contents.shape == "dict":
        words, find, value = _words_of(me.contents.key, "the key of []"), operations.find, _value_of(me)
        is_counter, holds_containers = me.contents.cls is Counter, me.contents.nested is not None
        add_entry, adds = operations.add_entry, me.contents.cls is defaultdict and me.changeable

        def at_key(me: Any, index: Any) -> Any:
            entry = find(header_of(me), words(index))
            if entry < 0:
                if is_counter:
                    return 0
                if not adds:
                    raise ValueError  # the interpreter raises KeyError
                default = 0  # zero, 0.0 and False are the same word
                if holds_containers:
                    default = memory.new_header(header_of(me))
                    store(default + memory.OWNED, _HELD)
                entry = add_entry(header_of(me), (*words(index), default))
            return value(header_of(me), entry)

        return at_key
    if isinstance(index, types.SliceType):
        if me.contents.cls is not None:
            raise Unsupported(f"it takes a slice of a {me.contents.name}")
        return _slice(me, index)
    _whole("[]", index.type if isinstance(index, types.Optional) else index)
    item, stride = _value_at(me.contents.key), me.contents.stride

    def at_index(me: Any, index: Any) -> Any:
        header = header_of(me)
        return item(memory.address_of(header, index_of(require_value(index), load(header + memory.USED)) * stride))

    return at_index


def _slice(me: ContainerType, index: types.SliceType) -> Any:
    as_container, stride = container_at(ContainerType(me.contents, changeable=False)), me.contents.stride
    if index.has_step:
        whole = memory.words_tuple(stride)

        def every(me: Any, index: Any) -> Any:
            header = header_of(me)
            start, step, count = steps_of(index.start, index.stop, index.step, load(header + memory.USED))
            into = memory.new_header(header)
            for number in range(count):
                memory.append(into, whole(memory.address_of(header, (start + number * step) * stride)))
            return as_container(into)

        return every

    def part(me: Any, index: Any) -> Any:
        header = header_of(me)
        used_count = load(header + memory.USED)
        start, stop = bound_of(index.start, used_count), bound_of(index.stop, used_count)
        into = memory.new_header(header)
        if start < stop:
            memory.extend(into, header, start, stop, stride)
        return as_container(into)

    return part


def set_item(me: ContainerType, index: Any, value: Any) -> Any:
    """Return the implementation of `me[index] = value`."""
    operations = _of(me, "list dict", "[] =", changes=True)
    if me.contents.shape == "list":
        _whole("[] =", index)
        actual = _words_of(me.contents.key, "the item")

        def replace(me: Any, index: Any, value: Any) -> None:
            header = header_of(me)
            memory.replace_item(header, index_of(index, load(header + memory.USED)), actual(value))

        return replace
    words, find, add_entry = _words_of(me.contents.key, "the key of [] ="), operations.find, operations.add_entry
    actual, keys, stride = _words_of(me.contents.value, "the value"), len(me.contents.key.kinds), me.contents.stride
    if me.contents.nested is not None:

        def put(me: Any, index: Any, value: Any) -> None:
            header, key = header_of(me), words(index)
            entry = find(header, key)
            if entry < 0:
                add_entry(header, key + actual(value))
                return
            address = memory.address_of(header, entry * stride + keys)
            if load(address) != header_of(value):  # as in `lists[key] += more`
                memory.change(load(header), address, actual(value)[0])

        return put

    def assign(me: Any, index: Any, value: Any) -> None:
        header, key, new_words = header_of(me), words(index), actual(value)
        entry = find(header, key)
        if entry < 0:
            add_entry(header, key + new_words)
        else:
            address = memory.address_of(header, entry * stride)
            for number in range(keys, stride):
                memory.change(load(header), address + 8 * number, new_words[number - keys])

    return assign


METHODS["__setitem__"] = implementation(set_item)  # a dict comprehension calls it for each entry


@implementation
def delete_item(me: Any, index: Any) -> Any:
    """Implement `del me[index]`."""
    _of(me, "list dict", "del", changes=True)
    if me.contents.shape == "dict":
        return lambda me, index: _delete_key(me, index)
    stride = me.contents.stride
    if isinstance(index, types.SliceType):
        if index.has_step:
            raise Unsupported("it deletes a slice with a step")

        def delete_slice(me: Any, index: Any) -> None:
            used_count = load(header_of(me) + memory.USED)
            start, stop = bound_of(index.start, used_count), bound_of(index.stop, used_count)
            if start < stop:
                memory.remove_items(header_of(me), start, stop, stride)

        return delete_slice
    _whole("del", index)

    def delete_one(me: Any, index: Any) -> None:
        position = index_of(index, load(header_of(me) + memory.USED))
        memory.remove_items(header_of(me), position, position + 1, stride)

    return delete_one


@implementation
def put_whole(me: Any, other: Any) -> Any:
    """Implement the assignment of a container to the accumulator or to an attribute: it replaces all entries."""
    if (
        not isinstance(me, ContainerType)
        or not isinstance(other, ContainerType)
        or other.view
        or me.contents != other.contents
    ):
        raise Unsupported(f"it replaces a container by {describe_type(other)}")
    if not other.is_new:

        def same(me: Any, other: Any) -> None:
            if header_of(me) != header_of(other):
                raise ValueError  # in Python, two attributes would be the same object

        return same
    if other.changeable and me.contents.cls is None:

        def move(me: Any, other: Any) -> None:
            if load(header_of(other) + memory.OWNED) != 0:
                raise ValueError  # in Python, the dict and the attribute would hold the same object
            for index in range(1, HEADER):
                store(header_of(me) + 8 * index, load(header_of(other) + 8 * index))

        return move
    if me.contents.shape != "list":
        raise Unsupported(f"it replaces a {me.contents.shape}")
    append_all = register_jitable(_append_all(me.contents.stride))

    def replace_items(me: Any, other: Any) -> None:
        memory.clear(header_of(me))
        append_all(me, other)

    return replace_items


def in_place(plain: Any, shapes: str, *, plus: bool = False) -> Any:
    """Return the implementation of an operator such as `+=`, for containers; `plain` is called for other types."""

    @implementation
    def choose(me: Any, other: Any) -> Any:
        if not isinstance(me, ContainerType):
            return lambda me, other: plain(me, other)
        if me.contents.cls is Counter and plus:
            return lambda me, other: _add_counts(me, other)
        _of(me, shapes, "extend or update" if me.contents.cls is deque else "an operator in place", changes=True)

        def extend(me: Any, other: Any) -> Any:
            _extend(me, other)
            return me

        return extend

    return choose


@implementation
def concatenate(me: Any, other: Any) -> Any:
    """Implement `me + other` of lists, and `me | other` of sets and dicts."""
    _check_same(me, other)
    if me.contents.cls is not None:
        raise Unsupported(f"it joins two of the class {me.contents.name}")
    empty = empty_of(me.contents)

    def join(me: Any, other: Any) -> Any:
        joined_list = empty()
        _extend(joined_list, me)
        _extend(joined_list, other)
        return joined_list

    return join


def new_from_both(plain: Any, shapes: str) -> Any:
    """Return the implementation of `+` or `|` where both may be containers; `plain` is called for other types."""

    @implementation
    def choose(me: Any, other: Any) -> Any:
        both = isinstance(me, ContainerType) and not me.view and me.contents.shape in shapes.split()
        return (lambda me, other: concatenate(me, other)) if both else (lambda me, other: plain(me, other))

    return choose


# --- functions --------------------------------------------------------------------------------------------------------


@implementation
def length_of(me: Any) -> Any:
    """Implement `len`."""
    if isinstance(me, types.Optional) and isinstance(me.type, ContainerType):
        return lambda me: length_of(require_value(me))
    count = len(me) if isinstance(me, types.BaseTuple) else getattr(me, "length", None)
    if count is not None:  # a tuple, or a list of fixed length
        return lambda me: count
    if inner_kind(me) in TEXTS:
        return lambda me: size_of(me)
    if not isinstance(me, ContainerType):
        raise Unsupported(f"it calls len of {describe_type(me)}")
    return make_count(me)


def make_count(me: ContainerType) -> Any:
    """Return a function that counts the entries of a container."""
    at = memory.USED if me.contents.shape == "list" else memory.LIVE
    return lambda me: load(header_of(me) + at)


@implementation
def _ordered_list(me: Any) -> Any:
    """Implement `sorted`."""
    part = me.part if isinstance(me, ContainerType) else None
    if part is None:
        if _element_of(me) is None:
            raise Unsupported(f"it sorts {describe_type(me)}")
        return lambda me: _ordered_list(copy_of(me))
    sorted_copy, as_container = _sorted_of(me), container_at(ContainerType(Contents("list", part), changeable=False))
    return lambda me: as_container(sorted_copy(me))


def _number_kind(me: Any, name: str) -> str:
    """Return the kind of the numbers in a list or set, or of keys or values. Raises Unsupported for others."""
    part = me.part if isinstance(me, ContainerType) else None
    if part is None or part.is_tuple or part.kinds[0] not in ("int", "float"):
        raise Unsupported(f"it calls {name} of {describe_type(me)}")
    return part.kinds[0]


def _extreme_of(name: str, symbol: str) -> Any:
    """Return the implementation of `min` or `max` of a container, with a default for an empty one or without."""
    wins_text = COMPARISONS[symbol, "text", "text"][0]
    beats = register_jitable((lambda one, other: one < other) if symbol == "<" else (lambda one, other: one > other))

    @implementation
    def choose(me: Any, default: Any = None) -> Any:
        part = me.part if isinstance(me, ContainerType) else None
        kind = "" if part is None or part.is_tuple else part.kinds[0]
        if kind not in _ORDERED:
            raise Unsupported(f"it calls {name} of {describe_type(me)}")
        wins = wins_text if kind in TEXTS else beats
        decode, size_of, start = decode_kind(kind), register_jitable(make_count(me)), number_type(kind)(0)

        @register_jitable
        def extreme(me: Any) -> Any:
            best, is_some = start, False
            for each in _entries(me):
                number = as_number(each)
                if not is_some or wins(number, best):
                    best, is_some = number, True
            if not is_some:
                raise ValueError
            return decode(best)

        if not _is_given(default) and not isinstance(default, types.NoneType):
            return lambda me, default=None: extreme(me)
        if isinstance(default, types.NoneType):
            return lambda me, default=None: extreme(me) if size_of(me) > 0 else None
        if kind_of(default) != kind:
            raise Unsupported(f"it calls {name} of values of the kind {kind} with a default of another kind")
        return lambda me, default=None: extreme(me) if size_of(me) > 0 else default

    return choose


@implementation
def _exact_total(me: Any) -> Any:
    """Implement `math.fsum` with CPython's algorithm: the partial sums do not overlap, and together are exact."""
    _number_kind(me, "math.fsum")
    word = llvm_function(types.int64, types.float64)(
        lambda context, builder, number: builder.bitcast(number, llvm.IntType(64))
    )
    value = _value_at(Element(("float",)))
    at = register_jitable(lambda header, index: value(memory.address_of(header, index)))

    @register_jitable
    def add(partials: int, number: float) -> None:
        kept = 0
        for index in range(load(partials + memory.USED)):
            part = at(partials, index)
            if abs(number) < abs(part):
                number, part = part, number
            high = number + part
            low = part - (high - number)
            if low != 0.0:
                memory.replace_item(partials, kept, (word(low),))
                kept += 1
            number = high
        store(partials + memory.USED, kept)
        if number != 0.0:
            if not math.isfinite(number):
                raise OverflowError  # the interpreter knows whether infinity is the sum, or an error
            memory.append(partials, (word(number),))

    @register_jitable
    def rounded(partials: int) -> float:
        left = load(partials + memory.USED)
        if left == 0:
            return 0.0
        left -= 1
        high, low = at(partials, left), 0.0
        while left > 0:
            left -= 1
            before, part = high, at(partials, left)
            high = before + part
            low = part - (high - before)
            if low != 0.0:
                break
        if left > 0 and ((low < 0.0 and at(partials, left - 1) < 0.0) or (low > 0.0 and at(partials, left - 1) > 0.0)):
            twice = low * 2.0  # half of a unit of the last digit, and more: it is not a tie
            above = high + twice
            if twice == above - high:
                high = above
        return high

    def exact_total(me: Any) -> float:
        partials = memory.new_header(header_of(me))
        for each in _entries(me):
            number = float(each)
            if not math.isfinite(number):
                raise ValueError
            add(partials, number)
        return rounded(partials)

    return exact_total


# --- keys -------------------------------------------------------------------------------------------------------------


def _check_keys(me: Any, keys: Any, name: str) -> Any:
    """Return the comparison of the addresses of two keys. Raises Unsupported for what is not compared by keys."""
    if not isinstance(me, ContainerType):
        raise Unsupported(f"it calls {name} with key= of {describe_type(me)}")
    _check_order(keys.contents.key)
    return memory.ordering(keys.contents.key.kinds)


def _extreme_by(name: str, *, is_least: bool) -> Any:
    """Return the implementation of `min` or `max` with keys, which are in a list: the first of equal ones wins."""

    @implementation
    def choose(me: Any, keys: Any, default: Any = None) -> Any:
        less, stride = _check_keys(me, keys, name), keys.contents.stride

        @register_jitable
        def extreme(me: Any, keys: Any) -> Any:
            best, address = 0, memory.address_of(header_of(keys), 0)
            for number in range(1, load(header_of(keys) + memory.USED)):
                one, other = address + 8 * stride * number, address + 8 * stride * best
                if less(one, other) if is_least else less(other, one):
                    best = number
            for number, each in enumerate(me):
                if number == best:
                    return each
            raise ValueError  # it is empty

        size_of = register_jitable(make_count(me))
        if not _is_given(default) and not isinstance(default, types.NoneType):
            return lambda me, keys, default=None: extreme(me, keys)
        if isinstance(default, types.NoneType):
            return lambda me, keys, default=None: extreme(me, keys) if size_of(me) > 0 else None
        if kind_of(default) is None or kind_of(default) != kind_of(me.item_type):
            raise Unsupported(f"it calls {name} with a default of another type than the items")
        return lambda me, keys, default=None: extreme(me, keys) if size_of(me) > 0 else default

    return choose


@implementation
def _sorted_by(me: Any, keys: Any, reverse: Any = False) -> Any:
    """Implement `sorted` with keys, which are in a list. Items with equal keys keep their order, also in reverse."""
    _check_keys(me, keys, "sorted")
    if reverse is not False and kind_of(reverse) != "bool":
        raise Unsupported(f"it calls sorted with reverse={reverse}; write True or False")
    order, part = _sorted_numbers(keys.contents.key), _element_of(me)
    if part is None:
        raise Unsupported(f"it sorts {describe_type(me)}")
    empty, stride = empty_of(Contents("list", part)), len(part.kinds)
    whole = memory.words_tuple(stride)

    def sorted_by(me: Any, keys: Any, reverse: Any = False) -> Any:
        items, into = header_of(copy_of(me)), empty()
        numbers = order(header_of(keys), bool(reverse))
        for position in range(load(numbers + memory.USED)):
            number = load(memory.address_of(numbers, position))
            memory.append(header_of(into), whole(memory.address_of(items, number * stride)))
        return into

    return sorted_by


@functools.cache
def _sorted_numbers(part: Element) -> Any:
    """Return `order(header, reverse)`: a list of the numbers of a list's items, in the order of the items."""
    stride, whole = len(part.kinds), memory.words_tuple(len(part.kinds))
    sorter = memory.make_sort((*part.kinds, "int"))

    @register_jitable
    def order(header: int, reverse: bool) -> int:
        used_count = load(header + memory.USED)
        rows, scratch, into = memory.new_header(header), memory.new_header(header), memory.new_header(header)
        memory.reallocate(rows, used_count, stride + 1)
        memory.reallocate(scratch, used_count, stride + 1)
        for number in range(used_count):
            last = -number if reverse else number  # it keeps the order of equal items
            memory.append(rows, (*whole(memory.address_of(header, number * stride)), last))
        sorter(rows, scratch)
        for number in range(used_count):
            position = used_count - 1 - number if reverse else number
            word = load(memory.address_of(rows, position * (stride + 1) + stride))
            memory.append(into, (abs(word),))
        return into

    return order


@implementation
def _most_common(me: Any, count: Any = None) -> Any:
    """Implement `Counter.most_common`: of equal counts, the keys that came first."""
    if not isinstance(me, ContainerType) or me.contents.cls is not Counter or me.view:
        raise Unsupported(f"it uses most_common of {describe_type(me)}")
    is_given = _is_given(count)
    if is_given:
        _whole("most_common", count)
    counts_of, items_of = METHODS["values"], METHODS["items"]

    def most_common(me: Any, count: Any = None) -> Any:
        ranked = _sorted_by(items_of(me), copy_of(counts_of(me)), True)
        if is_given:
            header = header_of(ranked)
            store(header + memory.USED, min(max(count, 0), load(header + memory.USED)))
        return ranked

    return most_common


METHODS["most_common"] = _most_common
BY_KEY: Final[dict[Any, tuple[Any, str]]] = {
    min: (_extreme_by("min", is_least=True), "default"),
    max: (_extreme_by("max", is_least=False), "default"),
    sorted: (_sorted_by, "reverse"),
}
"""By function: its implementation with a list of keys, and the other option that it has."""


_COMPENSATED: Final = sys.version_info >= (3, 12)  # `sum` of floats is compensated since Python 3.12


@register_jitable
def _sum_of_bytes(content: Any) -> int:
    total = 0
    for each in content:
        total += each
    return total


@implementation
def _total(me: Any) -> Any:
    """Implement `sum`."""
    if inner_kind(me) == "bytes":
        return lambda me: _sum_of_bytes(require_value(me))
    is_float = _number_kind(me, "sum") == "float"
    if is_float and (me.contents.shape == "set" or _COMPENSATED):
        raise Unsupported("it calls sum of floats in a set, or in a Python that sums with a compensation (3.12)")
    plus, zero = (register_jitable(lambda one, other: one + other), 0.0) if is_float else (add_int, 0)

    def sum_of(me: Any) -> Any:
        total, is_some = zero, not is_float
        for each in _entries(me):
            total, is_some = plus(total, each), True
        if not is_some:
            raise ValueError  # the sum of nothing is the int 0
        return total

    return sum_of


# The algorithm of CPython's heapq: the items of the list must be in the same order as Python's.


def _heap(name: str, pushes: bool, pops: bool) -> Any:
    """Return the implementation of a function of heapq: it pushes an item, pops the smallest one, or does both."""

    @implementation
    def choose(me: Any, item: Any = None) -> Any:
        _of(me, "list", name, changes=True)
        part, remove_item = me.contents.key, _remove_item(me.contents)
        _check_order(part)
        down, up = _sifts(part)
        words: Any = _words_of(part, f"the item of {name}" if pushes else "an item")
        value = _value_at(part)

        def push(me: Any, item: Any = None) -> None:
            header = header_of(me)
            memory.append(header, words(item))
            down(header, 0, load(header + memory.USED) - 1)

        @register_jitable
        def replace_least(header: int, item: Any) -> Any:
            if load(header + memory.USED) == 0:
                raise ValueError
            least = value(memory.address_of(header, 0))
            memory.replace_item(header, 0, words(item))
            up(header, 0)
            return least

        def pop(me: Any, item: Any = None) -> Any:
            last = remove_item(header_of(me), -1)
            return replace_least(header_of(me), last) if load(header_of(me) + memory.USED) else last

        if pushes and pops:
            return lambda me, item=None: replace_least(header_of(me), item)
        return push if pushes else pop

    return choose


@implementation
def _push_and_pop(me: Any, item: Any) -> Any:
    """Implement `heapq.heappushpop`: the item stays outside unless the smallest one is less."""
    _of(me, "list", "heappushpop", changes=True)
    part = me.contents.key
    _check_order(part)
    words, same = _words_of(part, "the item of heappushpop"), _same_as(part, "the item of heappushpop")
    is_less = memory.ordering(part.kinds)

    def push_and_pop(me: Any, item: Any) -> Any:
        header = header_of(me)
        if load(header + memory.USED) == 0:
            return same(item)
        scratch = memory.new_header(header)
        memory.append(scratch, words(item))
        if is_less(memory.address_of(header, 0), memory.address_of(scratch, 0)):
            return _heap_replace(me, item)
        return same(item)

    return push_and_pop


@functools.cache
def _sifts(part: Element) -> tuple[Any, Any]:
    """Return heapq's `_siftdown(heap, start, position)` and `_siftup(heap, position)`."""
    stride, is_less = len(part.kinds), memory.ordering(part.kinds)
    whole = memory.words_tuple(stride)
    at = register_jitable(lambda header, position: memory.address_of(header, position * stride))
    less = register_jitable(lambda header, one, other: is_less(at(header, one), at(header, other)))

    @register_jitable
    def swap(header, one, other):
        item = whole(at(header, one))
        memory.replace_item(header, one, whole(at(header, other)))
        memory.replace_item(header, other, item)

    @register_jitable
    def down(header, start, position):
        while position > start and less(header, position, (position - 1) >> 1):
            swap(header, position, (position - 1) >> 1)
            position = (position - 1) >> 1

    @register_jitable
    def up(header, position):
        end, start = load(header + memory.USED), position
        child = 2 * position + 1
        while child < end:
            if child + 1 < end and not less(header, child, child + 1):
                child += 1
            swap(header, position, child)
            position = child
            child = 2 * position + 1
        down(header, start, position)

    return down, up


def _any_or_all(*, stops_at: bool) -> Any:
    """Return the implementation of `any`, or of `all`, which stop at the first value that is true, or false."""

    @implementation
    def choose(me: Any) -> Any:
        part = me.part if isinstance(me, ContainerType) else None
        if part is None or part.is_tuple or part.kinds[0] not in ("bool", "int", "float", *TEXTS):
            raise Unsupported(f"it calls any or all of {describe_type(me)}")

        def search(me: Any) -> bool:
            for each in _entries(me):
                if (as_number(each) != 0) == stops_at:
                    return stops_at
            return not stops_at

        return search

    return choose


def _backwards(contents: Contents) -> Any:
    """Return a function that copies a list, its items in the opposite order, to a temporary list."""
    as_container, stride = (
        container_at(ContainerType(Contents("list", contents.key), changeable=False)),
        contents.stride,
    )
    whole = memory.words_tuple(stride)

    def backwards(me: Any) -> Any:
        header = header_of(me)
        into, used_count = memory.new_header(header), load(header + memory.USED)
        for position in range(used_count):
            memory.append(into, whole(memory.address_of(header, (used_count - 1 - position) * stride)))
        return as_container(into)

    return backwards


@implementation
def reversed_of(me: Any) -> Any:
    """Implement `me[::-1]` and `reversed(me)` of a list."""
    _of(me, "list", "reversed")
    return _backwards(me.contents)


def equality(me: Any, other: Any, same: Any) -> Any:
    """Return the implementation of `me == other` of two lists of one kind, whose items are compared by `same`."""
    for each in (me, other):
        if not isinstance(each, ContainerType) or each.contents.shape != "list" or each.contents.cls:
            raise Unsupported(f"== of {describe_type(me)} and {describe_type(other)}")
    if me.contents.key != other.contents.key or me.contents.key.is_tuple or "float" in me.contents.key.kinds:
        raise Unsupported(f"== of {describe_type(me)} and {describe_type(other)}")
    size, item = register_jitable(make_count(me)), register_jitable(_steps(me)[1])

    def equal(me: Any, other: Any) -> bool:
        if size(me) != size(other):
            return False
        for index in range(size(me)):  # noqa: SIM110 - numba has no `all`
            if not same(item(me, index), item(other, index)):
                return False
        return True

    return equal


@implementation
def copy_of(me: Any) -> Any:
    """Implement `list(me)` of a list, a deque, a text, or the keys, values or items of a dict: a temporary list."""
    part = _element_of(me)
    if part is None:
        raise Unsupported(f"it makes a list of {describe_type(me)}")
    empty, words = empty_of(Contents("list", part)), _words_of(part, "an item")

    def copy(me: Any) -> Any:
        into = empty()
        for item in me:
            memory.append(header_of(into), words(item))
        return into

    return copy


def _element_of(me: Any) -> Element | None:
    """Return the elements of a list of what a loop yields; None if compiled code has no list of them."""
    if inner_kind(me) == "text":
        return Element(("text",))
    if not isinstance(me, ContainerType):
        return None
    part, key, value = me.part, me.contents.key, me.contents.value
    if me.view == "items" and value is not None and not (key.is_tuple or value.is_tuple):
        part = Element((*key.kinds, *value.kinds), is_tuple=True)
    return None if part is None or (me.contents.nested is not None and me.view in ("items", "values")) else part


def _bisect(*, right: bool) -> Any:
    """Return `position(me, value, size, less)`: the algorithm of CPython's bisect."""

    @register_jitable
    def position(me: Any, value: Any, size: int, item: Any, less: Any) -> int:
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            goes_left = less(value, item(me, middle)) if right else not less(item(me, middle), value)
            if goes_left:
                high = middle
            else:
                low = middle + 1
        return low

    return position


def make_bisect(less: Any, *, right: bool) -> tuple[Any, Any]:
    """Return the implementations of `bisect(me, value)` and `insort(me, value)`, with an operator for `<`.

    `me` of `bisect` is a list or a tuple of values of one kind.
    """
    position = _bisect(right=right)

    @implementation
    def bisect(me: Any, value: Any) -> Any:
        if isinstance(me, types.UniTuple):
            size = len(me)
            at = register_jitable(lambda me, index: me[index])
            return lambda me, value: position(me, value, size, at, less)
        if not isinstance(me, ContainerType) or me.part is None or me.contents.shape != "list" or me.contents.cls:
            raise Unsupported(f"it calls bisect of {describe_type(me)}")
        used_count_of, entry = register_jitable(make_count(me)), register_jitable(_steps(me)[1])
        return lambda me, value: position(me, value, used_count_of(me), entry, less)

    insert = METHODS["insert"]

    @implementation
    def insort(me: Any, value: Any) -> Any:
        _of(me, "list", "insort", changes=True)
        return lambda me, value: insert(me, bisect(me, value), value)

    return bisect, insort


_heap_replace: Final = _heap("heapreplace", pushes=True, pops=True)
PUSHING: Final = (_heap("heappush", pushes=True, pops=False), _heap_replace, _push_and_pop)
CALLS: Final[dict[Any, Any]] = {
    sorted: _ordered_list,
    sum: _total,
    math.fsum: _exact_total,
    list: copy_of,
    any: _any_or_all(stops_at=True),
    all: _any_or_all(stops_at=False),
    slice: slice,
    enumerate: enumerate,
    zip: zip,
    heapq.heappush: PUSHING[0],
    heapq.heapreplace: PUSHING[1],
    heapq.heappushpop: PUSHING[2],
    heapq.heappop: _heap("heappop", pushes=False, pops=True),
    **{each: each for each, _ in BY_KEY.values()},
}
LEAST: Final = _extreme_of("min", "<")
GREATEST: Final = _extreme_of("max", ">")
