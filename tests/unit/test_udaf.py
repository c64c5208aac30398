"""Registration of a class, and the mistakes that it detects."""

import sys
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, LongType

from foldflight import RejectedError, connect, udaf, udf
from foldflight.errors import FunctionError
from foldflight.exchange.frames import Open
from foldflight.functions import Call, Function, Registry, function_of
from foldflight.functions.author.context import FunctionContext


class State:
    sum: int
    count: int


def register(cls: type) -> Function:
    function = function_of(cls)
    assert function is not None
    return function


class Plain:
    """Count twice."""

    def create_accumulator(self) -> State:
        return State()

    def accumulate(self, accumulator: State, value: int) -> None: ...

    def get_value(self, accumulator: State) -> int:
        return accumulator.count


def test_names_types_and_capabilities_come_from_the_class() -> None:
    """A bare @udaf reads name, types, state and capabilities from the class."""

    @udaf
    class HTTPErrorRate2(Plain):
        """Count twice."""

        def merge(self, accumulator: State, other: State) -> None: ...

    function = register(HTTPErrorRate2)
    assert function.name == "http_error_rate2"
    assert function.signature == "http_error_rate2(value BIGINT) -> BIGINT"
    assert function.doc == "Count twice."
    assert (function.capabilities.merge, function.capabilities.retract) == (True, False)
    assert function.capabilities.codec == "typed"
    assert function.bind([pa.int64()], {}).state_type == pa.struct([("sum", pa.int64()), ("count", pa.int64())])


def test_each_option_of_the_decorator_is_kept() -> None:
    """Every option of @udaf is kept."""

    @udaf(
        input_types=["INT"],
        result_type="DECIMAL(10,2)",
        name="f",
        version="7",
        skip_nulls=True,
        deterministic=False,
        invertible=True,
    )
    class Anything(Plain):
        def retract(self, accumulator: State, value: int) -> None: ...

    function = register(Anything)
    assert (function.name, function.version, function.skip_nulls) == ("f", "7", True)
    assert not function.capabilities.deterministic
    assert function.capabilities.invertible
    assert function.result_type == pa.decimal128(10, 2)


def test_a_decorated_class_stays_a_plain_class() -> None:
    """The author can use and subclass the class as before; a subclass is not registered automatically."""

    @udaf
    class Once(Plain):
        pass

    class Twice(Once):
        pass

    assert Once().get_value.__name__ == "get_value"
    assert function_of(Twice) is None


@dataclass
class Point:
    x: float
    tags: list[str]
    seen: dict[str, int]


STATES = [
    (int, pa.int64()),
    (float, pa.float64()),
    (list[int], pa.list_(pa.int64())),
    (dict[str, float], pa.map_(pa.string(), pa.float64())),
    (tuple[int, str], pa.struct([("f0", pa.int64()), ("f1", pa.string())])),
    (tuple[int, ...], pa.list_(pa.int64())),
    (set[str], pa.list_(pa.string())),
    (Annotated[int, "INT"], pa.int32()),
    (float | None, pa.struct([("value", pa.float64())])),
    (
        Point,
        pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string())), ("seen", pa.map_(pa.string(), pa.int64()))]),
    ),
]


@pytest.mark.parametrize(("annotation", "expected"), STATES, ids=[str(annotation) for annotation, _ in STATES])
def test_states_are_typed_by_the_annotation(annotation: Any, expected: pa.DataType) -> None:
    """An annotated accumulator has a readable Arrow state."""

    class Typed(Plain):
        def create_accumulator(self) -> Any: ...

    Typed.create_accumulator.__annotations__["return"] = annotation
    function = register(udaf(Typed))
    assert function.capabilities.codec == "typed"
    assert function.bind([pa.int64()], {}).state_type == expected


@pytest.mark.parametrize("annotation", [list, dict, Any, int | str, object])
def test_accumulators_without_specific_annotations_are_pickled(annotation: Any) -> None:
    """If the annotation does not describe the accumulator, states are pickled, with the reason."""

    class Vague(Plain):
        def create_accumulator(self) -> Any: ...

    Vague.create_accumulator.__annotations__["return"] = annotation
    capabilities = register(udaf(Vague)).capabilities
    assert capabilities.codec == "pickle"
    assert capabilities.codec_reason


def test_serialize_makes_the_codec_custom() -> None:
    """An author's serialize takes precedence over annotations."""

    @udaf
    class Custom(Plain):
        def serialize(self, accumulator: State) -> bytes:
            return b""

        def deserialize(self, data: bytes) -> State:
            return State()

    assert register(Custom).capabilities.codec == "custom"


