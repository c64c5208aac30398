"""The build hook of hatchling: it compiles `Loops.java` where javac is, and writes the wheel's bill of materials.

`Loops.java` is the loop over chunks for functions in Java. Without javac, or with one older than 17, the wheel is
complete, too: functions in Java are then called row by row.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_JAVA = Path("service") / "foldflight" / "ext" / "java"
_RELEASE = 17


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles the Java sources before files are collected. hatchling finds the class by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's interface
        """Compile, for Java 17 and newer. Raises CalledProcessError if javac refuses the source."""
        if self.target_name == "wheel":
            path = Path(self.root) / "build" / "foldflight.cdx.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(_bill_of_materials(self.metadata.version), encoding="utf-8")
            build_data["sbom_files"].append(str(path.relative_to(self.root)))
        javac = _javac()
        folder = Path(self.root) / _JAVA
        if javac is None:
            if not any(
                (folder / "compiled").rglob("*.class")
            ):  # compiled before, and copied to the place of this build
                print(f"foldflight: there is no javac {_RELEASE}, so functions in Java will be called row by row")
            return
        sources = sorted(map(str, (folder / "src").rglob("*.java")))
        subprocess.run([javac, "--release", str(_RELEASE), "-d", str(folder / "compiled"), *sources], check=True)


def _bill_of_materials(version: str) -> str:
    """Return what the wheel contains, as CycloneDX, for `.dist-info/sboms` (PEP 770).

    The wheel has no code of others, which the composition states: a scanner then need not search for copies. The
    packages that an installation adds are not in the wheel; its metadata names them.
    """
    purl = f"pkg:pypi/foldflight@{version}"
    licence = {"license": {"id": "Apache-2.0", "acknowledgement": "declared"}}
    component = {"type": "library", "bom-ref": purl, "name": "foldflight", "version": version, "purl": purl}
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component | {"licenses": [licence]}},
        "components": [],
        "compositions": [{"aggregate": "complete", "assemblies": [purl]}],
    }
    return json.dumps(bill, indent=2) + "\n"


def _javac() -> str | None:
    """Return the path of a javac that can compile for the release; None if there is none."""
    javac = shutil.which("javac")
    if javac is None:
        return None
    told = subprocess.run([javac, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r"javac (\d+)", told.stdout + told.stderr)  # Java 8 and older: javac 1.8.0
    return javac if version is not None and int(version[1]) >= _RELEASE else None
