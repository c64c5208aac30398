"""`help` and notebooks show what an author wrote."""

import inspect
import pydoc

import foldflight.spark
from foldflight import connect, udaf, udf

PLAIN = pydoc.plaintext  # type: ignore[attr-defined]


@udf
def scaled(x: int, factor: int = 10) -> int:
    """Scale a number."""
    return x * factor


@udaf
class Total:
    def __init__(self, start: int = 3) -> None:
        self.start = start

    def create_accumulator(self) -> int:
        return self.start

    def accumulate(self, total: int, value: int) -> int:
        return total + value

    def get_value(self, total: int) -> int:
        return total


def test_help_shows_the_docstring_and_the_signature() -> None:
    functions = connect("embedded:").register(scaled, Total)
    output = pydoc.render_doc(functions.scaled, renderer=PLAIN)
    assert "scaled(x BIGINT, factor BIGINT DEFAULT 10) -> BIGINT" in output
    assert "Scale a number." in output
    assert str(inspect.signature(functions.scaled)) == "(x: BIGINT, factor: BIGINT = ...) -> BIGINT"
    assert str(inspect.signature(functions.total)) == "(value: BIGINT, start: int = 3) -> BIGINT"
    without = pydoc.render_doc(functions.total, renderer=PLAIN)
    assert "The function total(value BIGINT, start => 3) -> BIGINT." in without
    assert "spark_udf" not in without  # not the methods of the handle's class
    for name in functions:
        inspect.signature(functions[name])


@udaf
class Scaled(Total):
    def __init__(self, start: int, step: int = 1) -> None:
        super().__init__(start)

    def accumulate(self, total: int, value: int, weight: int = 2) -> int:  # type: ignore[override]
        return total + value * weight


def test_signatures_take_what_calls_take() -> None:
    """Direct arguments stand by position behind all columns; one that is required, behind a default, by name."""
    functions = connect([Total, Scaled])
    bound = inspect.signature(functions.total).bind("v", 5)
    assert functions.total(*bound.args, **bound.kwargs) == functions.total("v", start=5)
    signature = "(value: BIGINT, weight: BIGINT = ..., *, start: int, step: int = 1) -> BIGINT"
    assert str(inspect.signature(functions.scaled)) == signature
    bound = inspect.signature(functions.scaled).bind("v", start=5)
    assert functions.scaled(*bound.args, **bound.kwargs) == functions.scaled("v", start=5)


def test_help_of_a_single_function_shows_its_docstring() -> None:
    only = connect(scaled)
    assert "Scale a number." in pydoc.render_doc(only, renderer=PLAIN)
    assert str(inspect.signature(only)) == "(x: BIGINT, factor: BIGINT = ...) -> BIGINT"


def test_names_that_are_imported_later_are_listed() -> None:
    """Completion in notebooks and `help` ask for the names of a module."""
    assert set(foldflight.spark.__all__) <= set(dir(foldflight.spark))
    output = pydoc.render_doc(foldflight.spark, renderer=PLAIN)
    for line in ("    from_canal(df: 'DataFrame'", "    write_table(changes: 'DataFrame'", "    register("):
        assert line in output
