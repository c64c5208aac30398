"""The Flight server: carries frames between a stream and a `ServerExchange`, and admits, watches and ends exchanges.

Each open exchange holds one of gRPC's threads. pyarrow gives no way to interrupt a read on the server's side, so an
exchange whose engine says nothing for `idle_s_max` loses its accumulators and its place, and its thread waits on until
the connection ends; whatever the engine sends then is answered with DEADLINE.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.errors import CorruptError, FoldflightError, RejectedError, RetryableError
from foldflight.exchange.bundles import REGISTER_ACTION
from foldflight.exchange.codec import Message, decode, decode_open, encode
from foldflight.exchange.facts import encode_info
from foldflight.exchange.frames import Frame, FunctionInfo, Limits, Log, Open
from foldflight.exchange.machine import Role
from foldflight.exchange.serving import ServerExchange, describe
from foldflight.fold.programs import demand_all_compiled, folded
from foldflight.server.account import Account
from foldflight.server.bundles import Bundles
from foldflight.server.edge import edge
from foldflight.server.keys import allowed, check_allowed, tls_of, tokens_of
from foldflight.server.status import STATUS_ACTION
from foldflight.server.stream import VanishedError, check_columns, received, send

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from foldflight.fold.signing import StateSigner
    from foldflight.functions.registry import Registry
    from foldflight.server.logs import Logger
    from foldflight.server.metrics import Metrics
    from foldflight.server.settings import Settings

__all__ = ["FlightServer", "authority"]

_LOOK_S_MAX = 1.0


class _Running:
    """One open exchange, as the server sees it from outside."""

    def __init__(self, opening: Open, exchange: ServerExchange, metrics: Metrics, logger: Logger) -> None:
        self.opening = opening
        self.exchange = exchange
        self.account = Account(metrics, opening, exchange)
        self.logger = logger
        self.lock = threading.Lock()  # held while the exchange works; the watch takes it to end an idle one
        self.opened_at_s = self.heard_at_s = time.monotonic()
        self.ended: FoldflightError | None = None


class FlightServer(fl.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Serves the functions of a registry over Arrow Flight; accepts as soon as it is made.

    Args:
        settings: Host, port, token and limits.
        registry: The functions.
        server_id: Its name in Opened.
        signer: Signs and verifies pickled states; None when there are no keys.
        metrics: Counts.
        status: Gives what the action `status` answers.
        logger: Logs.

    Raises:
        ArrowException: When the port cannot be bound.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        server_id: str,
        signer: StateSigner | None,
        metrics: Metrics,
        status: Callable[[], dict[str, Any]],
        logger: Logger,
    ) -> None:
        self.metrics = metrics
        self._status = status
        self.logger = logger
        self._settings = settings
        self._registry = registry
        self._bundles = Bundles(settings, registry, logger)
        self._server_id = server_id
        self._signer = signer
        self._limits = limits_of(settings)
        self._running: set[_Running] = set()
        self._changed = threading.Condition()
        self._draining = False
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_idle, name="foldflight-idle", daemon=True)
        tls = tls_of(settings)
        super().__init__(
            f"{'grpc+tls' if tls else 'grpc'}://{authority(settings.host, settings.port)}",
            middleware=tokens_of(settings, metrics=metrics, logger=logger),
            **tls,
        )
        self._watch.start()

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """The number of open exchanges."""
        with self._changed:
            return len(self._running)

    def drain(self, timeout_s: float) -> bool:
        """Refuse new exchanges, ask open ones to reopen at their next barrier, and wait for them.

        Returns:
            bool: Whether all ended in time.
        """
        with self._changed:
            self._draining = True
            self.metrics.draining.set(1)
            for running in self._running:
                running.exchange.request_reopen()
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def close(self, grace_s: float = 2.0) -> bool:
        """Stop serving and cut what is still open.

        pyarrow's shutdown waits for open calls and has no deadline, so it runs in a thread that is left behind if an
        engine keeps its stream open.

        Returns:
            bool: Whether everything had ended.
        """
        self._closed.set()
        self._watch.join()
        with self._changed:
            self._draining = True
        stopper = threading.Thread(target=self.shutdown, name="foldflight-shutdown", daemon=True)
        stopper.start()
        stopper.join(grace_s)
        return not stopper.is_alive()

    # -- handlers ----------------------------------------------------------------------------------------------------

    @edge
    def list_flights(self, context: Any, criteria: bytes) -> list[Any]:  # noqa: ARG002  (pyarrow calls it so)
        """List the functions that the caller may use; their FunctionInfo is in each flight's `app_metadata`."""
        return [self._flight_of(name) for name in allowed(context, self._registry)]

    @edge
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Describe a function (descriptor path) or an exchange to be opened (descriptor command)."""
        if descriptor.descriptor_type == fl.DescriptorType.PATH:
            name = _function_name(descriptor)
            check_allowed(context, [name])
            return self._flight_of(name)
        opening = self._open_of(context, descriptor)
        registry = self._bundles.registry_with(opening.bundles, context)
        opened = describe(opening, registry, self._limits, self._server_id)
        message = encode(opened, opened.schema)
        return fl.FlightInfo(opened.schema, descriptor, [], -1, -1, app_metadata=message.metadata)

    @edge
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the schema of `get_flight_info`."""
        return fl.SchemaResult(FlightServer.get_flight_info.__wrapped__(self, context, descriptor).schema)  # type: ignore[attr-defined]

    @edge
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Carry one exchange from Open to its end."""
        running = self._admit(self._open_of(context, descriptor), context)
        outcome = "done"
        try:
            self._carry(running, context, reader, writer)
        except VanishedError:
            outcome = "vanished"
        except FoldflightError as error:
            outcome = error.code
            running.logger.warning(
                "exchange failed",
                code=error.code,
                function=error.function,
                slot=error.slot,
                problem=error.message,
                exc_info=isinstance(error, CorruptError),  # a bug of ours: the log has its traceback
            )
            raise
        except Exception:
            outcome = "INVARIANT"
            raise
        finally:
            self._release(running, outcome)

    @edge
    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: ARG002  (pyarrow calls it so)
        """Refuse: there is nothing to get."""
        raise _not_served("DoGet")

    @edge
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: ARG002  (pyarrow calls it so)
        """Refuse: rows come through DoExchange."""
        raise _not_served("DoPut")

    @edge
    def do_action(self, context: Any, action: Any) -> Any:
        """Answer `status`, the state of the fleet as JSON (see `foldflight.server.status`), or `register`."""
        if action.type == REGISTER_ACTION:
            functions = self._bundles.functions_in(action.body.to_pybytes(), context)
            demand_all_compiled(functions)
            return [fl.Result(encode_info(FunctionInfo.of(function))) for function in functions]
        if action.type != STATUS_ACTION:
            raise _not_served(f"DoAction({action.type!r})")
        status = self._status()
        for server in status["servers"]:
            if "functions" in server:
                names = allowed(context, server["functions"])
                server["functions"] = {name: server["functions"][name] for name in names}
        return [fl.Result(json.dumps(status).encode())]

    @edge
    def list_actions(self, context: Any) -> list[Any]:  # noqa: ARG002  (pyarrow calls it so)
        """List the actions."""
        return [
            fl.ActionType(STATUS_ACTION, "The state of the fleet, as JSON."),
            fl.ActionType(REGISTER_ACTION, "What the functions of a signed bundle are, if this server takes it."),
        ]

    # -- one exchange ------------------------------------------------------------------------------------------------

    def _open_of(self, context: Any, descriptor: Any) -> Open:
        if descriptor.descriptor_type != fl.DescriptorType.CMD:
            raise RejectedError("BAD_FRAME", "the descriptor must be a command: a foldflight.v1.Open message")
        opening = decode_open(descriptor.command)
        check_allowed(context, [call.function for call in opening.calls])
        return opening

    def _admit(self, opening: Open, context: Any) -> _Running:
        exchange_id = uuid.uuid4().hex[:16]
        logger = self.logger.bind(exchange=exchange_id)
        try:
            with self._changed:
                self._check_admission()
            exchange = ServerExchange(
                opening,
                self._bundles.registry_with(opening.bundles, context),
                limits=self._limits,
                server_id=self._server_id,
                signer=self._signer,
                metrics=self.metrics,
            )
            running = _Running(opening, exchange, self.metrics, logger)
            with self._changed:
                try:
                    self._check_admission()
                except RetryableError:
                    exchange.close()
                    raise
                self._running.add(running)
                running.account.begin()
        except FoldflightError as error:
            self.metrics.refused.labels(error.code).inc()
            logger.info("exchange refused", code=error.code, problem=error.message, peer=context.peer())
            raise
        logger.debug("exchange opened", calls=[call.function for call in opening.calls], peer=context.peer())
        return running

    def _check_admission(self) -> None:
        if self._draining:
            raise RetryableError("DRAINING", f"server {self._server_id} is shutting down and takes no new exchange")
        if len(self._running) >= self._settings.exchanges_max:
            raise RetryableError(
                "OVERLOADED",
                f"server {self._server_id} has {len(self._running)} exchanges open and exchanges_max is "
                f"{self._settings.exchanges_max}",
                limit="exchanges_max",
            )

    def _release(self, running: _Running, outcome: str) -> None:
        """Free what the exchange held, once."""
        with self._changed:
            if running not in self._running:
                return
            self._running.remove(running)
            self._changed.notify_all()
        running.account.end(outcome)
        running.exchange.close()
        running.logger.debug(
            "exchange ended",
            outcome=outcome,
            rows=running.account.rows,
            seconds=round(time.monotonic() - running.opened_at_s, 3),
        )

    def _carry(self, running: _Running, context: Any, reader: Any, writer: Any) -> None:
        opened = running.exchange.opened
        check_columns(reader, context, running.opening.columns)
        send(writer, encode(opened, opened.schema), begin=opened.schema)
        for message in received(reader, context):
            self._check_size(message)
            frame = decode(message, Role.ENGINE)
            started_s = time.monotonic()
            running.heard_at_s = started_s
            if started_s - running.opened_at_s > self._settings.age_s_max:
                running.exchange.request_reopen()
            for reply in _replies(running, frame):
                if isinstance(reply, Log):
                    _log_records(running.logger, reply)
                send(writer, encode(reply, opened.schema))
            running.heard_at_s = time.monotonic()
            running.account.count(message, frame, running.heard_at_s - started_s)

    def _check_size(self, message: Message) -> None:
        size = len(message.metadata) + (0 if message.batch is None else message.batch.nbytes)
        if size > self._limits.message_bytes_max:
            raise RejectedError(
                "LIMIT",
                f"a message has {size} bytes, and message_bytes_max is {self._limits.message_bytes_max}; "
                "send smaller chunks",
                limit="message_bytes_max",
            )

    # -- the watch over idle exchanges -------------------------------------------------------------------------------

    def _watch_idle(self) -> None:
        pause_s = min(_LOOK_S_MAX, max(self._settings.idle_s_max / 4, 0.05))
        while not self._closed.wait(pause_s):
            with self._changed:
                candidates = list(self._running)
            for running in candidates:
                self._end_if_idle(running)

    def _end_if_idle(self, running: _Running) -> None:
        idle_s = time.monotonic() - running.heard_at_s
        if idle_s <= self._settings.idle_s_max or not running.lock.acquire(blocking=False):
            return
        try:
            running.ended = RetryableError(
                "DEADLINE",
                f"the exchange was idle for more than idle_s_max = {self._settings.idle_s_max:g} s and was ended; "
                "open it again",
            )
        finally:
            running.lock.release()
        running.logger.warning("exchange ended: idle", idle_s=round(idle_s, 3))
        try:
            self._release(running, "DEADLINE")
        except FoldflightError as error:  # an author's close that raises must not end the watch over the others
            running.logger.warning("exchange failed", code=error.code, function=error.function, problem=error.message)

    def _flight_of(self, name: str) -> Any:
        info = FunctionInfo.of(self._registry[name], folded=folded(self._registry[name]))
        return fl.FlightInfo(
            _signature_schema(self._registry[name]),
            fl.FlightDescriptor.for_path(name),
            [],
            len(self._registry[name].input_names),
            -1,
            app_metadata=encode_info(info),
        )


def limits_of(settings: Settings) -> Limits:
    """Return the bounds that the settings announce."""
    return Limits(
        message_bytes_max=settings.message_bytes_max,
        slots_max=settings.slots_max,
        state_bytes_max=settings.state_bytes_max,
        exchange_state_bytes_max=settings.exchange_state_bytes_max,
        exchanges_max=settings.exchanges_max,
        idle_s_max=settings.idle_s_max,
        age_s_max=settings.age_s_max,
    )


def authority(host: str, port: int) -> str:
    """Return host and port as they stand in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _replies(running: _Running, frame: Frame) -> Iterator[Frame]:
    """Yield the replies to a frame; the lock is free while one is being sent, for that may block for long."""
    replies = None
    while True:
        with running.lock:
            if running.ended is not None:
                raise running.ended
            if replies is None:
                replies = iter(running.exchange.handle(frame))
            reply = next(replies, None)
        if reply is None:
            return
        yield reply


