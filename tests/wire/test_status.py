"""The status of a fleet: one server, the peers behind a name, the JSON of the page, the command."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foldflight.cli.main import cli
from foldflight.client import FlightTransport, OpenExchange
from foldflight.errors import FunctionError, RejectedError, RetryableError
from foldflight.ext.compiler import Programs
from foldflight.fold.mode import Folding
from foldflight.functions.author.spec import Function
from foldflight.functions.query.call import Call
from foldflight.server.run.lifecycle import ProcessServer, serving
from tests.wire import wire_functions
from tests.wire.kit import (
    DEADLINE_S,
    STATE_KEY,
    ServerProcess,
    end_epoch,
    eventually,
    open_request,
    rows,
)
from tests.wire.test_probes import page

COUNT = Call("count")
Fork = Callable[..., ServerProcess]


def read(url: str, **more: Any) -> list[dict[str, Any]]:
    """Return the servers of one status."""
    servers: list[dict[str, Any]] = FlightTransport([url], deadline_s=DEADLINE_S, **more).status()["servers"]
    return servers


def status_of(*server_ids: str, read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a status in which these servers answer: on a busy machine one may need longer than a status waits."""
    result: list[dict[str, Any]] = []

    def do_they_answer() -> bool:
        result[:] = read()
        return {each["server_id"] for each in result if "problem" not in each} == {*server_ids}

    assert eventually(do_they_answer), result
    return result


def fold_rows(exchange: OpenExchange, number: int) -> None:
    """Fold rows of one group each and end epoch 1."""
    exchange.chunk(rows(*((slot, 0) for slot in range(number))))
    end_epoch(exchange, 1)


def test_a_server_says_what_it_does() -> None:
    """Open exchanges, rows, groups, errors, functions and state, before, during and after an exchange and a drain."""
    began_s = time.monotonic()
    with serving(wire_functions, state_keys=STATE_KEY, server_id="one", exchanges_max=7, drain_s=0) as server:
        with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange:
            fold_rows(exchange, 3)
            assert eventually(lambda: read(server.url)[0]["groups"] == 3)
            (during,) = read(server.url)
        assert eventually(lambda: read(server.url)[0]["exchanges"]["open"] == 0)
        server.drain()
        (after,) = read(server.url)
    assert 0 <= during["up_s"] <= after["up_s"] <= round(time.monotonic() - began_s, 1)
    assert during["server_id"] == "one"
    assert during["state"] == "ready"
    assert during["rows"] == after["rows"] == 3
    assert during["exchanges"] == {"open": 1, "max": 7, "opened": 1, "ended": {}, "refused": {}}
    assert during["functions"]["count"] == "1"
    assert during["state_bytes"] > 0
    assert after["state"] == "draining"
    assert after["exchanges"]["ended"] == {"done": 1}
    assert after["groups"] == after["state_bytes"] == 0


def test_a_server_says_what_may_become_a_problem() -> None:
    """The status has memory with its limit, how each function is folded, and errors by function."""
    failing_call = Call("fails_to_accumulate", ("value",))
    with serving(wire_functions, state_keys=STATE_KEY, memory_limit="64GiB") as server:
        transport = FlightTransport([server.url], deadline_s=DEADLINE_S)
        for _ in range(2):
            with contextlib.suppress(FunctionError), transport.open(open_request(failing_call)) as exchange:
                exchange.chunk(rows((0, 0, 13)))
                end_epoch(exchange, 1)
        with transport.open(open_request(failing_call, isolate_errors=True)) as exchange:
            exchange.chunk(rows((0, 0, 13), (1, 0, 13), (2, 0, 1)))
            end_epoch(exchange, 1)
            assert eventually(lambda: read(server.url)[0]["groups_isolated"] == {"fails_to_accumulate": 2})
        (result,) = read(server.url)
    assert result["function_errors"] == {"fails_to_accumulate": {"USER_CODE": 2}}
    assert result["memory"]["limit_bytes"] == 64 * 2**30
    assert 2**20 < result["memory"]["largest_bytes"] == result["memory"]["bytes"] < 64 * 2**30
    assert set(result["folded"]) == set(result["functions"])
    assert result["folded"]["sum"] == "vectorised"
    assert result["folded"]["pickled"].startswith("interpreted: its states are not typed")


def test_one_server_shows_all_that_a_name_resolves_to() -> None:
    """The status of each server, over Flight or HTTP, has every peer once, also those that do not answer."""
    with socket.socket() as nobody, socket.socket() as silent:
        for each in (nobody, silent):
            each.bind(("127.0.0.1", 0))
        silent.listen()  # takes connections and never answers, as a server that hangs
        with serving(wire_functions, state_keys=STATE_KEY, server_id="b", http_port=0) as other:
            closed_address, hung = (f"127.0.0.1:{each.getsockname()[1]}" for each in (nobody, silent))
            peers = (f"localhost:{other.probes.http_port}", closed_address, hung, "no-such-host.invalid:1")
            with serving(wire_functions, state_keys=STATE_KEY, server_id="a", http_port=0, peers=peers) as server:
                over_flight = status_of("a", "b", read=lambda: read(server.url))
                over_http = status_of(
                    "a", "b", read=lambda: json.loads(page(server.probes.http_port, "/status")[1])["servers"]
                )
    for servers in (over_flight, over_http):
        problems = {each["address"]: each["problem"] for each in servers if "problem" in each}
        assert set(problems) == {closed_address, hung, "no-such-host.invalid:1"}
        assert "refused" in problems[closed_address]
        assert "timed out" in problems[hung]
        assert "cannot resolve" in problems["no-such-host.invalid:1"]


