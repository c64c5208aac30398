"""Accelerators evaluate calls faster than the interpreter. Whoever opens a fold passes one.

The extension `compiler` provides one that compiles. Without it, functions are interpreted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from foldflight.errors import RejectedError
from foldflight.extensions import Extension
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators
from foldflight.fold.aggregate.record_layout import fresh_table
from foldflight.fold.mode import Folding, Mode, line_of
from foldflight.fold.scalar.evaluation import InterpretedScalar, Scalar
from foldflight.functions.author.spec import AnyFunction, BoundFunction, BoundScalar, Function, Methods, ScalarFunction
from foldflight.functions.types.serializer import views_in

HOT_ROWS: Final = 1 << 18
"""Rows of a function after which it is compiled.

The interpreter folds this many rows in about half a second; compiling a function takes one to three seconds.
"""

_logger: Final = logging.getLogger(__name__)


class PendingLoop(Exception):  # noqa: N818 - no error: the interpreter evaluates the rows until the loop is there
    """A compiled loop is not there yet, and another process compiles it."""


class CompileQueue(Protocol):
    """The functions of a server that wait until another process has compiled them."""

    def takes(self, bound: BoundFunction | BoundScalar) -> bool:
        """Return whether that process has this function, too."""

    def ask(self, bound: BoundFunction | BoundScalar, loop: str, rows: int) -> None:
        """Ask for a loop that is not stored. Returns if this process must compile it.

        Args:
            bound: The function.
            loop: The name of the loop.
            rows: The rows that this process has folded with the function: most used functions are compiled first, and
                those without rows are not.

        Raises:
            PendingLoop: The loop is not there yet.
            Unsupported: There will be none, with the reason.
        """


class Accelerator:
    """Evaluates calls faster than the interpreter, with the same states, outputs and errors.

    This one leaves all of them to the interpreter, and refuses functions that are declared `compile=True`.

    Attributes:
        reason: Why this one compiles nothing.
    """

    reason = "there is no compiler here"

    @property
    def folder(self) -> Path | None:
        """The folder to which compiled code is written; None if it is not kept."""
        return None

    def accumulators(self, inner: InterpretedAccumulators) -> GroupsAccumulator:
        """Return accumulators that replace an empty interpreter's, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        self.demand(inner.bound)
        return inner

    def scalar(self, inner: InterpretedScalar) -> Scalar:
        """Return the evaluation of a scalar function that replaces the interpreter, which remains the fallback.

        Raises:
            RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
        """
        self.demand(inner.bound)
        return inner

    def demand(self, bound: BoundFunction | BoundScalar) -> None:
        """Compile a function that is declared `compile=True`; do nothing for all others.

        A function whose `open` may change its instance is not checked here. It is compiled when an exchange opens.

        Raises:
            RejectedError: SIGNATURE, with the reason why it cannot be compiled.
        """
        if bound.function.compile is True:
            raise RejectedError(
                "SIGNATURE",
                f"{bound.function.name} is declared compile=True and {self.reason}: pass an accelerator "
                'to the fold, or declare compile="auto"',
                function=bound.function.name,
            )

    def demand_all(self, functions: Iterable[AnyFunction]) -> None:
        """Call `demand` for each function whose types are fixed. Raises as `demand`."""
        for function in functions:
            bound = bind_fixed_types(function)
            if bound is not None:
                self.demand(bound)

    def warm(self, function: AnyFunction) -> Folding:
        """Prepare a function before its first rows. Return its mode and reason, as `folding` does."""
        return self.folding(function)

    def load(self, function: AnyFunction) -> Folding:
        """Load the compiled code of a function if it is stored, without compiling. Return its mode and reason."""
        return self.folding(function)

    def load_bound(self, bound: BoundFunction | BoundScalar) -> Folding | None:  # noqa: ARG002 - for subclasses
        """Load a bound function, as `load`. Return its mode and reason; None if it is not stored."""
        return None

    def compile_bound(self, bound: BoundFunction | BoundScalar, loop: str = "") -> Folding:  # noqa: ARG002
        """Compile a bound function, with a further loop if it is named. Return its mode and reason."""
        return Folding(Mode.INTERPRETED, self.reason)

    def unordered_fields(self, bound: BoundFunction) -> frozenset[str]:  # noqa: ARG002 - for subclasses
        """Return the fields of accumulators whose items may be in another order than the interpreter has them."""
        return frozenset()

    def folding(self, function: AnyFunction) -> Folding:
        """Return the mode of a function and the reason, as far as known without compiling it."""
        if function.bounds is not None:
            return Folding(Mode.ASYNC)
        if isinstance(function, ScalarFunction) and function.vectorised is not None:
            return Folding(Mode.VECTORISED)
        if isinstance(function, ScalarFunction) and function.is_table:
            return _refusal(function, "it is a table function")
        if isinstance(function, Function) and function.adapter:
            return _refusal(function, f"its class is adapted from {function.adapter}")
        if isinstance(function, Function) and function.language == "java":
            return _folding_in_java(function)
        if not isinstance(function, ScalarFunction) and function.bundled:
            return Folding(Mode.BUNDLED)
        if isinstance(function, Function) and (views := views_in(function.serializer)):
            return _refusal(function, f"its accumulator has views: {', '.join(views)}", "create_accumulator")
        if function.compile is False:
            return _refusal(function, "compile=False")
        if isinstance(function, ScalarFunction):
            return self.compilable(function, bind_fixed_types(function))
        if function.capabilities.codec == "custom" or (function.capabilities.codec == "pickle" and function.folds_many):
            reason = f"its states are not typed: {function.capabilities.codec_reason}"
            return _refusal(function, reason, "serialize", "create_accumulator")
        bound = bind_fixed_types(function)
        if function.folds_many and (bound is None or (isinstance(bound, BoundFunction) and _has_records(bound))):
            return Folding(Mode.VECTORISED)
        return self.compilable(function, bound)

    def compilable(self, function: AnyFunction, bound: BoundFunction | BoundScalar | None) -> Folding:  # noqa: ARG002
        """Return the mode of a function that declares no `compile=False`, as far as known without compiling it.

        Args:
            function: The function.
            bound: The function bound to its types; None if types or direct arguments depend on the call.
        """
        return Folding(Mode.INTERPRETED, self.reason)


