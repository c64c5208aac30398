"""Select groups of a recording, and the rows and answers of some slots."""

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
from foldflight.ext.recording.file import Pair, Recording
from foldflight.functions.types.arrow import with_column

# Groups that an error message names.
_NAMED_MAX: Final = 5

F = TypeVar("F", bound=fr.Frame)


def slots_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the column `slot` of rows; None if there is none, or if it has another type."""
    index = batch.schema.get_field_index("slot")
    return batch.column(index) if index >= 0 and batch.schema.field(index).type == pa.int32() else None


def slots_in(frame: fr.Frame) -> list[int]:
    """Return the slots of the rows of a frame, without NULLs of invalid frames; rows without a slot have slot 0."""
    if not isinstance(frame, (fr.Chunk, fr.States)):
        return []
    slots = slots_of(frame.batch)
    return [0] * frame.batch.num_rows if slots is None else slots.drop_null().to_pylist()


def of_slots(frame: F, kept: pa.Array, request: fr.Frame) -> F:
    """Return a frame of the engine, or an answer, with the rows of some slots only.

    Args:
        frame: The frame.
        kept: The slots to keep, int32.
        request: For outputs of rows: the chunk with these rows.
    """
    if isinstance(frame, fr.Forget):
        return replace(frame, slots=frame.slots.filter(pc.is_in(frame.slots, value_set=kept)))
    batch = getattr(frame, "batch", None)
    slots = None if batch is None else slots_of(batch)
    if batch is None or slots is None:
        return frame
    if isinstance(frame, fr.RowOutputs) and isinstance(request, fr.Chunk):
        # In these answers, `slot` is the number of the row in the chunk.
        owners = slots_of(request.batch)
        if owners is None:
            return frame
        numbers = pa.array(np.cumsum(pc.is_in(owners, value_set=kept)) - 1, pa.int32())
        batch, slots = with_column(batch, "slot", numbers.take(slots)), owners.take(slots)
    return replace(frame, batch=batch.filter(pc.is_in(slots, value_set=kept)))


def of_groups(recording: Recording, slots: Iterable[int]) -> Recording:
    """Return a recording that has only the rows and answers of these slots."""
    kept = pa.array(sorted(slots), pa.int32())
    chosen = []
    for pair in recording.pairs:
        frame = of_slots(pair.frame, kept, pair.frame)
        if not isinstance(frame, (fr.Chunk, fr.States, fr.Entries)) or frame.batch.num_rows:
            answers = [of_slots(each, kept, pair.frame) for each in pair.answers]
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
    """Return a group in the form of the option `--group`: its keys, or its slot if they are unknown."""
    names = [name for name in group if name != "slot"] or ["slot"]
    return " ".join(f"{name}={group[name]}" for name in names)
