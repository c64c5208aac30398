"""The conformance kit: the wire contract as named rules, tested against another server or engine.

`check_server` acts as an engine, `check_engine` as a server. The contract itself is `proto/README.md` and the comments
of `proto/foldflight/v1/exchange.proto`.
"""

from foldflight.ext.conformance import (
    ENGINE_RULES,
    SERVER_RULES,
    Outcome,
    Rule,
    check_engine,
    check_server,
    rules_table,
)

__all__ = ["ENGINE_RULES", "SERVER_RULES", "Outcome", "Rule", "check_engine", "check_server", "rules_table"]
