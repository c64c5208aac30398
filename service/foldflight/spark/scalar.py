"""`with_columns` and `spark_udf`: scalar functions over the columns of a DataFrame; `join_lateral`: table functions.

    df > one iterator arrow UDF over the argument columns > the output, or a struct of several > a column for each

Only the arguments travel to Python. Spark goes on to prune columns and to push filters down, and the other columns keep
their metadata, such as a watermark. The expressions of all nested functions are evaluated in one trip.

`join_lateral` joins each row with the rows that a table function gives for it. Its arguments go to the function; the
other columns stay in the worker, and are taken by the number of the row.
"""

from __future__ import annotations

import pickle
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.client.client_logs import log_records
from foldflight.client.exchange import OpenExchange, Transport
from foldflight.client.functions import Aggregate, Use, UseMember, uses_in
from foldflight.engine.batch.scalar_task import ScalarQuery, Steps, transport_of
from foldflight.engine.query.blocks import convert, gather, without_nullability
from foldflight.engine.query.layout import DEAD_LETTER, REAL, ROW_KIND
from foldflight.errors import RejectedError
from foldflight.exchange.frames import FunctionInfo, Open
from foldflight.fold.failures import ERROR
from foldflight.fold.rows import ROW, Rows
from foldflight.fold.rows import Column as Argument
from foldflight.functions import Step, StepArgument, can_widen, parse_type
from foldflight.functions.author.spec import FunctionKind
from foldflight.functions.query.call import check_names
from foldflight.functions.types.sql import sql_name
from foldflight.spark.arguments import require_dataframe
from foldflight.spark.arrow import arrow_function, step_name
from foldflight.spark.columns import Columns, spark_name, text_of, zone_remedy
from foldflight.spark.deadletters import OnError, is_isolated
from foldflight.spark.months import as_intervals, as_months, storage_types_of
from foldflight.spark.pipelines import check_analysable
from foldflight.spark.rowkinds import kinds_in
from foldflight.spark.scans.scan import Scan, as_dataframe
from foldflight.spark.storage_types import SPARK, result_types
from foldflight.spark.types import arrow_fields, check_returned, check_udf
from foldflight.spark.versions.facts import ARROW_UDFS
from foldflight.spark.versions.sessions import check_workers
from foldflight.spark.versions.types import nullable, spark_type
from foldflight.spark.versions.udfs import arrow_udf
from foldflight.spark.worker import attempt, freeze_garbage_collector

_MAPPED: Final = "__foldflight_mapped"
_PART_ROWS: Final = 1 << 14
_HISTORY: Final = "_foldflight_mapped"


def with_columns(
    df: DataFrame | Scan,
    /,
    *aliased: Use,
    on_error: OnError = "fail",
    row_kind: str | None = None,
    **named: Use,
) -> DataFrame:
    """Add columns that scalar functions compute: `with_columns(df, m=multiply("a", "b"))`.

    Functions nest: `score(normalise("text"), "a")` is evaluated in one trip to Python, with all other outputs. A
    `with_columns` directly after another one joins it, so both need one trip together, unless `df` is cached.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect. All its columns are kept; a column
            with the name of an output is replaced.
        aliased: Uses of functions with their output's name: `multiply("a", "b").alias("m")`.
        on_error: What happens if a function raises, or returns a value that does not fit. `fail`: the query fails.
            `isolate`: the row has NULL outputs, and its error in a column `dead_letter`. Use `results` and
            `dead_letters` to separate the two.
        row_kind: The column of row kinds, if the rows are a changelog. It passes through like any other column.
            Default: the column `row_kind`, if there is one. Functions that are not deterministic are refused over a
            changelog: a row that is taken back must have the outputs that it had when it was added.
        named: Uses of functions by output name, after the others. All functions must come from one `connect`.
            Arguments are column names, SQL expressions, Columns, or other uses.

    Returns:
        DataFrame: The columns of `df` and the outputs; with `isolate`, then `dead_letter`.

    Raises:
        RejectedError: SIGNATURE for no outputs, table functions or several connections; SCHEMA_MISMATCH for columns
            that cannot be resolved or do not fit the function; CANNOT_RETRACT as said of `row_kind`.
        RetryableError: UNREACHABLE or DEADLINE, if no server answers.

    >>> from foldflight import connect, udf
    >>> from foldflight.spark import with_columns
    >>> @udf
    ... def multiply(x: int, y: int) -> int:
    ...     return x * y
    >>> orders = spark.createDataFrame([(10, 2), (7, 3)], "price BIGINT, qty BIGINT")
    >>> with_columns(orders, total=connect(multiply)("price", "qty")).show()
    +-----+---+-----+
    |price|qty|total|
    +-----+---+-----+
    |   10|  2|   20|
    |    7|  3|   21|
    +-----+---+-----+
    """
    df = as_dataframe(df)
    check_df(df, "with_columns")
    uses = named_uses(aliased, named)
    for name, use in uses.items():
        _refuse_tables(name, use)
    isolates = is_isolated(on_error)
    check_kinds(df, row_kind, uses)
    history = _History(df, {}, isolates).extend(_history_of(df), uses)
    result = _apply(history)
    setattr(result, _HISTORY, history)
    return result


