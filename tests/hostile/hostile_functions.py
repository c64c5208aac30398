"""One function for each codec of states."""

import datetime as dt
import struct
from dataclasses import dataclass, field
from decimal import Decimal

from foldflight import udaf


@dataclass
class Seen:
    """An accumulator with a value of many types."""

    count: int = 0
    mean: float = 0.0
    any: bool = False
    latest: dt.datetime | None = None
    total: Decimal = Decimal(0)
    names: list[str] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Typed:
    """Counts, with a state that is an Arrow struct."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, accumulator: Seen, value: int | None) -> None:
        accumulator.count += 1
        accumulator.names.append(str(value))
        accumulator.times[str(value)] = accumulator.count

    def merge(self, accumulator: Seen, other: Seen) -> None:
        accumulator.count += other.count
        accumulator.names += other.names
        accumulator.times |= other.times

    def get_value(self, accumulator: Seen) -> int:
        return accumulator.count


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Custom:
    """Counts, with states of its own format."""

    def create_accumulator(self):
        return [0]

    def accumulate(self, accumulator, value):
        accumulator[0] += 1

    def merge(self, accumulator, other):
        accumulator[0] += other[0]

    def get_value(self, accumulator):
        return accumulator[0]

    def serialize(self, accumulator):
        return struct.pack("<q", accumulator[0])

    def deserialize(self, data):
        return list(struct.unpack("<q", data))


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Pickled:
    """Counts, with a pickled state."""

    def create_accumulator(self):
        return {0}

    def accumulate(self, accumulator, value):
        accumulator.add(len(accumulator))

    def merge(self, accumulator, other):
        accumulator |= {("other", each) for each in other}

    def get_value(self, accumulator):
        return len(accumulator)
