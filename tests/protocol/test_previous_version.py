"""Old servers work with new engines, and old engines with new servers: tested with the bytes of the previous version.

`previous_version.json` holds what the first version with this protocol wrote (see recorded_wire.py). What this version
writes is parsed with the messages of that version, which know none of the fields added since.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message as Protobuf

from foldflight import FunctionError
from foldflight.client.link import Link
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.codec import Message, decode, decode_open, encode, encode_open
from foldflight.exchange.engine import Saved
from foldflight.exchange.frames import Frame, FunctionInfo
from foldflight.exchange.machine import Role
from foldflight.exchange.messages import decode_error, decode_info, encode_error, encode_info
from foldflight.fold.mode import Folding, Mode
from tests.protocol.recorded_wire import (
    COLUMNS,
    SCRIPTS,
    error_of,
    failing_open,
    fold,
    read,
    registry,
)

BEFORE = read(Path(__file__).with_name("previous_version.json").read_text())
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(BEFORE.protocol)


def parsed_before(name: str, data: bytes) -> Protobuf:
    """Return the message that the previous version decodes, without fields unknown to it."""
    cls = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"foldflight.v1.{name}"))
    message: Protobuf = cls.FromString(data)
    message.DiscardUnknownFields()
    return message


def messages(descriptor: Any) -> Iterator[Descriptor]:
    """Yield a message's descriptor and its nested ones, such as the entries of maps."""
    yield descriptor
    for nested in descriptor.nested_types:
        yield from messages(nested)


def meaning(descriptor: Descriptor, number: int) -> tuple[Any, ...] | None:
    """Return everything that the encoding of a field depends on, and its name; None if there is no such field."""
    field = descriptor.fields_by_number.get(number)
    if field is None:
        return None
    inner = field.message_type.full_name if field.message_type else None
    oneof = field.containing_oneof.name if field.containing_oneof else None
    return field.name, field.type, field.is_repeated, field.has_presence, inner, oneof


