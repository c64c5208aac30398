"""Lifted functions have the interpreter's states, and everything that could differ is refused."""

from __future__ import annotations

import decimal
import importlib.util
import itertools
import json
import random
import textwrap
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from foldflight import udaf
from foldflight.cli.main import cli
from foldflight.ext.lift import analysis, plan, tree
from foldflight.ext.lift.descriptions import _ReachableCode, lift_text, lifted_of
from foldflight.ext.lift.plan import LiftPlan
from foldflight.ext.lift.tree import Case, Lift, const, evaluate, not_
from foldflight.functions import Function, Registry, function_of
from foldflight.testing.laws import LAWS, LawResult, _check, _Inputs, _Subject, hostile_rows
from tests.laws import lifted_functions
from tests.laws.lifted_functions import LIFTED, REFUSED
from tests.laws.lifted_programs import Program, import_program

LAW = next(law for law in LAWS if law.hostile)
BUILT_IN = [
    *(
        (name, type_)
        for name in ("min", "max")
        for type_ in (pa.float64(), pa.string(), pa.date32(), pa.decimal128(9, 2), pa.bool_())
    ),
    *((name, pa.decimal128(*digits)) for name in ("sum", "avg") for digits in ((9, 2), (10, 0), (38, 2))),
    *((name, type_) for name in ("sum", "avg", "count", "min", "max") for type_ in (pa.int64(), pa.int16())),
    ("bool_and", pa.bool_()),
    ("bool_or", pa.bool_()),
]


def function_of_class(cls: type) -> Function:
    """Return the function of a class."""
    function = function_of(cls)
    assert isinstance(function, Function)
    return function


def law_of(function: Function, *, examples: int = 40, types: list[pa.DataType] | None = None) -> LawResult:
    """Return the outcome of the law of lifted functions."""
    subject = _Subject(function, {}, types)
    return _check(LAW, subject, _Inputs(hostile_rows, subject.types, {}, examples=examples))


def lift_of(cls: type) -> Lift:
    """Return the lift of a class, which must have one."""
    function = function_of_class(cls)
    lift, reason = lifted_of(lift_text(function.bind(function.input_types or (), {})))
    assert lift is not None, reason
    return lift


@pytest.mark.parametrize("cls", LIFTED, ids=lambda cls: cls.__name__)
def test_a_lifted_class_has_the_states_of_the_interpreter(cls):
    """For hostile rows, some of them retracted, the tree gives the same states, and raises for the same rows."""
    lift_of(cls)
    assert law_of(function_of_class(cls)).passed, law_of(function_of_class(cls)).detail


@pytest.mark.parametrize(("name", "type_"), BUILT_IN, ids=str)
def test_a_built_in_function_lifts(name, type_):
    """Functions of integers, booleans, texts, dates and decimals lift, and the extremes of floats."""
    result = law_of(Registry()[name], types=[type_], examples=25)
    assert result.passed, result.detail


@pytest.mark.parametrize("cls", LIFTED, ids=lambda cls: cls.__name__)
def test_a_lift_is_data(cls):
    """It survives JSON, as a server sends it."""
    lift = lift_of(cls)
    assert Lift.from_json(lift.to_json()) == lift


def test_a_lift_of_a_later_version_is_not_read():
    """Its expressions may mean something else."""
    text = lift_of(lifted_functions.Products).to_json()
    assert lifted_of(text.replace('"lift": 1', '"lift": 3'))[0] is None
    assert lifted_of("") == (None, "the server does not tell; it is of an older version")


def module_of(tmp_path: Any, name: str, body: str, types: Any) -> Any:
    """Return the function of a class whose `accumulate(self, a, x)` has this body."""
    text = f"""
from foldflight import udaf
MOVED = 1
MOVED = 2

class State:
    n: int
    m: int
    f: float
    b: bool
    def __init__(self):
        self.n, self.m, self.f, self.b = 0, 0, 0.0, False

@udaf(input_types={list(types)!r}, result_type="BIGINT", skip_nulls=True)
class Refused:
    def create_accumulator(self) -> State:
        return State()
    def accumulate(self, a, x):
{textwrap.indent(body, " " * 8)}
    def merge(self, a, other):
        a.n += other.n
    def get_value(self, a):
        return a.n
"""
    path = tmp_path / f"refused_{name.replace(' ', '_')}.py"  # not the name of a module of Python
    return import_program(path, text), path


