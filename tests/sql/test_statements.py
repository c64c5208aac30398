"""CREATE, DROP and SHOW AGGREGATE; the catalogue file; what surrounds a query; parameters; ways in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight import RejectedError, connect, udaf
from foldflight.spark import column, enable, sql
from foldflight.sql import SqlError, split_statements, statements

MODULE = "tests.sql.sql_functions"
CREATE = (
    f"CREATE OR REPLACE AGGREGATE w(value BIGINT, weight INT) RETURNS BIGINT LANGUAGE python AS '{MODULE}:Weighted'"
)
SOURCE = """
CREATE OR REPLACE AGGREGATE spread(BIGINT) AS $$
def create_state():
    return [None, None]

def accumulate(state, value):
    low, high = state
    return [value if low is None else min(low, value), value if high is None else max(high, value)]

def finish(state):
    return None if state[0] is None else state[1] - state[0]
$$
"""


@udaf
class Halved:
    """A sum of quotients; the divisor may be left out."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, value: int, by: int = 2) -> int:
        return total + value // by

    def get_value(self, total: int) -> int:
        return total


def values(df: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result, sorted."""
    return sorted((tuple(row) for row in df.collect()), key=repr)


@pytest.mark.every_turn
def test_aggregates_are_created_from_a_module(both: Any, plans_of: Callable[..., list[str]]) -> None:
    """A class is an aggregate; its block is folded beside built-in ones, in Connect, too."""
    sql(both, CREATE)
    query = "SELECT k, w(v, 2) AS a, count(*) AS n FROM hav GROUP BY k ORDER BY a DESC, n"
    assert [tuple(row) for row in sql(both, query).collect()] == [("three", 3, 1), ("one", 3, 2), ("two", 2, 1)]
    assert plans_of(both, query) == ["fold"]
    assert values(sql(both, query, plan="lists")) == values(sql(both, query))


def test_aggregates_are_created_from_source(db: Any) -> None:
    """Source in dollars has RisingWave's functions or a class; without retract it must be declared APPEND ONLY."""
    with pytest.raises(SqlError, match="APPEND ONLY"):
        sql(db, SOURCE)
    sql(db, SOURCE.replace("(BIGINT) AS", "(BIGINT) APPEND ONLY AS"))
    assert values(sql(db, "SELECT spread(v) FROM hav")) == [(4,)]
    assert values(sql(db, "SELECT k, spread(v) AS s FROM hav GROUP BY k HAVING spread(v) > 0")) == [("one", 4)]
    sql(db, "DROP AGGREGATE spread")
    message = "Cannot resolve routine.*If spread is a function of yours, make it known: register"
    with pytest.raises(SqlError, match=message):  # plain SQL has forgotten it, too
        sql(db, "SELECT spread(v) FROM hav")
    with pytest.raises(SqlError, match="did you mean my_sum"):
        sql(db, "DROP AGGREGATE my_smu")


HANDLER = """
CREATE OR REPLACE AGGREGATE snow_sum(INT) RETURNS BIGINT APPEND ONLY AS $$
class Total:
    def __init__(self):
        self.total = 0

    @property
    def aggregate_state(self):
        return self.total

    def accumulate(self, value):
        self.total += value or 0

    def merge(self, other):
        self.total += other

    def finish(self):
        return self.total
$$
"""


@pytest.mark.every_turn
def test_classes_of_other_engines_are_declared_by_types(db: Any) -> None:
    """The statement declares the types of a class without a decorator, in a module or in source."""
    sql(db, "CREATE AGGREGATE mean(DOUBLE) RETURNS DOUBLE APPEND ONLY AS 'tests.engines.beam_functions:AverageFn'")
    sql(db, HANDLER)
    query = "SELECT mean(v), snow_sum(w) FROM VALUES (1D, 2), (4D, 3) AS t(v, w)"
    assert values(sql(db, query)) == values(sql(db, query, plan="lists")) == [(2.5, 5)]
    with pytest.raises(SqlError, match=r"no merge, finish; define merge\(self, other_state\)"):
        sql(db, HANDLER.replace("merge", "join").replace("finish", "end"))
    sql(db, "DROP AGGREGATE mean")
    sql(db, "DROP AGGREGATE snow_sum")


def _names(db: Any) -> list[str]:
    return [row.name for row in sql(db, "SHOW AGGREGATES").collect()]


@pytest.mark.parametrize(
    ("statement", "message", "at"),
    [
        ("CREATE AGGREGATE x BIGINT", "types of the arguments are expected", "BIGINT"),
        ("CREATE AGGREGATE x(BIGINT, INT) AS 'sum'", "RETURNS type is expected", "AS"),
        ("CREATE AGGREGATE x(BIGNIT) AS 'sum'", "is not a type", "BIGNIT"),
        ("CREATE AGGREGATE x(BIGINT) LANGUAGE scala AS 'sum'", "python", "scala"),
        ("CREATE AGGREGATE x(BIGINT) AS 'smu'", "did you mean sum", "'smu'"),
        ("CREATE AGGREGATE x(BIGINT) AS 'sum' USING JAR 'x'", "LINK", "JAR"),
        ("CREATE AGGREGATE x(BIGINT) AS 'sum' USING LINK 'nope'", "not the URL of a server", "'nope'"),
        ("CREATE AGGREGATE x(BIGINT) AS 'sum' NOW", "should end here", "NOW"),
        ("CREATE AGGREGATE x(BIGINT) AS 'sum' LANGUAGE python", "order of the clauses is RETURNS", "LANGUAGE"),
        ("CREATE AGGREGATE x(BIGINT) APPEND AS 'sum'", "APPEND ONLY", "AS"),
        ("CREATE AGREGATE x(BIGINT) AS 'sum'", "did you mean CREATE AGGREGATE?", "AGREGATE"),
        ("CREATE TEMPORARY AGGREGATE x(BIGINT) AS 'sum'", "is not TEMPORARY", "TEMPORARY"),
        ("SHOW AGGREGATE", "did you mean SHOW AGGREGATES?", "AGGREGATE"),
        ("EXPLAIN FOLDFLIGT SELECT 1", "did you mean EXPLAIN FOLDFLIGHT?", "FOLDFLIGT"),
        ("EXPLAIN FOLDFLIGHT SELEC 1", "Syntax error at or near 'SELEC'", "SELEC"),
        (f"CREATE AGGREGATE x(BIGINT) AS '{MODULE}:'", "write 'module:Class'", f"'{MODULE}:'"),
        ("CREATE AGGREGATE x(BIGINT) AS $$ create_state = int $$", "define accumulate", "$$ create_state = int $$"),
        ("CREATE AGGREGATE x(BIGINT) AS $$ class", "is not closed", "$$"),
        ("CREATE FUNCTION x(INT) RETURNS INT LANGUAGE python AS $$ 1 $$", "the source has no function", "$$ 1 $$"),
        (f"CREATE AGGREGATE x(INT, INT) RETURNS BIGINT AS '{MODULE}:Weighted'", "(INT, INT) is declared", "x"),
        (f"CREATE AGGREGATE x(BIGINT, INT) RETURNS STRING AS '{MODULE}:Weighted'", "returns BIGINT", "x"),
        (f"CREATE AGGREGATE x(BIGINT) AS '{MODULE}:Heavy'", "it has Weighted, Joined, times", f"'{MODULE}:Heavy'"),
        (f"CREATE AGGREGATE x(STRING) AS '{MODULE}:Joined'", "APPEND ONLY", "x"),
        ("CREATE AGGREGATE x(STRING) AS $$ class $$", "cannot be executed, line 1", "$$ class $$"),
        ("DROP AGGREGATE nothing_like_it", "no aggregate nothing_like_it", "nothing_like_it"),
        ("SELECT my_sum(v, 'x) FROM hav", "not closed", "'"),
        ("SELECT /* my_sum(v) FROM hav", "not closed", "/*"),
    ],
)
def test_mistakes_have_their_place(db: Any, statement: str, message: str, at: str) -> None:
    """The error names the expected syntax, and a caret marks the place."""
    with pytest.raises(SqlError) as excinfo:
        sql(db, statement)
    error = excinfo.value
    assert message in error.message
    assert statement[error.start : error.stop] == at
    statement_line, carets = str(error).splitlines()[-2:]
    assert statement_line[carets.index("^") : carets.rindex("^") + 1] == at
    assert "x" not in _names(db)


@pytest.mark.parametrize(
    ("statement", "message", "at"),
    [
        ("SELECT k,\n  my_smu(v) FROM hav GROUP BY k", "Did you mean my_sum?", "my_smu(v)"),
        ("\n -- blank\n SELECT my_smu(v) FROM hav", "Did you mean my_sum?", "my_smu(v)"),
        ("SELECT w(v) FROM hav", "takes 2 arguments, and 1 is given", "w(v)"),
        ("SELECT w(k, 1) FROM hav", "write CAST(k AS BIGINT)", "k"),
        ("SELECT my_sum(my_max(v)) FROM hav", "in a subquery", "my_max(v)"),
        ("SELECT k FROM hav WHERE my_sum(v) > 1", "HAVING", "my_sum(v)"),
        ("SELECT k, my_sum(v) FROM hav GROUP BY my_max(v)", "GROUP BY", "my_max(v)"),
        ("SELECT pct(v) FROM hav", "needs the direct argument 'fraction'", "pct(v)"),
        ("SELECT my_sum(nope) FROM hav", "`nope` cannot be resolved", "nope"),
        ("SELECT k, my_sum(v) FROM nowhere GROUP BY k", "`nowhere` cannot be found", "nowhere"),
        ("SELECT my_sum(k) FROM hav", "arguments here are (STRING)", "my_sum(k)"),
        ("SELECT w(v, 1 ORDER BY) FROM hav", "a key is expected here", ")"),
        ("SELECT 1 FROM hav JOIN emp ON my_sum(v) > 1", "cannot stand in FROM", "my_sum(v)"),
        ("SELECT my_sum(v) FROM hav; SELECT 2", "give one at a time", ";"),
        ("INSERT INTO nowhere SELECT my_sum(v) FROM hav", "`nowhere` cannot be found", "nowhere"),
        ("SELECT my_sum(v) FROM hav EMIT CHANGES LIMIT 1", "at the end of the statement", "EMIT CHANGES"),
        ("SELECT w(nope, 1) FROM hav", "`nope` cannot be resolved", "nope"),
        ("SELECT my_sum(v), nope FROM hav", "`nope` cannot be resolved", "nope"),
        ("DELETE FROM t WHERE x = (SELECT my_max(v) FROM hav)", "temporary view", "my_max(v)"),
        ("CREATE VIEW v AS SELECT my_sum(v) FROM hav", "CREATE TEMPORARY VIEW", "CREATE VIEW"),
        ("CACHE TABLE c AS SELECT my_sum(v) FROM hav", "then CACHE TABLE v", "CACHE TABLE c AS"),
        ("SELECT IDENTIFIER('my_sum')(v) FROM hav", "cannot be used here", "IDENTIFIER('my_sum')(v)"),
        ("SELECT my_max(v) IGNORE NULLS FROM hav", "FILTER (WHERE x IS NOT NULL)", "IGNORE NULLS"),
        ("SELECT my_max(v) RESPECT NULLS OVER () FROM hav", "FILTER (WHERE x IS NOT NULL)", "RESPECT NULLS"),
        ("SELECT my_sum(v) FILTER (WHERE my_max(v) > 1) FROM hav", "cannot stand in FILTER", "my_max(v)"),
        ("SELECT my_string_agg(k ORDER BY k, delimiter => '-') FROM hav", "before ORDER BY", "delimiter => '-'"),
    ],
)
def test_mistakes_in_queries_are_shown_in_their_text(db: Any, statement: str, message: str, at: str) -> None:
    """What Spark or a function refuses is shown in the text as it was written."""
    sql(db, CREATE)
    with pytest.raises(SqlError) as excinfo:
        sql(db, statement)
    assert message in excinfo.value.message
    assert statement[excinfo.value.start : excinfo.value.stop] == at


def test_direct_arguments_may_follow_the_columns(db: Any) -> None:
    """As in Spark, whose own function has the delimiter there; an order makes the text certain."""
    sql(db, CREATE)
    named_statement = "SELECT my_string_agg(k, delimiter => '-' ORDER BY k) AS joined FROM hav"
    for statement in (named_statement, named_statement.replace("delimiter => ", "")):
        assert values(sql(db, statement)) == [("one-one-three-two",)]


def test_the_catalogue_lasts(db: Any, tmp_path: Path) -> None:
    """CREATE AGGREGATE is kept in the file; another session reads it; DROP removes it."""
    file = tmp_path / "catalog.sql"
    first, second = db.newSession(), db.newSession()
    enable(first, file)
    first.sql(CREATE)
    first.sql("-- a heading\nCREATE AGGREGATE total(BIGINT) RETURNS BIGINT AS 'sum' -- a note")
    first.sql("CREATE AGGREGATE other(BIGINT) RETURNS BIGINT AS 'sum'")
    first.sql("DROP AGGREGATE other")
    assert split_statements(file.read_text()) == (
        [CREATE, "CREATE AGGREGATE total(BIGINT) RETURNS BIGINT AS 'sum'"],
        "",
    )
    enable(second, file)
    assert values(second.sql("SELECT w(v, 1) FROM VALUES (1L), (3L) AS t(v)")) == [(2,)]
    file.write_text("SELECT 1")
    with pytest.raises(RejectedError, match="no CREATE AGGREGATE"):
        enable(db.newSession(), file)


@pytest.mark.every_turn
def test_source_is_shipped_to_a_server(db: Any) -> None:
    """USING LINK ships source as a signed bundle to a server with the same key; without one it says so."""
    from foldflight.server.run.lifecycle import serving
    from tests.spark import spark_functions

    session = db.newSession()
    key = "a bundle key of thirty-two bytes"
    statement = SOURCE.replace("(BIGINT) AS", "(BIGINT) APPEND ONLY AS")
    with serving(spark_functions, state_keys="a key for the spark tests", bundle_keys=key) as server:
        enable(session)
        linked_statement = f"{statement} USING LINK '{server.url}'"
        with pytest.raises(SqlError, match="bundle_key"):
            session.sql(linked_statement)
        keyed_session = enable(session, bundle_key=key)  # after the error, in the same session
        keyed_session.sql(linked_statement)
        lists = "SELECT spread(v) OVER () AS s FROM VALUES (1L), (3L) AS t(v)"
        assert values(keyed_session.sql("SELECT spread(v) FROM VALUES (1L), (3L) AS t(v)")) == [(2,)]
        assert values(keyed_session.sql(lists)) == [(2,), (2,)]
        keyed_session.sql(linked_statement.replace("state[1] - state[0]", "state[0] - state[1]"))
        assert values(keyed_session.sql(lists)) == [(-2,), (-2,)]
        keyed_session.sql(linked_statement)
        keyed_session.sql(f"CREATE AGGREGATE total(BIGINT) RETURNS BIGINT AS 'sum' USING LINK '{server.url}'")
        classes = ("tests.spark.spark_functions:WeightedAvg", f"{MODULE}:Weighted")  # the server's own, and a bundle
        for name, source in zip("ab", classes, strict=True):
            keyed_session.sql(
                f"CREATE AGGREGATE {name}(BIGINT, INT) RETURNS BIGINT AS '{source}' USING LINK '{server.url}'"
            )
        assert values(keyed_session.sql("SELECT a(v, 1), b(v, 1) FROM VALUES (1L), (3L) AS t(v)")) == [(2, 2)]
        assert values(keyed_session.sql("SELECT total(v), spread(v) FROM VALUES (1L), (3L) AS t(v)")) == [(4, 2)]


@pytest.mark.every_turn
def test_statements_around_a_query_are_kept(both: Any, tmp_path: Path) -> None:
    """CREATE TABLE ... AS, INSERT, temporary views with columns, and EXPLAIN work; enable replaces spark.sql."""
    session = both
    sql(session, "DROP TABLE IF EXISTS made")
    sql(session, "CREATE TABLE made USING parquet AS SELECT k, my_sum(v) AS s FROM hav GROUP BY k")
    sql(session, "INSERT INTO made SELECT 'all', my_sum(v) FROM hav;")
    assert values(session.table("made")) == [("all", 11), ("one", 6), ("three", 3), ("two", 2)]
    sql(session, "CREATE OR REPLACE TEMP VIEW sums (name, total) AS SELECT k, my_sum(v) FROM hav GROUP BY k")
    assert values(session.sql("SELECT max(total) FROM sums")) == [(6,)]
    assert values(sql(session, "SELECT my_sum(total) FROM sums")) == [(11,)]
    plan = sql(session, "EXPLAIN SELECT my_sum(v) FROM hav").collect()[0][0]
    assert "HashAggregate" in plan
    assert "InArrow" not in plan
    assert "merge[percentile](" in sql(session, "EXPLAIN SELECT pct(v, fraction => 0.5D) FROM hav").collect()[0][0]
    sql(session, "DROP TABLE made")


@pytest.mark.every_turn
def test_parameters_are_bound_by_name_and_by_position(both: Any) -> None:
    """Parameters by name and by position, also in arguments, conditions and direct arguments."""
    query = "SELECT my_sum(v * {0}) FILTER (WHERE v > {1}) AS s FROM hav WHERE k <> {2} -- {{?}}"
    named_query = query.format(":by", ":least", ":not")
    assert values(sql(both, named_query, {"by": 10, "least": 1, "not": "two"})) == [(80,)]
    assert values(sql(both, query.format("?", "?", "?").replace("{?}", ""), [10, 1, "two"])) == [(80,)]
    assert values(sql(both, "SELECT pct(v, fraction => :f) FROM hav", {"f": 0.5})) == [(2.0,)]


@pytest.mark.slow
def test_calls_may_have_an_order(both: Any) -> None:
    """`f(x ORDER BY t)` and WITHIN GROUP fold rows in their order; both plans, and DataFrames, agree."""
    sql(both, f"CREATE OR REPLACE AGGREGATE joined(STRING) RETURNS STRING APPEND ONLY AS '{MODULE}:Joined'")
    both.sql("""CREATE OR REPLACE TEMP VIEW texts AS SELECT * FROM VALUES
        (1, 'b', 2, null), (1, 'a', 3, 1.5D), (1, 'c', 1, double('nan')), (2, 'z', null, 1D), (2, 'y', 1, null)
        AS texts(k, s, n, x)""")
    expected = {
        "joined(s ORDER BY s)": ("abc", "yz"),
        "joined(s ORDER BY n DESC)": ("abc", "yz"),
        "joined(s ORDER BY n DESC NULLS FIRST)": ("abc", "zy"),
        "joined(s ORDER BY x NULLS LAST, s)": ("acb", "zy"),
        "joined(s) WITHIN GROUP (ORDER BY x DESC, s DESC)": ("cab", "zy"),
        "joined() WITHIN GROUP (ORDER BY s DESC)": ("cba", "zy"),
        "joined(DISTINCT s ORDER BY s DESC)": ("cba", "zy"),
        "joined(s ORDER BY n) FILTER (WHERE n > 1)": ("ba", ""),
    }
    query = f"SELECT {', '.join(expected)} FROM texts GROUP BY k ORDER BY k"
    (decision,) = sql(both, query, explain=True).collect()
    assert decision.plan == "fold"
    assert decision.why.startswith(f"group by k; aggregates: {', '.join(expected)}; rows are not lifted: joined is not")
    assert list(zip(*sql(both, query).collect(), strict=True)) == list(expected.values())
    for call, texts in expected.items():  # one at a time: each list function of a query needs a worker of its own
        result = sql(both, f"SELECT {call} FROM texts GROUP BY k ORDER BY k", plan="lists").collect()
        assert tuple(row[0] for row in result) == texts, call


@pytest.mark.every_turn
def test_a_use_may_be_a_column(both: Any, functions: Any) -> None:
    """`column` is a Column beside Spark's aggregates: by name, or a use with a condition, DISTINCT and an order."""
    from pyspark.sql import functions as sf

    hav = both.table("hav")
    result = hav.groupBy("k").agg(column(both, "weighted_avg", "v", sf.lit(1)), sf.max_by("v", "v").alias("m"))
    assert result.columns == ["k", "weighted_avg(v, 1)", "m"]
    assert values(result) == [("one", 3, 5), ("three", 3, 3), ("two", 2, 2)]
    use = functions.percentile("v", fraction=1.0).where("v < 5").distinct().alias("top")
    assert values(hav.groupBy("k").agg(column(both, use), sf.count("*"))) == [
        ("one", 1.0, 2), ("three", 3.0, 1), ("two", 2.0, 1)
    ]  # fmt: skip
    halved_use = connect(Halved)["halved"]("v")
    assert values(hav.groupBy("k").agg(column(both, halved_use))) == [("one", 2), ("three", 1), ("two", 1)]
    joined_df = functions.string_agg("k").order_by("v DESC")
    assert values(hav.agg(column(both, joined_df), sf.count("*"))) == [("one,three,two,one", 4)]
    with pytest.raises(RejectedError, match="depend on its arguments"):
        column(both, "my_sum", "v")
    with pytest.raises(RejectedError, match="did you mean weighted_avg"):
        column(both, "weighted_avgs", "v", "v")


@pytest.mark.every_turn
def test_plans_have_reasons(db: Any) -> None:
    """EXPLAIN FOLDFLIGHT tells the plan of each block, and why."""
    text = """EXPLAIN FOLDFLIGHT
        SELECT max(s) FROM (SELECT k, my_sum(v) AS s FROM hav GROUP BY k) UNION ALL
        SELECT my_sum(v) + size(collect_list(v)) FROM hav"""
    first, second = sql(db, text).collect()
    assert (first.line, first.plan) == (2, "fold")
    assert "group by k; aggregates: my_sum(v)" in first.why
    assert (second.line, second.plan, second.why) == (3, "lists", "Spark's collect_list beside functions of foldflight")
    assert sql(db, "EXPLAIN FOLDFLIGHT SELECT 1").collect()[0].plan == "spark"
    outside = {
        "FROM hav |> AGGREGATE my_sum(v)": "it is a query with |>",
        "FROM hav SELECT my_sum(v) LATERAL VIEW explode(array(1)) x": "it is a query with LATERAL VIEW behind SELECT",
        "SELECT * FROM hav PIVOT (my_sum(v) FOR k IN ('one'))": "its functions stand in PIVOT",
    }
    for query, why in outside.items():
        (decision,) = sql(db, query, explain=True).collect()
        assert (decision.block, decision.plan, decision.why) == (query, "lists", why)
        with pytest.raises(SqlError, match="the fold plan was asked for"):
            sql(db, query, plan="fold")
    with pytest.raises(SqlError, match="the fold plan was asked for"):
        sql(db, "SELECT my_sum(v) FROM hav GROUP BY ROLLUP (k)", plan="fold")
    several = sql(db, "FROM hav SELECT my_sum(v) SELECT my_count(*) WHERE v > 1", explain=True).collect()
    assert [(each.plan, each.why) for each in several] == [
        ("lists", "it is a query with several SELECTs behind FROM")
    ] * 2


@pytest.mark.every_turn
def test_from_may_stand_before_select(db: Any) -> None:
    """It is the same block, with the same plan; several SELECTs behind it are a UNION ALL of theirs."""
    clauses = "WHERE v > 1 GROUP BY k HAVING my_count(*) > 0 ORDER BY s, k LIMIT 3"
    plain, from_first = f"SELECT k, my_sum(v) AS s FROM hav {clauses}", f"FROM hav SELECT k, my_sum(v) AS s {clauses}"
    assert values(sql(db, from_first)) == values(sql(db, plain)) != []
    (decision,) = sql(db, from_first, explain=True).collect()
    assert (decision.plan, decision.why) == ("fold", sql(db, plain, explain=True).collect()[0].why)
    inner = "WITH t AS (FROM hav SELECT k, my_sum(v) AS s GROUP BY k) FROM (FROM t SELECT s) SELECT my_sum(s)"
    assert values(sql(db, inner)) == values(sql(db, "SELECT my_sum(v) FROM hav"))
    several = sql(db, "FROM hav SELECT my_sum(v) SELECT my_count(*) WHERE v > 1")
    each = [values(sql(db, f"SELECT {items} FROM hav")) for items in ("my_sum(v)", "my_count(*) FILTER (WHERE v > 1)")]
    assert sorted(values(several)) == sorted([*each[0], *each[1]])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS s UNION ALL FROM hav SELECT my_sum(v) AS s GROUP BY k ORDER BY s LIMIT 1",
        "FROM hav SELECT my_sum(v) AS s GROUP BY k ORDER BY my_sum(v) DESC LIMIT 1 UNION ALL SELECT 1",
        "FROM hav SELECT my_sum(v) LIMIT 0 UNION ALL FROM hav SELECT my_count(*) OFFSET 0",
        "(FROM hav SELECT my_sum(v) AS s GROUP BY k ORDER BY s LIMIT 1) UNION ALL SELECT 7",
        "SELECT my_sum(v) FROM hav UNION ALL FROM hav SELECT v ORDER BY v LIMIT 1 SELECT v",
        "FROM hav SELECT k, my_sum(v) AS s GROUP BY k ORDER BY my_sum(v) LIMIT 1 SELECT k, 0 LIMIT 0",
        "FROM hav SELECT my_sum(v) AS select",
        "SELECT * FROM (FROM hav SELECT my_sum(v) AS s UNION ALL FROM hav SELECT v LIMIT 1) ORDER BY s DESC LIMIT 1",
    ],
)
def test_clauses_behind_from_and_select_are_those_of_its_select(db: Any, query: str) -> None:
    """Behind an operand that begins with SELECT, ORDER BY and LIMIT belong to the union."""
    plain = re.sub(r"my_(\w+)", r"\1", query)
    assert values(sql(db, query)) == values(db.sql(plain)) != []


