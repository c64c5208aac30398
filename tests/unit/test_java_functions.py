"""Classes of jars become functions by reflection; their methods, states and errors are Java's."""

from __future__ import annotations

import datetime
import decimal
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from foldflight import FunctionError, RejectedError, connect
from foldflight.ext.java import classes, jvm
from foldflight.fold.aggregate.bound_calls import bind_calls
from foldflight.fold.aggregate.fold import Fold
from foldflight.fold.pickles import StateSigner
from foldflight.functions import Call, Function, Registry
from foldflight.functions.registry import java_functions
from foldflight.shipping.pickling import unpickled_copy
from tests.folds import open_fold
from tests.java_classes import SUM_OF_BOXES, WEIGHTED_AVG, jar, needs_javac

SIGNER = StateSigner([b"a key of sixteen bytes or more"])
ANY = """
package com.acme;

public class Any {
  %s
  public static class State { %s }
  public State createAccumulator() { return new State(); }
  public void accumulate(State state%s) { %s }
  public %s getValue(State state) { %s }
  %s
}
"""


def any_class(
    *,
    head: str = "",
    fields: str = "public long count;",
    arguments: str = "",
    body: str = "state.count += 1;",
    result: str = "long",
    value: str = "return state.count;",
    more: str = "",
) -> str:
    return ANY % (head, fields, arguments, body, result, value, more)


def function_of(folder: Path, source: str, name: str = "com.acme.Any", **options: Any) -> Function:
    return java_functions([f"{jar(folder, source, **options)}::{name}"])[0]


def fold_columns(function: Function, columns: dict[str, Any], **options: Any) -> pa.RecordBatch:
    """Fold columns, with `slot` and `kind`, and return the results."""
    batch = pa.RecordBatch.from_pydict(columns)
    names = tuple(name for name in columns if name not in ("slot", "kind"))
    fold = open_fold(
        bind_calls(Registry([function]), [Call(function.name, names)], batch.schema), signer=SIGNER, **options
    )
    fold.fold(batch)
    return fold.collect()


@pytest.fixture(scope="module")
def weighted_avg(tmp_path_factory: pytest.TempPathFactory) -> Function:
    return function_of(tmp_path_factory.mktemp("weighted"), WEIGHTED_AVG, "com.acme.WeightedAvg")


def test_a_class_becomes_a_function(weighted_avg: Function) -> None:
    """Name, types and capabilities are read from the class; public fields are a typed struct."""
    assert weighted_avg.signature == "weighted_avg(argument1 BIGINT, argument2 INT) -> BIGINT"
    able = weighted_avg.capabilities
    assert (able.retract, able.merge, able.codec, able.deterministic) == (True, True, "typed", True)
    assert weighted_avg.bind((pa.int64(), pa.int32()), {}).state_type == pa.struct(
        {"sum": pa.int64(), "count": pa.int64()}
    )
    assert weighted_avg.where == "com.acme.WeightedAvg"
    assert "functions.jar" in weighted_avg.doc


def test_a_class_folds_and_skips_nulls_of_primitives(weighted_avg: Function) -> None:
    """Rows are added and retracted; a row with NULL for a primitive parameter is not given to the class."""
    result = fold_columns(
        weighted_avg,
        {
            "slot": pa.array([0, 0, 1, 0, 1], pa.int32()),
            "kind": pa.array([0, 0, 0, 3, 0], pa.int8()),
            "v": pa.array([10, 20, 7, 10, None]),
            "w": pa.array([1, 3, 2, 1, 5], pa.int32()),
        },
    )
    assert result.column("state_0").to_pylist() == [{"sum": 60, "count": 3}, {"sum": 14, "count": 2}]
    assert result.column("output_0").to_pylist() == [20, 7]


def test_a_class_is_sent_with_its_jar(weighted_avg: Function) -> None:
    """Another process gets the bytes of the jar; the file is not needed there."""
    (copy,) = unpickled_copy([weighted_avg])
    assert isinstance(copy, Function)
    types = (pa.int64(), pa.int32())
    assert copy.bind(types, {}).fingerprint == weighted_avg.bind(types, {}).fingerprint
    methods = copy.instantiate({})
    accumulator = methods.create_accumulator()
    methods.accumulate(accumulator, 5, 2)
    assert methods.get_value(accumulator) == 5


