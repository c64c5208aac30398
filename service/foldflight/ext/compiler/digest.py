"""A digest of what an author's compiled code depends on: code, constants, and the objects that these name.

The lookups of these objects are recorded. Checking that each name still refers to the same object is faster than
following all names and digesting them again.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import CodeType, FunctionType, MemberDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, Final

from foldflight.ext.compiler.compile_plan import LOOKED_AT
from foldflight.ext.compiler.kernels import CompilePlan
from foldflight.ext.compiler.records import GENERATED, is_named_tuple
from foldflight.fold.mode import Unsupported, at_line_of

_MISSING: Final = object()
_PLAIN: Final = (int, float, bool, str, bytes, type(None), date, datetime, time, timedelta, timezone, Decimal)
# Descriptors whose results are looked up as well. The results of other descriptors are unknown.
_KNOWN: Final = (FunctionType, staticmethod, classmethod, property, MemberDescriptorType, WrapperDescriptorType)
_STEPS_MAX: Final = 10_000
_REACHED_MAX: Final = 1000
# Methods written in C. Each access to their attribute `__init__` makes another object, so visiting them never ends.
_WRITTEN_IN_C: Final = (MethodWrapperType, WrapperDescriptorType)
_CODES_MAX: Final = 1024
_GLOBAL_READS: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})  # instructions


class Lookups:
    """Looks up attributes and items, and records the results."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._items: list[tuple[Any, str, Any]] = []
        self._is_invalid = False
        self.places = ""  # the file and first line of each function that is reached

    def attribute(self, holder: Any, name: str) -> Any:
        """Return `holder.name`, or _MISSING if it does not exist or raises."""
        return self._record(self._attributes, holder, name, _attribute(holder, name))

    def item(self, holder: Mapping[str, Any], name: str) -> Any:
        """Return `holder[name]`, or _MISSING if it does not exist."""
        return self._record(self._items, holder, name, holder.get(name, _MISSING))

    def _record(self, lookups: list[tuple[Any, str, Any]], holder: Any, name: str, value: Any) -> Any:
        lookups.append((holder, name, value))
        if len(lookups) > _STEPS_MAX or _may_change(value):
            self.invalidate()
        return value

    def class_entries(self, cls: type, names: Iterable[str]) -> None:
        """Look up the entries of these names in a class and its base classes, without invoking descriptors."""
        above = self.attribute(cls, "__mro__")
        for name in names:
            for each in above[:-1]:
                entry = self.item(vars(each), name)
                if hasattr(type(entry), "__get__") and not isinstance(entry, _KNOWN):
                    self.invalidate()

    def invalidate(self) -> None:
        """Make `holds` always return False: the results depend on more than the lookups, or there are too many."""
        self._is_invalid = True
        self._attributes, self._items = [], []

    def holds(self) -> bool:
        """Return whether all lookups still have the same results. False if this is unknown."""
        return (
            not self._is_invalid
            and all(is_same(_attribute(holder, name), value) for holder, name, value in self._attributes)
            and all(is_same(holder.get(name, _MISSING), value) for holder, name, value in self._items)
        )


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same object, or identical plain values."""
    return one is other or (type(one) is type(other) and type(one) in _PLAIN and repr(one) == repr(other))


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except Exception:  # noqa: BLE001 - the access raises again where the attribute is used, and is unsupported there
        return _MISSING


def _may_change(value: Any) -> bool:
    """Return whether an object has contents that may change without a lookup, such as the items of a list."""
    return isinstance(value, (list, dict, set)) or (isinstance(value, tuple) and any(map(_may_change, value)))


def digest_of(plan: CompilePlan, lookups: Lookups) -> str:
    """Return the digest of what compiling this plan depends on, as 32 hexadecimal digits.

    It covers more than needed: all globals that the code of the methods, or the code that makes accumulators, reads,
    and all attributes of the objects reached from them whose names occur in that code. Globals that only have the name
    of an attribute are left out: a class that was pickled by value does not have them, and has the same digest.

    Args:
        plan: The plan.
        lookups: Records all lookups. While it holds, the digest, the plan and its start are valid.

    Raises:
        Unsupported: More than 1000 objects are reached.
    """
    seen_functions: dict[int, Any] = {}
    parts = [repr((plan.accumulator, plan.instance, plan.arguments, plan.kinds, plan.result, plan.result_bits))]
    parts.append(repr((sorted(plan.with_self), plan.accumulator_class is None, plan.named_tuple is None)))
    inner = (cls for _, cls in plan.accumulator.parts)
    all_classes = (plan.cls, plan.accumulator_class, plan.named_tuple, *inner)
    classes = tuple(each for each in all_classes if each not in (None, dict, list))
    for cls in classes:
        lookups.class_entries(cls, (*LOOKED_AT, *(field.name for field in plan.accumulator.fields)))
    if "create_accumulator" in dict(plan.makers) and any("__slots__" in vars(each) for each in plan.cls.__mro__[:-1]):
        lookups.invalidate()  # create_accumulator may read slots, which are not recorded
    for method_name, function in (*plan.functions, *plan.makers):
        parts.append(method_name)
        parts.extend(_function(function, classes, seen_functions, lookups))
    for cls in plan.accumulator.tuple_classes:  # the code need not name the classes of what accumulators hold
        parts.append(_text_of(cls))
        parts.extend(_methods_of(cls, classes, seen_functions, lookups))
    return hashlib.sha256("\n".join(parts).encode(errors="backslashreplace")).hexdigest()[:32]


def _function(
    function: FunctionType, classes: tuple[type, ...], seen_functions: dict[int, Any], lookups: Lookups
) -> Iterator[str]:
    if id(function) in seen_functions:
        return
    seen_functions[id(function)] = function
    code = lookups.attribute(function, "__code__")
    lookups.places += f"{code.co_filename}:{code.co_firstlineno}\n"
    yield _code(code)
    defaults, by_name = lookups.attribute(function, "__defaults__"), lookups.attribute(function, "__kwdefaults__")
    if by_name:
        lookups.invalidate()  # the values of a dict may change without a lookup
    yield from (_text_of(each) for each in (*(defaults or ()), *(by_name or {}).values()))
    names = _names(code)
    values = [lookups.attribute(cell, "cell_contents") for cell in function.__closure__ or ()]
    values += [lookups.item(function.__globals__, name) for name in _global_names(code)]
    for cls in classes:
        lookups.class_entries(cls, names)
        for name in names:
            values.append(lookups.attribute(cls, name))
            yield type(inspect.getattr_static(cls, name, None)).__name__  # a static method has no self
    with at_line_of(function):
        reached_objects = _reachable(values, names, lookups)
    for value in reached_objects:
        called_function = value.fget if isinstance(value, property) else value
        if isinstance(called_function, FunctionType):
            yield called_function.__qualname__
            yield from _function(called_function, classes, seen_functions, lookups)
        else:
            yield _text_of(value)
        if is_named_tuple(value):  # its methods also call those that this code does not name
            yield from _methods_of(value, classes, seen_functions, lookups)


def _methods_of(
    cls: type, classes: tuple[type, ...], seen_functions: dict[int, Any], lookups: Lookups
) -> Iterator[str]:
    """Yield what the methods of a NamedTuple depend on, once."""
    if id(cls) in seen_functions:
        return
    seen_functions[id(cls)] = cls
    for name in sorted({*vars(cls)} - GENERATED):
        method = lookups.item(vars(cls), name)
        method = method.fget if isinstance(method, property) else method
        if isinstance(method, FunctionType):
            yield f"{cls.__qualname__}.{name}"
            yield from _function(method, classes, seen_functions, lookups)


def _reachable(values: list[Any], names: tuple[str, ...], lookups: Lookups) -> list[Any]:
    """Return the values and the objects that code reaches from them by these names, as in `settings.windows.limit`.

    Raises:
        Unsupported: More than 1000 objects are reached.
    """
    reached_objects = [each for each in values if each is not _MISSING]
    known_ids = {id(each) for each in reached_objects}
    for value in reached_objects:  # the list grows within the loop
        if type(value) in _PLAIN or isinstance(value, _WRITTEN_IN_C):
            continue
        for name in names:
            attribute = lookups.attribute(value, name)
            # Values of `_PLAIN` types enter the digest at each place, also equal ones, because the digest has no names:
            # the position of a value alone tells whose attribute it is. Other objects need to be visited once.
            if attribute is not _MISSING and (type(attribute) in _PLAIN or id(attribute) not in known_ids):
                known_ids.add(id(attribute))
                reached_objects.append(attribute)
        if len(reached_objects) > _REACHED_MAX:
            raise Unsupported(f"its code reaches more than {_REACHED_MAX} objects from its globals")
    return reached_objects


# Only code is cached: it cannot change, unlike the objects that its names refer to.
@functools.lru_cache(maxsize=_CODES_MAX)
def _names(code: CodeType) -> tuple[str, ...]:
    """Return the names that code, and the code within it, looks up. `getattr` has them as constants."""
    inner = (name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))
    constants = [each for each in code.co_consts if isinstance(each, str)] if "getattr" in code.co_names else []
    return tuple(sorted({*code.co_names, *constants, *inner}))


@functools.lru_cache(maxsize=_CODES_MAX)
def _global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names that code, and the code within it, looks up in globals."""
    inner = (name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each))
    own = (each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL_READS)
    return tuple(sorted({*own, *inner}))


@functools.lru_cache(maxsize=_CODES_MAX)
def _code(code: CodeType) -> str:
    own = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount)
    constants = [_code(each) if isinstance(each, CodeType) else _text_of(each) for each in code.co_consts]
    return "\n".join([repr(own), *constants])


def _text_of(value: Any) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_text_of, value))}]"
    if type(value) is dict:
        return f"{{{', '.join(f'{_text_of(key)}: {_text_of(each)}' for key, each in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_text_of, value)))}}}"
    if is_named_tuple(value):
        return f"{value.__qualname__} {value._fields} {_text_of(value._field_defaults)}"
    # Classes and modules are represented by their names. Other objects are unsupported where they are used.
    return f"{type(value).__name__} {getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
