"""Growing lists, dicts and sets in compiled code equal the interpreter's: states, outputs and errors, for any rows."""

import heapq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compiled import CompiledAccumulators
from foldflight.ext.compiler.program import Program
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction
from tests.effort import examples
from tests.laws.alike import REAL, VALUES, folds_alike, interpret, refusal, same


@udaf
class Counted:
    """A dict of counts whose entries are removed at zero; a row in three has an error after it has changed the dict."""

    def create_accumulator(self) -> dict[int, int]:
        return {}

    def accumulate(self, accumulator: dict[int, int], value: int) -> None:
        accumulator[value % 40] = accumulator.get(value % 40, 0) + 1
        if value == 13:
            raise ValueError("bad luck")

    def retract(self, accumulator: dict[int, int], value: int) -> None:
        key = value % 40
        if key in accumulator:
            accumulator[key] -= 1
            if accumulator[key] == 0:
                del accumulator[key]
        else:
            accumulator[key] = -1

    def merge(self, accumulator: dict[int, int], other: dict[int, int]) -> None:
        for key, count in other.items():
            accumulator[key] = accumulator.get(key, 0) + count

    def get_value(self, accumulator: dict[int, int]) -> int:
        total = 0
        for key, count in accumulator.items():
            total += key * count
        for key in accumulator:
            total += key
        return total + sum(accumulator.values()) if accumulator else len(accumulator)


@udaf
class Weighed:
    """A dict with floats as keys (0.0 and -0.0, NaN), with pop and setdefault; its result is interpreted."""

    def create_accumulator(self) -> dict[float, tuple[float, int]]:
        return {}

    def accumulate(self, accumulator: dict[float, tuple[float, int]], key: float, value: float) -> None:
        total, count = accumulator.setdefault(key, (0.0, 0))
        accumulator[key] = (total + value, count + 1)
        if count == 3:
            total, count = accumulator.pop(key)
            accumulator[-key] = (total, count)

    def merge(self, accumulator: dict[float, tuple[float, int]], other: dict[float, tuple[float, int]]) -> None:
        accumulator.update(other)

    def get_value(self, accumulator: dict[float, tuple[float, int]]) -> list[float]:
        return sorted(accumulator, key=accumulator.__getitem__)


@udaf
class Distinct:
    """A set with discard and its union."""

    def create_accumulator(self) -> set[int]:
        return set()

    def accumulate(self, accumulator: set[int], value: int) -> None:
        if value < 0:
            accumulator.discard(-value)
        else:
            accumulator.add(value)

    def merge(self, accumulator: set[int], other: set[int]) -> set[int]:
        accumulator |= other
        return accumulator

    def get_value(self, accumulator: set[int]) -> int | None:
        return max(accumulator) - min(accumulator) + len(accumulator) if accumulator else None


