"""Accumulators without annotations in compiled code: states are the interpreter's pickles, byte for byte."""

import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import NoProgram, Program
from foldflight.fold.rows import Column, Rows
from tests.effort import examples
from tests.laws.alike import VALUES, bound_of, folds_alike, interpret


@udaf
class Summed:
    """A sum that starts at 0: no annotation says that it is an int."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return 0

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        return accumulator + value

    def retract(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        return accumulator - value

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        return accumulator + other

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return accumulator


class State:
    """An int, two floats and a truth value, set in __init__."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self.seen = False


class _Methods:
    """Welford's variance; one value in twenty has an error after it has changed the accumulator."""

    def accumulate(self, accumulator: State, value: float) -> None:
        accumulator.count += 1
        delta = value - accumulator.mean
        accumulator.mean += delta / accumulator.count
        accumulator.squares += delta * (value - accumulator.mean)
        accumulator.seen = True
        if value == 1.5:
            raise ValueError("bad luck")

    def merge(self, accumulator: State, other: State) -> None:
        count = accumulator.count + other.count
        if count == 0:
            return
        delta = other.mean - accumulator.mean
        accumulator.squares += other.squares + delta * delta * accumulator.count * other.count / count
        accumulator.mean += delta * other.count / count
        accumulator.count = count

    def get_value(self, accumulator: State) -> float | None:
        return accumulator.squares / accumulator.count if accumulator.seen else None


@udaf
class Welford(_Methods):
    """The class of the accumulator is known by its annotation."""

    def create_accumulator(self) -> State:
        return State()


@udaf
class Unannotated(_Methods):
    """The class of the accumulator is known by the code of create_accumulator."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return State()


@udaf
class Itself:
    """A class that is its own accumulator. Its result is a list, so get_value is interpreted."""

    def __init__(self) -> None:
        self.largest = 0
        self.rows = 0

    def accumulate(self, value: int) -> None:
        self.rows += 1
        self.largest = max(self.largest, value)

    def merge(self, other: "Itself") -> None:
        self.rows += other.rows
        self.largest = max(self.largest, other.largest)

    def get_value(self) -> list[int]:
        return [self.largest, self.rows]


@udaf
class TurnsFloat(Summed):
    """The accumulator of the first row is an int, and the accumulator of the second a float."""

    def accumulate(self, accumulator, value: float):  # type: ignore[no-untyped-def]
        return accumulator + value


@udaf
class TurnsInt(_Methods):
    """An attribute is a float at first, and an int later."""

    def create_accumulator(self) -> State:
        return State()

    def accumulate(self, accumulator: State, value: float) -> None:
        accumulator.mean = 0


class Reduced(State):
    """A class that defines how it is pickled."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "more": 1}


@udaf
class PicklesItself(_Methods):
    """An accumulator whose pickle is the author's."""

    def create_accumulator(self) -> Reduced:
        return Reduced()


class Grown(State):
    """A class with an attribute that compiled code does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.name = Decimal(0)


@udaf
class Unsaid:
    """A Counter whose keys only the argument tells."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Counter()

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        accumulator[value] += 1

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.update(other)

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return len(accumulator)


def _length(value):  # type: ignore[no-untyped-def]
    return divmod(len(value), 1)[0]


@udaf
class Misjudged:
    """A Counter that also counts something else, which only a function's code tells."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Counter()

    def accumulate(self, accumulator, value: str):  # type: ignore[no-untyped-def]
        accumulator[value] += 1
        accumulator[_length(value)] += 1

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return len(accumulator)


@dataclass
class Extremes:
    """Numbers that are None at first, or may become it."""

    least: float | None = None
    rows: int | None = 0
    was_odd: bool | None = None
    total: int = 0


@udaf
class Ranged:
    """The class of the accumulator has annotations, but nothing says that create_accumulator returns it."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Extremes()

    def accumulate(self, accumulator, value: float, kind: int):  # type: ignore[no-untyped-def]
        if accumulator.least is None or value < accumulator.least:
            accumulator.least = value
        accumulator.total += kind
        accumulator.rows = None if kind % 2 == 0 else (accumulator.rows or 0) + 1
        accumulator.was_odd = kind % 2 == 1
        if kind == 13:
            raise ValueError("bad luck")

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        if other.least is not None and (accumulator.least is None or other.least < accumulator.least):
            accumulator.least = other.least
        accumulator.rows = other.rows
        accumulator.total += other.total

    def get_value(self, accumulator) -> float | None:  # type: ignore[no-untyped-def]
        if accumulator.least is None or accumulator.rows is None:
            return accumulator.least
        return accumulator.least + accumulator.rows + (1.0 if accumulator.was_odd else 0.0)


