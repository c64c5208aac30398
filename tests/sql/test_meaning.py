"""Statements whose meaning is easily lost: each is computed as Spark means it, or refused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.functions import udf

from foldflight import Functions, RejectedError, connect, udaf
from foldflight.spark import column, enable, register, split_changes, sql
from foldflight.spark.errors import error_of
from foldflight.sql import SqlError
from foldflight.sql.analysis import Analysis
from tests.spark_sessions import since_spark
from tests.sql.test_statements import MODULE, SOURCE, values

OWN = SOURCE.replace("(BIGINT) AS", "(BIGINT) APPEND ONLY AS")
MINUTES = "'10 minutes', '20 minutes'"
BY = "GROUP BY window_start, window_end"


@pytest.fixture
def times(db: Any) -> Any:
    """The session with a view `o` of times."""
    db.sql("""CREATE OR REPLACE TEMP VIEW o AS SELECT timestamp'2026-01-01 12:00:00' AS at, v, k
        FROM VALUES (1, 'a'), (2, 'b') AS t(v, k)""")
    return db


def test_an_insert_behind_with_is_refused(db: Any) -> None:
    """Planning it would insert the rows, once for each question to Spark; EXPLAIN, too."""
    statement = "WITH x AS (SELECT k, my_sum(v) AS s FROM hav GROUP BY k) INSERT INTO nowhere SELECT * FROM x"
    for text in (statement, f"EXPLAIN FOLDFLIGHT {statement}"):
        with pytest.raises(SqlError, match="write INSERT INTO t WITH"):
            sql(db, text)


def test_chains_of_tables_are_looked_into_once(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark analyses a chain whole for each of its links, so planning took the square of its length."""
    queries: list[str] = []
    df = Analysis.df

    def note(analysis: Analysis, query: str) -> Any:
        queries.append(query)
        return df(analysis, query)

    monkeypatch.setattr(Analysis, "df", note)
    links = [f"t{at + 1} AS (SELECT v FROM t{at} JOIN (SELECT max(v) AS m FROM t{at}))" for at in range(5)]
    rows = "SELECT v FROM VALUES (1) AS t(v)"
    assert values(sql(db, f"WITH t0 AS ({rows}), {', '.join(links)} SELECT sum(v) FROM t5")) == [(1,)]
    assert len(queries) == 1
    row, kinds = sf.struct("v"), {"+I": "+I"}
    changes = split_changes(db.sql("SELECT 5 AS v, '+I' AS op"), op="op", before=row, after=row, row_kinds=kinds)
    changes.createOrReplaceTempView("changed")
    for query in (
        f"WITH t AS ({rows}), u AS (SELECT * FROM t, changed) SELECT sum(1) FROM u",
        f"WITH t AS ({rows}) SELECT sum(1) FROM t JOIN changed",
        f"WITH t AS ({rows}) SELECT * FROM (WITH t AS (SELECT * FROM changed) SELECT sum(v) FROM t)",
    ):
        with pytest.raises(SqlError, match="sum of Spark would take"):
            sql(db, query)


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT window_start, my_sum(v) FROM (SELECT * FROM CUMULATE(o, at, {MINUTES})) {BY}",
        f"SELECT window_start, my_sum(v) FROM CUMULATE(o, at, {MINUTES}) GROUP BY window_start",
        "SELECT window_end, my_sum(v) FROM SESSION(o, at, '10 minutes') GROUP BY window_end",
        f"SELECT my_sum(v) AS s FROM hav UNION ALL SELECT max(v) AS s FROM CUMULATE(o, at, {MINUTES}) {BY}",
        "SELECT my_sum(h.v) FROM hav h JOIN SESSION(o, at, '10 minutes') s ON h.v = s.v",
    ],
)
def test_windows_without_their_groups_are_refused(times: Any, query: str) -> None:
    """CUMULATE and SESSION need both bounds as keys of a block that is folded; otherwise times would be windows."""
    with pytest.raises(SqlError, match="needs GROUP BY window_start, window_end"):
        sql(times, query)


