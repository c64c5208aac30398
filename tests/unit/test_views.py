"""Views: maps and lists in accumulators whose entries an engine may keep.

The oracle of the fold is the same class with `dict` and `list` instead of `MapView` and `ListView`.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldflight import ListView, MapView, udaf
from foldflight.client import EmbeddedTransport, embedded_transport
from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.exchange.frames import UNBOUNDED, Entries, Folded, Open, Results, Returns
from foldflight.exchange.view_columns import question_states, split_entries, without_entries
from foldflight.fold.aggregate.groups_accumulator import CachedView
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Function, Registry, function_of
from foldflight.functions.types.arrow import JSON, with_column
from foldflight.functions.types.views import PlainMap, ViewSpec, view_type
from foldflight.testing import LawResult, check_laws
from foldflight.testing.cached_views import CachedViews
from foldflight.testing.laws import LAWS, _check, _Inputs, _Subject, rows_of, rows_with_nulls
from foldflight.testing.pair import LIMITS, ExchangePair

# -- outside a query ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [MapView, PlainMap])
def test_a_map_view_has_the_methods_of_dict_and_of_pyflink(make: type[MapView[Any, Any]]) -> None:
    """In a unit test a MapView is a map in memory; queries have a faster one for keys of most types."""
    view = make({"a": 1})
    view["b"] = 2
    view.put("c", 3)
    view.put_all({"d": 4})
    view.update({"e": 5}, f=6)
    view |= {"a": 1}
    assert view.get("a") == view["a"] == 1
    assert view.get("z") is None
    assert view.get("z", 0) == 0
    assert "b" in view
    assert view.contains("c")
    assert view.setdefault("a", 9) == 1
    assert view.setdefault("g", 7) == 7
    assert view.pop("g") == 7
    assert view.pop("g", None) is None
    view.remove("f")
    del view["e"]
    assert dict(view.items()) == {"a": 1, "b": 2, "c": 3, "d": 4} == view
    assert list(view) == list(view.keys()) == ["a", "b", "c", "d"]
    assert list(view.values()) == [1, 2, 3, 4]
    assert "b" in view.keys()  # noqa: SIM118 - the method is tested
    assert view
    assert not view.is_empty()
    for read_missing in (lambda: view["z"], lambda: view.pop("z"), lambda: view.remove("z")):
        with pytest.raises(KeyError, match="z"):
            read_missing()
    assert view == MapView(view.items()) != MapView({"a": 1}) != view
    assert dict(view) == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert repr(view) == "MapView({'a': 1, 'b': 2, 'c': 3, 'd': 4})"
    for name in ("copy", "popitem", "fromkeys"):
        with pytest.raises(AttributeError, match=f"no.* '?{name}"):
            getattr(view, name)
    for reads_all in (lambda: view | {}, lambda: {} | view, lambda: reversed(view)):  # type: ignore[operator]
        with pytest.raises(TypeError):
            reads_all()
    keys = iter(view.keys())
    view[f"{next(keys)} again"] = 0
    with pytest.raises(RuntimeError, match="changed size during iteration"):
        next(keys)
    view.clear()
    assert not view
    assert view.is_empty()
    assert view == {}
    with pytest.raises(TypeError, match="keep a count"):
        len(view)


def test_a_list_view_has_the_methods_of_list_and_of_pyflink() -> None:
    """In a unit test a ListView is a list in memory."""
    view = ListView([1])
    view.add(2)
    view.append(3)
    view.add_all([4])
    view += iter([5])
    assert list(view) == list(view.get()) == [1, 2, 3, 4, 5] == view
    assert 3 in view
    assert view
    view.clear()
    assert not view
    assert view.is_empty()
    with pytest.raises(TypeError, match="keep a count"):
        len(view)


@pytest.mark.parametrize("make", [MapView, PlainMap])
def test_results_of_a_view_are_empty_or_not_and_have_no_len(make: type[MapView[Any, Any]]) -> None:
    """As with dict, `if view.items()` asks whether there are any; their number would need all of them."""
    view = make()
    items: ListView[int] = ListView()
    assert not any([view.items(), view.keys(), view.values(), items.get()])
    view["a"] = 0
    items.add(0)
    assert all([view.items(), view.keys(), view.values(), items.get()])
    assert list(view.items()) == [("a", 0)]
    with pytest.raises(TypeError, match="keep a count"):
        len(view.items())  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [MapView, PlainMap])
def test_copies_do_not_share_entries(make: type[MapView[Any, Any]]) -> None:
    """Copies by the module `copy`, as of dict and list."""
    view = make({"a": [1]})
    items: ListView[list[int]] = ListView([[1]])
    for copied_view, items_copied in [(copy.copy(view), copy.copy(items)), (copy.deepcopy(view), copy.deepcopy(items))]:
        copied_view["b"] = []
        items_copied.add([2])
    assert view == {"a": [1]}
    assert items == [[1]]
    assert copy.copy(view)["a"] is view["a"]
    copy.deepcopy(view)["a"].append(2)
    assert view == {"a": [1]}


def test_nan_and_none_are_keys() -> None:
    """NaN is equal to itself as a key, in tuples too, and None is a key like others."""
    view: MapView[Any, int] = MapView()
    view[float("nan")] = 1
    view[(1, float("nan"))] = 2
    view[None] = 3
    view[-0.0] = 4
    assert view.get(float("nan")) == 1
    assert view[(1, math.nan)] == 2
    assert view[None] == 3
    assert str([key for key in view if key == 0]) == "[0.0]"
    del view[float("nan")]
    assert not view.contains(float("nan"))


# -- declarations ------------------------------------------------------------------------------------------------------


class Seen:
    """The accumulator of the examples."""

    count: int
    seen: MapView[str, int]
    items: ListView[float]

    def __init__(self) -> None:
        self.count = 0
        self.seen = MapView()
        self.items = ListView()


@udaf(result_type="BIGINT", prefetch={"seen": ["value"]})
class CountDifferent:
    """Counts different texts."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc: Seen, value: str) -> None:
        times = acc.seen.get(value, 0)
        acc.count += times == 0
        acc.seen[value] = times + 1
        acc.items.add(float(acc.count))

    def merge(self, acc: Seen, other: Seen) -> None:
        for key, times in other.seen.items():
            acc.count += key not in acc.seen
            acc.seen[key] = acc.seen.get(key, 0) + times
        acc.items.add_all(other.items)

    def get_value(self, acc: Seen) -> int:
        return acc.count


COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.string())])
K = TypeVar("K")
V = TypeVar("V")


def open_request(**fields: Any) -> Open:
    return Open((Call("count_different", ("v",)),), COLUMNS, **fields)


def registry(*classes: type) -> Registry:
    return Registry([function for cls in classes or (CountDifferent,) if (function := function_of(cls)) is not None])


def rows(slots: Sequence[int], values: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"slot": pa.array(slots, pa.int32()), "v": values}, schema=COLUMNS)


def test_opened_describes_the_views() -> None:
    """Opened has name, types and prefetch of each view; DISTINCT counts rows, so it has none."""
    open_reply = ExchangePair(open_request(), registry()).engine.open_reply
    assert open_reply is not None
    seen_view, items = open_reply.calls[0].views
    assert (seen_view.name, seen_view.key, seen_view.value, seen_view.prefetch, seen_view.is_list) == (
        "seen",
        pa.string(),
        pa.int64(),
        (0,),
        False,
    )
    assert (items.name, items.key, items.value, items.prefetch, items.is_list) == (
        "items",
        pa.int64(),
        pa.float64(),
        (),
        True,
    )
    assert open_reply.schema.field("state_0").type.field("seen").type == seen_view.arrow
    distinct = Open((Call("count_different", ("v",), distinct=True),), COLUMNS)
    reply_of_distinct = ExchangePair(distinct, registry()).engine.open_reply
    assert reply_of_distinct is not None
    assert reply_of_distinct.calls[0].views == ()


def refusal_of(hints: dict[str, Any], methods: dict[str, Any] | None = None, **options: Any) -> RejectedError:
    """Return the error of declaring a class whose accumulator has these annotations."""
    state = type("State", (), {"__annotations__": hints})

    def create_accumulator(self: Any) -> Any:
        return state()

    create_accumulator.__annotations__["return"] = state

    def accumulate(self: Any, acc: Any, value: str) -> None: ...

    def get_value(self: Any, acc: Any) -> int:
        return 0

    accumulate.__annotations__ = {"value": str}
    get_value.__annotations__ = {"return": int}
    body = {"create_accumulator": create_accumulator, "accumulate": accumulate, "get_value": get_value}
    with pytest.raises(RejectedError) as excinfo:
        udaf(**options)(type("Bad", (), {**body, **(methods or {})}))
    assert excinfo.value.code == "SIGNATURE"
    return excinfo.value


def refuse_call(*_: Any) -> Any:
    """A method that is never called."""


class Derived(MapView[K, V]):
    """Has a method that a view of a query would not have."""

    def raised(self, key: K) -> None: ...


@pytest.mark.parametrize(
    ("hints", "methods", "options", "wrong"),
    [
        ({"a": MapView[str, int]}, {}, {"compile": True}, "compile=True"),
        (
            {"a": MapView[str, int]},
            {"fold_many": refuse_call, "get_values": refuse_call},
            {},
            "vectorised methods",
        ),
        ({"a": MapView[str, int]}, {"fold_bundle": refuse_call}, {}, "fold_bundle"),
        ({"a": MapView[str, int]}, {"serialize": refuse_call, "deserialize": refuse_call}, {}, "drop serialize"),
        ({"a": MapView[str, int]}, {}, {"state_type": "STRUCT<a BIGINT>"}, "drop state_type"),
        ({"a": MapView[str, int], "b": list}, {}, {}, "annotate all attributes"),
        ({"a": MapView[list[int], int]}, {}, {}, "keys of a MapView"),
        ({"a": MapView}, {}, {}, "annotate MapView"),
        ({"a": list[MapView[str, int]]}, {}, {}, "must be an attribute"),
        ({"a": MapView[str, MapView[str, int]]}, {}, {}, "must be an attribute"),
        ({"a": MapView[str, int]}, {}, {"prefetch": {"b": ["value"]}}, "no MapView of its accumulator"),
        ({"a": ListView[int]}, {}, {"prefetch": {"a": ["value"]}}, "no MapView of its accumulator"),
        ({"a": MapView[str, int]}, {}, {"prefetch": {"a": ["other"]}}, "no argument"),
        ({"a": MapView[tuple[str, int], int]}, {}, {"prefetch": {"a": ["value"]}}, "its keys have 2 parts"),
        ({"a": MapView[str, int]}, {}, {"prefetch": {"a": []}}, "without arguments"),
        ({"a": MapView[str, int]}, {}, {"prefetch": ["a"]}, "give a dict"),
        ({"a": MapView[str, int]}, {}, {"prefetch": {"a": None}}, "give a dict"),
        ({"a": dict[str, int]}, {}, {"prefetch": {"a": ["value"]}}, "annotate the accumulator"),
        ({"a": MapView[list[int], int]}, {}, {}, "State.a: the keys"),
        ({"a": MapView[str, int] | None}, {}, {}, "State.a: a view cannot be None"),
        ({"a": Derived[str, int]}, {}, {}, "State.a: Derived is derived from a view"),
    ],
)
def test_declarations_that_do_not_go_with_views_are_refused(
    hints: dict[str, Any], methods: dict[str, Any], options: dict[str, Any], wrong: str
) -> None:
    """What views exclude is an error where the class is declared, with the remedy."""
    assert wrong in refusal_of(hints, methods, **options).message


def test_a_tuple_cannot_have_views() -> None:
    """The accumulator must be an object, because its views are set when it is loaded."""
    with pytest.raises(RejectedError, match="must be an attribute"):

        @udaf
        class Pair:
            def create_accumulator(self) -> tuple[int, MapView[str, int]]:
                return 0, MapView()

            def accumulate(self, acc: Any, value: str) -> Any:
                return acc

            def get_value(self, acc: Any) -> int:
                return 0


