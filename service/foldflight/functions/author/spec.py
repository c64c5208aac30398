"""Functions: a function's registration, the forms of its class, and its binding to the types of one call.

`Function` is an aggregate, `ScalarFunction` a scalar or table function. `CallBounds` are for functions that wait for
something outside: how many calls at once, for how long, how often.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import inspect
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import FunctionType
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.codedigest import code_digest
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.query.call import check_names, fits
from foldflight.functions.types.annotations import signature_of
from foldflight.functions.types.serializer import StateSerializer, serializer_of_type, views_in
from foldflight.functions.types.sql import can_widen, needs_zone, parse_type, sql_name, type_variables
from foldflight.functions.types.views import ViewSpec

_CONCURRENCY_MAX = 4096
_BATCH_MAX = 65536


@dataclass(frozen=True)
class CallBounds:
    """The bounds of an `async def` function. They hold for a process, over all of its exchanges.

    Args:
        concurrency: The number of calls that are open at once.
        batch: The number of rows, or of groups, of a call, at most; its arguments are lists. None: a call has one row.
        batch_wait_s: The time for which a call waits for further rows if it has fewer, in seconds.
        timeout_s: The time after which a call is cancelled, in seconds.
        retries: How often a call is repeated after an error that may pass.
        rate: The number of calls that begin within a second. None: no bound.
    """

    concurrency: int = 64
    batch: int | None = None
    batch_wait_s: float = 0.005
    timeout_s: float = 30.0
    retries: int = 3
    rate: float | None = None

    @property
    def rows_at_once(self) -> int:
        """The number of rows that a process evaluates at once."""
        return self.concurrency * (self.batch or 1)


def bounds_of(function: str, is_async: bool, **fields: Any) -> CallBounds | None:
    """Return the bounds of a function; None for one that is not async.

    Args:
        function: Its name, for errors.
        is_async: Whether it is `async def`.
        fields: The fields of `CallBounds` as the author gave them; None stands for the default.

    Raises:
        RejectedError: SIGNATURE, for a bound out of its range, and for any bound of a function that is not async.
    """
    set_bounds = {name: value for name, value in fields.items() if value is not None}
    if not is_async:
        if set_bounds:
            declarations = ", ".join(f"{name}={value!r}" for name, value in set_bounds.items())
            raise RejectedError(
                "SIGNATURE",
                f"{function} is declared {declarations} and is no async def, so none of its calls waits; write async "
                f"def, or drop {', '.join(set_bounds)}",
                function=function,
            )
        return None
    misfits = [
        f"{name}={value!r}; give {expected}" for name, value in set_bounds.items() if (expected := _misfit(name, value))
    ]
    if misfits:
        raise RejectedError("SIGNATURE", f"{function} is declared {', and '.join(misfits)}", function=function)
    return CallBounds(**set_bounds)


def _misfit(name: str, value: Any) -> str:
    """Return a sentence about what a bound must be; empty if the value is fine."""
    most = {"concurrency": _CONCURRENCY_MAX, "batch": _BATCH_MAX, "retries": 100}.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if most is not None:
        least = 0 if name == "retries" else 1
        fits = is_number and isinstance(value, int) and least <= value <= most
        return "" if fits else f"a whole number from {least} to {most}"
    least_s = "0 or more" if name == "batch_wait_s" else "more than 0"
    fits = is_number and math.isfinite(value) and (value > 0 or (value == 0 and name == "batch_wait_s"))
    return "" if fits else f"a number, {least_s}"


Declared: TypeAlias = str | pa.DataType | Callable[..., Any]


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a function, determined when it is registered.

    Args:
        retract: Whether it retracts rows.
        merge: Whether it merges two accumulators of one group.
        invertible: Whether retracting is exact in any order, even before the retracted row has been accumulated.
        deterministic: Whether the same rows in the same order always give the same result.
        codec: The serialization format of its accumulators.
        codec_reason: Why this codec was chosen.
        migrate: Whether it converts states of its other versions.
    """

    retract: bool
    merge: bool
    invertible: bool
    deterministic: bool
    codec: Literal["typed", "custom", "pickle"]
    codec_reason: str
    migrate: bool = False


@dataclass(frozen=True)
class Parameter:
    """One direct argument: fixed for a call, given to the class's `__init__`.

    Args:
        name: Its name.
        required: Whether a call must pass it.
        default: Its value if a call does not pass it.
        annotation: Its annotation as text; empty if it has none.
        type: The annotation that values are checked against; Any if values are not checked.
    """

    name: str
    required: bool
    default: Any = None
    annotation: str = ""
    type: Any = Any


