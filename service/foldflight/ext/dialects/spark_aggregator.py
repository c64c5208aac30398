"""Spark's `Aggregator`, as a Python class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foldflight.functions.author.adapters import Adapter, Method


class Aggregator:
    """Replaces the base class of Spark's aggregators in shipped code."""


class _SparkAggregator(Adapter):
    """The conventions of Spark's typed aggregators."""

    def bound_methods(self, author_methods: Any, instance: Callable[[], Any]) -> dict[str, Any]:  # noqa: ARG002 - as the others
        return {
            "create_accumulator": author_methods.create_accumulator,
            "accumulate": lambda buffer, *values: author_methods.accumulate(buffer, values),
            "retract": lambda buffer, *values: author_methods.retract(buffer, values),
            "merge": author_methods.merge,
            "get_value": author_methods.get_value,
        }


_BASE: Final = ("pyspark.sql.aggregator", "Aggregator")
SPARK_AGGREGATOR: Final = _SparkAggregator(
    "spark-aggregator",
    "Aggregator of Spark",
    {
        "create_accumulator": Method("zero", required=True),
        "accumulate": Method("reduce", ("buffer",), "tuple", required=True),
        "retract": Method("retract", ("buffer",), "tuple"),
        "merge": Method("merge", ("buffer1", "buffer2"), required=True),
        "get_value": Method("finish", ("buffer",), required=True),
    },
    marks=("zero", "reduce"),
    returns_accumulator=True,
    base=_BASE,
    replaced={_BASE: Aggregator},
    declaring=("bufferSchema", "outputType"),
    result="outputType",
    state="bufferSchema",
)
