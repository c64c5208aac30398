"""A simulation of failover with injected faults, determined by a seed, without sockets or waiting.

python -m foldflight.testing.simulation --seed 1234        # one seed
python -m foldflight.testing.simulation --count 10000      # seeds 0 to 9999
"""

from __future__ import annotations

from foldflight.testing.simulation.mapping import run_mapping_seed
from foldflight.testing.simulation.running import Report, SimulatedTransport
from foldflight.testing.simulation.scenario import run_seed
from foldflight.testing.simulation.viewing import run_views_seed
from foldflight.testing.simulation.world import EngineCrashed, StuckError, World

__all__ = [
    "EngineCrashed",
    "Report",
    "SimulatedTransport",
    "StuckError",
    "World",
    "run_mapping_seed",
    "run_seed",
    "run_views_seed",
]
