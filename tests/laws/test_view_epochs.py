"""Streams whose functions have views: the same results as with dicts and lists, for any epochs and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import ListView, MapView, RejectedError, connect, udaf
from foldflight.client.exchange import SingleServerExchange
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.manifest import TableBounds
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.functions import Call
from foldflight.testing import Epoch, run_epochs
from tests.effort import examples
from tests.watched import Seen, watch_calls

SMALL = TableBounds(
    piece_rows_max=3, fan_in=2, merge_rows_max=4, merge_share=2, inline_entries_max=2, inline_bytes_max=60
)


class Kept:
    """What the rows of a group have left, with views."""

    count: int
    times: MapView[str, int]
    log: ListView[str]

    def __init__(self) -> None:
        self.count = 0
        self.times = MapView()
        self.log = ListView()


class Held:
    """The same with a dict and a list."""

    def __init__(self) -> None:
        self.count = 0
        self.times: dict[Any, int] = {}
        self.log: list[str] = []


class Different:
    """Counts different texts. A log has the new ones; the text "x" clears it, and "y" the counts."""

    def accumulate(self, acc: Any, value: str) -> None:
        times = acc.times.get(value, 0)
        if not times:
            acc.count += 1
            acc.log.append(str(value))
        acc.times[value] = times + 1
        if value == "x":
            acc.log.clear()
        if value == "y":
            acc.times.clear()
            acc.count = 0

    def retract(self, acc: Any, value: str) -> None:
        times = acc.times.get(value, 0)
        if times == 1:
            del acc.times[value]
            acc.count -= 1
        elif times:
            acc.times[value] = times - 1

    def get_value(self, acc: Any) -> str:
        return f"{acc.count} {sorted(map(str, acc.times.items()))} {list(acc.log)}"


@udaf(name="kept", input_types=["VARCHAR"], result_type="VARCHAR", prefetch={"times": ["value"]})
class KeptDifferent(Different):
    """With views whose entries are prefetched."""

    def create_accumulator(self) -> Kept:
        return Kept()


@udaf(name="asked", input_types=["VARCHAR"], result_type="VARCHAR")
class AskedDifferent(Different):
    """With views whose entries are asked for."""

    def create_accumulator(self) -> Kept:
        return Kept()


@udaf(name="held", input_types=["VARCHAR"], result_type="VARCHAR")
class HeldDifferent(Different):
    """Without views."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return Held()


@udaf(name="different", input_types=["VARCHAR"], result_type="BIGINT", prefetch={"times": ["value"]})
class CountDifferent(Different):
    """Reads no entries for its value."""

    def create_accumulator(self) -> Kept:
        return Kept()

    def merge(self, acc: Kept, other: Kept) -> None:
        for value, times in other.times.items():
            acc.count += value not in acc.times
            acc.times[value] = acc.times.get(value, 0) + times

    def get_value(self, acc: Any) -> int:  # type: ignore[override]
        return int(acc.count)


class Pairs:
    """Pairs with their times."""

    count: int
    times: MapView[tuple[str, float], int]

    def __init__(self) -> None:
        self.count = 0
        self.times = MapView()


@udaf(name="pairs", input_types=["VARCHAR", "DOUBLE"], result_type="BIGINT", prefetch={"times": ["text", "number"]})
class CountPairs:
    """Counts different pairs."""

    def create_accumulator(self) -> Pairs:
        return Pairs()

    def accumulate(self, acc: Pairs, text: str, number: float) -> None:
        times = acc.times.get((text, number), 0)
        acc.count += not times
        acc.times[(text, number)] = times + 1

    def get_value(self, acc: Pairs) -> int:
        return acc.count


FUNCTIONS = [KeptDifferent, AskedDifferent, HeldDifferent, CountDifferent, CountPairs]
VALUES = ["a", "b", "c", "d", "e", "x", "y", None]
ROW = st.tuples(st.sampled_from(["+I", "+I", "-D"]), st.sampled_from(["p", "q", None]), st.sampled_from(VALUES))
EPOCHS = st.lists(st.lists(ROW, max_size=10), min_size=1, max_size=5)


