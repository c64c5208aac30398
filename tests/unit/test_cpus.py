"""The number of CPUs that a server may use."""

from __future__ import annotations

import os

import pytest

from foldflight.server.run.settings import usable_cpus


@pytest.mark.parametrize(
    ("limit", "cpus"), [("50000 100000", 1), ("100000 100000", 1), ("99900000 100000", None), ("max 100000", None)]
)
def test_a_containers_quota_bounds_the_cpus(tmp_path, limit, cpus):
    """Half a CPU is one thread; a quota beyond the machine, or no quota, is the number of its CPUs."""
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cpus(tmp_path) == (cpus or len(os.sched_getaffinity(0)))


def test_the_older_control_groups_are_read_too(tmp_path):
    """In version 1, -1 means no quota."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for quota, cpus in (("100000", 1), ("-1", len(os.sched_getaffinity(0)))):
        (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
        assert usable_cpus(tmp_path) == cpus


def test_a_machine_without_control_groups_has_all_its_cpus(tmp_path):
    """Without the files of control groups there is no limit."""
    assert usable_cpus(tmp_path) == len(os.sched_getaffinity(0))
