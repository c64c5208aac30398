"""Plain blocks are folded without the `collect_list` plan: they have its columns, and Spark is asked little."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from bench.measures import analyses
from foldflight import Functions
from foldflight.spark import sql
from foldflight.sql import SqlError
from foldflight.sql.catalog import catalog_of
from tests.sql.test_corpus import rows, types

CREATE = "CREATE OR REPLACE AGGREGATE {}({}) RETURNS {} AS '{}'"


@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("SELECT k, my_sum(v) FROM hav GROUP BY k", 2),
        ("SELECT k, my_sum(v) AS s, count(*) n FROM hav GROUP BY k HAVING my_sum(v) > 1 ORDER BY s DESC", 2),
        ("SELECT v % 2 m, my_sum(v) - my_max(v) AS s FROM hav WHERE v > 0 GROUP BY v % 2, 2 - v", 2),
        ("SELECT k, my_sum(v) + 1 FROM hav GROUP BY k", 5),
        ("SELECT k, v + 1 w, my_sum(v) OVER (PARTITION BY k ORDER BY v) FROM hav", 2),
        (f"SELECT * FROM ({' UNION ALL '.join(['SELECT my_sum(v) AS s FROM hav'] * 10)})", 11),
    ],
)
def test_spark_is_asked_once_for_a_block_and_once_for_the_query(
    db: Any, questions: list[str], plans_of: Callable[..., list[str]], query: str, most: int
) -> None:
    """Spark tells the types of a block's rows, and of the query over the results. Unknown names cost more."""
    sql(db, query)
    assert len(questions) <= most
    assert "lists" not in plans_of(db, query)


@pytest.mark.parametrize(("call", "views"), [("my_count(v)", 0), ("my_sum(v)", 1)])
def test_short_texts_of_folds_need_no_view(db: Any, questions: list[str], call: str, views: int) -> None:
    """A view takes Spark twice as long as analysing a short text again, and less than analysing a long one."""
    query = f"SELECT n, my_count(*) AS m FROM (SELECT k, {call} AS n FROM hav GROUP BY k) AS t GROUP BY n"
    actual = sql(db, query)
    assert max(text.count("foldflight_result_") for text in questions) == views
    assert rows(actual) == rows(db.sql(query.replace("my_", "")))


