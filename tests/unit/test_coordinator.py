"""The coordinator: the instructions that follow from events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from foldflight.errors import CorruptError, FoldflightError, FunctionError, RejectedError, RetryableError
from foldflight.exchange.failover.coordinator import (
    AnswerReceived,
    AnswerRequested,
    AwaitAnswer,
    Circuits,
    ConnectionLost,
    Coordinator,
    CutConnection,
    Deliver,
    Event,
    ExchangeStarted,
    FailoverBounds,
    FrameSent,
    FrameSubmitted,
    GiveUp,
    Instruction,
    LeaveConnection,
    LogEvent,
    OpenConnection,
    SendFrame,
    ServerOpened,
    Sleep,
    TimerFired,
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
from foldflight.exchange.transitions import CheckpointAnswer
from foldflight.functions import Call, LogRecord

COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64())])
RESULTS = pa.schema([("slot", pa.int32()), ("state_0", pa.int64()), ("output_0", pa.int64())])
LIMITS = Limits(2**20, 100, 2**20, 2**20, 1, 1.0, 1.0)
CHUNK = Chunk(pa.RecordBatch.from_pydict({"slot": [0, 2], "v": [5, 6]}, schema=COLUMNS))
GONE = RetryableError("UNREACHABLE", "gone")
URLS = ("grpc://a", "grpc://b")


ASKING = Checkpoint(if_reopen=True)


def reply_of(name: str = "s", fingerprint: str = "f1", code: str = "") -> Opened:
    call = OpenedCall(
        fingerprint,
        can_retract=True,
        can_merge=False,
        is_invertible=True,
        input_types=(pa.int64(),),
        code_digest=code,
    )
    return Opened(name, 1, (call,), LIMITS, RESULTS)


def results(**slots: int) -> pa.Table:
    """Return results: slot_1=5 means state and output 5 of slot 1."""
    numbers = [int(name.removeprefix("slot_")) for name in slots]
    values = list(slots.values())
    return pa.Table.from_pydict({"slot": numbers, "state_0": values, "output_0": values}, schema=RESULTS)


class Shell:
    """A coordinator with a clock that moves only when a test moves it."""

    def __init__(self, urls: tuple[str, ...] = URLS, *, returns: Returns | None = None, **more: Any) -> None:
        request_options = {name: more.pop(name) for name in ("initial_outputs", "row_outputs") if name in more}
        open_request = Open((Call("sum", ("v",)),), COLUMNS, returns=returns or Returns(), **request_options)
        self.now_s = 100.0
        self.history: list[tuple[float, Event, list[Instruction]]] = []
        self.coordinator = Coordinator(
            open_request,
            urls,
            Circuits(lambda: 0.5),
            code_digests={"sum": more.pop("known", "")},
            strict=more.pop("strict", False),
            bounds=FailoverBounds(**more),
            now_s=lambda: self.now_s,
        )

    def report(self, *events: Event) -> list[Any]:
        """Report events, and return the instructions after the last event."""
        for event in events:
            instructions = self.coordinator.handle(event)
            self.history.append((self.now_s, event, instructions))
        return instructions

    def start(self, name: str = "s") -> Shell:
        self.report(STARTED, ServerOpened(reply_of(name)))
        return self


STARTED, REQUESTED, SENT, TIMER = ExchangeStarted(), AnswerRequested(), FrameSent(), TimerFired()


def test_an_exchange_without_trouble_sends_each_frame_once() -> None:
    """Frames are sent as they come, results are awaited when they are wanted, and there are no other instructions."""
    shell = Shell(("grpc://a",))
    (open_connection,) = shell.report(STARTED)
    assert isinstance(open_connection, OpenConnection)
    assert shell.report(ServerOpened(reply_of())) == []
    assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(CHUNK)]
    assert shell.report(SENT) == []
    assert shell.report(FrameSubmitted(Barrier(7))) == [SendFrame(Barrier(7))]
    assert shell.report(SENT) == []
    assert shell.report(REQUESTED) == [AwaitAnswer(Barrier(7))]
    log = LogRecord("info", "sum", "hello", {})
    answer = results(slot_0=5, slot_2=6)
    assert shell.report(AnswerReceived(answer, (log,))) == [Deliver(Barrier(7), answer, (log,))]


def test_a_frame_waits_for_earlier_answers() -> None:
    """A frame that is given while results are due is sent after they have arrived."""
    shell = Shell().start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT)
    assert shell.report(FrameSubmitted(CHUNK)) == [AwaitAnswer(Barrier(1))]
    deliver, send = shell.report(AnswerReceived(results(slot_0=5, slot_2=6)))
    assert isinstance(deliver, Deliver)
    assert send == SendFrame(CHUNK)


def test_another_server_gets_the_states_and_the_frames_since() -> None:
    """After a loss the states of the last barrier are sent first, one for each slot, then the later frames in order."""
    shell = Shell().start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_0=5, slot_2=6)))
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(2)), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_2=12)))
    shell.report(FrameSubmitted(Forget(pa.array([0], pa.int32()))), SENT, FrameSubmitted(CHUNK))
    cut, open_connection = shell.report(ConnectionLost(GONE))
    assert (cut, open_connection.url) == (CutConnection(), "grpc://b")
    (send,) = shell.report(ServerOpened(reply_of("t")))
    assert isinstance(send.frame, States)
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [5, 12]}
    (forget,) = shell.report(SENT)
    assert isinstance(forget.frame, Forget)
    assert shell.report(SENT) == [SendFrame(CHUNK)]
    (report,) = shell.report(SENT)
    assert isinstance(report, LogEvent)
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
    """Loaded states make their slots dirty on the new server, but the engine gets only the slots that it changed."""
    shell = Shell().start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_0=5, slot_2=6, slot_7=1)))
    one = Chunk(CHUNK.batch.slice(1))
    shell.report(
        FrameSubmitted(one), SENT, FrameSubmitted(Barrier(2)), ConnectionLost(GONE), ServerOpened(reply_of("t"))
    )
    shell.report(SENT, SENT, SENT, REQUESTED)
    (deliver, *_) = shell.report(AnswerReceived(results(slot_0=5, slot_2=12, slot_7=1)))
    assert deliver.answer.to_pydict() == results(slot_2=12).to_pydict()


def test_answers_come_once() -> None:
    """An answer that the engine already has is dropped when another server sends it."""
    shell = Shell(row_outputs=True).start()
    shell.report(FrameSubmitted(CHUNK), SENT, REQUESTED)
    first = results(slot_0=5, slot_1=6)
    assert shell.report(AnswerReceived(first)) == [Deliver(CHUNK, first, ())]
    shell.report(FrameSubmitted(CHUNK), ConnectionLost(GONE), ServerOpened(reply_of("t")))
    assert shell.report(SENT) == [AwaitAnswer(CHUNK)]
    assert shell.report(AnswerReceived(results(slot_0=99, slot_1=99))) == [SendFrame(CHUNK)]
    shell.report(SENT)
    assert shell.report(REQUESTED) == [AwaitAnswer(CHUNK)]
    second = results(slot_0=10, slot_1=12)
    assert Deliver(CHUNK, second, ()) in shell.report(AnswerReceived(second))


def test_a_server_that_asks_is_left_at_the_barrier() -> None:
    """After its last results the connection is ended in the regular way; the next frame opens another exchange."""
    shell = Shell().start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    deliver, leave = shell.report(AnswerReceived(results(slot_0=5, slot_2=6), reopen=True))
    assert isinstance(deliver, Deliver)
    assert leave == LeaveConnection()
    (open_connection,) = shell.report(FrameSubmitted(CHUNK))
    assert isinstance(open_connection, OpenConnection)
    assert shell.coordinator.stats.losses == 0


def test_a_server_that_drains_is_left_within_an_epoch() -> None:
    """After an interval the server is asked; if it drains it returns its states, and no row is sent twice."""
    shell = Shell().start()
    assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(CHUNK)]
    shell.report(SENT)
    shell.now_s += 1.0
    assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(ASKING)]
    assert shell.report(SENT) == [AwaitAnswer(ASKING)]
    leave, open_connection = shell.report(AnswerReceived(CheckpointAnswer(results(slot_0=5, slot_2=6)), reopen=True))
    assert leave == LeaveConnection()
    assert open_connection.url == "grpc://b"
    (send,) = shell.report(ServerOpened(reply_of("t")))
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [5, 6]}
    assert shell.report(SENT) == [SendFrame(CHUNK)]
    assert shell.report(SENT) == []
    shell.report(FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    answer = results(slot_0=10, slot_2=12)
    assert shell.report(AnswerReceived(answer))[0].answer.to_pydict() == answer.to_pydict()
    stats = shell.coordinator.stats
    assert (stats.losses, stats.rows_refolded, stats.replays) == (0, 0, 1)


def test_a_server_that_does_not_drain_is_asked_now_and_then() -> None:
    """A server that does not drain returns no states; it is asked again after the interval."""
    shell = Shell().start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    for _ in range(3):
        shell.now_s += 0.9
        assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(CHUNK)]
        shell.report(SENT)
        shell.now_s += 0.9
        assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(ASKING)]
        shell.report(SENT)
        assert shell.report(AnswerReceived(CheckpointAnswer(results()))) == [SendFrame(CHUNK)]
        shell.report(SENT)
    assert shell.coordinator.stats.checkpoints == 0
    _, open_connection = shell.report(FrameSubmitted(CHUNK), ConnectionLost(GONE))
    assert isinstance(open_connection, OpenConnection)
    instructions = shell.report(ServerOpened(reply_of("t")))
    while instructions and isinstance(instructions[0], SendFrame):
        assert instructions[0].frame is CHUNK
        instructions = shell.report(SENT)
    assert shell.coordinator.stats.rows_refolded == 7 * CHUNK.batch.num_rows


def test_results_may_say_that_a_server_drains() -> None:
    """If barriers are frequent, the server is not asked: the results tell."""
    shell = Shell().start()
    for epoch in range(1, 4):
        shell.now_s += 0.6
        assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(CHUNK)]
        shell.report(SENT, FrameSubmitted(Barrier(epoch)), SENT, REQUESTED)
        shell.report(AnswerReceived(results(slot_0=5, slot_2=6)))


def test_an_answered_question_needs_no_memory() -> None:
    """A question whether to reopen counts as held while it is due, and no longer when it is answered."""
    shell = Shell(returns=Returns(states=False, outputs=True)).start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    chunk_bytes = shell.coordinator.retained_bytes
    shell.now_s += 1.0
    shell.report(FrameSubmitted(CHUNK), SENT, SENT)
    assert shell.coordinator.retained_bytes > 2 * chunk_bytes
    assert shell.report(AnswerReceived(CheckpointAnswer(results()))) == []
    assert shell.coordinator.retained_bytes == 2 * chunk_bytes


def test_a_question_is_not_asked_of_the_next_server() -> None:
    """A question without an answer is not sent to the next server."""
    shell = Shell().start()
    shell.now_s += 1.0
    assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(ASKING)]
    shell.report(SENT)
    shell.report(ConnectionLost(GONE))
    assert shell.report(ServerOpened(reply_of("t"))) == [SendFrame(CHUNK)]
    (report,) = shell.report(SENT)
    assert isinstance(report, LogEvent)


def test_a_server_that_cannot_give_its_states_is_kept_until_its_barrier() -> None:
    """States that cannot be serialized stay on the server, but their rows are kept, so that a loss can be repaired."""
    shell = Shell(returns=Returns(states=False, outputs=True)).start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    shell.now_s += 1.0
    shell.report(FrameSubmitted(CHUNK), SENT)
    assert shell.report(AnswerReceived(CheckpointAnswer(results(), "LIMIT: too large"), reopen=True)) == [
        SendFrame(CHUNK)
    ]
    shell.report(SENT)
    shell.now_s += 1.0
    assert shell.report(FrameSubmitted(CHUNK)) == [SendFrame(CHUNK)]
    _, open_connection = shell.report(ConnectionLost(GONE))
    assert isinstance(open_connection, OpenConnection)


def test_a_checkpoint_may_say_that_a_server_drains() -> None:
    """A draining server is left after a checkpoint that a bound has caused."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=10).start()
    shell.report(FrameSubmitted(CHUNK), SENT, SENT, FrameSubmitted(CHUNK))
    leave, open_connection = shell.report(AnswerReceived(CheckpointAnswer(results(slot_0=5, slot_2=6)), reopen=True))
    assert leave == LeaveConnection()
    assert isinstance(open_connection, OpenConnection)


