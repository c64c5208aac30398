"""One worker process of `workers.py`: `python -m foldflight.server.run.worker`, told everything on standard input.

The first line is the task; the end of the input means "drain and end", and so does SIGTERM.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import Any

_BEAT_S = 1.0


def main() -> None:
    """Serve as the parent asked, until its pipe closes; then end the process."""
    task = json.loads(sys.stdin.buffer.readline())
    # prometheus_client chooses its storage when it is imported, and knows no other way to be told. Its files have the
    # number of the worker, not of the process: who comes after one that died counts on, and they are never more.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = task["metrics_dir"]
    sys.path[:] = task["path"]
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: task["index"])  # type: ignore[no-untyped-call]
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from foldflight.server.ops.build import use_cpus  # after the storage is chosen
    from foldflight.server.ops.status import fleet_of
    from foldflight.server.run.lifecycle import leave_process, run_server
    from foldflight.server.run.settings import Settings

    use_cpus(task["cpus"])

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in task["settings"].items()
    }
    stop = threading.Event()
    # A service manager may tell each process of a server to end, not the parent alone: that means "drain", too. Not set
    # in the handler itself, which may have interrupted the main thread while that holds the event's own lock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set, name="foldflight-stop").start())
    threading.Thread(target=_await_end, args=(stop,), name="foldflight-parent", daemon=True).start()

    def on_ready(ready_line: dict[str, Any]) -> None:
        os.write(task["ready_fd"], json.dumps(ready_line).encode() + b"\n")
        threading.Thread(target=_beat, args=(task["ready_fd"],), name="foldflight-beat", daemon=True).start()

    status_at = task["status_at"]
    status = None if status_at is None else partial(fleet_of, *status_at)
    leave_process(run_server(Settings(**given), stop, on_ready=on_ready, status=status))


def _beat(pipe: int) -> None:
    """Tell the parent, for as long as it listens, that Python runs here: code that holds its lock stops that, too."""
    with contextlib.suppress(OSError):
        while os.write(pipe, b"."):
            time.sleep(_BEAT_S)


def _await_end(stop: threading.Event) -> None:
    # Not through Python's buffer: its lock would be held when the interpreter ends by itself, and abort it.
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop.set()


if __name__ == "__main__":
    main()
