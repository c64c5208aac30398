"""Programs whose requirements conflict with ours. Each has a virtual environment, which is made at its first use."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NotInstalledError", "arrow_udf_server", "beside", "python_with"]

_ARROW_UDF = "arrow-udf==0.3.2"
_FOLDER = Path(__file__).parents[1] / ".cache"


class NotInstalledError(Exception):
    """A program cannot be installed here."""


def python_with(requirement: str) -> Path:
    """Return the Python of an environment in which a requirement is installed.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    environment = _FOLDER / requirement
    python = environment / "bin" / "python"
    if not (environment / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        found = subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", requirement], capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise NotInstalledError(f"{requirement} cannot be installed here: {found.stderr.strip()[-500:]}")
        (environment / "installed").touch()
    return python


def beside(requirements: Path) -> Path:
    """Return a folder of packages that take the place of ours where it comes first on the path.

    Raises:
        NotInstalledError: With the message of the installer.
    """
    folder = _FOLDER / requirements.stem
    if not (folder / "installed").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        found = subprocess.run(
            [*command, "--target", str(folder), "--requirement", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            raise NotInstalledError(f"{requirements} cannot be installed here: {found.stderr.strip()[-500:]}")
        (folder / "installed").touch()
    return folder


@contextlib.contextmanager
def arrow_udf_server() -> Iterator[int]:
    """Run arrow-udf's published server, with the functions of bench/arrow_udf_server.py. Yields its port.

    Raises:
        NotInstalledError: It cannot be installed.
    """
    command = [str(python_with(_ARROW_UDF)), str(Path(__file__).with_name("arrow_udf_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield next(int(line) for line in process.stdout if line.strip().isdigit())
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
