"""Public names have examples, and the examples in docstrings are correct."""

import doctest
import importlib
import pkgutil

import pytest

import foldflight
from tests.docs.docstrings import FLAGS, IN_SPARK, PUBLIC, examples_of, value_of

MODULES = [
    module.name
    for module in pkgutil.walk_packages(foldflight.__path__, "foldflight.")
    if not module.name.startswith("foldflight.spark") and not module.name.endswith("_pb2")
]
_SHOWN_BY = {
    "foldflight.spark.Scan": "foldflight.spark.scan",
    "foldflight.spark.Target": "foldflight.testing.check_target",
    "foldflight.spark.Window": "foldflight.spark.tumble",
    "foldflight.testing.LawResult": "foldflight.testing.check_laws",
    "foldflight.testing.conformance.Outcome": "foldflight.testing.conformance.check_server",
    "foldflight.testing.conformance.Rule": "foldflight.testing.conformance.check_server",
}
"""Classes that the example of a function shows: users seldom name them."""
_WITHOUT = {
    "foldflight.CorruptError": "only damaged bytes raise it",
    "foldflight.testing.conformance.check_engine": "it runs another engine against servers that keep it waiting",
}
_SKIPPED = {
    "foldflight.spark.check_checkpoint": "the stream in the example of state_table calls it",
    "foldflight.spark.upgrade_checkpoint": "it needs a checkpoint that was moved; tests/spark/test_state_table.py",
    "foldflight.spark.write_table": "it needs a stream and a database; tests/spark/test_tables.py",
}
"""Names whose examples do not run here, and why."""


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_correct(name: str) -> None:
    """No example in a docstring fails, except those that need a session."""
    module = importlib.import_module(name)
    others = {f"{value.__module__}.{value.__qualname__}" for value in map(value_of, IN_SPARK)}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for each in doctest.DocTestFinder().find(module, name):
        if each.name not in others:
            runner.run(each)
    assert runner.summarize().failed == 0


def test_every_public_name_has_an_example_that_runs() -> None:
    """Each function and class of the API page has one, or is listed above with the reason."""
    examples = {name: [each for test in examples_of(name, {}) for each in test.examples] for name in PUBLIC}
    assert {name for name, each in examples.items() if not each} == {*_SHOWN_BY, *_WITHOUT}
    assert all(examples[name] for name in _SHOWN_BY.values())
    skipped_names = {name for name, each in examples.items() if any(doctest.SKIP in one.options for one in each)}
    assert skipped_names == {*_SKIPPED}
