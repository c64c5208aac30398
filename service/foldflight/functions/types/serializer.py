"""The typed state codec: the layout of accumulators in Arrow.

A serializer converts many accumulators at once, column by column: `to_arrow` takes a list of n accumulators and returns
an array of n values, and `from_arrow` is the inverse. An accumulator is a scalar (a number, a text, a date...), a list,
a dict, a tuple, or an object whose class annotates its attributes (a plain class or a dataclass). These can be nested.
"""

from __future__ import annotations

import collections
import collections.abc
import copy
import dataclasses
import datetime
import decimal
import itertools
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.types.annotations import annotations_of
from foldflight.functions.types.arrow import is_json
from foldflight.functions.types.exact import EXACT, ExactSum, ExactSums
from foldflight.functions.types.lists import AttributeColumn, Lists, number_format
from foldflight.functions.types.sql import parse_type, sql_name
from foldflight.functions.types.values import (
    CastError,
    cast_results,
    dicts_in,
    exact_types,
    has_nanoseconds,
    lists_in,
    to_python,
)
from foldflight.functions.types.vectors import from_matrix, is_vector, matrix_of
from foldflight.functions.types.views import LIST_KEY, ListView, MapView, PlainMap, ViewPart, normal_key, view_type


class UnspecificAnnotation(Exception):  # noqa: N818 - not a failure: the state falls back to another codec, with this reason
    """The annotation is not specific enough for a typed state."""


class StateSerializer(ABC):
    """The layout of one kind of value.

    Attributes:
        arrow: The Arrow type of the states.
        immutable: Whether values cannot be changed in place, so that methods must return new ones.
    """

    arrow: pa.DataType
    immutable: bool = False

    @abstractmethod
    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """Return n values as an array of n values. Raises CastError for the first value that does not fit."""

    @abstractmethod
    def from_arrow(self, array: pa.Array) -> list[Any]:
        """Return an array of n values as n values."""

    def keeps(self, values: Sequence[Any]) -> bool:  # noqa: ARG002 - as in the classes that know more
        """Return whether n values certainly come back as they are, with the same types, from `to_arrow`."""
        return False

    def with_zones(self) -> StateSerializer:
        """Return the layout in which each `datetime` of an annotation has a zone; the same one if there is none."""
        return self

    def column(self) -> AttributeColumn | None:
        """Return an empty column of such values for vectorised methods, or None if a plain NumPy array holds them."""
        return None


class _Scalar(StateSerializer):
    immutable = True

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self.exact = exact_types(arrow)
        kinds = pa.types
        is_kept = kinds.is_integer(arrow) or kinds.is_boolean(arrow) or kinds.is_string(arrow) or kinds.is_date32(arrow)
        self._is_kept = is_kept or arrow in (pa.float64(), pa.binary(), pa.timestamp("us"))
        self._ticks = _MICROSECONDS.get(arrow.unit, 0) if kinds.is_temporal(arrow) and hasattr(arrow, "unit") else 0

    def keeps(self, values: Sequence[Any]) -> bool:
        if not self._has_kept_types(set(map(type, values))):
            return False
        # Arrow drops `fold`, which tells the second of two equal times of a day on which clocks are set back.
        return not pa.types.is_timestamp(self.arrow) or not any(getattr(value, "fold", 0) for value in values)

    def keeps_types(self, types_: set[type]) -> bool:
        """Return whether values of these types certainly come back as they are."""
        return self._has_kept_types(types_) and not pa.types.is_timestamp(self.arrow)

    def _has_kept_types(self, types_: set[type]) -> bool:
        return self._is_kept and self.exact is not None and types_ <= self.exact

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        if is_json(self.arrow):
            return cast_results(values, self.arrow)
        if self.exact is not None and not set(map(type, values)) <= self.exact:
            values = [self._exact(index, value) for index, value in enumerate(values)]
        if pa.types.is_timestamp(self.arrow) or pa.types.is_time(self.arrow):
            self._check_zones(values)
        if self._ticks:
            self._check_fractions(values)
        if self.arrow in (pa.float16(), pa.float32()):  # Arrow would make large numbers infinite
            return cast_results(values, self.arrow)
        try:
            return pa.array(values, self.arrow)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
        for index, value in enumerate(values):
            try:
                pa.array([value], self.arrow)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                is_beyond = isinstance(error, OverflowError) or _is_beyond(value, self.arrow)
                code = "OVERFLOW" if is_beyond else "RESULT_TYPE"
                raise CastError(index, code, f"{_show(value)} does not fit {self.arrow}") from None
        raise CastError(0, "RESULT_TYPE", f"the values do not fit {self.arrow} together")

    def _check_zones(self, values: Sequence[Any]) -> None:
        # Arrow would drop or invent a zone, and the restored values would not be comparable with new ones.
        has_zone = pa.types.is_timestamp(self.arrow) and self.arrow.tz is not None
        for index, value in enumerate(values):
            if value is not None and (value.tzinfo is not None) != has_zone:
                wrong = "has no zone" if has_zone else "has a zone"
                remedy = "" if has_zone else '; annotate Annotated[datetime, "TIMESTAMPTZ"]'
                raise CastError(index, "RESULT_TYPE", f"{_show(value)} {wrong}, unlike {self.arrow}{remedy}")

    def _check_fractions(self, values: Sequence[Any]) -> None:
        # Arrow would cut off digits finer than the unit.
        for index, value in enumerate(values):
            if value is None:
                continue
            finer = value.microseconds if isinstance(value, datetime.timedelta) else value.microsecond
            if finer % self._ticks:
                wrong = f"{_show(value)} is finer than {self.arrow}, which would lose its fraction"
                remedy = "round it, or annotate a type in microseconds"
                raise CastError(index, "RESULT_TYPE", f"{wrong}; {remedy}")

    def _exact(self, index: int, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        assert self.exact is not None
        if has_nanoseconds(value):
            raise CastError(index, "RESULT_TYPE", f"{_show(value)} has nanoseconds, which {self.arrow} would lose")
        if type(value) in self.exact:
            return value
        self._check_plain(index, value)
        if pa.types.is_floating(self.arrow) and isinstance(value, int):
            try:
                return float(value)
            except OverflowError:
                raise CastError(index, "OVERFLOW", f"{_show(value)} does not fit {self.arrow}") from None
        if pa.types.is_decimal(self.arrow) and isinstance(value, int):
            return decimal.Decimal(value)
        if pa.types.is_date(self.arrow) and isinstance(value, datetime.datetime):
            raise CastError(index, "RESULT_TYPE", f"{_show(value)} has a time, which {self.arrow} would lose")
        if isinstance(value, tuple(self.exact)):  # bool in a field of integers, or a time of pandas
            return int(value) if isinstance(value, int) else value
        raise CastError(index, "RESULT_TYPE", f"{_show(value)} does not fit {self.arrow}")

    def _check_plain(self, index: int, value: Any) -> None:
        """Raise CastError for a value of a class that is derived from one of Python, such as an IntEnum."""
        base = next((each for each in _PLAIN if isinstance(value, each)), None)
        if base is not None and type(value) not in _PLAIN and not type(value).__module__.startswith("pandas."):
            raise CastError(index, "RESULT_TYPE", _other_class(value, base))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return to_python(array)


_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1000}
_PLAIN: Final = (
    *(bool, int, float, str, bytes, decimal.Decimal),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)


