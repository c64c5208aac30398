"""Compiled functions of this process: when compiling pays, what has been compiled, and why something was not.

A short exchange is over before its function would be compiled. So functions are interpreted until this process has
folded `HOT_ROWS` rows with them; one that is compiled already, when a server starts for instance, is used at once.
numba is imported no earlier than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from foldflight.errors import RejectedError
from foldflight.fold.moments import MOMENTS
from foldflight.fold.vectorised import layout_of
from foldflight.functions.spec import BoundFunction, Function, Verbs

if TYPE_CHECKING:
    from foldflight.fold.compiler.kernels import Kernels
    from foldflight.fold.compiler.trail import Trail

__all__ = [
    "HOT_ROWS",
    "Program",
    "compiled_program",
    "demand_all_compiled",
    "demand_compiled",
    "folded",
    "keep_compiled",
    "program_of",
    "warm",
    "warm_program",
]

# About half a second of the interpreter; to compile a function takes one to three.
HOT_ROWS: Final = 1 << 18
_KNOWN_MAX: Final = 256
_logger: Final = logging.getLogger(__name__)
_DTYPES: Final = {"int": np.int64, "float": np.float64, "bool": np.bool_, **dict.fromkeys(MOMENTS, np.int64)}
# (class, fingerprint) -> rows folded so far, and what compiling came to.
_rows: dict[tuple[type, str], int] = {}
_found: dict[tuple[type, str], str] = {}
_kernels: dict[str, Kernels] = {}
# (class, fingerprint) -> its program, which serves the next exchange as long as all that it was made from is the same.
_programs: dict[tuple[type, str], _Kept] = {}
# Functions against whose compiling nothing speaks at a glance; what the log has said of which function.
_looked_over: dict[tuple[type, str], None] = {}
_told: dict[tuple[str, str], None] = {}
_folder: Path | Literal["user"] | None = "user"


def keep_compiled(folder: Path | Literal["user"] | None) -> None:
    """Keep compiled code in a folder from now on, for the processes that come after this one.

    Args:
        folder: The folder; `user`, as it is unless told, for the user's cache folder; None keeps none.
    """
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
        self.arguments = tuple(zip(kernels.plan.arguments, kernels.plan.kinds, strict=True))
        kernels.fold(nulls=False)
        self.merge: Any = kernels.merge() if "merge" in kernels.plan.verbs else None
        self.values = kernels.values()

    @property
    def was_compiled(self) -> bool:
        """Whether this process has compiled any of it; if not, all was found in the folder of compiled code."""
        return self._kernels.compiled > 0

    def demand_nulls(self) -> None:
        """Compile the loop over rows with NULLs. Raises what speaks against it."""
        self._kernels.fold(nulls=True)

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
            name, why = self._kernels.plan.cls.__name__, _why(error)
            if (name, why) not in _told:
                _remember(_told, (name, why), None)
                what = "where an argument is NULL" if nulls else "where a value is shown after each row"
                _logger.info("%s is interpreted %s: %s", name, what, why)
            return None

    def room(self, count: int) -> tuple[Any, Any]:
        """Return arrays for `count` results and their flags."""
        return np.zeros(count, _DTYPES[self._kernels.plan.result]), np.zeros(count, np.bool_)


@dataclass(frozen=True)
class _Kept:
    """A program with what it was made from: the function, the attributes of its instance, and the way to all else."""

    function: Function
    own: dict[str, Any]
    trail: Trail
    program: Program

    def serves(self, bound: BoundFunction, verbs: Verbs) -> bool:
        """Tell whether making the program again would come to the same."""
        from foldflight.fold.compiler.plan import own_attributes
        from foldflight.fold.compiler.trail import is_same

        own = own_attributes(verbs)
        return (
            self.function is bound.function
            and self.own.keys() == own.keys()
            and all(is_same(value, own[name]) for name, value in self.own.items())
            and self.trail.holds()
        )


def program_of(bound: BoundFunction, verbs: Verbs, *, complete: bool = False) -> Program | str:
    """Return the compiled code of a function, or why there is none.

    Args:
        bound: The function.
        verbs: The methods of its instance.
        complete: Whether the loop for rows with NULLs must be there, too.
    """
    try:
        kept = _programs.get(_key_of(bound))
        program = kept.program if kept is not None and kept.serves(bound, verbs) else _made(bound, verbs)
        if complete and not bound.function.skip_nulls:
            program.demand_nulls()
    except Exception as error:  # noqa: BLE001 - whatever the compiler stumbles over, the interpreter takes it
        return _why(error)
    return program


def _made(bound: BoundFunction, verbs: Verbs) -> Program:
    from foldflight.fold.compiler.digest import digest_of
    from foldflight.fold.compiler.kernels import Kernels
    from foldflight.fold.compiler.plan import own_attributes, plan_of
    from foldflight.fold.compiler.trail import Trail

    own, trail = dict(own_attributes(verbs)), Trail()
    plan, start = plan_of(bound, verbs)
    digest = digest_of(plan, trail)
    kernels = _kernels.get(digest) or Kernels(plan, _store_of(digest), lambda: digest_of(plan, Trail()) == digest)
    program = Program(kernels, *start)
    _remember(_kernels, digest, kernels)
    _remember(_programs, _key_of(bound), _Kept(bound.function, own, trail, program))
    return program


def _store_of(digest: str) -> Callable[[str], Any] | None:
    """Return what says where each loop under a digest is kept; None where none is."""
    from foldflight.fold.compiler.store import Store, user_folder

    folder = user_folder() if _folder == "user" else _folder
    return None if folder is None else lambda name: Store(folder, f"{digest}.{name}")


def compiled_program(bound: BoundFunction, verbs: Verbs) -> Program:
    """Return the compiled code of a function that must be compiled. Raises RejectedError SIGNATURE with the reason."""
    found = program_of(bound, verbs, complete=True)
    if isinstance(found, str):
        raise RejectedError(
            "SIGNATURE",
            f"{bound.function.name} is declared compile=True and cannot be compiled: {found}; "
            'change it, or leave it to foldflight (compile="auto")',
            function=bound.function.name,
        )
    _settle(bound, found)
    return found


def demand_compiled(bound: BoundFunction) -> None:
    """Compile a function that is declared `compile=True`; do nothing for all others, and where `open` has a say in it.

    Raises:
        RejectedError: SIGNATURE, with the reason why it cannot be compiled.
    """
    if bound.function.compile is True and not _opens(bound.function):
        verbs = _verbs(bound)
        if isinstance(verbs, Verbs):
            compiled_program(bound, verbs)


def demand_all_compiled(functions: Iterable[Function]) -> None:
    """Do what `demand_compiled` does for each function whose types are fixed; it raises the same."""
    for function in functions:
        bound = _fixed(function)
        if bound is not None:
            demand_compiled(bound)


def warm(function: Function) -> str:
    """Compile a function, or load it, before its rows come. Return how it is folded, as `folded` does."""
    how = folded(function)
    bound = _fixed(function) if how == "compiled when hot" else None
    if bound is None:
        return how
    verbs = _verbs(bound)
    found = verbs if isinstance(verbs, str) else program_of(bound, verbs)
    if isinstance(found, Program) and not function.skip_nulls:
        found.fold(nulls=True)
    _settle(bound, found)
    return folded(function)


def folded(function: Function) -> str:
    """Return how a function is folded, as far as is known without compiling it.

    Returns:
        str: `compiled`; `compiled when hot`, if nothing speaks against it; `interpreted: ` and the reason;
        `decided when bound`, where types, direct arguments or `open` have a say in it; `vectorised`.
    """
    if function.compile is False:
        return "interpreted: compile=False"
    if function.capabilities.codec != "typed":
        return f"interpreted: its states are not typed: {function.capabilities.codec_reason}"
    bound = _fixed(function)
    if function.folds_many and (bound is None or _has_records(bound)):
        return "vectorised"
    if bound is None or _opens(function):
        return "decided when bound"
    key = _key_of(bound)
    known = _found.get(key)
    if known is not None:
        return f"interpreted: {known}" if known else "compiled"
    if key not in _looked_over:
        why = _look_over(bound)
        if why:
            _settle(bound, why)
            return f"interpreted: {why}"
        _remember(_looked_over, key, None)
    return "compiled when hot"


def _look_over(bound: BoundFunction) -> str:
    """Return what speaks against compiling, as far as it shows at once; nothing if nothing does."""
    verbs = _verbs(bound)
    if isinstance(verbs, str):
        return verbs
    try:
        from foldflight.fold.compiler.kernels import Kernels
        from foldflight.fold.compiler.plan import plan_of

        plan, _ = plan_of(bound, verbs)
        Kernels(plan).check()
    except Exception as error:  # noqa: BLE001 - as in `program_of`
        return _why(error)
    return ""


def _fixed(function: Function) -> BoundFunction | None:
    """Return a function bound to its types; None where they, or direct arguments, come with each call."""
    types = function.input_types
    if types is None or any(each.required for each in function.parameters):
        return None
    return function.bind(types, {})


def _has_records(bound: BoundFunction) -> bool:
    verbs = _verbs(bound)
    return isinstance(verbs, Verbs) and not isinstance(layout_of(bound, verbs), str)


def _opens(function: Function) -> bool:
    return getattr(function.cls, "open", None) is not None


def _verbs(bound: BoundFunction) -> Verbs | str:
    try:
        return bound.instantiate()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the interpreter meets it again, and names it
        return f"__init__ raises {type(error).__name__}"


def _key_of(bound: BoundFunction) -> tuple[type, str]:
    return bound.function.cls, bound.fingerprint


def warm_program(bound: BoundFunction, verbs: Verbs, rows: int) -> Program | str | None:
    """Count rows of a function; return its compiled code, or why there is none, once it pays; None before.

    Args:
        bound: The function.
        verbs: The methods of its instance.
        rows: How many rows come now.
    """
    key = _key_of(bound)
    known = _found.get(key)
    if known:
        return known
    so_far = _rows.get(key, 0) + rows
    _remember(_rows, key, so_far)
    if known is None and so_far < HOT_ROWS:
        return None
    found = program_of(bound, verbs)
    _settle(bound, found)
    return found


def _settle(bound: BoundFunction, found: Program | str) -> None:
    """Remember what compiling came to, and say so the first time that it is known of this function."""
    why = found if isinstance(found, str) else ""
    _remember(_found, _key_of(bound), why)
    name = bound.function.name
    if (name, why) not in _told:
        _remember(_told, (name, why), None)
        if isinstance(found, str):
            _logger.info("%s is interpreted, not compiled: %s", name, found)
        else:
            _logger.info("%s is compiled%s", name, "" if found.was_compiled else ", by an earlier process")


def _remember(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Keep a value, and drop the oldest of too many; a server's threads do so at once, each step in one go."""
    known[key] = value
    for old in list(known)[:-_KNOWN_MAX]:
        known.pop(old, None)


def _why(error: BaseException) -> str:
    from foldflight.fold.compiler.kinds import Refused

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, Refused):
            return str(seen.reason)
        seen = seen.__cause__ or seen.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"numba: {type(error).__name__}: {lines[1] if len(lines) > 1 else ''.join(lines)}"
