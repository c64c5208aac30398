"""What foldflight knows of a function: its registration, and its binding to the types of one call."""

from __future__ import annotations

import datetime
import decimal
import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.context import FunctionContext
from foldflight.functions.literals import check_names, fits
from foldflight.functions.shape import Shape, shape_of_type
from foldflight.functions.types import can_widen, parse_type, sql_name, type_variables

__all__ = ["BoundFunction", "Capabilities", "Declared", "Function", "Parameter", "Verbs"]

Declared: TypeAlias = str | pa.DataType | Callable[..., Any]


@dataclass(frozen=True)
class Capabilities:
    """What a function can do, known when it is registered.

    Args:
        retract: It takes rows back.
        merge: It combines two accumulators of one group.
        invertible: Retracting is exact in any order, also before the row it takes back has been seen.
        deterministic: The same rows in the same order always give the same result.
        codec: How its accumulators become bytes.
        codec_reason: Why this codec was chosen.
        migrate: It takes states of its other versions.
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
        required: Whether a call must give it.
        default: Its value otherwise.
        annotation: Its annotation as text; empty if it has none.
        type: The values that its annotation allows; Any where it does not say.
    """

    name: str
    required: bool
    default: Any = None
    annotation: str = ""
    type: Any = Any


@dataclass(frozen=True)
class Verbs:
    """The methods of one instance of an author's class, in the form that the fold calls.

    `accumulate`, `retract` and `merge` take the accumulator first; see `Function.returns` for what they return.
    """

    create_accumulator: Callable[[], Any]
    accumulate: Callable[..., Any]
    get_value: Callable[[Any], Any]
    retract: Callable[..., Any] | None = None
    merge: Callable[[Any, Any], Any] | None = None
    serialize: Callable[[Any], bytes] | None = None
    deserialize: Callable[[bytes], Any] | None = None
    migrate: Callable[[str, Any], Any] | None = None
    open: Callable[[FunctionContext], None] | None = None
    close: Callable[[], None] | None = None
    fold_many: Callable[..., Any] | None = None
    merge_many: Callable[[Any, Any, Any], Any] | None = None
    get_values: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Function:
    """A registered function.

    Args:
        name: Its name in queries.
        declared_version: The author's version, or a callable from the input types; states of another version go through
            `migrate`, or are refused without it.
        doc: The class's docstring.
        cls: The author's class.
        instantiate: Makes the verbs of a fresh instance from the direct arguments.
        input_names: Names of the arguments, from the signature of `accumulate`.
        declared_inputs: Types of the arguments, one each; or a callable from the actual types to the declared ones.
        declared_result: Type of the result; or a callable from the input types.
        declared_state: Type of the state where the author declares it; or a callable from the input types.
        shape: The typed layout of the accumulator, where its annotation gives one.
        accumulator_class: The class of the accumulator, where its annotation names one.
        skip_nulls: Rows with a NULL argument are not given to the function.
        capabilities: What it can do.
        parameters: Its direct arguments.
        returns: What `accumulate`, `retract` and `merge` return: `always` the accumulator (which may be None), `some`
            accumulator that is not None, or they `may` return one or change it in place and return None.
        compile: Whether folds compile it to machine code: `auto` if they can and it pays.
        vectorised: Whether its class has the vectorised methods.
        own: Where the function has travelled from another process: the classes and functions that came with it as code,
            by module and qualified name. Pickled states refer to them by these names.
    """

    name: str
    declared_version: str | Callable[..., str]
    doc: str
    cls: type
    instantiate: Callable[[Mapping[str, Any]], Verbs]
    input_names: tuple[str, ...]
    declared_inputs: tuple[str | pa.DataType, ...] | Callable[..., Sequence[Any]]
    declared_result: Declared
    declared_state: Declared | None
    shape: Shape | None
    accumulator_class: type | None
    skip_nulls: bool
    capabilities: Capabilities
    parameters: tuple[Parameter, ...] = ()
    returns: Literal["always", "some", "may"] = "may"
    compile: bool | Literal["auto"] = "auto"
    vectorised: bool = False
    own: Mapping[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def version(self) -> str:
        """The version as it is shown where no types are known."""
        return "by type" if callable(self.declared_version) else self.declared_version

    @property
    def folds_many(self) -> bool:
        """Whether folds use its vectorised methods: `compile` chooses the others."""
        return self.vectorised and self.compile == "auto"

    @property
    def inputs_min(self) -> int:
        """The least number of arguments that a call may give; a function that is asked for its types takes fewer."""
        return 0 if callable(self.declared_inputs) else len(self.input_names)

    @property
    def input_types(self) -> tuple[pa.DataType, ...] | None:
        """The types of the arguments; None for a function whose types depend on its arguments."""
        if callable(self.declared_inputs) or any(_variables(each) for each in self.declared_inputs):
            return None
        return tuple(parse_type(each) for each in self.declared_inputs)

    @property
    def result_type(self) -> pa.DataType | None:
        """The type of the result; None for a function whose types depend on its arguments."""
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
                f"{name} {_spelled(each)}" for name, each in zip(self.input_names, self.declared_inputs, strict=True)
            ]
        for parameter in self.parameters:
            arguments.append(parameter.name + ("" if parameter.required else f" => {parameter.default!r}"))
        result = "..." if callable(self.declared_result) else _spelled(self.declared_result)
        return f"{self.name}({', '.join(arguments)}) -> {result}"

    def bind(self, argument_types: Sequence[pa.DataType], literals: Mapping[str, Any]) -> BoundFunction:
        """Fix the types and direct arguments of one call.

        Args:
            argument_types: The types of the argument columns.
            literals: Direct arguments by name.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a wrong number or type of arguments, SIGNATURE for direct arguments that
                the class does not take.
        """
        self.check_literals(literals)
        variables: dict[str, pa.DataType] = {}
        inputs = self._bind_inputs(tuple(argument_types), variables)
        result = self._resolve(self.declared_result, inputs, variables)
        shape = self.shape
        if self.declared_state is not None:
            shape = shape_of_type(self._resolve(self.declared_state, inputs, variables), self.accumulator_class)
        state_type = shape.arrow if self.capabilities.codec == "typed" and shape is not None else pa.binary()
        version = self.declared_version
        return BoundFunction(
            function=self,
            version=str(version(*inputs)) if callable(version) else version,
            input_types=inputs,
            result_type=result,
            state_type=state_type,
            shape=shape if self.capabilities.codec == "typed" else None,
            literals=dict(literals),
        )

    def check_literals(self, literals: Mapping[str, Any]) -> None:
        """Refuse direct arguments that the class does not take, that are missing, or that contradict its annotations.

        Raises:
            RejectedError: SIGNATURE.
        """
        check_names(self, literals)
        for parameter in self.parameters:
            value = literals.get(parameter.name, parameter.default)
            if value is not parameter.default and not fits(value, parameter.type):
                raise RejectedError(
                    "SIGNATURE",
                    f"the direct argument {parameter.name} of {self.name} is {parameter.annotation}, "
                    f"and {value!r} is {type(value).__name__}",
                    function=self.name,
                )

    def _bind_inputs(
        self, actual: tuple[pa.DataType, ...], variables: dict[str, pa.DataType]
    ) -> tuple[pa.DataType, ...]:
        if callable(self.declared_inputs):
            try:
                declared = tuple(parse_type(each) for each in self.declared_inputs(*actual))
            except TypeError:
                raise self._mismatch(f"does not take {len(actual)} arguments") from None
            except ValueError as error:
                raise self._mismatch(str(error)) from None
        else:
            if len(actual) != len(self.declared_inputs):
                raise self._mismatch(f"takes {len(self.declared_inputs)} arguments and was given {len(actual)}")
            for each, type_ in zip(self.declared_inputs, actual, strict=True):
                for name in _variables(each):
                    if isinstance(each, str) and each.strip() == name:
                        variables.setdefault(name, type_)
            declared = tuple(parse_type(each, variables) for each in self.declared_inputs)
        for place, (type_, wanted) in enumerate(zip(actual, declared, strict=True)):
            if not can_widen(type_, wanted):
                name = self.input_names[place] if place < len(self.input_names) else str(place + 1)
                raise self._mismatch(
                    f"takes {sql_name(wanted)} for its argument {name} and was given {sql_name(type_)}; "
                    f"cast the column to {sql_name(wanted)} in the query"
                )
        return declared

    def _resolve(
        self, declared: Declared, inputs: tuple[pa.DataType, ...], variables: Mapping[str, pa.DataType]
    ) -> pa.DataType:
        return parse_type(declared(*inputs)) if callable(declared) else parse_type(declared, variables)

    def _mismatch(self, wrong: str) -> RejectedError:
        return RejectedError("SCHEMA_MISMATCH", f"{self.name} {wrong}: {self.signature}", function=self.name)


