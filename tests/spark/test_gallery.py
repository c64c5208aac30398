"""The queries of the pages of the gallery: all functions in one batch and in one stream."""

from __future__ import annotations

import ast
import datetime
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from foldflight import connect
from foldflight.spark import group_by
from foldflight.testing import run_epochs
from tests.spark.test_stream import Stream

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "gallery" / f"{path.stem}.md" for path in sorted((ROOT / "examples" / "gallery").glob("*.py"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCHEMA = pa.schema(
    [
        ("city", pa.string()),
        ("visitor", pa.string()),
        ("step", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("amount", pa.float64()),
        ("pieces", pa.int32()),
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("embedding", pa.list_(pa.float32())),
        ("question", pa.list_(pa.float32())),
        ("features", pa.list_(pa.float32())),
        ("is_new", pa.bool_()),
    ]
)
TYPES = dict(zip(SCHEMA.names, SCHEMA.types, strict=True))
DDL = (
    "city string, visitor string, step string, at timestamp, day date, amount double, pieces int, "
    "latitude double, longitude double, embedding array<float>, question array<float>, features array<float>, "
    "is_new boolean"
)


def visits(count: int, first: int = 0) -> list[dict[str, Any]]:
    start = datetime.datetime(2030, 1, 1, 12, tzinfo=datetime.UTC)
    return [
        {
            "city": ("Oslo", "Quito")[number % 2],
            "visitor": f"visitor {number * number % 11}",
            "step": ("view", "cart", "buy", "view", "buy")[number % 5],
            "at": start + datetime.timedelta(minutes=number * 7 % 40),
            "day": start.date() + datetime.timedelta(days=number * 5 % 12),
            "amount": number * 13 % 120 / 2,
            "pieces": 1 + number % 4,
            "latitude": 50.0 + number % 7,
            "longitude": 176.0 + number % 3,
            "embedding": [float(number * place % 7 - 3) for place in range(384)],
            "question": [float(place % 5) for place in range(384)],
            "features": [float(number * place % 7) for place in range(16)],
            "is_new": number % 3 == 0,
        }
        for number in range(first, first + count)
    ]


def blocks(page: Path) -> list[str]:
    """Return the blocks of code of a page: a batch, a stream, and others."""
    return [text for text in BLOCK.findall(page.read_text()) if not text.startswith("```")]


def aggregates(functions: Any, place: int) -> dict[str, Any]:
    """Return the arguments of `agg` in one block of each page, evaluated."""
    result: dict[str, Any] = {}
    for page in PAGES:
        calls = [each for each in ast.walk(ast.parse(blocks(page)[place])) if isinstance(each, ast.Call)]
        (agg,) = (each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "agg")
        for keyword in agg.keywords:
            assert keyword.arg is not None
            assert keyword.arg not in result, f"two pages have the output {keyword.arg}"
            result[keyword.arg] = eval(ast.unparse(keyword.value), {"functions": functions})
    return result


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return math.isclose(one, other, rel_tol=1e-9) if isinstance(one, float) else bool(one == other)


@pytest.mark.slow
def test_all_functions_run_in_one_batch_and_in_one_stream(classic: SparkSession, tmp_path: Path) -> None:
    """The queries of the pages have the results of the same calls over literal epochs, which other tests compare."""
    functions = connect(f"embedded:{','.join(f'examples.gallery.{page.stem}' for page in PAGES)}")
    rows = visits(40)
    df = classic.createDataFrame([tuple(row.values()) for row in rows], DDL).coalesce(1)
    batch = aggregates(functions, 0)
    (expected,) = run_epochs(batch, [rows], keys=["city"], types=TYPES)
    result = {row["city"]: row.asDict(recursive=True) for row in group_by(df, "city").agg(**batch).collect()}
    assert len(result) == 2
    for _, expected_rows in expected.changelog:
        assert alike(expected_rows, result[expected_rows["city"]]), (expected_rows, result[expected_rows["city"]])

    live = aggregates(functions, 1)
    epochs = [rows, visits(15, first=40)]
    stream = Stream(classic, tmp_path, lambda source: group_by(source, "city", buckets=1).agg(**live))
    stream.ddl, stream.schema = DDL, SCHEMA
    for epoch in epochs:
        stream.write(epoch)
    for due, output in zip(run_epochs(live, epochs, keys=["city"], types=TYPES), stream.run(), strict=True):
        new = {row["city"]: row for kind, row in due.changelog if kind != "-U"}
        assert len(new) == len(output) == 2
        for row in output:
            assert alike(new[row["city"]], row), (new[row["city"]], row)

    scope: dict[str, Any] = {"functions": functions, "group_by": group_by, "visits": df}
    exec(blocks(ROOT / "docs" / "gallery" / "hyperloglog.md")[2], scope)
    shared_counts = {(row["city"], row["other_city"]): row["shared"] for row in scope["shared"].collect()}
    by_city = {city: {row["visitor"] for row in rows if row["city"] == city} for city in ("Oslo", "Quito")}
    assert shared_counts == {(one, two): len(by_city[one] & by_city[two]) for one in by_city for two in by_city}
