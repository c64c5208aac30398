"""Compiled code calculates with dates, times and durations as Python does, at the ends of their ranges, too."""

import datetime as dt
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldflight import udf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.arena import RAISED
from foldflight.ext.compiler.columns import columns_of
from foldflight.ext.compiler.program import Loops
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.rows import Column, Rows
from foldflight.functions.author.spec import BoundScalar
from foldflight.functions.author.udaf import function_of
from tests.effort import examples

MICROSECOND = timedelta(microseconds=1)
FIRST = datetime(1970, 1, 1, tzinfo=UTC)
PLAIN = datetime(1970, 1, 1)
DAY = dt.date(2000, 2, 29)
NOON = time(12, 30)
ARGUMENTS = {
    "op": "BIGINT",
    "at": "TIMESTAMPTZ",
    "naive": "TIMESTAMP",
    "day": "DATE",
    "span": pa.duration("us"),
    "other": pa.duration("us"),
    "n": "BIGINT",
}


def instants(op: int, at: datetime, naive: datetime, span: timedelta, n: int) -> int:
    if op == 0:
        return at.year * 10000 + at.month * 100 + at.day
    if op == 1:
        return naive.hour * 10000 + naive.minute * 100 + naive.second
    if op == 2:
        return at.microsecond + naive.weekday() * 10 + at.isoweekday()
    if op == 3:
        return int(at.timestamp() * 4)
    if op == 4:
        return (at - FIRST) // MICROSECOND
    if op == 5:
        return (at + span - FIRST) // MICROSECOND
    if op == 6:
        return (span + naive - PLAIN).days
    if op == 7:
        return (naive - span - PLAIN).seconds
    if op == 8:
        return (at.replace(month=2, day=29, hour=n) - FIRST) // MICROSECOND
    if op == 9:
        return (naive.replace(year=n, microsecond=0) - PLAIN) // MICROSECOND
    if op == 10:
        return 1 if at.time() > NOON and naive.date() < DAY else 0
    return at.toordinal() + naive.date().toordinal() + at.time().microsecond


def durations(op: int, day: date, span: timedelta, other: timedelta, n: int) -> int:
    if op == 12:
        return (span + other) // MICROSECOND
    if op == 13:
        return (span - other).microseconds
    if op == 14:
        return span // other
    if op == 15:
        return int(span / other)
    if op == 16:
        return (span / n) // MICROSECOND
    if op == 17:
        return (span // n) // MICROSECOND
    if op == 18:
        return (n * span) // MICROSECOND
    if op == 19:
        return (span % other) // MICROSECOND
    if op == 20:
        return (day + span - DAY).days
    if op == 21:
        return (span + day).toordinal() - (day - span).month
    if op == 22:
        return (max(span, -other) + abs(other)) // MICROSECOND if span else 3
    if op == 23:
        return timedelta(days=n, seconds=n, hours=2) // MICROSECOND
    return int(span.total_seconds()) + (day.replace(day=n) - DAY).days


@udf(input_types=list(ARGUMENTS.values()), result_type="BIGINT", compile=True)
class Calendar:
    """What people do with moments, by a number."""

    def eval(self, op: int, at: datetime, naive: datetime, day: date, span: timedelta, other: timedelta, n: int) -> int:
        return instants(op, at, naive, span, n) if op < 12 else durations(op, day, span, other, n)


OPERATIONS = 25
MICROSECONDS = st.one_of(
    st.sampled_from([-62135596800000000, 253402300799999999, 0, -1, 951_782_400_000_000 - 1]),
    st.integers(-62135596800000000, 253402300799999999),
)
SPANS = st.one_of(st.integers(-3, 3), st.integers(-(10**14), 10**14), st.integers(-(1 << 62), 1 << 62))
WHOLE = st.one_of(st.integers(-3, 31), st.sampled_from([1, 9999, 10000, 1 << 62, -(1 << 63)]))
ROW = st.tuples(MICROSECONDS, MICROSECONDS, st.integers(-719162, 2932896), SPANS, SPANS, WHOLE)


def bound() -> BoundScalar:
    function: Any = function_of(Calendar)
    result: BoundScalar = function.bind(function.input_types, {})
    return result


@pytest.fixture(scope="module")
def program() -> Loops:
    """The compiled class, or what an earlier run of the same sources stored."""
    result = Programs(LoopStore("user"), hot_rows=0).program(bound(), bound().instantiate())
    assert isinstance(result, Loops), result
    return result


@pytest.mark.slow
@settings(examples(150))
@given(row=ROW)
def test_compiled_datetimes_equal_those_of_python(program: Loops, row: tuple[int, ...]) -> None:
    """Each operation has the interpreter's result, or leaves the row to it."""
    types: Any = bound().input_types
    values = [np.full(OPERATIONS, each) for each in row]
    columns = [
        Column(name, pa.array(each, pa.int32() if type_ == pa.date32() else pa.int64()).view(type_))
        for name, type_, each in zip(ARGUMENTS, types, [np.arange(OPERATIONS), *values], strict=True)
    ]
    given_columns, valid, _ = columns_of(Rows(np.zeros(OPERATIONS, np.int32), None, columns), program.arguments)
    arguments = zip(*(column.array.to_pylist() for column in columns), strict=True)
    for op, given_values in enumerate(arguments):
        result, handled_rows = program.allocate(1)
        one = tuple(each[op : op + 1] for each in given_columns or ())
        try:
            program.rows(nulls=False)(program.instance, np.zeros(1, np.int64), one, valid, result, handled_rows)
        except RAISED:
            continue
        assert result.tolist() == [Calendar().eval(*given_values)], op


@udf(input_types=["BIGINT", pa.duration("us")], result_type=pa.duration("us"), compile=True)
class Negated:
    """Durations at the end of their range."""

    def eval(self, op: int, span: timedelta) -> timedelta:
        return -span if op else span / -1


def test_a_duration_that_arrow_does_not_have_is_left_to_the_interpreter() -> None:
    """Its result is an error there."""
    function: Any = function_of(Negated)
    bound = function.bind(function.input_types, {})
    program: Any = Programs(LoopStore("user"), hot_rows=0).program(bound, bound.instantiate())
    assert isinstance(program, Loops), program
    most = (1 << 63) - 1
    for op in (0, 1):
        for span, fits in ((most // 2, True), (most, False)):
            result, handled_rows = program.allocate(1)
            columns = (np.full(1, op), np.full(1, span))
            try:
                program.rows(nulls=False)(program.instance, np.zeros(1, np.int64), columns, (), result, handled_rows)
            except RAISED:
                assert not fits
            else:
                assert fits
                assert result.tolist() == [-span]
