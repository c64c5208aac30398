"""Events of Debezium as rows: real events of five modes beside the database's answer, and refusals."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from foldflight.engine.stream.upserts import NO_POSITION
from foldflight.errors import RejectedError
from foldflight.ext.changes import debeziumjson, debeziumreader
from foldflight.ext.changes.connectvalues import UNAVAILABLE, Words
from foldflight.ext.changes.debeziumreader import PAYLOAD, Reader
from tests.debezium import INSTANT, NTZ, ORDERS, archive, values

TIME = pa.time64("us")
DURATION = pa.duration("us")
KINDS: dict[str, pa.DataType] = {
    **dict.fromkeys(("c_serial", "c_int"), pa.int32()),
    "c_small": pa.int16(),
    **dict.fromkeys(("c_big", "c_oid"), pa.int64()),
    "c_num": pa.decimal128(10, 2),
    "c_num38": pa.decimal128(38, 10),
    "c_numint": pa.decimal128(12, 0),
    "c_numfree": pa.decimal128(38, 6),
    "c_money": pa.decimal128(19, 2),
    "c_real": pa.float32(),
    "c_double": pa.float64(),
    "c_bool": pa.bool_(),
    "c_bytea": pa.binary(),
    "c_date": pa.date32(),
    **dict.fromkeys(("c_time", "c_time3"), TIME),
    **dict.fromkeys(("c_ts", "c_ts0", "c_ts3"), NTZ),
    "c_tstz": INSTANT,
    "c_ints": pa.list_(pa.int32()),
    "c_texts": pa.list_(pa.string()),
    "c_nums": pa.list_(pa.decimal128(10, 2)),
    "c_tss": pa.list_(NTZ),
    "c_dates": pa.list_(pa.date32()),
    "c_bit1": pa.bool_(),
    **dict.fromkeys(("c_bit8", "c_varbit"), pa.binary()),
    **dict.fromkeys(
        (
            *("c_text", "c_varchar", "c_char", "c_uuid", "c_json", "c_jsonb", "c_enum", "c_hstore", "c_inet", "c_cidr"),
            *("c_mac", "c_range", "c_tsrange", "c_daterange", "c_xml", "c_citext", "c_ltree", "c_tsv", "c_timetz"),
            *("c_interval", "c_point"),
        ),
        pa.string(),
    ),
}
WORDS = {
    "default-schema": {},
    "default": {"decimals": "precise", "times": "microseconds"},
    "transactions": {"decimals": "precise", "times": "microseconds"},
    "string-isostring": {"decimals": "string", "times": "isostring", "binary": "hex"},
    "double-connect": {"decimals": "double", "times": "connect"},
}
MILLISECONDS = dict.fromkeys(("c_time3", "c_ts0", "c_ts3", "ts3"), "milliseconds")
"""The unit of columns of up to three digits in the mode `adaptive`, which the default is."""

REFUSED = {
    # 24:00:00 is no time of a day, months of intervals are approximated, points have no reader.
    "default-schema": {"c_time", "c_interval", "c_point"},
    # The scale of a numeric without one stands in each value, as NaN does; points are objects.
    "default": {"c_time", "c_point"},
    "transactions": {"c_time", "c_point"},
    # numeric's NaN is the text NAN.
    "string-isostring": {"c_numfree", "c_point", "c_bit8", "c_varbit"},
    "double-connect": {"c_numfree", "c_time", "c_point"},
}
LOST = {
    # Microseconds of intervals are a number that is no interval of the database.
    "default": {"c_interval"},
    "transactions": {"c_interval"},
    # 24:00:00 is sent as 00:00:00; intervals are texts of ISO 8601.
    "string-isostring": {"c_time", "c_interval"},
    # Microseconds are cut off; intervals as above.
    "double-connect": {"c_interval"},
}


def reader(types: Mapping[str, pa.DataType], words: Mapping[str, Any] = {}, **options: Any) -> Reader:
    return Reader(
        **{
            "types": dict(types),
            "words": {name: Words(**words) for name in types},
            "table": None,
            "fills_missing": False,
            "is_case_sensitive": False,
            "keys": None,
            **options,
        }
    )


def rows(
    read: Reader, events: Iterable[Any], message_keys: Iterable[Any] | None = None, batch_rows: int = 1 << 20
) -> list[dict[str, Any]]:
    """Return the rows of events, which are objects, texts or None, as their keys are."""
    columns = {"value": texts_of(events)}
    count = len(columns["value"])
    columns |= {} if message_keys is None else {"key": texts_of(message_keys)}
    columns |= (
        {"partition": pa.array(["0-"] * count), "offset": pa.array(range(count), pa.int64())} if read.keys else {}
    )
    batch = pa.RecordBatch.from_pydict(columns)
    parts = (batch.slice(start, batch_rows) for start in range(0, count, batch_rows))
    return [row for result in read(parts) for row in result.to_pylist()]


def texts_of(values: Iterable[Any]) -> pa.Array:
    texts = [each if each is None or isinstance(each, str | bytes) else json.dumps(each) for each in values]
    return pa.array([each.encode() if isinstance(each, str) else each for each in texts], pa.binary())


def live(changes: Iterable[dict[str, Any]]) -> Counter[str]:
    """Return the rows that are left; none may have been retracted that was not there."""
    table: Counter[str] = Counter()
    for row in changes:
        values = repr({name: value for name, value in row.items() if name != "row_kind"})
        table[values] += 1 if row["row_kind"].startswith("+") else -1
    assert min(table.values(), default=0) >= 0
    return +table


def expected(name: str, value: Any, type_: pa.DataType) -> Any:
    """Return a value of the database's JSON as the declared type has it."""
    if value is None:
        return None
    if pa.types.is_list(type_):
        return [expected(name, each, type_.value_type) for each in value]
    if pa.types.is_decimal(type_):
        return Decimal(str(value).replace("$", "").replace(",", "")).quantize(
            Decimal(1).scaleb(-type_.scale), context=Context(prec=60)
        )
    if name in ("c_json", "c_jsonb", "c_hstore"):
        return value
    if name == "c_bit1":
        return value == "1"
    if name in ("c_bit8", "c_varbit"):  # the first bit is the highest, and the first byte the lowest
        return int(value, 2).to_bytes((len(value) + 7) // 8, "little")
    if pa.types.is_binary(type_):
        return bytes.fromhex(value[2:])
    if pa.types.is_integer(type_):
        return int(value)
    if pa.types.is_date(type_):
        return dt.date.fromisoformat(value)
    if pa.types.is_time(type_):
        return value if value.startswith("24") else dt.time.fromisoformat(value)
    if pa.types.is_timestamp(type_):
        return dt.datetime.fromisoformat(value)
    if name == "c_timetz":  # the connector converts it to UTC
        return {"10:11:12.5+02": "08:11:12.5Z", "00:00:00+00": "00:00:00Z"}.get(value, value)
    return value


def readable_value(name: str, value: Any) -> Any:
    return json.loads(value) if name in ("c_json", "c_jsonb", "c_hstore") and value is not None else value


def column_of(mode: str, name: str) -> str:
    """Return `equal`, `refused` or `lost`: what becomes of a column of the table of 49 types."""
    words: dict[str, Any] = dict(WORDS[mode])
    if words.get("times") == "microseconds" and name in MILLISECONDS:
        words["times"] = "milliseconds"
    type_ = KINDS[name]
    read, events = reader({"id": pa.int64(), name: type_}, words), values(mode, "kinds")
    if name in REFUSED[mode]:
        with pytest.raises(RejectedError, match=f"the column {name} of an event has the value ") as excinfo:
            rows(read, events)
        assert excinfo.value.code == "SCHEMA_MISMATCH"
        return "refused"
    changes = rows(read, events)
    table: dict[int, Any] = {}
    for row in changes:
        if row["row_kind"].startswith("+"):
            table[row["id"]] = readable_value(name, row[name])
        elif row["row_kind"] == "-D":
            del table[row["id"]]
    truth = json.loads(archive()["truth"])["phase9"]["kinds"]
    result = {row["id"]: expected(name, row[name], type_) for row in truth}
    if type_ == pa.float32():
        return (
            "equal"
            if str(pa.array(table.values(), type_)) == str(pa.array([result[id_] for id_ in table], type_))
            else "lost"
        )
    if pa.types.is_decimal(type_):  # the database's JSON was read as floats
        table, result = (
            {id_: None if each is None else float(each) for id_, each in one.items()} for one in (table, result)
        )
    return "equal" if table == result else "lost"


@pytest.mark.parametrize("mode", WORDS)
def test_each_type_is_equal_or_refused(mode: str) -> None:
    """A value equals the database's, or is an error that names the column; only what the connector loses differs."""
    result = {name: column_of(mode, name) for name in KINDS}
    assert {name for name, what in result.items() if what == "lost"} == LOST.get(mode, set())


def truth_of(table: str, phase: str = "phase9") -> Counter[str]:
    result = json.loads(archive()["truth"])[phase][table]
    return Counter(repr({name: expected(name, row[name], type_) for name, type_ in ORDERS.items()}) for row in result)


def truth_in(mode: str, table: str) -> Counter[str]:
    """Return the table as a mode sends it: `connect` cuts off microseconds."""
    cut = ", 0, 0, 0, 1)" if mode == "double-connect" else None
    return Counter(text.replace(cut, ", 0, 0)") if cut else text for text in truth_of(table).elements())


def in_utc(changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "paid": row["paid"] and row["paid"].astimezone(dt.UTC)} for row in changes]