def test_the_table_of_a_window_may_have_aggregates(times: Any, plans_of: Callable[..., list[str]]) -> None:
    """The query within TUMBLE is planned like other queries."""
    inner = "(SELECT at, k, my_sum(v) AS s FROM o GROUP BY at, k)"
    query = f"SELECT my_max(s) AS m FROM TUMBLE({inner}, at, '10 minutes') {BY}"
    assert values(sql(times, query)) == [(2,)]
    assert values(sql(times, query, plan="lists")) == [(2,)]
    assert plans_of(times, query) == ["fold", "fold"]


@pytest.mark.every_turn
def test_rows_of_batches_are_retracted_by_their_kind(db: Any) -> None:
    """Rows of a batch are retracted by their kind; where they cannot be, the option is refused."""
    db.sql("""CREATE OR REPLACE TEMP VIEW kinds AS
        SELECT * FROM VALUES ('a', 5, '+I'), ('a', 2, '+I'), ('a', 2, '-D'), ('b', 1, 'd') AS t(k, v, op)""")
    query = "SELECT k, my_sum(v) AS s, count(*) AS n FROM kinds WHERE op <> 'd' GROUP BY k"
    assert values(sql(db, query, row_kind="op")) == [("a", 5, 1)]
    kind_of_code = {"+I": "+I", "-D": "-D", "d": "+I"}
    result = sql(db, query.replace(" WHERE op <> 'd'", ""), row_kind="op", row_kinds=kind_of_code)
    assert values(result) == [("a", 5, 1), ("b", 1, 1)]
    unknown = "(VALUES ('a', 10, '-U'), ('a', 40, '+U'), ('b', 1, '-D')) AS t(k, v, op)"
    statement = f"SELECT k, my_sum(v) AS s, count(*) AS n FROM {unknown} GROUP BY k"
    assert values(sql(db, statement, row_kind="op")) == [("a", 40, 1)]
    with pytest.raises(Exception, match="CANNOT_RETRACT: a row is retracted and no equal row"):
        sql(db, statement, row_kind="op", strict=True).collect()
    with pytest.raises(SqlError, match=r"row_kind='op' cannot retract rows .*: OVER .*write OVER over its result"):
        sql(db, "SELECT my_sum(v) OVER () FROM kinds", row_kind="op")
    with pytest.raises(SqlError, match=r"row_kind='op' cannot retract rows .*leave plan='lists' out"):
        sql(db, query, row_kind="op", plan="lists")
    with pytest.raises(SqlError, match="row_kind has no effect"):
        sql(db, "SELECT k, sum(v) FROM kinds GROUP BY k", row_kind="op")


SIGNED = "sum(if(row_kind IN ('+I', '+U'), v, -v))"


