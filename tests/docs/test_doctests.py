"""The examples in docstrings are correct."""

import doctest
import importlib
import pkgutil

import pytest

import foldflight

# What needs Spark or generated code is tested elsewhere.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(foldflight.__path__, "foldflight.")
    if not module.name.startswith("foldflight.spark") and not module.name.endswith("_pb2")
]


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name: str) -> None:
    """No example in a docstring fails."""
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_there_are_doctests() -> None:
    """The modules of the test kit have examples."""
    for name in ("foldflight.testing.epochs", "foldflight.testing.pair"):
        assert doctest.testmod(importlib.import_module(name)).attempted > 0
