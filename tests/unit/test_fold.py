"""The fold: slots, kinds, states, dirty slots, FILTER, DISTINCT and errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from examples.weighted_avg import WeightedAvg
from foldflight import CorruptError, FoldflightError, FunctionError, RejectedError, udaf
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Order, Registry
from foldflight.functions.types.arrow import with_column
from tests.folds import open_fold

SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("kind", pa.int8()),
        ("v", pa.int64()),
        ("w", pa.int32()),
        ("x", pa.float64()),
        ("late", pa.bool_()),
    ]
)
INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = range(4)


def chunk(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    """Make a chunk of (slot, kind, v, w, x, late); missing values are NULL."""
    full = [(*row, *[None] * (6 - len(row))) for row in rows]
    columns = [pa.array([row[place] for row in full], field.type) for place, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def new_fold(*calls: Call, functions: Sequence[Any] = (WeightedAvg,), **options: Any) -> Fold:
    return open_fold(bind_calls(Registry.load(functions), calls, SCHEMA), **options)


WEIGHTED = Call("weighted_avg", ("v", "w"))


def outputs(fold: Fold) -> dict[int, Any]:
    """Collect, and return the output of the first call by slot."""
    batch = fold.collect()
    return dict(zip(batch.column("slot").to_pylist(), batch.column("output_0").to_pylist(), strict=True))


def test_rows_go_to_their_slots() -> None:
    """Rows of several slots and kinds are folded into the right accumulators, cast as declared."""
    fold = new_fold(WEIGHTED)
    fold.fold(chunk((0, INSERT, 10, 1), (2, INSERT, 7, 1), (0, UPDATE_AFTER, 21, 3), (2, DELETE, 7, 1)))
    assert outputs(fold) == {0: 18, 2: None}


def test_only_dirty_slots_come_back() -> None:
    """A barrier returns the slots changed since the last one, ascending, once each."""
    fold = new_fold(WEIGHTED)
    fold.fold(chunk((5, INSERT, 1, 1), (3, INSERT, 1, 1)))
    assert list(outputs(fold)) == [3, 5]
    assert fold.collect().num_rows == 0
    fold.fold(chunk((5, INSERT, 3, 1)))
    assert outputs(fold) == {5: 2}


def test_without_slots_and_kinds_all_rows_are_one_group() -> None:
    """A chunk without slot and kind inserts into slot 0."""
    fold = new_fold(WEIGHTED)
    fold.fold(chunk((0, INSERT, 4, 1), (0, INSERT, 8, 1)).select(["v", "w"]))
    assert outputs(fold) == {0: 6}


def test_states_move_a_group_to_another_fold() -> None:
    """States of one fold can be loaded into another; a second state of a slot is merged."""
    one, two = new_fold(WEIGHTED), new_fold(WEIGHTED)
    one.fold(chunk((0, INSERT, 10, 1), (1, INSERT, 50, 2)))
    states = one.collect()
    two.merge_states(states)
    two.merge_states(states)
    two.fold(chunk((0, INSERT, 40, 2)))
    assert outputs(two) == {0: 25, 1: 50}


def test_null_states_are_no_states() -> None:
    """A NULL state makes its slot dirty and changes nothing."""
    fold = new_fold(WEIGHTED)
    fold.merge_states(
        pa.RecordBatch.from_pydict(
            {"slot": pa.array([4], pa.int32()), "state_0": pa.nulls(1, fold.schema.field("state_0").type)}
        )
    )
    assert outputs(fold) == {4: None}


def test_columns_not_asked_for_are_null() -> None:
    """States or outputs that are not requested are not computed."""
    fold = new_fold(WEIGHTED)
    fold.fold(chunk((0, INSERT, 1, 1)))
    batch = fold.collect(states=False)
    assert batch.schema == fold.schema
    assert batch.column("state_0").null_count == 1
    fold.fold(chunk((0, INSERT, 1, 1)))
    assert fold.collect(outputs=False).column("output_0").null_count == 1


ONE = "a state or result of weighted_avg has more than 2 GiB"
ROWS = r"the rows that a group keeps for weighted_avg .* have more than 2 GiB.* a function that needs no rows"


@pytest.mark.parametrize(
    ("materialize", "large", "slot", "reason"),
    [
        (False, lambda slots: 2 in slots, 2, ONE),
        (True, lambda slots: 2 in slots, 2, ROWS),
        (False, lambda slots: len(slots) > 2, None, "of weighted_avg in 3 groups have more than 2 GiB"),
    ],
)
@pytest.mark.parametrize("raises", [True, False])
def test_results_that_no_array_holds_are_refused(
    materialize: bool, large: Any, slot: int | None, reason: str, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the group whose state alone is too large, however Arrow says that it is."""
    fold = new_fold(replace(WEIGHTED, materialize=materialize))
    fold.fold(chunk((0, INSERT, 10, 1), (2, INSERT, 7, 1), (3, INSERT, 7, 1)))
    (accumulators,) = fold._accumulators
    state = accumulators.state

    def bound_error(slots: Any) -> Any:
        if not large(slots):
            return state(slots)
        if raises:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return pa.chunked_array([state(slots)])

    monkeypatch.setattr(accumulators, "state", bound_error)
    with pytest.raises(RejectedError, match=reason) as excinfo:
        fold.collect()
    assert (excinfo.value.code, excinfo.value.slot) == ("LIMIT", slot)


