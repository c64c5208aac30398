"""Twenty classes that were written in one go, before anyone looked at what the compiler knows of them.

They tell how many classes of people who know nothing of the compiler are compiled: nine of them when they were written.
Nothing here is changed so that more of them are.
"""

# ruff: noqa: B905, PLC0206, RUF007
# mypy: disable-error-code="no-untyped-def,var-annotated,no-untyped-call,attr-defined,operator,index,assignment"

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from foldflight import udaf

__all__ = ["CLASSES"]


class Tick(NamedTuple):
    at: datetime
    price: float


@dataclass
class CandleState:
    first: Tick | None = None
    last: Tick | None = None
    high: float = -math.inf
    low: float = math.inf


@udaf
class Candle:
    """Opening, highest, lowest and closing price."""

    def create_accumulator(self) -> CandleState:
        return CandleState()

    def accumulate(self, acc: CandleState, at: datetime, price: float) -> None:
        tick = Tick(at, price)
        if acc.first is None or tick.at < acc.first.at:
            acc.first = tick
        if acc.last is None or tick.at >= acc.last.at:
            acc.last = tick
        acc.high = max(acc.high, price)
        acc.low = min(acc.low, price)

    def merge(self, acc: CandleState, other: CandleState) -> None:
        if other.first is not None and (acc.first is None or other.first.at < acc.first.at):
            acc.first = other.first
        if other.last is not None and (acc.last is None or other.last.at >= acc.last.at):
            acc.last = other.last
        acc.high = max(acc.high, other.high)
        acc.low = min(acc.low, other.low)

    def get_value(self, acc: CandleState) -> list[float] | None:
        if acc.first is None or acc.last is None:
            return None
        return [acc.first.price, acc.high, acc.low, acc.last.price]


@udaf
class TopPages:
    """The three most frequent pages as text."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def accumulate(self, acc: Counter[str], page: str) -> None:
        acc[page] += 1

    def retract(self, acc: Counter[str], page: str) -> None:
        acc[page] -= 1
        if acc[page] == 0:
            del acc[page]

    def merge(self, acc: Counter[str], other: Counter[str]) -> None:
        acc.update(other)

    def get_value(self, acc: Counter[str]) -> str:
        return ", ".join(f"{page}={n}" for page, n in acc.most_common(3))


@udaf
class ModeWithTies:
    """The most frequent value, the smallest one of several."""

    def create_accumulator(self) -> dict[int, int]:
        return {}

    def accumulate(self, acc: dict[int, int], pieces: int) -> None:
        acc[pieces] = acc.get(pieces, 0) + 1

    def retract(self, acc: dict[int, int], pieces: int) -> None:
        left = acc.get(pieces, 0) - 1
        if left:
            acc[pieces] = left
        else:
            acc.pop(pieces, None)

    def merge(self, acc: dict[int, int], other: dict[int, int]) -> None:
        for value, count in other.items():
            acc[value] = acc.get(value, 0) + count

    def get_value(self, acc: dict[int, int]) -> int | None:
        if not acc:
            return None
        return min(acc.items(), key=lambda item: (-item[1], item[0]))[0]


@udaf
class LatestByTime:
    """The page of the latest visit, kept as a pair."""

    def create_accumulator(self):
        return {"best": None}

    def accumulate(self, acc, at: datetime, page: str):
        if acc["best"] is None or at > acc["best"][0]:
            acc["best"] = (at, page)

    def merge(self, acc, other):
        if other["best"] is not None and (acc["best"] is None or other["best"][0] > acc["best"][0]):
            acc["best"] = other["best"]

    def get_value(self, acc) -> str | None:
        return acc["best"][1] if acc["best"] else None


@dataclass
class LedgerState:
    balance: Decimal = Decimal("0.00")
    by_currency: dict[str, Decimal] = field(default_factory=dict)


@udaf(input_types=["STRING", "DECIMAL(12, 2)"], result_type="DECIMAL(20, 2)")
class LargestBalance:
    """The largest balance of all pages."""

    def create_accumulator(self) -> LedgerState:
        return LedgerState()

    def accumulate(self, acc: LedgerState, page: str, euros: Decimal) -> None:
        acc.balance += euros
        acc.by_currency[page] = acc.by_currency.get(page, Decimal(0)) + euros

    def retract(self, acc: LedgerState, page: str, euros: Decimal) -> None:
        acc.balance -= euros
        acc.by_currency[page] = acc.by_currency.get(page, Decimal(0)) - euros

    def merge(self, acc: LedgerState, other: LedgerState) -> None:
        acc.balance += other.balance
        for page, euros in other.by_currency.items():
            acc.by_currency[page] = acc.by_currency.get(page, Decimal(0)) + euros

    def get_value(self, acc: LedgerState) -> Decimal | None:
        return max(acc.by_currency.values()) if acc.by_currency else None


@udaf
class MedianAbsoluteDeviation:
    """The median distance from the median."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, acc: list[float], amount: float | None) -> None:
        if amount is not None:
            acc.append(amount)

    def merge(self, acc: list[float], other: list[float]) -> None:
        acc += other

    @staticmethod
    def _median(values: list[float]) -> float:
        ordered = sorted(values)
        middle, odd = divmod(len(ordered), 2)
        return ordered[middle] if odd else (ordered[middle - 1] + ordered[middle]) / 2

    def get_value(self, acc: list[float]) -> float | None:
        if not acc:
            return None
        center = self._median(acc)
        return self._median([abs(value - center) for value in acc])


