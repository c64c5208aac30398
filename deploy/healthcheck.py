"""Ask the server of this container for a page, /healthz or /readyz: exit code 0 if it answers 200."""

import os
import sys
import urllib.request

port = os.environ.get("FOLDFLIGHT_HTTP_PORT", "8817")
urllib.request.urlopen(f"http://127.0.0.1:{port}{sys.argv[1]}", timeout=4).close()
