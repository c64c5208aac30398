"""Expressions of scalar and table functions over both transports; on servers that die, drain and refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from foldflight import connect
from foldflight.client import EmbeddedTransport, FlightTransport, close_connections
from foldflight.client.functions import Functions
from foldflight.engine.batch import scalar_task
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps, transport_of
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open
from foldflight.fold.scalar import evaluation
from foldflight.functions import Registry, Step, StepArgument
from foldflight.server.run.lifecycle import ProcessServer, serving
from foldflight.testing import run_epochs
from tests import scalar_functions
from tests.wire.kit import DEADLINE_S, IMPATIENT, ServerProcess
from tests.wire.test_failover import drain, kill

MODULE = "tests.scalar_functions"
COLUMNS = pa.schema([("x", pa.int64()), ("t", pa.string())])
X, T = StepArgument(column="x"), StepArgument(column="t")
PROGRAM = Open(
    (),
    COLUMNS,
    steps=(
        Step("normalise", (T,)),
        Step("score", (StepArgument(step=0), X)),
        Step("split", (StepArgument(step=0),)),
    ),
    outputs=(1, 2),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ProcessServer]:
    with serving(scalar_functions, message_bytes_max=1 << 16) as server:
        yield server
    close_connections()


@pytest.fixture(params=["embedded", "flight"])
def transport(request: pytest.FixtureRequest) -> Any:
    if request.param == "embedded":
        return EmbeddedTransport(Registry.load([scalar_functions]), state_key=b"k" * 32)
    result = request.getfixturevalue("server")
    return FlightTransport([result.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)


def rows(*values: tuple[int | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([x for x, _ in values], pa.int64()), pa.array([t for _, t in values], pa.string())], schema=COLUMNS
    )


def expected(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    result = []
    for place, row in enumerate(batch.to_pylist()):
        text = None if row["t"] is None else row["t"].strip().lower()
        for word, at in scalar_functions.split(text):
            result.append(
                {"row": place, "output_0": scalar_functions.score(text, row["x"]), "output_1": {"word": word, "at": at}}
            )
    return result


def test_a_program_is_evaluated_in_one_exchange(transport: Any) -> None:
    """Each chunk is answered, in order, over either transport; what a function logs comes with the answer."""
    batches = [rows((1, " A b"), (2, None)), rows(), rows((3, "c"))]
    with transport.open(PROGRAM) as exchange:
        assert exchange.open_reply.schema.names == ["row", "output_0", "output_1"]
        for batch in batches:
            exchange.chunk(batch)
        assert [exchange.step_outputs().to_pylist() for _ in batches] == [expected(batch) for batch in batches]
    counting_request = Open(
        (), COLUMNS, steps=(Step("counting", (X,)),), outputs=(0,), job_parameters={"greeting": "hi"}
    )
    with transport.open(counting_request) as exchange:
        exchange.chunk(rows((7, None)))
        exchange.step_outputs()
        logs = exchange.take_logs()
    assert [(log.message, log.fields) for log in logs] == [("opened", {"greeting": "hi"}), ("row", {"x": "7"})]


def test_operations_under_their_old_names_warn(transport: Any) -> None:
    """Engines of users that call `opened`, `mapped` and `saved` go on working, and are told the new names."""
    with transport.open(PROGRAM) as exchange:
        with pytest.warns(DeprecationWarning, match="now called open_reply"):
            assert exchange.opened is exchange.open_reply
        exchange.chunk(rows((3, "c")))
        with pytest.warns(DeprecationWarning, match="now called step_outputs"):
            assert exchange.mapped().to_pylist() == expected(rows((3, "c")))
        with (
            pytest.warns(DeprecationWarning, match="now called saved_states"),
            pytest.raises(RejectedError, match="no checkpoint was requested"),
        ):
            exchange.saved()


def test_a_table_function_may_log_between_the_parts_of_an_answer(
    transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row of the chunk is a part of the answer, and log lines for the parts come with the answer."""
    monkeypatch.setattr(evaluation, "_PART_ROWS", 1)
    open_request = Open((), COLUMNS, steps=(Step("told", (X,)),), outputs=(0,))
    with transport.open(open_request) as exchange:
        for _ in range(2):
            exchange.chunk(rows((1, None), (2, None), (3, None)))
            result = exchange.step_outputs().column("output_0").flatten()[0].to_pylist()
            assert result == [1, 1, 1, 2, 2, 2, 3, 3, 3]
            assert [log.fields for log in exchange.take_logs()] == [{"x": "1"}, {"x": "2"}, {"x": "3"}]


