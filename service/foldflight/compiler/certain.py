"""Accumulators without annotations whose types are certain, because fresh ones hold plain numbers.

Their states stay what they are without a compiler: pickles of the accumulators. Compiled code has records, from which
objects are made where states are written, and the code may only store values of the types of the first ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from foldflight.compiler.kinds import Refused
from foldflight.compiler.records import RecordField, RecordLayout
from foldflight.functions.author.spec import Function

__all__ = ["Certain", "certain_of", "class_named", "why_untyped"]

_TYPES: Final[dict[type, pa.DataType]] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_PICKLED_BY: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__new__")
_HEAP_TYPE: Final = 1 << 9  # a class that is defined in Python


@dataclass(frozen=True)
class Certain:
    """The types of an accumulator's numbers.

    Args:
        cls: The class of the accumulator; None if it is a number.
        types: The type of each attribute, in the order in which they are set; of the field `value` for a number.
    """

    cls: type | None
    types: dict[str, type]

    @property
    def arrow(self) -> pa.DataType:
        """The type of accumulators as a column."""
        if self.cls is None:
            return _TYPES[self.types["value"]]
        return pa.struct([pa.field(name, _TYPES[each]) for name, each in self.types.items()])

    @property
    def layout(self) -> RecordLayout:
        """The layout of accumulators in memory."""
        return RecordLayout(tuple(RecordField(name, each.__name__) for name, each in self.types.items()), exact=True)

    def column(self, accumulators: Sequence[Any]) -> pa.Array | None:
        """Return n accumulators as a column; None if one has other attributes, other types or more than 64 bits."""
        rows = [{"value": each} for each in accumulators]
        if self.cls is not None:
            if any(type(each) is not self.cls for each in accumulators):
                return None
            rows = [vars(each) for each in accumulators]
        wanted = list(self.types.items())
        if any([(name, type(value)) for name, value in row.items()] != wanted for row in rows):
            return None
        try:
            columns = [pa.array([row[name] for row in rows], _TYPES[each]) for name, each in wanted]
        except (OverflowError, pa.ArrowInvalid):
            return None
        return columns[0] if self.cls is None else pa.StructArray.from_arrays(columns, fields=list(self.arrow))

    def accumulators(self, column: pa.Array) -> list[Any]:
        """Return a column of n accumulators as n accumulators, as the author's code makes them."""
        if self.cls is None:
            return list(column.to_pylist())
        made = []
        for values in zip(*(column.field(place).to_pylist() for place in range(len(self.types))), strict=True):
            accumulator: Any = object.__new__(self.cls)
            for name, value in zip(self.types, values, strict=True):
                setattr(accumulator, name, value)
            made.append(accumulator)
        return made


def why_untyped(function: Function) -> str:
    """Return the reason why the states of a function have no types, as a clause about it."""
    return f"its states are not typed: {function.capabilities.codec_reason}"


def class_named(function: Function, create_accumulator: Any) -> type | None:
    """Return the class of accumulators, as far as it is known without making one; None if there is none.

    Raises:
        Refused: The class is not defined in Python.
    """
    found = function.cls if create_accumulator is None else function.accumulator_class
    if found is None and isinstance(create_accumulator, FunctionType):
        known = create_accumulator.__globals__
        named = [known[name] for name in create_accumulator.__code__.co_names if isinstance(known.get(name), type)]
        found = named[0] if len(named) == 1 else None
    if found is not None and not all(each.__flags__ & _HEAP_TYPE for each in found.__mro__[:-1]):
        raise Refused(why_untyped(function))
    return found


def certain_of(cls: type | None, fresh: Any, untyped: str) -> Certain:
    """Return the types of a fresh accumulator.

    Args:
        cls: The class that it should have; None if it should be a number.
        fresh: The accumulator.
        untyped: The reason of `why_untyped`.

    Raises:
        Refused: One of the types is not certain.
    """
    if cls is None:
        if type(fresh) not in _TYPES:
            raise Refused(untyped)
        return Certain(None, {"value": type(fresh)})
    if type(fresh) is not cls or any("__slots__" in vars(each) for each in cls.__mro__[:-1]):
        raise Refused(untyped)
    if any(getattr(cls, name, None) is not getattr(object, name, None) for name in _PICKLED_BY):
        raise Refused(f"{untyped}; {cls.__name__} defines how it is pickled")
    for name, value in vars(fresh).items():
        if type(value) not in _TYPES:
            what = f"{cls.__name__}.{name} is a {type(value).__name__} at first"
            raise Refused(f"{untyped}; {what}; annotate it")
        if inspect.isdatadescriptor(inspect.getattr_static(cls, name, None)):
            raise Refused(f"{untyped}; {cls.__name__}.{name} is a property")
    return Certain(cls, {name: type(value) for name, value in vars(fresh).items()})
