"""The lifecycle of a server: load, bind, ready, drain, end. The caller handles signals and sets an event.

When the event is set, the server drains. Readiness fails, and new exchanges are refused with DRAINING. Open exchanges
are asked to reopen elsewhere, with their next results or saved states. The server stops when all exchanges have ended
or `drain_s` has passed. The exit code tells which:

| exit code | meaning |
|---|---|
| 0 | all exchanges ended in the regular way |
| 3 | `drain_s` passed, and open exchanges were cut off |
| 4 | the server stopped itself: a function cannot be interrupted, or memory was not released; restart it |

A ready server writes one JSON line to standard output, and to `ready_file` if it is set:
`{"event": "ready", "server_id": "...", "host": "127.0.0.1", "flight": 8815, "health": 8816, "http": 8817,
"functions": [...]}`. A disabled port is null. With `--port 0`, the line has the actual port.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TextIO

import pyarrow as pa
from prometheus_client import CollectorRegistry

from foldflight.coroutines import PROCESS_LOOP
from foldflight.errors import FoldflightError, RejectedError
from foldflight.fold.accelerator import Accelerator, CompileQueue, accelerator_of
from foldflight.fold.coroutines import Bound, Openable, SharedInstance
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import AnyFunction, Function
from foldflight.functions.registry import JAVA, Registry, java_functions
from foldflight.server.authentication import check_keys
from foldflight.server.flight_server import FlightServer, recordings_of
from foldflight.server.flightbase import authority
from foldflight.server.limits import memory_limit_of, reuse_freed
from foldflight.server.ops.endpoints import HealthServer, HttpServer
from foldflight.server.ops.logs import Logger, capture_python_logging, make_logger
from foldflight.server.ops.metrics import Metrics, ServerCollector
from foldflight.server.ops.status import Status
from foldflight.server.run.compilation import Compilation, spare_folder
from foldflight.server.run.settings import SETTINGS, Settings, compiled_folder_of, load_settings, port_in_use_error

# Settings of a server beside other code, which nobody probes.
FREE_PORTS: Final[Mapping[str, object]] = {"port": 0, "health_port": "off", "http_port": "off"}
EXIT_DRAINED = 0
EXIT_CUT_OFF = 3
EXIT_SPENT = 4
_LOOK_UP_S = 0.5
# The heap of the Java virtual machine is at most this part of the memory limit; the rest is for Python and Arrow.
_HEAP_SHARE = 3


class Probes:
    """The health and HTTP ports of one server, for liveness, readiness, metrics and status.

    Args:
        settings: Host, the two ports and the peers; None turns a port off.
        server_id: The server's name.
        functions: The functions that it serves.
        metrics: Where the server's metrics are.
        programs: Tells how functions are folded.
    """

    def __init__(
        self,
        settings: Settings,
        server_id: str,
        functions: Registry,
        metrics: CollectorRegistry,
        programs: Accelerator,
    ) -> None:
        self._ready = False
        self._identity = {"server_id": server_id, "host": settings.host}
        self._functions = sorted(functions)
        self.status = Status(
            server_id,
            functions,
            metrics,
            is_ready=lambda: self._ready,
            folding_of=programs.folding,
            peers=settings.peers,
        )
        self._health: HealthServer | None = None
        self._http: HttpServer | None = None
        try:
            if settings.health_port is not None:
                self._health = HealthServer(settings.host, settings.health_port)
            if settings.http_port is not None:
                self._http = HttpServer(
                    settings.host,
                    settings.http_port,
                    registry=metrics,
                    status=self.status,
                    is_ready=lambda: self._ready,
                )
                self.status.http_port = self._http.port
        except BaseException:
            self.close()
            raise

    @property
    def health_port(self) -> int | None:
        """The actual port of grpc.health.v1."""
        return self._health.port if self._health is not None else None

    @property
    def http_port(self) -> int | None:
        """The actual port of the HTTP pages."""
        return self._http.port if self._http is not None else None

    def ready_line(self, port: int) -> dict[str, Any]:
        """Return the ready line: the ports and functions of the server, for programs. `port` is the port of Flight."""
        ports = {"flight": port, "health": self.health_port, "http": self.http_port}
        return {"event": "ready", **self._identity, **ports, "functions": self._functions}

    def set_ready(self, *, ready: bool) -> None:
        """Publish readiness."""
        self._ready = ready
        if self._health is not None:
            self._health.set_ready(ready=ready)

    def close(self) -> None:
        """Stop both servers."""
        if self._http is not None:
            self._http.close()
        if self._health is not None:
            self._health.close()


class ProcessServer:
    """A server that runs in this process; a context manager that closes itself.

    Args:
        settings: What to do.
        registry: The functions to serve.
        logger: The log.
        status: Returns the answer to the action `status`, if another process knows more than this one.
        compiles: Whether another process compiles functions from their first rows on, instead of this one when they are
            hot. Compiled code in the folder is loaded before the server is ready.
        spare: A folder for compiled code, if the settings name none, or one that cannot be written to.
        on_spent: Called when this process should end: a function cannot be interrupted, or memory was not released.
        share: The part of the rates of functions that this process has: 1 divided by the number of workers.

    Raises:
        RejectedError: SETTINGS if a port is taken, a key or certificate is invalid, or states of a function are pickled
            and there are no state keys; SIGNATURE if a function with `compile=True` cannot be compiled.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        logger: Logger,
        *,
        status: Callable[[], dict[str, Any]] | None = None,
        compiles: bool = False,
        spare: Path | None = None,
        on_spent: Callable[[], None] | None = None,
        share: float = 1.0,
    ) -> None:
        self.settings = settings
        self.share = share
        self.server_id = settings.server_id or default_server_id()
        self.logger = logger.bind(server_id=self.server_id)
        self.metrics = Metrics()
        self.compilation = (
            Compilation(settings, registry, spare, metrics=self.metrics, logger=self.logger)
            if compiles and (settings.compiled_folder or spare)
            else None
        )
        self.programs = programs_of(settings, spare, self.compilation)
        check_before_start(settings, registry, self.programs)
        self.metrics.expect({name: str(registry[name].kind) for name in registry})
        self.metrics.registry.register(
            ServerCollector(
                exchanges_max=settings.exchanges_max,
                memory_limit=memory_limit_of(settings),
                cpus=pa.cpu_count(),
                processes=lambda: {"0": os.getpid()},
                workers=lambda: 1,
                restarts=lambda: 0,
            )
        )
        self._is_closed = False
        self._open_instances: list[
            SharedInstance[Openable]
        ] = []  # so that exchanges find the instances of async functions open
        self.probes = Probes(settings, self.server_id, registry, self.metrics.registry, self.programs)
        try:
            if compiles:
                self._prepare(registry)
            if status is None:
                self.probes.status.prepare()
            self.flight = _bind_flight(self, registry, status or self.probes.status.fleet, on_spent or (lambda: None))
        except BaseException:
            self.probes.close()
            raise
        if self.compilation is not None:
            self.compilation.start(self.programs)
        self.probes.set_ready(ready=True)

    def _prepare(self, registry: Registry) -> None:
        """Load the functions that are compiled already, and open the instances of async functions."""
        for function in registry.authored:
            mode = self.programs.load(function).mode  # it logs why a function is not compiled
            if mode in (Mode.COMPILED, Mode.INTERPRETED):
                self.metrics.compiled.labels(function.name).set(mode is Mode.COMPILED)
            if function.bounds is not None:
                self._open_instance(function)

    def _open_instance(self, function: AnyFunction) -> None:
        """Open the instance that exchanges without job parameters share, which may load a model, before they wait."""
        if function.input_types is None or any(each.required for each in function.parameters):
            return
        started_s = time.monotonic()
        context = FunctionContext(function.name, metrics=self.metrics)
        try:
            bound: Bound[Openable] = function.bind(function.input_types, {})
            lent_instance: SharedInstance[Openable] = PROCESS_LOOP.instance(bound, {}, context, lambda: None)
            self._open_instances.append(lent_instance)
        except FoldflightError as error:
            # It may need job parameters. The first exchange tries again, and gets the error if it does not.
            self.logger.warning("not opened before the server is ready", function=function.name, problem=error.message)
        else:
            self.logger.info("opened", function=function.name, s=round(time.monotonic() - started_s, 3))

    @property
    def url(self) -> str:
        """The URL of this server for `connect`."""
        scheme = "grpc" if self.settings.tls_cert_file is None else "grpc+tls"
        return f"{scheme}://{authority(self.settings.host, self.flight.port)}"

    @property
    def ready_line(self) -> dict[str, Any]:
        """The ready line: the ports and functions of this server, for programs."""
        return self.probes.ready_line(self.flight.port)

    def drain(self) -> bool:
        """Refuse new exchanges, and wait up to `drain_s` for open ones. Return whether all ended."""
        self.logger.info("draining", exchanges=self.flight.active, drain_s=self.settings.drain_s)
        # First, because a server that says it is not ready must accept nothing, and ending the compilation takes time.
        self.flight.begin_drain()
        self.probes.set_ready(ready=False)
        self._end_compilation()
        return self.flight.drain(self.settings.drain_s)

    def _end_compilation(self) -> None:
        if self.compilation is not None:
            self.compilation.close()

    def close(self) -> None:
        """Stop at once. It is safe to call this twice."""
        if not self._is_closed:
            self._is_closed = True
            self._end_compilation()
            for each in self._open_instances:
                each.close()
            self.flight.close()
            self.probes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def run_server(
    settings: Settings,
    stop: threading.Event,
    *,
    log_stream: TextIO | None = None,
    on_ready: Callable[[dict[str, Any]], None] | None = None,
    status: Callable[[], dict[str, Any]] | None = None,
    share: float = 1.0,
    spare: Path | None = None,
    sources: Sequence[object] = (),
) -> int:
    """Serve until `stop` is set, then drain.

    Args:
        settings: What to do.
        sources: Functions in addition to the modules that the settings name. Other processes cannot load them.
        stop: Set by the caller's signal handlers, or by the server when this process should end.
        log_stream: Stream of the log. Default: standard error.
        on_ready: Called once with the ready line. Default: print it to standard output.
        status: As for `ProcessServer`.
        share: As for `ProcessServer`.
        spare: As for `ProcessServer`. Default: a temporary folder, which ends with the server.

    Returns:
        int: The exit code, for `leave_process`: 0 drained, 3 cut off, 4 spent.

    Raises:
        RejectedError: MODULE, SIGNATURE or SETTINGS, before anything is served.
    """
    logger = make_logger(log_stream or sys.stderr, log_format=settings.log_format, log_level=settings.log_level)
    on_ready = on_ready or _print_ready
    with capture_python_logging(logger), contextlib.ExitStack() as stack:
        if spare is None:
            spare = stack.enter_context(spare_folder(logger))
        if settings.workers > 1:
            from foldflight.server.run.workers import run_workers  # workers.py builds on this module

            if sources:
                raise _no_workers(settings, "whose processes load functions by the names of their modules")
            return run_workers(settings, stop, logger=logger, on_ready=on_ready, spare=spare)
        return _run_alone(
            settings, stop, logger=logger, on_ready=on_ready, status=status, share=share, spare=spare, sources=sources
        )


