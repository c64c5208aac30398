"""Record one exchange: frames and answers are kept in memory, then in a temporary file, and written if selected.

Once an exchange has forgotten all groups, earlier frames do not influence later ones. So if a task uses an exchange for
several buckets, there is one recording for each selected bucket.

Recordings may be masked: strings are replaced by others with the same order and equality, bytes and JSON by NULL.
Secrets of the environment are left out of all recordings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import platform
import re
import secrets
import shlex
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, RejectedError, RetryableError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import Encoder, encode_error, encode_open, read_batch
from foldflight.exchange.frames import (
    NO_SLOTS,
    ONE_SLOT,
    Chunk,
    Forget,
    Frame,
    Log,
    Mapped,
    Open,
    Slots,
    SlotSet,
    States,
    Wanted,
    check_slots,
)
from foldflight.exchange.ipc import write_batch
from foldflight.ext.recording import file as format_
from foldflight.ext.recording.code import facts_of, module_of, options_for
from foldflight.ext.recording.file import (
    ENGINE,
    RecordingPart,
    of_slots,
    parts_in,
    slots_of,
    write_part,
    write_recording,
)
from foldflight.fold.coroutines import Answer, Calls
from foldflight.fold.failures import ERROR
from foldflight.functions.types.arrow import with_members
from foldflight.functions.types.values import CastError, cast_results
from foldflight.shipping.secrets import mask_of_environment

if TYPE_CHECKING:
    from foldflight.functions.registry import Registry
    from foldflight.recording import Recordings


_STATES = ("states", "entries")
_Change = Callable[[pa.Array], pa.Array]


class Masks:
    """The strings of a recording in ascending order, and their replacements. The empty string is not replaced."""

    def __init__(self, texts: Sequence[str]) -> None:
        width = len(str(len(texts)))
        self._texts = pa.array(texts, pa.string())
        self._masks = pa.array([f"text{rank:0{width}}" if text else "" for rank, text in enumerate(texts)])

    @classmethod
    def of(cls, parts: Iterable[RecordingPart]) -> Masks:
        """Return the masks of all strings in the batches of parts."""
        distinct: set[str] = set()

        def collect(texts: pa.Array) -> pa.Array:
            distinct.update(pc.unique(texts.drop_null()).to_pylist())
            return texts

        for part in parts:
            _change_part(part, collect)
        return cls(sorted(distinct))

    def mask_part(self, part: RecordingPart) -> RecordingPart:
        """Return a part with masked batches."""
        return _change_part(part, self._mask)

    def _mask(self, texts: pa.Array) -> pa.Array:
        return self._masks.take(pc.index_in(texts, value_set=self._texts))


def without_secrets(parts: Iterable[RecordingPart]) -> Iterator[RecordingPart]:
    """Yield parts with asterisks in the place of secrets of the environment: of errors, log lines, rows, parameters."""
    mask = mask_of_environment()
    for part in parts:
        yield dataclasses.replace(part, message=mask(part.message), batch=mask(part.batch))


def _change_part(part: RecordingPart, change: _Change) -> RecordingPart:
    """Return a part whose strings have been passed through `change`."""
    message, batch = part.message, part.batch
    if part.kind == ENGINE:
        frame = pb.EngineFrame.FromString(message)
        kind = frame.WhichOneof("frame")
        if kind in _STATES:
            inner = getattr(frame, kind)
            inner.batch = write_batch(_change_batch(read_batch(inner.batch, "states"), change))
            message = frame.SerializeToString()
    if batch:
        batch = write_batch(_change_batch(read_batch(batch, "a batch"), change))
    return dataclasses.replace(part, message=message, batch=batch)


def _change_batch(batch: pa.RecordBatch, change: _Change) -> pa.RecordBatch:
    """Return a batch with changed strings. Its column of errors is masked always."""
    columns = [
        _mask_errors(column) if name == ERROR else _change_strings(column, change)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def _change_strings(array: pa.Array, change: _Change) -> pa.Array:
    """Return an array with changed strings, also nested ones. Bytes, JSON, and maps with such keys are NULL."""
    type_, kinds = array.type, pa.types
    if kinds.is_string(type_) or kinds.is_large_string(type_):
        return change(array.cast(pa.string())).cast(type_)
    # The whole map becomes NULL, because keys of maps are never NULL.
    if _has_no_mask(type_.key_type if kinds.is_map(type_) else type_):
        return pa.nulls(len(array), type_)
    return with_members(array, lambda member: _change_strings(member, change)) if type_.num_fields else array


def _has_no_mask(type_: pa.DataType) -> bool:
    """Return whether a type is bytes or JSON: a mask would not be a valid value."""
    kinds = pa.types
    is_bytes = kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_)
    return is_bytes or isinstance(type_, pa.BaseExtensionType)


def _mask_errors(errors: pa.Array) -> pa.Array:
    masked_errors = [
        {**each, "message": _what_raised(each["message"]), "row": None, "trace": None} if each else None
        for each in errors.to_pylist()
    ]
    return pa.array(masked_errors, errors.type)


def _what_raised(message: str | None) -> str:
    """Return the method and the exception's class from a message. The rest may contain values of rows."""
    return (message or "").partition(":")[0] if message and " raised " in message else "masked"


