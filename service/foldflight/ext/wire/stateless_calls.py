"""Stateless calls of one function: the batches of a client's stream become chunks of an exchange.

A `WireAdapter` encodes types and results for clients of another system: `Databend` for Databend's external functions
(source: databend_udf/udf.py of databend-udf), `RisingWave` for functions of RisingWave and of other clients of
arrow-udf (source: arrow-udf-flight/python and src/lib.rs of arrow-udf).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.exchange.frames import Barrier, Chunk, Forget, Open, Returns
from foldflight.fold.failures import ERROR
from foldflight.fold.rows import ROW
from foldflight.functions import can_widen
from foldflight.functions.author.spec import AnyFunction, FunctionKind
from foldflight.functions.query.call import Call, Step, StepArgument
from foldflight.functions.types.arrow import is_json, is_nested
from foldflight.functions.types.sql import check_plain, sql_name
from foldflight.functions.types.values import CastError, cast_results, to_python
from foldflight.functions.types.vectors import as_vectors, is_vector, list_misfit
from foldflight.server.stateless import Ask

# The key of a field's metadata that names its Arrow extension type. arrow-udf sends JSON and DECIMAL as such texts.
EXTENSION: Final = b"ARROW:extension:name"
_ONE: Final = "one"
_COUNTS: Final = "counts"


class _Call(ABC):
    """A call of one function over the batches of one stream.

    Args:
        adapter: The adapter.
        function: The function.
        columns: The schema of the client's stream; names do not matter.

    Attributes:
        open_request: What the exchange is opened with.
        result: The declared type of the result; of a table function, the struct of its columns.
        is_table: Whether it is a table function.

    Raises:
        RejectedError: SCHEMA_MISMATCH for columns that do not fit the function.
    """

    open_request: Open

    def __init__(self, adapter: WireAdapter, function: AnyFunction, columns: pa.Schema) -> None:
        self.adapter = adapter
        self.function = function
        self.is_table = function.kind is FunctionKind.TABLE
        for field in columns:
            check_plain(field.type)
        if function.zoned is not None and function.takes_zoned(columns.types):
            function = self.function = function.zoned
        declared_types = function.input_types
        if declared_types is not None and function.inputs_min <= len(columns):
            declared_types = declared_types[: len(columns)]
        if declared_types is not None and len(declared_types) != len(columns):
            raise self._error(
                f"{function.signature} takes {len(declared_types)} columns, and the stream has {len(columns)}"
            )
        client_type = [self._argument_type(index, type_) for index, type_ in enumerate(columns.types)]
        self._types = (
            [_inferred_type(type_) for type_ in client_type] if declared_types is None else list(declared_types)
        )
        for index, type_ in enumerate(client_type):
            self._check(index, type_)
        self.result = function.bind(self._types, {}).result_type
        self._names = [f"argument {index + 1}" for index in range(len(self._types))]

    @abstractmethod
    def answers(self, batch: pa.RecordBatch, ask: Ask) -> Iterator[tuple[list[pa.Array], pa.Array | None]]:
        """Yield the answers to a batch of the client, which has been validated.

        Each answer has the encoded columns, and the errors of rows, if there are any.

        Raises:
            RejectedError: SCHEMA_MISMATCH for a value that the declared type cannot hold.
        """

    def fields(self) -> list[pa.Field]:
        """Return the fields of the result on the wire."""
        return self.adapter.outputs(self.function, self.result)

    def schema(self, *, errors: bool) -> pa.Schema:
        """Return the schema of the answers, with or without a column of errors."""
        return pa.schema([*self.fields(), *([pa.field("error", pa.string())] if errors else [])])

    def _argument_type(self, index: int, type_: pa.DataType) -> pa.DataType:  # noqa: ARG002 - for subclasses
        """Return the type of an argument in a column of the client."""
        return type_

    def _check(self, index: int, client_type: pa.DataType) -> None:
        """Raise RejectedError SCHEMA_MISMATCH if values of a client's type cannot be converted to an argument."""
        declared_type = self._types[index]
        try:
            named_type = _with_names(client_type, declared_type)
        except TypeError as error:
            raise self._misfit(index, client_type, str(error)) from None
        if not self.adapter.reads(named_type, declared_type):
            raise self._misfit(index, client_type, "cast it in the query")

    def _argument(self, index: int, array: pa.Array) -> pa.Array:
        """Convert values of the client to the declared type."""
        try:
            return _from_wire(array, self._types[index])
        except (pa.ArrowException, CastError, ValueError, TypeError, OverflowError, KeyError) as error:
            raise self._misfit(index, array.type, str(error)) from None

    def _to_wire(self, answer: pa.RecordBatch) -> tuple[list[pa.Array], pa.Array | None]:
        arrays, errors = self.adapter.answer(answer, self.result, is_table=self.is_table)
        return [_to_wire(array, field) for array, field in zip(arrays, self.fields(), strict=True)], errors

    def _misfit(self, index: int, client_type: pa.DataType, reason: str) -> RejectedError:
        return self._error(
            f"argument {index + 1} of {self.function.name} is {client_type}, which cannot be read as "
            f"{sql_name(self._types[index])}: {reason}"
        )

    def _error(self, message: str) -> RejectedError:
        return RejectedError("SCHEMA_MISMATCH", message, function=self.function.name)


