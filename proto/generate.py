"""Generate the Python of the wire contract: `python proto/generate.py`, which `make proto` runs.

The generated module and its types are checked in, so that nobody needs a protobuf compiler to install foldflight; CI
generates them again and fails if they differ.
"""

import pathlib
import shutil
import sys
import tempfile

from grpc_tools import protoc

HERE = pathlib.Path(__file__).parent
SOURCE = "foldflight/v1/exchange.proto"
TARGET = HERE.parent / "service" / "foldflight" / "exchange"


def main() -> None:
    """Generate exchange_pb2.py and exchange_pb2.pyi."""
    with tempfile.TemporaryDirectory() as folder:
        failed = protoc.main(["protoc", f"-I{HERE}", f"--python_out={folder}", f"--pyi_out={folder}", SOURCE])
        if failed:
            sys.exit(failed)
        for name in ("exchange_pb2.py", "exchange_pb2.pyi"):
            shutil.copyfile(pathlib.Path(folder) / "foldflight" / "v1" / name, TARGET / name)


if __name__ == "__main__":
    main()
