"""Rules for rows, epochs and states: slots, kinds, filters, barriers, results, Forget, the end of an exchange.

Rules of states are about loading, merging, refusals, checkpoints and initial outputs.
"""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.flight as fl

from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.ipc import write_batch
from foldflight.ext.conformance.raw import (
    COLUMNS,
    BrokenError,
    NotTriedError,
    RawExchange,
    RawServer,
    expect,
    expect_refusal,
    rows_of,
    rule,
)
from foldflight.functions.types.arrow import with_column

# The largest bounds for which the kit sends messages that exceed them, and requests results that need several messages.
_MESSAGE_BYTES_TRIED = 128 * 2**20
_RESULT_BYTES_TRIED = 4 * 2**20
_EXCHANGES_TRIED = 256
_PAUSE_S = 0.05


@rule(
    "dirty-slots",
    "Results have exactly one row for each slot that has got rows or states since the last barrier, in ascending "
    "order.",
    "Mark the slots of each chunk and States, even if no accumulator changes, and sort them at the barrier.",
)
def _dirty_slots(server: RawServer) -> None:
    with server.exchange() as exchange:
        results = exchange.epoch(1, [(7, 0, 1), (2, 0, 1), (7, 0, 2), (0, 0, 5), (4, 0, 9)])
        expect(results["slot"].to_pylist(), [0, 2, 4, 7], "the slots of epoch 1")
        expect(exchange.epoch(2, [(2, 0, 3)])["slot"].to_pylist(), [2], "the slots of epoch 2")


