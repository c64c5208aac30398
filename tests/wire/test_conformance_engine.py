"""The conformance kit tests engines: ours and the sample keep every rule, and mistakes are detected.

The sample engine is `examples/engine_from_the_wire.py`; here it uses this package's copy of the protocol's messages,
since two copies do not go into one process. Outside of it, see `test_engine_from_the_wire.py`.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import FlightTransport
from foldflight.exchange import exchange_pb2
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open
from foldflight.functions.query.call import Call
from foldflight.testing.conformance import ENGINE_RULES, Outcome, check_engine

EXAMPLE = Path(__file__).parents[2] / "examples" / "engine_from_the_wire.py"
EPOCHS, ROWS, KEYS = 4, 3000, 5
# A busy machine must not take a server that is there for one that is lost.
DEADLINE_S = 3.0
SILENCE_S = 12.0


def sample_engine() -> ModuleType:
    """Return the sample engine as a module."""
    sys.modules["exchange_pb2"] = exchange_pb2
    try:
        spec = importlib.util.spec_from_file_location("engine_from_the_wire", EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        del sys.modules["exchange_pb2"]
    return module


plain = sample_engine()
pb = exchange_pb2


def rows(epoch: int) -> tuple[list[str], pa.Array]:
    """Return keys and values of one epoch; the rows of the first epoch have only two keys."""
    values = [(epoch * 31 + row) % 97 for row in range(ROWS)]
    return [f"k{row % KEYS if epoch else row % 2}" for row in range(ROWS)], pa.array(values, pa.int64())


def query_of(engine: Callable[..., Any]) -> Callable[[str], object]:
    """Return a query of four epochs with an engine of this class."""

    def query(url: str) -> object:
        running_engine, outputs = engine(url, deadline_s=DEADLINE_S, patience_s=20.0), {}
        for epoch in range(EPOCHS):
            outputs.update(running_engine.epoch(*rows(epoch)))
        running_engine.end()
        return sorted(outputs.items())

    return query


def try_query(query: Callable[[str], object]) -> dict[str, Outcome]:
    """Test all rules."""
    result = check_engine(query, timeout_s=90.0, silence_s=SILENCE_S)
    return {outcome.rule.name: outcome for outcome in result}


def broken_rules(actual: dict[str, Outcome]) -> dict[str, str]:
    """Return the broken rules, with what was found."""
    return {name: outcome.detail for name, outcome in actual.items() if outcome.passed is False}


@pytest.mark.every_turn
def test_the_sample_keeps_the_contract() -> None:
    """All rules are tested and kept by an engine of about 150 lines."""
    result = try_query(query_of(plain.Engine))
    assert list(result) == [rule.name for rule in ENGINE_RULES]
    assert {name: outcome.detail for name, outcome in result.items() if not outcome.passed} == {}


def test_this_package_keeps_the_contract() -> None:
    """All rules are tested and kept by this package's client."""
    columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])

    def query(url: str) -> object:
        transport = FlightTransport([url], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=30.0))
        outputs = {}
        calls = (Call("sum", ("value",)), Call("count", ("value",), distinct=True))
        with transport.open(Open(calls, columns)) as exchange:
            for epoch in range(EPOCHS):
                keys, values = rows(epoch)
                slots = pa.array([int(key[1:]) for key in keys], pa.int32())
                exchange.chunk(pa.RecordBatch.from_arrays([slots, values], schema=columns))
                exchange.barrier(epoch + 1)
                for row in exchange.results(epoch + 1).to_pylist():
                    outputs[row["slot"]] = row["output_0"], row["output_1"]
        return sorted(outputs.items())

    result = try_query(query)
    assert {name: outcome.detail for name, outcome in result.items() if not outcome.passed} == {}


# -- engines with one deliberate mistake each ------------------------------------------------------------------------

MUTANTS: list[Any] = []


def breaks(*rules: str) -> Callable[[type], type]:
    """Record the rules that the mistake of an engine breaks."""

    def put(engine: type) -> type:
        MUTANTS.append(pytest.param(engine, set(rules), id=engine.__name__))
        return engine

    return put


