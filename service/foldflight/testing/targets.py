"""What a target of `write_table` must do, tried on a table with random epochs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from foldflight.engine.query.layout import ROW_KIND
from foldflight.engine.targets import DELETE, Target
from foldflight.testing.laws import LawResult

TARGET_COLUMNS: Final = pa.schema(
    [("name", pa.string()), ("number", pa.int64()), ("total", pa.int64()), ("note", pa.string())]
)
"""The columns of the table that `check_target` needs."""
TARGET_KEYS: Final = ("name", "number")
"""The columns that identify a row. Both may be NULL."""

_PART_ROWS: Final = 4
_CHANGES = pa.schema([pa.field(ROW_KIND, pa.string()), *TARGET_COLUMNS])
_Rows = dict[tuple[Any, ...], tuple[Any, ...]]


class _BrokenError(Exception):
    """Ends the changes of an epoch in the middle."""


def check_target(
    target: Callable[[], Target], rows: Callable[[], Sequence[dict[str, Any]]], *, seed: int = 0, epochs: int = 10
) -> list[LawResult]:
    """Check a target: every epoch reaches its table as a whole and once.

    Args:
        target: Returns a new target, as in a new process, for one table with `TARGET_COLUMNS` that is empty at first.
        rows: Returns the rows of the table.
        seed: Determines the epochs.
        epochs: How many epochs are applied for each law.

    Returns:
        The result of each law.

    >>> from foldflight.testing import TARGET_KEYS, check_target
    >>> class InMemory:
    ...     rows, epochs = {}, {}
    ...     def last_epoch(self, query):
    ...         return self.epochs.get(query)
    ...     def apply(self, query, epoch, changes):
    ...         rows = dict(self.rows)
    ...         for change in (row for part in changes for row in part.to_pylist()):
    ...             key = tuple(change[name] for name in TARGET_KEYS)
    ...             rows.pop(key, None)
    ...             if change.pop("row_kind") != "-D":
    ...                 rows[key] = change
    ...         if self.epochs.get(query, -1) < epoch:
    ...             InMemory.rows, InMemory.epochs = rows, {**self.epochs, query: epoch}
    >>> results = check_target(InMemory, lambda: list(InMemory.rows.values()))
    >>> [result.passed for result in results]
    [True, True, True, True, True, True]
    """
    trial = _Trial(target, rows, seed, epochs)
    laws: dict[str, Callable[[], str]] = {
        "an unknown query has no epoch": trial.try_unknown_query,
        "the table has the rows of all epochs": trial.try_each_epoch,
        "an epoch that is repeated changes nothing": trial.try_repeats,
        "an epoch without changes is stored": trial.try_empty_epochs,
        "an epoch that fails leaves no trace": trial.try_failed_epoch,
        "queries do not share epochs": trial.try_other_query,
    }
    results = []
    for name, law in laws.items():
        detail = law()
        results.append(LawResult(name, not detail, detail))
    return results


class _Trial:
    def __init__(
        self,
        target: Callable[[], Target],
        rows: Callable[[], Sequence[dict[str, Any]]],
        seed: int,
        epochs: int,
    ) -> None:
        self._target, self._rows, self._epochs = target, rows, epochs
        self._random = random.Random(seed)  # noqa: S311 - test data
        self._model: _Rows = {}
        self._next = 0

    def try_unknown_query(self) -> str:
        epoch = self._target().last_epoch("nobody")
        return "" if epoch is None else f"last_epoch of a query without epochs is {epoch}, not None"

    def try_each_epoch(self) -> str:
        for _ in range(self._epochs):
            if detail := self._apply("one"):
                return detail
        return ""

    def try_repeats(self) -> str:
        if detail := self._apply("one"):
            return detail
        for epoch in (self._next - 1, 0):
            self._target().apply("one", epoch, iter(_parts(self._changes())))
            if detail := self._difference("one", f"epoch {epoch} was applied again, with other rows"):
                return detail
        return ""

    def try_empty_epochs(self) -> str:
        nothing = [(DELETE, "nobody", 1, None, None)]
        return self._apply("one", []) or self._apply("one", nothing) or self._apply("one")

    def try_failed_epoch(self) -> str:
        def parts_with_error() -> Iterator[pa.Table]:
            yield _parts(self._changes())[0]
            raise _BrokenError

        try:
            self._target().apply("one", self._next, parts_with_error())
        except _BrokenError:
            detail = self._difference("one", f"the changes of epoch {self._next} ended with an exception")
            return detail or self._apply("one")
        return "apply hides the exception of its changes"

    def try_other_query(self) -> str:
        before = self._next
        self._next = 0
        detail = self._apply("another")
        self._next = before
        return detail or self._apply("one")

    def _apply(self, query: str, changes: list[tuple[Any, ...]] | None = None) -> str:
        """Apply one more epoch, by default a random one; return the differences to the expected table."""
        epoch = self._next
        changes = self._changes() if changes is None else changes
        self._target().apply(query, epoch, iter(_parts(changes)))
        for kind, *values in changes:
            key = tuple(values[:2])
            if kind == DELETE:
                self._model.pop(key, None)
            else:
                self._model[key] = tuple(values)
        self._next += 1
        return self._difference(query, f"epoch {epoch} of the query {query!r} was applied")

    def _changes(self) -> list[tuple[Any, ...]]:
        """Return random changes with at least two parts. Deletes concern keys that are there, and others."""
        choose = self._random
        keys = [(name, number) for name in ("a", "b", "tab\t\\N", None) for number in (1, 2, None)]
        changes: list[tuple[Any, ...]] = []
        for key in choose.sample(keys, choose.randint(_PART_ROWS + 1, len(keys))):
            if choose.random() < 0.3:
                changes.append((DELETE, *key, None, None))
            else:
                note = choose.choice([None, "", "x", 'quote " and \n line', "\\"])
                changes.append((choose.choice(["+I", "+U"]), *key, choose.choice([None, 0, -(2**62)]), note))
        return changes

    def _difference(self, query: str, what: str) -> str:
        """Return how the table and the last epoch differ from those expected."""
        stored_rows = sorted((tuple(row[name] for name in TARGET_COLUMNS.names) for row in self._rows()), key=repr)
        expected = sorted(self._model.values(), key=repr)
        if stored_rows != expected:
            return f"{what}; then the table has {stored_rows}, not {expected}"
        last = self._target().last_epoch(query)
        return "" if last == self._next - 1 else f"{what}; then last_epoch is {last}, not {self._next - 1}"


def _parts(changes: Sequence[tuple[Any, ...]]) -> list[pa.Table]:
    whole = pa.Table.from_pylist([dict(zip(_CHANGES.names, change, strict=True)) for change in changes], _CHANGES)
    return [whole.slice(start, _PART_ROWS) for start in range(0, whole.num_rows, _PART_ROWS)]
