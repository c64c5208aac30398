"""What is told about a call: its `Lift` as text, or why it has none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from foldflight.errors import RejectedError
from foldflight.ext.lift.analysis import lift_of
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.source import codes_in
from foldflight.ext.lift.tree import DEPTH_MAX, TEXT_MAX, Lift
from foldflight.fold.mode import Unsupported
from foldflight.functions.author.spec import BoundFunction, ClassForm

_UNKNOWN: Final = "the server does not tell; it is of an older version"


_KNOWN_MAX: Final = 1024
_known: dict[tuple[Any, ...], str] = {}
# Functions and classes of which the code is compared; a method that reaches more of them is analysed each time.
_REACHED_MAX: Final = 256
# Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of CPython.
_HEAP_TYPE: Final = 1 << 9
_IMMUTABLE_TYPE: Final = 1 << 8
_CONSTANTS: Final = (bool, int, float, str, bytes, type(None), tuple)


def lift_text(bound: BoundFunction) -> str:
    """Return a JSON document with the `Lift` of a call, or with the reason why it has none."""
    code, attributes = _code_of(bound.function.cls), _attributes_of(bound)
    if code is None or attributes is None:
        return _text(bound)
    function = bound.function
    declared = (function.skip_nulls, function.returns, function.capabilities, function.adapter, function.language)
    form = type(function.instantiate)
    key = (function.cls, bound.fingerprint, declared, form, bound.state_type, bound.result_type, code, attributes)
    if key not in _known:
        while len(_known) >= _KNOWN_MAX:
            _known.pop(next(iter(_known)), None)
        _known[key] = _text(bound)
    return _known[key]


def _code_of(cls: type) -> tuple[Any, ...] | None:
    """Return all code and constants that methods of a class may reach by name; None if they are too many.

    A method may be replaced after the class was lifted, or a function or constant that it uses.
    """
    parts: list[Any] = []
    pending: list[Any] = [cls]
    visited: set[int] = set()
    while pending:
        each = pending.pop()
        if id(each) in visited:
            continue
        visited.add(id(each))
        if len(visited) > _REACHED_MAX:
            return None
        if isinstance(each, type):
            bases = (base for base in each.__mro__ if not _is_fixed(base))
            members = [(base, name, value) for base in bases for name, value in vars(base).items()]
        else:
            parts += [each.__code__, repr((each.__defaults__, each.__kwdefaults__))]
            members = [(each, name, value) for name, value in _label(each)]
        for owner, name, value in members:
            plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            is_class = isinstance(plain, type) and plain.__module__ != "builtins"
            if isinstance(plain, FunctionType) or is_class:
                pending.append(plain)
            text = repr(plain) if type(plain) in _CONSTANTS else ""
            parts.append((owner.__name__, name, type(plain), text or id(plain)))
    return tuple(parts)


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


def _label(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what the names of a function's code mean: globals, and members of modules among them."""
    names = {name for code in codes_in(function.__code__) for name in code.co_names}
    modules = []
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType):
            modules.append(value)
    for module in modules:
        for name in sorted(names & vars(module).keys()):
            yield f"{module.__name__}.{name}", vars(module)[name]


def _text(bound: BoundFunction) -> str:
    if bound.function.bounds is not None:
        return json.dumps({"reason": "its get_value is async, and an engine cannot ask for it"})
    try:
        lift = lift_of(bound)
        if lift.depth > DEPTH_MAX:
            raise Unsupported("its expressions are nested too deeply")
        LiftPlan.of(lift)
        if not lift.unretractable:
            LiftPlan.of(lift, has_kinds=True)
    except Unsupported as unsupported:
        return json.dumps({"reason": str(unsupported)})
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
