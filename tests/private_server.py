"""Another program's server, which tests run on the loopback while they need it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.wire.kit import PATIENCE_S, eventually


@contextmanager
def private_server(
    command: Sequence[str | Path],
    folder: Path,
    answers: Callable[[], bool],
    *,
    timeout_s: float = PATIENCE_S,
    stop: signal.Signals = signal.SIGKILL,
    **options: Any,
) -> Iterator[None]:
    """Run a server while the block runs, which begins once the server answers. If it ends before, its log is shown.

    Args:
        command: The program and its arguments.
        folder: Where it runs, and where the file `log` gets its output.
        answers: Whether the server answers.
        timeout_s: How long it may take until then.
        stop: The signal that stops the server; by default at once, because its data are not read again.
        options: Options of `subprocess.Popen`.
    """
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **options)
    try:
        assert eventually(lambda: server.poll() is not None or answers(), timeout_s)
        assert server.poll() is None, (folder / "log").read_text()
        yield
    finally:
        server.send_signal(stop)
        server.wait(60)