def test_a_result_that_no_array_holds_is_not_said_to_be_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a call with DISTINCT, too, whose state is its rows."""
    fold = new_fold(Call("count", ("x",), distinct=True))
    fold.fold(chunk((0, INSERT, 5, 1, 1.0)))
    (accumulators,) = fold._accumulators

    def too_large(*_: Any) -> Any:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    for method in ("evaluate", "evaluate_states"):
        monkeypatch.setattr(accumulators, method, too_large)
    for states in (True, False):
        with pytest.raises(RejectedError, match="a state or result of count has more than 2 GiB"):
            fold.collect(states=states)


def test_forgotten_slots_are_empty_again() -> None:
    """A forgotten slot is clean and has no accumulator."""
    fold = new_fold(WEIGHTED)
    fold.fold(chunk((0, INSERT, 1, 1), (1, INSERT, 1, 1)))
    fold.forget(pa.array([0, 99], pa.int32()))
    assert outputs(fold) == {1: 1}
    fold.fold(chunk((0, INSERT, 9, 1)))
    assert outputs(fold) == {0: 9}


def test_filter_counts_only_true() -> None:
    """FILTER selects rows where the condition is true; the slot becomes dirty even if there are none."""
    fold = new_fold(Call("count", filter="late"))
    fold.fold(chunk((0, INSERT, 1, 1, 1.0, True), (0, INSERT, 1, 1, 1.0, None), (1, INSERT, 1, 1, 1.0, False)))
    assert outputs(fold) == {0: 1, 1: 0}


def test_distinct_counts_values_once_and_takes_them_back() -> None:
    """DISTINCT counts each value: a value is removed with its last row; NaN is one value."""
    fold = new_fold(Call("count", ("x",), distinct=True), Call("sum", ("v",), distinct=True))
    fold.fold(
        chunk((0, INSERT, 5, 1, math.nan), (0, INSERT, 5, 1, math.nan), (0, INSERT, 6, 1, 1.0), (0, INSERT, 6, 1, None))
    )
    batch = fold.collect()
    assert (batch.column("output_0").to_pylist(), batch.column("output_1").to_pylist()) == ([2], [11])
    fold.fold(chunk((0, DELETE, 5, 1, math.nan), (0, DELETE, 6, 1, 1.0)))
    batch = fold.collect()
    assert (batch.column("output_0").to_pylist(), batch.column("output_1").to_pylist()) == ([1], [11])


def test_distinct_merges_and_retracts_any_function() -> None:
    """With DISTINCT an append-only function can retract, and states that share a value count it once."""
    one, two = new_fold(Call("max", ("v",), distinct=True)), new_fold(Call("max", ("v",), distinct=True))
    one.fold(chunk((0, INSERT, 5), (0, INSERT, 9)))
    two.merge_states(one.collect())
    two.fold(chunk((0, DELETE, 9)))
    assert outputs(two) == {0: 5}
    three = new_fold(Call("max", ("v",), distinct=True))
    three.fold(chunk((0, DELETE, 5), (0, INSERT, 5), (0, INSERT, 4)))
    assert outputs(three) == {0: 4}


def test_materialized_input_takes_rows_back() -> None:
    """With its rows kept, an append-only function can retract and merge, with the multiplicity of rows."""
    largest = Call("max", ("v",), materialize=True)
    one, two = new_fold(largest), new_fold(largest)
    one.fold(chunk((0, INSERT, 5), (0, INSERT, 9), (0, INSERT, 9)))
    two.merge_states(one.collect())
    two.fold(chunk((0, DELETE, 9)))
    assert outputs(two) == {0: 9}
    two.fold(chunk((0, DELETE, 9)))
    assert outputs(two) == {0: 5}
    average_fold = new_fold(Call("avg", ("v",), materialize=True))
    average_fold.fold(chunk((0, INSERT, 3), (0, INSERT, 3), (0, INSERT, 9)))
    assert outputs(average_fold) == {0: 5.0}


def ordered_call(*keys: Order, distinct: bool = False) -> Call:
    return Call("string_agg", ("t",), distinct=distinct, order=keys)


def texts(*rows: tuple[int, int, str | None, int | None, float | None]) -> pa.RecordBatch:
    """Return a chunk: slot, kind, text, number, float."""
    types = [pa.int32(), pa.int8(), pa.string(), pa.int64(), pa.float64()]
    columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=["slot", "kind", "t", "n", "x"])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((Order("n"),), "d,b,a,c"),
        ((Order("n", descending=True, nulls_first=False),), "a,c,b,d"),
        ((Order("n", nulls_first=False),), "b,a,c,d"),
        ((Order("n", descending=True, nulls_first=True),), "d,a,c,b"),
        ((Order("n", descending=True), Order("t", descending=True)), "d,c,a,b"),
        ((Order("x"), Order("t")), "b,c,d,a"),
        ((Order("x", descending=True, nulls_first=False),), "a,d,c,b"),
    ],
)
def test_rows_are_folded_in_the_order_of_the_call(keys: tuple[Order, ...], expected: str) -> None:
    """NULL comes where the order says, NaN after all numbers, equal keys in the order of arrival."""
    rows = texts((0, 0, "a", 3, math.nan), (0, 0, "b", 1, None), (0, 0, "c", 3, 1.0), (0, 0, "d", None, 2.0))
    fold = Fold(bind_calls(Registry(), [ordered_call(*keys)], rows.schema))
    fold.fold(rows)
    assert fold.collect().column("output_0").to_pylist() == [expected]


def test_ordered_calls_merge_and_retract() -> None:
    """With its rows kept, an append-only function retracts and merges in order; DISTINCT orders by its arguments."""
    schema = texts((0, 0, "a", 1, None)).schema
    one, two = (Fold(bind_calls(Registry(), [ordered_call(Order("n"))], schema)) for _ in range(2))
    one.fold(texts((0, 0, "c", 3, None), (0, 0, "a", 1, None)))
    two.fold(texts((0, 0, "b", 2, None)))
    two.merge_states(one.collect())
    two.fold(texts((0, DELETE, "c", 3, None)))
    assert two.collect().column("output_0").to_pylist() == ["a,b"]
    (call,) = bind_calls(Registry(), [ordered_call(Order("t", descending=True), distinct=True)], schema)
    fold = Fold([call])
    fold.fold(texts((0, 0, "a", 1, None), (0, 0, "b", 1, None), (0, 0, "a", 2, None)))
    assert fold.collect().column("output_0").to_pylist() == ["b,a"]
    fingerprints = {
        bind_calls(Registry(), [each], schema)[0].fingerprint
        for each in (
            ordered_call(),
            ordered_call(Order("n")),
            ordered_call(Order("n", descending=True)),
            ordered_call(Order("x")),
        )
    }
    assert len(fingerprints) == 4
    with pytest.raises(RejectedError, match="only by its arguments"):
        bind_calls(Registry(), [ordered_call(Order("n"), distinct=True)], schema)
    nested_schema = schema.append(pa.field("l", pa.list_(pa.int64())))
    with pytest.raises(RejectedError, match="cannot be ordered by 'l'"):
        bind_calls(Registry(), [ordered_call(Order("l"))], nested_schema)


@udaf(input_types=["DECIMAL(4, 2)", "BIGINT"], result_type="DECIMAL(10, 2)", state_type="DECIMAL(10, 2)")
class Money:
    """Adds amounts of up to 99.99."""

    def create_accumulator(self) -> Any:
        return 0

    def accumulate(self, accumulator: Any, amount: Any, _: int) -> Any:
        return accumulator + (amount or 0)

    def get_value(self, accumulator: Any) -> Any:
        return accumulator


def test_an_argument_that_does_not_fit_its_decimal_is_refused() -> None:
    """It is OVERFLOW with the value and the row, unless FILTER leaves the row out. Isolated, its group alone fails."""
    calls = [Call("money", ("v", "w")), Call("count", ("v",))]
    rows = chunk((0, INSERT, 20, 1, None, True), (1, INSERT, 100, 7, None, False), (0, INSERT, None, 1, None, True))
    with pytest.raises(FunctionError, match="v is 100, which does not fit DECIMAL") as excinfo:
        new_fold(*calls, functions=[Money]).fold(rows)
    assert (excinfo.value.code, excinfo.value.slot, excinfo.value.row) == ("OVERFLOW", 1, "v=100, w=7")
    fold = new_fold(Call("money", ("v", "w"), filter="late"), functions=[Money])
    fold.fold(rows)
    assert outputs(fold) == {0: 20, 1: 0}
    fold = new_fold(*calls, functions=[Money], isolates=True)
    fold.fold(rows)
    assert [row["error"] and row["error"]["code"] for row in fold.collect().to_pylist()] == [None, "OVERFLOW"]


def test_the_value_after_each_row_is_returned() -> None:
    """fold_each returns the value after every row, including filtered rows."""
    fold = new_fold(WEIGHTED, Call("count", filter="late"), Call("count", ("v",), distinct=True))
    rows = chunk(
        (0, INSERT, 2, 1, None, True),
        (1, INSERT, 9, 1, None, False),
        (0, INSERT, 4, 1, None, True),
        (0, DELETE, 2, 1, None, True),
    )
    assert fold.fold_each(rows).to_pylist() == [
        {"output_0": 2, "output_1": 1, "output_2": 1},
        {"output_0": 9, "output_1": 0, "output_2": 1},
        {"output_0": 3, "output_1": 2, "output_2": 2},
        {"output_0": 4, "output_1": 1, "output_2": 1},
    ]


def test_values_after_some_rows_are_those_after_each_row() -> None:
    """With `emits`, outputs are computed only after the rows whose `emit` is true."""
    calls = (WEIGHTED, Call("count", filter="late"), Call("count", ("v",), distinct=True))
    rows = chunk(
        (0, INSERT, 2, 1, None, True),
        (1, INSERT, 9, 1, None, False),
        (0, INSERT, 4, 1, None, True),
        (0, DELETE, 2, 1, None, True),
    )
    every = new_fold(*calls).fold_each(rows)
    emit = pa.array([False, True, False, True])
    some = new_fold(*calls, row_outputs=True, emits=True)
    (result,) = some.chunk(with_column(rows, "emit", emit))
    assert result.column("slot").to_pylist() == [1, 3]
    assert result.select(every.schema.names).to_pylist() == every.filter(emit).to_pylist()
    with pytest.raises(RejectedError, match="the column emit has NULLs"):
        some.chunk(with_column(rows, "emit", pa.array([True, None, True, True])))


def test_outputs_of_empty_slots_are_fresh() -> None:
    """The initial output of a slot without accumulator is the value of a new one."""
    fold = new_fold(Call("count"))
    assert fold.outputs(pa.array([0, 7], pa.int32())).column("output_0").to_pylist() == [0, 0]


def test_mixed_functions_share_one_exchange() -> None:
    """Built-in and authors' functions are folded together over the same columns."""
    fold = new_fold(WEIGHTED, Call("avg", ("v",)), Call("max", ("x",)), Call("stddev_pop", ("v",)))
    fold.fold(chunk((0, INSERT, 2, 1, 1.0), (0, INSERT, 4, 1, math.nan)))
    row = fold.collect().to_pylist()[0]
    assert (row["output_0"], row["output_1"], row["output_3"]) == (3, 3.0, 1.0)
    assert math.isnan(row["output_2"])


