"""Orders that are inserted, updated and deleted at random, and what a table of their totals has then."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("op", pa.string()), ("name", pa.string()), ("shop", pa.int32()), ("amount", pa.int64())])
DDL = "op STRING, name STRING, shop INT, amount BIGINT"
KEYS = ["name", "shop"]
Totals = dict[tuple[Any, ...], tuple[int | None, int]]


class Orders:
    """The changes of each epoch. Customers and shops may be NULL, and some customers lose all their orders again."""

    def __init__(self, seed: int, customers: int = 8) -> None:
        self.random = random.Random(seed)
        self.names = [None, "", *(f"customer {number}" for number in range(customers - 2))]
        self.orders: list[tuple[Any, ...]] = []

    def epoch(self, changes: int) -> list[dict[str, Any]]:
        result = []
        for _ in range(changes):
            if self.orders and self.random.random() < 0.45:
                at = self.random.randrange(len(self.orders))
                self.orders[at], self.orders[-1] = self.orders[-1], self.orders[at]
                result.append(("-D", *self.orders.pop()))
            else:
                order = (
                    self.random.choice(self.names),
                    self.random.choice([None, 1, 2]),
                    self.random.choice([None, 0, 7, -(2**40)]),
                )
                self.orders.append(order)
                result.append(("+I", *order))
        return [dict(zip(SCHEMA.names, each, strict=True)) for each in result]

    def write(self, folder: Path, number: int, changes: int) -> None:
        """Write the changes of an epoch as one file."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{number:04}.parquet"
        pq.write_table(pa.Table.from_pylist(self.epoch(changes), schema=SCHEMA), path)
        os.utime(path, (number + 1, number + 1))  # Spark takes the files by their times

    def totals(self) -> Totals:
        """Return the batch result: (total, orders) of each customer and shop that has orders."""
        result: dict[tuple[Any, ...], list[Any]] = {}
        for name, shop, amount in self.orders:
            result.setdefault((name, shop), []).append(amount)
        return {
            key: (_sum([each for each in amounts if each is not None]), len(amounts)) for key, amounts in result.items()
        }


def _sum(amounts: list[int]) -> int | None:
    return sum(amounts) if amounts else None


def totals_in(rows: list[dict[str, Any]]) -> Totals:
    """Return the rows of a table like `Orders.totals`; a key that appears twice fails."""
    result = {(row["name"], row["shop"]): (row["total"], row["orders"]) for row in rows}
    assert len(result) == len(rows)
    return result
