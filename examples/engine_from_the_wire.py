"""A complete engine that uses only foldflight's protocol: `select key, sum(value), count(value) group by key`.

    python -m grpc_tools.protoc -I proto/foldflight/v1 --python_out=. exchange.proto
    python engine_from_the_wire.py grpc://127.0.0.1:8815,grpc://127.0.0.1:8816 rows.csv    # with the columns key, value

It owns keys and states, so the result is the same if a server fails, is full or restarts at any time. After a loss it
continues on the next of its servers. It follows the rules of proto/README.md, which `foldflight conform engine` checks;
docs/how-to/engine-author.md explains them.
"""

import argparse
import contextlib
import json
import sys
import threading
import time

import exchange_pb2 as pb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.flight as fl

HEADER_BYTES = 8 * 1024  # size of a message without its columns


class LostError(Exception):
    """The exchange has failed, and another attempt may succeed."""


class Engine:
    columns = pa.schema([("slot", pa.int32()), ("value", pa.int64())])
    calls = (pb.Call(function="sum", arguments=["value"]), pb.Call(function="count", arguments=["value"]))

    def __init__(self, urls, token=None, deadline_s=10.0, patience_s=60.0):
        self.urls, self.deadline_s, self.patience_s = urls.split(","), deadline_s, patience_s
        self.headers = [(b"authorization", b"Bearer " + token.encode())] if token else []
        self.slots = {}  # key -> slot: dense, and the same in every exchange
        self.states = None  # slots and states of the last barrier, with the metadata of their columns
        self.number = 0
        self.writer = self.reader = None

    def epoch(self, keys, values):
        """Fold the rows of an epoch, with retries, and return the changed outputs by key."""
        slots = [self.slots.setdefault(key, len(self.slots)) for key in keys]
        rows = pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), values], ["slot", "value"])
        self.number += 1
        give_up_s = time.monotonic() + self.patience_s
        while True:
            try:
                results = self.attempt(rows)
                break
            except LostError as lost:
                self.hang_up()
                if time.monotonic() > give_up_s:
                    sys.exit(f"no server finished epoch {self.number}: {lost}")
                time.sleep(0.2)
        names = {slot: key for key, slot in self.slots.items()}
        outputs = results.select(["slot", "output_0", "output_1"]).to_pylist()
        return {names[row["slot"]]: [row["output_0"], row["output_1"]] for row in outputs}

    def attempt(self, rows):
        """Send the rows and a barrier. The states are updated only after all results have arrived."""
        if self.writer is None:
            self.open()
        for part in self.parts(rows):
            self.send(pb.EngineFrame(chunk=pb.Chunk()), part)
        self.send(pb.EngineFrame(barrier=pb.Barrier(epoch=self.number)))
        parts, last = [], None
        while last is None or not last.last:
            frame, batch = self.read()
            last = frame.results
            parts.append(batch)
        results = pa.Table.from_batches(parts)
        fresh = results.select(["slot", *(f"state_{call}" for call in range(len(self.calls)))])
        if self.states is None:
            self.states = fresh
        else:
            old = pc.invert(pc.is_in(self.states["slot"], value_set=fresh["slot"]))
            self.states = pa.concat_tables([self.states.filter(old), fresh])
        if last.reopen:
            self.end()
        return results

    def command(self):
        """Return the Open command, which requests states and outputs of changed groups."""
        columns = self.columns.serialize().to_pybytes()
        return pb.Open(protocol_version=1, calls=self.calls, columns=columns, return_states=True, return_outputs=True)

    def open(self):
        """Open an exchange, read Opened, and load the states of the last barrier."""
        descriptor = fl.FlightDescriptor.for_command(self.command().SerializeToString())
        with self.lost():
            # Use a separate connection pool, so that a lost connection is not reused.
            self.client = fl.FlightClient(self.urls[0], generic_options=[("grpc.use_local_subchannel_pool", 1)])
            self.writer, self.reader = self.client.do_exchange(descriptor, fl.FlightCallOptions(headers=self.headers))
            self.writer.begin(self.columns)
        self.limits = self.read()[0].opened.limits
        if self.states is None:
            return
        for part in self.parts(self.states.combine_chunks().to_batches()[0]):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, part.schema) as stream:
                stream.write_batch(part)
            self.send(pb.EngineFrame(states=pb.States(batch=sink.getvalue().to_pybytes())))

    def parts(self, batch):
        """Yield slices whose messages stay within the server's limit."""
        if batch.nbytes + HEADER_BYTES <= self.limits.message_bytes_max or batch.num_rows < 2:
            yield batch
        else:
            half = batch.num_rows // 2
            yield from self.parts(batch.slice(0, half))
            yield from self.parts(batch.slice(half))

    def send(self, frame, batch=None):
        """Send a frame, with an empty batch if it has no rows. No answer is due, so the server keeps reading."""
        carrier = batch if batch is not None else pa.RecordBatch.from_pylist([], schema=self.columns)
        with self.lost():
            self.writer.write_with_metadata(carrier, frame.SerializeToString())

    def read(self):
        """Return the next frame other than Log, and its batch."""
        while True:
            with self.lost():
                message = self.reader.read_chunk()
            frame = pb.ServerFrame.FromString(message.app_metadata.to_pybytes())
            if frame.WhichOneof("frame") != "log":
                return frame, message.data

    @contextlib.contextmanager
    def lost(self):
        """Run one step with a deadline, and translate its errors."""
        watch = threading.Timer(self.deadline_s, lambda: self.reader and self.reader.cancel())
        watch.start()
        try:
            yield
        except StopIteration:
            raise LostError("the server ended the exchange") from None
        except (fl.FlightError, pa.ArrowException, OSError) as error:
            self.judge(pb.Error.FromString(getattr(error, "extra_info", b"") or b""), error)
        finally:
            watch.cancel()

    def judge(self, told, error):
        """Raise LostError if another server may succeed: for a RetryableError, or a lost connection (no Error)."""
        if told.error_class in ("", "RetryableError"):
            raise LostError(told.message or str(error).splitlines()[0])
        sys.exit(f"{told.error_class} {told.code}: {told.message}\n{told.trace}")

    def end(self):
        """End the exchange: close the sending direction, and read the other one to its end."""
        if self.writer is not None:
            with contextlib.suppress(LostError, StopIteration), self.lost():
                self.writer.done_writing()
                while True:
                    self.reader.read_chunk()
        self.hang_up()

    def hang_up(self):
        """Drop the exchange. The next one is opened on the next server."""
        self.urls.append(self.urls.pop(0))
        writer, self.writer = self.writer, None
        if writer is not None:
            self.reader.cancel()
            with contextlib.suppress(pa.ArrowException, OSError):
                writer.close()
            self.client.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("urls", help="servers, separated by commas")
    options.add_argument("csv")
    options.add_argument("--token")
    options.add_argument("--rows", type=int, default=1000, help="rows of an epoch")
    options.add_argument("--deadline-s", type=float, default=10.0)
    given = options.parse_args()
    engine, outputs = Engine(given.urls, given.token, given.deadline_s), {}
    table = pa.csv.read_csv(given.csv)
    for start in range(0, table.num_rows, given.rows):
        rows = table.slice(start, given.rows).combine_chunks()
        values = rows["value"].combine_chunks().cast(pa.int64())
        outputs.update(engine.epoch(rows["key"].to_pylist(), values))
    engine.end()
    for key in sorted(outputs):
        print(json.dumps([key, *outputs[key]]))
