"""Functions that lift, each for a rule of the analysis, and functions that must not."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any, NamedTuple

from foldflight import udaf

LIMIT = 10
MOVED = 1
MOVED = 2


class Sums:
    total: int
    count: int

    def __init__(self) -> None:
        self.total = self.count = 0


class _Summed:
    def create_accumulator(self) -> Sums:
        return Sums()

    def merge(self, accumulator, other):
        accumulator.total += other.total
        accumulator.count += other.count

    def get_value(self, accumulator):
        return accumulator.total - accumulator.count


@udaf(input_types=["BIGINT", "BIGINT"], result_type="BIGINT")
class Products(_Summed):
    def accumulate(self, accumulator, value, other):
        accumulator.total += value * other - 3 * value
        accumulator.count += 1

    def retract(self, accumulator, value, other):
        accumulator.total += value * (3 - other)
        accumulator.count -= 1


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Skewed(_Summed):
    """Its retract is not the inverse."""

    def accumulate(self, accumulator, value):
        accumulator.total += value

    def retract(self, accumulator, value):
        accumulator.total -= value + 1


@udaf(input_types=["INT", "SMALLINT"], result_type="BIGINT")
class Narrow(_Summed):
    def accumulate(self, accumulator, value, other):
        accumulator.total += value + other
        accumulator.count += other


@udaf(input_types=["BIGINT", "BOOLEAN"], result_type="BIGINT", skip_nulls=True)
class Conditions(_Summed):
    def accumulate(self, accumulator, value, flag):
        if value > LIMIT and not flag:
            accumulator.total += value
        elif -5 <= value < 5:
            accumulator.total -= 2 if flag else 1
        accumulator.count += (value == 1) + flag

    def retract(self, accumulator, value, flag):
        if flag or value <= LIMIT:
            if value >= -5:
                accumulator.total += (1 + flag) if value < 5 else 0
        else:
            accumulator.total -= value
        accumulator.count -= flag + (value == 1)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Present(_Summed):
    """NULL is tested, so it raises nothing."""

    def accumulate(self, accumulator, value):
        if value is None:
            return
        accumulator.total += abs(value)
        accumulator.count += 1


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Positive(_Summed):
    def accumulate(self, accumulator, value):
        if value < 0:
            raise ValueError(value)
        accumulator.total += value


class Ends:
    least: int | None
    greatest: int | None
    best: int
    count: int

    def __init__(self):
        self.least = None
        self.greatest = None
        self.best = 3
        self.count = 0


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Spread:
    def create_accumulator(self) -> Ends:
        return Ends()

    def accumulate(self, accumulator, value):
        if accumulator.least is None or value < accumulator.least:
            accumulator.least = value
        if accumulator.greatest is None or not value <= accumulator.greatest:
            accumulator.greatest = value
        accumulator.best = max(accumulator.best, value)
        accumulator.count += 1

    def get_value(self, accumulator):
        return accumulator.count


class First:
    seen: bool
    all: bool
    value: float
    count: int
    top: int


@udaf(input_types=["DOUBLE", "BIGINT"], result_type="DOUBLE", skip_nulls=True)
class Guarded:
    """A minimum of floats without NaN, behind a flag; a maximum behind a count; a truth value."""

    def create_accumulator(self) -> First:
        accumulator = First()
        accumulator.seen, accumulator.all, accumulator.value = False, True, 0.0
        accumulator.count, accumulator.top = 0, 0
        return accumulator

    def accumulate(self, accumulator, value, number):
        if not math.isnan(value):
            if not accumulator.seen or value < accumulator.value:
                accumulator.value = value
            accumulator.seen = True
        if accumulator.count == 0 or number > accumulator.top:
            accumulator.top = number
        accumulator.count += 1
        accumulator.all = accumulator.all and value > 0.5

    def get_value(self, accumulator):
        return accumulator.value


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Quotients:
    """The greatest of the floats with a certain quotient; a start that takes part."""

    def create_accumulator(self) -> float:
        return -math.inf

    def accumulate(self, accumulator, value):
        if math.isfinite(value) and value != 0.0 and (2.0 - value) / value + value * 0.5 > 1.0:
            return max(accumulator, value)
        return accumulator

    def merge(self, accumulator, other):
        return max(accumulator, other)

    def get_value(self, accumulator):
        return accumulator


@udaf(input_types=["STRING"], result_type="STRING")
class Longest:
    """A number that may be None, as the accumulator itself."""

    def create_accumulator(self) -> str | None:
        return None

    def accumulate(self, accumulator, value):
        if value is None or value == "skipped":
            return accumulator
        return value if accumulator is None or accumulator < value else accumulator

    def get_value(self, accumulator):
        return accumulator


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Unguarded:
    """A maximum that keeps a first NaN for ever, so it does not lift."""

    def create_accumulator(self) -> float | None:
        return None

    def accumulate(self, accumulator, value):
        return value if accumulator is None or value > accumulator else accumulator

    def get_value(self, accumulator):
        return accumulator


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class LastPositive:
    """The last row decides, so it does not lift."""

    def create_accumulator(self) -> int | None:
        return None

    def accumulate(self, accumulator, value):
        return value if accumulator is None or value > 0 else accumulator

    def get_value(self, accumulator):
        return accumulator


class Pair(NamedTuple):
    one: int
    other: int = 0


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Forgetful:
    """None is its new accumulator, so it does not lift."""

    def create_accumulator(self) -> int | None:
        return 0

    def accumulate(self, accumulator, value):
        if value != 3 and accumulator is not None:
            return accumulator + value
        return None

    def get_value(self, accumulator):
        return accumulator


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Pairs:
    def __init__(self, factor: int = 3):
        self.factor = factor

    def create_accumulator(self) -> Pair:
        return Pair(7)

    def accumulate(self, accumulator, value):
        return Pair(accumulator.one + value * self.factor, other=accumulator[1] + 1)

    def get_value(self, accumulator):
        return accumulator.one


@udaf(input_types=["BIGINT"], result_type="DOUBLE", skip_nulls=True)
@dataclasses.dataclass
class Own:
    """A class that is its own accumulator, with a wide field."""

    total: Annotated[int, "DECIMAL(38, 0)"] = 0
    odd: bool = False

    def accumulate(self, value):
        self.add(value, 1)
        if value in (1, 3, 5):
            self.odd = True

    def add(self, value, sign):
        self.total += sign * value * 1_000_000_000_000

    def merge(self, other):
        self.total += other.total
        self.odd = self.odd or other.odd

    def get_value(self):
        return float(self.total)


@udaf(input_types=["BIGINT"], result_type="STRING", skip_nulls=True)
class Worst:
    """The greatest of texts of which none is an argument."""

    def create_accumulator(self) -> str | None:
        return None

    def accumulate(self, accumulator, value):
        text = "bad" if value > 3 else "ok"
        return text if accumulator is None or text > accumulator else accumulator

    def get_value(self, accumulator):
        return accumulator


class Small:
    value: Annotated[int, "SMALLINT"]

    def __init__(self):
        self.value = 0


@udaf(input_types=["INT"], result_type="BIGINT", skip_nulls=True)
class Highest:
    """Values that do not fit the field and are less than its start."""

    def create_accumulator(self) -> Small:
        return Small()

    def accumulate(self, accumulator, value):
        accumulator.value = max(accumulator.value, value)

    def get_value(self, accumulator):
        return accumulator.value


@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Squares(_Summed):
    """Its totals may be beyond what the sums hold, which is an error."""

    def accumulate(self, accumulator, value):
        accumulator.total += value * value

    def retract(self, accumulator, value):
        accumulator.total -= value * value


@udaf(input_types=["DOUBLE"], result_type="DOUBLE", skip_nulls=True)
class Zeros:
    """Its start, 0.0, is not replaced by -0.0."""

    def create_accumulator(self) -> float:
        return 0.0

    def accumulate(self, accumulator, value):
        return max(accumulator, value) if value <= 0.0 else accumulator

    def get_value(self, accumulator):
        return accumulator


LIFTED = [
    Products,
    Narrow,
    Conditions,
    Present,
    Positive,
    Spread,
    Guarded,
    Quotients,
    Longest,
    Pairs,
    Own,
    Worst,
    Zeros,
    Highest,
    Squares,
]


# --- functions that must not lift, with a part of the reason --------------------------------------------------------


def refused(accumulate: str, reason: str, types: Any = ("BIGINT",), state: str = "int") -> tuple[str, str, Any, str]:
    """Return a body of `accumulate` with `a` and `x`, and a part of the reason why it does not lift."""
    return accumulate, reason, types, state


REFUSED = {
    "floor division": refused("a.n += x // 2", "operator //"),
    "modulo": refused("a.n += x % 2", "operator %"),
    "power": refused("a.n += x ** 2", "operator **"),
    "shift": refused("a.n += x << 1", "operator <<"),
    "xor": refused("a.n += x ^ 1", "operator ^"),
    "loop": refused("for _ in range(3):\n    a.n += x", "`for`"),
    "last value": refused("a.n = x", "neither the least nor the greatest"),
    "record highs": refused("if x > a.m:\n    a.m = x\n    a.n += 1", "depends on the order"),
    "its own field": refused("a.n += a.n + x", "depends on the order"),
    "other field": refused("a.n += a.m", "depends on the order"),
    "product": refused("a.n = a.n * 2", "depends on the order"),
    "clamped": refused("a.n = min(a.n + x, 100)", "order"),
    "both": refused("a.n += 1\nif x > 3:\n    a.n = 0", "order"),
    "two constants": refused("a.n = 1 if x > 3 else 2", "different values"),
    "float sum": refused("a.f += x", "sum of floats", ("DOUBLE",)),
    "integer as float": refused("a.n += int(x)", "fraction", ("DOUBLE",)),
    "NaN": refused("if a.f is None or x > a.f:\n    a.f = x", "NaN", ("DOUBLE",)),
    "max of floats": refused("a.f = max(a.f, x)", "NaN", ("DOUBLE",)),
    "mixed comparison": refused("if x > 0.5:\n    a.n += 1", "2**53"),
    "wide comparison": refused("if x * x > 9:\n    a.n += 1", "exceed 64 bits"),
    "raises by state": refused("if a.n > 100:\n    raise ValueError\na.n += 1", "depending on n"),
    "moved global": refused("a.n += MOVED", "global MOVED"),
    "text method": refused("if x.startswith('a'):\n    a.n += 1", "attribute startswith", ("STRING",)),
    "text sum": refused("a.n += len(x)", "no exact equal", ("STRING",)),
    "decimal": refused("if x + x > x:\n    a.n += 1", "decimal", ("DECIMAL(10, 2)",)),
    "round": refused("a.n += round(x)", "no exact equal"),
    "toggle": refused("a.b = not a.b", "order"),
    "copied flag": refused("if a.b:\n    a.n += x", "order"),
    "min and max": refused("if x > 0:\n    a.m = max(a.m, x)\nelse:\n    a.m = min(a.m, x)", "at once"),
    "wrong candidate": refused("if x > a.m:\n    a.m = x + 1", "something other"),
    "try": refused("try:\n    a.n += x\nexcept ValueError:\n    pass", "`try`"),
    "truth value set to None": refused("if x < 0:\n    a.b = None", "becomes None"),
    "truth value set to a number": refused("if x < 0:\n    a.b = 5", "becomes 5"),
    "integer set to a float": refused("if x < 0:\n    a.n = 2.0", "not of its type int64"),
    "integer set to a truth value": refused("if x < 0:\n    a.n = True", "not of its type int64"),
    "integer set beyond its type": refused("if x < 0:\n    a.n = 9223372036854775808", "not of its type int64"),
    "amount of a thousand bits": refused(f"a.n += {10**400}", "192 bits"),
    "fourth power": refused("a.n += x * x * x * x", "192 bits"),
    "many levels": refused(f"a.n += {' + '.join(['x'] * 120)}", "nested too deeply"),
    "effect of a target": refused("self.merge(a, a).n += x", "the result of a call"),
    "two guards": refused(
        "if x == x:\n    if a.n == a.m or x > a.f:\n        a.f = x\n    a.n += 1\n    a.m += 2",
        "depends on other fields",
        ("DOUBLE",),
    ),
    "a zero that replaces a zero": refused("if x == x:\n    a.f = max(x, a.f)", "0.0 or -0.0", ("DOUBLE",)),
    "NaN in itself": refused("if x in (x, 1.0):\n    a.n += 1", "may be NaN", ("DOUBLE",)),
    "private name": refused("a.n += __hidden", "Python changes within a class"),
    "global": refused("global MOVED\na.n += x", "`global`"),
}
