"""The command line without sockets: usage, listing, laws and errors."""

from __future__ import annotations

import gc
import json
import re
import resource
import sys
from pathlib import Path
from unittest import mock

import pytest
from click.testing import CliRunner
from rich.console import Console

from examples.weighted_avg import WeightedAvg
from foldflight.cli import check_command as laws_module
from foldflight.cli import main
from foldflight.cli.main import cli
from foldflight.functions import function_of
from foldflight.server.run.settings import SETTINGS
from foldflight.testing import laws
from foldflight.testing.laws import LAWS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("no_compiler")

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

CALLS_OUT = """
from foldflight import udaf, udf

@udf
async def asked(x: int) -> int:
    raise SystemExit("called")

@udaf
class Asked2:
    def create_accumulator(self) -> list[str]:
        return []
    def accumulate(self, texts: list[str], text: str) -> None:
        texts.append(text)
    async def get_value(self, texts: list[str]) -> str:
        raise SystemExit("called")
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
    """Run a command in a folder of its own with these modules."""
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
    """The working directory is on the path, and brackets of a signature are shown unchanged."""
    result = run("functions", "embedded:at_least_listed", at_least_listed=PERCENTILE)
    assert result.exit_code == 0, result.output
    assert "at_least(value BIGINT" in result.output
    assert "count([value]) -> BIGINT" in result.output


@pytest.mark.parametrize("is_terminal", [False, True])
def test_functions_shows_the_authors_own_first_and_cuts_nothing_off(run, monkeypatch, is_terminal):
    """The author's functions come before the built-in ones, and reasons are not truncated on a narrow terminal."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setattr(main, "Console", lambda: Console(width=30, force_terminal=is_terminal, color_system=None))
    lines = run("functions", "tests.unit.listed_functions").output.splitlines()
    names = [line.partition("(")[0] for line in lines if line and not line.startswith(" ")]
    assert names[:3] == ["careful", "plain", "avg"]
    assert names[2:] == sorted(names[2:])
    assert "    interpreted because: accumulate uses with (listed_functions.py:23)" in lines
    assert any("only conditions, assignments and calls are lifted (accumulate, " in line for line in lines)
    assert ["built in" in line for line in lines if " version 1, " in line][:3] == [False, False, True]


def test_functions_tells_what_is_lifted(run, monkeypatch):
    """For other functions it tells why not, with the author's line."""
    monkeypatch.syspath_prepend(str(ROOT))
    assert "lifted in batches" in run("functions", "examples.weighted_avg").output
    output = run("functions", "examples.weighted_mean").output
    assert "not lifted because: the field products is a sum of floats" in output


def test_functions_as_json_tells_everything(run):
    """The JSON form has signature, capabilities and direct arguments of each function."""
    result = run("functions", "embedded:at_least_json", "--json", at_least_json=PERCENTILE)
    entry_of_name = {each["name"]: each for each in json.loads(result.output)}
    assert entry_of_name["at_least"]["parameters"][0]["name"] == "least"
    assert entry_of_name["at_least"]["merge"]
    assert not entry_of_name["at_least"]["retract"]
    assert entry_of_name["at_least"]["input_types"] == ["BIGINT"]


def test_check_passes_a_lawful_function(run, monkeypatch):
    """The example of the README keeps every law."""
    monkeypatch.syspath_prepend(str(ROOT))
    result = run("check", "examples.weighted_avg", "--examples", "20")
    assert result.exit_code == 0, result.output
    assert "every law holds" in result.output


COUNTED = """
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from foldflight import udaf

@dataclass
class Seen:
    counts: {annotation} = field(default_factory={made})

@udaf
class Words:
    def create_accumulator(self) -> Seen:
        return Seen()
    def accumulate(self, seen: Seen, word: str) -> None:
        seen.counts[word] = seen.counts.get(word, 0) + 1
    def get_value(self, seen: Seen) -> int:
        return len(seen.counts)
    def merge(self, seen: Seen, other: Seen) -> None:
        for word, count in other.counts.items():
            seen.counts[word] = seen.counts.get(word, 0) + count
"""


@pytest.mark.parametrize(
    ("annotation", "accumulator", "wrong"),
    [
        ("Counter", "Counter", "a Counter"),
        ("Counter[str]", "Counter", "a Counter"),
        ("defaultdict[str, int]", "lambda: defaultdict(int)", "a defaultdict"),
        ("dict[str, int]", "dict", None),
    ],
)
def test_check_says_that_states_are_pickled(run, annotation, accumulator, wrong):
    """And what a server needs for them, and what makes them typed, which does."""
    name = "counted_" + "".join(filter(str.isalnum, annotation)).lower()
    source = COUNTED.replace("{annotation}", annotation).replace("{made}", accumulator)
    output = run("check", name, "--examples", "10", **{name: source}).output
    warning, _, end = output.partition("every law holds")
    assert end
    if wrong is None:
        assert "pickled" not in output
        return
    remedy = f"{wrong} has no typed states; annotate dict[str, int], and use .get, as in counts[key] = counts.get"
    assert f"its states are pickled: {remedy}" in warning
    assert SETTINGS["state_keys"].variable in warning
    assert "pickled" not in run("check", name, "--examples", "10", "--quiet").output


