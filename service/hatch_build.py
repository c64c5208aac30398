"""The build hook of hatchling: compile `Loops.java`, the loop over chunks for functions in Java, where javac is.

Without javac the wheel is complete, too: functions in Java are then called row by row.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_JAVA = Path("service") / "foldflight" / "java"


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles the Java sources before files are collected. hatchling finds the class by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        """Compile, for Java 17 and newer. Raises CalledProcessError if javac refuses the source."""
        javac = shutil.which("javac")
        folder = Path(self.root) / _JAVA
        if javac is None:
            if not any(
                (folder / "compiled").rglob("*.class")
            ):  # compiled before, and copied to the place of this build
                print("foldflight: there is no javac, so functions in Java will be called row by row")
            return
        sources = sorted(map(str, (folder / "src").rglob("*.java")))
        subprocess.run([javac, "--release", "17", "-d", str(folder / "compiled"), *sources], check=True)
