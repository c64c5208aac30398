"""Handles check their arguments when a query is written."""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foldflight import udaf
from foldflight.client import Functions, connect
from foldflight.client.functions import FunctionHandle
from foldflight.errors import RejectedError
from foldflight.exchange import exchange_pb2 as pb
from foldflight.exchange.encoding import decode_info, encode_info
from foldflight.exchange.frames import FunctionInfo
from foldflight.functions import Registry
from foldflight.shipping.pickling import pickle_functions


@udaf(input_types=["DOUBLE"], result_type="DOUBLE")
class Percentile:
    """A function with direct arguments."""

    def __init__(self, fraction: float, kind: str = "nearest") -> None:
        self.fraction = fraction
        self.kind = kind

    def create_accumulator(self) -> list[float]:
        return []

    def accumulate(self, accumulator: list[float], value: float) -> None:
        accumulator.append(value)

    def get_value(self, accumulator: list[float]) -> float | None:
        return sorted(accumulator)[int(self.fraction * len(accumulator))] if accumulator else None


@udaf(input_types=["DOUBLE"], result_type="DOUBLE")
class Spread(Percentile):
    """A function without direct arguments."""

    def __init__(self) -> None:
        super().__init__(0.5)


class Expression:
    """Behaves like an engine's column: a comparison gives another expression, which is neither true nor false."""

    def __eq__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise ValueError("it is not known yet")

    def __repr__(self) -> str:
        return "x + 1"


@pytest.fixture
def functions() -> Functions:
    """Built-in functions and one with direct arguments."""
    return connect(Percentile)


@pytest.mark.parametrize(
    ("use", "code", "mentions"),
    [
        (lambda f: f["percentil"], "UNKNOWN_FUNCTION", ["percentile"]),
        (lambda f: f["percentile"](fraction=0.5), "SCHEMA_MISMATCH", ["takes 1 column, got 0", "percentile("]),
        (lambda f: f["percentile"]("a", "b", fraction=0.5), "SCHEMA_MISMATCH", ["got 2"]),
        (lambda f: f["percentile"]("a", 0.5, 1, 2), "SCHEMA_MISMATCH", ["takes 1 column, got 4"]),
        (lambda f: f["percentile"]("a", value="b", fraction=0.5), "SIGNATURE", ["is given value twice"]),
        (lambda f: f["percentile"](nothing=1), "SIGNATURE", ["no direct argument 'nothing'; it takes fraction"]),
        (lambda f: f["percentile"](valu="a"), "SIGNATURE", ["'valu'; did you mean value?"]),
        (lambda f: f["percentile"]("a"), "SIGNATURE", ["needs the direct argument 'fraction'"]),
        (lambda f: f["percentile"]("a", fracton=0.5), "SIGNATURE", ["did you mean fraction?"]),
        (
            lambda f: f["percentile"]("a", 0.5, fraction=0.9),
            "SIGNATURE",
            ["given fraction twice, by position and by name"],
        ),
        (lambda f: f["count"]("a", "b"), "SCHEMA_MISMATCH", ["takes 0 to 1 columns"]),
        (lambda f: f["count"]().distinct(), "SIGNATURE", ["give a column"]),
        (lambda f: f["count"]("a").where("x").where("y"), "SIGNATURE", ["combine both conditions with AND"]),
        (lambda f: f["count"]().alias(7), "SIGNATURE", ["the name of an output must be a str, and it is 7"]),
        (
            lambda f: f["percentile"]("a", fraction=connect),
            "SIGNATURE",
            ["fraction of percentile is <function connect"],
        ),
        (lambda f: f["percentile"]("a", fraction=Expression()), "SIGNATURE", ["percentile is x + 1", "not a constant"]),
        (lambda f: f["percentile"]("a", fraction=[0.5, {"x": lambda: 1}]), "SIGNATURE", ["not a constant"]),
        (lambda f: f["percentile"]("a", fraction=threading.Lock()), "SIGNATURE", ["fraction of percentile is <"]),
        (lambda f: connect("embedded:")("a"), "SIGNATURE", ["only built-in functions", "functions.count(...)"]),
        (lambda f: connect("embedded:a", "embedded:b"), "SIGNATURE", ["connect takes one target", 'or "embedded:a,b"']),
        (lambda f: connect([Percentile, Spread])("a"), "SIGNATURE", ["there are percentile, spread; name the one"]),
    ],
)
def test_wrong_use_is_refused_at_once(
    functions: Functions, use: Callable[[Functions], Any], code: str, mentions: list[str]
) -> None:
    """A wrong name, number of columns or direct argument fails immediately, with the remedy."""
    with pytest.raises(RejectedError) as excinfo:
        use(functions)
    assert excinfo.value.code == code
    for mention in mentions:
        assert mention in excinfo.value.message