LACKS_RETURN = """
from foldflight import udaf
@udaf
class Total:
    def create_accumulator(self) -> list[int]:
        return [0]
    def accumulate(self, totals: list[int], value: int) -> None:
        totals[0] += value
    def get_value(self, totals: list[int]) -> int:
        totals[0]
"""


def test_check_ends_with_what_may_lack_a_return(run):
    """All laws hold if each result is None, so the last line says that instead, also with --quiet. No law is broken."""
    for options in ((), ("--quiet",)):
        result = run("check", "lacks_return", "--examples", "5", *options, lacks_return=LACKS_RETURN)
        assert result.exit_code == 0, result.output
        *_, last = result.output.splitlines()
        assert last == (
            "every law holds, but no row changes the result of total(value BIGINT) -> BIGINT: does accumulate or "
            "get_value lack a `return`?"
        )


def test_check_says_what_it_does_not_try(run):
    """An async function is not called with generated rows. It is named, with --quiet as well, and does not fail."""
    for options in ((), ("--quiet",)):
        result = run("check", "embedded:calls_out", *options, calls_out=CALLS_OUT)
        assert result.exit_code == 0, result.output
        assert result.output.count("no law applies: it is async") == 2
        assert "every law holds" not in result.output


def test_check_fails_on_a_broken_law_and_shows_the_smallest_rows(run):
    """A function whose merge ignores one side makes the command fail, and the output names the law."""
    result = run("check", "latest_broken", "--examples", "50", latest_broken=BROKEN)
    assert result.exit_code == 1, result.output
    assert "BROKEN" in result.output
    assert "merge" in result.output


GREEDY = """
from foldflight import udaf

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Greedy:
    def create_accumulator(self) -> int:
        return 0
    def accumulate(self, accumulator: int, value: int) -> int:
        return len(bytearray(1 << 30))
    def get_value(self, accumulator: int):
        return accumulator
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory of a process is bounded on Linux only")
def test_check_bounds_the_memory_of_a_function(run, monkeypatch):
    """A function that takes more than the machine has must not end the command, nor the machine's other work."""
    monkeypatch.setattr(laws_module, "MEMORY_MAX", 1 << 29)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    result = run("check", "greedy", "--examples", "5", greedy=GREEDY)
    assert result.exit_code == 1, result.output
    assert "MemoryError" in result.output
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


UNLAWFUL = """
from foldflight import udaf

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Careless:
    def create_accumulator(self) -> int:
        return 0
    def get_value(self, accumulator: int):
        return accumulator
    def accumulate(self, accumulator: int, value: int) -> int:
        if value and value > 50:
            raise ValueError("more than fifty")
        return accumulator

@udaf(input_types=["BIGINT"], result_type="BIGINT")
class Lawful:
    def create_accumulator(self) -> int:
        return 0
    def get_value(self, accumulator: int):
        return accumulator
    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + 1
"""


def test_check_tells_one_cause_once_and_quietly_what_is_broken_only(run):
    """An error that breaks several laws is printed for the first, the others name it; --quiet omits what holds."""
    result = run("check", "unlawful_quiet", "--examples", "50", "--quiet", unlawful_quiet=UNLAWFUL)
    assert result.exit_code == 1, result.output
    assert result.output.count("same error as in") == 3
    assert result.output.count("BROKEN") == 4
    assert "4 broken, by 1 cause\n" in result.output
    assert re.search(r"row: +value=\d+", re.sub(r"[\s│]+", " ", result.output))
    assert "lawful(" not in result.output
    assert "holds" not in result.output
    loud = run("check", "unlawful_loud", "--examples", "50", unlawful_loud=UNLAWFUL)
    outcomes = [line for line in loud.output.splitlines() if "BROKEN" in line or "holds" in line or " - " in line]
    assert all("BROKEN" in line for line in outcomes[:4])
    assert "slot" not in loud.output


CODES = """
from foldflight import udaf, udf

PRICES = {"EUR": 100, "USD": 92}

@udf
def price(code: str, amount: int) -> int:
    return PRICES[code] * amount

@udaf
class Turnover:
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, total: list[int], code: str, amount: int) -> None:
        total[0] += PRICES[code] * (amount or 0)

    def merge(self, total: list[int], other: list[int]) -> None:
        total[0] += other[0]

    def get_value(self, total: list[int]) -> int:
        return total[0]
"""


