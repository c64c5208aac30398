"""The services of the compose file, with a real Envoy and Prometheus, while servers start, stop, hang and crash."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foldflight.client import FlightTransport
from foldflight.functions.query.call import Call
from tests.deploy.kit import COUNT, Fleet, Load, docker
from tests.spark_sessions import JAVA_OPTIONS
from tests.wire.kit import end_epoch, eventually, open_request, rows

pytestmark = [pytest.mark.every_turn, pytest.mark.usefixtures("images")]

SOON_S = 180.0
JAVA = ["--env", f"SPARK_SUBMIT_OPTS={' '.join(JAVA_OPTIONS)}"]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Two servers, the balancer and Prometheus. Each test leaves two ready servers."""
    result = Fleet(f"fleet{os.getpid()}", FOLDFLIGHT_AGE_S_MAX="4")
    try:
        result.up("server", "balancer", "prometheus")
        assert eventually(result.has_prometheus, SOON_S)
        yield result
    finally:
        result.down()


@pytest.fixture(autouse=True)
def two_are_ready(fleet: Fleet) -> None:
    """Start each test with two servers that are ready for the balancer."""
    assert eventually(fleet.are_healthy, SOON_S)
    fleet.up("server", "balancer", "prometheus")
    assert eventually(lambda: fleet.are_balanced(2), SOON_S), fleet.status()


def test_streams_of_one_client_spread_over_all_servers(fleet: Fleet) -> None:
    """The balancer distributes twenty exchanges of one connection evenly."""
    transport = FlightTransport([fleet.url], deadline_s=30)
    with ExitStack() as stack:
        exchanges = [stack.enter_context(transport.open(open_request(COUNT))) for _ in range(20)]
        by_server = Counter(exchange.open_reply.server_id for exchange in exchanges)
        exchanges_of_server = {each["server_id"]: each["exchanges"]["open"] for each in fleet.status()}
    assert len(by_server) == 2
    assert min(by_server.values()) >= 6, by_server
    assert exchanges_of_server == by_server


def test_prometheus_has_what_was_sent(fleet: Fleet) -> None:
    """Prometheus has the rows by function and kind, summed over the servers. Rules and targets are healthy."""
    names = ("sum", "max")
    series = [f'foldflight_rows_folded_total{{function="{name}"}}' for name in names]
    before = [fleet.total(each) for each in series]
    transport = FlightTransport([fleet.url], deadline_s=30)
    for _ in range(6):
        with transport.open(open_request(Call("sum", ("value",)), Call("max", ("value",)))) as exchange:
            exchange.chunk(rows(*((slot, 0, slot) for slot in range(100))))
            exchange.chunk(rows(*((slot, 2, slot) for slot in range(30))))
            end_epoch(exchange, 1)
    assert eventually(
        lambda: [fleet.total(each) - old for each, old in zip(series, before, strict=True)] == [780, 780], SOON_S
    )
    by_kind = {each["metric"]["kind"] for each in fleet.prometheus(f"{series[0]} > 0")}
    assert by_kind == {"+I", "+U"}
    assert eventually(lambda: fleet.total('up{job="foldflight"}') == 2, SOON_S)
    assert eventually(lambda: len(fleet.prometheus("foldflight:rows:rate1m")) == 2, SOON_S)
    assert eventually(lambda: fleet.total("foldflight_exchanges_open") == 0, SOON_S)


def test_the_page_comes_through_the_balancer(fleet: Fleet) -> None:
    """The status page and its data are on one port of the host, metrics and probes are not."""
    base = f"http://127.0.0.1:{fleet.ports['STATUS_PORT']}"
    with urllib.request.urlopen(f"{base}/", timeout=60) as page:
        assert b"<title>foldflight</title>" in page.read()
    with urllib.request.urlopen(f"{base}/status", timeout=60) as status:
        assert status.read().count(b'"server_id"') == 2
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{base}/metrics", timeout=60)


