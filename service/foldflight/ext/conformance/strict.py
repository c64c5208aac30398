"""A strict server: it folds like any other, records the rules that its engine breaks, and injects faults.

`Record` is what a strict server saw of its engine.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.encoding import Message, decode, decode_open, encode, encode_info
from foldflight.exchange.frames import (
    Barrier,
    Chunk,
    EngineFrame,
    Entries,
    Forget,
    Frame,
    FunctionInfo,
    Limits,
    Open,
    Opened,
    Results,
    States,
)
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.exchange.transitions import Role
from foldflight.ext.conformance.raw import Rule
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Registry, RowKind
from foldflight.server.error_translation import to_flight_error
from foldflight.server.flightbase import flight_info
from foldflight.server.rpc_server import VanishedError, read_message, send

# If a write takes longer, the engine does not read.
_BLOCKED_S: Final = 3.0
_SETTLE_S: Final = 2.0

_RULES = (
    Rule(
        "open",
        "The command of the descriptor is an Open of version 1, and the schema of the stream equals Open.columns.",
        "Serialize the schema of the stream itself into Open.columns.",
    ),
    Rule(
        "frames",
        "Each message is a record batch with an EngineFrame as app_metadata. Only the batch of a Chunk has rows. "
        "States have the columns `slot` and `state_i` for each call.",
        "Send other frames on a batch of zero rows in the schema of the stream.",
    ),
    Rule(
        "epochs",
        "The first barrier of an exchange has any number. Each later one has the number of the previous one plus one.",
        "Count epochs for each exchange.",
    ),
    Rule(
        "slots",
        "Slots are int32 without NULLs, at least 0 and below slots_max of Opened.",
        "Give the groups of an exchange dense numbers, and forget those that are not needed.",
    ),
    Rule(
        "kinds",
        "Kinds are 0 to 3. 1 and 3 are only sent if can_retract is true for each call in Opened.",
        "Check can_retract in Opened, or in GetFlightInfo when the query is planned, before sending retractions.",
    ),
    Rule(
        "state-identity",
        "States are sent with the metadata of the field in which they were received: function, version, fingerprint "
        "and codec.",
        "Store the metadata of the field with the states.",
    ),
    Rule(
        "message-size",
        "No message is larger than message_bytes_max of Opened.",
        "Split chunks and states by bytes. The results do not depend on the split.",
    ),
    Rule(
        "reads-answers",
        "The engine reads answers while it sends, so that the server's writes do not block.",
        "Before each send, read all answers that are due, or read in a separate thread.",
    ),
    Rule(
        "polite-end",
        "An engine ends an exchange by closing its direction of the stream and reading the other to its end.",
        "Half-close (done_writing), then read until the stream ends. Cancel only after errors.",
    ),
)
ENGINE_FRAME_RULES: Final = {rule.name: rule for rule in _RULES}


class Record:
    """The record of one run, shared by all its exchanges. Safe for threads.

    Attributes:
        broken: The first breach of each rule, by the rule's name.
        seen: Counts of frames by name, including Open, and as `at once` the largest number of open exchanges.
        provoked: How often the provocation took place.
        message_bytes: Size of the largest message.
        opens_after_error: How many exchanges were opened after an error that is not retryable had been sent.
    """

    def __init__(self) -> None:
        self.broken: dict[str, str] = {}
        self.seen: Counter[str] = Counter()
        self.provoked = 0
        self.message_bytes = 0
        self.opens_after_error = 0
        self._condition = threading.Condition()
        self._has_refused = False
        self._now_open = 0
        self._writes: dict[int, float] = {}

    def breach(self, rule: str, detail: str) -> None:
        """Record that a rule was broken."""
        with self._condition:
            self.broken.setdefault(rule, detail)

    def provoke(self) -> int:
        """Record that the provocation takes place, and return how often it has."""
        with self._condition:
            self.provoked += 1
            return self.provoked

    def provoke_once(self) -> bool:
        """Record that the provocation takes place, unless it already has. Return whether it takes place now."""
        with self._condition:
            if self.provoked:
                return False
            self.provoked = 1
            return True

    def note_refusal(self) -> None:
        """Record that an error that is not retryable is sent."""
        with self._condition:
            self._has_refused = True

    def count_open(self) -> None:
        """Record that an exchange was opened."""
        with self._condition:
            self.opens_after_error += self._has_refused
            self._now_open += 1
            self.seen["Open"] += 1
            self.seen["at once"] = max(self.seen["at once"], self._now_open)
            self._condition.notify_all()

    def count_end(self) -> None:
        """Record that an exchange has ended."""
        with self._condition:
            self._now_open -= 1
            self._condition.notify_all()

    def settle(self) -> None:
        """Wait up to two seconds for exchanges to end, and record writes that are still blocked."""
        with self._condition:
            self._condition.wait_for(lambda: not self._now_open, _SETTLE_S)
        for since_s in list(self._writes.values()):
            self._look_at(since_s)

    def await_open(self, timeout_s: float) -> bool:
        """Wait until another exchange is opened. Return whether it was within `timeout_s`."""
        with self._condition:
            before = self.seen["Open"]
            return self._condition.wait_for(lambda: self.seen["Open"] > before, timeout_s)

    def frame(self, name: str, size: int) -> None:
        """Record a frame of the engine and its size in bytes."""
        with self._condition:
            self.seen[name] += 1
            self.message_bytes = max(self.message_bytes, size)

    def write(self, writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
        """Send a message, and record if the engine does not read it in time."""
        me = threading.get_ident()
        self._writes[me] = time.monotonic()
        try:
            send(writer, message, begin=begin)
        finally:
            self._look_at(self._writes.pop(me))

    def _look_at(self, since_s: float) -> None:
        if time.monotonic() - since_s > _BLOCKED_S:
            self.breach("reads-answers", f"an answer could not be written for more than {_BLOCKED_S:g} s")


@dataclass
class ObservedExchange:
    """One exchange, and what its engine has sent so far.

    Args:
        opened: The server's answer.
        record: The record for breaches.
        epoch: The number of the last barrier; None before the first.
        barriers_after_reopen: The number of barriers since results with `reopen`; None before those.
    """

    opened: Opened
    record: Record
    epoch: int | None = None
    barriers_after_reopen: int | None = None

    def check(self, frame: Frame) -> None:
        """Record the rules that a frame breaks."""
        match frame:
            case Chunk():
                self._check_slots(frame.batch)
                self._check_kinds(frame.batch)
            case States():
                self._check_slots(frame.batch)
                self._check_identity(frame.batch)
            case Forget():
                self._check_range(frame.slots)
            case Barrier():
                self._check_epoch(frame.epoch)
            case _:
                pass

    def _check_slots(self, batch: pa.RecordBatch) -> None:
        if batch.schema.names.count("slot") == 1:
            self._check_range(batch.column("slot"))

    def _check_range(self, slots: pa.Array) -> None:
        bound = self.opened.limits.slots_max
        if slots.type != pa.int32() or slots.null_count:
            self.record.breach("slots", f"slots have the type {slots.type} and {slots.null_count} NULLs")
            return
        wrong = [slot for slot in slots.to_pylist() if not 0 <= slot < bound]
        if wrong:
            self.record.breach("slots", f"slot {wrong[0]} is out of range; slots_max is {bound}")

    def _check_kinds(self, batch: pa.RecordBatch) -> None:
        if "kind" not in batch.schema.names:
            return
        kinds = set(batch.column("kind").to_pylist())
        known_kinds = set(map(int, RowKind))
        if kinds - known_kinds:
            self.record.breach("kinds", f"unknown kinds {sorted(map(str, kinds - known_kinds))}")
        takes_back = kinds & {int(RowKind.UPDATE_BEFORE), int(RowKind.DELETE)}
        if takes_back and not all(self.opened.can_retract):
            self.record.breach("kinds", f"rows of kinds {sorted(takes_back)} for a call that cannot retract")

    def _check_identity(self, batch: pa.RecordBatch) -> None:
        for field in batch.schema:
            if not field.name.startswith("state_") or self.opened.schema.get_field_index(field.name) < 0:
                continue
            expected = self.opened.schema.field(field.name).metadata
            metadata = field.metadata or {}
            missing = [key.decode() for key in expected if key not in metadata]
            if missing:
                self.record.breach("state-identity", f"the metadata of {field.name} lack {', '.join(missing)}")

    def _check_epoch(self, epoch: int) -> None:
        if self.epoch is not None and epoch != self.epoch + 1:
            self.record.breach("epochs", f"epoch {epoch} after epoch {self.epoch}")
        self.epoch = epoch
        if self.barriers_after_reopen is not None:
            self.barriers_after_reopen += 1


LIMITS: Final = Limits(
    message_bytes_max=64 * 2**20,
    slots_max=2**20,
    state_bytes_max=2**24,
    exchange_state_bytes_max=2**30,
    exchanges_max=256,
    idle_s_max=600.0,
    age_s_max=3600.0,
)
_GRACE_S: Final = 2.0


class LostError(Exception):
    """Raised to end the connection: the engine gets UNAVAILABLE without details, as from a killed server."""


class Provocation:
    """The fault that a strict server injects in one run. This base class injects none."""

    limits = LIMITS

    def opening(self, record: Record) -> None:
        """Called for each Open. Raise the error with which to refuse it."""

    def before(self, frame: Frame, observation: ObservedExchange) -> None:
        """Called before a frame is folded. Raise LostError, or the error with which to refuse it."""

    def after(self, frame: Frame, observation: ObservedExchange) -> None:
        """Called between folding a frame and answering it. Raise LostError, or the error with which to refuse it."""

    def answers(self, reply: Frame, observation: ObservedExchange) -> Iterator[Frame]:  # noqa: ARG002
        """Yield the frames to send in place of a reply."""
        yield reply

    def metadata(self, metadata: bytes, record: Record) -> bytes:  # noqa: ARG002
        """Return the bytes to send in place of a frame's metadata."""
        return metadata


class StrictServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves functions to one run of an engine. A context manager that shuts the server down.

    Args:
        registry: The functions.
        provocation: The fault that it injects.
        signer: Signs pickled states.
    """

    def __init__(self, registry: Registry, provocation: Provocation, *, signer: StateSigner) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.record = Record()
        self._registry = registry
        self._provocation = provocation
        self._signer = signer

    @property
    def url(self) -> str:
        """The URL for engines."""
        return f"grpc://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        # pyarrow's shutdown waits for open calls. An engine that does not read keeps its call open.
        stopper = threading.Thread(target=self.shutdown, name="foldflight-shutdown", daemon=True)
        stopper.start()
        stopper.join(_GRACE_S)

    # -- handlers ----------------------------------------------------------------------------------------------------

    def list_flights(self, context: Any, criteria: bytes) -> Any:  # noqa: ARG002  (pyarrow calls it so)
        """List the functions."""
        return [self._flight_of(name) for name in self._registry]

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:  # noqa: ARG002  (pyarrow calls it so)
        """Describe a function, or an exchange that has not been opened."""
        try:
            if descriptor.descriptor_type == fl.DescriptorType.PATH:
                return self._flight_of(descriptor.path[0].decode(errors="replace"))
            reply = describe(
                decode_open(descriptor.command or b""), self._registry, self._provocation.limits, "conformance"
            )
        except FoldflightError as error:
            raise to_flight_error(error) from None
        metadata = self._provocation.metadata(encode(reply, reply.schema).metadata, self.record)
        return flight_info(reply.schema, descriptor, metadata)

    def list_actions(self, context: Any) -> list[Any]:  # noqa: ARG002  (pyarrow calls it so)
        """List the actions."""
        return [fl.ActionType("status", "The state of the fleet, as JSON.")]

    def do_action(self, context: Any, action: Any) -> Any:  # noqa: ARG002  (pyarrow calls it so)
        """Answer `status`."""
        if action.type != "status":
            raise to_flight_error(RejectedError("BAD_FRAME", f"unknown action {action.type!r}; the action is status"))
        return [fl.Result(json.dumps({"at_s": 0.0, "servers": [{"server_id": "conformance"}]}).encode())]

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one exchange."""
        self.record.count_open()
        try:
            self._provocation.opening(self.record)
            self._carry(self._open_of(descriptor), context, reader, writer)
        except VanishedError:
            pass
        except LostError:
            raise fl.FlightUnavailableError("connection reset by the conformance kit") from None
        except FoldflightError as error:
            raise to_flight_error(error) from None
        finally:
            self.record.count_end()

    def _open_of(self, descriptor: Any) -> Open:
        try:
            return decode_open(descriptor.command or b"")
        except RejectedError as error:
            self.record.breach("open", error.message)
            raise

    def _carry(self, opening: Open, context: Any, reader: Any, writer: Any) -> None:
        provocation, record = self._provocation, self.record
        messages = _receive_messages(reader, context)

        def ask(question: Frame) -> Iterator[Frame]:
            self._send(writer, question, observation)
            for message in messages:
                frame = self._frame_of(message, observation)
                yield frame
                if not isinstance(frame, Entries) or frame.last:
                    return
            raise VanishedError

        exchange = ServerExchange(
            opening, self._registry, limits=provocation.limits, server_id="conformance", signer=self._signer, ask=ask
        )
        try:
            self._check_columns(reader, context, opening.columns)
            observation = ObservedExchange(exchange.open_reply, record)
            self._send(writer, exchange.open_reply, observation, begin=exchange.open_reply.schema)
            try:
                for message in messages:
                    self._take(message, exchange, observation, writer)
            except VanishedError:
                record.breach("polite-end", "the engine cancelled the stream although no error had been sent")
                raise
        finally:
            exchange.close()

    def _check_columns(self, reader: Any, context: Any, columns: pa.Schema) -> None:
        stream_schema = read_message(lambda: reader.schema, context)
        if stream_schema != columns:
            problem = (
                f"the stream has the columns {stream_schema.names}, of types {stream_schema.types}, "
                f"but Open has the columns {columns}"
            )
            self.record.breach("open", problem)
            raise RejectedError("SCHEMA_MISMATCH", problem)

    def _take(self, message: Message, exchange: ServerExchange, observation: ObservedExchange, writer: Any) -> None:
        frame = self._frame_of(message, observation)
        self._provocation.before(frame, observation)
        try:
            replies = list(exchange.handle(frame))
        except RejectedError as error:
            if not self.record.broken:
                self.record.breach("frames", f"{error.code}: {error.message}")
            raise
        self._provocation.after(frame, observation)
        for reply in replies:
            for answer in self._provocation.answers(reply, observation):
                self._send(writer, answer, observation)
                if isinstance(answer, Results) and answer.reopen and observation.barriers_after_reopen is None:
                    observation.barriers_after_reopen = 0

    def _frame_of(self, message: Message, observation: ObservedExchange) -> EngineFrame:
        try:
            frame = decode(message, Role.ENGINE)  # validates the batch; its size may only be read after that
        except RejectedError as error:
            self.record.breach("frames", error.message)
            raise
        size = len(message.metadata) + (0 if message.batch is None else message.batch.nbytes)
        bound = observation.opened.limits.message_bytes_max
        if size > bound:
            self.record.breach("message-size", f"a message has {size} bytes, and message_bytes_max is {bound}")
            raise RejectedError("LIMIT", f"a message has {size} bytes, and message_bytes_max is {bound}")
        self.record.frame(type(frame).__name__, size)
        observation.check(frame)
        if not isinstance(frame, EngineFrame):
            raise AssertionError(f"the codec accepted {type(frame).__name__} from an engine")  # noqa: TRY004
        return frame

    def _send(
        self, writer: Any, frame: Frame, observation: ObservedExchange, *, begin: pa.Schema | None = None
    ) -> None:
        message = encode(frame, observation.opened.schema)
        changed_message = replace(message, metadata=self._provocation.metadata(message.metadata, self.record))
        self.record.write(writer, changed_message, begin=begin)

    def _flight_of(self, name: str) -> Any:
        try:
            function = self._registry[name]
        except FoldflightError as error:
            raise to_flight_error(error) from None
        fields = [*((each, pa.null()) for each in function.input_names), ("result", pa.null())]
        return flight_info(
            pa.schema(fields), fl.FlightDescriptor.for_path(name), encode_info(FunctionInfo.of(function))
        )


def _receive_messages(reader: Any, context: Any) -> Iterator[Message]:
    """Yield the engine's messages until it closes its direction."""
    while True:
        try:
            message = read_message(reader.read_chunk, context)
        except StopIteration:
            if context.is_cancelled():
                raise VanishedError from None
            return
        metadata = message.app_metadata
        yield Message(b"" if metadata is None else metadata.to_pybytes(), message.data)
