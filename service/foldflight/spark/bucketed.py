"""The common parts of stateful streams: the columns of buckets, their figures, and the cache of stored pieces."""

from __future__ import annotations

import collections
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import BUCKET
from foldflight.engine.state.hostcache import HostCache, private_folder
from foldflight.engine.state.runs import RunCache
from foldflight.engine.stream.epoch import EpochStats
from foldflight.engine.stream.packing import BLOB

__all__ = [
    "DATA",
    "FIGURES",
    "FOLDED",
    "PACKED",
    "RUN_ID",
    "StoredRuns",
    "aggregation_of",
    "bucket_row",
    "observed",
    "run_cache",
]

_OBSERVED: Final = "foldflight"
_NUMBER: Final = re.compile(r" #\d+$")

# Schemas are types, not texts: Spark Connect's client parses texts with a session that it chooses.
# Those of state variables are, because a worker has the JVM parse each text twice in each task.
DATA: Final = st.StructType([st.StructField("data", st.BinaryType())])
RUN_ID: Final = st.StructType([st.StructField("run_id", st.StringType())])
PACKED: Final = st.StructType([st.StructField(BUCKET, st.IntegerType()), st.StructField(BLOB, st.BinaryType())])
_FIGURES: Final = [
    st.StructField(figure.name, st.DoubleType() if figure.type == "float" else st.LongType())
    for figure in fields(EpochStats)
]
FIGURES: Final = tuple(each.name for each in _FIGURES)
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
        outputs: Those of the outputs.
    """
    sums = (sf.coalesce(sf.sum(each.name), sf.lit(0)).cast(each.dataType).alias(each.name) for each in _FIGURES)
    aggregation = f"{','.join(keys)} > {','.join(outputs)}"
    return folded.observe(_unique(f"{_OBSERVED} {aggregation}"), *sums).select(BLOB).where(f"{BLOB} IS NOT NULL")


def aggregation_of(observation: str) -> str | None:
    """Return the aggregation that an observation is named after, `keys > outputs`; None if it is not one of ours."""
    prefix, _, aggregation = observation.partition(" ")
    return _NUMBER.sub("", aggregation) if prefix == _OBSERVED else None


_uses: collections.Counter[str] = collections.Counter()


def _unique(name: str) -> str:
    """Return the name, from its second use on with a number: Spark refuses a union of two observations of one name.

    The number may be another one after a restart. A checkpoint does not have the name.
    """
    _uses[name] += 1
    return name if _uses[name] == 1 else f"{name} #{_uses[name]}"


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
