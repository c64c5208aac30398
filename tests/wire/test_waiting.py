"""Async functions on servers and embedded: a slow, wrong or lost model, and engines that leave."""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from foldflight import FunctionContext, FunctionError, Recordings, RejectedError, RetryableError, udf
from foldflight.client import EmbeddedTransport, FlightTransport, Functions
from foldflight.client.client_logs import log_records
from foldflight.client.exchange import begin_task
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps
from foldflight.engine.query.layout import QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.exchange.failover.coordinator import FailoverBounds
from foldflight.exchange.frames import Open, Returns
from foldflight.ext.recording.file import read_recording
from foldflight.ext.recording.replay import differences, fold_again
from foldflight.functions import Call, Registry, Step, StepArgument, function_of
from foldflight.server.ops.logs import make_logger
from foldflight.server.run.lifecycle import ProcessServer, serving
from foldflight.server.run.settings import load_settings
from foldflight.shipping.pickling import pickle_functions
from foldflight.testing import run_epochs, run_over
from tests.model_server import ModelServer
from tests.wire import waiting_functions
from tests.wire.kit import DEADLINE_S, STATE_KEY, ServerProcess, eventually, opened_apart

ROOT = Path(__file__).parents[2]
TEXT, NUMBER = pa.schema([("prompt", pa.string())]), pa.schema([("x", pa.int64())])


def open_of(function: str, columns: pa.Schema = TEXT, **options: Any) -> Open:
    step = Step(function, tuple(map(StepArgument, columns.names)))
    return Open((), columns, steps=(step,), outputs=(0,), **options)


def batch(values: Any, columns: pa.Schema = TEXT) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, columns[0].type)], schema=columns)


def answers(transport: Any, open_request: Open, *chunks: Any) -> list[Any]:
    answers = []
    with transport.open(open_request) as exchange:
        for chunk in chunks:
            exchange.chunk(batch(chunk, open_request.columns))
            answers += exchange.step_outputs().to_pylist()
    return answers


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def server(log, model) -> Iterator[ProcessServer]:
    with serving(waiting_functions, log_stream=log) as server:
        yield server


def flight(server: ProcessServer) -> FlightTransport:
    return FlightTransport([server.url], deadline_s=DEADLINE_S)


def embedded() -> EmbeddedTransport:
    return EmbeddedTransport(Registry.load([waiting_functions]), state_key=STATE_KEY.encode())


def prompts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


@pytest.mark.parametrize("where", ["remote", "embedded"])
def test_each_row_has_its_answer_whatever_the_model_does(model, server, where) -> None:
    """429, 500 and lost or cut connections are repeated; a wrong answer fails its row alone; the order is kept."""

    def behave(prompt: str, before: int) -> Any:
        number = int(prompt.split()[1])
        if number % 7 == 6:
            return "wrong"
        return [429, 500, "close", "cut", "ok", "ok"][number % 7] if before < 2 else "ok"

    model.behave = behave
    transport = flight(server) if where == "remote" else embedded()
    answer_rows = answers(transport, open_of("asking", isolate_errors=True), prompts(35), prompts(3))
    for number, row in enumerate(answer_rows):
        if number % 7 == 6 and number < 35:
            assert row["output_0"] is None
            assert "JSONDecodeError" in row["error"]["message"]
            assert f"'text {number}'" in row["error"]["row"]
        else:
            assert row == {"output_0": f"TEXT {number if number < 35 else number - 35}", "error": None}
    assert model.asked["text 0"] == 3 + 1
    assert model.asked["text 3"] == 3
    assert model.asked["text 4"] == 1
    assert model.asked["text 6"] == 1
    assert all(len(ids) == 1 for ids in model.ids.values()), "a repeated call has the same id"


def test_a_model_that_answers_late_is_asked_again(model, server) -> None:
    """A call that takes longer than `timeout_s` is cancelled outside, and repeated with its id; the others go on."""
    model.behave = lambda prompt, before: "hold" if prompt == "late" and not before else "ok"
    answer_rows = answers(flight(server), open_of("impatient"), ["late", "text"])
    assert [row["output_0"] for row in answer_rows] == ["LATE", "TEXT"]
    assert eventually(lambda: model.left["late"])
    assert model.asked["late"] >= 2
    assert len(model.ids["late"]) == 1


