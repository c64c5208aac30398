"""The fold: takes rows and states, and returns dirty slots. It uses no IO and no clock, so it is deterministic."""

from __future__ import annotations

import contextlib
import decimal
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.aggregate.bound_calls import BoundCall, bind_calls, demand_instance, result_schema, written_by
from foldflight.fold.aggregate.distinct import Distinct
from foldflight.fold.aggregate.groups_accumulator import CachedView, GroupsAccumulator
from foldflight.fold.aggregate.interpreter import InterpretedAccumulators, cannot_retract
from foldflight.fold.aggregate.state_codecs import StateOrigin
from foldflight.fold.aggregate.view_accumulators import ViewAccumulators
from foldflight.fold.failures import ERROR, Failures, close_all
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources
from foldflight.fold.rows import Column, Mask, Rows, Slots, capacity_for
from foldflight.functions.query.call import Options, Request, RowKind
from foldflight.functions.registry import Registry
from foldflight.functions.types.arrow import is_overflow

_DEFAULTS, _NOTHING = Options(), Resources()
_SLOT, _KIND, _EMIT = "slot", "kind", "emit"
# Marks of a slot: changed since results were last returned, and changed since states were last returned.
_DIRTY, _UNSAVED = 1, 2
_KIND_MAX = max(RowKind)
# Python's default of 28 digits would silently round a DECIMAL(38). A product of two of them fits this precision.
_EXACT = decimal.Context(prec=76)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _with_precision(
    method: Callable[Concatenate[Fold, _Parameters], _Result],
) -> Callable[Concatenate[Fold, _Parameters], _Result]:
    """Wrap a method that calls functions: set the decimal precision of SQL, and mark errors that would repeat."""

    @functools.wraps(method)
    def call_method(self: Fold, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs) -> _Result:
        with decimal.localcontext(_EXACT):
            try:
                return method(self, *arguments, **keywords)
            except FunctionError as error:
                functions = {call.bound.function.name: call.bound.function for call in self.calls}
                if error.function in functions:
                    error.repeats &= functions[error.function].capabilities.deterministic
                raise

    return call_method


