"""The four row kinds of a changelog, which tell whether a row is accumulated or retracted."""

from __future__ import annotations

from enum import IntEnum

from foldflight.errors import RejectedError


class RowKind(IntEnum):
    """The kind of a row. The values are those of Flink's `RowKind`.

    `INSERT` and `UPDATE_AFTER` accumulate; `UPDATE_BEFORE` and `DELETE` retract.

    >>> from foldflight import RowKind
    >>> RowKind.parse("-D"), RowKind.DELETE.short
    (<RowKind.DELETE: 3>, '-D')
    """

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3

    @property
    def short(self) -> str:
        """The two-character notation: `+I`, `-U`, `+U`, `-D`."""
        return ("+I", "-U", "+U", "-D")[self]

    @property
    def retracts(self) -> bool:
        """Whether a row of this kind retracts an earlier row."""
        return self in (RowKind.UPDATE_BEFORE, RowKind.DELETE)

    @classmethod
    def parse(cls, text: str | RowKind) -> RowKind:
        """Return the row kind for its short name (`+I`) or full name (`INSERT`); a row kind is returned unchanged.

        Raises:
            RejectedError: SCHEMA_MISMATCH, if `text` is not the name of a kind.
        """
        for kind in cls:
            if text is kind or text in (kind.short, kind.name):
                return kind
        raise RejectedError(
            "SCHEMA_MISMATCH", f"{text!r} is no row kind; the kinds are {', '.join(kind.short for kind in cls)}"
        )
