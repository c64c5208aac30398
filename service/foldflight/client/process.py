"""What all transports and engines of a process share: compiled functions and loops, and the folder that keeps them."""

from __future__ import annotations

from typing import Final

from foldflight.compiler import Programs
from foldflight.compiler.keytables import KeyLoops
from foldflight.compiler.store import LoopStore

_STORE: Final = LoopStore("user")
PROGRAMS: Final = Programs(_STORE)
"""Compiled functions."""
PROGRAMS_AT_ONCE: Final = Programs(_STORE, hot_rows=0)
"""Compiles at the first row, for checks of compiled code."""
KEY_LOOPS: Final = KeyLoops(_STORE)
"""Compiled loops with which engines find keys."""