def test_direct_arguments_may_follow_the_columns(functions: Functions) -> None:
    """They may be given by position, as in Python; the use is the same."""
    assert functions["percentile"]("a", 0.5) == functions["percentile"]("a", fraction=0.5)
    assert functions["percentile"](fraction=0.5, value="a") == functions["percentile"]("a", 0.5)


def test_constants_may_be_in_the_place_of_columns(functions: Functions) -> None:
    """Numbers and booleans become expressions, also where an argument with a default is given by name."""

    @udaf
    class Sessions:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, at: int, gap: float = 0.5, closed: bool = False) -> int:
            return accumulator + 1

        def get_value(self, accumulator: int) -> int:
            return accumulator

    sessions = connect(Sessions)["sessions"]
    assert sessions("a", gap=60).columns == ("a", "(60)")
    assert sessions("a", closed=True, gap=math.inf).columns == ("a", "CAST('inf' AS DOUBLE)", "(True)")
    assert sessions("a", np.float64(0.25)).columns == ("a", "CAST('0.25' AS DOUBLE)")


def test_the_number_of_arguments_is_told_not_read_from_a_text() -> None:
    """The signature is only for people: brackets in it mean nothing, and old servers may send no types."""
    count = FunctionInfo.of(Registry()["count"])
    assert (count.inputs_min, FunctionInfo.of(Registry.load([Percentile])["percentile"]).inputs_min) == (0, 1)
    variable = FunctionInfo(**{**vars(count), "signature": "f([a], b)", "input_names": ("a", "b"), "inputs_min": 2})
    assert decode_info(encode_info(variable)) == variable
    with pytest.raises(RejectedError, match="takes 2 columns, got 1"):
        FunctionHandle(variable, connect("embedded:").transport)("x")
    for input_types, least in ((None, 0), (("BIGINT", "BIGINT"), 2)):
        old = pb.FunctionInfo.FromString(encode_info(dataclasses.replace(variable, input_types=input_types)))
        old.ClearField("inputs_min")
        assert decode_info(old.SerializeToString()).inputs_min == least


def test_a_use_keeps_its_arguments(functions: Functions) -> None:
    """An aggregate has columns, condition, DISTINCT and direct arguments; its origin is not changed."""
    plain = functions["percentile"]("delay", fraction=0.9)
    narrow_use = plain.where("delay > 0").distinct()
    assert (plain.condition, plain.is_distinct) == (None, False)
    assert (narrow_use.columns, narrow_use.condition, narrow_use.is_distinct) == (("delay",), "delay > 0", True)
    assert narrow_use.literals == {"fraction": 0.9}
    assert narrow_use.transport is functions.transport


class Mode(enum.Enum):
    FAST = 1


@pytest.mark.parametrize(
    "value",
    [0.5, True, None, "x", "<f at 0x7f>", math.nan, np.float32(1), np.arange(3), (1, [2]), {"a": b"b"}, Mode.FAST],
)
def test_constants_are_direct_arguments(functions: Functions, value: Any) -> None:
    """Any constant that is the same in every process can be a direct argument."""
    assert functions["percentile"]("delay", fraction=value).literals["fraction"] is value


def test_a_use_of_a_function_shows_as_it_was_written(functions: Functions) -> None:
    """Errors show an aggregate as code; `alias` names its output."""
    plain = functions["percentile"]("delay", fraction=0.9)
    assert (plain.name, plain.alias("n").name) == (None, "n")
    use_text = repr(plain.where("delay > 0").distinct().alias("n"))
    assert use_text == "percentile('delay', fraction=0.9).where('delay > 0').distinct().alias('n')"


def test_one_function_is_used_without_its_name() -> None:
    """The result of `connect` for one class, or a module with one function, can be called like the function."""
    spread = connect(Spread)
    assert spread("delay") == spread["spread"]("delay")
    with pytest.raises(RejectedError, match="takes 1 column, got 2"):
        spread("a", "b")
    assert connect(Percentile)("a", fraction=0.5).literals == {"fraction": 0.5}


def test_functions_are_attributes(functions: Functions) -> None:
    """Functions are attributes with completion, shown with signatures, the author's first."""
    assert functions.percentile is functions["percentile"]
    assert {"percentile", "sum", "register", "items"} <= set(dir(functions))
    assert functions._ipython_key_completions_() == list(functions)
    first, second, last = repr(functions).splitlines()
    assert (first, second) == ("<functions", "  percentile(value DOUBLE, fraction, kind => 'nearest') -> DOUBLE")
    assert last.startswith("  built-in: avg, bool_and")
    assert last.endswith("variance>")
    assert not hasattr(functions, "_repr_html_")
    with pytest.raises(AttributeError, match="did you mean percentile"):
        _ = functions.percentil
    assert copy.copy(functions).percentile("a", fraction=0.5) == functions.percentile("a", fraction=0.5)
    assert set(pickle.loads(pickle.dumps(functions))) == set(functions)


