"""Encoding of messages that are not frames: errors (extra info of a Flight error) and descriptions of functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from foldflight import errors
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.frames import FunctionInfo, ParameterInfo
from foldflight.fold.mode import Folding
from foldflight.functions.author.spec import FunctionKind

_Parsed = TypeVar("_Parsed", bound=Protobuf)

# Fields copied unchanged between the protobuf message and the dataclass.
_ERROR_TEXTS: Final = ("function", "row", "trace", "recorded")
_PARAMETER: Final = ("name", "required", "default", "annotation")
_CAPABILITIES: Final = ("retract", "merge", "invertible", "deterministic", "codec", "codec_reason")
_INFO: Final = ("name", "version", "signature", "doc", *_CAPABILITIES, "vectorised", "code_digest")


def same(source: object, names: Sequence[str]) -> dict[str, Any]:
    """Return the named attributes of a message or of its dataclass, to be copied from one to the other."""
    return {name: getattr(source, name) for name in names}


def parse_message(cls: type[_Parsed], data: bytes, what: str) -> _Parsed:
    """Parse bytes as a protobuf message of class `cls`. Raises RejectedError BAD_FRAME."""
    try:
        return cls.FromString(data)
    except (DecodeError, ValueError, RecursionError):
        raise RejectedError("BAD_FRAME", f"{what} is not a {cls.DESCRIPTOR.full_name} message") from None


def utf8(text: str) -> str:
    """Escape lone surrogates so that the text encodes as UTF-8. File names and foreign data may contain them."""
    return text.encode(errors="backslashreplace").decode()


def encode_error(error: FoldflightError) -> bytes:
    """Return an error as bytes, for the extra info of a Flight error."""
    texts = {name: text and utf8(text) for name, text in same(error, _ERROR_TEXTS).items()}
    return pb.Error(
        error_class=type(error).__name__,
        code=error.code,
        message=utf8(error.message),
        slot=error.slot,
        story=[utf8(step) for step in error.story],
        repeats=error.repeats,
        **texts,
    ).SerializeToString()


def decode_error(extra_info: bytes) -> FoldflightError | None:
    """Decode an error of foldflight; None if the bytes are not one."""
    try:
        message = pb.Error.FromString(extra_info)
    except (DecodeError, ValueError):
        return None
    cls = getattr(errors, message.error_class, None)
    if not (isinstance(cls, type) and issubclass(cls, FoldflightError)) or message.code not in cls.codes:
        return None
    optional = {name: getattr(message, name) for name in (*_ERROR_TEXTS, "slot") if message.HasField(name)}
    return cls(message.code, message.message, story=tuple(message.story), repeats=message.repeats, **optional)


def encode_info(info: FunctionInfo) -> bytes:
    """Encode the description of a function, for the metadata of its FlightInfo."""
    return pb.FunctionInfo(
        **same(info, _INFO),
        parameters=[pb.Parameter(**same(each, _PARAMETER)) for each in info.parameters],
        input_names=info.input_names,
        input_types=None if info.input_types is None else pb.Types(names=info.input_types),
        result_type=info.result_type or "",
        folded=utf8(info.folded),
        inputs_min=info.inputs_min,
        kind="" if info.kind is FunctionKind.AGGREGATE else info.kind,
        zoned_types=None if info.zoned_types is None else pb.Types(names=info.zoned_types),
        zoned_result=info.zoned_result or "",
        lift=utf8(info.lift),
    ).SerializeToString()


def decode_info(metadata: bytes) -> FunctionInfo:
    """Decode the description of a function. Raises RejectedError BAD_FRAME."""
    message = parse_message(pb.FunctionInfo, metadata, "the description of a function")
    inputs_min = len(message.input_names) if message.HasField("input_types") else 0
    return FunctionInfo(
        **same(message, _INFO),
        parameters=tuple(ParameterInfo(**same(each, _PARAMETER)) for each in message.parameters),
        input_names=tuple(message.input_names),
        input_types=tuple(message.input_types.names) if message.HasField("input_types") else None,
        result_type=message.result_type or None,
        folding=Folding.from_text(message.folded),
        inputs_min=message.inputs_min if message.HasField("inputs_min") else inputs_min,
        kind=_kind(message.kind),
        zoned_types=tuple(message.zoned_types.names) if message.HasField("zoned_types") else None,
        zoned_result=message.zoned_result or None,
        lift=message.lift,
    )


def _kind(text: str) -> FunctionKind:
    try:
        return FunctionKind(text or FunctionKind.AGGREGATE)
    except ValueError:
        raise RejectedError(
            "BAD_FRAME", f"the server has a function of the kind {text!r}, which this version does not know; upgrade it"
        ) from None
