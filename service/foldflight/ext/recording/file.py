"""The file format of recordings: the frames of an exchange and their answers, each encoded as on the wire.

A file has a first line and parts. A part has a head of 13 bytes, little-endian (the kind as one ASCII character, the
bytes of the message as uint32, the bytes of the batch as uint64), the message, and the batch as an Arrow IPC stream,
which is empty if there are no rows. proto/README.md has the kinds. Reading executes nothing of the file.

Groups of a recording can be selected, and the rows and answers of some slots.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange import frames as fr
from foldflight.exchange.encoding import Decoder, Message, decode_error, decode_open, read_batch
from foldflight.exchange.ipc import write_batch
from foldflight.exchange.transitions import Role
from foldflight.functions.types.arrow import rows_to_display, to_pylist, with_column

MAGIC: Final = b"foldflight recording 1\n"
ABOUT, OPEN, ENGINE, SERVER, CALLS, GROUPS, ERROR, _END = b"A", b"O", b"E", b"S", b"C", b"G", b"X", b"Z"
_KINDS: Final = frozenset({ABOUT, OPEN, ENGINE, SERVER, CALLS, GROUPS, ERROR, _END})
_HEAD: Final = struct.Struct("<cIQ")
_PURPOSE: Final = b"foldflight.v1.Recording\0"
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True)
class RecordingPart:
    """One part of a recording."""

    kind: bytes
    message: bytes  # JSON, or a protobuf message
    batch: bytes = b""  # an Arrow IPC stream; empty if there are no rows

    @property
    def size(self) -> int:
        """Its bytes in a file."""
        return _HEAD.size + len(self.message) + len(self.batch)

    @classmethod
    def of(cls, kind: bytes, message: Message) -> RecordingPart:
        """Return the part for an encoded frame."""
        batch = message.batch
        return cls(kind, message.metadata, b"" if batch is None or not batch.num_rows else write_batch(batch))


def write_part(part: RecordingPart, write: Callable[[bytes], Any]) -> None:
    """Write one part."""
    write(_HEAD.pack(part.kind, len(part.message), len(part.batch)))
    write(part.message)
    write(part.batch)


def write_recording(file: IO[bytes], parts: Iterable[RecordingPart], key: str | None) -> None:
    """Write a recording: its parts, then the digest of all bytes, and with a key their signature."""
    digest = hashlib.sha256()

    def write(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    write(MAGIC)
    for part in parts:
        write_part(part, write)
    signature = b"" if key is None else _signature(key, digest.digest())
    write_part(RecordingPart(_END, digest.digest() + signature), file.write)


def _signature(key: str, digest: bytes) -> bytes:
    return hmac.digest(key.encode(), _PURPOSE + digest, hashlib.sha256)


@dataclass(frozen=True)
class Pair:
    """A frame of the engine, and the frames of both sides until the engine's next one.

    `answers` are results and states. `questions` are requests for entries of views, each with the entries in answer.
    """

    frame: fr.EngineFrame
    answers: list[fr.ServerFrame] = field(default_factory=list)
    questions: list[tuple[fr.Wanted, list[fr.Entries]]] = field(default_factory=list)


@dataclass(frozen=True)
class Recording:
    """The content of a recording.

    Args:
        about: Its origin: `file`, `at`, `server`, `foldflight`, `is_masked`, and `functions`, each with `name`,
            `version`, `where` and `digest`. Of dead letters it has `functions` only.
        open_request: The Open of the exchange.
        pairs: The frames, with their answers.
        groups: The keys of groups by slot; empty if they are not known, as on servers.
        error: The error that ended the exchange; None if there was none.
        calls: The answers of calls of async functions, by their ids: each is the result, and the text of the error or
            None. Equal rows have one id, and may have different answers, which are in the order of the rows.
    """

    about: Mapping[str, Any]
    open_request: fr.Open
    pairs: tuple[Pair, ...]
    groups: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    error: FoldflightError | None = None
    calls: Mapping[str, Sequence[tuple[Any, str | None]]] = field(default_factory=dict)


def read_recording(path: str | Path, *, key: str | None = None) -> Recording:
    """Read a recording. Nothing of it is executed.

    Args:
        path: The file.
        key: The key with which it must be signed. None: signatures are not verified. A signature proves the origin, not
            that states are harmless: a server also records states that it refused to unpickle.

    Raises:
        RejectedError: SETTINGS, if the file cannot be read; BAD_FRAME, if it is no recording, or damaged;
            UNAUTHENTICATED, if it is not signed with the key.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RejectedError("SETTINGS", f"cannot read the recording {path}: {error.strerror}") from None
    try:
        recording = _join_parts(_checked_parts(data, key))
    except RejectedError as error:
        raise RejectedError(error.code, f"{path}: {error.message}") from None
    return replace(recording, about={**recording.about, "file": Path(path).name})


