"""`group_by(df, ...).agg(...)`: the plan of a batch query.

Two phases, when every call merges (and, where rows have kinds, is invertible):

    rows > mapInArrow(PartialFold) > repartition(keys) > sort within partitions > mapInArrow(FinalFold)

Otherwise one: `rows > repartition(keys) > sort within partitions > mapInArrow(FinalFold)`. The sort is by the hash of
the keys, so that a task holds one block of groups at a time however many its partition has (see `tasks`). Where rows
have kinds it also puts a group's inserts before its retractions: what is taken back has come.

Without keys there is one partition and one group. A seed row makes sure that it also appears over empty input.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from foldflight.client import Aggregate, Transport
from foldflight.engine.blocks import BlockBounds
from foldflight.engine.layout import DEAD_LETTER, HASH, KIND, REAL, RETRACTING, ROW_KIND, Layout
from foldflight.engine.tasks import FinalFold, PartialFold
from foldflight.errors import RejectedError
from foldflight.exchange.engine import check_isolates
from foldflight.exchange.frames import Open, Opened, OpenedCall, Returns
from foldflight.functions import Call
from foldflight.spark.carrier import carrier_type, result_types
from foldflight.spark.columns import Columns, arrow_fields, check_keys, column_of, key_name, kind_of, text_of
from foldflight.spark.deadletters import letter_type
from foldflight.spark.windows import WATERMARK, WINDOW_END, WINDOW_START, Window
from foldflight.spark.worker import settle

__all__ = ["Emit", "GroupedFrame", "OnError", "Plan", "StreamOptions", "group_by", "mapping", "step_name"]

Emit = Literal["update", "changelog", "append"]
OnError = Literal["fail", "isolate"]
BUCKETS_MAX = 1 << 15
_NAME_LENGTH_MAX = 100


def group_by(
    df: DataFrame,
    *keys: str | Column | Sequence[str | Column],
    row_kind: str | Column | None = None,
    row_kinds: Mapping[str, str] | None = None,
    materialize: bool = False,
    window: Window | None = None,
    emit: Emit = "update",
    allowed_lateness_s: float = 0,
    buckets: int = 32,
    strict: bool = False,
    on_error: OnError = "fail",
) -> GroupedFrame:
    """Group a DataFrame, to aggregate it with functions.

    Over a streaming DataFrame the result is a stream of changes: after each epoch, one row for each group that changed.
    Its state lives in Spark's RocksDB state store.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect.
        keys: Column names, SQL expressions, or Columns (named by their alias); or one list of them. Without any, all
            rows are one group, and the result is one row also for an empty input. NULL is a group, all NaN are one, and
            -0.0 is 0.0.
        row_kind: The column that tells what a row does: `+I` and `+U` add it, `-U` and `-D` take it back. A group whose
            rows are all taken back is gone. Default: every row adds.
        row_kinds: What the values of `row_kind` mean where they are not kinds themselves: `{"c": "+I", "d": "-D"}`.
        materialize: Append-only functions (`max`, `string_agg`...) over rows with kinds keep the rows of each group,
            and fold them anew for each value; so do functions without merge over the sessions of a stream. Default:
            they are refused.
        window: Windows of time, as two more keys `window_start` and `window_end`: `tumble`, `hop`, `cumulate` or
            `session`. In a stream with a watermark on its time column a window closes when the watermark has passed its
            end: its state goes, and rows that come for it later are left out and counted. Sessions take rows without
            kinds, and those of a stream merge.
        emit: Of a stream: `update` gives new values (`+I`, `+U`) and groups that are gone (`-D`); `changelog` also the
            old value (`-U`) before each new one. The column `row_kind` is there in a changelog, and in updates where
            the input has row kinds or windows are sessions: one that grows is gone, and another comes. `append` gives
            each group of a window once, when it closes.
        allowed_lateness_s: Of a stream: how much longer a window stays open, in seconds.
        buckets: Of a stream: into how many parts its state is cut; fixed for the life of a checkpoint.
        strict: Of a stream: a row that takes back what is not there fails the query, instead of being counted.
        on_error: What becomes of the query when a function raises, or returns what does not fit: `fail`; or `isolate`:
            other groups go on, the group stays as it was before the epoch (in a batch, it is not there), and its rows
            of the epoch come out as dead letters, in a column `dead_letter`; `results` and `dead_letters` take the two
            apart. Rows are then not folded before they are shuffled.

    Returns:
        GroupedFrame: Its `agg` gives the result.

    Raises:
        RejectedError: SIGNATURE, SCHEMA_MISMATCH.
    """
    _check_input(df, window)
    chosen = _listed(keys)
    if window is not None:
        df = window.timed(df)
    _check_stream_options(df, emit, buckets, allowed_lateness_s)
    closing = _closing(df, window, emit, allowed_lateness_s)
    has_sessions = window is not None and window.is_session
    if has_sessions and row_kind is not None:
        raise RejectedError(
            "CANNOT_RETRACT",
            "a session that a row is taken out of may fall into two, and accumulators cannot be cut; over rows with "
            "kinds use tumble, hop or cumulate",
        )
    if window is not None:
        df = window.assigned(df, [column_of(df, key, _role(key)) for key in chosen])
        chosen = (*chosen, WINDOW_START, WINDOW_END)
    columns = tuple(column_of(df, key, _role(key)) for key in chosen)
    names = tuple(key_name(df, key, column) for key, column in zip(chosen, columns, strict=True))
    _refuse_doubles(names, "is twice among the keys")
    kind = kind_of(df, row_kind, row_kinds)
    if on_error not in ("fail", "isolate"):
        raise RejectedError("SIGNATURE", f"on_error is 'fail' or 'isolate', and here it is {on_error!r}")
    return GroupedFrame(
        df,
        columns,
        names,
        kind,
        materialize,
        StreamOptions(emit, buckets, strict, closing, has_sessions, str(window or "")),
        isolates=on_error == "isolate",
    )


@dataclass(frozen=True)
class StreamOptions:
    """What concerns streams only.

    Args:
        emit: What comes out at each barrier.
        buckets: How many buckets the groups are spread over.
        strict: Whether a retraction of what is not there is an error.
        closing_lateness_ms: How long after its end a window closes, in milliseconds of the watermark; None: never.
        has_sessions: Whether windows are sessions, which merge.
        window: How time is cut; it stands with the state, which another query does not fit.
    """

    emit: Emit
    buckets: int
    strict: bool
    closing_lateness_ms: int | None
    has_sessions: bool = False
    window: str = ""

    def shows_kind(self, *, has_kinds: bool) -> bool:
        """Return whether the result of a stream has the column `row_kind`, given whether its input has row kinds."""
        return self.emit == "changelog" or (self.emit == "update" and (has_kinds or self.has_sessions))


def _listed(keys: Sequence[Any]) -> tuple[Any, ...]:
    """Return the keys, which may be given as one list."""
    return tuple(keys[0]) if len(keys) == 1 and isinstance(keys[0], (list, tuple)) else tuple(keys)


def _role(key: object) -> str:
    return f"the key {text_of(key)!r}"


def _check_input(df: object, window: object) -> None:
    """Refuse what is no DataFrame of Spark, or no window. Raises RejectedError SIGNATURE."""
    if not isinstance(df, DataFrame):
        if hasattr(df, "agg") and hasattr(df, "pivot") and not hasattr(df, "columns"):
            remedy = "give the DataFrame itself and the keys: group_by(df, 'key'), not group_by(df.groupBy('key'))"
        elif hasattr(df, "iloc") or hasattr(df, "to_pandas"):
            remedy = "make it one: spark.createDataFrame(...)"
        else:
            remedy = "give a batch or streaming DataFrame, such as spark.table(...)"
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        raise RejectedError("SIGNATURE", f"group_by takes a DataFrame of Spark, and this is a {kind}; {remedy}")
    if window is not None and not isinstance(window, Window):
        raise RejectedError(
            "SIGNATURE",
            f"the window is {text_of(window)!r}, which does not say what to cut; give tumble('time', '1 hour'), where "
            "time is a column, or hop, cumulate or session of foldflight.spark",
        )


def _closing(df: DataFrame, window: Window | None, emit: str, allowed_lateness_s: float) -> int | None:
    """Return the lateness after which windows close; None where they never do."""
    watermarked = window is not None and window.time in df.columns and WATERMARK in df.schema[window.time].metadata
    if emit == "append" and not (df.isStreaming and watermarked):
        raise RejectedError(
            "SIGNATURE",
            "emit='append' gives a window when the watermark has passed it, so it needs a stream, a window, and "
            f"df.withWatermark({window.time if window else 'time'!r}, ...) on the window's column",
        )
    return int(allowed_lateness_s * 1000) if df.isStreaming and watermarked else None


def _check_stream_options(df: DataFrame, emit: str, buckets: int, allowed_lateness_s: float) -> None:
    if emit not in ("update", "changelog", "append"):
        raise RejectedError("SIGNATURE", f"emit is 'update', 'changelog' or 'append', and here it is {emit!r}")
    if not isinstance(buckets, int) or not 1 <= buckets <= BUCKETS_MAX:
        raise RejectedError("SIGNATURE", f"buckets is 1 to {BUCKETS_MAX}, and here it is {buckets!r}")
    if not isinstance(allowed_lateness_s, (int, float)) or not 0 <= allowed_lateness_s < float("inf"):
        raise RejectedError(
            "SIGNATURE",
            f"allowed_lateness_s is a number of seconds, 0 or more, and here it is {allowed_lateness_s!r}",
        )
    if not df.isStreaming and emit != "update":
        raise RejectedError("SIGNATURE", "emit is for streams; the result of a batch has one row for each group")


@dataclass(frozen=True)
class GroupedFrame:
    """A grouped DataFrame; made by `group_by`."""

    df: DataFrame
    keys: tuple[Column, ...]
    names: tuple[str, ...]
    kind: Column | None
    materialize: bool
    stream: StreamOptions
    isolates: bool = False

    def agg(self, /, *aliased: Aggregate, **named: Aggregate) -> DataFrame:
        """Aggregate each group.

        Mistakes show here; nothing is computed before an action asks for the result.

        Args:
            aliased: The uses of functions, each with its output's name: `weighted_avg("delay", "distance").alias("d")`.
            named: The uses of functions by output name, after the others: `d=weighted_avg("delay", "distance")`. All
                come from one `connect`. Their arguments are column names, SQL expressions or Columns.

        Returns:
            DataFrame: One row for each group: the keys, then the outputs. Where errors are isolated, `dead_letter` is
                the last column, and there is one row more for each row of a group that has failed.

        Raises:
            RejectedError: SIGNATURE for no aggregates, several connections, or a name used twice; SCHEMA_MISMATCH for
                columns that cannot be resolved or do not fit the function; CANNOT_RETRACT for an append-only function
                over rows with kinds; UNKNOWN_FUNCTION when a server does not have it any more.
            RetryableError: UNREACHABLE, DEADLINE, when no server answers.
        """
        aggregates = _outputs(aliased, named)
        transport = _transport_of(aggregates)
        _refuse_doubles((*self.names, *aggregates), "is the name of two columns of the result")
        _refuse_own((*self.names, *aggregates), self._own_columns())
        columns = Columns(self.df, self.keys, self.names, self.kind)
        calls = columns.calls(list(aggregates.values()))
        rows = columns.rows()
        check_keys(rows.schema, self.names)
        plan = Plan.of(
            transport,
            calls,
            rows,
            columns,
            aggregates,
            has_kinds=self.kind is not None,
            materialize=self.materialize,
            has_sessions=self.stream.has_sessions,
            isolates=self.isolates,
        )
        if self.df.isStreaming:
            from foldflight.spark.stream import check_provider, stream_result

            check_provider(self.df)
            return stream_result(plan, rows, self.stream)
        return plan.result(rows)

    def _own_columns(self) -> list[str]:
        """Return the columns that the result has beside the keys and outputs."""
        own = [DEAD_LETTER] if self.isolates else []
        if self.df.isStreaming and self.stream.shows_kind(has_kinds=self.kind is not None):
            own.append(ROW_KIND)
        return own


def _outputs(aliased: Sequence[Aggregate], named: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """Return the uses of functions by output name. Raises RejectedError SIGNATURE."""
    outputs: dict[str, Aggregate] = {}
    for name, given in (*(("an output", each) for each in aliased), *named.items()):
        if not isinstance(given, Aggregate):
            raise RejectedError(
                "SIGNATURE",
                f"{name} is {text_of(given)!r}, not a use of a function; write functions.sum('column').alias('name'), "
                "with functions = connect(...)",
            )
    for given in aliased:
        if given.name is None:
            raise RejectedError("SIGNATURE", f"{given!r} has no name; write {given!r}.alias('name'), or name={given!r}")
        _refuse_doubles((*outputs, given.name), "is the name of two outputs")
        outputs[given.name] = given
    for name, given in named.items():
        if given.name not in (None, name):
            raise RejectedError("SIGNATURE", f"{name}={given!r} gives one output two names; leave one out")
        _refuse_doubles((*outputs, name), "is the name of two outputs")
        outputs[name] = given
    return outputs


def _transport_of(aggregates: Mapping[str, Aggregate]) -> Transport:
    if not aggregates:
        raise RejectedError("SIGNATURE", "there is nothing to aggregate; give at least one output, as in n=count()")
    first, *others = aggregates.items()
    for name, aggregate in others:
        if aggregate.transport is not first[1].transport:
            raise RejectedError(
                "SIGNATURE",
                f"{first[0]} and {name} come from two connections; take all functions of an agg from one connect(...), "
                "which takes several modules and servers",
            )
    return first[1].transport


def _refuse_doubles(names: Sequence[str], why: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        folded = name.casefold()  # Spark compares names without case
        if folded in seen:
            raise RejectedError("SIGNATURE", f"{name!r} {why}; give each another name")
        seen[folded] = name


def _refuse_own(names: Sequence[str], own: Sequence[str]) -> None:
    for name in names:
        if name.casefold() in own:
            raise RejectedError(
                "SIGNATURE",
                f"the result of this query has a column {name.casefold()} of its own; give the key or the output "
                f"{name!r} another name",
            )


@dataclass(frozen=True)
class Plan:
    """What a query does: resolved, and checked against the functions."""

    transport: Transport
    opening: Open
    layout: Layout
    bounds: BlockBounds
    is_two_phase: bool
    can_migrate: tuple[bool, ...]
    key_types: tuple[st.DataType, ...]
    column_types: tuple[st.DataType, ...]

    @classmethod
    def of(
        cls,
        transport: Transport,
        calls: tuple[Call, ...],
        rows: DataFrame,
        resolved: Columns,
        aggregates: Mapping[str, Aggregate],
        *,
        has_kinds: bool,
        materialize: bool,
        has_sessions: bool,
        isolates: bool,
    ) -> Plan:
        """Resolve the types of a query with the server (or the embedded functions)."""
        names, shown, outputs = tuple(resolved.names), tuple(resolved.shown), list(aggregates)
        schema = arrow_fields(rows.schema, resolved.roles())
        keys = pa.schema(list(schema)[: len(names)])
        columns = pa.schema([field for field in list(schema)[len(names) :] if field.name not in (KIND, REAL)])
        nothing = pa.schema([])
        layout = Layout(keys, names, columns, shown, has_kinds, nothing, nothing, nothing, isolates)
        opening = Open(calls=calls, columns=layout.chunk, isolate_errors=isolates)
        try:
            opened = transport.describe(opening)
        except RejectedError as error:
            if error.code == "SCHEMA_MISMATCH":
                resolved.refuse_types(list(aggregates.values()), opening.columns)
            raise
        check_isolates(opened, opening)
        # The sessions of a batch are found before its rows are folded: they are keys like others.
        needs = _Needs(retract=has_kinds, merge=has_sessions and rows.isStreaming)
        if materialize and not all(map(needs.are_met, opened.calls)):
            calls = tuple(_materialized(calls, opened, needs))
            opening = replace(opening, calls=calls)
            opened = transport.describe(opening)
        needs.check(calls, opened)
        places = range(len(calls))
        states = pa.schema([opened.schema.field(f"state_{place}") for place in places])
        results = result_types(outputs, [opened.schema.field(f"output_{place}").type for place in places])
        layout = replace(
            layout,
            states=states,
            carried=pa.schema([(field.name, carrier_type(field.type)) for field in states]),
            outputs=pa.schema(list(zip(outputs, results, strict=True))),
        )
        limits = opened.limits
        return cls(
            transport=transport,
            # Every task's server must have the very functions that this plan was made with.
            opening=replace(opening, calls=tuple(_pinned(calls, opened))),
            layout=layout,
            bounds=BlockBounds().within(limits.slots_max, limits.exchange_state_bytes_max),
            # In a partial state there are no rows any more that could become dead letters.
            is_two_phase=not isolates
            and all(opened.can_merge)
            and (not has_kinds or all(call.is_invertible for call in opened.calls)),
            can_migrate=tuple(call.can_migrate for call in opened.calls),
            key_types=tuple(field.dataType for field in rows.schema.fields[: len(names)]),
            column_types=tuple(rows.schema[name].dataType for name in columns.names),
        )

    def result(self, rows: DataFrame) -> DataFrame:
        """Return the query's result over its rows."""
        merges = self.is_two_phase
        arrived = self._partial(rows) if merges else rows
        final = FinalFold(
            self.transport,
            replace(self.opening, returns=Returns(states=False, outputs=True)),
            self.layout,
            self.bounds,
            merges=merges,
        )
        together = self._by_key(arrived) if self.layout.names else self._in_one(arrived, final.input)
        return together.mapInArrow(
            mapping(final, self.named("merge" if merges else "fold")), self.spark_schema(self.layout.results)
        )

    def _partial(self, rows: DataFrame) -> DataFrame:
        partial = PartialFold(
            self.transport,
            replace(self.opening, returns=Returns(states=True, outputs=False)),
            self.layout,
            self.bounds,
        )
        return rows.mapInArrow(mapping(partial, self.named("fold_partial")), self.spark_schema(self.layout.partial))

    def _by_key(self, arrived: DataFrame) -> DataFrame:
        keys = [sf.col(name) for name in self.layout.keys.names]
        hashed = arrived.withColumn(HASH, sf.xxhash64(*keys))
        return hashed.repartition(*keys).sortWithinPartitions(sf.col(HASH), *self._retractions_last())

    def _in_one(self, arrived: DataFrame, schema: pa.Schema) -> DataFrame:
        """Return all rows in one partition, with the seed: a row of NULLs that is not real."""
        if REAL in schema.names and REAL not in arrived.columns:
            arrived = arrived.withColumn(REAL, sf.lit(True))
        nothing = [
            sf.lit(False if field.name == REAL else None).cast(field.dataType).alias(field.name)
            for field in arrived.schema
        ]
        seed = arrived.sparkSession.range(0, 1, 1, 1).select(*nothing)
        together = arrived.union(seed).repartition(1)
        order = self._retractions_last()
        return together.sortWithinPartitions(*order) if order else together

    def _retractions_last(self) -> list[Column]:
        if not self.layout.has_kinds or self.is_two_phase:
            return []
        return [sf.col(KIND).isin(*RETRACTING)]

    def named(self, step: str) -> str:
        """Return the name of one step of the query, with its functions."""
        return step_name(step, [call.function for call in self.opening.calls])

    def spark_schema(self, schema: pa.Schema) -> st.StructType:
        """Return Spark's schema of a schema that begins with the keys."""
        types = [*self.key_types, *(from_arrow_type(field.type) for field in list(schema)[len(self.key_types) :])]
        if self.layout.isolates and schema.names[-1] == DEAD_LETTER:
            types[-1] = letter_type(self.layout, self.key_types, self.column_types)
        return st.StructType([st.StructField(name, type_) for name, type_ in zip(schema.names, types, strict=True)])


