"""Runs the cells of a tutorial as a notebook does: `python tests/docs/cells.py docs/tutorials/01-first-function.md`.

All cells of a page run in one `__main__` module, one after the other, and the value of a cell's last expression is
printed. Before the output of each cell, a line has the character `CELL` and the number of the cell's first line.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import types
from pathlib import Path
from typing import NamedTuple

__all__ = ["CELL", "Cell", "cells_of"]

CELL = "\x1e"
_FENCE = re.compile(r"^```\{code-cell\}[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"\A(?::[^\n]*\n)+\n?")


class Cell(NamedTuple):
    """The code of a cell, and the number of its first line in the page."""

    line: int
    code: str


def cells_of(page: str) -> list[Cell]:
    """Return the code cells of a page, without their options."""
    result = []
    for match in _FENCE.finditer(page):
        code = _OPTION.sub("", match["code"])
        result.append(Cell(page.count("\n", 0, match.end("code") - len(code)) + 1, code))
    return result


def run(path: Path) -> None:
    """Run all cells of a page in a new `__main__`."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    for cell in cells_of(path.read_text(encoding="utf-8")):
        print(f"{CELL}{cell.line}", flush=True)
        name = f"{path.name} line {cell.line}"
        linecache.cache[name] = (len(cell.code), None, cell.code.splitlines(keepends=True), name)
        body = ast.parse(cell.code, name).body
        last = body[-1] if body else None
        last_expression = last if isinstance(last, ast.Expr) else None
        statements = ast.Module(body[:-1] if last_expression is not None else body, [])
        # The cells do not inherit this module's `from __future__ import annotations`.
        exec(compile(statements, name, "exec", dont_inherit=True), vars(main))
        if last_expression is not None:
            value = eval(compile(ast.Expression(last_expression.value), name, "eval", dont_inherit=True), vars(main))
            if value is not None:
                print(repr(value), flush=True)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