@pytest.mark.parametrize("name", REFUSED)
def test_code_whose_lift_could_differ_is_refused(tmp_path, name):
    """The reason names what it is about."""
    body, reason, types, _ = REFUSED[name]
    module, _ = module_of(tmp_path, name, body, types)
    function = function_of_class(module.Refused)
    lift, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    assert lift is None
    assert reason in why


def test_a_reason_names_the_authors_line(tmp_path):
    """The line where the operator stands."""
    module, path = module_of(tmp_path, "line", "a.n += 1\na.n += x // 2", ["BIGINT"])
    function = function_of_class(module.Refused)
    _, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    line = path.read_text().splitlines().index("        a.n += x // 2") + 1
    assert f"(accumulate, refused_line.py:{line})" in why


def test_a_source_that_has_changed_is_not_taken(tmp_path):
    """The code that was imported runs, whatever the file contains now."""
    import linecache

    module, path = module_of(tmp_path, "changed", "a.n += x", ["BIGINT"])
    path.write_text(path.read_text().replace("a.n += x", "a.n -= x"))
    linecache.checkcache(str(path))
    function = function_of_class(module.Refused)
    lift, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    assert lift is None
    assert "has changed since it was imported" in why


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("Refused.accumulate", "def accumulate(self, a, x):\n    a.n += helped(x, 2) + 1"),
        ("helped", "def helped(x, y):\n    return x + y"),
        ("State.__init__", "def __init__(self):\n    self.n, self.m, self.f, self.b = 5, 0, 0.0, False"),
    ],
)
def test_a_method_that_is_replaced_is_noticed(tmp_path, name, new):
    """A class that was lifted before has the lift of its new code."""
    module, path = module_of(tmp_path, f"before {name}", "a.n += helped(x, 1)", ["BIGINT"])
    module = import_program(path, f"def helped(x, y):\n    return x * 3\n\n{path.read_text()}")
    function = function_of_class(module.Refused)
    before = lift_text(function.bind(function.input_types, {}))
    assert lift_text(function.bind(function.input_types, {})) == before
    newer = import_program(tmp_path / "newer.py", new)
    *owner, method = name.split(".")
    new_method = vars(newer)[method]
    newer.helped = module.helped
    setattr(getattr(module, owner[0]) if owner else module, method, new_method)
    after = lift_text(function.bind(function.input_types, {}))
    assert after != before
    assert lifted_of(after)[0] is not None


REACHING = """
from types import ModuleType

settings = ModuleType("settings")
settings.step = 1
LIMITS = ([1],)

def helped(x, y=1, *, z=2):
    return x + len(LIMITS) + settings.step

class Base:
    pass

class Other:
    pass

class Author(Base):
    limit = 3

    def accumulate(self, a, x):
        a.n += helped(x)
"""


@pytest.mark.parametrize(
    "change",
    [
        "Author.accumulate = helped",
        "Author.retract = helped",
        "del Author.limit",
        "Author.limit, Author.most = 4, Author.__dict__['limit']",
        "Base.limit = 5",
        "Author.__bases__ = (Other,)",
        "helped = Other",
        "helped.__code__ = (lambda x, y=1, *, z=2: x).__code__",
        "helped.__defaults__ = (2,)",
        "helped.__kwdefaults__['z'] = 3",
        "def len(limits): return 2",
        "settings.step = 2",
        "LIMITS[0].append(2)",
    ],
)
def test_each_change_of_what_a_class_reaches_is_noticed(tmp_path, change):
    """Also members that are added, other base classes, and names that hide Python's."""
    module = import_program(tmp_path / "reaching.py", REACHING)
    reached_objects = _ReachableCode.of(module.Author)
    assert reached_objects.is_unchanged()
    exec(change, vars(module))
    assert not reached_objects.is_unchanged()


