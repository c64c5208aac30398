"""Valid bytes, damaged at random or forged field by field, for every reader of untrusted input.

    python -m tests.hostile.fuzz --target states --seed 7 --inputs 1000

A target takes bytes and may answer with an error of the taxonomy, nothing else. One seed gives the same inputs each
time; what runs an input again that broke the rule is printed.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import hmac
import random
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from foldflight.engine.query.layout import HASH, LIVE
from foldflight.engine.state.manifest import Manifest, Merge, PieceMeta, SortedRun, TableLayout, manifests_of
from foldflight.engine.state.runs import decode_piece, encode_piece
from foldflight.engine.state.table import MemoryStore
from foldflight.engine.state.viewtable import TableStores
from foldflight.errors import FoldflightError, FunctionError
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
    Chunk,
    Forget,
    FunctionInfo,
    InitialOutputs,
    Limits,
    Open,
    Results,
    Returns,
    States,
)
from foldflight.exchange.ipc import BatchReader, write_batch
from foldflight.exchange.server_exchange import ServerExchange
from foldflight.exchange.transitions import Role
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry, parse_type
from foldflight.server.run.settings import SETTINGS, load_settings
from foldflight.shipping.bundles import Bundle, check_made_with, made_here, seal, unseal
from tests.hostile import hostile_functions
from tests.hostile.forging import (
    REFUSED_TYPES,
    every_column,
    forged_pack,
    forged_stream,
    messages_of,
    pack,
    stream_of_messages,
    unpack,
)

GROWTH_BYTES_MAX = 256 << 20

REGISTRY = Registry.load([hostile_functions])
LIMITS = Limits(1 << 20, 1 << 12, 1 << 16, 1 << 20, 4, 10.0, 10.0)
SIGNER = StateSigner([b"a key for hostile input"])
COLUMNS = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("value", pa.int64()), ("weight", pa.int32())])
CALLS = (
    Call("typed", ("value",)),
    Call("pickled", ("value",)),
    Call("custom", ("value",)),
    Call("count", ("value",), distinct=True),
)
OPENING = Open(
    calls=CALLS, columns=COLUMNS, returns=Returns(states=True, outputs=True), initial_outputs=True, row_outputs=False
)
ROWS = pa.RecordBatch.from_pydict(
    {"slot": [0, 1, 0], "kind": [0, 0, 0], "value": [5, None, 7], "weight": [1, 2, 3]}, COLUMNS
)
NOTHING = ROWS.slice(0, 0)
ANY_CALLS = (
    Call("count"),
    Call("count", ("value",)),
    Call("count", ("value",), distinct=True),
    Call("first", ("value",)),
)


def damaged_input(valid: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """Return valid bytes with some damage: flipped bits, extreme numbers, cuts, repeats, pieces of other inputs."""
    data = bytearray(valid)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(data) + 1)
        # Most damage leaves everything in its place: it gets furthest.
        match rng.choice((0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7)):
            case 0 if data:
                data[place % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[place % len(data)] = rng.randrange(256)
            case 2:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**62, rng.randrange(1 << 16)))
                data[place : place + width] = (number & (256**width - 1)).to_bytes(width, "little")
            case 3:
                del data[place:]
            case 4:
                del data[place : place + rng.randrange(1, 17)]
            case 5:
                data[place:place] = data[place : place + rng.randrange(1, 65)]
            case 6:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                data[place : place + rng.randrange(64)] = other[start : start + rng.randrange(64)]
            case _:
                data[place:place] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


def exchange() -> ServerExchange:
    """Return an exchange of a function with each codec."""
    return ServerExchange(OPENING, REGISTRY, limits=LIMITS, server_id="s", signer=SIGNER)


def a_states_batch() -> pa.RecordBatch:
    """Return states from an exchange."""
    server_exchange = exchange()
    list(server_exchange.handle(Chunk(ROWS)))
    results = [frame.batch for frame in server_exchange.handle(Barrier(1))]  # type: ignore[union-attr]
    return results[-1].select(["slot", *(f"state_{place}" for place in range(len(CALLS)))])


STATES = a_states_batch()
NO_STATES = STATES.slice(0, 0)


def handle(frame: Any) -> None:
    """Pass a frame to a new exchange, and end its epoch."""
    server_exchange = exchange()
    try:
        list(server_exchange.handle(frame))
        list(server_exchange.handle(Barrier(2)))
    finally:
        server_exchange.close()


def open_(data: bytes) -> None:
    ServerExchange(decode_open(data), REGISTRY, limits=LIMITS, server_id="s", signer=SIGNER).close()


def engine_frame(data: bytes) -> None:
    handle(decode(Message(data, NOTHING), Role.ENGINE))


def server_frame(data: bytes) -> None:
    decode(Message(data, NOTHING), Role.SERVER)


def states(data: bytes) -> None:
    frame = pb.EngineFrame(states=pb.States(batch=data))
    handle(decode(Message(frame.SerializeToString(), NOTHING), Role.ENGINE))


def envelopes(data: bytes) -> None:
    """Damage the contents of binary columns in a valid Arrow batch."""
    place = 1 + data[0] % len(CALLS) if data else 1
    column = STATES.column(place)
    if column.type != pa.binary():
        place = STATES.schema.get_field_index("state_1")
    changed_states = STATES.set_column(
        place, STATES.schema.field(place), pa.array([data[1:]] * STATES.num_rows, pa.binary())
    )
    handle(States(changed_states))


def chunks(data: bytes) -> None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
            batch = reader.read_next_batch()
    except (pa.ArrowException, OSError, StopIteration, KeyError):
        return  # this far Flight itself reads
    handle(decode(Message(encode(Chunk(ROWS), COLUMNS).metadata, batch), Role.ENGINE))


def any_chunks(data: bytes) -> None:
    """Fold a chunk of any Arrow type, with calls that read its values one by one."""
    reader = BatchReader(LIMITS.message_bytes_max)
    batch = None
    for message in unpack(data):
        try:
            batch = reader.take(memoryview(message.header), memoryview(message.body))
        except (pa.ArrowException, OSError, ValueError, IndexError, OverflowError, struct.error, StopIteration):
            return  # a server makes BAD_FRAME of it
    if batch is None:
        return
    frame = decode(Message(encode(Chunk(ROWS), COLUMNS).metadata, batch), Role.ENGINE)
    assert batch.nbytes >= 0
    server_exchange = ServerExchange(
        Open(calls=ANY_CALLS, columns=batch.schema, returns=Returns(states=True, outputs=True)),
        REGISTRY,
        limits=LIMITS,
        server_id="s",
    )
    try:
        list(server_exchange.handle(frame))
        list(server_exchange.handle(Barrier(2)))
    finally:
        server_exchange.close()


def facts(data: bytes) -> None:
    decode_error(data)
    decode_info(data)


def settings(data: bytes) -> None:
    """Parse the text as the value of one setting, which the first byte selects."""
    text = data[1:].decode(errors="replace").replace("\0", "")
    names = list(SETTINGS)
    load_settings({}, {SETTINGS[names[data[0] % len(names) if data else 0]].variable: text})


def types(data: bytes) -> None:
    parse_type(data.decode(errors="replace"))


LAYOUT = TableLayout(keys=pa.schema([("k", pa.string())]), states=pa.schema([("state_0", pa.int64())]), buckets=4)
PIECE = pa.RecordBatch.from_pydict({HASH: [1, 2], "k": ["a", None], LIVE: [1, 0], "state_0": [5, None]}, LAYOUT.rows)


def manifest(data: bytes) -> None:
    """Read a manifest. Only the job writes manifests, so their checksum is sufficient."""
    Manifest.decode(data)
    for each in manifests_of(data)[0].values():
        Manifest.decode(each)


def _of_several(groups: bytes) -> bytes:
    """Return the manifests of a table with views."""
    store = MemoryStore()
    tables = TableStores(store)
    for name in ("", "0.seen"):
        tables.of(name).put_manifest(groups)
    tables.write()
    return store.value or b""


def piece(data: bytes) -> None:
    """Read a piece of a run. As for a manifest, its checksum is sufficient."""
    decode_piece(data, "a")


def bundle(data: bytes) -> None:
    """Verify a bundle. Its content is not unpickled here, and is reached only if the signature is valid."""
    check_made_with(unseal(data, BUNDLE_KEYS))


def bundle_content(data: bytes) -> None:
    """Decode the content of a validly signed bundle."""
    signature = hmac.digest(BUNDLE_KEYS[1], b"foldflight.v1.BundleContent\0" + data, "sha256")
    sealed_bundle = pb.Bundle(digest=hashlib.sha256(data).digest(), signature=signature, content=data)
    bundle(sealed_bundle.SerializeToString())


@dataclass(frozen=True)
class Target:
    """A reader of bytes, valid bytes for it, and bytes that are valid for other readers.

    `inputs` is how many damaged inputs a whole run has: fewer where one costs more, such as an exchange of its own.
    """

    read: Callable[[bytes], None]
    corpus: list[bytes]
    damage: Callable[[bytes, random.Random, list[bytes]], bytes] = damaged_input
    foreign: list[bytes] = field(default_factory=list)
    inputs: int = 60_000


ANY_MESSAGES = {
    (name, codec): messages_of(batch, compression=codec) for name, batch in every_column() for codec in (None, "zstd")
}
BUNDLE_KEYS = [b"a key for bundles", b"another key for bundles"]
BUNDLE = Bundle(("weighted_avg", "thrice"), made_here(), bytes(range(64)))
METAS = [PieceMeta("ab", 2, 200, 1, 2, 0), PieceMeta("cd", 2, 200, 3, 2**64 - 1, 0)]
TARGETS = {
    "open": Target(open_, [encode_open(OPENING), encode_open(Open(calls=CALLS[:1], columns=COLUMNS))], inputs=150_000),
    "engine_frame": Target(
        engine_frame,
        [
            encode(frame, COLUMNS).metadata
            for frame in (States(STATES), Barrier(1), Forget(pa.array([0, 9], pa.int32())), Chunk(NOTHING))
        ],
    ),
    "server_frame": Target(
        server_frame,
        [
            encode(frame, STATES.schema).metadata
            for frame in (
                exchange().open_reply,
                Results(1, STATES.slice(0, 0), last=True),
                InitialOutputs(STATES.slice(0, 0)),
            )
        ],
        inputs=160_000,
    ),
    "states": Target(states, [write_batch(STATES), write_batch(STATES.slice(0, 1))]),
    "envelopes": Target(
        envelopes, [bytes([place - 1]) + STATES.column(place)[0].as_py() for place in (2, 3)], inputs=20_000
    ),
    "bundle": Target(bundle, [seal(BUNDLE, key) for key in BUNDLE_KEYS]),
    "bundle_content": Target(
        bundle_content, [pb.Bundle.FromString(seal(BUNDLE, BUNDLE_KEYS[0])).content], inputs=30_000
    ),
    "chunks": Target(chunks, [write_batch(ROWS), write_batch(NOTHING)]),
    "any_chunks": Target(
        any_chunks,
        [pack(messages) for (name, _), messages in ANY_MESSAGES.items() if name not in REFUSED_TYPES],
        forged_pack,
        [pack(messages) for (name, _), messages in ANY_MESSAGES.items() if name in REFUSED_TYPES],
        inputs=40_000,
    ),
    "any_states": Target(
        states,
        [write_batch(STATES)],
        forged_stream,
        [stream_of_messages(each) for each in ANY_MESSAGES.values()],
        inputs=40_000,
    ),
    "facts": Target(
        facts,
        [
            encode_info(FunctionInfo.of(REGISTRY["typed"])),
            encode_error(FunctionError("USER_CODE", "no", function="typed", slot=3, row="value=5")),
        ],
        inputs=140_000,
    ),
    "settings": Target(
        settings,
        [
            bytes([place]) + setting.default_text.encode()
            for place, setting in enumerate(SETTINGS.values())
            if setting.default is not None and setting.default != ()
        ],
        inputs=40_000,
    ),
    "types": Target(types, [b"DECIMAL(10,2)", b"ARRAY<MAP<STRING,BIGINT>>", b"STRUCT<a: INT, b: TIMESTAMP>"]),
    "manifest": Target(
        manifest,
        [
            Manifest(LAYOUT, {0: LAYOUT.states}, [SortedRun(0, METAS)], [Merge(0, ["ab"])]).encode(),
            Manifest(LAYOUT, {0: LAYOUT.states}).encode(),
            _of_several(Manifest(LAYOUT, {0: LAYOUT.states}).encode()),
        ],
        inputs=40_000,
    ),
    "piece": Target(piece, [encode_piece(PIECE)], inputs=40_000),
}


def inputs(target: Target, seed: int, first: int, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbered inputs. Each depends only on the seed and its number."""
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        valid_inputs = target.corpus + target.foreign
        yield number, target.damage(rng.choice(valid_inputs), rng, valid_inputs)


