"""Columns may have plain Arrow types; views, dictionaries and others are refused before any row."""

from __future__ import annotations

import pyarrow as pa
import pytest

from foldflight.client import Transport
from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open
from foldflight.functions.query.call import Call


@pytest.mark.parametrize(
    ("type_", "remedy"),
    [
        (pa.string_view(), "cast it to string"),
        (pa.binary_view(), "cast it to binary"),
        (pa.dictionary(pa.int32(), pa.string()), "decode it to string"),
        (pa.list_(pa.dictionary(pa.int8(), pa.int64())), "decode it to int64"),
        (pa.dense_union([pa.field("a", pa.int64())]), "send a struct"),
        (pa.run_end_encoded(pa.int32(), pa.int64()), "decode it to int64"),
        (pa.list_view(pa.int64()), "cast it to list<item: int64>"),
    ],
    ids=str,
)
@pytest.mark.parametrize("argument", ["odd", "value"])
def test_types_that_are_not_plain_are_refused_before_any_row(
    transport: Transport, type_: pa.DataType, remedy: str, argument: str
) -> None:
    """The column is named at open with the type to send instead, whether a call uses it or not."""
    columns = pa.schema([("value", pa.int64()), ("odd", type_)])
    for attempt in (transport.describe, transport.open):
        with pytest.raises(RejectedError, match=f"column odd: .*plain types are; {remedy}") as excinfo:
            attempt(Open((Call("count", (argument,)),), columns))
        assert excinfo.value.code == "SCHEMA_MISMATCH"
