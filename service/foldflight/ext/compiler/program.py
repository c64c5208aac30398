"""The compiled code of one function, or the reason why there is none."""

from __future__ import annotations

import builtins
import decimal
import dis
import functools
import importlib.util
import inspect
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from foldflight.ext.compiler.arena import FORMATS
from foldflight.ext.compiler.columns import Items
from foldflight.fold.accelerator import PendingLoop
from foldflight.fold.aggregate.readonly_proof import inner_codes
from foldflight.fold.machine_values import DECIMALS

if TYPE_CHECKING:
    from foldflight.ext.compiler.compile_plan import Start
    from foldflight.ext.compiler.kernels import CompilePlan, Kernels  # brings numba


@dataclass(frozen=True)
class NoProgram:
    """The result for a function that cannot be compiled.

    Args:
        reason: The reason, as a clause about the function.
    """

    reason: str


NO_NUMBA: Final = NoProgram("numba is not installed here")
_ORDERLESS: Final = ("len", "sorted", "min", "max", "any", "all")
# Uses of a decimal whose result does not depend on its trailing zeros (1.5 and 1.50 are equal).
_ZEROLESS: Final = (
    *(abs, all, any, bool, enumerate, float, int, len, list, max, min, range, reversed, round, sorted, sum, tuple),
    *(zip, decimal, math, decimal.Decimal),
)
_ZEROLESS_METHODS: Final = frozenset(
    [
        *("as_integer_ratio", "compare", "copy_abs", "copy_negate", "copy_sign", "exp", "fma", "is_finite", "is_nan"),
        *("is_zero", "ln", "log10", "max", "min", "normalize", "remainder_near", "sqrt", "to_integral_value"),
        *("append", "get", "items", "keys", "values", "Decimal", *vars(math)),
    ]
)
_OWN: Final = Path(__file__).parent
# numba's message for a variable with two types that do not unify, and its names of types.
_MIXED: Final = re.compile(r"Cannot unify (.+?) and (.+?) for '(\w+)[.\d]*', defined at (.+?) \((\d+)\)")
_KIND: Final = re.compile(r"\b(?:Literal\[)?(int|float|bool|Scaled|str|none)\w*(?:\](?=\())?(?:\(\S*\))?")
_KIND_NAMES: Final = {
    "int": "an int", "float": "a float", "bool": "a bool", "Scaled": "a Decimal", "str": "a text", "none": "None",
}  # fmt: skip
_NAMED: Final = re.compile(
    r"(?:omitted\(|Optional\()?\b(?:ContainerType|Reference|EncodedType)\(([\w, ]*\[.*\]|\w+)[^)]*\)+"
)
_TUPLE: Final = re.compile(r"\b(?:Uni)?Tuple\(.*\)")
_logger: Final = logging.getLogger(__name__)


@functools.cache
def lacks_numba() -> bool:
    """Return whether numba is not installed, which is logged once in a process."""
    if importlib.util.find_spec("numba") is not None:
        return False
    _logger.warning(
        "numba is not installed, so functions are interpreted and not compiled: the results are the same, and numeric "
        "functions take several times as long; install it where functions are folded: pip install numba"
    )
    return True