class Fold:
    """Accumulators by slot for several calls over the same columns.

    After an error the accumulators are undefined: close the fold, and start another one from the last states. If errors
    are isolated and a function raises for a slot, the slot fails for all calls and other slots continue. Further rows
    of a failed slot are skipped, its states and outputs are NULL, with the error in `error`, and `collect` empties it.

    Args:
        calls: The bound calls.
        options: How they are evaluated.
        resources: What the process gives them.
        schema: The schema of the results, if it is known (`result_schema`).

    Attributes:
        calls: The calls.
        schema: The schema of the results of `collect` and similar methods.
        failures: The slots that have failed since the last barrier.
        isolated: The number of slots that have failed so far, by function.
        slot_count: The highest slot seen so far, plus one.
        state_bytes: Bytes of the states that `collect` returned last.

    Raises:
        FunctionError: USER_CODE, if a class cannot be instantiated or its `open` raises.
        RejectedError: SETTINGS, if states would be pickled and there is no signer; SIGNATURE, for a function that is
            declared `compile=True` and cannot be compiled.
    """

    def __init__(
        self,
        calls: Sequence[BoundCall],
        options: Options = _DEFAULTS,
        resources: Resources = _NOTHING,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        self.calls = tuple(calls)
        self.schema = result_schema(calls, isolates=options.isolate_errors) if schema is None else schema
        self._nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(0, type_) for type_ in self.schema.types], schema=self.schema
        )
        self.failures = Failures(isolates=options.isolate_errors)
        self.isolated = self.failures.counts
        self.slot_count = 0
        self.state_bytes = 0
        self._options = options
        self._marks = np.zeros(0, np.uint8)
        # All slots below this one have all marks.
        self._marked_below = 0
        self._accumulators: list[GroupsAccumulator] = []
        self._ask = resources.ask if options.keeps_views else None
        try:
            for index, call in enumerate(calls):
                ask = None if self._ask is None else functools.partial(self._ask_view, index)
                accumulators = call.accumulators(options, resources, self.failures, ask)
                self._accumulators.append(accumulators)
        except BaseException:  # also `UnansweredQuestion`, and interrupts
            with contextlib.suppress(FunctionError):  # the first error is the cause
                self.close()
            raise

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The current mode of each call."""
        return tuple(each.mode for each in self._accumulators)

    @_with_precision
    def merge_states(self, batch: pa.RecordBatch) -> None:
        """Merge states into slots, in order: into an empty slot a state is loaded. The slots become dirty.

        Args:
            batch: n rows: `slot` int32, and one column `state_i` for each call i; NULL means that there is no state. If
                the column's metadata names another version, the function's `migrate` converts the states. If errors are
                isolated, slots with an `error` have failed.

        Raises:
            RejectedError: STATE_MISMATCH, CANNOT_MERGE; SCHEMA_MISMATCH, for errors if they are not isolated.
            CorruptError: STATE_CHECKSUM.
            FunctionError: USER_CODE, if `merge`, `deserialize` or `migrate` raises.
        """
        slots = _slots(batch)
        self._touch(slots)
        if ERROR in batch.schema.names:
            self.failures.restore(slots, batch.column(ERROR))
        for index, (call, accumulators) in enumerate(zip(self.calls, self._accumulators, strict=True)):
            states, origin = _state_column(batch, index, call)
            present_slots = slots
            if states.null_count:
                present = states.is_valid()
                present_slots, states = slots[present.to_numpy(zero_copy_only=False)], states.filter(present)
            if self.failures:
                sound = ~self.failures.among(present_slots)
                present_slots, states = present_slots[sound], states.filter(pa.array(sound))
            if origin is None:
                accumulators.merge(present_slots, states)
            else:
                accumulators.migrate(present_slots, states, origin)

    def take_entries(self, batch: pa.RecordBatch) -> None:
        """Take entries of views from the engine. Entries that are known already are not replaced.

        Args:
            batch: n rows: `slot` int32, and `state_i` for calls with views, in which only views have values.

        Raises:
            RejectedError: BAD_FRAME, for columns without views, for slots without a state, and for entries that cannot
                be read.
        """
        slots = _slots(batch)
        for name in batch.schema.names:
            if name == _SLOT:
                continue
            view_state = next((each for each in self._accumulators_with_views() if name == f"state_{each[0]}"), None)
            if view_state is None or batch.schema.names.count(name) > 1:
                raise RejectedError("BAD_FRAME", f"Entries has the column {name}, which is no state with views")
            index, accumulators = view_state
            states = batch.column(name)
            if states.type != self.calls[index].state_type:
                raise RejectedError(
                    "BAD_FRAME",
                    f"the column {name} of Entries is {states.type}, expected {self.calls[index].state_type}",
                )
            accumulators.take_entries(slots, states)

    def _accumulators_with_views(self) -> Iterator[tuple[int, ViewAccumulators | Distinct]]:
        """Yield the accumulators with views whose entries the engine keeps, with the numbers of their calls."""
        for index, each in enumerate(self._accumulators):
            if isinstance(each, (ViewAccumulators, Distinct)) and self._ask is not None:
                yield index, each

    def _ask_view(
        self,
        index: int,
        slot: int,
        view: str,
        question: pa.Array,
        read: Callable[[pa.Array], Any],
        *,
        are_retained: bool,
    ) -> Any:
        """Ask the engine for entries of one view of one slot, as `AskView`."""
        assert self._ask is not None
        state_type = self.calls[index].state_type
        members = [question if field.name == view else pa.nulls(1, field.type) for field in state_type]
        state = pa.StructArray.from_arrays(members, fields=list(state_type))
        columns = [pa.array([slot], pa.int32())]
        columns += [state if field.name == f"state_{index}" else pa.nulls(1, field.type) for field in self.schema][1:]
        request = pa.RecordBatch.from_arrays(columns, schema=self.schema)

        def read_answers(batches: Sequence[pa.RecordBatch]) -> Any:
            answers = [_answered_view(batch, slot, f"state_{index}", state_type, view) for batch in batches]
            return read(pa.concat_arrays(answers) if answers else pa.nulls(0, question.type))

        return self._ask(request, read_answers, are_retained=are_retained)

    @_with_precision
    def fold(self, batch: pa.RecordBatch) -> None:
        """Apply the rows of a chunk, in order. Their slots become dirty.

        Args:
            batch: n rows: `slot` int32 (without it, all rows go to slot 0), `kind` int8 (see `RowKind`; without it, all
                rows are inserts), and the columns that the calls name.

        Raises:
            FunctionError: With function, slot and row.
            RejectedError: CANNOT_RETRACT, SCHEMA_MISMATCH.
        """
        slots, retracts = self._begin(batch)
        columns = _Columns(batch)
        for call, accumulators in zip(self.calls, self._accumulators, strict=True):
            rows = Rows(slots, retracts, [columns.get(*each) for each in call.columns])
            mask = self._mask(batch, call, rows)
            if self.failures:
                sound = ~self.failures.among(slots)
                mask = sound if mask is None else mask & sound
            if mask is not None:
                rows = rows.filter(mask)
            if len(rows):
                accumulators.update(rows)

    @_with_precision
    def fold_each(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply rows like `fold`, and return the outputs after each row.

        Args:
            batch: n rows, as for `fold`.

        Returns:
            n rows: `output_i` of each call i, after that row. If the fold emits, only the rows where `emit` is true.

        Raises:
            RejectedError: SCHEMA_MISMATCH, for a column `emit` with a NULL; and the errors of `fold`.
        """
        emit_mask = self._emit_mask(batch)
        slots, retracts = self._begin(batch)
        columns = _Columns(batch)
        outputs = []
        for call, accumulators in zip(self.calls, self._accumulators, strict=True):
            rows = Rows(slots, retracts, [columns.get(*each) for each in call.columns])
            mask = self._mask(batch, call, rows)
            included_mask = np.ones(len(rows), np.bool_) if mask is None else mask
            outputs.append(accumulators.running_values(rows, included_mask, emit_mask))
        return pa.RecordBatch.from_arrays(outputs, names=[f"output_{index}" for index in range(len(outputs))])

    def chunk(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Apply rows with `fold`, or with `fold_each` if `row_outputs` is set. It raises the same errors.

        Returns:
            With `row_outputs`, one batch in the schema `schema`, of a row for each row of `fold_each`: the position in
            the chunk as its slot, NULL states and the outputs after the row. Otherwise nothing.
        """
        if not self._options.row_outputs:
            self.fold(batch)
            return ()
        emit_mask, outputs = self._emit_mask(batch), self.fold_each(batch)
        indexes = np.arange(batch.num_rows, dtype=np.int32)
        if emit_mask is not None:
            indexes = indexes[emit_mask]
        columns: list[pa.Array] = [pa.array(indexes)]
        for call, column in zip(self.calls, outputs.columns, strict=True):
            columns += [pa.nulls(len(indexes), call.state_type), column]
        return (pa.RecordBatch.from_arrays(columns, schema=self.schema),)

    def _emit_mask(self, batch: pa.RecordBatch) -> Mask | None:
        """Return after which rows outputs are asked for; None for all."""
        if not self._options.emits:
            return None
        column = batch.column(_EMIT)
        if column.null_count:
            raise RejectedError("SCHEMA_MISMATCH", "the column emit has NULLs; it must be true or false in each row")
        emit_mask: Mask = column.to_numpy(zero_copy_only=False)
        return emit_mask

    @_with_precision
    def collect(self, *, states: bool = True, outputs: bool = True) -> pa.RecordBatch:
        """Return the slots changed since the last call, and mark all slots as clean.

        Args:
            states: Whether to return states; their columns are NULL otherwise.
            outputs: Whether to return outputs; their columns are NULL otherwise.

        Returns:
            One row for each dirty slot, ascending, in the schema `schema`.

        Raises:
            FunctionError: With function and slot.
        """
        slots = self._marked_slots(_DIRTY)
        if not len(slots):
            self.state_bytes = 0
            return self._nothing
        batch = self._results(slots, states=states, outputs=outputs)
        self.state_bytes = sum(column.nbytes for column in batch.columns[1 : 2 * len(self.calls) : 2]) if states else 0
        self._marked_below = 0
        self._marks[slots] &= ~np.uint8(_DIRTY | _UNSAVED if states else _DIRTY)
        self._forget_entries()
        if self.failures:
            failed_slots = self.failures.clear()
            self._empty(failed_slots)
            self._marks[failed_slots] = 0
        return batch

    @_with_precision
    def changed_states(self) -> pa.RecordBatch:
        """Return the states changed since states were last returned; the slots stay dirty.

        Returns:
            One row for each such slot, ascending, in the schema `schema`, with NULL outputs.

        Raises:
            FunctionError: With function and slot.
        """
        slots = self._marked_slots(_UNSAVED)
        with self.failures.propagate():  # a state that cannot be saved now may be valid again at the barrier
            batch = self._results(slots, states=True, outputs=False)
        self._forget_entries()
        self._marked_below = 0
        self._marks[slots] &= ~np.uint8(_UNSAVED)
        return batch

    def _forget_entries(self) -> None:
        for _, accumulators in self._accumulators_with_views():
            accumulators.forget_entries()

    @_with_precision
    def outputs(self, slots: pa.Array) -> pa.RecordBatch:
        """Return the outputs of n slots, in the schema `schema`, with NULL states. Marks of slots are not changed."""
        return self._results(slots.to_numpy(zero_copy_only=False), states=False, outputs=True)

    @_with_precision
    def values_twice(self, count: int) -> tuple[list[Any], list[Any]]:
        """Return the values of n slots of the first call, twice, without copying the accumulators in between."""
        accumulators, slots = self._accumulators[0], np.arange(count, dtype=np.int32)
        inner = getattr(accumulators, "inner", accumulators)
        if self.calls[0].is_counted or not isinstance(inner, InterpretedAccumulators):
            return accumulators.evaluate(slots).to_pylist(), accumulators.evaluate(slots).to_pylist()
        states = inner.decode(slots, accumulators.state(slots))
        first, second = (inner.values_of(slots, states).to_pylist() for _ in range(2))
        return first, second

    def _results(self, slots: Slots, *, states: bool, outputs: bool) -> pa.RecordBatch:
        is_sound = ~self.failures.among(slots)
        sound = slots[is_sound]
        columns: list[pa.Array] = []
        for index in range(len(self.calls)):
            result_columns = self._results_of(index, sound, states=states, outputs=outputs)
            if result_columns is None:
                raise self._too_large(index, sound, states=states, outputs=outputs)
            columns += result_columns
        if self.failures:  # includes slots that have failed just now
            indexes = pa.array(np.cumsum(is_sound) - 1, mask=self.failures.among(slots))
            columns = [column.take(indexes) for column in columns]
        if self.failures.isolates:
            columns.append(self.failures.column(slots))
        return pa.RecordBatch.from_arrays([pa.array(slots, pa.int32()), *columns], schema=self.schema)

    def _results_of(self, index: int, slots: Slots, *, states: bool, outputs: bool) -> tuple[pa.Array, pa.Array] | None:
        """Return the states and outputs of a call in n slots, NULL if not wanted; None if they do not fit an array."""
        accumulators = self._accumulators[index]
        state_type, result_type = self.schema.types[2 * index + 1 : 2 * index + 3]
        values = pa.nulls(len(slots), result_type)
        try:
            state = accumulators.state(slots) if states else pa.nulls(len(slots), state_type)
            if outputs and isinstance(state, pa.Array):
                values = accumulators.evaluate_states(slots, state) if states else accumulators.evaluate(slots)
        except (pa.ArrowException, TypeError) as error:
            if not is_overflow(error):
                raise
            return None
        return (state, values) if isinstance(state, pa.Array) and isinstance(values, pa.Array) else None

    def _too_large(self, index: int, slots: Slots, *, states: bool, outputs: bool) -> RejectedError:
        """Return the error for results of a call that an array cannot hold, with the slot if one alone is too large."""
        is_divided = True
        while is_divided and len(slots) > 1:
            half = len(slots) // 2
            parts = [slots[:half], slots[half:]]
            large = [part for part in parts if self._results_of(index, part, states=states, outputs=outputs) is None]
            is_divided = bool(large)
            slots = large[0] if large else slots
        name = self.calls[index].bound.function.name
        if len(slots) > 1:
            return RejectedError(
                "LIMIT",
                f"the states or results of {name} in {len(slots)} groups have more than 2 GiB together, which a column "
                "of Arrow cannot hold; fold fewer groups at once: use more buckets or partitions, or smaller epochs",
                function=name,
            )
        is_state = states and self._results_of(index, slots, states=True, outputs=False) is None
        if is_state and self.calls[index].is_counted:  # its state is the rows
            what = f"the rows that a group keeps for {name} (materialize, DISTINCT or ORDER BY) have"
            remedy = "leave out rows by a FILTER, shorten their values, or write a function that needs no rows"
        else:
            what, remedy = f"a state or result of {name} has", "keep less in the accumulator, or keep entries in a view"
        return RejectedError(
            "LIMIT",
            f"{what} more than 2 GiB, which Arrow cannot hold, whatever state_bytes_max is; {remedy}",
            function=name,
            slot=int(slots[0]),
            limit="state_bytes_max",
        )

    def forget(self, slots: pa.Array) -> None:
        """Empty n slots and mark them as clean."""
        slot_numbers = slots.to_numpy(zero_copy_only=False)
        self.failures.forget(slot_numbers)
        self._empty(slot_numbers)
        self._marked_below = 0
        self._marks[slot_numbers[slot_numbers < len(self._marks)]] = 0

    @property
    def is_saved(self) -> bool:
        """Whether every slot that has changed since its state was last returned has been emptied."""
        return not (self._marks & np.uint8(_UNSAVED)).any()

    @property
    def largest_view(self) -> CachedView | None:
        """The view with the most entries in memory; None if there are no views. Another thread may ask."""
        largest = [each.largest_view for each in self._accumulators if isinstance(each, (ViewAccumulators, Distinct))]
        return max((each for each in largest if each is not None), default=None)

    def _empty(self, slots: Slots) -> None:
        for accumulators in self._accumulators:
            accumulators.forget(slots)

    def close(self) -> None:
        """Close all functions. The first error is raised after all have been closed."""
        open_accumulators, self._accumulators = self._accumulators, []
        close_all(open_accumulators)

    def _begin(self, batch: pa.RecordBatch) -> tuple[Slots, Mask | None]:
        names = batch.schema.names
        slots = _slots(batch) if _SLOT in names else np.zeros(batch.num_rows, np.int32)
        retracts = _retracts(batch) if _KIND in names else None
        if retracts is not None:
            for call in self.calls:
                if not call.can_retract:
                    raise cannot_retract(call.bound.function)
        self._touch(slots)
        return slots, retracts

    def _mask(self, batch: pa.RecordBatch, call: BoundCall, rows: Rows) -> Mask | None:
        """Return which rows a call folds: rows that pass its filter and, with `skip_nulls`, have no NULL arguments.

        Raises:
            FunctionError: OVERFLOW, for an argument of such a row that does not fit its type; if errors are isolated,
                the row's slot fails.
        """
        mask: Mask | None = None
        if call.call.filter is not None:
            mask = pc.fill_null(batch.column(call.call.filter), False).to_numpy(zero_copy_only=False)
        for index, error in rows.misfits(call.bound.function.name, mask):
            error.slot = int(rows.slots[index])
            if not self.failures.take(error):
                raise error
        if call.bound.function.skip_nulls:
            mask = rows.without_nulls(rows.arguments[: len(call.call.arguments)], mask)
        return mask

    def _touch(self, slots: Slots) -> None:
        slot_count = int(slots.max(initial=-1)) + 1
        if slot_count <= self._marked_below:
            return
        self.slot_count = max(slot_count, self.slot_count)
        if slot_count > len(self._marks):
            capacity = capacity_for(slot_count, len(self._marks))
            self._marks = np.concatenate([self._marks, np.zeros(capacity - len(self._marks), np.uint8)])
        # NumPy is several times faster with indices of its native width than with narrower ones.
        self._marks[slots.astype(np.intp)] = _DIRTY | _UNSAVED
        if slot_count <= len(slots) and (self._marks[:slot_count] == (_DIRTY | _UNSAVED)).all():
            self._marked_below = slot_count

    def _marked_slots(self, mark: int) -> Slots:
        """Return the slots that have a mark, ascending."""
        return (self._marks & np.uint8(mark)).nonzero()[0].astype(np.int32)


class BoundAggregates:
    """The aggregate calls of an exchange, bound to functions and columns.

    Args:
        request: The calls.
        registry: The functions.
        where: The location of the functions, for messages.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SCHEMA_MISMATCH for columns that do not fit; SIGNATURE for direct arguments,
            and for outputs after each row if errors are isolated.
    """

    def __init__(self, request: Request, registry: Registry, where: str) -> None:
        if request.isolate_errors and request.row_outputs:
            raise RejectedError(
                "SIGNATURE",
                "Open has both row_outputs and isolate_errors, but outputs after each row cannot show errors; use "
                "only one",
            )
        emit_types = [field.type for field in request.columns if field.name == "emit"]
        if request.emits and not (request.row_outputs and emit_types == [pa.bool_()]):
            raise RejectedError(
                "SCHEMA_MISMATCH",
                "Open has emits, so it needs row_outputs and exactly one column `emit` of type bool",
            )
        self._request = request
        self.calls = bind_calls(registry, request.calls, request.columns, where=where, keeps_views=request.keeps_views)
        self.schema = result_schema(self.calls, isolates=request.isolate_errors)

    def check(self, accelerator: Accelerator) -> None:
        """Instantiate each class with its direct arguments, and compile functions declared `compile=True`."""
        for call in self.calls:
            demand_instance(call.bound)
            accelerator.demand(call.bound)

    def open(self, resources: Resources) -> Fold:
        """Return a fold without rows or states. Raises the errors of `Fold`."""
        return Fold(self.calls, self._request, resources, schema=self.schema)


class _Columns:
    """The argument columns of one chunk. Calls with the same argument share its cast and its Python values.

    Mutable values (lists, maps) are not shared, so that a function cannot change the arguments of another one.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.known: dict[tuple[str, str], Column] = {}

    def get(self, name: str, type_: pa.DataType, cache_key: tuple[str, str] | None) -> Column:
        cached_column = None if cache_key is None else self.known.get(cache_key)
        if cached_column is None:
            cached_column = Column.cast(name, self.batch.column(name), type_)
            if cache_key is not None:
                self.known[cache_key] = cached_column
        return cached_column


def _answered_view(batch: pa.RecordBatch, slot: int, column: str, state_type: pa.DataType, view: str) -> pa.Array:
    """Return one view of the answer to a question. Raises RejectedError BAD_FRAME if it answers another question."""
    states = batch.column(column) if column in batch.schema.names else pa.nulls(0, state_type)
    if states.type != state_type or not (_slots(batch) == slot).all() or len(states) != batch.num_rows:
        raise RejectedError(
            "BAD_FRAME", f"the engine was asked for entries of slot {slot} in {column}, and answered with others"
        )
    return states.flatten()[states.type.get_field_index(view)]


def _slots(batch: pa.RecordBatch) -> Slots:
    column = batch.column(_SLOT)
    if column.type != pa.int32() or column.null_count:
        raise RejectedError("SCHEMA_MISMATCH", f"the column slot must be int32 without NULLs, but it {_actual(column)}")
    slots: Slots = column.to_numpy(zero_copy_only=False)
    if len(slots) and int(np.minimum.reduce(slots)) < 0:
        raise RejectedError("SCHEMA_MISMATCH", f"the column slot has {int(slots.min())}; slots are 0 or more")
    return slots


def _actual(column: pa.Array) -> str:
    return f"is {column.type}" + (f" with {column.null_count} NULLs" if column.null_count else "")


def _retracts(batch: pa.RecordBatch) -> Mask | None:
    column = batch.column(_KIND)
    if not pa.types.is_integer(column.type) or column.null_count:
        raise RejectedError("SCHEMA_MISMATCH", f"the column kind must be int8 without NULLs, but it {_actual(column)}")
    kinds = column.to_numpy(zero_copy_only=False)
    if len(kinds) and not (int(kinds.min()) >= 0 and int(kinds.max()) <= _KIND_MAX):
        wrong = next(int(kind) for kind in kinds if not 0 <= kind <= _KIND_MAX)
        raise RejectedError("SCHEMA_MISMATCH", f"{wrong} is no row kind; the kinds are 0 to {_KIND_MAX}")
    retracts: Mask = (kinds == RowKind.UPDATE_BEFORE) | (kinds == RowKind.DELETE)
    return retracts if retracts.any() else None


def _state_column(batch: pa.RecordBatch, position: int, call: BoundCall) -> tuple[pa.Array, StateOrigin | None]:
    """Return the column of states of a call, and its origin if another version has written it."""
    index = batch.schema.get_field_index(f"state_{position}")
    if index < 0:
        raise RejectedError(
            "SCHEMA_MISMATCH", f"the states have no column state_{position}, for {call.bound.function.name}"
        )
    return batch.column(index), written_by(batch.schema.field(index), call)
