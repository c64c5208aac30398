"""CREATE, DROP and SHOW FUNCTION: scalar and table functions in statements."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect, udaf, udf, udtf
from foldflight.spark import enable, group_by, register, sql
from foldflight.sql import SqlError
from tests import scalar_functions
from tests.spark_sessions import since_spark
from tests.sql import sql_functions
from tests.sql.test_statements import values

NEWER = since_spark("4.0", "the whole place of an unknown function")
MODULE = "tests.sql.sql_functions"
TIMES = f"CREATE OR REPLACE FUNCTION times(x BIGINT, BIGINT) RETURNS BIGINT LANGUAGE python AS '{MODULE}:times'"
WORDS = (
    f"CREATE OR REPLACE FUNCTION words(STRING) RETURNS TABLE (word STRING, at INT) LANGUAGE python AS '{MODULE}:Words'"
)
SCALE = f"CREATE OR REPLACE FUNCTION scale(DOUBLE) RETURNS DOUBLE LANGUAGE python AS '{MODULE}:Scale'"
NEXT = """CREATE OR REPLACE FUNCTION next_of(value BIGINT) RETURNS BIGINT LANGUAGE python AS $$
def next_of(value):
    return None if value is None else value + 1
$$"""
SPLIT = """CREATE OR REPLACE FUNCTION letters(STRING) RETURNS TABLE (letter STRING) AS $$
def letters(text):
    return list(text)
