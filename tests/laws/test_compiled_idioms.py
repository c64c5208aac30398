# ruff: noqa: UP031, UP032, FURB161 - all ways of formatting are tried
"""What authors write besides numbers and loops, and how each class is evaluated: `try`, formats, NamedTuple, Counter.

Compiled classes have the interpreter's results on hostile rows. What stays interpreted says why, with its line.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from foldflight import udaf, udf
from foldflight.client.exchange import PROGRAMS
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled_scalar import CompiledScalar
from foldflight.ext.compiler.program import NoProgram
from foldflight.fold.accelerator import bind_fixed_types
from foldflight.fold.rows import Column, Rows
from foldflight.fold.scalar.evaluation import InterpretedScalar
from foldflight.functions import Registry
from foldflight.testing import check_laws
from tests.effort import examples_of

BOUNDS = [1.0, 2.5, 10.0]
POINTS = {"view": 1, "buy": 20}
SIZES = {"one": 1, "all": 1 << 63}
NAMES = ("no", "one", "two", "many")
PATTERN = re.compile(r"\d+$")


class Session(NamedTuple):
    """The sessions of a visitor."""

    last: int
    sessions: int = 0
    longest: float | None = None

    def follows(self, at: int) -> bool:
        """Return whether a visit starts a session."""
        return self.last < 0 or at - self.last > 1800


@udaf
class Sessions:
    """A NamedTuple with defaults, a method and `_replace`."""

    def create_accumulator(self) -> Session:
        return Session(-1)

    def accumulate(self, session: Session, at: int) -> Session:
        if session.follows(at):
            return Session(at, sessions=session.sessions + 1, longest=session.longest)
        gap = float(at - session.last)
        longest = session.longest
        return session._replace(last=at, longest=gap if longest is None else max(longest, gap))

    def merge(self, session: Session, other: Session) -> Session:
        last, sessions, _ = other
        return session._replace(last=max(last, session[0]), sessions=session.sessions + sessions)

    def get_value(self, session: Session) -> str | None:
        return None if session.longest is None else f"{session.sessions}: {session.longest:.1f}"


@udaf
class StepCounts:
    """A defaultdict in an attribute, with texts as keys."""

    counts: defaultdict[str, int]
    total: int

    def __init__(self) -> None:
        self.counts = defaultdict(int)
        self.total = 0

    def accumulate(self, step: str) -> None:
        self.counts[step] += 1
        self.total += 1

    def merge(self, other: StepCounts) -> None:
        for step, count in other.counts.items():
            self.counts[step] += count
        self.total += other.total

    def get_value(self) -> int:
        return max(self.counts.values(), default=0)


@udaf
class CommonStep:
    """A Counter without annotation, whose keys are the only argument."""

    def __init__(self) -> None:
        self.counter = Counter()  # type: ignore[var-annotated]

    def accumulate(self, step: str) -> None:
        self.counter[step] += 1

    def merge(self, other: CommonStep) -> None:
        self.counter.update(other.counter)

    def get_value(self) -> int:
        return len(self.counter)


@udaf
class Parsed:
    """Exceptions that the author handles: of texts that are no numbers, and of keys that are not there."""

    totals: dict[str, int]
    bad: int

    def __init__(self) -> None:
        self.totals = {}
        self.bad = 0

    def accumulate(self, text: str) -> None:
        try:
            number = int(text.split(":")[1])
        except (ValueError, IndexError):
            self.bad += 1
            return
        finally:
            self.bad += 0
        try:
            self.totals[text[:1]] += number
        except KeyError:
            self.totals[text[:1]] = number

    def merge(self, other: Parsed) -> None:
        self.bad += other.bad
        for key, number in other.totals.items():
            self.totals[key] = self.totals.get(key, 0) + number

    def get_value(self) -> int:
        return sum(self.totals.values()) - self.bad


@udaf
class Amounts:
    """Texts that may be numbers, the largest of them in a heap and in a sorted list, and the lengths of names."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"sum": 0.0, "heap": [], "largest": [], "bytes": 0}

    def accumulate(self, accumulator, text: str, amount: float) -> None:  # type: ignore[no-untyped-def]
        name, _, end = text.rsplit(":", 1)[-1].partition(".")
        accumulator["bytes"] += len(name.encode("utf-8", "replace"))
        try:
            accumulator["sum"] += float(end)
        except ValueError:
            accumulator["sum"] += amount
        if len(accumulator["heap"]) < 3:
            heapq.heappush(accumulator["heap"], (amount, text))
        else:
            least, _ = heapq.heappushpop(accumulator["heap"], (amount, text))
            accumulator["sum"] -= least
        accumulator["largest"].append((amount, name))
        accumulator["largest"].sort(reverse=len(name) < 2)
        if len(accumulator["largest"]) > 4:
            accumulator["largest"].pop()

    def get_value(self, accumulator) -> str:  # type: ignore[no-untyped-def]
        return f"{accumulator['bytes']}" + "".join(name for _, name in accumulator["largest"])


