"""Batches with retractions."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from foldflight import RejectedError, connect, udf
from foldflight.spark import (
    from_canal,
    from_debezium,
    from_maxwell,
    group_by,
    over,
    upserts,
    with_columns,
    write_table,
)
from foldflight.spark.errors import error_of
from tests.spark_sessions import SPARK


def changelog(seed: int) -> tuple[list[tuple[str, int, int]], dict[int, Counter[int]]]:
    """Return rows (kind, key, value) of a correct changelog, and the live values of each key."""
    rng = random.Random(seed)
    live: dict[int, Counter[int]] = defaultdict(Counter)
    rows = []
    for _ in range(3_000):
        key = rng.randrange(60)
        values = [value for value, times in live[key].items() if times]
        if values and rng.random() < 0.5:
            value = rng.choice(values)
            live[key][value] -= 1
            rows.append((rng.choice(["-D", "-U"]), key, value))
        else:
            value = rng.randrange(5)
            live[key][value] += 1
            rows.append((rng.choice(["+I", "+U"]), key, value))
    for key in range(50, 60):  # these end without rows
        for value, times in live.pop(key, Counter()).items():
            rows += [("DELETE", key, value)] * times
    return rows, {key: +values for key, values in live.items() if +values}


@pytest.mark.parametrize("function", ["median", "sum"])
def test_groups_have_the_results_of_their_live_rows(spark: Any, functions: Any, function: str) -> None:
    """Groups have the results of their live rows; groups without live rows are absent, in one phase and in two."""
    rows, live = changelog(seed=5)
    df = spark.createDataFrame(rows, "kind string, k int, v bigint").repartition(6)
    result = group_by(df, "k", row_kind="kind").agg(
        o=functions[function]("v"), n=functions["count"](), d=functions["count"]("v").distinct()
    )
    expected = {}
    for key, values in live.items():
        elements = sorted(values.elements())
        expected[key] = (
            elements[len(elements) // 2] if function == "median" else sum(elements),
            len(elements),
            len(values),
        )
    assert {row.k: (row.o, row.n, row.d) for row in result.collect()} == expected


@pytest.mark.parametrize("function", ["median", "sum"])
def test_retractions_without_keys_leave_the_only_group(classic: Any, embedded: Any, function: str) -> None:
    """Without keys the only group stays, also when all its rows are retracted."""
    rows = [("+I", 1), ("+I", 2), ("-D", 1), ("-D", 2)]
    df = classic.createDataFrame(rows, "kind string, v bigint").repartition(4)
    result = group_by(df, row_kind="kind").agg(o=embedded[function]("v"), n=embedded["count"]())
    assert [tuple(row) for row in result.collect()] == [(None, 0)]


def test_a_retraction_of_a_row_that_never_came_is_ignored(classic: Any, embedded: Any) -> None:
    """A retraction for a group without rows is ignored, and other groups are not affected."""
    rows = [("-D", 1, 7), ("+I", 2, 7)]
    df = classic.createDataFrame(rows, "kind string, k int, v bigint")
    result = group_by(df, "k", row_kind="kind").agg(o=embedded["median"]("v"))
    assert [tuple(row) for row in result.collect()] == [(2, 7)]


@pytest.mark.parametrize("plan", ["fold", "lifted"])
def test_a_changelog_may_begin_in_its_middle(spark: Any, functions: Any, plan: str) -> None:
    """A retraction counts only if an equal row is accumulated: in one phase, in two, and where Spark aggregates."""
    rows = [("-U", "ann", 10, 1.0), ("+U", "ann", 40, 1.0)]  # the old row never came
    rows += [("+I", "bob", 1, None), ("+I", "bob", 2, 0.0), ("-D", "bob", 7, 0.0), ("-D", "bob", 2, -0.0)]
    rows += [("-D", "cid", 5, math.nan), ("+I", "cid", 5, math.nan), ("-D", "cid", 5, math.nan)]
    df = spark.createDataFrame(rows, "kind string, k string, v bigint, x double").repartition(3)
    uses = {"total": functions["sum"]("v"), "n": functions["count"]("x")}
    if plan == "fold":
        uses["top"] = functions["median"]("v")
    result = group_by(df, "k", row_kind="kind", plan=plan).agg(**uses)
    expected = [("ann", 40, 1, 40), ("bob", 1, 0, 1)]
    assert sorted(map(tuple, result.collect())) == [each if plan == "fold" else each[:3] for each in expected]
    if plan == "fold":
        del uses["top"]  # whose rows are folded in one phase
        assert sorted(map(tuple, group_by(df, "k", row_kind="kind", plan=plan).agg(**uses).collect())) == [
            each[:3] for each in expected
        ]


@pytest.mark.every_turn
def test_equal_rows_are_counted_and_floats_compared_by_their_bits(classic: Any, embedded: Any) -> None:
    """Spark counts equal rows, and each that is left is one row again, with its own zero."""
    df = classic.sql(
        "SELECT if(id < 140003, '+I', '-D') AS kind, id % 2 AS k, -0D AS x, DATE '2024-01-01' AS day, "
        "array(id % 2) AS list FROM range(140010)"
    )
    expected = [(0, 69_999, 69_999, "-0.0"), (1, 69_997, 69_997, "-0.0")]
    for plan in ("auto", "fold"):
        uses = {"n": embedded["count"](), "m": embedded["count"]("list"), "first": embedded["first"]("x")}
        result = group_by(df, "k", row_kind="kind", plan=plan, materialize=True).agg(**uses)
        assert sorted((row.k, row.n, row.m, str(row["first"])) for row in result.collect()) == expected
    counts = group_by(df, "day", row_kind="kind").agg(n=embedded["count"](), s=embedded["sum"]("k")).collect()
    assert [tuple(row)[1:] for row in counts] == [(139_996, 69_997)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_changelogs_may_begin_in_their_middle(classic: Any, embedded: Any, seed: int) -> None:
    """Groups have the rows that are left of a multiset, in each plan."""
    rng = random.Random(seed)
    kinds = ["+I", "+I", "+U", "-U", "-D"]
    changes = [(rng.choice(kinds), rng.randrange(40), rng.choice([None, 1, 2, 3])) for _ in range(400)]
    left: Counter[Any] = Counter()
    for kind, *row in sorted(changes, key=lambda each: each[0][0]):  # `+` comes before `-`
        left[tuple(row)] = left[tuple(row)] + 1 if kind[0] == "+" else max(left[tuple(row)] - 1, 0)
    expected: dict[int, list[Any]] = defaultdict(list)
    for (key, value), times in left.items():
        expected[key] += [value] * times
    df = classic.createDataFrame(changes, "kind string, k int, v bigint").repartition(5)
    uses = {"n": embedded["count"](), "total": embedded["sum"]("v")}
    for plan in ("lifted", "fold"):
        result = {
            row.k: (row.n, row.total) for row in group_by(df, "k", row_kind="kind", plan=plan).agg(**uses).collect()
        }
        assert result == {
            key: (
                len(values),
                sum(known_numbers) if (known_numbers := [each for each in values if each is not None]) else None,
            )
            for key, values in expected.items()
            if values
        }
    uses["median"] = embedded["median"]("v")
    counts = {row.k: row.n for row in group_by(df, "k", row_kind="kind").agg(**uses).collect()}
    assert counts == {key: len(values) for key, values in expected.items() if values}
    (whole,) = group_by(df, row_kind="kind").agg(n=embedded["count"](), d=embedded["count"]("v").distinct()).collect()
    # Without keys, rows are equal whatever their group was.
    values = Counter({value: 0 for *_, value in changes})
    for kind, _, value in sorted(changes, key=lambda each: each[0][0]):
        values[value] = values[value] + 1 if kind[0] == "+" else max(values[value] - 1, 0)
    assert tuple(whole) == (values.total(), sum(value is not None and times > 0 for value, times in values.items()))


@pytest.mark.every_turn
def test_strict_batches_refuse_a_retraction_without_a_row(classic: Any, embedded: Any) -> None:
    """The error names the group; a changelog without such rows has its result."""
    rows = [("+I", "ann", 1), ("-D", "bob", 2), ("+I", "bob", 2)]
    ddl = "kind string, k string, v bigint"
    for plan in ("fold", "lifted"):
        calls = {"total": embedded["sum"]("v")}
        sound = group_by(classic.createDataFrame(rows, ddl), "k", row_kind="kind", strict=True, plan=plan)
        assert "plan: rows > drop retractions without a row > " in sound.query(**calls).explain()
        assert [tuple(row) for row in sound.agg(**calls).collect()] == [("ann", 1)]
        other = classic.createDataFrame([*rows, ("-U", "ann", 2)], ddl)
        with pytest.raises(PySparkException) as excinfo:
            group_by(other, "k", row_kind="kind", strict=True, plan=plan).agg(**calls).collect()
        error = error_of(excinfo.value)
        assert isinstance(error, RejectedError)
        assert error.code == "CANNOT_RETRACT"
        assert "a row is retracted and no equal row is accumulated" in error.message
        assert "group: k=ann" in error.message
    empty = group_by(classic.createDataFrame([], ddl), row_kind="kind", strict=True)
    assert [row.n for row in empty.agg(n=embedded["count"]()).collect()] == [0]


@pytest.mark.slow
def test_rows_of_any_type_are_compared(classic: Any) -> None:
    """Also those that Spark cannot compare itself, and texts by their bytes and not by their collation."""
    values = {
        "MAP<STRING, DOUBLE>": ("map('a', 1D)", "map('a', 2D)"),
        "STRUCT<m: MAP<INT, INT>>": ("named_struct('m', map(1, 2))", "named_struct('m', map(1, 3))"),
        "ARRAY<DOUBLE>": ("array(0D, double('NaN'))", "array(1D)"),
        "BINARY": ("X'00'", "X'01'"),
        "MAP<STRING, TIMESTAMP>": (
            "map('a', timestamp'2024-01-01 00:00:00.000001')",
            "map('a', timestamp'2024-01-01 00:00:00.000002')",
        ),
        "MAP<BINARY, INT>": ("map(X'00', 1)", "map(X'01', 1)"),
        "ARRAY<STRUCT<`a b`: MAP<INT, MAP<INT, DATE>>>>": (
            "array(NULL, named_struct('a b', map(1, map(2, date'2024-01-01'), 2, NULL)))",
            "array(NULL, named_struct('a b', map(1, map(2, date'2024-01-02'), 2, NULL)))",
        ),
    }
    if SPARK >= (4, 0):
        values["VARIANT"] = ("parse_json('{\"a\": 1}')", "parse_json('{\"a\": 2}')")
        values["STRING COLLATE UTF8_LCASE"] = ("'A'", "'a'")
        values["MAP<INT, STRING COLLATE UTF8_LCASE>"] = ("map(1, 'A')", "map(1, 'a')")
        values["ARRAY<VARIANT>"] = ("array(parse_json('1'))", "array(parse_json('2'))")
    if SPARK >= (4, 1):
        points = (f"st_geomfromwkb(X'0101000000000000000000{each}3f0000000000000040')" for each in ("f0", "f8"))
        values["GEOMETRY(0)"] = tuple(points)
    count = connect("embedded:")["count"]
    for type_, (one, other) in values.items():
        typed_values = [f"CAST({value} AS {type_})" for value in (one, one, other)]
        rows = zip(("'+I'", "'-U'", "'-U'"), typed_values, strict=True)
        union = " UNION ALL ".join(f"SELECT {kind} AS kind, {value} AS v" for kind, value in rows)
        result = group_by(classic.sql(union), row_kind="kind").agg(n=count("v"))
        assert [row.n for row in result.collect()] == [0], type_
        alone = classic.sql(f"SELECT '+I' AS kind, {typed_values[0]} AS v UNION ALL SELECT '-U', {typed_values[2]}")
        result = group_by(alone, row_kind="kind").agg(n=count("v"))
        assert [row.n for row in result.collect()] == [1], type_


def test_append_only_functions_are_refused(classic: Any, embedded: Any) -> None:
    """A function without retract is refused when the query is built."""
    df = classic.createDataFrame([("+I", 1.0)], "kind string, x double")
    with pytest.raises(RejectedError, match="percentile is append-only") as excinfo:
        group_by(df, row_kind="kind").agg(o=embedded["percentile"]("x", fraction=0.5))
    assert excinfo.value.code == "CANNOT_RETRACT"


@pytest.mark.parametrize("function", ["max", "first"])
def test_built_in_functions_are_not_to_be_changed(classic: Any, embedded: Any, function: str) -> None:
    """The error tells what helps, and this does."""
    df = classic.createDataFrame([("+I", 1), ("+I", 5), ("-D", 5)], "kind string, x bigint")
    use = embedded[function]("x")
    with pytest.raises(RejectedError, match=r"append-only .*; let groups keep their rows \(materialize=True\)"):
        group_by(df, row_kind="kind").agg(o=use)
    result = group_by(df, row_kind="kind", materialize=True).agg(o=use)
    assert [row.o for row in result.collect()] == [1]


def test_an_unknown_kind_fails_the_query(classic: Any, embedded: Any) -> None:
    """The error in Spark names an invalid row kind."""
    df = classic.createDataFrame([("+X", 1)], "kind string, v bigint")
    with pytest.raises(Exception, match=r"SCHEMA_MISMATCH: \+X is no row kind.* row_kinds=\{"):
        group_by(df, row_kind="kind").agg(o=embedded["sum"]("v")).collect()
    long = classic.createDataFrame([("x" * 5000, 1)], "kind string, v bigint")
    with pytest.raises(Exception, match=r"SCHEMA_MISMATCH: x{80} is no row kind"):
        group_by(long, row_kind="kind").agg(o=embedded["sum"]("v")).collect()


@pytest.mark.parametrize("code", ["DELETE", "-D", "x"])
def test_a_code_without_a_meaning_fails_the_query(classic: Any, embedded: Any, code: str) -> None:
    """Where codes have meanings, one that is not among them is refused, even if it is the name of a row kind."""
    df = classic.createDataFrame([("c", 1), (code, 1)], "op string, v bigint")
    message = f"SCHEMA_MISMATCH: the row kind 'op' is '{code}', and row_kinds maps only 'c', 'd'; add it there"
    with pytest.raises(PySparkException, match=message) as excinfo:
        group_by(df, row_kind="op", row_kinds={"c": "+I", "d": "-D"}).agg(o=embedded["sum"]("v")).collect()
    error = error_of(excinfo.value)
    assert isinstance(error, RejectedError)
    assert error.code == "SCHEMA_MISMATCH"


def test_a_column_that_cannot_hold_kinds_is_refused_at_once(spark: Any, embedded: Any) -> None:
    """Columns of numbers need `row_kinds`, `row_kinds` need a column, and the column must exist."""
    df = spark.createDataFrame([(1, "a", 5), (2, "a", 5), (1, "b", 7)], "code int, k string, v bigint")
    for input_df, message in (
        ({"row_kind": "code"}, r"'code' is int, and row kinds are texts(?s:.*)row_kinds="),
        ({"row_kind": "cod"}, "cod"),
        ({"row_kinds": {"1": "+I"}}, "give row_kind as well"),
        ({"row_kind": "code", "row_kinds": {"1": "insert it"}}, "insert it"),
    ):
        with pytest.raises(RejectedError, match=message):
            group_by(df, "k", **input_df)
    result = group_by(df, "k", row_kind="code", row_kinds={"1": "+I", "2": "-D"}).agg(o=embedded["sum"]("v"))
    assert [tuple(row) for row in result.collect()] == [("b", 7)]


def changes_of_readers(spark: Any) -> dict[str, Any]:
    """Return one update of an order, 5 and then 8, as each reader of events returns it."""
    old, new = {"customer": "ann", "amount": 5}, {"customer": "ann", "amount": 8}
    texts = {key: str(value) for key, value in new.items()}
    schema = "customer STRING, amount BIGINT"
    values: dict[str, list[dict[str, Any]]] = {
        "debezium": [{"op": "c", "before": None, "after": old}, {"op": "u", "before": old, "after": new}],
        "maxwell": [{"type": "insert", "data": old}, {"type": "update", "data": new, "old": {"amount": 5}}],
        "canal": [
            {"type": "INSERT", "data": [texts | {"amount": "5"}]},
            {"type": "UPDATE", "data": [texts], "old": [{"amount": "5"}]},
        ],
    }
    frames = {
        name: spark.createDataFrame([(json.dumps(each),) for each in events], "value STRING")
        for name, events in values.items()
    }
    row = f"STRUCT<{schema.replace(' ', ':')}>".replace(",:", ",")
    split = spark.createDataFrame(
        [("c", None, ("ann", 5)), ("u", ("ann", 5), ("ann", 8))], f"op STRING, before {row}, after {row}"
    )
    return {
        "debezium": from_debezium(frames["debezium"], schema),
        "maxwell": from_maxwell(frames["maxwell"], schema),
        "canal": from_canal(frames["canal"], schema),
        "split": from_debezium(split),
    }


@pytest.mark.every_turn
@pytest.mark.parametrize("reader", ["debezium", "maxwell", "canal", "split"])
def test_row_kinds_of_readers_are_not_left_out(spark: Any, embedded: Any, reader: str) -> None:
    """Rows that retract were added without a word. Through views, filters and new names the column is known again."""
    rows = changes_of_readers(spark)[reader]
    total = embedded["sum"]("amount")
    renamed_df = rows.where("amount > 0").withColumnRenamed("row_kind", "op").withColumn("more", sf.lit(1))
    for frame, name in ((rows, "row_kind"), (renamed_df, "op")):
        with pytest.raises(RejectedError, match=rf"the column {name} has row kinds.*row_kind='{name}'") as excinfo:
            group_by(frame, "customer")
        assert excinfo.value.code == "SIGNATURE"
        result = group_by(frame, "customer", row_kind=name).agg(total=total).collect()
        assert [tuple(row) for row in result] == [("ann", 8)]
    by_kind = group_by(rows, "row_kind", row_kind=None).agg(n=embedded["count"]()).collect()
    assert sorted(map(tuple, by_kind)) == [("+I", 1), ("+U", 1), ("-U", 1)]
    with pytest.raises(RejectedError, match="the column op has row kinds, and over would take"):
        over(renamed_df, "customer", order_by="amount")
    assert len(over(rows.drop("row_kind"), "customer", order_by="amount").agg(total=total).collect()) == 3


def test_row_kinds_of_streams_are_not_left_out(classic: Any, embedded: Any, tmp_path: Path) -> None:
    """Kinds of `upserts` and of changelogs of our own; updates lack old values, so they are no changelog."""
    source = classic.readStream.format("rate").load().selectExpr("value AS id", "value % 2 AS k", "timestamp AS at")
    upserts_df, count = upserts(source, keys="id", sequence_by="at"), embedded["count"]
    with pytest.raises(RejectedError, match="the column row_kind has row kinds"):
        group_by(upserts_df, "k")
    updates = group_by(upserts_df, "k", row_kind="row_kind").agg(n=count())
    with pytest.raises(RejectedError, match=r"rows that replace others.*row_kind='row_kind'"):
        group_by(updates, "n")
    with pytest.raises(RejectedError, match=r"the kinds of updates.*emit='changelog'") as excinfo:
        group_by(updates, "n", row_kind="row_kind")
    assert excinfo.value.code == "CANNOT_RETRACT"
    changelog = group_by(upserts_df, "k", row_kind="row_kind", emit="changelog").agg(n=count())
    group_by(changelog, "n", row_kind="row_kind").agg(m=count())
    with pytest.raises(RejectedError, match=r"write_table would take.*rename it to row_kind"):
        write_table(
            upserts_df.withColumnRenamed("row_kind", "kind"),
            f"duckdb://{tmp_path}/a.duckdb?table=t",
            keys=["id"],
            checkpoint=tmp_path / "checkpoint",
            create=True,
        )
    assert not (tmp_path / "a.duckdb").exists()


def test_nondeterministic_functions_refuse_renamed_row_kinds(classic: Any) -> None:
    """A row that is taken back would not have the outputs that it was added with."""
    rows = changes_of_readers(classic)["debezium"].withColumnRenamed("row_kind", "op")
    with pytest.raises(RejectedError, match=r"is not deterministic, and the rows are a changelog \(column 'op'\)"):
        with_columns(rows, m=connect(Drawn)["drawn"]("amount"))


@udf(deterministic=False)
class Drawn:
    """A number that differs each time."""

    def eval(self, value: int) -> int:
        return random.randrange(value)


def test_errors_of_other_queries_stay_errors_of_spark(classic: Any) -> None:
    """The text of an error of Spark has the plan, in which our own messages stand that have not been raised."""
    rows = classic.createDataFrame([("+I", "a", 1), ("-D", "a", 2)], "op STRING, k STRING, v LONG")
    functions = connect("embedded:")
    totals = group_by(rows, "k", row_kind="op").agg(n=functions["sum"]("v"))
    with pytest.raises(PySparkException) as excinfo:
        totals.selectExpr("nope").collect()
    assert "UNRESOLVED_COLUMN" in str(excinfo.value)
    assert error_of(excinfo.value) is None
    wrong = classic.createDataFrame([("?", "a", 1)], "op STRING, k STRING, v LONG")
    with pytest.raises(PySparkException) as excinfo:
        group_by(wrong, "k", row_kind="op").agg(n=functions["sum"]("v")).collect()
    assert "is no row kind" in str(error_of(excinfo.value))