def _refusal(function: AnyFunction, reason: str, *method_names: str) -> Folding:
    """Return that a function is interpreted for a reason, with the line of the first of these methods that it has."""
    source: Any = function.source
    named_methods = [getattr(source, name, None) for name in (*method_names, "accumulate", "eval")]
    lines = [
        line for each in (*named_methods, source, *getattr(source, "__dict__", {}).values()) if (line := line_of(each))
    ]
    return Folding(Mode.INTERPRETED, f"{reason} ({lines[0]})" if lines else reason)


class Compiler(Protocol):
    """What the extension `compiler` provides."""

    def accelerator(
        self,
        folder: Path | Literal["user"] | None,
        *,
        hot_rows: int,
        spare: Path | None,
        queue: CompileQueue | None,
    ) -> Accelerator:
        """Return an accelerator that compiles functions after a number of rows.

        Args:
            folder: Keeps compiled loops for later processes. `user`: in the user's cache folder; None: nowhere.
            hot_rows: Rows of a function after which it is compiled.
            spare: Keeps loops in the place of a folder that cannot be written to; None: they are not kept then.
            queue: Has functions compiled in another process, which writes to the same folder, from their first rows on.
        """

    def key_loops(self, folder: Path | Literal["user"]) -> Mapping[str, Any] | None:
        """Return the compiled loops of hash tables of keys by name; None if numba is missing."""


class _WithoutCompiler(Accelerator):
    """The accelerator of an installation without the extension."""

    reason = "this installation of foldflight has no compiler"


COMPILER: Final = Extension[Compiler]("compiler")


def accelerator_of(
    folder: Path | Literal["user"] | None,
    *,
    hot_rows: int = HOT_ROWS,
    spare: Path | None = None,
    queue: CompileQueue | None = None,
) -> Accelerator:
    """Return the accelerator of a process, as `Compiler.accelerator`. Without the extension, functions are interpreted.

    That is logged, and listings and plans tell it as the reason of each function.
    """
    compiler = COMPILER.find()
    if compiler is not None:
        return compiler.accelerator(folder, hot_rows=hot_rows, spare=spare, queue=queue)
    _logger.warning(
        "%s, so functions are interpreted: the results are the same, and numeric functions take several times as long",
        _WithoutCompiler.reason,
    )
    return _WithoutCompiler()


def bind_fixed_types(function: AnyFunction) -> BoundFunction | BoundScalar | None:
    """Return a function bound to its types; None if types or direct arguments depend on the call."""
    types = function.input_types
    if types is None or any(each.required for each in function.parameters):
        return None
    return function.bind(types, {})


def _methods(bound: BoundFunction | BoundScalar | None) -> Methods | None:
    """Return the methods of an instance; None if there is none, or if `__init__` raises."""
    try:
        methods = None if bound is None else bound.instantiate()
    except (Exception, SystemExit):  # noqa: BLE001 - the interpreter raises it again, as an error of the function
        return None
    return methods if isinstance(methods, Methods) else None


def _has_records(bound: BoundFunction) -> bool:
    """Return whether accumulators can be kept as records in arrays, which `fold_many` gets."""
    methods = _methods(bound)
    return methods is not None and not isinstance(fresh_table(bound, methods), str)


def _folding_in_java(function: Function) -> Folding:
    """Return the mode of a function in Java in this process, and the reason."""
    methods = _methods(bind_fixed_types(function))
    if methods is None:
        return Folding(Mode.DECIDED_WHEN_BOUND)
    if methods.loops is not None:
        return Folding(Mode.JAVA)
    return Folding(
        Mode.INTERPRETED, "an argument is no number, boolean or text, or this installation has no compiled Loops.class"
    )


INTERPRETER: Final = Accelerator()
"""The accelerator of a fold that is given none."""