def test_an_error_names_its_row_and_the_number_of_calls(model, server) -> None:
    """Without isolation the exchange fails with the row; what failed for good says how often it was called."""
    model.behave = lambda prompt, before: 503 if prompt == "text 2" else "ok"
    with pytest.raises(FunctionError, match=r"the model answered 503.*the last of 5 calls") as excinfo:
        answers(flight(server), open_of("asking"), prompts(5))
    assert "prompt='text 2'" in excinfo.value.row
    assert not excinfo.value.limit


def test_a_slow_row_holds_back_no_other_exchange(model, server) -> None:
    """While one exchange waits for a model that does not answer, others are answered."""
    model.behave = lambda prompt, before: "hold" if prompt == "slow" else "ok"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(answers, flight(server), open_of("asking"), ["slow", "text"])
        assert eventually(lambda: model.asked["slow"])
        assert len(answers(flight(server), open_of("asking"), prompts(40))) == 40
        assert not slow.done()
        model.released.set()
        assert [row["output_0"] for row in slow.result(DEADLINE_S)] == ["SLOW", "TEXT"]


@pytest.mark.parametrize("where", ["remote", "embedded"])
def test_calls_of_an_engine_that_leaves_are_cancelled_outside(model, server, where) -> None:
    """The connections to the model end when the engine disconnects."""
    model.behave = lambda prompt, before: "hold"
    transport = flight(server) if where == "remote" else embedded()
    exchange = transport.open(open_of("asking"))
    exchange.chunk(batch(prompts(8)))
    assert eventually(lambda: len(model.asked) == 8)
    exchange.cut()
    assert eventually(lambda: len(model.left) == 8)
    assert not model.answered


def test_calls_that_take_longer_than_a_frame_may_are_cancelled(model, log) -> None:
    """`fold_s_max` ends the waiting, with function and row, and cancels the calls."""
    model.behave = lambda prompt, before: "hold" if prompt == "text 1" else "ok"
    with serving(waiting_functions, fold_s_max=1) as server:
        with pytest.raises(FunctionError, match="fold_s_max") as excinfo:
            answers(flight(server), open_of("asking"), prompts(3))
        assert excinfo.value.function == "asking"
        assert "prompt='text 1'" in excinfo.value.row
        assert eventually(lambda: model.left["text 1"])


@pytest.mark.parametrize("drain_s", [DEADLINE_S, 0.2])
def test_a_drain_waits_for_what_is_open_up_to_its_bound(model, drain_s) -> None:
    """A drain lets the open call finish; one that does not finish is cut off, and cancelled outside."""
    model.behave = lambda prompt, before: "hold"
    with serving(waiting_functions, drain_s=drain_s) as server, ThreadPoolExecutor(2) as pool:
        impatient = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=FailoverBounds(patience_s=0))
        answers_future = pool.submit(answers, impatient, open_of("asking"), ["text"])
        assert eventually(lambda: model.asked["text"])
        drain_future = pool.submit(server.drain)
        if drain_s == DEADLINE_S:
            model.released.set()
            assert answers_future.result(DEADLINE_S)[0]["output_0"] == "TEXT"
            assert drain_future.result(DEADLINE_S)
            return
        assert not drain_future.result(DEADLINE_S)
        server.close()
        assert eventually(lambda: model.left["text"])
        with pytest.raises(RetryableError):
            answers_future.result(DEADLINE_S)


def test_rows_of_exchanges_share_a_call_and_do_not_fail_for_each_other(server) -> None:
    """Eight exchanges with single rows are one call; an exchange with a bad row fails alone."""
    barrier = threading.Barrier(8)
    transport = flight(server)

    def one(value: int) -> Any:
        with transport.open(open_of("batched", NUMBER)) as exchange:
            barrier.wait(DEADLINE_S)
            exchange.chunk(batch([value], NUMBER))
            try:
                return exchange.step_outputs().to_pylist()[0]["output_0"]
            except FunctionError as error:
                return error.message

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, range(8)))
        assert max(together) > 1
        *others, bad = pool.map(one, [1, 2, 3, 4, 5, 6, 7, -1])
    assert "negative: -1" in bad
    assert all(isinstance(each, int) for each in others)