def _other_class(value: Any, restored_class: type) -> str:
    """Return the message for a value that would come back as one of another class."""
    return (
        f"{_show(value)} would be restored as {restored_class.__name__}, whose methods are others; convert it to "
        f"{restored_class.__name__}, or annotate {type(value).__name__}"
    )


def _is_of(value: Any, cls: type) -> bool:
    """Return whether the class of a value is the one that is annotated, or a copy of it."""
    own = type(value)
    return own is cls or (own.__module__ == cls.__module__ and own.__qualname__ == cls.__qualname__)


def _is_beyond(value: Any, type_: pa.DataType) -> bool:
    """Return whether a number or duration is out of the range of a type. Digits after the point do not count."""
    if pa.types.is_decimal(type_) and isinstance(value, (int, decimal.Decimal)):
        number = decimal.Decimal(value)
        return number.is_finite() and bool(number) and number.adjusted() >= type_.precision - type_.scale
    if pa.types.is_integer(type_) and isinstance(value, int):
        bits = type_.bit_width - pa.types.is_signed_integer(type_)
        return not (-(1 << bits) if pa.types.is_signed_integer(type_) else 0) <= value < 1 << bits
    if pa.types.is_duration(type_) and isinstance(value, datetime.timedelta):
        return not -(1 << 63) <= value // datetime.timedelta(microseconds=1) < 1 << 63
    return False


class _Datetime(_Scalar):
    """Values that are annotated as `datetime`: without a zone, or all with one if the function's arguments have one."""

    def __init__(self) -> None:
        super().__init__(pa.timestamp("us"))

    def with_zones(self) -> StateSerializer:
        return _Scalar(pa.timestamp("us", tz="UTC"))


class _Exact(StateSerializer):
    """Exact sums. A number is accepted as a sum of this value."""

    arrow = EXACT

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        rounded_values: list[float | None] = []
        digits: list[bytes | None] = []
        for index, value in enumerate(values):
            if value is None:
                rounded_values.append(None)
                digits.append(None)
                continue
            try:
                exact = value if isinstance(value, ExactSum) else ExactSum(value)
            except (TypeError, ValueError):
                raise CastError(index, "RESULT_TYPE", f"{_show(value)} is not an exact sum") from None
            rounded_values.append(exact.value())
            digits.append(exact.digits())
        columns = [pa.array(rounded_values, pa.float64()), pa.array(digits, pa.binary())]
        return pa.StructArray.from_arrays(columns, fields=list(EXACT))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        columns = (to_python(array.field(index)) for index in range(2))
        return [
            None if rounded_value is None or digits is None else ExactSum.of_digits(rounded_value, digits)
            for rounded_value, digits in zip(*columns, strict=True)
        ]

    def column(self) -> AttributeColumn:
        return ExactSums()


class _Vector(StateSerializer):
    """NumPy arrays of a fixed number of floats. The arrays of n states are the rows of one array."""

    def __init__(self, arrow: pa.DataType) -> None:
        self.arrow = arrow
        self._shape = (arrow.list_size,)
        self._dtype = np.dtype(arrow.value_type.to_pandas_dtype())

    def keeps(self, values: Sequence[Any]) -> bool:
        return all(value is None or self._why_not(value) is None for value in values)

    def _why_not(self, value: Any) -> str | None:
        """Return why a state would change a value, or cannot hold it; None if it keeps it."""
        if type(value) is not np.ndarray:
            return f"{_show(value)} is not a NumPy array"
        if value.shape != self._shape:
            return f"an array of the shape {value.shape} is not {sql_name(self.arrow)}, of the shape {self._shape}"
        if value.dtype != self._dtype:
            other = {"float32": "", "float64": ", DOUBLE"}.get(str(value.dtype))
            remedy = f"; annotate VECTOR({self._shape[0]}{other})" if other is not None else ""
            return f"an array of {value.dtype} is not {sql_name(self.arrow)}, of {self._dtype}{remedy}"
        return None

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        missing = np.zeros(len(values), np.bool_)
        matrix = np.zeros((len(values), *self._shape), self._dtype)
        for index, value in enumerate(values):
            if value is None:
                missing[index] = True
                continue
            if (reason := self._why_not(value)) is not None:
                raise CastError(index, "RESULT_TYPE", reason)
            matrix[index] = value
        return from_matrix(matrix, self.arrow, missing)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        vectors: list[Any] = list(matrix_of(array).copy())
        if array.null_count:
            for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
                vectors[index] = None
        return vectors


