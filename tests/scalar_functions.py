"""Scalar and table functions for their tests: each kind, and those that fail in each way."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight import udf, udtf


@udf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
def multiply(x, y):
    """Multiply two numbers; NULL where one is NULL."""
    return None if x is None or y is None else x * y


@udf
def ratio(x: int, y: int) -> float:
    return x / y


@udf(skip_nulls=True)
def spelled(x: int, text: str) -> str:
    return text * x


@udf
class Scale:
    """Multiply by a direct argument."""

    def __init__(self, factor: float = 2.0, offset: int = 0) -> None:
        self.factor = factor
        self.offset = offset

    def eval(self, x: float) -> float:
        return x * self.factor + self.offset


@udf(vectorised="arrow")
class Normalise:
    """Lower-case texts without spaces around them."""

    def eval(self, texts: pa.StringArray) -> pa.StringArray:
        return pc.utf8_lower(pc.utf8_trim_whitespace(texts))


@udf(vectorised="numpy")
def doubled(x: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return x * 2


@udf(vectorised="pandas", input_types=["BIGINT"], result_type="DOUBLE")
def halved(x):
    return x / 2


@udf
def score(text: str, a: int) -> int:
    return None if text is None or a is None else len(text) * 10 + a


@udf(input_types=["T"], result_type="T")
def same(value):
    return value


@udf
def later(day: datetime.date, than: datetime.date) -> bool:
    return None if day is None or than is None else day > than


@udf(input_types=["BOOLEAN", "BOOLEAN"], result_type="BOOLEAN")
def larger(x, y):
    return None if x is None or y is None else x > y


@udf
def forty_two() -> int:
    return 42


@udf(deterministic=False)
def dice(sides: int) -> int:
    return random.randint(1, sides)


@udf
class Counting:
    """Logs and counts each row; says when it opens."""

    def open(self, context) -> None:
        self.context = context
        self.rows = context.counter("rows")
        context.logger.info("opened", greeting=context.job_parameters.get("greeting", ""))

    def eval(self, x: int) -> int:
        self.rows.inc()
        self.context.logger.debug("row", x=x)
        return x

    def close(self) -> None:
        self.context.logger.info("closed")


@udtf(result_types={"word": "STRING", "at": "INT"})
def split(text: str):
    for at, word in enumerate([] if text is None else text.split()):
        yield word, at


@udtf(result_types={"at": "BIGINT"})
class Told:
    """Logs each row, and returns it three times."""

    def open(self, context) -> None:
        self.context = context

    def eval(self, x: int):
        self.context.logger.info("told", x=x)
        return [(x,)] * 3


@udtf(result_types={"word": "STRING"})
def words(text: str):
    return None if text is None else text.split()


@udtf
def repeated(x: int, times: int) -> Iterator[int]:
    for _ in range(times or 0):
        yield x


@dataclass
class Pair:
    left: int
    right: str


@udtf
def pairs(x: int) -> Iterator[Pair]:
    return None if x is None else [Pair(x, "a"), Pair(x + 1, "b")]


@udtf(result_types={"n": "BIGINT"})
def endless(x: int):
    while True:
        yield x


@udtf(result_types={"a": "INT", "b": "INT"})
def crooked(x: int):
    yield (x,) * x


@udf
def sleepy(x: int) -> int:
    while x == 13:
        time.sleep(0.01)
    return x


@udf(vectorised="arrow", input_types=["BIGINT"], result_type="BIGINT")
def too_short(x):
    if pc.any(pc.equal(x, 99)).as_py():
        raise ValueError("99 is not taken")
    return x.slice(1) if pc.any(pc.equal(x, 77)).as_py() else x
