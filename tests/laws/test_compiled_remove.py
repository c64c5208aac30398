"""`remove` of lists in compiled code: the first equal item goes, with the order and errors of the interpreter."""

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from foldflight.fold.rows import Column, Rows
from tests.effort import examples
from tests.laws.alike import VALUES, bound_of, folds_alike, interpret, refusal


@udaf
class Times:
    """A retraction of what is not there is an error."""

    def create_accumulator(self) -> list[datetime]:
        return []

    def accumulate(self, acc: list[datetime], at: datetime) -> None:
        acc.append(at)

    def retract(self, acc: list[datetime], at: datetime) -> None:
        acc.remove(at)

    def merge(self, acc: list[datetime], other: list[datetime]) -> None:
        acc.extend(other)

    def get_value(self, acc: list[datetime]) -> int:
        return len(acc)


@udaf
class Numbers:
    """A row may fail after it has removed something, and merge removes in a loop."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, acc: list[int], value: int) -> None:
        if value in acc:
            acc.remove(value)
            acc.append(5 - value)
            if len(acc) > 2:
                raise ValueError("bad luck")
        else:
            acc.append(value)

    def retract(self, acc: list[int], value: int) -> None:
        acc.remove(value)

    def merge(self, acc: list[int], other: list[int]) -> None:
        for value in other:
            if value in acc:
                acc.remove(value)
        acc.extend(other)

    def get_value(self, acc: list[int]) -> int | None:
        return acc[0] if acc else None


@udaf
class PairsByKey:
    """Lists of pairs in a dict, from which a loop removes while it runs."""

    def create_accumulator(self) -> dict[int, list[tuple[str, int]]]:
        return {}

    def accumulate(self, acc: dict[int, list[tuple[str, int]]], text: str, value: int) -> None:
        acc.setdefault(value % 2, []).append((text, value))

    def retract(self, acc: dict[int, list[tuple[str, int]]], text: str, value: int) -> None:
        acc[value % 2].remove((text, value))

    def merge(self, acc: dict[int, list[tuple[str, int]]], other: dict[int, list[tuple[str, int]]]) -> None:
        for key, pairs in other.items():
            mine = acc.setdefault(key, [])
            for pair in mine:
                if pair in pairs:
                    mine.remove(pair)
            mine.extend(pairs)

    def get_value(self, acc: dict[int, list[tuple[str, int]]]) -> int:
        total = 0
        for pairs in acc.values():
            for text, value in pairs:
                total += len(text) + value % 7
        return total


CLASSES = [Times, Numbers, PairsByKey]
# Few values, so that most retractions find theirs.
SAMPLES = {
    **VALUES,
    pa.timestamp("us"): st.one_of(st.integers(0, 3), VALUES[pa.timestamp("us")]),
    pa.int64(): st.integers(0, 3),
    pa.string(): st.sampled_from(["", "a", "a text of more than eight bytes"]),
}


@pytest.mark.every_turn
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(examples(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_states_values_and_errors_equal_those_of_the_interpreter(
    cls: Any, hot: Programs, data: st.DataObject
) -> None:
    bound = bound_of(cls)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), getattr(program, "reason", "")
    assert program.interprets == ""
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, SAMPLES, row_by_row=True)


@pytest.mark.every_turn
def test_the_first_equal_item_is_removed_by_compiled_code(hot: Programs) -> None:
    """Also at the start, in the middle and at the end, of a list that grows on."""
    bound = bound_of(Numbers)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    values = [3, 1, 2, 0, 7, 1, 3, 7, 9, 8, 2]
    retracts = np.array([False] * 5 + [True, True, True, False, False, True])
    for each in (one, other):
        each.update(Rows(np.zeros(len(values), np.int32), retracts, [Column("value", pa.array(values))]))
    assert one.mode == "compiled"
    slots = np.zeros(1, np.int32)
    assert one.state(slots).equals(other.state(slots))
    assert one.state(slots).to_pylist() == [[0, 9, 8]]


@udaf
class Reals:
    """Python finds the object of a NaN, and a record does not know which one it is."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, acc: list[float], value: float) -> None:
        acc.append(value)

    def retract(self, acc: list[float], value: float) -> None:
        acc.remove(value)

    def get_value(self, acc: list[float]) -> int:
        return len(acc)


def test_floats_are_removed_by_the_interpreter(hot: Programs) -> None:
    assert "it removes a float from a list, where Python finds the object of a NaN" in refusal(hot, bound_of(Reals))