@dataclass
class Tally:
    rows: int


class _Base:
    """Count rows, in various wrong ways."""

    def create_accumulator(self) -> Tally:
        return Tally(0)

    def accumulate(self, accumulator: Tally, value: int) -> None:
        accumulator.rows += 1

    def get_value(self, accumulator: Tally) -> Any:
        return accumulator.rows


def broken_class(**methods: Any) -> type:
    return udaf(input_types=["BIGINT"], result_type="BIGINT", name="broken")(type("Broken", (_Base,), methods))


def fail(*_: Any) -> Any:
    message = "bad luck"
    raise ValueError(message)


def call_all_methods(fold: Fold, *, with_retractions: bool) -> None:
    fold.fold(chunk((3, INSERT, 1), (4, DELETE, 2)) if with_retractions else chunk((4, INSERT, 1)))
    fold.merge_states(fold.collect())


@pytest.mark.parametrize("method_name", ["create_accumulator", "accumulate", "get_value", "retract", "merge"])
def test_each_method_that_raises_is_named(method_name: str) -> None:
    """An exception in a method names function, method, slot and row, and shows only the author's frames."""
    fold = new_fold(Call("broken", ("v",)), functions=[broken_class(**{method_name: fail})], signer=SIGNER)
    with pytest.raises(FunctionError, match=f"{method_name} raised ValueError: bad luck|get_value raised") as excinfo:
        call_all_methods(fold, with_retractions=method_name == "retract")
    error = excinfo.value
    assert (error.code, error.function, error.slot) == ("USER_CODE", "broken", 4)
    assert error.trace is not None
    assert "in fail" in error.trace
    assert "foldflight/fold" not in error.trace
    if method_name in ("accumulate", "retract"):
        assert error.row is not None
        assert f"v={2 if method_name == 'retract' else 1}" in error.row