def test_forgetting_all_leaves_nothing_to_move() -> None:
    """When all slots are forgotten nothing is kept, and no other server is opened for it."""
    shell = Shell(returns=Returns(states=False, outputs=True)).start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_0=5, slot_2=6), reopen=True))
    assert shell.coordinator.retained_bytes > 0
    assert shell.report(FrameSubmitted(Forget(pa.array([0, 2], pa.int32())))) == []
    assert shell.coordinator.retained_bytes == 0


def test_past_the_bound_a_checkpoint_is_asked_for() -> None:
    """When frames exceed replay_bytes_max, a checkpoint is sent, and its states replace them."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=4_000).start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    shell.report(FrameSubmitted(CHUNK))
    assert shell.report(SENT) == [SendFrame(Checkpoint())]
    assert shell.report(SENT) == []
    assert shell.report(FrameSubmitted(CHUNK)) == [AwaitAnswer(Checkpoint())]
    shell.report(AnswerReceived(CheckpointAnswer(results(slot_0=10, slot_2=12))))
    assert shell.report(SENT) == []
    (_, open_connection) = shell.report(FrameSubmitted(Barrier(1)), ConnectionLost(GONE))
    assert isinstance(open_connection, OpenConnection)
    (send,) = shell.report(ServerOpened(reply_of("t")))
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [10, 12]}
    assert shell.report(SENT) == [SendFrame(CHUNK)]
    assert shell.report(SENT) == [SendFrame(Barrier(1))]


def test_many_epochs_without_rows_do_not_fill_the_memory() -> None:
    """Barriers without states are kept, too, so a checkpoint replaces them when they are many."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=10_000).start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    most = checkpoints = 0
    for epoch in range(1, 101):
        instructions = shell.report(FrameSubmitted(Barrier(epoch)), REQUESTED)
        while instructions and not isinstance(instructions[0], Deliver):
            if isinstance(instructions[-1], SendFrame):
                instructions = shell.report(SENT)
            elif instructions == [AwaitAnswer(Checkpoint())]:
                checkpoints += 1
                instructions = shell.report(AnswerReceived(CheckpointAnswer(results(slot_0=5, slot_2=6))))
            else:
                instructions = shell.report(AnswerReceived(results(slot_0=5, slot_2=6) if epoch == 1 else results()))
        if len(instructions) > 1:
            shell.report(SENT)
        most = max(most, shell.coordinator.retained_bytes)
    assert checkpoints == shell.coordinator.stats.checkpoints == 5
    assert most < 20_000


