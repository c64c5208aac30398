"""PySpark's undocumented names, in each of its versions."""

import ast
import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.pandas import types as conversions

import foldflight
from foldflight.errors import RejectedError
from foldflight.spark import columns, versions

ROWS = st.StructType([st.StructField("at", st.TimestampType()), st.StructField("v", st.LongType())])
ROLES = ["the key 'at'", "the argument 'v' of sum"]


def of_4_1(
    dt: Any,
    error_on_duplicated_field_names_in_struct: bool = False,
    timestamp_utc: bool = True,
    prefers_large_types: bool = False,
) -> pa.DataType:
    return pa.timestamp("us", "UTC" if timestamp_utc else None) if isinstance(dt, st.TimestampType) else pa.int64()


def of_4_2(
    dt: Any,
    *,
    error_on_duplicated_field_names_in_struct: bool = False,
    timezone: str | None = None,
    prefers_large_types: bool = False,
) -> pa.DataType:
    assert timezone is not None
    return pa.timestamp("us", timezone) if isinstance(dt, st.TimestampType) else pa.int64()


@pytest.mark.parametrize("function", [of_4_1, of_4_2])
def test_timestamps_are_in_utc_in_each_version(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time zone is an argument of PySpark 4.2 and later, and the default of 4.1."""
    with monkeypatch.context() as patch:
        patch.setattr(conversions, "to_arrow_type", function)
        importlib.reload(versions)
        assert versions.arrow_type(st.TimestampType()) == pa.timestamp("us", "UTC")
        assert versions.arrow_type(st.LongType()) == pa.int64()
    importlib.reload(versions)


def test_a_timestamp_without_zone_stays_one() -> None:
    """The default of PySpark 4.1 makes it a TIMESTAMP_LTZ, and that of later versions does not."""
    assert versions.spark_type(pa.timestamp("us")) == st.TimestampNTZType()
    assert versions.spark_type(pa.list_(pa.timestamp("us"))) == st.ArrayType(st.TimestampNTZType())


def test_an_error_of_our_own_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a type that Spark does not pass to Python is refused; a wrong call of PySpark keeps its error."""

    def outdated(type_: st.DataType) -> pa.DataType:
        raise TypeError("to_arrow_type() got an unexpected keyword argument")

    with pytest.raises(RejectedError, match=r"the key 'at' is interval, which cannot be passed to Python"):
        columns.arrow_fields(st.StructType([st.StructField("at", st.CalendarIntervalType())]), ROLES)
    monkeypatch.setattr(columns, "arrow_type", outdated)
    with pytest.raises(TypeError, match="unexpected keyword"):
        columns.arrow_fields(ROWS, ROLES)


def test_undocumented_names_are_in_one_module() -> None:
    """Only `spark/versions.py` imports the module of PySpark whose functions differ between versions."""
    root = Path(foldflight.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "pyspark.sql.pandas.types"
    }
    assert found == {"spark/versions.py"}
