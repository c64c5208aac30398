"""Sessions that touch, compared with a definition that merges any two until none touch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foldflight.engine.stream.session_epoch import chains
from tests.effort import examples

# (key, start, length): equal times, lengths of 0, and sessions inside of others are among them.
INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 6)), max_size=20)
LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def join_intervals(intervals: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return (key, start, end) of the merged sessions, ascending."""
    sessions = [(key, start, start + length) for key, start, length in intervals]
    while True:
        pair = next(
            (
                (one, two)
                for place, one in enumerate(sessions)
                for two in sessions[:place]
                if one[0] == two[0] and one[1] <= two[2] and two[1] <= one[2]
            ),
            None,
        )
        if pair is None:
            return sorted(sessions)
        one, two = pair
        sessions.remove(one)
        sessions.remove(two)
        sessions.append((one[0], min(one[1], two[1]), max(one[2], two[2])))


@examples(300)
@given(INTERVALS)
def test_sessions_that_touch_are_one_session(intervals: list[tuple[int, int, int]]) -> None:
    """Two sessions have the same chain exactly if they are merged; chains are numbered by key and start."""
    keys, starts, lengths = (np.array([each[place] for each in intervals], np.int64) for place in range(3))
    order, chain = chains(keys, starts, starts + lengths)
    expected = join_intervals(intervals)
    assert sorted(order.tolist()) == list(range(len(intervals)))
    assert sorted(set(chain.tolist())) == list(range(len(expected)))
    for place, number in zip(order.tolist(), chain.tolist(), strict=True):
        key, start, length = intervals[place]
        assert expected[number][0] == key
        assert expected[number][1] <= start
        assert start + length <= expected[number][2]


def test_the_earliest_and_latest_times_have_sessions() -> None:
    """The first and the last microsecond of an int64 are valid times, also for many keys."""
    keys = np.tile(np.arange(1000, dtype=np.int64), 2)
    times = np.repeat(np.array([LOWEST, HIGHEST], np.int64), 1000)
    _, chain = chains(keys, times, times)
    assert chain.tolist() == list(range(2000))
