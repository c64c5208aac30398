"""Accumulators in the Java virtual machine, folded by one call for each chunk.

`Loops.java` keeps the accumulators and calls the author's methods for all rows of a chunk. The interpreter uses the
same objects through `_LoopAccumulators`, if a column has a type without a loop, and after an exception: the loop stops
at the row, the interpreter raises or isolates the error, and continues with the next row.

Values of Java and of Python are converted by the Java type of a parameter, a field or a result.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import EMPTY, InterpretedAccumulators
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Mask, Rows, Slots
from foldflight.functions.types.sql import parse_type, sql_name

PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_BOXES: Final = {
    "java.lang.Boolean": "boolean",
    "java.lang.Byte": "byte",
    "java.lang.Short": "short",
    "java.lang.Integer": "int",
    "java.lang.Long": "long",
    "java.lang.Float": "float",
    "java.lang.Double": "double",
}
_LISTS: Final = ("java.util.List", "java.util.ArrayList")
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_KNOWN: Final = (
    "boolean, byte, short, int, long, float, double and their boxes, String, BigDecimal, byte[], LocalDate, LocalTime, "
    "LocalDateTime, Instant, arrays and List<...> of these"
)


class UnknownType(Exception):  # noqa: N818 - the caller, which knows the class and the method, raises its error
    """A Java type that has no SQL type here."""


@dataclass(frozen=True)
class Value:
    """The conversion of values of one Java type.

    Args:
        arrow: Their Arrow type.
        java: The Java type's name.
        into: Converts a Python value to Java; None only if `is_nullable`. Default: JPype converts it.
        out: Converts a Java value to Python, and null to None.
        is_primitive: Whether it is a primitive type, which has no null.
        is_immutable: Whether values cannot be changed in place.
    """

    arrow: pa.DataType
    java: str
    into: Callable[[Any], Any] | None
    out: Callable[[Any], Any]
    is_primitive: bool = False
    is_immutable: bool = True


def value_of(jpype: Any, type_: Any, hint: str = "") -> Value:
    """Return the conversion of a Java type.

    Args:
        jpype: The module, started.
        type_: A `java.lang.reflect.Type`.
        hint: The SQL type of an annotation `DataTypeHint`, for decimals.

    Raises:
        UnknownType: There is none, or the hint contradicts the type.
        RejectedError: SIGNATURE, if the hint is not a type.
    """
    value = _value(jpype, type_)
    if not hint:
        return value
    hinted_type = parse_type(hint)
    if hinted_type != value.arrow and not (pa.types.is_decimal(hinted_type) and pa.types.is_decimal(value.arrow)):
        raise UnknownType(f"DataTypeHint({hint}) contradicts the type {value.java}, which is {sql_name(value.arrow)}")
    return Value(hinted_type, value.java, value.into, value.out, value.is_primitive, value.is_immutable)


def hint_of(annotations: Any) -> str:
    """Return the text of the first annotation with the simple name `DataTypeHint`, of any package; empty if none."""
    for annotation in annotations:
        kind = annotation.annotationType()
        if str(kind.getSimpleName()) == "DataTypeHint":
            return str(kind.getMethod("value").invoke(annotation) or "")
    return ""


def _value(jpype: Any, type_: Any) -> Value:
    name = str(type_.getTypeName())
    if name in PRIMITIVES:
        return Value(PRIMITIVES[name], name, None, _plain(PRIMITIVES[name]), is_primitive=True)
    if name in _BOXES:
        arrow, box, out = PRIMITIVES[_BOXES[name]], jpype.JClass(name), _plain(PRIMITIVES[_BOXES[name]])
        return Value(arrow, name, _nullable(box), _nullable(out))
    if name == "java.lang.String":
        return Value(pa.string(), name, None, _nullable(_text))
    if name == "byte[]":
        array = jpype.JArray(jpype.JByte)
        return Value(pa.binary(), name, _nullable(array), _nullable(lambda value: memoryview(value).tobytes()))
    if name in _SCALARS:
        arrow, make = _SCALARS[name]
        into, out = make(jpype.JClass(name))
        return Value(arrow, name, _nullable(into), _nullable(out))
    return _collection(jpype, type_, name)


def _collection(jpype: Any, type_: Any, name: str) -> Value:
    """Return the conversion of an array or a list. Raises UnknownType for all others."""
    if name.endswith("[]"):
        is_class = isinstance(type_, jpype.JClass("java.lang.Class"))
        if not is_class:
            raise UnknownType(f"{name} is an array of a generic type")
        item = _value(jpype, type_.getComponentType())
        array, into, out = jpype.JClass(type_), item.into, item.out
        return Value(
            pa.list_(item.arrow),
            name,
            _nullable(lambda values: array(list(values) if into is None else [into(each) for each in values])),
            _nullable(lambda values: [out(each) for each in values]),
            is_immutable=False,
        )
    if name.partition("<")[0] in _LISTS and isinstance(type_, jpype.JClass("java.lang.reflect.ParameterizedType")):
        item = _value(jpype, type_.getActualTypeArguments()[0])
        make, out = jpype.JClass("java.util.ArrayList"), item.out
        put = into_object(jpype, item)

        def to_java_list(values: Any) -> Any:
            java_list = make()
            for each in values:
                java_list.add(put(each))
            return java_list

        return Value(
            pa.list_(item.arrow),
            name,
            _nullable(to_java_list),
            _nullable(lambda values: [out(each) for each in values]),
            is_immutable=False,
        )
    raise UnknownType(f"{name} has no SQL type; use {_KNOWN}")


def into_object(jpype: Any, value: Value) -> Callable[[Any], Any]:
    """Return the conversion to a Java object for positions without a static type, such as items of a list."""
    if value.into is not None:
        return value.into
    return _nullable(jpype.JClass(next((box for box, name in _BOXES.items() if name == value.java), value.java)))


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _plain(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return a conversion of Java numbers, which JPype represents by subclasses of Python's, to plain ones."""
    if pa.types.is_boolean(type_):
        return bool
    return float if pa.types.is_floating(type_) else int