class Replaced:
    """What is None at first."""

    def __init__(self) -> None:
        self.last = None


@dataclass
class MaybeFloat(Extremes):
    """What Extremes has."""


@udaf
class TurnsOptionalInt(Ranged):  # type: ignore[misc]
    """An attribute that may be None is a float by its annotation, and an int later."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return MaybeFloat()

    def accumulate(self, accumulator, value: float, kind: int):  # type: ignore[no-untyped-def]
        accumulator.least = kind


@udaf
class Nesting(Unsaid):  # type: ignore[misc]
    """A list of lists."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return []

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        accumulator.append([value])


@udaf
class Replacing(Ranged):  # type: ignore[misc]
    """A member that is None at first, and then an object."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Replaced()

    def accumulate(self, accumulator, value: float, kind: int):  # type: ignore[no-untyped-def]
        accumulator.last = Extremes(value, kind)


@udaf
class Gathering(Unsaid):  # type: ignore[misc]
    """A list of objects."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return []

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        accumulator.append(Extremes(0.0, value))


@udaf
class Words:
    """A Counter that counts the items of lists and the characters of texts."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Counter()

    def accumulate(self, accumulator, value: str):  # type: ignore[no-untyped-def]
        accumulator.update(value.lower().split())
        if len(value) < 4:
            accumulator.update(value)
        if value == "bad":
            raise ValueError("bad luck")

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.update(other)

    def get_value(self, accumulator) -> str:  # type: ignore[no-untyped-def]
        return ",".join(f"{word}={count}" for word, count in accumulator.items())


@udaf
class Streak:
    """A dict that holds something at first; after a value in seven it has an error after a change."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"current": 0, "best": 0}

    def accumulate(self, accumulator, value: int):  # type: ignore[no-untyped-def]
        accumulator["current"] = accumulator["current"] + value if value % 2 == 0 else 0
        if value == 13:
            raise ValueError("bad luck")
        accumulator["best"] = max(accumulator["best"], accumulator["current"])

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator["best"] = max(accumulator["best"], other["best"])

    def get_value(self, accumulator) -> int:  # type: ignore[no-untyped-def]
        return accumulator["best"] - accumulator["current"]


@udaf
class Levels:
    """A dict of ten keys at first, so that it has an index. Keys are deleted and added again, at its end."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"": 0.0, "a": 1.5, "bad": 2.0, "c": 0.0, "d": 0.0, "e": 0.0, "f": 0.0, "g": 0.0, "h": 0.0, "büy": -0.0}

    def accumulate(self, accumulator, value: str):  # type: ignore[no-untyped-def]
        if value in accumulator:
            accumulator[value] += 1.0
        elif len(value) == 3:
            accumulator[value] = -1.0
        if len(value) == 2:
            accumulator["a"] = accumulator.pop("a", 0.0)
        if value == "bad":
            raise ValueError("bad luck")

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        for level, count in other.items():
            accumulator[level] = accumulator.get(level, 0.0) + count

    def get_value(self, accumulator) -> str:  # type: ignore[no-untyped-def]
        return ",".join(f"{level}{count:.1f}" for level, count in accumulator.items())


@udaf
class Recent:
    """A deque without annotation, whose items are the argument."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return deque(maxlen=3)

    def accumulate(self, accumulator, value: float):  # type: ignore[no-untyped-def]
        accumulator.append(value)

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.extend(other)

    def get_value(self, accumulator) -> float | None:  # type: ignore[no-untyped-def]
        return accumulator[0] if accumulator else None


