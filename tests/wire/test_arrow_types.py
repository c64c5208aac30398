"""How an engine encodes a column is its own business: views and dictionaries fold as the plain values do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from foldflight.client import Transport
from foldflight.errors import RejectedError
from foldflight.exchange.codec import Message, decode, encode, encode_open
from foldflight.exchange.frames import Barrier, Chunk, Open, Results
from foldflight.exchange.machine import Role
from foldflight.functions.call import Call
from foldflight.server.run.lifecycle import Server
from tests.wire.kit import end_epoch

TEXTS = ["a text longer than twelve bytes", None, "b", "a text longer than twelve bytes"]
NUMBERS = [3, None, -7, 3]


def folded(transport: Transport, column: pa.Array, function: str, *, distinct: bool = False) -> tuple[pa.Field, Any]:
    """Fold one column in one group: the fields of its state and output, and the output."""
    columns = pa.schema([("value", column.type)])
    call = Call(function, ("value",), distinct=distinct)
    with transport.open(Open((call,), columns)) as exchange:
        exchange.chunk(pa.RecordBatch.from_arrays([column], schema=columns))
        results = end_epoch(exchange, 1)
    return results.schema, results.column("output_0").to_pylist()


@pytest.mark.parametrize(
    ("sent", "plain"),
    [
        (pa.array(TEXTS, pa.string_view()), pa.array(TEXTS)),
        (pa.array([None if text is None else text.encode() for text in TEXTS], pa.binary_view()), None),
        (pa.array(TEXTS).dictionary_encode(), pa.array(TEXTS)),
        (pa.array(NUMBERS).dictionary_encode(), pa.array(NUMBERS)),
        (
            pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int8()), pa.array(["x", None])),
            pa.array(["x", None, None, "x"]),
        ),
        (pa.array([TEXTS, None], pa.list_(pa.string_view())), pa.array([TEXTS, None])),
        (pa.array([{"a": "x"}, None], pa.struct([("a", pa.string_view())])), pa.array([{"a": "x"}, None])),
    ],
    ids=lambda array: "plain" if array is None else str(array.type),
)
def test_encoded_columns_fold_as_plain_ones(transport: Transport, sent: pa.Array, plain: pa.Array | None) -> None:
    """Types of states and outputs, fingerprints and values are those of the plain column, NULLs included."""
    plain = sent.cast(pa.binary()) if plain is None else plain
    for function, distinct in (("min", False), ("count", False), ("count", True), ("last", False)):
        if function == "min" and pa.types.is_nested(plain.type):
            continue
        found, expected = (folded(transport, each, function, distinct=distinct) for each in (sent, plain))
        assert found == expected
        assert found[0].equals(expected[0], check_metadata=True)


def test_dictionaries_of_numbers_are_numbers(transport: Transport) -> None:
    """A dictionary widens as its values do: `avg` calculates with it."""
    sent, plain = pa.array(NUMBERS).dictionary_encode(), pa.array(NUMBERS)
    assert folded(transport, sent, "avg") == folded(transport, plain, "avg")


def test_dictionaries_may_change_from_chunk_to_chunk(server: Server) -> None:
    """On one stream each chunk may bring a new dictionary."""
    columns = pa.schema([("value", pa.dictionary(pa.int32(), pa.string()))])
    client = fl.FlightClient(server.url)
    descriptor = fl.FlightDescriptor.for_command(encode_open(Open((Call("max", ("value",)),), columns)))
    writer, reader = client.do_exchange(descriptor)
    with writer:
        writer.begin(columns)
        opened = reader.read_chunk()
        assert opened.data.num_rows == 0
        for texts in (["a", "b"], ["z", "a"], ["c"]):
            batch = pa.RecordBatch.from_arrays([pa.array(texts).dictionary_encode()], schema=columns)
            message = encode(Chunk(batch), columns)
            writer.write_with_metadata(message.batch, message.metadata)
        barrier = encode(Barrier(1), columns)
        writer.write_with_metadata(barrier.batch, barrier.metadata)
        answer = reader.read_chunk()
        results = decode(Message(answer.app_metadata.to_pybytes(), answer.data), Role.SERVER)
        assert isinstance(results, Results)
        assert results.batch.column("output_0").to_pylist() == ["z"]
        writer.done_writing()
    client.close()


@pytest.mark.parametrize(
    "type_",
    [
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_view(pa.int64()),
        pa.dictionary(pa.int8(), pa.string_view()),
    ],
    ids=str,
)
@pytest.mark.parametrize("argument", ["odd", "value"])
def test_other_encodings_are_refused_before_any_row(transport: Transport, type_: pa.DataType, argument: str) -> None:
    """A column that cannot be folded is named at open, whether a call refers to it or not."""
    columns = pa.schema([("value", pa.int64()), ("odd", type_)])
    for attempt in (transport.describe, transport.open):
        with pytest.raises(RejectedError, match=r"column odd: .*plain type") as caught:
            attempt(Open((Call("count", (argument,)),), columns))
        assert caught.value.code == "SCHEMA_MISMATCH"