@udaf
class Median:
    """A list of floats, sorted in get_value."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator: list[float], value: float) -> None:
        accumulator.append(value)

    def merge(self, accumulator: list[float], other: list[float]) -> None:
        accumulator.extend(other)

    def get_value(self, accumulator: list[float]) -> float | None:
        if not accumulator:
            return None
        sorted_values = sorted(accumulator)
        middle = len(sorted_values) // 2
        return (
            sorted_values[middle] if len(sorted_values) % 2 else (sorted_values[middle - 1] + sorted_values[middle]) / 2
        )


@udaf
class Greatest:
    """The greatest three numbers in a heap."""

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator: list[float], value: float) -> None:
        if len(accumulator) < 3:
            heapq.heappush(accumulator, value)
        elif value > accumulator[0]:
            heapq.heapreplace(accumulator, value)
        else:
            heapq.heappush(accumulator, heapq.heappop(accumulator))

    def merge(self, accumulator: list[float], other: list[float]) -> None:
        for value in other:
            self.accumulate(accumulator, value)

    def get_value(self, accumulator: list[float]) -> float:
        return accumulator[0] if accumulator else 0.0


@dataclass
class Kept:
    """A list, a dict with tuples as keys, a set and a number."""

    last: list[tuple[int, float]] = field(default_factory=list)
    pairs: dict[tuple[int, bool], int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    rows: int = 0


@udaf
class Several:
    """A window of the last five rows, with inserts, slices, and rows that are given up after several changes."""

    def create_accumulator(self) -> Kept:
        return Kept()

    def accumulate(self, accumulator: Kept, value: int, amount: float) -> None:
        accumulator.rows += 1
        accumulator.last.append((value, amount))
        accumulator.pairs[(value % 3, amount > 0)] = accumulator.rows
        accumulator.seen.add(value)
        if value % 7 == 1:
            accumulator.last.insert(1, (0, amount))
        if value % 7 == 2:
            del accumulator.last[0]
        if len(accumulator.last) > 5:
            accumulator.last = accumulator.last[-5:]
        if value % 11 == 3:
            accumulator.last.pop()
            accumulator.seen.remove(value)
            accumulator.last.clear()
            accumulator.last.append((1, 1.0 / (amount - 2.0)))

    def merge(self, accumulator: Kept, other: Kept) -> None:
        accumulator.last += other.last
        accumulator.seen.update(other.seen)
        accumulator.rows += other.rows
        for (value, flag), rows in other.pairs.items():
            accumulator.pairs[value, flag] = rows

    def get_value(self, accumulator: Kept) -> float | None:
        total = 0.0
        for place, (value, amount) in enumerate(accumulator.last):
            total += place * value + amount
        return total + len(accumulator.pairs) + len(accumulator.seen)


@dataclass
class Steps:
    """A dict with texts as keys and values, the texts in their order, and the last one."""

    after: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[str, int]] = field(default_factory=list)
    counts: dict[tuple[int, str], int] = field(default_factory=dict)


@udaf
class Worded:
    """Texts in dicts and lists; its result is interpreted."""

    def create_accumulator(self) -> Steps:
        return Steps()

    def accumulate(self, accumulator: Steps, step: str, value: int) -> None:
        if step not in accumulator.after:
            accumulator.after[step] = step[:2]
        accumulator.steps.append((step, value))
        key = (value % 2, step)
        accumulator.counts[key] = accumulator.counts.get(key, 0) + 1
        if len(accumulator.steps) > 6:
            del accumulator.steps[:3]
            accumulator.after.pop(step)

    def merge(self, accumulator: Steps, other: Steps) -> None:
        accumulator.after.update(other.after)
        accumulator.steps.extend(other.steps)
        for (value, step), count in other.counts.items():
            accumulator.counts[value, step] = accumulator.counts.get((value, step), 0) + count

    def get_value(self, accumulator: Steps) -> str:
        return ",".join([*accumulator.after.values(), *(step for step, _ in accumulator.steps)])


@dataclass
class Bounds:
    """Containers that hold something at first, and one that does not."""

    widest: dict[str, float] = field(default_factory=lambda: {"low": 0.0, "high": 100.0})
    seen: set[int] = field(default_factory=lambda: {5, 14})
    last: list[int] = field(default_factory=list)


@udaf
class Bounded:
    """A dict and a set that hold something at first."""

    def create_accumulator(self) -> Bounds:
        return Bounds()

    def accumulate(self, accumulator: Bounds, value: int) -> None:
        accumulator.seen.discard(value % 20)
        accumulator.seen.add(value % 7)
        accumulator.widest["low"] = min(accumulator.widest["low"], value % 50 - 25.0)
        accumulator.last.append(value)
        if value == 13:
            raise ValueError("bad luck")
        if value % 40 == 3:
            del accumulator.widest["high"]
            accumulator.widest["high"] = -1.0

    def merge(self, accumulator: Bounds, other: Bounds) -> None:
        accumulator.widest.update(other.widest)
        accumulator.seen |= other.seen
        accumulator.last.extend(other.last)

    def get_value(self, accumulator: Bounds) -> float:
        return accumulator.widest["low"] + accumulator.widest["high"] + max(accumulator.seen) + len(accumulator.last)


@dataclass
class Parts:
    """A set, a list and a dict."""

    seen: set[int] = field(default_factory=set)
    last: list[float] = field(default_factory=list)
    latest: dict[int, float] = field(default_factory=dict)


@udaf
class Joined:
    """Containers that are replaced by new ones, made of two; their operands stay as they are."""

    def create_accumulator(self) -> Parts:
        return Parts()

    def accumulate(self, accumulator: Parts, value: int, weight: float) -> None:
        accumulator.seen = accumulator.seen | {value % 9}
        accumulator.last = (accumulator.last + [weight])[-3:]  # noqa: RUF005 - as people write it
        accumulator.latest = {value % 3: 0.5} | accumulator.latest | {value % 4: weight}
        if value == 13:
            raise ValueError("bad luck")

    def merge(self, accumulator: Parts, other: Parts) -> None:
        accumulator.seen = other.seen | accumulator.seen
        accumulator.last = other.last + accumulator.last
        accumulator.latest = accumulator.latest | other.latest

    def get_value(self, accumulator: Parts) -> float:
        both = accumulator.last + accumulator.last
        both.append(-1.5)
        total = 100.0 * len(accumulator.last) + len(accumulator.seen | {1, 2})
        for key, value in accumulator.latest.items():
            total = 3.0 * total + key + value
        return total + both[-1] + both[0]


@udaf
class Tagged:
    """A set to which the items of lists are added, and that is replaced by a new one."""

    def create_accumulator(self) -> set[str]:
        return set()

    def accumulate(self, accumulator: set[str], tags: str, value: int) -> set[str]:
        accumulator.update(tags.split("a"))
        if value == 13:
            raise ValueError("bad luck")
        return accumulator | {tags}

    def merge(self, accumulator: set[str], other: set[str]) -> set[str]:
        return accumulator | other

    def get_value(self, accumulator: set[str]) -> int:
        return len(accumulator)


FUNCTIONS = Registry.load([Bounded, Joined, Tagged, Worded, Counted, Weighed, Distinct, Median, Greatest, Several])
CASES: list[tuple[str, list[pa.DataType], bool]] = [
    ("counted", [pa.int64()], False),
    ("several", [pa.int64(), pa.float64()], True),
    ("worded", [pa.string(), pa.int64()], False),
    ("weighed", [pa.float64(), pa.float64()], False),
    ("distinct", [pa.int64()], True),
    ("median", [pa.float64()], False),
    ("greatest", [pa.float64()], False),
    ("bounded", [pa.int64()], True),
    ("joined", [pa.int64(), pa.float64()], True),
    ("tagged", [pa.string(), pa.int64()], True),
]
each_case = pytest.mark.parametrize(
    ("name", "types", "is_unordered"),
    [pytest.param(*case, id=case[0], marks=() if place < 2 else pytest.mark.slow) for place, case in enumerate(CASES)],
)
SAMPLES = {
    **VALUES,
    pa.int64(): st.one_of(st.integers(-15, 60), VALUES[pa.int64()]),
    pa.string(): st.one_of(
        st.sampled_from(["", "a", "buy", "büy", "a text of more than eight bytes"]), st.text(max_size=20)
    ),
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.5]), REAL),
}


@pytest.mark.slow
@each_case
@settings(examples(150), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_containers_have_the_values_of_the_interpreter(
    name: str, types: list[pa.DataType], is_unordered: bool, hot: Programs, data: st.DataObject
) -> None:
    """Rows, states and values are equal, and so are errors, with their slots and rows."""
    bound = FUNCTIONS[name].bind(types, {})
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, SAMPLES, is_unordered=is_unordered)


@pytest.mark.every_turn
@each_case
def test_many_rows_are_folded_by_compiled_code(
    name: str, types: list[pa.DataType], is_unordered: bool, hot: Programs
) -> None:
    """Containers that grow many times, in few groups and in many, and are merged: the interpreter is never used."""
    bound = FUNCTIONS[name].bind(types, {})
    result = hot.program(bound, bound.instantiate())
    assert isinstance(result, Program), result
    rng = np.random.default_rng(1)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    every = np.arange(100, dtype=np.int32)
    for groups in (2, 100):
        slots = rng.integers(0, groups, 3000).astype(np.int32)
        numbers = rng.integers(14, 700, 3000)
        numbers += numbers % 11 == 3
        columns = [Column("c", pa.array(numbers).cast(type_)) for type_ in types]
        for target in (one, other):
            target.update(Rows(slots, None, columns))
        states = other.state(every)
        for target in (one, other):
            target.merge(every, states)
        states = other.state(every)
        assert _sets(one.state(every), is_unordered) == _sets(states, is_unordered)
        assert one.evaluate(every).equals(other.evaluate(every))
        for target in (one, other):
            target.forget(every[:50])
    assert one.mode == "compiled"
    assert len(states) == 100


def _sets(states: pa.Array, is_unordered: bool) -> Any:
    result = states.to_pylist()
    if is_unordered:
        result = [each | {"seen": sorted(each["seen"])} if isinstance(each, dict) else sorted(each) for each in result]
    return result


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("accumulator[1.5] = 1.0", "the key of [] = is float, and int is annotated"),
        ("accumulator[value] = 1", "the value is int, and float is annotated; write 0.0"),
        ("accumulator.get(value, 0)", "the default of get is int, and float is annotated; write 0.0"),
        ("accumulator[value] = accumulator.get(value, 0) + accumulator.get(0, 0)", "the default of get is int"),
        ("accumulator[value] = accumulator.get(value, 0) + value", "it adds an int to what get returns from a dict of"),
        (
            "count = accumulator.get(value, 0)\n    accumulator[value] = (count + 0.5) * count",
            "the default of get is int",
        ),
        ("one = two = accumulator.get(value, 0)\n    accumulator[value] = one + 0.5\n    return two", "the default of"),
        ("accumulator.popitem()", "popitem"),
        ("accumulator | {value: value}", "it extends a dict by dict[int, int] ("),
        ("accumulator & accumulator", "& of dict[int, float] and dict[int, float] ("),
        ("accumulator.keys() | accumulator.keys()", "| of the keys of dict[int, float] and the keys of dict["),
        ("return {}", "it makes a dict of which is not certain what it will hold"),
    ],
)
def test_other_operations_with_dicts_are_not_compiled(body: str, why: str, hot: Programs) -> None:
    scope: dict[str, Any] = {}
    exec(f"def accumulate(self, accumulator, value: int):\n    {body}", scope)

    def create_accumulator(self: Any) -> dict[int, float]:
        return {}

    def get_value(self: Any, accumulator: dict[int, float]) -> int:
        return len(accumulator)

    members = {"create_accumulator": create_accumulator, "get_value": get_value, "accumulate": scope["accumulate"]}
    (function,) = Registry.load([udaf(type("Odd", (), members))]).authored
    bound = function.bind([pa.int64()], {})
    assert why in refusal(hot, bound)


@dataclass
class Recent:
    last: list[int] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def drain(self) -> list[int]:
        result = list(self.last)
        self.last.clear()
        return result

    @property
    def emptied(self) -> list[int]:
        self.last.clear()
        return [1]


@dataclass
class Seen:
    seen: set[int] = field(default_factory=set)


def pushes(items: list[int]) -> list[int]:
    items.append(7)
    return list(items)


PUSHES = {0: pushes}


def bound_source(accumulate: str = "accumulator.last.append(value)", get_value: str = "", **more: Any) -> BoundFunction:
    """Return a function over `Recent` or `Seen` with these bodies of methods."""
    result = "list[int]" if get_value else "int"
    body = get_value or "return accumulator.total"
    lines = [
        "def create_accumulator(self) -> Recent:\n    return Recent()",
        "def accumulate(self, accumulator: Recent, value: int) -> None:\n    " + accumulate.replace("\n", "\n    "),
        f"def get_value(self, accumulator: Recent) -> {result}:\n    " + body.replace("\n", "\n    "),
        "def trim(self, accumulator: Recent) -> int:\n    accumulator.last = accumulator.last[1:]\n    return 1",
    ]
    scope: dict[str, Any] = {"Recent": Seen if "seen" in accumulate else Recent, "pushes": pushes, "PUSHES": PUSHES}
    exec("\n".join(lines), scope)
    names = ("create_accumulator", "accumulate", "get_value", "trim")
    members = {**{name: scope[name] for name in names}, **more}
    (function,) = Registry.load([udaf(type("Written", (), members))]).authored
    return function.bind([pa.int64()], {})


@pytest.mark.parametrize(
    "body",
    [
        "before = accumulator.last\naccumulator.last = accumulator.last[1:]\naccumulator.total += len(before)",
        "before = accumulator.last\nself.trim(accumulator)\naccumulator.total += len(before)",
        "for each in accumulator.last:\n    accumulator.last = accumulator.last[1:]\n    accumulator.total += each",
        "after = accumulator.last[1:]\naccumulator.last = after\naccumulator.total += len(after)",
        "accumulator.last.append(self.trim(accumulator))",
        "after = [each for each in accumulator.last if each]\naccumulator.last = after\nafter.append(1)",
        "before = accumulator.counts\naccumulator.counts = {value: 1}\nbefore[value] = 2",
        "after = {value: 1}\naccumulator.counts = after\nafter[value] = 2",
        "after = accumulator.last + [value]\naccumulator.last = after\nafter.append(1)",
        "after = accumulator.counts | {value: 1}\naccumulator.counts = after\nafter[value] = 2",
    ],
)
def test_lists_that_outlive_their_replacement_are_not_compiled(body: str, hot: Programs) -> None:
    """A list takes the place of another by a copy, which other variables would see, and Python's do not."""
    bound = bound_source(body)
    assert "it replaces a container of the accumulator while" in refusal(hot, bound)


