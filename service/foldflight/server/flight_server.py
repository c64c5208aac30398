"""The Flight server: it passes frames between Flight streams and `ServerExchange`s.

Each open exchange has one thread. `Exchanges` admits exchanges, and ends those that are idle or exceed a limit.

Shipped functions arrive as signed bundles, which only servers with bundle keys accept. A bundle is unpickled only after
its size, signature, versions and names have been checked. Its functions are cached by digest, because each Open
contains its bundles.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.coroutines import PROCESS_LOOP
from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import Decoder, Encoder, Message, decode, decode_open, encode, encode_info
from foldflight.exchange.frames import Barrier, Chunk, Entries, Frame, FunctionInfo, Limits, Log, Open, Wanted
from foldflight.exchange.ipc import app_metadata_in
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.exchange.transitions import Role
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions.author.spec import AnyFunction, RegisteredFunction, ScalarFunction
from foldflight.functions.registry import Registry, unknown_function
from foldflight.lift import lift_text, listed_lift
from foldflight.recording import RECORDING, Recordings
from foldflight.server.authentication import (
    bundle_keys_of,
    check_allowed,
    check_state_keys,
    permitted_functions,
    tls_of,
    tokens_of,
)
from foldflight.server.error_translation import count, to_flight_error, with_flight_errors, without_secrets
from foldflight.server.exchanges import Exchanges, FoldSpans, RunningExchange
from foldflight.server.flightbase import FlightBase, authority, flight_info, status_of
from foldflight.server.limits import MemoryTrimmer
from foldflight.server.ops.logs import Logger
from foldflight.server.ops.metrics import Metrics
from foldflight.server.ops.status import BY_FUNCTION, STATUS_ACTION
from foldflight.server.rpc_server import VanishedError, check_columns, receive_messages, schema_of, send
from foldflight.server.run.settings import SETTINGS, Settings
from foldflight.server.stateless import STATELESS, StatelessCall
from foldflight.shipping.bundles import REGISTER_ACTION, Bundle, check_made_with, unpickle, unseal
from foldflight.tracing import ids_of, tracer_of

_LOADED_MAX = 64


class Bundles:
    """The bundles of one server, and the keys that it trusts.

    Args:
        settings: Keys and limits.
        registry: The server's own functions. A bundle cannot replace one of them.
        logger: Logs each bundle that is unpickled.

    Raises:
        RejectedError: SETTINGS if the file of keys cannot be read.
    """

    def __init__(self, settings: Settings, registry: Registry, logger: Logger) -> None:
        self._keys = bundle_keys_of(settings, logger)
        self._settings = settings
        self._registry = registry
        self._logger = logger
        self._lock = threading.Lock()
        self._loaded_bundles: dict[
            str, tuple[AnyFunction, ...]
        ] = {}  # by digest, the one that was used last at the end

    @property
    def signing_key(self) -> str | None:
        """The first key, with which the server signs recordings; None without keys."""
        keys = self._keys()
        return keys[0].decode() if keys else None

    def registry_with(self, bundles: Sequence[bytes], context: Any) -> Registry:
        """Return the server's functions and the functions of the bundles of an Open.

        Raises:
            RejectedError: As `functions_in`; LIMIT; SIGNATURE if two bundles have functions with the same name.
        """
        if not bundles:
            return self._registry
        self._check_size(sum(map(len, bundles)))
        bundle_functions = [function for each in bundles for function in self.functions_in(each, context)]
        return Registry([*self._registry.authored, *bundle_functions])

    def functions_in(self, sealed_bundle: bytes, context: Any) -> tuple[AnyFunction, ...]:
        """Return the functions of one bundle, if the caller may ship them.

        Raises:
            RejectedError: SETTINGS if shipping is disabled, or states of a function are pickled and there are no state
                keys; LIMIT if the bundle is too large; BAD_FRAME if it is damaged; UNAUTHENTICATED for an unknown
                signature, or names that the token of the caller does not permit; MODULE if its code cannot run here;
                SIGNATURE if a name is taken.
        """
        keys = self._keys()
        if not keys:
            raise RejectedError(
                "SETTINGS",
                "this server does not run shipped functions; its operator can enable them with "
                f"{SETTINGS['bundle_keys'].variable} or {SETTINGS['bundle_keys_file'].flag}, or serve the module",
            )
        self._check_size(len(sealed_bundle))
        bundle = unseal(sealed_bundle, keys)
        check_made_with(bundle)
        check_allowed(context, bundle.functions)
        self._check_names(bundle)
        functions = self._load(bundle)
        check_state_keys(self._settings, functions)
        return functions

    def _check_size(self, size: int) -> None:
        size_max = self._settings.bundle_bytes_max
        if size > size_max:
            raise RejectedError(
                "LIMIT",
                f"the bundles of functions have {size} bytes, and bundle_bytes_max is {size_max}; move the classes "
                "to a smaller package, or raise bundle_bytes_max",
                limit="bundle_bytes_max",
            )

    def _check_names(self, bundle: Bundle) -> None:
        used_names = [name for name in bundle.functions if name in self._registry]
        if used_names:
            raise RejectedError(
                "SIGNATURE",
                f"the server has a function {used_names[0]} of its own; use that one, or ship yours under another "
                "name, @udaf(name=...)",
                function=used_names[0],
            )

    def _load(self, bundle: Bundle) -> tuple[AnyFunction, ...]:
        digest = bundle.digest
        with self._lock:
            functions = self._loaded_bundles.get(digest)
            if functions is not None:
                self._loaded_bundles[digest] = self._loaded_bundles.pop(digest)
                return functions
        # Unpickling runs foreign code, which may take long. The lock is not held, so other exchanges do not wait.
        functions = _functions_of(bundle)
        for function in functions:
            function.code_digest  # noqa: B018 - before functions change variables of their modules
        self._logger.info("bundle unpickled", digest=digest, functions=list(bundle.functions))
        with self._lock:
            functions = self._loaded_bundles.setdefault(digest, functions)  # another thread may have been quicker
            while len(self._loaded_bundles) > _LOADED_MAX:
                self._loaded_bundles.pop(next(iter(self._loaded_bundles)))
        return functions


def _functions_of(bundle: Bundle) -> tuple[AnyFunction, ...]:
    """Unpickle a verified bundle, which runs its code. Raises RejectedError MODULE."""
    names = ", ".join(bundle.functions)
    try:
        functions = unpickle(bundle.code, bundle.digest)
    except (Exception, SystemExit) as error:
        lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
        missing = "; install it where the server runs" if isinstance(error, ModuleNotFoundError) else ""
        raise RejectedError("MODULE", f"the bundle of {names} cannot be unpickled: {lines[-1]}{missing}") from error
    whole = isinstance(functions, tuple) and all(isinstance(each, RegisteredFunction) for each in functions)
    if not whole or tuple(each.name for each in functions) != bundle.functions:
        raise RejectedError("MODULE", f"the bundle of {names} does not contain these functions; register it again")
    return functions


# Time for the last engines to be told how their exchanges ended.
_ENDS_S_MAX = 2.0
_SERVICE = "foldflight-server"
# The metadata of a chunk, which batches of foreign engines do not have.
_CHUNK = pb.EngineFrame(chunk=pb.Chunk()).SerializeToString()


class FlightServer(FlightBase):
    """Serves the functions of a registry over Arrow Flight. The constructor binds the port and starts to accept.

    Args:
        settings: Host, port, tokens and limits.
        registry: The functions.
        server_id: The name of the server in Opened.
        signer: Signs and verifies pickled states; None without state keys.
        programs: The compiled functions of this process.
        metrics: The metrics of the server.
        status: Returns the answer to the action `status`.
        on_spent: Called when this process should end: a function cannot be interrupted, or memory was not released.
        logger: The log.
        share: The part of the rates of functions that this process has.

    Raises:
        RejectedError: SETTINGS if this process already exceeds its memory limit.
        OSError: The port cannot be bound.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        server_id: str,
        signer: StateSigner | None,
        programs: Accelerator,
        metrics: Metrics,
        status: Callable[[], dict[str, Any]],
        on_spent: Callable[[], None],
        logger: Logger,
        share: float = 1.0,
    ) -> None:
        self.metrics = metrics
        self._status = status
        self.logger = logger
        self._settings = settings
        self._registry = registry
        self._bundles = Bundles(settings, registry, logger)
        for function in registry.values():
            function.code_digest  # noqa: B018 - before functions change variables of their modules
        self._server_id = server_id
        self._signer = signer
        self._programs = programs
        self._limits = Limits.of(settings)
        self._coroutines = PROCESS_LOOP.with_report(metrics, share)
        self._tracer = tracer_of(settings.otlp_endpoint, _SERVICE) if settings.otlp_endpoint else None
        self._record = recordings_of(settings)
        self._stateless = STATELESS.find()
        self._exchanges = Exchanges(settings, server_id, metrics=metrics, on_spent=on_spent, logger=logger)
        super().__init__(
            authority(settings.host, settings.port),
            exchanges_max=settings.exchanges_max,
            message_bytes_max=settings.message_bytes_max,
            request_bytes_max=settings.bundle_bytes_max,
            refuse=to_flight_error,
            on_idle=MemoryTrimmer(),
            admit=tokens_of(settings, registry, metrics=metrics, logger=logger),
            answers_to_all={}
            if self._stateless is None
            else {"DoAction": fl.Result(self._stateless.version_answer).serialize()},
            **tls_of(settings),
        )
        self._exchanges.watch.start()

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Number of open exchanges."""
        return self._exchanges.count

    def begin_drain(self) -> None:
        """Refuse new exchanges, and ask open ones to reopen elsewhere."""
        self._exchanges.begin_drain()

    def drain(self, timeout_s: float) -> bool:
        """Refuse new exchanges, ask open ones to reopen elsewhere, and wait. Return whether all ended in time."""
        has_drained = self._exchanges.drain(timeout_s)
        if has_drained:
            self._calls.await_ends(_ENDS_S_MAX)  # their engines have not been told yet how the exchanges ended
        return has_drained

    def close(self, grace_s: float = 2.0) -> bool:
        """Stop serving, and cut off exchanges that are still open. Return whether all threads ended in time.

        The shutdown waits for the threads of all calls. It runs in a thread of its own, which is abandoned if a
        function does not end.
        """
        self._exchanges.close()
        stopper = threading.Thread(target=self._calls.close, name="foldflight-shutdown", daemon=True)
        stopper.start()
        stopper.join(grace_s)
        self._coroutines.close_instances()
        if self._tracer is not None:
            self._tracer.send(wait=True)
        return not stopper.is_alive()

    # -- handlers ----------------------------------------------------------------------------------------------------

    @with_flight_errors
    def list_flights(self, context: Any, criteria: bytes) -> list[Any]:  # noqa: ARG002  (pyarrow's signature)
        """List the functions that the caller may use, each with its FunctionInfo in `app_metadata`."""
        return [self._flight_of(name) for name in permitted_functions(context, self._registry)]

    @with_flight_errors
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Describe a function (descriptor path), or an exchange without opening it (descriptor command)."""
        return self._info_of(context, descriptor)

    @with_flight_errors
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Return the schema of `get_flight_info`."""
        return fl.SchemaResult(self._info_of(context, descriptor).schema)

    def _info_of(self, context: Any, descriptor: Any) -> Any:
        if descriptor.descriptor_type == fl.DescriptorType.PATH:
            path = _function_name(descriptor)
            route = None if self._stateless is None else self._stateless.route(path)
            name = path if route is None else route.name
            function = self._function(context, name)
            info = self._flight_of(name)
            if route is None or (not route.takes_lists and not isinstance(function, ScalarFunction)):
                return info
            _check_kind(function, takes_lists=route.takes_lists)
            count = len(function.input_names)
            return flight_info(route.schema(function), descriptor, app_metadata_in(info.serialize()), records=count)
        open_request = self._open_of(context, descriptor)
        open_reply = self._exchanges.watch.run(
            lambda: describe(
                open_request,
                self._registry_for(open_request, context),
                self._limits,
                self._server_id,
                self._programs,
                lift_text,
                tells_code=True,
            )
        )
        message = encode(open_reply, open_reply.schema)
        return flight_info(open_reply.schema, descriptor, message.metadata)

    @with_flight_errors
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serve one exchange, from Open to its end; with a path, one external function of a foreign engine."""
        is_foreign = descriptor.descriptor_type == fl.DescriptorType.PATH
        if is_foreign:
            call = self._stateless_call(context, descriptor, reader)
            open_request = call.open_request
            carry: Callable[..., None] = functools.partial(self._carry_stateless, call)
        else:
            open_request, carry = self._open_of(context, descriptor), self._carry
        if not open_request.call_scope:  # of an engine that does not tell what it computes, as engines of other systems
            open_request = dataclasses.replace(open_request, call_scope=uuid.uuid4().hex)
        questions = _Questions()
        try:
            running = self._admit(open_request, context, questions, is_foreign=is_foreign)
        except VanishedError:
            self.logger.info("exchange not opened, because its engine left", calls=list(open_request.functions))
            return
        outcome, failure = "done", None
        try:
            carry(running, context, reader, writer, questions)
        except VanishedError:
            outcome = "vanished"
        except FoldflightError as error:
            outcome, failure = error.code, error
            running.logger.warning(
                "exchange failed",
                code=error.code,
                function=error.function,
                slot=error.slot,
                problem=error.message,
                recorded=error.recorded,
                exc_info=isinstance(error, CorruptError),  # a bug of foldflight, so the traceback is logged
            )
            raise
        except Exception:
            outcome = "INVARIANT"
            raise
        finally:
            self._exchanges.release(running, outcome, failure)

    @with_flight_errors
    def not_served(self, method: str) -> Any:
        """Refuse the call: rows and results are sent in DoExchange."""
        raise RejectedError(
            "BAD_FRAME",
            f"{method} is not served; use DoExchange, GetFlightInfo, ListFlights or the actions "
            f"{STATUS_ACTION} and {REGISTER_ACTION}",
        )

    @with_flight_errors
    def do_action(self, context: Any, action: Any) -> Any:
        """Answer `status` with the status of the fleet (see `foldflight.server.ops.status`), or `register`."""
        if action.type == REGISTER_ACTION:
            functions = self._exchanges.watch.run(lambda: self._take_bundle(action.body.to_pybytes(), context))
            return [
                fl.Result(encode_info(FunctionInfo.of(function, code_digest=function.code_digest)))
                for function in functions
            ]
        if self._stateless is not None and action.type == self._stateless.version_action:
            return [fl.Result(self._stateless.version_answer)]
        if action.type != STATUS_ACTION:
            return self.not_served(f"DoAction({action.type!r})")
        status = self._status()
        for server in status["servers"]:
            for part in BY_FUNCTION:
                if part in server:
                    server[part] = {name: server[part][name] for name in permitted_functions(context, server[part])}
        return [fl.Result(json.dumps(status).encode())]

    @with_flight_errors
    def list_actions(self, context: Any) -> list[Any]:  # noqa: ARG002  (pyarrow's signature)
        """List the actions."""
        actions = [
            fl.ActionType(STATUS_ACTION, "Return the status of the fleet, as JSON."),
            fl.ActionType(REGISTER_ACTION, "Check a signed bundle, and return descriptions of its functions."),
        ]
        if self._stateless is not None:
            version = "Return the version of arrow-udf's protocol, for RisingWave."
            actions.append(fl.ActionType(self._stateless.version_action, version))
        return actions

    def _take_bundle(self, bundle: bytes, context: Any) -> tuple[AnyFunction, ...]:
        functions = self._bundles.functions_in(bundle, context)
        self._programs.demand_all(functions)
        return functions

    # -- one exchange ------------------------------------------------------------------------------------------------

    def _open_of(self, context: Any, descriptor: Any) -> Open:
        if descriptor.descriptor_type != fl.DescriptorType.CMD:
            raise RejectedError("BAD_FRAME", "the descriptor has no command; send a foldflight.v1.Open message in it")
        open_request = decode_open(descriptor.command)
        check_allowed(context, open_request.functions)
        return open_request

    def _registry_for(self, open_request: Open, context: Any) -> Registry:
        """Return the functions that the caller may use, with its bundles' functions: errors list their names."""
        registry = self._bundles.registry_with(open_request.bundles, context)
        return registry.only(permitted_functions(context, registry))

    def _admit(self, open_request: Open, context: Any, questions: _Questions, *, is_foreign: bool) -> RunningExchange:
        logger = self.logger.bind(exchange=uuid.uuid4().hex[:16], **ids_of(open_request.trace_context))

        spans = self._spans_of(open_request)

        def tell(event: str, fields: Mapping[str, Any]) -> None:
            logger.warning(event, **fields)

        def check() -> None:
            if context.is_cancelled():
                raise VanishedError

        def make() -> RunningExchange:
            registry, recorder = self._registry_for(open_request, context), None
            if spans is not None:
                spans.versions = [registry[name].version for name in open_request.functions if name in registry]
            if self._record is not None:
                record = dataclasses.replace(self._record, key=self._bundles.signing_key)
                recorder = RECORDING.load().recorder(record, open_request, registry, self._server_id, tell)
            exchange = ServerExchange(
                open_request,
                registry,
                limits=self._limits,
                server_id=self._server_id,
                signer=self._signer,
                metrics=self.metrics,
                accelerator=self._programs,
                coroutines=self._coroutines,
                check=check,
                ask=questions.ask,
                recorder=recorder,
                tells_code=True,
            )
            return RunningExchange(
                open_request,
                exchange,
                watch=self._exchanges.watch,
                metrics=self.metrics,
                logger=logger,
                hang_up=hang_up,
                is_foreign=is_foreign,
                spans=spans,
            )

        def hang_up(error: FoldflightError) -> None:
            count(self.metrics, error)
            context.end(status_of(to_flight_error(error)))

        try:
            running = self._exchanges.admit(make)
        except FoldflightError as error:
            self.metrics.refused.labels(error.code).inc()
            logger.info("exchange refused", code=error.code, problem=error.message, peer=context.peer())
            raise
        context.allow_idle()  # from now on, idle_s_max limits how long the engine may be silent
        logger.info("exchange opened", calls=list(open_request.functions), peer=context.peer())
        return running

    def _spans_of(self, open_request: Open) -> FoldSpans | None:
        """Return the spans of an exchange; None if its engine does not trace it, or this server has no collector."""
        if self._tracer is None or not ids_of(open_request.trace_context):
            return None
        return FoldSpans(self._tracer, open_request, server_id=self._server_id)

    def _carry(self, running: RunningExchange, context: Any, reader: Any, writer: Any, questions: _Questions) -> None:
        open_reply = running.exchange.open_reply
        encode_reply, decode_frame = Encoder(open_reply.schema), Decoder(Role.ENGINE)
        check_columns(reader, context, running.open_request.columns)
        send(writer, encode_reply(open_reply), begin=open_reply.schema)
        messages = receive_messages(reader, context)

        def put(question: Wanted) -> Iterator[Frame]:
            function = running.exchange_metrics.count_question(question)
            if function is not None:
                running.logger.info("a function asks for entries of its views one by one: prefetch", function=function)
            with running.wait_for_engine():
                send(writer, encode_reply(question))
            is_last = False
            while not is_last:
                with running.wait_for_engine():
                    message = next(messages, None)
                if message is None:
                    raise VanishedError
                frame = decode_frame(message)
                self._check_size(message)
                running.exchange_metrics.count(message, frame, 0.0)
                is_last = not isinstance(frame, Entries) or frame.last
                yield frame

        questions.put = put
        modes: Sequence[Mode] = running.exchange.folds
        for message in messages:
            frame = decode_frame(message)
            self._check_size(message)
            if time.monotonic() - running.opened_at_s > self._settings.age_s_max:
                running.exchange.request_reopen()
            for reply in self._replies(running, message, frame):
                send(writer, encode_reply(reply))
            if isinstance(frame, Barrier):
                modes = _tell_those_that_left(running, modes)

    def _function(self, context: Any, name: str) -> AnyFunction:
        check_allowed(context, [name])
        if name not in self._registry:
            raise unknown_function(name, permitted_functions(context, self._registry), f"on server {self._server_id}")
        return self._registry[name]

    def _stateless_call(self, context: Any, descriptor: Any, reader: Any) -> StatelessCall:
        route = STATELESS.load().route(_function_name(descriptor))
        function = self._function(context, route.name)
        _check_kind(function, takes_lists=route.takes_lists)
        # Some engines give up if no answer begins within five seconds, however long the rows take.
        context.begin()
        columns = schema_of(reader, context)
        return self._exchanges.watch.run(lambda: route.call(function, columns))

    def _carry_stateless(
        self,
        call: StatelessCall,
        running: RunningExchange,
        context: Any,
        reader: Any,
        writer: Any,
        _questions: _Questions,
    ) -> None:
        """Answer each batch of a foreign engine. Whether there is a column of errors is decided by the first batch."""
        schema: pa.Schema | None = None
        for message in receive_messages(reader, context):
            if message.batch is None:
                continue
            frame = decode(Message(_CHUNK, message.batch), Role.ENGINE)  # validates the batch
            self._check_size(message)
            assert isinstance(frame, Chunk)
            answers: Iterable[tuple[list[pa.Array], pa.Array | None]] = call.answers(
                frame.batch, functools.partial(self._ask, running, message)
            )
            if call.open_request.isolate_errors:
                answers = list(answers)  # an error in any row decides on the columns of the first part
            has_errors = call.open_request.isolate_errors and any(errors is not None for _, errors in answers)
            begin = None
            if schema is None:
                begin = schema = call.schema(errors=has_errors)
            elif has_errors and "error" not in schema.names:
                raise _first_error(call, [errors for _, errors in answers if errors is not None])
            for arrays, errors in answers:
                column = [errors if errors is not None else pa.nulls(len(arrays[0]), pa.string())]
                batch = pa.RecordBatch.from_arrays(arrays + column[: len(schema) - len(arrays)], schema=schema)
                send(writer, Message(b"", batch), begin=begin)
                begin = None
            running.record_replies()
        if schema is None:
            writer.begin(call.schema(errors=False))

    def _ask(self, running: RunningExchange, message: Message, frame: Frame) -> Iterator[Frame]:
        """Yield the answers of an exchange for the client of an adapter, which takes no logs."""
        return (reply for reply in self._replies(running, message, frame) if not isinstance(reply, Log))

    @staticmethod
    def _replies(running: RunningExchange, message: Message, frame: Frame) -> Iterator[Frame]:
        """Give a frame to an exchange, and yield its answers. The frame was made of the message."""
        started_s = running.exchange_metrics.began_s = time.monotonic()
        for reply in running.replies(frame):
            if isinstance(reply, Log):
                _log_records(running.logger, reply)
            yield without_secrets(reply)
        running.exchange_metrics.count(message, frame, time.monotonic() - started_s)

    def _check_size(self, message: Message) -> None:
        size = len(message.metadata) + message.batch_bytes
        if size > self._limits.message_bytes_max:
            raise RejectedError(
                "LIMIT",
                f"a message has {size} bytes, and message_bytes_max is {self._limits.message_bytes_max}; "
                "send smaller chunks",
                limit="message_bytes_max",
            )

    def _flight_of(self, name: str) -> Any:
        function = self._registry[name]
        info = FunctionInfo.of(
            function,
            folding=self._programs.folding(function),
            lift=listed_lift(function),
            code_digest=function.code_digest,
        )
        return flight_info(
            _signature_schema(self._registry[name]),
            fl.FlightDescriptor.for_path(name),
            encode_info(info),
            records=len(self._registry[name].input_names),
        )


