"""NamedTuples in the containers of accumulators: compiled code has the interpreter's results, states and errors."""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.compile_plan import plan_of
from foldflight.ext.compiler.digest import Lookups, digest_of
from foldflight.ext.compiler.program import Program
from foldflight.fold.rows import Column, Rows
from tests.effort import examples
from tests.laws.alike import VALUES, bound_of, folds_alike, interpret, refusal

# mypy: disable-error-code="no-untyped-def,var-annotated,no-untyped-call,attr-defined,operator,index,assignment"


class Reading(NamedTuple):
    """Its members have the names of methods of containers and texts; it has a method and a property of its own."""

    count: int
    total: float
    title: str = "none"

    def mean(self, scale: float) -> float:
        return self.total / self.count * scale

    @property
    def is_many(self) -> bool:
        return self.count > 2


class Pair(NamedTuple):
    """Members of one type, with the names that the states of plain tuples have."""

    f0: int
    f1: int


class Other(NamedTuple):
    """Has the kinds of a Pair."""

    f0: int
    f1: int


@udaf
class ByKey:
    """Values of a dict that are replaced as wholes; one value has an error after a change."""

    def create_accumulator(self) -> dict[int, Reading]:
        return {}

    def accumulate(self, acc: dict[int, Reading], key: int, value: float, text: str) -> None:
        old = acc.get(key % 3)
        if old is None:
            acc[key % 3] = Reading(1, value)
        else:
            acc[key % 3] = old._replace(count=old.count + 1, total=old.total + value, title=text)
        if value == 1.5:
            raise ValueError("bad luck")

    def retract(self, acc: dict[int, Reading], key: int, value: float, text: str) -> None:
        old = acc.pop(key % 3, Reading(0, 0.0, text))
        if old.is_many:
            acc[key % 3] = Reading(title=old.title, count=old.count - 1, total=old.total - value)

    def merge(self, acc: dict[int, Reading], other: dict[int, Reading]) -> None:
        for key, reading in other.items():
            if key in acc:
                mine = acc[key]
                acc[key] = Reading(mine.count + reading.count, mine.total + reading.total, reading.title)
            else:
                acc[key] = reading

    def get_value(self, acc: dict[int, Reading]) -> str:
        text = ""
        for reading in acc.values():
            count, total, title = reading
            text += f"{title}{count}{total == 0}{reading.mean(2.0) > 1}"
        return text


@udaf
class Untyped:
    """The class and the kinds are known from what the code puts into the dict."""

    def create_accumulator(self):
        return {"all": {}, "rows": 0}

    def accumulate(self, acc, key: int, value: float, text: str):
        acc["rows"] += 1
        acc["all"][text] = Reading(key, value, title=text)

    def merge(self, acc, other):
        acc["rows"] += other["rows"]
        acc["all"].update(other["all"])

    def get_value(self, acc) -> float:
        total = 0.0
        for reading in acc["all"].values():
            total += reading.total * reading.count
        return total


@udaf
class Listed:
    """Items of a list, which is sorted, and of which one is taken out."""

    def create_accumulator(self) -> list[Pair]:
        return []

    def accumulate(self, acc: list[Pair], key: int) -> None:
        acc.append(Pair(key, -key))
        if len(acc) > 4:
            last = acc.pop()
            acc[0] = Pair(last.f1, acc[0].f0)

    def merge(self, acc: list[Pair], other: list[Pair]) -> None:
        acc.extend(other)
        acc.sort()

    def get_value(self, acc: list[Pair]) -> int | None:
        ordered = sorted(acc)
        largest = ordered[-1] if acc else None
        return None if largest is None else largest.f0 ^ largest[1]


@udaf
class Recent:
    """Items of a deque, whose states are pickled, and keys of a dict."""

    def create_accumulator(self):
        return {"last": deque(maxlen=3), "seen": {}}

    def accumulate(self, acc, key: int, value: float):
        acc["last"].append(Reading(key, value))
        pair = Pair(key % 4, key % 2)
        acc["seen"][pair] = acc["seen"].get(pair, 0) + 1

    def merge(self, acc, other):
        acc["last"].extend(other["last"])
        for pair, count in other["seen"].items():
            acc["seen"][pair] = acc["seen"].get(pair, 0) + count * pair.f1

    def get_value(self, acc) -> float:
        total = 0.0
        for reading in acc["last"]:
            total += reading.total
        return total


COMPILED = [ByKey, Untyped, Listed, Recent]
SAMPLES = {
    **VALUES,
    pa.float64(): st.one_of(st.sampled_from([0.0, -0.0, 1.5]), st.floats(-100, 100), VALUES[pa.float64()]),
    pa.int64(): st.one_of(st.integers(-5, 9), VALUES[pa.int64()]),
    pa.string(): st.one_of(st.sampled_from(["", "a", "b", "a text of more than eight bytes"]), VALUES[pa.string()]),
}


