"""Results of lifted batches that Spark makes itself: they equal `get_value`, and no Python runs."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Annotated, Any

import pytest

from foldflight import connect, udaf
from foldflight.errors import FunctionError
from foldflight.ext.lift.spark import Quotient
from foldflight.spark import group_by
from foldflight.spark.errors import error_of
from tests.laws.lifted_functions import Sums

END = 2**63


class _Mean:
    def create_accumulator(self) -> Sums:
        return Sums()

    def accumulate(self, accumulator, value, weight):
        accumulator.total += value * weight
        accumulator.count += weight

    def merge(self, accumulator, other):
        accumulator.total += other.total
        accumulator.count += other.count


@udaf(input_types=["BIGINT", "BIGINT"], result_type="DOUBLE", skip_nulls=True)
class Mean(_Mean):
    """The exact quotient of two integers, rounded once."""

    def get_value(self, accumulator):
        return None if accumulator.count == 0 else accumulator.total / accumulator.count


@udaf(input_types=["BIGINT", "BIGINT"], result_type="INT", skip_nulls=True)
class WholeMean(_Mean):
    """Its result is cut off, and may not fit."""

    def get_value(self, accumulator):
        if not accumulator.count:
            return None
        return accumulator.total / accumulator.count


@udaf(input_types=["BIGINT", "BIGINT"], result_type="DOUBLE", skip_nulls=True)
class Unguarded(_Mean):
    """Its get_value raises for some groups."""

    def get_value(self, accumulator):
        return accumulator.total / accumulator.count


@udaf(input_types=["INT", "INT"], result_type="BIGINT", skip_nulls=True)
class Weights(_Mean):
    """Its result leaves out a field, which may overflow nevertheless."""

    def get_value(self, accumulator):
        return accumulator.count

    def accumulate(self, accumulator, value, weight):
        accumulator.total += value * 9223372036854775807
        accumulator.count += weight


class Narrow:
    count: int
    most: Annotated[int, "SMALLINT"]

    def __init__(self) -> None:
        self.count = self.most = 0


@udaf(input_types=["INT", "INT"], result_type="BIGINT", skip_nulls=True)
class Unread:
    """Its result leaves out the greatest value, which may not fit its field."""

    def create_accumulator(self) -> Narrow:
        return Narrow()

    def accumulate(self, accumulator, value, weight):
        accumulator.count += weight
        accumulator.most = max(accumulator.most, value)

    def merge(self, accumulator, other):
        accumulator.count += other.count
        accumulator.most = max(accumulator.most, other.most)

    def get_value(self, accumulator):
        return accumulator.count


@udaf(input_types=["BIGINT", "BIGINT"], result_type="BOOLEAN", skip_nulls=True)
class Undefined(_Mean):
    """It compares with a NaN that its constants make, which is the greatest number for Spark."""

    def get_value(self, accumulator):
        return accumulator.count != 0 and accumulator.total / accumulator.count < math.inf - math.inf


@udaf(input_types=["BIGINT", "BIGINT"], result_type="DOUBLE", skip_nulls=True)
class Nested(_Mean):
    """It divides a truth value that depends on a quotient."""

    def get_value(self, accumulator):
        if not accumulator.count:
            return None
        return (accumulator.total / accumulator.count > 2.0) / accumulator.count


@pytest.fixture(scope="module")
def functions() -> Any:
    """The functions of this module."""
    return connect([Mean, WholeMean, Unguarded, Weights, Unread, Undefined, Nested])


def pairs() -> list[tuple[int, int]]:
    """Return dividends and divisors whose quotients are hard to round."""
    chance = random.Random(7)
    number_pairs = [(one, other) for one in _ends() for other in _ends() if other]
    for _ in range(1200):
        divisor = chance.randrange(1, 2 ** chance.randrange(1, 64))
        # Just above, below and at the middle of two floats.
        middle = (2 * chance.randrange(2**52, 2**53) + 1) * divisor
        number_pairs += [(middle // 2 ** chance.randrange(1, 55) + more, divisor) for more in (-1, 0, 1)]
        number_pairs.append((chance.randrange(-END, END), -divisor))
    return [(one, other) for one, other in number_pairs if -END <= one < END]


def _ends() -> list[int]:
    powers = [2**power + more for power in (0, 1, 31, 53, 54, 61, 62) for more in (-1, 0, 1)]
    return [0, END - 1, -END, *powers, *(-each for each in powers)]


def test_quotients_are_rounded_once(spark: Any) -> None:
    """The quotient of any two 64-bit integers is Python's, to the last bit and with its sign."""
    df = spark.createDataFrame(
        [(f"{one}/{other}", one, other) for one, other in pairs()], "k string, a bigint, b bigint"
    )
    each = Quotient("a", "b", 0)
    result = df.selectExpr("*", each.power).selectExpr("a", "b", f"{each.result} AS q")
    wrong = [(a, b, q, a / b) for a, b, q in result.collect() if repr(q) != repr(a / b)]
    assert wrong == []
    # The numbers do test the rounding: another way to divide has other results.
    assert any(float(a) / float(b) != a / b for a, b in pairs())
    assert any(float(Fraction(a, b)) == a / b for a, b in pairs())