@udaf
class RecentPairs:
    """A deque of tuples, which drops some at both ends."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return deque(maxlen=3)

    def accumulate(self, accumulator, value: int, text: str):  # type: ignore[no-untyped-def]
        if value % 3 == 0:
            accumulator.appendleft((value, text, 0.5))
        else:
            accumulator.append((value, text, 1.5))

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.extend(other)

    def get_value(self, accumulator) -> str:  # type: ignore[no-untyped-def]
        return "".join(f"{value}{text}" for value, text, _ in accumulator)


@udaf
class LastUsed:
    """An OrderedDict of the keys used last, whose order changes at both ends."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return OrderedDict()

    def accumulate(self, accumulator, value: int, text: str):  # type: ignore[no-untyped-def]
        if text in accumulator:
            accumulator.move_to_end(text)
        accumulator[text] = accumulator.get(text, 0) + value % 3
        if len(accumulator) > 4:
            old, count = accumulator.popitem(last=False)
            accumulator[old[:1]] = count
        if value % 4 == 0 or value == 13:
            accumulator.popitem()
        if value == 13:
            accumulator.move_to_end(text)  # it may be gone

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.update(other)

    def get_value(self, accumulator) -> str:  # type: ignore[no-untyped-def]
        return "".join(f"{text}{count}" for text, count in accumulator.items())


@udaf
class Kept:
    """A list without annotation, whose items are the argument."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return []

    def accumulate(self, accumulator, value: float):  # type: ignore[no-untyped-def]
        accumulator.append(value)

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator += other

    def get_value(self, accumulator) -> float | None:  # type: ignore[no-untyped-def]
        return max(accumulator) if accumulator else None


class Tally:
    """A dict that holds something at first, beside a defaultdict whose keys the argument tells."""

    def __init__(self) -> None:
        self.hits = {0: 5, 1: 0}
        self.sums = defaultdict(float)  # type: ignore[var-annotated]
        self.rows = 0


@udaf
class Tallied:
    """An object with two containers."""

    def create_accumulator(self) -> Tally:
        return Tally()

    def accumulate(self, accumulator: Tally, value: int) -> None:
        accumulator.rows += 1
        accumulator.hits[value % 2] += 1
        accumulator.sums[value] += 0.5
        if value == 13:
            del accumulator.hits[0]  # later rows raise KeyError

    def merge(self, accumulator: Tally, other: Tally) -> None:
        accumulator.rows += other.rows
        for key, count in other.hits.items():
            accumulator.hits[key] = accumulator.hits.get(key, 0) + count

    def get_value(self, accumulator: Tally) -> int:
        return accumulator.hits[0] * 100 + accumulator.rows + len(accumulator.sums)


@udaf
class Varying(Streak):  # type: ignore[misc]
    """Each new accumulator holds something else."""

    made = 0

    @property
    def best(self) -> int:
        type(self).made += 1
        return self.made

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {"current": 0, "best": self.best}


@udaf
class Whole(Streak):  # type: ignore[misc]
    """Ints among floats, which typed states would turn to floats."""

    def create_accumulator(self) -> dict[str, float]:
        return {"current": 0, "best": 0.5}


@udaf
class StartsWithNan(Streak):  # type: ignore[misc]
    """A key that only the same object finds."""

    def create_accumulator(self) -> dict[float, float]:
        return {0.5: 1.0, math.nan: 0.0}


class Held:
    def __init__(self) -> None:
        self.counts = Counter()  # type: ignore[var-annotated]


@udaf
class HoldsCounter(_Methods):
    """An accumulator with a Counter, whose annotation would not have it compiled if its keys are texts."""

    def create_accumulator(self) -> Held:
        return Held()


@udaf
class HoldsDecimal(_Methods):
    """An accumulator with a decimal."""

    def create_accumulator(self) -> Grown:
        return Grown()


@udaf
class Tupled:
    """A tuple without annotation, and a value that is given up after a change."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return 0.0, 0

    def accumulate(self, accumulator, value: float):  # type: ignore[no-untyped-def]
        total, count = accumulator
        return total + value, count + 1

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        return accumulator[0] + other[0], accumulator[1] + other[1]

    def get_value(self, accumulator) -> float | None:  # type: ignore[no-untyped-def]
        return accumulator[0] / accumulator[1] if accumulator[1] else None


