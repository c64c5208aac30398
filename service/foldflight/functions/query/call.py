"""Uses of functions in a query: a `Call` of an aggregate, a `Step` of an expression, and the kinds of the rows.

Both have direct arguments (`literals`): what functions get of them, and checks of their names and of their values by
annotations, are here. A `Request` has all of the uses of one exchange.
"""

from __future__ import annotations

import datetime
import decimal
import difflib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.types.sql import is_nan, rank

# Annotation -> the accepted types of values. As in SQL, an integer is accepted for a DOUBLE or a decimal.
_VALUES: Final[dict[Any, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    str: (str,),
    bytes: (bytes, bytearray),
    decimal.Decimal: (decimal.Decimal, int),
    datetime.date: (datetime.date,),
    datetime.datetime: (datetime.datetime,),
    datetime.time: (datetime.time,),
    datetime.timedelta: (datetime.timedelta,),
    type(None): (type(None),),
}
_ALTERNATIVES: Final = (typing.Union, types.UnionType)
# A list is accepted for each of these annotations: the wire does not distinguish lists and tuples.
_LISTS: Final = (list, tuple, Sequence)
_DICTS: Final = (dict, Mapping)


@dataclass(frozen=True)
class Order:
    """One key of the order in which a call folds the rows of a group.

    Args:
        column: Name of the chunk's column.
        descending: Whether larger values come first.
        nulls_first: Whether NULL comes before all values.
    """

    column: str
    descending: bool = False
    nulls_first: bool = True

    def sort_key(self, value: Any) -> tuple[bool, bool, Any]:
        """Return the key of a value for a sort with `reverse=descending`. NaN is the greatest number, as in Spark."""
        if value is None:
            return (self.nulls_first == self.descending, False, 0)
        nan = is_nan(value)
        return (self.nulls_first != self.descending, nan, 0 if nan else rank(value))


@dataclass(frozen=True)
class Call:
    """One use of a function over the columns of a chunk.

    Args:
        function: Name of the function.
        arguments: Names of the chunk's columns, in the order of the function's arguments.
        filter: Name of a boolean column. Only rows where it is true are folded (NULL is not true).
        distinct: Whether rows with equal arguments are folded once.
        materialize: Whether each group keeps its argument rows and folds all of them again for each value. With this
            option, a function without `retract` supports retractions.
        literals: Direct arguments. They are fixed for the call and are passed to the class's `__init__` by name.
            Arrays of NumPy become lists, as they are on servers.
        fingerprint: The fingerprint that the engine expects. An empty string accepts any.
        order: The order in which the rows of a group are folded. With an order, each group keeps its rows and folds all
            of them again for each value, as with `materialize`.
    """

    function: str
    arguments: tuple[str, ...] = ()
    filter: str | None = None
    distinct: bool = False
    materialize: bool = False
    literals: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    order: tuple[Order, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "literals", as_sent(self.literals))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of one row of the call: its arguments, then the keys of its order."""
        return (*self.arguments, *(each.column for each in self.order))


@dataclass(frozen=True)
class StepArgument:
    """One argument of a step: a column of the chunk, or the result of an earlier step.

    Args:
        column: The name of a column of the chunk; None for the result of a step.
        step: The number of an earlier step; None for a column.
        member: The member of that result, which is a struct; None for the whole result.
    """

    column: str | None = None
    step: int | None = None
    member: str | None = None


@dataclass(frozen=True)
class Step:
    """One use of a function over the columns of a chunk and the results of earlier steps.

    Args:
        function: Name of the function.
        arguments: The arguments, in the order of the function's arguments.
        literals: Direct arguments. They are fixed for the step and are passed to the class's `__init__` by name.
            Arrays of NumPy become lists, as they are on servers.
        fingerprint: The fingerprint that the engine expects. An empty string accepts any.
        outer: For a table function: whether a row without results becomes one row of NULLs.
    """

    function: str
    arguments: tuple[StepArgument, ...] = ()
    literals: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    outer: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "literals", as_sent(self.literals))


class RowKind(IntEnum):
    """The kind of a row, with the values of Flink's `RowKind`.

    `INSERT` and `UPDATE_AFTER` accumulate; `UPDATE_BEFORE` and `DELETE` retract.

    >>> from foldflight import RowKind
    >>> RowKind.parse("-D"), RowKind.DELETE.short
    (<RowKind.DELETE: 3>, '-D')
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """The two-character notation: `+I`, `-U`, `+U`, `-D`."""
        return ("+I", "-U", "+U", "-D")[self]

    @property
    def retracts(self) -> bool:
        """Whether a row of this kind retracts an earlier row."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @classmethod
    def parse(cls, text: str | RowKind) -> RowKind:
        """Return the row kind for its short name (`+I`) or full name (`INSERT`); a row kind is returned unchanged.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if `text` is not the name of a kind.
        """
        for kind in cls:
            if text is kind or text in (kind.short, kind.name):
                return kind
        raise RejectedError(
            "SCHEMA_MISMATCH", f"{text!r} is no row kind; the kinds are {', '.join(kind.short for kind in cls)}"
        )


def as_sent(literals: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return direct arguments as functions on servers get them: arrays and numbers of NumPy are lists and numbers."""
    return {name: _as_sent(value) for name, value in literals.items()}


def _as_sent(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in (list, tuple):
        return type(value)(map(_as_sent, value))
    if type(value) is dict:
        return {key: _as_sent(each) for key, each in value.items()}
    return value


def text_of_literals(literals: Mapping[str, Any]) -> str:
    """Return a text that is equal only for equal direct arguments that exist at the same time; 1, 1.0 and True differ.

    The `repr` of an object that is no plain value may leave out a part of it, so such an object equals only itself.
    """
    return ", ".join(f"{name}={_text(value)}" for name, value in sorted(literals.items()))


def _text(value: Any) -> str:
    if type(value) in (list, tuple):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if type(value) is dict:
        return f"dict({', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())})"
    return repr(value) if type(value) in _VALUES else f"{type(value).__name__} at {id(value)}"


class _Parameter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def required(self) -> bool: ...


class Described(Protocol):
    """A function or its description, as far as `check_names` needs it."""

    @property
    def name(self) -> str:
        """Its name in queries."""

    @property
    def signature(self) -> str:
        """Its signature as text."""

    @property
    def input_names(self) -> Sequence[str]:
        """The names of its other arguments."""

    @property
    def parameters(self) -> Sequence[_Parameter]:
        """Its direct arguments."""


def check_known(function: Described, names: Collection[str]) -> None:
    """Refuse unknown names of arguments.

    Args:
        function: The function.
        names: The names of the arguments of the call.

    Raises:
        RejectedError: SIGNATURE, with the name.
    """
    direct = [parameter.name for parameter in function.parameters]
    known_names = [*direct, *(name for name in function.input_names if name not in direct)]
    for name in names:
        if name not in known_names:
            close = difflib.get_close_matches(name, known_names, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(direct) or 'none'}"
            raise RejectedError(
                "SIGNATURE", f"{function.signature} has no direct argument {name!r}; {hint}", function=function.name
            )


def check_names(function: Described, names: Collection[str]) -> None:
    """Refuse unknown and missing direct arguments.

    Args:
        function: The function.
        names: The names of the direct arguments of the call.

    Raises:
        RejectedError: SIGNATURE.
    """
    check_known(function, names)
    direct = {parameter.name for parameter in function.parameters}
    for name in names:
        if name not in direct:
            raise RejectedError(
                "SIGNATURE",
                f"{function.signature} is given {name} twice, by position and by name; leave one out",
                function=function.name,
            )
    for parameter in function.parameters:
        if parameter.required and parameter.name not in names:
            raise RejectedError(
                "SIGNATURE",
                f"{function.signature} needs the direct argument {parameter.name!r}: "
                f"{function.name}(..., {parameter.name}=...)",
                function=function.name,
            )


def names_values(annotation: Any) -> bool:
    """Return whether `fits` supports an annotation: plain values, lists and dicts of them, and unions of these."""
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return all(type(each) in _VALUES for each in typing.get_args(annotation))
    if origin is not None:
        return origin in (*_ALTERNATIVES, *_LISTS, *_DICTS) and all(map(names_values, typing.get_args(annotation)))
    return annotation in (Any, Ellipsis) or annotation in (*_VALUES, *_LISTS, *_DICTS)


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a value matches an annotation for which `names_values` is true."""
    if isinstance(value, np.generic):
        value = value.item()
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin in _ALTERNATIVES:
        return any(fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    plain = annotation if origin is None else origin
    if plain in _LISTS:
        return isinstance(value, (list, tuple, np.ndarray)) and _members_fit(value, arguments, is_tuple=plain is tuple)
    if plain in _DICTS:
        of_key, of_item = arguments or (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, of_key) and fits(v, of_item) for k, v in value.items())
    return isinstance(value, _VALUES[plain])


def _members_fit(values: Collection[Any], arguments: tuple[Any, ...], *, is_tuple: bool) -> bool:
    if not arguments:
        return True
    if is_tuple and arguments[-1] is not Ellipsis:
        return len(values) == len(arguments) and all(map(fits, values, arguments))
    return all(fits(each, arguments[0]) for each in values)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the calls or steps of an exchange are evaluated.

    Args:
        row_outputs: Whether the answer to each chunk has the outputs after each of its rows.
        emits: Whether chunks have a column `emit`, bool without NULLs: outputs are only computed and returned after the
            rows where it is true. It needs `row_outputs`.
        isolate_errors: Whether a function that raises fails only its slot. Results then have a column `error`.
        job_parameters: Parameters that functions read from their context.
        keeps_views: Whether the engine keeps the entries of views apart from states. Chunks are then answered.
    """

    row_outputs: bool = False
    emits: bool = False
    isolate_errors: bool = False
    job_parameters: Mapping[str, str] = field(default_factory=dict)
    keeps_views: bool = False


@dataclass(frozen=True)
class Request(Options):
    """The request of an exchange, and its options.

    Args:
        calls: The calls; call i has the columns `state_i` and `output_i` in the results.
        columns: The schema of the chunks: optionally `slot` int32 and `kind` int8, then argument and filter columns.
        steps: Expressions of scalar and table functions, instead of calls.
        outputs: The numbers of the steps whose results are outputs.
    """

    calls: tuple[Call, ...]
    columns: pa.Schema
    steps: tuple[Step, ...] = field(default=(), kw_only=True)
    outputs: tuple[int, ...] = field(default=(), kw_only=True)