def test_two_versions_of_a_class_can_be_loaded_at_once(tmp_path: Path, weighted_avg: Function) -> None:
    """Two jars have classes of the same name; each function has its own, and the author's VERSION and NAME."""
    other = WEIGHTED_AVG.replace("acc.sum / acc.count", "-acc.sum / acc.count").replace(
        "public class WeightedAvg {",
        'public class WeightedAvg {\n  public static final String VERSION = "2", NAME = "later";',
    )
    later = function_of(tmp_path, other, "com.acme.WeightedAvg")
    assert (weighted_avg.version, later.version, later.name) == ("1", "2", "later")
    columns = {"v": pa.array([8]), "w": pa.array([1], pa.int32())}
    assert [fold_columns(each, columns).column("output_0").to_pylist() for each in (weighted_avg, later)] == [[8], [-8]]


def test_every_type_passes_into_and_out_of_java(tmp_path: Path) -> None:
    """Every type passes as an argument, a field of a state and a result, also NULL; the state is read back."""
    types = {
        "d": ("java.math.BigDecimal", decimal.Decimal("1.5")),
        "b": ("byte[]", b"\x00\xff"),
        "day": ("java.time.LocalDate", datetime.date(1969, 12, 31)),
        "clock": ("java.time.LocalTime", datetime.time(23, 59, 59, 999999)),
        "local": ("java.time.LocalDateTime", datetime.datetime(1960, 2, 29, 1, 2, 3, 4)),
        "instant": ("java.time.Instant", datetime.datetime(1960, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)),
        "text": ("String", "é\U0001f600"),
        "longs": ("long[]", [1, -(2**63)]),
        "texts": ("String[]", ["a", None]),
        "box": ("Integer", -(2**31)),
        "real": ("Float", 0.5),
        "yes": ("Boolean", True),
    }
    source = any_class(
        fields=" ".join(f"public {java} {name};" for name, (java, _) in types.items()),
        arguments="".join(f", {java} {name}" for name, (java, _) in types.items()),
        body=" ".join(f"state.{name} = {name};" for name in types),
        result="java.math.BigDecimal",
        value="return state.d;",
    )
    function = function_of(tmp_path, source)
    arrow = function.bind(function.input_types or (), {}).input_types
    values = {name: value for name, (_, value) in types.items()}
    for items in (values, dict.fromkeys(values)):
        columns = {name: pa.array([items[name]], type_) for name, type_ in zip(types, arrow, strict=True)}
        result = fold_columns(function, columns)
        assert result.column("state_0").to_pylist() == [items]
        assert result.column("output_0").to_pylist() == [items["d"]]
        fold = Fold(
            bind_calls(Registry([function]), [Call("any", tuple(types))], pa.RecordBatch.from_pydict(columns).schema)
        )
        fold.merge_states(result.select(["slot", "state_0"]))
        assert fold.collect().column("state_0").equals(result.column("state_0"))


