"""Replay a recording with the interpreter, and compare the answers with the recorded ones.

Only functions that the caller passes are executed. States are read as servers read them, so pickled states need the key
that signed them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple

import pyarrow as pa

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError
from foldflight.exchange import frames as fr
from foldflight.exchange.ipc import write_batch
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.ext.recording.file import Recording, of_groups, slots_in, slots_of
from foldflight.fold.coroutines import Answer, Bound, Calls, Check, M, SharedInstance
from foldflight.fold.failures import ERROR
from foldflight.fold.pickles import StateSigner
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import Function
from foldflight.functions.registry import Registry
from foldflight.functions.types.arrow import rows_to_display
from foldflight.shipping.secrets import MASK_MIN

# Memory grows with the largest slot, so a single number in a hostile recording could exhaust it.
_SLOTS_MAX: Final = 1 << 24
# Answers that are compared. Others, such as saved states, depend on the time at which the engine asked.
COMPARED_FRAMES: Final = (fr.InitialOutputs, fr.Results, fr.RowOutputs, fr.Mapped)


class Outcome(NamedTuple):
    """The answers to each frame, up to the one that failed, and the error, if there was one."""

    answers: Sequence[Sequence[fr.Frame]]
    error: FoldflightError | None = None


class RecordedAnswers:
    """Answers calls of async functions from a recording. Nothing is called, not even `open`.

    Args:
        recording: The recording.
    """

    opens = False

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._answer_counts: Counter[str] = Counter()

    def answer(self, calls: Calls, check: Check) -> None:  # noqa: ARG002 - nothing waits
        """Give each row the answer that its call had."""
        for index, call_id in enumerate(calls.ids):
            recorded_answers = self._recording.calls.get(call_id, [(None, self._why_none)])
            # Fewer rows, as of a group that shrinks, have the first of the answers; more rows have the last one again.
            value, error = recorded_answers[min(self._answer_counts[call_id], len(recorded_answers) - 1)]
            self._answer_counts[call_id] += 1
            calls.answers[index] = Answer(value, None if error is None else RecordedError(error))

    @property
    def _why_none(self) -> str:
        if self._recording.about.get("is_masked"):
            return "a recording with masked texts has no answers of calls, and a replay calls nothing"
        return "the recording has no answer to this call, and a replay calls nothing: the row or the function differs"

    def run(self, function: str, coroutine: Any, check: Check) -> None:  # noqa: ARG002 - as in `Coroutines`
        """End a coroutine before it begins."""
        coroutine.close()

    def instance(
        self,
        bound: Bound[M],
        job_parameters: Mapping[str, str],  # noqa: ARG002 - as in `Coroutines`
        context: FunctionContext,  # noqa: ARG002
        check: Check,  # noqa: ARG002
    ) -> SharedInstance[M]:
        """Return an instance that is not opened."""
        return _UnopenedInstance(bound.instantiate())


class RecordedError(Exception):
    """The error of a call as a recording has it."""


class _UnopenedInstance(Generic[M]):
    def __init__(self, methods: M) -> None:
        self.methods = methods

    def close(self) -> None:
        """Do nothing: nothing was opened."""


def fold_again(
    recording: Recording, registry: Registry, *, state_keys: Sequence[bytes] = (), isolates: bool | None = None
) -> Outcome:
    """Fold the frames of a recording. Return the answers, with the error of a function, or one of the recorded code.

    `isolates`: whether errors of single slots are isolated. Default: as recorded.

    Raises:
        RejectedError: The functions do not fit the recording, or a state is not signed with one of the keys.
    """
    # The versions of functions are not compared: the user may replay with an edited class.
    open_request = replace(recording.open_request.pin([""] * len(recording.open_request.functions)), bundles=())
    if isolates is not None:
        open_request = replace(open_request, isolate_errors=isolates)
    entries = {_text_of(question): answer for pair in recording.pairs for question, answer in pair.questions}

    def ask(question: fr.Wanted) -> Iterable[fr.Frame]:
        answer = entries.get(_text_of(question))
        if answer is None:
            raise RejectedError("BAD_FRAME", "the function uses entries of its views that the recording does not have")
        return answer

    rows = sum(len(slots_in(pair.frame)) for pair in recording.pairs)
    slots_max = max(_SLOTS_MAX, rows * len(open_request.functions))
    signer = StateSigner(list(state_keys) or [b"only for states of this replay"])
    answers: list[list[fr.Frame]] = []
    try:
        limits, part_bytes_max = replace(fr.UNBOUNDED, slots_max=slots_max), fr.UNBOUNDED.message_bytes_max
        exchange = ServerExchange(
            open_request,
            registry,
            limits=limits,
            server_id="replay",
            signer=signer,
            ask=ask,
            coroutines=RecordedAnswers(recording),
            part_bytes_max=part_bytes_max,
        )
    except FunctionError as error:
        return Outcome(answers, error)
    try:
        for pair in recording.pairs:
            answers.append([])
            answers[-1].extend(exchange.handle(_frame_of(pair.frame, open_request, registry)))
    except (FunctionError, CorruptError) as error:
        return Outcome(answers, _with_group(error, recording))
    except RejectedError as error:
        if error.code == "STATE_MISMATCH" and "was not unpickled" in error.message:
            raise _pickle_error(error, recording.pairs[len(answers) - 1].frame) from None
        if recording.error is not None and recording.error.code == error.code:
            return Outcome(answers, _with_group(error, recording))
        raise
    return Outcome(answers)


def _with_group(error: FoldflightError, recording: Recording) -> FoldflightError:
    """Return the error with the keys of its group, if the recording has them."""
    group = recording.groups.get(-1 if error.slot is None else error.slot)
    if group is None:
        return error
    group_error = error.with_group(dict(group))
    group_error.__cause__ = error.__cause__
    return group_error


def _pickle_error(error: RejectedError, frame: fr.Frame) -> RejectedError:
    if isinstance(frame, fr.States) and MASK_MIN in write_batch(frame.batch):
        return RejectedError(
            "STATE_MISMATCH",
            f"a pickled state of {error.function} has asterisks, as recordings have in the place of a secret of the "
            "environment (a variable named like a key, token or password); its signature belongs to the state with the "
            "secret, so no key fits. Leave such groups out with --group, or record without that variable; an "
            "accumulator should not keep a secret, which every checkpoint has then",
            function=error.function,
        )
    return RejectedError(
        "STATE_MISMATCH",
        f"the recording has pickled states of {error.function}, and unpickling executes what is in them; for a "
        "recording that you trust, give --state-key with the state key of the servers or of connect, or --unpickle if "
        "connect had none",
        function=error.function,
    )


def _frame_of(frame: fr.Frame, open_request: fr.Open, registry: Registry) -> fr.Frame:
    if isinstance(frame, fr.Chunk) and not frame.batch.num_rows:
        return fr.Chunk(pa.RecordBatch.from_pylist([], open_request.columns))
    if not isinstance(frame, fr.States):
        return frame
    # An edited class reads the states of the recorded one, unless it has `migrate` to convert them.
    batch = frame.batch
    if not open_request.isolate_errors and ERROR in batch.schema.names:
        batch = batch.select([index for index, name in enumerate(batch.schema.names) if name != ERROR])
    functions = {f"state_{index}": registry[call.function] for index, call in enumerate(open_request.calls)}
    fields = []
    for each in batch.schema:
        function = functions.get(each.name)
        keeps = isinstance(function, Function) and function.capabilities.migrate
        fields.append(each if keeps else each.remove_metadata())
    return fr.States(pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields)), frame.unanswered)


def _text_of(question: fr.Wanted) -> str:
    names = [name for name in question.batch.schema.names if name == "slot" or name.startswith("state_")]
    return repr(question.batch.select(names).to_pylist())


# -- comparison --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One output that differs from the recorded one.

    Args:
        where: The epoch, or the number of the frame.
        group: The keys of the group, or its slot; for outputs of rows, the row.
        column: The name for display: a function, or the state of one.
        recorded: The recorded value.
        replayed: The value of the replay.
        frame: The number of the answered frame.
        position: The slot, or the number of the row.
        call: The number of the call; None for states and steps.
    """

    where: str
    group: Mapping[str, Any]
    column: str
    recorded: Any
    replayed: Any
    frame: int
    position: int
    call: int | None