class _Object(StateSerializer):
    """Objects with attributes, dicts with fixed keys, or tuples, as structs."""

    def __init__(
        self,
        fields: Sequence[tuple[str, StateSerializer]],
        *,
        make: Callable[[tuple[Any, ...]], Any],
        get: Callable[[Any, str, int], Any],
        check: Callable[[Any], str | None],
        immutable: bool,
        set: Callable[[Any, str, int, Any], None] | None = None,  # noqa: A002 - as `get`
    ) -> None:
        self.fields = tuple(fields)
        self.make = make
        self.get = get
        self.set = set
        self.check = check
        self.immutable = immutable
        self.arrow = pa.struct([pa.field(name, serializer.arrow) for name, serializer in fields])

    def with_zones(self) -> StateSerializer:
        zoned_copy = copy.copy(self)
        zoned_copy.fields = tuple((name, serializer.with_zones()) for name, serializer in self.fields)
        zoned_copy.arrow = pa.struct([pa.field(name, serializer.arrow) for name, serializer in zoned_copy.fields])
        return zoned_copy

    def keeps(self, values: Sequence[Any]) -> bool:
        value_class, get = type(self.make((None,) * len(self.fields))), self.get
        # A dict with fixed keys comes back with the keys in their order.
        if value_class is dict or not set(map(type, values)) <= {value_class}:
            return False
        return all(
            serializer.keeps([get(value, name, position) for value in values])
            for position, (name, serializer) in enumerate(self.fields)
        )

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for index, value in enumerate(values):
            if value is not None and (wrong := self.check(value)) is not None:
                raise CastError(index, "RESULT_TYPE", wrong)
        mask = [value is None for value in values]
        get = self.get
        columns = []
        for position, (name, serializer) in enumerate(self.fields):
            column = [None if value is None else get(value, name, position) for value in values]
            try:
                columns.append(serializer.to_arrow(column))
            except CastError as error:
                raise CastError(error.index, error.code, f"{name}: {error}") from None
        return pa.StructArray.from_arrays(
            columns, fields=list(self.arrow), mask=pa.array(mask, pa.bool_()) if any(mask) else None
        )

    def from_arrow(self, array: pa.Array) -> list[Any]:
        make = self.make
        columns = [serializer.from_arrow(array.field(position)) for position, (_, serializer) in enumerate(self.fields)]
        rows = [make(members) for members in zip(*columns, strict=True)] if columns else [make(()) for _ in array]
        if array.null_count:
            for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
                rows[index] = None
        return rows


class Nullable(StateSerializer):
    """An accumulator that may be None, as a struct of one field, because a NULL state means that there is no state."""

    def __init__(self, inner: StateSerializer) -> None:
        self.inner = inner
        self.immutable = inner.immutable
        self.arrow = pa.struct([pa.field("value", inner.arrow)])

    def with_zones(self) -> StateSerializer:
        return Nullable(self.inner.with_zones())

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return pa.StructArray.from_arrays([self.inner.to_arrow(values)], fields=list(self.arrow))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return self.inner.from_arrow(array.field(0))


class _List(StateSerializer):
    def __init__(self, item: StateSerializer, make: type[Any]) -> None:
        self.item = item
        self.make = make
        self.immutable = make in (tuple, frozenset)
        self.arrow = pa.list_(item.arrow)

    def keeps(self, values: Sequence[Any]) -> bool:
        # The order of a set may change.
        if self.make not in (list, tuple) or not set(map(type, values)) <= {self.make}:
            return False
        return self.item.keeps(list(itertools.chain.from_iterable(values)))

    def with_zones(self) -> StateSerializer:
        return _List(self.item.with_zones(), self.make)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for index, value in enumerate(values):
            if type(value) is self.make or value is None:
                continue
            is_derived = isinstance(value, self.make)
            wrong = _other_class(value, self.make) if is_derived else f"{_show(value)} is not a {self.make.__name__}"
            raise CastError(index, "RESULT_TYPE", wrong)
        offsets = _offsets_of(values)
        items = list(itertools.chain.from_iterable(value for value in values if value is not None))
        # Not `cast`, which leaves NULL members of structs too short.
        return pa.ListArray.from_arrays(
            _nulls_marked(offsets, values), _members(self.item, items, offsets), type=self.arrow
        )

    def from_arrow(self, array: pa.Array) -> list[Any]:
        lists = lists_in(array, self.item.from_arrow)
        return lists if self.make is list else [None if each is None else self.make(each) for each in lists]

    def column(self) -> AttributeColumn | None:
        type_ = self.item.arrow
        format_ = number_format(type_)
        if self.make is not list or format_ is None or pa.types.is_decimal(type_):
            return None
        return Lists(type_, np.dtype(format_))


class _Map(StateSerializer):
    def __init__(self, key: StateSerializer, value: StateSerializer) -> None:
        self.key = key
        self.value = value
        self.arrow = pa.map_(key.arrow, value.arrow)

    def keeps(self, values: Sequence[Any]) -> bool:
        if not set(map(type, values)) <= {dict}:
            return False
        keys = list(itertools.chain.from_iterable(values))
        return self.key.keeps(keys) and self.value.keeps([item for value in values for item in value.values()])

    def with_zones(self) -> StateSerializer:
        return _Map(self.key.with_zones(), self.value.with_zones())

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for index, value in enumerate(values):
            if value is None:
                continue
            if not isinstance(value, dict) or isinstance(value, PlainMap):
                raise CastError(index, "RESULT_TYPE", f"{_show(value)} is not a dict")
            if hasattr(value, "__missing__"):
                wrong = f"{_show(value)} would be restored as a plain dict, which does not create missing entries"
                remedy = (
                    "make a plain dict and use dict.get or dict.setdefault, or annotate its class, as in "
                    "defaultdict[str, int], whose states are pickled"
                )
                raise CastError(index, "RESULT_TYPE", f"{wrong}; {remedy}")
            if type(value) is not dict:
                raise CastError(index, "RESULT_TYPE", _other_class(value, dict))
            if None in value:
                wrong = f"{_show(value)} has the key None, and keys of maps cannot be NULL"
                raise CastError(index, "RESULT_TYPE", f"{wrong}; skip NULLs (skip_nulls=True), or use another key")
        offsets = _offsets_of(values)
        present = [value for value in values if value is not None]
        keys = list(itertools.chain.from_iterable(value.keys() for value in present))
        items = list(itertools.chain.from_iterable(value.values() for value in present))
        columns = _members(self.key, keys, offsets), _members(self.value, items, offsets)
        return pa.MapArray.from_arrays(_nulls_marked(offsets, values), *columns, type=self.arrow)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return dicts_in(array, self.key.from_arrow, self.value.from_arrow)


