"""`datetime` in annotations over Spark's TIMESTAMP and TIMESTAMP_NTZ: batches, OVER, SQL, streams; also remote."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from foldflight import connect
from foldflight.spark import group_by, join_lateral, over, register, sql, with_columns
from foldflight.spark.errors import error_of
from foldflight.sql import SqlError
from tests import datetime_functions

TIMES = ("2026-01-01 09:00:00", "2026-01-01 11:00:00", "2026-01-01 10:00:00")


@pytest.fixture(scope="module")
def datetime_server() -> Iterator[str]:
    from foldflight.server.run.lifecycle import serving

    with serving(datetime_functions) as server:
        yield server.url


@pytest.fixture(params=["embedded", "remote"])
def those(request: pytest.FixtureRequest) -> Any:
    if request.param == "embedded":
        return connect(datetime_functions)
    return connect(request.getfixturevalue("datetime_server"))


def rows_of(spark: Any) -> Any:
    texts = ", ".join(f"({place}, TIMESTAMP '{at}', TIMESTAMP_NTZ '{at}')" for place, at in enumerate(TIMES))
    return spark.sql(f"SELECT double(v) AS v, at, naive FROM VALUES {texts} AS t(v, at, naive)")


def test_batches_take_both_kinds_of_timestamps(classic: Any, those: Any) -> None:
    """Results of aggregates, OVER, scalar and table functions have the type of the argument."""
    df = rows_of(classic)
    at, naive = "2026-01-01 11:00:00", "2026-01-01 11:00:00"
    result = group_by(df).agg(
        z=those.latest("v", "at"),
        n=those.latest("v", "naive"),
        zv=those.newest("at"),
        nv=those.newest("naive"),
        s=those.seconds("at"),
        seen=those.seen("at"),
    )
    kinds = dict(result.dtypes)
    assert [kinds[name] for name in ("z", "n", "zv", "nv")] == ["timestamp", "timestamp_ntz"] * 2
    shown_rows = result.selectExpr("string(z)", "string(n)", "string(zv)", "string(nv)", "s", "seen").collect()
    assert [tuple(row) for row in shown_rows] == [(at, naive, at, naive, 7200.0, 3)]
    over_df = over(df, order_by=["at"]).agg(z=those.newest("at"), n=those.newest("naive"))
    assert dict(over_df.dtypes)["z"] == "timestamp"
    assert sorted(row[0] for row in over_df.selectExpr("string(z)").collect()) == sorted(TIMES)
    mapped_df = with_columns(
        df, z=those.later("at", "30"), n=those.later("naive", "30"), zone=those.zone("at"), no=those.zone("naive")
    )
    assert [dict(mapped_df.dtypes)[name] for name in ("z", "n")] == ["timestamp", "timestamp_ntz"]
    (row,) = mapped_df.where("v = 0").selectExpr("string(z)", "string(n)", "zone", "no").collect()
    assert tuple(row) == ("2026-01-01 09:30:00", "2026-01-01 09:30:00", "UTC", "None")
    table = join_lateral(df.selectExpr("v", "at AS t"), those.hours("t"))
    assert table.where("v = 0 AND number = 1").selectExpr("string(at)").collect()[0][0] == TIMES[2]


def test_statements_take_both_kinds_of_timestamps(classic: Any) -> None:
    """Registered functions take both; a statement declares one kind by its name in Spark."""
    those = connect(datetime_functions)
    rows_of(classic).createOrReplaceTempView("moments")
    register(classic, those)
    result = sql(classic, "SELECT latest(v, at) AS z, latest(v, naive) AS n, seconds(at) AS s FROM moments")
    assert result.dtypes[:2] == [("z", "timestamp"), ("n", "timestamp_ntz")]
    shown_rows = result.selectExpr("string(z)", "string(n)", "s").collect()
    assert [tuple(row) for row in shown_rows] == [(TIMES[1], TIMES[1], 7200.0)]
    lists = sql(classic, "SELECT v, latest(v, at) FILTER (WHERE v > 0) AS z FROM moments GROUP BY ROLLUP (v)")
    assert dict(lists.dtypes)["z"] == "timestamp"
    assert max(row[0] for row in lists.selectExpr("string(z)").collect() if row[0]) == TIMES[1]
    over_df = sql(classic, "SELECT newest(at) OVER (ORDER BY at) AS z FROM moments ORDER BY z")
    assert [row[0] for row in over_df.selectExpr("string(z)").collect()] == sorted(TIMES)
    assert {row[0] for row in sql(classic, "SELECT zone(at) FROM moments").collect()} == {"UTC"}
    module = "tests.datetime_functions"
    sql(
        classic,
        f"CREATE OR REPLACE FUNCTION later_at(TIMESTAMP, BIGINT) RETURNS TIMESTAMP LANGUAGE python AS '{module}:later'",
    )
    mapped_df = sql(classic, "SELECT later_at(at, 30) AS z FROM moments WHERE v = 0")
    assert mapped_df.dtypes == [("z", "timestamp")]
    assert mapped_df.selectExpr("string(z)").collect()[0][0] == "2026-01-01 09:30:00"
    sql(
        classic,
        f"CREATE OR REPLACE AGGREGATE last_at(DOUBLE, TIMESTAMP) RETURNS TIMESTAMP APPEND ONLY LANGUAGE python "
        f"AS '{module}:Latest'",
    )
    assert sql(classic, "SELECT last_at(v, at) AS z FROM moments").dtypes == [("z", "timestamp")]
    with pytest.raises(SqlError, match="takes TIMESTAMP_LTZ for its argument at, and this is TIMESTAMP_NTZ"):
        sql(classic, "SELECT last_at(v, naive) AS z FROM moments")


def test_a_scalar_function_has_both_kinds_in_statements(classic: Any) -> None:
    """A registered scalar function has both kinds in `sql`; `spark.sql` knows one type of it, and says so."""
    rows_of(classic).createOrReplaceTempView("moments")
    register(classic, connect(datetime_functions))
    items = "later(at, 30) z, later(naive, 30) n, later(later(at, 30), 30) t"
    result = sql(classic, f"SELECT {items} FROM moments WHERE v = 0")
    assert result.dtypes == [("z", "timestamp"), ("n", "timestamp_ntz"), ("t", "timestamp")]
    (row,) = result.selectExpr("string(z)", "string(n)", "string(t)").collect()
    assert tuple(row) == ("2026-01-01 09:30:00", "2026-01-01 09:30:00", "2026-01-01 10:00:00")
    assert sql(classic, "SELECT later(at, 30) FROM moments").columns == ["later(at, 30)"]
    some = sql(classic, "SELECT newest(later(at, 60)) z, newest(later(at, 60)) FILTER (WHERE v < 1) f FROM moments")
    assert [kind for _, kind in some.dtypes] == ["timestamp", "timestamp"]
    (row,) = some.selectExpr("string(z)", "string(f)").collect()
    assert tuple(row) == ("2026-01-01 12:00:00", "2026-01-01 10:00:00")
    filtered_df = sql(classic, "SELECT v FROM moments WHERE later(at, 60) > TIMESTAMP '2026-01-01 11:30:00'")
    assert [row.v for row in filtered_df.collect()] == [1.0]
    with pytest.raises(Exception, match="later returns") as excinfo:
        classic.sql("SELECT later(at, 30) FROM moments").collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert "cast its timestamps to TIMESTAMP_NTZ, declare the types by CREATE FUNCTION" in str(error)


@pytest.mark.slow
def test_streams_take_both_kinds_of_timestamps(classic: Any, tmp_path: Path) -> None:
    """The state has a zone if its column has one, also after a restart."""
    rows_of(classic).coalesce(1).write.parquet(str(tmp_path / "input"))
    those = connect(datetime_functions)
    result: list[Any] = []
    for _ in range(2):
        source = classic.readStream.schema("v double, at timestamp, naive timestamp_ntz").parquet(
            str(tmp_path / "input")
        )
        changes = group_by(source, buckets=1).agg(
            z=those.latest("v", "at"), n=those.latest("v", "naive"), seen=those.seen("at")
        )
        stream_query = (
            changes.writeStream.outputMode("update")
            .foreachBatch(lambda batch, _: result.extend(batch.select("z", "n", "seen").collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        stream_query.awaitTermination()
        rows_of(classic).selectExpr("v", "at + INTERVAL 1 HOUR AS at", "naive").coalesce(1).write.mode(
            "append"
        ).parquet(str(tmp_path / "input"))
    assert [row.seen for row in result] == [3, 4]
    assert result[-1].n == datetime(2026, 1, 1, 11)
    assert (result[-1].z.astimezone(UTC) - result[0].z.astimezone(UTC)).total_seconds() == 3600
