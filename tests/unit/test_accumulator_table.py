"""The contract of vectorised methods: their arguments, return values and refusals."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, udaf
from foldflight.ext.compiler import Programs
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.functions import Call, Registry
from tests.folds import open_fold


class Adder:
    """A vectorised sum; tests replace its methods."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, value: int) -> int:
        return accumulator + value

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other

    def get_value(self, accumulator: int) -> int:
        return accumulator

    def fold_many(self, accumulators: Any, slots: Any, signs: Any, values: Any) -> Any:
        np.add.at(accumulators, slots, signs * values)

    def merge_many(self, accumulators: Any, slots: Any, others: Any) -> Any:
        np.add.at(accumulators, slots, others)

    def get_values(self, accumulators: Any) -> Any:
        return accumulators


def adder(**methods: Any) -> type:
    """Return the class above as a function, with other methods."""
    return udaf(name="adder", skip_nulls=True, result_type="INT")(type("Adder", (Adder,), dict(vars(Adder)) | methods))


def fold_of(cls: type, *, kind: int | None = None) -> Fold:
    """Fold 3, 4, 5 and a NULL into slots 0, 1 and 0."""
    columns = {"slot": pa.array([0, 1, 0, 1], pa.int32()), "x": pa.array([3, 4, 5, None])}
    if kind is not None:
        columns["kind"] = pa.array([0, kind, 0, 0], pa.int8())
    batch = pa.RecordBatch.from_pydict(columns)
    fold = open_fold(bind_calls(Registry.load([cls]), [Call("adder", ("x",))], batch.schema), accelerator=Programs())
    fold.fold(batch)
    return fold


def values_of(fold: Fold) -> list[Any]:
    return fold.collect().column("output_0").to_pylist()


