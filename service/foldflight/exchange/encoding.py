"""Encode and decode frames. Decoding raises only errors of foldflight, whatever the bytes are.

A message is a record batch with metadata (protobuf). No code may read a received batch, not even its size, before
`decode` has validated it in full. Offsets outside their buffers, invalid UTF-8 and wrong lengths are errors here;
reading them without validation can crash the process.

Two messages are not frames: errors (extra info of a Flight error) and descriptions of functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from foldflight import errors
from foldflight.errors import FoldflightError, RejectedError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.frames import (
    PROTOCOL_VERSION,
    Barrier,
    Checkpoint,
    Chunk,
    Entries,
    Folded,
    Forget,
    Frame,
    FunctionInfo,
    InitialOutputs,
    Limits,
    Log,
    Mapped,
    Open,
    Opened,
    OpenedCall,
    ParameterInfo,
    Results,
    Returns,
    RowOutputs,
    SavedStates,
    States,
    Wanted,
)
from foldflight.exchange.ipc import read_batches, write_batch
from foldflight.exchange.transitions import Role
from foldflight.fold.mode import Folding, Mode
from foldflight.functions.author.context import LogRecord
from foldflight.functions.author.spec import FunctionKind
from foldflight.functions.query.call import Call, Order, Step, StepArgument
from foldflight.functions.types.arrow import is_nested, to_pylist
from foldflight.functions.types.sql import check_plain
from foldflight.functions.types.views import ViewSpec

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


_T = TypeVar("_T")
# Maximum number of values inside of lists and maps that take no bytes in the message, such as NULLs.
_SIZELESS_MAX: Final = 1 << 20
_LITERALS_BYTES_MAX: Final = 1 << 20
# Fields copied unchanged between the protobuf message and the dataclass.
_OPEN: Final = (
    "initial_outputs",
    "row_outputs",
    "emits",
    "isolate_errors",
    "keeps_views",
    "call_scope",
    "protocol_version",
)
_CALL: Final = ("function", "distinct", "materialize", "fingerprint")
_OPENED_CALL: Final = (
    "fingerprint",
    "can_retract",
    "can_merge",
    "is_invertible",
    "can_migrate",
    "is_ordered",
    "code_digest",
    "value_varies",
    "rows_at_once",
)
# The metadata of every chunk.
_CHUNK: Final = pb.EngineFrame(chunk=pb.Chunk()).SerializeToString()


@dataclass(frozen=True)
class Message:
    """One message of the stream: a batch and its metadata.

    Args:
        metadata: The frame, without its batch.
        batch: The data; a batch of zero rows if the frame has no data. None if a message arrived without a batch.
        batch_bytes: The bytes of the buffers of the batch, in messages that a server received.
    """

    metadata: bytes
    batch: pa.RecordBatch | None
    batch_bytes: int = 0


def encode_open(open_request: Open) -> bytes:
    """Encode Open, for the command of a descriptor."""
    message = pb.Open(
        **same(open_request, (*_OPEN, "job_parameters", "trace_context", "bundles", "outputs")),
        columns=open_request.columns.serialize().to_pybytes(),
        return_states=open_request.returns.states,
        return_outputs=open_request.returns.outputs,
        steps=map(_encode_step, open_request.steps),
    )
    for call in open_request.calls:
        message.calls.append(
            pb.Call(
                **same(call, (*_CALL, "arguments", "filter")),
                literals=_encode_literals(call),
                order=[pb.Order(**dataclasses.asdict(each)) for each in call.order],
            )
        )
    return message.SerializeToString()


def _encode_step(step: Step) -> pb.Step:
    return pb.Step(
        function=step.function,
        arguments=[pb.StepArgument(column=each.column, step=each.step, member=each.member) for each in step.arguments],
        literals=_encode_literals(step),
        fingerprint=step.fingerprint,
        outer=step.outer,
    )


def decode_open(command: bytes) -> Open:
    """Decode the Open of a descriptor's command.

    Raises:
        RejectedError: BAD_FRAME; PROTOCOL_VERSION, with the version of this server.
    """
    message = parse_message(pb.Open, command, "the descriptor")
    if message.protocol_version != PROTOCOL_VERSION:
        raise RejectedError(
            "PROTOCOL_VERSION",
            f"the engine uses protocol version {message.protocol_version}; this server serves {PROTOCOL_VERSION}",
        )
    if not message.calls and not message.steps:
        raise RejectedError("BAD_FRAME", "Open has no calls and no steps; give at least one")
    columns = _bad_frame_on_error(lambda: _read_schema(message.columns), "Open.columns is not a valid Arrow IPC schema")
    return Open(
        calls=tuple(_decode_call(call) for call in message.calls),
        columns=columns,
        returns=Returns(message.return_states, message.return_outputs),
        job_parameters=dict(message.job_parameters),
        trace_context=dict(message.trace_context),
        bundles=tuple(message.bundles),
        steps=tuple(map(_decode_step, message.steps)),
        outputs=tuple(message.outputs),
        **same(message, _OPEN),
    )


def _encode_literals(call: Call | Step) -> bytes:
    if not call.literals:
        return b""
    try:
        batch = pa.RecordBatch.from_pylist([dict(call.literals)])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RejectedError(
            "SIGNATURE",
            f"a direct argument of {call.function} cannot be converted to an Arrow type: {error}; "
            "give numbers, texts, dates, lists or dicts",
            function=call.function,
        ) from None
    return write_batch(batch)


def _decode_literals(call: pb.Call | pb.Step) -> Mapping[str, Any]:
    literals: Mapping[str, Any] = {}
    if call.literals:
        batch = read_batch(call.literals, "the direct arguments of a call")
        if batch.num_rows != 1:
            raise RejectedError("BAD_FRAME", f"Call.literals must have one row, and it has {batch.num_rows}")
        if batch.nbytes > _LITERALS_BYTES_MAX:
            raise RejectedError(
                "LIMIT",
                f"the direct arguments of {call.function} have {batch.nbytes} bytes, and the limit is "
                f"{_LITERALS_BYTES_MAX}; pass large values as columns",
                limit="literals",
            )
        literals = _bad_frame_on_error(
            lambda: to_pylist(batch)[0], "Call.literals cannot be converted to Python values"
        )
    return literals


def _decode_step(step: pb.Step) -> Step:
    arguments = []
    for each in step.arguments:
        source = each.WhichOneof("source")
        if source is None:
            raise RejectedError("BAD_FRAME", f"an argument of {step.function} is neither a column nor a step")
        arguments.append(
            StepArgument(
                column=each.column if source == "column" else None,
                step=each.step if source == "step" else None,
                member=each.member if each.HasField("member") else None,
            )
        )
    return Step(
        function=step.function,
        arguments=tuple(arguments),
        literals=_decode_literals(step),
        fingerprint=step.fingerprint,
        outer=step.outer,
    )


def _decode_call(call: pb.Call) -> Call:
    return Call(
        **same(call, _CALL),
        arguments=tuple(call.arguments),
        filter=call.filter if call.HasField("filter") else None,
        literals=_decode_literals(call),
        order=tuple(Order(each.column, each.descending, each.nulls_first) for each in call.order),
    )


def encode(frame: Frame, schema: pa.Schema) -> Message:
    """Encode one frame as a message. The arguments are as for `Encoder`."""
    return Encoder(schema)(frame)


class Encoder:
    """Encodes the frames of one direction of a stream.

    Args:
        schema: The schema of this direction. A frame without data is sent with a batch of zero rows in this schema.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._empty = _empty_batch(schema)

    def __call__(self, frame: Frame) -> Message:
        """Encode any frame except Open, which is sent as the descriptor."""
        match frame:
            case Chunk():
                return Message(_CHUNK, frame.batch)
            case States():
                engine = pb.EngineFrame(states=pb.States(batch=write_batch(frame.batch), unanswered=frame.unanswered))
            case Entries():
                engine = pb.EngineFrame(entries=pb.Entries(batch=write_batch(frame.batch), last=frame.last))
            case Barrier():
                engine = pb.EngineFrame(barrier=pb.Barrier(epoch=frame.epoch))
            case Forget():
                engine = pb.EngineFrame(forget=pb.Forget(slots=frame.slots.to_pylist()))
            case Checkpoint():
                engine = pb.EngineFrame(checkpoint=pb.Checkpoint(if_reopen=frame.if_reopen))
            case Open():
                raise AssertionError("Open is sent as the descriptor: use encode_open")
            case _:
                return _encode_server(frame, self._empty)
        return Message(engine.SerializeToString(), self._empty)


