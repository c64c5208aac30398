"""Direct arguments: what functions get of them, and checks of their names and of their values by annotations."""

from __future__ import annotations

import datetime
import decimal
import difflib
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from foldflight.errors import RejectedError

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
