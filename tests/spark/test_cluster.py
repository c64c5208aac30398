"""A real cluster: the blocks of docs/how-to/run-on-a-spark-cluster.md, executed, while machines are lost and added.

The master, the workers, the executors and the servers are processes on the loopback, and the checkpoint is on the disk
that they share. Each worker has a work folder of its own, and the executors see only the environment that the guide
packs. What this cannot show: machines whose Python or architecture differs, and a network that loses or delays
messages.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.ports import free_port
from tests.spark.test_kill import ROOT, result
from tests.spark.test_stream import SCHEMA, Model
from tests.wire.kit import eventually

GUIDE = ROOT / "docs/how-to/run-on-a-spark-cluster.md"
WORKERS = 3
SEED = 20131231
# How long anything may take on a busy machine.
PATIENCE_S = 240.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.ui.enabled=false"
# Small executors, and tasks that are repeated elsewhere as soon as they are slower than the others.
SMALL = f"""
spark.executor.cores                   1
spark.executor.memory                  512m
spark.executor.extraJavaOptions        -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.driver.host                      127.0.0.1
spark.dynamicAllocation.maxExecutors   {WORKERS}
spark.speculation.multiplier           1.2
spark.speculation.quantile             0.5
spark.sql.shuffle.partitions           3
spark.ui.showConsoleProgress           false
"""


def block_with(words: str) -> str:
    """Return the block of the guide that contains some words."""
    blocks = re.findall(r"^```text\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (result,) = [each for each in blocks if words in each]
    return str(result)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of all processes of the cluster. Of the repository it names only Spark and Python."""
    import pyspark

    home = Path(pyspark.__file__).parent
    kept_variables = {name: os.environ[name] for name in ("HOME", "LANG", "JAVA_HOME") if name in os.environ}
    return {
        **kept_variables,
        "PATH": os.pathsep.join([str(home / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_SUBMIT_OPTS": QUICK_JAVA,
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the guide's commands have packed an environment, with the locked versions of its packages."""
    folder = tmp_path_factory.mktemp("packed")
    clone = folder / "clone"
    clone.mkdir()
    shutil.copytree(ROOT / "service", clone / "service", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, clone)
    shutil.copy(ROOT / "tests/spark/cluster_job.py", clone / "job.py")
    shutil.copy(ROOT / "tests/spark/spark_functions.py", clone)
    lock_text = "".join((ROOT / f"requirements-{each}.txt").read_text() for each in ("build", "spark"))
    versions = sorted({*re.findall(r"^[\w.-]+==[^\s;]+", lock_text, re.MULTILINE), "venv-pack==0.2.0"})
    (folder / "locked.txt").write_text("\n".join(versions))
    subprocess.run(
        ["bash", "-ec", block_with("venv-pack")],
        cwd=clone,
        env=environment(folder)
        | {"PIP_CONSTRAINT": str(folder / "locked.txt"), "PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        check=True,
        timeout=PATIENCE_S * 2,
    )
    return clone


class Cluster:
    """A master and its workers, and the folder of a job that runs on them.

    Args:
        folder: Gets the work folders, the configuration and the files of the job.
        archive: Where the guide has packed an environment.
    """

    def __init__(self, folder: Path, archive: Path) -> None:
        self.folder = folder
        self.packed = archive
        self.environment = environment(folder)
        self.workers: list[subprocess.Popen[bytes]] = []
        self.rows = Model(seed=SEED, retracts=True)
        self.job: subprocess.Popen[bytes] | None = None
        self._epochs = 0
        self._started = 0
        self._port, self._page = free_port(), free_port()
        for name in ("conf", "job", "job/input", "job/output", "job/batches", "logs"):
            (folder / name).mkdir()
        settings = f"spark.master spark://127.0.0.1:{self._port}\n{block_with('spark.speculation')}{SMALL}"
        (folder / "conf" / "spark-defaults.conf").write_text(settings)
        self._master_command, self._worker_command = block_with("spark-class").splitlines()
        self.master = self._run(self._master_command)

    def await_master(self) -> None:
        """Wait until the master answers."""
        self.wait(lambda: self._state() is not None)

    def add_worker(self) -> None:
        """Start a worker with a work folder of its own."""
        self.workers.append(self._run(self._worker_command.replace("WORK", str(self.folder / f"work-{self._started}"))))

    def await_workers(self, count: int, state: str = "ALIVE") -> None:
        """Wait until the master knows so many workers in a state."""
        self.wait(lambda: sum(each["state"] == state for each in (self._state() or {}).get("workers", ())) == count)

    def submit(self, url: str | None) -> None:
        """Start the job as the guide says."""
        command = f"{block_with('--archives').strip()} {shlex.quote(str(self.folder / 'job'))} {url or ''}"
        self.job = self._run(command, cwd=self.packed)

    def executors(self) -> list[int]:
        """Return the processes of the executors."""
        return [
            each for worker in self.workers for each in children(worker.pid) if b"ExecutorBackend" in words_of(each)
        ]

    def write_epoch(self) -> None:
        """Write the rows of another epoch."""
        self._epochs += 1
        path = self.folder / "job" / f"{self._epochs:04}.parquet"
        pq.write_table(pa.Table.from_pylist(self.rows.epoch(15), schema=SCHEMA), path)
        os.utime(path, (self._epochs, self._epochs))
        path.rename(self.folder / "job/input" / path.name)

    def harm(self, harm: Callable[[], None]) -> None:
        """Do something during an epoch, while batches run; wait until the epoch and a batch have ended."""
        for _ in range(2):
            self.write_epoch()
        self.wait(lambda: self.outputs() >= self._epochs - 1)
        harm()
        batches = self.batches()
        self.wait(lambda: self.outputs() == self._epochs and self.batches() > batches)

    def outputs(self) -> int:
        return len(list((self.folder / "job/output").glob("*.json")))

    def batches(self) -> int:
        return len(list((self.folder / "job/batches").glob("*.json")))

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; fail with the job's log if the job ends before."""
        assert eventually(lambda: self._has_ended() or condition(), timeout_s=PATIENCE_S), self.log()
        assert not self._has_ended(), self.log()

    def finish(self) -> None:
        """Let the job end, and compare all that it has written."""
        assert self.job is not None
        (self.folder / "job/end").touch()
        assert self.job.wait(PATIENCE_S) == 0, self.log()
        assert result(self.folder / "job") == self.rows.table()
        for path in (self.folder / "job/batches").glob("*.json"):
            assert json.loads(path.read_text()) == expected_batch()
        for python, package in json.loads((self.folder / "job/places.json").read_text()):
            assert python.startswith(f"{self.folder}/work-")
            assert package.startswith(f"{self.folder}/work-")

    def kill_driver(self) -> None:
        assert self.job is not None
        os.killpg(self.job.pid, signal.SIGKILL)
        self.job.wait()

    def end(self) -> None:
        """End all processes, executors included."""
        for each in (*self.executors(), *(each.pid for each in self.workers)):
            kill(each)
        for process in (*self.workers, self.master, *([self.job] if self.job is not None else [])):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def log(self) -> str:
        """Return the end of the newest log of the job."""
        paths = sorted((self.folder / "logs").glob("*spark-submit*"), key=lambda path: path.stat().st_mtime)
        return paths[-1].read_text()[-8000:] if paths else "there is no log of the job"

    def _has_ended(self) -> bool:
        return self.job is not None and self.job.poll() is not None

    def _state(self) -> Any:
        """Return what the master's page says; None if there is none yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=10) as answer:
                # A master that starts answers every path with its page until the path of JSON is attached.
                return json.load(answer) if answer.headers.get_content_subtype() == "json" else None
        except OSError:
            return None

    def _run(self, command: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a command of the guide in a process group of its own."""
        self._started += 1
        command = (
            command.replace("MASTER", "127.0.0.1").replace("7077", str(self._port)).replace("8080", str(self._page))
        )
        name = re.sub(r"\W+", "-", command.partition("spark-")[2])[:50]
        with (self.folder / "logs" / f"{self._started}-spark-{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", f"exec env {command}"],
                cwd=cwd or self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def expected_batch() -> list[list[int]]:
    """Return the rows of a batch, computed by Python."""
    groups: dict[int, list[int]] = {}
    for number in range(60_000):
        groups.setdefault(number % 500, []).append(number % 97)
    return [[k, len(v), sum(v), len(set(v)), sum(v) // len(v)] for k, v in sorted(groups.items())]


def words_of(pid: int) -> bytes:
    """Return the command line of a process; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    result = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            result += [int(each) for each in task.read_text().split()]
        except OSError:  # this thread, or the process, has ended
            continue
    return result


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster(tmp_path: Path, archive: Path) -> Iterator[Cluster]:
    """A master and three workers."""
    cluster = Cluster(tmp_path, archive)
    try:
        cluster.await_master()
        for _ in range(WORKERS):
            cluster.add_worker()
        cluster.await_workers(WORKERS)
        yield cluster
    finally:
        cluster.end()


class Harms:
    """What happens to the machines of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._chance = random.Random(SEED)

    def kill_executor(self) -> None:
        kill(self._one_of(self._cluster.executors))

    def kill_python(self) -> None:
        """Kill the Python process of an executor, from which its workers come."""
        kill(
            self._one_of(
                lambda: [
                    each
                    for executor in self._cluster.executors()
                    for each in children(executor)
                    if b"pyspark" in words_of(each)
                ]
            )
        )

    def kill_worker(self) -> None:
        """Kill a worker, whose executor ends with it, and add another."""
        self._one_of(self._busy_workers).kill()
        self._cluster.add_worker()

    def decommission_worker(self) -> None:
        """Decommission a worker that has an executor, and add another."""
        self._one_of(self._busy_workers).send_signal(signal.SIGPWR)
        self._cluster.await_workers(1, "DECOMMISSIONED")
        self._cluster.add_worker()

    def _busy_workers(self) -> list[subprocess.Popen[bytes]]:
        executors = {*self._cluster.executors()}
        return [each for each in self._cluster.workers if executors.intersection(children(each.pid))]

    def _one_of(self, actual: Callable[[], list[Any]]) -> Any:
        """Return one of the objects found, as soon as there is any."""
        candidates: list[Any] = []

        def are_there() -> bool:
            candidates[:] = actual()
            return bool(candidates)

        self._cluster.wait(are_there)
        return self._chance.choice(candidates)


class Fleet:
    """Two servers with the functions of the job, in the environment that the guide packs.

    Args:
        folder: Gets their logs.
        archive: Where the environment and the module with the functions are.
    """

    def __init__(self, folder: Path, archive: Path) -> None:
        self._folder = folder
        self._packed = archive
        self._ports = [free_port(), free_port()]
        self._starts = 0
        self.url = ",".join(f"grpc://127.0.0.1:{port}" for port in self._ports)
        self._servers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for port in self._ports:
            self._servers.append(self._served_at(port))

    def kill(self) -> None:
        """Kill the first server, and start another in its place."""
        self._servers[0].kill()
        self._restart(0)

    def drain(self) -> None:
        """Drain the second server, and start another in its place when it has ended."""
        self._servers[1].terminate()
        self._restart(1)

    def end(self) -> None:
        for each in self._servers:
            each.kill()
            each.wait()

    def _restart(self, place: int) -> None:
        self._servers[place].wait(PATIENCE_S)
        self._servers[place] = self._served_at(self._ports[place])

    def _served_at(self, port: int) -> subprocess.Popen[bytes]:
        """Start a server, and wait until it is ready."""
        self._starts += 1
        ready = self._folder / f"ready-{self._starts}"
        ports = ("--port", str(port), "--health-port", "off", "--http-port", "off", "--ready-file", str(ready))
        with (self._folder / "logs" / f"server-{self._starts}.log").open("wb") as log:
            server = subprocess.Popen(
                ["environment/bin/foldflight", "serve", "spark_functions", *ports, "--drain-s", "5"],
                cwd=self._packed,
                env=environment(self._folder) | {"FOLDFLIGHT_STATE_KEYS": "a key of the fleet of this test"},
                stdout=log,
                stderr=log,
            )
        assert eventually(lambda: ready.exists() or server.poll() is not None, timeout_s=PATIENCE_S)
        assert server.poll() is None, Path(log.name).read_text()
        return server


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    """Two servers."""
    fleet = Fleet(cluster.folder, cluster.packed)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.end()


def restart_driver(cluster: Cluster, url: str | None) -> None:
    """Kill the driver during an epoch, and start the job again with the same checkpoint."""
    cluster.write_epoch()
    cluster.kill_driver()
    cluster.submit(url)


@pytest.mark.slow
def test_machines_are_lost_and_added(cluster: Cluster, fleet: Fleet) -> None:
    """Whatever is killed, decommissioned, drained and added, no row of the stream or of a batch is wrong.

    Executors fold until the driver is killed. The job that takes its place has the same checkpoint, and servers fold.
    That one is killed and started again, too.
    """
    harms = Harms(cluster)
    cluster.submit(None)
    for harm in (harms.kill_executor, harms.decommission_worker, harms.kill_python, harms.kill_worker):
        cluster.harm(harm)
    restart_driver(cluster, fleet.url)
    for harm in (fleet.kill, harms.kill_executor, fleet.drain):
        cluster.harm(harm)
    restart_driver(cluster, fleet.url)
    cluster.harm(harms.kill_worker)
    cluster.finish()
