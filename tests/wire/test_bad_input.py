"""Invalid input of every kind gives an error of the taxonomy, and leaves nothing on the server."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from foldflight.client import EmbeddedTransport, FlightTransport, OpenExchange, Transport, connect
from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange.encoding import decode_error, encode, encode_open
from foldflight.exchange.frames import Barrier, Chunk
from foldflight.functions.query.call import Call
from foldflight.functions.registry import Registry
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.wire import wire_functions
from tests.wire.kit import COLUMNS, DEADLINE_S, IMPATIENT, STATE_KEY, eventually, open_request, rows

COUNT = Call("count")
VALUE = ("value",)


@pytest.fixture(autouse=True)
def nothing_left(server: ProcessServer) -> Iterator[None]:
    """After each test no exchange is open: an error frees all resources."""
    yield
    assert eventually(lambda: server.flight.active == 0)


def fold(exchange: OpenExchange, batch: pa.RecordBatch) -> pa.Table:
    """Fold a chunk in epoch 1."""
    exchange.chunk(batch)
    exchange.barrier(1)
    return exchange.results(1)


def error_of(transport: Transport, call: Call, act: Callable[[OpenExchange], Any]) -> FoldflightError:
    """Return the error that ends an exchange."""
    with pytest.raises(FoldflightError) as excinfo, transport.open(open_request(call)) as exchange:
        act(exchange)
    return excinfo.value


def state_of(transport: Transport, call: Call) -> pa.RecordBatch:
    """Return a valid state of one group."""
    with transport.open(open_request(call)) as exchange:
        return fold(exchange, rows((0, 0, 1))).select(["slot", "state_0"]).combine_chunks().to_batches()[0]


# -- calls -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "code", "mentions"),
    [
        (Call("wieghted_avg", ("value", "weight")), "UNKNOWN_FUNCTION", "weighted_avg"),
        (Call("weighted_avg", ("value",)), "SCHEMA_MISMATCH", "weighted_avg"),
        (Call("weighted_avg", ("wanted", "weight")), "SCHEMA_MISMATCH", "BIGINT"),
        (Call("weighted_avg", ("value", "nowhere")), "SCHEMA_MISMATCH", "nowhere"),
        (Call("weighted_avg", ("value", "weight"), filter="value"), "SCHEMA_MISMATCH", "a condition must be BOOLEAN"),
        (Call("weighted_avg", ("value", "weight"), literals={"fraction": 0.5}), "SIGNATURE", "fraction"),
        (Call("weighted_avg", ("value", "weight"), fingerprint="0123456789abcdef"), "SCHEMA_MISMATCH", "fingerprint"),
    ],
)
def test_bad_call_is_refused_at_open(transport: Transport, call: Call, code: str, mentions: str) -> None:
    """A call that cannot be bound fails before any row is sent; `describe` raises the same error."""
    for attempt in (transport.open, transport.describe):
        with pytest.raises(RejectedError) as excinfo:
            attempt(open_request(call))
        assert excinfo.value.code == code
        assert mentions in excinfo.value.message


def test_a_server_that_lacks_a_function_is_named(server: ProcessServer, flight: FlightTransport) -> None:
    """The error names the server, because behind a balancer the URL does not."""
    for ask in (flight.describe, flight.open):
        with pytest.raises(RejectedError, match=f"on server {server.server_id}; did you mean count") as excinfo:
            ask(open_request(Call("coutn")))
        assert excinfo.value.code == "UNKNOWN_FUNCTION"
    with fl.FlightClient(server.url) as client, pytest.raises(fl.FlightError, match=f"on server {server.server_id}"):
        client.get_flight_info(fl.FlightDescriptor.for_path("coutn"))


def test_a_function_that_the_servers_lack_is_told_with_their_urls(server: ProcessServer) -> None:
    """Of `connect`, the error has the URLs, and tells where a server has its functions from."""
    functions = connect(server.url)
    with pytest.raises(RejectedError, match=rf"'xyz' on {server.url}, .* `foldflight serve MODULE`.*; there are app"):
        _ = functions["xyz"]
    with pytest.raises(AttributeError, match=rf"'coutn' on {server.url}, .*; did you mean count"):
        _ = functions.coutn


def test_another_version_has_another_fingerprint(server: ProcessServer) -> None:
    """A query planned with one version of a function is refused by a server with another."""

    class WeightedAvg(wire_functions.WeightedAvg):
        """Another version of the function."""

    from foldflight import udaf

    newer = udaf(input_types=["BIGINT", "INT"], result_type="BIGINT", version="2", name="weighted_avg")(WeightedAvg)
    schema = connect(newer).transport.describe(open_request(Call("weighted_avg", ("value", "weight"))))
    call = Call("weighted_avg", ("value", "weight"), fingerprint=schema.fingerprints[0])
    with pytest.raises(RejectedError, match="version 1") as excinfo:
        connect(server.url, patience_s=0).transport.open(open_request(call))
    assert excinfo.value.code == "SCHEMA_MISMATCH"


# -- the author's code -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "act", "says"),
    [
        ("fails_to_accumulate", lambda e: fold(e, rows((0, 0, 1), (4, 0, 13))), "thirteen is unlucky"),
        ("fails_to_retract", lambda e: fold(e, rows((4, 3, 13))), "cannot give back 13"),
        ("fails_to_finish", lambda e: fold(e, rows((4, 0, 13))), "division"),
    ],
)
def test_raising_function_is_named(transport: Transport, function: str, act: Any, says: str) -> None:
    """The error has function and slot, and its trace has only the author's frames."""
    error = error_of(transport, Call(function, VALUE), act)
    assert isinstance(error, FunctionError)
    assert (error.code, error.function, error.slot) == ("USER_CODE", function, 4)
    assert says in str(error)
    assert error.trace is not None
    assert "wire_functions.py" in error.trace
    for ours in ("foldflight/fold", "foldflight/server", "foldflight/exchange"):
        assert ours not in str(error)
    assert error.with_group({"origin": "JFK"}).group == {"origin": "JFK"}
    if "finish" not in function:
        assert error.row is not None
        assert "13" in error.row


