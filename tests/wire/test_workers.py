"""`--workers N`: one port, several processes, one metrics page."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foldflight.client import FlightTransport, OpenExchange, close_connections
from foldflight.client.exchange import SingleServerExchange
from foldflight.client.flight_transport import FlightConnection
from foldflight.errors import RetryableError
from foldflight.functions.query.call import Call
from foldflight.server.ops.logs import make_logger
from foldflight.server.run.compilation import spare_folder
from foldflight.server.run.lifecycle import EXIT_CUT_OFF, EXIT_DRAINED, EXIT_SPENT, run_server
from foldflight.server.run.settings import load_settings
from foldflight.server.run.workers import _Worker
from tests.wire.kit import (
    DEADLINE_S,
    IMPATIENT,
    PATIENCE_S,
    ServerProcess,
    environment,
    eventually,
    open_request,
    opened_apart,
    pause,
    rows,
)
from tests.wire.test_probes import SERVING, health, page

COUNT = Call("count")
Fork = Spawn = Callable[..., ServerProcess]
# Nothing of it is compiled, so that processes start quickly.
MODULE = "tests.wire.limit_functions"


def count_rows(exchange: OpenExchange, epoch: int, number: int) -> list[int]:
    """Fold rows and return the count."""
    exchange.chunk(rows(*[(0, 0)] * number))
    exchange.barrier(epoch)
    result: list[int] = exchange.results(epoch)["output_0"].to_pylist()
    return result


@pytest.mark.every_turn
def test_workers_share_the_port_and_the_page(fork: Fork) -> None:
    """Two processes share one port; the page has their sums; a dead one is replaced; SIGTERM drains both."""
    server = fork(modules=MODULE, workers=2)
    assert health(server.ready["health"], "") == SERVING
    transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
    with transport.open(open_request(COUNT)) as first:
        assert count_rows(first, 1, 30_000) == [30_000]
        with opened_apart(server, open_request(COUNT)) as second:
            assert second.open_reply.server_id != first.open_reply.server_id
            assert count_rows(second, 1, 20_000) == [20_000]
            assert eventually(lambda: "foldflight_rows_total 50000.0" in page(server.ready["http"], "/metrics")[1])
            body = page(server.ready["http"], "/metrics")[1]
            assert "foldflight_exchanges_open 2.0" in body
            assert "foldflight_workers 2.0" in body

    # kill one worker: its clients see a lost server, the other goes on, a new one comes up
    os.kill(server.ready["workers"][0], signal.SIGKILL)
    assert eventually(lambda: "foldflight_worker_restarts_total 1.0" in page(server.ready["http"], "/metrics")[1])
    assert eventually(lambda: "foldflight_workers 2.0" in page(server.ready["http"], "/metrics")[1])
    assert page(server.ready["http"], "/readyz")[0] == 200
    # what the dead one has counted still counts; what it had open does not
    assert eventually(lambda: "foldflight_exchanges_open 0.0" in page(server.ready["http"], "/metrics")[1])
    body = page(server.ready["http"], "/metrics")[1]
    assert "foldflight_rows_total 50000.0" in body
    assert 'foldflight_rows_folded_total{function="count",kind="+I"} 50000.0' in body
    assert "foldflight_groups 0.0" in body
    assert "foldflight_exchanges_max 128.0" in body
    assert all(f'process_cpu_seconds_total{{worker="{worker}"}}' in body for worker in ("parent", "0", "1"))
    close_connections()
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange:
        assert count_rows(exchange, 1, 1) == [1]
        server.terminate()
        assert eventually(lambda: page(server.ready["http"], "/readyz")[0] == 503)
        assert eventually(lambda: refuses(server))
        assert count_rows(exchange, 2, 1) == [2]
    assert server.process.wait(PATIENCE_S) == EXIT_DRAINED


@pytest.mark.slow
@pytest.mark.parametrize("hang", ["paused", "locked"])
def test_a_worker_that_hangs_is_replaced(fork: Fork, hang: str) -> None:
    """A worker that is paused, or whose code holds the global lock for ever, is killed and replaced."""
    server = fork(workers=2, fold_s_max=3, modules=MODULE)
    with (
        opened_apart(server, open_request(Call("holds_the_lock", ("value",)))) as hanging_exchange,
        opened_apart(server, open_request(COUNT)) as other,
    ):
        if hang == "paused":
            pause(server.ready["workers"][0 if hanging_exchange.open_reply.server_id.endswith("/0") else 1])
        hanging_exchange.chunk(rows((0, 0, 13)))
        hanging_exchange.barrier(1)
        with pytest.raises(RetryableError):
            hanging_exchange.results(1)
        assert count_rows(other, 1, 5) == [5]
    assert "worker hung: it is killed" in server.log.read_text()
    assert eventually(lambda: "foldflight_worker_restarts_total 1.0" in page(server.ready["http"], "/metrics")[1])
    assert eventually(lambda: "foldflight_workers 2.0" in page(server.ready["http"], "/metrics")[1])


@contextlib.contextmanager
def alone(module: str, folder: Path, log: io.StringIO, start_s_max: float = PATIENCE_S) -> Iterator[_Worker]:
    """Keep one worker running without a parent's port."""
    ports = {"port": "0", "health_port": "off", "http_port": "off"}
    worker = _Worker(0, load_settings({"modules": module, **ports}, {}), str(folder), make_logger(log))
    try:
        worker.start({"status_at": None, "cpus": 1, "share": 1.0, "spare": None}, start_s_max, on_change=lambda: None)
        yield worker
    finally:
        worker.kill()


