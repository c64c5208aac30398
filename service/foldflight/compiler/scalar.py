"""Scalar functions as machine code, compiled from the author's `eval`.

As with accumulators, compiled code is faster and never changes a result. It stops at the first row whose result could
differ from Python's, and the interpreter evaluates the rest of the chunk.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from foldflight.compiler.columns import columns_of
from foldflight.compiler.compiled import RAISED, results_of
from foldflight.compiler.heap import CONTROLS, MARK, Heap
from foldflight.compiler.program import Uncompiled, room_for_results, why_not
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Rows
from foldflight.fold.scalar.evaluation import Scalar, null_rows
from foldflight.fold.scalar.scalar import InterpretedScalar
from foldflight.functions.author.scalar import BoundScalar, ScalarMethods

if TYPE_CHECKING:
    from foldflight.compiler.kernels import Kernels, Plan  # brings numba

__all__ = ["CompiledScalar", "ScalarProgram", "scalar_plan_of"]

_HOOKS: Final = ("__getattr__", "__getattribute__", "__setattr__")


class ScalarProgram:
    """The compiled code of one scalar function with direct arguments.

    Args:
        name: The name of the function.
        kernels: The loops.
        instance: The attributes of the author's instance, uint8.
        on_refused: Called with the name of the function, the circumstances in which it is interpreted, and the reason.
    """

    interprets = ""

    def __init__(self, name: str, kernels: Kernels, instance: Any, on_refused: Callable[[str, str, str], None]) -> None:
        self._name = name
        self._kernels = kernels
        self._on_refused = on_refused
        self.instance = instance
        self.arguments = tuple(zip(kernels.plan.arguments, kernels.plan.kinds, strict=True))
        kernels.mapped(nulls=False)

    @property
    def was_compiled(self) -> bool:
        """Whether this process has compiled a loop; if not, all loops were loaded from the store."""
        return self._kernels.compiled > 0

    def demand_nulls(self) -> None:
        """Compile the loop over rows with NULLs. Raises the reason if it cannot be compiled."""
        self._kernels.mapped(nulls=True)

    def mapped(self, *, nulls: bool) -> Any:
        """Return the loop over rows, with or without NULLs; None where it cannot be compiled."""
        try:
            return self._kernels.mapped(nulls=nulls)
        except Exception as error:  # noqa: BLE001 - the interpreter evaluates what cannot be compiled
            self._on_refused(self._name, "for chunks with a NULL argument", why_not(error))
            return None

    def warm(self) -> None:
        """Compile the loop over rows with NULLs, if possible."""
        self.mapped(nulls=True)

    def room(self, count: int) -> tuple[Any, Any]:
        """Return arrays for `count` results and their flags."""
        return room_for_results(self._kernels.plan.result, count)


class CompiledScalar(Scalar):
    """Evaluates a step: with the interpreter until compiling is worthwhile, then by machine code if that is possible.

    Args:
        inner: The interpreter.
        find: Called with the number of the next rows. It returns None until compiling is worthwhile, and then the
            compiled code or the reason why there is none.

    Raises:
        RejectedError: The errors of `find`.
    """

    def __init__(self, inner: InterpretedScalar, find: Callable[[int], ScalarProgram | Uncompiled | None]) -> None:
        self.inner = inner
        self.bound = inner.bound
        self._find = find
        self._found: ScalarProgram | Uncompiled | None = find(0)
        self._progress = np.zeros(CONTROLS, np.int64)
        self._progress[MARK] = -1
        self._heap: Heap | None = None

    @property
    def kind(self) -> Mode:
        return Mode.COMPILED if isinstance(self._found, ScalarProgram) else self.inner.kind

    def values(self, rows: Rows) -> pa.Array:
        if self._found is None:
            self._found = self._find(len(rows))
        if not isinstance(self._found, ScalarProgram):
            return self.inner.values(rows)
        mask = self.inner.asked(rows)
        if mask is not None:
            return null_rows(self._values(rows.kept(mask), self._found), mask)
        return self._values(rows, self._found)

    def _values(self, rows: Rows, program: ScalarProgram) -> pa.Array:
        columns, valid, unfit = columns_of(rows, program.arguments)
        loop = None if columns is None or unfit is not None else program.mapped(nulls=bool(valid))
        if loop is None:
            return self.inner.values(rows)
        values, known = program.room(len(rows))
        self._progress[0] = 0
        try:
            self._run(loop, program.instance, self._progress, columns, valid, values, known)
        except RAISED:
            done = int(self._progress[0])
            rest = self.inner.values(rows.part(done))
            return pa.concat_arrays([self._cast(values[:done], known[:done]), rest])
        return self._cast(values, known)

    def _run(self, loop: Any, *places: Any) -> None:
        """Run the loop. When its memory for containers and texts is full, make room and go on with that row."""
        if self._heap is not None:
            self._heap.taken()
        given_up = -1
        while True:
            try:
                return loop(*places)
            except MemoryError:
                if self._heap is None:
                    self._heap = Heap(self._progress)
                row = int(self._progress[0])
                self._heap.grow([], [], again=row == given_up)
                given_up = row

    def _cast(self, values: Any, known: Any) -> pa.Array:
        return results_of(values, known, self.bound.result_type)

    def close(self) -> None:
        self.inner.close()


class _Function:
    """The class in the plan of a function that is not a method."""


def scalar_plan_of(bound: BoundScalar, methods: ScalarMethods) -> tuple[Plan, Any]:
    """Return the plan of a scalar function and the attributes of its instance. Raises Refused with the reason."""
    from foldflight.compiler.kernels import Plan
    from foldflight.compiler.kinds import Refused
    from foldflight.compiler.plan import argument_kind, attribute_record, own_attributes, plain_kind, result_kind
    from foldflight.compiler.records import RecordField, RecordLayout

    target = bound.function.target
    attributes: dict[str, Any] = {}
    cls: type = _Function
    if isinstance(target, type):
        cls = target
        function = inspect.getattr_static(target, "eval")
        function = function.__func__ if isinstance(function, staticmethod) else function
        own = own_attributes(methods)
        attributes = {name: value for name, value in own.items() if plain_kind(value) is not None}
        hiding = [name for name in own if name == "eval" or (name not in attributes and hasattr(target, name))]
        if hiding:
            raise Refused(f"its instance attribute {hiding[0]} hides the class attribute of that name")
        hooks = [name for name in _HOOKS if getattr(target, name, None) not in (None, getattr(object, name, None))]
        if hooks:
            raise Refused(f"{target.__name__} has {hooks[0]}")
    else:
        function = target
    if not isinstance(function, FunctionType):
        raise Refused("eval is not a plain method")
    if not bound.input_types:
        raise Refused("it has no arguments")
    names = bound.function.input_names
    kinds = [argument_kind(*each) for each in zip(names, bound.input_types, strict=False)]
    result, bits = result_kind(bound.result_type)
    parameters = RecordLayout(tuple(RecordField(name, str(plain_kind(value))) for name, value in attributes.items()))
    is_method = isinstance(target, type) and not isinstance(inspect.getattr_static(target, "eval"), staticmethod)
    plan = Plan(
        functions=(("eval", function),),
        makers=(),
        with_self=frozenset({"eval"} if is_method else ()),
        cls=cls,
        instance=parameters,
        accumulator_class=None,
        accumulator=RecordLayout(()),
        arguments=tuple(dtype for dtype, _ in kinds),
        kinds=tuple(kind for _, kind in kinds),
        result=result,
        result_bits=bits,
    )
    return plan, attribute_record(parameters, attributes)