class ScalarCall(_Call):
    """A scalar or table function: an expression of one step."""

    def __init__(self, adapter: WireAdapter, function: AnyFunction, columns: pa.Schema) -> None:
        super().__init__(adapter, function, columns)
        self._schema = pa.schema(list(zip(self._names, self._types, strict=True)) or [(_ONE, pa.bool_())])
        self.open_request = Open(
            (),
            self._schema,
            steps=(Step(function.name, tuple(StepArgument(column=name) for name in self._names)),),
            outputs=(0,),
            isolate_errors=adapter.has_errors and not self.is_table,
        )

    def answers(self, batch: pa.RecordBatch, ask: Ask) -> Iterator[tuple[list[pa.Array], pa.Array | None]]:
        if self._types:
            arrays = [self._argument(index, array) for index, array in enumerate(batch.columns)]
        else:
            arrays = [pa.array(np.ones(batch.num_rows, np.bool_))]
        for frame in ask(Chunk(pa.RecordBatch.from_arrays(arrays, schema=self._schema))):
            yield self._to_wire(frame.batch)


class GroupCall(_Call):
    """An aggregate function over lists. A client's row is a group, and its lists are the arguments of the group's rows.

    RisingWave passes groups in this form for `aggregate:f(x)`, and every system with `array_agg` can do it.
    """

    def __init__(self, adapter: WireAdapter, function: AnyFunction, columns: pa.Schema) -> None:
        super().__init__(adapter, function, columns)
        if not self._types:
            raise self._error(f"{function.signature} takes its rows as lists, and the stream has no column")
        self._schema = pa.schema(
            [("slot", pa.int32()), (_COUNTS, pa.bool_()), *zip(self._names, self._types, strict=True)]
        )
        self._epoch = 0
        self.open_request = Open(
            (Call(function.name, tuple(self._names), filter=_COUNTS),),
            self._schema,
            returns=Returns(states=False, outputs=True),
            isolate_errors=adapter.has_errors,
        )

    def answers(self, batch: pa.RecordBatch, ask: Ask) -> Iterator[tuple[list[pa.Array], pa.Array | None]]:
        list(ask(Chunk(self._rows(batch))))
        self._epoch += 1
        results = [each.batch for each in ask(Barrier(self._epoch))]
        list(ask(Forget(pa.array(range(batch.num_rows), pa.int32()))))
        for each in results:  # with all slots, in their order
            yield self._to_wire(each)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of all groups. A group without rows gets one row that the filter excludes."""
        sizes = self._sizes(batch)
        groups = np.arange(batch.num_rows, dtype=np.int32)
        empty = groups[sizes == 0]
        slots = np.concatenate([np.repeat(groups, sizes), empty])
        counts = np.arange(len(slots)) < len(slots) - len(empty)
        arguments = [
            pa.concat_arrays([self._argument(index, array.flatten()), pa.nulls(len(empty), self._types[index])])
            for index, array in enumerate(batch.columns)
        ]
        return pa.RecordBatch.from_arrays([pa.array(slots), pa.array(counts), *arguments], schema=self._schema)

    def _argument_type(self, index: int, type_: pa.DataType) -> pa.DataType:
        if not is_list(type_):
            raise self._error(
                f"argument {index + 1} of {self.function.name} is {type_}, and an aggregate function takes lists, each "
                "with the values of a group; give array_agg(...), or in RisingWave aggregate:f(...)"
            )
        return type_.value_type

    def _sizes(self, batch: pa.RecordBatch) -> Any:
        """Return the number of rows of each of n groups; int64, shape (n,). A NULL list has none."""
        sizes = [pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False) for array in batch.columns]
        for each in sizes[1:]:
            wrong = np.flatnonzero(each != sizes[0])
            if len(wrong):
                raise self._error(
                    "the lists of a row have the arguments of the same rows, and in row "
                    f"{wrong[0]} of a batch they have {sizes[0][wrong[0]]} and {each[wrong[0]]} values"
                )
        return sizes[0]


def _inferred_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of an argument that the author has not declared. Authors know no types with large offsets."""
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(type_, type_)


