"""Entries of views as an engine keeps them, in memory: for tests, and as a model for authors of engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from foldflight.exchange.frames import Opened
from foldflight.exchange.view_columns import question_states
from foldflight.fold.aggregate.fold import Fold
from foldflight.functions.types.views import ViewSpec


@dataclass
class _Group:
    """One group: its states without entries, and its entries by call, view and key."""

    states: list[Any]
    entries: dict[tuple[int, str], dict[str, tuple[Any, Any]]] = field(default_factory=dict)


class CachedViews:
    """States and entries of groups, each named by its slot. It is the engine's side of `Open.keeps_views`.

    Args:
        open_reply: The calls, as a server or a fold has them.
        page: The number of entries in the answer to a question for all.
        inline: The number of entries up to which a view is sent with the state.

    Attributes:
        questions: The number of questions so far.
    """

    def __init__(self, open_reply: Opened | Fold, *, page: int = 3, inline: int = 0) -> None:
        self.questions = 0
        self._schema = open_reply.schema
        self._views = [call.views for call in open_reply.calls]
        self._page = page
        self._inline = inline
        self._groups: dict[int, _Group] = {}

    @property
    def slots(self) -> list[int]:
        """The slots that have a state, ascending."""
        return sorted(self._groups)

    def commit(self, results: pa.Table) -> None:
        """Take the states and changed entries of results, or of saved states, in the order of their rows."""
        seen_keys = set()
        for row in results.to_pylist():
            slot = row["slot"]
            states = [row[f"state_{call}"] for call in range(len(self._views))]
            group = self._groups.setdefault(slot, _Group([None] * len(states)))
            for call, (state, specs) in enumerate(zip(states, self._views, strict=True)):
                if state is None:
                    continue
                if slot not in seen_keys:
                    group.states[call] = self._scalars(call, state)
                for view in specs:
                    self._apply(group, call, view, state[view.name])
            seen_keys.add(slot)

    def _scalars(self, call: int, state: Any) -> Any:
        """Return a state in the form in which the server asks for entries."""
        column = pa.array([state], self._schema.field(f"state_{call}").type)
        return question_states(column, self._views[call]).to_pylist()[0]

    def _apply(self, group: _Group, call: int, view: ViewSpec, change: Mapping[str, Any]) -> None:
        stored_entries = group.entries.setdefault((call, view.name), {})
        if change["complete"] or change["cleared"]:
            stored_entries.clear()
        for entry in change["entries"]:
            if entry["present"]:
                stored_entries[repr(entry["key"])] = (entry["key"], entry["value"])
            else:
                stored_entries.pop(repr(entry["key"]), None)
        if view.is_list:
            marker = {"key": len(stored_entries), "value": None, "present": False}
            group.states[call][view.name] = {"complete": False, "cleared": False, "entries": [marker]}

    def entries(self, slot: int, call: int, view: str) -> list[tuple[Any, Any]]:
        """Return all entries of a view of a slot, in the order of the pages."""
        stored_entries = self._groups[slot].entries.get((call, view), {})
        is_list = next(spec.is_list for spec in self._views[call] if spec.name == view)
        return sorted(stored_entries.values()) if is_list else [stored_entries[name] for name in sorted(stored_entries)]

    def states(self, slots: Sequence[int]) -> pa.RecordBatch:
        """Return the states of n slots that have one, for the operation `states`."""
        columns = []
        for call, specs in enumerate(self._views):
            states = []
            for slot in slots:
                state = self._groups[slot].states[call]
                for view in specs if state is not None else ():
                    entries = self.entries(slot, call, view.name)
                    if len(entries) <= self._inline:
                        state = {**state, view.name: _view(entries, complete=True)}
                states.append(state)
            columns.append(states)
        return self._batch(slots, columns)

    def prefetch_entries(self, slot: int, call: int, view: str, keys: Sequence[Any]) -> pa.RecordBatch:
        """Return entries of one view, absent ones included, for the operation `entries`."""
        stored_entries = self._groups[slot].entries.get((call, view), {})
        return self._only(slot, call, view, _answers(stored_entries, keys))

    def resolve(self, question: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Answer a question of the server."""
        for row in question.to_pylist():
            for call, specs in enumerate(self._views):
                for view in specs if row[f"state_{call}"] is not None else ():
                    view_question = row[f"state_{call}"][view.name]
                    if view_question is not None:
                        self.questions += 1
                        yield self._only(
                            row["slot"], call, view.name, self._answer(row["slot"], call, view.name, view_question)
                        )

    def _answer(self, slot: int, call: int, view: str, view_question: Mapping[str, Any]) -> dict[str, Any]:
        keys = [entry["key"] for entry in view_question["entries"]]
        if not view_question["complete"]:
            return _answers(self._groups[slot].entries.get((call, view), {}), keys)
        entries = self.entries(slot, call, view)
        names = [repr(key) for key, _ in entries]
        start = names.index(repr(keys[0])) + 1 if keys else 0
        return _view(entries[start : start + self._page], complete=start + self._page >= len(entries))

    def _only(self, slot: int, call: int, view: str, value: Mapping[str, Any]) -> pa.RecordBatch:
        names = [f"state_{index}" for index in range(len(self._views))]
        states = [{view: value} if index == call else None for index in range(len(self._views))]
        types = [self._schema.field(name).type for name in names]
        columns = [pa.array([state], type_) for state, type_ in zip(states, types, strict=True)]
        indexes = [index for index, specs in enumerate(self._views) if specs]
        return pa.RecordBatch.from_arrays(
            [pa.array([slot], pa.int32()), *(columns[index] for index in indexes)],
            names=["slot", *(names[index] for index in indexes)],
        )

    def _batch(self, slots: Sequence[int], columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
        fields = [self._schema.field(f"state_{index}") for index in range(len(columns))]
        arrays = [pa.array(column, each.type) for column, each in zip(columns, fields, strict=True)]
        schema = pa.schema([self._schema.field("slot"), *fields])
        return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), *arrays], schema=schema)


def _view(entries: Sequence[tuple[Any, Any]], *, complete: bool) -> dict[str, Any]:
    rows = [{"key": key, "value": value, "present": True} for key, value in entries]
    return {"complete": complete, "cleared": False, "entries": rows}


def _answers(stored_entries: Mapping[str, tuple[Any, Any]], keys: Sequence[Any]) -> dict[str, Any]:
    rows = [
        {
            "key": key,
            "value": stored_entries[repr(key)][1] if repr(key) in stored_entries else None,
            "present": repr(key) in stored_entries,
        }
        for key in keys
    ]
    return {"complete": False, "cleared": False, "entries": rows}
