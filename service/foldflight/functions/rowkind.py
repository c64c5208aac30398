"""What a row does to its group: the four row kinds of a changelog."""

from __future__ import annotations

from enum import IntEnum

from foldflight.errors import RejectedError

__all__ = ["RowKind"]


class RowKind(IntEnum):
    """The kind of a row, with the byte values that Flink gives them.

    `INSERT` and `UPDATE_AFTER` accumulate; `UPDATE_BEFORE` and `DELETE` retract.
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """The customary two characters: `+I`, `-U`, `+U`, `-D`."""
        return ("+I", "-U", "+U", "-D")[self]

    @property
    def retracts(self) -> bool:
        """Whether a row of this kind takes an earlier row back."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @classmethod
    def parse(cls, text: str | RowKind) -> RowKind:
        """Return the kind that `text` names in short (`+I`) or in full (`INSERT`), or that it is.

        Raises:
            RejectedError: SCHEMA_MISMATCH, when `text` names no kind.
        """
        for kind in cls:
            if text is kind or text in (kind.short, kind.name):
                return kind
        raise RejectedError(
            "SCHEMA_MISMATCH", f"{text!r} is no row kind; the kinds are {', '.join(kind.short for kind in cls)}"
        )
