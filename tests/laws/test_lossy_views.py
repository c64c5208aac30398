"""Entries of views that come back different from their state: a value has them as they are stored, in every epoch."""

from __future__ import annotations

import decimal
import random
from typing import Annotated, Any, ClassVar

import pytest

from foldflight import ListView, MapView, connect, udaf
from foldflight.engine.state.manifest import TableBounds
from foldflight.testing import run_epochs

LARGE = 2**53 + 1
SMALL = TableBounds(inline_entries_max=0)
USUAL = TableBounds()
Money = Annotated[decimal.Decimal, "DECIMAL(20, 4)"]


def lossy(value: int) -> Any:
    """Return a value that a view of floats stores as another one."""
    return (LARGE, True, -0.0, value)[value % 4]


class Shown:
    """Shows all entries, with their types, and sums them."""

    def get_value(self) -> str:
        views = [each for each in vars(self).values() if isinstance(each, (MapView, ListView))]
        view_texts = [sorted(map(repr, view.items() if isinstance(view, MapView) else view)) for view in views]
        rest = [repr(each) for each in vars(self).values() if not isinstance(each, (MapView, ListView))]
        return f"{view_texts} {rest}"


@udaf(input_types=["BIGINT"], result_type="STRING")
class Floats(Shown):
    times: MapView[str, float]

    def __init__(self) -> None:
        self.times = MapView()

    def accumulate(self, value: int) -> None:
        self.times[str(value % 5)] = lossy(value)
        if value % 7 == 0:
            self.times.pop(str(value % 3), None)


@udaf(input_types=["BIGINT"], result_type="STRING")
class Keys(Shown):
    """Equal keys of other types."""

    floats: MapView[float, int]
    numbers: MapView[int, bool]
    texts: MapView[str, str]
    pairs: MapView[tuple[int, str], Money]

    def __init__(self) -> None:
        self.floats, self.numbers, self.texts, self.pairs = MapView(), MapView(), MapView(), MapView()

    def accumulate(self, value: int) -> None:
        self.floats[value % 3] = value % 2 == 0
        self.numbers[2 if value % 2 else True] = value > 3
        self.texts["ann" if value % 2 else "bob"] = "ann"
        self.pairs[True, "ann" if value % 2 else "bob"] = decimal.Decimal(value)
        if value % 5 == 0:
            self.floats.clear()
            del self.numbers[2 if value % 2 else 1]


@udaf(input_types=["BIGINT"], result_type="STRING")
class Items(Shown):
    """A list, and beside it an attribute that is no view."""

    log: ListView[float]
    last: float

    def __init__(self) -> None:
        self.log, self.last = ListView(), 0

    def accumulate(self, value: int) -> None:
        self.log.add(lossy(value))
        self.last = lossy(value + 1)
        if value % 9 == 0:
            self.log.clear()


@udaf(input_types=["BIGINT"], result_type="STRING")
class Replaced(Shown):
    """Sets a dict and a list in the place of its views."""

    times: MapView[str, float]
    log: ListView[float]

    def __init__(self) -> None:
        self.times, self.log = MapView(), ListView()

    def accumulate(self, value: int) -> None:
        if value % 3 == 0:
            self.times = {str(value): lossy(value)}  # type: ignore[assignment]
            self.log = [lossy(value)]  # type: ignore[assignment]
        self.times[str(value)] = lossy(value)
        self.log.append(lossy(value))


@udaf(input_types=["BIGINT"], result_type="STRING", prefetch={"times": ["value"]})
class Prefetched(Shown):
    """Exact in one view, and in the other one not."""

    times: MapView[int, float]
    exact: MapView[int, str]
    shows: ClassVar[int] = 0

    def __init__(self) -> None:
        self.times, self.exact = MapView(), MapView()

    def accumulate(self, value: int) -> None:
        self.times[value] = self.times.get(value, 0) + lossy(value)
        self.exact[value] = str(value)


CLASSES = {"floats": Floats, "keys": Keys, "items": Items, "replaced": Replaced, "prefetched": Prefetched}


@pytest.mark.parametrize("bounds", [SMALL, USUAL], ids=["rows of their own", "inline"])
@pytest.mark.parametrize("name", CLASSES)
def test_the_emitted_value_is_computed_from_the_stored_state(name: str, bounds: TableBounds) -> None:
    """Each row that is taken back is the one that was emitted last, and no change is lost."""
    chance = random.Random(name)
    call = connect([CLASSES[name]])[name]("value")
    epochs = [
        [{"k": chance.choice("ab"), "value": chance.randrange(12)} for _ in range(chance.randrange(4))]
        for _ in range(20)
    ]
    output_rows: dict[str, str] = {}
    taken_back = 0
    for epoch in run_epochs({"x": call}, epochs, keys=["k"], bounds=bounds):
        for kind, row in epoch.changelog:
            if kind == "-U":
                taken_back += 1
                assert output_rows.pop(row["k"]) == row["x"]
            else:
                assert row["k"] not in output_rows
                output_rows[row["k"]] = row["x"]
    assert taken_back > 5


def test_a_value_has_the_stored_entries_beside_those_at_the_engine() -> None:
    """Those that the epoch has changed, those that it has read, and those that it has not."""
    call = connect([Floats])["floats"]("value")
    rows = [[{"value": value}] for value in (0, 1, 2, 3)]
    *_, last = run_epochs({"x": call}, rows, bounds=SMALL)
    stored_entries = [float(LARGE), 1.0, -0.0, 3.0]
    expected = [repr((str(key), value)) for key, value in enumerate(stored_entries)][1:]  # 0 has removed itself
    assert last.changelog[-1][1]["x"] == f"{[expected]} []"
