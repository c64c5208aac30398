"""Exact sums of floats: every float and every product of two floats is an integer multiple of one tiny unit.

A sum is therefore stored as an integer. It does not depend on the order in which values are added, merged or removed,
and it is rounded once, when its value is read. This is Kulisch's long accumulator: U. Kulisch and W. L. Miranker,
"The arithmetic of the digital computer: a new approach" (1986).
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa

from foldflight.functions.types.lists import AttributeColumn

# The product of the two smallest floats is 2**-2148; 2176 is the next multiple of 32, the bits of a digit.
UNIT_BITS: Final = 2176
_ONE: Final = 1 << UNIT_BITS
_DIGIT: Final = 32
_MASK: Final = (1 << _DIGIT) - 1
_HALF: Final = 1 << (_DIGIT - 1)
# A product of the largest floats, summed 2**63 times, ends below.
_DIGITS_MAX: Final = (UNIT_BITS + 2048 + 64) // _DIGIT + 1
# A deposit changes a digit by less than 2**33, and a digit is an int64.
_DEPOSITS_MAX: Final = 1 << 29
# The exponents of the largest float of a block for which float arithmetic on the block is exact, and the number of
# digits that are extracted in floats. The remainders of much smaller floats are added with integer arithmetic.
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

`rounded` is the float nearest to the sum (infinite beyond the range of floats). `digits` is empty if `rounded` equals
the sum. Otherwise it holds, little-endian, int32 p and the words of an integer in two's complement, without redundant
words at either end. The sum is that integer times 2**(32 * p - 2176).
"""


class ExactSum:
    """A sum of finite floats that is rounded only when its value is read.

    Use it as an attribute of an accumulator, or as the accumulator. Values can be removed in any order, and the result
    is exactly the sum of the remaining values. Vectorised methods see an `ExactSums`.

    Args:
        value: The initial value.

    Attributes:
        units: The sum, as a multiple of 2**-2176.

    >>> from foldflight import ExactSum
    >>> total = ExactSum()
    >>> for value in (1e20, 1.0, -1e20):
    ...     total.add(value)
    >>> total.value()
    1.0
    >>> 1e20 + 1.0 - 1e20
    0.0
    """

    __slots__ = ("units",)

    def __init__(self, value: float = 0.0) -> None:
        self.units = _units(value)

    def add(self, value: float, sign: int = 1) -> None:
        """Add a value (sign 1) or remove it (sign -1). Raises ValueError if the value is not finite."""
        self.units += sign * _units(value)

    def add_product(self, value: float, factor: float, sign: int = 1) -> None:
        """Add a product (sign 1) or remove it (sign -1) without rounding. Raises ValueError if it is not finite."""
        self.units += sign * (_units(value) * _units(factor) >> UNIT_BITS)

    def merge(self, other: ExactSum) -> None:
        """Add another sum."""
        self.units += other.units

    def value(self) -> float:
        """Return the float nearest to the sum; infinity beyond the range of floats."""
        return ratio(self.units, _ONE)

    def digits(self) -> bytes:
        """Return the `digits` of the state: empty if the nearest float equals the sum (see `EXACT`)."""
        value = self.value()
        if math.isfinite(value) and _units(value) == self.units:
            return b""
        index = ((self.units & -self.units).bit_length() - 1) // _DIGIT
        number = self.units >> (index * _DIGIT)
        words = (number if number >= 0 else ~number).bit_length() // _DIGIT + 1
        return index.to_bytes(4, "little") + number.to_bytes(4 * words, "little", signed=True)

    @classmethod
    def of_digits(cls, rounded: float, digits: bytes) -> Self:
        """Return the sum that a state holds. Raises ValueError if the state is malformed."""
        if not digits:
            return cls(rounded)
        index = int.from_bytes(digits[:4], "little")
        if len(digits) % 4 or not 8 <= len(digits) <= 4 * (_DIGITS_MAX - index + 1):
            raise ValueError(f"an exact sum has {len(digits)} bytes of digits from digit {index} on")
        exact_sum = cls()
        exact_sum.units = int.from_bytes(digits[4:], "little", signed=True) << (index * _DIGIT)
        return exact_sum

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSum) and self.units == other.units

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ExactSum({self.value()!r})"


