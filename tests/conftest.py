"""Shared by all tests: the marker of a test comes from its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import effort
from tests.spark_sessions import classic, java_options, rows_of, sessions, spark

__all__ = ["classic", "rows_of", "sessions", "spark"]

ROOT = Path(__file__).parent
settings.load_profile(effort.QUICK)
os.environ["SPARK_SUBMIT_OPTS"] = java_options()  # Spark's launcher reads it


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile nothing for the law of compiled code, which takes seconds: slow tests check it for many classes."""
    from foldflight.ext.compiler import Programs
    from foldflight.testing import laws

    monkeypatch.setattr(laws, "PROGRAMS_AT_ONCE", Programs(hot_rows=1 << 62))


class Turn:
    """Runs one of several equal parts of the tests that are selected, and those that are marked `every_turn`.

    CI runs one part of the slow tests for each commit, which the commit chooses. Each part has every n-th test, so the
    cases of one parametrised test are spread over all parts. A module that is marked `together` counts as one test.
    """

    def __init__(self, turn: str) -> None:
        number, slash, turns = turn.partition("/")
        if not (slash and number.isdecimal() and turns.isdecimal() and int(number) < int(turns)):
            raise pytest.UsageError(f"--turn={turn}: write NUMBER/TURNS, as 0/6, where NUMBER is below TURNS")
        self.number, self.turns = int(number), int(turns)

    @pytest.hookimpl(trylast=True)  # after `-m` and `-k`
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselect the tests of other turns."""
        candidates = [item for item in items if item.get_closest_marker("every_turn") is None]
        units: dict[object, int] = {}
        for item in candidates:
            is_alone = item.get_closest_marker("together") is None
            units.setdefault(item.nodeid if is_alone else item.path, len(units))
        places = {id(item): units.get(item.nodeid, units.get(item.path)) for item in candidates}
        others = {each for each, place in places.items() if place is not None and place % self.turns != self.number}
        config.hook.pytest_deselected(items=[item for item in items if id(item) in others])
        items[:] = [item for item in items if id(item) not in others]


def pytest_addoption(parser: Any) -> None:
    """Add the option that selects a turn."""
    parser.addoption("--turn", metavar="NUMBER/TURNS", help="run one of equal parts of the selected tests: 0/6")


def pytest_configure(config: pytest.Config) -> None:
    """Select the tests of a turn, if one is given."""
    turn = config.getoption("--turn")
    if turn is not None:
        config.pluginmanager.register(Turn(turn), "turn")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with the name of its folder, so that `-m wire` means tests/wire; `every_turn` makes slow."""
    folders = set()
    for item in items:
        folder = item.path.relative_to(ROOT).parts[0]
        item.add_marker(folder)
        folders.add(folder)
        if item.get_closest_marker("every_turn") is not None:
            item.add_marker("slow")
    if folders & {"spark", "sql", "docs"}:
        from foldflight.spark.java import prepare_local

        prepare_local(os.environ)
