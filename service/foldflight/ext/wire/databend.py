"""Databend's external functions. Source: databend_udf/udf.py of databend-udf."""

from __future__ import annotations

import pyarrow as pa

from foldflight.ext.wire.adapter import WireAdapter
from foldflight.functions import AnyFunction, FunctionKind
from foldflight.functions.types.arrow import is_json


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
