"""Texts for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape characters that a terminal may interpret, for texts that are untrusted."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else each.encode("unicode_escape").decode() for each in text
    )
