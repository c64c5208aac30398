"""What engines of every kind and their servers wrote in one version, for later versions to repeat byte by byte.

The engine's own drivers write the frames: streams with retractions, DISTINCT, windows, sessions, views and pickled
states, OVER, steps, and an exchange that loses its server.

To record the tapes that are missing in `recorded_engines.json.xz` with the version that is checked out, run this file
there (what is recorded is never recorded again; remove the file to record all):

    PYTHONPATH=service:. python tests/protocol/recorded_engines.py
"""

from __future__ import annotations

import json
import lzma
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa

from foldflight.client import Functions, OpenExchange
from foldflight.client.connection import Connection, Resolve
from foldflight.client.failover import FailoverExchange
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps
from foldflight.engine.query.blocks import BlockBounds
from foldflight.engine.query.query import StreamOptions
from foldflight.errors import RetryableError
from foldflight.exchange.encoding import Decoder, Encoder, Message, decode, decode_open, encode, encode_open
from foldflight.exchange.failover.coordinator import Circuits, Coordinator, FailoverBounds
from foldflight.exchange.frames import Frame, FunctionInfo, Limits, Open, Opened, Returns, Wanted
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.exchange.transitions import Role
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry
from foldflight.testing import run_epochs, run_over
from foldflight.testing.over import run_over_epochs
from tests import scalar_functions
from tests.laws.stream_engine import StreamEngine
from tests.spark import spark_functions

RECORDED = Path(__file__).with_name("recorded_engines.json.xz")
LIMITS = Limits(2**20, 10_000, 2**20, 2**24, 4, 60.0, 3600.0)
KEY = b"the key of the recorded states"


@dataclass
class Tape:
    """The messages of one connection.

    Args:
        open_request: What opened it.
        engine: What the engine wrote.
        server: What the server wrote.
    """

    open_request: bytes
    engine: list[Message] = field(default_factory=list)
    server: list[Message] = field(default_factory=list)


def registry() -> Registry:
    """Return the functions of the recorded servers."""
    maps = scalar_functions.multiply, scalar_functions.score, scalar_functions.split
    return Registry.load([spark_functions, *maps])


def server_of(open_request: bytes, ask: Callable[[Wanted], Iterable[Frame]], limits: Limits) -> ServerExchange:
    """Return the server's end of an exchange."""
    return ServerExchange(
        decode_open(open_request), registry(), limits=limits, server_id="recorded", signer=StateSigner([KEY]), ask=ask
    )


class RecordingConnection(Connection):
    """A connection to a server's end in a thread. It writes down all messages."""

    def __init__(
        self, open_request: Open, resolve: Resolve | None, tape: Tape, limits: Limits, writes: int | None
    ) -> None:
        super().__init__(open_request, resolve)
        self._tape, self._writes = tape, writes
        self._encode, self._decode = Encoder(open_request.columns), Decoder(Role.SERVER)
        self._asked: SimpleQueue[Message | None] = SimpleQueue()
        self._replies: SimpleQueue[Message | BaseException] = SimpleQueue()
        self._server = server_of(tape.open_request, self._ask, limits)
        self._thread = Thread(target=self._serve, daemon=True)
        self._reply(self._server.open_reply)
        self._thread.start()
        self._start()

    def _reply(self, frame: Frame) -> None:
        self._replies.put(encode(frame, self._server.open_reply.schema))

    def _ask(self, request: Frame) -> Iterator[Frame]:
        self._reply(request)
        while True:
            message = self._asked.get()
            assert message is not None
            frame = decode(message, Role.ENGINE)
            yield frame
            if frame.last:  # type: ignore[union-attr]
                return

    def _serve(self) -> None:
        try:
            while (message := self._asked.get()) is not None:
                for reply in self._server.handle(decode(message, Role.ENGINE)):
                    self._reply(reply)
        except BaseException as error:
            self._replies.put(error)

    def _write(self, frame: Frame) -> None:
        if len(self._tape.engine) == self._writes:
            raise RetryableError("UNREACHABLE", "the recorded server was lost")
        message = self._encode(frame)
        self._tape.engine.append(message)
        self._asked.put(message)

    def _read(self) -> Frame | None:
        reply = self._replies.get()
        if isinstance(reply, BaseException):
            raise reply
        self._tape.server.append(reply)
        return self._decode(reply)

    def _end(self) -> None:
        self._asked.put(None)
        self._thread.join()


