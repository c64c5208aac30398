"""Rules for requests outside an exchange: ListFlights, GetFlightInfo, GetSchema, actions and tokens."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
from google.protobuf.message import DecodeError

from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.ipc import app_metadata_in
from foldflight.ext.conformance.raw import (
    COLUMNS,
    BrokenError,
    NotTriedError,
    RawServer,
    expect,
    expect_refusal,
    opening,
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
    with expect_refusal("RejectedError", "UNKNOWN_FUNCTION", "UNAUTHENTICATED"):
        server.client.get_flight_info(fl.FlightDescriptor.for_path("no such function"), server.options())


@rule(
    "describe",
    "GetFlightInfo with an Open as its command returns what DoExchange would answer: the schema of the results as the "
    "schema, and a ServerFrame with Opened as app_metadata. OpenedCall.folded and lift may differ.",
    "Bind the calls as DoExchange does, without opening an exchange, and wrap Opened in a ServerFrame.",
)
def _describe(server: RawServer) -> None:
    description, schema = server.describe(opening([server.call]))
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
    with expect_refusal("RejectedError", "SCHEMA_MISMATCH"):
        server.describe(opening([{**server.call, "arguments": ["nowhere"]}]))


@rule(
    "get-schema",
    "GetSchema returns the same schema as GetFlightInfo.",
    "Implement GetSchema with GetFlightInfo.",
)
def _get_schema(server: RawServer) -> None:
    _, schema = server.describe(opening([server.call]))
    descriptor = fl.FlightDescriptor.for_command(opening([server.call]).SerializeToString())
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
    command = opening([server.call], COLUMNS).SerializeToString()
    for headers in ([], [(b"authorization", b"Bearer " + b"wrong" * 8)], [(b"authorization", server.token.encode())]):
        options = fl.FlightCallOptions(timeout=server.deadline_s, headers=headers)
        with expect_refusal("RejectedError", "UNAUTHENTICATED"):
            list(server.client.list_flights(options=options))
        with expect_refusal("RejectedError", "UNAUTHENTICATED"):
            server.client.get_flight_info(fl.FlightDescriptor.for_command(command), options)
        with expect_refusal("RejectedError", "UNAUTHENTICATED"):
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
        with expect_refusal("RejectedError", "SCHEMA_MISMATCH"):
            server.describe(opening([server.call], pa.schema([("value", pa.int64()), ("odd", odd)])))
