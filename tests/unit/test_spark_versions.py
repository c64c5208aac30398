"""What differs between versions of PySpark, in the version that is installed: `make test-spark` runs this on each."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

import foldflight
from docs.tables import versions_table
from foldflight.engine.query.blocks import without_nullability
from foldflight.errors import RejectedError
from foldflight.spark.types import arrow_fields
from foldflight.spark.versions import facts, sessions, states, types
from foldflight.spark.versions.facts import FEATURES, VERSIONS, Feature, require
from foldflight.spark.versions.states import upgrade_checkpoint
from tests.spark_sessions import SPARK

ROWS = st.StructType([st.StructField("at", st.TimestampType()), st.StructField("v", st.LongType())])
ROLES = ["the key 'at'", "the argument 'v' of sum"]
PLAIN = [
    st.BooleanType(),
    st.ByteType(),
    st.ShortType(),
    st.IntegerType(),
    st.LongType(),
    st.FloatType(),
    st.DoubleType(),
    st.DecimalType(38, 18),
    st.DecimalType(4, 0),
    st.StringType(),
    st.BinaryType(),
    st.DateType(),
    st.TimestampType(),
    st.TimestampNTZType(),
    st.DayTimeIntervalType(),
    st.NullType(),
    *(getattr(st, name)() for name in ("VariantType", "TimeType") if hasattr(st, name)),
]
NESTED = [
    *(st.ArrayType(each) for each in PLAIN),
    st.ArrayType(st.LongType(), containsNull=False),
    *(st.MapType(st.StringType(), each) for each in PLAIN),
    st.MapType(st.LongType(), st.ArrayType(st.DateType()), valueContainsNull=False),
    st.StructType([st.StructField(f"{place}", each, bool(place % 2)) for place, each in enumerate(PLAIN)]),
    st.StructType([]),
]
# Python's table of 3.5 lacks what its JVM passes all the same.
BEYOND_3_5 = (st.TimestampType, st.TimestampNTZType)


def of_pyspark(type_: st.DataType) -> pa.DataType:
    """Return the Arrow type of a type as PySpark's own table has it."""
    takes_time_zone = "timezone" in inspect.signature(to_arrow_type).parameters
    return to_arrow_type(type_, **({"timezone": "UTC"} if takes_time_zone else {}))


@pytest.mark.parametrize("type_", PLAIN + NESTED, ids=str)
def test_arrow_types_are_those_of_pyspark(type_: st.DataType) -> None:
    """Our table of types and PySpark's agree, in both directions."""
    ours = types.arrow_type(type_)
    if SPARK < (4, 0) and isinstance(type_, (st.ArrayType, st.MapType, st.StructType)) and _has_times(type_):
        return
    theirs = of_pyspark(type_)
    if SPARK < (4, 1):  # their JVM has the nullability of members, and Python's table says less
        ours, theirs = without_nullability(ours), without_nullability(theirs)
    assert ours == theirs
    if (
        SPARK >= (4, 0) and "variant" not in type_.simpleString()
    ):  # it is known by metadata, which functions do not give
        assert types.spark_type(ours) == from_arrow_type(ours, prefer_timestamp_ntz=True)


def _has_times(type_: st.DataType) -> bool:
    parts = {st.ArrayType: ("elementType",), st.MapType: ("keyType", "valueType")}.get(type(type_), ())
    inner = [getattr(type_, name) for name in parts]
    inner += [each.dataType for each in type_] if isinstance(type_, st.StructType) else []
    return any(isinstance(each, BEYOND_3_5) or _has_times(each) for each in inner)


@pytest.mark.parametrize(
    "type_", [pa.large_string(), pa.large_binary(), pa.binary(3), pa.list_(pa.int64(), 2)], ids=str
)
def test_other_arrow_types_have_the_types_of_pyspark(type_: pa.DataType) -> None:
    """Types that Spark does not pass to Python but reads from it."""
    if SPARK >= (4, 1):  # older tables lack some, and all JVMs read them
        assert types.spark_type(type_) == from_arrow_type(type_)


def test_members_become_nullable() -> None:
    """So do members of members; old versions of PySpark have no function for it."""
    inner = st.StructType([st.StructField("x", st.ArrayType(st.LongType(), containsNull=False), nullable=False)])
    map_type = st.MapType(st.StringType(), inner, valueContainsNull=False)
    result = st.StructType([st.StructField("x", st.ArrayType(st.LongType()))])
    assert types.nullable(map_type) == st.MapType(st.StringType(), result)


def test_timestamps_are_in_utc_or_without_zone() -> None:
    """The zone is an argument of PySpark 4.2's own table, and the kind of a time without zone depends on a default."""
    assert types.arrow_type(st.TimestampType()) == pa.timestamp("us", "UTC")
    assert types.spark_type(pa.timestamp("us")) == st.TimestampNTZType()
    assert types.spark_type(pa.list_(pa.timestamp("us"))) == st.ArrayType(st.TimestampNTZType())


