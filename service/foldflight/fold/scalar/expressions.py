"""Expressions over the rows of a chunk, evaluated in steps. They have no state.

A request has steps, each of which calls a scalar or table function; a bound request knows the function and the types of
each step. If a function is `async`, its calls for the rows of a chunk run side by side.
"""

from __future__ import annotations

import contextlib
import decimal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, FunctionError, RejectedError
from foldflight.fold.accelerator import Accelerator
from foldflight.fold.aggregate.bound_calls import check_fingerprint, column_of, demand_instance
from foldflight.fold.coroutines import Answer, Calls, Check, Coroutines, call_ids, failure_of, no_coroutines
from foldflight.fold.failures import ERROR, ERROR_TYPE, Failures, close_all
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources, Stateless
from foldflight.fold.rows import ROW, Column, Rows, Slots
from foldflight.fold.scalar.evaluation import (
    Instance,
    InterpretedScalar,
    Part,
    Scalar,
    TableInstance,
    VectorisedScalar,
    cast,
)
from foldflight.functions.author.context import FunctionContext
from foldflight.functions.author.spec import BoundScalar, ScalarFunction
from foldflight.functions.query.call import Request, Step, StepArgument
from foldflight.functions.registry import Registry, unknown_function
from foldflight.functions.types.sql import is_larger_than
from foldflight.functions.types.values import exact_types


@dataclass(frozen=True)
class _Environment:
    """What all calls of an exchange use: the event loop, the check that ends a wait, and the prefix of their ids."""

    coroutines: Coroutines
    check: Check
    scope: str


class AsyncScalar(Instance, Scalar):
    """Runs the author's coroutine for each row, or for batches of rows.

    Args:
        bound: The function.
        context: The context of the function in this exchange, whose log and metrics its calls use.
        failures: Records errors of single rows.
        request: The request of the exchange.
        resources: What the process gives it.

    Raises:
        RejectedError: SIGNATURE, if nothing runs coroutines here.
        FunctionError: USER_CODE, if the class cannot be instantiated or its `open` raises.
    """

    def __init__(
        self, bound: BoundScalar, context: FunctionContext, failures: Failures, request: Request, resources: Resources
    ) -> None:
        self.bound, self.name, self.failures = bound, bound.function.name, failures
        if resources.coroutines is None:
            raise no_coroutines(self.name)
        self._here = _Environment(resources.coroutines, resources.check, resources.call_scope)
        self._log = resources.log
        self._instance = resources.coroutines.instance(bound, request.job_parameters, context, resources.check)
        self.methods = self._instance.methods

    def close(self) -> None:
        self._instance.close()

    @property
    def mode(self) -> Mode:
        return Mode.ASYNC

    def values(self, rows: Rows) -> pa.Array:
        return self.values_of_called_rows(rows, self._values)

    def _values(self, rows: Rows) -> pa.Array:
        columns = [column.values for column in rows.arguments]
        arguments = list(zip(*columns, strict=True)) if columns else [()] * len(rows)
        bounds = self.bound.function.bounds
        assert bounds is not None
        calls = Calls(
            self.bound.function,
            bounds,
            self.methods.eval,
            arguments,
            call_ids(self._here.scope, self.bound.fingerprint, arguments),
            self.bound.result_type,
            again=lambda index: tuple(column.part(index, index + 1).values[0] for column in rows.arguments),
            shared=self._instance,
            stops=not self.failures.isolates,
            log=self._log,
        )
        try:
            self._here.coroutines.answer(calls, self._here.check)
        except SystemExit as error:  # the server interrupts what takes too long
            self.fail_row(rows, calls.first_unanswered, error)
        results: list[Any] = []
        for index, answer in enumerate(calls.answers):
            if answer is not None and answer.error is not None:
                self._fail(rows, index, answer)
            results.append(None if answer is None else answer.value)
        return cast(self, rows, results, self.bound.result_type)

    def _fail(self, rows: Rows, index: int, answer: Answer) -> None:
        assert answer.error is not None
        failure = failure_of(self.name, self.method_name, answer)
        try:
            self.take(rows, index, failure)
        except FunctionError as error:
            raise error from answer.error


# As for aggregates, the precision of decimals suffices for a product of two DECIMAL(38).
_EXACT: Final = decimal.Context(prec=76)