class PlayedConnection(Connection):
    """A connection to the recorded server: it demands the messages of the recorded engine."""

    def __init__(self, open_request: Open, resolve: Resolve | None, tape: Tape, writes: int | None) -> None:
        super().__init__(open_request, resolve)
        assert decode_open(encode_open(open_request)) == decode_open(tape.open_request)
        self._encode, self._decode = Encoder(open_request.columns), Decoder(Role.SERVER)
        self._demanded, self._replies, self._writes = iter(tape.engine), iter(tape.server), writes
        self._written = 0
        self._start()

    def _write(self, frame: Frame) -> None:
        if self._written == self._writes:
            raise RetryableError("UNREACHABLE", "the recorded server was lost")
        self._written += 1
        expected_frame = next(self._demanded, None)
        assert expected_frame is not None, f"the recorded engine did not send this {frame}"
        assert_same(self._encode(frame), expected_frame, Role.ENGINE)

    def _read(self) -> Frame | None:
        return self._decode(next(self._replies))

    def _end(self) -> None:
        if not self._has_failed:
            assert next(self._demanded, None) is None, "the recorded engine sent more"


def assert_same(now: Message, before: Message, sender: Role) -> None:
    """Check that a message has the bytes of the recorded one."""
    assert now.metadata == before.metadata, (decode(now, sender), decode(before, sender))
    assert now.batch is not None
    assert before.batch is not None
    assert now.batch.schema.equals(before.batch.schema, check_metadata=True)
    assert now.batch.equals(before.batch), (now.batch.to_pylist(), before.batch.to_pylist())


