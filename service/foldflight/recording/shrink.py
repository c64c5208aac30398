"""The fewest rows of a recording for which a function still raises: delta debugging over groups, then over rows.

Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), the algorithm ddmin. A
retraction is left out together with the row that it retracts, because no engine retracts what was never there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange.frames import Barrier, Chunk, EngineFrame, States
from foldflight.functions import Registry, RowKind
from foldflight.recording.file import Exchanged, Recording
from foldflight.recording.replay import fold_again, of_groups, slots_in

__all__ = ["Shrunk", "shrink"]

_RUNS_MAX: Final = 2000
# A row of a frame, or the whole frame if it is a barrier.
_Unit = tuple[int, int]


@dataclass(frozen=True)
class Shrunk:
    """The smallest frames that were found.

    Args:
        recording: The recording, with the calls that are needed.
        steps: The frames that still fail.
        error: The error.
        rows: The number of rows, of chunks and of states.
        runs: How often frames were folded.
        is_minimal: Whether no single row can be left out. False if the search was ended.
    """

    recording: Recording
    steps: tuple[Exchanged, ...]
    error: FoldflightError
    rows: int
    runs: int
    is_minimal: bool


class _Trial:
    """Folds candidates, and tells whether they fail in the same way."""

    def __init__(self, recording: Recording, registry: Registry, state_keys: Sequence[bytes]) -> None:
        self.recording = recording
        self.error: FoldflightError | None = None
        self.runs = 0
        self._registry = registry
        self._state_keys = state_keys

    def fails(self, steps: Sequence[Exchanged], recording: Recording | None = None) -> bool:
        """Return whether frames still fail with the same method, class of exception and function."""
        self.runs += 1
        try:
            error = fold_again(
                recording or self.recording, self._registry, steps=steps, state_keys=self._state_keys, isolates=False
            ).error
        except RejectedError:
            return False  # such as a view whose entries are no longer there
        if error is None or self.error is None or _kind_of(error) != _kind_of(self.error):
            return False
        self.error = error
        return True

    def is_over(self) -> bool:
        """Whether the search has taken too many runs."""
        return self.runs >= _RUNS_MAX


def _kind_of(error: FoldflightError) -> tuple[str, str | None, str]:
    return error.code, error.function, error.message.partition(":")[0]


def shrink(
    recording: Recording,
    registry: Registry,
    *,
    steps: Sequence[Exchanged] | None = None,
    state_keys: Sequence[bytes] = (),
) -> Shrunk:
    """Return the fewest rows for which the function still raises.

    Raises:
        RejectedError: SIGNATURE, if no function raises.
    """
    trial = _Trial(recording, registry, state_keys)
    current = list(recording.steps if steps is None else steps)
    trial.error = fold_again(recording, registry, steps=current, state_keys=state_keys, isolates=False).error
    if trial.error is None:
        raise RejectedError(
            "SIGNATURE",
            "there is nothing to shrink and no error to test: no function raises for these rows. Without --shrink, "
            "answers that differ are shown, and --to-test writes the first of them",
        )
    current = _of_one_group(trial, current)
    units = _units_in(current)
    partners = _partners(current)

    def built(chosen: Iterable[_Unit]) -> list[Exchanged]:
        return _built(current, chosen, partners)

    kept = _minimal(units, lambda chosen: trial.fails(built(chosen)), trial)
    steps_left = built(kept)
    narrowed = _of_one_call(trial, steps_left)
    trial.fails(steps_left, narrowed)  # the error as it is for these rows
    assert trial.error is not None
    rows = sum(step.frame.batch.num_rows for step in steps_left if isinstance(step.frame, (Chunk, States)))
    return Shrunk(narrowed, tuple(steps_left), trial.error, rows, trial.runs, not trial.is_over())


def _of_one_group(trial: _Trial, steps: list[Exchanged]) -> list[Exchanged]:
    """Return the frames with as few groups as possible: mostly the one that the error names."""
    if trial.recording.opening.maps:
        return steps
    assert trial.error is not None
    slots = sorted({slot for step in steps for slot in slots_in(step.frame)})
    if trial.error.slot in slots:
        alone = of_groups(steps, [trial.error.slot])
        if trial.fails(alone):
            return alone
    alone = of_groups(steps, _minimal(slots, lambda chosen: trial.fails(of_groups(steps, chosen)), trial))
    return alone if trial.fails(alone) else steps  # as if it fails for a row without a slot


def _of_one_call(trial: _Trial, steps: list[Exchanged]) -> Recording:
    """Return the recording with the failing call only, if it fails alone and no row has a state of the others."""
    recording = trial.recording
    opening = recording.opening
    if opening.maps or len(opening.calls) == 1 or any(isinstance(step.frame, States) for step in steps):
        return recording
    for call in opening.calls:
        narrowed = replace(recording, opening=replace(opening, calls=(call,)))
        if trial.fails(steps, narrowed):
            return narrowed
    return recording


def _units_in(steps: Sequence[Exchanged]) -> list[_Unit]:
    units: list[_Unit] = []
    for place, step in enumerate(steps):
        if isinstance(step.frame, (Chunk, States)):
            units += [(place, row) for row in range(step.frame.batch.num_rows)]
        elif isinstance(step.frame, Barrier):
            units.append((place, 0))
    return units


def _partners(steps: Sequence[Exchanged]) -> dict[_Unit, _Unit]:
    """Return the row that each retraction retracts: the last equal row of its group that is still there."""
    there: dict[str, list[_Unit]] = {}
    partners: dict[_Unit, _Unit] = {}
    for place, step in enumerate(steps):
        if not isinstance(step.frame, Chunk) or "kind" not in step.frame.batch.schema.names:
            continue
        batch = step.frame.batch
        rows = batch.drop_columns(["kind"]).to_pylist()
        for number, (kind, row) in enumerate(zip(batch.column("kind").to_pylist(), rows, strict=True)):
            unit, text = (place, number), repr(row)
            if not RowKind(kind).retracts:
                there.setdefault(text, []).append(unit)
            elif there.get(text):
                partners[unit] = there[text].pop()
    return partners


def _built(steps: Sequence[Exchanged], chosen: Iterable[_Unit], partners: dict[_Unit, _Unit]) -> list[Exchanged]:
    """Return frames with the chosen rows and barriers only. Epochs are numbered anew."""
    wanted = set(chosen)
    rows: dict[int, list[int]] = {}
    for place, row in sorted(wanted):
        if partners.get((place, row), (place, row)) in wanted:
            rows.setdefault(place, []).append(row)
    built: list[Exchanged] = []
    epoch: int | None = None
    for place, step in enumerate(steps):
        frame: EngineFrame = step.frame
        if isinstance(frame, (Chunk, States, Barrier)) and place not in rows:
            continue
        if isinstance(frame, Barrier):
            epoch = frame.epoch if epoch is None else epoch + 1
            frame = Barrier(epoch)
        elif isinstance(frame, (Chunk, States)) and len(rows[place]) < frame.batch.num_rows:
            frame = replace(frame, batch=frame.batch.take(pa.array(np.array(rows[place], np.int64))))
        built.append(Exchanged(frame, [], step.questions))
    return built


def _minimal(items: Sequence[Any], fails: Callable[[Sequence[Any]], bool], trial: _Trial) -> list[Any]:
    """Return a part of the items that fails and of which no single item can be left out (ddmin)."""
    current, parts = list(items), 2
    while len(current) >= 2 and not trial.is_over():
        size = -(-len(current) // parts)
        pieces = [current[start : start + size] for start in range(0, len(current), size)]
        smaller = next((piece for piece in pieces if not trial.is_over() and fails(piece)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        for place in range(len(pieces)):
            rest = [item for number, piece in enumerate(pieces) if number != place for item in piece]
            if trial.is_over():
                break
            if len(pieces) > 2 and fails(rest):
                current, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(current):
                break
            parts = min(2 * parts, len(current))
    return current