$$"""
TEXTS = "VALUES (1, 'a b'), (2, 'c'), (3, ''), (4, null) AS t(v, s)"


@since_spark("4.0", "the text of the error")
def test_scalar_functions_work_in_each_clause(both: Any, plans_of: Any) -> None:
    """Each clause may have them, beside aggregates of both kinds, and plain SQL knows them, too."""
    sql(both, TIMES)
    sql(both, NEXT)
    query = """SELECT times(v, 2) AS k, my_sum(times(v, 2)) + max(v) AS s FROM hav WHERE times(v, 2) > 2
        GROUP BY times(v, 2) HAVING my_sum(v) > 2 ORDER BY k DESC"""
    assert [tuple(row) for row in sql(both, query).collect()] == [(10, 15), (6, 9)]
    assert plans_of(both, query) == ["fold"]
    assert values(both.sql("SELECT k, next_of(v) FROM hav WHERE next_of(v) = 6")) == [("one", 6)]
    listed_functions = sql(both, "SHOW FOLDFLIGHT FUNCTIONS").collect()
    assert [tuple(row) for row in listed_functions if row.name == "next_of"] == [
        ("next_of", "value BIGINT", "BIGINT", "source")
    ]
    assert "times" in [row.function for row in both.sql("SHOW USER FUNCTIONS").collect()]
    sql(both, "DROP FUNCTION next_of")
    with pytest.raises(SqlError, match="Cannot resolve routine"):
        sql(both, "SELECT next_of(1)")


def test_functions_over_both_sides_of_an_outer_join_are_refused(db: Any) -> None:
    """Spark refuses them when it runs the statement; here they are refused with the remedy, which runs."""
    sql(db, TIMES)
    values_of = "FROM VALUES (1), (2) AS a(x) {} VALUES (1), (2) AS b(y) ON times({}) = 2"
    for join in ("LEFT JOIN", "FULL OUTER JOIN", "LEFT ANTI JOIN"):
        statement = f"SELECT x {values_of.format(join, 'x + y, 1')}"
        with pytest.raises(SqlError, match=r"times over columns of both sides in ON of an outer join; join the pairs"):
            sql(db, statement)
    assert len(sql(db, f"SELECT * {values_of.format('LEFT JOIN', 'y, 1')}").collect()) == 2
    assert values(sql(db, f"SELECT x, y {values_of.format('JOIN', 'x + y, 1')}")) == [(1, 1)]
    pairs = f"SELECT x, y {values_of.format('JOIN', 'x + y, 1')}"
    remedy = f"SELECT x, y FROM VALUES (1), (2) AS a(x) LEFT JOIN ({pairs}) USING (x)"
    assert values(sql(db, remedy)) == [(1, 1), (2, None)]


@since_spark("4.0", "the refusal of a UDF in a higher order function")
def test_types_of_arguments_are_checked_when_a_statement_is_planned(db: Any) -> None:
    """In each clause, nested, and beside aggregates: the error has the place of the argument, and no row is read."""
    sql(db, TIMES)
    for text, column in [
        ("SELECT times(v, k) FROM hav", 17),
        ("SELECT v FROM hav WHERE times(times(k, 2), 2) > 1", 37),
        ("SELECT my_sum(times(v, k)) FROM hav", 24),
        ("CREATE TEMP VIEW x AS SELECT v FROM (SELECT v, times(k, v) FROM hav)", 54),
    ]:
        with pytest.raises(
            SqlError, match=r"(?s)times takes BIGINT .*this is STRING; write CAST\(k AS BIGINT"
        ) as excinfo:
            sql(db, text)
        assert (excinfo.value.code, f"column {column})" in str(excinfo.value)) == ("SCHEMA_MISMATCH", True)
    with pytest.raises(SqlError, match="higher order function"):  # what Spark refuses where it stands is left to it
        sql(db, "SELECT transform(array(k), x -> times(x, 2)) FROM hav WHERE v = 1")


@since_spark("4.0", "a table function in plain SQL")
def test_statements_call_table_functions(both: Any) -> None:
    """They are called by LATERAL, LATERAL VIEW and FROM; Spark casts arguments; rows may have one column."""
    sql(both, WORDS)
    inner = [(1, "a", 0), (1, "b", 1), (2, "c", 0)]
    assert values(sql(both, f"SELECT v, word, at FROM {TEXTS}, LATERAL words(s)")) == inner
    assert values(sql(both, f"SELECT v, x.* FROM {TEXTS} LATERAL VIEW words(s) x")) == inner
    outer = [(1, "a"), (1, "b"), (2, "c"), (3, None), (4, None)]
    assert values(sql(both, f"SELECT v, w FROM {TEXTS} LEFT JOIN LATERAL words(s) AS x(w, p) ON true")) == outer
    assert values(sql(both, f"SELECT v, w FROM {TEXTS} LATERAL VIEW OUTER words(s) x AS w, p")) == outer
    sql(both, SPLIT)
    assert values(both.sql("SELECT letter FROM letters(12)")) == [("1",), ("2",)]
    sql(both, "DROP FUNCTION IF EXISTS letters")
    with pytest.raises(SqlError, match="letters"):
        sql(both, "SELECT * FROM letters('a')")


def test_direct_arguments_are_given_by_name(db: Any) -> None:
    """`name => value` is a direct argument, also of table functions, and beside aggregates."""
    sql(db, SCALE)
    sql(db, WORDS)
    assert values(sql(db, "SELECT my_max(scale(factor => :f, v)) AS m FROM hav", {"f": 2})) == [(10.0,)]
    assert values(sql(db, "SELECT my_max(scale(v, 2)) AS m, max(scale(v, -1)) AS n FROM hav")) == [(10.0, -1.0)]
    assert sql(db, "SELECT scale(1, factor => 2.5)").columns == ["scale(1, factor => 2.5)"]
    assert values(sql(db, "SELECT word FROM words('a-b c', separator => '-')")) == [("a",), ("b c",)]


def test_results_have_the_declared_types(db: Any) -> None:
    """A function whose types depend on its arguments has those that are declared; others do not fit."""
    sql(db, f"CREATE OR REPLACE FUNCTION same(BIGINT) RETURNS BIGINT LANGUAGE python AS '{MODULE}:same'")
    result = sql(db, "SELECT same(CAST(1 AS TINYINT)) AS a, same(NULL) AS b")
    assert (values(result), result.dtypes) == ([(1, None)], [("a", "bigint"), ("b", "bigint")])
    with pytest.raises(SqlError, match=r"takes BIGINT for its argument value, and this is STRING; write CAST\('x' AS"):
        sql(db, "SELECT same('x')")
    with pytest.raises(Exception, match="takes BIGINT for its argument value and was given STRING; cast it"):
        db.sql("SELECT same('x')").collect()


def test_types_may_have_commas(db: Any) -> None:
    """The commas of MAP and STRUCT end no argument and no column."""
    sql(
        db,
        """CREATE OR REPLACE FUNCTION entries(MAP<STRING, INT>, by STRUCT<a: INT, b: ARRAY<INT>>)
        RETURNS TABLE (m MAP<STRING, INT>, n INT) AS $$