def test_a_type_of_a_newer_spark_is_refused_with_the_remedy() -> None:
    """A result of a type that this Spark does not have is refused when the query is built."""
    if hasattr(st, "TimeType"):
        assert types.spark_type(pa.time64("us")) == st.TimeType()
    else:
        with pytest.raises(RejectedError, match=r"TIME is new in Spark 4\.1; declare another result_type"):
            types.spark_type(pa.time64("us"))
    with pytest.raises(RejectedError, match="has no type for uint64"):
        types.spark_type(pa.uint64())


def test_an_error_of_our_own_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a type that Spark does not pass to Python is refused; a wrong call of PySpark keeps its error."""

    def raise_outdated(type_: st.DataType) -> pa.DataType:
        raise TypeError("arrow_type() got an unexpected keyword argument")

    interval = getattr(st, "CalendarIntervalType", st.YearMonthIntervalType)()
    with pytest.raises(RejectedError, match=r"the key 'at' is interval.*, which cannot be passed to Python"):
        arrow_fields(st.StructType([st.StructField("at", interval)]), ROLES[:1])
    monkeypatch.setattr("foldflight.spark.types.arrow_type", raise_outdated)
    with pytest.raises(TypeError, match="unexpected keyword"):
        arrow_fields(ROWS, ROLES)


DOCUMENTED = {
    "pyspark",
    "pyspark.errors",
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.streaming",
    "pyspark.sql.types",
    "pyspark.sql.window",
}
# Their names in Spark 4 that 3.5 does not have, as far as the code needs them.
NEW = {"StatefulProcessor", "StatefulProcessorHandle", "VariantType", "VariantVal", "TimeType", "arrow_udf", "TableArg"}


@pytest.mark.every_turn
def test_undocumented_and_new_names_are_in_one_room() -> None:
    """Only `spark/versions/` imports modules of PySpark that its reference does not have, and names newer than 3.5."""
    root = Path(foldflight.__file__).parent
    result = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _is_bound_to_a_version(node)
    }
    assert {Path(path).parent for path in result} == {Path("spark/versions")}


def _is_bound_to_a_version(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in {*NEW, "transformWithState", "transformWithStateInPandas"}
    if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pyspark":
        return node.module not in DOCUMENTED or any(each.name in NEW for each in node.names)
    return isinstance(node, ast.Import) and any(each.name.startswith("pyspark.") for each in node.names)


@pytest.mark.parametrize("feature", FEATURES, ids=[each.what for each in FEATURES])
def test_features_are_there_since_the_version_of_the_table(feature: Feature) -> None:
    """The table says the same as the installed PySpark."""
    assert feature.has() == (tuple(map(int, feature.since.split("."))) <= SPARK)
    assert feature.remedy or feature.since == "3.5"


def test_features_that_a_version_lacks_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing feature, the version that has it, the one that is here, and what to do."""
    monkeypatch.setattr(facts.pyspark, "__version__", "3.5.9")
    feature = Feature("doors", "4.7", lambda: False, "use a window")
    with pytest.raises(RejectedError) as excinfo:
        require(feature, "the doors of this query")
    message = "the doors of this query need Spark 4.7 or later, and this is Spark 3.5.9; use a window"
    assert (excinfo.value.code, excinfo.value.message) == ("SETTINGS", message)
    require(Feature("doors", "3.5", lambda: True), "these")


def test_the_table_has_each_version_and_grows_only() -> None:
    """What one version can do, all later ones can."""
    rows = [line.strip("|").split("|") for line in versions_table().splitlines()]
    assert [each.strip() for each in rows[0][1:]] == list(VERSIONS)
    for row in rows[2:]:
        marks = [each.strip() == "yes" for each in row[1:]]
        assert all(later >= earlier for earlier, later in itertools.pairwise(marks)), row
    assert ".".join(metadata.version("pyspark").split(".")[:2]) in VERSIONS


def test_errors_have_a_condition_a_message_and_places() -> None:
    """Errors of all versions have a message, a condition and places."""
    from pyspark.errors import AnalysisException

    names = {"errorClass" if SPARK >= (4, 0) else "error_class": "UNSUPPORTED_OPERATION"}
    parameters = {"messageParameters" if SPARK >= (4, 0) else "message_parameters": {"operation": "x"}}
    error: Any = AnalysisException(**names, **parameters)
    assert sessions.condition_of(error) == "UNSUPPORTED_OPERATION"
    assert "not supported" in sessions.message_of(error)
    assert sessions.contexts_of(error) == []


class _Context:
    """What `check_workers` asks of a SparkContext; not its files, for 80 calls of the JVM, unless they decide."""

    master = "local[2]"
    pythonExec = "python3"  # noqa: N815 - as PySpark names it

    environment: Mapping[str, str] = {"PYTHONHASHSEED": "0"}


