"""Every epoch's changelog of a stream, compared with a model in plain Python, over restarts, embedded and remote."""

import os
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect, udaf
from foldflight.client import Functions
from foldflight.spark import group_by, state_table
from tests.docs.crossing import crossed_modules, missing_modules, way
from tests.spark import spark_functions
from tests.spark.conftest import PROVIDER

SCHEMA = pa.schema(
    [("op", pa.string()), ("customer", pa.string()), ("amount", pa.int64()), ("qty", pa.int32()), ("x", pa.float64())]
)
DDL = "op string, customer string, amount bigint, qty int, x double"

Rows = list[dict[str, Any]]


class Stream:
    """A folder in which each file is one epoch, and a query over it that can be stopped and started."""

    ddl = DDL
    schema = SCHEMA

    def __init__(
        self, spark: SparkSession, folder: Path, query: Callable[[DataFrame], DataFrame], mode: str = "update"
    ) -> None:
        self.mode = mode
        self.spark = spark
        self.folder = folder
        self.query = query
        self.files = 0
        self.progress: list[Any] = []
        (folder / "input").mkdir()

    def write(self, rows: Rows) -> None:
        self.files += 1
        path = self.folder / f"{self.files:04}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=self.schema), path)
        os.utime(path, (self.files, self.files))  # Spark takes files by their time
        path.rename(self.folder / "input" / path.name)

    def collected(self, batch: DataFrame) -> Any:
        """Return the output of one epoch."""
        return [row.asDict(recursive=True) for row in batch.collect()]

    def input(self) -> DataFrame:
        """Return the stream of the files."""
        reader = self.spark.readStream.schema(self.ddl).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "input"))

    def run(self, checkpoint: str = "checkpoint") -> list[Any]:
        """Fold the epochs since the last run; return the output of each."""
        outputs = []
        over_df = (
            self.query(self.input())
            .writeStream.outputMode(self.mode)
            .foreachBatch(lambda batch, _: outputs.append(self.collected(batch)))
            .option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        over_df.awaitTermination()
        self.progress += [
            next(iter(each.observedMetrics.values())).asDict()
            for each in over_df.recentProgress
            if each.observedMetrics
        ]
        return outputs


def aggregates(functions: Functions) -> dict[str, Any]:
    count = functions["count"]
    return {
        "price": functions["weighted_avg"]("amount", "qty").where("amount IS NOT NULL"),
        "n": count(),
        "different": count("amount").distinct(),
        "bundled": functions["bundled_sum"]("amount"),
        "total": functions["sum"]("x"),
        "large": count().where("amount > 50"),
    }


def model(rows: Rows) -> dict[str, Any]:
    filled_rows = [(row["amount"], row["qty"]) for row in rows if row["amount"] is not None]
    weight = sum(qty for _, qty in filled_rows)
    xs = [row["x"] for row in rows if row["x"] is not None]
    return {
        "price": None if not weight else int(sum(a * q for a, q in filled_rows) / weight),
        "n": len(rows),
        "different": len({a for a, _ in filled_rows}),
        "bundled": sum(a for a, _ in filled_rows) if filled_rows else None,
        "total": sum(xs) if xs else None,
        "large": sum(a > 50 for a, _ in filled_rows),
    }


class Model:
    """The live rows by group, and random epochs."""

    def __init__(self, seed: int, *, retracts: bool) -> None:
        self.random = random.Random(seed)
        self.retracts = retracts
        self.present: dict[Any, Rows] = defaultdict(list)
        self.ignored = 0

    def epoch(self, size: int) -> Rows:
        """Return rows in any order: a retraction may come before its insert within an epoch."""
        rows: Rows = []
        never: Rows = []
        for _ in range(size):
            customer = self.random.choice(["ann", "bob", "cy", None, "dee"])
            group = self.present[customer]
            draw = self.random.random()
            if self.retracts and group and draw < 0.45:
                old = group.pop(self.random.randrange(len(group)))
                rows.append({**old, "op": self.random.choice(["-D", "-U"])})
            elif self.retracts and not group and draw < 0.2:
                never.append({"op": "-D", "customer": customer, "amount": 1, "qty": 1, "x": 1.0})
            else:
                row = {
                    "op": self.random.choice(["+I", "+U"]),
                    "customer": customer,
                    "amount": self.random.choice([None, *range(0, 100, 7)]),
                    "qty": self.random.randint(1, 5),
                    "x": self.random.choice([None, 0.5, 2.0, 8.25]),
                }
                group.append(row)
                rows.append(row)
        # Only a group without rows knows for sure that a row was never there.
        came = {row["customer"] for row in rows}
        never = [row for row in never if row["customer"] not in came]
        self.ignored += len(never)
        rows += never
        self.random.shuffle(rows)
        return rows

    def table(self) -> dict[Any, dict[str, Any]]:
        return {key: {"customer": key, **model(rows)} for key, rows in self.present.items() if rows}


def apply(table: dict[Any, dict[str, Any]], changes: Rows, *, update_before: bool) -> None:
    """Apply one epoch's changelog. Contradictory changes fail."""
    for change in changes:
        kind, row = change["row_kind"], {name: value for name, value in change.items() if name != "row_kind"}
        key = row["customer"]
        if kind == "+I":
            assert key not in table
        elif kind in ("-U", "-D"):
            assert table[key] == row
        elif update_before:
            assert kind == "+U"
            assert table[key] is None
        else:
            assert table[key] != row
        if kind == "-D":
            del table[key]
        else:
            table[key] = None if kind == "-U" else row


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("functions", "emit"),
    [
        ("embedded", "changelog"),
        pytest.param("remote", "update", marks=pytest.mark.slow),
        pytest.param("embedded", "update", marks=pytest.mark.slow),
        pytest.param("remote", "changelog", marks=pytest.mark.slow),
    ],
    indirect=["functions"],
)
def test_changelogs_lead_to_the_batch_answer(
    classic: SparkSession, tmp_path: Path, functions: Functions, emit: str
) -> None:
    """After each epoch, also after restarts, the applied changelog equals the aggregate of the live rows."""
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", emit=emit, buckets=2).agg(**aggregates(functions)),  # type: ignore[arg-type]
    )
    rows = Model(seed=18, retracts=True)  # groups end, and rows are taken back that were never there
    table: dict[Any, dict[str, Any]] = {}
    sent_count = 0
    for sizes in ((12, 1), (20, 9), (15,)):
        expected = []
        for size in sizes:
            epoch = rows.epoch(size)
            sent_count += len(epoch)
            stream.write(epoch)
            expected.append(rows.table())
        for changes, answer in zip(stream.run(), expected, strict=True):
            apply(table, changes, update_before=emit == "changelog")
            assert table == answer
    assert rows.ignored
    assert sum(each["ignored_retractions"] or 0 for each in stream.progress) == rows.ignored
    assert sum(each["rows"] or 0 for each in stream.progress) == sent_count - rows.ignored