@pytest.mark.parametrize("rows", [0, 1])
def test_many_small_chunks_do_not_fill_the_memory(rows: int) -> None:
    """A chunk needs memory besides its data, so a checkpoint replaces them long before their data reach the bound."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=100_000).start()
    small = Chunk(CHUNK.batch.slice(0, rows))
    shell.report(FrameSubmitted(CHUNK), SENT)
    chunk_count = 0
    instructions: list[Any] = []
    while instructions == [] and chunk_count < 100:
        assert shell.report(FrameSubmitted(small)) == [SendFrame(small)]
        instructions, chunk_count = shell.report(SENT), chunk_count + 1
    assert instructions == [SendFrame(Checkpoint())]
    assert 20 < chunk_count < 60


@pytest.mark.parametrize(
    ("bounds", "answer", "why"),
    [
        ({}, CheckpointAnswer(results(), "LIMIT: too large"), "the server could not save its states: LIMIT"),
        ({"kept_bytes_max": 10}, CheckpointAnswer(results(slot_0=10, slot_2=12)), "and the client keeps at most 10"),
    ],
)
def test_frames_that_cannot_be_replayed_are_not_kept_for_ever(
    bounds: dict[str, int], answer: CheckpointAnswer, why: str
) -> None:
    """If states cannot be kept the exchange continues with bounded memory, and the error of a loss has the reason."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=10, **bounds).start()
    shell.report(FrameSubmitted(CHUNK), SENT, SENT, FrameSubmitted(CHUNK), AnswerReceived(answer), SENT)
    for _ in range(10):
        shell.report(FrameSubmitted(CHUNK), SENT)
        assert shell.coordinator.retained_bytes == 0
    cut, give_up = shell.report(FrameSubmitted(CHUNK), ConnectionLost(GONE))
    assert cut == CutConnection()
    assert isinstance(give_up.error, RetryableError)
    assert why in give_up.error.message


