"""Statements over changelogs: each counts the rows that are left, or is refused and tells what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.spark import enable, group_by, split_changes, sql
from foldflight.sql import SqlError
from tests.spark_sessions import since_spark
from tests.sql.test_statements import values

REPLACED = "read the rows that are left in their place"
WINDOW = "write the window over the rows that are left.*upserts"
KEPT = "keep the rows that are left"
PART = "without the one that takes it back"


FORMS: tuple[tuple[str, Any], ...] = (
    # Pipes, and FROM before SELECT.
    ("FROM changed |> AGGREGATE sum(v)", "sum of Spark would take .*write SELECT ... FROM"),
    ("FROM changed |> AGGREGATE my_sum(v)", "my_sum would take .*write SELECT ... FROM"),
    ("FROM changed |> AGGREGATE count(*) GROUP BY k", "count of Spark would take"),
    ("FROM changed |> SELECT v |> AGGREGATE sum(v)", "the SELECT, which leaves it out, would take"),
    ("FROM changed |> EXTEND sum(v) OVER () AS s", "sum of Spark would take"),
    ("FROM changed |> PIVOT (sum(v) FOR k IN ('a', 'b'))", "sum of Spark would take"),
    ("FROM changed |> SELECT DISTINCT k", "SELECT would take"),
    ("FROM changed |> EXCEPT TABLE changed", "EXCEPT would take"),
    ("FROM dim |> JOIN changed USING (k) |> AGGREGATE sum(v)", "sum of Spark would take"),
    ("TABLE changed |> AGGREGATE sum(v)", "sum of Spark would take"),
    ("SELECT * FROM changed |> AGGREGATE sum(v)", "sum of Spark would take"),
    ("FROM changed |> WHERE row_kind = '+I' |> AGGREGATE sum(v)", [(13,)]),
    ("FROM changed |> SELECT v |> WHERE v > 5", [(8,)]),
    ("FROM changed SELECT count(*)", "count of Spark would take .*write an aggregate of foldflight"),
    ("FROM changed SELECT my_sum(v)", "the SELECT would take .*so that they retract"),
    ("FROM changed SELECT v SELECT sum(v)", "sum of Spark would take"),
    ("FROM changed SELECT my_sum(v) SELECT my_count(*)", "the SELECT would take .*so that they retract"),
    ("FROM changed SELECT v LIMIT 1 SELECT sum(v)", "sum of Spark would take"),
    ("(SELECT v FROM changed) |> AGGREGATE sum(v)", "the SELECT, which leaves it out, would take"),
    ("SELECT * FROM dim WHERE EXISTS (SELECT 'x', 1, '+I' UNION ALL FROM changed SELECT *)", "EXISTS would take"),
    ("SELECT count(*) FROM dim UNION ALL FROM changed SELECT v WHERE v > 5", [(3,), (8,)]),
    ("FROM changed SELECT sum(if(row_kind = '+I', v, -v))", [(8,)]),
    ("SELECT sum(v) FROM (FROM changed SELECT v)", "the SELECT, which leaves it out, would take"),
    ("SELECT sum(v) FROM (SELECT * EXCEPT (row_kind) FROM changed)", "the SELECT, which leaves it out, would take"),
    ("SELECT (SELECT my_sum(v) FROM changed AS c WHERE c.k = d.k) FROM dim AS d", "the SELECT would take"),
    # What counts or compares rows without the name of an aggregate.
    ("SELECT * FROM changed PIVOT (sum(v) FOR k IN ('a', 'b'))", "PIVOT would take"),
    ("SELECT * FROM changed PIVOT (my_sum(v) FOR k IN ('a', 'b'))", "PIVOT would take"),
    ("SELECT * FROM (SELECT k, v FROM changed) PIVOT (sum(v) FOR k IN ('a', 'b'))", "which leaves it out, would"),
    ("SELECT DISTINCT k FROM changed", f"DISTINCT would take .*{REPLACED}"),
    ("SELECT row_number() OVER (PARTITION BY k ORDER BY v) FROM changed", "row_number of Spark would take"),
    ("SELECT v FROM (SELECT v, rank() OVER (ORDER BY v) AS r FROM changed) WHERE r = 1", "rank of Spark would take"),
    ("FROM changed |> EXTEND lag(v) OVER (ORDER BY v) AS before", "lag of Spark would take"),
    ("SELECT DISTINCT v FROM (SELECT v FROM changed)", "the SELECT, which leaves it out, would take"),
    ("SELECT k FROM changed GROUP BY k", f"GROUP BY would take .*{REPLACED}"),
    ("SELECT DISTINCT row_kind FROM changed ORDER BY 1", [("+I",), ("-D",)]),
    ("SELECT k FROM changed UNION SELECT k FROM dim", "UNION would take"),
    ("SELECT k FROM changed UNION ALL SELECT k FROM dim WHERE w > 2", [("a",), ("a",), ("b",), ("c",)]),
    ("SELECT k FROM dim EXCEPT SELECT k FROM changed", "EXCEPT would take"),
    ("(SELECT k FROM dim) EXCEPT (SELECT k FROM changed)", "EXCEPT would take"),
    ("SELECT k FROM dim INTERSECT SELECT k FROM changed", "INTERSECT would take"),
    # Queries in conditions.
    ("SELECT * FROM dim WHERE k IN (SELECT k FROM changed)", f"IN would take .*{REPLACED}"),
    ("SELECT * FROM dim WHERE k NOT IN (SELECT k FROM changed)", "IN would take"),
    ("SELECT * FROM dim WHERE k IN (SELECT k FROM (SELECT k FROM changed))", "which leaves it out, would take"),
    ("WITH t AS (SELECT k FROM changed) SELECT * FROM dim WHERE k IN (TABLE t)", "which leaves it out, would take"),
    ("SELECT * FROM dim WHERE k IN (FROM changed |> SELECT k)", "IN would take"),
    ("SELECT * FROM dim AS d WHERE EXISTS (SELECT 1 FROM changed AS c WHERE c.k = d.k)", "EXISTS would take"),
    ("SELECT * FROM dim AS d WHERE EXISTS (SELECT * FROM changed AS c WHERE c.k = d.k)", "EXISTS would take"),
    ("SELECT * FROM dim WHERE EXISTS (TABLE changed)", "EXISTS would take"),
    (
        "SELECT k FROM dim AS d WHERE EXISTS (SELECT 1 FROM changed AS c WHERE c.k = d.k AND row_kind = '-D')",
        [("a",)],
    ),
    ("SELECT w = (SELECT v FROM changed LIMIT 1) FROM dim", "the query in an expression would take"),
    ("SELECT (SELECT sum(v) FROM changed AS c WHERE c.k = d.k) FROM dim AS d", "sum of Spark would take"),
    ("SELECT * FROM dim, LATERAL (SELECT sum(v) FROM changed WHERE changed.k = dim.k)", "sum of Spark would take"),
    ("SELECT my_sum(w) FROM dim WHERE k IN (SELECT k FROM changed)", "IN would take"),
    ("SELECT my_sum(w) FROM dim AS d WHERE EXISTS (SELECT 1 FROM changed AS c WHERE c.k = d.k)", "EXISTS would"),
    ("SELECT v FROM (SELECT k, v FROM changed) WHERE k IN (SELECT k FROM dim WHERE w = 2)", [(8,)]),
    # Joins.
    ("SELECT * FROM dim LEFT SEMI JOIN changed USING (k)", f"LEFT SEMI JOIN would take .*{REPLACED}"),
    ("SELECT * FROM dim ANTI JOIN changed USING (k)", "ANTI JOIN would take"),
    ("SELECT my_sum(w) FROM dim LEFT SEMI JOIN changed USING (k)", "LEFT SEMI JOIN would take"),
    ("SELECT * FROM dim LEFT JOIN changed USING (k)", "LEFT JOIN would take"),
    ("SELECT * FROM changed RIGHT OUTER JOIN dim USING (k)", "RIGHT OUTER JOIN would take"),
    ("SELECT * FROM changed FULL JOIN dim USING (k)", "FULL JOIN would take"),
    ("SELECT w FROM dim LEFT JOIN (SELECT k, v FROM changed) USING (k)", "the SELECT, which leaves it out, would take"),
    ("SELECT w FROM (SELECT k FROM changed) RIGHT JOIN dim USING (k)", "the SELECT, which leaves it out, would take"),
    (
        "WITH t AS (SELECT k, v FROM changed), u AS (SELECT k FROM t) SELECT w FROM dim LEFT JOIN u USING (k)",
        "the SELECT, which leaves it out, would take",
    ),
    (
        "SELECT w FROM dim LEFT JOIN LATERAL (SELECT v FROM changed WHERE changed.k = dim.k)",
        "the SELECT, which leaves it out, would take",
    ),
    ("SELECT w FROM dim LEFT JOIN (FROM changed |> SELECT k) USING (k)", "SELECT, which leaves it out, would take"),
    ("SELECT w FROM (dim LEFT JOIN changed USING (k))", "LEFT JOIN would take"),
    ("SELECT d.w FROM dim JOIN ((dim AS d) LEFT JOIN changed USING (k)) USING (k)", "LEFT JOIN would take"),
    ("SELECT w FROM dim LEFT JOIN (SELECT k FROM changed WHERE row_kind = '-D') USING (k)", [(1,), (2,), (3,)]),
    ("WITH t AS (SELECT k, v FROM changed) SELECT v, w FROM t LEFT JOIN dim USING (k)", [(5, 1), (5, 1), (8, 2)]),
    ("SELECT v, w FROM (changed LEFT JOIN dim USING (k))", [(5, 1), (5, 1), (8, 2)]),
    ("SELECT v, w FROM changed LEFT JOIN dim USING (k)", [(5, 1), (5, 1), (8, 2)]),
    ("SELECT v FROM changed LEFT SEMI JOIN dim USING (k)", [(5,), (5,), (8,)]),
    ("SELECT v, w FROM dim JOIN changed USING (k)", [(5, 1), (5, 1), (8, 2)]),
    ("SELECT sum(v) FROM dim JOIN changed USING (k)", "sum of Spark would take"),
    # Window functions, and parts of the rows.
    ("SELECT k, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM changed", f"row_number of Spark .*{WINDOW}"),
    ("SELECT k, row_kind, lag(v) OVER (ORDER BY v) AS n FROM changed", f"lag of Spark .*{WINDOW}"),
    ("SELECT k, row_kind, sum(v) OVER (ORDER BY v) AS n FROM changed", f"sum of Spark .*{WINDOW}"),
    ("SELECT my_sum(v) FROM (SELECT *, rank() OVER (ORDER BY v) AS n FROM changed) WHERE n = 1", "rank of Spark"),
    ("SELECT my_sum(v) FROM (SELECT *, rank() OVER w AS n FROM changed WINDOW w AS (ORDER BY v))", "rank of Spark"),
    ("SELECT sum(n) FROM (SELECT rank() OVER (ORDER BY v) AS n FROM (SELECT v FROM changed))", "which leaves it out"),
    ("FROM changed |> EXTEND row_number() OVER (ORDER BY v) AS n |> WHERE n = 1", f"row_number of Spark .*{WINDOW}"),
    ("SELECT my_sum(v) FROM (FROM changed |> SELECT v, row_kind, rank() OVER (ORDER BY v) AS n)", "rank of Spark"),
    ("SELECT my_sum(v) FROM (SELECT * FROM changed QUALIFY row_number() OVER (ORDER BY v) = 1)", "row_number of Spark"),
    ("SELECT rank() OVER (PARTITION BY row_kind ORDER BY v) AS n FROM changed", [(1,), (1,), (2,)]),
    ("SELECT k, rank() OVER (ORDER BY v) AS n FROM changed WHERE row_kind = '+I'", [("a", 1), ("b", 2)]),
    ("SELECT my_sum(v) FROM (SELECT v, row_kind FROM changed LIMIT 1)", f"LIMIT would take .*{PART}"),
    ("WITH t AS (SELECT * FROM changed ORDER BY v LIMIT 1) SELECT my_sum(v) FROM t", f"LIMIT would take .*{PART}"),
    ("SELECT my_sum(v) FROM (SELECT * FROM changed OFFSET 1)", f"OFFSET would take .*{PART}"),
    ("SELECT * FROM (SELECT * FROM changed LIMIT 1)", f"LIMIT would take .*{PART}"),
    ("(SELECT row_kind, k FROM changed LIMIT 1) UNION ALL SELECT '+I', k FROM dim", f"LIMIT would take .*{PART}"),
    ("SELECT * FROM (SELECT * FROM changed UNION ALL TABLE changed LIMIT 1)", f"LIMIT would take .*{PART}"),
    ("SELECT * FROM (FROM changed SELECT * LIMIT 1)", f"LIMIT would take .*{PART}"),
    ("SELECT * FROM (FROM changed |> LIMIT 1)", f"LIMIT would take .*{PART}"),
    ("CREATE OR REPLACE TEMP VIEW part AS SELECT * FROM changed LIMIT 1", f"LIMIT would take .*{PART}"),
    ("CREATE OR REPLACE TEMP VIEW part AS SELECT k, v FROM changed", f"which leaves it out, would take .*{KEPT}"),
    ("CREATE OR REPLACE TEMP VIEW part AS SELECT * FROM (FROM changed SELECT k, v)", f"which leaves it out, .*{KEPT}"),
    ("CREATE OR REPLACE TEMP VIEW part AS FROM changed |> SELECT k, v", f"which leaves it out, would take .*{KEPT}"),
    ("CREATE OR REPLACE TEMP VIEW part AS SELECT v, row_kind FROM changed", []),
    ("SELECT my_sum(v) FROM changed TABLESAMPLE (50 PERCENT)", f"TABLESAMPLE would take .*{PART}"),
    ("SELECT * FROM (SELECT * FROM dim JOIN changed TABLESAMPLE (9 ROWS) USING (k))", f"TABLESAMPLE would .*{PART}"),
    ("SELECT k FROM (SELECT k FROM changed WHERE row_kind = '-D' LIMIT 1)", [("a",)]),
    ("SELECT v, w FROM changed JOIN (SELECT * FROM dim LIMIT 3) USING (k)", [(5, 1), (5, 1), (8, 2)]),
    ("SELECT k FROM changed ORDER BY k LIMIT 1", [("a",)]),
    ("(SELECT k FROM changed ORDER BY k LIMIT 1)", [("a",)]),
    ("FROM changed |> SELECT k |> ORDER BY k |> LIMIT 1", [("a",)]),
    ("SELECT v FROM changed TABLESAMPLE (100 PERCENT)", [(5,), (5,), (8,)]),
)
"""Each with its rows, or with a part of the error."""
SINCE = {"|>": "4.0", "* EXCEPT": "4.0", "QUALIFY": "4.2"}


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("query", "actual"),
    [
        pytest.param(*form, marks=[since_spark(each, words) for words, each in SINCE.items() if words in form[0]])
        for form in FORMS
    ],
)
def test_each_form_of_statement_counts_the_rows_that_are_left(db: Any, query: str, actual: Any) -> None:
    """Each form is right, or refused where it would take a row that retracts for a row, with what to write."""
    changed(db)
    if isinstance(actual, list):
        assert values(sql(db, query)) == actual
        return
    with pytest.raises(SqlError, match=f"the column row_kind has row kinds, and .*{actual}") as excinfo:
        sql(db, query)
    assert excinfo.value.code == "SIGNATURE"
    assert "option row_kind='row_kind'" in excinfo.value.message
    if "EXCEPT TABLE changed" not in query and "LIMIT 1" not in query:
        sql(db, query, row_kind=None).collect()


@pytest.mark.every_turn
def test_grouping_sets_over_changes_are_refused_with_the_remedy(db: Any) -> None:
    """They are refused with and without the option, and what the error says to write gives the rows that are left."""
    changed(db)
    for sets in ("ROLLUP (k)", "CUBE (k)", "GROUPING SETS ((k), ())", "k WITH ROLLUP", "k WITH CUBE"):
        query = f"SELECT k, my_sum(v) FROM changed GROUP BY {sets}"
        with pytest.raises(SqlError, match="give sql the option row_kind='row_kind', so that they retract"):
            sql(db, query)
        with pytest.raises(SqlError, match="GROUP BY for each of the grouping sets, with UNION ALL between them"):
            sql(db, query, row_kind="row_kind")
    statement = "SELECT k, my_sum(v) FROM changed GROUP BY k UNION ALL SELECT NULL, my_sum(v) FROM changed"
    assert values(sql(db, statement, row_kind="row_kind")) == [("b", 8), (None, 8)]


@pytest.mark.parametrize(
    ("statement", "actual"),
    [
        ("DELETE FROM dim WHERE k IN (SELECT k FROM changed)", "IN"),
        ("DELETE FROM dim AS d WHERE EXISTS (SELECT 1 FROM changed AS c WHERE c.k = d.k)", "EXISTS"),
        ("UPDATE dim SET w = (SELECT sum(v) FROM changed)", "sum of Spark"),
        ("UPDATE dim SET w = (SELECT v FROM changed)", "the query in an expression"),
        ("MERGE INTO dim USING changed ON dim.k = changed.k WHEN MATCHED THEN DELETE", "MERGE"),
        ("MERGE INTO dim USING (TABLE changed) AS c ON dim.k = c.k WHEN MATCHED THEN DELETE", "MERGE"),
        ("MERGE INTO dim USING (SELECT k FROM changed) AS c ON dim.k = c.k WHEN MATCHED THEN DELETE", "leaves it out"),
        ("MERGE INTO dim USING (SELECT sum(v) AS v FROM changed) ON w = v WHEN MATCHED THEN DELETE", "sum of Spark"),
        ("WITH t AS (SELECT sum(v) AS v FROM changed) INSERT INTO dim SELECT 'd', v FROM t", "sum of Spark"),
        ("WITH t AS (SELECT * FROM changed) INSERT INTO dim SELECT k, sum(v) FROM t GROUP BY k", "sum of Spark"),
        ("FROM changed INSERT INTO dim SELECT k, sum(v) GROUP BY k", "sum of Spark"),
        ("MERGE INTO dim USING changed ON dim.k = changed.k WHEN MATCHED AND row_kind = '-D' THEN DELETE", ""),
        ("DELETE FROM dim WHERE k IN (SELECT k FROM changed WHERE row_kind = '-D')", ""),
        ("DELETE FROM dim WHERE w > 1", ""),
    ],
)
def test_changes_do_not_change_tables_as_rows(db: Any, tmp_path: Path, statement: str, actual: str) -> None:
    """Statements that change a table read rows. Spark refuses to change this one, where it takes the changes."""
    changed(db)
    db.sql(f"CREATE TABLE changed_table (k STRING, w INT) USING parquet LOCATION '{tmp_path}'")
    statement = statement.replace("dim", "changed_table")
    try:
        with pytest.raises((AnalysisException, UnsupportedOperationException, SqlError)) as excinfo:
            sql(db, statement)
        assert bool(re.search(f"row_kind has row kinds, and .*{actual},? would take", str(excinfo.value))) is bool(
            actual
        )
        if "INSERT" not in statement:
            with pytest.raises((AnalysisException, UnsupportedOperationException)):
                sql(db, statement, row_kind=None)
    finally:
        db.sql("DROP TABLE changed_table")


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("INSERT INTO kept SELECT k, v FROM changed", None),
        ("INSERT INTO kept (SELECT k, v FROM changed)", None),
        ("INSERT OVERWRITE kept (k, v) SELECT k, v FROM changed JOIN dim USING (k)", None),
        ("INSERT INTO kept SELECT * FROM dim UNION ALL SELECT k, v FROM changed", None),
        ("INSERT INTO kept SELECT k, v FROM (SELECT * FROM changed) WHERE v > 1", None),
        ("INSERT INTO kept WITH t AS (SELECT k, v FROM changed) SELECT * FROM t", None),
        ("INSERT INTO kept FROM changed SELECT k, v", None),
        pytest.param(
            "INSERT INTO kept SELECT * EXCEPT (row_kind) FROM changed", None, marks=since_spark("4.0", "EXCEPT")
        ),
        pytest.param("INSERT INTO kept TABLE changed |> SELECT k, v", None, marks=since_spark("4.0", "|>")),
        pytest.param(
            "CREATE TABLE made USING parquet AS TABLE changed |> SELECT k, v", None, marks=since_spark("4.0", "|>")
        ),
        ("WITH t AS (SELECT * FROM changed) INSERT INTO kept SELECT k, v FROM t", None),
        ("FROM changed INSERT INTO kept SELECT k, v", None),
        ("FROM changed INSERT INTO kept SELECT row_kind, v INSERT INTO kept SELECT k, v", None),
        ("CREATE TABLE made USING parquet AS SELECT k, v FROM changed", None),
        ("CREATE TABLE made USING parquet AS (SELECT k, v FROM changed)", None),
        ("INSERT INTO kept SELECT row_kind, v FROM changed", [("+I", 5), ("+I", 8), ("-D", 5)]),
        (
            "FROM changed INSERT INTO kept SELECT row_kind, v INSERT INTO kept SELECT row_kind, v WHERE v > 5",
            [("+I", 5), ("+I", 8), ("+I", 8), ("-D", 5)],
        ),
        ("INSERT INTO kept SELECT k, if(row_kind = '+I', v, -v) FROM changed", [("a", -5), ("a", 5), ("b", 8)]),
        ("INSERT INTO kept SELECT k, v FROM changed WHERE row_kind = '+I'", [("a", 5), ("b", 8)]),
        ("INSERT INTO kept (SELECT k, my_sum(v) FROM changed GROUP BY k)", [("b", 8)]),
        ("INSERT INTO kept SELECT * FROM dim", [("a", 1), ("b", 2), ("c", 3)]),
    ],
)
def test_tables_keep_kinds_or_rows(db: Any, tmp_path: Path, statement: str, rows: list[Any] | None) -> None:
    """A table without the kinds would have a row that retracts as a row like others, for good."""
    changed(db)
    db.sql(f"CREATE TABLE kept (k STRING, v INT) USING parquet LOCATION '{tmp_path}'")
    try:
        if rows is None:
            with pytest.raises(SqlError, match=f"the SELECT, which leaves it out, would take .*{KEPT}"):
                sql(db, statement)
            assert db.table("kept").count() == 0
            sql(db, statement, row_kind=None)
            result = values(db.table("made" if "made" in statement else "kept"))
            assert result.count(("a", 5)) == 2  # of which one retracts the other
        else:
            sql(db, statement, **({"row_kind": "row_kind"} if "my_sum" in statement else {}))
            assert values(db.table("kept")) == rows
    finally:
        db.sql("DROP TABLE kept")
        db.sql("DROP TABLE IF EXISTS made")


def changed(db: Any) -> None:
    """Make the views `changed`, in which 5 of `a` is taken back and 8 of `b` is left, and `dim`."""
    frame = db.sql("SELECT * FROM VALUES ('a', 5, '+I'), ('a', 5, '-D'), ('b', 8, '+I') AS t(k, v, op)")
    columns = sf.struct(sf.col("k"), sf.col("v"))
    kinds = {"+I": "+I", "-D": "-D"}
    split_changes(frame, op="op", before=columns, after=columns, row_kinds=kinds).createOrReplaceTempView("changed")
    db.sql("SELECT * FROM VALUES ('a', 1), ('b', 2), ('c', 3) AS t(k, w)").createOrReplaceTempView("dim")


LEFT = "(SELECT k, my_count(*) AS n, my_sum(v) AS s FROM changed GROUP BY k)"


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("query", "actual"),
    [
        ("SELECT * FROM dim WHERE k IN (SELECT k FROM changed GROUP BY k HAVING my_count(*) > 0)", [("b", 2)]),
        (f"SELECT * FROM dim WHERE k NOT IN (SELECT k FROM {LEFT})", [("a", 1), ("c", 3)]),
        (f"SELECT * FROM dim AS d WHERE EXISTS (SELECT 1 FROM {LEFT} AS c WHERE c.k = d.k)", [("b", 2)]),
        (f"SELECT k, w, n FROM dim LEFT JOIN {LEFT} USING (k)", [("a", 1, None), ("b", 2, 1), ("c", 3, None)]),
        (f"SELECT * FROM dim LEFT SEMI JOIN {LEFT} USING (k)", [("b", 2)]),
        (f"SELECT DISTINCT k FROM {LEFT}", [("b",)]),
        (f"SELECT k FROM dim EXCEPT SELECT k FROM {LEFT}", [("a",), ("c",)]),
        (f"SELECT sum(s) FROM {LEFT}", [(8,)]),
        ("SELECT w, my_sum(v) FROM dim JOIN changed USING (k) GROUP BY w", [(2, 8)]),
        (f"SELECT k, rank() OVER (ORDER BY s) FROM {LEFT}", [("b", 1)]),
        ("SELECT k, my_sum(v), rank() OVER (ORDER BY my_sum(v)) FROM changed GROUP BY k", [("b", 8, 1)]),
        ("SELECT k, my_sum(v) AS s FROM changed GROUP BY k ORDER BY s LIMIT 1", [("b", 8)]),
        (f"SELECT sum(s) FROM (SELECT * FROM {LEFT} LIMIT 2)", [(8,)]),
        ("SELECT my_sum(v) FROM (SELECT v, row_kind FROM changed)", [(8,)]),
        (f"SELECT w, s FROM dim JOIN {LEFT} USING (k)", [(2, 8)]),
        ("FROM changed SELECT k, my_sum(v) AS s GROUP BY k HAVING my_count(*) > 0 ORDER BY s LIMIT 2", [("b", 8)]),
        (f"FROM (FROM {LEFT} SELECT k, s) SELECT sum(s) WHERE k = 'b'", [(8,)]),
        (
            "SELECT k, my_sum(v) FROM changed GROUP BY k UNION ALL SELECT NULL, my_sum(v) FROM changed",
            [("b", 8), (None, 8)],
        ),
        (
            "SELECT my_sum(v) FILTER (WHERE k = 'a') AS a, my_sum(v) FILTER (WHERE k = 'b') AS b FROM changed",
            [(None, 8)],
        ),
    ],
)
def test_errors_about_changes_say_what_to_write(db: Any, query: str, actual: Any) -> None:
    """The rows that are left are read in the place of changes, in one statement."""
    changed(db)
    assert values(sql(db, query, row_kind="row_kind")) == actual


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "SELECT w, (SELECT my_sum(v) FROM changed AS c WHERE c.k = d.k) AS s FROM dim AS d",
            "cannot retract rows in this statement: it is correlated.*join the aggregated one",
        ),
        (
            "SELECT w, s FROM dim AS d, LATERAL (SELECT my_sum(v) AS s FROM changed AS c WHERE c.k = d.k)",
            "cannot retract rows in this statement: it is correlated.*join the aggregated one",
        ),
        (
            "SELECT a.k, my_sum(a.v) FROM changed AS a JOIN changed AS b USING (k) GROUP BY a.k",
            "names columns of several relations here.*no join of their rows.*JOIN .SELECT k, f",
        ),
        ("SELECT my_sum(v) FROM changed WHERE other = 1", r"^\[UNRESOLVED_COLUMN.*other"),
        ("SELECT my_sum(w) FROM dim", "row_kind='row_kind' names no column of these rows"),
        (
            "FROM changed SELECT my_sum(v) SELECT my_count(*)",
            "cannot retract rows in this statement: it is a query with several SELECTs behind FROM",
        ),
        (
            "SELECT k, my_sum(v) FROM changed GROUP BY ROLLUP (k)",
            "cannot retract rows in this statement: GROUPING SETS.*UNION ALL between them",
        ),
        (
            "SELECT k, my_sum(v) OVER (PARTITION BY k) FROM changed",
            "cannot retract rows in this statement: OVER.*write OVER over its result",
        ),
        (
            "SELECT k, my_sum(v), max_by(v, k) FROM changed GROUP BY k",
            "cannot retract rows in this statement: Spark's max_by.*aggregate of foldflight with a retract",
        ),
        ("SELECT my_sum(v) FROM (SELECT v FROM changed)", "select row_kind there, too, so that aggregates"),
        ("SELECT sum(v) FROM changed", r'register\(spark, functions, {"sum": "my_sum"}\) makes my_sum the sum of'),
        ("SELECT max_by(v, k) FROM changed", "to aggregate the changes themselves$"),
        (
            "SELECT * FROM changed PIVOT (my_sum(v) FOR k IN ('a', 'b'))",
            r"only SELECT retracts, not PIVOT or \|>; write SELECT .*FILTER",
        ),
    ],
)
def test_functions_that_cannot_retract_say_what_to_write(db: Any, query: str, message: str) -> None:
    """With the option given, an error names its cause and another statement, and not the option again."""
    changed(db)
    with pytest.raises(SqlError) as excinfo:
        sql(db, query, row_kind="row_kind")
    assert excinfo.value.code == "SIGNATURE"
    assert re.search(message, excinfo.value.message)
    assert "give sql the option row_kind='" not in excinfo.value.message
    assert "lists have rows" not in excinfo.value.message


@pytest.mark.every_turn
def test_aggregates_of_spark_beside_own_ones_retract(db: Any) -> None:
    """They are foldflight's aggregates then, so that an old value leaves sums, counts and deviations, too."""
    frame = db.sql("SELECT * FROM VALUES (5, '+I'), (5, '-U'), (8, '+U'), (3, '+I'), (3, '-D'), (1, '+I') AS t(v, op)")
    columns, kinds = sf.struct(sf.col("v")), {"+I": "+I", "-U": "-D", "+U": "+I", "-D": "-D"}
    split_changes(frame, op="op", before=columns, after=columns, row_kinds=kinds).createOrReplaceTempView("updated")
    items = "count(*), count(DISTINCT v), sum(v), sum(v) FILTER (WHERE v > 2), avg(v), var_pop(v), bool_and(v > 2)"
    result = values(sql(db, f"SELECT my_count(*), {items} FROM updated", row_kind="row_kind"))
    assert result == values(db.sql(f"SELECT count(*), {items} FROM VALUES (8), (1) AS t(v)"))
    with pytest.raises(SqlError, match=r"CANNOT_RETRACT: min is append-only .*materialize=True"):
        sql(db, "SELECT my_count(*), min(v) FROM updated", row_kind="row_kind")
    result_df = sql(db, "SELECT my_count(*), min(v), max(v) FROM updated", row_kind="row_kind", materialize=True)
    assert values(result_df) == [(2, 1, 8)]


