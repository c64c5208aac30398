"""The groups of a streaming query as a DataFrame, read from its checkpoint.

Spark's checkpoint readers (`state-metadata`, `statestore`) return the bytes of manifests and runs. Spark's workers
decode them, one bucket at a time, and keep the newest row of each group. All data is read as of one batch, so the query
may be running.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.over.over_stream import StoredOver, sizes_of
from foldflight.engine.query.blocks import convert
from foldflight.engine.query.layout import BUCKET, LIVE, CallView
from foldflight.engine.state.manifest import (
    CurrentViews,
    Manifest,
    Storage,
    VersionColumns,
    manifests_of,
    naming_bucket,
    with_older,
)
from foldflight.engine.state.runs import RunCache
from foldflight.engine.state.table import MemoryStore, StateTable, TableLayout
from foldflight.engine.state.viewtable import ViewTable, stored_views
from foldflight.engine.stream.upserts import KIND_OF_TABLE
from foldflight.errors import RejectedError
from foldflight.spark.arguments import require_session
from foldflight.spark.arrow import arrow_function
from foldflight.spark.bucketed import stored_name
from foldflight.spark.errors import moved_checkpoint
from foldflight.spark.over import OverProcessor
from foldflight.spark.storage_types import storage_type
from foldflight.spark.upserts import UpsertProcessor
from foldflight.spark.versions.facts import STREAMS, require
from foldflight.spark.versions.states import OPERATOR, check_operators, state_reader
from foldflight.spark.versions.types import spark_type

LIVE_ROWS, WAITING_ROWS = "live_rows", "waiting_rows"

_NAME, _RUN, _DATA = "name", "run_id", "data"
_VARIABLES = {"manifest", "runs"}
_OVER_VARIABLES = {"manifests", "runs"}
_FIGURES = (BUCKET, "runs", "rows", "bytes")
_CACHE_BYTES_MAX = 256 << 20


def state_table(
    spark: SparkSession, checkpoint: str, operator: int | None = None, *, view: str | None = None
) -> DataFrame:
    """Return the groups of a streaming query (`group_by`, `over`), as of the last batch committed in its checkpoint.

    Args:
        spark: A session, classic or Connect, with any state store provider.
        checkpoint: The query's `checkpointLocation`; the query may be running.
        operator: Spark's number of the query's `group_by` or `over`; required if the query has several.
        view: A view, as `output.attribute`. The result then has its entries instead of the groups.

    Returns:
        DataFrame: Of a view, one row for each entry: the keys of the group, `key` (of a list, the number of the item),
            and `value`. Otherwise one row for each group: the keys; `live_rows`, the number of rows in the group; and
            for each output its state, under the output's name: a struct (or the annotated type) if it is typed,
            otherwise bytes. States of another version are in a separate column, `output (version 1)`, until they are
            migrated. Of `over`, in place of `live_rows`, `waiting_rows` is the number of rows of the group that wait
            for the watermark; and outputs with the same ROWS frame share a column, the list of the rows that are kept.
            In a state, a view has its entries if they are few, and otherwise none and a `generation` above 0. Damaged
            bytes fail the action that reads them with a CorruptError that names bucket and run.

    Raises:
        RejectedError: SIGNATURE if the folder is not a checkpoint, the operator does not exist, it is required and
            missing, its query has had no rows, or it has no such view; STATE_MISMATCH for the checkpoint of another
            query, or of another version of foldflight, or for one that was moved and needs `upgrade_checkpoint`.
        CorruptError: STATE_CHECKSUM, if the first manifest is damaged.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from foldflight import connect
    >>> from foldflight.spark import check_checkpoint, group_by, state_table
    >>> folder, checkpoint = tempfile.TemporaryDirectory(), tempfile.TemporaryDirectory()
    >>> _ = Path(folder.name, "1.csv").write_text("ann,10")
    >>> _ = Path(folder.name, "2.csv").write_text("ann,40")
    >>> orders = spark.readStream.schema("customer STRING, price BIGINT").csv(folder.name)
    >>> totals = group_by(orders, "customer", buckets=1).agg(total=connect("embedded:").sum("price"))
    >>> stream = totals.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint.name)
    >>> stream.trigger(availableNow=True).start().awaitTermination()
    >>> check_checkpoint(totals, checkpoint.name)
    True
    >>> state_table(spark, checkpoint.name).show()
    +--------+---------+----------------+
    |customer|live_rows|           total|
    +--------+---------+----------------+
    |     ann|        2|{50, 2, 0, 0, 0}|
    +--------+---------+----------------+
    """
    require_session(spark, "state_table")
    table = StoredTable.of(spark, checkpoint, operator)
    return table.groups() if view is None else table.entries(view)


def check_checkpoint(df: DataFrame, checkpoint: str, operator: int | None = None) -> bool:
    """Check, before a stream is started, that its query can continue from a checkpoint.

    Spark gives a query its state with the first rows, so a changed query fails only then. This reads the manifests of
    the state, not the state itself.

    Args:
        df: The result of `agg` over a stream (`group_by` or `over`), of `upserts`, or of `from_debezium(keys=)`,
            without further steps.
        checkpoint: The `checkpointLocation` with which it is to be started.
        operator: Spark's number of the query's `group_by` or `over`; required if the checkpoint has several.

    Returns:
        bool: Whether there is a state to continue with. False: the query starts with an empty one.

    Raises:
        RejectedError: STATE_MISMATCH, with what has changed and what to write, or that a checkpoint of Spark 4.0, or
            one that was moved, must be given to `upgrade_checkpoint`; SIGNATURE for a DataFrame without such a query,
            or if `operator` is required and missing.
        CorruptError: STATE_CHECKSUM, if a manifest is damaged.

    >>> check_checkpoint(totals, "s3a://jobs/totals")  # doctest: +SKIP
    True
    """
    processor = getattr(df, OPERATOR, None)
    if processor is None:
        raise RejectedError(
            "SIGNATURE",
            "check_checkpoint takes the result of group_by(...).agg(...), over(...).agg(...) or upserts(...) over a "
            "stream; give it that DataFrame, before select, where and other steps",
        )
    spark = df.sparkSession
    if not _has_state(spark, checkpoint):
        return False
    stored_operators = spark.read.format("state-metadata").load(checkpoint).select("operatorName").collect()
    check_operators({name for (name,) in stored_operators}, checkpoint)
    operator_number, (batch, layout, _) = _select_operator(_operators(spark, checkpoint), operator)
    buckets: dict[int, dict[str, bytes]] = {}
    manifest_rows = _manifests(partial(_variable, spark, checkpoint, operator_number, batch), has_names=layout is None)
    for bucket, name, data in manifest_rows.collect():
        buckets.setdefault(bucket, {})[name] = bytes(data)
    stored_kind = "over" if layout is None else "upserts" if layout.window == KIND_OF_TABLE else "group_by"
    is_over, is_upserts = (isinstance(processor, kind) for kind in (OverProcessor, UpsertProcessor))
    ours = "over" if is_over else "upserts" if is_upserts else "group_by"
    if stored_kind != ours:
        raise RejectedError(
            "STATE_MISMATCH",
            f"{checkpoint} has the state of {stored_kind}, and the query has {ours}; run the query that wrote it, or "
            "start with an empty checkpoint",
        )
    for bucket, manifests in sorted(buckets.items()):
        with naming_bucket(bucket):
            processor.check(lambda name, manifests=manifests: MemoryStore(manifests.get(name)))
    return True


def refuse_moved(spark: SparkSession, checkpoint: str) -> None:
    """Refuse a checkpoint with state that was moved, so that a stream cannot continue from its present place.

    Spark would fail in the first epoch. This looks for the files that Spark will look for, and reads no state. Other
    damage to a checkpoint is reported by Spark.

    Raises:
        RejectedError: STATE_MISMATCH for a checkpoint that was moved or that Spark 4.0 wrote, with the call that helps.
    """
    try:
        state_rows = spark.read.format("state-metadata").load(checkpoint).collect()
    except Exception:  # noqa: BLE001 - there is none yet, or it has no committed epoch
        return
    check_operators({row["operatorName"] for row in state_rows}, checkpoint)
    for row in state_rows:
        variables = _variables_of(row)
        if variables >= _VARIABLES or variables >= _OVER_VARIABLES:
            try:
                _variable(spark, checkpoint, row["operatorId"], row["maxBatchId"], "runs")
            except RejectedError:
                raise
            except Exception:  # noqa: BLE001, S110 - Spark's reader may need more than the query
                pass


def _variables_of(operator: Row) -> set[str]:
    """Return the names of the state variables of an operator in `state-metadata`.

    If timers are used, Spark stores its own variables next to ours.
    """
    return {each["stateName"] for each in json.loads(operator["operatorProperties"] or "{}").get("stateVariables", [])}


def _has_state(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether a folder exists, and is a checkpoint with the state of a committed batch."""
    try:
        return spark.read.format("state-metadata").load(checkpoint).head() is not None
    except PySparkException:
        return False


