"""States of several versions of functions beside each other, for readers that have no functions to migrate them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from foldflight.engine.state.manifest import TableLayout, calls_of, states_of


def with_older(layout: TableLayout, generations: Iterable[pa.Schema]) -> TableLayout:
    """Return a layout with additional columns for the states of other versions of each call."""
    states, names = list(layout.states), list(layout.names)
    known = set(_identities(layout.states))
    for schema in map(states_of, generations):
        for index, (field, identity) in enumerate(zip(schema, _identities(schema), strict=True)):
            if identity not in known:
                known.add(identity)
                states.append(field.with_name(f"{field.name}_{identity[1]}"))
                output, version = layout.names[len(layout.keys) + index], calls_of(schema)[index]["version"]
                name = f"{output} (version {version})"
                names.append(name if name not in names else f"{output} (version {version}, all rows)")
    return replace(layout, states=pa.schema(states), names=tuple(names))


def _identities(states: pa.Schema) -> list[tuple[int, str]]:
    """Return for each column the index of its call, which is part of its name, and the fingerprint."""
    indexes = [int(name.split("_")[1]) for name in states.names]
    return [(index, call["fingerprint"]) for index, call in zip(indexes, calls_of(states), strict=True)]


class CurrentViews:
    """Converts states of other versions to states that have only their views, for a reader of a view's entries.

    In states of older versions, the rows of DISTINCT are in the state itself rather than in a view. They are left out.

    Args:
        states: The stored states of the newest version.
    """

    def __init__(self, states: pa.Schema) -> None:
        self._states = states

    def check(self, stored: pa.Schema) -> None:
        """Accept the states of all versions."""

    def __call__(self, stored: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n states in the schema of the newest version."""
        given = dict(zip(stored.names, states.columns, strict=True))
        columns = [_as_type(given.get(field.name), field.type, states.num_rows) for field in self._states]
        return pa.RecordBatch.from_arrays(columns, schema=self._states)


def _as_type(states: pa.Array | None, type_: pa.DataType, count: int) -> pa.Array:
    """Return n states as states of a type, with NULL for what they do not have."""
    if states is None or states.type == type_:
        return pa.nulls(count, type_) if states is None else states
    if not pa.types.is_struct(type_) or not pa.types.is_struct(states.type):
        return pa.nulls(count, type_)
    members: dict[pa.Field, pa.Array] = dict(zip(states.type, states.flatten(), strict=True))
    columns = [members.get(field, pa.nulls(count, field.type)) for field in type_]
    return pa.StructArray.from_arrays(columns, fields=list(type_), mask=states.is_null())


class VersionColumns:
    """Puts the states of each version into the columns of `with_older`, as the conversion of a state table.

    Args:
        layout: The layout that `with_older` returns.
    """

    def __init__(self, layout: TableLayout) -> None:
        self._states = layout.states

    def check(self, stored: pa.Schema) -> None:
        """Take all."""

    def __call__(self, stored: pa.Schema, keys: pa.RecordBatch, states: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        """Return n states in the columns of all versions."""
        given = dict(zip(_identities(stored), states.columns, strict=True))
        columns = [
            given.get(identity, pa.nulls(states.num_rows, field.type))
            for field, identity in zip(self._states, _identities(self._states), strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._states)
