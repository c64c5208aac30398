"""Rules of states: loading, merging, refusing, checkpoints, and the outputs that answer them."""

from __future__ import annotations

import pyarrow as pa

from foldflight.exchange import exchange_pb2 as pb
from foldflight.testing.conformance.checks import rule
from foldflight.testing.conformance.raw import COLUMNS, RawExchange, RawServer, refused, rows_of
from foldflight.testing.conformance.rules import NotTriedError, expect

__all__: list[str] = []


def _saved_by(server: RawServer, rows: list[tuple[object, ...]]) -> tuple[RawExchange, pa.Table]:
    """Return an exchange that is over, and the results of these rows."""
    with server.exchange() as exchange:
        return exchange, exchange.epoch(1, rows)


@rule(
    "states-load",
    "States load into empty slots of another exchange: the slots are dirty, and outputs and further rows are as if the "
    "fold had never stopped. NULL is no state.",
    "Keep all of an accumulator in its state.",
)
def _states_load(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7)])
    batch = before.state_batch(results, [4, 2])
    empty = batch.set_column(1, batch.schema.field(1), pa.nulls(2, batch.schema.field(1).type))
    with server.exchange() as exchange:
        exchange.states(batch)
        found = exchange.epoch(1)
        expect(found["slot"].to_pylist(), [2, 4], "the slots of loaded states")
        expect(found["output_0"].to_pylist(), [server.output([(0, 0, 7)]), server.output([(0, 0, 5)])], "their outputs")
        more = exchange.epoch(2, [(4, 0, 9)])["output_0"].to_pylist()
        expect(more, [server.output([(0, 0, 5), (0, 0, 9)])], "the output after one more row")
    with server.exchange() as exchange:
        exchange.states(empty)
        found = exchange.epoch(1, [(2, 0, 1)])
        expect(found["slot"].to_pylist(), [2, 4], "the slots of NULL states")
        expect(found["output_0"].to_pylist()[0], server.output([(0, 0, 1)]), "the output over a NULL state")


@rule(
    "states-merge",
    "States for a slot that is not empty merge into it, in any number and also within one frame; where a call cannot "
    "merge, that is RejectedError CANNOT_MERGE.",
    "Load into an empty slot, merge into any other.",
)
def _states_merge(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7), (2, 0, 7)])
    batch = before.state_batch(results, [3, 3, 3])
    with server.exchange() as exchange:
        if not exchange.opened.calls[0].can_merge:
            exchange.states(batch)
            with refused("RejectedError", "CANNOT_MERGE"):
                exchange.epoch(1)
            return
        exchange.chunk([(3, 0, 9)])
        exchange.states(batch)
        found = exchange.epoch(1)["output_0"].to_pylist()
    expect(found, [server.output([(0, 0, 9), (0, 0, 5), (0, 0, 7), (0, 0, 7)])], "the output of merged states")


@rule(
    "state-mismatch",
    "A state column whose metadata name another fingerprint, with the same version, or whose type differs, is refused "
    "with STATE_MISMATCH; metadata that are absent name nothing.",
    "Compare before a byte of the state is decoded.",
)
def _state_mismatch(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5)])
    batch = before.state_batch(results)
    field = batch.schema.field(1)
    about = {**(field.metadata or {}), b"fingerprint": b"0123456789abcdef"}
    others = (
        batch.set_column(1, field.with_metadata(about), batch.column(1)),
        batch.set_column(1, pa.field("state_0", pa.list_(pa.bool_())), pa.array([[True]])),
    )
    for other in others:
        with refused("RejectedError", "STATE_MISMATCH"), server.exchange() as exchange:
            exchange.states(other)
            exchange.epoch(1)
    with server.exchange() as exchange:
        exchange.states(batch.set_column(1, field.remove_metadata(), batch.column(1)))
        expect(exchange.epoch(1)["output_0"].to_pylist(), [server.output([(0, 0, 5)])], "the output without metadata")


@rule(
    "bad-states",
    "States that are no Arrow IPC stream are BAD_FRAME; states without `slot` or without a column for each call are "
    "SCHEMA_MISMATCH.",
    "Read the stream behind a guard, and look for columns by name.",
)
def _bad_states(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5)])
    batch = before.state_batch(results)
    for wrong in (batch.select(["slot"]), batch.select(["state_0"])):
        with refused("RejectedError", "SCHEMA_MISMATCH"), server.exchange() as exchange:
            exchange.states(wrong)
            exchange.epoch(1)
    with refused("RejectedError", "BAD_FRAME"), server.exchange() as exchange:
        exchange.send(pb.EngineFrame(states=pb.States(batch=b"no stream")))
        exchange.epoch(1)


