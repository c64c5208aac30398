"""Streams of every kind, stopped half-way: their checkpoints are recorded, for later versions to continue.

The archives are named after the Spark on which they were recorded. To record the checkpoints that are missing in the
archive of an installed Spark with the version of foldflight that is checked out, run this file there (a kind that is
recorded is never recorded again; remove the archive to record all), here on the Spark 4.0 of `make test-spark`:

    PYTHONPATH=.venv-spark-4.0:service:. python -m tests.spark.recorded_checkpoints
"""

from __future__ import annotations

import datetime as dt
import io
import json
import tarfile
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from foldflight import RejectedError, connect
from foldflight.spark import check_checkpoint, group_by, over, session, tumble, upgrade_checkpoint
from tests.spark import spark_functions
from tests.spark.test_stream import Stream
from tests.spark.test_stream_windows import Clicks
from tests.spark_sessions import PROVIDER, SPARK, local_builder

RECORDED_ON = ("4.0", "4.1", "4.3")
# A checkpoint names its folder in some of its files. In the archive this text stands for the folder.
FOLDER = "/the/recorded/folder"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """One kind of stream.

    Args:
        source: The class of the stream.
        query: The query.
        before: The rows of each epoch whose checkpoint is recorded.
        after: The rows of each later epoch.
        mode: The output mode of Spark.
    """

    source: type[Stream]
    query: Callable[[DataFrame], DataFrame]
    before: list[Rows]
    after: list[Rows]
    mode: str = "update"


def orders(*rows: tuple[str, str, int | None, int]) -> Rows:
    """Return rows (kind, customer, amount, quantity)."""
    return [
        {"op": op, "customer": customer, "amount": amount, "qty": qty, "x": None if amount is None else amount / 4}
        for op, customer, amount, qty in rows
    ]


def clicks(*rows: tuple[int, str, int]) -> Rows:
    """Return rows (minute, page, value)."""
    start = dt.datetime(2013, 1, 1, tzinfo=dt.UTC)
    return [{"at": start + dt.timedelta(minutes=at), "page": page, "v": v} for at, page, v in rows]


def watermarked(df: DataFrame) -> DataFrame:
    """Return a stream whose rows may be ten minutes late."""
    return df.withWatermark("at", "10 minutes")


def grouped(df: DataFrame) -> DataFrame:
    """Typed states, lists, bundles, FILTER and DISTINCT, with retractions."""
    functions = connect(spark_functions)
    return group_by(df, "customer", row_kind="op", buckets=2).agg(
        price=functions["weighted_avg"]("amount", "qty"),
        different=functions["count"]("amount").distinct(),
        total=functions["sum"]("x"),
        bundled=functions["bundled_sum"]("amount"),
        middle=functions["median"]("amount"),
        large=functions["count"]().where("amount > 50"),
    )


def pickled(df: DataFrame) -> DataFrame:
    """Pickled states."""
    low = connect(spark_functions)["percentile"]
    return group_by(df, "customer", buckets=2).agg(low=low("x", fraction=0.25), high=low("x", fraction=1.0))


def views(df: DataFrame) -> DataFrame:
    """A map and a list, of which one group has hundreds of entries."""
    texts = df.selectExpr("op", "customer", "cast(qty as string) text")
    return group_by(texts, "customer", row_kind="op", buckets=2).agg(n=connect(spark_functions)["seen"]("text"))


def windows(df: DataFrame) -> DataFrame:
    """Windows that the watermark closes."""
    functions = connect(spark_functions)
    return group_by(watermarked(df), "page", window=tumble("at", "1 hour"), emit="append", buckets=2).agg(
        n=functions["count"](), total=functions["sum"]("v"), different=functions["count"]("v").distinct()
    )


def sessions(df: DataFrame) -> DataFrame:
    """Sessions that later rows join."""
    functions = connect(spark_functions)
    return group_by(watermarked(df), "page", window=session("at", "30 minutes"), buckets=2).agg(
        n=functions["count"](), total=functions["sum"]("v")
    )


def framed(df: DataFrame) -> DataFrame:
    """Frames of rows, of time, and of all rows so far."""
    functions = connect(spark_functions)
    return over(watermarked(df), "page", order_by="at", buckets=2).agg(
        three=functions["sum"]("v").rows(-2, 0),
        hour=functions["sum"]("v").range("-30 minutes", 0),
        so_far=functions["count"]().where("v > 2"),
        middle=functions["median"]("v").rows(-2, 0),
    )


_CLICKS = [clicks((5, "a", 1), (50, "a", 2), (31, "b", 4), (1, "c", 1)), clicks((41, "a", 2), (62, "b", 16))]
_LATER_CLICKS = [
    clicks((10, "a", 8), (75, "b", 32), (62, "a", 64), (130, "c", 3)),
    clicks((131, "a", 5), (300, "d", 1)),
]
KINDS: dict[str, Kind] = {
    "grouped": Kind(
        Stream,
        grouped,
        [
            orders(("+I", "ann", 8, 1), ("+I", "bob", 90, 2), ("+I", "ann", 8, 3), ("+I", "cy", None, 1)),
            orders(("-U", "bob", 90, 2), ("+U", "bob", 60, 2), ("+I", "ann", 70, 1), ("-D", "cy", None, 1)),
        ],
        [
            orders(("-D", "ann", 8, 1), ("+I", "dee", 5, 5)),
            orders(("-D", "ann", 8, 3), ("-D", "bob", 60, 2), ("+I", "cy", 1, 1)),
        ],
    ),
    "pickled": Kind(
        Stream,
        pickled,
        [orders(("+I", "ann", 8, 1), ("+I", "bob", 90, 2), ("+I", "ann", 16, 3))],
        [orders(("+I", "ann", 4, 1), ("+I", "dee", 5, 5), ("+I", "bob", 100, 1))],
    ),
    "views": Kind(
        Stream,
        views,
        [orders(*(("+I", "ann", 1, each) for each in range(120)), ("+I", "bob", 1, 1), ("+I", "bob", 1, 1))],
        [
            orders(
                ("+I", "ann", 1, 7),
                ("+I", "ann", 1, 300),
                ("+I", "ann", 1, 301),
                ("-D", "ann", 1, 5),
                ("-D", "bob", 1, 1),
            )
        ],
    ),
    "windows": Kind(Clicks, windows, _CLICKS, _LATER_CLICKS, "append"),
    "sessions": Kind(Clicks, sessions, _CLICKS, _LATER_CLICKS),
    "over": Kind(Clicks, framed, _CLICKS, _LATER_CLICKS, "append"),
}


