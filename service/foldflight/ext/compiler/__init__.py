"""An accelerator of the fold: it compiles authors' classes to machine code that has Python's results.

A fold is given a `Programs` (`programs.py`). numba is imported when a function is first compiled, not before. All
modules are pure except `store.py`, which keeps compiled loops in a folder. A `Programs` is given its `LoopStore`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from foldflight.ext.compiler.program import lacks_numba
from foldflight.ext.compiler.programs import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.accelerator import CompileQueue, Compiler

__all__ = ["Programs", "provide"]


def provide() -> Compiler:
    """Return what compiles."""
    return _Compiler()


class _Compiler:
    def accelerator(
        self,
        folder: Path | Literal["user"] | None,
        *,
        hot_rows: int,
        spare: Path | None,
        queue: CompileQueue | None,
    ) -> Programs:
        """Return an accelerator that compiles functions after a number of rows."""
        cache_folder = folder or spare
        return Programs(
            None if cache_folder is None else LoopStore(cache_folder, spare), hot_rows=hot_rows, queue=queue
        )

    def key_loops(self, folder: Path | Literal["user"]) -> Mapping[str, Any] | None:
        """Return the compiled loops of hash tables of keys by name; None if numba is missing."""
        if lacks_numba():
            return None
        from foldflight.ext.compiler.keyloops import compile_loops

        return compile_loops(LoopStore(folder))
