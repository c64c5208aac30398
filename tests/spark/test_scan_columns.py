"""`with_columns` and `over` of a scan have the rows of the same queries over Spark's own read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from foldflight import connect, udf
from foldflight.client import Functions
from foldflight.spark import over, with_columns
from foldflight.spark.scans.scan import Scan
from tests.spark.test_scan import check_pairs, random_scan

_TABLES = 10
_NESTED = "array<double> list struct map"


@udf
def described(v: int | None, x: float | None) -> str | None:
    """Return two numbers as a text that differs wherever they do."""
    return None if v is None and x is None else f"{v} {x!r}"


@udf
def doubled(w: int | None) -> int | None:
    """Return a number twice as large; NULL of NULL."""
    return None if w is None else 2 * w


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(10, 200, _TABLES))]
)
def test_random_tables_have_all_columns_and_each_row_once(
    first: int, classic: Any, embedded: Functions, tmp_path: Path
) -> None:
    """All columns are there, also nested ones and columns of partitions, and each row once, as its condition has it."""
    scalar = connect([described, doubled])
    queries: dict[str, DataFrame] = {}
    for seed in range(first, first + _TABLES):
        rng = random.Random(f"columns {seed}")
        file_scan, types = random_scan(classic, tmp_path / str(seed), rng, _NESTED)
        plain = classic.read.parquet(str(tmp_path / str(seed)))
        for condition in file_scan._where:
            plain = plain.where(condition)
        argument = rng.choice([f"CAST({each} AS DOUBLE)" for each in ("v", "w", "p", *_floats(types))])
        keys = rng.sample([*types, "p"], rng.randint(0, 2))
        for name, make in {
            "with_columns": lambda df, x=argument: with_columns(
                df, d=scalar["described"]("v", x), w=scalar["doubled"]("w")
            ),
            "over": lambda df, by=keys: _over(df, by, embedded),
        }.items():
            queries |= {f"{name} {seed}, ours": make(file_scan), f"{name} {seed}, Spark": make(plain)}
    check_pairs(queries)


def _floats(types: list[str]) -> list[str]:
    return [each for each in types if each in {"float", "double"}]


def _over(df: DataFrame | Scan, keys: list[str], functions: Mapping[str, Any]) -> DataFrame:
    uses = {"x": functions["weighted_avg"]("v", "w"), "s": functions["sum"]("v"), "n": functions["count"]("w")}
    return over(df, *keys, order_by="at").agg(**uses)
