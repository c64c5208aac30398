"""Write pylock.toml (PEP 751) from requirements.txt: the file names of the packages whose hashes are locked there.

Usage: python scripts/pylock.py requirements.txt pylock.toml

Each file has a path below `wheels/`, and no address, because the locks name no index. `pip download` fills the folder,
for machines without a network too:

    pip download --require-hashes --requirement requirements.txt --dest wheels
    uv pip sync pylock.toml

Needs packaging, pypi-simple and tomlkit. It asks the index of pip's settings which file has which hash, and fails if
the index has no file for a hash.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tomlkit
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple

FOLDER = "wheels"


def locked_packages(text: str) -> dict[str, tuple[Requirement, set[str]]]:
    """Return the requirement and the SHA-256 hashes of each package in a file that pip-compile has written."""
    packages: dict[str, tuple[Requirement, set[str]]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *options = line.split(" --hash=sha256:")
        if requirement.strip():
            parsed = Requirement(requirement.strip())
            packages[canonicalize_name(parsed.name)] = parsed, {option.strip() for option in options}
    return packages


def lock_package(index: PyPISimple, requirement: Requirement, hashes: set[str]) -> Package:
    """Return the entry of a package: those of its files whose hashes are locked."""
    files = {each.digests.get("sha256"): each for each in index.get_project_page(requirement.name).packages}
    missing = hashes - files.keys()
    if missing:
        sys.exit(f"{requirement}: the index has no file with the hashes {sorted(missing)}. Run `make lock`.")
    names = {digest: files[digest].filename for digest in hashes}
    entries = [
        (name, {"path": f"{FOLDER}/{name}", "size": files[digest].size, "hashes": {"sha256": digest}})
        for digest, name in sorted(names.items(), key=lambda pair: pair[1])
    ]
    sdists = [PackageSdist(**entry) for name, entry in entries if not name.endswith(".whl")]
    (specifier,) = requirement.specifier
    return Package(
        name=canonicalize_name(requirement.name),
        version=Version(specifier.version),
        marker=requirement.marker,
        sdist=sdists[0] if sdists else None,
        wheels=[PackageWheel(**entry) for name, entry in entries if name.endswith(".whl")],
    )


def main(source: str, target: str) -> None:
    """Write the lock file `target` from the requirements in `source`."""
    settings = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    endpoint = (
        subprocess.run(settings, capture_output=True, text=True, check=False).stdout.strip() or PYPI_SIMPLE_ENDPOINT
    )
    with PyPISimple(endpoint) as index:
        packages = [
            lock_package(index, requirement, hashes)
            for _, (requirement, hashes) in sorted(locked_packages(Path(source).read_text(encoding="utf-8")).items())
        ]
    lock = Pylock(
        lock_version=Version("1.0"),
        created_by="foldflight scripts/pylock.py",
        requires_python=SpecifierSet(">=3.11"),
        packages=packages,
    )
    lock.validate()
    Path(target).write_text(tomlkit.dumps(lock.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
