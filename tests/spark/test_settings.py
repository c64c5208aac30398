"""What a session needs and profits from: set by one call, and asked for once where it is missing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from foldflight import RejectedError
from foldflight.client import Functions
from foldflight.spark import configure, group_by, settings
from tests.spark_sessions import since_spark

BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
WIDE = 100_000


@pytest.fixture
def fresh(spark: Any, request: pytest.FixtureRequest) -> Any:
    """A session of its own, whose settings no other test sees."""
    return spark.newSession() if request.node.callspec.params["spark"] == "classic" else spark


def test_one_call_sets_everything_and_logs_it(fresh: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What changed is returned and printed; called again, nothing changes."""
    changed_settings = configure(fresh, partitions=3, local_checkpoints=True)
    assert changed_settings[BATCH_BYTES] == str(2**31 - 1)
    assert changed_settings["spark.sql.shuffle.partitions"] == "3"
    assert "spark.sql.streaming.checkpoint.fileChecksum.enabled" in changed_settings
    assert {name: fresh.conf.get(name) for name in changed_settings} == changed_settings
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(changed_settings)
    assert configure(fresh, partitions=3, local_checkpoints=True) == {}
    assert not capsys.readouterr().out


def test_lz4_of_batches_is_warned_of(classic: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A session that compresses batches by lz4 is told which of them Python cannot read; the setting is the user's."""
    session = classic.newSession()
    name = "spark.sql.execution.arrow.compression.codec"
    configure(session)
    capsys.readouterr()
    for codec, lines in (("zstd", 0), ("LZ4", 1), ("none", 0)):
        session.conf.set(name, codec)
        assert configure(session) == {}
        printed_lines = capsys.readouterr().out.splitlines()
        assert [line.startswith(f"{name}: lz4 stays") for line in printed_lines] == [True] * lines
    session.conf.unset(name)


@since_spark("4.1", "idle timeouts of Python workers")
def test_short_idle_timeouts_are_warned_of(classic: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A session that ends silent workers early is told how long a task may be silent; the setting is the user's."""
    session = classic.newSession()
    kill, seconds = (f"spark.sql.execution.pyspark.udf.{name}" for name in ("killOnIdleTimeout", "idleTimeoutSeconds"))
    configure(session)
    capsys.readouterr()
    for kills, limit, lines in (("true", 60, 1), ("true", 300, 0), ("true", 0, 0), ("false", 60, 0)):
        session.conf.set(kill, kills)
        session.conf.set(seconds, str(limit))
        assert configure(session) == {}
        printed_lines = capsys.readouterr().out.splitlines()
        assert [line.startswith(f"{seconds}: 60 stays, and {kill} ends") for line in printed_lines] == [True] * lines


def _sizes(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"size": pa.array([batch.nbytes], pa.int64())})


@pytest.mark.slow
def test_wide_rows_come_in_batches_of_bounded_size(classic: Any, embedded: Functions) -> None:
    """Rows of 100 KB come in batches of at most 8 MiB, though Spark does not measure them."""
    session = classic.newSession()
    configure(session, row_bytes=WIDE)
    rows = session.range(0, 720, 1, 1).select(
        (sf.col("id") % 3).alias("k"), sf.rpad(sf.col("id").cast("string"), WIDE, "x").alias("text")
    )
    largest = rows.mapInArrow(_sizes, "size bigint").agg(sf.max("size")).first()[0]
    assert 4 << 20 < largest <= 8 << 20
    result = group_by(rows, "k").agg(n=embedded["count"]("text"), first=embedded["min"]("text")).collect()
    firsts = [min(f"{number}".ljust(WIDE, "x") for number in range(key, 720, 3)) for key in range(3)]
    assert sorted((row.k, row.n, row["first"]) for row in result) == [(key, 240, firsts[key]) for key in range(3)]


@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 1 << 16), (1 << 14, 1 << 9), (WIDE, 83), (1 << 40, 1)])
def test_the_rows_of_a_batch_follow_their_width(classic: Any, row_bytes: int, rows: int) -> None:
    """Wider rows make batches of fewer rows, never of none."""
    session = classic.newSession()
    configure(session, row_bytes=row_bytes)
    assert session.conf.get(BATCH_ROWS) == str(rows)


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has been told nothing yet, whatever ran before."""
    for flag in ("_advised", "_widened"):
        monkeypatch.setattr(settings, flag, [])


def test_a_session_that_measures_is_told_once(
    fresh: Any, untold: None, embedded: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    """A query in a session that measures batches logs the call that helps, once, and changes no setting."""
    rows = fresh.range(3)
    fresh.conf.set(BATCH_BYTES, "64MB")
    before = [fresh.conf.get(name) for name in (BATCH_BYTES, BATCH_ROWS)]
    with caplog.at_level(logging.WARNING, "foldflight.spark"):
        for _ in range(2):
            group_by(rows, "id").agg(n=embedded["count"]())
    (record,) = caplog.records
    assert "foldflight.spark.configure(spark)" in record.getMessage()
    assert [fresh.conf.get(name) for name in (BATCH_BYTES, BATCH_ROWS)] == before


def test_a_configured_session_is_told_nothing(
    fresh: Any, untold: None, embedded: Functions, caplog: pytest.LogCaptureFixture
) -> None:
    """After the call, nothing is logged."""
    configure(fresh)
    group_by(fresh.range(3), "id").agg(n=embedded["count"]())
    assert not caplog.records


@pytest.mark.parametrize("wrong", [{"row_bytes": 0}, {"row_bytes": 1.5}, {"partitions": 0}])
def test_settings_that_are_no_numbers_are_refused(classic: Any, wrong: dict[str, Any]) -> None:
    """A width or a number of partitions below 1 changes nothing."""
    session = classic.newSession()
    with pytest.raises(RejectedError, match="1 or more"):
        configure(session, **wrong)
    assert session.conf.get(BATCH_BYTES) == classic.conf.get(BATCH_BYTES)


def test_rows_wider_than_configured_are_told_once(
    untold: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that gets a batch far beyond the bound logs the width to configure, once, and goes on."""
    monkeypatch.setattr(settings, "_BATCH_BYTES_WIDE", 1 << 20)
    narrow = pa.RecordBatch.from_pydict({"text": ["x" * 100] * 100})
    wide = pa.RecordBatch.from_pydict({"text": ["x" * 9_996] * 200})
    with caplog.at_level(logging.WARNING, "foldflight.spark"):
        assert list(settings.warn_of_wide_rows([narrow, wide, wide])) == [narrow, wide, wide]
    (record,) = caplog.records
    assert "configure(spark, row_bytes=10000)" in record.getMessage()
