"""`write_table`: the function of a query's foreachBatch, and the query that runs it.

    epoch > persist > count > for each part of the keys: filter, Arrow table, netted > target

The parts are formed by the hash of the keys. So all changes of a key are in one part, and a part has the same rows if
Spark computes it again. `Address` is the URL of a target.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.streaming import StreamingQuery  # type: ignore[attr-defined, unused-ignore]

from foldflight.client.client_logs import log_event
from foldflight.engine.query.layout import DEAD_LETTER, ROW_KIND
from foldflight.engine.targets import Target, is_key, net_changes, offsets_name, older_checkpoint
from foldflight.errors import RejectedError, RetryableError
from foldflight.ext.tables.catalog_table import CatalogTable
from foldflight.ext.tables.delta import DeltaTable
from foldflight.ext.tables.duckdb import DuckDBTable
from foldflight.ext.tables.iceberg import IcebergTable
from foldflight.ext.tables.merge_sql import quote_name
from foldflight.ext.tables.postgres import PostgresTable
from foldflight.spark.arguments import column_names, require_dataframe
from foldflight.spark.columns import reject_spark_errors
from foldflight.spark.rowkinds import refuse_unset_kinds
from foldflight.spark.state_reader import refuse_moved
from foldflight.spark.versions.facts import TABLES, require
from foldflight.spark.versions.sessions import is_remote
from foldflight.spark.versions.types import arrow_type

KINDS = "duckdb:///path?table=t, postgresql://user@host/db?table=t, delta:///path or iceberg://catalog/namespace.table"
_TABLE: Final = "table="
_TRIGGER_REMEDY: Final = "write '10 seconds', or 'available now'"
_PART_ROWS: Final = 500_000
_PAUSE_S: Final = (0.1, 5.0)  # the first pause after a lost connection, and the longest
_OURS: Final = (DuckDBTable, PostgresTable, DeltaTable, IcebergTable)
_Answer = TypeVar("_Answer")
_logger = logging.getLogger("foldflight.spark.tables")


def write_table(
    changes: DataFrame,
    target: str | Target,
    *,
    keys: str | Sequence[str],
    checkpoint: str | Path,
    trigger: str | Mapping[str, str | bool] | None = None,
    output_mode: Literal["update", "append"] = "update",
    name: str | None = None,
    create: bool = False,
    add_columns: bool = False,
    part_rows: int = _PART_ROWS,
    patience_s: float = 60.0,
) -> StreamingQuery:
    """Keep a table up to date with a stream, and start the query.

    Each epoch reaches the table exactly once, whatever dies: the table stores the query's id and the epoch in the
    transaction that changes its rows, and an epoch that it has already is not applied again. The id belongs to the
    checkpoint: a query with a new checkpoint is another query, which begins with an empty table.

    >>> target = "duckdb:///totals.db?table=totals"  # or postgresql://me@host/db?table=totals, delta:///folder, ...
    >>> query = write_table(
    ...     totals, target, keys="customer", checkpoint="checkpoint", trigger="available now", create=True
    ... )  # doctest: +SKIP
    >>> query.awaitTermination()  # doctest: +SKIP
    >>> duckdb.connect("totals.db").sql("SELECT * FROM totals ORDER BY customer").show()  # doctest: +SKIP
    ┌──────────┬───────┐
    │ customer │ total │
    │ varchar  │ int64 │
    ├──────────┼───────┤
    │ ann      │    50 │
    │ bob      │     7 │
    └──────────┴───────┘

    Rows with the kinds `+I` and `+U` set the values of their key. Rows with `-D`, or with `-U` and no new row, delete
    it. Without the column `row_kind` all rows set values. NULL in a key equals NULL.

    An epoch is read in parts of about `part_rows` rows, so the driver's memory does not grow with the epoch (except
    for `delta:` and `iceberg:`). Each epoch is logged as `table_epoch` under `foldflight.spark.tables`, with rows and
    rates.

    Args:
        changes: The stream, for example of `group_by(...).agg(...)`, with or without the column `row_kind`.
        target: `duckdb:///path?table=t`, `postgresql://user@host/db?table=t`, `delta:///path`, or
            `iceberg://catalog/namespace.table` of a catalogue that pyiceberg knows; the name of a table of the
            session's catalogue whose format has MERGE; or a `Target`.
        keys: The columns that identify a row of the table.
        checkpoint: The folder in which Spark keeps the query's progress.
        trigger: How often an epoch begins, as "10 seconds", or "available now" to end after all that has arrived.
            PySpark's names are taken, too: "availableNow", {"availableNow": True}, {"processingTime": "10 seconds"}.
            Default: one epoch after the other.
        output_mode: "append" for closed windows (`emit="append"`).
        name: The query's name.
        create: Whether to create the table, with the columns of the query, if it does not exist. It has only rows of
            this query then, so a query with a new checkpoint refuses a table that has rows.
        add_columns: Whether to add columns of the query that the table lacks.
        part_rows: How many rows of an epoch the driver holds at a time, about.
        patience_s: How long the table is tried again while it is not available, in seconds: at the start, and in each
            epoch.

    Returns:
        StreamingQuery: The running query.

    Raises:
        RejectedError: SETTINGS, MODULE or SCHEMA_MISMATCH, before anything is written; STATE_MISMATCH for a checkpoint
            that was moved, or that Spark 4.0 wrote, and needs `upgrade_checkpoint`.
        RetryableError: UNREACHABLE, if the table is not available for `patience_s`.
    """
    require(TABLES, TABLES.what)
    require_dataframe(changes, "write_table")
    keys = column_names(keys, "keys")
    if not keys:
        raise RejectedError("SETTINGS", "keys=[...] are the columns that identify a row of the table, at least one")
    if not changes.isStreaming:
        raise RejectedError(
            "SETTINGS",
            "write_table keeps a table up to date with a stream, and these rows are a batch; read their source by "
            "spark.readStream, or write them once by Spark: df.write",
        )
    if part_rows < 1:
        raise RejectedError("SETTINGS", f"part_rows is {part_rows}; a part has at least one row")
    trigger_options = _trigger(trigger)
    _check_columns(changes, keys)
    refuse_moved(changes.sparkSession, str(checkpoint))
    table = _open_target(changes, target, keys, create=create, add_columns=add_columns)
    sink = Sink(table, keys, str(checkpoint), is_own=create, part_rows=part_rows, patience_s=patience_s)
    if not is_remote(changes):
        sink.prepare(changes)
    writer = changes.writeStream.foreachBatch(sink).outputMode(output_mode)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if name is not None:
        writer = writer.queryName(name)
    if trigger_options:
        with reject_spark_errors("SETTINGS", f"Spark cannot read the trigger {trigger!r}; {_TRIGGER_REMEDY}"):
            writer = writer.trigger(**trigger_options)
    return writer.start()


def _trigger(trigger: object) -> dict[str, Any]:
    """Return the arguments of PySpark's `trigger`, none by default. Raises RejectedError SETTINGS."""
    match trigger:
        case None:
            return {}
        case str() if trigger.replace(" ", "").casefold() == "availablenow":
            return {"availableNow": True}
        case str():
            return {"processingTime": trigger}
        case {"availableNow": True, **others} if not others:
            return {"availableNow": True}
        case {"processingTime": str(interval), **others} if not others:
            return {"processingTime": interval}
        case {"realTime": _} | {"continuous": _}:
            raise RejectedError(
                "SETTINGS",
                f"trigger is {trigger!r}, which sends each row on its own, and write_table writes the rows of an epoch "
                "in one transaction of the table; write '1 second', or leave the trigger out",
            )
    raise RejectedError("SETTINGS", f"trigger is {trigger!r}; {_TRIGGER_REMEDY}")