@pytest.mark.slow
@pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.__name__)
@settings(examples(60), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_states_values_and_errors_equal_those_of_the_interpreter(
    cls: Any, hot: Programs, data: st.DataObject
) -> None:
    bound = bound_of(cls)
    codec = interpret(bound).codec if bound.state_type == pa.binary() else None
    folds_alike(
        bound, lambda: hot.accumulators(interpret(bound)), data, SAMPLES, row_by_row=True, read=codec and codec.decode
    )


@pytest.mark.every_turn
@pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.__name__)
def test_no_row_is_interpreted(cls: Any, hot: Programs) -> None:
    """All methods are compiled, and the classes of the tuples come back from states."""
    bound = bound_of(cls)
    program = hot.program(bound, bound.instantiate())
    assert isinstance(program, Program), getattr(program, "reason", "")
    assert program.interprets == ""
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(200, dtype=np.int32) % 7
    for _ in range(2):
        columns = [
            Column("c", pa.array((np.arange(200) % 16).astype(str) if type_ == pa.string() else np.arange(200) % 16))
            for type_ in bound.input_types
        ]
        columns = [
            Column(each.name, each.array.cast(type_)) for each, type_ in zip(columns, bound.input_types, strict=True)
        ]
        for each in (one, other):
            each.update(Rows(slots, None, columns))
        states = other.state(slots[:7])
        for each in (one, other):
            each.merge(slots[:7], states)
        assert one.mode == "compiled"
        assert one.evaluate(slots[:9]).equals(other.evaluate(slots[:9]))
        mine, others = (interpret(bound).codec.decode(each.state(slots[:9])) for each in (one, other))
        assert repr(mine) == repr(others)


def test_the_digest_has_the_names_of_members_that_the_code_does_not_name() -> None:
    """Compiled code takes members by their position. A class that exchanges two names is another one."""
    digests = set()
    for names in (["one", "two"], ["two", "one"]):
        cls: Any = NamedTuple("Named", [(name, int) for name in names])  # type: ignore[misc]
        bound = bound_of(_listing(list[cls], lambda self, acc, value: acc.append(acc[-1]._replace(one=value))))
        plan, _ = plan_of(bound, bound.instantiate())
        digests.add(digest_of(plan, Lookups()))
    assert len(digests) == 2


def _scaling(factor: int) -> Any:
    """Return a class whose code does not name the NamedTuple that it uses a property of."""

    class Named(NamedTuple):
        one: int

        @property
        def scaled(self) -> int:
            return self.one * factor

    @dataclass
    class Holder:
        last: Named | None = None
        total: int = 0

    @udaf
    class Scaling:
        def create_accumulator(self) -> Holder:
            return Holder()

        def accumulate(self, acc: Holder, value: int) -> None:
            if acc.last is not None:
                acc.total += acc.last.scaled

        def get_value(self, acc: Holder) -> int:
            return acc.total

    return Scaling


def test_the_digest_has_the_methods_of_tuples_that_may_be_none() -> None:
    """Code of another factor is not loaded from the store."""
    bounds = [bound_of(_scaling(factor)) for factor in (2, 2, 3)]
    one, again, other = (digest_of(plan_of(bound, bound.instantiate())[0], Lookups()) for bound in bounds)
    assert one == again
    assert one != other


@udaf
class MergedByPython:
    """A merge that only Python knows puts plain tuples beside NamedTuples, which the state makes NamedTuples."""

    def create_accumulator(self) -> dict[int, Pair]:
        return {}

    def accumulate(self, acc: dict[int, Pair], key: int) -> None:
        acc[key] = Pair(key, 0)

    def merge(self, acc: dict[int, Pair], other: dict[int, Pair]) -> None:
        acc.update({key: (*pair,) for key, pair in other.items()})  # type: ignore[misc]

    def get_value(self, acc: dict[int, Pair]) -> str:
        return f"{[type(pair).__name__ for pair in acc.values()]!r}"


@pytest.mark.every_turn
def test_the_interpreter_keeps_groups_with_tuples_of_another_class(hot: Programs) -> None:
    """A record would make NamedTuples of them, which have other attributes."""
    bound = bound_of(MergedByPython)
    assert isinstance(hot.program(bound, bound.instantiate()), Program)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(2, dtype=np.int32)
    for each in (one, other):
        each.update(Rows(slots, None, [Column("key", pa.array([1, 2]))]))
        each.merge(slots, each.state(slots))
    kept = [each.inner.accumulators_of(slots) if each is one else each.accumulators_of(slots) for each in (one, other)]
    assert [[*map(type, each.values())] for each in kept[0]] == [[*map(type, each.values())] for each in kept[1]]
    assert kept[0][0][1] == (1, 0)
    assert type(kept[0][0][1]) is tuple


class Reversed(NamedTuple):
    """A NamedTuple that is compared otherwise than a tuple."""

    rank: int

    def __lt__(self, other: Any) -> bool:
        return bool(self.rank > other.rank)


def _listing(annotation: Any, accumulate: Any) -> Any:
    """Return a class with a list or dict of an annotation."""
    make = list if annotation.__origin__ is list else dict
    create = lambda self: make()
    create.__annotations__["return"] = annotation
    accumulate.__annotations__["value"] = int
    get_value = lambda self, acc: len(acc)
    get_value.__annotations__["return"] = int
    members = {"create_accumulator": create, "accumulate": accumulate, "get_value": get_value}
    return udaf(type("Listing", (), members))


@pytest.mark.parametrize(
    ("annotation", "accumulate", "why"),
    [
        (list[Pair], lambda self, acc, value: acc.append((value, value)), "is tuple[int, int], and Pair is expected"),
        (list[Pair], lambda self, acc, value: acc.append(Other(value, value)), "is Other(int, int), and Pair is expec"),
        (
            list[tuple[int, int]],
            lambda self, acc, value: acc.append(Pair(value, value)),
            "is Pair(int, int), and tuple[int, int] is expected",
        ),
        (dict[Pair, int], lambda self, acc, value: acc.setdefault((value, value), 1), "and Pair is expected"),
        (list[Reversed], lambda self, acc, value: acc.append(Reversed(value)), "its accumulator holds objects"),
    ],
    ids=["plain", "other", "named", "key", "compared"],
)
def test_tuples_of_other_classes_are_interpreted(annotation: Any, accumulate: Any, why: str, hot: Programs) -> None:
    """Python keeps their class until the state is stored."""
    assert why in refusal(hot, bound_of(_listing(annotation, accumulate)))