@udaf
class Tags:
    """Containers that are empty at first, and filled by comprehensions, generators, slices and looked-up numbers."""

    RANKS: ClassVar = {"a": 1, "b": 2}

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {
            "sorted": [],
            "seen": set(),
            "words": Counter(),
            "pairs": Counter(),
            "totals": {},
            "events": [],
            "weeks": {},
        }

    def accumulate(self, accumulator, text: str, amount: float, day: date) -> None:  # type: ignore[no-untyped-def]
        year, week, _ = day.isocalendar()
        accumulator["weeks"][year, week] = bisect.bisect_left(accumulator["sorted"], amount)
        bisect.insort(accumulator["sorted"], amount)
        words = [word.strip() for word in text.split(",")]
        items = sorted({word for word in words if word})
        accumulator["seen"].update(items)
        accumulator["words"].update(word for word in words if len(word) > 1 and word not in self.RANKS)
        for index, one in enumerate(items):
            for other in items[index + 1 :]:
                accumulator["pairs"][one, other] += 1
        accumulator["totals"][text] = accumulator["totals"].get(text, 0) + amount
        rank = self.RANKS.get(text[:1])
        if rank is None:
            return
        accumulator["events"].append((amount, rank))

    def merge(self, accumulator, other) -> None:  # type: ignore[no-untyped-def]
        accumulator["seen"] |= other["seen"]
        accumulator["words"].update(other["words"])
        accumulator["pairs"] += other["pairs"]
        for text, amount in other["totals"].items():
            accumulator["totals"][text] = amount - accumulator["totals"].get(text, 0)
        accumulator["events"].extend(other["events"])

    def get_value(self, accumulator) -> float:  # type: ignore[no-untyped-def]
        total = 0.0
        for amount in accumulator["totals"].values():
            total += amount
        return total + len(accumulator["seen"]) + len(accumulator["events"]) + sum(accumulator["pairs"].values())


@udaf
class Median:
    """A sorted list."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, values: list[float], value: float) -> None:
        bisect.insort(values, value)

    def get_value(self, values: list[float]) -> float | None:
        return values[bisect.bisect_left(values, values[0]) + len(values) // 2] if values else None


class Width(Enum):
    """How many buckets there are."""

    BUCKETS = 4


@udaf
class Buckets:
    """Buckets of a constant list, whose number `create_accumulator` computes."""

    def create_accumulator(self) -> list[int]:
        return [0] * max(len(BOUNDS) + 1, Width.BUCKETS.value)

    def accumulate(self, counts: list[int], value: float) -> None:
        counts[bisect.bisect(BOUNDS, value)] += 1

    def merge(self, counts: list[int], other: list[int]) -> None:
        for index, count in enumerate(other):
            counts[index] += count

    def get_value(self, counts: list[int]) -> str:
        return ",".join(f"{NAMES[index]}={count:>3}" for index, count in enumerate(counts))


@udaf
class Cheapest:
    """A heap of tuples with texts."""

    def create_accumulator(self) -> list[tuple[float, str]]:
        return []

    def accumulate(self, heap: list[tuple[float, str]], price: float, name: str) -> None:
        heapq.heappush(heap, (-price, name))
        if len(heap) > 2:
            heapq.heappop(heap)

    def merge(self, heap: list[tuple[float, str]], other: list[tuple[float, str]]) -> None:
        for item in other:
            heapq.heappush(heap, item)

    def get_value(self, heap: list[tuple[float, str]]) -> str:
        return "|".join(name for _, name in sorted(heap))


@udaf
class Weeks:
    """Weeks of the calendar, days as bits, and texts of dates."""

    days: int
    first: date | None
    weeks: dict[int, int]

    def __init__(self) -> None:
        self.days = 0
        self.first = None
        self.weeks = {}

    def accumulate(self, day: date) -> None:
        self.first = day if self.first is None else min(self.first, day)
        week = day.isocalendar()
        self.weeks[week.week] = self.weeks.get(week[1], 0) + week.weekday
        self.days |= 1 << (day - self.first).days % 60

    def get_value(self) -> str:
        if self.first is None:
            return "none"
        days = bin(self.days).count("1")
        return f"{self.first:%Y-%m-%d} {self.first.strftime('%d.%m.%y')} {days} {max(self.weeks.values())}"


@udaf
class Invoice:
    """Decimals with two places, thousands and a width."""

    net: Decimal
    lines: int

    def __init__(self) -> None:
        self.net = Decimal("0.00")
        self.lines = 0

    def accumulate(self, price: Decimal, pieces: int) -> None:
        self.net += price * pieces
        self.lines += 1

    def merge(self, other: Invoice) -> None:
        self.net += other.net
        self.lines += other.lines

    def get_value(self) -> str:
        return f"{self.net:>12,.2f} in {self.lines:03d}"


@udaf
class Points:
    """Lookups by key, letters as numbers, ends of texts, and any and all."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, points: list[int], step: str) -> None:
        known = POINTS[step] if step in ("view", "buy") else 0
        points.append(known + sum(ord(letter) for letter in step))
        if step.startswith(("b", "x")) or step[::-1] == "weiv":
            points[-1] *= 2

    def merge(self, points: list[int], other: list[int]) -> None:
        points += other

    def get_value(self, points: list[int]) -> str:
        if any(each > 500 for each in points) and all(each > 0 for each in points):
            return "*" * len(points)
        return hex(sum(points)) + "".join(f"{each:x}" for each in sorted(points, reverse=True)[:3])


