"""Arguments as Python values, and results cast as by Spark's CAST."""

import datetime
import decimal
import gc
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import RejectedError
from foldflight.functions.types.arrow import JSON, in_microseconds, to_pylist
from foldflight.functions.types.serializer import serializer_of_type
from foldflight.functions.types.sql import parse_type
from foldflight.functions.types.values import CastError, cast_arguments, cast_results, to_python
from tests.effort import examples

D = decimal.Decimal
EXACT = decimal.Context(prec=100)
needs_json = pytest.mark.skipif(JSON is None, reason="Arrow has JSON since 19")


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("BIGINT", [1, None, -(2**63)]),
        ("BOOLEAN", [True, None, False]),
        ("STRING", ["a", None]),
        ("DECIMAL(5, 2)", [D("1.50"), None]),
        ("ARRAY<INT>", [[1, None], None]),
        ("MAP<STRING, INT>", [{"a": 1}, None]),
        ("DATE", [datetime.date(2013, 1, 1), None]),
        ("TIMESTAMPTZ", [datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC), None]),
    ],
)
def test_arguments_are_plain_python_values(type_: str, values: list[Any]) -> None:
    """NULL becomes None, maps become dicts, numbers are Python's."""
    array = pa.array([list(v.items()) if isinstance(v, dict) else v for v in values], parse_type(type_))
    assert to_python(array) == values
    assert all(not isinstance(value, np.generic) for value in to_python(array))


def test_maps_within_other_values_are_dicts() -> None:
    """They are dicts at any depth."""
    type_ = pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.int64())))])
    assert to_python(pa.array([{"a": [[("x", 1)], None]}, None], type_)) == [{"a": [{"x": 1}, None]}, None]


def digits(precision: int, scale: int) -> st.SearchStrategy[D]:
    """Return all decimals of a precision and a scale: from zero to one below a power of ten."""
    return st.integers(1 - 10**precision, 10**precision - 1).map(lambda number: EXACT.scaleb(D(number), -scale))


# Each type with values that Arrow stores unchanged.
LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.decimal128(38, 38): digits(38, 38),
    pa.decimal128(38, 0): digits(38, 0) | st.sampled_from([D(2**63), D(2**63 - 1), D(-(2**63)), D(-(2**63) - 1)]),
    pa.decimal128(5, -3): digits(5, -3),
    pa.decimal256(76, 20): digits(76, 20) | st.sampled_from([D(2**64).scaleb(-20), D(-(2**127)).scaleb(-20)]),
    **({pa.decimal32(9, 4): digits(9, 4), pa.decimal64(18, 2): digits(18, 2)} if hasattr(pa, "decimal32") else {}),
    pa.date32(): st.dates(),
    pa.time32("s"): st.times().map(lambda value: value.replace(microsecond=0)),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.duration("us"): st.timedeltas(datetime.timedelta(-(10**7)), datetime.timedelta(10**7)),
}


def columns_of(type_: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[pa.DataType, list[Any]]]:
    return st.tuples(st.just(type_), st.lists(st.none() | values, max_size=6))