def test_vectorised_methods_fold_their_class() -> None:
    """A class with vectorised methods is folded by them, with its direct arguments, in the mode `vectorised`."""

    def scale(self: Any, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
        np.add.at(accumulators, slots, values * 100)

    fold = fold_of(adder(fold_many=scale))
    assert values_of(fold) == [800, 400]
    assert fold.modes == ("vectorised",)


def test_not_implemented_leaves_the_rows_to_the_scalar_methods() -> None:
    """Rows for which fold_many or merge_many returns NotImplemented are folded row by row, and all later ones, too."""
    calls_made = []

    def declines(self: Any, accumulators: Any, *_: Any) -> Any:
        calls_made.append(accumulators.tolist())
        return NotImplemented

    fold = fold_of(adder(fold_many=declines))
    assert values_of(fold) == [8, 4]
    assert len(calls_made) == 1
    assert fold.modes == ("interpreted",)
    states = fold_of(adder()).collect().select(["slot", "state_0"])
    fold = fold_of(adder(merge_many=declines))
    fold.merge_states(states)
    assert values_of(fold) == [16, 8]
    assert len(calls_made) == 2


@pytest.mark.parametrize(
    ("returns", "how"),
    [
        (int, "vectorised"),
        (tuple, "interpreted: its states are not typed: "),
        (object, "interpreted: its states are not typed: "),
    ],
)
def test_the_listing_says_whether_vectorised_methods_are_used(returns: type, how: str) -> None:
    """Without records, vectorised methods are not used, and the listing has the reason."""

    def create_accumulator(self: Any) -> Any:
        return returns()

    create_accumulator.__annotations__["return"] = returns
    cls = adder(create_accumulator=create_accumulator)
    assert str(Programs().folding(Registry.load([cls])["adder"])).startswith(how)


def test_annotations_that_cannot_be_resolved_say_nothing() -> None:
    """If state_type describes the state, annotations that cannot be resolved are ignored."""

    class Total:
        n: "Unknown"  # type: ignore[name-defined]  # noqa: F821

        def __init__(self) -> None:
            self.n = 0

    def accumulate(self: Any, accumulator: Total, value: int) -> None:
        accumulator.n += value

    methods = {"create_accumulator": lambda self: Total(), "accumulate": accumulate, "merge": None, "merge_many": None}
    methods |= {"get_value": lambda self, accumulator: accumulator.n, "fold_many": None, "get_values": None}
    methods["create_accumulator"].__annotations__["return"] = Total
    many = {
        "fold_many": lambda self, accumulators, slots, signs, values: np.add.at(accumulators["n"], slots, values),
        "get_values": lambda self, accumulators: accumulators["n"],
    }
    for own_methods, kind in (({}, "interpreted"), (many, "vectorised")):
        fold = fold_of(
            udaf(name="adder", skip_nulls=True, result_type="INT", state_type="STRUCT<n BIGINT>")(
                type("Adder", (Adder,), dict(vars(Adder)) | methods | own_methods)
            )
        )
        assert fold.modes == (kind,)
        assert values_of(fold) == [8, 4]


@pytest.mark.parametrize("compile_", [True, False])
def test_compile_chooses_the_scalar_methods(compile_: bool) -> None:
    """`compile=True` compiles the scalar methods, and `compile=False` calls them, even if there are vectorised ones."""
    cls = udaf(name="adder", skip_nulls=True, compile=compile_)(
        type("Adder", (Adder,), dict(vars(Adder)) | {"fold_many": lambda *_: 1 / 0})
    )
    assert values_of(fold_of(cls)) == [8, 4]


def test_nulls_are_masked() -> None:
    """Without skip_nulls, a column with NULLs is a masked array; one without NULLs is a plain array."""
    seen_values = []

    def note(self: Any, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
        seen_values.append(values.tolist())

    cls = udaf(name="adder")(type("Adder", (Adder,), dict(vars(Adder)) | {"fold_many": note}))
    fold_of(cls)
    assert seen_values == [[3, 4, 5, None]]


@pytest.mark.parametrize(
    ("methods", "code", "message"),
    [
        ({"fold_many": lambda *_: 7}, "RESULT_TYPE", "fold_many returned int; change the accumulators in place"),
        ({"fold_many": lambda *_: 1 / 0}, "USER_CODE", "fold_many raised ZeroDivisionError"),
        ({"get_values": lambda *_: [1, 2]}, "RESULT_TYPE", "get_values returned list for 2 accumulators"),
        ({"get_values": lambda *_: np.zeros((2, 2))}, "RESULT_TYPE", r"returned float64 of shape \(2, 2\) for 2"),
        ({"get_values": lambda *_: pa.array([1])}, "RESULT_TYPE", "for 2 accumulators"),
        ({"get_values": lambda *_: 1 / 0}, "USER_CODE", "get_values raised ZeroDivisionError"),
        ({"get_values": lambda *_: np.array([1, 1 << 40])}, "OVERFLOW", "get_values returned 1099511627776"),
        ({"get_values": lambda *_: np.array([8.9, np.inf])}, "OVERFLOW", "get_values returned inf"),
        ({"get_values": lambda *_: np.array([1, "x"], object)}, "RESULT_TYPE", "get_values returned 'x'"),
    ],
)
def test_mistakes_of_vectorised_methods_are_refused(methods: dict[str, Any], code: str, message: str) -> None:
    """A wrong return value, shape or type, or an exception, is a FunctionError that names the method."""
    with pytest.raises(FunctionError, match=message) as excinfo:
        values_of(fold_of(adder(**methods)))
    assert (excinfo.value.code, excinfo.value.function) == (code, "adder")


@pytest.mark.parametrize(
    "values",
    [
        np.ma.array([8, 1], mask=[False, True]),
        np.array([8, None], object),
        pa.array([8, None]),
        pa.chunked_array([pa.array([8]), pa.array([None], pa.int64())]),
    ],
    ids=["masked", "objects", "arrow", "chunked"],
)
def test_get_values_may_return_any_kind_of_array(values: Any) -> None:
    """Masked, object and Arrow arrays are results, cast like results of get_value."""
    assert values_of(fold_of(adder(get_values=lambda *_: values))) == [8, None]


def test_results_that_do_not_fit_fail_only_their_group() -> None:
    """If errors are isolated, only the group whose result does not fit fails."""
    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0, 1], pa.int32()), "x": pa.array([1 << 40, 4])})
    fold = open_fold(bind_calls(Registry.load([adder()]), [Call("adder", ("x",))], batch.schema), isolates=True)
    fold.fold(batch)
    results = fold.collect()
    assert results.column("output_0").to_pylist() == [None, 4]
    assert [error and error["code"] for error in results.column("error").to_pylist()] == ["OVERFLOW", None]


