"""The start of a server on a machine that has compiled nothing: CPU time until it is ready and answers, and its memory.

It serves the functions of `bench.natural`. Beside it is a process that imports the same modules and no more: the
difference is the server's own. The compiler is among them, since a server loads what another process has compiled, and
so is pandas where it is installed, since pyarrow imports it when it makes the first array of Python objects. A server
returns freed memory when it has been idle for some seconds; what it holds then is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from bench import gallery, natural
from bench.data import Figure, Sizes
from foldflight.client import FlightTransport
from foldflight.exchange.frames import Open, Returns
from foldflight.fold.mode import WAITS_TO_BE_COMPILED
from foldflight.functions import Call

SUITE = "starts"
OURS, IMPORTS = "foldflight", "the imports"
ROWS = 100_000
MODULES = (
    "bench.natural.classes",
    *(f"examples.{name}" for name in natural.EXAMPLES),
    *(f"examples.gallery.{path.stem}" for path in sorted(gallery.GALLERY.glob("*.py"))),
)
_ROOT = Path(__file__).parents[1]
_DEADLINE_S, _COMPILED_S, _LOOK_S, _IDLE_S = 120.0, 3600.0, 1.0, 30
_SERVER = [sys.executable, "-m", "foldflight.cli.main", "serve", *MODULES, "--port", "0"]
_SERVER += ["--health-port", "off", "--http-port", "off"]
_ONLY_IMPORTS = (
    "import signal, sys\n"
    "import foldflight.cli.main, foldflight.server.run.lifecycle, foldflight.ext.compiler.kernels\n"
    "from foldflight.functions import Registry\n"
    "Registry.load(sys.argv[1:])\n"
    "import pyarrow\n"
    "pyarrow.array([0])\n"
    "print('ready', flush=True)\n"
    "signal.pause()"
)


def measure(sizes: Sizes) -> Iterator[Figure]:  # noqa: ARG001 - every suite is given the sizes
    """Measure the imports; then a server when it is ready, after one answer, and when it has compiled all functions."""
    if not Path("/proc/self/stat").exists():
        return  # only Linux reports the CPU time and the memory of another process
    calls, rows = natural.calls(natural.classes.CLASSES), natural.table(ROWS)
    with _process([sys.executable, "-c", _ONLY_IMPORTS, *MODULES]) as (process, _):
        floor_s, floor_mib = _cpu_s(process.pid), _memory_mib(process.pid)
    with _process(_SERVER) as (process, ready):
        ready_s = _cpu_s(process.pid)
        transport = FlightTransport([f"grpc://127.0.0.1:{ready['flight']}"], deadline_s=_DEADLINE_S)
        _fold(transport, calls[:1], rows)
        answered_s = _cpu_s(process.pid)
        _fold(transport, calls, rows)
        _wait(lambda: not _waiting(transport, calls))
        _fold(transport, calls, rows)
        used_mib = _idle_mib(process.pid)
    many = f"{len(calls)} functions"
    for case, taken_s in ((f"{many}, ready", ready_s), (f"{many}, the first answer", answered_s)):
        yield Figure(SUITE, case, IMPORTS, floor_s, "s")
        yield Figure(SUITE, case, OURS, taken_s, "s")
    yield Figure(SUITE, f"{many}, all compiled and in use", IMPORTS, floor_mib, "MiB")
    yield Figure(SUITE, f"{many}, all compiled and in use", OURS, used_mib, "MiB")


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Run a process with an empty folder of compiled code until the block ends; yield it and its first line."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLDFLIGHT_")}
        environment |= {"FOLDFLIGHT_STATE_KEYS": "0" * 64, "NUMBA_CACHE_DIR": folder, "TMPDIR": folder}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=_ROOT
        )
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            yield process, json.loads(line) if line.startswith("{") else {}
        finally:
            process.terminate()
            process.communicate()


def _fold(transport: FlightTransport, calls: Sequence[Call], rows: pa.Table) -> None:
    """Fold rows with each call in an exchange of its own."""
    for call in calls:
        chunk = rows.select(["slot", *dict.fromkeys(call.arguments)]).combine_chunks().to_batches()[0]
        opening = Open(calls=(call,), columns=chunk.schema, returns=Returns(states=False, outputs=True))
        with transport.open(opening) as exchange:
            exchange.chunk(chunk)
            exchange.barrier(1)
            exchange.results(1)


def _waiting(transport: FlightTransport, calls: Sequence[Call]) -> list[str]:
    used = {call.function for call in calls}
    return [info.name for info in transport.infos() if info.name in used and info.folded == str(WAITS_TO_BE_COMPILED)]


def _wait(until: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _COMPILED_S
    while not until():
        if time.monotonic() > end_s:
            raise TimeoutError("the server has not compiled its functions")
        time.sleep(_LOOK_S)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _idle_mib(pid: int) -> float:
    """Return the least memory of a process within the next seconds."""
    sizes = []
    for _ in range(_IDLE_S):
        time.sleep(1)
        sizes.append(_memory_mib(pid))
    return min(sizes)


def _memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