def values(outputs: list[Any]) -> list[str]:
    """Return the rows of all epochs as texts, sorted. When a stream stops, Spark may end an epoch without rows."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for rows in outputs for row in rows)


def archive_of(version: str) -> Path:
    """Return the archive that was recorded on a version of Spark."""
    return Path(__file__).with_name(f"recorded_checkpoints-{version}.tar.xz")


def unpack(version: str, name: str, folder: Path) -> Path:
    """Unpack a recorded stream into an empty folder, and return its checkpoint."""
    with tarfile.open(archive_of(version)) as archive:
        members = [member for member in archive.getmembers() if member.name.startswith(f"{name}/")]
        archive.extractall(folder, members, filter="data")
    checkpoint = folder / name / "checkpoint"
    for path in checkpoint.rglob("*"):
        if path.is_file() and FOLDER.encode() in (data := path.read_bytes()):
            path.write_bytes(data.replace(FOLDER.encode(), str(folder / name).encode()))
    return checkpoint


def continue_stream(spark: SparkSession, version: str, name: str, folder: Path) -> tuple[list[str], list[str]]:
    """Continue a stream that was recorded on a version of Spark in an empty folder.

    Returns:
        tuple[list[str], list[str]]: Its outputs, and those that are right.
    """
    kind = KINDS[name]
    unpack(version, name, folder)
    stream = kind.source(spark, folder / name, kind.query, kind.mode)
    if version == "4.0" < ".".join(map(str, SPARK)):
        checkpoint = str(folder / name / "checkpoint")
        with pytest.raises(RejectedError, match=r"STATE_MISMATCH: Spark 4\.0 has written .*upgrade_checkpoint"):
            check_checkpoint(stream.query(stream.input()), checkpoint)
        for path in (folder / name / "checkpoint" / "state").glob("*/_metadata/v2/0"):
            path.with_name(".0.crc").write_bytes(checksum_of(path.read_bytes()))  # the archive has none
        assert [upgrade_checkpoint(checkpoint) for _ in range(2)] == [1, 0]
    stream.files = len(kind.before)
    for rows in kind.after:
        stream.write(rows)
    return values(stream.run()), json.loads((folder / name / "expected.json").read_text())


def checksum_of(data: bytes) -> bytes:
    """Return what Hadoop writes beside a file with these bytes: a header, and a checksum of each 512 bytes."""
    sums = (zlib.crc32(data[at : at + 512]) for at in range(0, len(data), 512))
    return b"crc\0" + (512).to_bytes(4, "big") + b"".join(each.to_bytes(4, "big") for each in sums)


def record(spark: SparkSession, name: str, folder: Path) -> None:
    """Run one kind: the checkpoint after the first epochs, and what all further ones give without any restart."""
    kind = KINDS[name]
    whole = folder / "whole"
    whole.mkdir(parents=True)
    stream = kind.source(spark, whole, kind.query, kind.mode)
    for rows in [*kind.before, *kind.after]:
        stream.write(rows)
    expected = Counter(values(stream.run()))
    half = folder / name
    half.mkdir()
    stopped_stream = kind.source(spark, half, kind.query, kind.mode)
    for rows in kind.before:
        stopped_stream.write(rows)
    expected.subtract(values(stopped_stream.run()))
    assert min(expected.values()) >= 0, "the stream that stopped has given something else"
    for path in half.rglob("*"):
        if path.is_file() and str(half).encode() in (data := path.read_bytes()):
            path.write_bytes(data.replace(str(half).encode(), FOLDER.encode()))
    (half / "expected.json").write_text(json.dumps(sorted(expected.elements()), indent=1))


def main() -> None:
    """Add the missing checkpoints to the archive of the installed Spark."""
    members: dict[str, bytes] = {}
    path_of_archive = archive_of(".".join(map(str, SPARK)))
    if path_of_archive.exists():
        with tarfile.open(path_of_archive) as archive:
            members = {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}  # type: ignore[union-attr]
    recorded_names = {name.split("/")[0] for name in members}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        spark = (
            local_builder(folder)
            .config(PROVIDER, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
            .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
            .getOrCreate()
        )
        for name in KINDS:
            if name not in recorded_names:
                record(spark, name, folder / name)
                for path in sorted((folder / name / name).rglob("*")):
                    if path.is_file() and path.suffix not in {".crc", ".parquet"}:
                        members[str(path.relative_to(folder / name))] = path.read_bytes()
        spark.stop()
    with tarfile.open(path_of_archive, "w:xz") as archive:
        for name, data in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


if __name__ == "__main__":
    main()
