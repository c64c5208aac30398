"""The state table of a streaming query as a DataFrame, read from its checkpoint.

Spark's checkpoint readers (`state-metadata`, `statestore`) return the bytes of manifests and runs. Spark's workers
decode them, one bucket at a time, and keep the newest row of each group. All data is read as of one batch, so the query
may be running.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from foldflight.engine.convert import convert
from foldflight.engine.layout import BUCKET, LIVE
from foldflight.engine.state.manifest import Manifest, calls_of, naming_bucket
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import StateTable, TableBounds, TableLayout
from foldflight.errors import RejectedError
from foldflight.spark.carrier import carrier_type
from foldflight.spark.steps import mapping

__all__ = ["LIVE_ROWS", "StateFigures", "StoredTable", "state_table"]

LIVE_ROWS = "live_rows"

_RUN, _DATA = "run_id", "data"
_VARIABLES = {"manifest", "runs"}
_FIGURES = (BUCKET, "runs", "rows", "bytes")
_CACHE_BYTES_MAX = 256 << 20


def state_table(spark: SparkSession, checkpoint: str, operator: int | None = None) -> DataFrame:
    """Return the groups of a streaming query, as of the last batch committed in its checkpoint.

    Args:
        spark: A session, classic or Connect, with any state store provider.
        checkpoint: The query's `checkpointLocation`; the query may be running.
        operator: Spark's number of the query's `group_by`; required if the query has several.

    Returns:
        DataFrame: One row for each group: the keys; `live_rows`, the number of rows in the group; and for each output
            its state, under the output's name: a struct (or the annotated type) if it is typed, otherwise bytes. States
            of another version are in a separate column, `output (version 1)`, until they are migrated. Damaged bytes
            fail the action that reads them with a CorruptError that names bucket and run.

    Raises:
        RejectedError: SIGNATURE if the folder is not a checkpoint, the operator does not exist, or it is required and
            missing; STATE_MISMATCH for the checkpoint of another query, or of another version of foldflight.
        CorruptError: STATE_CHECKSUM, if the first manifest is damaged.
    """
    return StoredTable.of(spark, checkpoint, operator).groups()


@dataclass(frozen=True)
class StateFigures:
    """The size of a state table in its checkpoint.

    Args:
        buckets: Number of buckets that have runs.
        runs: Number of runs.
        rows: Number of rows in the runs: groups, replaced states until runs are merged, and tombstones.
        bytes: Size of the runs in bytes.
    """

    buckets: int
    runs: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoredTable:
    """The state table of one operator of a query, read from its checkpoint; created by `of`.

    Args:
        spark: The session that reads.
        checkpoint: The query's `checkpointLocation`.
        operator: The number of the operator.
        batch: The last committed batch.
        layout: The layout of the rows.
    """

    spark: SparkSession
    checkpoint: str
    operator: int
    batch: int
    layout: TableLayout

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, operator: int | None = None) -> StoredTable:
        """Open a table. The arguments and errors are those of `state_table`."""
        operators = _operators(spark, checkpoint)
        if operator is None and len(operators) > 1:
            raise RejectedError(
                "SIGNATURE", f"the query has several state tables; choose one operator:\n{_listed(operators)}"
            )
        chosen = next(iter(operators)) if operator is None else operator
        if chosen not in operators:
            raise RejectedError(
                "SIGNATURE",
                f"the operator {chosen} of the query has no state table; these have one:\n{_listed(operators)}",
            )
        batch, layout = operators[chosen]
        manifests = _variable(spark, checkpoint, chosen, batch, "manifest")
        manifests = manifests.select(_bucket(), sf.col("value.data").alias(_DATA))
        schema = st.StructType([st.StructField(_DATA, st.BinaryType())])
        found = manifests.mapInArrow(mapping(_generations, "read_functions"), schema).distinct().sort(_DATA).collect()
        generations = [pa.ipc.read_schema(pa.py_buffer(bytes(row[_DATA]))) for row in found]
        return cls(spark, checkpoint, chosen, batch, _with_older(layout, generations))

    @property
    def keys(self) -> list[str]:
        """The names of the key columns."""
        return list(self.layout.names[: len(self.layout.keys)])

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs, whose states the table holds."""
        return list(self.layout.names[len(self.layout.keys) :])

    @property
    def calls(self) -> list[str]:
        """The function of each output, with its version."""
        return [f"{call['function']} v{call['version']}" for call in self.layout.described["calls"]]

    @property
    def live_rows(self) -> str:
        """The name of the column of live rows: `live_rows`, with underscores added if another column has this name."""
        name = LIVE_ROWS
        while name in {each.casefold() for each in self.layout.names}:
            name += "_"
        return name

    def groups(self) -> DataFrame:
        """Return the groups, as `state_table` does."""
        nothing = sf.lit(None).cast("string")
        manifests = self._read("manifest").select(_bucket(), nothing.alias(_RUN), sf.col("value.data").alias(_DATA))
        runs = self._read("runs").select(
            _bucket(), sf.col("user_map_key.run_id").alias(_RUN), sf.col("user_map_value.data").alias(_DATA)
        )
        together = manifests.union(runs).groupBy(BUCKET)
        return together.applyInArrow(_newest(self.layout, self._schema), self._spark_schema)

    def figures(self) -> StateFigures:
        """Return the size of the table in its checkpoint."""
        manifests = self._read("manifest").select(_bucket(), sf.col("value.data").alias(_DATA))
        types = st.StructType([st.StructField(name, st.LongType()) for name in _FIGURES])
        figures = manifests.mapInArrow(mapping(_measure, "measure_state"), types).where("runs > 0")
        total = figures.agg(sf.count("*"), *(sf.coalesce(sf.sum(name), sf.lit(0)) for name in _FIGURES[1:])).head()
        return StateFigures(*(total or (0, 0, 0, 0)))

    @property
    def _schema(self) -> pa.Schema:
        keys, states = list(self.layout.keys), list(self.layout.states)
        types = [*(each.type for each in keys), pa.int64(), *(carrier_type(each.type) for each in states)]
        names = [*self.keys, self.live_rows, *self.outputs]
        return pa.schema(list(zip(names, types, strict=True)))

    @property
    def _spark_schema(self) -> st.StructType:
        return st.StructType(
            [st.StructField(each.name, from_arrow_type(each.type, prefer_timestamp_ntz=True)) for each in self._schema]
        )

    def _read(self, variable: str) -> DataFrame:
        return _variable(self.spark, self.checkpoint, self.operator, self.batch, variable)


