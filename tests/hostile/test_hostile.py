"""Damaged inputs for every reader: no crash, no hang, no memory growth, and only errors of the taxonomy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from foldflight import RejectedError
from foldflight.exchange.encoding import decode_open
from foldflight.exchange.ipc import BatchReader, read_batches
from tests.hostile import fuzz
from tests.hostile.forging import IpcMessage, in_format_v4, messages_of, numbers, stream_of_messages

ROOT = Path(__file__).parents[2]
SEED = 20


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_undamaged_inputs_are_read(name: str) -> None:
    """The undamaged inputs are valid, so that damage reaches deep code."""
    for data in fuzz.TARGETS[name].corpus:
        fuzz.TARGETS[name].read(data)


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_a_few_damaged_inputs_are_refused_or_harmless(name: str) -> None:
    """Damage is detected or harmless; behind a checksum all of it is detected."""
    outcomes = fuzz.run(name, SEED, 0, 1500)
    assert sum(outcomes.values()) == 1500
    assert len(outcomes) > 1 or outcomes.keys() == {"STATE_CHECKSUM"}


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_many_damaged_inputs_are_refused_or_harmless(name: str) -> None:
    """The run is a separate process, to distinguish a crash from a failure."""
    command = [sys.executable, "-m", "tests.hostile.fuzz", "--target", name, "--seed", str(SEED)]
    result = subprocess.run(
        [*command, "--inputs", str(fuzz.TARGETS[name].inputs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "service"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_names_that_are_not_utf8_are_refused() -> None:
    """Found by damage to Open and chunks: pyarrow accepts such a name, and raises when it is first read."""
    command = fuzz.TARGETS["open"].corpus[0].replace(b"weight\0", b"\xc0eight\0")
    with pytest.raises(RejectedError, match="utf-8") as excinfo:
        decode_open(command)
    assert excinfo.value.code == "BAD_FRAME"


def take_as_chunk(schema: IpcMessage, batch: IpcMessage) -> None:
    reader = BatchReader(1 << 20)
    for message in (schema, batch):
        reader.take(memoryview(message.header), memoryview(message.body))


def take_as_states(schema: IpcMessage, batch: IpcMessage) -> None:
    read_batches(stream_of_messages([schema, batch]), lambda _: None)


@pytest.mark.parametrize(("take", "compression"), [(take_as_chunk, "zstd"), (take_as_states, None)])
def test_a_header_claims_no_more_buffers_than_its_columns_have(
    take: Callable[[IpcMessage, IpcMessage], None], compression: str | None
) -> None:
    """Buffers that no column has would be counted in a loop of millions, while the process does nothing else."""
    count = 1_000_000
    schema, sound = messages_of(pa.record_batch({"a": [1, 2], "b": [3, 4]}), compression=compression)
    place = next(number for number in numbers(sound.header) if number.name == "count of buffer offset")
    lying = IpcMessage(place.written(sound.header, count) + bytes(16 * count), sound.body)
    with pytest.raises(ValueError, match="1000000 buffers, and its columns have at most 6"):
        take(schema, lying)


@pytest.mark.parametrize("take", [take_as_chunk, take_as_states])
def test_a_negative_length_does_not_hide_overlapping_buffers(take: Callable[[IpcMessage, IpcMessage], None]) -> None:
    """Arrow does not read the validity of a column without NULLs, so a negative length there would lower the sum."""
    rows = 16_000
    schema, sound = messages_of(pa.record_batch({name: pa.array(range(rows)) for name in "abcdefghijkl"}))
    header, size = sound.header, 8 * rows
    for number in numbers(header):
        if number.name == "buffer offset":
            header = number.written(header, 0)
        elif number.name == "buffer length":
            header = number.written(header, size if number.read(header) else -size)
        elif number.name == "body length":
            header = number.written(header, size)
    with pytest.raises(ValueError, match="negative length"):
        take(schema, IpcMessage(header, sound.body[:size]))


@pytest.mark.parametrize("take", [take_as_chunk, take_as_states])
def test_a_compression_in_the_metadata_of_the_old_format_is_refused(
    take: Callable[[IpcMessage, IpcMessage], None],
) -> None:
    """Arrow 0.17 named the compression there, and Arrow still unpacks such messages: 300 bytes became 8 MB."""
    batch = pa.record_batch({"a": pa.array([0] * (1 << 20))})
    metadata = {"ARROW:experimental_compression": "zstd"}
    schema, compressed_message = messages_of(batch, compression="zstd", metadata=metadata)
    old = in_format_v4(compressed_message.header)
    with pytest.raises(ValueError, match="custom metadata in the old format V4"):
        take(schema, IpcMessage(old, compressed_message.body))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [102, 104, 110, 112])
def test_forged_streams_of_states_do_not_crash_the_process(seed: int) -> None:
    """Read as a whole stream, one of these inputs of each seed crashed the process."""
    assert sum(fuzz.run("any_states", seed, 0, 6000).values()) == 6000
