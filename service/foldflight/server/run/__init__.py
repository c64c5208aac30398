"""How a server process is configured, started, drained and ended."""
