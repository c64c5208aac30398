"""The bytes of exchanges that the engine and the server of one version wrote, for later versions to read.

To record the version that is checked out, run this file there and keep what it prints:

    PYTHONPATH=service:. python tests/protocol/recorded_wire.py > tests/protocol/previous_version.json
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2

from examples.weighted_avg import WeightedAvg
from foldflight import FoldflightError, udaf
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.codec import Message, decode, decode_open, encode, encode_open
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    Forget,
    Frame,
    FunctionInfo,
    Limits,
    Open,
    Returns,
    States,
)
from foldflight.exchange.machine import Role
from foldflight.exchange.messages import encode_error, encode_info
from foldflight.exchange.serving import ServerExchange
from foldflight.functions import Call, Registry

COLUMNS = pa.schema(
    [("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64()), ("w", pa.int32()), ("wanted", pa.bool_())]
)
DISTINCT_STATE = pa.list_(pa.struct([("argument_0", pa.int64()), ("times", pa.int64())]))
STATES = pa.schema(
    [
        ("slot", pa.int32()),
        ("state_0", pa.struct([("sum", pa.int64()), ("count", pa.int64())])),
        ("state_1", DISTINCT_STATE),
        ("state_2", pa.int64()),
    ]
)
LIMITS = Limits(2**16, 1000, 2**16, 2**20, 4, 60.0, 3600.0)


@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Talks:
    """Logs each row, and raises for one value."""

    def __init__(self, unlucky: int = 0) -> None:
        self.unlucky = unlucky

    def open(self, context: Any) -> None:
        """Keep the logger and the job's parameters."""
        self.context = context

    def create_accumulator(self) -> int:
        """Return the sum of no rows."""
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        """Add a value, and log it."""
        if value == self.unlucky:
            raise ValueError("unlucky")
        self.context.logger.info("seen", value=value, city=self.context.job_parameters["city"])
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        """Return the sum."""
        return accumulator


def registry() -> Registry:
    """Return the functions of the recorded server."""
    return Registry.load([WeightedAvg, Talks])


def rows(*values: tuple[Any, ...]) -> Chunk:
    """Return a chunk of rows (slot, kind, v, w, wanted)."""
    columns = [pa.array([row[at] for row in values], field.type) for at, field in enumerate(COLUMNS)]
    return Chunk(pa.RecordBatch.from_arrays(columns, schema=COLUMNS))


def forget(*slots: int) -> Forget:
    """Return a Forget."""
    return Forget(pa.array(slots, pa.int32()))


def states(slot: int, total: int, count: int) -> pa.RecordBatch:
    """Return the states of one slot, for the first two calls."""
    row = {
        "slot": slot,
        "state_0": {"sum": total, "count": count},
        "state_1": [{"argument_0": total, "times": 2}],
        "state_2": None,
    }
    return pa.RecordBatch.from_pylist([row], schema=STATES)


