"""Scalar and table functions give the results of Python's `map`, however the rows are split."""

from __future__ import annotations

import ast
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foldflight.client.exchange import PROGRAMS_AT_ONCE
from foldflight.errors import FunctionError, RejectedError
from foldflight.exchange.server_exchange import bind
from foldflight.fold.accelerator import INTERPRETER
from foldflight.fold.mode import Mode
from foldflight.fold.resources import Resources
from foldflight.fold.scalar import evaluation
from foldflight.functions import FunctionContext, Registry, Step, StepArgument, udf, udtf
from foldflight.functions.query.call import Request
from foldflight.functions.types.values import cast_results
from foldflight.functions.types.vectors import Vector
from foldflight.testing import check_laws
from foldflight.testing.laws import rows_with_nulls
from tests import scalar_functions as functions

COLUMNS = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("t", pa.string())])
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**62), 2**62),
        st.none() | st.integers(-3, 3),
        st.none() | st.text("aB \u00e9", max_size=12),
    ),
    max_size=30,
)
X, Y, T = (StepArgument(column=name) for name in "xyt")
REGISTRY = Registry.load([functions])


class Opened:
    """An opened program whose answers are put together."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.modes = program.modes

    def chunk(self, batch: pa.RecordBatch) -> pa.Table:
        parts = list(self.program.chunk(batch))
        self.modes = self.program.modes
        return pa.Table.from_batches(parts, self.program.schema)


def open_steps(
    *steps: Step, outputs: tuple[int, ...] = (0,), isolates: bool = False, with_compiler: bool = False
) -> Any:
    request = Request((), COLUMNS, isolate_errors=isolates, steps=steps, outputs=outputs)
    bound = bind(request, REGISTRY)
    return Opened(bound.open(Resources(accelerator=PROGRAMS_AT_ONCE if with_compiler else INTERPRETER)))


def chunk(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[place] for row in rows], type_) for place, type_ in enumerate(COLUMNS.types)]
    return pa.RecordBatch.from_arrays(columns, schema=COLUMNS)


def outcome(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


@given(ROWS, st.integers(0, 30))
def test_results_equal_those_of_map(rows: list[tuple[Any, ...]], cut: int) -> None:
    """A program has the results of Python's map over its nested functions, however its rows are cut."""
    program = open_steps(
        Step("normalise", (T,)),
        Step("score", (StepArgument(step=0), Y)),
        Step("same", (X,)),
        outputs=(1, 0, 2),
    )
    result = [row for part in (rows[:cut], rows[cut:]) for row in program.chunk(chunk(part)).to_pylist()]
    texts = [None if t is None else t.strip().lower() for _, _, t in rows]
    scores = list(map(functions.score, texts, [y for _, y, _ in rows]))
    expected = zip(scores, texts, [x for x, _, _ in rows], strict=True)
    assert result == [{"output_0": one, "output_1": two, "output_2": three} for one, two, three in expected]


@given(ROWS)
def test_errors_name_the_rows_that_raise(rows: list[tuple[Any, ...]]) -> None:
    """If errors are isolated, each row has its result or its error; otherwise the first row that fails is named."""
    step = Step("ratio", (X, Y))
    expected = [outcome(lambda x=x, y=y: functions.ratio(x, y)) for x, y, _ in rows]
    answer = open_steps(step, isolates=True).chunk(chunk(rows)).to_pylist()
    for row, value in zip(answer, expected, strict=True):
        if isinstance(value, type):
            assert row["output_0"] is None
            assert value.__name__ in row["error"]["message"]
        else:
            assert row == {"output_0": value, "error": None}
    failing_rows = [place for place, value in enumerate(expected) if isinstance(value, type)]
    if failing_rows:
        with pytest.raises(FunctionError, match="ratio raised") as failure:
            open_steps(step).chunk(chunk(rows))
        assert str(failure.value.row).startswith("x=")


@given(ROWS, st.booleans())
def test_table_functions_compose(rows: list[tuple[Any, ...]], outer: bool) -> None:
    """Rows of nested table functions come in order, each with the number of its row in the chunk."""
    program = open_steps(
        Step("split", (T,), outer=outer),
        Step("same", (X,)),
        Step("repeated", (StepArgument(step=1), StepArgument(step=0, member="at"))),
        outputs=(0, 1, 2),
    )
    expected = []
    for place, (x, _, text) in enumerate(rows):
        words = list(functions.split(text)) or ([(None, None)] if outer else [])
        for word, at in words:
            for value in functions.repeated(x, at):
                expected.append((place, word, at, x, value))
    result = [
        (row["row"], row["output_0"]["word"], row["output_0"]["at"], row["output_1"], row["output_2"]["repeated"])
        for row in program.chunk(chunk(rows)).to_pylist()
    ]
    assert result == expected


