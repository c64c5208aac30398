"""Forged messages on the raw gRPC stream: no numbers in them crash the server."""

from __future__ import annotations

import random
from collections.abc import Callable

import grpc
import numpy as np
import pyarrow as pa
import pytest

from foldflight.client import FlightTransport
from foldflight.exchange.encoding import encode
from foldflight.exchange.frames import Barrier, Chunk, Open, Returns
from foldflight.functions.query.call import Call
from tests.hostile.forging import EVERY_TYPE, REFUSED_TYPES, claiming_rows, every_column, forge, messages_of
from tests.wire.kit import DEADLINE_S, ServerProcess, end_epoch, open_request, rows
from tests.wire.raw import DO_EXCHANGE, RawClient, error_of, flight_data
from tests.wire.test_load import resources_of

Fork = Callable[..., ServerProcess]
COUNT = Call("count", ())
BATCHES = dict(every_column())


def speech(batch: pa.RecordBatch, messages: list[object]) -> list[bytes]:
    """Return the messages that open an exchange, send these messages of a stream, and end the epoch."""
    request = Open(calls=(COUNT,), columns=batch.schema, returns=Returns(states=True, outputs=True))
    chunk = encode(Chunk(batch), batch.schema).metadata
    barrier = encode(Barrier(1), batch.schema)
    assert barrier.batch is not None
    first, *others = messages
    return [
        flight_data(first, request=request),
        *(flight_data(message, metadata=chunk) for message in others),
        flight_data(messages_of(barrier.batch)[-1], metadata=barrier.metadata),
    ]


def still_serves(server: ServerProcess) -> bool:
    """Return whether the process runs and folds."""
    assert server.process.poll() is None, f"the server ended with {server.process.returncode}"
    with FlightTransport([server.url], deadline_s=DEADLINE_S).open(open_request(COUNT)) as exchange:
        exchange.chunk(rows((0, 0), (0, 0)))
        return bool(end_epoch(exchange, 1)["output_0"].to_pylist() == [2])


def test_claimed_rows_do_not_end_the_server(fork: Fork) -> None:
    """A batch whose header claims 2,147,483,646 rows over small buffers is refused, for any type of column."""
    server = fork()
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    for name, batch in BATCHES.items():
        *before, last = messages_of(batch)
        error = error_of(client.say(speech(batch, [*before, claiming_rows(last)])))
        assert error.code == ("SCHEMA_MISMATCH" if name in REFUSED_TYPES else "BAD_FRAME"), f"{name}: {error}"
        assert server.process.poll() is None, f"{name} ended the server with {server.process.returncode}"
    client.close()
    assert still_serves(server)


def test_sound_messages_are_folded(fork: Fork) -> None:
    """The messages that other tests forge are valid without the forgery."""
    server = fork()
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    refused_names = [
        name for name, batch in BATCHES.items() if client.say(speech(batch, messages_of(batch))) is not None
    ]
    client.close()
    assert refused_names == [name for name in EVERY_TYPE if name in REFUSED_TYPES]


def zeros(count: int) -> pa.RecordBatch:
    """Return a chunk of this many rows of zeros, which compress very well."""
    return pa.RecordBatch.from_arrays(
        [pa.array(np.zeros(count, dtype)) for dtype in (np.int32, np.int8, np.int64)], ["slot", "kind", "value"]
    )


def test_few_bytes_that_decompress_to_many_are_refused(fork: Fork) -> None:
    """A chunk of kilobytes that decompresses to hundreds of megabytes is refused before it is decompressed."""
    server = fork(message_bytes_max="1MiB")
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    small, large = zeros(1000), zeros(30_000_000)
    assert client.say(speech(small, messages_of(small, compression="zstd"))) is None
    messages = messages_of(large, compression="zstd")
    assert len(messages[-1].body) < 2**20
    before = resources_of(server.process.pid)["kib"]
    error = error_of(client.say(speech(large, messages)))
    assert error.code == "LIMIT"
    assert "message_bytes_max" in error.message
    assert resources_of(server.process.pid)["kib"] - before < 64 * 1024
    client.close()
    assert still_serves(server)


def test_messages_far_too_large_are_not_taken(fork: Fork) -> None:
    """A message far beyond message_bytes_max is not read by gRPC; for one slightly above, the error says so."""
    server = fork(message_bytes_max="1MiB")
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    above, far_above = zeros(120_000), zeros(10_000_000)
    assert error_of(client.say(speech(above, messages_of(above)))).code == "LIMIT"
    refusal = client.say(speech(far_above, messages_of(far_above)))
    assert refusal is not None
    assert refusal.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    client.close()
    assert still_serves(server)


def test_compressed_calls_are_refused(fork: Fork) -> None:
    """The compression of gRPC itself, which has no limit, is refused."""
    server = fork()
    batch = zeros(10)
    with (
        grpc.insecure_channel(f"127.0.0.1:{server.ready['flight']}", compression=grpc.Compression.Gzip) as channel,
        pytest.raises(grpc.RpcError) as excinfo,
    ):
        list(channel.stream_stream(DO_EXCHANGE)(iter(speech(batch, messages_of(batch)))))
    assert excinfo.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert still_serves(server)


@pytest.mark.every_turn
@pytest.mark.parametrize("count", [400, pytest.param(5_000, marks=pytest.mark.slow)])
def test_forged_streams_do_not_end_the_server(fork: Fork, count: int) -> None:
    """Streams with false numbers of each kind are answered or refused, and the server continues."""
    server = fork()
    client = RawClient(f"127.0.0.1:{server.ready['flight']}")
    corpus = [messages_of(batch, compression=codec) for batch in BATCHES.values() for codec in (None, "zstd")]
    batches = [batch for batch in BATCHES.values() for _ in range(2)]
    for number in range(count):
        rng = random.Random(f"forged {number}")
        place = rng.randrange(len(corpus))
        client.say(speech(batches[place], forge(corpus[place], rng, corpus)))
        assert server.process.poll() is None, f"stream {number} ended the server with {server.process.returncode}"
    client.close()
    assert still_serves(server)