@dataclass(frozen=True)
class Methods:
    """The methods of one instance of an author's class, in the form that the fold calls.

    `accumulate`, `retract` and `merge` take the accumulator first; see `Function.returns` for what they return.

    Args:
        pickles: Writes and reads signed states in place of pickle, with `dumps(accumulator)` and `loads(bytes)`.
        loops: Folds whole chunks with the answers of these methods: given the interpreter, which must have no
            accumulators yet, it returns the `GroupsAccumulator` that replaces it.
    """

    create_accumulator: Callable[[], Any]
    accumulate: Callable[..., Any]
    get_value: Callable[[Any], Any]
    retract: Callable[..., Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    serialize: Callable[[Any], bytes] | None = None
    deserialize: Callable[[bytes], Any] | None = None
    migrate: Callable[[str, Any], Any] | None = None
    open: Callable[[FunctionContext], Any] | None = None
    close: Callable[[], Any] | None = None
    fold_many: Callable[..., Any] | None = None
    merge_many: Callable[[Any, Any, Any], Any] | None = None
    get_values: Callable[[Any], Any] | None = None
    running_many: Callable[..., Any] | None = None
    pickles: Any = None
    loops: Callable[[Any], Any] | None = None
    fold_bundle: Callable[[Any], Any] | None = None


# Method -> number of parameters after `self` in the class form; accumulate and retract add the arguments.
METHODS: Final = {
    "create_accumulator": 0,
    "accumulate": 1,
    "retract": 1,
    "merge": 2,
    "get_value": 1,
    "serialize": 1,
    "deserialize": 1,
    "migrate": 2,
    "open": 1,
    "close": 0,
    "fold_many": 3,
    "merge_many": 3,
    "get_values": 1,
    "running_many": 3,
    "fold_bundle": 1,
}


class ClassForm:
    """Creates the methods of instances of a class that take the accumulator as a parameter."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        instance = self.cls(**literals)
        return Methods(**{method_name: getattr(instance, method_name, None) for method_name in METHODS})  # type: ignore[arg-type]


class AccumulatorForm:
    """Creates the methods of a class whose instances are the accumulators."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, literals: Mapping[str, Any]) -> Methods:
        cls: Any = self.cls

        def maker(method_name: str) -> Any:
            """Return a method that creates an accumulator. A plain method fills a fresh instance or returns another."""
            plain = getattr(cls, method_name, None)
            if plain is None or isinstance(inspect.getattr_static(cls, method_name), (staticmethod, classmethod)):
                return plain

            def make(*arguments: Any) -> Any:
                accumulator = cls(**literals)
                result = plain(accumulator, *arguments)
                return accumulator if result is None else result

            return make

        return Methods(
            create_accumulator=lambda: cls(**literals),
            accumulate=cls.accumulate,
            get_value=cls.get_value,
            retract=getattr(cls, "retract", None),
            merge=getattr(cls, "merge", None),
            serialize=getattr(cls, "serialize", None),
            deserialize=maker("deserialize"),
            migrate=maker("migrate"),
        )


class FunctionKind(StrEnum):
    """An aggregate function returns one value for many rows, a scalar function one per row, a table function rows."""

    AGGREGATE = "aggregate"
    SCALAR = "scalar"
    TABLE = "table"


@dataclass(frozen=True, kw_only=True)
class RegisteredFunction(ABC):
    """The base class of all registered functions: a name, typed arguments and a typed result.

    Args:
        name: Its name in queries.
        declared_version: The author's version, or a callable from the input types.
        doc: The docstring of the author's code.
        input_names: Names of the arguments.
        declared_inputs: The types of the arguments, or a callable from the actual types to the declared ones.
        declared_result: Type of the result, or a callable from the input types.
        skip_nulls: Whether rows with a NULL argument are skipped: they are not folded, get the result NULL, or no row.
        parameters: Its direct arguments.
        compile: Whether it is compiled to machine code; `auto`: if possible and worthwhile.
        zoned: The same function with a zone in each `datetime` of an annotation, if an argument has such an annotation.
        defaults: Defaults of its last arguments, by name, which a call may leave out.
        bounds: The bounds of its calls, if it is async; otherwise None.
    """

    name: str
    declared_version: str | Callable[..., str]
    doc: str
    input_names: tuple[str, ...]
    declared_inputs: tuple[str | pa.DataType, ...] | Callable[..., Sequence[Any]]
    declared_result: Declared
    skip_nulls: bool = False
    parameters: tuple[Parameter, ...] = ()
    compile: bool | Literal["auto"] = "auto"
    zoned: RegisteredFunction | None = field(default=None, compare=False, repr=False)
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)
    bounds: CallBounds | None = None

    @property
    @abstractmethod
    def kind(self) -> FunctionKind:
        """Whether it is an aggregate, a scalar or a table function."""

    @property
    @abstractmethod
    def is_deterministic(self) -> bool:
        """Whether the same rows always give the same result."""

    @property
    @abstractmethod
    def source(self) -> type | FunctionType:
        """The author's class or function."""

    @functools.cached_property
    def code_digest(self) -> str:
        """The digest of the author's code; see `codedigest`."""
        return code_digest(self.source)

    @property
    def where(self) -> str:
        """The module and the name of the author's class or function."""
        return f"{self.source.__module__}.{self.source.__qualname__}"

    @property
    def is_built_in(self) -> bool:
        """Whether it is one of this package, to which users cannot add methods."""
        return self.source.__module__ == "foldflight.functions.builtin"

    @property
    def version(self) -> str:
        """The version for display where the input types are not known."""
        return "by type" if callable(self.declared_version) else self.declared_version

    @property
    def inputs_min(self) -> int:
        """The minimum number of arguments of a call. A function that computes its input types may accept fewer."""
        return 0 if callable(self.declared_inputs) else len(self.input_names) - len(self.defaults)

    @property
    def input_types(self) -> tuple[pa.DataType, ...] | None:
        """The types of the arguments, or None if they depend on the call."""
        if callable(self.declared_inputs) or any(_variables(each) for each in self.declared_inputs):
            return None
        return tuple(parse_type(each) for each in self.declared_inputs)

    @property
    def result_type(self) -> pa.DataType | None:
        """The type of the result, or None if it depends on the call."""
        if callable(self.declared_result) or _variables(self.declared_result):
            return None
        return parse_type(self.declared_result)

    @property
    def signature(self) -> str:
        """The signature as text: `weighted_avg(value BIGINT, weight INT) -> BIGINT`."""
        if callable(self.declared_inputs):
            arguments = [f"[{name}]" for name in self.input_names]
        else:
            arguments = [
                f"{name} {type_text(each)}" + (f" DEFAULT {self.defaults[name]!r}" if name in self.defaults else "")
                for name, each in zip(self.input_names, self.declared_inputs, strict=True)
            ]
        for parameter in self.parameters:
            arguments.append(parameter.name + ("" if parameter.required else f" => {parameter.default!r}"))
        return f"{self.name}({', '.join(arguments)}) -> {self.result_text}"

    @property
    def result_text(self) -> str:
        """The type of the result as text."""
        return "..." if callable(self.declared_result) else type_text(self.declared_result)

    def takes_zoned(self, argument_types: Sequence[pa.DataType]) -> bool:
        """Return whether a call with these arguments is one of `zoned`."""
        if self.zoned is None or callable(self.declared_inputs) or callable(self.zoned.declared_inputs):
            return False
        return needs_zone(argument_types, self.declared_inputs, self.zoned.declared_inputs)

    def check_literals(self, literals: Mapping[str, Any]) -> None:
        """Refuse direct arguments that are unknown, missing, or contradict the annotations of the class.

        Raises:
            RejectedError: SIGNATURE.
        """
        check_names(self, literals)
        for parameter in self.parameters:
            value = literals.get(parameter.name, parameter.default)
            if value is not parameter.default and not fits(value, parameter.type):
                raise RejectedError(
                    "SIGNATURE",
                    f"the direct argument {parameter.name} of {self.name} must be {parameter.annotation}, "
                    f"but {value!r} is {type(value).__name__}; give a value of this type",
                    function=self.name,
                )

    def bind_inputs(
        self, actual: tuple[pa.DataType, ...], variables: dict[str, pa.DataType]
    ) -> tuple[pa.DataType, ...]:
        """Return the types to which arguments of these types are cast, and set the type variables in `variables`.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number or type of arguments.
        """
        if callable(self.declared_inputs):
            if not _takes(self.declared_inputs, len(actual)):
                raise self._mismatch(f"does not take {len(actual)} arguments")
            try:
                declared_inputs = tuple(self.declared_inputs(*actual))
            except ValueError as error:
                raise self._mismatch(str(error)) from None
            except RejectedError:
                raise
            except Exception as error:
                raise self._undeclared_error(actual, error) from error
            input_types = tuple(map(parse_type, declared_inputs))
        else:
            least, most = self.inputs_min, len(self.declared_inputs)
            if not least <= len(actual) <= most:
                expected = str(most) if least == most else f"{least} to {most}"
                raise self._mismatch(f"takes {expected} arguments and was given {len(actual)}")
            for each, type_ in zip(self.declared_inputs, actual, strict=False):
                for name in _variables(each):
                    if isinstance(each, str) and each.strip() == name:
                        variables.setdefault(name, type_)
            input_types = tuple(parse_type(each, variables) for each in self.declared_inputs[: len(actual)])
        for index, (type_, input_type) in enumerate(zip(actual, input_types, strict=True)):
            if not can_widen(type_, input_type):
                name = self.input_names[index] if index < len(self.input_names) else str(index + 1)
                raise self._mismatch(
                    f"takes {sql_name(input_type)} for its argument {name} and was given {sql_name(type_)}; "
                    f"cast the column to {sql_name(input_type)} in the query"
                )
        return input_types

    def bind_types(
        self, argument_types: Sequence[pa.DataType], literals: Mapping[str, Any]
    ) -> tuple[tuple[pa.DataType, ...], pa.DataType, str, dict[str, pa.DataType]]:
        """Return for one call: the types to which arguments are cast, the result's type, the version, type variables.

        Raises:
            RejectedError: The errors of `bind`.
        """
        self.check_literals(literals)
        variables: dict[str, pa.DataType] = {}
        inputs = self.bind_inputs(tuple(argument_types), variables)
        result = self.resolve(self.declared_result, inputs, variables)
        version = self.declared_version
        return inputs, result, str(version(*inputs)) if callable(version) else version, variables

    def resolve(
        self, declared_type: Declared, inputs: tuple[pa.DataType, ...], variables: Mapping[str, pa.DataType]
    ) -> pa.DataType:
        """Return a declared type for these input types. Raises RejectedError SIGNATURE if its callable raises."""
        if not callable(declared_type):
            return parse_type(declared_type, variables)
        try:
            type_ = declared_type(*inputs)
        except RejectedError:
            raise
        except Exception as error:
            raise self._undeclared_error(inputs, error) from error
        return parse_type(type_)

    def _undeclared_error(self, inputs: tuple[pa.DataType, ...], error: Exception) -> RejectedError:
        return RejectedError(
            "SIGNATURE",
            f"the callable that declares the types of {self.name} raised {type(error).__name__}: {error}, for "
            f"{', '.join(map(sql_name, inputs)) or 'no arguments'}; return types for them, or raise ValueError",
            function=self.name,
        )

    def _mismatch(self, wrong: str) -> RejectedError:
        return RejectedError("SCHEMA_MISMATCH", f"{self.name} {wrong}: {self.signature}", function=self.name)


