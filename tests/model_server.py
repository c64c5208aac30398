"""A model that is faked by a local HTTP server: it counts, and answers late, wrongly, with errors, or not at all."""

from __future__ import annotations

import json
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

# Threads that hold an answer back look this often whether they may go on. There may be a thousand of them.
_LOOK_MS: Final = 200


class ModelServer(ThreadingHTTPServer):
    """Answers each POST of `{"prompt": ..., "id": ...}` with `{"text": prompt.upper()}`.

    Attributes:
        behave: Called with the prompt and how often it was asked before. It returns what to do: `ok`, `wrong` (no
            JSON), `close` (the connection), `cut` (it in the middle of the answer), a status, or `hold` (until
            `released` is set).
        asked: How often each prompt was asked.
        times: When each question came, in seconds of the monotonic clock, in order.
        ids: The ids by prompt.
        answered: How often each prompt was answered well.
        left: The prompts whose clients left before the answer.
    """

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, behave: Callable[[str, int], str | int] = lambda *_: "ok") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behave = behave
        self.asked: Counter[str] = Counter()
        self.times: list[float] = []
        self.ids: dict[str, set[str]] = {}
        self.answered: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self.released = threading.Event()
        self.lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return self.server_address[1]

    def __exit__(self, *exception: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Say nothing: tests let clients leave."""


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt, model = request["prompt"], self.server
        with model.lock:
            before = model.asked[prompt]
            model.asked[prompt] += 1
            model.times.append(time.monotonic())
            model.ids.setdefault(prompt, set()).add(request["id"])
        what = model.behave(prompt, before)
        if what == "hold":
            disconnects = select.poll()
            disconnects.register(self.connection, select.POLLIN)
            while not model.released.is_set():
                if disconnects.poll(_LOOK_MS):  # it sends nothing more, so it has left
                    with model.lock:
                        model.left[prompt] += 1
                    return
        if what == "close":
            self.close_connection = True
            return
        body = b"no JSON" if what == "wrong" else json.dumps({"text": prompt.upper()}).encode()
        self.send_response(what if isinstance(what, int) else 200)
        if what == 429:
            self.send_header("Retry-After", "0.05")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if what == "cut" else body)
        if what in ("ok", "hold"):
            with model.lock:
                model.answered[prompt] += 1

    def log_message(self, *_: Any) -> None:
        pass