@dataclass(frozen=True)
class _History:
    """What `with_columns` has added to a DataFrame, so that the next one can join it in one trip.

    Args:
        df: The DataFrame before.
        uses: The outputs by name.
        isolates: Whether errors are isolated.
    """

    df: DataFrame
    uses: Mapping[str, Use]
    isolates: bool

    def extend(self, before: _History | None, uses: Mapping[str, Use]) -> _History:
        """Return the history of these uses over `df`, or over the DataFrame before it if that has all arguments.

        That is so for the names of columns and of outputs. Expressions may mean either, and are left to Spark.
        """
        alone = replace(self, uses=uses)
        if before is None or before.isolates or self.isolates:
            return alone
        known_names = set(before.df.columns)
        # Spark compares names without case. An output may not hide a column or another output.
        used_names = {name.casefold() for name in (*known_names, *uses)}
        if any(name.casefold() in used_names for name in before.uses):
            return alone
        names = known_names | before.uses.keys()
        arguments = [argument for use in uses_in(uses.values()) for argument in use.arguments]
        if not all(
            isinstance(each, (Use, UseMember)) or (isinstance(each, str) and each in names) for each in arguments
        ):
            return alone
        over = _over(uses, before.uses)
        try:
            transport_of({**before.uses, **over})
        except RejectedError:  # two connections are two trips
            return alone
        return replace(before, uses={**before.uses, **over})


def _history_of(df: DataFrame) -> _History | None:
    """Return what `with_columns` has added; None if there is nothing, or if `df` is cached.

    What follows a cached DataFrame has to read it. Over the DataFrame before it, everything would be computed again.
    """
    history: _History | None = vars(df).get(_HISTORY)
    if history is None:
        return None
    level = df.storageLevel
    return None if level.useMemory or level.useDisk else history


def _over(uses: Mapping[str, Use], outputs: Mapping[str, Use]) -> dict[str, Use]:
    """Return uses with the names of outputs replaced by the uses that they name. What was one use stays one."""
    replaced_uses: dict[int, Use] = {}

    def over(use: Use) -> Use:
        if id(use) not in replaced_uses:
            replaced_uses[id(use)] = replace(use, arguments=tuple(map(replace_outputs, use.arguments)))
        return replaced_uses[id(use)]

    def replace_outputs(argument: object) -> object:
        if isinstance(argument, UseMember):
            return replace(argument, use=over(argument.use))
        if isinstance(argument, Use):
            return over(argument)
        return outputs.get(argument, argument) if isinstance(argument, str) else argument

    return {name: over(use) for name, use in uses.items()}


