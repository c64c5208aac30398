"""Exact sums of floats: every float and every product of two floats is a whole multiple of one tiny unit.

A sum is therefore a whole number. It does not depend on the order in which values are added, merged or taken back, and
it is rounded once, when somebody asks for it. The idea is Kulisch's long accumulator: U. Kulisch and W. L. Miranker,
"The arithmetic of the digital computer: a new approach" (1986).
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from foldflight.functions.columns import AttributeColumn

__all__ = ["EXACT", "UNIT_BITS", "ExactSum", "ExactSums", "products_of", "ratio"]

# The product of the two smallest floats is 2**-2148; 2176 is the next multiple of 32, the bits of a digit.
UNIT_BITS: Final = 2176
_ONE: Final = 1 << UNIT_BITS
_DIGIT: Final = 32
_MASK: Final = (1 << _DIGIT) - 1
_HALF: Final = 1 << (_DIGIT - 1)
# A product of the largest floats, summed 2**63 times, ends below.
_PLACES: Final = (UNIT_BITS + 2048 + 64) // _DIGIT + 1
# A deposit changes a digit by less than 2**33, and a digit is an int64.
_DEPOSITS_MAX: Final = 1 << 29
# Exponents of the largest of some floats, for which all that is done with them is exact in floats; how many digits of
# them are taken so: the rest of a float that is much smaller than others is left to whole numbers.
_FACTOR_MAX: Final = 2.0**200
_SPLITTER: Final = 2.0**27 + 1
_FLOATS_MIN: Final = -600
_FLOATS_MAX: Final = 900
_DIGITS_AT_ONCE: Final = 6
# Rows whose temporary arrays fit a processor's cache.
_BLOCK: Final = 1 << 15
_SMALLEST_NORMAL: Final = 2.0**-1022

EXACT: Final = pa.struct([("rounded", pa.float64()), ("digits", pa.binary())])
"""The Arrow type of an exact sum.

`rounded` is the sum as the nearest float (infinite beyond their range). `digits` is empty where `rounded` is the sum
itself; otherwise it holds, little-endian, int32 p and the words of a whole number in two's complement, without words
that say nothing at either end: the sum is that number times 2**(32 * p - 2176).
"""


class ExactSum:
    """A sum of finite floats that is never rounded before it is asked for.

    Use it as an attribute of an accumulator, or as the accumulator. What was added can be taken back, in any order, and
    what is left is exactly the sum of the rest. Vectorised methods see an `ExactSums`.

    Args:
        value: What the sum begins with.

    Attributes:
        units: The sum, as a multiple of 2**-2176.
    """

    __slots__ = ("units",)

    def __init__(self, value: float = 0.0) -> None:
        self.units = _units(value)

    def add(self, value: float, sign: int = 1) -> None:
        """Add a value (sign 1) or take it back (sign -1). Raises ValueError for one that is not finite."""
        self.units += sign * _units(value)

    def add_product(self, value: float, factor: float, sign: int = 1) -> None:
        """Add a product, or take it back, without rounding it. Raises ValueError for what is not finite."""
        self.units += sign * (_units(value) * _units(factor) >> UNIT_BITS)

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        self.units += other.units

    def value(self) -> float:
        """Return the float nearest to the sum; infinity beyond the range of floats."""
        return ratio(self.units, _ONE)

    def digits(self) -> bytes:
        """Return what a state holds beside the float: nothing where that is the sum itself (see `EXACT`)."""
        value = self.value()
        if math.isfinite(value) and _units(value) == self.units:
            return b""
        place = ((self.units & -self.units).bit_length() - 1) // _DIGIT
        number = self.units >> (place * _DIGIT)
        words = (number if number >= 0 else ~number).bit_length() // _DIGIT + 1
        return place.to_bytes(4, "little") + number.to_bytes(4 * words, "little", signed=True)

    @classmethod
    def of_digits(cls, rounded: float, digits: bytes) -> Self:
        """Return the sum that a state holds. Raises ValueError for what no fold writes."""
        if not digits:
            return cls(rounded)
        place = int.from_bytes(digits[:4], "little")
        if len(digits) % 4 or not 8 <= len(digits) <= 4 * (_PLACES - place + 1):
            raise ValueError(f"an exact sum has {len(digits)} bytes of digits from place {place} on")
        made = cls()
        made.units = int.from_bytes(digits[4:], "little", signed=True) << (place * _DIGIT)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSum) and self.units == other.units

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ExactSum({self.value()!r})"


def ratio(numerator: int, denominator: int) -> float:
    """Return the float nearest to a ratio, its denominator positive; infinity beyond the range of floats."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def _units(value: float) -> int:
    try:
        numerator, denominator = float(value).as_integer_ratio()
    except (OverflowError, ValueError):
        raise ValueError(f"{value} cannot be added to an exact sum; count values that are not finite apart") from None
    return numerator << (UNIT_BITS + 1 - denominator.bit_length())


