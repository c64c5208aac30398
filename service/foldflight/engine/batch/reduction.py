"""The decision of a partial fold: whether a partition has clearly fewer groups than rows.

Folding pays if a state stands for several rows. How many depends on rows that have not arrived yet, so the number of
groups is estimated from the rows seen so far: of n rows drawn from G groups that are equally frequent, about
G * (1 - exp(-n / G)) belong to different groups. If some groups are more frequent than others, there are fewer
different ones, and the rows seen so far show by themselves that folding pays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The least number of rows of a state for which folding pays: seen so far, or expected when the memory is full.
_ROWS_SEEN_MIN = 2.0
_ROWS_EXPECTED_MIN = 1.5
_STEPS = 60


@dataclass
class Reduction:
    """The rows that were assigned to groups so far, and the different groups among them.

    Args:
        rows: Number of rows.
        groups: Number of groups.
    """

    rows: int = 0
    groups: int = 0

    def pays(self, groups_max: int, *, looks_ahead: bool) -> bool:
        """Return whether folding further rows produces clearly fewer states than rows.

        Args:
            groups_max: The number of groups that fit into memory.
            looks_ahead: Whether many more rows of the same kind may come. Otherwise only the rows seen so far count.
        """
        if self.rows >= _ROWS_SEEN_MIN * self.groups:
            return True
        return looks_ahead and _expected_rows(expected_groups(self.rows, self.groups), groups_max) >= _ROWS_EXPECTED_MIN


def expected_groups(rows: int, groups: int) -> float:
    """Estimate the number of groups, equally frequent, from `groups` different ones in `rows` rows; may be infinity.

    Args:
        rows: Number of rows, at least `groups`.
        groups: Number of different groups among them, at least 1.
    """
    if groups >= rows:
        return math.inf
    # Find x = rows / result, for which (1 - exp(-x)) / x is the share of new groups. It decreases with x.
    share, low, high = groups / rows, 0.0, rows / groups
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if -math.expm1(-middle) > share * middle:
            low = middle
        else:
            high = middle
    return rows / high


def _expected_rows(groups: float, groups_max: int) -> float:
    """Return the rows of a state at the time when `groups_max` of so many equally frequent groups have been seen."""
    if groups <= groups_max:
        return math.inf
    filled = groups_max / groups
    return -math.log1p(-filled) / filled if filled else 1.0
