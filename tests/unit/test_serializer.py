"""Layouts of accumulators: restored values equal the originals, or there is an error."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, NamedTuple

import pyarrow as pa
import pytest

from foldflight.functions.types.serializer import UnspecificAnnotation, serializer_of_annotation, serializer_of_type
from foldflight.functions.types.sql import parse_type
from foldflight.functions.types.values import CastError


@dataclass
class Inner:
    """Part of another accumulator."""

    number: int
    names: list[str]


@dataclass
class Outer:
    """Has attributes of all kinds."""

    kind: ClassVar = "outer"
    inner: Inner
    perhaps: Inner | None
    many: list[Inner]
    named: dict[str, Inner]
    pair: tuple[int, Inner]
    chosen: set[int]
    fixed: frozenset[str]
    row: tuple[str, ...]
    nested: list[list[int] | None]


@dataclass(frozen=True, slots=True)
class Frozen:
    """Is frozen, and has no __dict__."""

    number: int
    name: str | None


class HalfSlotted:
    """Has two attributes and annotates one."""

    __slots__ = ("lost", "number")
    number: int

    def __init__(self) -> None:
        self.number, self.lost = 1, 2


class Node:
    """Contains itself."""

    value: int
    following: Node | None


UTC = datetime.UTC
EMPTY = Outer(Inner(1, []), None, [], {}, (1, Inner(2, ["x"])), set(), frozenset(), (), [])
FULL = dataclasses.replace(
    EMPTY,
    perhaps=Inner(3, []),
    many=[Inner(1, []), Inner(2, ["z", "y"])],
    named={"k": Inner(1, ["p"])},
    chosen={1, 2},
    fixed=frozenset({"q"}),
    row=("a", "b"),
    nested=[None, [], [1]],
)


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (Outer, [EMPTY, FULL, EMPTY]),
        (Frozen, [Frozen(1, None), Frozen(2, "x")]),
        (Annotated[datetime.datetime, "TIMESTAMPTZ"], [datetime.datetime(2013, 1, 1, tzinfo=UTC)]),
    ],
)
def test_restored_values_equal_the_stored_ones(annotation: Any, values: list[Any]) -> None:
    """Accumulators of any depth, empty and full, are restored from whole arrays and slices."""
    serializer = serializer_of_annotation(annotation)
    array = serializer.to_arrow(values)
    assert serializer.from_arrow(array) == values
    assert [serializer.from_arrow(array.slice(place, 1))[0] for place in range(len(values))] == values


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (HalfSlotted, HalfSlotted(), "has lost, which HalfSlotted does not annotate"),
        (dict[str, int], Counter("aab"), "plain dict"),
        (dict[str, list[int]], defaultdict(list), "plain dict"),
        (datetime.datetime, datetime.datetime(2013, 1, 1, tzinfo=UTC), "has a zone.*TIMESTAMPTZ"),
        (Annotated[datetime.datetime, "TIMESTAMPTZ"], datetime.datetime(2013, 1, 1), "has no zone"),
        (datetime.time, datetime.time(1, tzinfo=UTC), "has a zone"),
        (datetime.date, datetime.datetime(2013, 1, 1, 5), "has a time"),
    ],
)
def test_values_that_would_be_restored_differently_are_refused(annotation: Any, value: Any, message: str) -> None:
    """A value that a state would lose or change is an error when the state is written."""
    with pytest.raises(CastError, match=message):
        serializer_of_annotation(annotation).to_arrow([value])


@pytest.mark.parametrize(
    ("annotation", "remedy"),
    [
        (Counter, "a Counter has no typed states; annotate dict[str, int], and use .get"),
        (Counter[int], "a Counter has no typed states; annotate dict[int, int], and use .get"),
        (
            defaultdict[str, list[float]],
            "a defaultdict has no typed states; annotate dict[str, list[float]], and use .get",
        ),
        (deque[int], "a deque has no typed states; annotate list[int]"),
        (deque, "a deque has no typed states; annotate list[float]"),
    ],
)
def test_containers_without_typed_states_tell_those_that_have_them(annotation: Any, remedy: str) -> None:
    with pytest.raises(UnspecificAnnotation) as excinfo:
        serializer_of_annotation(annotation)
    assert str(excinfo.value).startswith(remedy)


@pytest.mark.parametrize("annotation", [Node, tuple[()]])
def test_annotations_without_a_layout_have_a_reason(annotation: Any) -> None:
    """A class that contains itself has no Arrow type, and uses another codec."""
    with pytest.raises(UnspecificAnnotation):
        serializer_of_annotation(annotation)


def test_a_map_with_the_key_none_is_an_error_with_a_remedy() -> None:
    """Arrow's maps have no NULL keys; its own error names neither the value nor what to do."""
    with pytest.raises(CastError, match=r"has the key None, .*skip_nulls=True"):
        serializer_of_annotation(dict[int, int]).to_arrow([{1: 1}, {None: 2}])