def test_outer_keeps_rows_without_results() -> None:
    """With `outer` a row without results becomes one row of NULLs; a failed row has only its error."""
    rows = [(1, 1, "a b"), (2, 2, None), (3, 3, ""), (4, 4, "c")]
    result = open_steps(Step("split", (T,), outer=True)).chunk(chunk(rows)).to_pylist()
    assert [row["row"] for row in result] == [0, 0, 1, 2, 3]
    assert [row["output_0"] for row in result][2:4] == [None, None]
    outer_rows = open_steps(Step("crooked", (X,), outer=True), isolates=True).chunk(chunk(rows[:3])).to_pylist()
    # One value where two are declared, then two values, then three.
    assert [(row["row"], row["output_0"], row["error"] is None) for row in outer_rows] == [
        (0, None, False),
        (1, {"a": 2, "b": 2}, True),
        (2, None, False),
    ]


@dataclass(slots=True)
class Count:
    count: str


def test_a_row_of_one_column_may_be_its_value_or_have_it() -> None:
    """It is the value itself, or has the value: in a tuple, a dict, or an attribute of its own."""
    split = evaluation._splitter(["count"])
    rows = ["a", ("a",), ["a"], {"count": "a"}, Count("a"), SimpleNamespace(count="a"), {"a": 1}, None]
    assert [split(row)[0] for row in rows] == ["a", "a", ["a"], "a", "a", "a", {"a": 1}, None]


def test_wrong_numbers_of_columns_are_named() -> None:
    """For a row with too few or too many values the error shows the row and the declared columns."""
    with pytest.raises(
        FunctionError, match=r"crooked returned a row of 1 value, \(1,\), but 2 are declared: a, b"
    ) as failure:
        open_steps(Step("crooked", (X,))).chunk(chunk([(2, 0, ""), (1, 0, "")]))
    assert failure.value.row == "x=1"
    assert failure.value.code == "RESULT_TYPE"


def test_generators_that_never_end_are_stopped() -> None:
    """A table function may return only a limited number of rows for one row."""
    with pytest.raises(FunctionError, match="more than 1048576 rows for one row"):
        open_steps(Step("endless", (X,))).chunk(chunk([(1, 0, "")]))