@pytest.mark.every_turn
def test_the_lifted_plan_is_chosen_by_hand(db: Any) -> None:
    """`plan` and `groups` decide whether Spark aggregates the rows, as for `group_by`, and the explanation says so."""
    query = "SELECT k, my_sum(v) AS s FROM hav GROUP BY k"
    outcomes = {
        "rows are lifted: every call lifts": {},
        "rows are lifted: plan='lifted'": {"plan": "lifted"},
        "rows are not lifted: plan='fold'": {"plan": "fold"},
        "rows are not lifted: there are about 2,000,000 groups": {"groups": 2_000_000},
    }
    for why, options in outcomes.items():
        (decision,) = sql(db, query, explain=True, **options).collect()
        assert why in decision.why
        assert decision.plan == "fold"
    results = [sorted(values(sql(db, query, plan=plan))) for plan in ("lifted", "fold", "lists")]
    assert results[0] == results[1] == results[2]
    for statement, why in (
        ("SELECT k, my_sum(DISTINCT v) FROM hav GROUP BY k", "with DISTINCT the rows of a group"),
        ("SELECT my_sum(v) OVER (PARTITION BY k ORDER BY v) FROM hav", "OVER is not lifted"),
    ):
        with pytest.raises(SqlError, match="the lifted plan was asked for") as excinfo:
            sql(db, statement, plan="lifted")
        assert why in str(excinfo.value)


