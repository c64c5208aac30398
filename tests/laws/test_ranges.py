"""Results outside the range of their type: every way of folding, and scalar functions, refuses them with OVERFLOW."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import Applied, FunctionError, Segment, connect, udaf, udf, udtf
from foldflight.client import FunctionHandle
from foldflight.client.exchange import PROGRAMS_AT_ONCE
from foldflight.exchange.server_exchange import bind
from foldflight.fold.accelerator import INTERPRETER
from foldflight.fold.resources import Resources
from foldflight.functions import Registry, Step, StepArgument
from foldflight.functions.author.udaf import function_of
from foldflight.functions.query.call import Request
from foldflight.functions.types.values import CastError, cast_results
from foldflight.server.run.lifecycle import serving
from foldflight.testing import run_epochs, run_over

# (type, value, expected): the result, or None for OVERFLOW. A fraction is cut off, as Spark's CAST does.
CASES: list[tuple[str, float, Any]] = [
    ("REAL", 2.7e300, None),
    ("REAL", -3.5e38, None),
    ("REAL", 3.4028234663852886e38, 3.4028234663852886e38),
    ("REAL", math.inf, math.inf),
    ("REAL", 0.5, 0.5),
    ("BIGINT", 2.7, 2),
    ("BIGINT", -2.7, -2),
    ("BIGINT", 1e300, None),
    ("BIGINT", math.inf, None),
    ("BIGINT", math.nan, None),
    ("INT", 2147483648.0, None),
    ("INT", 2147483647.9, 2147483647),
    ("TINYINT", 128.0, None),
    ("DOUBLE", 1e300, 1e300),
    ("ARRAY<REAL>", 2.7e300, None),
]


def _argument(type_: str, value: float) -> Any:
    return [value] if type_.startswith("ARRAY") else value


def _aggregate(type_: str, **options: Any) -> type:
    @udaf(input_types=["DOUBLE"], result_type=type_, name="it", **options)
    class It:
        def create_accumulator(self) -> float:
            return 0.0

        def accumulate(self, accumulator: float, value: float) -> float:
            return value

        def retract(self, accumulator: float, value: float) -> float:
            return 0.0

        def merge(self, accumulator: float, other: float) -> float:
            return other

        def get_value(self, accumulator: float) -> Any:
            return accumulator

    if type_.startswith("ARRAY"):
        It.get_value = lambda self, accumulator: [accumulator]  # type: ignore[method-assign]
    return It


def _vectorised_class(type_: str) -> type:
    scalar: Any = _aggregate(type_)

    @udaf(input_types=["DOUBLE"], result_type=type_, name="it")
    class Many(scalar):  # type: ignore[misc]
        def create_accumulator(self) -> float:
            return 0.0

        def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
            accumulators[slots] = values

        def merge_many(self, accumulators: Any, slots: Any, others: Any) -> None:
            accumulators[slots] = others

        def get_values(self, accumulators: Any) -> Any:
            return pa.array([[each] for each in accumulators]) if type_.startswith("ARRAY") else np.array(accumulators)

    return Many


def _bundled_class(type_: str) -> type:
    @udaf(input_types=["DOUBLE"], result_type=type_, name="it")
    class Bundle:
        def fold_bundle(self, segments: list[Segment[float]]) -> list[Applied[float, Any]]:
            result = []
            for each in segments:
                values = [_argument(type_, row[0]) for row in each.rows]
                last = each.rows[-1][0] if each.rows else (each.accumulators or [0.0])[-1]
                result.append(Applied(last, _argument(type_, last), values))
            return result

    return Bundle


AGGREGATES: dict[str, Callable[[str], type]] = {
    "interpreted": lambda type_: _aggregate(type_, compile=False),
    "compiled": lambda type_: _aggregate(type_, compile=type_ in ("BIGINT", "INT", "TINYINT", "DOUBLE") or "auto"),
    "vectorised": _vectorised_class,
    "bundled": _bundled_class,
}


def _check(run: Callable[[], Any], expected: Any) -> None:
    if expected is not None:
        assert run() == expected
        return
    with pytest.raises(FunctionError, match=r"does not fit .*; declare") as excinfo:
        run()
    assert excinfo.value.code == "OVERFLOW"


@pytest.mark.every_turn
@pytest.mark.parametrize("way", AGGREGATES)
@pytest.mark.parametrize(("type_", "value", "expected"), CASES)
def test_aggregates_refuse_results_out_of_range(way: str, type_: str, value: float, expected: Any) -> None:
    """Epochs, and OVER, whose results are those after each row."""
    it = connect(AGGREGATES[way](type_))["it"]
    rows = [{"x": value, "n": 1}]
    _check(lambda: run_epochs({"it": it("x")}, [rows])[0].changelog[0][1]["it"], expected)
    _check(lambda: run_over({"it": it("x")}, rows, order_by=["n"])[0]["it"], expected)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Mapping[tuple[str, str], FunctionHandle]]:
    """The function of each way and type, on a server."""
    names: dict[tuple[str, str], Any] = {}
    for type_ in dict.fromkeys(type_ for type_, _, _ in CASES):
        for way, build in AGGREGATES.items():
            function = function_of(build(type_))
            assert function is not None
            names[way, type_] = replace(function, name=f"f{len(names)}")
    with serving(*names.values()) as server:
        functions = connect(server.url)
        yield {key: functions[function.name] for key, function in names.items()}


@pytest.mark.parametrize("way", AGGREGATES)
@pytest.mark.parametrize(("type_", "value", "expected"), CASES)
def test_servers_refuse_results_out_of_range(
    fleet: Mapping[tuple[str, str], FunctionHandle], way: str, type_: str, value: float, expected: Any
) -> None:
    """An error of a server has the code and the remedy of one that was raised here."""
    it = fleet[way, type_]
    _check(lambda: run_epochs({"it": it("x")}, [[{"x": value}]])[0].changelog[0][1]["it"], expected)


def _map_value(function: Any, value: float) -> pa.Table:
    step = Step("it", (StepArgument(column="x"),))
    request = Request((), pa.schema([("x", pa.float64())]), steps=(step,), outputs=(0,))
    accelerator = PROGRAMS_AT_ONCE if function_of(function).compile is True else INTERPRETER  # type: ignore[union-attr]
    program: Any = bind(request, Registry.load([function])).open(Resources(accelerator=accelerator))
    batch = pa.RecordBatch.from_pydict({"x": pa.array([value], pa.float64())})
    return pa.Table.from_batches(list(program.chunk(batch)), program.schema)


@pytest.mark.parametrize("way", ["", "compiled", "arrow", "numpy", "pandas"])
@pytest.mark.parametrize(("type_", "value", "expected"), CASES)
def test_scalar_functions_refuse_results_out_of_range(way: str, type_: str, value: float, expected: Any) -> None:
    is_list = type_.startswith("ARRAY")
    if is_list and way:
        pytest.skip("lists are neither compiled nor vectorised")
    options: Any = {"compile": type_ != "REAL" or "auto"} if way == "compiled" else {"vectorised": way or None}

    if way == "pandas" and math.isnan(value):
        pytest.skip("pandas has NaN for NULL")

    def same(x: Any) -> Any:
        return x

    def list_of(x: Any) -> Any:
        return [x]

    function = udf(input_types=["DOUBLE"], result_type=type_, name="it", **options)(list_of if is_list else same)
    _check(lambda: _map_value(function, value)["output_0"].to_pylist()[0], expected)


@pytest.mark.parametrize(("type_", "value", "expected"), CASES)
def test_table_functions_refuse_results_out_of_range(type_: str, value: float, expected: Any) -> None:
    @udtf(input_types=["DOUBLE"], result_types={"y": type_}, name="it")
    def rows(x: float) -> Any:
        return [(_argument(type_, x),)]

    _check(lambda: _map_value(rows, value).column("output_0")[0].as_py()["y"], expected)


@pytest.mark.parametrize("value", [Decimal("1e400"), "1e400", 10**400])
def test_numbers_and_texts_beyond_double_are_refused(value: Any) -> None:
    with pytest.raises(CastError, match="does not fit DOUBLE") as excinfo:
        cast_results([value], pa.float64())
    assert excinfo.value.code == "OVERFLOW"
    assert cast_results([Decimal("Infinity"), "inf", "NaN"], pa.float32()).to_pylist()[:2] == [math.inf, math.inf]


def test_a_state_beyond_its_type_is_refused() -> None:
    @udaf(name="it")
    class Narrow:
        def create_accumulator(self) -> Annotated[float, "REAL"]:
            return 0.0

        def accumulate(self, accumulator: float, x: float) -> float:
            return x

        def get_value(self, accumulator: float) -> float:
            return accumulator

    with pytest.raises(FunctionError, match="does not fit REAL") as excinfo:
        run_epochs({"it": connect(Narrow)["it"]("x")}, [[{"x": 1e300}]])
    assert excinfo.value.code == "OVERFLOW"