def test_check_takes_the_values_of_arguments(run):
    """Functions that take only some values keep the laws on these; others raise, and their laws tell nothing."""
    result = run("check", "codes_all", "--examples", "5", codes_all=CODES)
    assert "KeyError" in result.output
    options = ["--examples", "20", "--examples", "code=['EUR', 'USD']"]
    result = run("check", "codes_known", *options, codes_known=CODES)
    assert result.exit_code == 0, result.output
    assert result.output.count("every law holds") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "'0' is no number of inputs"),
        ("many", "'many' is no number of inputs"),
        ("code='EUR'", "the values of code are 'EUR'; write a list"),
        ("code=[EUR]", "is not NAME=VALUE"),
        ("currency=['EUR']", "no function has an argument currency"),
        ("code=[]", "examples has no value for 'code'; leave it out"),
        ("amount=['many']", "the values of 'amount' in examples, ['many'], are no list of BIGINT"),
    ],
)
def test_check_refuses_examples_that_are_none(run, text, why):
    """A number below 1, a single value, an unknown argument, no value, and one of another type."""
    result = run("check", "codes_wrong", "--examples", text, codes_wrong=CODES)
    assert result.exit_code != 0
    assert why in " ".join(result.output.replace("│", " ").split())


def test_check_refuses_a_direct_argument_that_no_function_has(run):
    """A misspelled name would leave the default in place, and check something else."""
    result = run("check", "at_least_misspelled", "--set", "leest=3", at_least_misspelled=PERCENTILE)
    assert result.exit_code != 0
    assert "no function has a direct argument leest; there are least" in " ".join(
        result.output.replace("│", " ").split()
    )


def test_check_tries_functions_of_one_name_in_two_modules(run):
    """Both are checked, each under the name of its class, as no query calls them."""
    run("functions", "one_unlawful", one_unlawful=UNLAWFUL)
    result = run(
        "check", "one_unlawful", "two_unlawful", "--function", "lawful", "--examples", "5", two_unlawful=UNLAWFUL
    )
    assert result.exit_code == 0, result.output
    assert "lawful(value BIGINT) -> BIGINT of one_unlawful.Lawful" in result.output
    assert "lawful(value BIGINT) -> BIGINT of two_unlawful.Lawful" in result.output


def test_values_are_generated_once_for_all_laws(monkeypatch):
    """Generating values takes longer than a law, so laws share the values of each type, except hostile ones."""
    searches = mock.Mock(side_effect=laws.find)
    monkeypatch.setattr(laws, "find", searches)
    laws._draw_column.cache_clear()
    for _ in range(2):
        assert all(result.passed is not False for result in laws.check_laws(WeightedAvg, examples=20))
        assert searches.call_count == len({*function_of(WeightedAvg).input_types}) * 2


def test_a_law_that_holds_takes_a_few_folds(monkeypatch):
    """All inputs are folded at once, each as a group, except where a group has to be alone."""
    folds = mock.Mock(side_effect=laws.Fold)
    monkeypatch.setattr(laws, "Fold", folds)
    subject = laws._Subject(function_of(WeightedAvg), {})
    inputs = laws._Inputs(laws.rows_of, subject.types, {}, examples=20)
    assert len(inputs.all) == 20
    for law in laws.LAWS:
        folds.reset_mock()
        if not law.hostile and law.needs(subject) is None:
            assert laws._check(law, subject, inputs).passed
            assert 1 < folds.call_count < 10 or (law.name, folds.call_count) in {
                ("groups are independent", 21),
                ("get_value changes nothing", 1),
            }


TWO = (
    PERCENTILE
    + """

@udaf(input_types=["BIGINT"], result_type="BIGINT", skip_nulls=True)
class Most:
    def create_accumulator(self) -> int:
        return 0
    def get_value(self, accumulator: int):
        return accumulator
    def accumulate(self, accumulator: int, value: int) -> int:
        return max(accumulator, value)
    def merge(self, accumulator: int, other: int) -> int:
        return max(accumulator, other)
"""
)


def test_check_goes_on_after_a_function_that_cannot_be_checked(run):
    """A function without its direct argument is reported with the remedy, others are checked, the exit code is 1."""
    result = run("check", "at_least_and_most", "--examples", "5", at_least_and_most=TWO)
    assert result.exit_code == 1
    assert "--set least=" in result.output
    assert "most(value BIGINT)" in result.output
    assert "get_value changes nothing" in result.output
    assert "not checked: at_least" in result.output
    assert "every law holds" not in result.output