@pytest.mark.every_turn
@pytest.mark.parametrize("functions", ["embedded", "remote"], indirect=True)
def test_varying_outputs_are_taken_back_as_emitted(classic: SparkSession, tmp_path: Path, functions: Functions) -> None:
    """The changelog adds up to the last row of each group, though its value cannot be repeated, also after restarts."""
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", emit="changelog", buckets=2).agg(
            drawn=functions["drawn"]("amount"), n=functions["count"]()
        ),
    )
    rows = Model(seed=18, retracts=True)
    table: dict[Any, dict[str, Any]] = {}
    kinds = set()
    for sizes in ((12, 4), (20, 9)):
        for size in sizes:
            stream.write(rows.epoch(size))
        for changes in stream.run():
            apply(table, changes, update_before=True)
            kinds |= {change["row_kind"] for change in changes}
    assert {key: row["n"] for key, row in table.items()} == {
        key: len(each) for key, each in rows.present.items() if each
    }
    assert kinds == {"+I", "-U", "+U", "-D"}
    state = state_table(classic, str(tmp_path / "checkpoint"))
    assert state.columns == ["customer", "live_rows", "drawn", "n"]
    assert {row["customer"]: row["drawn"] for row in state.collect()} == {key: row["n"] for key, row in table.items()}