@breaks("baseline")
class AnswersTwice(plain.Engine):  # type: ignore[name-defined,misc]
    """Its answer depends on earlier runs."""

    runs = itertools.count()

    def epoch(self, keys: Any, values: Any) -> Any:
        return {**super().epoch(keys, values), "run": next(self.runs)}


@breaks("overloaded")
class KnowsOneCode(plain.Engine):  # type: ignore[name-defined,misc]
    """It decides by code instead of class."""

    def judge(self, reply: Any, error: Any) -> None:
        if reply.code == "OVERLOADED":
            sys.exit("the server is full")
        super().judge(reply, error)


@breaks("draining")
class KnowsAnotherCode(plain.Engine):  # type: ignore[name-defined,misc]
    def judge(self, reply: Any, error: Any) -> None:
        if reply.code == "DRAINING":
            sys.exit("the server drains")
        super().judge(reply, error)


@breaks("lost-at-open", "lost-within-epoch", "lost-before-results", "lost-within-results", "silence")
class NeedsAnError(plain.Engine):  # type: ignore[name-defined,misc]
    """It treats a lost connection as the end."""

    def judge(self, reply: Any, error: Any) -> None:
        if not reply.code:
            sys.exit(f"an error of Flight: {error}")
        super().judge(reply, error)


@breaks("lost-within-epoch", "lost-before-results", "lost-within-results", "silence")
class SendsRowsOnce(plain.Engine):  # type: ignore[name-defined,misc]
    """After a loss it sends the barrier again, without the rows."""

    sent = 0

    def attempt(self, batch: Any) -> Any:
        if self.writer is None:
            self.open()
        rest = batch.slice(0, 0) if self.sent == self.number else batch
        self.sent = self.number
        return super().attempt(rest)


@breaks("lost-before-results", "reopen")
class LoadsNoStates(plain.Engine):  # type: ignore[name-defined,misc]
    """It does not load states into a new exchange."""

    def open(self) -> None:
        states, self.states = self.states, None
        super().open()
        self.states = states


@breaks("lost-within-results")
class TakesPartsAtOnce(plain.Engine):  # type: ignore[name-defined,misc]
    """It stores the states of a part, and then sends the rows again."""

    def read(self) -> Any:
        frame, batch = super().read()
        if frame.WhichOneof("frame") == "results" and not frame.results.last:
            fresh = pa.Table.from_batches([batch]).select(["slot", "state_0", "state_1"])
            self.states = fresh if self.states is None else pa.concat_tables([self.states, fresh])
        return frame, batch


@breaks("results-in-parts", "lost-within-results")
class KnowsNoLast(plain.Engine):  # type: ignore[name-defined,misc]
    """It treats the first part as the complete results, and the next part as the next results."""

    def read(self) -> Any:
        frame, batch = super().read()
        if frame.WhichOneof("frame") == "results":
            frame.results.last = True
        return frame, batch


@breaks("reopen")
class NeverLeaves(plain.Engine):  # type: ignore[name-defined,misc]
    """It ignores `reopen`."""

    def read(self) -> Any:
        frame, batch = super().read()
        if frame.WhichOneof("frame") == "results":
            frame.results.reopen = False
        return frame, batch


@breaks("message-size")
class NeverCuts(plain.Engine):  # type: ignore[name-defined,misc]
    """It does not split chunks."""

    def parts(self, batch: Any) -> Any:
        yield batch


@breaks("unknown-fields")
class RefusesWhatIsNew(plain.Engine):  # type: ignore[name-defined,misc]
    """It refuses unknown fields."""

    def read(self) -> Any:
        frame, batch = super().read()
        message = pb.ServerFrame.FromString(frame.SerializeToString())
        message.DiscardUnknownFields()
        if message != frame or message.ByteSize() != frame.ByteSize():
            sys.exit("a message with fields that nobody knows")
        return frame, batch


@breaks("logs")
class ExpectsNoLogs(plain.Engine):  # type: ignore[name-defined,misc]
    """It treats every frame as the answer."""

    def read(self) -> Any:
        with self.lost():
            message = self.reader.read_chunk()
        frame = pb.ServerFrame.FromString(message.app_metadata.to_pybytes())
        if frame.WhichOneof("frame") == "log":
            sys.exit("a log where results were due")
        return frame, message.data