class ExactSums(AttributeColumn):
    """The exact sums of all slots, as vectorised methods see an attribute that is an `ExactSum`.

    Args:
        digits: int64, shape (n, digits): numbers in base 2**32, the lowest digit first. A digit may exceed the base.
        first: The place of the first digit.
        deposits: How often a digit may have been changed since it was below the base.
    """

    def __init__(self, digits: Any = None, first: int = 0, deposits: int = 0) -> None:
        self._digits = np.zeros((0, 0), np.int64) if digits is None else digits
        self._first = first
        self._deposits = deposits

    def __len__(self) -> int:
        return len(self._digits)

    def add(self, slots: Any, values: Any, signs: Any = 1) -> None:
        """Add n values to the sums of n slots.

        Args:
            slots: intp, shape (n,).
            values: float64, shape (n,), all finite.
            signs: 1 for a value that is added, -1 for one that is taken back: int64, shape (n,), or one for all.

        Raises:
            ValueError: A value is not finite; nothing has changed.
        """
        values = np.ascontiguousarray(values, np.float64)
        _check(values)
        for rows in _blocks(len(values)):
            signed = values[rows] * (signs if isinstance(signs, int) else signs[rows])
            self._add_floats(slots[rows], [signed])

    def add_products(self, slots: Any, values: Any, factors: Any, signs: Any = 1) -> None:
        """Add n products to the sums of n slots, none of them rounded; otherwise as `add`."""
        values, factors = np.ascontiguousarray(values, np.float64), np.ascontiguousarray(factors, np.float64)
        _check(values)
        _check(factors)
        for rows in _blocks(len(values)):
            signed = values[rows] * (signs if isinstance(signs, int) else signs[rows])
            products = _float_products(signed, factors[rows])
            if products is None:
                one, positions = _split(signed)
                other, others = _split(factors[rows])
                limbs = [limb * (np.sign(one) * np.sign(other)) for limb in _product(np.abs(one), np.abs(other))]
                self._deposit(slots[rows], limbs, positions + others - UNIT_BITS)
            else:
                self._add_floats(slots[rows], products)

    def merge(self, slots: Any, others: ExactSums) -> None:
        """Add n other sums to the sums of n slots."""
        for rows in _blocks(len(slots)):
            digits = _normal(others._digits[rows])
            self._make_way(others._first, others._first + len(digits))
            self._spend(len(slots[rows]))
            places = slots[rows] * self._digits.shape[1] + (others._first - self._first)
            for digit in digits:
                np.add.at(self._digits.reshape(-1), places, digit)
                places += 1

    def values(self) -> Any:
        """Return the floats nearest to the n sums, float64; infinity beyond their range."""
        parts = [_rounded(_normal(self._digits[rows]), self._first)[0] for rows in _blocks(len(self))]
        return np.concatenate([np.zeros(0), *parts])

    def times(self, factors: Any) -> Self:
        """Return each sum times a whole number: int64, shape (n,), from 0 to less than 2**31."""
        digits = _normal(self._digits) * factors
        return type(self)(np.ascontiguousarray(_carried(digits).T), self._first, 1)

    def units(self, slot: int) -> int:
        """Return one sum as a multiple of 2**-2176."""
        return sum(digit << (_DIGIT * (self._first + place)) for place, digit in enumerate(self._digits[slot].tolist()))

    def grow(self, count: int) -> None:
        more = np.zeros((count - len(self), self._digits.shape[1]), np.int64)
        self._digits = np.concatenate([self._digits, more])

    def take(self, slots: Any) -> Self:
        return type(self)(self._digits[slots], self._first, self._deposits)

    def put(self, slots: Any, others: Self) -> None:
        begin, width = others._first, others._digits.shape[1]
        self._make_way(begin, begin + width)
        self._deposits = max(self._deposits, others._deposits)
        self._digits[slots] = 0
        if width:
            self._digits[slots, begin - self._first : begin - self._first + width] = others._digits

    def clear(self, slots: Any) -> None:
        self._digits[slots] = 0

    def to_arrow(self) -> pa.Array | None:
        return pa.concat_arrays(
            [pa.array([], EXACT), *(_states(_normal(self._digits[rows]), self._first) for rows in _blocks(len(self)))]
        )

    def from_arrow(self, states: pa.Array) -> Self | None:
        rounded, digits = states.field(0), states.field(1)
        if rounded.null_count or digits.null_count or states.null_count:
            return None
        if not len(states):
            return type(self)()
        offsets = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset :][: len(digits) + 1].astype(np.intp)
        whole = np.flatnonzero(offsets[1:] == offsets[:-1])
        found = type(self)(*_read(digits.buffers()[2], offsets), 1)
        found.add(whole, rounded.to_numpy()[whole])
        return found

    def _add_floats(self, slots: Any, terms: list[Any]) -> None:
        """Add n totals of several terms to n slots, digit by digit from the highest; the terms are used up."""
        bounds = [_most(term) for term in terms]
        exponent = math.frexp(max(bounds))[1]
        top = (exponent - 1 + UNIT_BITS) // _DIGIT
        digits: list[tuple[int, Any]] = []
        if _FLOATS_MIN < exponent < _FLOATS_MAX:
            for place in range(top, top - _DIGITS_AT_ONCE, -1):
                unit = 2.0 ** (_DIGIT * place - UNIT_BITS)
                parts = []
                for index, term in enumerate(terms):
                    if 2 * bounds[index] >= unit:
                        parts.append(_cut(term, unit))
                        bounds[index] = _most(term)
                if parts:
                    total = sum(parts[1:], parts[0])
                    total *= 1 / unit
                    digits.append((place, total.astype(np.int64)))
                if not any(bounds):
                    break
        if digits:
            self._make_way(digits[-1][0], top + 1)
            self._spend(len(slots))
            flat, first = self._digits.reshape(-1), slots * self._digits.shape[1]
            for place, digit in digits:
                np.add.at(flat, first + (place - self._first), digit)
        for term, bound in zip(terms, bounds, strict=True):
            if bound:
                rest = np.flatnonzero(term)
                mantissas, positions = _split(term[rest])
                self._deposit(slots[rest], [mantissas & _MASK, mantissas >> _DIGIT], positions)

    def _deposit(self, slots: Any, limbs: list[Any], positions: Any) -> None:
        """Add numbers of several limbs (32 bits each, the last one with the sign) at bit positions to n slots."""
        nothing = limbs[0] == 0
        for limb in limbs[1:]:
            nothing &= limb == 0
        if nothing.any():
            # Zero has the lowest exponent, and would make room for itself down there.
            some = ~nothing
            slots, positions, limbs = slots[some], positions[some], [limb[some] for limb in limbs]
        if not len(positions):
            return
        places, shifts = positions >> 5, positions & 31
        self._make_way(int(places.min()), int(places.max()) + len(limbs) + 1)
        self._spend(len(slots))
        flat, width = self._digits.reshape(-1), self._digits.shape[1]
        places -= self._first
        places += slots * width
        carried: Any = 0
        for limb in limbs:
            shifted = limb << shifts
            np.add.at(flat, places, (shifted & _MASK) + carried)
            carried = shifted >> _DIGIT
            places += 1
        np.add.at(flat, places, carried)

    def _make_way(self, begin: int, end: int) -> None:
        """Have digits at least for the places from `begin` to before `end`."""
        width = self._digits.shape[1]
        if not width:
            self._first, width = begin, 0
        before, after = max(0, self._first - begin), max(0, end - self._first - width)
        if before or after:
            self._digits = np.ascontiguousarray(np.pad(self._digits, ((0, 0), (before, after))))
            self._first -= before

    def _spend(self, deposits: int) -> None:
        """Note that digits will change so many times; carry first where they might overflow."""
        if self._deposits + deposits > _DEPOSITS_MAX:
            self._digits = np.ascontiguousarray(_normal(self._digits).T)
            self._deposits = 1
        self._deposits += deposits


