"""A private PostgreSQL on the loopback, of the programs that Debian's package installs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.private_server import private_server

__all__ = ["MISSING", "WITH_PASSWORD", "private_postgres", "programs"]

MISSING = "PostgreSQL is not installed: apt-get install postgresql"
USER = "foldflight"
WITH_PASSWORD = "with_password"  # a user who must give a password, if a test creates it


def programs() -> Path | None:
    """Return the folder with `initdb` and `postgres`, or None if there is none."""
    result = shutil.which("postgres")
    folders = [Path(result).parent] if result else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def private_postgres(**settings: object) -> Iterator[str]:
    """Run a server while the block runs, and yield the URL of its database. It does not run as root, as it demands."""
    binaries = programs()
    assert binaries is not None, MISSING
    folder = Path(tempfile.mkdtemp(prefix="foldflight-postgres-"))
    owner: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if owner:
        shutil.chown(folder, owner["user"], owner["group"])
    data = folder / "data"
    try:
        port = free_port()
        process = subprocess.run(
            [binaries / "initdb", "--pgdata", data, "--username", USER, "--auth", "trust", "--no-sync", "-E", "UTF8"],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            **owner,
        )
        assert process.returncode == 0, process.stderr
        access = data / "pg_hba.conf"
        access.write_text(f"host all {WITH_PASSWORD} all scram-sha-256\n{access.read_text()}")
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "", "fsync": "off"}
        options |= settings
        command = [binaries / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())]
        # SIGINT ends connections and stops.
        with private_server(command, folder, lambda: _answers(port), stop=signal.SIGINT, **owner):
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    import psycopg

    try:
        with closing(psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres")):
            return True
    except psycopg.OperationalError:
        return False
