"""Laws of functions in Java: the loop over chunks, calls row by row, and the same class in Python have one answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldflight import FunctionError, RejectedError
from foldflight.ext.compiler import Programs
from foldflight.ext.java import bridge, classes, jvm
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.mode import Mode
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Function, Registry, function_of
from foldflight.functions.registry import java_functions
from foldflight.testing import check_laws
from tests.effort import examples
from tests.folds import open_fold
from tests.java_classes import MIXED, SUM_OF_BOXES, WEIGHTED_AVG, InPython, compile_loops, jar, needs_javac

pytestmark = needs_javac
SIGNER = StateSigner([b"a key of sixteen bytes or more"])
SLOTS = 5


@pytest.fixture(scope="module", autouse=True)
def _loops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a loop that is up to date, whether or not this checkout was built with javac."""
    folder = compile_loops(tmp_path_factory.mktemp("loops"))
    before, jvm._LOOPS = jvm._LOOPS, folder
    yield
    jvm._LOOPS = before


@pytest.fixture(scope="module")
def served_functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    """The functions by name."""
    folder = tmp_path_factory.mktemp("jars")
    names = {"WeightedAvg": WEIGHTED_AVG, "Mixed": MIXED, "Total": SUM_OF_BOXES}
    result = [
        java_functions([f"{jar(folder, source, name=name)}::com.acme.{name}"])[0] for name, source in names.items()
    ]
    return {function.name: function for function in result}


def fold_of(function: Function, batch: pa.RecordBatch, *, loops: bool, **options: Any) -> Fold:
    """Return a fold over the columns of a batch, with or without the loop."""
    names = tuple(name for name in batch.schema.names if name not in ("slot", "kind"))
    calls = bind_calls(Registry([function]), [Call(function.name, names)], batch.schema)
    with pytest.MonkeyPatch.context() as patch:
        if not loops:
            patch.setattr(classes, "has_loop", lambda _: False)
        fold = open_fold(calls, signer=SIGNER, **options)
    if function.language == "java":
        assert fold.modes == (Mode.JAVA if loops else Mode.INTERPRETED,)
    return fold


def batch_of(seed: int, rows: int) -> pa.RecordBatch:
    draw = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "slot": draw.integers(0, SLOTS, rows).astype(np.int32),
            "kind": (3 * draw.integers(0, 2, rows)).astype(np.int8),
            "v": pa.array(draw.integers(-1000, 1000, rows), mask=draw.integers(0, 5, rows) == 0),
            "w": pa.array(draw.integers(-3, 4, rows).astype(np.int32), mask=draw.integers(0, 5, rows) == 0),
        }
    )


def outcome(batch: pa.RecordBatch) -> Any:
    """Return results with the identities of states, in a form that has equality."""
    return batch.to_pylist(), [field.metadata for field in batch.schema]


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 60), cut=st.integers(0, 60))
@examples(40)
def test_the_loop_single_calls_and_python_have_equal_results(
    served_functions: dict[str, Function], seed: int, rows: int, cut: int
) -> None:
    """WeightedAvg has equal bits with the loop, row by row and in Python, and each continues the others' states."""
    batch = batch_of(seed, rows)
    python = function_of(InPython)
    assert isinstance(python, Function)
    ways = [(served_functions["weighted_avg"], True), (served_functions["weighted_avg"], False), (python, False)]
    first = []
    for function, loops in ways:
        fold = fold_of(function, batch, loops=loops)
        fold.fold(batch.slice(0, cut))
        fold.fold(batch.slice(cut))
        first.append(fold.collect())
    assert outcome(first[0]) == outcome(first[1]) == outcome(first[2])
    later = []
    for shift, (function, loops) in enumerate(ways):
        fold = fold_of(function, batch, loops=loops)
        other_states = first[shift - 1].select(["slot", "state_0"])  # by another way
        fold.merge_states(other_states)
        fold.fold(batch)
        to_one_slot = other_states.set_column(0, "slot", pa.array([0] * len(other_states), pa.int32()))
        fold.merge_states(to_one_slot)
        later.append(fold.collect())
    assert outcome(later[0]) == outcome(later[1]) == outcome(later[2])


