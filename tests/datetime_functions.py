"""Functions with plain `datetime` in their arguments, accumulators and results."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import numpy as np

from foldflight import MapView, udaf, udf, udtf


@udaf
class Latest:
    """The value at the latest time."""

    @dataclass
    class State:
        """The latest row so far."""

        value: float | None = None
        at: datetime | None = None

    def create_accumulator(self) -> State:
        return Latest.State()

    def accumulate(self, state: State, value: float, at: datetime) -> None:
        if state.at is None or at > state.at:
            state.value, state.at = value, at

    def merge(self, state: State, other: State) -> None:
        if other.at is not None:
            self.accumulate(state, other.value or 0.0, other.at)

    def get_value(self, state: State) -> datetime | None:
        return state.at


@udaf
class Seconds:
    """The time between the first and the last row, of a state that is one tuple."""

    def create_accumulator(self) -> tuple[datetime | None, datetime | None]:
        return None, None

    def accumulate(
        self, state: tuple[datetime | None, datetime | None], at: datetime
    ) -> tuple[datetime | None, datetime | None]:
        first, last = state
        return (at if first is None else min(first, at)), (at if last is None else max(last, at))

    def get_value(self, state: tuple[datetime | None, datetime | None]) -> float | None:
        first, last = state
        return None if first is None or last is None else (last - first).total_seconds()


@udaf
class Newest:
    """The latest time, also vectorised."""

    @dataclass
    class State:
        """The latest time so far."""

        at: datetime | None = None

    def create_accumulator(self) -> State:
        return Newest.State()

    def accumulate(self, state: State, at: datetime) -> None:
        state.at = at if state.at is None else max(state.at, at)

    def get_value(self, state: State) -> datetime | None:
        return state.at

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, at: Any) -> None:
        order = np.argsort(at, kind="stable")
        for slot, value in zip(slots[order], at[order], strict=True):
            accumulators["at"][slot] = value if not accumulators["at?"][slot] else max(accumulators["at"][slot], value)
            accumulators["at?"][slot] = True

    def get_values(self, accumulators: Any) -> Any:
        return np.ma.masked_array(accumulators["at"], ~accumulators["at?"])


@udaf
class Seen:
    """The number of distinct times, in a view."""

    @dataclass
    class State:
        """The times."""

        count: int
        times: MapView[datetime, int]

    def create_accumulator(self) -> State:
        return Seen.State(0, MapView())

    def accumulate(self, state: State, at: datetime) -> None:
        if at not in state.times:
            state.times[at] = 1
            state.count += 1

    def get_value(self, state: State) -> int:
        return state.count


@udaf
class Zoneless:
    """Takes timestamps without a zone only, because it names the type."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, count: int, at: Annotated[datetime, "TIMESTAMP_NTZ"]) -> int:
        return count + (at.tzinfo is None)

    def get_value(self, count: int) -> int:
        return count


@udf
def later(at: datetime, minutes: int) -> datetime:
    return at + timedelta(minutes=minutes)


@udf
def zone(at: datetime) -> str:
    return str(at.tzinfo)


@dataclass
class Moment:
    """A row of `hours`."""

    at: datetime
    number: int


@udtf
def hours(at: datetime) -> Iterator[Moment]:
    for number in range(2):
        yield Moment(at + timedelta(hours=number), number)