def test_generators_of_large_values_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows may be too large, too. They are stopped before they use up the memory, and isolated like errors."""
    monkeypatch.setattr(evaluation, "_BYTES_MAX", 1 << 20)
    taken_rows = []

    @udtf(input_types=["BIGINT"], result_types={"text": "STRING"})
    def wide(x: Any) -> Any:
        while x == 2:
            taken_rows.append(x)
            yield "x" * 100_000
        yield "end"

    request = Request((), COLUMNS, isolate_errors=True, steps=(Step("wide", (X,)),), outputs=(0,))
    program = bind(request, Registry.load([wide])).open(Resources())
    (answer,) = program.chunk(chunk([(1, 0, ""), (2, 0, ""), (3, 0, "")]))
    assert answer.column("output_0").to_pylist() == [{"text": "end"}, None, {"text": "end"}]
    assert (
        answer.column("error")[1].as_py()["message"] == "wide returned more than 1 MiB for one row; check that it ends"
    )
    assert len(taken_rows) == 16


def test_vectorised_functions_return_a_value_for_each_row() -> None:
    """Another number of values is an error, also if errors are isolated; rows that raise are found by bisection."""
    for isolates in (False, True):
        program = open_steps(Step("too_short", (X,)), isolates=isolates)
        with pytest.raises(FunctionError, match=r"returned 1 values for 2 rows; return one for each row"):
            program.chunk(chunk([(77, 0, ""), (1, 0, "")]))
    rows = [(number, 0, "") for number in [1, 2, 99, 4, 5, 99, 7]]
    answer = open_steps(Step("too_short", (X,)), isolates=True).chunk(chunk(rows)).to_pylist()
    assert [row["output_0"] for row in answer] == [1, 2, None, 4, 5, None, 7]
    assert [row["error"]["row"] for row in answer if row["error"]] == [
        "x=99",
        "x=99",
    ]


def test_missing_objects_of_pandas_are_null() -> None:
    """In a Series of objects None, NaN and NaT are NULL, as in a Series with a type."""

    @udf(vectorised="pandas", input_types=["BIGINT"], result_type="DATE")
    def dated(days: Any) -> Any:
        return pd.Series([datetime.date(2026, 1, 1), None, pd.NaT, float("nan")], dtype=object)

    request = Request((), COLUMNS, steps=(Step("dated", (X,)),), outputs=(0,))
    program = bind(request, Registry.load([dated])).open(Resources())
    (answer,) = program.chunk(chunk([(1, 1, "")] * 4))
    assert answer.column("output_0").to_pylist() == [datetime.date(2026, 1, 1), None, None, None]


def test_nulls_are_none_and_may_be_skipped() -> None:
    """NULL arguments are None; with skip_nulls the function is not called for rows with NULL."""
    rows = [(None, 2, "ab"), (3, 2, "ab"), (3, 2, None)]
    answer = open_steps(Step("spelled", (X, T)), Step("multiply", (X, Y)), outputs=(0, 1)).chunk(chunk(rows))
    assert answer.column("output_0").to_pylist() == [None, "ababab", None]
    assert answer.column("output_1").to_pylist() == [None, 6, 6]
    results = open_steps(Step("halved", (X,)), Step("doubled", (X,)), outputs=(0, 1)).chunk(chunk(rows))
    assert results.column("output_0").to_pylist() == [None, 1.5, 1.5]
    assert results.column("output_1").to_pylist() == [None, 6, 6]


@pytest.mark.parametrize("target", [functions.multiply, functions.ratio, functions.Scale, functions.later])
def test_compiled_code_agrees(target: Any) -> None:
    """Compiled functions have the interpreter's results and errors, also after a row at which compiled code stops."""
    results = {each.law: each for each in check_laws(target, examples=30)}
    assert results["compiled code agrees"].passed is True
    assert all(each.passed is True for each in results.values()), results


@udf
def raising(x: int) -> int:
    raise ValueError("never")


@udf
def numbered(x: int) -> int:
    return "abc"  # type: ignore[return-value]


@udf
def shortened(x: float) -> Vector[3]:
    return np.array([x, x], np.float32)


@udtf
def paired(x: int) -> Iterator[int]:
    yield x, x  # type: ignore[misc]


@pytest.mark.parametrize(
    ("target", "message"),
    [(raising, "ValueError: never"), (numbered, "abc"), (shortened, "VECTOR"), (paired, "values")],
)
def test_a_function_whose_every_row_is_an_error_breaks_a_law(target: Any, message: str) -> None:
    """Errors that are always the same keep the other laws."""
    broken_laws = [each for each in check_laws(target, examples=5) if each.passed is False]
    assert [each.law for each in broken_laws] == ["some rows have results"]
    assert message in broken_laws[0].detail
    assert len(ast.literal_eval(broken_laws[0].detail.removeprefix("rows ").partition("; ")[0])) == 1


@pytest.mark.every_turn
def test_a_function_that_takes_some_values_keeps_the_laws() -> None:
    """One row with a result is enough."""

    @udf
    def halved(x: int) -> int:
        if x % 2:
            raise ValueError("odd")
        return x // 2

    assert [each for each in check_laws(halved, examples=20) if each.passed is False] == []
    (broken_laws,) = [each for each in check_laws(halved, examples={"x": [1, 3]}) if each.passed is False]
    assert "odd" in broken_laws.detail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*encountered in divide:RuntimeWarning")
def test_the_laws_find_functions_that_depend_on_masks() -> None:
    """A masked array masks a division by zero, and a plain one does not; without NULLs all arrays are plain."""
    for skip_nulls in (False, True):

        @udf(vectorised="numpy", input_types=["DOUBLE"] * 2, result_type="DOUBLE", skip_nulls=skip_nulls)
        def divided(a: Any, b: Any) -> Any:
            return a / b

        results = {each.law: each for each in check_laws(divided, examples=200)}
        assert results["any split of the rows"].passed is skip_nulls