def _apply(history: _History) -> DataFrame:
    """Return the DataFrame with the outputs of a history."""
    df, uses, isolates = history.df, history.uses, history.isolates
    check_workers(df.sparkSession)
    columns = Columns(df)
    steps = Steps(columns.argument)
    outputs = {name: steps.add(use) for name, use in uses.items()}
    rows = columns.rows()
    chunk = chunk_schema(arrow_fields(rows.schema, columns.roles()), columns.display_names)
    query = ScalarQuery.of(transport_of(uses), steps, outputs, chunk, isolates=isolates, types=SPARK)
    pickle.dumps(query)  # Spark pickles it again later, but its error would not name the function
    name = step_name("map", query.open_request.functions)
    members = [pa.field(f"output_{index}", field.type) for index, field in enumerate(query.outputs)]
    if isolates:
        members.append(pa.field(ERROR, ERROR_CARRIER))
    types = pa.schema(members)
    calls = [(use.function, list(use.columns)) for use in uses.values()]
    results = columns.result_types(calls, rows.schema, query.outputs.types)
    results += map(spark_type, types.types[len(results) :])
    if not ARROW_UDFS.has():
        return _scalar_rows(history, columns, query, types, results, name)
    is_alone = len(members) == 1
    for type_, use in zip(results, uses.values(), strict=False):
        check_udf(type_, use.function.name)
    udf = arrow_udf(
        _plain(partial(_evaluate, query, types), name),
        results[0] if is_alone else st.StructType([*map(st.StructField, types.names, results)]),
    )
    if not all(use.function.deterministic for use in uses_in(uses.values())):
        udf = udf.asNondeterministic()
    mapped_rows = df.withColumn(_MAPPED, udf(*(columns.expressions or [sf.lit(True)])))
    answer = sf.col(_MAPPED)
    output_columns = {
        output: answer if is_alone else answer.getField(f"output_{index}") for index, output in enumerate(uses)
    }
    if isolates:
        output_columns[DEAD_LETTER] = letter_of(answer.getField(ERROR), columns)
    return mapped_rows.withColumns(output_columns).drop(_MAPPED)


def _scalar_rows(
    history: _History, columns: Columns, query: ScalarQuery, types: pa.Schema, results: Sequence[st.DataType], name: str
) -> DataFrame:
    """Return the DataFrame with the outputs, where Spark has no UDFs over Arrow arrays: all columns go to Python.

    UDFs of pandas would not do: there, NULL is NaN, large BIGINTs beside NULL are rounded, and times lose their zone.
    """
    own = [f"{_MAPPED}_{index}" for index in range(len(types))]
    mapped_rows = rows_with(history.df, columns, query, types, [*map(st.StructField, own, results)], name)
    outputs = {output: sf.col(each) for output, each in zip(history.uses, own, strict=False)}
    if history.isolates:
        outputs[DEAD_LETTER] = letter_beside(mapped_rows, own[-1], columns, name)
    return mapped_rows.withColumns(outputs).drop(*own)


def rows_with(
    df: DataFrame,
    columns: Columns,
    query: ScalarQuery,
    types: pa.Schema,
    added_fields: Sequence[st.StructField],
    name: str,
) -> DataFrame:
    """Return the rows of a DataFrame with what expressions give for them. All columns go to Python.

    Args:
        df: The DataFrame.
        columns: The columns that the expressions read.
        query: The expressions.
        types: Their outputs, and the error if errors are isolated.
        added_fields: The same, as columns of Spark.
        name: The name of the step.
    """
    check_returned((f"the column {each.name!r}", each.dataType) for each in df.schema)
    inputs = [f"input_{index}" for index in range(len(df.columns))]
    arguments = list(columns.expressions) or [sf.lit(True)]
    # The columns of the DataFrame are not named: a join may have two of one name.
    rows = as_months(df.select("*", *arguments).toDF(*inputs, *(f"column_{index}" for index in range(len(arguments)))))
    roles = [*(f"the column {each!r}" for each in df.columns), *(columns.roles() or ["a constant"])]
    arrow = arrow_fields(rows.schema, roles)
    sent_types = storage_types_of([nullable(each.dataType) for each in df.schema], arrow.types[: len(inputs)])
    # mapInArrow knows nothing of metadata: without it a watermark would be lost.
    fields = [
        st.StructField(each.name, type_, metadata=each.metadata)
        for each, type_ in zip(df.schema, sent_types, strict=True)
    ]
    task = arrow_function(_RowsWith(query, arrow, len(inputs), types), name, query.trace)
    mapped_rows = rows.mapInArrow(task, st.StructType([*fields, *added_fields]))
    return as_intervals(mapped_rows, {each.name: each.dataType for each in df.schema})


