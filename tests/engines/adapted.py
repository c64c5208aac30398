"""The functions of this folder, adapted; and how each engine calls its classes, as plain loops."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foldflight.functions import Function, aggregate_of
from tests.engines import beam_functions as beam
from tests.engines import flink_functions as flink
from tests.engines import other_functions as other

Rows = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Adapted:
    """A function of another engine.

    Args:
        function: The function of foldflight.
        evaluate: Returns the answer of the engine for parts of the rows of a group, which it folds apart and merges.
    """

    function: Function
    evaluate: Callable[[Sequence[Rows]], Any]


def _flink(cls: type) -> Callable[[Sequence[Rows]], Any]:
    def evaluate(parts: Sequence[Rows]) -> Any:
        it = cls()
        accumulators = []
        for rows in parts:
            accumulators.append(it.create_accumulator())
            for row in rows:
                it.accumulate(accumulators[-1], *row)
        if len(accumulators) > 1:
            it.merge(accumulators[0], accumulators[1:])
        return it.get_value(accumulators[0])

    return evaluate


def _beam(cls: type) -> Callable[[Sequence[Rows]], Any]:
    def evaluate(parts: Sequence[Rows]) -> Any:
        it = cls()
        if hasattr(it, "setup"):
            it.setup()
        accumulators = []
        for rows in parts:
            accumulator = it.create_accumulator()
            for row in rows:
                accumulator = it.add_input(accumulator, row[0] if len(row) == 1 else row)
            accumulators.append(it.compact(accumulator) if hasattr(it, "compact") else accumulator)
        return it.extract_output(it.merge_accumulators(accumulators))

    return evaluate


def _spark(cls: type) -> Callable[[Sequence[Rows]], Any]:
    def evaluate(parts: Sequence[Rows]) -> Any:
        it = cls()
        merged_buffer = it.zero()
        for rows in parts:
            buffer = it.zero()
            for row in rows:
                buffer = it.reduce(buffer, row)
            merged_buffer = it.merge(merged_buffer, buffer)
        return it.finish(merged_buffer)

    return evaluate


def _snowflake(cls: type) -> Callable[[Sequence[Rows]], Any]:
    def evaluate(parts: Sequence[Rows]) -> Any:
        parent = cls()
        for rows in parts:
            child = cls()
            for row in rows:
                child.accumulate(*row)
            parent.merge(pickle.loads(pickle.dumps(child.aggregate_state)))
        return parent.finish()

    return evaluate


def _arrow_udf(cls: type) -> Callable[[Sequence[Rows]], Any]:
    def evaluate(parts: Sequence[Rows]) -> Any:
        it = cls()
        states = []
        for rows in parts:
            states.append(it.create_state())
            for row in rows:
                states[-1] = it.accumulate(states[-1], *row)
        state = states[0]
        for each in states[1:]:
            state = it.merge(state, each)
        return it.finish(state) if hasattr(it, "finish") else state

    return evaluate


_WAYS = {
    "flink": _flink,
    "beam": _beam,
    "spark-aggregator": _spark,
    "snowflake": _snowflake,
    "arrow-udf": _arrow_udf,
}


def _adapt(functions: Iterable[tuple[type, dict[str, Any]]]) -> dict[str, Adapted]:
    result = {}
    for cls, options in functions:
        function = aggregate_of(cls, skip_nulls=True, **options)
        result[function.name] = Adapted(function, _WAYS[function.adapter](cls))
    return result


ADAPTED = _adapt(
    [
        (flink.WeightedAvg, {"input_types": ["INT", "INT"]}),
        (flink.ListViewConcat, {"input_types": ["TEXT", "TEXT"]}),
        (flink.DistinctSum, {"input_types": ["INT"]}),
        (flink.Spread, {"input_types": ["BIGINT"]}),
        (beam.AverageFn, {"input_types": ["INT"], "result_type": "DOUBLE"}),
        (beam.PercentagesFn, {"input_types": ["TEXT"], "result_type": "MAP<TEXT, DOUBLE>"}),
        (beam.WeightedMeanFn, {}),
        (other.Mean, {"input_types": ["INT"], "name": "spark_mean"}),
        (other.PythonSum, {"input_types": ["INT"], "result_type": "BIGINT"}),
        (other.PythonAvg, {"input_types": ["INT"], "result_type": "DOUBLE"}),
        (other.MedianUDAF, {"input_types": ["INT"], "result_type": "DOUBLE"}),
        (other.WeightedAvg, {"input_types": ["INT", "INT"], "result_type": "DOUBLE", "name": "arrow_weighted_avg"}),
        (other.Latest, {"input_types": ["INT"], "result_type": "INT"}),
    ]
)
