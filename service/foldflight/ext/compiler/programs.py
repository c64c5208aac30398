"""The compiled functions of a process: when each is compiled, and the reason if it is not.

Compiling takes longer than a short exchange. So a function is interpreted until this process has folded `HOT_ROWS` rows
with it, unless it was compiled before, for example at the start of a server. numba is imported at the first
compilation.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from foldflight.errors import RejectedError
from foldflight.ext.compiler.compiled import CompiledAccumulators
from foldflight.ext.compiler.compiled_scalar import CompiledScalar
from foldflight.ext.compiler.program import (
    NO_NUMBA,
    Loops,
    NoProgram,
    Program,
    describe_interpreted,
    lacks_numba,
    reason_of,
)
from foldflight.fold.accelerator import HOT_ROWS, Accelerator, CompileQueue, PendingLoop, bind_fixed_types
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.mode import WAITS_TO_BE_COMPILED, Folding, Mode, Unsupported, at_line_of, line_of
from foldflight.fold.scalar.evaluation import InterpretedScalar, Scalar
from foldflight.functions.author.spec import AnyFunction, BoundFunction, BoundScalar, Methods, ScalarMethods
from foldflight.functions.types.vectors import is_vector

if TYPE_CHECKING:
    from pathlib import Path

    from foldflight.ext.compiler.digest import Lookups
    from foldflight.ext.compiler.kernels import CompilePlan, Kernels

_ITEMS_OF_A_ROW: Final = 128  # items of a vector for which the interpreter takes as long as for one more row
_KNOWN_MAX: Final = 256  # entries of each cache of this process
_OPTIONAL: Final = {"merge": "merge", "values": "get_value"}  # loops beside which the others run, and their methods
_logger: Final = logging.getLogger(__name__)
_Bound: TypeAlias = BoundFunction | BoundScalar
_Methods: TypeAlias = Methods | ScalarMethods
_Key: TypeAlias = tuple[Any, str]  # an author's class or function and the fingerprint of its binding


class LoopStore(Protocol):
    """Keeps compiled loops for later processes."""

    @property
    def target(self) -> Path:
        """The folder to which loops are written."""

    def loop(self, digest: str, name: str, lines: str) -> Any:
        """Return the file of one loop: an object with the interface of `numba.core.caching._Cache`, and its refusal.

        Args:
            digest: The digest of what the author's code depends on.
            name: The name of the loop.
            lines: Where this code is; reasons name lines.
        """


@dataclass(frozen=True)
class _CachedProgram:
    """A program and its inputs: the function, the attributes of its instance, and the recorded lookups of globals."""

    function: AnyFunction
    own: dict[str, Any]
    lookups: Lookups
    program: Loops

    def serves(self, bound: _Bound, methods: _Methods) -> bool:
        """Return whether compiling again would give the same program."""
        from foldflight.ext.compiler.compile_plan import own_attributes
        from foldflight.ext.compiler.digest import is_same

        own = own_attributes(methods)
        return (
            self.function is bound.function
            and self.own.keys() == own.keys()
            and all(is_same(value, own[name]) for name, value in self.own.items())
            and self.lookups.holds()
        )


class Programs(Accelerator):
    """The compiled functions of a process, shared by its folds.

    Several threads may use it at once: each operation on its dicts is atomic. At worst a program is compiled twice.

    Args:
        store: Stores compiled loops for later processes. None: they are not stored.
        hot_rows: Number of rows of a function after which it is compiled.
        queue: Has functions compiled in another process, from their first rows on. None: this process compiles.
    """

    def __init__(
        self, store: LoopStore | None = None, *, hot_rows: int = HOT_ROWS, queue: CompileQueue | None = None
    ) -> None:
        self._store = store
        self._queue = queue
        self._hot_rows = hot_rows
        self._rows: dict[_Key, int] = {}
        self._decisions: dict[_Key, Folding] = {}
        self._kernels: dict[str, Kernels] = {}
        # Functions that another process compiles: the loop that is asked for, and its file.
        self._pending: dict[_Key, tuple[str, Any]] = {}
        # A program is reused while its inputs are unchanged.
        self._programs: dict[_Key, _CachedProgram] = {}
        # Functions for which the check before compiling has found no obstacle, and which methods are interpreted.
        self._compilable: dict[_Key, Folding] = {}
        self._logged_keys: dict[tuple[str, ...], None] = {}

    @property
    def folder(self) -> Path | None:
        """The folder to which compiled code is written; None if it is not kept."""
        return None if self._store is None else self._store.target

    def accumulators(self, inner: InterpretedAccumulators) -> GroupsAccumulator:
        """Return accumulators that are compiled when it pays, or at once if the function is declared `compile=True`.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        find = self._finder(inner.bound, inner.methods)
        return inner if find is None else CompiledAccumulators(inner, find)

    def demand(self, bound: _Bound) -> None:
        """Compile a function that is declared `compile=True` and has no `open`; do nothing for all others.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """
        if bound.function.compile is True and not _opens(bound.function):
            methods = _methods(bound)
            if not isinstance(methods, NoProgram):
                self.required_program(bound, methods)

    def required_program(self, bound: _Bound, methods: _Methods) -> Any:
        """Return the compiled code of a function that must be compiled.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """
        program = self.program(bound, methods, complete=True)
        if isinstance(program, NoProgram):
            raise RejectedError(
                "SIGNATURE",
                f"{bound.function.name} is declared compile=True and cannot be compiled: {program.reason}; "
                'change it, or leave it to foldflight (compile="auto")',
                function=bound.function.name,
            )
        self._decide(bound, program)
        return program

    def when_hot(self, bound: _Bound, methods: _Methods, rows: int) -> Any:
        """Count rows of a function, and return its compiled code as soon as compiling is worthwhile.

        Args:
            bound: The function.
            methods: The methods of its instance.
            rows: Number of rows that come next.

        Returns:
            The compiled code, or the reason why there is none; None as long as compiling is not worthwhile, or another
            process compiles.
        """
        key = _key_of(bound)
        decision = self._decisions.get(key)
        if decision is not None and decision.mode is Mode.INTERPRETED:
            return NoProgram(decision.reason)
        so_far = self._rows.get(key, 0) + rows * _rows_of_numbers(bound)
        _remember(self._rows, key, so_far)
        if decision is None and so_far < self._hot_rows and not self._is_queued(bound):
            return None
        try:
            if decision is None:
                self._check_pending(bound, so_far)
            program = self.program(bound, methods)
        except PendingLoop:
            return None
        self._decide(bound, program)
        return program

    def _is_queued(self, bound: _Bound) -> bool:
        """Return whether another process compiles this function: not if `open` may change its instance."""
        queue, function = self._queue, bound.function
        return queue is not None and function.compile is not True and not _opens(function) and queue.takes(bound)

    def _check_pending(self, bound: _Bound, rows: int) -> None:
        """Raise PendingLoop while a loop that is asked for is not stored: looking is faster than planning again."""
        name, file = self._pending.get(_key_of(bound), ("", None))
        if file is not None and not file.is_known:
            with contextlib.suppress(Unsupported):  # planning again tells it as the reason
                self._ask(bound, name, file, rows)

    def _ask(self, bound: _Bound, name: str, file: Any, rows: int) -> None:
        if self._queue is None or not self._is_queued(bound):
            return
        try:
            self._queue.ask(bound, name, rows)
        except PendingLoop:
            if rows and _key_of(bound) not in self._decisions:
                _remember(self._pending, _key_of(bound), (name, file))
            raise
        except Unsupported:
            if not file.is_known:  # else the reason is there
                raise

    def program(self, bound: _Bound, methods: _Methods, *, complete: bool = False) -> Loops | NoProgram:
        """Return the compiled code of a function, or the reason why there is none.

        Args:
            bound: The function.
            methods: The methods of its instance.
            complete: Whether the loop for rows with NULLs must be compiled as well.
        """
        if lacks_numba():
            return NO_NUMBA
        try:
            cached_program = self._programs.get(_key_of(bound))
            if cached_program is not None and cached_program.serves(bound, methods):
                program = cached_program.program
            else:
                program = self._compile(bound, methods)
            if complete and not bound.function.skip_nulls:
                program.demand_nulls()
        except PendingLoop:
            raise
        except Exception as error:  # noqa: BLE001 - the interpreter folds what cannot be compiled
            return NoProgram(reason_of(error))
        return program

    def _compile(self, bound: _Bound, methods: _Methods) -> Loops:
        from foldflight.ext.compiler.compile_plan import own_attributes
        from foldflight.ext.compiler.digest import Lookups, digest_of
        from foldflight.ext.compiler.kernels import Kernels

        own, lookups = dict(own_attributes(methods)), Lookups()
        plan, start = _plan_of(bound, methods)
        digest = digest_of(plan, lookups)
        stored_loop = None if self._store is None else functools.partial(self._store.loop, digest, lines=lookups.places)
        kernels = self._kernels.get(digest) or Kernels(
            plan,
            stored_loop,
            lambda: digest_of(plan, Lookups()) == digest,
            lambda name: self._ask(bound, name, stored_loop and stored_loop(name), self._rows.get(_key_of(bound), 0)),
        )
        program: Loops
        if isinstance(bound, BoundScalar):
            program = Loops(bound.function.name, kernels, kernels.map_rows, start, self._log_unsupported)
        else:
            program = Program(kernels, start, self._log_unsupported)
        _remember(self._kernels, digest, kernels)
        _remember(self._programs, _key_of(bound), _CachedProgram(bound.function, own, lookups, program))
        return program

    def scalar(self, inner: InterpretedScalar) -> Scalar:
        """Return a scalar function that is compiled when it pays, or at once if it is declared `compile=True`.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        find = self._finder(inner.bound, inner.methods)
        return inner if find is None else CompiledScalar(inner, find)

    def _finder(self, bound: _Bound, methods: _Methods) -> Callable[[int], Any] | None:
        """Return a function that returns the compiled code when it pays, or at once; None with `compile=False`."""
        if bound.function.compile is False:
            return None
        if bound.function.compile is True:
            return lambda _: self.required_program(bound, methods)
        return functools.partial(self.when_hot, bound, methods)

    def warm(self, function: AnyFunction) -> Folding:
        """Compile or load a function before its first rows. Return its mode and reason, as `folding` does."""
        folding = self.folding(function)
        bound = bind_fixed_types(function) if folding.mode is Mode.COMPILED_WHEN_HOT else None
        return folding if bound is None else self.compile_bound(bound)

    def load(self, function: AnyFunction) -> Folding:
        """Load the compiled code of a function if it is stored, without compiling. Return its mode and reason."""
        folding = self.folding(function)
        bound = bind_fixed_types(function) if folding.mode is Mode.COMPILED_WHEN_HOT else None
        return (None if bound is None else self.load_bound(bound)) or folding

    def load_bound(self, bound: _Bound) -> Folding | None:
        """Load a bound function, as `load`. Return its mode and reason; None if it is not stored."""
        methods = _methods(bound)
        if isinstance(methods, NoProgram) or not self._is_queued(bound):
            return None
        self.when_hot(bound, methods, 0)
        return self._decisions.get(_key_of(bound))

    def compile_bound(self, bound: _Bound, loop: str = "") -> Folding:
        """Compile a bound function, with a further loop if it is named. Return its mode and reason."""
        methods = _methods(bound)
        program = methods if isinstance(methods, NoProgram) else self.program(bound, methods)
        if not isinstance(program, NoProgram):
            nulls = [False] if bound.function.skip_nulls else [False, True]
            for each in nulls:
                program.rows(nulls=each)
                if isinstance(program, Program) and loop.startswith("each"):
                    program.each(nulls=each)
        return self._decide(bound, program)

    def compilable(self, function: AnyFunction, bound: _Bound | None) -> Folding:
        """Return the mode of a function that declares no `compile=False`, as far as known without compiling it."""
        if bound is None or _opens(function):
            return Folding(Mode.DECIDED_WHEN_BOUND)
        key = _key_of(bound)
        decision = self._decisions.get(key)
        if decision is not None:
            return decision
        if key in self._pending:
            return WAITS_TO_BE_COMPILED
        folding = self._compilable.get(key)
        if folding is None:
            found = _precheck(bound) or self._stored_reasons(bound)
            if isinstance(found, NoProgram):
                return self._decide(bound, found)
            folding = Folding(Mode.COMPILED_WHEN_HOT, found)
            _remember(self._compilable, key, folding)
        return folding

    def _stored_reasons(self, bound: _Bound) -> NoProgram | str:
        """Return what compiling has found before, in this process or another one.

        Returns:
            The reason why the function is interpreted; or which of its methods are, and why, in the words of
            `Loops.interprets`; an empty text if nothing is known.
        """
        from foldflight.ext.compiler.digest import Lookups, digest_of

        store, methods = self._store, _methods(bound)
        if store is None or isinstance(methods, NoProgram):
            return ""
        lookups, main = Lookups(), "mapped" if isinstance(bound, BoundScalar) else "fold"
        try:
            plan, _ = _plan_of(bound, methods)
            digest = digest_of(plan, lookups)
            reasons = {name: store.loop(digest, name, lines=lookups.places).refusal() for name in (main, *_OPTIONAL)}
            if reasons[main]:
                return NoProgram(reasons[main])
            texts = [describe_interpreted(plan, _OPTIONAL[name], reasons[name]) for name in _OPTIONAL if reasons[name]]
        except Exception as error:  # noqa: BLE001 - as in `program`
            return NoProgram(reason_of(error))
        return "; ".join(texts)

    def unordered_fields(self, bound: BoundFunction) -> frozenset[str]:
        """Return the fields that are sets, or dicts of them: compiled code has their items in an order of its own."""
        program = self.program(bound, bound.instantiate())
        fields = program.layout.fields if isinstance(program, Program) else ()
        return frozenset(field.name for field in fields if field.contents is not None and field.contents.has_sets)

    def _decide(self, bound: _Bound, program: Loops | NoProgram) -> Folding:
        """Store the mode of a function, and log it the first time."""
        if isinstance(program, NoProgram):
            folding = Folding(Mode.INTERPRETED, program.reason)
            text = f"is interpreted, not compiled: {program.reason}"
        else:
            folding = Folding(Mode.COMPILED, program.interprets)
            text = "is compiled" if program.was_compiled else "is compiled, and was loaded from a file"
            text += f", but {program.interprets}" if program.interprets else ""
        _remember(self._decisions, _key_of(bound), folding)
        self._pending.pop(_key_of(bound), None)
        self._log_once((bound.function.name, str(folding)), bound.function.name, text)
        return folding

    def _log_unsupported(self, name: str, where: str, why: str) -> None:
        self._log_once((name, where, why), name, f"is interpreted {where}: {why}")

    def _log_once(self, key: tuple[str, ...], name: str, text: str) -> None:
        if key not in self._logged_keys:
            _remember(self._logged_keys, key, None)
            _logger.info("%s %s", name, text)


def _rows_of_numbers(bound: _Bound) -> int:
    """Return how many rows of single numbers take the interpreter about as long as a row: more than one for vectors."""
    return 1 + sum(type_.list_size for type_ in bound.input_types if is_vector(type_)) // _ITEMS_OF_A_ROW


def _precheck(bound: _Bound) -> NoProgram | None:
    """Return the reason why a function cannot be compiled; None if the check before compiling finds none."""
    if lacks_numba():
        return NO_NUMBA
    methods = _methods(bound)
    if isinstance(methods, NoProgram):
        return methods
    try:
        from foldflight.ext.compiler.kernels import Kernels

        plan, _ = _plan_of(bound, methods)
        Kernels(plan).check()
    except Exception as error:  # noqa: BLE001 - as in `program`
        return NoProgram(reason_of(error))
    return None


def _plan_of(bound: _Bound, methods: _Methods) -> tuple[CompilePlan, Any]:
    from foldflight.ext.compiler.compile_plan import plan_of, scalar_plan_of

    if isinstance(bound, BoundScalar):
        assert isinstance(methods, ScalarMethods)
        with at_line_of(getattr(bound.function.target, "eval", bound.function.target)):
            return scalar_plan_of(bound, methods)
    assert isinstance(methods, Methods)
    with at_line_of(getattr(bound.function.cls, "accumulate", None)):
        return plan_of(bound, methods)


def _opens(function: AnyFunction) -> bool:
    return isinstance(function.source, type) and getattr(function.source, "open", None) is not None


def _methods(bound: _Bound) -> _Methods | NoProgram:
    try:
        return bound.instantiate()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the interpreter raises it again, as an error of the function
        init_error = Unsupported(f"__init__ raises {type(error).__name__}")
        return NoProgram(reason_of(init_error, line_of(getattr(bound.function.source, "__init__", None))))


def _key_of(bound: _Bound) -> _Key:
    return bound.function.source, bound.fingerprint


def _remember(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Add a value to a cache, and remove the oldest if it is full. Thread-safe: each step is atomic."""
    cache[key] = value
    for old in list(cache)[:-_KNOWN_MAX]:
        cache.pop(old, None)