class Loops:
    """The compiled loops over rows of one function with direct arguments.

    Args:
        name: The name of the function or its class.
        kernels: The loops.
        main: Returns the loop that folds or evaluates rows.
        instance: The attributes of the author's instance.
        on_unsupported: Called with the name, the circumstances in which the function is interpreted, and the reason.

    Raises:
        Unsupported: For code that cannot be compiled.

    Attributes:
        interprets: Which methods are interpreted although rows are folded by compiled code, and why; mostly empty.
    """

    def __init__(
        self,
        name: str,
        kernels: Kernels,
        main: Callable[..., Any],
        instance: Any,
        on_unsupported: Callable[[str, str, str], None],
    ) -> None:
        self._name = name
        self._kernels = kernels
        self._main = main
        self._on_unsupported = on_unsupported
        self.instance = instance
        self.arguments = tuple(zip(kernels.plan.arguments, kernels.plan.kinds, strict=True))
        self.interprets = ""
        main(nulls=False)

    @property
    def was_compiled(self) -> bool:
        """Whether this process has compiled any of the loops. If not, all were loaded from the store."""
        return self._kernels.compiled > 0

    def demand_nulls(self) -> None:
        """Compile the loop over rows with NULLs. Raises the compiler's exception if that is not possible."""
        self._main(nulls=True)

    def rows(self, *, nulls: bool) -> Any:
        """Return the loop over rows, with or without NULLs; None if it cannot be compiled, or is not there yet."""
        return self._loop(self._main, nulls=nulls)

    def _loop(self, loop: Callable[..., Any], *, nulls: bool) -> Any:
        try:
            return loop(nulls=nulls)
        except PendingLoop:
            return None
        except Exception as error:  # noqa: BLE001 - the interpreter folds what cannot be compiled
            where = "for chunks with a NULL argument" if nulls else "for outputs after each row"
            self._on_unsupported(self._name, where, reason_of(error))
            return None

    def allocate(self, count: int) -> tuple[Any, Any]:
        """Return arrays for `count` results and their flags. Decimals have shape (count, 2), vectors (count, items)."""
        kind = self._kernels.plan.result
        if isinstance(kind, Items):
            return np.zeros((count, kind.size), kind.format), np.zeros(count, np.bool_)
        values = np.zeros((count, 2), np.int64) if kind in DECIMALS else np.zeros(count, FORMATS[kind])
        return values, np.zeros(count, np.bool_)


class Program(Loops):
    """The compiled code of one aggregate function with direct arguments.

    Args:
        kernels: The loops.
        start: A new accumulator and the attributes of the author's instance.
        on_unsupported: Called with the name of the class, the circumstances in which it is interpreted, and the reason.

    Raises:
        Unsupported: For code that cannot be compiled.

    Attributes:
        untyped_accumulators: The types of accumulators that are pickled; None if states are typed.
        texts: The fields that refer to texts or bytes, or hold them.
        initial: A column of one new accumulator if a container of it holds something; else None.
        merge: The loop that merges states; None if there is no such method, or if it is interpreted.
        values: The loop that makes results; None if get_value is interpreted.
    """

    def __init__(self, kernels: Kernels, start: Start, on_unsupported: Callable[[str, str, str], None]) -> None:
        super().__init__(kernels.plan.cls.__name__, kernels, kernels.fold, start.instance, on_unsupported)
        self.fresh = start.fresh
        self.initial = start.initial
        self.untyped_accumulators = start.untyped_accumulators
        self.layout = kernels.plan.accumulator
        self.dtype = self.layout.dtype
        self.texts = [each for each in self.layout.fields if each.refers_to_texts]
        self.merge: Any = None
        if "merge" in kernels.plan.methods:
            self.merge = self._optional("merge", kernels.merge)
        self.values: Any = self._optional("get_value", kernels.values)

    def _optional(self, method: str, loop: Callable[[], Any]) -> Any:
        """Return a loop; None if its method cannot be compiled: the interpreter calls it then, and not for each row.

        Raises:
            Unsupported: The interpreter would have other results.
        """
        try:
            return loop()
        except PendingLoop:
            raise
        except Exception as error:  # noqa: BLE001 - the interpreter does what cannot be compiled
            text = describe_interpreted(self._kernels.plan, method, reason_of(error))
            self.interprets = "; ".join(filter(None, (self.interprets, text)))
            return None

    def each(self, *, nulls: bool) -> Any:
        """Return the loop that gives an output after each row; None if it or get_value cannot be compiled.

        Also None if it is not there yet.
        """
        return None if self.values is None else self._loop(self._kernels.each, nulls=nulls)


