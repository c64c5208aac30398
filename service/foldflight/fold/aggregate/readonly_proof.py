"""The proof that a method only reads its accumulator, from its code. Where there is none, the method gets a copy."""

from __future__ import annotations

import builtins
import collections
import dis
import inspect
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import cached_property, lru_cache
from types import CodeType, FunctionType
from typing import Any, Final

_STORES: Final = (
    *("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_GLOBAL", "DELETE_", "CALL_FUNCTION_EX"),
    "IMPORT_",  # an imported name may be any function
)
_CHANGING: Final = frozenset(
    name
    for each in (list, dict, set, bytearray, collections.deque, collections.Counter)
    for name in vars(each)
    if not name.startswith("_")
    and name not in ("copy", "elements", "get", "items", "keys", "maxlen", "most_common", "total", "values")
    and name not in (*vars(bytes), *vars(tuple))
)
_HARMLESS: Final = (
    *(abs, all, any, bool, dict, divmod, enumerate, float, frozenset, int, isinstance, len, list, max, min, range),
    *(reversed, round, set, sorted, str, sum, tuple, zip, math, statistics),
)
# Methods of Python's own types that only read, and functions of the modules above.
_READING: Final = {
    name
    for each in (
        *(list, dict, set, tuple, str, bytes, int, float, date, datetime, time, timedelta, math, statistics),
        *(bytearray, collections.deque, collections.Counter),
    )
    for name in vars(each)
    if not name.startswith("_")  # x.__setitem__ and the like change x
} - _CHANGING
# Methods of texts that read keys of a dict, as the operator % does.
_FORMATTING: Final = frozenset({"format", "format_map"})
_SPECIAL: Final = (
    "__len__",
    "__iter__",
    "__getitem__",
    "__getattr__",
    "__getattribute__",
    "__contains__",
    "__bool__",
    "__call__",
    "__str__",
    "__format__",
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "int", "float", "round")),
    *(
        f"__{side}{name}__"
        for side in ("", "r", "i")
        for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow")
    ),
    *(f"__{side}{name}__" for side in ("", "r", "i") for name in ("lshift", "rshift", "and", "xor", "or")),
    *("__eq__", "__ne__", "__hash__", "__next__", "__reversed__", "__index__", "__missing__"),
)
_METHODS: Final = (FunctionType, staticmethod, classmethod, property)