@pytest.mark.parametrize("mode", WORDS)
def test_changes_sum_up_to_the_table(mode: str) -> None:
    """The rows that are left equal the database's, in each mode of the connector."""
    assert live(in_utc(rows(reader(ORDERS, WORDS[mode]), values(mode, "orders")))) == truth_in(mode, "orders")


def test_large_values_that_were_not_sent_are_kept_or_refused() -> None:
    """With keys their columns are named, also in events with other names; but not for a key or a deleted row."""
    read = reader({"x": pa.int64(), "text": pa.string(), "tags": pa.list_(pa.string())}, keys=("x",))
    row = {"x": 1, "text": UNAVAILABLE, "tags": [UNAVAILABLE]}
    source = {"lsn": 1}
    result = rows(read, [event("u", after=row, source=source), event("d", before=row, source=source)])
    assert [(each["text"], each["tags"], each["debezium_unsent"]) for each in result] == [
        (None, None, ["text", "tags"]),
        (None, None, None),
    ]
    with pytest.raises(RejectedError, match="the column x of an event has the value"):
        rows(read, [event("u", after={**row, "x": UNAVAILABLE}, source=source)])


@pytest.mark.parametrize("mode", ["default", "default-schema", "double-connect", "string-isostring"])
def test_upserts_have_the_last_row_of_each_key(mode: str) -> None:
    """With keys the old rows are not needed."""
    words = WORDS[mode]
    last: dict[int, dict[str, Any]] = {}
    events = [value for value in values(mode, "orders_key") if value is not None]
    for row in in_utc(rows(reader(ORDERS, words, keys=("id",)), events)):
        sequence = row.pop("debezium_sequence")
        assert sequence["log"] == ""
        assert sequence["position"] > 0
        assert row.pop("debezium_unsent") is None
        last[row["id"]] = row
    result = Counter(repr(row) for row in last.values() if not row.pop("debezium_deleted"))
    assert result == truth_in(mode, "orders_key")


def event(op: str, before: Any = None, after: Any = None, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"schema": "inv", "table": "t", "lsn": 5}, **more}


def block(**columns: Mapping[str, Any]) -> dict[str, Any]:
    fields = [{"field": name, **description} for name, description in columns.items()]
    return {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": fields}]}


def in_block(value: Any, **description: Any) -> dict[str, Any]:
    return {"schema": block(x=description), "payload": event("c", after={"x": value})}


def base64_of(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


TIME_NAME, DATA_NAME, CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."


@pytest.mark.parametrize(
    ("description", "value", "type_", "actual"),
    [
        ({"name": f"{TIME_NAME}MicroTimestamp", "type": "int64"}, 1704067200000000, INSTANT, dt.datetime(2024, 1, 1)),
        ({"name": f"{TIME_NAME}Timestamp", "type": "int64"}, -1, NTZ, dt.datetime(1969, 12, 31, 23, 59, 59, 999000)),
        (
            {"name": f"{TIME_NAME}NanoTimestamp", "type": "int64"},
            1704067200000001000,
            NTZ,
            dt.datetime(2024, 1, 1, 0, 0, 0, 1),
        ),
        ({"name": f"{CONNECT}Timestamp", "type": "int64"}, 1704067200000, NTZ, dt.datetime(2024, 1, 1)),
        (
            {"name": f"{TIME_NAME}IsoTimestamp", "type": "string"},
            "2024-01-01T00:00:00.5Z",
            NTZ,
            dt.datetime(2024, 1, 1, 0, 0, 0, 500000),
        ),
        (
            {"name": f"{TIME_NAME}ZonedTimestamp", "type": "string"},
            "2024-01-01T00:30:00+01:30",
            INSTANT,
            dt.datetime(2023, 12, 31, 23),
        ),
        ({"name": f"{TIME_NAME}NanoTime", "type": "int64"}, 1_500_000_000, TIME, dt.time(0, 0, 1, 500000)),
        ({"name": f"{CONNECT}Time", "type": "int32"}, 1500, TIME, dt.time(0, 0, 1, 500000)),
        ({"name": f"{CONNECT}Date", "type": "int32"}, -1, pa.date32(), dt.date(1969, 12, 31)),
        ({"name": f"{TIME_NAME}IsoDate", "type": "string"}, "2024-02-29Z", pa.date32(), dt.date(2024, 2, 29)),
        (
            {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "2"}},
            base64_of(-2658824),
            pa.decimal128(10, 2),
            Decimal("-26588.24"),
        ),
        ({"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "2"}}, base64_of(500), pa.int32(), 5),
        (
            {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "-3"}},
            base64_of(7),
            pa.decimal128(10, 0),
            Decimal(7000),
        ),
        (
            {"name": f"{DATA_NAME}VariableScaleDecimal", "type": "struct"},
            {"scale": 1, "value": base64_of(15)},
            pa.decimal128(9, 3),
            Decimal("1.500"),
        ),
        (
            {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "2"}},
            12.5,  # converter.decimal.format=NUMERIC
            pa.decimal128(10, 2),
            Decimal("12.50"),
        ),
        ({"type": "string"}, "1234", pa.decimal128(10, 2), Decimal(1234)),  # decimal.handling.mode=string
        ({"type": "string"}, "42", pa.int64(), 42),
        ({"type": "map", "values": {"type": "string"}}, {"k": "v"}, pa.map_(pa.string(), pa.string()), [("k", "v")]),
        ({"type": "int16"}, 1, pa.bool_(), True),
        ({"type": "string", "name": f"{TIME_NAME}Interval"}, "P0Y0M-1DT0H0M0S", DURATION, dt.timedelta(days=-1)),
        ({"type": "double"}, "-Infinity", pa.float64(), float("-inf")),
        ({"type": "float"}, 1.1, pa.float32(), pa.scalar(1.1, pa.float32()).as_py()),
        ({"type": "int64"}, 2**53 + 1, pa.decimal128(20, 0), Decimal(2**53 + 1)),
        ({"type": "int64", "parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"}}, 7, pa.int64(), 7),
        ({"type": "int64", "parameters": {"__debezium.source.column.type": "BIGINT"}}, -7, pa.int64(), -7),
        ({"type": "bytes"}, "/wA=", pa.binary(), b"\xff\x00"),
        (
            {"type": "array", "items": {"type": "int64", "name": f"{TIME_NAME}MicroTimestamp"}},
            [0, None],
            pa.list_(NTZ),
            [dt.datetime(1970, 1, 1), None],
        ),
    ],
)
def test_the_schema_block_says_what_a_value_is(description: Any, value: Any, type_: pa.DataType, actual: Any) -> None:
    """Units, scales and forms come from the block, also if another event has another block."""
    other = in_block(None, type="string")
    result = rows(reader({"x": type_}), [other, in_block(value, **description), other, in_block(value, **description)])
    values = [row["x"].replace(tzinfo=None) if isinstance(row["x"], dt.datetime) else row["x"] for row in result]
    assert values == [None, actual, None, actual]
    if isinstance(actual, dt.datetime) and type_ == INSTANT:
        assert result[1]["x"].utcoffset() == dt.timedelta(0)


