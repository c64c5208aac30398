"""The log of a Delta table, without Spark: a version has the files and columns that delta-rs and the protocol tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from foldflight.spark.scans.deltalog import LogError, Snapshot, snapshot

LOCAL = fs.LocalFileSystem()


def read(folder: Path, version: int) -> Snapshot:
    """Return a version, and check that it is the same behind a way as text."""
    result = snapshot(str(folder), version, LOCAL)
    assert Snapshot.of_lines(result.lines()) == result
    return result


def test_each_version_has_the_files_that_delta_rs_lists(tmp_path: Path) -> None:
    """Each version has the files of delta-rs, with and without a checkpoint before it."""
    for number in range(6):
        table = pa.table({"k": pa.array([number, number + 1]), "p": pa.array(["a b/%", None])})
        if number == 4:
            deltalake.write_deltalake(str(tmp_path), table, mode="overwrite", partition_by=["p"])
        else:
            deltalake.write_deltalake(str(tmp_path), table, mode="append", partition_by=["p"])
        if number == 3:
            deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    for version in range(6):
        result = read(tmp_path, version)
        add_actions = pa.table(
            deltalake.DeltaTable(str(tmp_path), version=version).get_add_actions(flatten=True)
        ).to_pylist()
        assert sorted((each.size, each.values[0] or "") for each in result.files) == sorted(
            (each["size_bytes"], each["partition.p"] or "") for each in add_actions
        )
        assert all((tmp_path / each.path).stat().st_size == each.size for each in result.files)
        assert (dict(result.columns), result.partitions) == ({"k": "k", "p": "p"}, ("p",))
    (tmp_path / "_delta_log" / f"{2:020}.json").unlink()
    assert len(read(tmp_path, 5).files) == 4
    with pytest.raises(LogError, match="does not have the version 2 any more"):
        snapshot(str(tmp_path), 2, LOCAL)


PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
FIELD = {"name": "k", "type": "long", "nullable": True, "metadata": {}}


def metadata(*fields: Any, **configuration: str) -> dict[str, Any]:
    schema = json.dumps({"type": "struct", "fields": fields or [FIELD]})
    return {
        "metaData": {"id": "i", "schemaString": schema, "partitionColumns": [], "configuration": dict(configuration)}
    }


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "size": 1, "partitionValues": {}, **more}}


def remove(path: str) -> dict[str, Any]:
    return {"remove": {"path": path}}


def log(folder: Path, *commits: Sequence[Any]) -> int:
    """Write commits, and return the last version."""
    (folder / "_delta_log").mkdir(parents=True)
    for version, actions in enumerate(commits):
        (folder / "_delta_log" / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)) + "\n")
    return len(commits) - 1


def test_removed_files_are_left_out(tmp_path: Path) -> None:
    """In one commit, the order of adding and removing a file has no meaning; in two, it has."""
    first = [PROTOCOL, metadata(), add("a"), add("b"), add("c%20d")]
    file_with_deletions = add("b", deletionVector={"storageType": "u", "cardinality": 1})
    version = log(
        tmp_path, first, [file_with_deletions, remove("b")], [remove("a")], [add("e")], [remove("e"), add("a")]
    )
    assert {each.path: each.has_deleted_rows for each in read(tmp_path, 0).files} == dict.fromkeys(
        ["a", "b", "c d"], False
    )
    assert {each.path for each in read(tmp_path, 3).files} == {"b", "c d", "e"}
    assert {each.path: each.has_deleted_rows for each in read(tmp_path, version).files} == {
        "a": False,
        "b": True,
        "c d": False,
    }


def test_columns_have_the_names_of_the_last_metadata(tmp_path: Path) -> None:
    """The columns of files have the names that the last metadata tells, also if there are numbers beside these."""
    column_metadata = {"delta.columnMapping.physicalName": "k", "parquet.field.id": 1}
    mapped_field = {**FIELD, "name": "x", "metadata": column_metadata}
    names = {"delta.columnMapping.mode": "name"}
    version = log(tmp_path, [PROTOCOL, metadata()], [metadata(mapped_field, **names)])
    assert dict(read(tmp_path, 0).columns) == {"k": "k"}
    assert dict(read(tmp_path, version).columns) == {"x": "k"}


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ([metadata(**{"delta.columnMapping.mode": "id"})], "mapped by id"),
        ([metadata(**{"delta.columnMapping.mode": "name"})], "not as the protocol"),
        ([metadata({**FIELD, "metadata": {"parquet.field.id": 1}})], "numbers"),
        ([metadata(FIELD, {**FIELD, "name": "K"})], "alike"),
        ([{"protocol": {"minReaderVersion": 4}}], "reader version 4"),
        ([{"protocol": {"minReaderVersion": 3, "readerFeatures": ["deletionVectors", "next"]}}], "the features next"),
        ([{"protocol": {"minReaderVersion": 3, "readerFeatures": ["v2Checkpoint"]}}], "v2Checkpoint"),
        ([{"protocol": {"minReaderVersion": 3, "readerFeatures": ["catalogManaged"]}}], "catalogManaged"),
        ([add("/elsewhere/a")], "not in its folder"),
        ([add("s3://elsewhere/a")], "not in its folder"),
        ([add("../a")], "not in its folder"),
        ([add("%2e%2e/a")], "not in its folder"),
        ([add("a"), add("a", size=2)], "twice in one version"),
        ([{"add": {"path": "a", "partitionValues": {}}}], "not as the protocol"),
        (["a"], "not as the protocol"),
    ],
)
def test_logs_that_are_not_understood_are_left_to_spark(actions: list[Any], why: str, tmp_path: Path) -> None:
    """Unknown or malformed actions are errors."""
    version = log(tmp_path, [PROTOCOL, metadata()], actions)
    with pytest.raises(LogError, match=why):
        snapshot(str(tmp_path), version, LOCAL)


def test_a_damaged_log_is_an_error(tmp_path: Path) -> None:
    """A log that cannot be read, or lacks a checkpoint's part, is an error, and never an older version."""
    with pytest.raises(LogError, match="cannot be read"):
        snapshot(str(tmp_path / "none"), 0, LOCAL)
    version = log(tmp_path, [PROTOCOL, metadata()], [add("a")])
    part = tmp_path / "_delta_log" / f"{1:020}.checkpoint.{1:010}.{2:010}.parquet"
    part.write_bytes(b"PAR1")  # the other part is not there, so that it is no checkpoint
    assert len(read(tmp_path, version).files) == 1
    (tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    with pytest.raises(LogError, match="cannot be read"):
        snapshot(str(tmp_path), version, LOCAL)


_TEXTS = pa.map_(pa.string(), pa.string())
_METADATA = {"id": pa.string(), "schemaString": pa.string(), "configuration": _TEXTS}
_ADD = {"path": pa.string(), "size": pa.int64(), "partitionValues": _TEXTS}
CHECKPOINT = pa.schema(
    {
        "protocol": pa.struct({"minReaderVersion": pa.int32()}),
        "metaData": pa.struct({**_METADATA, "partitionColumns": pa.list_(pa.string())}),
        "add": pa.struct({**_ADD, "deletionVector": pa.struct({"cardinality": pa.int64()})}),
    }
)


def test_all_parts_of_a_checkpoint_count(tmp_path: Path) -> None:
    """All parts of a checkpoint count, and one with columns that are not known is an error."""
    version = log(tmp_path, [PROTOCOL, metadata(), add("a"), add("b"), add("c")])
    folder = tmp_path / "_delta_log"
    parts: list[list[Any]] = [[{"protocol": {"minReaderVersion": 1}}, metadata(), add("a")], [add("c")]]
    for number, rows in enumerate(parts, 1):
        checkpoint_table = pa.Table.from_pylist(rows, schema=CHECKPOINT)
        pq.write_table(checkpoint_table, folder / f"{version:020}.checkpoint.{number:010}.{2:010}.parquet")
    (folder / f"{version:020}.json").unlink()
    assert {each.path for each in read(tmp_path, version).files} == {"a", "c"}
    last = folder / f"{version:020}.checkpoint.{2:010}.{2:010}.parquet"
    pq.write_table(checkpoint_table.append_column("sidecar", pa.nulls(1, pa.string())), last)
    assert len(read(tmp_path, version).files) == 2
    for name, why in (("sidecar", "several files"), ("next", "checkpoint has next")):
        pq.write_table(checkpoint_table.append_column(name, pa.array(["x"])), last)
        with pytest.raises(LogError, match=why):
            snapshot(str(tmp_path), version, LOCAL)


def test_the_newest_checkpoint_counts(tmp_path: Path) -> None:
    """The newest checkpoint counts, whose commits may be gone; of its files it tells which have deleted rows."""
    version = log(tmp_path, [PROTOCOL, metadata()], [add("a")], [add("b")])
    folder = tmp_path / "_delta_log"
    first: list[Any] = [{"protocol": {"minReaderVersion": 1}}, metadata(), add("a")]
    for number, rows in ((1, first), (2, [*first, add("b", deletionVector={"cardinality": 1})])):
        pq.write_table(pa.Table.from_pylist(rows, schema=CHECKPOINT), folder / f"{number:020}.checkpoint.parquet")
        (folder / f"{number:020}.json").unlink()
    assert {each.path: each.has_deleted_rows for each in read(tmp_path, version).files} == {"a": False, "b": True}


def test_empty_texts_of_partitions_are_null(tmp_path: Path) -> None:
    """The protocol has an empty text for NULL, whatever the type of the column."""
    partitioned_metadata = metadata()
    partitioned_metadata["metaData"]["partitionColumns"] = ["k"]
    values: list[dict[str, str | None]] = [{"k": ""}, {"k": None}, {"k": "0"}]
    adds = [add(str(index), partitionValues=each) for index, each in enumerate(values)]
    version = log(tmp_path, [PROTOCOL, partitioned_metadata, *adds])
    assert [each.values for each in read(tmp_path, version).files] == [(None,), (None,), ("0",)]