def test_large_chunks_and_answers_are_split(transport: Any) -> None:
    """A chunk beyond a message of the server travels in parts, and its answer has the chunk's rows again."""
    batch = rows(*((place, "some words here " * 4) for place in range(2000)))
    with transport.open(PROGRAM) as exchange:
        exchange.chunk(batch)
        assert exchange.step_outputs().to_pylist() == expected(batch)


def test_programs_are_described_without_opening(transport: Any) -> None:
    """A description has the fingerprints, with which another program is refused."""
    open_reply = transport.describe(PROGRAM)
    assert len(open_reply.fingerprints) == 3
    pinned_program = PROGRAM.pin(open_reply.fingerprints)
    assert transport.describe(pinned_program).fingerprints == open_reply.fingerprints
    other = replace(
        pinned_program, steps=(replace(pinned_program.steps[0], fingerprint="0" * 16), *pinned_program.steps[1:])
    )
    with pytest.raises(RejectedError, match="normalise is not the function that the engine expects"):
        transport.describe(other)


def test_only_chunks_are_taken(transport: Any) -> None:
    """An exchange of steps has no states, barriers and slots."""
    with (
        transport.open(PROGRAM) as exchange,
        pytest.raises(RejectedError, match=r"may not send Barrier (when it is MAPPING|in an exchange of steps)"),
    ):
        exchange.barrier(1)


def test_columns_may_have_any_name(transport: Any) -> None:
    """The names slot and kind mean nothing here."""
    columns = pa.schema([("slot", pa.string()), ("kind", pa.string())])
    open_request = Open((), columns, steps=(Step("normalise", (StepArgument(column="kind"),)),), outputs=(0,))
    with transport.open(open_request) as exchange:
        exchange.chunk(pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["B"])], schema=columns))
        assert exchange.step_outputs().to_pylist() == [{"output_0": "b"}]


@pytest.mark.parametrize("harm", [kill, drain])
def test_another_server_takes_over_in_the_middle(
    fork: Callable[..., ServerProcess], harm: Callable[[ServerProcess], None]
) -> None:
    """A server is killed, or drains, while batches travel: each row is answered once, in order."""
    servers = [fork(modules=MODULE), fork(modules=MODULE)]
    transport = FlightTransport(
        [each.url for each in servers], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=DEADLINE_S)
    )
    result = []
    with transport.open(PROGRAM) as exchange:
        serving_id = exchange.open_reply.server_id
        for place in range(12):
            batch = rows(*((place * 100 + each, f"W{place} x") for each in range(100)))
            exchange.chunk(batch)
            if place == 5:
                (at_work,) = [each for each in servers if each.ready["server_id"] == serving_id]
                harm(at_work)
            result.append((batch, exchange.step_outputs()))
        assert exchange.open_reply.server_id != serving_id
        stats = exchange.coordinator.stats
        assert stats.replays == 1
        assert stats.losses == (1 if harm is kill else 0)
        assert exchange.coordinator.retained_bytes == 0, "answered chunks are forgotten"
    for batch, answer in result:
        assert answer.to_pylist() == expected(batch)


def test_functions_that_take_too_long_are_interrupted() -> None:
    """fold_s_max holds for scalar functions: the error names the function and the row."""
    with serving(scalar_functions, fold_s_max=4) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
        open_request = Open((), COLUMNS, steps=(Step("sleepy", (X,)),), outputs=(0,))
        with transport.open(open_request) as exchange:
            exchange.chunk(rows((1, None), (13, None)))
            with pytest.raises(FunctionError, match="took longer than fold_s_max") as failure:
                exchange.step_outputs()
        assert failure.value.function == "sleepy"
        assert failure.value.row == "x=13"
        close_connections()


