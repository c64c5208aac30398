"""A terminal for commands that run in one: what a user types, and what the screen shows."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from struct import pack

# Opening its terminal makes a new session's first process the one that Ctrl-C interrupts.
# A shell that runs tests in the background lets them ignore Ctrl-C, and their programs would, too.
_CONTROLLED = (
    "import os, signal; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "
)
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>]|\r")
_SIZE = (40, 160)


class Terminal:
    """The outer end of a terminal with a program in it.

    Args:
        master: The descriptor of this end.
        program: The program.
    """

    def __init__(self, master: int, program: subprocess.Popen[bytes]) -> None:
        self._master = master
        self._raw = b""
        self._seen = 0
        self.program = program

    @property
    def shown(self) -> str:
        """Everything that was shown, without colours and cursor movements."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace"))

    def type(self, keys: str) -> None:
        """Type keys, with control characters for Enter, Tab, Ctrl-C and arrows."""
        os.write(self._master, keys.encode())

    def expect(self, text: str, timeout_s: float = 300) -> str:
        """Wait until a text is shown, and return what was shown since the last call, up to the text."""
        deadline = time.monotonic() + timeout_s
        while (at := self.shown.find(text, self._seen)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not shown: {self.shown[self._seen :]!r}"
            self._read(min(left, 1.0))
        begin, self._seen = self._seen, at + len(text)
        return self.shown[begin : self._seen]

    def end(self, timeout_s: float = 300) -> int:
        """Wait until the program ends, and return its exit status."""
        deadline = time.monotonic() + timeout_s
        while self.program.poll() is None:
            assert time.monotonic() < deadline, f"the program does not end: {self.shown[self._seen :]!r}"
            self._read(0.1)
        return self.program.wait()

    def _read(self, timeout_s: float) -> None:
        if select.select([self._master], [], [], timeout_s)[0]:
            try:
                self._raw += os.read(self._master, 1 << 16)
            except OSError:  # the program has closed its end
                time.sleep(0.01)


@contextmanager
def in_terminal(code: str, *arguments: str, env: Mapping[str, str]) -> Iterator[Terminal]:
    """Run Python code in a terminal of its own, and end it with the block.

    Args:
        code: The code.
        arguments: Its `sys.argv[1:]`.
        env: Further environment variables.
    """
    master, slave = pty.openpty()
    import fcntl

    fcntl.ioctl(slave, termios.TIOCSWINSZ, pack("HHHH", *_SIZE, 0, 0))
    program = subprocess.Popen(
        [sys.executable, "-c", _CONTROLLED + code, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **env},
    )
    os.close(slave)
    try:
        yield Terminal(master, program)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        os.close(master)
