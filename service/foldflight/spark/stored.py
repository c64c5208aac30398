"""The state table of a streaming query as a DataFrame, read from its checkpoint: what the groups are now.

Spark's own readers of checkpoints (`state-metadata`, `statestore`) give the bytes of manifests and runs; the workers
decode them, one bucket at a time, and keep the newest row of each group. All is read as of one batch: a query may run
meanwhile.
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
from foldflight.engine.state.table import Bounds, StateTable, TableLayout
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
    """Return the groups that a streaming query holds, as of the last batch that its checkpoint has committed.

    Args:
        spark: A session, classic or Connect; any state store may be set in it.
        checkpoint: The query's `checkpointLocation`; the query may be running.
        operator: Which of the query's `group_by`s, by the number that Spark gave it; needed where there are several.

    Returns:
        DataFrame: One row for each group: the keys; `live_rows`, how many rows it is made of; and under the name of
            each output the state that it comes from, a struct (or whatever its annotations say) if it is typed, else
            bytes. States that another version has left are in a column of their own, `output (version 1)`, until they
            are migrated. Bytes that are damaged fail the action that meets them with a CorruptError, naming bucket and
            run.

    Raises:
        RejectedError: SIGNATURE for a folder that is no checkpoint, and an operator that is not there, or not given
            where there are several; STATE_MISMATCH for the checkpoint of another query, or of another foldflight.
        CorruptError: STATE_CHECKSUM, when the first manifest is damaged.
    """
    return StoredTable.of(spark, checkpoint, operator).groups()


@dataclass(frozen=True)
class StateFigures:
    """How a state table lies in its checkpoint.

    Args:
        buckets: Buckets that hold runs.
        runs: Their runs.
        rows: Rows of these: groups, their former states until runs are merged, and tombstones.
        bytes: Bytes of these.
    """

    buckets: int
    runs: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class StoredTable:
    """The state table of one operator of a query, as its checkpoint has it; made by `of`.

    Args:
        spark: The session that reads.
        checkpoint: The query's `checkpointLocation`.
        operator: The number of the operator.
        batch: The last committed batch.
        layout: What the rows are.
    """

    spark: SparkSession
    checkpoint: str
    operator: int
    batch: int
    layout: TableLayout

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str, operator: int | None = None) -> StoredTable:
        """Find a table; see `state_table` for arguments and errors."""
        operators = _operators(spark, checkpoint)
        if operator is None and len(operators) > 1:
            raise RejectedError(
                "SIGNATURE", f"the query has several state tables; give one operator of these:\n{_listed(operators)}"
            )
        chosen = next(iter(operators)) if operator is None else operator
        if chosen not in operators:
            raise RejectedError(
                "SIGNATURE", f"the query has no state table of operator {chosen}; it has:\n{_listed(operators)}"
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
        return [f"{call['function']} v{call['version']}" for call in self.layout.described()["calls"]]

    @property
    def live_rows(self) -> str:
        """The name of the column of live rows: `live_rows`, with underscores while another column has that name."""
        name = LIVE_ROWS
        while name in {each.casefold() for each in self.layout.names}:
            name += "_"
        return name

    def groups(self) -> DataFrame:
        """Return the groups; see `state_table`."""
        nothing = sf.lit(None).cast("string")
        manifests = self._read("manifest").select(_bucket(), nothing.alias(_RUN), sf.col("value.data").alias(_DATA))
        runs = self._read("runs").select(
            _bucket(), sf.col("user_map_key.run_id").alias(_RUN), sf.col("user_map_value.data").alias(_DATA)
        )
        together = manifests.union(runs).groupBy(BUCKET)
        return together.applyInArrow(_newest(self.layout, self._schema), self._spark_schema)

    def figures(self) -> StateFigures:
        """Return how the table lies in its checkpoint."""
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
        # With timers Spark keeps variables of its own beside ours.
        if not {each["stateName"] for each in variables} >= _VARIABLES:
            continue
        manifests = _variable(spark, checkpoint, row["operatorId"], row["maxBatchId"], "manifest")
        # Bucket 0 writes a manifest in every epoch, so it has the newest names.
        first = manifests.where(f"key.{BUCKET} = 0").head()
        if first is not None:
            with naming_bucket(0):
                layout = Manifest.decode(bytes(first["value"]["data"])).layout
            operators[row["operatorId"]] = (row["maxBatchId"], layout)
    if not operators:
        raise RejectedError(
            "STATE_MISMATCH",
            f"{checkpoint} is the checkpoint of another query: its state is that of "
            f"{', '.join(row['operatorName'] for row in found)}, and no table of foldflight; give the checkpoint of a "
            "query with group_by(...).agg(...) of foldflight",
        )
    return operators


def _no_checkpoint(checkpoint: str, why: str) -> RejectedError:
    return RejectedError(
        "SIGNATURE",
        f"{checkpoint} is no checkpoint with state: {why}; give the folder that the query has as its "
        "checkpointLocation (it holds commits, offsets and state), once the query has committed an epoch",
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
    """Return a task that gives the groups of one bucket from its manifest and runs."""
    # The one group without keys counts one row more, for it stays when its last row is gone.
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
                bounds=Bounds(),
                new_run_id=lambda: uuid.uuid4().hex,
                conversion=_BesideEachOther(layout),
            )
            return pa.Table.from_batches([shown(rows) for rows in table.scan()], schema=schema)

    return run


def _measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the figures of buckets from their manifests."""
    for batch in batches:
        figures = [_figures(*row.values()) for row in batch.select([BUCKET, _DATA]).to_pylist()]
        yield pa.RecordBatch.from_pylist(figures, pa.schema([(name, pa.int64()) for name in _FIGURES]))


def _generations(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the schemas of states that the runs of buckets have, from their manifests."""
    for batch in batches:
        found = []
        for row in batch.select([BUCKET, _DATA]).to_pylist():
            with naming_bucket(row[BUCKET]):
                found += [each.serialize().to_pybytes() for each in Manifest.decode(row[_DATA]).generations.values()]
        yield pa.RecordBatch.from_arrays([pa.array(sorted(set(found)), pa.binary())], names=[_DATA])


def _with_older(layout: TableLayout, generations: Iterable[pa.Schema]) -> TableLayout:
    """Return a layout with more columns: of each call, for the states that other versions have left."""
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
    """Return of each column the place of its call, which its name has, and the fingerprint."""
    places = [int(name.split("_")[1]) for name in states.names]
    return [(place, call["fingerprint"]) for place, call in zip(places, calls_of(states), strict=True)]


class _BesideEachOther:
    """States of several versions, each in a column of its own; for a reader, who has no functions to migrate them."""

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