def _select_operator(operators: Operators, operator: int | None) -> tuple[int, Operator]:
    """Return the operator of this number, or the only one. Raises RejectedError SIGNATURE."""
    if operator is None and len(operators) > 1:
        raise RejectedError(
            "SIGNATURE", f"the query has several state tables; choose one operator:\n{_describe_operators(operators)}"
        )
    operator_number = next(iter(operators)) if operator is None else operator
    if operator_number not in operators:
        raise RejectedError(
            "SIGNATURE",
            f"the operator {operator_number} of the query has no state table; these have one:\n"
            f"{_describe_operators(operators)}",
        )
    return operator_number, operators[operator_number]


@dataclass(frozen=True)
class StateFigures:
    """The size of a state table in its checkpoint.

    Args:
        buckets: Number of buckets that have runs.
        runs: Number of runs.
        rows: Number of rows in the runs: groups, replaced states until runs are merged, and tombstones.
        bytes: Size of the runs in bytes.
        waiting_rows: Of `over`: number of rows that wait for the watermark.
        framed_rows: Of `over`: number of rows in RANGE frames.
    """

    buckets: int
    runs: int
    rows: int
    bytes: int
    waiting_rows: int = 0
    framed_rows: int = 0


@dataclass(frozen=True)
class StoredTable(ABC):
    """What one operator of a query has stored, read from its checkpoint; opened by `of`.

    Args:
        spark: The session that reads.
        checkpoint: The query's `checkpointLocation`.
        operator: The number of the operator.
        batch: The last committed batch.
        schema: The columns of `groups`: keys, the number of rows that live or wait, and states.
        keys: The names of the key columns.
        calls: A description of each state: the function with its version, or that it is the last rows. With `over`, it
            includes the window frame.
        buckets: The number of buckets of the query.
    """

    has_names: ClassVar[bool]
    """Whether a bucket has several tables and logs by name."""

    spark: SparkSession
    checkpoint: str
    operator: int
    batch: int
    schema: pa.Schema
    keys: Sequence[str]
    calls: Sequence[str]
    buckets: int

    @staticmethod
    def of(spark: SparkSession, checkpoint: str, operator: int | None = None) -> StoredGroups | StoredWindowFrames:
        """Open a table. The arguments and errors are as in `state_table`."""
        operator_number, (batch, layout, views) = _select_operator(_operators(spark, checkpoint), operator)
        if layout is None:
            return StoredWindowFrames.open(spark, checkpoint, operator_number, batch)
        return StoredGroups.open(spark, checkpoint, operator_number, batch, layout, views)

    @property
    def row_count(self) -> str:
        """The name of the column with the number of rows."""
        return str(self.schema.names[len(self.keys)])

    @property
    def outputs(self) -> list[str]:
        """The names of the states: the names of the outputs. Outputs with the same ROWS frame share one."""
        return list(self.schema.names[len(self.keys) + 1 :])

    def groups(self) -> DataFrame:
        """Return the groups, as `state_table` does."""
        return self._by_bucket(self._reader, self.schema)

    @abstractmethod
    def entries(self, view: str) -> DataFrame:
        """Return the entries of a view, as `state_table` does."""

    @abstractmethod
    def figures(self) -> StateFigures:
        """Return the size of the tables and logs in the checkpoint."""

    @property
    @abstractmethod
    def _reader(self) -> _Reader:
        """A function that reads the groups of one bucket."""

    def _by_bucket(self, reader: _Reader, schema: pa.Schema) -> DataFrame:
        """Return the rows that a reader makes of each bucket, which it gets as one table of manifests and runs.

        Rows of manifests have a name and no run id; rows of runs have a run id and no name.
        """
        nothing = sf.lit(None).cast("string")
        manifests = self._manifests().withColumn(_RUN, nothing).select(BUCKET, _NAME, _RUN, _DATA)
        runs = self._read("runs").select(_bucket(), nothing.alias(_NAME), "user_map_key.run_id", "user_map_value.data")
        result = st.StructType([st.StructField(each.name, spark_type(each.type)) for each in schema])
        return manifests.union(runs).groupBy(BUCKET).applyInArrow(_bucket_task(reader, schema), result)

    def _manifests(self) -> DataFrame:
        return _manifests(self._read, has_names=self.has_names)

    def _read(self, variable: str) -> DataFrame:
        return _variable(self.spark, self.checkpoint, self.operator, self.batch, variable)


