"""Names of functions, columns behind pipes, and messages about what a statement names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from foldflight import Functions, RejectedError, connect, udaf
from foldflight.spark import enable, register, sql
from foldflight.spark.versions.facts import PLAIN_AGGREGATES
from foldflight.sql import SqlError
from foldflight.sql.analysis import SPARK_ERRORS, Analysis
from foldflight.sql.calls import GRAMMAR
from tests.sql.test_statements import values

CLASS = """
class {}:
    def create_accumulator(self):
        return 0
    def accumulate(self, accumulator, x):
        return accumulator + x
    def retract(self, accumulator, x):
        return accumulator - x
    def merge(self, accumulator, other):
        return accumulator + other
    def get_value(self, accumulator):
        return accumulator
"""
SOURCE = f"RETURNS BIGINT AS $${CLASS.format('Total')}$$"


@pytest.fixture(scope="module")
def names_db(db: Any) -> Iterator[Any]:
    """The session with a table `d`."""
    db.sql("CREATE OR REPLACE TEMP VIEW d AS SELECT id, id % 2 AS k FROM range(6)")
    yield db
    db.catalog.dropTempView("d")


def rows(df: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result, sorted."""
    return sorted((tuple(row) for row in df.collect()), key=repr)


@pytest.mark.parametrize(
    "statement",
    [
        "TABLE d |> SELECT id, my_sum(d.id) OVER (ORDER BY d.id) s",
        "FROM d |> AGGREGATE my_sum(d.id) s GROUP BY d.k",
        "TABLE d |> EXTEND my_sum(d.id) OVER (ORDER BY id) s",
        "TABLE d |> SELECT id, my_sum(d.id) OVER w s WINDOW w AS (ORDER BY d.id)",
        "TABLE d |> AS e |> AGGREGATE my_sum(e.id) s GROUP BY e.k",
        "WITH c AS (SELECT * FROM d) FROM c |> WHERE c.id > 2 |> AGGREGATE my_sum(c.id) s GROUP BY c.k",
    ],
)
def test_operators_behind_pipes_may_qualify_columns(names_db: Any, statement: str) -> None:
    """An operator behind a pipe may name the table of a column, as with Spark's own aggregates."""
    assert rows(sql(names_db, statement)) == rows(names_db.sql(statement.replace("my_sum", "sum")))


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT o.k, (FROM d |> WHERE d.k = o.k |> AGGREGATE my_sum(d.id) s) s FROM VALUES (0), (1) o(k)",
        "SELECT o.k, t.s FROM VALUES (1) o(k), LATERAL (FROM d |> WHERE d.k = o.k |> AGGREGATE my_sum(id) s) t",
        "VALUES (0), (1) o(k) |> WHERE k < 5 |> EXTEND (FROM d |> WHERE d.k = o.k |> AGGREGATE my_sum(id) s) AS s",
    ],
)
def test_pipes_may_be_in_correlated_subqueries(names_db: Any, statement: str) -> None:
    """A query with pipes may refer to a row of a query around it, which may have pipes as well."""
    assert rows(sql(names_db, statement)) == rows(names_db.sql(statement.replace("my_sum", "sum")))


@pytest.mark.parametrize(
    "statement",
    [
        "FROM d |> AGGREGATE my_sum(d.id) GROUP BY d.k |> SELECT `my_sum(id)`",
        "FROM d |> AGGREGATE my_sum(id), count(*) GROUP BY k |> AGGREGATE my_sum(`my_sum(id)`) |> SELECT *",
        "FROM d |> SELECT DISTINCT k, my_sum(id) OVER (PARTITION BY k) |> WHERE k = 1",
        "WITH c AS (FROM d |> AGGREGATE my_sum(d.id + 1) GROUP BY d.k) SELECT `my_sum((id + 1))` FROM c",
        "SELECT x.`my_sum(id)` FROM (FROM d |> AGGREGATE my_sum(id)) AS x",
    ],
)
def test_items_behind_pipes_have_the_names_of_spark(names_db: Any, statement: str) -> None:
    """An item without alias has a name by which the operators and queries around can refer to it."""
    assert rows(sql(names_db, statement)) == rows(names_db.sql(statement.replace("my_sum", "sum")))