class ViewSerializer(StateSerializer):
    """The layout of views in states.

    Args:
        key: The layout of the keys; None for a list, whose keys are the numbers of its items.
        value: The layout of the values or items.
    """

    def __init__(self, key: StateSerializer | None, value: StateSerializer) -> None:
        self.key = _Scalar(LIST_KEY) if key is None else key
        self.value = value
        self.is_list = key is None
        self.arrow = view_type(self.key.arrow, value.arrow)
        self._has_normal_keys = not _has_floats(self.key)
        self._has_plain_keys = _is_plain_key(self.key)

    def with_zones(self) -> StateSerializer:
        return ViewSerializer(None if self.is_list else self.key.with_zones(), self.value.with_zones())

    def keeps(self, values: Sequence[Any]) -> bool:
        if set(map(type, values)) == {PlainMap}:  # most are
            entries = itertools.chain.from_iterable(map(dict.values, values))
            return _keeps(self.key, itertools.chain.from_iterable(values)) and _keeps(self.value, entries)
        keys: list[Any] = []
        items: list[Any] = []
        for value in values:
            if isinstance(value, ViewPart):
                part = value
            elif isinstance(value, ListView if self.is_list else MapView):
                part = value.part()
            else:
                return False
            keys += part.keys
            items += part.values if all(part.present) else itertools.compress(part.values, part.present)
        return self.key.keeps(keys) and self.value.keeps(items)

    @property
    def key_members(self) -> int:
        """The number of members of a key: 1, or more for a tuple."""
        return len(self.key.fields) if isinstance(self.key, _Object) else 1

    def in_memory(self, view: Any) -> MapView[Any, Any] | ListView[Any] | None:
        """Return a view with the entries of a view, dict or list; None for something else."""
        if self.is_list:
            if isinstance(view, list):
                return ListView(view)
            return view if isinstance(view, ListView) else None
        if type(view) is MapView:
            return PlainMap(view._entries) if self._has_plain_keys else view  # noqa: SLF001 - it is of this package
        if isinstance(view, MapView):
            return view
        if not isinstance(view, dict):
            return None
        return PlainMap(view) if self._has_plain_keys else MapView(view)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        kinds = set(map(type, values))
        if kinds == {PlainMap}:
            items = list(itertools.chain.from_iterable(map(dict.values, values)))
            return self._wholes(list(itertools.chain.from_iterable(values)), items, map(dict.__len__, values))
        if self.is_list and kinds == {ListView}:
            item_lists = [value._items for value in values]  # noqa: SLF001 - it is of this package
            items = list(itertools.chain.from_iterable(item_lists))
            return self._wholes(None, items, map(len, item_lists))
        return self.parts_to_arrow([self._part(index, value) for index, value in enumerate(values)])

    def _part(self, index: int, value: Any) -> ViewPart:
        if isinstance(value, (MapView, ListView)) and isinstance(value, ListView) == self.is_list:
            return value.part()
        view = self.in_memory(value)
        if view is not None:
            return view.part()
        kind = "ListView" if self.is_list else "MapView"
        raise CastError(index, "RESULT_TYPE", f"{_show(value)} is not a {kind}; use clear() to empty it")

    def _wholes(self, keys: list[Any] | None, items: list[Any], counts: Iterable[int]) -> pa.Array:
        """Return n complete views, which have so many entries each. Without keys they are lists."""
        offsets = np.cumsum([0, *counts])
        if keys is None:
            numbers = np.arange(len(items)) - np.repeat(offsets[:-1], np.diff(offsets))
            key_column = pa.array(numbers, self.key.arrow)
        else:
            key_column = self._key_column(keys, offsets)
        value_column = self._value_column(items, offsets, numbers if keys is None else keys)
        yes, no = (pa.repeat(pa.scalar(value), len(offsets) - 1) for value in (True, False))
        present = pa.repeat(pa.scalar(value=True), len(items))
        return self._array([yes, no], offsets, [key_column, value_column, present])

    def parts_to_arrow(self, parts: Sequence[ViewPart | None]) -> pa.Array:
        """Return n parts of views as an array; None is NULL. Raises CastError for what does not fit."""
        keys: list[Any] = []
        items: list[Any] = []
        present: list[bool] = []
        ends = [0]
        for part in parts:
            if part is not None:
                keys += part.keys
                items += part.values
                present += part.present
            ends.append(len(keys))
        offsets = np.array(ends)
        columns = [self._key_column(keys, offsets), self._value_column(items, offsets, keys)]
        columns.append(pa.array(present, pa.bool_()))
        flags = [
            pa.array([None if part is None else part.complete for part in parts], pa.bool_()),
            pa.array([None if part is None else part.cleared for part in parts], pa.bool_()),
        ]
        mask = pa.array([part is None for part in parts], pa.bool_()) if None in parts else None
        return self._array(flags, offsets, columns, mask)

    def _array(
        self,
        flags: list[pa.Array],
        offsets: npt.NDArray[np.int64],
        columns: list[pa.Array],
        mask: pa.BooleanArray | None = None,
    ) -> pa.Array:
        """Return n views of two flags each, with the entries that these three columns have."""
        type_ = self.arrow.field("entries").type
        entries = pa.StructArray.from_arrays(columns, fields=list(type_.value_type))
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=type_)
        return pa.StructArray.from_arrays([*flags, lists], fields=list(self.arrow), mask=mask)

    def _key_column(self, keys: list[Any], offsets: npt.NDArray[np.int64]) -> pa.Array:
        column = _members(self.key, keys, offsets, lambda _: "the key ")
        if not self._has_normal_keys:
            self._check_exact(column, keys, offsets)
        return column

    def _value_column(
        self, items: list[Any], offsets: npt.NDArray[np.int64], keys: Sequence[Any] | npt.NDArray[np.int64]
    ) -> pa.Array:
        def what(index: int) -> str:
            return f"the item {keys[index]}: " if self.is_list else f"the value of the key {_brief(keys[index])}: "

        return _members(self.value, items, offsets, what)

    def _check_exact(self, column: pa.Array, keys: list[Any], offsets: npt.NDArray[np.int64]) -> None:
        """Raise CastError for an integer that a float cannot represent: it would become the key of another entry."""
        stored_keys = list(map(normal_key, self.key.from_arrow(column)))
        if stored_keys != keys:
            # NaN is one object among normal keys, and not equal to itself.
            pairs = enumerate(zip(stored_keys, keys, strict=True))
            wrong = next(index for index, (value, key) in pairs if value is not key and value != key)
            raise CastError(
                _owner(offsets, wrong), "RESULT_TYPE", f"the key {_show(keys[wrong])} is not exact in {self.key.arrow}"
            )

    def from_arrow(self, array: pa.Array) -> list[Any]:
        """Return n views: in memory if they are complete, otherwise `ViewPart`s; None for NULL."""
        complete, cleared_flags, lists = (array.field(index) for index in range(3))
        is_whole = complete.true_count == len(array) and not cleared_flags.null_count and not array.null_count
        keys, values, present, offsets = self._entries_of(lists) if is_whole else _NO_ENTRIES
        if not is_whole or present.true_count < len(keys):
            return [
                part if part is None or not part.complete else self.make_view(part) for part in self.parts_of(array)
            ]
        indexes = itertools.pairwise(offsets)
        if self.is_list:
            return [ListView.of(values[start:end]) for start, end in indexes]
        if self._has_plain_keys:
            return [PlainMap(zip(keys[start:end], values[start:end], strict=True)) for start, end in indexes]
        return [MapView.of(dict(zip(keys[start:end], values[start:end], strict=True))) for start, end in indexes]

    def make_view(self, part: ViewPart) -> MapView[Any, Any] | ListView[Any]:
        """Return a view with the entries of a complete part."""
        if False in part.present:
            entries = list(zip(part.keys, part.values, part.present, strict=True))
            keys = [key for key, _, present in entries if present]
            values = [value for _, value, present in entries if present]
        else:
            keys, values = part.keys, part.values
        if self.is_list:
            return ListView.of(values)
        pairs = zip(keys, values, strict=True)
        return PlainMap(pairs) if self._has_plain_keys else MapView.of(dict(pairs))

    def parts_of(self, array: pa.Array) -> list[ViewPart | None]:
        """Return n views as parts; None for NULL. Raises ValueError for values that no fold writes."""
        complete, cleared_flags, lists = (array.field(index) for index in range(3))
        keys, values, flags, offsets = self._entries_of(lists)
        present = to_python(flags)
        columns = zip(
            to_python(array.is_valid()),
            to_python(complete),
            to_python(cleared_flags),
            offsets,
            offsets[1:],
            strict=False,
        )
        return [
            _check_part(ViewPart(is_complete, is_cleared, keys[start:end], values[start:end], present[start:end]))
            if is_valid
            else None
            for is_valid, is_complete, is_cleared, start, end in columns
        ]

    def _entries_of(self, lists: pa.ListArray) -> _EntriesOf:
        """Return the entries of n views: keys, values, and `present`; and n + 1 positions among them."""
        if not len(lists):
            return _NO_ENTRIES
        offsets = lists.offsets.to_numpy()
        first = int(offsets[0])
        # `flatten` passes on the NULL of an entry to its members.
        columns = lists.values.slice(first, int(offsets[-1]) - first).flatten()
        keys = self.key.from_arrow(columns[0])
        if not self._has_normal_keys:
            keys = list(map(normal_key, keys))
        return keys, self.value.from_arrow(columns[1]), columns[2], (offsets - first).tolist()


