"""`foldflight.Server`: a server that a program starts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples import weighted_avg
from foldflight import RejectedError, RetryableError, Server, connect, udaf, udf
from foldflight.exchange.frames import Open
from foldflight.functions import Call
from foldflight.server.run import server as server_module
from foldflight.testing import run_epochs

COLUMNS = pa.schema([("slot", pa.int32()), ("x", pa.int64())])


@udaf
class Total:
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, x: int) -> int:
        return total + x

    def merge(self, total: int, other: int) -> int:
        return total + other

    def get_value(self, total: int) -> int:
        return total


@udf
def twice(x: int) -> int:
    return 2 * x


def sums(url: str) -> list[tuple[str, Any]]:
    use = connect(url, deadline_s=60)["total"]("x")
    (epoch,) = run_epochs({"s": use}, keys=["k"], epochs=[[{"k": 1, "x": 2}, {"k": 1, "x": 3}]])
    return epoch.changelog


def test_functions_are_served_while_the_block_runs() -> None:
    """Each server has a free port of its own; `stop` ends one before the end of its block, and may be repeated."""
    with Server([Total, twice]) as one, Server([Total, weighted_avg]) as other:
        assert one.url != other.url
        for url in (one.url, other.url):
            assert sums(url) == [("+I", {"k": 1, "s": 5})]
        one.stop()
        one.stop()
        with pytest.raises(RetryableError):
            list(connect(one.url, deadline_s=1))
        assert sums(other.url) == [("+I", {"k": 1, "s": 5})]
    with pytest.raises(RetryableError):
        list(connect(other.url, deadline_s=1))


def test_an_error_in_the_block_waits_for_no_drain() -> None:
    """The exchange that is open is cut off, and the error of the block is the one that is seen."""
    server = Server([Total], drain_s=3600)

    def fail() -> None:
        with server:
            exchanges.append(connect(server.url).transport.open(Open((Call("total", ("x",)),), COLUMNS)))
            raise ZeroDivisionError

    exchanges: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    exchanges[0].cut()


@pytest.mark.parametrize(
    ("functions", "settings", "message"),
    [
        (Total, {}, "give a list"),
        ("my_functions", {}, "give a list"),
        ([Total], {"prot": 1}, "did you mean port"),
        ([Total], {"port": "x"}, "expected a whole number"),
        ([Total], {"modules": "examples.weighted_avg"}, "into the list of functions"),
        ([Total], {"workers": 2}, "2 workers.*serve"),
        ([3], {}, "3 is not a function"),
        (["no_such_module"], {}, "no_such_module"),
    ],
)
def test_functions_that_cannot_be_served_are_refused(functions: Any, settings: dict[str, Any], message: str) -> None:
    """Bad settings when the server is made, and functions when it begins."""
    with pytest.raises(RejectedError, match=message), Server(functions, **settings):
        pass


def test_there_is_a_url_only_while_it_serves() -> None:
    """Before the block, nobody knows the port."""
    with pytest.raises(RuntimeError, match="`with` statement"):
        assert Server([Total]).url


def test_a_server_serves_once() -> None:
    """A second beginning would leave the first without an end."""
    server = Server([Total])
    with server:
        for begin in (server.__enter__, server.serve):
            with pytest.raises(RuntimeError, match="serves once"):
                begin()
        assert sums(server.url) == [("+I", {"k": 1, "s": 5})]
    with pytest.raises(RuntimeError, match="serves once"):
        server.__enter__()


def test_a_block_announces_its_server_as_the_command_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The ready file and the log have its ports, and standard output has nothing."""
    ready = tmp_path / "ready.json"
    with Server([Total], ready_file=str(ready), log_level="info") as server:
        port = json.loads(ready.read_text())["flight"]
        assert server.url == f"grpc://127.0.0.1:{port}"
    out, err = capsys.readouterr()
    assert f'"flight": {port}' in err
    assert out == ""


def test_a_server_that_cannot_announce_itself_does_not_serve(tmp_path: Path) -> None:
    """Its port is free again."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(OSError), Server([Total], port=port, ready_file=str(tmp_path / "none" / "ready.json")):
        pass
    with Server([Total], port=port) as server:
        assert sums(server.url) == [("+I", {"k": 1, "s": 5})]


def test_a_server_that_was_stopped_before_ends_at_once(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A signal may come before `serve`. Meanwhile Arrow has as many threads as the container has CPUs."""
    counts: list[int] = []
    monkeypatch.setattr(server_module, "usable_cpus", lambda: 3)
    monkeypatch.setattr(server_module, "use_cpus", counts.append)
    server = Server([Total])
    server.stop()
    assert server.serve() == 0
    assert counts == [3]
    assert "total" in json.loads(capsys.readouterr().out)["functions"]
    with pytest.raises(RuntimeError, match="serves once"):
        server.serve()


def test_workers_need_modules() -> None:
    """Their processes load functions by name."""
    with pytest.raises(RejectedError, match="names of their modules"):
        Server([Total], workers=2).serve()


SCRIPT = """
import signal, sys
from foldflight import Server, udf

@udf
def twice(x: int) -> int:
    return 2 * x

server = Server([twice, "examples.weighted_avg"])
signal.signal(signal.SIGTERM, lambda *_: server.stop())
sys.exit(server.serve())
"""


def test_a_script_serves_until_it_is_told_to_stop() -> None:
    """Functions of the script and of a module are served; SIGTERM drains, and the exit code says so."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        ready = json.loads(script.stdout.readline())
        names = list(connect(f"grpc://127.0.0.1:{ready['flight']}", deadline_s=60))
        assert {"twice", "weighted_avg"} <= set(names)
        script.send_signal(signal.SIGTERM)
        assert script.wait(60) == 0
