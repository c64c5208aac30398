"""Servers with one deliberate mistake each, and the rules by which the conformance kit must detect it.

A mistake is put into this process's own server by replacing one function of it; the kit shares none of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.flight as fl
import pytest

from foldflight.errors import RejectedError
from foldflight.exchange import encoding, ipc, server_exchange, transitions
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.frames import Barrier, Checkpoint, Forget, States
from foldflight.fold import failures
from foldflight.fold.aggregate import bound_calls, fold
from foldflight.server import authentication, error_translation, exchanges, flight_server

Patch = pytest.MonkeyPatch
MUTANTS: list[Any] = []


def breaks(*rules: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Record the rules that a mistake breaks. The first is the rule that describes it."""

    def put(mutate: Callable[[Patch], None]) -> Callable[[Patch], None]:
        MUTANTS.append(pytest.param(mutate, rules, id=mutate.__name__))
        return mutate

    return put


def bound_as(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Bind other calls than the requested ones."""

    def mutate(patch: Patch) -> None:
        bind = fold.bind_calls
        patch.setattr(
            fold,
            "bind_calls",
            lambda known_functions, calls, *more, **options: bind(known_functions, change(calls), *more, **options),
        )

    return mutate


def each(**changes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that changes fields of each call."""
    return lambda calls: [replace(call, **{name: of(call) for name, of in changes.items()}) for call in calls]


# -- discovery -------------------------------------------------------------------------------------------------------


@breaks("list-functions")
def codecs_are_described_by_other_names(patch: Patch) -> None:
    encode_info = flight_server.encode_info
    patch.setattr(flight_server, "encode_info", lambda info: encode_info(replace(info, codec="json")))


@breaks("function-info")
def unknown_functions_are_described(patch: Patch) -> None:
    patch.setattr(flight_server, "_function_name", lambda descriptor: "sum")


@breaks("describe", "expected-fingerprint", "get-schema")
def opened_has_no_wrapper(patch: Patch) -> None:
    get = flight_server.FlightServer.get_flight_info

    def open_without_wrapper(self: Any, context: Any, descriptor: Any) -> Any:
        info = get(self, context, descriptor)
        if descriptor.descriptor_type != fl.DescriptorType.CMD:
            return info
        open_reply = pb.ServerFrame.FromString(info.app_metadata).opened.SerializeToString()
        return fl.FlightInfo(info.schema, descriptor, [], -1, -1, app_metadata=open_reply)

    patch.setattr(flight_server.FlightServer, "get_flight_info", open_without_wrapper)


@breaks("describe-refuses")
def columns_are_not_looked_for_when_described(patch: Patch) -> None:
    describe = flight_server.describe
    with_known_column = each(arguments=lambda call: ("value",))
    patch.setattr(
        flight_server,
        "describe",
        lambda open_request, *rest, **more: describe(
            replace(open_request, calls=with_known_column(open_request.calls)), *rest, **more
        ),
    )


@breaks("get-schema")
def the_schema_is_empty(patch: Patch) -> None:
    patch.setattr(flight_server.FlightServer, "get_schema", lambda *_: fl.SchemaResult(pa.schema([])))


@breaks("status-action")
def the_status_is_not_listed(patch: Patch) -> None:
    patch.setattr(flight_server.FlightServer, "list_actions", lambda *_: [])


@breaks("authorization")
def tokens_need_no_bearer(patch: Patch) -> None:
    check = authentication.Tokens.__call__

    def lax(self: Any, headers: dict[str, str]) -> Any:
        tokens = {name: value.removeprefix("Bearer ") for name, value in headers.items() if name == "authorization"}
        return check(self, {name: f"Bearer {value}" for name, value in tokens.items()})

    patch.setattr(authentication.Tokens, "__call__", lax)


@breaks("encodings")
def columns_may_have_any_type(patch: Patch) -> None:
    patch.setattr(server_exchange, "check_plain", lambda type_: None)


# -- opening ---------------------------------------------------------------------------------------------------------


@breaks("opened-first")
def the_server_has_no_name(patch: Patch) -> None:
    encode = encoding._encode_opened
    patch.setattr(encoding, "_encode_opened", lambda frame: encode(replace(frame, server_id="")))


@breaks("result-schema")
def errors_have_no_trace(patch: Patch) -> None:
    short = pa.struct(list(bound_calls.ERROR_TYPE)[:-1])
    patch.setattr(bound_calls, "ERROR_TYPE", short)
    patch.setattr(failures, "ERROR_TYPE", short)


@breaks("state-identity")
def codecs_have_other_names(patch: Patch) -> None:
    patch.setattr(bound_calls.BoundCall, "codec", "json")


@breaks("input-types")
def input_types_are_left_out(patch: Patch) -> None:
    opened_call = server_exchange.OpenedCall
    patch.setattr(server_exchange, "OpenedCall", lambda **members: opened_call(**{**members, "input_types": ()}))


@breaks("protocol-version")
def any_version_is_taken(patch: Patch) -> None:
    decode_open = flight_server.decode_open

    def lax(command: bytes) -> Any:
        with contextlib.suppress(Exception):
            request = pb.Open.FromString(command)
            request.protocol_version = 1
            command = request.SerializeToString()
        return decode_open(command)

    patch.setattr(flight_server, "decode_open", lax)


@breaks("unknown-fields")
def unknown_fields_are_refused(patch: Patch) -> None:
    parse = encoding.parse_message

    def strict(cls: Any, data: bytes, what: str) -> Any:
        message = parse(cls, data, what)
        known_message = cls.FromString(data)
        known_message.DiscardUnknownFields()
        if len(known_message.SerializeToString()) != len(data):
            raise RejectedError("BAD_FRAME", "unknown fields")
        return message

    patch.setattr(encoding, "parse_message", strict)


@breaks("unknown-function")
def unknown_functions_are_folded(patch: Patch) -> None:
    bound_as(each(function=lambda call: "sum" if " " in call.function else call.function))(patch)


@breaks("bad-open")
def an_open_without_calls_is_taken(patch: Patch) -> None:
    decode_open = flight_server.decode_open

    def lax(command: bytes) -> Any:
        with contextlib.suppress(Exception):
            request = pb.Open.FromString(command)
            if not request.calls and request.protocol_version:
                request.calls.add(function="sum", arguments=["value"])
                command = request.SerializeToString()
        return decode_open(command)

    patch.setattr(flight_server, "decode_open", lax)


@breaks("bound-columns")
def filters_of_numbers_are_ignored(patch: Patch) -> None:
    bound_as(each(filter=lambda call: None if call.filter == "value" else call.filter))(patch)


@breaks("stream-schema")
def the_schema_of_the_stream_is_not_compared(patch: Patch) -> None:
    patch.setattr(flight_server, "check_columns", lambda *_: None)


@breaks("expected-fingerprint")
def expectations_are_ignored(patch: Patch) -> None:
    bound_as(each(fingerprint=lambda call: ""))(patch)


@breaks("direct-arguments")
def unknown_direct_arguments_are_ignored(patch: Patch) -> None:
    bound_as(each(literals=lambda call: {}))(patch)


@breaks("slot-and-kind-types")
def slots_may_be_wide(patch: Patch) -> None:
    bind = server_exchange._bind

    def lax(request: Any, *more: Any) -> Any:
        fields = [
            field.with_type({"slot": pa.int32(), "kind": pa.int8()}.get(field.name, field.type))
            for field in request.columns
        ]
        return bind(replace(request, columns=pa.schema(fields)), *more)

    patch.setattr(server_exchange, "_bind", lax)


def _decode_with(patch: Patch, lax: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    class Lax(encoding.Decoder):
        def __call__(self, message: Any) -> Any:
            return lax(super().__call__, message)

    patch.setattr(flight_server, "Decoder", Lax)


@breaks("no-frame")
def messages_without_a_frame_are_skipped(patch: Patch) -> None:
    def lax(decode: Callable[[Any], Any], message: Any) -> Any:
        with contextlib.suppress(Exception):
            if pb.EngineFrame.FromString(message.metadata).WhichOneof("frame") is None:
                return Forget(pa.array([], pa.int32()))
        return decode(message)

    _decode_with(patch, lax)


@breaks("control-frames-have-no-rows")
def rows_beside_barriers_are_dropped(patch: Patch) -> None:
    def lax(decode: Callable[[Any], Any], message: Any) -> Any:
        with contextlib.suppress(Exception):
            if pb.EngineFrame.FromString(message.metadata).WhichOneof("frame") == "barrier":
                message = replace(message, batch=message.batch.slice(0, 0))
        return decode(message)

    _decode_with(patch, lax)


# -- rows and epochs -------------------------------------------------------------------------------------------------


@breaks("dirty-slots", "results-in-parts")
def many_slots_come_in_another_order(patch: Patch) -> None:
    marked_slots = fold.Fold._marked_slots

    def reverse(self: Any, mark: int) -> Any:
        slots = marked_slots(self, mark)
        return slots[::-1].copy() if len(slots) > 3 else slots

    patch.setattr(fold.Fold, "_marked_slots", reverse)


@breaks("outputs-by-slot", "distinct", "order", "states-load", "checkpoint-without-states")
def accumulators_end_with_the_epoch(patch: Patch) -> None:
    collect = fold.Fold.collect

    def forgetful(self: Any, **options: bool) -> pa.RecordBatch:
        batch = collect(self, **options)
        self.forget(batch.column("slot"))
        return batch

    patch.setattr(fold.Fold, "collect", forgetful)


@breaks("any-split")
def an_empty_chunk_empties_its_group(patch: Patch) -> None:
    fold_rows = fold.Fold.fold

    def odd(self: Any, batch: pa.RecordBatch) -> None:
        fold_rows(self, batch)
        if not batch.num_rows:
            self._empty(np.zeros(1, np.int32))

    patch.setattr(fold.Fold, "fold", odd)


@breaks("empty-epochs")
def empty_epochs_are_not_answered(patch: Patch) -> None:
    barrier = server_exchange.ServerExchange._barrier

    def silent(self: Any, epoch: int) -> Any:
        for reply in barrier(self, epoch):
            if getattr(reply, "batch", None) is None or reply.batch.num_rows:
                yield reply
            else:
                self._machine.step(transitions.Role.SERVER, reply)

    patch.setattr(server_exchange.ServerExchange, "_barrier", silent)


@breaks("first-epoch")
def the_first_epoch_is_one(patch: Patch) -> None:
    check = transitions.check_epoch

    def strict(epoch: int, before: int | None) -> None:
        check(epoch, before or 0)

    patch.setattr(transitions, "check_epoch", strict)


@breaks("epochs-in-steps-of-one")
def epochs_may_have_any_number(patch: Patch) -> None:
    patch.setattr(transitions, "check_epoch", lambda epoch, before: None)


@breaks("barriers-in-order")
def a_barrier_waits_for_the_one_before_to_be_read(patch: Patch) -> None:
    handle = server_exchange.ServerExchange.handle

    def odd(self: Any, frame: Any) -> Any:
        # The server cannot see what was read; only that rule has three chunks up to slot 3 in as many epochs.
        if isinstance(frame, Barrier) and (frame.epoch, self.stats.chunks, self.groups) == (3, 3, 4):
            raise RejectedError("BAD_FRAME", "too many barriers")
        yield from handle(self, frame)

    patch.setattr(server_exchange.ServerExchange, "handle", odd)


@breaks("no-slot-column")
def rows_without_a_slot_have_one_each(patch: Patch) -> None:
    begin = fold.Fold._begin

    def odd(self: Any, batch: pa.RecordBatch) -> Any:
        if "slot" not in batch.schema.names:
            batch = batch.append_column("slot", pa.array(range(batch.num_rows), pa.int32()))
        return begin(self, batch)

    patch.setattr(fold.Fold, "_begin", odd)


@breaks("slot-bounds")
def negative_slots_are_found_late(patch: Patch) -> None:
    check = server_exchange.check_slots

    def late(slots: pa.Array, slots_max: int) -> None:
        if slots.null_count or not pc.any(pc.less(slots, 0)).as_py():
            check(slots, slots_max)

    patch.setattr(server_exchange, "check_slots", late)


@breaks("kinds")
def update_before_accumulates(patch: Patch) -> None:
    retracts = fold._retracts

    def odd(batch: pa.RecordBatch) -> Any:
        result = retracts(batch)
        return None if result is None else pc.equal(batch.column("kind"), 3).to_numpy(zero_copy_only=False)

    patch.setattr(fold, "_retracts", odd)


@breaks("kind-values")
def unknown_kinds_insert(patch: Patch) -> None:
    retracts = fold._retracts

    def lax(batch: pa.RecordBatch) -> Any:
        if "kind" in batch.schema.names:
            kinds = pc.fill_null(batch.column("kind"), 0)
            is_known = pc.and_(pc.greater_equal(kinds, 0), pc.less(kinds, 4))
            batch = batch.set_column(
                1, batch.schema.field("kind"), pc.if_else(is_known, kinds, pa.scalar(0, pa.int8()))
            )
        return retracts(batch)

    patch.setattr(fold, "_retracts", lax)


@breaks("filter")
def rows_of_unknown_filters_count(patch: Patch) -> None:
    mask = fold.Fold._mask

    def lax(self: fold.Fold, batch: pa.RecordBatch, call: Any, rows: Any) -> Any:
        if call.call.filter is not None:
            place = batch.schema.get_field_index(call.call.filter)
            batch = batch.set_column(place, batch.schema.field(place), pc.fill_null(batch.column(place), True))
        return mask(self, batch, call, rows)

    patch.setattr(fold.Fold, "_mask", lax)


@breaks("distinct")
def distinct_counts_every_row(patch: Patch) -> None:
    counted_class = bound_calls.RowMultiset
    patch.setattr(
        bound_calls, "RowMultiset", lambda inner, **options: counted_class(inner, **{**options, "each_once": False})
    )


@breaks("materialize")
def materialized_rows_count_once(patch: Patch) -> None:
    bound_as(each(distinct=lambda call: call.distinct or call.materialize))(patch)


@breaks("order")
def rows_are_folded_as_they_come(patch: Patch) -> None:
    bound_as(each(order=lambda _: (), materialize=lambda call: call.materialize or bool(call.order)))(patch)


@breaks("returns")
def outputs_always_come(patch: Patch) -> None:
    collect = fold.Fold.collect
    patch.setattr(fold.Fold, "collect", lambda self, *, states, outputs: collect(self, states=states, outputs=True))


@breaks("row-outputs", "emits")
def row_outputs_are_those_of_the_chunk(patch: Patch) -> None:
    fold_each = fold.Fold.fold_each

    def late(self: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
        outputs = fold_each(self, batch)
        return outputs.take(pa.array([outputs.num_rows - 1] * outputs.num_rows, pa.int64()))

    patch.setattr(fold.Fold, "fold_each", late)


@breaks("emits")
def outputs_come_after_each_row(patch: Patch) -> None:
    patch.setattr(fold.Fold, "_emit_mask", lambda *_: None)


@breaks("keeps-views")
def chunks_are_not_answered(patch: Patch) -> None:
    chunk = server_exchange.ServerExchange._chunk

    def silent(self: Any, batch: pa.RecordBatch) -> Any:
        self._open_request = replace(self._open_request, keeps_views=False)
        return chunk(self, batch)

    patch.setattr(server_exchange.ServerExchange, "_chunk", silent)


@breaks("keeps-views")
def entries_are_taken_for_any_state(patch: Patch) -> None:
    patch.setattr(fold.Fold, "take_entries", lambda *_: None)


@breaks("forget")
def forgotten_groups_keep_their_rows(patch: Patch) -> None:
    def lax(self: Any, slots: pa.Array) -> None:
        slot_numbers = slots.to_numpy(zero_copy_only=False)
        self._marked_below = 0
        self._marks[slot_numbers[slot_numbers < len(self._marks)]] = 0

    patch.setattr(fold.Fold, "forget", lax)


@breaks("isolated-errors")
def failed_groups_are_not_emptied(patch: Patch) -> None:
    clear = failures.Failures.clear

    def lax(self: Any) -> Any:
        return clear(self)[:0]

    patch.setattr(failures.Failures, "clear", lax)


@breaks("function-errors")
def errors_do_not_name_the_slot(patch: Patch) -> None:
    encode = error_translation.encode_error

    def vague(error: Any) -> bytes:
        message = pb.Error.FromString(encode(error))
        message.ClearField("slot")
        return message.SerializeToString()

    patch.setattr(error_translation, "encode_error", vague)


@breaks("message-limit")
def messages_of_any_size_are_taken(patch: Patch) -> None:
    patch.setattr(flight_server.FlightServer, "_check_size", lambda *_: None)
    patch.setattr(ipc.BatchReader, "_check_size", lambda *_: None)


@breaks("results-in-parts")
def results_are_never_cut(patch: Patch) -> None:
    patch.setattr(server_exchange, "sliced_to", lambda batch, bytes_max: [batch])


@breaks("valid-batches")
def batches_are_not_validated(patch: Patch) -> None:
    patch.setattr(encoding, "_check_batch", lambda batch: None)
    patch.setattr(encoding.Decoder, "_check", lambda self, batch: None)


@breaks("polite-end")
def the_end_is_an_error(patch: Patch) -> None:
    carry = flight_server.FlightServer._carry

    def odd(self: Any, *arguments: Any) -> None:
        carry(self, *arguments)
        raise RejectedError("BAD_FRAME", "the epoch is still open")

    patch.setattr(flight_server.FlightServer, "_carry", odd)


@breaks("several-calls")
def calls_are_folded_in_another_order(patch: Patch) -> None:
    bound_as(lambda calls: list(reversed(calls)))(patch)


# -- states ----------------------------------------------------------------------------------------------------------


@breaks("states-load")
def empty_states_touch_nothing(patch: Patch) -> None:
    merge = fold.Fold.merge_states

    def lax(self: Any, batch: pa.RecordBatch) -> None:
        if "state_0" in batch.schema.names:
            batch = batch.filter(batch.column("state_0").is_valid())
        merge(self, batch)

    patch.setattr(fold.Fold, "merge_states", lax)


@breaks("states-merge")
def only_the_last_state_of_a_slot_counts(patch: Patch) -> None:
    merge = fold.Fold.merge_states

    def odd(self: Any, batch: pa.RecordBatch) -> None:
        last = {slot: row for row, slot in enumerate(batch.column("slot").to_pylist())}
        merge(self, batch.take(pa.array(sorted(last.values()), pa.int64())))

    patch.setattr(fold.Fold, "merge_states", odd)


@breaks("state-mismatch")
def states_of_any_function_are_taken(patch: Patch) -> None:
    patch.setattr(fold, "written_by", lambda field, call: None)


@breaks("bad-states")
def missing_states_are_empty(patch: Patch) -> None:
    state_column = fold._state_column

    def lax(batch: pa.RecordBatch, place: int, call: Any) -> Any:
        if f"state_{place}" not in batch.schema.names:
            return pa.nulls(batch.num_rows, call.state_type), None
        return state_column(batch, place, call)

    patch.setattr(fold, "_state_column", lax)


@breaks("initial-outputs")
def states_without_rows_have_an_empty_answer(patch: Patch) -> None:
    states = server_exchange.ServerExchange._states

    def odd(self: Any, frame: Any) -> Any:
        for reply in states(self, frame):
            yield reply if frame.batch.num_rows else replace(reply, batch=reply.batch.slice(0, 0))

    patch.setattr(server_exchange.ServerExchange, "_states", odd)
    expected = transitions.Exchange._expected_number

    def none_for_none(self: Any, frame: Any) -> int:
        return frame.batch.num_rows if isinstance(frame, States) else expected(self, frame)

    patch.setattr(transitions.Exchange, "_expected_number", none_for_none)


@breaks("checkpoint")
def a_checkpoint_makes_slots_clean(patch: Patch) -> None:
    changed_states = fold.Fold.changed_states

    def odd(self: Any) -> pa.RecordBatch:
        batch = changed_states(self)
        self._marks[:] = 0
        return batch

    patch.setattr(fold.Fold, "changed_states", odd)


@breaks("checkpoint-without-states")
def any_barrier_saves(patch: Patch) -> None:
    collect = fold.Fold.collect

    def odd(self: Any, **options: bool) -> pa.RecordBatch:
        batch = collect(self, **options)
        self._marks[:] = 0
        return batch

    patch.setattr(fold.Fold, "collect", odd)


@breaks("checkpoint-if-reopen")
def states_come_whether_it_reopens_or_not(patch: Patch) -> None:
    def lax(decode: Callable[[Any], Any], message: Any) -> Any:
        frame = decode(message)
        return replace(frame, if_reopen=False) if isinstance(frame, Checkpoint) else frame

    _decode_with(patch, lax)


@breaks("retract-from-states")
def what_was_loaded_cannot_be_taken_back(patch: Patch) -> None:
    merge, retracts = fold.Fold.merge_states, fold._retracts
    has_loaded: set[bool] = set()

    def note(self: Any, batch: pa.RecordBatch) -> None:
        has_loaded.add(True)
        merge(self, batch)

    def begin(self: Any, *arguments: Any) -> None:
        has_loaded.clear()
        carry(self, *arguments)

    carry = flight_server.FlightServer._carry
    patch.setattr(flight_server.FlightServer, "_carry", begin)
    patch.setattr(fold.Fold, "merge_states", note)
    patch.setattr(fold, "_retracts", lambda batch: None if has_loaded else retracts(batch))


# Breaks whatever comes after it, so it is tried with its own rule only.
def places_are_never_free_again(patch: Patch) -> None:
    patch.setattr(exchanges.Exchanges, "release", lambda *_: None)
