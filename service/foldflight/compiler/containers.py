"""Growing lists, dicts and sets of compiled code: their types, and the stand-ins for what Python does with them."""

from __future__ import annotations

import functools
import heapq
import operator
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import numba
from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing import signature
from numba.extending import intrinsic, register_jitable, register_model

from foldflight.compiler import memory
from foldflight.compiler.arithmetic import add_int, bound_of, index_of, sub_int
from foldflight.compiler.heap import HEADER, Holding, Part
from foldflight.compiler.kinds import KINDS, Refused, as_number, kind_of, stand_in
from foldflight.compiler.memory import dict_operations, list_operations, load
from foldflight.fold.texts import TEXTS

__all__ = [
    "CALLS",
    "EMPTIES",
    "GREATEST",
    "LEAST",
    "METHODS",
    "PUSHING",
    "Held",
    "contains",
    "delete_item",
    "empty_of",
    "get_item",
    "header_of",
    "put_whole",
    "seen_as",
    "set_item",
]


class Held(types.IterableType):
    """The numba type of a pointer to the header of a container.

    Args:
        holding: What it holds.
        changeable: Whether code may change it. Parts of others, and what is sorted, cannot be changed.
        view: `keys`, `values` or `items` for the views of a dict; else empty.
        temporary: Whether code has made it, so that it is not an accumulator's.
    """

    def __init__(self, holding: Holding, *, changeable: bool, view: str = "", temporary: bool = False) -> None:
        self.holding = holding
        self.changeable = changeable
        self.view = view
        self.is_new = temporary or not changeable
        super().__init__(name=f"Held({holding}, {changeable}, {view}{', temporary' * temporary})")

    @property
    def iterator_type(self) -> types.Type:
        if self.holding.shape == "set":
            raise Refused("it iterates over a set, whose order only Python knows; use update, |=, sorted, min or max")
        return _Walk(self)

    @property
    def yielded(self) -> types.Type:
        """The type of what a loop over it yields."""
        key = type_of(self.holding.key)
        if self.view in ("values", "items"):
            assert self.holding.value is not None
            value = type_of(self.holding.value)
            return value if self.view == "values" else types.Tuple([key, value])
        return key

    @property
    def part(self) -> Part | None:
        """What a loop over it yields, and functions sum or order; None for the items of a dict."""
        return {"items": None, "values": self.holding.value}.get(self.view, self.holding.key)

    @property
    def operations(self) -> SimpleNamespace:
        """The operations on its memory."""
        holding = self.holding
        if holding.shape == "list":
            return list_operations(holding.stride)
        return dict_operations(holding.key.kinds, holding.stride)


class _Walk(types.SimpleIteratorType):
    """The numba type of an iterator over a container."""

    def __init__(self, held: Held) -> None:
        self.held = held
        super().__init__(f"Walk({held})", held.yielded)


@register_model(Held)
class _HeldModel(models.OpaqueModel):
    pass


@register_model(_Walk)
class _WalkModel(models.StructModel):
    def __init__(self, manager: Any, type_: _Walk) -> None:
        members = [
            ("header", types.int64),
            ("live", types.int64),
            ("used", types.int64),
            ("offset", types.int64),
            ("place", types.EphemeralPointer(types.int64)),
        ]
        super().__init__(manager, type_, members)


def type_of(part: Part) -> types.Type:
    """Return the numba type of a key, value or item."""
    return types.Tuple([KINDS[kind] for kind in part.kinds]) if part.is_tuple else KINDS[part.kinds[0]]


def _floats(part: Part) -> tuple[bool, ...]:
    return tuple(kind == "float" for kind in part.kinds)


# --- values and words -------------------------------------------------------------------------------------------------


@intrinsic
def header_of(typing: Any, held: Any) -> Any:
    """Return the address of a container's header."""

    def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
        return builder.ptrtoint(arguments[0], llvm.IntType(64))

    return signature(types.int64, held), generate


def seen_as(held: Held) -> Callable[[int], Any]:
    """Return the function that returns the container whose header is at an address."""

    @intrinsic
    def seen(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], cgutils.voidptr_t)

        return signature(held, types.int64), generate

    return seen


def _word(context: Any, builder: Any, type_: types.Type, value: Any) -> Any:
    if type_ == types.float64:
        return builder.bitcast(value, llvm.IntType(64))
    return builder.zext(value, llvm.IntType(64)) if type_ == types.boolean else value


def _value(context: Any, builder: Any, type_: types.Type, word: Any) -> Any:
    if type_ == types.float64:
        return builder.bitcast(word, llvm.DoubleType())
    return builder.trunc(word, llvm.IntType(1)) if type_ == types.boolean else word


