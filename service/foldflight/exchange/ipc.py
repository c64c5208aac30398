"""Read the messages of an Arrow IPC stream. The decompressed size is checked before Arrow decompresses a message.

A message of a few kilobytes can decompress to gigabytes, and pyarrow has no bound: it allocates as much memory as the
message states. The size follows from the header and from the first bytes of each buffer.

Source: Apache Arrow, `Message.fbs`, and the FlatBuffers binary format.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from foldflight.errors import RejectedError

__all__ = ["BatchReader", "refuse_compressed", "split", "unpacked_bytes"]

# Positions of fields in their tables, and kinds of headers, from Message.fbs.
_HEADER_KIND, _HEADER = 1, 2
_DICTIONARY, _BATCH = 2, 3
_DICTIONARY_ID: Final = 0
_DICTIONARY_DATA: Final = 1
_DICTIONARY_IS_DELTA: Final = 2
_BUFFERS: Final = 2
_COMPRESSION: Final = 3
# A compressed buffer begins with its decompressed size; -1 means that the buffer is not compressed.
_NOT_COMPRESSED: Final = -1
_PREFIX: Final = b"\xff\xff\xff\xff"
# Up to this size, copying a message is faster than letting Arrow call Python for its parts.
_COPIED_BYTES_MAX: Final = 128 * 1024


class BatchReader:
    """Reads record batches from the messages of one IPC stream, one message at a time.

    Args:
        bytes_max: Largest decompressed size of one message, and of all dictionaries of the stream together.

    Attributes:
        schema: The schema of the stream; None before its first message.
    """

    def __init__(self, bytes_max: int) -> None:
        self.schema: pa.Schema | None = None
        self._bytes_max = bytes_max
        self._opening = b""
        self._dictionaries: dict[int, bytes] = {}

    def take(self, header: memoryview, body: memoryview) -> pa.RecordBatch | None:
        """Return the batch of a message; None for a schema or a dictionary. The batch is not validated yet.

        Raises:
            RejectedError: LIMIT if the decompressed size of the message exceeds bytes_max.
            pa.ArrowException, ValueError, struct.error: The message is invalid.
        """
        if self.schema is None:
            self._opening = _encapsulated(header, body)
            self.schema = pa.ipc.read_schema(pa.py_buffer(self._opening))
            return None
        kind, table = _message_table(header)
        if kind not in (_DICTIONARY, _BATCH):
            raise ValueError("the message is neither a record batch nor a dictionary")
        self._check_size(unpacked_bytes(header, body))
        if kind == _DICTIONARY:
            self._store_dictionary(header, body, table)
            return None
        if self._dictionaries:
            stream = b"".join((self._opening, *self._dictionaries.values(), _encapsulated(header, body)))
            return pa.ipc.open_stream(pa.py_buffer(stream)).read_next_batch()
        message = pa.ipc.read_message(_arrow_input(header, body))
        return pa.ipc.read_record_batch(message, self.schema)

    def _store_dictionary(self, header: memoryview, body: memoryview, table: int) -> None:
        """Keep a dictionary for later batches. It replaces an earlier one with the same id."""
        is_delta = _field_offset(header, table, _DICTIONARY_IS_DELTA)
        if is_delta and header[is_delta]:
            raise ValueError("delta dictionaries are not supported; send the whole dictionary")
        id_at = _field_offset(header, table, _DICTIONARY_ID)
        number = struct.unpack_from("<q", header, id_at)[0] if id_at else 0
        self._dictionaries[number] = _encapsulated(header, body)
        self._check_size(sum(map(len, self._dictionaries.values())))

    def _check_size(self, size: int) -> None:
        if size > self._bytes_max:
            raise RejectedError(
                "LIMIT",
                f"a message has {size} bytes after decompression, and message_bytes_max is {self._bytes_max}; "
                "send smaller chunks",
                limit="message_bytes_max",
            )


class _PartsFile:
    """A file object over the parts of a message. Arrow reads the body from it without a copy."""

    closed = False

    def __init__(self, *parts: bytes | memoryview) -> None:
        self._parts = list(parts)

    def read(self, size: int) -> bytes | memoryview:
        """Return up to `size` bytes of the next part. Arrow reads part by part."""
        if not self._parts:
            return b""
        part = self._parts[0]
        if size < len(part):
            self._parts[0] = part[size:]
            return part[:size]
        return self._parts.pop(0)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _arrow_input(header: memoryview, body: memoryview) -> pa.NativeFile | pa.Buffer:
    if len(body) <= _COPIED_BYTES_MAX:
        return pa.py_buffer(_encapsulated(header, body))
    return pa.PythonFile(_PartsFile(_PREFIX, struct.pack("<i", len(header)), header, body), mode="r")


def _encapsulated(header: memoryview, body: memoryview) -> bytes:
    """Return a message in the encapsulated format of IPC streams, with an aligned body."""
    padding = bytes(-len(header) % 8)
    return b"".join((_PREFIX, struct.pack("<i", len(header) + len(padding)), header, padding, body))


def split(message: pa.Buffer) -> tuple[memoryview, memoryview]:
    """Return header and body of a message in the encapsulated format of IPC streams."""
    seen = memoryview(message)
    end = 8 + struct.unpack_from("<i", seen, 4)[0]
    return seen[8:end], seen[end:]


def unpacked_bytes(header: bytes | memoryview, body: bytes | memoryview) -> int:
    """Return the decompressed size of the body of a record batch or a dictionary, in bytes.

    Raises:
        struct.error, IndexError: The header is invalid.
    """
    table = _batch_table(header)
    buffers_at = _field_offset(header, table, _BUFFERS) if table else 0
    if not table or not _field_offset(header, table, _COMPRESSION) or not buffers_at:
        return len(body)
    start = _follow_offset(header, buffers_at)
    total = 0
    for place in range(struct.unpack_from("<I", header, start)[0]):
        # A count that is too high reads past the end of the header, which raises an error.
        offset, length = struct.unpack_from("<qq", header, start + 4 + 16 * place)
        if length <= 0:
            continue
        claimed = struct.unpack_from("<q", body, offset)[0]
        total += length if claimed == _NOT_COMPRESSED else max(claimed, 0)
    return total


def refuse_compressed(data: bytes) -> None:
    """Check that no message of an IPC stream has compressed buffers. States must not be compressed.

    Raises:
        ValueError: A message has compressed buffers.
        pa.ArrowException, struct.error, IndexError: The stream is invalid.
    """
    reader = pa.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        header = message.metadata.to_pybytes()
        table = _batch_table(header)
        if table and _field_offset(header, table, _COMPRESSION):
            raise ValueError("its buffers are compressed; send them uncompressed")


def _message_table(header: bytes | memoryview) -> tuple[int, int]:
    """Return the kind of a message and the offset of its table; 0 if it has none."""
    root = struct.unpack_from("<I", header, 0)[0]
    kind_at = _field_offset(header, root, _HEADER_KIND)
    header_at = _field_offset(header, root, _HEADER)
    return header[kind_at] if kind_at else 0, _follow_offset(header, header_at) if header_at else 0


def _batch_table(header: bytes | memoryview) -> int:
    """Return the offset of the table of a record batch, or of the batch in a dictionary; 0 if there is none."""
    kind, table = _message_table(header)
    if kind not in (_DICTIONARY, _BATCH) or not table:
        return 0
    if kind == _BATCH:
        return table
    data_at = _field_offset(header, table, _DICTIONARY_DATA)
    return _follow_offset(header, data_at) if data_at else 0


def _field_offset(buffer: bytes | memoryview, table: int, place: int) -> int:
    """Return the offset of a field of a table; 0 if the field is absent."""
    vtable: int = table - struct.unpack_from("<i", buffer, table)[0]
    entry = 4 + 2 * place
    if vtable < 0 or entry >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", buffer, vtable + entry)[0]
    return table + offset if offset else 0


def _follow_offset(buffer: bytes | memoryview, at: int) -> int:
    return int(at + struct.unpack_from("<I", buffer, at)[0])
