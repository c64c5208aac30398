"""Ask the server of this container for a page, /healthz or /readyz: exit code 0 if it answers 200.

A socket is enough, and modules for HTTP take longer to import than everything else, and container engines ask often.
"""

import os
import socket
import sys

port = int(os.environ.get("FOLDFLIGHT_HTTP_PORT", "8817"))
with socket.create_connection(("127.0.0.1", port), timeout=4) as server:
    server.sendall(f"GET {sys.argv[1]} HTTP/1.0\r\n\r\n".encode())
    status = server.makefile().readline().strip()
if status.split()[1:2] != ["200"]:
    sys.exit(f"{sys.argv[1]}: {status or 'no answer'}")