def test_an_accumulator_with_views_is_not_none() -> None:
    """The engine keeps entries of an accumulator, so there must be one from the first row on."""
    with pytest.raises(RejectedError, match="an accumulator with views cannot be None"):

        @udaf
        class Late:
            def create_accumulator(self) -> Seen | None:
                return None

            def accumulate(self, acc: Seen | None, value: str) -> Seen:
                return acc or Seen()

            def get_value(self, acc: Seen | None) -> int:
                return 0


# -- without an engine that keeps entries ------------------------------------------------------------------------------


def test_states_have_all_entries_without_an_engine_that_keeps_them() -> None:
    """In a batch a state is complete, and two states merge."""
    pair = ExchangePair(open_request(), registry())
    pair.send(pair.engine.chunk(rows([0, 0, 1, 0], ["a", "b", "a", None])))
    states = pair.epoch(1)
    entries = states["state_0"].to_pylist()[0]["seen"]
    assert entries["complete"]
    assert [(entry["key"], entry["value"]) for entry in entries["entries"]] == [("a", 1), ("b", 1), (None, 1)]
    other = ExchangePair(open_request(), registry())
    batch = states.select(["slot", "state_0"]).to_batches()[0]
    other.send(other.engine.states(batch))
    other.send(other.engine.states(batch))
    assert other.epoch(1)["output_0"].to_pylist() == [3, 1]


def test_parts_of_views_need_an_engine_that_keeps_the_rest() -> None:
    """A state without all entries is refused if Open has no keeps_views."""
    pair = ExchangePair(open_request(), registry())
    pair.send(pair.engine.chunk(rows([0], ["a"])))
    state = pair.epoch(1).select(["slot", "state_0"]).to_batches()[0]
    views = pair.server.open_reply.calls[0].views
    partial = with_column(state, state.schema.field(1), question_states(state.column(1), views))
    with pytest.raises(RejectedError, match="keeps_views") as excinfo:
        pair.send(pair.engine.states(partial))
    assert excinfo.value.code == "STATE_MISMATCH"


# -- the oracle --------------------------------------------------------------------------------------------------------


class WithDict:
    """The accumulator of the oracle."""

    log: int
    map: dict[int, int]
    other: dict[int, int]
    list: list[int]

    def __init__(self) -> None:
        self.log = 0
        self.map = {}
        self.other = {}
        self.list = []


class WithViews:
    """The same with views; `create_accumulator` gives a plain dict and a plain list, as authors may."""

    log: int
    map: MapView[int, int]
    other: MapView[int, int]
    list: ListView[int]

    def __init__(self) -> None:
        self.log = 0
        self.other = MapView()
        self.map = {}  # type: ignore[assignment]
        self.list = []  # type: ignore[assignment]


MODULUS = 1_000_003


class Operations:
    """Each row is an operation on the map and the list. The result tells what all of them returned."""

    def accumulate(self, acc: Any, operation: str, key: int, value: int) -> None:
        result = self.apply(acc, operation, key, value)
        acc.log = (acc.log * 31 + hash(result)) % MODULUS

    def apply(self, acc: Any, operation: str, key: int, value: int) -> Any:
        match operation:
            case "get":
                return acc.map.get(key, -1)
            case "has":
                return key in acc.map
            case "set":
                acc.map[key] = value
            case "pop":
                return acc.map.pop(key, None)
            case "default":
                return acc.map.setdefault(key, value)
            case "clear":
                acc.map.clear()
            case "replace":
                acc.map = {key: value}
            case "move":
                acc.other, acc.map = acc.map, {}
            case "exchange":
                acc.other, acc.map = acc.map, acc.other
            case "copy":
                acc.other = copy.copy(acc.map)
            case "any":
                return bool(acc.map)
            case "sum":
                return sum(each * (place + 1) for place, each in acc.map.items())
            case "raise all":
                for each in list(acc.map):
                    acc.map[each] += value
            case "raise meanwhile":
                for each, before in acc.map.items():
                    acc.map[each] = before + value
            case "grow meanwhile":
                try:
                    for each in acc.map:
                        acc.map[each + 100] = value
                except RuntimeError:
                    acc.map.clear()  # where it stopped depends on the order
            case "append":
                acc.list.append(value)
            case "items":
                return tuple(acc.list)
            case "some items":
                return next(iter(acc.list), None)
            case "clear items":
                acc.list.clear()
        return None

    def get_value(self, acc: Any) -> int:
        contents = hash(tuple(sorted(acc.map.items()))) + hash(tuple(sorted(acc.other.items()))) * 7
        return int((acc.log * 31 + contents + hash(tuple(acc.list))) % MODULUS)


@udaf(name="ops", input_types=["STRING", "BIGINT", "BIGINT"], result_type="BIGINT")
class DictOperations(Operations):
    def create_accumulator(self) -> WithDict:
        return WithDict()


@udaf(name="ops", input_types=["STRING", "BIGINT", "BIGINT"], result_type="BIGINT", prefetch={"map": ["key"]})
class ViewOperations(Operations):
    def create_accumulator(self) -> WithViews:
        return WithViews()


OPERATIONS = pa.schema([("slot", pa.int32()), ("o", pa.string()), ("k", pa.int64()), ("v", pa.int64())])
CALL = Call("ops", ("o", "k", "v"))
NAMES = (
    "get",
    "has",
    "set",
    "set",
    "set",
    "pop",
    "default",
    "clear",
    "replace",
    "move",
    "exchange",
    "copy",
    "any",
    "sum",
    "append",
    "append",
    "items",
    "clear",
    "raise all",
    "raise meanwhile",
    "grow meanwhile",
    "some items",
    "clear items",
)
operation = st.tuples(st.integers(0, 2), st.sampled_from(NAMES), st.integers(0, 6), st.integers(0, 9))
chunk = st.lists(operation, min_size=1, max_size=8)
step = st.one_of(
    chunk,
    chunk,
    st.just("checkpoint"),
    st.just("barrier"),
    st.just("barrier, forget"),
    st.tuples(st.just("prefetch"), st.lists(st.integers(0, 6), max_size=4, unique=True)),
)