def test_all_lists_of_a_block_are_folded_in_one_trip(db: Any) -> None:
    """Each of twenty calls has its lists, and all of them go to one Python process together."""
    calls = ", ".join(f"my_sum(v + {number})" for number in range(20))
    (plan,) = sql(db, f"EXPLAIN SELECT {calls} FROM hav GROUP BY ROLLUP (k)").collect()
    assert plan[0].count("ArrowEvalPython") == 1


def test_an_unknown_aggregate_stays_one_of_rows(db: Any, plans_of: Callable[..., list[str]]) -> None:
    """An aggregate that this package does not know stays an aggregate of rows, not of groups."""

    def total(v):
        return len(v)

    total.__annotations__ = {"v": pa.Array, "return": int}
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined,call-overload]

    db.udf.register("unknown_total", arrow_udf(total, "bigint"))  # type: ignore[call-overload]
    query = "SELECT unknown_total(v) AS a FROM hav GROUP BY v HAVING my_count(*) > 0"
    assert plans_of(db, query) == ["lists"]


def test_an_inner_error_is_not_told_as_a_wrong_type(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A type that cannot be read is refused at its place; any other exception is ours, and passes."""
    statement = CREATE.replace("BIGINT, weight", "DECIMAL(99, 1), weight")
    with pytest.raises(SqlError, match=r"precision of 1 to 38 digits[^^]*\(line 1, column 37\)"):
        sql(db, statement)

    def mistaken(_: str) -> None:
        raise AttributeError("mistake")

    monkeypatch.setattr(statements, "parse_type", mistaken)
    with pytest.raises(AttributeError, match="mistake"):
        sql(db, statement)
