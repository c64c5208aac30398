"""Rules for requests outside an exchange, for opening one, and for messages that are not valid frames.

The requests are ListFlights, GetFlightInfo, GetSchema, actions and tokens.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl
from google.protobuf.message import DecodeError

from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.ipc import app_metadata_in, write_batch
from foldflight.ext.conformance.raw import (
    COLUMNS,
    BrokenError,
    NotTriedError,
    RawServer,
    expect,
    expect_refusal,
    open_command,
    rows_of,
    rule,
)


def _info_of(flight: Any) -> pb.FunctionInfo:
    try:
        return pb.FunctionInfo.FromString(app_metadata_in(flight.serialize()))
    except DecodeError:
        raise BrokenError("the app_metadata of a FlightInfo is not a FunctionInfo") from None


@rule(
    "list-functions",
    "ListFlights returns one FlightInfo for each function. The descriptor is a path with the function's name, and the "
    "app_metadata is a FunctionInfo.",
    "Put the serialized FunctionInfo into app_metadata without a wrapper.",
)
def _list_functions(server: RawServer) -> None:
    names = set()
    for flight in server.client.list_flights(options=server.options()):
        expect(flight.descriptor.descriptor_type, fl.DescriptorType.PATH, "the kind of a descriptor")
        info = _info_of(flight)
        expect([info.name.encode()], list(flight.descriptor.path), "the path of the descriptor")
        expect(
            info.codec in {"typed", "custom", "pickle"}, True, f"that the codec {info.codec!r} of {info.name} is known"
        )
        names.add(info.name)
    expect(server.function in names, True, f"that {server.function} is listed")


@rule(
    "function-info",
    "GetFlightInfo with the path of a function returns the same FlightInfo as ListFlights. An unknown name is refused "
    "with RejectedError UNKNOWN_FUNCTION.",
    "Use the same code for both requests, and look up the name first.",
)
def _function_info(server: RawServer) -> None:
    info_by_name = {
        _info_of(each).name: app_metadata_in(each.serialize())
        for each in server.client.list_flights(options=server.options())
    }
    path = fl.FlightDescriptor.for_path(server.function)
    info = _info_of(server.client.get_flight_info(path, server.options()))
    expect(info, pb.FunctionInfo.FromString(info_by_name[server.function]), "the FunctionInfo")
    with expect_refusal("UNKNOWN_FUNCTION", "UNAUTHENTICATED"):
        server.client.get_flight_info(fl.FlightDescriptor.for_path("no such function"), server.options())


@rule(
    "describe",
    "GetFlightInfo with an Open as its command returns what DoExchange would answer: the schema of the results as the "
    "schema, and a ServerFrame with Opened as app_metadata. OpenedCall.folded and lift may differ.",
    "Bind the calls as DoExchange does, without opening an exchange, and wrap Opened in a ServerFrame.",
)
def _describe(server: RawServer) -> None:
    description, schema = server.describe(open_command([server.call]))
    with server.exchange() as exchange:
        expect(schema, exchange.schema, "the described schema")
        expect(_bound(description), _bound(exchange.opened), "the described calls")
        expect(description.limits.slots_max, exchange.opened.limits.slots_max, "the described slots_max")


def _bound(reply: pb.Opened) -> list[pb.OpenedCall]:
    """Return the calls without what only opening decides, or only describing tells."""
    calls = []
    for each in reply.calls:
        call = pb.OpenedCall()
        call.CopyFrom(each)
        call.ClearField("folded")
        call.ClearField("lift")
        calls.append(call)
    return calls


@rule(
    "describe-refuses",
    "GetFlightInfo refuses an Open that DoExchange would refuse, with the same error.",
    "Bind the calls to functions and columns when GetFlightInfo is called, too.",
)
def _describe_refuses(server: RawServer) -> None:
    with expect_refusal("SCHEMA_MISMATCH"):
        server.describe(open_command([{**server.call, "arguments": ["nowhere"]}]))


@rule(
    "get-schema",
    "GetSchema returns the same schema as GetFlightInfo.",
    "Implement GetSchema with GetFlightInfo.",
)
def _get_schema(server: RawServer) -> None:
    _, schema = server.describe(open_command([server.call]))
    descriptor = fl.FlightDescriptor.for_command(open_command([server.call]).SerializeToString())
    expect(server.client.get_schema(descriptor, server.options()).schema, schema, "the schema")


@rule(
    "status-action",
    "The action `status` returns one JSON object. Its `servers` is a list, and each item has a `server_id`, or an "
    "`address` and a `problem`.",
    "Implement DoAction of type `status`, and list it in ListActions. A single server returns a list of one item.",
)
def _status_action(server: RawServer) -> None:
    action_names = [action.type for action in server.client.list_actions(server.options())]
    expect("status" in action_names, True, "that ListActions names `status`")
    answers = list(server.client.do_action(fl.Action("status", b""), server.options()))
    expect(len(answers), 1, "the number of answers")
    try:
        servers = json.loads(answers[0].body.to_pybytes())["servers"]
    except (ValueError, KeyError, TypeError) as error:
        raise BrokenError(f"the answer is not a JSON object with `servers`: {type(error).__name__}: {error}") from None
    for each in servers:
        is_identified = "server_id" in each or {"address", "problem"} <= each.keys()
        expect(is_identified, True, f"that {sorted(each)} identify a server")


@rule(
    "authorization",
    "If a server requires tokens, it refuses every request without a valid header `authorization: Bearer TOKEN` with "
    "RejectedError UNAUTHENTICATED.",
    "Check the header before any handler runs, and put an Error into the details of the Flight error.",
)
def _authorization(server: RawServer) -> None:
    if server.token is None:
        raise NotTriedError("no token was given")
    command = open_command([server.call], COLUMNS).SerializeToString()
    for headers in ([], [(b"authorization", b"Bearer " + b"wrong" * 8)], [(b"authorization", server.token.encode())]):
        options = fl.FlightCallOptions(timeout=server.deadline_s, headers=headers)
        with expect_refusal("UNAUTHENTICATED"):
            list(server.client.list_flights(options=options))
        with expect_refusal("UNAUTHENTICATED"):
            server.client.get_flight_info(fl.FlightDescriptor.for_command(command), options)
        with expect_refusal("UNAUTHENTICATED"):
            writer, reader = server.client.do_exchange(fl.FlightDescriptor.for_command(command), options)
            try:
                writer.begin(COLUMNS)
                reader.read_chunk()
            finally:
                reader.cancel()
                with contextlib.suppress(pa.ArrowException, OSError):
                    writer.close()


@rule(
    "encodings",
    "A column whose type is a view, a dictionary, run-end encoded or a union is refused at open with SCHEMA_MISMATCH, "
    "even if no call uses it.",
    "Check the types of all columns, including those nested in lists, maps and structs, before the first batch is "
    "read.",
)
def _encodings(server: RawServer) -> None:
    for odd in (
        *([pa.string_view(), pa.list_(pa.binary_view())] if hasattr(pa, "string_view") else []),  # since Arrow 16
        pa.dictionary(pa.int32(), pa.int64()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int64())]),
    ):
        with expect_refusal("SCHEMA_MISMATCH"):
            server.describe(open_command([server.call], pa.schema([("value", pa.int64()), ("odd", odd)])))


# Field 1000, a varint: stands for a field of a later version of the protocol.
_UNKNOWN: Final = b"\xc0\x3e\x07"
_ERROR: Final = pa.struct([pa.field(name, pa.string()) for name in ("code", "function", "message", "row", "trace")])


@rule(
    "opened-first",
    "Opened is the first frame of the server, sent before any frame of the engine. It has version 1, the server's "
    "name, one OpenedCall for each call, and limits above 0.",
    "Answer as soon as the descriptor and the schema of the stream have arrived. Do not wait for a batch.",
)
def _opened_first(server: RawServer) -> None:
    with server.exchange(server.call, server.call) as exchange:
        reply = exchange.opened
        expect(reply.protocol_version, 1, "protocol_version")
        expect(bool(reply.server_id), True, "that server_id is not empty")
        expect(len(reply.calls), 2, "the number of calls")
        for name in ("message_bytes_max", "slots_max", "state_bytes_max", "exchange_state_bytes_max", "exchanges_max"):
            expect(getattr(reply.limits, name) > 0, True, f"that {name} is above 0")


@rule(
    "result-schema",
    "The server's batches have the columns `slot` (int32), `state_i` and `output_i` for each call i, and, if errors "
    "are isolated, `error` (a struct of strings), in this order.",
    "Build one schema when the exchange opens, and use it for every batch, including those without rows.",
)
def _result_schema(server: RawServer) -> None:
    names = ["slot", "state_0", "output_0", "state_1", "output_1"]
    with server.exchange(server.call, server.call) as exchange:
        expect(exchange.schema.names, names, "the columns of the results")
        expect(exchange.schema.field("slot").type, pa.int32(), "the type of slot")
    with server.exchange(server.call, server.call, isolate_errors=True) as exchange:
        expect(exchange.schema.names, [*names, "error"], "the columns of the results where errors are isolated")
        expect(exchange.schema.field("error").type, _ERROR, "the type of error")


@rule(
    "state-identity",
    "The metadata of the field `state_i` have the keys function, version, fingerprint and codec. The fingerprint is "
    "the same as in Opened, has 16 hexadecimal digits, and depends only on the function, its types and its direct "
    "arguments.",
    "Set the four keys in the metadata of the field, also in the batch of Opened.",
)
def _state_identity(server: RawServer) -> None:
    with server.exchange() as one, server.exchange(server.call, columns=pa.schema([("value", pa.int64())])) as two:
        about = {key.decode(): value.decode() for key, value in (one.schema.field("state_0").metadata or {}).items()}
        expect({"function", "version", "fingerprint", "codec"} - about.keys(), set(), "metadata that are missing")
        expect(about["function"], server.function, "the function")
        expect(
            about["codec"] in {"typed", "custom", "pickle", "rows"}, True, f"that the codec {about['codec']!r} is known"
        )
        expect(bool(re.fullmatch("[0-9a-f]{16}", about["fingerprint"])), True, "that a fingerprint is 16 digits")
        expect(about["fingerprint"], one.opened.calls[0].fingerprint, "the fingerprint of the column")
        expect(two.opened.calls[0].fingerprint, one.opened.calls[0].fingerprint, "the fingerprint of another exchange")


@rule(
    "input-types",
    "OpenedCall.input_types is an Arrow IPC schema with one field for each argument. Its type is the one to which the "
    "argument is cast.",
    "Serialize a schema of the declared types.",
)
def _input_types(server: RawServer) -> None:
    with server.exchange() as exchange:
        types = pa.ipc.read_schema(pa.py_buffer(exchange.opened.calls[0].input_types)).types
    expect(len(types), 1, "the number of input types")


@rule(
    "protocol-version",
    "An Open whose protocol_version is 0 (absent) or unknown is refused with PROTOCOL_VERSION.",
    "Check the version before the other fields of Open.",
)
def _protocol_version(server: RawServer) -> None:
    for version in (0, 2):
        with expect_refusal("PROTOCOL_VERSION"):
            server.exchange(protocol_version=version)


@rule(
    "unknown-fields",
    "The server ignores unknown fields in Open, in calls and in frames.",
    "Use a protobuf parser that skips unknown fields, and do not compare serialized messages.",
)
def _unknown_fields(server: RawServer) -> None:
    command = open_command([]).SerializeToString() + _UNKNOWN
    call = pb.Call(**server.call).SerializeToString() + _UNKNOWN
    command += b"\x12" + bytes([len(call)]) + call  # field 2, a message: the call
    with server.exchange_of(command) as exchange:
        exchange.send(pb.EngineFrame(chunk=pb.Chunk()).SerializeToString() + _UNKNOWN, rows_of([(3, 0, 1)]))
        exchange.send(pb.EngineFrame(barrier=pb.Barrier(epoch=1)).SerializeToString() + _UNKNOWN)
        expect(exchange.results(1)["slot"].to_pylist(), [3], "the slots of the results")


@rule(
    "unknown-function",
    "A call of an unknown function is refused with UNKNOWN_FUNCTION.",
    "Look up all functions when the exchange opens.",
)
def _unknown_function(server: RawServer) -> None:
    with expect_refusal("UNKNOWN_FUNCTION", "UNAUTHENTICATED"):
        server.exchange({**server.call, "function": "no such function"})


@rule(
    "bad-open",
    "A descriptor whose command is not an Open, and an Open without calls, are refused with BAD_FRAME.",
    "Catch the parser's error, and send an Error in the details of the Flight error.",
)
def _bad_open(server: RawServer) -> None:
    with expect_refusal("BAD_FRAME"):
        server.exchange_of(open_command([]))
    with expect_refusal("BAD_FRAME", "PROTOCOL_VERSION"):
        server.exchange_of(b"\xff\xff\xff")
    with expect_refusal("BAD_FRAME"):
        server.exchange_of(pb.Open(protocol_version=1, calls=[pb.Call(**server.call)], columns=b"?"))


@rule(
    "bound-columns",
    "An argument or filter that is not a column of Open, a wrong number of arguments, and a filter that is not boolean "
    "are refused with SCHEMA_MISMATCH, before any row is sent.",
    "Bind calls to Open.columns when the exchange opens.",
)
def _bound_columns(server: RawServer) -> None:
    for wrong in ({"arguments": ["nowhere"]}, {"arguments": ["value"] * 9}, {"filter": "value"}, {"filter": "nowhere"}):
        with expect_refusal("SCHEMA_MISMATCH"):
            server.exchange({**server.call, **wrong})


@rule(
    "stream-schema",
    "The schema of the stream must equal Open.columns. Otherwise it is refused with SCHEMA_MISMATCH.",
    "Compare names, order and types before the first batch is read.",
)
def _stream_schema(server: RawServer) -> None:
    others = (pa.schema([*COLUMNS][:3]), COLUMNS.set(2, pa.field("value", pa.int32())))
    for other in others:
        with expect_refusal("SCHEMA_MISMATCH"):
            server.exchange(stream_columns=other)


@rule(
    "expected-fingerprint",
    "A call whose fingerprint is set and differs from the bound call's is refused with SCHEMA_MISMATCH.",
    "Compare Call.fingerprint with the bound call's. An empty one means any.",
)
def _expected_fingerprint(server: RawServer) -> None:
    description, _ = server.describe(open_command([server.call]))
    fingerprint = description.calls[0].fingerprint
    server.exchange({**server.call, "fingerprint": fingerprint}).cancel()
    with expect_refusal("SCHEMA_MISMATCH"):
        server.exchange({**server.call, "fingerprint": fingerprint[::-1].translate(str.maketrans("0f", "f0"))})


@rule(
    "direct-arguments",
    "Direct arguments are an Arrow IPC stream of one batch with one row, whose columns have the names of the "
    "parameters. An unknown name is refused with SIGNATURE, another number of rows with BAD_FRAME.",
    "Check the names when the exchange opens.",
)
def _direct_arguments(server: RawServer) -> None:
    unknown_literal = write_batch(pa.RecordBatch.from_pydict({"no such parameter": [1]}))
    with expect_refusal("SIGNATURE"):
        server.exchange({**server.call, "literals": unknown_literal})
    with expect_refusal("BAD_FRAME"):
        server.exchange({**server.call, "literals": write_batch(pa.RecordBatch.from_pydict({"a": [1, 2]}))})


@rule(
    "slot-and-kind-types",
    "The column `slot` is int32 and the column `kind` int8. Other types are refused at open with SCHEMA_MISMATCH.",
    "Check the types of both columns in Open.columns.",
)
def _slot_and_kind_types(server: RawServer) -> None:
    for index, name in ((0, "slot"), (1, "kind")):
        with expect_refusal("SCHEMA_MISMATCH"):
            server.exchange(columns=COLUMNS.set(index, pa.field(name, pa.int64())))


@rule(
    "no-frame",
    "A message whose app_metadata is absent, empty, or not an EngineFrame is refused with BAD_FRAME.",
    "Check that the oneof of EngineFrame has a value.",
)
def _no_frame(server: RawServer) -> None:
    wrong_way = pb.ServerFrame(results=pb.Results(epoch=1, last=True)).SerializeToString()
    for metadata in (b"", wrong_way, b"\xff\xff"):
        with expect_refusal("BAD_FRAME"), server.exchange() as exchange:
            exchange.send(metadata)
            exchange.barrier(1)
            exchange.results(1)


@rule(
    "control-frames-have-no-rows",
    "Only a Chunk may have rows. Any other frame on a batch with rows is refused with BAD_FRAME.",
    "Refuse rows on Barrier, Forget, Checkpoint and States, because they would be lost silently.",
)
def _control_frames_have_no_rows(server: RawServer) -> None:
    with expect_refusal("BAD_FRAME"), server.exchange() as exchange:
        exchange.send(pb.EngineFrame(barrier=pb.Barrier(epoch=1)), rows_of([(0, 0, 1)]))
        exchange.results(1)