@pytest.mark.every_turn
@given(seed=st.integers(0, 2**32), rows=st.integers(8, 60))
@examples(40)
def test_every_type_passes_through_the_loop(served_functions: dict[str, Function], seed: int, rows: int) -> None:
    """The loop takes texts, numbers, booleans, boxes with NULL, slices of arrays, and merge by Iterable."""
    draw = np.random.default_rng(seed)
    nulls = [draw.integers(0, 4, rows + 3) == 0 for _ in range(5)]
    texts = ["", "é", "\U0001f600 long", "z"]
    batch = pa.record_batch(
        {
            "slot": draw.integers(0, SLOTS, rows + 3).astype(np.int32),
            "text": pa.array([texts[i] for i in draw.integers(0, 4, rows + 3)], mask=nulls[0]),
            "number": pa.array(draw.choice([0.1, -1e300, np.nan, np.inf, -0.0], rows + 3), mask=nulls[1]),
            "flag": pa.array(draw.integers(0, 2, rows + 3) == 1, mask=nulls[2]),
            "small": pa.array(draw.integers(-30000, 30000, rows + 3).astype(np.int16), mask=nulls[3]),
            "large": pa.array(draw.integers(-(2**63), 2**63 - 1, rows + 3), mask=nulls[4]),
        }
    ).slice(3)
    result = []
    for loops in (True, False):
        fold = fold_of(served_functions["mixed"], batch, loops=loops)
        fold.fold(batch)
        once = fold.collect()
        fold.merge_states(once.select(["slot", "state_0"]))
        result.append((once, fold.collect()))
    for with_loop, by_row in zip(*result, strict=True):
        assert str(with_loop.to_pylist()) == str(by_row.to_pylist())  # as text, NaN equals NaN


@given(seed=st.integers(0, 2**32), rows=st.integers(8, 60), isolates=st.booleans())
@examples(40)
def test_an_exception_in_a_chunk_equals_the_one_of_single_calls(
    served_functions: dict[str, Function], seed: int, rows: int, isolates: bool
) -> None:
    """The error of a row, a merge or a value is the same with the loop; so are the other groups if it is isolated."""
    draw = np.random.default_rng(seed)
    values = draw.choice([1, 2, 7, 13, 21, 42, -1], rows, p=[0.2, 0.2, 0.2, 0.03, 0.2, 0.12, 0.05])
    slots = draw.integers(0, 12, rows).astype(np.int32)
    batch = pa.record_batch({"slot": slots, "v": pa.array(values, mask=draw.integers(0, 9, rows) == 0)})
    result = []
    for loops in (True, False):
        fold = fold_of(served_functions["total"], batch, loops=loops, isolates=isolates)
        try:
            fold.fold(batch)
            fold.fold(batch)
            states = fold.collect()
            fold.merge_states(states.drop_columns(["output_0"]))
            result.append(fold.collect().to_pylist())
        except FunctionError as error:
            result.append([error.code, error.message, error.slot, error.row, error.trace])
    assert result[0] == result[1]


