"""Exchanges of scalar and table functions under whatever a seed thinks of."""

from __future__ import annotations

from collections import Counter

import pytest

from foldflight.exchange.failover.replaylog import ReplayEntry, ReplayLog
from foldflight.exchange.frames import NO_SLOTS, Slots
from tests.simulation.scalar import run_scalar_seed


def test_scalar_exchanges_survive_a_few_seeds() -> None:
    """Each chunk is answered once, in order and right, whatever servers do."""
    harms: Counter[str] = Counter()
    answers = replays = 0
    for seed in range(40):
        report = run_scalar_seed(seed)
        harms += report.harms
        answers, replays = answers + report.commits, replays + report.stats.replays
    assert answers > 150
    assert replays > 5
    assert harms["kill"]
    assert harms["drain"]


@pytest.mark.slow
def test_scalar_exchanges_survive_many_seeds() -> None:
    """A thousand seeds are tried."""
    for seed in range(40, 1000):
        run_scalar_seed(seed)


def test_a_calm_world_sends_nothing_twice() -> None:
    """Without faults no server is lost and no row is sent again."""
    for seed in range(8):
        report = run_scalar_seed(seed, is_calm=True)
        assert (report.stats.losses, report.stats.rows_refolded, report.retries) == (0, 0, 0)


def test_a_mistake_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay log that forgets a chunk before it is answered loses rows, and a seed fails."""
    add = ReplayLog.add

    def forget_entry(replay_log: ReplayLog, entry: ReplayEntry, slots: Slots = NO_SLOTS) -> None:
        add(replay_log, entry, slots)
        replay_log._entries.clear()

    monkeypatch.setattr(ReplayLog, "add", forget_entry)

    def fails(seed: int) -> bool:
        try:
            run_scalar_seed(seed)
        except (AssertionError, ValueError):
            return True
        return False

    assert any(map(fails, range(30)))