def ratio(numerator: int, denominator: int) -> float:
    """Return the float nearest to a ratio with a positive denominator; infinity beyond the range of floats."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf


def _units(value: float) -> int:
    try:
        numerator, denominator = float(value).as_integer_ratio()
    except (OverflowError, ValueError):
        raise ValueError(
            f"{value} cannot be added to an exact sum; count values that are not finite separately"
        ) from None
    return numerator << (UNIT_BITS + 1 - denominator.bit_length())


class ExactSums(AttributeColumn):
    """The exact sums of all slots, as vectorised methods see an attribute that is an `ExactSum`.

    Args:
        digits: int64, shape (n, digits): numbers in base 2**32, lowest digit first. A digit may exceed the base.
        first: The index of the first digit.
        deposits: Upper bound of the changes to one digit since the last carry.

    >>> import numpy as np
    >>> from foldflight import ExactSums
    >>> totals = ExactSums()
    >>> totals.grow(2)  # in an exchange, foldflight does this for each new slot
    >>> totals.add(np.array([0, 1, 0, 0]), np.array([1e20, 5.0, 1.0, -1e20]))
    >>> totals.values().tolist()
    [1.0, 5.0]
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
            signs: 1 adds the value, -1 removes it: int64, shape (n,), or one sign for all values.

        Raises:
            ValueError: A value is not finite. No sum has been changed.
        """
        values = np.ascontiguousarray(values, np.float64)
        _check(values)
        for rows in _blocks(len(values)):
            signed_values = values[rows] * (signs if isinstance(signs, int) else signs[rows])
            self._add_floats(slots[rows], [signed_values])

    def add_products(self, slots: Any, values: Any, factors: Any, signs: Any = 1) -> None:
        """Add n products to the sums of n slots without rounding them; otherwise like `add`."""
        values, factors = np.ascontiguousarray(values, np.float64), np.ascontiguousarray(factors, np.float64)
        _check(values)
        if factors is not values:
            _check(factors)
        for rows in _blocks(len(values)):
            one = values[rows]
            other = one if factors is values else factors[rows]
            sign = signs if isinstance(signs, int) else signs[rows]
            products = _float_products(one, other)
            if products is None:
                self._add_wide_products(slots[rows], one * sign, other)
                continue
            if not isinstance(sign, int) or sign != 1:
                for product in products:
                    np.multiply(product, sign, out=product)
            self._add_floats(slots[rows], products)

    def _add_wide_products(self, slots: Any, values: Any, factors: Any) -> None:
        """Add n products that floats cannot represent as pairs."""
        one, positions = _split(values)
        other, others = _split(factors)
        limbs = [limb * (np.sign(one) * np.sign(other)) for limb in _product(np.abs(one), np.abs(other))]
        self._deposit(slots, limbs, positions + others - UNIT_BITS)

    def merge(self, slots: Any, others: ExactSums) -> None:
        """Add n other sums to the sums of n slots."""
        for rows in _blocks(len(slots)):
            digits = _normal(others._digits[rows])
            self._make_way(others._first, others._first + len(digits))
            self._spend(len(slots[rows]))
            indexes = slots[rows] * self._digits.shape[1] + (others._first - self._first)
            for digit in digits:
                np.add.at(self._digits.reshape(-1), indexes, digit)
                indexes += 1

    def values(self) -> Any:
        """Return the floats nearest to the n sums, float64; infinity beyond their range."""
        parts = [_round(_normal(self._digits[rows]), self._first)[0] for rows in _blocks(len(self))]
        return np.concatenate([np.zeros(0), *parts])

    def times(self, factors: Any) -> Self:
        """Return each sum times an integer factor: int64, shape (n,), at least 0 and less than 2**31."""
        digits = _normal(self._digits) * factors
        return type(self)(np.ascontiguousarray(_carry(digits).T), self._first, 1)

    def units(self, slot: int) -> int:
        """Return one sum as a multiple of 2**-2176."""
        return sum(digit << (_DIGIT * (self._first + index)) for index, digit in enumerate(self._digits[slot].tolist()))

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
        rounded_values, digits = states.field(0), states.field(1)
        if rounded_values.null_count or digits.null_count or states.null_count:
            return None
        if not len(states):
            return type(self)()
        offsets = np.frombuffer(digits.buffers()[1], np.int32)[digits.offset :][: len(digits) + 1].astype(np.intp)
        whole = np.flatnonzero(offsets[1:] == offsets[:-1])
        sums = type(self)(*_read(digits.buffers()[2], offsets), 1)
        sums.add(whole, rounded_values.to_numpy()[whole])
        return sums

    def _add_floats(self, slots: Any, terms: list[Any]) -> None:
        """Add n totals of several terms to n slots, digit by digit from the highest. The terms are overwritten."""
        bounds = [max(float(term.max()), -float(term.min())) for term in terms]  # the largest magnitude of each
        exponent = math.frexp(max(bounds))[1]
        top = (exponent - 1 + UNIT_BITS) // _DIGIT
        # Parts are below 2**33 units, so floats add up the parts of a block without rounding.
        are_few = len(self) <= len(slots)
        digits: list[tuple[int, Any]] = []
        if _FLOATS_MIN < exponent < _FLOATS_MAX:
            for position in range(top, top - _DIGITS_AT_ONCE, -1):
                unit = 2.0 ** (_DIGIT * position - UNIT_BITS)
                parts = []
                for index, term in enumerate(terms):
                    if 2 * bounds[index] >= unit:
                        parts.append(_cut(term, unit))
                        bounds[index] = unit / 2 if term.any() else 0.0
                if parts:
                    total = sum(parts[1:], parts[0])
                    if are_few:
                        total = np.bincount(slots, total, len(self))
                    total *= 1 / unit
                    digits.append((position, total.astype(np.int64)))
                if not any(bounds):
                    break
        if digits:
            self._make_way(digits[-1][0], top + 1)
            self._spend(len(slots))
            flat, first = self._digits.reshape(-1), slots * (0 if are_few else self._digits.shape[1])
            for position, digit in digits:
                if are_few:
                    self._digits[:, position - self._first] += digit
                else:
                    np.add.at(flat, first + (position - self._first), digit)
        for term, bound in zip(terms, bounds, strict=True):
            if bound:
                rest = np.flatnonzero(term)
                mantissas, positions = _split(term[rest])
                self._deposit(slots[rest], [mantissas & _MASK, mantissas >> _DIGIT], positions)

    def _deposit(self, slots: Any, limbs: list[Any], positions: Any) -> None:
        """Add numbers of several 32-bit limbs (the last one is signed), shifted to bit positions, to n slots."""
        nothing = limbs[0] == 0
        for limb in limbs[1:]:
            nothing &= limb == 0
        if nothing.any():
            # Zero has the lowest exponent and would allocate digits that it does not need.
            some = ~nothing
            slots, positions, limbs = slots[some], positions[some], [limb[some] for limb in limbs]
        if not len(positions):
            return
        indexes, shifts = positions >> 5, positions & 31
        self._make_way(int(indexes.min()), int(indexes.max()) + len(limbs) + 1)
        self._spend(len(slots))
        flat, width = self._digits.reshape(-1), self._digits.shape[1]
        indexes -= self._first
        indexes += slots * width
        carry: Any = 0
        for limb in limbs:
            shifted_limb = limb << shifts
            np.add.at(flat, indexes, (shifted_limb & _MASK) + carry)
            carry = shifted_limb >> _DIGIT
            indexes += 1
        np.add.at(flat, indexes, carry)

    def _make_way(self, begin: int, end: int) -> None:
        """Allocate digits for the indexes from `begin` up to, not including, `end`."""
        width = self._digits.shape[1]
        if not width:
            self._first, width = begin, 0
        before, after = max(0, self._first - begin), max(0, end - self._first - width)
        if before or after:
            self._digits = np.ascontiguousarray(np.pad(self._digits, ((0, 0), (before, after))))
            self._first -= before

    def _spend(self, deposits: int) -> None:
        """Record that digits will change this many times; carry first if they might overflow."""
        if self._deposits + deposits > _DEPOSITS_MAX:
            self._digits = np.ascontiguousarray(_normal(self._digits).T)
            self._deposits = 1
        self._deposits += deposits


def _check(values: Any) -> None:
    if not np.isfinite(values).all():
        raise ValueError("a value that is not finite cannot be added to an exact sum; count such values separately")


def _cut(values: Any, unit: float) -> Any:
    """Subtract from n floats their nearest multiples of a unit, and return the multiples."""
    # The last bit of a number of this size is the unit, so adding it rounds to multiples of the unit.
    large = 1.5 * 2.0**52 * unit
    parts = values + large
    parts -= large
    values -= parts
    return parts


def _blocks(count: int) -> list[slice]:
    return [slice(begin, begin + _BLOCK) for begin in range(0, count, _BLOCK)]


def _split(values: Any) -> tuple[Any, Any]:
    """Return n finite floats as signed 53-bit integers, and the positions of their lowest bits."""
    bits = values.view(np.int64)
    exponents = (bits >> 52) & 0x7FF
    mantissas = bits & ((1 << 52) - 1)
    mantissas |= (exponents != 0).astype(np.int64) << 52
    np.negative(mantissas, out=mantissas, where=bits < 0)
    np.maximum(exponents, 1, out=exponents)
    exponents += UNIT_BITS - 1075
    return mantissas, exponents


def _float_products(one: Any, other: Any) -> list[Any] | None:
    """Return n products as pairs of floats with the same exact total, or None if a float is too large or small."""
    for factor in (one,) if other is one else (one, other):
        sizes = np.abs(factor)
        if sizes.max() >= _FACTOR_MAX:
            return None
        sizes[sizes == 0] = 1
        if sizes.min() < 1 / _FACTOR_MAX:
            return None
    return list(products_of(one, other))


def products_of(one: Any, other: Any) -> tuple[Any, Any]:
    """Return n rounded products of floats and their rounding errors; both are exact without overflow or underflow.

    Source: T. J. Dekker, "A floating-point technique for extending the available precision" (1971).
    """
    high, low = _halves(one)
    by_high, by_low = (high, low) if other is one else _halves(other)
    product = one * other
    rest = high * by_high
    rest -= product
    rest += high * by_low
    rest += low * by_high
    rest += low * by_low
    return product, rest


def _halves(factors: Any) -> tuple[Any, Any]:
    """Return n floats as pairs of floats of 26 bits."""
    scaled_factors = factors * _SPLITTER
    high = scaled_factors - factors
    np.subtract(scaled_factors, high, out=high)
    return high, factors - high


def _product(one: Any, other: Any) -> list[Any]:
    """Return the products of n pairs of integers below 2**53 as four limbs of 32 bits."""
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
    """Return digits of shape (n, width) in shape (width, n), each below 2**32; the highest is signed, with 31 bits."""
    return _carry(np.array(digits.T, order="C")) if digits.shape[1] else np.zeros((1, len(digits)), np.int64)


def _carry(digits: Any) -> Any:
    """Carry within digits of shape (width, n), in place, and append higher digits if the carry needs them."""
    for index in range(len(digits) - 1):
        digits[index + 1] += digits[index] >> _DIGIT
        digits[index] &= _MASK
    while digits.shape[1] and (digits[-1].min() < -_HALF or digits[-1].max() >= _HALF):
        digits = np.concatenate([digits, digits[-1:] >> _DIGIT])
        digits[-2] &= _MASK
    return digits


def _magnitudes(normal: Any) -> tuple[Any, Any]:
    """Return normal digits without their signs, and which of the n numbers were negative."""
    negative = normal[-1] < 0
    if not negative.any():
        return normal, negative
    return _carry(normal * np.where(negative, -1, 1)), negative


def _round(normal: Any, first: int) -> tuple[Any, Any]:
    """Return the floats nearest to sums of normal digits, and which of these floats equal their sums."""
    digits, negative = _magnitudes(normal)
    top, padded_digits = _top(digits)
    rows = np.arange(len(top))
    high, middle, low = (padded_digits[top + 3 - index, rows] for index in range(3))
    length = np.frexp(high.astype(np.float64))[1].astype(np.int64)
    # The highest 64 bits, then the 63 of them that int64 holds. The last bit is 1 (sticky) if nonzero bits are cut off.
    bits = (high << _DIGIT | middle).view(np.uint64)
    bits = bits << (_DIGIT - length).view(np.uint64) | (low >> length).view(np.uint64)
    rest = ((low & ((1 << length) - 1)) != 0) | ((padded_digits != 0).argmax(axis=0) <= top)
    rest &= high != 0
    whole = (bits >> np.uint64(1)).view(np.int64)
    rest |= (bits & np.uint64(1)) != 0
    mantissas = (whole | rest).astype(np.float64)
    exponents = _DIGIT * (first + top) - UNIT_BITS + length - 63
    with np.errstate(over="ignore"):
        rounded_sums = np.ldexp(mantissas, exponents)
    exact = ~rest & (mantissas.astype(np.uint64) == whole.view(np.uint64)) & np.isfinite(rounded_sums)
    # Subnormal floats have fewer bits and would be rounded twice.
    for row in np.flatnonzero((rounded_sums <= _SMALLEST_NORMAL) & (high != 0)).tolist():
        units = sum(digit << (_DIGIT * (first + index)) for index, digit in enumerate(digits[:, row].tolist()))
        rounded_sums[row] = ratio(units, _ONE)
        exact[row] = _units(float(rounded_sums[row])) == units
    return np.where(negative & (high != 0), -rounded_sums, rounded_sums), exact


def _states(normal: Any, first: int) -> pa.Array:
    """Return sums of normal digits as states."""
    rounded_sums, exact = _round(normal, first)
    digits = _binary(normal[:, ~exact], np.flatnonzero(~exact), len(exact), first)
    return pa.StructArray.from_arrays([pa.array(rounded_sums), digits], fields=list(EXACT))


def _top(digits: Any) -> tuple[Any, Any]:
    """Return the index of the highest nonzero digit of each of n numbers, and the digits above three zero digits."""
    top = len(digits) - 1 - (digits[::-1] != 0).argmax(axis=0)
    return top, np.concatenate([np.zeros((3, digits.shape[1]), np.int64), digits])


def _read(data: pa.Buffer | None, offsets: Any) -> tuple[Any, int]:
    """Return the digits of n states, shape (n, width), and the index of the first. Empty `digits` are read as zeros.

    Raises:
        ValueError: The digits are malformed.
    """
    sizes = offsets[1:] - offsets[:-1]
    rows = np.flatnonzero(sizes)
    if data is None or not len(rows):
        return np.zeros((len(sizes), 0), np.int64), 0
    digit_bytes = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    if (sizes % 4).any() or (sizes == 4).any():
        raise ValueError("the digits of an exact sum are not a sequence of four-byte words")
    words = digit_bytes.view("<i4").astype(np.int64)
    counts, begins = sizes[rows] // 4 - 1, (offsets[rows] - offsets[0]) // 4
    indexes = words[begins]
    if (indexes < 0).any() or (indexes + counts > _DIGITS_MAX).any():
        raise ValueError("the digits of an exact sum are outside the range of exact sums")
    is_digit = np.ones(len(words), np.bool_)
    is_digit[begins] = False
    # The last word of a number holds its sign.
    lasts = begins + counts
    last_words = words[lasts]
    words &= _MASK
    words[lasts] = last_words
    first = int(indexes.min())
    digits = np.zeros((len(sizes), int((indexes + counts).max()) - first), np.int64)
    steps = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    digits[np.repeat(rows, counts), np.repeat(indexes - first, counts) + steps] = words[is_digit]
    return digits, first


def _binary(digits: Any, rows: Any, count: int, first: int) -> pa.Array:
    """Return `digits` of `count` states: at `rows` from normal digits of shape (width, m), elsewhere empty."""
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
    indexes = np.arange(width)[:, None]
    word_values = np.empty(int(offsets[-1]), np.int64)
    is_word = np.ones(len(word_values), np.bool_)
    is_word[offsets[rows]] = False
    word_values[offsets[rows]] = first + begins
    word_values[is_word] = words.T[((indexes >= begins) & (indexes <= ends)).T]
    data = word_values.astype("<u4")
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer((4 * offsets).astype(np.int32)), pa.py_buffer(data)]
    )