@pytest.mark.parametrize(
    ("description", "value", "type_", "message"),
    [
        ({"type": "int64"}, 1704067200000, NTZ, "a int, which timestamp"),
        *(
            (
                {"type": "int64", "parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"}},
                -1,
                type_,
                "UNSIGNED",
            )
            for type_ in (pa.int64(), pa.decimal128(20, 0))
        ),
        (
            {"name": f"{TIME_NAME}MicroTimestamp", "type": "int64"},
            9223372036825200000,
            NTZ,
            "infinite or outside of the years",
        ),
        ({"name": f"{TIME_NAME}NanoTimestamp", "type": "int64"}, 1, NTZ, "parts of a microsecond"),
        (
            {"name": f"{TIME_NAME}NanoTimestamp", "type": "int64"},
            (9223372036825200000 * 10**6 + 2**63) % 2**64 - 2**63,
            NTZ,
            "stands for infinity|parts of a micro",
        ),
        *(
            ({"name": f"{TIME_NAME}NanoTimestamp", "type": "int64"}, value, NTZ, "stands for infinity")
            for value in (9223372036825200000, -9223372036832400000)
        ),
        (
            {"name": f"{DATA_NAME}VariableScaleDecimal", "type": "struct"},
            {"scale": 1, "value": 15},
            pa.decimal128(9, 3),
            "not base64",
        ),
        ({"type": "string"}, "1.005", pa.decimal128(10, 2), "would round"),
        ({"type": "string"}, "NAN", pa.decimal128(10, 2), "does not hold"),
        ({"type": "array", "items": {"type": "int32"}}, list(UNAVAILABLE.encode()), pa.list_(pa.int32()), "not sent"),
        ({"name": f"{TIME_NAME}ZonedTimestamp", "type": "string"}, "infinity", INSTANT, "not a timestamp of the years"),
        ({"name": f"{TIME_NAME}ZonedTimestamp", "type": "string"}, "2024-01-01T00:00:00Z", NTZ, "declare TIMESTAMP"),
        ({"name": f"{TIME_NAME}Date", "type": "int32"}, 2**31 - 1, pa.date32(), "outside of the years"),
        ({"name": f"{TIME_NAME}MicroTime", "type": "int64"}, 86_400_000_000, TIME, "not a time of a day"),
        ({"name": f"{TIME_NAME}MicroDuration", "type": "int64"}, 5, pa.string(), "months have been approximated"),
        ({"name": f"{DATA_NAME}geometry.Point", "type": "struct"}, {"x": 1}, pa.string(), "a geometry"),
        (
            {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "3"}},
            base64_of(1005),
            pa.decimal128(10, 2),
            "would round",
        ),
        (
            {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "2"}},
            base64_of(10**9),
            pa.decimal128(8, 2),
            "declare a wider type",
        ),
        *(  # Arrow's cast would return another number
            (
                {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": scale}},
                base64_of(-(2**63)),
                pa.decimal128(38, 38),
                "declare a wider type",
            )
            for scale in ("-2", "0", "18")
        ),
        ({"type": "int64"}, 2**31, pa.int32(), "declare a wider type"),
        ({"type": "int64"}, 2**53 + 1, pa.float64(), "does not hold exactly"),
        ({"type": "double"}, 0.1, pa.float32(), None),
        ({"type": "double"}, 0.12345678901, pa.float32(), "does not hold exactly"),
        ({"type": "string"}, "deadbeef", pa.binary(), "may be base64 or hexadecimal"),
        ({"type": "string"}, UNAVAILABLE, pa.string(), "a large value was not changed"),
        (
            {"type": "bytes"},
            base64.b64encode(UNAVAILABLE.encode()).decode(),
            pa.binary(),
            "a large value was not changed",
        ),
        (
            {"type": "array", "items": {"type": "string"}},
            [UNAVAILABLE],
            pa.list_(pa.string()),
            "a large value was not changed",
        ),
        ({"type": "string"}, "x", pa.list_(pa.string()), "not an array"),
        ({"type": "map"}, {"a": 1}, pa.string(), "a type without an exact reader"),
    ],
)
def test_values_that_are_not_exact_are_refused(
    description: Any, value: Any, type_: pa.DataType, message: str | None
) -> None:
    """With the column, the value and what to do."""
    if message is None:
        assert rows(reader({"x": type_}), [in_block(value, **description)])
        return
    with pytest.raises(RejectedError, match=message) as excinfo:
        rows(reader({"x": type_}), [in_block(value, **description)])
    assert excinfo.value.code == "SCHEMA_MISMATCH"
    assert "the column x of an event has the value " in excinfo.value.message


