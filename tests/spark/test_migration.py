"""Streams on Spark with states of another version, or damaged states."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect, udaf
from foldflight.client import close_connections
from foldflight.server.run.lifecycle import serving
from foldflight.spark import check_checkpoint, group_by, over, session, state_table, stream
from foldflight.spark.stream import BucketProcessor
from tests.spark import spark_functions
from tests.spark.test_stream import Stream

Rows = list[dict[str, Any]]
KEY = "a key for the migration tests"


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

    class Total(spark_functions.Sum):
        def get_value(self, accumulator: int) -> float:
            return float(accumulator)

    class Migrating(Mean):
        def migrate(self, version: str, state: int) -> dict[str, int]:
            return {"sum": state, "rows": 1}

    cls = Total if version == "1" else Migrating if migrates else Mean
    return udaf(input_types=["BIGINT"], result_type="DOUBLE", name="mean", version=version)(cls)


@pytest.mark.slow
def test_a_query_goes_on_with_a_new_version(classic: SparkSession, tmp_path: Path) -> None:
    """Refused without migrate. With it, groups of both versions are right, and a reader uses each one's version."""

    def query(version: str, *, migrates: bool) -> Any:
        function = connect(mean(version, migrates=migrates))["mean"]
        return lambda df: group_by(df, "customer", buckets=3).agg(mean=function("amount"))

    stream = Stream(classic, tmp_path, query("1", migrates=False))
    stream.write(orders("ann", "bob", amount=10))
    stream.run()
    stream.write(orders("bob", "cy", amount=30))
    stream.query = query("2", migrates=False)
    with pytest.raises(Exception, match=r"STATE_MISMATCH(?s:.*)mean version 1(?s:.*)version 2(?s:.*)define migrate"):
        stream.run()
    stream.query = query("2", migrates=True)
    (changes,) = stream.run()
    assert {row["customer"]: row["mean"] for row in changes} == {"bob": 20.0, "cy": 30.0}
    stored_rows = {
        row["customer"]: row.asDict() for row in state_table(classic, str(tmp_path / "checkpoint")).collect()
    }
    assert stored_rows["ann"] == {"customer": "ann", "live_rows": 1, "mean": None, "mean (version 1)": 10}
    assert stored_rows["bob"] == {
        "customer": "bob",
        "live_rows": 2,
        "mean": {"sum": 40, "rows": 2},
        "mean (version 1)": None,
    }


@pytest.mark.slow
def test_servers_of_a_new_version_take_the_states_of_an_old_one(classic: SparkSession, tmp_path: Path) -> None:
    """A query moves from servers of one version to servers of the next, which migrate or refuse its states."""

    def query(url: str) -> Any:
        functions = connect(url)
        return lambda df: group_by(df, "customer", buckets=3, emit="changelog").agg(
            mean=functions["mean"]("amount"), n=functions["count"]()
        )

    with (
        serving(mean("1", migrates=False), state_keys=KEY) as old,
        serving(mean("2", migrates=False), state_keys=KEY) as careless,
        serving(mean("2", migrates=True), state_keys=KEY) as new,
    ):
        stream = Stream(classic, tmp_path, query(old.url))
        stream.write(orders("ann", "bob", amount=10))
        stream.run()
        stream.write(orders("bob", "cy", amount=30))
        stream.query = query(careless.url)
        with pytest.raises(Exception, match=r"STATE_MISMATCH(?s:.*)define migrate"):
            stream.run()
        stream.query = query(new.url)
        (changes,) = stream.run()
        result = sorted((row["customer"], row["row_kind"], row["mean"], row["n"]) for row in changes)
        assert result == [("bob", "+U", 20.0, 2), ("bob", "-U", 10.0, 1), ("cy", "+I", 30.0, 1)]
        assert new.metrics.errors.labels("STATE_MISMATCH")._value.get() == 0
    close_connections()


def total(version: str) -> type:
    """Return a version of a function that merges: the first has a number as its state, the second a dict."""

    class First(spark_functions.Sum):
        pass

    class Second:
        def create_accumulator(self) -> dict[str, int]:
            return {"sum": 0}

        def accumulate(self, accumulator: dict[str, int], value: int) -> None:
            accumulator["sum"] += value

        def merge(self, accumulator: dict[str, int], other: dict[str, int]) -> None:
            accumulator["sum"] += other["sum"]

        def get_value(self, accumulator: dict[str, int]) -> int:
            return accumulator["sum"]

        def migrate(self, version: str, state: int) -> dict[str, int]:
            return {"sum": 1000 + state}

    cls = First if version == "1" else Second
    return udaf(input_types=["BIGINT"], result_type="BIGINT", name="total", version=version)(cls)