def test_the_first_error_is_the_one_that_is_told(transport: Transport) -> None:
    """A `close` that raises after another error does not hide that error."""
    calls = (Call("fails_to_accumulate", VALUE), Call("fails_to_close", VALUE))
    with pytest.raises(FunctionError, match="thirteen") as excinfo, transport.open(open_request(*calls)) as exchange:
        fold(exchange, rows((4, 0, 13)))
    assert (excinfo.value.function, excinfo.value.slot) == ("fails_to_accumulate", 4)


def test_raising_merge_is_named(transport: Transport) -> None:
    """The error of a merge has function and slot."""
    state = state_of(transport, Call("append_only", VALUE))
    foreign = state_of(transport, Call("fails_to_merge", VALUE))

    def act(exchange: OpenExchange) -> None:
        exchange.states(foreign)
        exchange.states(foreign)
        exchange.barrier(1)
        exchange.results(1)

    assert state.num_rows == 1
    error = error_of(transport, Call("fails_to_merge", VALUE), act)
    assert (error.code, error.function, error.slot) == ("USER_CODE", "fails_to_merge", 0)
    assert "oil and water" in str(error)


@pytest.mark.parametrize(("function", "code"), [("wrong_result", "RESULT_TYPE"), ("overflows", "OVERFLOW")])
def test_impossible_result_is_an_error(transport: Transport, function: str, code: str) -> None:
    """A result of the wrong type, or beyond BIGINT, is an error."""
    error = error_of(transport, Call(function, VALUE), lambda exchange: fold(exchange, rows((3, 0, 1))))
    assert isinstance(error, FunctionError)
    assert (error.code, error.function, error.slot) == (code, function, 3)


def test_a_retraction_of_an_append_only_function_is_refused(transport: Transport) -> None:
    """A retraction for a function without retract is refused with its name."""
    error = error_of(transport, Call("append_only", VALUE), lambda exchange: fold(exchange, rows((0, 3, 1))))
    assert isinstance(error, RejectedError)
    assert (error.code, error.function) == ("CANNOT_RETRACT", "append_only")