@pytest.mark.parametrize(
    ("words", "value", "type_", "actual"),
    [
        ({}, 12.34, pa.decimal128(10, 2), Decimal("12.34")),
        ({}, 5, pa.decimal128(10, 2), Decimal("5.00")),
        ({}, "12.30", pa.decimal128(10, 2), Decimal("12.30")),
        ({}, "123", pa.decimal128(10, 0), Decimal(123)),
        ({}, "1234", pa.decimal128(10, 2), "may be a number or base64"),
        ({}, "1234", pa.decimal128(10, 0), "may be a number or base64"),
        ({}, "A+g=", pa.decimal128(10, 2), "write decimals='precise'"),
        ({}, "12.345", pa.decimal128(10, 2), "would round"),
        ({"decimals": "string"}, "1234", pa.decimal128(10, 2), Decimal("1234.00")),
        ({"decimals": "string"}, 12, pa.decimal128(10, 2), "'string' says; it seems to be of decimals='double'"),
        ({"decimals": "string"}, "A+g=", pa.decimal128(10, 2), "'string' says; it seems to be of decimals='precise'"),
        ({"decimals": "string"}, "Infinity", pa.decimal128(10, 2), "not a decimal number \\(the event: lsn 5\\)\n"),
        ({}, "-Infinity", pa.decimal128(10, 2), "not a decimal number \\(the event: lsn 5\\)\n"),
        ({}, "Infinity", pa.decimal128(10, 2), "not a decimal number \\(the event: lsn 5\\)\n"),
        ({"decimals": "string"}, "a?", pa.decimal128(10, 2), "not a decimal number \\(the event: lsn 5\\)\n"),
        ({"decimals": "double"}, "A+g=", pa.decimal128(10, 2), "'double' says; it seems to be of decimals='precise'"),
        ({"decimals": "double"}, "12.50", pa.decimal128(10, 2), "'double' says; it seems to be of decimals='string'"),
        ({"decimals": "precise"}, "12.50", pa.decimal128(10, 2), "'precise' says; it seems to be of decimals='string'"),
        ({"decimals": "precise"}, "12.345", pa.decimal128(10, 2), "it seems to be of decimals='string'"),
        ({"decimals": "double"}, 0.125, pa.decimal128(10, 2), "would round; declare a greater scale \\(the event"),
        ({}, "A+g=", pa.float64(), "not a number; declare DECIMAL for a decimal that is sent as a text"),
        ({}, True, pa.float64(), "not a number \\(the event"),
        ({"decimals": "precise"}, "1234", pa.decimal128(10, 2), Decimal("-26588.24")),
        ({"decimals": "precise"}, 12.5, pa.decimal128(10, 2), "value 12.5, which is not base64, .* decimals='double'"),
        ({"decimals": "string"}, "42", pa.int64(), 42),
        ({}, "A+g=", pa.string(), r"seems to be base64 of a decimal.*or, if it is a text, write .*'x': 'string'"),
        ({"decimals": "precise"}, "/w==", pa.string(), "seems to be base64 of a decimal"),
        ({"decimals": "string"}, "A+g=", pa.string(), "A+g="),
        ({"decimals": "double"}, "A+g=", pa.string(), "A+g="),
        ({}, "AAE=", pa.string(), "AAE="),  # the number 1 has fewer bytes
        ({}, "1B2M2Y8AsgTpgAmY7PhCfg==", pa.string(), "1B2M2Y8AsgTpgAmY7PhCfg=="),
        ({}, "a = b=", pa.string(), "a = b="),
        ({}, 2**53 + 1, pa.float64(), "does not hold exactly"),
        ({"decimals": "double"}, 0.1, pa.decimal128(10, 2), Decimal("0.10")),
        ({}, 1704067200000000, INSTANT, r"write times=\{'x': 'microseconds'\}"),
        ({}, 1704067200000, NTZ, r"write times=\{'x': 'milliseconds'\}"),
        ({}, 1704067200000000000, NTZ, r"write times=\{'x': 'nanoseconds'\}"),
        ({}, 19723, NTZ, "if it counts days, declare DATE"),
        ({}, 5, TIME, r"an integer whose unit is not known; write times=\{'x': 'milliseconds'\}"),
        ({}, 36672123456, TIME, r"write times=\{'x': 'microseconds'\}"),
        ({"times": "isostring"}, 5, NTZ, "an integer whose unit is not known"),
        ({"times": "microseconds"}, 1704067200000000, INSTANT, dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ({"times": "milliseconds"}, 1704067200000, NTZ, dt.datetime(2024, 1, 1)),
        ({"times": "nanoseconds"}, 1704067200000000001, NTZ, "parts of a microsecond"),
        (
            {"times": "nanoseconds"},
            1704067200000001,
            NTZ,
            "as times='nanoseconds' says: does the connector send another",
        ),
        ({"times": "milliseconds"}, 1704067200000000, NTZ, "9999; it was read as times='milliseconds' says"),
        ({"times": "connect"}, 1704067200000000, INSTANT, "9999; it was read as times='connect' says"),
        ({"times": "connect"}, 36672123456, TIME, "it was read as times='connect' says"),
        ({}, "2024-01-01T00:00:00", INSTANT, "no zone"),
        ({}, "2024-01-01T00:00:00Z", NTZ, dt.datetime(2024, 1, 1)),
        ({}, "2024-13-01T00:00:00Z", NTZ, "not valid"),
        ({}, 20147, pa.date32(), dt.date(2025, 2, 28)),
        ({"binary": "hex"}, "deadbeef", pa.binary(), b"\xde\xad\xbe\xef"),
        ({"binary": "base64"}, "3q2+=", pa.binary(), "not base64"),
        ({"binary": "base64"}, "3q2+====", pa.binary(), "not base64"),
        ({"binary": "base64"}, "deadbeef", pa.binary(), base64.b64decode("deadbeef")),
        ({}, {"a": 5}, pa.map_(pa.string(), pa.int64()), [("a", 5)]),
        ({}, {"a": 5}, pa.struct([("a", pa.int16())]), {"a": 5}),
        ({}, {"a": 5}, pa.string(), "declare STRUCT"),
        ({}, "5", pa.int64(), "not an integer"),
        ({}, 5, pa.month_day_nano_interval(), "is not read from events"),
        ({}, 5, pa.duration("us"), "has approximated months; .*intervals='numeric' if no interval has months"),
        ({"intervals": "numeric"}, -5, pa.duration("us"), dt.timedelta(microseconds=-5)),
        ({"intervals": "numeric"}, 2**70, pa.duration("us"), "INTERVAL DAY TO SECOND does not hold"),
        ({}, "P0Y0M1DT2H-3M4.5S", pa.duration("us"), dt.timedelta(days=1, hours=2, minutes=-3, seconds=4.5)),
        ({}, "P0Y-1M0DT0H0M0S", pa.duration("us"), "has months, whose lengths differ"),
        ({}, "P0Y0M0DT0H0M0.0000005S", pa.duration("us"), "parts of a microsecond"),
        ({}, "1 day", pa.duration("us"), "is not an interval, as P0Y0M1DT2H3M4.5S"),
        ({"binary": "bytes"}, "deadbeef", pa.binary(), base64.b64decode("deadbeef")),
        ({"binary": "base64-url-safe"}, "-_8=", pa.binary(), b"\xfb\xff"),
    ],
)
def test_words_say_what_a_value_is_without_a_block(words: Any, value: Any, type_: pa.DataType, actual: Any) -> None:
    """What may mean several things is refused, until a word says which."""
    read = reader({"x": type_}, words)
    if isinstance(actual, str) and actual != value:
        with pytest.raises(RejectedError, match=actual):
            rows(read, [event("c", after={"x": value})])
    else:
        assert rows(read, [event("c", after={"x": value})])[0]["x"] == actual


def test_flattened_events_may_have_their_operation() -> None:
    """`ExtractNewRecordState` with `add.fields` says what happened, and where in the log."""
    events = [
        {"x": 1, "y": 5, "__op": "r", "__lsn": 3},
        {"x": 1, "y": 6, "__op": "u", "__source_lsn": 4, "__deleted": "false"},
        {"x": 1, "y": 0, "__deleted": "true", "__file": "b.1", "__pos": 9, "__row": 2},
        {"x": 2, "y": 0, "__op": "d", "__lsn": 5},
    ]
    result = rows(reader({"x": pa.int64(), "y": pa.int64()}, keys=("x",)), events)
    places = [[*row["debezium_sequence"].values()] for row in result]
    assert [each[4:] for each in places] == [[places[0][4], True, None], *[[places[0][4], False, None]] * 3]
    assert [
        (row["x"], row["y"], row["debezium_deleted"], *place[:4]) for row, place in zip(result, places, strict=True)
    ] == [
        (1, 5, False, "", 3, 0, 0),
        (1, 6, False, "", 4, 0, 1),
        (1, None, True, "b.0000000001", 9, 2, 2),
        (2, None, True, "", 5, 0, 3),
    ]


@pytest.mark.parametrize(
    "message",
    [
        None,
        "null",
        event("m", message={"prefix": "p"}),
        {"ts_ms": 5},
        {"status": "BEGIN", "id": "7", "event_count": None, "data_collections": None, "ts_ms": 5},
        {"source": {}, "ddl": "CREATE TABLE x", "tableChanges": []},
        event("c", after={"x": 1}, source={"schema": "inv", "table": "other"}),
        {"schema": {"type": "struct"}, "payload": event("m")},
        {"schema": None, "payload": None},
    ],
)
def test_events_that_change_no_row_are_skipped(message: Any) -> None:
    """Tombstones, messages, heartbeats, markers of transactions, changes of the schema, and other tables."""
    assert rows(reader({"x": pa.int64()}, table="inv.t"), [message, event("c", after={"x": 7})]) == [
        {"row_kind": "+I", "x": 7}
    ]


@pytest.mark.parametrize(
    ("message", "options", "expected_message"),
    [
        (event("t"), {}, "the operation of an event is t, which is not one of c, r, u, d; it empties the table"),
        (event("x"), {}, "the operation of an event is x, which is not one of c, r, u, d; remove such events"),
        ({"x": 5, "__op": "t", "__lsn": 1}, {"keys": ("x",)}, "the operation of an event is t"),
        (event("c", after={"x": 1}, source=None), {"table": "inv.t"}, "does not name its table, so it is not known"),
        (event("c", after={"x": 1}, source={"schema": {}, "table": "t"}), {}, "source.db that is no text"),
        ({**event("c", after={"x": 1}), "op": ["c"]}, {}, r"the operation of an event is \['c'\], which is not one of"),
        ({"x": 5, "__op": {}, "__lsn": 1}, {"keys": ("x",)}, "the operation of an event is {}"),
        ({"x": 5, "__deleted": [], "__lsn": 1}, {"keys": ("x",)}, "does not say whether it deletes"),
        *(
            (event("c", after={"x": 1}, source=source), {"keys": ("x",)}, "no position in the log")
            for source in (
                {"lsn": 2**63},
                {"file": "binlog.1", "pos": -(2**63) - 1},
                {"file": "binlog.1", "pos": 4, "row": "first"},
                {"file": "binlog.\ud800", "pos": 4},
            )
        ),
        (event("c", after={"y\ud800": 1}), {}, r"lacks the column x; it has y\\ud800"),
        (in_block(5, type="int64", parameters=["scale"]), {}, "which is int64 with parameters that are no object"),
        (
            in_block("1e") | {"schema": {"fields": [{"field": {}}, *block(x={"type": "int64"})["fields"]]}},
            {},
            "which is not an integer",
        ),
        (event("u", after={"x": 1}), {}, "lacks its old row, before; .*REPLICA IDENTITY FULL.*keys="),
        (event("c"), {}, "lacks its new row, after"),
        (event("d"), {"keys": ("x",)}, "lacks its old row"),
        ({"x": 5}, {}, "flattened"),
        ({"x": 5, "source": "web"}, {}, "flattened"),  # no change of a schema, which would be skipped
        ({"x": 5, "ddl": "CREATE"}, {}, "flattened"),
        ({"x": 5}, {"keys": ("x",)}, "does not say whether it deletes"),
        (
            {"table": "t", "op_type": "U", "op_ts": "5", "before": {}, "after": {}},
            {},
            "Oracle GoldenGate.*split_changes",
        ),
        ({"table": "t", "op_type": "U", "op_ts": "5"}, {"keys": ("x",)}, "seems to be of Oracle GoldenGate"),
        ({"type": "INSERT", "isDdl": False, "data": []}, {}, "Canal: from_canal"),
        ({"database": "d", "table": "t", "type": "insert", "ts": 5, "data": {}}, {}, "Maxwell: from_maxwell"),
        ({"data": {}, "metadata": {"operation": "insert"}}, {}, "AWS DMS.*upserts"),
        ({"data": [{"x": 5}], "type": "INSERT"}, {}, "Flink's canal-json: let Flink write debezium-json"),
        ({"x": 5, "__op": "c"}, {"keys": ("x",)}, "no position in the log"),
        ({"x": 5, "op": "m", "__op": "c"}, {}, "flattened"),
        (
            {"x": 5, "__op": "c", "__lsn": 1},
            {"keys": ("x",), "table": "inv.t"},
            "name its table.*add table to add.fields",
        ),
        ({"x": 5, "id": 1, "status": "new", "event_count": 2}, {"keys": ("x",)}, "does not say whether it deletes"),
        ('{"op": "c", "after": {"x": 1e99999999999999999999}}', {}, "too large an exponent"),
        (event("c", after={"y": 1, "X_": 2}), {}, "lacks the column x; .*missing='null'"),
        (event("c", after={"xx": 1}), {}, "lacks the column x; did you mean xx"),
        (
            in_block(5, type="int64") | {"schema": block(y={"type": "int64"})},
            {},
            "the schema block of an event does not describe the column x, which its payload has",
        ),
        (
            {"schema": block(y={"type": "int64"}), "payload": event("u", before={"x": 5}, after={"x": 6})},
            {},
            "the schema block of an event does not describe the column x, which its payload has",
        ),
        ("{", {}, "an event is not JSON"),
        ('{"op": NaN}', {}, "NaN is no JSON"),
        ("[" * 100_000, {}, "an event is not JSON"),
        (b"\0\0\0\0\x05abc", {}, "schema registry"),
        (b"\xff\xfe", {}, "an event is not JSON"),
        ("[1]", {}, "an event is not an object"),
        (event("c", after=[1]), {}, "the row of an event is not an object"),
        (event("c", after={"x": "1e"}), {}, "not an integer"),
        ('{"op": "c", "after": {"x": 1e999999999}}', {}, "not an integer"),
    ],
)
def test_events_are_refused_in_words(message: Any, options: Any, expected_message: str) -> None:
    """Each in a sentence of its own, and no event is dropped."""
    with pytest.raises(RejectedError, match=expected_message) as excinfo:
        rows(reader({"x": pa.int64()}, **options), [message])
    assert excinfo.value.code == "SCHEMA_MISMATCH"
    assert len(excinfo.value.message) < 500


def test_bytes_that_are_no_text_behind_a_known_block_are_refused() -> None:
    """Also where nothing reads them, as in another member of the event."""
    described_event = {"schema": block(x={"type": "int64"}), "payload": event("c", after={"x": 5}, transaction="@")}
    text = json.dumps(described_event, separators=(",", ":")).encode()
    with pytest.raises(RejectedError, match="an event is not JSON"):
        rows(reader({"x": pa.int64()}), [text, text.replace(b"@", b"\xff")])


DECIMAL_2 = {"name": f"{CONNECT}Decimal", "type": "bytes", "parameters": {"scale": "2"}}
UNSENT = [*UNAVAILABLE.encode()]


@pytest.mark.parametrize(
    ("message", "type_", "words", "expected_message"),
    [
        (event("c", after={"x": UNSENT}), pa.list_(pa.int32()), {}, "not changed and not sent"),
        (event("c", after={"x": [float(each) for each in UNSENT]}), pa.list_(pa.float64()), {}, "not sent"),
        (
            {
                "schema": block(x={"type": "array", "items": {**DECIMAL_2, "parameters": {"scale": "0"}}}),
                "payload": event("c", after={"x": [base64_of(each) for each in UNSENT]}),
            },
            pa.list_(pa.decimal128(5, 0)),
            {},
            "not sent",
        ),
        (event("c", after={"x": ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]}), pa.list_(pa.string()), {}, "not sent"),
        (
            event("c", after={"x": {"city": "a"}}),
            pa.struct([("City", pa.string())]),
            {},
            "lacks the field City; it has",
        ),
        (event("c", after={"x": {"1": 1}}), pa.map_(pa.int32(), pa.int64()), {}, "whose keys are texts"),
        (event("c", after={"x": 2**53 + 1}), pa.float64(), {}, "DOUBLE does not hold exactly"),
        (event("c", after={"x": 10**400}), pa.float64(), {}, "DOUBLE does not hold"),
        ('{"op": "c", "after": {"x": 1e400}}', pa.float64(), {}, "DOUBLE does not hold"),
        ('{"op": "c", "after": {"x": 0.1000000000000000055}}', pa.float64(), {}, "does not hold exactly"),
        (in_block(base64_of(10**250 + 1), **DECIMAL_2), pa.string(), {}, "more than 200 digits"),
        (in_block("", **DECIMAL_2), pa.decimal128(5, 2), {}, "which is empty"),
        (
            event("c", after={"x": "1E-99999999999999999999"}),
            pa.decimal128(5, 2),
            {"decimals": "string"},
            "too large an exponent",
        ),
        (event("c", after={"x": "2024-01-01T00:00:00+99:99"}), INSTANT, {}, "has the offset .99:99"),
        (event("c", after={"x": "\ud800"}), pa.string(), {}, "not Unicode"),
        (event("c", after={"x": {"\ud800": 1}}), pa.map_(pa.string(), pa.int64()), {}, "not Unicode"),
    ],
)
def test_values_that_no_type_holds_are_refused(
    message: Any, type_: pa.DataType, words: Any, expected_message: str
) -> None:
    """They were rounded, were NULL, or were the bytes of Debezium's placeholder."""
    with pytest.raises(RejectedError, match=expected_message) as excinfo:
        rows(reader({"x": type_}, words), [message])
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.parametrize("value", [2**60, -(2**53), 0, 1e22, 5e-324, 0.1, 1.7976931348623157e308])
@pytest.mark.parametrize("is_described", [False, True])
def test_doubles_are_exact(value: float, is_described: bool) -> None:
    """Also integers with more than 53 bits, of which a DOUBLE holds some."""
    description = {"type": "int64" if isinstance(value, int) else "double"}
    message = in_block(value, **description) if is_described else event("c", after={"x": value})
    assert rows(reader({"x": pa.float64()}), [message]) == [{"row_kind": "+I", "x": value}]


