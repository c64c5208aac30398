"""Statements over changelogs: each counts the rows that are left, or is refused and tells what to write."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect
from foldflight.spark import enable, group_by, split_changes, sql
from foldflight.sql import SqlError
from tests.spark_sessions import since_spark
from tests.sql.test_statements import values

REPLACED = "read the rows that are left in their place"


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
    ("FROM changed SELECT count(*)", "count of Spark would take .*write SELECT ... FROM"),
    ("FROM changed SELECT my_sum(v)", "my_sum would take .*write SELECT ... FROM"),
    ("FROM changed SELECT sum(if(row_kind = '+I', v, -v))", [(8,)]),
    ("SELECT sum(v) FROM (FROM changed SELECT v)", "the SELECT, which leaves it out, would take"),
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
)
"""Each with its rows, or with a part of the error."""


@pytest.mark.parametrize(
    ("query", "found"),
    [pytest.param(*form, marks=since_spark("4.0", "|>") if "|>" in form[0] else ()) for form in FORMS],
)
def test_forms_of_statements_over_changes(db: Any, query: str, found: Any) -> None:
    """Each form is right, or refused where it would take a row that retracts for a row, with what to write."""
    changed(db)
    if isinstance(found, list):
        assert values(sql(db, query)) == found
        return
    with pytest.raises(SqlError, match=f"the column row_kind has row kinds, and .*{found}") as refused:
        sql(db, query)
    assert refused.value.code == "SIGNATURE"
    assert "option row_kind='row_kind'" in refused.value.message
    if "EXCEPT TABLE changed" not in query and "LIMIT 1" not in query:
        sql(db, query, row_kind=None).collect()


def changed(db: Any) -> None:
    """Make the views `changed`, in which 5 of `a` is taken back and 8 of `b` is left, and `dim`."""
    frame = db.sql("SELECT * FROM VALUES ('a', 5, '+I'), ('a', 5, '-D'), ('b', 8, '+I') AS t(k, v, op)")
    columns = sf.struct(sf.col("k"), sf.col("v"))
    kinds = {"+I": "+I", "-D": "-D"}
    split_changes(frame, op="op", before=columns, after=columns, row_kinds=kinds).createOrReplaceTempView("changed")
    db.sql("SELECT * FROM VALUES ('a', 1), ('b', 2), ('c', 3) AS t(k, w)").createOrReplaceTempView("dim")


LEFT = "(SELECT k, my_count(*) AS n, my_sum(v) AS s FROM changed GROUP BY k)"


@pytest.mark.parametrize(
    ("query", "found"),
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
    ],
)
def test_what_errors_about_changes_advise(db: Any, query: str, found: Any) -> None:
    """The rows that are left are read in the place of changes, in one statement."""
    changed(db)
    assert values(sql(db, query, row_kind="row_kind")) == found


def test_a_join_of_two_changelogs_is_refused(db: Any) -> None:
    """The kind of one of them was taken for that of the pair."""
    changed(db)
    other = "(SELECT k, v AS w, row_kind AS other FROM changed)"
    query = f"SELECT k, my_sum(v) AS s FROM changed JOIN {other} USING (k)"
    with pytest.raises(SqlError, match=r"kinds row_kind and other of two changelogs"):
        sql(db, f"{query} GROUP BY k", row_kind="row_kind")
    said = sql(db, f"{query} WHERE other = '+I' GROUP BY k", row_kind="row_kind")
    assert values(said) == [("b", 8)]
    joined = db.sql(f"SELECT * FROM changed JOIN {other} USING (k)")
    count = connect("embedded:")["count"]
    with pytest.raises(RejectedError, match=r"CANNOT_RETRACT: .* row_kind and other of several changelogs"):
        group_by(joined, "k", row_kind="row_kind").agg(n=count())
    left = joined.where("other = '+I'").drop("other")
    assert values(group_by(left, "k", row_kind="row_kind").agg(n=count())) == [("b", 1)]


def test_frames_in_braces_are_looked_at_like_views(both: Any) -> None:
    """After `enable`, in Spark Connect, too, where such a statement is Spark's."""
    changed(both)
    rows, dim = both.table("changed"), both.table("dim")
    session = enable(both)
    try:
        for text in ("SELECT sum(v) FROM {t} WHERE v > {x}", "SELECT * FROM {d} WHERE k IN (SELECT k FROM {t})"):
            with pytest.raises(
                RejectedError, match=r"row_kind has row kinds, and (sum of Spark|IN) would take"
            ) as refused:
                session.sql(text, t=rows, d=dim, x=1)
            assert refused.value.code == "SIGNATURE"
        found = session.sql("SELECT sum(if(row_kind = '+I', v, -v)) AS s, {x} AS x FROM {t}", t=rows, x=1)
        assert values(found) == [(8, 1)]
    finally:
        del session.sql