def test_a_class_can_be_its_own_accumulator() -> None:
    """Without create_accumulator, self is the accumulator, and methods have no accumulator parameter."""

    @udaf
    class Mean:
        total: float
        rows: int

        def __init__(self, start: float = 0.0) -> None:
            self.total, self.rows = start, 0

        def accumulate(self, value: float) -> None:
            self.total += value
            self.rows += 1

        def merge(self, other: "Mean") -> None:
            self.total += other.total
            self.rows += other.rows

        def get_value(self) -> float | None:
            return self.total / self.rows if self.rows else None

    function = register(Mean)
    assert function.signature == "mean(value DOUBLE, start => 0.0) -> DOUBLE"
    methods = function.instantiate({"start": 1.0})
    one, two = methods.create_accumulator(), methods.create_accumulator()
    methods.accumulate(one, 3.0)
    methods.accumulate(two, 5.0)
    assert methods.merge is not None
    methods.merge(one, two)
    assert methods.get_value(one) == 5.0


def without(method_name: str) -> dict[str, Any]:
    return {name: value for name, value in vars(Plain).items() if name != method_name and not name.startswith("__")}


async def _later(self: Any, accumulator: Any, value: Any) -> None:
    """Do nothing when called."""


async def _values_later(self: Any, accumulators: Any) -> list[int]:
    """Return nothing when called."""
    return []


async def _untyped_values_later(self: Any, accumulators: Any) -> int:
    """Return nothing when called."""
    return 0


BATCHED = {"get_value": None, "get_values": _values_later}


def _one_by_one(self: Any, accumulator: Any) -> Any:
    """Do nothing when iterated."""
    yield accumulator


MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no accumulate": (without("accumulate"), {}, "has no method accumulate; define accumulate"),
    "no get_value": (without("get_value"), {}, "has no method get_value"),
    "too few parameters": ({}, {"input_types": ["INT", "INT"]}, r"\.accumulate.* does not take 2 arguments"),
    "retract differs": ({"retract": lambda self, a: None}, {}, r"\.retract.* does not take 1 arguments"),
    "merge of one": ({"merge": lambda self, a: None}, {}, r"\.merge.*; write merge\(self, accumulator, other\)"),
    "unknown type": ({}, {"input_types": ["BIGINTT"]}, "input_types: 'BIGINTT' is not a type"),
    "type without values": ({}, {"input_types": ["MAP<STRING>"]}, "expected ',' after 'MAP < STRING'"),
    "unknown result": ({}, {"result_type": "FOO"}, "result_type: 'FOO' is not a type"),
    "one type, no list": ({}, {"input_types": "INT"}, r"write a list: input_types=\['INT'\]"),
    "one type of PySpark, no list": ({}, {"input_types": LongType()}, r"write a list: input_types=\[LongType\(\)\]"),
    "one annotation, no list": ({}, {"input_types": int}, r"write a list: input_types=\[int\]"),
    "a class of PySpark's types": (
        {},
        {"result_type": LongType},
        r"result_type: LongType is a class, .* write LongType\(\)",
    ),
    "retarct": ({"retarct": Plain.accumulate}, {}, "has a method retarct, which is never called; did you mean retract"),
    "mrege": ({"mrege": lambda self, a, b: a}, {}, "did you mean merge"),
    "serialise": ({"serialise": lambda self, a: b""}, {}, "did you mean serialize"),
    "no get_value but getValue": ({**without("get_value"), "getValue": Plain.get_value}, {}, "did you mean get_value"),
    "serialize alone": ({"serialize": lambda self, a: b""}, {}, "has serialize but no deserialize"),
    "invertible without retract": ({}, {"invertible": True}, "invertible but has no retract"),
    "untyped argument": (
        {"accumulate": lambda self, a, value: None},
        {},
        "does not declare the type of value; annotate it",
    ),
    "untyped arguments": (
        {"accumulate": lambda self, a, shop, value, day: None},
        {},
        r"accumulate does not declare the types of shop, value and day; annotate them, or .*input_types=\[...\]\)\n",
    ),
    "untyped argument and result": (
        {"accumulate": lambda self, a, shop: None, "get_value": lambda self, a: 1},
        {},
        r"type of shop, nor get_value the type of the result; annotate them, or .*input_types=.*, result_type=...\)\n",
    ),
    "untyped argument, typed result": (
        {"accumulate": lambda self, a, shop: None, "get_value": lambda self, a: 1},
        {"result_type": "INT"},
        r"accumulate does not declare the type of shop; annotate it, or give @udaf\(input_types=\[...\]\)\n",
    ),
    "untyped result": ({"get_value": lambda self, a: 1}, {}, "does not declare the type of the result"),
    "a coroutine": (
        {"accumulate": _later},
        {"input_types": ["INT"]},
        r"\.accumulate is a coroutine.*without async",
    ),
    "async values, and a value": (
        {"get_values": _values_later},
        {"input_types": ["INT"]},
        "has an async get_values and get_value; keep one of them",
    ),
    "async values without lists": (
        {**BATCHED, "get_values": _untyped_values_later},
        {"input_types": ["INT"]},
        r"\.get_values does not declare the type of the results; annotate it as list",
    ),
    "async values, compiled": ({**BATCHED}, {"compile": True}, "has an async get_values and is declared compile=True"),
    "async values of itself": (
        {**BATCHED, "create_accumulator": None},
        {"input_types": ["INT"]},
        "has an async get_values but no create_accumulator",
    ),
    "a batch of single values": (
        {"get_value": _later},
        {"batch": 8},
        "has an async get_value and is declared with batch or batch_wait_s; define async get_values",
    ),
    "a generator": ({"get_value": _one_by_one}, {}, r"\.get_value is a coroutine or a generator.*and yield"),
    "unbound result": (
        {},
        {"input_types": ["T"], "result_type": "U"},
        "uses the type variable U, which no argument binds",
    ),
    "unbound item": ({}, {"input_types": ["ARRAY<T>"]}, "uses the type variable T, which no argument binds"),
    "anything in init": ({"__init__": lambda self, **options: None}, {}, r"has \*args or \*\*kwargs; name each"),
}


