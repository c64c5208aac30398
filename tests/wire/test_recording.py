"""Servers record the exchanges in which a function raises, and tell their engines where."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from foldflight import connect
from foldflight.cli.main import cli
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.frames import Open
from foldflight.ext.compiler import Programs
from foldflight.ext.recording.file import read_recording
from foldflight.functions import Call
from foldflight.server.run.lifecycle import run_server, serving
from foldflight.server.run.settings import load_settings
from tests.unit.recorded_functions import Ratio
from tests.wire.kit import end_epoch

COLUMNS = pa.schema([("slot", pa.int32()), ("price", pa.int64()), ("qty", pa.int64())])
CALLS = (Call("ratio", ("price", "qty")),)
KEY = "a key for recordings"
FUNCTION = "tests.unit.recorded_functions:Ratio"
# Reads a recording with nothing of foldflight but the generated protobuf classes, as another language would.
FOREIGN = """
import struct, sys
import pyarrow as pa
from foldflight.exchange import exchange_pb2 as pb

data = open(sys.argv[1], "rb").read()
assert data.startswith(b"foldflight recording 1\\n")
at = data.index(b"\\n") + 1
rows, kinds = 0, ""
while at < len(data):
    kind, message_bytes, batch_bytes = struct.unpack_from("<cIQ", data, at)
    message = data[at + 13 : at + 13 + message_bytes]
    at += 13 + message_bytes
    kinds += kind.decode()
    if kind == b"O":
        print(pb.Open.FromString(message).calls[0].function)
    if kind == b"E" and pb.EngineFrame.FromString(message).HasField("chunk"):
        rows += pa.ipc.open_stream(data[at : at + batch_bytes]).read_all().num_rows
    at += batch_bytes
print(kinds, rows)
"""


def chunk(*rows: tuple[int, int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in rows], COLUMNS)


def fail(url: str, **more: bool) -> FunctionError:
    with connect(url).transport.open(Open(CALLS, COLUMNS, **more)) as exchange:
        exchange.chunk(chunk((0, 5, 5), (1, 6, 2)))
        assert end_epoch(exchange, 1).num_rows == 2
        exchange.forget(pa.array([0, 1], pa.int32()))
        exchange.chunk(chunk((0, 7, 1), (1, 8, 0)))
        with pytest.raises(FunctionError) as excinfo:
            end_epoch(exchange, 2)
    return excinfo.value


def test_a_server_records_and_tells(tmp_path: Path) -> None:
    """Error, log and file agree; the file has what came after all groups were forgotten. Any language reads it."""
    log = io.StringIO()
    with serving(Ratio, record=str(tmp_path), bundle_keys=KEY, log_stream=log) as server:
        error = fail(server.url)
        (path,) = tmp_path.glob("*.recording")
        assert error.recorded is not None
        assert f"{path} (by {server.server_id}), replay with: foldflight replay {path}" in error.recorded
        assert "recorded: " in str(error)
    events = [json.loads(line) for line in log.getvalue().splitlines()]
    assert any(event.get("recorded") == error.recorded for event in events)
    recording = read_recording(path, key=KEY)
    assert [type(pair.frame).__name__ for pair in recording.pairs] == ["Chunk"]
    run = CliRunner().invoke(cli, ["replay", str(path), "--function", FUNCTION, "--shrink", "--recording-key", KEY])
    assert "rows that still fail: 1" in run.output, run.output
    assert "slot=1" in run.output
    foreign = subprocess.run([sys.executable, "-c", FOREIGN, path], capture_output=True, text=True, check=True)
    assert foreign.stdout.split() == ["ratio", "AOEXZ", "2"]


def test_a_server_records_isolated_errors_with_masks(tmp_path: Path) -> None:
    """Isolated errors are recorded when the exchange ends; a mask leaves out the values of the error."""
    with (
        serving(Ratio, record=str(tmp_path), record_mask="text") as server,
        connect(server.url).transport.open(Open(CALLS, COLUMNS, isolate_errors=True)) as exchange,
    ):
        exchange.chunk(chunk((0, 5, 5), (1, 6, 0)))
        assert end_epoch(exchange, 1).column("error").null_count == 1
    (path,) = tmp_path.glob("*.recording")
    assert read_recording(path).about["is_masked"]
    assert b"qty=0" not in path.read_bytes()


def test_nothing_is_recorded_without_an_error(tmp_path: Path) -> None:
    """An exchange that ends well leaves nothing, and a server without --record tells nothing."""
    with (
        serving(Ratio, record=str(tmp_path)) as server,
        connect(server.url).transport.open(Open(CALLS, COLUMNS)) as exchange,
    ):
        exchange.chunk(chunk((0, 5, 5)))
        end_epoch(exchange, 1)
    assert list(tmp_path.iterdir()) == []
    with serving(Ratio) as server:
        assert fail(server.url).recorded is None


def test_shipped_code_needs_the_key_of_its_bundle(tmp_path: Path) -> None:
    """The bundles of an Open are in the recording, and are unpickled only with a key that signed them."""
    with serving(record=str(tmp_path), bundle_keys=KEY) as server:
        functions = connect(server.url, bundle_key=KEY).register(Ratio)
        with functions.transport.open(Open(CALLS, COLUMNS)) as exchange:
            exchange.chunk(chunk((0, 7, 0)))
            with pytest.raises(FunctionError):
                end_epoch(exchange, 1)
    (path,) = tmp_path.glob("*.recording")
    with_key = CliRunner().invoke(cli, ["replay", str(path), "--bundle-key", KEY])
    assert "raised in frame 1" in with_key.output, with_key.output
    for options, message in (([], "UNKNOWN_FUNCTION"), (["--bundle-key", KEY + "!"], "UNAUTHENTICATED")):
        assert message in CliRunner().invoke(cli, ["replay", str(path), *options]).output
    command = ["replay", str(path), "--bundle-key", KEY, "--function", "tests.unit.recorded_functions:Mended"]
    assert CliRunner().invoke(cli, command).exit_code == 0


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A server tries its folder when it starts, because permissions do not tell: root may write everywhere."""
    refusal = pytest.raises(RejectedError, match="folder of recordings, /proc/self, cannot be written: ")
    with refusal as excinfo, serving(Ratio, record="/proc/self"):
        pass
    assert excinfo.value.code == "SETTINGS"
    with serving(Ratio, record=str(tmp_path)):
        assert list(tmp_path.iterdir()) == []


def test_the_folder_is_checked_before_functions_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilation may take a minute, at whose end nobody wants to read that the folder cannot be written."""
    monkeypatch.setattr(Programs, "demand_all", lambda *_: pytest.fail("compiled before the folder was checked"))
    monkeypatch.setattr(Programs, "load", lambda *_: pytest.fail("loaded before the folder was checked"))
    settings = {"modules": "tests.wire.traced_functions", "record": "/proc/self", "port": 0, "log_level": "error"}
    server_settings = load_settings({**settings, "health_port": "off", "http_port": "off"}, {})
    with pytest.raises(RejectedError, match="folder of recordings"):
        run_server(server_settings, threading.Event())
