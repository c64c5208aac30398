"""What an Arrow IPC stream says of itself before it is read: whether its buffers are compressed.

A few kilobytes can unpack to gigabytes, and pyarrow has no bound on that. Nobody needs compressed states, so they are
refused by the one field of the message header that tells.

Source: Apache Arrow, `Message.fbs`, and the FlatBuffers binary format.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

__all__ = ["refuse_compressed"]

# Places of fields in their tables, and kinds of headers, from Message.fbs.
_HEADER_KIND, _HEADER = 1, 2
_DICTIONARY, _BATCH = 2, 3
_DICTIONARY_DATA: Final = 1
_COMPRESSION: Final = 3


def refuse_compressed(data: bytes) -> None:
    """Raise ValueError if a message of an IPC stream has compressed buffers.

    Raises:
        ValueError: It has.
        pa.ArrowException, struct.error, IndexError: The stream is no stream.
    """
    reader = pa.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return
        if _is_compressed(message.metadata.to_pybytes()):
            raise ValueError("its buffers are compressed; send them as they are")


def _is_compressed(header: bytes) -> bool:
    root = struct.unpack_from("<I", header, 0)[0]
    kind_at = _field(header, root, _HEADER_KIND)
    header_at = _field(header, root, _HEADER)
    kind = header[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY, _BATCH) or not header_at:
        return False
    table = _followed(header, header_at)
    if kind == _DICTIONARY:
        data_at = _field(header, table, _DICTIONARY_DATA)
        if not data_at:
            return False
        table = _followed(header, data_at)
    return _field(header, table, _COMPRESSION) != 0


def _field(buffer: bytes, table: int, place: int) -> int:
    """Return where a field of a table stands; 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    entry = 4 + 2 * place
    if vtable < 0 or entry >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset: int = struct.unpack_from("<H", buffer, vtable + entry)[0]
    return table + offset if offset else 0


def _followed(buffer: bytes, at: int) -> int:
    return int(at + struct.unpack_from("<I", buffer, at)[0])