@pytest.mark.parametrize(
    ("value", "type_", "code"),
    [
        (Decimal(10) ** 38, "DECIMAL(38, 0)", "OVERFLOW"),
        (Decimal("1.0e37"), "DECIMAL(38, 2)", "OVERFLOW"),
        (Decimal("1e77"), "DECIMAL(38, 0)", "OVERFLOW"),
        (-(10**38), "DECIMAL(38, 0)", "OVERFLOW"),
        (Decimal("1.234"), "DECIMAL(20, 2)", "RESULT_TYPE"),
        (Decimal("NaN"), "DECIMAL(20, 2)", "RESULT_TYPE"),
        (1 << 31, "INT", "OVERFLOW"),
        (1 << 63, "BIGINT", "OVERFLOW"),
    ],
)
def test_numbers_out_of_range_are_overflow_by_their_number(value: Any, type_: str, code: str) -> None:
    """The code depends on the number, not on its scale in Python or on the words of Arrow's error."""
    with pytest.raises(CastError) as excinfo:
        serializer_of_type(parse_type(type_)).to_arrow([value])
    assert excinfo.value.code == code


class Kind(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


class Money(int):
    def __add__(self, other: int) -> Money:
        return Money(int(self) + 2 * other)


class Rows(list[int]):
    pass


class Chosen(set[int]):
    pass


class Pair(NamedTuple):
    least: int
    most: int


class Deeper(Inner):
    pass


@pytest.mark.parametrize(
    ("annotation", "value", "restored_class"),
    [
        (int, Kind.LOW, "int"),
        (float, Kind.LOW, "int"),
        (Decimal, Kind.LOW, "int"),
        (str, Name.ANN, "str"),
        (int, Money(3), "int"),
        (list[int], Rows([1]), "list"),
        (list[int], [Kind.LOW], "int"),
        (set[int], Chosen({1}), "set"),
        (dict[str, int], OrderedDict(a=1), "dict"),
        (dict[str, int], {Name.ANN: 1}, "str"),
        (tuple[int, int], Pair(1, 2), "tuple"),
        (tuple[int, ...], Pair(1, 2), "tuple"),
        (Inner, Deeper(1, []), "Inner"),
    ],
)
def test_values_that_would_be_restored_as_another_class_are_refused(
    annotation: Any, value: Any, restored_class: str
) -> None:
    """A class that is derived from the annotated one has other methods: rows after a barrier would meet those."""
    expected = (
        f"would be restored as {restored_class}, whose methods are others; convert it to {restored_class}, or annotate "
    )
    with pytest.raises(CastError, match=expected) as excinfo:
        serializer_of_annotation(annotation).to_arrow([None, value])
    assert (excinfo.value.index, excinfo.value.code) == (1, "RESULT_TYPE")


@pytest.mark.parametrize("annotation", [Kind, Money, Rows, OrderedDict, OrderedDict[str, int]])
def test_annotated_classes_are_pickled(annotation: Any) -> None:
    """With the annotation that the error advises the state is a pickle, which restores the class."""
    with pytest.raises(UnspecificAnnotation):
        serializer_of_annotation(annotation)


@pytest.mark.parametrize(
    ("type_", "exact", "finer"),
    [
        (pa.timestamp("ms"), datetime.datetime(2024, 1, 1, microsecond=7000), 7001),
        (pa.timestamp("s"), datetime.datetime(2024, 1, 1), 1),
        (pa.timestamp("ms", "UTC"), datetime.datetime(2024, 1, 1, tzinfo=UTC), 1),
        (pa.time32("ms"), datetime.time(1, microsecond=7000), 7001),
        (pa.time32("s"), datetime.time(1), 1),
        (pa.duration("ms"), datetime.timedelta(microseconds=-7000), datetime.timedelta(microseconds=1)),
        (pa.duration("s"), datetime.timedelta(1), datetime.timedelta(microseconds=1)),
    ],
    ids=str,
)
def test_times_that_are_finer_than_their_state_are_refused(type_: pa.DataType, exact: Any, finer: Any) -> None:
    """A state in seconds or milliseconds refuses microseconds, which Arrow cuts off."""
    other = exact + finer if isinstance(finer, datetime.timedelta) else exact.replace(microsecond=finer)
    for state_type, one, two in ((type_, exact, other), (pa.list_(type_), [exact], [exact, other])):
        serializer = serializer_of_type(state_type)
        assert serializer.from_arrow(serializer.to_arrow([one, None])) == [one, None]
        with pytest.raises(CastError, match=r"is finer than .*, which would lose its fraction") as excinfo:
            serializer.to_arrow([one, two])
        assert (excinfo.value.index, excinfo.value.code) == (1, "RESULT_TYPE")


def test_large_floats_of_16_bits_are_overflows() -> None:
    """Arrow makes them infinite."""
    with pytest.raises(CastError, match="does not fit") as excinfo:
        serializer_of_type(pa.float16()).to_arrow([1.5, 1e6])
    assert (excinfo.value.index, excinfo.value.code) == (1, "OVERFLOW")