@pytest.mark.parametrize("has_it", [True, False])
def test_workers_whose_python_lacks_the_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_it: bool
) -> None:
    """On this machine only, where the driver can try the python3 that nobody chose, and sends no files of Python."""
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\nexit {0 if has_it else 1}\n", encoding="utf-8")
    python.chmod(0o755)
    session: Any = SimpleNamespace(sparkContext=_Context())
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    sessions.check_workers(session)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if has_it:
        sessions.check_workers(session)
        return
    session.sparkContext.listFiles = ()
    with pytest.raises(RejectedError, match=rf"{python}, which has no foldflight .* PYSPARK_PYTHON={sys.executable}"):
        sessions.check_workers(session)
    session.sparkContext.master = "spark://host:7077"
    sessions.check_workers(session)
    session.sparkContext.master = "local[2]"
    session.sparkContext.listFiles = ("foldflight.zip",)
    sessions.check_workers(session)
    session.sparkContext.listFiles = ()
    session.sparkContext.environment = {"PYTHONPATH": str(tmp_path)}
    sessions.check_workers(session)
    session.sparkContext.environment = {}
    session.sparkContext.pythonExec = str(python)
    sessions.check_workers(session)


OPERATOR = "transformWithStateInP{}Exec"


def stored_checkpoint(folder: Path, place: str, name: str = OPERATOR.format("ySpark")) -> Path:
    """Write the metadata and files of a stateful operator whose checkpoint was in a place; return the metadata."""
    metadata = folder / "state" / "0" / "_metadata" / "v2" / "3"
    metadata.parent.mkdir(parents=True)
    schema = folder / "state" / "0" / "_stateSchema" / "default" / "0_a"
    schema.parent.mkdir(parents=True)
    schema.touch()
    store = {"storeName": "default", "stateSchemaFilePaths": [f"{place}/state/0/_stateSchema/default/0_a"]}
    operator_metadata = {"operatorInfo": {"operatorId": 0, "operatorName": name}, "stateStoreInfo": [store]}
    metadata.write_text(f"v2\n{json.dumps(operator_metadata)}")
    metadata.with_name(".3.crc").touch()
    return metadata


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        ("file:/old/prices", "{folder}/bucket/ck", "file:{folder}/bucket/ck"),
        ("s3a://old/prices", "file://{folder}/bucket/ck", "file:{folder}/bucket/ck"),
        ("s3a://old/prices", "s3://bucket/ck?region=eu-west-1", "s3a://bucket/ck"),
        ("s3://old/prices", "s3://bucket/ck/", "s3://bucket/ck"),
        ("hdfs://one:8020/prices", "hdfs://two:8020/bucket/ck", "hdfs://two:8020/bucket/ck"),
    ],
)
def test_a_moved_checkpoint_gets_its_new_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, now: str, after: str
) -> None:
    """Also in object stores, where Spark and pyarrow have names of their own for the same place."""
    folder = tmp_path / "a b"
    metadata = stored_checkpoint(folder / "bucket" / "ck", before)
    now, after = (each.format(folder=folder) for each in (now, after))
    if not now.startswith(("/", "file:")):
        remote = SubTreeFileSystem(str(folder), LocalFileSystem())
        monkeypatch.setattr(states, "FileSystem", SimpleNamespace(from_uri=lambda _: (remote, "bucket/ck")))
    assert [upgrade_checkpoint(now.replace(" ", "%20") if now.startswith("file:") else now) for _ in range(2)] == [1, 0]
    version, _, body = metadata.read_text().partition("\n")
    assert version == "v2"
    assert json.loads(body)["stateStoreInfo"][0]["stateSchemaFilePaths"] == [
        f"{after}/state/0/_stateSchema/default/0_a"
    ]
    assert not metadata.with_name(".3.crc").exists()


def test_the_new_place_is_found_in_the_given_file_system(tmp_path: Path) -> None:
    """The place is the former one, or the place of a bucket; otherwise it is not known."""
    remote = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    stored_checkpoint(tmp_path / "bucket" / "ck", "s3a://bucket/ck", OPERATOR.format("andas"))
    assert [upgrade_checkpoint("bucket/ck", remote) for _ in range(2)] == ([1, 0] if states._HAS_ROWS else [0, 0])
    metadata = stored_checkpoint(tmp_path / "bucket" / "new", "s3a://bucket/ck")
    assert upgrade_checkpoint("bucket/new", remote) == 1
    assert '"s3a://bucket/new/state/0/_stateSchema/default/0_a"' in metadata.read_text()
    metadata = stored_checkpoint(tmp_path / "bucket" / "other", "abfss://c@account/ck")
    metadata_text = metadata.read_text()
    with pytest.raises(RejectedError, match=r"was in abfss://c@account/ck; give its new URI, without filesystem="):
        upgrade_checkpoint("bucket/other", remote)
    assert metadata.read_text() == metadata_text
