"""Tables in the documents equal those of the code."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from foldflight.engine.epoch import EpochStats
from foldflight.errors import FoldflightError
from foldflight.exchange.machine import diagram
from foldflight.server.ops.metrics import metrics_table
from foldflight.server.run.settings import settings_table
from foldflight.spark.metrics import StreamMetrics
from foldflight.testing.conformance import ENGINE_RULES, SERVER_RULES, rules_table

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
REFERENCE = (ROOT / "docs" / "reference" / "server.md").read_text()
README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_settings_of_a_server() -> None:
    """The table of settings is the one from which flags, variables and file keys are made (`make reference`)."""
    assert settings_table() in REFERENCE


def test_the_metrics_of_a_server() -> None:
    """The table of metrics equals the one from which they are made; `make reference` writes it."""
    assert metrics_table() in REFERENCE


def test_the_reference_of_a_server() -> None:
    """The page, including the text around the tables, is the output of its generator."""
    written = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "from docs.generate import page; print(page(), end='')"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert written.stdout == REFERENCE


def test_the_rules_of_the_contract() -> None:
    """The tables of rules equal those of `foldflight conform`."""
    contract = (Path(__file__).parents[2] / "proto" / "README.md").read_text()
    for subject, rules in (("servers", SERVER_RULES), ("engines", ENGINE_RULES)):
        assert rules_table(subject, rules) in contract


def test_the_errors_of_the_contract() -> None:
    """The reference of the wire has the codes of each error class."""
    contract = (Path(__file__).parents[2] / "proto" / "README.md").read_text()
    for error in FoldflightError.__subclasses__():
        line = re.search(rf"^\| `{error.__name__}` \| .* \| (.*) \|$", contract, re.MULTILINE)
        assert line is not None, error
        assert set(re.findall(r"`(\w+)`", line.group(1))) == error.codes


def test_the_diagram_of_the_exchange() -> None:
    """The diagram is drawn from the table of transitions, by the command that the document names."""
    shown = re.findall(r"```mermaid\n(stateDiagram.*?)\n```", ARCHITECTURE, re.DOTALL)
    assert shown == [diagram()]
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "foldflight.exchange.machine"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == diagram()


def test_the_figures_of_a_stream() -> None:
    """The README has exactly one line for each metric of an epoch and each Prometheus metric."""
    lines = re.findall(r"^\| (?:-|`(\w+)`) \| `(foldflight_stream_\w+)` \|", README, re.MULTILINE)
    assert [figure for figure, _ in lines if figure] == [each.name for each in fields(EpochStats)]
    families = list(StreamMetrics().registry.collect())
    assert {name.removesuffix("_total") for _, name in lines} == {family.name for family in families}
    assert {name for _, name in lines if name.endswith("_total")} == {
        f"{family.name}_total" for family in families if family.type == "counter"
    }


def test_each_failure_has_its_test() -> None:
    """The tests that the failure matrix names exist."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", ARCHITECTURE)
    assert len(named) > 10
    root = Path(__file__).parents[2]
    for path, test in named:
        assert f"def {test}(" in (root / path).read_text(), f"{path}::{test}"
