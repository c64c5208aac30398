"""Compiled functions get arrays, structs and maps as Spark's Arrow batches have them, embedded and on a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from foldflight import connect, udaf
from foldflight.client import Functions
from foldflight.server.run.lifecycle import serving
from foldflight.spark import group_by

SCHEMA = "k int, values array<bigint>, at struct<x: double, name: string>, counts map<string, int>"
ROWS = [
    (
        row % 7,
        None if row % 11 == 0 else [row, None] if row % 50 == 3 else list(range(row % 5)),
        None if row % 13 == 0 else (row / 4, None if row % 3 == 0 else f"name{row % 4}"),
        {f"name{each}": row + each for each in range(row % 4)},
    )
    for row in range(500)
]


@udaf(
    input_types=["ARRAY<BIGINT>", "STRUCT<x: DOUBLE, name: STRING>", "MAP<STRING, INT>"],
    result_type="DOUBLE",
    compile=True,
)
class Visits:
    """Reads all three."""

    total: float = 0.0
    last: str = ""

    def accumulate(self, values: list[int] | None, at: dict[str, Any] | None, counts: dict[str, int]) -> None:
        if values is not None:
            self.total += len(values)
            for value in values:
                if value is not None:
                    self.total += value
        if at is not None and at["name"] is not None and at["name"] in counts:
            self.total += at["x"] * counts[at["name"]]
            self.last = at["name"]

    def merge(self, other: Visits) -> None:
        self.total += other.total

    def get_value(self) -> float:
        return self.total


@pytest.fixture(params=["embedded", pytest.param("remote", marks=pytest.mark.slow)])
def visits(request: pytest.FixtureRequest) -> Iterator[Functions]:
    """The function, embedded and on a server."""
    if request.param == "embedded":
        yield connect([Visits])
        return
    with serving(Visits, compiled_folder="off") as server:
        yield connect(server.url)


@pytest.mark.every_turn
def test_nested_arguments_have_the_values_of_spark(classic: Any, visits: Functions) -> None:
    """NULL arrays, structs, fields and items are None in Python."""
    oracle: dict[int, Visits] = defaultdict(Visits)
    for key, values, at, counts in ROWS:
        oracle[key].accumulate(values, None if at is None else {"x": at[0], "name": at[1]}, counts)
    df = classic.createDataFrame(ROWS, SCHEMA)
    result = group_by(df, "k").agg(visits["visits"]("values", "at", "counts").alias("total")).collect()
    assert {row.k: row.total for row in result} == {key: each.total for key, each in oracle.items()}
