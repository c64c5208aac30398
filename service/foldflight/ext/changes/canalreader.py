"""The task that reads Canal's events in batches: it converts the texts of their rows to columns of the declared types.

`cdc` is the reference: its expressions of Spark define each value and each refusal. The task here reads
events in another way where it can prove that the result is the same: rows of texts, each written as the database writes
it. It leaves any other event to the expressions, and all events of a batch with any other text.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.engine.query.layout import ROW_KIND
from foldflight.ext.changes.connectcolumns import UNPROVEN
from foldflight.ext.changes.debeziumjson import UNPARSED
from foldflight.spark.worker import without_garbage_collection

UNREAD: Final = "unread"
"""The column with the messages that are left to the expressions."""

VALUE: Final = "value"

_MSGSPEC: Final[Any] = importlib.import_module("msgspec") if importlib.util.find_spec("msgspec") else None
_NOTHING: Final = b"null"
_MEMBERS: Final = (b'"type"', b'"data"', b'"old"', b'"isDdl"', b'"_tidb"')
_KINDS: Final = {"INSERT": "+I", "DELETE": "-D", "UPDATE": "+U"}
_INTEGER: Final = r"^-?[0-9]{1,18}$"
_DOUBLE: Final = r"^-?[0-9]{1,15}(\.[0-9]{1,30})?$"  # an integer of more digits may be rounded
_BOOLEAN: Final = r"^(0|1|true|false)$"
_DATE: Final = r"^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}$"
_TIMESTAMP: Final = rf"{_DATE[:-1]} [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?$"

_Texts = Sequence[str | None]
_Convert = Callable[[_Texts], pa.Array]
"""Converts the texts of a column; raises an error of `UNPROVEN` if it cannot prove the result."""


def canal_reader(types: Mapping[str, pa.DataType], *, fills_missing: bool) -> CanalReader | None:
    """Return the task that reads events of Canal; None without msgspec, or for types that expressions must read.

    Args:
        types: The declared columns. Timestamps are read without a zone.
        fills_missing: Whether a column that an event lacks is NULL.
    """
    if _MSGSPEC is None or None in map(_conversion, types.values()):
        return None
    return CanalReader(dict(types), fills_missing)


@dataclass
class CanalReader:
    """The task: batches of messages, with their values in `VALUE`, to batches of rows.

    Args:
        types: The declared columns.
        fills_missing: Whether a column that an event lacks is NULL.
    """

    types: dict[str, pa.DataType]
    fills_missing: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each event; for one that is left to the expressions, a row with its message in `UNREAD`."""
        for batch in batches:
            try:
                with without_garbage_collection():
                    kinds, rows, unread_places = self._read(batch)
            except UNPROVEN:
                count = batch.num_rows
                kinds, unread_places = [None] * count, [*range(count)]
                rows = [pa.nulls(count, type_) for type_ in self.types.values()]
            messages = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
            unread_messages = messages.take(pa.array(unread_places, pa.int64()))
            names = [ROW_KIND, *(f"field_{at}" for at in range(len(rows))), UNREAD]
            yield pa.RecordBatch.from_arrays([pa.array(kinds, pa.string()), *rows, unread_messages], names=names)

    def _read(self, batch: pa.RecordBatch) -> tuple[list[str | None], list[pa.Array], list[int | None]]:
        """Return kinds, columns, and for each row the place of its event if it is left to the expressions.

        Raises the errors of UNPROVEN.
        """
        kinds: list[str | None] = []
        rows: list[_Texts] = []
        unread_places: list[int | None] = []
        nothing = (None,) * len(self.types)
        values = batch.column(VALUE)
        may_have_space = _may_have_space_behind_quote(values)
        for place, value in enumerate(values.to_pylist()):
            changes = self._changes(value, may_have_space=may_have_space)
            if changes is None:
                kinds.append(None)
                rows.append(nothing)
                unread_places.append(place)
                continue
            for kind, row in changes:
                kinds.append(kind)
                rows.append(row)
                unread_places.append(None)
        texts = [*zip(*rows, strict=True)] or [()] * len(self.types)
        return kinds, [convert(each) for convert, each in zip(self._converts, texts, strict=True)], unread_places

    def _changes(self, value: bytes, *, may_have_space: bool) -> list[tuple[str, _Texts]] | None:
        """Return the rows of an event with their kinds; None if the expressions must read it.

        Args:
            value: The message.
            may_have_space: Whether there may be space behind a quote in it.
        """
        parse_event, parse_rows = self._parsers
        try:
            event = parse_event(value)
            kind = _KINDS.get(event.type)
            # An event without isDdl, or with _tidb, comes from another tool.
            if kind is None or event.data is None or event.isDdl is None or event.is_tidb is not None:
                return None
            data, old = bytes(event.data), _NOTHING if event.old is None else bytes(event.old)
            new_rows = parse_rows(data)
            old_rows = None if old == _NOTHING else parse_rows(old)
        except UNPARSED:
            return None
        if _repeats_members(value):
            return None
        if not new_rows or None in new_rows or _may_repeat_names(data, new_rows, may_have_space=may_have_space):
            return None
        try:
            if kind != "+U":
                return None if old_rows is not None else [(kind, self._texts(row)) for row in new_rows]
            if old_rows is None or len(old_rows) != len(new_rows) or None in old_rows:
                return None
            if _may_repeat_names(old, old_rows, may_have_space=may_have_space):
                return None
            changes: list[tuple[str, _Texts]] = []
            for row, before in zip(new_rows, old_rows, strict=True):
                if not before.keys() <= row.keys():
                    return None
                changes += [("-U", self._texts({**row, **before})), (kind, self._texts(row))]
        except KeyError:  # a column is missing
            return None
        return changes

    def _texts(self, row: Mapping[str, str | None]) -> _Texts:
        """Return the texts of the declared columns. Raises KeyError for one that a row lacks and that is not filled."""
        if self.fills_missing:
            return [row.get(name) for name in self.types]
        values = self._select_values(row)
        return values if len(self.types) > 1 else (values,)

    @cached_property
    def _select_values(self) -> Callable[[Mapping[str, str | None]], Any]:
        return itemgetter(*self.types)

    @cached_property
    def _converts(self) -> list[_Convert]:
        return [convert for type_ in self.types.values() if (convert := _conversion(type_)) is not None]

    @cached_property
    def _parsers(self) -> tuple[Callable[[bytes], Any], Callable[[Any], Any]]:
        """Return two parsers: of an event, and of the JSON of its rows."""
        if _MSGSPEC is None:  # the driver has msgspec, and this worker lacks it
            return _parse_nothing, _parse_nothing
        members = {"type": str | None, "data": _MSGSPEC.Raw, "old": _MSGSPEC.Raw, "isDdl": Any, "is_tidb": Any}
        event = _MSGSPEC.json.Decoder(
            _MSGSPEC.defstruct(
                "Event",
                [(name, type_, None) for name, type_ in members.items()],
                rename={"is_tidb": "_tidb"},
                gc=False,
            )
        )
        rows = _MSGSPEC.json.Decoder(list[dict[str, str | None] | None] | None)
        return event.decode, rows.decode