def _from_wire(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert a column of a client to the declared type."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if is_vector(type_):
        return _vectors(array, type_)
    array = _rename_members(array, type_)
    if array.type == type_:
        return array
    if is_json(type_):
        return pa.ExtensionArray.from_storage(type_, array.cast(pa.string()))
    if pa.types.is_decimal(type_) and _is_text(array.type):
        return cast_results(array.to_pylist(), type_)
    if is_nested(type_) and _has_special(type_):
        # JSON inside another value stays a string, as in other exchanges: otherwise a result would be encoded twice.
        plain = _with_texts(type_)
        values = cast_results(to_python(array), plain)
        return values if plain == type_ else values.cast(type_)
    return array.cast(type_)


def _vectors(lists: pa.Array, type_: pa.DataType) -> pa.Array:
    vectors, misfits = as_vectors(lists, type_)
    if misfits is None:
        return vectors
    row = int(misfits.argmax())
    raise ValueError(f"the list of row {row} of a batch is no vector: {list_misfit(lists[row], type_)}; correct it")


def _rename_members(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array whose struct members have the declared names.

    Arrow casts structs by member names, and returns NULL for a member that it does not find.
    """
    names = _with_names(array.type, type_)
    return array if names == array.type else pa.array(_RenamedArray(array, names))


def _with_names(type_: pa.DataType, declared_type: pa.DataType) -> pa.DataType:
    """Return a client's type with the declared member names. If the names are the same in another order, they stay.

    Raises:
        TypeError: A struct does not have as many members as are declared.
    """
    kinds = pa.types
    if kinds.is_struct(type_) and kinds.is_struct(declared_type):
        if type_.num_fields != declared_type.num_fields:
            raise TypeError(f"{type_} has {type_.num_fields} members, and {declared_type.num_fields} are declared")
        fields = list(type_)
        names = [field.name for field in declared_type]
        if sorted(names) == sorted(field.name for field in fields):
            inner = [declared_type.field(field.name).type for field in fields]
            names = [field.name for field in fields]
        else:
            inner = [field.type for field in declared_type]
        return pa.struct(
            [
                field.with_name(name).with_type(_with_names(field.type, type_))
                for field, name, type_ in zip(fields, names, inner, strict=True)
            ]
        )
    if kinds.is_map(type_) and kinds.is_map(declared_type):
        return pa.map_(
            _with_names(type_.key_type, declared_type.key_type), _with_names(type_.item_type, declared_type.item_type)
        )
    if not (is_list(type_) and is_list(declared_type)):
        return type_
    value = type_.value_field.with_type(_with_names(type_.value_type, declared_type.value_type))
    if kinds.is_fixed_size_list(type_):
        return pa.list_(value, type_.list_size)
    return pa.large_list(value) if kinds.is_large_list(type_) else pa.list_(value)


class _RenamedArray:
    """An array with other names in its type, for `pa.array`. The values are not copied."""

    def __init__(self, array: pa.Array, type_: pa.DataType) -> None:
        self._array = array
        self._type = type_

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._type.__arrow_c_schema__(), self._array.__arrow_c_array__()[1]


def _with_texts(type_: pa.DataType) -> pa.DataType:
    """Return a type with STRING in place of JSON."""
    kinds = pa.types
    if is_json(type_):
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
    """Return whether a type contains decimals or JSON, which clients encode as strings."""
    if pa.types.is_struct(type_):
        return any(_has_special(each.type) for each in type_)
    if pa.types.is_map(type_):
        return _has_special(type_.key_type) or _has_special(type_.item_type)
    if is_nested(type_):
        return _has_special(type_.value_type)
    return is_json(type_) or bool(pa.types.is_decimal128(type_))


def _to_wire(array: pa.Array, field: pa.Field) -> pa.Array:
    """Convert results to the wire type of a field."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == field.type:
        return array
    if is_vector(array.type):
        return array.cast(field.type)
    if pa.types.is_decimal(array.type) and _is_text(field.type):
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], field.type)
    if is_nested(field.type):
        return pa.array([_plain(value, field.type) for value in array.to_pylist()], field.type)
    return array.cast(field.type)


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Convert a value to a wire type, in which nested decimals may be strings."""
    if value is None:
        return None
    if is_list(type_):
        return [_plain(each, type_.value_type) for each in value]
    if pa.types.is_map(type_):
        return [(_plain(key, type_.key_type), _plain(each, type_.item_type)) for key, each in value]
    if pa.types.is_struct(type_):
        return {field.name: _plain(value[field.name], field.type) for field in type_}
    return format(value, "f") if _is_text(type_) and isinstance(value, Decimal) else value


"""The metadata of a field with the name of its extension type."""


class WireAdapter(ABC):
    """The encoding of types and results for one system."""

    has_errors: ClassVar[bool]
    """Whether answers of scalar functions may contain an error for each row."""

    @abstractmethod
    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        """Return the wire type of a type that is not nested, and the metadata of its field."""

    def is_leaf(self, type_: pa.DataType) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a list type has a wire type of its own, such as a vector."""
        return False

    @abstractmethod
    def outputs(self, function: AnyFunction, result: pa.DataType) -> list[pa.Field]:
        """Return the fields of a result."""

    @abstractmethod
    def answer(
        self, answer: pa.RecordBatch, result: pa.DataType, *, is_table: bool
    ) -> tuple[list[pa.Array], pa.Array | None]:
        """Return the columns of an answer before encoding, and the errors of rows, if there are any.

        Args:
            answer: The results of the exchange.
            result: The declared type of the result; of a table function, the struct of its columns.
            is_table: Whether it is a table function.
        """

    def reads(self, client_type: pa.DataType, declared_type: pa.DataType) -> bool:
        """Return whether a client's column may be passed to an argument of a declared type.

        As in queries, only casts that change no value are implicit. The members of structs already have their declared
        names.
        """
        kinds = pa.types
        if isinstance(client_type, pa.BaseExtensionType):
            client_type = client_type.storage_type
        if is_vector(declared_type):
            return can_widen(client_type, declared_type)
        if is_list(client_type) and is_list(declared_type):
            return self.reads(client_type.value_type, declared_type.value_type)
        if kinds.is_struct(client_type) and kinds.is_struct(declared_type):
            return all(self.reads(field.type, declared_type.field(field.name).type) for field in client_type)
        if kinds.is_map(client_type) and kinds.is_map(declared_type):
            key, item = (client_type.key_type, declared_type.key_type), (client_type.item_type, declared_type.item_type)
            return self.reads(*key) and self.reads(*item)
        return can_widen(client_type, declared_type) or can_widen(client_type, self.leaf(declared_type)[0])

    def field(self, name: str, type_: pa.DataType) -> pa.Field:
        """Return the field on the wire for a declared type."""
        kinds = pa.types
        if is_list(type_) and not self.is_leaf(type_):
            return pa.field(name, pa.list_(self.field(type_.value_field.name, type_.value_type)))
        if kinds.is_struct(type_):
            return pa.field(name, pa.struct([self.field(each.name, each.type) for each in type_]))
        if kinds.is_map(type_):
            key = self.field("key", type_.key_type).with_nullable(False)
            return pa.field(name, pa.map_(key, self.field("value", type_.item_type)))
        wire, metadata = self.leaf(type_)
        return pa.field(name, wire, metadata=metadata or None)

    def schema(self, function: AnyFunction) -> pa.Schema:
        """Return inputs and outputs as fields; a type that depends on the arguments is null."""
        types = function.input_types or (pa.null(),) * len(function.input_names)
        if function.kind is FunctionKind.AGGREGATE:
            types = tuple(map(pa.list_, types))
        inputs = [self.field(name, type_) for name, type_ in zip(function.input_names, types, strict=True)]
        result = function.result_type
        outputs = [pa.field("result", pa.null())] if result is None else self.outputs(function, result)
        return pa.schema([*inputs, *outputs])


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is a list of any of Arrow's kinds."""
    kinds = pa.types
    return bool(kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_))