def _check_columns(changes: DataFrame, keys: Sequence[str]) -> None:
    names = changes.columns
    if DEAD_LETTER in names:
        raise RejectedError("SCHEMA_MISMATCH", "the stream has dead letters, which are no rows: write results(changes)")
    if len(names) != len(set(names)):
        raise RejectedError("SCHEMA_MISMATCH", f"the stream has two columns with one name: {', '.join(names)}")
    if ROW_KIND not in names:
        refuse_unset_kinds(changes, "write_table", f"rename it to {ROW_KIND}, or leave it out")
    for key in keys:
        if key not in names or key == ROW_KIND:
            raise RejectedError("SCHEMA_MISMATCH", f"the key {key} is no column of the stream: {', '.join(names)}")
        type_ = arrow_type(changes.schema[key].dataType)
        if not is_key(type_):
            raise RejectedError("SCHEMA_MISMATCH", f"the key {key} has the type {type_}, which cannot identify a row")


def _open_target(
    changes: DataFrame, target: str | Target, keys: Sequence[str], *, create: bool, add_columns: bool
) -> Target | CatalogTable:
    fields = [field for field in changes.schema.fields if field.name != ROW_KIND]
    if not isinstance(target, str):
        if create or add_columns:
            raise RejectedError("SETTINGS", "create and add_columns are for targets by URL: a Target has its own way")
        return target
    if ":" not in target:
        if create or add_columns:
            raise RejectedError(
                "SETTINGS", "create and add_columns are for targets by URL: use CREATE TABLE and ALTER TABLE of Spark"
            )
        return CatalogTable(target, st.StructType(fields), keys)
    address = Address.of(target)
    columns = pa.schema([pa.field(field.name, arrow_type(field.dataType)) for field in fields])
    options = {"create": create, "add_columns": add_columns}
    match address.scheme:
        case "duckdb":
            return DuckDBTable(address.local_path(), address.named_table(), columns, keys, **options)
        case "postgresql" | "postgres":
            return PostgresTable(address.url, address.named_table(), columns, keys, **options)
        case "delta":
            return DeltaTable(address.local_path(), columns, keys, **options)
        case "iceberg":
            catalog, table = address.in_catalog()
            return IcebergTable(catalog, table, columns, keys, **options)
        case scheme:
            raise RejectedError(
                "SETTINGS", f"there is no target {scheme}:; a target is {KINDS}, or the name of a table of Spark"
            )


