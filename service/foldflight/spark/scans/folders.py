"""Files of Parquet without a table: Spark lists them, and their folders tell the values of partitions."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from foldflight.errors import RejectedError
from foldflight.spark.scans.footers import OpenFilesystem
from foldflight.spark.scans.listing import Listing, UnreadableError, listed_paths
from foldflight.spark.versions.sessions import quiet

_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
# What the folder of a table has, as a pattern of Hadoop, and which kind of table has it.
_LOGS: Final = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata/*.metadata.json": "Iceberg"}
_SUMMARIES: Final = ("_metadata", "_common_metadata")


@dataclass(frozen=True)
class Folders:
    """Files and folders of Parquet.

    Args:
        df: Spark's read of them, with all columns and rows.
        paths: The paths and patterns that were given.
        open_filesystem: Makes the file system. None: the one of this machine.
    """

    df: DataFrame
    paths: tuple[str, ...]
    open_filesystem: OpenFilesystem | None

    def __str__(self) -> str:
        return ", ".join(map(repr, self.paths))

    def listing(self) -> Listing:
        """Return the files with rows. Raises UnreadableError."""
        if _may_overlap(self.paths):
            raise UnreadableError("the paths may name a file twice, whose rows are there twice then")
        paths = self._files()
        return Listing(tuple(paths), *self._partitions(paths))

    def _files(self) -> list[str]:
        paths = listed_paths(self.df, is_encoded=True, has_filesystem=self.open_filesystem is not None)
        # Spark lists files named so, reads no rows in them, and takes the columns from some of them. It lists no others
        # that are hidden.
        if any(path.rpartition("/")[2].startswith(_SUMMARIES) for path in paths):
            raise UnreadableError("there are files of summaries, which may tell other columns")
        return paths

    def _partitions(self, paths: Sequence[str]) -> tuple[tuple[str, ...], dict[str, tuple[str | None, ...]]]:
        """Return the names of the columns that are in the names of folders, and their values for each path.

        Spark puts such columns behind those of the files. No file may have one of them; the footers show that.
        """
        folders = {path: path.rpartition("/")[0] for path in paths}
        parts = {folder: _pairs(folder) for folder in set(folders.values())}
        longest = max((len(pairs) for pairs in parts.values()), default=0)
        columns = self.df.columns
        counts = range(min(longest, len(columns)), 0, -1)
        count = next((each for each in counts if _all_end_with(columns[-each:], parts.values())), 0)
        names = tuple(columns[len(columns) - count :])
        other_columns = set(columns) - set(names)
        for folder in parts:
            doubtful = next((each for each in folder.split("/") if _name_of(each) in other_columns), None)
            if doubtful is not None:
                raise UnreadableError(f"the folder {doubtful!r} is named like a column that is not its partition")
        values = {
            folder: tuple(_text(name, text) for name, text in pairs[len(pairs) - count :])
            for folder, pairs in parts.items()
        }
        return names, {path: values[folder] for path, folder in folders.items()}


def check_no_table(spark: SparkSession, paths: Iterable[str]) -> None:
    """Refuse folders of tables, whose files also have rows that the tables have deleted or replaced.

    Raises:
        RejectedError: SIGNATURE, with the read of the table.
    """
    for folder in dict.fromkeys(_places_of_logs(paths)):
        try:
            pattern = f"{folder}/{{{','.join(_LOGS)}}}"
            with quiet():  # twice, because Spark logs a warning with a trace if a single path is a pattern
                logs = spark.read.text([pattern, pattern], recursiveFileLookup=True).inputFiles()
        except Exception:  # noqa: BLE001 - also those of py4j
            # Most often there is no log. Of a folder that cannot be listed nothing is known, and Spark's read decides.
            logs = []
        for log in map(unquote, logs):
            table = _table_with(log)
            if table is not None:
                raise RejectedError("SIGNATURE", table)


def _places_of_logs(paths: Iterable[str]) -> Iterator[str]:
    """Yield the folders that may be tables with files of some paths: these, and the folders whose partitions they are.

    Each is a call of Spark, so one path stands for the other partitions of a folder, and for the other files in it.
    """
    seen_places: set[str] = set()
    for path in (each.rstrip("/") for each in paths):
        folders = [path]
        while _name_of(folders[-1].rpartition("/")[2]):
            folders.append(folders[-1].rpartition("/")[0])
        alike = path.rpartition("/")[0] if path.endswith(".parquet") else folders[-1]
        if alike not in seen_places:
            seen_places.add(alike)
            yield from folders


def _table_with(log: str) -> str | None:
    """Return why the folder with a log is refused; None if this is no log of a table."""
    for part, kind in _LOGS.items():
        folder, separator, name = log.partition(f"/{part.partition('/')[0]}/")
        if separator and (kind != "Iceberg" or name.endswith(".metadata.json")):
            folder = re.sub("^file:/+", "/", folder)
            name_text = f'"delta.`{folder}`"' if kind == "Delta" else '"..." with its name in the catalogue'
            return (
                f"{folder} is a table of {kind}, and its files also have rows that the table does not have any more; "
                f"read the table: scan(spark, table={name_text})"
            )
    return None


def _text(name: str, text: str) -> str | None:
    if "%" in text:
        raise UnreadableError(f"the partition {name}={text} is read by Spark only")
    return None if text == _NULL_FOLDER else text


def _all_end_with(names: Sequence[str], folders: Iterable[Sequence[tuple[str, str]]]) -> bool:
    return all([name for name, _ in pairs[-len(names) :]] == list(names) for pairs in folders)


def _name_of(folder: str) -> str:
    """Return the name of the column that a folder may be a part of; empty: of none."""
    name, equals, _ = folder.partition("=")
    return unquote(name) if equals else ""


def _may_overlap(paths: Sequence[str]) -> bool:
    """Return whether two paths may lead to one file. Spark tells each file once, and reads it for each path."""
    if len(paths) == 1:
        return "{" in paths[0]
    kinds = {
        (path.partition("/")[0], path.startswith("/")) if ":" in path or path[0] == "/" else None for path in paths
    }
    if len(kinds) > 1 or any(_PATTERN.search(path) for path in paths):
        return True
    parts = sorted(posixpath.normpath(path).split("/") for path in paths)
    # Of paths in this order, one that begins with another comes directly behind it, or behind such a one.
    return any(after[: len(before)] == before for before, after in pairwise(parts))


_PATTERN: Final = re.compile(r"[*?\[\]{}\\]")
_PAIR: Final = re.compile(r"([^=]+)=(.+)")


def _pairs(folder: str) -> list[tuple[str, str]]:
    """Return the names and values at the end of a folder's path."""
    pairs: list[tuple[str, str]] = []
    for name in reversed(folder.split("/")):
        match = _PAIR.fullmatch(name)
        if match is None:
            break
        pairs.insert(0, (match[1], match[2]))
    return pairs
