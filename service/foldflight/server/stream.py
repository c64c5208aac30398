"""The messages of one Flight stream on the server, and the meaning of its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.encoding import Message
from foldflight.exchange.frames import columns_text
from foldflight.server.calls import VanishedError

_COLUMNS_CHARS_MAX = 400


def check_columns(reader: Any, context: Any, columns: pa.Schema) -> None:
    """Raise SCHEMA_MISMATCH if the schema of the stream differs from the columns in Open."""
    given = reading(lambda: reader.schema, context)
    if given.equals(columns):
        return
    try:
        shown = columns_text(given)[:_COLUMNS_CHARS_MAX]
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"the stream has a column whose name is not UTF-8: {error}") from None
    raise RejectedError(
        "SCHEMA_MISMATCH",
        f"the columns of the stream are {shown}, and those in Open are "
        f"{columns_text(columns)[:_COLUMNS_CHARS_MAX]}; they must be equal in names, order and types",
    )


def schema_of(reader: Any, context: Any) -> pa.Schema:
    """Return the schema of a stream that announced none before."""
    schema: pa.Schema = reading(lambda: reader.schema, context)
    try:
        schema.names  # noqa: B018 - raises for names that are not UTF-8
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"a column of the stream has a name that is not UTF-8: {error}") from None
    return schema


def reading(read: Callable[[], Any], context: Any) -> Any:
    """Read from the stream. Raise VanishedError if the engine has disconnected, and BAD_FRAME for invalid messages."""
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        if context.is_cancelled() or "never sent a data message" in str(error):
            raise VanishedError from None
        raise RejectedError("BAD_FRAME", f"cannot decode a message of the stream: {_first_line(error)}") from None


def received(reader: Any, context: Any) -> Iterator[Message]:
    """Yield the messages of the engine until it closes its direction of the stream."""
    while True:
        try:
            message = reading(reader.read_chunk, context)
        except StopIteration:
            if context.is_cancelled():
                raise VanishedError from None
            return
        metadata = message.app_metadata
        yield Message(b"" if metadata is None else metadata.to_pybytes(), message.data, message.batch_bytes)


def send(writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
    """Send a message. `begin` is the schema of the stream, sent before the first message."""
    try:
        if begin is not None:
            writer.begin(begin)
        writer.write_with_metadata(message.batch, message.metadata)
    except (pa.ArrowException, OSError):
        raise VanishedError from None  # a write fails only if the engine has disconnected


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