def within(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    type_, values = inner
    some = st.none() | values
    return [
        (pa.list_(type_), st.lists(some, max_size=3)),
        (pa.struct({"a": type_, "b": pa.int32()}), st.fixed_dictionaries({"a": some, "b": st.just(7)})),
        (pa.map_(pa.string(), type_), st.dictionaries(st.text(max_size=2), some, max_size=3)),
    ]


NESTED_ONCE = [nested_type for leaf in LEAVES.items() for nested_type in within(leaf)]
NESTED = [*LEAVES.items(), *NESTED_ONCE, *(nested_type for inner in NESTED_ONCE[::5] for nested_type in within(inner))]


@pytest.mark.slow
@examples(2000)
@given(st.sampled_from(NESTED).flatmap(lambda each: columns_of(*each)), st.integers(0, 3))
def test_values_equal_those_of_arrow_and_are_restored(column: tuple[pa.DataType, list[Any]], start: int) -> None:
    """Python values of every type equal the values of Arrow's own list, and results made of them are the same array."""
    type_, values = column
    array = cast_results(values, type_)
    array.validate(full=True)
    for part in (array, array.slice(start), array.slice(0, start), pa.concat_arrays([array] * 32)):
        python_values = to_python(part)
        expected = to_pylist(part)
        assert python_values == expected
        texts = [
            repr(each).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
            for each in (python_values, expected)
        ]
        assert texts[0] == texts[1]
        assert cast_results(python_values, type_).equals(part)


DECIMALS = [type_ for type_ in LEAVES if pa.types.is_decimal(type_)]


@given(
    st.sampled_from(DECIMALS).flatmap(lambda each: st.tuples(st.just(each), st.lists(LEAVES[each], min_size=32))),
    st.integers(1, 3),
)
def test_many_decimals_equal_those_of_arrow(column: tuple[pa.DataType, list[Any]], times: int) -> None:
    """With their signs and exponents, whether they are all different or not, beside NULLs and in a slice."""
    type_, values = column
    array = pa.array([None, *values * times, None, *values], type_)[1:]
    assert repr(to_python(array)) == repr(array.to_pylist())


def test_the_collector_runs_as_before() -> None:
    """It rests while rows are made, also if that fails, and stays off for those who have switched it off."""
    rows = pa.array([[1], None], pa.list_(pa.int64()))
    twice = pa.MapArray.from_arrays([0, 2], pa.array(["a", "a"]), pa.array([1, 2]))
    for switch, is_on in ((gc.disable, False), (gc.enable, True)):
        switch()
        to_python(rows)
        assert gc.isenabled() == is_on
        with pytest.raises(KeyError):
            to_python(twice)
        assert gc.isenabled() == is_on


def test_a_map_with_a_key_twice_is_an_error() -> None:
    """Arrow's error, also where maps become dicts without it."""
    array = pa.MapArray.from_arrays([0, 2], pa.array(["a", "a"]), pa.array([1, 2]))
    with pytest.raises(KeyError, match="a"):
        to_python(array)


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("ARRAY<INT>", [[1, "2"], (3, None), {4}, np.array([5]), None]),
        ("ARRAY<DATE>", [[pd.NaT], [datetime.date(2013, 1, 1)]]),
        ("MAP<STRING, DECIMAL(5, 1)>", [{1: 0.25}, [("b", D("1.25"))], {}, None]),
        ("STRUCT<a INT, b TIME>", [{"b": None}, (1, datetime.time(1)), {"a": True}, None]),
    ],
)
def test_rows_of_other_forms_are_cast_alike(type_: str, values: list[Any]) -> None:
    """A nested row is cast as it would be alone, also beside rows that need no look by themselves."""
    type_of = parse_type(type_)
    assert cast_results(values, type_of).equals(pa.concat_arrays([cast_results([each], type_of) for each in values]))


def test_members_of_a_null_row_are_not_cast() -> None:
    """Spark casts a VARIANT, whose members cannot be NULL, from the array of a result."""
    array = cast_results([None, {"a": 1}, None], pa.struct({"a": pa.int64()}))
    assert array.to_pylist() == [None, {"a": 1}, None]
    for each in (array, array[:0], cast_results([None], array.type)):
        assert each.field(0).null_count == 0  # Arrow 15 does not cast a structure to one of other members


def test_long_decimals_are_rounded() -> None:
    """Also those with so many digits that Arrow takes them for zero."""
    values = [D(-1) / D(150), D("0.0005"), D("1E-400"), None, D("1E+2")]
    expected_values = [D("-0.007"), D("0.001"), D("0.000"), None, D("100.000")]
    assert cast_results(values, pa.decimal128(10, 3)).to_pylist() == expected_values
    assert cast_results([values], pa.list_(pa.decimal128(10, 3))).to_pylist() == [expected_values]


