"""Streams on Spark whose state is of another version, or damaged."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from foldflight import connect, udaf
from foldflight.spark import group_by, state_table, stream
from foldflight.spark.stream import BucketProcessor
from tests.spark import spark_functions
from tests.spark.test_stream import PROVIDER, ROCKSDB, Stream

Rows = list[dict[str, Any]]


@pytest.fixture
def rocks(classic: SparkSession) -> Iterator[SparkSession]:
    """The classic session, with a state store that can hold a state table."""
    classic.conf.set(PROVIDER, ROCKSDB)
    yield classic
    classic.conf.unset(PROVIDER)


def orders(*customers: str, amount: int = 1) -> Rows:
    return [{"op": "+I", "customer": each, "amount": amount, "qty": 1, "x": 1.0} for each in customers]


def mean(version: str, *, migrates: bool) -> type:
    """Return a version of a function whose state is a number in the first and a dict in the second."""

    class Mean:
        def create_accumulator(self) -> dict[str, int]:
            return {"sum": 0, "rows": 0}

        def accumulate(self, accumulator: dict[str, int], value: int) -> None:
            accumulator["sum"] += value
            accumulator["rows"] += 1

        def get_value(self, accumulator: dict[str, int]) -> float:
            return accumulator["sum"] / accumulator["rows"]

    class Total:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + value

        def get_value(self, accumulator: int) -> float:
            return float(accumulator)

    class Migrating(Mean):
        def migrate(self, version: str, state: int) -> dict[str, int]:
            return {"sum": state, "rows": 1}

    cls = Total if version == "1" else Migrating if migrates else Mean
    return udaf(input_types=["BIGINT"], result_type="DOUBLE", name="mean", version=version)(cls)


def test_a_query_goes_on_with_a_new_version(rocks: SparkSession, tmp_path: Path) -> None:
    """Refused without migrate; with it groups of both versions are right, and a reader sees each by its version."""

    def query(version: str, *, migrates: bool) -> Any:
        function = connect(mean(version, migrates=migrates))["mean"]
        return lambda df: group_by(df, "customer", buckets=3).agg(mean=function("amount"))

    running = Stream(rocks, tmp_path, query("1", migrates=False))
    running.write(orders("ann", "bob", amount=10))
    running.run()
    running.write(orders("bob", "cy", amount=30))
    running.query = query("2", migrates=False)
    with pytest.raises(Exception, match=r"STATE_MISMATCH(?s:.*)mean version 1(?s:.*)version 2(?s:.*)define migrate"):
        running.run()
    running.query = query("2", migrates=True)
    (changes,) = running.run()
    assert {row["customer"]: row["mean"] for row in changes} == {"bob": 20.0, "cy": 30.0}
    stored = {row["customer"]: row.asDict() for row in state_table(rocks, str(tmp_path / "checkpoint")).collect()}
    assert stored["ann"] == {"customer": "ann", "live_rows": 1, "mean": None, "mean (version 1)": 10}
    assert stored["bob"] == {
        "customer": "bob",
        "live_rows": 2,
        "mean": {"sum": 40, "rows": 2},
        "mean (version 1)": None,
    }


@pytest.mark.parametrize("what", ["run", "manifest"])
def test_damaged_state_ends_the_query(
    rocks: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One byte that has changed in Spark's state store is a CorruptError of the query, with code, bucket and run."""

    class Damaging(BucketProcessor):
        """Changes a byte of what it has stored, after each epoch."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            from foldflight.spark.manifest import Manifest
            from foldflight.spark.stream import _caches

            yield from super().handleInputRows(key, rows, timerValues)
            good = self._store.manifest()
            if what == "manifest":
                self._store.put_manifest(good[:-1] + bytes([good[-1] ^ 1]))
            else:
                for piece in Manifest.decode(good).pieces:
                    data = self._store.run(piece.id)
                    self._store.put_run(piece.id, data[:-1] + bytes([data[-1] ^ 1]))
            _caches.clear()  # decoded runs are not read again

    functions = connect(spark_functions)

    def query(df: DataFrame) -> DataFrame:
        return group_by(df, "customer", buckets=1).agg(n=functions["count"]())

    running = Stream(rocks, tmp_path, query)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "BucketProcessor", Damaging)
        running.write(orders("ann"))
        running.run()
    running.write(orders("ann"))
    with pytest.raises(Exception, match=rf"CorruptError: STATE_CHECKSUM: bucket 0: the {what}.* is damaged"):
        running.run()
