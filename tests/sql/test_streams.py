"""Statements over streaming views: updates, EMIT CHANGES, EMIT ON WINDOW CLOSE, windows, and refusals."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight.spark import sql
from foldflight.sql import SqlError
from tests.spark.test_stream import Stream
from tests.spark_sessions import since_spark

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Orders(Stream):
    """Orders with their time."""

    ddl = "op string, customer string, amount bigint, qty int, at timestamp"
    schema = pa.schema(
        [
            ("op", pa.string()),
            ("customer", pa.string()),
            ("amount", pa.int64()),
            ("qty", pa.int32()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )


def at(minute: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, 12, minute, tzinfo=dt.UTC)


def orders(db: Any, folder: Path, text: str, *, mode: str = "update", **options: Any) -> Orders:
    """Return a stream whose query is a statement over the view `orders`."""

    def query(df: Any) -> Any:
        df.withWatermark("at", "0 seconds").createOrReplaceTempView("orders")
        return sql(db, text, **options)

    return Orders(db, folder, query, mode)


BOUNDS = "GROUP BY window_start, window_end"
RUNNING = "my_sum(amount) OVER (PARTITION BY customer ORDER BY at) AS s"
SUMS = "SELECT customer, my_sum(amount) AS n FROM orders GROUP BY customer"


def order(customer: str, amount: int, minute: int = 0, op: str = "+I") -> dict[str, Any]:
    return {"op": op, "customer": customer, "amount": amount, "qty": 1, "at": at(minute)}


def rows_of_epoch(epoch: list[dict[str, Any]], *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in columns) for row in epoch), key=repr)


@pytest.mark.every_turn
def test_filter_guards_arguments_of_streams(db: Any, tmp_path: Path) -> None:
    """What FILTER leaves out is not evaluated."""
    stream = orders(db, tmp_path, "SELECT my_sum(1 / amount) FILTER (WHERE amount > 0) AS s, count(*) AS n FROM orders")
    stream.write([order("a", 0), order("a", 4)])
    assert rows_of_epoch(stream.run()[0], "s", "n") == [(0.25, 2)]


@pytest.mark.every_turn
def test_emit_changes_gives_the_changes_of_each_epoch(db: Any, tmp_path: Path) -> None:
    """EMIT CHANGES is a changelog: items are computed from the fold, built-in aggregates beside; HAVING is allowed."""
    stream = orders(
        db,
        tmp_path,
        """SELECT upper(customer) AS who, weighted_avg(amount, qty) + 1 AS price, count(*) AS n,
                  my_count(DISTINCT amount) AS d
           FROM orders WHERE amount > 0 GROUP BY customer EMIT CHANGES""",
    )
    stream.write([order("a", 10), order("b", 4), order("b", -1)])
    stream.write([order("a", 20), order("a", 20)])
    first, second = stream.run()
    columns = ("row_kind", "who", "price", "n", "d")
    assert rows_of_epoch(first, *columns) == [("+I", "A", 11, 1, 1), ("+I", "B", 5, 1, 1)]
    assert rows_of_epoch(second, *columns) == [("+U", "A", 17, 3, 2), ("-U", "A", 11, 1, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "FROM orders GROUP BY customer, window(at, '10 minutes')",
        """FROM TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '10' MINUTES))
           GROUP BY window_start, window_end, customer""",
    ],
)
def test_emit_on_window_close_gives_final_rows(db: Any, tmp_path: Path, source: str) -> None:
    """EMIT ON WINDOW CLOSE emits each window once; `window` of Spark and Flink's TUMBLE are the same."""
    start = "window.start" if "window(" in source else "window_start"
    text = f"SELECT customer, {start} AS start, my_sum(amount) AS total {source} EMIT ON WINDOW CLOSE"
    stream = orders(db, tmp_path, text, mode="append")
    stream.write([order("a", 1, 1), order("a", 2, 9), order("b", 5, 2)])
    stream.write([order("a", 4, 25)])
    stream.write([order("a", 8, 45)])
    rows = [row for epoch in stream.run() for row in epoch]
    assert rows_of_epoch(rows, "customer", "total") == [("a", 3), ("a", 4), ("b", 5)]


