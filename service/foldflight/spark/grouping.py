"""`group_by(df, ...).agg(...)`: builds a `Query` and the Spark plan that executes it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client.exchange import Transport
from foldflight.client.functions import Aggregate, FunctionHandle, Use
from foldflight.engine.query.layout import DEAD_LETTER, KIND, REAL, ROW_KIND, QueryLayout
from foldflight.engine.query.query import BatchPlan, Emit, Groups, Query, StreamOptions
from foldflight.errors import RejectedError
from foldflight.fold.mode import Mode
from foldflight.functions import Call
from foldflight.functions.query.call import text_of_literals
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.batch import LIFT, Text, batch_result
from foldflight.spark.columns import Columns, column_of, key_name, key_of, kind_of, quote_name, text_of
from foldflight.spark.deadletters import OnError, is_isolated
from foldflight.spark.months import as_intervals, as_months, in_months, is_months, storage_types_of
from foldflight.spark.pipelines import check_analysable
from foldflight.spark.rowkinds import UNSET, Unset, refuse_unset_kinds
from foldflight.spark.scans.listing import UnreadableError
from foldflight.spark.scans.scan import Scan, as_dataframe
from foldflight.spark.scans.source import Source
from foldflight.spark.settings import advise, check_provider
from foldflight.spark.storage_types import SPARK
from foldflight.spark.stream import stream_result
from foldflight.spark.types import arrow_fields, check_keys, check_passed, is_collated
from foldflight.spark.versions.sessions import check_workers, estimated_rows, is_spark, repeated_name
from foldflight.spark.windows import WATERMARK, WINDOW_END, WINDOW_START, Window

_BUCKETS_MAX = 1 << 15
# The modes in which folding what tasks have read is faster than aggregations of Spark over what it has read.
_FAST = (Mode.COMPILED, Mode.COMPILED_WHEN_HOT, Mode.VECTORISED)


def group_by(
    df: DataFrame | Scan,
    *keys: str | Column | Sequence[str | Column],
    row_kind: str | Column | Unset | None = UNSET,
    row_kinds: Mapping[str, str] | None = None,
    materialize: bool = False,
    window: Window | None = None,
    emit: Emit = "update",
    allowed_lateness_s: float = 0,
    buckets: int = 32,
    strict: bool = False,
    on_error: OnError = "fail",
    plan: BatchPlan = "auto",
    groups: int | None = None,
) -> GroupedFrame:
    """Group a DataFrame, to aggregate it with functions.

    Over a streaming DataFrame the result is a stream of changes: after each epoch, one row for each group that changed.
    Its state lives in Spark's RocksDB state store.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect; or a `scan` of files.
        keys: Column names, SQL expressions, or Columns (named by their alias); or one list of them. Without keys all
            rows form one group, and the result has one row even for an empty input. NULL is a group, all NaN values are
            one group, and -0.0 equals 0.0.
        row_kind: The column of row kinds: `+I` and `+U` accumulate a row, `-U` and `-D` retract it. A group is removed
            when all its rows are retracted. Default, and None: every row is accumulated. Over rows of `from_debezium`,
            `upserts` and other changelogs, which have a column of row kinds, there is no default: None counts the
            changes themselves.
        row_kinds: Maps the values of `row_kind` to row kinds: `{"c": "+I", "d": "-D"}`. Default: they are row kinds.
        materialize: Store the rows of each group for functions without `retract` (`max`, `string_agg`...) over rows
            with kinds, and for functions without `merge` over sessions of a stream. These functions fold all rows of
            the group again for each value. Default: such functions are refused.
        window: Time windows, which add the keys `window_start` and `window_end`: `tumble`, `hop`, `cumulate` or
            `session`. In a stream with a watermark on the time column, a window closes when the watermark passes its
            end: its state is dropped, and later rows for it are dropped and counted. Sessions need rows without kinds
            and, in a stream, functions that merge.
        emit: For streams. `update` emits new values (`+I`, `+U`) and removed groups (`-D`); `changelog` also emits the
            old value (`-U`) before each new one. The result has a column `row_kind` in a changelog, and in updates if
            the input has row kinds or the windows are sessions (a session that grows is removed and replaced by another
            one). `append` emits each group of a window once, when the window closes.
        allowed_lateness_s: For streams: how much longer a window stays open, in seconds.
        buckets: For streams: the number of parts of the state. It is fixed for the life of a checkpoint.
        strict: Fail the query at a retraction without a row. In a batch, no equal row is accumulated; in a stream, its
            group has no row left, or it had none before the epoch and accumulates no equal one. Default: such
            retractions are ignored; a stream counts them.
        on_error: What happens if a function raises, or returns a value that does not fit. `fail`: the query fails.
            `isolate`: other groups continue, the failed group keeps its state from before the epoch (in a batch, it has
            no result), and its rows of the epoch become dead letters in a column `dead_letter`. Use `results` and
            `dead_letters` to separate the two. With `isolate`, rows are not folded before the shuffle.
        plan: For batches: how they are computed. `lifted`: Spark computes the states by its own aggregations, and no
            row is passed to Python; every function must lift (`foldflight functions` tells). `fold`: Python folds the
            rows. `auto`: lifted, if every function lifts and merges, and there are not too many groups.
        groups: For batches: about how many groups there are. From half a million on, `auto` folds, because Spark's
            aggregations are slower there. Default: not known, and taken for fewer.

    Returns:
        GroupedFrame: Call its `agg` to get the result.

    Raises:
        RejectedError: SIGNATURE, also if it is not said what row kinds mean; SCHEMA_MISMATCH; CANNOT_RETRACT for
            sessions over rows with kinds, and for updates without old values (`emit="update"`) as row kinds.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by
    >>> orders = spark.createDataFrame([("ann", 10), ("ann", 40), ("bob", 7)], "customer STRING, price BIGINT")
    >>> functions = connect("embedded:")
    >>> group_by(orders, "customer").agg(total=functions.sum("price"), orders=functions.count()).sort("customer").show()
    +--------+-----+------+
    |customer|total|orders|
    +--------+-----+------+
    |     ann|   50|     2|
    |     bob|    7|     1|
    +--------+-----+------+
    """
    scan = df if isinstance(df, Scan) else None
    df = as_dataframe(df)
    _check_input(df, window)
    check_analysable(df, "group_by")
    if isinstance(row_kind, Unset):
        refuse_unset_kinds(
            df,
            "group_by",
            "write row_kind='{name}', so that they retract, or row_kind=None to aggregate the changes themselves",
        )
        row_kind = None
    all_keys = unpack_keys(keys)
    is_stream = df.isStreaming
    if window is not None:
        df = window.with_time(df)
    _check_stream_options(emit, buckets, allowed_lateness_s, is_stream=is_stream)
    closing = _closing_lateness_s(df, window, emit, allowed_lateness_s, is_stream=is_stream)
    has_sessions = window is not None and window.is_session
    if has_sessions and row_kind is not None:
        raise RejectedError(
            "CANNOT_RETRACT",
            "a retracted row may split a session into two, and an accumulator cannot be split; over rows with kinds "
            "use tumble, hop or cumulate",
        )
    if window is not None:
        df = window.assign(df, [column_of(df, key, _role(key), may_name=True) for key in all_keys])
        all_keys = (*all_keys, WINDOW_START, WINDOW_END)
    columns = tuple(key_of(df, key, _role(key)) for key in all_keys)
    names = tuple(key_name(df, key, column) for key, column in zip(all_keys, columns, strict=True))
    refuse_doubles(names, "is twice among the keys")
    kind = kind_of(df, row_kind, row_kinds)
    _check_plan(plan, groups, is_stream=is_stream)
    return GroupedFrame(
        df,
        columns,
        names,
        kind,
        materialize,
        StreamOptions(emit, buckets, strict, closing, has_sessions, str(window or "")) if is_stream else None,
        isolates=is_isolated(on_error),
        plan=plan,
        groups=None if groups is None else Groups(groups, "groups="),
        strict=strict,
        scan=scan,
    )


def unpack_keys(keys: Sequence[Any]) -> tuple[Any, ...]:
    """Return the keys, which may be passed as one list."""
    return tuple(keys[0]) if len(keys) == 1 and isinstance(keys[0], (list, tuple)) else tuple(keys)


def _role(key: object) -> str:
    return f"the key {text_of(key)!r}"


def _check_input(df: object, window: object) -> None:
    """Check the types of the DataFrame and the window. Raises RejectedError SIGNATURE."""
    require_dataframe(df, "group_by")
    if window is not None and not isinstance(window, Window):
        raise RejectedError(
            "SIGNATURE",
            f"the window is {text_of(window)!r}, which is not a window of foldflight; give tumble('time', '1 hour'), "
            "where time is a column, or hop, cumulate or session of foldflight.spark",
        )


def _closing_lateness_s(
    df: DataFrame, window: Window | None, emit: str, allowed_lateness_s: float, *, is_stream: bool
) -> int | None:
    """Return the lateness after which windows close, or None if they never close."""
    has_watermark = window is not None and window.time in df.columns and WATERMARK in df.schema[window.time].metadata
    if emit == "append" and not (is_stream and has_watermark):
        raise RejectedError(
            "SIGNATURE",
            "emit='append' emits a window after the watermark has passed its end, so it needs a stream, a window as in "
            "window=tumble('time', '1 hour') (a key that is made by PySpark's window() is a key like others, and never "
            f"closes), and df.withWatermark({window.time if window else 'time'!r}, ...) on its time column",
        )
    return int(allowed_lateness_s * 1000) if is_stream and has_watermark else None


def check_buckets(buckets: object) -> None:
    """Refuse a number of buckets that is not valid. Raises RejectedError SIGNATURE."""
    if not isinstance(buckets, int) or not 1 <= buckets <= _BUCKETS_MAX:
        raise RejectedError("SIGNATURE", f"buckets is 1 to {_BUCKETS_MAX}, and here it is {buckets!r}")


def _check_stream_options(emit: str, buckets: int, allowed_lateness_s: float, *, is_stream: bool) -> None:
    if emit not in ("update", "changelog", "append"):
        raise RejectedError("SIGNATURE", f"emit is 'update', 'changelog' or 'append', and here it is {emit!r}")
    check_buckets(buckets)
    if not isinstance(allowed_lateness_s, (int, float)) or not 0 <= allowed_lateness_s < float("inf"):
        raise RejectedError(
            "SIGNATURE",
            f"allowed_lateness_s is a number of seconds, 0 or more, and here it is {allowed_lateness_s!r}",
        )
    if not is_stream and emit != "update":
        raise RejectedError("SIGNATURE", "emit is for streams; the result of a batch has one row for each group")


def _check_plan(plan: str, groups: int | None, *, is_stream: bool) -> None:
    if plan not in get_args(BatchPlan):
        raise RejectedError("SIGNATURE", f"plan is 'auto', 'fold' or 'lifted', and here it is {plan!r}")
    if groups is not None and (isinstance(groups, bool) or not isinstance(groups, int) or groups < 0):
        raise RejectedError("SIGNATURE", f"groups is a number of groups, 0 or more, and here it is {groups!r}")
    if is_stream and (plan != "auto" or groups is not None):
        raise RejectedError("SIGNATURE", "plan and groups are for batches; a stream folds its rows, so leave them out")


@dataclass(frozen=True)
class GroupedFrame:
    """A grouped DataFrame; made by `group_by`.

    >>> from foldflight import connect
    >>> from foldflight.spark import group_by
    >>> orders = spark.createDataFrame([("ann", 10), ("ann", 40), ("bob", 7)], "customer STRING, price BIGINT")
    >>> group_by(orders, "customer").explain(total=connect("embedded:").sum("price"))
    batch: group by customer
      total: BIGINT = sum(price)
          folded: by the host (in Python: vectorised)
          state: struct<...>; retracts in any order, merges
    plan: rows > expressions > aggregation by the host > states > outputs by the host
      rows are lifted: every call lifts, and nothing tells that there are 500,000 groups or more
      no Python runs: get_value of every call is lifted
      blocks of at most 262,144 rows and 64 MiB; a partial fold holds at most 4,194,304 groups and 80 MiB ...
    """

    df: DataFrame
    keys: tuple[Column | str, ...]
    names: tuple[str, ...]
    kind: Column | None
    materialize: bool
    stream: StreamOptions | None
    isolates: bool = False
    plan: BatchPlan = "auto"
    groups: Groups | None = None
    strict: bool = False
    scan: Scan | None = None

    def __repr__(self) -> str:
        return f"<{self.df!r} grouped by {', '.join(self.names) or 'nothing'}; call agg(...)>"

    def agg(self, /, *aliased: Aggregate, **named: Aggregate) -> DataFrame:
        """Aggregate each group.

        The query is checked now and computed when an action needs the result.

        Args:
            aliased: Calls of functions with their output's name: `weighted_avg("delay", "distance").alias("d")`.
            named: Calls of functions by output name, after the others: `d=weighted_avg("delay", "distance")`. All
                functions must come from one `connect`. Arguments are column names, SQL expressions or Columns.

        Returns:
            DataFrame: One row for each group: the keys, then the outputs. If errors are isolated, the last column is
                `dead_letter`, and each row of a failed group is an additional row.

        Raises:
            RejectedError: SIGNATURE for no aggregates, several connections, a name used twice, or a function that
                refers to something that cannot be pickled; SCHEMA_MISMATCH for columns that cannot be resolved or do
                not fit the function; CANNOT_RETRACT for an append-only function over rows with kinds; UNKNOWN_FUNCTION
                if the server no longer has the function.
            RetryableError: UNREACHABLE or DEADLINE, if no server answers.
        """
        return self.plan_query(*aliased, **named).result()

    def query(self, /, *aliased: Aggregate, **named: Aggregate) -> Query:
        """Return the query that `agg` would execute. Raises the same errors as `agg` for mistakes in the query."""
        return self.plan_query(*aliased, **named).query

    def explain(self, /, *aliased: Aggregate, **named: Aggregate) -> None:
        """Print the query of `agg`: the calls and how each is folded, the plan with its reasons, and its bounds.

        Args:
            aliased: As for `agg`.
            named: As for `agg`.

        Raises:
            RejectedError: The same errors as `agg`, for mistakes in the query.
        """
        print(self.plan_query(*aliased, **named).explain())  # noqa: T201 - as DataFrame.explain does

    def plan_query(self, /, *aliased: Aggregate, **named: Aggregate) -> PlannedQuery:
        """Return the plan of `agg`. Raises the same errors as `agg` for mistakes in the query."""
        aggregates = named_outputs(aliased, named)
        for name, each in aggregates.items():
            if each.frame is not None:
                raise RejectedError(
                    "SIGNATURE",
                    f"{name} has the frame {each.frame}, and a group has none; use over(df, ...).agg(...), or leave "
                    "the frame out",
                    function=each.function.name,
                )
        transport = one_transport(aggregates)
        refuse_doubles((*self.names, *aggregates), "is the name of two columns of the result")
        _refuse_own((*self.names, *aggregates), self._own_columns())
        columns = Columns(self.df, self.keys, self.names, self.kind)
        calls = dict(zip(aggregates, columns.calls(list(aggregates.values())), strict=True))
        # A stream stores the state of each call, and states of before stay readable.
        copies = {} if self.stream is not None else _copies(calls, aggregates)
        schema = columns.schema()
        check_keys(schema, self.names)
        columns.check_compared(list(aggregates.values()), schema)
        layout = self._layout(columns, arrow_fields(in_months(schema), columns.roles(), are_passed=False))
        try:
            query = Query.of(
                transport,
                {name: call for name, call in calls.items() if name not in copies},
                layout,
                stream=self.stream,
                materialize=self.materialize,
                types=SPARK,
                plan=self.plan,
                groups=self.groups or self._estimate_groups(columns),
                no_host_reason="",
                # Sail evaluates arguments that a condition guards, and groups NaNs by their bits.
                lifts_integers_only=not is_spark(self.df.sparkSession),
            )
        except RejectedError as error:
            if error.code == "SCHEMA_MISMATCH":
                columns.refuse_types(list(aggregates.values()), layout.chunk)
            raise
        if not (query.lift_choice.holds and query.finished_by_host.holds):
            check_passed(schema, columns.roles())
        uses = [(each.function, each.columns) for name, each in aggregates.items() if name not in copies]
        results = columns.result_types(uses, schema, query.layout.outputs.types)
        key_types = {name: field.dataType for name, field in zip(self.names, schema, strict=False)}
        type_by_output = dict(zip(query.layout.outputs.names, results, strict=True))
        types = key_types | {name: type_by_output[copies.get(name, name)] for name in aggregates}
        query, reader = self._read(query, columns)
        return PlannedQuery(query, columns, schema, types, copies, self.strict, reader)

    def _read(self, query: Query, columns: Columns) -> tuple[Query, Source | str]:
        """Return the query, and who reads its rows: tasks of its own, or Spark, for a reason.

        Rows that the tasks read are folded, also of a query that would be lifted, if machine code folds them.
        """
        if self.scan is None:
            return query, ""
        if columns.df is not self.scan.df:
            return query, "rows of windows are made by Spark"
        if (plain := columns.plain) is None:
            return query, "row kinds, expressions, and queries without columns are evaluated by Spark"
        if not query.folds_before_shuffle.holds:
            return query, f"rows are not folded before the shuffle: {query.folds_before_shuffle.why}"
        if query.lift_choice.holds and self.plan == "lifted":
            return query, "plan='lifted'"
        if query.lift_choice.holds and (slow := _interpreted_functions(query)):
            return query, f"rows are lifted, which is faster than to interpret {slow}"
        try:
            source = self.scan.source(list(plain.values()), len(columns.keys))
        except UnreadableError as error:
            return query, str(error)
        return replace(query, no_host_reason="the tasks that fold the rows read them"), source

    def _estimate_groups(self, columns: Columns) -> Groups | None:
        """Return what the statistics of tables tell about the number of groups, if Spark keeps them."""
        session = self.df.sparkSession
        if self.stream is not None or self.plan != "auto" or not self.names:
            return None
        if session.conf.get("spark.sql.cbo.enabled", "false") != "true":
            return None
        rows = columns.rows()
        count = estimated_rows(rows.select(*rows.columns[: len(self.names)]).distinct())
        return None if count is None else Groups(count, "ANALYZE TABLE")

    def _layout(self, columns: Columns, schema: pa.Schema) -> QueryLayout:
        keys, others = list(schema)[: len(self.names)], list(schema)[len(self.names) :]
        return QueryLayout(
            keys=pa.schema(keys),
            names=self.names,
            columns=pa.schema([field for field in others if field.name not in (KIND, REAL)]),
            display_names=tuple(columns.display_names),
            has_kinds=self.kind is not None,
            isolates=self.isolates,
        )

    def _own_columns(self) -> list[str]:
        """Return the additional columns of the result, besides keys and outputs."""
        own = [DEAD_LETTER] if self.isolates else []
        if self.stream is not None and self.stream.shows_kind(has_kinds=self.kind is not None):
            own.append(ROW_KIND)
        return own


@dataclass(frozen=True)
class PlannedQuery:
    """A query, and how Spark executes it.

    Args:
        query: The query.
        columns: The columns of its input.
        schema: Spark's types of these.
        types: Spark's types of the keys and outputs, by name.
        copies: Outputs of equal calls of a batch, with the output that the query computes for them.
        strict: Whether a retraction without a row is an error, in a batch.
        reader: The rows for its tasks to read; or why Spark reads them, which is empty if there is no scan.
    """

    query: Query
    columns: Columns
    schema: st.StructType
    types: Mapping[str, st.DataType]
    copies: Mapping[str, str]
    strict: bool
    reader: Source | str = ""

    @property
    def _outputs(self) -> list[st.DataType]:
        outputs = self.query.layout.outputs
        return storage_types_of([self.types[name] for name in outputs.names], outputs.types)

    @property
    def _is_without_python(self) -> bool:
        query = self.query
        return query.stream is None and query.lift_choice.holds and query.finished_by_host.holds

    def result(self, analyse: Callable[[], DataFrame] | None = None) -> DataFrame:
        """Return the result.

        Args:
            analyse: Has Spark analyse `text`, for aggregations that are one text (`has_plain_rows`). Default: they are
                steps of a DataFrame.

        Raises:
            RejectedError: As `GroupedFrame.agg` does.
        """
        query, session = self.query, self.columns.df.sparkSession
        # Spark pickles it again later, but its error would not name the function and the object that failed.
        pickle.dumps(query)
        advise(self.columns.df)
        if not self._is_without_python:
            check_workers(session)
        if analyse is not None and query.lift_choice.holds:
            result = LIFT.load().finished_by_python(query, analyse(), self.schema, self._outputs)
        elif query.stream is None:
            scan_source = self.reader if isinstance(self.reader, Source) else None
            rows = as_months(self.columns.rows())
            result = batch_result(query, rows, self._outputs, strict=self.strict, source=scan_source)
        else:
            check_provider(self.columns.df)
            result = stream_result(query, as_months(self.columns.rows()), self._outputs)
        result = as_intervals(result, {name: self.types[name] for name in self.types if name not in self.copies})
        if not self.copies:
            return result
        others = [name for name in result.columns if name not in self.types]
        return result.select(
            *(sf.col(quote_name(self.copies.get(name, name))).alias(name) for name in (*self.types, *others))
        )

    def explain(self) -> str:
        """Return a description of the query, and who reads the rows of a scan. Raises RetryableError as the query's."""
        lines = [self.query.explain()]
        lines += [f"  {name}: the same call as {first}" for name, first in self.copies.items()]
        if self.reader:
            lines.append(f"  reader: {self.read_by}")
        return "\n".join(lines)

    @property
    def read_by(self) -> str:
        """Who reads the rows of a scan, as text for users."""
        return f"{'' if isinstance(self.reader, Source) else 'Spark, because '}{self.reader}"

    @property
    def is_of_spark(self) -> bool:
        """Whether Spark aggregates the rows by SQL, so that the query needs no DataFrame with them."""
        return self.has_plain_rows and self.query.stream is None and self.query.lift_choice.holds

    @property
    def is_text(self) -> bool:
        """Whether the result can be written as SQL."""
        return self.has_plain_rows and self._is_without_python

    @cached_property
    def has_plain_rows(self) -> bool:
        """Whether keys, arguments and results are passed to Spark's aggregations, and from them, as they are."""
        types = [*(field.dataType for field in self.schema), *self.types.values()]
        return self.columns.plain is not None and not any(is_months(each) or is_collated(each) for each in types)

    def text(self, source: Text, items: Sequence[tuple[str, str]] | None = None) -> str:
        """Return the result as SQL, which Spark analyses in one step.

        Args:
            source: A query with the columns of the input.
            items: The columns of the result, each with the name that it is given. Default: all, with the query's names.
        """
        columns = {name: quote_name(column) for name, column in (self.columns.plain or {}).items()}
        session = self.columns.df.sparkSession
        computed_names = None if self.copies else items
        plan_text = LIFT.load().text(self.query, source, columns, self._outputs, session, computed_names)
        if not self.copies or not self._is_without_python:
            return plan_text.sql
        output_items = [(name, name) for name in self.types] if items is None else items
        return plan_text.selectExpr(
            *(f"{quote_name(self.copies.get(name, name))} AS {quote_name(alias)}" for name, alias in output_items)
        ).sql


