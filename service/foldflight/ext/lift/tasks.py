"""The task of lifted batches: the host has aggregated the rows, and only finished states come to Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from foldflight.engine.batch.tasks import FinalFold, Folding
from foldflight.engine.query.blocks import gather
from foldflight.engine.query.layout import LIVE
from foldflight.errors import FunctionError
from foldflight.ext.lift.plan import FieldOverflow, LiftPlan, SumOverflow

ROWS: Final = "rows"
"""The number of rows of the one group of a query without keys, which may have none."""

AGGREGATES: Final = "aggregates"
"""A column with all aggregates: PySpark makes each column of a step, and of mapInArrow, by several calls of Java."""

OVERFLOWED: Final = (
    "a sum of the lifted plan does not hold its total: the group has 2**31 rows or more, a total beyond 2**95, or a "
    "total of DECIMALs beyond 38 digits; plan='fold' holds more"
)


def aggregate_name(call: int, index: int) -> str:
    """Return the name of the column with an aggregate of a call."""
    return f"aggregate_{call}_{index}"


@dataclass(frozen=True)
class LiftedFold(FinalFold):
    """The task over the aggregates of finished groups. Each group comes once.

    Args:
        plans: The plan of each call.
    """

    plans: tuple[LiftPlan, ...] = ()

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows is needed."""
        return not len(self.layout.keys)

    @property
    def input(self) -> pa.Schema:
        """Keys, live rows (if rows have kinds), the number of rows (if `counts_rows`), the aggregates of each call."""
        layout, query = self.layout, self.query
        fields = [*layout.keys]
        if layout.has_kinds:
            fields.append(pa.field(LIVE, pa.int64()))
        if self.counts_rows:
            fields.append(pa.field(ROWS, pa.int64()))
        for call, (plan, opened_call) in enumerate(zip(self.plans, query.opened_calls, strict=True)):
            fields += [
                pa.field(aggregate_name(call, index), plan.type_of(index, opened_call.input_types))
                for index in range(len(plan.aggregates))
            ]
        return pa.schema(fields)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Finish the groups of one partition."""
        with Folding(self.query, states=False, outputs=True) as folding:
            for block in gather(map(self._unpack, batches), self.input, self.query.bounds):
                yield from self._take_results(folding)
                self._load(folding, block)
                folding.barrier()
            yield from self._take_results(folding)

    def _unpack(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the columns of `input`, whose aggregates may be in one column."""
        if AGGREGATES not in batch.schema.names:
            return batch
        columns = [*(batch.column(name) for name in self.layout.keys.names), *batch.column(AGGREGATES).flatten()]
        return pa.RecordBatch.from_arrays(columns, names=self.input.names)

    def _load(self, folding: Folding, block: pa.RecordBatch) -> None:
        slots = folding.groups.slots(block)
        if self.layout.has_kinds:
            folding.groups.live[slots] = block.column(LIVE).fill_null(0).to_numpy()
        states = []
        for index, plan in enumerate(self.plans):
            try:
                states.append(self._states(index, plan, block))
            except (SumOverflow, FieldOverflow) as error:
                function = self.query.open_request.calls[index].function
                group = folding.groups.name(int(slots[error.index]))
                raise _overflow(function, error, group) from None
        folding.exchange.states(slots, states)

    def _states(self, index: int, plan: LiftPlan, block: pa.RecordBatch) -> pa.Array:
        type_ = self.layout.states.field(index).type
        if self.counts_rows and not block.column(ROWS)[0].as_py():
            return pa.nulls(1, type_)  # a new accumulator
        results = [block.column(aggregate_name(index, number)) for number in range(len(plan.aggregates))]
        return plan.states(results, type_, block.num_rows)


def _overflow(function: str, error: SumOverflow | FieldOverflow, group: dict[str, Any]) -> FunctionError:
    text = f"its accumulator does not fit its state: {error}" if isinstance(error, FieldOverflow) else OVERFLOWED
    return FunctionError("OVERFLOW", text, function=function, group=group)
