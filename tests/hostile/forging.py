"""Arrow IPC messages that are forged field by field: well-formed FlatBuffers with false numbers.

Damage to random bytes mostly breaks the FlatBuffer, and Arrow refuses it. Here the places of all numbers are known: row
counts, counts of nodes and buffers, offsets, lengths, NULL counts, variadic counts, the numbers inside the buffers
(offsets, views, run ends, type ids, indices), and the codec and sizes of compressed buffers. Whole messages are
exchanged, too: a batch of one schema under another.

Source: Apache Arrow, `Message.fbs`, and the FlatBuffers binary format.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa

__all__ = [
    "EVERY_TYPE",
    "REFUSED_TYPES",
    "IpcMessage",
    "claiming_rows",
    "every_column",
    "forge",
    "forged_pack",
    "forged_stream",
    "in_format_v4",
    "messages_of",
    "pack",
    "stream_of_messages",
    "unpack",
]

CLAIMED_ROWS = 2_147_483_646
_EXTREMES = (
    *(0, 1, 2, 7, 8, -1, -8, 127, 255, 2**15, 2**16),
    *(2**31 - 1, 2**31 - 2, 2**31, -(2**31), 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)),
)
# Places of fields in their tables, from Message.fbs.
_VERSION, _HEADER_KIND, _HEADER, _BODY_LENGTH = range(4)
_V4 = 3
_DICTIONARY, _BATCH = 2, 3
_ROWS, _NODES, _BUFFERS, _COMPRESSION, _VARIADIC = range(5)


@dataclass(frozen=True)
class IpcMessage:
    """One message of an IPC stream."""

    header: bytes
    body: bytes


@dataclass(frozen=True)
class Number:
    """The position and width of a number in a header."""

    name: str
    at: int
    format: str

    def read(self, header: bytes) -> int:
        return int(struct.unpack_from(self.format, header, self.at)[0])

    def written(self, header: bytes, value: int) -> bytes:
        """Return the header with another number there, cut to its width."""
        size = struct.calcsize(self.format)
        low = value & (256**size - 1)
        return header[: self.at] + low.to_bytes(size, "little") + header[self.at + size :]


def _field(header: bytes, table: int, place: int) -> int:
    vtable = table - struct.unpack_from("<i", header, table)[0]
    entry = 4 + 2 * place
    if entry >= struct.unpack_from("<H", header, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", header, vtable + entry)[0]
    return table + offset if offset else 0


def _end_of_field(header: bytes, at: int) -> int:
    return int(at + struct.unpack_from("<I", header, at)[0])


def _vector(header: bytes, table: int, place: int, width: int, names: tuple[str, ...]) -> Iterator[Number]:
    """Yield the count of a vector of structs, and the 8-byte numbers in it."""
    at = _field(header, table, place)
    if not at:
        return
    start = _end_of_field(header, at)
    count = Number(f"count of {names[0]}", start, "<I")
    yield count
    room = (len(header) - start - 4) // width  # an earlier lie may have made the count longer
    for item in range(min(count.read(header), room)):
        for part, name in enumerate(names):
            yield Number(name, start + 4 + item * width + 8 * part, "<q")


def numbers(header: bytes) -> list[Number]:
    """Return all numbers of a message's header; for a schema, only the numbers of the message around it.

    A header in which an earlier lie has led the walk outside has none.
    """
    try:
        return _numbers(header)
    except (struct.error, IndexError):
        return []


def _numbers(header: bytes) -> list[Number]:
    root = struct.unpack_from("<I", header, 0)[0]
    result = []
    kind_at = _field(header, root, _HEADER_KIND)
    if kind_at:
        result.append(Number("kind", kind_at, "<B"))
    if at := _field(header, root, _BODY_LENGTH):
        result.append(Number("body length", at, "<q"))
    kind = header[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY, _BATCH):
        return result
    table = _end_of_field(header, _field(header, root, _HEADER))
    if kind == _DICTIONARY:
        if at := _field(header, table, 0):
            result.append(Number("dictionary id", at, "<q"))
        if at := _field(header, table, 2):
            result.append(Number("is delta", at, "<B"))
        table = _end_of_field(header, _field(header, table, 1))
    if at := _field(header, table, _ROWS):
        result.append(Number("rows", at, "<q"))
    result += _vector(header, table, _NODES, 16, ("node length", "null count"))
    result += _vector(header, table, _BUFFERS, 16, ("buffer offset", "buffer length"))
    result += _vector(header, table, _VARIADIC, 8, ("variadic count",))
    if at := _field(header, table, _COMPRESSION):
        codec = _field(header, _end_of_field(header, at), 0)
        if codec:
            result.append(Number("codec", codec, "<B"))
    return result


def claiming_rows(message: IpcMessage, rows: int = CLAIMED_ROWS) -> IpcMessage:
    """Return a batch whose header claims this many rows in all columns; its buffers keep their size."""
    header = message.header
    for number in numbers(header):
        if number.name in ("rows", "node length"):
            header = number.written(header, rows)
    return IpcMessage(header, message.body)


def in_format_v4(header: bytes) -> bytes:
    """Return the header of a batch in the old format, without the field that names the compression."""
    result = bytearray(header)
    root = struct.unpack_from("<I", header, 0)[0]
    struct.pack_into("<h", result, _field(header, root, _VERSION), _V4)
    table = _end_of_field(header, _field(header, root, _HEADER))
    vtable = table - struct.unpack_from("<i", header, table)[0]
    struct.pack_into("<H", result, vtable + 4 + 2 * _COMPRESSION, 0)
    return bytes(result)


def messages_of(
    batch: pa.RecordBatch, *, compression: str | None = None, metadata: dict[str, str] | None = None
) -> list[IpcMessage]:
    """Return schema, dictionaries and batch as the messages of an IPC stream; `metadata` belongs to the batch."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, allow_64bit=True)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    return _split(sink.getvalue().to_pybytes())