@udaf
class CountedTexts:
    """A Counter with its usual operations; its result is interpreted."""

    def create_accumulator(self) -> Counter[str]:
        return Counter()

    def accumulate(self, accumulator: Counter[str], value: str) -> None:
        accumulator[value] += 1
        accumulator["a"] -= 1 + accumulator["nothing"]
        del accumulator["no text"]
        if len(value) == 3:
            accumulator.subtract(accumulator)
        if len(value) == 2:
            accumulator += accumulator
            del accumulator[value]
        if value == "bad":
            raise ValueError("bad luck")

    def merge(self, accumulator: Counter[str], other: Counter[str]) -> None:
        accumulator.update(other)

    def get_value(self, accumulator: Counter[str]) -> str | None:
        return accumulator.most_common(1)[0][0] if accumulator else None


@udaf
class Defaulted:
    """A defaultdict, which adds a key that is only read; its result adds a key, too."""

    def create_accumulator(self) -> defaultdict[int, float]:
        return defaultdict(float)

    def accumulate(self, accumulator: defaultdict[int, float], value: int) -> None:
        if accumulator[value % 5] > accumulator[value % 3]:
            accumulator[7] += 1.5
        accumulator[value % 7] += 1.0
        if value == 13:
            raise ValueError("bad luck")

    def merge(self, accumulator: defaultdict[int, float], other: defaultdict[int, float]) -> None:
        for key, value in other.items():
            accumulator[key] += value

    def get_value(self, accumulator: defaultdict[int, float]) -> list[float]:
        return [accumulator[100], *accumulator.values()]


class Window:
    """A deque with a limit, one without, and a dict, as attributes of an object."""

    recent: deque[float]
    kept: deque[int]
    counts: dict[int, int]

    def __init__(self) -> None:
        self.recent = deque(maxlen=3)
        self.kept = deque()
        self.counts = {}


@udaf
class Windowed:
    """Deques that grow and shrink at both ends, also within a loop, which Python refuses."""

    def create_accumulator(self) -> Window:
        return Window()

    def accumulate(self, accumulator: Window, value: float, kind: int) -> None:
        accumulator.recent.append(value)
        accumulator.recent[-1] += 1.0
        accumulator.kept.append(kind)
        accumulator.counts[kind % 4] = len(accumulator.recent)
        if kind % 5 == 0:
            accumulator.recent.appendleft(value)
        if kind % 5 == 1:
            accumulator.counts[9] = accumulator.kept.popleft() + accumulator.kept.pop()
        if kind % 7 == 2:
            accumulator.recent.clear()
        if kind % 7 == 3:
            for each in accumulator.kept:
                if each == 3:
                    accumulator.kept.pop()
                    accumulator.kept.append(4)

    def merge(self, accumulator: Window, other: Window) -> None:
        accumulator.recent.extend(other.recent)
        accumulator.kept += other.kept
        accumulator.counts.update(other.counts)

    def get_value(self, accumulator: Window) -> float:
        total = 0.0
        for each in accumulator.recent:
            total += each
        return total + (accumulator.kept[0] if accumulator.kept else -1) + len(accumulator.counts)


@udaf
class Sketched:
    """A bytearray, whose items are 0 to 255."""

    def create_accumulator(self) -> bytearray:
        return bytearray(70)

    def accumulate(self, accumulator: bytearray, value: int) -> None:
        accumulator[value % 70] |= 1 << (value % 8)
        accumulator[-1] = value % 257

    def merge(self, accumulator: bytearray, other: bytearray) -> None:
        for place, byte in enumerate(other):
            accumulator[place] |= byte

    def get_value(self, accumulator: bytearray) -> int:
        total = 0
        for byte in accumulator:
            total += byte
        return total + len(accumulator)


class Pair:
    """Two lists, a dict and a number."""

    def __init__(self) -> None:
        self.mine = []  # type: ignore[var-annotated]
        self.others = []  # type: ignore[var-annotated]
        self.counts = {0: 0}
        self.rows = 0