CALLS = (
    Call("weighted_avg", ("v", "w"), filter="wanted"),
    Call("count", ("v",), distinct=True),
    Call("talks", ("v",), literals={"unlucky": 13}),
)
SCRIPTS: dict[str, tuple[Open, list[Frame]]] = {
    "epochs": (
        Open(
            CALLS,
            COLUMNS,
            Returns(states=True, outputs=True),
            initial_outputs=True,
            job_parameters={"city": "NYC"},
            trace_context={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            isolate_errors=True,
        ),
        [
            States(states(2, 10, 4)),
            States(states(3, 6, 3), unanswered=True),
            rows((0, 0, 4, 1, True), (0, 0, 8, 1, True), (0, 0, 9, 1, False), (2, 0, 1, 1, True), (1, 0, 13, 1, True)),
            Checkpoint(),
            rows((0, 0, 9, 2, True)),
            Barrier(1),
            forget(0, 1),
            rows((0, 0, 5, 1, True)),
            Barrier(2),
        ],
    ),
    "rows": (
        Open(
            (
                Call("weighted_avg", ("v", "w")),
                Call("sum", ("v",), distinct=True),
                Call("talks", ("v",), literals={"unlucky": 13}, materialize=True),
            ),
            COLUMNS,
            Returns(states=False, outputs=True),
            row_outputs=True,
            job_parameters={"city": "NYC"},
        ),
        [
            rows((0, 0, 4, 1, True), (0, 2, 8, 1, True), (1, 0, 5, 1, True)),
            rows((0, 3, 4, 1, True), (0, 1, 8, 1, True)),
            Barrier(7),
            Barrier(8),
        ],
    ),
}
FAILING = rows((0, 0, 4, 1, True), (5, 0, 13, 1, True))


@dataclass(frozen=True)
class Step:
    """A frame of the engine and the replies to it. The first step has only the reply Opened.

    Args:
        asked: What the engine wrote.
        replies: What the server wrote.
    """

    asked: Message | None
    replies: list[Message]


@dataclass(frozen=True)
class Recorded:
    """The bytes that one version wrote.

    Args:
        protocol: Its protocol: the descriptors of all messages.
        commands: Its Open, by script.
        scripts: What followed, by script.
        error: An error of a function.
        infos: What its functions are.
    """

    protocol: descriptor_pb2.FileDescriptorProto
    commands: dict[str, bytes]
    scripts: dict[str, list[Step]]
    error: bytes
    infos: list[bytes]


def fold(command: bytes, messages: list[Message]) -> Iterator[Step]:
    """Return the answers of this version's server to the recorded engine."""
    server = ServerExchange(decode_open(command), registry(), limits=LIMITS, server_id="a/0")
    server.request_reopen()
    schema = server.opened.schema
    yield Step(None, [encode(server.opened, schema)])
    for message in messages:
        yield Step(message, [encode(reply, schema) for reply in server.handle(decode(message, Role.ENGINE))])
    server.close()


def error_of(command: bytes) -> FoldflightError:
    """Return the error of a function that raises."""
    server = ServerExchange(decode_open(command), registry(), limits=LIMITS, server_id="a/0")
    try:
        list(server.handle(FAILING))
    except FoldflightError as error:
        return error
    raise AssertionError("no error")


def failing_open() -> bytes:
    """Return the Open of an exchange that `FAILING` ends with an error."""
    return encode_open(Open(CALLS[2:], COLUMNS, job_parameters={"city": "NYC"}))


def main() -> None:
    """Print the bytes of this version."""
    commands = {name: encode_open(opening) for name, (opening, _) in SCRIPTS.items()}
    scripts = {
        name: [
            [None if step.asked is None else packed(step.asked), *map(packed, step.replies)]
            for step in fold(commands[name], [encode(frame, COLUMNS) for frame in frames])
        ]
        for name, (_, frames) in SCRIPTS.items()
    }
    functions = registry()
    recorded = {
        "protocol": _text(pb.DESCRIPTOR.serialized_pb),
        "commands": {name: _text(command) for name, command in commands.items()},
        "scripts": scripts,
        "error": _text(encode_error(error_of(failing_open()))),
        "infos": [_text(encode_info(FunctionInfo.of(functions[name]))) for name in ("talks", "weighted_avg")],
    }
    json.dump(recorded, sys.stdout, indent=1)
    sys.stdout.write("\n")


def read(text: str) -> Recorded:
    """Return the output of `main`, parsed."""
    recorded = json.loads(text)
    return Recorded(
        protocol=descriptor_pb2.FileDescriptorProto.FromString(b64decode(recorded["protocol"])),
        commands={name: b64decode(command) for name, command in recorded["commands"].items()},
        scripts={
            name: [Step(asked and unpacked(asked), [unpacked(each) for each in replies]) for asked, *replies in steps]
            for name, steps in recorded["scripts"].items()
        },
        error=b64decode(recorded["error"]),
        infos=[b64decode(info) for info in recorded["infos"]],
    )


def packed(message: Message) -> list[str]:
    assert message.batch is not None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, message.batch.schema) as writer:
        writer.write_batch(message.batch)
    return [_text(message.metadata), _text(sink.getvalue().to_pybytes())]


def unpacked(text: list[str]) -> Message:
    metadata, batch = map(b64decode, text)
    with pa.ipc.open_stream(batch) as reader:
        return Message(metadata, reader.read_next_batch())


def _text(data: bytes) -> str:
    return b64encode(data).decode()


if __name__ == "__main__":
    main()
