"""Encoding and decoding of frames, and the treatment of hostile bytes."""

import dataclasses
import datetime
import decimal
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import (
    Message,
    decode,
    decode_error,
    decode_info,
    decode_open,
    encode,
    encode_error,
    encode_info,
    encode_open,
)
from foldflight.exchange.frames import (
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
    Open,
    Opened,
    OpenedCall,
    Results,
    Returns,
    RowOutputs,
    SavedStates,
    States,
    Wanted,
    sliced_to,
)
from foldflight.exchange.ipc import write_batch
from foldflight.exchange.transitions import Role
from foldflight.fold.mode import Mode
from foldflight.functions import Call, LogRecord, Order, Registry, ViewSpec
from foldflight.functions.types.arrow import JSON
from foldflight.server.run.settings import load_settings
from tests.effort import examples

COLUMNS = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.decimal128(10, 2))])
RESULTS = pa.schema([pa.field("slot", pa.int32()), pa.field("state_0", pa.int64()), pa.field("output_0", pa.int64())])
CHUNK = pa.RecordBatch.from_pydict({"slot": [0], "kind": [0], "v": [decimal.Decimal("1.50")]}, schema=COLUMNS)
BATCH = pa.RecordBatch.from_pydict({"slot": [0, 1], "state_0": [1, None], "output_0": [1, 2]}, schema=RESULTS)
OPEN = Open(
    calls=(
        Call(
            "f",
            ("v",),
            filter="late",
            distinct=True,
            literals={"a": 1, "b": [decimal.Decimal("1.5")], "c": datetime.date(2013, 1, 1)},
        ),
        Call("count", fingerprint="0" * 16, materialize=True),
        Call("g", ("v",), order=(Order("v", descending=True, nulls_first=False), Order("late"))),
    ),
    columns=COLUMNS,
    returns=Returns(states=False, outputs=True),
    initial_outputs=True,
    row_outputs=True,
    emits=True,
    job_parameters={"city": "NYC"},
    trace_context={"traceparent": "00-..."},
    isolate_errors=True,
    keeps_views=True,
)
DOCUMENT = JSON or pa.string()
LIMITS = Limits(1, 2, 3, 4, 5, 6.5, 7.5)
VIEWS = (
    ViewSpec("seen", pa.string(), DOCUMENT, (0, 2)),
    ViewSpec("items", pa.int64(), pa.float64(), is_list=True),
)
OPENED = Opened(
    "s1",
    1,
    (
        OpenedCall(
            *("ab", True, False, True, (pa.int64(), DOCUMENT)),
            is_ordered=True,
            views=VIEWS,
            mode=Mode.COMPILED,
            value_varies=True,
        ),
    ),
    LIMITS,
    RESULTS,
)
ENGINE_FRAMES = [
    States(BATCH),
    States(BATCH, unanswered=True),
    Entries(BATCH),
    Entries(BATCH, last=True),
    Chunk(CHUNK),
    Barrier(2**60),
    Forget(pa.array([1, 5], pa.int32())),
    Checkpoint(),
]
SERVER_FRAMES = [
    OPENED,
    InitialOutputs(BATCH),
    Results(3, BATCH, last=False, reopen=True),
    Results(3, BATCH, modes=(Mode.INTERPRETED, None)),
    RowOutputs(BATCH),
    Wanted(BATCH),
    Folded(),
    SavedStates(BATCH, last=False, problem="LIMIT: too large"),
    Log((LogRecord("info", "f", "hello", {"a": "b"}, 3), LogRecord("error", "", "dropped"))),
]


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, pa.Array):
        return bool(one.equals(two))
    return bool(one == two)


