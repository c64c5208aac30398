"""Mask recordings: replace strings by others with the same order and equality, and bytes and JSON by NULL.

Secrets of the environment are left out of all recordings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import read_batch
from foldflight.exchange.frames import Open
from foldflight.exchange.ipc import write_batch
from foldflight.ext.recording.file import ENGINE, RecordingPart
from foldflight.fold.failures import ERROR
from foldflight.functions.types.arrow import with_members
from foldflight.shipping.secrets import mask_of_environment

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
            _part(part, collect)
        return cls(sorted(distinct))

    def masked(self, part: RecordingPart) -> RecordingPart:
        """Return a part with masked batches."""
        return _part(part, self._mask)

    def _mask(self, texts: pa.Array) -> pa.Array:
        return self._masks.take(pc.index_in(texts, value_set=self._texts))


def without_secrets(parts: Iterable[RecordingPart]) -> Iterator[RecordingPart]:
    """Yield parts with asterisks in the place of secrets of the environment: of errors, log lines, rows, parameters."""
    mask = mask_of_environment()
    for part in parts:
        yield dataclasses.replace(part, message=mask(part.message), batch=mask(part.batch))


def _part(part: RecordingPart, change: _Change) -> RecordingPart:
    """Return a part whose strings have been passed through `change`."""
    message, batch = part.message, part.batch
    if part.kind == ENGINE:
        frame = pb.EngineFrame.FromString(message)
        kind = frame.WhichOneof("frame")
        if kind in _STATES:
            inner = getattr(frame, kind)
            inner.batch = write_batch(_batch(read_batch(inner.batch, "states"), change))
            message = frame.SerializeToString()
    if batch:
        batch = write_batch(_batch(read_batch(batch, "a batch"), change))
    return dataclasses.replace(part, message=message, batch=batch)


def _batch(batch: pa.RecordBatch, change: _Change) -> pa.RecordBatch:
    columns = [
        _mask_errors(column) if name == ERROR else _array(column, change)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


def _array(array: pa.Array, change: _Change) -> pa.Array:
    """Return an array with changed strings, also nested ones. Bytes, JSON, and maps with such keys are NULL."""
    type_, kinds = array.type, pa.types
    if kinds.is_string(type_) or kinds.is_large_string(type_):
        return change(array.cast(pa.string())).cast(type_)
    # The whole map becomes NULL, because keys of maps are never NULL.
    if _has_no_mask(type_.key_type if kinds.is_map(type_) else type_):
        return pa.nulls(len(array), type_)
    return with_members(array, lambda member: _array(member, change)) if type_.num_fields else array


def _has_no_mask(type_: pa.DataType) -> bool:
    """Return whether a type is bytes or JSON: a mask would not be a valid value."""
    kinds = pa.types
    is_bytes = kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_)
    return is_bytes or isinstance(type_, pa.BaseExtensionType)


def _mask_errors(errors: pa.Array) -> pa.Array:
    masked = [
        {**each, "message": _what_raised(each["message"]), "row": None, "trace": None} if each else None
        for each in errors.to_pylist()
    ]
    return pa.array(masked, errors.type)


def _what_raised(message: str | None) -> str:
    """Return the method and the exception's class from a message. The rest may contain values of rows."""
    return (message or "").partition(":")[0] if message and " raised " in message else "masked"


def mask_error(error: FoldflightError) -> FoldflightError:
    """Return an error without the values of rows."""
    return type(error)(error.code, _what_raised(error.message), function=error.function, slot=error.slot)


def mask_open_request(open_request: Open) -> Open:
    """Return an Open without job parameters and trace context."""
    return dataclasses.replace(open_request, job_parameters={}, trace_context={})
