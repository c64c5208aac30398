"""One worker process of `workers.py`: `python -m foldflight.server.run.worker_process`, configured on standard input.

The first line is the configuration. The end of the input means "drain and end", and so does SIGTERM.
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
from pathlib import Path
from typing import Any

_BEAT_S = 1.0


def main() -> None:
    """Serve until the parent closes its pipe, then end the process."""
    task = json.loads(sys.stdin.buffer.readline())
    # prometheus_client reads this variable when it is imported. Its files are named by the number of the worker, not by
    # the pid: a restarted worker continues its predecessor's file, and the number of files is bounded.
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = task["metrics_dir"]
    sys.path[:] = task["path"]
    from prometheus_client import values

    values.ValueClass = values.MultiProcessValue(lambda: task["index"])  # type: ignore[no-untyped-call]
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # These come after the storage is chosen.
    from foldflight.server.ops.status import fleet_of
    from foldflight.server.run.lifecycle import leave_process, run_server
    from foldflight.server.run.settings import Settings, use_cpus

    use_cpus(task["cpus"])

    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in task["settings"].items()
    }
    stop = threading.Event()
    # A service manager may send SIGTERM to each process of a server. The event is set in another thread, because the
    # handler may have interrupted the main thread while that holds the lock of the event.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set, name="foldflight-stop").start())
    threading.Thread(target=_await_end, args=(stop,), name="foldflight-parent", daemon=True).start()

    def on_ready(ready_line: dict[str, Any]) -> None:
        os.write(task["ready_fd"], json.dumps(ready_line).encode() + b"\n")
        threading.Thread(target=_beat, args=(task["ready_fd"],), name="foldflight-beat", daemon=True).start()

    status_at = task["status_at"]
    status = None if status_at is None else partial(fleet_of, *status_at)
    spare = None if task["spare"] is None else Path(task["spare"])
    leave_process(
        run_server(Settings(**options), stop, on_ready=on_ready, status=status, share=task["share"], spare=spare)
    )


def _beat(pipe: int) -> None:
    """Send heartbeats to the parent while it listens. They stop if code holds the interpreter lock for too long."""
    with contextlib.suppress(OSError):
        while os.write(pipe, b"."):
            time.sleep(_BEAT_S)


def _await_end(stop: threading.Event) -> None:
    # Unbuffered: a thread that holds the lock of Python's buffer would abort the shutdown of the interpreter.
    while os.read(sys.stdin.fileno(), 1):
        pass
    stop.set()


if __name__ == "__main__":
    main()
