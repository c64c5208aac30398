"""Pickled states of functions that were pickled by value, so that their classes are different objects."""

from __future__ import annotations

import enum
import hashlib
import pickle
import sys
import threading
from collections import defaultdict, namedtuple
from pathlib import Path
from types import CodeType
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, connect, udaf
from foldflight.client import Transport
from foldflight.exchange.frames import Open, Returns
from foldflight.fold.pickles import Pickles
from foldflight.functions import Call, flink
from foldflight.shipping.bundles import unpickle
from foldflight.testing import check_laws, run_epochs
from tests.unit.pickled_spread import EDITED, RANGE, define

KEY = b"a state key of the tests"
COLUMNS = pa.schema([("slot", pa.int32()), ("v", pa.int64())])


def there(*functions: type, key: bytes | None = KEY) -> Transport:
    """Return the transport of functions in another process: pickled and unpickled."""
    transport = connect(functions, state_key=key).transport
    restored: Transport = pickle.loads(cloudpickle.dumps(transport))
    return restored


def fold_values(transport: Transport, *values: int, states: pa.RecordBatch | None = None, name: str = "spread") -> Any:
    """Return the results of one epoch in slot 0: state and output."""
    open_request = Open(calls=(Call(name, ("v",)),), columns=COLUMNS, returns=Returns(states=True, outputs=True))
    with transport.open(open_request) as exchange:
        if states is not None:
            exchange.states(states)
        if values:
            slots = pa.array([0] * len(values), pa.int32())
            exchange.chunk(pa.RecordBatch.from_arrays([slots, pa.array(values, pa.int64())], schema=COLUMNS))
        exchange.barrier(1)
        return exchange.results(1).combine_chunks().to_batches()[0]


def state_of(results: pa.RecordBatch) -> pa.RecordBatch:
    return results.select(["slot", "state_0"])


def output_of(results: pa.RecordBatch) -> Any:
    return results.column("output_0")[0].as_py()


def test_a_class_of_a_notebook_can_be_a_state_wherever_it_travels() -> None:
    """A class in __main__ that is pickled by value is written by one process and read by another."""
    cls = define(RANGE)
    first = fold_values(there(cls), 3, 8)
    assert output_of(fold_values(there(cls), 20, states=state_of(first))) == 17


def test_states_are_read_by_the_edited_class() -> None:
    """A state that an earlier version of the code has written is read as an instance of the current class."""
    first = fold_values(there(define(RANGE)), 3, 8)
    assert output_of(fold_values(there(define(EDITED)), 20, states=state_of(first))) == 170


def test_states_are_read_where_no_key_was_given() -> None:
    """Two processes without a state key read each other's states, as a restarted stream must."""
    first = fold_values(there(define(RANGE), key=None), 3, 8)
    assert output_of(fold_values(there(define(RANGE), key=None), 20, states=state_of(first))) == 17


def test_states_follow_a_class_from_main_to_a_module_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that moves from a notebook to an imported module, or back, reads its states."""
    (tmp_path / "a_spread_module.py").write_text(RANGE)
    monkeypatch.syspath_prepend(tmp_path)
    import a_spread_module  # type: ignore[import-not-found]

    notebook, module = define(RANGE), a_spread_module.Spread
    for before in (notebook, module):
        for after in (notebook, module):
            first = fold_values(there(before), 3, 8)
            assert output_of(fold_values(there(after), 20, states=state_of(first))) == 17
    monkeypatch.delitem(sys.modules, "a_spread_module")


def test_states_pass_between_a_process_that_imports_the_class_and_one_that_it_travelled_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old states are plain pickles of an importable class; they are also read if the class is pickled by value."""
    (tmp_path / "another_spread_module.py").write_text(RANGE)
    monkeypatch.syspath_prepend(tmp_path)
    import another_spread_module  # type: ignore[import-not-found]

    cls = another_spread_module.Spread
    here = connect(cls, state_key=KEY).transport
    written_here = fold_values(here, 3, 8)
    assert b"foldflight.fold.pickles" not in written_here.column("state_0")[0].as_py()  # as it always was
    assert output_of(fold_values(there(cls), 20, states=state_of(written_here))) == 17
    assert output_of(fold_values(here, 20, states=state_of(fold_values(there(cls), 3, 8)))) == 17
    monkeypatch.delitem(sys.modules, "another_spread_module")


class Colour(enum.Enum):
    RED = 1


Pair = namedtuple("Pair", "least most")  # noqa: PYI024 - as people write it


def nothing() -> int:
    return 0


class Base:
    @staticmethod
    def one() -> int:
        return 1


@udaf(name="everything", input_types=["BIGINT"], result_type="STRING")
class Everything:
    """Has all kinds of objects in its state that pickle writes by name."""

    class Inner(Base):
        """A nested class."""

    def create_accumulator(self):  # type: ignore[no-untyped-def]
        return {
            "inner": self.Inner(),
            "pair": Pair(1, 2),
            "colour": Colour.RED,
            "counts": defaultdict(nothing),
            "ones": defaultdict(Base.one),
            "class": Pair,
            "self": self,
        }

    def accumulate(self, accumulator: Any, v: int) -> None:
        accumulator["counts"][v] += 1
        accumulator["ones"][v] += 1

    def get_value(self, accumulator: Any) -> str:
        assert type(accumulator["inner"]) is self.Inner
        assert type(accumulator["pair"]) is accumulator["class"] is Pair
        assert accumulator["colour"] is Colour.RED
        assert type(accumulator["self"]) is type(self)
        return f"{dict(accumulator['counts'])} {dict(accumulator['ones'])}"