@pytest.mark.parametrize(
    ("type_", "values", "index"),
    [
        ("ARRAY<INT>", [[1], None, [1, 2**40]], 2),
        ("MAP<INT, INT>", [{1: 1}, {2: "x"}], 1),
        ("MAP<INT, INT>", [{1: 1}, {None: 1}], 1),
        ("STRUCT<a INT>", [{"a": 1}, {"a": 1, "b": 2}], 1),
        ("STRUCT<a ARRAY<DATE>>", [{"a": []}, {}, {"a": [1]}], 2),
    ],
)
def test_a_nested_row_that_does_not_fit_is_named(type_: str, values: list[Any], index: int) -> None:
    """The error has its own position, not its member's."""
    with pytest.raises(CastError) as excinfo:
        cast_results(values, parse_type(type_))
    assert excinfo.value.index == index


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        (
            "MAP<STRING, BIGINT>",
            {"EUR": 1, None: 0},
            "a MAP with the key None, and keys cannot be NULL; leave it out, or use another key",
        ),
        ("MAP<BIGINT, STRING>", {"x": "y"}, "a MAP with the key 'x' (str), which does not fit BIGINT"),
        ("MAP<STRING, BIGINT>", {"x": "y"}, "a MAP with the value 'y' (str), which does not fit BIGINT"),
        (
            "STRUCT<name STRING, counts ARRAY<INT>>",
            ("total", [1, "x"]),
            "a STRUCT whose counts is an ARRAY with the item 'x' (str), which does not fit INT",
        ),
        (
            "ARRAY<STRUCT<n TINYINT>>",
            [{"n": 300}],
            "an ARRAY with the item a STRUCT whose n is 300 (int), which does not fit TINYINT; declare INT or BIGINT",
        ),
        ("STRUCT<counts ARRAY<INT>>", {"counts": 3}, "a STRUCT whose counts is 3 (int), which does not fit ARRAY<INT>"),
    ],
)
def test_the_place_in_a_nested_value_is_named(type_: str, value: Any, message: str) -> None:
    """The message says which part does not fit; a key that is None has a message of its own."""
    with pytest.raises(CastError) as excinfo:
        cast_results([value], parse_type(type_))
    assert str(excinfo.value) == message
    assert excinfo.value.code == ("OVERFLOW" if "300" in message else "RESULT_TYPE")


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
# Arrow 15 knows no offsets.
@pytest.mark.parametrize("zone", [None, "UTC", *(["+02:30"] if JSON else []), "Europe/Berlin"])
def test_timestamps_equal_those_of_arrow(unit: str, zone: str | None) -> None:
    """Each has the same digits, zone and fold as in Arrow's slower list, also around a change of the clocks."""
    factor = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    seconds = [1, None, -62_135_500_000, 253_402_200_000, *range(1_761_430_000, 1_761_450_000, 1733)]
    array = pa.array([None if each is None else each * factor - (unit == "us") for each in seconds]).cast(
        pa.timestamp(unit, zone)
    )
    for some in (array, array[:0], array[1:2], array.cast(pa.date32())):
        assert [(repr(each), getattr(each, "fold", 0)) for each in to_python(some)] == [
            (repr(each), getattr(each, "fold", 0)) for each in some.to_pylist()
        ]


@pytest.mark.parametrize("instant", [-(2**63), 2**62, 253_402_300_800_000_000, -62_135_596_800_000_001])
def test_timestamps_beyond_the_years_of_python_are_refused(instant: int) -> None:
    """An instant that is no datetime raises, and is neither a number nor NULL."""
    with pytest.raises((OverflowError, ValueError)):
        to_python(pa.array([0, instant, None]).cast(pa.timestamp("us")))


