"""Tombstones of compacted topics: messages with a key and no value, which say that the row of the key is deleted.

The delete before a tombstone may have been compacted away, so a tombstone deletes, too. It has no position in the log
of the database. In a partition, messages stand in the order of the log, so a tombstone takes the position of the
message before it, or else of the next one, and its own offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

Row = dict[str, Any]

FIRST: Final[Row] = {"log": "", "position": -1, "row": 0}
"""Before all positions of a log."""


class Tombstones:
    """Gives the tombstones that one task reads their positions.

    Args:
        sequence: The name of the column of positions.
    """

    def __init__(self, sequence: str) -> None:
        self._sequence = sequence
        self._last: dict[Any, Row] = {}
        self._waiting: dict[Any, list[Row]] = {}

    def placed(self, row: Row, partition: Any, offset: int) -> Iterator[Row]:
        """Yield the row of a tombstone with its position, unless it waits for the next message of its partition."""
        last = self._last.get(partition)
        row[self._sequence] = {**(last or FIRST), "offset": offset}
        if last is None:
            self._waiting.setdefault(partition, []).append(row)
        else:
            yield row

    def before(self, position: Row, partition: Any) -> Iterator[Row]:
        """Yield the tombstones that waited for a message, given its position."""
        self._last[partition] = position
        for row in self._waiting.pop(partition, ()):
            yield {**row, self._sequence: {**position, "offset": row[self._sequence]["offset"]}}

    @property
    def is_waiting(self) -> bool:
        """Whether there are tombstones that stand alone so far."""
        return bool(self._waiting)

    def rest(self) -> Iterator[Row]:
        """Yield the tombstones that stand alone in what the task has read of their partitions.

        In a stream their deletes were read in an epoch before. Their position is before all others, so they take back
        no row that is there.
        """
        for rows in self._waiting.values():
            yield from rows
        self._waiting.clear()
