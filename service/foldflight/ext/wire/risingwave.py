"""External functions of RisingWave and of other clients of arrow-udf.

Source: arrow-udf-flight/python and src/lib.rs of arrow-udf.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.ext.wire.adapter import EXTENSION, WireAdapter
from foldflight.fold.failures import ERROR
from foldflight.fold.scalar.expressions import ROW
from foldflight.functions import AnyFunction, FunctionKind
from foldflight.functions.types.arrow import is_json


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
