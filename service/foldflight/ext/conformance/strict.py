"""A strict server: it folds like any other, records the rules that its engine breaks, and injects faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.encoding import Message, decode, decode_open, encode, encode_info
from foldflight.exchange.frames import EngineFrame, Entries, Frame, FunctionInfo, Limits, Open, Results
from foldflight.exchange.machine import Role
from foldflight.exchange.serving import ServerExchange, describe
from foldflight.ext.conformance.watching import Observed, Record
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Registry
from foldflight.server.calls import VanishedError, reading
from foldflight.server.error_translation import to_flight_error
from foldflight.server.flightbase import flight_info

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

    def before(self, frame: Frame, observed: Observed) -> None:
        """Called before a frame is folded. Raise LostError, or the error with which to refuse it."""

    def after(self, frame: Frame, observed: Observed) -> None:
        """Called between folding a frame and answering it. Raise LostError, or the error with which to refuse it."""

    def answers(self, reply: Frame, observed: Observed) -> Iterator[Frame]:  # noqa: ARG002
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
            opened = describe(
                decode_open(descriptor.command or b""), self._registry, self._provocation.limits, "conformance"
            )
        except FoldflightError as error:
            raise to_flight_error(error) from None
        metadata = self._provocation.metadata(encode(opened, opened.schema).metadata, self.record)
        return flight_info(opened.schema, descriptor, metadata)

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
        self.record.opened()
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
            self.record.ended()

    def _open_of(self, descriptor: Any) -> Open:
        try:
            return decode_open(descriptor.command or b"")
        except RejectedError as error:
            self.record.breach("open", error.message)
            raise

    def _carry(self, opening: Open, context: Any, reader: Any, writer: Any) -> None:
        provocation, record = self._provocation, self.record
        messages = _received(reader, context)

        def ask(wanted: Frame) -> Iterator[Frame]:
            self._send(writer, wanted, observed)
            for message in messages:
                frame = self._frame_of(message, observed)
                yield frame
                if not isinstance(frame, Entries) or frame.last:
                    return
            raise VanishedError

        exchange = ServerExchange(
            opening, self._registry, limits=provocation.limits, server_id="conformance", signer=self._signer, ask=ask
        )
        try:
            self._check_columns(reader, context, opening.columns)
            observed = Observed(exchange.open_reply, record)
            self._send(writer, exchange.open_reply, observed, begin=exchange.open_reply.schema)
            try:
                for message in messages:
                    self._take(message, exchange, observed, writer)
            except VanishedError:
                record.breach("polite-end", "the engine cancelled the stream although no error had been sent")
                raise
        finally:
            exchange.close()

    def _check_columns(self, reader: Any, context: Any, columns: pa.Schema) -> None:
        given = reading(lambda: reader.schema, context)
        if given != columns:
            problem = (
                f"the stream has the columns {given.names}, of types {given.types}, but Open has the columns {columns}"
            )
            self.record.breach("open", problem)
            raise RejectedError("SCHEMA_MISMATCH", problem)

    def _take(self, message: Message, exchange: ServerExchange, observed: Observed, writer: Any) -> None:
        frame = self._frame_of(message, observed)
        self._provocation.before(frame, observed)
        try:
            replies = list(exchange.handle(frame))
        except RejectedError as error:
            if not self.record.broken:
                self.record.breach("frames", f"{error.code}: {error.message}")
            raise
        self._provocation.after(frame, observed)
        for reply in replies:
            for answer in self._provocation.answers(reply, observed):
                self._send(writer, answer, observed)
                if isinstance(answer, Results) and answer.reopen and observed.barriers_after_reopen is None:
                    observed.barriers_after_reopen = 0

    def _frame_of(self, message: Message, observed: Observed) -> EngineFrame:
        try:
            frame = decode(message, Role.ENGINE)  # validates the batch; its size may only be read after that
        except RejectedError as error:
            self.record.breach("frames", error.message)
            raise
        size = len(message.metadata) + (0 if message.batch is None else message.batch.nbytes)
        bound = observed.opened.limits.message_bytes_max
        if size > bound:
            self.record.breach("message-size", f"a message has {size} bytes, and message_bytes_max is {bound}")
            raise RejectedError("LIMIT", f"a message has {size} bytes, and message_bytes_max is {bound}")
        self.record.frame(type(frame).__name__, size)
        observed.check(frame)
        if not isinstance(frame, EngineFrame):
            raise AssertionError(f"the codec accepted {type(frame).__name__} from an engine")  # noqa: TRY004
        return frame

    def _send(self, writer: Any, frame: Frame, observed: Observed, *, begin: pa.Schema | None = None) -> None:
        message = encode(frame, observed.opened.schema)
        changed = replace(message, metadata=self._provocation.metadata(message.metadata, self.record))
        self.record.write(writer, changed, begin=begin)

    def _flight_of(self, name: str) -> Any:
        try:
            function = self._registry[name]
        except FoldflightError as error:
            raise to_flight_error(error) from None
        fields = [*((each, pa.null()) for each in function.input_names), ("result", pa.null())]
        return flight_info(
            pa.schema(fields), fl.FlightDescriptor.for_path(name), encode_info(FunctionInfo.of(function))
        )


def _received(reader: Any, context: Any) -> Iterator[Message]:
    """Yield the engine's messages until it closes its direction."""
    while True:
        try:
            message = reading(reader.read_chunk, context)
        except StopIteration:
            if context.is_cancelled():
                raise VanishedError from None
            return
        metadata = message.app_metadata
        yield Message(b"" if metadata is None else metadata.to_pybytes(), message.data)
