"""Accumulators folded by the author's methods: missing returns, shared lists, failing constructors."""

import functools
import logging
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, udaf
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry
from tests.folds import open_fold

SIGNER = StateSigner([b"a key of sixteen bytes or more"])
BATCH = pa.RecordBatch.from_pydict({"slot": pa.array([0, 0, 1], pa.int32()), "x": pa.array([1, 2, 3])})


def fold_of(cls: type, **options: Any) -> Fold:
    registry = Registry.load([cls])
    return open_fold(bind_calls(registry, [Call(registry.authored[0].name, ("x",))], BATCH.schema), **options)


@pytest.mark.parametrize("zero", [0, 0.0, Decimal(0), np.float64(0), (0,)], ids=lambda zero: type(zero).__name__)
@pytest.mark.parametrize("state_type", ["DOUBLE", None])
def test_a_forgotten_return_is_an_error(zero: Any, state_type: str | None) -> None:
    """An immutable accumulator must be returned, also without an annotation; otherwise the row would be lost."""

    class Forgetful:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return zero

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            accumulator = value  # noqa: F841 - the mistake that the test is about

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return accumulator

        def serialize(self, accumulator):  # type: ignore[no-untyped-def]
            return b""

        def deserialize(self, data):  # type: ignore[no-untyped-def]
            return zero

    if state_type is not None:
        del Forgetful.serialize, Forgetful.deserialize
    function = udaf(input_types=["BIGINT"], result_type="DOUBLE", state_type=state_type)(Forgetful)
    with pytest.raises(FunctionError, match="return the new accumulator") as excinfo:
        fold_of(function).fold(BATCH)
    assert excinfo.value.row == "x=1"


@pytest.mark.parametrize("first", ["accumulate", "get_value"])
def test_create_accumulator_without_a_return_is_named(first: str) -> None:
    """The method that fails is another one, where nothing is wrong; an error of NULLs is not said to be of this."""

    class Forgetful:
        def create_accumulator(self) -> list[int]:  # type: ignore[return]
            [0]  # noqa: B018 - the mistake that the test is about

        def accumulate(self, total: list[int], value: int) -> None:
            if first == "accumulate":
                total[0] += value

        def get_value(self, total: list[int]) -> int:
            return total[0] + None if total else total[0]  # type: ignore[operator]

    def fold_rows(cls: type) -> None:
        fold = fold_of(udaf(cls))
        fold.fold(BATCH)
        fold.outputs(pa.array([0], pa.int32()))

    message = "; create_accumulator returned None: does it lack a return"
    with pytest.raises(FunctionError, match=f"{first} raised TypeError: 'NoneType' object is not.*{message}"):
        fold_rows(Forgetful)

    def create_accumulator(self: Any) -> list[int]:
        return [0]

    Forgetful.create_accumulator = create_accumulator  # type: ignore[method-assign]
    with pytest.raises(FunctionError, match=r"get_value raised TypeError: .*NoneType") as excinfo:
        fold_rows(Forgetful)
    assert message not in excinfo.value.message


def test_a_float_in_a_state_of_integers_says_what_to_do() -> None:
    """The state is written after the rows, so the error has the group, and no row."""

    @udaf
    class Total:
        total: int

        def __init__(self) -> None:
            self.total = 0

        def accumulate(self, price: int) -> None:
            self.total += price + 0.5  # type: ignore[assignment]

        def get_value(self) -> int:
            return self.total

    fold = fold_of(Total)
    fold.fold(BATCH)
    message = r"total: 4\.0 \(float\) does not fit int64; annotate it with the type of its values, or convert them"
    with pytest.raises(FunctionError, match=message) as excinfo:
        fold.collect()
    assert excinfo.value.slot == 0