# -- states ----------------------------------------------------------------------------------------------------------


def merge(exchange: OpenExchange, state: pa.RecordBatch) -> None:
    """Merge a state and wait for the results."""
    exchange.states(state)
    exchange.barrier(1)
    exchange.results(1)


def with_state(state: pa.RecordBatch, value: Any) -> pa.RecordBatch:
    """Return the same batch with other bytes as the state."""
    return state.set_column(1, state.schema.field(1), pa.array([value], state.schema.field(1).type))


@pytest.mark.parametrize(
    "change",
    [
        lambda good: pickle.dumps({}),  # unsigned
        lambda good: good[:-1] + bytes([good[-1] ^ 1]),  # forged
        lambda good: good[: len(good) // 2],  # truncated
        lambda good: b"",
    ],
    ids=["unsigned", "forged", "truncated", "empty"],
)
def test_a_pickled_state_without_a_valid_signature_is_refused(
    transport: Transport, change: Callable[[bytes], bytes]
) -> None:
    """An unsigned, forged or truncated pickle is refused before it is unpickled."""
    state = state_of(transport, Call("pickled", VALUE))
    bad = with_state(state, change(state["state_0"][0].as_py()))
    error = error_of(transport, Call("pickled", VALUE), lambda exchange: merge(exchange, bad))
    assert error.code == "STATE_MISMATCH"
    assert error.function == "pickled"


def test_pickle_is_not_loaded_to_find_out(transport: Transport) -> None:
    """A pickle that would execute code is not loaded."""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return exec, ("from tests.wire import wire_functions; wire_functions.exploded = True",)

    bad = with_state(state_of(transport, Call("pickled", VALUE)), pickle.dumps(Bomb()))
    error_of(transport, Call("pickled", VALUE), lambda exchange: merge(exchange, bad))
    assert not hasattr(wire_functions, "exploded")


def test_a_state_signed_elsewhere_is_refused() -> None:
    """A state that was signed with another fleet's key is refused."""
    embedded = EmbeddedTransport(Registry.load([wire_functions]), state_key=b"another key of 16+ bytes")
    state = state_of(embedded, Call("pickled", VALUE))
    ours = EmbeddedTransport(Registry.load([wire_functions]), state_key=STATE_KEY.encode())
    assert error_of(ours, Call("pickled", VALUE), lambda exchange: merge(exchange, state)).code == "STATE_MISMATCH"


def test_a_state_of_another_function_is_refused(transport: Transport) -> None:
    """A state whose column names another function, or whose type differs, is refused."""
    state = state_of(transport, Call("weighted_avg", ("value", "weight")))
    error = error_of(transport, Call("append_only", VALUE), lambda exchange: merge(exchange, state))
    assert error.code == "STATE_MISMATCH"


# -- frames ----------------------------------------------------------------------------------------------------------


def test_epochs_must_increase(flight: FlightTransport) -> None:
    """A repeated barrier is refused, and the error names the epoch."""

    def act(exchange: OpenExchange) -> None:
        for _ in range(2):
            exchange.barrier(1)
            exchange.results(1)

    error = error_of(flight, COUNT, act)
    assert error.code == "BAD_FRAME"


class Raw:
    """A client that sends arbitrary messages."""

    def __init__(self, url: str, command: bytes, schema: pa.Schema = COLUMNS) -> None:
        self.schema = schema
        self.client = fl.FlightClient(url)
        options = fl.FlightCallOptions(timeout=DEADLINE_S)
        self.writer, self.reader = self.client.do_exchange(fl.FlightDescriptor.for_command(command), options)
        with contextlib.suppress(fl.FlightError):  # a refusal may come first; `error` reads it
            self.writer.begin(schema)

    def say(self, metadata: bytes | None, batch: pa.RecordBatch | None = None) -> None:
        if batch is None:
            batch = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)
        # The server may have refused the stream already; `error` reads why.
        with contextlib.suppress(fl.FlightError, pa.ArrowException):
            if metadata is None:
                self.writer.write_batch(batch)
            else:
                self.writer.write_with_metadata(batch, metadata)

    def error(self) -> FoldflightError:
        """Read to the end and return the error."""
        try:
            with pytest.raises(fl.FlightError) as excinfo:
                for _ in iter(self.reader.read_chunk, None):
                    pass
        finally:
            with pytest.raises(fl.FlightError):
                self.writer.close()
            self.client.close()
        error = decode_error(excinfo.value.extra_info)
        assert error is not None, str(excinfo.value)
        assert "Traceback" not in str(excinfo.value)
        return error