def without_trace(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch without the traces of errors, which have the paths of another checkout.

    The row is a text for people. The previous version said its place in the chunk, too.
    """
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        if row.get("error"):
            assert 'raise ValueError("unlucky")' in row["error"].pop("trace")
            row["error"]["row"] = without_place(row["error"]["row"])
    return rows


def without_place(row: str | None) -> str:
    """Return the text of a row without its place in the chunk."""
    return re.sub(r"^row \d+ of the chunk: ", "", row or "")


def assert_same(name: str, now: Message, before: Message) -> None:
    """Check that the previous version decodes a message of this version like its own."""
    assert parsed_before(name, now.metadata) == parsed_before(name, before.metadata)
    assert now.batch is not None
    assert before.batch is not None
    assert now.batch.schema.equals(before.batch.schema, check_metadata=True)
    assert without_trace(now.batch) == without_trace(before.batch)


def test_fields_keep_their_numbers_and_types() -> None:
    """All fields of the previous version exist unchanged; fields are only added."""
    olds = [each for top in BEFORE.protocol.message_type for each in messages(found(_POOL, top.name))]
    assert len(olds) > 20
    for old in olds:
        new = found(pb.DESCRIPTOR.pool, old.full_name.removeprefix("foldflight.v1."))
        for number in old.fields_by_number:
            assert meaning(new, number) == meaning(old, number), f"{old.full_name}, field {number}"


def found(pool: descriptor_pool.DescriptorPool, name: str) -> Descriptor:
    """Return the descriptor of a message."""
    descriptor: Descriptor = pool.FindMessageTypeByName(f"foldflight.v1.{name}")
    return descriptor


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_old_engine_is_answered_as_by_an_old_server(script: str) -> None:
    """This server decodes the frames of an old engine, and the old engine decodes the answers as before."""
    before = BEFORE.scripts[script]
    asked = [step.asked for step in before if step.asked is not None]
    for now, then in zip(fold(BEFORE.commands[script], asked), before, strict=True):
        assert len(now.replies) == len(then.replies)
        for reply, recorded in zip(now.replies, then.replies, strict=True):
            assert_same("ServerFrame", reply, recorded)


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_old_server_reads_what_a_new_engine_writes(script: str) -> None:
    """The previous version decodes the frames of this one, including Open with direct arguments."""
    opening, frames = SCRIPTS[script]
    assert parsed_before("Open", encode_open(opening)) == parsed_before("Open", BEFORE.commands[script])
    assert decode_open(BEFORE.commands[script]) == opening
    asked = [step.asked for step in BEFORE.scripts[script] if step.asked is not None]
    for frame, recorded in zip(frames, asked, strict=True):
        assert_same("EngineFrame", encode(frame, COLUMNS), recorded)


class OldServer(Link):
    """A link to a server of the previous version, which sends its recorded answers."""

    def __init__(self, script: str) -> None:
        super().__init__(SCRIPTS[script][0])
        self._steps = deque(BEFORE.scripts[script])
        self._replies = deque(self._steps.popleft().replies)
        self._start()

    def _write(self, frame: Frame) -> None:
        step = self._steps.popleft()
        assert step.asked is not None
        assert_same("EngineFrame", encode(frame, COLUMNS), step.asked)
        self._replies.extend(step.replies)

    def _read(self) -> Frame | None:
        return decode(self._replies.popleft(), Role.SERVER) if self._replies else None

    def _end(self) -> None:
        assert not self._steps


def answers(link: Link, script: str) -> Iterator[list[dict[str, Any]]]:
    """Send the frames of a script, and yield the rows of each answer."""
    for frame in SCRIPTS[script][1]:
        if link.send(frame):
            answer = link.answer()
            table = answer.states if isinstance(answer, Saved) else answer
            yield table.to_pylist()


def outputs(rows: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """Return the outputs of each slot."""
    return {row["slot"]: tuple(row[f"output_{call}"] for call in range(3)) for row in rows}


def test_a_new_engine_understands_an_old_server() -> None:
    """States, logs, isolated errors, results and `reopen` keep their meaning."""
    link = OldServer("epochs")
    assert link.opened.limits.slots_max == 333
    assert not link.opened.knows_if_reopen  # so failover never asks: test_coordinator.py
    assert link.modes == (None, None, None)  # so a partial fold counts accumulators as objects
    assert [call.can_retract for call in link.opened.calls] == [True, True, False]
    initial, saved, first, second = answers(link, "epochs")
    assert [record.fields["value"] for record in link.take_logs()] == ["4", "8", "9", "1", "9", "5"]
    assert link.reopen
    link.close()
    assert outputs(initial) == {2: (2, 1, 0)}
    assert [row["state_2"] for row in saved] == [21, None, 1, 0]
    assert outputs(first) == {0: (7, 3, 30), 1: (None, None, None), 2: (2, 2, 1), 3: (2, 1, 0)}
    errors = [row["error"] and row["error"]["message"] for row in first]
    assert errors == [None, "accumulate raised ValueError: unlucky", None, None]
    assert outputs(second) == {0: (5, 1, 5)}


def test_a_new_engine_understands_row_outputs_of_an_old_server() -> None:
    """Outputs after each row keep their meaning, and states that were not requested are NULL."""
    link = OldServer("rows")
    first, second, results, nothing = answers(link, "rows")
    link.close()
    assert outputs(first) == {0: (4, 4, 4), 1: (6, 12, 12), 2: (5, 5, 5)}
    assert outputs(second) == {0: (8, 8, 8), 1: (None, None, 0)}
    assert outputs(results) == {0: (None, None, 0), 1: (5, 5, 5)}
    assert [row["state_0"] for row in results] == [None, None]
    assert nothing == []


def test_errors_are_understood_both_ways() -> None:
    """Errors of both versions are decoded completely by the other one."""
    before = decode_error(BEFORE.error)
    assert isinstance(before, FunctionError)
    assert (before.code, before.function, before.slot) == ("USER_CODE", "talks", 5)
    assert (before.row, before.story[-1]) == ("row 1 of the chunk: v=13", "engine Chunk(2 rows)")
    assert before.message == "accumulate raised ValueError: unlucky"
    assert not before.repeats
    now = error_of(failing_open())
    now.trace = before.trace
    assert now.row == without_place(before.row)
    now.row = before.row
    assert parsed_before("Error", encode_error(now)) == parsed_before("Error", BEFORE.error)


def test_descriptions_of_functions_are_understood_both_ways() -> None:
    """Descriptions of functions are decoded by both versions."""
    functions = registry()
    for recorded in BEFORE.infos:
        info = decode_info(recorded)
        now = replace(FunctionInfo.of(functions[info.name]), doc=info.doc)  # prose may change
        assert info == now
        assert parsed_before("FunctionInfo", encode_info(now)) == parsed_before("FunctionInfo", recorded)


def test_without_types_an_old_server_says_nothing_of_the_least_arguments() -> None:
    """If an old server sends no types of arguments, the engine accepts any number of arguments."""
    old = parsed_before("FunctionInfo", BEFORE.infos[0])
    assert decode_info(old.SerializeToString()).inputs_min == 1
    old.ClearField("input_types")
    assert decode_info(old.SerializeToString()).inputs_min == 0


@pytest.mark.parametrize(
    ("text", "folding"),
    [
        ("compiled when hot", Folding(Mode.COMPILED_WHEN_HOT)),
        ("interpreted: it uses text: str", Folding(Mode.INTERPRETED, "it uses text: str")),
        ("", None),
    ],
)
def test_how_functions_are_folded_is_still_read(text: str, folding: Folding | None) -> None:
    """The texts in which an old server describes how it folds a function are still decoded."""
    old = parsed_before("FunctionInfo", BEFORE.infos[0])
    old.folded = text  # type: ignore[attr-defined]
    assert decode_info(old.SerializeToString()).folding == folding
