"""Classes of other engines as functions: how their dialect is found, refusals, and how they are shipped."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionContext, FunctionError, RejectedError, connect, udaf
from foldflight.ext.compiler.programs import Programs
from foldflight.ext.dialects.beam import CombineFn
from foldflight.ext.dialects.pyflink import FlinkContext, arrow_of
from foldflight.ext.dialects.snowflake import Handled
from foldflight.ext.dialects.spark_aggregator import Aggregator
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry, aggregate_of, function_of
from foldflight.functions.author.adapters import adapter_of
from foldflight.functions.flink import AggregateFunction, DataTypes, ListView, MapView, Row
from foldflight.shipping.bundles import unpickle
from foldflight.shipping.pickling import bundle_of, pickle_functions, unpickled_copy
from foldflight.testing import run_epochs
from tests.engines import beam_functions, flink_functions, other_functions
from tests.engines.adapted import ADAPTED
from tests.folds import open_fold

KEY = "a key of at least sixteen bytes"


def methods(*names: str, **more: Any) -> type:
    return type("Given", (), {**{name: lambda self, *_: None for name in names}, **more})


# What the class has: the dialect it is.
FOUND: dict[str, tuple[type, str | None]] = {
    "flink by its base": (flink_functions.WeightedAvg, "flink"),
    "our own, with methods named as PyFlink's": (
        methods("create_accumulator", "accumulate", "get_value", "merge", "get_accumulator_type", "get_result_type"),
        None,
    ),
    "beam": (methods("create_accumulator", "add_input", "merge_accumulators", "extract_output"), "beam"),
    "spark": (other_functions.Mean, "spark-aggregator"),
    "snowflake": (other_functions.PythonAvg, "snowflake"),
    "doris": (other_functions.MedianUDAF, "snowflake"),
    "arrow-udf": (other_functions.WeightedAvg, "arrow-udf"),
    "arrow-udf without finish": (other_functions.Latest, "arrow-udf"),
    "our own": (methods("create_accumulator", "accumulate", "merge", "get_value"), None),
    "our own, with words of others": (methods("accumulate", "get_value", "reduce", "aggregate_state", "zero"), None),
    "nothing": (methods(), None),
}


@pytest.mark.parametrize("case", FOUND)
def test_the_dialect_is_found(case: str) -> None:
    """The base class tells the dialect; without one, the methods do. Our own form comes first."""
    cls, expected = FOUND[case]
    result = adapter_of(cls, None)
    assert (None if result is None else result.name) == expected


def test_base_classes_are_found_without_their_packages() -> None:
    """An engine's base class is known by its module and name, and its methods are not the author's."""
    base: Any = type("CombineFn", (), {"merge_accumulators": lambda self, them: 1 / 0, "setup": lambda self: None})
    base.__module__ = "apache_beam.transforms.core"
    cls = type("Sum", (base,), {"create_accumulator": lambda self: 0, "add_input": lambda self, a, e: a + e})
    result = adapter_of(cls, None)
    assert result is not None
    assert result.name == "beam"
    assert [method.name for method in result.missing(cls)] == ["merge_accumulators", "extract_output"]
    assert "apache_beam" not in sys.modules


# A class and how it is decorated: what the error says.
REFUSED: dict[str, tuple[type, dict[str, Any], str]] = {
    "beam lacks": (
        methods("add_input", "extract_output"),
        {},
        r"adapted as CombineFn of Beam .* no create_accumulator, merge_accumulators; define create_accumulator\(self\)",
    ),
    "said, lacks": (methods("accumulate"), {"adapt": "snowflake"}, "no merge, finish, aggregate_state; define merge"),
    "spark lacks": (methods("zero", "reduce", "finish"), {}, r"no merge; define merge\(self, buffer1, buffer2\)"),
    "flink lacks": (type("Given", (AggregateFunction,), {}), {}, "no create_accumulator, accumulate, get_value"),
    "unknown": (methods(), {"adapt": "flnk"}, "there is no engine 'flnk'; adapt takes 'flink', 'arrow-udf'"),
    "two": (
        methods("zero", "reduce", "create_state", "finish", "merge", "accumulate"),
        {},
        "methods of arrow-udf and spark-aggregator; say which it is",
    ),
    "none": (methods(), {}, r"or say for which engine the class is written: @udaf\(adapt=...\)"),
    "no types": (
        methods("create_accumulator", "add_input", "merge_accumulators", "extract_output"),
        {},
        "add_input does not declare the types of its arguments",
    ),
    "no result": (
        beam_functions.AverageFn,
        {"input_types": ["INT"]},
        "extract_output does not declare the type of the result",
    ),
    "arguments": (flink_functions.WeightedAvg, {"input_types": ["INT"]}, "does not take 1 arguments declared"),
    "compiled": (flink_functions.WeightedAvg, {"input_types": ["INT", "INT"], "compile": True}, "drop compile=True"),
    "a method as state": (
        methods("accumulate", "merge", "finish", "aggregate_state"),
        {"input_types": []},
        "aggregate_state is not a property; write @property aggregate_state",
    ),
    "raises": (
        type("Raises", (flink_functions.WeightedAvg,), {"get_result_type": lambda self: 1 / 0}),
        {"input_types": ["INT", "INT"]},
        r"cannot be asked for its types \(ZeroDivisionError.*give @udaf\(result_type=...\)",
    ),
    "unknown type": (
        type("Odd", (flink_functions.WeightedAvg,), {"get_accumulator_type": lambda self: "GRAPH"}),
        {"input_types": ["INT", "INT"]},
        "GRAPH",
    ),
    "states by call": (
        beam_functions.AverageFn,
        {"input_types": ["INT"], "result_type": "INT", "state_type": lambda *types: "INT"},
        "has a callable as state_type",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_missing_method_is_named(case: str) -> None:
    """A class that an engine could not call is refused, with the missing method and the remedy."""
    cls, options, message = REFUSED[case]
    with pytest.raises(RejectedError, match=message) as excinfo:
        udaf(**options)(cls)
    assert excinfo.value.code == "SIGNATURE"
    assert function_of(cls) is None


def test_an_immutable_accumulator_gets_an_error() -> None:
    """PyFlink ignores what accumulate returns, so a number stays what it is; to return it would be no remedy."""

    class Ups(AggregateFunction):
        def create_accumulator(self):
            return 0

        def accumulate(self, accumulator, value):
            return accumulator + 1

        def get_value(self, accumulator):
            return accumulator

    function = aggregate_of(Ups, input_types=["BIGINT"], result_type="BIGINT")
    batch = pa.RecordBatch.from_pydict({"v": [1]})
    fold = open_fold(
        bind_calls(Registry([function]), [Call("ups", ("v",))], batch.schema), signer=StateSigner([b"k" * 16])
    )
    with pytest.raises(FunctionError, match=r"what accumulate returns is ignored.* type int cannot change .*; let"):
        fold.fold(batch)


def test_an_instance_is_refused() -> None:
    """Some engines take an instance; here its arguments are given in each call."""
    instance: Any = beam_functions.AverageFn()
    with pytest.raises(RejectedError, match="is not a class; put @udaf on a class"):
        udaf(input_types=["INT"], result_type="DOUBLE")(instance)


def test_table_aggregates_are_refused() -> None:
    """PyFlink's table aggregate functions emit rows; they have no value."""
    cls = methods("create_accumulator", "accumulate", "emit_value", "get_result_type", "get_accumulator_type")
    with pytest.raises(RejectedError, match=r"has no method get_value; define get_value\(self, accumulator\)"):
        udaf(cls)


