"""The public class `Server`: does in a test, notebook or script what `foldflight serve` does as a command."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final, Self

from foldflight.errors import RejectedError
from foldflight.server.run.lifecycle import FREE_PORTS, ProcessServer, announce, run_server, serving
from foldflight.server.run.settings import load_settings, usable_cpus, use_cpus

_DEFAULTS: Final[Mapping[str, object]] = {**FREE_PORTS, "log_level": "warning"}


class Server:
    """A server of functions, as `foldflight serve` starts one: beside other code in a `with` statement, or alone.

    In a `with` statement threads of this process serve, and the end of the block drains them. That suits tests and
    notebooks:

        >>> from foldflight import Server, connect, udaf
        >>> from foldflight.testing import run_epochs
        >>> @udaf
        ... class Longest:
        ...     def create_accumulator(self) -> str:
        ...         return ""
        ...     def accumulate(self, longest: str, text: str) -> str:
        ...         return max(longest, text, key=len)
        ...     def merge(self, longest: str, other: str) -> str:
        ...         return max(longest, other, key=len)
        ...     def get_value(self, longest: str) -> str:
        ...         return longest
        >>> with Server([Longest]) as server:
        ...     longest = connect(server.url).longest("text")
        ...     rows = [{"k": 1, "text": "a"}, {"k": 1, "text": "abc"}]
        ...     (epoch,) = run_epochs({"longest": longest}, keys=["k"], epochs=[rows])
        >>> epoch.changelog
        [('+I', {'k': 1, 'longest': 'abc'})]

    With Spark it is `group_by(df, "k").agg(longest=longest)`, whose executors must reach the server.

    `serve` is for scripts, and for several workers:

        server = Server(["my_functions"], host="0.0.0.0", port=8815, workers=4)
        signal.signal(signal.SIGTERM, lambda *_: server.stop())
        sys.exit(server.serve())

    Args:
        functions: Classes and functions under decorators, modules, and names of modules. The built-in functions are
            served, too.
        settings: Settings of the command by name, as on the page of settings: `tokens_file`, `tls_cert_file`... The
            defaults differ: any free port, no ports for health and HTTP, and of the log only warnings, on standard
            error. No variables of the environment are read.

    Raises:
        RejectedError: SETTINGS for a setting that is unknown or has a bad value, for functions that are no list, and
            for `modules`, which belong into the list.
    """

    def __init__(self, functions: Sequence[object], **settings: object) -> None:
        if not isinstance(functions, (list, tuple)):
            raise RejectedError("SETTINGS", f"the functions are {functions!r}; give a list of them")
        self._functions = functions
        self._settings = {**_DEFAULTS, **settings}
        if load_settings(self._settings, {}).modules:
            raise RejectedError(
                "SETTINGS", "modules are no setting of this server; put them into the list of functions"
            )
        self._stop = threading.Event()
        self._stack = ExitStack()
        self._running_server: ProcessServer | None = None
        self._has_served = False

    @property
    def url(self) -> str:
        """The URL for `connect`, from the beginning of the `with` statement on. Raises RuntimeError before."""
        if self._running_server is None:
            raise RuntimeError("the server has no URL yet: enter it in a `with` statement first")
        return self._running_server.url

    def __enter__(self) -> Self:
        """Begin to serve.

        Raises:
            RejectedError: MODULE or SIGNATURE if functions cannot be served; SETTINGS if a port is taken, with several
                workers, and if states of a function are pickled and there are no `state_keys`.
            RuntimeError: It has begun before.
        """
        self._check_new()
        with ExitStack() as stack:
            running = stack.enter_context(serving(*self._functions, log_stream=sys.stderr, **self._settings))
            announce(running.ready_line, running.settings, running.logger, lambda _: None)
            self._stack = stack.pop_all()
        self._running_server = running
        return self

    def __exit__(self, exception: type[BaseException] | None, *_: object) -> None:
        if exception is None:
            self.stop()
        self._stack.close()

    def _check_new(self) -> None:
        if self._running_server is not None or self._has_served:
            raise RuntimeError("a server serves once, and this one has begun before; make another one: Server([...])")

    def stop(self) -> None:
        """Refuse new exchanges, wait up to `drain_s` for open ones, and end. Repeated calls have no effect.

        While `serve` runs, it only asks for that, and returns at once.
        """
        # In a thread: a handler may have interrupted the main thread while that holds the lock of the event.
        threading.Thread(target=self._stop.set, name="foldflight-stop").start()
        if self._running_server is not None:
            self._running_server.drain()
            self._stack.close()

    def serve(self) -> int:
        """Serve until `stop` is called, by a handler of signals or another thread. Ctrl-C ends it without a drain.

        When the server is ready it writes one line of JSON, with its ports, to standard output.

        Returns:
            int: The exit code for the process: 0 if all exchanges ended, 3 if some were cut off after `drain_s`, 4 if
            the process must end because a function cannot be interrupted.

        Raises:
            RejectedError: As in a `with` statement; several workers need functions that modules have, by their names.
            RuntimeError: It has begun before.
        """
        self._check_new()
        use_cpus(usable_cpus())
        names = tuple(each for each in self._functions if isinstance(each, str))
        others = [each for each in self._functions if not isinstance(each, str)]
        code = run_server(load_settings({**self._settings, "modules": names}, {}), self._stop, sources=others)
        self._has_served = True
        return code
