"""The plan of a batch query, and what SQL texts of such plans are made of: constants, queries and errors.

If every call lifts, Spark may aggregate the rows itself (`ext/lift/`). Otherwise Python folds them. That plan has
two phases if every call supports merging (and is invertible, if rows have kinds):

    rows > mapInArrow(PartialFold) > repartition(hash of keys) > mapInArrow(FinalFold)

Otherwise it has one: `rows > repartition(hash of keys) > sort within partitions > mapInArrow(FinalFold)`. Rows, and
states that grow, are sorted by the hash of their keys, so that a task holds one block of groups at a time, however many
groups its partition has (see `engine.batch.tasks`). If rows have kinds, the sort also puts the inserts of a group
before its retractions.

Of rows with kinds Spark first makes the rows that remain: no group has rows before the batch, so a retraction counts
only if an equal row is accumulated. No later step could tell: sums and states, which Spark or a partial fold makes,
have netted the rows.

`LIFT` makes the DataFrames and texts of lifted batches.

Without keys there is one partition and one group. A seed row ensures that the group exists for an empty input too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.batch.tasks import FinalFold, PartialFold
from foldflight.engine.query.layout import HASH, KIND, LIVE, REAL, RETRACTING
from foldflight.engine.query.query import Query
from foldflight.extensions import Extension
from foldflight.functions import RowKind
from foldflight.spark.arrow import arrow_function, hash_of, spark_schema, step_of, together
from foldflight.spark.errors import text_around
from foldflight.spark.scans.source import Source
from foldflight.spark.types import FLOATING, equal_by, is_grouped_as_it_is
from foldflight.spark.versions.sessions import is_spark

SIGN: Final = f"CASE WHEN {KIND} IN ({', '.join(map(str, RETRACTING))}) THEN -1L ELSE 1L END"
_NO_ROW: Final = (
    "a row is retracted and no equal row is accumulated (strict mode); correct the input, or disable "
    "strict mode to ignore such rows"
)


def batch_result(
    query: Query, rows: DataFrame, outputs: Sequence[st.DataType], *, strict: bool = False, source: Source | None = None
) -> DataFrame:
    """Return the result of a batch query.

    Args:
        query: The query.
        rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
        outputs: Spark's types of the outputs.
        strict: Whether a retraction without a row is an error.
        source: The same rows for tasks to read, if they are folded before the shuffle; None: Spark reads them.
    """
    if query.layout.has_kinds:
        rows = _with_their_rows(query, rows, strict=strict)
    if query.lift_choice.holds:
        return LIFT.load().result(query, rows, outputs)
    merges = query.folds_before_shuffle.holds
    arrived_rows = rows
    if merges:
        partial = PartialFold(query, query.bounds)
        schema = spark_schema(query, rows.schema, partial.output)
        step = step_of(query, "fold_partial")
        if source is None:
            arrived_rows = rows.mapInArrow(arrow_function(partial, step, query.trace), schema)
        else:
            arrived_rows = source.map_rows(rows.sparkSession, partial, query.bounds, step, query.trace, schema)
    final = FinalFold(query, merges=merges)
    partitioned_rows = (
        _by_key(query, arrived_rows, final) if query.layout.names else _in_one(query, arrived_rows, final.input)
    )
    step = step_of(query, "merge" if merges else "fold")
    return partitioned_rows.mapInArrow(
        arrow_function(final, step, query.trace), spark_schema(query, rows.schema, query.layout.results, outputs)
    )


def _with_their_rows(query: Query, rows: DataFrame, *, strict: bool) -> DataFrame:
    """Return rows of which no retraction lacks an equal row, in keys and all columns of the query.

    Equal rows are counted, which takes about 0.7 of the time of sorting them. But then a row and its retraction are
    gone, and with them the errors that a function raises for them: if errors are isolated, their group must fail.
    """
    types = [column.dataType for column in rows.schema if column.name != KIND]
    if not query.layout.isolates and is_spark(rows.sparkSession) and all(map(is_grouped_as_it_is, types)):
        return _net(query, rows, strict=strict)
    equal = [equal_by(column) for column in rows.schema if column.name != KIND]
    among = f"PARTITION BY {', '.join(equal)} " if equal else ""
    # Accumulated rows come first, so the number of rows that are left is negative for exactly these retractions.
    rows_left = f"sum({SIGN}) OVER ({among}ORDER BY {SIGN} DESC ROWS UNBOUNDED PRECEDING) AS {LIVE}"
    return rows.selectExpr("*", rows_left).where(_unless_negative(query, "true", strict=strict)).drop(LIVE)


# Spark makes an array of so many items at once.
_COPIES: Final = 1 << 16


def _net(query: Query, rows: DataFrame, *, strict: bool) -> DataFrame:
    """Return only accumulated rows: of equal rows, as many as remain after the retractions."""
    columns = [column for column in rows.schema if column.name != KIND]
    # Keys of floats have lost the bits of NaN and the sign of zeros. Of texts, `first` would need a sort.
    floats = [column for column in columns if isinstance(column.dataType, FLOATING)]
    equal = [
        sf.expr(equal_by(column)).alias(f"{LIVE}_{column.name}" if column in floats else column.name)
        for column in columns
    ]
    values = [sf.first(column.name).alias(column.name) for column in floats]
    live = sf.expr(f"coalesce(sum({SIGN}), 0L) AS {LIVE}")  # NULL if there is neither a row nor a column
    counted_rows = rows.groupBy(*equal).agg(live, *values).where(_unless_negative(query, f"{LIVE} > 0", strict=strict))
    first, copy = f"{LIVE}_first", f"{LIVE}_copy"
    kind = f"CAST({int(RowKind.INSERT)} AS {rows.schema[KIND].dataType.simpleString()}) AS {KIND}"
    copies = f"array_repeat(0, CAST(least({_COPIES}L, {LIVE} - {first} + 1L) AS INT))"
    return (
        counted_rows.selectExpr("*", f"explode(sequence(1L, {LIVE}, {_COPIES}L)) AS {first}")
        .selectExpr("*", kind, f"explode({copies}) AS {copy}")
        .select(*rows.columns)
    )


def _unless_negative(query: Query, condition: str, *, strict: bool) -> str:
    """Return the SQL of a condition that is false, or if strict an error, where retractions outnumber rows."""
    if not strict:
        return f"{LIVE} >= 0 AND {condition}"
    keys = dict(zip(query.layout.keys.names, query.layout.names, strict=True))
    function = ", ".join(call.function for call in query.open_request.calls)
    error = error_text("CANNOT_RETRACT", text(_NO_ROW), function, keys, group=list(keys))
    return f"CASE WHEN {LIVE} >= 0 THEN {condition} ELSE CAST(raise_error({error}) AS BOOLEAN) END"


def _by_key(query: Query, arrived_rows: DataFrame, final: FinalFold) -> DataFrame:
    hashed_rows = arrived_rows.withColumn(HASH, hash_of(arrived_rows, query.layout.keys))
    column = sf.expr(HASH)  # PySpark makes a Column of a text by a third of the calls of Java that one of a name takes
    order = [column, *_retractions_last(query)] if final.needs_order else []
    return together(hashed_rows, column, order)


def _in_one(query: Query, arrived_rows: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return all rows in one partition, with the seed row: NULLs, marked as not real."""
    if REAL in schema.names and REAL not in arrived_rows.columns:
        arrived_rows = arrived_rows.withColumn(REAL, sf.lit(True))
    nothing = [
        sf.lit(False if field.name == REAL else None).cast(field.dataType).alias(field.name)
        for field in arrived_rows.schema
    ]
    seed = arrived_rows.sparkSession.range(0, 1, 1, 1).select(*nothing)
    return together(arrived_rows.union(seed), None, _retractions_last(query))