class Reading(NamedTuple):
    count: int
    total: float
    peak: float


@udaf
class BusiestHour:
    """The hour of the day with the largest mean, of readings by hour."""

    def create_accumulator(self) -> dict[int, Reading]:
        return {}

    def accumulate(self, acc: dict[int, Reading], at: datetime, amount: float) -> None:
        old = acc.get(at.hour)
        if old is None:
            acc[at.hour] = Reading(1, amount, amount)
        else:
            acc[at.hour] = old._replace(count=old.count + 1, total=old.total + amount, peak=max(old.peak, amount))

    def merge(self, acc: dict[int, Reading], other: dict[int, Reading]) -> None:
        for hour, reading in other.items():
            if hour in acc:
                mine = acc[hour]
                acc[hour] = Reading(
                    mine.count + reading.count, mine.total + reading.total, max(mine.peak, reading.peak)
                )
            else:
                acc[hour] = reading

    def get_value(self, acc: dict[int, Reading]) -> int | None:
        if not acc:
            return None
        return max(acc, key=lambda hour: acc[hour].total / acc[hour].count)


@udaf
class SessionsByGap:
    """The number of sessions, which a pause of half an hour ends."""

    GAP = timedelta(minutes=30)

    def create_accumulator(self) -> list[datetime]:
        return []

    def accumulate(self, acc: list[datetime], at: datetime) -> None:
        acc.append(at)

    def retract(self, acc: list[datetime], at: datetime) -> None:
        acc.remove(at)

    def merge(self, acc: list[datetime], other: list[datetime]) -> None:
        acc.extend(other)

    def get_value(self, acc: list[datetime]) -> int:
        times = sorted(acc)
        return sum(1 for before, after in zip(times, times[1:]) if after - before > self.GAP) + bool(times)


@udaf
class Funnel:
    """How far a visitor came through the steps, in order."""

    def __init__(self, steps: tuple[str, ...] = ("/home", "/cart", "/pay")):
        self.steps = steps

    def create_accumulator(self) -> list[tuple[datetime, str]]:
        return []

    def accumulate(self, acc: list[tuple[datetime, str]], at: datetime, page: str) -> None:
        if page in self.steps:
            acc.append((at, page))

    def merge(self, acc: list[tuple[datetime, str]], other: list[tuple[datetime, str]]) -> None:
        acc.extend(other)

    def get_value(self, acc: list[tuple[datetime, str]]) -> int:
        reached = 0
        for _, page in sorted(acc, key=lambda event: event[0]):
            if reached < len(self.steps) and page == self.steps[reached]:
                reached += 1
        return reached


@udaf
class Histogram:
    """Counts in buckets of powers of two, as text."""

    def create_accumulator(self) -> defaultdict[int, int]:
        return defaultdict(int)

    def accumulate(self, acc: defaultdict[int, int], pieces: int) -> None:
        acc[pieces.bit_length()] += 1

    def retract(self, acc: defaultdict[int, int], pieces: int) -> None:
        acc[pieces.bit_length()] -= 1

    def merge(self, acc: defaultdict[int, int], other: defaultdict[int, int]) -> None:
        for bucket, count in other.items():
            acc[bucket] += count

    def get_value(self, acc: defaultdict[int, int]) -> str:
        return ";".join(f"<{2**bucket}:{count}" for bucket, count in sorted(acc.items()) if count > 0)