def stream_of_messages(messages: list[IpcMessage]) -> bytes:
    """Return messages as an IPC stream."""
    return b"".join(
        b"\xff\xff\xff\xff" + struct.pack("<i", len(message.header)) + message.header + message.body
        for message in messages
    )


def forge(messages: list[IpcMessage], rng: random.Random, others: list[list[IpcMessage]]) -> list[IpcMessage]:
    """Return the messages of a stream with some false numbers."""
    result = list(messages)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        # The batch, most of the time: it is read last, behind all checks of the others.
        place = len(result) - 1 if rng.random() < 0.75 else rng.randrange(len(result))
        message = result[place]
        match rng.choice((0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4, 5)):
            case 0:
                result[place] = _lie(message, rng)
            case 1:
                result[place] = _lie_in_body(message, rng)
            case 2:
                result[place] = claiming_rows(message, rng.choice((*_EXTREMES, CLAIMED_ROWS, 4, 1000)))
            case 3:
                result[place] = rng.choice(rng.choice(others))
            case 4:
                cut = rng.choice((0, 1, 8, len(message.body) // 2, max(len(message.body) - 8, 0)))
                result[place] = replace(message, body=message.body[:cut])
            case _:
                result.insert(place, rng.choice(result))
    return result


def pack(messages: list[IpcMessage]) -> bytes:
    """Return concatenated messages with correct lengths, as Flight sends them, whatever their headers say."""
    return b"".join(
        struct.pack("<II", len(message.header), len(message.body)) + message.header + message.body
        for message in messages
    )


def unpack(data: bytes) -> list[IpcMessage]:
    """Return messages that were concatenated by `pack`."""
    result, at = [], 0
    while at < len(data):
        header, body = struct.unpack_from("<II", data, at)
        at += 8
        result.append(IpcMessage(data[at : at + header], data[at + header : at + header + body]))
        at += header + body
    return result


def forged_pack(valid: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return packed messages with false numbers."""
    return pack(forge(unpack(valid), rng, [unpack(each) for each in rng.sample(others, 3)]))


def forged_stream(valid: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return an IPC stream with false numbers in its messages; the given streams are valid."""
    return stream_of_messages(forge(_split(valid), rng, [_split(each) for each in rng.sample(others, 3)]))


@functools.cache
def _split(stream: bytes) -> list[IpcMessage]:
    reader = pa.MessageReader.open_stream(pa.py_buffer(stream))
    result = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return result
        body = b"" if message.body is None else message.body.to_pybytes()
        result.append(IpcMessage(message.metadata.to_pybytes(), body))


def _lie(message: IpcMessage, rng: random.Random) -> IpcMessage:
    places = numbers(message.header)
    if not places:
        return message
    # Each kind of number as often as the others, however many there are of it.
    name = rng.choice(sorted({number.name for number in places}))
    number = rng.choice([each for each in places if each.name == name])
    true = number.read(message.header)
    lie = rng.choice((*_EXTREMES, true + 1, true - 1, true + 8, true - 8, true * 2, -true, len(message.body)))
    return replace(message, header=number.written(message.header, lie))


def _lie_in_body(message: IpcMessage, rng: random.Random) -> IpcMessage:
    spans = [
        (offset.read(message.header), length.read(message.header))
        for offset, length in zip(
            (each for each in numbers(message.header) if each.name == "buffer offset"),
            (each for each in numbers(message.header) if each.name == "buffer length"),
            strict=True,
        )
    ]
    spans = [(offset, length) for offset, length in spans if length > 0 and 0 <= offset < len(message.body)]
    if not spans:
        return message
    offset, length = rng.choice(spans)
    width = rng.choice((1, 2, 4, 4, 4, 8, 8))
    at = offset + width * rng.randrange(max(length // width, 1))
    value = rng.choice(_EXTREMES) & (256**width - 1)
    body = message.body[:at] + value.to_bytes(width, "little") + message.body[at + width :]
    return replace(message, body=body[: len(message.body)])


def _every_array() -> Iterator[tuple[str, pa.Array]]:
    texts = ["a", None, "a text that is longer than a view holds"]
    numbers_ = pa.array([1, None, 3], pa.int64())
    yield "int", numbers_
    yield "bool", pa.array([True, None, False])
    yield "float", pa.array([1.5, None, float("nan")])
    yield "half", pa.array([1, 2, None], pa.float16())
    yield "decimal", pa.array([Decimal("1.5"), None, Decimal(-2)], pa.decimal128(38, 2))
    yield "decimal256", pa.array([Decimal("1.5"), None, Decimal(-2)], pa.decimal256(76, 2))
    yield "timestamp", pa.array([1, None, 3], pa.timestamp("us", "UTC"))
    yield "time", pa.array([1, None, 3], pa.time64("us"))
    yield "interval", pa.array([(1, 2, 3), None, (4, 5, 6)], pa.month_day_nano_interval())
    yield "null", pa.nulls(3)
    yield "fixed", pa.array([b"abc", None, b"def"], pa.binary(3))
    for type_ in (pa.string(), pa.large_string(), pa.string_view()):
        yield str(type_), pa.array(texts, type_)
    for type_ in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield str(type_), pa.array([None if text is None else text.encode() for text in texts], type_)
    lists = [[1, None], None, []]
    for type_ in (
        pa.list_(pa.int32()),
        pa.large_list(pa.int32()),
        pa.list_view(pa.int32()),
        pa.large_list_view(pa.int8()),
    ):
        yield str(type_).partition("<")[0], pa.array(lists, type_)
    yield "list of text", pa.array([texts, None, []], pa.list_(pa.string()))
    yield "list of null", pa.array([[None], None, []], pa.list_(pa.null()))
    yield "fixed list", pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2))
    yield "map", pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64()))
    yield (
        "struct",
        pa.array(
            [{"s": "t", "l": [1]}, None, {"s": None, "l": []}],
            pa.struct([("s", pa.string()), ("l", pa.list_(pa.int64()))]),
        ),
    )
    yield (
        "deep",
        pa.array(
            [[{"m": [("k", [texts])]}], None, []],
            pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.list_(pa.string()))))])),
        ),
    )
    yield "dictionary", pa.array(texts).dictionary_encode()
    yield "dictionary of lists", pa.DictionaryArray.from_arrays(pa.array([1, None, 0]), pa.array([[1], [2, 3]]))
    yield (
        "list of dictionary",
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(texts).dictionary_encode()),
    )
    yield "run end", pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", None]))
    types = pa.array([0, 1, 0], pa.int8())
    yield "sparse union", pa.UnionArray.from_sparse(types, [numbers_, pa.array(texts)])
    yield (
        "dense union",
        pa.UnionArray.from_dense(types, pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["a"])]),
    )


EVERY_TYPE = dict(_every_array())
# Those that a server does not take.
REFUSED_TYPES = (
    *("string_view", "binary_view", "list_view", "large_list_view"),
    *("dictionary", "dictionary of lists", "list of dictionary", "run end", "sparse union", "dense union"),
)


def every_column() -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield, for each Arrow type, a batch of three rows with a column `value` of it."""
    for name, array in EVERY_TYPE.items():
        slots = pa.array([0, 1, 0], pa.int32())
        kinds = pa.array([0, 0, 0], pa.int8())
        yield name, pa.RecordBatch.from_arrays([slots, kinds, array], ["slot", "kind", "value"])