def test_exchanges_go_on_while_servers_come_and_go(fleet: Fleet) -> None:
    """Four servers share old and new exchanges. Two are stopped while they fold, and no row is lost or repeated."""
    with Load(fleet.url, 6) as load:
        assert eventually(load.goes_on, SOON_S)
        fleet.up("server", servers=4)
        assert eventually(lambda: fleet.are_balanced(4), SOON_S)
        assert eventually(lambda: len(load.seen) == 4, SOON_S), load.seen
        with Load(fleet.url, 12) as more:
            assert eventually(lambda: len(more.seen) == 4, SOON_S), more.seen
            fleet.up("server", servers=2)
            assert len(fleet.servers()) == 2
            assert eventually(load.goes_on, SOON_S)
            assert eventually(load.goes_on, SOON_S)
            assert eventually(more.goes_on, SOON_S)
    load.check()
    more.check()


def test_a_rolling_restart_loses_no_row(fleet: Fleet) -> None:
    """Each server drains, ends with exit code 0 and restarts. Exchanges move, and every count is right."""
    with Load(fleet.url, 8) as load:
        assert eventually(load.goes_on, SOON_S)
        for server in fleet.servers():
            docker("stop", "--time", "40", server)
            assert docker("inspect", "--format", "{{.State.ExitCode}}", server) == "0"
            assert eventually(load.goes_on, SOON_S)
            docker("start", server)
            assert eventually(lambda: fleet.are_balanced(2), SOON_S)
            assert eventually(load.goes_on, SOON_S)
    load.check()
    assert all(len(servers) > 1 for servers in load.servers), load.servers


def pause(server: str) -> Callable[[], str]:
    """Pause a server's processes. Return the function that resumes them."""
    docker("pause", server)
    return lambda: docker("unpause", server)


