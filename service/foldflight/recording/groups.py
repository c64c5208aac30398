"""The groups of a recording: which there are, and the rows and answers of some of them, by slot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import RejectedError
from foldflight.exchange import frames as fr
from foldflight.functions.types.arrow import with_column
from foldflight.recording.file import Pair, Recording

# Groups that an error names, of those that there are.
_NAMED_MAX: Final = 5

F = TypeVar("F", bound=fr.Frame)


def slots_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the slots of rows; None if they have none, or other values in their place."""
    index = batch.schema.get_field_index("slot")
    return batch.column(index) if index >= 0 and batch.schema.field(index).type == pa.int32() else None


def slots_in(frame: fr.Frame) -> list[int]:
    """Return the slots of the rows of a frame; slot 0 of rows without a slot. A refused frame may have NULLs."""
    if not isinstance(frame, (fr.Chunk, fr.States)):
        return []
    slots = slots_of(frame.batch)
    return [0] * frame.batch.num_rows if slots is None else slots.drop_null().to_pylist()


def of_slots(frame: F, wanted: pa.Array, asked: fr.Frame) -> F:
    """Return a frame of the engine, or an answer, with the rows of some slots only.

    Args:
        frame: The frame.
        wanted: The slots, int32.
        asked: Of outputs of rows: the chunk that has these rows.
    """
    if isinstance(frame, fr.Forget):
        return replace(frame, slots=frame.slots.filter(pc.is_in(frame.slots, value_set=wanted)))
    batch = getattr(frame, "batch", None)
    slots = None if batch is None else slots_of(batch)
    if batch is None or slots is None:
        return frame
    if isinstance(frame, fr.RowOutputs) and isinstance(asked, fr.Chunk):
        # The slots of these answers are the numbers of the rows in the chunk.
        owners = slots_of(asked.batch)
        if owners is None:
            return frame
        numbers = pa.array(np.cumsum(pc.is_in(owners, value_set=wanted)) - 1, pa.int32())
        batch, slots = with_column(batch, "slot", numbers.take(slots)), owners.take(slots)
    return replace(frame, batch=batch.filter(pc.is_in(slots, value_set=wanted)))


def of_groups(recording: Recording, slots: Iterable[int]) -> Recording:
    """Return a recording with the rows and answers of these slots only."""
    wanted = pa.array(sorted(slots), pa.int32())
    chosen = []
    for pair in recording.pairs:
        frame = of_slots(pair.frame, wanted, pair.frame)
        if not isinstance(frame, (fr.Chunk, fr.States, fr.Entries)) or frame.batch.num_rows:
            answers = [of_slots(each, wanted, pair.frame) for each in pair.answers]
            chosen.append(Pair(frame, answers, pair.questions))
    return replace(recording, pairs=tuple(chosen))


def groups_named(recording: Recording, wanted: Mapping[str, str]) -> list[int]:
    """Return the slots of the groups with these keys, given as text: {"customer": "ann"}, or {"slot": "3"}.

    Raises:
        RejectedError: SIGNATURE, with the groups that there are, if there is none.
    """
    slots = sorted({slot for pair in recording.pairs for slot in slots_in(pair.frame)})
    groups = {slot: {**recording.groups.get(slot, {}), "slot": slot} for slot in slots}
    matching = [
        slot
        for slot, group in groups.items()
        if all(name in group and text in (str(group[name]), repr(group[name])) for name, text in wanted.items())
    ]
    if not matching:
        some = [_group_text(group) for group in islice(groups.values(), _NAMED_MAX)]
        some += ["..."] if len(groups) > _NAMED_MAX else []
        failed = recording.error.slot if recording.error else None
        keyless = "" if failed is None else f"; the recorded error is of slot={failed}"
        keyless = f". Servers know no keys, so their recordings have slots only: give --group slot=N{keyless}"
        raise RejectedError(
            "SIGNATURE",
            f"the recording has no group {_group_text(wanted)}; it has {', '.join(some) or 'no rows'}"
            f"{'' if recording.groups else keyless}",
        )
    return matching


def _group_text(group: Mapping[str, Any]) -> str:
    """Return a group as `--group` takes it: its keys, or its slot if they are not known."""
    names = [name for name in group if name != "slot"] or ["slot"]
    return " ".join(f"{name}={group[name]}" for name in names)