def test_a_peer_that_drips_is_given_up() -> None:
    """The deadline is for the whole answer of a peer, not for each of its bytes."""

    def drip(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            for byte in b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}":
                connection.sendall(bytes([byte]))
                time.sleep(0.2)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        threads.submit(drip, listener)
        peer = f"127.0.0.1:{listener.getsockname()[1]}"
        with serving(wire_functions, state_keys=STATE_KEY, peers=(peer,)) as server:
            result = server.probes.status.fleet()["servers"]
    assert {"address": peer, "problem": "timed out"} in result


def test_workers_are_one_server(fork: Fork) -> None:
    """With workers, the status over Flight is their sum, under the parent's name."""
    server = fork(modules="tests.wire.limit_functions", workers=2, server_id="parent")
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange:
        fold_rows(exchange, 5)
        assert eventually(lambda: read(server.url)[0]["rows"] == 5)
        (result,) = read(server.url)
    assert result["server_id"] == "parent"
    assert result["workers"] == 2
    assert result["exchanges"]["open"] == 1
    assert result["exchanges"]["max"] == 128
    # The relay's memory is not bounded by what those that fold may have.
    assert result["memory"]["largest_bytes"] < result["memory"]["bytes"] < 2 * result["memory"]["largest_bytes"] + 1


def test_functions_are_looked_over_before_a_server_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait only two seconds for a status, and checking a function may import the compiler first."""
    looked_over: list[str] = []
    look_over = Programs.folding

    def note(self: Programs, function: Function) -> Folding:
        looked_over.append(function.name)
        return look_over(self, function)

    monkeypatch.setattr(Programs, "folding", note)
    with serving(wire_functions, state_keys=STATE_KEY) as server:
        assert set(looked_over) == set(server.ready_line["functions"])


def test_a_token_sees_its_functions_only(tmp_path: Any) -> None:
    """The status needs a token if calls do, and lists only its functions."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a token of sixteen\n".replace(" ", "-") + "another-token-of-sixteen count,su*\n")
    with serving(wire_functions, state_keys=STATE_KEY, tokens_file=str(tokens)) as server:
        with pytest.raises(RejectedError, match="token"):
            read(server.url)
        some = read(server.url, token="another-token-of-sixteen")[0]
        assert set(some["functions"]) == set(some["folded"]) == {"count", "sum"}
        assert len(read(server.url, token="a-token-of-sixteen")[0]["functions"]) > 10


def test_other_actions_are_refused() -> None:
    """An unknown action is an error of the taxonomy."""
    import pyarrow.flight as fl

    with serving(wire_functions, state_keys=STATE_KEY) as server, fl.FlightClient(server.url) as client:
        assert [action.type for action in client.list_actions()] == ["status", "register", "protocol_version"]
        with pytest.raises(fl.FlightError, match="BAD_FRAME"):
            list(client.do_action(fl.Action("shutdown", b"")))


def test_a_name_without_servers_is_unreachable() -> None:
    """A port without a server is an error with the URL."""
    with pytest.raises(RetryableError, match=r"grpc://127\.0\.0\.1:1 "):
        read("grpc://127.0.0.1:1")


def foldflight(*arguments: str) -> Result:
    """Run a command of the command line."""
    return CliRunner(env={"COLUMNS": "100"}).invoke(cli, arguments)


@pytest.fixture(scope="module")
def two_servers() -> Any:
    """Two servers that have each other as peers."""
    with (
        serving(wire_functions, state_keys=STATE_KEY, server_id="left", http_port=0) as left,
        serving(
            wire_functions, state_keys=STATE_KEY, server_id="right", peers=(f"127.0.0.1:{left.probes.http_port}",)
        ) as right,
    ):
        yield left, right


def test_the_command_shows_servers_functions_and_versions(two_servers: tuple[ProcessServer, ProcessServer]) -> None:
    """Several URLs show each server once, and equal versions once."""
    run = foldflight("status", *(server.url for server in two_servers))
    assert run.exit_code == 0, run.stderr
    assert run.stdout.count("left") == run.stdout.count("right") == 1
    assert run.stdout.count("ready") == 2
    assert "functions, the same everywhere" in run.stdout
    assert "differs" not in run.stdout


def test_the_command_takes_urls_as_connect_does(two_servers: tuple[ProcessServer, ProcessServer]) -> None:
    """Servers may be separated by commas; an invalid URL is an error of one line."""
    run = foldflight("status", ", ".join(server.url for server in two_servers), "--json")
    assert run.exit_code == 0, run.stderr
    assert [each["server_id"] for each in json.loads(run.stdout)] == ["left", "right"]
    for wrong in ("grpc://a:b", "grpc://a:1,b:2", "http://a:1", ",", "grpc://[::1"):
        result = foldflight("status", wrong)
        assert result.exit_code == 1
        assert result.stderr.startswith("foldflight: SIGNATURE: ")
        assert isinstance(result.exception, SystemExit)  # any other would be shown as a traceback


def test_the_command_says_which_url_does_not_answer(two_servers: tuple[ProcessServer, ProcessServer]) -> None:
    """A URL without a server is a line of the table and exit code 1; the others are shown."""
    run = foldflight("status", two_servers[1].url, "grpc://127.0.0.1:1", "--json")
    assert run.exit_code == 1
    servers = json.loads(run.stdout)
    assert [each.get("server_id") for each in servers if "problem" not in each] == ["left", "right"]
    assert [each["address"] for each in servers if "problem" in each] == ["grpc://127.0.0.1:1"]
    assert all(each["rows_per_s"] == 0 for each in servers if "problem" not in each)