@dataclass(frozen=True)
class ReadFacts:
    """Facts about the accumulators and the instance that a method reads.

    Args:
        classes: The author's class, and the class of the accumulators if it is the author's, too.
        fields: The names of the attributes of both that hold data.
        has_known_types: Whether all parts of an accumulator are of Python's own types, whose methods are known.
        adds_missing: Whether reading a key of a dict may add it, as with a defaultdict.
    """

    classes: Sequence[type]
    fields: Collection[str]
    has_known_types: bool = True
    adds_missing: bool = False
    _visited_functions: set[Any] = field(default_factory=set)

    def only_reads(self, function: Any) -> bool:
        """Return whether a function changes none of its arguments, as far as its code tells. True is certain."""
        function = getattr(function, "fget", getattr(function, "__func__", function))
        if not isinstance(function, FunctionType) or function.__kwdefaults__:
            return False
        if function in self._visited_functions:  # it calls itself
            return True
        self._visited_functions.add(function)
        captured_values = [*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())]
        codes = (function.__code__, *inner_codes(function.__code__))
        return all(map(is_harmless, captured_values)) and all(self._code_reads(function, code) for code in codes)

    def _code_reads(self, function: FunctionType, code: CodeType) -> bool:
        steps = _steps(code)
        own = _own_variables(code, steps)
        for index, step in enumerate(steps):
            before, after = steps[index - 1] if index else step, steps[index + 1 : index + 2]
            name = step.argval
            if step.opname.startswith(_STORES):
                return False
            if step.opname == "BINARY_OP" and "=" in step.argrepr and not (after and _variables(after[0])[0] in own):
                return False
            is_subscript = step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and step.argrepr == "[]")
            is_number = _is_constant(before) and isinstance(before.argval, int)
            if self.adds_missing and ((is_subscript and not is_number) or _formats(step)):
                return False
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = function.__globals__.get(name, getattr(builtins, name, None))
                if not is_harmless(value) and not self.only_reads(value):
                    return False
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                is_own = before.opname.startswith("LOAD_FAST") and _variables(before)[-1] in own
                if not is_own and not self._attribute_reads(name):
                    return False
        return all(map(self._methods_read, self._special))

    @cached_property
    def _special(self) -> Sequence[str]:
        """The methods that operators and functions of Python call, of the author's classes and of their types."""
        bases = {base for each in self.classes for base in (*inspect.getmro(each), *inspect.getmro(type(each)))}
        return [name for name in _SPECIAL if any(name in vars(base) for base in bases - {object, type})]

    def _attribute_reads(self, name: str) -> bool:
        is_method = any(isinstance(inspect.getattr_static(each, name, None), _METHODS) for each in self.classes)
        if is_method:
            return self._methods_read(name)
        if name == "__class__":  # which the __eq__ of a dataclass compares
            return True
        constants = [inspect.getattr_static(each, name, None) for each in self.classes]
        if name in self.fields or any(each is not None and is_harmless(each) for each in constants):
            return True
        return self.has_known_types and name in _READING

    def _methods_read(self, name: str) -> bool:
        """Return whether the methods and properties of this name, of the author's classes, only read."""
        methods = [inspect.getattr_static(each, name, None) for each in self.classes]
        return all(self.only_reads(each) for each in methods if isinstance(each, _METHODS))


@lru_cache(maxsize=256)
def _steps(code: CodeType) -> Sequence[dis.Instruction]:
    """Return the instructions of a code. Each exchange asks for them again, because globals of a method may change."""
    return [each for each in dis.get_instructions(code) if each.opname not in ("PRECALL", "PUSH_NULL", "CACHE")]


def _formats(step: dis.Instruction) -> bool:
    """Return whether a step may put keys of a dict into a text."""
    is_operator = step.opname == "BINARY_MODULO" or (
        step.opname.startswith("BINARY_OP") and step.argrepr.startswith("%")
    )
    return is_operator or (step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval in _FORMATTING)


def _own_variables(code: CodeType, steps: Sequence[dis.Instruction]) -> set[str]:
    """Return the local variables that hold only objects which the code has made, so that it may change them."""
    own: set[str] = set()
    foreign = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    for index, step in enumerate(steps):
        if not step.opname.startswith("STORE_FAST"):
            continue
        names, before = _variables(step), steps[index - 1]
        is_made = before.opname.startswith("BUILD_") or (before.opname == "BINARY_OP" and before.argrepr != "[]")
        is_made |= _is_constant(before)
        is_made &= not step.is_jump_target  # of `x or []` only one part is made here
        (own if is_made else foreign).add(names[0])
        if step.opname == "STORE_FAST_STORE_FAST":  # what the second one holds is not known
            foreign.add(names[1])
    return own - foreign


def _is_constant(step: dis.Instruction) -> bool:
    return step.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")) and is_harmless(step.argval)


def _variables(step: dis.Instruction) -> tuple[Any, ...]:
    """Return the variables of a step; from Python 3.13 on, there may be two."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the codes of lambdas, comprehensions and functions in a code."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from inner_codes(each)


def is_harmless(value: Any) -> bool:
    """Return whether an object that code uses cannot change an accumulator: data, or a known function."""
    if isinstance(value, (tuple, list, set, frozenset)):
        return all(map(is_harmless, value))
    if isinstance(value, dict):
        return all(map(is_harmless, (*value, *value.values())))
    return (
        value is None
        or value is NotImplemented
        or type(value) in (bool, int, float, str, bytes)
        or any(value is each for each in _HARMLESS)
        or (isinstance(value, type) and issubclass(value, Exception))
    )
