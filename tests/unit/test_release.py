"""What the version and the bounds of a release say, in each file that says it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import foldflight

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_each_file_has_the_version():
    """These are the package, its metadata, the chart, its images, and the newest section of the changelog."""
    version = foldflight.__version__
    assert PROJECT["version"] == version
    chart = (ROOT / "helm/foldflight/Chart.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^(?:appV|v)ersion: (.*)$", chart, re.MULTILINE) == [version] * 2
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(.*)\]", changelog, re.MULTILINE)[1] == version


def test_the_lowest_versions_are_those_that_are_tested():
    """`make test-lowest` installs the bounds of the dependencies, pandas and msgspec, and the lock has their hashes."""
    folder = ROOT / "tests/spark"
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (folder / "requirements-lowest.in").read_text("utf-8"), re.MULTILINE))
    assert (
        pins.items()
        <= dict(
            re.findall(r"^([\w-]+)==(\S+) ", (folder / "requirements-lowest.txt").read_text("utf-8"), re.MULTILINE)
        ).items()
    )
    bounds = dict(re.findall(r"([\w-]+)>=([\d.]+)", " ".join(PROJECT["dependencies"])))
    for name in ("pandas", "msgspec"):
        (bounds[name],) = set(re.findall(rf"{name}>=([\d.]+)", str(PROJECT["optional-dependencies"])))

    def release(version: str) -> list[int]:
        return [*map(int, version.split(".")), 0, 0][:3]

    assert {name: release(bound) for name, bound in bounds.items()} == {
        name: release(pin) for name, pin in pins.items()
    }
