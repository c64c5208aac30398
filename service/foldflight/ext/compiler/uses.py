"""Find what an author's code stores in an accumulator whose new state does not tell it: `None`, an empty list or dict.

It reads the code without compiling it, and follows values as far as their kinds are plain to see. What it finds is a
guess: compiling refuses code that stores something else.
"""

from __future__ import annotations

import bisect
import inspect
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from numba.core import ir
from numba.core.compiler import run_frontend

from foldflight.ext.compiler.arena import Element
from foldflight.ext.compiler.datetimes import number_of
from foldflight.ext.compiler.records import is_named_tuple
from foldflight.fold.mode import Unsupported

if TYPE_CHECKING:
    from foldflight.ext.compiler.records import RecordField
    from foldflight.ext.compiler.untyped_accumulators import Part

_NUMBERS: Final = ("bool", "int", "float")
_PLAIN: Final[dict[Any, str]] = {bool: "bool", int: "int", float: "float", str: "text", bytes: "bytes"}
_NONE: Final = "none"
# The kinds of what functions, methods and attributes give.
_FUNCTIONS: Final[dict[Any, str]] = {
    int: "int", float: "float", bool: "bool", str: "text", len: "int", ord: "int", math.floor: "int",
    math.ceil: "int", math.trunc: "int", math.isqrt: "int", math.isnan: "bool", math.isfinite: "bool",
    bisect.bisect_left: "int", bisect.bisect_right: "int",
}  # fmt: skip
_METHODS: Final[dict[str, Any]] = {
    **dict.fromkeys(("capitalize", "casefold", "format", "isoformat", "join", "lower", "lstrip", "replace"), "text"),
    **dict.fromkeys(("rstrip", "strftime", "strip", "title", "upper"), "text"),
    **dict.fromkeys(("count", "find", "index", "isoweekday", "toordinal", "weekday"), "int"),
    "date": "date", "encode": "bytes", "isocalendar": ("int", "int", "int"), "timestamp": "float",
    "total_seconds": "float",
}  # fmt: skip
_SPLITTING: Final = ("split", "rsplit", "partition", "rpartition", "splitlines")
_ATTRIBUTES: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond", "days", "seconds")
_SAME: Final = (abs, max, min, round)  # functions that give what they get
_OF_ITEMS: Final = (max, min, sum)  # functions that give one of the items that they get, or a number of their kind
_PASSING: Final = (list, reversed, set, sorted, tuple)  # functions that give the items that they get
_HOLDING: Final = (dict, list, tuple, set, frozenset)
_BITS: Final = (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift)
_COMPARING: Final = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.contains, operator.is_, operator.is_not, operator.not_),
)
# Methods that add to a container, with the positions of the key, and of the value, among their arguments.
_PUTTING: Final = {
    "append": (0,), "appendleft": (0,), "add": (0,), "insert": (1,), "setdefault": (0, 1), "get": (0,), "pop": (0,),
    "move_to_end": (0,),
}  # fmt: skip
_CONTAINERS: Final[dict[str, type]] = {"list": list, "dict": dict, "set": set}
_INNER: Final = "[]"  # stands after the path of a dict for the containers that it holds
_CALLEES_MAX: Final = 3  # functions of the author that call each other
_DEPTH_MAX: Final = 40  # definitions that are followed from one variable


@dataclass(frozen=True)
class _Place:
    """A member of the accumulator."""

    path: str


@dataclass(frozen=True)
class _Object:
    """An object that the code names, such as a function or a number."""

    value: Any


@dataclass(frozen=True)
class _BoundMethod:
    """A method before its call."""

    of: Any
    name: str


@dataclass(frozen=True)
class _Named:
    """A NamedTuple: its class and its members."""

    cls: Any
    members: tuple[Any, ...]


@dataclass(frozen=True)
class _Many:
    """What gives values of one kind, such as an iterator."""

    value: Any