def test_rows_of_errors_stand_where_they_stood_in_the_chunk() -> None:
    """The position of a row in an error is that in the chunk, also with a filter."""
    fold = new_fold(Call("broken", ("v",), filter="late"), functions=[broken_class(accumulate=fail)])
    with pytest.raises(FunctionError) as excinfo:
        fold.fold(chunk((0, INSERT, 1, 1, 1.0, False), (6, INSERT, 8, 1, 1.0, True)))
    assert excinfo.value.row == "v=8"
    assert excinfo.value.slot == 6


def test_errors_of_constructor_and_open_are_named() -> None:
    """If a class cannot be instantiated or opened, the error is the author's."""
    for method_name in ("__init__", "open"):
        with pytest.raises(FunctionError, match="bad luck"):
            new_fold(
                Call("broken", ("v",)),
                functions=[broken_class(**{method_name: fail if method_name == "open" else lambda self: fail()})],
            )


def test_results_of_the_wrong_type_are_refused() -> None:
    """A result that cannot be cast is an error with function, value and slot."""
    fold = new_fold(Call("broken", ("v",)), functions=[broken_class(get_value=lambda self, a: "many")])
    fold.fold(chunk((2, INSERT, 1)))
    with pytest.raises(
        FunctionError, match=r"get_value returned 'many' \(str\), which does not fit BIGINT; return such"
    ) as excinfo:
        fold.collect()
    assert (excinfo.value.code, excinfo.value.slot) == ("RESULT_TYPE", 2)