@pytest.mark.slow
def test_a_worker_that_hangs_while_it_starts_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not report within the time of a start is killed, and the next one becomes ready."""
    monkeypatch.setenv("HANGS_AT_FIRST_MARK", str(tmp_path / "mark"))
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    log = io.StringIO()
    with alone("tests.wire.hangs_at_first", tmp_path, log, start_s_max=20.0) as worker:
        assert worker.ready.wait(PATIENCE_S)
    assert worker.restarts
    assert "worker hung: it is killed" in log.getvalue()


def test_a_server_can_be_stopped_while_its_workers_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for workers that come up late or never: it ends them, and was never ready."""
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 600\n")
    sleeper.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    ports = {"port": "0", "health_port": "off", "http_port": "0"}
    settings = load_settings({"modules": MODULE, "workers": 2, **ports}, {})
    stop, log, ready_lines = threading.Event(), io.StringIO(), list[dict[str, object]]()
    with ThreadPoolExecutor(1) as threads:
        code = threads.submit(run_server, settings, stop, log_stream=log, on_ready=ready_lines.append)
        stop.set()
        assert code.result(PATIENCE_S) == EXIT_DRAINED
    assert not ready_lines
    assert "stopped while workers started" in log.getvalue()


def test_a_worker_that_cannot_start_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is broken by now ends the process with an exit code, not with an abort of the interpreter."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    log = io.StringIO()
    with alone("tests.wire.broken_module", tmp_path, log):
        assert eventually(lambda: "worker died" in log.getvalue())
    assert '"exit_code": 1,' in log.getvalue()


@pytest.mark.slow
def test_a_worker_whose_function_cannot_be_interrupted_is_replaced(fork: Fork) -> None:
    """The worker drains and ends, and another one starts; the exchange of the other worker continues."""
    server = fork(workers=2, fold_s_max=3, drain_s=0.2, modules=MODULE)
    with (
        opened_apart(server, open_request(Call("sleeps", ("value",)))) as stuck_exchange,
        opened_apart(server, open_request(COUNT)) as other,
    ):
        stuck_exchange.chunk(rows((0, 0, 300)))
        stuck_exchange.barrier(1)
        with pytest.raises(RetryableError):
            stuck_exchange.results(1)
        assert count_rows(other, 1, 5) == [5]
    assert eventually(lambda: f'"exit_code": {EXIT_SPENT}' in server.log.read_text())
    assert eventually(lambda: "foldflight_workers 2.0" in page(server.ready["http"], "/metrics")[1])


