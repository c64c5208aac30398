"""The engine's end of an exchange: the splitting of large chunks."""

import dataclasses

import pyarrow as pa
import pytest

from foldflight import connect
from foldflight.client import embedded
from foldflight.exchange.frames import Open
from foldflight.functions import Call


def test_rows_without_columns_are_cut_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk whose rows have no bytes is split into parts that the server accepts."""
    limits = dataclasses.replace(embedded._LIMITS, message_bytes_max=20_000)
    monkeypatch.setattr(embedded, "_LIMITS", limits)
    rows = pa.RecordBatch.from_arrays([pa.nulls(12_345)], names=["x"]).select([])
    with connect("embedded:").transport.open(Open(calls=(Call("count"),), columns=rows.schema)) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        assert exchange.results(1).column("output_0").to_pylist() == [12_345]


def test_columns_with_the_same_buffer_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that share their bytes take as much room in a message as others."""
    limits = dataclasses.replace(embedded._LIMITS, message_bytes_max=100_000)
    monkeypatch.setattr(embedded, "_LIMITS", limits)
    values = pa.array(range(6_000), pa.int64())
    rows = pa.RecordBatch.from_arrays([values, values, values], names=["x", "y", "z"])
    sent: list[int] = []
    with connect("embedded:").transport.open(Open(calls=(Call("count"),), columns=rows.schema)) as exchange:
        write = exchange._write  # type: ignore[attr-defined]
        monkeypatch.setattr(exchange, "_write", lambda frame: (sent.append(frame.batch.num_rows), write(frame)))
        exchange.chunk(rows)
    assert sum(sent) == 6_000
    assert len(sent) > 1
