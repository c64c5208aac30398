"""A table of the session's catalogue, in a format with row-level changes, such as Delta and Iceberg: MERGE INTO."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.targets import DELETE, holds, older_checkpoint
from foldflight.errors import RejectedError, RetryableError
from foldflight.ext.tables.merge_sql import merge_statement, quote_name
from foldflight.spark.errors import raise_error
from foldflight.spark.versions.sessions import is_remote, mute_query_log
from foldflight.spark.versions.types import arrow_type

# What Iceberg and Delta raise if another writer has changed the table since the statement read it.
_CONFLICT: Final = re.compile(
    r"CommitFailedException|CommitStateUnknownException|conflicting files|Concurrent\w+Exception"
)
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_ONE_NAME: Final = re.compile(r"\s*(?:`(?:[^`]|``)+`|[^`.]+)\s*")


class CatalogTable:
    """A table that Spark's executors change themselves.

    The statement sets values that do not depend on those before, and deletes by key. So it changes nothing if the last
    epoch is repeated. If an earlier epoch were repeated, it would: each statement therefore marks its commit with the
    query and the epoch, in the summary of Iceberg's snapshot and as a transaction of Delta. The marks of Iceberg's
    snapshots are compared here, until the snapshots expire. Delta itself skips a statement if the table has its
    transaction or a later one; the metadata of Delta's commits tell which of the two it was.

    Spark runs the epochs of a query in a copy of the user's session, and each session may keep the table as it was
    when it read it first. So the table is refreshed before the statement, because of other writers, and after it in
    the user's session.

    Args:
        table: The name of the table, as it stands in SQL: `totals`, `catalog.schema.totals`.
        columns: The columns of the query.
        keys: The columns that identify a row.
    """

    def __init__(self, table: str, columns: st.StructType, keys: Sequence[str]) -> None:
        self.name = table
        self._columns, self._keys = columns, list(keys)
        self._session: SparkSession | None = None
        self._is_iceberg = self._is_delta = False
        self._whole_name = table  # in SQL

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # sessions of Connect are not sent to their server

    def prepare(self, example: DataFrame) -> None:
        """Check the columns of the table.

        Args:
            example: A DataFrame of the session whose catalogue has the table.
        """
        spark = example.sparkSession
        if not is_remote(example):
            self._session = spark
        try:
            with mute_query_log():
                schema = spark.table(self.name).schema
                description = spark.sql(f"DESCRIBE TABLE EXTENDED {self.name}").where("col_name = 'Provider'").collect()
        except PySparkException as error:
            raise RejectedError("SETTINGS", f"there is no table {self.name}: {error.getCondition()}") from error
        provider = [row["data_type"].lower() for row in description][-1:]
        self._is_iceberg, self._is_delta = provider == ["iceberg"], provider == ["delta"]
        if self._is_iceberg and _ONE_NAME.fullmatch(self.name):
            # Spark finds no snapshots behind a name alone, and sessions of epochs do not know the current catalogue.
            place = f"{quote_name(spark.catalog.currentCatalog(), '`')}.{spark.catalog.currentDatabase()}"
            self._whole_name = f"{place}.{self.name}"
        types = {field.name.lower(): field.dataType for field in schema}
        for field in self._columns:
            type_ = types.get(field.name.lower())
            if type_ == field.dataType:
                continue
            if type_ is None or not holds(arrow_type(type_), arrow_type(field.dataType)):
                has = "does not exist" if type_ is None else f"has the type {type_.simpleString().upper()}"
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {self.name}: the column {field.name} {has}, and the query's is "
                    f"{field.dataType.simpleString().upper()}. Change the table or the query; nothing was written",
                )
            if not _takes_nulls(type_, field.dataType):
                raise RejectedError(
                    "SCHEMA_MISMATCH",
                    f"table {self.name}: the column {field.name}, {type_.simpleString().upper()}, takes no NULL in its "
                    "elements or fields, and the query may have some there. Change the table; nothing was written",
                )

    def merge(self, changes: DataFrame, query: str, epoch: int) -> None:
        """Merge the changes of an epoch.

        Raises:
            RejectedError: SETTINGS, if a table of Iceberg has a later epoch of the query.
            RetryableError: UNREACHABLE, if another writer changed the table meanwhile; the statement may be repeated.
        """
        spark = changes.sparkSession
        view = f"foldflight_{uuid.uuid4().hex}"
        net_changes(changes, self._keys, self.name).createOrReplaceTempView(view)
        refresh = f"REFRESH TABLE {self._whole_name}"
        try:
            spark.sql(refresh)
            last = self._last_epoch(spark, query)
            if last is not None and last > epoch:
                raise older_checkpoint(self.name, query, last, epoch)
            # It changes the table of the snapshot whose mark was read, or Iceberg refuses it.
            statement = merge_statement(self._whole_name, view, self._keys, self._columns.names, "`")
            with _mark_commits(spark, query, epoch):
                counts = spark.sql(statement).collect()
            if self._is_delta and not counts:  # Delta has left the statement out
                self._check_repeat(spark, query, epoch)
                spark.sql(statement)
        except RejectedError:
            raise
        except Exception as error:
            conflict = _CONFLICT.search(str(error))
            if conflict is None:
                raise
            raise RetryableError(
                "UNREACHABLE", f"another writer changed table {self.name} at the same time: {conflict[0]}"
            ) from error
        finally:
            spark.catalog.dropTempView(view)
        if self._session is not None:
            self._session.sql(refresh)

    def _last_epoch(self, spark: SparkSession, query: str) -> int | None:
        """Return the last epoch that a snapshot of Iceberg has; None if no snapshot has one, or in other formats."""
        if not self._is_iceberg:
            return None
        # A snapshot that was rolled back is no ancestor of the current one.
        marks = f"SELECT max(CAST(summary['{_mark(query)}'] AS BIGINT)) FROM {self._whole_name}.snapshots"
        ancestors = f"SELECT snapshot_id FROM {self._whole_name}.history WHERE is_current_ancestor"
        last: int | None = spark.sql(f"{marks} WHERE snapshot_id IN ({ancestors})").collect()[0][0]
        return last

    def _check_repeat(self, spark: SparkSession, query: str, epoch: int) -> None:
        """Check that a table of Delta, which has an epoch or a later one, has no later one.

        Raises:
            RejectedError: SETTINGS, if it has, or its history does not tell.
        """
        history = spark.sql(f"DESCRIBE HISTORY {self._whole_name}").select("userMetadata").collect()
        matches = (re.search(rf"{re.escape(_mark(query))} (\d+)", row[0] or "") for row in history)
        last = max((int(each[1]) for each in matches if each is not None), default=None)
        if last is None:
            raise RejectedError(
                "SETTINGS",
                f"table {self.name} has epoch {epoch} of the query {query} or a later one, and its history, which "
                "tells this, has expired. Start with a new checkpoint and an empty table",
            )
        if last != epoch:
            raise older_checkpoint(self.name, query, last, epoch)


def _mark(query: str) -> str:
    return f"foldflight-{query}"


@contextmanager
def _mark_commits(spark: SparkSession, query: str, epoch: int) -> Iterator[None]:
    """Let the commits of Iceberg and Delta have the mark of an epoch. Spark runs the query in a session of its own."""
    before = spark.conf.get(_METADATA, None)
    settings = {
        f"spark.sql.iceberg.snapshot-property.{_mark(query)}": str(epoch),
        "spark.databricks.delta.write.txnAppId": _mark(query),
        "spark.databricks.delta.write.txnVersion": str(epoch),
        _METADATA: " ".join([*([] if before is None else [before]), f"{_mark(query)} {epoch}"]),
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
        if before is not None:
            spark.conf.set(_METADATA, before)


def _takes_nulls(type_: st.DataType, values: st.DataType) -> bool:
    """Return whether a type takes NULL wherever values of another may have it in their elements, values and fields."""
    if isinstance(type_, st.ArrayType) and isinstance(values, st.ArrayType):
        there = type_.containsNull or not values.containsNull
        return there and _takes_nulls(type_.elementType, values.elementType)
    if isinstance(type_, st.MapType) and isinstance(values, st.MapType):
        there = type_.valueContainsNull or not values.valueContainsNull
        parts = [(type_.keyType, values.keyType), (type_.valueType, values.valueType)]
        return there and all(_takes_nulls(*part) for part in parts)
    if isinstance(type_, st.StructType) and isinstance(values, st.StructType):
        fields = zip(type_, values, strict=True)
        return all((f.nullable or not v.nullable) and _takes_nulls(f.dataType, v.dataType) for f, v in fields)
    return True


def net_changes(changes: DataFrame, keys: Sequence[str], table: str) -> DataFrame:
    """Return one row for each key, as `foldflight.engine.targets.net_changes` does for Arrow tables."""
    sets = sf.col(ROW_KIND).isin("+I", "+U")
    names = [quote_name(key, "`") for key in keys]
    several = raise_error(
        "SCHEMA_MISMATCH",
        f"table {table}: one epoch has several new rows with the same key; keys: {', '.join(keys)}. Their order is "
        "not known: name all columns of the query that identify a row in keys=[...], aggregate the changes first, "
        "or keep the last row of each key: upserts(...), from_debezium(..., keys=[...])",
    )
    last_and_new = sf.struct(sf.max_by(sf.struct("*"), sets).alias("last"), sf.count_if(sets).alias("new"))
    groups = changes.groupBy(*names).agg(last_and_new.alias(ROW_KIND))  # the one name that no key has
    new, last = sf.col(f"{ROW_KIND}.new"), f"{ROW_KIND}.last"
    checked_groups = groups.where(sf.when(new > 1, several.isNull()).otherwise(sf.lit(True)))
    kind = sf.when(new > 0, sf.col(f"{last}.{ROW_KIND}")).otherwise(sf.lit(DELETE)).alias(ROW_KIND)
    # Keys are taken from the group, which has one NaN and no -0.0, and not from one of its rows.
    others = [
        sf.col(quote_name(name, "`") if name in keys else f"{last}.{quote_name(name, '`')}")
        for name in changes.columns
        if name != ROW_KIND
    ]
    return checked_groups.select(kind, *others)