def _comparable_columns(
    answers: Iterable[Any], names: Mapping[str, str], *, by_slot: bool
) -> dict[int, dict[str, Any]]:
    """Return the compared columns of the rows of answers, by slot or by number."""
    rows: dict[int, dict[str, Any]] = {}
    for batch in (answer.batch for answer in answers if answer.batch.num_rows):
        slots = slots_of(batch) if by_slot else pa.array(range(len(rows), len(rows) + batch.num_rows))
        if slots is None:
            raise RejectedError("BAD_FRAME", "an answer in the recording has no slots")
        # Equal states in bytes may differ in their signature, or in the order of a set.
        known_fields = [each for each in batch.schema if each.name in names]
        compared_names = [
            each.name for each in known_fields if not (each.name[:6] == "state_" and pa.types.is_binary(each.type))
        ]
        rows.update(zip(slots.to_pylist(), rows_to_display(batch.select(compared_names)), strict=True))
    return rows


def differences(recording: Recording, outcome: Outcome) -> Iterator[Difference]:
    """Yield the answers of an outcome that differ from the recorded ones.

    Outputs are compared, or states if the exchange returns no outputs, but no states in bytes.
    """
    for number, (pair, replayed_answers) in enumerate(zip(recording.pairs, outcome.answers, strict=False), 1):
        if outcome.error is not None and number == len(outcome.answers):
            return  # the last frame was answered by the error
        if recording.error is not None and number == len(recording.pairs):
            return  # the recorded answer of the last frame is an error
        recorded_answers = [each for each in pair.answers if isinstance(each, COMPARED_FRAMES)]
        now = [each for each in replayed_answers if isinstance(each, COMPARED_FRAMES)]
        if not recorded_answers and not now:
            continue
        by_slot = (
            isinstance((recorded_answers or now)[0], (fr.Results, fr.InitialOutputs))
            and not recording.open_request.maps
        )
        names = _names_of(recording.open_request)
        before, after = (_comparable_columns(answers, names, by_slot=by_slot) for answers in (recorded_answers, now))
        where = f"epoch {pair.frame.epoch}" if isinstance(pair.frame, fr.Barrier) else f"frame {number}"
        for position in sorted({*before, *after}):
            group = recording.groups.get(position, {"slot": position}) if by_slot else {"row": position + 1}
            old, new = before.get(position, {}), after.get(position, {})
            for name, display_names in names.items():
                if repr(old.get(name)) != repr(new.get(name)):
                    call = int(name[7:]) if by_slot and name.startswith("output_") else None
                    yield Difference(where, group, display_names, old.get(name), new.get(name), number, position, call)