def _keeps(serializer: StateSerializer, values: Iterable[Any]) -> bool:
    """Return what `keeps` returns, without a list of many scalars, of which the types are enough."""
    if isinstance(serializer, _Scalar):
        return serializer.keeps_types(set(map(type, values)))
    return serializer.keeps(list(values))


_EntriesOf: TypeAlias = tuple[list[Any], list[Any], pa.BooleanArray, list[int]]
_NO_ENTRIES: Final[_EntriesOf] = ([], [], pa.nulls(0, pa.bool_()), [0])  # pa.array imports pandas


def _check_part(part: ViewPart) -> ViewPart:
    if part.complete is None or part.cleared is None or None in part.present:
        raise ValueError("complete, cleared or present of a view is NULL")
    return part


def _has_floats(key: StateSerializer) -> bool:
    """Return whether keys may have NaN or -0.0."""
    if isinstance(key, _Object):
        return any(_has_floats(each) for _, each in key.fields)
    return bool(pa.types.is_floating(key.arrow))


def _is_plain_key(key: StateSerializer) -> bool:
    """Return whether equal keys are equal to Python, and have the same hash, without a normal form (`PlainMap`)."""
    if isinstance(key, _Object):
        return all(_is_plain_key(each) for _, each in key.fields)
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary)
    return any(is_kind(key.arrow) for is_kind in kinds)


