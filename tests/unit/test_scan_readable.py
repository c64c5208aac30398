"""Which columns tasks of a scan may read."""

from __future__ import annotations

from pyspark.sql import types as st

from foldflight.spark.scans.readable import readable_type


def test_padded_texts() -> None:
    """Of a table with CHAR, as Delta's tells it by metadata, Spark pads texts that files have without blanks."""
    assert readable_type(st.StructField("c", st.StringType())) is not None
    padded = {"__CHAR_VARCHAR_TYPE_STRING": "char(5)"}
    assert readable_type(st.StructField("c", st.StringType(), metadata=padded)) is None
    for type_ in (st.CharType(5), st.VarcharType(5)):
        assert readable_type(st.StructField("c", type_)) is None


def test_collations() -> None:
    """Texts with a collation are left to Spark, for which two of them may be equal that differ."""
    assert readable_type(st.StructField("c", st.StringType("UTF8_LCASE"))) is None
