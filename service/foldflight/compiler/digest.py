"""What compiled code of an author depends on, as one digest: code, constants, and all that these reach by name."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from foldflight.compiler.kernels import Plan
from foldflight.compiler.kinds import Refused
from foldflight.compiler.lookups import MISSING, PLAIN, Lookups
from foldflight.compiler.plan import LOOKED_AT

__all__ = ["digest_of"]

_REACHED_MAX: Final = 1000
_CODES_MAX: Final = 1024


def digest_of(plan: Plan, lookups: Lookups) -> str:
    """Return the digest of what compiling this plan depends on, as 32 hexadecimal digits.

    It covers too much rather than too little: every global, and every attribute of what is reached from there, that
    has a name which the code mentions; also of the code that makes accumulators. Raises Refused where these do not end.

    Args:
        plan: The plan.
        lookups: Takes all that is looked up. While it holds, so does the digest, and the plan itself with its start.
    """
    seen: dict[int, Any] = {}
    parts = [repr((plan.accumulator, plan.instance, plan.arguments, plan.kinds, plan.result, plan.result_bits))]
    parts.append(repr((sorted(plan.with_self), plan.accumulator_class is None)))
    classes = tuple(each for each in (plan.cls, plan.accumulator_class) if each is not None)
    for cls in classes:
        lookups.own(cls, (*LOOKED_AT, *(field.name for field in plan.accumulator.fields)))
    if "create_accumulator" in dict(plan.makers) and any("__slots__" in vars(each) for each in plan.cls.__mro__[:-1]):
        lookups.lose()  # create_accumulator may take what is in them
    for verb, function in (*plan.functions, *plan.makers):
        parts.append(verb)
        parts.extend(_function(function, classes, seen, lookups))
    return hashlib.sha256("\n".join(parts).encode(errors="backslashreplace")).hexdigest()[:32]


def _function(
    function: FunctionType, classes: tuple[type, ...], seen: dict[int, Any], lookups: Lookups
) -> Iterator[str]:
    if id(function) in seen:
        return
    seen[id(function)] = function
    code = lookups.attribute(function, "__code__")
    yield _code(code)
    defaults, by_name = lookups.attribute(function, "__defaults__"), lookups.attribute(function, "__kwdefaults__")
    if by_name:
        lookups.lose()  # a dict, which is the same with other values
    yield from (_shown(each) for each in (*(defaults or ()), *(by_name or {}).values()))
    names = _names(code)
    values = [lookups.attribute(cell, "cell_contents") for cell in function.__closure__ or ()]
    values += [lookups.item(function.__globals__, name) for name in names]
    for cls in classes:
        lookups.own(cls, names)
        for name in names:
            values.append(lookups.attribute(cls, name))
            yield type(inspect.getattr_static(cls, name, None)).__name__  # a static method has no self
    for value in _reached(values, names, lookups):
        called = value.fget if isinstance(value, property) else value
        if isinstance(called, FunctionType):
            yield called.__qualname__
            yield from _function(called, classes, seen, lookups)
        else:
            yield _shown(value)


def _reached(values: list[Any], names: tuple[str, ...], lookups: Lookups) -> list[Any]:
    """Return the values and what code reaches from them by these names: the `limit` of `settings.windows.limit`.

    Raises Refused where that does not end.
    """
    reached = [each for each in values if each is not MISSING]
    known = {id(each) for each in reached}
    for value in reached:  # which grows
        if type(value) in PLAIN:
            continue
        for name in names:
            found = lookups.attribute(value, name)
            # Plain ones are shown each time: in what order they come tells whose they are.
            if found is not MISSING and (type(found) in PLAIN or id(found) not in known):
                known.add(id(found))
                reached.append(found)
        if len(reached) > _REACHED_MAX:
            raise Refused(f"from its globals one reaches more than {_REACHED_MAX} objects by the names in its code")
    return reached


# What names lead to may change; only code itself cannot.
@functools.lru_cache(maxsize=_CODES_MAX)
def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))
    return tuple(sorted({*code.co_names, *inner}))


@functools.lru_cache(maxsize=_CODES_MAX)
def _code(code: CodeType) -> str:
    own = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount)
    constants = [_code(each) if isinstance(each, CodeType) else _shown(each) for each in code.co_consts]
    return "\n".join([repr(own), *constants])


def _shown(value: Any) -> str:
    if type(value) in PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_shown, value))}]"
    # Anything else is refused where it is used, or is a class or module, which stands for its name.
    return f"{type(value).__name__} {getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