VOID_TOTAL = SUM_OF_BOXES.replace("Total", "Any").replace("Long accumulate", "void accumulate")
MISTAKES = {
    "has 2 public methods accumulate: ": any_class(more="public void accumulate(State s, long v) {}"),
    "has no public constructor; define one without": any_class(more="private Any(long x) {}"),
    "compile it with javac -parameters": any_class(more="public Any(long x) {}"),
    "argument 1: java.util.Map has no SQL type; use boolean": any_class(arguments=", java.util.Map m"),
    "the result: java.lang.Object has no SQL type": any_class(result="Object", value="return null;"),
    "its field count is final or not public": any_class(fields="private long count;"),
    "its field t: java.lang.Thread has no": any_class(fields="public long count; public Thread t;"),
    "State has no public constructor without": any_class(fields="public long count; private State() {}"),
    "does not take the accumulator first": any_class(body="").replace("(State state)", "(Object[] state)", 1),
    "has no public method getValue; define": any_class().replace("getValue", "result"),
    "does not take what accumulate(State)": any_class(more="public void retract(State s, long v) {}"),
    "merge(State) does not take two accumulators": any_class(more="public void merge(State s) {}"),
    "declare it as open(), or as open(Map<String": any_class(more="public void open(Thread t) {}"),
    "State is not public; declare it as": any_class().replace("public static class", "static class"),
    "serialize but no deserialize": any_class(head="public byte[] serialize(State s) { return null; }"),
    "has void deserialize(byte[]), which is not for its states; declare it as State deserialize(byte[]": any_class(
        more="public byte[] serialize(State s) { return null; } public void deserialize(byte[] s) {}"
    ),
    "has a field of the same name as one of its superclass": any_class(
        more="public static class Base { public long count; }"
    ).replace("class State", "class State extends Base"),
    "State is abstract": any_class()
    .replace("static class State", "static abstract class State")
    .replace("new State()", "null"),
    " is abstract; name a class that extends it": any_class().replace("public class Any", "abstract public class Any"),
    "cannot change in place; return the new Long": VOID_TOTAL.replace("return checked", "checked"),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_class_that_is_no_function_is_refused_with_the_remedy(tmp_path: Path, message: str) -> None:
    """A class that is not a function is refused when it is loaded, with the reason and the remedy."""
    with pytest.raises(RejectedError, match=re.escape(message)) as excinfo:
        function_of(tmp_path, MISTAKES[message])
    assert excinfo.value.code == "SIGNATURE"
    assert "com.acme.Any" in excinfo.value.message


LOADING = {
    "RuntimeException: no pool; it is raised by its": 'public Any() { throw new RuntimeException("no pool"); }',
    "RuntimeException: no table; it": """static long table() { throw new RuntimeException("no table"); }
        public static final long NAME = table();""",
}


@pytest.mark.parametrize("message", LOADING)
def test_a_class_that_raises_while_it_is_read_is_named(tmp_path: Path, message: str) -> None:
    """An exception of the constructor, which isDeterministic needs, or of a static field is an error of loading."""
    more = LOADING[message] + " public boolean isDeterministic() { return true; }"
    with pytest.raises(RejectedError, match=re.escape(message)) as excinfo:
        function_of(tmp_path, any_class(more=more))
    assert excinfo.value.code == "MODULE"


def test_fields_and_jars_may_have_any_name(tmp_path: Path) -> None:
    """Fields may have names that Python reserves, a superclass may have some, and the jar may have a long name."""
    source = any_class(
        fields="public Integer from; public java.time.LocalDate is;",
        arguments=", Integer v",
        body="state.from = v; state.count += 1; state.is = java.time.LocalDate.of(2026, 1, 2);",
        more="static class Base { public long count; }",
    ).replace("class State", "class State extends Base")
    function = function_of(tmp_path, source, name="com.acme.Any")
    assert isinstance(function.instantiate, classes.JavaForm)
    assert jvm.loaders(jvm.Jar("n" * 250, function.instantiate.jar.code + b"\n")).authors
    result = fold_columns(function, {"slot": pa.array([0, 0], pa.int32()), "v": pa.array([None, 3], pa.int32())})
    assert result.column("state_0").to_pylist() == [{"count": 2, "from": 3, "is": datetime.date(2026, 1, 2)}]
    fold = Fold(bind_calls(Registry([function]), [Call("any", ("v",))], pa.schema({"v": pa.int32()})))
    fold.merge_states(result.select(["slot", "state_0"]))
    assert fold.collect().column("state_0").equals(result.column("state_0"))


FLINK = {
    "AggregateFunction": """package org.apache.flink.table.functions;
        public abstract class AggregateFunction extends UserDefinedFunction {}""",
    "UserDefinedFunction": """package org.apache.flink.table.functions;
        public abstract class UserDefinedFunction {
          public void open(FunctionContext context) {}
          public void close() {}
        }""",
    "FunctionContext": "package org.apache.flink.table.functions; public class FunctionContext {}",
}


def test_a_class_may_extend_the_one_of_flink(tmp_path: Path) -> None:
    """What it inherits from Flink is not its own; an `open` of its own that only Flink can call is refused."""
    source = any_class().replace("class Any", "class Any extends org.apache.flink.table.functions.AggregateFunction")
    function = function_of(tmp_path / "a", source, beside=FLINK)
    assert fold_columns(function, {"slot": pa.array([0, 0], pa.int32())}).column("output_0").to_pylist() == [2]
    own = source.replace(
        "public State create",
        """
        public void open(org.apache.flink.table.functions.FunctionContext context) {}
        public State create""",
    )
    with pytest.raises(RejectedError, match=re.escape("open(FunctionContext) takes what foldflight does not have")):
        function_of(tmp_path / "b", own, beside=FLINK)


@needs_javac
def test_retract_takes_lists_of_the_same_type(tmp_path: Path) -> None:
    """The arguments of a row are converted for accumulate, so retract needs the same types within lists, too."""
    source = any_class(
        arguments=", java.util.List<Long> v", more="public void retract(State s, java.util.List<Integer> v) {}"
    )
    with pytest.raises(RejectedError, match="give both the same parameters"):
        function_of(tmp_path, source, javac=True)


@needs_javac
def test_methods_of_a_superclass_that_is_not_public_are_found(tmp_path: Path) -> None:
    """The compiler writes bridges for them; the methods are read where they were written."""
    source = any_class(arguments=", java.util.List<Long> v", body="state.count += v.size();")
    source = (
        source.replace("public class Any", "abstract class Base")
        .replace("State", "Held")
        .replace("public static class Held {", "public static class Unused {")
    )
    beside = {"Held": "package com.acme; public class Held { public long count; }", "Base": source}
    function = function_of(tmp_path, "package com.acme; public class Any extends Base {}", javac=True, beside=beside)
    columns = {"slot": pa.array([0] * 9, pa.int32()), "v": pa.array([[1, 2]] * 9)}
    assert fold_columns(function, columns).column("output_0").to_pylist() == [18]


@pytest.mark.parametrize(
    ("type_", "value", "message"),
    [
        ("java.time.LocalDate", "java.time.LocalDate.of(10000, 1, 1)", "year 10000 is out of range"),
        ("String", '"\\ud83d"', "half of a surrogate pair"),
    ],
)
def test_values_that_python_does_not_have_are_refused(tmp_path: Path, type_: str, value: str, message: str) -> None:
    """Such a value in a state is an error of its group only."""
    source = any_class(
        fields=f"public {type_} odd; public long count;", arguments=", boolean is", body=f"if (is) state.odd = {value};"
    )
    columns = {"slot": pa.array([0, 1], pa.int32()), "is": pa.array([True, False])}
    result = fold_columns(function_of(tmp_path, source), columns, isolates=True).to_pylist()
    assert [row["error"] and row["error"]["code"] for row in result] == ["RESULT_TYPE", None]
    assert message in result[0]["error"]["message"]


def test_missing_classes_and_jars_are_named(tmp_path: Path, weighted_avg: Function) -> None:
    """The error for a missing class or jar names it, and the ones that exist."""
    archive = jar(tmp_path, WEIGHTED_AVG)
    for name, message in (
        (
            f"{archive}::com.other.WeightedAvg",
            r"no Java class com.other.WeightedAvg in functions.jar \(it has com.acme",
        ),
        (f"{tmp_path}/none.jar::com.acme.X", "none.jar cannot be read: No such file"),
        ("com.acme.X", "has no jar; write it as functions.jar::com.acme.X"),
        (f"{__file__}::com.acme.X", "which is not a jar"),
    ):
        with pytest.raises(RejectedError, match=message) as excinfo:
            java_functions([name])
        assert excinfo.value.code == "MODULE"
    nameless = weighted_avg.instantiate
    assert java_functions(["com.acme.WeightedAvg"], str(archive))[0].instantiate != nameless


def test_an_exception_has_the_frames_of_java(tmp_path: Path) -> None:
    """The error has the group, the row, Java's exception and the author's frames only."""
    function = function_of(tmp_path, SUM_OF_BOXES, "com.acme.Total")
    slots = pa.array([0, 1, 1, 1], pa.int32())
    with pytest.raises(FunctionError) as excinfo:
        fold_columns(function, {"slot": slots, "v": pa.array([1, 2, -3, 4])})
    error = excinfo.value
    assert (error.code, error.slot, error.repeats) == ("USER_CODE", 1, True)
    assert "accumulate raised java.lang.IllegalArgumentException: negative: -3" in error.message
    assert error.row is not None
    assert "v=-3" in error.row
    trace = (error.trace or "").splitlines()
    assert trace[0] == "java.lang.IllegalArgumentException: negative: -3"
    assert [line.strip().partition("(")[0] for line in trace[1:]] == [
        "at com.acme.Total.checked",
        "at com.acme.Total.accumulate",
    ]
    with pytest.raises(FunctionError, match="accumulate returned None") as excinfo:
        fold_columns(function, {"slot": slots, "v": pa.array([1, 2, 13, 4])})
    assert excinfo.value.code == "RESULT_TYPE"


def test_out_of_memory_is_an_error_of_the_function(tmp_path: Path) -> None:
    """The virtual machine survives, and the error may not repeat, because memory may be free later."""
    function = function_of(tmp_path, any_class(body="state.count += new long[Integer.MAX_VALUE].length;"))
    with pytest.raises(FunctionError, match="OutOfMemoryError") as excinfo:
        fold_columns(function, {"slot": pa.array([0], pa.int32())})
    assert (excinfo.value.code, excinfo.value.repeats) == ("USER_CODE", False)
    assert function.instantiate({}).create_accumulator() is not None


def test_the_authors_own_states_are_bytes_with_a_checksum(tmp_path: Path) -> None:
    """The bytes of the author's `serialize` are the state, with a checksum."""
    more = """
    public byte[] serialize(State state) { return new byte[] {(byte) state.hidden}; }
    public State deserialize(byte[] bytes) { State made = new State(); made.hidden = bytes[0]; return made; }
    """
    fields = "int hidden;"
    function = function_of(
        tmp_path, any_class(fields=fields, body="state.hidden -= 1;", value="return state.hidden;", more=more)
    )
    assert function.capabilities.codec == "custom"
    result = fold_columns(function, {"slot": pa.array([0, 0], pa.int32())})
    fold = Fold(bind_calls(Registry([function]), [Call("any")], pa.schema([])))
    fold.merge_states(result.select(["slot", "state_0"]))
    assert fold.collect().column("output_0").to_pylist() == [-2]


def test_open_and_close_are_called(tmp_path: Path) -> None:
    """`open` gets the job parameters; `close` follows, and its exception is an error of the function."""
    more = """
    private long step;
    public void open(java.util.Map parameters) { step = Long.parseLong((String) parameters.get("step")); }
    public void close() { throw new IllegalStateException("closed " + step); }
    """
    function = function_of(tmp_path, any_class(body="state.count += step;", more=more))
    fold = open_fold(bind_calls(Registry([function]), [Call("any")], pa.schema([])), job_parameters={"step": "5"})
    fold.fold(pa.RecordBatch.from_pydict({"slot": pa.array([0, 0], pa.int32())}))
    assert fold.collect().column("output_0").to_pylist() == [10]
    with pytest.raises(FunctionError, match=re.escape("close raised java.lang.IllegalStateException: closed 5")):
        fold.close()


def test_without_jpype_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, weighted_avg: Function) -> None:
    """A process without JPype says what to install, also when it gets a function from another process."""
    monkeypatch.setitem(__import__("sys").modules, "jpype", None)
    classes.load_class.cache_clear()
    with pytest.raises(RejectedError, match=re.escape("pip install 'foldflight[java-functions]'")):
        Fold(
            bind_calls(
                Registry([weighted_avg]),
                [Call("weighted_avg", ("v", "w"))],
                pa.schema({"v": pa.int64(), "w": pa.int32()}),
            )
        )


