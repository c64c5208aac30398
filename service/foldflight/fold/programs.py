"""Compiled functions of this process: when compiling pays, what has been compiled, and why something was not.

A short exchange is over before its function would be compiled. So functions are interpreted until this process has
folded `HOT_ROWS` rows with them; one that is compiled already, when a server starts for instance, is used at once.
numba is imported no earlier than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foldflight.errors import RejectedError
from foldflight.functions.spec import BoundFunction, Verbs

if TYPE_CHECKING:
    from foldflight.fold.compiler.kernels import Kernels

__all__ = ["HOT_ROWS", "Program", "compiled_program", "heat_of", "keep_compiled", "program_of", "warm_program"]

# About half a second of the interpreter; to compile a function takes one to three.
HOT_ROWS: Final = 1 << 18
_KNOWN_MAX: Final = 256
_logger: Final = logging.getLogger(__name__)
_DTYPES: Final = {"int": np.int64, "float": np.float64, "bool": np.bool_}
# (class, fingerprint) -> rows folded so far, and what compiling came to.
_rows: dict[tuple[type, str], int] = {}
_found: dict[tuple[type, str], str] = {}
_kernels: dict[str, Kernels] = {}
_folder: Path | None = None


def keep_compiled(folder: Path | None) -> None:
    """Keep compiled code in a folder from now on, for the processes that come after this one; None keeps none."""
    global _folder  # noqa: PLW0603 - it is a property of the process, as what has been compiled in it is
    _folder = folder


class Program:
    """The compiled code of one function with direct arguments.

    Args:
        kernels: The loops.
        fresh: A new accumulator, uint8, shape (bytes of a record,).
        instance: The attributes of the author's instance, uint8.
    """

    def __init__(self, kernels: Kernels, fresh: Any, instance: Any) -> None:
        self._kernels = kernels
        self.fresh = fresh
        self.instance = instance
        self.layout = kernels.plan.accumulator
        self.dtype = self.layout.dtype
        self.arguments = kernels.plan.arguments
        self.merge: Any = kernels.merge() if "merge" in kernels.plan.verbs else None
        self.values = kernels.values()
        kernels.fold(nulls=False)

    def fold(self, *, nulls: bool) -> Any:
        """Return the loop over rows, with or without NULLs; None where it cannot be compiled."""
        return self._loop(self._kernels.fold, nulls=nulls)

    def each(self, *, nulls: bool) -> Any:
        """Return the loop that shows a value after each row; None where it cannot be compiled."""
        return self._loop(self._kernels.each, nulls=nulls)

    def _loop(self, loop: Callable[..., Any], *, nulls: bool) -> Any:
        try:
            return loop(nulls=nulls)
        except Exception as error:  # noqa: BLE001 - the interpreter takes what the compiler does not
            _logger.info("%s is interpreted from here on: %s", self._kernels.plan.cls.__name__, _why(error))
            return None

    def room(self, count: int) -> tuple[Any, Any]:
        """Return arrays for `count` results and their flags."""
        return np.zeros(count, _DTYPES[self._kernels.plan.result]), np.zeros(count, np.bool_)


def program_of(bound: BoundFunction, verbs: Verbs) -> Program | str:
    """Return the compiled code of a function, or why there is none.

    Args:
        bound: The function.
        verbs: The methods of its instance.
    """
    try:
        from foldflight.fold.compiler.digest import digest_of
        from foldflight.fold.compiler.kernels import Kernels
        from foldflight.fold.compiler.plan import plan_of
        from foldflight.fold.compiler.store import Store

        plan, start = plan_of(bound, verbs)
        digest = digest_of(plan)
        folder = _folder
        kernels = _kernels.get(digest) or Kernels(
            plan, None if folder is None else lambda name: Store(folder, f"{digest}.{name}")
        )
        program = Program(kernels, *start)
        _remember(_kernels, digest, kernels)
    except Exception as error:  # noqa: BLE001 - whatever the compiler stumbles over, the interpreter takes it
        return _why(error)
    return program


def compiled_program(bound: BoundFunction, verbs: Verbs) -> Program:
    """Return the compiled code of a function that must be compiled. Raises RejectedError SIGNATURE with the reason."""
    found = program_of(bound, verbs)
    if isinstance(found, str):
        raise RejectedError(
            "SIGNATURE",
            f"{bound.function.name} is declared compile=True and cannot be compiled: {found}; "
            'change it, or leave it to foldflight (compile="auto")',
            function=bound.function.name,
        )
    return found


def heat_of(bound: BoundFunction) -> tuple[type, str]:
    """Return under which key rows of a function are counted."""
    return bound.function.cls, bound.fingerprint


def warm_program(key: tuple[type, str], bound: BoundFunction, verbs: Verbs, rows: int) -> Program | str | None:
    """Count rows of a function; return its compiled code, or why there is none, once it pays; None before.

    Args:
        key: What `heat_of` returned.
        bound: The function.
        verbs: The methods of its instance.
        rows: How many rows come now.
    """
    if _found.get(key):
        return _found[key]
    _remember(_rows, key, _rows.get(key, 0) + rows)
    if key not in _found and _rows[key] < HOT_ROWS:
        return None
    found = program_of(bound, verbs)
    why = found if isinstance(found, str) else ""
    if why and key not in _found:
        _logger.info("%s is interpreted, not compiled: %s", bound.function.name, why)
    _remember(_found, key, why)
    return found


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    while len(known) > _KNOWN_MAX:
        known.pop(next(iter(known)))


def _why(error: BaseException) -> str:
    from foldflight.fold.compiler.kinds import Refused

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Refused):
            return str(seen.reason)
        seen = seen.__cause__ or seen.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"numba: {type(error).__name__}: {lines[1] if len(lines) > 1 else ''.join(lines)}"
