"""get_value may change its accumulator without an effect, and outputs are computed from the stored state."""

from __future__ import annotations

import collections
import datetime
import decimal
import random
import re
import zoneinfo
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import pytest

from foldflight import connect, udaf
from foldflight.fold.aggregate.readonly_proof import ReadFacts
from foldflight.testing import run_epochs, run_over

KEY = bytes(32)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class IntInFloat:
    """Keeps an int where its state has a float."""

    def create_accumulator(self) -> float:
        return 0

    def accumulate(self, accumulator: float, value: int) -> float:
        return value

    def get_value(self, accumulator: float) -> int:
        return int(accumulator)


@udaf(input_types=["BIGINT"], result_type="STRING")
class IntAsText(IntInFloat):
    def get_value(self, accumulator: float) -> str:  # type: ignore[override]
        return str(accumulator)


class Last:
    """Keeps a value made of the last row, and shows it as text."""

    def accumulate(self, accumulator: Any, value: int) -> Any:
        return self.of(value)

    def of(self, value: int) -> Any:
        raise NotImplementedError

    def get_value(self, accumulator: Any) -> str:
        return repr(accumulator)


@udaf(input_types=["BIGINT"], result_type="STRING")
class DecimalAsText(Last):
    def create_accumulator(self) -> Annotated[decimal.Decimal, "DECIMAL(20, 4)"]:
        return decimal.Decimal(0)

    def of(self, value: int) -> Any:
        return decimal.Decimal(value) / 2


@udaf(input_types=["BIGINT"], result_type="STRING")
class BoolAsText(Last):
    def create_accumulator(self) -> int:
        return 0

    def of(self, value: int) -> Any:
        return value > 0


@udaf(input_types=["BIGINT"], result_type="STRING")
class NumpyAsText(Last):
    def create_accumulator(self) -> dict[str, float]:
        return {}

    def of(self, value: int) -> Any:
        return {"v": np.float64(value)}


@udaf(input_types=["BIGINT"], result_type="STRING")
class Rounded(Last):
    """Its own serialize cuts the digits behind the point."""

    def create_accumulator(self) -> Any:
        return 0.0

    def of(self, value: int) -> Any:
        return value % 100 + 0.5

    def serialize(self, accumulator: Any) -> bytes:
        return str(int(accumulator)).encode()

    def deserialize(self, data: bytes) -> Any:
        return float(data)


@udaf(input_types=["BIGINT"], result_type="STRING")
class Pickled(Last):
    """The pickles of its accumulators lack an attribute."""

    def create_accumulator(self) -> Any:
        return Partly(0)

    def of(self, value: int) -> Any:
        return Partly(value)


class Partly:
    def __init__(self, value: int) -> None:
        self.value = value
        self.cache = value

    def __getstate__(self) -> dict[str, int]:
        return {"value": self.value, "cache": 0}

    def __repr__(self) -> str:
        return f"{self.value} {self.cache}"


def call_of(cls: type) -> Any:
    name = re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower()
    return connect([cls], state_key=KEY)[name]


ZONE = zoneinfo.ZoneInfo("America/New_York")
REPEATED_HOUR = 1730615400  # 01:30, for the second time, after clocks were set back


@dataclass
class Seen:
    last: datetime.datetime | None = None


@udaf(input_types=["BIGINT"], result_type="DOUBLE")
class InRepeatedHour(Last):
    """Keeps a time of a day that came twice, of which Arrow does not store which one it is."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, accumulator: Seen, value: int) -> None:
        accumulator.last = datetime.datetime.fromtimestamp(REPEATED_HOUR + min(value, 0), ZONE).replace(tzinfo=None)

    def get_value(self, accumulator: Seen) -> float | None:  # type: ignore[override]
        return None if accumulator.last is None else accumulator.last.replace(tzinfo=ZONE).timestamp()


LOSSY = [InRepeatedHour, IntInFloat, IntAsText, DecimalAsText, BoolAsText, NumpyAsText, Rounded, Pickled]


@pytest.mark.parametrize("cls", LOSSY, ids=lambda cls: cls.__name__)
def test_a_retracted_output_was_emitted_before(cls: type) -> None:
    """A state may have less than its accumulator: the value that is emitted is the state's, which is known later."""
    call = call_of(cls)
    epochs = run_epochs({"x": call("v")}, [[{"k": 1, "v": 2**53 + 1}], [{"k": 1, "v": -4}]], keys=["k"])
    (_, first), (kind, taken_back), _ = (change for epoch in epochs for change in epoch.changelog)
    assert (kind, taken_back) == ("-U", first)


