"""What a scan makes of the addresses of files, and of the texts that stand for values of partitions."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql import types as st

from foldflight.spark.scans.listing import UnreadableError, constant, path_of


def test_files_of_other_machines_are_not_looked_for() -> None:
    """A file of another machine is not looked for on this one, where another may have its path."""
    for address in ("file:///lake/a.parquet", "file:/lake/a.parquet", "/lake/a.parquet"):
        assert path_of(address, has_filesystem=False) == "/lake/a.parquet"
    for address in ("hdfs:///lake/a.parquet", "s3a://bucket/a.parquet"):
        with pytest.raises(UnreadableError, match=r"scan\(\.\.\., filesystem"):
            path_of(address, has_filesystem=False)
    assert path_of("s3a://bucket/a.parquet", has_filesystem=True) == "bucket/a.parquet"
    with pytest.raises(UnreadableError, match="not an address"):
        path_of("a.parquet", has_filesystem=False)


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("-128", st.ByteType(), -128),
        ("9223372036854775807", st.LongType(), 9223372036854775807),
        ("2026-02-28", st.DateType(), datetime.date(2026, 2, 28)),
        ("true", st.BooleanType(), True),
        ("007", st.StringType(), "007"),
        (None, st.IntegerType(), None),
    ],
)
def test_texts_of_partitions_are_read_in_one_way_only(text: str | None, type_: st.DataType, value: object) -> None:
    """There is one way to read these texts."""
    assert constant(text, st.StructField("p", type_)) == value


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("128", st.ByteType()),
        ("-129", st.ByteType()),
        ("007", st.IntegerType()),
        ("-0", st.IntegerType()),
        ("20260228", st.DateType()),  # Python reads it, and Spark does not
        ("2026-02-30", st.DateType()),
        ("TRUE", st.BooleanType()),
        ("1.0", st.DecimalType(5, 2)),
        ("1", st.DoubleType()),
    ],
)
def test_texts_of_partitions_with_several_meanings_are_left_to_spark(text: str, type_: st.DataType) -> None:
    """Of a text that may be read in another way, or is none of the type, only Spark knows the value."""
    with pytest.raises(UnreadableError, match="by Spark only"):
        constant(text, st.StructField("p", type_))