def test_bigint_overflow_is_an_error() -> None:
    """A sum beyond BIGINT is OVERFLOW with function and slot, never a wrapped number."""
    fold = new_fold(Call("sum", ("v",)))
    fold.fold(chunk((1, INSERT, 2**62), (1, INSERT, 2**62)))
    with pytest.raises(FunctionError) as excinfo:
        fold.collect()
    assert (excinfo.value.code, excinfo.value.function, excinfo.value.slot) == ("OVERFLOW", "sum", 1)


def test_numbers_must_be_returned() -> None:
    """A method that returns None although the accumulator is a number is an error."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT")
    class Forgets:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, value: int) -> None:
            accumulator += value

        def get_value(self, accumulator: int) -> int:
            return accumulator

    fold = new_fold(Call("forgets", ("v",)), functions=[Forgets])
    with pytest.raises(FunctionError, match=r"accumulate returned None, but .* int cannot change in place") as excinfo:
        fold.fold(chunk((0, INSERT, 1)))
    assert excinfo.value.code == "RESULT_TYPE"


def test_an_accumulator_may_be_none() -> None:
    """An optional accumulator may be None, and such a state is a state."""

    @udaf(input_types=["BIGINT"], result_type="BIGINT")
    class LastUnlessNegative:
        def create_accumulator(self) -> int | None:
            return 0

        def accumulate(self, accumulator: int | None, value: int) -> int | None:
            return None if value < 0 else value

        def get_value(self, accumulator: int | None) -> int | None:
            return accumulator

    one = new_fold(Call("last_unless_negative", ("v",)), functions=[LastUnlessNegative])
    one.fold(chunk((0, INSERT, -1)))
    two = new_fold(Call("last_unless_negative", ("v",)), functions=[LastUnlessNegative])
    two.merge_states(one.collect())
    assert outputs(two) == {0: None}


def test_attributes_nobody_annotated_are_not_lost() -> None:
    """An accumulator with attributes that its class does not annotate is an error: its state would lose them."""

    def accumulate(self: Any, accumulator: Any, value: int) -> None:
        accumulator.extra = value

    fold = new_fold(Call("broken", ("v",)), functions=[broken_class(accumulate=accumulate)])
    fold.fold(chunk((0, INSERT, 1)))
    with pytest.raises(FunctionError, match="has extra, which Tally does not annotate"):
        fold.collect()


def test_append_only_functions_refuse_retractions() -> None:
    """A retraction for a function without retract is refused before any row is folded."""
    fold = new_fold(Call("count"), Call("max", ("v",)))
    with pytest.raises(RejectedError, match=r"max is append-only .*; let groups keep their rows") as excinfo:
        fold.fold(chunk((0, INSERT, 1), (0, UPDATE_BEFORE, 1)))
    assert excinfo.value.code == "CANNOT_RETRACT"
    assert fold.collect().num_rows == 0


def test_functions_without_merge_refuse_a_second_state() -> None:
    """Without merge a slot accepts one state."""
    fold = new_fold(Call("broken", ("v",)), functions=[broken_class()])
    fold.fold(chunk((0, INSERT, 1)))
    state = fold.collect()
    with pytest.raises(RejectedError, match="broken has no merge") as excinfo:
        fold.merge_states(state)
    assert excinfo.value.code == "CANNOT_MERGE"


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("slot", pa.array([-1], pa.int32()), "slots are 0 or more"),
        ("slot", pa.array([None], pa.int32()), "int32 without NULLs, but it is int32 with 1 NULLs"),
        ("slot", pa.array([0], pa.int64()), "int32 without NULLs, but it is int64\n"),
        ("kind", pa.array([4], pa.int8()), "4 is no row kind"),
        ("kind", pa.array([-1], pa.int8()), "-1 is no row kind"),
        (
            "kind",
            pa.array([None], pa.int8()),
            "int8 without NULLs, but it is int8 with 1 NULLs",
        ),
        ("kind", pa.array(["+I"]), "must be int8 without NULLs, but it is string"),
    ],
)
def test_slots_and_kinds_are_checked(column: str, values: pa.Array, message: str) -> None:
    """Invalid slots and kinds are refused."""
    rows = chunk((0, INSERT, 1, 1))
    rows = with_column(rows, column, values)
    with pytest.raises(RejectedError, match=message):
        new_fold(WEIGHTED).fold(rows)


@pytest.mark.parametrize(
    ("call", "message", "code"),
    [
        (Call("wieghted_avg", ("v", "w")), "did you mean weighted_avg", "UNKNOWN_FUNCTION"),
        (Call("weighted_avg", ("v",)), "takes 2 arguments and was given 1", "SCHEMA_MISMATCH"),
        (Call("weighted_avg", ("v", "x")), "takes INT for its argument weight and was given DOUBLE", "SCHEMA_MISMATCH"),
        (Call("weighted_avg", ("v", "nowhere")), "column 'nowhere' that the chunk does not have", "SCHEMA_MISMATCH"),
        (
            Call("count", filter="v"),
            "the condition 'v' of count is BIGINT, but",
            "SCHEMA_MISMATCH",
        ),
        (Call("count", distinct=True), "cannot be DISTINCT", "SIGNATURE"),
        (
            Call("weighted_avg", ("v", "w"), fingerprint="0" * 16),
            "not the function that the engine expects",
            "SCHEMA_MISMATCH",
        ),
        (Call("weighted_avg", ("v", "w"), literals={"a": 1}), "has no direct argument 'a'", "SIGNATURE"),
    ],
)
def test_calls_that_do_not_fit_are_refused(call: Call, message: str, code: str) -> None:
    """A call that does not fit functions or columns is refused when it is bound."""
    with pytest.raises(RejectedError, match=message) as excinfo:
        new_fold(call)
    assert excinfo.value.code == code


def test_functions_are_opened_closed_and_given_their_context() -> None:
    """`open` gets job parameters and the logger; `close` is called once, for all functions even if one raises."""
    events: list[Any] = []

    def open_(self: Any, context: Any) -> None:
        events.append(context.job_parameters["city"])
        context.logger.info("opened")

    records: list[Any] = []
    fold = new_fold(
        Call("broken", ("v",)),
        functions=[broken_class(open=open_, close=lambda self: events.append("closed"))],
        job_parameters={"city": "NYC"},
        log=records.append,
    )
    fold.close()
    fold.close()
    assert events == ["NYC", "closed"]
    assert records[0].message == "opened"
    with pytest.raises(FunctionError, match="close raised ValueError"):
        new_fold(Call("broken", ("v",)), functions=[broken_class(close=fail)]).close()


def test_logged_lines_name_their_slot() -> None:
    """A log line during folding or of get_value has the slot; one of `open` has none."""

    def open_(self: Any, context: Any) -> None:
        self.logger = context.logger
        self.logger.info("open")

    def accumulate(self: Any, accumulator: Tally, value: int) -> None:
        if value > 1:
            self.logger.warning("large", value=value)

    def get_value(self: Any, accumulator: Tally) -> int:
        self.logger.info("asked")
        return 0

    records: list[Any] = []
    function = broken_class(open=open_, accumulate=accumulate, get_value=get_value)
    fold = new_fold(Call("broken", ("v",)), functions=[function], log=records.append)
    fold.fold(chunk((3, INSERT, 1), (7, INSERT, 2), (5, INSERT, 1)))
    fold.collect()
    assert [(record.message, record.slot) for record in records] == [
        ("open", None),
        ("large", 7),
        ("asked", 3),
        ("asked", 5),
        ("asked", 7),
    ]


class Bag:
    """A state that no annotation describes."""

    def __init__(self) -> None:
        self.items: Any = set()


class Bagged:
    def create_accumulator(self) -> Any:
        return Bag()

    def accumulate(self, accumulator: Bag, value: int) -> None:
        accumulator.items.add(value)

    def merge(self, accumulator: Bag, other: Bag) -> None:
        accumulator.items |= other.items

    def get_value(self, accumulator: Bag) -> int:
        return len(accumulator.items)


PICKLED = udaf(input_types=["BIGINT"], result_type="BIGINT", name="bagged")(type("Pickled", (Bagged,), {}))
CUSTOM = udaf(input_types=["BIGINT"], result_type="BIGINT", name="bagged")(
    type(
        "Custom",
        (Bagged,),
        {
            "serialize": lambda self, bag: ",".join(map(str, sorted(bag.items))).encode(),
            "deserialize": lambda self, text: _bag(text),
        },
    )
)


def _bag(text: bytes) -> Bag:
    bag = Bag()
    bag.items = {int(part) for part in text.split(b",") if part}
    return bag


SIGNER, OTHER_SIGNER = StateSigner([b"k" * 16]), StateSigner([b"o" * 16])
BAGGED = Call("bagged", ("v",))


def bag_state(function: type, signer: StateSigner | None = SIGNER) -> pa.RecordBatch:
    fold = new_fold(BAGGED, functions=[function], signer=signer)
    fold.fold(chunk((0, INSERT, 1), (0, INSERT, 2)))
    return fold.collect()


def with_state(batch: pa.RecordBatch, state: bytes) -> pa.RecordBatch:
    return with_column(batch, batch.schema.field("state_0"), pa.array([state], pa.binary()))


@pytest.mark.parametrize("function", [PICKLED, CUSTOM])
def test_binary_states_are_loaded_and_merged(function: type) -> None:
    """Pickled and custom states are loaded and merged."""
    fold = new_fold(BAGGED, functions=[function], signer=SIGNER)
    fold.fold(chunk((0, INSERT, 2), (0, INSERT, 3)))
    fold.merge_states(bag_state(function))
    assert outputs(fold) == {0: 3}


def damaged_states(function: type) -> list[tuple[str, bytes]]:
    good = bag_state(function).column("state_0")[0].as_py()
    import pickle

    return [
        ("empty", b""),
        ("truncated", good[:-1]),
        ("flipped", good[:-1] + bytes([good[-1] ^ 1])),
        ("foreign", b"not a state at all, but long enough to look like one....."),
        ("unsigned pickle", pickle.dumps(Bag())),
    ]


@pytest.mark.parametrize("function", [PICKLED, CUSTOM])
def test_damaged_states_are_refused(function: type) -> None:
    """Forged, truncated and foreign states are refused with their function, and never unpickled."""
    for name, state in damaged_states(function):
        fold = new_fold(BAGGED, functions=[function], signer=SIGNER)
        with pytest.raises(FoldflightError) as excinfo:
            fold.merge_states(with_state(bag_state(function), state))
        assert isinstance(excinfo.value, (RejectedError, CorruptError)), name
        assert excinfo.value.code in ("STATE_MISMATCH", "STATE_CHECKSUM"), name


def test_pickles_of_another_key_are_refused() -> None:
    """A pickle signed with another fleet's key is refused; one signed with a rotated key is accepted."""
    states = bag_state(PICKLED, OTHER_SIGNER)
    with pytest.raises(RejectedError, match="signed with another key"):
        new_fold(BAGGED, functions=[PICKLED], signer=SIGNER).merge_states(states)
    fold_with_new_key = new_fold(BAGGED, functions=[PICKLED], signer=StateSigner([b"k" * 16, b"o" * 16]))
    fold_with_new_key.merge_states(states)
    assert outputs(fold_with_new_key) == {0: 2}