def test_isolated_rows_are_counted(server: ProcessServer) -> None:
    """Rows that fail are in the metrics, and so are rows and calls of scalar functions."""
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
    open_request = Open((), COLUMNS, steps=(Step("ratio", (X, X)),), outputs=(0,), isolate_errors=True)
    with transport.open(open_request) as exchange:
        exchange.chunk(rows((0, None), (1, None), (0, None)))
        assert [row["output_0"] for row in exchange.step_outputs().to_pylist()] == [None, 1.0, None]
    read = server.metrics.registry.get_sample_value
    assert read("foldflight_groups_isolated_total", {"function": "ratio"}) == 2
    assert read("foldflight_rows_folded_total", {"function": "ratio", "kind": "+I"}) == 3
    kinds = {"ratio": "scalar", "split": "table", "sum": "aggregate"}
    for function, kind in kinds.items():
        assert read("foldflight_function_info", {"function": function, "function_kind": kind}) == 1


def test_tokens_are_those_of_each_function(tmp_path: Any) -> None:
    """A token that allows one function does not open a program with another one, nor an external call of it."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-one-function-0000000000 multiply\n")
    with serving(scalar_functions, tokens_file=str(tokens)) as server:
        transport = FlightTransport(
            [server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT, token="a-token-of-one-function-0000000000"
        )
        with pytest.raises(RejectedError, match="UNAUTHENTICATED"):
            transport.describe(PROGRAM)
        allowed_request = Open((), COLUMNS, steps=(Step("multiply", (X, X)),), outputs=(0,))
        with transport.open(allowed_request) as exchange:
            exchange.chunk(rows((3, None)))
            assert exchange.step_outputs().to_pylist() == [{"output_0": 9}]
        close_connections()


def test_functions_are_shipped(server: ProcessServer) -> None:
    """A scalar function is registered with servers as an aggregate is."""
    from foldflight import udf

    @udf
    def tripled(x: int) -> int:
        return 3 * x

    key = "a bundle key of thirty-two bytes!"
    with serving(scalar_functions, bundle_keys=key) as accepting_server:
        functions = connect(accepting_server.url, bundle_key=key).register(tripled)
        use = functions["multiply"](functions["tripled"]("x"), "x")
        steps = Steps(lambda column, _: str(column))
        query = ScalarQuery.of(transport_of({"m": use}), steps, {"m": steps.add(use)}, COLUMNS)
        answers = [
            answer.to_pylist() for _, answer in query.answers([rows((2, None)), rows((3, None)), rows((4, None))])
        ]
        assert answers == [[{"output_0": 12}], [{"output_0": 27}], [{"output_0": 48}]]
        close_connections()


def test_blocks_are_as_large_as_their_answers_allow(monkeypatch: pytest.MonkeyPatch, transport: Any) -> None:
    """The engine holds an answer as a whole: rows that become many are sent in small blocks, others in large ones."""
    monkeypatch.setattr(scalar_task, "_TABLE_ANSWER_ROWS", 1 << 13)
    functions = Functions(transport)
    use = functions["repeated"]("x", "times")
    columns = pa.schema([("x", pa.int64()), ("times", pa.int64())])
    steps = Steps(lambda column, _: str(column))
    query = ScalarQuery.of(transport, steps, {"r": steps.add(use)}, columns)
    times = [1] * 9000 + [100] * 2000
    block = pa.RecordBatch.from_arrays([pa.array(range(len(times))), pa.array(times)], schema=columns)
    result, sizes = [], []
    for piece, answer in query.answers(
        [block.slice(0, 8500), *(block.slice(at, 500) for at in range(8500, 11000, 500))]
    ):
        sizes.append((piece.num_rows, answer.num_rows))
        result += answer.column("output_0").combine_chunks().field(0).to_pylist()
    assert result == [x for x, count in enumerate(times) for _ in range(count)]
    assert max(rows for rows, _ in sizes) > 1000
    assert all(rows <= 1 << 13 for _, rows in sizes[-5:])


def test_calls_over_a_server_may_leave_out_defaults() -> None:
    """A call over a server leaves out the same arguments as an embedded one."""
    with serving("tests.unit.test_defaults", fold_s_max=10) as server:
        functions = connect(server.url)
        rows: list[Any] = [{"v": 3, "w": 5}, {"v": 4, "w": 1}]
        calls = {name: functions[name]("v") for name in ("total", "bundle")}
        (epoch,) = run_epochs({**calls, "all": functions["total"]("v", "w")}, [rows])
        assert epoch.changelog == [("+I", {"total": 14, "bundle": 14, "all": 19})]
