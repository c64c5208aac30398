"""Streams whose sink fails, as a program that a test kills: `python -m tests.spark.repeated_epochs FOLDER STEP`.

*whole*: all kinds of streams over all epochs, with no failure. *fail*: the sink of each stream fails in the second
epoch, after the states were stored; each stream is started again, and the program kills itself. *go on*: the rest.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from foldflight import connect
from foldflight.spark import configure, group_by
from tests.spark import spark_functions
from tests.spark.killed_query import session
from tests.spark.recorded_checkpoints import KINDS, Kind, framed, grouped, orders
from tests.spark.test_stream import Stream

EPOCHS = 5


def logged(df: DataFrame) -> DataFrame:
    """A list in a view, in the order of arrival."""
    texts = df.select("customer", sf.col("qty").cast("string").alias("text"))
    return group_by(texts, "customer", buckets=2).agg(n=connect(spark_functions)["seen_log"]("text"))


def streams() -> dict[str, Kind]:
    """Return the streams, with the rows of each epoch as the rows before."""
    clicks = KINDS["over"]
    lists = [
        orders(*(("+I", "ann", each, 7 * each % 50 + epoch) for each in range(60)), ("+I", "bob", 1, epoch))
        for epoch in range(EPOCHS)
    ]
    return {
        "views": Kind(Stream, logged, lists, []),
        "grouped": Kind(Stream, grouped, lists, []),
        "over": Kind(clicks.source, framed, [*clicks.before, *clicks.after], [], "append"),
    }


def open_streams(spark: Any, folder: Path) -> dict[str, Stream]:
    """Return the streams, without input."""
    result = {}
    for name, kind in streams().items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        if not (folder / name / "input").exists():
            result[name] = kind.source(spark, folder / name, kind.query, kind.mode)
            continue
        stream = result[name] = object.__new__(kind.source)
        stream.spark, stream.folder, stream.query, stream.mode, stream.progress = (
            spark,
            folder / name,
            kind.query,
            kind.mode,
            [],
        )
        stream.files = len(list((folder / name / "input").glob("*.parquet")))
    return result


def run(stream: Stream, rows: list[Any], *, fails_at: int | None = None) -> None:
    """Write input up to a number of epochs, and run the stream; the output of each epoch is a file."""
    for each in rows[stream.files :]:
        stream.write(each)

    def sink(batch: DataFrame, epoch: int) -> None:
        result = [row.asDict(recursive=True) for row in batch.collect()]
        if epoch == fails_at:
            raise OSError("the sink fails")
        (stream.folder / f"{epoch}.json").write_text(json.dumps(result, default=str))

    query = stream.query(stream.input()).writeStream.outputMode(stream.mode).foreachBatch(sink)
    query_run = query.option("checkpointLocation", str(stream.folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        query_run.awaitTermination()
    except StreamingQueryException:
        if fails_at is None:
            raise


def main(folder: Path, step: str) -> None:
    spark = session(folder)
    configure(spark, partitions=2, local_checkpoints=True)
    kinds = streams()
    for name, stream in open_streams(spark, folder).items():
        rows = kinds[name].before
        if step == "fail":
            run(stream, rows[:2], fails_at=1)
            run(stream, rows[:3])
        else:
            run(stream, rows)
    if step == "fail":
        os.kill(os.getpid(), signal.SIGKILL)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