def _encode_server(frame: Frame, empty: pa.RecordBatch) -> Message:
    match frame:
        case Opened():
            server, batch = pb.ServerFrame(opened=_encode_opened(frame)), empty
        case InitialOutputs():
            server, batch = pb.ServerFrame(initial_outputs=pb.InitialOutputs()), frame.batch
        case RowOutputs():
            server, batch = pb.ServerFrame(row_outputs=pb.RowOutputs()), frame.batch
        case Mapped():
            mapped_frame = pb.Mapped(last=frame.last, reopen=frame.reopen)
            server, batch = pb.ServerFrame(mapped=mapped_frame), frame.batch
        case Wanted():
            server, batch = pb.ServerFrame(wanted=pb.Wanted()), frame.batch
        case Folded():
            server, batch = pb.ServerFrame(folded=pb.Folded()), empty
        case Results():
            mode_names = [str(mode or "") for mode in frame.modes]
            results = pb.Results(epoch=frame.epoch, last=frame.last, reopen=frame.reopen, folded=mode_names)
            server, batch = pb.ServerFrame(results=results), frame.batch
        case SavedStates():
            saved_frame = pb.SavedStates(last=frame.last, problem=utf8(frame.problem), reopen=frame.reopen)
            server, batch = pb.ServerFrame(saved_states=saved_frame), frame.batch
        case Log():
            records = [
                pb.LogRecord(
                    level=utf8(r.level),
                    function=r.function,
                    message=utf8(r.message),
                    fields={utf8(name): utf8(value) for name, value in r.fields.items()},
                    slot=r.slot,
                )
                for r in frame.records
            ]
            server, batch = pb.ServerFrame(log=pb.Log(records=records)), empty
        case _:
            raise AssertionError(f"a server does not send {type(frame).__name__}")
    return Message(server.SerializeToString(), batch)