def test_a_list_handed_out_is_not_the_next_rows() -> None:
    """The value after each row is the value at that time, even if get_value returns the accumulator itself."""

    @udaf
    class Collect:
        def create_accumulator(self) -> list[int]:
            return []

        def accumulate(self, accumulator: list[int], value: int) -> None:
            accumulator.append(value)

        def get_value(self, accumulator: list[int]) -> list[int]:
            return accumulator

    assert fold_of(Collect).fold_each(BATCH).column(0).to_pylist() == [[1], [1, 2], [3]]
    assert fold_of(Collect).fold_each(BATCH.slice(0, 0)).column(0).to_pylist() == []


def test_nothing_is_opened_that_nobody_closes() -> None:
    """A function whose states cannot be signed is refused before its `open`."""
    open_instances = []

    @udaf(input_types=["BIGINT"], result_type="BIGINT")
    class Opens:
        def open(self, context: Any) -> None:
            open_instances.append(context)

        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return 0

        def accumulate(self, accumulator, value):  # type: ignore[no-untyped-def]
            return accumulator + value

        def get_value(self, accumulator):  # type: ignore[no-untyped-def]
            return accumulator

    with pytest.raises(RejectedError, match="needs a state key"):
        fold_of(Opens)
    assert open_instances == []


def test_a_class_that_cannot_be_made_says_so() -> None:
    """An error in `__init__` is not reported as one of `open`."""

    @udaf
    class Broken:
        def __init__(self) -> None:
            raise OSError("disk")

        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(FunctionError, match="__init__ raised OSError: disk"):
        fold_of(Broken)


def test_a_function_may_change_the_lists_it_is_given() -> None:
    """If a function changes a list argument, other calls and the rows of DISTINCT are not affected."""

    @udaf(input_types=["ARRAY<BIGINT>"], result_type="BIGINT")
    class Grows:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: list[int]) -> int:
            value.append(0)
            return accumulator + len(value)

        def get_value(self, accumulator: int) -> int:
            return accumulator

    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0], pa.int32()), "x": [[1]]})
    calls = [Call("grows", ("x",)), Call("grows", ("x",)), Call("grows", ("x",), distinct=True)]
    fold = Fold(bind_calls(Registry.load([Grows]), calls, batch.schema))
    fold.fold(batch)
    for _ in range(2):
        [row] = fold.outputs(pa.array([0], pa.int32())).to_pylist()
        assert [row[f"output_{place}"] for place in range(3)] == [2, 2, 2]


def test_decimals_keep_all_their_digits() -> None:
    """An author's sums and products of DECIMAL(38) are not rounded to the 28 digits of Python's default."""

    @udaf(input_types=["DECIMAL(38,0)"], result_type="DECIMAL(38,0)", state_type="DECIMAL(38,0)")
    class Total:
        def create_accumulator(self) -> Decimal:
            return Decimal(0)

        def accumulate(self, accumulator: Decimal, value: Decimal) -> Decimal:
            return accumulator + value

        def merge(self, accumulator: Decimal, other: Decimal) -> Decimal:
            return accumulator + other

        def get_value(self, accumulator: Decimal) -> Decimal:
            return accumulator * 1

    large = Decimal(10**37)
    batch = pa.RecordBatch.from_pydict(
        {"slot": pa.array([0, 0], pa.int32()), "x": pa.array([large, Decimal(1)], pa.decimal128(38, 0))}
    )
    registry = Registry.load([Total])
    fold = Fold(bind_calls(registry, [Call("total", ("x",))], batch.schema))
    fold.fold(batch)
    states = fold.collect()
    assert states.column("output_0").to_pylist() == [Decimal(10**37 + 1)]
    fold.merge_states(states)
    assert fold.outputs(pa.array([0], pa.int32())).column("output_0").to_pylist() == [Decimal(2 * 10**37 + 2)]


NAMES = pa.RecordBatch.from_pydict({"slot": pa.array([0, 1], pa.int32()), "name": ["ant", "bee"]})


class Basket:
    """An accumulator without annotations."""

    def __init__(self, items: Any, prices: dict[str, int]) -> None:
        self.items = items
        self.prices = prices


