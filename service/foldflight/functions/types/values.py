"""Conversion between Arrow arrays and the Python values of an author's methods.

Arguments become plain Python values, and NULL becomes `None`. Results are cast to the declared type as by Spark's CAST
in ANSI mode (its default since 4.0): fractions are truncated toward zero, decimals are rounded half up, and a value
that does not fit raises an error. It is never wrapped and never replaced by NULL.
"""

from __future__ import annotations

import decimal
import gc
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import chain, islice, pairwise, repeat
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.functions.types.arrow import NESTS_QUICKLY, in_microseconds, is_json, is_nested, to_pylist
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.vectors import (
    as_vectors,
    first_beyond,
    from_matrix,
    is_vector,
    vector_misfit,
    vectors_of,
)

__all__ = [
    "CastError",
    "cast_arguments",
    "cast_results",
    "dicts_in",
    "exact_types",
    "has_nanoseconds",
    "lists_in",
    "narrow_floats",
    "to_python",
]

# Arrow takes less time for fewer decimals than these. Of more, so many are compared with each other.
_FEW: Final = 32
_SAMPLE: Final = 1000


class CastError(ValueError):
    """One value does not fit its type.

    Args:
        index: Position of the value in the array.
        code: RESULT_TYPE or OVERFLOW.
        message: What the value is and why it does not fit.
    """

    def __init__(self, index: int, code: str, message: str) -> None:
        super().__init__(message)
        self.index = index
        self.code = code

    def of_result(self, method: str) -> str:
        """Return the message for a value that a method of an author has returned, with what to do about it."""
        has_remedy = self.code == "OVERFLOW" or ";" in str(self)
        remedy = "" if has_remedy else "; return such a value, or declare the type of this one as result_type"
        return f"{method} returned {self}{remedy}"


def to_python(array: pa.Array) -> list[Any]:
    """Return the values of an array of n values as a list of n Python values; NULL is `None`.

    The values equal those of Arrow's `to_pylist`, but maps are dicts and vectors are NumPy arrays. They are made
    several times faster: NumPy and the methods of Python's types, which are written in C, make them, without a scalar
    of Arrow for each.

    Raises:
        KeyError: A map has a key twice.
        ValueError: A time, timestamp or duration has nanoseconds.
    """
    if is_json(array.type):
        return [None if text is None else json.loads(text) for text in _values(array)]
    if not is_nested(array.type) or not gc.isenabled():
        return _values(array)
    # The collector would look for garbage among the rows again and again, which takes longer than to make them.
    gc.disable()
    try:
        return _values(array)
    finally:
        gc.enable()


def _values(array: pa.Array) -> list[Any]:
    """Return the values as `to_python` does, but with JSON as text, as it is within other values."""
    convert = _conversion(array.type)
    values = None if convert is None else convert(array)
    return to_pylist(array) if values is None else values


@lru_cache(maxsize=256)
def _conversion(type_: pa.DataType) -> Callable[[pa.Array], list[Any] | None] | None:
    """Return what converts arrays of a type, or None where only Arrow does."""
    if is_json(type_):
        return lambda array: _values(array.storage)
    return next((convert for is_kind, convert in _CONVERSIONS if is_kind(type_)), None)


def _numbers(array: pa.Array) -> list[Any]:
    if array.null_count == 0:
        return array.to_numpy(zero_copy_only=False).tolist()
    values = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False).tolist()
    return _with_nulls(values, array)


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    """Return the values with `None` where the array is NULL."""
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _texts(array: pa.Array) -> list[Any] | None:
    if NESTS_QUICKLY:
        return array.to_pylist()
    try:
        return array.to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:  # Arrow's list has the error that names the byte
        return None


_FIRST, _LAST = np.datetime64("0001-01-01"), np.datetime64("9999-12-31T23:59:59.999999")


def _datetimes(array: pa.Array) -> list[Any] | None:
    """Return the values of dates or timestamps. None if one is no datetime of Python."""
    array = in_microseconds(array)
    zone = array.type.tz if pa.types.is_timestamp(array.type) else None
    instants = array.to_numpy(zero_copy_only=False)
    known_instants = instants[~np.isnat(instants)]
    if len(known_instants) < len(array) - array.null_count or (
        len(known_instants) and (known_instants.min() < _FIRST or known_instants.max() > _LAST)
    ):
        return None  # NumPy has integers for these, and Arrow an error
    if zone is None or not len(known_instants):
        return instants.tolist()
    tzinfo = array.drop_null()[0].as_py().tzinfo
    if zone == "UTC":
        # A sum of two objects costs a quarter of `replace`.
        since = array.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).fill_null(0).to_numpy().view("timedelta64[us]")
        return _with_nulls(list(map(datetime(1970, 1, 1, tzinfo=tzinfo).__add__, since.tolist())), array)
    return [None if value is None else tzinfo.fromutc(value.replace(tzinfo=tzinfo)) for value in instants.tolist()]


