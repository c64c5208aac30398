"""Rules of the contract, their outcomes, and a client for them that uses only protobuf, Arrow and Flight.

The client does not use this package's own, because it would repeat its mistakes. Each check of a server is a rule of
the contract with the function that tests it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
import pyarrow.flight as fl
from google.protobuf.message import DecodeError

from foldflight.client.flight_transport import Guard
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.ipc import app_metadata_in, write_batch


@dataclass(frozen=True)
class Rule:
    """One rule of the contract.

    Args:
        name: Its name in reports, tests and `foldflight conform --rule`.
        sentence: What it requires.
        remedy: What to change if it is broken.
    """

    name: str
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rule.

    Args:
        rule: The rule.
        passed: Whether the rule was kept; None if it was not tested.
        detail: What was found, or why the rule was not tested; empty if it was kept.
    """

    rule: Rule
    passed: bool | None
    detail: str = ""


def rules_table(subject: str, rules: Iterable[Rule]) -> str:
    """Return rules as a Markdown table for proto/README.md.

    >>> from foldflight.testing.conformance import Rule, rules_table
    >>> print(rules_table("servers", [Rule("barrier", "A barrier is answered.", "Answer it.")]), end="")
    | a rule for servers | what it requires |
    |---|---|
    | `barrier` | A barrier is answered. |
    """
    lines = [f"| a rule for {subject} | what it requires |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{rule.name}` | {rule.sentence} |" for rule in rules)]) + "\n"


class BrokenError(Exception):
    """A rule is broken. The message says what was found."""


class NotTriedError(Exception):
    """A rule cannot be tested. The message says why."""


def expect(actual: object, expected: object, what: str) -> None:
    """Raise BrokenError unless both are equal. `what` names the value."""
    if actual != expected:
        raise BrokenError(f"{what}: expected {expected!r}, found {actual!r}")


# The columns of the kit's chunks. A row is (slot, kind, value, wanted); missing values are 0, 0, NULL and true.
COLUMNS: Final = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("value", pa.int64()), ("wanted", pa.bool_())])
_FILLING: Final = (0, 0, None, True)

Row = tuple[Any, ...]
CallOf = Mapping[str, Any]
_R = TypeVar("_R")


def rows_of(rows: Sequence[Row], columns: pa.Schema = COLUMNS) -> pa.RecordBatch:
    """Return a batch of rows (slot, kind, value, wanted) with the columns of `columns`."""
    filled_rows = [row + _FILLING[len(row) :] for row in rows]
    arrays = [pa.array([row[COLUMNS.names.index(field.name)] for row in filled_rows], field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def open_command(calls: Sequence[CallOf], columns: pa.Schema = COLUMNS, **fields: Any) -> pb.Open:
    """Return an Open that requests states and outputs. `fields` override its fields."""
    all_fields = {"protocol_version": 1, "return_states": True, "return_outputs": True, **fields}
    return pb.Open(calls=[pb.Call(**call) for call in calls], columns=columns.serialize().to_pybytes(), **all_fields)


@contextlib.contextmanager
def expect_refusal(*codes: str) -> Iterator[None]:
    """Raise BrokenError unless the body ends with a RejectedError of one of these codes."""
    try:
        yield
    except (fl.FlightError, pa.ArrowException, OSError) as error:
        sent_error = _error_of(error)
        what = f"the class of the error ({sent_error.code}: {sent_error.message[:200]})"
        expect(sent_error.error_class, "RejectedError", what)
        if sent_error.code not in codes:
            raise BrokenError(
                f"the code of the error: expected {' or '.join(codes)}, found {sent_error.code}"
            ) from None
        if not sent_error.message:
            raise BrokenError(f"the error {sent_error.code} has no message") from None
    else:
        raise BrokenError(f"the request was accepted; expected RejectedError {' or '.join(codes)}")


def _error_of(error: BaseException) -> pb.Error:
    """Return the Error that a Flight error carries."""
    extra = getattr(error, "extra_info", b"")
    text = (str(error).splitlines() or [type(error).__name__])[0][:200]
    if not extra:
        raise BrokenError(f"an error has no Error in its extra_info: {type(error).__name__}: {text}")
    try:
        return pb.Error.FromString(extra)
    except DecodeError:
        raise BrokenError(f"the extra_info of an error is not an Error: {text}") from None


class RawServer:
    """The server under test.

    Args:
        url: URL of the server: `grpc://host:port` or `grpc+tls://host:port`.
        function: Name of a function with one argument that takes BIGINT.
        deadline_s: Longest wait for one read or write.
        token: Bearer token, if the server requires one.
        tls: Certificates, as pyarrow's client takes them.
    """

    def __init__(
        self,
        url: str,
        *,
        function: str,
        deadline_s: float,
        token: str | None = None,
        tls: Mapping[str, bytes] | None = None,
    ) -> None:
        self.url = url
        self.function = function
        self.deadline_s = deadline_s
        self.token = token
        # A connection of its own: this client must not affect other clients in the process.
        self.client = fl.FlightClient(
            url,
            generic_options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 64 * 1024)],
            **(tls or {}),
        )
        self._exchanges: set[RawExchange] = set()

    def options(self) -> Any:
        """Return the options of a Flight call with deadline and token."""
        return fl.FlightCallOptions(timeout=self.deadline_s, headers=_headers(self.token))

    @property
    def call(self) -> dict[str, Any]:
        """The call that most checks use."""
        return {"function": self.function, "arguments": ["value"]}

    def describe(self, command: pb.Open) -> tuple[pb.Opened, pa.Schema]:
        """Return what GetFlightInfo answers to an Open: Opened, and the schema of the results."""
        info = self.client.get_flight_info(fl.FlightDescriptor.for_command(command.SerializeToString()), self.options())
        frame = pb.ServerFrame.FromString(app_metadata_in(info.serialize()))
        expect(frame.WhichOneof("frame"), "opened", "the frame in the app_metadata of the FlightInfo")
        return frame.opened, info.schema

    def exchange(
        self, *calls: CallOf, columns: pa.Schema = COLUMNS, stream_columns: pa.Schema | None = None, **fields: Any
    ) -> RawExchange:
        """Open an exchange and read Opened."""
        return self.exchange_of(open_command(calls or (self.call,), columns, **fields), stream_columns or columns)

    def exchange_of(self, command: pb.Open | bytes, columns: pa.Schema = COLUMNS) -> RawExchange:
        """Open an exchange with this command, and read Opened."""
        exchange = RawExchange(self, command, columns)
        self._exchanges.add(exchange)
        return exchange

    def hang_up(self) -> None:
        """Cancel the exchanges that are still open, for example one that the server had to refuse and accepted."""
        while self._exchanges:
            self._exchanges.pop().cancel()

    def output(self, rows: Sequence[Row]) -> Any:
        """Return the output of one call over these rows of one group, in one chunk and one epoch."""
        with self.exchange() as exchange:
            return exchange.epoch(1, rows)["output_0"].to_pylist()[-1]

    def close(self) -> None:
        """Cancel the exchanges that are still open, and close the connection."""
        self.hang_up()
        self.client.close()