def run(name: str, seed: int, first: int, count: int) -> dict[str, int]:
    """Feed inputs to a target, and count the outcomes.

    Raises:
        AssertionError: For an input that brought anything but an answer or an error of the taxonomy, and when memory
            grew without bound.
    """
    target = TARGETS[name]
    outcomes: dict[str, int] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for number, data in inputs(target, seed, first, count):
        try:
            target.read(data)
            outcome = "read"
        except FoldflightError as error:
            outcome = error.code
            # An INVARIANT of the core is a bug of ours that the server's last net has caught.
            if outcome == "INVARIANT" and name not in ("manifest", "piece"):
                raise AssertionError(again(name, seed, number, data)) from error
        except Exception as error:
            raise AssertionError(again(name, seed, number, data)) from error
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    growth_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert growth_bytes < GROWTH_BYTES_MAX, f"{name}: {count} inputs took {growth_bytes >> 20} MiB more"
    return outcomes


def again(name: str, seed: int, number: int, data: bytes) -> str:
    """Return the command that runs one input again."""
    return f"python -m tests.hostile.fuzz --target {name} --seed {seed} --first {number} --inputs 1   # {data.hex()}"


def main() -> None:
    """Run one target from the command line."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fuzz")
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=1000)
    arguments = parser.parse_args()
    sys.stdout.write(
        f"{arguments.target}: {run(arguments.target, arguments.seed, arguments.first, arguments.inputs)}\n"
    )


if __name__ == "__main__":
    main()