def test_older_states_do_not_turn_failover_off() -> None:
    """Of a few states that change in each epoch the newest are kept, though all their versions exceed the bound."""
    shell = Shell(kept_bytes_max=200).start()
    for epoch in range(1, 101):
        shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(epoch)), SENT, REQUESTED)
        shell.report(AnswerReceived(results(slot_0=epoch, slot_2=2 * epoch)))
        assert shell.coordinator.retained_bytes <= 200
    shell.report(FrameSubmitted(CHUNK))
    _, open_connection = shell.report(ConnectionLost(GONE))
    assert isinstance(open_connection, OpenConnection)
    (send,) = shell.report(ServerOpened(reply_of("t")))
    assert send.frame.batch.to_pydict() == {"slot": [0, 2], "state_0": [100, 200]}


def test_bare_exchanges_recover_when_all_is_forgotten() -> None:
    """An exchange that could not move can move again when all slots are forgotten."""
    shell = Shell(returns=Returns(states=False, outputs=True), replay_bytes_max=10).start()
    shell.report(FrameSubmitted(CHUNK), SENT, SENT, FrameSubmitted(Barrier(1)))
    shell.report(AnswerReceived(CheckpointAnswer(results(), "LIMIT: too large")), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_0=1, slot_2=2)))
    shell.report(FrameSubmitted(Forget(pa.array([0, 2], pa.int32()))), SENT, FrameSubmitted(CHUNK))
    _, open_connection = shell.report(ConnectionLost(GONE))
    assert isinstance(open_connection, OpenConnection)


