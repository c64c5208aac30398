"""Find the fewest rows and columns for which a function still raises: delta debugging of groups, rows, calls, columns.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002): the complements of ddmin. A
retraction is removed together with the row that it retracts, because engines only retract rows that they have sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, Entries, States
from foldflight.ext.recording.file import Pair, Recording, of_groups, slots_in
from foldflight.ext.recording.replay import fold_again
from foldflight.fold.failures import ERROR
from foldflight.functions import Registry, RowKind

_RUNS_MAX: Final = 2000  # replays of a search
# The index of a frame and of a row in it; row 0 stands for a whole barrier.
_Unit = tuple[int, int]


@dataclass(frozen=True)
class ShrinkResult:
    """The result of a search: a recording with only the calls, columns and frames that the failure needs."""

    recording: Recording
    unused_columns: tuple[str, ...]  # columns that may be NULL; a corrected class may need them
    error: FoldflightError  # the error of this recording
    runs: int  # number of replays
    is_minimal: bool  # whether every single row is needed; False if the search reached its limit


class _Trial:
    """Replays candidates, and compares their failure with the first one.

    Raises:
        RejectedError: SIGNATURE, if no function raises for the first one.
    """

    def __init__(self, recording: Recording, registry: Registry, state_keys: Sequence[bytes]) -> None:
        self.runs = 0
        self._fold = partial(fold_again, registry=registry, state_keys=state_keys, isolates=False)
        error = self._fold(recording).error
        if error is None:
            raise RejectedError(
                "SIGNATURE",
                "there is nothing to shrink and no error to test: no function raises for these rows. Without --shrink, "
                "answers that differ are shown, and --to-test writes the first of them",
            )
        self.error = error

    def error_of(self, recording: Recording) -> FoldflightError | None:
        """Return the error of a function; None if there is none, or if the frames are rejected."""
        self.runs += 1
        try:
            return self._fold(recording).error
        except RejectedError:
            return None

    def fails(self, recording: Recording) -> bool:
        """Return whether a recording still fails at the same line with the same class of exception."""
        error = self.error_of(recording)
        if error is None or _kind_of(error) != _kind_of(self.error):
            return False
        self.error = error
        return True

    def is_over(self) -> bool:
        """Return whether the search has reached its limit."""
        return self.runs >= _RUNS_MAX


def _kind_of(error: FoldflightError) -> tuple[str, str | None, str, str]:
    """Return what two errors of one mistake share: code, function, class of exception, and the line that raised.

    Without the line, rows that meet another mistake of the same class would take the place of the failing ones.
    """
    lines = (error.trace or "").splitlines()
    in_python = [line for line in lines if line.startswith('  File "')][-1:]  # the innermost line is the last one
    in_java = [line for line in lines if line.startswith("\tat ")][:1]  # and in Java the first one
    return error.code, error.function, error.message.partition(":")[0], "".join(in_python or in_java)


def shrink(recording: Recording, registry: Registry, *, state_keys: Sequence[bytes] = ()) -> ShrinkResult:
    """Return the fewest rows for which the function still raises.

    Raises:
        RejectedError: SIGNATURE, if no function raises.
    """
    trial = _Trial(recording, registry, state_keys)
    of_group = _of_one_group(trial, recording)
    partners = _partners(of_group.pairs)

    def build(units: Iterable[_Unit]) -> Recording:
        return replace(of_group, pairs=_build(of_group.pairs, units, partners))

    minimal = _minimal(_units_in(of_group.pairs), lambda units: trial.fails(build(units)), trial)
    smallest = _of_one_call(trial, build(minimal))
    trial.fails(smallest)  # stores the error of these rows
    return ShrinkResult(smallest, _unneeded_columns(trial, smallest), trial.error, trial.runs, not trial.is_over())


def _of_one_group(trial: _Trial, recording: Recording) -> Recording:
    """Return the recording with as few groups as possible: usually only the group of the error."""
    if recording.open_request.maps:
        return recording
    slots = sorted({slot for pair in recording.pairs for slot in slots_in(pair.frame)})
    if trial.error.slot in slots:
        alone = of_groups(recording, [trial.error.slot])
        if trial.fails(alone):
            return alone
    alone = of_groups(
        recording, _minimal(slots, lambda some_slots: trial.fails(of_groups(recording, some_slots)), trial)
    )
    return alone if trial.fails(alone) else recording  # the failure may not belong to a group


def _of_one_call(trial: _Trial, recording: Recording) -> Recording:
    """Return the recording with only one call and its columns, if that call fails alone."""
    pairs = recording.pairs
    if recording.open_request.maps or any(pair.questions or isinstance(pair.frame, Entries) for pair in pairs):
        return recording
    alone = (_of_call(recording, index) for index in range(len(recording.open_request.calls)))
    return next(filter(trial.fails, alone), recording)


def _of_call(recording: Recording, index: int) -> Recording:
    """Return the recording with one call, and the columns and states of that call."""
    open_request, call = recording.open_request, recording.open_request.calls[index]
    state = f"state_{index}"
    used_names = {"slot", "kind", ERROR, state, *call.columns, call.filter} | (
        {"emit"} if open_request.emits else set()
    )

    def without_other_calls(frame: EngineFrame) -> EngineFrame:
        if not isinstance(frame, (Chunk, States)):
            return frame
        batch = frame.batch.select([name for name in frame.batch.schema.names if name in used_names])
        if isinstance(frame, States):
            fields = [field.with_name("state_0") if field.name == state else field for field in batch.schema]
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))
        return replace(frame, batch=batch)

    columns = pa.schema([each for each in open_request.columns if each.name in used_names])
    return replace(
        recording,
        open_request=replace(open_request, calls=(call,), columns=columns),
        pairs=tuple(replace(pair, frame=without_other_calls(pair.frame)) for pair in recording.pairs),
    )


def _unneeded_columns(trial: _Trial, recording: Recording) -> tuple[str, ...]:
    """Return the columns that may be NULL together without changing the error's message or line."""
    unused_columns: list[str] = []
    has_rows = any(isinstance(pair.frame, Chunk) for pair in recording.pairs)
    for name in recording.open_request.columns.names if has_rows else ():  # states do not have the columns
        if name in ("slot", "kind") or (name == "emit" and recording.open_request.emits):
            continue
        error = trial.error_of(replace(recording, pairs=tuple(_with_nulls(recording.pairs, [*unused_columns, name]))))
        if error is not None and (error.message, error.trace) == (trial.error.message, trial.error.trace):
            unused_columns.append(name)
    return tuple(unused_columns)


