"""Make build/spark.jsa, an archive of the classes that Spark loads. A JVM that maps it starts in 60 % of the CPU time.

Tests start a hundred JVMs, so the CI makes it first. It fits one Java and its options only, and Java ignores an archive
that does not fit. Usage: python -m tests.java_archive
"""

from __future__ import annotations

import os
import sys
import tempfile

from tests.spark_sessions import ARCHIVE, JAVA_OPTIONS

__all__ = ["make"]


def make() -> bool:
    """Run small queries in a JVM that writes the archive when it ends. Return whether there is one."""
    from foldflight.spark.java import prepare_local

    ARCHIVE.parent.mkdir(exist_ok=True)
    draft = ARCHIVE.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    options = (*JAVA_OPTIONS, "-Xlog:cds*=off", f'"-XX:ArchiveClassesAtExit={draft}"')
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    prepare_local(os.environ)
    _run_queries()
    if not draft.exists():
        return False
    draft.rename(ARCHIVE)
    return True


def _run_queries() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col

    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.local.dir", f"{folder}/local")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        files = f"{folder}/rows"
        rows = spark.range(100).select((col("id") % 7).alias("k"), col("id").cast("double").alias("x"))
        rows.write.parquet(files)
        rows.mapInArrow(lambda batches: batches, rows.schema).groupBy("k").count().sort("k").collect()
        counts = spark.readStream.schema(rows.schema).parquet(files).groupBy("k").count()
        writer = counts.writeStream.outputMode("complete").format("memory").queryName("counts")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        # Java ends when its standard input does, and writes the archive before.
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    if not make():
        print("This Java writes no archive of classes, so JVMs of the tests start slower.", file=sys.stderr)