GROUPS = pa.schema([("slot", pa.int32()), ("text", pa.string())])


def values_of(transport: Any, texts: list[str], **options: Any) -> list[dict[str, Any]]:
    """Return the results of `texts_of` for groups of one text each."""
    rows = pa.RecordBatch.from_pydict({"slot": list(range(len(texts))), "text": texts}, schema=GROUPS)
    with transport.open(Open((Call("texts_of", ("text",)),), GROUPS, **options)) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        return sorted(exchange.results(1).to_pylist(), key=lambda row: row["slot"])


@pytest.mark.parametrize("where", ["remote", "embedded"])
def test_values_of_groups_are_batches_over_exchanges(server, where) -> None:
    """`get_values` gets groups of several exchanges, of one instance; a bad group fails its exchange alone."""
    transport = flight(server) if where == "remote" else embedded()
    waiting_functions.OPENED.clear()
    barrier = threading.Barrier(8)

    def one(text: str) -> str:
        barrier.wait(DEADLINE_S)
        try:
            return str(values_of(transport, [text])[0]["output_0"])
        except FunctionError as error:
            return f"{error.slot}: {error.message}"

    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(one, "abcdefgh"))
        assert [each[0] for each in together] == list("abcdefgh"), "each exchange has its own answer"
        assert max(int(each[3:]) for each in together) > 1
        *others, bad = pool.map(one, [*"abcdefg", "bad"])
    assert bad.startswith("0: ")
    assert "a text is bad" in bad
    assert [each[0] for each in others] == list("abcdefg")
    assert waiting_functions.OPENED.count("TextsOf") <= 1, "the process has one instance"


NUMBERS = pa.schema([("slot", pa.int32()), ("number", pa.int64())])


def values_of_numbers(function: str, **options: Any) -> list[dict[str, Any]]:
    """Return the results of a function for a group of 1 and 2, and one of 40."""
    rows = pa.RecordBatch.from_pydict({"slot": [0, 0, 1], "number": [1, 2, 40]}, schema=NUMBERS)
    with embedded().open(Open((Call(function, ("number",)),), NUMBERS, **options)) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        return sorted(exchange.results(1).to_pylist(), key=lambda row: row["slot"])


@pytest.mark.parametrize("has_states", [False, True])
def test_a_call_that_is_repeated_does_not_see_what_the_last_one_changed(has_states) -> None:
    """A method that empties its accumulator or argument, and fails then, gets it whole for its next call."""
    waiting_functions.FAILED.clear()
    rows = values_of_numbers("emptied_group", returns=Returns(states=has_states))
    assert [row["output_0"] for row in rows] == [3.0, 40.0]
    lists = pa.schema([("numbers", pa.list_(pa.int64()))])
    assert answers(embedded(), open_of("emptied", lists), [[1, 2], [4]]) == [{"output_0": 3}, {"output_0": 4}]
    assert len(waiting_functions.FAILED) == 4, "each has failed once"


def test_groups_of_one_call_have_errors_of_their_own() -> None:
    """The groups of a call that fails share its error, and each message tells the number of calls once."""
    rows = values_of_numbers("refusing", isolate_errors=True)
    assert [row["error"]["message"] for row in rows] == ["not now (the last of 2 calls)"] * 2


def test_a_bad_group_of_a_batch_is_a_dead_letter(server) -> None:
    """Halves of a batch find the group whose value fails; all others have their values."""
    for transport in (embedded(), flight(server)):
        rows = values_of(transport, ["a", "b", "bad", "d", "e"], isolate_errors=True)
        assert [(row["output_0"] or "-")[0] for row in rows] == ["a", "b", "-", "d", "e"]
        assert "a text is bad" in rows[2]["error"]["message"]
        assert "get_values" in rows[2]["error"]["message"]


def test_log_lines_of_a_shared_instance_belong_to_its_exchange(server, log) -> None:
    """`open` has a context for the process, and lines of `accumulate` name the exchange and group they are of."""
    values_of(flight(server), ["a", "b"])
    lines = [json.loads(line) for line in log.getvalue().splitlines() if '"takes"' in line]
    assert [(line["field_taken"], line["slot"]) for line in lines] == [("a", 0), ("b", 1)]
    assert len({line["exchange"] for line in lines}) == 1


