"""Every built-in function and every example keeps the laws, and the checker finds functions that do not."""

import re
from typing import Any, ClassVar

import numpy as np
import pytest

from examples.euros import TotalInEuros
from examples.gallery.percentile import Percentile
from examples.largest import Largest
from examples.weighted_avg import WeightedAvg
from examples.weighted_mean import WeightedMean
from foldflight import RejectedError, udaf
from foldflight.functions import Function, Registry
from foldflight.testing import check_laws
from foldflight.testing.laws import LAWS
from tests.effort import examples_of

FUNCTIONS = Registry.load([WeightedAvg, WeightedMean, Percentile, Largest, TotalInEuros])

pytestmark = pytest.mark.usefixtures("no_compiler")


# They differ from `var_pop` in what they make of the state only.
OF_MOMENTS = {"stddev", "stddev_pop", "stddev_samp", "var_samp", "variance"}


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=name, marks=pytest.mark.slow if name in OF_MOMENTS else ())
        for name, function in FUNCTIONS.items()
    ],
)
def test_functions_keep_the_laws(function: Function) -> None:
    """All functions of this package and the examples keep all laws."""
    broken_laws = [result for result in check_laws(function, examples=examples_of(40)) if result.passed is False]
    assert broken_laws == []


class Bag:
    """A correct sum."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator.append(value or 0)

    def retract(self, accumulator: list[int], value: int) -> None:
        accumulator.remove(value or 0)

    def merge(self, accumulator: list[int], other: list[int]) -> None:
        accumulator.extend(other)

    def get_value(self, accumulator: list[int]) -> int:
        return sum(accumulator)


SHARED: list[int] = []


def last_removed(self: Any, accumulator: list[int], value: int) -> None:
    accumulator.pop()


def first_only(self: Any, accumulator: list[int], other: list[int]) -> None:
    accumulator.extend(other[:1])


def empty(self: Any, accumulator: list[int]) -> int:
    total = sum(accumulator)
    accumulator.clear()
    return total


def share(self: Any) -> list[int]:
    if len(SHARED) > 500:  # every law adds to it, and what accumulators share is compared up to a thousand members
        SHARED.clear()
    return SHARED


share.__annotations__["return"] = list[int]

BREAKS: dict[str, tuple[str, Any, str]] = {
    "retract undoes accumulate": ("retract", last_removed, "retracted"),
    "merge of parts": ("merge", first_only, "folded separately"),
    "get_value changes nothing": ("get_value", empty, "called twice"),
    "groups are independent": ("create_accumulator", share, "create_accumulator gives all groups the same list"),
    "any split of the rows": ("accumulate", lambda self, a, v: a.append(len(SHARED)) or SHARED.append(1), "became"),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("law", BREAKS)
def test_the_checker_finds_what_breaks_a_law(law: str) -> None:
    """A class that breaks a law is reported with minimal rows."""
    SHARED.clear()
    method_name, method, how = BREAKS[law]
    cls = udaf(input_types=["BIGINT"], result_type="BIGINT", name="wrong")(type("Wrong", (Bag,), {method_name: method}))
    results = {result.law: result for result in check_laws(cls, examples=examples_of(100))}
    assert results[law].passed is False
    assert how in results[law].detail
    assert results[law].detail.startswith("rows [")


def test_the_rows_that_break_a_law_are_few() -> None:
    """The search of hypothesis stops early, and leaves rows that the law does not need."""

    @udaf
    class LastPrice:
        def create_accumulator(self) -> list[float]:
            return [0.0]

        def accumulate(self, last: list[float], price: float, weight: int) -> None:
            last[0] = price * weight

        def merge(self, last: list[float], other: list[float]) -> None:
            last[0] += other[0]

        def get_value(self, last: list[float]) -> float:
            return last[0]

    (broken_laws,) = [result for result in check_laws(udaf(skip_nulls=True)(LastPrice)) if result.passed is False]
    assert broken_laws.law == "merge of parts"
    assert broken_laws.detail.split(";")[0].count("(") == 2, broken_laws.detail


def test_the_checker_uses_given_values_of_an_argument() -> None:
    """All laws that apply, also the laws of compiled and lifted forms, are tried on these values and no others."""

    @udaf
    class Lengths:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, total: int, unit: str, number: int) -> int:
            return total + {"m": 1, "km": 1000}[unit] * (number or 0)

        def get_value(self, total: int) -> int:
            return total

    assert [each.law for each in check_laws(Lengths, examples={"unit": ["m", "km"]}) if each.passed is False] == []
    with pytest.raises(RejectedError, match="examples has values for 'units', and lengths"):
        check_laws(Lengths, examples={"units": ["m"]})


def test_the_checker_compares_vectorised_methods() -> None:
    """Vectorised methods that differ from the scalar ones are reported."""

    class Hasty(Bag):
        def create_accumulator(self) -> int:  # type: ignore[override]
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:  # type: ignore[override]
            return accumulator + (value or 0)

        def get_value(self, accumulator: int) -> int:  # type: ignore[override]
            return accumulator

        def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
            accumulators[slots] += signs * np.ma.filled(values, 0)  # of several rows of one slot, the last

        def get_values(self, accumulators: Any) -> Any:
            return accumulators

        merge = retract = None  # type: ignore[assignment]

    results = {result.law: result for result in check_laws(udaf(Hasty), examples=20)}
    assert results["vectorised methods agree"].passed is False
    assert "the scalar methods, then the vectorised ones" in results["vectorised methods agree"].detail
    assert results["get_value changes nothing"].passed


def test_laws_that_do_not_apply_say_why() -> None:
    """For an append-only function without merge, some laws do not apply."""
    results = {result.law: result for result in check_laws(FUNCTIONS["string_agg"], examples=10)}
    assert set(results) == {law.name for law in LAWS}
    assert results["retract undoes accumulate"].passed is None
    assert results["retract undoes accumulate"].detail == "it has no retract"
    assert "order of rows" in results["merge in any order"].detail


def test_only_functions_have_laws() -> None:
    """A class without @udaf is refused."""
    with pytest.raises(RejectedError, match="decorate it with @udaf"):
        check_laws(Bag)


def test_skip_nulls_is_advised_for_a_function_that_takes_some_nulls() -> None:
    """A function that handles rows of NULLs, and not NULL beside a value, gets the remedy with the rows."""

    @udaf
    class Weighted:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, total: int, value: int, weight: int) -> int:
            return total if value is None else total + value * weight

        def get_value(self, total: int) -> int:
            return total

    broken_laws = [result for result in check_laws(Weighted, examples=30) if result.passed is False]
    assert broken_laws
    hint = r"rows \[.*\] have NULLs, .*: handle them, or declare @udaf\(skip_nulls=True\).*; USER_CODE"
    assert all(re.match(hint, result.detail) for result in broken_laws)


@pytest.mark.parametrize("skip_nulls", [False, True])
def test_check_says_that_a_function_fails_at_nulls(*, skip_nulls: bool) -> None:
    """That breaks no law, because there may be none; but the result says that a query fails at them, and what helps."""

    class Total:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, total: int, value: int) -> int:
            return total + value

        def get_value(self, total: int) -> int:
            return total

    results = {result.law: result for result in check_laws(udaf(skip_nulls=skip_nulls)(Total), examples=10)}
    assert not [result for result in results.values() if result.passed is False]
    nulls = results["rows of NULLs are taken"]
    if skip_nulls:
        assert nulls.passed
        return
    assert nulls.passed is None
    assert "a query fails at NULLs" in nulls.detail
    assert "unsupported operand type(s) for +: 'int' and 'NoneType'" in nulls.detail
    assert "handle them, or declare @udaf(skip_nulls=True)" in nulls.detail


@pytest.mark.parametrize("forgets", ["accumulate", "get_value", ""])
def test_check_says_that_no_row_changes_the_result(forgets: str) -> None:
    """Without a `return`, an accumulator stays as it is, or each result is NULL, and all laws hold."""

    class Total:
        def create_accumulator(self) -> list[int]:
            return [0]

        def accumulate(self, totals: list[int], value: int) -> list[int] | None:
            totals = [totals[0] + value]
            return None if forgets == "accumulate" else totals

        def get_value(self, totals: list[int]) -> int | None:
            return None if forgets == "get_value" else totals[0]

    results = {result.law: result for result in check_laws(udaf(skip_nulls=True)(Total), examples=10)}
    assert not [result for result in results.values() if result.passed is False]
    effect = results["rows change the result"]
    if not forgets:
        assert effect.passed
        return
    assert effect.passed is None
    value = "0" if forgets == "accumulate" else "None"
    assert effect.detail == (
        f"no generated row changes the result, {value}: if accumulate or get_value lacks a `return`, add it; if only "
        "some values matter, give them in examples"
    )


def test_the_checker_finds_a_container_in_the_body_of_a_class() -> None:
    """All accumulators have the same list. A query cannot tell it from a cache, and the law can by its results."""

    class Basket:
        items: ClassVar[list[int]] = []

    class Total:
        def create_accumulator(self) -> Basket:
            return Basket()

        def accumulate(self, basket: Basket, value: int) -> None:
            basket.items.append(value)

        def get_value(self, basket: Basket) -> int:
            return len(basket.items)

    results = {result.law: result for result in check_laws(udaf(skip_nulls=True)(Total), examples=10)}
    result = results["groups are independent"]
    assert result.passed is False
    assert "a list in the body of their class?" in result.detail


def test_states_of_the_laws_are_of_no_earlier_class() -> None:
    """A method that does not find a key has the same error in all laws, also in those that read its states."""

    class Rare:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return {}

        def accumulate(self, counts, value: int) -> None:  # type: ignore[no-untyped-def]
            counts[value] = value

        def get_value(self, counts) -> int:  # type: ignore[no-untyped-def]
            return len(counts) and int(counts["rare"])

    broken = [result for result in check_laws(udaf(skip_nulls=True)(Rare), examples=10) if result.passed is False]
    assert "state stored and loaded" in [result.law for result in broken]
    assert {result.cause for result in broken} == {"USER_CODE: get_value raised KeyError: 'rare'"}
