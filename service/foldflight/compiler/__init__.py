"""An accelerator of the fold: it compiles authors' classes to machine code that has Python's results.

A fold is given a `Programs` (`programs.py`). numba is imported when a function is first compiled, not before. All
modules are pure except `store.py`, which keeps compiled loops in a folder. A `Programs` is given its `LoopStore`.
"""

from foldflight.compiler.programs import Programs

__all__ = ["Programs"]
