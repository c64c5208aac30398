"""Folding of a recording again, with the interpreter, and the comparison with the recorded answers.

Only functions that the caller gives are executed. States in the recording are read as servers read them, so pickled
ones need the key that signed them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError
from foldflight.exchange import frames as fr
from foldflight.exchange.serving import ServerExchange
from foldflight.fold.failures import ERROR
from foldflight.fold.signing import StateSigner
from foldflight.functions.author.spec import Function
from foldflight.functions.registry import Registry
from foldflight.recording.file import Pair, Recording

__all__ = ["COMPARED", "Difference", "Outcome", "differences", "fold_again", "groups_named", "of_difference"]
__all__ += ["of_groups", "slots_in"]

# Groups that an error names, of those that there are.
_NAMED_MAX: Final = 5
# Accumulators take memory up to the largest slot, so one number of a hostile recording could take all.
_SLOTS_MAX: Final = 1 << 24
# Answers with rows, which are compared. Saved states depend on when an engine asked.
COMPARED: Final = (fr.InitialOutputs, fr.Results, fr.RowOutputs, fr.Mapped)


class Outcome(NamedTuple):
    """The answers to each frame, up to the one that failed, and the error, if there was one."""

    answers: Sequence[Sequence[fr.Frame]]
    error: FoldflightError | None = None


def fold_again(
    recording: Recording, registry: Registry, *, state_keys: Sequence[bytes] = (), isolates: bool | None = None
) -> Outcome:
    """Fold the frames of a recording, and return the answers or the error of a function, or the recorded other one.

    `isolates` tells whether errors of single slots are isolated. Default: as recorded.

    Raises:
        RejectedError: The functions do not fit the recording, or a state is not signed with one of the keys.
    """
    # Any class of the user fits, whatever its version is.
    opening = replace(recording.opening.pinned([""] * len(recording.opening.functions)), bundles=())
    if isolates is not None:
        opening = replace(opening, isolate_errors=isolates)
    entries = {_text_of(wanted): answer for pair in recording.pairs for wanted, answer in pair.questions}

    def ask(wanted: fr.Wanted) -> Iterable[fr.Frame]:
        answer = entries.get(_text_of(wanted))
        if answer is None:
            raise RejectedError("BAD_FRAME", "the function uses entries of its views that the recording does not have")
        return answer

    rows = sum(len(slots_in(pair.frame)) for pair in recording.pairs)
    slots_max = max(_SLOTS_MAX, rows * len(opening.functions))
    signer = StateSigner(list(state_keys) or [b"only for states of this replay"])
    answers: list[list[fr.Frame]] = []
    try:
        limits, part_bytes_max = replace(fr.UNBOUNDED, slots_max=slots_max), fr.UNBOUNDED.message_bytes_max
        exchange = ServerExchange(
            opening, registry, limits=limits, server_id="replay", signer=signer, ask=ask, part_bytes_max=part_bytes_max
        )
    except FunctionError as error:
        return Outcome(answers, error)
    try:
        for pair in recording.pairs:
            answers.append([])
            answers[-1].extend(exchange.handle(_frame_of(pair.frame, opening, registry)))
    except (FunctionError, CorruptError) as error:
        return Outcome(answers, _named(error, recording))
    except RejectedError as error:
        if error.code == "STATE_MISMATCH" and "was not unpickled" in error.message:
            raise _pickled(error) from None
        if recording.error is not None and recording.error.code == error.code:
            return Outcome(answers, _named(error, recording))
        raise
    return Outcome(answers)


def _named(error: FoldflightError, recording: Recording) -> FoldflightError:
    """Return the error with the keys of its group, if the recording has them."""
    group = recording.groups.get(-1 if error.slot is None else error.slot)
    if group is None:
        return error
    named = error.with_group(dict(group))
    named.__cause__ = error.__cause__
    return named


def _pickled(error: RejectedError) -> RejectedError:
    return RejectedError(
        "STATE_MISMATCH",
        f"the recording has pickled states of {error.function}, and unpickling executes what is in them; for a "
        "recording that you trust, give --state-key with the state key of the servers or of connect, or --unpickle if "
        "connect had none",
        function=error.function,
    )


def _frame_of(frame: fr.Frame, opening: fr.Open, registry: Registry) -> fr.Frame:
    if isinstance(frame, fr.Chunk) and not frame.batch.num_rows:
        return fr.Chunk(pa.RecordBatch.from_pylist([], opening.columns))
    if not isinstance(frame, fr.States):
        return frame
    # States of an edited class are those of the recorded one, unless it says how to convert them.
    batch = frame.batch
    if not opening.isolate_errors and ERROR in batch.schema.names:
        batch = batch.drop_columns([ERROR])
    functions = {f"state_{place}": registry[call.function] for place, call in enumerate(opening.calls)}
    fields = []
    for each in batch.schema:
        function = functions.get(each.name)
        keeps = isinstance(function, Function) and function.capabilities.migrate
        fields.append(each if keeps else each.remove_metadata())
    return fr.States(pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields)), frame.unanswered)


def _text_of(wanted: fr.Wanted) -> str:
    names = [name for name in wanted.batch.schema.names if name == "slot" or name.startswith("state_")]
    return repr(wanted.batch.select(names).to_pylist())


# -- groups ------------------------------------------------------------------------------------------------------------


def groups_named(recording: Recording, wanted: Mapping[str, str]) -> list[int]:
    """Return the slots of the groups with these keys, given as text: {"customer": "ann"}, or {"slot": "3"}.

    Raises:
        RejectedError: SIGNATURE, with the groups that there are, if there is none.
    """
    slots = sorted({slot for pair in recording.pairs for slot in slots_in(pair.frame)})
    groups = {slot: {**recording.groups.get(slot, {}), "slot": slot} for slot in slots}
    found = [
        slot
        for slot, group in groups.items()
        if all(name in group and text in (str(group[name]), repr(group[name])) for name, text in wanted.items())
    ]
    if not found:
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
    return found


def _group_text(group: Mapping[str, Any]) -> str:
    """Return a group as `--group` takes it: its keys, or its slot if they are not known."""
    names = [name for name in group if name != "slot"] or ["slot"]
    return " ".join(f"{name}={group[name]}" for name in names)


def slots_in(frame: fr.Frame) -> list[int]:
    """Return the slots of the rows of a frame; slot 0 of rows without a slot. A refused frame may have NULLs."""
    if not isinstance(frame, (fr.Chunk, fr.States)):
        return []
    slots = _slots_of(frame.batch)
    return [0] * frame.batch.num_rows if slots is None else slots.drop_null().to_pylist()


def of_groups(recording: Recording, slots: Iterable[int]) -> Recording:
    """Return a recording with the rows and answers of these slots only."""
    wanted = pa.array(sorted(slots), pa.int32())
    chosen = []
    for pair in recording.pairs:
        frame = pair.frame
        if isinstance(frame, fr.Forget):
            chosen.append(replace(pair, frame=fr.Forget(frame.slots.filter(pc.is_in(frame.slots, value_set=wanted)))))
            continue
        if isinstance(frame, (fr.Chunk, fr.States, fr.Entries)):
            frame = replace(frame, batch=_rows_of(frame.batch, wanted))
            if not frame.batch.num_rows:
                continue
        answers = [_answer_of(each, pair.frame, wanted) for each in pair.answers]
        chosen.append(Pair(frame, answers, pair.questions))
    return replace(recording, pairs=tuple(chosen))


def _answer_of(answer: fr.ServerFrame, frame: fr.Frame, wanted: pa.Array) -> fr.ServerFrame:
    if isinstance(answer, (fr.Results, fr.SavedStates, fr.InitialOutputs)):
        return replace(answer, batch=_rows_of(answer.batch, wanted))
    if isinstance(answer, fr.RowOutputs) and isinstance(frame, fr.Chunk):
        # The slots of these answers are the numbers of the rows in the chunk.
        slots, numbers = _slots_of(frame.batch), _slots_of(answer.batch)
        if slots is not None and numbers is not None:
            return replace(answer, batch=answer.batch.filter(pc.is_in(slots.take(numbers), value_set=wanted)))
    return answer


def _rows_of(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    slots = _slots_of(batch)
    return batch if slots is None else batch.filter(pc.is_in(slots, value_set=wanted))


def _slots_of(batch: pa.RecordBatch) -> pa.Array | None:
    """Return the slots of rows; None if they have none, or other values in their place."""
    place = batch.schema.get_field_index("slot")
    return batch.column(place) if place >= 0 and batch.schema.field(place).type == pa.int32() else None


# -- comparison --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One output that differs from the recorded one.

    Args:
        where: The epoch, or the number of the frame.
        group: The keys of the group, or its slot; for outputs of rows, the row.
        column: The function, and whether it is its state.
        recorded: The recorded value.
        replayed: The value of now.
        frame: The number of the frame with whose answer it came.
        place: The slot, or the number of the row.
        call: The number of the call; None for states and steps.
    """

    where: str
    group: Mapping[str, Any]
    column: str
    recorded: Any
    replayed: Any
    frame: int
    place: int
    call: int | None