def entries(m, by):
    yield m, by["a"]
$$""",
    )
    query = "SELECT m['k'], n FROM entries(map('k', 7), named_struct('a', 3, 'b', array(1)))"
    assert values(sql(db, query)) == [(7, 3)]
    sql(db, "DROP FUNCTION entries")


@pytest.mark.parametrize(
    ("statement", "message", "at"),
    [
        (f"CREATE FUNCTION x(INT, INT) RETURNS BIGINT LANGUAGE python AS '{MODULE}:times'", "(INT, INT) is decl", "x"),
        (f"CREATE FUNCTION x(BIGINT, BIGINT) RETURNS INT LANGUAGE python AS '{MODULE}:times'", "returns BIGINT", "x"),
        (
            f"CREATE FUNCTION x(STRING) RETURNS TABLE (word STRING) LANGUAGE python AS '{MODULE}:Words'",
            "returns TABLE (word STRING, at INT), and TABLE (word STRING) is declared",
            "x",
        ),
        (
            f"CREATE FUNCTION x(STRING) RETURNS STRING LANGUAGE python AS '{MODULE}:Words'",
            "RETURNS TABLE",
            f"'{MODULE}:Words'",
        ),
        (
            f"CREATE FUNCTION x(BIGINT, INT) RETURNS BIGINT LANGUAGE python AS '{MODULE}:Weighted'",
            "is an aggregate; write CREATE AGGREGATE",
            f"'{MODULE}:Weighted'",
        ),
        (
            f"CREATE AGGREGATE x(BIGINT, BIGINT) RETURNS BIGINT AS '{MODULE}:times'",
            "is a scalar function; write CREATE FUNCTION",
            f"'{MODULE}:times'",
        ),
        ("CREATE FUNCTION x(INT) LANGUAGE python AS 'x'", "RETURNS type or RETURNS TABLE", "LANGUAGE"),
        ("CREATE FUNCTION x(INT) RETURNS TABLE () AS $$ $$", "a column is expected", ")"),
        ("CREATE FUNCTION x(INT) RETURNS TABLE (a INT, A INT) AS $$ $$", "the name of two columns", "A"),
        ("CREATE FUNCTION x(INT) RETURNS TABLE (a INTT) AS $$ $$", "is not a type", "INTT"),
        ("CREATE FUNCTION x(INT) RETURNS INT LANGUAGE java AS $$ $$", "the language of a function is python", "java"),
        ("CREATE FUNCTION x(INT) RETURNS INT AS $$y = 1$$", "has no function", "$$y = 1$$"),
        ("CREATE FUNCTION x() RETURNS INT AS $$def x(): return 1$$", "has no arguments", "$$def x(): return 1$$"),
        ("CREATE FUNCTION upper(INT) RETURNS INT AS $$def upper(x): pass$$", "its own", "$$def upper(x): pass$$"),
        ("CREATE FUNCTION times(INT) RETURNS INT AS $$def x(): return 1$$", "CREATE OR REPLACE FUNCTION", "times"),
        ("CREATE FUNCTION my_sum(INT) RETURNS INT AS $$def x(): return 1$$", "write DROP AGGREGATE my_sum", "my_sum"),
        (f"CREATE AGGREGATE times(BIGINT, INT) RETURNS BIGINT AS '{MODULE}:Weighted'", "DROP FUNCTION", "times"),
        ("DROP FUNCTION my_sum", "write DROP AGGREGATE my_sum", "my_sum"),
        ("CREATE FUNCTION unnest(INT) RETURNS INT AS $$def unnest(x): pass$$", "its own", "$$def unnest(x): pass$$"),
        (f"CREATE FUNCTION x(INT) RETURNS INT AS '{MODULE}:same'", "LANGUAGE python is expected", "AS"),
        ("CREATE FUNCTION x(ARRAY<BIGNIT>) RETURNS INT AS $$ $$", "BIGNIT", "ARRAY<BIGNIT>"),
        ("CREATE FUNCTION x(INT, a MAP<INT>) RETURNS INT AS $$ $$", "is not a type", "MAP<INT>"),
        ("SELECT * FROM words(at => 'a')", "no direct argument 'at'", "words(at => 'a')"),
        ("SELECT k, times(v) FROM hav", "takes 2 arguments, and 1 is given", "times(v)"),
        ("SELECT scale(v) FROM hav", "needs the direct argument 'factor'", "scale(v)"),
        ("SELECT scale(v, v) FROM hav", "a direct argument is a constant", "v"),
        ("SELECT scale(v, 2, 3) FROM hav", "takes 1 argument, and 3 are given", "scale(v, 2, 3)"),
        ("SELECT scale(v, 2, factor => 3) FROM hav", "is given factor twice", "factor => 3"),
        ("SELECT scale(v, by => 1) FROM hav", "no direct argument 'by'", "scale(v, by => 1)"),
        pytest.param("SELECT tmies(v, 2) FROM hav", "Did you mean times?", "tmies(v, 2)", marks=NEWER),
        pytest.param("SELECT * FROM wrods('a')", "Did you mean words?", "wrods('a')", marks=NEWER),
    ],
)  # fmt: skip
def test_mistakes_have_their_place(db: Any, statement: str, message: str, at: str) -> None:
    """The error names the expected syntax and the place."""
    for create_statement in (TIMES, WORDS, SCALE):
        sql(db, create_statement)
    with pytest.raises(SqlError) as excinfo:
        sql(db, statement)
    assert message in excinfo.value.message
    assert statement[excinfo.value.start : excinfo.value.stop] == at


@since_spark("4.0", "a function of SQL")
def test_statements_about_functions_of_spark_are_left_to_it(db: Any) -> None:
    """Functions of SQL, and names that are no functions of ours, are left to Spark."""
    sql(db, TIMES)
    sql(db, "CREATE OR REPLACE TEMPORARY FUNCTION thrice(x INT) RETURNS INT RETURN 3 * x")
    assert values(sql(db, "WITH times(x) AS (SELECT 1) SELECT thrice(x) FROM times")) == [(3,)]
    sql(db, "DROP TEMPORARY FUNCTION thrice")


def test_the_catalogue_keeps_functions(db: Any, tmp_path: Path) -> None:
    """CREATE FUNCTION is kept in the file, TEMPORARY is not; a table function may replace a scalar one."""
    file = tmp_path / "catalog.sql"
    first, second = db.newSession(), db.newSession()
    enable(first, file)
    first.sql(NEXT.replace("FUNCTION", "TEMPORARY FUNCTION").replace("next_of", "passing"))
    first.sql(NEXT.replace("next_of", "words"))
    first.sql(WORDS)
    assert values(first.sql("SELECT passing(v) FROM VALUES (1L) AS t(v)")) == [(2,)]
    enable(second, file)
    assert file.read_text() == f"{WORDS};\n\n"
    assert values(second.sql("SELECT word FROM words('a')")) == [("a",)]


def test_functions_of_a_server_are_created_by_a_link(db: Any) -> None:
    """USING LINK names a function of a server; its declared types are checked."""
    from foldflight.server.run.lifecycle import serving

    with serving(scalar_functions) as server:
        link = f"USING LINK '{server.url}'"
        sql(db, f"CREATE OR REPLACE FUNCTION product_of(BIGINT, BIGINT) RETURNS BIGINT AS 'multiply' {link}")
        sql(db, f"CREATE OR REPLACE FUNCTION split_of(STRING) RETURNS TABLE (word STRING, at INT) AS 'split' {link}")
        query = "SELECT product_of(v, at), word FROM VALUES (3, 'a b') AS t(v, s), LATERAL split_of(s)"
        assert values(sql(db, query)) == [(0, "a"), (3, "b")]
        with pytest.raises(SqlError, match=r"there is no function 'mutliply' on .*; did you mean multiply"):
            sql(db, f"CREATE FUNCTION y(BIGINT) RETURNS BIGINT AS 'mutliply' {link}")


def test_functions_are_registered(db: Any, caplog: pytest.LogCaptureFixture) -> None:
    """`register` makes scalar and table functions known; those with names of Spark's functions need another one."""
    session = db.newSession()
    with caplog.at_level(logging.WARNING, "foldflight.sql"):
        register(session, connect(scalar_functions))
    assert "Spark has functions named split, so these are not registered" in caplog.text
    assert "register(spark, functions, {'split': 'my_split'})" in caplog.text
    assert "needs an argument, so these are not registered: forty_two; give them one" in caplog.text
    register(session, connect(sql_functions), {"words": "words_of"})
    assert values(sql(session, "SELECT multiply(v, 3), word FROM VALUES (2, 'a') AS t(v, s), LATERAL words_of(s)")) == [
        (6, "a")
    ]
    with pytest.raises(RejectedError, match="a function split of its own"):
        register(session, connect(scalar_functions), {"split": "split"})
    with pytest.raises(RejectedError, match="depend on its arguments; declare them: CREATE FUNCTION"):
        register(session, connect(sql_functions), {"same": "same"})