class Databend(WireAdapter):
    """A scalar function answers with its result; a table function with its columns. A row that fails ends the call."""

    has_errors = False

    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        kinds = pa.types
        if is_json(type_):
            return pa.large_binary(), {b"Extension": b"Variant"}
        if kinds.is_string(type_):
            return pa.large_string(), {}
        if kinds.is_binary(type_):
            return pa.large_binary(), {}
        if kinds.is_timestamp(type_):
            return pa.timestamp("us"), {}
        if self.is_leaf(type_):
            size = str(type_.list_size).encode()
            return pa.list_(pa.float32(), type_.list_size), {b"Extension": b"Vector", b"vector_size": size}
        return type_, {}

    def is_leaf(self, type_: pa.DataType) -> bool:
        return bool(pa.types.is_fixed_size_list(type_) and pa.types.is_float32(type_.value_type))

    def schema(self, function: AnyFunction) -> pa.Schema:
        count = str(len(function.input_names)).encode()
        return super().schema(function).with_metadata({b"x-databend-udf-input-count": count})

    def outputs(self, function: AnyFunction, result: pa.DataType) -> list[pa.Field]:
        if function.kind is not FunctionKind.TABLE:
            return [self.field("output", result)]
        return [self.field(each.name, each.type) for each in result]

    def answer(
        self,
        answer: pa.RecordBatch,
        result: pa.DataType,  # noqa: ARG002 - as the others
        *,
        is_table: bool,
    ) -> tuple[list[pa.Array], pa.Array | None]:
        output = answer.column("output_0")
        return (output.flatten() if is_table else [output]), None


