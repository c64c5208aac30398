"""`foldflight state`: print the groups of a streaming query, read from its checkpoint."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Column, Table
from rich.text import Text

from foldflight.cli.local_session import errors_as_text, local_spark, spark_progress
from foldflight.errors import RejectedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from foldflight.spark.state_reader import StateFigures, StoredTable


EXIT_NO_GROUP = 1
_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
_JSON = {"ignoreNullFields": "false", "timestampFormat": _TIME_FORMAT}
_MEMBERS_MAX = 6


@click.command()
@click.argument("checkpoint")
@click.option(
    "--group",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Only groups with this value of a key. KEY alone means NULL.",
)
@click.option("--operator", type=int, help="Operator id of the state, if the query has several group_by or over.")
@click.option("--view", metavar="OUTPUT.VIEW", help="Print the entries of this view instead of the groups.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many rows to print.")
@click.option("--json", "as_json", is_flag=True, help="Print only one JSON object for each row.")
def state(
    checkpoint: str,
    *,
    conditions: tuple[str, ...],
    operator: int | None,
    view: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Print the groups of a streaming query: keys, live rows, and the state of each output.

    Example: foldflight state checkpoint --group customer=ann

    Of a query with over: keys, the number of rows that wait for the watermark, and the state or the last rows that are
    kept for each window frame. With --view: the entries of a MapView or ListView of each group. CHECKPOINT is the
    checkpointLocation of the query. The query may be running.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise RejectedError("SETTINGS", "a checkpoint is read with Spark: pip install 'foldflight[spark]'")
    settings = {"spark.sql.shuffle.partitions": os.cpu_count() or 1}
    with local_spark("foldflight state", settings, log_level="off") as spark, errors_as_text():
        from foldflight.spark.state_reader import StoredTable

        with spark_progress(spark, Console(stderr=True), "reading the checkpoint"):
            table = StoredTable.of(spark, checkpoint, operator)
            groups = _select_groups(table, table.groups() if view is None else table.entries(view), conditions)
            lines = _lines(groups, len(table.keys) + (view is not None), limit)
            count = len(lines) if len(lines) < limit else groups.count()
            figures = table.figures()
        if as_json:
            for line in lines:
                click.echo(line)
        else:
            _print(Console(), table if view is None else None, groups, [json.loads(line) for line in lines])
            Console().print(_summary(table, figures, _limit_items(count, is_view=view is not None)), highlight=False)
    if not lines and conditions:
        click.echo(f"no group has {', '.join(conditions)}", err=True)
        click.get_current_context().exit(EXIT_NO_GROUP)
    if len(lines) < count:
        click.echo(
            f"{len(lines):,} of {_limit_items(count, is_view=view is not None)}; --limit {count} prints all", err=True
        )


def _limit_items(count: int, *, is_view: bool) -> str:
    one, many = ("entry", "entries") if is_view else ("group", "groups")
    return f"{count:,} {one if count == 1 else many}"


def _select_groups(table: StoredTable, groups: DataFrame, conditions: Sequence[str]) -> DataFrame:
    """Return the groups whose keys have these values. Spark casts the values to the types of the keys."""
    from pyspark.sql import functions as sf
    from pyspark.sql import types as st

    for each in conditions:
        name, is_value, text = each.partition("=")
        if name not in table.keys:
            raise RejectedError(
                "SIGNATURE", f"--group {each}: {name} is not a key; the keys are {', '.join(table.keys) or '(none)'}"
            )
        type_ = groups.schema[name].dataType
        if is_value and isinstance(type_, (st.ArrayType, st.StructType)):
            raise RejectedError(
                "SIGNATURE",
                f"--group {each}: the key {name} is {type_.simpleString()}, which has no values on a command line; "
                "select in Python, with state_table(spark, checkpoint).where(...)",
            )
        value = sf.lit(text if is_value else None).try_cast(type_)
        if is_value and groups.sparkSession.range(1).select(value.isNull()).collect()[0][0]:
            raise RejectedError(
                "SIGNATURE", f"--group {each}: {text!r} is not a value of the type {type_.simpleString()} of this key"
            )
        groups = groups.where(sf.col(f"`{name.replace('`', '``')}`").eqNullSafe(value))
    return groups


def _lines(groups: DataFrame, keys: int, limit: int) -> list[str]:
    """Return the first rows in the order of their first columns, the keys, each as a JSON object."""
    from pyspark.sql import functions as sf

    columns = [sf.col(f"`{name.replace('`', '``')}`") for name in groups.columns]
    sorted_groups = groups.orderBy(*columns[:keys]) if keys else groups
    return [row[0] for row in sorted_groups.limit(limit).select(sf.to_json(sf.struct(*columns), _JSON)).collect()]


def _print(console: Console, table: StoredTable | None, groups: DataFrame, rows: Sequence[dict[str, Any]]) -> None:
    """Print groups of a table, or entries of a view if there is no table."""
    from pyspark.sql import types as st

    if rows:
        binary = {field.name for field in groups.schema if isinstance(field.dataType, st.BinaryType)}
        console.print(_entries_table(rows, binary) if table is None else _groups_table(table, rows, binary))


def _groups_table(table: StoredTable, rows: Sequence[dict[str, Any]], binary: set[str]) -> Table:
    """Return a table with a column for each key, the live rows, and a column for the state of each output."""
    view = Table(*(Column(Text(name)) for name in table.keys), Column(Text(table.row_count), justify="right"))
    for name, call in zip(table.outputs, table.calls, strict=True):
        view.add_column(Text.assemble((name, "bold"), "\n", (call, "dim")))
    for row in rows:
        keys = [Text("NULL", "dim") if row[name] is None else Text(_key(row[name]), "bold") for name in table.keys]
        states = [Text(state_as_text(row[name], is_binary=name in binary)) for name in table.outputs]
        view.add_row(*keys, f"{row[table.row_count]:,}", *states)
    return view


def _entries_table(rows: Sequence[dict[str, Any]], binary: set[str]) -> Table:
    """Return a table with a column for each key of the group, the key of the entry, and its value."""
    view = Table(*(Column(Text(name)) for name in rows[0]))
    for row in rows:
        *keys, _ = row
        texts = [Text("NULL", "dim") if row[name] is None else Text(_key(row[name]), "bold") for name in keys]
        view.add_row(*texts, *(Text(state_as_text(row[name], is_binary=name in binary)) for name in list(row)[-1:]))
    return view


def _key(value: Any) -> str:
    return value.replace(".000000", "") if isinstance(value, str) else state_as_text(value)


def state_as_text(state: Any, *, is_binary: bool = False) -> str:
    """Return a state as short text, such as `sum 12, count 3`. Long lists are shortened; for bytes it has their number.

    Args:
        state: The state, as parsed from JSON.
        is_binary: Whether it is a string of bytes in Base64.
    """
    if state is None:
        return "NULL"
    if is_binary:
        return f"{len(base64.b64decode(state)):,} bytes"
    if isinstance(state, dict):
        return _enclose([f"{name} {_member(value)}" for name, value in state.items()])
    if isinstance(state, list):
        return f"{len(state):,}: {_enclose([_member(value) for value in state])}" if state else "none"
    return json.dumps(state, ensure_ascii=False)


def _member(value: Any) -> str:
    text = state_as_text(value)
    return f"({text})" if isinstance(value, dict | list) and value else text


def _enclose(texts: Sequence[str]) -> str:
    return ", ".join([*texts[:_MEMBERS_MAX], *(["..."] if len(texts) > _MEMBERS_MAX else [])])


def _summary(table: StoredTable, figures: StateFigures, rows_text: str) -> Text:
    from foldflight.spark.state_reader import StoredWindowFrames

    logs = f"; waiting rows: {figures.waiting_rows:,}; rows in RANGE frames: {figures.framed_rows:,}"
    return Text.assemble(
        (rows_text, "bold"),
        f"  operator {table.operator}, batch {table.batch}: {figures.buckets:,} of {table.buckets:,} buckets "
        f"hold {figures.runs:,} runs of {figures.rows:,} rows, {decimal(figures.bytes)}",
        logs if isinstance(table, StoredWindowFrames) else "",
    )
