"""The examples in the docstrings of `foldflight.spark` print what they show."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from tests.docs.docstrings import FLAGS, IN_SPARK, examples_of


@pytest.mark.every_turn
def test_the_examples_of_docstrings_print_what_they_show(
    classic: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Each runs by itself in one session, `spark`."""
    monkeypatch.chdir(tmp_path)
    session = classic.newSession()  # an example may set what other tests do not expect
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for name in IN_SPARK:
        for each in examples_of(name, {"spark": session, "__name__": "example"}):
            runner.run(each)
    assert runner.summarize().failed == 0