@pytest.mark.parametrize(
    ("option", "hint"), [("skip_null", "did you mean skip_nulls"), ("zzz", "there are input_types")]
)
def test_unknown_options_are_refused(option: str, hint: str) -> None:
    """The error names the decorator, and the option that was probably meant."""
    options: Any = {option: True}
    with pytest.raises(RejectedError, match=f"@udaf has no option '{option}'; {hint}"):
        udaf(**options)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_fail_at_import(mistake: str) -> None:
    """A wrong class raises when it is defined; the error names class, method and remedy."""
    methods, options, message = MISTAKES[mistake]
    base = () if mistake.startswith("no ") else (Plain,)
    cls = type("Wrong", base, methods)
    with pytest.raises(RejectedError, match=message) as excinfo:
        udaf(**options)(cls)
    assert excinfo.value.code == "SIGNATURE"
    assert "Wrong" in excinfo.value.message


def test_async_values_are_batches() -> None:
    """`get_values` alone declares the type of the results by its list, and the batch has a default."""
    function = register(udaf(input_types=["INT"])(type("Batched", (Plain,), BATCHED)))
    assert function.result_type == pa.int64()
    assert function.bounds is not None
    assert function.bounds.batch == 32
    assert not function.is_deterministic
    other = register(udaf(input_types=["INT"], batch=8, batch_wait_s=0)(type("Batched", (Plain,), BATCHED)))
    assert other.bounds is not None
    assert (other.bounds.batch, other.bounds.batch_wait_s) == (8, 0)


def test_none_takes_a_method_away() -> None:
    """A subclass removes an inherited method with None, which changes its capabilities."""
    methods = {"retract": lambda self, accumulator, value: None, "merge": None}
    full = type("Full", (Plain,), {**methods, "merge": lambda self, accumulator, other: None})
    less = type("Less", (full,), {"retract": None, "merge": None})
    options: Any = {"input_types": ["INT"], "result_type": "INT"}
    assert register(udaf(**options)(full)).capabilities.retract
    assert register(udaf(**options)(full)).capabilities.merge
    assert not register(udaf(**options)(less)).capabilities.retract
    assert not register(udaf(**options)(less)).capabilities.merge


def test_its_own_accumulator_may_deserialize_itself() -> None:
    """`deserialize` of a class that is its own accumulator may fill `self` and return None."""

    class Total:
        def __init__(self) -> None:
            self.total = 0

        def accumulate(self, value: int) -> None:
            self.total += value

        def get_value(self) -> int:
            return self.total

        def serialize(self) -> bytes:
            return str(self.total).encode()

        def deserialize(self, data: bytes) -> None:
            self.total = int(data)

    methods = register(udaf(Total)).instantiate({})
    assert methods.deserialize is not None
    assert methods.get_value(methods.deserialize(b"7")) == 7