@pytest.mark.parametrize("type_", ["DATE", "STRING", "TIMESTAMPTZ", "BIGINT", "DATE[]", "STRUCT<a DATE>"])
@pytest.mark.parametrize("missing_value", [pd.NaT, pd.NA])
def test_missing_values_of_pandas_are_null(type_: str, missing_value: Any) -> None:
    """NaT and NA are NULL, also inside of lists and structs: not the first date, not a text."""
    value = {"[]": [missing_value], "E>": {"a": missing_value}}.get(type_[-2:], missing_value)
    expected = {"[]": [None], "E>": {"a": None}}.get(type_[-2:])
    assert cast_results([value, None], parse_type(type_)).to_pylist() == [expected, None]


def test_nan_is_no_null() -> None:
    """A NaN argument stays NaN, and is not NULL."""
    first, second = to_python(pa.array([math.nan, None]))
    assert math.isnan(first)
    assert second is None


@needs_json
def test_json_arguments_are_parsed() -> None:
    """A JSON argument is passed as the parsed value."""
    column, _ = cast_arguments(pa.array(['{"a": [1]}', None]), JSON)
    assert to_python(column) == [{"a": [1]}, None]


CASTS = [
    ("BIGINT", 1.9, 1),
    ("BIGINT", -1.9, -1),
    ("BIGINT", True, 1),
    ("BIGINT", " 12 ", 12),
    ("BIGINT", np.int64(7), 7),
    ("BIGINT", D("3.7"), 3),
    ("DOUBLE", 3, 3.0),
    ("DOUBLE", 2**70, float(2**70)),
    ("DOUBLE", np.float32(0.5), 0.5),
    ("DECIMAL(10, 2)", D("1.235"), D("1.24")),
    ("DECIMAL(10, 2)", D("-1.235"), D("-1.24")),
    ("DECIMAL(10, 2)", 0.1, D("0.10")),
    ("BOOLEAN", 2, True),
    ("BOOLEAN", "no", False),
    ("STRING", 5, "5"),
    ("STRING", True, "true"),
    ("STRING", datetime.date(2013, 1, 2), "2013-01-02"),
    ("DATE", datetime.datetime(2013, 1, 2, 3), datetime.date(2013, 1, 2)),
    ("DATE", "2013-01-02", datetime.date(2013, 1, 2)),
    ("TIMESTAMP", datetime.date(2013, 1, 2), datetime.datetime(2013, 1, 2)),
    ("TIMESTAMPTZ", datetime.datetime(2013, 1, 2), datetime.datetime(2013, 1, 2, tzinfo=datetime.UTC)),
    ("ARRAY<BIGINT>", (1.5, None), [1, None]),
    ("STRUCT<a INT, b STRING>", (1, 2), {"a": 1, "b": "2"}),
    ("MAP<STRING, INT>", {"a": 1.0}, [("a", 1)]),
    pytest.param("JSON", {"a": [1, None]}, '{"a":[1,null]}', marks=needs_json),
    pytest.param("ARRAY<JSON>", [{"a": 1}, None, "x"], ['{"a":1}', None, '"x"'], marks=needs_json),
    pytest.param("STRUCT<a JSON>", {"a": [True]}, {"a": "[true]"}, marks=needs_json),
    pytest.param("MAP<STRING, JSON>", {"a": 1}, [("a", "1")], marks=needs_json),
    ("MAP<BIGINT, INT>", {np.int64(1): 2}, [(1, 2)]),
    ("DOUBLE", " -Infinity", -math.inf),
    ("DECIMAL(10, 2)", "1e2", D("100.00")),
    ("BINARY", "ü", "ü".encode()),
    ("BINARY", bytearray(b"x"), b"x"),
    ("STRING", b"ab", "ab"),
    ("STRING", 1e10, "1.0E10"),
    ("STRING", -1.5e-5, "-1.5E-5"),
    ("STRING", 0.001, "0.001"),
    ("STRING", 1234567.5, "1234567.5"),
    ("STRING", 12345678.5, "1.23456785E7"),
    ("STRING", math.nan, "NaN"),
    ("STRING", -math.inf, "-Infinity"),
    ("STRING", D("1E+3"), "1000"),
    ("STRING", D("1E-7"), "0.0000001"),
    ("STRING", datetime.datetime(2013, 1, 2, 3, 4, 5, 500_000), "2013-01-02 03:04:05.5"),
    ("STRING", datetime.time(3, 4, 50), "03:04:50"),
    ("TIMESTAMP", np.datetime64("2013-01-02T03:04:05.678901", "ns"), datetime.datetime(2013, 1, 2, 3, 4, 5, 678901)),
    ("DATE", np.datetime64("2013-01-02"), datetime.date(2013, 1, 2)),
]