class Driver:
    """An engine that keeps views, over an exchange in memory, and moves to another server now and then."""

    def __init__(self, *, inline: int, page: int, limits: Any = LIMITS) -> None:
        self.limits = limits
        self.open_request = Open((CALL,), OPERATIONS, keeps_views=True)
        self.pair = self.dial()
        self.kept = CachedViews(self.pair.server.open_reply, inline=inline, page=page)
        self.pair.resolve = self.kept.resolve
        self.loaded: set[int] = set()
        self.epoch = 0
        self.outputs: list[list[dict[str, Any]]] = []

    def dial(self) -> ExchangePair:
        return ExchangePair(self.open_request, registry(ViewOperations), limits=self.limits)

    def chunk(self, operations: list[tuple[int, str, int, int]]) -> None:
        touched_slots = {slot for slot, *_ in operations}
        cold = sorted(slot for slot in touched_slots - self.loaded if slot in self.kept.slots)
        self.loaded |= touched_slots
        if cold:
            self.pair.send(self.pair.engine.states(self.kept.states(cold)))
        replies = self.pair.send(self.pair.engine.chunk(batch_of(operations)))
        assert isinstance(replies[-1], Folded)

    def prefetch(self, keys: list[int]) -> None:
        for slot in sorted(self.loaded & set(self.kept.slots)):
            self.pair.send(self.pair.engine.entries(self.kept.prefetch_entries(slot, 0, "map", keys)))

    def checkpoint(self) -> None:
        self.pair.send(self.pair.engine.checkpoint())
        self.kept.commit(self.pair.answers.popleft().states)

    def barrier(self, *, forgets: bool) -> None:
        self.epoch += 1
        results = self.pair.epoch(self.epoch)
        self.kept.commit(results)
        first = {row["slot"]: row["output_0"] for row in reversed(results.select(["slot", "output_0"]).to_pylist())}
        self.outputs.append([{"slot": slot, "output": first[slot]} for slot in sorted(first)])
        if forgets:
            self.pair.send(self.pair.engine.forget(pa.array(sorted(self.loaded), pa.int32())))
            self.loaded.clear()


def batch_of(operations: list[tuple[int, str, int, int]]) -> pa.RecordBatch:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*operations, strict=True), OPERATIONS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=OPERATIONS)


def expected(steps: list[Any]) -> list[list[dict[str, Any]]]:
    """Return the outputs of the class with dict and list."""
    pair = ExchangePair(Open((CALL,), OPERATIONS), registry(DictOperations))
    outputs = []
    for epoch, epoch_steps in enumerate(epochs_of(steps), 1):
        for operations in epoch_steps:
            pair.send(pair.engine.chunk(batch_of(operations)))
        results = pair.epoch(epoch).select(["slot", "output_0"]).to_pylist()
        outputs.append([{"slot": row["slot"], "output": row["output_0"]} for row in results])
    return outputs


def epochs_of(steps: list[Any]) -> list[list[Any]]:
    epochs: list[list[Any]] = [[]]
    for each in steps:
        if isinstance(each, list):
            epochs[-1].append(each)
        elif isinstance(each, str) and each.startswith("barrier"):
            epochs.append([])
    return epochs[:-1]


def run(driver: Driver, steps: list[Any]) -> None:
    for each in steps:
        match each:
            case list():
                driver.chunk(each)
            case "checkpoint":
                driver.checkpoint()
            case "barrier" | "barrier, forget":
                driver.barrier(forgets=each != "barrier")
            case (_, keys):
                driver.prefetch(keys)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(step, min_size=3, max_size=14).map(lambda steps: [*steps, "barrier"]),
    inline=st.sampled_from([0, 2, 100]),
    page=st.sampled_from([1, 2, 5]),
)
def test_views_give_the_outputs_of_dict_and_list(steps: list[Any], inline: int, page: int) -> None:
    """Whatever the split, the barriers, the checkpoints, the prefetch and the inlining."""
    driver = Driver(inline=inline, page=page)
    run(driver, steps)
    assert driver.outputs == expected(steps)


@pytest.mark.parametrize(
    "steps",
    [
        [[(0, "move", 0, 0), (0, "set", 9, 9)], "barrier", [(0, "exchange", 0, 0)]],
        [[(0, "move", 0, 0), (0, "set", 9, 9)], "checkpoint", [(0, "exchange", 0, 0)]],
        [
            [(0, "move", 0, 0), (0, "set", 9, 9)],
            "barrier",
            [(0, "exchange", 0, 0)],
            ("prefetch", [9]),
            [(0, "get", 9, 0)],
        ],
        [[(0, "copy", 0, 0), (0, "set", 1, 7)], "barrier", [(0, "exchange", 0, 0)]],
    ],
)
def test_a_view_may_be_set_as_another_view(steps: list[Any]) -> None:
    """Its entries are those that it was read from, and then it is stored as a whole; also a copy of it."""
    driver = Driver(inline=0, page=2)
    steps = [[(0, "set", key, key) for key in range(4)], "barrier, forget", *steps, "barrier"]
    run(driver, steps)
    assert driver.outputs == expected(steps)


class Lists:
    """The items since a text, and those before it."""

    now: ListView[str]
    before: ListView[str]

    def __init__(self) -> None:
        self.now, self.before = ListView(), ListView()


def test_a_list_may_be_set_as_another_list() -> None:
    """Its items are those that it was read from, and then it is stored as a whole."""

    @udaf(name="count_different", input_types=["STRING"], result_type="STRING")
    class Last:
        def create_accumulator(self) -> Lists:
            return Lists()

        def accumulate(self, acc: Lists, value: str) -> None:
            if value == "move":
                acc.before, acc.now = acc.now, ListView()
            else:
                acc.now.append(value)

        def get_value(self, acc: Lists) -> str:
            return f"{[*acc.before]} {[*acc.now]}"

    pair = ExchangePair(open_request(keeps_views=True), registry(Last))
    cached_views = CachedViews(pair.server.open_reply)
    pair.resolve = cached_views.resolve
    outputs = []
    for epoch, values in enumerate(["abcde", ["f", "move", "g"], "h", "i"]):
        pair.send(pair.engine.chunk(rows([0] * len(values), list(values))))
        results = pair.epoch(epoch)
        cached_views.commit(results)
        outputs.append(results["output_0"][0].as_py())
    assert outputs[1] == f"{[*'abcdef']} {['g']}"
    assert outputs[3] == f"{[*'abcdef']} {[*'ghi']}"