@pytest.mark.parametrize("loops", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_functions_in_java_keep_the_laws(served_functions: dict[str, Function], loops: bool) -> None:
    """Rows may be split, merged in any order, retracted and stored, as for a function in Python."""
    with pytest.MonkeyPatch.context() as patch:
        if not loops:
            patch.setattr(classes, "has_loop", lambda _: False)
        results = {result.law: result.passed for result in check_laws(served_functions["weighted_avg"], examples=10)}
        mode = Programs().folding(served_functions["weighted_avg"]).mode
    assert mode is (Mode.JAVA if loops else Mode.INTERPRETED)
    assert False not in results.values()
    assert sum(result is True for result in results.values()) >= 6


def test_functions_without_arguments_and_with_distinct_are_folded(
    served_functions: dict[str, Function], tmp_path: Path
) -> None:
    """A loop may have no columns. DISTINCT keeps rows, and calls the class row by row."""
    count = WEIGHTED_AVG.replace(", long value, int weight", "").replace("acc.sum += value * weight;", "acc.sum += 7;")
    count = count.replace("acc.sum -= value * weight;", "").replace("weight", "1").replace("WeightedAvg", "Sevens")
    (function,) = java_functions([f"{jar(tmp_path, count)}::com.acme.Sevens"])
    batch = pa.record_batch({"slot": pa.array([0] * 20, pa.int32())})
    for loops in (True, False):
        fold = fold_of(function, batch, loops=loops)
        fold.fold(batch)
        assert fold.collect().column("state_0").to_pylist() == [{"sum": 140, "count": 20}]
    rows = pa.record_batch({"v": pa.array([1, 1, 4] * 5), "w": pa.array([1] * 15, pa.int32())})
    call = Call("weighted_avg", ("v", "w"), distinct=True)
    fold = Fold(bind_calls(Registry([served_functions["weighted_avg"]]), [call], rows.schema))
    fold.fold(rows)
    assert fold.collect().column("output_0").to_pylist() == [2]


def test_values_after_each_row_equal_those_of_single_calls(served_functions: dict[str, Function]) -> None:
    """`fold_each` continues with the same accumulators, which the next chunk finds."""
    batch = batch_of(3, 40).drop_columns(["kind"])
    result = []
    for loops in (True, False):
        fold = fold_of(served_functions["weighted_avg"], batch, loops=loops)
        fold.fold(batch)
        each = fold.fold_each(batch)
        fold.forget(pa.array([1], pa.int32()))
        fold.fold(batch)
        result.append((each.to_pylist(), outcome(fold.collect())))
    assert result[0] == result[1]


def test_serialized_states_are_signed(tmp_path: Path) -> None:
    """Accumulators with hidden fields are serialized by Java, signed, and read only with the signature."""
    source = """
    package com.acme;
    public class Hidden {
      public static class State implements java.io.Serializable {
        private java.util.ArrayList seen = new java.util.ArrayList();
      }
      public State createAccumulator() { return new State(); }
      public void accumulate(State state, Long value) { state.seen.add(value); }
      public int getValue(State state) { return state.seen.size(); }
    }
    """
    (function,) = java_functions([f"{jar(tmp_path, source)}::com.acme.Hidden"])
    assert function.capabilities.codec == "pickle"
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "v": pa.array(range(9))})
    fold = fold_of(function, batch, loops=True)
    fold.fold(batch)
    result = fold.collect().select(["slot", "state_0"])
    again = fold_of(function, batch, loops=False)
    again.merge_states(result)
    assert again.collect().column("output_0").to_pylist() == [9]
    state = result.column("state_0")[0].as_py()
    forged_state = state[:-1] + bytes([state[-1] ^ 1])
    for bad in (state[32:], forged_state):
        batch_of_bad = pa.record_batch([result.column(0), pa.array([bad], pa.binary())], schema=result.schema)
        with pytest.raises(RejectedError, match="was not unpickled") as excinfo:
            fold_of(function, batch, loops=True).merge_states(batch_of_bad)
        assert excinfo.value.code == "STATE_MISMATCH"
    # Also signed bytes have only classes of the jar and a few packages of the platform.
    foreign = jvm.java().JClass("java.net.URL")("file:/")
    author = classes.load_class(
        function.instantiate.jar,  # type: ignore[attr-defined]
        "com.acme.Hidden",
    )
    stream = jvm.java().JClass("java.io.ByteArrayOutputStream")()
    jvm.java().JClass("java.io.ObjectOutputStream")(stream).writeObject(foreign)
    payload = stream.toByteArray()
    with pytest.raises(Exception, match="filter status: REJECTED"):
        author.loops.deserialized(payload, author.accumulator.type)