def test_a_default_is_a_direct_argument() -> None:
    """States with a default equal those with the same value given, but not those with another default."""

    def quantile(default: float) -> Function:
        class Quantile(Plain):
            def __init__(self, fraction: float = default) -> None:
                """Ignore the direct argument."""

        return register(udaf(Quantile))

    types = [pa.int64()]
    half = quantile(0.5).bind(types, {}).fingerprint
    assert half == quantile(0.5).bind(types, {"fraction": 0.5}).fingerprint
    assert half == quantile(0.9).bind(types, {"fraction": np.float64(0.5)}).fingerprint
    assert half != quantile(0.9).bind(types, {}).fingerprint


def test_logs_of_every_kind_become_records() -> None:
    """Positional values are inserted, exceptions have their trace, and levels are the five known ones."""
    records: list[Any] = []
    logger = FunctionContext("f", log=records.append).logger
    logger.info("%s of %d", "one", 2)
    logger.fatal("no way on")
    try:
        raise ValueError("odd")
    except ValueError:
        logger.exception("failed")
    assert [(r.level, r.message) for r in records] == [
        ("info", "one of 2"),
        ("critical", "no way on"),
        ("error", "failed"),
    ]
    assert "ValueError: odd" in records[2].fields["exception"]


def test_methods_that_are_alike_on_purpose_are_accepted() -> None:
    """Methods that others use, private methods, other words and similar names beside the method are accepted."""

    @udaf
    class Meant(Plain):
        def accumulate(self, accumulator: State, value: int) -> None:
            self.retracts(accumulator)

        def retracts(self, accumulator: State) -> None: ...

        def _mrege(self) -> None: ...

        def merged(self) -> None: ...

        def clone(self) -> None: ...

        def serialize(self, accumulator: State) -> bytes:
            return b""

        def serialise(self) -> None: ...

        def deserialize(self, data: bytes) -> State:
            return State()

    assert not register(Meant).capabilities.merge


def test_types_of_pyspark_and_annotations_are_types() -> None:
    """Types may be PySpark types or annotations; the function stores Arrow types, which can be sent anywhere."""

    @udaf(input_types=[LongType(), float, list[int]], result_type=DoubleType())
    class Declared(Plain):
        def accumulate(self, accumulator: State, *values: Any) -> None: ...

    function = register(Declared)
    assert function.declared_inputs == (pa.int64(), pa.float64(), pa.list_(pa.int64()))
    assert function.declared_result == pa.float64()


def test_a_type_error_of_a_callable_is_not_a_wrong_number_of_arguments() -> None:
    """A wrong number of arguments is the caller's mistake, and an error inside the callable is the author's."""

    def types(first: pa.DataType) -> Any:
        return ["BIGINT"] if first == pa.int64() else None + 1  # type: ignore[operator]

    @udaf(input_types=types, result_type="DOUBLE")
    class Asked(Plain): ...

    function = register(Asked)
    with pytest.raises(RejectedError, match="does not take 2 arguments"):
        function.bind((pa.int64(), pa.int64()), {})
    with pytest.raises(RejectedError, match="raised TypeError: unsupported operand") as excinfo:
        function.bind((pa.string(),), {})
    assert excinfo.value.code == "SIGNATURE"


class Picky(Plain):
    """Checks its direct arguments."""

    def __init__(
        self,
        fraction: float = 0.5,
        kind: Literal["near", "far"] = "near",
        names: list[str] | None = None,
        pair: tuple[int, str] = (1, ""),
        limits: dict[str, int] | None = None,
        at: date = date(2020, 1, 1),
        mode: State | None = None,
        rest: Any = None,
        untyped=1,
    ) -> None:
        if fraction == 13:
            raise ValueError("thirteen is bad luck")