@pytest.mark.parametrize("isolates", [False, True])
def test_an_accumulator_of_an_earlier_class_asks_for_migrate(isolates: bool) -> None:
    """A renamed key is found when a method looks for it, so its error tells that the class may have changed.

    An error of a state that this fold has made, or of another kind, does not.
    """

    def counts(key: str, missing: Exception | None = None) -> type:
        def get_value(self: Any, counts: Any) -> int:
            if missing is not None and key not in counts:
                raise missing
            return int(counts[key])

        def accumulate(self: Any, counts: Any, value: int) -> None:
            counts["times" if value else "none"] = value

        members = {"create_accumulator": lambda self: {}, "accumulate": accumulate, "get_value": get_value}
        return udaf(input_types=["BIGINT"], result_type="BIGINT", name="bagged")(type("Counts", (), members))

    def message(function: type, states: pa.RecordBatch | None) -> str:
        fold = new_fold(BAGGED, functions=[function], signer=SIGNER, isolates=isolates)
        if states is None:
            fold.fold(chunk((0, INSERT, 1)))
        else:
            fold.merge_states(states)
        if isolates:
            return str(fold.collect().column("error")[0].as_py()["message"])
        with pytest.raises(FunctionError) as excinfo:
            fold.collect()
        return excinfo.value.message

    states = bag_state(counts("times"))
    assert message(counts("stamps"), states) == (
        "get_value raised KeyError: 'stamps'; it has read pickled states: if the class was changed after they were "
        "written, raise its version and define migrate"
    )
    assert message(counts("stamps"), None) == "get_value raised KeyError: 'stamps'"
    assert message(counts("stamps", ValueError("none")), states) == "get_value raised ValueError: none"


