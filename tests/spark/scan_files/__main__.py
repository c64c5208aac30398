"""Writes the files of one writer, named by its version."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROWS = 24
_FLOAT = "CASE id % 6 WHEN 0 THEN 'NaN' WHEN 1 THEN '-0.0' WHEN 2 THEN '0.0' WHEN 3 THEN 'Infinity' ELSE id / 7 END"
# Each column with a NULL now and then, and few texts, so that there are dictionaries.
_COLUMNS = {
    "k": "id",
    "v": "CAST(IF(id % 5 = 0, NULL, id * 7 % 11) AS INT)",
    "small": "CAST(id * 2731 - 32768 AS SMALLINT)",
    "tiny": "CAST(id * 11 - 128 AS TINYINT)",
    "f": f"CAST({_FLOAT} AS FLOAT)",
    "d": f"CAST({_FLOAT} AS DOUBLE)",
    "s": "CASE id % 5 WHEN 0 THEN '' WHEN 1 THEN 'a' WHEN 2 THEN 'ä ' WHEN 3 THEN NULL ELSE 'a' || chr(0) END",
    "b": "IF(id % 3 = 0, NULL, id % 2 = 0)",
    "day": "DATE'{first}-03-01' + INTERVAL '50' DAY * id",
    "at": "TIMESTAMP'{first}-03-10 06:30:00.123456 UTC' + INTERVAL '5 01:00:00.000001' DAY TO SECOND * id",
    "clock": "TIMESTAMP_NTZ'{first}-11-03 01:30:00.5' + INTERVAL '5 01:00:00.000001' DAY TO SECOND * id",
    "few": "CAST(id * 3 - 40 AS DECIMAL(5, 2)) / 4",
}


def _spark() -> None:
    import pyspark
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    local = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    spark = builder.config(map=local).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    legacy = {"writeLegacyFormat": "true", "datetimeRebaseModeInWrite": "LEGACY", "int96RebaseModeInWrite": "LEGACY"}
    corrected_modes = {"datetimeRebaseModeInWrite": "CORRECTED", "int96RebaseModeInWrite": "CORRECTED"}
    for name, first, settings, options in (
        ("int96", "2024", {"outputTimestampType": "INT96"}, {}),
        ("micros-v2", "2024", {"outputTimestampType": "TIMESTAMP_MICROS"}, {"parquet.writer.version": "PARQUET_2_0"}),
        ("legacy", "1500", {"outputTimestampType": "TIMESTAMP_MICROS", **legacy}, {"compression": "gzip"}),
        ("legacy-int96", "1500", {"outputTimestampType": "INT96", **legacy}, {}),
        ("old", "1500", {"outputTimestampType": "TIMESTAMP_MILLIS", **corrected_modes}, {"compression": "zstd"}),
        (
            "old-int96",
            "1500",
            {"outputTimestampType": "INT96", **corrected_modes},
            {"parquet.enable.dictionary": "false"},
        ),
    ):
        before = {each: spark.conf.get(f"spark.sql.parquet.{each}") for each in settings}
        for each, value in settings.items():
            spark.conf.set(f"spark.sql.parquet.{each}", value)
        columns = [f"{text.format(first=first)} AS {column}" for column, text in _COLUMNS.items()]
        columns += ["CAST(id - 12 AS DECIMAL(18, 0)) AS whole", "CAST(id - 12 AS DECIMAL(38, 10)) / 3 AS wide"]
        columns += ["IF(id % 4 = 0, NULL, array(CAST(id AS INT), NULL)) AS items", "struct(id AS a, 'x' AS b) AS pair"]
        rows = spark.range(0, ROWS, 1, 1).selectExpr(*columns)
        rows = rows.selectExpr("*", "CAST(few AS DECIMAL(5, 2)) AS cents").drop("few").withColumnRenamed("cents", "few")
        with tempfile.TemporaryDirectory() as folder:
            rows.write.options(**options).parquet(f"{folder}/t")
            (part,) = Path(folder).glob("t/part-*.parquet")
            part.rename(HERE / f"spark-{pyspark.__version__}-{name}.parquet")
        for each, value in before.items():
            spark.conf.set(f"spark.sql.parquet.{each}", value)
    spark.stop()


def _rows() -> Any:
    """Return the rows as Arrow's, which other writers take."""
    import pyarrow.parquet as pq

    (source,) = HERE.glob("spark-4.0.*-micros-v2.parquet")
    return pq.read_table(source)


def _arrow() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = {
        "use_compliant_nested_type": False
    }  # the members of a list are called `item`, as earlier versions have them
    for name, options in (
        (
            "v2",
            {"data_page_version": "2.0", "row_group_size": 10, "compression": "zstd", "store_decimal_as_integer": True},
        ),
        ("int96", {"use_deprecated_int96_timestamps": True, "version": "1.0", **lists}),
        (
            "plain",
            {"use_dictionary": False, "write_statistics": False, "compression": "none", "store_schema": False, **lists},
        ),
    ):
        pq.write_table(_rows(), HERE / f"arrow-{pa.__version__}-{name}.parquet", **options)


def _duckdb() -> None:
    import duckdb

    rows = _rows()
    for name, options in (("v1", "ROW_GROUP_SIZE 2048"), ("v2", "PARQUET_VERSION V2, COMPRESSION zstd")):
        with duckdb.connect() as connection:
            connection.register("t", rows)
            connection.sql(f"COPY t TO '{HERE}/duckdb-{duckdb.__version__}-{name}.parquet' (FORMAT parquet, {options})")


def _polars() -> None:
    import polars

    (source,) = HERE.glob("spark-4.0.*-micros-v2.parquet")
    rows = polars.read_parquet(source)
    rows.write_parquet(HERE / f"polars-{polars.__version__}.parquet", row_group_size=10)
    in_ns = rows.with_columns(polars.col("at", "clock").dt.cast_time_unit("ns"))
    in_ns.write_parquet(HERE / f"polars-{polars.__version__}-ns.parquet", compression="snappy", statistics=False)


if __name__ == "__main__":
    {"spark": _spark, "arrow": _arrow, "duckdb": _duckdb, "polars": _polars}[sys.argv[1]]()