def _checked_parts(data: bytes, key: str | None) -> list[RecordingPart]:
    if not data.startswith(MAGIC):
        raise RejectedError(
            "BAD_FRAME", f"it is no recording: it does not begin with the line {MAGIC.decode().strip()!r}"
        )
    parts = list(parts_in(io.BytesIO(data), len(MAGIC)))
    if not parts or parts[-1].kind != _END or len(parts[-1].message) not in (_DIGEST_BYTES, 2 * _DIGEST_BYTES):
        raise RejectedError("BAD_FRAME", "the recording has no end, so it was cut off; copy the file again")
    *parts, end = parts
    digest, signature = end.message[:_DIGEST_BYTES], end.message[_DIGEST_BYTES:]
    if hashlib.sha256(data[: len(data) - end.size]).digest() != digest:
        raise RejectedError("BAD_FRAME", "the recording is damaged: its bytes do not match its digest; copy it again")
    if key is not None and not hmac.compare_digest(_signature(key, digest), signature):
        raise RejectedError(
            "UNAUTHENTICATED",
            "the recording is not signed with the given key" + ("" if signature else ": it is not signed at all"),
        )
    return parts


def parts_in(file: IO[bytes], start: int = 0) -> Iterator[RecordingPart]:
    """Yield the parts of a file from an offset on. Raises RejectedError BAD_FRAME for an invalid part."""
    size = file.seek(0, io.SEEK_END)
    file.seek(start)
    while head := file.read(_HEAD.size):
        kind, message_bytes, batch_bytes = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
        if len(head) == _HEAD.size and kind not in _KINDS:
            raise RejectedError("BAD_FRAME", f"the part at byte {start} has the unknown kind {kind!r}")
        start += _HEAD.size + message_bytes + batch_bytes
        if start > size:
            raise RejectedError(
                "BAD_FRAME", f"a part ends after byte {size}, where the file was cut off; copy it again"
            )
        yield RecordingPart(kind, file.read(message_bytes), file.read(batch_bytes))


def _join_parts(parts: Sequence[RecordingPart]) -> Recording:
    if [each.kind for each in parts[:2]] != [ABOUT, OPEN]:
        raise RejectedError("BAD_FRAME", "the recording does not begin with the parts A and O")
    about, open_request = _about(parts[0].message), decode_open(parts[1].message)
    groups: Mapping[int, Mapping[str, Any]] = {}
    error: FoldflightError | None = None
    pairs: list[Pair] = []
    calls: dict[str, list[tuple[Any, str | None]]] = {}
    decoders = {ENGINE: Decoder(Role.ENGINE), SERVER: Decoder(Role.SERVER)}
    for part in parts[2:]:
        if part.kind in decoders:
            _add(pairs, decoders[part.kind](Message(part.message, batch_of(part))))
        elif part.kind == CALLS:
            for call_id, answer in _calls(batch_of(part)):
                calls.setdefault(call_id, []).append(answer)
        elif part.kind == GROUPS:
            groups = _groups(batch_of(part))
        elif part.kind == ERROR:
            error = decode_error(part.message)
            if error is None:
                raise RejectedError("BAD_FRAME", "the error of the recording cannot be decoded")
        else:
            raise RejectedError("BAD_FRAME", f"a part of the kind {part.kind.decode()} is in the middle")
    return Recording(about, open_request, tuple(pairs), groups, error, calls)


def _calls(batch: pa.RecordBatch) -> Iterator[tuple[str, tuple[Any, str | None]]]:
    if batch.schema.names != ["id", "value", "error"]:
        raise RejectedError("BAD_FRAME", "the calls of the recording have not the columns id, value and error")
    for call_id, value, error in zip(*(to_pylist(column) for column in batch.columns), strict=True):
        yield str(call_id), (value, None if error is None else str(error))


def batch_of(part: RecordingPart) -> pa.RecordBatch:
    """Return the batch of a part."""
    if not part.batch:
        return pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    batch = read_batch(part.batch, "a batch of the recording")
    if len(set(batch.schema.names)) < batch.num_columns:
        raise RejectedError("BAD_FRAME", "a batch of the recording has two columns of one name")
    return batch


def _add(pairs: list[Pair], frame: Any) -> None:
    """Add the next frame of the recording to the pairs."""
    if isinstance(frame, fr.Entries) and pairs and pairs[-1].questions and not _is_answered(pairs[-1]):
        pairs[-1].questions[-1][1].append(frame)
    elif isinstance(frame, (fr.States, fr.Entries, fr.Chunk, fr.Barrier, fr.Forget, fr.Checkpoint)):
        pairs.append(Pair(frame))
    elif not pairs:
        raise RejectedError("BAD_FRAME", f"the recording has {type(frame).__name__} before any frame of the engine")
    elif isinstance(frame, fr.Wanted):
        pairs[-1].questions.append((frame, []))
    elif not isinstance(frame, fr.Log):
        pairs[-1].answers.append(frame)