@udaf
class MergedByPython:
    """A merge that only Python knows, and that may make two members one list, which rows after it change."""

    def create_accumulator(self) -> Pair:
        return Pair()

    def accumulate(self, accumulator: Pair, value: int) -> None:
        accumulator.rows += value
        accumulator.mine.append(value)
        if value % 3 == 0:
            accumulator.others.append(-value)
        if value == 13:
            raise ValueError("bad luck")

    def merge(self, accumulator: Pair, other: Pair) -> None:
        accumulator.rows, accumulator.others = sum(map(int, (accumulator.rows, other.rows))), other.others
        if accumulator.rows % 5 == 0:
            accumulator.others = accumulator.mine
        if accumulator.rows % 7 == 0:
            raise ValueError("bad luck")
        if accumulator.rows % 11 == 0:
            accumulator.counts["rows"] = accumulator.rows  # type: ignore[index]
        accumulator.mine += other.mine

    def get_value(self, accumulator: Pair) -> int:
        return accumulator.rows + 100 * len(accumulator.others) + len(accumulator.mine)


@dataclass
class Reals:
    """A typed list of floats."""

    reals: list[float]


@udaf
class MergedAsWholes:
    """A merge that only Python knows and that puts ints among floats, of which a typed state makes floats."""

    def create_accumulator(self) -> Reals:
        return Reals([])

    def accumulate(self, accumulator: Reals, value: int) -> None:
        accumulator.reals.append(value / 2)

    def merge(self, accumulator: Reals, other: Reals) -> None:
        accumulator.reals = [*map(int, accumulator.reals), *other.reals]

    def get_value(self, accumulator: Reals) -> str:
        return f"{accumulator.reals!r}"


@udaf
class MergedInTurns(Tupled):  # type: ignore[misc]
    """A tuple that is merged by a generator."""

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        return tuple(one + more for one, more in zip(accumulator, other, strict=True))


CONTAINERS = [Ranged, Unsaid, Words, Streak, Levels, Recent, RecentPairs, LastUsed, Kept, Tallied]
ONLY_ROWS = [CountedTexts, MergedInTurns]


@udaf
class WholeList:
    """All items of a list of several types are assigned at once: from a list, a tuple, and another accumulator."""

    def create_accumulator(self):
        return [0, 0.0, 0.0]

    def accumulate(self, acc, value: float, weight: int):
        n, mean, rest = acc
        if math.isnan(value):
            acc[:] = 0, rest, mean
            return
        n += weight
        delta = value - mean
        acc[:] = [n, mean + delta / max(n, 1), acc[2] + delta * (value - mean)]

    def merge(self, acc, other):
        if acc[0] == 0:
            acc[:] = other
        else:
            acc[:] = [acc[0] + other[0], acc[2] + other[1], acc[1]]

    def get_value(self, acc) -> str:
        return f"{acc[0]} {acc[1]:.3f} {acc[2]:.3f}"


@udaf
class WholePair:
    """All items of a list of one type are assigned at once, in a loop and as an exchange of both."""

    def create_accumulator(self):
        return [0, 1]

    def accumulate(self, acc, value: int):
        for step in range(2):
            acc[:] = [acc[1], value + step]
        if value > 3:
            acc[:] = acc[1], acc[0]

    def merge(self, acc, other):
        acc[:] = other

    def get_value(self, acc) -> int:
        return acc[0] * 3 + acc[1]


@udaf
class Paths:
    """A Counter whose keys come from methods and functions of the author, without annotations."""

    def create_accumulator(self):
        return Counter()

    def accumulate(self, acc, path: str, status: int):
        acc[self.key(path, status)] += 1

    def merge(self, acc, other):
        acc.update(other)

    def get_value(self, acc) -> int:
        return sum(acc.values()) * 1000 + len(acc)

    def key(self, path, status):
        if status < 0:
            return self.first_part(path)
        return f"{last_digit(status)} {path}"

    @staticmethod
    def first_part(path):
        return path.split("/")[0]


def last_digit(number):  # type: ignore[no-untyped-def]
    return str(number % 10)