@functools.cache
def words_of(part: Part, what: str) -> Any:
    """Return the function that returns a value as a tuple of words, after a cast that raises for None.

    It refuses values of another kind.
    """
    members = [KINDS[kind] for kind in part.kinds]

    @intrinsic
    def words(typing: Any, value: Any) -> Any:
        given = list(value) if part.is_tuple and isinstance(value, types.BaseTuple) else [value]
        kinds = tuple(str(kind_of(each)).removesuffix("?") for each in given)
        if kinds != part.kinds or part.is_tuple != isinstance(value, types.BaseTuple):
            remedy = "; write 0.0" if kinds == ("int",) and part.kinds == ("float",) else ""
            shown = " and ".join(str(each) if kind == "None" else kind for each, kind in zip(given, kinds, strict=True))
            raise Refused(f"{what} is {shown}, and {' and '.join(part.kinds)} is annotated{remedy}")

        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            given = [arguments[0]]
            sources = [made.args[0]]
            if part.is_tuple:
                given = cgutils.unpack_tuple(builder, arguments[0], len(members))
                sources = list(made.args[0])
            found = [
                _word(context, builder, member, context.cast(builder, each, source, member))
                for each, source, member in zip(given, sources, members, strict=True)
            ]
            return context.make_tuple(builder, made.return_type, found)

        return signature(types.UniTuple(types.int64, len(members)), types.unliteral(value)), generate

    return words


