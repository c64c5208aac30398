"""A task that runs twice stores the same bytes, in whatever order the network brings the rows of other tasks.

Spark may read what the one has stored together with what later epochs write after the other.
"""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from foldflight.client import EmbeddedTransport
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.query import StreamOptions
from foldflight.functions import Call, Registry
from tests.laws.stream_engine import StreamEngine
from tests.spark.spark_functions import LogSeen, Median

TRANSPORT = EmbeddedTransport(Registry.load([LogSeen, Median]), state_key=b"a key of 16 bytes")
CALLS = {
    "list": Call("median", ("v",)),
    "view": Call("seen_log", ("text",)),
    "different": Call("median", ("v",), distinct=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_task_stores_equal_bytes_for_rows_in_any_order(name: str) -> None:
    """The engine of the laws compares the pieces of tasks that it runs twice."""
    chance = random.Random(3)
    engine = StreamEngine(
        TRANSPORT,
        {name: CALLS[name]},
        pa.schema([("k", pa.string())]),
        pa.schema([("v", pa.int64()), ("text", pa.string())]),
        has_kinds=False,
        options=StreamOptions(emit="changelog", buckets=2, strict=False),
        seed=1,
        bounds=BlockBounds(),
        folds_first=False,
    )
    for _ in range(12):
        rows = [{"k": chance.choice("ab"), "v": chance.randrange(100)} for _ in range(90)]
        texts = [{**row, "text": str(row["v"])} for row in rows]
        engine.epoch([texts[:30], texts[30:60], texts[60:]], 0)
    assert engine.reruns > 1
    assert set(engine.live_rows()) == {("a",), ("b",)}