def _run_alone(
    settings: Settings,
    stop: threading.Event,
    *,
    logger: Logger,
    on_ready: Callable[[dict[str, Any]], None],
    status: Callable[[], dict[str, Any]] | None,
    share: float,
    spare: Path | None,
    sources: Sequence[object],
) -> int:
    is_spent = threading.Event()

    def end() -> None:
        is_spent.set()
        stop.set()

    reuse_freed()
    registry = load_registry(settings, sources)
    # Another process compiles functions, which it finds by the names of their modules.
    compiles = not sources
    with ProcessServer(
        settings, registry, logger, status=status, compiles=compiles, spare=spare, on_spent=end, share=share
    ) as server:
        announce(server.ready_line, settings, logger, on_ready)
        await_stop(stop)
        has_drained = server.drain()
        server.logger.info("drained" if has_drained else "drain_s passed: cutting off", exchanges=server.flight.active)
    if is_spent.is_set():
        return EXIT_SPENT
    return EXIT_DRAINED if has_drained else EXIT_CUT_OFF


def await_stop(stop: threading.Event) -> None:
    """Wait for the event with a short timeout, repeatedly.

    The kernel may deliver a signal to a thread of gRPC. Python runs the handler, which sets the event, only on the main
    thread, and a main thread that waits without a timeout would never run it.
    """
    while not stop.wait(_LOOK_UP_S):
        pass


