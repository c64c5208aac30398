#!/usr/bin/env bash
# Arrow Flight: a message of empty metadata ends the stream for the reader, and what was written after it is lost.
#
# Guess: `write_metadata(b"")` arrives as a message without a batch whose metadata is b"", as b"m" does; at worst it is left out.
# Seen with pyarrow 26.0.1: a message with neither a batch nor metadata is what the reader takes for the end. In DoPut and DoExchange, the server's
# reader stops before the next batches, without an error at either end; the client's writes and `done_writing` succeed. A length that
# happens to be zero loses data. With a batch, b"" arrives as None, and the stream goes on.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import threading

import pyarrow as pa
import pyarrow.flight as flight

BATCH = pa.record_batch({"x": [1, 2]})


def read(reader):
    """Return the rows and the metadata of each message, until the reader says that there is none."""
    found = []
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return json.dumps(found).encode()
        metadata = None if chunk.app_metadata is None else chunk.app_metadata.to_pybytes().decode()
        found.append((None if chunk.data is None else chunk.data.num_rows, metadata))


class Server(flight.FlightServerBase):
    def do_put(self, context, descriptor, reader, writer):
        writer.write(read(reader))

    def do_exchange(self, context, descriptor, reader, writer):
        writer.write_metadata(read(reader))


def send(writer, metadata):
    writer.write_batch(BATCH)
    writer.write_metadata(metadata)
    writer.write_with_metadata(BATCH, metadata)
    writer.done_writing()


server = Server("grpc://127.0.0.1:0")
threading.Thread(target=server.serve, daemon=True).start()
with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
    for metadata in (b"m", b""):
        descriptor = flight.FlightDescriptor.for_command("")
        writer, answers = client.do_put(descriptor, BATCH.schema)
        send(writer, metadata)
        put = json.loads(answers.read().to_pybytes())
        writer.close()
        writer, answers = client.do_exchange(descriptor)
        writer.begin(BATCH.schema)
        send(writer, metadata)
        exchanged = json.loads(answers.read_chunk().app_metadata.to_pybytes())
        writer.close()
        print(f"a batch, metadata {metadata}, a batch with it: DoPut has {put}, DoExchange {exchanged}")
        assert put == exchanged == ([[2, None], [None, "m"], [2, "m"]] if metadata else [[2, None]])
    writer, answers = client.do_put(descriptor, BATCH.schema)
    for _ in range(2):
        writer.write_with_metadata(BATCH, b"")
    writer.done_writing()
    beside = json.loads(answers.read().to_pybytes())
    print("b'' beside batches:", beside)
    assert beside == [[2, None]] * 2
    writer.close()
server.shutdown()
PYTHON