@pytest.mark.parametrize(
    "error",
    [
        FunctionError("USER_CODE", "boom"),
        RejectedError("LIMIT", "too much"),
        RejectedError("STATE_MISMATCH", "what the engine gave is foreign"),
        CorruptError("STATE_CHECKSUM", "damaged"),
    ],
)
def test_errors_of_the_job_are_raised(error: FoldflightError) -> None:
    """Errors of the job are raised without trying another server."""
    shell = Shell().start()
    assert shell.report(FrameSubmitted(CHUNK), ConnectionLost(error)) == [CutConnection(), GiveUp(error)]


@pytest.mark.parametrize(
    "error",
    [
        *[RetryableError(code, "no") for code in sorted(RetryableError.codes)],
        RejectedError("BAD_FRAME", "damaged in transit"),
    ],
    ids=lambda error: error.code,
)
def test_errors_of_a_server_are_not_raised(error: FoldflightError) -> None:
    """A server that is lost, hangs, drains, is full or sends damaged frames is replaced."""
    shell = Shell().start()
    cut, open_connection = shell.report(FrameSubmitted(CHUNK), ConnectionLost(error))
    assert (cut, type(open_connection)) == (CutConnection(), OpenConnection)


def test_a_server_unlike_the_first_is_passed_over() -> None:
    """A server with other fingerprints, or that refuses to open, is skipped."""
    shell = Shell(("grpc://a", "grpc://b", "grpc://c")).start()
    (_, second) = shell.report(FrameSubmitted(CHUNK), ConnectionLost(GONE))
    assert [call.fingerprint for call in second.open_request.calls] == ["f1"]
    (_, third) = shell.report(ServerOpened(reply_of("t", "f2")))
    assert third.url == "grpc://c"
    (_, rest) = shell.report(ConnectionLost(RejectedError("UNKNOWN_FUNCTION", "never heard of it")))
    assert isinstance(rest, Sleep)


