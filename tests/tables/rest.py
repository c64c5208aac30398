"""A private REST catalogue of Iceberg on the loopback: what Iceberg's own tests of clients run, over files."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foldflight.spark.java import java_home
from tests.maven import MISSING, client, jars
from tests.ports import free_port
from tests.private_server import private_server

HERE = Path(__file__).parent
_MEMORY = ("-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def private_catalogue(folder: Path) -> Iterator[str]:
    """Run a catalogue while the block runs, with its tables in a folder, and yield its URL."""
    assert client() is not None, MISSING
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    java = [str(java_home(os.environ) / "bin" / "java"), *_MEMORY]
    java += ["-cp", os.pathsep.join(map(str, jars(HERE / "jars-iceberg-rest.txt")))]
    command = [*java, str(HERE / "RestCatalogue.java"), str(port), str(folder)]
    with private_server(command, folder, lambda: _answers(url), timeout_s=120):
        yield url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/config", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