def test_log_lines_of_a_shared_call_are_in_the_log_of_each_exchange(server, log) -> None:
    """A line of a call with rows of several exchanges may be about any of them, so each of them has it."""
    barrier = threading.Barrier(4)

    def one(value: int) -> tuple[str, int]:
        with flight(server).open(open_of("batched", NUMBER)) as exchange:
            barrier.wait(DEADLINE_S)
            exchange.chunk(batch([value], NUMBER))
            size = exchange.step_outputs().to_pylist()[0]["output_0"]
            (record,) = exchange.take_logs()
            return record.fields["of"], size

    with ThreadPoolExecutor(4) as pool:
        logs = list(pool.map(one, range(4)))
    assert max(size for _, size in logs) > 1
    for value, (of, size) in enumerate(logs):
        assert str(value) in of.split()
        assert len(of.split()) == size
    lines = [json.loads(line) for line in log.getvalue().splitlines() if '"a batch"' in line]
    assert len({line["exchange"] for line in lines}) == len(lines) == 4


@pytest.mark.parametrize("where", ["remote", "embedded"])
def test_secrets_of_the_environment_are_not_logged(model, server, log, caplog, monkeypatch, where) -> None:
    """A key is replaced wherever it stands: in the log of the server, in lines for the engine, in the client's log."""
    key = 'sk-0123456789"abcdef'
    monkeypatch.setenv("MODEL_KEY", key)
    transport = flight(server) if where == "remote" else embedded()
    with caplog.at_level(logging.INFO), transport.open(open_of("asking", isolate_errors=True)) as exchange:
        exchange.chunk(batch([f"with {key}"]))
        exchange.step_outputs()
        records = exchange.take_logs()
        log_records(records)
    assert [record.message for record in records] == ["asks"]
    log_text = log.getvalue() + caplog.text
    assert "with ********************" in log_text
    for text in (log_text, *(str(record) for record in records if where == "remote")):
        assert key not in text
        assert json.dumps(key)[1:-1] not in text


@pytest.mark.parametrize("isolates", [True, False])
def test_secrets_of_a_server_are_not_in_errors_for_engines(model, server, log, monkeypatch, isolates) -> None:
    """An exception with a key is told with asterisks, whether it is a dead letter or ends the exchange."""
    key = "sk-0123456789abcdef"
    monkeypatch.setenv("MODEL_KEY", key)
    request = open_of("leaking", isolate_errors=isolates)
    if isolates:
        (row,) = answers(flight(server), request, ["one"])
        error_text = row["error"]["message"] + row["error"]["trace"] + row["error"]["row"]
    else:
        with pytest.raises(FunctionError) as excinfo:
            answers(flight(server), request, ["one"])
        error_text = f"{excinfo.value} {excinfo.value.row}"
    assert "the key ******************* is refused for 'one'" in error_text
    assert "waiting_functions.py" in error_text
    assert key not in error_text + log.getvalue()


def test_an_instance_is_opened_once_and_closed_when_nobody_needs_it(model, server) -> None:
    """All exchanges of a process share the instance; job parameters make another one."""
    waiting_functions.OPENED.clear()
    with flight(server).open(open_of("asking")), flight(server).open(open_of("asking")):
        assert len(answers(flight(server), open_of("asking"), prompts(2))) == 2
    answers(flight(server), open_of("asking", job_parameters={"a": "b"}), prompts(1))
    assert 1 <= len(waiting_functions.OPENED) <= 2


@pytest.mark.every_turn
def test_code_that_blocks_the_loop_is_named_and_ended(log, caplog) -> None:
    """The log names file and line while other calls wait, and the call is interrupted; the loop goes on."""
    with serving(waiting_functions) as server, caplog.at_level(logging.WARNING, "foldflight.coroutines"):
        answer_rows = answers(flight(server), open_of("blocking", NUMBER, isolate_errors=True), [1, 0])
        assert "BlockedLoop" in answer_rows[0]["error"]["message"]
        assert answer_rows[1]["output_0"] == 0
        assert "waiting_functions.py" in caplog.text
        assert "blocking" in caplog.text
        assert answers(flight(server), open_of("endless", NUMBER), [0])[0]["output_0"] == 0