def test_functions_are_a_mapping(functions: Functions) -> None:
    """Names can be listed, counted and tested."""
    assert "percentile" in functions
    assert "nothing" not in functions
    assert {"count", "sum", "avg", "percentile"} <= set(functions)
    assert len(functions) == len(functions.infos())
    assert functions["percentile"].__doc__ == "A function with direct arguments."


@pytest.mark.parametrize(
    ("target", "mentions"),
    [("localhost:8815", 'give "grpc://host:port"'), ("", "embedded:module"), ("http://x", "cannot connect")],
)
def test_a_bad_target_is_refused_with_the_remedy(target: str, mentions: str) -> None:
    """A target without a known scheme is refused with the two valid forms."""
    with pytest.raises(RejectedError) as excinfo:
        connect(target)
    assert mentions in excinfo.value.message


@pytest.mark.parametrize("key", ["a text of sixteen bytes", b"fifteen bytes..", 16, bytearray(16)])
def test_bad_state_key_is_refused_at_once(key: Any) -> None:
    """`connect` refuses an invalid state key immediately, without showing it."""
    with pytest.raises(RejectedError, match="state_key must be bytes, at least 16") as excinfo:
        connect(Percentile, state_key=key)
    assert excinfo.value.code == "SIGNATURE"
    assert str(key) not in excinfo.value.message or key == 16


def test_embedded_functions_can_be_registered_later() -> None:
    """Registered functions are added to the existing ones, and a name cannot be used twice."""
    functions = connect("embedded:")
    assert "percentile" not in functions
    assert functions.register(Percentile) is functions
    assert functions["percentile"].info.signature.startswith("percentile(value DOUBLE")
    assert functions["percentile"]("a", fraction=0.5).transport is functions["count"]().transport

    @udaf(input_types=["DOUBLE"], result_type="DOUBLE", name="percentile")
    class Other(Percentile):
        pass

    with pytest.raises(RejectedError, match="two functions are named percentile"):
        functions.register(Other)


def test_missing_module_is_named() -> None:
    """An embedded module that cannot be imported is a MODULE error."""
    with pytest.raises(RejectedError) as excinfo:
        connect("embedded:no_such_module_here")
    assert excinfo.value.code == "MODULE"
    assert "no_such_module_here" in excinfo.value.message


class Gate:
    """The first thread that pickles it waits for a second one, or a timeout; the second waits for the first."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.first_is_done = threading.Event()
        self._second_is_here = threading.Event()
        self._second: threading.Thread | None = None
        self._pickle: Callable[[], bytes] = bytes

    def through(self, pickle_: Callable[[], bytes]) -> list[bytes]:
        """Return what two threads pickled at the same time."""
        self._pickle = pickle_
        self.found.append(pickle_())
        self.first_is_done.set()
        assert self._second is not None
        self._second.join()
        return self.found

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        if self._second is None:
            self._second = threading.Thread(target=lambda: self.found.append(self._pickle()))
            self._second.start()
            self._second_is_here.wait(0.2)
        elif threading.current_thread() is self._second:  # the first comes by more than once
            self._second_is_here.set()
            self.first_is_done.wait()
        return int, ()


def test_threads_can_pickle_by_value_at_once() -> None:
    """The pickle of one thread needs no module of the author's, whatever other threads do meanwhile."""
    author_module = types.ModuleType("authored_by_two")
    sys.modules[author_module.__name__] = author_module
    try:
        exec(
            "from foldflight import udaf\n"
            "class Base:\n"
            "    def create_accumulator(self) -> int: return 0\n"
            "    def accumulate(self, accumulator: int, value: int) -> int: return accumulator + value\n"
            "    def get_value(self, accumulator: int) -> int: return accumulator\n"
            "One = udaf(input_types=['INT'], result_type='INT')(type('One', (Base,), {}))\n"
            "Two = udaf(input_types=['INT'], result_type='INT')(type('Two', (Base,), {}))\n",
            author_module.__dict__,
        )
        gate = author_module.One.gate = Gate()
        functions = Registry.load([author_module.One, author_module.Two]).authored
        result = gate.through(lambda: pickle_functions(functions))
    finally:
        del sys.modules[author_module.__name__]
    assert [[function.name for function in pickle.loads(each)] for each in result] == [["one", "two"]] * 2


def test_a_use_may_have_an_order() -> None:
    """A text may end with its direction; the order shows in the use."""
    use = connect("embedded:")["string_agg"]("t").order_by("day DESC", "id nulls last", "desc")
    assert [(key.column, key.descending, key.nulls_first) for key in use.order] == [
        ("day", True, False),
        ("id", False, False),
        ("desc", False, True),
    ]
    assert repr(use) == "string_agg('t').order_by('day DESC NULLS LAST', 'id NULLS LAST', 'desc')"
    with pytest.raises(RejectedError, match="needs a key"):
        use.order_by()
