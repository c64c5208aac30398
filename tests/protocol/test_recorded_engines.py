"""Engines of every kind write what they wrote when they were recorded, and servers answer as they did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from foldflight.exchange.encoding import decode, encode
from foldflight.exchange.frames import Frame, Wanted
from foldflight.exchange.transitions import Role
from tests.protocol.recorded_engines import SCENARIOS, assert_same, read, server_of

RECORDED = read()


@pytest.mark.parametrize("name", SCENARIOS)
def test_engines_write_what_they_wrote(name: str) -> None:
    """With the recorded answers, each engine sends the same bytes on the same connections and gets the same results."""
    result, tapes = RECORDED[name]
    now, played_tapes = SCENARIOS[name].result(tapes)
    assert now == result
    assert len(played_tapes) == len(tapes)


@pytest.mark.parametrize("name", SCENARIOS)
def test_servers_answer_as_they_answered(name: str) -> None:
    """To the recorded frames, a server answers with the same bytes, also with its questions for entries of views."""
    for tape in RECORDED[name][1]:
        requests = iter(tape.engine)
        replies: list[Frame] = []

        def ask(request: Wanted, requests: Iterator = requests, replies: list[Frame] = replies) -> Iterator[Frame]:  # type: ignore[type-arg]
            replies.append(request)
            for message in requests:
                frame = decode(message, Role.ENGINE)
                yield frame
                if frame.last:  # type: ignore[union-attr]
                    return

        server = server_of(tape.open_request, ask, SCENARIOS[name].limits)
        replies.append(server.open_reply)
        for message in requests:
            # A recorded connection that was lost has an answer less than this server.
            replies.extend(server.handle(decode(message, Role.ENGINE)))
        server.close()
        for reply, recorded_frame in zip(replies, tape.server, strict=False):
            assert_same(encode(reply, server.open_reply.schema), recorded_frame, Role.SERVER)
        assert len(replies) >= len(tape.server)


def test_another_frame_is_noticed() -> None:
    """An engine that sends something else does not pass."""
    result, (tape,) = RECORDED["emitting"][0], RECORDED["emitting"][1][1:]
    assert result
    changed_tape = replace(tape, engine=[tape.engine[1], *tape.engine[1:]])
    with pytest.raises(AssertionError):
        SCENARIOS["emitting"].result([RECORDED["emitting"][1][0], changed_tape])