def _offsets_of(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the n + 1 offsets of n collections, or None, in the list of all their members."""
    return np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int64)


def _nulls_marked(offsets: npt.NDArray[np.int64], values: Sequence[Any]) -> pa.Array:
    """Return the offsets of n collections as Arrow has them: NULL for None."""
    is_null = np.array([*(value is None for value in values), False])
    return pa.array(offsets, pa.int32(), mask=is_null if is_null.any() else None)


def _members(
    serializer: StateSerializer,
    flat: list[Any],
    offsets: npt.NDArray[np.int64],
    what: Callable[[int], str] = lambda _: "",
) -> pa.Array:
    """Convert the members of n collections. An error has the index of the collection, not of the member.

    Args:
        serializer: The layout of a member.
        flat: The members of all collections.
        offsets: Where the members of each collection begin, and the end of the last ones.
        what: Names a member, by its index, at the start of an error about it.
    """
    try:
        return serializer.to_arrow(flat)
    except CastError as error:
        raise CastError(_owner(offsets, error.index), error.code, f"{what(error.index)}{error}") from None


def _owner(offsets: npt.NDArray[np.int64], index: int) -> int:
    """Return the index of the collection whose member is at this place of all members."""
    return int(np.searchsorted(offsets, index, "right")) - 1


def _show(value: Any) -> str:
    return f"{_brief(value)} ({type(value).__name__})"


def _brief(value: Any) -> str:
    return repr(value)[:200]


_SCALARS: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    decimal.Decimal: pa.decimal128(38, 18),
    datetime.date: pa.date32(),
    datetime.datetime: pa.timestamp("us"),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
}


def annotated_scalars() -> dict[Any, pa.DataType]:
    """Return the types of plain annotations."""
    return dict(_SCALARS)


def members_of(serializer: StateSerializer) -> Sequence[tuple[str, StateSerializer]] | None:
    """Return the attributes of a serializer by name, in the order of its struct, or None if it has no attributes."""
    if isinstance(serializer, Nullable):
        return [("value", serializer.inner)]
    return serializer.fields if isinstance(serializer, _Object) else None


def views_in(serializer: StateSerializer | None) -> dict[str, ViewSerializer]:
    """Return the views among the attributes of accumulators, by name."""
    fields = serializer.fields if isinstance(serializer, _Object) else ()
    return {name: each for name, each in fields if isinstance(each, ViewSerializer)}


class Attributes:
    """Reads and sets attributes of accumulators by name.

    Args:
        serializer: The serializer of the accumulators. It has views, so the attributes can be set (`check_views`).
    """

    def __init__(self, serializer: StateSerializer | None) -> None:
        assert isinstance(serializer, _Object)
        assert serializer.set is not None
        self._indexes = {name: index for index, (name, _) in enumerate(serializer.fields)}
        self._get, self._set = serializer.get, serializer.set

    def get(self, accumulator: Any, name: str) -> Any:
        """Return an attribute."""
        return self._get(accumulator, name, self._indexes[name])

    def set(self, accumulator: Any, name: str, value: Any) -> None:
        """Set an attribute, even if the class of the accumulator does not let methods do it."""
        self._set(accumulator, name, self._indexes[name], value)


def _view(origin: type, arguments: tuple[Any, ...], owner: type | None) -> ViewSerializer:
    if origin not in (MapView, ListView):
        raise RejectedError(
            "SIGNATURE",
            f"{origin.__name__} is derived from a view, and queries would call the methods of the view only; annotate "
            "MapView[K, V] or ListView[T], and define the methods in the function's class",
        )
    if origin is ListView:
        return ViewSerializer(None, _without_views(serializer_of_annotation(arguments[0], owner)))
    key = serializer_of_annotation(arguments[0], owner)
    if not _is_key(key):
        raise RejectedError(
            "SIGNATURE",
            f"the keys of a MapView cannot be {arguments[0]}; use numbers, texts, bytes, dates, times, or tuples of "
            "these",
        )
    return ViewSerializer(key, _without_views(serializer_of_annotation(arguments[1], owner)))


def _is_key(serializer: StateSerializer) -> bool:
    if isinstance(serializer, _Object):
        return serializer.immutable and all(_is_key(each) for _, each in serializer.fields)
    inexact = (pa.types.is_float16, pa.types.is_float32)
    is_plain = isinstance(serializer, _Scalar) and not isinstance(serializer.arrow, pa.BaseExtensionType)
    return is_plain and not any(is_inexact(serializer.arrow) for is_inexact in inexact)


def field_names(serializer: StateSerializer) -> set[str]:
    """Return the names of the attributes of accumulators, and of the objects in them."""
    match serializer:
        case _Object():
            names = {name for name, _ in serializer.fields}
            return names.union(*(field_names(each) for _, each in serializer.fields))
        case _List():
            return field_names(serializer.item)
        case _Map():
            return field_names(serializer.key) | field_names(serializer.value)
        case Nullable():
            return field_names(serializer.inner)
    return set()


def has_plain_parts(serializer: StateSerializer, *, is_part: bool = False) -> bool:
    """Return whether the parts of accumulators are of Python's own types, and no objects that an author defines."""
    match serializer:
        case _Object():
            if is_part and serializer.set is not None:
                return False
            return all(has_plain_parts(each, is_part=True) for _, each in serializer.fields)
        case _List():
            return has_plain_parts(serializer.item, is_part=True)
        case _Map():
            return all(has_plain_parts(each, is_part=True) for each in (serializer.key, serializer.value))
        case Nullable():
            return has_plain_parts(serializer.inner, is_part=is_part)
    return isinstance(serializer, _Scalar)


def _without_views(serializer: StateSerializer) -> StateSerializer:
    """Return a serializer that has no views. Raises RejectedError SIGNATURE if it has: views are attributes only."""
    inner: list[StateSerializer] = []
    match serializer:
        case ViewSerializer():
            raise RejectedError(
                "SIGNATURE",
                "a view must be an attribute of the accumulator, and neither the accumulator itself nor a part of "
                "another attribute or view; annotate an attribute of the accumulator's class, or use tuples as keys",
            )
        case _Object():
            inner = [each for _, each in serializer.fields]
        case _List():
            inner = [serializer.item]
        case _Map():
            inner = [serializer.key, serializer.value]
        case Nullable():
            inner = [serializer.inner]
        case _:
            pass
    for each in inner:
        _without_views(each)
    return serializer


def check_views(serializer: StateSerializer) -> None:
    """Raise RejectedError SIGNATURE if a view is not an attribute of the accumulator itself."""
    if isinstance(serializer, Nullable) and views_in(serializer.inner):
        raise RejectedError(
            "SIGNATURE", "an accumulator with views cannot be None; return a new one from `create_accumulator`"
        )
    if isinstance(serializer, _Object) and serializer.set is not None:
        for _, each in serializer.fields:
            if not isinstance(each, ViewSerializer):
                _without_views(each)
    else:
        _without_views(serializer)


def may_be_none(annotation: Any) -> bool:
    """Return whether an annotation is `X | None`."""
    origin = typing.get_origin(annotation)
    return origin in (typing.Union, types.UnionType) and type(None) in typing.get_args(annotation)


def serializer_of_annotation(annotation: Any, owner: type | None = None) -> StateSerializer:
    """Return the serializer that a Python annotation describes.

    `Annotated[int, "INT"]` (or an Arrow type instead of the text) overrides the type of a scalar.

    Args:
        annotation: The annotation, as an object.
        owner: The author's class in which it is written. Annotations of classes may refer to it by name.

    Raises:
        UnspecificAnnotation: The annotation is not specific enough (a bare `list`, `Any`, a class without annotated
            attributes).
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        declared_type = next((a for a in arguments[1:] if isinstance(a, (str, pa.DataType))), None)
        return (
            serializer_of_annotation(arguments[0], owner)
            if declared_type is None
            else serializer_of_type(parse_type(declared_type))
        )
    if origin in (typing.Union, types.UnionType):
        members = [a for a in arguments if a is not type(None)]
        if len(members) == 1 and len(arguments) == 2:
            serializer = serializer_of_annotation(members[0], owner)
            if isinstance(serializer, ViewSerializer):
                raise RejectedError("SIGNATURE", "a view cannot be None; annotate it without None, and `clear` it")
            return serializer
        raise UnspecificAnnotation(f"a union of several types ({annotation}) has no single Arrow type")
    if annotation is ExactSum:
        return _Exact()
    if annotation is datetime.datetime:
        return _Datetime()
    if annotation is np.ndarray:
        raise UnspecificAnnotation("an array does not declare its items; annotate Vector[n], as in Vector[384]")
    if annotation in _SCALARS:
        return _Scalar(_SCALARS[annotation])
    if origin in (list, set, frozenset, collections.abc.Sequence, collections.abc.MutableSequence):
        return _List(
            serializer_of_annotation(arguments[0], owner), origin if origin in (list, set, frozenset) else list
        )
    if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
        return _Map(serializer_of_annotation(arguments[0], owner), serializer_of_annotation(arguments[1], owner))
    if isinstance(origin, type) and issubclass(origin, (MapView, ListView)):
        return _view(origin, arguments, owner)
    if origin is tuple:
        if not arguments:
            raise UnspecificAnnotation("an empty tuple has no members")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return _List(serializer_of_annotation(arguments[0], owner), tuple)
        return _tuple([(f"f{index}", serializer_of_annotation(a, owner)) for index, a in enumerate(arguments)])
    if (origin or annotation) in _UNTYPED_CONTAINERS:
        raise UnspecificAnnotation(_of_container(origin or annotation, arguments))
    if isinstance(annotation, type) and annotation is not Any:
        try:
            return _class(annotation, owner)
        except RecursionError:
            raise UnspecificAnnotation(f"{annotation.__name__} contains itself") from None
    raise UnspecificAnnotation(f"{annotation!r} is not specific enough")


# Streams have these in pickled states, and could not go on with typed ones.
_UNTYPED_CONTAINERS: Final = (collections.Counter, collections.defaultdict, collections.OrderedDict, collections.deque)


def _of_container(cls: type, arguments: tuple[Any, ...]) -> str:
    """Return why a container of the module `collections` has no typed states, and what has them."""
    if cls is collections.deque:
        names, remedy = ["float"], ""
    else:
        names, remedy = ["str", "int"], ", and use .get, as in counts[key] = counts.get(key, 0) + 1"
    for place, each in enumerate(arguments):
        names[place] = each.__name__ if type(each) is type else str(each)
    plain = f"{'list' if cls is collections.deque else 'dict'}[{', '.join(names)}]"
    return f"a {cls.__name__} has no typed states; annotate {plain}{remedy}"


def _tuple(fields: Sequence[tuple[str, StateSerializer]], cls: type = tuple) -> StateSerializer:
    def check(value: Any) -> str | None:
        if not isinstance(value, tuple) or len(value) != len(fields):
            return f"{_show(value)} is not a tuple of {len(fields)} members"
        return None if type(value) is tuple or _is_of(value, cls) else _other_class(value, cls)

    return _Object(
        fields,
        make=lambda members: members,
        get=lambda value, _, index: value[index],
        check=check,
        immutable=True,
    )


def _class(cls: type, owner: type | None) -> StateSerializer:
    if issubclass(cls, (MapView, ListView)):
        wrong = f"{cls.__name__} does not declare the types of its entries"
        raise RejectedError("SIGNATURE", f"{wrong}; annotate MapView[K, V] or ListView[T]")
    if cls.__module__ == "builtins" or (issubclass(cls, (list, dict, tuple, set)) and not hasattr(cls, "_fields")):
        raise UnspecificAnnotation(f"{cls.__name__} does not declare its contents")
    try:
        hints = annotations_of(cls, owner)
    except NameError as error:
        raise UnspecificAnnotation(
            f"an annotation of {cls.__name__} cannot be resolved: {error}; define it above the class, or import it"
        ) from None
    hints = {name: hint for name, hint in hints.items() if typing.ClassVar not in (hint, typing.get_origin(hint))}
    if not hints:
        raise UnspecificAnnotation(f"{cls.__name__} annotates no attribute")
    if hasattr(cls, "_fields"):  # a NamedTuple
        fields = [(name, _attribute(cls, name, hints[name], owner)) for name in cls._fields]
        tuple_serializer = _tuple(fields, cls)
        assert isinstance(tuple_serializer, _Object)
        tuple_serializer.make = cls._make  # type: ignore[attr-defined]
        return tuple_serializer
    is_frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return _Object(
        [(name, _attribute(cls, name, hint, owner)) for name, hint in hints.items()],
        make=_maker(cls, tuple(hints)),
        get=lambda value, name, _: getattr(value, name),
        check=_attribute_check(cls, tuple(hints)),
        immutable=is_frozen,
        set=lambda value, name, _, member: object.__setattr__(value, name, member),
    )


def _attribute(cls: type, name: str, hint: Any, owner: type | None) -> StateSerializer:
    """Return the serializer of an attribute. An error names the class and the attribute."""
    try:
        return serializer_of_annotation(hint, owner)
    except RejectedError as error:
        raise RejectedError(error.code, f"{cls.__name__}.{name}: {error.message}") from None


def _maker(cls: Any, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    # Like unpickling, this does not call __init__: the attributes are the complete state.
    new: Callable[[Any], Any] = cls.__new__
    put = object.__setattr__

    def make(members: tuple[Any, ...]) -> Any:
        instance = new(cls)
        for name, member in zip(names, members, strict=True):
            put(instance, name, member)
        return instance

    return make


_NOTHING: Final[dict[str, Any]] = {}


def _slots(cls: type) -> frozenset[str]:
    slot_lists = [vars(base).get("__slots__", ()) for base in cls.__mro__]
    names = [name for each in slot_lists for name in ((each,) if isinstance(each, str) else each)]
    return frozenset(names) - {"__dict__", "__weakref__"}


def _attribute_check(cls: type, names: tuple[str, ...]) -> Callable[[Any], str | None]:
    expected = frozenset(names)
    slots = _slots(cls) - expected

    def check(value: Any) -> str | None:
        if isinstance(value, cls) and not _is_of(value, cls):
            return _other_class(value, cls)
        attributes = getattr(value, "__dict__", _NOTHING)
        if slots or attributes.keys() != expected:
            extra = sorted({*attributes, *(name for name in slots if hasattr(value, name))} - expected)
            if extra:
                return (
                    f"the accumulator has {', '.join(extra)}, which {cls.__name__} does not annotate "
                    "and its state would lose; annotate it, or define serialize and deserialize"
                )
        missing = next((name for name in names if not hasattr(value, name)), None)
        return None if missing is None else f"{_show(value)} has no {missing}, which {cls.__name__} annotates"

    return check


def list_of_tuples(fields: Sequence[tuple[str, pa.DataType]]) -> StateSerializer:
    """Return the serializer of lists of tuples whose members have these names and types."""
    return _List(_tuple([(name, serializer_of_type(type_)) for name, type_ in fields]), list)


def list_of(item: StateSerializer) -> StateSerializer:
    """Return the serializer of lists of such items."""
    return _List(item, list)


def map_of(key: StateSerializer, value: StateSerializer) -> StateSerializer:
    """Return the serializer of dicts of such keys and values."""
    return _Map(key, value)


def record_of(
    fields: Sequence[tuple[str, StateSerializer]], make: Callable[[tuple[Any, ...]], Any], *, immutable: bool
) -> StateSerializer:
    """Return the serializer of sequences with one member for each field (lists, tuples, rows of other systems).

    Args:
        fields: Names and serializers of the members.
        make: Called with the members, in order; it returns the restored sequence.
        immutable: Whether sequences cannot be changed in place.
    """

    def check(value: Any) -> str | None:
        if hasattr(value, "__getitem__") and not isinstance(value, (str, bytes, dict)) and len(value) == len(fields):
            return None
        return f"{_show(value)} does not have {len(fields)} members: {', '.join(name for name, _ in fields)}"

    def put(value: Any, _: str, index: int, member: Any) -> None:
        value[index] = member

    return _Object(
        fields,
        make=make,
        get=lambda value, _, index: value[index],
        check=check,
        immutable=immutable,
        set=None if immutable else put,
    )


def serializer_of_type(type_: pa.DataType, cls: type | None = None) -> StateSerializer:
    """Return the serializer of values of an Arrow type. Structs are objects of `cls`, or dicts if it is None."""
    kinds = pa.types
    if type_ == EXACT:
        return _Exact()
    if kinds.is_struct(type_):
        fields = [(field.name, serializer_of_type(field.type)) for field in type_]
        names = tuple(name for name, _ in fields)
        if cls is not None:
            return _Object(
                fields,
                make=_maker(cls, names),
                get=lambda value, name, _: getattr(value, name),
                check=_attribute_check(cls, names),
                immutable=False,
            )

        def check(value: Any) -> str | None:
            if isinstance(value, dict) and value.keys() == set(names):
                return None
            return f"{_show(value)} is not a dict with the keys {', '.join(names)}"

        return _Object(
            fields,
            make=lambda members: dict(zip(names, members, strict=True)),
            get=lambda value, name, _: value[name],
            check=check,
            immutable=False,
        )
    if is_vector(type_):
        return _Vector(type_)
    if kinds.is_list(type_):
        return _List(serializer_of_type(type_.value_type), list)
    if kinds.is_map(type_):
        return _Map(serializer_of_type(type_.key_type), serializer_of_type(type_.item_type))
    if isinstance(type_, pa.BaseExtensionType) and not is_json(type_):
        raise RejectedError("SIGNATURE", f"{type_} cannot be part of a state; use its storage type")
    return _Scalar(type_)