def decode(message: Message, sender: Role) -> Frame:
    """Decode and validate one message. The arguments and errors are as for `Decoder`."""
    return Decoder(sender)(message)


class Decoder:
    """Decodes and validates the messages of one stream.

    Messages of a stream have the same schema, so its names and types are checked once. Values are checked each time.

    Args:
        sender: The role of the sender.
    """

    def __init__(self, sender: Role) -> None:
        self._sender = sender
        self._checked_schema: pa.Schema | None = None
        self._has_lists = True

    def __call__(self, message: Message) -> Frame:
        """Decode and validate a received message.

        Raises:
            RejectedError: BAD_FRAME if the metadata is not a frame of the sender or the batch is invalid.
        """
        batch = message.batch
        if batch is None:
            raise RejectedError("BAD_FRAME", "a message has no record batch; send a batch of zero rows")
        _bad_frame_on_error(lambda: self._check(batch), "the record batch of a message is invalid")
        if self._sender is Role.ENGINE:
            if message.metadata == _CHUNK:
                return Chunk(batch)
            return _decode_engine(parse_message(pb.EngineFrame, message.metadata, "the metadata of a message"), batch)
        return _decode_server(parse_message(pb.ServerFrame, message.metadata, "the metadata of a message"), batch)

    def _check(self, batch: pa.RecordBatch) -> None:
        schema = batch.schema
        if self._checked_schema is None or not schema.equals(self._checked_schema):
            _check_schema(schema)
            self._checked_schema = schema
            self._has_lists = any(map(_has_lists, schema.types))
        batch.validate(full=True)
        if self._has_lists:
            _check_sizeless(batch)


