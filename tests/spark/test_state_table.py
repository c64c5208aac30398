"""The states of streams, read from checkpoints by API and command, compared with models in plain Python."""

import base64
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from foldflight import CorruptError, RejectedError, connect
from foldflight.cli import state as command
from foldflight.cli.main import cli
from foldflight.cli.state import state_as_text
from foldflight.spark import check_checkpoint, group_by, over, state_table, tumble, upgrade_checkpoint
from foldflight.spark.errors import error_of
from foldflight.spark.state_reader import StoredTable
from tests.spark import spark_functions
from tests.spark.test_stream import Model, Stream
from tests.spark.test_stream_windows import START, Clicks
from tests.spark_sessions import lend

Rows = list[dict[str, Any]]


@dataclass
class Query:
    """A query that has run, and its live rows."""

    checkpoint: str
    present: dict[Any, Rows]

    @property
    def groups(self) -> Rows:
        """The expected table, by customer."""
        return [self._group(key, rows) for key, rows in self.present.items() if rows]

    def _group(self, key: str | None, rows: Rows) -> dict[str, Any]:
        rows_with_amount = [row for row in rows if row["amount"] is not None]
        weights = {
            "sum": sum(row["amount"] * row["qty"] for row in rows_with_amount),
            "count": sum(row["qty"] for row in rows_with_amount),
        }
        return {
            "customer": key,
            "live_rows": len(rows),
            "price": weights,
            "different": Counter(row["amount"] for row in rows_with_amount),  # count leaves NULL out
            "n": len(rows),
        }


def _by_customer(rows: Rows) -> Rows:
    """Return groups in a fixed order, with the rows of DISTINCT as a Counter."""
    entries = [row["different"]["rows"]["entries"] for row in rows]
    counts = [
        {**row, "different": Counter({entry["key"]: entry["value"] for entry in each})}
        for row, each in zip(rows, entries, strict=True)
    ]
    return sorted(counts, key=lambda row: str(row["customer"]))