def test_where_of_what_spark_aggregates_is_analysed_once(
    db: Any, questions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types are told without WHERE, unless rows are folded or a WHERE may refer to a query around it."""
    monkeypatch.setattr(catalog_of(db), "folded_together", set())  # other tests may have used the functions
    query = "SELECT k, {}(v) AS s FROM hav WHERE v > 1 GROUP BY k"
    for call, where in (("my_sum", [0, 1]), ("my_string_agg", [0, 1]), ("my_string_agg", [1])):
        questions.clear()
        text = query.format(call).replace("agg(v)", "agg(CAST(v AS STRING))")
        actual = sql(db, text)
        assert [question.count("WHERE") for question in questions] == where
        assert rows(actual) == rows(sql(db, text, plan="lists"))
    for where, asked in (("v > a", "v AS `0`, a AS `1`\nFROM hav)"), ("v BETWEEN a AND 9", "WHERE v BETWEEN a AND 9")):
        questions.clear()
        query = f"SELECT a FROM testData WHERE b < (SELECT my_sum(v) FROM hav WHERE {where})"
        assert rows(sql(db, query)) == rows(db.sql(query.replace("my_sum", "sum")))
        assert asked in questions[0]


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("SELECT k, {}(v) AS s FROM hav GROUP BY k", 2),
        ("SELECT k, {}(v * 2) AS s FROM hav JOIN VALUES ('one', 5) AS t(k, w) USING (k) GROUP BY k", 2),
        # Several columns of a name, one that differs in case, and constants that are names of columns, too.
        ("SELECT t.k, {}(t.v) AS s FROM hav JOIN hav AS t ON hav.k = t.k GROUP BY t.k", 3),
        ("SELECT K, {}(v) AS s FROM hav GROUP BY K", 3),
        ("SELECT {}(1) AS s FROM (SELECT 5 AS `1`)", 3),
        ("SELECT k, {}(true) AS s FROM (SELECT false AS `true`, k FROM hav) GROUP BY k", 3),
        ("SELECT k, {}(`1`) AS s FROM (SELECT 5 AS `1`, k FROM hav) GROUP BY k", 2),
    ],
)
def test_columns_stand_beside_items_where_no_two_have_one_name(
    db: Any, questions: list[str], query: str, asked: int
) -> None:
    """Spark tells all columns of the rows with the items, and those that are columns of one name are these."""
    name = "every" if "true" in query else "sum"
    actual = sql(db, query.format(f"my_{name}"))
    assert len(questions) == asked
    expected = db.sql(query.format(name))
    assert (rows(actual), types(actual)) == (rows(expected), types(expected))


def test_spark_is_asked_once_whether_rows_are_a_stream(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a call of Java."""
    cls = type(db.table("hav"))
    is_streaming, asked = cls.isStreaming.fget, []
    monkeypatch.setattr(cls, "isStreaming", property(lambda df: asked.append(df) or is_streaming(df)))
    sql(db, "SELECT k, my_sum(v) AS s FROM hav GROUP BY k ORDER BY s")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("argument", "has_cast"),
    [
        ("v", False),
        ("CAST(v AS SMALLINT)", False),
        ("CAST(v AS DECIMAL(32, 4))", False),
        ("CAST(v AS DECIMAL(12, 2))", True),
    ],
)
def test_sums_that_have_their_type_are_not_cast(db: Any, questions: list[str], argument: str, has_cast: bool) -> None:
    """A cast is an expression more, which each rule of Spark's analysis looks at."""
    query = f"SELECT k, {{}}({argument}) AS s FROM hav GROUP BY k"
    actual, expected = sql(db, query.format("my_sum")), db.sql(query.format("sum"))
    assert (rows(actual), types(actual)) == (rows(expected), types(expected))
    assert (f"AS {types(expected)[1]}) AS `s`" in questions[-1]) is has_cast


def test_quotients_of_sums_are_cast_to_the_type_of_the_result(db: Any) -> None:
    """A quotient of integers is a DOUBLE until then."""
    actual = sql(db, "SELECT k, weighted_avg(v, CAST(2 AS INT)) AS a FROM hav GROUP BY k", plan="lifted")
    assert types(actual)[1] == "bigint"


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("(SELECT k, v FROM hav WHERE v > 0)", 2),
        ("(SELECT k, v FROM hav WHERE v > 0) AS t", 2),
        ("(SELECT k, v FROM hav WHERE v > 0) AS t JOIN (SELECT 1 AS one)", 3),  # it is asked of the rows within, too
    ],
)
def test_kinds_of_rows_below_are_told_with_the_rows(db: Any, questions: list[str], source: str, asked: int) -> None:
    """A query in FROM that left row kinds out would be refused. Spark tells of them with the rows of the fold."""
    query = f"SELECT k, my_sum(v) AS s FROM {source} GROUP BY k"
    assert rows(sql(db, query)) == rows(db.sql(query.replace("my_sum", "sum")))
    assert len(questions) == asked


CHAIN = "WITH c0 AS (SELECT k, my_sum(v) AS n FROM pairs GROUP BY k)" + "".join(
    f", c{number} AS (SELECT k, my_sum(n) AS n FROM c{number - 1} GROUP BY k)" for number in range(1, 10)
)


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("query", "most"),
    [
        ("SELECT k, my_sum(v) AS s FROM pairs GROUP BY k", 2),
        ("SELECT k, my_sum(v) AS s FROM pairs GROUP BY k HAVING my_sum(v) > 1 ORDER BY s DESC, k", 2),
        (
            "WITH t AS (SELECT k, v + 1 AS w FROM pairs) SELECT k, my_sum(w) FROM t GROUP BY k",
            3,
        ),  # and whether t leaves row kinds out
        ("SELECT my_sum(v) AS s FROM pairs UNION ALL SELECT my_sum(v) FROM pairs", 3),
        (f"{CHAIN} SELECT * FROM c9", 38),
    ],
)
def test_spark_analyses_a_lifted_block_twice(db: Any, query: str, most: int) -> None:
    """It analyses the rows, and the whole statement. A block that reads another one takes analyses of its own."""
    db.table("hav").createOrReplaceTempView("pairs")  # Spark analyses it now, and the text of `hav` each time
    assert analyses(db, lambda: sql(db, query)) <= most
    assert rows(sql(db, query)) == rows(sql(db, query, plan="lists"))


