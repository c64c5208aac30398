"""The functions of the Spark tests, one for each way in which functions differ."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import resource
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from foldflight import Applied, ListView, MapView, Segment, udaf, udf, udtf


class WeightedState:
    sum: int
    count: int


@udaf(input_types=["BIGINT", "INT"], result_type="BIGINT")
class WeightedAvg:
    """Merges and retracts, but is not declared invertible."""

    def create_accumulator(self) -> WeightedState:
        accumulator = WeightedState()
        accumulator.sum = accumulator.count = 0
        return accumulator

    def accumulate(self, accumulator, value, weight):
        if value is not None and weight is not None:
            accumulator.sum += value * weight
            accumulator.count += weight

    def retract(self, accumulator, value, weight):
        if value is not None and weight is not None:
            accumulator.sum -= value * weight
            accumulator.count -= weight

    def merge(self, accumulator, other):
        accumulator.sum += other.sum
        accumulator.count += other.count

    def get_value(self, accumulator):
        return None if accumulator.count == 0 else accumulator.sum / accumulator.count


@udaf(input_types=["BIGINT"], result_type="DOUBLE", deterministic=False)
class Drawn:
    """Draws another value each time."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int | None) -> int:
        return accumulator + 1

    def retract(self, accumulator: int, value: int | None) -> int:
        return accumulator - 1

    def get_value(self, accumulator: int) -> float | None:
        return None if random.random() < 0.2 else random.random()