@dataclass
class RegressionState:
    n: int = 0
    sx: float = 0.0
    sy: float = 0.0
    sxx: float = 0.0
    sxy: float = 0.0

    def add(self, x: float, y: float, sign: int = 1) -> None:
        self.n += sign
        self.sx += sign * x
        self.sy += sign * y
        self.sxx += sign * x * x
        self.sxy += sign * x * y

    @property
    def slope(self) -> float | None:
        denominator = self.n * self.sxx - self.sx**2
        if self.n < 2 or denominator == 0:
            return None
        return (self.n * self.sxy - self.sx * self.sy) / denominator


@udaf
class Slope:
    """The slope of a line through all points."""

    def create_accumulator(self) -> RegressionState:
        return RegressionState()

    def accumulate(self, acc: RegressionState, x: float, y: float) -> None:
        acc.add(x, y)

    def retract(self, acc: RegressionState, x: float, y: float) -> None:
        acc.add(x, y, sign=-1)

    def merge(self, acc: RegressionState, other: RegressionState) -> None:
        for name in ("n", "sx", "sy", "sxx", "sxy"):
            setattr(acc, name, getattr(acc, name) + getattr(other, name))

    def get_value(self, acc: RegressionState) -> float | None:
        return acc.slope


@udaf
class LastTen:
    """The mean of every second of the last ten amounts."""

    def create_accumulator(self) -> deque[float]:
        return deque(maxlen=10)

    def accumulate(self, acc: deque[float], amount: float) -> None:
        acc.append(amount)

    def merge(self, acc: deque[float], other: deque[float]) -> None:
        acc.extend(other)

    def get_value(self, acc: deque[float]) -> float | None:
        half = list(acc)[::2]
        return math.fsum(half) / len(half) if half else None


@udaf
class ActiveDays:
    """The longest run of days with a visit."""

    def create_accumulator(self) -> set[date]:
        return set()

    def accumulate(self, acc: set[date], at: datetime) -> None:
        acc.add(at.date())

    def merge(self, acc: set[date], other: set[date]) -> None:
        acc |= other

    def get_value(self, acc: set[date]) -> int:
        longest = 0
        for day in acc:
            if day - timedelta(days=1) not in acc:
                length = 1
                while day + timedelta(days=length) in acc:
                    length += 1
                longest = max(longest, length)
        return longest


@udaf
class JoinDistinct:
    """All pages in order of their names, joined."""

    def __init__(self, separator: str = ","):
        self.separator = separator

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def accumulate(self, acc: dict[str, int], page: str | None) -> None:
        if page:
            key = page.strip().lower()
            acc[key] = acc.get(key, 0) + 1

    def retract(self, acc: dict[str, int], page: str | None) -> None:
        if page:
            key = page.strip().lower()
            acc[key] -= 1
            if not acc[key]:
                del acc[key]

    def merge(self, acc: dict[str, int], other: dict[str, int]) -> None:
        for page in other:
            acc[page] = acc.get(page, 0) + other[page]

    def get_value(self, acc: dict[str, int]) -> str | None:
        return self.separator.join(sorted(acc)) or None


@udaf
class Ewma:
    """An exponentially weighted mean; the first amount begins it."""

    def __init__(self, alpha: float = 0.3):
        self.alpha = alpha

    def create_accumulator(self):
        return None

    def accumulate(self, acc, amount: float):
        if acc is None:
            return (amount, 1)
        mean, n = acc
        return (self.alpha * amount + (1 - self.alpha) * mean, n + 1)

    def merge(self, acc, other):
        if acc is None:
            return other
        if other is None:
            return acc
        n = acc[1] + other[1]
        return ((acc[0] * acc[1] + other[0] * other[1]) / n, n)

    def get_value(self, acc) -> float | None:
        return None if acc is None else round(acc[0], 4)


@udaf
class VisitorsPerPage:
    """The page with most different visitors."""

    def create_accumulator(self) -> dict[str, set[str]]:
        return defaultdict(set)

    def accumulate(self, acc: dict[str, set[str]], page: str, visitor: str) -> None:
        acc[page].add(visitor)

    def merge(self, acc: dict[str, set[str]], other: dict[str, set[str]]) -> None:
        for page, visitors in other.items():
            acc[page] |= visitors

    def get_value(self, acc: dict[str, set[str]]) -> str | None:
        ranked = sorted(acc.items(), key=lambda item: (-len(item[1]), item[0]))
        return ranked[0][0] if ranked else None