def test_calls_are_counted(model, server) -> None:
    """The metrics have calls by outcome, open ones, times, retries and waits for the rate."""
    model.behave = lambda prompt, before: 500 if not before else "ok"
    answers(flight(server), open_of("asking"), prompts(3))
    answers(flight(server), open_of("rated", NUMBER), range(50))
    value = server.metrics.registry.get_sample_value
    labels = {"function": "asking"}
    assert value("foldflight_async_calls_total", {**labels, "outcome": "failed"}) == 3
    assert value("foldflight_async_calls_total", {**labels, "outcome": "done"}) == 3
    assert value("foldflight_async_retries_total", labels) == 3
    assert value("foldflight_async_calls_open", labels) == 0
    assert value("foldflight_async_call_seconds_count", labels) == 6
    assert value("foldflight_async_rate_waits_total", {"function": "rated"}) > 0
    assert flight(server).status()["servers"][0]["call_rates"] == {"paced": 60, "rated": 1000}


def test_a_rate_is_refused_without_a_server() -> None:
    """Spark has as many processes as it likes, so the rate could not hold."""
    with pytest.raises(RejectedError, match=r"rate=1000.*cannot hold without a server.*foldflight serve"):
        embedded().describe(open_of("rated", NUMBER))


def test_an_engine_sends_small_blocks_over_several_exchanges(model) -> None:
    """Later blocks go on while one waits, and each has about as many rows as run side by side; order is kept."""
    model.behave = lambda prompt, before: "hold" if prompt == "text 0" else "ok"
    transport = embedded()
    use = Functions(transport)["asking"]("prompt")
    steps = Steps(lambda argument, _: str(argument))
    query = ScalarQuery.of(transport, steps, {"out": steps.add(use)}, TEXT)
    assert query.bounds.rows_max == 32
    blocks = [batch(prompts(200)[start : start + 32]) for start in range(0, 200, 32)]

    def release() -> None:
        assert eventually(lambda: sum(model.answered.values()) >= 3 * 32)
        model.released.set()

    with ThreadPoolExecutor(1) as pool:
        release_future = pool.submit(release)
        texts = [row["output_0"] for _, answer in query.answers(blocks) for row in answer.to_pylist()]
        release_future.result()
    assert texts == [each.upper() for each in prompts(200)]


def changed_rows(model: ModelServer, epochs: list[Any], functions: Functions) -> list[list[tuple[str, str, str]]]:
    ran = run_epochs({"text": functions["summary"]("text")}, keys=["key"], epochs=epochs)
    return [[(kind, row["key"], row["text"]) for kind, row in epoch.changelog] for epoch in ran]


def test_values_are_asked_for_once_for_each_group_that_changed(model, server) -> None:
    """A stream takes outputs back from its state table: a model is asked for changed groups only, and once each."""
    epochs = [
        [{"key": "a", "text": "one"}, {"key": "b", "text": "two"}],
        [{"key": "a", "text": "three"}],
        [("-D", {"key": "b", "text": "two"}), {"key": "a", "text": "four"}],
    ]
    expected = [
        [("+I", "a", "ONE"), ("+I", "b", "TWO")],
        [("-U", "a", "ONE"), ("+U", "a", "ONE THREE")],
        [("-D", "b", "TWO"), ("-U", "a", "ONE THREE"), ("+U", "a", "FOUR ONE THREE")],
    ]
    for functions in (Functions(embedded()), Functions(flight(server))):
        model.asked.clear()
        assert [sorted(each) for each in changed_rows(model, epochs, functions)] == [sorted(each) for each in expected]
        # The accumulator of the group that has no row left has changed, so its value is asked for as well.
        assert model.asked == {"one": 1, "two": 1, "one three": 1, "four one three": 1, "": 1}