@breaks("silence")
class WaitsForEver(plain.Engine):  # type: ignore[name-defined,misc]
    """Its deadline is too long."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **{**more, "deadline_s": 4 * SILENCE_S})


@breaks("rejected", "function-error")
class TriesEverythingAgain(plain.Engine):  # type: ignore[name-defined,misc]
    """It retries after every error."""

    def judge(self, reply: Any, error: Any) -> None:
        raise plain.LostError(reply.message)


@breaks("function-error")
class HidesMessages(plain.Engine):  # type: ignore[name-defined,misc]
    """It hides the message of a FunctionError."""

    def judge(self, reply: Any, error: Any) -> None:
        if reply.error_class == "FunctionError":
            sys.exit("a function failed")
        super().judge(reply, error)


@breaks("epochs")
class CountsInTwos(plain.Engine):  # type: ignore[name-defined,misc]
    def epoch(self, keys: Any, values: Any) -> Any:
        self.number += 1
        return super().epoch(keys, values)


@breaks("slots")
class NumbersGroupsByHash(plain.Engine):  # type: ignore[name-defined,misc]
    """Its slots are not dense."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self.slots = {f"k{key}": 2**30 + key for key in range(KEYS)}


@breaks("state-identity")
class ForgetsWhoseStatesTheyAre(plain.Engine):  # type: ignore[name-defined,misc]
    """It stores states without their metadata."""

    def open(self) -> None:
        if self.states is not None:
            fields = [field.remove_metadata() for field in self.states.schema]
            self.states = self.states.cast(pa.schema(fields))
        super().open()


@breaks("polite-end")
class HangsUp(plain.Engine):  # type: ignore[name-defined,misc]
    """It cancels the stream instead of closing its direction."""

    def end(self) -> None:
        self.hang_up()


@breaks("frames")
class SendsRowsWithBarriers(plain.Engine):  # type: ignore[name-defined,misc]
    def send(self, frame: Any, batch: Any = None) -> None:
        if frame.WhichOneof("frame") == "barrier":
            batch = pa.RecordBatch.from_pydict({"slot": [0], "value": [0]}, schema=self.columns)
        super().send(frame, batch)


@breaks("kinds")
class InventsKinds(plain.Engine):  # type: ignore[name-defined,misc]
    columns = pa.schema([*plain.Engine.columns, ("kind", pa.int8())])

    def attempt(self, batch: Any) -> Any:
        kinds = pa.array([9] * batch.num_rows, pa.int8())
        return super().attempt(pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=self.columns))


@breaks("open")
class AnnouncesOtherColumns(plain.Engine):  # type: ignore[name-defined,misc]
    def command(self) -> Any:
        command = super().command()
        command.columns = pa.schema(reversed(list(self.columns))).serialize().to_pybytes()
        return command


@breaks("reads-answers")
class ReadsAtTheEnd(plain.Engine):  # type: ignore[name-defined,misc]
    """It requests the outputs of every row, and sends all rows before it reads."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, deadline_s=SILENCE_S, patience_s=0.0)

    def command(self) -> Any:
        command = super().command()
        command.row_outputs = True
        return command

    def parts(self, batch: Any) -> Any:
        for _ in range(400):
            yield batch


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "rules"), MUTANTS)
def test_a_mistake_breaks_its_rules_and_no_others(engine: type, rules: set[str]) -> None:
    """Each rule concerns one thing; the rules that one mistake breaks all concern that mistake."""
    result = broken_rules(try_query(query_of(engine)))
    assert result.keys() == rules, result
    assert all(result.values())


def test_every_rule_has_a_mistake_that_breaks_it() -> None:
    """Each rule can be broken. The rule for small messages is broken through the rule for their size."""
    covered_rules = set().union(*(mutant.values[1] for mutant in MUTANTS))
    assert {rule.name for rule in ENGINE_RULES} - covered_rules == {"small-messages"}