def _durations(array: pa.Array) -> list[Any]:
    whole = in_microseconds(array).cast(pa.duration("us"), safe=False).cast(pa.int64()).fill_null(0).to_numpy()
    return _with_nulls(whole.view("timedelta64[us]").tolist(), array)


def _times(array: pa.Array) -> list[Any]:
    array = in_microseconds(array)
    unit = array.type.unit
    ticks = array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64()).fill_null(0).to_numpy()
    instants = ticks.astype(np.int64).view(f"datetime64[{unit}]").astype("datetime64[us]")
    return _with_nulls(list(map(datetime.time, instants.tolist())), array)


def _decimals(array: pa.Array) -> list[Any]:
    """Return the values of decimals. Equal ones are one object where a sample has enough of them to save time."""
    if len(array) < _FEW:
        return array.to_pylist()
    if array.type.byte_width < 16:  # Arrow does not look for equal ones of these
        return _with_nulls(_different_decimals(array), array)
    sample = array[:: len(array) // _SAMPLE + 1].drop_null()
    if len(array) * 2 * (len(sample) - len(sample.unique())) < len(sample) ** 2:
        return _with_nulls(_different_decimals(array), array)
    codes = array.dictionary_encode()
    objects = np.array([*_different_decimals(codes.dictionary), None], object)
    values: list[Any] = objects[codes.indices.fill_null(len(objects) - 1).to_numpy()].tolist()
    return values


def _different_decimals(array: pa.Array) -> list[Any]:
    """Return the values of decimals, and any ones for NULLs: their integers, multiplied by a power of ten."""
    width = array.type.byte_width
    words = np.frombuffer(array.buffers()[1] or b"", f"<i{min(width, 8)}").reshape(-1, max(width // 8, 1))
    words = words[array.offset : array.offset + len(array)]
    unit = decimal.Decimal((0, (1,), -array.type.scale))
    with decimal.localcontext(_WIDE):
        # The integers of a few rows at a time stay in the processor's cache.
        starts = range(0, len(words), _SAMPLE)
        return [unit * integer for start in starts for integer in _integers(words[start : start + _SAMPLE])]


def _integers(words: npt.NDArray[np.signedinteger[Any]]) -> list[int]:
    """Return n integers of m words each, the lowest word first."""
    if (words[:, 1:] == words[:, :1] >> 63).all():
        return words[:, 0].tolist()
    integers = words[:, -1].tolist()
    for lower in words[:, -2::-1].T.astype(np.uint64):
        integers = [high << 64 | low for high, low in zip(integers, lower.tolist(), strict=True)]
    return integers


def _is_quick(*types: pa.DataType) -> bool:
    """Return whether Arrow is quick to convert what has these types inside."""
    kinds = pa.types
    return NESTS_QUICKLY and all(
        (kinds.is_primitive(type_) and not kinds.is_temporal(type_)) or type_ in (pa.string(), pa.binary())
        for type_ in types
    )


def _structs(array: pa.Array) -> list[Any] | None:
    names = tuple(field.name for field in array.type)
    if _is_quick(*(field.type for field in array.type)):
        return array.to_pylist()
    if len(set(names)) < len(names) or not names:
        return None  # Arrow raises an error for a name that is there twice
    fields = array.flatten() if array.null_count else map(array.field, range(len(names)))
    return _with_nulls(_dicts_with(names)(*map(_values, fields)), array)


@lru_cache(maxsize=256)
def _dicts_with(names: tuple[str, ...]) -> Callable[..., list[Any]]:
    """Return what makes dicts of these keys from one list of values for each key."""
    variables = [f"_{index}" for index in range(len(names))]
    entries = ", ".join(f"{name!r}: {variable}" for name, variable in zip(names, variables, strict=True))
    source = f"lambda *lists: [{{{entries}}} for {', '.join(variables)}, in zip(*lists)]"
    make_dicts: Callable[..., list[Any]] = eval(source)  # noqa: S307 - only names, written by repr
    return make_dicts


def _lists(array: pa.Array) -> list[Any]:
    return array.to_pylist() if _is_quick(array.type.value_type) else lists_in(array, _values)


def _maps(array: pa.Array) -> list[Any] | None:
    try:
        values = dicts_in(array, _values, _values)
    except TypeError:  # a key that has no hash
        return None
    offsets = array.offsets.to_numpy()
    # Arrow raises an error for a key that is there twice.
    return values if sum(map(len, filter(None, values))) == offsets[-1] - offsets[0] else None


def lists_in(array: pa.Array, convert: Callable[[pa.Array], list[Any]]) -> list[Any]:
    """Return n lists, whose items are converted all at once; None for NULL."""
    offsets = array.offsets.to_numpy()
    values = convert(array.values[offsets[0] : offsets[-1]])
    return _with_nulls([values[start:end] for start, end in pairwise((offsets - offsets[0]).tolist())], array)


def dicts_in(
    array: pa.Array, keys_of: Callable[[pa.Array], list[Any]], items_of: Callable[[pa.Array], list[Any]]
) -> list[Any]:
    """Return n maps as dicts, whose keys and items are converted all at once; None for NULL. The last of a key wins."""
    offsets = array.offsets.to_numpy()
    some = slice(offsets[0], offsets[-1])
    entries = zip(keys_of(array.keys[some]), items_of(array.items[some]), strict=True)
    return _with_nulls(list(map(dict, map(islice, repeat(entries), np.diff(offsets).tolist()))), array)


_CONVERSIONS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any] | None]], ...]] = (
    (lambda type_: pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_), _numbers),
    (lambda type_: type_ in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()), _texts),
    (lambda type_: pa.types.is_timestamp(type_) or pa.types.is_date32(type_), _datetimes),
    (pa.types.is_decimal, _decimals),
    (pa.types.is_duration, _durations),
    (pa.types.is_time, _times),
    (pa.types.is_struct, _structs),
    (pa.types.is_list, _lists),
    (pa.types.is_map, _maps),
    (is_vector, vectors_of),
)


