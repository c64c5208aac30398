"""The coordinator, told literally what happens: which instructions come back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange.engine import Saved
from foldflight.exchange.failover.circuits import Circuits
from foldflight.exchange.failover.coordinator import Coordinator
from foldflight.exchange.failover.steps import (
    AnswerCame,
    AnswerWanted,
    AwaitAnswer,
    CutLink,
    Deliver,
    FailoverBounds,
    FrameGiven,
    FrameSent,
    GiveUp,
    LeaveLink,
    LinkLost,
    LinkOpened,
    OpenLink,
    Report,
    Rest,
    Rested,
    SendFrame,
    Started,
)
from foldflight.exchange.frames import (
    Barrier,
    Checkpoint,
    Chunk,
    Forget,
    Limits,
    Open,
    Opened,
    OpenedCall,
    Returns,
    States,
)
from foldflight.functions import Call, LogRecord

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
RESULTS = pa.schema([("slot", pa.int32()), ("state_0", pa.int64()), ("output_0", pa.int64())])
LIMITS = Limits(2**20, 100, 2**20, 2**20, 1, 1.0, 1.0)
CHUNK = Chunk(pa.RecordBatch.from_pydict({"slot": [0, 2], "v": [5, 6]}, schema=COLUMNS))
GONE = RetryableError("UNREACHABLE", "gone")
URLS = ("grpc://a", "grpc://b")


ASKING = Checkpoint(if_reopen=True)


def opened(name: str = "s", fingerprint: str = "f1", *, knows_if_reopen: bool = True) -> Opened:
    call = OpenedCall(fingerprint, can_retract=True, can_merge=False, is_invertible=True, input_types=(pa.int64(),))
    return Opened(name, 1, (call,), LIMITS, RESULTS, knows_if_reopen=knows_if_reopen)


def results(**slots: int) -> pa.Table:
    """Return results: slot_1=5 is state and output 5 of slot 1."""
    numbers = [int(name.removeprefix("slot_")) for name in slots]
    values = list(slots.values())
    return pa.Table.from_pydict({"slot": numbers, "state_0": values, "output_0": values}, schema=RESULTS)


class Telling:
    """A coordinator, and a clock that stands still unless moved."""

    def __init__(self, urls: tuple[str, ...] = URLS, *, returns: Returns | None = None, **more: Any) -> None:
        asked = {name: more.pop(name) for name in ("initial_outputs", "row_outputs") if name in more}
        opening = Open((Call("sum", ("v",)),), COLUMNS, returns=returns or Returns(), **asked)
        self.coordinator = Coordinator(opening, urls, Circuits(lambda: 0.5), bounds=FailoverBounds(**more))
        self.now_s = 100.0

    def tell(self, *events: Any) -> list[Any]:
        """Tell all, and return what the last one leads to."""
        for event in events:
            said = self.coordinator.handle(event, self.now_s)
        return said

    def begun(self, name: str = "s") -> Telling:
        self.tell(Started(), LinkOpened(opened(name)))
        return self


def test_an_exchange_without_trouble() -> None:
    """Frames go out as they come; results are awaited when they are wanted; nothing is said besides."""
    telling = Telling(("grpc://a",))
    (open_link,) = telling.tell(Started())
    assert isinstance(open_link, OpenLink)
    assert telling.tell(LinkOpened(opened())) == []
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]
    assert telling.tell(FrameSent()) == []
    assert telling.tell(FrameGiven(Barrier(7))) == [SendFrame(Barrier(7))]
    assert telling.tell(FrameSent()) == []
    assert telling.tell(AnswerWanted()) == [AwaitAnswer(Barrier(7))]
    log = LogRecord("info", "sum", "hello", {})
    answer = results(slot_0=5, slot_2=6)
    assert telling.tell(AnswerCame(answer, (log,))) == [Deliver(Barrier(7), answer, (log,))]


def test_a_frame_waits_for_earlier_answers() -> None:
    """What is given while results are due goes out when they are in."""
    telling = Telling().begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(1)), FrameSent())
    assert telling.tell(FrameGiven(CHUNK)) == [AwaitAnswer(Barrier(1))]
    deliver, send = telling.tell(AnswerCame(results(slot_0=5, slot_2=6)))
    assert isinstance(deliver, Deliver)
    assert send == SendFrame(CHUNK)


def test_another_server_gets_the_states_and_the_frames_since() -> None:
    """After a loss the states of the last barrier go first, one for each slot, then the frames since, in order."""
    telling = Telling().begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(1)), FrameSent(), AnswerWanted())
    telling.tell(AnswerCame(results(slot_0=5, slot_2=6)))
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(2)), FrameSent(), AnswerWanted())
    telling.tell(AnswerCame(results(slot_2=12)))
    telling.tell(FrameGiven(Forget(pa.array([0], pa.int32()))), FrameSent(), FrameGiven(CHUNK))
    cut, open_link = telling.tell(LinkLost(GONE))
    assert (cut, open_link.url) == (CutLink(), "grpc://b")
    (send,) = telling.tell(LinkOpened(opened("t")))
    assert isinstance(send.frame, States)
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [5, 12]}
    (forget,) = telling.tell(FrameSent())
    assert isinstance(forget.frame, Forget)
    assert telling.tell(FrameSent()) == [SendFrame(CHUNK)]
    (report,) = telling.tell(FrameSent())
    assert isinstance(report, Report)
    assert report.event == "an exchange goes on at another server"
    assert report.fields == {
        "server": "grpc://b",
        "server_id": "t",
        "stall_s": 0.0,
        "rows_sent_again": 0,
        "losses": 1,
        "code": "UNREACHABLE",
        "problem": "gone",
    }


def test_results_are_about_slots_that_changed() -> None:
    """Loading states makes their slots dirty on the new server, but the engine hears of those it changed."""
    telling = Telling().begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(1)), FrameSent(), AnswerWanted())
    telling.tell(AnswerCame(results(slot_0=5, slot_2=6, slot_7=1)))
    one = Chunk(CHUNK.batch.slice(1))
    telling.tell(FrameGiven(one), FrameSent(), FrameGiven(Barrier(2)), LinkLost(GONE), LinkOpened(opened("t")))
    telling.tell(FrameSent(), FrameSent(), FrameSent(), AnswerWanted())
    (deliver, *_) = telling.tell(AnswerCame(results(slot_0=5, slot_2=12, slot_7=1)))
    assert deliver.answer.to_pydict() == results(slot_2=12).to_pydict()


def test_answers_come_once() -> None:
    """An answer that the engine has is dropped when another server gives it again."""
    telling = Telling(row_outputs=True).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), AnswerWanted())
    first = results(slot_0=5, slot_1=6)
    assert telling.tell(AnswerCame(first)) == [Deliver(CHUNK, first, ())]
    telling.tell(FrameGiven(CHUNK), LinkLost(GONE), LinkOpened(opened("t")))
    assert telling.tell(FrameSent()) == [AwaitAnswer(CHUNK)]
    assert telling.tell(AnswerCame(results(slot_0=99, slot_1=99))) == [SendFrame(CHUNK)]
    telling.tell(FrameSent())
    assert telling.tell(AnswerWanted()) == [AwaitAnswer(CHUNK)]
    second = results(slot_0=10, slot_1=12)
    assert Deliver(CHUNK, second, ()) in telling.tell(AnswerCame(second))


def test_a_server_that_asks_is_left_at_the_barrier() -> None:
    """With its last results in, the server is left politely; the next frame opens another exchange."""
    telling = Telling().begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(1)), FrameSent(), AnswerWanted())
    deliver, leave = telling.tell(AnswerCame(results(slot_0=5, slot_2=6), reopen=True))
    assert isinstance(deliver, Deliver)
    assert leave == LeaveLink()
    (open_link,) = telling.tell(FrameGiven(CHUNK))
    assert isinstance(open_link, OpenLink)
    assert telling.coordinator.stats.losses == 0


def test_a_server_that_drains_is_left_within_an_epoch() -> None:
    """After a while the server is asked; one that wants to be left gives its states, and no row is sent twice."""
    telling = Telling().begun()
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]
    telling.tell(FrameSent())
    telling.now_s += 1.0
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(ASKING)]
    assert telling.tell(FrameSent()) == [AwaitAnswer(ASKING)]
    leave, open_link = telling.tell(AnswerCame(Saved(results(slot_0=5, slot_2=6)), reopen=True))
    assert leave == LeaveLink()
    assert open_link.url == "grpc://b"
    (send,) = telling.tell(LinkOpened(opened("t")))
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [5, 6]}
    assert telling.tell(FrameSent()) == [SendFrame(CHUNK)]
    assert telling.tell(FrameSent()) == []
    telling.tell(FrameGiven(Barrier(1)), FrameSent(), AnswerWanted())
    answer = results(slot_0=10, slot_2=12)
    assert telling.tell(AnswerCame(answer))[0].answer.to_pydict() == answer.to_pydict()
    stats = telling.coordinator.stats
    assert (stats.losses, stats.rows_refolded, stats.replays) == (0, 0, 1)


def test_a_server_that_does_not_drain_is_asked_now_and_then() -> None:
    """A server that does not want to be left saves nothing; it is asked again after as long, and not in between."""
    telling = Telling().begun()
    telling.tell(FrameGiven(CHUNK), FrameSent())
    for _ in range(3):
        telling.now_s += 0.9
        assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]
        telling.tell(FrameSent())
        telling.now_s += 0.9
        assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(ASKING)]
        telling.tell(FrameSent())
        assert telling.tell(AnswerCame(Saved(results()))) == [SendFrame(CHUNK)]
        telling.tell(FrameSent())
    assert telling.coordinator.stats.checkpoints == 0
    _, open_link = telling.tell(FrameGiven(CHUNK), LinkLost(GONE))
    assert isinstance(open_link, OpenLink)
    sent = telling.tell(LinkOpened(opened("t")))
    while sent and isinstance(sent[0], SendFrame):
        assert sent[0].frame is CHUNK
        sent = telling.tell(FrameSent())
    assert telling.coordinator.stats.rows_refolded == 7 * CHUNK.batch.num_rows


def test_results_say_it_too() -> None:
    """Where barriers come often enough nobody is asked: their results tell."""
    telling = Telling().begun()
    for epoch in range(1, 4):
        telling.now_s += 0.6
        assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]
        telling.tell(FrameSent(), FrameGiven(Barrier(epoch)), FrameSent(), AnswerWanted())
        telling.tell(AnswerCame(results(slot_0=5, slot_2=6)))


def test_an_older_server_is_not_asked() -> None:
    """A server that does not know the question would return its states each time."""
    telling = Telling()
    telling.tell(Started(), LinkOpened(opened(knows_if_reopen=False)))
    telling.now_s += 100.0
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]


def test_a_question_is_not_asked_of_the_next_server() -> None:
    """What one server was asked and did not answer before it was lost is no question for another."""
    telling = Telling().begun()
    telling.now_s += 1.0
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(ASKING)]
    telling.tell(FrameSent())
    telling.tell(LinkLost(GONE))
    assert telling.tell(LinkOpened(opened("t", knows_if_reopen=False))) == [SendFrame(CHUNK)]
    (report,) = telling.tell(FrameSent())
    assert isinstance(report, Report)


def test_a_server_that_cannot_give_its_states_is_kept_until_its_barrier() -> None:
    """States that cannot be written down do not travel, but their rows are kept, and a later loss is made good."""
    telling = Telling(returns=Returns(states=False, outputs=True)).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent())
    telling.now_s += 1.0
    telling.tell(FrameGiven(CHUNK), FrameSent())
    assert telling.tell(AnswerCame(Saved(results(), "LIMIT: too large"), reopen=True)) == [SendFrame(CHUNK)]
    telling.tell(FrameSent())
    telling.now_s += 1.0
    assert telling.tell(FrameGiven(CHUNK)) == [SendFrame(CHUNK)]
    _, open_link = telling.tell(LinkLost(GONE))
    assert isinstance(open_link, OpenLink)


def test_a_checkpoint_says_it_too() -> None:
    """A server that drains is left at the checkpoint that a bound made necessary."""
    telling = Telling(returns=Returns(states=False, outputs=True), replay_bytes_max=10).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameSent(), FrameGiven(CHUNK))
    leave, open_link = telling.tell(AnswerCame(Saved(results(slot_0=5, slot_2=6)), reopen=True))
    assert leave == LeaveLink()
    assert isinstance(open_link, OpenLink)


def test_forgetting_all_leaves_nothing_to_move() -> None:
    """With every slot forgotten nothing is kept, and a server that was left is not replaced for it."""
    telling = Telling(returns=Returns(states=False, outputs=True)).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameGiven(Barrier(1)), FrameSent(), AnswerWanted())
    telling.tell(AnswerCame(results(slot_0=5, slot_2=6), reopen=True))
    assert telling.coordinator.held_bytes > 0
    assert telling.tell(FrameGiven(Forget(pa.array([0, 2], pa.int32())))) == []
    assert telling.coordinator.held_bytes == 0


def test_past_the_bound_a_checkpoint_is_asked_for() -> None:
    """Frames past replay_bytes_max are followed by a checkpoint, whose states take their place."""
    telling = Telling(returns=Returns(states=False, outputs=True), replay_bytes_max=40).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent())
    telling.tell(FrameGiven(CHUNK))
    assert telling.tell(FrameSent()) == [SendFrame(Checkpoint())]
    assert telling.tell(FrameSent()) == []
    assert telling.tell(FrameGiven(CHUNK)) == [AwaitAnswer(Checkpoint())]
    telling.tell(AnswerCame(Saved(results(slot_0=10, slot_2=12))))
    assert telling.tell(FrameSent()) == []
    (_, open_link) = telling.tell(FrameGiven(Barrier(1)), LinkLost(GONE))
    assert isinstance(open_link, OpenLink)
    (send,) = telling.tell(LinkOpened(opened("t")))
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [10, 12]}
    assert telling.tell(FrameSent()) == [SendFrame(CHUNK)]
    assert telling.tell(FrameSent()) == [SendFrame(Barrier(1))]


@pytest.mark.parametrize(
    ("bounds", "answer", "why"),
    [
        ({}, Saved(results(), "LIMIT: too large"), "the server could not save its states: LIMIT"),
        ({"kept_bytes_max": 10}, Saved(results(slot_0=10, slot_2=12)), "and the client keeps at most 10"),
    ],
)
def test_what_cannot_be_kept_is_not_kept_for_ever(bounds: dict[str, int], answer: Saved, why: str) -> None:
    """Where states cannot be kept the exchange goes on with bounded memory, and a loss says why it is one."""
    telling = Telling(returns=Returns(states=False, outputs=True), replay_bytes_max=10, **bounds).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameSent(), FrameGiven(CHUNK), AnswerCame(answer), FrameSent())
    for _ in range(10):
        telling.tell(FrameGiven(CHUNK), FrameSent())
        assert telling.coordinator.held_bytes == 0
    cut, give_up = telling.tell(FrameGiven(CHUNK), LinkLost(GONE))
    assert cut == CutLink()
    assert isinstance(give_up.error, RetryableError)
    assert why in give_up.error.message


def test_bare_exchanges_recover_when_all_is_forgotten() -> None:
    """An exchange that could not move can again once nothing of what was lost is needed."""
    telling = Telling(returns=Returns(states=False, outputs=True), replay_bytes_max=10).begun()
    telling.tell(FrameGiven(CHUNK), FrameSent(), FrameSent(), FrameGiven(Barrier(1)))
    telling.tell(AnswerCame(Saved(results(), "LIMIT: too large")), FrameSent(), AnswerWanted())
    telling.tell(AnswerCame(results(slot_0=1, slot_2=2)))
    telling.tell(FrameGiven(Forget(pa.array([0, 2], pa.int32()))), FrameSent(), FrameGiven(CHUNK))
    _, open_link = telling.tell(LinkLost(GONE))
    assert isinstance(open_link, OpenLink)


@pytest.mark.parametrize(
    "error",
    [
        FunctionError("USER_CODE", "boom"),
        RejectedError("LIMIT", "too much"),
        RejectedError("STATE_MISMATCH", "what the engine gave is foreign"),
        CorruptError("STATE_CHECKSUM", "damaged"),
    ],
)
def test_what_is_wrong_with_the_job_is_raised(error: FoldflightError) -> None:
    """Another server would do no better, so none is asked."""
    telling = Telling().begun()
    assert telling.tell(FrameGiven(CHUNK), LinkLost(error)) == [CutLink(), GiveUp(error)]


@pytest.mark.parametrize(
    "error",
    [
        *[RetryableError(code, "no") for code in sorted(RetryableError.codes)],
        RejectedError("BAD_FRAME", "damaged in transit"),
    ],
    ids=lambda error: error.code,
)
def test_what_is_wrong_with_a_server_is_not(error: FoldflightError) -> None:
    """A lost, hung, draining, full or garbling server is replaced."""
    telling = Telling().begun()
    cut, open_link = telling.tell(FrameGiven(CHUNK), LinkLost(error))
    assert (cut, type(open_link)) == (CutLink(), OpenLink)


def test_a_server_unlike_the_first_is_passed_over() -> None:
    """A server that opens with other fingerprints, or refuses to open, is refused; the next is asked."""
    telling = Telling(("grpc://a", "grpc://b", "grpc://c")).begun()
    (_, second) = telling.tell(FrameGiven(CHUNK), LinkLost(GONE))
    assert [call.fingerprint for call in second.opening.calls] == ["f1"]
    (_, third) = telling.tell(LinkOpened(opened("t", "f2")))
    assert third.url == "grpc://c"
    (_, rest) = telling.tell(LinkLost(RejectedError("UNKNOWN_FUNCTION", "never heard of it")))
    assert isinstance(rest, Rest)


def test_the_first_refusal_is_the_jobs() -> None:
    """What the first server refuses to open is raised at once: nobody has agreed to it."""
    for code in ("UNKNOWN_FUNCTION", "UNAUTHENTICATED", "BAD_FRAME"):
        telling = Telling()
        telling.tell(Started())
        error = RejectedError(code, "no")
        assert telling.tell(LinkLost(error)) == [CutLink(), GiveUp(error)]


def test_patience_and_back_off() -> None:
    """Servers that refuse rest, longer each time; when patience is over the error tells the story."""
    telling = Telling(("grpc://a",), patience_s=10.0)
    telling.tell(Started())
    rests = []
    while True:
        cut, said = telling.tell(LinkLost(RetryableError("OVERLOADED", "full")))
        assert cut == CutLink()
        if isinstance(said, GiveUp):
            break
        assert isinstance(said, Rest)
        rests.append(said.until_s - telling.now_s)
        telling.now_s = said.until_s
        (again,) = telling.tell(Rested())
        assert isinstance(again, OpenLink)
    assert rests == pytest.approx([min(0.1 * 2**doublings, 5.0) for doublings in range(len(rests))])
    assert 4 < len(rests) < 12
    assert said.error.code == "OVERLOADED"
    assert "no server took the exchange within 10 s" in said.error.message
    assert said.error.story[0].startswith("0.0s refused by grpc://a: OVERLOADED")


def test_rows_that_kill_servers_do_not_kill_them_all() -> None:
    """What has killed losses_max servers in a row without one answer is given up."""
    telling = Telling(losses_max=3).begun()
    telling.tell(FrameGiven(CHUNK))
    losses = 0
    while True:
        losses += 1
        said = telling.tell(LinkLost(GONE))[-1]
        if isinstance(said, GiveUp):
            break
        while isinstance(said, Rest):
            telling.now_s = said.until_s
            (said,) = telling.tell(Rested())
        telling.tell(LinkOpened(opened()))
    assert losses == 4
    assert "4 servers were lost in a row without an answer" in said.error.message


def test_the_engines_own_mistakes_are_the_engines() -> None:
    """A frame that may not follow is refused before it is kept or sent."""
    telling = Telling().begun()
    telling.tell(FrameGiven(Barrier(4)), FrameSent())
    with pytest.raises(RejectedError, match="a skipping barrier"):
        telling.tell(FrameGiven(Barrier(9)))
    for frame in (Chunk(CHUNK.batch.select(["v"])), Forget(pa.array([-1], pa.int32()))):
        with pytest.raises(RejectedError):
            Telling().begun().tell(FrameGiven(frame))