def _decode_engine(frame: pb.EngineFrame, batch: pa.RecordBatch) -> Frame:
    kind = frame.WhichOneof("frame")
    if kind == "chunk":
        return Chunk(batch)
    if kind is not None and batch.num_rows:
        raise RejectedError(
            "BAD_FRAME", f"a {kind} frame has a batch of {batch.num_rows} rows; only chunk frames have rows"
        )
    match kind:
        case "states":
            return States(read_batch(frame.states.batch, "States"), unanswered=frame.states.unanswered)
        case "entries":
            return Entries(read_batch(frame.entries.batch, "Entries"), frame.entries.last)
        case "barrier":
            return Barrier(frame.barrier.epoch)
        case "forget":
            return Forget(pa.array(list(frame.forget.slots), pa.int32()))
        case "checkpoint":
            return Checkpoint(frame.checkpoint.if_reopen)
        case _:
            raise RejectedError("BAD_FRAME", "the metadata of a message contains no frame that an engine sends")


def _decode_server(frame: pb.ServerFrame, batch: pa.RecordBatch) -> Frame:
    match frame.WhichOneof("frame"):
        case "opened":
            return _decode_opened(frame.opened, batch.schema)
        case "initial_outputs":
            return InitialOutputs(batch)
        case "results":
            results = frame.results
            modes = tuple(Mode.from_text(name) for name in results.folded)
            return Results(results.epoch, batch, results.last, results.reopen, modes)
        case "wanted":
            return Wanted(batch)
        case "folded":
            return Folded()
        case "row_outputs":
            return RowOutputs(batch)
        case "mapped":
            return Mapped(batch, frame.mapped.last, frame.mapped.reopen)
        case "saved_states":
            saved_frame = frame.saved_states
            return SavedStates(batch, saved_frame.last, saved_frame.problem, saved_frame.reopen)
        case "log":
            return Log(
                tuple(
                    LogRecord(r.level, r.function, r.message, dict(r.fields), r.slot if r.HasField("slot") else None)
                    for r in frame.log.records
                )
            )
        case _:
            raise RejectedError("BAD_FRAME", "the metadata of a message contains no frame that a server sends")


def _encode_opened(frame: Opened) -> pb.Opened:
    calls = []
    for call in frame.calls:
        inputs = pa.schema([pa.field(str(index), type_) for index, type_ in enumerate(call.input_types)])
        calls.append(
            pb.OpenedCall(
                **same(call, _OPENED_CALL),
                input_types=inputs.serialize().to_pybytes(),
                views=map(_encode_view, call.views),
                folded=str(call.mode or ""),
                lift=utf8(call.lift),
            )
        )
    return pb.Opened(
        server_id=frame.server_id,
        protocol_version=frame.protocol_version,
        calls=calls,
        limits=pb.Limits(**dataclasses.asdict(frame.limits)),
        knows_if_reopen=True,
        knows_emits=True,
        knows_views=True,
    )


def _encode_view(view: ViewSpec) -> pb.View:
    types = pa.schema([pa.field("key", view.key), pa.field("value", view.value)])
    return pb.View(
        name=utf8(view.name), types=types.serialize().to_pybytes(), is_list=view.is_list, prefetch=view.prefetch
    )


def _decode_view(view: pb.View) -> ViewSpec:
    types = _bad_frame_on_error(lambda: _read_schema(view.types), "View.types is not a valid Arrow IPC schema")
    if types.names != ["key", "value"]:
        raise RejectedError("BAD_FRAME", f"View.types must have the fields key and value, and it has {types.names}")
    key, value = types.types
    return ViewSpec(view.name, key, value, tuple(view.prefetch), view.is_list)