def test_a_known_entry_is_not_asked_for() -> None:
    """With a right prefetch the server asks nothing; with a wrong one, results are the same."""
    steps = [[(0, "set", key, key)] for key in range(5)]
    request_counts = {}
    for keys in ([0, 1, 2], [4], []):
        driver = Driver(inline=0, page=2)
        run(driver, [*steps, "barrier, forget", [(0, "any", 0, 0)][:0] or [(1, "get", 0, 0)]])
        driver.pair.send(driver.pair.engine.states(driver.kept.states([0])))
        driver.loaded.add(0)
        driver.prefetch(keys)
        run(driver, [[(0, "get", key, 0) for key in (0, 1, 2, 1)], "barrier"])
        request_counts[tuple(keys)] = driver.kept.questions
        outputs = driver.outputs[-1]
        assert outputs == driver.outputs[-1]
    assert request_counts[(0, 1, 2)] + 3 == request_counts[(4,)] == request_counts[()]


def test_large_changes_come_in_parts() -> None:
    """The changed entries of one slot may exceed a message."""
    limits = dataclasses.replace(LIMITS, message_bytes_max=18_000)
    driver = Driver(inline=0, page=1000, limits=limits)
    steps = [
        [(0, "set", key, key) for key in range(start, start + 200)] + [(0, "append", 0, start)]
        for start in range(0, 800, 200)
    ]
    run(driver, [*steps, "barrier, forget", *steps, [(0, "sum", 0, 0), (0, "items", 0, 0)], "barrier"])
    assert driver.outputs == expected([*steps, "barrier", *steps, [(0, "sum", 0, 0), (0, "items", 0, 0)], "barrier"])
    assert sum(isinstance(reply, Results) for reply in driver.pair.replies) > 2


def test_a_checkpoint_that_exceeds_a_bound_ends_the_exchange() -> None:
    """Its entries are nowhere else, so the exchange cannot go on without them."""
    limits = dataclasses.replace(LIMITS, state_bytes_max=2000)
    driver = Driver(inline=0, page=2, limits=limits)
    driver.chunk([(0, "set", key, key) for key in range(500)])
    with pytest.raises(RejectedError) as excinfo:
        driver.checkpoint()
    assert (excinfo.value.code, excinfo.value.slot) == ("LIMIT", 0)


def test_entries_of_one_slot_may_exceed_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection sends them in parts, and the part that says that they are all comes last."""
    small = dataclasses.replace(UNBOUNDED, message_bytes_max=20_000)
    monkeypatch.setattr(embedded_transport, "UNBOUNDED", small)
    transport = EmbeddedTransport(registry(ViewOperations), state_key=b"a key of sixteen bytes or more")
    open_reply = transport.describe(Open((CALL,), OPERATIONS))
    cached_views = CachedViews(open_reply, page=600)
    with transport.open(Open((CALL,), OPERATIONS, keeps_views=True), resolve=cached_views.resolve) as exchange:
        exchange.chunk(batch_of([(0, "set", key, key) for key in range(600)]))
        exchange.barrier(1)
        results = exchange.results(1)
        assert results.num_rows > 1
        cached_views.commit(results)
        exchange.chunk(batch_of([(0, "sum", 0, 0)]))  # its page has 600 entries
        assert cached_views.questions == 1
        exchange.entries(cached_views.prefetch_entries(0, 0, "map", list(range(600))))
        everything = cached_views.prefetch_entries(0, 0, "map", list(range(600)))
        complete = everything.to_pylist()
        complete[0]["state_0"]["map"]["complete"] = True
        exchange.entries(pa.RecordBatch.from_pylist(complete, schema=everything.schema))
        exchange.chunk(batch_of([(0, "get", 599, 0), (0, "get", 700, 0), (0, "sum", 0, 0)]))
        exchange.barrier(2)
        outputs = exchange.results(2)["output_0"].to_pylist()
    assert cached_views.questions == 2  # of the first sum, and of get_value for the other map
    steps = [[(0, "set", key, key) for key in range(600)], "barrier", [(0, "sum", 0, 0)]]
    expected_values = expected([*steps, [(0, "get", 599, 0), (0, "get", 700, 0), (0, "sum", 0, 0)], "barrier"])
    assert outputs[0] == expected_values[-1][0]["output"]


def test_entries_of_unequal_size_come_in_parts_within_the_bound() -> None:
    """Also where all large entries follow each other; the parts have all entries, in their order."""
    type_ = view_type(pa.int64(), pa.string())
    texts = ["small"] * 500 + ["large" * 400] * 8 + ["small"] * 500
    entries = [{"key": key, "value": text, "present": True} for key, text in enumerate(texts)]
    view = {"complete": True, "cleared": False, "entries": entries}
    states = pa.array([{"count": 7, "texts": view}], pa.struct([("count", pa.int64()), ("texts", type_)]))
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), states], names=["slot", "state_0"])
    parts = list(split_entries(batch, [[ViewSpec("texts", pa.int64(), pa.string())]], 5_000))
    assert max(map(pa.ipc.get_record_batch_size, parts)) <= 6_500  # with the metadata of a message
    result = [part.column(1).to_pylist()[0] for part in parts]
    assert [entry for each in result for entry in each["texts"]["entries"]] == entries
    assert [each["count"] for each in result] == [7] + [None] * (len(parts) - 1)
    assert [each["texts"]["complete"] for each in result] == [True] + [False] * (len(parts) - 1)


def test_states_without_entries_have_the_numbers_of_all_items() -> None:
    """Another server goes on from them: a list whose items came in several parts has not the number of the first."""
    spec = ViewSpec("texts", pa.int64(), pa.string(), is_list=True)
    states = pa.array(
        [
            {
                "texts": {
                    "complete": True,
                    "cleared": False,
                    "entries": [{"key": key, "value": "x" * 90, "present": True} for key in range(count)],
                }
            }
            for count in (100, 3, 40)
        ],
        pa.struct([("texts", spec.arrow)]),
    )
    batch = pa.RecordBatch.from_arrays([pa.array([0, 2, 5], pa.int32()), states], names=["slot", "state_0"])
    parts = [part for row in range(3) for part in split_entries(batch.slice(row, 1), [[spec]], 2_000)]
    assert len(parts) > 6
    (result,) = without_entries(pa.Table.from_batches(parts), [[spec]]).to_batches()
    assert result.column(0).to_pylist() == [0, 2, 5]
    entries = [row["texts"]["entries"] for row in result.column(1).to_pylist()]
    assert [[each["key"] for each in items] for items in entries] == [[100], [3], [40]]


def test_prefetched_entries_do_not_replace_what_rows_have_changed() -> None:
    """Entries are facts as of the last barrier, so they are of no effect for what has changed since."""
    driver = Driver(inline=0, page=2)
    run(driver, [[(0, "set", 1, 1), (0, "set", 2, 2)], "barrier, forget", [(0, "set", 1, 5), (0, "pop", 2, 0)]])
    driver.prefetch([1, 2, 3])
    run(driver, [[(0, "sum", 0, 0)], "barrier"])
    assert driver.kept.entries(0, 0, "map") == [(1, 5)]


class Keyed:
    """Maps with keys of several types."""

    texts: MapView[str, int]
    pairs: MapView[tuple[int, str], int]
    floats: MapView[float, int]
    dates: MapView[datetime.date, int]

    def __init__(self) -> None:
        self.texts, self.pairs, self.floats, self.dates = MapView(), MapView(), MapView(), MapView()


@pytest.mark.parametrize("inline", [0, 9])
@pytest.mark.parametrize("keeps", [False, True])
def test_maps_that_are_known_as_a_whole_are_fast(*, keeps: bool, inline: int) -> None:
    """With keys that need no normal form. NumPy's keys, NaN and None name the same entries in all kinds of maps."""
    kinds: list[tuple[type, ...]] = []
    day = datetime.date(2026, 1, 2)

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT")
    class Keys:
        def create_accumulator(self) -> Keyed:
            return Keyed()

        def accumulate(self, acc: Keyed, value: str) -> None:
            kinds.append(tuple(map(type, (acc.texts, acc.pairs, acc.floats, acc.dates))))
            is_numpy = value == "numpy"
            acc.texts["a" if not is_numpy else np.str_("a")] = 1
            acc.pairs[(1 if not is_numpy else np.int64(1), "a")] = 1  # type: ignore[index]
            acc.floats[math.nan if not is_numpy else np.float64("nan")] = 1
            acc.dates[day if not is_numpy else np.datetime64("2026-01-02")] = 1  # type: ignore[index]
            acc.texts[None] = 2  # type: ignore[index]

        def get_value(self, acc: Keyed) -> int:
            return sum(1 for each in (acc.texts, acc.pairs, acc.floats, acc.dates) for _ in each)

    pair = ExchangePair(open_request(keeps_views=keeps), registry(Keys))
    cached_views = CachedViews(pair.server.open_reply, inline=inline)
    pair.resolve = cached_views.resolve
    outputs = []
    for epoch, value in enumerate(["python", "numpy", "python"]):
        if keeps and epoch:
            pair.send(pair.engine.states(cached_views.states([0])))
        pair.send(pair.engine.chunk(rows([0], [value])))
        results = pair.epoch(epoch)
        outputs += results["output_0"].to_pylist()
        if keeps:
            cached_views.commit(results)
            pair.send(pair.engine.forget(pa.array([0], pa.int32())))
    assert outputs == [5, 5, 5]
    whole = (PlainMap, PlainMap, MapView, MapView)
    assert kinds[0] == whole
    assert (kinds[1] == kinds[2] == whole) == (inline > 0 or not keeps)


