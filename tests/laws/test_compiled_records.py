"""Accumulators with objects inside, dicts with fixed keys, and what only the code tells about its accumulators.

Compiled code has the interpreter's states when they are read: pickle writes an object once to which several members
refer, and compiled code does not know which are shared.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.natural.untyped import Moments
from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from foldflight.fold.rows import Column, Rows
from tests.effort import examples
from tests.laws.alike import VALUES, bound_of, folds_alike, interpret, refusal

# mypy: disable-error-code="no-untyped-def,var-annotated,no-untyped-call,attr-defined,operator,index"
# mypy: disable-error-code="assignment,has-type"


@udaf
class Statistics:
    """A dict with a number that is None at first; one value has an error after a change."""

    def create_accumulator(self):
        return {"sum": 0.0, "n": 0, "mean": None}

    def accumulate(self, state, value: float):
        state["sum"] += value
        state["n"] += 1
        if value == 1.5:
            raise ValueError("bad luck")
        state["mean"] = None if value == 0 else state["sum"] / state["n"]

    def retract(self, state, value: float):
        state["sum"] -= value
        state["n"] -= 1

    def merge(self, state, other):
        state["sum"] += other["sum"]
        state["n"] += other["n"]
        state["mean"] = other["mean"]

    def get_value(self, state) -> float | None:
        return state["mean"]


@udaf
class Deduplicated:
    """A set, and a text that may be the same object as one in the set."""

    def create_accumulator(self):
        return {"seen": set(), "total": 0, "last": ""}

    def accumulate(self, state, name: str, value: int):
        if name in state["seen"]:
            return
        state["seen"].add(name)
        state["last"] = name
        state["total"] += value
        if name == "bad":
            raise ValueError("bad luck")

    def merge(self, state, other):
        state["seen"] |= other["seen"]
        state["last"] = other["last"]

    def get_value(self, state) -> str:
        return f"{state['last']} {state['total']} {len(state['seen'])}"


@udaf
class Nested:
    """Dicts in a dict: one with fixed keys, and one whose keys are texts."""

    def create_accumulator(self):
        return {"all": {"rows": 0, "least": None}, "by_name": {}}

    def accumulate(self, state, name: str, value: int):
        whole = state["all"]
        whole["rows"] += 1
        if whole["least"] is None or value < whole["least"]:
            whole["least"] = value
        total, count = state["by_name"].get(name, (0, 0))
        state["by_name"][name] = (total + value, count + 1)

    def merge(self, state, other):
        state["all"]["rows"] += other["all"]["rows"]
        for name, (total, count) in other["by_name"].items():
            mine, rows = state["by_name"].get(name, (0, 0))
            state["by_name"][name] = (mine + total, rows + count)

    def get_value(self, state) -> int | None:
        return state["all"]["least"]


@udaf
class Sessions:
    """Times that are None at first, of an object without annotations."""

    def __init__(self):
        self.first = None
        self.last = None
        self.longest = timedelta(0)
        self.sessions = 0

    def accumulate(self, at: datetime):
        if self.last is None or at - self.last > timedelta(seconds=2):
            self.sessions += 1
            self.first = at
        self.longest = max(self.longest, at - self.first)
        self.last = at

    def get_value(self) -> int:
        return self.sessions


@udaf
class Days:
    """A dict of dates without annotation, and a Counter of tuples."""

    def __init__(self):
        self.days = {}
        self.pairs = Counter()
        self.newest = None

    def accumulate(self, day: date, name: str):
        self.days[day] = self.days.get(day, 0) + 1
        self.pairs[(name, day.year)] += 2
        if self.newest is None or day > self.newest:
            self.newest = day

    def retract(self, day: date, name: str):
        self.days[day] -= 1
        if self.days[day] == 0:
            del self.days[day]
        self.pairs[(name, day.year)] -= 1

    def merge(self, other):
        for day, count in other.days.items():
            self.days[day] = self.days.get(day, 0) + count
        self.pairs.update(other.pairs)

    def get_value(self) -> str:
        return f"{len(self.days)} {len(self.pairs)} {self.newest}"


class Streak(NamedTuple):
    """How often in a row."""

    current: int
    best: int


@udaf
class Streaks:
    """A NamedTuple without annotation."""

    def create_accumulator(self):
        return Streak(0, 0)

    def accumulate(self, streak, value: float):
        current = streak.current + 1 if value > 0 else 0
        return streak._replace(current=current, best=max(streak.best, current))

    def merge(self, streak, other):
        return Streak(other.current, max(streak.best, other.best))

    def get_value(self, streak) -> int:
        return streak.best


@dataclass
class Both:
    """Objects and a list within an object."""

    x: Moments = field(default_factory=Moments)
    y: Moments = field(default_factory=Moments)
    shared: float = 0.0
    names: list[str] = field(default_factory=list)
    last: str | None = None


@udaf
class Correlation:
    """Objects within an object, with annotations: their states are structs."""

    def create_accumulator(self) -> Both:
        return Both()

    def accumulate(self, both: Both, value: float, name: str) -> None:
        before = value - both.x.mean
        side = both.y
        both.x.push(value)
        side.push(float(len(name)))
        both.shared += before * (len(name) - side.mean)
        both.names.append(name)
        both.last = name
        if name == "bad":
            raise ValueError("bad luck")

    def merge(self, both: Both, other: Both) -> None:
        both.x.push(other.x.mean)
        both.y.n += other.y.n
        both.names.extend(other.names)

    def get_value(self, both: Both) -> float | None:
        return both.shared / both.x.n + both.y.mean if both.x.n else None


class Side:
    """An object without annotations."""

    def __init__(self):
        self.total = 0.0
        self.names = set()

    def add(self, value):
        self.total += value


@udaf
class Sides:
    """Objects within an object without annotations."""

    def __init__(self):
        self.left = Side()
        self.right = Side()

    def accumulate(self, value: float, name: str):
        if value < 0:
            self.left.add(value)
            self.left.names.add(name)
        else:
            self.right.add(value)
            self.right.names.add(name)

    def merge(self, other):
        self.left.add(other.left.total)
        self.right.names |= other.right.names

    def get_value(self) -> float:
        return self.left.total - self.right.total + len(self.left.names) + len(self.right.names)


@udaf
class Newest:
    """The newest of times with a zone, and the text beside it."""

    def __init__(self):
        self.at = None
        self.name = None

    def accumulate(self, at: Annotated[datetime, "TIMESTAMPTZ"], name: str):
        if self.at is None or at >= self.at:
            self.at, self.name = at, name

    def merge(self, other):
        if other.at is not None and (self.at is None or other.at >= self.at):
            self.at, self.name = other.at, other.name

    def get_value(self) -> str | None:
        return self.name


@udaf
class Geometric:
    """A list of several types, with a number that is None at first, which is unpacked."""

    def create_accumulator(self):
        return [0.0, 0, None, []]

    def accumulate(self, state, value: float, name: str):
        if value <= 0:
            return
        state[0] += math.log(value)
        state[-3] += 1
        if state[2] is None or state[2] < value:
            state[2] = value
        if not state[3] or state[3][-1] != name:
            state[3].append(name)
        if name == "bad":
            raise ValueError("bad luck")

    def merge(self, state, other):
        total, count, greatest, names = other
        state[0] += total
        state[1] += count
        state[2] = greatest
        state[3].extend(names)

    def get_value(self, state) -> float | None:
        return math.exp(state[0] / state[1]) if state[1] else None


@udaf
class Spans:
    """The items of a tuple that may be missing, and what follows from parts of texts."""

    def __init__(self):
        self.spans = {}
        self.hosts = Counter()

    def accumulate(self, name: str, day: date):
        seen = self.spans.get(name)
        if seen is None:
            self.spans[name] = (day, day, 1)
        else:
            self.spans[name] = (min(seen[0], day), max(seen[1], day), seen[2] + 1)
        parts = name.split("a")
        self.hosts[parts[0]] += 1

    def merge(self, other):
        for name, (first, last, days) in other.spans.items():
            mine = self.spans.get(name)
            self.spans[name] = (first, last, days if mine is None else days + mine[-1])
        self.hosts += other.hosts

    def get_value(self) -> int:
        return sum(days for first, last, days in self.spans.values()) + len(self.hosts)


CASES = [Geometric, Spans, Statistics, Deduplicated, Nested, Sessions, Days, Streaks, Correlation, Sides, Newest]
SAMPLES = {
    **VALUES,
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.5, math.nan]), st.floats(-100, 100)),
    pa.int64(): st.one_of(st.integers(-5, 5), VALUES[pa.int64()]),
    pa.string(): st.one_of(st.sampled_from(["", "a", "bad", "a text of more than eight bytes"]), st.text(max_size=3)),
    pa.timestamp("us", "UTC"): VALUES[pa.timestamp("us")],
}
each_case = pytest.mark.parametrize(
    "cls",
    [CASES[0], *(pytest.param(each, marks=pytest.mark.every_turn) for each in CASES[1:])],
    ids=lambda cls: cls.__name__,
)


@each_case
@settings(examples(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_states_values_and_errors_equal_those_of_the_interpreter(
    cls: Any, hot: Programs, data: st.DataObject
) -> None:
    bound = bound_of(cls)
    assert isinstance(hot.program(bound, bound.instantiate()), Program), refusal(hot, bound)
    codec = interpret(bound).codec if bound.state_type == pa.binary() else None
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, SAMPLES, read=codec and codec.decode)


@each_case
def test_no_row_is_interpreted(cls: Any, hot: Programs) -> None:
    """Compiled code goes on after states were merged that the interpreter wrote."""
    bound = bound_of(cls)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(300, dtype=np.int32) % 7
    seconds = [timedelta(seconds=index) for index in range(300)]
    samples: dict[pa.DataType, Any] = {
        pa.string(): [f"name {index % 5}" for index in range(300)],
        pa.float64(): [index % 3 + 0.25 for index in range(300)],
        pa.int64(): range(300),
        pa.date32(): [date(2024, 1, 1) + timedelta(days=index % 9) for index in range(300)],
        pa.timestamp("us"): [datetime(2024, 1, 1) + since for since in seconds],
        pa.timestamp("us", "UTC"): [datetime(2024, 1, 1, tzinfo=UTC) + since for since in seconds],
    }
    columns = [Column("c", pa.array(samples[type_], type_)) for type_ in bound.input_types]
    for _ in range(2):
        for each in (one, other):
            each.update(Rows(slots, None, columns))
        states = other.state(slots[:7])
        for each in (one, other):
            if not bound.function.capabilities.merge:
                each.forget(slots[:7])
            each.merge(slots[:7], states)
        assert one.mode == "compiled"
        assert one.evaluate(slots[:9]).equals(other.evaluate(slots[:9]))


class Batches:
    """The current list, and the one before, which is the same one after a 5."""

    current: list[int]
    before: list[int]

    def __init__(self):
        self.current = []
        self.before = []
        self.last = None


@udaf
class OneList:
    """Two members that become one list."""

    def create_accumulator(self):
        return Batches()

    def accumulate(self, batches, value: int):
        batches.last = value
        if value == 5:
            batches.before = batches.current
        batches.current.append(value)

    def merge(self, batches, other):
        batches.current = other.current
        batches.before = other.before

    def get_value(self, batches) -> int:
        return 100 * len(batches.before) + len(batches.current)


def test_a_list_of_two_members_stays_a_list_in_a_state(hot: Programs) -> None:
    """Pickle keeps that it is one; records would make two lists of it, and only one would have the rows after it."""
    bound = bound_of(OneList)
    assert isinstance(hot.program(bound, bound.instantiate()), Program), refusal(hot, bound)
    slots = np.zeros(1, np.int32)
    for make in (lambda: interpret(bound), lambda: hot.accumulators(interpret(bound))):
        writer, reader = make(), hot.accumulators(interpret(bound))
        writer.update(Rows(slots, None, [Column("c", pa.array([5]))]))
        reader.merge(slots, writer.state(slots))
        reader.update(Rows(slots, None, [Column("c", pa.array([2]))]))
        assert reader.evaluate(slots).to_pylist() == [202]


@udaf
class Shared:
    """Two names of one object."""

    def __init__(self):
        self.left = Moments()
        self.right = self.left

    def accumulate(self, value: float):
        self.left.push(value)

    def get_value(self) -> float:
        return self.right.mean


@udaf
class Replaced(Sides):  # type: ignore[misc]
    """An object that another one replaces."""

    def accumulate(self, value: float, name: str):
        self.left.names.add(name)
        self.right.names.add(name)
        self.left = Side()


@udaf
class DynamicKey(Statistics):  # type: ignore[misc]
    """A key that is not constant."""

    def accumulate(self, state, value: float):
        state["mean"] = value
        state["sum" if value > 1 else "mean"] = value


@udaf
class NewKey(Statistics):  # type: ignore[misc]
    """A key that a new accumulator does not have."""

    def accumulate(self, state, value: float):
        state["mean"] = value
        state["more"] = value


@udaf
class Counts(Statistics):  # type: ignore[misc]
    """A dict as a whole."""

    def accumulate(self, state, value: float):
        state["mean"] = value
        state["n"] = len(state)


@udaf
class Either(Sides):  # type: ignore[misc]
    """One of several objects."""

    def accumulate(self, value: float, name: str):
        self.left.names.add(name)
        self.right.names.add(name)
        side = self.left if value < 0 else self.right
        side.total = value


@udaf
class Unpacked(Statistics):  # type: ignore[misc]
    """A dict that is unpacked: its keys, in Python."""

    def accumulate(self, state, value: float):
        state["mean"] = value
        total, _, _ = state
        state["n"] += len(total)


@udaf
class SortedByKey:
    """A named argument that compiled code does not know."""

    def __init__(self):
        self.top = []

    def accumulate(self, value: float):
        self.top.append(value)
        self.top.sort(key=abs)

    def get_value(self) -> float:
        return self.top[0]


class Asking:
    """An object whose class asks for types."""

    def __init__(self):
        self.total = 0.0 if isinstance(self, Side) else 1.0


@udaf
class Asked:
    """A new accumulator whose object is made by code that may have side effects."""

    def __init__(self):
        self.inner = Asking()

    def accumulate(self, value: float):
        self.inner.total += value

    def get_value(self) -> float:
        return self.inner.total


@udaf
class MixedKeys:
    """Keys of two types."""

    def __init__(self):
        self.counts = defaultdict(int)

    def accumulate(self, value: int, name: str):
        self.counts[value] += 1
        self.counts[name] += 1

    def get_value(self) -> int:
        return len(self.counts)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Shared, "two attributes of its accumulator are the same object"),
        (Replaced, "it calls Side"),
        (DynamicKey, "it uses a key that is not constant of a dict whose values have several types"),
        (NewKey, "it assigns more, which a new accumulator does not have"),
        (Counts, "it calls len of a dict whose values have several types"),
        (Either, "it assigns total of one of several objects; assign it in each branch instead"),
        (Unpacked, "it unpacks a dict"),
        (SortedByKey, "it calls sort with the named argument key"),
        (Asked, "Asked.__init__ uses Asking: Asking.__init__ uses isinstance"),
        (MixedKeys, "MixedKeys.counts is a defaultdict at first; annotate it"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_code_that_is_not_compiled_has_a_reason_with_its_line(cls: Any, why: str, hot: Programs) -> None:
    reason = refusal(hot, bound_of(cls))
    assert why in reason
    assert "(test_compiled_records.py:" in reason


@udaf
class CountedNan:
    """A key that is one object, which Python finds again although it is not equal to itself."""

    def create_accumulator(self) -> dict[float, int]:
        return {}

    def accumulate(self, counts: dict[float, int], value: float):
        key = value if value > 0 else math.nan
        counts[key] = counts.get(key, 0) + 1

    def get_value(self, counts: dict[float, int]) -> int:
        return len(counts)


def test_the_interpreter_keeps_groups_with_keys_that_are_nan(hot: Programs) -> None:
    """A record would not keep the object, so the next row would add a key."""
    bound = bound_of(CountedNan)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(40, dtype=np.int32) % 4
    values = [Column("value", pa.array([-1.0 if index % 8 == 0 else 1.0 for index in range(40)]))]
    for _ in range(2):
        for each in (one, other):
            each.update(Rows(slots, None, values))
        assert one.mode == "compiled"
        assert one.evaluate(slots[:4]).equals(other.evaluate(slots[:4]))
    assert one.evaluate(slots[:4]).to_pylist() == [2, 1, 1, 1]