def test_a_group_that_fails_for_good_is_a_dead_letter(model, server) -> None:
    """With isolated errors the other groups have their values, which are not asked for again because of it."""
    model.behave = lambda prompt, before: 400 if prompt == "bad" else "ok"
    columns = pa.schema([("slot", pa.int32()), ("text", pa.string())])
    request = Open((Call("summary", ("text",)),), columns, isolate_errors=True)
    rows = pa.RecordBatch.from_pydict({"slot": [0, 1, 2], "text": ["one", "bad", "two"]}, schema=columns)
    for transport in (embedded(), flight(server)):
        model.asked.clear()
        with transport.open(request) as exchange:
            exchange.chunk(rows)
            exchange.barrier(1)
            answers = {row["slot"]: row for row in exchange.results(1).to_pylist()}
        assert (answers[0]["output_0"], answers[1]["output_0"], answers[2]["output_0"]) == ("ONE", None, "TWO")
        assert "the model answered 400" in answers[1]["error"]["message"]
        assert answers[1]["state_0"] is None
        assert model.asked == {"one": 1, "bad": 1, "two": 1}


def test_ids_of_groups_are_those_of_their_states(model, server) -> None:
    """The same state has the same id in another exchange, embedded and on a server, and another epoch another one."""
    begin_task(0, "a query and its partition")
    try:
        for functions in (Functions(embedded()), Functions(flight(server))):
            changed_rows(model, [[{"key": "a", "text": "one"}], [{"key": "a", "text": "two"}]], functions)
    finally:
        begin_task(0)
    assert {len(ids) for ids in model.ids.values()} == {1}
    assert len(model.ids) == 2


SHOW_IDS = """
import sys
import pyarrow as pa
from foldflight.client import EmbeddedTransport
from foldflight.client.exchange import begin_task
from foldflight.exchange.frames import Open
from foldflight.functions import Call, Registry
from tests.wire import identified_functions

GROUPS = pa.schema([("slot", pa.int32()), ("text", pa.string())])
transport = EmbeddedTransport(Registry.load([identified_functions]), state_key=b"k" * 32)
begin_task(0, "a query and its partition")
for function in ("id_of_sets", "id_of_pickled_sets"):
    rows = pa.RecordBatch.from_pydict({"slot": [0] * 9, "text": list("abcdefghi")}, schema=GROUPS)
    with transport.open(Open((Call(function, ("text",)),), GROUPS)) as exchange:
        exchange.chunk(rows)
        exchange.barrier(1)
        print(exchange.results(1).to_pylist()[0]["output_0"])
"""


@pytest.mark.every_turn
def test_ids_of_sets_are_those_of_other_processes() -> None:
    """Hashes of texts differ between processes, and with them the order of sets; ids must not."""
    printed_ids = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            [sys.executable, "-c", SHOW_IDS], env=environment, capture_output=True, text=True, check=True
        )
        printed_ids.append(ran.stdout.split())
    assert [len(each) for each in printed_ids[0]] == [32, 32]
    assert printed_ids[0][0] != printed_ids[0][1]
    assert printed_ids[0] == printed_ids[1]


@pytest.mark.parametrize("where", ["remote", "embedded", "another engine"])
def test_equal_calls_of_two_exchanges_are_not_the_same_call(model, server, where) -> None:
    """Where nobody tells the query, a service that knows the id of an earlier query must not take this one for it."""
    if where == "another engine":
        client = fl.FlightClient(server.url.replace("grpc://", "grpc+tcp://"))
        for _ in range(2):
            writer, reader = client.do_exchange(fl.FlightDescriptor.for_path("asking"))
            with writer:
                writer.begin(TEXT)
                writer.write_batch(batch(["one", "one"]))
                writer.done_writing()
                assert reader.read_all().column(0).to_pylist() == ["ONE", "ONE"]
    else:
        transport = flight(server) if where == "remote" else embedded()
        for _ in range(2):
            answers(transport, open_of("asking"), ["one", "one"])
    assert model.asked["one"] == 4
    assert len(model.ids["one"]) == 2


def test_over_and_sessions_of_streams_are_refused() -> None:
    """OVER needs a value after each row, and sessions merge after they were asked for: both would call in vain."""
    transport = embedded()
    with pytest.raises(RejectedError, match=r"async get_value.*OVER"):
        run_over({"text": Functions(transport)["summary"]("text")}, [{"at": 1, "text": "one"}], order_by=["at"])
    layout = QueryLayout(
        keys=pa.schema([("key_0", pa.string())]),
        names=("key",),
        columns=pa.schema([("column_0", pa.string())]),
        display_names=("text",),
        has_kinds=False,
    )
    sessions = StreamOptions(emit="changelog", has_sessions=True)
    with pytest.raises(RejectedError, match=r"sessions of a stream merge"):
        Query.of(transport, {"text": Call("summary", ("text",))}, layout, stream=sessions)