def test_names_match_as_the_session_compares_them() -> None:
    """Names match as the session compares them; a column that was added later may be NULL."""
    assert rows(reader({"X": pa.int64()}), [event("c", after={"x": 7})]) == [{"row_kind": "+I", "X": 7}]
    with pytest.raises(RejectedError, match="lacks the column X"):
        rows(reader({"X": pa.int64()}, is_case_sensitive=True), [event("c", after={"x": 7})])
    events_with_column = [event("c", after={"x": 7}), event("u", {"x": 7}, {"x": 7, "y": 8})]
    read = reader({"x": pa.int64(), "y": pa.int64()}, fills_missing=True, has_whole_rows=True)
    result = rows(read, events_with_column)
    assert [(row["row_kind"], row["y"]) for row in result] == [("+I", None), ("-U", None), ("+U", 8)]
    odd = {"op": pa.string(), "payload": pa.string(), "a.b": pa.int64()}
    assert rows(reader(odd), [event("c", after={"op": "d", "payload": "{}", "a.b": 5})]) == [
        {"row_kind": "+I", "op": "d", "payload": "{}", "a.b": 5}
    ]


@pytest.mark.parametrize("keys", [None, ("x",)])
@pytest.mark.parametrize("value", [8, None])
def test_a_column_that_only_the_payload_has_is_refused(keys: Any, value: Any) -> None:
    """`missing='null'` is about columns that events lack; the value of another was NULL without a word."""
    block = {"fields": [{"field": "after", "type": "struct", "fields": [{"field": "x", "type": "int64"}]}]}
    read = reader({"x": pa.int64(), "y": pa.int64()}, keys=keys, fills_missing=True)
    for name in ("y", "Y"):
        change = event("c", after={"x": 7, name: value}, source={"lsn": 5})
        with pytest.raises(RejectedError, match="the schema block of an event does not describe the column y, which"):
            rows(read, [{"schema": block, "payload": change}])
    absent = {"schema": block, "payload": event("c", after={"x": 7}, source={"lsn": 5})}
    assert [(row["x"], row["y"]) for row in rows(read, [absent])] == [(7, None)]


@pytest.mark.parametrize(
    "more",
    [
        {"op": "m"},
        {"op": "t", "before": None, "after": None},
        {"ddl": "CREATE", "source": "web"},
        {"id": 7, "status": "new", "event_count": 2, "data_collections": "a"},
        {"payload": {"x": 9, "__op": "d", "__lsn": 7}, "schema": None},
    ],
)
def test_flattened_events_may_have_columns_of_any_names(more: dict[str, Any]) -> None:
    """Also names of envelopes, markers and schema blocks: no row is dropped, and none is read from a column."""
    flat_event = {"x": 1, **more, "__op": "u", "__lsn": 3, "__table": "t"}
    for options in ({}, {"table": "inv.t"}):
        result = rows(reader({"x": pa.int64()}, keys=("x",), **options), [flat_event])
        assert [(row["x"], row["debezium_deleted"]) for row in result] == [(1, False)]


def test_flattened_events_of_other_tables_are_left_out() -> None:
    """By the table, and by its schema where the event names it."""
    events = [
        {"x": 1, "__op": "c", "__lsn": 1, "__source_table": "t"},
        {"x": 2, "__op": "c", "__lsn": 2, "__table": "u"},
        {"x": 3, "__op": "c", "__lsn": 3, "__table": "t", "__schema": "other"},
        {"x": 4, "__op": "c", "__lsn": 4, "__table": "t", "__schema": "inv"},
    ]
    assert [row["x"] for row in rows(reader({"x": pa.int64()}, keys=("x",), table="inv.t"), events)] == [1, 4]