def test_entries_that_are_only_iterated_over_are_not_counted() -> None:
    """A view may have more bytes than an exchange may hold; a copy of it may not."""
    limits = dataclasses.replace(LIMITS, exchange_state_bytes_max=4_000)
    driver = Driver(inline=0, page=10, limits=limits)
    steps: list[Any] = []
    for start in range(0, 400, 100):
        steps += [[(0, "set", key, key) for key in range(start, start + 100)], "barrier, forget"]
    steps += [[(0, "sum", 0, 0)], "barrier"]
    run(driver, steps)
    assert driver.outputs == expected(steps)
    with pytest.raises(RejectedError, match="the entries of views that one epoch uses") as excinfo:
        driver.chunk([(0, "copy", 0, 0)])
    assert excinfo.value.limit == "exchange_state_bytes_max"


# -- bad input ---------------------------------------------------------------------------------------------------------


def error_of_answer(answer: Any) -> RejectedError:
    """Return the error for an engine that answers a question of the map with this, which it makes of its own answer."""
    driver = Driver(inline=0, page=2)
    run(driver, [[(0, "set", 1, 1), (0, "set", 2, 2), (1, "set", 1, 1)], "barrier"])
    driver.pair.resolve = lambda expected: answer(driver.kept, expected)
    with pytest.raises(RejectedError) as excinfo:
        driver.chunk([(0, "get", 1, 0)])
    assert excinfo.value.code == "BAD_FRAME"
    with pytest.raises(FoldflightError):
        driver.pair.send(driver.pair.engine.barrier(9))
    return excinfo.value


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (lambda cached_views, _: [cached_views.prefetch_entries(0, 0, "map", [2])], "or another one"),
        (lambda cached_views, _: [cached_views.prefetch_entries(0, 0, "map", [1, 2])], "with 2 keys"),
        (lambda cached_views, _: [cached_views.prefetch_entries(0, 0, "map", [])], "with 0 keys"),
        (lambda cached_views, _: [cached_views.prefetch_entries(0, 0, "list", [1])], "with 0 keys"),
        (lambda cached_views, _: [cached_views.prefetch_entries(1, 0, "map", [1])], "entries of slot 0"),
        (lambda _, expected: [expected.select(["slot"])], "entries of slot 0"),
    ],
)
def test_answers_to_other_questions_are_refused(answer: Any, wrong: str) -> None:
    """Even a function that catches everything does not go on with a wrong answer."""
    assert wrong in error_of_answer(answer).message