@pytest.mark.parametrize("frame", ENGINE_FRAMES + SERVER_FRAMES, ids=lambda frame: type(frame).__name__)
def test_each_frame_is_decoded_as_it_was_encoded(frame: Frame) -> None:
    """Every frame is decoded to an equal one, and its message always has a batch in the schema of its direction."""
    sender = Role.ENGINE if any(frame is each for each in ENGINE_FRAMES) else Role.SERVER
    schema = COLUMNS if sender is Role.ENGINE else RESULTS
    message = encode(frame, schema)
    assert message.batch is not None
    assert message.batch.schema == schema
    back = decode(message, sender)
    assert type(back) is type(frame)
    assert all(equal(value, getattr(back, name)) for name, value in vars(frame).items())


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        *((str(mode), mode) for mode in Mode),
        ("", None),
        ("folded by a later version", None),
        ("interpreted: why", None),
    ],
)
def test_the_mode_of_a_call_is_a_hint(text: str, mode: Mode | None) -> None:
    """Each mode is decoded by its name; an unknown one of a newer server counts as not told, and is no error."""
    message = encode(OPENED, RESULTS)
    frame = pb.ServerFrame.FromString(message.metadata)
    frame.opened.calls[0].folded = text
    back = decode(dataclasses.replace(message, metadata=frame.SerializeToString()), Role.SERVER)
    assert back == dataclasses.replace(OPENED, calls=(dataclasses.replace(OPENED.calls[0], mode=mode),))
    assert isinstance(back, Opened)
    assert back.modes == (mode,)


def test_an_open_is_decoded_with_the_types_of_its_literals() -> None:
    """Open is decoded to an equal one; direct arguments keep their types."""
    assert decode_open(encode_open(OPEN)) == OPEN
    assert decode_open(encode_open(OPEN)).trace_context == OPEN.trace_context, "which has no part in equality"


def test_literals_without_an_arrow_type_are_refused() -> None:
    """A direct argument without an Arrow type is refused with the function's name."""
    with pytest.raises(RejectedError, match="a direct argument of f cannot be converted to an Arrow type") as excinfo:
        encode_open(Open((Call("f", literals={"a": object()}),), COLUMNS))
    assert excinfo.value.code == "SIGNATURE"


@pytest.mark.parametrize("version", [0, 2, 99])
def test_unknown_protocol_versions_are_refused(version: int) -> None:
    """Another protocol version is refused, and the error names the version of the server."""
    with pytest.raises(RejectedError, match=f"version {version}; this server serves 1") as excinfo:
        decode_open(encode_open(Open((Call("count"),), COLUMNS, protocol_version=version)))
    assert excinfo.value.code == "PROTOCOL_VERSION"


def test_unknown_fields_are_ignored() -> None:
    """An unknown field of a newer engine is ignored."""
    unknown = b"\xfa\x7f\x03new"  # field 2047, three bytes
    assert decode_open(encode_open(OPEN) + unknown) == OPEN


def test_descriptions_of_functions_are_decoded_as_encoded() -> None:
    """A FunctionInfo is decoded to an equal one."""
    for function in Registry().values():
        info = FunctionInfo.of(function)
        assert decode_info(encode_info(info)) == info