@dataclass(frozen=True)
class StoredGroups(StoredTable):
    """The state table of a `group_by`.

    Args:
        layout: The layout of the rows.
        views: The views of the calls.
    """

    has_names = False

    layout: TableLayout
    views: tuple[CallView, ...]

    @classmethod
    def open(
        cls,
        spark: SparkSession,
        checkpoint: str,
        operator: int,
        batch: int,
        layout: TableLayout,
        views: tuple[CallView, ...],
    ) -> Self:
        """Read which versions of the functions have written states."""
        manifests = _manifests(partial(_variable, spark, checkpoint, operator, batch), has_names=False)
        schema = st.StructType([st.StructField(_DATA, st.BinaryType())])
        versions = manifests.mapInArrow(arrow_function(_generations, "read_functions"), schema)
        schemas = versions.distinct().sort(_DATA).collect()
        layout = with_older(layout, [pa.ipc.read_schema(pa.py_buffer(bytes(row[_DATA]))) for row in schemas])
        keys, outputs = layout.names[: len(layout.keys)], layout.names[len(layout.keys) :]
        calls = [f"{call['function']} v{call['version']}" for call in layout.description["calls"]]
        groups = _schema_of(layout.keys, keys, LIVE_ROWS, layout.states.types, outputs)
        return cls(spark, checkpoint, operator, batch, groups, keys, calls, layout.buckets, layout, views)

    def entries(self, view: str) -> DataFrame:
        names = [f"{self.outputs[each.call]}.{each.spec.name}" for each in self.views]
        if view not in names:
            raise _no_view(view, names)
        index = names.index(view)
        spec = self.views[index].spec
        types = [*(each.type for each in self.layout.keys), storage_type(spec.key), storage_type(spec.value)]
        key, value = (_free_name(name, self.keys) for name in ("key", "value"))
        schema = pa.schema(list(zip([*self.keys, key, value], types, strict=True)))
        return self._by_bucket(partial(_entries, self.layout, self.views, index), schema)

    def figures(self) -> StateFigures:
        types = st.StructType([st.StructField(name, st.LongType()) for name in _FIGURES])
        figures = self._manifests().mapInArrow(arrow_function(_measure, "measure_state"), types).where("runs > 0")
        total = figures.agg(sf.count("*"), *(sf.coalesce(sf.sum(name), sf.lit(0)) for name in _FIGURES[1:])).head()
        return StateFigures(*(total or (0, 0, 0, 0)))

    @property
    def _reader(self) -> _Reader:
        return partial(_current_groups, self.layout)


