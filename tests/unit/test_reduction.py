"""When a partial fold pays, decided from the rows and groups seen so far."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foldflight.engine.batch.tasks import Reduction, expected_groups

ROOM = 1_800_000
SEEN = 1 << 18


@pytest.mark.parametrize("groups", [100, 10_000, 1_000_000, 10_000_000])
def test_the_number_of_groups_is_estimated(groups: int) -> None:
    """A block of uniform keys tells how many groups there are, within a tenth."""
    keys = np.random.default_rng(groups).integers(0, groups, SEEN)
    assert expected_groups(SEEN, len(np.unique(keys))) == pytest.approx(groups, rel=0.1)


def test_groups_that_are_all_different_have_no_bound() -> None:
    """Rows of which no two share a group tell nothing about how many groups there are."""
    assert expected_groups(7, 7) == math.inf
    assert expected_groups(7, 1) == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "groups", "looks_ahead", "pays"),
    [
        (SEEN, 100, True, True),
        (SEEN, 100, False, True),
        (SEEN, 230_400, True, True),  # a million groups: they all fit, and come again
        (SEEN, 230_400, False, False),  # nothing more comes: nine tenths of the rows would become states
        (SEEN, SEEN, True, False),  # every row is a group
        (SEEN, 258_750, True, False),  # ten million groups: memory is full before they come again
        (2 * SEEN, SEEN, False, True),
    ],
)
def test_rows_are_folded_if_that_reduces_them(rows: int, groups: int, looks_ahead: bool, pays: bool) -> None:
    """Rows are folded if they already share groups, or will before the memory is full."""
    assert Reduction(rows, groups).pays(ROOM, looks_ahead=looks_ahead) is pays


def test_a_skewed_partition_is_folded() -> None:
    """Frequent groups show in the rows seen so far, however many rare groups there are."""
    rng = np.random.default_rng(1)
    keys = np.where(rng.random(SEEN) < 0.6, rng.integers(0, 100, SEEN), rng.integers(100, 1 << 40, SEEN))
    assert Reduction(SEEN, len(np.unique(keys))).pays(ROOM, looks_ahead=True)
