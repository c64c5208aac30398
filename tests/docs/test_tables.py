"""What the documents show of the code is what the code says."""

import re
import subprocess
import sys
from pathlib import Path

from foldflight.exchange.machine import diagram
from foldflight.server.metrics import metrics_table
from foldflight.server.settings import settings_table

ARCHITECTURE = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


def test_the_settings_of_a_server() -> None:
    """The table of settings is the one that flags, variables and file keys come from."""
    assert settings_table().strip() in ARCHITECTURE


def test_the_metrics_of_a_server() -> None:
    """The table of metrics is the one that they are made from."""
    assert metrics_table().strip() in ARCHITECTURE


def test_the_diagram_of_the_exchange() -> None:
    """The diagram is drawn from the table of transitions, by the command that the document names."""
    shown = re.search(r"```mermaid\n(.*?)\n```", ARCHITECTURE, re.DOTALL)
    assert shown is not None
    assert shown.group(1) == diagram()
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "foldflight.exchange.machine"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == diagram()
