"""The process that compiles: what it is given, how it ends, and what becomes of the functions then."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from foldflight.client import FlightTransport
from foldflight.fold.accelerator import PendingLoop, accelerator_of
from foldflight.fold.mode import Mode, Unsupported
from foldflight.functions import Registry
from foldflight.functions.author.spec import BoundFunction, BoundScalar
from foldflight.functions.query.call import Call
from foldflight.server.ops.logs import make_logger
from foldflight.server.ops.metrics import Metrics
from foldflight.server.run import compilation as module
from foldflight.server.run.compilation import Compilation
from foldflight.server.run.lifecycle import ProcessServer, load_registry
from foldflight.server.run.settings import load_settings
from tests.wire.kit import DEADLINE_S, STATE_KEY, ServerProcess, end_epoch, eventually, open_request, rows

FUNCTIONS = "tests.wire.compile_functions"
Start = Callable[..., ProcessServer]


class Log(io.StringIO):
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def problems(self) -> list[str]:
        return [line["problem"] for line in self.lines() if line["event"] == "compiling failed"]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def start(tmp_path: Path, log: Log) -> Iterator[Start]:
    """Start servers in this process that have their functions compiled as `foldflight serve` does."""
    servers: list[ProcessServer] = []

    def one(*modules: str, **server_settings: object) -> ProcessServer:
        settings = load_settings(
            {
                "modules": modules or (FUNCTIONS,),
                "port": 0,
                "health_port": "off",
                "http_port": "off",
                "state_keys": STATE_KEY,
                "compiled_folder": str(tmp_path / "compiled"),
                **server_settings,
            },
            {},
        )
        logger = make_logger(log, log_format="json", log_level="info")
        server = ProcessServer(settings, load_registry(settings), logger, compiles=True, spare=tmp_path / "spare")
        servers.append(server)
        return server

    yield one
    for server in servers:
        server.close()


def fold_rows(server: ProcessServer, function: str) -> str:
    """Return how a server lists a function."""
    return next(
        info.folded for info in FlightTransport([server.url], deadline_s=DEADLINE_S).infos() if info.name == function
    )


def fold(server: ProcessServer, call: Call, expected: int, until: Callable[[Mode], bool] = lambda _: True) -> None:
    """Fold a row of 1 in one exchange after the other until the mode of a new one is as wished."""

    def is_as_wished() -> bool:
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(call)) as exchange:
            exchange.chunk(rows((0, 0, 1)))
            assert end_epoch(exchange, 1)["output_0"].to_pylist() == [expected]
            (mode,) = exchange.modes
            return until(mode)

    assert eventually(is_as_wished)


def bound_of(name: str, *modules: str, **literals: Any) -> BoundFunction | BoundScalar:
    return Registry.load(modules or [FUNCTIONS])[name].bind([pa.int64()], literals)


def outcomes(server: ProcessServer, outcome: str) -> float:
    return server.metrics.registry.get_sample_value("foldflight_compilations_total", {"outcome": outcome}) or 0.0


@pytest.mark.every_turn
def test_a_function_whose_process_ends_twice_is_interpreted_and_says_so(start: Start, log: Log) -> None:
    """Listing, log and metric tell it, and the next function is compiled by a new process."""
    server = start()
    fold(server, Call("dies", ("value",)), 1)
    assert eventually(lambda: outcomes(server, "failed") == 1.0)
    fold(server, Call("dies", ("value",)), 1)
    assert fold_rows(server, "dies") == "interpreted: the process that compiles it ended with exit code 3"
    assert log.problems() == ["ended with exit code 3"] * 2
    waiting_functions = server.metrics.registry.get_sample_value("foldflight_function_waiting", {"function": "dies"})
    assert waiting_functions == 0.0
    fold(server, Call("times", ("value",)), 2, lambda mode: mode is Mode.COMPILED)


def test_a_process_that_does_not_answer_is_ended(start: Start, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S_MAX", 0.001)
    server = start()
    fold(server, Call("hangs", ("value",)), 1)
    assert eventually(lambda: outcomes(server, "failed") == 1.0)
    assert log.problems() == ["took longer than 0.001 s"] * 2
    fold(server, Call("hangs", ("value",)), 1)
    assert fold_rows(server, "hangs") == "interpreted: the process that compiles it took longer than 0.001 s"


@pytest.mark.every_turn
def test_a_function_waits_until_the_container_has_memory(
    start: Start, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is started until then, the log says so once, and the folder is free for other servers."""
    room = [255 << 20]
    memory_checks: list[int] = []
    monkeypatch.setattr(module, "container_room", lambda: memory_checks.append(room[0]) or room[0])
    monkeypatch.setattr(module, "_ROOM_S", 0.01)
    server = start()
    fold(server, Call("times", ("value",)), 2)
    assert eventually(lambda: len(memory_checks) > 2)
    assert server.compilation is not None
    assert server.compilation._process is None
    assert fold_rows(server, "times") == "compiled when hot: it is interpreted until another process has compiled it"
    waits = "functions wait to be compiled until the container has memory for it"
    assert [line["free_mib"] for line in log.lines() if line["event"] == waits] == [255]
    room[0] = 256 << 20
    fold(server, Call("times", ("value",)), 2, lambda mode: mode is Mode.COMPILED)
    assert [line["event"] for line in log.lines()].count(waits) == 1