class Total:
    """Adds up prices of a table, which all accumulators refer to and no row changes."""

    def __init__(self) -> None:
        self.prices = {"ant": 1, "bee": 2}
        self.all: dict[str, Any] = {"items": []}

    def create_accumulator(self) -> Any:
        return Basket({"items": []}, self.prices)

    def accumulate(self, accumulator: Any, name: str) -> Any:
        accumulator.items["items"].append(name)
        return accumulator

    def get_value(self, accumulator: Any) -> int:
        return sum(accumulator.prices[name] for name in accumulator.items["items"])


def same_basket(self: Total) -> Any:
    return self.all


def same_items(self: Total) -> Any:
    return Basket(self.all, self.prices)


def total_fold(create: Any) -> Fold:
    methods = {"create_accumulator": create} if create else {}
    if create is same_basket:
        methods["accumulate"] = lambda self, accumulator, name: accumulator["items"].append(name)
        methods["get_value"] = lambda self, accumulator: len(accumulator["items"])
    function = udaf(input_types=["STRING"], result_type="BIGINT", name="total")(type("Basic", (Total,), methods))
    return open_fold(bind_calls(Registry.load([function]), [Call("total", ("name",))], NAMES.schema), signer=SIGNER)


class Slots:
    """An accumulator whose attributes are not in a dict."""

    __slots__ = ("items", "prices")

    def __init__(self, items: Any, prices: dict[str, int]) -> None:
        self.items = items
        self.prices = prices


class Parts(NamedTuple):
    """An accumulator that is a tuple with names."""

    items: Any
    prices: dict[str, int]


def same_items_in_slots(self: Total) -> Any:
    return Slots(self.all, self.prices)


def same_items_in_tuple(self: Total) -> Any:
    return Parts(self.all, self.prices)


CREATES = [same_basket, same_items, same_items_in_slots, same_items_in_tuple]


@pytest.mark.parametrize("create", CREATES)
def test_an_object_that_all_groups_share_and_rows_change_is_an_error(create: Any) -> None:
    """Also with one group, because the next new group would begin with its rows."""
    fold = total_fold(create)
    with pytest.raises(FunctionError, match=r"USER_CODE: create_accumulator gives all groups the same list") as error:
        fold.fold(NAMES[:1])
    assert error.value.function == "total"


def test_groups_may_share_what_no_row_changes() -> None:
    fold = total_fold(None)
    for _ in range(2):
        fold.fold(NAMES)
    assert fold.outputs(pa.array([0, 1], pa.int32())).column("output_0").to_pylist() == [2, 4]


class Price:
    """A price that computes what it needs once."""

    @functools.cached_property
    def parts(self) -> list[int]:
        return [1]


class Logging(Basket):
    """An accumulator with objects whose contents change for reasons of their own."""

    def __init__(self, items: Any, prices: dict[str, int], price: dict[str, Price]) -> None:
        super().__init__(items, prices)
        self.price = price
        self.logger = logging.getLogger("foldflight.tests.interpreter")


def test_what_shared_members_keep_for_themselves_is_no_change() -> None:
    """A logger keeps which levels it has, and a cached property keeps its value."""
    price = {"ant": Price()}
    logging.getLogger("foldflight.tests.interpreter").manager._clear_cache()  # type: ignore[attr-defined]

    def create(self: Total) -> Any:
        return Logging({"items": []}, self.prices, price)

    def accumulate(self: Total, accumulator: Any, name: str) -> None:
        accumulator.logger.debug("a row")
        accumulator.items["items"].append(name * accumulator.price["ant"].parts[0])

    function = udaf(input_types=["STRING"], result_type="BIGINT", name="total")(
        type("Logs", (Total,), {"create_accumulator": create, "accumulate": accumulate})
    )
    fold = open_fold(bind_calls(Registry.load([function]), [Call("total", ("name",))], NAMES.schema), signer=SIGNER)
    fold.fold(NAMES)
    assert fold.outputs(pa.array([0, 1], pa.int32())).column("output_0").to_pylist() == [1, 2]