def _retractions_last(query: Query) -> list[Column]:
    if not query.layout.has_kinds or query.folds_before_shuffle.holds:
        return []
    return [sf.col(KIND).isin(*RETRACTING)]


class SparkPlanner(Protocol):
    """Plans lifted batches in Spark. A query is lifted only if the extension is there (`Query.lift_choice`)."""

    def result(self, query: Query, rows: DataFrame, outputs: Sequence[st.DataType]) -> DataFrame:
        """Return the result of a batch query that is lifted.

        Args:
            query: The query, whose calls all have plans.
            rows: The input rows: keys, the row kind (if rows have kinds), arguments and filters.
            outputs: Spark's types of the outputs.
        """

    def text(
        self,
        query: Query,
        rows: Text,
        columns: Mapping[str, str],
        outputs: Sequence[st.DataType],
        session: SparkSession,
        items: Sequence[tuple[str, str]] | None = None,
    ) -> Text:
        """Return the plan of `result` as SQL; for a query that Python finishes, only the aggregates of its groups.

        Args:
            query: The query.
            rows: The input, without collated texts.
            columns: The input's columns that are keys, arguments and filters, as SQL.
            outputs: Spark's types of the outputs.
            session: The session.
            items: The columns of the result, each with its name. Default: all columns, with the names of the query.
        """

    def finished_by_python(
        self, query: Query, groups: DataFrame, rows: st.StructType, outputs: Sequence[st.DataType]
    ) -> DataFrame:
        """Return the result of a batch query whose `get_value` runs in Python, over groups that Spark has aggregated.

        Args:
            query: The query.
            groups: The result of the SQL that `text` returned.
            rows: The columns of the input.
            outputs: Spark's types of the outputs.
        """