def _compared(answers: Iterable[Any], names: Mapping[str, str], *, by_slot: bool) -> dict[int, dict[str, Any]]:
    """Return the compared columns of the rows of answers, by slot or by number."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in (answer.batch for answer in answers if answer.batch.num_rows):  # others have no columns in a recording
        slots = _slots_of(batch) if by_slot else pa.array(range(len(rows), len(rows) + batch.num_rows))
        if slots is None:
            raise RejectedError("BAD_FRAME", "an answer in the recording has no slots")
        # States that are bytes differ by their signature, or by the order of a set.
        known = [each for each in batch.schema if each.name in names]
        chosen = [each.name for each in known if not (each.name[:6] == "state_" and pa.types.is_binary(each.type))]
        rows.update(zip(slots.to_pylist(), batch.select(chosen).to_pylist(maps_as_pydicts="lossy"), strict=True))
    return rows


def differences(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    """Yield the answers of an outcome that differ from the recorded ones.

    Outputs are compared; where an exchange returns none, states are, unless they are bytes.
    """
    for number, (pair, replayed) in enumerate(zip(recording.pairs, outcome.answers, strict=False), 1):
        if outcome.error is not None and number == len(outcome.answers):
            return  # the error is the answer
        if recording.error is not None and number == len(recording.pairs):
            return  # the recorded answer is an error
        recorded = [each for each in pair.answers if isinstance(each, COMPARED)]
        now = [each for each in replayed if isinstance(each, COMPARED)]
        if not recorded and not now:
            continue
        by_slot = isinstance((recorded or now)[0], (fr.Results, fr.InitialOutputs)) and not recording.opening.maps
        names = _names_of(recording.opening)
        before, after = (_compared(answers, names, by_slot=by_slot) for answers in (recorded, now))
        where = f"epoch {pair.frame.epoch}" if isinstance(pair.frame, fr.Barrier) else f"frame {number}"
        for place in sorted({*before, *after}):
            group = recording.groups.get(place, {"slot": place}) if by_slot else {"row": place + 1}
            old, new = before.get(place, {}), after.get(place, {})
            for name, shown in names.items():
                if repr(old.get(name)) != repr(new.get(name)):
                    call = int(name[7:]) if by_slot and name.startswith("output_") else None
                    yield Difference(where, group, shown, old.get(name), new.get(name), number, place, call)


def of_difference(recording: Recording, found: Difference) -> Recording:
    """Return the recording with the call whose answer differs, and the rows that led to it, as one epoch.

    Raises:
        RejectedError: SIGNATURE, if the answer is not the output of a group at a barrier.
    """
    if found.call is None or not isinstance(recording.pairs[found.frame - 1].frame, fr.Barrier):
        raise RejectedError(
            "SIGNATURE",
            f"a test for {found.column} cannot be written: only outputs of groups at a barrier have one. Compare the "
            "values in the table",
        )
    opening = replace(recording.opening, calls=(recording.opening.calls[found.call],))
    before = tuple(pair for pair in recording.pairs[: found.frame] if not isinstance(pair.frame, fr.Barrier))
    return of_groups(replace(recording, opening=opening, pairs=before), [found.place])


def _names_of(opening: fr.Open) -> dict[str, str]:
    """Return the columns that are compared, each with what it is called."""
    shown = [opening.functions[step] for step in opening.outputs] if opening.maps else list(opening.functions)
    kind = "output"
    if not (opening.maps or opening.returns.outputs or opening.row_outputs or opening.initial_outputs):
        kind, shown = "state", [f"state of {name}" for name in shown]
    return {f"{kind}_{place}": name for place, name in enumerate(shown)} | {ERROR: "error"}
