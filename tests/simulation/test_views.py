"""Exchanges whose engine keeps views under whatever a seed thinks of."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from foldflight.client.connection import Connection
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.aggregate.view_accumulators import CachedList, CachedMap
from tests.simulation.viewing import run_views_seed


def run_block(seeds: range, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Run seeds, and return the sum of their reports, with the questions of servers and those that were answered late.

    An answer is late if its server is lost before it gets it.
    """
    harms: Counter[str] = Counter()
    entries_for = Connection._entries_for

    def count(connection: Connection, request: Any) -> Any:
        harms["questions"] += 1
        harms["late"] += 1
        yield from entries_for(connection, request)
        harms["late"] -= 1

    monkeypatch.setattr(Connection, "_entries_for", count)
    for seed in seeds:
        report = run_views_seed(seed)
        harms += report.harms
        harms["commits"] += report.commits
        harms["replays"] += report.stats.replays
    return harms


@pytest.mark.every_turn
def test_exchanges_with_views_survive_a_few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch is committed once with the outputs and entries of dict and list, whatever servers do."""
    harms = run_block(range(12), monkeypatch)
    assert harms["commits"] > 30
    assert harms["replays"] > 5
    assert harms["questions"] > 100


@pytest.mark.slow
def test_exchanges_with_views_survive_many_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of seeds are tried. Some servers are lost between a question and its answer."""
    harms = run_block(range(12, 300), monkeypatch)
    assert harms["late"] > 20
    assert harms["kill"]
    assert harms["drain"]


def test_a_calm_world_sends_nothing_twice() -> None:
    """Without faults no server is lost and no row is sent again."""
    for seed in range(4):
        report = run_views_seed(seed, is_calm=True)
        assert (report.stats.losses, report.stats.rows_refolded, report.retries) == (0, 0, 0)


def _overwrite(self: CachedMap, part: Any) -> None:
    for key, value, present in zip(part.keys, part.values, part.present, strict=True):
        self._entries.pop(key, None)
        self._absent.discard(key)
        if present:
            self._entries[key] = value
        else:
            self._absent.add(key)


def _remember(self: Fold) -> None:
    """Keep entries although the engine has committed them."""


def _lose_removals(self: CachedMap, key: Any) -> None:
    del self._entries[key]
    self._absent.add(key)


def _count_from_nothing(self: CachedList) -> None:
    self._items, self._is_whole, self._is_cleared = [], False, False


MISTAKES: dict[str, tuple[Any, str, Any]] = {
    "entries replace what rows have changed": (CachedMap, "learn", _overwrite),
    "entries are not forgotten after they have been returned": (Fold, "_forget_entries", _remember),
    "removals are not returned": (CachedMap, "_remove", _lose_removals),
    "items are counted from 0 after they have been returned": (CachedList, "forget", _count_from_nothing),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deliberate mistake makes a seed fail soon."""
    cls, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(cls, name, wrong)

    def fails(seed: int) -> bool:
        try:
            run_views_seed(seed)
        except Exception:
            return True
        return False

    assert any(map(fails, range(30)))