@udaf(input_types=["BIGINT"], result_type="STRING", compile=False)
class Crossed:
    """The modules of the package on the stack below `accumulate`, for the last row."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator: list[str], value: int) -> None:
        accumulator[:] = crossed_modules()

    def retract(self, accumulator: list[str], value: int) -> None:
        accumulator.clear()

    def get_value(self, accumulator: list[str]) -> str:
        return " ".join(accumulator)


@pytest.mark.slow
def test_a_row_crosses_the_modules_that_are_named(classic: SparkSession, tmp_path: Path) -> None:
    """In the worker of a stream, the stack below `accumulate` has the modules of ARCHITECTURE.md's table."""
    modules = connect(Crossed)["crossed"]("amount")
    stream = Stream(classic, tmp_path, lambda df: group_by(df, "customer").agg(modules=modules))
    stream.write(Model(seed=3, retracts=False).epoch(5))
    (changes,) = stream.run()
    # The rows are packed before the shuffle, by another task, and unpacked by a generator.
    modules_of_table = [module for module in way(3, remote=False) if module != "engine/stream/packing.py"]
    assert [missing_modules(modules_of_table, row["modules"].split()) for row in changes] == [[] for _ in changes]


@pytest.mark.slow
def test_append_only_input_gives_the_latest_values(classic: SparkSession, tmp_path: Path) -> None:
    """Without row kinds the stream has keys and outputs only: one row for each group that changed."""
    functions = connect(spark_functions)
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer").agg(top=functions["max"]("amount"), n=functions["count"]()),
    )
    rows = Model(seed=3, retracts=False)
    table = {}
    for size in (10, 3, 8):
        stream.write(rows.epoch(size))
        (changes,) = stream.run()
        assert all(row.keys() == {"customer", "top", "n"} for row in changes)
        table |= {row["customer"]: row for row in changes}
        tops = {
            key: max((r["amount"] for r in group if r["amount"] is not None), default=None)
            for key, group in rows.present.items()
            if group
        }
        assert {key: (row["top"], row["n"]) for key, row in table.items()} == {
            key: (tops[key], len(rows.present[key])) for key in tops
        }


@pytest.mark.slow
def test_without_keys_all_rows_are_one_group(classic: SparkSession, tmp_path: Path) -> None:
    """Without keys there is one group, which stays when its last row is retracted."""
    functions = connect(spark_functions)
    stream = Stream(
        classic, tmp_path, lambda df: group_by(df, row_kind="op", emit="changelog").agg(n=functions["count"]())
    )
    row = {"customer": "a", "amount": 1, "qty": 1, "x": 1.0}
    for op in ("+I", "-D", "+I"):
        stream.write([{**row, "op": op}])
    assert [[(change["row_kind"], change["n"]) for change in epoch] for epoch in stream.run()] == [
        [("+I", 1)],
        [("-U", 1), ("+U", 0)],
        [("-U", 0), ("+U", 1)],
    ]