@dataclass
class Uses:
    """What code stores in fields, by their names."""

    stored: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    objects: dict[str, str] = field(default_factory=dict)  # the class of an object that is stored, or of a container
    tuples: dict[str, set[Element]] = field(default_factory=lambda: defaultdict(set))
    keys: dict[str, set[Element]] = field(default_factory=lambda: defaultdict(set))
    values: dict[str, set[Element]] = field(default_factory=lambda: defaultdict(set))
    made: Mapping[str, type] = field(default_factory=dict)  # the class of the containers that a defaultdict makes
    inner: dict[str, type] = field(default_factory=dict)  # the class of the containers that a dict holds

    def kind(self, path: str) -> str | None:
        """Return the kind that is stored in a field; None if it is unknown, or there are several."""
        return _only(self.stored.get(path, ()))

    def tuple_of(self, path: str) -> Element | None:
        """Return the tuple that is stored in a field; None if it is unknown, or not the only value."""
        return None if self.stored.get(path) else _only(self.tuples.get(path, ()))

    def elements(self, path: str, is_dict: bool) -> list[Element | None]:
        """Return the values that code puts into a container: items, or keys and values; each None if it is unknown."""
        keys = _only(self.keys.get(path, ()))
        if not is_dict:
            return [keys]
        inner = self.inner_class(path)
        if inner is None:
            return [keys, _only(self.values.get(path, ()))]
        return [keys, self._inner_element(inner, f"{path}{_INNER}")]

    def inner_class(self, path: str) -> type | None:
        """Return the class of the containers that a dict holds; None if it holds none."""
        return self.made.get(path) or self.inner.get(path)

    def _inner_element(self, cls: type, path: str) -> Element | None:
        from foldflight.ext.compiler.untyped_accumulators import nested_element

        parts = self.elements(path, issubclass(cls, dict))
        return nested_element(cls, [parts[0], Element(("int",))] if cls is Counter else parts)


def _only(values: Iterable[Any]) -> Any:
    items = [*values]
    return items[0] if len(items) == 1 else None


def find_uses(
    root: Part | RecordField,
    made: Mapping[str, type],
    cls: type,
    functions: Iterable[tuple[FunctionType, int]],
    kinds: Any,
) -> Uses:
    """Return what methods store in an accumulator.

    Args:
        root: The accumulator, as far as its types are known.
        made: The class of the containers that a defaultdict makes, by path.
        cls: The author's class.
        functions: Each method, with the position of its accumulator: the arguments stand behind it.
        kinds: The kinds of the arguments.
    """
    from foldflight.ext.compiler.literals import inline_comprehensions
    from foldflight.ext.compiler.rewrite import readable_copy

    uses = Uses(made=made)
    for function, position in functions:
        code = run_frontend(readable_copy(function))
        try:
            inline_comprehensions(code, ())  # what they change does not matter here
        except Unsupported:  # a generator that is not compiled: the rest of the code is read as it is
            code = run_frontend(readable_copy(function))
        arguments: dict[int, Any] = {position + 1 + index: kind for index, kind in enumerate(kinds)}
        arguments[position] = _Place(getattr(root, "path", "")[:-1])
        if position:
            arguments[0] = _Object(cls)
        _Reader(code, root, arguments, uses).read()
        if made or uses.inner:  # now the containers are known that dicts hold
            _Reader(code, root, arguments, uses).read()
    return uses


