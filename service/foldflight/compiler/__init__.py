"""An accelerator of the fold: from an author's class to machine code with Python's results, or a reason why not.

`Programs` (`programs.py`) is what a fold is handed. It imports numba no earlier than it compiles something. All modules
are pure except `store.py`, which keeps compiled loops in a folder; whoever makes `Programs` hands it a `Store`.
"""

from foldflight.compiler.programs import Programs

__all__ = ["Programs"]
