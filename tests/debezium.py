"""Real events: of Debezium 3.6.3 with PostgreSQL 15, in five of its modes, beside the tables of the database."""

from __future__ import annotations

import functools
import json
import tarfile
from pathlib import Path

import pyarrow as pa

NTZ, INSTANT = pa.timestamp("us"), pa.timestamp("us", "UTC")
ORDERS = {
    "id": pa.int64(),
    "customer": pa.string(),
    "amount": pa.decimal128(10, 2),
    "qty": pa.int32(),
    "price": pa.float64(),
    "ordered": NTZ,
    "paid": INSTANT,
    "due": pa.date32(),
    "note": pa.string(),
}
"""The columns of the table `orders`."""

EVENTS = Path(__file__).with_name("debezium_events.tar.xz")


@functools.cache
def archive() -> dict[str, str]:
    """Return the events of each mode, one Kafka message a line, and `truth`: the tables after each phase."""
    with tarfile.open(EVENTS) as files:
        return {
            Path(member.name).stem: stream.read().decode()
            for member in files.getmembers()
            if member.isfile() and (stream := files.extractfile(member))
        }


def values(mode: str, table: str) -> list[str | None]:
    """Return the values of the messages about a table; None is a tombstone."""
    result = [json.loads(line) for line in archive()[mode].splitlines()]
    return [each["value"] for each in result if each["topic"] == f"shop.inv.{table}"]
