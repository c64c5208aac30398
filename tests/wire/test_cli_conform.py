"""`foldflight conform`: the outcomes of rules, broken ones with their remedy, and the exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from foldflight.cli.main import cli
from foldflight.server.run.lifecycle import ProcessServer
from foldflight.testing.conformance import ENGINE_RULES, SERVER_RULES, rules_table
from tests.wire.conformance_mutants import update_before_accumulates


def test_a_server_is_tried(server: ProcessServer) -> None:
    """Rules that are kept have one line each, and the exit code is 0."""
    result = CliRunner().invoke(cli, ["conform", "server", server.url, "--rule", "kinds", "--rule", "authorization"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "not tested  authorization  no token was given",
        "kept  kinds",
        "2 rules: 1 kept, 0 broken, 1 not tested",
    ]


def test_a_broken_rule_comes_with_its_remedy(server: ProcessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken rule has its sentence, what was found, and the remedy; the exit code is 1."""
    update_before_accumulates(monkeypatch)
    result = CliRunner().invoke(cli, ["conform", "server", server.url, "--rule", "kinds"])
    assert result.exit_code == 1
    rule = next(rule for rule in SERVER_RULES if rule.name == "kinds")
    text = " ".join(result.output.split())
    assert "BROKEN kinds" in text
    assert f"rule: {rule.sentence}" in text
    assert "found: the output after a row of kind 0 was retracted by kind 1" in text
    assert f"remedy: {rule.remedy}" in text


def test_an_engine_that_fails_is_told(tmp_path: Path) -> None:
    """The error of the command is shown, and no other rule is tested."""
    script = tmp_path / "engine.py"
    script.write_text("import os, sys; sys.exit('cannot reach ' + os.environ['FOLDFLIGHT_URL'][:7] + sys.argv[1][:7])")
    result = CliRunner().invoke(cli, ["conform", "engine", "--", sys.executable, str(script), "{url}"])
    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "cannot reach grpc://grpc://" in text
    assert f"{len(ENGINE_RULES)} rules: 0 kept, 1 broken, {len(ENGINE_RULES) - 1} not tested" in text


def test_rules_are_listed() -> None:
    """Each rule is listed with its sentence, as in proto/README.md."""
    result = CliRunner().invoke(cli, ["conform", "rules"])
    assert result.exit_code == 0
    assert result.output == f"{rules_table('servers', SERVER_RULES)}\n{rules_table('engines', ENGINE_RULES)}"


def test_a_text_that_is_no_url_is_refused() -> None:
    """A URL without a scheme is refused."""
    result = CliRunner().invoke(cli, ["conform", "server", "localhost:8815"])
    assert result.exit_code == 1
    assert "grpc://host:port" in result.output