def test_a_setting_that_init_reads_is_noticed(tmp_path):
    """An attribute of the instance is a constant of the lift, wherever `__init__` has it from."""
    _, path = module_of(tmp_path, "setting", "a.n += x * self.factor", ["BIGINT"])
    init = "    def __init__(self):\n        self.factor = SETTINGS['factor']\n    def create_accumulator"
    text = path.read_text().replace("    def create_accumulator", init)
    module = import_program(tmp_path / "with_setting.py", f"SETTINGS = {{'factor': 2}}\n{text}")
    function = function_of_class(module.Refused)
    before = lift_text(function.bind(function.input_types, {}))
    assert lifted_of(before)[0] is not None
    assert lift_text(function.bind(function.input_types, {})) == before
    module.SETTINGS["factor"] = 3
    assert lift_text(function.bind(function.input_types, {})) == before.replace('["const", 2]', '["const", 3]')


@pytest.mark.parametrize("op", ["lt", "le", "eq"])
def test_a_comparison_with_a_nan_of_constants_is_false(op):
    """An engine may have NaN as the greatest number."""
    nan = tree.add(const(float("inf")), const(float("-inf")))
    for each in (tree.field("f", "float"), const(1.0), nan):
        assert tree.compare(op, each, nan) == tree.compare(op, nan, each) == tree.FALSE


@pytest.mark.parametrize(("cls", "retracts"), [(lifted_functions.Products, True), (lifted_functions.Conditions, True)])
def test_a_retract_that_is_the_exact_inverse_is_found(cls, retracts):
    """Also if it is written in another way."""
    assert (not lift_of(cls).no_retract_reason) is retracts


def test_a_retract_that_is_not_the_inverse_is_refused(tmp_path):
    """One that is off by one, or that skips rows."""
    for body in ("a.n -= x + 1", "if x > 0:\n            a.n -= x"):
        module, path = module_of(tmp_path, f"inverse {len(body)}", "a.n += x", ["BIGINT"])
        text = path.read_text().replace("    def merge", f"    def retract(self, a, x):\n        {body}\n    def merge")
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(module)
        assert "not the inverse" in lift_of(module.Refused).no_retract_reason


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    def merge(self, a, other):", "    k = 1\n    def merge(self, a, other):\n        self.k = 2", "merge"),
        ("    n: int", "    n: Annotated[int, 'TINYINT']", "starts as 300, which does not fit int8"),
    ],
)
def test_class_attributes_and_starts_that_do_not_lift_are_refused(tmp_path, old, new, reason):
    """An attribute of the class that a method assigns, and a start that its type does not hold."""
    body = "a.n += x * self.k" if reason == "merge" else "a.n += x"
    _, path = module_of(tmp_path, reason.split()[0], body, ["BIGINT"])
    text = "from typing import Annotated\n" + path.read_text().replace(old, new, 1)
    if "300" in reason:
        text = text.replace("= 0, 0, 0.0, False", "= 300, 0, 0.0, False")
    function = function_of_class(import_program(path, text).Refused)
    lift, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    assert lift is None
    assert reason in why


def test_a_start_stays_in_the_place_of_an_equal_value():
    """`max(0.0, -0.0)` is 0.0."""
    type_ = function_of_class(lifted_functions.Zeros).bind([pa.float64()], {}).state_type
    states = LiftPlan.of(lift_of(lifted_functions.Zeros)).states([pa.array([-0.0])], type_, 1)
    assert str(states[0].as_py()) == "0.0"


def test_a_declared_signature_is_refused(tmp_path):
    """Python calls the code, with its own parameters and defaults."""
    import inspect

    module, _ = module_of(tmp_path, "signature", "a.n += x", ["BIGINT"])
    module.Refused.accumulate.__signature__ = inspect.signature(module.Refused.accumulate)
    function = function_of_class(module.Refused)
    lift, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    assert lift is None
    assert "__signature__" in why