ERRORS: list[FoldflightError] = [
    RetryableError("DRAINING", "going"),
    RejectedError("BAD_FRAME", "no", story=("a", "b")),
    FunctionError("USER_CODE", "bad", function="f", slot=0, row="row 1", trace="Trace"),
    CorruptError("STATE_CHECKSUM", "broken", function="f"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_errors_are_decoded_as_they_were_encoded(error: FoldflightError) -> None:
    """An error keeps its class, code and all texts."""
    back = decode_error(encode_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_texts_without_bytes_travel_escaped() -> None:
    """A message with a lone surrogate is escaped, so that the other side gets the error."""
    back = decode_error(encode_error(FunctionError("USER_CODE", "bad \ud800", row="v='\udc80'", trace="\ud801")))
    assert isinstance(back, FunctionError)
    assert (back.message, back.row, back.trace) == (r"bad \ud800", r"v='\udc80'", r"\ud801")
    schema = pa.schema([("slot", pa.int32())])
    log = decode(encode(Log((LogRecord("info", "f", "\ud800", {"\ud800": "\ud800"}),)), schema), Role.SERVER)
    assert isinstance(log, Log)
    assert log.records[0].message == r"\ud800"
    assert log.records[0].fields == {r"\ud800": r"\ud800"}


def test_foreign_errors_are_none() -> None:
    """Foreign bytes, classes and codes are not decoded as errors of foldflight."""
    assert decode_error(b"\xff\xff") is None
    assert decode_error(b"") is None
    assert decode_error(pb.Error(error_class="RejectedError", code="DRAINING").SerializeToString()) is None
    assert decode_error(pb.Error(error_class="Any", code="X").SerializeToString()) is None


@pytest.mark.parametrize("sender", Role)
@pytest.mark.parametrize("metadata", [b"", b"\xff\xff\xff", b"garbage", pb.EngineFrame().SerializeToString()])
def test_metadata_that_is_no_frame_is_refused(sender: Role, metadata: bytes) -> None:
    """Invalid metadata is BAD_FRAME."""
    with pytest.raises(RejectedError) as excinfo:
        decode(Message(metadata, BATCH.slice(0, 0)), sender)
    assert excinfo.value.code == "BAD_FRAME"


def test_frames_of_the_wrong_direction_are_refused() -> None:
    """A server's frame sent by an engine is BAD_FRAME, and the reverse."""
    with pytest.raises(RejectedError):
        decode(encode(Log(()), RESULTS), Role.ENGINE)
    with pytest.raises(RejectedError):
        decode(encode(Forget(pa.array([1], pa.int32())), COLUMNS), Role.SERVER)


def test_only_chunks_have_rows() -> None:
    """A control frame on a batch with rows is refused, because its rows would be lost."""
    metadata = encode(Barrier(1), COLUMNS).metadata
    with pytest.raises(RejectedError, match="only chunk frames have rows"):
        decode(Message(metadata, CHUNK), Role.ENGINE)
    with pytest.raises(RejectedError, match="has no record batch"):
        decode(Message(metadata, None), Role.ENGINE)


def broken_batches() -> list[pa.RecordBatch]:
    offsets = pa.array([0, 1000, 2], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    utf8 = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    return [pa.RecordBatch.from_arrays([each], names=["v"]) for each in (text, utf8)]


@pytest.mark.parametrize("batch", broken_batches(), ids=["offsets", "utf8"])
def test_batches_that_contradict_themselves_are_refused(batch: pa.RecordBatch) -> None:
    """Offsets out of range and invalid UTF-8 are BAD_FRAME before anything is read."""
    metadata = encode(Chunk(CHUNK), COLUMNS).metadata
    with pytest.raises(RejectedError, match="is invalid") as excinfo:
        decode(Message(metadata, batch), Role.ENGINE)
    assert excinfo.value.code == "BAD_FRAME"


def mangle(valid: bytes) -> st.SearchStrategy[bytes]:
    """Cut, overwrite or replace bytes of something valid."""
    places = st.lists(st.tuples(st.integers(0, max(len(valid) - 1, 0)), st.integers(0, 255)), min_size=1, max_size=6)

    def overwrite(changes: list[tuple[int, int]]) -> bytes:
        mangled_bytes = bytearray(valid)
        for place, value in changes:
            mangled_bytes[place] = value
        return bytes(mangled_bytes)

    return st.one_of(
        st.binary(max_size=60), st.integers(0, len(valid)).map(lambda cut: valid[:cut]), places.map(overwrite)
    )


@examples(400)
@given(mangle(encode_open(OPEN)))
def test_any_descriptor_is_an_open_or_an_error(command: bytes) -> None:
    """Any bytes as a descriptor are an Open, or an error of the taxonomy."""
    outcome: Open | FoldflightError
    try:
        outcome = decode_open(command)
    except FoldflightError as error:
        outcome = error
    assert isinstance(outcome, Open) or outcome.code in ("BAD_FRAME", "PROTOCOL_VERSION")


@examples(400)
@given(mangle(encode(States(BATCH), COLUMNS).metadata), st.sampled_from(Role))
def test_any_metadata_is_a_frame_or_an_error(metadata: bytes, sender: Role) -> None:
    """Any bytes as metadata are a frame with a valid batch, or BAD_FRAME."""
    outcome: Frame | RejectedError
    try:
        outcome = decode(Message(metadata, CHUNK.slice(0, 0)), sender)
    except RejectedError as error:
        outcome = error
    if isinstance(outcome, States):
        outcome.batch.validate(full=True)
    assert not isinstance(outcome, RejectedError) or outcome.code == "BAD_FRAME"


@examples(200)
@given(mangle(encode_error(ERRORS[2])))
def test_any_extra_info_is_an_error_or_none(extra_info: bytes) -> None:
    """Any bytes in the extra info of a Flight error are an error of foldflight, or none."""
    error = decode_error(extra_info)
    assert error is None or isinstance(error, FoldflightError)


def unsafe_arrays() -> list[pa.Array]:
    """Return arrays that Arrow finds valid, but are not safe to cast."""
    null = pa.py_buffer(b"\1")
    views = struct.pack("<i12s", 1, b"a") + struct.pack("<i4sii", -(2**31), b"", 0, 0)
    text = pa.py_buffer(b"x" * (1 << 20))
    many = struct.pack("<i4sii", 1 << 20, b"xxxx", 0, 0) * 3000
    view = pa.Array.from_buffers(pa.string_view(), 2, [null, pa.py_buffer(views)])
    large = pa.Array.from_buffers(pa.string_view(), 3000, [None, pa.py_buffer(many), text])
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int8()), pa.array(["x" * (1 << 20)]))
    return [view, large, dictionary, pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), view)]