def _check(values: Any) -> None:
    if not np.isfinite(values).all():
        raise ValueError("a value that is not finite cannot be added to an exact sum; count such values apart")


def _most(values: Any) -> float:
    """Return the greatest magnitude of n floats."""
    return max(float(values.max()), -float(values.min()))


def _cut(values: Any, unit: float) -> Any:
    """Take the nearest multiples of a unit off n floats, and return them."""
    # A sum so large that its last bit is the unit.
    large = 1.5 * 2.0**52 * unit
    parts = values + large
    parts -= large
    values -= parts
    return parts


def _blocks(count: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, count, _BLOCK)]


def _split(values: Any) -> tuple[Any, Any]:
    """Return n finite floats as whole numbers of 53 bits with a sign, and the positions of their lowest bits."""
    bits = values.view(np.int64)
    exponents = (bits >> 52) & 0x7FF
    mantissas = bits & ((1 << 52) - 1)
    mantissas |= (exponents != 0).astype(np.int64) << 52
    np.negative(mantissas, out=mantissas, where=bits < 0)
    np.maximum(exponents, 1, out=exponents)
    exponents += UNIT_BITS - 1075
    return mantissas, exponents


def _float_products(one: Any, other: Any) -> list[Any] | None:
    """Return n products as two floats each, whose exact total they are; None where floats are too large or small."""
    sizes = np.abs(one), np.abs(other)
    if any(size.max() >= _FACTOR_MAX or size.min(where=size != 0, initial=1) < 1 / _FACTOR_MAX for size in sizes):
        return None
    return list(products_of(one, other))


