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
