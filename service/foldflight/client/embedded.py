"""The embedded transport: the server's behaviour in this process, without a socket or a byte of encoding.

It travels: pickled, it carries the author's classes by value, so a Spark worker needs foldflight installed and nothing
else. What arrives in a process is restored once and kept, for tasks come by the thousand.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any

from foldflight.client.exchange import OpenExchange
from foldflight.client.link import Link
from foldflight.compiler import Programs
from foldflight.compiler.store import Store
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import FunctionInfo, Limits, Open, Opened
from foldflight.exchange.serving import ServerExchange, describe
from foldflight.fold.failures import missing_module
from foldflight.fold.signing import StateSigner
from foldflight.functions.registry import Registry
from foldflight.shipping.bundles import unpickled
from foldflight.shipping.pickling import pickled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from foldflight.exchange.frames import Frame
    from foldflight.functions.spec import Function

__all__ = ["PROGRAMS", "EmbeddedTransport", "Travelled"]

SERVER_ID = "embedded"
# Transports come and go with tasks and queries; what this process has compiled stays for all of them.
PROGRAMS = Programs(Store("user"))
_RESTORED_MAX = 16
_restored: dict[str, tuple[Any, ...]] = {}

# The engine that embeds the fold bounds its own memory; only what the Arrow format itself bounds is left.
_LIMITS = Limits(
    message_bytes_max=2**31 - 1,
    slots_max=2**31 - 1,
    state_bytes_max=2**31 - 1,
    exchange_state_bytes_max=2**62,
    exchanges_max=2**31 - 1,
    idle_s_max=float(2**31),
    age_s_max=float(2**31),
)


class EmbeddedTransport:
    """Folds in the calling process.

    Args:
        registry: The functions, or those of a transport that has travelled here.
        state_key: Signs pickled states, so that a state from elsewhere is refused before it is unpickled.
        job_parameters: What `FunctionContext.job_parameters` shows; those of an Open win.
    """

    def __init__(
        self, registry: Registry | Travelled, *, state_key: bytes, job_parameters: Mapping[str, str] | None = None
    ) -> None:
        self._travelled: Travelled | None = None
        if isinstance(registry, Travelled):
            self._travelled = registry
        else:
            self._registry = registry
        self._state_key = state_key
        self._job_parameters = dict(job_parameters or {})

    @functools.cached_property
    def _registry(self) -> Registry:
        """The functions; those that have travelled here are restored when they are first needed.

        So an error of code that cannot run here is raised by what uses the transport, not by what unpickles it.
        """
        assert self._travelled is not None
        return Registry(self._travelled.functions())

    def infos(self, *, look: bool = False) -> list[FunctionInfo]:
        """Return what there is, by name.

        Args:
            look: Whether to make an instance of each class and look at its code, to tell how it is folded.
        """
        functions = [self._registry[name] for name in sorted(self._registry)]
        return [FunctionInfo.of(each, folding=PROGRAMS.folding(each) if look else None) for each in functions]

    def register(self, functions: Sequence[Function]) -> list[FunctionInfo]:
        """Take more functions, and return what they are. Raises RejectedError SIGNATURE where a name is taken."""
        registry = Registry([*self._registry.authored, *functions])
        PROGRAMS.demand_all(functions)
        self._registry = registry
        self._travelled = None
        return [FunctionInfo.of(function) for function in functions]

    def describe(self, open: Open) -> Opened:  # noqa: A002  (the frame's name)
        """Return what an exchange would be opened with. Raises what opening it would raise."""
        return describe(self._complete(open), self._registry, _LIMITS, SERVER_ID, PROGRAMS)

    def open(self, open: Open) -> OpenExchange:  # noqa: A002
        """Open an exchange in this process."""
        complete = self._complete(open)
        server = ServerExchange(
            complete,
            self._registry,
            limits=_LIMITS,
            server_id=SERVER_ID,
            signer=StateSigner([self._state_key]),
            accelerator=PROGRAMS,
        )
        return OpenExchange(EmbeddedLink(complete, server), complete)

    def _complete(self, opening: Open) -> Open:
        if not self._job_parameters:
            return opening
        return dataclasses.replace(opening, job_parameters={**self._job_parameters, **opening.job_parameters})

    def __reduce__(self) -> tuple[Callable[..., EmbeddedTransport], tuple[Any, ...]]:
        if self._travelled is None:
            self._travelled = Travelled.of(self._registry.authored)
        return _restore, (self._travelled, self._state_key, self._job_parameters)


class EmbeddedLink(Link):
    """A link to a `ServerExchange` in this process."""

    def __init__(self, opening: Open, server: ServerExchange) -> None:
        super().__init__(opening)
        self._server = server
        self._replies: deque[Frame] = deque([server.opened])
        self._start()

    def _write(self, frame: Frame) -> None:
        self._replies.extend(self._server.handle(frame))

    def _read(self) -> Frame | None:
        return self._replies.popleft() if self._replies else None

    def _end(self) -> None:
        try:
            self._server.close()
        except FunctionError:
            if not self._failed:  # else its first error is on its way, and says more
                raise


@dataclasses.dataclass(frozen=True)
class Travelled:
    """Functions on their way between processes.

    Args:
        names: Their names.
        code: What `pickled` made of them.
        digest: The SHA-256 of the code, hexadecimal.
    """

    names: tuple[str, ...]
    code: bytes
    digest: str

    @classmethod
    def of(cls, functions: Sequence[Function]) -> Travelled:
        """Pickle functions. Raises RejectedError SIGNATURE, where they refer to something that cannot be pickled."""
        code = pickled(functions)
        return cls(tuple(each.name for each in functions), code, hashlib.sha256(code).hexdigest())

    def functions(self) -> tuple[Function, ...]:
        """Return the functions. Raises RejectedError MODULE, where their code cannot run here."""
        functions = _restored.get(self.digest)
        if functions is None:
            try:
                functions = unpickled(self.code, self.digest)
            except (Exception, SystemExit) as error:
                raise self._unreadable(error) from error
            while len(_restored) >= _RESTORED_MAX:
                _restored.pop(next(iter(_restored)))
            _restored[self.digest] = functions
        return functions

    def _unreadable(self, error: BaseException) -> RejectedError:
        names = ", ".join(self.names)
        if isinstance(error, ModuleNotFoundError):
            return RejectedError("MODULE", f"{names} cannot be folded here: {missing_module(error)}")
        last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        return RejectedError(
            "MODULE",
            f"{names} cannot be folded here: their code cannot be read: {last}. Install the same versions of all that "
            "they import on the driver and on the workers",
        )


def _restore(travelled: Travelled, state_key: bytes, job_parameters: Mapping[str, str]) -> EmbeddedTransport:
    return EmbeddedTransport(travelled, state_key=state_key, job_parameters=job_parameters)
