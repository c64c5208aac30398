"""The table of a server's checks: each is a rule of the contract and a function that tries it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foldflight.testing.conformance.raw import RawServer
from foldflight.testing.conformance.rules import Rule

__all__ = ["SERVER_CHECKS", "ServerCheck", "rule"]

Try = Callable[[RawServer], None]


@dataclass(frozen=True)
class ServerCheck:
    """One check of a server.

    Args:
        rule: What it checks.
        run: Tries it; raises BrokenError, NotTriedError, or an error of Flight for what was refused and is allowed.
    """

    rule: Rule
    run: Try


SERVER_CHECKS: Final[list[ServerCheck]] = []


def rule(name: str, sentence: str, remedy: str) -> Callable[[Try], Try]:
    """Put a function into the table of checks."""

    def put(run: Try) -> Try:
        SERVER_CHECKS.append(ServerCheck(Rule(name, sentence, remedy), run))
        return run

    return put
