"""External functions of RisingWave and Databend: the stateless dialects that the descriptor path selects.

    path ["multiply"]             RisingWave (and other clients of arrow-udf): one exchange for each chunk
    path ["databend:multiply"]    Databend: CREATE FUNCTION ... HANDLER = 'databend:multiply'

Both send columns without names that matter, and get the result columns back. A dialect says how types are written:

    declared            RisingWave                          Databend
    DECIMAL(p, s)       utf8, extension arrowudf.decimal    decimal128
    JSON                utf8, extension arrowudf.json       large_binary, Extension = Variant
    STRING, BINARY      utf8, binary                        large_utf8, large_binary
    TIMESTAMPTZ         timestamp[us, "+00:00"]             timestamp[us]
    REAL[n]             list<float>                         fixed_size_list<float>, Extension = Vector

Source: arrow-udf-flight/python and src/lib.rs of arrow-udf; databend_udf/udf.py of databend-udf.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open
from foldflight.fold import ERROR, ROW
from foldflight.functions.step import Step, StepArgument
from foldflight.functions.types import can_widen, check_plain, sql_name
from foldflight.functions.values import CastError, cast_results, to_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from foldflight.functions.mapping import MapFunction

__all__ = ["PROTOCOL_VERSION_ACTION", "PROTOCOL_VERSION_ANSWER", "Dialect", "StatelessCall", "dialect_of"]

PROTOCOL_VERSION_ACTION: Final = "protocol_version"
PROTOCOL_VERSION_ANSWER: Final = b"\x02"
"""The version of arrow-udf's protocol whose types these are. A client that gets no answer takes those of version 1.