@pytest.mark.parametrize(("item", "is_refused"), [("n", False), ("nothing", True)])
def test_planning_leaves_no_view_in_the_session(db: Any, item: str, is_refused: bool) -> None:
    """Spark reads the fold of an inner block as a temporary view while it plans those around it."""
    before = {view.name for view in db.catalog.listTables()}
    query = (
        f"SELECT {item}, my_sum(k) FROM (SELECT k, my_sum(v) AS n FROM VALUES (1, 2) AS t(k, v) GROUP BY k) GROUP BY 1"
    )
    if is_refused:
        with pytest.raises(SqlError):
            sql(db, query)
    else:
        assert rows(sql(db, query)) == rows(sql(db, query, plan="lists"))
    assert {view.name for view in db.catalog.listTables()} == before


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "query",
    [
        """SELECT K, k AS x, k y, hav.k z, `k`, my_sum(v), MY_SUM(V), my_sum(DISTINCT v), my_count(*), my_count(),
                  my_sum(v) FILTER (WHERE v > 1), my_sum(v) w, my_sum(v) + 1 u, 1 AS one, 'a' b FROM hav GROUP BY k""",
        """SELECT my_sum(v) + 1, my_sum(hav.v), my_sum(`v`), my_sum(v + 1), count(*), sum(v), NULL, 1, 'x',
                  my_max(v) - my_sum(v) FILTER (WHERE v > 1), my_sum(CAST(v AS DECIMAL(5, 1))) FROM hav GROUP BY k""",
        """SELECT CASE WHEN k = 'one' THEN my_sum(v) END, CASE WHEN k = 'one' THEN my_sum(v) ELSE 0 END e, k IS NULL,
                  INTERVAL 1 DAY, my_sum(v) END FROM hav GROUP BY k""",
        "SELECT DISTINCT k, my_sum(v) s, current_date FROM hav GROUP BY 1, current_date",
        "SELECT my_max(NULL), my_count(true), my_max(current_date) FROM hav",
        "SELECT user, my_sum(v) FROM (SELECT k AS user, v FROM hav) GROUP BY user",
        "SELECT hav.k, k || 'x', (my_sum(v)) s FROM hav GROUP BY hav.k",
        "SELECT *, my_sum(v) OVER w AS s, v + 1, v w, 1 + my_sum(v) OVER () t FROM hav WINDOW w AS (ORDER BY v)",
        "SELECT K, my_sum(v) OVER (ORDER BY v), v + 1 FROM hav",
    ],
)
def test_columns_equal_those_of_the_list_plan(db: Any, plans_of: Callable[..., list[str]], query: str) -> None:
    """Names, types and rows do not depend on the plan."""
    actual, list_df = sql(db, query), sql(db, query, plan="lists")
    assert actual.columns == list_df.columns
    assert types(actual) == types(list_df)
    assert rows(actual) == rows(list_df)
    assert "lists" not in plans_of(db, query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT my_sum(explode(array(v))) FROM hav", "GENERATOR"),
        ("SELECT my_sum(max(v)) FROM hav", "aggregate function in the argument"),
        ("SELECT my_sum(rank() OVER (ORDER BY v)) FROM hav", "window function"),
        ("SELECT my_sum(rand()) FROM hav", "on-deterministic"),
        ("SELECT my_sum(v) FROM hav GROUP BY max(v)", "GROUP_BY_AGGREGATE"),
        ("SELECT v, my_sum(v) FROM hav GROUP BY k", "MISSING_AGGREGATION"),
        ("SELECT k, my_sum(v) FROM hav", "MISSING_GROUP_BY"),
        ("SELECT k AS v, my_sum(v) FROM hav GROUP BY v", "MISSING_AGGREGATION"),
        ("SELECT my_sum(v) AS q FROM hav GROUP BY k HAVING q > 1 ORDER BY v", "cannot be resolved"),
        ("SELECT my_sum(v)[0] FROM hav", "INVALID_EXTRACT"),
        ("SELECT k, my_sum(v) FROM hav GROUP BY 3", "GROUP_BY_POS_OUT_OF_RANGE"),
        ("SELECT k, my_sum(v) AS v FROM hav GROUP BY k ORDER BY my_sum(v)", "MISSING_ATTRIBUTES"),
    ],
)
def test_blocks_that_spark_refuses_beside_its_own_aggregates_are_refused(db: Any, query: str, message: str) -> None:
    """A block that could be computed all the same is refused, as with Spark's own aggregate."""
    with pytest.raises(SqlError, match=message):
        sql(db, query)


