"""The interface of wire adapters: the encoding of types and results for clients of another system.

`Databend` is for Databend's external functions (source: databend_udf/udf.py of databend-udf), `RisingWave` for those of
RisingWave and of other clients of arrow-udf (source: arrow-udf-flight/python and src/lib.rs of arrow-udf).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.fold.failures import ERROR
from foldflight.fold.scalar.expressions import ROW
from foldflight.functions import AnyFunction, FunctionKind, can_widen
from foldflight.functions.types.arrow import is_json
from foldflight.functions.types.vectors import is_vector

EXTENSION: Final = b"ARROW:extension:name"
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
