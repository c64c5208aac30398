"""A program of steps over the rows of a chunk. It has no state."""

from __future__ import annotations

import decimal
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foldflight.errors import FoldflightError, FunctionError
from foldflight.fold.accelerator import mapped
from foldflight.fold.evaluator import Request, Resources, Stateless
from foldflight.fold.failures import ERROR, Failures
from foldflight.fold.mapping.mapper import Mapper, Scalar
from foldflight.fold.mapping.scalar import InterpretedScalar, VectorisedScalar
from foldflight.fold.mapping.table import Table
from foldflight.fold.mode import Mode
from foldflight.fold.rows import Column, Rows, Slots
from foldflight.functions.context import FunctionContext
from foldflight.functions.mapping import BoundMap
from foldflight.functions.step import Step, StepArgument
from foldflight.functions.values import cast_arguments, exact_types

__all__ = ["OpenProgram"]

# As for aggregates, the precision of decimals suffices for a product of two DECIMAL(38).
_EXACT: Final = decimal.Context(prec=76)


class OpenProgram(Stateless):
    """The opened steps of one exchange.

    If errors are isolated, a row for which a function raises has NULL outputs, and its first error in `error`. After
    any other error the program is in an undefined state and must be closed.

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
        bound: Sequence[BoundMap],
        request: Request,
        schema: pa.Schema,
        resources: Resources,
    ) -> None:
        self.schema = schema
        self.failures = Failures(isolates=request.isolates)
        self.isolated: Counter[str] = self.failures.counts
        self._steps = tuple(steps)
        self._outputs = request.outputs
        self._wanted = _wanted_after(steps, request.outputs)
        self._deterministic = {each.function.name: each.function.is_deterministic for each in bound}
        self._mappers: list[Scalar | Table] = []
        try:
            for step, each in zip(steps, bound, strict=True):
                context = FunctionContext(
                    each.function.name,
                    job_parameters=request.job_parameters,
                    metrics=resources.metrics,
                    log=resources.log,
                )
                self._mappers.append(self._opened(step, each, context, resources))
        except FoldflightError:
            self.close()
            raise

    def _opened(self, step: Step, bound: BoundMap, context: FunctionContext, resources: Resources) -> Scalar | Table:
        if bound.function.is_table:
            return Table(bound, context, self.failures, outer=step.outer)
        if bound.function.vectorised is not None:
            return VectorisedScalar(bound, context, self.failures)
        inner = InterpretedScalar(bound, context, self.failures)
        try:
            return mapped(inner, resources.accelerator)
        except FoldflightError:
            inner.close()
            raise

    @property
    def kinds(self) -> tuple[Mode, ...]:
        """The current mode of each step."""
        return tuple(each.kind for each in self._mappers)

    def chunk(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the outputs of n rows.

        Args:
            batch: n rows in the schema of the request.

        Returns:
            Rows in `schema`. Without a table function these are n rows, in the order of the chunk. With one, `row` is
            the number of the row of the chunk, ascending.

        Raises:
            FunctionError: USER_CODE, RESULT_TYPE or OVERFLOW, with function and row.
            RejectedError: SCHEMA_MISMATCH, for a value that the declared type of an argument cannot hold.
        """
        with decimal.localcontext(_EXACT):
            try:
                return self._chunk(batch)
            except FunctionError as error:
                error.repeats &= self._deterministic.get(error.function or "", True)
                raise
            finally:
                self.failures.clear()

    def _chunk(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        state = _Rows(batch)
        for place, (step, mapper) in enumerate(zip(self._steps, self._mappers, strict=True)):
            rows = Rows(
                state.rows,
                None,
                [state.argument(each, mapper, at) for at, each in enumerate(step.arguments)],
                positions=state.rows.astype(np.int64),
            )
            if isinstance(mapper, Table):
                taken, values = mapper.rows(rows)
                state.expand(taken, keep=self._wanted[place])
            else:
                values = mapper.values(rows)
            state.results[place] = values
        return self._answer(state, batch.num_rows)

    def _answer(self, state: _Rows, count: int) -> pa.RecordBatch:
        outputs = [state.results[step] for step in self._outputs]
        rows = state.rows
        if self.failures:
            # A failed row has no results, only its error.
            sound = np.flatnonzero(~self.failures.among(rows))
            failed = np.flatnonzero(self.failures.among(np.arange(count, dtype=np.int32)))
            rows = np.concatenate([rows[sound], failed.astype(np.int32)])
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            places = np.concatenate([sound, np.zeros(len(failed), np.int64)])[order]
            has_failed = (np.arange(len(rows)) >= len(sound))[order]
            outputs = [_taken(column, places, has_failed) for column in outputs]
        columns = [pa.array(rows, pa.int32()), *outputs] if state.is_expanded else outputs
        if ERROR in self.schema.names:
            columns.append(self.failures.column(rows))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def close(self) -> None:
        """Close all functions. The first error is raised after all have been closed."""
        errors: list[FunctionError] = []
        for mapper in self._mappers:
            try:
                mapper.close()
            except FunctionError as error:
                errors.append(error)
        self._mappers = []
        if errors:
            raise errors[0]


def _taken(column: pa.Array, places: Any, is_null: Any) -> pa.Array:
    """Return the values at these places, NULL where `is_null`."""
    return column.take(pa.array(places, mask=is_null)) if len(column) else pa.nulls(len(places), column.type)


class _Rows:
    """The rows between two steps of one chunk.

    Args:
        batch: The chunk.

    Attributes:
        rows: For each current row the number of its row of the chunk; int32, shape (n,).
        results: The results of the evaluated steps by their numbers, n values each.
        is_expanded: Whether a table function has replaced the rows.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.rows: Slots = np.arange(batch.num_rows, dtype=np.int32)
        self.results: dict[int, pa.Array] = {}
        self.is_expanded = False
        self._batch = batch
        self._known: dict[tuple[StepArgument, str], Column] = {}

    def argument(self, argument: StepArgument, mapper: Mapper, place: int) -> Column:
        """Return an argument of a step, cast to its declared type.

        Steps with the same argument share its Python values, unless they are mutable (lists, maps): a function could
        change those.
        """
        type_ = mapper.bound.input_types[place]
        known = self._known.get((argument, str(type_)))
        if known is None:
            names = mapper.bound.function.input_names
            shown = argument.column if argument.step is None else names[place] if place < len(names) else str(place)
            known = Column(shown or "", cast_arguments(self._array(argument), type_))
            if exact_types(type_) is not None:
                self._known[argument, str(type_)] = known
        return known

    def _array(self, argument: StepArgument) -> pa.Array:
        if argument.step is None:
            column = self._batch.column(argument.column)
            return column.take(pa.array(self.rows)) if self.is_expanded else column
        result = self.results[argument.step]
        return result if argument.member is None else pc.struct_field(result, argument.member)

    def expand(self, taken: Slots, *, keep: frozenset[int]) -> None:
        """Replace the rows by the rows that a table function returned.

        Args:
            taken: For each new row the current row that it is derived from; int32, shape (m,).
            keep: The steps whose results are still needed.
        """
        places = pa.array(taken)
        self.results = {step: values.take(places) for step, values in self.results.items() if step in keep}
        self.rows = self.rows[taken]
        self.is_expanded = True
        self._known = {}


def _wanted_after(steps: Sequence[Step], outputs: Sequence[int]) -> list[frozenset[int]]:
    """Return for each step the numbers of the steps whose results are needed after it."""
    wanted = set(outputs)
    found = []
    for step in reversed(steps):
        found.append(frozenset(wanted))
        wanted |= {each.step for each in step.arguments if each.step is not None}
    return found[::-1]
