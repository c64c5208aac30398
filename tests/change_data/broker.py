"""A private broker of Kafka on the loopback: one node, which is its own controller (KRaft)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foldflight.spark.java import java_home
from tests.maven import jars
from tests.ports import free_port
from tests.private_server import private_server

HERE = Path(__file__).parent
_MEMORY = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def private_broker() -> Iterator[str]:
    """Run a broker while the block runs, and yield its address."""
    folder = Path(tempfile.mkdtemp(prefix="foldflight-kafka-"))
    java = [str(java_home(os.environ) / "bin" / "java"), *_MEMORY]
    java += ["-cp", os.pathsep.join(map(str, jars(HERE / "jars-broker.txt")))]
    settings = folder / "server.properties"
    try:
        address, controller = (f"127.0.0.1:{free_port()}" for _ in range(2))
        settings.write_text(_settings(address, controller, folder / "data"))
        cluster = ("--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ", "--config", str(settings))
        process = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", *cluster],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        command = [*java, "kafka.Kafka", str(settings)]
        with private_server(command, folder, lambda: _listens(address), timeout_s=120):
            yield address
    finally:
        shutil.rmtree(folder)


def _settings(address: str, controller: str, data: Path) -> str:
    one = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")
    one += ("transaction.state.log.min.isr", "offsets.topic.num.partitions", "transaction.state.log.num.partitions")
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data,
        "log.cleaner.backoff.ms": 100,
        "group.initial.rebalance.delay.ms": 0,
        **dict.fromkeys(one, 1),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _listens(address: str) -> bool:
    import socket

    host, _, port = address.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0