@pytest.mark.parametrize(
    "array", unsafe_arrays(), ids=["length behind NULL", "repeated view", "repeated index", "in a list"]
)
def test_types_that_arrow_validates_and_cannot_cast_are_refused(array: pa.Array) -> None:
    """A view at a NULL may have a negative length, and a view of a megabyte may be repeated any number of times."""
    array.validate(full=True)
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    with pytest.raises(RejectedError, match="only plain types are") as excinfo:
        decode(Message(encode(Chunk(CHUNK), COLUMNS).metadata, batch), Role.ENGINE)
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def lists_of_many_items(items: int) -> dict[str, pa.Array]:
    """Return arrays of one row with this many items that take no bytes."""
    nulls, text = pa.nulls(items), pa.array([], pa.string())
    offsets = pa.array([0, items], pa.int32())
    empty = pa.Array.from_buffers(pa.struct([]), items, [None])
    no_texts = pa.Array.from_buffers(pa.list_(pa.string(), 0), items, [None], children=[text])
    fixed_lists = pa.Array.from_buffers(pa.list_(pa.null(), items), 1, [None], children=[nulls])
    entries = pa.StructArray.from_arrays(
        [pa.Array.from_buffers(pa.binary(0), items, [None, pa.py_buffer(b"")]), nulls], ["key", "value"]
    )
    map_ = pa.Array.from_buffers(pa.map_(pa.binary(0), pa.null()), 1, [None, offsets.buffers()[1]], children=[entries])
    return {
        "list of null": pa.ListArray.from_arrays(offsets, nulls),
        "list of empty structs": pa.ListArray.from_arrays(offsets, empty),
        "list of lists without items": pa.ListArray.from_arrays(offsets, no_texts),
        "fixed list": fixed_lists,
        "list of fixed list": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), fixed_lists),
        "map": map_,
        "struct of list": pa.StructArray.from_arrays([pa.ListArray.from_arrays(offsets, nulls)], ["a"]),
    }


@pytest.mark.parametrize("name", lists_of_many_items(1))
def test_a_few_bytes_do_not_stand_for_billions_of_values(name: str) -> None:
    """Items that take no bytes are bounded in chunks, states and direct arguments, before values are made of them."""
    metadata = encode(Chunk(CHUNK), COLUMNS).metadata
    few, many = (
        pa.RecordBatch.from_arrays([lists_of_many_items(items)[name]], names=["v"]) for items in (1 << 19, 2**31 - 2)
    )
    assert decode(Message(metadata, few), Role.ENGINE) == Chunk(few)
    states = pb.EngineFrame(states=pb.States(batch=write_batch(many))).SerializeToString()
    for message in (Message(metadata, many), Message(states, CHUNK.slice(0, 0))):
        with pytest.raises(RejectedError, match="values of types without bytes") as excinfo:
            decode(message, Role.ENGINE)
        assert excinfo.value.code == "LIMIT"