@pytest.fixture
def typed_db(db: Any) -> Iterator[Any]:
    """The session with functions whose statements declare wider types than the columns have."""
    sql(db, CREATE.format("top", "BIGINT", "BIGINT", "max").replace("BIGINT AS", "BIGINT APPEND ONLY AS"))
    sql(db, CREATE.format("total", "DECIMAL(20, 2)", "DECIMAL(38, 2)", "sum").replace("(38, 2)", "(30, 2)"))
    yield db
    for name in ("top", "total"):
        sql(db, f"DROP AGGREGATE {name}")


@pytest.mark.every_turn
def test_declared_types_widen_arguments(typed_db: Any, plans_of: Callable[..., list[str]]) -> None:
    """The block is folded with the types of CREATE AGGREGATE, with OVER, too; what does not fit is refused."""
    query = "SELECT top(v), total(v) s, top(DISTINCT v) FILTER (WHERE v < 5), max(v) FROM hav"
    assert plans_of(typed_db, query) == ["fold"]
    actual, list_df = sql(typed_db, query), sql(typed_db, query, plan="lists")
    assert types(actual) == types(list_df) == ["bigint", "decimal(30,2)", "bigint", "int"]
    assert rows(actual) == rows(list_df)
    query = "SELECT k, top(v) OVER (PARTITION BY k ORDER BY v) AS t FROM hav"
    assert plans_of(typed_db, query) == ["over"]
    assert types(sql(typed_db, query)) == ["string", "bigint"]
    with pytest.raises(SqlError, match=r"write CAST\(k AS BIGINT\)"):
        sql(typed_db, "SELECT top(k) FROM hav")


@pytest.mark.every_turn
def test_equivalent_builtins_have_the_types_of_spark(
    db: Any, questions: list[str], plans_of: Callable[..., list[str]]
) -> None:
    """Spark's aggregates beside ours, over the types for which the `collect_list` plan is not asked."""
    numbers = "TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(4,0) DECIMAL(10,2) DECIMAL(38,6)".split()  # noqa: SIM905
    calls = ("sum", "avg", "mean", "min", "max", "count", "stddev", "std", "stddev_pop", "variance", "var_pop")
    items = [f"{call}(CAST(v AS {type_}))" for call in calls for type_ in numbers]
    times = ("DATE'2026-01-01'", "TIMESTAMP'2026-01-01'", "TIMESTAMP_NTZ'2026-01-01'")
    items += [f"{call}({text})" for call in ("min", "max", "count") for text in ("k", "CAST(k AS BINARY)", *times)]
    items += [f"{call}(v > 1)" for call in ("any", "some", "every", "bool_and", "bool_or", "min", "max", "count")]
    names = ", ".join(f"{item} AS c{place}" for place, item in enumerate(items))
    query = f"SELECT {names}, my_count(*) AS n FROM hav"
    actual, expected = sql(db, query), db.sql(query.replace("my_count", "count"))
    assert len(questions) == 1  # a SELECT of columns is a step of the result
    assert plans_of(db, query) == ["fold"]
    assert types(actual) == types(expected)