def _with_nulls(pairs: Sequence[Pair], names: Sequence[str]) -> Iterator[Pair]:
    """Yield the pairs, with NULL in some columns of chunks."""
    for pair in pairs:
        if not isinstance(pair.frame, Chunk):
            yield pair
            continue
        batch = pair.frame.batch
        columns = [
            pa.nulls(batch.num_rows, each.type) if each.name in names else batch.column(each.name)
            for each in batch.schema
        ]
        yield replace(pair, frame=Chunk(pa.RecordBatch.from_arrays(columns, schema=batch.schema)))


def _units_in(pairs: Sequence[Pair]) -> list[_Unit]:
    units: list[_Unit] = []
    for index, pair in enumerate(pairs):
        if isinstance(pair.frame, (Chunk, States)):
            units += [(index, row) for row in range(pair.frame.batch.num_rows)]
        elif isinstance(pair.frame, Barrier):
            units.append((index, 0))
    return units


def _partners(pairs: Sequence[Pair]) -> dict[_Unit, _Unit]:
    """Return the row that each retraction retracts: the latest equal row of its group that is not retracted yet."""
    there: dict[str, list[_Unit]] = {}
    partners: dict[_Unit, _Unit] = {}
    for index, pair in enumerate(pairs):
        if not isinstance(pair.frame, Chunk) or "kind" not in pair.frame.batch.schema.names:
            continue
        batch = pair.frame.batch
        rows = batch.select([name for name in batch.schema.names if name != "kind"]).to_pylist()
        for number, (kind, row) in enumerate(zip(batch.column("kind").to_pylist(), rows, strict=True)):
            unit, text = (index, number), repr(row)
            if not RowKind(kind).retracts:
                there.setdefault(text, []).append(unit)
            elif there.get(text):
                partners[unit] = there[text].pop()
    return partners


def _build(pairs: Sequence[Pair], units: Iterable[_Unit], partners: dict[_Unit, _Unit]) -> tuple[Pair, ...]:
    """Return frames with the selected rows and barriers only. Epochs are renumbered."""
    unit_set = set(units)
    rows: dict[int, list[int]] = {}
    for index, row in sorted(unit_set):
        if partners.get((index, row), (index, row)) in unit_set:
            rows.setdefault(index, []).append(row)
    build: list[Pair] = []
    epoch: int | None = None
    for index, pair in enumerate(pairs):
        frame: EngineFrame = pair.frame
        if isinstance(frame, (Chunk, States, Barrier)) and index not in rows:
            continue
        if isinstance(frame, Barrier):
            epoch = frame.epoch if epoch is None else epoch + 1
            frame = Barrier(epoch)
        elif isinstance(frame, (Chunk, States)) and len(rows[index]) < frame.batch.num_rows:
            frame = replace(frame, batch=frame.batch.take(pa.array(np.array(rows[index], np.int64))))
        build.append(Pair(frame, [], pair.questions))
    return tuple(build)


def _minimal(items: Sequence[Any], fails: Callable[[Sequence[Any]], bool], trial: _Trial) -> list[Any]:
    """Return a subset of the items that still fails and in which every item is needed.

    It tries to remove pieces, halving their size each time, and in the end single items until none can be removed.
    """
    current, size, before = list(items), len(items), 0
    while (size > 1 or len(current) < before) and not trial.is_over():
        size, before, start = max(size // 2, 1), len(current), 0
        while start < len(current) and not trial.is_over():
            rest = current[:start] + current[start + size :]
            if rest and fails(rest):
                current = rest
            else:
                start += size
    return current