class _Reader:
    """Reads the code of one method."""

    def __init__(self, code: Any, root: Any, arguments: Mapping[int, Any], uses: Uses, callees: int = 0) -> None:
        self.code = code
        self.callees = callees  # calls of the author's functions from the method to this code
        self.arguments = arguments
        self.uses = uses
        members = getattr(root, "members", None)
        fields = () if root is None else getattr(root, "fields", (root,))
        self.fields: dict[str, RecordField] = {each.name: each for each in fields}
        self.is_value = members is None
        self.parts = {each.path for each in getattr(root, "parts", ())}
        parts = () if members is None else (root, *root.parts)
        self.tuples = {each.path[:-1]: each for each in parts if each.optional}
        self.depth = 0
        self.added = self.find_added()

    def find_added(self) -> dict[int, ir.Var]:
        """Return the value added first to each list or set that the code makes, by the id of the expression."""
        from foldflight.ext.compiler.literals import attribute_of

        added: dict[int, ir.Var] = {}
        for block in self.code.blocks.values():
            for statement in block.body:
                call = statement.value if isinstance(statement, ir.Assign) else None
                if not isinstance(call, ir.Expr) or call.op != "call" or len(call.args) != 1:
                    continue
                method = self.root(call.func)
                if isinstance(method, ir.Expr) and attribute_of(method) in ("append", "add"):
                    added.setdefault(id(self.root(method.value)), call.args[0])
        return added

    def root(self, var: Any) -> Any:
        """Return the definition of a variable, followed through other variables; None if there are several."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(var, ir.Var):
                return var
            definitions = self.code._definitions.get(var.name, ())
            var = definitions[0] if len(definitions) == 1 else None
        return None

    def read(self) -> None:
        """Record what the code stores."""
        for block in self.code.blocks.values():
            for statement in block.body:
                match statement:
                    case ir.Return():  # the accumulator, if it is a value
                        self.store_kind("value", statement.value)
                    case ir.SetAttr():
                        self.store(self.member(self.of(statement.target), statement.attr), statement.value)
                    case ir.SetItem() | ir.StaticSetItem():
                        index = getattr(statement, "index_var", None) or statement.index
                        self.put_item(self.of(statement.target), index, statement.value)
                    case ir.Assign(value=ir.Expr(op="call") as call):
                        self.call(call)
                    case ir.Assign(value=ir.Expr(op="getitem") as item_expr):
                        self.read_item(self.of(item_expr.value), self.of(item_expr.index))
                    case ir.Assign(value=ir.Expr(op="inplace_binop") as joined):
                        self.put_each(self.of(joined.lhs), self.of(joined.rhs))
                    case ir.Assign(value=ir.Expr(op="binop") as contains_expr) if contains_expr.fn is operator.contains:
                        self.put(self.uses.keys, self.of(contains_expr.lhs), self.of(contains_expr.rhs))

    def store(self, place: Any, value: ir.Var) -> None:
        if isinstance(place, _Place):
            self.name_object(place.path, value)
            self.store_kind(place.path, value)

    def store_kind(self, path: str, value: ir.Var) -> None:
        """Record the kind of a value that is stored in a field, or its kinds if it is a tuple."""
        element = self.element(self.of(value))
        if element is not None and element.is_tuple:
            self.uses.tuples[path].add(element)
        elif element is not None:
            self.uses.stored[path].add(element.kinds[0])

    def name_object(self, path: str, value: ir.Var) -> None:
        """Record the class of an object or a container that is put somewhere, for the reason why it is not compiled."""
        name = self.name_of(value)
        if name:
            self.uses.objects.setdefault(path, name)

    def name_of(self, value: ir.Var) -> str:
        """Return the name of the class of an object or a container that code makes; empty for other values."""
        made = self.root(value)
        if not isinstance(made, ir.Expr):
            return ""
        function = self.of(made.func) if made.op == "call" else None
        cls = function.value if isinstance(function, _Object) and isinstance(function.value, type) else None
        name = {"build_list": "list", "build_set": "set", "build_map": "dict"}.get(made.op, "")
        if cls is not None and cls not in _PLAIN and number_of(cls) is None:
            name = cls.__name__
        return name

    def name_item(self, holder: Any, value: ir.Var) -> None:
        """Record the class of an object or a container that is put into a container."""
        path, name = self.path_of(holder), self.name_of(value)
        self.name_object(path, value)
        if name in _CONTAINERS and self.shape_of(holder) == "dict":
            self.uses.inner.setdefault(path, _CONTAINERS[name])

    def put_item(self, holder: Any, index: ir.Var, value: ir.Var) -> None:
        key = self.of(index)
        member = self.member_at(holder, key.value if isinstance(key, _Object) else None)
        if member is not None:
            self.store(member, value)
            return
        if self.shape_of(holder) == "list":
            self.put(self.uses.keys, holder, self.of(value))
            return
        self.put(self.uses.keys, holder, key)
        self.put(self.uses.values, holder, self.of(value))
        self.name_item(holder, value)

    def read_item(self, holder: Any, index: Any) -> None:
        """Record a key that is looked up: a defaultdict and a Counter are read before they are written."""
        if self.shape_of(holder) == "dict":
            self.put(self.uses.keys, holder, index)

    def call(self, call: ir.Expr) -> None:
        function = self.of(call.func)
        if isinstance(function, _BoundMethod) and function.name in _PUTTING:
            positions = [position for position in _PUTTING[function.name] if position < len(call.args)]
            targets = (self.uses.keys, self.uses.values)
            for into, position in zip(targets, positions, strict=False):
                self.put(into, function.of, self.of(call.args[position]))
                self.name_item(function.of, call.args[position])
            if function.name == "get" and len(call.args) > 1:
                self.name_item(function.of, call.args[1])
        if (
            isinstance(function, _BoundMethod)
            and function.name in ("extend", "subtract", "update")
            and len(call.args) == 1
        ):
            self.put_each(function.of, self.of(call.args[0]))
        name = getattr(getattr(function, "value", None), "__name__", "")
        if name in ("heappush", "heappushpop", "heapreplace", "insort_left", "insort_right") and len(call.args) == 2:
            self.put(self.uses.keys, self.of(call.args[0]), self.of(call.args[1]))

    def put_each(self, holder: Any, items: Any) -> None:
        """Record that all items of a value, or the characters of a text, are put into a container."""
        self.put(self.uses.keys, holder, "text" if self.kind(items) == "text" else self.items_of(items))

    def put(self, into: dict[str, set[Element]], holder: Any, value: Any) -> None:
        element = self.element(value)
        if self.shape_of(holder) and element is not None:
            into[self.path_of(holder)].add(element)

    def element(self, value: Any) -> Element | None:
        """Return a value, or a tuple of values, as an element; None if the kind of one is unknown, or one is None."""
        value_kind = self.kind(value)
        members = value_kind if isinstance(value_kind, tuple) else (value_kind,)
        if not members or not all(isinstance(each, str) and each != _NONE for each in members):
            return None
        cls = getattr(self.tuples.get(self.path_of(value), value), "cls", None)
        is_tuple = isinstance(value_kind, tuple)
        return Element(tuple(map(str, members)), is_tuple=is_tuple, cls=cls if cls is not tuple else None)

    def shape_of(self, holder: Any) -> str:
        """Return `list`, `dict` or `set` if a value is a container of the accumulator; else an empty text."""
        path = self.path_of(holder)
        if path.endswith(_INNER):
            inner = self.uses.inner_class(path.removesuffix(_INNER))
            return "" if inner is None else "dict" if issubclass(inner, dict) else "set" if inner is set else "list"
        kind = getattr(self.fields.get(path), "kind", "")
        return kind if kind in ("list", "dict", "set") else ""

    def path_of(self, holder: Any) -> str:
        """Return the name of the field of a place."""
        path = holder.path if isinstance(holder, _Place) else "?"
        return "value" if self.is_value and path == "" else path

    def member(self, holder: Any, name: Any) -> Any:
        """Return the place of a member of a place; None if it has no such member."""
        if not isinstance(holder, _Place) or self.is_value or not isinstance(name, str):
            return None
        before = f"{holder.path}." if holder.path else ""
        is_known = f"{before}{name}" in self.fields or f"{before}{name}." in self.parts
        return _Place(f"{before}{name}") if is_known else None

    def member_at(self, holder: Any, index: Any) -> Any:
        """Return the place of a member by its key or index; None if it has no such member."""
        if type(index) is not int or not isinstance(holder, _Place):
            return self.member(holder, index)
        count = 0
        while self.member(holder, f"f{count}") is not None:
            count += 1
        return self.member(holder, f"f{index % count}") if -count <= index < count else None

    # --- values -------------------------------------------------------------------------------------------------------

    def kind(self, value: Any) -> Any:
        """Return the kind of a value, a tuple of kinds, or None if it is unknown."""
        if isinstance(value, _Object):
            constant_value = value.value
            if type(constant_value) is tuple:
                return tuple(self.kind(_Object(each)) for each in constant_value)
            moment = number_of(constant_value)
            return _NONE if constant_value is None else _PLAIN.get(type(constant_value), moment and moment[0])
        if isinstance(value, _Place):
            path = self.path_of(value)
            known_field = self.fields.get(path)
            if path in self.tuples:
                return tuple(each.kind for each in self.tuples[path].fields)
            if known_field is None or known_field.is_container or self.shape_of(value):
                return None
            return known_field.kind or self.uses.kind(path)
        if isinstance(value, (tuple, _Named)):
            return tuple(map(self.kind, value if isinstance(value, tuple) else value.members))
        return value if isinstance(value, str) else None

    def of(self, var: Any) -> Any:
        """Return the value of a variable; None if it is unknown. Of several, the first known one that is not None."""
        if not isinstance(var, ir.Var):
            return _Object(var)
        self.depth += 1
        try:
            if self.depth > _DEPTH_MAX:
                return None
            definitions = [self.defined_as(each) for each in self.code._definitions.get(var.name, ())]
        finally:
            self.depth -= 1
        known_values = [each for each in definitions if each is not None]
        return next(
            (each for each in known_values if self.kind(each) != _NONE), known_values[0] if known_values else None
        )

    def defined_as(self, definition: Any) -> Any:
        match definition:
            case ir.Arg():
                return self.arguments.get(definition.index)
            case ir.Const() | ir.Global() | ir.FreeVar():
                return _Object(definition.value)
            case ir.Var():
                return self.of(definition)
            case ir.Expr():
                return self.expression(definition)
        return None

    def expression(self, expr: ir.Expr) -> Any:
        match expr.op:
            case "getattr":
                return self.attribute(self.of(expr.value), expr.attr)
            case "call":
                function = self.of(expr.func)
                if isinstance(function, _Object) and is_named_tuple(function.value):
                    return self.named(function.value, expr)
                return self.result(function, [*map(self.of, expr.args)])
            case "build_tuple":
                from foldflight.ext.compiler.rewrite import Format

                items = tuple(map(self.of, expr.items))
                is_written = len(items) == 2 and isinstance(items[1], _Object) and isinstance(items[1].value, Format)
                return "text" if is_written else items
            case "build_string":
                return "text"
            case "binop" | "inplace_binop":
                function = expr.immutable_fn if expr.op == "inplace_binop" else expr.fn
                return _operator_kind(function, self.kind(self.of(expr.lhs)), self.kind(self.of(expr.rhs)))
            case "unary":
                return "bool" if expr.fn is operator.not_ else self.of(expr.value)
            case "cast" | "exhaust_iter" | "getiter" | "iternext":
                return self.of(expr.value)
            case "pair_first":
                return self.items_of(self.of(expr.value))
            case "build_list" | "build_set":
                first = expr.items[0] if expr.items else self.added.get(id(expr))
                return None if first is None else _Many(self.of(first))
            case "getitem" | "static_getitem":
                index = self.of(expr.index) if expr.op == "getitem" else _Object(expr.index)
                return self.item(self.of(expr.value), index)
        return None

    def named(self, cls: Any, call: ir.Expr) -> _Named:
        """Return the NamedTuple that a call makes."""
        given = {name: self.of(value) for name, value in (*zip(cls._fields, call.args, strict=False), *call.kws)}
        defaults = {name: _Object(value) for name, value in cls._field_defaults.items()}
        return _Named(cls, tuple(self.kind(given.get(name, defaults.get(name))) for name in cls._fields))

    def attribute(self, base: Any, name: str) -> Any:
        if isinstance(base, _Place):
            return self.member(base, name) or _BoundMethod(base, name)
        if isinstance(base, _Object) and type(base.value) not in (*_PLAIN, *_HOLDING):
            try:
                return _Object(inspect.getattr_static(base.value, name))
            except AttributeError:
                return None
        if isinstance(base, _Named) and name in base.cls._fields:
            return base.members[base.cls._fields.index(name)]
        return "int" if name in _ATTRIBUTES else _BoundMethod(base, name)

    def returned(self, function: FunctionType, attribute: Any, arguments: list[Any]) -> Any:
        """Return what a function of the author gives, if all its returns give a value of one kind.

        Args:
            function: The function.
            attribute: The attribute of the class that it is: a method has one more parameter than arguments.
            arguments: What is known of the arguments.
        """
        from foldflight.ext.compiler.rewrite import readable_copy

        if self.callees >= _CALLEES_MAX:
            return None
        try:
            code = run_frontend(readable_copy(function))
        except Exception:  # noqa: BLE001 - compiling the function tells why it cannot be compiled
            return None
        is_method = attribute is function and code.arg_count == len(arguments) + 1
        actual = dict(enumerate(([self.arguments.get(0)] if is_method else []) + arguments))  # 0 is the same `self`
        callee = _Reader(code, None, actual, Uses(), self.callees + 1)
        values = [
            callee.kind(callee.of(block.terminator.value))
            for block in code.blocks.values()
            if isinstance(block.terminator, ir.Return)
        ]
        return _only({*values})

    def item(self, holder: Any, index: Any) -> Any:
        constant_index = index.value if isinstance(index, _Object) else None
        if isinstance(constant_index, slice):
            return _Many(self.kinds_in(holder)) if self.shape_of(holder) else holder
        if isinstance(holder, _Object) and type(holder.value) is tuple and type(constant_index) is int:
            holder = tuple(map(_Object, holder.value))
        if isinstance(holder, _Object) and type(holder.value) is dict:
            return self.value_in(holder.value)
        if isinstance(holder, (_Many, _Object)):
            return self.items_of(holder) if constant_index is not None or self.kind(index) == "int" else None
        if isinstance(holder, (tuple, _Named)):
            members = holder if isinstance(holder, tuple) else holder.members
            if type(constant_index) is not int or not -len(members) <= constant_index < len(members):
                return None
            return members[constant_index]
        if holder == "text":
            return "text"
        member = self.member_at(holder, constant_index)
        return member if member is not None else self.kinds_in(holder)

    def items_of(self, holder: Any) -> Any:
        """Return the items that a loop over a value gives; None if they are unknown."""
        if isinstance(holder, _Many):
            return holder.value
        if isinstance(holder, _Object) and type(holder.value) in _HOLDING and holder.value:
            return _Object(next(iter(holder.value)))
        if self.kind(holder) == "text":
            return "text"
        return self.key_in(holder) if self.shape_of(holder) else None

    def value_in(self, constant: Any) -> Any:
        """Return a value of a dict that does not change."""
        return _Object(next(iter(constant.values()))) if constant else None

    def key_in(self, holder: Any) -> Any:
        """Return what the keys of a dict, or the items of a list or set, of the accumulator are."""
        path = self.path_of(holder)
        contents = getattr(self.fields.get(path), "contents", None)
        return _kinds_of(_only(self.uses.keys.get(path, ())) if contents is None else contents.key)

    def kinds_in(self, holder: Any) -> Any:
        """Return what a container holds: its items, or the values of a dict."""
        if self.shape_of(holder) != "dict":
            return self.key_in(holder)
        path = self.path_of(holder)
        if self.uses.inner_class(path) is not None:
            return _Place(f"{path}{_INNER}")
        contents = getattr(self.fields.get(path), "contents", None)
        if contents is not None and contents.nested is not None:
            return None
        return _kinds_of(_only(self.uses.values.get(path, ())) if contents is None else contents.value)

    def result(self, function: Any, arguments: list[Any]) -> Any:
        if isinstance(function, _BoundMethod):
            if isinstance(function.of, _Place):
                if function.name in ("get", "setdefault", "pop"):
                    return self.kinds_in(function.of) or (arguments[1] if len(arguments) > 1 else None)
                if function.name in ("items", "keys", "values"):
                    pair = self.key_in(function.of), self.kinds_in(function.of)
                    return _Many({"items": pair, "keys": pair[0], "values": pair[1]}[function.name])
                return None
            if isinstance(function.of, _Object) and type(function.of.value) is dict:
                return self.value_in(function.of.value) if function.name == "get" else None
            if isinstance(function.of, _Named):
                return function.of if function.name == "_replace" else None
            return _Many("text") if function.name in _SPLITTING else _METHODS.get(function.name)
        called_function = function.value if isinstance(function, _Object) else None
        called_function = getattr(called_function, "__func__", called_function)
        if isinstance(called_function, FunctionType):
            return_hint = called_function.__annotations__.get("return")
            annotated_kind = {**_PLAIN, **{each.__name__: kind for each, kind in _PLAIN.items()}}.get(return_hint)
            return annotated_kind or self.returned(called_function, function.value, arguments)
        if called_function is slice:
            return _Object(slice(None))
        items = [*map(self.items_of, arguments)]
        if called_function in _PASSING and len(items) == 1:
            return _Many(items[0])
        if called_function is enumerate and items:
            return _Many(("int", items[0]))
        if called_function is zip:
            return _Many(tuple(items))
        if called_function is range:
            return _Many("int")
        if called_function in _OF_ITEMS and len(arguments) == 1:
            return items[0]
        if called_function in _SAME:
            same = next((each for each in arguments if self.kind(each) not in (None, _NONE)), None)
            return "int" if called_function is round and len(arguments) == 1 else same
        if getattr(called_function, "__module__", "") == "math":
            return _FUNCTIONS.get(called_function, "float")
        return (
            _FUNCTIONS.get(called_function)
            if callable(called_function) and called_function.__hash__ is not None
            else None
        )


def _kinds_of(part: Element | None) -> Any:
    """Return an element as a kind, a tuple of kinds, or a NamedTuple."""
    if part is not None and part.cls is not None:
        return _Named(part.cls, part.kinds)
    return None if part is None else part.kinds if part.is_tuple else part.kinds[0]


def _operator_kind(function: Any, one: Any, other: Any) -> Any:
    """Return the kind of the result of an operator."""
    if function in _COMPARING:
        return "bool"
    if one in _NUMBERS and other in _NUMBERS:
        if function is operator.truediv or "float" in (one, other):
            return "float"
        return "bool" if function in _BITS and one == other == "bool" else "int"
    if function is operator.sub and one == other and one in ("date", "timestamp", "instant", "time"):
        return "duration"
    if one == other == "duration" and function in (operator.truediv, operator.floordiv):
        return "float" if function is operator.truediv else "int"
    if function is operator.mod and one == "text":
        return "text"
    return one if one == other or other in ("duration", *_NUMBERS) else None
