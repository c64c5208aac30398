"""Jars from Maven, by files that lock them, without anything they depend on.

Their lines are `group:artifact:version sha256` or `group:artifact:version:classifier sha256`.

    python -m tests.maven FILE    # writes the hashes again, after a change of versions

Maven's own client fetches them, so its settings say from where.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["MISSING", "client", "jars"]

MISSING = "Maven is not installed: apt-get install maven"
CACHE = Path(__file__).parents[1] / ".cache" / "jars"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_FETCH_S = 1800


def client() -> str | None:
    """Return Maven's program, or None if there is none."""
    return shutil.which("mvn")


def jars(lock: Path) -> list[Path]:
    """Return the jars that a file locks. They are fetched once for each lock."""
    folder = CACHE / f"{lock.stem}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as work:
            jar_folder = Path(work) / "jars"
            fetch([name for name, _ in locked_jars(lock)], jar_folder)
            for name, digest in locked_jars(lock):
                result = _digest(_path(jar_folder, name))
                assert result == digest, f"{lock.name}: {name} has the SHA-256 {result}, not {digest}"
            jar_folder.rename(folder)
    return [_path(folder, name) for name, _ in locked_jars(lock)]


def locked_jars(lock: Path) -> list[tuple[str, str]]:
    """Return the coordinates and the hash of each jar."""
    lines = [line.split() for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    return [(name, digest) for name, digest in lines]


def fetch(names: list[str], folder: Path) -> None:
    """Let Maven copy jars into a folder."""
    client_ = client()
    assert client_ is not None, MISSING
    with tempfile.TemporaryDirectory() as project:
        (Path(project) / "pom.xml").write_text(_project(names))
        command = [client_, "--batch-mode", "--quiet", _COPY, f"-DoutputDirectory={folder}"]
        process = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=_FETCH_S)
    assert process.returncode == 0, f"{process.stdout[-4000:]}{process.stderr[-2000:]}"


def _project(names: list[str]) -> str:
    """Return a project that depends on jars, and on none that these depend on."""
    tags = ("groupId", "artifactId", "version", "classifier")
    result = []
    for name in names:
        parts = zip(tags, name.split(":"), strict=False)
        coordinates = "".join(f"<{tag}>{escape(part)}</{tag}>" for tag, part in parts)
        nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
        result.append(f"<dependency>{coordinates}{nothing}</dependency>")
    head = (
        "<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId><version>1</version>"
    )
    packaging = "<packaging>pom</packaging>"
    return f"<project>{head}{packaging}<dependencies>{''.join(result)}</dependencies></project>"


def _path(folder: Path, name: str) -> Path:
    return folder / f"{'-'.join(name.split(':')[1:])}.jar"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(lock: Path) -> None:
    """Write the hashes of the jars that a file names into it."""
    lines = lock.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    names = [line.split()[0] for line in lines if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory() as work:
        fetch(names, Path(work))
        lock_lines = [f"{name} {_digest(_path(Path(work), name))}" for name in names]
    lock.write_text("\n".join([*comments, *lock_lines, ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
