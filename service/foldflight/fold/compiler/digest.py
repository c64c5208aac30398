"""What compiled code depends on, as one digest: the author's code and constants, this package, numba, the processor."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import llvmlite
import llvmlite.binding
import numba

from foldflight.fold.compiler.kernels import Plan

__all__ = ["digest_of"]

_PLAIN: Final = (int, float, bool, str, bytes, type(None))


def digest_of(plan: Plan) -> str:
    """Return the digest of what compiling this plan depends on, as 32 hexadecimal digits.

    It covers too much rather than too little: every global and attribute that has a name which the code mentions.
    """
    seen: set[int] = set()
    parts = [
        _surroundings(),
        repr((plan.accumulator, plan.instance, plan.arguments, plan.kinds, plan.result, plan.result_bits)),
    ]
    parts.append(repr((sorted(plan.with_self), plan.accumulator_class is None)))
    classes = tuple(each for each in (plan.cls, plan.accumulator_class) if each is not None)
    for verb, function in plan.functions:
        parts.append(verb)
        parts.extend(_function(function, classes, seen))
    return hashlib.sha256("\n".join(parts).encode(errors="backslashreplace")).hexdigest()[:32]


@functools.cache
def _surroundings() -> str:
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py"))))
    processor = f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}"
    return f"{sources.hexdigest()} {numba.__version__} {llvmlite.__version__} {sys.version} {processor}"


def _function(function: FunctionType, classes: tuple[type, ...], seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _code(function.__code__)
    yield from (_shown(each) for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    names = _names(function.__code__)
    for module in [each for each in values if isinstance(each, (ModuleType, type))]:
        values += [getattr(module, name) for name in names if hasattr(module, name)]
    for cls in classes:
        values += [getattr(cls, name) for name in names if hasattr(cls, name)]
    for value in values:
        called = value.fget if isinstance(value, property) else value
        if isinstance(called, FunctionType):
            yield called.__qualname__
            yield from _function(called, classes, seen)
        else:
            yield _shown(value)


def _names(code: CodeType) -> list[str]:
    return sorted(
        {*code.co_names, *(name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each))}
    )


def _code(code: CodeType) -> Iterator[str]:
    yield repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield _shown(constant)


def _shown(value: Any) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_shown, value))}]"
    # Anything else is refused where it is used, or is a class or module, which stands for its name.
    return f"{type(value).__name__} {getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
