"""Events of Debezium read column by column are as if each value was read alone, or refused in the same words."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight.errors import RejectedError
from foldflight.ext.changes import connectcolumns
from foldflight.ext.changes.connectcolumns import UNPROVEN, column_reader
from foldflight.ext.changes.connectvalues import UNAVAILABLE, UNAVAILABLE_FORMS, DescribedColumn, Words, decoder
from foldflight.ext.changes.debeziumjson import UNPARSED
from foldflight.ext.changes.debeziummessages import OldRows
from foldflight.ext.changes.debeziumreader import Reader
from tests.debezium import INSTANT, NTZ, ORDERS, values
from tests.effort import examples

TIME = pa.time64("us")
TYPES: list[pa.DataType] = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary()),
    *(pa.date32(), TIME, NTZ, INSTANT, pa.decimal128(10, 2), pa.decimal128(38, 6), pa.decimal128(18, 0)),
    *(pa.duration("us"), pa.list_(pa.int32()), pa.map_(pa.string(), pa.string())),
]
CONNECT, DATA, TIMES = "org.apache.kafka.connect.data.", "io.debezium.data.", "io.debezium.time."
DESCRIBED: list[DescribedColumn | None] = [
    *[None] * 8,  # as often as not there is no schema block
    *(DescribedColumn(each) for each in ("int16", "int64", "float", "double", "boolean", "string", "bytes", "struct")),
    *(DescribedColumn("bytes", f"{CONNECT}Decimal", (("scale", scale),)) for scale in ("0", "2", "-3", "9", "60", "x")),
    *(DescribedColumn("int32", f"{CONNECT}{kind}") for kind in ("Date", "Time")),
    DescribedColumn("int64", f"{CONNECT}Timestamp"),
    *(
        DescribedColumn("int64", f"{TIMES}{unit}{kind}")
        for unit in ("", "Micro", "Nano")
        for kind in ("Time", "Timestamp")
    ),
    *(DescribedColumn("string", f"{TIMES}Iso{kind}") for kind in ("Date", "Time", "Timestamp")),
    *(DescribedColumn("string", f"{TIMES}Zoned{kind}") for kind in ("Time", "Timestamp")),
    *(DescribedColumn("int32", f"{TIMES}{kind}") for kind in ("Date", "Year")),
    *(DescribedColumn("int64", f"{TIMES}MicroDuration"), DescribedColumn("string", f"{TIMES}Interval")),
    *(DescribedColumn("bytes", f"{DATA}Bits"), DescribedColumn("string", f"{DATA}Json")),
    *(
        DescribedColumn("array", items=DescribedColumn("int32")),
        DescribedColumn("map", values=DescribedColumn("string")),
    ),
]
WORDS = st.builds(
    Words,
    decimals=st.sampled_from([None, "precise", "string", "double"]),
    times=st.sampled_from([None, "connect", "milliseconds", "microseconds", "nanoseconds", "isostring"]),
    binary=st.sampled_from([None, "bytes", "base64", "base64-url-safe", "hex"]),
    intervals=st.sampled_from([None, "numeric", "string"]),
)

# The ends of types and of units, and numbers next to them.
ENDS = [0, 86_400_000, 86_400_000_000, 719_162, 2_932_896, 62_135_596_800_000_000, 253_402_300_799_999_999]
ENDS += [2**bits for bits in (7, 15, 24, 31, 53, 63, 64, 127)] + [10**digits for digits in (8, 15, 18, 38, 400)]
ENDS += [9223372036825200000, 9223372036832400000, 9223372036825200, 1704067200000001000, 2**63 - 10**9]
INTEGERS = st.one_of(
    st.integers(-100, 100),
    st.integers(-(2**63), 2**63 - 1),
    st.builds(
        lambda end, sign, step: sign * end + step, st.sampled_from(ENDS), st.sampled_from([1, -1]), st.integers(-1, 1)
    ),
)
FRACTIONS = st.one_of(
    st.decimals(-(10**6), 10**6, places=2),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda each: Decimal(repr(each))),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda each: Decimal(repr(each))),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).map(Decimal),
)
DATE_TEXT = r"[0-9]{4}-[01][0-9]-[0-3][0-9]"
TIME_TEXT = r"[0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?"
TEXTS = st.one_of(
    st.text(max_size=5),
    st.from_regex(rf"{DATE_TEXT}[T ]{TIME_TEXT}(Z|[+-][01][0-9]:?[0-9]{{2}})?", fullmatch=True),
    st.from_regex(r"20[0-9]{2}-0[1-9]-[01][0-9]T1[0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z", fullmatch=True),
    st.from_regex(rf"{DATE_TEXT}Z?\n?|{TIME_TEXT}Z?", fullmatch=True),
    st.from_regex(r"[+-]?[0-9]{1,20}(\.[0-9]{0,4})?([eE][+-]?[0-9]{1,2})?\n?", fullmatch=True),
    st.integers(-(2**70), 2**70).map(
        lambda each: base64.b64encode(each.to_bytes(10, "big", signed=True).lstrip(b"\0")).decode()
    ),
    st.binary(max_size=9).map(lambda each: base64.b64encode(each).decode()),
    st.text("Aa0+/= \n-_", max_size=9),
    st.binary(max_size=4).map(bytes.hex),
    st.sampled_from(sorted(UNAVAILABLE_FORMS)),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "\ud800", "0000-01-01", "0000-01-01T00:00:00Z", "٣", "1_000"]),
)
OTHERS = st.one_of(
    st.booleans(),
    st.lists(st.none() | st.integers(0, 300), max_size=3),
    st.just([*UNAVAILABLE.encode()]),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2) | st.integers(), max_size=2),
)
KINDS = [
    INTEGERS,
    INTEGERS,
    FRACTIONS,
    TEXTS,
    TEXTS,
    TEXTS,
    st.booleans(),
    OTHERS,
    INTEGERS | FRACTIONS,
    TEXTS | INTEGERS,
]
COLUMNS = st.sampled_from(KINDS).flatmap(lambda kind: st.lists(st.none() | kind, min_size=1, max_size=4))


def outcome(run: Callable[[], Any]) -> tuple[str, object]:
    try:
        return "read", run()
    except (RejectedError, *UNPROVEN, *UNPARSED) as error:
        return type(error).__name__, str(error)


def texts_of(array: pa.Array) -> tuple[pa.DataType, list[str]]:
    """Return what tells arrays apart, also NaN and zeros with signs."""
    array.validate(full=True)
    return array.type, [*map(repr, array.to_pylist())]


@pytest.mark.slow
@given(st.sampled_from(TYPES), st.sampled_from(DESCRIBED), WORDS, COLUMNS)
@examples(20_000)
def test_a_column_read_at_once_equals_its_values_read_alone(
    type_: pa.DataType, schema_of_values: DescribedColumn | None, words: Words, column: Sequence[Any]
) -> None:
    """A column is read as its values are, one by one."""
    decode = decoder(type_, schema_of_values, words)

    def one_by_one() -> pa.Array:
        return pa.array([None if value is None else decode(value) for value in column], type_)

    expected = outcome(lambda: texts_of(one_by_one()))
    assert outcome(lambda: texts_of(column_reader(type_, schema_of_values, words)(column, None))) == expected


ROW = {
    "id": pa.int64(),
    "amount": pa.decimal128(10, 2),
    "price": pa.float64(),
    "at": NTZ,
    "paid": INSTANT,
    "note": pa.string(),
}
BLOCK_FIELDS = [
    {"field": "id", "type": "int64"},
    {"field": "amount", "type": "bytes", "name": f"{CONNECT}Decimal", "parameters": {"scale": "2"}},
    {"field": "price", "type": "double"},
    {"field": "at", "type": "int64", "name": f"{TIMES}MicroTimestamp"},
    {"field": "paid", "type": "string", "name": f"{TIMES}ZonedTimestamp"},
    {"field": "note", "type": "string"},
]
ROWS = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "amount": st.sampled_from([*["A+g=", "AA==", None] * 5, base64.b64encode(UNAVAILABLE.encode()).decode()]),
        "price": st.sampled_from([1.5, None, 0.1, 1e300]),
        "at": st.sampled_from([1704067200000000, None, -1]),
        "paid": st.sampled_from(["2024-01-01T00:00:00Z", None, "2024-01-01T00:00:00.5Z"]),
        "note": st.sampled_from([*["a", 'é",', None, '"payload":'] * 5, UNAVAILABLE]),
    }
)
ODD_ROWS = st.one_of(
    ROWS.map(lambda row: {**row, "amount": None, "price": 0.0, "at": 0, "paid": "1970-01-01T00:00:00Z", "note": ""}),
    ROWS.map(lambda row: {**row, "amount": None, "price": 0, "at": 1, "paid": None}),
    ROWS.map(lambda row: {name: value for name, value in row.items() if name != "note"}),
    ROWS.map(lambda row: {name.upper(): value for name, value in row.items()}),
    ROWS.map(lambda row: {**row, "id": "x", "more": [row]}),
    ROWS.map(lambda row: {**row, "amount": "12.5"}),
    st.sampled_from([[], 5, "x", {}]),
)
SOURCES = st.sampled_from(
    [
        *[{"schema": "inv", "table": "t", "db": "d", "lsn": 5, "more": {}}] * 5,
        {"schema": "inv", "table": "other", "lsn": 6},
        {"table": "t", "db": "inv", "file": "b.7", "pos": 4, "row": 0},
        {"table": "t", "db": "inv", "lsn": 2.5},
        *({}, None, 5),
    ]
)


@st.composite
def events(draw: st.DrawFn) -> bytes | None:
    """Return events as a connector sends them, mostly, and others, some of them damaged."""
    is_odd = draw(st.sampled_from([False] * 9 + [True]))
    rows = ODD_ROWS if is_odd else ROWS
    op = draw(st.sampled_from(["c", "r", "u", "d"] * 5 + ["m", "t", None, 5]))
    has_before, has_after = op in ("u", "d"), op != "d"
    event: dict[str, Any] = {
        "before": draw(rows) if has_before else None,
        "after": draw(rows) if has_after else None,
        "source": draw(SOURCES),
        "transaction": None,
        "op": op,
    }
    if is_odd:
        event.update(
            draw(
                st.dictionaries(
                    st.sampled_from(["op", "before", "__op", "__deleted", "payload", "schema"]),
                    st.sampled_from([None, "c", "true", {}]),
                )
            )
        )
    value: Any = event
    if draw(st.booleans()):
        more = draw(st.sampled_from([{}, {"default": "a"}, {"default": 1.5}, {"default": ""}, {"optional": True}]))
        fields = [{**each, **more} for each in BLOCK_FIELDS[: draw(st.sampled_from([6, 6, 6, 5]))]]
        block = {"fields": [{"field": name, "fields": fields} for name in ("before", "after")]}
        value = {"schema": block, "payload": event}
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=draw(st.booleans())).encode()
    if not is_odd:
        return text
    place = draw(st.integers(0, len(text)))
    damage = st.sampled_from(
        [text, text + b" ", b" " + text, text[:place], text + b"}", None, b"null", b" null\x0b", b'{"ts_ms":5}']
    )
    inserted_events = st.sampled_from(
        [b" ", b'"', b"}", b",", b"0", b"\\", b"\xff", b"\xed\xa0\x80", b'"op":"c",', b"\x00", b"\\u0061", b"\\ud800"]
    )
    return draw(damage | inserted_events.map(lambda each: text[:place] + each + text[place:]))


class ByValue(Reader):
    """The reference: a reader that reads each value alone."""

    def by_column(self, *_: object) -> Any:
        raise ValueError


KEY = b'{"schema":{"name":"s.inv.t.Key"},"payload":{"id":3}}'
MESSAGE_KEYS = st.sampled_from([*[b'{"id":5}', b'{"id":7,"note":"a"}', KEY] * 3, None, b"null", b"{"])


@pytest.mark.slow
@given(
    st.lists(st.tuples(events(), MESSAGE_KEYS, st.sampled_from(["0-", "1-"])), min_size=1, max_size=6),
    st.integers(1, 6),
    st.sampled_from([None, ("id",)]),
    st.sampled_from([None, None, "inv.t"]),
    st.tuples(*[st.booleans()] * 5),
)
@examples(8000)
def test_a_batch_read_at_once_equals_its_events_read_alone(
    actual: Sequence[tuple[bytes | None, bytes | None, str]],
    batch_rows: int,
    keys: tuple[str, ...] | None,
    table: str | None,
    options: tuple[bool, bool, bool, bool, bool],
) -> None:
    """A batch is read as its events are, one by one, also by a reader that has seen others before."""
    *flags, has_key = options
    arguments = ROW, dict.fromkeys(ROW, Words("precise", "microseconds")), table, *flags[:2], keys, *flags[2:]
    events_, message_keys, partitions = zip(*actual, strict=True)
    columns: dict[str, pa.Array] = {"value": pa.array(events_, pa.binary())}
    columns |= {"key": pa.array(message_keys, pa.binary())} if has_key else {}
    columns |= {"partition": pa.array(partitions), "offset": pa.array(range(len(actual)), pa.int64())} if keys else {}
    messages = pa.record_batch(columns)
    batches = [messages.slice(start, batch_rows) for start in range(0, len(actual), batch_rows)]
    expected = outcome(partial(columns_of, ByValue(*arguments), batches))
    reader = Reader(*arguments)
    for _ in range(2):
        assert outcome(partial(columns_of, reader, batches)) == expected


def columns_of(reader: Reader, batches: Sequence[pa.RecordBatch]) -> list[tuple[pa.DataType, list[str]]]:
    return [texts_of(each) for batch in reader(batches) for each in batch.columns]


MODES = {
    "default-schema": {},
    "default": {"decimals": "precise", "times": "microseconds"},
    "string-isostring": {"decimals": "string", "times": "isostring", "binary": "hex"},
    "double-connect": {"decimals": "double", "times": "connect"},
}


@pytest.mark.parametrize("keys", [None, ("id",)])
@pytest.mark.parametrize("mode", MODES)
def test_real_events_are_read_together(
    mode: str, keys: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the values of a real connector is read alone, and none of its envelopes by `json`."""

    def alone(*arguments: object, **_: object) -> Any:
        raise AssertionError(f"{arguments} are read alone")

    monkeypatch.setattr(connectcolumns.connectvalues, "decoder", lambda *_: alone)
    monkeypatch.setattr(Reader, "by_value", alone)
    words: dict[str, Any] = MODES[mode]
    read = Reader(ORDERS, {name: Words(**words) for name in ORDERS}, "inv.orders", False, False, keys)
    texts = [each for each in values(mode, "orders") if keys is None or each is not None]
    result = [None if each is None else each.encode() for each in texts]
    columns: dict[str, pa.Array] = {"value": pa.array(result, pa.binary())}
    columns |= {"partition": pa.array(["0-"] * len(result)), "offset": pa.array(range(len(result)))} if keys else {}
    monkeypatch.setattr(OldRows, "is_invented", alone)
    if mode != "default-schema":
        monkeypatch.setattr(Reader, "_parse_event", alone)
    batch = pa.record_batch(columns)
    assert [each.num_rows for each in read([batch, batch])] == [9 if keys else 11] * 2