def _repeats_members(value: bytes) -> bool:
    """Return whether an event has a member twice, of which a parser keeps the last one."""
    if all(value.count(name) <= 1 for name in _MEMBERS):
        return False
    members: list[tuple[str, Any]] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        members[:] = pairs  # the event itself comes last

    json.loads(value, object_pairs_hook=note)
    return len(dict(members)) != len(members)


def _may_repeat_names(text: bytes, rows: Sequence[Mapping[str, Any]], *, may_have_space: bool) -> bool:
    """Return whether an object may have a name twice, of which a parser keeps one value. False is certain.

    Args:
        text: The JSON of objects whose values are texts or null.
        rows: The objects.
        may_have_space: Whether there may be space behind a quote.
    """
    # Each name ends with a quote and a colon. There are more of both if a text has them, and fewer only if there is
    # space between them.
    return text.count(b'":') != sum(map(len, rows)) or (may_have_space and _has_space_behind_quote(text))


def _has_space_behind_quote(text: bytes) -> bool:
    return b'" ' in text or b'"\t' in text or b'"\n' in text or b'"\r' in text


def _may_have_space_behind_quote(values: pa.Array) -> bool:
    """Return whether one of n messages may have space behind a quote. False is certain."""
    data = values.buffers()[2]
    if data is None:
        return False
    text = np.frombuffer(data, np.uint8)
    return bool(np.any((text[:-1] == ord('"')) & (text[1:] <= ord(" "))))


def _parse_nothing(value: bytes) -> Any:  # noqa: ARG001
    raise ValueError("no event is parsed here")


def _conversion(type_: pa.DataType) -> _Convert | None:
    """Return the function that converts texts to a type; None if expressions must convert them."""
    types = pa.types
    if types.is_string(type_):
        return partial(pa.array, type=pa.string())
    if types.is_binary(type_):
        return _latin_1
    if types.is_decimal128(type_):
        # Arrow's cast multiplies without a check for 128 bits, so it would return another number for more digits.
        digits = type_.precision - type_.scale
        whole = f"[0-9]{{1,{digits}}}" if digits else "0"
        fraction = rf"(\.[0-9]{{1,{type_.scale}}})?" if type_.scale else ""
        return partial(_cast_matching, type_, rf"^-?{whole}{fraction}$")
    patterns: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
        (types.is_signed_integer, _INTEGER),
        (types.is_float64, _DOUBLE),
        (types.is_boolean, _BOOLEAN),
        (types.is_date32, _DATE),
        (lambda each: types.is_timestamp(each) and each.tz is None, _TIMESTAMP),
    )
    return next((partial(_cast_matching, type_, pattern) for holds, pattern in patterns if holds(type_)), None)


def _cast_matching(type_: pa.DataType, pattern: str, values: _Texts) -> pa.Array:
    """Cast texts that match a pattern. Raises ValueError for others, and Arrow's errors for values out of range."""
    texts = pa.array(values, pa.string())
    if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
        raise ValueError("a text is of another form")
    return texts.cast(type_)


def _latin_1(values: _Texts) -> pa.Array:
    return pa.array([None if value is None else value.encode("latin-1") for value in values], pa.binary())