@pytest.mark.parametrize(
    ("query", "actual"),
    [
        ("SELECT k, sum(v) FROM changed GROUP BY k", "sum of Spark would take rows that retract others"),
        ("SELECT count(*) FROM changed", "count of Spark would take"),
        ("SELECT sum(v) OVER (ORDER BY v) FROM changed", "sum of Spark would take"),
        ("WITH t AS (SELECT v FROM changed) SELECT sum(v) FROM t", "the SELECT, which leaves it out, would take"),
        ("SELECT n FROM (SELECT max(v) AS n FROM changed)", "max of Spark would take"),
        ("WITH t AS (SELECT * FROM changed) SELECT sum(v) FROM t", "sum of Spark would take"),
        (f"SELECT {SIGNED} FROM changed", [(8,)]),
        (f"SELECT {SIGNED} FROM (SELECT v, row_kind FROM changed)", [(8,)]),
        ("WITH t AS (SELECT * FROM changed WHERE row_kind = '+I') SELECT sum(v), count(*) FROM t", [(13, 2)]),
        ("SELECT max(v) FROM (SELECT * FROM changed WHERE v > 5)", "max of Spark would take"),
        ("SELECT row_kind, count(*) FROM changed GROUP BY row_kind ORDER BY 1", [("+I", 2), ("-D", 1)]),
        ("SELECT v FROM changed ORDER BY v", [(5,), (5,), (8,)]),
        ("SELECT sum(v) FROM VALUES (1) AS t(v)", [(1,)]),
    ],
)
def test_aggregates_of_spark_do_not_leave_row_kinds_out(db: Any, query: str, actual: Any) -> None:
    """They added rows that retract. A SELECT that names the column says itself what the kinds mean."""
    frame = db.sql("SELECT * FROM VALUES ('a', 5, '+I'), ('a', 5, '-D'), ('a', 8, '+I') AS t(k, v, op)")
    columns = sf.struct(sf.col("k"), sf.col("v"))
    kinds = {"+I": "+I", "-D": "-D"}
    split_changes(frame, op="op", before=columns, after=columns, row_kinds=kinds).createOrReplaceTempView("changed")
    if isinstance(actual, list):
        assert values(sql(db, query)) == actual
        return
    with pytest.raises(SqlError, match=f"the column row_kind has row kinds, and {actual}"):
        sql(db, query)
    assert sql(db, query, row_kind=None).collect()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, my_sum(v) AS s FROM changed GROUP BY k",
        "SELECT my_sum(v) FROM (SELECT v FROM changed WHERE v > 0) AS t",
        "SELECT my_sum(c.v) FROM changed AS c JOIN changed AS d ON c.k = d.k",
        "SELECT my_sum(v) OVER (ORDER BY v) FROM changed",
    ],
)
@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_row_kinds_are_not_left_out(db: Any, query: str, plan: str) -> None:
    """Rows of a changelog that retract were added without a word."""
    frame = db.sql("SELECT * FROM VALUES ('a', 5, '+I'), ('a', 5, '-U'), ('a', 8, '+U') AS t(k, v, op)")
    columns = sf.struct(sf.col("k"), sf.col("v"))
    kinds = {"+I": "+I", "-U": "-D", "+U": "+I"}
    split_changes(frame, op="op", before=columns, after=columns, row_kinds=kinds).createOrReplaceTempView("changed")
    if "(SELECT v FROM" in query:
        with pytest.raises(SqlError, match=r"row_kind has row kinds, and the SELECT, which leaves it out, would take"):
            sql(db, query, plan=plan)
        assert values(sql(db, query, plan=plan, row_kind=None)) == [(18,)]
        return
    with pytest.raises(SqlError, match=r"the column row_kind has row kinds.*option row_kind='row_kind'"):
        sql(db, query, plan=plan)
    if "GROUP BY k" in query:
        assert values(sql(db, query, row_kind=None, plan=plan)) == [("a", 18)]
        if plan == "auto":
            assert values(sql(db, query, row_kind="row_kind")) == [("a", 8)]


