"""Dicts of lists, dicts and sets in accumulators: compiled code has the interpreter's results and states."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foldflight import udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.program import Program
from foldflight.fold.rows import Column, Rows
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction, Function
from foldflight.testing import check_laws
from tests.effort import examples
from tests.laws.alike import EQUAL_OFTEN, folds_alike, interpret


@udaf(input_types=["STRING", "DOUBLE"], result_type="DOUBLE")
class Medians:
    """A defaultdict of lists; a price that is given up after a change."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return defaultdict(list)

    def accumulate(self, prices, kind, price):  # type: ignore[no-untyped-def]
        if kind:
            prices[kind].append(price)
        if price == 1.5:
            raise ValueError("bad luck")

    def merge(self, prices, other):  # type: ignore[no-untyped-def]
        for kind, more in other.items():
            prices[kind].extend(more)

    def get_value(self, prices):  # type: ignore[no-untyped-def]
        best = None
        for kind in prices:
            several = sorted(prices[kind])
            if best is None or several[len(several) // 2] > best:
                best = several[len(several) // 2]
        return best


@udaf(input_types=["STRING", "BIGINT"], result_type="BIGINT")
class Users:
    """A dict of sets, which a merge moves from another accumulator."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {}

    def accumulate(self, users, channel, user):  # type: ignore[no-untyped-def]
        users.setdefault(channel, set()).add(user)
        if user * user % 11 == 3:
            users[channel].discard(1)
        if user == 13:
            del users[channel]
            raise ValueError("bad luck")

    def merge(self, users, other):  # type: ignore[no-untyped-def]
        for channel, more in other.items():
            if channel in users:
                users[channel] |= more
            else:
                users[channel] = more

    def get_value(self, users):  # type: ignore[no-untyped-def]
        most = 0
        for channel in users:
            most = max(most, len(users[channel]))
        return most


@udaf(input_types=["STRING", "BIGINT"], result_type="STRING")
class Pages:
    """A dict of dicts, whose inner ones grow beyond what is searched without an index, and lose keys again."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {}

    def accumulate(self, pages, country, page):  # type: ignore[no-untyped-def]
        hits = pages.get(country)
        if hits is None:
            hits = pages[country] = {}
        hits[page] = hits.get(page, 0) + 1
        hits[page * page % 11] = 1
        if page % 7 == 1:
            pages[country].pop(page - 1, 0)
        if page == 13:
            pages[country] = {}
            raise ValueError("bad luck")
        if page % 50 == 3:
            pages["moved"] = pages.pop(country)

    def merge(self, pages, other):  # type: ignore[no-untyped-def]
        for country, hits in other.items():
            mine = pages.setdefault(country, {})
            for page, count in hits.items():
                mine[page] = mine.get(page, 0) + count

    def get_value(self, pages):  # type: ignore[no-untyped-def]
        text = ""
        for country, hits in pages.items():
            text += country
            for page, count in hits.items():
                text += f" {page}:{count}"
        return text


@dataclass
class Held:
    """Dicts of containers with annotations, whose states have types."""

    latest: dict[int, list[float]] = field(default_factory=dict)
    counts: dict[int, dict[str, int]] = field(default_factory=dict)
    pairs: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    total: int = 0


@udaf
class Typed:
    """The three least values of each key, counts of texts by key, and pairs that are appended."""

    def create_accumulator(self) -> Held:
        return Held()

    def accumulate(self, held: Held, key: int, text: str, value: float) -> None:
        held.latest[key % 5] = sorted(held.latest.get(key % 5, []) + [value])[:3]  # noqa: RUF005 - what authors write
        if key % 3 not in held.counts:
            held.counts[key % 3] = {text: 0}
        held.counts[key % 3][text] = held.counts[key % 3].get(text, 0) + 1
        several = held.pairs.setdefault(key % 4, [])
        several.append((key, text))
        if len(several) > 4:
            held.pairs[key % 4] = several[2:]
        held.total += len(several) + key * key % 7

    def merge(self, held: Held, other: Held) -> None:
        for key, values in other.latest.items():
            held.latest[key] = sorted(held.latest.get(key, []) + values)[:3]
        for key, counts in other.counts.items():
            if key not in held.counts:
                held.counts[key] = counts
            else:
                for text in counts:
                    held.counts[key][text] = held.counts[key].get(text, 0) + counts[text]
        for key, several in other.pairs.items():
            held.pairs.setdefault(key, []).extend(several)
        held.total += other.total

    def get_value(self, held: Held) -> float:
        total = float(held.total)
        for values in held.latest.values():
            total += values[0]
        for counts in held.counts.values():
            total += len(counts)
        return total


class Kinds:
    """Defaultdicts of other classes."""

    def __init__(self) -> None:
        self.counters = defaultdict(Counter)  # type: ignore[var-annotated]
        self.last = defaultdict(deque)  # type: ignore[var-annotated]
        self.rows = 0


@udaf(input_types=["BIGINT", "STRING"], result_type="BIGINT")
class ByKind:
    """Counters and deques by key."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Kinds()

    def accumulate(self, kinds, key, text):  # type: ignore[no-untyped-def]
        kinds.rows += 1
        kinds.counters[key % 3][text] += 1
        kinds.last[key % 4].append(key)
        while len(kinds.last[key % 4]) > 3:
            kinds.last[key % 4].popleft()
        if key * key % 11 == 3:
            del kinds.last[key % 4]

    def merge(self, kinds, other):  # type: ignore[no-untyped-def]
        kinds.rows += other.rows
        for key, counts in other.counters.items():
            kinds.counters[key].update(counts)
        for key in other.last:
            kinds.last[key].extend(other.last[key])

    def get_value(self, kinds):  # type: ignore[no-untyped-def]
        total = kinds.rows
        for counts in kinds.counters.values():
            total += len(counts)
        for last in kinds.last.values():
            total += last[0] % 100
        return total


@udaf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
class Sharing:
    """Some rows have two keys hold one list, and some merges, too: in Python, both see what is added later."""

    def create_accumulator(self) -> dict[int, list[int]]:
        return {}

    def accumulate(self, lists: dict[int, list[int]], key: int, value: int) -> None:
        if value % 7 in lists:
            lists[key % 7] = lists[value % 7]
        else:
            mine = [value]
            lists[value % 7] = mine
            if key % 3 == 0:
                lists[key % 7] = mine
        for each in lists.values():
            each.append(key % 7)
        lists[value % 7].append(key * key % 7)  # Python's ints exceed 64 bits, so the row is given up after changes

    def merge(self, lists: dict[int, list[int]], other: dict[int, list[int]]) -> None:
        for key, values in other.items():
            lists[key] = values
            if len(values) % 3 == 0:
                lists[7] = values
        for each in lists.values():
            each.append(7)

    def get_value(self, lists: dict[int, list[int]]) -> int:
        total = 0
        for key, values in lists.items():
            for value in values:
                total = (3 * total + 31 * key + value) % 1_000_003
        return total


@udaf(input_types=["BIGINT", "BIGINT"], result_type="STRING")
class ByHour:
    """A defaultdict of lists, whose keys are texts written with a format."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return defaultdict(list)

    def accumulate(self, hours, at, value):  # type: ignore[no-untyped-def]
        hours[f"{at % 24:02d}:00"].append(value)

    def merge(self, hours, other):  # type: ignore[no-untyped-def]
        for hour, values in other.items():
            hours[hour] += values

    def get_value(self, hours):  # type: ignore[no-untyped-def]
        text = ""
        for hour, values in hours.items():
            text += f"{hour} {len(values)} "
        return text


@udaf
class Visitors:
    """A dict of sets whose states have types: only the interpreter has the order of their items."""

    def create_accumulator(self) -> dict[int, set[int]]:
        return {}

    def accumulate(self, visitors: dict[int, set[int]], day: int, visitor: int) -> None:
        if day not in visitors:
            visitors[day] = set()
        visitors[day].add(-visitor)

    def merge(self, visitors: dict[int, set[int]], other: dict[int, set[int]]) -> None:
        for day, more in other.items():
            visitors.setdefault(day, set()).update(more)

    def get_value(self, visitors: dict[int, set[int]]) -> int:
        total = 0
        for some in visitors.values():
            total += len(some)
        return total


CLASSES = [Medians, Users, Pages, Typed, ByKind, ByHour, Sharing]
each_class = pytest.mark.parametrize(
    "cls",
    [CLASSES[0], *(pytest.param(each, marks=pytest.mark.slow) for each in CLASSES[1:])],
    ids=lambda cls: cls.__name__,
)


def bound_of(cls: Any) -> BoundFunction:
    (function,) = Registry.load([cls]).authored
    assert isinstance(function, Function)
    assert function.input_types is not None
    return function.bind(function.input_types, {})


@pytest.mark.slow
@each_class
@settings(examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nested_containers_are_those_of_the_interpreter(cls: Any, hot: Programs, data: st.DataObject) -> None:
    """Rows, states, values and errors are equal, also where a row is given up after it changed an inner container."""
    bound = bound_of(cls)
    assert isinstance(hot.program(bound, bound.instantiate()), Program)
    # The order of a set is Python's own, so the states of dicts of sets are compared by what they hold.
    read = interpret(bound).codec.decode if cls is Users else None
    folds_alike(bound, lambda: hot.accumulators(interpret(bound)), data, EQUAL_OFTEN, row_by_row=True, read=read)


@pytest.mark.parametrize("cls", [pytest.param(each, marks=pytest.mark.every_turn) for each in CLASSES[:-1]])
def test_many_groups_of_nested_containers_grow_and_move(cls: Any, hot: Programs) -> None:
    """Containers within dicts survive the growth of their memory, merges, and groups that are forgotten."""
    bound = bound_of(cls)
    rng = np.random.default_rng(1)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    every = np.arange(60, dtype=np.int32)
    for groups in (2, 60):
        slots = rng.integers(0, groups, 3000).astype(np.int32)
        columns = []
        for type_ in bound.input_types:
            numbers = rng.integers(14, 400, 3000)
            values = pa.array(numbers % 30 if type_ == pa.string() else numbers).cast(type_)
            columns.append(Column("c", values))
        for each in (one, other):
            each.update(Rows(slots, None, columns))
        states = other.state(every)
        for each in (one, other):
            each.merge(every[::-1].copy(), states)
        if cls is Users:
            decode = other.codec.decode
            assert decode(one.state(every)) == decode(other.state(every))
        else:
            assert one.state(every).equals(other.state(every))
        assert one.evaluate(every).equals(other.evaluate(every))
        for each in (one, other):
            each.forget(every[:30])
    assert one.mode == "compiled"


@pytest.mark.every_turn
@pytest.mark.parametrize("merges", [False, True])
def test_a_list_that_two_keys_hold_stays_one(merges: bool, hot: Programs) -> None:
    """The interpreter folds such a group: when the memory of compiled code grows, one list would become two."""
    bound = bound_of(Sharing)
    one, other = hot.accumulators(interpret(bound)), interpret(bound)
    slots = np.arange(400, dtype=np.int32)

    def update(key: int, value: int) -> None:
        columns = [Column(name, pa.array([each] * len(slots))) for name, each in (("key", key), ("value", value))]
        for each in (one, other):
            each.update(Rows(slots, None, columns))

    for pair in ((1, 1), (1, 2), (1, 1)) if merges else ((1, 1), (2, 1), (2, 2)):
        update(*pair)
    states = other.state(slots)
    for each in (one, other) if merges else ():
        each.merge(slots, states)
    for value in (3, 4, 5, 6):
        update(1, value)
    assert one.state(slots).equals(other.state(slots))


@pytest.mark.every_turn
def test_laws_do_not_ask_for_the_order_of_sets_in_dicts(hot: Programs) -> None:
    """The law that compiled code has the interpreter's states compares what the sets hold."""
    bound = bound_of(Visitors)
    assert isinstance(hot.program(bound, bound.instantiate()), Program)
    result = {each.law: each for each in check_laws(Visitors, examples=30)}["the compiled form agrees"]
    assert result.passed, result.detail