def of_difference(recording: Recording, difference: Difference) -> Recording:
    """Return a recording of one epoch with only the call whose answer differs, and the rows of its group.

    Raises:
        RejectedError: SIGNATURE, if the answer is not the output of a group at a barrier.
    """
    if difference.call is None or not isinstance(recording.pairs[difference.frame - 1].frame, fr.Barrier):
        raise RejectedError(
            "SIGNATURE",
            f"a test for {difference.column} cannot be written: only outputs of groups at a barrier have one. Compare "
            "the values in the table",
        )
    open_request = replace(recording.open_request, calls=(recording.open_request.calls[difference.call],))
    before = tuple(pair for pair in recording.pairs[: difference.frame] if not isinstance(pair.frame, fr.Barrier))
    return of_groups(replace(recording, open_request=open_request, pairs=before), [difference.position])


def _names_of(open_request: fr.Open) -> dict[str, str]:
    """Return the names of the compared columns, with their names for display."""
    display_names = (
        [open_request.functions[step] for step in open_request.outputs]
        if open_request.maps
        else list(open_request.functions)
    )
    kind = "output"
    if not (
        open_request.maps or open_request.returns.outputs or open_request.row_outputs or open_request.initial_outputs
    ):
        kind, display_names = "state", [f"state of {name}" for name in display_names]
    return {f"{kind}_{index}": name for index, name in enumerate(display_names)} | {ERROR: "error"}
