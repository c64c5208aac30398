"""Conversion of states of other function versions into states of the query, by the functions' `migrate`.

A separate exchange receives the old states with their version. The fold passes each to the function's `migrate`, and
the barrier returns the converted states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from foldflight.client.exchange import Transport
from foldflight.engine.keys.group_exchange import GroupedExchange
from foldflight.engine.query.blocks import BlockBounds, one_batch
from foldflight.engine.query.layout import SLOT, CallView, QueryLayout
from foldflight.engine.state.manifest import calls_of, other_query
from foldflight.engine.state.viewtable import one_row_each
from foldflight.errors import RejectedError
from foldflight.exchange.frames import Open, sliced_to
from foldflight.functions import sql_name


@dataclass(frozen=True)
class Migration:
    """Converts states of other versions. A state table calls it when it reads such states.

    Args:
        transport: The connection to the functions.
        open_request: The Open command, which requests only states.
        layout: The columns of the query.
        can_migrate: For each call, whether its function converts states of other versions.
        bounds: The limits of one exchange.
        views: The views of the calls. With views, the Open command must have `keeps_views`.
        adopted: For each call, a second fingerprint of the same version whose states it accepts; empty if none.
    """

    transport: Transport
    open_request: Open
    layout: QueryLayout
    can_migrate: tuple[bool, ...]
    bounds: BlockBounds
    views: tuple[CallView, ...] = ()
    adopted: tuple[str, ...] = ()

    def check(self, stored_schema: pa.Schema) -> None:
        """Refuse states that the query's calls cannot convert.

        Raises:
            RejectedError: STATE_MISMATCH, naming the function and both versions, or what has changed within one.
        """
        old, new = calls_of(stored_schema), calls_of(self.layout.states)
        if [call["function"] for call in old] != [call["function"] for call in new]:
            raise other_query("calls", *(", ".join(call["function"] for call in each) for each in (old, new)))
        for index, (before, now, can_migrate) in enumerate(zip(old, new, self.can_migrate, strict=True)):
            if before["fingerprint"] in (now["fingerprint"], *self.adopted[index : index + 1]):
                continue
            name = now["function"]
            has_views = any(view.call == index for view in self.views)
            if before["version"] == now["version"]:
                change = _change(stored_schema.field(index).type, self.layout.states.field(index).type)
                raise RejectedError("STATE_MISMATCH", _of_one_version(now, change, has_views=has_views), function=name)
            if not can_migrate:
                reason = (
                    "and states with views cannot be migrated;"
                    if has_views
                    else "which has no migrate; define migrate(self, version, state), which returns the accumulator "
                    f"for a state of version {before['version']},"
                )
                raise RejectedError(
                    "STATE_MISMATCH",
                    f"the checkpoint has states of {name} version {before['version']}, and the query has version "
                    f"{now['version']}, {reason} run the version that wrote them, or start with an empty checkpoint",
                    function=name,
                )

    def __call__(self, stored_schema: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:
        """Return n states, in the schema `stored_schema`, as n states of the query.

        Raises:
            FunctionError: USER_CODE, with the group, if a `migrate` raises.
            RejectedError: STATE_MISMATCH.
        """
        batch = pa.RecordBatch.from_arrays(states.columns, schema=stored_schema)
        converted_parts = []
        start = 0
        for rows in range(0, batch.num_rows, self.bounds.rows_max):
            for part in sliced_to(batch.slice(rows, self.bounds.rows_max), self.bounds.bytes_max):
                converted_parts.append(self._part(part, keys.slice(start, part.num_rows)))
                start += part.num_rows
        return one_batch(pa.Table.from_batches(converted_parts, schema=self.layout.states))

    def _part(self, states: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
        slots = pa.array(np.arange(states.num_rows, dtype=np.int32))
        schema = pa.schema([pa.field(SLOT, pa.int32()), *states.schema])
        with GroupedExchange(self.transport, self.open_request, self.layout) as grouped_exchange:
            grouped_exchange.begin(_StoredGroups(self.layout, keys))
            with grouped_exchange.use_exchange() as exchange:
                exchange.states(pa.RecordBatch.from_arrays([slots, *states.columns], schema=schema))
                exchange.barrier(1)
                results = exchange.results(1)
        return one_row_each(one_batch(results), self.views).select(self.layout.states.names)


@dataclass(frozen=True)
class _StoredGroups:
    """Names the groups of n states that are converted, for errors: slot i is the group of state i."""

    layout: QueryLayout
    keys: pa.RecordBatch

    def __len__(self) -> int:
        return self.keys.num_rows

    def name(self, slot: int) -> dict[str, Any]:
        return self.layout.group(self.keys.slice(slot, 1))


def _of_one_version(call: Mapping[str, str], change: str, *, has_views: bool) -> str:
    """Return the message for a call whose states have changed without a new version."""
    version_text = (
        " (states with views cannot be migrated),"
        if has_views
        else ", or raise version= in its declaration and define migrate(self, version, state), which returns the "
        f'accumulator for a state of version "{call["version"]}",'
    )
    return (
        f"the checkpoint has other states of {call['function']} than the query, both of version {call['version']}: "
        f"{change}; set this back{version_text} or start with an empty checkpoint"
    )


def _change(before: pa.DataType, now: pa.DataType) -> str:
    """Return what has changed between two types of states that have different fingerprints."""
    if pa.types.is_struct(before) and pa.types.is_struct(now):
        changes = list(_changed_fields(before, now))
        if changes:
            return f"in its accumulator, {', '.join(changes)}"
        if [field.name for field in before] != [field.name for field in now]:
            was, is_ = (", ".join(field.name for field in each) for each in (before, now))
            return f"the fields of its accumulator were in the order {was}, and are in the order {is_}"
    elif before != now:
        return f"its state was {sql_name(before)}, and is {sql_name(now)}"
    kind = "pickled or custom (bytes)" if pa.types.is_binary(now) else f"{sql_name(now)}, as before"
    return (
        f"its state is {kind}, so something else differs: the types of its arguments or of its result, its direct "
        "arguments, how it is written as bytes, or DISTINCT, ORDER BY or materialize"
    )


def _changed_fields(before: pa.DataType, now: pa.DataType) -> Iterator[str]:
    old, new = ({field.name: field.type for field in each} for each in (before, now))
    yield from (f"{name} {sql_name(new[name])} was added" for name in new if name not in old)
    yield from (f"{name} {sql_name(old[name])} was removed" for name in old if name not in new)
    for name in new:
        if name in old and old[name] != new[name]:
            yield f"{name} was {sql_name(old[name])} and is {sql_name(new[name])}"