@pytest.mark.every_turn
@since_spark("4.2", "QUALIFY")
def test_over_in_a_stream_gives_each_row_once(db: Any, tmp_path: Path) -> None:
    """Each row comes out once, when the watermark has reached its time; QUALIFY and expressions are over the result.

    Customer a had no row for more than three minutes before its row of minute 5, so it begins anew.
    """
    stream = orders(
        db,
        tmp_path,
        f"""SELECT upper(customer) AS who, {RUNNING}, 10 * my_max(amount) OVER w AS high
            FROM orders QUALIFY my_max(amount) OVER w > 1
            WINDOW w AS (PARTITION BY customer ORDER BY at ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)""",
        mode="append",
        buckets=2,
        idle="3 minutes",
    )
    stream.write([order("a", 7, 5), order("b", 1, 2), order("a", 3, 1)])
    stream.write([order("a", 2, 9), order("a", 1, 8)])
    stream.write([order("c", 9, 50)])
    rows = [row for epoch in stream.run() for row in epoch]
    assert rows_of_epoch(rows, "who", "s", "high") == [
        ("A", 10, 20),
        ("A", 3, 30),
        ("A", 7, 70),
        ("A", 8, 70),
        ("C", 9, 90),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("HOP(TABLE o, DESCRIPTOR(at), '10 minutes', '20 minutes')", [(-10, 3), (0, 3), (10, 4), (20, 4)]),
        ("CUMULATE(TABLE o, DESCRIPTOR(at), '10 minutes', '20 minutes')", [(0, 3), (0, 3), (20, 4), (20, 4)]),
        ("SESSION(TABLE o, DESCRIPTOR(at), INTERVAL '9' MINUTES)", [(1, 3), (25, 4)]),
    ],
)
def test_windows_of_streams_close(db: Any, tmp_path: Path, table: str, expected: list[tuple[int, int]]) -> None:
    """Flink's table functions over a stream give each window once; the watermark is defined in SQL."""
    relation = "(SELECT * FROM orders WATERMARK at DELAY OF INTERVAL '0' SECONDS)"
    text = f"""SELECT window_start AS start, my_sum(amount) AS total FROM {table.replace("TABLE o", relation)}
        GROUP BY window_start, window_end EMIT ON WINDOW CLOSE"""

    def query(df: Any) -> Any:
        df.createOrReplaceTempView("orders")
        return sql(db, text)

    stream = Orders(db, tmp_path, query, "append")
    for each in ([order("a", 2, 9)], [order("b", 1, 1), order("a", 4, 25)], [order("a", 8, 59)]):
        stream.write(each)
    rows = [row for epoch in stream.run() for row in epoch]
    noon = db.sql("SELECT timestamp'2026-01-01 12:00:00Z'").collect()[0][0]
    assert sorted((int((row["start"] - noon).total_seconds()) // 60, row["total"]) for row in rows) == expected


@pytest.mark.slow
def test_closed_windows_can_be_aggregated_again(db: Any, tmp_path: Path) -> None:
    """Closed windows are final rows, over which a second statement aggregates."""

    def query(df: Any) -> Any:
        df.withWatermark("at", "0 seconds").createOrReplaceTempView("orders")
        sql(
            db,
            """CREATE OR REPLACE TEMPORARY VIEW closed AS SELECT customer, my_sum(amount) AS s FROM orders
               GROUP BY customer, window(at, '10 minutes') EMIT ON WINDOW CLOSE""",
        )
        return sql(db, "SELECT customer, my_max(s) AS m, count(*) AS n FROM closed GROUP BY customer")

    stream = Orders(db, tmp_path, query, "update")
    stream.write([order("a", 1, 1), order("a", 2, 9), order("b", 5, 2)])
    stream.write([order("a", 4, 25)])
    stream.write([order("b", 8, 45)])
    epochs = [rows_of_epoch(each, "customer", "m", "n") for each in stream.run() if each]
    assert epochs == [[("a", 3, 1), ("b", 5, 1)], [("a", 4, 2)]]


@pytest.mark.slow
def test_calls_with_an_order_retract(db: Any, tmp_path: Path) -> None:
    """`f(x ORDER BY t)` keeps the rows of its groups, so rows may come late and be taken back."""
    stream = orders(
        db,
        tmp_path,
        """SELECT customer, my_string_agg(CAST(amount AS STRING) ORDER BY at DESC) AS amounts
           FROM orders GROUP BY customer""",
        row_kind="op",
    )
    stream.write([order("a", 1, 1), order("a", 3, 3)])
    stream.write([order("a", 2, 2), order("a", 3, 3, "-D")])
    first, second = stream.run()
    assert rows_of_epoch(first, "customer", "amounts") == [("a", "3,1")]
    assert rows_of_epoch(second, "customer", "amounts") == [("a", "2,1")]


@pytest.mark.slow
def test_changes_can_be_aggregated(db: Any, tmp_path: Path) -> None:
    """Aggregates over aggregates, in the two steps that a refusal tells: a view of changes, which have row kinds."""

    def query(df: Any) -> Any:
        df.createOrReplaceTempView("orders")
        sql(db, f"CREATE OR REPLACE TEMPORARY VIEW sums AS {SUMS} EMIT CHANGES")
        return sql(db, "SELECT n, my_count(*) AS c FROM sums GROUP BY n", row_kind="row_kind")

    stream = Orders(db, tmp_path, query, "update")
    stream.write([order("a", 1), order("b", 3)])
    stream.write([order("a", 2)])
    first, second = stream.run()
    assert rows_of_epoch(first, "n", "c") == [(1, 1), (3, 1)]
    assert rows_of_epoch(second, "row_kind", "n", "c") == [("+U", 3, 2), ("-D", 1, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT customer, my_sum(amount) AS s FROM orders GROUP BY customer HAVING s > 1", "EMIT CHANGES"),
        (
            "SELECT customer, my_sum(amount) OVER (PARTITION BY customer) FROM orders",
            "OVER without ORDER BY the column under",
        ),
        (f"SELECT {RUNNING}, rank() OVER (ORDER BY at) FROM orders", "OVER of Spark's functions"),
        (f"SELECT {RUNNING} FROM plain", "this stream has none; add df.withWatermark"),
        (f"SELECT {RUNNING} FROM orders EMIT CHANGES", "leave EMIT CHANGES out"),
        (f"SELECT {RUNNING} FROM (SELECT *, op AS row_kind FROM orders)", "OVER over a stream with a column row_kind"),
        (f"SELECT {RUNNING} FROM orders ORDER BY s", "cannot be sorted"),
        ("SELECT customer, my_sum(amount), max_by(qty, amount) FROM orders GROUP BY customer", "Spark's max_by"),
        ("SELECT customer, my_sum(amount) FROM orders GROUP BY ROLLUP(customer)", "ROLLUP"),
        ("SELECT customer, my_string_agg(customer) FROM orders GROUP BY customer", "materialize=True"),
        ("SELECT customer, my_sum(amount) FROM orders GROUP BY customer EMIT ON WINDOW CLOSE", "needs windows; write"),
        ("SELECT my_sum(amount) FROM plain GROUP BY window(at, '5 minutes') EMIT ON WINDOW CLOSE", "a watermark on at"),
        (
            "SELECT my_sum(v) FROM CUMULATE(orders, at, '3 minutes', '5 minutes') GROUP BY window_start, window_end",
            "`v`",
        ),
        (f"{SUMS} ORDER BY n", "cannot be sorted"),
        ("SELECT DISTINCT my_sum(amount) FROM orders GROUP BY customer", "DISTINCT would drop changes"),
        ("SELECT rank() OVER (ORDER BY my_sum(amount)) FROM orders GROUP BY customer", "or over groups, needs"),
        (f"{SUMS} UNION {SUMS}", "UNION would compare"),
        (f"SELECT customer AS row_kind, {SUMS[7:]} EMIT CHANGES", "has a column row_kind"),
        ("SELECT amount FROM orders EMIT CHANGES", "this query has none"),
        ("SELECT customer, my_sum(amount) FROM orders GROUP BY customer EMIT FINAL", "CHANGES or ON WINDOW CLOSE"),
        ("SELECT my_sum(v) FROM hav EMIT CHANGES", "EMIT is for streams"),
        (f"SELECT n, my_count(*) FROM ({SUMS}) GROUP BY n", "aggregates over aggregates of a stream"),
        (f"SELECT n, count(*) FROM (SELECT * FROM ({SUMS})) GROUP BY n EMIT CHANGES", "CREATE TEMPORARY VIEW v"),
        (f"WITH s AS ({SUMS}), t AS (SELECT n FROM s) SELECT max(n) FROM t", "aggregates over aggregates"),
        (f"SELECT n, my_max(n) OVER (PARTITION BY n) FROM ({SUMS})", "aggregates over aggregates"),
        ("SELECT my_sum(amount) FROM CUMULATE(TABLE orders, DESCRIPTOR(at))", "CUMULATE(TABLE t"),
        (f"SELECT customer, n FROM ({SUMS}) EMIT CHANGES", "changes without their kinds"),
        (f"SELECT customer, n FROM ({SUMS}) WHERE n > 1", "WHERE or JOIN over a stream of updates"),
        (f"SELECT s.n FROM ({SUMS}) s JOIN hav ON s.n = hav.v", "WHERE or JOIN over a stream of updates"),
        (f"SELECT * FROM ({SUMS}) LIMIT 3 EMIT CHANGES", "count the changes of a stream"),
    ],
)
def test_clauses_that_streams_do_not_have_are_refused(db: Any, tmp_path: Path, text: str, message: str) -> None:
    """A query that a stream cannot run is refused when it is planned, with the reason and what to write instead."""
    (tmp_path / "input").mkdir()
    rows = db.readStream.schema(Orders.ddl).parquet(str(tmp_path / "input"))
    rows.withWatermark("at", "0 seconds").createOrReplaceTempView("orders")
    rows.createOrReplaceTempView("plain")
    options = {"row_kind": "op"} if "string_agg" in text else {}
    with pytest.raises(SqlError) as excinfo:
        sql(db, text, **options)
    assert message in excinfo.value.message


def test_idle_is_for_over_in_streams(db: Any, tmp_path: Path) -> None:
    """It bounds the state of OVER in a stream, also beside batches; where nothing has such a state it is refused."""
    (tmp_path / "input").mkdir()
    rows = db.readStream.schema(Orders.ddl).parquet(str(tmp_path / "input"))
    rows.withWatermark("at", "0 seconds").createOrReplaceTempView("orders")
    stream = f"SELECT {RUNNING}, amount FROM orders"
    of_batch = "SELECT v, my_sum(v) AS n FROM hav GROUP BY v"
    over_batch = "SELECT v, my_sum(v) OVER (PARTITION BY k) AS n FROM hav"
    for batch in (of_batch, over_batch):
        text = f"SELECT s, n FROM ({stream}) JOIN ({batch}) ON amount = v"
        assert sql(db, text, idle="7 days").columns == ["s", "n"]
    for text in (SUMS, of_batch, over_batch):
        with pytest.raises(SqlError, match="idle bounds the state of calls with OVER in a stream, and this query has"):
            sql(db, text, idle="7 days")
    with pytest.raises(SqlError, match="idle bounds"):
        sql(db, of_batch, idle="7 days", plan="lists")
    with pytest.raises(
        SqlError, match=r"^idle is an interval of a fixed length, .* and here it is '1 month' \(line 1"
    ) as wrong:
        sql(db, stream, idle="1 month")
    assert "GROUP BY" not in wrong.value.message


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("TUMBLE(TABLE o, DESCRIPTOR(at), INTERVAL '10' MINUTES)", [(0, 10, 3), (20, 30, 4)]),
        ("TUMBLE(TABLE o, DESCRIPTOR(at), INTERVAL '0:10' HOUR TO MINUTE)", [(0, 10, 3), (20, 30, 4)]),
        (
            "HOP(TABLE o, DESCRIPTOR(at), '10 minutes', '20 minutes')",
            [(-10, 10, 3), (0, 20, 3), (10, 30, 4), (20, 40, 4)],
        ),
        (
            "CUMULATE(TABLE o, DESCRIPTOR(at), '10 minutes', '20 minutes')",
            [(0, 10, 3), (0, 20, 3), (20, 30, 4), (20, 40, 4)],
        ),
        ("SESSION((SELECT * FROM o), at, INTERVAL '9' MINUTES)", [(1, 18, 3), (25, 34, 4)]),
        ("SESSION(TABLE o, DESCRIPTOR(at), INTERVAL '0 00:09:00' DAY TO SECOND)", [(1, 18, 3), (25, 34, 4)]),
    ],
)
def test_batches_take_the_windows_of_flink(db: Any, table: str, expected: list[tuple[int, int, int]]) -> None:
    """The table functions of Flink assign windows to the rows of a batch."""
    db.sql("""CREATE OR REPLACE TEMP VIEW o AS
        SELECT timestamp_seconds(unix_timestamp(timestamp'2026-01-01 12:00:00') + 60 * m) AS at, v
        FROM VALUES (1, 1), (9, 2), (25, 4) AS t(m, v)""")
    query = f"SELECT window_start, window_end, my_sum(v) AS s FROM {table} GROUP BY window_start, window_end"
    noon = db.sql("SELECT timestamp'2026-01-01 12:00:00'").collect()[0][0]
    result = [
        (*(int((each - noon).total_seconds()) // 60 for each in (row.window_start, row.window_end)), row.s)
        for row in sql(db, query).collect()
    ]
    assert sorted(result) == expected


@pytest.mark.parametrize(
    ("gap", "hours"), [("INTERVAL '48' HOURS", 48), ("INTERVAL '2' DAYS", 49), ("'1 day 24 hours'", 48)]
)
def test_gaps_of_sessions_end_by_their_units(db: Any, gap: str, hours: int) -> None:
    """Where clocks change, 24 hours are 24 hours and a day is a day of the calendar."""
    zone = db.conf.get("spark.sql.session.timeZone")
    db.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        db.sql("SELECT timestamp'2024-11-01 16:00:00Z' AS at, 1 AS v").createOrReplaceTempView("o")
        query = f"""SELECT window_end, my_sum(v) AS s FROM SESSION(TABLE o, DESCRIPTOR(at), {gap})
            GROUP BY window_start, window_end"""
        (row,) = sql(db, query).collect()
    finally:
        db.conf.set("spark.sql.session.timeZone", zone)
    assert row.window_end.astimezone(dt.UTC) == dt.datetime(2024, 11, 1, 16, tzinfo=dt.UTC) + dt.timedelta(hours=hours)