@given(st.integers(0, 50), st.integers(1, 400))
def test_sliced_batches_are_encoded_as_their_rows(rows: int, bytes_max: int) -> None:
    """Slices have all rows in order; a slice is larger than requested only if it has one row."""
    batch = pa.RecordBatch.from_pydict({"v": list(range(rows))}, schema=pa.schema([("v", pa.int64())]))
    parts = sliced_to(batch, bytes_max)
    assert pa.Table.from_batches(parts).to_pydict() == batch.to_pydict()
    assert all(part.nbytes <= bytes_max or part.num_rows == 1 for part in parts)
    assert len(parts) >= 1


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
def test_compressed_states_are_refused(codec: str | None) -> None:
    """Compressed states are refused before they are decompressed; uncompressed ones are accepted."""
    batch = pa.RecordBatch.from_arrays([pa.array([0] * 100_000), pa.array(["a"] * 100_000)], names=["v", "t"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    frame = pb.EngineFrame(states=pb.States(batch=sink.getvalue().to_pybytes()))
    message = Message(frame.SerializeToString(), CHUNK.slice(0, 0))
    if codec is None:
        assert decode(message, Role.ENGINE) == States(batch)
    else:
        with pytest.raises(RejectedError, match="its buffers are compressed") as excinfo:
            decode(message, Role.ENGINE)
        assert excinfo.value.code == "BAD_FRAME"


def test_limits_have_one_name_each() -> None:
    """A limit has the same name in frame, protocol and settings, and is transmitted unchanged."""
    names = [field.name for field in dataclasses.fields(Limits)]
    assert names == [field.name for field in pb.Limits.DESCRIPTOR.fields]
    settings = load_settings({name: place for place, name in enumerate(names, 1)}, {})
    limits = Limits.of(settings)
    assert list(dataclasses.astuple(limits)) == list(range(1, len(names) + 1))
    open_reply = Opened("server", 1, (), limits, RESULTS)
    result = decode(encode(open_reply, RESULTS), Role.SERVER)
    assert isinstance(result, Opened)
    assert result.limits == limits


def test_states_whose_buffers_overlap_are_refused() -> None:
    """Arrow accepts a batch whose buffers share bytes, but a copy of it would take many times its memory."""
    array = pa.array(range(1000), pa.int64())
    batch = pa.RecordBatch.from_arrays([array] * 2, names=["a", "b"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = bytearray(sink.getvalue().to_pybytes())
    # The header describes the values of the first column by their length. Twice as long, they reach over the second.
    first = data.find(struct.pack("<q", 8000))
    assert data.find(struct.pack("<q", 8000), first + 8) > first > 0
    data[first : first + 8] = struct.pack("<q", 16000)
    frame = pb.EngineFrame(states=pb.States(batch=bytes(data))).SerializeToString()
    with pytest.raises(RejectedError, match="overlap") as excinfo:
        decode(Message(frame, BATCH.slice(0, 0)), Role.ENGINE)
    assert excinfo.value.code == "BAD_FRAME"


def test_direct_arguments_are_bounded() -> None:
    """Direct arguments are bounded, because they become Python values before the caller is checked further."""
    call = Call("sum", ("v",), literals={"x": "a" * (2 << 20)})
    with pytest.raises(RejectedError) as excinfo:
        decode_open(encode_open(Open(calls=(call,), columns=pa.schema([("v", pa.int64())]))))
    assert (excinfo.value.code, excinfo.value.limit) == ("LIMIT", "literals")


def test_types_of_views_are_checked() -> None:
    """View.types has the fields key and value, and nothing else."""
    message = encode(OPENED, RESULTS)
    frame = pb.ServerFrame.FromString(message.metadata)
    for wrong in (b"no schema", pa.schema([("key", pa.int64())]).serialize().to_pybytes()):
        frame.opened.calls[0].views[0].types = wrong
        with pytest.raises(RejectedError, match=r"View\.types") as excinfo:
            decode(Message(frame.SerializeToString(), message.batch), Role.SERVER)
        assert excinfo.value.code == "BAD_FRAME"
