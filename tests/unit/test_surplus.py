"""Memory that is not used any more is given back when there is nothing to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foldflight.server.limits import memory


def test_what_stays_is_asked_for_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much memory is given back at once; what is still used afterwards is not asked for at each look."""
    resident = 100 << 20
    now_s = 1000.0
    given: list[float] = []
    monkeypatch.setattr(memory, "resident_bytes", lambda: resident)
    monkeypatch.setattr(memory, "give_back", lambda: given.append(now_s))
    monkeypatch.setattr(memory, "time", SimpleNamespace(monotonic=lambda: now_s))
    surplus = memory.Surplus()

    def looks(count: int) -> list[float]:
        nonlocal now_s
        given.clear()
        for _ in range(count):
            surplus()
            now_s += 1.0
        return [round(each - given[0]) for each in given]

    assert looks(5) == []
    resident += 80 << 20
    assert looks(20) == [0, 2, 6, 14]
    resident -= 80 << 20
    assert looks(5) == []
    now_s += 1000
    resident += 80 << 20
    assert looks(3) == [0, 2]