GOOD_OPEN = encode_open(open_request(COUNT))


@pytest.mark.parametrize("command", [b"garbage", b"\xff" * 40, b"\x00", GOOD_OPEN[: len(GOOD_OPEN) // 2]])
def test_garbage_as_descriptor_is_refused(server: ProcessServer, command: bytes) -> None:
    """A descriptor that is not an Open is BAD_FRAME, in every request with a descriptor."""
    assert Raw(server.url, command).error().code in {"BAD_FRAME", "PROTOCOL_VERSION"}
    with fl.FlightClient(server.url) as client, pytest.raises(fl.FlightError) as excinfo:
        client.get_flight_info(fl.FlightDescriptor.for_command(command))
    error = decode_error(excinfo.value.extra_info)
    assert error is not None
    assert error.code in {"BAD_FRAME", "PROTOCOL_VERSION"}


@pytest.mark.parametrize("metadata", [None, b"", b"garbage", b"\xff" * 100])
def test_garbage_as_metadata_is_refused(server: ProcessServer, metadata: bytes | None) -> None:
    """A message whose metadata is not a frame is BAD_FRAME."""
    raw = Raw(server.url, GOOD_OPEN)
    raw.say(metadata)
    assert raw.error().code == "BAD_FRAME"


def test_an_unknown_protocol_version_is_refused(flight: FlightTransport) -> None:
    """An unknown version is refused with the supported ones."""
    for attempt in (flight.open, flight.describe):
        with pytest.raises(RejectedError) as excinfo:
            attempt(open_request(COUNT, protocol_version=99))
        assert excinfo.value.code == "PROTOCOL_VERSION"
        assert "99" in excinfo.value.message
        assert "1" in excinfo.value.message.replace("99", "")


def test_a_stream_of_another_schema_is_refused(server: ProcessServer) -> None:
    """Chunks must have the columns of Open."""
    raw = Raw(server.url, GOOD_OPEN, schema=pa.schema([("other", pa.int64())]))
    message = encode(Chunk(pa.record_batch([pa.array([1])], names=["other"])), raw.schema)
    raw.say(message.metadata, message.batch)
    assert raw.error().code in {"SCHEMA_MISMATCH", "BAD_FRAME"}


def test_frames_out_of_order_are_refused(server: ProcessServer) -> None:
    """An older barrier is refused with the story so far."""
    raw = Raw(server.url, GOOD_OPEN)
    for epoch in (5, 4):
        message = encode(Barrier(epoch), COLUMNS)
        raw.say(message.metadata, message.batch)
    error = raw.error()
    assert error.code == "BAD_FRAME"
    assert error.story


def test_a_path_names_a_function_or_is_refused(server: ProcessServer) -> None:
    """GetFlightInfo of a function has its signature; other paths are errors."""
    with fl.FlightClient(server.url) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path("weighted_avg"))
        assert info.schema.names == ["value", "weight", "result"]
        assert info.total_records == 2
        for path, code in [(("nothing",), "UNKNOWN_FUNCTION"), (("a", "b"), "BAD_FRAME")]:
            with pytest.raises(fl.FlightError) as excinfo:
                client.get_flight_info(fl.FlightDescriptor.for_path(*path))
            error = decode_error(excinfo.value.extra_info)
            assert error is not None
            assert error.code == code


def test_other_verbs_are_refused(server: ProcessServer) -> None:
    """DoGet, DoPut and unknown actions are refused with the supported ones, without a traceback."""
    with fl.FlightClient(server.url) as client:
        with pytest.raises(fl.FlightError) as excinfo:
            client.do_get(fl.Ticket(b"x")).read_all()
        writer, _ = client.do_put(fl.FlightDescriptor.for_path("sum"), COLUMNS)
        with pytest.raises(fl.FlightError) as put:
            writer.close()
        with pytest.raises(fl.FlightError) as excinfo_of_action:
            list(client.do_action("x"))
        assert [action.type for action in client.list_actions()] == ["status", "register", "protocol_version"]
    for each_excinfo in (excinfo, put, excinfo_of_action):
        error = decode_error(each_excinfo.value.extra_info)
        assert error is not None
        assert error.code == "BAD_FRAME"


def test_every_prefix_of_a_message_is_refused_or_waited_for(server: ProcessServer) -> None:
    """Truncated metadata never crashes the server: the answer is an error of the taxonomy, or a shorter frame."""
    message = encode(Barrier(3), COLUMNS)
    for size in range(len(message.metadata)):
        raw = Raw(server.url, GOOD_OPEN)
        raw.say(message.metadata[:size])
        assert isinstance(raw.error(), RejectedError)


# -- limits and bugs -------------------------------------------------------------------------------------------------


def test_admission_is_bounded() -> None:
    """One exchange too many is OVERLOADED; when another ends, it is accepted."""
    with serving(wire_functions, state_keys=STATE_KEY, exchanges_max=1) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT)
        with transport.open(open_request(COUNT)):
            with pytest.raises(RetryableError) as excinfo:
                transport.open(open_request(COUNT))
            assert excinfo.value.code == "OVERLOADED"
            assert "exchanges_max is 1" in excinfo.value.message
        with transport.open(open_request(COUNT)) as exchange:
            assert fold(exchange, rows((0, 0)))["output_0"].to_pylist() == [1]


def test_slots_are_bounded() -> None:
    """A slot beyond slots_max is refused with the name of the limit, before memory is allocated."""
    with serving(wire_functions, state_keys=STATE_KEY, slots_max=10) as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        error = error_of(transport, COUNT, lambda exchange: fold(exchange, rows((10, 0))))
    assert error.code == "LIMIT"
    assert "slots_max" in error.message


def test_messages_are_bounded() -> None:
    """A chunk beyond message_bytes_max is refused with the limit; our client splits chunks before."""
    with serving(wire_functions, state_keys=STATE_KEY, message_bytes_max=100_000) as server:
        raw = Raw(server.url, GOOD_OPEN)
        message = encode(Chunk(rows(*[(0, 0)] * 10_000)), COLUMNS)
        raw.say(message.metadata, message.batch)
        error = raw.error()
    assert error.code == "LIMIT"
    assert "message_bytes_max is 100000" in error.message


def test_bug_of_ours_is_an_invariant_with_an_id(server: ProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected exception reaches the client as its class and an id, without the server's traceback."""

    def raise_bug(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("foldflight.server.flight_server.describe", raise_bug)
    with pytest.raises(CorruptError) as excinfo:
        FlightTransport([server.url], deadline_s=DEADLINE_S).describe(open_request(COUNT))
    assert excinfo.value.code == "INVARIANT"
    assert "ZeroDivisionError" in excinfo.value.message
    assert "error id" in excinfo.value.message
    assert "secret detail" not in str(excinfo.value)
    assert "flight.py" not in str(excinfo.value)


def test_long_error_reaches_a_client_with_default_limits(server: ProcessServer) -> None:
    """Errors are cut so that every gRPC client accepts them, and are never lost: 50 times in a row."""
    command = encode_open(open_request(Call("fails_to_accumulate", VALUE), job_parameters={"x": "y" * 1000}))
    for _ in range(50):
        raw = Raw(server.url, command)
        message = encode(Chunk(rows((2, 0, 13))), COLUMNS)
        raw.say(message.metadata, message.batch)
        error = raw.error()
        assert (error.code, error.slot) == ("USER_CODE", 2)