@pytest.mark.slow
def test_all_processes_may_be_told_to_end(spawn: Spawn) -> None:
    """If SIGTERM is also sent to each worker, as service managers do, exchanges still reach their barrier."""
    server = spawn(modules=MODULE, workers=2, drain_s=20)
    with opened_apart(server, open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0)))
        for pid in (*server.ready["workers"], server.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert eventually(lambda: '"exchanges": 1, "drain_s"' in server.log.read_text())
        assert count_rows(exchange, 1, 2) == [3]
        assert isinstance(exchange, SingleServerExchange)
        assert isinstance(exchange._connection, FlightConnection)
        assert exchange._connection.reopen
    assert server.process.wait(PATIENCE_S) == EXIT_DRAINED


def refuses(server: ServerProcess) -> bool:
    """Return whether a server refuses new exchanges."""
    try:
        FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).open(open_request(COUNT)).close()
    except RetryableError:
        return True
    return False


@pytest.mark.slow
def test_drain_of_workers_has_an_end(spawn: Spawn) -> None:
    """A worker whose exchange is open after drain_s is ended, and the parent's exit code tells it."""
    server = spawn(modules=MODULE, workers=2, drain_s=0.3)
    with FlightTransport([server.url], deadline_s=DEADLINE_S, bounds=IMPATIENT).open(open_request(COUNT)) as exchange:
        server.terminate()
        assert server.process.wait(PATIENCE_S) == EXIT_CUT_OFF
        with pytest.raises(RetryableError):
            count_rows(exchange, 1, 1)


@pytest.mark.every_turn
def test_workers_do_not_outlive_their_parent(spawn: Spawn) -> None:
    """When the parent is killed, its workers end."""
    server = spawn(modules=MODULE, workers=2)
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in server.ready["workers"]))


@pytest.mark.every_turn
def test_the_temporary_files_of_a_killed_parent_are_deleted_by_the_next_server(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of compiled code, and the metrics of its workers."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    server = spawn(modules=MODULE, workers=2)
    server.process.kill()
    server.process.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in server.ready["workers"]))
    assert list(temporary.rglob("*.db"))  # of the metrics
    monkeypatch.setattr(tempfile, "tempdir", None)
    with spare_folder(make_logger(io.StringIO())) as folder:
        assert list(temporary.iterdir()) == [folder]


@pytest.mark.every_turn
def test_a_server_without_workers_is_not_ready(fork: Fork) -> None:
    """Without workers the server is not ready, and restarted workers use the existing metrics files."""
    server = fork(modules=MODULE, workers=2)
    pids = server.ready["workers"]
    before = metrics_files(pids[0])
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: page(server.ready["http"], "/readyz")[0] == 503)
    assert health(server.ready["health"], "") != SERVING
    assert page(server.ready["http"], "/healthz")[0] == 200
    assert eventually(lambda: page(server.ready["http"], "/readyz")[0] == 200)
    assert eventually(lambda: "foldflight_workers 2.0" in page(server.ready["http"], "/metrics")[1])
    with opened_apart(server, open_request(COUNT)) as exchange:
        assert count_rows(exchange, 1, 10) == [10]
        assert before
        assert {each.name for each in before[0].parent.iterdir()} == {each.name for each in before}


def metrics_files(pid: int) -> list[Path]:
    """Return the other files in the folder of a worker's metrics."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (folder,) = {Path(line.split()[-1]).parent for line in maps if "/foldflight-metrics-" in line}
    return list(folder.iterdir())


@pytest.mark.every_turn
def test_module_that_fails_to_import_is_said_once(spawn: Spawn) -> None:
    """With workers, a broken module is also one error before anything is served."""
    failing_server = spawn(modules="tests.wire.broken_module", workers=2, await_ready=False)
    assert failing_server.process.wait(PATIENCE_S) == 2
    assert failing_server.log.read_text().count("broken_module.py:7") == 1


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