COMPILED = [
    Summed,
    Paths,
    WholeList,
    WholePair,
    Welford,
    Unannotated,
    Tupled,
    Defaulted,
    Windowed,
    Sketched,
    *ONLY_ROWS,
    *CONTAINERS,
    Itself,
]
FINITE = {
    **VALUES,
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.5, 2.0]), st.floats(-100, 100)),
    pa.int64(): st.one_of(st.integers(-5, 40), VALUES[pa.int64()]),
    pa.string(): st.one_of(
        st.sampled_from(["", "a", "bad", "ab", "a text of more than eight bytes"]), st.text(max_size=3)
    ),
}


each_case = pytest.mark.parametrize(
    "cls",
    [COMPILED[0], COMPILED[-1], *(pytest.param(each, marks=pytest.mark.slow) for each in COMPILED[1:-1])],
    ids=lambda cls: cls.__name__,
)


@pytest.mark.slow
@each_case
@settings(examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_states_equal_the_pickles_of_the_interpreter(cls: Any, hot: Programs, data: st.DataObject) -> None:
    """Rows, states, values and errors are equal, also where a sum leaves 64 bits and returns."""
    bound = bound_of(cls)
    assert bound.state_type == pa.binary()
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, FINITE)


@each_case
def test_untyped_accumulators_are_compiled(cls: Any, hot: Programs) -> None:
    """The interpreter folds no row, before and after its states were read."""
    bound = bound_of(cls)
    assert isinstance(hot.program(bound, bound.instantiate()), Program)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(1000, dtype=np.int32) % 7
    for _ in range(2):
        values = [Column("value", pa.array(14 + np.arange(1000) % 16 * 35).cast(type_)) for type_ in bound.input_types]
        for each in (one, other):
            each.update(Rows(slots, None, values))
        states = other.state(slots[:7])
        for each in (one, other):
            each.merge(slots[:7], states)
        assert one.mode == "compiled"
        assert one.state(slots[:9]).equals(other.state(slots[:9]))
        assert one.evaluate(slots[:9]).equals(other.evaluate(slots[:9]))


@pytest.mark.slow
@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_interpreted_merge_shares_what_python_shares(hot: Programs, data: st.DataObject) -> None:
    """Members that become one list, or hold other types, stay interpreted, and those that raise have Python's error."""
    bound = bound_of(MergedByPython)
    # Python writes the text "rows" once, as a key and as the name of an attribute, and compiled code twice. So states
    # are compared by what they hold, and members that are one list are found by the chunks after it.
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, FINITE, read=interpret(bound).codec.decode)


@pytest.mark.every_turn
def test_results_of_an_interpreted_merge_are_those_of_its_states(hot: Programs) -> None:
    """An interpreted get_value sees what the typed state of an accumulator holds, also if the merge put other types."""
    bound = bound_of(MergedAsWholes)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program)
    assert program.values is None
    assert program.merge is None
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(3, dtype=np.int32)
    for each in (one, other):
        each.update(Rows(slots, None, [Column("value", pa.array([2, 3, 4]))]))
        each.merge(slots[:1], each.state(slots[1:2]))
        assert each.evaluate(slots).to_pylist() == ["[1.0, 1.5]", "[1.5]", "[2.0]"]
    assert one.mode == "compiled"