def test_the_first_refusal_is_the_jobs() -> None:
    """A refusal by the first server is raised, because no server has accepted the exchange."""
    for code in ("UNKNOWN_FUNCTION", "UNAUTHENTICATED", "BAD_FRAME"):
        shell = Shell()
        shell.report(STARTED)
        error = RejectedError(code, "no")
        assert shell.report(ConnectionLost(error)) == [CutConnection(), GiveUp(error)]


def test_servers_that_refuse_are_avoided_longer_each_time() -> None:
    """Servers that refuse are avoided, longer each time; after patience_s the error has the story."""
    shell = Shell(("grpc://a",), patience_s=10.0)
    shell.report(STARTED)
    started_s = shell.now_s
    rests = []
    while True:
        cut, instructions = shell.report(ConnectionLost(RetryableError("OVERLOADED", "full")))
        assert cut == CutConnection()
        if isinstance(instructions, GiveUp):
            break
        assert isinstance(instructions, Sleep)
        began_s = shell.now_s
        while isinstance(instructions, Sleep):  # one rest is interrupted, to tell about the wait
            shell.now_s = instructions.until_s
            instructions = shell.report(TIMER)[-1]
        rests.append(shell.now_s - began_s)
        assert isinstance(instructions, OpenConnection)
    assert rests == pytest.approx([min(0.1 * 2**doublings, 5.0) for doublings in range(len(rests))])
    assert 4 < len(rests) < 12
    assert instructions.error.code == "OVERLOADED"
    assert "no server took the exchange within 10 s" in instructions.error.message
    (step,) = instructions.error.story  # equal steps are one
    until = f"{len(rests) + 1} times until {shell.now_s - started_s:.1f}s"
    assert step == f"0.0s refused by grpc://a: OVERLOADED: full ({until})"


def test_the_story_keeps_the_newest_steps() -> None:
    """Equal steps are counted where the first of them was; beyond the bound, the oldest step is left out."""
    shell = Shell(("grpc://a",), patience_s=1000.0)
    shell.report(STARTED)
    for number in (0, 1, *range(35)):
        instructions = shell.report(ConnectionLost(RetryableError("OVERLOADED", f"full {number}")))
        while isinstance(instructions[-1], Sleep):
            shell.now_s = instructions[-1].until_s
            instructions = shell.report(TIMER)
    story = shell.coordinator.story()
    assert len(story) == 30
    assert [step.partition("full ")[2] for step in story] == [str(number) for number in range(5, 35)]