@rule(
    "outputs-by-slot",
    "Each slot has its own accumulators, which are kept from epoch to epoch. The output covers all rows so far.",
    "Keep one accumulator for each slot and call until the slot is forgotten or the exchange ends.",
)
def _outputs_by_slot(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.epoch(1, [(0, 0, 1), (1, 0, 10)])
        outputs = exchange.epoch(2, [(1, 0, 20), (0, 0, 3)])["output_0"].to_pylist()
    expected = [server.output([(0, 0, 1), (0, 0, 3)]), server.output([(0, 0, 10), (0, 0, 20)])]
    expect(outputs, expected, "the outputs of two slots after two epochs")


@rule(
    "any-split",
    "The results do not depend on how rows are split into chunks.",
    "Keep no state of a chunk other than the accumulators.",
)
def _any_split(server: RawServer) -> None:
    rows = [(0, 0, value) for value in (4, 8, 15, 16, 23, 42)]
    with server.exchange() as exchange:
        for row in rows:
            exchange.chunk([row])
        exchange.chunk([])
        outputs = exchange.epoch(1)["output_0"].to_pylist()
    expect(outputs, [server.output(rows)], "the output of one-row chunks")


@rule(
    "empty-epochs",
    "A barrier without changed slots is answered, too: with one part of zero rows that has `last` set.",
    "Answer every barrier.",
)
def _empty_epochs(server: RawServer) -> None:
    with server.exchange() as exchange:
        expect(exchange.epoch(1).num_rows, 0, "the rows of an epoch without any")
        exchange.epoch(2, [(1, 0, 1)])
        expect(exchange.epoch(3).num_rows, 0, "the rows of an epoch after a barrier")


@rule(
    "first-epoch",
    "The first epoch of an exchange may have any number.",
    "Accept the number of the first barrier: engines continue their count on another server.",
)
def _first_epoch(server: RawServer) -> None:
    for first in (0, 2**63):
        with server.exchange() as exchange:
            expect(exchange.epoch(first, [(0, 0, 1)]).num_rows, 1, f"the rows of epoch {first}")


@rule(
    "epochs-in-steps-of-one",
    "Each later epoch is the previous one plus one. Any other number is refused with BAD_FRAME.",
    "Compare the number with the number of the last barrier, and end the exchange.",
)
def _epochs_in_steps_of_one(server: RawServer) -> None:
    for wrong in (1, 0, 3):
        with server.exchange() as exchange:
            exchange.epoch(1, [(0, 0, 1)])
            with expect_refusal("BAD_FRAME"):
                exchange.epoch(wrong)


@rule(
    "barriers-in-order",
    "An engine may send several barriers before it reads results. Each is answered, in order, with the slots changed "
    "since the one before.",
    "Handle frames one after the other.",
)
def _barriers_in_order(server: RawServer) -> None:
    with server.exchange() as exchange:
        for epoch in (1, 2, 3):
            exchange.chunk([(epoch, 0, 1)])
            exchange.barrier(epoch)
        slots = [exchange.results(epoch)["slot"].to_pylist() for epoch in (1, 2, 3)]
    expect(slots, [[1], [2], [3]], "the slots of three epochs")


@rule(
    "no-slot-column",
    "Without the column `slot` all rows belong to slot 0. Without the column `kind` all rows are inserts.",
    "Find the columns by name.",
)
def _no_slot_column(server: RawServer) -> None:
    with server.exchange(columns=pa.schema([("value", pa.int64())])) as exchange:
        results = exchange.epoch(1, [(0, 0, 3), (0, 0, 4)])
    expect(results["slot"].to_pylist(), [0], "the slots")
    expect(results["output_0"].to_pylist(), [server.output([(0, 0, 3), (0, 0, 4)])], "the output")


@rule(
    "slot-bounds",
    "A slot is at least 0 and below slots_max of Opened. Others are refused with RejectedError LIMIT, and NULL with "
    "SCHEMA_MISMATCH.",
    "Check the slots of Chunk, Forget and States before memory is allocated for them.",
)
def _slot_bounds(server: RawServer) -> None:
    for wrong in (-1, 2**31 - 1, None):
        with server.exchange() as exchange:
            if wrong is not None and 0 <= wrong < exchange.opened.limits.slots_max:
                continue
            with expect_refusal("LIMIT" if wrong is not None else "SCHEMA_MISMATCH"):
                exchange.epoch(1, [(wrong, 0, 1)])
    with server.exchange() as exchange:
        last = min(exchange.opened.limits.slots_max, 2**20) - 1
        expect(exchange.epoch(1, [(last, 0, 1)])["slot"].to_pylist(), [last], "the highest slot")
    with server.exchange() as exchange, expect_refusal("LIMIT"):
        exchange.forget(-1)
        exchange.epoch(1)


@rule(
    "kinds",
    "`kind` is 0 insert, 1 update before, 2 update after, 3 delete. Rows of kind 0 and 2 are accumulated, rows of "
    "kind 1 and 3 retracted. If a call cannot retract, 1 and 3 are refused with RejectedError CANNOT_RETRACT.",
    "Use these byte values, which Flink's RowKind has, too.",
)
def _kinds(server: RawServer) -> None:
    with server.exchange() as exchange:
        can_retract = exchange.opened.calls[0].can_retract
    if not can_retract:
        for kind in (1, 3):
            with expect_refusal("CANNOT_RETRACT"), server.exchange() as exchange:
                exchange.epoch(1, [(0, 0, 5), (0, kind, 5)])
        return
    expected = server.output([(0, 0, 5), (0, 0, 9)])
    for adds, takes in ((0, 1), (0, 3), (2, 1), (2, 3)):
        output = server.output([(0, adds, 5), (0, adds, 7), (0, takes, 7), (0, adds, 9)])
        expect(output, expected, f"the output after a row of kind {adds} was retracted by kind {takes}")


@rule(
    "kind-values",
    "A kind other than 0 to 3, or NULL, is refused with SCHEMA_MISMATCH.",
    "Check the column before rows are folded.",
)
def _kind_values(server: RawServer) -> None:
    for wrong in (4, -1, None):
        with expect_refusal("SCHEMA_MISMATCH"), server.exchange() as exchange:
            exchange.epoch(1, [(0, 0, 1), (0, wrong, 1)])


@rule(
    "filter",
    "A call folds only rows whose Call.filter column is true, not false or NULL. The slots of the other rows are in "
    "the results, too.",
    "Filter for each call separately, after slots are marked.",
)
def _filter(server: RawServer) -> None:
    rows = [(0, 0, 5, True), (0, 0, 7, False), (0, 0, 9, None), (3, 0, 1, False)]
    with server.exchange({**server.call, "filter": "wanted"}) as exchange:
        results = exchange.epoch(1, rows)
    expect(results["slot"].to_pylist(), [0, 3], "the slots")
    expect(results["output_0"].to_pylist()[0], server.output([(0, 0, 5)]), "the output with the filter")


@rule(
    "distinct",
    "With Call.distinct equal arguments of a slot are folded once, over all chunks and epochs, until all of them have "
    "been retracted.",
    "Keep the arguments of a slot with their counts.",
)
def _distinct(server: RawServer) -> None:
    with server.exchange({**server.call, "distinct": True}) as exchange:
        expect(exchange.opened.calls[0].can_retract, True, "that a distinct call can retract")
        exchange.epoch(1, [(0, 0, 5), (0, 0, 5), (0, 0, 5), (0, 0, 7)])
        for epoch, back in ((2, [(0, 3, 7)]), (3, [(0, 3, 5), (0, 3, 5)])):
            once = exchange.epoch(epoch, back)["output_0"].to_pylist()
            expect(once, [server.output([(0, 0, 5)])], f"the output of epoch {epoch}")


@rule(
    "materialize",
    "With Call.materialize the output is the same, and the call can retract and merge even if its function cannot.",
    "Keep the argument rows, and fold them again for each output.",
)
def _materialize(server: RawServer) -> None:
    with server.exchange({**server.call, "materialize": True}) as exchange:
        call = exchange.opened.calls[0]
        expect((call.can_retract, call.can_merge), (True, True), "that it can retract and merge")
        outputs = exchange.epoch(1, [(0, 0, 5), (0, 0, 5), (0, 0, 7), (0, 3, 7)])["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 5), (0, 0, 5)])], "the output")


@rule(
    "order",
    "With Call.order the rows of a slot are folded in this order, over all chunks and epochs, and the call can retract "
    "and merge even if its function cannot. OpenedCall then has is_ordered. A key that is not a column of Open is "
    "refused with SCHEMA_MISMATCH.",
    "Keep the argument rows with their keys, and fold them in their order again for each output.",
)
def _order(server: RawServer) -> None:
    descending = {**server.call, "order": [pb.Order(column="value", descending=True)]}
    with server.exchange(descending) as exchange:
        call = exchange.opened.calls[0]
        expect((call.can_retract, call.can_merge), (True, True), "that it can retract and merge")
        expect(call.is_ordered, True, "is_ordered")
        exchange.epoch(1, [(0, 0, 5), (0, 0, 9)])
        outputs = exchange.epoch(2, [(0, 0, 7), (0, 3, 9)])["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 7), (0, 0, 5)])], "the output of 7 and 5, in descending order")
    with expect_refusal("SCHEMA_MISMATCH"):
        server.exchange({**server.call, "order": [pb.Order(column="nowhere")]})


@rule(
    "returns",
    "Results have NULL states if Open does not request states, and NULL outputs if it does not request outputs. "
    "Without both, results still list the dirty slots.",
    "Keep the columns, and fill them with NULLs.",
)
def _returns(server: RawServer) -> None:
    for states, outputs in ((True, False), (False, True), (False, False)):
        with server.exchange(return_states=states, return_outputs=outputs) as exchange:
            results = exchange.epoch(1, [(2, 0, 1)])
        expect(results["slot"].to_pylist(), [2], "the slots")
        there = [results[name].null_count == 0 for name in ("state_0", "output_0")]
        expect(there, [states, outputs], f"states and outputs, asked for {states} and {outputs}")


@rule(
    "row-outputs",
    "With Open.row_outputs a Chunk of n rows is answered with a RowOutputs of n rows: slots 0 to n - 1, NULL states, "
    "and the output after each row.",
    "Compute the output after each row, not after the chunk. Answer an empty chunk with zero rows.",
)
def _row_outputs(server: RawServer) -> None:
    rows = [(0, 0, 4), (1, 0, 8), (0, 0, 15)]
    with server.exchange(row_outputs=True) as exchange:
        exchange.chunk(rows)
        answer = exchange.answer("row_outputs")
        exchange.chunk([])
        expect(exchange.answer("row_outputs").num_rows, 0, "the rows that answer an empty chunk")
        expect(exchange.epoch(1)["slot"].to_pylist(), [0, 1], "the slots of the barrier")
    expect(answer["slot"].to_pylist(), [0, 1, 2], "the slots of the row outputs")
    expect(answer["state_0"].null_count, 3, "the NULL states of the row outputs")
    expected = [server.output([(0, 0, 4)]), server.output([(0, 0, 8)]), server.output([(0, 0, 4), (0, 0, 15)])]
    expect(answer["output_0"].to_pylist(), expected, "the row outputs")


@rule(
    "emits",
    "With Open.row_outputs and Open.emits, RowOutputs has a row only for each row of the Chunk where its column `emit` "
    "is true: the number of that row as its slot, a NULL state, and the output after it. An Open with emits but "
    "without row_outputs or without that column is refused, and so is a Chunk where it is NULL.",
    "Compute outputs only where they are asked for. Answer a Chunk that asks for none with zero rows.",
)
def _emits(server: RawServer) -> None:
    columns = COLUMNS.append(pa.field("emit", pa.bool_()))
    rows = [(0, 0, 4), (1, 0, 8), (0, 0, 15), (1, 0, 16)]
    with server.exchange(columns=columns, row_outputs=True, emits=True) as exchange:

        def ask(emit: list[bool | None]) -> pa.RecordBatch:
            chunk = with_column(rows_of(rows[: len(emit)]), "emit", pa.array(emit, pa.bool_()))
            exchange.send(pb.EngineFrame(chunk=pb.Chunk()), chunk)
            return exchange.answer("row_outputs")

        answer = ask([False, True, True, False])
        expect(ask([False, False]).num_rows, 0, "the rows that answer a chunk that asks for none")
        expect(exchange.epoch(1)["slot"].to_pylist(), [0, 1], "the slots of the barrier")
        with expect_refusal("SCHEMA_MISMATCH"):
            ask([True, None])
    expect(answer["slot"].to_pylist(), [1, 2], "the slots of the row outputs")
    expect(answer["state_0"].null_count, 2, "the NULL states of the row outputs")
    expected = [server.output([(0, 0, 8)]), server.output([(0, 0, 4), (0, 0, 15)])]
    expect(answer["output_0"].to_pylist(), expected, "the row outputs")
    for options, without in (({}, columns), ({"row_outputs": True}, COLUMNS)):
        with expect_refusal("SCHEMA_MISMATCH"):
            server.exchange(columns=without, emits=True, **options)


@rule(
    "keeps-views",
    "With Open.keeps_views each Chunk is answered with one Folded, and Entries are taken only "
    "for states with views; others are refused with BAD_FRAME. An Open with keeps_views but without return_states, "
    "or with row_outputs, is refused with SIGNATURE.",
    "Answer the chunk when it has been folded. Check the columns of Entries.",
)
def _keeps_views(server: RawServer) -> None:
    with server.exchange(keeps_views=True) as exchange:
        has_views = bool(exchange.opened.calls[0].views)
        exchange.chunk([(0, 0, 5), (1, 0, 7)])
        expect(exchange.answer("folded").num_rows, 0, "the rows of the batch of Folded")
        results = exchange.epoch(1)
        expect(results["slot"].to_pylist(), [0, 1], "the slots")
        expect(results["output_0"].to_pylist()[0], server.output([(0, 0, 5)]), "the output")
        if not has_views:
            entries = pb.Entries(batch=write_batch(exchange.state_batch(results)))
            exchange.send(pb.EngineFrame(entries=entries))
            with expect_refusal("BAD_FRAME"):
                exchange.epoch(2)
    for wrong in ({"return_states": False}, {"row_outputs": True}):
        with expect_refusal("SIGNATURE"):
            server.exchange(keeps_views=True, **wrong)


@rule(
    "forget",
    "Forget removes the accumulators of slots. The slots are not in the next results, and later rows start with fresh "
    "accumulators.",
    "Remove accumulators and marks. Accept slots that were never used.",
)
def _forget(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.epoch(1, [(0, 0, 5), (1, 0, 5)])
        exchange.chunk([(0, 0, 7), (2, 0, 7)])
        exchange.forget(0, 1, 9)
        expect(exchange.epoch(2)["slot"].to_pylist(), [2], "the slots after Forget")
        outputs = exchange.epoch(3, [(1, 0, 9)])["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 9)])], "the output of a slot that was forgotten")


@rule(
    "isolated-errors",
    "With Open.isolate_errors a slot for which a function raises has an `error` with code and message, a NULL state "
    "and a NULL output in the next results. Other slots are not affected, and the slot is empty afterwards. An Open "
    "with both isolate_errors and row_outputs is refused.",
    "Skip a slot that failed until the barrier, for all calls.",
)
def _isolated_errors(server: RawServer) -> None:
    with expect_refusal("SIGNATURE"):
        server.exchange(isolate_errors=True, row_outputs=True)
    large = 2**63 - 1
    with server.exchange(isolate_errors=True) as exchange:
        results = exchange.epoch(1, [(0, 0, 5), (1, 0, large), (1, 0, large), (2, 0, 7)]).to_pylist()
        if results[1]["error"] is None:
            raise NotTriedError("the function does not fail for the sum of two of the largest BIGINTs")
        expect([row["slot"] for row in results], [0, 1, 2], "the slots")
        expect([row["error"] is None for row in results], [True, False, True], "which slots have no error")
        expect(
            (results[1]["state_0"], results[1]["output_0"]), (None, None), "state and output of the slot that failed"
        )
        complete = bool(results[1]["error"]["code"] and results[1]["error"]["message"])
        expect(complete, True, "that the error has code and message")
        again = exchange.epoch(2, [(1, 0, 9)]).to_pylist()
        expect((again[0]["output_0"], again[0]["error"]), (server.output([(0, 0, 9)]), None), "the slot afterwards")


@rule(
    "function-errors",
    "If errors are not isolated, an exception of a function ends the exchange with a FunctionError that has function "
    "and slot.",
    "Distinguish errors of the author's code from errors of the job and of the server.",
)
def _function_errors(server: RawServer) -> None:
    large = 2**63 - 1
    try:
        with server.exchange() as exchange:
            exchange.epoch(1, [(3, 0, large), (3, 0, large)])
    except fl.FlightError as error:
        sent_error = pb.Error.FromString(error.extra_info)
        expect(sent_error.error_class, "FunctionError", "the class of the error")
        expect((sent_error.function, sent_error.slot), (server.function, 3), "function and slot of the error")
    else:
        raise NotTriedError("the function does not fail for the sum of two of the largest BIGINTs")


@rule(
    "message-limit",
    "A message larger than message_bytes_max of Opened is refused with RejectedError LIMIT.",
    "Set gRPC's bound higher than message_bytes_max, because gRPC's error carries no Error.",
)
def _message_limit(server: RawServer) -> None:
    with server.exchange() as exchange:
        bound = exchange.opened.limits.message_bytes_max
        if bound > _MESSAGE_BYTES_TRIED:
            raise NotTriedError(f"message_bytes_max is {bound}; the kit sends up to {_MESSAGE_BYTES_TRIED} bytes")
        count = bound // 8 + 1
        columns = [pa.nulls(count, field.type).fill_null(0) for field in [*COLUMNS][:3]]
        batch = pa.RecordBatch.from_arrays([*columns, pa.nulls(count, pa.bool_())], schema=COLUMNS)
        with expect_refusal("LIMIT"):
            exchange.send(pb.EngineFrame(chunk=pb.Chunk()), batch)
            exchange.epoch(1)


@rule(
    "results-in-parts",
    "Results that exceed message_bytes_max come in several parts, and smaller ones may, too. Slots ascend over all of "
    "them, and only the last one has `last` set.",
    "Split the batch by bytes, not by rows.",
)
def _results_in_parts(server: RawServer) -> None:
    with server.exchange() as exchange:
        limits = exchange.opened.limits
        if limits.message_bytes_max > _RESULT_BYTES_TRIED:
            raise NotTriedError(
                f"message_bytes_max is {limits.message_bytes_max}; the kit tries up to {_RESULT_BYTES_TRIED}"
            )
        count = min(limits.slots_max, limits.message_bytes_max // 4)
        step = max(limits.message_bytes_max // 64, 1)
        for start in range(0, count, step):
            exchange.chunk([(slot, 0, slot) for slot in range(start, min(start + step, count))])
        exchange.barrier(1)
        slots: list[int] = []
        parts, last = 0, False
        while not last:
            frame, batch = exchange.receive()
            expect(frame.WhichOneof("frame"), "results", "the frame that was due")
            expect(batch.nbytes <= limits.message_bytes_max, True, "that a message stays within message_bytes_max")
            slots += batch["slot"].to_pylist()
            parts, last = parts + 1, frame.results.last
    if parts == 1:
        raise NotTriedError(f"the results of {count} slots fit into one message")
    expect(slots == list(range(count)), True, "that the slots ascend over all parts")


@rule(
    "valid-batches",
    "The server validates a batch completely before it reads values. Text that is not UTF-8 is refused with BAD_FRAME.",
    "Validate all columns of each incoming batch, including offsets and text, even if no call uses them.",
)
def _valid_batches(server: RawServer) -> None:
    columns = pa.schema([("value", pa.int64()), ("text", pa.string())])
    buffers = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    arrays = [pa.array([1]), pa.Array.from_buffers(pa.string(), 1, buffers)]
    with expect_refusal("BAD_FRAME"), server.exchange(columns=columns) as exchange:
        exchange.send(pb.EngineFrame(chunk=pb.Chunk()), pa.RecordBatch.from_arrays(arrays, schema=columns))
        exchange.epoch(1)


@rule(
    "polite-end",
    "An engine ends an exchange by closing its direction of the stream. The server sends the remaining answers, "
    "discards the open epoch, and ends the stream without an error.",
    "Send no results for an epoch without a barrier.",
)
def _polite_end(server: RawServer) -> None:
    with server.exchange() as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(0, 0, 2)])
        expect(exchange.end(), 0, "the frames after the end")
    with server.exchange() as exchange:
        exchange.chunk([(0, 0, 2)])
        exchange.barrier(1)
        expect(exchange.end(), 1, "the frames after the end where one answer was due")


@rule(
    "hanging-up",
    "If an engine cancels an exchange, the server frees all its resources at once; it no longer counts towards "
    "exchanges_max.",
    "Bind all resources of an exchange to its stream, and free them when the stream is cancelled.",
)
def _hanging_up(server: RawServer) -> None:
    with server.exchange() as exchange:
        count = exchange.opened.limits.exchanges_max
    if count > _EXCHANGES_TRIED:
        raise NotTriedError(f"exchanges_max is {count}; the kit opens up to {_EXCHANGES_TRIED}")
    for _ in range(count):
        with _in_time(server) as exchange:
            exchange.chunk([(0, 0, 41)])
    with _in_time(server) as exchange:
        expect(exchange.epoch(1, [(0, 0, 1)])["output_0"].to_pylist(), [server.output([(0, 0, 1)])], "the output")


def _in_time(server: RawServer) -> RawExchange:
    """Open an exchange, and try again for a while: the server may not have noticed yet that another was cancelled."""
    until_s = time.monotonic() + server.deadline_s
    while True:
        try:
            return server.exchange()
        except fl.FlightUnavailableError as error:
            if time.monotonic() > until_s:
                raise BrokenError(f"cancelled exchanges still count towards exchanges_max: {error}") from None
            time.sleep(_PAUSE_S)


@rule(
    "several-calls",
    "An exchange may have several calls over the same columns. Call i has the columns `state_i` and `output_i`.",
    "Keep the order of Open.calls.",
)
def _several_calls(server: RawServer) -> None:
    rows = [(0, 0, 5, True), (0, 0, 7, False)]
    with server.exchange(server.call, {**server.call, "filter": "wanted"}) as exchange:
        answer = exchange.epoch(1, rows).to_pylist()[0]
    expected = [server.output(rows), server.output([(0, 0, 5)])]
    expect([answer["output_0"], answer["output_1"]], expected, "the outputs of two calls")


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
            with expect_refusal("CANNOT_MERGE"):
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
        with expect_refusal("STATE_MISMATCH"), server.exchange() as exchange:
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
        with expect_refusal("SCHEMA_MISMATCH"), server.exchange() as exchange:
            exchange.states(wrong)
            exchange.epoch(1)
    with expect_refusal("BAD_FRAME"), server.exchange() as exchange:
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
        saved_states = exchange.saved_states()
        expect(saved_states["slot"].to_pylist(), [2, 5], "the slots of the checkpoint")
        expect(saved_states["output_0"].null_count, 2, "the NULL outputs of the checkpoint")
        exchange.chunk([(2, 0, 9)])
        exchange.checkpoint()
        expect(exchange.saved_states()["slot"].to_pylist(), [2], "the slots of a second checkpoint")
        expect(exchange.epoch(2)["slot"].to_pylist(), [2, 5], "the slots of the barrier after checkpoints")
    with server.exchange() as exchange:
        exchange.states(exchange.state_batch(saved_states))
        outputs = exchange.epoch(1)["output_0"].to_pylist()
    expect(outputs, [server.output([(0, 0, 7)]), server.output([(0, 0, 5)])], "the outputs of saved states")


@rule(
    "checkpoint-without-states",
    "Checkpoint returns states even if Open does not request states at barriers: the states of all slots changed "
    "since the last checkpoint, regardless of barriers between.",
    "Do not reset the marks for checkpoints at a barrier that returns no states.",
)
def _checkpoint_without_states(server: RawServer) -> None:
    with server.exchange(return_states=False) as exchange:
        exchange.epoch(1, [(0, 0, 1)])
        exchange.chunk([(1, 0, 1)])
        exchange.checkpoint()
        saved_states = exchange.saved_states()
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
        expect(exchange.saved_states().num_rows, 0, "the number of saved states while the exchange may stay")
        exchange.checkpoint()
        expect(exchange.saved_states()["slot"].to_pylist(), [3], "the slots of the checkpoint after that")


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
