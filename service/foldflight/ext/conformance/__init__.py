"""The conformance kit: the wire contract as named rules, tested against another server or engine.

`check_server` acts as an engine, `check_engine` as a server. The contract itself is `proto/README.md` and the comments
of `proto/foldflight/v1/exchange.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foldflight.ext.conformance.engines import ENGINE_RULES, check_engine
from foldflight.ext.conformance.raw import Outcome, Rule, rules_table
from foldflight.ext.conformance.servers import SERVER_RULES, check_server

if TYPE_CHECKING:
    import click

__all__ = ["ENGINE_RULES", "SERVER_RULES", "Outcome", "Rule", "check_engine", "check_server", "provide", "rules_table"]


def provide() -> click.Command:
    """Return the command `conform`."""
    from foldflight.ext.conformance.command import conform

    return conform