def test_serialized_states_can_be_read(tmp_path: Path) -> None:
    """A state with a class that would not be read again is not written; classes of java.util and of the jar are."""
    source = """
    package com.acme;
    import java.util.HashMap;
    public class Held {
      public static class Value implements java.io.Serializable {
        java.util.concurrent.atomic.AtomicLong sum = new java.util.concurrent.atomic.AtomicLong();
        Long[] last = new Long[1];
        java.net.URI where = null;
      }
      public HashMap<String, Value> createAccumulator() { return new HashMap<>(); }
      public void accumulate(HashMap<String, Value> held, String key, Long value) {
        Value found = held.computeIfAbsent(key, each -> new Value());
        found.sum.addAndGet(value);
        if (value == 13) found.where = java.net.URI.create("a:b");
      }
      public long getValue(HashMap<String, Value> held) { return held.get("a").sum.get(); }
    }
    """
    (function,) = java_functions([f"{jar(tmp_path, source, javac=True)}::com.acme.Held"])
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "k": ["a"] * 9, "v": pa.array(range(9))})
    fold = fold_of(function, batch, loops=True)
    fold.fold(batch)
    again = fold_of(function, batch, loops=True)
    again.merge_states(fold.collect().select(["slot", "state_0"]))
    assert again.collect().column("output_0").to_pylist() == [36]
    fold.fold(pa.record_batch({"slot": pa.array([0], pa.int32()), "k": ["a"], "v": [13]}))
    with pytest.raises(FunctionError, match=r"java.net.URI; it is neither of the jar nor of java.lang"):
        fold.collect()


@pytest.mark.parametrize("type_", ["int", "float", "byte", "boolean"])
def test_accumulators_of_primitive_types_keep_their_type(tmp_path: Path, type_: str) -> None:
    """A number that was read from a state has the type of the accumulator, with the loop, too."""
    change_expression = "!held" if type_ == "boolean" else f"({type_}) (held + 1)"
    source = f"""
    package com.acme;
    public class Any {{
      public {type_} createAccumulator() {{ return {"false" if type_ == "boolean" else f"({type_}) 0"}; }}
      public {type_} accumulate({type_} held, long v) {{ return {change_expression}; }}
      public {type_} merge({type_} held, {type_} other) {{ return other; }}
      public {type_} getValue({type_} held) {{ return held; }}
    }}
    """
    (function,) = java_functions([f"{jar(tmp_path, source)}::com.acme.Any"])
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "v": pa.array(range(9))})
    result = []
    for loops in (True, False):
        fold = fold_of(function, batch, loops=loops)
        fold.fold(batch.slice(0, 2))
        fold.fold(batch)
        later = fold_of(function, batch, loops=loops)
        later.merge_states(fold.collect().select(["slot", "state_0"]))
        later.fold(batch)
        later.merge_states(later.collect().select(["slot", "state_0"]))
        result.append(later.collect())
    assert result[0].equals(result[1])
    assert result[0].column("output_0").to_pylist() == [False if type_ == "boolean" else 20]


def test_states_of_a_superclass_and_states_that_a_record_refuses(tmp_path: Path) -> None:
    """The loop sets inherited fields; an exception of a constructor that gets a state has one error in both ways."""
    subclass_source = """
    package com.acme;
    public class Inherited {
      static class Base { public long n; }
      public static class Held extends Base { public double m; }
      public Held createAccumulator() { return new Held(); }
      public void accumulate(Held held, long v) { held.n += v; }
      public long getValue(Held held) { return held.n; }
    }
    """
    (function,) = java_functions(
        [f"{jar(tmp_path, subclass_source, name='inherited', javac=True)}::com.acme.Inherited"]
    )
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "v": pa.array([1] * 9)})
    fold = fold_of(function, batch, loops=True)
    fold.fold(batch)
    again = fold_of(function, batch, loops=True)
    again.merge_states(fold.collect().select(["slot", "state_0"]))
    assert again.collect().column("state_0").to_pylist() == [{"n": 9, "m": 0.0}]
    strict = """
    package com.acme;
    public class Strict {
      public record Held(long n) {
        public Held { if (n == 7) throw new IllegalStateException("seven"); }
      }
      public Held createAccumulator() { return new Held(0); }
      public Held accumulate(Held held, long v) { return new Held(held.n() + v); }
      public Held merge(Held held, Held other) { return new Held(held.n() + other.n()); }
      public long getValue(Held held) { return held.n(); }
    }
    """
    (function,) = java_functions([f"{jar(tmp_path, strict, name='strict', javac=True)}::com.acme.Strict"])
    fold = fold_of(function, batch, loops=True)
    fold.fold(batch.slice(0, 3))
    states_of_fold = fold.collect().select(["slot", "state_0"])
    slots, states = pa.array([0, 1, 2], pa.int32()), pa.array([{"n": 3}, {"n": 7}, {"n": 8}])
    forged_states = pa.record_batch([slots, states], schema=states_of_fold.schema)
    for loops in (True, False):
        with pytest.raises(RejectedError, match=r"cannot be read: .*IllegalStateException: seven") as excinfo:
            fold_of(function, batch, loops=loops, isolates=True).merge_states(forged_states)
        assert excinfo.value.code == "STATE_MISMATCH"


