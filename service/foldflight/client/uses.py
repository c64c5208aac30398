"""Uses of scalar and table functions over columns in a query. They nest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from foldflight.client.transport import Transport
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions.author.spec import FunctionKind


@dataclass(frozen=True, eq=False)
class Use:
    """One use of a scalar or table function; made by calling a `FunctionHandle`.

    It may be the argument of another use: `f["score"](f["normalise"]("text"), "a")` is evaluated as one expression,
    without a trip to Spark in between. A use that appears twice in a query is evaluated once.

    Args:
        function: The function that is used.
        arguments: The arguments: other uses, or column names, SQL expressions or column objects of the engine.
        literals: Direct arguments, constant for the use.
        transport: The transport of the function.
        name: The name of the output; None before `alias`.

    >>> from foldflight import connect, udf
    >>> @udf
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> double = connect(double)
    >>> double(double("price")).alias("four")
    double(double('price')).alias('four')
    """

    function: FunctionInfo
    arguments: tuple[object, ...]
    transport: Transport = field(repr=False)
    literals: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None

    def alias(self, name: str) -> Use:
        """Return the same use with a name for its output: `with_columns(df, f["m"]("a").alias("x"))`."""
        if not isinstance(name, str):
            raise RejectedError("SIGNATURE", f"the name of an output must be a str, and it is {name!r:.80}")
        return dataclasses.replace(self, name=name)

    @property
    def is_table(self) -> bool:
        """Whether the function is a table function."""
        return self.function.kind is FunctionKind.TABLE

    @property
    def columns(self) -> Iterator[object]:
        """The columns among its arguments, and among the arguments of nested uses, each use once."""
        todo = list(reversed(self.arguments))
        seen: set[int] = set()
        while todo:
            argument = todo.pop()
            inner = argument.use if isinstance(argument, UseMember) else argument
            if not isinstance(inner, Use):
                yield inner
            elif id(inner) not in seen:
                seen.add(id(inner))
                todo += reversed(inner.arguments)

    def __getitem__(self, member: str) -> UseMember:
        """Return one member of the result, as an argument of another use: a column of a table function."""
        if not isinstance(member, str):
            raise RejectedError("SIGNATURE", f"a member of {self!r} is a name, and here it is {member!r:.80}")
        return UseMember(self, member)

    def __iter__(self) -> Any:
        raise TypeError(f"{self!r} cannot be iterated; take its columns by name")

    def __repr__(self) -> str:
        given = [*map(repr, self.arguments), *(f"{name}={value!r}" for name, value in self.literals.items())]
        text = f"{self.function.name}({', '.join(given)})"
        return text if self.name is None else f"{text}.alias({self.name!r})"


@dataclass(frozen=True, eq=False)
class UseMember:
    """One member of the result of a use, which is a struct.

    Args:
        use: The use.
        member: The name of the member.
    """

    use: Use
    member: str

    def __repr__(self) -> str:
        return f"{self.use!r}[{self.member!r}]"


def uses_in(uses: Iterable[Use]) -> Iterator[Use]:
    """Yield uses and the uses in their arguments, each once, however often it is an argument."""
    todo = list(uses)
    seen: set[int] = set()
    while todo:
        use = todo.pop()
        if id(use) not in seen:
            seen.add(id(use))
            yield use
            todo += [each for each in use.arguments if isinstance(each, Use)]
            todo += [each.use for each in use.arguments if isinstance(each, UseMember)]