def _is_answered(pair: Pair) -> bool:
    entries = pair.questions[-1][1]
    return bool(entries) and entries[-1].last


def _about(message: bytes) -> Mapping[str, Any]:
    try:
        about: dict[str, Any] = json.loads(message)
        about = {name: about[name] for name in ("at", "server", "foldflight", "is_masked", "functions")}
        facts = ("name", "version", "where", "digest")
        about["functions"] = [{name: str(each[name]) for name in facts} for each in about["functions"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise RejectedError("BAD_FRAME", "the part A of the recording is not the JSON that it must be") from None
    return about


def _groups(batch: pa.RecordBatch) -> Mapping[int, Mapping[str, Any]]:
    if "slot" not in batch.schema.names or batch.schema.field("slot").type != pa.int32():
        raise RejectedError("BAD_FRAME", "the groups of the recording have no column slot of type int32")
    rows = rows_to_display(batch)
    return {row.pop("slot"): row for row in rows}


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


def of_slots(frame: F, kept_slots: pa.Array, request: fr.Frame) -> F:
    """Return a frame of the engine, or an answer, with the rows of some slots only.

    Args:
        frame: The frame.
        kept_slots: The slots to keep, int32.
        request: For outputs of rows: the chunk with these rows.
    """
    if isinstance(frame, fr.Forget):
        return replace(frame, slots=frame.slots.filter(pc.is_in(frame.slots, value_set=kept_slots)))
    batch = getattr(frame, "batch", None)
    slots = None if batch is None else slots_of(batch)
    if batch is None or slots is None:
        return frame
    if isinstance(frame, fr.RowOutputs) and isinstance(request, fr.Chunk):
        # In these answers, `slot` is the number of the row in the chunk.
        owners = slots_of(request.batch)
        if owners is None:
            return frame
        numbers = pa.array(np.cumsum(pc.is_in(owners, value_set=kept_slots)) - 1, pa.int32())
        batch, slots = with_column(batch, "slot", numbers.take(slots)), owners.take(slots)
    return replace(frame, batch=batch.filter(pc.is_in(slots, value_set=kept_slots)))


def of_groups(recording: Recording, slots: Iterable[int]) -> Recording:
    """Return a recording that has only the rows and answers of these slots."""
    kept_slots = pa.array(sorted(slots), pa.int32())
    pairs = []
    for pair in recording.pairs:
        frame = of_slots(pair.frame, kept_slots, pair.frame)
        if not isinstance(frame, (fr.Chunk, fr.States, fr.Entries)) or frame.batch.num_rows:
            answers = [of_slots(each, kept_slots, pair.frame) for each in pair.answers]
            pairs.append(Pair(frame, answers, pair.questions))
    return replace(recording, pairs=tuple(pairs))


def groups_named(recording: Recording, key_texts: Mapping[str, str]) -> list[int]:
    """Return the slots of the groups with these keys, given as text: {"customer": "ann"}, or {"slot": "3"}.

    Raises:
        RejectedError: SIGNATURE, with the groups that there are, if there is none.
    """
    slots = sorted({slot for pair in recording.pairs for slot in slots_in(pair.frame)})
    groups = {slot: {**recording.groups.get(slot, {}), "slot": slot} for slot in slots}
    matching_groups = [
        slot
        for slot, group in groups.items()
        if all(name in group and text in (str(group[name]), repr(group[name])) for name, text in key_texts.items())
    ]
    if not matching_groups:
        some = [_group_text(group) for group in islice(groups.values(), _NAMED_MAX)]
        some += ["..."] if len(groups) > _NAMED_MAX else []
        failed_slot = recording.error.slot if recording.error else None
        keyless = "" if failed_slot is None else f"; the recorded error is of slot={failed_slot}"
        keyless = f". Servers know no keys, so their recordings have slots only: give --group slot=N{keyless}"
        raise RejectedError(
            "SIGNATURE",
            f"the recording has no group {_group_text(key_texts)}; it has {', '.join(some) or 'no rows'}"
            f"{'' if recording.groups else keyless}",
        )
    return matching_groups


def _group_text(group: Mapping[str, Any]) -> str:
    """Return a group in the form of the option `--group`: its keys, or its slot if they are unknown."""
    names = [name for name in group if name != "slot"] or ["slot"]
    return " ".join(f"{name}={group[name]}" for name in names)