@settings(max_examples=25)
@given(rows_with_nulls([pa.int64(), pa.int64()]))
def test_compiled_and_interpreted_chunks_are_equal(rows: list[tuple[Any, ...]]) -> None:
    """A program gives the same batch with and without a compiler, bit for bit."""
    steps = (Step("multiply", (X, Y)), Step("ratio", (X, Y)))
    batch = chunk([(x, y, None) for x, y in rows])
    compiled_program = open_steps(*steps, outputs=(0, 1), isolates=True, with_compiler=True)
    assert compiled_program.modes == (Mode.COMPILED, Mode.COMPILED)
    interpreted_program = open_steps(*steps, outputs=(0, 1), isolates=True)
    assert repr(compiled_program.chunk(batch).to_pylist()) == repr(interpreted_program.chunk(batch).to_pylist())


def test_a_function_that_must_be_compiled_is_or_is_refused() -> None:
    """With compile=True a function that cannot be compiled is refused before the first row, with the reason."""

    @udf(compile=True)
    def texts(text: str) -> str:
        return text.swapcase()

    bound = bind(Request((), COLUMNS, steps=(Step("texts", (T,)),), outputs=(0,)), Registry.load([texts]))
    with pytest.raises(RejectedError, match="cannot be compiled: it uses the attribute swapcase of a value"):
        bound.check(PROGRAMS_AT_ONCE)
    with pytest.raises(RejectedError, match="there is no compiler here"):
        bound.check(INTERPRETER)


@udf
class Fragile:
    """Cannot be closed."""

    def eval(self, x: int) -> int:
        return x

    def close(self) -> None:
        raise ValueError("cannot be closed")


def test_the_error_of_open_is_not_replaced_by_one_of_close() -> None:
    """If a function cannot be opened, those before it are closed, and their errors do not hide the cause."""

    @udf(name="unopened")
    class Unopened:
        def open(self, context: FunctionContext) -> None:
            raise LookupError("no model")

        def eval(self, x: int) -> int:
            return x

    steps = (Step("fragile", (X,)), Step("unopened", (X,)))
    bound = bind(Request((), COLUMNS, steps=steps, outputs=(0, 1)), Registry.load([Fragile, Unopened]))
    with pytest.raises(FunctionError, match="open raised LookupError: no model"):
        bound.open(Resources())


def test_programs_are_checked_before_any_row() -> None:
    """Steps that refer to later steps, to unknown columns or members, or to aggregates are refused."""
    wrong = {
        "takes the result of step 0; give an earlier step": (Step("multiply", (StepArgument(step=0), Y)),),
        "refers to a column 'z'": (Step("multiply", (X, StepArgument(column="z"))),),
        "takes the member 'word' of the result of step 0; its members are none": (
            Step("multiply", (X, Y)),
            Step("score", (StepArgument(step=0, member="word"), Y)),
        ),
        "is an aggregate function, not a scalar": (Step("sum", (X,)),),
        "takes STRING for its argument text and was given BIGINT": (Step("score", (X, Y)),),
        "there is no function 'multipy'": (Step("multipy", (X, Y)),),
        "is not a table function, so its step cannot be outer": (Step("multiply", (X, Y), outer=True),),
        "is not the function that the engine expects": (Step("multiply", (X, Y), fingerprint="0" * 16),),
        "has no direct argument 'k'": (Step("scale", (X,), literals={"k": 1}),),
    }
    for message, steps in wrong.items():
        with pytest.raises(RejectedError, match=message):
            bind(Request((), COLUMNS, steps=steps, outputs=(0,)), REGISTRY)
    for outputs in ((), (3,)):
        with pytest.raises(RejectedError, match=r"no outputs|output 0 refers to step 3, but the last step is 0"):
            bind(Request((), COLUMNS, steps=(Step("same", (X,)),), outputs=outputs), REGISTRY)


def test_equal_arguments_share_their_values_and_mutable_ones_do_not() -> None:
    """A function that changes a list does not change the argument of another one."""

    @udf(input_types=["BIGINT[]"], result_type="BIGINT", name="emptied")
    def empty(values):
        values.clear()
        return 0

    @udf(input_types=["BIGINT[]"], result_type="BIGINT", name="counted")
    def count(values):
        return len(values)

    columns = pa.schema([("v", pa.list_(pa.int64()))])
    steps = tuple(Step(name, (StepArgument(column="v"),)) for name in ("emptied", "counted"))
    bound = bind(Request((), columns, steps=steps, outputs=(1,)), Registry.load([empty, count]))
    batch = pa.RecordBatch.from_arrays([pa.array([[1, 2], [3]])], schema=columns)
    assert Opened(bound.open(Resources())).chunk(batch).column(0).to_pylist() == [2, 1]