@udaf
class Entropy:
    """Shannon's entropy of the pages."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def accumulate(self, acc: Counter[str], page: str) -> None:
        acc.update([page])

    def retract(self, acc: Counter[str], page: str) -> None:
        acc.subtract([page])

    def merge(self, acc: Counter[str], other: Counter[str]) -> None:
        acc += other

    def get_value(self, acc: Counter[str]) -> float:
        total = sum(acc.values())
        return -sum(n / total * math.log2(n / total) for n in acc.values() if n > 0)


@dataclass
class Quality:
    rows: int = 0
    nulls: int = 0
    blanks: int = 0
    longest: str | None = None
    reasons: dict[str, int] = field(default_factory=dict)

    def note(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@udaf
class QualityReport:
    """What is wrong with the texts of a column, as a line of text."""

    def create_accumulator(self) -> Quality:
        return Quality()

    def accumulate(self, acc: Quality, page: str | None) -> None:
        acc.rows += 1
        if page is None:
            acc.nulls += 1
            acc.note("null")
            return
        if not page.strip():
            acc.blanks += 1
            acc.note("blank")
        elif not page.startswith("/"):
            acc.note("relative")
        if acc.longest is None or len(page) > len(acc.longest):
            acc.longest = page

    def merge(self, acc: Quality, other: Quality) -> None:
        acc.rows += other.rows
        acc.nulls += other.nulls
        acc.blanks += other.blanks
        for reason, n in other.reasons.items():
            acc.reasons[reason] = acc.reasons.get(reason, 0) + n
        if other.longest is not None and (acc.longest is None or len(other.longest) > len(acc.longest)):
            acc.longest = other.longest

    def get_value(self, acc: Quality) -> str:
        share = acc.nulls / acc.rows if acc.rows else 0.0
        worst = max(acc.reasons, key=acc.reasons.get) if acc.reasons else "none"
        return f"{acc.rows} rows, {share:.1%} null, {acc.blanks} blank, mostly {worst}"


@udaf
class RunningMoments:
    """Mean and variance, after Chan, in a list that is replaced as a whole."""

    def create_accumulator(self) -> list[float]:
        return [0, 0.0, 0.0]

    def accumulate(self, acc: list[float], amount: float) -> None:
        n, mean, m2 = acc
        n += 1
        delta = amount - mean
        mean += delta / n
        acc[:] = [n, mean, m2 + delta * (amount - mean)]

    def merge(self, acc: list[float], other: list[float]) -> None:
        n = acc[0] + other[0]
        if n == 0:
            return
        delta = other[1] - acc[1]
        acc[:] = [
            n,
            acc[1] + delta * other[0] / n,
            acc[2] + other[2] + delta * delta * acc[0] * other[0] / n,
        ]

    def get_value(self, acc: list[float]) -> float | None:
        return math.sqrt(acc[2] / (acc[0] - 1)) if acc[0] > 1 else None


@udaf
class RecentKeys:
    """The keys of the last hundred rows that came only once, at most twenty of them."""

    def create_accumulator(self) -> OrderedDict[str, int]:
        return OrderedDict()

    def accumulate(self, acc: OrderedDict[str, int], visitor: str) -> None:
        acc[visitor] = acc.pop(visitor, 0) + 1
        while len(acc) > 100:
            acc.popitem(last=False)

    def merge(self, acc: OrderedDict[str, int], other: OrderedDict[str, int]) -> None:
        for visitor, n in other.items():
            acc[visitor] = acc.pop(visitor, 0) + n
        while len(acc) > 100:
            acc.popitem(last=False)

    def get_value(self, acc: OrderedDict[str, int]) -> list[str]:
        return [visitor for visitor, n in acc.items() if n == 1][:20]


CLASSES = [
    Candle, TopPages, ModeWithTies, LatestByTime, LargestBalance, MedianAbsoluteDeviation, BusiestHour, SessionsByGap,
    Funnel, Histogram, Slope, LastTen, ActiveDays, JoinDistinct, Ewma, VisitorsPerPage, Entropy, QualityReport,
    RunningMoments, RecentKeys,
]  # fmt: skip
