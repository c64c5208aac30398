"""The common parts of stateful streams: the columns of buckets, their figures, and the cache of stored pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.epoch import EpochStats
from foldflight.engine.layout import BUCKET
from foldflight.engine.packing import BLOB
from foldflight.engine.state.hostcache import HostCache, private_folder
from foldflight.engine.state.runs import RunCache

__all__ = ["DATA", "FOLDED", "OBSERVED", "PACKED", "RUN_ID", "StoredRuns", "bucket_row", "observed", "run_cache"]

OBSERVED: Final = "foldflight"

# Schemas are types, not texts: Spark Connect's client parses texts with a session that it chooses.
# Those of state variables are, because a worker has the JVM parse each text twice in each task.
DATA: Final = st.StructType([st.StructField("data", st.BinaryType())])
RUN_ID: Final = st.StructType([st.StructField("run_id", st.StringType())])
PACKED: Final = st.StructType([st.StructField(BUCKET, st.IntegerType()), st.StructField(BLOB, st.BinaryType())])
_FIGURES: Final = [
    st.StructField(figure.name, st.DoubleType() if figure.type == "float" else st.LongType())
    for figure in fields(EpochStats)
]
FOLDED: Final = st.StructType([st.StructField(BLOB, st.BinaryType()), *_FIGURES])
_CACHE_BYTES_MAX: Final = 256 << 20
_HOST_BYTES_MAX: Final = 1 << 30


def bucket_row(blob: bytes | None, figures: EpochStats) -> Row:
    """Return a row of the stateful operator: a blob of results, and figures that count."""
    return Row(**{BLOB: blob}, **asdict(figures))


def observed(folded: DataFrame, keys: Sequence[str], outputs: Sequence[str]) -> DataFrame:
    """Return the blobs of results, and observe the sums of the figures.

    Args:
        folded: The rows of the stateful operator.
        keys: The user's names of the keys.
        outputs: Those of the outputs. Spark needs a unique name for each observation of a query.
    """
    sums = (sf.coalesce(sf.sum(each.name), sf.lit(0)).cast(each.dataType).alias(each.name) for each in _FIGURES)
    name = f"{OBSERVED} {','.join(keys)} > {','.join(outputs)}"
    return folded.observe(name, *sums).select(BLOB).where(f"{BLOB} IS NOT NULL")


_caches: list[RunCache] = []


def run_cache() -> RunCache:
    """Return this process's cache. Runs are immutable, so its contents are valid for every task."""
    if not _caches:
        folder = private_folder()
        shared = None if folder is None else HostCache(folder, bytes_max=_HOST_BYTES_MAX)
        _caches.append(RunCache(bytes_max=_CACHE_BYTES_MAX, shared=shared))
    return _caches[0]


class StoredRuns:
    """The pieces of tables and logs in a map state of Spark, by name. A store adds where its manifest is."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs

    def run(self, run_id: str) -> bytes | None:
        """Return a piece."""
        held = self._runs.getValue((run_id,))
        return None if held is None else bytes(held[0])

    def put_run(self, run_id: str, data: bytes) -> None:
        """Store a piece."""
        self._runs.updateValue((run_id,), (data,))

    def remove_run(self, run_id: str) -> None:
        """Remove a piece."""
        self._runs.removeKey((run_id,))