class RisingWave(WireAdapter):
    """The types of RisingWave and of arrow-udf.

    A scalar function answers with its result, and a column of errors if a row has failed; a table function with the
    number of the row and its value.
    """

    has_errors = True

    def leaf(self, type_: pa.DataType) -> tuple[pa.DataType, dict[bytes, bytes]]:
        if is_json(type_):
            return pa.string(), {EXTENSION: b"arrowudf.json"}
        if pa.types.is_decimal128(type_):
            return pa.string(), {EXTENSION: b"arrowudf.decimal"}
        if pa.types.is_timestamp(type_) and type_.tz:
            return pa.timestamp("us", "+00:00"), {}
        return type_, {}

    def outputs(self, function: AnyFunction, result: pa.DataType) -> list[pa.Field]:
        if function.kind is not FunctionKind.TABLE:
            return [self.field(function.name, result)]
        value = result.field(0).type if result.num_fields == 1 else result
        return [pa.field(ROW, pa.int32()), self.field(function.name, value)]

    def answer(
        self, answer: pa.RecordBatch, result: pa.DataType, *, is_table: bool
    ) -> tuple[list[pa.Array], pa.Array | None]:
        if is_table:
            value = answer.column("output_0")
            return [answer.column(ROW), value.field(0) if result.num_fields == 1 else value], None
        errors = answer.column(ERROR)
        texts = pc.struct_field(errors, "message") if errors.null_count < len(errors) else None
        return [answer.column("output_0")], texts