def recordings_of(settings: Settings) -> Recordings | None:
    """Return which exchanges are recorded. Raises RejectedError SETTINGS if the folder cannot be made or written."""
    if settings.record is None:
        return None
    record = Recordings(
        settings.record,
        mask=settings.record_mask == "text",
        bytes_max=settings.record_bytes_max,
    )
    RECORDING.load()  # the server does not start without it
    record.make_folder()
    try:
        tempfile.TemporaryFile(dir=record.folder).close()
    except OSError as error:
        raise RejectedError(
            "SETTINGS",
            f"the folder of recordings, {record.folder}, cannot be written: {error.strerror}; give --record a folder "
            "of this server",
        ) from None
    return record


class _Questions:
    """Puts the questions of an exchange to its engine. The stream is known only when the exchange has been admitted."""

    put: Callable[[Wanted], Iterator[Frame]]

    def ask(self, question: Wanted) -> Iterator[Frame]:
        """Send a question, and yield the frames of its answer."""
        return self.put(question)


def _tell_those_that_left(running: RunningExchange, before: Sequence[Mode]) -> Sequence[Mode]:
    """Log which calls have left compiled code since then, such as for a sum beyond 64 bits; return the modes of now."""
    now = running.exchange.folds
    for function, old, new in zip(running.open_request.functions, before, now, strict=True):
        if old is Mode.COMPILED and new is not old:
            running.logger.warning("a function left compiled code and is slower now", function=function, mode=str(new))
    return now