def leave_process(code: int) -> NoReturn:
    """End the process with the exit code of `run_server`.

    After a cut-off the regular shutdown of the interpreter would wait for functions that hold the interpreter lock.
    """
    if code in {EXIT_CUT_OFF, EXIT_SPENT}:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def check_before_start(settings: Settings, registry: Registry, programs: Accelerator) -> None:
    """Check, before the server starts, everything that can be checked then.

    Raises:
        RejectedError: SETTINGS or SIGNATURE, as for `ProcessServer`.
    """
    check_keys(settings, (registry[name] for name in registry))
    check_port_free(settings.host, settings.port)
    recordings_of(settings)
    programs.demand_all(registry.authored)


def load_registry(settings: Settings, sources: Sequence[object] = ()) -> Registry:
    """Load modules and Java classes that the settings name, and sources. Raises RejectedError MODULE or SIGNATURE."""
    limit = memory_limit_of(settings)
    if limit and (java := JAVA.find()) is not None:  # clients may ship functions in Java
        java.limit_heap(limit // _HEAP_SHARE)
    return Registry.load([*settings.modules, *sources, *_java_functions(settings)])


def _java_functions(settings: Settings) -> list[Function]:
    return java_functions(settings.java, settings.java_classpath)


def programs_of(settings: Settings, spare: Path | None = None, queue: CompileQueue | None = None) -> Accelerator:
    """Return the compiled functions of a process, with the cache folder of the settings."""
    return accelerator_of(compiled_folder_of(settings.compiled_folder), spare=spare, queue=queue)


@contextlib.contextmanager
def serving(*sources: object, log_stream: TextIO | None = None, **settings: object) -> Iterator[ProcessServer]:
    """Serve functions from this process, on free ports of 127.0.0.1, while the block runs.

    Args:
        sources: Modules, their names, or classes under `@udaf`; or one Registry.
        log_stream: Stream of the log. Default: no log.
        settings: Settings by name, as in the table of settings. Health and HTTP ports are off by default.
    """
    all_settings = load_settings({**FREE_PORTS, **settings}, {})
    if all_settings.workers > 1:
        raise _no_workers(all_settings, "which are processes of their own: use serve()")
    registry = sources[0] if len(sources) == 1 and isinstance(sources[0], Registry) else None
    if registry is None:
        registry = Registry.load([*sources, *_java_functions(all_settings)])
    with contextlib.ExitStack() as stack:
        stream = log_stream or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        logger = make_logger(stream, log_format=all_settings.log_format, log_level=all_settings.log_level)
        yield stack.enter_context(ProcessServer(all_settings, registry, logger))


def _no_workers(settings: Settings, reason: str) -> RejectedError:
    return RejectedError("SETTINGS", f"this server cannot have {settings.workers} workers, {reason}")


def default_server_id() -> str:
    """Return a name that is unique in a fleet, even after a restart in the same container."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


def announce(
    ready_line: dict[str, Any], settings: Settings, logger: Logger, on_ready: Callable[[dict[str, Any]], None]
) -> None:
    """Publish the ready line: to people in the log, and to programs in the ready file and by `on_ready`."""
    logger.info(**ready_line)
    _warn_if_open(settings, logger)
    if settings.ready_file is not None:
        target = Path(settings.ready_file)
        draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(ready_line) + "\n", encoding="utf-8")
        draft.replace(target)  # atomic, so that a reader never sees a partial line
    on_ready(ready_line)


def _warn_if_open(settings: Settings, logger: Logger) -> None:
    """Warn if the Flight port is reachable from other machines without authentication or encryption."""
    try:
        is_loopback = ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        is_loopback = settings.host == "localhost"
    if is_loopback:
        return
    has_tokens = bool(settings.tokens or settings.tokens_file)
    if not has_tokens and settings.tls_client_ca_file is None:
        logger.warning(
            "the Flight port has no authentication: anyone who reaches it may run functions on this server",
            host=settings.host,
            remedy=f"set {SETTINGS['tokens_file'].flag}, or restrict access with a network policy",
        )
    if settings.tls_cert_file is None:
        logger.warning(
            "the Flight port has no TLS: rows, states and tokens are sent unencrypted",
            host=settings.host,
            remedy=f"set {SETTINGS['tls_cert_file'].flag} and {SETTINGS['tls_key_file'].flag}, or encrypt the network",
        )


def check_port_free(host: str, port: int) -> None:
    """Check that a port can be bound, because gRPC does not report why it cannot bind a port.

    Raises:
        RejectedError: SETTINGS.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            setting = SETTINGS["host"]
            reason = (error.strerror or str(error)).lower()
            raise RejectedError(
                "SETTINGS",
                f"cannot listen on {host}: {reason}; set {setting.flag} or {setting.variable} to an address of this "
                "machine, or to 0.0.0.0 for all of them",
            ) from None
        raise port_in_use_error("port", host, port, error.strerror) from None


def _print_ready(ready_line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(ready_line) + "\n")
    sys.stdout.flush()


def _bind_flight(
    server: ProcessServer, registry: Registry, status: Callable[[], dict[str, Any]], on_spent: Callable[[], None]
) -> FlightServer:
    settings = server.settings
    signer = StateSigner([key.encode() for key in settings.state_keys]) if settings.state_keys else None
    try:
        return FlightServer(
            settings,
            registry,
            server_id=server.server_id,
            signer=signer,
            programs=server.programs,
            metrics=server.metrics,
            status=status,
            on_spent=on_spent,
            logger=server.logger,
            share=server.share,
        )
    except (pa.ArrowException, OSError) as error:
        check_port_free(settings.host, settings.port)  # it was free when the server began
        where = authority(settings.host, settings.port)
        tls = " or cannot use the certificate" if settings.tls_cert_file is not None else ""
        raise RejectedError(
            "SETTINGS", f"gRPC cannot listen on {where}{tls}: {error}; check the host, the port and the certificate"
        ) from error
