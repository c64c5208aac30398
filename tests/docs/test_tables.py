"""Tables in the documents equal the tables in the code."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from docs.explanations import EXPLANATIONS
from docs.lift_table import lift_table
from docs.tables import metrics_table, settings_table
from docs.type_table import TYPES, spark_word
from foldflight.engine.stream.epoch import EpochStats
from foldflight.errors import FoldflightError
from foldflight.exchange.transitions import transitions_table
from foldflight.functions.types.sql import parse_type, sql_name
from foldflight.testing.conformance import ENGINE_RULES, SERVER_RULES, rules_table

ROOT = Path(__file__).parents[2]
FAILURES = (ROOT / "docs" / "explanation" / "failure-model.md").read_text()
CONTRACT = (ROOT / "proto" / "README.md").read_text()
SERVER = (ROOT / "docs" / "reference" / "server.md").read_text()
SPARK = (ROOT / "docs" / "reference" / "spark.md").read_text()


def test_the_table_has_the_settings_of_a_server() -> None:
    """The table of settings equals that from which flags, variables and file keys are made."""
    assert settings_table() in SERVER


def test_the_table_has_the_metrics_of_a_server() -> None:
    """The table of metrics equals the one from which they are made; `make reference` writes it."""
    assert metrics_table() in SERVER


def test_the_generated_pages_are_up_to_date() -> None:
    """Each generated page of the reference is the output of its generator."""
    program = (
        "import json; from docs.generate import PAGES; print(json.dumps({k: page() for k, page in PAGES.items()}))"
    )
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    pages: dict[str, str] = json.loads(process.stdout)
    assert len(pages) > 5
    for name, page in pages.items():
        assert page == (ROOT / "docs" / "reference" / name).read_text(), f"{name}: run `make reference`"


def test_the_names_of_types_are_those_of_spark() -> None:
    """The page of types names Spark's types as Spark does, and each spelling is read as its type."""
    from pyspark.sql.pandas.types import from_arrow_type

    for type_ in TYPES:
        assert parse_type(sql_name(type_)) == type_
        spark_name = from_arrow_type(type_, prefer_timestamp_ntz=True).simpleString().upper()
        assert spark_word(type_) == spark_name


def test_each_code_of_an_error_is_explained() -> None:
    """The reference has a heading for each code, which is the place that the text of the error names."""
    codes = {code for error in FoldflightError.__subclasses__() for code in error.codes}
    assert set(EXPLANATIONS) == codes
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == codes
    for error in FoldflightError.__subclasses__():
        for code in error.codes:
            assert str(error(code, "why")).endswith(f"(see docs/reference/errors.md#{code.lower()})")


def test_the_tables_have_the_rules_of_the_contract() -> None:
    """The tables of rules equal the tables of `foldflight conform`."""
    for subject, rules in (("servers", SERVER_RULES), ("engines", ENGINE_RULES)):
        assert rules_table(subject, rules) in CONTRACT


def test_the_reference_has_the_error_codes_of_the_contract() -> None:
    """The reference of the wire has the codes of each error class."""
    for error in FoldflightError.__subclasses__():
        line = re.search(rf"^\| `{error.__name__}` \| .* \| (.*) \|$", CONTRACT, re.MULTILINE)
        assert line is not None, error
        assert set(re.findall(r"`(\w+)`", line.group(1))) == error.codes


def test_the_table_has_the_transitions_of_the_exchange() -> None:
    """The table in the document is the one of the code, printed by the command that the document names."""
    assert transitions_table() in CONTRACT
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "foldflight.exchange.transitions"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout.strip() == transitions_table()


def test_the_reference_has_each_figure_of_a_stream() -> None:
    """The reference has a line for each value of an epoch, and for the value that counts the events of a table."""
    documented_metrics = re.findall(r"^\| `foldflight_stream_\w+` \| \w+ \| `(\w+)` \|", SPARK, re.MULTILINE)
    assert sorted(documented_metrics) == sorted([*(each.name for each in fields(EpochStats)), "table_rows"])


def test_each_failure_has_its_test() -> None:
    """The tests that the failure matrix names exist."""
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", FAILURES)
    assert len(names) > 10
    root = Path(__file__).parents[2]
    for path, test in names:
        assert f"def {test}(" in (root / path).read_text(), f"{path}::{test}"


def test_the_table_says_which_functions_lift() -> None:
    """The table of functions that lift equals what the lifter says of them."""
    assert lift_table() in (ROOT / "docs" / "explanation" / "lift.md").read_text()