_EXACT: Final = tuple(
    (is_kind, frozenset({python, type(None)}))
    for is_kind, python in (
        (pa.types.is_integer, int),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_string, str),
        (pa.types.is_binary, bytes),
        (pa.types.is_decimal, decimal.Decimal),
        (pa.types.is_date, date),
        (pa.types.is_timestamp, datetime),
        (pa.types.is_time, time),
        (pa.types.is_duration, timedelta),
    )
)


def exact_types(type_: pa.DataType) -> frozenset[type] | None:
    """Return the Python types whose values Arrow stores in `type_` unchanged, or None if Arrow's own checks suffice."""
    for is_kind, exact in _EXACT:
        if is_kind(type_):
            return exact
    return None


def cast_results(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return n results as an array of n values of `type_`, cast as Spark's CAST does.

    Raises:
        CastError: The first value that does not fit, with its index and the code RESULT_TYPE or OVERFLOW.
    """
    if is_vector(type_):
        return _cast_vectors(values, type_)
    exact = exact_types(type_)
    kinds = set(map(type, values))
    if any(kind.__name__ in _MISSING for kind in kinds):
        values = [None if _is_missing(value) else value for value in values]
    if exact is not None and kinds <= exact and not _needs_care(type_, values):
        try:
            if kinds == {int} and type_ == pa.int64():
                return pa.array(np.fromiter(values, np.int64, len(values)))  # takes a third of Arrow's time
            if pa.types.is_decimal(type_):
                unit = decimal.Decimal(1).scaleb(-type_.scale)
                values = [None if value is None else value.quantize(unit, context=_WIDE) for value in values]
            return pa.array(values, type_)
        except (pa.ArrowException, OverflowError, ValueError, TypeError, decimal.InvalidOperation):
            pass  # The loop below finds the value that does not fit.
    if kinds <= _FLOATS and type_ == pa.float32():
        narrow = narrow_floats(pa.array(values, pa.float64()), type_)
        if narrow is not None:
            return narrow
    if kinds <= _FLOATS and pa.types.is_signed_integer(type_):
        whole = _whole(values, type_)
        if whole is not None:
            return whole
    nested_array = _nested_by_columns(values, kinds, type_)
    if nested_array is not None:
        return nested_array
    cast = _caster(type_)
    cast_values = []
    for index, value in enumerate(values):
        try:
            cast_values.append(None if value is None else cast(_plain(value)))
        except OverflowError as error:
            raise CastError(index, "OVERFLOW", str(error)) from None
        except (ValueError, TypeError) as error:
            raise CastError(index, "RESULT_TYPE", str(error)) from None
    return _build(cast_values, type_)


def _cast_vectors(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return n vectors or None as an array. Raises CastError as `cast_results` does."""
    item = type_.value_type.to_pandas_dtype()
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    present = [value for value in values if value is not None] if missing.any() else values
    indexes = np.flatnonzero(~missing)
    for index, value in zip(indexes.tolist(), present, strict=True):
        if (reason := vector_misfit(value, type_)) is not None:
            raise CastError(index, "RESULT_TYPE", f"{_misfit(value, type_)}: {reason}")
    matrix = np.zeros((len(values), type_.list_size), item)
    if present:
        with np.errstate(over="ignore"):
            wide = np.asarray(present) if len({getattr(each, "dtype", None) for each in present}) == 1 else None
            if wide is None or wide.dtype.kind not in "fiu":
                wide = np.asarray([np.asarray(each, np.float64) for each in present])
            matrix[~missing] = wide
        beyond = first_beyond(wide, matrix[~missing])
        if beyond is not None:
            raise CastError(int(indexes[beyond]), "OVERFLOW", _too_large_item(present[beyond], type_))
    return from_matrix(matrix, type_, missing)


def _too_large_item(value: Any, type_: pa.DataType) -> str:
    beyond = f"an item is outside the range of {sql_name(type_.value_type)}"
    return f"{_misfit(value, type_)}: {beyond}; declare VECTOR({type_.list_size}, DOUBLE)"


def narrow_floats(floats: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Return floats as floats of another width; None if a finite one would become infinite."""
    cast = floats.cast(type_)
    if type_.bit_width < floats.type.bit_width:
        infinite, before = (pc.is_inf(each.cast(pa.float64())) for each in (cast, floats))
        if pc.any(pc.and_not(infinite, before)).as_py():
            return None
    return cast


def _whole(values: Sequence[Any], type_: pa.DataType) -> pa.Array | None:
    """Return floats and None as integers of a signed type, without their fractions; None if one does not fit."""
    floats = pa.array(values, pa.float64())
    numbers = np.trunc(floats.fill_null(0.0).to_numpy())
    end = float(1 << (type_.bit_width - 1))
    if not ((numbers >= -end) & (numbers < end)).all():
        return None
    missing = floats.is_null().to_numpy(zero_copy_only=False) if floats.null_count else None
    return pa.array(numbers.astype(type_.to_pandas_dtype()), type_, mask=missing)


def _needs_care(type_: pa.DataType, values: Sequence[Any]) -> bool:
    # Arrow assumes a zone for naive timestamps, drops the zone of times, and makes large numbers infinite.
    kinds = pa.types
    if kinds.is_floating(type_):
        return bool(type_.bit_width < 64)
    if kinds.is_time(type_):
        return any(value is not None and value.tzinfo is not None for value in values)
    if kinds.is_timestamp(type_) and type_.tz:
        return type_.unit == "ns" or any(value is not None and value.tzinfo is None for value in values)
    return False


def _nested_by_columns(values: Sequence[Any], classes: set[type], type_: pa.DataType) -> pa.Array | None:
    """Return lists, structs or maps as an array, whose columns are cast at once.

    None if a value needs a look by itself: it has another form, or one of its members does not fit.
    """
    kinds = pa.types
    rows = classes - {type(None)}
    if not rows:
        return None
    try:
        if kinds.is_list(type_) and rows <= {list, tuple}:
            items = cast_results([*chain.from_iterable(filter(None, values))], type_.value_type)
            return pa.ListArray.from_arrays(_offsets(values), items, type_)
        if kinds.is_map(type_) and rows <= {dict}:
            present = [*filter(None, values)]
            keys = cast_results([*chain.from_iterable(present)], type_.key_type)
            items = cast_results([*chain.from_iterable(map(dict.values, present))], type_.item_type)
            return None if keys.null_count else pa.MapArray.from_arrays(_offsets(values), keys, items, type_)
        if kinds.is_struct(type_) and rows <= {dict}:
            names = {field.name for field in type_}
            if len(names) == len(type_) and all(names.issuperset(value) for value in values if value is not None):
                # Members of a row that is NULL are not: Spark casts to members that cannot be NULL, as a VARIANT has.
                placeholder: dict[str, Any] = next(filter(None, values), {})
                member_columns = [
                    [(placeholder if row is None else row).get(field.name) for row in values] for field in type_
                ]
                columns = [
                    cast_results(column, field.type) for column, field in zip(member_columns, type_, strict=True)
                ]
                mask = pa.array([value is None for value in values], pa.bool_())
                return pa.StructArray.from_arrays(columns, fields=list(type_), mask=mask)
    except CastError:
        pass  # The loop finds the row.
    return None


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Return the offsets of n lists or dicts among their n + 1 ends; NULL where one is None."""
    sizes = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    ends = np.concatenate(([0], np.cumsum(sizes)))
    mask = np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.array(ends, pa.int32(), mask=np.append(mask, False))


def _build(values: list[Any], type_: pa.DataType) -> pa.Array:
    storage_type = _with_json_as_text(type_)
    if storage_type != type_:
        return _build(values, storage_type).cast(type_)
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        pass
    for index, value in enumerate(values):
        try:
            pa.array([value], type_)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            # Casters have checked ranges already, so Arrow refuses only values of a wrong kind.
            raise CastError(index, "RESULT_TYPE", _misfit(value, type_)) from None
    raise CastError(0, "RESULT_TYPE", f"the values do not fit {sql_name(type_)} together")


def _with_json_as_text(type_: pa.DataType) -> pa.DataType:
    """Return the type with text in place of JSON, because Arrow cannot build JSON inside nested values."""
    kinds = pa.types
    if is_json(type_):
        return type_.storage_type
    if kinds.is_list(type_):
        return pa.list_(type_.value_field.with_type(_with_json_as_text(type_.value_type)))
    if kinds.is_map(type_):
        return pa.map_(type_.key_type, type_.item_field.with_type(_with_json_as_text(type_.item_type)))
    if kinds.is_struct(type_):
        return pa.struct([field.with_type(_with_json_as_text(field.type)) for field in type_])
    return type_


# pandas' `NaT` and `NA`. The first is a datetime, and would become the date 0001-01-01.
_MISSING: Final = frozenset({"NaTType", "NAType"})
_FLOATS: Final = frozenset({float, type(None)})


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in _MISSING


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as Python's. One with nanoseconds stays as it is: NumPy would make a number of it."""
    if not isinstance(value, np.generic):
        return value
    if isinstance(value, (np.datetime64, np.timedelta64)) and np.datetime_data(value.dtype)[0] in _FINE:
        return value if has_nanoseconds(value) else _in_microseconds(value).item()
    return value.item()


def _in_microseconds(value: np.datetime64 | np.timedelta64) -> Any:
    return value.astype("M8[us]" if isinstance(value, np.datetime64) else "m8[us]")


def _misfit(value: Any, type_: pa.DataType) -> str:
    try:
        text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    except Exception as error:  # noqa: BLE001 - the author's __repr__ may raise anything
        text = f"<a value whose repr fails: {type(error).__name__}>"
    if len(text) > 200:
        text = text[:200] + "..."
    return f"{text} ({type(value).__name__}), which does not fit {sql_name(type_)}"


def _is_infinite(value: Any) -> bool:
    # A large Decimal is infinite as a float.
    return value.is_infinite() if isinstance(value, decimal.Decimal) else isinstance(value, float) and math.isinf(value)


def _too_large(value: Any, type_: pa.DataType) -> str:
    """Return the message for a number outside the range of a type, with the remedy."""
    if _is_infinite(value) or value != value:  # noqa: PLR0124 - NaN
        return f"{_misfit(value, type_)}; declare DOUBLE, or return None where there is no number"
    wider = {32: "BIGINT or DECIMAL(38, 0)", 64: "DECIMAL(38, 0) or DOUBLE"}
    remedy = "DOUBLE" if pa.types.is_floating(type_) else wider.get(type_.bit_width, "INT or BIGINT")
    if pa.types.is_float64(type_):
        remedy = "a DECIMAL or STRING"
    return f"{_misfit(value, type_)}; declare {remedy}"


def _caster(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return the cast of one value other than None. The cast raises OverflowError, ValueError or TypeError."""
    if pa.types.is_integer(type_):
        return _integer_caster(type_)
    cast = next((cast for is_kind, cast in _CASTS if is_kind(type_)), None)
    return _nested_caster(type_) if cast is None else lambda value: cast(value, type_)


# The numbers that Spark parses: no underscores, only ASCII digits, and no fraction in an integer.
_WHOLE: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[+-]?(inf|infinity)|nan", re.IGNORECASE)
_INTEGER_DIGITS_MAX: Final = 20
_WHOLE_CHARACTERS_MAX: Final = 1000


def _integer_caster(type_: pa.DataType) -> Callable[[Any], Any]:
    bits = type_.bit_width
    is_signed = pa.types.is_signed_integer(type_)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)

    def cast(value: Any) -> int:
        if isinstance(value, str):
            if not _WHOLE.fullmatch(value.strip()):
                raise ValueError(_misfit(value, type_))
            number = int(value) if len(value) < _WHOLE_CHARACTERS_MAX else high + 1
        elif isinstance(value, (int, float, decimal.Decimal)):
            # The exponent of a Decimal may stand for more digits than fit into memory, so it is checked first.
            if isinstance(value, decimal.Decimal):
                fits = value.is_finite() and value.adjusted() < _INTEGER_DIGITS_MAX
            else:
                fits = not isinstance(value, float) or math.isfinite(value)
            number = int(value) if fits else high + 1
        else:
            raise TypeError(_misfit(value, type_))
        if not low <= number <= high:
            raise OverflowError(_too_large(value, type_))
        return number

    return cast


# By the width of a float: the largest number that is rounded to a finite one.
_LARGEST: Final = {16: 65519.99, 32: 3.4028235677973362e38, 64: sys.float_info.max}


def _to_float(value: Any, type_: pa.DataType) -> float:
    text = value.strip() if isinstance(value, str) else ""
    if not isinstance(value, (int, float, decimal.Decimal, str)):
        raise TypeError(_misfit(value, type_))
    if isinstance(value, str) and not (_NUMBER.fullmatch(text) or _NOT_FINITE.fullmatch(text)):
        raise ValueError(_misfit(value, type_))
    try:
        number = float(value)
    except OverflowError:
        raise OverflowError(_too_large(value, type_)) from None
    if abs(number) <= _LARGEST[type_.bit_width] or math.isnan(number):
        return number
    if _NOT_FINITE.fullmatch(text) if text else _is_infinite(value):
        return number
    raise OverflowError(_too_large(value, type_))


# Decimals with larger exponents are not written in full: the text would consist almost only of zeros.
_DECIMAL_DIGITS_MAX: Final = 1000
_DIGITS_MAX: Final = 38
_WIDE: Final = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)


def _to_decimal(value: Any, type_: pa.DataType) -> decimal.Decimal:
    if isinstance(value, float):
        # As Spark does: the shortest text that represents the float, not its binary expansion.
        number = decimal.Decimal(repr(value))
    elif isinstance(value, (int, decimal.Decimal)):
        number = decimal.Decimal(value)
    elif isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        number = decimal.Decimal(value.strip())
    else:
        raise TypeError(_misfit(value, type_))
    if not number.is_finite():
        raise OverflowError(_misfit(value, type_))
    whole_digits = type_.precision - type_.scale
    # `quantize` fails far outside the type's range. Rounding can add a digit, so the range is checked again.
    if number.adjusted() <= whole_digits:
        number = number.quantize(decimal.Decimal(1).scaleb(-type_.scale), context=_WIDE)
    if number and number.adjusted() >= whole_digits:
        raise OverflowError(_misfit(value, type_))
    return number


def _to_bool(value: Any, type_: pa.DataType) -> bool:
    if isinstance(value, (bool, int, float, decimal.Decimal)):
        return bool(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("true", "t", "yes", "y", "1"):
            return True
        if text in ("false", "f", "no", "n", "0"):
            return False
        raise ValueError(_misfit(value, type_))
    raise TypeError(_misfit(value, type_))


def _to_text(value: Any, type_: pa.DataType) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, decimal.Decimal) and value.is_finite() and abs(value.adjusted()) < _DECIMAL_DIGITS_MAX:
        return format(value, "f")
    if isinstance(value, datetime):
        return _short_fraction(value.isoformat(sep=" "))
    if isinstance(value, (date, time)):
        return _short_fraction(value.isoformat())
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise ValueError(_misfit(value, type_)) from None
    raise TypeError(_misfit(value, type_))


def _float_text(value: float) -> str:
    """Return a DOUBLE in Spark's notation: `1.0E10`, `NaN`, `Infinity`."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{int(exponent) + len(rest)}"


def _short_fraction(text: str) -> str:
    # Spark omits trailing zeros of fractional seconds.
    return re.sub(r"(\.[0-9]*?)0+(?=$|[+-])", r"\1", text)


def _to_bytes(value: Any, type_: pa.DataType) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(_misfit(value, type_)) from None
    raise TypeError(_misfit(value, type_))


def _to_time(value: Any, type_: pa.DataType) -> time:
    # A time without a date cannot be converted to another zone, so its zone would be lost.
    if not isinstance(value, time) or value.tzinfo is not None:
        raise TypeError(_misfit(value, type_))
    return value


def has_nanoseconds(value: Any) -> bool:
    """Return whether a value is or has a time of pandas or NumPy with nanoseconds, which Arrow would cut off."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return not np.isnat(value) and bool(_in_microseconds(value) != value)
    if isinstance(value, (list, tuple, dict)):
        return any(map(has_nanoseconds, value.values() if isinstance(value, dict) else value))
    return bool(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0))


def _to_timestamp(value: Any, type_: pa.DataType) -> datetime:
    if has_nanoseconds(value):
        raise ValueError(f"{_misfit(value, type_)}: it has nanoseconds; round it to microseconds")
    if isinstance(value, datetime):
        # If only one side has a zone, UTC is assumed: it leaves the digits unchanged.
        instant = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        if type_.unit == "ns":  # all of Python's datetimes fit the other units
            _check_ticks(instant - _EPOCH, value, type_)
        if type_.tz:
            return instant
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, date):
        return _to_timestamp(datetime(value.year, value.month, value.day, tzinfo=UTC if type_.tz else None), type_)
    if isinstance(value, str):
        try:
            return _to_timestamp(datetime.fromisoformat(value.strip()), type_)
        except ValueError:
            raise ValueError(_misfit(value, type_)) from None
    raise TypeError(_misfit(value, type_))


def _to_duration(value: Any, type_: pa.DataType) -> timedelta:
    if has_nanoseconds(value):
        raise ValueError(f"{_misfit(value, type_)}: it has nanoseconds; round it to microseconds")
    if not isinstance(value, timedelta):
        raise TypeError(_misfit(value, type_))
    _check_ticks(value, value, type_)
    return value


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FINE: Final = ("ns", "ps", "fs", "as")  # the units of which NumPy makes numbers
_NANOSECONDS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


def _check_ticks(span: timedelta, value: Any, type_: pa.DataType) -> None:
    """Raise OverflowError if a duration in the type's unit does not fit 64 bits."""
    ticks = span // timedelta(microseconds=1) * 1000 // _NANOSECONDS[type_.unit]
    if not -(1 << 63) <= ticks < 1 << 63:
        raise OverflowError(_misfit(value, type_))


def _to_interval(value: Any, type_: pa.DataType) -> Any:
    """Return months, days and nanoseconds, checked for 32, 32 and 64 bits. Other values are left to Arrow."""
    if isinstance(value, tuple) and all(type(part) is int for part in value):
        for part, bits in zip(value, (32, 32, 64), strict=False):
            if not -(1 << (bits - 1)) <= part < 1 << (bits - 1):
                raise OverflowError(_misfit(value, type_))
    return value


def _to_date(value: Any, type_: pa.DataType) -> date:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        try:
            return date.fromisoformat(value.strip())
        except ValueError:
            raise ValueError(_misfit(value, type_)) from None
    raise TypeError(_misfit(value, type_))


def _to_json(value: Any, type_: pa.DataType) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise TypeError(_misfit(value, type_)) from None


_CASTS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[..., Any]], ...]] = (
    (pa.types.is_floating, _to_float),
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_boolean, _to_bool),
    (pa.types.is_string, _to_text),
    (pa.types.is_large_string, _to_text),
    (pa.types.is_binary, _to_bytes),
    (pa.types.is_large_binary, _to_bytes),
    (pa.types.is_time, _to_time),
    (pa.types.is_timestamp, _to_timestamp),
    (pa.types.is_date, _to_date),
    (is_json, _to_json),
    (pa.types.is_duration, _to_duration),
    (pa.types.is_interval, _to_interval),
)


