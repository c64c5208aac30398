"""The files of a scan, as Spark lists them, and the values of partition columns, which files do not store."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from foldflight.spark.scans.footers import OpenFilesystem


class UnreadableError(Exception):
    """The rows are left to Spark. Its text tells why, for users."""


@dataclass(frozen=True)
class Listing:
    """The files with the rows of a scan.

    Args:
        paths: Their paths in the file system.
        partitions: The columns that the files do not store, because all rows of a file have the same value.
        texts: The values of the partition columns for each path, as the names of its folders or the log of a table
            have them.
        stored: The names of columns in the files, where they differ from the names that users write.
        sizes: The sizes of files in bytes, if the log of a table has them. Other sizes are known when files are opened.
        is_declared: Whether the log of a table declares the columns. A column that no file has is then NULL.
    """

    paths: tuple[str, ...]
    partitions: tuple[str, ...]
    texts: Mapping[str, tuple[str | None, ...]]
    stored: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    is_declared: bool = False

    def constants_of(self, column: st.StructField) -> dict[str, Any]:
        """Return the value of a partition's column for each path. Raises UnreadableError."""
        index = self.partitions.index(column.name)
        values = {text: constant(text, column) for text in {texts[index] for texts in self.texts.values()}}
        return {path: values[texts[index]] for path, texts in self.texts.items()}


class Files(Protocol):
    """The files of a scan."""

    @property
    def df(self) -> DataFrame:
        """Spark's read of them, with all columns and rows."""

    @property
    def open_filesystem(self) -> OpenFilesystem | None:
        """Makes the file system. None: the one of this machine."""

    def listing(self) -> Listing:
        """Return the files with rows. Raises UnreadableError."""


_ADDRESS: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(/.*)", re.DOTALL)


def path_of(address: str, *, has_filesystem: bool) -> str:
    """Return the path that a file system takes for an address of Hadoop, which is not encoded.

    Raises:
        UnreadableError: The address is not one of this machine, and no other file system is given.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise UnreadableError(f"{address} is not an address of a file")
    scheme, host, path = match.groups()
    if not has_filesystem and scheme not in {None, "file"}:
        raise UnreadableError(f"files of {scheme}: are read with scan(..., filesystem=...)")
    return (host or "") + path


def listed_paths(df: DataFrame, *, is_encoded: bool, has_filesystem: bool) -> list[str]:
    """Return the paths of the files that Spark reads for a DataFrame, as a file system takes them.

    Args:
        df: The DataFrame.
        is_encoded: Whether Spark encodes the addresses as URLs do. Delta does not.
        has_filesystem: Whether the user has given a file system.

    Raises:
        UnreadableError: They are not of this machine, and no file system is given.
    """
    uris = df.inputFiles()
    return [path_of(unquote(each) if is_encoded else each, has_filesystem=has_filesystem) for each in uris]


_WHOLE: Final = re.compile(r"0|-?[1-9]\d*", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_BITS: Final[Mapping[type[st.DataType], int]] = {
    st.ByteType: 8,
    st.ShortType: 16,
    st.IntegerType: 32,
    st.LongType: 64,
}


def constant(text: str | None, column: st.StructField) -> Any:
    """Return the value of a partition column, if there is only one way to read its text.

    Args:
        text: The text; None for NULL.
        column: The column.

    Raises:
        UnreadableError: Only Spark knows which value the text stands for, as for fractions and timestamps.
    """
    type_ = column.dataType
    if text is None:
        return None
    bits = _BITS.get(type(type_))
    if bits is not None and _WHOLE.fullmatch(text) and -(1 << (bits - 1)) <= int(text) < 1 << (bits - 1):
        return int(text)
    if isinstance(type_, st.DateType) and _DAY.fullmatch(text):
        with suppress(ValueError):
            return datetime.date.fromisoformat(text)
    if isinstance(type_, st.BooleanType) and text in {"true", "false"}:
        return text == "true"
    if type_ == st.StringType():
        return text
    raise UnreadableError(f"the partition {column.name}={text} is read as {type_.simpleString()} by Spark only")