def test_none_is_an_accumulator():
    """It is not the sign of one that did not change, where the accumulator may be None."""
    function = function_of_class(lifted_functions.Forgetful)
    lift, why = lifted_of(lift_text(function.bind([pa.int64()], {})))
    assert lift is None
    assert "set" in why


def test_a_class_lifts_as_it_is_declared():
    """The same class that skips NULL and that does not."""
    skipping_function = function_of_class(lifted_functions.Spread)
    lifts = [
        lifted_of(lift_text(each.bind([pa.int64()], {})))[0]
        for each in (skipping_function, replace(skipping_function, skip_nulls=False))
    ]
    assert lifts[0] is not None
    assert lifts[0] != lifts[1]


@pytest.mark.parametrize("change", [{"returns": "always"}, {"deterministic": False}], ids=str)
def test_a_class_that_is_declared_otherwise_is_analysed_again(change):
    """A class that was lifted is analysed again if it is declared otherwise."""
    function = function_of_class(lifted_functions.Products)
    assert lifted_of(lift_text(function.bind(function.input_types, {})))[0] is not None
    if "deterministic" in change:
        change = {"capabilities": replace(function.capabilities, **change)}
    assert lifted_of(lift_text(replace(function, **change).bind(function.input_types, {})))[0] is None


def test_narrow_columns_need_fewer_sums():
    """A BIGINT argument over INT columns is one sum; over BIGINT it is cut."""
    lift = lift_of(lifted_functions.Products)
    assert len(LiftPlan.of(lift).aggregates) > len(LiftPlan.of(lift.narrow_types([pa.int32(), pa.int16()])).aggregates)
    assert [each.kind for each in LiftPlan.of(lift_of(lifted_functions.Narrow)).aggregates] == ["sum", "sum", "sum"]


def test_rows_that_are_left_need_no_condition():
    """Where the other rows raise, each sum takes all rows; where they are skipped, NULL is asked for."""
    products = function_of_class(lifted_functions.Products)
    result = []
    for skips in (False, True):
        lift, _ = lifted_of(lift_text(replace(products, skip_nulls=skips).bind(products.input_types, {})))
        assert lift is not None
        cases = [case.when for each in LiftPlan.of(lift).aggregates for case in each.cases]
        result.append({when == tree.TRUE for when in cases})
        assert len(LiftPlan.of(lift).failure_conditions) == (0 if skips else 2)
    assert result == [{True}, {False}]


def test_conditions_that_always_hold_are_found():
    """As tried with all truth values of the facts, for random conditions."""
    facts = [tree.null(tree.arg(place, pa.int64())) for place in range(3)]
    chance, seen = random.Random(5), set()
    for _ in range(300):
        sides = [[chance.choice((each, not_(each), tree.TRUE)) for each in facts] for _ in range(chance.randrange(6))]
        conditions = [tree.all_of(each) for each in sides]
        rows = itertools.product((1, None), repeat=3)
        holds = all(any(evaluate(each, row) for each in conditions) for row in rows)
        assert plan._hold_always(conditions) is holds
        seen.add(holds)
    assert seen == {True, False}


def test_sums_of_decimals_are_of_a_later_form():
    """A client of the first form would take them for sums of integers."""
    texts = [lift_text(Registry()["sum"].bind([type_], {})) for type_ in (pa.decimal128(9, 2), pa.int64())]
    assert [json.loads(text)["lift"] for text in texts] == [2, 1]
    # Clients that do not know results of DECIMALs have Python compute them.
    assert [bool(json.loads(text)["outcome"]["reason"]) for text in texts] == [True, False]
    assert all(lifted_of(text)[0] is not None for text in texts)


