"""Failover under every harm that one seed can think of, without a socket or a second of waiting.

python -m foldflight.testing.simulation --seed 1234        # one seed, with what happened
python -m foldflight.testing.simulation --count 10000      # many
"""

from __future__ import annotations

from foldflight.testing.simulation.mapping import run_mapping_seed
from foldflight.testing.simulation.scenario import Report, SimulatedTransport, run_seed
from foldflight.testing.simulation.world import EngineCrashed, StuckError, World

__all__ = ["EngineCrashed", "Report", "SimulatedTransport", "StuckError", "World", "run_mapping_seed", "run_seed"]