@dataclass(frozen=True)
class _RowsWith:
    """The task of one partition, for mapInArrow.

    Args:
        query: The expressions.
        rows: The columns from Spark: the DataFrame's, then the arguments.
        inputs: The number of columns of the DataFrame.
        types: The outputs.
    """

    query: ScalarQuery
    rows: pa.Schema
    inputs: int
    types: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of Spark's batches with the outputs; of a table function, once for each row that it gives."""
        blocks = gather(batches, self.rows, self.query.bounds)
        for block, answer in self.query.answers(blocks, self._chunk):
            start = 0
            # One text of an input column may be taken many times, so the rows are joined in parts.
            for part in answer.to_batches(max_chunksize=_PART_ROWS if self.query.is_table else None):
                yield self._join(block, start, part)
                start += part.num_rows

    def _join(self, block: pa.RecordBatch, start: int, part: pa.RecordBatch) -> pa.RecordBatch:
        inputs, columns = block.columns[: self.inputs], part.columns
        if self.query.is_table:
            indexes, struct, *errors = columns
            inputs, columns = [column.take(indexes) for column in inputs], [*struct.flatten(), *errors]
        else:
            inputs = [column.slice(start, part.num_rows) for column in inputs]
        members = [convert(each, type_) for each, type_ in zip(columns, self.types.types, strict=True)]
        names = [f"column_{index}" for index in range(len(inputs) + len(members))]
        return pa.RecordBatch.from_arrays([*inputs, *members], names=names)

    def _chunk(self, block: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(block.columns[self.inputs :], schema=self.query.open_request.columns)


ERROR_CARRIER: Final = pa.struct([(name, pa.string()) for name in ("code", "function", "message", "row", "trace")])


def letter_of(error: Column, columns: Columns) -> Column:
    """Return the dead letter of each row: NULL, or the error and the columns that the query reads."""
    texts = [error.getField(name).alias(name) for name in ("code", "function", "message", "trace")]
    members = [*texts, error.getField("row").alias("at")]
    if columns.display_names:
        read_columns = [each.alias(name) for name, each in zip(columns.display_names, columns.expressions, strict=True)]
        members.append(sf.struct(*read_columns).alias("row"))
    return sf.when(error.isNotNull(), sf.struct(*members))


def letter_beside(mapped_rows: DataFrame, error: str, columns: Columns, function: str) -> Column:
    """Return `letter_of` for rows with a column of errors, given the columns that were read before they got it."""
    read_columns = Columns(mapped_rows)
    for expression in columns.user_expressions:
        read_columns.argument(expression, function)
    return letter_of(sf.col(error), read_columns)


def chunk_schema(fields: pa.Schema, display_names: Sequence[str]) -> pa.Schema:
    """Return the schema of chunks: the columns under the names that errors show, or one column if there are none."""
    if not display_names:
        return pa.schema([pa.field(REAL, pa.bool_())])
    return pa.schema([field.with_name(name) for field, name in zip(fields, display_names, strict=True)])


def _evaluate(query: ScalarQuery, types: pa.Schema, batches: Iterator[Any]) -> Iterator[pa.Array]:
    """Yield one array for each of Spark's batches: the values of a single output, or structs of several.

    Most of Spark's operators join the arrays to their input row by row, but those that read Arrow (its Arrow cache)
    join them batch by batch.
    """
    chunk = query.open_request.columns
    lengths: deque[int] = deque()

    def count_rows() -> Iterator[pa.RecordBatch]:
        for batch in _batches(batches, len(chunk)):
            lengths.append(batch.num_rows)
            yield batch

    # Spark copies structs row by row, which costs more than the column of a single output.
    waiting = pa.nulls(0, types.types[0] if len(types) == 1 else pa.struct(list(types)))
    for _, answer in query.answers(gather(count_rows(), chunk, query.bounds)):
        arrays = [column.combine_chunks() for column in answer.columns]
        members = [convert(_one(array), type_) for array, type_ in zip(arrays, types.types, strict=True)]
        output_array = members[0] if len(members) == 1 else pa.StructArray.from_arrays(members, fields=list(types))
        waiting = pa.concat_arrays([waiting, output_array]) if len(waiting) else output_array
        while lengths and lengths[0] <= len(waiting):
            count = lengths.popleft()
            yield waiting.slice(0, count)
            waiting = waiting.slice(count)
    for _ in lengths:  # the last batches have no rows
        yield waiting


def _one(array: Any) -> pa.Array:
    """Return what `combine_chunks` gives as one array; of extension types it gives chunks."""
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _batches(batches: Iterable[Any], count: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        arrays = list(batch) if isinstance(batch, tuple) else [batch]
        yield pa.RecordBatch.from_arrays(arrays[:count], names=[str(index) for index in range(count)])


def _plain(task: Callable[[Iterator[Any]], Iterator[Any]], name: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Wrap a task as a plain function, because Spark refuses other callables; Spark shows its name."""
    step = uuid.uuid4().hex

    def run(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        with attempt(step):
            yield from task(batches)
        freeze_garbage_collector()

    run.__name__ = name
    return run


# -- checks ----------------------------------------------------------------------------------------------------------


def check_df(df: DataFrame, name: str) -> None:
    """Raise RejectedError SIGNATURE unless it is a DataFrame of Spark that tells its columns."""
    require_dataframe(df, name)
    check_analysable(df, name)


def named_uses(aliased_uses: Sequence[Any], uses_by_name: Mapping[str, Any]) -> dict[str, Use]:
    """Return uses by output name. Raises RejectedError SIGNATURE."""
    uses: dict[str, Use] = {}
    for name, use in (*((None, each) for each in aliased_uses), *uses_by_name.items()):
        if isinstance(use, Aggregate):
            raise RejectedError(
                "SIGNATURE",
                f"{use!r} is an aggregate, which needs groups: group_by(df, ...).agg(...)",
                function=use.function.name,
            )
        if not isinstance(use, Use):
            raise RejectedError(
                "SIGNATURE",
                f"{name or 'an output'} is {text_of(use)!r}, not a use of a function; write "
                "functions['multiply']('a', 'b'), with functions = connect(...)",
            )
        output = name or use.name
        if output is None:
            raise RejectedError("SIGNATURE", f"{use!r} has no name; write name={use!r}, or {use!r}.alias('name')")
        if output.casefold() in {each.casefold() for each in uses}:  # Spark compares names without case
            raise RejectedError("SIGNATURE", f"{output!r} is the name of two outputs; give each another name")
        uses[output] = use
    if not uses:
        raise RejectedError("SIGNATURE", "there is nothing to compute; give an output, as in m=multiply('a', 'b')")
    return uses


def _refuse_tables(name: str, use: Use) -> None:
    """Raise RejectedError SIGNATURE for a table function in a use, also inside its arguments."""
    for each in uses_in([use]):
        if each.is_table:
            table = each.function.name
            where = f"{name} is" if each is use else f"an argument of {name} is"
            raise RejectedError(
                "SIGNATURE",
                f"{where} the table function {table}, which gives several rows; use join_lateral"
                + ("" if each is use else f" for {table} first, and give its columns as arguments"),
                function=table,
            )


def check_kinds(df: DataFrame, row_kind: str | None, uses: Mapping[str, Use]) -> None:
    """Refuse functions that are not deterministic over rows with kinds.

    Raises:
        RejectedError: CANNOT_RETRACT; SCHEMA_MISMATCH if there is no such column.
    """
    if row_kind is not None and row_kind not in df.columns:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"there is no column {row_kind!r} among {', '.join(df.columns)}; name the row kinds"
        )
    row_kind = row_kind or next(iter(kinds_in(df.schema)), ROW_KIND)
    if row_kind not in df.columns:
        return
    for info in (use.function for use in uses_in(uses.values())):
        if not info.deterministic:
            raise RejectedError(
                "CANNOT_RETRACT",
                f"{info.name} is not deterministic, and the rows are a changelog (column {row_kind!r}): a "
                "row that is taken back would not have the outputs that it was added with; map the rows before they "
                "are aggregated, or drop the column if the rows are no changelog",
                function=info.name,
            )


# -- inside SQL ------------------------------------------------------------------------------------------------------


def spark_udf(
    info: FunctionInfo, transport: Transport, literals: Mapping[str, Any] | None = None, *, guarded: bool = False
) -> Any:
    """Return a scalar function as an arrow UDF of Spark; see `FunctionHandle.spark_udf` and `declared_udf`."""
    if info.kind is not FunctionKind.SCALAR:
        use = "join_lateral" if info.kind is FunctionKind.TABLE else "group_by"
        raise RejectedError(
            "SIGNATURE",
            f"{info.name} is a function of the kind {info.kind}, not a scalar one; use {use}",
            function=info.name,
        )
    if info.result_type is None:
        raise RejectedError(
            "SIGNATURE",
            f"the result of {info.signature} depends on its arguments, and a UDF of Spark has one type; use "
            "with_columns",
            function=info.name,
        )
    if not info.input_names:
        raise RejectedError(
            "SIGNATURE",
            f"{info.name} has no arguments, and a UDF of Spark needs one; use with_columns",
            function=info.name,
        )
    check_names(info, literals or {})
    return declared_udf(info, transport, (), parse_type(info.result_type), literals, is_guarded=guarded)


def declared_udf(
    info: FunctionInfo,
    transport: Transport,
    inputs: Sequence[pa.DataType],
    result: pa.DataType,
    literals: Mapping[str, Any] | None = None,
    *,
    is_guarded: bool = False,
) -> Any:
    """Return a scalar or table function with given types as an arrow UDF; a table function gives arrays of its rows.

    Args:
        info: The function.
        transport: The connection to it.
        inputs: The types to which the arguments are cast. None are given for a function that declares its own.
        result: The type of the result; for a table function, the struct of its columns.
        literals: Its direct arguments.
        is_guarded: Whether the first argument of the UDF is a condition. The function gets the rows where it holds; the
            result of the others is NULL.

    Raises:
        RejectedError: SCHEMA_MISMATCH for a result that Spark has no type for.
    """
    is_table = info.kind is FunctionKind.TABLE
    if is_table:
        storages = result_types([field.name for field in result], [field.type for field in result])
        type_ = pa.list_(pa.struct(list(zip((field.name for field in result), storages, strict=True))))
    else:
        (type_,) = result_types([info.name], [result])
    names = info.input_names
    task = _OneCall(transport, info.name, names, dict(literals or {}), tuple(inputs), type_, is_table, uuid.uuid4().hex)
    pickle.dumps(task)

    def run(*columns: pa.Array) -> pa.Array:
        with attempt(task.token):
            return task.values_where(columns[0], columns[1:]) if is_guarded else task.values(columns)

    run.__name__ = info.name
    known_types = inputs or ([] if info.input_types is None else [parse_type(each) for each in info.input_types])
    udf = arrow_udf(run, spark_type(type_), [pa.bool_(), *known_types] if is_guarded else known_types)
    return udf if info.deterministic else udf.asNondeterministic()


@dataclass(frozen=True)
class _OneCall:
    """One function as a UDF. Its exchange stays open for the batches of one Spark task.

    Args:
        transport: The connection to the function.
        function: Its name.
        names: The names of its arguments, for errors.
        literals: Its direct arguments.
        inputs: The types to which its arguments are cast; empty if the function itself declares them.
        type_: The type that carries its results in Spark.
        is_table: Whether a result is an array of rows.
        token: Identifies the UDF among all of the process.
    """

    transport: Transport
    function: str
    names: tuple[str, ...]
    literals: Mapping[str, Any]
    inputs: tuple[pa.DataType, ...]
    type_: pa.DataType
    is_table: bool
    token: str

    def values_where(self, holds: pa.Array, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the results of n rows: NULL for those where a condition does not hold."""
        indexes = np.flatnonzero(holds.fill_null(False).to_numpy(zero_copy_only=False))
        if not len(indexes):
            return pa.nulls(len(holds), self.type_)
        values = self.values([each.take(pa.array(indexes)) for each in columns])
        result_rows = np.full(len(holds), -1)
        result_rows[indexes] = np.arange(len(indexes))
        return values.take(pa.array(result_rows, mask=result_rows < 0))

    def values(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the results of n rows."""
        types = [without_nullability(each.type) for each in columns]
        arrays = [convert(each, type_) for each, type_ in zip(columns, types, strict=True)]
        more = [f"argument {index + 1}" for index in range(len(self.names), len(types))]
        names = [*self.names, *more][: len(types)]
        for index, type_ in enumerate(self.inputs[: len(arrays)]):
            arrays[index] = self._widen(arrays[index], type_, names[index])
        schema = pa.schema([(name, array.type) for name, array in zip(names, arrays, strict=True)])
        with self._exchange(schema) as exchange:
            exchange.chunk(pa.RecordBatch.from_arrays(arrays, schema=schema))
            answer = exchange.step_outputs()
            log_records(exchange.take_logs())
        self._check_kind(answer.schema.field("output_0").type)
        if self.is_table:
            return self._lists(answer, len(columns[0]))
        return convert(_one(answer.column(0).combine_chunks()), self.type_)

    def _check_kind(self, result: pa.DataType) -> None:
        """Refuse a result with timestamps of another kind than the UDF has: the arguments decide about it."""
        declared_type = self.type_.value_type if self.is_table else self.type_
        (actual,) = result_types([self.function], [result])
        if actual != declared_type and sql_name(actual, zoned="TIMESTAMP") == sql_name(
            declared_type, zoned="TIMESTAMP"
        ):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{self.function} returns {spark_name(actual)} for these arguments, and as a UDF of Spark it has one "
                f"type, {spark_name(declared_type)}; cast its timestamps to TIMESTAMP_NTZ, declare the types by CREATE "
                "FUNCTION, or use foldflight.spark.sql or with_columns",
                function=self.function,
            )

    def _widen(self, array: pa.Array, type_: pa.DataType, name: str) -> pa.Array:
        if array.type == type_:
            return array
        if not can_widen(array.type, type_):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"{self.function} takes {spark_name(type_)} for its argument {name} and was given "
                f"{spark_name(array.type)}; {zone_remedy(array.type, type_)}cast it in the query",
                function=self.function,
            )
        column = Argument.cast(name, array, type_)
        for _, error in Rows(np.arange(len(array), dtype=np.int32), None, [column]).misfits(self.function, None):
            raise error
        return column.array

    def _lists(self, answer: pa.Table, count: int) -> pa.Array:
        """Return the rows of each of n input rows as a list."""
        rows = convert(_one(answer.column("output_0").combine_chunks()), self.type_.value_type)
        indexes = answer.column(ROW).to_numpy()
        offsets = np.searchsorted(indexes, np.arange(count + 1)).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), rows, type=self.type_)

    @contextmanager
    def _exchange(self, schema: pa.Schema) -> Iterator[OpenExchange]:
        """Lend the exchange of this task, and close the exchanges of other tasks, which have ended."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # Sail runs tasks as threads of one process, and does not tell which ones
            exchange = self._open(schema)
            try:
                yield exchange
            finally:
                exchange.cut()
            return
        attempt_id = context.taskAttemptId()
        for key, (owner_id, exchange) in list(_open_calls.items()):
            if owner_id != attempt_id:
                del _open_calls[key]
                exchange.cut()
        key = self.token, schema
        if key not in _open_calls:
            _open_calls[key] = attempt_id, self._open(schema)
        yield _open_calls[key][1]

    def _open(self, schema: pa.Schema) -> OpenExchange:
        arguments = tuple(StepArgument(column=name) for name in schema.names)
        step = Step(self.function, arguments, literals=self.literals)
        return self.transport.open(Open((), schema, steps=(step,), outputs=(0,)))


# The exchanges of the current task of this worker process, by the UDF and the types of its arguments: a query may use
# one UDF several times. Each is kept with the number of its task.
_open_calls: Final[dict[tuple[str, pa.Schema], tuple[int, OpenExchange]]] = {}


def join_lateral(
    df: DataFrame | Scan,
    use: Use,
    /,
    *,
    outer: bool = False,
    on_error: OnError = "fail",
    row_kind: str | None = None,
) -> DataFrame:
    """Join each row with the rows that a table function gives for it: `join_lateral(df, split("text"))`.

    Args:
        df: A batch or streaming DataFrame, of classic PySpark or of Spark Connect.
        use: The use of a table function. Its arguments are column names, SQL expressions, Columns, or other uses.
        outer: Whether a row for which the function gives none is kept, with NULL in the function's columns.
        on_error: As for `with_columns`: with `isolate`, a row for which a function raises is kept once, with NULL in
            the function's columns and its error in `dead_letter`.
        row_kind: As for `with_columns`.

    Returns:
        DataFrame: The columns of `df`, then the columns of the function, in its order of rows.

    Raises:
        RejectedError: SIGNATURE for a function that is no table function, or a column that `df` has, too;
            SCHEMA_MISMATCH for columns that cannot be resolved or do not fit the function.
        RetryableError: UNREACHABLE or DEADLINE, if no server answers.

    >>> from foldflight import connect, udtf
    >>> from foldflight.spark import join_lateral
    >>> @udtf(result_types={"word": "STRING", "at": "INT"})
    ... def split(text: str):
    ...     for at, word in enumerate(text.split()):
    ...         yield word, at
    >>> lines = spark.createDataFrame([("to be",), ("or",)], "line STRING")
    >>> join_lateral(lines, connect(split)("line")).show()
    +-----+----+---+
    | line|word| at|
    +-----+----+---+
    |to be|  to|  0|
    |to be|  be|  1|
    |   or|  or|  0|
    +-----+----+---+
    """
    df = as_dataframe(df)
    check_df(df, "join_lateral")
    if not isinstance(use, Use) or not use.is_table:
        raise RejectedError(
            "SIGNATURE",
            f"join_lateral takes a use of a table function, and this is {text_of(use)!r}; write "
            "join_lateral(df, functions['split']('text')), or with_columns for scalar functions",
        )
    isolates = is_isolated(on_error)
    check_kinds(df, row_kind, {use.function.name: use})
    columns = Columns(df)
    steps = Steps(columns.argument)
    output = steps.add(use, outer=outer)
    schema = columns.rows().schema
    fields = arrow_fields(schema, columns.roles())
    query = ScalarQuery.of(
        transport_of({use.function.name: use}),
        steps,
        {use.function.name: output},
        chunk_schema(fields, columns.display_names),
        isolates=isolates,
        types=SPARK,
    )
    query = _rename_output(query, use)
    _refuse_taken(df, query.outputs.names, isolates=isolates)
    pickle.dumps(query)
    uses = [(use.function, list(use.columns))] * len(query.outputs)
    added_fields = [*map(st.StructField, query.outputs.names, columns.result_types(uses, schema, query.outputs.types))]
    types = query.outputs
    if isolates:
        types = types.append(pa.field(ERROR, ERROR_CARRIER))
        added_fields.append(st.StructField(ERROR, spark_type(ERROR_CARRIER)))
    name = step_name("lateral", [each.function for each in query.open_request.steps])
    joined_rows = rows_with(df, columns, query, types, added_fields, name)
    if not isolates:
        return joined_rows
    return joined_rows.withColumn(DEAD_LETTER, letter_beside(joined_rows, ERROR, columns, use.function.name)).drop(
        ERROR
    )


def _rename_output(query: ScalarQuery, use: Use) -> ScalarQuery:
    """Return the query with the alias of the use as the name of its only column."""
    if use.name is None:
        return query
    if len(query.outputs) > 1:
        raise RejectedError(
            "SIGNATURE",
            f"{use.function.name} has {len(query.outputs)} columns, and an alias names one; leave it out",
            function=use.function.name,
        )
    return replace(query, outputs=pa.schema([query.outputs.field(0).with_name(use.name)]))


def _refuse_taken(df: DataFrame, names: Sequence[str], *, isolates: bool) -> None:
    own = [DEAD_LETTER, ERROR] if isolates else []
    used_names = {name.casefold() for name in df.columns}
    for name in (*names, *own):
        if name.casefold() in used_names:
            raise RejectedError(
                "SIGNATURE",
                f"the DataFrame has a column {name!r}, as the table function has; rename or drop it before the join",
            )
