"""Rules of the contract, and the outcomes that `check_server` and `check_engine` report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule of the contract.

    Args:
        name: Its name in reports, tests and `foldflight conform --rule`.
        sentence: What it requires.
        remedy: What to change if it is broken.
    """

    name: str
    sentence: str
    remedy: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one rule.

    Args:
        rule: The rule.
        passed: Whether the rule was kept; None if it was not tested.
        detail: What was found, or why the rule was not tested; empty if it was kept.
    """

    rule: Rule
    passed: bool | None
    detail: str = ""


def rules_table(subject: str, rules: Iterable[Rule]) -> str:
    """Return rules as a Markdown table for proto/README.md.

    >>> from foldflight.testing.conformance import Rule, rules_table
    >>> print(rules_table("servers", [Rule("barrier", "A barrier is answered.", "Answer it.")]), end="")
    | a rule for servers | what it requires |
    |---|---|
    | `barrier` | A barrier is answered. |
    """
    lines = [f"| a rule for {subject} | what it requires |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{rule.name}` | {rule.sentence} |" for rule in rules)]) + "\n"


class BrokenError(Exception):
    """A rule is broken. The message says what was found."""


class NotTriedError(Exception):
    """A rule cannot be tested. The message says why."""


def expect(actual: object, expected: object, what: str) -> None:
    """Raise BrokenError unless both are equal. `what` names the value."""
    if actual != expected:
        raise BrokenError(f"{what}: expected {expected!r}, found {actual!r}")
