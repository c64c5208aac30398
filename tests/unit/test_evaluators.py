"""What an exchange evaluates: aggregates or expressions, bound once for equal exchanges."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from foldflight import RejectedError, udaf
from foldflight.exchange.frames import Open
from foldflight.exchange.server_exchange import bind, describe
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources
from foldflight.functions import Call, Registry
from foldflight.functions.author.udaf import function_of
from foldflight.functions.query.call import Request
from foldflight.testing.pair import LIMITS, ExchangePair

COLUMNS = pa.schema([("x", pa.int64())])


def test_aggregates_are_evaluators() -> None:
    """A request with calls is bound to them, and opens a fold."""
    bound = bind(Request((Call("count", ("x",)),), COLUMNS), Registry())
    evaluator = bound.open(Resources())
    assert bound.schema.names == ["slot", "state_0", "output_0"]
    assert not evaluator.chunk(pa.record_batch([pa.array([1, None])], schema=COLUMNS))
    assert evaluator.collect(states=True, outputs=True).column("output_0").to_pylist() == [1]
    assert (evaluator.slot_count, evaluator.modes) == (1, (Mode.VECTORISED,))
    evaluator.close()


def test_an_exchange_without_calls_is_refused() -> None:
    """A request that no evaluator accepts is an error of the job, not of the server."""
    with pytest.raises(RejectedError, match="no calls"):
        describe(Open((), COLUMNS), Registry(), LIMITS, "s")


@udaf(input_types=["BIGINT"], result_type="STRING")
class Echo:
    """The type and the value of its direct argument."""

    def __init__(self, literal: object) -> None:
        self.literal = literal

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> str:
        return repr(self.literal)


def test_equal_exchanges_are_bound_once() -> None:
    """All tasks of a query bind its calls once for the functions of a process; another query is bound by itself."""
    registry, bound = Registry(), []
    for name in ("sum", "sum", "max", "sum"):
        ExchangePair(Open((Call(name, ("x",)),), COLUMNS), registry).server.close()
        bound.append(len(registry.recent_requests))
    assert bound == [1, 1, 2, 2]
    for place in range(20):  # and only the newest are kept
        ExchangePair(Open((Call("sum", ("x",)),), COLUMNS, job_parameters={"p": str(place)}), registry).server.close()
    assert len(registry.recent_requests) < 20


@pytest.mark.parametrize("order", [(1, True, 1.0), (True, 1.0, 1), (-0.0, 0.0, 0)])
def test_direct_arguments_that_are_equal_but_not_the_same_are_bound_apart(order: tuple[object, ...]) -> None:
    """Python's 1, 1.0 and True are equal, and a function may tell them from each other."""
    registry = Registry([function_of(Echo)])
    result = []
    for value in order:
        pair = ExchangePair(Open((Call("echo", ("x",), literals={"literal": value}),), COLUMNS), registry)
        pair.send(pair.engine.chunk(pa.record_batch([pa.array([1])], schema=COLUMNS)))
        result += pair.epoch(1).column("output_0").to_pylist()
        pair.server.close()
    assert result == [repr(value) for value in order]


def test_arrays_of_numpy_are_lists_as_they_are_on_servers() -> None:
    """Exchanges with other arrays, also where NumPy's text shows no difference, are bound apart."""
    registry = Registry([function_of(Echo)])
    result = []
    for array in (np.zeros(2000), np.arange(2000) == 1000, np.zeros(2000)):
        request = Open((Call("echo", ("x",), literals={"literal": {"a": [array], "n": np.int64(1)}}),), COLUMNS)
        describe(request, registry, LIMITS, "s")
        result.append(request.calls[0].literals["literal"])
    assert result == [{"a": [[0.0] * 2000], "n": 1}, {"a": [[at == 1000 for at in range(2000)]], "n": 1}, result[0]]
    assert len(registry.recent_requests) == 2