@pytest.mark.slow
def test_other_codes_for_row_kinds_are_mapped(classic: SparkSession, tmp_path: Path) -> None:
    """`row_kinds` maps other codes, such as Debezium's."""
    functions = connect(spark_functions)
    kinds = {"c": "+I", "r": "+I", "u": "+U", "d": "-D"}
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", row_kinds=kinds).agg(n=functions["count"]()),
    )
    row = {"customer": "a", "amount": 1, "qty": 1, "x": 1.0}
    stream.write([{**row, "op": "c"}, {**row, "op": "r"}, {**row, "op": "d"}])
    (changes,) = stream.run()
    assert changes == [{"row_kind": "+I", "customer": "a", "n": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("op", ["?", None])
def test_a_row_without_a_known_kind_fails_the_query(classic: SparkSession, tmp_path: Path, op: str | None) -> None:
    """A row with an unknown or NULL kind fails the query, and the error names it."""
    functions = connect(spark_functions)
    stream = Stream(classic, tmp_path, lambda df: group_by(df, "customer", row_kind="op").agg(n=functions["count"]()))
    stream.write([{"op": op, "customer": "a", "amount": 1, "qty": 1, "x": 1.0}])
    with pytest.raises(Exception, match="is no row kind"):
        stream.run()


@pytest.mark.slow
def test_a_union_may_have_two_streams_of_equal_names(classic: SparkSession, tmp_path: Path) -> None:
    """Two queries with the same keys and outputs are one query of Spark, and continue after a restart."""
    count = connect(spark_functions)["count"]

    def query(df: DataFrame) -> DataFrame:
        few, many = (group_by(df.where(which), "customer", buckets=1).agg(n=count()) for which in ("x < 5", "x >= 5"))
        return few.withColumn("many", sf.lit(False)).union(many.withColumn("many", sf.lit(True)))

    stream = Stream(classic, tmp_path, query)
    rows = [{"op": "+I", "customer": "ann", "amount": 1, "qty": 1, "x": x} for x in (1.0, 7.0, 8.0)]
    result = []
    for _ in range(2):
        stream.write(rows)
        (changes,) = stream.run()
        result.append(sorted((row["many"], row["n"]) for row in changes))
    assert result == [[(False, 1), (True, 2)], [(False, 2), (True, 4)]]


@pytest.mark.slow
def test_a_changelog_may_begin_in_its_middle(classic: SparkSession, tmp_path: Path) -> None:
    """An update of a group that is not known keeps the new row; the old one is counted, wherever Spark reads it."""
    functions = connect(spark_functions)
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df.repartition(4), "customer", row_kind="op", emit="changelog").agg(
            n=functions["count"](), total=functions["sum"]("amount")
        ),
    )
    row = {"qty": 1, "x": 1.0}
    stream.write(
        [
            {**row, "op": op, "customer": customer, "amount": amount}
            for customer in ("ann", "bob", "cid")
            for op, amount in (("-U", 10), ("+U", 40), ("+I", 2), ("-D", 2))
        ]
    )
    (changes,) = stream.run()
    assert sorted(changes, key=lambda change: change["customer"]) == [
        {"row_kind": "+I", "customer": customer, "n": 1, "total": 40} for customer in ("ann", "bob", "cid")
    ]
    assert sum(each["ignored_retractions"] or 0 for each in stream.progress) == 3


@pytest.mark.slow
def test_strict_mode_names_the_group(classic: SparkSession, tmp_path: Path) -> None:
    """In strict mode a retraction of a row that does not exist fails the query with the group."""
    functions = connect(spark_functions)
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", strict=True).agg(n=functions["count"]()),
    )
    stream.write([{"op": "-D", "customer": "eve", "amount": 1, "qty": 1, "x": 1.0}])
    with pytest.raises(Exception, match=r"(?s)a row is retracted from a group that had no row before.*customer='eve'"):
        stream.run()


def test_append_only_functions_are_refused_when_the_query_is_built(classic: SparkSession, tmp_path: Path) -> None:
    """An append-only function over a stream that retracts is refused before the stream starts."""
    functions = connect(spark_functions)
    stream = Stream(
        classic, tmp_path, lambda df: group_by(df, "customer", row_kind="op").agg(top=functions["max"]("amount"))
    )
    stream.write([])
    with pytest.raises(RejectedError, match="max is append-only"):
        stream.run()


