"""Messages of Arrow, read from their bytes: messages of an IPC stream, and Flight's messages around them.

The messages of an IPC stream are checked by their headers before Arrow unpacks them. A few kilobytes can unpack to
gigabytes, and pyarrow has no bound on that: it takes as much memory as the message claims to need. The header and the
first bytes of each buffer tell how much that is.

Source: Apache Arrow, `Message.fbs`, and the FlatBuffers binary format.

Messages of Flight are in protobuf's encoding: their fields are found and written without copying bodies. Arrow's Python
shows the `app_metadata` of a FlightInfo in its newer versions only; its C++ keeps it since version 14.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from foldflight.errors import RejectedError

# Positions of fields in their flatbuffer tables, and kinds of headers, from Message.fbs.
_VERSION, _HEADER_KIND, _HEADER, _CUSTOM_METADATA = 0, 1, 2, 4
_BATCH: Final = 3
# MetadataVersion.V5. Messages of version 4 may name their compression in custom metadata, as Arrow 0.17 did.
_NEWEST_VERSION: Final = 4
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
# Buffers of one array: validity, offsets and values.
_BUFFERS_OF_A_FIELD: Final = 3
# A compressed buffer begins with its uncompressed size; -1 means that it is not compressed.
_NOT_COMPRESSED: Final = -1
_PREFIX: Final = b"\xff\xff\xff\xff"
# Up to this size, copying a message is faster than letting Arrow read its parts through Python.
_COPIED_BYTES_MAX: Final = 128 * 1024


def write_batch(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


class BatchReader:
    """Decodes the messages of one IPC stream, which arrive one by one, to batches.

    Args:
        bytes_max: Limit of the uncompressed bytes of one message.

    Attributes:
        schema: The schema of the stream, after its first message.
        batch_bytes: Uncompressed bytes of the buffers of the last batch.
    """

    def __init__(self, bytes_max: int) -> None:
        self.schema: pa.Schema | None = None
        self.batch_bytes = 0
        self._bytes_max = bytes_max
        self._buffers_max = 0
        # The header and the size of the body of the last message, if its buffers are not compressed.
        self._last: tuple[bytes, int] | None = None
        self._empty: pa.RecordBatch | None = None  # the last batch, if it had no body, for equal headers

    def take(self, header: memoryview, body: memoryview) -> pa.RecordBatch | None:
        """Return the batch of a message, which is not validated yet; None for the schema.

        Raises:
            RejectedError: LIMIT, for a message that unpacks to more than bytes_max.
            pa.ArrowException, ValueError, struct.error: The message is none.
        """
        if self.schema is None:
            self.schema = pa.ipc.read_schema(pa.py_buffer(_join_message(header, body)))
            self._buffers_max = _buffers_max(self.schema)
            return None
        # Batches of equal size often have equal headers, and without compression the header determines the size.
        this = (bytes(header), len(body))
        if this == self._last:
            if self._empty is not None:
                return self._empty
        else:
            self._empty = None
            table = _batch_in(header)
            if not table:
                raise ValueError("it is no record batch")  # or a dictionary, which no accepted column has
            self._check_size(_unpacked_bytes(header, table, body, self._buffers_max))
            self._last = None if _field(header, table, _COMPRESSION) else this
        message = pa.ipc.read_message(_source(header, body))
        batch = pa.ipc.read_record_batch(message, self.schema)
        if not len(body) and self._last is not None:
            self._empty = batch
        return batch

    def _check_size(self, size: int) -> None:
        self.batch_bytes = size
        if size > self._bytes_max:
            raise RejectedError(
                "LIMIT",
                f"a message takes {size} bytes when it is unpacked, and message_bytes_max is {self._bytes_max}; send "
                "smaller chunks",
                limit="message_bytes_max",
            )


class _Parts:
    """A message as a file that Arrow reads without a copy of the body."""

    closed = False

    def __init__(self, *parts: bytes | memoryview) -> None:
        self._parts = list(parts)

    def read(self, size: int) -> bytes | memoryview:
        """Return the next bytes of one part, at most `size`."""
        if not self._parts:
            return b""
        part = self._parts[0]
        if size < len(part):
            self._parts[0] = part[size:]
            return part[:size]
        return self._parts.pop(0)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _source(header: memoryview, body: memoryview) -> pa.NativeFile | pa.Buffer:
    if len(body) <= _COPIED_BYTES_MAX:
        return pa.py_buffer(_join_message(header, body))
    return pa.PythonFile(_Parts(_PREFIX, struct.pack("<i", len(header)), header, body), mode="r")


def _join_message(header: memoryview, body: memoryview) -> bytes:
    """Return a message as it stands in an IPC stream, with the body aligned."""
    padding = bytes(-len(header) % 8)
    return b"".join((_PREFIX, struct.pack("<i", len(header) + len(padding)), header, padding, body))


def split(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """Return header and body of a message as it stands in an IPC stream."""
    view = memoryview(message)
    end = 8 + struct.unpack_from("<i", view, 4)[0]
    return view[8:end], view[end:]


def _unpacked_bytes(header: bytes | memoryview, table: int, body: bytes | memoryview, buffers_max: int) -> int:
    """Return the bytes of a batch when its buffers are uncompressed. Overlapping buffers count each.

    Raises:
        ValueError: It has more buffers than `buffers_max`.
        struct.error, IndexError: The header is none.
    """
    if not _field(header, table, _COMPRESSION):
        return max(len(body), sum(length for _, length in _buffers(header, table, buffers_max)))
    total = 0
    for offset, length in _buffers(header, table, buffers_max):
        if length > 0:
            claimed_bytes = struct.unpack_from("<q", body, offset)[0]
            total += length if claimed_bytes == _NOT_COMPRESSED else max(claimed_bytes, 0)
    return total


def read_batches(data: bytes, check: Callable[[pa.Schema], None]) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """Return schema and batches of a whole IPC stream. The batches are not validated yet.

    Message by message: `pyarrow.ipc.open_stream(...).read_all()` of forged messages kills the process.

    Args:
        data: The stream.
        check: Called with the schema before any batch is read.

    Raises:
        ValueError: It has messages other than batches, or compressed ones: nobody needs compressed states.
        pa.ArrowException, struct.error, IndexError, StopIteration: The stream is no stream.
    """
    # pyarrow reads a schema from a message without checking the kind of the message; from bytes it checks.
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    check(schema)
    buffers_max = _buffers_max(schema)
    reader = pa.MessageReader.open_stream(pa.py_buffer(data))
    reader.read_next_message()
    batches: list[pa.RecordBatch] = []
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return schema, batches
        header = message.metadata.to_pybytes()
        table = _batch_in(header)
        if not table:
            raise ValueError("it has a message that is no record batch")
        if _field(header, table, _COMPRESSION):
            raise ValueError("its buffers are compressed; send them as they are")
        if sum(length for _, length in _buffers(header, table, buffers_max)) > message.body.size:
            # Arrow accepts such batches, and a copy takes many times the memory of the message.
            raise ValueError("its buffers overlap")
        batches.append(pa.ipc.read_record_batch(message, schema))


def _buffers_max(schema: pa.Schema) -> int:
    """Return the maximum number of buffers of a batch. String views, with any number, are not supported."""
    return _BUFFERS_OF_A_FIELD * arrays_in(schema)


def arrays_in(schema: pa.Schema) -> int:
    """Return the number of arrays of a batch, including nested ones."""
    types, count = list(schema.types), 0
    while types:
        type_ = types.pop()
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        count += 1
        types += [type_.field(index).type for index in range(type_.num_fields)]
    return count


def _buffers(header: bytes | memoryview, table: int, most: int) -> list[tuple[int, int]]:
    """Return offset and length of each buffer of a batch."""
    buffers_at = _field(header, table, _BUFFERS)
    if not buffers_at:
        return []
    start = _next_offset(header, buffers_at)
    count = struct.unpack_from("<I", header, start)[0]
    if count > most:
        raise ValueError(f"it has {count} buffers, and its columns have at most {most}")
    buffers: list[tuple[int, int]] = [
        struct.unpack_from("<qq", header, start + 4 + 16 * index) for index in range(count)
    ]
    if any(length < 0 for _, length in buffers):
        # Arrow does not check each buffer, and a sum of sizes would hide overlaps.
        raise ValueError("a buffer has a negative length")
    return buffers


def _batch_in(header: bytes | memoryview) -> int:
    """Return the position of the table of a batch; 0 if the message is not a batch.

    Raises:
        ValueError: The compression of the batch may be in metadata, where Arrow finds it and `_COMPRESSION` does not.
    """
    root = struct.unpack_from("<I", header, 0)[0]
    version_at = _field(header, root, _VERSION)
    is_newest = version_at and struct.unpack_from("<h", header, version_at)[0] == _NEWEST_VERSION
    if not is_newest and _field(header, root, _CUSTOM_METADATA):
        raise ValueError("it has custom metadata in the old format V4; send it in format V5")
    kind_at = _field(header, root, _HEADER_KIND)
    header_at = _field(header, root, _HEADER)
    if not kind_at or header[kind_at] != _BATCH or not header_at:
        return 0
    return _next_offset(header, header_at)


def _field(buffer: bytes | memoryview, table: int, index: int) -> int:
    """Return the position of a field of a table; 0 if the table does not have it."""
    vtable: int = table - struct.unpack_from("<i", buffer, table)[0]
    entry = 4 + 2 * index
    if vtable < 0 or entry >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", buffer, vtable + entry)[0]
    return table + offset if offset else 0


def _next_offset(buffer: bytes | memoryview, at: int) -> int:
    return int(at + struct.unpack_from("<I", buffer, at)[0])


_VARINT, _EIGHT_BYTES, _COUNTED, _FOUR_BYTES = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
# FlightData has four fields; a later version may have more.
_FIELDS_MAX: Final = 64
# The longest head of a message, in bytes, that is compared with the previous one to save parsing it again.
HEAD_MAX: Final = 4096
_APP_METADATA: Final = 7
Ranges = dict[int, tuple[int, int]]


def fields_of(message: bytes) -> dict[int, memoryview]:
    """Return the length-delimited fields of a message by number, without copying. The last of equal numbers counts."""
    view = memoryview(message)
    return {number: view[start:end] for number, (start, end) in ranges_of(message).items()}


def ranges_of(message: bytes) -> Ranges:
    """Return where each length-delimited field of a message begins and ends. The last of equal numbers counts.

    protobuf's own parser would copy each field, and one field of a chunk has megabytes.
    """
    at, count = 0, 0
    ranges: Ranges = {}
    try:
        while at < len(message):
            count += 1
            if count > _FIELDS_MAX:
                raise ValueError(f"it has more than {_FIELDS_MAX} fields")
            tag, at = _varint(message, at)
            kind = tag & 7
            if kind == _COUNTED:
                size, at = _varint(message, at)
                if size > len(message) - at:
                    raise ValueError("a field is longer than the message")
                ranges[tag >> 3] = at, at + size
                at += size
            elif kind == _VARINT:
                _, at = _varint(message, at)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                at += 8 if kind == _EIGHT_BYTES else 4
            else:
                raise ValueError(f"a field has the unknown kind {kind}")
    except (ValueError, IndexError) as error:
        raise RejectedError("BAD_FRAME", f"a message is not a valid message of Arrow Flight: {error}") from None
    return ranges


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = message[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("a number has more than 64 bits")


def part(field: int, content: bytes | memoryview) -> bytes:
    """Return a length-delimited field."""
    return head(field, len(content)) + content


def head(field: int, size: int) -> bytes:
    """Return the bytes before the content of a length-delimited field: its number and size."""
    buffer = bytearray()
    for number in (field << 3 | _COUNTED, size):
        rest = number
        while rest > 0x7F:
            buffer.append(rest & 0x7F | 0x80)
            rest >>= 7
        buffer.append(rest)
    return bytes(buffer)


def with_app_metadata(info: bytes, metadata: bytes) -> bytes:
    """Return a serialized FlightInfo with another `app_metadata`: the last of equal fields counts."""
    return info + part(_APP_METADATA, metadata)


def app_metadata_in(info: bytes) -> bytes:
    """Return the `app_metadata` of a serialized FlightInfo, or no bytes."""
    return bytes(fields_of(info).get(_APP_METADATA, b""))
