"""The log of a Delta table: the files and columns that one version has.

A version is what the newest checkpoint before it has, changed by the commits since. What a log may have and this module
does not know is an error, because then Spark reads the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

FIELD_ID: Final = "parquet.field.id"
"""The metadata of a column with its number, by which a reader may look it up in a file."""

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet", re.ASCII)
# What the protocol lets a reader not know, because it changes neither which files a version has nor how they are read,
# or because it shows in the files or the log: types of columns, mapped names, deleted rows.
_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "vacuumProtocolCheck"}
)
_VERSIONS: Final = (1, 2)
_FEATURES_VERSION: Final = 3
_ACTIONS: Final = frozenset({"txn", "add", "remove", "metaData", "protocol", "domainMetadata"})
# Writers make columns for these also in checkpoints that have all actions themselves.
_OTHER_FILES: Final = ("sidecar", "checkpointMetadata")
_ELSEWHERE: Final = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_MODE: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


class LogError(Exception):
    """The table is left to Spark. Its text tells why, for users."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table.

    Args:
        path: Its path below the folder of the table.
        size: Its size in bytes.
        values: The values of the columns of partitions, in the order of these; None for NULL.
        has_deleted_rows: Whether a deletion vector hides rows of it.
    """

    path: str
    size: int
    values: tuple[str | None, ...]
    has_deleted_rows: bool


@dataclass(frozen=True)
class Snapshot:
    """A version of a table.

    Args:
        table: The identity of the table.
        columns: The name that each column has in the files, in the order of the columns.
        partitions: The columns of partitions.
        files: The files.
    """

    table: str
    columns: Mapping[str, str]
    partitions: tuple[str, ...]
    files: tuple[DataFile, ...]

    def lines(self) -> Iterator[str]:
        """Yield the snapshot as texts, one for each file behind the first."""
        yield json.dumps([self.table, dict(self.columns), self.partitions])
        for each in self.files:
            yield json.dumps([each.path, each.size, each.values, each.has_deleted_rows])

    @staticmethod
    def of_lines(lines: Iterable[str]) -> Snapshot:
        """Return the snapshot that `lines` has made texts of."""
        (table, columns, partitions), *files = map(json.loads, lines)
        return Snapshot(
            table,
            columns,
            tuple(partitions),
            tuple(DataFile(path, size, tuple(values), has) for path, size, values, has in files),
        )


def snapshot(folder: str, version: int, filesystem: fs.FileSystem) -> Snapshot:
    """Return a version of a table.

    Args:
        folder: The folder of the table, without a slash at its end.
        version: The number of the version.
        filesystem: The file system that has the folder.

    Raises:
        LogError: The log is damaged, has no such version any more, or has an action that is not known here.
    """
    try:
        return _State().after(folder, version, filesystem).snapshot()
    except (pa.ArrowException, OSError) as error:
        raise LogError(f"its log cannot be read: {str(error).splitlines()[0]}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LogError(f"its log is not as the protocol of Delta has it: {type(error).__name__}: {error}") from None


@dataclass
class _State:
    """What the actions of a log have made so far."""

    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def after(self, folder: str, version: int, filesystem: fs.FileSystem) -> _State:
        """Return the state of a version."""
        names = [each.base_name for each in filesystem.get_file_info(fs.FileSelector(f"{folder}/_delta_log"))]
        start, parts = _checkpoint(names, version)
        for name in parts:
            self._apply(_rows(f"{folder}/_delta_log/{name}", filesystem))
        known_names = set(names)
        for number in range(start + 1, version + 1):
            name = f"{number:020}.json"
            if name not in known_names:
                raise LogError(f"its log does not have the version {number:,} any more")
            with filesystem.open_input_stream(f"{folder}/_delta_log/{name}", compression=None) as file:
                lines = file.read().decode().split("\n")
            self._apply([json.loads(line) for line in lines if line.strip()])
        return self

    def _apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of a version, in which the order of lines has no meaning.

        A file of which rows are deleted is removed without its deletion vector, and added with it.
        """
        added_files: dict[str, Mapping[str, Any]] = {}
        for action in actions:
            if action.get("protocol") is not None:
                self.protocol = action["protocol"]
            if action.get("metaData") is not None:
                self.metadata = action["metaData"]
            if action.get("remove") is not None:
                self.files.pop(action["remove"]["path"], None)
            add = action.get("add")
            if add is not None:
                if add["path"] in added_files:
                    raise LogError(f"its log adds the file {add['path']} twice in one version")
                added_files[add["path"]] = add
        self.files |= added_files

    def snapshot(self) -> Snapshot:
        """Return the state as a snapshot. Raises LogError."""
        _check_protocol(self.protocol)
        configuration = dict(self.metadata["configuration"])
        mode = configuration.get(_MODE, "none")
        if mode not in {"none", "name"}:
            raise LogError(f"its columns are mapped by {mode}")
        fields = json.loads(self.metadata["schemaString"])["fields"]
        if mode == "none" and any(FIELD_ID in each["metadata"] for each in fields):
            raise LogError("it has columns with numbers for files")
        columns = {each["name"]: each["metadata"][_PHYSICAL] if mode == "name" else each["name"] for each in fields}
        if len({name.casefold() for name in columns.values()}) != len(fields):
            raise LogError("it has columns whose names in the files are alike")
        partitions = tuple(self.metadata["partitionColumns"])
        partition_columns = [columns[name] for name in partitions]
        return Snapshot(
            self.metadata["id"],
            columns,
            partitions,
            tuple(_file(add, partition_columns) for add in self.files.values()),
        )


