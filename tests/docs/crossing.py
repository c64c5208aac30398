"""The modules that a row crosses: in ARCHITECTURE.md's table, and in a call stack."""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from types import FrameType

import foldflight

PACKAGE = Path(foldflight.__file__).parent
MODULE = re.compile(r"`([\w/]+\.py)`")
# These hand a row over by returning or yielding it, so they are not on the stack below the next module.
HANDED_OVER = {
    "spark/arrow.py",
    "engine/query/blocks.py",
    "exchange/failover/coordinator.py",
    "exchange/encoding.py",
    "exchange/ipc.py",
}


def crossed_modules() -> list[str]:
    """Return the modules of the package in the caller's stack, outermost first. A module may be there twice."""
    names: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            names.append(str(path.relative_to(PACKAGE)))
        frame = frame.f_back
    return [name for name, _ in groupby(reversed(names))]


def missing_modules(modules: list[str], stack: list[str]) -> list[str]:
    """Return the modules of a table that are not on a stack, or not in the table's order. Others may be between."""
    rest = iter(stack)
    return [module for module in modules if module not in HANDED_OVER and module not in rest]


def way(column: int, *, remote: bool) -> list[str]:
    """Return the modules of the table, in order: column 2 for batches, column 3 for streams."""
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if re.match(r"\| \d+\. ", line)]
    assert len(rows) > 10
    modules = []
    for step, batch, stream in rows:
        skipped_mark = "*embedded:*" if remote else "*remote"
        if skipped_mark not in step:
            cell = batch if column == 2 or "the same" in stream else stream.partition("(")[0]
            modules += MODULE.findall(cell)
    return modules