def _nested_caster(type_: pa.DataType) -> Callable[[Any], Any]:
    """Return the cast of a list, a map, a struct, or another type that Arrow checks."""
    kinds = pa.types
    if is_vector(type_):
        return lambda value: _vector_item(value, type_)
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return _array_caster(type_)
    if kinds.is_map(type_):
        return _map_caster(type_)
    if kinds.is_struct(type_):
        return _struct_caster(type_)
    return lambda value: value


def _array_caster(type_: pa.DataType) -> Callable[[Any], Any]:
    item = _optional(_caster(type_.value_type))

    def cast(value: Any) -> list[Any]:
        items = _iterable(value, type_)
        try:
            return [item(each) for each in items]
        except (OverflowError, ValueError, TypeError) as error:
            raise _error_within("an ARRAY with the item", error) from None

    return cast


def _map_caster(type_: pa.DataType) -> Callable[[Any], Any]:
    key, entry = _caster(type_.key_type), _optional(_caster(type_.item_type))

    def cast(value: Any) -> list[tuple[Any, Any]]:
        entries = _pairs(value, type_)
        pairs = []
        place = "key"
        try:
            for k, v in entries:
                place = "key"
                if k is None:
                    raise TypeError("None, and keys cannot be NULL; leave it out, or use another key")
                cast_key = key(_plain(k))
                place = "value"
                pairs.append((cast_key, entry(v)))
        except (OverflowError, ValueError, TypeError) as error:
            raise _error_within(f"a MAP with the {place}", error) from None
        return pairs

    return cast