def _copies(calls: Mapping[str, Call], aggregates: Mapping[str, Aggregate]) -> dict[str, str]:
    """Return the outputs of calls that have come before, each with the first output of an equal call."""
    first: dict[tuple[str, str], str] = {}
    copies = {}
    for name, call in calls.items():
        use = (repr(replace(call, literals={})), text_of_literals(call.literals))
        if aggregates[name].function.deterministic and first.setdefault(use, name) != name:
            copies[name] = first[use]
    return copies


def _interpreted_functions(query: Query) -> str:
    """Return the functions of a query that no machine code folds, as text; empty if there are none."""
    modes = {info.name: info.folding for info in query.transport.infos(look=True)}
    names = dict.fromkeys(call.function for call in query.open_request.calls)
    return ", ".join(name for name in names if (folding := modes.get(name)) is None or folding.mode not in _FAST)


def named_outputs(aliased_calls: Sequence[Any], calls_by_name: Mapping[str, Any]) -> dict[str, Aggregate]:
    """Return the calls by output name. Raises RejectedError SIGNATURE."""
    outputs: dict[str, Aggregate] = {}
    for name, call in (*(("an output", each) for each in aliased_calls), *calls_by_name.items()):
        if isinstance(call, FunctionHandle):
            raise RejectedError(
                "SIGNATURE",
                f"{name} is the function {call.name} itself; call it with its columns: {call.name}('column')",
            )
        if isinstance(call, Use):
            use = "join_lateral" if call.is_table else "with_columns"
            raise RejectedError(
                "SIGNATURE",
                f"{name} is a use of {call.function.name}, a function of the kind {call.function.kind}, which "
                f"aggregates nothing; use it in {use}",
                function=call.function.name,
            )
        if isinstance(call, Column):
            raise RejectedError(
                "SIGNATURE",
                f"{name} is {text_of(call)!r}, a Column of PySpark, and agg takes functions of foldflight only; "
                "take the built-in function of this name from functions = connect(...), as in functions.sum('column'), "
                "or use both in df.groupBy(...).agg(...), where a function with declared types is written as "
                "foldflight.sql.column(spark, functions.weighted_avg('v', 'w'))",
            )
        if not isinstance(call, Aggregate):
            raise RejectedError(
                "SIGNATURE",
                f"{name} is {text_of(call)!r}, not a use of a function; write functions.sum('column').alias('name'), "
                "with functions = connect(...)",
            )
    for call in aliased_calls:
        if call.name is None:
            raise RejectedError("SIGNATURE", f"{call!r} has no name; write {call!r}.alias('name'), or name={call!r}")
        refuse_doubles((*outputs, call.name), "is the name of two outputs")
        outputs[call.name] = call
    for name, call in calls_by_name.items():
        if call.name not in (None, name):
            raise RejectedError("SIGNATURE", f"{name}={call!r} gives one output two names; remove one")
        refuse_doubles((*outputs, name), "is the name of two outputs")
        outputs[name] = call
    return outputs


def one_transport(aggregates: Mapping[str, Aggregate]) -> Transport:
    """Return the transport of all calls. Raises RejectedError SIGNATURE."""
    if not aggregates:
        raise RejectedError("SIGNATURE", "there is nothing to aggregate; give at least one output, as in n=count()")
    first, *others = aggregates.items()
    for name, aggregate in others:
        if aggregate.transport is not first[1].transport:
            raise RejectedError(
                "SIGNATURE",
                f"{first[0]} and {name} come from two connections; take all functions of an agg from one, which takes "
                'several modules or several servers: connect("embedded:a,b")',
            )
    return first[1].transport


def refuse_doubles(names: Sequence[str], reason: str) -> None:
    """Refuse a name that occurs twice. Raises RejectedError SIGNATURE."""
    name = repeated_name(names)
    if name is not None:
        raise RejectedError("SIGNATURE", f"{name!r} {reason}; give each another name")


def _refuse_own(names: Sequence[str], own: Sequence[str]) -> None:
    for name in names:
        if name.casefold() in own:
            raise RejectedError(
                "SIGNATURE",
                f"the result of this query has a column {name.casefold()} of its own; give the key or the output "
                f"{name!r} another name",
            )
