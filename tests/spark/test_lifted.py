"""Lifted batches: Spark's own aggregations give the results of the fold, for hostile rows too."""

from __future__ import annotations

import decimal
import itertools
import uuid
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from foldflight import connect
from foldflight.errors import FunctionError, RejectedError
from foldflight.ext.lift.descriptions import lift_text
from foldflight.functions import Registry, udaf
from foldflight.spark import group_by
from foldflight.spark.errors import error_of
from tests.laws import lifted_functions as lifted
from tests.spark.spark_functions import Median
from tests.spark_sessions import since_spark

NAN, INF = float("nan"), float("inf")
WHOLE = [2**63 - 1, -(2**63), 2**62, -1, 0, 1, 5, 11, None]
FLOATS = [NAN, INF, -INF, -0.0, 0.0, 5e-324, 0.1, 1.0, 1.7976931348623157e308, None]
TEXTS = ["", "a", "A", "\uffff", "\U0001f600", "skipped", None]
SCHEMA = "k int, v bigint, i int, s smallint, x double, b boolean, t string, row_kind string"


def rows() -> list[tuple[Any, ...]]:
    """Return rows of some groups: each pair of neighbours among the values, and a group of NULLs."""
    cycles = [itertools.cycle(each) for each in (WHOLE, [2**31 - 1, -(2**31), 0, 7], [-(2**15), 3], FLOATS)]
    cycles += [itertools.cycle([True, False, None]), itertools.cycle(TEXTS)]
    rows_made = [(place % 7, *(next(each) for each in cycles)) for place in range(140)]
    # The same number with both signs: totals that only exact sums hold.
    rows_made += [(8, sign * (2**62 + 5), 2**31 - 1, 7, 0.5, True, "z") for sign in (1, 1, 1, -1, -1, -1)]
    rows_made += [(9, None, None, None, None, None, None)] * 2
    return [(*row, "+I") for row in rows_made]


@pytest.fixture(scope="module")
def functions() -> Any:
    """Functions of which all are lifted, and one that is not."""
    return connect([*lifted.LIFTED, Median])


def calls(functions: Any) -> dict[str, Any]:
    """Return calls of everything that lifts, whose totals fit their states."""
    return {
        "conditions": functions["conditions"]("i", "b"),
        "narrow": functions["narrow"]("i", "s").where("i IS NOT NULL AND s IS NOT NULL"),
        "present": functions["present"]("i"),
        "products": functions["products"]("v", "i").where("k >= 8 AND v IS NOT NULL"),
        "spread": functions["spread"]("v"),
        "guarded": functions["guarded"]("x", "v"),
        "quotients": functions["quotients"]("x"),
        "longest": functions["longest"]("t"),
        "pairs": functions["pairs"]("i", factor=-7),
        "own": functions["own"]("v"),
        "n": functions["count"](),
        "some": functions["count"]("v").where("x > 0"),
        "total": functions["sum"]("i"),
        "mean": functions["avg"]("v"),
        "least": functions["min"]("x"),
        "greatest": functions["max"]("x"),
        "last": functions["max"]("t"),
        "every": functions["bool_and"]("b"),
        "any": functions["bool_or"]("b"),
    }


def texts_of(actual: Any) -> list[str]:
    """Return rows as text, sorted; NaN is equal to itself, and zeros have no sign."""
    return sorted(
        repr(tuple(each + 0.0 if isinstance(each, float) else each for each in row)) for row in actual.collect()
    )


@pytest.mark.every_turn
@pytest.mark.parametrize("keys", [["k"], pytest.param(["x", "t"], marks=pytest.mark.slow), []], ids=str)
def test_lifted_rows_have_the_results_of_folded_rows(spark: Any, functions: Any, keys: list[str]) -> None:
    """They are equal with and without keys, for all kinds of fields, with FILTER and direct arguments."""
    df = spark.createDataFrame(rows(), SCHEMA)
    results = [texts_of(group_by(df, keys, plan=plan).agg(**calls(functions))) for plan in ("fold", "lifted")]
    assert results[0] == results[1]
    empty = [
        texts_of(group_by(df.where("k > 99"), keys, plan=plan).agg(**calls(functions))) for plan in ("fold", "lifted")
    ]
    assert empty[0] == empty[1]