def cut_off(server: str) -> Callable[[], str]:
    """Disconnect a server from the network. Return the function that reconnects it under its name."""
    (network,) = json.loads(docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", server))
    docker("network", "disconnect", network, server)
    return lambda: docker("network", "connect", "--alias", "server", network, server)


def problems(fleet: Fleet) -> str:
    """Return the problems that the status reports for servers that do not answer."""
    return "; ".join(each.get("problem", "") for each in fleet.status())


@pytest.mark.parametrize("harm", [pause, cut_off])
def test_a_silent_server_is_replaced_by_another(fleet: Fleet, harm: Callable[[str], Callable[[], str]]) -> None:
    """A server that hangs or is unreachable gets no new exchanges; its exchanges move after their deadline."""
    silent, _ = fleet.servers()
    with Load(fleet.url, 6, deadline_s=4) as load:
        assert eventually(load.goes_on, SOON_S)
        undo = harm(silent)
        try:
            assert eventually(load.goes_on, SOON_S)
            assert eventually(load.goes_on, SOON_S)
            if harm is pause:  # a server off the network is no longer behind the name either
                assert eventually(lambda: "timed out" in problems(fleet), SOON_S)
            transport = FlightTransport([fleet.url], deadline_s=30)
            with ExitStack() as stack:
                new = [stack.enter_context(transport.open(open_request(COUNT))) for _ in range(8)]
                assert len({exchange.open_reply.server_id for exchange in new}) == 1
        finally:
            undo()
        assert eventually(load.goes_on, SOON_S)
    load.check()


def test_a_killed_server_is_replaced_by_another(fleet: Fleet) -> None:
    """The exchanges of a killed server continue on another one, each row once, and the restarted server is used."""
    killed_server, _ = fleet.servers()
    with Load(fleet.url, 6) as load:
        assert eventually(load.goes_on, SOON_S)
        docker("kill", killed_server)
        assert eventually(load.goes_on, SOON_S)
        assert eventually(load.goes_on, SOON_S)
        docker("start", killed_server)
        assert eventually(lambda: fleet.are_balanced(2), SOON_S)
        assert eventually(load.goes_on, SOON_S)
    load.check()


def test_a_server_that_dies_comes_up_again(fleet: Fleet) -> None:
    """The container engine restarts a server whose process has ended. It compiles nothing again."""
    dead_server, _ = fleet.servers()

    def count_after_use(text: str) -> int:
        transport = FlightTransport([fleet.url], deadline_s=60)
        with ExitStack() as stack:
            use = open_request(Call("weighted_avg", ("value", "weight")))
            exchanges = [stack.enter_context(transport.open(use)) for _ in range(8)]
            for exchange in exchanges:
                exchange.chunk(rows((0, 0, 5)))
                end_epoch(exchange, 1)
        return docker("logs", dead_server, check=False).count(text)

    # The servers share a folder of compiled code: either of them compiles the function, and both load it.
    compiles, loads = '"event": "compiled"', "weighted_avg is compiled, and was loaded from a file"
    assert eventually(lambda: count_after_use(loads) > 0, SOON_S), docker("logs", dead_server, check=False)[-8000:]
    before = docker("inspect", "--format", "{{.State.StartedAt}}", dead_server)
    os.kill(int(docker("inspect", "--format", "{{.State.Pid}}", dead_server)), signal.SIGKILL)
    assert eventually(lambda: docker("inspect", "--format", "{{.State.StartedAt}}", dead_server) != before, SOON_S)
    log = docker("logs", dead_server, check=False)
    assert eventually(lambda: fleet.are_balanced(2), SOON_S)
    assert docker("inspect", "--format", "{{.RestartCount}}", dead_server) == "1"
    assert eventually(lambda: count_after_use(loads) > log.count(loads), SOON_S)
    assert count_after_use(compiles) == log.count(compiles)


def test_a_streaming_query_outlives_every_server(fleet: Fleet, tmp_path: Path) -> None:
    """While a Spark query runs, each server is restarted in turn: no task fails, and no total is wrong."""
    tmp_path.chmod(0o777)
    job = f"{fleet.project}-stream"
    mount = ["--volume", f"{tmp_path}:/told:ro", "--name", job]
    command = ["python", "tests/deploy/stream_job.py", "/told", "grpc://balancer:8815"]
    fleet.compose("run", "--detach", "--no-deps", *JAVA, *mount, "spark", *command)
    try:
        for server in fleet.servers():
            await_epochs(job, 2)
            docker("stop", "--time", "40", server)
            assert docker("inspect", "--format", "{{.State.ExitCode}}", server) == "0"
            await_epochs(job, 2)
            docker("start", server)
            assert eventually(lambda: fleet.are_balanced(2), SOON_S)
        await_epochs(job, 2)
        (tmp_path / "stop").touch()
        assert docker("wait", job) == "0", docker("logs", job, check=False)
        assert "every total is right" in docker("logs", job)
    finally:
        docker("rm", "--force", job)


def await_epochs(job: str, number: int) -> None:
    """Wait until a job has reported this many more epochs."""

    def ended_epochs() -> int:
        assert docker("inspect", "--format", "{{.State.Status}}", job) == "running", docker("logs", job, check=False)
        return docker("logs", job, check=False).count("epoch ")

    before = ended_epochs()
    assert eventually(lambda: ended_epochs() >= before + number, 2 * SOON_S), docker("logs", job, check=False)


def test_a_job_in_a_container_uses_the_fleet(fleet: Fleet) -> None:
    """The Spark job of the compose file folds the flights on the servers; the result equals Spark's."""
    job = f"{fleet.project}-job"
    fleet.compose("run", "--detach", "--no-deps", *JAVA, "--name", job, "spark")

    def read_log() -> str:
        output = docker("logs", job, check=False)
        assert docker("inspect", "--format", "{{.State.Status}}", job) == "running", output
        return output

    try:
        # Then the job goes on with streams in its own workers, as `make demo` does.
        assert eventually(lambda: "every value of" in read_log(), 5 * SOON_S), read_log()
        assert "folding at grpc://balancer:8815" in read_log()
        assert "every value of 36 groups equals Spark SQL's, embedded and remote" in read_log()
    finally:
        docker("rm", "--force", job)
