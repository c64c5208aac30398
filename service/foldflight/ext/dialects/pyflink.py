"""PyFlink's aggregate functions, and the names that they refer to, where PyFlink is not installed.

PyFlink cannot be installed beside foldflight, because it needs an older pyarrow. A class written for it therefore
imports `AggregateFunction`, `Row`, `ListView`, `MapView` and `DataTypes`; nothing else in it changes. The
views keep their items in the accumulator, as PyFlink's do in a batch.

Authors import these from `foldflight.functions.flink`. Pickled states contain the names `Row`, `ListView` and `MapView`
of that module, so the classes keep it as theirs.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.functions.author.adapters import Adapter, Method, in_place
from foldflight.functions.author.context import Counter, Distribution, FunctionContext, Meter
from foldflight.functions.types.serializer import StateSerializer, list_of, map_of, record_of, serializer_of_type
from foldflight.functions.types.sql import parse_type

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class AggregateFunction(ABC, Generic[T, V]):
    """The base class of PyFlink's aggregate functions.

    >>> from foldflight import connect, udaf
    >>> from foldflight.functions.flink import AggregateFunction
    >>> from foldflight.testing import run_epochs
    >>> @udaf
    ... class Total(AggregateFunction):
    ...     def create_accumulator(self) -> list[int]:
    ...         return [0]
    ...     def accumulate(self, accumulator: list[int], value: int) -> None:
    ...         accumulator[0] += value
    ...     def get_value(self, accumulator: list[int]) -> int:
    ...         return accumulator[0]
    >>> (epoch,) = run_epochs({"total": connect(Total)("v")}, [[{"v": 3}, {"v": 4}]])
    >>> epoch.changelog
    [('+I', {'total': 7})]
    """

    def open(self, function_context: Any) -> None:
        """Prepare an instance. It does nothing here."""

    def close(self) -> None:
        """Release what `open` acquired. It does nothing here."""

    def is_deterministic(self) -> bool:
        """Return whether the same rows always give the same result."""
        return True


class Row:
    """A row of PyFlink: a sequence of values that can be changed, optionally with names.

    `Row(1, 2)` has values only; `Row(a=1, b=2)` has names, and `Row("a", "b")(1, 2)` is the same row.

    >>> from foldflight.functions.flink import Row
    >>> row = Row(word="be", count=2)
    >>> row.count, row[0], list(row)
    (2, 'be', ['be', 2])
    """

    __module__ = "foldflight.functions.flink"
    __slots__ = ("_fields", "_values")

    def __init__(self, *values: Any, **keywords: Any) -> None:
        if values and keywords:
            raise ValueError("a Row has values or named values, not both")
        object.__setattr__(self, "_fields", list(keywords) if keywords else None)
        object.__setattr__(self, "_values", list(keywords.values()) if keywords else list(values))

    @classmethod
    def of(cls, fields: Sequence[str] | None, values: Iterable[Any]) -> Row:
        """Return a row of these values, with these names."""
        row = cls(*values)
        object.__setattr__(row, "_fields", None if fields is None else list(fields))
        return row

    def as_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        if self._fields is None:
            raise TypeError("a Row without names has no dict")
        return dict(zip(self._fields, self._values, strict=True))

    def set_field_names(self, names: Sequence[str]) -> None:
        """Name the values."""
        object.__setattr__(self, "_fields", list(names))

    def _index(self, name: str) -> int:
        return (self._fields or []).index(name)

    def __call__(self, *values: Any) -> Row:
        return Row.of(self._values, values)

    def __getitem__(self, item: int | slice | str) -> Any:
        return self._values[self._index(item) if isinstance(item, str) else item]

    def __setitem__(self, item: int | slice | str, value: Any) -> None:
        self._values[self._index(item) if isinstance(item, str) else item] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in (self._fields or ()):
            raise AttributeError(name)
        return self._values[self._index(name)]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"set row[{name!r}], not row.{name}")

    def __contains__(self, item: Any) -> bool:
        return item in (self._values if self._fields is None else self._fields)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Row) and (self._fields, self._values) == (other._fields, other._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values))

    def __reduce__(self) -> Any:
        return Row.of, (self._fields, tuple(self._values))

    def __repr__(self) -> str:
        if self._fields is None:
            return f"<Row({', '.join(map(repr, self._values))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"


class ListView(Generic[T]):
    """A list in an accumulator, with the methods of PyFlink's.

    >>> from foldflight.functions.flink import ListView
    >>> seen = ListView()
    >>> seen.add("a")
    >>> list(seen.get())
    ['a']
    """

    __module__ = "foldflight.functions.flink"

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._list = list(items)

    def get(self) -> Iterable[T]:
        """Return the items."""
        return self._list

    def add(self, value: T) -> None:
        """Add an item."""
        self._list.append(value)

    def add_all(self, values: Iterable[T]) -> None:
        """Add all items."""
        self._list.extend(values)

    def clear(self) -> None:
        """Remove all items."""
        self._list = []

    def __iter__(self) -> Iterator[T]:
        return iter(self._list)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListView) and self._list == other._list

    __hash__ = None  # type: ignore[assignment]  # it changes


class MapView(Generic[K, V]):
    """A dict in an accumulator, with the methods of PyFlink's.

    A key without a value is None for `get` and `[]`, and nothing to `remove` and `del`, as in the views that PyFlink
    keeps in its state. (PyFlink's plain view, outside a job, raises KeyError.)

    >>> from foldflight.functions.flink import MapView
    >>> counts = MapView()
    >>> counts.put("a", 1)
    >>> counts.get("a"), counts.get("b")
    (1, None)
    """

    __module__ = "foldflight.functions.flink"

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._dict = dict(items)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        return self._dict.get(key)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self._dict[key] = value

    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set the values of all keys."""
        self._dict.update(dict_value)

    def remove(self, key: K) -> None:
        """Remove a key, if there is one."""
        self._dict.pop(key, None)

    def contains(self, key: K) -> bool:
        """Return whether there is a value for the key."""
        return key in self._dict

    def items(self) -> Iterable[tuple[K, V]]:
        """Return the keys with their values."""
        return self._dict.items()

    def keys(self) -> Iterable[K]:
        """Return the keys."""
        return self._dict.keys()

    def values(self) -> Iterable[V]:
        """Return the values."""
        return self._dict.values()

    def is_empty(self) -> bool:
        """Return whether there is no key."""
        return not self._dict

    def clear(self) -> None:
        """Remove all keys."""
        self._dict.clear()

    __getitem__ = get
    __setitem__ = put
    __delitem__ = remove

    def __contains__(self, key: object) -> bool:
        return key in self._dict

    def __iter__(self) -> Iterator[K]:
        return iter(self._dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MapView) and self._dict == other._dict

    __hash__ = None  # type: ignore[assignment]  # it changes


@dataclass(frozen=True)
class RowType:
    """The type of a `Row`."""

    fields: tuple[tuple[str, FlinkType], ...]


@dataclass(frozen=True)
class ListViewType:
    """The type of a `ListView`."""

    item: FlinkType


@dataclass(frozen=True)
class MapViewType:
    """The type of a `MapView`."""

    key: FlinkType
    value: FlinkType


FlinkType: TypeAlias = pa.DataType | RowType | ListViewType | MapViewType
_FLINK_TYPES: Final = (RowType, ListViewType, MapViewType)


def _always(type_: pa.DataType) -> Callable[..., pa.DataType]:
    """Return the constructor of a type whose parameters (its length, precision or nullability) have no effect here."""
    return lambda *_, **__: type_


class DataTypes:
    """PyFlink's types. Each is a pyarrow type, except rows and views.

    >>> from foldflight.functions.flink import DataTypes
    >>> print(DataTypes.ARRAY(DataTypes.DECIMAL(10, 2)))
    list<item: decimal128(10, 2)>
    """

    BOOLEAN = staticmethod(_always(pa.bool_()))
    TINYINT = staticmethod(_always(pa.int8()))
    SMALLINT = staticmethod(_always(pa.int16()))
    INT = staticmethod(_always(pa.int32()))
    BIGINT = staticmethod(_always(pa.int64()))
    FLOAT = staticmethod(_always(pa.float32()))
    DOUBLE = staticmethod(_always(pa.float64()))
    STRING = CHAR = VARCHAR = staticmethod(_always(pa.string()))
    BYTES = BINARY = VARBINARY = staticmethod(_always(pa.binary()))
    DECIMAL = staticmethod(lambda precision, scale, *_: pa.decimal128(precision, scale))
    DATE = staticmethod(_always(pa.date32()))
    TIME = staticmethod(_always(pa.time64("us")))
    TIMESTAMP = staticmethod(_always(pa.timestamp("us")))
    TIMESTAMP_LTZ = TIMESTAMP_WITH_LOCAL_TIME_ZONE = staticmethod(_always(pa.timestamp("us", tz="UTC")))
    ARRAY = staticmethod(lambda element_type, *_: pa.list_(arrow_of(element_type)))
    MAP = staticmethod(lambda key_type, value_type, *_: pa.map_(arrow_of(key_type), arrow_of(value_type)))
    FIELD = staticmethod(lambda name, data_type, *_: (name, flink_type(data_type)))
    ROW = staticmethod(lambda row_fields, *_: RowType(tuple(row_fields)))
    LIST_VIEW = staticmethod(lambda element_type: ListViewType(flink_type(element_type)))
    MAP_VIEW = staticmethod(lambda key_type, value_type: MapViewType(flink_type(key_type), flink_type(value_type)))


# PyFlink's classes of types without parameters, with their names in SQL.
_PLAIN: Final = {
    "BooleanType": "BOOLEAN",
    "TinyIntType": "TINYINT",
    "SmallIntType": "SMALLINT",
    "IntType": "INT",
    "BigIntType": "BIGINT",
    "FloatType": "FLOAT",
    "DoubleType": "DOUBLE",
    "CharType": "STRING",
    "VarCharType": "STRING",
    "BinaryType": "BYTES",
    "VarBinaryType": "BYTES",
    "DateType": "DATE",
    "TimeType": "TIME",
    "TimestampType": "TIMESTAMP",
    "LocalZonedTimestampType": "TIMESTAMP_LTZ",
}


def is_flink_type(declared_type: object) -> bool:
    """Return whether this is a type that only PyFlink has, or an object of PyFlink's."""
    return isinstance(declared_type, _FLINK_TYPES) or type(declared_type).__module__ == "pyflink.table.types"


def flink_type(declared_type: Any) -> FlinkType:
    """Return a type of PyFlink, as text, as one of `DataTypes`, or as one of PyFlink's own objects.

    Raises:
        RejectedError: SIGNATURE, for a type that has no counterpart.
    """
    if isinstance(declared_type, _FLINK_TYPES):
        return declared_type
    if type(declared_type).__module__ != "pyflink.table.types":
        return parse_type(declared_type)
    match type(declared_type).__name__:
        case "DecimalType":
            return pa.decimal128(declared_type.precision, declared_type.scale)
        case "ArrayType":
            return pa.list_(arrow_of(declared_type.element_type))
        case "MapType":
            return pa.map_(arrow_of(declared_type.key_type), arrow_of(declared_type.value_type))
        case "RowType":
            return RowType(tuple((field.name, flink_type(field.data_type)) for field in declared_type.fields))
        case "ListViewType":
            return ListViewType(flink_type(vars(declared_type)["_element_type"]))  # it has no public attribute
        case "MapViewType":
            return MapViewType(*(flink_type(vars(declared_type)[each]) for each in ("_key_type", "_value_type")))
        case name if name in _PLAIN:
            return parse_type(_PLAIN[name])
    raise RejectedError(
        "SIGNATURE", f"PyFlink's {declared_type!r} has no counterpart; give a SQL name or a pyarrow type"
    )


def arrow_of(declared_type: Any) -> pa.DataType:
    """Return the Arrow type of a type of PyFlink. Raises as `flink_type`."""
    return serializer_of_flink(flink_type(declared_type)).arrow


def serializer_of_flink(type_: FlinkType) -> StateSerializer:
    """Return the serializer of the values that an accumulator has for a type. Structs are rows."""
    match type_:
        case RowType(fields):
            return _rows(fields)
        case ListViewType(item):
            return _Views(list_of(serializer_of_flink(item)), list, ListView)
        case MapViewType(key, value):
            return _Views(
                map_of(serializer_of_flink(key), serializer_of_flink(value)), lambda view: dict(view.items()), MapView
            )
    if pa.types.is_struct(type_):
        return _rows([(field.name, field.type) for field in type_])
    if pa.types.is_list(type_):
        return list_of(serializer_of_flink(type_.value_type))
    if pa.types.is_map(type_):
        return map_of(serializer_of_flink(type_.key_type), serializer_of_flink(type_.item_type))
    return serializer_of_type(type_)


def _rows(fields: Sequence[tuple[str, FlinkType]]) -> StateSerializer:
    names = [name for name, _ in fields]
    serializers = [(name, serializer_of_flink(each)) for name, each in fields]
    return record_of(serializers, lambda members: Row.of(names, members), immutable=False)


class _Views(StateSerializer):
    """List or map views, as lists or dicts."""

    def __init__(self, inner: StateSerializer, contents: Any, make: Any) -> None:
        self.inner = inner
        self.contents = contents
        self.make = make
        self.arrow = inner.arrow

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return self.inner.to_arrow([None if value is None else self.contents(value) for value in values])

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if value is None else self.make(value) for value in self.inner.from_arrow(array)]


