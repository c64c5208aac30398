"""Masking of recordings: texts are replaced by others that are equal and ordered as they are; bytes are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.codec import read_batch, write_batch
from foldflight.exchange.frames import Open
from foldflight.fold import ERROR
from foldflight.recording.file import ENGINE, Part

__all__ = ["Masks", "masked_error", "masked_opening"]

_STATES = ("states", "entries")


class Masks:
    """The texts of a recording with their masks.

    The masks are numbered in the order of the texts, so they are ordered alike. The empty text stays.

    Args:
        texts: The texts, ascending, each once.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        width = len(str(len(texts)))
        self._texts = pa.array(texts, pa.string())
        self._masks = pa.array([f"text{place:0{width}}" if text else "" for place, text in enumerate(texts)])

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Masks:
        """Return the masks of all texts in the batches of parts."""
        found: set[str] = set()
        for part in parts:
            for batch in _batches_in(part):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if name != ERROR:
                        found.update(text for text in _texts_in(column) if text is not None)
        return cls(sorted(found))

    def masked(self, part: Part) -> Part:
        """Return a part with masked batches."""
        message, batch = part.message, part.batch
        if part.kind == ENGINE:
            frame = pb.EngineFrame.FromString(message)
            kind = frame.WhichOneof("frame")
            if kind in _STATES:
                inner = getattr(frame, kind)
                inner.batch = write_batch(self._batch(read_batch(inner.batch, "states")))
                message = frame.SerializeToString()
        if batch:
            batch = write_batch(self._batch(read_batch(batch, "a batch")))
        return dataclasses.replace(part, message=message, batch=batch)

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            _masked_errors(column) if name == ERROR else self._array(column)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        if not columns:
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _array(self, array: pa.Array) -> pa.Array:
        type_, kinds = array.type, pa.types
        if kinds.is_string(type_) or kinds.is_large_string(type_):
            places = pc.index_in(array.cast(pa.string()), value_set=self._texts)
            return self._masks.take(places).cast(type_)
        if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
            return pa.nulls(len(array), type_)
        nulls = array.is_null()
        if kinds.is_struct(type_):
            members = [self._array(array.field(place)) for place in range(type_.num_fields)]
            return pa.StructArray.from_arrays(members, fields=list(type_), mask=nulls)
        if kinds.is_map(type_):
            items = [self._array(array.keys), self._array(array.items)]
            return pa.MapArray.from_arrays(_offsets(array), *items, type=type_)
        if kinds.is_list(type_) or kinds.is_large_list(type_):
            return type(array).from_arrays(_offsets(array), self._array(array.values), type=type_)
        if kinds.is_fixed_size_list(type_):
            return pa.FixedSizeListArray.from_arrays(self._array(array.values), type=type_, mask=nulls)
        return array


def _offsets(array: pa.Array) -> pa.Array:
    """Return the offsets of lists; NULL stands for a list that is NULL."""
    ends = pa.array([False]) if not len(array) else pa.concat_arrays([array.is_null(), pa.array([False])])
    return pc.if_else(ends, pa.scalar(None, array.offsets.type), array.offsets)


def _batches_in(part: Part) -> Iterator[pa.RecordBatch]:
    if part.batch:
        yield read_batch(part.batch, "a batch")
    if part.kind == ENGINE:
        frame = pb.EngineFrame.FromString(part.message)
        kind = frame.WhichOneof("frame")
        if kind in _STATES:
            yield read_batch(getattr(frame, kind).batch, "states")


def _texts_in(array: pa.Array) -> Iterator[str | None]:
    type_, kinds = array.type, pa.types
    if kinds.is_string(type_) or kinds.is_large_string(type_):
        yield from pc.unique(array).to_pylist()
    elif kinds.is_struct(type_):
        for place in range(type_.num_fields):
            yield from _texts_in(array.field(place).filter(array.is_valid()))  # behind a NULL may be anything
    elif kinds.is_map(type_):
        yield from _texts_in(array.keys)
        yield from _texts_in(array.items)
    elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        yield from _texts_in(array.values)


def _masked_errors(errors: pa.Array) -> pa.Array:
    kept = [
        {**each, "message": _what_raised(each["message"]), "row": None, "trace": None} if each else None
        for each in errors.to_pylist()
    ]
    return pa.array(kept, errors.type)


def _what_raised(message: str | None) -> str:
    """Return the start of a message: the method and the class of the exception. The rest may have values of rows."""
    return (message or "").partition(":")[0] if message and " raised " in message else "masked"


def masked_error(error: FoldflightError) -> FoldflightError:
    """Return an error without the values of rows."""
    return type(error)(error.code, _what_raised(error.message), function=error.function, slot=error.slot)


def masked_opening(opening: Open) -> Open:
    """Return an Open without job parameters and trace context."""
    return dataclasses.replace(opening, job_parameters={}, trace_context={})