def test_rows_that_are_no_objects_are_refused_without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional; without it such an event was an error of Python."""
    monkeypatch.setattr(debeziumjson, "_MSGSPEC", None)
    with pytest.raises(RejectedError, match="the row of an event is not an object"):
        rows(reader({"x": pa.int64()}), [event("c", after=[1])])


def test_an_error_names_the_event_and_all_columns() -> None:
    """Each column in the words of its first value, with the place in Kafka, the key, and the position in the log."""
    types = {"x": pa.decimal128(10, 2), "at": NTZ, "y": pa.int64(), "z": pa.int64()}
    events = [event("c", after={"x": x, "at": at, "y": y}) for x, at, y in ((1.5, 7, None), ("1234", 8, 9))]
    batch = pa.RecordBatch.from_pydict(
        {
            "value": texts_of(events),
            "key": texts_of([{"x": 1}, {"x": 2}]),
            "partition": ["topic orders, partition 0"] * 2,
            "offset": pa.array([17, 18], pa.int64()),
        }
    )
    with pytest.raises(RejectedError) as excinfo:
        list(reader(types)([batch]))
    first, second = (
        f'(the event: topic orders, partition 0, offset {17 + place}, key {{"x": {1 + place}}}, lsn 5)'
        for place in (0, 1)
    )
    message = excinfo.value.message
    assert message.startswith("an event lacks the column z; it has x, at, y. ")
    assert "; also, the column at of an event has the value 7, an integer whose unit is not known" in message
    assert f"{first}; also, the column x of an event has the value '1234', which may be a number or base64" in message
    assert message.endswith(second)
    with pytest.raises(RejectedError, match=r"an event lacks the columns x, y; did you mean yy for y\?"):
        rows(reader({"x": pa.int64(), "y": pa.int64()}), [event("c", after={"yy": 1})])


def test_columns_that_differ_by_case_are_told_apart() -> None:
    """A name that is written as the database has it is that column; another one may be either, and is refused."""
    twice = event("c", after={"Ab": 1, "AB": 2})
    assert [row["AB"] for row in rows(reader({"AB": pa.int64()}), [twice])] == [2]
    assert [row["ab"] for row in rows(reader({"ab": pa.int64()}), [event("c", after={"Ab": 1, "c": 2})])] == [1]
    with pytest.raises(RejectedError, match="has the columns Ab and AB, and the column ab may be either"):
        rows(reader({"ab": pa.int64()}), [twice])


def test_events_that_are_refused_are_dead_letters() -> None:
    """Each with its message, and the others are read: values, and messages that are no events."""
    read = reader({"x": pa.int64(), "y": pa.string()}, keys=("x",), isolates=True)
    after = [{"x": 1, "y": "a"}, {"x": 2**63, "y": "b"}, {"x": 3, "y": UNAVAILABLE}, {"x": 4, "y": "d"}, [5]]
    events: list[Any] = [event("c", after=each, source={"lsn": lsn}) for lsn, each in enumerate(after)]
    events += ["{", None, event("c", after={"\ud800": 1}, source={"lsn": 7})]
    keys = [{"x": number} for number in range(6)] + ["no key", {"x": 7}]
    result = rows(read, events, keys)
    assert [(row["x"], row["y"]) for row in result if row["dead_letter"] is None] == [(1, "a"), (4, "d")]
    letters = [row for row in result if row["dead_letter"] is not None]
    messages = ["which int64 does not hold", "the column y of an event has the value", "is not an object", "not JSON"]
    messages += ["a tombstone has a key that is not JSON", "it has \\ud800"]
    assert len(letters) == len(messages)
    for row, place, words in zip(letters, (1, 2, 4, 5, 6, 7), messages, strict=True):
        letter = row.pop("dead_letter")
        assert words in letter["message"]
        assert f"offset {place}, " in letter["message"]
        assert letter["code"] == "SCHEMA_MISMATCH"
        assert [letter["key"], letter["value"]] == [
            texts_of([each])[0].as_py() for each in (keys[place], events[place])
        ]
        assert set(row.values()) == {None}
    assert rows(dataclasses.replace(read, isolates=False), events[:1]) == [
        {name: value for name, value in result[0].items() if name != "dead_letter"}
    ]


@pytest.mark.parametrize("keys", [None, ("id",)])
def test_events_without_their_known_heads_have_the_same_rows(keys: Any) -> None:
    """Rows and errors are the same as for the whole events, of which Spark has cut what it knew: in all, or in some."""
    event_bytes = [each and each.encode() for each in values("default-schema", "orders")][:30]
    first = next(each for each in event_bytes if each)
    other = first.replace(b'"optional":true', b'"optional": true')
    heads = [each[: each.index(PAYLOAD)] + PAYLOAD for each in (first, other)]
    wrong = first.replace(b'"customer":"', b'"customer":7,"x":"')
    for events in (event_bytes, [*event_bytes, other], [None, None], [*event_bytes[:3], wrong]):
        numbers = [
            None if each is None else next((at for at, head in enumerate(heads) if each.startswith(head)), None)
            for each in events
        ]
        for known_heads in ((0, 1), (0,), ()):
            cut = [number if number in known_heads else None for number in numbers]
            rests = [
                each if each is None or at is None else each[len(heads[at]) : -1]
                for each, at in zip(events, cut, strict=True)
            ]
            result = []
            for texts, more in ((events, {}), (rests, {"head": pa.array(cut, pa.int32())})):
                columns = {"value": pa.array(texts, pa.binary()), **more}
                if keys:
                    columns |= {"key": texts_of([{"id": 1}] * len(events)), "partition": pa.array(["0"] * len(events))}
                    columns |= {"offset": pa.array(range(len(events)), pa.int64())}
                read = reader(ORDERS, keys=keys, heads=tuple(heads))
                try:
                    if keys is None and None in events:
                        columns = {
                            name: each.filter(pa.compute.is_valid(columns["value"])) for name, each in columns.items()
                        }
                    result.append([batch.to_pylist() for batch in read([pa.RecordBatch.from_pydict(columns)])])
                except RejectedError as error:
                    result.append(error.message)
            assert result[0] == result[1]
            assert isinstance(result[0], str) == (wrong in events)


@pytest.mark.parametrize(
    "message",
    [
        event("t"),
        event("c", after={"x": 1}, source={"schema": "inv", "table": "t"}),  # it has no position
        {"x": 1},
        b"\0\0\0\0\x05abc",
    ],
)
def test_an_error_of_all_events_is_no_dead_letter(message: Any) -> None:
    """A truncated table keeps no row, and wrong settings of the connector spoil each event."""
    with pytest.raises(RejectedError):
        rows(reader({"x": pa.int64()}, keys=("x",), isolates=True), [message])


def test_events_of_two_tables_are_not_added_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `table=` they are ambiguous; a pattern says that several tables are parts of one."""
    sources = [{"db": "d", "schema": "inv", "table": name, "lsn": 1} for name in ("orders_1", "orders_2", "items")]
    events = [event("c", after={"x": number}, source=source) for number, source in enumerate(sources)]
    message = r"two tables, d\.inv\.orders_1 and d\.inv\.orders_2, .*table='d\.inv\.orders_1'.*table='d\.inv\.\*'"
    for keys in (None, ("x",)):
        with pytest.raises(RejectedError, match=message):
            rows(reader({"x": pa.int64()}, keys=keys), events)
        for table, expected in (("inv.orders_*", [0, 1]), ("*.items", [2]), ("d.*.orders_2", [1]), ("in.*", [])):
            result = rows(reader({"x": pa.int64()}, keys=keys, table=table), events)
            assert [row["x"] for row in result] == expected
    read = reader({"x": pa.int64()})  # whose tasks read partitions of one table each
    rows(read, events[:1])
    with pytest.raises(RejectedError, match="two tables"):
        rows(dataclasses.replace(read), events[1:2])
    monkeypatch.setattr(debeziumreader, "_READERS_MAX", 1)  # a process forgets readers, but not the one that reads
    with pytest.raises(RejectedError, match="two tables"):
        rows(reader({"x": pa.int64()}), events)
    flat_events = [{"x": 1, "__op": "c", "__lsn": 1, "__table": name} for name in ("a", "b")]
    with pytest.raises(RejectedError, match=r"two tables, a and b, .*table='\*\.\*'"):
        rows(reader({"x": pa.int64()}, keys=("x",)), flat_events)
    assert len(rows(reader({"x": pa.int64()}, keys=("x",), table="*.*"), flat_events)) == 2


def test_a_table_that_no_event_has_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """By case only it is refused; another likely name is in the log, unless events of the table are there."""
    events = [event("c", after={"x": 1}), event("c", after={"x": 2}, source={"schema": "inv", "table": "u"})]
    with pytest.raises(
        RejectedError, match=r"table is 'Inv\.T', and an event is of inv\.t, which differs by case only"
    ):
        rows(reader({"x": pa.int64()}, table="Inv.T"), events)
    for table in ("inv.t", "far.away"):
        rows(reader({"x": pa.int64()}, table=table), events)
    assert not caplog.messages
    assert rows(reader({"x": pa.int64()}, table="shop.u"), events) == []
    assert caplog.messages == [
        "from_debezium: a task read no event of table='shop.u', and events of inv.u; did you mean that one?"
    ]


@pytest.mark.parametrize("options", [{}, {"fills_missing": True}, {"has_whole_rows": True}])
def test_old_rows_that_lack_columns_are_refused(options: dict[str, Any]) -> None:
    """They were completed with NULL, which took back other rows; the advice said so."""
    types = {"id": pa.int64(), "amount": pa.int64()}
    expected_message = (
        r"old row of an event, before, lacks the column amount.*\{'id': 2\}; .*REPLICA IDENTITY FULL.*keys="
    )
    for message in (event("d", {"id": 2}), event("u", {"id": 2}, {"id": 2, "amount": 5})):
        for key in (None, [{"id": 2}]):
            with pytest.raises(RejectedError, match=expected_message):
                rows(reader(types, **options), [message], key)
    added_events = [event("u", {"id": 2}, {"id": 2}), event("d", {"id": 2})]
    result = rows(reader(types, fills_missing=True, has_whole_rows=True), added_events)
    assert [tuple(row.values()) for row in result] == [("-U", 2, None), ("+U", 2, None), ("-D", 2, None)]
    with pytest.raises(RejectedError, match="lacks the column amount; did you mean amout"):
        rows(reader(types), [event("d", {"id": 2, "amout": 5})])
    with pytest.raises(RejectedError, match="the row of an event is not an object"):
        rows(reader(types), [event("d", [5])])


def test_deletes_without_an_old_row_have_a_key() -> None:
    """With keys the key of the message says which row is deleted."""
    read = reader({"x": pa.int64(), "y": pa.int64()}, keys=("x",), table="inv.t")
    for key in ({"x": 7}, {"schema": {"name": "s.inv.t.Key"}, "payload": {"x": 7}}):
        (result,) = rows(read, [event("d")], [key])
        assert (result["x"], result["y"], result["debezium_deleted"]) == (7, None, True)
        assert result["debezium_sequence"]["position"] == 5
    for keys in (None, [None]):
        with pytest.raises(RejectedError, match="lacks its old row, before; its operation is d; select Kafka's column"):
            rows(read, [event("d")], keys)
    with pytest.raises(RejectedError, match=r"a delete without its old row has the key .1., which does not hold x"):
        rows(read, [event("d")], [[1]])


def test_tombstones_without_keys_are_refused() -> None:
    """With keys they delete; they were skipped where the input has no keys."""
    with pytest.raises(RejectedError, match=r"its key is not known; select Kafka's columns key.*value IS NOT NULL"):
        rows(reader({"x": pa.int64()}, keys=("x",)), [event("c", after={"x": 1}), None])