class Drain:
    """Reads the largest value by removing it, if it is large."""

    def get_value(self, accumulator: Any) -> int:
        largest = max(accumulator)
        if largest > 4:
            accumulator.remove(largest)
        return largest


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class DrainedList(Drain):
    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator.append(value)

    def merge(self, accumulator: list[int], other: list[int]) -> None:
        while other:
            accumulator.append(other.pop())


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class DrainedPickle(DrainedList):
    def create_accumulator(self):  # type: ignore[no-untyped-def]  # its states are pickles
        return []


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class DrainedSelf:
    """The accumulators are the author's instances."""

    values: list[int]

    def __init__(self) -> None:
        self.values = []

    def accumulate(self, value: int) -> None:
        self.values.append(value)

    def merge(self, other: DrainedSelf) -> None:
        self.values += other.values
        other.values.clear()

    def get_value(self) -> int:
        return Drain().get_value(self.values)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class DrainedLock(DrainedPickle):
    """Its accumulators cannot be copied, but have states."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Uncopyable()

    def serialize(self, accumulator: Any) -> bytes:
        return bytes(accumulator)

    def deserialize(self, data: bytes) -> Any:
        return Uncopyable(data)


class Uncopyable(list[int]):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("it has a handle")


DRAINED = [DrainedList, DrainedPickle, DrainedSelf, DrainedLock]


@pytest.mark.parametrize("cls", DRAINED, ids=lambda cls: cls.__name__)
def test_a_get_value_that_changes_its_accumulator_changes_no_other_value(cls: type) -> None:
    """Neither in later rows of OVER, nor in later epochs, nor in the value that is taken back."""
    call = call_of(cls)
    rows = [{"k": 1, "t": index, "v": value} for index, value in enumerate([3, 5, 1, 4, 2])]
    running = run_over({"x": call("v")}, rows, keys=["k"], order_by=["t"])
    assert [row["x"] for row in running] == [3, 5, 5, 5, 5]
    moving_rows = run_over({"x": call("v").rows(-1, 0)}, rows, keys=["k"], order_by=["t"])
    assert [row["x"] for row in moving_rows] == [3, 5, 5, 4, 4]
    epochs = run_epochs({"x": call("v")}, [[row] for row in rows], keys=["k"])
    values = [change for epoch in epochs for change in epoch.changelog]
    assert [(kind, row["x"]) for kind, row in values] == [("+I", 3), ("-U", 3), ("+U", 5)]


@dataclass
class Part:
    values: list[int] = field(default_factory=list)
    total: int = 0

    @property
    def mean(self) -> float:
        return self.total / max(len(self.values), 1)

    @property
    def taken(self) -> int:
        return self.values.pop()


def helper(accumulator: Any) -> Any:
    return sorted(accumulator.values)


def changing_helper(accumulator: Any) -> Any:
    return accumulator.values.sort()


GREAT = 7


class Reads:
    """Methods that only read."""

    def __init__(self) -> None:
        self.limit = 3

    def total(self, accumulator: Part) -> Any:
        return accumulator.total / len(accumulator.values) if accumulator.values else None

    def loop(self, accumulator: Part) -> Any:
        total = 0
        for value in accumulator.values:
            total += value * GREAT
        return total

    def own_list(self, accumulator: Part) -> Any:
        result = []
        for value in accumulator.values:
            if value > self.limit:
                result.append(value)
        return result

    def helped(self, accumulator: Part) -> Any:
        return helper(accumulator)[0]

    def by_method(self, accumulator: Part) -> Any:
        return self.total(accumulator)

    def by_property(self, accumulator: Part) -> Any:
        return accumulator.mean

    def comprehended(self, accumulator: Part) -> Any:
        return sum(value for value in accumulator.values if value > 1)


class Changes:
    """Methods that change their accumulator, or may."""

    def pops(self, accumulator: Part) -> Any:
        return accumulator.values.pop()

    def sets(self, accumulator: Part) -> Any:
        accumulator.total = 1

    def sets_item(self, accumulator: Part) -> Any:
        accumulator.values[0] = 1

    def deletes(self, accumulator: Part) -> Any:
        del accumulator.values[0]

    def in_place(self, accumulator: Part) -> Any:
        values = accumulator.values
        values += [1]
        return values

    def in_place_of_items(self, accumulator: Part) -> Any:
        for each in accumulator.values:
            each += [1]

    def sometimes_own(self, accumulator: Part) -> Any:
        values = [1, *range(2)]
        if values:
            values = accumulator.values
        values.append(1)

    def helped(self, accumulator: Part) -> Any:
        return changing_helper(accumulator)

    def by_method(self, accumulator: Part) -> Any:
        return self.pops(accumulator)

    def by_property(self, accumulator: Part) -> Any:
        return accumulator.taken

    def by_lambda(self, accumulator: Part) -> Any:
        return max((1,), key=lambda _: accumulator.values.pop())

    def by_unknown(self, accumulator: Part) -> Any:
        return collections.deque(accumulator.values)

    def by_walrus(self, accumulator: Part) -> Any:
        return (values := accumulator.values) and values.append(1)

    def by_getattr(self, accumulator: Part) -> Any:
        return getattr(accumulator, "taken")  # noqa: B009

    def own_if_empty(self, accumulator: Part) -> Any:
        values = accumulator.values or []
        values += [1]
        return values

    def own_unless_there(self, accumulator: Part) -> Any:
        values = accumulator.values if accumulator.total else []
        values.append(1)
        return values

    def by_import(self, accumulator: Part) -> Any:
        from heapq import heapify

        heapify(accumulator.values)
        return accumulator.values[0]


@dataclass
class Adding(Part):
    def __add__(self, other: Adding) -> Adding:
        self.total += other.total
        return self


def test_operators_of_the_author_may_change_their_operands() -> None:
    """An operator calls a method without its name; those that dataclasses write only read."""

    def double(_self: object, accumulator: Any) -> Any:
        return (accumulator + accumulator).total

    assert not ReadFacts([Adding], {"values", "total"}).only_reads(double)
    assert ReadFacts([Part], {"values", "total"}).only_reads(double)


@pytest.mark.parametrize(
    ("cls", "name"),
    [(cls, name) for cls in (Reads, Changes) for name in vars(cls) if not name.startswith("_")],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_methods_that_only_read_are_recognised(cls: type, name: str) -> None:
    """So most methods get their accumulators themselves, and those that may change them get copies."""
    proof = ReadFacts([cls, Part], {"values", "total", "limit"})
    assert proof.only_reads(getattr(cls, name)) == (cls is Reads)


def test_reading_a_key_may_add_it() -> None:
    """As in a defaultdict, which accumulators may be whose types are not known."""

    def first(accumulator: Any) -> Any:
        return accumulator[0]

    def by_key(accumulator: Any) -> Any:
        return accumulator["a"]

    assert ReadFacts([], ()).only_reads(by_key)
    assert ReadFacts([], (), adds_missing=True).only_reads(first)
    assert not ReadFacts([], (), adds_missing=True).only_reads(by_key)

    def in_a_text(accumulator: Any) -> Any:
        return "%(a)s" % accumulator  # noqa: UP031

    def by_format(accumulator: Any) -> Any:
        return "{a}".format_map(accumulator)

    for each in (in_a_text, by_format):
        assert not ReadFacts([], (), adds_missing=True).only_reads(each)


def test_special_methods_may_change_their_object() -> None:
    """Written out, they are no operators, whose steps of the code are known."""

    def sets(accumulator: Any) -> Any:
        accumulator.__setitem__("seen", 1)

    def adds(accumulator: Any) -> Any:
        accumulator.__iadd__([1])

    assert not ReadFacts([], ()).only_reads(sets)
    assert not ReadFacts([], ()).only_reads(adds)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Emptied:
    """Its merge takes everything out of the other accumulator."""

    def create_accumulator(self) -> dict[int, int]:
        return {}

    def accumulate(self, accumulator: dict[int, int], value: int) -> None:
        accumulator[value] = accumulator.get(value, 0) + 1

    def merge(self, accumulator: dict[int, int], other: dict[int, int]) -> None:
        while other:
            value, times = other.popitem()
            accumulator[value] = accumulator.get(value, 0) + times

    def get_value(self, accumulator: dict[int, int]) -> int:
        return sum(value * times for value, times in accumulator.items())


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class EmptiedPickle(Emptied):
    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {}


@pytest.mark.parametrize("cls", [Emptied, EmptiedPickle])
@pytest.mark.parametrize("frame", [(-3, 2), (None, 0), (0, None), (-1, 1), (1, 4), (-400, 7)])
def test_a_merge_that_changes_what_it_merges_changes_no_other_value(cls: type, frame: tuple[Any, Any]) -> None:
    """States that several frames share are merged into each of them whole."""
    rng = random.Random(3)
    rows = [{"k": rng.randrange(3), "t": index, "v": rng.randrange(100)} for index in range(2000)]
    result = run_over({"x": call_of(cls)("v").rows(*frame)}, rows, keys=["k"], order_by=["t"])
    low, high = frame
    for key in range(3):
        values = [row["v"] for row in rows if row["k"] == key]
        for index, row in enumerate(row for row in result if row["k"] == key):
            start = 0 if low is None else max(index + low, 0)
            in_frame = values[start:] if high is None else values[start : max(index + high + 1, 0)]
            assert row["x"] == sum(in_frame)