def test_a_function_cannot_go_on_without_an_answer() -> None:
    """The error of the engine is raised, though the function catches what interrupted it."""

    @udaf(name="ops", input_types=["STRING", "BIGINT", "BIGINT"], result_type="BIGINT")
    class Stubborn(ViewOperations):
        def create_accumulator(self) -> WithViews:
            return WithViews()

        def apply(self, acc: Any, operation: str, key: int, value: int) -> Any:
            for _ in range(3):
                try:
                    return super().apply(acc, operation, key, value)
                except:  # noqa: E722
                    pass
            return None

    driver = Driver(inline=0, page=2)
    driver.pair = ExchangePair(driver.open_request, registry(Stubborn), resolve=driver.kept.resolve)
    run(driver, [[(0, "set", 1, 1)], "barrier"])
    calls = []

    def fail(_: pa.RecordBatch) -> Any:
        calls.append(1)
        raise ZeroDivisionError("of the engine")

    driver.pair.resolve = fail
    with pytest.raises(ZeroDivisionError, match="of the engine"):
        driver.chunk([(0, "get", 1, 0)])
    assert len(calls) == 1


def test_entries_for_unknown_slots_and_columns_are_refused() -> None:
    """They are BAD_FRAME, with the reason."""
    wrongs: list[tuple[Any, str]] = [
        (lambda batch: with_column(batch, "slot", pa.array([5], pa.int32())), "no state"),
        (lambda batch: with_column(batch, "state_1", batch.column("state_0")), "no state with views"),
        (lambda batch: with_column(batch, "state_0", pa.array([1])), "expected"),
    ]
    for make, wrong in wrongs:
        driver = Driver(inline=0, page=2)
        run(driver, [[(0, "set", 1, 1)], "barrier"])
        with pytest.raises(RejectedError, match=wrong) as excinfo:
            driver.pair.send(driver.pair.engine.entries(make(driver.kept.prefetch_entries(0, 0, "map", [1]))))
        assert excinfo.value.code == "BAD_FRAME"


def test_frames_of_views_need_keeps_views() -> None:
    """Entries are no frame of other exchanges, and keeps_views needs states."""
    pair = ExchangePair(open_request(), registry())
    with pytest.raises(RejectedError, match="keeps_views"):
        pair.server.handle(Entries(rows([0], ["a"]))).__next__()
    for fields in ({"returns": Returns(states=False)}, {"row_outputs": True}):
        with pytest.raises(RejectedError, match="keeps_views") as excinfo:
            ExchangePair(open_request(keeps_views=True, **fields), registry())
        assert excinfo.value.code == "SIGNATURE"


def test_a_second_state_is_refused_where_the_engine_keeps_views() -> None:
    """Views do not merge in streams."""
    pair = ExchangePair(open_request(keeps_views=True), registry())
    cached_views = CachedViews(pair.server.open_reply)
    pair.send(pair.engine.chunk(rows([0], ["a"])))
    cached_views.commit(pair.epoch(1))
    with pytest.raises(RejectedError) as excinfo:
        pair.send(pair.engine.states(cached_views.states([0])))
    assert excinfo.value.code == "CANNOT_MERGE"


def test_keys_that_do_not_fit_are_errors_of_the_function() -> None:
    """A key of another type is refused where the entry would be looked up, and where it would be stored."""

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT")
    class Wrong(CountDifferent):
        def accumulate(self, acc: Seen, value: Any) -> None:
            acc.seen.get(5, 0)  # type: ignore[call-overload]

        merge = None  # type: ignore[assignment]

    pair = ExchangePair(open_request(keeps_views=True), registry(Wrong))
    cached_views = CachedViews(pair.server.open_reply)
    pair.resolve = cached_views.resolve
    pair.send(pair.engine.chunk(rows([0], ["a"])))
    cached_views.commit(pair.epoch(1))
    with pytest.raises(FunctionError, match="does not fit the view seen") as excinfo:
        pair.send(pair.engine.chunk(rows([0], ["b"])))
    assert excinfo.value.code == "USER_CODE"


@pytest.mark.parametrize(
    ("given_view", "wrong"), [(None, "not set"), (5, "of type int"), (ListView(), "of type ListView")]
)
@pytest.mark.parametrize("keeps", [False, True])
def test_a_new_accumulator_without_its_views_is_an_error_of_the_function(
    keeps: bool, given_view: Any, wrong: str
) -> None:
    """It is the same error in a batch and in a stream, and it tells what to set."""

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT")
    class Wrong(CountDifferent):
        def create_accumulator(self) -> Seen:
            accumulator = Seen()
            accumulator.seen = given_view
            return accumulator

    pair = ExchangePair(open_request(keeps_views=keeps), registry(Wrong))
    with pytest.raises(FunctionError, match=rf"seen of a new accumulator is {wrong}.*set it to MapView\(\)") as excinfo:
        pair.send(pair.engine.chunk(rows([0], ["a"])))
    assert excinfo.value.code == "USER_CODE"


def test_an_object_in_the_place_of_a_view_is_refused_with_the_state() -> None:
    """Entries that come meanwhile are not taken for it, and the memory of the server can be examined."""

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT", prefetch={"seen": ["value"]})
    class Wrong(CountDifferent):
        def accumulate(self, acc: Seen, value: str) -> None:
            if value == "wrong":
                acc.seen = 5  # type: ignore[assignment]
            elif value == "dict":
                acc.seen = {"a": 1, "b": 2, "c": 3}  # type: ignore[assignment]

        merge = None  # type: ignore[assignment]

    pair = ExchangePair(open_request(keeps_views=True), registry(Wrong))
    cached_views = CachedViews(pair.server.open_reply)
    pair.send(pair.engine.chunk(rows([0, 1], ["a", "dict"])))
    largest = [pair.server.largest_view]
    cached_views.commit(pair.epoch(1))
    pair.send(pair.engine.chunk(rows([0], ["wrong"])))
    largest.append(pair.server.largest_view)
    assert largest == [CachedView(3, 1, "count_different", "seen"), None]
    pair.send(pair.engine.entries(cached_views.prefetch_entries(0, 0, "seen", ["a"])))
    with pytest.raises(FunctionError, match=r"seen: 5 \(int\) is not a MapView") as excinfo:
        pair.epoch(2)
    assert excinfo.value.code == "RESULT_TYPE"


class Both:
    """A view and a dict."""

    seen: MapView[str, int]
    copied: dict[str, int]

    def __init__(self) -> None:
        self.seen, self.copied = MapView(), {}


