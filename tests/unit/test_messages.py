"""What the server reads of a message at once if it is like the one before is what it reads of the message alone."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.errors import RejectedError
from foldflight.exchange.frames import SlotSet
from foldflight.exchange.ipc import BatchReader, fields_of, part, split
from foldflight.server import flightbase

SCHEMA = pa.schema([("slot", pa.int32()), ("v", pa.int64())])


class Sent:
    """A call whose client has sent these messages."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = deque(messages)

    def receive(self) -> bytes | None:
        return self._messages.popleft() if self._messages else None


def batch_of(rows: int, first: int) -> pa.RecordBatch:
    values = np.arange(first, first + rows)
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int32()), pa.array(values)], schema=SCHEMA)


def encode_batch(batch: pa.RecordBatch, metadata: bytes = b"m") -> bytes:
    return flightbase._flight_data(batch.serialize(), metadata)


# Chunks of equal and of other sizes, no body, a body before other fields, two bodies, and an empty message.
BODY = part(flightbase._BODY, b"12345678")
MESSAGES = [
    *(encode_batch(batch_of(rows, first)) for rows in (3, 4) for first in (0, 7)),
    encode_batch(batch_of(3, 0), b"n"),
    encode_batch(batch_of(0, 0)),
    BODY + part(3, b"metadata"),
    BODY + BODY,
    part(3, b"metadata" * 2) + BODY,
    part(3, b"metadata") + part(3, b"metadat"),
    b"",
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=8))
def test_fields_are_found_whatever_message_came_before(messages: list[bytes]) -> None:
    """The reader, which compares a message with the one before, finds the fields that are in the message."""
    call: Any = Sent(messages)
    descriptor = part(1, fl.FlightDescriptor.for_command(b"").serialize())
    reader = flightbase._Reader(call, descriptor, 1 << 20)
    assert reader._next() == fields_of(descriptor)
    assert [reader._next() for _ in messages] == [fields_of(message) for message in messages]


def test_batches_of_equal_size_have_their_own_values() -> None:
    """The header of a batch is checked once for batches of equal size; each has the values of its own message."""
    reader = BatchReader(1 << 20)
    reader.take(*split(SCHEMA.serialize()))
    batches = [batch_of(rows, first) for rows, first in ((3, 0), (3, 7), (4, 1), (3, 2))]
    assert [reader.take(*split(batch.serialize())) for batch in batches] == batches
    sizes = [reader.batch_bytes]
    reader.take(*split(batch_of(5000, 0).serialize()))
    assert reader.batch_bytes > sizes[0]


def test_empty_batches_are_read_each_time() -> None:
    """A batch without rows is read each time it comes, also directly after itself and after a batch with rows."""
    reader = BatchReader(1 << 20)
    reader.take(*split(SCHEMA.serialize()))
    batches = [batch_of(rows, first) for rows, first in ((0, 0), (0, 0), (3, 7), (0, 0), (3, 1), (3, 2), (0, 0))]
    assert [reader.take(*split(batch.serialize())) for batch in batches] == batches


def test_a_compressed_batch_is_measured_each_time() -> None:
    """A batch whose header equals the last one's is refused if its body claims to unpack to more."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch_of(1000, 0))
    message = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))[1]
    header, body = memoryview(message.metadata), memoryview(message.body)
    reader = BatchReader(1 << 20)
    reader.take(*split(SCHEMA.serialize()))
    assert reader.take(header, body) == batch_of(1000, 0)
    forged_body = bytearray(body)
    struct.pack_into("<q", forged_body, 0, 1 << 40)
    with pytest.raises(RejectedError, match="message_bytes_max"):
        reader.take(header, memoryview(bytes(forged_body)))


@given(st.lists(st.tuples(st.sampled_from(["add", "discard", "clear"]), st.lists(st.integers(0, 9), max_size=20))))
def test_slot_sets_behave_like_sets(steps: list[tuple[str, list[int]]]) -> None:
    """A SlotSet has what a Python set has after the same steps, also once it has all slots up to some."""
    slots, expected = SlotSet(), set[int]()
    for verb, numbers in steps:
        given_slots = np.array(numbers, np.int32)
        if verb == "add":
            slots.add(given_slots, max(numbers, default=-1) + 1)
            expected |= set(numbers)
        elif verb == "discard":
            slots.discard(given_slots)
            expected -= set(numbers)
        else:
            slots.clear()
            expected.clear()
        assert slots.to_numpy().tolist() == sorted(expected)
        assert bool(slots) == bool(expected)