@pytest.mark.slow
def test_sessions_of_an_old_version_grow_and_merge(classic: SparkSession, tmp_path: Path) -> None:
    """A row between two old sessions merges their migrated states; other sessions stay as they are."""

    def query(version: str) -> Any:
        function = connect(total(version))["total"]
        return lambda df: group_by(
            df.withColumn("at", sf.timestamp_seconds(sf.col("amount") * 60)),
            "customer",
            window=session("at", "30 minutes"),
            emit="changelog",
            buckets=2,
        ).agg(total=function("qty"))

    stream = Stream(classic, tmp_path, query("1"))
    stream.write(orders("ann", amount=0) + orders("ann", amount=50) + orders("ann", amount=500) + orders("bob"))
    stream.run()
    stream.query = query("2")
    stream.write(orders("ann", amount=25))
    (changes,) = stream.run()
    result = sorted((row["row_kind"], row["total"], row["window_end"] - row["window_start"]) for row in changes)
    half_hour = dt.timedelta(minutes=30)
    assert result == [("+I", 2003, dt.timedelta(minutes=80)), ("-D", 1001, half_hour), ("-D", 1001, half_hour)]
    stored_rows = state_table(classic, str(tmp_path / "checkpoint")).collect()
    states = [(row["customer"], row["total"], row["total (version 1)"]) for row in stored_rows]
    assert sorted(states, key=repr) == [("ann", None, 1), ("ann", {"sum": 2003}, None), ("bob", None, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", "manifest"])
def test_damaged_state_ends_the_query(
    classic: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A changed byte in Spark's state store is a CorruptError of the query, with code, bucket and run."""

    class Damaging(BucketProcessor):
        """Changes a byte of its stored data after each epoch."""

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            from foldflight.engine.state.manifest import Manifest
            from foldflight.spark.bucketed import run_cache

            yield from super().handleInputRows(key, rows, timerValues)
            store = self.store()
            good = store.manifest()
            if what == "manifest":
                store.put_manifest(good[:-1] + bytes([good[-1] ^ 1]))
            else:
                pieces = Manifest.decode(good).pieces
                run_cache().drop([piece.id for piece in pieces])  # else they would not be read again
                for piece in pieces:
                    data = store.run(piece.id)
                    store.put_run(piece.id, data[:-1] + bytes([data[-1] ^ 1]))

    functions = connect(spark_functions)

    def query(df: DataFrame) -> DataFrame:
        return group_by(df, "customer", buckets=1).agg(n=functions["count"]())

    stream_run = Stream(classic, tmp_path, query)
    with monkeypatch.context() as patch:
        patch.setattr(stream, "BucketProcessor", Damaging)
        stream_run.write(orders("ann"))
        stream_run.run()
    stream_run.write(orders("ann"))
    with pytest.raises(Exception, match=rf"CorruptError: STATE_CHECKSUM: bucket 0: the {what}.* is damaged"):
        stream_run.run()


@pytest.mark.slow
def test_a_checkpoint_is_checked_before_the_start(classic: SparkSession, tmp_path: Path) -> None:
    """A query that cannot continue is refused without rows, for groups and for frames, with what has changed."""

    def count_of(*fields: str) -> Any:
        state = make_dataclass("State", [(name, int, 0) for name in fields])

        class Counted:
            def create_accumulator(self) -> Any:
                return state()

            def accumulate(self, accumulator: Any, value: int) -> None:
                accumulator.rows += 1

            def get_value(self, accumulator: Any) -> int:
                rows: int = accumulator.rows
                return rows

        Counted.create_accumulator.__annotations__["return"] = state
        function = connect(udaf(input_types=["BIGINT"], result_type="BIGINT", version="1", name="counted")(Counted))
        return function["counted"]("amount")

    def group_query(df: DataFrame, use: Any, **options: Any) -> DataFrame:
        return group_by(df, "customer", **{"buckets": 1, **options}).agg(n=use)

    def over_query(df: DataFrame, use: Any) -> DataFrame:
        timed_df = df.withColumn("at", sf.current_timestamp()).withWatermark("at", "1 minute")
        return over(timed_df, "customer", order_by="at", buckets=1).agg(n=use.rows(None, 0))

    for query in (group_query, over_query):
        folder = tmp_path / query.__name__
        folder.mkdir()
        mode = "update" if query is group_query else "append"
        stream = Stream(classic, folder, lambda df, query=query: query(df, count_of("rows")), mode)
        checkpoint = str(folder / "checkpoint")
        assert not check_checkpoint(stream.query(stream.input()), checkpoint)
        stream.write(orders("ann", "bob", "cy"))
        stream.run()
        assert check_checkpoint(query(stream.input(), count_of("rows")), checkpoint)
    with pytest.raises(
        RejectedError, match=r"STATE_MISMATCH.*in its accumulator, more BIGINT was added; set this back"
    ):
        check_checkpoint(
            group_query(stream.input(), count_of("rows", "more")), str(tmp_path / group_query.__name__ / "checkpoint")
        )
    with pytest.raises(
        RejectedError, match=r"other calls and frames than the query: stored counted over ROWS .* sum over"
    ):
        check_checkpoint(over_query(stream.input(), connect("embedded:")["sum"]("amount")), checkpoint)
    use = connect("embedded:")["sum"]("amount")
    with pytest.raises(RejectedError, match="other calls than the query: stored counted, the query has sum;"):
        check_checkpoint(group_query(stream.input(), use), str(tmp_path / group_query.__name__ / "checkpoint"))
    with pytest.raises(RejectedError, match="has the state of over, and the query has group_by"):
        check_checkpoint(group_query(stream.input(), count_of("rows")), checkpoint)
    with pytest.raises(RejectedError, match=r"takes the result of group_by\(\.\.\.\)\.agg\(\.\.\.\), over"):
        check_checkpoint(classic.range(1), checkpoint)
