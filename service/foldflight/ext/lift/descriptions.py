"""The description of a call for listings and clients: its `Lift` as text, or the reason why it has none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from types import FunctionType, ModuleType
from typing import Any, Final

from foldflight.errors import RejectedError
from foldflight.ext.lift.analysis import lift_of
from foldflight.ext.lift.method_source import codes_in
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.tree import DEPTH_MAX, TEXT_MAX, Lift
from foldflight.fold.mode import Unsupported
from foldflight.functions.author.spec import BoundFunction, ClassForm

_UNKNOWN: Final = "the server does not tell; it is of an older version"
_KNOWN_MAX: Final = 1024
_known: dict[tuple[Any, ...], tuple[_ReachableCode, str]] = {}
# Functions and classes whose members are compared; a method that reaches more of them is analysed each time.
_REACHED_MAX: Final = 256
# Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of CPython.
_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8
_CONSTANTS: Final = (bool, int, float, str, bytes, type(None), tuple)
_ABSENT: Final = object()


def lift_text(bound: BoundFunction) -> str:
    """Return a JSON document with the `Lift` of a call, or with the reason why it has none."""
    attributes = _attributes_of(bound)
    if attributes is None:
        return _text(bound)
    function = bound.function
    declaration = (function.skip_nulls, function.returns, function.capabilities, function.adapter, function.language)
    form = type(function.instantiate)
    key = (function.cls, bound.fingerprint, declaration, form, bound.state_type, bound.result_type, attributes)
    cached_entry = _known.get(key)
    if cached_entry is not None and cached_entry[0].is_unchanged():
        return cached_entry[1]
    reached_code = _ReachableCode.of(function.cls)
    text = _text(bound)
    if reached_code is not None:
        while len(_known) >= _KNOWN_MAX:
            _known.pop(next(iter(_known)), None)
        _known[key] = reached_code, text
    return text


@dataclass(frozen=True)
class _ReachableCode:
    """All code and constants that methods of a class may reach by name, as they were when it was analysed.

    A method may be replaced after that, or a function or constant that it uses. The objects are kept, so that no other
    one has the identity of one that was replaced.

    Args:
        classes: Each class, and those that it inherits from.
        members: The names and values of the members of each of these.
        functions: Each function, its code, and its default values.
        values: For each module, what the names in the code of these functions mean there.
        texts: The texts of those values whose parts may change, such as a list in a tuple.
    """

    classes: list[tuple[type, tuple[type, ...]]]
    members: list[tuple[Mapping[str, Any], tuple[Any, ...]]]
    functions: list[tuple[FunctionType, tuple[Any, ...]]]
    values: list[tuple[Mapping[str, Any], tuple[str, ...], tuple[Any, ...]]]
    texts: list[tuple[object, str]]

    @classmethod
    def of(cls, author: type) -> _ReachableCode | None:
        """Return what a class reaches; None if that is too much."""
        classes: list[tuple[type, tuple[type, ...]]] = []
        bodies: dict[int, Mapping[str, Any]] = {}
        functions: list[tuple[FunctionType, tuple[Any, ...]]] = []
        names: dict[int, tuple[Mapping[str, Any], set[str]]] = {}
        pending: list[Any] = [author]
        visited_ids: set[int] = set()
        while pending:
            each = pending.pop()
            if id(each) in visited_ids:
                continue
            visited_ids.add(id(each))
            if len(visited_ids) > _REACHED_MAX:
                return None
            reached_objects: list[Any] = []
            if isinstance(each, type):
                classes.append((each, each.__mro__))
                for base in each.__mro__:
                    if not _is_fixed(base):
                        bodies[id(base)] = vars(base)
                        reached_objects += vars(base).values()
            else:
                functions.append((each, _parts_of(each)))
                for body, used_names in _names_of(each):
                    names.setdefault(id(body), (body, set()))[1].update(used_names)
                    reached_objects += [body[name] for name in used_names & body.keys()]
            for value in reached_objects:
                plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                is_class = isinstance(plain, type) and plain.__module__ != "builtins"
                if isinstance(plain, FunctionType) or is_class:
                    pending.append(plain)
        members = [(body, (*body, *body.values())) for body in bodies.values()]
        values = [(body, tuple(used_names), _values_of(body, tuple(used_names))) for body, used_names in names.values()]
        snapshots = [[each for _, each in members], [each for _, each in functions], [each for _, _, each in values]]
        containers: list[object] = [each for some in snapshots for one in some for each in one if type(each) is tuple]
        containers += [each.__kwdefaults__ for each, _ in functions if each.__kwdefaults__]
        return cls(classes, members, functions, values, [(each, repr(each)) for each in containers])

    def is_unchanged(self) -> bool:
        """Return whether nothing has been replaced, added or removed."""
        return (
            all(each.__mro__ is order for each, order in self.classes)
            and all(_are_same(snapshot, (*body, *body.values())) for body, snapshot in self.members)
            and all(_are_same(parts, _parts_of(each)) for each, parts in self.functions)
            and all(_are_same(snapshot, _values_of(body, used_names)) for body, used_names, snapshot in self.values)
            and all(repr(each) == text for each, text in self.texts)
        )


def _parts_of(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _values_of(body: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(map(body.get, names, repeat(_ABSENT)))


def _are_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _is_fixed(cls: type) -> bool:
    """Return whether no member of a class can be replaced, as of those in C, which may have hundreds."""
    return not cls.__flags__ & _HEAP_TYPE or bool(cls.__flags__ & _IMMUTABLE_TYPE)


def _attributes_of(bound: BoundFunction) -> str | None:
    """Return what a new instance of the author's class holds; None if it cannot be created.

    `__init__` may compute it from more than the direct arguments, such as a setting that has changed.
    """
    form = bound.function.instantiate
    if not isinstance(form, ClassForm):
        return ""
    try:
        instance = getattr(bound.instantiate().accumulate, "__self__", None)
    except (Exception, SystemExit):  # noqa: BLE001 - the analysis says so
        return None
    attributes = getattr(instance, "__dict__", {})
    return repr([(name, type(value), value if type(value) in _CONSTANTS else "") for name, value in attributes.items()])


def _names_of(function: FunctionType) -> Iterator[tuple[Mapping[str, Any], set[str]]]:
    """Yield where the names of a function's code have their values: its globals, and each module among these."""
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    yield function.__globals__, names
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            yield vars(value), names


