"""Several state tables in one store, with their manifests in one.

A bucket of a query with views has a table of groups, and a table of entries for each view. The runs of all tables share
a map, since their names are unique. Their manifests are stored together, because a checkpoint of Spark has one variable
for the manifest, and because they must be of the same commit.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from foldflight.engine.state.manifest import FORMAT_OF_SEVERAL, MAGIC, RunStore, manifests_of
from foldflight.engine.state.runs import seal

GROUPS: Final = ""
"""The name of the table of groups."""


class TableStores:
    """The stores of several tables, by name.

    Manifests are stored when `write` is called. The store of a query that had no views before has one manifest, that of
    the table of groups, and is continued.

    Args:
        store: The storage of the bytes.

    Attributes:
        commits: The number of commits so far.
        is_changed: Whether there are manifests to write.

    Raises:
        RejectedError: STATE_MISMATCH, for a manifest of another format.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._manifests: dict[str, bytes] = {}
        self.commits = 0
        self.is_changed = False
        data = store.manifest()
        if data is not None:
            self._manifests, self.commits = manifests_of(data)

    def of(self, name: str) -> RunStore:
        """Return the store of a table."""
        return _Part(self, name, self._store)

    def manifest(self, name: str) -> bytes | None:
        """Return the manifest of a table."""
        return self._manifests.get(name)

    def put_manifest(self, name: str, data: bytes) -> None:
        """Replace the manifest of a table; `write` stores it."""
        self._manifests[name] = data
        self.is_changed = True

    def write(self) -> None:
        """Store the manifests, if one of them has changed."""
        if not self.is_changed:
            return
        self.is_changed = False
        tables = {name: base64.b64encode(data).decode() for name, data in self._manifests.items()}
        content: dict[str, Any] = {"format": FORMAT_OF_SEVERAL, "commits": self.commits, "tables": tables}
        self._store.put_manifest(seal(MAGIC, json.dumps(content).encode()))


class _Part:
    """The store of one table."""

    def __init__(self, tables: TableStores, name: str, store: RunStore) -> None:
        self._tables = tables
        self._name = name
        self.run, self.put_run, self.remove_run = store.run, store.put_run, store.remove_run

    def manifest(self) -> bytes | None:
        return self._tables.manifest(self._name)

    def put_manifest(self, data: bytes) -> None:
        self._tables.put_manifest(self._name, data)