def test_an_exchange_stays_on_its_code() -> None:
    """A server with other code does not take over; one that does not tell its code does."""
    shell = Shell(("grpc://a", "grpc://b"), patience_s=0.0)
    shell.report(STARTED, ServerOpened(reply_of("one", code="1")), FrameSubmitted(CHUNK), SENT)
    shell.report(ConnectionLost(RetryableError("UNREACHABLE", "gone")))
    instructions = shell.report(ServerOpened(reply_of("two", code="2")))
    assert isinstance(instructions[-1], GiveUp)
    assert isinstance(instructions[-1].error, RetryableError)
    assert "server two has other code of sum than one, on which the exchange began" in instructions[-1].error.message
    shell = Shell(("grpc://a", "grpc://b"))
    shell.report(STARTED, ServerOpened(reply_of("one", code="1")), FrameSubmitted(CHUNK), SENT)
    shell.report(ConnectionLost(RetryableError("UNREACHABLE", "gone")))
    assert isinstance(shell.report(ServerOpened(reply_of("two", code="")))[-1], SendFrame)


def test_waiting_for_the_old_code_ends() -> None:
    """After nine servers with other code in a row the exchange ends, so that the task is repeated with the new code."""
    shell = Shell(("grpc://a",), losses_max=8, patience_s=1e9)
    shell.report(STARTED, ServerOpened(reply_of("one", code="1")), FrameSubmitted(CHUNK), SENT)
    instructions = shell.report(ConnectionLost(RetryableError("UNREACHABLE", "gone")))
    refusals = 0
    while not isinstance(instructions[-1], GiveUp):
        if isinstance(instructions[-1], Sleep):
            shell.now_s = instructions[-1].until_s
            instructions = shell.report(TIMER)
        else:
            refusals += 1
            instructions = shell.report(ServerOpened(reply_of("two", code="2")))
    assert refusals == 9
    assert "9 answers in a row were of servers with other code" in instructions[-1].error.message


def test_a_server_with_other_code_is_told_of() -> None:
    """A new exchange uses a server with other code than the client has seen, with a warning."""
    shell = Shell(known="1")
    log_event, *_ = shell.report(STARTED, ServerOpened(reply_of("two", code="2")))
    assert isinstance(log_event, LogEvent)
    assert log_event.once
    assert log_event.fields["functions"] == "sum"
    assert (log_event.fields["server_id"], log_event.fields["code_digests"], log_event.fields["expected"]) == (
        "two",
        "2",
        "1",
    )
    assert Shell(known="1").report(STARTED, ServerOpened(reply_of("one", code="1"))) == []
    assert Shell(known="1").report(STARTED, ServerOpened(reply_of("old"))) == []


def test_strict_refuses_other_code() -> None:
    """With `strict` the next server is tried, and without another one the error says what differs."""
    shell = Shell(("grpc://a", "grpc://b"), known="1", strict=True, patience_s=0.0)
    instructions = shell.report(STARTED, ServerOpened(reply_of("two", code="2")))
    assert isinstance(instructions[-1], OpenConnection)
    assert isinstance(shell.report(ServerOpened(reply_of("one", code="1")))[-1], LogEvent)  # it goes on
    shell = Shell(("grpc://a",), known="1", strict=True, patience_s=0.0)
    instructions = shell.report(STARTED, ServerOpened(reply_of("two", code="2")))
    assert isinstance(instructions[-1], GiveUp)
    assert "other code of sum than the client has seen" in instructions[-1].error.message


def test_the_error_names_each_server() -> None:
    """An error without a server has the problem of each server that was tried, and each remedy once."""
    shell = Shell(("grpc://a", "grpc://b"), patience_s=0.0)
    shell.report(STARTED)
    instructions = shell.report(ConnectionLost(RetryableError("UNREACHABLE", "grpc://a was lost; start it")))
    assert isinstance(instructions[-1], OpenConnection)
    instructions = shell.report(ConnectionLost(RetryableError("OVERLOADED", "it is full; wait")))
    assert isinstance(instructions[-1], GiveUp)
    assert instructions[-1].error.message == (
        "grpc://a was lost; start it; grpc://b: it is full; no server took the exchange within 0 s"
    )