def test_objects_that_pickle_writes_by_name_can_be_in_a_state() -> None:
    """Nested and base classes, enums, named tuples, functions, static methods and the function's own class."""
    first = fold_values(there(Everything), 5, name="everything")
    again = fold_values(there(Everything), 5, states=state_of(first), name="everything")
    assert output_of(again) == "{5: 2} {5: 3}"


@udaf(name="itself", input_types=["BIGINT"], result_type="BIGINT")
class Itself:
    """Is its own accumulator without annotations."""

    def __init__(self) -> None:
        self.values = []  # type: ignore[var-annotated]

    def accumulate(self, v: int) -> None:
        self.values.append(v)

    def get_value(self) -> int:
        return len(self.values)


def test_a_class_that_is_its_own_accumulator() -> None:
    """The function's class is the class of the state."""
    first = fold_values(there(Itself), 5, name="itself")
    assert output_of(fold_values(there(Itself), 5, states=state_of(first), name="itself")) == 2


def class_with_step(step: int) -> type:
    class State:
        def __init__(self) -> None:
            self.count = 0

    @udaf(name=f"by_{step}", input_types=["BIGINT"], result_type="BIGINT")
    class By:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return State()

        def accumulate(self, accumulator: Any, v: int) -> None:
            accumulator.count += step

        def get_value(self, accumulator: Any) -> int:
            assert isinstance(accumulator, State)
            return int(accumulator.count)

    return By


def test_functions_of_one_connection_with_classes_of_one_name_are_not_mixed_up() -> None:
    """Two functions from a factory each have a class of the same name, and each reads its own states."""
    transport = there(class_with_step(1), class_with_step(10))
    for step in (1, 10):
        first = fold_values(transport, 5, name=f"by_{step}")
        assert output_of(fold_values(transport, 5, states=state_of(first), name=f"by_{step}")) == 2 * step


def test_a_class_that_is_gone_is_named_with_what_to_do() -> None:
    """If the class of a state was renamed, the error has the name of the class and the remedies."""
    first = fold_values(there(define(RANGE)), 3, 8)
    renamed_transport = there(
        define(RANGE.replace("class R:", "class Renamed:").replace("return R()", "return Renamed()"))
    )
    with pytest.raises(
        RejectedError, match=r"refers to __main__\.R, .* Define it again .* empty checkpoint"
    ) as excinfo:
        fold_values(renamed_transport, 20, states=state_of(first))
    assert excinfo.value.code == "STATE_MISMATCH"
    assert excinfo.value.function == "spread"


def test_a_class_that_refuses_its_old_state_is_told() -> None:
    """If the class raises for an old state, the error has the exception."""
    first = fold_values(there(define(RANGE)), 3, 8)
    refusing_source = RANGE.replace(
        "    def take", "    def __setstate__(self, old):\n        old['new']\n\n    def take"
    )
    with pytest.raises(RejectedError, match=r"KeyError: 'new'.*__setstate__, which gets the old attributes"):
        fold_values(there(define(refusing_source)), 20, states=state_of(first))


def test_a_state_that_no_name_leads_to_is_refused_with_its_function() -> None:
    """A lambda in the state has no name, so the error says what cannot be pickled."""

    @udaf(name="nameless", input_types=["BIGINT"], result_type="BIGINT")
    class Nameless:
        def create_accumulator(self):  # type: ignore[no-untyped-def]
            return defaultdict(lambda: 0)

        def accumulate(self, accumulator: Any, v: int) -> None:
            accumulator[v] += 1

        def get_value(self, accumulator: Any) -> int:
            return len(accumulator)

    with pytest.raises(
        FunctionError, match=r"accumulator .defaultdict. cannot be pickled.*define serialize"
    ) as excinfo:
        fold_values(there(Nameless), 1, name="nameless")
    assert excinfo.value.function == "nameless"


def test_checks_run_the_form_that_spark_runs() -> None:
    """`check_laws` and `run_epochs` fold a function after it was pickled by value."""
    cls = define(RANGE)
    assert {result.law for result in check_laws(cls, examples=5) if result.passed is False} == set()
    first, second = run_epochs({"s": connect(cls)["spread"]("v")}, [[{"v": 3}, {"v": 8}], [{"v": 20}]])
    assert [row["s"] for epoch in (first, second) for _, row in epoch.changelog][-1] == 17
    assert all(b"foldflight.fold.pickles" in epoch.states[()]["s"] for epoch in (first, second))


LOCK = threading.Lock()