@pytest.mark.every_turn
def test_a_process_is_ended_before_the_memory_of_the_container_is_used_up(
    start: Start, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the kernel may end the server with it."""
    server = start()
    compilation = server.compilation
    assert compilation is not None

    def room() -> int:
        return 1 << 30 if compilation._process is None or not compilation._process.requests else 1 << 20

    monkeypatch.setattr(module, "container_room", room)
    fold(server, Call("hangs", ("value",)), 1)
    assert eventually(lambda: outcomes(server, "failed") == 1.0)
    assert log.problems() == ["was ended because the container had no more memory for it"] * 2
    fold(server, Call("hangs", ("value",)), 1)
    assert fold_rows(server, "hangs").startswith("interpreted: the process that compiles it was ended because")


@pytest.mark.parametrize("ends", ["drain", "close"])
def test_a_server_that_ends_leaves_no_process_and_no_draft(start: Start, tmp_path: Path, ends: str) -> None:
    server = start()
    fold(server, Call("hangs", ("value",)), 1)
    compilation = server.compilation
    assert compilation is not None
    assert eventually(lambda: compilation._process is not None and compilation._process.requests == 1)
    assert compilation._process is not None
    pid = compilation._process.pid
    assert Path(f"/proc/{pid}").exists()
    draft = tmp_path / "compiled" / f".{pid}.half"
    draft.touch()
    assert server.drain() if ends == "drain" else server.close() is None
    assert not Path(f"/proc/{pid}").exists()
    assert not draft.exists()
    assert not compilation._thread.is_alive()


def compile_processes(parent: int) -> list[int]:
    """Return the processes that compile for a server."""
    result = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            above = int(path.read_text().rpartition(")")[2].split()[1])
            if above == parent and b"compile_process" in (path.parent / "cmdline").read_bytes():
                result.append(int(path.parent.name))
    return result


@pytest.mark.every_turn
def test_a_server_that_is_killed_leaves_no_process(spawn: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """The process ends although it compiles, because its input ends with the server."""
    server = spawn(modules=FUNCTIONS, compiled_folder=str(tmp_path / "compiled"))
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(Call("hangs", ("value",)))) as exchange:
        exchange.chunk(rows((0, 0, 1)))
        end_epoch(exchange, 1)
    assert eventually(lambda: bool(compile_processes(server.process.pid)))
    (pid,) = compile_processes(server.process.pid)
    assert eventually(lambda: Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n")
    server.process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    """Return whether a process has not ended. One that ended stays a zombie until its parent has asked for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.every_turn
def test_functions_that_another_process_cannot_load_are_compiled_here_when_hot(start: Start, log: Log) -> None:
    server = start("tests.wire.unloadable_functions")
    fold(server, Call("single", ("value",)), 1)
    event = "functions are compiled in this process, because another one cannot load them"
    assert eventually(lambda: event in [line["event"] for line in log.lines()])
    (problem,) = [line["problem"] for line in log.lines() if line["event"] == event]
    assert "the port is taken" in problem
    assert eventually(lambda: outcomes(server, "failed") == 1.0)
    server.programs._hot_rows = 1  # type: ignore[attr-defined]
    fold(server, Call("single", ("value",)), 1, lambda mode: mode is Mode.COMPILED)
    assert fold_rows(server, "single") == "compiled"


@pytest.mark.every_turn
@pytest.mark.parametrize("folder_option", ["off", "others"])
def test_compiled_code_is_kept_elsewhere_where_the_folder_cannot(
    start: Start, tmp_path: Path, folder_option: str
) -> None:
    """Without a folder, or with one that others may write to, the server and the process have one of their own."""
    others = tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    server = start("tests.unit.listed_functions", compiled_folder="off" if folder_option == "off" else str(others))
    fold(server, Call("plain", ("value",)), 1, lambda mode: mode is Mode.COMPILED)
    assert eventually(lambda: outcomes(server, "compiled") == 1.0)
    assert list((tmp_path / "spare").glob("*.fold"))
    assert not list(others.iterdir())


@pytest.mark.every_turn
def test_stored_code_is_loaded_from_a_folder_that_cannot_be_written_to(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image with compiled functions and a file system that is only read: what it lacks is kept elsewhere."""
    folder = tmp_path / "compiled"
    plain = Registry.load(["tests.unit.listed_functions"])["plain"]
    assert accelerator_of(folder).warm(plain).mode is Mode.COMPILED
    monkeypatch.setattr(os, "access", lambda *_: False)
    server = start(FUNCTIONS, "tests.unit.listed_functions")
    assert fold_rows(server, "plain") == "compiled"
    assert server.programs.folder == tmp_path / "spare"


@pytest.mark.every_turn
def test_a_function_with_direct_arguments_is_compiled_for_values_with_many_rows(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    assert server.compilation is not None
    with pytest.raises(PendingLoop):
        server.compilation.ask(bound_of("times", factor=3), "fold", 2)
    assert not server.compilation._jobs
    monkeypatch.setattr(module, "HOT_ROWS", 2)
    call = Call("times", ("value",), literals={"factor": 3})
    fold(server, call, 3, lambda mode: mode is Mode.COMPILED)
    fold(server, Call("times", ("value",)), 2)


def test_the_process_is_asked_for_functions_of_its_modules_only() -> None:
    """It has no function of other modules, such as those that clients ship."""
    settings = load_settings({"modules": (FUNCTIONS,)}, {})
    logger = make_logger(io.StringIO(), log_format="json", log_level="info")
    compilation = Compilation(settings, load_registry(settings), None, metrics=Metrics(), logger=logger)
    assert compilation.takes(bound_of("dies"))
    assert not compilation.takes(bound_of("plain", "tests.unit.listed_functions"))


def test_the_function_with_most_rows_is_next() -> None:
    settings = load_settings({"modules": (FUNCTIONS,)}, {})
    logger = make_logger(io.StringIO(), log_format="json", log_level="info")
    compilation = Compilation(settings, load_registry(settings), None, metrics=Metrics(), logger=logger)
    row_counts = [(bound_of("dies"), 10), (bound_of("hangs"), 30), (bound_of("times", factor=2), 1 << 18)]
    for bound, count in row_counts[:2]:
        with pytest.raises(PendingLoop):
            compilation.ask(bound, "fold", count)
    with pytest.raises(PendingLoop):
        compilation.ask(bound_of("dies"), "fold", 0)
    job = compilation._next()
    assert job is not None
    assert job.bound.function.name == "hangs"
    with pytest.raises(PendingLoop):
        compilation.ask(bound_of("dies"), "fold", 40)
    job = compilation._next()
    assert job is not None
    assert job.bound.function.name == "dies"
    job.is_done, job.reason = True, "it was refused"
    with pytest.raises(Unsupported, match="it was refused"):
        compilation.ask(bound_of("dies"), "fold", 41)
    job.reason = ""
    compilation.ask(bound_of("dies"), "fold", 42)  # what was compiled and is not stored is compiled here


@pytest.mark.every_turn
def test_one_server_at_a_time_compiles_into_a_folder(start: Start, tmp_path: Path) -> None:
    """While another server has locked the folder, nothing is compiled; what that one has stored is loaded."""
    folder = tmp_path / "compiled"
    folder.mkdir(mode=0o700)
    with (folder / ".compiling").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        server = start("tests.unit.listed_functions")
        fold(server, Call("plain", ("value",)), 1)
        plain = Registry.load(["tests.unit.listed_functions"])["plain"]
        assert accelerator_of(folder).warm(plain).mode is Mode.COMPILED
        assert eventually(lambda: outcomes(server, "found") == 1.0)
        assert fold_rows(server, "plain") == "compiled"
        assert outcomes(server, "compiled") == 0.0
        assert server.compilation is not None
        assert server.compilation._process is None