def _bucket() -> Any:
    return sf.col(f"key.{BUCKET}").alias(BUCKET)


def _variable(spark: SparkSession, checkpoint: str, operator: int, batch: int, variable: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", batch)
    return reader.option("stateVarName", variable).load(checkpoint)


def _operators(spark: SparkSession, checkpoint: str) -> dict[int, tuple[int, TableLayout]]:
    """Return the last committed batch and the layout of each operator of a query that has a state table."""
    try:
        found = spark.read.format("state-metadata").load(checkpoint).orderBy("operatorId").collect()
    except PySparkException as error:
        raise _no_checkpoint(checkpoint, str(error).partition("\n")[0]) from error
    if not found:
        raise _no_checkpoint(checkpoint, "it has no stateful operator with a committed batch")
    operators = {}
    for row in found:
        variables = json.loads(row["operatorProperties"] or "{}").get("stateVariables", [])
        # If timers are used, Spark stores its own variables next to ours.
        if not {each["stateName"] for each in variables} >= _VARIABLES:
            continue
        manifests = _variable(spark, checkpoint, row["operatorId"], row["maxBatchId"], "manifest")
        # Bucket 0 writes a manifest in every epoch, so it has the latest names.
        first = manifests.where(f"key.{BUCKET} = 0").head()
        if first is not None:
            with naming_bucket(0):
                layout = Manifest.decode(bytes(first["value"]["data"])).layout
            operators[row["operatorId"]] = (row["maxBatchId"], layout)
    if not operators:
        raise RejectedError(
            "STATE_MISMATCH",
            f"{checkpoint} is the checkpoint of another query: its state is that of "
            f"{', '.join(row['operatorName'] for row in found)}, not a state table of foldflight; give the checkpoint "
            "of a query with group_by(...).agg(...) of foldflight",
        )
    return operators


def _no_checkpoint(checkpoint: str, why: str) -> RejectedError:
    return RejectedError(
        "SIGNATURE",
        f"{checkpoint} is not a checkpoint with state: {why}; give the checkpointLocation of the query (a folder "
        "with commits, offsets and state), after the query has committed an epoch",
    )


def _listed(operators: dict[int, tuple[int, TableLayout]]) -> str:
    lines = []
    for operator, (_, layout) in operators.items():
        names = [", ".join(part) for part in (layout.names[: len(layout.keys)], layout.names[len(layout.keys) :])]
        lines.append(f"  operator {operator}: {names[1]} by {names[0] or 'nothing (one group of all rows)'}")
    return "\n".join(lines)


# -- in Spark's workers ----------------------------------------------------------------------------------------------


class _Bucket:
    """A copy of one bucket's bytes, as the store of a state table.

    Args:
        rows: `run_id`, NULL for the manifest, and `data`.
    """

    def __init__(self, rows: pa.Table) -> None:
        self._held: dict[str | None, bytes] = dict(
            zip(rows.column(_RUN).to_pylist(), rows.column(_DATA).to_pylist(), strict=True)
        )

    def manifest(self) -> bytes | None:
        return self._held.get(None)

    def put_manifest(self, data: bytes) -> None:
        self._held[None] = data

    def run(self, run_id: str) -> bytes | None:
        return self._held.get(run_id)

    def put_run(self, run_id: str, data: bytes) -> None:
        self._held[run_id] = data

    def remove_run(self, run_id: str) -> None:
        del self._held[run_id]


def _newest(layout: TableLayout, schema: pa.Schema) -> Callable[[pa.Table], pa.Table]:
    """Return a task that reads the groups of one bucket from its manifest and runs."""
    # The single group of a query without keys counts one extra row, so that it is never removed.
    kept = 0 if len(layout.keys) else 1

    def shown(rows: pa.RecordBatch) -> pa.RecordBatch:
        live = pa.array(rows.column(LIVE).to_numpy() - kept)
        columns = [*(rows.column(name) for name in layout.keys.names), live]
        columns += [rows.column(name) for name in layout.states.names]
        converted = [convert(column, type_) for column, type_ in zip(columns, schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(converted, schema=schema)

    def run(bucket: pa.Table) -> pa.Table:
        with naming_bucket(bucket.column(BUCKET)[0].as_py()):
            table = StateTable(
                layout,
                _Bucket(bucket),
                cache=RunCache(bytes_max=_CACHE_BYTES_MAX),
                bounds=TableBounds(),
                new_run_id=lambda: uuid.uuid4().hex,
                conversion=_VersionColumns(layout),
            )
            return pa.Table.from_batches([shown(rows) for rows in table.scan()], schema=schema)

    return run


def _measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sizes of buckets from their manifests."""
    for batch in batches:
        figures = [_figures(*row.values()) for row in batch.select([BUCKET, _DATA]).to_pylist()]
        yield pa.RecordBatch.from_pylist(figures, pa.schema([(name, pa.int64()) for name in _FIGURES]))


def _generations(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the state schemas of the buckets' runs, from their manifests."""
    for batch in batches:
        found = []
        for row in batch.select([BUCKET, _DATA]).to_pylist():
            with naming_bucket(row[BUCKET]):
                found += [each.serialize().to_pybytes() for each in Manifest.decode(row[_DATA]).generations.values()]
        yield pa.RecordBatch.from_arrays([pa.array(sorted(set(found)), pa.binary())], names=[_DATA])


def _with_older(layout: TableLayout, generations: Iterable[pa.Schema]) -> TableLayout:
    """Return a layout with additional columns for the states of other versions of each call."""
    states, names = list(layout.states), list(layout.names)
    known = set(_identities(layout.states))
    for schema in generations:
        for place, (field, identity) in enumerate(zip(schema, _identities(schema), strict=True)):
            if identity not in known:
                known.add(identity)
                states.append(field.with_name(f"{field.name}_{identity[1]}"))
                version = calls_of(schema)[place]["version"]
                names.append(f"{layout.names[len(layout.keys) + place]} (version {version})")
    return replace(layout, states=pa.schema(states), names=tuple(names))


def _identities(states: pa.Schema) -> list[tuple[int, str]]:
    """Return for each column the position of its call, which is part of its name, and the fingerprint."""
    places = [int(name.split("_")[1]) for name in states.names]
    return [(place, call["fingerprint"]) for place, call in zip(places, calls_of(states), strict=True)]


class _VersionColumns:
    """Puts the states of each version into a separate column, because a reader has no functions to migrate them."""

    def __init__(self, layout: TableLayout) -> None:
        self._states = layout.states

    def check(self, stored: pa.Schema) -> None:
        """Take all."""

    def __call__(self, stored: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        given = dict(zip(_identities(stored), states.columns, strict=True))
        columns = [
            given.get(identity, pa.nulls(states.num_rows, field.type))
            for field, identity in zip(self._states, _identities(self._states), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._states)


def _figures(bucket: int, manifest: bytes) -> dict[str, int]:
    with naming_bucket(bucket):
        pieces = Manifest.decode(manifest).pieces
    sums = [sum(each.rows for each in pieces), sum(each.bytes for each in pieces)]
    return dict(zip(_FIGURES, [bucket, len(pieces), *sums], strict=True))