@udaf(
    input_types=["BIGINT"],
    state_type="STRUCT<sum: BIGINT, count: BIGINT>",
    skip_nulls=True,
    bundled_retract=True,
    bundled_merge=True,
    invertible=True,
)
class BundledSum:
    """A sum in bundles."""

    def fold_bundle(self, segments: list[Segment[dict[str, int]]]) -> list[Applied[dict[str, int], int | None]]:
        results = []
        for segment in segments:
            total = sum(each["sum"] for each in segment.accumulators)
            count = sum(each["count"] for each in segment.accumulators)
            values: list[int | None] = []
            for (value,), sign in zip(segment.rows, segment.signs, strict=True):
                total, count = total + sign * value, count + sign
                values.append(total if count else None)
            results.append(Applied({"sum": total, "count": count}, total if count else None, values))
        return results


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Median:
    """Neither merges nor is invertible; its state is a list."""

    def create_accumulator(self) -> list[int]:
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value)

    def retract(self, accumulator, value):
        accumulator.remove(value)

    def get_value(self, accumulator):
        return sorted(accumulator)[len(accumulator) // 2] if accumulator else None


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Percentile:
    """Takes a direct argument; merges; its state is pickled."""

    def __init__(self, fraction: float) -> None:
        self.fraction = fraction

    def create_accumulator(self):
        return []

    def accumulate(self, accumulator, value):
        accumulator.append(value)

    def merge(self, accumulator, other):
        accumulator.extend(other)

    def get_value(self, accumulator):
        return sorted(accumulator)[int(self.fraction * (len(accumulator) - 1))] if accumulator else None


class Span:
    earliest: dt.time | None
    length: dt.timedelta


@udaf(input_types=["TIMESTAMPTZ"], result_type="STRING", skip_nulls=True)
class Earliest:
    """Has a state whose types Spark's tables lack."""

    def create_accumulator(self) -> Span:
        span = Span()
        span.earliest, span.length = None, dt.timedelta(0)
        return span

    def accumulate(self, accumulator, value):
        time = value.time()
        accumulator.earliest = time if accumulator.earliest is None else min(accumulator.earliest, time)
        accumulator.length += dt.timedelta(seconds=1)

    def merge(self, accumulator, other):
        if other.earliest is not None:
            accumulator.earliest = (
                other.earliest if accumulator.earliest is None else min(accumulator.earliest, other.earliest)
            )
        accumulator.length += other.length

    def get_value(self, accumulator):
        return f"{accumulator.earliest} {accumulator.length.total_seconds():g}"


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Picky:
    """Raises at 13, in the method that the direct argument names."""

    def __init__(self, at: str = "accumulate") -> None:
        if at == "open":
            raise ValueError("never at open")
        self.at = at

    def create_accumulator(self) -> int:
        if self.at == "create":
            raise ValueError("nothing begins")
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        if self.at == "accumulate" and value == 13:
            raise ValueError("thirteen is bad luck")
        return max(accumulator, value)

    def merge(self, accumulator: int, other: int) -> int:
        if self.at == "merge":
            raise ValueError("merging is bad luck")
        return max(accumulator, other)

    def get_value(self, accumulator: int) -> int:
        if self.at == "get_value" and accumulator == 13:
            raise ValueError("showing thirteen is bad luck")
        return accumulator


@udaf(input_types=["BIGINT"], result_type="STRING")
class Informed:
    """Returns a job parameter, and logs."""

    def open(self, context):
        self.greeting = context.job_parameters.get("greeting", "none")
        self.logger = context.logger

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        if value == 0:
            self.logger.warning("zero came", greeting=self.greeting)
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> str:
        return f"{self.greeting} {accumulator}"


class Sum:
    """The base of other functions: a number that merges."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class PeakKilobytes(Sum):
    """Returns the peak memory of the process that folds."""

    def get_value(self, accumulator: int) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@udaf(input_types=["BIGINT"], result_type="BIGINT", name="peak_kilobytes_unmerged")
class PeakKilobytesUnmerged:
    """The same without merge."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Unforgiving(Sum):
    """A sum that raises for 13, for the retraction of 14, for a result of 2015, and for a merged state of 2016."""

    def accumulate(self, accumulator: int, value: int) -> int:
        if value == 13:
            raise ValueError("thirteen is bad luck")
        return accumulator + value

    def retract(self, accumulator: int, value: int) -> int:
        if value == 14:
            raise ValueError("fourteen is here to stay")
        return accumulator - value

    def merge(self, accumulator: int, other: int) -> int:
        if accumulator + other == 2016:
            raise ValueError("these do not mix")
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        if accumulator == 2015:
            raise ValueError("2015 is not to be shown")
        return accumulator


class Seen:
    times: MapView[str, int]
    log: ListView[str]
    different: int

    def __init__(self) -> None:
        self.times = MapView()
        self.log = ListView()
        self.different = 0


@udaf(name="seen", input_types=["VARCHAR"], result_type="BIGINT", prefetch={"times": ["value"]})
class CountSeen:
    """Counts different texts in a view, and keeps the new ones in another."""

    def create_accumulator(self) -> Seen:
        return Seen()

    def accumulate(self, acc, value):
        times = acc.times.get(value, 0)
        if not times:
            acc.different += 1
            acc.log.add(value)
        acc.times[value] = times + 1

    def retract(self, acc, value):
        times = acc.times[value] - 1
        acc.times[value] = times
        if not times:
            del acc.times[value]
            acc.different -= 1

    def get_value(self, acc):
        return acc.different


@udaf(name="seen_log", input_types=["VARCHAR"], result_type="VARCHAR", prefetch={"times": ["value"]})
class LogSeen(CountSeen):
    """Returns the different texts in the order of their first appearance."""

    def get_value(self, acc):
        return ",".join(acc.log)


V3 = Annotated[np.ndarray, "VECTOR(3)"]
W3 = Annotated[np.ndarray, "VECTOR(3, DOUBLE)"]
W4 = Annotated[np.ndarray, "VECTOR(4, DOUBLE)"]


@dataclass
class Vectors:
    """The sum and the number of vectors."""

    total: W3 = field(default_factory=lambda: np.zeros(3))
    n: int = 0


@udaf
class Centroid:
    """The mean of vectors."""

    def create_accumulator(self) -> Vectors:
        return Vectors()

    def accumulate(self, acc: Vectors, v: V3) -> None:
        if v is not None:
            acc.total += v
            acc.n += 1

    def retract(self, acc: Vectors, v: V3) -> None:
        if v is not None:
            acc.total -= v
            acc.n -= 1

    def merge(self, acc: Vectors, other: Vectors) -> None:
        acc.total += other.total
        acc.n += other.n

    def get_value(self, acc: Vectors) -> V3 | None:
        return acc.total / acc.n if acc.n else None


@udaf
class Grown(Centroid):
    """Breaks its declaration: the array of its state grows."""

    def accumulate(self, acc: Vectors, v: V3) -> None:
        acc.total = np.append(acc.total, v)


@udaf(
    input_types=[V3],
    state_type="VECTOR(3, DOUBLE)",
    result_type="VECTOR(3, DOUBLE)",
    skip_nulls=True,
    bundled_retract=True,
    bundled_merge=True,
)
class BundledVectors:
    """A sum of vectors in bundles."""

    def fold_bundle(self, segments: list[Segment[np.ndarray]]) -> list[Applied[np.ndarray, np.ndarray]]:
        results = []
        for segment in segments:
            total = sum(segment.accumulators, np.zeros(3))
            values = []
            for (v,), sign in zip(segment.rows, segment.signs, strict=True):
                total = total + sign * v
                values.append(total)
            results.append(Applied(total, total, values))
        return results


@udf
async def doubled_later(v: V3) -> V3 | None:
    await asyncio.sleep(0)
    return None if v is None else v * 2


@udf(vectorised="arrow", input_types=[V3], result_type=V3)
def same_in_arrow(v):
    return v


@udf(vectorised="numpy", input_types=[V3], result_type=V3)
def halved_in_numpy(v):
    return v / 2


@udtf(result_types={"at": "INT", "part": V3})
def parts_of(v: V3):
    """Two parts of a vector, of which the second one is NULL."""
    if v is not None:
        yield 0, v / 2
        yield 1, None


class LastVectors:
    """The last vector of each kind."""

    last: MapView[str, V3]


@udaf
class Latest:
    """The last vectors of all kinds, in a view."""

    def create_accumulator(self) -> LastVectors:
        accumulator = LastVectors()
        accumulator.last = MapView()
        return accumulator

    def accumulate(self, acc: LastVectors, kind: str, v: V3) -> None:
        acc.last[kind] = v

    def get_value(self, acc: LastVectors) -> V3 | None:
        return acc.last.get("a")


@udaf
class Shortened(Latest):
    """Breaks its declaration: the vectors in its view have another length."""

    def accumulate(self, acc: LastVectors, kind: str, v: V3) -> None:
        acc.last[kind] = v[:2]


LONG = 3072
V3072 = Annotated[np.ndarray, f"VECTOR({LONG})"]
W3072 = Annotated[np.ndarray, f"VECTOR({LONG}, DOUBLE)"]


@dataclass
class LongVectors:
    total: W3072 = field(default_factory=lambda: np.zeros(LONG))
    n: int = 0


@udaf(input_types=[V3072], result_type=V3072)
class LongCentroid(Centroid):
    """The mean of long vectors."""

    def create_accumulator(self) -> LongVectors:
        return LongVectors()


class LastLongVectors:
    last: MapView[str, V3072]


@udaf(input_types=["VARCHAR", V3072], result_type=V3072)
class LongLatest(Latest):
    """The last long vectors of all kinds, in a view."""

    def create_accumulator(self) -> LastLongVectors:
        accumulator = LastLongVectors()
        accumulator.last = MapView()
        return accumulator


@udf
def long_negated(v: V3072) -> V3072 | None:
    return None if v is None else -v


@udf
def longer(v: V3) -> W4 | None:
    """The vector and its norm."""
    return None if v is None else np.append(v, np.linalg.norm(v))  # type: ignore[call-overload]
