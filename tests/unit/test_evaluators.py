"""The server's end of an exchange drives any evaluator; a new one is an entry in a table."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from foldflight import RejectedError, udaf
from foldflight.exchange.frames import Forget, Log, Open, RowOutputs
from foldflight.exchange.serving import describe
from foldflight.fold import BoundRequest, Evaluator, Mode, Request, Resources, bind, evaluators
from foldflight.functions import Call, LogRecord, Registry
from foldflight.functions.author.udaf import function_of
from foldflight.testing.pair import LIMITS, ExchangePair

COLUMNS = pa.schema([("x", pa.int64())])
SCHEMA = pa.schema([("slot", pa.int32()), ("output_0", pa.int64())])


@dataclass(frozen=True)
class Facts:
    fingerprint: str = "0" * 16
    input_types: tuple[pa.DataType, ...] = (pa.int64(),)
    can_retract: bool = False
    can_merge: bool = False
    can_migrate: bool = False
    is_invertible: bool = False
    views = ()


class BoundDoubles:
    """Binds calls of `double`, which no registry has."""

    calls = (Facts(),)
    schema = SCHEMA

    def __init__(self, request: Request, registry: Registry, where: str) -> None:
        self.request = request

    @staticmethod
    def takes(request: Request) -> bool:
        return any(call.function == "double" for call in request.calls)

    def check(self, accelerator: Any) -> None:
        raise RejectedError("SIGNATURE", "double is never compiled")

    def open(self, resources: Resources) -> Doubles:
        OPENED.append(Doubles(resources))
        return OPENED[-1]


OPENED: list[Doubles] = []


class Doubles:
    """Answers each row with twice its value, without state."""

    kinds = (Mode.INTERPRETED,)
    slot_count = state_bytes = 0
    is_saved = True

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.isolated: Counter[str] = Counter()
        self.story: list[str] = []

    def merge_states(self, batch: pa.RecordBatch) -> None:
        self.story.append("states")

    def outputs(self, slots: pa.Array) -> pa.RecordBatch:
        return self.collect(states=False, outputs=True)

    def chunk(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        assert self.resources.log is not None
        self.resources.log(LogRecord("info", "double", f"{batch.num_rows} rows", {}))
        places = pa.array(range(batch.num_rows), pa.int32())
        return [pa.record_batch([places, pc.multiply(batch.column("x"), 2)], schema=SCHEMA)]

    def collect(self, *, states: bool, outputs: bool) -> pa.RecordBatch:
        return pa.record_batch([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)

    def unsaved(self) -> pa.RecordBatch:
        return self.collect(states=True, outputs=False)

    def forget(self, slots: pa.Array) -> None:
        self.story.append(f"forget {slots.to_pylist()}")

    def close(self) -> None:
        self.story.append("close")


@pytest.fixture
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "EVALUATORS", (BoundDoubles, *evaluators.EVALUATORS))


def opened(function: str) -> ExchangePair:
    return ExchangePair(Open((Call(function, ("x",)),), COLUMNS, row_outputs=True), Registry())


@pytest.mark.usefixtures("_two")
def test_another_evaluator_serves_an_exchange() -> None:
    """Rows, barriers, logs and the end reach it through the existing frames; aggregates are not affected."""
    rows = pa.record_batch([pa.array([1, 2])], schema=COLUMNS)
    for function, outputs, results in (("double", [2, 4], []), ("sum", [1, 3], [3])):
        pair = opened(function)
        assert pair.server.folds == (Mode.INTERPRETED if function == "double" else Mode.VECTORISED,)
        (answer,) = pair.send(pair.engine.chunk(rows))
        assert isinstance(answer, RowOutputs)
        assert answer.batch.column("output_0").to_pylist() == outputs
        pair.send(Forget(pa.array([7], pa.int32())))
        assert pair.epoch(1).column("output_0").to_pylist() == results
        assert sum(isinstance(reply, Log) for reply in pair.replies) == (function == "double")
        pair.server.close()
        if function == "double":
            assert OPENED[-1].story == ["forget [7]", "close"]


@pytest.mark.usefixtures("_two")
def test_it_describes_itself() -> None:
    """The evaluator determines the calls in Opened, and what is refused before opening."""
    assert opened("double").server.opened.fingerprints == ("0" * 16,)
    with pytest.raises(RejectedError, match="double is never compiled"):
        describe(Open((Call("double", ("x",)),), COLUMNS), Registry(), LIMITS, "s")


def test_aggregates_are_evaluators() -> None:
    """The fold is bound and opened as the interface says."""
    bound: BoundRequest = bind(Request((Call("count", ("x",)),), COLUMNS), Registry())
    evaluator: Evaluator = bound.open(Resources())
    assert bound.schema.names == ["slot", "state_0", "output_0"]
    assert not evaluator.chunk(pa.record_batch([pa.array([1, None])], schema=COLUMNS))
    assert evaluator.collect(states=True, outputs=True).column("output_0").to_pylist() == [1]
    assert (evaluator.slot_count, evaluator.kinds) == (1, (Mode.VECTORISED,))
    evaluator.close()


def test_an_exchange_without_calls_is_refused() -> None:
    """A request that no evaluator accepts is an error of the job, not of the server."""
    with pytest.raises(RejectedError, match="no calls"):
        describe(Open((), COLUMNS), Registry(), LIMITS, "s")


@udaf(input_types=["BIGINT"], result_type="STRING")
class Echo:
    """The type and the value of its direct argument."""

    def __init__(self, given: object) -> None:
        self.given = given

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> str:
        return repr(self.given)


def test_equal_exchanges_are_bound_once() -> None:
    """All tasks of a query bind its calls once for the functions of a process; another query is bound by itself."""
    registry, bound = Registry(), []
    for name in ("sum", "sum", "max", "sum"):
        ExchangePair(Open((Call(name, ("x",)),), COLUMNS), registry).server.close()
        bound.append(len(registry.bound))
    assert bound == [1, 1, 2, 2]
    for place in range(20):  # and only the newest are kept
        ExchangePair(Open((Call("sum", ("x",)),), COLUMNS, job_parameters={"p": str(place)}), registry).server.close()
    assert len(registry.bound) < 20


@pytest.mark.parametrize("order", [(1, True, 1.0), (True, 1.0, 1), (-0.0, 0.0, 0)])
def test_direct_arguments_that_are_equal_but_not_the_same_are_bound_apart(order: tuple[object, ...]) -> None:
    """Python's 1, 1.0 and True are equal, and a function may tell them from each other."""
    registry = Registry([function_of(Echo)])
    found = []
    for given in order:
        pair = ExchangePair(Open((Call("echo", ("x",), literals={"given": given}),), COLUMNS), registry)
        pair.send(pair.engine.chunk(pa.record_batch([pa.array([1])], schema=COLUMNS)))
        found += pair.epoch(1).column("output_0").to_pylist()
        pair.server.close()
    assert found == [repr(given) for given in order]