@pytest.mark.slow
def test_materialized_append_only_functions_retract(classic: SparkSession, tmp_path: Path) -> None:
    """With materialize=True min, max and string_agg support a stream with retractions."""
    functions = connect(spark_functions)
    stream = Stream(
        classic,
        tmp_path,
        lambda df: group_by(df, "customer", row_kind="op", materialize=True, buckets=3).agg(
            top=functions["max"]("amount"),
            low=functions["min"]("x"),
            all=functions["string_agg"]("CAST(amount AS STRING)"),
            n=functions["count"](),
        ),
    )
    rows = Model(seed=11, retracts=True)
    table: dict[Any, dict[str, Any]] = {}
    for _ in range(4):
        stream.write(rows.epoch(15))
    for changes in stream.run():
        for change in changes:
            row = {name: value for name, value in change.items() if name != "row_kind"}
            table[row["customer"]] = row
            if change["row_kind"] == "-D":
                del table[row["customer"]]
    for key, row in table.items():
        amounts = [r["amount"] for r in rows.present[key] if r["amount"] is not None]
        xs = [r["x"] for r in rows.present[key] if r["x"] is not None]
        assert (row["top"], row["low"], row["n"]) == (
            max(amounts, default=None),
            min(xs, default=None),
            len(rows.present[key]),
        )
        assert sorted((row["all"] or "").split(",")) == sorted(map(str, amounts)) or not amounts
    assert table.keys() == rows.table().keys()


@pytest.mark.slow
def test_the_changelog_of_one_query_is_the_input_of_another(classic: SparkSession, tmp_path: Path) -> None:
    """One streaming query aggregates twice, and tells how many customers have each number of orders."""
    functions = connect(spark_functions)

    def chain(df: DataFrame) -> DataFrame:
        first = group_by(df, "customer", row_kind="op", emit="changelog", buckets=3).agg(orders=functions["count"]())
        return group_by(first, "orders", row_kind="row_kind", buckets=2).agg(customers=functions["count"]())

    stream = Stream(classic, tmp_path, chain)
    rows = Model(seed=5, retracts=True)
    table: dict[Any, int] = {}
    for _ in range(3):
        stream.write(rows.epoch(12))
    for changes in stream.run():
        for change in changes:
            if change["row_kind"] == "-D":
                del table[change["orders"]]
            else:
                table[change["orders"]] = change["customers"]
    expected: dict[int, int] = defaultdict(int)
    for group in rows.present.values():
        if group:
            expected[len(group)] += 1
    assert table == expected


def test_the_state_store_must_hold_a_state_table(classic: SparkSession, tmp_path: Path) -> None:
    """Without RocksDB the query is refused, and the error has the two settings to make."""
    functions = connect(spark_functions)
    stream = Stream(classic, tmp_path, lambda df: group_by(df, "customer").agg(n=functions["count"]()))
    provider = classic.conf.get(PROVIDER)
    classic.conf.unset(PROVIDER)
    try:
        with pytest.raises(RejectedError, match=r"(?s)RocksDB.*providerClass=.*changelogCheckpointing"):
            stream.run()
    finally:
        classic.conf.set(PROVIDER, provider)


CHANGES: dict[str, Callable[[DataFrame, Functions], DataFrame]] = {
    "other keys": lambda df, f: group_by(df, "qty", buckets=4).agg(n=f["count"]()),
    "another function": lambda df, f: group_by(df, "customer", buckets=4).agg(n=f["sum"]("amount")),
    "one function more": lambda df, f: group_by(df, "customer", buckets=4).agg(n=f["count"](), m=f["count"]()),
    "other buckets": lambda df, f: group_by(df, "customer", buckets=7).agg(n=f["count"]()),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_query_does_not_read_the_state_of_another(classic: SparkSession, tmp_path: Path, change: str) -> None:
    """Changed keys, functions or buckets are refused at a restart, and the state is not changed."""
    functions = connect(spark_functions)
    stream = Stream(classic, tmp_path, lambda df: group_by(df, "customer", buckets=4).agg(n=functions["count"]()))
    rows = [{"op": "+I", "customer": name, "amount": 1, "qty": 1, "x": 1.0} for name in "abcdefgh"]
    stream.write(rows)
    stream.run()
    good, stream.query = stream.query, lambda df: CHANGES[change](df, functions)
    stream.write(rows)
    with pytest.raises(Exception, match="STATE_MISMATCH"):
        stream.run()
    stream.query = good
    (changes,) = stream.run()
    assert {row["customer"]: row["n"] for row in changes} == dict.fromkeys("abcdefgh", 2)