@dataclass(frozen=True)
class StoredWindowFrames(StoredTable):
    """The groups and rows of an `over`.

    Args:
        over: What the manifests describe.
        sizes: The size of each table and log, with its bucket.
    """

    has_names = True

    over: StoredOver
    sizes: tuple[tuple[int, dict[str, int]], ...]

    @classmethod
    def open(cls, spark: SparkSession, checkpoint: str, operator: int, batch: int) -> Self:
        """Read the manifests. Raises the errors of `state_table`."""
        manifest_rows = _manifests(partial(_variable, spark, checkpoint, operator, batch), has_names=True).collect()
        manifests, sizes = [], []
        for bucket, name, data in manifest_rows:
            with naming_bucket(bucket):
                sizes.append((bucket, sizes_of(name, bytes(data))))
            manifests.append((name, bytes(data)))
        over = StoredOver.of(manifests)
        if over is None:
            raise RejectedError(
                "SIGNATURE", f"the operator {operator} of {checkpoint} is an over that has had no rows until now"
            )
        keys, outputs = over.layout.names, [name for part in over.parts for name in part.outputs]
        calls = [call for part in over.parts for call in part.calls]
        groups = _schema_of(over.layout.keys, keys, WAITING_ROWS, over.states, outputs)
        return cls(spark, checkpoint, operator, batch, groups, keys, calls, over.buckets, over, tuple(sizes))

    def entries(self, view: str) -> DataFrame:
        raise _no_view(view, [])

    def figures(self) -> StateFigures:
        sums = {
            name: sum(sizes[name] for _, sizes in self.sizes) for name in (*_FIGURES[1:], WAITING_ROWS, "framed_rows")
        }
        return StateFigures(len({bucket for bucket, sizes in self.sizes if sizes["runs"]}), **sums)

    @property
    def _reader(self) -> _Reader:
        return partial(_over_groups, self.over)


