"""The connection to one server: the splitting of large chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from foldflight import RejectedError, connect, udf
from foldflight.client.connection import Connection
from foldflight.exchange.frames import SLOT_BYTES, Chunk, Frame, Open
from foldflight.functions import Call, Step, StepArgument


@udf
def upper(v: str) -> str:
    return v.upper()


class Written(Connection):
    """A connection that keeps the frames written to it, to a server that takes messages up to a size."""

    def __init__(self, open_request: Open, message_bytes_max: int, *functions: object) -> None:
        super().__init__(open_request)
        self.written: list[Frame] = []
        open_reply = connect(*functions or ["embedded:"]).transport.describe(open_request)
        self._replies = [replace(open_reply, limits=replace(open_reply.limits, message_bytes_max=message_bytes_max))]
        self._start()

    def _write(self, frame: Frame) -> None:
        self.written.append(frame)

    def _read(self) -> Frame | None:
        return self._replies.pop()

    def _end(self) -> None:
        pass


def parts_of(rows: pa.RecordBatch, message_bytes_max: int) -> list[pa.RecordBatch]:
    """Return the batches of the messages in which a chunk is sent."""
    connection = Written(Open((Call("count"),), rows.schema), message_bytes_max)
    assert not connection.send(Chunk(rows))
    return [frame.batch for frame in connection.written if isinstance(frame, Chunk)]


def test_rows_without_columns_are_cut_too() -> None:
    """A chunk whose rows have no bytes is split into parts whose slots the server accepts."""
    rows = pa.RecordBatch.from_arrays([pa.nulls(12_345)], names=["x"]).select([])
    counts = [part.num_rows for part in parts_of(rows, 20_000)]
    assert sum(counts) == 12_345
    assert max(counts) * SLOT_BYTES <= 20_000


def test_columns_with_the_same_buffer_are_cut() -> None:
    """Columns that share their bytes take as much room in a message as others."""
    values = pa.array(range(6_000), pa.int64())
    rows = pa.RecordBatch.from_arrays([values, values, values], names=["x", "y", "z"])
    parts = parts_of(rows, 100_000)
    assert len(parts) > 1
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([rows]))


@pytest.mark.parametrize(
    ("request_of", "slot"),
    [
        (partial(Open, (Call("count"),)), 4),
        (partial(Open, (), steps=(Step("upper", (StepArgument(column="v"),)),), outputs=(0,)), None),
    ],
)
def test_a_row_larger_than_a_message_is_named(request_of: Callable[..., Open], slot: int | None) -> None:
    """The rows before it are sent. The error has the setting, and the slot, whose group the engine adds."""
    rows = pa.RecordBatch.from_pydict(
        {"slot": pa.array([7, 4, 7], pa.int32()), "v": pa.array(["a", "b" * 20_000, "c"])}
    )
    connection = Written(request_of(columns=rows.schema), 10_000, upper)
    with pytest.raises(RejectedError, match=r"one row .* has 200.. bytes, and message_bytes_max is 10000") as excinfo:
        connection.send(Chunk(rows))
    assert (excinfo.value.code, excinfo.value.limit, excinfo.value.slot) == ("LIMIT", "message_bytes_max", slot)
    assert [frame.batch["v"].to_pylist() for frame in connection.written if isinstance(frame, Chunk)] == [["a"]]