@pytest.mark.parametrize("isolates", [False, True])
@pytest.mark.parametrize("outer", [False, True])
def test_answers_of_table_functions_come_in_parts(monkeypatch: pytest.MonkeyPatch, isolates: bool, outer: bool) -> None:
    """A part ends after a row of the chunk; together they are the answer, with the errors of all rows."""
    steps = (
        Step("split", (T,), outer=outer),
        Step("same", (X,)),
        Step("repeated", (StepArgument(step=1), StepArgument(step=0, member="at")), outer=outer),
        *((Step("ratio", (X, Y)),) if isolates else ()),
    )
    rows = [(x, x % 4, " ".join("abcd"[: x % 5])) for x in range(20)] + [(7, 0, None), (8, 1, "a b")]
    whole = open_steps(*steps, outputs=(0, 2), isolates=isolates).chunk(chunk(rows))
    assert whole.num_rows > len(rows)
    monkeypatch.setattr(evaluation, "_PART_ROWS", 1)
    program = open_steps(*steps, outputs=(0, 2), isolates=isolates)
    parts = list(program.program.chunk(chunk(rows)))
    assert len(parts) > 5
    seen = [set(part.column("row").to_pylist()) for part in parts]
    assert sum(map(len, seen)) == len(set().union(*seen)), "the rows of one row of the chunk are in one part"
    assert program.chunk(chunk(rows)).equals(whole)


@pytest.mark.every_turn
def test_parts_end_after_enough_rows_or_bytes() -> None:
    """Few large rows fill a part, too, and the next part is evaluated when it is asked for."""
    parts = open_steps(Step("words", (T,))).program.chunk(chunk([(0, 0, "w" * (20 << 20))] * 3))
    assert [part.num_rows for part in parts] == [2, 1]
    failing_parts = open_steps(Step("crooked", (X,))).program.chunk(chunk([(2, 0, "")] * 70_000 + [(1, 0, "")]))
    assert next(failing_parts).num_rows == 1 << 16
    with pytest.raises(FunctionError, match="row of 1 value"):
        list(failing_parts)


@pytest.mark.every_turn
def test_composed_table_functions_are_limited_together() -> None:
    """The limit on the rows for one row holds for the row of the chunk: table functions do not multiply it."""
    steps = (Step("repeated", (X, Y)), Step("repeated", (StepArgument(step=0, member="repeated"), Y)))
    rows = [(1, 3, ""), (1, 1025, ""), (2, 1, "")]
    isolated_rows = open_steps(*steps, outputs=(1,), isolates=True).chunk(chunk(rows))
    (failed_row,) = isolated_rows.filter(isolated_rows.column("error").is_valid()).to_pylist()
    assert failed_row["row"] == 1
    assert "more than 1048576 rows for one row" in failed_row["error"]["message"]
    assert isolated_rows.num_rows == 9 + 1 + 1


