"""Functions for the wire tests: correct ones, and one for each kind of error."""

from __future__ import annotations

import time
from typing import Any

from foldflight import Applied, FunctionContext, Segment, udaf


class Weighted:
    """Accumulator of WeightedAvg."""

    sum: int
    count: int


@udaf(input_types=["BIGINT", "INT"], result_type="BIGINT")
class WeightedAvg:
    """The mean of value, weighted by weight."""

    def create_accumulator(self) -> Weighted:
        accumulator = Weighted()
        accumulator.sum = accumulator.count = 0
        return accumulator

    def get_value(self, accumulator: Weighted) -> float | None:
        return None if accumulator.count == 0 else accumulator.sum / accumulator.count

    def accumulate(self, accumulator: Weighted, value: int, weight: int) -> None:
        accumulator.sum += value * weight
        accumulator.count += weight

    def retract(self, accumulator: Weighted, value: int, weight: int) -> None:
        accumulator.sum -= value * weight
        accumulator.count -= weight

    def merge(self, accumulator: Weighted, other: Weighted) -> None:
        accumulator.sum += other.sum
        accumulator.count += other.count


@udaf(input_types=["BIGINT"], bundled_retract=True)
class BundledSum:
    """A sum in bundles."""

    def fold_bundle(self, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        results = []
        for segment in segments:
            total = sum(segment.accumulators)
            total += sum(sign * value for (value,), sign in zip(segment.rows, segment.signs, strict=True))
            results.append(Applied(total, total))
        return results


class Number:
    """Accumulator of the functions below."""

    value: int


def _number() -> Number:
    accumulator = Number()
    accumulator.value = 0
    return accumulator


class _Base:
    def create_accumulator(self) -> Number:
        return _number()

    def accumulate(self, accumulator: Number, value: int) -> None:
        accumulator.value += value

    def merge(self, accumulator: Number, other: Number) -> None:
        accumulator.value += other.value

    def get_value(self, accumulator: Number) -> Any:
        return accumulator.value


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class AppendOnly(_Base):
    """A sum without retract."""


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class FailsToAccumulate(_Base):
    """Raises at 13."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        if value == 13:
            raise ValueError("thirteen is unlucky")
        accumulator.value += value


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class FailsToRetract(_Base):
    """Raises in retract."""

    def retract(self, accumulator: Number, value: int) -> None:
        raise ValueError(f"cannot give back {value}")


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class FailsToMerge(_Base):
    """Raises in merge."""

    def merge(self, accumulator: Number, other: Number) -> None:
        raise ValueError("oil and water")


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class FailsToFinish(_Base):
    """Raises in get_value."""

    def get_value(self, accumulator: Number) -> Any:
        return deep(40)


def deep(depth: int) -> int:
    """Raise in a deep call, so that the trace is long."""
    return 1 // 0 if depth == 0 else deep(depth - 1)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class WrongResult(_Base):
    """Declares a number and returns a list."""

    def get_value(self, accumulator: Number) -> Any:
        return ["no number"]


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Overflows(_Base):
    """Returns a number beyond BIGINT."""

    def get_value(self, accumulator: Number) -> Any:
        return 2**63 + accumulator.value


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Pickled:
    """Has a state that only pickle can serialize."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {frozenset(): {1}}

    def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
        accumulator.setdefault(frozenset({value}), set()).add(value)

    def merge(self, accumulator, other):  # type: ignore[no-untyped-def]
        accumulator.update(other)

    def get_value(self, accumulator):  # type: ignore[no-untyped-def]
        return len(accumulator) - 1


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Talks(_Base):
    """Logs, counts and reads its job parameters."""

    def open(self, context: FunctionContext) -> None:
        self.context = context
        self.seen = context.counter("seen")

    def accumulate(self, accumulator: Number, value: int) -> None:
        accumulator.value += value
        self.seen.inc()
        self.context.logger.info("saw a row", value=value, greeting=self.context.job_parameters.get("greeting", ""))


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Slow(_Base):
    """Takes this many milliseconds."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        time.sleep(value / 1000)
        accumulator.value += value


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class FailsToClose(_Base):
    """Raises in close."""

    def close(self) -> None:
        raise ValueError("hold on")
