"""The embedded transport: it folds in this process, with the same code as a server, without sockets and encoding.

Its pickle contains the author's classes by value, so that a Spark worker needs only foldflight. A process restores the
functions of a transport once and caches them, because it may run thousands of tasks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from foldflight.client.client_logs import log_event, set_up_logger
from foldflight.client.connection import Connection, Resolve, check_resolve
from foldflight.client.exchange import PROGRAMS, OpenExchange, SingleServerExchange, call_scope
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import UNBOUNDED, Frame, FunctionInfo, Open, Opened, Wanted
from foldflight.exchange.server_exchange import ServerExchange, describe
from foldflight.fold.coroutines import Coroutines
from foldflight.fold.failures import missing_module
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions.author.spec import AnyFunction
from foldflight.functions.registry import Registry
from foldflight.lift import lift_text, listed_lift
from foldflight.recording import RECORDING, Recordings
from foldflight.shipping.bundles import unpickle
from foldflight.shipping.pickling import pickle_functions

SERVER_ID = "embedded"
_RESTORED_MAX = 16  # transports whose functions a process keeps
_registry_by_digest: dict[str, Registry] = {}


class EmbeddedTransport:
    """Folds in the calling process.

    Args:
        registry: The functions.
        state_key: Signs pickled states, so that a state from another source is refused before it is unpickled.
        job_parameters: Values of `FunctionContext.job_parameters`. The values of an Open take precedence.
        otlp_endpoint: The collector of spans. Default: there are no spans.
        record: Which exchanges are recorded, and where; None: none.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        state_key: bytes,
        job_parameters: Mapping[str, str] | None = None,
        otlp_endpoint: str | None = None,
        record: Recordings | None = None,
    ) -> None:
        self.otlp_endpoint = otlp_endpoint
        self._shipped_functions: ShippedFunctions | None = None
        self._registry = registry
        self._signer = StateSigner([state_key])
        self._job_parameters = dict(job_parameters or {})
        self._record = record

    @functools.cached_property
    def _registry(self) -> Registry:
        """The functions. Pickled functions are restored at the first access.

        So if their code cannot run here, the first use of the transport raises the error, not its unpickling.
        """
        assert self._shipped_functions is not None
        return self._shipped_functions.registry()

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return the descriptions of all functions, sorted by name.

        Args:
            look: Whether to determine how each function is folded, from an instance and the code of its class.
        """
        functions = [self._registry[name] for name in sorted(self._registry)]
        if not look:
            return [FunctionInfo.of(each) for each in functions]
        return [FunctionInfo.of(each, folding=PROGRAMS.folding(each), lift=listed_lift(each)) for each in functions]

    def register(self, functions: Sequence[AnyFunction]) -> list[FunctionInfo]:
        """Add functions, and return their descriptions. Raises RejectedError SIGNATURE if a name is taken."""
        registry = Registry([*self._registry.authored, *functions])
        PROGRAMS.demand_all(functions)
        self._registry = registry
        self._shipped_functions = None
        return [FunctionInfo.of(function) for function in functions]

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return the Opened of an exchange without opening it. Raises the errors of opening."""
        return describe(self._complete(open), self._registry, UNBOUNDED, SERVER_ID, PROGRAMS, lift_text)

    def open(self, open: Open, *, resolve: Resolve | None = None) -> OpenExchange:  # noqa: A002
        """Open an exchange in this process."""
        check_resolve(open, resolve)
        complete = self._complete(open)
        waits = any(self._registry[name].bounds for name in complete.functions if name in self._registry)
        coroutines: Coroutines | None = None
        if waits:
            from foldflight.coroutines import PROCESS_LOOP  # it imports asyncio, which most workers never need

            coroutines = PROCESS_LOOP
        recorder = None
        if self._record is not None:
            recorder = RECORDING.load().recorder(self._record, complete, self._registry, SERVER_ID, _tell)

        def serve(ask: Callable[[Wanted], Iterable[Frame]], check: Callable[[], None] | None = None) -> ServerExchange:
            return ServerExchange(
                complete,
                self._registry,
                limits=UNBOUNDED,
                server_id=SERVER_ID,
                signer=self._signer,
                accelerator=PROGRAMS,
                coroutines=coroutines,
                check=check,
                ask=ask,
                part_bytes_max=UNBOUNDED.message_bytes_max,  # nothing is sent, so nothing is gained by parts
                recorder=recorder,
            )

        connect = WaitingConnection if waits and complete.maps else EmbeddedConnection
        if self.otlp_endpoint is None:
            connection: Connection = connect(complete, serve, resolve)
        else:
            from foldflight.client.connection_spans import traced_dial

            def dial(*_: object) -> Connection:
                return connect(complete, serve, resolve)

            versions = [self._registry[name].version for name in complete.functions if name in self._registry]
            connection = traced_dial(dial, self.otlp_endpoint, versions)(SERVER_ID, complete)
        exchange = SingleServerExchange(complete, connection)
        if recorder is not None:
            recorder.group_of = lambda slot: {} if exchange.group_of is None else exchange.group_of(slot)
        return exchange

    def _complete(self, open_request: Open) -> Open:
        for function in (self._registry[name] for name in open_request.functions if name in self._registry):
            if function.bounds is not None and function.bounds.rate:
                raise RejectedError(
                    "SIGNATURE",
                    f"{function.name} is declared rate={function.bounds.rate:g}, which cannot hold without a server: "
                    "Spark runs functions in as many processes as it likes. Serve the function (foldflight serve) and "
                    "connect to the server, or drop rate",
                    function=function.name,
                )
        return dataclasses.replace(
            open_request,
            job_parameters={**self._job_parameters, **open_request.job_parameters},
            call_scope=open_request.call_scope or call_scope(),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes, with the functions in pickled form only."""
        if self._shipped_functions is None:
            self._shipped_functions = ShippedFunctions.of(self._registry.authored)
        return {name: value for name, value in vars(self).items() if name != "_registry"}


class EmbeddedConnection(Connection):
    """A connection to a `ServerExchange` in this process."""

    def __init__(self, open_request: Open, serve: Callable[..., ServerExchange], resolve: Resolve | None) -> None:
        super().__init__(open_request, resolve)
        self._server = serve(self._answer_to, self._check)
        self._replies: deque[Frame] = deque([self._server.open_reply])
        self._start()

    @property
    def modes(self) -> Sequence[Mode | None]:
        return self._server.folds  # the present modes, not the modes at the opening

    def _check(self) -> None:
        """Do nothing: the caller waits for the answers in this thread, so it has not left."""

    def _answer_to(self, question: Wanted) -> Iterator[Frame]:
        self._engine.receive(question)
        return self._entries_for(question)

    def _write(self, frame: Frame) -> None:
        self._replies.extend(self._server.handle(frame))

    def _read(self) -> Frame | None:
        return self._replies.popleft() if self._replies else None

    def _end(self) -> None:
        try:
            self._server.close()
        except FunctionError:
            if not self._has_failed:  # otherwise the first error, which says more, is being raised
                raise


class _CutError(Exception):
    """The exchange was cut while its functions waited."""


class WaitingConnection(EmbeddedConnection):
    """A connection to steps of which some wait: a thread evaluates each frame, so that the caller can go on."""

    def __init__(self, open_request: Open, serve: Callable[..., ServerExchange], resolve: Resolve | None) -> None:
        self._evaluation_thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._is_cut = False
        super().__init__(open_request, serve, resolve)

    def _check(self) -> None:
        if self._is_cut:
            raise _CutError

    def _write(self, frame: Frame) -> None:
        def evaluate() -> None:
            try:
                self._replies.extend(self._server.handle(frame))
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that reads
                self._problem = error

        self._evaluation_thread = threading.Thread(target=evaluate, name="foldflight-waiting", daemon=True)
        self._evaluation_thread.start()

    def _read(self) -> Frame | None:
        self._await_thread()
        if self._problem is not None:
            raise self._problem
        return super()._read()

    def _end(self) -> None:
        self._is_cut = True  # ends calls that wait; all others run to their end
        self._await_thread()
        super()._end()

    def _await_thread(self) -> None:
        if self._evaluation_thread is not None:
            self._evaluation_thread.join()
            self._evaluation_thread = None


@dataclasses.dataclass(frozen=True)
class ShippedFunctions:
    """Functions in pickled form, to send them to another process.

    Args:
        names: Their names.
        code: The result of `pickled`.
        digest: The SHA-256 of the code, hexadecimal.
    """

    names: tuple[str, ...]
    code: bytes
    digest: str

    @classmethod
    def of(cls, functions: Sequence[AnyFunction]) -> ShippedFunctions:
        """Pickle functions. Raises RejectedError SIGNATURE if they refer to an object that cannot be pickled."""
        code = pickle_functions(functions)
        return cls(tuple(each.name for each in functions), code, hashlib.sha256(code).hexdigest())

    def registry(self) -> Registry:
        """Return the functions. Raises RejectedError MODULE if their code cannot run here."""
        registry = _registry_by_digest.get(self.digest)
        if registry is None:
            try:
                functions = unpickle(self.code, self.digest)
            except (Exception, SystemExit) as error:
                raise self._restore_error(error) from error
            registry = Registry(functions)
            while len(_registry_by_digest) >= _RESTORED_MAX:
                _registry_by_digest.pop(next(iter(_registry_by_digest)), None)  # another thread may have
            _registry_by_digest[self.digest] = registry
        return registry

    def _restore_error(self, error: BaseException) -> RejectedError:
        names = ", ".join(self.names)
        if isinstance(error, ModuleNotFoundError):
            return RejectedError("MODULE", f"{names} cannot be folded here: {missing_module(error)}")
        last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        return RejectedError(
            "MODULE",
            f"{names} cannot be folded here: their code cannot be unpickled: {last}. Install the same versions of "
            "their imports on the driver and on the workers",
        )


def _tell(event: str, fields: Mapping[str, Any]) -> None:
    log_event(set_up_logger("foldflight.client", logging.WARNING), logging.WARNING, event, fields)