@pytest.mark.parametrize("place", [{}, {"offset": pa.array([4])}, {"partition": pa.array(["0"])}])
def test_tombstones_without_their_place_in_kafka_are_refused(place: dict[str, pa.Array]) -> None:
    """One that an epoch read alone deleted nothing, without a word."""
    batch = pa.RecordBatch.from_pydict({"value": texts_of([None]), "key": texts_of([{"x": 1}]), **place})
    with pytest.raises(RejectedError, match=r"its place in Kafka is not known; select Kafka's columns.*and offset"):
        list(reader({"x": pa.int64()}, keys=("x",))([batch]))


@pytest.mark.parametrize("is_flattened", [False, True])
@pytest.mark.parametrize(
    ("table", "source", "is_read"),
    [
        ("inv.t", {"db": "shop", "schema": "inv", "table": "t"}, True),
        ("shop.inv.t", {"db": "shop", "schema": "inv", "table": "t"}, True),
        ("shop.t", {"db": "shop", "schema": "inv", "table": "t"}, False),
        ("inv.t", {"db": "shop", "schema": "other", "table": "t"}, False),
        ("inv.t", {"db": "inv", "schema": None, "table": "t"}, True),
        ("inv.t", {"db": "inv", "table": "at"}, False),
        ("v.t", {"schema": "inv", "table": "t"}, False),
        ("shop.inv.t", {"schema": "inv", "table": "t"}, True),
        ("other.inv.t", {"db": "shop", "schema": "inv", "table": "t"}, False),
    ],
)
def test_tables_are_named_alike(table: str, source: dict[str, Any], is_read: bool, is_flattened: bool) -> None:
    """By schema or database or both, in whole events and in flattened ones."""
    place = {"lsn": 1, **source}
    message = event("c", after={"x": 1}, source=place)
    if is_flattened:
        message = {"x": 1, "__op": "c", **{f"__{name}": value for name, value in place.items()}}
    assert len(rows(reader({"x": pa.int64()}, keys=("x",), table=table), [message])) == is_read


@pytest.mark.parametrize(
    ("source_members", "time"),
    [
        ({"ts_us": 5_000_999, "ts_ms": 5_000}, 5_000),
        ({"ts_us": 5_000_999}, 5_000),  # the same event, whatever the version of the connector that sends it tells
        ({"ts_ms": 5_000}, 5_000),
        ({"ts_ms": 0}, None),  # MySQL's snapshots
        ({"ts_ms": "5"}, None),
        ({}, None),
    ],
)
def test_positions_have_the_time_of_the_commit(source_members: Any, time: int | None) -> None:
    """Of the database, not of the connector, which reads an event again later."""
    source = {"lsn": 1, **source_members}
    flat_event = {
        "x": 1,
        "__op": "c",
        "__lsn": 1,
        "__ts_ms": 9,
        **{f"__source_{name}": at for name, at in source_members.items()},
    }
    for message in (event("c", after={"x": 1}, source=source, ts_us=9), flat_event):
        (row,) = rows(reader({"x": pa.int64()}, keys=("x",)), [message])
        assert row["debezium_sequence"]["time"] == time


def test_binary_logs_are_ordered_by_their_numbers() -> None:
    """MySQL goes on from binlog.999999 to binlog.1000000."""
    sources = [{"file": f"binlog.{number}", "pos": 4} for number in ("000009", "999999", "1000000")]
    result = rows(reader({"x": pa.int64()}, keys=("x",)), [event("c", after={"x": 1}, source=each) for each in sources])
    logs = [row["debezium_sequence"]["log"] for row in result]
    assert logs == sorted(logs)
    assert len(set(logs)) == 3


def test_a_text_like_a_member_is_text() -> None:
    """The schema block of most events is not parsed again, and yet each event is read whole."""
    tricky = in_block(',"payload":{"op":"d"}', type="string", doc=',"payload":')
    texts = [json.dumps(tricky, separators=(",", ":"))] * 3 + [
        json.dumps({**in_block("x", type="string", doc=',"payload":'), "more": 1}, separators=(",", ":"))
    ]
    result = rows(reader({"x": pa.string()}), texts[:3])
    assert [row["x"] for row in result] == [',"payload":{"op":"d"}'] * 3
    assert rows(reader({"x": pa.string()}), texts[3:])[0]["x"] == "x"


KEY_ONLY = ("orders_key", "lines", "docs_key")


@pytest.mark.parametrize("has_keys", [True, False])
@pytest.mark.parametrize("mode", WORDS)
def test_old_rows_with_nothing_but_their_key_are_refused(mode: str, has_keys: bool) -> None:
    """With the default replica identity '', 0 and DEFAULT were retracted. Whole rows of other tables pass."""
    result = set()
    for table, pairs in by_table(mode).items():
        deletes = [(key, value) for key, value in pairs if operation(value) == "d"]
        for key, value in deletes:
            if refusal(value, [key] if has_keys else None):
                result.add(table)
            else:
                assert table not in KEY_ONLY, value
    assert result == set(KEY_ONLY)


def refusal(value: str, keys: list[str] | None) -> str:
    """Return why a delete is refused whose columns are not read."""
    try:
        rows(reader({}), [value], keys)
    except RejectedError as error:
        return error.message
    return ""


def by_table(mode: str) -> dict[str, list[tuple[str, str]]]:
    """Return the messages of each table, keys and values."""
    tables: dict[str, list[tuple[str, str]]] = {}
    for line in archive()[mode].splitlines():
        message = json.loads(line)
        tables.setdefault(message["topic"].rpartition(".")[2], []).append((message["key"], message["value"]))
    return tables


def operation(value: str | None) -> str | None:
    event = json.loads(value or "null") or {}
    result: str | None = event.get("payload", event).get("op")
    return result


OPTIONAL, REQUIRED = {"type": "int64", "optional": True}, {"type": "int64", "optional": False}


@pytest.mark.parametrize(
    ("before", "columns", "key", "is_refused"),
    [
        ({"x": 1, "y": 0}, {"x": REQUIRED, "y": REQUIRED}, {"x": 1}, True),
        ({"x": 1, "y": 0}, {"x": REQUIRED, "y": OPTIONAL}, {"x": 1}, False),
        ({"x": 1, "y": None}, {"x": REQUIRED, "y": OPTIONAL}, {"x": 1}, True),
        ({"x": 1, "y": 7}, {"x": REQUIRED, "y": {**REQUIRED, "default": 7}}, {"x": 1}, True),
        ({"x": 1, "y": 7}, {"x": REQUIRED, "y": {**OPTIONAL, "default": 7}}, {"x": 1}, True),
        ({"x": 1, "y": 8}, {"x": REQUIRED, "y": {**REQUIRED, "default": 7}}, {"x": 1}, False),
        ({"x": 1, "y": 2}, {"x": REQUIRED, "y": REQUIRED}, {"x": 1, "y": 2}, False),
        ({"x": 1, "y": 2, "z": 0}, {"x": REQUIRED, "y": REQUIRED, "z": REQUIRED}, {"x": 1, "y": 2}, True),
        ({"x": 1, "y": 0}, None, {"x": 1}, True),
        ({"x": 1, "y": {"scale": 0, "value": "AA=="}}, None, {"x": 1}, True),
        ({"x": 1, "y": {"scale": 2, "value": "AQ=="}}, None, {"x": 1}, False),
        ({"x": 1, "y": 9, "z": None, "a": ""}, None, {"x": 1}, True),  # 9 may be the DEFAULT
        ({"x": 1, "y": 9, "z": "ann", "a": ""}, None, {"x": 1}, False),
        ({"x": 1, "y": None}, None, None, False),  # a message with a key of NULL is of a table without a primary key
        ({"x": 1, "y": "", "z": 0}, None, "7", True),  # a key that does not tell its columns
        ({"x": 1, "y": None, "z": 0}, None, "7", True),
        ({"x": 1, "y": None, "z": 5}, None, "7", False),
        ({"x": 1}, None, {"x": 1}, False),
    ],
)
def test_keys_are_read_with_and_without_a_schema_block(before: Any, columns: Any, key: Any, is_refused: bool) -> None:
    """NULL in a column that may have it, zero in one that may not, a DEFAULT: what else could a connector know?"""
    message = event("d", before)
    if columns is not None:
        fields = [{"field": name, **description} for name, description in columns.items()]
        message = {"schema": {"fields": [{"field": "before", "type": "struct", "fields": fields}]}, "payload": message}
    for has_block_for_key in (False, True):
        key_message = (
            {"schema": {"type": "struct"}, "payload": key} if has_block_for_key and isinstance(key, dict) else key
        )
        keys = [None if key_message is None else json.dumps(key_message)]
        assert len(rows(reader({"x": pa.int64()}, has_whole_rows=True), [message], keys)) == 1
        if is_refused:
            with pytest.raises(RejectedError, match=r"may hold the key only.*replica_identity='full'.*keys="):
                rows(reader({"x": pa.int64()}), [message], keys)
        else:
            assert len(rows(reader({"x": pa.int64()}), [message], keys)) == 1


