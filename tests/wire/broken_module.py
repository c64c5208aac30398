"""A module that cannot be imported: line 7 raises."""

from __future__ import annotations

NUMBER = 0
# the next line is the culprit
RATIO = 1 / NUMBER