def waited_until(shell: Shell, end_s: float) -> list[LogEvent]:
    """Let the only server be away until this time, and return the events that are logged meanwhile."""
    log_events: list[LogEvent] = []
    instructions = shell.report(ConnectionLost(GONE))
    while shell.now_s < end_s:
        log_events += [each for each in instructions if isinstance(each, LogEvent)]
        if isinstance(instructions[-1], Sleep):
            shell.now_s = instructions[-1].until_s
            instructions = shell.report(TIMER)
        else:
            instructions = shell.report(ConnectionLost(GONE))
    if isinstance(instructions[-1], Sleep):
        shell.now_s = instructions[-1].until_s
        instructions = shell.report(TIMER)
    assert isinstance(instructions[-1], OpenConnection)
    return log_events


def test_a_wait_for_servers_is_told_once() -> None:
    """After three seconds without a server, one event names the servers, the time left and the option; again later."""
    shell = Shell(("grpc://a",), patience_s=60.0, losses_max=99).start()
    shell.report(FrameSubmitted(CHUNK), SENT)
    (log_event,) = waited_until(shell, 130.0)
    assert log_event.event == "an exchange waits for a server"
    assert log_event.fields == {
        "servers": "grpc://a",
        "left_s": 57.0,
        "patience_s": 60.0,
        "code": "UNREACHABLE",
        "problem": "gone",
    }
    shell.report(ServerOpened(reply_of()), SENT)
    assert [each.fields["left_s"] for each in waited_until(shell, shell.now_s + 20)] == [57.0]
    shell.report(ServerOpened(reply_of()), SENT)
    assert waited_until(shell, shell.now_s + 1) == []


def test_rows_that_kill_servers_do_not_kill_them_all() -> None:
    """After losses_max consecutive losses without an answer the exchange ends."""
    shell = Shell(losses_max=3).start()
    shell.report(FrameSubmitted(CHUNK))
    losses = 0
    while True:
        losses += 1
        instructions = shell.report(ConnectionLost(GONE))[-1]
        if isinstance(instructions, GiveUp):
            break
        while isinstance(instructions, Sleep):
            shell.now_s = instructions.until_s
            (instructions,) = shell.report(TIMER)
        shell.report(ServerOpened(reply_of()))
    assert losses == 4
    assert "4 servers were lost in a row without an answer" in instructions.error.message


def test_the_engines_own_mistakes_are_the_engines() -> None:
    """An invalid frame of the engine is refused before it is kept or sent."""
    shell = Shell().start()
    shell.report(FrameSubmitted(Barrier(4)), SENT)
    with pytest.raises(RejectedError, match="a skipping barrier"):
        shell.report(FrameSubmitted(Barrier(9)))
    for frame in (Chunk(CHUNK.batch.select(["v"])), Forget(pa.array([-1], pa.int32()))):
        with pytest.raises(RejectedError):
            Shell().start().report(FrameSubmitted(frame))


def test_equal_events_give_equal_instructions() -> None:
    """A recorded run, with losses, a server with other code and a wait, is replayed by a new coordinator."""
    shell = Shell(known="c1").start()
    shell.report(FrameSubmitted(CHUNK), SENT, FrameSubmitted(Barrier(1)), SENT, REQUESTED)
    shell.report(AnswerReceived(results(slot_0=5, slot_2=6)), FrameSubmitted(CHUNK), SENT, ConnectionLost(GONE))
    shell.now_s += 1.5
    shell.report(ServerOpened(reply_of("t", code="c2")), ConnectionLost(GONE), ConnectionLost(GONE))
    shell.now_s += 8.0
    shell.report(TIMER, ServerOpened(reply_of("u")), SENT, SENT, FrameSubmitted(Barrier(2)), SENT, REQUESTED)
    kinds = {type(instruction) for _, _, instructions in shell.history for instruction in instructions}
    assert {CutConnection, OpenConnection, SendFrame, Sleep, AwaitAnswer, Deliver} <= kinds
    again = Shell(known="c1")
    for now_s, event, instructions in shell.history:
        again.now_s = now_s
        assert again.coordinator.handle(event) == instructions
    assert again.coordinator.story() == shell.coordinator.story()