def _decode_opened(reply: pb.Opened, schema: pa.Schema) -> Opened:
    return Opened(
        server_id=reply.server_id,
        protocol_version=reply.protocol_version,
        calls=tuple(
            OpenedCall(
                **same(call, _OPENED_CALL),
                input_types=_decode_input_types(call),
                views=tuple(map(_decode_view, call.views)),
                mode=Mode.from_text(call.folded),  # None for a mode that only newer servers have
                lift=call.lift,
            )
            for call in reply.calls
        ),
        limits=Limits.of(reply.limits),
        schema=schema,
    )


def _decode_input_types(call: pb.OpenedCall) -> tuple[pa.DataType, ...]:
    schema = _bad_frame_on_error(
        lambda: _read_schema(call.input_types), "OpenedCall.input_types is not a valid Arrow IPC schema"
    )
    return tuple(schema.types)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)


def read_batch(data: bytes, what: str) -> pa.RecordBatch:
    """Return the batch of an Arrow IPC stream, validated in full. Raises RejectedError BAD_FRAME, LIMIT."""

    def read() -> pa.RecordBatch:
        schema, parts = read_batches(data, _check_schema)
        for part in parts:
            _check_batch(part)
        if len(parts) == 1:
            return parts[0]
        batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
        return batches[0] if batches else _empty_batch(schema)

    return _bad_frame_on_error(read, f"{what}: not a valid Arrow IPC stream")


def _read_schema(data: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(data))
    _check_names(schema)
    return schema


def _check_batch(batch: pa.RecordBatch) -> None:
    _check_schema(batch.schema)
    batch.validate(full=True)
    _check_sizeless(batch)


def _check_sizeless(batch: pa.RecordBatch) -> None:
    """Refuse a batch whose lists and maps have too many values of types without bytes, such as null.

    A message of a few bytes could claim billions of them.

    Raises:
        RejectedError: LIMIT.
    """
    values = sum(map(_sizeless, batch.columns))
    if values > _SIZELESS_MAX:
        raise RejectedError(
            "LIMIT",
            f"lists and maps have {values} values of types without bytes, such as null, and a batch may have at most "
            f"{_SIZELESS_MAX}; send smaller batches, or lists of another type",
            limit="sizeless_values",
        )


def _has_lists(type_: pa.DataType) -> bool:
    """Return whether a type is a list or a map, or has one inside."""
    if isinstance(type_, pa.BaseExtensionType):
        return _has_lists(type_.storage_type)
    if not pa.types.is_struct(type_):
        return is_nested(type_)
    return any(_has_lists(type_.field(index).type) for index in range(type_.num_fields))


def _sizeless(array: pa.Array) -> int:
    """Return the number of values without bytes in the lists and maps of an array, which has been validated."""
    kinds = pa.types
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _sizeless(array.storage)
    if kinds.is_struct(type_):
        return sum(_sizeless(array.field(index)) for index in range(type_.num_fields))
    if kinds.is_map(type_):
        parts = [array.keys, array.items]
    elif kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        parts = [array.values]
    else:
        return 0
    # With at least a bit for each value, the size of the message bounds how many there are.
    return sum(_sizeless(part) + (len(part) if 8 * part.nbytes < len(part) else 0) for part in parts)


def _check_schema(schema: pa.Schema) -> None:
    """Raise an error for column names that are not UTF-8 and for types that are not supported.

    Batches of other types are not read at all, not even to measure them. `validate(full=True)` accepts any offsets of a
    dense union and any view behind a NULL.
    """
    _check_names(schema)
    for type_ in schema.types:
        check_plain(type_)


def _check_names(schema: pa.Schema) -> None:
    """Raise UnicodeDecodeError for names that are not UTF-8. pyarrow would raise it later, at the first access."""
    schema.names  # noqa: B018
    for type_ in schema.types:
        if is_nested(type_):
            str(type_)


def _bad_frame_on_error(read: Callable[[], _T], wrong: str) -> _T:
    try:
        return read()
    except RejectedError:
        raise
    except Exception as error:  # noqa: BLE001 - invalid bytes may raise any exception in Arrow or Python
        first = (str(error).splitlines() or [""])[0][:200]
        raise RejectedError("BAD_FRAME", f"{wrong}: {first or type(error).__name__}") from None