LIFT: Final = Extension[SparkPlanner]("lift")


"""The sign of a row: -1 if it is retracted."""


def text(value: str) -> str:
    """Return a text as a literal of SQL, however the session reads backslashes and variables in it."""
    if _PLAIN.fullmatch(value):
        return f"'{value}'"
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


# No quotes, no backslashes, and no `$`, with which names of variables begin.
_PLAIN: Final = re.compile(r"[\n !#%&()*+,\-./0-9:;<=>?A-Z\[\]^_a-z|~]*")


@dataclass(frozen=True)
class Text:
    """A query as SQL, with the methods of a DataFrame that plans of lifted batches call.

    Spark analyses a DataFrame again at each method, and a text once, in a time that grows with its levels.

    Args:
        sql: The query.
        source: The clauses behind SELECT, as `FROM t WHERE c`, if the query has no others.
        expressions: The items of the query as expressions over the source, in parentheses unless they are columns, by
            the names of its columns in backquotes; none, if they cannot be evaluated elsewhere.
    """

    sql: str
    source: str = ""
    expressions: Mapping[str, str] = field(default_factory=dict)

    def selectExpr(self, *items: str) -> Text:  # noqa: N802 - as PySpark names it
        """Return a projection."""
        return Text(f"SELECT {', '.join(items)} FROM ({self.sql})")  # noqa: S608 - expressions of ours

    @property
    def below(self) -> Text:
        """The source, of which `selectExpr` takes expressions over its columns."""
        return _Source(self.source)

    def where(self, condition: str) -> Text:
        """Return the rows for which a condition holds."""
        return Text(f"SELECT * FROM ({self.sql}) WHERE {condition}")  # noqa: S608 - as above


class _Source(Text):
    """The clauses behind SELECT in the place of a query."""

    def selectExpr(self, *items: str) -> Text:  # noqa: N802 - as PySpark names it
        return Text(f"SELECT {', '.join(items)} {self.sql}")


def error_text(
    code: str, message: str, function: str, names: Mapping[str, str], *, group: Sequence[str], row: Sequence[str] = ()
) -> str:
    """Return the text of an error, which `foldflight.spark.errors.error_of` reads, as SQL.

    Args:
        code: The code of the error.
        message: The message, as SQL.
        function: The name of the function.
        names: The user's names of columns.
        group: The columns of the keys.
        row: The columns of the arguments.
    """
    texts = []
    before = f"\n  function: {function}"
    for title, columns in (("group", group), ("row", row)):
        for index, column in enumerate(columns):
            lead = f"\n  {title}: " if index == 0 else ", "
            texts += [
                text(f"{before}{lead}{names.get(column, column)}="),
                f"coalesce(CAST({column} AS STRING), 'NULL')",
            ]
            before = ""
    begin, end = text_around(code)
    texts.append(text(f"{before}{end}"))
    return f"concat({text(begin)}, {message}, {', '.join(texts)})"