_ORIGINALS: Final = ("pyflink.common.types", "pyflink.table.data_view")


def without_pyflink(value: Any) -> Any:
    """Return an accumulator with this module's rows and views in the place of PyFlink's."""
    if isinstance(value, Row):
        return Row.of(value._fields, map(without_pyflink, value))
    if isinstance(value, list):
        return list(map(without_pyflink, value))
    if type(value).__module__ not in _ORIGINALS:
        return value
    match type(value).__name__:
        case "Row":
            return Row.of(getattr(value, "_fields", None), map(without_pyflink, value))
        case "ListView":
            return ListView(value)
        case "MapView":
            return MapView(value.items())
    return value


def plain_result(value: Any) -> Any:
    """Return a result in which rows are tuples."""
    if isinstance(value, list):
        return list(map(plain_result, value))
    is_row = isinstance(value, Row) or (type(value).__name__ == "Row" and type(value).__module__ in _ORIGINALS)
    return tuple(map(plain_result, value)) if is_row else value


class FlinkContext:
    """The argument of `open` as PyFlink has it. It also has all attributes of foldflight's `FunctionContext`."""

    def __init__(self, context: FunctionContext, prefix: str = "") -> None:
        self._context = context
        self._prefix = prefix

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """Return a parameter of the job."""
        return self._context.job_parameters.get(key, default_value)

    def get_metric_group(self) -> FlinkContext:
        """Return the group of the function's metrics."""
        return self

    def add_group(self, name: str, extra: str | None = None) -> FlinkContext:
        """Return a group whose metrics have this name as prefix."""
        return FlinkContext(self._context, "_".join(filter(None, (self._prefix, name, extra))))

    def _full_name(self, name: str) -> str:
        return f"{self._prefix}_{name}" if self._prefix else name

    def counter(self, name: str) -> Counter:
        """Return a counter."""
        return self._context.counter(self._full_name(name))

    def meter(self, name: str, _time_span_in_seconds: int = 60) -> _FlinkMeter:
        """Return a meter. Prometheus computes its rate, over any span."""
        return _FlinkMeter(self._context.meter(self._full_name(name)))

    def distribution(self, name: str) -> _FlinkDistribution:
        """Return a distribution."""
        return _FlinkDistribution(self._context.distribution(self._full_name(name)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._context, name)


class _FlinkMeter:
    def __init__(self, inner: Meter) -> None:
        self._inner = inner

    def mark_event(self, value: int = 1) -> None:
        self._inner.mark(value)


class _FlinkDistribution:
    def __init__(self, inner: Distribution) -> None:
        self._inner = inner

    def update(self, value: int) -> None:
        self._inner.observe(value)


class _PyFlink(Adapter):
    """The conventions of PyFlink."""

    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:  # noqa: ARG002 - as the others
        return {
            "create_accumulator": lambda: without_pyflink(author_methods.create_accumulator()),
            "accumulate": in_place(author_methods.accumulate),
            "retract": in_place(author_methods.retract),
            "merge": in_place(lambda accumulator, other: author_methods.merge(accumulator, [other])),
            "get_value": lambda accumulator: plain_result(author_methods.get_value(accumulator)),
            "open": lambda context: author_methods.open(FlinkContext(context)),
            "close": author_methods.close,
        }

    def type_of(self, declared_type: Any) -> Any:
        return arrow_of(declared_type) if is_flink_type(declared_type) else declared_type

    def serializer_of(self, declared_type: Any) -> StateSerializer:
        return serializer_of_flink(flink_type(declared_type))


_BASE: Final = ("pyflink.table.udf", "AggregateFunction")
PYFLINK: Final = _PyFlink(
    "flink",
    "AggregateFunction of PyFlink",
    {
        "create_accumulator": Method("create_accumulator", required=True),
        "accumulate": Method("accumulate", ("accumulator",), "each", required=True),
        "retract": Method("retract", ("accumulator",), "each"),
        "merge": Method("merge", ("accumulator", "accumulators")),
        "get_value": Method("get_value", ("accumulator",), required=True),
        "open": Method("open", ("function_context",)),
        "close": Method("close"),
    },
    marks=("get_result_type", "get_accumulator_type"),
    returns_accumulator=False,
    base=_BASE,
    replaced={
        _BASE: AggregateFunction,
        ("pyflink.common.types", "Row"): Row,
        ("pyflink.table.data_view", "ListView"): ListView,
        ("pyflink.table.data_view", "MapView"): MapView,
    },
    declaring=("get_result_type", "get_accumulator_type"),
    result="get_result_type",
    state="get_accumulator_type",
    asks_determinism=True,
)
