"""The rows and argument columns that are passed to accumulators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FunctionError, RejectedError
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import cast_arguments, to_python
from foldflight.functions.types.vectors import is_vector, list_misfit

# The exceptions of Arrow and of the JSON parser for values without a Python object; RecursionError for deep JSON.
_NO_VALUE: Final = (ValueError, TypeError, OverflowError, KeyError, RecursionError, pa.ArrowException)

_MORE_MAX: Final = 1 << 20

Slots = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Column:
    """One argument of n rows: an Arrow array, which is converted to Python values on demand.

    Args:
        name: Name of the argument's column.
        array: The values.
        values: The same values as Python objects, if they are known already.
        misfits: The values that did not fit the argument's type, and are NULL in `array`; NULL elsewhere.
    """

    def __init__(
        self,
        name: str,
        array: pa.Array | None,
        values: list[Any] | None = None,
        misfits: pa.Array | None = None,
    ) -> None:
        self.name = name
        self.array = array
        self.misfits = misfits
        if values is not None:
            self.values = values

    @classmethod
    def cast(cls, name: str, array: pa.Array, type_: pa.DataType) -> Column:
        """Return a column of the declared type. Raises RejectedError SCHEMA_MISMATCH as `cast_arguments` does."""
        values, misfits = cast_arguments(array, type_)
        if misfits is None:
            return cls(name, values)
        return cls(name, values, misfits=pc.if_else(pa.array(misfits), array, pa.scalar(None, array.type)))

    @cached_property
    def values(self) -> list[Any]:
        """The n values as Python objects; NULL is None.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a value without a Python object: invalid JSON, a year after 9999, a map
                with a duplicate key.
        """
        try:
            return to_python(self.array)
        except _NO_VALUE as error:
            raise RejectedError("SCHEMA_MISMATCH", _culprit(self.name, self.array, error)) from None

    def filter(self, mask: Mask) -> Column:
        """Return the rows where the mask is true."""
        if self.array is None:
            return Column(self.name, None, [value for value, keep in zip(self.values, mask, strict=True) if keep])
        return Column(self.name, self.array.filter(pa.array(mask)))

    def part(self, start: int, stop: int) -> Column:
        """Return the rows from `start` to before `stop`."""
        if self.array is None:
            return Column(self.name, None, self.values[start:stop])
        return Column(self.name, self.array.slice(start, stop - start))


def _culprit(name: str, array: pa.Array, error: Exception) -> str:
    column = f"the argument {name} ({sql_name(array.type)})"
    for index in range(len(array)):
        try:
            to_python(array.slice(index, 1))
        except _NO_VALUE as first:
            return f"{column} has no Python value in row {index} of the {len(array)} rows of the call: {first}"
    return f"{column} has no Python values: {error}"


@dataclass(frozen=True)
class Rows:
    """The rows of one chunk for one call.

    Args:
        slots: int32, shape (n,): the slot of each row.
        retracts: bool, shape (n,): which rows are retractions; None if there are none.
        arguments: The argument columns, n rows each.
    """

    slots: Slots
    retracts: Mask | None
    arguments: Sequence[Column]

    def __len__(self) -> int:
        return len(self.slots)

    def filter(self, mask: Mask) -> Rows:
        """Return the rows where the mask is true."""
        if mask.all():
            return self
        retracts = None if self.retracts is None else self.retracts[mask]
        return Rows(
            slots=self.slots[mask],
            retracts=retracts if retracts is not None and retracts.any() else None,
            arguments=[column.filter(mask) for column in self.arguments],
        )

    def part(self, start: int, stop: int | None = None) -> Rows:
        """Return the rows from `start` to before `stop`, or to the end."""
        stop = len(self) if stop is None else stop
        if start == 0 and stop == len(self):
            return self
        retracts = None if self.retracts is None else self.retracts[start:stop]
        return Rows(
            slots=self.slots[start:stop],
            retracts=retracts if retracts is not None and retracts.any() else None,
            arguments=[column.part(start, stop) for column in self.arguments],
        )

    def misfits(self, function: str, mask: Mask | None) -> Iterator[tuple[int, FunctionError]]:
        """Yield the rows of `mask` (None: all) with an argument that does not fit its type, each with an error.

        Args:
            function: The function, for the error.
            mask: bool, shape (n,).
        """
        for column in self.arguments:
            if column.misfits is None or column.array is None:
                continue
            misfitting = column.misfits.is_valid().to_numpy(zero_copy_only=False)
            type_ = sql_name(column.array.type)
            for index in np.flatnonzero(misfitting if mask is None else misfitting & mask).tolist():
                value = column.misfits[index]
                if is_vector(column.array.type):
                    why, remedy = list_misfit(value, column.array.type), "correct it or leave it out in the query"
                    message = f"the argument {column.name} has a list that is no {type_}: {why}; {remedy}"
                else:
                    message = (
                        f"the argument {column.name} is {value}, which does not fit {type_}; round it or "
                        "leave it out in the query, or declare a wider type"
                    )
                yield index, FunctionError("OVERFLOW", message, function=function, row=self.describe(index))

    @staticmethod
    def without_nulls(columns: Iterable[Column], mask: Mask | None = None) -> Mask | None:
        """Return which rows of `mask` (None: all) have a value in each of these columns; None for all rows."""
        for column in columns:
            if column.array is not None and column.array.null_count:
                valid = column.array.is_valid().to_numpy(zero_copy_only=False)
                mask = valid if mask is None else mask & valid
        return mask

    def describe(self, index: int) -> str:
        """Return the row at `index` as text for an error: its values."""
        texts = []
        for column in self.arguments:
            given = None if column.misfits is None else column.misfits[index].as_py()
            # A method may have changed the lists and dicts that it was given.
            text = _text(column, index) if given is None else str(given)
            texts.append(f"{column.name}={text if len(text) <= 200 else text[:200] + '...'}")
        # Readers know the values of their rows. How rows came into chunks is the engine's matter.
        return ", ".join(texts) or "without arguments"


def _text(column: Column, index: int) -> str:
    if column.array is None:
        return repr(column.values[index])
    try:
        value = to_python(column.array.slice(index, 1))[0]
        return repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except _NO_VALUE:
        return str(column.array.slice(index, 1))


def frozen(value: Any) -> Any:
    """Return a hashable key that is equal for equal values. NaN equals NaN, and JSON's true does not equal 1."""
    if isinstance(value, bool):
        return bool, value
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - only NaN differs from itself
        return math.nan
    if isinstance(value, (tuple, list)):
        return tuple(frozen(each) for each in value)
    if isinstance(value, np.ndarray):  # a vector
        return tuple(map(frozen, value.tolist()))
    if isinstance(value, dict):
        return frozenset((frozen(key), frozen(each)) for key, each in value.items())
    return value


def capacity_for(needed: int, held: int) -> int:
    """Return the new capacity in slots, given the present one, with a reserve so that slow growth causes few copies."""
    return max(needed, min(2 * held, held + _MORE_MAX))