@rule(
    "initial-outputs",
    "With Open.initial_outputs each States frame is answered with one InitialOutputs: its slots, in its order, NULL "
    "states and the outputs; States without rows ask for slot 0. States that are `unanswered` have no answer.",
    "Answer at once, before the next frame, and change nothing.",
)
def _initial_outputs(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (1, 0, 7)])
    batch = before.state_batch(results, [6, 0])
    with server.exchange(initial_outputs=True) as exchange:
        exchange.states(batch)
        found = exchange.answer("initial_outputs")
        expect(found["slot"].to_pylist(), [6, 0], "the slots of the answer")
        expect(found["state_0"].null_count, 2, "the NULL states of the answer")
        expected = [server.output([(0, 0, 5)]), server.output([(0, 0, 7)])]
        expect(found["output_0"].to_pylist(), expected, "the outputs of the answer")
        exchange.states(batch.slice(0, 0))
        nothing = exchange.answer("initial_outputs")
        expect(nothing["slot"].to_pylist(), [0], "the slots that answer States without rows")
        exchange.states(
            batch.slice(0, 1).set_column(0, batch.schema.field(0), pa.array([8], pa.int32())), unanswered=True
        )
        expect(exchange.epoch(1)["slot"].to_pylist(), [0, 6, 8], "the slots of the barrier")


@rule(
    "checkpoint",
    "Checkpoint is answered with SavedStates: the states that changed since states were last returned, slots "
    "ascending, NULL outputs; what the next barrier returns stays the same.",
    "Keep two marks for each slot: changed since results, and changed since states were returned.",
)
def _checkpoint(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(5, 0, 5), (2, 0, 7)])
        exchange.checkpoint()
        saved = exchange.saved()
        expect(saved["slot"].to_pylist(), [2, 5], "the slots of the checkpoint")
        expect(saved["output_0"].null_count, 2, "the NULL outputs of the checkpoint")
        exchange.chunk([(2, 0, 9)])
        exchange.checkpoint()
        expect(exchange.saved()["slot"].to_pylist(), [2], "the slots of a second checkpoint")
        expect(exchange.epoch(2)["slot"].to_pylist(), [2, 5], "the slots of the barrier after checkpoints")
    with server.exchange() as exchange:
        exchange.states(exchange.state_batch(saved))
        found = exchange.epoch(1)["output_0"].to_pylist()
    expect(found, [server.output([(0, 0, 7)]), server.output([(0, 0, 5)])], "the outputs of saved states")


@rule(
    "checkpoint-without-states",
    "Checkpoint returns states also where Open asks for none at barriers: then those of all slots that changed since "
    "the last checkpoint, over barriers.",
    "A barrier without states makes no state saved.",
)
def _checkpoint_without_states(server: RawServer) -> None:
    with server.exchange(return_states=False) as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(1, 0, 1)])
        exchange.checkpoint()
        saved = exchange.saved()
        expect(saved["slot"].to_pylist(), [0, 1], "the slots of the checkpoint")
        expect(saved["state_0"].null_count, 0, "the NULL states of the checkpoint")


@rule(
    "checkpoint-if-reopen",
    "A server whose Opened says knows_if_reopen, and that need not be left, answers a Checkpoint with if_reopen with "
    "an empty SavedStates, and counts no state as returned.",
    "Look at drain and age first; say knows_if_reopen only where the field is known.",
)
def _checkpoint_if_reopen(server: RawServer) -> None:
    with server.exchange() as exchange:
        if not exchange.opened.knows_if_reopen:
            raise NotTriedError("Opened does not say knows_if_reopen")
        exchange.chunk([(3, 0, 1)])
        exchange.send(pb.EngineFrame(checkpoint=pb.Checkpoint(if_reopen=True)))
        expect(exchange.saved().num_rows, 0, "the states of a server that need not be left")
        exchange.checkpoint()
        expect(exchange.saved()["slot"].to_pylist(), [3], "the slots of the checkpoint after that")


@rule(
    "retract-from-states",
    "Rows that came before a state was taken can be taken back after it was loaded.",
    "What retract needs is part of the state.",
)
def _retract_from_states(server: RawServer) -> None:
    before, results = _saved_by(server, [(0, 0, 5), (0, 0, 7)])
    if not before.opened.calls[0].can_retract:
        raise NotTriedError("the function does not retract")
    with server.exchange() as exchange:
        exchange.states(before.state_batch(results))
        exchange.send(pb.EngineFrame(chunk=pb.Chunk()), rows_of([(0, 3, 5)], COLUMNS))
        found = exchange.epoch(1)["output_0"].to_pylist()
    expect(found, [server.output([(0, 0, 7)])], "the output")