def _schema_of(
    keys: pa.Schema, names: Sequence[str], row_count: str, states: Sequence[pa.DataType], outputs: Sequence[str]
) -> pa.Schema:
    """Return the columns of groups. The number of rows gets underscores if another column has its name."""
    row_count = _free_name(row_count, [*names, *outputs])
    types = [*keys.types, pa.int64(), *map(storage_type, states)]
    return pa.schema(list(zip([*names, row_count, *outputs], types, strict=True)))


def _no_view(view: str, names: Sequence[str]) -> RejectedError:
    names_text = f"the views are {', '.join(names)}" if names else "it has none"
    return RejectedError("SIGNATURE", f"the query has no view {view}; {names_text}")


def _free_name(name: str, others: Iterable[str]) -> str:
    used_names = {each.casefold() for each in others}
    while name in used_names:
        name += "_"
    return name


def _bucket() -> Any:
    return sf.col(f"key.{BUCKET}").alias(BUCKET)


def _manifests(read: Callable[[str], DataFrame], *, has_names: bool) -> DataFrame:
    """Return the manifests of all buckets: bucket, the name of the table or log ("" for the only one), and bytes."""
    if has_names:
        return read("manifests").select(_bucket(), "user_map_key.name", "user_map_value.data")
    return read("manifest").select(_bucket(), sf.lit("").alias(_NAME), "value.data")


def _variable(spark: SparkSession, checkpoint: str, operator: int, batch: int, variable: str) -> DataFrame:
    reader = state_reader(spark).option("operatorId", operator).option("batchId", batch)
    try:
        state_rows = reader.option("stateVarName", variable).load(checkpoint)
        state_rows.schema  # noqa: B018 - Spark Connect looks for the files of the checkpoint only now
    except Exception as error:
        # PySpark has no class for files that Java does not find.
        if moved_error := moved_checkpoint(error):
            raise moved_error from error
        raise
    return state_rows


Operator = tuple[int, TableLayout | None, tuple[CallView, ...]]
"""The last committed batch, the layout (None for an over), and the views."""

Operators = dict[int, Operator]
"""By number."""


def _operators(spark: SparkSession, checkpoint: str) -> Operators:
    """Return the operators of a query with state. Raises RejectedError SETTINGS on a Spark that cannot read it."""
    require(STREAMS, "streams and their states")
    try:
        metadata = spark.read.format("state-metadata").load(checkpoint).orderBy("operatorId").collect()
    except PySparkException as error:
        raise _no_checkpoint(checkpoint, str(error).partition("\n")[0]) from error
    if not metadata:
        raise _no_checkpoint(checkpoint, "it has no stateful operator with a committed batch")
    operators: Operators = {}
    for row in metadata:
        names = _variables_of(row)
        if names >= _OVER_VARIABLES:
            operators[row["operatorId"]] = (row["maxBatchId"], None, ())
        if not names >= _VARIABLES:
            continue
        manifests = _variable(spark, checkpoint, row["operatorId"], row["maxBatchId"], "manifest")
        # Bucket 0 writes a manifest in every epoch, so it has the latest names.
        first = manifests.where(f"key.{BUCKET} = 0").head()
        if first is not None:
            with naming_bucket(0):
                data = bytes(first["value"]["data"])
                layout, tables = Manifest.decode(data).layout, manifests_of(data)[0]
            operators[row["operatorId"]] = (row["maxBatchId"], layout, tuple(stored_views(layout, list(tables))))
    if not operators:
        raise RejectedError(
            "STATE_MISMATCH",
            f"{checkpoint} is the checkpoint of another query: its state belongs to "
            f"{', '.join(row['operatorName'] for row in metadata)}, and is no state table of foldflight; give the "
            "checkpoint of a query with group_by(...).agg(...) or over(...).agg(...) of foldflight",
        )
    return operators


