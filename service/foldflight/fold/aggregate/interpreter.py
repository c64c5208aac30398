"""Accumulators folded by calling the author's methods, row by row."""

from __future__ import annotations

import contextlib
import copy
import datetime
import decimal
import numbers
import pickle
from collections import deque
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from itertools import repeat
from operator import is_, length_hint
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from foldflight.errors import FunctionError, RejectedError
from foldflight.fold.aggregate.groups_accumulator import GroupsAccumulator
from foldflight.fold.aggregate.readonly_proof import ReadFacts, is_harmless
from foldflight.fold.aggregate.state_codecs import (
    PickledCodec,
    StateOrigin,
    TypedCodec,
    UnconvertibleState,
    state_codec,
)
from foldflight.fold.coroutines import Waits, no_running_values
from foldflight.fold.failures import Failures, call_if_written, user_failure
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.fold.rows import Mask, Rows, Slots, capacity_for
from foldflight.fold.scalar.evaluation import cast_around
from foldflight.functions.author.adapters import adapter_named
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundFunction, Function, Methods
from foldflight.functions.types.serializer import field_names, has_plain_parts
from foldflight.functions.types.values import CastError, cast_results, exact_types
from foldflight.functions.types.vectors import has_vectors, ignore_float_errors, is_vector

if TYPE_CHECKING:
    from foldflight.fold.resources import Resources

_SCALARS: Final = (
    int,
    float,
    str,
    bytes,
    complex,
    numbers.Rational,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.generic,
)
_UNCHANGEABLE: Final = (*_SCALARS, tuple, frozenset)
_CONTAINERS: Final = (list, dict, set, deque, bytearray)
_SHARED_MEMBERS_MAX: Final = 1000
# What methods raise if an accumulator has not the keys, attributes or members that they expect.
_OF_ANOTHER_FORM: Final = (KeyError, AttributeError, IndexError, TypeError)
CLASS_CHANGED: Final = (
    "; it has read pickled states: if the class was changed after they were written, raise its version and define "
    "migrate"
)
"""What is added to the error of a method that does not find in an accumulator what it expects."""
EMPTY: Final = object()
"""Takes the place of the accumulator in an empty slot."""


class Method:
    """One of the author's methods: calls it, keeps its result, and describes its errors.

    `accumulate`, `retract` and `merge` may change the accumulator in place and return None, or return a new one. None
    for an accumulator that cannot change in place (a number) is an error, because the row would be lost.
    """

    def __init__(self, bound: BoundFunction, method_name: str, call: Callable[..., Any]) -> None:
        self.function = bound.function.name
        self.method_name = method_name
        self.call = call
        self.returns = bound.function.returns
        adapter = bound.function.adapter
        self.ignores = adapter != "" and not adapter_named(adapter).returns_accumulator

    def accumulator_after(self, accumulator: Any, result: Any) -> Any:
        """Return the accumulator after a call that returned `result`."""
        if result is not None or self.returns == "always":
            return result
        # Subclasses of immutable types may have a __dict__ that has changed.
        is_immutable = isinstance(accumulator, _UNCHANGEABLE) and not hasattr(accumulator, "__dict__")
        if self.returns == "some" or is_immutable:
            wrong, remedy = f"{self.method_name} returned None, but", "return the new accumulator"
            if self.ignores:
                wrong = (
                    f"what {self.method_name} returns is ignored, as by the engine that the class is written for, and"
                )
                remedy = "let create_accumulator return a list, a Row or another object that can"
            raise FunctionError(
                "RESULT_TYPE",
                f"{wrong} an accumulator of type {type(accumulator).__name__} cannot change in place; {remedy}",
                function=self.function,
            )
        return accumulator


