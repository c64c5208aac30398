"""With isolated errors each group is as if it were alone: folded, or unchanged, whatever happens to others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from foldflight import Applied, FunctionError, Segment, udaf
from foldflight.ext.compiler import Programs
from foldflight.ext.compiler.store import LoopStore
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.failures import ERROR
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Registry
from tests.effort import examples
from tests.folds import open_fold

SCHEMA = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64())])
SIGNER = StateSigner([b"a key of 16 bytes"])


class Sum:
    """Accumulator of Irritable."""

    total: int
    count: int


@udaf(input_types=["BIGINT"], result_type="TINYINT")
class Irritable:
    """A sum whose methods raise for some values, and whose result may be too large."""

    def create_accumulator(self) -> Sum:
        accumulator = Sum()
        accumulator.total = accumulator.count = 0
        return accumulator

    def accumulate(self, accumulator: Sum, value: int) -> None:
        accumulator.total += value
        accumulator.count += 1
        accumulator.total += 0 // (value - 13)

    def retract(self, accumulator: Sum, value: int) -> None:
        accumulator.total -= value
        accumulator.count -= 1
        accumulator.total += 0 // (value - 14)

    def merge(self, accumulator: Sum, other: Sum) -> None:
        accumulator.total += other.total
        accumulator.count += other.count
        accumulator.total += 0 // (accumulator.total % 7 - 3)

    def get_value(self, accumulator: Sum) -> int:
        return accumulator.total + 0 // (accumulator.total % 11 - 5)


@udaf(input_types=["BIGINT"], result_type="TINYINT", compile=True, name="compiled_one")
class Compiled(Irritable):
    """The same function, compiled."""


@udaf(input_types=["BIGINT"], result_type="TINYINT", bundled_retract=True, bundled_merge=True)
class InBundles:
    """A sum that changes accumulators in place before it raises: a bundle cannot be asked again with them."""

    def fold_bundle(self, segments: list[Segment[list[int]]]) -> list[Applied[list[int], int]]:
        """Fold all groups, or raise for one."""
        return [self.applied(segment) for segment in segments]

    def applied(self, segment: Segment[list[int]]) -> Applied[list[int], int]:
        """Fold one group."""
        total, *others = [*segment.accumulators, [0]]
        for other in others:
            total[0] += other[0]
        if len(segment.accumulators) > 1:
            total[0] += 0 // (total[0] % 7 - 3)
        while segment.rows:
            ((value,), sign) = segment.rows.pop(0), segment.signs.pop(0)
            total[0] += sign * value
            total[0] += 0 // (value - (13 if sign > 0 else 14))
        return Applied(total, total[0] + 0 // (total[0] % 11 - 5))


FUNCTIONS = Registry.load([Irritable, Compiled, InBundles])
PROGRAMS = Programs(LoopStore("user"))
CALLS = st.lists(
    st.sampled_from(
        [
            Call("irritable", ("v",)),
            Call("compiled_one", ("v",)),
            Call("in_bundles", ("v",)),
            Call("irritable", ("v",), distinct=True),
            Call("irritable", ("v",), materialize=True),
            Call("count"),
        ]
    ),
    min_size=1,
    max_size=3,
)
ROWS = st.tuples(st.integers(0, 5), st.sampled_from([0, 0, 0, 3]), st.integers(10, 20))
# Each epoch: chunks; and how often a group's old state is merged into it once more.
EPOCHS = st.lists(
    st.tuples(st.lists(st.lists(ROWS, min_size=1, max_size=8), min_size=1, max_size=3), st.booleans()),
    min_size=1,
    max_size=4,
)


def chunk(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def begin_fold(calls: list[Call], states: pa.Table | None, *, isolates: bool, twice: bool) -> Fold:
    """Return a fold with states, some of them merged with themselves."""
    fold = open_fold(bind_calls(FUNCTIONS, calls, SCHEMA), signer=SIGNER, isolates=isolates, accelerator=PROGRAMS)
    if states is not None:
        for _ in range(1 + twice):
            fold.merge_states(states.combine_chunks().to_batches()[0])
    return fold


def alone(calls: list[Call], state: pa.Table | None, chunks: list[Any], slot: int, *, twice: bool) -> Any:
    """Fold the rows of one group alone. Return its row of the results, or its error."""
    try:
        fold = begin_fold(calls, state, isolates=False, twice=twice)
        for rows in chunks:
            own = [row for row in rows if row[0] == slot]
            if own:
                fold.fold(chunk(own))
        return fold.collect().to_pylist()[0]
    except FunctionError as error:
        return error


@examples(150)
@given(calls=CALLS, epochs=EPOCHS)
def test_each_group_is_what_it_would_be_alone(calls: list[Call], epochs: list[tuple[Any, bool]]) -> None:
    """Over epochs, each group has the results of a separate fold, or its error and its previous state."""
    state_of_slot: dict[int, pa.Table] = {}
    for chunks, twice in epochs:
        touched_slots = sorted({row[0] for rows in chunks for row in rows})
        loaded_states = [state_of_slot[slot] for slot in touched_slots if slot in state_of_slot]
        fold = begin_fold(calls, pa.concat_tables(loaded_states) if loaded_states else None, isolates=True, twice=twice)
        for rows in chunks:
            fold.fold(chunk(rows))
        results = pa.Table.from_batches([fold.collect()])
        assert results["slot"].to_pylist() == touched_slots
        states = results.select([name for name in results.column_names if name == "slot" or "state" in name])
        for place, slot in enumerate(touched_slots):
            expected = alone(calls, state_of_slot.get(slot), chunks, slot, twice=twice)
            result = results.slice(place, 1).to_pylist()[0]
            error = result.pop(ERROR)
            if isinstance(expected, FunctionError):
                # Where several calls raise, it is not fixed which of them is told of.
                assert error is not None
                assert len(calls) > 1 or (error["code"], error["message"]) == (expected.code, expected.message)
                assert {value for name, value in result.items() if name != "slot"} == {None}
            else:
                assert error is None
                assert result == expected
                state_of_slot[slot] = states.slice(place, 1)
