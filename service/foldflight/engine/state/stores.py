"""Several state tables in one store, with their manifests in one.

A bucket of a query with views has a table of groups, and a table of entries for each view. The runs of all tables share
a map, since their names are unique. Their manifests are stored together, because a checkpoint of Spark has one variable
for the manifest, and because they must be of the same commit.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from foldflight.engine.state.manifest import FORMAT_OF_SEVERAL, MAGIC, Manifest, RunStore, manifests_of
from foldflight.engine.state.runs import sealed

__all__ = ["GROUPS", "TableStores"]

GROUPS: Final = ""
"""The name of the table of groups."""


class TableStores:
    """The stores of several tables, by name.

    Manifests are stored when `write` is called. A store that was written without views has one manifest, that of the
    groups, and is continued.

    Args:
        store: The storage of the bytes.

    Attributes:
        commits: The number of commits so far.

    Raises:
        RejectedError: STATE_MISMATCH, for a manifest of another format.
        CorruptError: STATE_CHECKSUM, if the manifest is damaged.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._manifests: dict[str, bytes] = {}
        self.commits = 0
        data = store.manifest()
        if data is not None:
            self._manifests, self.commits = manifests_of(data)

    def of(self, name: str) -> RunStore:
        """Return the store of a table."""
        return _Part(name, self._manifests, self._store)

    @property
    def manifests(self) -> dict[str, Manifest]:
        """The manifests of all tables, by name."""
        return {name: Manifest.decode(data) for name, data in self._manifests.items()}

    def write(self) -> None:
        """Store the manifests."""
        tables = {name: base64.b64encode(data).decode() for name, data in self._manifests.items()}
        content: dict[str, Any] = {"format": FORMAT_OF_SEVERAL, "commits": self.commits, "tables": tables}
        self._store.put_manifest(sealed(MAGIC, json.dumps(content).encode()))


class _Part:
    """The store of one table."""

    def __init__(self, name: str, manifests: dict[str, bytes], store: RunStore) -> None:
        self._name = name
        self._manifests = manifests
        self._store = store

    def manifest(self) -> bytes | None:
        return self._manifests.get(self._name)

    def put_manifest(self, data: bytes) -> None:
        self._manifests[self._name] = data

    def run(self, run_id: str) -> bytes | None:
        return self._store.run(run_id)

    def put_run(self, run_id: str, data: bytes) -> None:
        self._store.put_run(run_id, data)

    def remove_run(self, run_id: str) -> None:
        self._store.remove_run(run_id)
