"""`group_by(df, ...).agg(...)` over a streaming DataFrame, with the state in Spark's state store.

    rows > mapInArrow(PartialFold, Pack) > groupBy(bucket).transformWithState(BucketProcessor) > observe
         > mapInArrow(Unpack)

The hash of a group's key determines its bucket. A bucket is one key of Spark's state store and holds a state table (see
`engine.state`). In an epoch, the buckets of a task share one exchange, one after the other (see
`engine.keys.group_exchange`). Each bucket loads the states of the groups that its rows touch and commits one new run.
Spark commits the state together with the epoch, so a rerun starts from the same states and has the same result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row
from pyspark.sql import types as st

from foldflight.client.client_logs import log_event, set_up_logger
from foldflight.engine.batch.tasks import PartialFold
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.layout import DEAD_LETTER, ROW_KIND
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.manifest import RunStore
from foldflight.engine.state.migration import Migration
from foldflight.engine.state.table import StateTable, TableLayout
from foldflight.engine.state.viewtable import ViewTable, table_of
from foldflight.engine.stream.epoch import BucketEpoch, ClosedWindows, EpochStats
from foldflight.engine.stream.packing import Pack, Unpack
from foldflight.engine.stream.session_epoch import SessionEpoch
from foldflight.exchange.ipc import write_batch
from foldflight.functions import RowKind
from foldflight.spark.arrow import arrow_function, spark_schema, step_of
from foldflight.spark.bucketed import BucketOperator, blobs_of, bucket_row, operator_plan
from foldflight.spark.rowkinds import CHANGES, UPDATES, kind_column

# If most rows of an epoch belong to different groups, merging their states costs more than folding the rows.
_UNFOLDED_GROUPS_MIN = 1 << 10
_OUTPUT_ROWS_MAX = 1 << 16
_LOGGER = "foldflight.spark"


def stream_result(query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
    """Return the changelog of a streaming query.

    Args:
        query: The query. If its windows close, its last key is the window's end.
        rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
        outputs: Spark's types of the outputs.
    """
    layout, options = query.layout, _options_of(query)
    hashed_count = len(layout.keys) - (2 if options.has_sessions else 0)
    keys = layout.keys.names[:hashed_count]
    count = options.buckets if keys else 1
    table = TableLayout(
        keys=layout.keys,
        states=layout.states,
        buckets=count,
        hashed=hashed_count,
        window=options.window,
        names=(*layout.names, *layout.outputs.names),
        emitted=layout.emitted,
    )
    results, schema = _results(query, rows, outputs)
    step = "fold_partial" if query.folds_before_shuffle.holds else "pack"
    pack = arrow_function(_pack_task(query), step_of(query, step), query.trace)
    unpack = arrow_function(Unpack(results), step_of(query, "changelog"))
    mode = "Append" if options.emit == "append" else "Update"
    return operator_plan(
        rows,
        BucketProcessor(query, table),
        (pack, unpack),
        schema,
        keys=keys,
        buckets=count,
        names=(layout.names, layout.outputs.names),
        modes=(mode, "None" if options.closing_lateness_ms is None else "EventTime"),
    )


def _options_of(query: Query) -> StreamOptions:
    if query.stream is None:
        raise AssertionError("a batch has no plan of a stream")
    return query.stream


def _pack_task(query: Query) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    if not query.folds_before_shuffle.holds:
        return Pack(query.layout.rows, query.bounds)
    bounds = replace(query.bounds, unfolded_groups_min=_UNFOLDED_GROUPS_MIN)
    partial = PartialFold(query, bounds, keeps_buckets=True, looks_ahead=False)
    return Pack(query.layout.partial, query.bounds, partial)


def _results(query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> tuple[pa.Schema, st.StructType]:
    layout = query.layout
    schema = spark_schema(query, rows.schema, layout.results, outputs)
    if not _options_of(query).shows_kind(has_kinds=layout.has_kinds):
        return layout.results, schema
    # Dead letters have a row kind inside `dead_letter`.
    kind = kind_column(nullable=layout.isolates, kinds=CHANGES if _options_of(query).emit == "changelog" else UPDATES)
    return pa.schema([pa.field(ROW_KIND, pa.string()), *layout.results]), st.StructType([kind, *schema.fields])


class BucketProcessor(BucketOperator):
    """The operator of grouped streams.

    Args:
        query: The query.
        table: The layout of the state table.
    """

    def __init__(self, query: Query, table: TableLayout) -> None:
        layout = query.layout
        self._merges = query.folds_before_shuffle.holds
        super().__init__(
            layout.partial if self._merges else layout.rows, query.bounds, has_names=False, trace=query.trace
        )
        # One exchange serves all buckets of a task. It is opened for the first bucket that has rows.
        # Windows that close are asked for their outputs then, so outputs of epochs would be asked for in vain.
        self._needs_outputs = _options_of(query).emit != "append" or not query.calls_out
        open_request = query.opening_for(
            states=True, outputs=self._needs_outputs, initial_outputs=True, keeps_views=True
        )
        self._views = query.views
        self._exchange = GroupedExchange(query.transport, open_request, layout, clock=time.perf_counter)
        self._layout = layout
        self._options = _options_of(query)
        self._shows_kind = self._options.shows_kind(has_kinds=layout.has_kinds)
        self._table_layout = table
        self._migration = Migration(
            query.transport,
            # A state that cannot be migrated fails the query: isolation would fail its group in every epoch.
            replace(query.opening_for(states=True, outputs=False, keeps_views=True), isolate_errors=False),
            layout,
            query.can_migrate,
            query.bounds,
            query.views,
            query.row_lists,
        )

    def arrive(self, bucket: int, blocks: Iterator[pa.RecordBatch], timers: Any) -> Iterator[Row]:
        """Fold the rows of one bucket and epoch."""
        table = self._table()
        table.declare()
        if table.lacks_outputs:
            fields = {
                "bucket": bucket,
                "outputs": [self._layout.outputs.names[index] for index in self._layout.varying],
            }
            log_event(set_up_logger(_LOGGER, logging.WARNING), logging.WARNING, "last_outputs_unknown", fields)
        first_block = next(blocks, None)
        if first_block is None:
            return
        closed_us = None
        if self._options.closing_lateness_ms is not None:
            closed_us = (timers.getCurrentWatermarkInMs() - self._options.closing_lateness_ms) * 1000
        epoch = self._epoch(table, closed_us)
        kinds, changes = epoch.run(chain([first_block], blocks))
        if closed_us is not None:
            for end_us in epoch.open_ends_us:
                self._close_at(end_us)
        if self._options.emit == "append":
            kinds, changes = kinds[:0], changes.slice(0, 0)
        blobs: list[bytes | None] = [*self._blobs(kinds, changes)]
        first, *others = blobs or [None]
        yield bucket_row(first, epoch.stats)
        for blob in others:
            yield bucket_row(blob, EpochStats())
        for letters in epoch.dead_letters():
            yield from self._letters(letters)

    def expire(self, bucket: int, timers: Any, timer_info: Any) -> Iterator[Row]:  # noqa: ARG002
        """Close the windows that the watermark has passed: emit them in append mode, and drop their state."""
        lateness_ms = self._options.closing_lateness_ms or 0
        # The sessions of a bucket share a timer, at the earliest end. Other windows have one timer for each end.
        until = timers.getCurrentWatermarkInMs() if self._options.has_sessions else timer_info.getExpiryTimeInMs()
        closed_us = (until - lateness_ms) * 1000
        closed_windows = ClosedWindows(self._exchange, self._layout, self._table(), closed_us)
        for changes in closed_windows.drop(wants_outputs=self._options.emit == "append"):
            inserts = pa.array([int(RowKind.INSERT)] * changes.num_rows, pa.int8())
            for blob in self._blobs(inserts, changes):
                yield bucket_row(blob, EpochStats())
        for letters in closed_windows.dead_letters:
            yield from self._letters(letters)
        # Also windows of other kinds may have no timer of their own, after a restart with another lateness.
        if closed_windows.next_end_us is not None:
            self._close_at(closed_windows.next_end_us)

    def _close_at(self, end_us: int) -> None:
        """Register a timer for the end of a window."""
        self.wake(end_us, self._options.closing_lateness_ms or 0)

    def _epoch(self, table: StateTable | ViewTable, closed_us: int | None) -> BucketEpoch | SessionEpoch:
        if self._options.has_sessions and isinstance(table, StateTable):
            return SessionEpoch(self._exchange, self._layout, table, closed_us=closed_us)
        return BucketEpoch(
            self._exchange,
            self._layout,
            table,
            is_strict=self._options.strict,
            update_before=self._options.emit == "changelog",
            needs_outputs=self._needs_outputs,
            merges=self._merges,
            closed_us=closed_us,
        )

    def check(self, stores: Callable[[str], RunStore]) -> None:
        self._table(stores(""))

    def _table(self, store: RunStore | None = None) -> StateTable | ViewTable:
        return table_of(
            self._table_layout,
            self._views,
            self.storage(store or self.store()),
            self._migration,
        )

    def _blobs(self, kinds: pa.Array, changes: pa.RecordBatch) -> Iterator[bytes]:
        if self._options.emit == "update" and self._options.has_sessions:
            is_selected = pa.array(kinds.to_numpy() != RowKind.UPDATE_BEFORE)
            kinds, changes = kinds.filter(is_selected), changes.filter(is_selected)
        columns = changes.columns
        names = self._layout.results.names
        if self._layout.isolates:
            columns = [*columns, pa.nulls(changes.num_rows, self._layout.letter)]
        if self._shows_kind:
            shorts = pa.array([kind.short for kind in RowKind])
            columns = [shorts.take(kinds), *columns]
            names = [ROW_KIND, *names]
        return blobs_of(pa.RecordBatch.from_arrays(columns, names=names))

    def _letters(self, letters: pa.RecordBatch) -> Iterator[Row]:
        """Yield blobs of dead letters, with the number of rows in each."""
        if self._shows_kind:
            kinds = pa.nulls(letters.num_rows, pa.string())
            letters = pa.RecordBatch.from_arrays([kinds, *letters.columns], names=[ROW_KIND, *letters.schema.names])
        for start in range(0, letters.num_rows, _OUTPUT_ROWS_MAX):
            part = letters.slice(start, _OUTPUT_ROWS_MAX)
            kinds = pc.struct_field(part.column(DEAD_LETTER), "row_kind")
            yield bucket_row(write_batch(part), EpochStats(isolated_rows=part.num_rows - kinds.null_count))

    def end(self) -> None:
        """End the exchange."""
        self._exchange.close()