class Transport:
    """A transport whose connections are recorded or played.

    Args:
        tapes: The frames to play, by connection; None to record.
        limits: The bounds of the server.
        bounds: The bounds of failover.
        writes: After how many messages of the engine a connection is lost, by its number.
    """

    current: Transport

    def __init__(
        self, tapes: list[Tape] | None, limits: Limits, bounds: FailoverBounds, writes: dict[int, int]
    ) -> None:
        self.tapes: list[Tape] = []
        self._played = None if tapes is None else iter(tapes)
        self._limits, self._bounds, self._writes = limits, bounds, writes
        self._registry = registry()
        self.otlp_endpoint = None
        Transport.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _current, ()

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return the functions."""
        return [FunctionInfo.of(self._registry[name]) for name in sorted(self._registry)]

    def describe(self, open: Open) -> Opened:  # noqa: A002 - part of the interface
        """Return what a server would answer."""
        return describe(open, self._registry, self._limits, "recorded")

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002 - part of the interface
        """Open an exchange with failover."""
        circuits, clock = Circuits(lambda: 0.5), _Still()
        urls = ["first", "second", "third"]
        coordinator = Coordinator(open, urls, circuits, bounds=self._bounds, now_s=clock.now_s)
        return FailoverExchange(open, coordinator, lambda _, open_request: self._dial(open_request, resolve), clock)

    def _dial(self, open_request: Open, resolve: Resolve | None) -> Connection:
        number = len(self.tapes)
        if self._played is None:
            self.tapes.append(Tape(encode_open(open_request)))
            return RecordingConnection(open_request, resolve, self.tapes[-1], self._limits, self._writes.get(number))
        self.tapes.append(next(self._played))
        return PlayedConnection(open_request, resolve, self.tapes[-1], self._writes.get(number))


class _Still:
    """A clock that stands, so that the frames do not depend on the time."""

    @staticmethod
    def now_s() -> float:
        return 0.0

    @staticmethod
    def rest_until(until_s: float) -> None:
        raise AssertionError(until_s)


def _current() -> Transport:
    return Transport.current


# -- what the engines do ----------------------------------------------------------------------------------------------


def grouped(functions: Functions) -> Any:
    """A stream with retractions, FILTER and DISTINCT; some groups end and begin again."""
    epochs: list[list[Any]] = [
        [{"k": "a", "v": 4, "w": 1}, {"k": "b", "v": 5, "w": 2}, {"k": "a", "v": 4, "w": 3}],
        [("-U", {"k": "a", "v": 4, "w": 1}), ("+U", {"k": "a", "v": 6, "w": 1}), ("-D", {"k": "b", "v": 5, "w": 2})],
        [{"k": "b", "v": None, "w": 1}, {"k": None, "v": 60, "w": 1}, ("-D", {"k": "a", "v": 4, "w": 3})],
    ]
    calls = {
        "price": functions["weighted_avg"]("v", "w"),
        "n": functions["count"]("v").distinct(),
        "middle": functions["median"]("v"),
        "bundled": functions["bundled_sum"]("v"),
        "large": functions["count"]().where(lambda row: None if row["v"] is None else row["v"] > 4),
        "first": functions["first"]("v").order_by("w DESC"),
    }
    types = {"k": "VARCHAR", "v": "BIGINT", "w": "INT"}
    return [each.changelog for each in run_epochs(calls, epochs, keys=["k"], types=types)]


def views(functions: Functions) -> Any:
    """A stream with views whose entries the engine keeps, of which one group has hundreds."""
    epochs: list[list[Any]] = [
        [*({"k": "a", "text": str(each)} for each in range(300)), {"k": "b", "text": "1"}],
        [{"k": "a", "text": "7"}, {"k": "a", "text": "new"}, ("-D", {"k": "a", "text": "5"}), {"k": "b", "text": "1"}],
        [("-D", {"k": "a", "text": "7"}), {"k": "c", "text": "5"}],
    ]
    calls = {"n": functions["seen"]("text"), "log": functions["seen_log"]("text")}
    return [each.changelog for each in run_epochs(calls, epochs, keys=["k"])]


def pickled(functions: Functions) -> Any:
    """A stream with pickled states."""
    epochs = [[{"k": "a", "x": 0.5}, {"k": "b", "x": 2.0}], [{"k": "a", "x": 8.0}], [{"k": "b", "x": 1.0}]]
    calls = {"low": functions["percentile"]("x", fraction=0.25)}
    return [each.changelog for each in run_epochs(calls, epochs, keys=["k"])]


def windowed(functions: Functions, *, sessions: bool) -> Any:
    """A stream with windows that close; with sessions, rows join two of them."""
    time = pa.timestamp("us", "UTC")
    engine = StreamEngine(
        functions.transport,
        {"n": Call("count"), "total": Call("sum", ("v",)), "different": Call("count", ("v",), distinct=True)},
        pa.schema([("k", pa.string()), ("start", time), ("end", time)]),
        pa.schema([("v", pa.int64())]),
        has_kinds=False,
        options=StreamOptions(emit="append", buckets=2, strict=False, closing_lateness_ms=0, has_sessions=sessions),
        seed=3,
        bounds=BlockBounds(rows_max=7),
        folds_first=True,
    )

    def row(key: str, first: int, last: int, value: int) -> dict[str, Any]:
        start, end = (datetime(2013, 1, 1, each // 60, each % 60, tzinfo=UTC) for each in (first, last))
        return {"k": key, "start": start, "end": end, "v": value}

    start_ms = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp() * 1000)
    steps = [
        ([row("a", 0, 60, 1), row("a", 60, 120, 2), row("b", 0, 60, 4)], 0),
        ([row("a", 60, 120, 8), row("c", 120, 180, 16)] if not sessions else [row("a", 50, 70, 8)], 55),
        ([row("c", 120, 180, 32), row("a", 0, 60, 64)], 90),
        ([row("d", 300, 360, 1)], 200),
    ]
    return [
        sorted(engine.epoch([rows[:1], rows[1:]], start_ms + minutes * 60_000), key=repr) for rows, minutes in steps
    ]


def framed(functions: Functions) -> Any:
    """OVER in a batch: frames of rows, of all rows so far, and of ones behind the current row."""
    rows = [{"k": "ab"[each % 3 == 0], "at": each, "v": each * 7 % 10} for each in range(20)]
    return run_over(
        {
            "three": functions["sum"]("v").rows(-2, 0),
            "most": functions["max"]("v").rows(-1, 2),
            "middle": functions["median"]("v").rows(-2, 0),
            "n": functions["count"](),
        },
        rows,
        keys=["k"],
        order_by=["at"],
    )


def framed_stream(functions: Functions) -> Any:
    """OVER in a stream."""

    def row(minute: int, key: str, value: int) -> dict[str, Any]:
        return {"at": datetime(2013, 1, 1, 12, minute), "k": key, "v": value}

    return run_over_epochs(
        {"three": functions["sum"]("v").rows(-2, 0), "n": functions["count"](), "mid": functions["median"]("v")},
        [
            [row(5, "a", 1), row(1, "b", 2), row(9, "a", 3)],
            [row(8, "a", 4), row(7, "b", 5), row(2, "b", 6)],
            [row(30, "a", 7), row(20, "b", 8)],
        ],
        keys=["k"],
        order_by=["at"],
        delay_s=120,
    )


def mapped(functions: Functions) -> Any:
    """Nested scalar functions, and a table function, each in exchanges that lose servers."""
    columns = pa.schema([("text", pa.string()), ("a", pa.int64())])
    blocks = [
        pa.RecordBatch.from_arrays(
            [pa.array([f"word {each} {text}" for text in "xyz"]), pa.array([1, None, 3])], schema=columns
        )
        for each in range(4)
    ]
    result = []
    for use in (functions["multiply"](functions["score"]("text", "a"), "a"), functions["split"]("text")):
        steps = Steps(lambda column, _: str(column))
        query = ScalarQuery.of(functions.transport, steps, {"out": steps.add(use)}, columns)
        result += [answer.to_pylist() for _, answer in query.answers(blocks)]
    return result


def batch(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    """Return a chunk of rows (slot, value, weight)."""
    return pa.RecordBatch.from_arrays(
        [pa.array([row[at] for row in rows], each.type) for at, each in enumerate(CHUNK)], schema=CHUNK
    )


CHUNK = pa.schema([("slot", pa.int32()), ("v", pa.int64()), ("w", pa.int32())])
CALLS = (Call("weighted_avg", ("v", "w")), Call("count", ("v",), distinct=True), Call("median", ("v",)))


def moving(functions: Functions) -> Any:
    """An exchange that loses its server twice, asks whether it should move, and splits what it sends."""
    result = []
    with functions.transport.open(Open(CALLS, CHUNK, initial_outputs=True)) as exchange:
        for number in range(1, 5):
            exchange.chunk(batch([(each % 40, each * number, 1) for each in range(800)]))
            exchange.chunk(batch([(50, number, number)]))
            exchange.barrier(number)
            results = exchange.results(number)
            result.append(results.select([name for name in results.column_names if "output" in name]).to_pylist())
            exchange.forget(pa.array([number, 50], pa.int32()))
            states = results.take(pa.array([number, 40])).combine_chunks().to_batches()[0]
            exchange.states(states.select(["slot", "state_0", "state_1", "state_2"]), unanswered=number == 2)
            if number != 2:
                result.append(exchange.initial_outputs().to_pylist())
    return result


def emitting(functions: Functions) -> Any:
    """An exchange whose server answers after some of the rows."""
    columns = pa.schema([*CHUNK, ("emit", pa.bool_())])
    open_request = Open(CALLS[:2], columns, Returns(states=True, outputs=False), row_outputs=True, emits=True)
    result = []
    with functions.transport.open(open_request) as exchange:
        for number in range(3):
            rows = batch([(each % 2, each + number, 1) for each in range(6)])
            emit = pa.array([bool(each % 3) for each in range(6)])
            exchange.chunk(pa.RecordBatch.from_arrays([*rows.columns, emit], schema=columns))
            result.append(exchange.row_outputs().to_pylist())
        exchange.barrier(9)
        result.append(exchange.results(9).to_pylist())
    return result


@dataclass(frozen=True)
class Scenario:
    """What an engine does.

    Args:
        run: Runs it, and returns what came out.
        limits: The bounds of the server.
        bounds: The bounds of failover.
        writes: After how many messages of the engine a connection is lost, by its number.
    """

    run: Callable[[Functions], Any]
    limits: Limits = LIMITS
    bounds: FailoverBounds = field(default_factory=FailoverBounds)
    writes: dict[int, int] = field(default_factory=dict)

    def result(self, tapes: list[Tape] | None) -> tuple[str, list[Tape]]:
        """Run it with connections that are played, or recorded; return what came out, as text, and the tapes."""
        transport = Transport(tapes, self.limits, self.bounds, self.writes)
        result = self.run(Functions(transport))  # type: ignore[arg-type]
        return repr(result), transport.tapes


SCENARIOS: dict[str, Scenario] = {
    "grouped": Scenario(grouped),
    "views": Scenario(views, bounds=FailoverBounds(replay_bytes_max=9_000)),
    "views on another server": Scenario(views, writes={0: 9}),
    "pickled": Scenario(pickled),
    "windows": Scenario(lambda functions: windowed(functions, sessions=False)),
    "sessions": Scenario(lambda functions: windowed(functions, sessions=True)),
    "over": Scenario(framed),
    "over stream": Scenario(framed_stream),
    "moving": Scenario(
        moving,
        limits=replace(LIMITS, message_bytes_max=20_000),
        bounds=FailoverBounds(ask_s=0.0, replay_bytes_max=30_000),
        writes={0: 7, 1: 12},
    ),
    "mapped": Scenario(mapped, limits=replace(LIMITS, message_bytes_max=16_420), writes={0: 3}),
    "emitting": Scenario(emitting, writes={0: 2}),
}


def read() -> dict[str, tuple[str, list[Tape]]]:
    """Return what came out and the tapes, by scenario."""
    with lzma.open(RECORDED) as file:
        document = json.load(file)
    return {
        name: (
            scenario["result"],
            [
                Tape(b64decode(tape["open"]), list(map(unpack, tape["engine"])), list(map(unpack, tape["server"])))
                for tape in scenario["tapes"]
            ],
        )
        for name, scenario in document.items()
    }


def pack(message: Message) -> list[str]:
    """Return a message as texts: its metadata, and its batch as a stream."""
    assert message.batch is not None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, message.batch.schema) as writer:
        writer.write_batch(message.batch)
    return [b64encode(message.metadata).decode(), b64encode(sink.getvalue().to_pybytes()).decode()]


def unpack(text: list[str]) -> Message:
    """Return the message of its texts."""
    metadata, batch = map(b64decode, text)
    with pa.ipc.open_stream(batch) as reader:
        return Message(metadata, reader.read_next_batch())


def main() -> None:
    """Record the scenarios that are missing."""
    document = {}
    if RECORDED.exists():
        with lzma.open(RECORDED) as file:
            document = json.load(file)
    for name, scenario in SCENARIOS.items():
        if name not in document:
            result, tapes = scenario.result(None)
            document[name] = {
                "result": result,
                "tapes": [
                    {
                        "open": b64encode(tape.open_request).decode(),
                        "engine": list(map(pack, tape.engine)),
                        "server": list(map(pack, tape.server)),
                    }
                    for tape in tapes
                ],
            }
    with lzma.open(RECORDED, "w") as file:
        file.write(json.dumps(document, sort_keys=True).encode())


if __name__ == "__main__":
    main()