@pytest.mark.parametrize(("type_", "value", "expected"), CASTS)
def test_results_are_cast_as_spark_does(type_: str, value: Any, expected: Any) -> None:
    """Each result is cast as by Spark's CAST, and None is NULL."""
    array = cast_results([value, None], parse_type(type_))
    assert array.type == parse_type(type_)
    assert (array.storage if type_ == "JSON" else array).to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.duration("ns"), datetime.timedelta(days=-106751)),
        (pa.duration("us"), datetime.timedelta(days=106751991)),
        (pa.timestamp("ns"), datetime.datetime(2262, 4, 11, 23, 47, 16)),
        (pa.timestamp("us"), datetime.datetime(9999, 12, 31)),
        (pa.list_(pa.int8(), 2), [1, -128]),
    ],
)
def test_the_largest_values_fit(type_: pa.DataType, value: Any) -> None:
    """The largest values of a type are valid results."""
    values = [value, None]
    assert cast_results(values, type_).to_pylist() == values


@pytest.mark.parametrize(
    ("type_", "value", "code"),
    [
        ("BIGINT", 2**63, "OVERFLOW"),
        ("INT", 2**31, "OVERFLOW"),
        ("BIGINT", 1e30, "OVERFLOW"),
        ("BIGINT", math.nan, "OVERFLOW"),
        ("BIGINT", math.inf, "OVERFLOW"),
        ("DOUBLE", 10**400, "OVERFLOW"),
        ("DECIMAL(4, 2)", 100, "OVERFLOW"),
        ("DECIMAL(4, 2)", D("1e60"), "OVERFLOW"),
        ("DECIMAL(4, 2)", math.inf, "OVERFLOW"),
        ("BIGINT", "x", "RESULT_TYPE"),
        ("BIGINT", [1], "RESULT_TYPE"),
        ("BIGINT", datetime.date(2013, 1, 1), "RESULT_TYPE"),
        ("DOUBLE", "x", "RESULT_TYPE"),
        ("STRING", b"\xff", "RESULT_TYPE"),
        ("STRING", D("1e999999999"), "RESULT_TYPE"),
        ("BINARY", 5, "RESULT_TYPE"),
        ("BINARY", "\ud800", "RESULT_TYPE"),
        ("BIGINT", "1.5", "RESULT_TYPE"),
        ("BIGINT", "1_000", "RESULT_TYPE"),
        ("BIGINT", "1e999999999", "RESULT_TYPE"),
        ("BIGINT", "9" * 5000, "OVERFLOW"),
        ("BIGINT", D("1e999999999"), "OVERFLOW"),
        ("BIGINT", D("NaN"), "OVERFLOW"),
        ("DOUBLE", "1_0", "RESULT_TYPE"),
        ("DECIMAL(4, 2)", "1_0", "RESULT_TYPE"),
        ("DECIMAL(4, 2)", "1e999999999", "OVERFLOW"),
        ("TIME", datetime.time(1, tzinfo=datetime.UTC), "RESULT_TYPE"),
        ("STRING", {}, "RESULT_TYPE"),
        ("BOOLEAN", "perhaps", "RESULT_TYPE"),
        ("TIMESTAMP", 5, "RESULT_TYPE"),
        ("DATE", "yesterday", "RESULT_TYPE"),
        ("TIMESTAMP", np.datetime64(1, "ns"), "RESULT_TYPE"),
        ("TIMESTAMPTZ", np.datetime64(1, "ps"), "RESULT_TYPE"),
        (pa.duration("us"), np.timedelta64(1, "ns"), "RESULT_TYPE"),
        ("ARRAY<INT>", 5, "RESULT_TYPE"),
        ("ARRAY<INT>", [2**40], "OVERFLOW"),
        ("STRUCT<a INT>", {"b": 1}, "RESULT_TYPE"),
        pytest.param("JSON", {1, 2}, "RESULT_TYPE", marks=needs_json),
        ("TIME", 5, "RESULT_TYPE"),
        (pa.duration("us"), datetime.timedelta.max, "OVERFLOW"),
        (pa.duration("ns"), datetime.timedelta(days=300 * 365), "OVERFLOW"),
        (pa.duration("us"), 5, "RESULT_TYPE"),
        (pa.timestamp("ns"), datetime.datetime(2300, 1, 1), "OVERFLOW"),
        (pa.timestamp("ns", "UTC"), datetime.datetime(1600, 1, 1), "OVERFLOW"),
        (pa.list_(pa.duration("ns")), [datetime.timedelta(days=300 * 365)], "OVERFLOW"),
        (pa.list_(pa.int8(), 1), [300], "OVERFLOW"),
        (pa.list_(pa.int8(), 2), [3], "RESULT_TYPE"),
        ("INTERVAL", (1 << 40, 1, 1), "OVERFLOW"),
        ("INTERVAL", (1, 1), "RESULT_TYPE"),
        (pa.binary(4), b"this fits nothing", "RESULT_TYPE"),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(type_: str, value: Any, code: str) -> None:
    """A result that does not fit is an error with its value and position; it is never wrapped or NULL."""
    with pytest.raises(CastError) as excinfo:
        cast_results([None, value], parse_type(type_))
    assert excinfo.value.index == 1
    assert excinfo.value.code == code


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_floats_together_are_cast_as_one_by_one(type_: pa.DataType) -> None:
    """Floats that are results of an integer type lose their fractions, as Python's int; what does not fit is named."""
    end = 2.0 ** (type_.bit_width - 1)
    values = [0.9, -0.9, None, -0.0, 1.5, -1.5, -end, math.nextafter(end, 0.0), 100.0]
    fitting_values = [None if value is None else int(value) for value in values]
    assert cast_results(values, type_).to_pylist() == fitting_values
    for misfit in (end, math.nextafter(-end, -math.inf) - 1.0, math.nan, math.inf):
        with pytest.raises(CastError) as excinfo:
            cast_results([*values, misfit], type_)
        assert (excinfo.value.index, excinfo.value.code) == (len(values), "OVERFLOW")


@pytest.mark.parametrize("value", [np.datetime64(1, "ns"), [np.datetime64(1, "ns")]])
def test_nanoseconds_of_numpy_are_named(value: Any) -> None:
    """NumPy's own conversion makes a number of them, of which an error would tell nothing."""
    type_ = pa.list_(pa.timestamp("us")) if isinstance(value, list) else pa.timestamp("us")
    with pytest.raises(CastError, match="it has nanoseconds; round it to microseconds"):
        cast_results([value], type_)


def test_a_value_without_a_repr_is_still_named() -> None:
    """If the repr of a result raises, the error is still about the result."""

    class Mute:
        def __repr__(self) -> str:
            raise OSError

    with pytest.raises(CastError, match="whose repr fails") as excinfo:
        cast_results([Mute()], pa.int64())
    assert excinfo.value.code == "RESULT_TYPE"


def test_a_column_that_the_declared_type_cannot_hold_is_refused() -> None:
    """Nanoseconds that an argument in microseconds would lose must be rounded by the job."""
    with pytest.raises(RejectedError, match="TIMESTAMP cannot hold") as excinfo:
        cast_arguments(pa.array([1001], pa.timestamp("ns")), pa.timestamp("us"))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@given(data=st.data())
@examples(300)
def test_integers_and_decimals_are_cast_to_decimals_of_any_type(data: st.DataObject) -> None:
    """Each value that the type holds exactly is kept, and each other one is NULL and named."""

    def decimal_type() -> pa.Decimal128Type:
        digits = data.draw(st.integers(1, 38))
        return pa.decimal128(digits, data.draw(st.integers(0, digits)))

    type_, given_type = decimal_type(), data.draw(st.sampled_from([pa.int8(), pa.int32(), pa.int64(), None]))
    if given_type is None:
        given_type = decimal_type()
        whole = st.integers(1 - 10**given_type.precision, 10**given_type.precision - 1) | st.integers(-9, 9)
        values: Any = whole.map(lambda number: D(number).scaleb(-given_type.scale, EXACT))
        values |= st.sampled_from([D(10**place).scaleb(-given_type.scale) for place in range(given_type.precision)])
    else:
        end = 2 ** (given_type.bit_width - 1)
        values = st.integers(-end, end - 1) | st.integers(-9, 9)
    array = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    result, misfits = cast_arguments(pa.array(array, given_type), type_)
    most = D(10**type_.precision - 1).scaleb(-type_.scale, EXACT)
    fits = [each is None or (abs(each) <= most and D(each).quantize(most, context=EXACT) == D(each)) for each in array]
    assert result.to_pylist() == [each if fit else None for each, fit in zip(array, fits, strict=True)]
    assert (misfits is None) == all(fits)
    assert misfits is None or misfits.tolist() == [not fit for fit in fits]


# One nanosecond after a second, in each type that has them, and at depth.
FINER: list[pa.Array] = [
    pa.array([10**9, 10**9 + 1], pa.time64("ns")),
    pa.array([10**9, 10**9 + 1], pa.timestamp("ns")),
    pa.array([10**9, 10**9 + 1], pa.timestamp("ns", "UTC")),
    pa.array([10**9, 10**9 + 1], pa.duration("ns")),
    pa.array([[10**9], [10**9 + 1]], pa.list_(pa.time64("ns"))),
    pa.array([[10**9], [10**9 + 1]], pa.list_(pa.duration("ns"), 1)),
    pa.array([{"at": 10**9}, {"at": 10**9 + 1}], pa.struct([("at", pa.timestamp("ns"))])),
    pa.array([[("at", 10**9)], [("at", 10**9 + 1)]], pa.map_(pa.string(), pa.time64("ns"))),
]


@pytest.mark.parametrize("array", FINER, ids=lambda array: str(array.type))
def test_nanoseconds_are_refused_and_never_cut_off(array: pa.Array) -> None:
    """A value with nanoseconds has no Python value. All others become values of the standard library, not of pandas."""
    for convert in (to_python, to_pylist):
        assert convert(array[:1]) == to_python(in_microseconds(array[:1]))
        assert "Timestamp(" not in repr(convert(array[:1]))
        assert "Timedelta(" not in repr(convert(array[:1]))
        with pytest.raises(ValueError, match=r"has nanoseconds, .* TIME\(6\)"):
            convert(array)


@pytest.mark.parametrize(
    ("value", "type_"),
    [(pd.Timestamp(10**9 + 1), pa.timestamp("us")), (pd.Timedelta(10**9 + 1), pa.duration("us"))],
)
def test_results_and_states_of_pandas_with_nanoseconds_are_errors(value: Any, type_: pa.DataType) -> None:
    """Arrow would cut them off. In lists, too."""
    for result, expected in ((value, type_), ([value], pa.list_(type_))):
        with pytest.raises(CastError, match="nanoseconds") as excinfo:
            cast_results([result], expected)
        assert excinfo.value.code == "RESULT_TYPE"
    with pytest.raises(CastError, match="nanoseconds"):
        serializer_of_type(type_).to_arrow([value])