def _pinned(calls: Sequence[Call], opened: Opened) -> Iterator[Call]:
    for call, found in zip(calls, opened.calls, strict=True):
        yield replace(call, fingerprint=found.fingerprint)


@dataclass(frozen=True)
class _Needs:
    """What each function of a query must be able to do."""

    retract: bool
    merge: bool

    def are_met(self, call: OpenedCall) -> bool:
        """Tell whether a call can do it."""
        return (call.can_retract or not self.retract) and (call.can_merge or not self.merge)

    def check(self, calls: Sequence[Call], opened: Opened) -> None:
        """Refuse a call that cannot. Raises RejectedError CANNOT_RETRACT, CANNOT_MERGE."""
        for call, found in zip(calls, opened.calls, strict=True):
            if self.retract and not found.can_retract:
                raise RejectedError(
                    "CANNOT_RETRACT",
                    f"{call.function} is append-only (it has no retract), and rows with kinds may take rows back; "
                    "define retract, let groups keep their rows (materialize=True), or aggregate without row_kind",
                    function=call.function,
                )
            if self.merge and not found.can_merge:
                raise RejectedError(
                    "CANNOT_MERGE",
                    f"{call.function} has no merge, and sessions of a stream merge when a row bridges them; define "
                    "merge, let sessions keep their rows (materialize=True), or use tumble, hop or cumulate",
                    function=call.function,
                )


def _materialized(calls: Sequence[Call], opened: Opened, needs: _Needs) -> Iterator[Call]:
    for call, found in zip(calls, opened.calls, strict=True):
        yield call if needs.are_met(found) else replace(call, materialize=True)


def step_name(step: str, functions: Sequence[str]) -> str:
    """Return the name of a step as Spark's plans and its UI show it, each function once: `merge[sum, count]`."""
    names = ", ".join(dict.fromkeys(functions))
    return f"{step}[{textwrap.shorten(names, _NAME_LENGTH_MAX, placeholder=' ...')}]"


def mapping(
    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], name: str
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a task as the plain function that mapInArrow wants.

    Args:
        task: What is done with each partition.
        name: The name of the function, which Spark's plans and its UI show.
    """

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        yield from task(batches)
        settle()

    run.__name__ = name
    return run