@pytest.mark.parametrize(
    "arguments",
    [
        {"fraction": 1},
        {"fraction": np.float32(0.5)},
        {"kind": "far"},
        {"names": ("a", "b")},
        {"names": np.array(["a"])},
        {"names": None},
        {"pair": [1, "x"]},
        {"limits": {"a": 1}},
        {"at": datetime(2020, 1, 1)},
        {"mode": "anything"},
        {"rest": "anything"},
        {"untyped": "anything"},
    ],
)
def test_direct_arguments_that_fit_their_annotations_are_accepted(arguments: dict[str, Any]) -> None:
    """Values that match an annotation are accepted, and any value if the annotation names no plain values."""
    function = register(udaf(type("Picky", (Picky,), {})))
    assert function.bind([pa.int64()], arguments).literals == arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fraction": "0.5"}, "fraction of picky must be float, but '0.5' is str"),
        ({"fraction": None}, "fraction of picky must be float, but None is NoneType"),
        ({"kind": "middle"}, "'middle' is str"),
        ({"names": "ab"}, "'ab' is str"),
        ({"names": ["a", 1]}, "is list"),
        ({"pair": (1, "x", 2)}, "is tuple"),
        ({"limits": {"a": "b"}}, "is dict"),
        ({"at": "2020-01-01"}, "must be datetime.date, but '2020-01-01' is str"),
    ],
)
def test_direct_arguments_that_contradict_their_annotations_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    """A direct argument is checked against its annotation when the call is bound, before any row."""
    function = register(udaf(type("Picky", (Picky,), {})))
    with pytest.raises(RejectedError, match=message) as excinfo:
        function.bind([pa.int64()], arguments)
    assert excinfo.value.code == "SIGNATURE"


def test_describe_makes_an_instance() -> None:
    """Exceptions of `__init__` for direct arguments are raised when a query is planned, for both forms of class."""

    class Own:
        def __init__(self, fraction: float = 0.5) -> None:
            self.count = 0 if fraction < 1 else 1 // 0

        def accumulate(self, value: int) -> None: ...

        def get_value(self) -> int:
            return self.count

    class Bare(Own):
        def __init__(self) -> None:
            raise OSError("no way in")

    transport = connect([udaf(type("Picky", (Picky,), {})), udaf(Own), udaf(Bare)]).transport

    def describe(name: str, **literals: Any) -> None:
        transport.describe(Open((Call(name, ("v",), literals=literals),), pa.schema([("v", pa.int64())])))

    describe("picky", fraction=0.5)
    describe("own")
    with pytest.raises(RejectedError, match="picky does not take fraction=13: __init__ raised ValueError") as excinfo:
        describe("picky", fraction=13)
    assert excinfo.value.code == "SIGNATURE"
    assert excinfo.value.trace is not None
    assert "test_udaf.py" in excinfo.value.trace
    with pytest.raises(RejectedError, match="own does not take fraction=2: __init__ raised ZeroDivisionError"):
        describe("own", fraction=2)
    with pytest.raises(FunctionError, match="__init__ raised OSError: no way in"):
        describe("bare")


def test_direct_arguments_are_checked() -> None:
    """Unknown and missing direct arguments are refused with their names."""

    @udaf
    class Percentile(Plain):
        def __init__(self, fraction: float) -> None:
            self.fraction = fraction

    function = register(Percentile)
    with pytest.raises(RejectedError, match="needs the direct argument 'fraction'"):
        function.bind([pa.int64()], {})
    with pytest.raises(RejectedError, match="no direct argument 'fractoin'; did you mean fraction"):
        function.bind([pa.int64()], {"fractoin": 0.5})
    assert (
        function.bind([pa.int64()], {"fraction": 0.5}).fingerprint
        != function.bind([pa.int64()], {"fraction": 0.9}).fingerprint
    )


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ([], "takes 1 arguments and was given 0"),
        ([pa.string()], "takes BIGINT for its argument value and was given STRING; cast"),
    ],
)
def test_arguments_are_checked_when_bound(types: list[pa.DataType], message: str) -> None:
    """A wrong number or type of arguments is an error with function, argument, both types and the remedy."""

    @udaf
    class Bound(Plain):
        pass

    with pytest.raises(RejectedError, match=message) as excinfo:
        register(Bound).bind(types, {})
    assert excinfo.value.code == "SCHEMA_MISMATCH"


def test_fingerprints_follow_what_a_state_depends_on() -> None:
    """Another version or state has another fingerprint; the same class has the same."""
    prints = set()
    for options in ({}, {"version": "2"}, {"state_type": "STRUCT<sum BIGINT, count INT>"}):

        class Same(Plain):
            pass

        prints.add(register(udaf(**options)(Same)).bind([pa.int64()], {}).fingerprint)  # type: ignore[call-overload]
    assert len(prints) == 3