def describe_interpreted(plan: CompilePlan, method: str, reason: str) -> str:
    """Return the text for a method, merge or get_value, that is interpreted beside compiled code.

    Args:
        plan: The description of the function.
        method: The name of the method.
        reason: Why the method cannot be compiled.

    Raises:
        Unsupported: The whole function must be interpreted. The results of the method may depend on the order of a set,
            or on the zeros that a decimal is written with, and compiled code keeps neither.
    """
    from foldflight.fold.mode import Unsupported

    text = f"{method} is interpreted: {reason}"
    is_merge = method == "merge"
    if _has_sets(plan) if is_merge else _shows_order(plan):
        raise Unsupported(f"{text}, and may show the order of a set, which only Python knows")
    if _has_decimals(plan) if is_merge else _shows_zeros(plan):
        raise Unsupported(f"{text}, and may show the zeros that a decimal is written with, which only Python knows")
    return text


def _has_sets(plan: CompilePlan) -> bool:
    return any(field.contents is not None and field.contents.has_sets for field in plan.accumulator.fields)


def _has_decimals(plan: CompilePlan) -> bool:
    return any(field.kind in DECIMALS for field in plan.accumulator.fields)


def _shows_order(plan: CompilePlan) -> bool:
    """Return whether an interpreted get_value may show the order of a set, which only Python knows.

    False is proven: sets are only arguments of functions whose results do not depend on the order.
    """
    function = plan.methods["get_value"]
    fields = {field.name for field in plan.accumulator.fields}
    holders = [field for field in plan.accumulator.fields if field.contents is not None and field.contents.has_sets]
    if any(field.kind != "set" for field in holders):
        return True  # a dict of sets
    sets = {field.name for field in holders}
    if not sets:
        return False
    code = function.__code__
    accumulator = code.co_varnames[code.co_argcount - 1]
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("PRECALL", "PUSH_NULL", "TO_BOOL")]
    # From Python 3.13 on, a step may load two variables.
    loaded_names = [step.argval if isinstance(step.argval, tuple) else (step.argval,) for step in steps]
    uses = [index for index, names in enumerate(loaded_names) if accumulator in names]
    has_keys = plan.accumulator_class is dict
    for first in uses:
        last = first if plan.accumulator_class is None else first + 1 + has_keys
        if steps[first].opname not in ("LOAD_FAST", "LOAD_FAST_BORROW"):
            return True
        if last > first:
            named = steps[first + 1]
            reads = _reads_key(named, steps[last]) if has_keys else named.opname == "LOAD_ATTR"
            if not reads or named.argval not in fields:
                return True  # a method or a property
            if named.argval not in sets:
                continue
        before, after = steps[first - 1], steps[last + 1]
        is_free = before.opname == "LOAD_GLOBAL" and before.argval in _ORDERLESS and after.opname.startswith("CALL")
        is_free = is_free and after.arg == 1 and before.argval not in function.__globals__
        if not is_free and after.opname != "CONTAINS_OP" and not after.opname.startswith("POP_JUMP"):
            return True
    return False


def _reads_key(key: dis.Instruction, step: dis.Instruction) -> bool:
    """Return whether two steps read the value of a constant key of a dict. Python 3.14 has a general step for it."""
    reads = step.opname == "BINARY_SUBSCR" or (step.opname == "BINARY_OP" and "[" in step.argrepr)
    return key.opname == "LOAD_CONST" and reads


def _shows_zeros(plan: CompilePlan) -> bool:
    """Return whether the result of get_value may depend on trailing zeros of a decimal, as in 1.5 and 1.50.

    False is proven: its code, and the author's functions that it calls, use decimals only as numbers.
    """
    return _has_decimals(plan) and _writes(plan, plan.methods["get_value"], set())


def _writes(plan: CompilePlan, function: FunctionType, visited_functions: set[Any]) -> bool:
    """Return whether a function, or one that it calls, may convert a decimal to a string, or use its exponent."""
    if function in visited_functions:
        return False
    visited_functions.add(function)
    actual = [*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())]
    if not all(map(_is_number, actual)):
        return True
    codes = (function.__code__, *inner_codes(function.__code__))
    return any(_code_writes(plan, function, code, visited_functions) for code in codes)


