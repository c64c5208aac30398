"""Make build/spark.jsa, an archive of the classes that Spark loads. A JVM that maps it starts in 60 % of the CPU time.

Tests start a hundred JVMs, so the CI makes it first. It fits one Java and its options. Another Java starts without any
archive, so remove the file when Java changes (`make clean` does). Usage: python -m tests.java_archive
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.spark_sessions import ARCHIVE, JAVA_OPTIONS, NO_ARCHIVE_LOG, local_builder

__all__ = ["make"]

# A busy machine needs a minute for queries and archive.
_TIME_LIMIT_S = 300


def make() -> bool:
    """Run small queries in a JVM that writes the archive when it ends. Return whether there is one.

    Raises:
        subprocess.TimeoutExpired: The JVM did not end.
    """
    from foldflight.spark.java import prepare_local

    ARCHIVE.parent.mkdir(exist_ok=True)
    draft = ARCHIVE.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join((*JAVA_OPTIONS, NO_ARCHIVE_LOG, f'"-XX:ArchiveClassesAtExit={draft}"'))
    prepare_local(os.environ)
    if _run_queries() != 0 or not draft.exists():
        return False
    draft.rename(ARCHIVE)
    return True


def _run_queries() -> int:
    """Run queries of several kinds, and return the exit code of the JVM."""
    from pyspark.sql.functions import col

    with tempfile.TemporaryDirectory() as folder:
        spark = local_builder(Path(folder)).getOrCreate()
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
        try:
            code: int = jvm.wait(_TIME_LIMIT_S)
        finally:
            jvm.kill()
        return code


if __name__ == "__main__":
    if not make():
        print("This Java writes no archive of classes, so JVMs of the tests start slower.", file=sys.stderr)