def test_registry_names_close_matches() -> None:
    """An unknown function is refused with similar names."""
    with pytest.raises(RejectedError, match=r"'cuont' here; did you mean count") as excinfo:
        Registry()["cuont"]
    assert excinfo.value.code == "UNKNOWN_FUNCTION"
    assert "cuont" not in Registry()


def test_two_functions_cannot_share_a_name() -> None:
    """Two classes with one name are refused with both; so is the name of a built-in function."""

    @udaf(name="twin")
    class One(Plain):
        pass

    @udaf(name="twin")
    class Two(Plain):
        pass

    with pytest.raises(RejectedError, match="two functions are named twin"):
        Registry.load([One, Two])

    @udaf(name="sum")
    class Three(Plain):
        pass

    with pytest.raises(RejectedError, match="two functions are named sum"):
        Registry.load([Three])
    assert "twin" in Registry.load([One, One])


def test_modules_that_cannot_be_loaded_are_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is missing, raises, or has no function is an error with module and place."""
    (tmp_path / "breaks.py").write_text("x = 1\n1 / 0\n")
    (tmp_path / "empty_module.py").write_text("from foldflight.functions.builtin import Sum\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        RejectedError, match=r"'breaks' cannot be imported at .*breaks.py:2: ZeroDivisionError"
    ) as excinfo:
        Registry.load(["breaks"])
    assert excinfo.value.code == "MODULE"
    with pytest.raises(RejectedError, match=r"'no_such_module' cannot be imported: ModuleNotFoundError.*Python path"):
        Registry.load(["no_such_module"])
    with pytest.raises(RejectedError, match="module empty_module has no function"):
        Registry.load(["empty_module"])
    for path, remedy in (
        ("mine.py", r"^MODULE: 'mine.py' is a file, and modules are given by name: write mine, without .py\n"),
        ("./empty_module.py", r"write empty_module, without .py\n"),
        ("folder/mine.py", r"write folder.mine, without .py\n"),
        (str(tmp_path / "mine.py"), rf"write mine, without .py, and start foldflight in {tmp_path}\n"),
    ):
        with pytest.raises(RejectedError, match=remedy):
            Registry.load([path])
    with pytest.raises(RejectedError, match="is not a function"):
        Registry.load([5])


def test_context_reaches_metrics_and_logs() -> None:
    """Metrics have the function's name, and log lines become records."""
    seen_values: list[tuple[Any, ...]] = []

    class Sink:
        def add(self, function: str, metric: str, amount: float) -> None:
            seen_values.append(("add", function, metric, amount))

        def set(self, function: str, metric: str, value: float) -> None:
            seen_values.append(("set", function, metric, value))

        def observe(self, function: str, metric: str, value: float) -> None:
            seen_values.append(("observe", function, metric, value))

    records: list[Any] = []
    context = FunctionContext("f", job_parameters={"a": "b"}, metrics=Sink(), log=records.append)
    context.counter("c").inc()
    context.meter("m").mark(2)
    context.gauge("g").set(3)
    context.distribution("d").observe(4)
    context.logger.warning("odd row", value=5)
    assert seen_values == [("add", "f", "c", 1), ("add", "f", "m", 2), ("set", "f", "g", 3), ("observe", "f", "d", 4)]
    assert [(r.level, r.function, r.message, r.fields) for r in records] == [
        ("warning", "f", "odd row", {"value": "5"})
    ]
    assert context.job_parameters == {"a": "b"}


def test_a_class_is_given_by_keyword() -> None:
    """`udaf` and `udf` take what they register by the name of their first parameter, too."""

    class Own(Plain): ...

    def twice(x: int) -> int:
        return 2 * x

    assert register(udaf(cls=Own, name="by_keyword")).name == "by_keyword"  # type: ignore[call-overload]
    assert function_of(udf(target=twice)) is not None  # type: ignore[call-overload]


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python evaluates annotations where they are written")
def test_a_class_names_itself_in_annotations_that_are_evaluated_late() -> None:
    """Python evaluates them when they are asked for, which is before the class's own name has a value."""

    @udaf
    class Summed:
        class Kept:
            total: int

        def create_accumulator(self) -> Summed.Kept:  # noqa: F821 - from Python 3.14 on
            return Summed.Kept()

        def accumulate(self, accumulator: Summed.Kept, value: int) -> None: ...  # noqa: F821

        def get_value(self, accumulator: Summed.Kept) -> list[int]:  # noqa: F821
            return [accumulator.total]

    assert register(Summed).capabilities.codec == "typed"