# The name of the function: its signature, and the type of its states.
KNOWN = {
    "weighted_avg": ("weighted_avg(value INT, weight INT) -> DOUBLE", "struct<f0: int64, f1: int64>"),
    "list_view_concat": (
        "list_view_concat(args1 STRING, args2 STRING) -> STRING",
        "struct<f0: list<item: string>, f1: string>",
    ),
    "distinct_sum": ("distinct_sum(value INT) -> BIGINT", "struct<counts: map<int64, int64>, total: int64>"),
    "spread": ("spread(value BIGINT) -> STRUCT<low BIGINT, high BIGINT>", "list<item: int64>"),
    "average_fn": ("average_fn(input INT) -> DOUBLE", "binary"),
    "weighted_mean_fn": (
        "weighted_mean_fn(element1 DOUBLE, element2 DOUBLE, scale => 1.0) -> DOUBLE",
        "struct<f0: double, f1: double>",
    ),
    "spark_mean": ("spark_mean(value INT) -> DOUBLE", "struct<sum: double, count: int64>"),
    "python_avg": ("python_avg(input_value INT) -> DOUBLE", "struct<count: int64, sum: int64>"),
    "latest": ("latest(value INT) -> INT", "binary"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_types_come_from_the_class(name: str) -> None:
    """Arguments, results and states have the types that the class declares in the way of its engine."""
    function = ADAPTED[name].function
    assert function.input_types is not None
    bound = function.bind(function.input_types, {})
    assert (function.signature, str(bound.state_type)) == KNOWN[name]


def test_every_adapted_function_keeps_its_states_from_epoch_to_epoch() -> None:
    """States are stored after each epoch and read in the next, with deletes where the function retracts."""
    functions = connect([each.function for each in ADAPTED.values()])
    first, second, third = run_epochs(
        {
            "average": functions["average_fn"]("x"),
            "mean": functions["spark_mean"]("x"),
            "avg": functions["python_avg"]("x"),
            "median": functions["median_udaf"]("x"),
            "concat": functions["list_view_concat"]("t", "separator"),
            "latest": functions["latest"]("x"),
            "scaled": functions["weighted_mean_fn"]("x", "x", scale=10.0),
        },
        [
            [{"x": 1, "t": "a", "separator": "-"}, {"x": 5, "t": "b", "separator": "-"}],
            [{"x": None, "t": None, "separator": "-"}, {"x": 6, "t": "c", "separator": "+"}],
            [],
        ],
        types={"x": "INT", "t": "TEXT", "separator": "TEXT"},
    )
    assert first.changelog[-1][1] == {
        "average": 3.0, "mean": 3.0, "avg": 3.0, "median": 3.0, "concat": "a-b", "latest": 5,
        "scaled": 10.0 * 26 / 6,
    }  # fmt: skip
    assert second.changelog[-1][1] == {
        "average": 4.0, "mean": 4.0, "avg": 4.0, "median": 5.0, "concat": "a+b+c", "latest": 6,
        "scaled": 10.0 * 62 / 12,
    }  # fmt: skip
    assert third.changelog == []
    assert second.states[()]["mean"] == {"sum": 12.0, "count": 3}
    assert second.states[()]["avg"] == {"count": 3, "sum": 12}


def test_a_class_that_retracts_takes_rows_back() -> None:
    """A class that retracts takes rows back; one that does not gets a `retract` in a subclass."""

    @udaf(input_types=["DOUBLE"], result_type="DOUBLE")
    class Average(beam_functions.AverageFn):
        def retract(self, sum_count: Any, element: float) -> Any:
            return sum_count[0] - element, sum_count[1] - 1

    functions = connect([Average, *(each.function for each in ADAPTED.values())])
    _, epoch = run_epochs(
        {
            "average": functions["average"]("x"),
            "weighted": functions["weighted_avg"]("n", "n"),
            "distinct": functions["distinct_sum"]("n"),
            "spread": functions["spread"]("n"),
            "arrow": functions["arrow_weighted_avg"]("n", "n"),
        },
        [
            [{"x": 1.0, "n": 1}, {"x": 3.0, "n": 3}, {"x": 3.0, "n": 3}],
            [("-D", {"x": 1.0, "n": 1}), ("-D", {"x": 3.0, "n": 3})],
        ],
        types={"x": "DOUBLE", "n": "INT"},
    )
    assert epoch.changelog[-1][1] == {
        "average": 3.0, "weighted": 3.0, "distinct": 3, "spread": {"low": 3, "high": 3}, "arrow": 3.0,
    }  # fmt: skip


def test_bundles_need_no_engine() -> None:
    """Shipped code has stand-ins for the classes of engines, and no attribute that only declares types."""
    base: Any = type("CombineFn", (), {"setup": lambda self: None})
    base.__module__ = "apache_beam.transforms.core"
    cls = type(
        "Total",
        (base,),
        {
            "__module__": "__main__",
            "_type_hints": base,
            "create_accumulator": lambda self: 0,
            "add_input": lambda self, total, element: total + element,
            "merge_accumulators": lambda self, totals: sum(totals),
            "extract_output": lambda self, total: total,
        },
    )
    function = aggregate_of(cls, input_types=["INT"], result_type="BIGINT")
    (there,) = unpickled_copy([function])
    assert there.source.__bases__ == (CombineFn,)
    assert not hasattr(there.source, "_type_hints")
    assert run_epochs({"it": connect(there)["total"]("x")}, [[{"x": 2}, {"x": 3}]])[0].changelog[0][1] == {"it": 5}
    assert bundle_of([function], KEY)


def test_the_code_of_a_spark_aggregator_does_not_import_pyspark() -> None:
    """A server without PySpark unpickles and runs it, although the class declares its types with PySpark's."""
    code = pickle_functions([ADAPTED["spark_mean"].function])
    program = """
import sys
sys.modules["pyspark"] = sys.modules["apache_beam"] = None
import pickle
(function,) = pickle.load(sys.stdin.buffer)
methods = function.instantiate({})
print(function.where, methods.get_value(methods.accumulate(methods.accumulate((0.0, 0), 1), 2)))
"""
    process = subprocess.run(
        [sys.executable, "-c", program], input=code, capture_output=True, check=False, cwd=Path.cwd()
    )
    assert process.stdout.decode() == "tests.engines.other_functions.Mean 1.5\n", process.stderr.decode()
    assert unpickle(code, "digest")[0].source.__bases__ in {(object,), (Aggregator,)}


def test_pickled_states_of_handlers_are_their_aggregate_states() -> None:
    """The handler itself is not pickled: it may have what cannot be."""
    handler = types.SimpleNamespace(aggregate_state=[1, 2], lock=sys.stdin)
    restored_state = pickle.loads(pickle.dumps(Handled(handler)))
    assert (restored_state.handler, restored_state.state) == (None, [1, 2])


def test_adapted_classes_are_interpreted() -> None:
    """`foldflight functions` says why."""
    folding_of_class = Programs().folding(ADAPTED["weighted_avg"].function)
    assert folding_of_class.mode is Mode.INTERPRETED
    assert folding_of_class.reason.startswith("its class is adapted from flink (flink_functions.py:")


def test_handlers_migrate_states() -> None:
    """`migrate` of a handler takes and returns states."""

    class Migrated(other_functions.PythonSum):
        @property
        def aggregate_state(self) -> int:
            return self._partial_sum

        def migrate(self, version: str, state: Any) -> Any:
            return state + 1000

    methods = aggregate_of(Migrated, input_types=["INT"], result_type="BIGINT").instantiate({})
    assert methods.migrate is not None
    assert [methods.get_value(methods.migrate("1", state)) for state in (7, Handled(None, 8))] == [1007, 1008]


def test_a_state_that_is_none_is_kept_or_refused() -> None:
    """A NULL state would mean that there is none, and the rows of the group would be lost."""

    class Highest:
        def __init__(self) -> None:
            self.high: int | None = None

        @property
        def aggregate_state(self) -> int | None:
            return self.high

        def accumulate(self, value: int) -> None:
            if value > 0:
                self.high = max(value, self.high or 0)

        def merge(self, other: int | None) -> None:
            if other is not None:
                self.accumulate(other)

        def finish(self) -> int | None:
            return self.high

    class Wrong(Highest):
        @property
        def aggregate_state(self) -> int:
            return self.high  # type: ignore[return-value]

    rows = [[{"x": -1}], [{"x": 4}]]
    for options in ({}, {"state_type": "INT"}):
        function = aggregate_of(Highest, input_types=["INT"], result_type="INT", **options)
        assert run_epochs({"it": connect(function)["highest"]("x")}, rows)[-1].changelog[-1][1] == {"it": 4}
    function = aggregate_of(Wrong, input_types=["INT"], result_type="INT")
    with pytest.raises(FunctionError, match=r"aggregate_state returned None, .* annotate it as"):
        run_epochs({"it": connect(function)["wrong"]("x")}, rows)


def test_declared_states_are_tuples() -> None:
    """A class of Beam without annotations has typed states if the declaration gives the type."""
    options = {"input_types": ["INT"], "result_type": "DOUBLE", "state_type": "STRUCT<total DOUBLE, n BIGINT>"}
    function = aggregate_of(beam_functions.AverageFn, **options)
    first, second = run_epochs({"it": connect(function)["average_fn"]("x")}, [[{"x": 2}], [{"x": 4}]])
    assert first.states[()] == {"it": {"total": 2.0, "n": 1}}
    assert second.changelog[-1][1] == {"it": 3.0}


def test_methods_that_engines_ignore_are_ignored() -> None:
    """PyFlink ignores what accumulate returns; here it would be the new accumulator."""

    class Returns(flink_functions.WeightedAvg):
        def accumulate(self, accumulator: Any, value: Any, weight: Any) -> str:
            super().accumulate(accumulator, value, weight)
            return "ignored"

        def is_deterministic(self) -> bool:
            return False

    function = aggregate_of(Returns, input_types=["INT", "INT"])
    assert not function.is_deterministic
    result = run_epochs({"it": connect(function)["returns"]("x", "x")}, [[{"x": 2}]])[0].changelog[0][1]
    assert result == {"it": 2.0}


def test_none_is_a_state_of_arrow_udf() -> None:
    """A state may be None after any row, as in arrow-udf; typed states would lose it, so there it is an error."""

    class Reset(other_functions.Latest):
        def accumulate(self, state: Any, value: Any) -> Any:
            return None if value == 0 else value

    functions = connect(aggregate_of(Reset, input_types=["INT"], result_type="INT"))
    epochs = run_epochs({"it": functions["reset"]("x")}, [[{"x": 3}, {"x": 0}], [{"x": 4}]], types={"x": "INT"})
    assert [epoch.changelog[-1][1] for epoch in epochs] == [{"it": None}, {"it": 4}]


def test_states_of_arrow_udf_may_change_in_place() -> None:
    """A list that accumulate changes without returning it is kept."""

    class Collected:
        def create_state(self) -> Any:
            return []

        def accumulate(self, state: Any, value: Any) -> None:
            state.append(value)

        def finish(self, state: Any) -> int:
            return len(state)

    function = aggregate_of(Collected, input_types=["INT"], result_type="BIGINT")
    result = run_epochs({"it": connect(function)["collected"]("x")}, [[{"x": 3}, {"x": 4}]])[0].changelog[0][1]
    assert result == {"it": 2}


def test_a_list_is_restored_as_a_tuple_buffer() -> None:
    """Spark takes lists as buffers, too."""

    class Lists(other_functions.Mean):
        def reduce(self, buffer: Any, value: Any) -> Any:
            return [buffer[0] + value[0], buffer[1] + 1]

    function = aggregate_of(Lists, input_types=["INT"])
    epochs = run_epochs({"it": connect(function)["lists"]("x")}, [[{"x": 3}], [{"x": 4}]])
    assert epochs[-1].changelog[-1][1] == {"it": 3.5}
    assert function.serializer is not None
    assert function.serializer.from_arrow(function.serializer.to_arrow([[1.0, 2]])) == [(1.0, 2)]


def test_rows_and_views_are_those_of_pyflink() -> None:
    """A row has names or not, changes in place, and survives a pickle; views do what lists and dicts do."""
    named_row = Row(a=1, b=2)
    named_row[0] = 5
    assert (named_row.a, named_row["b"], list(named_row), len(named_row), "a" in named_row) == (5, 2, [5, 2], 2, True)
    assert Row("a", "b")(5, 2) == named_row == pickle.loads(pickle.dumps(named_row))
    assert (repr(named_row), repr(Row(1)), named_row.as_dict()) == ("Row(a=5, b=2)", "<Row(1)>", {"a": 5, "b": 2})
    assert Row(1, 2) != named_row
    with pytest.raises(AttributeError, match=r"set row\['a'\]"):
        named_row.a = 1
    with pytest.raises(AttributeError):
        _ = named_row.c
    items: ListView[int] = ListView()
    items.add(1)
    items.add_all([2, 3])
    assert (list(items), items.get(), items == ListView([1, 2, 3])) == ([1, 2, 3], [1, 2, 3], True)
    items.clear()
    assert list(items) == []
    counts: MapView[str, int] = MapView()
    counts["a"] = 1
    counts.put_all({"b": 2})
    assert (counts["b"], "a" in counts, counts.contains("c"), list(counts)) == (2, True, False, ["a", "b"])
    del counts["a"]
    assert (dict(counts.items()), list(counts.keys()), list(counts.values())) == ({"b": 2}, ["b"], [2])
    counts.remove("a")
    del counts["a"]
    assert (counts.get("a"), counts["a"], counts.get("b")) == (None, None, 2)
    counts.clear()
    assert counts.is_empty()


class Letters(AggregateFunction[Row, int]):
    """The number of letters that occur once or more, in a map that is asked for letters which it does not have."""

    def create_accumulator(self):
        return Row(MapView(), MapView())

    def accumulate(self, accumulator, letter):
        counts, last = accumulator
        counts.put(letter, (counts.get(letter) or 0) + 1)
        last["letter"] = letter if last["letter"] is None else max(last["letter"], letter)

    def retract(self, accumulator, letter):
        counts, last = accumulator
        left = counts[letter] - 1
        counts.remove(letter)
        counts.remove(letter)
        del last["letter"]
        del last["letter"]
        if left:
            counts.put(letter, left)

    def merge(self, accumulator, accumulators):
        for other, _ in accumulators:
            for letter, count in other.items():
                accumulator[0].put(letter, (accumulator[0].get(letter) or 0) + count)

    def get_value(self, accumulator):
        return len(list(accumulator[0].keys()))

    def get_result_type(self):
        return DataTypes.BIGINT()


class TypedLetters(Letters):
    """The same, with a typed state."""

    def get_accumulator_type(self):
        counts = DataTypes.MAP_VIEW(DataTypes.STRING(), DataTypes.BIGINT())
        last = DataTypes.MAP_VIEW(DataTypes.STRING(), DataTypes.STRING())
        return DataTypes.ROW([DataTypes.FIELD("counts", counts), DataTypes.FIELD("last", last)])


@pytest.mark.parametrize("cls", [TypedLetters, Letters])
def test_a_map_view_of_pyflink_returns_none_for_a_missing_key(cls: type) -> None:
    """It is None for `get`, and nothing to `remove`, as in the views of a job of PyFlink; also after a restore."""
    function = connect([aggregate_of(cls, name="letters", input_types=["STRING"])])["letters"]
    rows = [{"x": each} for each in "aba"]
    later = [("-D", {"x": "b"}), ("-D", {"x": "a"}), {"x": "c"}, {"x": "d"}]
    epochs = run_epochs({"it": function("x")}, [rows, later])
    assert [epoch.changelog[-1][1] for epoch in epochs] == [{"it": 2}, {"it": 3}]


def test_each_type_of_pyflink_has_an_arrow_type() -> None:
    """Each type has an Arrow type; lengths and nullability have no effect."""
    fields = [
        DataTypes.FIELD("a", DataTypes.ARRAY(DataTypes.INT())),
        DataTypes.FIELD("b", DataTypes.VARCHAR(10, False)),
    ]
    assert arrow_of(DataTypes.ROW(fields)) == pa.struct([("a", pa.list_(pa.int32())), ("b", pa.string())])
    assert arrow_of(DataTypes.MAP(DataTypes.STRING(), DataTypes.DECIMAL(10, 2))) == pa.map_(
        pa.string(), pa.decimal128(10, 2)
    )
    assert arrow_of("ROW<f0 BIGINT, f1 ARRAY<ROW<x INT>>>") == pa.struct(
        [("f0", pa.int64()), ("f1", pa.list_(pa.struct([("x", pa.int32())])))]
    )


def test_open_gets_the_context_of_pyflink() -> None:
    """`open` gets PyFlink's context: parameters of the job and groups of metrics."""
    metric_calls: list[tuple[str, str, float]] = []

    class Sink:
        def add(self, function: str, name: str, amount: float) -> None:
            metric_calls.append((function, name, amount))

        set = observe = add

    class Opens(flink_functions.DistinctSum):
        def open(self, function_context: Any) -> None:
            self.limit = int(function_context.get_job_parameter("limit", "7"))
            group = function_context.get_metric_group()
            group.counter("opened").inc()
            group.add_group("inner").meter("events").mark_event(2)
            group.distribution("sizes").update(3)

    methods = aggregate_of(Opens, input_types=["BIGINT"]).instantiate({})
    assert methods.open is not None
    context = FunctionContext("opens", job_parameters={"limit": "9"}, metrics=Sink())
    methods.open(context)
    assert metric_calls == [("opens", "opened", 1), ("opens", "inner_events", 2), ("opens", "sizes", 3)]
    assert FlinkContext(context).get_job_parameter("none", "default") == "default"
    assert FlinkContext(context).function == "opens"


def test_a_module_of_subclasses_is_loaded() -> None:
    """A module that adapts classes of another module, each in a subclass, has these functions."""
    module = types.ModuleType("adapted_by_subclass")
    source = """
from foldflight import udaf
from tests.engines import beam_functions
@udaf(input_types=["INT"], result_type="DOUBLE")
class Average(beam_functions.AverageFn):
    "The average of Beam's guide."
"""
    exec(source, module.__dict__)
    (function,) = Registry.load([module]).authored
    assert (function.name, function.doc) == ("average", "The average of Beam's guide.")
    assert getattr(function, "adapter", None) == "beam"
