"""States of several versions of functions beside each other, for readers that have no functions to migrate them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from foldflight.engine.state.manifest import TableLayout, calls_of

__all__ = ["VersionColumns", "with_older"]


def with_older(layout: TableLayout, generations: Iterable[pa.Schema]) -> TableLayout:
    """Return a layout with additional columns for the states of other versions of each call."""
    states, names = list(layout.states), list(layout.names)
    known = set(_identities(layout.states))
    for schema in generations:
        for place, (field, identity) in enumerate(zip(schema, _identities(schema), strict=True)):
            if identity not in known:
                known.add(identity)
                states.append(field.with_name(f"{field.name}_{identity[1]}"))
                version = calls_of(schema)[place]["version"]
                names.append(f"{layout.names[len(layout.keys) + place]} (version {version})")
    return replace(layout, states=pa.schema(states), names=tuple(names))


def _identities(states: pa.Schema) -> list[tuple[int, str]]:
    """Return for each column the position of its call, which is part of its name, and the fingerprint."""
    places = [int(name.split("_")[1]) for name in states.names]
    return [(place, call["fingerprint"]) for place, call in zip(places, calls_of(states), strict=True)]


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