class InterpretedAccumulators(GroupsAccumulator):
    """Accumulators as Python objects.

    Args:
        bound: The function.
        context: The argument of the function's `open`.
        signer: Signs pickled states.
        failures: Records errors of single slots. Default: errors are raised.
        resources: What the process gives it: an async function needs what runs it.
    """

    _value_method = "get_value"

    def __init__(
        self,
        bound: BoundFunction,
        *,
        context: FunctionContext,
        signer: StateSigner | None,
        failures: Failures | None = None,
        resources: Resources | None = None,
    ) -> None:
        self.bound = bound
        self.failures = Failures() if failures is None else failures
        self.name = bound.function.name
        self.signer = signer
        self._accumulators: MutableSequence[Any] = []
        self._present = np.zeros(0, np.bool_)
        self._has_read_states = False
        self._shared: _SharedObjects | None = None
        # The slot whose accumulator is being processed; within a chunk, the slots and the position of the loop.
        self._at_work: int | tuple[list[int], Iterator[int]] | None = None
        context.slot_at_work = self._slot_at_work
        self.waits = None if bound.function.bounds is None else Waits.of(bound, context, resources)
        if self.waits is not None:
            self._value_method = bound.function.value_method
        self.methods = self._instantiate() if self.waits is None else self.waits.shared.methods
        try:
            self.codec = state_codec(bound, self.methods, signer)
        except BaseException:
            if self.waits is not None:
                self.waits.shared.close()
            raise
        # `open` comes after all steps that may fail, because `close` must follow it.
        if self.waits is None:
            call_if_written(self.name, "open", self.methods.open, context)
        self._lent_accumulators: dict[
            int, Any
        ] = {}  # by slot, while values are made of accumulators that nobody else has
        self._only_reads: dict[type, bool] = {}  # whether get_value only reads accumulators, by their type
        self._vector_types = [type_ for type_ in (*bound.input_types, self.codec.arrow) if has_vectors(type_)]
        self._accumulate = Method(bound, "accumulate", self.methods.accumulate)
        self._retract = None if self.methods.retract is None else Method(bound, "retract", self.methods.retract)
        self._merge = None if self.methods.merge is None else Method(bound, "merge", self.methods.merge)

    def _instantiate(self) -> Methods:
        try:
            return self.bound.instantiate()
        except RejectedError:  # it cannot run here at all
            raise
        except (Exception, SystemExit) as error:
            raise user_failure(self.name, "__init__", error) from error

    @property
    def mode(self) -> Mode:
        return Mode.INTERPRETED

    def update(self, rows: Rows) -> None:
        columns = [column.values for column in rows.arguments]
        self._fold(rows, zip(*columns, strict=True) if columns else repeat(()))

    def _fold(self, rows: Rows, arguments: Iterator[Any]) -> None:
        self._create(rows.slots)
        slots = rows.slots.tolist()
        # The list iterator knows its position, so the loop need not count rows.
        progress = iter(slots)
        retracts = None if rows.retracts is None else rows.retracts.tolist()
        steps: Iterator[Any] = zip(progress, arguments, *([] if retracts is None else [retracts]), strict=False)
        self._at_work = (slots, progress)
        has_failed = bool(self.failures)
        if has_failed:  # its create_accumulator has just failed
            steps = self._skip_failed(steps)
        try:
            with self._in_methods():
                while not self._ran(rows, steps, slots, progress):
                    if not has_failed:
                        steps, has_failed = self._skip_failed(steps), True
        finally:
            self._at_work = None
        self._require_unshared()

    @contextlib.contextmanager
    def _in_methods(self) -> Iterator[None]:
        """Enclose calls of the author's methods."""
        with (
            contextlib.nullcontext() if self.waits is None else self.waits.log_to_exchange(),
            ignore_float_errors(self._vector_types),
        ):
            yield

    def _ran(self, rows: Rows, steps: Iterator[Any], slots: list[int], progress: Iterator[int]) -> bool:
        """Continue a chunk; return False after a row that made its slot fail."""
        try:
            if rows.retracts is None:
                self._run(self._accumulate, steps)
            else:
                self._run_kinds(steps)
        except (Exception, SystemExit) as error:
            index = len(slots) - length_hint(progress) - 1
            method_name = self._retract if rows.retracts is not None and rows.retracts[index] else self._accumulate
            if isinstance(error, RejectedError) or method_name is None:
                raise
            self._fail(self._failure_of(method_name.method_name, error), error, int(slots[index]), rows.describe(index))
            return False
        return True

    def fail(self, method_name: str, error: BaseException | None, slot: int, row: str | None = None) -> None:
        """Record that a method raised `error` for a slot, or raise it if errors are not isolated.

        Args:
            method_name: Its name.
            error: Its exception; None if it returned no accumulator where it must.
            slot: The slot.
            row: The row, as text.

        Raises:
            FunctionError: USER_CODE or RESULT_TYPE.
        """
        method = next(
            (
                each
                for each in (self._accumulate, self._retract, self._merge)
                if each and each.method_name == method_name
            ),
            None,
        )
        if error is None:
            assert method is not None
            try:
                method.accumulator_after(self._accumulators[slot], None)
            except FunctionError as none:
                error = none
        assert error is not None
        self._fail(self._failure_of(method_name, error), error, slot, row)

    def _failure_of(self, method_name: str, error: BaseException) -> FunctionError:
        """Return the error for an exception in a method, with what may be wrong with the accumulator.

        It says so if the accumulator was None from the start, or if an earlier form of the class may have made it.
        """
        failure = error if isinstance(error, FunctionError) else user_failure(self.name, method_name, error)
        if "NoneType" in failure.message:
            with contextlib.suppress(Exception):
                if self.methods.create_accumulator() is None:
                    failure.message += "; create_accumulator returned None: does it lack a return?"
                    return failure
        if self._has_read_states and isinstance(self.codec, PickledCodec) and isinstance(error, _OF_ANOTHER_FORM):
            failure.message += CLASS_CHANGED
        return failure

    def _fail(self, failure: FunctionError, error: BaseException, slot: int, row: str | None = None) -> None:
        failure.slot = slot
        if row is not None:
            failure.row = row
        if not self.failures.take(failure):
            raise failure from error

    def _skip_failed(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Skip steps of failed slots, including slots that fail in the meantime."""
        return (step for step in steps if step[0] not in self.failures)

    def _slot_at_work(self) -> int | None:
        if isinstance(self._at_work, tuple):
            slots, progress = self._at_work
            index = len(slots) - length_hint(progress) - 1
            return slots[index] if index >= 0 else None
        return self._at_work

    def _run(self, method: Method, steps: Iterator[tuple[int, Any]]) -> None:
        accumulators, call, accumulator_of = self._accumulators, method.call, method.accumulator_after
        if self._may_return_none(method):
            for slot, arguments in steps:
                result = call(accumulators[slot], *arguments)
                if result is not None:
                    accumulators[slot] = result
        else:
            for slot, arguments in steps:
                accumulator = accumulators[slot]
                accumulators[slot] = accumulator_of(accumulator, call(accumulator, *arguments))

    def _may_return_none(self, method: Method) -> bool:
        """Return whether a method that returns None has certainly changed its accumulator in place.

        The contents of typed states are known, so only immutable accumulators need a check at every row.
        """
        return method.returns == "may" and self.bound.serializer is not None and not self.bound.serializer.immutable

    def _run_kinds(self, steps: Iterator[tuple[int, Any, bool]]) -> None:
        if self._retract is None:
            raise cannot_retract(self.bound.function)
        accumulators, methods = self._accumulators, (self._accumulate, self._retract)
        for slot, arguments, is_retraction in steps:
            method = methods[is_retraction]
            accumulator = accumulators[slot]
            accumulators[slot] = method.accumulator_after(accumulator, method.call(accumulator, *arguments))

    def running_values(self, rows: Rows, mask: Mask, requested: Mask | None = None) -> pa.Array:
        if self.waits is not None:
            raise no_running_values(self.name)
        if self._retract is None and rows.retracts is not None and (rows.retracts & mask).any():
            raise cannot_retract(self.bound.function)
        self._grow(rows.slots)
        self._create(rows.slots[mask])
        columns = [column.values for column in rows.arguments]
        slots = rows.slots.tolist()
        progress = iter(slots)
        arguments: Iterator[Any] = zip(*columns, strict=True) if columns else repeat(())
        retracts = repeat(False) if rows.retracts is None else rows.retracts.tolist()
        values: list[Any] = []
        self._at_work = (slots, progress)
        try:
            shows = repeat(True) if requested is None else requested.tolist()
            with self._in_methods():
                self._run_each(rows, zip(progress, arguments, mask.tolist(), retracts, shows, strict=False), values)
        finally:
            self._at_work = None
        self._require_unshared()
        if self._casts_each:
            return pa.concat_arrays(values) if values else pa.array([], self.bound.result_type)
        return self._cast(values, rows.slots if requested is None else rows.slots[requested])

    def _run_each(self, rows: Rows, steps: Iterator[tuple[int, Any, bool, bool, bool]], values: list[Any]) -> None:
        """Apply rows, and append the value after each that shows it, cast or copied if it may change later."""
        accumulators, get_value = self._accumulators, self.methods.get_value
        readable = self._readable
        methods = (self._accumulate, self._accumulate if self._retract is None else self._retract)
        is_vector_result, casts_each = is_vector(self.bound.result_type), self._casts_each
        is_unchecked = all(map(self._may_return_none, methods))
        for row, (slot, arguments, folds, is_retraction, shows) in enumerate(steps):
            if folds:
                method, accumulator = methods[is_retraction], accumulators[slot]
                try:
                    result = method.call(accumulator, *arguments)
                    if result is not accumulator and not (is_unchecked and result is None):
                        accumulators[slot] = method.accumulator_after(accumulator, result)
                except (Exception, SystemExit) as error:
                    failure = self._failure_of(method.method_name, error)
                    failure.slot, failure.row = slot, rows.describe(row)
                    raise failure from error
            if not shows:
                continue
            try:
                # An empty slot has the value of a new accumulator, and stays empty.
                value = get_value(
                    self.methods.create_accumulator() if accumulators[slot] is EMPTY else readable(accumulators[slot])
                )
            except (Exception, SystemExit) as error:
                failure = self._failure_of("get_value", error)
                failure.slot = slot
                raise failure from error
            if is_vector_result and isinstance(value, (np.ndarray, list)):
                value = value.copy()
            values.append(self._cast([value], rows.slots[row : row + 1]) if casts_each else value)

    @property
    def _casts_each(self) -> bool:
        """Whether each result is cast before the next row, which may change it. A vector is copied instead."""
        return exact_types(self.bound.result_type) is None and not is_vector(self.bound.result_type)

    def merge(self, slots: Slots, states: pa.Array) -> None:
        self._has_read_states = True
        try:
            accumulators = self.codec.decode(states)
        except UnconvertibleState as unfit:
            unfit.error.slot = int(slots[unfit.index])
            if not self.failures.take(unfit.error):
                raise unfit.error from unfit.__cause__
            for index in range(len(slots)):
                if int(slots[index]) not in self.failures:
                    self.merge(slots[index : index + 1], states.slice(index, 1))
            return
        self.load(slots, accumulators)

    def migrate(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> None:
        migrated_slots, accumulators = [], []
        for slot, state in zip(slots.tolist(), origin.values(self.bound.function, states, self.signer), strict=True):
            try:
                accumulators.append(self._migrate_state(slot, origin.version, state))
                migrated_slots.append(slot)
            except FunctionError as failure:
                if not self.failures.take(failure):
                    raise
        self.load(np.array(migrated_slots, np.int32), accumulators)

    def convert_states(self, slots: Slots, states: pa.Array, origin: StateOrigin) -> tuple[Slots, pa.Array] | None:
        """Convert states of another version to slots with states of this version, or None if a state has no such form.

        There must be no accumulators before the call, and there are none afterwards.

        Raises:
            FunctionError: The errors of `migrate`.
        """
        self.migrate(slots, states, origin)
        slots_in_use = self.occupied_slots()
        try:
            return slots_in_use, self.codec.encode([self._accumulators[slot] for slot in slots_in_use.tolist()])
        except UnconvertibleState:  # a number beyond its type, which later rows may bring back into range
            return None
        finally:
            self.forget(slots_in_use)

    def _migrate_state(self, slot: int, version: str, state: Any) -> Any:
        assert self.methods.migrate is not None
        self._at_work = slot
        try:
            accumulator = self.methods.migrate(version, state)
        except (Exception, SystemExit) as error:
            failure = user_failure(self.name, f"migrate (of a state of version {version})", error)
            failure.slot = slot
            raise failure from error
        if accumulator is None and self.bound.function.returns != "always":
            message = "migrate returned None; return the accumulator"
            raise FunctionError("RESULT_TYPE", message, function=self.name, slot=slot)
        return accumulator

    def load(self, slots: Slots, accumulators: Sequence[Any]) -> None:
        """Merge n accumulators into n slots. Those that are new in their slots are kept as they are."""
        self._grow(slots)
        by_slot, present = self._accumulators, self._present
        with self._in_methods():
            for slot, accumulator in zip(slots.tolist(), accumulators, strict=True):
                if slot in self.failures:
                    continue
                if not present[slot]:
                    by_slot[slot], present[slot] = accumulator, True
                    continue
                if self._merge is None:
                    raise cannot_merge(self.name)
                self._at_work = slot
                try:
                    by_slot[slot] = self._merge.accumulator_after(
                        by_slot[slot], self._merge.call(by_slot[slot], accumulator)
                    )
                except (Exception, SystemExit) as error:  # noqa: BLE001 - `_fail` raises it
                    self._fail(self._failure_of("merge", error), error, slot)

    def state(self, slots: Slots) -> pa.Array:
        return self._compute_half(slots, self._states, self.codec.arrow)

    def evaluate(self, slots: Slots) -> pa.Array:
        return self.values_of(slots, self.stored_otherwise(slots))

    def stored_otherwise(self, slots: Slots) -> dict[int, Any]:
        """Return by slot what the typed states of accumulators give, where that may be something else.

        So a batch that stores no states has the values of one that does, and of a stream. An accumulator without a
        state, such as a number beyond its type, counts as it is.
        """
        slots = np.unique(slots)
        slots = slots[~np.isin(slots, self.absent(slots))]
        if not isinstance(self.codec, TypedCodec) or self.codec.keeps(self.accumulators_of(slots)):
            return {}
        return self._by_state(slots)

    def _by_state(self, slots: Slots) -> dict[int, Any]:
        """Return, by slot, accumulators decoded from their own states; without accumulators that cannot be encoded."""
        try:
            return dict(
                zip(slots.tolist(), self.codec.decode(self.codec.encode(self.accumulators_of(slots))), strict=True)
            )
        except UnconvertibleState:
            if len(slots) == 1:
                return {}
        middle = len(slots) // 2
        return self._by_state(slots[:middle]) | self._by_state(slots[middle:])

    def evaluate_states(self, slots: Slots, states: pa.Array) -> pa.Array:
        if not states.null_count and not len(self.absent(slots)) and self.codec.keeps(self.accumulators_of(slots)):
            return self.values_of(slots, {})
        present = states.is_valid()  # an accumulator without a state has failed
        present_slots = slots[present.to_numpy(zero_copy_only=False)]
        return self.values_of(slots, self.decode(present_slots, states.filter(present)))

    def values_of(self, slots: Slots, accumulators: dict[int, Any]) -> pa.Array:
        """Return the values of n slots. `accumulators` replaces stored ones, and `get_value` may change it."""
        self._lent_accumulators = accumulators
        try:
            with self._in_methods():
                return self._compute_half(slots, self._outputs, self.bound.result_type)
        finally:
            self._lent_accumulators = {}

    def decode(self, slots: Slots, states: pa.Array) -> dict[int, Any]:
        """Return the accumulators of n states, by slot. States that `deserialize` refuses may be left out."""
        try:
            return dict(zip(slots.tolist(), self.codec.decode(states), strict=True))
        except UnconvertibleState as unfit:
            unfit.error.slot = int(slots[unfit.index])
            if not self.failures.take(unfit.error):
                raise unfit.error from unfit.__cause__
            rest = np.arange(len(slots)) != unfit.index
            return self.decode(slots[rest], states.filter(pa.array(rest)))

    def _compute_half(self, slots: Slots, column: Callable[[Slots], pa.Array], type_: pa.DataType) -> pa.Array:
        """Return a column of n slots. If it fails, each half is computed separately; the failing slot gets NULL."""
        try:
            return column(slots)
        except FunctionError as error:
            if not self.failures.take(error):
                raise
        if len(slots) == 1:
            return pa.nulls(1, type_)
        middle = len(slots) // 2
        return pa.concat_arrays([self._compute_half(half, column, type_) for half in (slots[:middle], slots[middle:])])

    def _states(self, slots: Slots) -> pa.Array:
        self._create(slots)
        accumulators = self._accumulators
        try:
            return self.codec.encode([accumulators[slot] for slot in slots.tolist()])
        except UnconvertibleState as unfit:
            unfit.error.slot = int(slots[unfit.index])
            raise unfit.error from unfit.__cause__

    def _outputs(self, slots: Slots) -> pa.Array:
        if self.waits is not None:
            return self._await_values(self.waits, slots)
        value = self._value_or_none if self.failures.isolates else self._value
        return self._cast_sound([value(slot) for slot in slots.tolist()], slots)

    def _await_values(self, waits: Waits, slots: Slots) -> pa.Array:
        """Return the values of n slots, which an async method computes for all of them side by side."""
        sound: list[int] = []
        accumulators: list[Any] = []
        states: list[Any] = []
        for index, slot in enumerate(slots.tolist()):
            if slot not in self.failures:
                try:
                    accumulator = self._copy_for_value(slot)
                    states.append(self.codec.content(accumulator))
                except (Exception, SystemExit) as error:  # noqa: BLE001 - `fail` raises it
                    cause = error.error if isinstance(error, UnconvertibleState) else error
                    self.fail("create_accumulator", cause, slot)
                else:
                    sound.append(index)
                    accumulators.append(accumulator)
        values: list[Any] = [None] * len(slots)
        sound_slots = slots[sound].tolist()
        answers = waits.answers(accumulators, states, sound_slots, self.failures, self._copy_for_value)
        for index, value in zip(sound, answers, strict=True):
            values[index] = value
        return self._cast_sound(values, slots)

    def _copy_for_value(self, slot: int) -> Any:
        """Return an accumulator that code may keep while it waits, and change before it is called again."""
        if slot in self._lent_accumulators:
            return self._copy_of(self._lent_accumulators[slot])
        absent = slot >= len(self._accumulators) or self._accumulators[slot] is EMPTY
        return self.methods.create_accumulator() if absent else self._copy_of(self._accumulators[slot])

    def _value_or_none(self, slot: int) -> Any:
        """Return a slot's value, or None if its get_value or its state fails. It is called once for each slot."""
        if slot in self.failures:
            return None
        try:
            return self._value(slot)
        except FunctionError as error:
            if not self.failures.take(error):
                raise
        return None

    def _value(self, slot: int) -> Any:
        absent = slot >= len(self._accumulators) or self._accumulators[slot] is EMPTY
        self._at_work = slot
        try:
            # An empty slot has the value of a new accumulator, and stays empty.
            if slot in self._lent_accumulators:
                return self.methods.get_value(self._lent_accumulators[slot])
            return self.methods.get_value(
                self.methods.create_accumulator() if absent else self._readable(self._accumulators[slot])
            )
        except (Exception, SystemExit) as error:
            failure = self._failure_of("get_value", error)
            failure.slot = slot
            raise failure from error

    def _readable(self, accumulator: Any) -> Any:
        """Return what get_value gets: the accumulator if it certainly only reads it, and otherwise a copy."""
        type_ = type(accumulator)
        only_reads = self._only_reads.get(type_)
        if only_reads is None:
            only_reads = self._only_reads[type_] = self._reads(accumulator)
        return accumulator if only_reads else self._copy_of(accumulator)

    def _copy_of(self, accumulator: Any) -> Any:
        if self.bound.function.language != "java":  # a deep copy of a Java object has none of its fields
            try:
                return copy.deepcopy(accumulator)
            except Exception:  # noqa: BLE001, S110 - objects that cannot be copied have a state
                pass
        try:
            return self.codec.decode(self.codec.encode([accumulator]))[0]
        except UnconvertibleState as unfit:
            raise unfit.error from unfit.__cause__

    def _reads(self, accumulator: Any) -> bool:
        """Return whether get_value certainly only reads an accumulator of this type."""
        type_ = type(accumulator)
        if isinstance(accumulator, _UNCHANGEABLE) and not (
            isinstance(accumulator, (tuple, frozenset)) or hasattr(accumulator, "__dict__")
        ):
            return True
        method = self.methods.get_value
        instance = getattr(method, "__self__", None)  # None if the accumulators are the author's instances
        serializer = self.bound.serializer
        fields = set() if serializer is None else field_names(serializer)
        own = {name for name, value in getattr(instance, "__dict__", {}).items() if is_harmless(value)}
        proof = ReadFacts(
            classes=[each for each in (type(instance), type_) if each.__module__ not in ("builtins", "collections")],
            fields=fields | own,
            has_known_types=serializer is not None and has_plain_parts(serializer),
            adds_missing=serializer is None,
        )
        return proof.only_reads(method)

    def _cast(self, values: list[Any], slots: Slots) -> pa.Array:
        try:
            return cast_results(values, self.bound.result_type)
        except CastError as error:
            raise FunctionError(
                error.code, error.of_result(self._value_method), function=self.name, slot=int(slots[error.index])
            ) from None

    def _cast_sound(self, values: list[Any], slots: Slots) -> pa.Array:
        """Return the values of n slots in the type of the result; a slot whose value does not fit has failed.

        No value is computed again, because the code that made it may have changed its accumulator.
        """

        def refuse(index: int, error: CastError) -> int:
            failure = FunctionError(error.code, error.of_result(self._value_method), function=self.name)
            self._fail(failure, error, int(slots[index]))
            return index + 1

        return cast_around(values, self.bound.result_type, refuse)

    def occupied_slots(self) -> Slots:
        """Return the slots that have an accumulator, ascending."""
        return np.flatnonzero(self._present).astype(np.int32)

    @property
    def holds_any(self) -> bool:
        """Whether any slot has an accumulator."""
        return bool(self._present.any())

    def accumulators_of(self, slots: Slots) -> list[Any]:
        """Return the accumulators of slots that have one."""
        return [self._accumulators[slot] for slot in slots.tolist()]

    def forget(self, slots: Slots) -> None:
        for slot in slots[slots < len(self._accumulators)].tolist():
            self._accumulators[slot] = EMPTY
            self._present[slot] = False

    def close(self) -> None:
        self._at_work = None
        self._accumulators = []
        self._present = np.zeros(0, np.bool_)
        if self.waits is None:
            call_if_written(self.name, "close", self.methods.close)
        else:
            self.waits.shared.close()

    def _grow(self, slots: Slots) -> None:
        slot_count = int(slots.max(initial=-1)) + 1
        if slot_count > len(self._accumulators):
            size = capacity_for(slot_count, len(self._accumulators))
            self._present = np.concatenate([self._present, np.zeros(size - len(self._accumulators), np.bool_)])
            self._accumulators.extend([EMPTY] * (size - len(self._accumulators)))

    def keep_in(self, accumulators: MutableSequence[Any]) -> None:
        """Keep accumulators in this sequence, in which `EMPTY` is a slot without one. There must be none so far."""
        assert not len(self._accumulators)
        self._accumulators = accumulators

    def absent(self, slots: Slots) -> Slots:
        """Reserve memory for n slots, and return those without an accumulator, ascending."""
        self._grow(slots)
        present = self._present[slots]
        return slots[:0] if present.all() else np.unique(slots[~present])

    def mark_present(self, slots: Slots) -> None:
        """Record that n slots have an accumulator now."""
        self._present[slots] = True

    def _create(self, slots: Slots) -> None:
        fresh = self.absent(slots)
        if not len(fresh):
            return
        accumulators, create = self._accumulators, self.methods.create_accumulator
        with self._in_methods():
            if self._shared is None:
                self._shared = _SharedObjects.of(create)
            for slot in fresh.tolist():
                try:
                    accumulators[slot] = create()
                except (Exception, SystemExit) as error:  # noqa: BLE001 - `fail` raises it
                    self.fail("create_accumulator", error, slot)
        self.mark_present(fresh[~self.failures.among(fresh)])

    def _require_unshared(self) -> None:
        """Raise if rows have changed an object that all new accumulators refer to, so that groups see other rows."""
        if self._shared is not None and (changed := self._shared.changed_type()) is not None:
            raise FunctionError(
                "USER_CODE",
                f"create_accumulator gives all groups the same {changed}, which accumulate has changed, so groups "
                f"would have rows of other groups; make a new {changed} in each call, or keep it in the function "
                "itself if it is no part of a state, such as a cache",
                function=self.name,
            )


class _SharedObjects:
    """The containers that two new accumulators have in common, and what these contained before any row.

    Accumulators may share what no row changes, such as a table to look up; so sharing alone is no error.

    Args:
        objects: The containers.
    """

    def __init__(self, objects: Sequence[Any]) -> None:
        self._contents = [(each, _content(each)) for each in objects]

    @classmethod
    def of(cls, create: Callable[[], Any]) -> _SharedObjects:
        """Compare two new accumulators. If they cannot be made, the first slot has the same exception."""
        try:
            one, other = create(), create()
            containers = _containers(one)
            objects = [*map(containers.__getitem__, filter(_containers(other).__contains__, containers))]
        except (Exception, SystemExit):  # noqa: BLE001 - see above; or what an author's container raises
            return cls([])
        if one is other and not isinstance(one, (*_UNCHANGEABLE, *_CONTAINERS, np.ndarray, type(None))):
            objects.append(one)
        return cls(objects)

    def changed_type(self) -> str | None:
        """Return the name of the type of an object that has changed since, or None."""
        for each, before in self._contents:
            if not _is_same(before, _content(each)):
                return type(each).__name__
        return None


def _content(shared: Any) -> list[Any] | bytes | None:
    """Return the members of a container; the pickle of another object, or None if it has none, so is not compared."""
    try:
        if isinstance(shared, np.ndarray):
            return shared.tobytes()
        if isinstance(shared, dict):
            return [*shared, *shared.values()]
        return [*shared] if isinstance(shared, _CONTAINERS) else pickle.dumps(shared)
    except Exception:  # noqa: BLE001 - what an author's class raises
        return None


def _is_same(before: list[Any] | bytes | None, now: list[Any] | bytes | None) -> bool:
    """Return whether a container has the same members. Containers among them are compared on their own.

    What other members keep for themselves, such as a property that they compute once, does not count.
    """
    if not (isinstance(before, list) and isinstance(now, list)):
        return before is None or before == now
    if len(before) != len(now):
        return False
    return all(map(is_, before, now)) or all(
        one is other or (type(one) is type(other) and isinstance(one, _SCALARS) and one == other)
        for one, other in zip(before, now, strict=True)
    )


def _containers(accumulator: Any) -> dict[int, Any]:
    """Return the lists, dicts, sets and arrays within an accumulator, through attributes and members, by their ids.

    Containers with many members, and what is beyond the first thousand objects, are left out.
    """
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # the objects too, because another one may get the id of one that is gone
    waiting = [accumulator]
    while waiting and len(seen) < _SHARED_MEMBERS_MAX:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, _SCALARS):
            continue
        seen[id(each)] = each
        if isinstance(each, np.ndarray):
            if each.size <= _SHARED_MEMBERS_MAX:
                found[id(each)] = each
        elif isinstance(each, (*_CONTAINERS, tuple)):
            if len(each) <= _SHARED_MEMBERS_MAX:
                waiting += each.values() if isinstance(each, dict) else each
                if not isinstance(each, tuple):
                    found[id(each)] = each
        else:
            waiting += _attributes(each)
    return found


def _attributes(value: Any) -> list[Any]:
    """Return the values of the attributes that belong to the state of an object.

    What pickle does not store, such as a module, or stores by its name, as a logger, changes for reasons of its own.
    """
    try:
        state: Any = object.__reduce_ex__(value, 2)[2]
    except Exception:  # noqa: BLE001 - it is not pickled by its attributes, or an author's class raises
        return []
    parts = state if isinstance(state, tuple) else (state,)
    return [each for part in parts if isinstance(part, dict) for each in part.values()]


def cannot_retract(function: Function) -> RejectedError:
    """Return the error for a retracting row of an append-only function."""
    return RejectedError(
        "CANNOT_RETRACT",
        f"{function.name} is append-only (it has no retract), but the input retracts a row; "
        f"{'let groups keep their rows (materialize=True)' if function.is_built_in else 'define retract'}, or "
        "aggregate an input without updates and deletes",
        function=function.name,
    )


def cannot_merge(function: str) -> RejectedError:
    """Return the error for a second state in one slot of a function without merge."""
    return RejectedError(
        "CANNOT_MERGE",
        f"{function} has no merge, so a group can have only one state; define merge, or fold each group in one place",
        function=function,
    )