def _text(value: Any) -> str:
    try:
        return str(value)
    except UnicodeDecodeError:
        raise ValueError("it is a text with half of a surrogate pair, which has no UTF-8") from None


def _decimal(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return lambda value: of(str(value)), lambda value: decimal.Decimal(str(value))


def _date(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(value.year, value.month, value.day),
        lambda value: datetime.date(int(value.getYear()), int(value.getMonthValue()), int(value.getDayOfMonth())),
    )


def _time(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(value.hour, value.minute, value.second, value.microsecond * 1000),
        lambda value: datetime.time(
            int(value.getHour()), int(value.getMinute()), int(value.getSecond()), int(value.getNano()) // 1000
        ),
    )


def _timestamp(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    return (
        lambda value: of.of(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond * 1000
        ),
        lambda value: datetime.datetime(  # noqa: DTZ001 - it has no zone in Java, either
            int(value.getYear()),
            int(value.getMonthValue()),
            int(value.getDayOfMonth()),
            int(value.getHour()),
            int(value.getMinute()),
            int(value.getSecond()),
            int(value.getNano()) // 1000,
        ),
    )


def _instant(of: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def into(value: datetime.datetime) -> Any:
        seconds, rest = divmod(value - _EPOCH, _SECOND)
        return of.ofEpochSecond(seconds, rest.microseconds * 1000)

    return (
        into,
        lambda value: (
            _EPOCH + datetime.timedelta(seconds=int(value.getEpochSecond()), microseconds=int(value.getNano()) // 1000)
        ),
    )


_SCALARS: Final[dict[str, tuple[pa.DataType, Callable[[Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]]]]] = {
    "java.math.BigDecimal": (pa.decimal128(38, 18), _decimal),
    "java.time.LocalDate": (pa.date32(), _date),
    "java.time.LocalTime": (pa.time64("us"), _time),
    "java.time.LocalDateTime": (pa.timestamp("us"), _timestamp),
    "java.time.Instant": (pa.timestamp("us", tz="UTC"), _instant),
}


_NUMBERS: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): np.uint8,
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
}
# For fewer rows, a call for each row is faster than one call for all.
_ROWS_MIN: Final = 8


def has_loop(arguments: Sequence[Value]) -> bool:
    """Return whether `Loops` can read arguments of these Java types."""
    return all(each.arrow in _NUMBERS or each.arrow == pa.string() for each in arguments)


class _LoopAccumulators(MutableSequence[Any]):
    """The accumulators of `Loops` as the sequence that the interpreter uses."""

    def __init__(self, loops: Any) -> None:
        self._loops = loops
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, slot: Any) -> Any:
        accumulator = self._loops.get(slot)
        return EMPTY if accumulator is None else accumulator

    def __setitem__(self, slot: Any, accumulator: Any) -> None:
        self._loops.set(slot, None if accumulator is EMPTY else accumulator)

    def extend(self, values: Any) -> None:
        """Add empty slots."""
        self._size += len(values)
        self._loops.grow(self._size)

    def insert(self, index: int, value: Any) -> None:
        raise NotImplementedError  # only `extend` adds slots

    def __delitem__(self, slot: Any) -> None:
        raise NotImplementedError


def bridge_of(loops: Any, instance: Any, author: Any) -> Any:
    """Return a function for `Methods.loops`, which creates the accumulators of an instance of a Java class.

    Args:
        loops: The class `Loops` for the jar.
        instance: The instance of the author's class.
        author: Its `JavaClass`.
    """
    return lambda inner: JavaAccumulators(inner, _create_loops(loops, instance, author), author)


def _create_loops(loops: Any, instance: Any, author: Any) -> Any:
    java_loops = loops(instance, author.accumulator.type)
    methods = author.methods
    java_loops.makes(methods["createAccumulator"], methods["getValue"])
    java_loops.applies(methods["accumulate"], methods["retract"])
    if methods["merge"] is not None:
        java_loops.merges(methods["merge"])
    if _columns_of(author) and author.accumulator.fields:
        java_loops.fields([each.name for each in author.accumulator.fields])
    elif _columns_of(author):
        java_loops.scalar()
    return java_loops


def _columns_of(author: Any) -> tuple[pa.DataType, ...]:
    """Return the types of the state's columns, if `Loops` can read and write them; otherwise none."""
    arrow = author.accumulator.arrow
    if author.function.capabilities.codec != "typed" or arrow is None:
        return ()
    types = tuple(field.type for field in arrow) if pa.types.is_struct(arrow) else (arrow,)
    is_boxed = author.accumulator.type.isPrimitive() and not author.accumulator.fields
    return () if is_boxed or any(each not in _NUMBERS for each in types) else types


class JavaAccumulators(GroupsAccumulator):
    """Accumulators that are Java objects.

    Args:
        inner: The interpreter, without accumulators, as the fallback.
        loops: The `Loops` with the accumulators.
        author: The `JavaClass`.
    """

    def __init__(self, inner: InterpretedAccumulators, loops: Any, author: Any) -> None:
        self.inner = inner
        self._loops = loops
        self._demands = author.function.returns == "some"
        self._buffer = author.jpype.nio.convertToDirectBuffer
        self._types = _columns_of(author)
        self._arguments = author.inputs
        fields = author.accumulator.fields
        self._strict = [each.value.is_primitive for each in fields] if fields else [True]
        inner.keep_in(_LoopAccumulators(loops))

    @property
    def mode(self) -> Mode:
        return Mode.JAVA

    def update(self, rows: Rows) -> None:
        rows = self._without_nulls(rows)
        columns = None if self.inner.failures or len(rows) < _ROWS_MIN else self._columns(rows.arguments)
        if columns is None or not self._create(rows.slots):
            self.inner.update(rows)
            return
        live_buffers = []
        for index, column in enumerate(columns):
            buffers = self._buffers(*column)
            live_buffers.append(buffers)
            self._loops.argument(index, *buffers)
        retracts = None if rows.retracts is None else self._buffer(rows.retracts.view(np.uint8))
        at = self._loops.fold(self._buffer(_contiguous(rows.slots)), retracts, len(rows), self._demands)
        if at >= 0:
            method_name = "retract" if rows.retracts is not None and rows.retracts[at] else "accumulate"
            self.inner.fail(method_name, self._failure(), int(rows.slots[at]), rows.describe(at))
            rest = rows.filter(np.arange(len(rows)) > at)
            if len(rest):
                self.inner.update(rest)

    def _without_nulls(self, rows: Rows) -> Rows:
        """Return the rows that have no NULL for a primitive parameter."""
        pairs = zip(self._arguments, rows.arguments, strict=True)
        mask = rows.without_nulls(column for value, column in pairs if value.is_primitive)
        return rows if mask is None else rows.filter(mask)

    def _create(self, slots: Slots) -> bool:
        """Create the missing accumulators of n slots. Return False if errors are isolated and one failed."""
        fresh = self.inner.absent(slots)
        if len(fresh):
            at = self._loops.create(self._buffer(_contiguous(fresh)), len(fresh))
            self.inner.mark_present(fresh if at < 0 else fresh[:at])
            return bool(at < 0)  # otherwise the interpreter repeats the call, and gets the error
        return True

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        return self.inner.running_values(rows, mask, requested)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        columns = self._state_columns(slots, states)
        if columns is None:
            self.inner.merge(slots, states)
            return
        self.inner.absent(slots)
        live_buffers = []
        for index, column in enumerate(columns):
            buffers = self._buffers(*column)
            live_buffers.append(buffers)
            self._loops.stored(index, *buffers)
        at = self._loops.merge(self._buffer(_contiguous(slots)), len(slots), self._demands)
        self.inner.mark_present(slots if at < 0 else slots[:at])
        if at >= 0 and self._loops.loading:  # the interpreter repeats the call, and gets the error
            self.inner.merge(slots[at:], states.slice(at))
        elif at >= 0:
            self.inner.fail("merge", self._failure(), int(slots[at]))
            rest = slots[at + 1 :]
            sound = ~self.inner.failures.among(rest)
            self.inner.merge(rest[sound], states.slice(at + 1).filter(pa.array(sound)))

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        self.inner.migrate(slots, states, origin)

    def state(self, slots: Slots) -> pa.Array:
        if not self._types or self.inner.failures or not len(slots) or not self._create(slots):
            return self.inner.state(slots)
        columns = [self._state_column(index, type_, slots) for index, type_ in enumerate(self._types)]
        if None in columns:
            return self.inner.state(slots)
        state_type = self.inner.bound.state_type
        if not pa.types.is_struct(state_type):
            return columns[0]
        return pa.StructArray.from_arrays(columns, fields=list(state_type))

    def evaluate(self, slots: Slots) -> pa.Array:
        type_ = self.inner.bound.result_type
        if type_ not in _NUMBERS or len(slots) < _ROWS_MIN or len(self.inner.absent(slots)):
            return self.inner.evaluate(slots)
        data, valid = np.zeros(len(slots), _NUMBERS[type_]), np.zeros(len(slots), np.uint8)
        begin = 0
        while begin < len(slots):
            rest = (_contiguous(slots[begin:]), len(slots) - begin, data[begin:], valid[begin:])
            at = self._loops.values(*(each if isinstance(each, int) else self._buffer(each) for each in rest))
            if at < 0:
                break
            self.inner.fail("get_value", self._failure(), int(slots[begin + at]))
            begin += at + 1  # the output of the failed slot stays NULL
        return _array(data, valid, type_)

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        return self.evaluate(slots) if self._types else self.inner.evaluate_states(slots, states)

    def forget(self, slots: Slots) -> None:
        self.inner.forget(slots)

    def close(self) -> None:
        self.inner.close()

    def _failure(self) -> BaseException | None:
        """Return the exception at which a loop stopped, or the error of JPype if its message is not valid UTF-8."""
        try:
            failure: BaseException | None = self._loops.failure
        except UnicodeDecodeError as error:
            return error
        return failure

    def _state_column(self, index: int, type_: pa.DataType, slots: Slots) -> pa.Array | None:
        """Return one column of the states of n slots; None if an accessor of a record raises."""
        data, valid = np.zeros(len(slots), _NUMBERS[type_]), np.zeros(len(slots), np.uint8)
        at = self._loops.states(
            index, self._buffer(_contiguous(slots)), len(slots), self._buffer(data), self._buffer(valid)
        )
        return _array(data, valid, type_) if at < 0 else None

    def _state_columns(self, slots: Slots, states: pa.Array) -> list[tuple[Any, Any, Any]] | None:
        """Return the columns of states for the loop that merges; None if it cannot merge them."""
        if not self._types or self.inner.failures or not len(slots):
            return None
        if self.inner.methods.merge is None and (
            len(np.unique(slots)) < len(slots) or len(self.inner.absent(slots)) < len(slots)
        ):
            return None
        columns = states.flatten() if pa.types.is_struct(states.type) else [states]
        if any(column.null_count and strict for column, strict in zip(columns, self._strict, strict=True)):
            return None
        return self._columns([Column("", column) for column in columns])

    def _columns(self, columns: Sequence[Column]) -> list[tuple[Any, Any, Any]] | None:
        """Return data, validity and offsets of each column; None if a loop cannot read one of them."""
        buffers: list[tuple[Any, Any, Any]] = []
        for column in columns:
            array = column.array
            if array is None:
                return None
            valid = None
            if array.null_count:
                valid = array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
            if array.type in _NUMBERS:
                without_nulls = (
                    array if valid is None else pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
                )
                data = without_nulls.to_numpy(zero_copy_only=False)
                buffers.append((_contiguous(data.view(np.uint8) if data.dtype == np.bool_ else data), valid, None))
            elif array.type == pa.string():
                _, offsets, data = array.buffers()
                ends = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
                buffers.append((_bytes_of(data), valid, ends))
            else:
                return None
        return buffers

    def _buffers(self, *arrays: Any) -> list[Any]:
        return [None if each is None else self._buffer(each) for each in arrays]


def _contiguous(values: Any) -> Any:
    return np.ascontiguousarray(values)


def _bytes_of(buffer: pa.Buffer | None) -> Any:
    if buffer is None or not buffer.size:
        return np.zeros(1, np.uint8)
    return np.frombuffer(buffer, np.uint8)


def _array(data: Any, valid: Any, type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        data = data.view(np.bool_)
    return pa.array(data, type_, mask=None if valid.all() else valid == 0, from_pandas=False)
