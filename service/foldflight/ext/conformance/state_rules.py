"""Rules for states: loading, merging, refusals, checkpoints and initial outputs."""

from __future__ import annotations

import pyarrow as pa

from foldflight.exchange import exchange_pb2 as pb
from foldflight.ext.conformance.raw import (
    COLUMNS,
    NotTriedError,
    RawExchange,
    RawServer,
    expect,
    expect_refusal,
    rows_of,
    rule,
)
from foldflight.functions.types.arrow import with_column


def _saved_by(server: RawServer, rows: list[tuple[object, ...]]) -> tuple[RawExchange, pa.Table]:
    """Fold rows in a new exchange, and end it. Return it and its results, which include the states."""
    with server.exchange() as exchange:
        return exchange, exchange.epoch(1, rows)


@rule(
    "states-load",
    "States can be loaded into empty slots of another exchange. The slots are in the next results, and outputs are as "
    "if all rows had been sent to one exchange. A NULL state is ignored.",
    "Store the whole accumulator in its state.",
)
def _states_load(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7)])
    batch = before.state_batch(results, [4, 2])
    empty = with_column(batch, batch.schema.field(1), pa.nulls(2, batch.schema.field(1).type))
    with server.exchange() as exchange:
        exchange.states(batch)
        epoch = exchange.epoch(1)
        expect(epoch["slot"].to_pylist(), [2, 4], "the slots of loaded states")
        expect(epoch["output_0"].to_pylist(), [server.output([(0, 0, 7)]), server.output([(0, 0, 5)])], "their outputs")
        more = exchange.epoch(2, [(4, 0, 9)])["output_0"].to_pylist()
        expect(more, [server.output([(0, 0, 5), (0, 0, 9)])], "the output after one more row")
    with server.exchange() as exchange:
        exchange.states(empty)
        epoch = exchange.epoch(1, [(2, 0, 1)])
        expect(epoch["slot"].to_pylist(), [2, 4], "the slots of NULL states")
        expect(epoch["output_0"].to_pylist()[0], server.output([(0, 0, 1)]), "the output over a NULL state")


@rule(
    "states-merge",
    "States for a slot that is not empty are merged, also several for one slot in one frame. If a call cannot merge, "
    "they are refused with RejectedError CANNOT_MERGE.",
    "Load the state into an empty slot, and merge it into any other.",
)
def _states_merge(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7), (2, 0, 7)])
    batch = before.state_batch(results, [3, 3, 3])
    with server.exchange() as exchange:
        if not exchange.opened.calls[0].can_merge:
            exchange.states(batch)
            with expect_refusal("RejectedError", "CANNOT_MERGE"):
                exchange.epoch(1)
            return
        exchange.chunk([(3, 0, 9)])
        exchange.states(batch)
        outputs = exchange.epoch(1)["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 9), (0, 0, 5), (0, 0, 7), (0, 0, 7)])], "the output of merged states")


@rule(
    "state-mismatch",
    "A state column is refused with STATE_MISMATCH if its type differs, or if its metadata have the same version and "
    "another fingerprint. A column without metadata is accepted.",
    "Compare type and metadata before states are decoded.",
)
def _state_mismatch(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5)])
    batch = before.state_batch(results)
    field = batch.schema.field(1)
    about = {**(field.metadata or {}), b"fingerprint": b"0123456789abcdef"}
    others = (
        with_column(batch, field.with_metadata(about), batch.column(1)),
        with_column(batch, pa.field("state_0", pa.list_(pa.bool_())), pa.array([[True]])),
    )
    for other in others:
        with expect_refusal("RejectedError", "STATE_MISMATCH"), server.exchange() as exchange:
            exchange.states(other)
            exchange.epoch(1)
    with server.exchange() as exchange:
        exchange.states(with_column(batch, field.remove_metadata(), batch.column(1)))
        expect(exchange.epoch(1)["output_0"].to_pylist(), [server.output([(0, 0, 5)])], "the output without metadata")


@rule(
    "bad-states",
    "States that are not an Arrow IPC stream are refused with BAD_FRAME, and states without `slot` or without a column "
    "for each call with SCHEMA_MISMATCH.",
    "Catch the errors of reading the stream, and find the columns by name.",
)
def _bad_states(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5)])
    batch = before.state_batch(results)
    for wrong in (batch.select(["slot"]), batch.select(["state_0"])):
        with expect_refusal("RejectedError", "SCHEMA_MISMATCH"), server.exchange() as exchange:
            exchange.states(wrong)
            exchange.epoch(1)
    with expect_refusal("RejectedError", "BAD_FRAME"), server.exchange() as exchange:
        exchange.send(pb.EngineFrame(states=pb.States(batch=b"no stream")))
        exchange.epoch(1)


