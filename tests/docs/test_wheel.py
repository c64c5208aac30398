"""The published files work alone, on each Python."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.docs.wheels import ROOT, build, run

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def interpreter(version):
    """Return the program of this version: from pyenv, `make newest` or the PATH; None if the machine has none."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    result = [*sorted(pyenv, reverse=True), *ROOT.glob(f".venv-newest/bin/python{version}")]
    return str(result[0]) if result else shutil.which(f"python{version}")


INTERPRETERS = {version: found for version in PYTHONS if (found := interpreter(version)) is not None}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return build("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from what the sdist contains."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return build("wheel", folder / "dist", source)


@pytest.mark.slow
def test_the_wheel_has_the_package_only(wheel):
    """Each file of the package is in the wheel that is built from the sdist, and no test or example is."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names} == {
        "foldflight",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }
    tracked_files = run("git", "ls-files", "service/foldflight", folder=ROOT).split()
    assert {each.removeprefix("service/") for each in tracked_files} <= names


@pytest.mark.slow
def test_the_bill_of_materials_of_the_wheel_names_its_version_only(wheel):
    """The wheel's bill of materials names its version, and states that nothing else is in it."""
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if "/sboms/" in name)
    bill = json.loads(archive.read(path))
    root = bill["metadata"]["component"]
    assert path == f"{wheel.name.removesuffix('-py3-none-any.whl')}.dist-info/sboms/foldflight.cdx.json"
    assert root["purl"] == "pkg:pypi/" + wheel.name.removesuffix("-py3-none-any.whl").replace("-", "@")
    assert bill["components"] == []
    assert bill["compositions"] == [{"aggregate": "complete", "assemblies": [root["bom-ref"]]}]


@pytest.mark.slow
@pytest.mark.parametrize("version", INTERPRETERS)
def test_a_new_project_passes_its_tests(version, wheel, tmp_path):
    """In an environment with the wheel and its locked dependencies, `init` writes a project that passes its test."""
    run(INTERPRETERS[version], "-m", "venv", tmp_path / "venv")
    python, command = tmp_path / "venv/bin/python", tmp_path / "venv/bin/foldflight"
    tools = re.findall(
        r"^(?:pytest|hypothesis|pluggy|iniconfig|packaging|pygments|sortedcontainers)==\S+",
        (ROOT / "requirements-dev.txt").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(*install, "--require-hashes", "--requirement", ROOT / "requirements.txt")
    run(*install, "--no-deps", wheel, *tools)
    assert run(command, "--version").split()[-1] in wheel.name
    run(command, "init", tmp_path / "orders")
    assert "passed" in run(python, "-m", "pytest", "-q", folder=tmp_path / "orders")
    assert "weighted_avg" in run(command, "functions", "embedded:weighted_avg", folder=tmp_path / "orders")