A client reads this answer only, not what follows. So if tokens are required, every action without a valid token is
answered with it and then with UNAUTHENTICATED: the server need not read which action was meant.
"""

_DATABEND: Final = "databend:"
_EXTENSION: Final = b"ARROW:extension:name"
_ONE: Final = "one"


class Dialect(ABC):
    """How an engine writes types and results."""

    name: ClassVar[str]

    @abstractmethod
    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        """Return the type on the wire of a type that is not nested, and the metadata of its field."""

    def is_leaf(self, type_: pa.DataType) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a type of lists has a type of its own on the wire."""
        return False

    @abstractmethod
    def outputs(self, function: MapFunction, result: pa.DataType) -> list[pa.Field]:
        """Return the fields of a result."""

    @abstractmethod
    def answer(self, call: StatelessCall, found: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
        """Return the columns of an answer, before they are written, and the error of each row, if any has one."""

    def reads(self, given: pa.DataType, declared: pa.DataType) -> bool:
        """Return whether a client's column may be passed to an argument of a declared type, or is written as one.

        As in queries, only casts that change no value are implicit. Members of structs have their declared names here.
        """
        kinds = pa.types
        if isinstance(given, pa.BaseExtensionType):
            given = given.storage_type
        if _is_list(given) and _is_list(declared):
            return self.reads(given.value_type, declared.value_type)
        if kinds.is_struct(given) and kinds.is_struct(declared):
            return all(self.reads(field.type, declared.field(field.name).type) for field in given)
        if kinds.is_map(given) and kinds.is_map(declared):
            key, item = (given.key_type, declared.key_type), (given.item_type, declared.item_type)
            return self.reads(*key) and self.reads(*item)
        return can_widen(given, declared) or can_widen(given, self.leaf(declared)[0])

    def field(self, name: str, type_: pa.DataType) -> pa.Field:
        """Return the field on the wire for a declared type."""
        kinds = pa.types
        if _is_list(type_) and not self.is_leaf(type_):
            return pa.field(name, pa.list_(self.field(type_.value_field.name, type_.value_type)))
        if kinds.is_struct(type_):
            return pa.field(name, pa.struct([self.field(each.name, each.type) for each in type_]))
        if kinds.is_map(type_):
            key = self.field("key", type_.key_type).with_nullable(False)
            return pa.field(name, pa.map_(key, self.field("value", type_.item_type)))
        wire, metadata = self.leaf(type_)
        return pa.field(name, wire, metadata=metadata or None)

    def schema(self, function: MapFunction) -> pa.Schema:
        """Return inputs and outputs as fields; a type that depends on the arguments is shown as null."""
        types = function.input_types or (pa.null(),) * len(function.input_names)
        inputs = [self.field(name, type_) for name, type_ in zip(function.input_names, types, strict=True)]
        result = function.result_type
        outputs = [pa.field("result", pa.null())] if result is None else self.outputs(function, result)
        return pa.schema([*inputs, *outputs])


class _RisingWave(Dialect):
    """The dialect of RisingWave and of arrow-udf.

    A scalar function answers with its result, and a column of errors if a row has failed; a table function with the
    number of the row and its value.
    """

    name = "risingwave"

    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        if isinstance(type_, pa.JsonType):
            return pa.string(), {_EXTENSION: b"arrowudf.json"}
        if pa.types.is_decimal128(type_):
            return pa.string(), {_EXTENSION: b"arrowudf.decimal"}
        if pa.types.is_timestamp(type_) and type_.tz:
            return pa.timestamp("us", "+00:00"), {}
        return type_, {}

    def outputs(self, function: MapFunction, result: pa.DataType) -> list[pa.Field]:
        if not function.is_table:
            return [self.field(function.name, result)]
        value = result.field(0).type if result.num_fields == 1 else result
        return [pa.field(ROW, pa.int32()), self.field(function.name, value)]

    def answer(self, call: StatelessCall, found: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
        if call.function.is_table:
            value = found.column("output_0")
            return [found.column(ROW), value.field(0) if call.result.num_fields == 1 else value], None
        errors = found.column(ERROR)
        texts = pc.struct_field(errors, "message") if errors.null_count < len(errors) else None
        return [found.column("output_0")], texts


class _Databend(Dialect):
    """A scalar function answers with its result; a table function with its columns. A row that fails ends the call."""

    name = "databend"

    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        kinds = pa.types
        if isinstance(type_, pa.JsonType):
            return pa.large_binary(), {b"Extension": b"Variant"}
        if kinds.is_string(type_):
            return pa.large_string(), {}
        if kinds.is_binary(type_):
            return pa.large_binary(), {}
        if kinds.is_timestamp(type_):
            return pa.timestamp("us"), {}
        if self.is_leaf(type_):
            size = str(type_.list_size).encode()
            return type_, {b"Extension": b"Vector", b"vector_size": size}
        return type_, {}

    def is_leaf(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_fixed_size_list(type_) and pa.types.is_float32(type_.value_type))

    def schema(self, function: MapFunction) -> pa.Schema:
        count = str(len(function.input_names)).encode()
        return super().schema(function).with_metadata({b"x-databend-udf-input-count": count})

    def outputs(self, function: MapFunction, result: pa.DataType) -> list[pa.Field]:
        if not function.is_table:
            return [self.field("output", result)]
        return [self.field(each.name, each.type) for each in result]

    def answer(self, call: StatelessCall, found: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
        output = found.column("output_0")
        return (output.flatten() if call.function.is_table else [output]), None


_DIALECTS: Final = {"": _RisingWave(), _DATABEND: _Databend()}


def dialect_of(name: str) -> tuple[Dialect, str]:
    """Return the dialect of a descriptor's path, and the name of the function."""
    prefix = _DATABEND if name.startswith(_DATABEND) else ""
    return _DIALECTS[prefix], name.removeprefix(prefix)


class StatelessCall:
    """One function over the chunks of one stream.

    Args:
        dialect: The dialect.
        function: The function.
        columns: The schema of the client's stream; names do not matter.

    Attributes:
        opening: What the exchange is opened with.
        result: The declared type of the result; of a table function, the struct of its columns.

    Raises:
        RejectedError: SCHEMA_MISMATCH for columns that do not fit the function.
    """

    def __init__(self, dialect: Dialect, function: MapFunction, columns: pa.Schema) -> None:
        self.dialect = dialect
        self.function = function
        self._given = columns
        for field in columns:
            check_plain(field.type)
        declared = function.input_types
        if declared is not None and len(declared) != len(columns):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{function.signature} takes {len(declared)} columns, and the stream has {len(columns)}",
                function=function.name,
            )
        self._types = [_usual(field.type) for field in columns] if declared is None else list(declared)
        self._check(columns.types)
        self.result = function.bind(self._types, {}).result_type
        names = [f"argument {place + 1}" for place in range(len(self._types))]
        fields = list(zip(names, self._types, strict=True)) or [(_ONE, pa.bool_())]
        self._schema = pa.schema(fields)
        self.opening = Open(
            (),
            self._schema,
            steps=(Step(function.name, tuple(StepArgument(column=name) for name in names)),),
            outputs=(0,),
            isolate_errors=dialect.name == "risingwave" and not function.is_table,
        )

    def _check(self, given: Sequence[pa.DataType]) -> None:
        """Raise RejectedError SCHEMA_MISMATCH unless columns of these types can be read as the arguments."""
        for place, (type_, declared) in enumerate(zip(given, self._types, strict=True)):
            try:
                fits = self.dialect.reads(_with_names(type_, declared), declared)
            except TypeError as error:
                raise self._misfit(place, type_, str(error)) from None
            if not fits:
                raise self._misfit(place, type_, "cast it in the query")

    def _misfit(self, place: int, given: pa.DataType, why: str) -> RejectedError:
        return RejectedError(
            "SCHEMA_MISMATCH",
            f"argument {place + 1} of {self.function.name} is {given}, which cannot be read as "
            f"{sql_name(self._types[place])}: {why}",
            function=self.function.name,
        )

    def chunk(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of the client in the declared types. The batch has been validated.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a value that the declared type cannot hold.
        """
        if not self._types:
            return pa.RecordBatch.from_arrays([pa.array(np.ones(batch.num_rows, np.bool_))], schema=self._schema)
        arrays = []
        for place, (array, type_) in enumerate(zip(batch.columns, self._types, strict=True)):
            try:
                arrays.append(_read(array, type_))
            except (pa.ArrowException, CastError, ValueError, TypeError, OverflowError, KeyError) as error:
                raise self._misfit(place, array.type, str(error)) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def fields(self) -> list[pa.Field]:
        """Return the fields of the result on the wire."""
        return self.dialect.outputs(self.function, self.result)

    def schema(self, *, errors: bool) -> pa.Schema:
        """Return the schema of the answers, with or without a column of errors."""
        return pa.schema([*self.fields(), *([pa.field("error", pa.string())] if errors else [])])

    def answer(self, found: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
        """Return the columns of an answer as the dialect writes them, and the error of each row, if any has one."""
        arrays, errors = self.dialect.answer(self, found)
        return [_written(array, field) for array, field in zip(arrays, self.fields(), strict=True)], errors


def _usual(type_: pa.DataType) -> pa.DataType:
    """Return the type that authors know for a column of a client."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type_, type_)


def _read(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return a column of a client as an array of the declared type."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    array = _renamed(array, type_)
    if array.type == type_:
        return array
    if isinstance(type_, pa.JsonType):
        return pa.ExtensionArray.from_storage(type_, array.cast(pa.string()))
    if pa.types.is_decimal(type_) and _is_text(array.type):
        return cast_results(array.to_pylist(), type_)
    if pa.types.is_nested(type_) and _has_special(type_):
        # JSON inside of another value stays a text, as in other exchanges. As a result it would become a JSON string.
        plain = _with_texts(type_)
        found = cast_results(to_python(array), plain)
        return found if plain == type_ else found.cast(type_)
    return array.cast(type_)


def _renamed(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array whose members of structs have the declared names.

    Arrow casts structs by the names of their members, and gives NULL for a member that it does not find.
    """
    names = _with_names(array.type, type_)
    return array if names == array.type else pa.array(_Relabelled(array, names))


def _with_names(given: pa.DataType, declared: pa.DataType) -> pa.DataType:
    """Return a client's type with the declared names of members. The same names in another order stay as they are.

    Raises:
        TypeError: A struct does not have as many members as are declared.
    """
    kinds = pa.types
    if kinds.is_struct(given) and kinds.is_struct(declared):
        if given.num_fields != declared.num_fields:
            raise TypeError(f"{given} has {given.num_fields} members, and {declared.num_fields} are declared")
        fields = list(given)
        names = [field.name for field in declared]
        if sorted(names) == sorted(field.name for field in fields):
            inner = [declared.field(field.name).type for field in fields]
            names = [field.name for field in fields]
        else:
            inner = [field.type for field in declared]
        return pa.struct(
            [
                field.with_name(name).with_type(_with_names(field.type, type_))
                for field, name, type_ in zip(fields, names, inner, strict=True)
            ]
        )
    if kinds.is_map(given) and kinds.is_map(declared):
        return pa.map_(_with_names(given.key_type, declared.key_type), _with_names(given.item_type, declared.item_type))
    if not (_is_list(given) and _is_list(declared)):
        return given
    value = given.value_field.with_type(_with_names(given.value_type, declared.value_type))
    if kinds.is_fixed_size_list(given):
        return pa.list_(value, given.list_size)
    return pa.large_list(value) if kinds.is_large_list(given) else pa.list_(value)


def _is_list(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))


class _Relabelled:
    """An array under a type that differs in names only, for `pa.array`. The values are not copied."""

    def __init__(self, array: pa.Array, type_: pa.DataType) -> None:
        self._array = array
        self._type = type_

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._type.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def _with_texts(type_: pa.DataType) -> pa.DataType:
    """Return a type with STRING in place of JSON."""
    kinds = pa.types
    if isinstance(type_, pa.JsonType):
        return pa.string()
    if kinds.is_struct(type_):
        return pa.struct([each.with_type(_with_texts(each.type)) for each in type_])
    if kinds.is_map(type_):
        return pa.map_(_with_texts(type_.key_type), _with_texts(type_.item_type))
    if kinds.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with_texts(type_.value_type)))
    return type_


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _has_special(type_: pa.DataType) -> bool:
    """Return whether a type has decimals or JSON inside, which clients write as texts."""
    if pa.types.is_struct(type_):
        return any(_has_special(each.type) for each in type_)
    if pa.types.is_map(type_):
        return _has_special(type_.key_type) or _has_special(type_.item_type)
    if pa.types.is_nested(type_):
        return _has_special(type_.value_type)
    return isinstance(type_, pa.JsonType) or bool(pa.types.is_decimal128(type_))


def _written(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return results as the type of a field on the wire."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == field.type:
        return array
    if pa.types.is_decimal(array.type) and _is_text(field.type):
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], field.type)
    if pa.types.is_nested(field.type):
        return pa.array([_plain(value) for value in array.to_pylist(maps_as_pydicts=None)], field.type)
    return array.cast(field.type)


def _plain(value: Any) -> Any:
    """Return a nested value with decimals as texts."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return format(value, "f") if type(value).__name__ == "Decimal" else value
