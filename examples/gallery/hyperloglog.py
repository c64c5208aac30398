"""An estimate of the number of distinct texts, and sketches of which unions and intersections can be counted.

- `hll_count_distinct(text)` estimates the number of distinct texts of a group: BIGINT.
- `hll_sketch(text)` returns the sketch of a group: BINARY of 2**`precision` bytes, a register each. Store it, for
  example for each hour.
- `hll_union(sketch)` unites the sketches of a group, for example those of a day's hours. The result is the same, bit
  for bit, as the sketch of all texts.
- `hll_count(sketch)`, `hll_intersection_count(one, other)` and `hll_difference_count(one, other)` are scalar functions.

Arguments: `text` STRING; NULL is ignored. Cast other types in the query. Direct argument: `precision`, 4 to 16. State:
the registers that are not 0, as a map; at most 2**`precision` entries. Merges exactly. Does not retract; a register
does not hold which texts have set it.

Error bound: the relative standard error of a count is 1.04 / sqrt(2**`precision`), 1.6 % by default. That of an
intersection or difference is relative to the count of the union, because both are computed from counts of unions.

Sources: P. Flajolet et al., "HyperLogLog: the analysis of a near-optimal cardinality estimation algorithm" (2007);
O. Ertl, "New cardinality estimation algorithms for HyperLogLog sketches" (2017), the improved raw estimator.

>>> from foldflight import connect
>>> from foldflight.testing import run_epochs
>>> functions = connect("embedded:examples.gallery.hyperloglog")
>>> first, second = run_epochs(
...     {"visitors": functions["hll_count_distinct"]("visitor")},
...     epochs=[[{"visitor": "ann"}, {"visitor": "bob"}], [{"visitor": "ann"}, {"visitor": "cy"}]],
... )
>>> first.changelog[-1], second.changelog[-1]
(('+I', {'visitors': 2}), ('+U', {'visitors': 3}))
"""

import hashlib
import math
from typing import Annotated

from foldflight import udaf, udf

HASH_BITS = 64


class Registers:
    # By number: the registers that are not 0.
    values: dict[Annotated[int, "INT"], Annotated[int, "TINYINT"]]

    def __init__(self):
        self.values = {}


class HyperLogLog:
    """The common part: takes texts into registers, and merges registers."""

    def __init__(self, precision: int = 12):
        if not 4 <= precision <= 16:
            raise ValueError(f"precision is {precision}; give a number from 4 to 16")
        self.precision = precision

    def create_accumulator(self) -> Registers:
        return Registers()

    def accumulate(self, accumulator, text):
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BITS // 8).digest()
        number = int.from_bytes(digest, "big")
        rest_bits = HASH_BITS - self.precision
        register, rest = number >> rest_bits, number & ((1 << rest_bits) - 1)
        self.put(accumulator, register, rest_bits - rest.bit_length() + 1)

    def merge(self, accumulator, other):
        for register, rank in other.values.items():
            self.put(accumulator, register, rank)

    def put(self, accumulator, register, rank):
        if accumulator.values.get(register, 0) < rank:
            accumulator.values[register] = rank

    def sketch(self, accumulator):
        registers = bytearray(1 << self.precision)
        for register, rank in accumulator.values.items():
            registers[register] = rank
        return bytes(registers)


@udaf(input_types=["STRING"], result_type="BIGINT", skip_nulls=True)
class HllCountDistinct(HyperLogLog):
    """Estimate the number of distinct texts."""

    def get_value(self, accumulator):
        return round(estimate(self.sketch(accumulator)))


@udaf(input_types=["STRING"], result_type="BINARY", skip_nulls=True)
class HllSketch(HyperLogLog):
    """Return the HyperLogLog sketch of the texts."""

    def get_value(self, accumulator):
        return self.sketch(accumulator)


@udaf(input_types=["BINARY"], result_type="BINARY", skip_nulls=True)
class HllUnion(HyperLogLog):
    """Unite sketches of the same precision."""

    def accumulate(self, accumulator, sketch):
        if len(sketch) != 1 << self.precision:
            raise ValueError(
                f"a sketch of precision {self.precision} has {1 << self.precision} bytes, not {len(sketch)}"
            )
        for register, rank in enumerate(sketch):
            self.put(accumulator, register, rank)

    def get_value(self, accumulator):
        return self.sketch(accumulator)


@udf(skip_nulls=True)
def hll_count(sketch: bytes) -> int:
    """Estimate the number of distinct texts in a sketch."""
    return round(estimate(sketch))


@udf(skip_nulls=True)
def hll_intersection_count(one: bytes, other: bytes) -> int:
    """Estimate the number of distinct texts in both of two sketches."""
    return round(max(estimate(one) + estimate(other) - estimate(united(one, other)), 0.0))


@udf(skip_nulls=True)
def hll_difference_count(one: bytes, other: bytes) -> int:
    """Estimate the number of distinct texts that are in the first sketch and not in the second."""
    return round(max(estimate(united(one, other)) - estimate(other), 0.0))


def united(one, other):
    """Return the union of two sketches: the greater of each pair of registers."""
    if len(one) != len(other):
        raise ValueError(f"the sketches have {len(one)} and {len(other)} bytes; make both with the same precision")
    return bytes([max(pair) for pair in zip(one, other, strict=True)])


def estimate(sketch):
    """Return the estimated number of distinct texts: algorithm 6 of Ertl (2017)."""
    count = len(sketch)
    precision = count.bit_length() - 1
    if count != 1 << max(precision, 0) or not 4 <= precision <= 16:
        raise ValueError(f"a sketch has 2**4 to 2**16 bytes, a power of two, not {count}")
    ranks = HASH_BITS - precision
    with_rank = [sketch.count(rank) for rank in range(ranks + 2)]
    if sum(with_rank) != count:
        raise ValueError(
            f"a register of a sketch with {count} bytes is greater than {ranks + 1}; the sketch is damaged"
        )
    total = count * tau(1 - with_rank[ranks + 1] / count)
    for rank in range(ranks, 0, -1):
        total = 0.5 * (total + with_rank[rank])
    total += count * sigma(with_rank[0] / count)
    return count * count / (2 * math.log(2) * total)


def sigma(share):
    """Correct for the share of registers that are 0: x + the sum of x**(2**k) * 2**(k - 1) for k from 1."""
    if share == 1:
        return math.inf
    found, factor, last = share, 1.0, None
    while found != last:
        share *= share
        last = found
        found += share * factor
        factor *= 2
    return found


def tau(share):
    """Correct for the share of registers that have the greatest rank, given the share of the others."""
    if share in (0, 1):
        return 0.0
    found, factor, last = 1 - share, 1.0, None
    while found != last:
        share = math.sqrt(share)
        last = found
        factor *= 0.5
        found -= (1 - share) ** 2 * factor
    return found / 3
