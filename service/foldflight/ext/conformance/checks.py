"""The table of server checks. Each check is a rule of the contract with the function that tests it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from foldflight.ext.conformance.raw import RawServer
from foldflight.ext.conformance.rules import Rule

Try = Callable[[RawServer], None]


@dataclass(frozen=True)
class ServerCheck:
    """One check of a server.

    Args:
        rule: The rule.
        run: Tests the rule. It raises BrokenError, NotTriedError, or the Flight error if the server refuses a valid
            request.
    """

    rule: Rule
    run: Try


SERVER_CHECKS: Final[list[ServerCheck]] = []


def rule(name: str, sentence: str, remedy: str) -> Callable[[Try], Try]:
    """Return a decorator that adds a function to the table of checks. `Rule` documents the arguments."""

    def put(run: Try) -> Try:
        SERVER_CHECKS.append(ServerCheck(Rule(name, sentence, remedy), run))
        return run

    return put
