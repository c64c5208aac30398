"""Classes as people write them without annotations of their states: dicts as records, `None` and `set()` at first.

They were written before the compiler knew such classes, and those that it still does not compile are here, too.
"""

# mypy: disable-error-code="no-untyped-def,var-annotated,no-untyped-call,attr-defined,operator,index,assignment"
# mypy: disable-error-code="has-type,arg-type"

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, NamedTuple

from foldflight import udaf

__all__ = ["CLASSES"]


@udaf
class RunningStats:
    """A dict as a record, with a number that is None at first."""

    def create_accumulator(self):
        return {"sum": 0.0, "n": 0, "mean": None}

    def accumulate(self, state, amount: float):
        state["sum"] += amount
        state["n"] += 1
        state["mean"] = state["sum"] / state["n"]

    def merge(self, state, other):
        state["sum"] += other["sum"]
        state["n"] += other["n"]
        if state["n"]:
            state["mean"] = state["sum"] / state["n"]

    def get_value(self, state) -> float | None:
        return state["mean"]


@udaf
class SumOfDistinct:
    """A sum over the first row of each visitor."""

    def create_accumulator(self):
        return {"seen": set(), "total": 0.0}

    def accumulate(self, state, visitor: str, amount: float):
        if visitor in state["seen"]:
            return
        state["seen"].add(visitor)
        state["total"] += amount

    def get_value(self, state) -> float:
        return state["total"]


@udaf
class SessionLength:
    """The longest session, whose times are None at first."""

    def __init__(self):
        self.last: datetime | None = None
        self.start: datetime | None = None
        self.sessions = 0
        self.longest = 0.0

    def accumulate(self, at_ntz: datetime):
        if self.last is None or (at_ntz - self.last).total_seconds() > 1800:
            self.sessions += 1
            self.start = at_ntz
        self.longest = max(self.longest, (at_ntz - self.start).total_seconds())
        self.last = at_ntz

    def get_value(self) -> float:
        return self.longest


class Streak(NamedTuple):
    """How often in a row."""

    current: int
    best: int


@udaf
class WinStreak:
    """A NamedTuple that no annotation names."""

    def create_accumulator(self):
        return Streak(0, 0)

    def accumulate(self, streak, amount: float):
        current = streak.current + 1 if amount > 50 else 0
        return streak._replace(current=current, best=max(streak.best, current))

    def get_value(self, streak) -> int:
        return streak.best


@udaf
class ShareByStep:
    """A dict in a dict."""

    def create_accumulator(self):
        return {"total": 0.0, "by_step": {}}

    def accumulate(self, state, step: str, amount: float):
        state["total"] += amount
        state["by_step"][step] = state["by_step"].get(step, 0.0) + amount

    def merge(self, state, other):
        state["total"] += other["total"]
        for step, amount in other["by_step"].items():
            state["by_step"][step] = state["by_step"].get(step, 0.0) + amount

    def get_value(self, state) -> dict[str, float]:
        return {step: amount / state["total"] for step, amount in state["by_step"].items()} if state["total"] else {}


@dataclass
class Moments:
    """Welford's mean."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def push(self, value: float) -> None:
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.squares += delta * (value - self.mean)


@dataclass
class Pair:
    """Dataclasses in a dataclass."""

    x: Moments = field(default_factory=Moments)
    y: Moments = field(default_factory=Moments)
    shared: float = 0.0


@udaf
class Correlation:
    """A correlation in one pass."""

    def create_accumulator(self) -> Pair:
        return Pair()

    def accumulate(self, pair: Pair, amount: float, pieces: int):
        before = amount - pair.x.mean
        pair.x.push(amount)
        pair.y.push(float(pieces))
        pair.shared += before * (pieces - pair.y.mean)

    def get_value(self, pair: Pair) -> float | None:
        if pair.x.squares == 0 or pair.y.squares == 0:
            return None
        return pair.shared / math.sqrt(pair.x.squares * pair.y.squares)


@udaf
class ActiveDays:
    """Counts of days that can be taken back."""

    def __init__(self):
        self.days: dict[date, int] = {}

    def accumulate(self, day: date):
        self.days[day] = self.days.get(day, 0) + 1

    def retract(self, day: date):
        self.days[day] -= 1
        if self.days[day] == 0:
            del self.days[day]

    def merge(self, other):
        for day, count in other.days.items():
            self.days[day] = self.days.get(day, 0) + count

    def get_value(self) -> str:
        return f"{min(self.days)} to {max(self.days)} ({len(self.days)} days)" if self.days else ""


@udaf
class GeometricMean:
    """A list of two types."""

    def create_accumulator(self):
        return [0.0, 0]

    def accumulate(self, state, amount: float):
        if amount <= 0:
            return
        state[0] += math.log(amount)
        state[1] += 1

    def merge(self, state, other):
        state[0] += other[0]
        state[1] += other[1]

    def get_value(self, state) -> float | None:
        return math.exp(state[0] / state[1]) if state[1] else None


@udaf
class Retention:
    """The first and the last day of each visitor, as tuples in a dict."""

    def __init__(self):
        self.spans = {}

    def accumulate(self, visitor: str, day: date):
        seen = self.spans.get(visitor)
        if seen is None:
            self.spans[visitor] = (day, day)
        else:
            self.spans[visitor] = (min(seen[0], day), max(seen[1], day))

    def merge(self, other):
        for visitor, (first, last) in other.spans.items():
            mine = self.spans.get(visitor)
            self.spans[visitor] = (first, last) if mine is None else (min(mine[0], first), max(mine[1], last))

    def get_value(self) -> int:
        return sum(1 for first, last in self.spans.values() if (last - first).days >= 7)


@udaf
class Transitions:
    """A Counter of texts that the code writes."""

    def __init__(self):
        self.previous = None
        self.counts = Counter()

    def accumulate(self, step: str):
        if self.previous is not None and self.previous != step:
            self.counts[f"{self.previous}->{step}"] += 1
        self.previous = step

    def get_value(self) -> int:
        return max(self.counts.values(), default=0)


@udaf
class VisitorsPerDay:
    """A set for each day."""

    def create_accumulator(self):
        return defaultdict(set)

    def accumulate(self, state, day: date, visitor: str):
        state[day].add(visitor)

    def merge(self, state, other):
        for day, visitors in other.items():
            state[day] |= visitors

    def get_value(self, state) -> float | None:
        return sum(len(visitors) for visitors in state.values()) / len(state) if state else None


@dataclass
class Order:
    """The best row of LargestOrder."""

    amount: float
    pieces: int


@udaf
class LargestOrder:
    """An object that is None at first, and then replaced."""

    def __init__(self):
        self.best: Order | None = None

    def accumulate(self, amount: float, pieces: int):
        if self.best is None or amount > self.best.amount:
            self.best = Order(amount, pieces)

    def merge(self, other):
        if other.best and (self.best is None or other.best.amount > self.best.amount):
            self.best = other.best

    def get_value(self) -> int | None:
        return self.best.pieces if self.best else None


# Each class, with the columns of bench.gallery.visits and of bench.natural that it takes.
CLASSES: dict[Any, tuple[str, ...]] = {
    RunningStats: ("amount",),
    SumOfDistinct: ("visitor", "amount"),
    SessionLength: ("at_ntz",),
    WinStreak: ("amount",),
    ShareByStep: ("step", "amount"),
    Correlation: ("amount", "pieces"),
    ActiveDays: ("day",),
    GeometricMean: ("amount",),
    Retention: ("visitor", "day"),
    Transitions: ("step",),
    VisitorsPerDay: ("day", "visitor"),
    LargestOrder: ("amount", "pieces"),
}