@pytest.mark.every_turn
@since_spark("4.0", "a stream")
def test_functions_map_streaming_views(db: Any, tmp_path: Path) -> None:
    """Scalar and table functions map a streaming view beneath an aggregate."""
    from tests.spark.test_stream import Stream

    class Texts(Stream):
        ddl = "op string, v bigint, s string"
        schema = pa.schema([("op", pa.string()), ("v", pa.int64()), ("s", pa.string())])

    sql(db, TIMES)
    sql(db, WORDS)

    def query(df: Any) -> Any:
        df.createOrReplaceTempView("stream_of_texts")
        return sql(
            db,
            "SELECT word, my_sum(times(v, 2)) AS s FROM stream_of_texts, LATERAL words(s) GROUP BY word",
        )

    stream = Texts(db, tmp_path, query, "update")
    stream.write([{"op": "+I", "v": 1, "s": "a b"}, {"op": "+I", "v": 7, "s": "b"}])
    (epoch,) = stream.run()
    assert sorted((row["word"], row["s"]) for row in epoch) == [("a", 2), ("b", 16)]


@udtf
def parts(s: str, sep: str = "-") -> Iterator[str]:
    yield from s.split(sep)


@udf
def scaled(x: int, factor: int = 10, offset: int = 1) -> int:
    return x * factor + offset


