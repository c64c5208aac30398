"""Functions that use too much: time in each of their methods, and memory."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

from foldflight import FunctionContext, udaf, udtf

ENDLESS = 13


class Number:
    value: int


def loop(value: int) -> None:
    """Loop for ever at 13."""
    while value == ENDLESS:
        value = value + 1 - 1


class _Base:
    def create_accumulator(self) -> Number:
        accumulator = Number()
        accumulator.value = 0
        return accumulator

    def accumulate(self, accumulator: Number, value: int) -> None:
        accumulator.value += value

    def merge(self, accumulator: Number, other: Number) -> None:
        accumulator.value += other.value

    def get_value(self, accumulator: Number) -> Any:
        return accumulator.value


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class LoopsInAccumulate(_Base):
    def accumulate(self, accumulator: Number, value: int) -> None:
        with contextlib.suppress(Exception):
            loop(value)
        accumulator.value += value


class NotAnError(BaseException):
    pass


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class RaisesWhatItLikes(_Base):
    def accumulate(self, accumulator: Number, value: int) -> None:
        raise (KeyboardInterrupt, GeneratorExit, NotAnError)[value]


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class LoopsInGetValue(_Base):
    def get_value(self, accumulator: Number) -> Any:
        loop(accumulator.value)
        return accumulator.value


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class LoopsInMerge(_Base):
    def merge(self, accumulator: Number, other: Number) -> None:
        loop(other.value)


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class LoopsInOpen(_Base):
    def open(self, context: FunctionContext) -> None:
        loop(ENDLESS if "loop" in context.job_parameters else 0)


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Swallows(_Base):
    """Swallows the first two interrupts."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        for _ in range(2):
            with contextlib.suppress(BaseException):
                loop(value)
        loop(value)


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Sleeps(_Base):
    """Sleeps for this many seconds in C code, where no exception can be raised."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        time.sleep(value)
        accumulator.value += value


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Naps(_Base):
    """Sleeps for this many milliseconds, and can be interrupted before and after."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        time.sleep(value / 1000)
        accumulator.value += value


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class HoldsTheLock(_Base):
    """Calls C code that never ends at 13, and holds Python's global lock."""

    def accumulate(self, accumulator: Number, value: int) -> None:
        if value == ENDLESS:
            re.match("(a+)+$", "a" * 60 + "b")
        accumulator.value += value


@udaf(input_types=["BIGINT"], result_type="BIGINT", compile=False)
class Hoards:
    """Stores this many KiB for each row."""

    def create_accumulator(self) -> list[bytes]:
        return []

    def accumulate(self, accumulator: list[bytes], value: int) -> None:
        accumulator.append(b"x" * (value << 10))

    def merge(self, accumulator: list[bytes], other: list[bytes]) -> None:
        accumulator.extend(other)

    def get_value(self, accumulator: list[bytes]) -> int:
        return len(accumulator)


@udtf(result_types={"text": "STRING"})
def many_texts(count: int):
    """Make texts of 1 KiB."""
    for place in range(count):
        yield str(place) * (1024 // len(str(place)))