def test_check_tries_one_function_only(run):
    """--function selects functions; an unknown name is an error that lists the known ones."""
    result = run("check", "only_most", "--function", "most", "--examples", "5", only_most=TWO)
    assert result.exit_code == 0, result.output
    assert "at_least" not in result.output
    result = run("check", "only_most", "--function", "mots")
    assert result.exit_code == 1
    assert "UNKNOWN_FUNCTION" in result.output
    assert "they have at_least, most" in result.output


def test_check_says_that_a_function_is_fickle(run):
    """A law that fails, and holds for the same rows when tried again, is broken, and the command continues."""
    fickle = "import time\n" + TWO.replace("return max(accumulator, value)", "return time.monotonic_ns()")
    result = run("check", "fickle", "--function", "most", "--examples", "5", fickle=fickle)
    assert result.exit_code == 1, result.output
    assert "BROKEN" in result.output
    assert "Traceback" not in result.output


def test_check_collects_garbage_rarely_until_it_ends(run, monkeypatch):
    """Afterwards Python looks for garbage as often as before, also when the user interrupts it."""
    monkeypatch.syspath_prepend(str(ROOT))
    before, results, during = gc.get_threshold(), laws_module._results, []

    def note(*arguments):
        during.append(gc.get_threshold()[0])
        return results(*arguments)

    monkeypatch.setattr(laws_module, "_results", note)
    assert run("check", "examples.weighted_avg", "--examples", "1").exit_code == 0
    monkeypatch.setattr(laws_module, "_results", mock.Mock(side_effect=KeyboardInterrupt))
    assert run("check", "examples.weighted_avg").exit_code != 0
    assert during[0] > before[0]
    assert gc.get_threshold() == before


def test_check_shows_how_far_it_is():
    """A progress bar counts the laws of the current function, and is removed at the end."""
    progress = mock.Mock(**{"add_task.return_value": 7})
    results = laws_module._results(function_of(WeightedAvg), {}, 5, {}, progress)
    assert len(results) == len(LAWS)
    assert progress.mock_calls == [
        mock.call.add_task("weighted_avg", total=len(LAWS)),
        *[mock.call.advance(7)] * len(LAWS),
        mock.call.remove_task(7),
    ]


def test_check_takes_direct_arguments(run):
    """A function with direct arguments is checked with the values of --set."""
    result = run("check", "at_least_set", "--set", "least=3", "--examples", "10", at_least_set=PERCENTILE)
    assert result.exit_code == 0, result.output


def test_check_says_which_direct_argument_is_missing(run):
    """Without --set, the error names the argument and the option."""
    result = run("check", "at_least_missing", at_least_missing=PERCENTILE)
    assert result.exit_code == 1
    assert "--set least=" in result.output


@pytest.mark.parametrize("text", ["least", "least=three(", "=1(", "least="])
def test_bad_direct_argument_is_wrong_usage(run, text):
    """Text other than NAME=VALUE is refused before anything is checked."""
    result = run("check", "json", "--set", text)
    assert result.exit_code == 2
    assert "NAME=VALUE" in result.output


def test_module_that_cannot_be_imported_is_a_clear_error(run):
    """The output has code, module and reason without a traceback."""
    result = run("check", "no_such_module_anywhere")
    assert result.exit_code == 1
    assert "foldflight: MODULE" in result.output
    assert "no_such_module_anywhere" in result.output
    assert "Traceback" not in result.output


def test_bad_setting_names_its_flag(run):
    """An invalid value of a setting is refused with its flag, before anything is served."""
    result = run("serve", "--drain-s", "soon")
    assert result.exit_code == 1
    assert "--drain-s" in result.output
    assert "SETTINGS" in result.output


def test_a_module_is_named_in_the_same_ways(run):
    """`functions` and `check` accept the name of a module, with or without `embedded:`."""
    listings = [run("functions", "--json", target, named_alike=PERCENTILE) for target in TARGETS]
    assert [json.loads(result.output) for result in listings] == [json.loads(listings[0].output)] * 2
    reports = [run("check", target, "--set", "least=3", "--examples", "5") for target in TARGETS]
    assert [result.exit_code for result in reports] == [0, 0]
    assert all("at_least" in result.output for result in reports)


def test_bad_target_says_what_targets_look_like(run):
    """A target that is not a URL, `embedded:` or a module is refused with the valid forms."""
    result = run("functions", "http://127.0.0.1:8815")
    assert result.exit_code == 1
    assert "grpc://" in result.output
    assert "embedded:" in result.output


def test_unknown_command_is_wrong_usage(run):
    """Wrong usage has Click's own exit code."""
    assert run("fold").exit_code == 2