def test_items_behind_pipes_may_have_the_name_of_their_text(names_db: Any) -> None:
    """As elsewhere, items with FILTER or OVER are named by their text."""
    result = sql(names_db, "FROM d |> SELECT id, my_sum(id)  FILTER (WHERE id > 1) OVER (ORDER BY id) |> WHERE id = 3")
    assert result.columns == ["id", "my_sum(id) FILTER (WHERE id > 1) OVER (ORDER BY id)"]
    assert rows(result) == [(3, 5)]


@pytest.mark.parametrize("name", ["over", "filter", "größe", "a.b", "my total", "a``b"])
def test_names_may_be_in_backquotes(names_db: Any, name: str) -> None:
    """Every name in backquotes can be created, called and dropped, and leaves other statements as they were."""
    sql(names_db, f"CREATE AGGREGATE `{name}`(BIGINT) {SOURCE}")
    query = f"SELECT `{name}`(id) FILTER (WHERE id > 2) AS s, sum(id) AS t FROM d WHERE id IN (3, 4)"
    assert rows(sql(names_db, query)) == rows(sql(names_db, query, plan="lists")) == [(7, 7)]
    query = "SELECT my_sum(id) FILTER (WHERE id > 4) OVER (ORDER BY id) s FROM d WHERE EXISTS (SELECT 1)"
    assert rows(sql(names_db, query)) == rows(names_db.sql(query.replace("my_sum", "sum")))
    sql(names_db, f"DROP AGGREGATE `{name}`")


def test_words_of_the_grammar_are_refused_without_backquotes(names_db: Any, functions: Functions) -> None:
    """A statement that creates such a function is refused; a call without backquotes tells what to write."""
    for word in sorted(GRAMMAR - {"exists"}):
        with pytest.raises(SqlError, match="in backquotes"):
            sql(names_db, f"CREATE AGGREGATE {word}(BIGINT) {SOURCE}")
    with pytest.raises(SqlError, match="the name of the aggregate is empty"):
        sql(names_db, f"CREATE AGGREGATE ``(BIGINT) {SOURCE}")
    with pytest.raises(SqlError, match="begin with foldflight__"):
        sql(names_db, f"CREATE AGGREGATE foldflight__w(BIGINT) {SOURCE}")
    register(names_db, functions, {"sum": "over"})
    with pytest.raises(SqlError, match=r"call the function of this name in backquotes: `over`"):
        sql(names_db, "SELECT over(id) FROM d")
    sql(names_db, "DROP AGGREGATE over")


TWO = CLASS.format("One") + CLASS.format("Other")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (f"CREATE AGGREGATE sum(BIGINT) {SOURCE}", "sum is the name of a built-in function of foldflight"),
        (f"CREATE AGGREGATE by_hand(BIGINT) RETURNS BIGINT AS $${TWO}$$", "classes One, Other, and it is unclear"),
        (
            "CREATE AGGREGATE by_hand(BIGINT) RETURNS BIGINT AS $$def other(x): return x$$",
            "defines other, which is no aggregate",
        ),
        (
            "CREATE FUNCTION by_hand(BIGINT) RETURNS BIGINT LANGUAGE python AS $$def other(x): return x$$",
            "the source defines other, and none is named by_hand",
        ),
        ("SELECT my_count(t.*) FROM d t", "write my_count(*) for all rows"),
        ("SELECT my_max(id ORDER BY map(1, id)) FROM d", "cannot be ordered by map(1, id)"),
        ("BEGIN SELECT my_sum(id) FROM d; END", "cannot be used in a script"),
        ("EXPLAIN FOLDFLIGHT SELECT nope FROM d", "`nope` cannot be resolved"),
        ("SELECT id FROM d WHERE my_sum(id) OVER () > 2", "filter its rows with QUALIFY"),
    ],
)
def test_messages_name_what_is_not_found(names_db: Any, statement: str, message: str) -> None:
    """The message tells which name is meant, and what to write."""
    with pytest.raises(SqlError) as excinfo:
        sql(names_db, statement)
    assert message in excinfo.value.message


