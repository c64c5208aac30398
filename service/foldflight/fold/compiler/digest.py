"""What compiled code depends on, as one digest: the author's code and constants, this package, numba, the processor."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import llvmlite
import llvmlite.binding
import numba

from foldflight.fold.compiler.kernels import Plan
from foldflight.fold.compiler.kinds import Refused

__all__ = ["digest_of"]

_PLAIN: Final = (int, float, bool, str, bytes, type(None))
_REACHED_MAX: Final = 1000
_CODES_MAX: Final = 1024


def digest_of(plan: Plan) -> str:
    """Return the digest of what compiling this plan depends on, as 32 hexadecimal digits.

    It covers too much rather than too little: every global, and every attribute of what is reached from there, that
    has a name which the code mentions. Raises Refused where these do not end.
    """
    seen: dict[int, Any] = {}
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


def _function(function: FunctionType, classes: tuple[type, ...], seen: dict[int, Any]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen[id(function)] = function
    yield _code(function.__code__)
    yield from (_shown(each) for each in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    names = _names(function.__code__)
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [function.__globals__[name] for name in names if name in function.__globals__]
    for cls in classes:
        values += _attributes(cls, names)
    for value in _reached(values, names):
        called = value.fget if isinstance(value, property) else value
        if isinstance(called, FunctionType):
            yield called.__qualname__
            yield from _function(called, classes, seen)
        else:
            yield _shown(value)


def _reached(values: list[Any], names: Sequence[str]) -> list[Any]:
    """Return the values and what code reaches from them by these names: the `limit` of `settings.windows.limit`.

    Raises Refused where that does not end.
    """
    reached = list(values)
    known = {id(each) for each in reached}
    for value in reached:  # which grows
        if type(value) in _PLAIN:
            continue
        for found in _attributes(value, names):
            # Plain ones are shown each time: in what order they come tells whose they are.
            if type(found) in _PLAIN or id(found) not in known:
                known.add(id(found))
                reached.append(found)
        if len(reached) > _REACHED_MAX:
            raise Refused(f"from its globals one reaches more than {_REACHED_MAX} objects by the names in its code")
    return reached


def _attributes(value: Any, names: Sequence[str]) -> list[Any]:
    found = []
    for name in names:
        try:
            found.append(getattr(value, name))
        except Exception:  # noqa: BLE001, S112 - what raises here raises again, and is refused, where it is used
            continue
    return found


# Each exchange follows names anew, for what they lead to may change; only code itself cannot.
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
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_shown, value))}]"
    # Anything else is refused where it is used, or is a class or module, which stands for its name.
    return f"{type(value).__name__} {getattr(value, '__qualname__', getattr(value, '__name__', ''))}"