PRICES = """
import decimal
from decimal import Decimal
from typing import Annotated
from foldflight import udaf
class State:
    total: Annotated[Decimal, "DECIMAL(38, 2)"]
    kept: Annotated[Decimal, "DECIMAL(38, 2)"]
    def __init__(self):
        self.kept = 0
        self.total = START
@udaf(input_types=["DECIMAL(10, 2)"], result_type="DECIMAL(38, 2)")
class Prices:
    def create_accumulator(self) -> State:
        return State()
    def accumulate(self, a, price):
        a.total += price
    def get_value(self, a):
        return a.total
"""


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("0", ""),
        ("Decimal(0)", ""),
        ("Decimal('0.00')", ""),
        ("decimal.Decimal(0)", ""),
        ("Decimal('0.000')", "0 of a sum of its scale"),
        ("Decimal(1)", "0 of a sum of its scale"),
        ("Decimal('-0')", "0 of a sum of its scale"),
        ("Decimal('sNaN')", "0 of a sum of its scale"),
        ("Decimal('x')", "create_accumulator raises"),
        ("Decimal(0); self.kept = Decimal(0)", "kept is a Decimal that no row changes"),
    ],
)
def test_a_sum_of_decimals_may_start_as_a_decimal(tmp_path, start, reason):
    """Compiled code asks for it, so a class may be both compiled and lifted; any other start is refused."""
    function = function_of_class(import_program(tmp_path / "prices.py", PRICES.replace("START", start, 1)).Prices)
    lift, why = lifted_of(lift_text(function.bind(function.input_types, {})))
    assert (lift is None) is bool(reason)
    assert reason in why


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 260), marks=pytest.mark.slow)], ids=str)
def test_random_programs_have_the_states_of_the_interpreter(tmp_path, seeds):
    """Those that lift have the states and outputs of the interpreter."""
    lifted_count = 0
    for seed in seeds:
        program = Program(seed)
        function = program.function(tmp_path)
        if lifted_of(lift_text(function.bind(function.input_types or (), {})))[0] is not None:
            lifted_count += 1
            result = law_of(function, examples=25)
            assert result.passed, f"{program.text}\n{result.detail}"
    assert lifted_count > len(seeds) // 5


# --- deliberate mistakes --------------------------------------------------------------------------------------------


def _changed_parts(change):
    """Return a mistake in the amounts or conditions of the tree."""

    def lift(bound):
        result = REAL(bound)
        return replace(
            result, fields=tuple(replace(each, parts=tuple(map(change, each.parts))) for each in result.fields)
        )

    return lambda patch: patch.setattr("foldflight.ext.lift.descriptions.lift_of", lift)


def _changed_outcome(change):
    """Return a mistake in what `get_value` returns."""

    def lift(bound):
        result = REAL(bound)
        return replace(result, outcome=replace(result.outcome, parts=tuple(map(change, result.outcome.parts))))

    return lambda patch: patch.setattr("foldflight.ext.lift.descriptions.lift_of", lift)


REAL = analysis.lift_of
MISTAKES = {
    "an amount is off by one": (
        lifted_functions.Products,
        _changed_parts(lambda part: Case(part.when, plan.add(part.value, const(1)))),
    ),
    "a condition is inverted": (
        lifted_functions.Conditions,
        _changed_parts(lambda part: Case(not_(part.when), part.value)),
    ),
    "conditions are left out": (
        lifted_functions.Positive,
        lambda patch: patch.setattr(analysis._Subject, "_failure", lambda *_: replace_failure()),
    ),
    "the sign is lost": (lifted_functions.Products, lambda patch: patch.setattr(plan, "SIGN", const(1))),
    "limbs are too wide": (lifted_functions.Products, lambda patch: patch.setattr(plan, "_fits", lambda _: True)),
    "the upper limb is shifted wrongly": (
        lifted_functions.Products,
        lambda patch: patch.setattr(plan, "high_bits", lambda one, bits: tree.high_bits(one, bits + 1)),
    ),
    "any retract is taken for the inverse": (
        lifted_functions.Skewed,
        lambda patch: patch.setattr(analysis._Subject, "_check_inverse", lambda *_: None),
    ),
    "the least is taken for the greatest": (
        lifted_functions.Spread,
        lambda patch: patch.setattr(
            analysis, "_ANSWERS", {**analysis._ANSWERS, "less": (False, True, False), "greater": (True, False, False)}
        ),
    ),
    "the start does not take part": (
        lifted_functions.Spread,
        lambda patch: patch.setattr("foldflight.ext.lift.plan._replaces", lambda *_: False),
    ),
    "NaN is not possible": (
        lifted_functions.Unguarded,
        lambda patch: patch.setattr(analysis._Extremum, "_may_be_nan", lambda *_: False),
    ),
    "any choice is a comparison": (
        lifted_functions.LastPositive,
        lambda patch: patch.setattr(
            analysis._Extremum, "takes", lambda _self, _case, _value, relation: relation in ("empty", "greater")
        ),
    ),
    "a condition is left out": (
        lifted_functions.Conditions,
        lambda patch: patch.setattr(plan, "_hold_always", lambda _: True),
    ),
    "a result is off by one": (
        lifted_functions.Conditions,
        _changed_outcome(lambda part: Case(part.when, plan.add(part.value, const(1)))),
    ),
    "a result is that of another accumulator": (
        lifted_functions.Longest,
        _changed_outcome(lambda part: Case(not_(part.when), part.value)),
    ),
    "NULL is not asked for": (
        lifted_functions.Products,
        lambda patch: patch.setattr(analysis._Subject, "_nullable", lambda *_: False),
    ),
}