def test_drop_aggregate_refuses_a_function(names_db: Any) -> None:
    """The message names the statement that drops it."""
    sql(names_db, "CREATE FUNCTION plus(BIGINT) RETURNS BIGINT LANGUAGE python AS $$def plus(x): return x + 1$$")
    with pytest.raises(SqlError, match="write DROP FUNCTION plus"):
        sql(names_db, "DROP AGGREGATE plus")
    sql(names_db, "DROP FUNCTION plus")


@pytest.mark.parametrize(
    ("statement", "at", "state"),
    [
        ("SELECT nope FROM d", "nope", "42703"),
        ("SELEC 1", "SELEC", "42601"),
        ("SELECT 1 FROM nowhere", "nowhere", "42P01"),
    ],
)
def test_errors_of_other_statements_have_their_place(names_db: Any, statement: str, at: str, state: str) -> None:
    """They are without Spark's plans, and programs that wait for Spark's exception still catch it."""
    with pytest.raises(AnalysisException) as excinfo:
        sql(names_db, statement)
    error = excinfo.value
    assert isinstance(error, SqlError)
    assert statement[error.start : error.stop] == at
    assert error.getSqlState() == state
    assert error.getCondition() in error.getMessage()
    assert "Project" not in str(error)
    assert "JVM" not in str(error)


def test_data_frames_may_be_in_braces(names_db: Any) -> None:
    """After `enable`, `spark.sql(text, t=df)` takes functions of foldflight, too, and leaves no views behind."""
    session = enable(names_db)
    try:
        result = session.sql("SELECT my_sum(id) AS s, sum({c}) AS t FROM {t}", t=names_db.table("d"), c=sf.col("id"))
        assert rows(result) == [(15, 15)]
        assert rows(session.sql("SELECT id FROM {t} WHERE id > {x}", t=names_db.table("d"), x=4)) == [(5,)]
    finally:
        del session.sql


def test_there_are_four_plans(names_db: Any) -> None:
    """Another plan is refused, with and without aggregates."""
    for text in ("SELECT my_sum(id) FROM d", "SELECT 1"):
        with pytest.raises(RejectedError, match="plan is 'auto', 'fold', 'lifted' or 'lists'"):
            sql(names_db, text, plan="nope")  # type: ignore[arg-type]


def test_averages_of_decimals_have_the_type_of_spark(names_db: Any) -> None:
    """The scale grows by four, up to 38 digits in all, also where few digits are left before the point."""
    for precision, scale in ((38, 10), (36, 2), (38, 36), (10, 2)):
        query = f"SELECT my_avg(CAST(id AS DECIMAL({precision}, {scale}))) a FROM d WHERE id IN (1, 0, 0)"
        result = sql(names_db, query)
        expected = names_db.sql(query.replace("my_avg", "avg"))
        assert result.schema == expected.schema
        assert rows(result) == rows(expected) == [(Decimal("0.5"),)]


INNER = "(SELECT k, my_sum(v) FILTER (WHERE v > 1), my_max(v) + 1 FROM hav GROUP BY k)"
INNER_COLUMNS = ["k", "my_sum(v) FILTER (WHERE v > 1)", "(my_max(v) + 1)"]


@pytest.mark.every_turn
@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_items_without_alias_are_found_by_their_names(db: Any, plans_of: Callable[..., list[str]], plan: Any) -> None:
    """A query sees them by the names that its own items would have, and the blocks around and in it are folded."""
    assert sql(db, f"SELECT * FROM {INNER}", plan=plan).columns == INNER_COLUMNS
    over = "SELECT my_sum(v) OVER w FROM hav WINDOW w AS (PARTITION BY k)"
    assert sql(db, f"SELECT * FROM ({over})", plan=plan).columns == ["my_sum(v) OVER w"]
    top = f"SELECT my_max(`(my_max(v) + 1)`) FROM {INNER}"
    assert values(sql(db, top, plan=plan)) == [(6,)]
    both = f"WITH c AS {INNER} SELECT struct(a.*), b.`(my_max(v) + 1)` FROM c a JOIN c b ON a.k = b.k"
    whole_row = sql(db, both, plan=plan).schema[0].dataType
    assert isinstance(whole_row, StructType)
    assert whole_row.names == INNER_COLUMNS
    if plan == "auto":
        assert plans_of(db, f"SELECT * FROM {INNER}") == ["fold"]
        assert plans_of(db, f"SELECT * FROM ({over})") == ["over"]
        assert plans_of(db, top) == ["fold", "fold"]
        assert plans_of(db, both) == ["fold"]