def test_accumulators_of_a_subclass_are_refused(tmp_path: Path) -> None:
    """The state has the fields of the declared class, so the fields of a subclass would be lost."""
    source = """
    package com.acme;
    public class Wide {
      public static class Held { public long n; }
      public static class More extends Held { public long more; }
      public Held createAccumulator() { return new More(); }
      public void accumulate(Held held, long v) { held.n += v; }
      public long getValue(Held held) { return held.n; }
    }
    """
    (function,) = java_functions([f"{jar(tmp_path, source)}::com.acme.Wide"])
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "v": pa.array([1] * 9)})
    for loops in (True, False):
        fold = fold_of(function, batch, loops=loops)
        with pytest.raises(FunctionError, match=r"^RESULT_TYPE: createAccumulator returned a com.acme.Wide\$More;"):
            fold.fold(batch)


def test_a_message_without_utf8_is_still_told(tmp_path: Path) -> None:
    """An exception whose message is half a surrogate pair is an error of the function."""
    source = SUM_OF_BOXES.replace('"negative: " + value', '"\\ud83d"')
    (function,) = java_functions([f"{jar(tmp_path, source)}::com.acme.Total"])
    batch = pa.record_batch({"slot": pa.array([0] * 9, pa.int32()), "v": pa.array([-1] * 9)})
    with pytest.raises(FunctionError, match="accumulate raised UnicodeDecodeError"):
        fold_of(function, batch, loops=True).fold(batch)


def test_thousands_of_groups_fail(served_functions: dict[str, Function]) -> None:
    """Each group whose value raises has its own error, however many there are."""
    slots = pa.array(range(3000), pa.int32())
    batch = pa.record_batch({"slot": slots, "v": pa.array([42, 1] * 1500)})
    fold = fold_of(served_functions["total"], batch, loops=True, isolates=True)
    fold.fold(batch)
    result = fold.collect()
    assert result.column("output_0").to_pylist() == [None, 1] * 1500
    assert result.column("error").null_count == 1500


def test_a_missing_loop_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Loops.class everything is called row by row, and one line of the log says so."""
    monkeypatch.setattr(jvm, "_LOOPS", tmp_path)
    jvm._log_missing_loops.cache_clear()
    with caplog.at_level("INFO"):
        (function,) = java_functions([f"{jar(tmp_path, WEIGHTED_AVG)}::com.acme.WeightedAvg"])
    assert "functions in Java are called row by row" in caplog.text
    batch = batch_of(1, 20)
    fold = Fold(bind_calls(Registry([function]), [Call("weighted_avg", ("v", "w"))], batch.schema))
    assert fold.modes == (Mode.INTERPRETED,)
    assert "no compiled Loops.class" in Programs().folding(function).reason
    fold.fold(batch)
    assert fold.collect().num_rows == SLOTS


def test_types_without_a_loop_are_called_row_by_row() -> None:
    """A loop reads numbers, booleans and texts."""
    assert not bridge.has_loop([classes.Value(pa.date32(), "java.time.LocalDate", None, str)])