def test_after_a_fork_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine cannot be used after a fork, so a child is refused instead of waiting forever."""
    jvm.java()
    monkeypatch.setattr(jvm, "_started_by", 1)
    with pytest.raises(RejectedError, match="was forked from one with a Java virtual machine"):
        jvm.java()


def test_an_old_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that cannot load the loop is named."""
    jvm.java()
    monkeypatch.setattr(jvm, "_release", lambda: 11)
    with pytest.raises(RejectedError, match=r"need Java 17 or newer, and /.*libjvm.so is Java 11; set JAVA_HOME"):
        jvm.java()


def test_threads_are_detached_when_they_end(weighted_avg: Function) -> None:
    """The virtual machine does not keep the threads of exchanges that have ended."""
    count = jvm.java().JClass("java.lang.Thread").activeCount
    before = count()
    for _ in range(20):
        thread = threading.Thread(target=lambda: weighted_avg.instantiate({}).create_accumulator())
        thread.start()
        thread.join()
    assert count() < before + 10


def test_no_thread_is_detached_when_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread in JPype while the interpreter ends would abort the process."""
    calls: list[str] = []
    thread = SimpleNamespace(isAttached=lambda: True, detach=lambda: calls.append("detach"))
    jvm.java()
    attachment = jvm._AttachedThread(thread)
    del attachment
    assert calls == ["detach"]
    monkeypatch.setattr(jvm, "_ends", False)
    jvm._end(SimpleNamespace(stop=lambda: calls.append("stop")))
    attachment = jvm._AttachedThread(thread)
    del attachment
    assert calls == ["detach", "stop"]


def test_a_process_ends_while_buffers_are_freed() -> None:
    """The thread that frees buffers of Python for Java does not abort the process."""
    code = """