@pytest.mark.parametrize(
    "body",
    [
        "accumulator.last.extend(each for each in accumulator.last)",
        "accumulator.last.extend(each for each in sorted(accumulator.last) if each not in accumulator.last)",
        "last = accumulator.last\nlast.extend(value for each in [1, 2] if value not in last)",
        "accumulator.counts.update((each, 1) for each in accumulator.counts)",
    ],
)
def test_generators_that_read_what_they_are_put_into_are_not_compiled(body: str, hot: Programs) -> None:
    """Compiled code has all values of a generator before it adds the first, which Python has not."""
    assert "it makes a generator that is not an argument of" in refusal(hot, bound_source(body))


REPLACED = """accumulator.last.append(value)
while len(accumulator.last) > 5:
    accumulator.last = accumulator.last[1:]
accumulator.total += self.trim(accumulator) + len(accumulator.last)
accumulator.last = sorted(accumulator.last)
for each in accumulator.last:
    accumulator.total += each
accumulator.last += accumulator.last[:1]"""
MOVED = """accumulator.counts[value] = value
if value == 5:
    for key in accumulator.counts:
        accumulator.total = 10 * accumulator.total + key
        if key == 1:
            accumulator.counts[key] = accumulator.counts.pop(key)"""


@pytest.mark.every_turn
@pytest.mark.parametrize(
    ("bodies", "mode"),
    [
        ((REPLACED,), "compiled"),
        ((MOVED,), ""),  # Python raises RuntimeError
        (("accumulator.last.append(value)", "return accumulator.drain()"), "compiled"),
        (("accumulator.last.append(value)", "return accumulator.emptied + accumulator.last"), "compiled"),
        (("accumulator.last.append(value)", "return PUSHES[0](accumulator.last)"), "compiled"),
        (("accumulator.last.append(value)", "return self.push(accumulator.last)"), "compiled"),
        (("accumulator.last.append(value)", "if len(accumulator.last) == 3:\n    1 / 0\nreturn accumulator.last"), ""),
        (("accumulator.seen.add(value)", "return [len(accumulator.seen), *sorted(accumulator.seen)]"), "compiled"),
    ],
)
def test_accumulators_equal_those_of_the_interpreter(bodies: tuple[str, ...], mode: str, hot: Programs) -> None:
    """Lists that are replaced, dicts that change in a loop, and what an interpreted get_value does to them."""

    def init(self: Any) -> None:
        self.push = pushes

    bound = bound_source(*bodies, __init__=init)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.zeros(1, np.int32)
    for value in (1, 2, 3, 4, 5, 6, 3):
        rows = Rows(slots, None, [Column("value", pa.array([value]))])
        if not same(lambda target, rows=rows: target.update(rows), one, other):
            break
        for _ in range(2):
            same(lambda target: target.evaluate(slots), one, other)
        assert one.state(slots).equals(other.state(slots))
    assert not mode or one.mode == mode