def rows() -> list[tuple[Any, ...]]:
    """Return rows of groups with small and large totals, one without weight, one with NULLs."""
    rows_made: list[tuple[Any, ...]] = [(1, 7, 2), (1, -9, 1), (2, 2**62 + 1, 1), (2, 2**61 + 5, 1), (2, 11, 3)]
    rows_made += [
        (3, 5, 4),
        (3, 5, -4),
        (4, None, 1),
        (4, 3, None),
        (5, -(2**63), 1),
        (6, 2**62, 2**31),
        (6, -(2**62), 2**31),
    ]
    rows_made += [(6, 2**40 + 1, 2**20 + 1)]
    return rows_made


def texts_of(df: Any) -> list[str]:
    """Return sorted rows as text."""
    return sorted(map(repr, df.collect()))


@pytest.mark.every_turn
@pytest.mark.parametrize("keys", [["k"], []], ids=str)
def test_spark_makes_results_without_python(spark: Any, functions: Any, keys: list[str]) -> None:
    """They equal the results of a fold; the plan has no Python."""
    df = spark.createDataFrame(rows(), "k int, v bigint, w bigint")
    uses = {
        "mean": functions["mean"]("v", "w").where("k < 6"),
        "whole": functions["whole_mean"]("v", "w").where("k IN (1, 3, 4)"),
        "n": functions["count"]("v"),
        "total": functions["sum"]("w"),
        "most": functions["max"]("v"),
    }
    for part in (df, df.where("k = 99"), df.where("k = 4")):
        uses |= {} if keys else {"mean": functions["mean"]("v", "w").where("k = 2")}
        lifted_df = group_by(part, keys, plan="lifted").agg(**uses)
        assert texts_of(lifted_df) == texts_of(group_by(part, keys, plan="fold").agg(**uses))
    query = group_by(df, keys, plan="lifted").query(**uses)
    assert query.finished_by_host.holds, query.finished_by_host.why
    assert "no Python runs" in query.explain()
    assert "ArrowEval" not in plan_of(spark, lifted_df)
    assert "MapInArrow" not in plan_of(spark, lifted_df)


@pytest.mark.parametrize(("name", "by_host"), [("undefined", True), ("nested", False)])
def test_results_with_nan_and_quotients_equal_those_of_a_fold(
    spark: Any, functions: Any, name: str, by_host: bool
) -> None:
    """No comparison with NaN is true, and what depends on a quotient is not divided by Spark."""
    df = spark.createDataFrame([(1, 7, 2), (2, 1, 4), (3, 5, 0)], "k int, v bigint, w bigint")
    lifted_df = group_by(df, "k", plan="lifted")
    assert lifted_df.query(o=functions[name]("v", "w")).finished_by_host.holds is by_host
    fold_df = group_by(df, "k", plan="fold").agg(o=functions[name]("v", "w"))
    assert texts_of(lifted_df.agg(o=functions[name]("v", "w"))) == texts_of(fold_df)


def plan_of(spark: Any, df: Any) -> str:
    """Return the plan of a query as Spark writes it."""
    df.createOrReplaceTempView("lifted_plan")
    return str(spark.sql("EXPLAIN SELECT * FROM lifted_plan").collect()[0][0])


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("name", "row", "parts"),
    [
        ("whole_mean", (7, 2**40, 1), ("OVERFLOW", "1.099511627776E12 (float), which does not fit INT", "k=7")),
        ("mean", (7, 2**62, 5), ("OVERFLOW", "total: 23058430092136939520 (int) does not fit int64", "k=7")),
        ("unguarded", (7, 2**62, 0), ("USER_CODE", "ZeroDivisionError: accumulator.total", "k=7", "unguarded")),
        ("weights", (7, 2, 5), ("OVERFLOW", "total: 18446744073709551614", "k=7")),
        ("unread", (7, 32768, 5), ("OVERFLOW", "most: 32768 (int) does not fit int16", "k=7")),
    ],
)
def test_spark_raises_errors_of_a_fold_without_python(
    spark: Any, functions: Any, name: str, row: Any, parts: tuple[str, ...]
) -> None:
    """They name what a fold names, and no result leaves out the check of a field that it does not use."""
    # Rows of `createDataFrame` are read by Python workers, whose sockets a failing job may close in their next job.
    number = "INT" if name in ("weights", "unread") else "BIGINT"
    columns = f"INT(nullif(k, -1)) AS k, {number}(nullif(v, -1)) AS v, {number}(nullif(w, -1)) AS w"
    df = spark.sql(f"SELECT {columns} FROM VALUES {row}, (8, 1, 1) AS rows(k, v, w)")
    grouped_df = group_by(df, "k", plan="lifted")
    assert grouped_df.query(o=functions[name]("v", "w")).finished_by_host.holds
    # Not all of them are exceptions of PySpark: Spark 3.5 reports a failed expression by an error of Py4J.
    with pytest.raises(Exception, match=parts[0]) as excinfo:
        grouped_df.agg(o=functions[name]("v", "w")).collect()
    with pytest.raises(Exception, match=parts[0]) as folded:
        group_by(df, "k", plan="fold").agg(o=functions[name]("v", "w")).collect()
    errors = [error_of(each.value) for each in (excinfo, folded)]
    for error in errors:
        assert isinstance(error, FunctionError)
        assert error.code == parts[0]
        assert f"function: {name}" in error.message
    for part in parts[1:]:
        assert part in str(errors[0])