def test_a_join_of_two_changelogs_is_refused(db: Any) -> None:
    """The kind of one of the two rows was taken for the kind of the pair."""
    changed(db)
    other = "(SELECT k, v AS w, row_kind AS other FROM changed)"
    query = f"SELECT k, my_sum(v) AS s FROM changed JOIN {other} USING (k)"
    with pytest.raises(SqlError, match=r"kinds row_kind and other of two changelogs"):
        sql(db, f"{query} GROUP BY k", row_kind="row_kind")
    result_df = sql(db, f"{query} WHERE other = '+I' GROUP BY k", row_kind="row_kind")
    assert values(result_df) == [("b", 8)]
    joined_df = db.sql(f"SELECT * FROM changed JOIN {other} USING (k)")
    count = connect("embedded:")["count"]
    with pytest.raises(RejectedError, match=r"CANNOT_RETRACT: .* row_kind and other of several changelogs"):
        group_by(joined_df, "k", row_kind="row_kind").agg(n=count())
    left = joined_df.where("other = '+I'").drop("other")
    assert values(group_by(left, "k", row_kind="row_kind").agg(n=count())) == [("b", 1)]


@pytest.mark.every_turn
@pytest.mark.parametrize(
    "query",
    [
        "SELECT w FROM dim AS d WHERE w < (SELECT my_sum(v) FROM (SELECT v FROM changed AS c WHERE c.k = d.k))",
        "SELECT my_sum(v) FROM (SELECT TRANSFORM(v) USING 'cat' AS (v INT) FROM changed)",
    ],
)
def test_kinds_below_rows_that_spark_does_not_read_alone_are_looked_at(db: Any, query: str) -> None:
    """Where the rows of a fold cannot be read with the kinds below them, lists would take changes for rows."""
    changed(db)
    with pytest.raises(SqlError, match=r"row_kind has row kinds, and the SELECT, which leaves it out, would take"):
        sql(db, query)


def test_frames_in_braces_are_looked_at_like_views(both: Any) -> None:
    """After `enable`, in Spark Connect, too, where such a statement is Spark's."""
    changed(both)
    rows, dim = both.table("changed"), both.table("dim")
    session = enable(both)
    try:
        for text in ("SELECT sum(v) FROM {t} WHERE v > {x}", "SELECT * FROM {d} WHERE k IN (SELECT k FROM {t})"):
            with pytest.raises(
                RejectedError, match=r"row_kind has row kinds, and (sum of Spark|IN) would take"
            ) as excinfo:
                session.sql(text, t=rows, d=dim, x=1)
            assert excinfo.value.code == "SIGNATURE"
        result = session.sql("SELECT sum(if(row_kind = '+I', v, -v)) AS s, {x} AS x FROM {t}", t=rows, x=1)
        assert values(result) == [(8, 1)]
    finally:
        del session.sql
