"""The modes in which calls are evaluated, as shown in listings, metrics and logs, and the reasons for them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final


class Mode(StrEnum):
    """The way in which a function, or one of its calls, is folded.

    Modes of a call: INTERPRETED calls the author's methods row by row, VECTORISED calls the vectorised methods with
    whole chunks, BUNDLED calls `fold_bundle` with the rows of all groups of a chunk, COMPILED runs machine code of the
    author's methods, JAVA runs a loop over the rows of a chunk in the Java virtual machine, and COUNTED keeps rows with
    their counts. ASYNC runs the author's coroutine for the rows of a chunk side by side. A function without a decision
    may also be COMPILED_WHEN_HOT, if a first check finds no obstacle to compiling, or DECIDED_WHEN_BOUND, if types,
    direct arguments or `open` decide it for each call.
    """

    INTERPRETED = "interpreted"
    VECTORISED = "vectorised"
    COMPILED = "compiled"
    COUNTED = "counted"
    JAVA = "java"
    COMPILED_WHEN_HOT = "compiled when hot"
    DECIDED_WHEN_BOUND = "decided when bound"
    BUNDLED = "bundled"
    ASYNC = "async"

    @classmethod
    def from_text(cls, text: str) -> Mode | None:
        """Return the mode of this name; None for an empty text or an unknown mode."""
        return cls(text) if text in set(cls) else None


@dataclass(frozen=True)
class Folding:
    """How a function is folded.

    Args:
        mode: The mode.
        reason: The reason why it is interpreted, also until it is compiled, or why merge or get_value of one that is
            compiled, or will be, is; else empty.
    """

    mode: Mode
    reason: str = ""

    def __str__(self) -> str:
        """Return the text form for the protocol: the mode, followed by `: ` and the reason if there is one."""
        return f"{self.mode}: {self.reason}" if self.reason else str(self.mode)

    @classmethod
    def from_text(cls, text: str) -> Folding | None:
        """Parse the result of `str`; return None for an empty text or an unknown mode."""
        name, _, reason = text.partition(": ")
        mode = Mode.from_text(name)
        return None if mode is None else cls(mode, reason)


WAITS_TO_BE_COMPILED: Final = Folding(Mode.COMPILED_WHEN_HOT, "it is interpreted until another process has compiled it")


class Unsupported(Exception):  # noqa: N818 - the caller evaluates the function in another mode, and reports the reason
    """An accelerator cannot evaluate the author's code.

    Args:
        reason: The reason, as a clause about the function. It is an attribute as well, because numba changes the
            messages of exceptions that pass through it.

    Attributes:
        location: The author's file and line; empty if they are not known.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.location = ""

    def at(self, loc: Any) -> Unsupported:
        """Return this exception with a location, which has `filename` and `line`, unless it already has one."""
        self.location = self.location or f"{Path(loc.filename).name}:{loc.line}"
        return self


def line_of(function: Any) -> str:
    """Return the file and the first line of a function, as `orders.py:12`; empty if it has no code in Python."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return "" if code is None else f"{Path(code.co_filename).name}:{code.co_firstlineno}"


@contextlib.contextmanager
def at_line_of(function: Any) -> Iterator[None]:
    """Give each Unsupported that is raised inside, and has no location, the first line of a function."""
    try:
        yield
    except Unsupported as error:
        error.location = error.location or line_of(function)
        raise