@pytest.mark.slow
def test_lifted_rows_have_the_same_results_in_other_settings(spark: Any, functions: Any) -> None:
    """They are equal without ANSI mode, in which arithmetic wraps, and with code that Spark generates."""
    df = spark.createDataFrame(rows(), SCHEMA)
    expected = texts_of(group_by(df, "k", plan="fold").agg(**calls(functions)))
    for name, value in (("spark.sql.ansi.enabled", "false"), ("spark.sql.codegen.wholeStage", "true")):
        before = spark.conf.get(name)
        spark.conf.set(name, value)
        try:
            assert texts_of(group_by(df, "k", plan="lifted").agg(**calls(functions))) == expected
        finally:
            spark.conf.set(name, before)


def test_lifted_retractions_equal_folded_ones(spark: Any, functions: Any) -> None:
    """Row kinds are signs of the sums, and a group without a live row is dropped."""
    rows_with_kinds = [(*row[:-1], "-D" if place % 5 == 1 else "+I") for place, row in enumerate(rows()) if row[0] < 8]
    df = spark.createDataFrame(
        [*rows_with_kinds, (20, 1, 1, 1, 1.0, True, "t", "+I"), (20, 1, 1, 1, 1.0, True, "t", "-U")], SCHEMA
    )
    uses = {name: calls(functions)[name] for name in ("conditions", "n", "some", "total", "mean", "every", "any")}
    results = [texts_of(group_by(df, "k", row_kind="row_kind", plan=plan).agg(**uses)) for plan in ("fold", "lifted")]
    assert results[0] == results[1]


@pytest.mark.every_turn
def test_lifted_sums_of_decimals_are_exact(spark: Any, functions: Any) -> None:
    """Sums are exact to 38 digits, also of numbers that Spark would round if it changed their signs."""
    text = "1234567890" * 3 + "1234"
    wide = [decimal.Decimal(each) for each in (f"{text}.678", f"-{text[::-1]}.321", f"{text}.999", "0.001")]
    rows_made = [
        (place % 3, wide[place % 4], decimal.Decimal(place - 40).scaleb(-2), None if place % 7 else True, kind)
        for place in range(84)
        for kind in (["+I", "+U", "-D"] if place % 5 == 0 else ["+I"])
    ]
    df = spark.createDataFrame(rows_made, "k int, w decimal(38, 3), d decimal(12, 2), b boolean, row_kind string")
    for options, names in (({}, ("w", "d")), ({"row_kind": "row_kind"}, ("d",))):
        uses = {f"sum_{name}": functions["sum"](name) for name in names}
        uses["mean"] = functions["avg"]("d")
        uses["some"] = functions["sum"](names[0]).where("b")
        if not options:
            uses |= {name: functions[name]("b") for name in ("min", "max")}
        keys = ["k"] if options else []
        results = [texts_of(group_by(df, keys, plan=plan, **options).agg(**uses)) for plan in ("fold", "lifted")]
        assert results[0] == results[1]
        assert group_by(df, keys, **options).query(**uses).lift_choice.holds
    lift_choice = group_by(df, "k", row_kind="row_kind").query(o=functions["sum"]("w")).lift_choice
    assert "more than 34 digits" in lift_choice.why
    large = group_by(df.selectExpr("k", "cast(9e34 as decimal(38, 3)) AS w"), "k", plan="lifted")
    with pytest.raises(PySparkException) as excinfo:
        large.agg(o=functions["sum"]("w")).collect()
    error = error_of(excinfo.value)
    assert isinstance(error, FunctionError)
    assert error.code == "OVERFLOW"
    assert "plan='fold' holds more" in error.message  # and not that ANSI mode can be turned off


class Prices:
    """A sum of DECIMALs with fewer digits than Spark's."""

    total: Annotated[decimal.Decimal, "DECIMAL(10, 2)"]

    def __init__(self) -> None:
        self.total = decimal.Decimal(0)


@udaf(input_types=["DECIMAL(12, 2)"], result_type="DECIMAL(6, 2)", skip_nulls=True)
class SumOfPrices:
    """Add up prices."""

    def create_accumulator(self) -> Prices:
        return Prices()

    def accumulate(self, prices: Prices, price: decimal.Decimal) -> None:
        prices.total += price

    def merge(self, prices: Prices, other: Prices) -> None:
        prices.total += other.total

    def get_value(self, prices: Prices) -> decimal.Decimal:
        return prices.total