def test_explain_says_that_a_block_is_correlated(db: Any) -> None:
    """The reason for its lists is in words, without a condition of Spark."""
    query = "EXPLAIN FOLDFLIGHT SELECT * FROM hav, LATERAL (SELECT my_sum(h.v) FROM hav h WHERE h.k = hav.k)"
    assert sql(db, query).head().why == "it is correlated: it refers to a column of a query around it"


def test_names_are_looked_up_without_errors_of_spark(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error takes Spark and PySpark three times as long as an answer."""
    refused: list[str] = []
    analyse = Analysis.df

    def recorded(self: Analysis, text: str) -> Any:
        try:
            return analyse(self, text)
        except SPARK_ERRORS:
            refused.append(text)
            raise

    monkeypatch.setattr(Analysis, "df", recorded)
    for key, keys in (("v % 2", "key"), ("v % 2", "ALL"), ("upper(k)", "key")):
        statement = f"SELECT {key} AS key, my_sum(v) AS total FROM hav GROUP BY {keys}"
        assert [each.plan for each in sql(both, statement, explain=True).collect()] == ["fold"]
    for table, compared in (("hav h", "h.k = o.k"), ("(SELECT k AS other, v FROM hav) h", "v > 0 AND other = k")):
        inner = f"(SELECT my_avg(h.v) AS mean FROM {table} WHERE {compared})"
        reasons = [each.why for each in sql(both, f"SELECT k FROM hav o WHERE v < {inner}", explain=True).collect()]
        assert reasons == ["it is correlated: it refers to a column of a query around it"]
    assert refused == []


def test_variables_of_the_session_are_no_columns_around(both: Any) -> None:
    """Spark looks for them last, so a query with one is not correlated."""
    both.sql("DECLARE OR REPLACE VARIABLE least INT DEFAULT 1")
    query = "SELECT a FROM testData WHERE b < (SELECT my_sum(v) AS s FROM hav WHERE v > least)"
    assert [each.plan for each in sql(both, query, explain=True).collect()] == ["fold"]
    named = "SELECT v % 2 AS least, my_sum(v) AS total FROM hav GROUP BY least"
    assert sorted(values(sql(both, named))) == sorted(values(both.sql(named.replace("my_sum", "sum"))))


def test_names_of_groups_mean_columns_first(both: Any) -> None:
    """Also over rows that differ each time, which Spark does not join to the names that it is asked for."""
    for source in ("hav", "(SELECT k, v, rand() AS r FROM hav)"):
        same = f"SELECT upper(k) AS k, my_sum(v) AS total FROM {source} GROUP BY k"
        assert sorted(values(sql(both, same))) == sorted(values(both.sql(same.replace("my_sum", "sum"))))
        other = f"SELECT v % 2 AS parity, my_sum(v) AS total FROM {source} GROUP BY parity"
        assert sorted(values(sql(both, other))) == sorted(values(both.sql(other.replace("my_sum", "sum"))))


@pytest.mark.parametrize("plan", ["auto", "lists"])
def test_names_of_items_are_stable(db: Any, plan: str) -> None:
    """Subqueries and lambdas in calls have Spark's names for them, without the numbers of Spark's expressions."""
    inner = "(SELECT max(h.v) FROM hav AS h WHERE h.k = hav.k)"
    items = {
        "my_sum(CASE WHEN EXISTS (SELECT 1 FROM hav) THEN v END)": "my_sum(CASE WHEN exists() THEN v END)",
        f"my_max(v + {inner})": "my_max((v + scalarsubquery(k)))",
        "my_sum(CASE WHEN v IN (SELECT v FROM hav) THEN v END)": "my_sum(CASE WHEN v IN (listquery()) THEN v END)",
        "EXISTS (SELECT 1 FROM hav)": "exists()",
    }
    assert sql(db, f"SELECT {', '.join(items)} FROM hav", plan=plan).columns == list(items.values())
    lambdas = "SELECT my_sum(transform(array(v), x -> x + 1)[0]) FROM hav"
    assert "#" not in sql(db, lambdas, plan=plan).columns[0]


def test_functions_named_as_words_of_grammar_are_warned_of(db: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A function that is registered under such a word can be called in backquotes only, which the log says."""
    functions = connect("embedded:")
    with caplog.at_level("WARNING", "foldflight.sql"):
        register(db, functions, {"sum": "key"})
    assert "key: a word of SQL's grammar, so a call needs backquotes: `key`(...)" in caplog.text
    assert values(sql(db, "SELECT `key`(v) FROM hav")) == [(11,)]


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("FOLDFLIGHT_PART_0", "SELECT k, weighted_avg({0}, w) AS o FROM named GROUP BY k"),
        ("foldflight_part_0", "SELECT {0}, weighted_avg(w, 2) + 1 AS o FROM named GROUP BY {0}"),
        ("foldflight_part_0", "SELECT my_sum(o) s FROM (SELECT k, weighted_avg({0}, w) o FROM named GROUP BY k) t"),
        (
            "`foldflight condition 0`",
            "SELECT {0}, my_sum({0} + 1) o, my_sum(9 DIV {0}) FILTER (WHERE {0} > 2) f FROM named GROUP BY {0}",
        ),
    ],
)
def test_columns_may_have_the_names_of_inner_columns(
    db: Any, plans_of: Callable[..., list[str]], name: str, query: str
) -> None:
    """A user's column may have the name that one of ours has in other statements."""
    rows_of = "VALUES (1L, 2, 'a', 7L), (3L, 4, 'b', 8L), (5L, NULL, 'a', 9L)"
    db.sql(f"CREATE OR REPLACE TEMP VIEW named AS SELECT * FROM {rows_of} AS t({name}, w, k, v)")
    text = query.format(name)
    result, list_df = sql(db, text, plan="lifted"), sql(db, text, plan="lists")
    assert result.columns == list_df.columns
    assert rows(result) == rows(list_df)
    assert set(plans_of(db, text)) == {"fold"}