def test_pickles_need_a_key() -> None:
    """Without a key a function whose states are pickled is refused, with the remedies."""
    with pytest.raises(RejectedError, match=r"FOLDFLIGHT_STATE_KEYS.*annotate") as excinfo:
        new_fold(BAGGED, functions=[PICKLED])
    assert excinfo.value.code == "SETTINGS"
    with pytest.raises(RejectedError, match="at least 16 bytes"):
        StateSigner([b"short"])


@pytest.mark.parametrize("function", [PICKLED, CUSTOM])
def test_states_of_another_version_are_refused(function: type) -> None:
    """A state of another version is STATE_MISMATCH, by its envelope and by the metadata of its column."""
    newer = udaf(input_types=["BIGINT"], result_type="BIGINT", name="bagged", version="2")(
        type("Newer", (function,), {})
    )
    states = bag_state(function)
    for batch in (states, with_state(bag_state(newer), states.column("state_0")[0].as_py())):
        with pytest.raises(RejectedError, match="bagged version 2") as excinfo:
            new_fold(BAGGED, functions=[newer], signer=SIGNER).merge_states(batch)
        assert excinfo.value.code == "STATE_MISMATCH"


def test_kept_rows_of_another_type_are_refused() -> None:
    """Rows of DISTINCT are kept with the types of their arguments, which a version with other types cannot fold."""
    call = replace(BAGGED, distinct=True)
    older, newer = (
        udaf(input_types=[type_], result_type="BIGINT", name="bagged", version=version)(type("Kept", (Bagged,), {}))
        for version, type_ in (("1", "BIGINT"), ("2", "DOUBLE"))
    )
    fold = new_fold(call, functions=[older], signer=SIGNER)
    fold.fold(chunk((0, INSERT, 1), (0, INSERT, 1)))
    with pytest.raises(RejectedError, match=r"bagged version 2 .* keeps rows") as excinfo:
        new_fold(call, functions=[newer], signer=SIGNER).merge_states(fold.collect())
    assert excinfo.value.code == "STATE_MISMATCH"


