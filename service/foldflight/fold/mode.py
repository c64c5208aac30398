"""How calls are folded, as values: what listings, metrics and logs show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Folding", "Mode"]


class Mode(StrEnum):
    """The way in which a function, or one of its calls, is folded.

    Of a call: INTERPRETED calls the author's methods row by row, VECTORISED the author's vectorised methods with whole
    chunks, COMPILED runs machine code of the author's methods, COUNTED keeps rows with their counts. Of a function that
    no call has settled yet, also: COMPILED_WHEN_HOT, where nothing speaks against compiling at a glance, and
    DECIDED_WHEN_BOUND, where types, direct arguments or `open` decide it for each call.
    """

    INTERPRETED = "interpreted"
    VECTORISED = "vectorised"
    COMPILED = "compiled"
    COUNTED = "counted"
    COMPILED_WHEN_HOT = "compiled when hot"
    DECIDED_WHEN_BOUND = "decided when bound"


@dataclass(frozen=True)
class Folding:
    """How a function is folded.

    Args:
        mode: The way.
        reason: Why it is interpreted; empty for all other modes.
    """

    mode: Mode
    reason: str = ""

    def __str__(self) -> str:
        """Return the text form, which the protocol carries: the mode, then `: ` and the reason where there is one."""
        return f"{self.mode}: {self.reason}" if self.reason else str(self.mode)

    @classmethod
    def from_text(cls, text: str) -> Folding | None:
        """Return what `str` has written; None for an empty text, or for a mode that this version does not know."""
        mode, _, reason = text.partition(": ")
        return cls(Mode(mode), reason) if mode in set(Mode) else None