def _log_records(logger: Logger, log: Log) -> None:
    for record in log.records:
        level = record.level if record.level in {"debug", "info", "warning", "error"} else "error"
        fields = {f"field_{key}": value for key, value in record.fields.items()}
        getattr(logger, level)(
            "function logged", function=record.function, slot=record.slot, text=record.message, **fields
        )


def _check_kind(function: AnyFunction, *, takes_lists: bool) -> None:
    """Raise RejectedError SIGNATURE if the path of an external function names a function of another kind."""
    if takes_lists == (not isinstance(function, ScalarFunction)):
        return
    if takes_lists:
        message = f"{function.name} is a {function.kind} function, which takes single rows: leave out aggregate:"
    else:
        message = (
            f"{function.name} is an aggregate function, which needs an exchange with a foldflight.v1.Open; as an "
            f"external function it is aggregate:{function.name}, and takes lists with the rows of each group"
        )
    raise RejectedError("SIGNATURE", message, function=function.name)


def _first_error(call: StatelessCall, errors: list[pa.Array]) -> FunctionError:
    """Return the error for a row that fails after a batch without errors, whose schema has no place for it."""
    text = next(value for column in errors for value in column.to_pylist() if value is not None)
    return FunctionError("USER_CODE", text, function=call.function.name)


def _function_name(descriptor: Any) -> str:
    if len(descriptor.path) != 1:
        raise RejectedError(
            "BAD_FRAME",
            f"the path of the descriptor has {len(descriptor.path)} parts; send one: the name of a function",
        )
    try:
        return str(descriptor.path[0].decode())
    except UnicodeDecodeError:
        raise RejectedError("BAD_FRAME", "the path of the descriptor is not UTF-8") from None


def _signature_schema(function: Any) -> pa.Schema:
    """Return arguments and result as fields. The type null stands for a type that depends on the arguments."""
    inputs = function.input_types or (pa.null(),) * len(function.input_names)
    fields = [pa.field(name, type_) for name, type_ in zip(function.input_names, inputs, strict=True)]
    return pa.schema([*fields, pa.field("result", function.result_type or pa.null())])
