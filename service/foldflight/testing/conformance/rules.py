"""A rule of the contract, and how it came out: what both halves of the kit report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BrokenError", "NotTriedError", "Outcome", "Rule", "expect", "rules_table"]


@dataclass(frozen=True)
class Rule:
    """One rule of the contract.

    Args:
        name: Its name, for reports and tests.
        sentence: What it demands.
        remedy: What to change where it is broken.
    """

    name: str
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Outcome:
    """How one rule came out.

    Args:
        rule: The rule.
        passed: Whether it was kept; None where it was not tried.
        detail: What was found, or why the rule was not tried; empty where it was kept.
    """

    rule: Rule
    passed: bool | None
    detail: str = ""


def rules_table(subject: str, rules: Iterable[Rule]) -> str:
    """Return rules as a table of Markdown, for proto/README.md."""
    lines = [f"| a rule for {subject} | what it demands |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{rule.name}` | {rule.sentence} |" for rule in rules)]) + "\n"


class BrokenError(Exception):
    """A rule is broken; the message says what was found."""


class NotTriedError(Exception):
    """A rule cannot be tried; the message says why."""


def expect(found: object, expected: object, what: str) -> None:
    """Raise BrokenError unless both are equal."""
    if found != expected:
        raise BrokenError(f"{what}: expected {expected!r}, found {found!r}")