@dataclass(frozen=True, kw_only=True)
class Function(RegisteredFunction):
    """A registered aggregate function. States of another version are converted by `migrate`, or else refused.

    Args:
        cls: The author's class.
        instantiate: Creates a new instance with the direct arguments and returns its methods.
        declared_state: Type of the state if the author declares it, or a callable from the input types.
        serializer: The typed layout of the accumulator, if its annotation defines one.
        accumulator_class: The class of the accumulator, if its annotation names one.
        accumulator_hints: The annotations of its attributes, or of the members f0, f1... of a tuple; empty if they
            cannot be resolved. They are resolved where the class is declared: where it is shipped to, the module of its
            names is missing.
        capabilities: Its capabilities.
        returns: What `accumulate`, `retract` and `merge` return. `always`: the accumulator, which may be None. `some`:
            an accumulator that is not None. `may`: an accumulator, or None after changing it in place.
        vectorised: Whether its class has the vectorised methods.
        adapter: The name of the system from which its class is adapted; empty for a class of foldflight's own form.
        language: The language of its class: `python` or `java`.
        bundled: Whether its class has `fold_bundle`.
        prefetch: For views of its accumulators, by name: the numbers of the arguments that make up the key of the entry
            that a row uses.
        own: For a shipped function, the classes and functions that were shipped as code with it, by module and
            qualified name. Pickled states refer to them by these names.
    """

    cls: type
    instantiate: Callable[[Mapping[str, Any]], Methods]
    declared_state: Declared | None
    serializer: StateSerializer | None
    accumulator_class: type | None
    capabilities: Capabilities
    returns: Literal["always", "some", "may"] = "may"
    vectorised: bool = False
    adapter: str = ""
    language: Literal["python", "java"] = "python"
    bundled: bool = False
    prefetch: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    accumulator_hints: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    own: Mapping[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)
    zoned: Function | None = field(default=None, compare=False, repr=False)

    @property
    def kind(self) -> FunctionKind:
        """It is an aggregate function."""
        return FunctionKind.AGGREGATE

    @property
    def is_deterministic(self) -> bool:
        """Whether the same rows always give the same result."""
        return self.capabilities.deterministic

    @property
    def source(self) -> type:
        """The author's class."""
        return self.cls

    @property
    def value_method(self) -> str:
        """The name of the method that returns values: an async function with a batch has `get_values` only."""
        return "get_value" if self.bounds is None or self.bounds.batch is None else "get_values"

    @property
    def folds_many(self) -> bool:
        """Whether folds use its vectorised methods; `compile=True` selects the scalar ones."""
        return self.vectorised and self.compile == "auto"

    def bind(self, argument_types: Sequence[pa.DataType], literals: Mapping[str, Any]) -> BoundFunction:
        """Fix the types and direct arguments of one call.

        Args:
            argument_types: The types of the argument columns.
            literals: Direct arguments by name.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number or type of arguments, SIGNATURE for direct arguments that
                the class does not take.
        """
        if self.zoned is not None and self.takes_zoned(argument_types):
            return replace(self.zoned, name=self.name, own=self.own).bind(argument_types, literals)
        inputs, result, version, variables = self.bind_types(argument_types, literals)
        serializer = self.serializer
        if self.declared_state is not None:
            serializer = serializer_of_type(
                self.resolve(self.declared_state, inputs, variables), self.accumulator_class
            )
        state_type = serializer.arrow if self.capabilities.codec == "typed" and serializer is not None else pa.binary()
        return BoundFunction(
            function=self,
            version=version,
            input_types=inputs,
            result_type=result,
            state_type=state_type,
            serializer=serializer if self.capabilities.codec == "typed" else None,
            literals=dict(literals),
        )


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether a function can be called with n positional arguments."""
    try:
        signature_of(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:  # a built-in function without a known signature
        return True
    return True


def _variables(declared_type: Any) -> frozenset[str]:
    return type_variables(declared_type) if isinstance(declared_type, str) else frozenset()


def type_text(declared_type: str | pa.DataType) -> str:
    """Return a declared type as text; type variables are kept."""
    return declared_type if _variables(declared_type) else sql_name(parse_type(declared_type))


_TEXTUAL: Final = (bool, int, float, str, bytes, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta)


def _has_text(value: Any) -> bool:
    """Return whether a default is a plain value. The repr of other objects may differ between processes."""
    return isinstance(value, _TEXTUAL) or (isinstance(value, (list, tuple)) and all(map(_has_text, value)))


def _text(value: Any) -> str:
    """Return a direct argument as text. The text is the same before and after the argument is sent over the wire."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value.item() if isinstance(value, np.generic) else value)


