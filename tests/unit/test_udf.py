"""`udf` and `udtf`: what they infer from a function or a class, and the mistakes that they refuse."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pytest

from foldflight import FunctionContext, Registry, RejectedError, connect, udaf, udf, udtf
from foldflight.functions import FunctionKind, function_of
from foldflight.shipping.pickling import unpickled_copy
from tests import scalar_functions


@dataclass
class Row:
    word: str
    at: int


def abs_(x):
    return abs(x)


def describe_function(target) -> str:
    return function_of(target).signature


def test_types_come_from_names_annotations_or_arrow() -> None:
    """The three ways of declaring types give the same signature."""

    @udf
    def with_annotations(x: int, y: str) -> float:
        return 1.0

    @udf(input_types=["BIGINT", pa.string()], result_type=pa.float64(), name="with_annotations")
    def with_declaration(x, y):
        return 1.0

    assert (
        describe_function(with_annotations)
        == describe_function(with_declaration)
        == "with_annotations(x BIGINT, y STRING) -> DOUBLE"
    )
    assert with_annotations(1, "") == 1.0, "the function stays what it was"


def test_table_functions_declare_their_columns() -> None:
    """Columns are declared by a dict, by a class with annotated fields, or by an annotation for a single column."""

    @udtf
    def by_class(text: str) -> Iterator[Row]:
        yield Row(text, 0)

    @udtf
    def one(text: str) -> list[str]:
        return [text]

    @udtf(input_types=["T"], result_types={"value": "T", "at": "INT"})
    def any_type(value):
        yield value, 0

    assert describe_function(by_class) == "by_class(text STRING) -> TABLE(word STRING, at BIGINT)"
    assert describe_function(one) == "one(text STRING) -> TABLE(one STRING)"
    bound = function_of(any_type).bind([pa.date32()], {})
    assert bound.result_type == pa.struct([("value", pa.date32()), ("at", pa.int32())])
    assert function_of(one).kind is FunctionKind.TABLE


def test_direct_arguments_are_the_arguments_of_init() -> None:
    """Names, defaults and types are checked before anything runs."""
    scale = connect(scalar_functions)["scale"]
    assert scale.info.signature == "scale(x DOUBLE, factor => 2.0, offset => 0) -> DOUBLE"
    with pytest.raises(RejectedError, match="did you mean factor"):
        scale("x", factr=3.0)
    assert scale("x", 3.0, 1).literals == scale("x", factor=3.0, offset=1).literals
    with pytest.raises(RejectedError, match="takes 1 column, got 4"):
        scale("x", 3.0, 1, "y")


def annotated(column: pd.Series) -> pd.Series:
    return column


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: udf(lambda x: x), r"<lambda> has no name"),
        (lambda: udf(len), "neither a Python function nor a class"),
        (lambda: udf(type("Empty", (), {})), "has no method eval"),
        (lambda: udf(input_types=["INT"], result_type="INT", name="f")(lambda x, y: x), "does not take 1 arguments"),
        (
            lambda: udf(input_types=["INT"] * 2, result_type="INT", name="f")(lambda x, *, k: x),
            "keyword-only parameter k, and arguments are given by position; for direct arguments write a class",
        ),
        (
            lambda: udf(vectorised="pandas", result_type="INT", name="f")(annotated),
            "the elements; give @udf",
        ),
        (
            lambda: udf(input_types="INT", result_type="INT", name="f")(lambda x: x),
            "write a list",
        ),
        (lambda: udf(input_types=["INTT"], result_type="INT", name="f")(lambda x: x), "INTT is unknown"),
        (lambda: udf(input_types=["INT"], name="f")(lambda x: x), "does not declare the type of the result"),
        (lambda: udf(name="f")(lambda x, y: x), r"does not declare the types of x, y and the result; annotate them"),
        (lambda: udf(result_type="INT", name="f")(lambda x: x), r"does not declare the type of x; annotate it"),
        (lambda: udf(input_types=["INT"], result_type="T", name="f")(lambda x: x), "type variable T"),
        (
            lambda: udf(vectorised="polars", input_types=["INT"], result_type="INT", name="f")(lambda x: x),  # type: ignore[call-overload]
            "polars",
        ),
        (
            lambda: udf(vectorised="arrow", compile=True, input_types=["INT"], result_type="INT", name="f")(
                lambda x: x
            ),
            "choose one",
        ),
        (lambda: udf(vectorised="arrow", input_types=[], result_type="INT", name="f")(lambda: 1), "how many rows"),
        (lambda: udtf(input_types=["INT"], name="f")(lambda x: x), "does not declare its columns"),
        (
            lambda: udtf(name="f")(lambda x, y: x),
            r"types of x, y and the result; annotate them, or give @udtf\(input_types=\[...\], result_types={",
        ),
        (lambda: udtf(result_types={"a": "INT"}, name="f")(lambda x: x), r"type of x; .*input_types=\[...\]\)\n"),
        (lambda: udtf(input_types=["INT"], result_types={}, name="f")(lambda x: x), "give a dict of columns"),
        (
            lambda: udtf(input_types=["INT"], result_types={"a": "INT", "A": "INT"}, name="f")(lambda x: x),
            "two columns of one name",
        ),
    ],
)
def test_mistakes_are_refused_with_their_remedy(make, message: str) -> None:
    """Each mistake of an author raises an error at import, which says what to write."""
    with pytest.raises(RejectedError, match=message):
        make()


def test_async_functions_declare_their_bounds() -> None:
    """`async def` is evaluated with bounds, is not deterministic unless it says so, and with `batch` takes lists."""

    @udf(concurrency=3, timeout_s=2, retries=0, rate=0.5)
    async def asked(text: str) -> str:
        return text

    @udf(batch=8, deterministic=True)
    class Embedded:
        async def open(self, context: FunctionContext) -> None: ...

        async def eval(self, texts: list[str], weights: list[float]) -> list[list[float]]:
            return [[1.0]] * len(texts)

    one, other = function_of(asked), function_of(Embedded)
    assert (one.bounds.concurrency, one.bounds.timeout_s, one.bounds.retries, one.bounds.rate) == (3, 2, 0, 0.5)
    assert one.bounds.rows_at_once == 3
    assert other.bounds.rows_at_once == 64 * 8
    assert (one.is_deterministic, other.is_deterministic) == (False, True)
    assert describe_function(Embedded) == "embedded(texts STRING, weights DOUBLE) -> ARRAY<DOUBLE>"
    assert function_of(udf(input_types=["INT"], result_type="INT")(abs_)).bounds is None


def _plain(x: int) -> int:
    return x


async def _waits(x: int) -> int:
    return x


async def _yields(x: int) -> int:
    yield x


class _OpensAsync:
    async def open(self, context): ...

    def eval(self, x: int) -> int:
        return x


class _Keyed:
    def __init__(self, api_key: str, max_tokens: int = 3): ...

    async def eval(self, x: int) -> int:
        return x


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        (_plain, {"concurrency": 3}, "declared concurrency=3 and is no async def.*drop concurrency"),
        (_plain, {"rate": 3}, "none of its calls waits"),
        (_plain, {"batch": 2, "retries": 1}, "declared batch=2, retries=1 and .*drop batch, retries"),
        (
            _waits,
            {"batch": 0, "retries": -1},
            "batch=0; give a whole number from 1 to 65536, and retries=-1; give a whole",
        ),
        (_waits, {"concurrency": 0}, "a whole number from 1 to 4096"),
        (_waits, {"concurrency": True}, "a whole number"),
        (_waits, {"timeout_s": 0}, "a number, more than 0"),
        (_waits, {"timeout_s": float("nan")}, "a number"),
        (_waits, {"retries": -1}, "a whole number from 0"),
        (_waits, {"rate": "20"}, "rate='20'"),
        (_waits, {"batch": 3}, "takes and returns lists.*annotate"),
        (_waits, {"vectorised": "arrow"}, "give batch"),
        (_waits, {"compile": True}, "drop compile"),
        (_yields, {}, "async generator"),
        (_OpensAsync, {}, r"\.open is a coroutine.*make eval async"),
        (_Keyed, {}, "direct argument api_key.*from the environment or a file"),
    ],
)
def test_options_that_do_not_go_with_async_are_refused(target, options, message) -> None:
    """Bounds of plain functions, bounds out of range, other forms, and secrets as direct arguments."""
    with pytest.raises(RejectedError, match=message):
        udf(target, **options)


def test_table_functions_cannot_wait() -> None:
    """A table function is no coroutine; the remedy is a scalar function with a list."""
    with pytest.raises(RejectedError, match=r"is a coroutine.*@udf, which may return a list"):

        @udtf(result_types={"word": "STRING"})
        async def split(text: str): ...


def test_methods_of_the_wrong_kind_are_refused() -> None:
    """Generators and Flink's is_deterministic are refused, with a remedy."""
    with pytest.raises(RejectedError, match="use @udtf"):

        @udf
        def yields(x: int) -> int:
            yield x

    with pytest.raises(RejectedError, match="deterministic=False"):

        @udf
        class Random:
            def eval(self, x: int) -> int:
                return x

            def is_deterministic(self):
                return False

    with pytest.raises(RejectedError, match=r"write open\(self, context\)"):

        @udf
        class Opens:
            def open(self) -> None: ...

            def eval(self, x: int) -> int:
                return x


