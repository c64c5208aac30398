"""Thirty classes as people write them first: shapes from the manuals of peers, in our own code, without tuning."""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from foldflight import udaf

__all__ = ["CLASSES"]


@udaf
class MeanOfTuple:
    """A tuple of sum and count, as in Beam's AverageFn."""

    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def accumulate(self, accumulator: tuple[float, int], amount: float) -> tuple[float, int]:
        total, count = accumulator
        return total + amount, count + 1

    def merge(self, accumulator: tuple[float, int], other: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + other[0], accumulator[1] + other[1]

    def get_value(self, accumulator: tuple[float, int]) -> float | None:
        total, count = accumulator
        return total / count if count else None


@udaf
class MeanOfList:
    """A list of sum and count, as in Doris and Flink."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]

    def accumulate(self, accumulator: list[float], amount: float) -> None:
        accumulator[0] += amount
        accumulator[1] += 1

    def merge(self, accumulator: list[float], other: list[float]) -> None:
        accumulator[0] += other[0]
        accumulator[1] += other[1]

    def get_value(self, accumulator: list[float]) -> float | None:
        return accumulator[0] / accumulator[1] if accumulator[1] else None


@dataclass
class MeanState:
    """Sum and count."""

    total: float = 0.0
    count: int = 0


@udaf
class MeanOfDataclass:
    """A dataclass, as in Snowflake's example of an average."""

    def create_accumulator(self) -> MeanState:
        return MeanState()

    def accumulate(self, accumulator: MeanState, amount: float) -> None:
        accumulator.total += amount
        accumulator.count += 1

    def merge(self, accumulator: MeanState, other: MeanState) -> None:
        accumulator.total += other.total
        accumulator.count += other.count

    def get_value(self, accumulator: MeanState) -> float | None:
        return accumulator.total / accumulator.count if accumulator.count else None


@udaf
class SumWithoutAnnotations:
    """Numbers of the accumulator without annotations."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return 0

    def accumulate(self, accumulator, pieces: int):  # type: ignore[no-untyped-def]
        return accumulator + pieces

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        return accumulator + other

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return accumulator  # type: ignore[no-any-return]


class WelfordState:
    """Count, mean and sum of squares, set in __init__ without annotations."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0


@udaf
class WelfordVariance:
    """Welford's variance with an object of an own class."""

    def create_accumulator(self) -> WelfordState:
        return WelfordState()

    def accumulate(self, accumulator: WelfordState, amount: float) -> None:
        accumulator.count += 1
        delta = amount - accumulator.mean
        accumulator.mean += delta / accumulator.count
        accumulator.squares += delta * (amount - accumulator.mean)

    def merge(self, accumulator: WelfordState, other: WelfordState) -> None:
        count = accumulator.count + other.count
        if count == 0:
            return
        delta = other.mean - accumulator.mean
        accumulator.squares += other.squares + delta * delta * accumulator.count * other.count / count
        accumulator.mean += delta * other.count / count
        accumulator.count = count

    def get_value(self, accumulator: WelfordState) -> float | None:
        return accumulator.squares / accumulator.count if accumulator.count else None


@udaf
class CountWords:
    """How often each text came: a dict, as in Beam's and Snowflake's examples."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, accumulator: dict[str, int], step: str) -> None:
        accumulator[step] = accumulator.get(step, 0) + 1

    def merge(self, accumulator: dict[str, int], other: dict[str, int]) -> None:
        for step, count in other.items():
            accumulator[step] = accumulator.get(step, 0) + count

    def get_value(self, accumulator: dict[str, int]) -> dict[str, int]:
        return accumulator


@udaf
class ModeOfTexts:
    """The most frequent text."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, accumulator: dict[str, int], visitor: str) -> None:
        accumulator[visitor] = accumulator.get(visitor, 0) + 1

    def merge(self, accumulator: dict[str, int], other: dict[str, int]) -> None:
        for visitor, count in other.items():
            accumulator[visitor] = accumulator.get(visitor, 0) + count

    def get_value(self, accumulator: dict[str, int]) -> str | None:
        return max(accumulator, key=accumulator.__getitem__) if accumulator else None


@udaf
class CounterMode:
    """The most frequent number, by collections.Counter."""

    def create_accumulator(self) -> Counter[int]:
        return Counter()

    def accumulate(self, accumulator: Counter[int], pieces: int) -> None:
        accumulator[pieces] += 1

    def merge(self, accumulator: Counter[int], other: Counter[int]) -> None:
        accumulator.update(other)

    def get_value(self, accumulator: Counter[int]) -> int | None:
        return accumulator.most_common(1)[0][0] if accumulator else None


@udaf
class DistinctVisitors:
    """A set of texts, as in Snowflake's example of unique values."""

    def create_accumulator(self) -> set[str]:
        return set()

    def accumulate(self, accumulator: set[str], visitor: str) -> None:
        accumulator.add(visitor)

    def merge(self, accumulator: set[str], other: set[str]) -> None:
        accumulator |= other

    def get_value(self, accumulator: set[str]) -> int:
        return len(accumulator)


@udaf
class DistinctDays:
    """A set of dates."""

    def create_accumulator(self) -> set[date]:
        return set()

    def accumulate(self, accumulator: set[date], day: date) -> None:
        accumulator.add(day)

    def merge(self, accumulator: set[date], other: set[date]) -> None:
        accumulator.update(other)

    def get_value(self, accumulator: set[date]) -> int:
        return len(accumulator)


@udaf
class ListMedian:
    """All numbers in a list, sorted at the end."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator: list[float], amount: float) -> None:
        accumulator.append(amount)

    def merge(self, accumulator: list[float], other: list[float]) -> None:
        accumulator.extend(other)

    def get_value(self, accumulator: list[float]) -> float | None:
        if not accumulator:
            return None
        ordered = sorted(accumulator)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@udaf
class TopThree:
    """The three largest numbers, in a heap."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator: list[float], amount: float) -> None:
        if len(accumulator) < 3:
            heapq.heappush(accumulator, amount)
        elif amount > accumulator[0]:
            heapq.heapreplace(accumulator, amount)

    def merge(self, accumulator: list[float], other: list[float]) -> None:
        for amount in other:
            self.accumulate(accumulator, amount)

    def get_value(self, accumulator: list[float]) -> list[float]:
        return sorted(accumulator, reverse=True)


@udaf
class TopTwo:
    """The two largest numbers as attributes, as in Flink's manual."""

    first: float
    second: float

    def __init__(self) -> None:
        self.first = -math.inf
        self.second = -math.inf

    def accumulate(self, amount: float) -> None:
        if amount > self.first:
            self.second = self.first
            self.first = amount
        elif amount > self.second:
            self.second = amount

    def merge(self, other: TopTwo) -> None:
        self.accumulate(other.first)
        self.accumulate(other.second)

    def get_value(self) -> float:
        return self.first + self.second


@dataclass
class MinMax:
    """The result of Stats."""

    low: float | None
    high: float | None
    count: int


@udaf
class Stats:
    """Several results in a struct."""

    low: float | None
    high: float | None
    count: int

    def __init__(self) -> None:
        self.low = None
        self.high = None
        self.count = 0

    def accumulate(self, amount: float) -> None:
        self.low = amount if self.low is None else min(self.low, amount)
        self.high = amount if self.high is None else max(self.high, amount)
        self.count += 1

    def merge(self, other: Stats) -> None:
        if other.low is not None and other.high is not None:
            self.low = other.low if self.low is None else min(self.low, other.low)
            self.high = other.high if self.high is None else max(self.high, other.high)
        self.count += other.count

    def get_value(self) -> MinMax:
        return MinMax(self.low, self.high, self.count)


@udaf
class LastStep:
    """The text of the newest row."""

    at: datetime | None
    step: str | None

    def __init__(self) -> None:
        self.at = None
        self.step = None

    def accumulate(self, step: str, at: datetime) -> None:
        if self.at is None or at >= self.at:
            self.at = at
            self.step = step

    def merge(self, other: LastStep) -> None:
        if other.at is not None and (self.at is None or other.at >= self.at):
            self.at = other.at
            self.step = other.step

    def get_value(self) -> str | None:
        return self.step


@udaf
class Conversion:
    """A ratio of rows by their text."""

    viewed: int
    bought: int

    def __init__(self) -> None:
        self.viewed = 0
        self.bought = 0

    def accumulate(self, step: str) -> None:
        if step == "view":
            self.viewed += 1
        elif step in ("buy", "cart"):
            self.bought += 1

    def merge(self, other: Conversion) -> None:
        self.viewed += other.viewed
        self.bought += other.bought

    def get_value(self) -> float | None:
        return self.bought / self.viewed if self.viewed else None


@udaf
class LongestText:
    """The longest text."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator: str, visitor: str) -> str:
        return visitor if len(visitor) > len(accumulator) else accumulator

    def merge(self, accumulator: str, other: str) -> str:
        return other if len(other) > len(accumulator) else accumulator

    def get_value(self, accumulator: str) -> str:
        return accumulator


@udaf
class JoinedSteps:
    """All texts, joined."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator: list[str], step: str) -> None:
        accumulator.append(step)

    def merge(self, accumulator: list[str], other: list[str]) -> None:
        accumulator += other

    def get_value(self, accumulator: list[str]) -> str:
        return ",".join(accumulator)


@udaf
class PriceByVolume:
    """The volume-weighted average price in decimals."""

    paid: Decimal
    pieces: int

    def __init__(self) -> None:
        self.paid = Decimal(0)
        self.pieces = 0

    def accumulate(self, price: Decimal, pieces: int) -> None:
        self.paid += price * pieces
        self.pieces += pieces

    def merge(self, other: PriceByVolume) -> None:
        self.paid += other.paid
        self.pieces += other.pieces

    def get_value(self) -> Decimal | None:
        return round(self.paid / self.pieces, 4) if self.pieces else None


@udaf
class DecimalSum:
    """A sum of decimals."""

    def create_accumulator(self) -> Decimal:
        return Decimal(0)

    def accumulate(self, accumulator: Decimal, price: Decimal) -> Decimal:
        return accumulator + price

    def merge(self, accumulator: Decimal, other: Decimal) -> Decimal:
        return accumulator + other

    def get_value(self, accumulator: Decimal) -> Decimal:
        return accumulator


@udaf
class DecayedMean:
    """A mean in which a row counts half after an hour, by the times of the rows."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0, 0.0]

    def accumulate(self, accumulator: list[float], amount: float, at: datetime) -> None:
        now = at.timestamp()
        decay = 0.5 ** (max(now - accumulator[2], 0.0) / 3600)
        accumulator[0] = accumulator[0] * decay + amount
        accumulator[1] = accumulator[1] * decay + 1
        accumulator[2] = max(now, accumulator[2])

    def get_value(self, accumulator: list[float]) -> float | None:
        return accumulator[0] / accumulator[1] if accumulator[1] else None


@udaf
class Islands:
    """How many visits are more than half an hour apart."""

    last: datetime | None
    islands: int

    def __init__(self) -> None:
        self.last = None
        self.islands = 0

    def accumulate(self, at: datetime) -> None:
        if self.last is None or at - self.last > timedelta(minutes=30):
            self.islands += 1
        self.last = at

    def get_value(self) -> int:
        return self.islands


@udaf
class Weekend:
    """The share of rows on a weekend."""

    days: int
    weekend: int

    def __init__(self) -> None:
        self.days = 0
        self.weekend = 0

    def accumulate(self, day: date) -> None:
        self.days += 1
        if day.weekday() >= 5:
            self.weekend += 1

    def merge(self, other: Weekend) -> None:
        self.days += other.days
        self.weekend += other.weekend

    def get_value(self) -> float | None:
        return self.weekend / self.days if self.days else None


@udaf
class BusyHours:
    """Rows by the hour of the day."""

    def create_accumulator(self) -> list[int]:
        return [0] * 24

    def accumulate(self, accumulator: list[int], at: datetime) -> None:
        accumulator[at.hour] += 1

    def merge(self, accumulator: list[int], other: list[int]) -> None:
        for hour, count in enumerate(other):
            accumulator[hour] += count

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator.index(max(accumulator))


@udaf
class ActiveSpan:
    """The days between the first row and the last."""

    first: date | None
    last: date | None

    def __init__(self) -> None:
        self.first = None
        self.last = None

    def accumulate(self, day: date) -> None:
        if self.first is None or day < self.first:
            self.first = day
        if self.last is None or day > self.last:
            self.last = day

    def merge(self, other: ActiveSpan) -> None:
        if other.first is not None and other.last is not None:
            self.accumulate(other.first)
            self.accumulate(other.last)

    def get_value(self) -> int | None:
        return None if self.first is None or self.last is None else (self.last - self.first).days


@udaf
class MovingMean:
    """The mean of the last ten rows."""

    def create_accumulator(self) -> deque[float]:
        return deque(maxlen=10)

    def accumulate(self, accumulator: deque[float], amount: float) -> None:
        accumulator.append(amount)

    def get_value(self, accumulator: deque[float]) -> float | None:
        return sum(accumulator) / len(accumulator) if accumulator else None


class Base:
    """A sum with a method that subclasses use."""

    total: float

    def __init__(self) -> None:
        self.total = 0.0

    def add(self, amount: float) -> None:
        self.total += amount


@udaf
class Discounted(Base):
    """A class that inherits, calls super() and reads a constant of its class."""

    RATE = 0.9
    rows: int

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def accumulate(self, amount: float) -> None:
        self.add(amount * self.RATE)
        self.rows += 1

    def merge(self, other: Discounted) -> None:
        self.add(other.total)
        self.rows += other.rows

    def get_value(self) -> float:
        return self.total


@udaf
class Sketch:
    """A sketch of bits in bytes."""

    def create_accumulator(self) -> bytearray:
        return bytearray(128)

    def accumulate(self, accumulator: bytearray, pieces: int) -> None:
        hashed = (pieces * 2654435761) % 1024
        accumulator[hashed // 8] |= 1 << (hashed % 8)

    def merge(self, accumulator: bytearray, other: bytearray) -> None:
        for place, byte in enumerate(other):
            accumulator[place] |= byte

    def get_value(self, accumulator: bytearray) -> int:
        return sum(byte.bit_count() for byte in accumulator)


@dataclass
class Basket:
    """A list in a dataclass."""

    amounts: list[float] = field(default_factory=list)
    pieces: int = 0


@udaf
class Trimmed:
    """A mean without the largest and the smallest number."""

    def create_accumulator(self) -> Basket:
        return Basket()

    def accumulate(self, accumulator: Basket, amount: float, pieces: int) -> None:
        accumulator.amounts.append(amount)
        accumulator.pieces += pieces

    def merge(self, accumulator: Basket, other: Basket) -> None:
        accumulator.amounts.extend(other.amounts)
        accumulator.pieces += other.pieces

    def get_value(self, accumulator: Basket) -> float | None:
        inner = sorted(accumulator.amounts)[1:-1]
        return sum(inner) / len(inner) if inner else None


@udaf
class ScoreByStep:
    """A lookup in a dict of the module, with a default."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, step: str) -> int:
        return accumulator + SCORES.get(step, 0)

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator


SCORES = {"view": 1, "cart": 5, "buy": 20}

# Each class, with the columns of bench.gallery.visits and of bench.natural that it takes.
CLASSES: dict[Any, tuple[str, ...]] = {
    MeanOfTuple: ("amount",),
    MeanOfList: ("amount",),
    MeanOfDataclass: ("amount",),
    SumWithoutAnnotations: ("pieces",),
    WelfordVariance: ("amount",),
    CountWords: ("step",),
    ModeOfTexts: ("visitor",),
    CounterMode: ("pieces",),
    DistinctVisitors: ("visitor",),
    DistinctDays: ("day",),
    ListMedian: ("amount",),
    TopThree: ("amount",),
    TopTwo: ("amount",),
    Stats: ("amount",),
    LastStep: ("step", "at"),
    Conversion: ("step",),
    LongestText: ("visitor",),
    JoinedSteps: ("step",),
    PriceByVolume: ("price", "pieces"),
    DecimalSum: ("price",),
    DecayedMean: ("amount", "at"),
    Islands: ("at",),
    Weekend: ("day",),
    BusyHours: ("at",),
    ActiveSpan: ("day",),
    MovingMean: ("amount",),
    Discounted: ("amount",),
    Sketch: ("pieces",),
    Trimmed: ("amount", "pieces"),
    ScoreByStep: ("step",),
}
