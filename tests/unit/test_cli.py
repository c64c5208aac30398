"""The command line without sockets: usage, listing, laws, errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from foldflight.cli.main import cli
from foldflight.server.run.settings import SETTINGS

ROOT = Path(__file__).parents[2]

BROKEN = """
from foldflight import udaf

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Latest:
    def create_accumulator(self) -> list[int]:
        return [0]
    def get_value(self, accumulator):
        return accumulator[0]
    def accumulate(self, accumulator, value):
        accumulator[0] = value or 0
    def retract(self, accumulator, value):
        accumulator[0] -= 1
    def merge(self, accumulator, other):
        accumulator[0] = other[0]
"""

PERCENTILE = """
from foldflight import udaf

@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class AtLeast:
    def __init__(self, least: int):
        self.least = least
    def create_accumulator(self) -> list[int]:
        return [0]
    def get_value(self, accumulator):
        return accumulator[0]
    def accumulate(self, accumulator, value):
        accumulator[0] += value >= self.least
    def merge(self, accumulator, other):
        accumulator[0] += other[0]
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command in a folder of its own, with the modules written there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def run(*arguments, **modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        return CliRunner().invoke(cli, arguments, env={"COLUMNS": "120"})

    yield run
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in sys.modules[name].__file__:
            del sys.modules[name]


TARGETS = ("named_alike", "embedded:named_alike")


def test_every_setting_is_an_option_of_serve(run):
    """`serve --help` names each setting's flag and its variable."""
    text = run("serve", "--help").output
    for setting in SETTINGS.values():
        if setting.name != "modules":
            assert setting.flag in text
            assert setting.variable in text


def test_functions_lists_a_module_from_the_current_folder(run):
    """The folder one stands in is on the path, and a signature's brackets are shown as they are."""
    result = run("functions", "embedded:at_least_listed", at_least_listed=PERCENTILE)
    assert result.exit_code == 0, result.output
    assert "at_least(value BIGINT" in result.output
    assert "count([value]) -> BIGINT" in result.output


def test_functions_as_json_tells_everything(run):
    """The JSON form carries signature, capabilities and direct arguments of each function."""
    result = run("functions", "embedded:at_least_json", "--json", at_least_json=PERCENTILE)
    known = {each["name"]: each for each in json.loads(result.output)}
    assert known["at_least"]["parameters"][0]["name"] == "least"
    assert known["at_least"]["merge"]
    assert not known["at_least"]["retract"]
    assert known["at_least"]["input_types"] == ["BIGINT"]


def test_check_passes_a_lawful_function(run, monkeypatch):
    """The README's example keeps every law."""
    monkeypatch.syspath_prepend(str(ROOT))
    result = run("check", "examples.weighted_avg", "--examples", "20")
    assert result.exit_code == 0, result.output
    assert "every law holds" in result.output


def test_check_fails_on_a_broken_law_and_shows_the_smallest_rows(run):
    """A function whose merge forgets one side makes the command fail, and names the law."""
    result = run("check", "latest_broken", "--examples", "50", latest_broken=BROKEN)
    assert result.exit_code == 1, result.output
    assert "BROKEN" in result.output
    assert "merge" in result.output


def test_check_takes_direct_arguments(run):
    """A function with direct arguments is checked with those that --set gives."""
    result = run("check", "at_least_set", "--set", "least=3", "--examples", "10", at_least_set=PERCENTILE)
    assert result.exit_code == 0, result.output


def test_check_says_which_direct_argument_is_missing(run):
    """Without --set, the error names the argument and how to give it."""
    result = run("check", "at_least_missing", at_least_missing=PERCENTILE)
    assert result.exit_code == 1
    assert "--set least=" in result.output


@pytest.mark.parametrize("text", ["least", "least=three(", "=1(", "least="])
def test_bad_direct_argument_is_wrong_usage(run, text):
    """What is not NAME=VALUE is refused before anything is checked."""
    result = run("check", "json", "--set", text)
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.output


def test_module_that_cannot_be_imported_is_a_clear_error(run):
    """No traceback: the code, the module and the reason."""
    result = run("check", "no_such_module_anywhere")
    assert result.exit_code == 1
    assert "foldflight: MODULE" in result.output
    assert "no_such_module_anywhere" in result.output
    assert "Traceback" not in result.output


def test_bad_setting_names_its_flag(run):
    """A setting's value that cannot be is refused with the flag it came from, before anything is served."""
    result = run("serve", "--drain-s", "soon")
    assert result.exit_code == 1
    assert "--drain-s" in result.output
    assert "SETTINGS" in result.output


def test_a_module_is_named_in_the_same_ways(run):
    """`functions` and `check` take a module by its name, with or without `embedded:` before it."""
    listed = [run("functions", "--json", target, named_alike=PERCENTILE) for target in TARGETS]
    assert [json.loads(result.output) for result in listed] == [json.loads(listed[0].output)] * 2
    checked = [run("check", target, "--set", "least=3", "--examples", "5") for target in TARGETS]
    assert [result.exit_code for result in checked] == [0, 0]
    assert all("at_least" in result.output for result in checked)


def test_bad_target_says_what_targets_look_like(run):
    """A target that is neither a URL nor embedded nor a module is refused with both forms."""
    result = run("functions", "http://127.0.0.1:8815")
    assert result.exit_code == 1
    assert "grpc://" in result.output
    assert "embedded:" in result.output


def test_unknown_command_is_wrong_usage(run):
    """Click's own exit code for wrong usage is kept."""
    assert run("fold").exit_code == 2
