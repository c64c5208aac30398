"""Run functions over literal epochs of rows, as an engine would, without Spark and without a server.

>>> from foldflight import connect
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

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.client import Aggregate, Transport
from foldflight.engine.changelog import changelog, live_rows
from foldflight.engine.keys import KeyIndex
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import Open, Returns
from foldflight.functions import Call, RowKind, parse_type

__all__ = ["Epoch", "Row", "run_epochs"]

Row = Mapping[str, Any] | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Epoch:
    """What one epoch gave.

    Args:
        changelog: The changes of the output, as (row kind, row); groups in order of first appearance.
        states: The states of the groups that are there at the barrier: key values to output name to state.
        live: The number of live rows of each of them.
        ignored_retractions: How many rows took back what was never there; they changed nothing.
    """

    changelog: list[tuple[str, dict[str, Any]]]
    states: dict[tuple[Any, ...], dict[str, Any]]
    live: dict[tuple[Any, ...], int]
    ignored_retractions: int = 0


@dataclass
class _Engine:
    """An engine in small: it owns keys, live counts, states and outputs, and opens one exchange for each epoch."""

    transport: Transport
    aggregates: Mapping[str, Aggregate]
    keys: Sequence[str]
    columns: Sequence[str]  # what the calls read, in the order of the chunks
    open: Open
    key_schema: pa.Schema
    update_before: bool
    index: KeyIndex | None = None
    live: np.ndarray[Any, np.dtype[np.int64]] = field(init=False)
    states: dict[int, pa.RecordBatch] = field(default_factory=dict)
    outputs: dict[int, pa.RecordBatch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index = KeyIndex(self.key_schema) if self.keys else None
        self.live = np.zeros(0, np.int64)

    def epoch(self, number: int, kinds: Sequence[RowKind], rows: pa.RecordBatch) -> Epoch:
        slots = self._slots(rows, len(kinds))
        retracts = np.array([kind.retracts for kind in kinds], np.bool_)
        self.live = np.concatenate([self.live, np.zeros(self._groups() - len(self.live), np.int64)])
        # As in Spark, where the rows of an epoch have no order: what it adds is there before anything is taken back.
        inserts_first = np.argsort(retracts, kind="stable")
        counted, self.live = live_rows(slots[inserts_first], retracts[inserts_first], self.live)
        chunk = self._chunk(slots, kinds, rows).take(pa.array(inserts_first)).filter(pa.array(counted))
        results = self._exchange(number, chunk)
        touched = results.column("slot").to_numpy() if results.num_rows else np.zeros(0, np.int32)
        kinds_out, changed = self._changes(touched, results)
        for place, slot in enumerate(touched.tolist()):
            if self._exists(slot):
                self.states[slot] = results.slice(place, 1)
            else:
                self.states.pop(slot, None)
        named = [RowKind(kind).short for kind in kinds_out.to_pylist()]
        return Epoch(
            changelog=list(zip(named, changed.to_pylist(maps_as_pydicts="strict"), strict=True)),
            states=self._readable_states(),
            live={self._key(slot): int(self.live[slot]) for slot in self.states},
            ignored_retractions=int((~counted).sum()),
        )

    def _groups(self) -> int:
        return 1 if self.index is None else len(self.index)

    def _slots(self, rows: pa.RecordBatch, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        if self.index is None:
            # A batch without columns, which a query without keys and arguments has, does not know its rows.
            return np.zeros(count, np.int32)
        return self.index.slots([rows.column(name) for name in self.keys]).to_numpy(zero_copy_only=False)

    def _exists(self, slot: int) -> bool:
        # Without keys there is one group, and it is always there.
        return not self.keys or bool(self.live[slot] > 0)

    def _chunk(self, slots: Any, kinds: Sequence[RowKind], rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [pa.array(slots, pa.int32()), pa.array([int(kind) for kind in kinds], pa.int8())]
        columns += [rows.column(name) for name in self.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.open.columns)

    def _exchange(self, number: int, chunk: pa.RecordBatch) -> pa.RecordBatch:
        with self.transport.open(self.open) as exchange:
            schema = exchange.opened.schema
            if not self.keys and number == 1 and not chunk.num_rows:
                exchange.states(_empty(schema))
                return exchange.initial_outputs()
            touched = sorted(set(chunk.column("slot").to_pylist()) & self.states.keys())
            if touched:
                exchange.states(_one(pa.Table.from_batches([self.states[slot] for slot in touched])))
            if chunk.num_rows:
                try:
                    exchange.chunk(chunk)
                    exchange.barrier(number)
                    return _one(exchange.results(number))
                except FunctionError as error:
                    if error.slot is None:
                        raise
                    names = dict(zip(self.keys, self._key(error.slot), strict=True))
                    raise error.with_group(names) from None
            return _empty(schema)

    def _changes(self, touched: Any, results: pa.RecordBatch) -> tuple[pa.Array, pa.RecordBatch]:
        after = self._output_rows(touched, results)
        existed = np.array([slot in self.outputs for slot in touched.tolist()], np.bool_)
        exists = np.array([self._exists(slot) for slot in touched.tolist()], np.bool_)
        before = [
            self.outputs[slot] if slot in self.outputs else after.slice(place, 1)
            for place, slot in enumerate(touched.tolist())
        ]
        old = _one(pa.Table.from_batches(before, schema=after.schema))
        for place, slot in enumerate(touched.tolist()):
            if exists[place]:
                self.outputs[slot] = after.slice(place, 1)
            else:
                self.outputs.pop(slot, None)
        return changelog(old, after, existed, exists, update_before=self.update_before)

    def _output_rows(self, touched: Any, results: pa.RecordBatch) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        if self.index is not None:
            columns += self.index.keys(pa.array(touched, pa.int32())).columns
        columns += [results.column(f"output_{place}") for place in range(len(self.aggregates))]
        return pa.RecordBatch.from_arrays(columns, names=[*self.keys, *self.aggregates])

    def _key(self, slot: int) -> tuple[Any, ...]:
        if self.index is None:
            return ()
        return tuple(self.index.keys(pa.array([slot], pa.int32())).to_pylist()[0].values())

    def _readable_states(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        return {
            self._key(slot): {
                name: batch.column(f"state_{place}")[0].as_py() for place, name in enumerate(self.aggregates)
            }
            for slot, batch in self.states.items()
        }


def run_epochs(
    aggregates: Mapping[str, Aggregate],
    epochs: Iterable[Iterable[Row]],
    *,
    keys: Sequence[str] = (),
    types: Mapping[str, str | pa.DataType] | None = None,
    update_before: bool = True,
) -> list[Epoch]:
    """Run calls over epochs of keyed rows and return what each epoch gives.

    Embedded functions run as in Spark's workers: pickled by value and read again, so what they do to variables of their
    modules does not show in this process.

    Args:
        aggregates: The calls by output name, all from one `connect`; their columns and conditions are names of columns
            (a condition may also be a Python function of the row).
        epochs: The rows of each epoch: a mapping of column to value is an insert, `("-D", mapping)` has another kind.
        keys: The grouping columns; without any there is one group, and it is always there.
        types: Types of columns, where the values do not say them. Default: what the functions declare, or the values.
        update_before: Whether the changelog has `-U old` before `+U new`.

    Raises:
        FunctionError: With function, group and row.
        RejectedError: For calls that do not fit the rows, retractions for append-only functions, and functions that
            refer to something that cannot be pickled.
    """
    parsed = [[_row(row) for row in epoch] for epoch in epochs]
    if not aggregates:
        raise RejectedError("SIGNATURE", "there is nothing to aggregate; give at least one call")
    conditions = _conditions(aggregates)
    for name, condition in conditions.items():
        for epoch in parsed:
            for _, row in epoch:
                row[name] = None if condition(row) is None else bool(condition(row))
    doubles = [name for name in aggregates if name in keys]
    if doubles:
        raise RejectedError("SIGNATURE", f"{doubles[0]!r} is a key and an output; give the output another name")
    calls, names = _calls(aggregates)
    columns = _columns([*keys, *names], [row for epoch in parsed for _, row in epoch], aggregates, types or {})
    schema = [(_in_chunks(name), columns[name]) for name in names]
    engine = _Engine(
        # Functions are folded as in Spark's workers, where they arrive pickled.
        transport=pickle.loads(pickle.dumps(next(iter(aggregates.values())).transport)),  # noqa: S301 - made here
        aggregates=aggregates,
        keys=keys,
        columns=names,
        open=Open(
            calls=calls,
            columns=pa.schema([("slot", pa.int32()), ("kind", pa.int8()), *schema]),
            returns=Returns(states=True, outputs=True),
            initial_outputs=not keys,
        ),
        key_schema=pa.schema([(name, columns[name]) for name in keys]),
        update_before=update_before,
    )
    everything = pa.schema([(name, columns[name]) for name in dict.fromkeys([*keys, *names])])
    return [
        engine.epoch(
            number,
            [kind for kind, _ in epoch],
            pa.RecordBatch.from_pylist([row for _, row in epoch], schema=everything),
        )
        for number, epoch in enumerate(parsed, 1)
    ]


def _row(row: Row) -> tuple[RowKind, dict[str, Any]]:
    if isinstance(row, tuple):
        kind, values = row
        return RowKind.parse(kind), dict(values)
    return RowKind.INSERT, dict(row)


def _conditions(aggregates: Mapping[str, Aggregate]) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    return {
        _condition_column(name, aggregate.condition): aggregate.condition
        for name, aggregate in aggregates.items()
        if callable(aggregate.condition)
    }


def _condition_column(output: str, condition: object) -> str:
    return f"condition of {output}" if callable(condition) else str(condition)


def _in_chunks(column: str) -> str:
    """Return the name of a column in the chunks of the exchange, which have two columns of their own."""
    return f"column {column}" if column in ("slot", "kind") else column


def _calls(aggregates: Mapping[str, Aggregate]) -> tuple[tuple[Call, ...], list[str]]:
    calls, names = [], []
    for name, aggregate in aggregates.items():
        columns = tuple(str(column) for column in aggregate.columns)
        condition = None if aggregate.condition is None else _condition_column(name, aggregate.condition)
        calls.append(
            Call(
                aggregate.function.name,
                tuple(map(_in_chunks, columns)),
                filter=None if condition is None else _in_chunks(condition),
                distinct=aggregate.is_distinct,
                literals=aggregate.literals,
            )
        )
        names += [*columns, *([] if condition is None else [condition])]
    return tuple(calls), list(dict.fromkeys(names))


def _columns(
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    aggregates: Mapping[str, Aggregate],
    types: Mapping[str, str | pa.DataType],
) -> dict[str, pa.DataType]:
    declared: dict[str, pa.DataType] = {}
    for output, aggregate in aggregates.items():
        for column, type_ in zip(aggregate.columns, aggregate.function.input_types or (), strict=False):
            declared.setdefault(str(column), parse_type(type_))
        if aggregate.condition is not None:
            declared[_condition_column(output, aggregate.condition)] = pa.bool_()
    found = {}
    for name in names:
        if any(name not in row for row in rows):
            raise RejectedError("SCHEMA_MISMATCH", f"a row has no column {name!r}; give every row all columns")
        if name in types:
            found[name] = parse_type(types[name])
        else:
            found[name] = declared.get(name) or pa.array([row[name] for row in rows]).type
    return found


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else _empty(table.schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
