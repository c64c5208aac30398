"""A server as a process: `python server_process.py SETTINGS_JSON`. SIGTERM drains it."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from foldflight.errors import FoldflightError
from foldflight.server.run.lifecycle import leave_process, run_server
from foldflight.server.run.settings import load_settings


def main(settings: dict[str, Any]) -> int:
    """Serve until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        leave_process(run_server(load_settings(settings, {}), stop))
    except FoldflightError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