def products_of(one: Any, other: Any) -> tuple[Any, Any]:
    """Return n products of floats, rounded, and what the rounding cut off: exact where nothing is too large or small.

    Source: T. J. Dekker, "A floating-point technique for extending the available precision" (1971).
    """
    halves = []
    for factor in (one, other):
        shifted = factor * _SPLITTER
        high = shifted - (shifted - factor)
        halves.append((high, factor - high))
    (high, low), (by_high, by_low) = halves
    product = one * other
    return product, ((high * by_high - product) + high * by_low + low * by_high) + low * by_low


def _product(one: Any, other: Any) -> list[Any]:
    """Return the products of n pairs of whole numbers below 2**53 as four limbs of 32 bits."""
    low, high, by_low, by_high = one & _MASK, one >> _DIGIT, other & _MASK, other >> _DIGIT
    first = (low.view(np.uint64) * by_low.view(np.uint64)).view(np.uint64)
    cross, top = low * by_high + high * by_low, high * by_high
    second = (first >> np.uint64(_DIGIT)).view(np.int64) + (cross & _MASK)
    third = (second >> _DIGIT) + (cross >> _DIGIT) + (top & _MASK)
    return [
        (first & np.uint64(_MASK)).view(np.int64),
        second & _MASK,
        third & _MASK,
        (third >> _DIGIT) + (top >> _DIGIT),
    ]


def _normal(digits: Any) -> Any:
    """Return digits of shape (n, width) in shape (width, n), below 2**32 each; the highest, of 31 bits, is signed."""
    return _carried(np.array(digits.T, order="C")) if digits.shape[1] else np.zeros((1, len(digits)), np.int64)


def _carried(digits: Any) -> Any:
    """Carry within digits of shape (width, n), in place; with further digits on top, where they are needed."""
    for place in range(len(digits) - 1):
        digits[place + 1] += digits[place] >> _DIGIT
        digits[place] &= _MASK
    while digits.shape[1] and (digits[-1].min() < -_HALF or digits[-1].max() >= _HALF):
        digits = np.concatenate([digits, digits[-1:] >> _DIGIT])
        digits[-2] &= _MASK
    return digits


def _magnitudes(normal: Any) -> tuple[Any, Any]:
    """Return normal digits without their signs, and which of the n numbers were negative."""
    negative = normal[-1] < 0
    if not negative.any():
        return normal, negative
    return _carried(normal * np.where(negative, -1, 1)), negative