@udf
def growth(now: float, before: float) -> float | None:
    """An error that is handled, and a result with two places."""
    try:
        return round((now - before) / before, 2)
    except ZeroDivisionError:
        return None


@udf
def checked(code: str) -> bool:
    """The checksum of a card's number."""
    digits = [int(each) for each in code if each.isdigit()]
    total = 0
    for index, digit in enumerate(reversed(digits), start=1):
        total += digit if index % 2 else sum(int(each) for each in str(2 * digit))
    return total % 10 == 0


@udf
def moved(text: str, day: date) -> str:
    """An assignment in a condition, a date of numbers, lists that are compared, and an alignment."""
    if (length := len(text)) > 3 and (left := (date(day.year, 12, 31) - day).days) < 300:
        return f"{length} {left}".rjust(9, "_")
    letters = [each for each in text]  # noqa: C416 - a list that code makes
    return "palindrome" if letters == letters[::-1] else text.ljust(5)


@udaf
class Funnel:
    """A lookup in a dict of the class, without a default."""

    STEPS = {"view": 1, "cart": 2, "buy": 3}
    LABELS = ("none", "one", "two", "three")
    state: int

    def __init__(self) -> None:
        self.state = 0

    def accumulate(self, step: str) -> None:
        target = self.STEPS.get(step)
        if target is not None and target == self.state + 1:
            self.state = target

    def get_value(self) -> str:
        return self.LABELS[self.state]


@udf
def of_floats(value: float) -> str:
    """Floats with formats, and the shortest text of one."""
    return f"{value}|{value:.2f}|{value:+012.3f}|{value:,.1f}|{value:%}" + "|%7.0f" % value + f"|{round(value, 1)}"


@udf
def of_ints(value: int) -> str:
    """Whole numbers with formats."""
    zeros = f"{value:<07}|{value:^09d}|{value:*<05}|{value != 0:<05}|" + "%6s|%5d" % (value > 0, value > 0)
    return f"{value:05d}|{value:#x}|{value:>12,}|{value:^9}|{value!s:*<8}|{zeros}" + "{:+d}{:b}".format(value, value)


@udf
def of_texts(value: str) -> str:
    """Texts with a width, by three ways of formatting."""
    return (
        f"{value:>8}|{value:*^9}|{value:<07}|"
        + "%6s|%-6s" % (value, value)
        + "|{0:<4}{name}".format(value, name=value[::-1])
    )


@udf
def from_texts(value: str) -> float:
    """Numbers as they are written in files."""
    return float(value)


@udf
def parts(value: str) -> str:
    """Texts that are split from their ends."""
    return "|".join(value.rsplit("aa") + value.rsplit("a", 2) + value.rsplit() + value.rsplit("ß", len(value) - 3))