def test_a_registry_has_all_kinds() -> None:
    """Modules are searched for all three decorators. Two functions of one name are refused; copies are ignored."""

    @udaf
    class Multiply:
        def create_accumulator(self) -> int:
            return 1

        def accumulate(self, accumulator: int, x: int) -> int:
            return accumulator * x

        def get_value(self, accumulator: int) -> int:
            return accumulator

    with pytest.raises(RejectedError, match=r"two functions are named multiply: .*scalar_functions.multiply"):
        Registry.load([scalar_functions.multiply, Multiply])

    @functools.wraps(scalar_functions.multiply)
    def wrapper(*arguments):
        return 0

    assert function_of(wrapper) is None, "functools.wraps copies the mark, not the function"
    kinds = {name: function.kind for name, function in Registry.load([scalar_functions]).items()}
    assert (kinds["multiply"], kinds["split"], kinds["sum"]) == ("scalar", "table", "aggregate")


def test_functions_are_pickled_by_value() -> None:
    """A pickled function contains its code, and the author's function is unchanged."""
    for target in (scalar_functions.multiply, scalar_functions.Scale, scalar_functions.split):
        (there,) = unpickled_copy([function_of(target)])
        assert there.signature == describe_function(target)
        assert there.target is not target
    (there,) = unpickled_copy([function_of(scalar_functions.multiply)])
    assert there.bind([pa.int64()] * 2, {}).instantiate().eval(6, 7) == 42


def test_the_other_kind_of_query_is_named() -> None:
    """An aggregate as the argument of a scalar function is refused; nested calls have a readable repr."""
    functions = connect(scalar_functions)
    with pytest.raises(RejectedError, match="aggregate first"):
        functions["multiply"]("x", functions["sum"]("y"))
    assert repr(functions["score"](functions["normalise"]("t"), "a")) == "score(normalise('t'), 'a')"
    assert repr(functions["split"]("t")["word"]) == "split('t')['word']"


def test_a_context_is_given_to_open() -> None:
    """`open` gets the context before the first row."""
    methods = function_of(scalar_functions.Counting).bind([pa.int64()], {}).instantiate()
    methods.open(FunctionContext("counting"))
    assert methods.eval(3) == 3