class Sink:
    """What foreachBatch calls. It runs in the driver; with Spark Connect, in a Python process of the server.

    Args:
        table: The table.
        keys: The columns that identify a row.
        checkpoint: The folder of the query's checkpoint, whose metadata have the query's id.
        is_own: Whether only this query has filled the table.
        part_rows: How many rows a part should have.
        patience_s: How long the table is tried again, at the start and in each epoch.
    """

    def __init__(
        self,
        table: Target | CatalogTable,
        keys: Sequence[str],
        checkpoint: str,
        *,
        is_own: bool,
        part_rows: int,
        patience_s: float,
    ) -> None:
        self._table, self._keys, self._checkpoint = table, list(keys), checkpoint
        self._name = getattr(table, "name", type(table).__name__)
        self._is_own, self._part_rows, self._patience_s = is_own, part_rows, patience_s
        self._is_prepared = False
        self._query: str | None = None

    def prepare(self, changes: DataFrame) -> None:
        """Create or check the table. With Spark Connect only the server may reach it, so there the first epoch does."""
        if isinstance(self._table, CatalogTable):
            self._table.prepare(changes)
        elif isinstance(self._table, _OURS):
            self._patiently(self._table.prepare)
        self._is_prepared = True

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Bring an epoch to the table, if it does not have it yet."""
        start_s = time.monotonic()
        if not self._is_prepared:
            self.prepare(batch)
        if self._query is None:
            self._query = query_id(batch, self._checkpoint)
        offsets = offsets_digest(batch, self._checkpoint, epoch) if isinstance(self._table, _OURS) else None
        if self._has(epoch, offsets):
            # The states of the epoch may not be committed yet: this is done by reading all rows.
            batch.write.format("noop").mode("overwrite").save()
            self._log("table_epoch_repeated", epoch=epoch)
            return
        changes = batch if ROW_KIND in batch.columns else batch.select(sf.lit("+U").alias(ROW_KIND), "*")
        changes.persist()  # so that the tasks compute it once, beside each other, and not for each part
        try:
            rows = changes.count()
            self._apply(changes, epoch, rows, offsets)
        finally:
            changes.unpersist()
        seconds = time.monotonic() - start_s
        self._log("table_epoch", epoch=epoch, rows=rows, seconds=round(seconds, 3), rows_per_s=round(rows / seconds))

    def _has(self, epoch: int, offsets: int | None) -> bool:
        """Return whether the table has an epoch already.

        Args:
            epoch: The number of the epoch.
            offsets: The digest of its offsets.

        Raises:
            RejectedError: SETTINGS, if it lacks an epoch before, has a later one, or an epoch of other rows.
        """
        target, query = self._table, self._query
        if isinstance(target, CatalogTable) or query is None:
            return False
        last = self._patiently(lambda: target.last_epoch(query))
        if last is None and epoch == 0 and self._is_own:
            self._check_empty()
        lacks = epoch > 0 and self._is_own if last is None else last < epoch - 1
        if lacks:
            epochs = "no epoch" if last is None else f"epochs up to {last}"
            raise RejectedError(
                "SETTINGS",
                f"table {self._name} has {epochs} of the query {query}, which goes on with epoch {epoch}: the changes "
                "between are lost. Start with a new checkpoint and an empty table. If the table was filled in another "
                "way until now, leave out create=True once",
            )
        if last is not None and last > epoch:
            raise older_checkpoint(self._name, query, last, epoch)
        return last == epoch and self._is_repeat(query, epoch, offsets)

    def _is_repeat(self, query: str, epoch: int, offsets: int | None) -> bool:
        """Check that the last epoch of the table is this one, of the same rows.

        Spark writes the offsets of an epoch, with the time, before it runs the epoch, and repeats it with the same.
        """
        target = self._table
        if isinstance(target, _OURS):
            stored_epoch = self._patiently(lambda: target.last_epoch(offsets_name(query)))
            if stored_epoch is not None and stored_epoch != offsets:
                raise RejectedError(
                    "SETTINGS",
                    f"table {self._name} has epoch {epoch} of the query {query} with other rows than in the "
                    "checkpoint: the checkpoint is older than the table, for example a copy, or two drivers use "
                    "copies of it. Stop the other driver, or start with a new checkpoint and an empty table",
                )
        return True

    def _check_empty(self) -> None:
        table = self._table
        if isinstance(table, _OURS) and self._patiently(table.has_rows):
            raise RejectedError(
                "SETTINGS",
                f"table {self._name} has rows already, and a query with a new checkpoint begins with an empty table: "
                "of the rows that it has, those that the query never mentions would stay. Go on with the checkpoint of "
                "before, or empty the table. If the other rows are to stay there, leave out create=True",
            )

    def _apply(self, changes: DataFrame, epoch: int, rows: int, offsets: int | None) -> None:
        target, query = self._table, self._query
        if query is None:
            return
        if isinstance(target, CatalogTable):
            if rows:
                self._patiently(lambda: target.merge(changes, query, epoch))
        else:
            count = -(-rows // self._part_rows)
            if isinstance(target, _OURS):
                self._patiently(lambda: target.apply(query, epoch, self._parts(changes, count), offsets))
            else:
                self._patiently(lambda: target.apply(query, epoch, self._parts(changes, count)))

    def _parts(self, batch: DataFrame, count: int) -> Iterator[pa.Table]:
        part = sf.pmod(sf.xxhash64(*(quote_name(key, "`") for key in self._keys)), sf.lit(count))
        for number in range(count):
            rows = batch if count == 1 else batch.where(part == number)
            changes = net_changes(rows.toArrow(), self._keys, self._name)
            if changes.num_rows:
                yield changes

    def _patiently(self, work: Callable[[], _Answer]) -> _Answer:
        """Do work, again while the table is not available. All of it can be repeated."""
        until_s = time.monotonic() + self._patience_s
        pause_s, longest_s = _PAUSE_S
        while True:
            try:
                return work()
            except RetryableError as error:
                if time.monotonic() + pause_s > until_s:
                    raise
                log_event(
                    _logger, logging.WARNING, "table_not_available", {"table": self._name, "error": error.message}
                )
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, longest_s)

    def _log(self, event: str, **fields: Any) -> None:
        log_event(_logger, logging.INFO, event, {"table": self._name, "query": self._query, **fields})


def query_id(batch: DataFrame, checkpoint: str) -> str:
    """Return the id of a query, which Spark stores in the checkpoint when the query is first started."""
    return str(json.loads(_read_text(batch, checkpoint, "metadata"))["id"])


def offsets_digest(batch: DataFrame, checkpoint: str, epoch: int) -> int:
    """Return a digest of the offsets of an epoch, which Spark stores before it runs the epoch; 63 bits."""
    digest = hashlib.blake2b(_read_text(batch, checkpoint, f"offsets/{epoch}").encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _read_text(batch: DataFrame, checkpoint: str, name: str) -> str:
    """Return the text of a file of the checkpoint. Spark reads it, because only Spark knows its file system."""
    path = re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", checkpoint)  # Spark reads patterns of paths
    line = batch.sparkSession.read.text(f"{path}/{name}", wholetext=True).head()
    if line is None:
        raise RejectedError("SETTINGS", f"the file {name} of the checkpoint {checkpoint} is empty")
    return str(line[0])


class Address(NamedTuple):
    """A URL in parts. It is never shown, because it may have a password.

    Args:
        scheme: The kind of target: `duckdb`, `postgresql`, `delta`, `iceberg`.
        url: The URL without the name of the table.
        location: What follows the scheme, without parameters: `///path` for files.
        table: The name of the table in its parts: schema and table, or table. None if the URL names none.
    """

    scheme: str
    url: str
    location: str
    table: tuple[str, ...] | None

    @classmethod
    def of(cls, url: str) -> Self:
        """Take a URL apart.

        Raises:
            RejectedError: SETTINGS, if it names a table in a wrong way.
        """
        # The rest stays as it is: libpq has its own rules for user, password, hosts and parameters.
        base, _, query = url.partition("?")
        options = query.split("&") if query else []
        names = [unquote(option.removeprefix(_TABLE)) for option in options if option.startswith(_TABLE)]
        if len(names) > 1 or not all(names):
            raise RejectedError("SETTINGS", f"the URL of a target names its table once, as in {KINDS}")
        rest = "&".join(option for option in options if not option.startswith(_TABLE))
        scheme, _, location = base.partition(":")
        table = tuple(names[0].split(".")) if names else None
        return cls(scheme, f"{base}?{rest}" if rest else base, unquote(location), table)

    def named_table(self) -> tuple[str, ...]:
        """Return the name of the table.

        Raises:
            RejectedError: SETTINGS, if there is none.
        """
        if self.table is None:
            raise RejectedError("SETTINGS", f"the URL of the target names no table; add ?table=NAME, as in {KINDS}")
        return self.table

    def local_path(self) -> str:
        """Return the path of a file or folder on this machine.

        Raises:
            RejectedError: SETTINGS, if the URL names a host or no absolute path.
        """
        if not self.location.startswith("///"):
            raise RejectedError(
                "SETTINGS", f"the target {self.scheme} has an absolute path behind three slashes, as in {KINDS}"
            )
        return self.location.removeprefix("//")

    def in_catalog(self) -> tuple[str, tuple[str, ...]]:
        """Return the name of a catalogue and the name of a table in it, in parts.

        Raises:
            RejectedError: SETTINGS, if the URL does not have both.
        """
        catalog, _, table = self.location.removeprefix("//").partition("/")
        parts = tuple(table.split("."))
        if not self.location.startswith("//") or not catalog or len(parts) < 2 or not all(parts):
            raise RejectedError(
                "SETTINGS", f"the target {self.scheme} has a catalogue and a table with its namespace, as in {KINDS}"
            )
        return catalog, parts