@pytest.fixture(scope="module")
def orders(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Query:
    """A restarted query with retractions, typed and DISTINCT states, merges and tombstones."""
    functions = connect(spark_functions)
    folder = tmp_path_factory.mktemp("orders")
    stream = Stream(
        classic,
        folder,
        lambda df: group_by(df, "customer", row_kind="op", buckets=2).agg(
            price=functions["weighted_avg"]("amount", "qty").where("amount IS NOT NULL"),
            different=functions["count"]("amount").distinct(),
            n=functions["count"](),
        ),
    )
    model = Model(seed=32, retracts=True)
    for size in (12, 20, 9):
        stream.write(model.epoch(size))
    stream.run()
    bob = model.present.pop("bob")  # all of a group's rows are taken back
    stream.write([{**row, "op": "-D"} for row in bob] + model.epoch(0))
    stream.run()
    assert bob
    return Query(str(folder / "checkpoint"), model.present)


@pytest.fixture(scope="module")
def several(classic: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of a query with two state tables: orders by customer, and customers, all in one group."""
    functions = connect(spark_functions)
    folder = tmp_path_factory.mktemp("several")

    def join_query(df: DataFrame) -> DataFrame:
        first = group_by(df, "customer", row_kind="op", emit="changelog", buckets=2).agg(orders=functions["count"]())
        return group_by(first, row_kind="row_kind").agg(live_rows=functions["count"]())

    stream = Stream(classic, folder, join_query)
    stream.write([{"op": "+I", "customer": name, "amount": 1, "qty": 1, "x": 1.0} for name in ("ann", "bob", "ann")])
    stream.run()
    return str(folder / "checkpoint")


@pytest.fixture
def run(classic: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command in the session of the tests, because stopping its own session would stop theirs."""
    lend(monkeypatch, command, lambda: classic)

    def invoke(*arguments: str) -> Result:
        return CliRunner(env={"COLUMNS": "160"}).invoke(cli, ["state", *arguments])

    return invoke


@pytest.mark.every_turn
def test_the_table_has_the_stored_states(classic: SparkSession, orders: Query) -> None:
    """After retractions and a restart the table has exactly the groups, live rows and states of the remaining rows."""
    table = state_table(classic, orders.checkpoint)
    assert table.columns == ["customer", "live_rows", "price", "different", "n"]
    assert table.schema["price"].dataType.simpleString() == "struct<sum:bigint,count:bigint>"
    rows = [row.asDict(recursive=True) for row in table.collect()]
    assert _by_customer(rows) == sorted(orders.groups, key=lambda row: str(row["customer"]))
    assert "bob" not in {row["customer"] for row in rows}


@pytest.mark.slow
def test_over_has_rows_that_wait_and_rows_that_are_kept(classic: SparkSession, tmp_path: Path, run: Any) -> None:
    """Groups have states or kept rows by frame, and waiting rows are counted; idle groups leave with the watermark."""
    functions = connect(spark_functions)
    total, most = functions["sum"]("v"), functions["max"]("v")

    def query(df: DataFrame) -> DataFrame:
        calls = {
            "last": total.rows(-1, 0),
            "most": most.rows(-1, 0),
            "near": total.range("-30 minutes", 0),
            "all": total,
        }
        return over(df.withWatermark("at", "10 minutes"), "page", order_by="at", buckets=2, idle="2 hours").agg(**calls)

    stream = Clicks(classic, tmp_path, query, mode="append")
    stream.minutes((1, "a", 1), (50, "a", 2), (60, "a", 4), (70, "b", 8), (80, "b", 16), (81, "c", 32))
    stream.run()
    checkpoint = str(tmp_path / "checkpoint")
    table = state_table(classic, checkpoint)
    assert table.columns == ["page", "waiting_rows", "last, most", "near", "all"]
    rows = {row["page"]: row for row in table.collect()}
    assert {page: row["waiting_rows"] for page, row in rows.items()} == {"a": 0, "b": 1, "c": 1}
    assert [list(each) for each in rows["a"]["last, most"]] == [[4]]
    assert rows["c"]["all"] is None
    output = run(checkpoint, "--group", "page=b")
    assert output.exit_code == 0, output.output
    for text in ("waiting_rows", "last rows, ROWS BETWEEN 1", "1 group", "waiting rows: 2; rows in RANGE frames: 3"):
        assert text in " ".join(output.output.split())
    stream.minutes((400, "d", 64))
    stream.run()
    assert [row["page"] for row in state_table(classic, checkpoint).collect()] == ["d"]


@pytest.mark.slow
def test_windows_are_keys_and_pickled_states_are_bytes(classic: SparkSession, tmp_path: Path) -> None:
    """Windows are keys with names, other than typed states are bytes, and closed windows are absent."""
    functions = connect(spark_functions)
    stream = Clicks(
        classic,
        tmp_path,
        lambda df: group_by(df.withWatermark("at", "10 minutes"), "page", window=tumble("at", "1 hour"), buckets=2).agg(
            half=functions["percentile"]("v", fraction=0.5), total=functions["sum"]("v")
        ),
    )
    stream.minutes((5, "a", 1), (50, "a", 2), (61, "b", 4))
    stream.run()
    stream.minutes((70, "b", 8), (62, "a", 3), (125, "a", 5))
    stream.run()
    stream.minutes((126, "c", 7))  # the watermark stands at 115: the first hour has closed, the second has not
    stream.run()
    rows = state_table(classic, str(tmp_path / "checkpoint")).collect()
    result = {
        (row["page"], (row["window_start"].astimezone(dt.UTC) - START) // dt.timedelta(hours=1)): row for row in rows
    }
    assert {group: (row["live_rows"], row["total"]["count"]) for group, row in result.items()} == {
        ("a", 2): (1, 1),
        ("c", 2): (1, 1),
        ("a", 1): (1, 1),
        ("b", 1): (2, 2),
    }
    assert all(isinstance(row["half"], (bytes, bytearray)) and row["half"] for row in rows)
    assert all(row["window_end"] - row["window_start"] == dt.timedelta(hours=1) for row in rows)


@pytest.mark.slow
def test_each_of_several_state_tables_is_read_by_its_number(classic: SparkSession, several: str) -> None:
    """If a query has several tables, the error lists them; each is read by its number."""
    with pytest.raises(RejectedError, match="several state tables") as excinfo:
        state_table(classic, several)
    assert excinfo.value.code == "SIGNATURE"
    assert "orders by customer\n" in f"{excinfo.value}\n"
    assert "live_rows by nothing (one group of all rows)\n" in f"{excinfo.value}\n"
    with pytest.raises(RejectedError, match="the operator 7 of the query has no state table"):
        state_table(classic, several, operator=7)
    tables = [state_table(classic, several, operator=place) for place in (0, 1)]
    (all_rows,) = (table for table in tables if "customer" not in table.columns)
    (by_customer,) = (table for table in tables if "customer" in table.columns)
    assert all_rows.columns == ["live_rows_", "live_rows"]  # the user's name stays
    assert [tuple(row) for row in all_rows.collect()] == [(2, 2)]
    assert {tuple(row) for row in by_customer.collect()} == {("ann", 2, 2), ("bob", 1, 1)}


def test_a_folder_that_is_no_checkpoint_is_refused(classic: SparkSession, tmp_path: Path) -> None:
    """A folder that is not a checkpoint, or is one of another query, is refused with a remedy."""
    with pytest.raises(RejectedError, match="checkpointLocation") as excinfo:
        state_table(classic, str(tmp_path))
    assert excinfo.value.code == "SIGNATURE"
    source = classic.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    other = source.groupBy("value").count().writeStream.format("noop").outputMode("update")
    query_run = other.option("checkpointLocation", str(tmp_path / "other")).trigger(once=True).start()
    query_run.awaitTermination()
    with pytest.raises(RejectedError, match="stateStoreSave") as excinfo:
        state_table(classic, str(tmp_path / "other"))
    assert excinfo.value.code == "STATE_MISMATCH"


@pytest.mark.every_turn
def test_a_checkpoint_that_was_moved_is_refused_with_the_remedy(
    classic: SparkSession, tmp_path: Path, run: Any
) -> None:
    """Its state is refused, with the call that helps; then it is read, and the stream goes on, also after a copy."""
    functions = connect(spark_functions)

    def totals(df: DataFrame) -> DataFrame:
        return group_by(df, "customer", buckets=2).agg(n=functions["count"]())

    stream = Stream(classic, tmp_path, totals)
    rows = [{"op": "+I", "customer": name, "amount": 1, "qty": 1, "x": 1.0} for name in ("ann", "bob", "ann")]
    stream.write(rows)
    stream.run()
    restored_folder, copy = tmp_path / "restored", tmp_path / "copy"
    (tmp_path / "checkpoint").rename(restored_folder)
    refusal = r"STATE_MISMATCH: the checkpoint was moved, .*/checkpoint/state/0/_stateSchema/.*upgrade_checkpoint"
    with pytest.raises(RejectedError, match=refusal):
        state_table(classic, str(restored_folder))
    with pytest.raises(RejectedError, match=refusal):
        check_checkpoint(totals(stream.input()), str(restored_folder))
    assert "upgrade_checkpoint" in run(str(restored_folder)).output
    stream.write(rows)
    with pytest.raises(PySparkException) as excinfo:
        stream.run(restored_folder.name)
    error = error_of(excinfo.value)
    assert isinstance(error, RejectedError)
    assert "upgrade_checkpoint" in error.message
    assert upgrade_checkpoint(str(restored_folder)) >= 1
    assert upgrade_checkpoint(str(restored_folder)) == 0
    assert check_checkpoint(totals(stream.input()), str(restored_folder))
    assert {tuple(row) for row in state_table(classic, str(restored_folder)).collect()} == {
        ("ann", 2, 2),
        ("bob", 1, 1),
    }
    (changes,) = stream.run(restored_folder.name)
    assert {(row["customer"], row["n"]) for row in changes} == {("ann", 4), ("bob", 2)}
    shutil.copytree(restored_folder, copy)
    assert upgrade_checkpoint(str(copy)) >= 2
    shutil.rmtree(restored_folder)
    assert {tuple(row) for row in state_table(classic, str(copy)).collect()} == {("ann", 4, 4), ("bob", 2, 2)}
    for file in (copy / "state" / "0" / "_stateSchema" / "default").iterdir():
        file.unlink()
    with pytest.raises(RejectedError, match=r"has no file state/0/_stateSchema/default/.*copy it whole"):
        upgrade_checkpoint(str(copy))


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["manifest", "runs"])
def test_damaged_bytes_fail_the_read_with_their_name(
    classic: SparkSession, orders: Query, monkeypatch: pytest.MonkeyPatch, run: Any, variable: str
) -> None:
    """A changed byte in a run or a manifest fails the read with a CorruptError that names it."""
    read = StoredTable._read
    column = {"manifest": "value", "runs": "user_map_value"}[variable]

    def damage(table: StoredTable, table_name: str) -> DataFrame:
        rows = read(table, table_name)
        cut = sf.expr(f"substring({column}.data, 1, length({column}.data) - 1)")
        damaged_struct = sf.struct(sf.concat(cut, sf.lit(b"\x01")).alias("data"))
        return rows.withColumn(column, damaged_struct) if table_name == variable else rows

    monkeypatch.setattr(StoredTable, "_read", damage)
    place = r"bucket \d: the manifest" if variable == "manifest" else r"bucket \d: the run [0-9a-f]{32}"
    with pytest.raises(Exception, match=rf"CorruptError: STATE_CHECKSUM: {place} of a state table is damaged"):
        state_table(classic, orders.checkpoint).collect()
    result = run(orders.checkpoint)
    assert result.exit_code == 1
    assert "STATE_CHECKSUM" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_damaged_manifest_is_refused_before_the_read(
    classic: SparkSession, orders: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest that has the columns is checked before a DataFrame is returned."""
    from foldflight.spark import state_reader

    read = state_reader._variable

    def damage(*arguments: Any) -> DataFrame:
        return read(*arguments).withColumn("value", sf.struct(sf.lit(b"FFM1 what is this").alias("data")))

    monkeypatch.setattr(state_reader, "_variable", damage)
    with pytest.raises(CorruptError, match="bucket 0: the manifest"):
        state_table(classic, orders.checkpoint)


def test_the_command_prints_json(run: Any, orders: Query) -> None:
    """With --json each line is a group, in the order of keys, and equals the model."""
    result = run(orders.checkpoint, "--json")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert _by_customer(rows) == sorted(orders.groups, key=lambda row: str(row["customer"]))
    assert [row["customer"] for row in rows] == sorted((r["customer"] for r in rows), key=lambda key: key or "")


def test_the_command_prints_a_table(run: Any, orders: Query) -> None:
    """The table shows keys, live rows, functions and states; the summary counts groups, buckets and runs."""
    result = run(orders.checkpoint)
    assert result.exit_code == 0
    for group in orders.groups:
        price = f"sum {group['price']['sum']}, count {group['price']['count']}"
        (line,) = (line for line in result.stdout.splitlines() if price in line)
        assert (group["customer"] or "NULL") in line
    assert "weighted_avg v1" in result.stdout
    assert f"{len(orders.groups)} groups" in result.stdout
    assert "of 2 buckets hold" in result.stdout


@pytest.mark.slow
def test_the_command_takes_groups_and_a_limit(run: Any, orders: Query, several: str) -> None:
    """--group selects a group, also NULL; --limit tells how many are left out; errors list valid names."""
    ann = run(orders.checkpoint, "--json", "--group", "customer=ann")
    assert [json.loads(line)["customer"] for line in ann.stdout.splitlines()] == ["ann"]
    null = run(orders.checkpoint, "--json", "--group", "customer")
    assert [json.loads(line)["customer"] for line in null.stdout.splitlines()] == [None]
    output_of_bob = run(orders.checkpoint, "--group", "customer=bob")
    assert (output_of_bob.exit_code, "no group has customer=bob" in output_of_bob.stderr) == (1, True)
    two_rows = run(orders.checkpoint, "--json", "--limit", "2")
    assert len(two_rows.stdout.splitlines()) == 2
    assert f"2 of {len(orders.groups)} groups" in two_rows.stderr
    wrong = run(orders.checkpoint, "--group", "nobody=1")
    assert (wrong.exit_code, "the keys are customer" in wrong.stderr) == (1, True)
    ambiguous = run(several)
    assert (ambiguous.exit_code, "operator 0" in ambiguous.stderr) == (1, True)
    assert "1 group " in run(several, "--operator", "0").stdout + run(several, "--operator", "1").stdout


@pytest.mark.slow
def test_values_of_keys_are_cast(run: Any, classic: SparkSession, tmp_path: Path) -> None:
    """A value is cast to the type of its key; invalid values are refused; several keys are combined."""
    functions = connect(spark_functions)
    keys = ("qty", "customer", sf.array("qty").alias("list"))
    stream = Stream(classic, tmp_path, lambda df: group_by(df, *keys).agg(n=functions["count"]()))
    stream.write([{"op": "", "customer": name, "amount": 1, "qty": len(name), "x": 1.0} for name in ("a", "b", "cc")])
    stream.run()
    checkpoint = str(tmp_path / "checkpoint")
    one = run(checkpoint, "--json", "--group", "qty=1", "--group", "customer=b")
    assert [json.loads(line) for line in one.stdout.splitlines()] == [
        {"qty": 1, "customer": "b", "list": [1], "live_rows": 1, "n": 1}
    ]
    wrong = run(checkpoint, "--group", "qty=many")
    assert (wrong.exit_code, "'many' is not a value of the type int" in wrong.stderr) == (1, True)
    output = run(checkpoint, "--group", "list=[1]")
    assert (output.exit_code, "the key list is array<int>, which has no values" in output.stderr) == (1, True)


@pytest.mark.slow
def test_the_command_starts_a_spark_of_its_own(orders: Query) -> None:
    """As a separate process the command reads the checkpoint in a session without the settings of the query."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "service")}
    process = subprocess.run(
        [sys.executable, "-m", "foldflight.cli.main", "state", orders.checkpoint, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert len(process.stdout.splitlines()) == len(orders.groups)


def test_states_are_shown_in_few_words() -> None:
    """States are shown short: members by name, the beginning of a list, the number of bytes."""
    assert state_as_text({"sum": 12, "last": None}) == "sum 12, last NULL"
    assert state_as_text([]) == "none"
    assert state_as_text(list(range(9))) == "9: 0, 1, 2, 3, 4, 5, ..."
    assert state_as_text([{"a": 1}, [2]]) == "2: (a 1), (1: 2)"
    assert state_as_text(base64.b64encode(bytes(1500)).decode(), is_binary=True) == "1,500 bytes"
    assert state_as_text("é") == '"é"'