from foldflight.ext.java.jvm import java
jpype = java()
for _ in range(20000):
    jpype.nio.convertToDirectBuffer(bytearray(8))
jpype.JClass("java.lang.System").gc()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_connect_has_the_classes_beside_the_modules(tmp_path: Path) -> None:
    """`connect(..., java=...)` has the classes beside the modules."""
    archive = jar(tmp_path, WEIGHTED_AVG)
    functions = connect("embedded:", java=[f"{archive}::com.acme.WeightedAvg"])
    assert functions("v", "w").function.signature.startswith("weighted_avg(")
    assert functions.infos()


@needs_javac
def test_names_that_javac_keeps_are_used(tmp_path: Path) -> None:
    """Names of parameters, direct arguments, hints, records, and lists with their types."""
    source = """
    package com.acme;
    import java.lang.annotation.*;
    import java.math.BigDecimal;
    import java.util.List;
    public class Any {
      @Retention(RetentionPolicy.RUNTIME) public @interface DataTypeHint { String value() default ""; }
      public record State(BigDecimal sum, List<Long> seen) {}
      private final int factor;
      public Any(int factor) { this.factor = factor; }
      public State createAccumulator() { return new State(BigDecimal.ZERO, List.of()); }
      public State accumulate(State state, @DataTypeHint("DECIMAL(10, 2)") BigDecimal price, List<Long> ids) {
        return new State(state.sum().add(price.multiply(BigDecimal.valueOf(factor))), ids == null ? state.seen() : ids);
      }
      @DataTypeHint("DECIMAL(12, 2)") public BigDecimal getValue(State state) { return state.sum(); }
      public boolean isDeterministic() { return false; }
    }
    """
    function = function_of(tmp_path, source, javac=True)
    assert function.signature == "any(price DECIMAL(10, 2), ids ARRAY<BIGINT>, factor) -> DECIMAL(12, 2)"
    assert function.returns == "some"
    columns = {
        "price": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2.50")], pa.decimal128(10, 2)),
        "ids": pa.array([[1, 2], None], pa.list_(pa.int64())),
    }
    batch = pa.RecordBatch.from_pydict(columns)
    calls = bind_calls(Registry([function]), [Call("any", ("price", "ids"), literals={"factor": 3})], batch.schema)
    fold = Fold(calls)
    fold.fold(batch)
    result = fold.collect()
    assert result.column("state_0").to_pylist() == [{"sum": decimal.Decimal("11.25"), "seen": [1, 2]}]
    assert result.column("output_0").to_pylist() == [decimal.Decimal("11.25")]
    again = Fold(calls)
    again.merge_states(result.select(["slot", "state_0"]))
    assert again.collect().column("state_0").equals(result.column("state_0"))
    with pytest.raises(RejectedError, match="the direct argument factor of any must be int"):
        function.bind((pa.decimal128(10, 2), pa.list_(pa.int64())), {"factor": "3"})
