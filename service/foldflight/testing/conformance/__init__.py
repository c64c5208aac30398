"""The conformance kit: the wire contract as named rules, tested against another server or engine.

`check_server` acts as an engine, `check_engine` as a server. The contract itself is `proto/README.md` and the comments
of `proto/foldflight/v1/exchange.proto`.
"""

from foldflight.testing.conformance.engines import ENGINE_RULES, check_engine
from foldflight.testing.conformance.rules import Outcome, Rule, rules_table
from foldflight.testing.conformance.servers import SERVER_RULES, check_server

__all__ = ["ENGINE_RULES", "SERVER_RULES", "Outcome", "Rule", "check_engine", "check_server", "rules_table"]