@udaf
class Weighted:
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, value: int, weight: int = 2) -> int:
        return total + value * weight

    def get_value(self, total: int) -> int:
        return total


def test_calls_may_leave_out_the_last_arguments(both: Any) -> None:
    """Calls leave out the last arguments, and name them; a CREATE statement may declare fewer."""
    register(both, connect("embedded:").register(parts, scaled, Weighted))
    assert values(sql(both, "SELECT p.* FROM VALUES ('a-b') t(s), LATERAL parts(s) p")) == [("a",), ("b",)]
    assert values(sql(both, "SELECT p.* FROM VALUES ('a.b') t(s), LATERAL parts(s, sep => '.') p")) == [("a",), ("b",)]
    row = "scaled(v) a, scaled(v, 2) b, scaled(x => v, factor => 3, offset => v) c"
    assert values(sql(both, f"SELECT {row} FROM VALUES (5) t(v)")) == [(51, 11, 20)]
    totals = "weighted(v) a, weighted(v, v) b, weighted(v, weight => 3) c"
    assert values(sql(both, f"SELECT {totals} FROM VALUES (1L), (2L) t(v)")) == [(6, 5, 9)]
    assert values(sql(both, f"SELECT k, {totals} FROM VALUES (1, 1L) t(k, v) GROUP BY ROLLUP (k)"))[0][1:] == (2, 1, 3)
    with pytest.raises(SqlError, match="is given offset without factor"):
        sql(both, "SELECT scaled(1, offset => 2)")
    named_items = "weighted(weight => 3, value => v) a, weighted(weight => v, v) b, weighted(v, weight => 3) c"
    assert values(sql(both, f"SELECT {named_items} FROM VALUES (1L), (2L) t(v)")) == [(9, 5, 9)]
    with pytest.raises(SqlError, match="has no direct argument 'wieght'; did you mean weight"):
        sql(both, "SELECT weighted(v, wieght => 3) FROM VALUES (1) t(v)")
    with pytest.raises(SqlError, match="is given weight without value"):
        sql(both, "SELECT weighted(weight => 3) FROM VALUES (1) t(v)")
    with pytest.raises(SqlError, match="is given value twice"):
        sql(both, "SELECT weighted(v, value => 3) FROM VALUES (1) t(v)")
    with pytest.raises(SqlError, match="takes 1 to 2 arguments, and 0 are given"):
        sql(both, "SELECT weighted() FROM VALUES (1) t(v)")