@pytest.mark.parametrize(
    ("form", "result_value", "result", "message"),
    [
        ("numpy", lambda x: x * 1j, "DOUBLE", "returned complex128, which cannot be read as DOUBLE"),
        ("numpy", lambda x: np.ma.zeros((len(x), 2)), "DOUBLE", "returned a MaskedArray; return a column"),
        ("numpy", lambda _: "ab", "STRING", "returned a str; return a column"),
        ("numpy", lambda _: {1: 2, 3: 4}, "BIGINT", "returned a dict; return a column"),
        ("pandas", lambda x: pd.DataFrame({"a": x}), "BIGINT", "returned a DataFrame; return a column"),
        ("arrow", lambda _: None, "BIGINT", "returned None; return a column"),
        ("arrow", lambda x: x[0], "BIGINT", "returned a Int64Scalar; return a column"),
        ("arrow", lambda _: pa.scalar([1, 2]), "BIGINT", "returned a ListScalar; return a column"),
        ("arrow", lambda _: pa.array([2**60, 0], pa.timestamp("us")), "DATE", "cannot be read as DATE: OverflowError"),
    ],
)
def test_a_result_that_is_no_column_is_an_error_of_the_function(
    form: Any, result_value: Any, result: str, message: str
) -> None:
    """A vectorised function that returns anything else than a column of values has made a mistake, not foldflight."""
    function = udf(input_types=["BIGINT"], result_type=result, vectorised=form, name="strange")(result_value)
    request = Request((), COLUMNS, steps=(Step("strange", (X,)),), outputs=(0,))
    program = bind(request, Registry.load([function])).open(Resources())
    with pytest.raises(FunctionError, match=message):
        list(program.chunk(chunk([(1, 0, ""), (2, 0, "")])))


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=10))
@settings(max_examples=30)
def test_integers_reach_pandas_unchanged(values: list[int | None]) -> None:
    """A Series has nullable integers, with and without NULLs: as floats, those beyond 2**53 would be rounded."""
    dtypes = []

    def plain(x: Any) -> Any:
        dtypes.append(str(x.dtype))
        return x

    function = udf(input_types=["BIGINT"], result_type="BIGINT", vectorised="pandas", name="plain")(plain)
    request = Request((), COLUMNS, steps=(Step("plain", (X,)),), outputs=(0,))
    program = Opened(bind(request, Registry.load([function])).open(Resources()))
    for given_values in (values, [2**53 + 1, None, 2**63 - 1], [2**53 + 1]):
        result = program.chunk(chunk([(x, None, None) for x in given_values]))
        assert result.column("output_0").to_pylist() == given_values
    assert set(dtypes) == {"Int64"}


def test_a_value_that_pandas_does_not_have_is_named() -> None:
    """A date after the year 9999 is an error of the argument, as for functions that take one row."""
    function = udf(input_types=["DATE"], result_type="BIGINT", vectorised="pandas", name="days")(lambda x: [1] * len(x))
    columns = pa.schema([("day", pa.date32())])
    request = Request((), columns, steps=(Step("days", (StepArgument(column="day"),)),), outputs=(0,))
    program = bind(request, Registry.load([function])).open(Resources())
    days = pa.RecordBatch.from_arrays([pa.array([0, 2**30], pa.int32()).cast(pa.date32())], schema=columns)
    with pytest.raises(RejectedError, match=r"the argument day \(DATE\) has no Python value in row 1"):
        list(program.chunk(days))


@pytest.mark.parametrize("is_table", [False, True])
def test_many_wrong_results_cost_a_window_each(monkeypatch: pytest.MonkeyPatch, is_table: bool) -> None:
    """Each wrong result is found among some hundred values after the last one, not among all that remain."""
    scanned_lengths = []

    def count(values: Any, type_: pa.DataType) -> pa.Array:
        scanned_lengths.append(len(values))
        return cast_results(values, type_)

    monkeypatch.setattr(evaluation, "cast_results", count)
    if is_table:
        function = udtf(input_types=["BIGINT"], result_types={"n": "INT"}, name="wide")(lambda x: [(x,), (1,)])
    else:
        function = udf(input_types=["BIGINT"], result_type="INT", name="wide")(lambda x: x)
    request = Request((), COLUMNS, isolate_errors=True, steps=(Step("wide", (X,)),), outputs=(0,))
    program = Opened(bind(request, Registry.load([function])).open(Resources()))
    values = [2**40 if place % 2 else place for place in range(4000)]
    result = program.chunk(chunk([(x, None, None) for x in values]))
    assert sum(scanned_lengths) < 2000 * 300 + 20_000
    errors = [row["error"]["code"] for row in result.to_pylist() if row["error"]]
    assert errors == ["OVERFLOW"] * 2000
    right = [row["output_0"]["n"] if is_table else row["output_0"] for row in result.to_pylist() if not row["error"]]
    assert right == ([n for place in range(0, 4000, 2) for n in (place, 1)] if is_table else list(range(0, 4000, 2)))


@pytest.mark.parametrize("result", ["STRUCT<a T, b T>", "ARRAY<T>"])
def test_types_do_not_grow_without_bounds(result: str) -> None:
    """Functions whose results contain their arguments, applied to each other, do not make a type of 2**100 parts."""
    function = udf(input_types=["T"], result_type=result, name="nested")(lambda x: [x])
    steps = [Step("nested", (X,)), *(Step("nested", (StepArgument(step=place),)) for place in range(100))]
    request = Request((), COLUMNS, steps=tuple(steps), outputs=(100,))
    with pytest.raises(RejectedError, match=r"nested\) has a type that is nested more than 48 times or has more than"):
        bind(request, Registry.load([function]))