def _variables(declared: Any) -> frozenset[str]:
    return type_variables(declared) if isinstance(declared, str) else frozenset()


def _spelled(declared: str | pa.DataType) -> str:
    return declared if _variables(declared) else sql_name(parse_type(declared))


_TEXTUAL: Final = (bool, int, float, str, bytes, decimal.Decimal, datetime.date, datetime.time, datetime.timedelta)


def _has_text(value: Any) -> bool:
    """Tell whether a default is a plain value; the repr of anything else may differ from process to process."""
    return isinstance(value, _TEXTUAL) or (isinstance(value, (list, tuple)) and all(map(_has_text, value)))


def _text(value: Any) -> str:
    """Return a direct argument as text, the same before and after its way over the wire."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return repr(value.item() if isinstance(value, np.generic) else value)


@dataclass(frozen=True)
class BoundFunction:
    """A function with the types and direct arguments of one call.

    Args:
        function: The function.
        version: Its version for these types.
        input_types: The types that its arguments are cast to.
        result_type: The type that its results are cast to.
        state_type: The type of its states: a struct or scalar for the typed codec, binary otherwise.
        shape: The layout of its typed states; None for other codecs.
        literals: The direct arguments.
    """

    function: Function
    version: str
    input_types: tuple[pa.DataType, ...]
    result_type: pa.DataType
    state_type: pa.DataType
    shape: Shape | None
    literals: Mapping[str, Any]

    @functools.cached_property
    def fingerprint(self) -> str:
        """What a state of this call depends on, as 16 hexadecimal digits.

        A direct argument counts as much where it is a default as where the call gives it: a default that changes
        with a release changes what states mean.
        """
        literals = {each.name: each.default for each in self.function.parameters if _has_text(each.default)}
        literals.update(self.literals)
        parts = [
            self.function.name,
            self.version,
            [str(type_) for type_ in self.input_types],
            str(self.result_type),
            self.function.capabilities.codec,
            str(self.state_type),
            {name: _text(value) for name, value in sorted(literals.items())},
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def instantiate(self) -> Verbs:
        """Return the verbs of a fresh instance of the author's class."""
        return self.function.instantiate(self.literals)