@functools.cache
def value_at(part: Part) -> Any:
    """Return the function that returns the value at an address."""
    result = type_of(part)

    @intrinsic
    def value(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            found = []
            for place, kind in enumerate(part.kinds):
                at = builder.add(arguments[0], llvm.Constant(llvm.IntType(64), 8 * place))
                word = builder.load(builder.inttoptr(at, llvm.IntType(64).as_pointer()))
                found.append(_value(context, builder, KINDS[kind], word))
            return context.make_tuple(builder, result, found) if part.is_tuple else found[0]

        return signature(result, types.int64), generate

    return value


@functools.cache
def entry_at(held: Held) -> Any:
    """Return the function that returns what a loop over a container yields for the entry at an address."""
    key, value = value_at(held.holding.key), value_at(held.holding.value or held.holding.key)
    ahead = 8 * len(held.holding.key.kinds)
    if held.view == "items":
        return register_jitable(lambda address: (key(address), value(address + ahead)))
    if held.view == "values":
        return register_jitable(lambda address: value(address + ahead))
    return register_jitable(lambda address: key(address))


# --- loops ------------------------------------------------------------------------------------------------------------


def _lower_loops() -> None:
    @lower_builtin("getiter", Held)
    def getiter(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
        walk = context.make_helper(builder, made.return_type)
        walk.header = builder.ptrtoint(arguments[0], llvm.IntType(64))
        for name, offset in (("live", memory.LIVE), ("used", memory.USED), ("offset", memory.OFFSET)):
            at = builder.add(walk.header, llvm.Constant(llvm.IntType(64), offset))
            setattr(walk, name, builder.load(builder.inttoptr(at, llvm.IntType(64).as_pointer())))
        walk.place = cgutils.alloca_once_value(builder, llvm.Constant(llvm.IntType(64), 0))
        return walk._getvalue()

    @lower_builtin("iternext", _Walk)
    @iternext_impl(RefType.UNTRACKED)
    def iternext(context: Any, builder: Any, made: Any, arguments: Any, result: Any) -> None:
        (type_,) = made.args
        walk = context.make_helper(builder, type_, value=arguments[0])
        place = builder.load(walk.place)
        words = signature(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64)
        given = [walk.header, walk.live, walk.used, walk.offset, place]
        found = context.compile_internal(builder, _next_of(type_.held), words, given)
        valid = builder.icmp_signed(">=", found, llvm.Constant(llvm.IntType(64), 0))
        result.set_valid(valid)
        with builder.if_then(valid):
            at, entry = _address_of(type_.held), entry_at(type_.held)
            yielded = context.compile_internal(
                builder,
                lambda header, found: entry(at(header, found)),
                signature(type_.yield_type, types.int64, types.int64),
                [walk.header, found],
            )
            result.yield_(yielded)
            builder.store(builder.add(found, llvm.Constant(llvm.IntType(64), 1)), walk.place)


_lower_loops()


@functools.cache
def _address_of(held: Held) -> Any:
    stride = held.holding.stride
    return register_jitable(lambda header, entry: memory.address_of(header, entry * stride))


@functools.cache
def _following(held: Held) -> Any:
    """Return `following(header, place)`: the first entry from this place on, or -1."""
    if held.holding.shape != "list":
        return held.operations.next
    return register_jitable(lambda header, place: place if place < load(header + memory.USED) else -1)


@functools.cache
def _next_of(held: Held) -> Any:
    """Return `next(header, live, used, offset, place)`: the next entry of a loop, or -1 at its end."""
    following, is_deque = _following(held), held.holding.made is deque
    if held.holding.shape == "list" and not is_deque:
        return register_jitable(lambda header, live, used, offset, place: following(header, place))

    @register_jitable
    def next_entry(header, live, used, offset, place):
        is_same = load(header + memory.LIVE) == live and load(header + memory.USED) == used
        if not is_same or load(header + memory.OFFSET) != offset:
            # Python raises RuntimeError, or, after as many insertions as deletions, goes on in an order of its own.
            raise ValueError  # `LIVE` of a deque counts its changes
        return following(header, place)

    return next_entry


# --- what the stand-ins need ------------------------------------------------------------------------------------------


# What is compiled of the containers that are not lists, dicts or sets.
_LIKE_DICTS: Final = ("[]", "[] =", "clear", "del", "get", "in", "items", "keys", "pop", "setdefault", "values")
_DONE_WITH: Final[dict[type, tuple[str, ...]]] = {
    Counter: (*_LIKE_DICTS, "+=", "extend or update", "subtract"),
    defaultdict: (*_LIKE_DICTS, "extend or update"),
    deque: ("[]", "[] =", "append", "appendleft", "clear", "extend or update", "pop", "popleft"),
}


def _of(me: Any, shape: str, what: str, *, changes: bool = False) -> Any:
    """Return the operations of a container of a shape (`list dict`). Raises Refused for anything else."""
    if not isinstance(me, Held) or me.holding.shape not in shape.split() or me.view:
        raise Refused(f"it uses {what} of {me}")
    if me.holding.made is not None and what not in _DONE_WITH[me.holding.made]:
        raise Refused(f"it uses {what} of a {me.holding.name}")
    if changes and not me.changeable:
        raise Refused(f"it changes a container by {what}, which is not the accumulator's, or in get_value")
    return me.operations


def _is_given(argument: Any) -> bool:
    return not (argument is None or isinstance(argument, (types.Omitted, types.NoneType)))


def _whole(what: str, *given: Any) -> None:
    """Refuse indexes that are no integers."""
    for each in given:
        if str(kind_of(each)) not in ("int", "bool"):
            raise Refused(f"{what} of {each}")


# --- methods ----------------------------------------------------------------------------------------------------------


@stand_in
def append(me: Any, item: Any) -> Any:
    """Stand for `list.append`."""
    made = _of(me, "list", "append", changes=True)
    words, appended = words_of(me.holding.key, "the item of append"), made.appended
    if me.holding.made is deque:
        limited = _limited(me.holding)

        def at_end(me: Any, item: Any) -> None:
            appended(header_of(me), words(item))
            limited(header_of(me))

        return at_end
    return lambda me, item: appended(header_of(me), words(item))


@functools.cache
def _limited(holding: Holding) -> Any:
    """Return the function that removes the first item of a deque if it is too long, and counts the change."""
    cut, limit = list_operations(holding.stride).cut, -1 if holding.limit is None else holding.limit

    @register_jitable
    def limited(header):
        if 0 <= limit < load(header + memory.USED):
            cut(header, 0, 1)
        memory.store(header + memory.LIVE, load(header + memory.LIVE) + 1)

    return limited


@stand_in
def append_left(me: Any, item: Any) -> Any:
    """Stand for `deque.appendleft`."""
    made = _of(me, "list", "appendleft", changes=True)
    words, inserted, limited = words_of(me.holding.key, "the item of appendleft"), made.inserted, _limited(me.holding)
    cut, limit = made.cut, -1 if me.holding.limit is None else me.holding.limit

    def at_begin(me: Any, item: Any) -> None:
        header = header_of(me)
        inserted(header, 0, words(item))
        if 0 <= limit < load(header + memory.USED):
            cut(header, limit, limit + 1)
        limited(header)

    return at_begin


@stand_in
def pop_left(me: Any) -> Any:
    """Stand for `deque.popleft`."""
    made = _of(me, "list", "popleft", changes=True)
    value, cut, limited = value_at(me.holding.key), made.cut, _limited(me.holding)

    def popped(me: Any) -> Any:
        header = header_of(me)
        if load(header + memory.USED) == 0:
            raise ValueError
        found = value(memory.address_of(header, 0))
        cut(header, 0, 1)
        limited(header)
        return found

    return popped


@stand_in
def add(me: Any, key: Any) -> Any:
    """Stand for `set.add`."""
    made = _of(me, "set", "add", changes=True)
    words, find, added = words_of(me.holding.key, "the item of add"), made.find, made.added

    def found(me: Any, key: Any) -> None:
        if find(header_of(me), words(key)) < 0:
            added(header_of(me), words(key))

    return found


def _deleting(name: str, shape: str, *, must_exist: bool) -> Any:
    """Return the stand-in of what deletes an entry. Of a Counter, it need not exist."""

    @stand_in
    def choose(me: Any, key: Any) -> Any:
        made = _of(me, shape, name, changes=True)
        words = words_of(me.holding.key, f"the {'key' if shape == 'dict' else 'item'} of {name}")
        find, deleted = made.find, made.deleted
        may_lack = not must_exist or me.holding.made is Counter

        def found(me: Any, key: Any) -> None:
            entry = find(header_of(me), words(key))
            if entry >= 0:
                deleted(header_of(me), entry)
            elif not may_lack:
                raise ValueError  # the interpreter raises KeyError

        return found

    return choose


_delete_key: Final = _deleting("del", "dict", must_exist=True)


@stand_in
def clear(me: Any) -> Any:
    """Stand for `clear`."""
    _of(me, "list dict set", "clear", changes=True)
    emptied, is_deque = memory.emptied, me.holding.made is deque

    def cleared(me: Any) -> None:
        changes = load(header_of(me) + memory.LIVE)
        emptied(header_of(me))
        if is_deque:
            memory.store(header_of(me) + memory.LIVE, changes + 1)

    return cleared


@stand_in
def get(me: Any, key: Any, default: Any = None) -> Any:
    """Stand for `dict.get`."""
    made = _of(me, "dict", "get")
    words, find, at = words_of(me.holding.key, "the key of get"), made.find, made.at
    ahead, value = 8 * len(me.holding.key.kinds), value_at(me.holding.value)
    if not _is_given(default):

        def without(me: Any, key: Any, default: Any = None) -> Any:
            entry = find(header_of(me), words(key))
            return None if entry < 0 else value(at(header_of(me), entry) + ahead)

        return without
    same = same_as(me.holding.value, "the default of get")

    def with_default(me: Any, key: Any, default: Any = None) -> Any:
        entry = find(header_of(me), words(key))
        return same(default) if entry < 0 else value(at(header_of(me), entry) + ahead)

    return with_default


@functools.cache
def same_as(part: Part, what: str) -> Any:
    """Return the function that returns a value of a part's type unchanged, and refuses others."""
    words, result = words_of(part, what), type_of(part)

    @intrinsic
    def same(typing: Any, value: Any) -> Any:
        typing.resolve_function_type(words, (value,), {})  # refuses

        def generate(context: Any, builder: Any, made: Any, arguments: Any) -> Any:
            return context.cast(builder, arguments[0], made.args[0], result)

        return signature(result, types.unliteral(value)), generate

    return same


@stand_in
def set_default(me: Any, key: Any, default: Any) -> Any:
    """Stand for `dict.setdefault`."""
    made = _of(me, "dict", "setdefault", changes=True)
    words, find, at, added = words_of(me.holding.key, "the key"), made.find, made.at, made.added
    given = words_of(me.holding.value, "the default of setdefault")
    ahead, value = 8 * len(me.holding.key.kinds), value_at(me.holding.value)

    def found(me: Any, key: Any, default: Any) -> Any:
        entry = find(header_of(me), words(key))
        if entry < 0:
            entry = added(header_of(me), words(key) + given(default))
        return value(at(header_of(me), entry) + ahead)

    return found


@stand_in
def pop(me: Any, key: Any = None, default: Any = None) -> Any:
    """Stand for `list.pop` and `dict.pop`."""
    made = _of(me, "list dict", "pop", changes=True)
    if me.holding.shape == "list":
        value, cut, stride = value_at(me.holding.key), made.cut, me.holding.stride
        if _is_given(key):
            _whole("pop", key)
        is_last, is_deque = not _is_given(key), me.holding.made is deque
        if is_deque and not is_last:
            raise Refused("it uses pop of a deque with an argument")

        def popped(me: Any, key: Any = None, default: Any = None) -> Any:
            used = load(header_of(me) + memory.USED)
            place = index_of(-1 if is_last else key, used)
            found = value(memory.address_of(header_of(me), place * stride))
            cut(header_of(me), place, place + 1)
            if is_deque:
                memory.store(header_of(me) + memory.LIVE, load(header_of(me) + memory.LIVE) + 1)
            return found

        return popped
    words, find, at, deleted = words_of(me.holding.key, "the key of pop"), made.find, made.at, made.deleted
    ahead, value = 8 * len(me.holding.key.kinds), value_at(me.holding.value)
    if isinstance(default, types.NoneType):  # None is given; no default is Omitted

        def or_none(me: Any, key: Any = None, default: Any = None) -> Any:
            entry = find(header_of(me), words(key))
            if entry < 0:
                return None
            found = value(at(header_of(me), entry) + ahead)
            deleted(header_of(me), entry)
            return found

        return or_none
    has_default = _is_given(default)
    same: Any = same_as(me.holding.value, "the default of pop") if has_default else None

    def taken(me: Any, key: Any = None, default: Any = None) -> Any:
        entry = find(header_of(me), words(key))
        if entry < 0:
            return same(default)
        found = value(at(header_of(me), entry) + ahead)
        deleted(header_of(me), entry)
        return found

    def required(me: Any, key: Any = None, default: Any = None) -> Any:
        entry = find(header_of(me), words(key))
        if entry < 0:
            raise ValueError  # the interpreter raises KeyError
        found = value(at(header_of(me), entry) + ahead)
        deleted(header_of(me), entry)
        return found

    return taken if has_default else required


@stand_in
def insert(me: Any, place: Any, item: Any) -> Any:
    """Stand for `list.insert`."""
    made = _of(me, "list", "insert", changes=True)
    _whole("insert", place)
    words, inserted = words_of(me.holding.key, "the item of insert"), made.inserted

    def put(me: Any, place: Any, item: Any) -> None:
        inserted(header_of(me), bound_of(place, load(header_of(me) + memory.USED)), words(item))

    return put


@stand_in
def extend(me: Any, other: Any) -> Any:
    """Stand for `list.extend`, and `set.update` and `dict.update` with another of the same type."""
    made = _of(me, "list set dict", "extend or update", changes=True)
    if not isinstance(other, Held) or other.holding != me.holding or other.view:
        raise Refused(f"it extends a {me.holding.name} by {other}")
    if me.holding.made is Counter:
        return lambda me, other: _add_counts(me, other)
    if me.holding.made is deque:
        return _extended_deque(me)
    if me.holding.shape == "list":
        extended = made.extended
        return lambda me, other: extended(header_of(me), header_of(other), 0, load(header_of(other) + memory.USED))
    find, added, at, following, key_of = made.find, made.added, made.at, made.next, made.key_of
    keys, whole, stride = len(me.holding.key.kinds), memory.words_tuple(me.holding.stride), me.holding.stride

    def updated(me: Any, other: Any) -> None:
        entry = following(header_of(other), 0)
        while entry >= 0:
            address = at(header_of(other), entry)
            mine = find(header_of(me), key_of(address))
            if mine < 0:
                added(header_of(me), whole(address))
            else:
                for place in range(keys, stride):
                    memory.change(load(header_of(me)), at(header_of(me), mine) + 8 * place, load(address + 8 * place))
            entry = following(header_of(other), entry + 1)

    return updated


def _extended_deque(me: Held) -> Any:
    """Return the implementation of `deque.extend` with another deque of the same type."""
    made, limited, whole = (
        list_operations(me.holding.stride),
        _limited(me.holding),
        memory.words_tuple(me.holding.stride),
    )
    appended, at = made.appended, _address_of(me)

    def extended(me: Any, other: Any) -> None:
        if header_of(me) == header_of(other):
            raise ValueError  # Python copies it first
        for place in range(load(header_of(other) + memory.USED)):
            appended(header_of(me), whole(at(header_of(other), place)))
            limited(header_of(me))

    return extended


def _counting(what: str, plus: Any, *, keeps_positive: bool = False) -> Any:
    """Return the stand-in of what adds the counts of another Counter, or subtracts them."""

    @stand_in
    def choose(me: Any, other: Any) -> Any:
        made = _of(me, "dict", what, changes=True)
        if not isinstance(other, Held) or other.holding != me.holding or other.view:
            raise Refused(f"it uses {what} of a Counter with {other}")
        find, added, deleted, at, following, key_of = (
            made.find, made.added, made.deleted, made.at, made.next, made.key_of,
        )  # fmt: skip

        def counted(me: Any, other: Any) -> None:
            entry = following(header_of(other), 0)
            while entry >= 0:
                address = at(header_of(other), entry)
                mine = find(header_of(me), key_of(address))
                count = load(address + 8)
                if mine < 0:
                    added(header_of(me), (load(address), plus(0, count)))
                else:
                    place = at(header_of(me), mine) + 8
                    memory.change(load(header_of(me)), place, plus(load(place), count))
                entry = following(header_of(other), entry + 1)
            if keeps_positive:
                entry = following(header_of(me), 0)
                while entry >= 0:
                    if load(at(header_of(me), entry) + 8) <= 0:
                        deleted(header_of(me), entry)
                    entry = following(header_of(me), entry + 1)

        return counted

    return choose


_add_counts: Final = _counting("extend or update", add_int)
_subtract_counts: Final = _counting("subtract", sub_int)
_add_in_place: Final = _counting("+=", add_int, keeps_positive=True)


def _view(name: str) -> Any:
    @stand_in
    def view(me: Any) -> Any:
        _of(me, "dict", name)
        seen = seen_as(Held(me.holding, changeable=False, view=name))
        return lambda me: seen(header_of(me))

    return view


@stand_in
def sort(me: Any) -> Any:
    """Stand for `list.sort`."""
    made = _of(me, "list", "sort", changes=True)
    ordered, put, stride = _sorted_of(me), made.put, me.holding.stride
    whole = memory.words_tuple(stride)

    def done(me: Any) -> None:
        found = ordered(header_of(me))
        for place in range(load(found + memory.USED)):
            put(header_of(me), place, whole(memory.address_of(found, place * stride)))

    return done


def _sorted_of(me: Held) -> Any:
    """Return the function that returns the header of a sorted temporary list of a list, or of the keys or values."""
    part = me.part
    assert part is not None
    _check_order(part)
    sorting, made = memory.sorting(_floats(part)), list_operations(len(part.kinds))
    appended, widened, whole = made.appended, made.widened, memory.words_tuple(len(part.kinds))
    following, at = _following(me), _address_of(me)
    ahead = 8 * len(me.holding.key.kinds) if me.view == "values" else 0
    count = memory.USED if me.holding.shape == "list" else memory.LIVE

    @register_jitable
    def ordered(header):
        found, scratch, size = memory.new_header(header), memory.new_header(header), load(header + count)
        widened(found, size)
        widened(scratch, size)
        entry = following(header, 0)
        while entry >= 0:
            appended(found, whole(at(header, entry) + ahead))
            entry = following(header, entry + 1)
        sorting(found, scratch)
        return found

    return ordered


def _check_order(part: Part) -> None:
    unordered = set(part.kinds) - _ORDERED
    if unordered:
        raise Refused(f"it orders values of the kind {unordered.pop()}")


_ORDERED: Final = {"int", "float", "bool", "date", "timestamp", "time", "duration"}

METHODS: Final[dict[str, Any]] = {
    "append": append,
    "appendleft": append_left,
    "add": add,
    "clear": clear,
    "discard": _deleting("discard", "set", must_exist=False),
    "extend": extend,
    "get": get,
    "insert": insert,
    "items": _view("items"),
    "keys": _view("keys"),
    "pop": pop,
    "popleft": pop_left,
    "remove": _deleting("remove", "set", must_exist=True),
    "setdefault": set_default,
    "sort": sort,
    "subtract": _subtract_counts,
    "update": extend,
    "values": _view("values"),
}


@functools.cache
def empty_of(holding: Holding) -> Any:
    """Return the function that makes an empty container."""
    seen = seen_as(Held(holding, changeable=True, temporary=True))
    made = numba.njit(nogil=True)(lambda: seen(memory.fresh_header()))
    EMPTIES.add(made)
    return made


EMPTIES: Final[set[Any]] = set()
"""The functions that `empty_of` has returned."""


# --- operators --------------------------------------------------------------------------------------------------------


@stand_in
def contains(me: Any, key: Any) -> Any:
    """Stand for `key in me`."""
    made = _of(me, "dict set", "in")
    words, find = words_of(me.holding.key, "the key of in"), made.find
    return lambda me, key: find(header_of(me), words(key)) >= 0


def get_item(me: Held, index: Any) -> Any:
    """Return the implementation of `me[index]`."""
    made = _of(me, "list dict", "[]")
    if me.holding.shape == "dict":
        words, find, at = words_of(me.holding.key, "the key of []"), made.find, made.at
        ahead, value = 8 * len(me.holding.key.kinds), value_at(me.holding.value)
        if me.holding.made is Counter:

            def counted(me: Any, index: Any) -> Any:
                entry = find(header_of(me), words(index))
                return 0 if entry < 0 else value(at(header_of(me), entry) + ahead)

            return counted
        added, adds = made.added, me.holding.made is defaultdict and me.changeable

        def found(me: Any, index: Any) -> Any:
            entry = find(header_of(me), words(index))
            if entry < 0:
                if not adds:
                    raise ValueError  # the interpreter raises KeyError
                entry = added(header_of(me), (*words(index), 0))  # zero, 0.0 and False are the same word
            return value(at(header_of(me), entry) + ahead)

        return found
    if isinstance(index, types.SliceType):
        if me.holding.made is not None:
            raise Refused(f"it takes a slice of a {me.holding.name}")
        return _slice(me, index)
    _whole("[]", index)
    item, stride = value_at(me.holding.key), me.holding.stride

    def at_place(me: Any, index: Any) -> Any:
        header = header_of(me)
        return item(memory.address_of(header, index_of(index, load(header + memory.USED)) * stride))

    return at_place


def _slice(me: Held, index: types.SliceType) -> Any:
    if index.has_step:
        raise Refused("it takes a slice with a step")
    seen, made = seen_as(Held(me.holding, changeable=False)), list_operations(me.holding.stride)
    extended = made.extended

    def part(me: Any, index: Any) -> Any:
        header = header_of(me)
        used = load(header + memory.USED)
        start, stop = bound_of(index.start, used), bound_of(index.stop, used)
        found = memory.new_header(header)
        if start < stop:
            extended(found, header, start, stop)
        return seen(found)

    return part


@stand_in
def _put(me: Any, index: Any, value: Any) -> Any:
    """Stand for what a dict comprehension does with each entry."""
    return set_item(me, index, value)


METHODS["__setitem__"] = _put


def set_item(me: Held, index: Any, value: Any) -> Any:
    """Return the implementation of `me[index] = value`."""
    made = _of(me, "list dict", "[] =", changes=True)
    if me.holding.shape == "list":
        _whole("[] =", index)
        given, put = words_of(me.holding.key, "the item"), made.put

        def replaced(me: Any, index: Any, value: Any) -> None:
            header = header_of(me)
            put(header, index_of(index, load(header + memory.USED)), given(value))

        return replaced
    words, find, at, added = words_of(me.holding.key, "the key of [] ="), made.find, made.at, made.added
    given, keys, stride = words_of(me.holding.value, "the value"), len(me.holding.key.kinds), me.holding.stride

    def assigned(me: Any, index: Any, value: Any) -> None:
        header, key, found = header_of(me), words(index), given(value)
        entry = find(header, key)
        if entry < 0:
            added(header, key + found)
        else:
            address = at(header, entry)
            for place in range(keys, stride):
                memory.change(load(header), address + 8 * place, found[place - keys])

    return assigned


@stand_in
def delete_item(me: Any, index: Any) -> Any:
    """Stand for `del me[index]`."""
    made = _of(me, "list dict", "del", changes=True)
    if me.holding.shape == "dict":
        return lambda me, index: _delete_key(me, index)
    cut = made.cut
    if isinstance(index, types.SliceType):
        if index.has_step:
            raise Refused("it deletes a slice with a step")

        def cut_slice(me: Any, index: Any) -> None:
            used = load(header_of(me) + memory.USED)
            start, stop = bound_of(index.start, used), bound_of(index.stop, used)
            if start < stop:
                cut(header_of(me), start, stop)

        return cut_slice
    _whole("del", index)

    def cut_one(me: Any, index: Any) -> None:
        place = index_of(index, load(header_of(me) + memory.USED))
        cut(header_of(me), place, place + 1)

    return cut_one


@stand_in
def put_whole(me: Any, other: Any) -> Any:
    """Stand for the assignment of a container to the accumulator, or to its attribute."""
    if not isinstance(me, Held) or not isinstance(other, Held) or other.view or me.holding != other.holding:
        raise Refused(f"it replaces a container by {other}")
    if not other.is_new:

        def same(me: Any, other: Any) -> None:
            if header_of(me) != header_of(other):
                raise ValueError  # two attributes would be the same object

        return same
    if other.changeable and me.holding.made is None:

        def moved(me: Any, other: Any) -> None:
            for place in range(1, HEADER):
                memory.store(header_of(me) + 8 * place, load(header_of(other) + 8 * place))

        return moved
    if me.holding.shape != "list":
        raise Refused(f"it replaces a {me.holding.shape}")
    extended, emptied = list_operations(me.holding.stride).extended, memory.emptied

    def replaced(me: Any, other: Any) -> None:
        used = load(header_of(other) + memory.USED)
        emptied(header_of(me))
        if used:
            extended(header_of(me), header_of(other), 0, used)

    return replaced


def in_place(plain: Any, shapes: str, *, plus: bool = False) -> Any:
    """Return the stand-in of an operator such as `+=`, for containers and all others, for which it is `plain`."""

    @stand_in
    def choose(me: Any, other: Any) -> Any:
        if not isinstance(me, Held):
            return lambda me, other: plain(me, other)
        if me.holding.made is Counter and plus:

            def counted(me: Any, other: Any) -> Any:
                _add_in_place(me, other)
                return me

            return counted
        _of(me, shapes, "extend or update" if me.holding.made is deque else "an operator in place", changes=True)

        def extended(me: Any, other: Any) -> Any:
            extend(me, other)
            return me

        return extended

    return choose


# --- functions --------------------------------------------------------------------------------------------------------


@stand_in
def length_of(me: Any) -> Any:
    """Stand for `len`."""
    if isinstance(me, types.BaseTuple):
        count = len(me)
        return lambda me: count
    if not isinstance(me, Held):
        raise Refused(f"it calls len of {me}")
    return is_full(me)


def is_full(me: Held) -> Any:
    """Return the function that returns the number of entries of a container."""
    at = memory.USED if me.holding.shape == "list" else memory.LIVE
    return lambda me: load(header_of(me) + at)


@stand_in
def ordered_list(me: Any) -> Any:
    """Stand for `sorted`."""
    part = me.part if isinstance(me, Held) else None
    if part is None:
        raise Refused(f"it sorts {me}")
    ordered, seen = _sorted_of(me), seen_as(Held(Holding("list", part), changeable=False))
    return lambda me: seen(ordered(header_of(me)))


def _extreme(name: str, wins: Any) -> Any:
    """Return the stand-in of `min` or `max` of a container."""
    beats = register_jitable(lambda one, other: wins(one, other))

    @stand_in
    def choose(me: Any) -> Any:
        part = me.part if isinstance(me, Held) else None
        if part is None or part.is_tuple or part.kinds[0] not in ("int", "float"):
            raise Refused(f"it calls {name} of {me}")
        following, at, entry = _following(me), _address_of(me), entry_at(me)

        def found(me: Any) -> Any:
            header = header_of(me)
            place = following(header, 0)
            if place < 0:
                raise ValueError
            best = entry(at(header, place))
            place = following(header, place + 1)
            while place >= 0:
                value = entry(at(header, place))
                if beats(value, best):
                    best = value
                place = following(header, place + 1)
            return best

        return found

    return choose


_COMPENSATED: Final = sys.version_info >= (3, 12)  # since then Python sums floats with a compensation


@stand_in
def total(me: Any) -> Any:
    """Stand for `sum`."""
    part = me.part if isinstance(me, Held) else None
    if part is None or part.is_tuple or part.kinds[0] not in ("int", "float"):
        raise Refused(f"it calls sum of {me}")
    if part.kinds[0] == "float" and (me.holding.shape == "set" or _COMPENSATED):
        raise Refused("it calls sum of floats in a set, or in a Python that sums with a compensation (3.12)")
    following, at, entry = _following(me), _address_of(me), entry_at(me)
    is_float = part.kinds[0] == "float"
    plus = register_jitable(lambda one, other: one + other) if is_float else add_int

    def found(me: Any) -> Any:
        header = header_of(me)
        place = following(header, 0)
        if place < 0 and is_float:
            raise ValueError  # Python's sum is the integer 0
        summed = 0.0 if is_float else 0
        while place >= 0:
            summed = plus(summed, entry(at(header, place)))
            place = following(header, place + 1)
        return summed

    return found


# The algorithm of CPython's heapq, so that the items are in the same order.


def _heap(name: str, pushes: bool, pops: bool) -> Any:
    """Return the stand-in of a function of heapq: it pushes an item, pops the least one, or replaces it."""

    @stand_in
    def choose(me: Any, item: Any = None) -> Any:
        made = _of(me, "list", name, changes=True)
        part = me.holding.key
        _check_order(part)
        down, up = _sifts(part)
        words: Any = words_of(part, f"the item of {name}") if pushes else None
        value = value_at(part)
        put, appended, cut, whole = made.put, made.appended, made.cut, memory.words_tuple(len(part.kinds))
        stride = len(part.kinds)

        def pushed(me: Any, item: Any = None) -> None:
            header = header_of(me)
            appended(header, words(item))
            down(header, 0, load(header + memory.USED) - 1)

        def replaced(me: Any, item: Any = None) -> Any:
            header = header_of(me)
            if load(header + memory.USED) == 0:
                raise ValueError
            least = value(memory.address_of(header, 0))
            put(header, 0, words(item))
            up(header, 0)
            return least

        def popped(me: Any, item: Any = None) -> Any:
            header = header_of(me)
            used = load(header + memory.USED)
            if used == 0:
                raise ValueError
            least = value(memory.address_of(header, 0))
            last = whole(memory.address_of(header, (used - 1) * stride))
            cut(header, used - 1, used)
            if used > 1:
                put(header, 0, last)
                up(header, 0)
            return least

        return (replaced if pops else pushed) if pushes else popped

    return choose


@functools.cache
def _sifts(part: Part) -> tuple[Any, Any]:
    """Return heapq's `_siftdown(heap, start, place)` and `_siftup(heap, place)`."""
    stride, less = len(part.kinds), memory.ordering(_floats(part))
    put, whole = list_operations(stride).put, memory.words_tuple(stride)

    @register_jitable
    def swap(header, one, other):
        first, second = memory.address_of(header, one * stride), memory.address_of(header, other * stride)
        item = whole(first)
        put(header, one, whole(second))
        put(header, other, item)

    @register_jitable
    def down(header, start, place):
        while place > start:
            parent = (place - 1) >> 1
            if not less(memory.address_of(header, place * stride), memory.address_of(header, parent * stride)):
                break
            swap(header, place, parent)
            place = parent

    @register_jitable
    def up(header, place):
        end, start = load(header + memory.USED), place
        child = 2 * place + 1
        while child < end:
            right = child + 1
            if right < end and not less(
                memory.address_of(header, child * stride), memory.address_of(header, right * stride)
            ):
                child = right
            swap(header, place, child)
            place = child
            child = 2 * place + 1
        down(header, start, place)

    return down, up


def _asking(*, stops_at: bool) -> Any:
    """Return the stand-in of `any`, or of `all`, which stop at the first value that is true, or false."""

    @stand_in
    def choose(me: Any) -> Any:
        part = me.part if isinstance(me, Held) else None
        if part is None or part.is_tuple or part.kinds[0] not in ("bool", "int", "float", *TEXTS):
            raise Refused(f"it calls any or all of {me}")
        following, at, entry = _following(me), _address_of(me), entry_at(me)

        def found(me: Any) -> bool:
            header = header_of(me)
            place = following(header, 0)
            while place >= 0:
                if (as_number(entry(at(header, place))) != 0) == stops_at:
                    return stops_at
                place = following(header, place + 1)
            return not stops_at

        return found

    return choose


PUSHING: Final = (_heap("heappush", pushes=True, pops=False), _heap("heapreplace", pushes=True, pops=True))
CALLS: Final[dict[Any, Any]] = {
    sorted: ordered_list,
    sum: total,
    any: _asking(stops_at=True),
    all: _asking(stops_at=False),
    slice: slice,
    enumerate: enumerate,
    zip: zip,
    heapq.heappush: PUSHING[0],
    heapq.heapreplace: PUSHING[1],
    heapq.heappop: _heap("heappop", pushes=False, pops=True),
}
LEAST: Final = _extreme("min", operator.lt)
GREATEST: Final = _extreme("max", operator.gt)
