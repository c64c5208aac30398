"""Steps that the monitoring of a server interrupts."""

from __future__ import annotations

import subprocess
import sys

PROFILED = """
import cProfile, functools, logging
from foldflight import FunctionError
from foldflight.server.limits import Watch

watch = Watch(fold_s_max=0, look_s=1, look=lambda: None, on_spent=lambda: None, logger=logging.getLogger())
error = FunctionError("USER_CODE", "interrupted as it ended")
steps = []
for _ in range(20):
    try:
        # The call ends as soon as it has asked for the interrupt, which is pending then.
        watch.run(lambda: functools.partial(steps[-1].interrupt, error)(), steps.append)
    except FunctionError as received:
        assert "interrupted as it ended" in str(received), received
    else:
        raise AssertionError("the interrupt was lost")
profile = cProfile.Profile()
profile.runcall(lambda: [str(each) for each in range(10)])
print(sum(range(10)))
"""


def test_a_process_can_be_profiled_after_a_step_was_interrupted_as_it_ended() -> None:
    """No interrupt stays pending, which would be raised somewhere else, or stop a profiler of Python 3.11 for ever."""
    process = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=120, check=False)
    assert (process.returncode, process.stdout) == (0, "45\n"), process.stderr