class Bounds:
    low: int | None

    def __init__(self) -> None:
        self.low = None


@udaf(skip_nulls=True)
class Negated:
    """A number that may exceed 64 bits, so Python makes it."""

    def create_accumulator(self) -> Bounds:
        return Bounds()

    def accumulate(self, accumulator: Bounds, x: int) -> None:
        accumulator.low = x if accumulator.low is None else min(accumulator.low, x)

    def merge(self, accumulator: Bounds, other: Bounds) -> None:
        if other.low is not None:
            self.accumulate(accumulator, other.low)

    def get_value(self, accumulator: Bounds) -> int | None:
        return None if accumulator.low is None else -accumulator.low


def test_outputs_that_may_exceed_64_bits_equal_those_of_python():
    """The law holds for them, also where Python's integer is 2**63 and the output an error."""
    assert law_of(function_of_class(Negated), examples=80).passed


def replace_failure():
    """Return a failure that never occurs."""
    return analysis.Failure(const(False), "")


@pytest.mark.every_turn
def test_mistakes_of_the_lifter_break_the_law(monkeypatch):
    """Each deliberate mistake in the lifter makes the law fail for a function, or take one that it must refuse."""
    surviving_mistakes = []
    for name, (cls, mistake) in MISTAKES.items():
        with monkeypatch.context() as patch:
            patch.setattr("foldflight.ext.lift.descriptions._known", {})
            mistake(patch)
            result = law_of(function_of_class(cls), examples=80)
        if result.passed:
            surviving_mistakes.append(name)
    assert surviving_mistakes == []


@pytest.mark.every_turn
def test_check_notices_a_mistake_of_the_lifter(monkeypatch):
    """The command compares the lifted form of the author's class with the interpreter."""
    arguments = ["check", "examples.weighted_avg", "--examples", "30"]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    monkeypatch.setattr("foldflight.ext.lift.descriptions._known", {})
    _, mistake = MISTAKES["an amount is off by one"]
    mistake(monkeypatch)
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 1
    assert "lift" in result.output


@pytest.mark.parametrize("scale", [30, 37, 38])
@pytest.mark.parametrize("number", [-(1 << 63), 1 << 62, 20])
def test_totals_that_a_decimal_cannot_hold_are_refused(number: int, scale: int) -> None:
    """Arrow's cast to a greater scale would return another number for some of them."""
    type_ = pa.decimal128(38, scale)
    decimals = pa.array([decimal.Decimal(number)], pa.decimal128(19, 0))
    if abs(number) < 10 ** (38 - scale):
        assert plan._whole("n", pa.array([number]), type_)[0].as_py() == number
        assert plan._decimals("n", decimals, type_)[0].as_py() == number
        return
    with pytest.raises(plan.FieldOverflow, match=f"n: {number} .int. does not fit"):
        plan._whole("n", pa.array([number]), type_)
    with pytest.raises(plan.FieldOverflow, match=f"n: {number} .Decimal. does not fit"):
        plan._decimals("n", decimals, type_)