def test_filter_guards_arguments(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """Arguments and orders are evaluated where FILTER holds, in both plans and for Spark's own aggregates beside."""
    query = """SELECT k, my_max(CAST(y AS INT)) FILTER (WHERE y <> '') AS a, sum(1 / x) FILTER (WHERE x > 0) AS b,
                      my_sum(1 / x) FILTER (WHERE x > 1) + 1 AS c, my_count(x) FILTER (WHERE x = 0) AS d,
                      my_string_agg(y ORDER BY 1 / x) FILTER (WHERE x > 0) AS e
               FROM (SELECT k, y, x + 0 AS x FROM VALUES (1, '', 0), (1, '7', 2), (1, '8', 1) AS t(k, y, x)) AS t
               WHERE k = 1 GROUP BY k"""
    for plan in ("fold", "lists"):
        assert values(sql(db, query, plan=plan)) == [(1, 8, 1.5, 1.5, 1, "7,8")]
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sql(db, "SELECT my_sum(1 / x) FILTER (WHERE x > 0), my_min(1 / x) FROM VALUES (0) AS t(x)").collect()


@pytest.mark.every_turn
def test_filter_guards_scalar_functions(db: Any) -> None:
    """A scalar function in an argument gets the rows where FILTER holds, and so do its arguments: in all plans."""
    sql(
        db,
        """CREATE OR REPLACE FUNCTION above_zero(x DOUBLE) RETURNS DOUBLE AS $$
def above_zero(x):
    if not x > 0:
        raise ValueError(f"{x} is not positive")
    return x
$$""",
    )
    rows = "VALUES (1, 0D), (1, 2D), (2, 4D) AS t(k, x)"
    argument = "my_sum(above_zero(above_zero(1 / x) + 1 / x)) FILTER (WHERE x > 0)"
    query = f"SELECT k, {argument} AS a, my_sum(above_zero(x)) FILTER (WHERE x > 2) AS b FROM {rows} GROUP BY k"
    for plan in ("fold", "lists"):
        assert values(sql(db, query, plan=plan)) == [(1, 1.0, None), (2, 0.5, 4.0)]
    for plan in ("auto", "lists"):
        result = sql(db, f"SELECT {argument} OVER (PARTITION BY k) AS a FROM {rows}", plan=plan)
        assert values(result) == [(0.5,), (1.0,), (1.0,)]
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        sql(db, f"SELECT my_sum(above_zero(1 / x)) FROM {rows}").collect()


def test_a_chain_of_common_tables_is_planned_link_by_link(db: Any, questions: list[str]) -> None:
    """Spark is given the links that a block reads, so twice as many links are twice as much text, not four times."""

    def characters(links: int) -> int:
        tables = ["c0 AS (SELECT k, my_sum(v) AS s FROM hav GROUP BY k)"]
        tables += [f"c{n} AS (SELECT k, my_sum(s) AS s FROM c{n - 1} GROUP BY k)" for n in range(1, links)]
        questions.clear()
        result = sql(db, f"WITH {', '.join(tables)} SELECT * FROM c{links - 1}", plan="fold")
        assert result.columns == ["k", "s"]
        return sum(map(len, questions))

    assert characters(6) < 2.6 * characters(3)
    # The plan of a link contains the plans of all links before it. The query that reads c10 does not read c1.
    characters(12)
    assert max(text.count("foldflight_result_") for text in questions) == 1


def test_a_folded_common_table_may_be_read_many_times_or_never(db: Any) -> None:
    """The last query leaves out folded tables that nothing reads, but no table that Spark has not seen yet."""
    tables = "a AS (SELECT k, my_sum(v) AS s FROM hav GROUP BY k), b AS (SELECT my_max(s) AS m FROM a)"
    query = f"WITH {tables}, c AS (SELECT m FROM B) SELECT my_count(*) AS n FROM c JOIN `A` ON s <= m"
    assert values(sql(db, query, plan="fold")) == [(3,)]
    assert values(sql(db, f"WITH {tables} SELECT 1 AS one")) == [(1,)]
    with pytest.raises(SqlError, match="nope"):
        sql(db, f"WITH {tables}, c AS (SELECT nope FROM b) SELECT * FROM b")


def test_lists_without_aliases_around_a_fold(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """The names that Spark gives functions over lists do not keep the blocks within from being folded."""
    query = "SELECT my_max(s), my_min(s) + 1 FROM (SELECT k, my_sum(v) AS s FROM hav GROUP BY k) GROUP BY ROLLUP(k)"
    assert plans_of(db, query) == ["fold", "lists"]
    result = sql(db, query)
    assert result.columns == ["my_max(s)", "(my_min(s) + 1)"]
    assert values(result) == [(2, 3), (3, 4), (6, 3), (6, 7)]


def test_integers_fit_a_declared_decimal_in_lists(db: Any) -> None:
    """The result of `sum` has the type that the declared argument gives it, not the type of the column."""
    sql(db, "CREATE AGGREGATE decimal_sum(DECIMAL(12, 4)) RETURNS DECIMAL(22, 4) AS 'sum'")
    for plan in ("auto", "lists"):
        result = sql(db, "SELECT decimal_sum(v ORDER BY k) AS s, my_max(v) AS m FROM hav", plan=plan)
        assert dict(result.dtypes) == {"s": "decimal(22,4)", "m": "int"}
        assert values(result) == [(11, 5)]
    sql(db, "DROP AGGREGATE decimal_sum")


def test_ignore_nulls_is_a_direct_argument(db: Any, functions: Functions) -> None:
    """The error says how the function itself is told so."""
    register(db, functions, {"first": "first_seen"})
    with pytest.raises(SqlError, match=r"or write first_seen\(x, ignore_nulls => true\)"):
        sql(db, "SELECT first_seen(v) IGNORE NULLS FROM hav")
    rows = "VALUES (1, NULL), (2, 5) AS t(i, x)"
    assert values(sql(db, f"SELECT first_seen(x, ignore_nulls => true ORDER BY i) AS f FROM {rows}")) == [(5,)]


@pytest.mark.every_turn
@since_spark("4.0", "IDENTIFIER of a table")
def test_common_tables_are_found_by_their_names(db: Any) -> None:
    """A table is seen whichever way it is written, also through another one, and by IDENTIFIER."""
    query = """WITH `o``ne` AS (SELECT k, my_sum(v) AS s FROM hav GROUP BY k), TWO AS (SELECT * FROM `O``NE`)
               SELECT my_max(s) AS m FROM {} WHERE k = (SELECT my_min(k) FROM two)"""
    for name in ("two", "`Two`", "IDENTIFIER('t' || 'wo')"):
        for plan in ("auto", "lists"):
            assert values(sql(db, query.format(name), plan=plan)) == [(6,)]


def test_direct_arguments_have_the_escapes_of_spark(db: Any) -> None:
    """A direct argument is the text that Spark reads, with its escapes."""
    query = "SELECT my_string_agg(k, delimiter => '{}') AS s FROM hav WHERE k = 'one'"
    assert values(sql(db, query.format(r"\n"))) == [("one\none",)]
    assert values(sql(db, query.format(r"\t\\"))) == [("one\t\\one",)]


def test_a_column_may_be_named_offset(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """It is a key of the fold, and no clause."""
    db.sql("CREATE OR REPLACE TEMP VIEW places AS SELECT * FROM VALUES (1, 7), (2, 8), (2, 9) AS t(offset, v)")
    query = "SELECT my_sum(v) AS s FROM places WHERE offset > 0 GROUP BY offset ORDER BY 1 LIMIT 5"
    assert [row.s for row in sql(db, query).collect()] == [7, 17]
    assert plans_of(db, query) == ["fold"]


@since_spark("4.0", "a collation")
def test_spark_counts_distinct_rows_and_collated_texts_itself(db: Any) -> None:
    """Spark counts them itself: a fold has neither all columns nor collations."""
    db.sql("""CREATE OR REPLACE TEMP VIEW collated AS
        SELECT v, s COLLATE UTF8_LCASE AS s FROM VALUES (1, 'a'), (2, 'A') AS t(v, s)""")
    query = "SELECT my_sum(v) AS s, count(DISTINCT s) AS n, count(s) AS m FROM collated"
    assert values(sql(db, query)) == [(3, 1, 2)]
    assert values(sql(db, "SELECT my_sum(v) AS s, count(DISTINCT *) AS n FROM hav")) == [(11, 4)]
    with pytest.raises(SqlError, match="by their collation"):
        sql(db, query, plan="fold")


def test_spark_compares_nested_values(db: Any) -> None:
    """A fold cannot order structs, so Spark's own max does beside a function of foldflight."""
    result = sql(db, "SELECT my_sum(v) AS s, max(struct(v, k)) AS m FROM hav")
    assert values(result) == [(11, (5, "one"))]


def test_names_that_differ_in_case(db: Any) -> None:
    """With spark.sql.caseSensitive, `a` and `A` are two columns."""
    session = db.newSession()
    enable(session)
    session.sql("CREATE AGGREGATE total(INT) RETURNS BIGINT AS 'sum'")
    session.conf.set("spark.sql.caseSensitive", "true")
    result = session.sql("SELECT total(a) AS x, total(A) AS y FROM VALUES (1, 10), (2, 20) AS t(a, A)")
    assert values(result) == [(3, 30)]


def test_a_frame_is_no_column(db: Any, functions: Any) -> None:
    """A Column would fold all rows in place of the frame."""
    with pytest.raises(RejectedError, match=r"write column\(\.\.\.\)\.over"):
        column(db, functions.weighted_avg("v", "v").order_by("v").rows(-1, 0))


def test_a_function_in_use_cannot_be_dropped(db: Any, tmp_path: Path) -> None:
    """DROP and REPLACE of a function with an alias are refused; the order in the file is one that can be executed."""
    file, session = tmp_path / "catalog.sql", db.newSession()
    enable(session, file)
    session.sql("CREATE AGGREGATE first_one(BIGINT) RETURNS BIGINT AS 'sum'")
    session.sql(OWN)
    session.sql("CREATE AGGREGATE other(BIGINT) RETURNS BIGINT APPEND ONLY AS 'spread'")
    with pytest.raises(SqlError, match="other was created AS 'spread'"):
        session.sql("DROP AGGREGATE spread")
    with pytest.raises(SqlError, match="other was created AS 'spread'"):
        session.sql("CREATE OR REPLACE AGGREGATE spread(BIGINT) RETURNS BIGINT AS 'sum'")
    session.sql("CREATE OR REPLACE AGGREGATE first_one(BIGINT) RETURNS BIGINT APPEND ONLY AS 'spread'")
    session.sql(OWN.replace("state[1] - state[0]", "state[0] - state[1]"))
    query = "SELECT first_one(v), other(v), spread(v) FROM VALUES (1L), (3L) AS t(v)"
    assert values(session.sql(query)) == [(-2, -2, -2)]
    again = db.newSession()
    enable(again, file)
    assert values(again.sql(query)) == [(-2, -2, -2)]
    again.sql("DROP AGGREGATE other")
    again.sql("DROP AGGREGATE first_one")
    again.sql("DROP AGGREGATE spread")
    with pytest.raises(SqlError, match="there is no function 'spread'"):
        again.sql("CREATE AGGREGATE late(BIGINT) RETURNS BIGINT AS 'spread'")
    again.sql(f"CREATE AGGREGATE w(BIGINT, INT) RETURNS BIGINT AS '{MODULE}:Weighted'")
    assert file.read_text().startswith("CREATE AGGREGATE w(BIGINT, INT)")


def test_sessions_share_a_catalogue_file(db: Any, tmp_path: Path) -> None:
    """A statement changes its function in the file, and keeps the others and the mode; reading it twice is no error."""
    file, one, two = tmp_path / "catalog.sql", db.newSession(), db.newSession()
    enable(one, file)
    enable(two, file)
    one.sql("CREATE AGGREGATE a(BIGINT) RETURNS BIGINT AS 'sum'")
    file.chmod(0o640)
    two.sql("CREATE AGGREGATE b(BIGINT) RETURNS BIGINT AS 'max'".replace("AS", "APPEND ONLY AS"))
    two.sql("SHOW AGGREGATES")
    assert [line.split("(")[0] for line in file.read_text().split("\n\n") if line] == [
        "CREATE AGGREGATE a", "CREATE AGGREGATE b"
    ]  # fmt: skip
    assert file.stat().st_mode & 0o777 == 0o640
    enable(one, file)
    assert {row.name for row in one.sql("SHOW AGGREGATES").collect()} == {"a", "b"}
    assert [path.name for path in tmp_path.iterdir()] == ["catalog.sql"]


@pytest.mark.parametrize("plan", ["fold", "lists"])
def test_results_out_of_range_are_overflows_in_each_plan(db: Any, plan: Any) -> None:
    """Fractions of an integer result are cut off, and a number that FLOAT does not have is OVERFLOW, in each plan."""
    double: list[Any] = []
    for name, type_ in (("as_long", "BIGINT"), ("as_float", "REAL")):

        @udaf(name=name, input_types=["DOUBLE"], result_type=type_)
        class Last:
            def create_accumulator(self) -> float:
                return 0.0

            def accumulate(self, accumulator: float, value: float) -> float:
                return value

            def merge(self, accumulator: float, other: float) -> float:
                return other or accumulator

            def get_value(self, accumulator: float) -> float:
                return accumulator

        double.append(Last)
    register(db, connect(double))
    query = "SELECT {f}(x) AS y FROM VALUES (CAST({x} AS DOUBLE)) AS t(x)".format
    assert values(sql(db, query(f="as_long", x="-2.7"), plan=plan)) == [(-2,)]
    assert values(sql(db, query(f="as_float", x="'-Infinity'"), plan=plan)) == [(-math.inf,)]
    for name, x in (("as_long", "1e300"), ("as_float", "2.7e300")):
        with pytest.raises(PySparkException) as excinfo:
            sql(db, query(f=name, x=x), plan=plan).collect()
        result = error_of(excinfo.value)
        assert result is not None
        assert result.code == "OVERFLOW"
        assert "; declare" in result.message


@pytest.mark.every_turn
def test_a_table_that_differs_each_time_is_computed_once(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """Computed again for another fold, its rows would have other random numbers; Spark computes them once."""
    random_tables = "WITH r AS (SELECT id % 3 AS k, rand() AS m FROM range(30)), p AS (SELECT k, m FROM r)"
    two = f"""{random_tables}, c AS (SELECT k, my_max(m) AS m FROM p GROUP BY k),
        e AS (SELECT k, my_min(m) AS m FROM p GROUP BY k)
        SELECT count(*) AS n FROM c JOIN e USING (k) WHERE c.m < e.m"""
    beside = f"""{random_tables}, c AS (SELECT k, my_max(r.m) AS m FROM identifier('r') GROUP BY k)
        SELECT count(*) AS n FROM p JOIN c USING (k) WHERE p.m > c.m"""
    assert plans_of(db, two) == ["lists", "lists"]
    assert plans_of(db, beside) == ["lists"]
    assert [sql(db, text).collect()[0].n for text in (two, beside)] == [0, 0]
    with pytest.raises(SqlError, match="it reads p, whose rows differ each time, and which is read elsewhere, too"):
        sql(db, two, plan="fold")
    once = f"{random_tables} SELECT p.k, my_max(p.m) AS m FROM p GROUP BY p.k"
    deterministic_query = two.replace("rand() AS m", "id AS m, id AS uuid")
    assert [plans_of(db, text) for text in (once, deterministic_query)] == [["fold"], ["fold", "fold"]]


@pytest.mark.every_turn
def test_spark_is_asked_whether_a_table_differs_each_time(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """The text does not tell it of a view with random numbers, and of functions that users have registered."""
    db.sql("CREATE OR REPLACE TEMP VIEW drawn AS SELECT id, rand() AS m FROM range(30)")
    random_udf = udf(lambda _: random.random(), "double")
    db.udf.register("drawing", random_udf.asNondeterministic())
    db.udf.register("constant", udf(lambda _: 0.5, "double"))
    twice = """WITH r AS (SELECT {m} AS m FROM drawn), p AS (SELECT m FROM r)
        SELECT (SELECT my_sum(m) FROM p) = (SELECT my_sum(m) FROM p) AS same"""
    for m, plan in (("m", "lists"), ("drawing(id)", "lists")):
        assert plans_of(db, twice.format(m=m)) == [plan, plan]
        assert sql(db, twice.format(m=m)).collect()[0].same
    steady = twice.replace("FROM drawn", "FROM range(30)")
    assert plans_of(db, steady.format(m="constant(id)")) == ["fold", "fold"]


@since_spark("4.1", "WITH RECURSIVE")
def test_folds_may_be_beside_and_in_recursive_tables(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """WITH RECURSIVE permits recursion for all its tables; where one reads itself, Spark allows no aggregates."""
    beside = """WITH RECURSIVE r(n) AS (SELECT my_sum(v) FROM hav UNION ALL SELECT n + 1 FROM r WHERE n < 15),
        c AS (SELECT my_sum(n) AS s, my_count(*) AS n FROM r) SELECT * FROM c"""
    assert plans_of(db, beside) == ["fold", "fold"]
    assert values(sql(db, beside)) == [(11 + 12 + 13 + 14 + 15, 5)]
    within = """WITH RECURSIVE r(n) AS (SELECT 1L UNION ALL SELECT my_sum(n) FROM r GROUP BY n)
        SELECT my_sum(n) FROM r"""
    with pytest.raises(SqlError, match=r"it reads r, the .* aggregate in the query that reads its result"):
        sql(db, within)


def test_types_that_cannot_be_told_are_declared(db: Any) -> None:
    """The remedy is a statement that works: with declared types Spark reports the mistake in the query."""
    outside = "VALUES (my_sum(1))"
    with pytest.raises(SqlError, match=r"CREATE AGGREGATE typed_sum\(type\) RETURNS type AS 'sum'"):
        sql(db, outside)
    sql(db, "CREATE AGGREGATE typed_sum(BIGINT) RETURNS BIGINT AS 'sum'")
    assert values(sql(db, "SELECT typed_sum(v) FROM hav")) == [(11,)]
    sql(db, "DROP AGGREGATE typed_sum")


@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_a_call_with_a_lambda_is_named_by_its_text(db: Any, plan: Any) -> None:
    """Spark's name has its own names of the variables: lambdafunction((namedlambdavariable() + 1), ...)."""
    item = "my_sum(size(filter(array(v, 2), x -> x > 1)))"
    result = sql(db, f"SELECT k, {item} FROM hav WHERE k = 'one' GROUP BY k", plan=plan)
    assert result.columns == ["k", item]
    assert values(result) == [("one", 3)]


@since_spark("4.0", "a collation")
@pytest.mark.parametrize("cast_text", ["s COLLATE UTF8_LCASE", "(s COLLATE UTF8_LCASE)", "((s) COLLATE UTF8_LCASE)"])
def test_the_remedy_for_a_collation_leaves_it_out(db: Any, cast_text: str) -> None:
    """It would otherwise be written twice."""
    query = "SELECT my_max({}) AS m FROM VALUES ('a'), ('B') AS t(s)".format
    remedies = ["lower(s COLLATE UTF8_BINARY)", "s COLLATE UTF8_BINARY"]
    with pytest.raises(SqlError) as excinfo:
        sql(db, query(cast_text))
    assert f"write {remedies[0]} to ignore the case, or {remedies[1]} (line 1" in str(excinfo.value)
    assert [values(sql(db, query(each))) for each in remedies] == [[("b",)], [("a",)]]


def test_equal_names_of_common_tables_are_refused(db: Any) -> None:
    """A fold leaves out tables that the query does not read, but not what Spark refuses."""
    tables = "c AS (SELECT my_sum(v) AS s FROM hav), c AS (SELECT my_max(v) AS s FROM hav)"
    with pytest.raises(SqlError, match="DUPLICATED_CTE_NAMES"):
        sql(db, f"WITH {tables} SELECT 1")


def test_errors_of_lists_name_no_slot(db: Any, functions: Functions) -> None:
    """The UDF over lists does not know the keys of a group, and its position in a batch of Spark is not shown."""
    register(db, functions, {"unforgiving": "thirteen"})
    query = "SELECT k, thirteen(v) AS s FROM VALUES ('a', 13L) AS t(k, v) GROUP BY k"
    with pytest.raises(PySparkException) as excinfo:
        sql(db, query, plan="lists").collect()
    message = str(error_of(excinfo.value))
    assert "thirteen is bad luck" in message
    assert "row: " in message
    assert "group: " not in message
    with pytest.raises(PySparkException) as excinfo:
        sql(db, query).collect()
    assert "group: k='a'" in str(error_of(excinfo.value))


@udaf
class Scaled:
    """A sum of products, whose second argument has a default value."""

    def create_accumulator(self) -> list[float]:
        return [0.0]

    def accumulate(self, accumulator: list[float], value: float, weight: float = 2.0) -> None:
        if value == 13:
            raise ValueError("thirteen is bad luck")
        accumulator[0] += value * weight

    def get_value(self, accumulator: list[float]) -> float:
        return accumulator[0]


@pytest.mark.every_turn
@since_spark("4.1", "registered aggregates in plain SQL")
def test_plain_sql_has_default_values_and_short_errors(db: Any) -> None:
    """Spark gives a registered aggregate any number of arguments: missing ones have defaults, others are refused."""
    register(db, connect(Scaled), {"scaled": "doubled"})
    rows = "FROM VALUES (3D), (4D) AS t(v)"
    assert values(db.sql(f"SELECT doubled(v), doubled(v, 10D) {rows}")) == [(14.0, 70.0)]
    assert values(db.sql(f"SELECT doubled(v, weight => 10D), doubled(weight => 10D, value => v) {rows}")) == [
        (70.0, 70.0)
    ]
    with pytest.raises(PySparkException) as excinfo:
        db.sql(f"SELECT doubled(v, wait => 10D) {rows}").collect()
    assert "is given 1 by position and wait by name" in str(error_of(excinfo.value))
    with pytest.raises(PySparkException) as excinfo:
        db.sql(f"SELECT doubled(v, v, v) {rows}").collect()
    error = error_of(excinfo.value)
    assert error is not None
    assert "takes 1 to 2 arguments and was given 3" in error.message
    with pytest.raises(PySparkException) as excinfo:
        db.sql(f"SELECT doubled(v + 9) {rows}").collect()
    assert "thirteen is bad luck" in str(error_of(excinfo.value))
    assert "list_folds.py" not in str(excinfo.value)
