"""The contract of `fold_bundle`: its segments, its return value, and refusals."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from examples.euros import TotalInEuros
from examples.weighted_avg import WeightedAvg
from foldflight import Applied, FunctionError, RejectedError, Segment, connect, udaf
from foldflight.ext.compiler import Programs
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.mode import Mode
from foldflight.functions import Call, Registry, function_of
from foldflight.testing import check_laws, run_epochs, run_over
from tests.folds import open_fold

SCHEMA = pa.schema([("slot", pa.int32()), ("kind", pa.int8()), ("v", pa.int64()), ("ok", pa.bool_())])
SEEN: list[tuple[list[int], list[tuple[Any, ...]], list[int], bool]] = []
CAPABLE: dict[str, Any] = {"input_types": ["BIGINT"], "bundled_retract": True, "bundled_merge": True}


class Total:
    """A sum; it notes the segments of its bundles."""

    def fold_bundle(self, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        SEEN.extend((each.accumulators, each.rows, each.signs, each.wants_each) for each in segments)
        return [self.applied(each) for each in segments]

    def applied(self, segment: Segment[int]) -> Applied[int, int]:
        total = sum(segment.accumulators)
        values = [total := total + sign * value for (value,), sign in zip(segment.rows, segment.signs, strict=True)]
        return Applied(total, total, values)


def total(**methods: Any) -> type:
    """Return the class above as a function, with other methods."""
    return udaf(name="total", skip_nulls=True, **CAPABLE)(type("Total", (Total,), dict(vars(Total)) | methods))


def fold_of(call: Call, *rows: tuple[int, int, int | None, bool | None], cls: type | None = None, **how: Any) -> Fold:
    fold = open_fold(
        bind_calls(Registry.load([cls or total()]), [call], SCHEMA), signer=None, accelerator=Programs(), **how
    )
    SEEN.clear()
    fold.fold(chunk(rows))
    return fold


def chunk(rows: Sequence[tuple[int, int, int | None, bool | None]]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def test_a_chunk_is_one_bundle() -> None:
    """A segment has the accumulator and the rows of one slot, in order; FILTER and NULLs leave rows out."""
    fold = fold_of(
        Call("total", ("v",), filter="ok"),
        (1, 0, 5, True), (0, 0, 7, True), (1, 0, None, True), (1, 3, 2, True), (0, 0, 1, None),
    )  # fmt: skip
    assert SEEN == [([], [(7,)], [1], False), ([], [(5,), (2,)], [1, -1], False)]
    SEEN.clear()
    assert fold.collect().column("output_0").to_pylist() == [7, 3]
    assert SEEN == [([7], [], [], False), ([3], [], [], False)]  # one segment for each state
    SEEN.clear()
    fold.fold(chunk([(1, 0, 10, True)]))
    assert SEEN == [([3], [(10,)], [1], False)]
    assert fold.modes == (Mode.BUNDLED,)


def test_states_are_merged_before_rows() -> None:
    """The first state of a slot is its accumulator; several are merged by segments without rows."""
    states = fold_of(Call("total", ("v",)), (0, 0, 4, True), (1, 0, 5, True)).collect().select(["slot", "state_0"])
    fold = fold_of(Call("total", ("v",)))
    fold.merge_states(states)
    assert SEEN == []
    assert fold.outputs(pa.array([0, 1, 2], pa.int32())).column("output_0").to_pylist() == [4, 5, 0]
    assert SEEN == [([4], [], [], False), ([5], [], [], False), ([], [], [], False)]
    SEEN.clear()
    fold.merge_states(states.slice(1))
    assert SEEN == [([5, 5], [], [], False)]
    assert fold.collect().column("output_0").to_pylist() == [4, 10]


def test_segments_want_the_value_after_each_row_where_it_is_needed() -> None:
    """Segments want the value after each row where it is needed; a row that is left out shows the value before it."""
    bound = bind_calls(Registry.load([total()]), [Call("total", ("v",), filter="ok")], SCHEMA)
    fold = open_fold(bound, row_outputs=True)
    fold.fold(chunk([(2, 0, 100, True)]))
    SEEN.clear()
    rows = [(0, 0, 1, False), (2, 0, 1, None), (0, 0, 2, True), (2, 0, 3, True), (0, 3, 2, True), (0, 0, 9, False)]
    (result,) = fold.chunk(chunk(rows))
    assert result.column("output_0").to_pylist() == [0, 100, 2, 103, 0, 0]
    assert [segment for segment in SEEN if segment[3]] == [
        ([], [(2,), (2,)], [1, -1], True),
        ([100], [(3,)], [1], True),
    ]


def test_forms_are_mixed_in_a_query() -> None:
    """Bundled, ordinary and built-in calls share their rows, in epochs with retractions and over frames."""
    f = connect(TotalInEuros).register(WeightedAvg)
    calls = {"euros": f["total_in_euros"]("amount", "currency"), "mean": f["weighted_avg"]("n", "w"), "n": f["count"]()}
    types = {"amount": "DECIMAL(12,2)", "currency": "STRING", "n": "BIGINT", "w": "INT"}
    one, two = (
        {"k": "a", "amount": amount, "currency": "USD", "n": n, "w": 1, "at": at}
        for amount, n, at in ((10, 4, 1), (20, 8, 2))
    )
    first, second = run_epochs(
        calls, keys=["k"], epochs=[[one, two], [("-D", one)]], types=types | {"at": "INT"}
    )  # fmt: skip
    assert [tuple(row.values()) for _, row in first.changelog] == [("a", 27, 6, 2)]
    assert [tuple(row.values()) for _, row in second.changelog] == [("a", 27, 6, 2), ("a", 18, 8, 1)]
    framed_calls = {name: call.rows(-1, 0) for name, call in calls.items()}
    framed_calls["distinct"] = f["total_in_euros"]("amount", "currency").distinct().rows(-9, 0)
    rows = run_over(framed_calls, [one, two, two | {"at": 3}], keys=["k"], order_by=["at"], types=types)
    assert [tuple(row[name] for name in framed_calls) for row in rows] == [(9, 4, 1, 9), (27, 6, 2, 27), (36, 8, 2, 27)]


def test_only_the_group_that_raises_fails() -> None:
    """With isolation a bundle that raises is asked again, one segment at a time."""

    def touchy(self: Any, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        if any((13,) in each.rows for each in segments):
            raise ValueError("13")
        return [self.applied(each) for each in segments]

    call, rows = Call("total", ("v",)), [(0, 0, 5, True), (1, 0, 13, True), (2, 0, 6, True)]
    results = fold_of(call, *rows, cls=total(fold_bundle=touchy), isolates=True).collect()
    assert results.column("output_0").to_pylist() == [5, None, 6]
    assert results.column("error")[1].as_py()["message"] == "fold_bundle raised ValueError: 13"
    with pytest.raises(FunctionError, match="fold_bundle raised ValueError: 13") as excinfo:
        fold_of(call, *rows, cls=total(fold_bundle=touchy))
    assert (excinfo.value.slot, excinfo.value.row) == (None, "one of the 3 rows of 3 groups in a bundle")
    with pytest.raises(FunctionError) as excinfo:
        fold_of(call, rows[1], cls=total(fold_bundle=touchy))
    assert excinfo.value.slot == 1


@pytest.mark.parametrize(
    ("result_value", "message", "slot"),
    [
        (None, "fold_bundle returned NoneType for 2 segments; return a list with one Applied for each segment", None),
        ([Applied(1, 1)], "fold_bundle returned 1 items for 2 segments", None),
        (
            [Applied(1, 1, [1]), 5],
            r"fold_bundle returned int for a segment; return foldflight.Applied\(accumulator, v",
            1,
        ),
        ([Applied(1, 1, [1]), Applied(1, 1)], "returned 0 values for a segment of 1 rows that wants the value", 1),
        (
            [Applied(1, 1, None), Applied(1, 1, [1])],  # type: ignore[arg-type]
            "returned NoneType as the values after each row; return a list",
            0,
        ),
        ([Applied(1, "x", [1]), Applied(1, 1, ["x"])], "fold_bundle returned", 1),
    ],
)
def test_wrong_return_values_of_fold_bundle_are_refused(result_value: Any, message: str, slot: int | None) -> None:
    """Another number of items, another type, or missing values are an error that tells what to return."""

    def fold_bundle(self: Any, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        result: list[Applied[int, int]] = result_value
        return result

    cls = total(fold_bundle=fold_bundle)
    fold = open_fold(bind_calls(Registry.load([cls]), [Call("total", ("v",))], SCHEMA), row_outputs=True)
    with pytest.raises(FunctionError, match=message) as excinfo:
        fold.chunk(chunk([(0, 0, 1, True), (1, 0, 1, True)]))
    assert (excinfo.value.code, excinfo.value.slot) == ("RESULT_TYPE", slot)


class Classic:
    """Both forms."""

    applied = Total.applied
    fold_bundle = Total.fold_bundle

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def get_value(self, accumulator: int) -> int:
        return accumulator


def test_both_forms_are_held_to_each_other() -> None:
    """A bundled form that differs from the other methods, or from itself with shorter bundles, breaks a law."""

    def first_only(self: Any, segments: list[Segment[int]]) -> list[Applied[int, int]]:
        rest = [Applied(0, 0, [0] * len(each.rows)) for each in segments[1:]]
        return [*(self.applied(each) for each in segments[:1]), *rest]

    alone = udaf(**CAPABLE)(type("Alone", (Total,), {"fold_bundle": first_only}))
    beside = udaf(type("Beside", (Classic,), {"fold_bundle": first_only}))
    law = "the bundled form agrees"
    for cls in (alone, beside):
        results = {result.law: result for result in check_laws(cls, examples=20)}
        assert results[law].passed is False
        assert "in bundles" in results[law].detail
    results = {result.law: result for result in check_laws(udaf(type("Right", (Classic,), {})), examples=20)}
    assert results[law].passed
    assert all(result.passed is not False for result in results.values())


ALONE: dict[str, Any] = {"fold_bundle": Total.fold_bundle}
BOTH: dict[str, Any] = {name: value for name, value in vars(Classic).items() if callable(value)} | ALONE


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        (ALONE, {}, r"Bad has fold_bundle but no accumulate, so no method declares its arguments; give their types"),
        (ALONE | {"merge": max}, CAPABLE, "Bad has fold_bundle and merge but no accumulate; define accumulate and"),
        (ALONE | {"get_value": max}, CAPABLE, "declared by @udaf\\(bundled_retract=True, bundled_merge=True\\)"),
        (ALONE, {"input_types": ["INT"], "compile": True}, "compile=True; drop one of them; fold_bundle is not comp"),
        (ALONE, {"input_types": ["INT"], "invertible": True}, "declare bundled_retract=True, or drop invertible"),
        (ALONE | {"fold_many": max}, CAPABLE, "Bad has fold_bundle and fold_many; keep one of them"),
        (BOTH, {"bundled_merge": True}, "Bad declares bundled_merge and has accumulate; drop bundled_merge; .* merge"),
        (BOTH | {"create_accumulator": None}, {}, "Bad has fold_bundle but no create_accumulator; a segment has acc"),
        (BOTH | {"fold_bundle": None}, {"bundled_retract": True}, r"no fold_bundle; define fold_bundle\(self, segm"),
        ({"fold_bundle": lambda self: []}, CAPABLE | {"result_type": "INT"}, r"write fold_bundle\(self, segments\)"),
        ({"fold_bundle": lambda self, segments: []}, CAPABLE, r"annotate it as list\[Applied\[State, float\]\]"),
    ],
)
def test_a_class_with_a_part_of_a_form_is_refused(
    methods: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    """A class with a part of a form is refused when it is declared, with the remedy."""
    with pytest.raises(RejectedError, match=message) as excinfo:
        udaf(**options)(type("Bad", (Total,), {"fold_bundle": None} | methods))
    assert excinfo.value.code == "SIGNATURE"


def test_a_subclass_must_override_both_forms() -> None:
    """A method that only one form would use is refused."""
    with pytest.raises(RejectedError, match="overrides accumulate but inherits fold_bundle; define fold_bundle too"):
        udaf(type("Doubled", (Classic,), {"accumulate": lambda self, a, v: a + 2 * v}))
    one_form = {"accumulate": Classic.accumulate, "fold_bundle": None}
    function = function_of(udaf(type("Scalar", (Classic,), one_form)))
    assert function is not None
    assert not function.bundled  # type: ignore[union-attr]


def test_types_and_capabilities_are_declared() -> None:
    """Types come from the annotations, and capabilities from the decorator; the listing shows the mode."""
    function = Registry.load([udaf(input_types=["BIGINT"], bundled_merge=True)(type("Sums", (Total,), {}))])["sums"]
    bound = function.bind([pa.int64()], {})
    assert (function.capabilities.retract, function.capabilities.merge) == (False, True)
    assert (function.signature, bound.state_type) == ("sums(argument1 BIGINT) -> BIGINT", pa.int64())
    assert str(Programs().folding(function)) == "bundled"
    with pytest.raises(RejectedError, match="sums is append-only"):
        Fold(bind_calls(Registry.load([function.cls]), [Call("sums", ("v",))], SCHEMA)).fold(chunk([(0, 3, 1, True)]))