def _struct_caster(type_: pa.DataType) -> Callable[[Any], Any]:
    fields = [(field.name, _optional(_caster(field.type))) for field in type_]

    def cast(value: Any) -> dict[str, Any]:
        members = _members(value, type_)
        cast_members = {}
        name = ""
        try:
            for (name, cast_member), each in zip(fields, members, strict=True):
                cast_members[name] = cast_member(each)
        except (OverflowError, ValueError, TypeError) as error:
            raise _error_within(f"a STRUCT whose {name} is", error) from None
        return cast_members

    return cast


def _error_within(place: str, error: Exception) -> OverflowError | TypeError:
    """Return the error for a part of a nested value, with the place of the part in front."""
    return (OverflowError if isinstance(error, OverflowError) else TypeError)(f"{place} {error}")


def _vector_item(value: Any, type_: pa.DataType) -> Any:
    try:
        return _cast_vectors([value], type_)[0].as_py()
    except CastError as error:
        raise (OverflowError if error.code == "OVERFLOW" else TypeError)(str(error)) from None


def _optional(cast: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if _is_missing(value) else cast(_plain(value))


def _iterable(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return value
    raise TypeError(_misfit(value, type_))


def _pairs(value: Any, type_: pa.DataType) -> Any:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        return value
    raise TypeError(_misfit(value, type_))


def _members(value: Any, type_: pa.DataType) -> list[Any]:
    names = [field.name for field in type_]
    if isinstance(value, dict):
        if value.keys() - set(names):
            raise TypeError(_misfit(value, type_))
        return [value.get(name) for name in names]
    if isinstance(value, (tuple, list)):
        if len(value) != len(names):
            raise TypeError(_misfit(value, type_))
        return list(value)
    if all(hasattr(value, name) for name in names):
        return [getattr(value, name) for name in names]
    raise TypeError(_misfit(value, type_))


def cast_arguments(array: pa.Array, type_: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Return an argument column of n values in the declared type. `can_widen` must hold for the types.

    Returns:
        The values, and which of them do not fit a DECIMAL or VECTOR and are NULL; bool, shape (n,), or None if all do.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if another declared type cannot hold a value (nanoseconds, distant years).
    """
    if is_vector(type_):  # also of the same type, because Arrow does not refuse NULL items
        return as_vectors(array, type_)
    if array.type == type_:
        return array, None
    if is_json(type_):
        return pa.ExtensionArray.from_storage(type_, array.cast(type_.storage_type)), None
    if pa.types.is_decimal128(type_) and not pa.types.is_null(array.type):
        return as_decimals(array, type_)
    # Integers beyond 2**53 are rounded when cast to DOUBLE, as in SQL.
    rounds = pa.types.is_integer(array.type) and pa.types.is_floating(type_)
    try:
        return pc.cast(array, type_, safe=not rounds), None
    except pa.ArrowException as error:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"a column of {array.type} has a value that {sql_name(type_)} cannot hold: {error}"
        ) from None


def as_decimals(array: pa.Array, type_: pa.Decimal128Type) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Return integers or decimals as decimals of another type, NULL where they do not fit, and where that is."""
    decimals = pc.cast(array, pa.decimal128(20, 0)) if pa.types.is_integer(array.type) else array
    scale = max(decimals.type.scale, type_.scale)
    if decimals.type.precision - decimals.type.scale + scale > _DIGITS_MAX:  # Arrow may wrap around without an error
        decimals = pc.cast(decimals, pa.decimal256(2 * _DIGITS_MAX, scale))
    try:
        return pc.cast(decimals, type_), None
    except pa.ArrowInvalid:
        wide = pc.cast(decimals, pa.decimal256(2 * _DIGITS_MAX, scale))
    most = pa.scalar(decimal.Decimal((0, (9,) * type_.precision, -type_.scale)), wide.type)
    fits = pc.and_(pc.less_equal(pc.abs(wide), most), pc.equal(pc.round(wide, type_.scale), wide))
    misfits = pc.invert(fits).fill_null(False).to_numpy(zero_copy_only=False)
    return pc.cast(pc.if_else(fits, wide, pa.scalar(None, wide.type)), type_), misfits