@udf
def of_times(value: datetime) -> str:
    """Times with directives, and in ISO's format."""
    return f"{value:%d.%m.%y %H:%M:%S.%f %j}|{value}|{value.isoformat()}|{value.date().strftime('%Y/%m')}"


@udf
def of_decimals(value: Decimal) -> str:
    """Decimals with places, whose halves go to the even digit."""
    return f"{value:.2f}|{value:,.1f}|{value:.4f}|{value:>12.0f}"


class Fee(NamedTuple):
    """A method that only another method calls."""

    cents: int

    def base(self) -> int:
        """Return the fee without the addition."""
        return self.cents + 1

    def total(self) -> int:
        """Return the fee."""
        return self.base() * 2


@udf
def fee(cents: int) -> int:
    """A NamedTuple that is not the accumulator."""
    return Fee(cents).total()


@udaf
class Patterns:
    """A regular expression, which is interpreted."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, count: int, text: str) -> int:
        return count + (PATTERN.search(text) is not None)

    def get_value(self, count: int) -> int:
        return count


@dataclass
class Arm:
    """A part of an experiment."""

    count: int = 0


@dataclass
class Experiment:
    """Objects in an object, which are interpreted."""

    arms: list[Arm] = field(default_factory=list)
    control: Arm = field(default_factory=Arm)


@udaf
class Nested:
    """Counts in an object of an object."""

    def create_accumulator(self) -> Experiment:
        return Experiment()

    def accumulate(self, experiment: Experiment, pieces: int) -> None:
        experiment.control.count += pieces

    def get_value(self, experiment: Experiment) -> int:
        return experiment.control.count


@udf
def as_text(number: int) -> str:
    """A format of texts, which Python refuses for a number."""
    return f"{number:s}"


@udf
def numbered(number: int) -> str:
    """Places with and without numbers, which Python refuses."""
    return "{0} {}".format(number, number)  # type: ignore[str-format]  # noqa: F523, F525


@udf
def sized(name: str, size: int) -> int:
    """A number beyond 64 bits in a dict, which is interpreted."""
    return SIZES.get(name, size)


@udf
def slug(name: str) -> str:
    """A function of the standard library, which is interpreted."""
    return re.sub(r"\W+", "-", name)


COMPILED = (
    Sessions,
    StepCounts,
    CommonStep,
    Parsed,
    Amounts,
    Tags,
    Median,
    Buckets,
    Cheapest,
    Weeks,
    Invoice,
    Points,
    Funnel,
    growth,
    checked,
    moved,
)
# Why the others are interpreted.
INTERPRETED = {
    Patterns: r"it calls Pattern.search \(test_compiled_idioms.py:\d+\)",
    Nested: "arms holds objects",
    as_text: "it writes an int with a precision, but no type, or as a text",
    numbered: "with numbers and without",
    sized: "a number of more than 64 bits",
    slug: r"it calls re.sub \(test_compiled_idioms.py:\d+\)",
}


CHOSEN = random.Random(3)
FLOATS = [
    *(0.0, -0.0, 0.5, 1.5, 2.5, 0.125, 0.005, 1.005, 2.675, 1e15, 0.0001, 0.1 + 0.2, -0.001, 2.0**52 + 0.5, 1e-300),
    *(CHOSEN.uniform(-1e4, 1e4) for _ in range(500)),
    *(round(CHOSEN.uniform(-1e6, 1e6), CHOSEN.randrange(8)) for _ in range(500)),
    *(math.nextafter(2.0 ** CHOSEN.randrange(-13, 50), CHOSEN.choice((0.0, math.inf))) for _ in range(500)),
    *(CHOSEN.randrange(1, 10**17) / 10 ** CHOSEN.randrange(4, 20) for _ in range(500)),
]
VALUES: dict[Any, list[Any]] = {
    of_floats: FLOATS,
    of_ints: [0, -1, (1 << 63) - 1, 1 - (1 << 63), *(CHOSEN.randrange(-99_999, 99_999) for _ in range(200))],
    of_texts: ["".join(CHOSEN.choices("abß漢😀 ", k=CHOSEN.randrange(12))) for _ in range(200)],
    from_texts: [
        *("0", "-0", "+.5", "5.", " 1e5 ", "-0.0e-9", "1E+22", "123456789012345e-22", "999999999999999e22", "1e23"),
        *("\u00a01.5\n", "1_0.5", "9007199254740993", "0.1e-21", "inf", "-nan", "\u0663", "1e999"),
        *(f"{CHOSEN.uniform(-1e4, 1e4):.{CHOSEN.randrange(9)}f}" for _ in range(300)),
        *(f"{CHOSEN.randrange(10**15)}e{CHOSEN.randrange(-22, 23)}" for _ in range(300)),
        *(f"{CHOSEN.randrange(10**16, 10**17)}e{CHOSEN.randrange(-30, 30)}" for _ in range(50)),
        *(f"{CHOSEN.randrange(-(10**7), 10**7) / 10**3:g}" for _ in range(50)),
    ],
    parts: ["".join(CHOSEN.choices("aab\u00df ", k=CHOSEN.randrange(12))) for _ in range(200)],
    of_times: [
        datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=CHOSEN.randrange(-(10**16), 10**17) // unit * unit)
        for unit in (1, 10**6)
        for _ in range(200)
    ],
    of_decimals: [
        *map(Decimal, ("-0.001", "0.005", "0.015", "2.5", "-0.5")),
        *(Decimal(CHOSEN.randrange(-(10**9), 10**9)).scaleb(-CHOSEN.randrange(9)) for _ in range(300)),
    ],
}


def program_of(target: Any) -> Any:
    """Return the program of a function, and its binding."""
    (function,) = Registry.load([target]).authored
    bound = bind_fixed_types(function)
    assert bound is not None
    assert isinstance(PROGRAMS, Programs)
    return PROGRAMS.program(bound, bound.instantiate()), function


@pytest.mark.every_turn
@pytest.mark.parametrize("target", COMPILED)
def test_idioms_are_compiled(target: Any) -> None:
    """All methods of the class are, also get_value."""
    program, _ = program_of(target)
    assert not isinstance(program, NoProgram), program.reason
    assert program.interprets == ""


@pytest.mark.parametrize("target", INTERPRETED)
def test_idioms_that_are_not_compiled_have_a_reason(target: Any) -> None:
    """The reason that listings show before compiling is the one that compiling finds."""
    program, function = program_of(target)
    assert isinstance(program, NoProgram)
    assert re.search(INTERPRETED[target], program.reason)
    assert PROGRAMS.folding(function).reason == program.reason


@pytest.mark.slow
@pytest.mark.parametrize("target", COMPILED)
def test_compiled_idioms_agree_on_hostile_rows(target: Any) -> None:
    """States, results and errors are equal, at the ends of the types and with NULL."""
    result = {each.law: each for each in check_laws(target, examples=examples_of(60))}
    (agrees,) = (each for law, each in result.items() if "compiled" in law)
    assert agrees.passed, agrees.detail


@pytest.mark.every_turn
@pytest.mark.parametrize("target", VALUES)
def test_formats_have_the_digits_of_python(target: Any) -> None:
    """Compiled code writes and reads each value as Python does; what it leaves to the interpreter is the minority."""
    program, function = program_of(target)
    assert not isinstance(program, NoProgram), program.reason
    bound = bind_fixed_types(function)
    values = pa.array(VALUES[target], bound.input_types[0])
    left = 0

    class Interpreter(InterpretedScalar):
        def values(self, rows: Rows) -> pa.Array:
            nonlocal left
            left += 1
            return super().values(rows)

    interpreter = Interpreter(bound, bound.instantiate(), None)
    step = CompiledScalar(interpreter, lambda _: program)
    for index, value in enumerate(values.to_pylist()):
        row = Rows(np.zeros(1, np.int32), None, [Column("value", values[index : index + 1])])
        assert repr(step.values(row).to_pylist()) == repr([target(value)])
    assert left < len(values) / 2


def test_a_changed_method_of_a_named_tuple_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored code is not used for it, although the function does not name the method."""
    row = Rows(np.zeros(1, np.int32), None, [Column("cents", pa.array([5]))])

    def result() -> list[Any]:
        program, function = program_of(fee)
        assert not isinstance(program, NoProgram), program.reason
        bound = bind_fixed_types(function)
        return (
            CompiledScalar(InterpretedScalar(bound, bound.instantiate(), None), lambda _: program)
            .values(row)
            .to_pylist()
        )

    assert result() == [12]
    monkeypatch.setattr(Fee, "base", lambda self: self.cents * 7)
    assert result() == [70]
