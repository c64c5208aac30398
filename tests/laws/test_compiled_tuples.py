"""Tuples that may be None, in compiled code: rows, states, values and errors are those of the interpreter."""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from tests.effort import examples
from tests.laws.alike import EQUAL_OFTEN, bound_of, folds_alike, interpret


class Tick(NamedTuple):
    """A price at a time."""

    at: datetime
    price: float
    note: str = "-"

    @property
    def double(self) -> float:
        return self.price * 2

    def above(self, limit: float) -> bool:
        return self.price > limit


@dataclass
class Candle:
    first: Tick | None = None
    last: Tick | None = None
    highest: tuple[float, str] | None = None
    count: int = 0


@udaf
class Candles:
    """Typed states. One row in some has an error after it has changed the accumulator."""

    def create_accumulator(self) -> Candle:
        return Candle()

    def accumulate(self, acc: Candle, at: datetime, price: float, name: str) -> None:
        tick = Tick(at, price)
        if acc.first is None or tick.at < acc.first.at:
            acc.first = tick
        if not acc.last or at >= acc.last.at:
            acc.last = Tick(at, price, name) if price > 0 else tick
        if acc.highest is None or (price, name) > acc.highest:
            acc.highest = (price, name)
        acc.count += 1
        if name == "b":
            acc.first = None
            acc.highest = None
        if price == 1.5:
            raise ValueError("one and a half")

    def retract(self, acc: Candle, at: datetime, price: float, name: str) -> None:
        acc.first = acc.last
        if acc.last is not None:
            acc.last = acc.last._replace(price=acc.last.double, note=name)
        if acc.highest is not None:
            high, text = acc.highest
            acc.highest = (high - price, text + name)

    def merge(self, acc: Candle, other: Candle) -> None:
        if other.first is not None and (acc.first is None or other.first.at < acc.first.at):
            acc.first = other.first
        acc.last = other.last if acc.last is None else acc.last
        if acc.highest is None or (other.highest is not None and other.highest[0] > acc.highest[0]):
            acc.highest = other.highest
        acc.count += other.count

    def get_value(self, acc: Candle) -> str:
        if acc.first is None:
            return "none" if acc.last is None else f"{acc.last.price:.1f}{acc.last.note}"
        above = acc.last is not None and acc.last.above(acc.first.double)
        return f"{acc.first.at:%Y} {acc.first.note} {above} {acc.highest is None} {acc.count}"


@udaf
class LatestOfDict:
    """A dict with fixed keys, one of which is a pair after the first row; the states are pickles."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"best": None, "count": 0}

    def accumulate(self, acc, at: datetime, name: str):  # type: ignore[no-untyped-def]
        acc["count"] += 1
        if acc["best"] is None or at > acc["best"][0]:
            acc["best"] = (at, name)

    def retract(self, acc, at: datetime, name: str):  # type: ignore[no-untyped-def]
        if acc["best"] == (at, name):
            acc["best"] = None

    def merge(self, acc, other):  # type: ignore[no-untyped-def]
        if other["best"] is not None and (acc["best"] is None or other["best"][0] > acc["best"][0]):
            acc["best"] = other["best"]
        acc["count"] += other["count"]

    def get_value(self, acc) -> str | None:  # type: ignore[no-untyped-def]
        return acc["best"][-1] if acc["best"] else None


class Ends:
    """Attributes without annotations; one of them is an object with such an attribute."""

    def __repr__(self) -> str:
        return f"{self.low} {self.high} {vars(self.inner)}"

    def __init__(self) -> None:
        self.low = None
        self.high = None
        self.inner = Inner()


class Inner:
    def __init__(self) -> None:
        self.pair = None
        self.total = 0.0


@udaf
class LowAndHigh:
    """NamedTuples and pairs in attributes, also of an object within the accumulator, that are copied and unpacked."""

    def create_accumulator(self) -> Ends:
        return Ends()

    def accumulate(self, acc: Any, at: datetime, price: float, name: str) -> None:
        acc.low = Tick(at, price, name) if acc.low is None or price < acc.low.price else acc.low
        high = acc.high
        if high is None or high.price < price:
            acc.high = Tick(at, price, name)
        acc.inner.pair = (price, acc.inner.total)
        acc.inner.total += price
        if name == "a":
            _, before = acc.inner.pair
            acc.inner.total = before
        if not acc.high:
            acc.inner.pair = None

    def retract(self, acc: Any, at: datetime, price: float, name: str) -> None:
        acc.low, acc.high = acc.high, acc.low
        acc.inner.total -= acc.inner.pair[0]

    def merge(self, acc: Any, other: Any) -> None:
        if other.low is not None:
            acc.low = other.low
        acc.inner.pair = other.inner.pair

    def get_value(self, acc: Any) -> float | None:
        if acc.low is None or acc.inner.pair is None:
            return None
        return float(acc.low.price + acc.inner.pair[1])


@udaf
class InList:
    """A list whose first item is None at first."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return [None, 0]

    def accumulate(self, acc, count: int, name: str):  # type: ignore[no-untyped-def]
        acc[1] += 1
        if acc[0] is None or count > acc[0][0]:
            acc[0] = (count, name, acc[1])

    def merge(self, acc, other):  # type: ignore[no-untyped-def]
        if acc[0] is None:
            acc[0] = other[0]
        acc[1] += other[1]

    def get_value(self, acc) -> int | None:  # type: ignore[no-untyped-def]
        return None if acc[0] is None else acc[0][0] + acc[0][2]