@pytest.mark.parametrize(
    ("before", "is_refused"),
    [
        ({"x": 1, "y": None}, True),
        ({"x": 1, "y": 0}, True),
        ({"x": 1, "y": None, "z": 0, "a": False}, True),
        ({"x": 0, "y": None}, True),
        ({"x": 1, "y": 2, "z": None}, False),
        ({"x": 1, "y": 2, "z": None, "a": ""}, True),  # 2 may be the DEFAULT
        ({"x": 1}, False),
        ({"x": None}, False),
    ],
)
def test_deletes_without_a_known_key_are_refused(before: Any, is_refused: bool) -> None:
    """One column with a value, and others of NULL and zero, passed; their invented values were retracted."""
    assert len(rows(reader({"x": pa.int64()}, has_whole_rows=True), [event("d", before)])) == 1
    if is_refused:
        with pytest.raises(RejectedError, match=r"may hold the key only.*replica_identity='full'.*keys="):
            rows(reader({"x": pa.int64()}), [event("d", before)])
    else:
        assert len(rows(reader({"x": pa.int64()}), [event("d", before)])) == 1


def test_deletes_may_have_members_named_as_in_a_schema_block() -> None:
    """An event with an operation is read itself; its member `payload` was taken for it, an AttributeError."""
    message = {**event("d", {"x": 1, "y": 2, "z": "ann"}), "payload": None, "schema": None}
    assert rows(reader({"x": pa.int64()}), [message]) == rows(reader({"x": pa.int64()}), [event("d", {"x": 1})])
    doubtful = {**message, "before": {"x": 1, "y": None}, "payload": {}, "source": {"table": "t", "lsn": 5}}
    for event_ in (doubtful, {**doubtful, "payload": None}):
        with pytest.raises(RejectedError, match=r"may hold the key only.*lsn 5"):
            rows(reader({"x": pa.int64()}), [event_])


@pytest.mark.parametrize("keys", [None, ("x",)])
@pytest.mark.parametrize(
    "wrong",
    [
        *('"x":1,"x":2', '"x":1,"y":"a","x":1', '"x":1, "x" : 2', '"x":1,"\\u0078":2', '"x"\t:1,"x":2'),
        *('"x":1,"more":{"a":1,"a":2}', '"x":1}, "op":"c","more":{', '"x":1},"after":{"x":2', '"x":1,"":2,"":3'),
    ],
)
def test_names_that_occur_twice_are_refused(keys: Any, wrong: str) -> None:
    """Wherever such an event is in a batch, and however many were read before it; the last value was taken."""
    text = json.dumps(event("c", after={"x": 1, "y": "a"}), separators=(",", ":"))
    events = [text.replace('"x":1', f'"x":{number}') for number in range(9)]
    for place in (0, 4, 9):
        all_events = [*events[:place], text.replace('"x":1,"y":"a"', wrong), *events[place:]]
        read = reader({"x": pa.int64()}, keys=keys)
        assert len(rows(read, events)) == len(events)
        with pytest.raises(RejectedError, match=r"an event has the name '.*' twice in an object") as excinfo:
            rows(read, all_events)
        assert excinfo.value.code == "SCHEMA_MISMATCH"
        if keys:
            result = rows(dataclasses.replace(read, isolates=True), all_events)
            assert [row["x"] for row in result if row["dead_letter"] is None] == [*range(9)]


@pytest.mark.parametrize("old", [("x",), ("x", "y")])
def test_an_insert_with_the_names_of_an_update_is_refused(old: tuple[str, ...]) -> None:
    """Its row has the members of the update's old row twice; the last value was taken."""
    values = {"x": 1, "y": "a"}
    update = event("u", {name: values[name] for name in old}, values)
    insert = json.dumps(event("c", after=values)).replace(
        "}", ", ".join(["", *(f'"{name}": 2' for name in old)]) + "}", 1
    )
    read = reader({"x": pa.int64()}, keys=("x",))
    assert len(rows(read, [update])) == 1
    with pytest.raises(RejectedError, match="an event has the name 'x' twice in an object"):
        rows(read, [insert])


def test_names_are_summed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts with the same names have one number, whatever their values, their place and the size of a block."""
    names = ['{"a":1,"bc":[{"a":"b:"}]}', '{"a":"\\"x\\":","bc":[{"a":"{"}]}']
    others = ['{"a":1,"a":1,"bc":[{"a":2}]}', '{"a":1,"bd":[{"a":2}]}', '{"a":1,"bc":1,"a":2}']
    others += ["5", '"', "", '{"":1}', '{"a":1}']
    texts = [*names, *others, None, *names, "", None]
    for type_ in (pa.binary(), pa.large_binary()):
        array = pa.array([None, *(each and each.encode() for each in texts), b'{"x":1}'], type_)[1:-1]
        for size in (1, 64, 1 << 20):
            monkeypatch.setattr(debeziumjson, "_BLOCK_BYTES", size)
            result = [number for block in debeziumjson.sum_names(array) for number in block.tolist()]
            assert len(result) == len(texts)
            same = [place for place, number in enumerate(result) if number == result[0]]
            assert [texts[place] for place in same] == names * 2
    assert [each.tolist() for each in debeziumjson.sum_names(pa.array([None, b""], pa.binary()))] == [[0, 0]]
    assert not list(debeziumjson.sum_names(pa.array([], pa.binary())))


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_tombstones_delete_the_rows_of_their_keys(batch_rows: int) -> None:
    """They have the position of the message before, or the next one: the delete may have been compacted away."""
    block = {"type": "struct", "name": "shop.inv.t.Key", "fields": [{"field": "x", "type": "int64"}]}
    put = [event("c", after={"x": x}, source={"lsn": lsn}) for x, lsn in enumerate((5, 7))]
    values = [None, put[0], "null", {"schema": None, "payload": None}, put[1], None]
    keys = [{"x": 9}, {"x": 0}, {"schema": block, "payload": {"x": 0}}, 3, {"x": 1}, {"x": 1}]
    read = reader({"x": pa.int64(), "y": pa.int64()}, keys=("x",), fills_missing=True)
    result = [
        (row["x"], row["debezium_deleted"], *list(row["debezium_sequence"].values())[1:4])
        for row in rows(read, values, keys, batch_rows)
    ]
    assert result == [
        (9, True, 5, 0, 0),
        (0, False, 5, 0, 1),
        (0, True, 5, 0, 2),
        (3, True, 5, 0, 3),
        (1, False, 7, 0, 4),
        (1, True, 7, 0, 5),
    ]
    assert rows(reader({"x": pa.int64()}), values[:1], keys[:1]) == []
    alone = rows(read, [None], [{"x": 9}])
    assert [(row["x"], row["debezium_sequence"]["position"]) for row in alone] == [(9, NO_POSITION)]


def test_a_tombstone_behind_a_batch_of_plain_changes_has_its_last_position() -> None:
    """Such a batch is read without an object for each change, and its position is noted, too."""
    values = [*(event("c", after={"x": x}, source={"lsn": lsn}) for x, lsn in enumerate((5, 7))), None]
    result = rows(reader({"x": pa.int64()}, keys=("x",)), values, [{"x": 0}, {"x": 1}, {"x": 0}], 2)
    assert [(row["x"], row["debezium_deleted"], row["debezium_sequence"]["position"]) for row in result] == [
        (0, False, 5),
        (1, False, 7),
        (0, True, 7),
    ]


def test_tombstones_of_other_tables_delete_no_row() -> None:
    """With `table=`, the schema block of a key says whose it is; without it, nothing does."""

    def event_of_table(name: str) -> Any:
        return {"schema": {"type": "struct", "name": name}, "payload": {"x": 1}}

    keys = [
        event_of_table("shop.inv.t.Key"),
        event_of_table("shop.inv.u.Key"),
        event_of_table("shop.inv.at.Key"),
        {"x": 1},
    ]
    result = rows(reader({"x": pa.int64()}, keys=("x",), table="inv.t"), [None] * 4, keys)
    assert [row["x"] for row in result] == [1]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (b"\0\0\0\0\1ab", "written with a schema registry; set the connector's key.converter"),
        (b"{", "not JSON"),
        ({"id": 1}, "lacks the column x"),
        ({"x": "a"}, "the column x of an event has the value 'a', which is not an integer"),
        (None, "a tombstone has the key None, which does not hold x"),
        ([1], "a tombstone has the key .1., which does not hold x"),
    ],
)
def test_tombstones_are_refused_in_words(key: Any, message: str) -> None:
    with pytest.raises(RejectedError, match=message) as excinfo:
        rows(reader({"x": pa.int64()}, keys=("x",)), [None], [key])
    assert excinfo.value.code == "SCHEMA_MISMATCH"


@pytest.mark.parametrize(("unit", "value"), [("MicroDuration", 86_400_000_000), ("NanoDuration", 86_400_000_000_000)])
def test_intervals_without_months_are_durations(unit: str, value: int) -> None:
    """The connector approximates months, so its numbers are refused until a word says that there are none."""
    message = in_block(value, type="int64", name=f"{TIME_NAME}{unit}")
    assert rows(reader({"x": DURATION}, {"intervals": "numeric"}), [message])[0]["x"] == dt.timedelta(days=1)
    assert rows(reader({"x": pa.int64()}, {"intervals": "numeric"}), [message])[0]["x"] == value
    with pytest.raises(RejectedError, match="write intervals='numeric', and declare INTERVAL DAY TO SECOND"):
        rows(reader({"x": DURATION}), [message])
    if unit == "NanoDuration":
        with pytest.raises(RejectedError, match="parts of a microsecond"):
            rows(
                reader({"x": DURATION}, {"intervals": "numeric"}),
                [in_block(5, type="int64", name=f"{TIME_NAME}{unit}")],
            )