def _check_protocol(protocol: Mapping[str, Any]) -> None:
    version = protocol["minReaderVersion"]
    if version not in {*_VERSIONS, _FEATURES_VERSION}:
        raise LogError(f"it has the reader version {version} of the protocol")
    unknown_features = set(protocol.get("readerFeatures") or ()) - _FEATURES
    if unknown_features:
        raise LogError(f"it has the features {', '.join(sorted(unknown_features))}")


def _file(add: Mapping[str, Any], partitions: Iterable[str]) -> DataFile:
    path = unquote(add["path"])
    if _ELSEWHERE.match(add["path"]) or ".." in path.split("/"):
        raise LogError(f"its file {path} is not in its folder")
    values = dict(add["partitionValues"])
    # An empty text is NULL, whatever the type.
    texts = tuple(values[name] or None for name in partitions)
    return DataFile(path, add["size"], texts, add.get("deletionVector") is not None)


def _checkpoint(names: Iterable[str], version: int) -> tuple[int, list[str]]:
    """Return the version of the newest whole checkpoint up to a version, and its files; -1 and none without one."""
    parts_by_version: dict[tuple[int, int], list[str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None and int(match[1]) <= version:
            parts_by_version.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
    whole = {key: parts for key, parts in parts_by_version.items() if len(parts) == key[1]}
    if not whole:
        return -1, []
    newest = max(whole)
    return newest[0], sorted(whole[newest])


def _rows(path: str, filesystem: fs.FileSystem) -> list[Mapping[str, Any]]:
    """Return the actions of a part of a checkpoint."""
    with filesystem.open_input_file(path) as file, pq.ParquetFile(file) as parquet:
        unknown_columns = set(parquet.schema_arrow.names) - _ACTIONS - set(_OTHER_FILES)
        if unknown_columns:
            raise LogError(f"its checkpoint has {', '.join(sorted(unknown_columns))}")
        add_columns = [f"add.{each}" for each in ("path", "size", "partitionValues", "deletionVector")]
        table = parquet.read(columns=["protocol", "metaData", *add_columns, *_OTHER_FILES], use_threads=False)
    if any(name in table.column_names and table[name].null_count < len(table) for name in _OTHER_FILES):
        raise LogError("its checkpoint is in several files")
    return [row for row in table.to_pylist() if any(value is not None for value in row.values())]
