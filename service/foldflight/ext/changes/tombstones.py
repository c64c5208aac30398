"""Tombstones of compacted topics: messages with a key and no value, which say that the row of the key is deleted.

The delete before a tombstone may have been compacted away, so a tombstone deletes, too. It has no position in the log
of the database. In a partition, messages stand in the order of the log, so a tombstone takes the position of the
message before it, or else of the next one, and its own offset. Without both, the state gives it its position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from foldflight.engine.stream.upserts import NO_POSITION, TIME

Row = dict[str, Any]

_UNPLACED: Final[Row] = {"log": "", "position": NO_POSITION, "row": 0}


class Tombstones:
    """Gives the tombstones that one task reads their positions.

    Args:
        sequence: The name of the column of positions.
    """

    def __init__(self, sequence: str) -> None:
        self._sequence = sequence
        self._last: dict[Any, Row] = {}
        self._waiting: dict[Any, list[Row]] = {}

    def add(self, row: Row, partition: Any, place: Row) -> Iterator[Row]:
        """Yield the row of a tombstone with its position, unless it waits for the next message of its partition.

        Args:
            row: The row, without its position.
            partition: The partition.
            place: Where the message is in Kafka: the part of a position that does not come from the log.
        """
        last = self._last.get(partition)
        row[self._sequence] = {**(last or _UNPLACED), **place}
        if last is None:
            self._waiting.setdefault(partition, []).append(row)
        else:
            yield row

    def note(self, position: Row, partition: Any) -> None:
        """Remember the position of the last message of a partition. No tombstone of the partition may be waiting."""
        self._last[partition] = position

    def before(self, position: Row, partition: Any) -> Iterator[Row]:
        """Yield the tombstones that waited for a message, given its position."""
        self.note(position, partition)
        in_log = {name: position[name] for name in (*_UNPLACED, TIME)}
        for row in self._waiting.pop(partition, ()):
            yield {**row, self._sequence: {**row[self._sequence], **in_log}}

    @property
    def is_waiting(self) -> bool:
        """Whether tombstones wait for the next message of their partition."""
        return bool(self._waiting)

    def rest(self) -> Iterator[Row]:
        """Yield the tombstones of partitions in which the task has read no other message.

        In a stream an earlier epoch has read the changes before them, so the state gives them their positions.
        """
        for rows in self._waiting.values():
            yield from rows
        self._waiting.clear()
