"""The common part of all decorators: names, types and direct arguments from a signature."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast, overload

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.spec import Declared, Function, Parameter, ScalarFunction
from foldflight.functions.query.call import names_values
from foldflight.functions.types.annotations import annotations_of, signature_of
from foldflight.functions.types.serializer import StateSerializer, UnspecificAnnotation, serializer_of_annotation
from foldflight.functions.types.sql import is_spark_type, parse_type, type_variables

# Names of parameters for secrets. `max_tokens` is none.
_SECRET: Final = re.compile(r"(^|_)(api_?key|password|secret|token|credentials?)$", re.IGNORECASE)
REGISTERED: Final = "__foldflight_function__"
F = TypeVar("F", Function, ScalarFunction)
T = TypeVar("T")
P = ParamSpec("P")
Inputs = Sequence[str | pa.DataType] | Callable[..., Sequence[Any]]


class Decorator(Protocol[P]):
    """A decorator that is written with options in parentheses, or without both."""

    @overload
    def __call__(self, target: T, /) -> T: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Callable[[T], T]: ...


def function_decorator(name: str, make: Callable[Concatenate[Any, P], Function | ScalarFunction]) -> Decorator[P]:
    """Return the decorator that attaches a function to the class or function of which `make` makes it.

    Args:
        name: The name of the decorator.
        make: Called with the author's class or function, and with the options of the decorator. It has their
            documentation.
    """
    first, *option_names = signature_of(make).parameters  # the class or function may also be given by the first name

    def decorator(target: Any = None, /, **options: Any) -> Any:
        target = options.pop(first, None) if target is None else target
        for option in options:
            if option not in option_names:
                close = difflib.get_close_matches(option, option_names, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(option_names)}"
                raise RejectedError("SIGNATURE", f"@{name} has no option {option!r}; {hint}")
        if target is None:
            return functools.partial(decorator, **options)
        setattr(target, REGISTERED, cast("Any", make)(target, **options))
        return target

    functools.update_wrapper(decorator, make)
    decorator.__name__ = decorator.__qualname__ = name
    return cast("Decorator[P]", decorator)


def snake_case(name: str) -> str:
    """Return a class name as the name of a function: `WeightedAvg` becomes `weighted_avg`."""
    snake_name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", snake_name).lower()


def _is_annotation(declared_type: object) -> bool:
    """Return whether a type is declared by a Python class or a generic alias (`int`, `list[int]`)."""
    return isinstance(declared_type, type) or typing.get_origin(declared_type) is not None


class SignatureBuilder(ABC):
    """Builds a function from an author's class. Each mistake raises an error that names class, method and remedy.

    Args:
        cls: The author's class (or function).
        name: The name of the function.

    Attributes:
        is_zoned: Whether a `datetime` of an annotation has a zone.
        has_datetimes: Whether an annotation that has been read has a `datetime`.
    """

    decorator: ClassVar[str]
    result_option: ClassVar[str] = "result_type=..."  # how the decorator declares the result

    def __init__(self, cls: Any, name: str) -> None:
        self.cls = cls
        self.name = name
        self.is_zoned = False
        self.has_datetimes = False

    @property
    def own_class(self) -> type | None:
        """The class, whose name may have no value while its annotations are read; None for a function."""
        return self.cls if isinstance(self.cls, type) else None

    @abstractmethod
    def argument_method(self) -> tuple[Any, str]:
        """Return the method that takes the arguments, and its name for errors."""

    @abstractmethod
    def result_method(self) -> tuple[Any, str]:
        """Return the method that returns the result, and its name for errors."""

    @abstractmethod
    def argument_parameters(self) -> list[inspect.Parameter]:
        """Return the parameters of the arguments."""

    def parameters_after(self, count: int) -> list[inspect.Parameter]:
        """Return the parameters of the method that takes the arguments, from number `count` on."""
        return list(signature_of(self.argument_method()[0]).parameters.values())[count:]

    def has(self, method_name: str) -> bool:
        """Return whether the class has this method; `retract = None` removes an inherited one."""
        return getattr(self.cls, method_name, None) is not None

    def error(self, wrong: str, remedy: str) -> RejectedError:
        """Return the error for a mistake of the author, with its remedy."""
        return RejectedError(
            "SIGNATURE", f"{getattr(self.cls, '__name__', self.cls)}{wrong}; {remedy}", function=self.name
        )

    def check_variables(self, inputs: Any, *declared_types: Any) -> None:
        """Refuse type variables that no argument binds. An argument binds `T` if its type is exactly `T`."""
        texts = [] if callable(inputs) else [each for each in inputs if isinstance(each, str)]
        bound = {each.strip() for each in texts}
        used_variables = [
            name for each in (*texts, *declared_types) if isinstance(each, str) for name in type_variables(each)
        ]
        unbound_variables = sorted(set(used_variables) - bound)
        if unbound_variables:
            raise self.error(
                f" uses the type variable {unbound_variables[0]}, which no argument binds",
                f"give an argument the type {unbound_variables[0]!r} itself, or declare the types by callables",
            )

    def input_names(self, inputs: Any) -> tuple[str, ...]:
        """Return the names of the arguments; `*arguments` are numbered."""
        names = [parameter.name for parameter in self.argument_parameters()]
        if callable(inputs):
            return tuple(names)
        variadic = [f"{names[-1] if names else 'argument'}{index + 1}" for index in range(len(inputs))]
        has_star = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in self.argument_parameters())
        fixed_names = [p.name for p in self.argument_parameters() if p.kind is not inspect.Parameter.VAR_POSITIONAL]
        return (
            tuple(fixed_names[: len(inputs)] + variadic[len(fixed_names) :])
            if has_star
            else tuple(names[: len(inputs)])
        )

    def defaults(self, inputs: Any) -> dict[str, Any]:
        """Return the defaults of the last arguments, by name: a call may leave these arguments out."""
        if callable(inputs):
            return {}
        default_by_name = {
            each.name: each.default for each in self.argument_parameters() if each.default is not each.empty
        }
        names = self.input_names(inputs)
        least = len(names)
        while least and names[least - 1] in default_by_name and self.takes_only(least - 1):
            if isinstance(inputs[least - 1], str) and type_variables(inputs[least - 1]):
                break
            least -= 1
        return {name: default_by_name[name] for name in names[least:]}

    def takes_only(self, count: int) -> bool:
        """Return whether all methods take the first `count` arguments without the others, which have defaults."""
        return count >= 0

    def inputs(self, input_types: Inputs | None, *, has_result: bool = True) -> Any:
        """Return the declared types of the arguments, from the decorator or from annotations.

        Args:
            input_types: The types that the decorator declares.
            has_result: Whether the result needs no annotation. If it has none and needs one, the error for arguments
                without types says so, too.
        """
        if input_types is not None:
            if isinstance(input_types, (str, pa.DataType)) or is_spark_type(input_types) or _is_annotation(input_types):
                type_text = input_types.__name__ if isinstance(input_types, type) else repr(input_types)
                raise self.error(" declares input_types as one type", f"write a list: input_types=[{type_text}]")
            if callable(input_types):
                return input_types
            return tuple(self.check_type("input_types", each) for each in input_types)
        method, where = self.argument_method()
        hints = self.hints(method)
        names = [parameter.name for parameter in self.argument_parameters()]
        undeclared_names = [name for name in names if name not in hints]
        if undeclared_names:
            raise self._error_without_types(undeclared_names, has_result=has_result)
        return tuple(self.infer_type(hints[name], f"{where}, argument {name}") for name in names)

    def _error_without_types(self, names: list[str], *, has_result: bool) -> RejectedError:
        """Return the error for arguments without annotations, and for the result if it needs one and has none."""
        (_, where), (method, result_where) = self.argument_method(), self.result_method()
        lacks_result = not has_result and "return" not in self.hints(method)
        if lacks_result and where == result_where:
            names = [*names, "the result"]
        text = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        wrong = f"{where} does not declare the type{'s' * (len(names) > 1)} of {text}"
        if lacks_result and where != result_where:
            wrong += f", nor {result_where.removeprefix('.')} the type of the result"
        options = ", ".join(["input_types=[...]", self.result_option][: 1 + lacks_result])
        pronoun = "them" if lacks_result or len(names) > 1 else "it"
        return self.error(wrong, f"annotate {pronoun}, or give {self.decorator}({options})")

    def result(self, result_type: Declared | None) -> Any:
        """Return the declared type of the result, from the decorator or from an annotation."""
        if result_type is not None:
            return self.check_type("result_type", result_type)
        method, where = self.result_method()
        hints = self.hints(method)
        if "return" not in hints:
            raise self.error(
                f"{where} does not declare the type of the result",
                f"annotate it, or give {self.decorator}(result_type=...)",
            )
        return self.infer_type(hints["return"], where)

    def check_type(self, where: str, declared_type: Any) -> Any:
        """Return a declared type after checking it; annotations and PySpark types become Arrow types."""
        if isinstance(declared_type, type) and declared_type.__module__ == "pyspark.sql.types":
            raise self.error(
                f", {where}: {declared_type.__name__} is a class, not a type", f"write {declared_type.__name__}()"
            )
        if _is_annotation(declared_type):
            return self.infer_type(declared_type, f", {where}")
        if callable(declared_type) or isinstance(declared_type, pa.DataType):
            return declared_type
        try:
            if is_spark_type(declared_type):
                # Servers run without PySpark, so the type is kept as an Arrow type.
                return parse_type(declared_type)
            variables = (
                dict.fromkeys(type_variables(declared_type), pa.null()) if isinstance(declared_type, str) else {}
            )
            parse_type(declared_type, variables)
        except RejectedError as error:
            raise self.error(f", {where}: {error.message}", "or pass a pyarrow type") from None
        return declared_type

    def infer_type(self, annotation: Any, where: str) -> pa.DataType:
        """Return the Arrow type of an annotation."""
        try:
            return self.layout(annotation).arrow
        except UnspecificAnnotation as reason:
            raise self.error(
                f"{where}: {reason}", f"give the SQL type in {self.decorator}(input_types=..., result_type=...)"
            ) from None

    def layout(self, annotation: Any) -> StateSerializer:
        """Return the layout of an annotation. Raises UnspecificAnnotation."""
        serializer = serializer_of_annotation(annotation, self.own_class)
        zoned_serializer = serializer.with_zones()
        self.has_datetimes = self.has_datetimes or zoned_serializer.arrow != serializer.arrow
        return zoned_serializer if self.is_zoned else serializer

    def of_both_kinds(self, build: Callable[[], F]) -> F:
        """Return what `build` returns: a function, which has the one for timestamps with a zone if it takes them."""
        function = build()
        if not self.has_datetimes or callable(function.declared_inputs):
            return function
        self.is_zoned = True
        zoned_function = build()
        return (
            function
            if zoned_function.declared_inputs == function.declared_inputs
            else replace(function, zoned=zoned_function)
        )

    def hints(self, method: Any) -> dict[str, Any]:
        """Return the annotations of a method."""
        try:
            return annotations_of(method, self.own_class)
        except NameError as error:
            where = "" if method is self.cls else f".{method.__name__}"
            raise self.error(
                f"{where} has an annotation that cannot be resolved ({error})",
                "define what it names above the class, or import it",
            ) from None

    def check_secrets(self) -> None:
        """Refuse direct arguments for secrets, for a class that calls others with them."""
        for each in self.direct_arguments():
            if _SECRET.search(each.name):
                raise self.error(
                    f" has the direct argument {each.name}, and direct arguments are sent, logged and recorded",
                    "read the secret in open(self, context), from the environment or a file of the server",
                )

    def direct_arguments(self) -> tuple[Parameter, ...]:
        """Return the parameters of `__init__`."""
        parameters = []
        try:
            hints = annotations_of(self.cls.__init__, self.own_class, extras=False)
        except Exception:  # noqa: BLE001 - names that are imported only for type checkers; values are then not checked
            hints = {}
        for parameter in list(signature_of(self.cls.__init__).parameters.values())[1:]:
            if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                if self.cls.__init__ is object.__init__:
                    continue
                raise self.error(".__init__ has *args or **kwargs", "name each direct argument of the function")
            is_required = parameter.default is inspect.Parameter.empty
            annotation = parameter.annotation
            if not isinstance(annotation, str):
                annotation = "" if annotation is inspect.Parameter.empty else inspect.formatannotation(annotation)
            default = None if is_required else parameter.default
            hint = hints.get(parameter.name, Any)
            # Other annotations check no values and would only make a shipped function larger.
            type_ = hint if names_values(hint) else Any
            parameters.append(Parameter(parameter.name, is_required, default, annotation, type_))
        return tuple(parameters)