def _log_records(logger: Logger, log: Log) -> None:
    for record in log.records:
        level = record.level if record.level in {"debug", "info", "warning", "error"} else "error"
        fields = {f"field_{key}": value for key, value in record.fields.items()}
        getattr(logger, level)(
            "function logged", function=record.function, slot=record.slot, text=record.message, **fields
        )


def _function_name(descriptor: Any) -> str:
    if len(descriptor.path) != 1:
        raise RejectedError("BAD_FRAME", "the descriptor's path must be one part: the function's name")
    try:
        return str(descriptor.path[0].decode())
    except UnicodeDecodeError:
        raise RejectedError("BAD_FRAME", "the descriptor's path is not UTF-8") from None


def _signature_schema(function: Any) -> pa.Schema:
    """Return the inputs and the output as fields; a type that depends on the arguments is shown as null."""
    inputs = function.input_types or (pa.null(),) * len(function.input_names)
    fields = [pa.field(name, type_) for name, type_ in zip(function.input_names, inputs, strict=True)]
    return pa.schema([*fields, pa.field("result", function.result_type or pa.null())])


def _not_served(verb: str) -> RejectedError:
    return RejectedError(
        "BAD_FRAME",
        f"{verb} is not served; use DoExchange, GetFlightInfo, ListFlights or the actions "
        f"{STATUS_ACTION} and {REGISTER_ACTION}",
    )