@pytest.mark.every_turn
def test_spark_finishes_sums_of_decimals(spark: Any) -> None:
    """No Python runs; a total that does not fit the state or the result is the error of a fold."""
    functions = connect(SumOfPrices)
    function = functions["sum_of_prices"]
    prices = "VALUES (1, 1.25), (1, -3.00), (2, NULL), (3, {}), (3, {}) AS prices(k, price)"
    df = spark.sql(f"SELECT k, CAST(price AS DECIMAL(12, 2)) AS price FROM {prices.format(5000, 4999.99)}")
    for rows, keys in ((df, ["k"]), (df, []), (df.where("false"), []), (df.where("false"), ["k"])):
        assert group_by(rows, keys).query(o=function("price")).finished_by_host.holds
        results = [texts_of(group_by(rows, keys, plan=plan).agg(o=function("price"))) for plan in ("fold", "lifted")]
        assert results[0] == results[1]
    thirds = spark.sql(f"SELECT CAST('0.{'3' * 38}' AS DECIMAL(38, 38)) AS third FROM range(3)")
    total = group_by(thirds, [], plan="lifted").agg(o=functions["sum"]("third"))
    assert texts_of(total) == [f"(Decimal('0.{'9' * 38}'),)"]
    for price, what in ((5000, "Decimal, which does not fit"), (99_999_999, "total: 199999998.00")):
        large = spark.sql(f"SELECT k, CAST(price AS DECIMAL(12, 2)) AS price FROM {prices.format(price, price)}")
        for plan in ("fold", "lifted"):
            with pytest.raises(PySparkException) as excinfo:
                group_by(large, "k", plan=plan).agg(o=function("price")).collect()
            error = error_of(excinfo.value)
            assert isinstance(error, FunctionError)
            assert error.code == "OVERFLOW"
        assert what in error.message
        assert "group: k=3" in str(excinfo.value)


def test_names_of_settings_in_braces_are_not_replaced(spark: Any, functions: Any) -> None:
    """Spark puts the value of a setting into a text of SQL; a column keeps its name."""
    name = "${spark.app.name}"
    df = spark.range(3).withColumnRenamed("id", name)
    for plan in ("fold", "lifted"):
        counts = group_by(df, name, plan=plan).agg(functions["count"]().alias("n $" + name[1:]))
        assert counts.columns == [name, "n $" + name[1:]]
        assert counts.count() == 3


def test_a_total_that_does_not_fit_is_an_error(spark: Any, functions: Any) -> None:
    """Of the state, with the group, as in a fold."""
    df = spark.createDataFrame([(7, 2**63 - 1, 5)], "k int, v bigint, i bigint")
    with pytest.raises(Exception, match="OVERFLOW") as excinfo:
        group_by(df, "k", plan="lifted").agg(o=functions["products"]("v", "i")).collect()
    assert "group: k=7" in str(excinfo.value)


def test_a_row_that_raises_is_an_error(spark: Any, functions: Any) -> None:
    """The error names the author's line, the group and the row."""
    df = spark.createDataFrame([(7, None, 2)], "k int, v bigint, i bigint")
    with pytest.raises(Exception, match="USER_CODE") as excinfo:
        group_by(df, "k", plan="lifted").agg(o=functions["products"]("v", "i")).collect()
    for part in ("lifted_functions.py:", "function: products", "group: k=7", "row: v=NULL, i=2"):
        assert part in str(excinfo.value)


@since_spark("4.0", "COLLATE")
def test_texts_with_collations_are_compared_by_their_bytes(classic: Any, functions: Any) -> None:
    """As Python compares them: a constant of the class differs in its case, and 'b' is after 'C'."""
    texts = classic.sql("SELECT t COLLATE UTF8_LCASE AS t FROM VALUES ('C'), ('b') AS v(t)")
    collated_df = classic.sql("SELECT t COLLATE UTF8_LCASE AS t FROM VALUES ('SKIPPED'), ('skipped') AS v(t)")
    for rows_, text in ((texts, "b"), (collated_df, "SKIPPED")):
        for plan in ("fold", "lifted"):
            assert texts_of(group_by(rows_, [], plan=plan).agg(o=functions["longest"]("t"))) == [repr((text,))]