def _rounded(normal: Any, first: int) -> tuple[Any, Any]:
    """Return the floats nearest to sums of normal digits, and which of these are the sums themselves."""
    digits, negative = _magnitudes(normal)
    top, padded = _top(digits)
    rows = np.arange(len(top))
    high, middle, low = (padded[top + 3 - place, rows] for place in range(3))
    length = np.frexp(high.astype(np.float64))[1].astype(np.int64)
    # The highest 64 bits, then the 63 of them that int64 holds: a last bit of 1 stands for all that is cut off.
    bits = (high << _DIGIT | middle).view(np.uint64)
    bits = bits << (_DIGIT - length).view(np.uint64) | (low >> length).view(np.uint64)
    rest = ((low & ((1 << length) - 1)) != 0) | ((padded != 0).argmax(axis=0) <= top)
    rest &= high != 0
    whole = (bits >> np.uint64(1)).view(np.int64)
    rest |= (bits & np.uint64(1)) != 0
    mantissas = (whole | rest).astype(np.float64)
    exponents = _DIGIT * (first + top) - UNIT_BITS + length - 63
    with np.errstate(over="ignore"):
        rounded = np.ldexp(mantissas, exponents)
    exact = ~rest & (mantissas.astype(np.uint64) == whole.view(np.uint64)) & np.isfinite(rounded)
    # Below the smallest normal float fewer bits are left, and these would be rounded twice.
    for row in np.flatnonzero((rounded <= _SMALLEST_NORMAL) & (high != 0)).tolist():
        units = sum(digit << (_DIGIT * (first + place)) for place, digit in enumerate(digits[:, row].tolist()))
        rounded[row] = ratio(units, _ONE)
        exact[row] = _units(float(rounded[row])) == units
    return np.where(negative & (high != 0), -rounded, rounded), exact


def _states(normal: Any, first: int) -> pa.Array:
    """Return sums of normal digits as states."""
    rounded, exact = _rounded(normal, first)
    digits = _binary(normal[:, ~exact], np.flatnonzero(~exact), len(exact), first)
    return pa.StructArray.from_arrays([pa.array(rounded), digits], fields=list(EXACT))


def _top(digits: Any) -> tuple[Any, Any]:
    """Return the place of the highest digit that is not 0 of each of n numbers, and the digits above three zeros."""
    top = len(digits) - 1 - (digits[::-1] != 0).argmax(axis=0)
    return top, np.concatenate([np.zeros((3, digits.shape[1]), np.int64), digits])


def _read(data: pa.Buffer | None, offsets: Any) -> tuple[Any, int]:
    """Return the digits, shape (n, width), of n states' `digits`, 0 for those without, and their first place.

    Raises:
        ValueError: They are none that a fold writes.
    """
    sizes = offsets[1:] - offsets[:-1]
    rows = np.flatnonzero(sizes)
    if data is None or not len(rows):
        return np.zeros((len(sizes), 0), np.int64), 0
    read = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    if (sizes % 4).any() or (sizes == 4).any():
        raise ValueError("the digits of an exact sum are no words of four bytes")
    words = read.view("<i4").astype(np.int64)
    counts, begins = sizes[rows] // 4 - 1, (offsets[rows] - offsets[0]) // 4
    places = words[begins]
    if (places < 0).any() or (places + counts > _PLACES).any():
        raise ValueError("the digits of an exact sum are beyond the range of sums")
    is_digit = np.ones(len(words), np.bool_)
    is_digit[begins] = False
    # The last word of a number has its sign.
    lasts = begins + counts
    signed = words[lasts]
    words &= _MASK
    words[lasts] = signed
    first = int(places.min())
    digits = np.zeros((len(sizes), int((places + counts).max()) - first), np.int64)
    steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    digits[np.repeat(rows, counts), np.repeat(places - first, counts) + steps] = words[is_digit]
    return digits, first


def _binary(digits: Any, rows: Any, count: int, first: int) -> pa.Array:
    """Return `count` states' `digits`: those of normal digits, shape (width, m), at `rows`; the others are empty."""
    width = len(digits)
    fill = np.where(digits[-1] < 0, _MASK, 0)
    words = digits & _MASK
    begins = (words != 0).argmax(axis=0)
    ends = np.maximum(width - 1 - (words != fill)[::-1].argmax(axis=0), begins)
    ends = np.where((words != fill).any(axis=0), ends, begins)
    ends += (words[ends, np.arange(len(ends))] >= _HALF) != (fill != 0)
    sizes = np.zeros(count + 1, np.int64)
    sizes[rows + 1] = ends - begins + 2
    offsets = np.cumsum(sizes)
    places = np.arange(width)[:, None]
    written = np.empty(int(offsets[-1]), np.int64)
    is_word = np.ones(len(written), np.bool_)
    is_word[offsets[rows]] = False
    written[offsets[rows]] = first + begins
    written[is_word] = words.T[((places >= begins) & (places <= ends)).T]
    data = written.astype("<u4")
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer((4 * offsets).astype(np.int32)), pa.py_buffer(data)]
    )