def test_models_are_loaded_before_a_server_is_ready(model, log) -> None:
    """`open` of functions without required arguments has run when the server is ready; one that fails is logged."""
    waiting_functions.OPENED.clear()
    settings = load_settings({"port": 0, "health_port": "off", "http_port": "off"}, {})
    logger = make_logger(log, log_format="json", log_level="info")
    with ProcessServer(settings, Registry.load([waiting_functions, Failing]), logger, compiles=True) as server:
        model_classes = ["Asking", "AskingMany", "Impatient", "Paced", "TextsOf"]
        assert sorted(waiting_functions.OPENED) == model_classes
        assert server.ready_line["functions"]
        answers(flight(server), open_of("asking"), prompts(2))
        assert sorted(waiting_functions.OPENED) == model_classes
        assert "not opened before the server is ready" in log.getvalue()
        assert "no parameter" in log.getvalue()
        with pytest.raises(FunctionError, match="no parameter"):
            answers(flight(server), open_of("failing"), prompts(1))
    assert waiting_functions.CLOSED[-1] in model_classes


@udf
class Failing:
    def open(self, context: FunctionContext) -> None:
        raise KeyError("no parameter")

    async def eval(self, prompt: str) -> str:
        return prompt


@pytest.mark.parametrize("function", ["asking", "summary"])
def test_a_replay_makes_no_call(model, tmp_path, monkeypatch, function) -> None:
    """Answers and errors come from the recording: no model is there, and no secret that `open` would read."""
    model.behave = lambda prompt, before: 400 if prompt == "bad" else "ok"
    registry = Registry.load([waiting_functions])
    transport = EmbeddedTransport(
        registry, state_key=STATE_KEY.encode(), record=Recordings(str(tmp_path), of="all", key="a" * 16)
    )
    texts = ["one", "bad", "two"]
    if function == "asking":
        rows, request = batch(texts), open_of("asking", isolate_errors=True)
    else:
        columns = pa.schema([("slot", pa.int32()), ("text", pa.string())])
        rows = pa.RecordBatch.from_arrays([pa.array([0, 1, 2], pa.int32()), pa.array(texts)], schema=columns)
        request = Open((Call("summary", ("text",)),), columns, isolate_errors=True)
    with transport.open(request) as exchange:
        exchange.chunk(rows)
        if function == "summary":
            exchange.barrier(1)
            exchange.results(1)
        else:
            exchange.step_outputs()
    (path,) = tmp_path.glob("*.recording")
    monkeypatch.delenv("MODEL_PORT")
    model.asked.clear()
    recording = read_recording(path)
    outcome = fold_again(recording, registry)
    assert outcome.error is None
    assert not model.asked
    differing_cells = [each for each in differences(recording, outcome) if each.column != "error"]
    assert not differing_cells, "the outputs are the recorded ones"
    last = outcome.answers[-1][-1].batch.to_pylist()
    assert [row["output_0"] for row in last] == ["ONE", None, "TWO"]
    assert "400" in last[1]["error"]["message"]


def test_secrets_of_the_environment_are_not_recorded(model, tmp_path, monkeypatch) -> None:
    """A recording has asterisks for a key that a client puts into its errors, and is read as before."""
    key = 'sk-0123456789"abcdef'
    monkeypatch.setenv("MODEL_KEY", key)
    model.behave = lambda prompt, before: 400 if key in prompt else "ok"
    transport = EmbeddedTransport(
        Registry.load([waiting_functions]),
        state_key=STATE_KEY.encode(),
        record=Recordings(str(tmp_path), of="all", key="a" * 16),
    )
    request = open_of("asking", isolate_errors=True, job_parameters={"address": f"http://{key}@model"})
    (bad, good) = answers(transport, request, [f"with {key}", "one"])
    assert key in bad["error"]["row"], "the user sees the row"
    (path,) = tmp_path.glob("*.recording")
    file_bytes = path.read_bytes()
    assert key.encode() not in file_bytes
    assert json.dumps(key)[1:-1].encode() not in file_bytes
    recording = read_recording(path)
    asterisks = "*" * len(key)
    assert recording.open_request.job_parameters == {"address": f"http://{asterisks}@model"}
    rows = [row for pair in recording.pairs for row in pair.frame.batch.to_pylist()]
    assert rows == [{"prompt": f"with {asterisks}"}, {"prompt": "one"}]
    assert good["output_0"] == "ONE"