def test_typed_states_of_another_type_are_refused() -> None:
    """A typed state of another layout is STATE_MISMATCH."""
    fold = new_fold(WEIGHTED)
    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0], pa.int32()), "state_0": pa.array([{"sum": 1}])})
    with pytest.raises(RejectedError, match=r"its type is struct<sum: int64>") as excinfo:
        fold.merge_states(batch)
    assert excinfo.value.code == "STATE_MISMATCH"
    with pytest.raises(RejectedError, match="no column state_0"):
        fold.merge_states(batch.select(["slot"]))


def test_changed_slots_are_marked_again_after_they_were_taken() -> None:
    """Slots that change again after a barrier, a checkpoint or Forget are returned again."""
    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0, 1, 0, 1], pa.int32())})
    fold = Fold(bind_calls(Registry(), [Call("count")], batch.schema))
    for expected in (2, 4):
        fold.fold(batch)
        fold.fold(batch)
        assert fold.collect().column("output_0").to_pylist() == [2 * expected, 2 * expected]
        assert fold.collect().num_rows == 0
    fold.fold(batch)
    assert fold.changed_states().num_rows == 2
    fold.fold(batch)
    assert fold.changed_states().num_rows == 2
    assert fold.changed_states().num_rows == 0
    fold.forget(pa.array([1], pa.int32()))
    assert fold.collect().column("slot").to_pylist() == [0]
    fold.fold(batch)
    assert fold.collect().column("output_0").to_pylist() == [14, 2]


def test_the_error_of_open_is_not_replaced_by_one_of_close() -> None:
    """If a function cannot be opened, those before it are closed, and their errors do not hide the cause."""

    class Counts:
        def create_accumulator(self) -> list[int]:
            return [0]

        def accumulate(self, accumulator: list[int], value: int) -> None:
            accumulator[0] += 1

        def get_value(self, accumulator: list[int]) -> int:
            return accumulator[0]

    @udaf(name="fragile", compile=False)
    class Fragile(Counts):
        def close(self) -> None:
            raise ValueError("cannot be closed")

    @udaf(name="unopened", compile=False)
    class Unopened(Counts):
        def open(self, context: object) -> None:
            raise LookupError("no model")

    with pytest.raises(FunctionError, match="open raised LookupError: no model"):
        new_fold(Call("fragile", ("v",)), Call("unopened", ("v",)), functions=(Fragile, Unopened))