@rule(
    "initial-outputs",
    "With Open.initial_outputs each States frame is answered with one InitialOutputs: its slots in the same order, "
    "NULL states, and the outputs. States without rows are answered for slot 0. States with `unanswered` have no "
    "answer.",
    "Answer before the next frame is handled, without changing accumulators.",
)
def _initial_outputs(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7)])
    batch = before.state_batch(results, [6, 0])
    with server.exchange(initial_outputs=True) as exchange:
        exchange.states(batch)
        answer = exchange.answer("initial_outputs")
        expect(answer["slot"].to_pylist(), [6, 0], "the slots of the answer")
        expect(answer["state_0"].null_count, 2, "the NULL states of the answer")
        expected = [server.output([(0, 0, 5)]), server.output([(0, 0, 7)])]
        expect(answer["output_0"].to_pylist(), expected, "the outputs of the answer")
        exchange.states(batch.slice(0, 0))
        nothing = exchange.answer("initial_outputs")
        expect(nothing["slot"].to_pylist(), [0], "the slots that answer States without rows")
        exchange.states(
            with_column(batch.slice(0, 1), batch.schema.field(0), pa.array([8], pa.int32())), unanswered=True
        )
        expect(exchange.epoch(1)["slot"].to_pylist(), [0, 6, 8], "the slots of the barrier")


@rule(
    "checkpoint",
    "Checkpoint is answered with SavedStates: the states changed since states were last returned, with ascending slots "
    "and NULL outputs. It does not change what the next barrier returns.",
    "Keep two marks for each slot: changed since the last results, and changed since its state was last returned.",
)
def _checkpoint(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(5, 0, 5), (2, 0, 7)])
        exchange.checkpoint()
        saved_states = exchange.saved()
        expect(saved_states["slot"].to_pylist(), [2, 5], "the slots of the checkpoint")
        expect(saved_states["output_0"].null_count, 2, "the NULL outputs of the checkpoint")
        exchange.chunk([(2, 0, 9)])
        exchange.checkpoint()
        expect(exchange.saved()["slot"].to_pylist(), [2], "the slots of a second checkpoint")
        expect(exchange.epoch(2)["slot"].to_pylist(), [2, 5], "the slots of the barrier after checkpoints")
    with server.exchange() as exchange:
        exchange.states(exchange.state_batch(saved_states))
        outputs = exchange.epoch(1)["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 7)]), server.output([(0, 0, 5)])], "the outputs of saved states")


@rule(
    "checkpoint-without-states",
    "Checkpoint returns states even if Open does not request states at barriers: those of all slots changed since the "
    "last checkpoint, regardless of barriers between.",
    "Do not reset the marks for checkpoints at a barrier that returns no states.",
)
def _checkpoint_without_states(server: RawServer) -> None:
    with server.exchange(return_states=False) as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(1, 0, 1)])
        exchange.checkpoint()
        saved_states = exchange.saved()
        expect(saved_states["slot"].to_pylist(), [0, 1], "the slots of the checkpoint")
        expect(saved_states["state_0"].null_count, 0, "the NULL states of the checkpoint")


@rule(
    "checkpoint-if-reopen",
    "If the exchange may stay on the server, a Checkpoint with if_reopen is answered with an empty SavedStates, and no "
    "state counts as returned.",
    "Check first whether the server drains or the exchange is too old.",
)
def _checkpoint_if_reopen(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.chunk([(3, 0, 1)])
        exchange.send(pb.EngineFrame(checkpoint=pb.Checkpoint(if_reopen=True)))
        expect(exchange.saved().num_rows, 0, "the number of saved states while the exchange may stay")
        exchange.checkpoint()
        expect(exchange.saved()["slot"].to_pylist(), [3], "the slots of the checkpoint after that")


@rule(
    "retract-from-states",
    "Rows that were folded before a state was stored can be retracted after it was loaded.",
    "Store what retract needs in the state.",
)
def _retract_from_states(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (0, 0, 7)])
    if not before.opened.calls[0].can_retract:
        raise NotTriedError("the function does not retract")
    with server.exchange() as exchange:
        exchange.states(before.state_batch(results))
        exchange.send(pb.EngineFrame(chunk=pb.Chunk()), rows_of([(0, 3, 5)], COLUMNS))
        outputs = exchange.epoch(1)["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 7)])], "the output")
