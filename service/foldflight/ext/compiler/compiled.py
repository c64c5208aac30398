"""Accumulators folded by machine code, compiled from the author's methods.

Compiled code never changes a result. At an exception, or a number that exceeds 64 bits, it stops before that row. The
interpreter folds the row, so all errors are the interpreter's, and compiled code continues with the next row. If the
accumulator then does not fit a record, the interpreter keeps its group until the group is forgotten. If a chunk has
many such rows, the interpreter keeps all groups until they are forgotten.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError
from foldflight.ext.compiler.arena import (
    CONTROLS,
    MARK,
    RAISED,
    Arena,
    Contents,
    Element,
    container_fields,
    containers_within,
    room,
    size_of,
)
from foldflight.ext.compiler.columns import Members, columns_of
from foldflight.ext.compiler.program import NoProgram, Program
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators, cannot_merge
from foldflight.fold.aggregate.record_layout import bytes_of, column_of, fill_member, records_at, struct_of
from foldflight.fold.aggregate.state_codecs import StateOrigin, UnconvertibleState
from foldflight.fold.machine_values import (
    DECIMALS,
    from_addresses,
    from_numbers,
    from_words,
    moment_of,
    text_of,
    to_addresses,
)
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Mask, Rows, Slots, capacity_for
from foldflight.functions.types.vectors import from_matrix, is_vector

if TYPE_CHECKING:
    from foldflight.ext.compiler.records import RecordField, RecordLayout  # brings numba

_RETAINED_BYTES_MIN: Final = 1 << 26  # bytes of arrays that are retained for their strings before strings are copied
_NO_FLAGS: Final = np.zeros(0, np.bool_)
# The interpreter may fold this many rows of a chunk one by one, plus one in 256, before it folds the rest of the chunk
# at once. A row folded alone costs as much as about sixty rows folded at once.
_INTERPRETED_ROWS_MIN: Final = 16
_INTERPRETED_SHARE: Final = 256
_NARROW: Final = re.compile(r"\b(half)?float\b")
_WIDE_BYTES: Final = 1 << 10  # accumulators, as vectors, of which twice as many as are there would take much memory
_RECORD_BYTES_MAX: Final = 1 << 12  # largest accumulator that is converted back after one interpreted row


class CompiledAccumulators(GroupsAccumulator):
    """Accumulators as records of a table. The interpreter has them until compiling pays, or if it is impossible.

    Args:
        inner: The interpreter, without accumulators.
        find: Called with the number of the next rows, states or outputs. It returns None while compiling does not pay,
            and then the compiled code or the reason why there is none.

    Raises:
        RejectedError: SIGNATURE, from `find`.
    """

    def __init__(self, inner: InterpretedAccumulators, find: Callable[[int], Program | NoProgram | None]) -> None:
        self.inner = inner
        self._find = find
        self._program: Program | None = None
        self._is_settled = False
        self._table = np.zeros(0, np.uint8)
        self._present = np.zeros(0, np.bool_)
        self._interpreted_slots = np.zeros(0, np.bool_)  # flags of slots that the interpreter has; empty if it has none
        self._idle_program: Program | None = None  # the compiled code while the interpreter has all slots
        self._missing_loop: Callable[[], Any] | None = None  # returns the loop for which it was left, or None
        self._progress = np.zeros(CONTROLS, np.int64)  # the row, and the control words of the arena
        self._arena = Arena(self._progress)
        self._fresh = np.zeros(0, np.uint8)
        self._retained: list[pa.Array] = []
        self._retained_sizes: dict[int, int] = {}  # bytes of the retained buffers, by address
        self._retained_bytes, self._retained_bytes_max = 0, _RETAINED_BYTES_MIN
        self._compiled_for(0)

    @property
    def mode(self) -> Mode:
        return self.inner.mode if self._program is None else Mode.COMPILED

    def update(self, rows: Rows) -> None:
        program = self._compiled_for(len(rows))
        rows_done = 0
        if program is not None:
            run, unfit = self._loop(program, rows, program.rows)
            if run is not None:
                rows_done = self._fold_with_fallback(
                    rows, unfit, run, lambda row: self.inner.update(rows.part(row, row + 1))
                )
                if rows_done == len(rows):
                    return
        self._leave()
        self.inner.update(rows.part(rows_done))

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        program = self._compiled_for(len(rows))
        shows = np.ones(len(rows), np.bool_) if requested is None else requested
        outputs: list[pa.Array] = []
        rows_done = 0
        if program is not None and len(rows):
            run, unfit = self._loop(program, rows, program.each)
            if run is not None:
                values, known_mask = program.allocate(len(rows))
                first = 0

                def show(end: int) -> None:
                    part = slice(first, end)
                    outputs.append(self._cast(values[part][shows[part]], known_mask[part][shows[part]]))

                def interpret(row: int) -> None:
                    nonlocal first
                    show(row)
                    first, part = row + 1, slice(row, row + 1)
                    outputs.append(self.inner.running_values(rows.part(row, row + 1), mask[part], shows[part]))

                more = (mask, shows, self._fresh, values, known_mask)
                rows_done = self._fold_with_fallback(rows, unfit, lambda end: run(end, *more), interpret)
                show(rows_done)
                if rows_done == len(rows):
                    return pa.concat_arrays(outputs)
        self._leave()
        return pa.concat_arrays(
            [*outputs, self.inner.running_values(rows.part(rows_done), mask[rows_done:], shows[rows_done:])]
        )

    def _loop(
        self, program: Program, rows: Rows, loop: Callable[..., Any]
    ) -> tuple[Callable[..., None] | None, Mask | None]:
        """Return a function that runs the loop up to a row, and a mask of the rows that compiled code does not accept.

        Both are None if the loop cannot be used for this chunk.
        """
        columns, valid, unfit = columns_of(rows, program.arguments)
        if self.inner.bound.function.skip_nulls and not any(isinstance(kind, Members) for _, kind in program.arguments):
            valid = ()  # a row with NULL is in no mask, so no loop reads its values
        kernel = loop(nulls=bool(valid))
        if kernel is None:
            self._missing_loop = partial(loop, nulls=bool(valid))
        takes = rows.retracts is None or self.inner.bound.function.capabilities.retract
        if kernel is None or columns is None or not takes:
            return None, None
        self._grow(rows.slots)
        self._retain(program, [column.array for column in rows.arguments])
        retracts = _NO_FLAGS if rows.retracts is None else rows.retracts
        return lambda end, *more: self._run(kernel, rows.slots[:end], retracts, columns, valid, *more), unfit

    def _fold_with_fallback(
        self, rows: Rows, unfit: Mask | None, run: Callable[[int], None], interpret: Callable[[int], None]
    ) -> int:
        """Fold rows with compiled code, and rows that it does not accept one by one with the interpreter.

        Args:
            rows: The rows.
            unfit: A mask of the rows that compiled code does not accept; None if it accepts all.
            run: Runs the loop from the row in `progress` up to a row.
            interpret: Folds one row with the interpreter.

        Returns:
            The number of folded rows: fewer than all if too many of them would be interpreted one by one.
        """
        apart = self._interpreted_among(rows.slots)
        ahead: Any = rows.slots[:0] if unfit is None else np.flatnonzero(unfit)
        if apart is not None:
            ahead = np.union1d(ahead, np.flatnonzero(apart))
        count, rows_done = len(rows), 0
        interpreted_rows_left = count // _INTERPRETED_SHARE + _INTERPRETED_ROWS_MIN
        while True:
            if len(ahead):
                ahead = ahead[np.searchsorted(ahead, rows_done) :]
            if len(ahead) > interpreted_rows_left:
                return rows_done
            end = int(ahead[0]) if len(ahead) else count
            self._progress[0] = rows_done
            try:
                run(end)
                rows_done = end
            except RAISED:
                rows_done = int(self._progress[0])
            if rows_done == count or not interpreted_rows_left:
                return rows_done
            interpreted_rows_left -= 1
            slot = rows.slots[rows_done : rows_done + 1]
            if not self._interpret_row(slot, partial(interpret, rows_done)):
                ahead = np.union1d(ahead, rows_done + np.flatnonzero(rows.slots[rows_done:] == slot))
            rows_done += 1

    def _interpret_row(self, slot: Slots, interpret: Callable[[], None]) -> bool:
        """Fold one row with the interpreter. Return whether the accumulator was converted back to a record.

        Args:
            slot: The slot, shape (1,).
            interpret: Folds the row.
        """
        if self._present[slot].all():
            self._hand_over(slot)
            self._present[slot] = False
        if not len(self._interpreted_slots):
            self._interpreted_slots = np.zeros(len(self._present), np.bool_)
        self._interpreted_slots[slot] = True
        interpret()
        if slot[0] in self.inner.failures:
            return False
        if not len(self.inner.absent(slot)):
            records = self._records_of_interpreted(slot, _RECORD_BYTES_MAX)
            if records is None:
                return False
            self._rows[slot] = records
            self._present[slot] = True
            self.inner.forget(slot)
        self._interpreted_slots[slot] = False
        return True

    def _records_of_interpreted(self, slots: Slots, bytes_max: int | None = None) -> Any | None:
        """Return accumulators of the interpreter as records; None if one does not fit, or a record would change it.

        Args:
            slots: The slots.
            bytes_max: The largest size of the states for which the conversion pays; None: any size.
        """
        assert self._program is not None
        accumulators, fields = self.inner.accumulators_of(slots), self._program.layout.fields
        accumulator_types = self._program.untyped_accumulators
        if accumulator_types is not None:
            objects = [each for accumulator in accumulators for each in accumulator_types.objects(accumulator)]
        else:
            objects = [each for accumulator in accumulators for each in _objects(accumulator, self._program.layout)]
        if len({*map(id, objects)}) < len(objects):
            return None  # a record would make two lists of one list that is shared
        layout = self._program.layout
        if accumulator_types is None and any(_record_would_change(accumulator, layout) for accumulator in accumulators):
            return None
        for field in fields:
            if field.contents is not None and field.contents.shape != "list" and "float" in field.contents.key.kinds:
                containers = [
                    _member(each, field.name)
                    if accumulator_types is None
                    else (accumulator_types.members(each) or {}).get(field.name)
                    for each in accumulators
                ]
                if any(map(_has_nan, containers)):
                    return None  # Python finds a NaN among keys by its identity, which a record does not keep
        try:
            with self.inner.failures.propagate():
                states = self.inner.state(slots)
        except FunctionError:  # a number exceeds its type, but later rows may reduce it
            return None
        if bytes_max is not None and states.nbytes > bytes_max:
            return None
        return self._records(states, may_copy=bytes_max is None)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        program = self._compiled_for(len(slots))
        records = None
        if program is not None and self._interpreted_among(slots) is None:
            records = self._records(states)
        if program is None or records is None:
            self._leave()
            self.inner.merge(slots, states)
            return
        self._grow(slots)
        if program.merge is None:
            if self._present[slots].any() or len(np.unique(slots)) < len(slots):
                self._interpret_merge(slots, states)
                return
            self._rows[slots] = records
            self._present[slots] = True
            return
        try:
            self._run(program.merge, slots, records.view(np.uint8), merging=[records])
        except RAISED:
            rows_done = int(self._progress[0])
            self._leave()
            self.inner.merge(slots[rows_done:], states.slice(rows_done))

    def _interpret_merge(self, slots: Slots, states: pa.Array) -> None:
        """Merge states with an interpreted merge. Accumulators that then do not fit a record stay interpreted."""
        if not self.inner.bound.function.capabilities.merge:
            raise cannot_merge(self.inner.name)
        touched = np.unique(slots)
        mine, own = touched[self._present[touched]], self._instance_text()
        self._hand_over(mine)
        self._present[mine] = False
        if not len(self._interpreted_slots):
            self._interpreted_slots = np.zeros(len(self._present), np.bool_)
        self._interpreted_slots[touched] = True
        self.inner.merge(slots, states)
        if own != self._instance_text():
            self._leave()  # compiled code would go on with the numbers from before
            return
        back = np.array([slot for slot in touched.tolist() if slot not in self.inner.failures], np.int32)
        if len(self.inner.absent(back)):
            return
        records = self._records_of_interpreted(back)
        if records is None:
            return
        self._rows[back] = records
        self._present[back] = True
        self.inner.forget(back)
        self._interpreted_slots[back] = False

    def _run(self, loop: Any, *arguments: Any, merging: Sequence[Any] = ()) -> None:
        """Run a loop over the table. `merging`: further records whose containers move when the arena grows."""
        assert self._program is not None
        own = (self._table, self._present, self._program.instance, self._progress)
        self._arena.run(loop, (*own, *arguments), lambda: [*self._tables, *merging], self._program.layout.fields)

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        converted_states = None if self._program is None else self.inner.convert_states(slots, states, origin)
        if converted_states is None:
            self._leave()
            self.inner.migrate(slots, states, origin)
        else:
            self.merge(*converted_states)

    def state(self, slots: Slots) -> pa.Array:
        if self._compiled_for(len(slots)) is not None:
            self._grow(slots)
            apart = self._interpreted_among(slots)
            mine = slots if apart is None else slots[~apart]
            self._present[mine] = True
            states = self._column_states(mine, narrow=True)
            if states is not None:
                states = self._encode(states)
            if states is not None:
                return states if apart is None else _interleave(apart, states, self.inner.state(slots[apart]))
            self._leave()
        return self.inner.state(slots)

    def evaluate(self, slots: Slots) -> pa.Array:
        program = self._compiled_for(len(slots))
        if program is None:
            return self.inner.evaluate(slots)
        if program.values is None:
            return self._interpret_results(slots)
        apart = self._interpreted_among(slots)
        mine = slots if apart is None else slots[~apart]
        values, valid = program.allocate(len(mine))
        try:
            self._progress[0] = 0
            self._run(program.values, self._fresh, mine, values, valid)
        except RAISED:  # a compiled get_value changes nothing, so nothing has to be undone
            self._leave()
            return self.inner.evaluate(slots)
        outputs = self._cast(values, valid)
        return outputs if apart is None else _interleave(apart, outputs, self.inner.evaluate(slots[apart]))

    def _interpret_results(self, slots: Slots) -> pa.Array:
        """Return the results of an interpreted get_value, which works on the accumulators as Python objects."""
        present_slots = np.unique(slots[slots < len(self._present)])
        present_slots = present_slots[self._present[present_slots]]
        own = self._instance_text()
        accumulators = dict(zip(present_slots.tolist(), self._accumulators(present_slots), strict=True))
        apart = self._interpreted_among(slots)
        if apart is not None:
            accumulators |= self.inner.stored_otherwise(slots[apart])
        outputs = self.inner.values_of(slots, accumulators)
        if own != self._instance_text():
            self._leave()  # compiled code would go on with the numbers from before
        return outputs

    def _instance_text(self) -> str:
        """Return the instance attributes that are part of the compiled code, as text, to detect that they changed."""
        from foldflight.ext.compiler.compile_plan import own_attributes, plain_kind

        own = own_attributes(self.inner.methods)
        return repr({name: value for name, value in own.items() if plain_kind(value) is not None})

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        program = self._compiled_for(len(slots))
        if program is None or program.values is None or self._interpreted_among(slots) is not None:
            return self.inner.evaluate_states(slots, states)
        # A record is what its state gives, but for floats, which have 64 bits in all records.
        return self.inner.evaluate_states(slots, states) if _NARROW.search(str(states.type)) else self.evaluate(slots)

    def _cast(self, values: Any, valid: Mask) -> pa.Array:
        return results_of(values, valid, self.inner.bound.result_type)

    def forget(self, slots: Slots) -> None:
        if self._program is None:
            self.inner.forget(slots)
            return
        apart = self._interpreted_among(slots)
        if apart is not None:
            self.inner.forget(slots[apart])
        slots_in_range = slots[slots < len(self._present)]
        self._present[slots_in_range] = False
        if len(self._interpreted_slots):
            self._interpreted_slots[slots_in_range] = False
        bytes_of(self._rows)[slots_in_range] = bytes_of(self._fresh.view(self._program.dtype))
        self._start(slots_in_range)

    def close(self) -> None:
        self._table, self._present, self._retained = np.zeros(0, np.uint8), np.zeros(0, np.bool_), []
        self.inner.close()

    def _compiled_for(self, rows: int) -> Program | None:
        """Return the compiled code if it exists, or if compiling pays for this number of further rows.

        A state or an output counts as a row, because it costs the interpreter about as much.
        """
        if not self._is_settled:
            program = self._find(rows)
            if program is not None:
                self._is_settled = True
                if isinstance(program, Program):
                    self._enter(program)
        elif self._idle_program is not None and (not self.inner.holds_any or self._is_loop_there()):
            self._enter(self._idle_program)
        return self._program

    def _is_loop_there(self) -> bool:
        """Return whether another process has compiled the loop without which compiled code was left."""
        return self._missing_loop is not None and self._missing_loop() is not None

    def _enter(self, program: Program) -> None:
        """Move the accumulators from the interpreter into the table, if their states fit."""
        self._missing_loop = None
        slots = self.inner.occupied_slots()
        self._program, self._idle_program = program, None
        self._fresh = program.fresh
        self._progress[:] = 0  # no addresses of an earlier arena
        self._progress[MARK] = -2 if container_fields(program.layout.fields) else -1
        self._arena = Arena(self._progress)
        if container_fields(program.layout.fields):
            self._fresh = program.fresh.copy()
            for field in container_fields(program.layout.fields):
                self._fresh.view(program.dtype)[field.name][:, 0] = self._progress.ctypes.data
        if program.initial is not None:
            records = self._records_of(program.initial)
            assert records is not None
            self._fresh = records.view(np.uint8)
        if len(slots):
            records = self._records_of_interpreted(slots)
            if records is None:
                self._program, self._idle_program, self._arena = None, program, Arena(self._progress)
                return
            self._grow(slots)
            self._rows[slots] = records
            self._present[slots] = True
            self.inner.forget(slots)

    def _leave(self) -> None:
        """Move all accumulators to the interpreter, which keeps them until they are forgotten."""
        if self._program is None:
            return
        slots = np.flatnonzero(self._present).astype(np.int32)
        if len(slots):
            self._hand_over(slots)
        self._program, self._idle_program, self._arena = None, self._program, Arena(self._progress)
        self._table, self._present, self._interpreted_slots = (
            np.zeros(0, np.uint8),
            np.zeros(0, np.bool_),
            np.zeros(0, np.bool_),
        )
        self._retained, self._retained_sizes = [], {}
        self._retained_bytes, self._retained_bytes_max = 0, _RETAINED_BYTES_MIN

    def _interpreted_among(self, slots: Slots) -> Mask | None:
        """Return a mask of the slots that the interpreter has; None if it has none of them."""
        if not len(self._interpreted_slots) or not self._interpreted_slots.any():
            return None
        apart = np.zeros(len(slots), np.bool_)
        in_range_mask = slots < len(self._interpreted_slots)
        apart[in_range_mask] = self._interpreted_slots[slots[in_range_mask]]
        return apart if apart.any() else None

    def _hand_over(self, slots: Slots) -> None:
        """Give the interpreter the accumulators of slots for which it has none."""
        self.inner.load(slots, self._accumulators(slots))

    def _accumulators(self, slots: Slots) -> list[Any]:
        """Return the accumulators of n slots as Python objects."""
        assert self._program is not None
        states = self._column_states(slots, narrow=False)
        assert states is not None
        accumulator_types = self._program.untyped_accumulators
        return self.inner.codec.decode(states) if accumulator_types is None else accumulator_types.accumulators(states)

    def _encode(self, accumulators: pa.Array) -> pa.Array | None:
        """Return a column of accumulators as states; None if they cannot be pickled."""
        assert self._program is not None
        accumulator_types = self._program.untyped_accumulators
        if accumulator_types is None:
            return accumulators
        try:
            return self.inner.codec.encode(accumulator_types.accumulators(accumulators))
        except UnconvertibleState:
            return None

    def _decode(self, states: pa.Array) -> pa.Array | None:
        """Return states as a column of accumulators; None if one has types that compiled code does not have."""
        assert self._program is not None
        accumulator_types = self._program.untyped_accumulators
        if accumulator_types is None:
            return states
        try:
            return accumulator_types.column(self.inner.codec.decode(states))
        except UnconvertibleState:
            return None

    @property
    def _type(self) -> pa.DataType:
        """The type of accumulators as a column."""
        assert self._program is not None
        return (
            self.inner.codec.arrow
            if self._program.untyped_accumulators is None
            else self._program.untyped_accumulators.arrow
        )

    @property
    def _nests(self) -> bool:
        """Whether states are structs with other structs inside, for the objects and tuples within an accumulator."""
        assert self._program is not None
        layout = self._program.layout
        return self._program.untyped_accumulators is None and bool(layout.parts or layout.tuples)

    @property
    def _types(self) -> list[pa.DataType]:
        """The types of the columns of all fields."""
        assert self._program is not None
        type_, fields = self._type, self._program.layout.fields
        if not self._nests:
            return [type_.field(index).type if pa.types.is_struct(type_) else type_ for index in range(len(fields))]
        types = []
        for field in fields:
            inner = type_
            for name in field.name.split("."):
                inner = inner.field(name).type
            types.append(inner)
        return types

    @property
    def _rows(self) -> Any:
        assert self._program is not None
        return self._table.view(self._program.dtype)

    @property
    def _tables(self) -> list[Any]:
        """All records that have containers."""
        assert self._program is not None
        return [self._rows, self._fresh.view(self._program.dtype)]

    def _grow(self, slots: Slots) -> None:
        """Enlarge the table for these slots, and reset the progress to row 0 for the next loop."""
        assert self._program is not None
        self._progress[0] = 0
        slot_count, count = int(slots.max(initial=-1)) + 1, len(self._present)
        if slot_count > count:
            size = capacity_for(slot_count, count)
            if self._program.dtype.itemsize > _WIDE_BYTES:
                size = max(slot_count, min(size, count + count // 8))
            self._present = np.concatenate([self._present, np.zeros(size - count, np.bool_)])
            if len(self._interpreted_slots):
                self._interpreted_slots = np.concatenate([self._interpreted_slots, np.zeros(size - count, np.bool_)])
            self._table = np.concatenate([self._table, np.tile(self._fresh, size - count)])
            self._start(np.arange(count, size, dtype=np.int32))

    def _start(self, slots: Slots) -> None:
        """Give slots that have a new accumulator memory of their own for what its containers hold at first."""
        assert self._program is not None
        if self._program.initial is None:
            return
        fields, fresh = container_fields(self._program.layout.fields), self._fresh.view(self._program.dtype)
        words = len(slots) * sum(size_of(fresh[each.name][0], each.contents) for each in fields)
        offset = self._arena.reserve(self._tables, fields, words)
        for each in fields:
            header = fresh[each.name][0]
            self._rows[each.name][slots] = self._arena.repeat(header, each.contents, len(slots), offset)
            offset += len(slots) * size_of(header, each.contents)

    def _column_states(self, slots: Slots, *, narrow: bool) -> pa.Array | None:
        """Return the states of n slots; None if one does not fit its type. Without `narrow`, integers have 64 bits."""
        assert self._program is not None
        records, type_ = records_at(self._rows, slots), self._type
        columns = []
        for field, expected in zip(self._program.layout.fields, self._types, strict=True):
            if field.contents is None:
                columns.append(column_of(records, field, expected, narrow=narrow))
            else:
                columns.append(self._arena.column(records[field.name], field.contents, expected, narrow=narrow))
        if self._nests:
            return _as_structs(columns, type_, self._program.layout, narrow=narrow)
        return struct_of(columns, type_, narrow=narrow)

    def _records(self, states: pa.Array, *, may_copy: bool = True) -> Any | None:
        """Return n states as n records; None if one has a NULL where a record cannot. `may_copy`: see `_retain`."""
        column = self._decode(states)
        return None if column is None else self._records_of(column, may_copy=may_copy)

    def _records_of(self, states: pa.Array, *, may_copy: bool = True) -> Any | None:
        """Return a column of n accumulators as `_records` returns n states."""
        assert self._program is not None
        self._retain(self._program, [states], may_copy=may_copy)
        records, fields = np.zeros(len(states), self._program.dtype), self._program.layout.fields
        columns = _flat(states, self._program.layout) if self._nests else _columns(states, len(fields))
        if columns is None:
            return None
        words = 0
        for field, column in zip(fields, columns, strict=True):
            more = 0 if field.contents is None else room(column, field.contents)
            if more is None:
                return None
            words += more
        offset = self._arena.reserve(self._tables, fields, words)
        for field, column in zip(fields, columns, strict=True):
            if field.contents is None:
                if not fill_member(records, field, column):
                    return None
                continue
            filled_to = self._arena.fill(records[field.name], field.contents, column, offset)
            if filled_to is None:
                return None
            offset = filled_to
        return records

    def _retain(self, program: Program, arrays: list[pa.Array], *, may_copy: bool = True) -> None:
        """Retain arrays with strings that accumulators refer to. Copy the strings if most of the memory is unused.

        Args:
            program: The compiled code.
            arrays: The arrays.
            may_copy: False in the middle of a chunk, because its later rows refer to the arrays.
        """
        retained_texts = self._arena.take_texts()
        if not program.texts:
            return
        if may_copy and self._retained_bytes > self._retained_bytes_max:
            copies = []  # keeps the new arrays until the old ones are released
            slots = np.flatnonzero(self._present).astype(np.int32)
            for field in program.texts:
                if field.contents is not None:
                    copies.append(self._copy_texts(field, slots))
                    continue
                type_ = pa.string() if field.kind == "text" else pa.binary()
                mask = ~self._rows[field.valid][slots] if field.optional else None
                texts = from_addresses(self._rows[field.name][slots], mask, type_)
                self._rows[field.name][slots] = to_addresses(texts)
                copies.append(texts)
            self._retained, self._retained_sizes = copies, _memory_of(copies)
            self._retained_bytes = sum(self._retained_sizes.values())
            self._retained_bytes_max = max(_RETAINED_BYTES_MIN, 2 * self._retained_bytes)
        arrays = [*retained_texts, *arrays]
        self._retained += arrays
        for address, size in _memory_of(arrays).items():
            if address not in self._retained_sizes:
                self._retained_sizes[address] = size
                self._retained_bytes += size

    def _copy_texts(self, field: RecordField, slots: Slots) -> pa.Array:
        """Copy the strings of containers, and return the column to which the containers refer now."""
        assert field.contents is not None
        assert self._program is not None
        headers = self._rows[field.name][slots]
        expected = self._types[self._program.layout.fields.index(field)]
        column = self._arena.column(headers, field.contents, expected, narrow=False)
        needed_room = None if column is None else room(column, field.contents)
        assert needed_room is not None
        offset = self._arena.reserve(self._tables, self._program.layout.fields, needed_room)
        new_column = self._arena.fill(headers, field.contents, column, offset)
        assert new_column is not None
        self._rows[field.name][slots] = headers
        return column


def _columns(states: pa.Array, count: int) -> list[pa.Array]:
    return [states.field(index) if pa.types.is_struct(states.type) else states for index in range(count)]


def _flat(states: pa.Array, layout: RecordLayout) -> list[pa.Array] | None:
    """Return the columns of fields, such as `x.count`.

    Returns:
        One column a field; None if an object within a state is NULL, or a member of a tuple that is not.
    """
    columns, tuples = [], {path for path, _ in layout.tuples}
    for field in layout.fields:
        column, path = states, ""
        for name in field.name.split("."):
            if path not in tuples:
                if column.null_count:
                    return None
                column = column.field(name)
            else:
                nulls = column.null_count
                column = column.flatten()[column.type.get_field_index(name)]  # NULL where the tuple is
                if column.null_count > nulls:
                    return None
            path += f"{name}."
        columns.append(column)
    return columns


def _as_structs(
    columns: Sequence[pa.Array | None], type_: pa.DataType, layout: RecordLayout, *, narrow: bool
) -> pa.Array | None:
    """Return columns of fields as states of `type_`, with a struct for each object and tuple; None if one is None."""
    remaining_columns = iter(columns)
    tuples = {path for path, _ in layout.tuples}
    structs = {*tuples, *(path for path, _ in layout.parts)}

    def make_array(inner: pa.DataType, path: str) -> pa.Array | None:
        members = [
            make_array(each.type, f"{path}{each.name}.")
            if f"{path}{each.name}." in structs
            else next(remaining_columns)
            for each in inner
        ]
        array = struct_of(members, inner, narrow=narrow)
        if path not in tuples or array is None:
            return array
        return pa.StructArray.from_arrays(array.flatten(), fields=list(array.type), mask=array.field(0).is_null())

    return make_array(type_, "")


def _objects(accumulator: Any, layout: RecordLayout) -> list[Any]:
    """Return the lists, dicts, other containers and objects within an accumulator."""
    paths = [path[:-1] for path, _ in layout.parts] + [field.name for field in layout.fields if field.is_container]
    inner = [
        each
        for field in layout.fields
        if field.contents is not None
        for each in containers_within(field.contents, _member(accumulator, field.name))
    ]
    return [*(_member(accumulator, path) for path in paths), *inner]


def _member(accumulator: Any, path: str) -> Any:
    """Return a member by its path; the accumulator itself if it is a container, which has no members."""
    try:
        return operator.attrgetter(path)(accumulator)
    except AttributeError:
        return accumulator


def _has_nan(keys: Any) -> bool:
    """Return whether one of the keys of a dict or set is NaN, or has one."""
    members = (each for key in keys or () for each in (key if type(key) is tuple else (key,)))
    return any(each != each for each in members)  # noqa: PLR0124


def _record_would_change(accumulator: Any, layout: RecordLayout) -> bool:
    """Return whether a record would change an accumulator.

    It would if there is an int among floats, a decimal that is -0, or another tuple than its annotation tells.
    """
    for path, cls in layout.tuples:
        is_itself = accumulator is None or isinstance(accumulator, tuple)
        held: Any = accumulator if is_itself else _member(accumulator, path[:-1])
        members = list(held) if isinstance(held, tuple) and type(held) is cls else []
        has_none = any(each is None for each in members)
        if held is not None and (len(members) != len(layout.within(path)) or has_none):
            return True
    if accumulator is None:
        return False
    for index, field in enumerate(layout.fields):
        if isinstance(accumulator, tuple):
            value = accumulator[index]
        else:
            value = layout.value_of(accumulator, field) if "." in field.name else _member(accumulator, field.name)
        if field.vector:
            continue  # its state has the same items, or is refused
        if field.contents is None:
            part = Element((field.kind,))
            actual: list[tuple[Element, Any]] = [(part, value if field.length else (value,))]
        else:
            actual = _parts_of(field.contents, value)
        for part, values in actual:
            if part.is_tuple and not {*map(type, values)} <= {part.cls or tuple}:
                return True
            if any(kind == "float" or kind in DECIMALS for kind in part.kinds) and any(
                (kind == "float" and type(each) is int)
                or (kind in DECIMALS and each is not None and not each and each.is_signed())
                for value in values
                for kind, each in zip(part.kinds, value if part.is_tuple else (value,), strict=False)
            ):
                return True
    return False


def _parts_of(contents: Contents, value: Any) -> list[tuple[Element, Any]]:
    """Return the types and the values of the keys, values and items of a container, and of those within it."""
    if contents.value is None:
        return [(contents.key, value)]
    if contents.nested is None:
        return [(contents.key, value), (contents.value, value.values())]
    return [(contents.key, value), *(part for each in value.values() for part in _parts_of(contents.nested, each))]


def _interleave(apart: Mask, mine: pa.Array, others: pa.Array) -> pa.Array:
    """Return one column of n values in order: from `others` where `apart` is true, and from `mine` elsewhere."""
    order = np.empty(len(apart), np.int64)
    order[~apart], order[apart] = np.arange(len(mine)), len(mine) + np.arange(len(others))
    return pa.concat_arrays([mine, others]).take(pa.array(order))


def _memory_of(arrays: Sequence[pa.Array]) -> dict[int, int]:
    """Return the bytes of the buffers that arrays keep alive, by address: an IPC message counts as a whole."""
    sizes = {}
    for array in arrays:
        for buffer in array.buffers():
            whole = buffer
            while whole is not None and whole.parent is not None:
                whole = whole.parent
            if whole is not None:
                sizes[whole.address] = whole.size
    return sizes


def results_of(values: Any, known_mask: Mask, type_: pa.DataType) -> pa.Array:
    """Return n results of compiled code as a column; `known_mask` is false for None."""
    mask = None if known_mask.all() else ~known_mask
    if is_vector(type_):
        return from_matrix(values, type_, mask)
    if text_of(type_) is not None:
        return from_addresses(values, mask, type_)
    if pa.types.is_decimal(type_):
        return from_words(values, mask, type_)
    results = pa.array(values, mask=mask)
    return results.cast(type_) if moment_of(type_) is None else from_numbers(results, type_)