def test_over_is_described_once(db: Any, functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is asked once for all calls of a window, however many frames and ways of folding they have."""
    queries: list[str] = []
    transport = type(functions["weighted_avg"].transport)
    describe = transport.describe
    monkeypatch.setattr(
        transport, "describe", lambda self, open_request: queries.append("") or describe(self, open_request)
    )
    query = """SELECT k, my_sum(v) OVER w AS a, my_count(*) OVER w AS c,
                      my_max(v) OVER (PARTITION BY k ORDER BY v ROWS 1 PRECEDING) AS b,
                      my_sum(DISTINCT v) OVER (PARTITION BY k ORDER BY v ROWS 2 PRECEDING) AS d
               FROM hav WINDOW w AS (PARTITION BY k ORDER BY v)"""
    actual = rows(sql(db, query))
    assert len(queries) == 1
    assert actual == [("one", 1, 1, 1, 1), ("one", 6, 2, 5, 6), ("three", 3, 1, 3, 3), ("two", 2, 1, 2, 2)]


@pytest.mark.every_turn
def test_settings_of_group_by_decide_what_a_number_means(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """Where a position or an alias in GROUP BY is none, it is not taken for one."""
    session = db.newSession()
    sql(session, CREATE.format("total", "INT", "BIGINT", "sum"))
    session.conf.set("spark.sql.groupByOrdinal", "false")
    query = "SELECT total(v) AS s FROM VALUES (1), (2) AS t(v) GROUP BY 1"
    assert rows(sql(session, query)) == rows(session.sql(query.replace("total", "sum"))) == [(3,)]
    session.conf.set("spark.sql.groupByAliases", "false")
    with pytest.raises(SqlError, match="cannot be resolved"):
        sql(session, "SELECT v % 2 AS m, total(v) FROM VALUES (1), (2) AS t(v) GROUP BY m")


def test_calls_that_spark_counts_are_not_checked(db: Any, questions: list[str]) -> None:
    """A number of rows is never NULL, so nothing is raised for it; a sum may be beyond what its limbs hold."""
    for call, is_checked in (("my_count(*)", False), ("my_count(b)", False), ("my_sum(b)", True)):
        actual = sql(db, f"SELECT a, {call} AS n FROM testData GROUP BY a", plan="lifted")
        assert ("raise_error" in questions[-1]) == is_checked
        assert {row.a: row.n for row in actual.collect()}[2] == {"my_count(*)": 2, "my_count(b)": 2, "my_sum(b)": 3}[
            call
        ]
    assert sql(db, "SELECT my_count(b) AS n FROM testData WHERE a > 9", plan="lifted").collect() == [(0,)]


@pytest.fixture
def trips(db: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of Java from now on, without those that free objects of before."""
    connection = import_module("py4j.clientserver").ClientServerConnection
    commands: list[str] = []
    send = connection.send_command

    def note(self: Any, command: str) -> Any:
        commands.extend([] if command.startswith("m\n") else [command])
        return send(self, command)

    monkeypatch.setattr(connection, "send_command", note)
    return commands


def test_a_statement_takes_few_calls_of_java(db: Any, trips: list[str]) -> None:
    """Each is a trip, and PySpark makes four more for a statement without parameters if they are not given as a map.

    Of the settings of the session, those are read that decide something here: how names are compared only if two differ
    in case only, and how integers overflow only if integers are summed.
    """
    for query, most, settings in (
        ("SELECT k, my_sum(v) AS s FROM hav GROUP BY k", 10, {"cbo.enabled", "ansi.enabled"}),
        ("SELECT k AS a, my_sum(v) as s FROM hav GROUP BY k", 11, {"cbo.enabled", "ansi.enabled", "caseSensitive"}),
        ("SELECT k, my_count(v) AS s FROM hav GROUP BY k", 9, {"cbo.enabled"}),
    ):
        sql(db, query)
        trips.clear()
        sql(db, query)
        settings_read = {
            each for each in ("cbo.enabled", "ansi.enabled", "caseSensitive") if f"spark.sql.{each}" in str(trips)
        }
        assert settings_read == settings
        assert len(trips) <= most


@pytest.mark.parametrize(
    ("query", "is_text"),
    [
        ("SELECT my_sum(v) AS s, k AS `a key` FROM hav GROUP BY k ORDER BY s DESC, `a key` LIMIT 2", False),
        ("SELECT k, my_sum(v) AS s FROM hav GROUP BY k ORDER BY K", False),
        ("SELECT my_sum(v) AS s FROM hav GROUP BY k LIMIT 3", False),
        ("SELECT k, my_sum(v) AS s FROM hav GROUP BY k ORDER BY s NULLS LAST, k", True),
        ("SELECT k, my_sum(v) AS s FROM hav GROUP BY k ORDER BY my_sum(v) % 3, k LIMIT 2", True),
        ("SELECT k AS x, my_sum(v) AS x FROM hav GROUP BY k LIMIT 3", True),
        ("SELECT k, my_sum(v) + 1 AS s FROM hav GROUP BY k ORDER BY s LIMIT 2 OFFSET 1", True),
    ],
)
def test_a_fold_that_is_only_sorted_needs_no_view(db: Any, trips: list[str], query: str, is_text: bool) -> None:
    """A text over the result of a fold in Python needs a view of it, which takes Spark longer than to plan a sort."""
    actual = sql(db, query, plan="fold")
    assert any("createOrReplaceTempView" in each for each in trips) == is_text
    of_spark = db.sql(query.replace("my_sum", "sum"))
    assert rows(actual) == rows(of_spark)
    assert actual.columns == of_spark.columns
    lifted_df = sql(db, query, plan="lifted")
    assert rows(lifted_df) == rows(of_spark)
    if "ORDER BY" in query:
        assert actual.collect() == lifted_df.collect() == of_spark.collect()


@pytest.mark.parametrize(
    ("items", "levels"),
    [
        ("my_count(v) AS a", 1),
        ("my_sum(d) AS a", 1),  # its state and result use each aggregate once
        ("my_sum(v) AS a, my_sum(d + 1) AS b", 1),
        ("my_sum(v) AS a, my_max(v) AS b", 4),  # a state that uses its aggregate twice is on a level of its own
        ("my_sum(abs(v)) AS a", 3),  # a function may differ each time, so the rows, and the items, are levels
    ],
)
@pytest.mark.parametrize("keys", ["", " GROUP BY k"])
def test_states_are_made_by_the_aggregation(db: Any, questions: list[str], items: str, levels: int, keys: str) -> None:
    """Spark takes as long for a level of a text as for the items of one. No aggregate is computed twice for it."""
    source = "(SELECT k, v, CAST(v AS DECIMAL(30, 2)) AS d FROM hav)"
    query = f"SELECT {items} FROM {source}{keys}"
    actual = sql(db, query, plan="lifted")
    assert questions[-1].count("SELECT") == levels + 1
    of_spark = db.sql(query.replace("my_", ""))
    assert actual.columns == of_spark.columns
    assert sorted(rows(actual), key=str) == sorted(rows(of_spark), key=str)


def test_a_state_of_the_aggregation_that_overflows_names_the_group(db: Any) -> None:
    """The error of a group has the names and values of its keys, as on a level of its own."""
    query = "SELECT my_sum(d) AS s FROM VALUES ('one', 9e37BD), ('two', 1BD), ('one', 9e37BD) AS t(k, d) GROUP BY k"
    with pytest.raises(Exception, match=r"OVERFLOW[\s\S]*function: sum\s+group: k=one"):
        sql(db, query, plan="lifted").collect()
