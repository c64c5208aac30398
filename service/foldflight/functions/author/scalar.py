"""Scalar and table functions: their registration, and their binding to the types of one call."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import Function, FunctionKind, Registered, literal_texts
from foldflight.functions.types.sql import sql_name

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
class ScalarFunction(Registered):
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
