"""Classes and functions of authors that are defined in functions or classes, with annotations that are texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest

from foldflight import RejectedError, connect, udaf, udf, udtf
from foldflight.functions import function_of
from foldflight.functions.author.spec import Function
from foldflight.testing import run_epochs


class Total:
    """Another class, with the name of a local one."""

    wrong: str


def of_a_dataclass() -> type:
    @dataclass
    class Entry:
        value: int

    @dataclass
    class Total:
        total: int = 0
        entries: list[Entry] = field(default_factory=list)

    @udaf(name="summed")
    class Summed:
        def create_accumulator(self) -> Total:
            return Total()

        def accumulate(self, accumulator: Total, value: int) -> None:
            accumulator.total += value
            accumulator.entries.append(Entry(value))

        def get_value(self, accumulator: Total) -> int:
            return accumulator.total + len(accumulator.entries)

    return Summed


def of_a_named_tuple() -> type:
    class Total(NamedTuple):
        total: int
        count: int

    @udaf(name="summed")
    class Summed:
        def create_accumulator(self) -> Total:
            return Total(0, 0)

        def accumulate(self, accumulator: Total, value: int) -> Total:
            return Total(accumulator.total + value, accumulator.count + 1)

        def get_value(self, accumulator: Total) -> int:
            return accumulator.total + accumulator.count

    return Summed


def of_its_own_class() -> type:
    @udaf(name="summed")
    class Summed:
        total: int
        count: int

        def __init__(self) -> None:
            self.total = self.count = 0

        def accumulate(self, value: int) -> None:
            self.total += value
            self.count += 1

        def merge(self, other: Summed) -> None:
            self.total += other.total
            self.count += other.count

        def get_value(self: Summed) -> int:
            return self.total + self.count

    return Summed


def of_a_class_in_it() -> type:
    @udaf(name="summed")
    class Summed:
        class Entry(NamedTuple):
            value: int

        @dataclass
        class Kept:
            total: int = 0
            entries: list[Summed.Entry] = field(default_factory=list)

        def create_accumulator(self) -> Kept:
            return Summed.Kept()

        def accumulate(self, accumulator: Summed.Kept, value: int) -> None:
            accumulator.total += value
            accumulator.entries.append(Summed.Entry(value))

        def get_value(self, accumulator: Summed.Kept) -> int:
            return accumulator.total + len(accumulator.entries)

    return Summed


class Outer:
    """A class with a function in it, and with the state of that function."""

    @dataclass
    class Kept:
        """The sum, and the number of values."""

        total: int = 0
        count: int = 0

    class Inner:
        """One more class around the function."""

        @udaf(name="summed")
        class Summed:
            """The sum and the number of values."""

            @dataclass
            class Unused:
                """A class whose annotation has the whole path."""

                inner: Outer.Inner.Summed | None = None

            def create_accumulator(self) -> Outer.Kept:
                return Outer.Kept()

            def accumulate(self, accumulator: Outer.Kept, value: int) -> None:
                accumulator.total += value
                accumulator.count += 1

            def get_value(self, accumulator: Outer.Kept) -> int:
                return accumulator.total + accumulator.count


def of_a_class_that_is_decorated_later() -> type:
    @dataclass
    class Total:
        total: int = 0
        count: int = 0

    class Summed:
        def create_accumulator(self) -> Total:
            return Total()

        def accumulate(self, accumulator: Total, value: int) -> None:
            accumulator.total += value
            accumulator.count += 1

        def get_value(self, accumulator: Total) -> int:
            return accumulator.total + accumulator.count

    return Summed


def decorated_later() -> type:
    return udaf(name="summed")(of_a_class_that_is_decorated_later())


FORMS: dict[str, Callable[[], type]] = {
    "a dataclass": of_a_dataclass,
    "a named tuple": of_a_named_tuple,
    "its own class": of_its_own_class,
    "a class in it": of_a_class_in_it,
    "a class beside it": lambda: Outer.Inner.Summed,
    "decorated later": decorated_later,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_state_is_typed_and_folded(form: str) -> None:
    """Each form has the types that its annotations name, in the function's scope, and folds in other processes."""
    cls = FORMS[form]()
    function = function_of(cls)
    assert isinstance(function, Function)
    assert (function.capabilities.codec, function.declared_inputs, function.declared_result) == (
        "typed", (pa.int64(),), pa.int64(),
    )  # fmt: skip
    epochs = run_epochs({"it": connect([cls])["summed"]("x")}, [[{"x": 1}, {"x": 2}], [{"x": 4}]])
    assert [epoch.changelog[-1][1] for epoch in epochs] == [{"it": 5}, {"it": 10}]


def test_results_and_rows_may_be_of_local_classes() -> None:
    """Results and rows may be of classes that are defined beside the function."""

    @dataclass
    class Point:
        x: int
        y: int

    class Row(NamedTuple):
        word: str
        size: int

    @udf
    def point(x: int) -> Point:
        return Point(x, -x)

    @udtf
    def words(text: str) -> Iterator[Row]:
        for word in text.split():
            yield Row(word, len(word))

    @udf
    class Scaled:
        def __init__(self, how: Literal["up", "down"] = "up") -> None:
            self.how = how

        def eval(self: Scaled, point: Point) -> Point:
            return Point(point.x * 2, point.y * 2)

    functions: list[Any] = [function_of(each) for each in (point, words, Scaled)]
    xy = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    assert [each.declared_result for each in functions] == [
        xy, pa.struct([("word", pa.string()), ("size", pa.int64())]), xy,
    ]  # fmt: skip
    assert (functions[2].declared_inputs, functions[2].parameters[0].type) == ((xy,), Literal["up", "down"])


def test_members_named_as_types_do_not_hide_them() -> None:
    """Names mean what they mean to Python and type checkers: members of a class come last."""

    @udaf
    class Longest:
        int: int = 0

        def list(self) -> list[int]:
            return []

        def create_accumulator(self) -> list[int]:
            return []

        def accumulate(self, accumulator: list[int], value: int) -> None: ...

        def get_value(self, accumulator: list[int]) -> int:
            return 0

    function = function_of(Longest)
    assert isinstance(function, Function)
    assert function.declared_state is None
    assert function.serializer is not None
    assert function.serializer.arrow == pa.list_(pa.int64())


def test_a_name_without_a_value_is_told() -> None:
    """A name that is in no scope is refused with the method and the remedy."""

    class Summed:
        def create_accumulator(self) -> Missing:  # type: ignore[name-defined]  # noqa: F821 - that is the mistake
            ...

        def accumulate(self, accumulator: Any, value: int) -> None: ...

        def get_value(self, accumulator: Any) -> int:
            return 0

    with pytest.raises(RejectedError, match=r"Summed.create_accumulator has .*'Missing'.*define what it names above"):
        udaf(Summed)


def test_a_nested_class_that_is_defined_after_its_use_is_told() -> None:
    """It is refused as any name without a value, not with the error of the attribute that is missing yet."""

    class Outer:
        @staticmethod
        def declared() -> type:
            class Summed:
                def create_accumulator(self) -> Outer.Later:
                    return Outer.Later()

                def accumulate(self, accumulator: Outer.Later, value: int) -> None: ...

                def get_value(self, accumulator: Outer.Later) -> int:
                    return 0

            return udaf(Summed)

        try:
            made: Any = declared()
        except Exception as error:
            made = error

        class Later:
            total: int

    assert isinstance(Outer.made, RejectedError)
    assert "'Later' is not defined where it is looked for); define what it names above" in Outer.made.message