class OpenExpressions(Stateless):
    """The opened steps of one exchange.

    If errors are isolated, a row for which a function raises has NULL outputs, and its first error in `error`. After
    any other error the evaluation is in an undefined state and must be closed.

    Args:
        steps: The steps.
        bound: Their functions.
        request: The request, with the outputs, flags and job parameters.
        schema: The schema of answers.
        resources: Metrics, log and accelerator.

    Attributes:
        failures: The rows of the current chunk that have failed.
        isolated: The number of rows that have failed so far, by function.

    Raises:
        FunctionError: USER_CODE, if a class cannot be instantiated or its `open` raises.
        RejectedError: SIGNATURE, for a function that is declared `compile=True` and cannot be compiled.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        bound: Sequence[BoundScalar],
        request: Request,
        schema: pa.Schema,
        resources: Resources,
    ) -> None:
        self.schema = schema
        self.failures = Failures(isolates=request.isolate_errors)
        self.isolated: Counter[str] = self.failures.counts
        self._steps = tuple(steps)
        self._outputs = request.outputs
        self._needed_after = _needed_after(steps, request.outputs)
        self._deterministic = {each.function.name: each.function.is_deterministic for each in bound}
        self._evaluations: list[Scalar | TableInstance] = []
        try:
            for step, each in zip(steps, bound, strict=True):
                context = FunctionContext(
                    each.function.name,
                    job_parameters=request.job_parameters,
                    metrics=resources.metrics,
                    log=resources.log,
                )
                self._evaluations.append(self._open_step(step, each, context, request, resources))
        except BaseException:  # also `UnansweredQuestion`, and interrupts
            with contextlib.suppress(FunctionError):  # the first error is the cause
                self.close()
            raise

    def _open_step(
        self, step: Step, bound: BoundScalar, context: FunctionContext, request: Request, resources: Resources
    ) -> Scalar | TableInstance:
        if bound.function.bounds is not None:
            return AsyncScalar(bound, context, self.failures, request, resources)
        if bound.function.is_table:
            return TableInstance(bound, context, self.failures, outer=step.outer)
        if bound.function.vectorised is not None:
            return VectorisedScalar(bound, context, self.failures)
        inner = InterpretedScalar(bound, context, self.failures)
        try:
            return resources.accelerator.scalar(inner)
        except FoldflightError:
            with contextlib.suppress(FunctionError):
                inner.close()
            raise

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The current mode of each step."""
        return tuple(each.mode for each in self._evaluations)

    def chunk(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the outputs of n rows. Only table functions answer in several parts.

        Args:
            batch: n rows in the schema of the request.

        Yields:
            Rows in `schema`. Without a table function these are n rows, in the order of the chunk. With one, `row` is
            the number of the row of the chunk, ascending. The next part is evaluated when it is asked for.

        Raises:
            FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with function and row.
            RejectedError: SCHEMA_MISMATCH, for a value that the declared type of an argument cannot hold.
        """
        parts = self._parts(batch)
        try:
            while (part := self._next(parts)) is not None:
                yield part
        finally:
            self.failures.clear()

    def _next(self, parts: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with decimal.localcontext(_EXACT):
            try:
                return next(parts, None)
            except FunctionError as error:
                error.repeats &= self._deterministic.get(error.function or "", True)
                raise

    def _parts(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        # For each table function that is being evaluated: the rows of its parts, with the step after it.
        pending_parts: list[Iterator[tuple[int, _Rows]]] = [iter([(0, _Rows(batch))])]
        while pending_parts:
            index, state = next(pending_parts[-1], (0, None))
            if state is None:
                pending_parts.pop()
                continue
            for step, evaluation in zip(self._steps[index:], self._evaluations[index:], strict=True):
                rows = state.arguments(step, evaluation)
                self._refuse_misfits(evaluation, rows)
                if isinstance(evaluation, TableInstance):
                    pending_parts.append(self._expand(index, state, evaluation.parts(rows)))
                    break
                state.results[index] = evaluation.values(rows)
                index += 1
            else:
                yield self._answer(state)

    def _refuse_misfits(self, evaluation: Scalar | TableInstance, rows: Rows) -> None:
        """Record the error of each row with an argument that does not fit its type, or raise the first one."""
        for index, error in rows.misfits(evaluation.bound.function.name, None):
            error.slot = int(rows.slots[index])
            if not self.failures.take(error):
                error.slot = None
                raise error

    def _expand(self, index: int, state: _Rows, parts: Iterator[Part]) -> Iterator[tuple[int, _Rows]]:
        start = 0
        for part in parts:
            rows = state.expand(part, start, keep=self._needed_after[index])
            rows.results[index] = part.values
            yield index + 1, rows
            start = part.stop

    def _answer(self, state: _Rows) -> pa.RecordBatch:
        outputs = [state.results[step] for step in self._outputs]
        rows = state.rows
        if self.failures:
            # A failed row has no results, only its error.
            sound = np.flatnonzero(~self.failures.among(rows))
            chunk_rows = np.arange(state.first, state.last, dtype=np.int32)
            failed_rows = chunk_rows[self.failures.among(chunk_rows)]
            rows = np.concatenate([rows[sound], failed_rows])
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            indexes = np.concatenate([sound, np.zeros(len(failed_rows), np.int64)])[order]
            has_failed = (np.arange(len(rows)) >= len(sound))[order]
            outputs = [_take(column, indexes, has_failed) for column in outputs]
        columns = [pa.array(rows, pa.int32()), *outputs] if state.is_expanded else outputs
        if ERROR in self.schema.names:
            columns.append(self.failures.column(rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def close(self) -> None:
        """Close all functions. The first error is raised after all have been closed."""
        open_evaluations, self._evaluations = self._evaluations, []
        close_all(open_evaluations)


def _take(column: pa.Array, indexes: Any, is_null: Any) -> pa.Array:
    """Return the values at these indexes, NULL where `is_null`."""
    return column.take(pa.array(indexes, mask=is_null)) if len(column) else pa.nulls(len(indexes), column.type)


class _Rows:
    """The rows between two steps of one chunk.

    Args:
        batch: The chunk.

    Attributes:
        rows: For each current row the number of its row of the chunk; int32, shape (n,).
        results: The results of the evaluated steps by their numbers, n values each.
        is_expanded: Whether a table function has replaced the rows.
        first: The first row of the chunk that these rows may come from.
        last: The row of the chunk after the last one.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows: Slots = np.arange(batch.num_rows, dtype=np.int32)
        self.results: dict[int, pa.Array] = {}
        self.is_expanded = False
        self.first, self.last = 0, batch.num_rows
        self._batch = batch
        self._columns_by_argument: dict[tuple[StepArgument, str], Column] = {}

    def arguments(self, step: Step, evaluation: Scalar | TableInstance) -> Rows:
        """Return the rows with the arguments of a step."""
        return Rows(
            self.rows,
            None,
            [self.argument(each, evaluation, at) for at, each in enumerate(step.arguments)],
        )

    def argument(self, argument: StepArgument, evaluation: Scalar | TableInstance, index: int) -> Column:
        """Return an argument of a step, cast to its declared type.

        Steps with the same argument share its Python values, unless they are mutable (lists, maps): a function could
        change those.
        """
        type_ = evaluation.bound.input_types[index]
        column = self._columns_by_argument.get((argument, str(type_)))
        if column is None:
            names = evaluation.bound.function.input_names
            name = argument.column if argument.step is None else names[index] if index < len(names) else str(index)
            column = Column.cast(name or "", self._array(argument), type_)
            if exact_types(type_) is not None:
                self._columns_by_argument[argument, str(type_)] = column
        return column

    def _array(self, argument: StepArgument) -> pa.Array:
        if argument.step is None:
            column = self._batch.column(argument.column)
            return column.take(pa.array(self.rows)) if self.is_expanded else column
        result = self.results[argument.step]
        return result if argument.member is None else pc.struct_field(result, argument.member)

    def expand(self, part: Part, start: int, *, keep: frozenset[int]) -> _Rows:
        """Return the rows that a table function returned for the current rows from `start` on.

        Args:
            part: The function's rows.
            start: The first of the current rows that they are derived from.
            keep: The steps whose results are still needed.
        """
        expanded_rows = _Rows(self._batch)
        expanded_rows.first = int(self.rows[start]) if start else self.first
        expanded_rows.last = int(self.rows[part.stop]) if part.stop < len(self.rows) else self.last
        indexes = pa.array(part.indexes)
        expanded_rows.results = {step: values.take(indexes) for step, values in self.results.items() if step in keep}
        expanded_rows.rows = self.rows[part.indexes]
        expanded_rows.is_expanded = True
        return expanded_rows


def _needed_after(steps: Sequence[Step], outputs: Sequence[int]) -> list[frozenset[int]]:
    """Return for each step the numbers of the steps whose results are needed after it."""
    needed_steps = set(outputs)
    needed_after = []
    for step in reversed(steps):
        needed_after.append(frozenset(needed_steps))
        needed_steps |= {each.step for each in step.arguments if each.step is not None}
    return needed_after[::-1]


# Arrow reads types that are nested up to 64 times.
_TYPE_DEPTH_MAX: Final = 48
_TYPE_PARTS_MAX: Final = 4096


@dataclass(frozen=True)
class BoundStep:
    """One step with its function and types.

    Args:
        step: The step.
        bound: Its function, bound to the types of its arguments.
    """

    step: Step
    bound: BoundScalar

    can_retract = can_merge = can_migrate = is_invertible = value_varies = False
    views = ()

    @property
    def rows_at_once(self) -> int:
        """The rows that a process evaluates at once, if its function is async; otherwise 0."""
        bounds = self.bound.function.bounds
        return 0 if bounds is None else bounds.rows_at_once

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its function, as 16 hexadecimal digits."""
        return self.bound.fingerprint

    @property
    def input_types(self) -> tuple[pa.DataType, ...]:
        """The types to which its arguments are cast."""
        return self.bound.input_types


class BoundExpressions:
    """The steps of an exchange, bound to functions and columns.

    Args:
        request: The steps and the numbers of those whose results are outputs.
        registry: The functions.
        where: The location of the functions, for messages.

    Attributes:
        calls: The bound steps.
        schema: The schema of answers: `row` if there is a table function, then `output_i` for each output, and `error`
            if errors are isolated.

    Raises:
        RejectedError: UNKNOWN_FUNCTION; SCHEMA_MISMATCH for arguments or a fingerprint that do not fit; SIGNATURE for
            wrong direct arguments, for aggregate functions, and for a scalar function with `outer`; BAD_FRAME for steps
            that refer to later steps, and for wrong outputs.
    """

    def __init__(self, request: Request, registry: Registry, where: str) -> None:
        if request.calls:
            raise RejectedError(
                "BAD_FRAME", "Open has calls and steps; use one exchange for aggregates and another one for steps"
            )
        self.request = request
        self._where = where
        self.calls: list[BoundStep] = []
        for index, step in enumerate(request.steps):
            self.calls.append(self._bind(index, step, registry))
        self.schema = pa.schema(list(self._fields()))

    @property
    def has_table(self) -> bool:
        """Whether a step is a table function, which may return several rows for one."""
        return any(each.bound.function.is_table for each in self.calls)

    def check(self, accelerator: Accelerator) -> None:
        """Instantiate each class with its direct arguments, and compile functions declared `compile=True`."""
        for each in self.calls:
            demand_instance(each.bound)
            accelerator.demand(each.bound)

    def open(self, resources: Resources) -> OpenExpressions:
        """Return the expressions, with each function opened. Raises the errors of `OpenExpressions`."""
        return OpenExpressions(
            [each.step for each in self.calls],
            [each.bound for each in self.calls],
            self.request,
            self.schema,
            resources,
        )

    def _fields(self) -> Iterator[pa.Field]:
        if not self.request.outputs:
            raise RejectedError(
                "BAD_FRAME", "Open has steps and no outputs; give the number of at least one step as an output"
            )
        if self.has_table:
            yield pa.field(ROW, pa.int32(), nullable=False)
        for index, step in enumerate(self.request.outputs):
            if not 0 <= step < len(self.calls):
                raise RejectedError(
                    "BAD_FRAME",
                    f"output {index} refers to step {step}, but the last step is {len(self.calls) - 1}",
                )
            yield pa.field(f"output_{index}", self.calls[step].bound.result_type)
        if self.request.isolate_errors:
            yield pa.field(ERROR, ERROR_TYPE)

    def _bind(self, index: int, step: Step, registry: Registry) -> BoundStep:
        if step.function not in registry:
            raise unknown_function(step.function, registry, self._where)
        function = registry[step.function]
        if not isinstance(function, ScalarFunction):
            raise RejectedError(
                "SIGNATURE",
                f"{step.function} is an aggregate function, not a scalar or table function; use it in a group_by",
                function=step.function,
            )
        if step.outer and not function.is_table:
            raise RejectedError(
                "SIGNATURE",
                f"{step.function} is not a table function, so its step cannot be outer; leave outer out",
                function=step.function,
            )
        types = [self._type_of(index, step, argument) for argument in step.arguments]
        bound = BoundStep(step, function.bind(types, step.literals))
        if is_larger_than(bound.bound.result_type, depth=_TYPE_DEPTH_MAX, parts=_TYPE_PARTS_MAX):
            raise RejectedError(
                "LIMIT",
                f"the result of step {index} ({step.function}) has a type that is nested more than {_TYPE_DEPTH_MAX} "
                f"times or has more than {_TYPE_PARTS_MAX} types inside; nest fewer functions",
                function=step.function,
                limit="type",
            )
        check_fingerprint(step, bound.fingerprint, bound.bound.version, self._where)
        return bound

    def _type_of(self, index: int, step: Step, argument: StepArgument) -> pa.DataType:
        if argument.step is None:
            return column_of(self.request.columns, argument.column or "", step).type
        if not 0 <= argument.step < index:
            raise RejectedError(
                "BAD_FRAME",
                f"step {index} ({step.function}) takes the result of step {argument.step}; give an earlier step",
                function=step.function,
            )
        type_ = self.calls[argument.step].bound.result_type
        return type_ if argument.member is None else _member(type_, argument, step)


def _member(type_: pa.DataType, argument: StepArgument, step: Step) -> pa.DataType:
    members: Sequence[str] = [field.name for field in type_] if pa.types.is_struct(type_) else []
    if members.count(argument.member or "") != 1:
        raise RejectedError(
            "SCHEMA_MISMATCH",
            f"{step.function} takes the member {argument.member!r} of the result of step {argument.step}; its members "
            f"are {', '.join(members) or 'none'}",
            function=step.function,
        )
    return type_.field(argument.member).type