def test_a_vectorised_method_that_raises_fails_only_the_groups_at_fault() -> None:
    """If errors are isolated, changes before an exception are undone, and the scalar method is used."""

    def raises(self: Any, accumulators: Any, slots: Any, *_: Any) -> None:
        accumulators[slots] = 99
        raise ValueError("somebody")

    def refuses(self: Any, accumulator: int, value: int) -> int:
        if value == 4:
            raise ValueError("four")
        return accumulator + value

    batch = pa.RecordBatch.from_pydict({"slot": pa.array([0, 1, 0], pa.int32()), "x": pa.array([3, 4, 5])})
    for methods in (
        {"fold_many": raises, "accumulate": refuses},
        {"merge_many": raises, "merge": refuses},
        {
            "get_values": lambda self, accumulators: raises(self, accumulators, 0),
            "get_value": lambda self, accumulator: refuses(self, 0, accumulator),
        },
    ):
        registry = Registry.load([adder(**methods)])
        folds = [
            open_fold(bind_calls(registry, [Call("adder", ("x",))], batch.schema), isolates=True) for _ in range(2)
        ]
        folds[0].fold(batch)
        if "merge_many" in methods:
            folds[1].merge_states(folds[0].collect())
            folds[1].merge_states(
                pa.RecordBatch.from_arrays(
                    [pa.array([0, 1], pa.int32()), pa.array([1, 4], folds[0].schema.field("state_0").type)],
                    names=["slot", "state_0"],
                )
            )
        results = folds["merge_many" in methods].collect()
        assert results.column("output_0").to_pylist() == [9 if "merge_many" in methods else 8, None]
        assert [error and error["message"].split(": ")[-1] for error in results.column("error").to_pylist()] == [
            None,
            "four",
        ]


def test_a_function_that_exits_names_its_method() -> None:
    """SystemExit, with which a server interrupts functions, ends the fold, not the process."""

    def exits(*_: Any) -> Any:
        raise SystemExit(1)

    exits.__annotations__["return"] = int
    for method_name in ("create_accumulator", "fold_many", "get_values"):
        with pytest.raises(FunctionError, match=f"{method_name} raised SystemExit"):
            values_of(fold_of(adder(**{method_name: exits})))


def test_retractions_that_a_method_cannot_fold_are_refused() -> None:
    """A function without retract refuses retractions also with its vectorised methods."""
    with pytest.raises(RejectedError, match="append-only"):
        fold_of(adder(), kind=3)


def test_states_beyond_their_type_have_the_error_of_the_interpreter() -> None:
    """A number that does not fit its state is OVERFLOW, with its slot."""

    class Small:
        n: int

        def __init__(self) -> None:
            self.n = 0

    def folds(self: Any, accumulators: Any, slots: Any, signs: Any, values: Any) -> None:
        accumulators["n"][slots] = 300

    methods = {
        "create_accumulator": lambda self: Small(),
        "fold_many": folds,
        "get_values": lambda self, accumulators: accumulators["n"],
        "merge_many": None,
        "merge": None,
    }
    Small.__init__.__annotations__.clear()
    methods["create_accumulator"].__annotations__["return"] = Small
    cls = udaf(name="adder", skip_nulls=True, state_type="STRUCT<n TINYINT>")(
        type("Adder", (Adder,), dict(vars(Adder)) | methods)
    )
    with pytest.raises(FunctionError, match="300") as excinfo:
        fold_of(cls).collect()
    assert (excinfo.value.code, excinfo.value.slot) == ("OVERFLOW", 0)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"get_values": None}, "has fold_many but no get_values; define get_values"),
        ({"merge_many": None}, "has fold_many but no merge_many"),
        ({"merge": None}, "has merge_many but no merge"),
        ({"create_accumulator": None}, "has fold_many but no create_accumulator"),
        ({"fold_many": lambda self, accumulators, slots: None}, "fold_many.* does not take 1 arguments declared"),
    ],
)
def test_wrong_vectorised_methods_are_refused_at_registration(methods: dict[str, Any], message: str) -> None:
    """Vectorised methods must be complete, need a separate accumulator, and must accept their arguments."""
    with pytest.raises(RejectedError, match=message) as excinfo:
        udaf(type("Adder", (Adder,), dict(vars(Adder)) | methods))
    assert excinfo.value.code == "SIGNATURE"


def test_a_subclass_may_not_inherit_what_it_changes() -> None:
    """A class that overrides accumulate must not be folded by an inherited fold_many."""

    class Doubled(Adder):
        def accumulate(self, accumulator: int, value: int) -> int:
            return accumulator + 2 * value

    with pytest.raises(RejectedError, match="overrides accumulate but inherits fold_many"):
        udaf(Doubled)
    for method_name in ("fold_many", "merge_many", "get_values"):
        setattr(Doubled, method_name, None)
    assert not Registry.load([udaf(Doubled)])["doubled"].vectorised
