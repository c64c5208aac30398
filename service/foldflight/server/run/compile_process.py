"""The process of `compilation.py` that compiles: `python -m foldflight.server.run.compile_process`.

The first line of its input says what to load, and each further one which function to compile. It answers each with one
line on a pipe. The end of the input ends the process at once, also while it compiles.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import json
import os
import pickle
import queue
import sys
import threading
from pathlib import Path
from typing import Any

_NICENESS = 19
_FIRST_TO_END = 1000
_OBJECTS_AT_ONCE = 20_000  # new objects after which Python looks for garbage


def main() -> None:
    """Load the functions, then compile those that are asked for."""
    task = json.loads(sys.stdin.buffer.readline())
    sys.path[:] = task["path"]
    # The metrics of a worker are files, which no other process may write to.
    os.environ.pop("PROMETHEUS_MULTIPROC_DIR", None)
    _give_way()
    gc.set_threshold(_OBJECTS_AT_ONCE)  # compiling makes millions of objects, of which nearly all stay
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests,), name="foldflight-requests", daemon=True).start()

    from foldflight.errors import FoldflightError
    from foldflight.fold.accelerator import accelerator_of
    from foldflight.functions.registry import Registry
    from foldflight.server.run.settings import compiled_folder_of

    def answer(**fields: Any) -> None:
        os.write(task["answers_fd"], json.dumps(fields).encode() + b"\n")

    try:
        registry = Registry.load(task["modules"])
    except FoldflightError as error:
        answer(problem=error.message)
        return
    spare = None if task["spare"] is None else Path(task["spare"])
    accelerator = accelerator_of(compiled_folder_of(task["folder"]), spare=spare)
    answer(loaded=True)
    while True:
        name, types, literals, loop = pickle.loads(base64.b64decode(requests.get()))  # noqa: S301 - from the server
        answer(folded=str(accelerator.compile_bound(registry[name].bind(types, literals), loop)))


def _receive(requests: queue.SimpleQueue[bytes]) -> None:
    # Unbuffered reads would lose lines: only this thread reads from the buffer.
    for line in sys.stdin.buffer:
        requests.put(line)
    os._exit(0)


def _give_way() -> None:
    """Compile with the time that servers leave, and be the first to end if there is not enough memory."""
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text(f"{_FIRST_TO_END}\n", encoding="ascii")


if __name__ == "__main__":
    main()