@udtf
def spans(text: str, start: int, width: int = 2, fill: str = ".") -> Iterator[str]:
    yield (text[start:] + fill * 9)[:width]


@pytest.mark.every_turn
def test_named_arguments_may_be_in_any_order(both: Any) -> None:
    """Each name says which argument it is. Calls of functions inside the arguments are evaluated, too."""
    register(both, connect("embedded:").register(spans, scaled, Weighted))
    rows = "FROM VALUES (5, 3), (7, 4) t(v, w)"
    calls = "scaled(factor => w, x => v) a, scaled(factor => 3, x => scaled(offset => v, factor => 1, x => w)) b"
    assert values(sql(both, f"SELECT {calls} {rows} ORDER BY v")) == [(16, 25), (29, 34)]
    case = "CASE WHEN v = 5 THEN scaled(factor => w, x => v) ELSE scaled(offset => v, x => 1, factor => w) END"
    assert values(sql(both, f"SELECT {case} c {rows} ORDER BY v")) == [(11,), (16,)]
    around = "scaled(factor => weighted(weight => w, value => v), x => 2)"
    assert values(sql(both, f"SELECT {around} s {rows}")) == [(2 * (15 + 28) + 1,)]
    within = "weighted(weight => scaled(offset => 0, factor => w, x => 2), value => v)"
    assert values(sql(both, f"SELECT v, {within} s {rows} GROUP BY v ORDER BY v")) == [(5, 30), (7, 56)]
    table = "SELECT s.* FROM VALUES ('ab', 1) t(s, n), LATERAL spans(width => 3, start => n, text => s) s"
    assert values(sql(both, table)) == [("b..",)]
    literal = (
        "SELECT s.* FROM VALUES ('ab', 1) t(s, n), LATERAL spans(fill => '-', start => n, width => 3, text => s) s"
    )
    assert values(sql(both, literal)) == [("b--",)]
    view = "SELECT p FROM VALUES ('ab', 1) t(s, n) LATERAL VIEW spans(start => n, text => s) x AS p"
    assert values(sql(both, view)) == [("b.",)]
    with pytest.raises(SqlError, match="scaled takes BIGINT for its argument factor, and this is STRING") as excinfo:
        sql(both, wrong := f"SELECT scaled(factor => 'a', x => v) {rows}")
    assert excinfo.value.start == wrong.index("'a'")


@udaf
class Sessions:
    """The number of sessions of minutes: a longer gap begins another."""

    def create_accumulator(self) -> list[tuple[int, float]]:
        return []

    def accumulate(self, rows: list[tuple[int, float]], ts: int, gap_minutes: float = 30) -> None:
        rows.append((ts, gap_minutes))

    def merge(self, rows: list[tuple[int, float]], other: list[tuple[int, float]]) -> None:
        rows += other

    def get_value(self, rows: list[tuple[int, float]]) -> int:
        rows = sorted(rows)
        return 1 + sum(after[0] - before[0] > after[1] for before, after in itertools.pairwise(rows))


@pytest.mark.every_turn
def test_arguments_with_defaults_are_equal_in_batches_and_sql(both: Any) -> None:
    """It is a number by name or by position, a column, or left out, in DataFrames as in SQL."""
    functions = connect("embedded:").register(Sessions)
    register(both, functions)
    df = both.sql("SELECT * FROM VALUES (0, 45D), (40, 45D), (90, 45D), (200, 45D) t(ts, gap)")
    sessions, expected_counts = functions.sessions, {"a": 4, "b": 2, "c": 3, "d": 3}
    calls = {
        "a": sessions("ts"),
        "b": sessions("ts", gap_minutes=60),
        "c": sessions("ts", 45),
        "d": sessions("ts", "gap"),
    }
    assert group_by(df).agg(**calls).first().asDict() == expected_counts
    assert group_by(df.withColumn("k", sf.lit(1)), "k").agg(**calls).drop("k").first().asDict() == expected_counts
    items = "sessions(ts) a, sessions(ts, gap_minutes => 60) b, sessions(ts, 45) c"
    items += ", sessions(gap_minutes => gap, ts => ts) d"
    df.createOrReplaceTempView("visits")
    assert sql(both, f"SELECT {items} FROM visits").first().asDict() == expected_counts
    assert sql(both, f"SELECT {items} FROM visits GROUP BY ts > 1000").first().asDict() == expected_counts