@dataclass
class Whole:
    pair: tuple[float, int] | None = None
    total: float = 0.0


@udaf
class Wholes:
    """The first pair, which `or` chooses in merge."""

    def create_accumulator(self) -> Whole:
        return Whole()

    def accumulate(self, acc: Whole, count: int, price: float | None) -> None:
        if acc.pair is None:
            acc.pair = (price, count)  # type: ignore[assignment]  # NULL is an error, when the state is written
        acc.total += price or 0.0

    def merge(self, acc: Whole, other: Whole) -> None:
        acc.pair = acc.pair or other.pair
        acc.total += other.total

    def get_value(self, acc: Whole) -> float:
        return acc.total if acc.pair is None else float(acc.pair[1])


@udaf
class Smoothed:
    """An accumulator that is None at first, and then a pair; the states are pickles."""

    def __init__(self) -> None:
        self.alpha = 0.3

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return None

    def accumulate(self, acc, price: float | None):  # type: ignore[no-untyped-def]
        if price is None:
            return acc
        if acc is None:
            return (price, 1)
        mean, count = acc
        if price == 1.5:
            return None
        return (self.alpha * price + (1 - self.alpha) * mean, count + 1)

    def merge(self, acc, other):  # type: ignore[no-untyped-def]
        if acc is None:
            return other
        if other is None:
            return acc
        return ((acc[0] * acc[1] + other[0] * other[1]) / (acc[1] + other[1]), acc[1] + other[1])

    def get_value(self, acc) -> float | None:  # type: ignore[no-untyped-def]
        return None if acc is None else acc[0]


@udaf
class Newest:
    """The same with a NamedTuple and an annotation: None is stored if accumulate returns it."""

    def create_accumulator(self) -> Tick | None:
        return None

    def accumulate(self, acc: Tick | None, at: datetime, price: float, name: str) -> Tick | None:
        if name == "b":
            return None
        if acc is None or at > acc.at:
            return Tick(at, price, name)
        return acc._replace(price=acc.double)

    def retract(self, acc: Tick | None, at: datetime, price: float, name: str) -> Tick | None:
        return acc if acc and acc.above(price) else None

    def merge(self, acc: Tick | None, other: Tick | None) -> Tick | None:
        return max(acc, other) if acc is not None and other is not None else other

    def get_value(self, acc: Tick | None) -> str:
        return "none" if acc is None else f"{acc.at:%Y} {acc.price:.2f} {acc.note}"


@udaf
class Compared:
    """Each comparison of pairs, of which the second members decide if the first ones are equal."""

    def create_accumulator(self) -> Whole:
        return Whole()

    def accumulate(self, acc: Whole, count: int, price: float) -> None:
        # Rows that are folded twice here have the same object of a NaN, which equals itself within a tuple.
        pair = (0.25 if math.isnan(price) else price, count)
        if acc.pair is None:
            acc.pair = pair
        if pair < acc.pair:
            acc.total += 1.0
        if pair <= acc.pair:
            acc.total += 2.0
        if pair >= acc.pair:
            acc.total += 4.0
        if pair != acc.pair:
            acc.total += 8.0
        acc.pair = min(max(acc.pair, pair), (40.0, 7)) if count > 0 else min(acc.pair, pair)

    def merge(self, acc: Whole, other: Whole) -> None:
        if acc.pair is not None and other.pair is not None and acc.pair > other.pair:
            acc.total += 16.0
        acc.total += other.total

    def get_value(self, acc: Whole) -> float:
        return acc.total if acc.pair is None else acc.total + acc.pair[1]


class Bar(NamedTuple):
    """Prices; the times are None at first."""

    opened: datetime | None = None
    closed: datetime | None = None
    high: float = -math.inf
    name: str = ""


@udaf
class Bars:
    """A NamedTuple in a variable that is assigned again in branches, by `_replace`, by its class and as a copy."""

    def create_accumulator(self) -> Bar:
        return Bar()

    def accumulate(self, bar: Bar, at: datetime, price: float, name: str) -> Bar:
        if bar.opened is None or at < bar.opened:
            bar = bar._replace(opened=at, name=name)
        if bar.closed is None or at >= bar.closed:
            bar = bar._replace(closed=at)
        before = bar
        if price == 1.5:
            bar = Bar(at, at, price, name)
        elif name == "b":
            before = Bar()
            bar = before
        return bar._replace(high=max(before.high, price))

    def merge(self, bar: Bar, other: Bar) -> Bar:
        if other.opened is None:
            return bar
        first = bar if bar.opened is not None and bar.opened <= other.opened else other
        return other._replace(name=first.name)

    def get_value(self, bar: Bar) -> str:
        return "none" if bar.opened is None else f"{bar.opened:%Y} {bar.high:.1f} {bar.name}"


CLASSES = [Candles, LatestOfDict, LowAndHigh, InList, Wholes, Smoothed, Newest, Compared, Bars]


@pytest.mark.slow
@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_tuples_that_may_be_none_are_those_of_the_interpreter(cls: Any, hot: Programs, data: st.DataObject) -> None:
    """Rows, states, values and errors are equal, also where a row is given up after it replaced a tuple."""
    bound = bound_of(cls)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), program
    assert not program.interprets
    # Two tuples of one object are pickled as two references to it, where compiled code makes two objects.
    decode = interpret(bound).codec.decode
    read = (lambda states: [*map(repr, decode(states))]) if cls is LowAndHigh else None
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, EQUAL_OFTEN, row_by_row=True, read=read)
