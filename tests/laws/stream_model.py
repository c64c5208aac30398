"""The meaning of a streaming query in plain Python: the live rows by group, and the changes of each epoch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

Rows = list[dict[str, Any]]
Key = tuple[Any, ...]

INSERT, DELETE = 0, 3  # row kinds on the wire
DELAY_MINUTES = 10
WINDOW_MINUTES = 60
GAP_MINUTES = 30


def aggregate(rows: Rows) -> dict[str, Any]:
    """Aggregate the rows of one group, by definition."""
    values = [row["v"] for row in rows if row["v"] is not None]
    weighted_values = [(row["v"], row["w"]) for row in rows if row["v"] is not None]
    weight = sum(w for _, w in weighted_values)
    return {
        "price": None if weight == 0 else math.trunc(sum(v * w for v, w in weighted_values) / weight),
        "n": len(rows),
        "different": len(set(values)),
        "total": sum(values) if values else None,
        "top": max(values) if values else None,
    }


class StreamModel:
    """The groups of a query over random steps.

    Args:
        windows: What time is cut into, whose start and end are the last keys: hours (`tumble`), or what has no gap of
            half an hour (`session`); empty for none.
        closes: Whether windows close: with a watermark ten minutes behind the latest row.
        lateness_minutes: How much longer a window stays open.
        emit: As of `group_by`.
        has_kinds: Whether rows have kinds, and rows may be taken back.
    """

    def __init__(self, *, windows: str, closes: bool, lateness_minutes: int, emit: str, has_kinds: bool) -> None:
        self.windows, self.closes, self.emit, self.has_kinds = windows, closes, emit, has_kinds
        self.lateness_minutes = lateness_minutes
        self.present: dict[Key, Rows] = defaultdict(list)
        self.watermark = -(10**6)  # minutes
        self.latest = -(10**6)
        self.late = self.late_retractions = self.ignored = self.folded = 0

    def key(self, row: Mapping[str, Any]) -> Key:
        """Return the group of a row; for a session, as if there were no other rows."""
        if not self.windows:
            return (row["k"],)
        if self.windows == "session":
            return (row["k"], row["at"], row["at"] + GAP_MINUTES)
        start = row["at"] // WINDOW_MINUTES * WINDOW_MINUTES
        return (row["k"], start, start + WINDOW_MINUTES)

    def _is_closed(self, key: Key) -> bool:
        return self.closes and key[-1] + self.lateness_minutes <= self.watermark

    def epoch(self, steps: Sequence[tuple[str, dict[str, Any], int]]) -> tuple[Rows, list[dict[str, Any]]]:
        """Return the rows of an epoch, and the changes that it must give, in any order."""
        table = {key: aggregate(rows) for key, rows in self.present.items() if rows}
        rows = self._merged(steps) if self.windows == "session" else self._stepped(steps)
        changes = self._changes(table)
        closed_keys = [key for key in self.present if self._is_closed(key)]
        for key in closed_keys:
            dead_group = self.present.pop(key)
            if dead_group and self.emit == "append":
                changes.append(self._row(key, aggregate(dead_group)))
        self.latest = max([self.latest, *(row["at"] for row in rows)])
        self.watermark = max(self.watermark, self.latest - DELAY_MINUTES)
        return rows, changes

    def _merged(self, steps: Sequence[tuple[str, dict[str, Any], int]]) -> Rows:
        """Insert rows into sessions one after another; sessions that touch are merged."""
        came = [{**row, "kind": INSERT} for _, row, _ in steps]
        still_open = {key: rows for key, rows in self.present.items() if not self._is_closed(key)}
        sessions = [(key, rows, []) for key, rows in still_open.items()]
        for row in came:
            key, rows, new = self.key(row), [], [row]
            apart = []
            for other, others, news in sessions:
                if other[0] == key[0] and other[1] <= key[2] and key[1] <= other[2]:
                    key = (key[0], min(key[1], other[1]), max(key[2], other[2]))
                    rows, new = rows + others, new + news
                else:
                    apart.append((other, others, news))
            sessions = [*apart, (key, rows, new)]
        for key in still_open:
            del self.present[key]
        for key, rows, new in sessions:
            if new and self._is_closed(key):
                self.late += len(new)
            else:
                self.present[key] = [*rows, *new]
                self.folded += len(new)
        return came

    def _stepped(self, steps: Sequence[tuple[str, dict[str, Any], int]]) -> Rows:
        """Insert rows, and retract rows."""
        rows: Rows = []
        started_keys = {key for key, group in self.present.items() if group}
        for step, row, pick in steps:
            key = self.key(row)
            group = self.present[key]
            if step == "I" or not self.has_kinds:
                rows.append({**row, "kind": INSERT})
                if not self._is_closed(key):
                    group.append(row)
            elif step == "D" and group and not self._is_closed(key):
                # In a group that begins in this epoch the row may be retracted again, once more than it came.
                taken_row = group.pop(pick % len(group)) if key in started_keys else group[pick % len(group)]
                rows.append({**taken_row, "kind": DELETE})
            elif step == "X" and key not in started_keys:
                rows.append({**row, "kind": DELETE})
            elif step == "E":
                rows += [{**row, "kind": DELETE}, {**row, "kind": INSERT}]
                if not self._is_closed(key) and key not in started_keys:
                    group.append(row)
        self._count(rows, self._matched(rows, started_keys))
        return rows

    def _matched(self, rows: Rows, started_keys: set[Key]) -> int:
        """Take back the rows of groups that begin in this epoch, and return how many retractions have none."""
        ignored_count = 0
        for row in rows:
            key = self.key(row)
            if row["kind"] != DELETE or key in started_keys or self._is_closed(key):
                continue
            group = self.present[key]
            equal = [place for place, other in enumerate(group) if all(other[name] == row[name] for name in ("v", "w"))]
            if equal:
                del group[equal[0]]
            else:
                ignored_count += 1
        return ignored_count

    def _count(self, rows: Rows, ignored_count: int) -> None:
        late = sum(self._is_closed(self.key(row)) for row in rows)
        self.late_retractions += sum(self._is_closed(self.key(row)) and row["kind"] == DELETE for row in rows)
        self.late += late
        self.ignored += ignored_count
        self.folded += len(rows) - late - ignored_count

    def _changes(self, before: dict[Key, dict[str, Any]]) -> list[dict[str, Any]]:
        if self.emit == "append":
            return []
        after = {key: aggregate(rows) for key, rows in self.present.items() if rows}
        changes: list[dict[str, Any]] = []
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            if old is not None and (new is None or self.emit == "changelog"):
                changes.append(self._row(key, old, "-D" if new is None else "-U"))
            if new is not None:
                changes.append(self._row(key, new, "+I" if old is None else "+U"))
        return changes

    def _row(self, key: Key, values: dict[str, Any], kind: str = "") -> dict[str, Any]:
        shows_kind = self.emit == "changelog" or (
            self.emit == "update" and (self.has_kinds or self.windows == "session")
        )
        return {**({"row_kind": kind} if shows_kind else {}), "key": key, **values}
