"""The command line shows each kind of function, and checks the laws of each."""

from __future__ import annotations

import json

from click.testing import CliRunner

from foldflight.cli.main import cli

MODULE = "tests.scalar_functions"


def test_functions_are_listed_with_their_kind() -> None:
    """A scalar and a table function say what they are, and nothing of states."""
    output = CliRunner().invoke(cli, ["functions", MODULE]).output
    assert "split(text STRING) -> TABLE(word STRING, at INT)\n    table function, version 1, interpreted" in output
    assert "scalar function (arrow columns), version 1, vectorised" in output
    assert "scalar function, version 1, not deterministic" in output
    infos = {info["name"]: info for info in json.loads(CliRunner().invoke(cli, ["functions", MODULE, "--json"]).output)}
    assert [infos[name]["kind"] for name in ("multiply", "split", "sum")] == ["scalar", "table", "aggregate"]


def test_laws_of_scalar_and_table_functions_are_checked() -> None:
    """A function whose result depends on the rows before it breaks its laws, and the exit code says so."""
    run = CliRunner().invoke(cli, ["check", MODULE, "--function", "split", "--examples", "5"])
    assert run.exit_code == 0, run.output
    assert "rows in any order" in run.output
    result = CliRunner().invoke(cli, ["check", "tests.fickle_functions", "--examples", "20"])
    assert result.exit_code == 1
    assert "BROKEN" in result.output