def mask_error(error: FoldflightError) -> FoldflightError:
    """Return an error without the values of rows."""
    return type(error)(error.code, _what_raised(error.message), function=error.function, slot=error.slot)


def mask_open_request(open_request: Open) -> Open:
    """Return an Open without job parameters and trace context."""
    return dataclasses.replace(open_request, job_parameters={}, trace_context={})


SUFFIX: Final = ".recording"
# Bytes of frames that the open exchanges of a process keep in memory. Most exchanges end without an error, and are not
# written.
_UNWRITTEN_BYTES_MAX: Final = 64 << 20
# Bytes that are counted for a frame in addition to its rows.
_FRAME_BYTES: Final = 256
# An engine numbers its groups from 0, so slots from here on are damaged.
_SLOTS_MAX: Final = 1 << 28
# Groups whose keys are recorded: each needs a call of its own.
_NAMED_MAX: Final = 10_000
_EMPTY: Final = pa.schema([])


class ByteBudget:
    """A limit of bytes that the open exchanges of this process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used_bytes = 0

    def acquire(self, size: int, most: int) -> bool:
        """Reserve bytes, and return True, if the limit `most` permits it; otherwise return False."""
        with self._lock:
            if self._used_bytes + size > most:
                return False
            self._used_bytes += size
            return True

    def release(self, size: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._used_bytes -= size


_OPEN_BUDGET: Final = ByteBudget()
_MEMORY_BUDGET: Final = ByteBudget()


class ExchangeRecorder:
    """Records one exchange, as configured. Problems of the file system are logged, and the exchange continues.

    Attributes:
        group_of: Returns the keys of a slot; None where keys are unknown, as on servers.
    """

    def __init__(
        self,
        plan: Recordings,
        open_request: Open,
        registry: Registry,
        server_id: str,
        log: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self.group_of: Callable[[int], Mapping[str, Any]] | None = None
        self._plan = plan
        self._opening = open_request
        self._functions = [registry[name] for name in dict.fromkeys(open_request.functions)]
        self._server_id = server_id
        self._log = log
        self._encode = Encoder(_EMPTY)
        self._file: IO[bytes] | None
        self._slots: SlotSet
        self._problem: str | None
        self._is_left_out: bool  # whether the last frame of the engine has no selected rows
        self._chunk: Frame  # the last chunk with all its rows, if groups are selected
        self._begin()

    def record_frame(self, frame: Frame) -> None:
        """Record a frame of the engine. It is called before the frame is handled."""
        slots = _slots_in(frame)
        if isinstance(frame, Forget):
            self._slots.discard(slots)
            if not self._slots:
                self._end()
                return
        elif len(slots):
            self._slots.add(slots, int(slots.max()) + 1)
        if self._plan.of != "errors":
            self._learn_names()
        self._note(format_.ENGINE, frame)

    def record_answer(self, frame: Frame) -> None:
        """Record an answer."""
        if isinstance(frame, Log) and self._plan.mask:
            return
        batch = getattr(frame, "batch", None)
        if batch is not None and ERROR in batch.schema.names and batch.column(ERROR).null_count < batch.num_rows:
            self._is_kept = True
            self._learn_names()
        self._note(format_.SERVER, frame)
        if isinstance(frame, Mapped) and frame.last:
            self._end()  # scalar functions have no state, so the next chunk starts a new recording

    def record_calls(self, calls: Calls) -> None:
        """Record the answers of calls of an async function, so that a replay need not call anything.

        With masked texts they are left out: the ids depend on the texts.
        """
        if self._problem is not None or self._plan.mask or self._is_left_out:
            return
        selected_slots = set(self._selected_slots) if isinstance(self._plan.of, Mapping) else None
        answers = [
            (call_id, each)
            for index, (call_id, each) in enumerate(zip(calls.ids, calls.answers, strict=True))
            if each is not None
            and (selected_slots is None or calls.slots is None or calls.slots[index] in selected_slots)
        ]
        if answers:
            self._add(RecordingPart(format_.CALLS, b"", write_batch(_calls_of(answers, calls.result_type))))

    def record_error(self, error: FoldflightError) -> None:
        """Write the recording, and name it in the error, unless another attempt may succeed."""
        if isinstance(error, RetryableError):
            self._drop()
            return
        self._is_kept = True
        self._learn_names(first=error.slot)
        problem = self._problem
        error.recorded = self._end(error) or (problem and f"no: {problem}")

    def close(self) -> None:
        """End the recording."""
        self._end()

    # -- one recording -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._file = None
        self._unwritten_parts: list[RecordingPart | tuple[bytes, Frame]] = []
        self._bytes = self._unwritten_bytes = 0
        self._slots = SlotSet()
        self._names: dict[int, Mapping[str, Any]] = {}
        self._selected_slots: list[int] = []  # slots with known keys whose rows are recorded
        self._chunk = self._opening
        self._is_kept = self._plan.of == "all"
        self._problem = None
        self._is_left_out = False

    def _drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # close() flushes, which fails on a full disk
                self._file.close()
        _OPEN_BUDGET.release(self._bytes)
        _MEMORY_BUDGET.release(self._unwritten_bytes)
        self._begin()

    def _note(self, kind: bytes, frame: Frame) -> None:
        """Add a frame to the recording."""
        if self._problem is not None:
            return
        selected_frame = self._select(frame)
        if kind == format_.ENGINE:
            self._is_left_out = selected_frame is None
            self._is_kept |= isinstance(self._plan.of, Mapping) and isinstance(selected_frame, (Chunk, States))
        elif self._is_left_out and not isinstance(frame, Wanted):
            return  # the answers of a frame that is not recorded
        if selected_frame is None:
            return
        # Answers are encoded now, because the fold may change the memory of their batches. Frames of engines are
        # immutable.
        self._add(
            (kind, selected_frame) if kind == format_.ENGINE else RecordingPart.of(kind, self._encode(selected_frame))
        )

    def _add(self, part: RecordingPart | tuple[bytes, Frame]) -> None:
        """Keep a part in memory, or write all parts that are kept."""
        batch = None if isinstance(part, RecordingPart) else getattr(part[1], "batch", None)
        batch_bytes = len(part.batch) if isinstance(part, RecordingPart) else 0 if batch is None else batch.nbytes
        size = _FRAME_BYTES + batch_bytes
        if not _OPEN_BUDGET.acquire(size, self._plan.open_bytes_max):
            self._give_up(
                f"the exchanges that are open at once have more than {self._plan.open_bytes_max} bytes, half of "
                "bytes_max of the recordings; raise it"
            )
            return
        self._bytes += size
        fits = _MEMORY_BUDGET.acquire(size, _UNWRITTEN_BYTES_MAX)
        self._unwritten_bytes += size if fits else 0
        self._unwritten_parts.append(part)
        if not fits:
            try:
                self._write_frames()
            except (OSError, RejectedError) as error:
                self._give_up(self._cannot_write(error))

    def _cannot_write(self, error: Exception) -> str:
        """Return why the recording cannot be written, in one line."""
        why = error.strerror if isinstance(error, OSError) else getattr(error, "message", error)
        return f"cannot write into {self._plan.folder}: {why}"

    def _write_frames(self) -> IO[bytes]:
        """Write the frames in memory to the temporary file, and return the file.

        Raises:
            OSError: The file cannot be written.
            RejectedError: SETTINGS, if the folder is missing and cannot be created.
        """
        if self._file is None:
            self._plan.make_folder()
            self._file = tempfile.TemporaryFile(dir=self._plan.folder)  # noqa: SIM115
        for each in self._unwritten_parts:
            write_part(
                each if isinstance(each, RecordingPart) else RecordingPart.of(each[0], self._encode(each[1])),
                self._file.write,
            )
        self._unwritten_parts.clear()
        _MEMORY_BUDGET.release(self._unwritten_bytes)
        self._unwritten_bytes = 0
        return self._file

    def _give_up(self, problem: str) -> None:
        slots = self._slots
        self._drop()
        self._slots, self._problem = slots, problem
        self._log("exchange not recorded", {"problem": problem})

    def _select(self, frame: Frame) -> Frame | None:
        """Return a frame with the rows of the selected groups; None if there are none."""
        batch = getattr(frame, "batch", None)
        if not isinstance(self._plan.of, Mapping) or batch is None:
            return frame
        if slots_of(batch) is None:
            return frame if self._is_selected(0) else None
        self._chunk = frame if isinstance(frame, Chunk) else self._chunk
        selected_frame = of_slots(frame, pa.array(self._selected_slots, pa.int32()), self._chunk)
        return (
            None
            if isinstance(selected_frame, (Chunk, States)) and not selected_frame.batch.num_rows
            else selected_frame
        )

    def _is_selected(self, slot: int) -> bool:
        group, of = self._names.get(slot, {}), self._plan.of
        return not isinstance(of, Mapping) or all(name in group and group[name] in of[name] for name in of)

    def _learn_names(self, *, first: int | None = None) -> None:
        """Look up the keys of new slots while the engine has them, the slots in `first` before all others.

        Each lookup is a call of its own. So if only errors are recorded, at most 10,000 are looked up, after an error.
        """
        if self.group_of is None or self._opening.maps:
            return
        new = [slot for slot in self._slots.to_numpy().tolist() if slot not in self._names]
        if not isinstance(self._plan.of, Mapping):
            new = [*([first] if first in new else []), *new][: _NAMED_MAX - len(self._names)]
        self._names.update({slot: self.group_of(slot) for slot in new})
        self._selected_slots += filter(self._is_selected, new)

    def _end(self, error: FoldflightError | None = None) -> str | None:
        """Write the recording if it is selected. Return the note for the error; None if it is not written."""
        note = None
        if self._is_kept and (self._unwritten_parts or self._file is not None):
            try:
                note = self._write_recording(error)
            except (OSError, pa.ArrowException, FoldflightError) as error_of_write:
                problem = self._cannot_write(error_of_write)
                note = f"no: {problem}"
                self._log("exchange not recorded", {"problem": problem})
        self._drop()
        return note

    def _write_recording(self, error: FoldflightError | None) -> str:
        """Write the file, and return the note for the error: where the file is, and the command that replays it."""
        spool = self._write_frames()
        groups = self._groups()
        group_parts = [] if groups is None else [RecordingPart(format_.GROUPS, b"", write_batch(groups))]
        open_request = self._opening
        parts: Iterable[RecordingPart] = itertools.chain(parts_in(spool), group_parts)
        if self._plan.mask:
            masks = Masks.of(parts)
            parts = map(masks.mask_part, itertools.chain(parts_in(spool), group_parts))
            open_request = mask_open_request(open_request)
            error = None if error is None else mask_error(error)
        about = RecordingPart(format_.ABOUT, json.dumps(self._about()).encode())
        last = [] if error is None else [RecordingPart(format_.ERROR, encode_error(error))]
        path = self._write(
            itertools.chain([about, RecordingPart(format_.OPEN, encode_open(open_request))], parts, last)
        )
        remove_oldest(Path(self._plan.folder), self._plan.bytes_max - self._plan.open_bytes_max)
        command = self._command(path)
        if error is None and self._plan.of != "all":  # an error contains the name already
            self._log("exchange recorded", {"file": str(path), "replay": command})
        return f"{path} (by {self._server_id}), replay with: {command}"

    def _write(self, parts: Iterable[RecordingPart]) -> Path:
        """Write the file of a recording, and rename it when it is complete."""
        name = re.sub(r"\W", "_", self._functions[0].name)
        stem = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{name}-{secrets.token_hex(4)}"
        path = Path(self._plan.folder, stem + SUFFIX)
        partial = path.with_suffix(".part")
        try:
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                write_recording(out, without_secrets(parts), self._plan.key)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def _groups(self) -> pa.RecordBatch | None:
        """Return the keys of the recorded slots, in columns after `slot`; None if keys are unknown."""
        slots = sorted(self._selected_slots)
        groups = [self._names[slot] for slot in slots]
        if not groups or not groups[0]:
            return None
        columns = {name: _column([group[name] for group in groups]) for name in groups[0] if name != "slot"}
        return pa.RecordBatch.from_pydict({"slot": pa.array(slots, pa.int32()), **columns})

    def _about(self) -> dict[str, Any]:
        return {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "server": self._server_id,
            "foldflight": version("foldflight"),
            "python": platform.python_version(),
            "is_masked": self._plan.mask,
            "functions": list(map(facts_of, self._functions)),
        }

    def _command(self, path: Path) -> str:
        authored_functions = [each for each in self._functions if not module_of(each).startswith("foldflight.")]
        references = [facts_of(each)["where"] for each in authored_functions]
        return f"foldflight replay {shlex.quote(str(path))} {options_for(references)}".rstrip()


def _calls_of(answers: list[tuple[str, Answer]], type_: pa.DataType) -> pa.RecordBatch:
    """Return the answers of calls as rows: the id, and the result or the text of the error."""
    values, errors = [], []
    for _, answer in answers:
        error = None if answer.error is None else f"{type(answer.error).__name__}: {answer.error}"
        value = answer.value
        if error is None:
            try:
                cast_results([value], type_)
            except CastError as misfit:
                error, value = f"it returned {misfit}", None
        values.append(value)
        errors.append(error)
    columns = [
        pa.array([call_id for call_id, _ in answers]),
        cast_results(values, type_),
        pa.array(errors, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["id", "value", "error"])


def _slots_in(frame: Frame) -> Slots:
    """Return the slots of a frame of the engine; none if they are invalid, because the exchange rejects the frame."""
    if isinstance(frame, Forget):
        slots = frame.slots
    elif isinstance(frame, (Chunk, States)) and frame.batch.num_rows:
        index = frame.batch.schema.get_field_index("slot")
        if index < 0:
            return ONE_SLOT
        slots = frame.batch.column(index)
    else:
        return NO_SLOTS
    try:
        return check_slots(slots, _SLOTS_MAX)
    except RejectedError:
        return NO_SLOTS


def _column(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.array(list(map(repr, values)))


def remove_oldest(folder: Path, bytes_max: int) -> None:
    """Remove the oldest recordings of a folder until they have at most `bytes_max` bytes. The newest one stays."""
    recordings = []
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed it
            recordings.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    recordings.sort(reverse=True)
    totals = itertools.accumulate(size for _, size, _ in recordings)
    for (_, _, path), total in itertools.islice(zip(recordings, totals, strict=True), 1, None):
        if total > bytes_max:
            path.unlink(missing_ok=True)
