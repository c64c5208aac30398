"""Read and write the fields of Arrow Flight's protobuf messages as bytes, without copying the bodies.

Arrow's Python shows the `app_metadata` of a FlightInfo in its newer versions only; its C++ keeps it since version 14.
"""

from __future__ import annotations

from typing import Final

from foldflight.errors import RejectedError

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
    seen = memoryview(message)
    return {number: seen[start:end] for number, (start, end) in ranges_of(message).items()}


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
    written = bytearray()
    for number in (field << 3 | _COUNTED, size):
        rest = number
        while rest > 0x7F:
            written.append(rest & 0x7F | 0x80)
            rest >>= 7
        written.append(rest)
    return bytes(written)


def with_app_metadata(info: bytes, metadata: bytes) -> bytes:
    """Return a serialized FlightInfo with another `app_metadata`: the last of equal fields counts."""
    return info + part(_APP_METADATA, metadata)


def app_metadata_in(info: bytes) -> bytes:
    """Return the `app_metadata` of a serialized FlightInfo, or no bytes."""
    return bytes(fields_of(info).get(_APP_METADATA, b""))