RETURNED = ["MAP<STRING, BIGINT>", "STRUCT<a MAP<STRING, BIGINT>>", "BIGINT", *(["JSON"] if JSON else [])]


@pytest.mark.parametrize("result_type", RETURNED)
def test_a_view_is_no_dict_in_results_and_states(result_type: str) -> None:
    """Also while it is in memory as a whole: otherwise it would be refused only when it has become large."""

    @udaf(name="count_different", input_types=["STRING"], result_type=result_type)
    class Returned:
        def create_accumulator(self) -> Both:
            return Both()

        def accumulate(self, acc: Both, value: str) -> None:
            acc.seen[value] = 1
            if result_type == "BIGINT":
                acc.copied = acc.seen  # type: ignore[assignment]

        def get_value(self, acc: Both) -> Any:
            return {"a": acc.seen} if result_type.startswith("STRUCT") else acc.seen

    pair = ExchangePair(open_request(), registry(Returned))
    pair.send(pair.engine.chunk(rows([0], ["a"])))
    with pytest.raises(FunctionError, match=r"copied: .* is not a dict|MapView") as excinfo:
        pair.epoch(1)
    assert excinfo.value.code == "RESULT_TYPE"


def test_states_with_null_instead_of_a_view_are_refused() -> None:
    """No fold writes them."""
    pair = ExchangePair(open_request(keeps_views=True), registry())
    type_ = pair.server.open_reply.schema.field("state_0").type
    state = {"count": 1, "seen": None, "items": {"complete": True, "cleared": False, "entries": []}}
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int32()), pa.array([state], type_)], names=["slot", "state_0"])
    with pytest.raises(RejectedError, match="its view seen is NULL") as excinfo:
        pair.send(pair.engine.states(batch))
    assert excinfo.value.code == "STATE_MISMATCH"


def test_views_are_not_pickled() -> None:
    """Without annotations a view would be stored as a whole, so such a state is refused."""

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT")
    class Unannotated(CountDifferent):
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return Seen()

    signer = StateSigner([b"k" * 32])
    pair = ExchangePair(open_request(), registry(Unannotated), signer=signer)
    pair.send(pair.engine.chunk(rows([0], ["a"])))
    with pytest.raises(FunctionError, match="has the view seen, but is pickled as a whole") as excinfo:
        pair.epoch(1)
    assert excinfo.value.code == "RESULT_TYPE"


class Numbers:
    """The accumulator of numbers and their texts."""

    numbers: MapView[float, str]
    pairs: MapView[tuple[str, float], str]

    def __init__(self) -> None:
        self.numbers, self.pairs = MapView(), MapView()


@pytest.mark.parametrize("is_pair", [False, True])
def test_integers_that_a_float_cannot_represent_are_no_keys(is_pair: bool) -> None:
    """Two of them would become one entry in the state; NaN, infinity, -0.0 and other integers are keys."""

    @udaf(name="count_different", input_types=["STRING"], result_type="BIGINT")
    class Texts:
        def create_accumulator(self) -> Numbers:
            return Numbers()

        def accumulate(self, acc: Numbers, value: str) -> None:
            number = int(value) if value.isdigit() else float(value)
            if is_pair:
                acc.pairs[value, number] = value
            else:
                acc.numbers[number] = value

        def get_value(self, acc: Numbers) -> int:
            return sum(1 for _ in acc.numbers) + sum(1 for _ in acc.pairs)

    pair = ExchangePair(open_request(), registry(Texts))
    pair.send(pair.engine.chunk(rows([0] * 5, ["nan", "inf", "-0.0", "1", "9007199254740992"])))
    assert pair.epoch(1)["output_0"].to_pylist() == [5]
    pair.send(pair.engine.chunk(rows([0], ["9007199254740993"])))
    with pytest.raises(FunctionError, match=r"the key .*9007199254740993.* is not exact in") as excinfo:
        pair.epoch(2)
    assert excinfo.value.code == "RESULT_TYPE"


# -- the laws ----------------------------------------------------------------------------------------------------------


def outcome(cls: type) -> LawResult:
    """Return the outcome of the law of views."""
    function = function_of(cls)
    assert isinstance(function, Function)
    subject = _Subject(function, {})
    rows = rows_with_nulls if subject.error_at_nulls is None else rows_of
    return _check(LAWS[-1], subject, _Inputs(rows, subject.types, {}, examples=40))


class Members:
    """Members of groups."""

    members: MapView[str, list[int]]

    def __init__(self) -> None:
        self.members = MapView()


class InPlace:
    """Appends to the lists of a map."""

    puts = True

    def create_accumulator(self) -> Members:
        return Members()

    def accumulate(self, acc: Members, name: str, number: int) -> None:
        numbers = acc.members.setdefault(name, [])
        numbers.append(number)
        if self.puts:
            acc.members[name] = numbers

    def get_value(self, acc: Members) -> int:
        return sum(map(sum, acc.members.values()))


def test_a_value_that_is_changed_in_place_must_be_put() -> None:
    """`foldflight check` finds who does not put it, and says so."""
    assert outcome(CountDifferent).passed
    assert outcome(udaf(input_types=["STRING", "BIGINT"], result_type="BIGINT")(InPlace)).passed

    @udaf(input_types=["STRING", "BIGINT"], result_type="BIGINT")
    class Forgetful(InPlace):
        puts = False

        def create_accumulator(self) -> Members:
            return Members()

    result = outcome(Forgetful)
    assert result.passed is False
    assert "not put again" in result.detail
    assert outcome(DictOperations).passed is None


def test_the_laws_of_the_example_hold() -> None:
    """Those that apply to a function with views."""
    assert not [each for each in check_laws(CountDifferent, examples=5) if each.passed is False]


def test_the_largest_view_is_known() -> None:
    """Its number of entries in memory, slot, function and name, for the error of a server without memory."""
    pair = ExchangePair(open_request(), registry())
    assert pair.server.largest_view is None
    pair.send(pair.engine.chunk(rows([0, 2, 2, 1], ["a", "b", "c", "d"])))
    assert pair.server.largest_view == CachedView(2, 2, "count_different", "seen")