def literal_texts(function: RegisteredFunction, call_literals: Mapping[str, Any], arguments: int) -> dict[str, str]:
    """Return the direct arguments of a call, and the defaults of all others, as texts by name, for a fingerprint.

    So are the defaults of arguments that the call leaves out. `arguments` is the number of arguments in the call.
    """
    omitted_names = () if callable(function.declared_inputs) else function.input_names[arguments:]
    literals = {
        f"argument {name}": function.defaults[name] for name in omitted_names if _has_text(function.defaults[name])
    }
    literals |= {each.name: each.default for each in function.parameters if _has_text(each.default)}
    literals.update(call_literals)
    return {name: _text(value) for name, value in sorted(literals.items())}


@dataclass(frozen=True)
class BoundFunction:
    """A function with the types and direct arguments of one call.

    Args:
        function: The function.
        version: Its version for these types.
        input_types: The types to which its arguments are cast.
        result_type: The type to which its results are cast.
        state_type: The type of its states: a struct or scalar for the typed codec, binary otherwise.
        serializer: The layout of its typed states; None for other codecs.
        literals: The direct arguments.
    """

    function: Function
    version: str
    input_types: tuple[pa.DataType, ...]
    result_type: pa.DataType
    state_type: pa.DataType
    serializer: StateSerializer | None
    literals: Mapping[str, Any]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that determines the meaning of this call's states, as 16 hexadecimal digits.

        It covers direct arguments that are passed and defaults alike, because a changed default changes the meaning of
        states.
        """
        parts = [
            self.function.name,
            self.version,
            [str(type_) for type_ in self.input_types],
            str(self.result_type),
            self.function.capabilities.codec,
            str(self.state_type),
            literal_texts(self.function, self.literals, len(self.input_types)),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @functools.cached_property
    def views(self) -> tuple[ViewSpec, ...]:
        """The views of its accumulators."""
        prefetch = self.function.prefetch
        return tuple(
            ViewSpec(name, view.key.arrow, view.value.arrow, tuple(prefetch.get(name, ())), view.is_list)
            for name, view in views_in(self.serializer).items()
        )

    def instantiate(self) -> Methods:
        """Return the methods of a fresh instance of the author's class."""
        return self.function.instantiate(self.literals)