def stream(
    epochs: list[list[tuple[str, Any, Any]]], keys: list[str], names: list[str], observe: Seen = lambda *_: None
) -> list[Epoch]:
    """Run calls of some functions over epochs."""
    functions = connect(FUNCTIONS)
    rows = [[(kind, {"k": key, "v": value, "used": key != value}) for kind, key, value in epoch] for epoch in epochs]
    calls = watch_calls({name: functions[name]("v") for name in names}, observe)
    # Views of three entries are rows of their table, and epochs of a few rows merge runs.
    types = {"k": "VARCHAR", "v": "VARCHAR", "used": "BOOLEAN"}
    return run_epochs(calls, rows, keys=keys, types=types, bounds=SMALL)


def cut(blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield blocks of three rows."""
    return (block.slice(start, 3) for block in blocks for start in range(0, max(block.num_rows, 1), 3))


@pytest.mark.slow
@examples(100)
@given(EPOCHS, st.sampled_from([["k"], []]), st.booleans())
def test_views_have_the_results_of_dicts_and_lists(
    epochs: list[list[tuple[str, Any, Any]]], keys: list[str], saves: bool
) -> None:
    """Changelogs and contents of views are the same as for a class with a dict and a list; also with checkpoints."""
    with pytest.MonkeyPatch.context() as patch:
        if saves:
            patch.setattr(
                SingleServerExchange, "wants_checkpoint", property(lambda each: each._open_request.keeps_views)
            )
            run = BucketEpoch.run
            patch.setattr(BucketEpoch, "run", lambda epoch, blocks: run(epoch, cut(blocks)))
        result = stream(epochs, keys, ["kept", "asked", "held"])
    for epoch in result:
        for _, row in epoch.changelog:
            assert row["kept"] == row["asked"] == row["held"]
        for states in epoch.states.values():
            assert states["kept"] == states["asked"]
            assert len(states["kept"]["times"]) == states["kept"]["count"]


@pytest.mark.parametrize(("name", "asks"), [("different", False), ("asked", True)])
def test_prefetched_entries_are_not_asked_for(name: str, asks: bool) -> None:
    """With prefetch a server asks for nothing; a large view is neither sent nor returned as a whole."""
    questions: list[int] = []
    sent_rows: list[int] = []

    def note(operation: str, what: Any, _exchange: Any) -> None:
        if operation == "wanted":
            questions.append(what.num_rows)
        elif operation == "entries":
            sent_rows.append(len(what.column("state_0").field("times").field("entries").flatten()))

    texts = [f"text {each}" for each in range(200)]
    epochs = [[("+I", "p", text) for text in texts], [("+I", "p", text) for text in [*texts[:3], "new"]]]
    first, second = stream(epochs, ["k"], [name], note)
    assert bool(questions) == asks
    assert sum(sent_rows) == (0 if asks else 4)
    assert len(second.states[("p",)][name]["times"]) == 201
    assert len(first.states[("p",)][name]["log"]) == 200
    if not asks:
        assert second.changelog == [("-U", {"k": "p", name: 200}), ("+U", {"k": "p", name: 201})]


def test_keys_of_several_parts_are_prefetched() -> None:
    """Two arguments make up a key; NaN is one key, and so are 0.0 and -0.0, whichever rows have."""
    operations: set[str] = set()
    calls = watch_calls({"n": connect(FUNCTIONS)["pairs"]("t", "n")}, lambda operation, *_: operations.add(operation))
    numbers = [float(each) for each in range(9)] + [float("nan")]
    epochs = [
        [{"t": "a", "n": number} for number in numbers],
        [{"t": "a", "n": number} for number in (float("nan"), -0.0, 3.0, 9.0)],
    ]
    _, last = run_epochs(calls, epochs, types={"n": "DOUBLE"}, bounds=SMALL)
    assert "entries" in operations
    assert "wanted" not in operations, "the server asked"
    assert last.changelog[-1] == ("+U", {"n": 11})
    assert last.states[()]["n"]["times"]["a", 0.0] == 2


def test_filtered_rows_are_not_prefetched() -> None:
    """Entries are prefetched for the rows that a call uses, and views go with other calls and with FILTER."""
    functions = connect(FUNCTIONS)
    calls = {
        "n": functions["count"](),
        "used": functions["different"]("v").where("used"),
        "all": functions["different"]("v"),
        "distinct": functions["count"]("v").distinct(),
    }
    rows = [[{"v": f"{each % 7}", "used": each % 7 < 3} for each in range(20)]] * 2
    _, last = run_epochs(calls, rows, bounds=SMALL)
    assert last.changelog[-1] == ("+U", {"n": 40, "used": 3, "all": 7, "distinct": 7})
    assert last.states[()]["used"]["times"] == {"0": 6, "1": 6, "2": 6}


def test_views_are_refused_in_sessions() -> None:
    """Sessions of a stream refuse functions with views, with the remedy."""
    functions = connect(FUNCTIONS)
    transport = functions["different"]("v").transport
    times = pa.schema([("key_0", pa.timestamp("us")), ("key_1", pa.timestamp("us"))])
    layout = QueryLayout(times, ("start", "end"), pa.schema([("column_0", pa.string())]), ("v",), has_kinds=False)
    options = StreamOptions(has_sessions=True, window="session 5 minutes")
    with pytest.raises(RejectedError, match="use tumble, hop or cumulate") as excinfo:
        Query.of(transport, {"n": Call("different", ("v",))}, layout, stream=options)
    assert excinfo.value.code == "CANNOT_MERGE"


class Nested:
    """How often each pair of a text and a pair was seen."""

    times: MapView[tuple[str, tuple[int, float]], int]

    def __init__(self) -> None:
        self.times = MapView()


@udaf(name="nested", input_types=["VARCHAR", "DOUBLE"], result_type="BIGINT")
class CountNested:
    """Counts different pairs."""

    def create_accumulator(self) -> Nested:
        return Nested()

    def accumulate(self, acc: Nested, text: str, number: float) -> None:
        key = text, (len(text), number)
        acc.times[key] = acc.times.get(key, 0) + 1

    def get_value(self, acc: Nested) -> int:
        return sum(1 for _ in acc.times)


def test_epochs_show_entries_of_nested_keys_and_of_nan() -> None:
    """Structs are tuples, and NaN is found as `math.nan`, in the keys of groups and of entries."""
    rows = [[{"k": float("nan"), "t": "a", "n": number} for number in (1.0, float("nan"))]] * 2
    last = run_epochs({"n": connect([CountNested])["nested"]("t", "n")}, rows, keys=["k"])[-1]
    assert last.states == {(math.nan,): {"n": {"times": {("a", (1, 1.0)): 2, ("a", (1, math.nan)): 2}}}}


class Visits:
    """The visits of each page by day."""

    days: MapView[str, dict[int, int]]

    def __init__(self) -> None:
        self.days = MapView()


@udaf(name="visits", input_types=["VARCHAR", "BIGINT"], result_type="BIGINT")
class CountVisits:
    """Counts days with visits."""

    def create_accumulator(self) -> Visits:
        return Visits()

    def accumulate(self, acc: Visits, page: str, day: int) -> None:
        visits = acc.days.get(page, {})
        acc.days[page] = visits | {day: visits.get(day, 0) + 1}

    def get_value(self, acc: Visits) -> int:
        return sum(map(len, acc.days.values()))


def test_maps_are_values_of_views() -> None:
    """They are kept from epoch to epoch, and measured as other values are, although Arrow has no lengths of maps."""
    epochs = [[{"k": 1, "page": "a", "day": day} for day in days] for days in ([1, 2], [2, 3])]
    last = run_epochs({"n": connect([CountVisits])["visits"]("page", "day")}, epochs, keys=["k"])[-1]
    assert last.changelog == [("-U", {"k": 1, "n": 2}), ("+U", {"k": 1, "n": 3})]
    assert last.states == {(1,): {"n": {"days": {"a": [(1, 1), (2, 2), (3, 1)]}}}}
