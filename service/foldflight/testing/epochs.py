"""Run functions over literal epochs of rows, with the engine of this package but without Spark or a server."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.client import Aggregate
from foldflight.client.functions import Constant
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.layout import KIND, LIVE, REAL, QueryLayout
from foldflight.engine.query.query import Query, StreamOptions
from foldflight.engine.state.entries import ENTRY, VALUE
from foldflight.engine.state.manifest import Storage, TableBounds, TableLayout
from foldflight.engine.state.table import MemoryStore
from foldflight.engine.state.viewtable import ViewTable, table_of
from foldflight.engine.stream.epoch import BucketEpoch
from foldflight.errors import RejectedError
from foldflight.functions import Call, Order, RowKind, parse_type
from foldflight.functions.types.arrow import in_microseconds, to_pylist
from foldflight.functions.types.sql import sql_name
from foldflight.functions.types.values import has_nanoseconds
from foldflight.functions.types.views import normal_key

_UNFIT = (pa.ArrowException, OverflowError, ValueError, TypeError)

Row = Mapping[str, Any] | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch.

    Args:
        changelog: The changes of the output, as (row kind, row). Groups to which the epoch adds rows come first, each
            in the order of its first row.
        states: The states of the groups that exist at the barrier: by key values, then by name of the output. Structs
            and lists in keys are tuples. Views in states are dicts and lists of all their entries.
        live: The number of live rows of each of these groups, by key values.
        ignored_retractions: The number of retractions without a row: their group had none left, or it had none before
            the epoch and no equal row is accumulated in it. They changed nothing.

    >>> from foldflight import connect
    >>> from foldflight.testing import run_epochs
    >>> (epoch,) = run_epochs({"n": connect("embedded:")["count"]()}, [[{"k": "a"}, {"k": "a"}]], keys=["k"])
    >>> epoch.changelog, epoch.live
    ([('+I', {'k': 'a', 'n': 2})], {('a',): 2})
    """

    changelog: list[tuple[str, dict[str, Any]]]
    states: dict[tuple[Any, ...], dict[str, Any]]
    live: dict[tuple[Any, ...], int]
    ignored_retractions: int = 0


