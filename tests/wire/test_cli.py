"""`foldflight serve` and `foldflight functions` as processes: ports and signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from foldflight import connect
from foldflight.cli import demo
from tests.wire.kit import PATIENCE_S

MODULE = "tests.wire.limit_functions"


@pytest.fixture
def foldflight():
    """Start commands. Those that still run are ended with the test."""
    processes = []

    def start(*arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOLDFLIGHT_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "foldflight.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **variables},
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def serve(foldflight, *arguments, **variables):
    """Start a server on a free port and return it with its URL."""
    variables = {"FOLDFLIGHT_STATE_KEYS": "a key for the tests only", **variables}
    ports = ["--port", "0", "--health-port", "off", "--http-port", "off"]
    process = foldflight("serve", MODULE, *ports, *arguments, **variables)
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, f"grpc://127.0.0.1:{json.loads(line)['flight']}"


@pytest.mark.every_turn
def test_functions_lists_what_a_server_serves(foldflight):
    """`functions` lists the same for a server as for its modules."""
    _, url = serve(foldflight)
    output, errors = foldflight("functions", url, "--json").communicate(timeout=PATIENCE_S)
    assert {each["name"]: each["signature"] for each in json.loads(output)} == {
        info.name: info.signature for info in connect(f"embedded:{MODULE}").infos()
    }, errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_the_exit_code_says_so(foldflight, number):
    """SIGTERM and Ctrl-C end an idle server at once, with exit code 0."""
    process, _ = serve(foldflight)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    assert "drained" in errors


@pytest.mark.every_turn
def test_settings_come_from_the_environment_and_a_flag_wins(foldflight):
    """The command line reads FOLDFLIGHT_*, and flags take precedence."""
    process, _ = serve(
        foldflight, "--server-id", "by-flag", FOLDFLIGHT_SERVER_ID="by-variable", FOLDFLIGHT_LOG_LEVEL="info"
    )
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert '"by-flag"' in errors
    assert "by-variable" not in errors


@pytest.mark.every_turn
def test_taken_port_is_a_clear_error(foldflight):
    """The second server on a port reports the port, the flag and how to find a free one."""
    with socket.socket() as other_socket:
        other_socket.bind(("127.0.0.1", 0))
        other_socket.listen()
        port = other_socket.getsockname()[1]
        process = foldflight("serve", "examples.weighted_avg", "--port", str(port))
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert f"port {port}" in errors
    assert "--port" in errors
    assert "Traceback" not in errors


@pytest.mark.every_turn
def test_unreachable_server_is_a_clear_error(foldflight):
    """For a port without a server, `functions` prints URL, code and what to wait for, without a traceback."""
    process = foldflight("functions", "grpc://127.0.0.1:1", "--deadline-s", "5")
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "UNREACHABLE" in errors
    assert "grpc://127.0.0.1:1" in errors
    assert "/readyz" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_the_demos_server_ends_with_the_demo(tmp_path):
    """The process has ended after the block, also after an error."""
    with contextlib.suppress(KeyboardInterrupt), demo.server_process(tmp_path / "log") as url:
        assert "weighted_avg" in connect(url)
        raise KeyboardInterrupt
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5)


def test_the_demo_says_why_its_server_did_not_start(tmp_path):
    """The log of a server that did not start is part of the error."""
    wrong = ("--tls-cert-file", "certificate.pem")
    with (
        pytest.raises(demo.RejectedError, match="set both"),
        demo.server_process(tmp_path / "log", *wrong),
    ):
        pass