def _text(bound: BoundFunction) -> str:
    if bound.function.bounds is not None:
        return json.dumps({"reason": "its get_value is async, and an engine cannot ask for it"})
    try:
        lift = lift_of(bound)
        if lift.depth > DEPTH_MAX:
            raise Unsupported("its expressions are nested too deeply")
        LiftPlan.of(lift)
        if not lift.no_retract_reason:
            LiftPlan.of(lift, has_kinds=True)
    except Unsupported as error:
        return json.dumps({"reason": str(error)})
    except RecursionError:
        return json.dumps({"reason": "its methods are nested too deeply"})
    text = lift.to_json()
    return text if len(text) <= TEXT_MAX else json.dumps({"reason": "its methods have too many ways for a row to take"})


def lifted_of(text: str) -> tuple[Lift | None, str]:
    """Return the `Lift` of a text of `lift_text`, or None and the reason.

    Raises:
        RejectedError: BAD_FRAME, if the text is damaged.
    """
    if not text:
        return None, _UNKNOWN
    try:
        data = json.loads(text)
        reason = data.get("reason")
    except (ValueError, AttributeError, RecursionError) as error:
        raise RejectedError("BAD_FRAME", f"the description of a lifted function cannot be read: {error}") from None
    if reason is not None:
        return None, str(reason)
    lift = Lift.from_json(text)
    return lift, "" if lift is not None else "the server describes it in a newer form"