Vectorised = Literal["arrow", "numpy", "pandas"]


@dataclass(frozen=True)
class ScalarMethods:
    """The methods of one instance of an author's class, or the author's function as `eval`.

    `eval` takes the arguments of one row or, if the function is vectorised, whole columns. All three may be coroutines
    if `eval` is one.
    """

    eval: Callable[..., Any]
    open: Callable[[FunctionContext], Any] | None = None
    close: Callable[[], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class ScalarFunction(RegisteredFunction):
    """A registered scalar or table function. The result of a table function is a struct, whose fields are the columns.

    Args:
        is_table: Whether it is a table function; otherwise it is a scalar function.
        target: The author's function, or a class with `eval`.
        deterministic: Whether equal arguments always give the same result.
        vectorised: The form of the columns of a vectorised function; None if it takes one row at a time.
    """

    is_table: bool
    target: type | FunctionType
    deterministic: bool = True
    vectorised: Vectorised | None = None
    zoned: ScalarFunction | None = field(default=None, compare=False, repr=False)

    @property
    def source(self) -> type | FunctionType:
        """The author's class or function."""
        return self.target

    @property
    def kind(self) -> FunctionKind:
        """Whether it is a scalar or a table function."""
        return FunctionKind.TABLE if self.is_table else FunctionKind.SCALAR

    @property
    def is_deterministic(self) -> bool:
        """Whether equal arguments always give the same result."""
        return self.deterministic

    @property
    def result_text(self) -> str:
        """The type of the result as text; for a table function, its columns."""
        type_ = self.result_type
        if not self.is_table or type_ is None:
            return super().result_text
        return f"TABLE({', '.join(f'{field.name} {sql_name(field.type)}' for field in type_)})"

    def bind(self, argument_types: Sequence[pa.DataType], literals: Mapping[str, Any]) -> BoundScalar:
        """Fix the types and direct arguments of one call.

        Args:
            argument_types: The types of the arguments.
            literals: Direct arguments by name.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number or type of arguments, SIGNATURE for direct arguments that
                the class does not take.
        """
        if self.zoned is not None and self.takes_zoned(argument_types):
            return replace(self.zoned, name=self.name).bind(argument_types, literals)
        inputs, result, version, _ = self.bind_types(argument_types, literals)
        if self.is_table and not pa.types.is_struct(result):
            raise RejectedError(
                "SIGNATURE",
                f"{self.name} is a table function, but its result_types are {result}; return a dict of columns",
                function=self.name,
            )
        return BoundScalar(
            function=self,
            version=version,
            input_types=inputs,
            result_type=result,
            literals=dict(literals),
        )


AnyFunction: TypeAlias = Function | ScalarFunction
"""A registered function of any kind."""


@dataclass(frozen=True)
class BoundScalar:
    """A scalar or table function with the types and direct arguments of one call.

    Args:
        function: The function.
        version: Its version for these types.
        input_types: The types to which its arguments are cast.
        result_type: The type to which its results are cast; for a table function, the struct of its columns.
        literals: The direct arguments.
    """

    function: ScalarFunction
    version: str
    input_types: tuple[pa.DataType, ...]
    result_type: pa.DataType
    literals: Mapping[str, Any]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that must be equal on all servers of a fleet, as 16 hexadecimal digits."""
        parts = [
            self.function.kind,
            self.function.name,
            self.version,
            [str(type_) for type_ in self.input_types],
            str(self.result_type),
            literal_texts(self.function, self.literals, len(self.input_types)),
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def instantiate(self) -> ScalarMethods:
        """Return the methods of a new instance of the author's class, or the author's function."""
        target = self.function.target
        if not isinstance(target, type):
            return ScalarMethods(target)
        instance: Any = target(**self.literals)
        return ScalarMethods(instance.eval, getattr(instance, "open", None), getattr(instance, "close", None))