def _no_checkpoint(checkpoint: str, reason: str) -> RejectedError:
    return RejectedError(
        "SIGNATURE",
        f"{checkpoint} is not a checkpoint with state: {reason}; give the checkpointLocation of the query (a folder "
        "with commits, offsets and state), after the query has committed an epoch",
    )


def _describe_operators(operators: Operators) -> str:
    lines = []
    for operator, (_, layout, _) in operators.items():
        if layout is None:
            lines.append(f"  operator {operator}: over")
            continue
        names = [", ".join(part) for part in (layout.names[: len(layout.keys)], layout.names[len(layout.keys) :])]
        lines.append(f"  operator {operator}: {names[1]} by {names[0] or 'nothing (one group of all rows)'}")
    return "\n".join(lines)


# -- in Spark's workers ----------------------------------------------------------------------------------------------


_Reader = Callable[[Callable[[str], Storage]], Iterable[Sequence[pa.Array]]]
"""Yields the columns of some rows of a bucket, given the storage of each of its tables and logs."""


class _Bucket(MemoryStore):
    """A copy of one table's bytes, whose pieces have the names of the state variable."""

    def run(self, run_id: str) -> bytes | None:
        return super().run(stored_name(run_id))


def _bucket_task(reader: _Reader, schema: pa.Schema) -> Callable[[pa.Table], pa.Table]:
    """Return the task that reads one bucket, given its manifests by name and its runs."""

    def run(bucket: pa.Table) -> pa.Table:
        rows = list(zip(*(bucket.column(name).to_pylist() for name in (_NAME, _RUN, _DATA)), strict=True))
        runs = {run: data for name, run, data in rows if name is None}
        manifests = {name: data for name, _, data in rows if name is not None}

        def storage(name: str) -> Storage:
            return Storage(_Bucket(manifests.get(name), runs), RunCache(bytes_max=_CACHE_BYTES_MAX))

        with naming_bucket(bucket.column(BUCKET)[0].as_py()):
            parts = [list(map(convert, columns, schema.types)) for columns in reader(storage)]
        return pa.Table.from_batches([pa.RecordBatch.from_arrays(part, schema=schema) for part in parts], schema)

    return run


def _current_groups(layout: TableLayout, storage: Callable[[str], Storage]) -> Iterator[list[pa.Array]]:
    """Yield the groups of one bucket."""
    # The single group of a query without keys counts one extra row, so that it is never removed.
    least_live = 0 if len(layout.keys) else 1
    for rows in StateTable(layout, storage(""), conversion=VersionColumns(layout)).scan():
        live = pa.array(rows.column(LIVE).to_numpy() - least_live)
        yield [*rows.select(layout.keys.names).columns, live, *rows.select(layout.states.names).columns]


def _entries(
    layout: TableLayout, views: Sequence[CallView], index: int, storage: Callable[[str], Storage]
) -> Iterator[list[pa.Array]]:
    """Yield the entries of a view of one bucket."""
    table = ViewTable(layout, views, storage(""), conversion=lambda _: CurrentViews(layout.states))
    for rows in table.all_entries(index):
        yield rows.columns


def _over_groups(over: StoredOver, storage: Callable[[str], Storage]) -> Iterator[list[pa.Array]]:
    """Yield the groups of one bucket of an over."""
    yield over.groups(storage)


def _measure(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sizes of buckets from their manifests."""
    for batch in batches:
        figures = [_figures(*row.values()) for row in batch.select([BUCKET, _DATA]).to_pylist()]
        yield pa.RecordBatch.from_pylist(figures, pa.schema([(name, pa.int64()) for name in _FIGURES]))


def _generations(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the state schemas of the buckets' runs, from their manifests."""
    for batch in batches:
        schemas = []
        for row in batch.select([BUCKET, _DATA]).to_pylist():
            with naming_bucket(row[BUCKET]):
                schemas += [each.serialize().to_pybytes() for each in Manifest.decode(row[_DATA]).generations.values()]
        yield pa.RecordBatch.from_arrays([pa.array(sorted(set(schemas)), pa.binary())], names=[_DATA])


def _figures(bucket: int, manifest: bytes) -> dict[str, int]:
    with naming_bucket(bucket):
        pieces = [piece for data in manifests_of(manifest)[0].values() for piece in Manifest.decode(data).pieces]
    sums = [sum(each.rows for each in pieces), sum(each.bytes for each in pieces)]
    return dict(zip(_FIGURES, [bucket, len(pieces), *sums], strict=True))