@udaf(name="locked", input_types=["BIGINT"], result_type="BIGINT")
class Locked:
    """Refers to a lock, which cannot be pickled."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, v: int) -> int:
        with LOCK:
            return accumulator + v

    def get_value(self, accumulator: int) -> int:
        return accumulator


def test_an_object_that_cannot_be_shipped_is_named() -> None:
    """A function that refers to a lock is refused with function, method and variable, in Spark and in checks."""
    expected_message = (
        r"locked cannot be sent .*Locked\.accumulate: the variable LOCK is _thread\.lock, and it cannot be pickled"
    )
    for use in (
        lambda: pickle.dumps(connect(Locked).transport),
        lambda: check_laws(Locked, examples=1),
        lambda: run_epochs({"s": connect(Locked)["locked"]("v")}, [[{"v": 3}]]),
    ):
        with pytest.raises(RejectedError, match=expected_message) as excinfo:
            use()
        assert (excinfo.value.code, excinfo.value.function) == ("SIGNATURE", "locked")


def test_an_object_that_cannot_be_shipped_is_found_wherever_it_is() -> None:
    """In objects that a closure, a default, an attribute or a container refers to."""
    lock = threading.Lock()

    class Holder:
        def __init__(self) -> None:
            self.items = {"a": [lock]}

    holder = Holder()

    def use_lock() -> Any:
        return holder

    @udaf(name="deep", input_types=["BIGINT"], result_type="BIGINT")
    class Deep:
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator: int, v: int) -> int:
            return accumulator if use_lock() else v

        def get_value(self, accumulator: int) -> int:
            return accumulator

    path = "the variable use_lock: the variable holder: attribute items: item 'a': item 0"
    expected_message = rf"Deep\.accumulate: {path} is _thread\.lock"
    with pytest.raises(RejectedError, match=expected_message):
        pickle.dumps(connect(Deep).transport)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("functions.views", "MapView"),
        ("functions.views", "PlainMap"),
        ("functions.views", "ListView"),
        ("functions.exact", "ExactSum"),
        ("functions.lists", "Lists"),
        ("functions.rowkind", "RowKind"),
        ("functions.query.rowkind", "RowKind"),
        ("functions.author.bounds", "CallBounds"),
        ("functions.author.scalar", "ScalarFunction"),
        ("functions.builtin.numeric", "Total"),
        ("functions.builtin.numeric", "VarPop"),
        ("functions.builtin.picked", "First"),
        ("functions.builtin.variance", "Moments"),
        ("functions.bundled", "Segment"),
        ("functions.author.bundled", "Segment"),
        ("functions.author.bundled", "Applied"),
        ("functions.dialects", "Handled"),
        ("adapters.snowflake", "Handled"),
        ("functions.flink", "Row"),
        ("functions.flink", "MapView"),
        ("functions.flink", "ListView"),
    ],
)
def test_pickles_with_the_modules_of_earlier_releases_are_read(module: str, name: str) -> None:
    """Classes of foldflight that accumulators contain have moved, and pickled states have their names of then."""
    result = Pickles({}).loads(f"cfoldflight.{module}\n{name}\n.".encode())
    assert result.__name__ == name


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("adapters.beam", "CombineFn"),
        ("adapters.pyflink", "AggregateFunction"),
        ("adapters.spark_aggregator", "Aggregator"),
        ("client.transport", "Transport"),
        ("client.embedded", "EmbeddedTransport"),
        ("client.flight", "FlightTransport"),
        ("ext.java.machine", "Jar"),
        ("adapters.java.machine", "Jar"),
        ("client.uses", "Use"),
        ("server.run.program", "Server"),
        ("server.run.program_server", "Server"),
        ("spark.stored", "state_table"),
        ("testing.overstream", "run_over_epochs"),
    ],
)
def test_shipped_code_with_the_modules_of_earlier_releases_is_read(module: str, name: str) -> None:
    """Code in recordings and on queues refers to public names by their modules, and these have moved."""
    code = f"cfoldflight.{module}\n{name}\n.".encode()
    assert unpickle(code, hashlib.sha256(code).hexdigest()).__name__ == name


def test_pickled_rows_of_pyflink_keep_their_name() -> None:
    """So releases on both sides of a rolling upgrade read the states."""
    assert b"foldflight.functions.flink" in Pickles({}).dumps(flink.Row(1, 2))


@udaf
class Failing:
    """Raises for 0."""

    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, total: int, value: int) -> int:
        return total + 1 // value

    def get_value(self, total: int) -> int:
        return total


def test_the_file_of_the_code_is_pickled_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors in workers name the author's file and show its line, also with cloudpickle 3.1.3, which leaves it out."""
    table = dict(cloudpickle.Pickler.dispatch_table)
    reduce_code = table[CodeType]

    def without_file(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
        make, arguments = reduce_code(code)
        return make, tuple("<dynamic-code>" if each == code.co_filename else each for each in arguments)

    monkeypatch.setattr(cloudpickle.Pickler, "dispatch_table", {**table, CodeType: without_file})
    with pytest.raises(FunctionError) as excinfo:
        run_epochs({"n": connect(Failing)("value")}, [[{"value": 0}]])
    assert f'File "{__file__}"' in (excinfo.value.trace or "")
    assert "1 // value" in (excinfo.value.trace or "")