def test_explain_says_why_a_query_is_lifted_or_not(
    spark: Any, functions: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`auto` lifts unless there are many groups or a function does not lift; `explain` says why."""
    df = spark.createDataFrame(rows(), SCHEMA)

    def choice_of(**options: Any) -> str:
        group_by(df, "k", **options).explain(n=functions["count"](), p=functions["spread"]("v"))
        return capsys.readouterr().out

    n = {"n": functions["count"]()}
    assert group_by(df, "k").query(**n).lift_choice.holds
    assert "  rows are not lifted: plan='fold'" in choice_of(plan="fold")
    assert "by the host (in" not in choice_of(plan="fold")
    assert "      folded: by the host (in Python: vectorised)\n" in choice_of(plan="lifted")
    assert "spread has no merge" in choice_of()
    assert "  rows are lifted: plan='lifted'" in choice_of(plan="lifted")
    assert not group_by(df, "k", groups=2_000_000).query(**n).lift_choice.holds
    assert group_by(df, "k", groups=100).query(**n).lift_choice.holds
    median = group_by(df, "k").query(**n, m=functions["median"]("v"))
    assert not median.lift_choice.holds
    assert "median is not lifted" in median.explain()
    positive = group_by(df, "k").query(o=functions["positive"]("v")).lift_choice
    assert not positive.holds
    assert "raises for some rows" in positive.why


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"plan": "quick"}, "plan is 'auto', 'fold' or 'lifted'"),
        ({"groups": -1}, "groups is a number of groups"),
        ({"plan": "lifted", "on_error": "isolate"}, "errors are isolated"),
    ],
)
def test_mistakes_in_the_argument_plan_are_refused(spark: Any, functions: Any, options: Any, why: str) -> None:
    """They are refused with the reason."""
    df = spark.createDataFrame(rows(), SCHEMA)
    with pytest.raises(RejectedError, match=why):
        group_by(df, "k", **options).agg(n=functions["count"]())


def test_a_description_that_is_not_of_the_call_is_refused(
    classic: Any, functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server cannot put SQL of its own into the session; a fold does without what it says of lifting."""
    text = lift_text(Registry()["sum"].bind([pa.decimal128(9, 2)], {}))
    sql = "decimal128(38, 0)) + (SELECT 7) + CAST(0 AS DECIMAL(38, 2)"
    monkeypatch.setattr(
        "foldflight.client.embedded_transport.lift_text", lambda _: text.replace("decimal128(9, 2)", sql)
    )
    df = classic.sql("SELECT 1 AS k, CAST(1.25 AS DECIMAL(9, 2)) AS d")
    with pytest.raises(RejectedError, match="sum is lifted by something that is not of this call") as excinfo:
        group_by(df, "k").agg(o=functions["sum"]("d"))
    assert excinfo.value.code == "BAD_FRAME"
    assert texts_of(group_by(df, "k", plan="fold").agg(o=functions["sum"]("d"))) == ["(1, Decimal('1.25'))"]


def test_statistics_of_tables_tell_the_number_of_groups(spark: Any, functions: Any) -> None:
    """With Spark's cost-based optimizer and analysed columns; without them nothing is known."""
    table = f"flat_{uuid.uuid4().hex}"
    calls = {"n": functions["count"]()}
    spark.range(600_000, numPartitions=1).selectExpr("id AS k", "id % 3 AS few").write.saveAsTable(table)
    try:
        rows = spark.table(table)
        spark.conf.set("spark.sql.cbo.enabled", "true")
        assert group_by(rows, "k").query(**calls).groups is None
        spark.sql(f"ANALYZE TABLE {table} COMPUTE STATISTICS FOR COLUMNS k, few").collect()
        rows = spark.table(table)
        many = group_by(rows, "k").query(**calls)
        assert not many.lift_choice.holds
        assert "groups (ANALYZE TABLE), for which a fold is faster" in many.lift_choice.why
        few = group_by(rows, "few").query(**calls)
        assert few.lift_choice.holds
        assert "ANALYZE TABLE tells that there are not" in few.lift_choice.why
        spark.conf.set("spark.sql.cbo.enabled", "false")
        assert group_by(rows, "k").query(**calls).groups is None
    finally:
        spark.conf.set("spark.sql.cbo.enabled", "false")
        spark.sql(f"DROP TABLE {table}")