def test_arguments_may_be_named_as_columns_of_the_exchange(db: Any) -> None:
    """Arguments of an author may be named slot, kind and emit, like columns of the exchange, and with their types."""

    @udaf(name="of_the_wire", input_types=["TINYINT", "INT", "BOOLEAN"], result_type="BIGINT")
    class OfTheWire:
        def create_accumulator(self) -> list[int]:
            return [0]

        def accumulate(self, accumulator: list[int], kind: int, slot: int, emit: bool) -> None:
            accumulator[0] += 100 * kind + slot + emit

        def retract(self, accumulator: list[int], kind: int, slot: int, emit: bool) -> None:
            accumulator[0] -= 100 * kind + slot + emit

        def merge(self, accumulator: list[int], other: list[int]) -> None:
            accumulator[0] += other[0]

        def get_value(self, accumulator: list[int]) -> int:
            return accumulator[0]

    register(db, connect(OfTheWire))
    table = "VALUES (0, 1Y, 7, true), (0, 3Y, 0, false), (1, 2Y, 5, false) AS t(id, kind, slot, emit)"
    call = "of_the_wire(kind, slot, emit)"
    grouped_statement = f"SELECT id, {call} FROM {table} GROUP BY id"
    assert rows(sql(db, grouped_statement)) == rows(sql(db, grouped_statement, plan="fold")) == [(0, 408), (1, 205)]
    # A block with a subquery is computed over lists, as is one in which plain SQL has the function.
    list_statement = f"SELECT id, {call}, (SELECT max(id) FROM {table}) FROM {table} GROUP BY id"
    assert rows(sql(db, list_statement)) == [(0, 408, 1), (1, 205, 1)]
    ordered_statement = f"SELECT id, of_the_wire(kind, slot, emit ORDER BY slot) FROM {table} GROUP BY id"
    assert rows(sql(db, ordered_statement)) == [(0, 408), (1, 205)]
    over = f"SELECT id, {call} OVER (ORDER BY id, slot ROWS CURRENT ROW) FROM {table} ORDER BY emit DESC"
    assert rows(sql(db, over)) == [(0, 108), (0, 300), (1, 205)]
    if PLAIN_AGGREGATES.has():
        assert rows(db.sql(grouped_statement)) == [(0, 408), (1, 205)]