def test_secrets_of_the_environment_are_not_pickled(monkeypatch) -> None:
    """A key in a variable that the code reads is refused where the functions are pickled, by its name."""
    monkeypatch.setenv("MODEL_KEY", "sk-0123456789abcdef")
    key = os.environ["MODEL_KEY"]

    @udf
    async def ask_with_key(prompt: str) -> str:
        return prompt + key

    with pytest.raises(RejectedError, match=r"ask_with_key contains the value of .* MODEL_KEY") as excinfo:
        pickle_functions([function_of(ask_with_key)])
    assert key not in str(excinfo.value)


@pytest.fixture
def many_connections() -> Iterator[None]:
    """Let this process and its servers have a socket for each of a thousand calls."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.every_turn
def test_rows_of_a_server_that_is_killed_are_answered_once(model, tmp_path, many_connections) -> None:
    """The other server repeats the thousand calls that were open, with their ids; answered rows are not asked again."""
    first, rest = prompts(1200)[:200], prompts(1200)[200:]
    is_killed = threading.Event()
    model.behave = lambda prompt, before: "ok" if is_killed.is_set() or prompt in set_of_first else "hold"
    set_of_first = set(first)
    settings = {"modules": ["tests.wire.waiting_functions"]}
    servers = [ServerProcess(settings, tmp_path / f"{number}.log") for number in range(2)]
    try:
        for each in servers:
            each.await_ready()
        by_id = {each.ready["server_id"]: each for each in servers}
        transport = FlightTransport([each.url for each in servers], deadline_s=DEADLINE_S)
        with transport.open(open_of("asking_many")) as exchange:
            exchange.chunk(batch(first))
            answers = exchange.step_outputs().to_pylist()
            exchange.chunk(batch(rest))
            assert eventually(lambda: len(model.asked) == len(first) + len(rest))
            in_flight = len(rest)
            by_id[exchange.open_reply.server_id].process.kill()
            is_killed.set()
            answers += exchange.step_outputs().to_pylist()
        assert [row["output_0"] for row in answers] == [each.upper() for each in first + rest]
        assert all(len(ids) == 1 for ids in model.ids.values())
        assert {model.asked[each] for each in first} == {1}
        assert max(model.asked.values()) == 2
        assert sum(model.asked.values()) <= len(first) + len(rest) + in_flight
    finally:
        for each in servers:
            each.end()


@pytest.mark.every_turn
def test_workers_share_a_rate(model, tmp_path) -> None:
    """Eight exchanges with two workers ask the model no more often than the rate permits, also after a pause.

    A call arrives after it has begun, however busy the machine is, and none begins before the exchanges are asked. So
    the calls that have come by any time since then are bounded, by one for each worker and the rate.
    """
    server = ServerProcess({"modules": ["tests.wire.waiting_functions"], "workers": 2}, tmp_path / "log")
    exchanges: list[Any] = []
    try:
        server.await_ready()
        exchanges = [opened_apart(server, open_of("paced")) for _ in range(8)]
        assert len({each.open_reply.server_id for each in exchanges}) == 2
        for _ in range(3):
            model.times.clear()
            began_s = time.monotonic()
            for each in exchanges:
                each.chunk(batch(prompts(8)))
            for each in exchanges:
                assert each.step_outputs().num_rows
            arrival_times = sorted(model.times)
            assert len(arrival_times) == 64
            early = [count for count, at in enumerate(arrival_times, 1) if count > 60 * (at - began_s) + 2]
            assert not early
            time.sleep(0.5)  # in which nothing may be saved up
    finally:
        for each in exchanges:
            each.close()
        server.end()