@pytest.mark.parametrize(
    "body",
    [
        "return list(accumulator.seen)",
        "return [each for each in accumulator.seen]",
        "return sorted(accumulator.seen, key=abs)",
        "found = accumulator\nreturn list(found.seen)",
        "return (lambda: list(accumulator.seen))()",
    ],
)
def test_an_interpreted_get_value_may_show_the_order_of_a_set(body: str, hot: Programs) -> None:
    """The order depends on all that was ever in the set, which compiled code does not know."""
    bound = bound_source("accumulator.seen.add(value)\nif value < 0:\n    accumulator.seen.discard(-value)", body)
    assert "may show the order of a set" in refusal(hot, bound)


@udaf
class Drained:
    """A merge that takes all items out of the other accumulator."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator.append(value)

    def merge(self, accumulator: list[int], other: list[int]) -> None:
        while other:
            accumulator.append(other.pop())

    def get_value(self, accumulator: list[int]) -> int:
        return len(accumulator)


@pytest.mark.every_turn
def test_a_merge_that_is_repeated_finds_the_other_accumulator_as_it_was(hot: Programs) -> None:
    """Memory is exhausted in the middle of a merge, which has changed the other accumulator by then."""
    (function,) = Registry.load([Drained]).authored
    bound = function.bind([pa.int64()], {})
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.repeat(np.arange(2, dtype=np.int32), 3000)
    for each in (one, other):
        each.update(Rows(slots, None, [Column("value", pa.array(np.arange(6000)))]))
    states = other.state(np.ones(1, np.int32))
    for each in (one, other):
        for _ in range(3):
            each.merge(np.zeros(1, np.int32), states)
    assert one.mode == "compiled"
    assert one.state(slots[:1]).equals(other.state(slots[:1]))


@udaf
class Twice:
    """Two attributes that are one list."""

    first: list[int]
    second: list[int]

    def __init__(self) -> None:
        self.first = self.second = []

    def accumulate(self, value: int) -> None:
        self.first.append(value)

    def get_value(self) -> int:
        return len(self.second)


def test_attributes_that_are_the_same_list_are_not_compiled(hot: Programs) -> None:
    """Compiled code would keep two lists."""
    (function,) = Registry.load([Twice]).authored
    bound = function.bind([pa.int64()], {})
    assert "two attributes of its accumulator are the same object" in refusal(hot, bound)


@dataclass
class Pair:
    one: list[int] = field(default_factory=list)
    two: list[int] = field(default_factory=list)


@udaf
class Aliased:
    """A rare row makes two attributes one list."""

    def create_accumulator(self) -> Pair:
        return Pair()

    def accumulate(self, accumulator: Pair, value: int) -> None:
        if value < 0:
            accumulator.one = accumulator.two
        accumulator.one.append(value)

    def get_value(self, accumulator: Pair) -> int:
        return len(accumulator.two)


@pytest.mark.parametrize("first", [-1, 1])
def test_accumulators_that_share_a_list_stay_interpreted(first: int) -> None:
    """Compiled code that takes over from the interpreter would make two lists of one."""
    (function,) = Registry.load([Aliased]).authored
    bound = function.bind([pa.int64()], {})
    one, other = Programs(LoopStore("user"), hot_rows=2).accumulators(interpret(bound)), interpret(bound)
    slots = np.zeros(1, np.int32)
    for value in (first, 2, 3, 4):
        for each in (one, other):
            each.update(Rows(slots, None, [Column("value", pa.array([value]))]))
    assert one.evaluate(slots).equals(other.evaluate(slots))
    assert one.mode == ("interpreted" if first < 0 else "compiled")


@pytest.mark.every_turn
def test_memory_that_messages_of_ipc_keep_is_counted_as_a_whole(hot: Programs) -> None:
    """The column of texts is a small part of the message that it keeps alive, and its slices are one message."""
    batch = pa.RecordBatch.from_pydict({"step": ["a", "b"] * 50, "value": range(100), "more": ["x" * 1000] * 100})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (read,) = pa.ipc.open_stream(pa.py_buffer(sink.getvalue().to_pybytes()))
    bound = FUNCTIONS["worded"].bind([pa.string(), pa.int64()], {})
    one = hot.accumulators(interpret(bound))
    assert isinstance(one, CompiledAccumulators)
    for start in (0, 50):
        part = read.slice(start, 50)
        columns = [Column(name, part.column(name)) for name in ("step", "value")]
        one.update(Rows(np.zeros(50, np.int32), None, columns))
    assert one.mode == "compiled"
    assert 100_000 < one._retained_bytes < 150_000


@udaf
class Mixed:
    """A variable is a tuple of a float, which may be None, on one way and of a whole number on another."""

    def create_accumulator(self) -> dict[int, tuple[float, int]]:
        return {}

    def accumulate(self, accumulator: dict[int, tuple[float, int]], value: int) -> None:
        result = accumulator.get(value)
        if value > 3:
            result = (1, 2)
        if result is not None:
            accumulator[value + 1] = (0.5, value)

    def get_value(self, accumulator: dict[int, tuple[float, int]]) -> int:
        return len(accumulator)


def test_members_of_tuples_are_not_converted(hot: Programs) -> None:
    """Machine code would make a float of the whole number."""
    (function,) = Registry.load([Mixed]).authored
    bound = function.bind([pa.int64()], {})
    assert "a member of the variable result is a float in one place and a whole number in another" in refusal(
        hot, bound
    )
