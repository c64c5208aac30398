"""The build, bounds and processes of a server as metrics, and the CPUs that it may use."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from foldflight.server.ops.metrics import METRICS

BUILD: Mapping[str, str] = {
    "version": version("foldflight"),
    "python": platform.python_version(),
    "arrow": pa.__version__,
}
PARENT = "parent"  # the name of the process that relays connections to workers, if there are several
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerCollector:
    """A prometheus_client collector for the build, bounds and processes of a server.

    Args:
        exchanges_max: Limit of open exchanges, over all processes.
        memory_limit: Memory limit of each process, in bytes; 0: no limit.
        cpus: Number of CPUs that the server may use.
        processes: Returns the name and pid of each process of the server. A pid is None while its process starts.
        workers: Returns the number of worker processes that are ready.
        restarts: Returns the number of restarts of workers.
    """

    exchanges_max: int
    memory_limit: int
    cpus: int
    processes: Callable[[], Mapping[str, int | None]]
    workers: Callable[[], int]
    restarts: Callable[[], int]

    def collect(self) -> Iterator[Family]:
        """Yield the metrics."""
        build = GaugeMetricFamily("foldflight_build_info", _doc("foldflight_build_info"), labels=list(BUILD))
        build.add_metric(list(BUILD.values()), 1)
        yield build
        for name, value in (
            ("foldflight_exchanges_max", self.exchanges_max),
            ("foldflight_memory_limit_bytes", self.memory_limit),
            ("foldflight_cpus", self.cpus),
            ("foldflight_workers", self.workers()),
        ):
            yield GaugeMetricFamily(name, _doc(name), value)
        restarts = "foldflight_worker_restarts_total"
        yield CounterMetricFamily(restarts, _doc(restarts), self.restarts())
        yield from self._of_processes()

    def _of_processes(self) -> Iterator[Family]:
        families: dict[str, Family] = {}
        for worker, pid in self.processes().items():
            if pid is None:
                continue
            for family_of_process in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
                family = families.setdefault(family_of_process.name, family_of_process)
                samples = [(each.name, {"worker": worker}, each.value) for each in family_of_process.samples]
                if family is family_of_process:
                    family.samples = []
                for name, labels, value in samples:
                    family.documentation = _doc(name)
                    family.add_sample(name, labels, value)
        yield from families.values()


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Return the number of CPUs that this process may use, by its CPU affinity and the quota of its container."""
    bound = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def use_cpus(count: int) -> None:
    """Set the number of threads of Arrow. Its default is one for each CPU of the machine, regardless of quotas."""
    pa.set_cpu_count(count)


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota of the container, in CPUs; None without a quota."""
    try:  # cgroup v2
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:  # cgroup v1
        quota_us = int((cgroup / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((cgroup / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if quota_us <= 0 else quota_us / period_us


def _doc(name: str) -> str:
    return METRICS[name].doc