class RawExchange:
    """One DoExchange, frame by frame. A context manager that cancels the exchange unless it has ended.

    Args:
        server: The server.
        command: The descriptor's command.
        columns: The schema of the stream.

    Attributes:
        opened: The server's answer to Open.
        schema: The schema of the server's batches.
    """

    def __init__(self, server: RawServer, command: pb.Open | bytes, columns: pa.Schema) -> None:
        data = command if isinstance(command, bytes) else command.SerializeToString()
        self.columns = columns
        self._no_rows = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in columns], schema=columns)
        self.opened = pb.Opened()
        self._calls = 1 if isinstance(command, bytes) else len(command.calls)
        # The exchange has no deadline as a whole. The guard has one for each step.
        options = fl.FlightCallOptions(headers=_headers(server.token))
        self._writer, self._reader = server.client.do_exchange(fl.FlightDescriptor.for_command(data), options)
        self._guard = Guard(server.deadline_s, self._reader.cancel)
        try:
            self._step(lambda: self._writer.begin(columns), "the beginning of the stream")
            frame, batch = self.receive()
            expect(frame.WhichOneof("frame"), "opened", "the first frame of the server")
            expect(batch.num_rows, 0, "the rows of the batch of Opened")
        except BaseException:
            self.cancel()
            raise
        self.opened = frame.opened
        self.schema: pa.Schema = batch.schema

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.cancel()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, frame: pb.EngineFrame | bytes, batch: pa.RecordBatch | None = None) -> None:
        """Send a frame, on a batch of zero rows unless one is given."""
        metadata = frame if isinstance(frame, bytes) else frame.SerializeToString()
        carrier = self._no_rows if batch is None else batch
        # If the server has ended the exchange, the next read raises its error.
        with contextlib.suppress(pa.ArrowException, OSError):
            self._step(lambda: self._writer.write_with_metadata(carrier, metadata), "a write")

    def chunk(self, rows: Sequence[Row]) -> None:
        """Send rows."""
        self.send(pb.EngineFrame(chunk=pb.Chunk()), rows_of(rows, self.columns))

    def barrier(self, epoch: int) -> None:
        """End an epoch."""
        self.send(pb.EngineFrame(barrier=pb.Barrier(epoch=epoch)))

    def states(self, batch: pa.RecordBatch, *, unanswered: bool = False) -> None:
        """Send states."""
        self.send(pb.EngineFrame(states=pb.States(batch=write_batch(batch), unanswered=unanswered)))

    def forget(self, *slots: int) -> None:
        """Drop slots."""
        self.send(pb.EngineFrame(forget=pb.Forget(slots=slots)))

    def checkpoint(self) -> None:
        """Ask for states."""
        self.send(pb.EngineFrame(checkpoint=pb.Checkpoint()))

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self) -> tuple[pb.ServerFrame, pa.RecordBatch]:
        """Return the next frame other than Log, with its batch."""
        while True:
            try:
                message = self._step(self._reader.read_chunk, "an answer")
            except StopIteration:
                raise BrokenError("the server ended the exchange instead of answering") from None
            if message.data is None or message.app_metadata is None:
                raise BrokenError("a message has no record batch or no app_metadata")
            message.data.validate(full=True)
            frame = pb.ServerFrame.FromString(message.app_metadata.to_pybytes())
            if frame.WhichOneof("frame") != "log":
                return frame, message.data

    def answer(self, kind: str) -> pa.RecordBatch:
        """Return the batch of the next frame, which must be of this kind: the name of a field of ServerFrame."""
        frame, batch = self.receive()
        expect(frame.WhichOneof("frame"), kind, "the frame that was due")
        expect(batch.schema, self.schema, "the schema of an answer")
        return batch

    def results(self, epoch: int) -> pa.Table:
        """Return the results of an epoch, with all parts concatenated."""
        return self._whole("results", "epoch", epoch, "the epoch of the results")

    def saved_states(self) -> pa.Table:
        """Return the states that a checkpoint saved, with all parts concatenated."""
        return self._whole("saved_states", "problem", "", "the problem of the checkpoint")

    def epoch(self, number: int, rows: Sequence[Row] = ()) -> pa.Table:
        """Send rows, unless there are none, and a barrier. Return the results."""
        if rows:
            self.chunk(rows)
        self.barrier(number)
        return self.results(number)

    def state_batch(self, results: pa.Table, slots: Sequence[int] | None = None) -> pa.RecordBatch:
        """Return the slots and states of results as the batch of States. `slots` replace the slots."""
        names = ["slot", *(f"state_{index}" for index in range(self._calls))]
        states = results.select(names).combine_chunks()
        if slots is not None:
            states = states.set_column(0, results.schema.field("slot"), pa.array(slots, pa.int32()))
        return states.to_batches()[0]

    # -- ending ------------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Close this direction of the stream, and return how many frames the server sent before it ended the other."""
        self._step(self._writer.done_writing, "the end")
        frames = 0
        while True:
            try:
                self._step(self._reader.read_chunk, "the end of the stream")
            except StopIteration:
                return frames
            frames += 1

    def cancel(self) -> None:
        """Cancel the exchange. No effect if it has ended."""
        self._guard.close()
        self._reader.cancel()
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.close()

    def _whole(self, kind: str, field: str, expected: object, what: str) -> pa.Table:
        """Return the parts of an answer concatenated. Each has `expected` in a field."""
        parts, last = [], False
        while not last:
            frame, batch = self.receive()
            expect(frame.WhichOneof("frame"), kind, "the frame that was due")
            answer = getattr(frame, kind)
            expect(getattr(answer, field), expected, what)
            expect(batch.schema, self.schema, "the schema of an answer")
            parts.append(batch)
            last = answer.last
        return pa.Table.from_batches(parts)

    def _step(self, step: Callable[[], _R], what: str) -> _R:
        try:
            with self._guard:
                return step()
        except (pa.ArrowException, OSError):
            if self._guard.expired:
                raise BrokenError(f"{what} took longer than {self._guard.deadline_s:g} s") from None
            raise


def _headers(token: str | None) -> list[tuple[bytes, bytes]]:
    return [] if token is None else [(b"authorization", f"Bearer {token}".encode())]


Try = Callable[[RawServer], None]


@dataclass(frozen=True)
class ServerCheck:
    """One check of a server.

    Args:
        rule: The rule.
        run: Tests the rule. It raises BrokenError, NotTriedError, or the Flight error if the server refuses a valid
            request.
    """

    rule: Rule
    run: Try


SERVER_CHECKS: Final[list[ServerCheck]] = []


def rule(name: str, sentence: str, remedy: str) -> Callable[[Try], Try]:
    """Return a decorator that adds a function to the table of checks. `Rule` documents the arguments."""

    def put(run: Try) -> Try:
        SERVER_CHECKS.append(ServerCheck(Rule(name, sentence, remedy), run))
        return run

    return put
