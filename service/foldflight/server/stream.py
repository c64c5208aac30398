"""One Flight stream, seen from the server: messages in and out, and what its errors mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from foldflight.errors import RejectedError
from foldflight.exchange.codec import Message
from foldflight.exchange.frames import columns_text
from foldflight.server.calls import VanishedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["check_columns", "received", "schema_of", "send"]

_COLUMNS_CHARS_MAX = 400


def check_columns(reader: Any, context: Any, columns: pa.Schema) -> None:
    """Refuse a stream whose chunks are not those that Open announced."""
    found = _reading(lambda: reader.schema, context)
    if found.equals(columns):
        return
    try:
        shown = columns_text(found)[:_COLUMNS_CHARS_MAX]
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"a column of the stream has a name that is not UTF-8: {error}") from None
    raise RejectedError(
        "SCHEMA_MISMATCH",
        "the stream's columns are not those that Open announced: "
        f"{shown} instead of {columns_text(columns)[:_COLUMNS_CHARS_MAX]}",
    )


def schema_of(reader: Any, context: Any) -> pa.Schema:
    """Return the schema of a stream that announced none before."""
    schema: pa.Schema = _reading(lambda: reader.schema, context)
    try:
        schema.names  # noqa: B018 - raises for names that are not UTF-8
    except UnicodeDecodeError as error:
        raise RejectedError("BAD_FRAME", f"a column of the stream has a name that is not UTF-8: {error}") from None
    return schema


def _reading(read: Callable[[], Any], context: Any) -> Any:
    """Read from the stream: an error there is the engine's, or nobody's if it has gone."""
    try:
        return read()
    except (pa.ArrowException, OSError) as error:
        if context.is_cancelled() or "never sent a data message" in str(error):
            raise VanishedError from None
        raise RejectedError("BAD_FRAME", f"cannot decode a message of the stream: {_first_line(error)}") from None


def received(reader: Any, context: Any) -> Iterator[Message]:
    """Yield the engine's messages until it says that no more comes."""
    while True:
        try:
            message = _reading(reader.read_chunk, context)
        except StopIteration:
            if context.is_cancelled():
                raise VanishedError from None
            return
        metadata = message.app_metadata
        yield Message(b"" if metadata is None else metadata.to_pybytes(), message.data)


def send(writer: Any, message: Message, *, begin: pa.Schema | None = None) -> None:
    """Send a message; before the first, begin the stream with its schema."""
    try:
        if begin is not None:
            writer.begin(begin)
        writer.write_with_metadata(message.batch, message.metadata)
    except (pa.ArrowException, OSError):
        raise VanishedError from None  # a reply cannot be written only when nobody is there to read it


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