def _code_writes(plan: CompilePlan, function: FunctionType, code: CodeType, visited_functions: set[Any]) -> bool:
    layouts = (plan.accumulator, plan.instance)
    kinds = {field.name: field.kind for layout in layouts for field in layout.fields}
    has_texts = any(isinstance(each, str) and "%" in each for each in code.co_consts) or "text" in kinds.values()
    steps = [each for each in dis.get_instructions(code) if each.opname not in ("PRECALL", "PUSH_NULL")]
    for index, step in enumerate(steps):
        if step.opname.startswith(("FORMAT_", "CONVERT_VALUE", "CALL_FUNCTION_EX")):
            return True
        if step.opname == "BINARY_OP" and "%" in step.argrepr and has_texts:
            return True
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = function.__globals__.get(step.argval, getattr(builtins, step.argval, None))
            is_free = _is_number(value) or any(value is each for each in _ZEROLESS)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            owners_values = [
                inspect.getattr_static(each, step.argval, None) for each in (plan.cls, plan.accumulator_class)
            ]
            value = next((each for each in owners_values if each is not None), None)
            value = getattr(value, "__func__", getattr(value, "fget", value))
            is_free = step.argval in kinds or step.argval in _ZEROLESS_METHODS or step.argval.startswith("ROUND_")
            is_free = is_free or (step.argval == "quantize" and _is_constant(function, steps[index + 1 : index + 5]))
            is_free = is_free or (value is not None and _is_number(value))
        else:
            continue
        if isinstance(value, FunctionType):
            is_free = not _writes(plan, value, visited_functions)
        if not is_free:
            return True
    return False


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, a decimal or a rounding mode."""
    is_rounding = isinstance(value, str) and value.startswith("ROUND_")
    return is_rounding or type(value) in (bool, int, float, decimal.Decimal)


def _is_constant(function: FunctionType, steps: list[dis.Instruction]) -> bool:
    """Return whether the argument of a call is a global decimal, or `Decimal` of a constant."""
    value = function.__globals__.get(steps[0].argval) if steps[0].opname == "LOAD_GLOBAL" else None
    if value is decimal:
        value, steps = getattr(decimal, str(steps[1].argval), None), steps[1:]
    after = 1
    if value is decimal.Decimal:
        value, after = decimal.Decimal(), 3 if steps[1].opname == "LOAD_CONST" else 0
    return isinstance(value, decimal.Decimal) and after > 0 and not steps[after].opname.startswith("LOAD_FAST")


def reason_of(error: BaseException, otherwise: str = "") -> str:
    """Return the reason and the author's line from an exception of the compiler or of numba.

    Args:
        error: The exception.
        otherwise: The line if the exception tells none.
    """
    from foldflight.fold.mode import Unsupported

    location = _location_of(error)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Unsupported):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        mixed_matches = list(_MIXED.finditer(str(error)))
        if mixed_matches:
            one, other, name, file, line = mixed_matches[-1].groups()
            one, other = map(_in_words, (one, other))
            return f"{name} is {one} in one place and {other} in another ({Path(file).name}:{line})"
        # The first lines of numba's message name the compiler pass; the next one describes the problem.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason_lines = [line for line in lines if not line.startswith("Failed in nopython mode")]
        reason = f"numba: {type(error).__name__}: {(reason_lines or lines or [''])[0]}"
    else:
        reason, location = str(cause.reason), cause.location or location
    location = location or otherwise
    return f"{reason} ({location})" if location else reason


def _in_words(type_: str) -> str:
    """Return what a reason calls one of numba's types."""
    if match := _NAMED.search(type_):
        return f"a {match.group(1)}"
    return "a tuple" if _TUPLE.search(type_) else _KIND.sub(lambda match: _KIND_NAMES[match.group(1)], type_)


def _location_of(error: BaseException) -> str:
    """Return the author's file and line at which numba inferred types; empty if the exception came from elsewhere."""
    location, step = "", error.__traceback__
    while step is not None:
        loc = getattr(step.tb_frame.f_locals.get("constraint"), "loc", None)
        if loc is not None and not Path(loc.filename).is_relative_to(_OWN):
            location = f"{Path(loc.filename).name}:{loc.line}"
        step = step.tb_next
    return location