class _Stream:
    """A stream with one bucket and a state table in memory."""

    def __init__(
        self,
        exchange: GroupedExchange,
        query: Query,
        *,
        update_before: bool,
        strict: bool,
        bounds: TableBounds | None,
    ) -> None:
        self._exchange = exchange
        self._layout = query.layout
        self._update_before = update_before
        self._is_strict = strict
        self._has_keys = len(query.layout.keys) > 0
        table = TableLayout(keys=query.layout.keys, states=query.layout.states, emitted=query.layout.emitted)
        self._table = table_of(table, query.views, Storage(MemoryStore(), bounds=bounds or TableBounds()))

    def epoch(self, rows: pa.RecordBatch) -> Epoch:
        """Run one epoch of rows in the schema of the layout."""
        epoch = BucketEpoch(
            self._exchange,
            self._layout,
            self._table,
            is_strict=self._is_strict,
            update_before=self._update_before,
            is_always_there=True,
        )
        kinds, changes = epoch.run(iter([rows]))
        values = pa.RecordBatch.from_arrays(changes.columns, names=self._layout.results.names)
        kind_names = [RowKind(kind).short for kind in kinds.to_pylist()]
        states, live = self._readable()
        return Epoch(
            changelog=list(zip(kind_names, to_pylist(values), strict=True)),
            states=states,
            live=live,
            ignored_retractions=epoch.stats.ignored_retractions,
        )

    def _readable(self) -> tuple[dict[tuple[Any, ...], dict[str, Any]], dict[tuple[Any, ...], int]]:
        """Return the states and the numbers of live rows of all groups."""
        states: dict[tuple[Any, ...], dict[str, Any]] = {}
        live: dict[tuple[Any, ...], int] = {}
        for batch in map(in_microseconds, self._table.scan(lambda rows: np.ones(rows.num_rows, np.bool_))):
            keys = batch.select(self._layout.keys.names).to_pylist() if self._has_keys else [{}] * batch.num_rows
            columns = [batch.column(name).to_pylist() for name in self._layout.states.names]
            for index, (row, rows) in enumerate(zip(keys, batch.column(LIVE).to_pylist(), strict=True)):
                key = _hashable(row)
                states[key] = dict(zip(self._layout.outputs.names, (column[index] for column in columns), strict=True))
                # Without keys the only group always exists, because one row more than it has is counted.
                live[key] = rows if self._has_keys else rows - 1
        if isinstance(self._table, ViewTable):
            self._show_views(self._table, states)
        return states, live

    def _show_views(self, table: ViewTable, states: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        """Replace the views of states by all their entries: dicts, and lists."""
        outputs = self._layout.outputs.names
        for index, view in enumerate(table.views):
            entries_of: dict[tuple[Any, ...], dict[Any, Any]] = {key: {} for key in states}
            for batch in map(in_microseconds, table.all_entries(index)):
                keys = batch.select(self._layout.keys.names).to_pylist() if self._has_keys else [{}] * batch.num_rows
                pairs = [batch.column(name).to_pylist() for name in (ENTRY, VALUE)]
                for row, entry, value in zip(keys, *pairs, strict=True):
                    entries_of[_hashable(row)][_hashable(entry)] = value
            for key, entries in entries_of.items():
                values = [entries[item] for item in sorted(entries)] if view.spec.is_list else entries
                states[key][outputs[view.call]] = {**states[key][outputs[view.call]], view.spec.name: values}


def run_epochs(
    aggregates: Mapping[str, Aggregate],
    epochs: Iterable[Iterable[Row]],
    *,
    keys: Sequence[str] = (),
    types: Mapping[str, str | pa.DataType] | None = None,
    update_before: bool = True,
    strict: bool = False,
    bounds: TableBounds | None = None,
) -> list[Epoch]:
    """Run calls over epochs of keyed rows, and return the result of each epoch.

    Embedded functions are pickled by value and unpickled, as in Spark's workers. So changes that they make to variables
    of their modules are not visible in this process.

    Args:
        aggregates: The calls by output name, all from one `connect`. Their columns and conditions are names of columns;
            a column may also be a constant, `60` or `"'a text'"`, and a condition a Python function of the row.
        epochs: The rows of each epoch. A mapping of column to value is an insert; `("-D", mapping)` has another kind.
        keys: The grouping columns. Without any there is one group, which always exists.
        types: Types of columns. Default: the types that the functions declare, or the types of the values.
        update_before: Whether the changelog has `-U old` before `+U new`.
        strict: Whether a retraction of a row that is not there is an error, instead of being counted.
        bounds: The limits of stored pieces, inline views and merges.

    Returns:
        One `Epoch` for each epoch.

    Raises:
        FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with function, group and row.
        RejectedError: SCHEMA_MISMATCH for calls that do not fit the rows, CANNOT_RETRACT for retractions with an
            append-only function or, if `strict`, without a row, SIGNATURE for functions that refer to something that
            cannot be pickled.

    >>> from foldflight import connect
    >>> from foldflight.testing import run_epochs
    >>> functions = connect("embedded:")
    >>> first, second = run_epochs(
    ...     {"n": functions["count"](), "total": functions["sum"]("amount")},
    ...     keys=["customer"],
    ...     epochs=[
    ...         [{"customer": "ann", "amount": 3}, {"customer": "bob", "amount": 4}],
    ...         [("-D", {"customer": "bob", "amount": 4}), ("+I", {"customer": "ann", "amount": 5})],
    ...     ],
    ... )
    >>> first.changelog
    [('+I', {'customer': 'ann', 'n': 1, 'total': 3}), ('+I', {'customer': 'bob', 'n': 1, 'total': 4})]
    >>> for change in second.changelog:
    ...     print(change)
    ('-U', {'customer': 'ann', 'n': 1, 'total': 3})
    ('+U', {'customer': 'ann', 'n': 2, 'total': 8})
    ('-D', {'customer': 'bob', 'n': 1, 'total': 4})
    >>> second.states[("ann",)]["n"]
    2
    """
    parsed_rows = [[_row(row) for row in epoch] for epoch in epochs]
    check_calls(aggregates, keys=keys)
    for name, aggregate in aggregates.items():
        if aggregate.frame is not None:
            raise RejectedError("SIGNATURE", f"{name} has the frame {aggregate.frame}; use run_over, or leave it out")
    rows = [row for epoch in parsed_rows for _, row in epoch]
    add_constants(aggregates, rows)
    add_conditions(aggregates, rows)
    doubles = [name for name in aggregates if name in keys]
    if doubles:
        raise RejectedError("SIGNATURE", f"{doubles[0]!r} is a key and an output; give the output another name")
    calls, names = calls_of(aggregates)
    columns = types_of([*keys, *names], rows, aggregates, types or {})
    layout = QueryLayout(
        keys=pa.schema([(f"key_{index}", columns[name]) for index, name in enumerate(keys)]),
        names=tuple(keys),
        columns=pa.schema([(f"column_{index}", columns[name]) for index, name in enumerate(names)]),
        display_names=tuple(map(name_in_chunks, names)),
        has_kinds=any(kind.retracts for epoch in parsed_rows for kind, _ in epoch),
    )
    # Functions arrive pickled in Spark's workers.
    transport = pickle.loads(pickle.dumps(next(iter(aggregates.values())).transport))  # noqa: S301 - made here
    query = Query.of(transport, calls, layout, stream=StreamOptions(emit="changelog"))
    open_request = query.opening_for(states=True, outputs=True, initial_outputs=True, keeps_views=True)
    with GroupedExchange(query.transport, open_request, query.layout) as exchange:
        stream = _Stream(exchange, query, update_before=update_before, strict=strict, bounds=bounds)
        return [stream.epoch(_block(query.layout, [*keys, *names], epoch)) for epoch in parsed_rows]


def _hashable(key: Any) -> Any:
    """Return a key with tuples in the place of structs (dicts), lists and maps; NaN is always the same object."""
    if isinstance(key, (dict, list, tuple)):
        return tuple(map(_hashable, key.values() if isinstance(key, dict) else key))
    return normal_key(key)


def _kind_of(column: str, rows: Sequence[Mapping[str, Any]]) -> pa.DataType:
    """Return the type of a column of datetimes with a zone, or of lists of them; the null type for others."""
    first = next((row[column] for row in rows if row.get(column) is not None), None)
    depth = 0
    while isinstance(first, (list, tuple)) and first:
        first, depth = first[0], depth + 1
    if not isinstance(first, datetime) or first.tzinfo is None:
        return pa.null()
    type_: pa.DataType = pa.timestamp("us", tz="UTC")
    for _ in range(depth):
        type_ = pa.list_(type_)
    return type_


def column_of(name: str, values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return the values of a column. Raises RejectedError SCHEMA_MISMATCH for datetimes with and without a zone."""
    if pa.types.is_timestamp(type_):
        zoned_values = [each for each in values if isinstance(each, datetime) and each.tzinfo is not None]
        naive = [each for each in values if isinstance(each, datetime) and each.tzinfo is None]
        if zoned_values and (naive or type_.tz is None):
            other = f"{naive[0]!r} has none" if naive else f"the function takes {sql_name(type_)}"
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the value {zoned_values[0]!r} of {name} has a time zone, and {other}; give values of one kind",
            )
    try:
        array = pa.array(values, type_)
    except _UNFIT as error:
        raise _misfit(name, values, type_, error) from None
    if pa.types.is_integer(type_) or pa.types.is_date(type_):  # Arrow cuts off a fraction, and the time of a day
        _refuse_cut(name, values, type_)
    for index, value in enumerate(values):
        if _has_nanoseconds(value, array[index : index + 1]):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"the value {value!r:.100} of {name}, in row {index + 1} of its epoch, has nanoseconds, and Python's "
                "types have microseconds; round it",
            )
    return array


def _has_nanoseconds(value: Any, array: pa.Array) -> bool:
    """Return whether a value, or the same one in Arrow, has a time that is not one of Python."""
    if has_nanoseconds(value):
        return True
    try:
        in_microseconds(array)
    except ValueError:
        return True
    return False


def _refuse_cut(name: str, values: list[Any], type_: pa.DataType) -> None:
    for index, value in enumerate(values):
        has_fraction = isinstance(value, (float, np.floating)) and not float(value).is_integer()
        if has_fraction or (pa.types.is_date(type_) and type(value) is not date and isinstance(value, datetime)):
            raise _no_value_of(name, index, value, type_)


def _deduce(name: str, values: list[Any]) -> pa.DataType:
    """Return the type of a column by its values."""
    try:
        return pa.array(values).type
    except _UNFIT as error:
        for index, value in enumerate(values):
            _refuse_untyped(name, index, value)
        first = next(value for value in values if value is not None)
        raise _misfit(name, values, pa.array([first]).type, error) from None


def _refuse_untyped(name: str, index: int, value: Any) -> None:
    try:
        pa.array([value])
    except _UNFIT:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"the value {value!r:.100} of {name}, in row {index + 1} of all rows, does not tell its type; give "
            "the column a type with types={...}, such as DECIMAL(38, 0) for large integers",
        ) from None


def _misfit(name: str, values: list[Any], type_: pa.DataType, error: Exception) -> RejectedError:
    """Return an error that names the first value of a column that does not fit."""
    for index, value in enumerate(values):
        try:
            pa.array([value], type_)
        except _UNFIT:
            return _no_value_of(name, index, value, type_)
    return RejectedError("SCHEMA_MISMATCH", f"the values of {name} do not fit {sql_name(type_)}: {error}")


def _no_value_of(name: str, index: int, value: Any, type_: pa.DataType) -> RejectedError:
    return RejectedError(
        "SCHEMA_MISMATCH",
        f"the value {value!r:.100} of {name}, in row {index + 1} of its epoch, is no {sql_name(type_)}; "
        "correct the value, or give the column another type with types={...}",
    )


def _block(
    layout: QueryLayout, names: Sequence[str], rows: Sequence[tuple[RowKind, Mapping[str, Any]]]
) -> pa.RecordBatch:
    """Return the rows of an epoch in the schema of a layout. `names` are the columns of the rows, in its order."""
    fields = [*layout.keys, *layout.columns]
    columns = {
        field.name: column_of(name, [row[name] for _, row in rows], field.type)
        for name, field in zip(names, fields, strict=True)
    }
    columns[KIND] = pa.array([int(kind) for kind, _ in rows], pa.int8())
    columns[REAL] = pa.array([True] * len(rows), pa.bool_())
    return pa.RecordBatch.from_arrays([columns[name] for name in layout.rows.names], schema=layout.rows)


def _row(row: Row) -> tuple[RowKind, dict[str, Any]]:
    if isinstance(row, tuple) and len(row) == 2:
        kind, values = row
        return RowKind.parse(kind), values_of(values)
    return RowKind.INSERT, values_of(row)


def values_of(row: object) -> dict[str, Any]:
    """Return the values of a row by column. Raises RejectedError SCHEMA_MISMATCH for any other value than a mapping."""
    if not isinstance(row, Mapping):
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the row {row!r:.100} is no dict; give each row as a dict of its columns: {{'v': 1}}"
        )
    return dict(row)


def check_calls(aggregates: Mapping[str, Aggregate], **names: Sequence[str]) -> None:
    """Raise RejectedError SIGNATURE unless there are calls by name, and names of columns are in lists."""
    if not isinstance(aggregates, Mapping) or not aggregates:
        raise RejectedError(
            "SIGNATURE",
            "there is nothing to aggregate; give a dict with at least one call: {'n': functions['count']()}",
        )
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise RejectedError(
                "SIGNATURE",
                f"{name!r} is {aggregate!r:.80}, which is no call of an aggregate function; call one with the names of "
                "its columns: functions['sum']('amount')",
            )
    for what, name_list in names.items():
        if isinstance(name_list, str):
            raise RejectedError("SIGNATURE", f"{what} is the text {name_list!r}; give a list of names: [{name_list!r}]")


def add_conditions(aggregates: Mapping[str, Aggregate], rows: Sequence[dict[str, Any]]) -> None:
    """Evaluate the conditions that are Python functions, and put them into rows as columns."""
    for name, aggregate in aggregates.items():
        condition = aggregate.condition
        if callable(condition):
            for row in rows:
                holds = condition(row)
                row[_condition_column(name, condition)] = None if holds is None else bool(holds)


# A text in SQL. Quotes and backslashes in it would have to be read as Spark does.
_QUOTED: Final = re.compile(r"'([^'\\]*)'")


def add_constants(aggregates: Mapping[str, Aggregate], rows: Sequence[dict[str, Any]]) -> None:
    """Put the constants among the arguments, as `60` and `"'a text'"`, into rows as columns."""
    for column in (column for aggregate in aggregates.values() for column in aggregate.columns):
        quoted_match = _QUOTED.fullmatch(column) if isinstance(column, str) else None
        if isinstance(column, Constant) or quoted_match:
            value = column.value if isinstance(column, Constant) else quoted_match and quoted_match[1]
            for row in rows:
                row[str(column)] = value


def _condition_column(output: str, condition: object) -> str:
    return f"condition of {output}" if callable(condition) else str(condition)


def name_in_chunks(column: str) -> str:
    """Return the name of a column in chunks. The names `slot` and `kind` are taken there."""
    return f"column {column}" if column in ("slot", "kind") else column


def calls_of(aggregates: Mapping[str, Aggregate]) -> tuple[dict[str, Call], list[str]]:
    """Return the calls by output name, and the names of the columns that they use, each once."""
    calls: dict[str, Call] = {}
    names: list[str] = []
    for name, aggregate in aggregates.items():
        columns = tuple(str(column) for column in aggregate.columns)
        keys = [str(key.column) for key in aggregate.order]
        condition = None if aggregate.condition is None else _condition_column(name, aggregate.condition)
        calls[name] = Call(
            aggregate.function.name,
            tuple(map(name_in_chunks, columns)),
            filter=None if condition is None else name_in_chunks(condition),
            distinct=aggregate.is_distinct,
            literals=aggregate.literals,
            order=tuple(
                Order(name_in_chunks(str(key.column)), key.descending, key.nulls_first) for key in aggregate.order
            ),
        )
        names += [*columns, *keys, *([] if condition is None else [condition])]
    return calls, list(dict.fromkeys(names))


def types_of(
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    aggregates: Mapping[str, Aggregate],
    types: Mapping[str, str | pa.DataType],
) -> dict[str, pa.DataType]:
    """Return the types of columns: the given ones, the functions' declared ones, or the types of the values.

    Raises:
        RejectedError: SCHEMA_MISMATCH, if a row lacks a column.
    """
    declared_types: dict[str, pa.DataType] = {}
    for output, aggregate in aggregates.items():
        info = aggregate.function.for_types([_kind_of(str(column), rows) for column in aggregate.columns])
        for column, type_ in zip(aggregate.columns, info.input_types or (), strict=False):
            declared_types.setdefault(str(column), parse_type(type_))
        if aggregate.condition is not None:
            declared_types[_condition_column(output, aggregate.condition)] = pa.bool_()
    types_by_name = {}
    for name in names:
        if any(name not in row for row in rows):
            there = ", ".join(dict.fromkeys(str(column) for row in rows for column in row))
            raise RejectedError(
                "SCHEMA_MISMATCH",
                f"a row has no column {name!r}, which a call or a key names; rows have {there}. "
                "Give every row all columns",
            )
        if name in types:
            types_by_name[name] = parse_type(types[name])
        else:
            types_by_name[name] = declared_types.get(name) or _deduce(name, [row[name] for row in rows])
    return types_by_name