@pytest.mark.every_turn
@pytest.mark.parametrize(("value", "mode"), [(1, "compiled"), (5, "interpreted")], ids=["apart", "shared"])
def test_only_merge_is_interpreted(value: int, mode: str, hot: Programs) -> None:
    """Compiled code goes on after a merge that is interpreted, unless the merge made two members one list.

    The listing says why it is interpreted.
    """
    bound = bound_of(MergedByPython)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program)
    assert program.interprets.startswith("merge is interpreted: ")
    assert "it calls map (test_compiled_untyped.py:" in program.interprets
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(24, dtype=np.int32) % 4
    rows = Rows(slots, None, [Column("value", pa.array([value] * 24))])
    for _ in range(2):
        for each in (one, other):
            each.update(rows)
            each.merge(slots[:8], each.state(slots[:8]))
        assert one.state(slots[:4]).equals(other.state(slots[:4]))
        assert one.evaluate(slots[:4]).equals(other.evaluate(slots[:4]))
    assert one.mode == mode


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (TurnsFloat, "returns float64, and the accumulator is int"),
        (TurnsInt, "it assigns int to an attribute without annotation that is float at first"),
        (PicklesItself, "Reduced defines how it is pickled"),
        (HoldsDecimal, "Grown.name is a Decimal at first; annotate it"),
        (HoldsCounter, "Held.counts is a Counter at first; annotate it, as in Counter[str]"),
        (TurnsOptionalInt, "it uses a int as a member that is a float"),
        (
            Nesting,
            "it is a list that holds a list; containers in containers are compiled as values of dicts only; use a dict",
        ),
        (Replacing, "Replaced.last is None at first, and then a Extremes; objects that are replaced are not compiled"),
        (Gathering, "it is a list that holds a Extremes; objects in containers are not compiled; put plain tuples"),
        (Varying, "create_accumulator does not always return equal accumulators"),
        (Whole, "the initial value of its accumulator holds 0, but its annotation is float; write 0.0"),
        (StartsWithNan, "its accumulator has the key NaN at first"),
        (
            Misjudged,
            "the key of [] is int, and text is annotated; it is a Counter at first, and taken for Counter[str] unless",
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_types_that_are_not_certain_are_interpreted(cls: Any, why: str) -> None:
    """The reason tells what to write. What is certain comes first, and a guess at the types after it."""
    bound = bound_of(cls)
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert why in re.sub(r" \(\w+\.py:\d+\)", "", result.reason)


@pytest.mark.parametrize(
    ("create_accumulator", "why"),
    [
        (lambda self: {}, "it is a dict at first; annotate it, as in dict[str, int]"),
        (lambda self: [[]], "it is a list at first; annotate it, as in list[float]"),
        (lambda self: None, "it is None at first; return an accumulator whose members are None instead"),
        (
            lambda self: defaultdict(list),
            "it is a defaultdict that holds a list for each key; what that holds is not certain; annotate it",
        ),
        (
            lambda self: defaultdict(lambda: [0]),
            "it is a defaultdict that holds a container for each key",
        ),
        (
            lambda self: {"a": 0, "b": 0.0},
            "it uses a key that is not constant of a dict whose values have several types",
        ),
        (
            lambda self: [0.0, None],
            "the value of 1 is None at first; make the accumulator a class with annotated attributes",
        ),
    ],
    ids=["dict", "list", "none", "lists", "made", "mixed", "several"],
)
def test_containers_without_annotations_tell_how_to_annotate_them(create_accumulator: Any, why: str) -> None:
    members = {name: vars(Unsaid)[name] for name in ("accumulate", "get_value")}
    bound = bound_of(udaf(type("Plain", (), {**members, "create_accumulator": create_accumulator})))
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert why in result.reason


@pytest.mark.parametrize("values", ["[1, 2]", "[x for x in acc]", "(1, 2, 3, 4)"])
def test_another_number_of_items_is_not_assigned_at_once(values: str) -> None:
    """Such a list gets other items in Python, or an unknown number of them."""
    source = f"def accumulate(self, acc, value: int):\n    acc[:] = {values}\n"
    scope: dict[str, Any] = {}
    exec(source, scope)
    members = {"accumulate": scope["accumulate"], "create_accumulator": lambda self: [0, 1, 2]}
    members["get_value"] = vars(WholePair)["get_value"]
    bound = bound_of(udaf(type("Longer", (), members)))
    result = Programs(hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(result, NoProgram)
    assert "it assigns all items of a list of 3, but not as in `items[:] = [a, b]`" in result.reason


def test_a_state_with_other_types_is_interpreted(hot: Programs) -> None:
    """A state of another history, in which the sum became a float, is merged as Python merges it."""
    bound = bound_of(Summed)
    writer = interpret(bound)
    writer.load(np.zeros(1, np.int32), [0.5])
    state = writer.state(np.zeros(1, np.int32))
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.zeros(2, np.int32)
    for each in (one, other):
        each.update(Rows(slots, None, [Column("value", pa.array([1, 2]))]))
        each.merge(slots[:1], state)
    assert one.mode == "interpreted"
    assert one.state(slots[:1]).equals(other.state(slots[:1]))
